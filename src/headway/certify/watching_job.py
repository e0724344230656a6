"""What a rank of a certify run is to note; written by the one who certifies, read by the rank."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from headway.run.paths import RunDir

JOB = "job.json"


@dataclass(frozen=True)
class Job:
    """What a certify rank is to note.

    gradients_at: steps whose whole gradients are kept. states: weights and moments, at the start and after each step.
    plant: package.module:function called first, by the tests of the claims.
    """

    gradients_at: tuple[int, ...] = ()
    states: bool = False
    kill_after: int | None = None
    effects: bool = False
    plant: str | None = None

    def write(self, run: RunDir) -> None:
        (run.path / JOB).write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(run: RunDir) -> Job:
        content = json.loads((run.path / JOB).read_text())
        return Job(**content | {"gradients_at": tuple(content["gradients_at"])})
