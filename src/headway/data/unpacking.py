"""Files as they are behind their compression: gzip, bzip2, xz and zstd, by the last ending of the name."""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar, cast

from headway.errors import DataError, MissingExtra, Problem

COMPRESSED = frozenset({".gz", ".bz2", ".xz", ".zst"})
TEXT_PER_BYTE = 4  # about how much text a byte of a compressed file holds: for progress and shares of the work

_READ_BYTES = 2**16

T = TypeVar("T")


def is_compressed(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in COMPRESSED


def ending(name: str) -> str:
    """The ending that says what a file holds: '.jsonl' of 'a.jsonl' and of 'a.jsonl.gz'; '.tar' of 'a.tgz'."""
    path = PurePosixPath(name)
    inner = path.with_suffix("") if is_compressed(name) else path
    return ".tar" if inner.suffix.lower() == ".tgz" else inner.suffix.lower()


def open_unpacked(path: Path) -> BinaryIO:
    """The content of a file, decompressed as it is read. Raises MissingExtra for zstd without its package."""
    match path.suffix.lower():
        case ".gz" | ".tgz":
            return cast("BinaryIO", gzip.open(path, "rb"))
        case ".bz2":
            return cast("BinaryIO", bz2.open(path, "rb"))
        case ".xz":
            return cast("BinaryIO", lzma.open(path, "rb"))
        case ".zst":
            try:
                zstandard: Any = importlib.import_module("zstandard")
            except ImportError as error:
                raise MissingExtra("zstandard", "zstd", f"reading {path.name}") from error
            return cast("BinaryIO", io.BufferedReader(_Zstd(path.open("rb"), zstandard), _READ_BYTES))
        case _:
            return path.open("rb")


class _Zstd(io.RawIOBase):
    """The content of zstd frames, one after the other. Raises EOFError in a frame that is cut short.

    The package's own reader takes the end of a file for the end of a frame.
    """

    def __init__(self, source: BinaryIO, zstandard: Any):
        self._source, self._zstandard = source, zstandard
        self._frame: Any = None
        self._ready, self._packed = b"", b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            self._packed = self._packed or self._source.read(_READ_BYTES)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("the last frame is cut short")
                return 0
            self._frame = self._frame or self._zstandard.ZstdDecompressor().decompressobj()
            try:
                self._ready = self._frame.decompress(self._packed)
            except self._zstandard.ZstdError as error:
                raise EOFError(str(error)) from error
            self._packed = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def close(self) -> None:
        self._source.close()
        super().close()


def undamaged(items: Iterator[T], name: str, key: str) -> Iterator[T]:
    """The items read of a compressed file. Raises DataError where the file is cut short or damaged."""
    try:
        yield from items
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise _damaged(error, name, key) from error
    except OSError as error:  # bz2 raises a bare one
        if not name.lower().endswith(".bz2") or error.errno is not None:
            raise
        raise _damaged(error, name, key) from error


def _damaged(error: Exception, name: str, key: str) -> DataError:
    fix = "fetch or make the file again, or leave it out"
    return DataError(problems=[Problem(key, f"cannot be unpacked: {error}", fix=fix, where=name)])
