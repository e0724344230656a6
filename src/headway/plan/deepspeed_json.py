"""What of a DeepSpeed JSON can only be settled with the machine and the model: the batch, "auto", the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headway.config.deepspeed_merge import Triangle, judge_triangle
from headway.config.load import LoadedRun
from headway.config.schema import StrategyConfig
from headway.facts.model_config import divisors
from headway.facts.schema import ClusterFacts
from headway.plan.ledger import Ledger
from headway.plan.schema import Plan, StrategyPlan

# Run-file key -> what transformers' integration writes for "auto", as a multiple of the model's width: its source,
# transformers/integrations/deepspeed.py, trainer_config_finalize. The last two are of stage 3 only.
_OF_WIDTH: dict[str, tuple[str, Callable[[int], int]]] = {
    "strategy.reduce_bucket": ("hidden x hidden", lambda hidden: hidden * hidden),
    "strategy.prefetch_bucket": ("0.9 x hidden x hidden", lambda hidden: int(0.9 * hidden * hidden)),
    "strategy.persistence_threshold": ("10 x hidden", lambda hidden: 10 * hidden),
}


def judge_json(run: LoadedRun, processes: int, steps: int, ledger: Ledger) -> None:
    """Note where the JSON's batch does not divide over the processes, or its scheduler counts other steps."""
    json, train = run.deepspeed, run.config.train
    if json is None:
        return
    batch = train.global_batch
    count = int(batch.value) if batch != "auto" and batch.unit == "sequences" else None
    triangle = Triangle(
        count,
        None if train.micro_batch == "auto" else train.micro_batch,
        None if train.accumulation == "auto" else train.accumulation,
        processes,
    )
    if (broken := judge_triangle(triangle)) is not None:
        key, rule, fix = broken
        ledger.refuse(key, f"{count} sequences", rule, fix)
    if json.total_steps is not None and json.total_steps.value != steps:
        said = json.total_steps
        rule = f"makes {steps} steps; {said.by} = {said.value} ({said.where})"
        ledger.refuse("train.length", str(train.length), rule, f"train.length='{said.value} steps', or write \"auto\"")


def refuse_strategy(
    asked: StrategyConfig, cluster: ClusterFacts, precision: str, processes: int, ledger: Ledger
) -> None:
    """ZeRO++ quantises by CUDA kernels, and its second copy is of equal groups of ranks; PowerSGD's error feedback
    would outlive a change of the loss scale.
    """
    group = min(asked.secondary_partition, processes)
    if processes % group:
        legal = ", ".join(str(count) for count in divisors(processes))
        rule = f"must divide the {processes} processes"
        ledger.refuse("strategy.secondary_partition", asked.secondary_partition, rule, f"one of {legal}")
    compression = asked.gradient_compression
    if compression is not None and compression.kind == "powersgd" and precision == "fp16":
        rule = "does not go with fp16: what it carries over is in units of a loss scale that changes"
        ledger.refuse("strategy.gradient_compression", "powersgd", rule, "train.precision=bf16, or kind: bf16")
    if cluster.device != "cpu":
        return
    for name in ("quantized_weights", "quantized_gradients"):
        if getattr(asked, name):
            rule = "has no kernel on a CPU: ZeRO++ quantises on the GPU"
            ledger.refuse(f"strategy.{name}", True, rule, f"strategy.{name}=false")


def strategy_of(run: LoadedRun, hidden: int, ledger: Ledger) -> StrategyConfig:
    """The strategy section with the bucket sizes that the JSON leaves to the model's width."""
    json, asked = run.deepspeed, run.config.strategy
    found: dict[str, int] = {}
    for key, _ in json.autos.values() if json else ():
        if key in _OF_WIDTH and (asked.stage == 3 or key == "strategy.reduce_bucket"):
            name = key.partition(".")[2]
            if getattr(asked, name) is None:
                words, formula = _OF_WIDTH[key]
                found[name] = formula(hidden)
                ledger.because(f"{key}_auto", f"{words} ({hidden}), as transformers' integration does")
    return asked.model_copy(update=found)


def with_engine(strategy: StrategyPlan, run: LoadedRun) -> StrategyPlan:
    """The strategy with what the JSON hands to the engine."""
    if run.deepspeed is None or strategy.kind != "deepspeed":
        return strategy
    return strategy.model_copy(update={"engine": run.deepspeed.passed})


# --- "auto" ----------------------------------------------------------------------------------------------------------

_PLANNED = {
    "train.global_batch": "batch.global_sequences",
    "train.micro_batch": "batch.micro_batch",
    "train.accumulation": "batch.accumulation",
    "train.precision": "numerics.precision",
    "optimizer.lr": "schedule.peak_lr",
    "optimizer.betas": "optimizer.betas",
    "optimizer.eps": "optimizer.eps",
    "optimizer.weight_decay": "optimizer.weight_decay",
    "optimizer.clip": "optimizer.clip",
    "optimizer.warmup": "schedule.warmup_steps",
    "schedule.steps": "schedule.steps",
    "strategy.offload.optimizer": "strategy.offload_optimizer",
    "strategy.offload.parameters": "strategy.offload_parameters",
    "strategy.reduce_bucket": "strategy.reduce_bucket_elements",
    "strategy.prefetch_bucket": "strategy.prefetch_bucket_elements",
    "strategy.persistence_threshold": "strategy.persistence_threshold_elements",
}


@dataclass(frozen=True)
class Resolved:
    """One "auto" of the JSON: its key and line, what it became, and why."""

    key: str
    where: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.key} is auto: {self.value} ({self.reason})"


def resolved_autos(run: LoadedRun, plan: Plan) -> Iterator[Resolved]:
    """Every "auto" of the JSON with its value in the plan."""
    if run.deepspeed is None:
        return
    for key, (source, where) in run.deepspeed.autos.items():
        if source == "schedule.first_lr":
            yield Resolved(key, where, 0, "the warm-up begins at 0")
            continue
        value = value_at(plan, _PLANNED[source])
        if key.endswith(".device"):
            value = "cpu" if value else "none"
        if key in ("fp16.enabled", "bf16.enabled"):
            value = value == key.partition(".")[0]
        if source in ("strategy.prefetch_bucket", "strategy.persistence_threshold") and plan.strategy.stage != 3:
            yield Resolved(key, where, "left out", f"it has no effect at stage {plan.strategy.stage}")
            continue
        yield Resolved(key, where, value, _reason(run, plan, source))


def _reason(run: LoadedRun, plan: Plan, source: str) -> str:
    reasons: Mapping[str, str] = plan.reasons
    if (reason := reasons.get(f"{source}_auto") or reasons.get(_PLANNED[source])) and reason != source:
        return reason
    return f"{source}, {run.origins.get(source, 'its default')}"


def value_at(plan: Plan, path: str) -> Any:
    """The plan's value at a dotted path."""
    value: Any = plan
    for part in path.split("."):
        value = getattr(value, part)
    return value
