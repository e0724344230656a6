"""A cache that cannot be written to, said in the user's words."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.errors import DataError, Problem
from headway.units import format_bytes

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST})


@contextmanager
def room_for(text_bytes: int, cache: Path) -> Iterator[None]:
    """Writing what comes from so much text into `cache`: a disk that is full or read-only becomes a DataError."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            rule = "no room left; a token store takes about as much room as its text"
            rule += f", here {format_bytes(text_bytes)}" if text_bytes else ""
            fix = "free some, or set data.cache to a folder on a larger disk"
        elif error.errno in _CLOSED and str(error.filename).startswith(str(cache)):
            rule = f"cannot be written to: {(error.strerror or '').lower()}"
            fix = "set data.cache to a folder of your own"
        else:
            raise
        raise DataError(problems=[Problem("data.cache", rule, str(cache), fix)]) from error
