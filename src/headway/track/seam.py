"""Where figures go besides the local record. One process reports: rank 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    """One that cannot start stops the first launch; one that fails later warns once and the local record goes on."""

    def start(self, run_dir: Path, name: str, plan: dict[str, Any], *, resumed: bool) -> None: ...

    def log(self, step: int, values: dict[str, float]) -> None: ...

    def artifact(self, name: str, path: Path) -> None: ...

    def finish(self, outcome: str) -> None: ...
