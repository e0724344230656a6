"""A base in 4 bits: what it takes of memory, and where it cannot be."""

from __future__ import annotations

from headway.config.load import LoadedRun
from headway.config.schema import AdapterConfig
from headway.errors import Problem
from headway.facts.schema import ModelShape
from headway.plan.ledger import Ledger
from headway.plan.schema import AdapterPlan

BLOCK = 64  # weights that share a scale
_BLOCKS = 256  # scales that share one of their own, where they are quantised too
_WEIGHT_BITS = 4

_ON_CPU = "is for GPUs only: a base in 4 bits needs their kernels, and this plan is for a CPU"
_ON_CPU_FIX = "write kind: lora; in bf16 its frozen base takes 2 bytes a weight, under zero-3 shared by all ranks"
# Under ZeRO-3, 4-bit weights travel as numbers that they are not: they stand a copy, and no arithmetic.
_ROUNDED = "cannot be with adapter: qlora: to gather in 8 bits rounds the numbers that 4-bit weights are packed into"
_ZERO, _SUMMED_KEY = "zero_optimization", "stage3_use_all_reduce_for_fetch_params"
_SUMMED = "cannot be with adapter: qlora: a sum over ranks changes the numbers that 4-bit weights are packed into"


def scale_bits(*, double: bool) -> float:
    """Bits of scales that each weight adds to its four.

    One fp32 scale a block of 64 is 32/64 = 0.5. Double quantisation keeps it in 8 bits with an fp32 scale of its own
    for 256 of them, 8/64 + 32/(64 x 256) = 0.127 (Dettmers et al. 2023, 'QLoRA', section 3): 0.37 bits less.
    """
    return 8 / BLOCK + 32 / (BLOCK * _BLOCKS) if double else 32 / BLOCK


def bits_of(adapter: AdapterConfig | None) -> float | None:
    """Bits of a frozen linear weight with its scales; None where it is not quantised."""
    if adapter is None or adapter.kind != "qlora":
        return None
    return _WEIGHT_BITS + scale_bits(double=adapter.double_quantization is not False)


def planned_bits(adapter: AdapterPlan | None) -> float | None:
    """As `bits_of`, of a plan."""
    if adapter is None or adapter.quantization is None:
        return None
    return _WEIGHT_BITS + scale_bits(double=adapter.double_quantization)


def held_bytes(shape: ModelShape, bits: float | None, shards: int = 1) -> tuple[int, int, int]:
    """(weights held in so many bits, their bytes, what dequantising the largest takes, in numbers); zeros for none.

    shards: ranks over which ZeRO-3 spreads the weights; their scales stay whole on each. A backward pass makes one
    whole matrix anew at a time; the largest of a block is taken to be [ffn, hidden].
    """
    if bits is None or shape.adapter is None:
        return 0, 0, 0
    count = shape.adapter.linear_parameters
    scales = int(count * (bits - _WEIGHT_BITS) / 8)
    return count, -(-count * _WEIGHT_BITS // (8 * shards)) + scales, shape.hidden * max(shape.ffn, shape.hidden)


def scale_bytes(shape: ModelShape, bits: float | None) -> int:
    """Of all held weights."""
    count, held, _ = held_bytes(shape, bits)
    return held - count * _WEIGHT_BITS // 8


def gathered_numbers(shape: ModelShape, bits: float | None, element_bytes: int) -> tuple[int, int]:
    """(numbers of the whole model, of its largest layer) as ZeRO-3 gathers them: 4-bit weights packed into numbers."""
    count, _, _ = held_bytes(shape, bits)
    saved = count - count * _WEIGHT_BITS // (8 * element_bytes)
    largest = shape.largest_layer_parameters
    if saved:
        largest = max(largest - saved // max(shape.layers, 1), shape.vocab * shape.hidden)
    return shape.parameters - saved, largest


def refuse_unquantizable(run: LoadedRun, device: str, ledger: Ledger) -> None:
    """Note where a base in 4 bits has no kernels, or would be gathered as other numbers than it is."""
    adapter, strategy = run.config.adapter, run.config.strategy
    if adapter is None or adapter.kind != "qlora":
        return
    if device == "cpu":
        ledger.refuse("adapter.kind", "qlora", _ON_CPU, _ON_CPU_FIX)
    if strategy.quantized_weights:
        ledger.refuse("strategy.quantized_weights", True, _ROUNDED, "leave it out: 4 bits are gathered as 4 bits")
    json = run.deepspeed
    if json is not None and json.passed.get(_ZERO, {}).get(_SUMMED_KEY):
        where = json.passed_from[f"{_ZERO}.{_SUMMED_KEY}"]
        ledger.problems.append(Problem(f"{_ZERO}.{_SUMMED_KEY}", _SUMMED, True, "write false", where))
