"""Facts from a file that people write: a price table, a cluster. Every wrong entry is named with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeGuard, TypeVar, cast, get_args

from pydantic import ValidationError

from headway.config.reader import Source, parse, read_text
from headway.errors import PlanError, Problem
from headway.facts.schema import Facts

_Kind = TypeVar("_Kind", bound=Facts)


def read_facts(path: Path, kind: type[_Kind]) -> _Kind:
    """The file's content (YAML, JSON or TOML by its ending) as `kind`.

    Raises:
        ConfigError: absent, or no text of its format.
        PlanError: one Problem for every entry that is missing, unknown or of the wrong kind.
    """
    source = parse(read_text(path), path.name)
    try:
        return kind.model_validate(source.data)
    except ValidationError as error:
        found = cast("list[dict[str, Any]]", error.errors(include_url=False))
        raise PlanError(problems=[_problem(finding, source, kind) for finding in found]) from error


def _problem(finding: dict[str, Any], source: Source, kind: type[Facts]) -> Problem:
    path: tuple[str | int, ...] = tuple(finding["loc"])
    line = next((source.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in source.lines), None)
    fix, rule, value = "", str(finding["msg"]).removeprefix("Value error, "), finding["input"]
    if finding["type"] == "model_type":
        rule, value, fix = "holds no entries", None, f"lines of `name: value`, with {', '.join(_entries(kind, path))}"
    elif finding["type"] == "extra_forbidden":
        rule = "is no entry of this file"
        fix = f"known here: {', '.join(kind.model_fields)}" if len(path) == 1 else "drop it, or check its spelling"
    elif finding["type"] == "missing":
        rule, value, fix = "is required", None, "add it"
    shown = None if isinstance(value, dict | list) else value
    place = source.name if line is None else f"{source.name}:{line}"
    return Problem(".".join(map(str, path)) or "the file", rule, shown, fix, place)


def _entries(kind: type[Facts], path: tuple[str | int, ...]) -> list[str]:
    """Names of the entries of the section at `path`."""
    for part in path:
        info = kind.model_fields.get(str(part))
        inner = info.annotation if info else None
        kind = next((each for each in (inner, *get_args(inner)) if _is_section(each)), kind)
    return list(kind.model_fields)


def _is_section(kind: Any) -> TypeGuard[type[Facts]]:
    return isinstance(kind, type) and issubclass(kind, Facts)
