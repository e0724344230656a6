"""One edit of any key of a valid DeepSpeed file is refused or said: never a silent change of what is trained."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from headway.config.deepspeed_json import DeepSpeedJson, read_deepspeed_json

ADAM = {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}}
FP16 = {"enabled": True, "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2}
CPU = {"device": "cpu", "pin_memory": True}
BATCH = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 4}

VALID: dict[str, dict[str, Any]] = {
    "plain": {**BATCH, "optimizer": ADAM, "gradient_clipping": 1.0},
    "stage 1": {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8}},
    "stage 2": {
        **BATCH,
        "zero_optimization": {
            "stage": 2,
            "allgather_partitions": True,
            "allgather_bucket_size": 2e8,
            "overlap_comm": True,
            "reduce_scatter": True,
            "reduce_bucket_size": 2e8,
            "contiguous_gradients": True,
            "round_robin_gradients": False,
        },
    },
    "stage 2 offload": {"train_batch_size": 16, "zero_optimization": {"stage": 2, "offload_optimizer": CPU}},
    "stage 3": {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {
            "stage": 3,
            "stage3_prefetch_bucket_size": 5e7,
            "stage3_param_persistence_threshold": 1e5,
            "stage3_max_live_parameters": 1e9,
            "stage3_max_reuse_distance": 1e9,
            "stage3_gather_16bit_weights_on_model_save": True,
            "sub_group_size": 1e9,
        },
    },
    "infinity": {
        "train_batch_size": 8,
        "zero_optimization": {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU},
        "aio": {"block_size": 1048576, "queue_depth": 8, "single_submit": False, "overlap_events": True},
    },
    "fp16": {"train_batch_size": 8, "fp16": FP16 | {"min_loss_scale": 1, "consecutive_hysteresis": False}},
    "bf16": {"train_batch_size": 8, "bf16": {"enabled": True, "check_grad_overflow": True}},
    "trainer": {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
        },
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"},
        "bf16": {"enabled": "auto"},
    },
    "warm-up": {
        "train_batch_size": 8,
        "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-3, "warmup_num_steps": 5}},
    },
    "decay": {
        "train_batch_size": 8,
        "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 90, "warmup_type": "linear"}},
    },
    "cosine": {
        "train_batch_size": 8,
        "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 90, "cos_min_ratio": 0.1}},
    },
    "recomputed": {
        "train_batch_size": 8,
        "activation_checkpointing": {
            "partition_activations": False,
            "cpu_checkpointing": False,
            "contiguous_memory_optimization": False,
            "number_checkpoints": 4,
            "synchronize_checkpoint_boundary": False,
            "profile": False,
        },
    },
    "profiled": {
        "train_batch_size": 8,
        "steps_per_print": 100,
        "wall_clock_breakdown": False,
        "memory_breakdown": False,
        "dump_state": False,
        "flops_profiler": {"enabled": True, "profile_step": 2, "module_depth": 3, "top_modules": 1, "detailed": True},
        "comms_logger": {"enabled": True, "verbose": False, "prof_all": True, "debug": False},
    },
    "monitored": {
        "train_batch_size": 8,
        "tensorboard": {"enabled": True, "output_path": "logs", "job_name": "a"},
        "csv_monitor": {"enabled": False, "output_path": "logs", "job_name": "a"},
        "wandb": {"enabled": False, "group": "g", "team": "t", "project": "p"},
    },
    "zero++": {
        "train_batch_size": 8,
        "zero_optimization": {
            "stage": 3,
            "zero_quantized_weights": True,
            "zero_quantized_gradients": True,
            "zero_hpz_partition_size": 8,
        },
    },
    "sgd": {
        "train_batch_size": 8,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "nesterov": False}},
    },
    "rmsprop": {
        "train_batch_size": 8,
        "optimizer": {"type": "RMSprop", "params": {"lr": 0.01, "alpha": 0.9, "eps": 1e-8, "centered": False}},
    },
    "wire": {
        "train_batch_size": 8,
        "communication_data_type": "fp32",
        "prescale_gradients": False,
        "gradient_predivide_factor": 1.0,
        "disable_allgather": False,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    },
    "saved": {
        "train_batch_size": 8,
        "checkpoint": {"tag_validation": "Warn", "load_universal": False, "use_node_local_storage": False},
        "dataloader_drop_last": False,
        "data_types": {"grad_accum_dtype": "fp32"},
        "timers": {"throughput": {"enabled": True, "synchronized": True}},
        "compile": {"deepcompile": False, "free_activation": False, "offload_parameters": False},
    },
}


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


def read(data: dict[str, Any]) -> DeepSpeedJson:
    return read_deepspeed_json(json.dumps(data, indent=1), "ds.json")


def meaning(said: DeepSpeedJson) -> tuple[Any, ...]:
    """All that reaches a run."""
    firm = {key: value.value for key, value in said.firm.items()}
    soft = {key: value.value for key, value in said.soft.items()}
    return firm, soft, dict(said.autos), said.passed


# Free texts have no right or wrong word, so another one is simply taken.
FREE = {("given an unknown word", name) for name in ("output_path", "job_name", "group", "team", "project")}


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
        if not said.problems and not set(said.notices) - before:
            silent.append(f"{edit.key} {edit.what}: {meaning(said)}")
    assert count > 15 * len(list(keys(VALID[name]))) // 2
    assert not silent, "\n".join(silent)


def test_there_are_twenty_files_and_they_use_every_part() -> None:
    assert len(VALID) == 20
    parts = {path[0] for data in VALID.values() for path in keys(data)}
    assert {"optimizer", "scheduler", "fp16", "bf16", "zero_optimization", "activation_checkpointing"} <= parts
