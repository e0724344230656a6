"""The effective configuration: each value in force, and where it comes from. No torch, no checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from headway.api import preparing
from headway.config.fields import write_amount
from headway.config.load import LoadedRun
from headway.parallel.deepspeed_config import deepspeed_config
from headway.plan.deepspeed_json import resolved_autos, value_at
from headway.plan.explain import flatten
from headway.plan.schema import Plan
from headway.units import Amount

# Run-file key -> the plan's path that makes it concrete.
PLANNED = {
    "name": "name",
    "model.attention": "model.attention",
    "model.config.vocab": "shape.vocab",
    "model.config.max_sequence": "shape.max_sequence",
    "adapter.alpha": "adapter.alpha",
    "adapter.quantization": "adapter.quantization",
    "adapter.double_quantization": "adapter.double_quantization",
    "train.global_batch": "batch.global_sequences",
    "train.micro_batch": "batch.micro_batch",
    "train.accumulation": "batch.accumulation",
    "train.precision": "numerics.precision",
    "train.tf32": "numerics.tf32",
    "train.activation_checkpointing": "numerics.activation_checkpointing",
    "train.loss_chunk": "numerics.loss_chunk_tokens",
    "train.eval_every": "evaluate",
    "strategy.kind": "strategy.kind",
    "strategy.stage": "strategy.stage",
    "strategy.reduce_bucket": "strategy.reduce_bucket_elements",
    "strategy.allgather_bucket": "strategy.allgather_bucket_elements",
    "strategy.prefetch_bucket": "strategy.prefetch_bucket_elements",
    "strategy.persistence_threshold": "strategy.persistence_threshold_elements",
    "strategy.overlap_comm": "strategy.overlap_comm",
    "checkpoint.every": "checkpoint.every",
    "launch.device": "launch.device",
    "launch.processes": "launch.processes",
    "launch.threads": "launch.threads",
    "export.dtype": "export.dtype",
}
# What DeepSpeed is given -> the run-file key behind it.
_ENGINE = {
    "train_batch_size": "train.global_batch",
    "train_micro_batch_size_per_gpu": "train.micro_batch",
    "gradient_accumulation_steps": "train.accumulation",
    "gradient_clipping": "optimizer.clip",
    "bf16.enabled": "train.precision",
    "fp16.enabled": "train.precision",
    "zero_optimization.stage": "strategy.stage",
    "zero_optimization.reduce_bucket_size": "strategy.reduce_bucket",
    "zero_optimization.allgather_bucket_size": "strategy.allgather_bucket",
    "zero_optimization.overlap_comm": "strategy.overlap_comm",
    "zero_optimization.stage3_prefetch_bucket_size": "strategy.prefetch_bucket",
    "zero_optimization.stage3_param_persistence_threshold": "strategy.persistence_threshold",
    "zero_optimization.offload_optimizer.device": "strategy.offload.optimizer",
    "zero_optimization.offload_param.device": "strategy.offload.parameters",
    "zero_optimization.zero_quantized_weights": "strategy.quantized_weights",
    "zero_optimization.zero_quantized_gradients": "strategy.quantized_gradients",
    "zero_optimization.zero_hpz_partition_size": "strategy.secondary_partition",
}
_WRITTEN_OUT = "Headway: written out, for DeepSpeed's defaults change between releases"


@dataclass(frozen=True)
class Row:
    """One value in force. origin: a file and line, an override, the default, or why it follows."""

    key: str
    value: Any
    origin: str


@dataclass(frozen=True)
class Effective:
    """run: the run file's keys; engine: what DeepSpeed is given; autos and notices: of a DeepSpeed JSON."""

    run: tuple[Row, ...]
    engine: tuple[Row, ...]
    autos: tuple[str, ...]
    notices: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "run": [asdict(row) for row in self.run],
            "deepspeed": [asdict(row) for row in self.engine],
            "auto": list(self.autos),
            "notices": list(self.notices),
        }


def effective(path: Path, overrides: Sequence[str]) -> Effective:
    """Plan the run on what stands, and say of each value where it comes from. Raises the errors of `plan`."""
    loaded = preparing.load(path, overrides)
    return effective_of(loaded, preparing.plan_run(loaded, preparing.look_at_data(loaded)))


def effective_of(loaded: LoadedRun, plan: Plan) -> Effective:
    """The same for a plan that is made already."""
    run = tuple(_run_rows(loaded, plan))
    json = loaded.deepspeed
    return Effective(
        run=run,
        engine=tuple(_engine_rows(loaded, plan, {row.key: row for row in run})),
        autos=tuple(str(found) for found in resolved_autos(loaded, plan)),
        notices=json.notices if json else (),
    )


def _leaves(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    written = section.model_dump(mode="json")
    for name, info in type(section).model_fields.items():
        key, value = f"{prefix}{info.alias or name}", getattr(section, name)
        if isinstance(value, float) and isinstance(written[name], str):
            value = written[name]  # a duration, with its unit
        if isinstance(value, BaseModel):
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _run_rows(loaded: LoadedRun, plan: Plan) -> Iterator[Row]:
    for key, value in _leaves(loaded.config):
        open_ = value is None or value == "auto"
        origin = loaded.origins.get(key, "")
        if open_ and key in PLANNED and (path := PLANNED[key]):
            reason = plan.reasons.get(f"{key}_auto") or plan.reasons.get(path) or plan.reasons.get(path.split(".")[0])
            yield Row(key, _plain(_planned(plan, path)), f"derived: {reason}" if reason else "default")
        else:
            yield Row(key, _plain(value), _place(origin) if origin else "default")


def _planned(plan: Plan, path: str) -> Any:
    """The plan's value; None where a part of the path is absent, as an adapter may be."""
    try:
        return value_at(plan, path)
    except AttributeError:
        return None


def _place(origin: str) -> str:
    return "override (--set)" if origin == "--set" else origin


def _plain(value: Any) -> Any:
    if isinstance(value, Amount):
        return write_amount(value)
    if isinstance(value, BaseModel):
        return {name: item for name, item in value.model_dump(mode="json").items() if item is not None} or None
    return list(value) if isinstance(value, tuple) else value


def _engine_rows(loaded: LoadedRun, plan: Plan, run: dict[str, Row]) -> Iterator[Row]:
    if plan.strategy.kind != "deepspeed":
        return
    passed = loaded.deepspeed.passed_from if loaded.deepspeed else {}
    for path, value in flatten(deepspeed_config(plan)):
        source = run.get(_ENGINE.get(path, ""))
        if path in passed:
            yield Row(path, value, passed[path])
        elif source is not None:
            yield Row(path, value, f"{source.key}: {source.origin}")
        else:
            yield Row(path, value, _WRITTEN_OUT)
