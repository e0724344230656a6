"""A DeepSpeed JSON beside the run file: what it says fills the run file's keys, and may not contradict them.

Precedence: an override, then the run file, then what DeepSpeed does by default where the JSON is silent. The run file
and a value that stands in the JSON are of one rank: they must agree, or both places are named.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from headway.config.deepspeed_json import DeepSpeedJson, Said
from headway.config.reader import KeyPath
from headway.errors import Problem
from headway.units import Amount, parse_amount

UNITS = ("tokens", "sequences", "steps", "epochs")
# A refused key of the JSON -> the run file's keys that are absent for that reason alone.
_RATE = ("optimizer", "optimizer.lr")
SPOILED_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), ("train.global_batch",)
    ),
    **dict.fromkeys(("optimizer", "optimizer.type", "optimizer.params", "optimizer.params.lr"), _RATE),
}


@dataclass
class Merged:
    """The run file's data with the JSON's values in it. `origins`: where those came from."""

    data: dict[str, Any]
    origins: dict[KeyPath, str] = field(default_factory=dict[KeyPath, str])
    notices: list[str] = field(default_factory=list[str])
    problems: list[Problem] = field(default_factory=list[Problem])


def merge(data: dict[str, Any], json: DeepSpeedJson, overridden: Collection[KeyPath]) -> Merged:
    """Lay the JSON under `data` (written out). `overridden`: the key paths that overrides have set."""
    merged = Merged(data)
    for key, said in json.firm.items():
        path = tuple(key.split("."))
        current = _at(merged.data, path)
        over = any(path[: len(other)] == other for other in overridden)
        if current is None or (current == "auto" and not over):
            _fill(merged, path, said)
        elif same(key, current, said.value, data):
            merged.origins[path] = said.where
        elif over:
            text = f"{said.where}: {_as_written(said)} is overridden: {key} = {_text(current)} (--set)"
            merged.notices.append(text)
        else:
            rule = f"contradicts {_as_written(said)} ({said.where})"
            fix = f"keep one: remove {key} from the run file, or {said.by} from {json.name}"
            merged.problems.append(Problem(key, rule, current, fix))
    for key, said in json.soft.items():
        path = tuple(key.split("."))
        over = any(path[: len(other)] == other for other in overridden)
        if (current := _at(merged.data, path)) is None or (current == "auto" and not over):
            _fill(merged, path, replace(said, where=f"{said.where} ({said.by})"))
    merged.problems += _needed_by_auto(merged.data, json)
    return merged


def _needed_by_auto(data: dict[str, Any], json: DeepSpeedJson) -> list[Problem]:
    """ "auto" means the run file's value: of the learning rate there must be one."""
    where = json.autos.get("optimizer.params.lr", ("", ""))[1]
    if not where or _at(data, ("optimizer", "lr")) is not None:
        return []
    rule = f"is required: optimizer.params.lr is auto ({where})"
    return [Problem("optimizer.lr", rule, fix="add it to the run file, for example `lr: 5e-5`")]


def _fill(merged: Merged, path: KeyPath, said: Said) -> None:
    merged.data = _set(merged.data, path, said.value)
    merged.origins[path] = said.where


def _at(data: Mapping[str, Any], path: KeyPath) -> Any:
    value: Any = data
    for part in path:
        value = cast("Mapping[str, Any]", value).get(str(part)) if isinstance(value, Mapping) else None
    return value


def _set(section: Any, path: KeyPath, value: Any) -> dict[str, Any]:
    inner = cast("dict[str, Any]", section) if isinstance(section, dict) else dict[str, Any]()
    head = str(path[0])
    return {**inner, head: value if len(path) == 1 else _set(inner.get(head), path[1:], value)}


def _as_written(said: Said) -> str:
    """`fp16.enabled = true`, which the run file says as `train.precision: fp16`."""
    return f"{said.by} = {'true' if said.by.endswith('.enabled') else _text(said.value)}"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def same(key: str, a: Any, b: Any, data: Mapping[str, Any]) -> bool:
    """Whether two writings mean one value: 64 sequences and 65536 tokens at a sequence of 1024, 0.1 and 1e-1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        left, right = list(cast("list[Any]", a)), list(cast("list[Any]", b))
        return len(left) == len(right) and all(same(key, x, y, data) for x, y in zip(left, right, strict=True))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-12)
    if key in ("train.global_batch", "optimizer.warmup"):
        return _amounts_equal(a, b, data)
    return a == b


def _amounts_equal(a: Any, b: Any, data: Mapping[str, Any]) -> bool:
    left, right = _amount(a), _amount(b)
    if left is None or right is None:
        return a == b
    sequence = _at(data, ("train", "sequence"))
    if left.unit != right.unit and isinstance(sequence, int):
        each = {"tokens": 1.0, "sequences": float(sequence)}
        if left.unit in each and right.unit in each:
            return left.value * each[left.unit] == right.value * each[right.unit]
    return left == right


def _amount(value: Any) -> Amount | None:
    if isinstance(value, Amount):
        return value
    try:
        return parse_amount(value, UNITS)
    except (ValueError, TypeError):
        return None


# --- the batch -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Triangle:
    """The three batch numbers in force, None where the plan chooses, and the number of processes."""

    total: int | None
    micro: int | None
    accumulation: int | None
    processes: int


def judge_triangle(batch: Triangle) -> tuple[str, str, str] | None:
    """(run-file key, rule, fix) where the numbers cannot be: train_batch_size = micro x accumulation x processes.

    DeepSpeed floors what does not divide, and asserts minutes later.
    """
    total, micro, steps, world = batch.total, batch.micro, batch.accumulation, batch.processes
    if total is None or (micro is None and steps is None):
        return None
    if micro is not None and steps is not None:
        product = micro * steps * world
        if total == product:
            return None
        rule = f"{total} != {micro} x {steps} x {world} = {product} (micro batch x accumulation x processes)"
        fixes = [f"train_batch_size: {product}"]
        if total % (micro * world) == 0:
            fixes.insert(0, f"gradient_accumulation_steps: {total // (micro * world)} keeps {total}")
        elif total % (steps * world) == 0:
            fixes.insert(0, f"train_micro_batch_size_per_gpu: {total // (steps * world)} keeps {total}")
        return "train.global_batch", rule, "; or ".join(fixes)
    known, name = (micro, "micro batch") if micro is not None else (steps or 1, "accumulation")
    unit = known * world
    if total % unit == 0:
        return None
    rule = f"{total} is no multiple of {known} ({name}) x {world} (processes) = {unit}"
    near = [count for count in (total // unit * unit, (total // unit + 1) * unit) if count > 0]
    return "train.global_batch", rule, f"train_batch_size: {' or '.join(map(str, near))}, the nearest that divide"
