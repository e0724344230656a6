"""The local record of figures: metrics.jsonl in the run directory, always kept."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from headway.run.journal import Journal, read
from headway.run.paths import RunDir


class JsonLinesTracker:
    """One line a logged step: {"step", "time", ...values}. A resumed run goes on in the same file."""

    rewrites = True

    def __init__(self) -> None:
        self._journal: Journal | None = None

    def start(self, run_dir: Path, name: str, plan: dict[str, Any], *, resumed: bool) -> None:
        self._journal = Journal(RunDir(run_dir).metrics)

    def held(self, name: str) -> set[int]:
        lines = read(self._journal.path, latest_per_step=True) if self._journal else []
        return {line["step"] for line in lines if name in line}

    def log(self, step: int, values: dict[str, float]) -> None:
        if self._journal is not None:
            self._journal.append({"step": step, "time": time.time(), **values})

    def artifact(self, name: str, path: Path) -> None:
        """Artifacts lie in the run directory already."""

    def finish(self, outcome: str) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None
