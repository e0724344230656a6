"""Where figures go besides the local record. One process reports: rank 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    """Made with the options of the run file as keywords.

    One that cannot start stops the first launch; one that fails later warns once and the local record goes on.

    rewrites: a step that comes again replaces what stood from there on. Where it is false, a step is sent once: one
    that is trained again after a kill equals the first to the last bit.
    """

    rewrites: bool

    def start(self, run_dir: Path, name: str, plan: dict[str, Any], *, resumed: bool) -> None: ...

    def held(self, name: str) -> set[int]:
        """The steps at which a figure of this name is held already, asked of the place where it is kept."""
        ...

    def log(self, step: int, values: dict[str, float]) -> None:
        """`values` hold `time`, the unix seconds of the line in the local record; a value may be None."""
        ...

    def artifact(self, name: str, path: Path) -> None:
        """`export`: the finished model folder."""
        ...

    def finish(self, outcome: str) -> None:
        """done, stopped or failed; may come twice, and before a figure."""
        ...
