"""A tiny plan for engine tests: 4 layers, buckets and thresholds scaled down with the model.

At DeepSpeed's default sizes so small a model would stay in its first bucket and ungathered, and prove nothing.
"""

from __future__ import annotations

from typing import Any

from headway.facts.schema import ClusterFacts, DataFacts
from headway.facts.shape import shape_of
from headway.plan.schema import Plan

VOCAB = 64
SEQUENCE = 24
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
BUCKET_ELEMENTS = 3000  # the model has 33,056 parameters: eleven buckets and more

# Rank 4 beside all 28 linear layers: 6,400 parameters, three buckets. `base`: the weights follow from the seed.
LORA: dict[str, Any] = {"kind": "lora", "rank": 4, "alpha": 8.0, "dropout": 0.0, "targets": "all-linear", "base": ""}

STRATEGIES: dict[str, dict[str, Any]] = {
    "single": {"kind": "single"},
    "ddp": {"kind": "ddp"},
    "zero-0": {"kind": "deepspeed", "stage": 0},
    "zero-1": {"kind": "deepspeed", "stage": 1},
    "zero-2": {"kind": "deepspeed", "stage": 2},
    "zero-3": {"kind": "deepspeed", "stage": 3},
    "zero-1-offload": {"kind": "deepspeed", "stage": 1, "offload_optimizer": True},
    "zero-2-offload": {"kind": "deepspeed", "stage": 2, "offload_optimizer": True},
    "zero-3-offload": {"kind": "deepspeed", "stage": 3, "offload_optimizer": True, "offload_parameters": True},
}


def tiny_plan(strategy: str, batch: tuple[int, int, int], **changes: Any) -> Plan:
    """batch: (micro batch, accumulation, processes). changes: by section, as {"optimizer": {"kind": "sgd"}}."""
    micro_batch, accumulation, world = batch
    sections: dict[str, Any] = {
        "name": "tiny",
        "headway": "0",
        "model": {"kind": "config", "config": CONFIG, "attention": "sdpa"},
        "task": {"kind": "causal_lm"},
        "data": {"store": "", "store_hash": "", "tokenizer": "", "sequence": SEQUENCE, "packing": True},
        "batch": {
            "global_sequences": 8,
            "micro_batch": micro_batch,
            "accumulation": accumulation,
            "data_parallel_size": world,
        },
        "schedule": {
            "kind": "constant",
            "steps": 20,
            "tokens": 20 * 8 * SEQUENCE,
            "peak_lr": 1e-2,
            "min_lr": 0.0,
            "warmup_steps": 0,
        },
        "optimizer": {
            "kind": "adamw",
            "betas": (0.9, 0.95),
            "eps": 1e-8,
            "momentum": 0.9,
            "weight_decay": 0.1,
            "clip": 1.0,
        },
        "strategy": STRATEGIES[strategy]
        | {
            "reduce_bucket_elements": BUCKET_ELEMENTS,
            "allgather_bucket_elements": BUCKET_ELEMENTS,
            "prefetch_bucket_elements": 1000,
            "persistence_threshold_elements": 0,
        },
        "numerics": {
            "precision": "fp32",
            "tf32": False,
            "activation_checkpointing": False,
            "compile": False,
            "loss_chunk_tokens": 0,
            "seed": 7,
        },
        "evaluate": {},
        "log_every": 1,
        "stop_after_seconds": None,
        "checkpoint": {"every": {}, "keep": 2, "at_end": True},
        "launch": {
            "kind": "local",
            "device": "cpu",
            "processes": world,
            "threads": 1,
            "backend": "gloo",
            "timeout_seconds": 60,
        },
        "track": (),
        "export": {"at_end": True, "dtype": "fp32", "sample": None, "max_shard_bytes": 10**9},
        "memory": {"items": (), "device_limit_bytes": 10**9},
        "cluster": ClusterFacts(
            device="cpu",
            device_name="test",
            devices_per_host=2,
            device_memory_bytes=10**9,
            host_memory_bytes=10**9,
        ),
        "shape": shape_of(CONFIG),
        "facts": DataFacts(
            store="",
            store_hash="",
            tokenizer="",
            vocab=VOCAB,
            sequence=SEQUENCE,
            documents=1,
            tokens=1,
            train_windows=1,
            train_targets=1,
            eval_documents=0,
            eval_windows=0,
            eval_targets=0,
            eval_bytes=0,
            eval_gzip_bytes=0,
        ),
        "reasons": {},
    }
    for section, values in changes.items():
        sections[section] = sections.get(section, {}) | values if isinstance(values, dict) else values
    return Plan.model_validate(sections)
