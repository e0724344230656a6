"""Where checkpoints live. Keys are relative, '/'-separated; a store knows nothing of their meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class CheckpointStore(Protocol):
    """A disk folder today; an object store later. `write` is atomic: a reader sees the whole object or none."""

    def write(self, key: str, source: Path | bytes) -> None: ...

    def read(self, key: str) -> Path:
        """A local path of the object (downloaded where need be). Raises CheckpointError if absent."""
        ...

    def list(self, prefix: str = "") -> list[str]: ...

    def delete(self, prefix: str) -> None: ...
