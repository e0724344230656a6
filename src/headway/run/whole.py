"""A small file that others read: written whole and durably, or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Put `text` (UTF-8) in the place of the file; a reader, also after a power cut, sees the old text or the new.

    Raises OSError (disk full, no permission); the file is then as it was.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")  # two processes may write at once
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and not error.filename:  # a full disk is told by the write, which knows no name
            error.filename = str(path)
        raise
