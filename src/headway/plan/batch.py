"""The batch solver: the global batch is the contract; micro batch and accumulation follow from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.config.schema import TrainConfig
from headway.errors import PlanError, Problem
from headway.plan.schema import BatchPlan
from headway.units import Amount, format_count

SUGGESTIONS = 3


@dataclass(frozen=True)
class BatchRequest:
    """What the solver needs.

    micro_batch, accumulation: what the user fixed, else None.
    largest_micro_batch: the largest that fits the memory (at least 1).
    limit_reason: why it is the largest, for the plan's reasons.
    """

    global_sequences: int
    data_parallel_size: int
    micro_batch: int | None = None
    accumulation: int | None = None
    largest_micro_batch: int = 2**31
    limit_reason: str = "largest that fits"
    powers_of_two: bool = False


@dataclass(frozen=True)
class BatchSolution:
    plan: BatchPlan
    reasons: dict[str, str]


def sequences_of(train: TrainConfig, processes: int) -> tuple[int, str]:
    """(whole sequences of one step, reason); `auto` is what the processes hold together."""
    if train.global_batch != "auto":
        return global_sequences(train.global_batch, train.sequence)
    micro = 1 if train.micro_batch == "auto" else train.micro_batch
    steps = 1 if train.accumulation == "auto" else train.accumulation
    return micro * steps * processes, f"micro batch {micro} x accumulation {steps} x {processes} processes"


def global_sequences(batch: Amount, sequence: int) -> tuple[int, str]:
    """(whole sequences of one step, reason). Tokens go to the nearest whole number of sequences, at least one."""
    if batch.unit == "sequences":
        if batch.value != int(batch.value):
            rule = "must be a whole number of sequences"
            fix = f"train.global_batch={math.ceil(batch.value)} sequences"
            raise PlanError(problems=[Problem("train.global_batch", rule, f"{batch.value:g} sequences", fix)])
        return int(batch.value), "train.global_batch"
    exact = batch.value / sequence
    count = max(1, math.floor(exact + 0.5))
    tokens = count * sequence
    if tokens == batch.value:
        return count, f"train.global_batch: {format_count(batch.value)} tokens / {sequence}"
    drift = 100 * (tokens - batch.value) / batch.value
    rounding = f"train.global_batch: {format_count(batch.value)} tokens / {sequence} = {exact:.2f}, to the nearest"
    return count, f"{rounding} whole number ({tokens} tokens, {drift:+.2f} %)"


def accumulation_for(total: int, micro_batch: int, ranks: int) -> int:
    """The fewest micro batches of every rank that cover `total` sequences."""
    return -(-total // (micro_batch * ranks))


def solve_batch(request: BatchRequest) -> BatchSolution:
    """Micro batch and accumulation such that accumulation x micro_batch x ranks covers the global batch.

    No micro step is empty on every rank; what does not divide is filled with samples of zero count.

    Raises:
        PlanError: what the user fixed cannot be: the nearest legal pairs are given as overrides.
    """
    if request.micro_batch is not None:
        micro, why = request.micro_batch, "train.micro_batch"
    elif request.accumulation is not None:
        total, ranks = request.global_sequences, request.data_parallel_size
        micro, why = -(-total // (request.accumulation * ranks)), "what train.accumulation leaves"
    else:
        micro, why = choose_micro_batch(request)
    plan = _plan(request, micro)
    if request.accumulation not in (None, plan.accumulation):
        raise _impossible(request)
    reasons = {"batch.micro_batch": why, "batch.accumulation": _accumulation_reason(plan)}
    return BatchSolution(plan, reasons)


def _plan(request: BatchRequest, micro: int) -> BatchPlan:
    total, ranks = request.global_sequences, request.data_parallel_size
    return BatchPlan(
        global_sequences=total,
        micro_batch=micro,
        accumulation=accumulation_for(total, micro, ranks),
        data_parallel_size=ranks,
    )


def _accumulation_reason(plan: BatchPlan) -> str:
    parts = f"{plan.global_sequences} sequences / ({plan.micro_batch} x {plan.data_parallel_size})"
    fill = plan.slots - plan.global_sequences
    return parts + (f", rounded up: {fill} of {plan.slots} places hold a filler of zero count" if fill else "")


def choose_micro_batch(request: BatchRequest) -> tuple[int, str]:
    """(micro batch, reason): the largest that fits and leaves no filler.

    Where none above half of the largest divides, the one with the least filler. Powers of two are taken first on GPUs,
    among equals: their kernels tile in them.
    """
    share = -(-request.global_sequences // request.data_parallel_size)  # sequences of the fullest rank
    cap = min(request.largest_micro_batch, share)
    candidates = range(cap // 2 + 1, cap + 1)

    def fill(micro: int) -> int:
        return _plan(request, micro).slots - request.global_sequences

    def rank(micro: int) -> tuple[int, bool, int]:
        odd = request.powers_of_two and micro & (micro - 1) != 0 and micro != share
        return fill(micro), odd, -micro

    best = min(candidates, key=rank)
    if best == share:
        return best, "a rank's whole share of the global batch"
    if best == cap:
        return best, request.limit_reason
    fillers = f"{fill(best)} fillers, not {fill(cap)}" if fill(best) else "no filler"
    return best, f"{request.limit_reason} is {cap}, but {best} leaves {fillers}"


def _impossible(request: BatchRequest) -> PlanError:
    total, ranks = request.global_sequences, request.data_parallel_size
    micro, accumulation = request.micro_batch, request.accumulation
    if micro is None:
        rule = (
            f"{total} sequences on {ranks} ranks cannot be cut into {accumulation} micro batches without an empty one"
        )
    else:
        covered = micro * (accumulation or 1) * ranks
        rule = (
            f"micro_batch {micro} x accumulation {accumulation} x {ranks} ranks = {covered} "
            f"{'does not cover' if covered < total else 'leaves a whole micro batch empty on every rank for'} "
            f"a global batch of {total} sequences"
        )
    fix = "\n         ".join(nearest_legal(request))
    return PlanError(problems=[Problem("train.accumulation", rule, accumulation, fix)])


def nearest_legal(request: BatchRequest, count: int = SUGGESTIONS) -> list[str]:
    """The legal settings closest to what was asked, nearest first, as overrides to paste.

    Distance is the sum of the changes' logarithms: half and double are equally far. The last one keeps the pair and
    changes the global batch, and with it what is learnt.
    """
    total, ranks = request.global_sequences, request.data_parallel_size
    asked_micro = request.micro_batch or max(1, -(-total // ((request.accumulation or 1) * ranks)))
    asked_steps = request.accumulation or accumulation_for(total, asked_micro, ranks)
    share = -(-total // ranks)
    found: list[tuple[float, str]] = []
    for micro in range(1, min(share, request.largest_micro_batch) + 1):
        steps = accumulation_for(total, micro, ranks)
        distance = abs(math.log(micro / asked_micro)) + abs(math.log(steps / asked_steps))
        filler = micro * steps * ranks - total
        note = f"  ({micro} x {steps} x {ranks} = {total + filler}" + (f", {filler} fillers)" if filler else ")")
        found.append((distance, f"train.micro_batch={micro} train.accumulation={steps}{note}"))
    texts = [text for _, text in sorted(found)[:count]]
    other = asked_micro * asked_steps * ranks
    if other != total and request.micro_batch is not None:
        texts.append(f"train.global_batch='{other} sequences'  (keeps the pair, and changes what a step learns)")
    return texts
