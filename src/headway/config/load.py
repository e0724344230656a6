"""A run file and overrides to a RunConfig: read, write short forms out, lay overrides over, validate, judge the rules.

Everything that is wrong is reported at once, each Problem with its file and line, or "--set" for an override.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from headway.config.deepspeed_json import DeepSpeedJson, read_deepspeed_json
from headway.config.deepspeed_merge import SPOILED_BY, merge
from headway.config.fields import write_amount
from headway.config.keys import section_of
from headway.config.overrides import WHERE, Override, lay_over, parse_override
from headway.config.problems import place_of, problems_of
from headway.config.reader import KeyPath, Source, dotted, parse, read_text
from headway.config.rules import broken_alternatives, broken_rules
from headway.config.schema import RunConfig
from headway.config.secrets import FIX, find_secrets, is_secret_value
from headway.config.shorthands import written_out
from headway.errors import ConfigError, Problem
from headway.units import Amount


@dataclass(frozen=True)
class LoadedRun:
    """A valid run file. Relative paths in it start at `base`. `origins`: "train.length" -> "run.yaml:7" or "--set".

    deepspeed: the JSON that `strategy.config` names; its values stand in `config`, with their lines in `origins`.
    """

    config: RunConfig
    path: Path
    text: str
    origins: dict[str, str]
    overrides: tuple[str, ...] = ()
    deepspeed: DeepSpeedJson | None = None

    @property
    def base(self) -> Path:
        return self.path.absolute().parent


def load_run(path: Path, overrides: Sequence[str] = (), *, beneath: Mapping[str, Any] | None = None) -> LoadedRun:
    """Read a run file (YAML, JSON or TOML by its ending) and lay `overrides` such as "train.length=500 steps" over it.

    beneath: keys of sections that count where the file does not give them.

    Raises:
        ConfigError: the file is absent or cannot be parsed, or holds any number of Problems.
    """
    text = read_text(path)
    return _load(_above(parse(text, path.name), beneath), path, overrides)


def load_text(text: str, path: Path, overrides: Sequence[str] = (), deepspeed: str | None = None) -> LoadedRun:
    """As `load_run`, for a text that stands (or once stood) at `path`: a run directory's copy keeps its old base.

    deepspeed: the text of the DeepSpeed JSON, where a copy goes before the file that `strategy.config` names.
    """
    return _load(parse(text, path.name), path, overrides, deepspeed)


def from_mapping(
    data: Mapping[str, Any],
    *,
    where: str = "<dict>",
    base: Path,
    overrides: Sequence[str] = (),
    beneath: Mapping[str, Any] | None = None,
) -> LoadedRun:
    """A run from a mapping with the run file's keys; relative paths start at `base`. beneath: as in `load_run`.

    A class or function stands for its import path.
    """
    plain = _plain(data)
    text = json.dumps(plain, indent=2) + "\n"
    return _load(_above(Source(where, text, plain), beneath), base / "run.json", overrides)


def _above(source: Source, beneath: Mapping[str, Any] | None) -> Source:
    """The source with the keys of `beneath` in its sections where they are absent."""
    given: object = source.data
    if not beneath or not isinstance(given, dict):
        return source
    data = written_out(cast("dict[str, Any]", given))
    for section, values in beneath.items():
        mine = data.get(section, {})
        if isinstance(mine, dict):
            data = {**data, section: {**values, **cast("dict[str, Any]", mine)}}
    return replace(source, data=data)


def _plain(value: Any) -> Any:
    """What JSON can hold: amounts, paths and named code as the text that reads back as the same."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, Amount):
        return write_amount(value)
    if isinstance(value, type) or inspect.isfunction(value):
        return f"{value.__module__}:{value.__qualname__}"
    return str(value) if isinstance(value, Path) else value


class _Origins:
    """Where each key was written: the nearest line of the file, or an override."""

    def __init__(self, source: Source, overrides: Sequence[Override]):
        self._name = source.name
        self._lines = source.lines
        self._set = {override.path for override in overrides}
        self.json: dict[KeyPath, str] = {}  # of what a DeepSpeed JSON said

    def of(self, path: KeyPath) -> str:
        for length in range(len(path), 0, -1):
            if path[:length] in self.json:
                return self.json[path[:length]]
        if any(path[:length] in self._set for length in range(len(path), 0, -1)):
            return WHERE  # also where the file has a deeper key: an override took the whole section's place
        for length in range(len(path), 0, -1):
            if path[:length] in self._lines:
                return f"{self._name}:{self._lines[path[:length]]}"
        return self._name

    def of_key(self, key: str) -> str:
        return self.of(tuple(key.partition("[")[0].split(".")))


def _load(source: Source, path: Path, overrides: Sequence[str], json_text: str | None = None) -> LoadedRun:
    data, problems = _mapping(source), list(source.problems)
    parsed = [parse_override(text) for text in overrides]
    accepted = [override for override in parsed if isinstance(override, Override)]
    problems += [problem for problem in parsed if isinstance(problem, Problem)]
    data, blocked = lay_over(data, accepted)
    problems += blocked
    origins = _Origins(source, accepted)
    json = _deepspeed_json(data, path.absolute().parent, json_text, origins)
    if json is not None:
        merged = merge(data, json, [override.path for override in accepted])
        problems += [*json.problems, *(replace(p, where=origins.of_key(p.key)) for p in merged.problems)]
        data, origins.json = written_out(merged.data), merged.origins
        json = replace(json, notices=(*json.notices, *merged.notices))
    secrets = list(find_secrets(data))
    problems += [Problem(dotted(found), "looks like a secret", fix=FIX, where=origins.of(found)) for found in secrets]
    config, found = _validate(_without(data, secrets), origins)
    told = {key for problem in problems for key in (problem.key, *SPOILED_BY.get(problem.key, ()))}
    problems += [problem for problem in found if problem.key not in told]
    if config is None or problems:
        raise ConfigError(problems=sorted(map(_discreet, problems), key=_line))
    return LoadedRun(config, path, source.text, _origin_table(data, origins), tuple(overrides), json)


def _deepspeed_json(data: dict[str, Any], base: Path, text: str | None, origins: _Origins) -> DeepSpeedJson | None:
    """The JSON that strategy.config names, read and judged; None where there is none.

    Raises ConfigError where it is absent or has no structure: nothing else could be judged without it.
    """
    strategy: object = data.get("strategy")
    named: object = cast("dict[str, Any]", strategy).get("config") if isinstance(strategy, dict) else None
    kind: object = cast("dict[str, Any]", strategy).get("kind") if isinstance(strategy, dict) else None
    if not isinstance(named, str) or kind not in ("deepspeed", None):  # with another kind a rule refuses it
        return None
    path = base / named
    where = origins.of(("strategy", "config"))
    if text is None and path.is_dir():
        rule, fix = f"names a folder, not a DeepSpeed JSON: {path}", "name the JSON in it"
        raise ConfigError(problems=[Problem("strategy.config", rule, named, fix, where)])
    if text is None and not path.exists():
        near = get_close_matches(path.name, [entry.name for entry in path.parent.glob("*.json")], n=1)
        fix = f"did you mean {near[0]}?" if near else "give its path from the run file's folder"
        rule = f"names a DeepSpeed JSON that is not there: {path}"
        raise ConfigError(problems=[Problem("strategy.config", rule, named, fix, where)])
    return read_deepspeed_json(read_text(path) if text is None else text, path.name)


def _discreet(problem: Problem) -> Problem:
    return replace(problem, value=None) if is_secret_value(problem.value) else problem


def _line(problem: Problem) -> int:
    """Problems are shown in the order of the file; overrides first."""
    line = problem.where.rpartition(":")[2]
    return int(line) if line.isdigit() else 0


def _mapping(source: Source) -> dict[str, Any]:
    data: object = source.data
    if isinstance(data, dict):
        return cast("dict[str, Any]", data)
    rule = "is empty" if data is None else "is not a mapping of sections (model, data, train, optimizer, ...)"
    raise ConfigError(f"{source.name} {rule}", fix="`headway init` writes a starter file")


def _validate(data: dict[str, Any], origins: _Origins) -> tuple[RunConfig | None, list[Problem]]:
    try:
        config = RunConfig.model_validate(data)
    except ValidationError as error:
        problems = problems_of(error, origins.of)
        sections = _sound_sections(data, error)
        config = None
    else:
        problems = []
        sections = {name: getattr(config, name) for name in RunConfig.model_fields}
    broken = [*broken_alternatives(data), *broken_rules(sections)]
    problems += [replace(problem, where=origins.of_key(problem.key)) for problem in broken]
    return config, problems


def _sound_sections(data: dict[str, Any], error: ValidationError) -> dict[str, Any]:
    """Sections that are right but for unknown keys, so that the rules between them are still judged."""
    findings = error.errors(include_url=False)
    unknown = [place_of(finding) for finding in findings if finding["type"] == "extra_forbidden"]
    spoiled = {place_of(finding)[0] for finding in findings if finding["type"] != "extra_forbidden"}
    data = _without(data, unknown)
    sound: dict[str, Any] = {}
    for name, info in RunConfig.model_fields.items():
        if name in spoiled:
            continue
        section = section_of(info.annotation)
        if name not in data:
            sound[name] = info.get_default(call_default_factory=True)
        else:
            sound[name] = section.model_validate(data[name]) if section else data[name]
    return sound


def _without(data: dict[str, Any], paths: list[KeyPath]) -> dict[str, Any]:
    """`data` without these keys, also where a section stands in a list; items of lists stay."""
    for path in paths:
        data = _drop(data, path)
    return data


def _drop(value: Any, path: KeyPath) -> Any:
    head, below = str(path[0]), path[1:]
    if isinstance(value, list) and below:
        items: list[Any] = [
            _drop(item, below) if str(number) == head else item for number, item in enumerate(cast("list[Any]", value))
        ]
        return items
    if not isinstance(value, dict):
        return cast("Any", value)
    section = cast("dict[str, Any]", value)
    if not below:
        return {key: item for key, item in section.items() if key != head}
    return {**section, head: _drop(section.get(head), below)}


def _origin_table(data: dict[str, Any], origins: _Origins, path: KeyPath = ()) -> dict[str, str]:
    table: dict[str, str] = {}
    for key, value in data.items():
        here = (*path, key)
        table[dotted(here)] = origins.of(here)
        if isinstance(value, dict):
            table |= _origin_table(cast("dict[str, Any]", value), origins, here)
    return table
