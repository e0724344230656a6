"""Where checkpoints live. Keys are relative, '/'-separated; a store knows nothing of their meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class CheckpointStore(Protocol):
    """A disk folder today; an object store later. `write` is atomic: a reader sees the whole object or none.

    A prefix is either one key or a folder with its closing '/', so 'step-1' never means 'step-10'. Every method
    raises CheckpointError where the medium fails (disk full, no permission); the bucket may be empty or absent.
    """

    def write(self, key: str, source: Path | bytes) -> None:
        """Store under `key`, replacing what is there. A file inside `staging()` is moved, any other is copied."""
        ...

    def read(self, key: str) -> Path:
        """A local path of the object (downloaded where need be). Raises CheckpointError if absent."""
        ...

    def list(self, prefix: str = "") -> list[str]:
        """The keys under a folder prefix ('' is everything), sorted."""
        ...

    def delete(self, prefix: str) -> None:
        """Remove one key or a folder. Absent is no error; '' is refused with ValueError."""
        ...

    def staging(self) -> Path:
        """A local folder for files on their way in; it belongs to the store and its content is not listed."""
        ...

    def free_bytes(self) -> int | None:
        """Room that is left for new objects; None where there is no such limit."""
        ...
