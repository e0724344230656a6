"""`train.length=500 steps`: one dotted key and a YAML value, laid over the run file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, cast

from headway.config.keys import every_key, suggestion, unknown_at
from headway.config.reader import KeyPath, parse
from headway.config.secrets import FIX, is_secret_key, is_secret_value
from headway.config.shorthands import written_out
from headway.errors import ConfigError, Problem

WHERE = "--set"


@dataclass(frozen=True)
class Override:
    path: KeyPath
    value: Any


def parse_override(text: str) -> Override | Problem:
    """Read KEY=VALUE; a Problem if it is none, or if the key is unknown."""
    key, equals, raw = text.partition("=")
    key = key.strip().removeprefix("--")
    if not equals or not key:
        return Problem(
            text.strip(), "is not KEY=VALUE", fix="write, for example, train.length='500 steps'", where=WHERE
        )
    path = tuple(key.split("."))
    if is_secret_key(path[-1]) or is_secret_value(raw):
        return Problem(key, "looks like a secret", fix=FIX, where=WHERE)
    unknown = unknown_at(path)
    if unknown is not None:
        return _unknown(path, unknown, raw)
    try:
        return Override(path, _value(raw.strip()))
    except ConfigError as error:
        return Problem(key, f"has a value that cannot be read: {error}", raw.strip(), where=WHERE)


def _unknown(path: KeyPath, index: int, raw: str) -> Problem:
    """An unknown part in the middle is looked up as a whole first: `trian.length` means train.length."""
    key = ".".join(str(part) for part in path)
    near = get_close_matches(key, every_key(), n=1, cutoff=0.75)
    if near and index < len(path) - 1:
        return Problem(key, f"is not a key; did you mean {near[0]!r}?", raw, f"write {near[0]}={raw.strip()}", WHERE)
    rule, fix = suggestion(path[: index + 1])
    return Problem(key, rule, raw, fix, WHERE)


def _value(text: str) -> Any:
    """Numbers, true, false and null as YAML has them; [lists], {mappings} and quoted texts too; the rest is text.

    So `data.train=*.txt` and `export.sample=Once: upon` need no second layer of quotes.
    """
    if text[:1] in ("[", "{"):
        return _checked(text)
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    try:
        value: object = _checked(text)
    except ConfigError:
        return text
    plain = value is None or isinstance(value, bool | int | float)
    return value if plain or quoted else text


def _checked(text: str) -> Any:
    source = parse(text, WHERE)
    if source.problems:
        raise ConfigError(source.problems[0].rule)
    return source.data


def lay_over(data: dict[str, Any], overrides: Iterable[Override]) -> tuple[dict[str, Any], list[Problem]]:
    """`data`, written out, with the overrides set in their order; Problems where a value stands in the way."""
    problems: list[Problem] = []
    data = written_out(data)
    for override in overrides:
        try:
            data = written_out(_set(data, override.path, override.value))  # so that the next may refine this one
        except KeyError as error:
            blocked = str(error.args[0])
            key = ".".join(str(part) for part in override.path)
            rule = f"cannot be set: {blocked} has a plain value, not keys"
            problems.append(Problem(key, rule, override.value, f"override {blocked} as a whole", WHERE))
    return data, problems


def _set(section: Any, path: KeyPath, value: Any, done: KeyPath = ()) -> dict[str, Any]:
    if section is not None and not isinstance(section, dict):
        raise KeyError(".".join(str(part) for part in done))
    old = cast("dict[str, Any]", section or {})
    head = str(path[0])
    inner = value if len(path) == 1 else _set(old.get(head), path[1:], value, (*done, head))
    return {**old, head: inner}
