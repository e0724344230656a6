"""Which strategy, with or without activation checkpointing: the first of a fixed ladder that fits.

The ladder goes from what costs nothing to what costs most. ZeRO-1 and ZeRO-2 exchange as many bytes as DDP, so they
come before recomputation, which costs a third more arithmetic; ZeRO-3 exchanges half as many bytes again; offload
waits for the host's bus. Every rung is judged at micro batch 1: if that fits, the micro batch then grows into the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from headway.config.schema import Auto, StrategyConfig
from headway.errors import PlanError
from headway.facts.schema import ModelShape
from headway.plan.memory import GIB, MemoryRequest, estimate_memory, fits, host_limit_bytes, used_bytes
from headway.plan.schema import CompressionPlan, MemoryItem, MemoryPlan, StrategyPlan

# DeepSpeed's own defaults, in elements; written out because they changed between releases.
_BUCKET = 500_000_000
_PREFETCH = 50_000_000
_PERSISTENCE = 100_000
_MOST_PROCESSES = 65536


@dataclass(frozen=True)
class Rung:
    """One setting of the ladder."""

    strategy: StrategyPlan
    activation_checkpointing: bool

    @property
    def label(self) -> str:
        return self.strategy.label + (" +activation checkpointing" if self.activation_checkpointing else "")


@dataclass(frozen=True)
class Choice:
    """The chosen setting, why, and the rejected ones with their reasons, in the ladder's order."""

    rung: Rung
    reasons: dict[str, str]
    rejected: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class StrategyRequest:
    """What was asked for and the machine it is asked of."""

    asked: StrategyConfig
    checkpointing: bool | Auto
    memory: MemoryRequest  # strategy and activation_checkpointing are replaced rung by rung

    @property
    def on_gpu(self) -> bool:
        return self.memory.cluster.device == "cuda"


def choose_strategy(request: StrategyRequest) -> Choice:
    """The first rung that fits; one that the user fixed is kept even if it does not (a check says so).

    Raises:
        PlanError: nothing of the whole ladder fits.
    """
    rungs = list(_rungs(request))
    rejected: list[tuple[str, str]] = []
    for rung in rungs:
        memory = _estimate(request, rung)
        if fits(memory, request.memory.cluster, request.memory.processes):
            return Choice(rung, _reasons(request, rung, memory, rejected), tuple(rejected))
        rejected.append((rung.label, misfit(memory, request)))
    if request.asked.kind != "auto":  # the user's own word: kept, and the memory check says red
        last = rungs[-1]
        reasons = {"strategy": f"strategy.kind; it does not fit: {rejected[-1][1]}"}
        return Choice(last, reasons | _checkpointing_reason(request, last), tuple(rejected))
    raise _nothing_fits(request, rejected)


def _estimate(request: StrategyRequest, rung: Rung) -> MemoryPlan:
    setting = replace(request.memory, strategy=rung.strategy, activation_checkpointing=rung.activation_checkpointing)
    return estimate_memory(setting)


def misfit(memory: MemoryPlan, request: StrategyRequest) -> str:
    """'93.4 of 72.0 GiB; activations 41.2'; on the host where that is what is too small."""
    cluster = request.memory.cluster
    on_device = used_bytes(memory, cluster)
    too_large = on_device > memory.device_limit_bytes
    shared = cluster.device == "cpu"  # the device's memory is the host's

    def counted(item: MemoryItem) -> int:
        return item.device_bytes * (shared or too_large) + item.host_bytes * (shared or not too_large)

    largest = max(memory.items, key=counted)
    size = f"; {largest.name} {counted(largest) / GIB:.1f}" if counted(largest) else ""
    if too_large:
        return f"{on_device / GIB:.1f} of {memory.device_limit_bytes / GIB:.1f} GiB{size}"
    host = memory.host_bytes * min(request.memory.processes, cluster.devices_per_host)
    return f"host memory {host / GIB:.1f} of {host_limit_bytes(cluster) / GIB:.1f} GiB{size}"


def _rungs(request: StrategyRequest) -> Iterator[Rung]:
    """The settings to try, in order."""
    for strategies in _steps(request):
        for on in _checkpointing_choices(request.checkpointing):
            for strategy in strategies:
                yield Rung(strategy, on)


def _checkpointing_choices(asked: bool | Auto) -> tuple[bool, ...]:
    return (False, True) if asked == "auto" else (asked,)


def _steps(request: StrategyRequest) -> Iterator[list[StrategyPlan]]:
    """Groups of equal cost: within one, every strategy is tried without checkpointing, then every one with."""
    asked = request.asked
    kind, stage = asked.kind, asked.stage
    optimizer, parameters = asked.offload.optimizer == "cpu", asked.offload.parameters == "cpu"
    processes = request.memory.processes
    if kind not in ("auto", "deepspeed"):
        yield [_without_knobs(kind, asked) if ":" not in kind else _users_own(asked)]
        return

    def zero(number: int, *, states: bool = False, weights: bool = False) -> StrategyPlan:
        return deepspeed(request, number, offload_optimizer=states, offload_parameters=weights)

    if stage is not None:
        yield [zero(stage, states=optimizer, weights=parameters)]
    elif optimizer or parameters:
        for number in (3,) if parameters else (2, 3):
            yield [zero(number, states=optimizer, weights=parameters)]
    else:
        plain = [_without_knobs("single" if processes == 1 else "ddp")] if kind == "auto" else []
        yield plain + ([zero(1), zero(2)] if processes > 1 or kind == "deepspeed" else [])
        if processes > 1 or kind == "deepspeed":
            yield [zero(3)]
        if request.on_gpu:  # on a CPU the host's memory is the same memory
            yield [zero(2, states=True)]
            yield [zero(3, states=True)]
            yield [zero(3, states=True, weights=True)]


def _without_knobs(kind: str, asked: StrategyConfig | None = None) -> StrategyPlan:
    return StrategyPlan(kind=kind, compression=_compression(asked) if asked else None)


def _compression(asked: StrategyConfig) -> CompressionPlan | None:
    wanted = asked.gradient_compression
    if wanted is None:
        return None
    return CompressionPlan(
        kind=wanted.kind, rank=wanted.rank, start_step=wanted.start_step, error_feedback=wanted.error_feedback
    )


def _users_own(asked: StrategyConfig) -> StrategyPlan:
    """A user's own class gets everything that was written; its memory is planned as DDP's."""
    return StrategyPlan(
        kind=asked.kind,
        stage=asked.stage or 0,
        offload_optimizer=asked.offload.optimizer == "cpu",
        offload_parameters=asked.offload.parameters == "cpu",
        reduce_bucket_elements=asked.reduce_bucket or 0,
        allgather_bucket_elements=asked.allgather_bucket or 0,
        prefetch_bucket_elements=asked.prefetch_bucket or 0,
        persistence_threshold_elements=asked.persistence_threshold or 0,
        overlap_comm=asked.overlap_comm is True,
        compression=_compression(asked),
    )


def deepspeed(
    request: StrategyRequest, stage: int, *, offload_optimizer: bool, offload_parameters: bool
) -> StrategyPlan:
    """A ZeRO stage with every bucket written out: the user's value, else DeepSpeed's default, at most the model."""
    asked, shape = request.asked, request.memory.shape
    partitioned = stage > 0
    return StrategyPlan(
        kind="deepspeed",
        stage=stage,
        offload_optimizer=offload_optimizer,
        offload_parameters=offload_parameters,
        reduce_bucket_elements=(asked.reduce_bucket or bucket(_BUCKET, shape)) if partitioned else 0,
        allgather_bucket_elements=(asked.allgather_bucket or bucket(_BUCKET, shape)) if partitioned else 0,
        prefetch_bucket_elements=(asked.prefetch_bucket or bucket(_PREFETCH, shape)) if stage == 3 else 0,
        persistence_threshold_elements=(asked.persistence_threshold or _PERSISTENCE) if stage == 3 else 0,
        overlap_comm=_overlap(request) if partitioned else False,
        quantized_weights=asked.quantized_weights if stage == 3 else False,
        quantized_gradients=asked.quantized_gradients if stage == 3 else False,
        secondary_partition=asked.secondary_partition if stage == 3 else 1,
    )


def bucket(default: int, shape: ModelShape) -> int:
    """Elements, even: DeepSpeed refuses an odd all-gather bucket at stages 1 and 2."""
    size = min(default, shape.trainable_parameters)
    return size + size % 2


def _overlap(request: StrategyRequest) -> bool:
    return request.on_gpu if request.asked.overlap_comm == "auto" else request.asked.overlap_comm


def _reasons(
    request: StrategyRequest, rung: Rung, memory: MemoryPlan, rejected: list[tuple[str, str]]
) -> dict[str, str]:
    figures = f"{used_bytes(memory, request.memory.cluster) / GIB:.1f} of {memory.device_limit_bytes / GIB:.1f} GiB"
    if request.asked.kind not in ("auto", "deepspeed") or request.asked.stage is not None:
        why = "strategy.kind"
    elif not rejected:
        why = f"the simplest, and it fits: {figures} at micro batch 1"
    else:
        why = f"the first that fits: {figures} at micro batch 1 ({len(rejected)} did not)"
    reasons = {"strategy": why} | _checkpointing_reason(request, rung)
    return (
        reasons | {f"strategy.rejected.{label}": f"{label}: {text}" for label, text in rejected} | _knobs(request, rung)
    )


def _checkpointing_reason(request: StrategyRequest, rung: Rung) -> dict[str, str]:
    key = "numerics.activation_checkpointing"
    if request.checkpointing != "auto":
        return {key: "train.activation_checkpointing"}
    if rung.activation_checkpointing:
        return {key: "needed: without it nothing as simple fits; it costs about a third more arithmetic"}
    return {key: "not needed: it fits without"}


def _knobs(request: StrategyRequest, rung: Rung) -> dict[str, str]:
    """Why DeepSpeed's knobs are as they are."""
    strategy, asked = rung.strategy, request.asked
    if strategy.kind != "deepspeed" or strategy.stage == 0:
        return {}
    capped = f"DeepSpeed's default of {_BUCKET:.0e} elements, at most the model's parameters"
    ahead = f"DeepSpeed's default of {_PREFETCH:.0e} elements, at most the model's parameters"
    told = "train on a CPU: measured without effect" if not request.on_gpu else "hides the exchange behind backward"
    reasons = {
        "reduce_bucket_elements": "strategy.reduce_bucket" if asked.reduce_bucket else capped,
        "allgather_bucket_elements": "strategy.allgather_bucket" if asked.allgather_bucket else capped,
        "overlap_comm": told if asked.overlap_comm == "auto" else "strategy.overlap_comm",
    }
    if strategy.stage == 3:
        reasons["prefetch_bucket_elements"] = "strategy.prefetch_bucket" if asked.prefetch_bucket else ahead
        kept = "strategy.persistence_threshold" if asked.persistence_threshold else "DeepSpeed's default"
        reasons["persistence_threshold_elements"] = kept
    return {f"strategy.{name}": reason for name, reason in reasons.items()}


def _nothing_fits(request: StrategyRequest, rejected: list[tuple[str, str]]) -> PlanError:
    lines = "\n".join(f"    {label}: {text}" for label, text in rejected)
    fix = _what_would_fit(request)
    return PlanError(f"the model fits no strategy on this machine:\n{lines}", fix=fix)


def _what_would_fit(request: StrategyRequest) -> str:
    """The fewest such devices, with offload and without; or what one device would need."""
    base = request.memory
    smaller = "a smaller model, a shorter train.sequence" + ", a smaller train.micro_batch" * (base.micro_batch > 1)
    if found := _fewest(request):
        return "; ".join([*found, f"or {smaller}"])
    rung, memory = min(
        ((rung, _estimate(request, rung)) for rung in _rungs(request)),
        key=lambda found: _missing(found[1], request),
    )
    needed = f"{used_bytes(memory, base.cluster) / GIB:.1f} GiB of memory"
    if base.cluster.device == "cpu":
        return f"{rung.label} would need {needed} for each of {base.processes} processes; or {smaller}, fewer processes"
    host = memory.host_bytes * min(base.processes, base.cluster.devices_per_host)
    return f"{rung.label} would need {needed} a device and {host / GIB:.0f} GiB a host; or {smaller}"


def _fewest(request: StrategyRequest) -> list[str]:
    """On how many more such devices it fits, doubling: on the fewest, and on the fewest without offload."""
    found: list[str] = []
    processes = request.memory.processes
    while request.on_gpu and processes < _MOST_PROCESSES:
        processes *= 2
        larger = replace(request, memory=replace(request.memory, processes=processes))
        for rung in _rungs(larger):
            memory = _estimate(larger, rung)
            if not fits(memory, request.memory.cluster, processes):
                continue
            figures = f"{memory.device_bytes / GIB:.1f} of {memory.device_limit_bytes / GIB:.1f} GiB each"
            if not found or not rung.strategy.offload_optimizer:
                found.append(f"{rung.label} fits on {processes} devices like these ({figures})")
            if not rung.strategy.offload_optimizer:
                return found
            break
    return found


def _missing(memory: MemoryPlan, request: StrategyRequest) -> tuple[int, int]:
    """Bytes that it lacks on the device, which cannot be bought alone, and on the host."""
    cluster = request.memory.cluster
    host = memory.host_bytes * min(request.memory.processes, cluster.devices_per_host)
    on_host = host - host_limit_bytes(cluster) if cluster.device == "cuda" else 0
    return max(0, used_bytes(memory, cluster) - memory.device_limit_bytes), max(0, on_host)
