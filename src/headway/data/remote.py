"""Data in an object store: what a URL names is fetched once into the cache, and read from there like any file."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from headway.config.schema import SourceConfig
from headway.data.paths import glob_pattern
from headway.data.room import room_for
from headway.data.seam import ProgressReporter
from headway.errors import DataError, MissingExtra, Problem
from headway.units import format_bytes

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_URL = re.compile(r"(s3|gs|az)://([^/]+)(?:/(.*))?", re.DOTALL)
_WILD = re.compile(r"[*?\[]")
_OPTIONS = ("endpoint", "region", "anonymous")
_RETRIES = {"max_retries": 4, "retry_timeout": timedelta(seconds=60)}
_TIMEOUTS = {"connect_timeout": "10s", "timeout": "600s"}
_NEAR = 3


@dataclass(frozen=True)
class _Object:
    """An object of a bucket. `mark` changes with its content."""

    key: str
    size_bytes: int
    mark: str


def has_urls(config: SourceConfig) -> bool:
    """Whether any of the paths is a URL of an object store."""
    return any(_URL.fullmatch(path) for path in config.paths)


def fetched(config: SourceConfig, cache: Path, key: str, report: ProgressReporter) -> SourceConfig:
    """The same source with every URL replaced by the local copies of the objects that it names.

    An object that was fetched before is fetched again only if the store says that it changed. A copy has its own name
    only when it is whole. Credentials come from the environment, as the store's own tools read them (AWS_*, ...).

    Raises:
        DataError: every URL that names nothing or may not be read, a store that does not answer, a full disk.
        MissingExtra: obstore is not installed.
    """
    if not has_urls(config):
        return config
    paths: list[str] = []
    problems: list[Problem] = []
    for path in config.paths:
        try:
            paths += _copies(path, config.options, cache / "remote", report) if _URL.fullmatch(path) else [path]
        except _Refused as refused:
            problems.append(Problem(f"{key}.paths", refused.rule, path, refused.fix))
    if problems:
        raise DataError(problems=problems)
    options = {name: value for name, value in config.options.items() if name not in _OPTIONS}
    return config.model_copy(update={"paths": tuple(paths), "options": options})


class _Refused(Exception):
    def __init__(self, rule: str, fix: str):
        super().__init__(rule)
        self.rule, self.fix = rule, fix


def _copies(url: str, options: Mapping[str, Any], folder: Path, report: ProgressReporter) -> list[str]:
    found = _URL.fullmatch(url)
    if found is None:
        return [url]
    scheme, bucket, pattern = found[1], found[2], found[3] or ""
    store = _open(f"{scheme}://{bucket}", options)
    objects = _matching(store, pattern, url)
    here = folder / scheme / bucket
    missing = [item for item in objects if not _is_fetched(here, item)]
    if missing:
        size = sum(item.size_bytes for item in missing)
        report.note(f"fetching {len(missing)} objects of {url}, {format_bytes(size)}, into {here}")
        with room_for(size, folder.parent):
            for item in missing:
                _fetch(store, item, here, url)
    return [str(_place(here, item)) for item in objects]


def _open(url: str, options: Mapping[str, Any]) -> ObjectStore:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise MissingExtra("obstore", "s3", f"reading {url}") from error
    config: dict[str, Any] = {name: options[name] for name in ("endpoint", "region") if name in options}
    if options.get("anonymous"):
        config["skip_signature"] = True
    plain = str(options.get("endpoint", "")).startswith("http://")
    client: dict[str, Any] = {**_TIMEOUTS, **({"allow_http": True} if plain else {})}
    try:
        return from_url(url, config=config or None, client_options=client, retry_config=_RETRIES)  # pyright: ignore
    except BaseError as error:
        raise _Refused(f"cannot be opened: {_first_line(error)}", "check the URL and its options") from error


def _matching(store: ObjectStore, pattern: str, url: str) -> list[_Object]:
    """The objects that the pattern names, by key: one object, all below a prefix, or those that fit a glob."""
    wild = _WILD.search(pattern)
    prefix = pattern[: wild.start()].rpartition("/")[0] if wild else pattern.rstrip("/")
    every = _listed(store, prefix, url)
    fits = glob_pattern(pattern if wild else f"{prefix}/**" if prefix else "**")
    chosen = [item for item in every if fits.fullmatch(item.key)]
    if not wild and not chosen:
        chosen = [item for item in every if item.key == pattern]
    if not chosen:
        near = ", ".join(item.key for item in every[:_NEAR])
        held = f"below {prefix or 'its root'} there are {len(every)} objects: {near}" if every else "nothing is there"
        raise _Refused("names no object", f"{held}; change the URL")
    return sorted(chosen, key=lambda item: item.key)


def _listed(store: ObjectStore, prefix: str, url: str) -> list[_Object]:
    import obstore

    with _asked(url):
        found = [meta for chunk in obstore.list(store, prefix=prefix or None) for meta in chunk]
        if not found and prefix:  # a listing is by folder: the prefix may be an object itself
            try:
                found = [obstore.head(store, prefix)]
            except FileNotFoundError:
                found = []
    marks = [str(meta.get("e_tag") or meta["last_modified"].isoformat()) for meta in found]
    items = [_Object(meta["path"], meta["size"], mark) for meta, mark in zip(found, marks, strict=True)]
    return [item for item in items if not item.key.endswith("/")]


class _asked:
    """A store's own errors as what the user can do about them."""

    def __init__(self, url: str):
        self.url = url

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        # A refused listing is a general error: its status is in the text alone.
        said = _first_line(error) if isinstance(error, BaseError) else ""
        if isinstance(error, FileNotFoundError) or "404 Not Found" in said:
            raise _Refused("names no bucket or object", "check the URL") from error
        denied = "403 Forbidden" in said or "401 Unauthorized" in said
        if denied or isinstance(error, PermissionError | PermissionDeniedError | UnauthenticatedError):
            fix = "set the store's credentials in the environment (AWS_ACCESS_KEY_ID, ...), or options.anonymous: true"
            raise _Refused("may not be read", fix) from error
        if isinstance(error, BaseError):
            fix = "check the network, options.endpoint (or AWS_ENDPOINT_URL) and options.region"
            raise _Refused(f"could not be read: {_first_line(error)}", fix) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200]


def _place(here: Path, item: _Object) -> Path:
    """Where an object's copy lies: by its key; a key that would lead out of the folder, by its hash."""
    parts = PurePosixPath(item.key).parts
    if ".." in parts or item.key.startswith("/") or any(part.startswith(".") for part in parts):
        name = hashlib.sha256(item.key.encode()).hexdigest()[:16]
        return here / f"{name}{''.join(PurePosixPath(item.key).suffixes[-2:])}"
    return here / item.key


def _seal(here: Path, item: _Object) -> Path:
    name = hashlib.sha256(item.key.encode()).hexdigest()[:32]
    return here.parent / f"{here.name}.fetched" / f"{name}.json"


def _is_fetched(here: Path, item: _Object) -> bool:
    try:
        known = json.loads(_seal(here, item).read_text())
        size = _place(here, item).stat().st_size
    except (OSError, ValueError):
        return False
    return known == {"key": item.key, "mark": item.mark} and size == item.size_bytes


def _fetch(store: ObjectStore, item: _Object, here: Path, url: str) -> None:
    import obstore

    place, seal = _place(here, item), _seal(here, item)
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    place.parent.mkdir(parents=True, exist_ok=True)
    seal.parent.mkdir(parents=True, exist_ok=True)
    seal.unlink(missing_ok=True)  # what stands there is another version from now on
    try:
        with _asked(url):
            chunks: Iterator[Any] = iter(obstore.get(store, item.key).stream())
            with part.open("wb") as out:
                for chunk in chunks:
                    out.write(chunk)
        if part.stat().st_size != item.size_bytes:
            rule = f"{item.key} came with {part.stat().st_size} of {item.size_bytes} bytes"
            raise _Refused(rule, "start again: what was fetched whole is kept")
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)
    seal.write_text(json.dumps({"key": item.key, "mark": item.mark}))


def local_copies(
    sources: Sequence[SourceConfig], held_out: object, cache: Path, report: ProgressReporter
) -> tuple[tuple[SourceConfig, ...], Any]:
    """(training sources, `data.eval`), with every URL fetched."""
    local = tuple(fetched(source, cache, "data.train", report) for source in sources)
    if isinstance(held_out, SourceConfig):
        return local, fetched(held_out, cache, "data.eval", report)
    return local, held_out
