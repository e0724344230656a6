"""Short forms of the run file, written out before validation: a table of small pure functions.

Each takes the value at its place and returns the long form, or the value itself if it is none of its short forms.
All are idempotent, so the file and an override may both use them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeGuard

_ZERO = re.compile(r"zero(?:[-_ ]?([0-3]))?", re.IGNORECASE)
_SHARE = re.compile(r"\s*[+-]?[\d.]+(?:e[+-]?\d+)?\s*%?\s*", re.IGNORECASE)
_IMPORT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # package.module:name
_WORD = re.compile(r"[a-z_]+")
_COUNT = re.compile(r"\s*[\d._]+\s*[kKmM]?\s*")


def _is_section(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _model(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return {"factory": value} if _IMPORT.fullmatch(value) else {"from": value}


def _tokenizer(value: Any) -> Any:
    """`./folder`, or a size such as `32k` to train."""
    if isinstance(value, str):
        return {"train": value} if _COUNT.fullmatch(value) else {"from": value}
    return {"train": value} if isinstance(value, int) and not isinstance(value, bool) else value


def _data(value: Any) -> Any:
    """Paths alone; of several sources in `train`, the further ones go to `more`."""
    section = {"train": value} if isinstance(value, str) or _is_list(value) else value
    if not _is_section(section):
        return section
    given = section.get("train")
    if _is_list(given) and given and all(_is_section(item) for item in given) and "more" not in section:
        section = {**section, "train": given[0], "more": given[1:]}
    if _is_list(more := section.get("more")):
        section = {**section, "more": [_source(item) for item in more]}
    return section


def _source(value: Any) -> Any:
    if isinstance(value, str):
        return {"paths": [value]}
    if _is_list(value):
        return {"paths": value}
    if _is_section(value) and "path" in value and "paths" not in value:
        value = {("paths" if key == "path" else key): item for key, item in value.items()}
    if _is_section(value) and isinstance(value.get("paths"), str):
        return {**value, "paths": [value["paths"]]}
    return value


def _evaluation(value: Any) -> Any:
    """A share stays a share; a path, a list or a mapping is a source."""
    if isinstance(value, str) and _SHARE.fullmatch(value):
        return value
    return _source(value)


def _kind(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


def _targets(value: Any) -> Any:
    return [value] if isinstance(value, str) and value != "all-linear" else value


def _strategy(value: Any) -> Any:
    """`zero-2`, `ZeRO2`, {kind: zero, stage: 2}: DeepSpeed with that stage."""
    section = _kind(value)
    if not _is_section(section):
        return section
    match = _ZERO.fullmatch(section["kind"].strip()) if isinstance(section.get("kind"), str) else None
    if match is None:
        return section
    stage = int(match[1]) if match[1] else None
    if stage is None:
        return {**section, "kind": "deepspeed"}
    if section.get("stage", stage) != stage:  # two stages: left as written, and refused by the rules
        return section
    return {**section, "kind": "deepspeed", "stage": stage}


def _offload(value: Any) -> Any:
    if value is None or value is False or value == "none":
        return {}
    if _is_list(value):
        return {str(part): "cpu" for part in value}
    return {"optimizer": value} if isinstance(value, str) else value


def _track(value: Any) -> Any:
    """A name, a list of names and one-key mappings, a list of own classes: each tracker with its options."""
    if value is None:
        return {}
    items = [value] if isinstance(value, str) else value
    if not _is_list(items):
        return _trackers(items) if _is_section(items) else value
    found: dict[str, Any] = {}
    for item in items:
        if _is_section(item):
            found |= {name: {} if options is None else options for name, options in item.items()}
        elif isinstance(item, str) and _IMPORT.fullmatch(item):
            found["own"] = [*found.get("own", ()), item]
        elif isinstance(item, str) and _WORD.fullmatch(item):
            found[item] = {}
        else:
            return value
    return _trackers(found)


def _trackers(section: dict[str, Any]) -> dict[str, Any]:
    """`tensorboard` has no options; the local record is always written; null is none, as everywhere in a run file."""
    found: dict[str, Any] = {name: {} if value is True else value for name, value in section.items() if name != "jsonl"}
    if "tensorboard" in found:
        found["tensorboard"] = found["tensorboard"] == {} or bool(found["tensorboard"])
    own = found.get("own")
    return {**found, "own": [own]} if isinstance(own, str) else found


SHORTHANDS: tuple[tuple[tuple[str, ...], Callable[[Any], Any]], ...] = (
    (("model",), _model),
    (("model", "tokenizer"), _tokenizer),
    (("data",), _data),
    (("data", "train"), _source),
    (("data", "eval"), _evaluation),
    (("task",), _kind),
    (("adapter",), _kind),
    (("adapter", "targets"), _targets),
    (("optimizer",), _kind),
    (("strategy",), _strategy),
    (("strategy", "offload"), _offload),
    (("strategy", "gradient_compression"), _kind),
    (("launch",), _kind),
    (("track",), _track),
)


def _apply(value: Any, path: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    if not _is_section(value) or path[0] not in value:
        return value
    return {**value, path[0]: _apply(value[path[0]], path[1:], change)}


def written_out(data: dict[str, Any]) -> dict[str, Any]:
    """`data` with every short form in its long form; the argument stays as it is."""
    for path, change in SHORTHANDS:
        data = _apply(data, path, change)
    return data
