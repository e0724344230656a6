"""What `python -m headway.model.probe` answers, kept in the user's cache while nothing that it was counted on changes.

The probe imports torch and transformers and builds the model on the meta device: many seconds. Its answer is kept by a
hash of the question, of the versions that build the model and of Headway's own sources that count it, with the hash of
every file of the user's that it read. An answer that is torn, or of files that have changed, is asked for anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from headway.errors import ConfigError, ModelError
from headway.facts.schema import Facts
from headway.run.whole import write_whole

CACHE = Path("~/.cache/headway/shapes")
_PROBE_SECONDS = 300.0
_BUILT_BY = ("headway", "torch", "transformers")
_COUNTED_BY = ("facts", "model")  # rooms of Headway
_Answer = TypeVar("_Answer", bound=Facts)


def ask_probe(
    answer: type[_Answer], config: dict[str, Any], options: Sequence[str], keep: Path | None = None
) -> _Answer:
    """The probe's answer to a config and its options, from the cache (`keep`, else the user's) or from a process.

    Raises ModelError with the probe's words where the model cannot be built; that is asked anew each time.
    """
    key = _key(answer, config, options)
    file = _file(key, keep or CACHE)
    if file is not None and (known := _kept(answer, file, key)) is not None:
        return known
    made, read = _asked(answer, config, options)
    if file is not None:
        content = {"key": key, "answer": made.model_dump_json(), "files": read}
        with suppress(OSError):  # a cache that cannot be written is none
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps({**content, "hash": _hash(content)}))
    return made


def _key(answer: type[Facts], config: dict[str, Any], options: Sequence[str]) -> str:
    own = hashlib.sha256()
    for source in _own_sources():
        own.update(source.read_bytes())
    versions = [sys.version, *(_version(package) for package in _BUILT_BY)]
    return _hash([answer.__name__, config, list(options), versions, own.hexdigest()])


def _own_sources() -> Iterator[Path]:
    package = Path(__file__).parents[1]
    for room in _COUNTED_BY:
        yield from sorted((package / room).rglob("*.py"))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _file(key: str, folder: Path) -> Path | None:
    path = os.path.expanduser(folder)
    return None if path.startswith("~") else Path(path, f"{key}.json")  # a user without a home keeps nothing


def _kept(answer: type[_Answer], file: Path, key: str) -> _Answer | None:
    """The answer, where the file is whole and every file that it was counted on is as it was."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        whole = found.pop("hash") == _hash(found) and found["key"] == key
        if whole and all(_sha256(path) == was for path, was in found["files"].items()):
            return answer.model_validate_json(found["answer"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _sha256(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _asked(answer: type[_Answer], config: dict[str, Any], options: Sequence[str]) -> tuple[_Answer, dict[str, str]]:
    """(the answer of a process of its own, the user's files that it read with their hashes)."""
    name = config.get("model_type", "?")
    with tempfile.TemporaryDirectory(prefix="headway-probe-") as folder:
        file, read = Path(folder) / "config.json", Path(folder) / "read.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        command = [sys.executable, "-m", "headway.model.probe", str(file), *options, "--read", str(read)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            what = f"the probe of the model {name!r} did not end within {_PROBE_SECONDS:.0f} s"
            raise ModelError(what, fix=f"run `{' '.join(command[1:])}` by hand to see where it hangs") from error
        files: dict[str, str] = json.loads(read.read_text(encoding="utf-8")) if read.is_file() else {}
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        try:
            return answer.model_validate_json(lines[-1]), files
        except ValidationError as error:
            raise ModelError(f"the probe of the model {name!r} gave no readable shape: {error}") from error
    said = done.stderr.strip().splitlines()
    if said and options and done.returncode in (ModelError.exit_code, ConfigError.exit_code):
        raise ModelError(f"the model {name!r}: {said[-1]}")
    what, _, fix = (said[-1] if said else "no message").partition(" fix: ")
    raise ModelError(f"the model {name!r} cannot be built from its config: {what}", fix=_fix_of(config, fix))


def _fix_of(config: dict[str, Any], fix: str) -> str:
    if isinstance(config.get("text_config"), dict):
        return "to plan its text model alone, write its text_config, with a model_type, as a config.json of its own"
    return fix or "check config.json; the architecture must be one that the installed transformers knows"
