"""A base in 4 bits: what it takes of memory, and where it cannot be."""

from __future__ import annotations

from headway.config.schema import AdapterConfig, StrategyConfig
from headway.facts.schema import ModelShape
from headway.plan.ledger import Ledger
from headway.plan.schema import AdapterPlan

BLOCK = 64  # weights that share a scale
_BLOCKS = 256  # scales that share one of their own, where they are quantised too

_ON_CPU = "is for GPUs only: a base in 4 bits needs their kernels, and this plan is for a CPU"
_ON_CPU_FIX = "write kind: lora; in bf16 its frozen base takes 2 bytes a weight, under zero-3 shared by all ranks"
# bitsandbytes' Params4bit quantises a whole matrix when it is moved to a device and keeps the scales in an object
# beside it. DeepSpeed's zero.Init partitions a parameter as it is made and knows neither: issue 1249 of bitsandbytes,
# 1844 of PEFT and 5660 of DeepSpeed report whole copies on every rank, and PEFT's guide to parameter offload under
# stage 3 calls the two incompatible. What PEFT documents as working packs 4 bits into a float type and partitions after
# each rank has loaded the base whole: neither the build by slices nor the memory that stage 3 is taken for.
_SHARDED = (
    "cannot be with adapter: qlora: 4-bit weights are quantised matrix by matrix and keep their scales beside them, "
    "which DeepSpeed does not partition; every rank would hold the whole base all the same"
)
_SHARDED_FIX = "strategy=zero-2: about half a byte a weight on each device, and only the adapter has states to spread"


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
    return 4 + scale_bits(double=adapter.double_quantization is not False)


def planned_bits(adapter: AdapterPlan | None) -> float | None:
    """As `bits_of`, of a plan."""
    if adapter is None or adapter.quantization is None:
        return None
    return 4 + scale_bits(double=adapter.double_quantization)


def last_stage(adapter: AdapterPlan | None) -> int:
    """The highest ZeRO stage that the plan may have."""
    return 3 if planned_bits(adapter) is None else 2


def held_bytes(shape: ModelShape, bits: float | None) -> tuple[int, int, int]:
    """(weights held in so many bits, their bytes, what dequantising the largest takes, in numbers); zeros for none.

    A backward pass makes one whole matrix anew at a time; the largest of a block is taken to be [ffn, hidden].
    """
    if bits is None or shape.adapter is None:
        return 0, 0, 0
    count = shape.adapter.linear_parameters
    return count, int(count * bits / 8), shape.hidden * max(shape.ffn, shape.hidden)


def refuse_unquantizable(adapter: AdapterConfig | None, strategy: StrategyConfig, device: str, ledger: Ledger) -> None:
    """Note where a base in 4 bits has no kernels, or could not be spread as the strategy says."""
    if adapter is None or adapter.kind != "qlora":
        return
    if device == "cpu":
        ledger.refuse("adapter.kind", "qlora", _ON_CPU, _ON_CPU_FIX)
    if strategy.offload.parameters != "none":
        ledger.refuse("strategy.offload.parameters", strategy.offload.parameters, _SHARDED, _SHARDED_FIX)
    elif strategy.stage == 3:
        ledger.refuse("strategy.stage", 3, _SHARDED, _SHARDED_FIX)
