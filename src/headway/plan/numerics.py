"""Precision, TF32, the attention kernel and the export's dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headway.config.schema import RunConfig
from headway.facts.dropout import drops_attention
from headway.facts.hardware import peak_flops
from headway.facts.schema import ClusterFacts
from headway.plan.ledger import Ledger

Precision = Literal["fp32", "bf16", "fp16"]
Attention = Literal["sdpa", "eager", "flash", "flex"]

_FLASH_HEAD_DIM = 256
_KERNELS = {
    "flash": "variable-length flash attention skips what lies in other documents",
    "flex": "flex attention compiles a kernel that skips other documents",
    "sdpa": "SDPA, document by document or under a mask",
    "eager": "written out, with the whole score matrix",
}


def plan_precision(config: RunConfig, cluster: ClusterFacts, ledger: Ledger) -> Precision:
    """bf16 on GPUs that have it, else fp32. Refuses fp16 on a CPU, and bf16 on GPUs that only emulate it."""
    asked, key = config.train.precision, "numerics.precision"
    if asked == "auto":
        if cluster.device == "cpu":
            ledger.because(key, "fp32 on a CPU: exact, and faster there than 16-bit")
            return "fp32"
        if cluster.bf16:
            ledger.because(key, f"{cluster.device_name} computes bf16, which needs no loss scale")
            return "bf16"
        ledger.because(key, f"{cluster.device_name} has no bf16; fp32 is exact (train.precision=fp16 is faster)")
        return "fp32"
    if asked == "fp16" and cluster.device == "cpu":
        fix = "train.precision=fp32 (exact), or train.precision=bf16 (slow on most CPUs)"
        ledger.refuse("train.precision", "fp16", "cannot be trained on a CPU", fix)
    if asked == "bf16" and cluster.device == "cuda" and not cluster.bf16:
        rule = f"{cluster.device_name} has no bf16 arithmetic"
        ledger.refuse("train.precision", "bf16", rule, "train.precision=fp16, or train.precision=fp32")
    ledger.because(key, "train.precision")
    return asked


def plan_tf32(config: RunConfig, cluster: ClusterFacts, ledger: Ledger) -> bool:
    """Whether fp32 matrix products may use TF32: on where bf16 was good enough anyway, off where fp32 was asked for."""
    asked, key = config.train.tf32, "numerics.tf32"
    if asked != "auto":
        if asked and cluster.device == "cpu":
            ledger.refuse("train.tf32", True, "has no effect on a CPU", "remove it, or write auto")
        ledger.because(key, "train.tf32")
        return asked
    if cluster.device == "cpu" or not cluster.bf16:
        ledger.because(key, "off: the device has no TF32")
        return False
    on = config.train.precision != "fp32"
    ledger.because(key, "on: the rest is 16-bit" if on else "off: train.precision asks for fp32")
    return on


@dataclass(frozen=True)
class AttentionNeeds:
    """What a model asks of an attention kernel."""

    head_dim: int
    capped: bool  # soft-capped scores, as in gemma2
    dropout: bool
    both_ways: bool = False  # an encoder: what follows is attended to as well, padding is not

    @staticmethod
    def of(model_config: dict[str, Any], head_dim: int) -> AttentionNeeds:
        capped = bool(model_config.get("attn_logit_softcapping"))
        return AttentionNeeds(head_dim, capped, drops_attention(model_config))

    def misfit(self, kernel: Attention, cluster: ClusterFacts, precision: Precision) -> str:
        """Why a kernel cannot be used; empty where it can."""
        if kernel in ("flash", "flex") and cluster.device == "cpu":
            return "has no backward pass on a CPU"
        if kernel in ("flash", "flex") and self.both_ways:
            return "is set up for causal attention only"
        if kernel in ("flash", "flex") and self.dropout:
            return "has no dropout, and the model's attention has some"
        if kernel == "flash":
            if precision == "fp32" or not cluster.bf16:
                return "needs 16-bit precision and a GPU of compute capability 8.0 or newer"
            if self.head_dim > _FLASH_HEAD_DIM or self.head_dim % 8:
                return f"takes heads of up to {_FLASH_HEAD_DIM} dimensions in multiples of 8, not {self.head_dim}"
        if kernel in ("flash", "sdpa") and self.capped:
            return "cannot cap attention scores, which this model needs (attn_logit_softcapping)"
        return ""


def plan_attention(
    asked: Attention | Literal["auto"],
    needs: AttentionNeeds,
    cluster: ClusterFacts,
    precision: Precision,
    ledger: Ledger,
) -> Attention:
    """The first kernel that can keep documents apart: on GPUs flash, flex, SDPA with a mask; on a CPU SDPA; else eager.

    Flash is torch's own variable-length kernel: no further package is needed.
    """
    key = "model.attention"
    if asked != "auto":
        if rule := needs.misfit(asked, cluster, precision):
            ledger.refuse(key, asked, rule, "leave it out: the plan chooses one that can")
        ledger.because(key, "model.attention")
        return asked
    order: tuple[Attention, ...] = ("flash", "flex", "sdpa", "eager") if cluster.device == "cuda" else ("sdpa", "eager")
    rejected: list[str] = []
    for kernel in order:
        rule = needs.misfit(kernel, cluster, precision)
        if not rule:
            ledger.because(key, "; ".join([*rejected, _KERNELS[kernel]]))
            return kernel
        rejected.append(f"{kernel} {rule}")
    return "eager"


def plan_export_dtype(config: RunConfig, precision: Precision, ledger: Ledger) -> Precision:
    if config.export.dtype != "auto":
        return config.export.dtype
    ledger.because("export.dtype", f"as the training precision, {precision}")
    return precision


def with_peak(cluster: ClusterFacts, precision: Precision, *, tf32: bool) -> ClusterFacts:
    """The cluster with the peak of the precision that is used, the denominator of MFU. A CPU's is measured later."""
    if cluster.device == "cpu":
        return cluster
    peak = peak_flops(cluster.device_name, "tf32" if precision == "fp32" and tf32 else precision)
    return cluster.model_copy(update={"matmul_flops": peak})
