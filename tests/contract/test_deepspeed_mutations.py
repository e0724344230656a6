"""One edit of any key of a valid DeepSpeed file is refused or said: never a silent change of what is trained."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from fakes.deepspeed_files import VALID
from headway.config.deepspeed_json import DeepSpeedJson, read_deepspeed_json


@dataclass(frozen=True)
class Edit:
    """One mutated file: what was done to which key."""

    what: str
    key: str
    data: dict[str, Any]


def keys(data: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in data.items():
        yield (*path, name)
        if isinstance(value, dict):
            yield from keys(value, (*path, name))


def at(data: dict[str, Any], path: tuple[str, ...]) -> Any:
    for part in path:
        data = data[part]
    return data


def changed(data: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    result = copy.deepcopy(data)
    at(result, path[:-1])[path[-1]] = value
    return result


def without(data: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    result = copy.deepcopy(data)
    del at(result, path[:-1])[path[-1]]
    return result


def renames(name: str) -> Iterator[str]:
    """A dropped, doubled, swapped and foreign letter, another case, and a hyphen."""
    middle = len(name) // 2
    yield name[:middle] + name[middle + 1 :]
    yield name[:middle] + name[middle] + name[middle:]
    yield f"{name}s"
    yield name.upper()
    yield name.replace("_", "-") if "_" in name else f"x{name}"


def wrong_types(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [int(value), [value], {"enabled": value}]
    if isinstance(value, int | float):
        return [[value], {"value": value}, True, "many"]
    if value == "auto":
        return [[value], {"name": value}]
    if isinstance(value, str):
        return [7, [value], {"name": value}, True]
    if isinstance(value, dict):
        return [7, "on", [value]]
    return [7, "a list", {"0": value}]


def edits(data: dict[str, Any]) -> Iterator[Edit]:
    for path in keys(data):
        value, key = at(data, path), ".".join(path)
        for name in renames(path[-1]):
            yield Edit(f"renamed to {name}", key, changed(without(data, path), (*path[:-1], name), value))
        places = [("zero_optimization",), ("optimizer",), ("fp16",)] if len(path) == 1 else [(), ("activation",)]
        for place in places:
            moved = without(data, path)
            inner = moved
            for part in place:
                inner = inner.setdefault(part, {}) if isinstance(inner.get(part, {}), dict) else {}
            if path[-1] not in inner and place != path:
                inner[path[-1]] = value
                yield Edit(f"moved into {'.'.join(place) or 'the top'}", key, moved)
        if not isinstance(value, str | dict | list):
            yield Edit("quoted", key, changed(data, path, json.dumps(value)))
        for wrong in wrong_types(value):
            yield Edit(f"given {wrong!r}", key, changed(data, path, wrong))
        if isinstance(value, int | float) and not isinstance(value, bool):
            for beyond in (-2, -1e-3, 1e30):
                yield Edit(f"given {beyond}", key, changed(data, path, beyond))
        yield Edit("given an unknown word", key, changed(data, path, "unheard-of"))
        yield Edit("given null", key, changed(data, path, None))
        yield Edit("given a number that is none", key, changed(data, path, float("nan")))
        if value != "auto":
            yield Edit("given auto", key, changed(data, path, "auto"))


def read(data: dict[str, Any]) -> DeepSpeedJson:
    return read_deepspeed_json(json.dumps(data, indent=1), "ds.json")


def meaning(said: DeepSpeedJson) -> tuple[Any, ...]:
    """All that reaches a run."""
    firm = {key: value.value for key, value in said.firm.items()}
    soft = {key: value.value for key, value in said.soft.items()}
    return firm, soft, dict(said.autos), said.passed


# Free texts have no right or wrong word, so another one is simply taken.
FREE = {("given an unknown word", name) for name in ("output_path", "job_name", "group", "team", "project")}


# DeepSpeed's own models say that null is a value of these.
NULLS = {
    *("overlap_comm", "offload_optimizer", "offload_param", "number_checkpoints", "steps_per_print", "group", "team"),
    *("communication_data_type", "grad_accum_dtype", "output_file"),
}
FREE |= {("given null", name) for name in NULLS}
FREE |= {("given auto", "stage3_gather_16bit_weights_on_model_save")}  # has no effect at any value, as is said already


@pytest.mark.parametrize("name", VALID)
def test_a_valid_file_is_read_without_a_problem(name: str) -> None:
    assert read(VALID[name]).problems == ()


@pytest.mark.parametrize("name", VALID)
def test_no_edit_of_any_key_is_silent(name: str) -> None:
    before = set(read(VALID[name]).notices)
    silent: list[str] = []
    count = 0
    for edit in edits(VALID[name]):
        if (edit.what, edit.key.rpartition(".")[2]) in FREE:
            continue
        count += 1
        said = read(edit.data)
        if edit.what == "given auto" and edit.key in said.autos:
            continue  # it is printed with what it became
        if not said.problems and not set(said.notices) - before:
            silent.append(f"{edit.key} {edit.what}: {meaning(said)}")
    assert count > 15 * len(list(keys(VALID[name]))) // 2
    assert not silent, "\n".join(silent)


def test_there_are_twenty_files_and_they_use_every_part() -> None:
    assert len(VALID) == 20
    parts = {path[0] for data in VALID.values() for path in keys(data)}
    assert {"optimizer", "scheduler", "fp16", "bf16", "zero_optimization", "activation_checkpointing"} <= parts
