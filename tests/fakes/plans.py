"""Machines, data and runs made by hand, for the tests of facts, plans and checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.config.load import LoadedRun, from_mapping
from headway.facts.model_config import resolve_model
from headway.facts.schema import ClusterFacts, DataFacts, ModelShape
from headway.facts.shape import shape_of
from headway.plan.make import AllFacts, make_plan
from headway.plan.schema import Plan

GIB = 1024**3

A100_8 = ClusterFacts(
    device="cuda",
    device_name="NVIDIA A100-SXM4-80GB",
    devices_per_host=8,
    device_memory_bytes=81920 * 1024**2,
    host_memory_bytes=1000 * GIB,
    bf16=True,
    matmul_flops=312e12,
)
V100 = A100_8.model_copy(update={"device_name": "Tesla V100-SXM2-32GB", "device_memory_bytes": 32 * GIB, "bf16": False})
LAPTOP = ClusterFacts(
    device="cpu", device_name="a CPU", devices_per_host=2, device_memory_bytes=24 * GIB, host_memory_bytes=24 * GIB
)

# The example of the README.
EXAMPLE: dict[str, Any] = {
    "model": {"config": {"arch": "llama", "hidden": 768, "layers": 12, "heads": 12}, "tokenizer": {"train": "32k"}},
    "data": {"train": ["corpus/**/*.txt"], "eval": "0.5%"},
    "task": "causal_lm",
    "train": {"length": "10B tokens", "sequence": 2048, "global_batch": "0.5M tokens"},
    "optimizer": {"lr": 6e-4, "schedule": "cosine", "warmup": "1%"},
    "checkpoint": {"every": "30 min", "keep": 3},
    "launch": {"gpus": 8},
}
# As the quickstart: 4 M parameters, two CPU processes, ZeRO-2.
SMALL: dict[str, Any] = EXAMPLE | {
    "model": {"config": {"arch": "llama", "hidden": 256, "layers": 4, "heads": 4}, "tokenizer": {"train": "4k"}},
    "train": {"length": "200 steps", "sequence": 256, "global_batch": "16 sequences"},
    "strategy": "zero-2",
    "launch": {"processes": 2},
}


def run_of(data: dict[str, Any], *overrides: str, base: Path = Path()) -> LoadedRun:
    return from_mapping(data, base=base, overrides=overrides)


def data_facts(sequence: int, vocab: int, **changes: Any) -> DataFacts:
    values: dict[str, Any] = {
        "store": "/nowhere/store",
        "store_hash": "hash",
        "tokenizer": "/nowhere/tokenizer",
        "vocab": vocab,
        "sequence": sequence,
        "documents": 1000,
        "tokens": 10_000 * sequence,
        "train_windows": 10_000,
        "train_targets": 10_000 * (sequence - 1),
        "eval_documents": 5,
        "eval_windows": 50,
        "eval_targets": 50 * (sequence - 1),
        "eval_bytes": 200 * sequence,
        "eval_gzip_bytes": 70 * sequence,
    }
    return DataFacts(**{**values, **changes})


def facts_of(run: LoadedRun, cluster: ClusterFacts, *, vocab: int = 4096, **data: Any) -> AllFacts:
    sequence = run.config.train.sequence
    origin = resolve_model(run.config.model, vocab=vocab, sequence=sequence, base=run.base)
    return AllFacts(
        cluster=cluster,
        shape=shape_of(origin.config),
        data=data_facts(sequence, vocab, **data),
        model_config=origin.config,
        name="a-run",
        model_path=str(origin.path) if origin.path else None,
        model_revision=origin.revision,
        notes=origin.notes,
    )


def plan_of(data: dict[str, Any], cluster: ClusterFacts, *overrides: str, vocab: int = 4096, **facts: Any) -> Plan:
    run = run_of(data, *overrides)
    return make_plan(run, facts_of(run, cluster, vocab=vocab, **facts))


def shape(parameters: int, **changes: Any) -> ModelShape:
    """A model of so many parameters; the other numbers are a 7.5 B model's."""
    values: dict[str, Any] = {
        "arch": "llama",
        "parameters": parameters,
        "trainable_parameters": parameters,
        "embedding_parameters": 0,
        "hidden": 4096,
        "layers": 36,
        "heads": 32,
        "kv_heads": 32,
        "head_dim": 128,
        "ffn": 11008,
        "vocab": 32000,
        "max_sequence": 2048,
        "tied": False,
        "largest_layer_parameters": 202_383_360,
    }
    return ModelShape(**{**values, **changes})
