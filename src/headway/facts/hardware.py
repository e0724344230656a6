"""Datasheet peaks of common GPUs, the denominator of model FLOPs utilisation. Dense figures, never the sparse ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["fp32", "tf32", "bf16", "fp16"]


@dataclass(frozen=True)
class Peak:
    """Dense TFLOP/s of one device, and the compute capability; 0 where the device cannot do it."""

    fp32: float
    tf32: float
    bf16: float
    fp16: float
    capability: tuple[int, int]


# The most specific name first: "NVIDIA H100 PCIe" must not read the SXM row. Vendors' datasheets, without sparsity.
PEAKS: tuple[tuple[str, Peak], ...] = (
    ("GB200", Peak(80, 1250, 2500, 2500, (10, 0))),
    ("B200", Peak(80, 1125, 2250, 2250, (10, 0))),
    ("GH200", Peak(67, 494.5, 989, 989, (9, 0))),
    ("H200", Peak(67, 494.5, 989, 989, (9, 0))),
    ("H100 NVL", Peak(60, 418, 835, 835, (9, 0))),
    ("H100 PCIe", Peak(51, 378, 756, 756, (9, 0))),
    ("H100", Peak(67, 494.5, 989, 989, (9, 0))),
    ("A100", Peak(19.5, 156, 312, 312, (8, 0))),
    ("A10G", Peak(31.2, 35, 70, 70, (8, 6))),
    ("A10", Peak(31.2, 62.5, 125, 125, (8, 6))),
    ("RTX A6000", Peak(38.7, 77.4, 154.8, 154.8, (8, 6))),
    ("L40S", Peak(91.6, 183, 362, 362, (8, 9))),
    ("L4", Peak(30.3, 60, 121, 121, (8, 9))),
    ("RTX 3090", Peak(35.6, 35.6, 71, 71, (8, 6))),
    ("RTX 4090", Peak(82.6, 82.6, 165.2, 165.2, (8, 9))),
    ("RTX 5090", Peak(104.8, 104.8, 209.5, 209.5, (12, 0))),
    ("V100", Peak(15.7, 0, 0, 125, (7, 0))),
    ("T4", Peak(8.1, 0, 0, 65, (7, 5))),
)


def find_peak(device_name: str) -> Peak | None:
    """The row of a device as nvidia-smi names it ("NVIDIA A100-SXM4-80GB"); None if it is not in the table."""
    words = device_name.lower().replace("-", " ")
    for name, peak in PEAKS:
        wanted = name.lower()
        if f" {wanted} " in f" {words} " or (" " in wanted and wanted in words):
            return peak
    return None


def peak_flops(device_name: str, precision: Precision) -> float | None:
    """Dense FLOP/s of one device at a precision; None where unknown or not supported."""
    peak = find_peak(device_name)
    rate = getattr(peak, precision) if peak else 0
    return rate * 1e12 or None
