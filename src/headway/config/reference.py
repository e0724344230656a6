"""The reference of every run-file key as Markdown, from the schema: docs/reference.md is this text."""

from __future__ import annotations

import json
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from headway.config import fields as types
from headway.config.fields import write_amount
from headway.config.keys import fields, section_of
from headway.config.schema import RunConfig, Section
from headway.units import Amount, format_bytes, format_seconds

_HEAD = """\
# Run file reference

Every key of a run file with its type, default and meaning. This page is generated from the schema
(`headway init --reference`), and a test holds it to that.

A run file is YAML 1.2 (`5e-5` is a number, `no` is a word), JSON or TOML. A key can be overridden on the command
line by its dotted name: `headway train run.yaml train.length='500 steps'`. `auto` and `null` leave the choice to the
plan, which writes its reason. Sizes take units: `32k`, `10B tokens`, `500 steps`, `2 epochs`, `64 sequences`,
`30 min`, `0.5%`, `5GB`. k, M, B and T are powers of 1000.

Short forms: `model: ./folder`, `tokenizer: 32k`, `data: corpus/*.txt`, `train: [globs]`, `task: causal_lm`,
`strategy: zero-2`, `offload: cpu`, `track: tensorboard`.
"""

_NAMES: tuple[tuple[Any, str], ...] = (
    (types.Length, "tokens, sequences, steps or epochs"),
    (types.BatchSize, "tokens or sequences, or `auto`"),
    (types.Interval, "steps, tokens or time"),
    (types.Warmup, "share, steps or tokens"),
    (types.Duration, "time"),
    (types.Count, "count"),
    (types.Bytes, "size"),
    (types.Share, "share"),
    (types.Positive, "whole number, above 0"),
    (types.Port, "port"),
    (types.Above, "number above 0"),
    (types.AtLeast, "number, 0 or above"),
    (types.Ratio, "number from 0 to 1"),
    (types.Decay, "number from 0 to below 1"),
    (types.Texts, "list of texts"),
    (types.Betas, "two numbers from 0 to below 1"),
    (types.Stage, "`0`, `1`, `2` or `3`"),
)
_PLAIN = {bool: "`true` or `false`", int: "whole number", float: "number", str: "text", NoneType: "`null`"}


def type_name(annotation: Any) -> str:
    """A type in the words of a run file: 'count or `auto`'."""
    for known, name in _NAMES:
        if annotation == known:
            return name
    origin = get_origin(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if origin in (Union, UnionType):
        return " or ".join(type_name(part) for part in get_args(annotation))
    if origin is Annotated:
        return type_name(get_args(annotation)[0])
    if section := section_of(annotation):
        return f"[{section.__name__.removesuffix('Config')}](#{_anchor(section)})"
    return _PLAIN.get(annotation, "mapping")


def _anchor(section: type[Section]) -> str:
    return section.__name__.removesuffix("Config").lower()


def _default(info: FieldInfo, annotation: Any) -> str:
    if info.is_required():
        return "**required**"
    value: object = info.get_default(call_default_factory=True)
    if isinstance(value, Section) or value in ((), {}):
        return "empty" if not isinstance(value, Section) else "its defaults"
    if isinstance(value, Amount):
        return f"`{write_amount(value)}`"
    if annotation == types.Duration:
        return f"`{format_seconds(cast('float', value))}`"
    if annotation == types.Bytes:
        return f"`{_bytes(cast('int', value))}`"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _bytes(count: int) -> str:
    """Bytes in the largest unit that is exact."""
    for power, unit in ((3, "GB"), (2, "MB")):
        if count % 1000**power == 0:
            return f"{count // 1000**power}{unit}"
    return format_bytes(count)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(section: type[Section]) -> list[str]:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    hints = get_type_hints(section, include_extras=True)
    attributes = {info.alias or name: name for name, info in section.model_fields.items()}
    for key, info in fields(section).items():
        annotation = hints[attributes[key]]
        examples = ", ".join(f"`{example}`" for example in info.examples or [])
        meaning = f"{info.description or ''}{f' For example {examples}.' if examples else ''}"
        cells = (f"`{key}`", type_name(annotation), _default(info, annotation), meaning)
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return lines


def _sections(section: type[Section], path: str = "") -> list[tuple[str, type[Section]]]:
    found = [(path, section)]
    for key, info in fields(section).items():
        inner = section_of(info.annotation)
        if inner and all(inner is not known for _, known in found):
            found += _sections(inner, f"{path}.{key}" if path else key)
    return found


def reference() -> str:
    """The whole page."""
    parts = [_HEAD]
    for path, section in _sections(RunConfig):
        anchor = _anchor(section)
        title = f"{path}" if path else "Top level"
        parts.append(
            f'<a id="{anchor}"></a>\n\n## {title}\n\n{section.__doc__}\n\n' + "\n".join(_table(section)) + "\n"
        )
    return "\n".join(parts)
