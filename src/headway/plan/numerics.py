"""Precision, TF32, the attention kernel and the export's dtype."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

from headway.config.schema import RunConfig
from headway.facts.hardware import peak_flops
from headway.facts.schema import ClusterFacts
from headway.plan.ledger import Ledger

Precision = Literal["fp32", "bf16", "fp16"]
Attention = Literal["sdpa", "eager", "flash", "flex"]


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


def flash_attention_installed() -> bool:
    return importlib.util.find_spec("flash_attn") is not None


def plan_attention(
    config: RunConfig, cluster: ClusterFacts, model_config: dict[str, Any], precision: Precision, ledger: Ledger
) -> Attention:
    """The attention kernel that keeps documents apart: flash, else flex on GPUs; SDPA with a document mask on a CPU."""
    asked, key, run_key = config.model.attention, "model.attention", "model.attention"
    capped = bool(model_config.get("attn_logit_softcapping"))
    if asked != "auto":
        _check_attention(asked, cluster, capped=capped, ledger=ledger)
        ledger.because(key, run_key)
        return asked
    if cluster.device == "cpu":
        if capped:
            ledger.because(key, "the model caps its attention scores, which SDPA cannot")
            return "eager"
        ledger.because(key, "SDPA with a document mask: flash, flex and varlen have no backward on a CPU")
        return "sdpa"
    if cluster.bf16 and precision != "fp32" and flash_attention_installed():
        ledger.because(key, "the package flash_attn is installed, and the precision is 16-bit")
        return "flash"
    missing = "flash_attn is not installed" if precision != "fp32" else "flash attention is 16-bit only"
    ledger.because(key, f"{missing}; flex attention compiles a kernel that skips other documents")
    return "flex"


def _check_attention(asked: Attention, cluster: ClusterFacts, *, capped: bool, ledger: Ledger) -> None:
    key = "model.attention"
    if cluster.device == "cpu" and asked in ("flash", "flex"):
        ledger.refuse(key, asked, "has no backward pass on a CPU", "model.attention=sdpa, or leave it out")
    elif asked == "flash" and not flash_attention_installed():
        fix = "pip install flash-attn, or model.attention=flex"
        ledger.refuse(key, asked, "needs the package flash_attn, which is not installed", fix)
    elif asked == "sdpa" and capped:
        rule = "cannot cap attention scores, which this model needs (attn_logit_softcapping)"
        ledger.refuse(key, asked, rule, "model.attention=eager, or leave it out")


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
