"""A tracker that keeps nothing: for ranks other than 0, and where nothing is to be tracked."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class NullTracker:
    rewrites = True

    def start(self, run_dir: Path, name: str, plan: dict[str, Any], *, resumed: bool) -> None:
        pass

    def held(self, name: str) -> set[int]:
        return set()

    def log(self, step: int, values: dict[str, float]) -> None:
        pass

    def artifact(self, name: str, path: Path) -> None:
        pass

    def finish(self, outcome: str) -> None:
        pass
