"""A DeepSpeed JSON against the installed release's schema: every key's name, place, type and range, all at once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, cast

from packaging.version import Version

from headway.config import deepspeed_table as table
from headway.config.deepspeed_models import Fields, Key, Release, installed_release
from headway.config.deepspeed_table import Path
from headway.config.json_text import BARE, parse_json
from headway.config.reader import KeyPath, Source, dotted
from headway.config.secrets import FIX as SECRET_FIX
from headway.config.secrets import find_secrets
from headway.errors import ConfigError, Problem

_KINDS = {
    "bool": "true or false",
    "int": "integer",
    "float": "number",
    "text": "string",
    "list": "list",
    "mapping": "mapping",
    "section": "mapping",
    "betas": "list of two numbers from 0 to below 1",
}
_LIKE_NUMBER = "0123456789+-."


@dataclass
class Judged:
    """What the file says. `values`: canonical path -> value; `written`: canonical path -> the path in the file.

    "auto" stays in `values` where it may be resolved. `sections`: the mappings that were given, also empty ones.
    """

    source: Source
    version: str
    values: dict[Path, Any] = field(default_factory=dict[Path, Any])
    written: dict[Path, KeyPath] = field(default_factory=dict[Path, KeyPath])
    sections: set[Path] = field(default_factory=set[Path])
    notices: list[str] = field(default_factory=list[str])
    problems: list[Problem] = field(default_factory=list[Problem])

    def where(self, path: Path) -> str:
        """'ds.json:12': the line of a canonical path, or of the nearest section around it."""
        here: KeyPath = self.written.get(path, path)
        while here and here not in self.source.lines:
            here = here[:-1]
        line = self.source.lines.get(here, 1)
        return f"{self.source.name}:{line}"

    def refuse(self, path: Path, rule: str, value: object = None, fix: str = "") -> None:
        self.problems.append(Problem(dotted(self.written.get(path, path)), rule, value, fix, self.where(path)))

    def notice(self, path: Path, text: str) -> None:
        self.notices.append(f"{self.where(path)}: {dotted(self.written.get(path, path))} {text}")


def judge_json(text: str, name: str, release: Release | None = None) -> Judged:
    """Read and judge a DeepSpeed JSON, by default against the installed release.

    Raises:
        ConfigError: the text has no structure, or is no mapping.
    """
    source = parse_json(text, name)
    release = release or installed_release()
    data: object = source.data
    if not isinstance(data, dict):
        raise ConfigError(
            f"{name} is no DeepSpeed JSON: it holds {_shown(data)}", fix='write { "zero_optimization": ... }'
        )
    judged = Judged(source, release.version, problems=list(source.problems))
    walk = _Walk(judged, release.models, cast("dict[str, Any]", data))
    walk.section((), (), table.TOP, cast("dict[str, Any]", data))
    return judged


class _Walk:
    def __init__(self, judged: Judged, models: Mapping[str, Fields], data: dict[str, Any]):
        self._judged, self._version = judged, Version(judged.version)
        self._sections = table.sections(models, _type_of(data, "optimizer"), _type_of(data, "scheduler"))
        self._secrets = set(find_secrets(data))
        self._places = dict(_places(self._sections))

    def section(self, path: Path, written: KeyPath, fields: Fields, data: dict[str, Any]) -> None:
        self._judged.sections.add(path)
        for name, value in data.items():
            here = (*written, name)
            if here in self._secrets:
                self._put((*path, name), here)
                self._judged.refuse((*path, name), "looks like a secret", None, SECRET_FIX)
                continue
            key = fields.get(name)
            if self._gone((*path, name), here) or self._young((*path, name), here):
                continue
            if key is None:
                self._unknown((*path, name), here, fields)
                continue
            canonical = (*path, key.canonical)
            if canonical in self._judged.written and canonical != (*path, name):
                self._put((*path, name), here)
                other = dotted(self._judged.written[canonical])
                self._judged.refuse((*path, name), f"is another name of {other}, which is given too", value, "keep one")
                continue
            self._put(canonical, here)
            self._value(canonical, here, key, value)

    def _put(self, path: Path, written: KeyPath) -> None:
        self._judged.written[path] = written

    # --- names and places --------------------------------------------------------------------------------------------

    def _gone(self, path: Path, written: KeyPath) -> bool:
        removed = table.REMOVED.get(path)
        if removed is None:
            return False
        self._put(path, written)
        if self._version >= Version(removed.since):
            rule = f"is gone: DeepSpeed removed {removed.what} in {removed.since} (installed: {self._version})"
        else:
            rule = f"is not used: Headway has no {removed.what}, and DeepSpeed removed it in {removed.since}"
        self._judged.refuse(path, rule, fix=removed.instead)
        return True

    def _young(self, path: Path, written: KeyPath) -> bool:
        since = table.SINCE.get(path)
        if since is None or self._version >= Version(since):
            return False
        self._put(path, written)
        rule = f"came with DeepSpeed {since}; the installed {self._version} would ignore it"
        self._judged.refuse(path, rule, fix=f"remove it, or pip install 'deepspeed>={since}'")
        return True

    def _unknown(self, path: Path, written: KeyPath, fields: Fields) -> None:
        self._put(path, written)
        name, inside = path[-1], dotted(path[:-1])
        homes = [place for place in self._places.get(name, []) if place[:-1] != path[:-1]]
        near = get_close_matches(name, list(fields), n=1, cutoff=0.6)
        if homes and not (near and near[0].casefold() == name.casefold()):
            rule = f"is not a key here; it belongs at {' or '.join(dotted(home) for home in homes[:3])}"
            self._judged.refuse(path, rule, fix=f"write {dotted(homes[0])}")
        elif near:
            full = dotted((*path[:-1], near[0]))
            self._judged.refuse(path, f"is not a key of DeepSpeed; did you mean {near[0]!r}?", fix=f"write {full}")
        elif elsewhere := get_close_matches(name, list(self._places), n=1, cutoff=0.8):
            home = dotted(self._places[elsewhere[0]][0])
            self._judged.refuse(path, f"is not a key of DeepSpeed; did you mean {home}?", fix=f"write {home}")
        else:
            rule = f"is not a key of DeepSpeed {self._version}" + (f" in {inside}" if inside else "")
            legal = ", ".join(sorted({key.canonical for key in fields.values()})[:12])
            self._judged.refuse(path, rule, fix=f"remove it; keys here are for example {legal}")

    # --- values ------------------------------------------------------------------------------------------------------

    def _value(self, path: Path, written: KeyPath, key: Key, value: Any) -> None:
        if value is BARE:
            return
        if value == "auto" and path in table.AUTO | table.OWN_AUTO:
            self._judged.values[path] = value
        elif value == "auto" and key.kind != "any":
            fix = f"one of: {', '.join(str(v) for v in key.values)}" if key.values else f"write a {_KINDS[key.kind]}"
            self._judged.refuse(path, "does not support auto: DeepSpeed would take its default in silence", "auto", fix)
        elif value is None and key.null:
            self._judged.values[path] = None
        elif path == ("zero_optimization",) and isinstance(value, bool):
            self._old_zero(value)
        elif key.kind == "section":
            self._inside(path, written, key, value)
        else:
            self._plain(path, key, value)

    def _old_zero(self, value: bool) -> None:
        path, stage = ("zero_optimization",), int(value)
        self._judged.sections.add(path)
        self._judged.values[(*path, "stage")] = stage
        self._judged.written[(*path, "stage")] = path
        text = f"= {str(value).lower()} is the form of 2020 and means stage {stage}: "
        self._judged.notice(path, text + f'write "zero_optimization": {{"stage": {stage}}}')

    def _inside(self, path: Path, written: KeyPath, key: Key, value: Any) -> None:
        fields = self._sections.get(key.section)
        if not isinstance(value, dict):
            fix = f"for example {{{', '.join(list(fields or {})[:3])}: ...}}"
            self._judged.refuse(path, f"expected a mapping, got {_shown(value)}", None, fix)
        elif fields is None:  # a release without this model
            self._judged.refuse(path, f"is not known to DeepSpeed {self._version}", None, "remove it")
        else:
            self.section(path, written, fields, cast("dict[str, Any]", value))

    def _plain(self, path: Path, key: Key, value: Any) -> None:
        converted = _converted(key.kind, value)
        if converted is _WRONG:
            self._judged.refuse(path, f"expected {_KINDS[key.kind]}, got {_shown(value)}", None, _type_fix(key, value))
            return
        if key.values and converted not in key.values:
            legal = [value for value in key.values if not isinstance(value, str) or value == value.lower()]
            near = get_close_matches(str(converted), [str(value) for value in key.values], n=1)
            fix = f"did you mean {json.dumps(near[0]) if isinstance(converted, str) else near[0]}?" if near else ""
            rule = f"must be one of {', '.join(map(str, legal or key.values))}"
            self._judged.refuse(path, rule, converted, fix or f"write {legal[0] if legal else key.values[0]}")
            return
        if isinstance(converted, int | float) and (rule := _out_of_range(path, key, converted)) is not None:
            self._judged.refuse(path, rule, converted, "write a value in that range, or remove the key")
            return
        self._judged.values[path] = converted


def _type_of(data: dict[str, Any], section: str) -> str:
    """The type that a section names, in the table's spelling; '' where there is none."""
    inner: object = data.get(section)
    named: object = cast("dict[str, Any]", inner).get("type") if isinstance(inner, dict) else None
    known = table.OPTIMIZERS if section == "optimizer" else table.SCHEDULERS
    return next((name for name in known if isinstance(named, str) and name.lower() == named.strip().lower()), "")


def _places(sections: dict[str, Fields]) -> Iterator[tuple[str, list[Path]]]:
    """Key name -> every place where it is legal, the shallowest first."""
    found: dict[str, list[Path]] = {}

    def walk(path: Path, fields: Fields) -> None:
        for name, key in fields.items():
            found.setdefault(name, []).append((*path, name))
            if key.kind == "section":
                walk((*path, name), sections.get(key.section, {}))

    walk((), table.TOP)
    for name, places in found.items():
        yield name, sorted(places, key=len)


_WRONG = object()


def _converted(kind: str, value: Any) -> Any:
    """The value in its kind; _WRONG where it has another one. A whole number may be written 5e8."""
    if kind == "any":
        return value
    if isinstance(value, bool):
        return value if kind == "bool" else _WRONG
    if kind == "int" and isinstance(value, float):
        return int(value) if value.is_integer() else _WRONG
    if kind == "betas":
        return _betas(value)
    wanted = {"int": int, "float": int | float, "text": str, "list": list, "mapping": dict}.get(kind)
    if wanted is None or not isinstance(value, wanted):
        return _WRONG
    return float(value) if kind == "float" else value


def _betas(value: Any) -> Any:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    sound = [item for item in items if isinstance(item, int | float) and not isinstance(item, bool) and 0 <= item < 1]
    return [float(item) for item in sound] if len(items) == len(sound) == 2 else _WRONG


def _shown(value: Any) -> str:
    """'string "6"', 'true', 'a list': never two equal words for two types."""
    if isinstance(value, str):
        return f"string {json.dumps(value, ensure_ascii=False)}"
    if isinstance(value, dict):
        return "a mapping"
    return f"list {json.dumps(value)}" if isinstance(value, list) else json.dumps(value)


def _type_fix(key: Key, value: Any) -> str:
    """What to write in place of a value of the wrong type."""
    if isinstance(value, str) and key.kind in ("int", "float") and value.strip()[:1] in tuple(_LIKE_NUMBER):
        try:
            number = float(value)
        except ValueError:
            return "write a number without quotes"
        if math.isfinite(number):
            return f"write {int(number) if number.is_integer() else number} (without quotes)"
    if key.kind == "bool":
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return f"write {value.strip().lower()} (without quotes)"
        return "write true or false"
    if key.kind == "int" and isinstance(value, float):
        return f"write {round(value)}"
    if key.kind == "text" and not isinstance(value, list | dict):
        return f"for example {json.dumps(key.values[0])}" if key.values else "put it in double quotes"
    return {"betas": "for example [0.9, 0.95]", "list": "write [...]"}.get(key.kind, f"write a {_KINDS[key.kind]}")


def _out_of_range(path: Path, key: Key, value: float) -> str | None:
    if isinstance(value, bool):
        return None
    low, high, low_open = table.RANGES.get(path, (key.low, key.high, key.low_open))
    high_open = key.high_open
    if key.kind == "int" and high is None:
        high = table.MOST_ELEMENTS
    below = low is not None and (value <= low if low_open else value < low)
    above = high is not None and (value >= high if high_open else value > high)
    if not below and not above:
        return None
    least = "" if low is None else f"above {low:.10g}" if low_open else f"at least {low:.10g}"
    most = "" if high is None else f"below {high:.10g}" if high_open else f"at most {high:.10g}"
    if below and high is not None and high >= table.LARGEST:  # the far end would only distract
        most = ""
    return f"must be {' and '.join(part for part in (least, most) if part)}"
