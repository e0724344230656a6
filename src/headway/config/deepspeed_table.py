"""What no model of DeepSpeed's source describes: its top level, optimizers, schedulers, removed keys, missing ranges.

DeepSpeed reads these parts as an unchecked dict. `since`: the release that brought a key; older ones ignore it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headway.config.deepspeed_models import MODELS, Fields, Key

Path = tuple[str, ...]
LARGEST = 2**31 - 1  # of counts of samples and steps
MOST_ELEMENTS = 2**63 - 1


def _key(kind: str, low: float | None = None, high: float | None = None, **more: Any) -> Key:
    return Key(kind, "", low=low, high=high, **more)


def _bools(*names: str) -> dict[str, Key]:
    return {name: _key("bool") for name in names}


def _named(fields: dict[str, Key]) -> dict[str, Key]:
    """Each key under its own name."""
    return {name: replace(key, canonical=name) for name, key in fields.items()}


_ABOVE_0 = {"low_open": True}
_DTYPES = ("fp32", "fp16", "bf16")

TOP: dict[str, Key] = _named(
    {
        "train_batch_size": _key("int", 1, LARGEST),
        "train_micro_batch_size_per_gpu": _key("int", 1, LARGEST),
        "gradient_accumulation_steps": _key("int", 1, LARGEST),
        "gradient_clipping": _key("float", 0, 1e9),
        "gradient_predivide_factor": _key("float", 0, 1e9, **_ABOVE_0),
        "gradient_allreduce_op": _key("text", values=("mean", "sum")),
        "steps_per_print": _key("int", 1, LARGEST, null=True),
        "communication_data_type": _key("text", values=_DTYPES, null=True),
        "seq_parallel_communication_data_type": _key("text", values=_DTYPES, null=True),
        "log_level": _key("text", values=("debug", "info", "warning", "error", "critical"), null=True),
        "vocabulary_size": _key("int", 1, LARGEST, null=True),
        "sequence_parallel_size": _key("int", 1, LARGEST),
        "zero_optimization": _key("section", section="zero_optimization"),
        **_bools("managed_gradient_accumulation", "prescale_gradients", "disable_allgather", "dump_state"),
        **_bools("disable_python_gc", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"),
        **_bools("wall_clock_breakdown", "memory_breakdown", "dataloader_drop_last"),
        **_bools("use_data_before_expert_parallelism"),
        **{place[0]: _key("section", section=place[0]) for place in MODELS},
        **{
            name: _key("section", section=name)
            for name in (
                *("optimizer", "scheduler", "activation_checkpointing", "flops_profiler", "checkpoint", "data_types"),
                *("aio", "torch_autocast"),
            )
        },
        # Their inside is not judged: Headway does not drive these features, and refuses them where they are on.
        **{
            name: _key("mapping")
            for name in ("pipeline", "data_efficiency", "autotuning", "expert_parallel", "weight_quantization")
        },
        "datastates_ckpt": _key("any"),
    }
)

SINCE: dict[Path, str] = {
    ("gradient_allreduce_op",): "0.19.6",
    ("managed_gradient_accumulation",): "0.19.6",
    ("disable_python_gc",): "0.19.8",
    ("expert_parallel",): "0.19.3",
    ("data_types", "keep_in_fp32_modules"): "0.19.8",
}

SECTIONS: dict[str, dict[str, Key]] = {
    name: _named(fields)
    for name, fields in {
        "optimizer": {
            "type": _key("text"),
            "params": _key("section", section="optimizer.params"),
            "legacy_fusion": _key("bool"),
        },
        "scheduler": {"type": _key("text"), "params": _key("section", section="scheduler.params")},
        "activation_checkpointing": {
            **_bools("partition_activations", "contiguous_memory_optimization", "cpu_checkpointing"),
            **_bools("synchronize_checkpoint_boundary", "profile"),
            "number_checkpoints": _key("int", 1, LARGEST, null=True),
        },
        "flops_profiler": {
            **_bools("enabled", "detailed"),
            "recompute_fwd_factor": _key("float", 0, 10),
            "profile_step": _key("int", 1, LARGEST),
            "module_depth": _key("int", -1, LARGEST),
            "top_modules": _key("int", 1, LARGEST),
            "output_file": _key("text", null=True),
        },
        "timers": {"throughput": _key("section", section="timers.throughput")},
        "checkpoint": {
            "tag_validation": _key("text", values=("Ignore", "Warn", "Fail", "IGNORE", "WARN", "FAIL")),
            **_bools("load_universal", "use_node_local_storage"),
            "parallel_write": _key("mapping"),
            "writer": _key("mapping", null=True),
            "checkpoint_serialization": _key("bool"),
        },
        "data_types": {
            "grad_accum_dtype": _key("text", values=_DTYPES, null=True),
            "param_dtype": _key("text", values=_DTYPES, null=True),
            "buffer_dtype": _key("text", values=_DTYPES, null=True),
            "keep_in_fp32_modules": _key("any"),
        },
        "aio": {
            "block_size": _key("int", 1, MOST_ELEMENTS),
            "queue_depth": _key("int", 1, LARGEST),
            "intra_op_parallelism": _key("int", 1, LARGEST),
            "thread_count": _key("int", 1, LARGEST, instead="intra_op_parallelism"),
            **_bools("single_submit", "overlap_events", "use_gds"),
        },
        "torch_autocast": {
            "enabled": _key("bool"),
            "dtype": _key("text", values=(*_DTYPES, "float16", "bfloat16", "float32")),
            "lower_precision_safe_modules": _key("list"),
        },
    }.items()
}

# Ranges that a model's annotations lack: by place, (low, high, low is excluded).
RANGES: dict[Path, tuple[float | None, float | None, bool]] = {
    ("fp16", "loss_scale"): (0, 2.0**64, False),
    ("fp16", "initial_scale_power"): (0, 64, False),
    ("fp16", "loss_scale_window"): (1, LARGEST, False),
    ("fp16", "hysteresis"): (1, LARGEST, False),
    ("fp16", "min_loss_scale"): (1, 2.0**64, False),
    ("zero_optimization", "reduce_bucket_size"): (1, MOST_ELEMENTS, False),  # releases before 0.19 divide by a zero
    ("zero_optimization", "allgather_bucket_size"): (1, MOST_ELEMENTS, False),
    ("zero_optimization", "sub_group_size"): (1, MOST_ELEMENTS, False),
    ("zero_optimization", "zero_hpz_partition_size"): (1, LARGEST, False),
    ("zero_optimization", "stage3_module_granularity_threshold"): (0, MOST_ELEMENTS, False),
    ("zero_optimization", "offload_optimizer", "buffer_count"): (1, LARGEST, False),
    ("zero_optimization", "offload_param", "buffer_count"): (1, LARGEST, False),
    ("zero_optimization", "zenflow", "full_warm_up_rounds"): (0, LARGEST, False),
    ("zero_optimization", "zenflow", "steps_per_epoch"): (1, LARGEST, False),
    ("comet", "samples_log_interval"): (1, LARGEST, False),
    ("compile", "free_activation_threshold"): (0, MOST_ELEMENTS, False),
    ("tensor_parallel", "autotp_size"): (0, LARGEST, False),
    ("tensor_parallel", "tp", "tp_size"): (1, LARGEST, False),
    ("tensor_parallel", "tp", "tp_grain_size"): (1, LARGEST, False),
    ("hybrid_engine", "inference_tp_size"): (1, LARGEST, False),
    ("hybrid_engine", "tp_gather_partition_size"): (1, LARGEST, False),
}

OFFLOADS = ("offload_optimizer", "offload_param")
# Texts that DeepSpeed reads in any case.
ANY_CASE: frozenset[Path] = frozenset(
    [
        ("checkpoint", "tag_validation"),
        ("communication_data_type",),
        ("seq_parallel_communication_data_type",),
        ("gradient_allreduce_op",),
        ("log_level",),
    ]
)
# Sections that do something without `enabled`, or of which that is said elsewhere.
OPTIONAL_SWITCH: frozenset[Path] = frozenset([("timers", "throughput"), ("data_efficiency",), ("autotuning",)])
# Sections that Headway refuses where they are on: no key is sent there.
NOT_DRIVEN: frozenset[Path] = frozenset(
    [("zero_optimization", "zenflow"), ("hybrid_engine",), ("tensor_parallel",), ("torch_autocast",), ("compile",)]
)
# What other trainers call it.
OTHER_NAMES: dict[str, str] = {
    **dict.fromkeys(("learning_rate", "base_lr", "max_lr"), "optimizer.params.lr"),
    **dict.fromkeys(("decay", "wd"), "optimizer.params.weight_decay"),
    **dict.fromkeys(("adam_epsilon", "epsilon"), "optimizer.params.eps"),
    **dict.fromkeys(("max_grad_norm", "clip_grad", "grad_clip", "gradient_clip_val"), "gradient_clipping"),
    **dict.fromkeys(
        ("per_device_train_batch_size", "micro_batch_size", "micro_batch", "train_micro_batch_size", "mbs"),
        "train_micro_batch_size_per_gpu",
    ),
    **dict.fromkeys(("global_batch_size", "total_batch_size"), "train_batch_size"),
    **dict.fromkeys(("accumulate_grad_batches", "grad_accum", "gas"), "gradient_accumulation_steps"),
    **dict.fromkeys(("warmup_steps", "warmup"), "scheduler.params.warmup_num_steps"),
    **dict.fromkeys(("total_steps", "max_steps"), "scheduler.params.total_num_steps"),
    **dict.fromkeys(("zero_stage", "zero"), "zero_optimization.stage"),
    **dict.fromkeys(("logging_steps", "log_interval"), "steps_per_print"),
}

# Every field for which transformers' integration with its Trainer takes "auto".
AUTO: frozenset[Path] = frozenset(
    [
        ("train_batch_size",),
        ("train_micro_batch_size_per_gpu",),
        ("gradient_accumulation_steps",),
        ("gradient_clipping",),
        *(("optimizer", "params", name) for name in ("lr", "betas", "eps", "weight_decay")),
        *(("scheduler", "params", f"warmup_{name}") for name in ("min_lr", "max_lr", "num_steps")),
        ("scheduler", "params", "total_num_steps"),
        ("fp16", "enabled"),
        ("bf16", "enabled"),
        *(
            ("zero_optimization", name)
            for name in (
                "reduce_bucket_size",
                "stage3_prefetch_bucket_size",
                "stage3_param_persistence_threshold",
            )
        ),
    ]
)
# Those that accelerate's own settings would fill: the run file's offload; where Headway needs none, nothing.
AUTO_BY_ACCELERATE: frozenset[Path] = frozenset(
    [
        *(("zero_optimization", part, name) for part in OFFLOADS for name in ("device", "nvme_path")),
        ("zero_optimization", "stage3_gather_16bit_weights_on_model_save"),
    ]
)
# DeepSpeed's own words, not to be resolved.
OWN_AUTO: frozenset[Path] = frozenset(
    [
        *(("zero_optimization", "zenflow", name) for name in ("select_strategy", "select_interval", "update_interval")),
        ("data_types", "keep_in_fp32_modules"),
    ]
)


# --- optimizers and schedulers ---------------------------------------------------------------------------------------

_SHARED = {
    "lr": _key("float", 0, 100, low_open=True),
    "weight_decay": _key("float", 0, 10),
}
_EPS = {"eps": _key("float", 0, 1, low_open=True)}
_ADAM = {
    **_SHARED,
    **_EPS,
    "betas": _key("betas"),
    **_bools("adam_w_mode", "torch_adam", "bias_correction", "amsgrad", "fp32_optimizer_states", "fused"),
    "foreach": _key("bool", null=True),
}
_SGD = {
    **_SHARED,
    "momentum": _key("float", 0, 1, high_open=True),
    "dampening": _key("float", 0, 1),
    **_bools("nesterov"),
}
_RMS = {
    **_SHARED,
    **_EPS,
    "alpha": _key("float", 0, 1, high_open=True),
    "momentum": _key("float", 0, 1, high_open=True),
    **_bools("centered"),
}


@dataclass(frozen=True)
class Optimizer:
    """kind: of the run file. defaults: what DeepSpeed takes where the JSON is silent, by run-file key."""

    kind: str
    params: dict[str, Key]
    defaults: dict[str, Any]


_ADAM_DEFAULTS = {"optimizer.betas": [0.9, 0.999], "optimizer.eps": 1e-8, "optimizer.weight_decay": 0.0}
OPTIMIZERS: dict[str, Optimizer] = {
    "AdamW": Optimizer("adamw", _named(_ADAM), _ADAM_DEFAULTS),
    "Adam": Optimizer("adamw", _named(_ADAM), _ADAM_DEFAULTS),  # DeepSpeed's Adam is AdamW unless adam_w_mode is false
    "SGD": Optimizer("sgd", _named(_SGD), {"optimizer.momentum": 0.0, "optimizer.weight_decay": 0.0}),
    "RMSprop": Optimizer("rmsprop", _named(_RMS), {"optimizer.eps": 1e-8, "optimizer.weight_decay": 0.0}),
}
# Names of DeepSpeed and torch that Headway's equality test has not admitted.
NOT_ADMITTED = (
    *("Adagrad", "Lamb", "Lion", "Muon", "MuAdam", "MuAdamW", "MuSGD"),
    *("Adadelta", "Adamax", "ASGD", "LBFGS", "NAdam", "RAdam", "Rprop", "SparseAdam", "Adafactor"),
)
REMOVED_OPTIMIZERS = {
    "OneBitAdam": "1-bit Adam",
    "OneBitLamb": "1-bit LAMB",
    "ZeroOneAdam": "0/1 Adam",
}

_WARMUP = {
    "warmup_num_steps": _key("int", 0, LARGEST),
    "warmup_type": _key("text", values=("log", "linear")),
    "last_batch_iteration": _key("int", -1, LARGEST),
}
_RATES = {"warmup_min_lr": _key("float", 0, 100), "warmup_max_lr": _key("float", 0, 100, low_open=True)}
_TOTAL = {"total_num_steps": _key("int", 1, LARGEST)}
_RATIOS = {"warmup_min_ratio": _key("float", 0, 1), "cos_min_ratio": _key("float", 0, 1)}
# Scheduler type -> (schedule of the run file, its params).
SCHEDULERS: dict[str, tuple[str, dict[str, Key]]] = {
    "WarmupLR": ("constant", _named(_WARMUP | _RATES)),
    "WarmupDecayLR": ("linear", _named(_WARMUP | _RATES | _TOTAL)),
    "WarmupCosineLR": ("cosine", _named(_WARMUP | _TOTAL | _RATIOS)),
}
OTHER_SCHEDULERS = (
    *("LRRangeTest", "OneCycle"),
    # DeepSpeed takes torch's by their names as well.
    *("LambdaLR", "MultiplicativeLR", "StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR"),
    *("CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "OneCycleLR", "PolynomialLR"),
)

# --- what releases took away -----------------------------------------------------------------------------------------

INSTEAD_OF_ONE_BIT = (
    "strategy: {kind: ddp, gradient_compression: powersgd} (or bf16, fp16), "
    "or ZeRO++ on GPUs: zero_optimization.zero_quantized_gradients"
)


@dataclass(frozen=True)
class Removed:
    """`since`: the first release without it."""

    what: str
    since: str
    instead: str


REMOVED: dict[Path, Removed] = {
    ("nebula",): Removed("Nebula checkpointing", "0.19.7", "remove it: `checkpoint:` of the run file saves"),
    ("compression_training",): Removed("the compression library", "0.19.7", "remove it: quantise the exported model"),
    ("quantize_training",): Removed("mixture of quantisation", "0.19.7", "remove it: quantise the exported model"),
    ("sparse_attention",): Removed("sparse attention", "0.19.7", "remove it, and write model: {attention: flex}"),
    ("amp",): Removed("Apex AMP", "0.19.8", 'write "bf16": {"enabled": true} or "fp16": {"enabled": true}'),
    ("sparse_gradients",): Removed("sparse gradients of embeddings", "0.19.8", "remove it: they are reduced dense"),
    ("eigenvalue",): Removed("eigenvalues for quantisation", "0.19.8", "remove it"),
    ("elasticity",): Removed(
        "elastic training", "0.19.8", "remove it: a run resumes on any number of processes (headway resume)"
    ),
    ("graph_harvesting",): Removed("graph harvesting", "0.19.8", "remove it, or write train: {compile: true}"),
    ("curriculum_learning",): Removed("the old curriculum learning", "0.19.8", "remove it: order the data instead"),
    ("progressive_layer_drop",): Removed("progressive layer drop", "0.19.8", "remove it"),
    ("zero_optimization", "mics_shard_size"): Removed(
        "MiCS", "0.19.7", "write zero_hpz_partition_size: parameters are gathered within that many ranks"
    ),
    ("zero_optimization", "mics_hierarchical_params_gather"): Removed(
        "MiCS", "0.19.7", "write zero_hpz_partition_size: parameters are gathered within that many ranks"
    ),
    ("zero_optimization", "zeropp_loco_param"): Removed(
        "LoCo for ZeRO++", "0.19.8", "remove it: zero_quantized_gradients works without"
    ),
    # Long gone, and still in files that are passed around.
    ("bfloat16",): Removed("the section bfloat16", "0.5.10", "write bf16"),
    ("fp16_allreduce",): Removed("fp16_allreduce", "0.3.0", "write communication_data_type"),
    ("fp32_allreduce",): Removed("fp32_allreduce", "0.5.0", 'write "communication_data_type": "fp32"'),
    ("disable_allgather_partitions",): Removed("that key", "0.3.0", "write zero_optimization.allgather_partitions"),
    ("allgather_size",): Removed("allgather_size", "0.3.0", "write zero_optimization.allgather_bucket_size"),
}


def sections(models: Mapping[str, Fields], optimizer: str, scheduler: str) -> dict[str, Fields]:
    """Every section by its name: the table's, and the models of the installed release at their places."""
    found: dict[str, Fields] = {**SECTIONS, **models}
    for place, (_, model) in MODELS.items():
        if model in models:
            found[".".join(place)] = models[model]
    every_optimizer = {name: key for known in OPTIMIZERS.values() for name, key in known.params.items()}
    every_scheduler = {name: key for _, params in SCHEDULERS.values() for name, key in params.items()}
    found["optimizer.params"] = OPTIMIZERS[optimizer].params if optimizer in OPTIMIZERS else every_optimizer
    found["scheduler.params"] = SCHEDULERS[scheduler][1] if scheduler in SCHEDULERS else every_scheduler
    return found
