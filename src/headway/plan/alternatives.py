"""Every family of strategies on the same run: its best setting and how fast it would be, or why it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headway.config.schema import StrategyConfig, TrainConfig
from headway.plan.batch import BatchRequest, solve_batch
from headway.plan.forecast import Basis, Forecast, forecast
from headway.plan.memory import GIB, estimate_memory
from headway.plan.schema import Plan, StrategyPlan
from headway.plan.sizing import with_micro_batch
from headway.plan.strategy import StrategyRequest, deepspeed
from headway.plan.work import request_of

_ENOUGH = 0.95  # of the fastest: the simpler one is taken
_LARGEST_MICRO_BATCH = 256


@dataclass(frozen=True)
class Candidate:
    """The best setting of a family; `plan` is the whole plan with it. reason: why not, of one that does not fit."""

    family: str
    label: str
    plan: Plan
    forecast: Forecast
    reason: str = ""

    @property
    def fits(self) -> bool:
        return not self.reason


def candidates(plan: Plan, train: TrainConfig, basis: Basis) -> tuple[Candidate, ...]:
    """One candidate a family, from the simplest to the most frugal; a family that fits nowhere says why."""
    return tuple(_best(plan, train, basis, strategy) for strategy in _strategies(plan))


def _strategies(plan: Plan) -> Iterator[StrategyPlan]:
    """Each family with DeepSpeed's usual knobs; the planned one with its own."""
    for strategy in _families(plan):
        yield plan.strategy if strategy.label == plan.strategy.label else strategy


def _families(plan: Plan) -> Iterator[StrategyPlan]:
    request = StrategyRequest(StrategyConfig(), "auto", request_of(plan))
    many = plan.launch.processes > 1
    yield StrategyPlan(kind="ddp" if many else "single")
    stages = (1, 2, 3) if many else ()
    for stage in stages:
        yield deepspeed(request, stage, offload_optimizer=False, offload_parameters=False)
    if plan.cluster.device == "cuda":  # on a CPU the host's memory is the same memory
        yield deepspeed(request, 2, offload_optimizer=True, offload_parameters=False)
        yield deepspeed(request, 3, offload_optimizer=True, offload_parameters=False)
        yield deepspeed(request, 3, offload_optimizer=True, offload_parameters=True)


def _best(plan: Plan, train: TrainConfig, basis: Basis, strategy: StrategyPlan, *, roomy: bool = False) -> Candidate:
    """The fastest that fits over micro batches and checkpointing; else the smallest, with what is too large.

    roomy: one that fits with the upper end of its band.
    """
    fitting: list[Candidate] = []
    too_large: list[Candidate] = []
    asked = train.activation_checkpointing
    for on in (False, True) if asked == "auto" else (asked,):
        for micro in _micro_batches(plan, train):
            candidate = _candidate(plan, train, basis, (strategy, on, micro))
            if not candidate.fits or (roomy and candidate.forecast.is_tight):
                too_large.append(candidate)
                break
            fitting.append(candidate)
    if fitting:
        return max(fitting, key=lambda found: found.forecast.tokens_per_second)
    return min(too_large, key=lambda found: found.forecast.device_bytes)


def _micro_batches(plan: Plan, train: TrainConfig) -> Iterator[int]:
    if train.micro_batch != "auto":
        yield train.micro_batch
        return
    if train.accumulation != "auto":  # it leaves one micro batch: any other would not cover the global batch
        yield -(-plan.batch.global_sequences // (train.accumulation * plan.launch.processes))
        return
    most = min(_LARGEST_MICRO_BATCH, -(-plan.batch.global_sequences // plan.batch.data_parallel_size))
    micro = 1
    while micro <= most:
        yield micro
        micro *= 2


def _candidate(plan: Plan, train: TrainConfig, basis: Basis, setting: tuple[StrategyPlan, bool, int]) -> Candidate:
    strategy, checkpointing, micro = setting
    fixed = None if train.accumulation == "auto" else train.accumulation
    batch = solve_batch(
        BatchRequest(plan.batch.global_sequences, plan.launch.processes, accumulation=fixed, micro_batch=micro)
    ).plan
    numerics = plan.numerics.model_copy(update={"activation_checkpointing": checkpointing})
    changed = plan.model_copy(update={"strategy": strategy, "batch": batch, "numerics": numerics})
    request = with_micro_batch(request_of(changed), micro, train)
    numerics = numerics.model_copy(update={"loss_chunk_tokens": request.loss_chunk_tokens})
    changed = changed.model_copy(update={"numerics": numerics, "memory": estimate_memory(request)})
    found = forecast(changed, basis)
    label = f"micro batch {micro}" + (", activation checkpointing" if checkpointing else "")
    return Candidate(strategy.label, label, changed, found, "" if found.fits else found.misfit)


def words(candidate: Candidate) -> str:
    """The overrides that make a plan of it."""
    strategy, numerics = candidate.plan.strategy, candidate.plan.numerics
    offloads = [name for name in ("optimizer", "parameters") if getattr(strategy, f"offload_{name}")]
    kind = f"zero-{strategy.stage}" if strategy.kind == "deepspeed" else strategy.kind
    said = [f"strategy={kind}", *(f"strategy.offload.{name}=cpu" for name in offloads)]
    said += [f"train.micro_batch={candidate.plan.batch.micro_batch}"]
    return " ".join([*said, f"train.activation_checkpointing={str(numerics.activation_checkpointing).lower()}"])


def verdict(chosen: Forecast, found: tuple[Candidate, ...]) -> str:
    """One line on how the chosen plan stands among them."""
    fitting = [candidate for candidate in found if candidate.fits]
    if not fitting:
        return "nothing fits"
    fastest = _fastest(fitting)
    if not chosen.fits:
        return f"what is planned does not fit; {fastest.family} ({fastest.label}) does: {words(fastest)}"
    plain = fitting[0] if fitting[0].family in ("ddp", "single") else None
    if plain and plain.forecast.tokens_per_second >= _ENOUGH * fastest.forecast.tokens_per_second:
        return f"{plain.family.upper() if plain.family == 'ddp' else 'one process'} is enough: nothing is faster by 5 %"
    gain = fastest.forecast.tokens_per_second / chosen.tokens_per_second
    if gain > 1 / _ENOUGH:
        what = f"{fastest.family} ({fastest.label})"
        return f"{what} would be {gain - 1:.0%} faster than what is planned: {words(fastest)}"
    return "nothing that fits is faster by 5 % than what is planned"


def caution(plan: Plan, chosen: Forecast, train: TrainConfig, basis: Basis) -> str:
    """What to say of a plan that fits by less than its band: what leaves more room. Empty where there is room."""
    if not chosen.is_tight:
        return ""
    ends = f"{chosen.high_bytes / GIB:.1f} of the device's {plan.cluster.device_memory_bytes / GIB:.1f} GiB"
    said = f"it fits by less than its band, which goes up to {ends}"
    found = [_best(plan, train, basis, strategy, roomy=True) for strategy in _strategies(plan)]
    roomy = [candidate for candidate in found if candidate.fits and not candidate.forecast.is_tight]
    if not roomy:
        return f"{said}; more room: a shorter train.sequence, or more devices"
    best = _fastest(roomy)
    speed = best.forecast.tokens_per_second / chosen.tokens_per_second - 1
    return f"{said}; more room, at {speed:+.0%} tokens/s: {best.family} ({best.label}): {words(best)}"


def _fastest(found: list[Candidate]) -> Candidate:
    return max(found, key=lambda candidate: candidate.forecast.tokens_per_second)
