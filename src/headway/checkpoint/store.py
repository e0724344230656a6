"""A store on a file system: atomic, durable writes, and errors that say how much room was needed."""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from pathlib import Path, PurePosixPath

from headway.errors import CheckpointError
from headway.units import format_bytes

STAGING = ".staging"

# EFBIG comes from `ulimit -f` and from file systems with a size limit; the remedy is the same.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_ERRNO_IN_TEXT = re.compile(r"os error (\d+)")  # how safetensors' native writer reports the operating system's error


def no_room(what: str, where: Path, needed_bytes: int, free_bytes: int) -> CheckpointError:
    """The one message about a full disk: what was to be written, the bytes needed and free, and the fix."""
    missing = format_bytes(max(0, needed_bytes - free_bytes))
    return CheckpointError(
        f"no room for {what} in {where}: needs {format_bytes(needed_bytes)}, {format_bytes(free_bytes)} free",
        fix=f"free at least {missing} there, lower checkpoint.keep, or set `runs` to a larger disk; "
        "earlier checkpoints are intact",
    )


def write_error(error: Exception, what: str, where: Path, needed_bytes: int) -> CheckpointError:
    """What a failed write means: a full disk with its figures, or the operating system's own words."""
    code = error.errno if isinstance(error, OSError) else None
    if code is None and (match := _ERRNO_IN_TEXT.search(str(error))):
        code = int(match[1])
    if code in _NO_ROOM:
        return no_room(what, where, needed_bytes, _free_bytes(where))
    return CheckpointError(
        f"cannot write {what} in {where}: {error}", fix="check that the folder exists and is writable"
    )


def _free_bytes(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LocalStore:
    """Checkpoints in one folder. Made on the first write; many processes may write different keys at once."""

    def __init__(self, root: Path):
        self.root = root

    def write(self, key: str, source: Path | bytes) -> None:
        target = self._path(key)
        size_bytes = len(source) if isinstance(source, bytes) else source.stat().st_size
        staged: Path | None = None
        try:
            staged = self._stage(source)
            self._make_folder(target.parent)
            os.replace(staged, target)
            _sync_folder(target.parent)
        except OSError as error:
            if staged is not None:
                staged.unlink(missing_ok=True)
            raise write_error(error, key, self.root, size_bytes) from error

    def read(self, key: str) -> Path:
        path = self._path(key)
        if not path.is_file():
            raise CheckpointError(f"{key} is absent from {self.root}")
        return path

    def list(self, prefix: str = "") -> list[str]:
        if prefix and not prefix.endswith("/"):
            return [prefix] if self._path(prefix).is_file() else []
        start = self._path(prefix[:-1]) if prefix else self.root
        found = [
            (Path(folder) / name).relative_to(self.root).as_posix()
            for folder, _, names in os.walk(start)
            for name in names
        ]
        return sorted(key for key in found if not key.startswith(f"{STAGING}/"))

    def delete(self, prefix: str) -> None:
        if not prefix:
            raise ValueError("delete needs a key or a folder: '' would remove every checkpoint")
        path = self._path(prefix.removesuffix("/"))
        try:
            if prefix.endswith("/"):
                self._delete_folder(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointError(f"cannot delete {prefix} from {self.root}: {error}") from error

    def staging(self) -> Path:
        folder = self.root / STAGING
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(error, STAGING, self.root, 0) from error
        return folder

    def free_bytes(self) -> int | None:
        return _free_bytes(self.root)

    def _path(self, key: str) -> Path:
        parts = PurePosixPath(key).parts
        if not parts or key.startswith("/") or ".." in parts or parts[0] == STAGING:
            raise ValueError(f"not a key of a checkpoint store: {key!r}")
        return self.root.joinpath(*parts)

    def _fresh(self, label: str) -> Path:
        return self.staging() / f"{label}-{uuid.uuid4().hex}"

    def _stage(self, source: Path | bytes) -> Path:
        """A durable file in the staging folder with the source's content."""
        if isinstance(source, Path) and source.parent == self.staging():
            _sync_file(source)
            return source
        staged = self._fresh("write")
        try:
            if isinstance(source, bytes):
                staged.write_bytes(source)
            else:
                shutil.copyfile(source, staged)
            _sync_file(staged)
        except OSError:
            staged.unlink(missing_ok=True)
            raise
        return staged

    def _make_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            _sync_folder(folder.parent)

    def _delete_folder(self, path: Path) -> None:
        # Moved out of sight first: a process killed while deleting never leaves half a checkpoint to be found.
        trash = self._fresh("deleted")
        try:
            os.replace(path, trash)
        except FileNotFoundError:
            return
        shutil.rmtree(trash)
