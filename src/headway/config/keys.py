"""The tree of legal keys, read from the schema: what exists, what is near, and where a misplaced key belongs."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from typing import Any, get_args

from pydantic.fields import FieldInfo

from headway.config.reader import KeyPath, dotted
from headway.config.schema import RunConfig, Section

# What other trainers call it.
ELSEWHERE = {
    "learning_rate": "optimizer.lr",
    "max_lr": "optimizer.lr",
    "min_lr": "optimizer.min_lr_ratio",
    "warmup_ratio": "optimizer.warmup",
    "warmup_steps": "optimizer.warmup",
    "lr_scheduler": "optimizer.schedule",
    "lr_scheduler_type": "optimizer.schedule",
    "max_grad_norm": "optimizer.clip",
    "gradient_clipping": "optimizer.clip",
    "grad_clip": "optimizer.clip",
    "batch_size": "train.global_batch",
    "train_batch_size": "train.global_batch",
    "global_batch_size": "train.global_batch",
    "micro_batch_size": "train.micro_batch",
    "train_micro_batch_size_per_gpu": "train.micro_batch",
    "per_device_train_batch_size": "train.micro_batch",
    "gradient_accumulation": "train.accumulation",
    "gradient_accumulation_steps": "train.accumulation",
    "epochs": "train.length",
    "num_train_epochs": "train.length",
    "steps": "train.length",
    "max_steps": "train.length",
    "tokens": "train.length",
    "seq_len": "train.sequence",
    "seq_length": "train.sequence",
    "max_length": "train.sequence",
    "max_seq_length": "train.sequence",
    "sequence_length": "train.sequence",
    "block_size": "train.sequence",
    "bf16": "train.precision",
    "fp16": "train.precision",
    "dtype": "train.precision",
    "gradient_checkpointing": "train.activation_checkpointing",
    "eval_steps": "train.eval_every",
    "logging_steps": "train.log_every",
    "save_steps": "checkpoint.every",
    "save_total_limit": "checkpoint.keep",
    "zero_optimization": "strategy.stage",
    "zero": "strategy.stage",
    "deepspeed": "strategy.kind",
    "hidden_size": "model.config.hidden",
    "num_hidden_layers": "model.config.layers",
    "num_attention_heads": "model.config.heads",
    "num_key_value_heads": "model.config.kv_heads",
    "intermediate_size": "model.config.ffn",
    "vocab_size": "model.config.vocab",
    "tie_word_embeddings": "model.config.tie_embeddings",
    "dataset": "data.train",
    "train_file": "data.train",
    "output_dir": "runs",
    "nproc_per_node": "launch.processes",
    "num_gpus": "launch.gpus",
    "report_to": "track",
    "lora": "adapter.kind",
    "lora_r": "adapter.rank",
    "lora_rank": "adapter.rank",
    "lora_alpha": "adapter.alpha",
    "lora_dropout": "adapter.dropout",
    "lora_target_modules": "adapter.targets",
    "qlora": "adapter.kind",
    "load_in_4bit": "adapter.kind",
    "bnb_4bit_quant_type": "adapter.quantization",
    "bnb_4bit_use_double_quant": "adapter.double_quantization",
    "target_modules": "adapter.targets",
    "peft": "adapter",
}


def section_of(annotation: Any) -> type[Section] | None:
    """The section inside an annotation such as `SourceConfig | None`."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_of(part))), None)


def fields(section: type[Section]) -> dict[str, FieldInfo]:
    """A section's fields by the names that a run file uses."""
    return {info.alias or name: info for name, info in section.model_fields.items()}


def field_at(path: KeyPath) -> FieldInfo | None:
    """The field behind a key path, or None where there is none or everything goes (`extra`, `options`)."""
    section: type[Section] | None = RunConfig
    info: FieldInfo | None = None
    for part in path:
        if isinstance(part, int):
            continue
        info = fields(section).get(part) if section else None
        if info is None:
            return None
        section = section_of(info.annotation)
    return info


def unknown_at(path: KeyPath) -> int | None:
    """The index of the first part of `path` that is no key, None if all are known (or in a free mapping)."""
    section: type[Section] | None = RunConfig
    for index, part in enumerate(path):
        info = fields(section).get(str(part)) if section else None
        if info is None:
            return index
        if info.annotation == dict[str, Any]:
            return None
        section = section_of(info.annotation)
    return None


@cache
def every_key() -> tuple[str, ...]:
    """All dotted keys, sections included, in the order of the schema."""

    def walk(section: type[Section], prefix: str) -> list[str]:
        found: list[str] = []
        for name, info in fields(section).items():
            found.append(prefix + name)
            if inner := section_of(info.annotation):
                found += walk(inner, f"{prefix}{name}.")
        return found

    return tuple(walk(RunConfig, ""))


def suggestion(path: KeyPath) -> tuple[str, str]:
    """(rule, fix) for the unknown key `path`: the near key, the right place, or the list of what is legal."""
    key = str(path[-1])
    if key.lower() in ELSEWHERE:
        return "is not a key of Headway", f"write {ELSEWHERE[key.lower()]}"
    homes = [name for name in every_key() if name.rpartition(".")[2] == key]
    parent = field_at(path[:-1]) if len(path) > 1 else None
    section = RunConfig if len(path) == 1 else section_of(parent.annotation) if parent else None
    legal = list(fields(section)) if section else []
    prefix = dotted(path[:-1])
    if homes:
        place = homes[0].rpartition(".")[0]
        what = f"belongs to {place}" if place else "belongs at the top of the file"
        return f"is not a key here: {key} {what}", "write " + " or ".join(homes[:3])
    if near := get_close_matches(key, legal, n=1):
        full = f"{prefix}.{near[0]}" if prefix else near[0]
        return f"is not a key; did you mean {near[0]!r}?", f"write {full}"
    if near := get_close_matches(key, [name.rpartition(".")[2] for name in every_key()], n=1, cutoff=0.8):
        return f"is not a key; did you mean {near[0]!r}?", suggestion((near[0],))[1]
    if not legal:
        return "is not a key: there are no keys below this one", f"give {prefix} a value" if prefix else ""
    return "is not a key", f"one of: {', '.join(legal)}"
