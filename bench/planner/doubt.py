"""Rows that are not judged: what they leave out, what no estimate models, and what cannot have been measured so."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headway.plan.setting import EstimateRequest
from headway.plan.steptime import model_flops_per_token

Row = dict[str, str]

# Beyond these a figure is a slip of the pen.
_MOST_DEVICES, _MOST_SEQUENCE, _LONGEST_BATCH = 1_000_000, 100_000_000, 1_000_000
# What a row may say that changes its memory or time in a way that is not counted.
_NOT_MODELLED = (
    (("offload", "strategy"), r"nvme", "offload to NVMe"),
    (("optimizer", "strategy"), r"galore|apollo|shampoo|\bsoap\b", "its optimizer"),
    (("act_ckpt",), r"every|1/\d|of the layers|layers? \d", "checkpointing of some of the layers"),
    (("precision",), r"fp4", "4-bit arithmetic"),
)


class NotJudged(Exception):
    """Why a row says too little to be judged."""


@dataclass(frozen=True)
class Measured:
    """A row that can be judged."""

    row: Row
    request: EstimateRequest
    memory_bytes: float | None
    memory_kind: str  # allocated | reserved | device
    tokens_per_second: float | None  # of one device
    out_of_memory: bool

    @property
    def source(self) -> str:
        return self.row.get("source") or "?"

    @property
    def family(self) -> str:
        return self.row.get("family") or self.source

    @property
    def data_parallel(self) -> bool:
        """In the domain that Headway runs: neither tensor nor pipeline parallel."""
        degrees = self.request.degrees
        return degrees.tensor == 1 and degrees.pipeline == 1


def refuse_unmodelled(row: Row) -> None:
    """Raises NotJudged for what the estimates do not know."""
    for keys, pattern, what in _NOT_MODELLED:
        if re.search(pattern, " ".join(row.get(key, "") for key in keys).lower()):
            raise NotJudged(f"{what} is not modelled")


def refuse_implausible(request: EstimateRequest) -> None:
    """Raises NotJudged for sizes that no run has."""
    sizes = (request.degrees.devices, request.sequence, request.micro_batch * request.accumulation)
    if any(size > most for size, most in zip(sizes, (_MOST_DEVICES, _MOST_SEQUENCE, _LONGEST_BATCH), strict=True)):
        raise NotJudged("its batch, sequence or number of GPUs is beyond any run's")


def refuse_misstated(made: Measured) -> None:
    """Raises NotJudged where more is computed than the device can: no setting does, so something is misstated."""
    rate = made.tokens_per_second
    if rate and rate * least_flops_per_token(made.request) > fastest(made.request):
        raise NotJudged("its speed is above its device's peak: a setting or a figure of it is misstated")


def least_flops_per_token(request: EstimateRequest) -> float:
    """What cannot be left out: half of attention's pairs under the causal mask, no gradients of frozen weights."""
    shape = request.shape
    flops = model_flops_per_token(request) - 6.0 * shape.layers * shape.heads * shape.head_dim * request.sequence
    forward = flops / 3
    passes = (2 if shape.adapter else 3) + (1 if request.checkpointing == "full" else 0)
    return forward * passes


def fastest(request: EstimateRequest) -> float:
    """FLOP/s of the datasheet: no setting computes more."""
    device = request.machine.device
    kinds = ("fp32", "tf32") if request.precision == "fp32" else (request.precision, "bf16", "fp16")
    return max(device.peak_flops(kind) for kind in kinds)
