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
    "list": "list of strings",
    "mapping": "mapping",
    "section": "mapping",
    "betas": "list of two numbers from 0 to below 1",
}
_LIKE_NUMBER = "0123456789+-."
_FEW = 3  # more places than these have the key, such as `enabled`: naming some of them would mislead


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
    _judge_optimizer(judged)
    _judge_scheduler(judged)
    return judged


def _judge_optimizer(judged: Judged) -> None:
    """A type that is gone, or that DeepSpeed does not know: only Adam's names may be written in any case."""
    path: Path = ("optimizer", "type")
    named = str(judged.values.get(path, "AdamW"))
    plain = named.strip().lower()
    names = {name.lower(): name for name in table.OPTIMIZERS}
    removed = {name.lower(): what for name, what in table.REMOVED_OPTIMIZERS.items()}
    if plain in removed:
        rule = f"is gone: DeepSpeed removed {removed[plain]} in 0.19.7 (installed: {judged.version})"
        if Version(judged.version) < Version("0.19.7"):
            rule = f"is not used: Headway has no {removed[plain]}, and DeepSpeed removed it in 0.19.7"
        judged.refuse(path, rule, named, table.INSTEAD_OF_ONE_BIT)
        return
    legal = named.lower() in ("adam", "adamw") or named in names.values()
    if not legal and plain not in {name.lower() for name in table.NOT_ADMITTED}:
        near = get_close_matches(plain, list(names), n=1, cutoff=0.5)
        hint = f"; did you mean {names[near[0]]}?" if near else ""
        judged.refuse(path, f"is no optimizer of DeepSpeed{hint}", named, f"write one of {', '.join(names.values())}")


def _judge_scheduler(judged: Judged) -> None:
    path: Path = ("scheduler", "type")
    named = judged.values.get(path)
    if named is not None and named not in (*table.SCHEDULERS, *table.OTHER_SCHEDULERS):
        near = get_close_matches(str(named), (*table.SCHEDULERS, *table.OTHER_SCHEDULERS), n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        judged.refuse(path, f"is no scheduler of DeepSpeed{hint}", named, f"one of {', '.join(table.SCHEDULERS)}")


class _Walk:
    def __init__(self, judged: Judged, models: Mapping[str, Fields], data: dict[str, Any]):
        self._judged, self._version, self._data = judged, Version(judged.version), data
        self._types = {section: _type_of(data, section) for section in ("optimizer", "scheduler")}
        self._sections = table.sections(models, self._types["optimizer"], self._types["scheduler"])
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
                if not self._takes_others(path):
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
        near = _nearest(name, [one for one, key in fields.items() if not key.instead]) or _nearest(name, list(fields))
        odd = "" if name.isascii() else f" ({name!a} holds a character that looks like another)"
        legal = ", ".join(sorted({key.canonical for key in fields.values()})[:12])
        if other := self._of_another_type(path):
            self._judged.refuse(path, *other)
        elif homes and len(homes) <= _FEW and not (near and near.casefold() == name.casefold()):
            rule = f"is not a key here; it belongs at {' or '.join(_place(home) for home in homes)}"
            fix = f"write {dotted(homes[0])}" if len(homes) == 1 else "write it where it is meant"
            self._judged.refuse(path, rule, fix=fix)
        elif near:
            full = dotted((*path[:-1], near))
            self._judged.refuse(path, f"is not a key of DeepSpeed; did you mean {near!r}?{odd}", fix=f"write {full}")
        elif meant := table.OTHER_NAMES.get(name.casefold().replace("-", "_")):
            self._judged.refuse(path, f"is not a key of DeepSpeed; did you mean {meant}?", fix=f"write {meant}")
        elif not homes and (elsewhere := _nearest(name, list(self._places), cutoff=0.8)):
            home = dotted(self._places[elsewhere][0])
            self._judged.refuse(path, f"is not a key of DeepSpeed; did you mean {home}?{odd}", fix=f"write {home}")
        else:
            rule = f"is not a key of DeepSpeed {self._version}" + (f" in {inside}" if inside else "")
            self._judged.refuse(path, rule, fix=f"remove it; keys here are for example {legal}")

    def _takes_others(self, path: Path) -> bool:
        """Whether these are the parameters of an optimizer or a scheduler that no table describes: OneCycle."""
        others: dict[Path, tuple[str, ...]] = {
            ("optimizer", "params"): (*table.NOT_ADMITTED, *table.REMOVED_OPTIMIZERS),
            ("scheduler", "params"): table.OTHER_SCHEDULERS,
        }
        named = self._data.get(path[0], {}).get("type") if path in others else None
        return isinstance(named, str) and named.strip().lower() in {name.lower() for name in others[path]}

    def _of_another_type(self, path: Path) -> tuple[str, None, str] | None:
        """A parameter of another optimizer or scheduler than the one that is named."""
        every: dict[Path, dict[str, dict[str, Key]]] = {
            ("optimizer", "params"): {kind: known.params for kind, known in table.OPTIMIZERS.items()},
            ("scheduler", "params"): {kind: params for kind, (_, params) in table.SCHEDULERS.items()},
        }
        named = self._types.get(path[0], "")
        others = [kind for kind, params in every.get(path[:-1], {}).items() if path[-1] in params]
        if not others or not named:
            return None
        fix = "remove it: the peak is optimizer.params.lr" if path[-1] == "warmup_max_lr" else "remove it"
        return f"is no parameter of {named}; {', '.join(others)} take it", None, fix

    # --- values ------------------------------------------------------------------------------------------------------

    def _value(self, path: Path, written: KeyPath, key: Key, value: Any) -> None:
        if value is BARE:
            return
        if value == "auto" and path in table.AUTO | table.AUTO_BY_ACCELERATE | table.OWN_AUTO:
            self._judged.values[path] = value
        elif value == "auto" and key.kind != "any":
            fix = f"one of: {', '.join(str(v) for v in key.values)}" if key.values else f"write {_a(key.kind)}"
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
            fix = f"write {_example(path, fields or {})}" if value is not None else "remove it"
            self._judged.refuse(path, f"expected a mapping, got {_shown(value)}", None, fix)
        elif fields is None:  # a release without this model
            self._judged.refuse(path, f"is not known to DeepSpeed {self._version}", None, "remove it")
        else:
            inside = cast("dict[str, Any]", value)
            self.section(path, written, fields, inside)
            if "enabled" in fields and "enabled" not in inside and path not in table.OPTIONAL_SWITCH:
                self._judged.notice(path, "is off: it names no `enabled`, and DeepSpeed's default is false")

    def _plain(self, path: Path, key: Key, value: Any) -> None:
        converted = _converted(key.kind, value)
        if converted is _WRONG:
            gone = value is None or (key.kind == "mapping" and isinstance(value, bool))
            fix = "remove it" if gone else _type_fix(key, value)
            self._judged.refuse(path, f"expected {_KINDS[key.kind]}, got {_shown(value)}", None, fix)
            return
        if isinstance(converted, str) and path in table.ANY_CASE:
            converted = next((known for known in key.values if known.casefold() == converted.casefold()), converted)
        if key.values and converted not in key.values:
            legal = [value for value in key.values if not isinstance(value, str) or value == value.lower()]
            near = _nearest(str(converted), [str(value) for value in key.values]) if isinstance(converted, str) else ""
            choices = ", ".join(map(str, legal or key.values))
            fix = f"did you mean {json.dumps(near)}?" if near else f"write one of {choices}"
            self._judged.refuse(path, f"must be one of {choices}", converted, fix)
            return
        if isinstance(converted, int | float) and (rule := _out_of_range(path, key, converted)) is not None:
            self._judged.refuse(path, rule, converted, "write a value in that range, or remove the key")
            return
        self._judged.values[path] = converted


def _a(kind: str) -> str:
    """'an integer', 'true or false'."""
    plain = _KINDS[kind]
    return plain if kind == "bool" else f"an {plain}" if plain[0] in "aeiou" else f"a {plain}"


def _nearest(name: str, known: list[str], cutoff: float = 0.6) -> str:
    """The most similar of the names, whatever the case; '' where none is near."""
    plain = {one.casefold(): one for one in reversed(known)}
    found = get_close_matches(name.strip().casefold(), list(plain), n=1, cutoff=cutoff)
    return plain[found[0]] if found else ""


def _place(home: Path) -> str:
    return dotted(home) if len(home) > 1 else f"the top level, beside zero_optimization: {dotted(home)}"


def _example(path: Path, fields: Fields) -> str:
    """`{"stage": 2}`: what to write in a mapping's place."""
    known = {"stage": "2", "enabled": "true", "device": '"cpu"', "type": '"AdamW"'}
    if path == ("scheduler",):
        return '{"type": "WarmupDecayLR", "params": {...}}'
    named = next((f'"{name}": {value}' for name, value in known.items() if name in fields), "")
    return f"{{{named or f'{chr(34)}{next(iter(fields), chr(46) * 3)}{chr(34)}: ...'}}}"


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
            if key.kind == "section" and (*path, name) not in table.NOT_DRIVEN:
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
    if kind == "list" and isinstance(value, list):
        items = cast("list[Any]", value)
        return items if all(isinstance(item, str) for item in items) else _WRONG
    wanted = {"int": int, "float": int | float, "text": str, "mapping": dict}.get(kind)
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
    if isinstance(value, float) and not math.isfinite(value):
        return "write a number that is finite, or remove the key"
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
    if key.kind == "int" and key.values:
        return f"write one of {', '.join(map(str, key.values))}"
    known = {"betas": "for example [0.9, 0.95]", "list": 'write ["...", "..."]'}
    return known.get(key.kind, f"write {_a(key.kind)}")


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
