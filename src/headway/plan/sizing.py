"""Strategy, micro batch and loss chunk: together they decide the memory, so they are chosen together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.config.schema import TrainConfig
from headway.plan.batch import BatchRequest, solve_batch
from headway.plan.ledger import Ledger
from headway.plan.memory import GIB, MemoryRequest, estimate_memory, fits, loss_chunk_for, used_bytes
from headway.plan.schema import BatchPlan, MemoryPlan
from headway.plan.strategy import Rung

# A CPU's caches are full long before its memory is: more tokens at once cost memory and gain no speed.
CPU_MICRO_BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Sizes:
    batch: BatchPlan
    memory: MemoryPlan
    loss_chunk_tokens: int


def with_micro_batch(request: MemoryRequest, micro_batch: int, train: TrainConfig) -> MemoryRequest:
    """The request at another micro batch, with the loss chunk that goes with it."""
    tokens = micro_batch * request.rows * request.sequence
    asked = train.loss_chunk
    chunk = loss_chunk_for(tokens, request.shape.vocab)[0] if asked == "auto" else asked
    pieces = request.language and request.shape.head != "whole" and chunk < tokens
    return replace(request, micro_batch=micro_batch, loss_chunk_tokens=chunk if pieces else 0)


def first_micro_batch(train: TrainConfig, total: int, processes: int) -> int:
    """What the strategy is judged at: the user's micro batch, what the user's accumulation leaves, or 1."""
    if train.micro_batch != "auto":
        return train.micro_batch
    if train.accumulation != "auto":
        return -(-total // (train.accumulation * processes))
    return 1


def largest_micro_batch(request: MemoryRequest, train: TrainConfig, most: int) -> int:
    """The largest micro batch up to `most` that fits; 1 where none does. Memory grows with it, so bisect."""

    def ok(micro: int) -> bool:
        memory = estimate_memory(with_micro_batch(request, micro, train))
        return fits(memory, request.cluster, request.processes)

    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if ok(middle) else (low, middle - 1)
    return low


def size_batch(base: MemoryRequest, rung: Rung, train: TrainConfig, total: int, ledger: Ledger) -> Sizes:
    """Micro batch, accumulation and loss chunk for the chosen strategy, and the memory that follows."""
    request = replace(base, strategy=rung.strategy, activation_checkpointing=rung.activation_checkpointing)
    on_gpu = request.cluster.device == "cuda"
    most, limit_reason = -(-total // request.processes), "largest that fits"
    if not on_gpu and (by_tokens := max(1, CPU_MICRO_BATCH_TOKENS // (request.rows * request.sequence))) < most:
        most, limit_reason = by_tokens, f"most for {CPU_MICRO_BATCH_TOKENS} tokens at once, enough for a CPU"
    largest = largest_micro_batch(request, train, most)
    solution = solve_batch(
        BatchRequest(
            global_sequences=total,
            data_parallel_size=request.processes,
            micro_batch=None if train.micro_batch == "auto" else train.micro_batch,
            accumulation=None if train.accumulation == "auto" else train.accumulation,
            largest_micro_batch=largest,
            limit_reason=limit_reason if largest == most else "largest that fits",
            powers_of_two=on_gpu,
        )
    )
    sized = with_micro_batch(request, solution.plan.micro_batch, train)
    memory = estimate_memory(sized)
    figures = f"{used_bytes(memory, request.cluster) / GIB:.1f} of {memory.device_limit_bytes / GIB:.1f} GiB"
    ledger.because("batch.micro_batch", f"{solution.reasons['batch.micro_batch']}: {figures}")
    ledger.because("batch.accumulation", solution.reasons["batch.accumulation"])
    ledger.because("numerics.loss_chunk_tokens", _chunk_reason(sized, train))
    return Sizes(solution.plan, memory, sized.loss_chunk_tokens)


def _chunk_reason(request: MemoryRequest, train: TrainConfig) -> str:
    if not request.language:
        return "an output for each label is no logits"
    if request.shape.head == "whole":
        return "this model's head gives the logits of all tokens at once"
    return loss_chunk_for(request.tokens, request.shape.vocab)[1] if train.loss_chunk == "auto" else "train.loss_chunk"
