"""Accelerators: datasheet and measured rates, memory, links. One row of devices.csv a device; dense rates, not sparse.

Rates are TFLOP/s (1e12 a second), links and bandwidths GB/s (1e9 bytes a second, one way), memory GiB as torch sees it.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal

from headway.errors import PlanError, Problem
from headway.facts.schema import ClusterFacts

Precision = Literal["fp32", "tf32", "bf16", "fp16"]

DEVICES = Path(__file__).with_name("devices.csv")
GIB = 1024**3
# Best matrix product over datasheet peak, where no one published a measured one, by compute capability: A100 0.87 and
# 0.81 (PCIe), H100 0.80, B200 0.78 in the same table. Consumer and inference cards are held by their power limit.
_MEASURED_SHARE = {6: 0.80, 7: 0.80, 8: 0.85, 9: 0.80, 10: 0.78, 12: 0.80}
# The same for fp32 outside of the matrix units, which neither power nor operands hold back.
_FP32_SHARE = 0.93


@dataclass(frozen=True)
class Peak:
    """Dense TFLOP/s of one device, and the compute capability; 0 where the device cannot do it."""

    fp32: float
    tf32: float
    bf16: float
    fp16: float
    capability: tuple[int, int]


@dataclass(frozen=True)
class Device:
    """One accelerator, or one CPU process. Peaks are dense; `matmul_*` what its best matrix product reaches.

    memory_bytes: as torch sees it. units: multiprocessors, each of which computes one tile of a product. link: to its
    neighbours on the same host, one way; host_link: to the host's memory; network: its share of the host's network.
    """

    name: str
    memory_bytes: int
    bandwidth_bytes_per_second: float
    peak: Peak
    fp8_peak_flops: float
    matmul_flops: dict[str, float]  # fp32, tf32, bf16, fp16, fp8 -> FLOP/s; absent where it cannot do it
    link_bytes_per_second: float
    host_link_bytes_per_second: float
    network_bytes_per_second: float
    units: int = 0
    kind: Literal["cuda", "cpu"] = "cuda"
    source: str = ""

    def peak_flops(self, precision: str) -> float:
        """Datasheet FLOP/s at a precision, the denominator of utilisation; 0 where the device cannot do it."""
        return self.fp8_peak_flops if precision == "fp8" else getattr(self.peak, precision) * 1e12


@dataclass(frozen=True)
class Machine:
    """Alike devices on alike hosts, and what joins them. Host figures are of one host."""

    device: Device
    devices_per_host: int
    hosts: int = 1
    host_memory_bytes: int = 0
    host_bandwidth_bytes_per_second: float = 200e9
    network_bytes_per_second: float | None = None  # a device's share of the network; None: the device's usual one

    @property
    def devices(self) -> int:
        return self.devices_per_host * self.hosts

    @property
    def across_bytes_per_second(self) -> float:
        """What one device can send to another host, one way."""
        return self.network_bytes_per_second or self.device.network_bytes_per_second


@cache
def devices() -> tuple[tuple[tuple[str, ...], Device], ...]:
    """(the words that name it, the device), the most specific name first."""
    with DEVICES.open(encoding="utf-8", newline="") as file:
        return tuple((tuple(row["words"].split(";")), _device(row)) for row in csv.DictReader(file))


def _device(row: dict[str, str]) -> Device:
    def number(key: str) -> float:
        return float(row[key] or 0)

    major, _, minor = row["capability"].partition(".")
    peak = Peak(number("fp32"), number("tf32"), number("bf16"), number("fp16"), (int(major), int(minor)))
    share = number("measured_bf16") / peak.bf16 if number("measured_bf16") else _MEASURED_SHARE[int(major)]
    rates = {"fp32": peak.fp32, "tf32": peak.tf32, "bf16": peak.bf16, "fp16": peak.fp16, "fp8": number("fp8")}
    measured = {name: share * rate * 1e12 for name, rate in rates.items() if rate}
    measured["fp32"] = _FP32_SHARE * peak.fp32 * 1e12
    if number("measured_fp8"):
        measured["fp8"] = number("measured_fp8") * 1e12
    return Device(
        name=row["name"],
        memory_bytes=int(number("memory_gib") * GIB),
        bandwidth_bytes_per_second=number("bandwidth_gbs") * 1e9,
        peak=peak,
        fp8_peak_flops=number("fp8") * 1e12,
        matmul_flops=measured,
        link_bytes_per_second=number("link_gbs") * 1e9,
        host_link_bytes_per_second=number("pcie_gbs") * 1e9,
        network_bytes_per_second=number("network_gbs") * 1e9,
        units=int(row["units"]),
        source=row["source"],
    )


_SIZE = re.compile(r"(?<![a-z0-9.])(\d+)\s*(?:gib|gb|g)(?![a-z0-9])")
# Of a name: another model than the one without it.
_OTHER_MODELS = frozenset(["ti", "super", "laptop", "mobile"])
# Words that makers and clouds put beside a model.
_DECORATION = frozenset(
    [
        "nvidia",
        "amd",
        "tesla",
        "quadro",
        "geforce",
        "instinct",
        "gpu",
        "tensor",
        "core",
        "graphics",
        "hbm",
        "nvl",
        "oam",
        "sxm",
        "pcie",
        "e",
        "w",
        "generation",
    ]
)
# A size in a name over the memory of the row, which is what torch sees of it in GiB: a maker's GB count more, and so
# does what the card keeps for itself (a T4's 16 are 14.6).
_SAME_SIZE = (0.98, 1.105)


def _plain(name: str) -> tuple[str, list[int]]:
    """(' rtx 4090 ', [24]) of 'RTX4090-24GB': words, with letters and digits apart, and the sizes in GB."""
    lower = name.lower()
    sizes = [int(size) for size in _SIZE.findall(lower)]
    parted = re.sub(r"(?<=[a-z])(?=\d)|(?<=\d)(?=[a-z])", " ", _SIZE.sub(" ", lower))
    return f" {' '.join(re.sub(r'[^a-z0-9]+', ' ', parted).split())} ", sizes


def _of_size(device: Device, sizes: list[int]) -> bool:
    """Whether the device has one of these sizes; a name without a size means any."""
    low, high = (bound * device.memory_bytes / GIB for bound in _SAME_SIZE)
    return not sizes or any(low <= size <= high for size in sizes)


def _called(name: str) -> list[Device]:
    """The rows that a name may mean by its words, the most specific first; their sizes are not looked at."""
    text, sizes = _plain(name)
    said = set(text.split())
    bare = {int(word) for word in said if word.isdigit()}  # 'A100 40'
    found: list[Device] = []
    for names, device in devices():
        for wanted in names:
            words, sized = _plain(wanted)
            others = _OTHER_MODELS & said - set(words.split())
            if words in text and not others and set(sized) <= {*sizes, *bare}:
                found.append(device)
                break
    return found


def find_device(name: str) -> Device | None:
    """The row of a device as nvidia-smi, a price list or a table names it; None if it is not there.

    'NVIDIA A100-SXM4-80GB', 'H100-80GB', 'rtx4090', 'H100-96GB(HBM2e,500W)': the words of a row's name, and among such
    rows the one of the size that is named. Without a size the usual one is meant.
    """
    found, (_, sizes) = _called(name), _plain(name)
    return next((device for device in found if _of_size(device, sizes)), found[0] if found else None)


def require_device(name: str) -> Device:
    """As `find_device`, of exactly the size that is named.

    Raises PlanError with the near names, and how to describe a device that is not in the table.
    """
    found, (_, sizes) = find_device(name), _plain(name)
    if found is not None and _of_size(found, sizes):
        return found
    fix = "or describe it in a cluster file (memory, bandwidth, matmul rate, links)"
    if found is not None:
        known = ", ".join(f"{device.name} ({device.memory_bytes / GIB:.0f} GiB)" for device in _of_model(name))
        rule = "is in the table, but with another memory"
        raise PlanError(problems=[Problem("device", rule, name, f"{known}; {fix}")])
    listed = ", ".join(_near(name)) or ", ".join(device.name for _, device in devices())
    raise PlanError(problems=[Problem("device", "is not in the table of devices", name, f"one of {listed}; {fix}")])


def _of_model(name: str) -> list[Device]:
    """All rows of the model that a name means, of whatever size and make, the nearest in memory first."""
    said, sizes = _plain(name)
    models = {words for names, device in devices() if device in _called(name) for words, _ in map(_plain, names)}
    shortest = min((words for words in models if words in said), key=len)
    rows = [device for names, device in devices() if any(shortest in _plain(wanted)[0] for wanted in names)]
    return sorted(rows, key=lambda device: abs(device.memory_bytes / GIB - sizes[0]))[:4]


def unknown_words(name: str) -> list[str]:
    """Words of a device's name that stand in no row of that model: a slip. Numbers beside a model are passed."""
    meant = _called(name)
    rows = [(names, device) for names, device in devices() if device in meant]
    known = {word for names, device in rows for text in (*names, device.name) for word in _plain(text)[0].split()}
    words = _plain(name)[0].split()
    return [word for word in words if not word.isdigit() and word not in known | _DECORATION]


def other_make(name: str, device: Device) -> bool:
    """Whether a name says NVL, PCIe or SXM, and the row that is taken for it is of another make."""
    makes = re.compile(r"\b(nvl|pcie|sxm)\b")
    said, own = set(makes.findall(_plain(name)[0])), set(makes.findall(_plain(device.name)[0]))
    return bool(own and said - own)


def _near(name: str) -> list[str]:
    """Devices that are spelt like this one, by any of their names."""
    spelt = {word: device.name for names, device in devices() for word in (*names, device.name.lower())}
    close = get_close_matches(_SIZE.sub(" ", name.lower()).strip(" -_"), spelt, n=6, cutoff=0.5)
    return list(dict.fromkeys(spelt[word] for word in close))[:3]


def find_peak(device_name: str) -> Peak | None:
    """The datasheet's peaks of a device as nvidia-smi names it ("NVIDIA A100-SXM4-80GB"); None if unknown."""
    found = find_device(device_name)
    return found.peak if found else None


def peak_flops(device_name: str, precision: Precision) -> float | None:
    """Dense FLOP/s of one device at a precision; None where unknown or not supported."""
    peak = find_peak(device_name)
    rate = getattr(peak, precision) if peak else 0
    return rate * 1e12 or None


def machine_of(cluster: ClusterFacts) -> Machine:
    """The machine that the probes found, with the table's rates for its GPUs; a CPU gets those of `cpu_device`."""
    if cluster.device == "cpu":
        cores = cluster.devices_per_host
        device = cpu_device(cluster.device_memory_bytes // max(cores, 1), cluster.matmul_flops)
        return Machine(device, cores, cluster.hosts, cluster.host_memory_bytes, 20e9)
    device = replace(require_device(cluster.device_name), memory_bytes=cluster.device_memory_bytes)
    return Machine(device, cluster.devices_per_host, cluster.hosts, cluster.host_memory_bytes)


def cpu_device(memory_bytes: int, matmul_flops: float | None = None, bandwidth: float = 10e9) -> Device:
    """One CPU process as a device; rates are of one core, from a calibration where there was one.

    Without: 50 GFLOP/s, a core with AVX2 near 2 GHz with two fused products a cycle.
    """
    rate = matmul_flops or 50e9
    return Device(
        name="CPU",
        memory_bytes=memory_bytes,
        bandwidth_bytes_per_second=bandwidth,
        peak=Peak(rate / 1e12, rate / 1e12, rate / 1e12, 0, (0, 0)),
        fp8_peak_flops=0,
        matmul_flops={"fp32": rate, "tf32": rate, "bf16": rate},
        link_bytes_per_second=1e9,
        host_link_bytes_per_second=bandwidth,
        network_bytes_per_second=1.2e9,
        kind="cpu",
        source="one core",
    )
