"""Figures as TensorBoard event files under `tensorboard/` in the run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from headway.run.paths import RunDir


class TensorBoardTracker:
    """Needs the extra `tensorboard`. After a resume TensorBoard hides what an earlier attempt wrote from there on."""

    rewrites = True

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._plan: dict[str, Any] = {}
        self._resumed = False
        self._writer: SummaryWriter | None = None

    def start(self, run_dir: Path, name: str, plan: dict[str, Any], *, resumed: bool) -> None:
        self._folder, self._plan, self._resumed = RunDir(run_dir).tensorboard, plan, resumed
        if not resumed:
            self._open(None)

    def held(self, name: str) -> set[int]:
        if self._folder is None or not self._folder.is_dir():
            return set()
        from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

        events = EventAccumulator(str(self._folder), size_guidance={SCALARS: 0})
        events.Reload()
        return {event.step for event in events.Scalars(name)} if name in events.Tags()[SCALARS] else set()

    def log(self, step: int, values: dict[str, float]) -> None:
        # A resumed run opens here: only now is the first step known from which older points are to be hidden.
        writer = self._writer or self._open(step)
        for name, value in values.items():
            if name != "time" and isinstance(value, int | float):  # not known (mfu on an unknown device): None
                writer.add_scalar(name, float(value), step, walltime=values.get("time"))

    def artifact(self, name: str, path: Path) -> None:
        if self._writer is not None:
            self._writer.add_text(f"artifact/{name}", str(path))

    def finish(self, outcome: str) -> None:
        if self._writer is not None:
            self._writer.add_text("outcome", outcome)
            self._writer.close()
            self._writer = None

    def _open(self, purge_step: int | None) -> SummaryWriter:
        if self._folder is None:
            raise RuntimeError("TensorBoardTracker.log was called before start")
        self._writer = SummaryWriter(str(self._folder), purge_step=purge_step)
        if not self._resumed:
            self._writer.add_text("plan", f"```json\n{json.dumps(self._plan, indent=2, default=str)}\n```")
        return self._writer
