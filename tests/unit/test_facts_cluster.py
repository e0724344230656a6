"""The machine: a nvidia-smi of our own on PATH, and container limits of both cgroup versions in a folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from headway.errors import PlanError
from headway.facts import cluster
from headway.facts.cluster import cpu_cores, host_memory_bytes, list_gpus, probe_cluster, torch_has_cuda, visible_gpus
from headway.facts.hardware import devices, find_peak, peak_flops

MIB = 1024**2
A100 = "0, GPU-aaaa-1, NVIDIA A100-SXM4-80GB, 81920, 8.0"
SMALLER = "1, GPU-bbbb-2, NVIDIA A100-SXM4-40GB, 40960, 8.0"
V100 = "0, GPU-cccc-3, Tesla V100-SXM2-16GB, 16384, 7.0"


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a nvidia-smi that prints these lines first on PATH; torch counts as a CUDA build."""

    def put(*lines: str, knows_compute_cap: bool = True, exit_code: int = 0) -> None:
        refuse = "" if knows_compute_cap else 'case "$*" in *compute_cap*) exit 2;; esac\n'
        script = tmp_path / "nvidia-smi"
        text = "\n".join(lines)
        script.write_text(f"#!/bin/sh\n{refuse}cat <<'END'\n{text}\nEND\nexit {exit_code}\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(cluster, "torch_has_cuda", lambda: True)
    return put


def test_gpus_are_found(nvidia_smi) -> None:
    nvidia_smi(A100, A100.replace("0,", "1,", 1).replace("aaaa", "dddd"))
    facts = probe_cluster()
    assert (facts.device, facts.devices_per_host, facts.device_memory_bytes) == ("cuda", 2, 81920 * MIB)
    assert facts.device_name == "NVIDIA A100-SXM4-80GB"
    assert facts.bf16
    assert facts.matmul_flops == 312e12
    assert probe_cluster("cpu").device == "cpu"


def test_mixed_gpus_are_planned_as_the_smallest(nvidia_smi) -> None:
    nvidia_smi(A100, SMALLER)
    facts = probe_cluster("cuda")
    assert facts.device_memory_bytes == 40960 * MIB
    assert facts.devices_per_host == 2


def test_no_bf16_before_ampere(nvidia_smi) -> None:
    nvidia_smi(V100)
    facts = probe_cluster()
    assert not facts.bf16
    assert facts.matmul_flops == 15.7e12


def test_an_old_driver_does_not_know_compute_capabilities(nvidia_smi) -> None:
    nvidia_smi(A100.rpartition(",")[0], knows_compute_cap=False)
    assert list_gpus()[0].capability == (8, 0)
    assert probe_cluster().bf16


@pytest.mark.parametrize("lines", [[], [A100]])
def test_a_failing_driver_is_no_gpu(nvidia_smi, lines: list[str]) -> None:
    nvidia_smi(*lines, exit_code=9)
    assert probe_cluster().device == "cpu"
    with pytest.raises(PlanError, match=r"launch.device is cuda, but nvidia-smi lists no GPU"):
        probe_cluster("cuda")


def test_a_cpu_build_of_torch_cannot_use_them(nvidia_smi, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(A100)
    monkeypatch.setattr(cluster, "torch_has_cuda", lambda: False)
    assert probe_cluster().device == "cpu"
    with pytest.raises(PlanError, match="torch is a CPU build"):
        probe_cluster("cuda")


def test_memory_that_the_driver_does_not_tell_is_the_hosts(nvidia_smi) -> None:
    nvidia_smi("0, GPU-e, NVIDIA GB10, [N/A], 12.1")
    assert probe_cluster().device_memory_bytes == host_memory_bytes()


def test_cuda_visible_devices(nvidia_smi, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(A100, SMALLER)
    gpus = list_gpus()
    assert visible_gpus(gpus, None) == gpus
    assert visible_gpus(gpus, "1,0") == gpus[::-1]
    assert visible_gpus(gpus, "GPU-bbbb") == [gpus[1]]
    assert visible_gpus(gpus, "0,7,1") == [gpus[0]]  # CUDA stops at the first that it does not know
    assert visible_gpus(gpus, "") == visible_gpus(gpus, "-1") == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert probe_cluster().device_memory_bytes == 40960 * MIB
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert probe_cluster().device == "cpu"


def test_this_machine_without_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = probe_cluster()
    assert facts.device == "cpu"
    assert facts.matmul_flops is None  # measured by the worker
    assert 1 <= facts.devices_per_host <= (psutil.cpu_count() or 1)
    assert 0 < facts.host_memory_bytes == facts.device_memory_bytes <= psutil.virtual_memory().total


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes limit files and the list of this process's groups; returns nothing."""

    def put(groups: str, files: dict[str, str]) -> None:
        (tmp_path / "self").write_text(groups)
        for name, text in files.items():
            path = tmp_path / "mount" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        monkeypatch.setattr(cluster, "CGROUP_SELF", tmp_path / "self")
        monkeypatch.setattr(cluster, "CGROUP_MOUNT", tmp_path / "mount")

    monkeypatch.setattr(cluster.os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    return put


def test_cgroup_2_limits_at_any_level(cgroup) -> None:
    cgroup(
        "0::/pod/job\n",
        {"pod/job/memory.max": "max", "pod/memory.max": str(3 * MIB), "pod/job/cpu.max": "350000 100000"},
    )
    assert host_memory_bytes() == 3 * MIB
    assert cpu_cores() == 3


def test_cgroup_2_inside_a_container_sees_its_own_mount(cgroup) -> None:
    cgroup("0::/\n", {"memory.max": str(5 * MIB), "cpu.max": "50000 100000"})
    assert host_memory_bytes() == 5 * MIB
    assert cpu_cores() == 1  # half a core is still one


def test_cgroup_1_limits(cgroup) -> None:
    cgroup(
        "5:memory:/job\n4:cpu,cpuacct:/job\n",
        {
            "memory/job/memory.limit_in_bytes": str(7 * MIB),
            "memory/memory.limit_in_bytes": "9223372036854771712",
            "cpu/job/cpu.cfs_quota_us": "200000",
            "cpu/job/cpu.cfs_period_us": "100000",
            "cpu/cpu.cfs_quota_us": "-1",
            "cpu/cpu.cfs_period_us": "100000",
        },
    )
    assert host_memory_bytes() == 7 * MIB
    assert cpu_cores() == 2


def test_no_limits(cgroup) -> None:
    cgroup("0::/\n", {"memory.max": "max", "cpu.max": "max 100000"})
    assert host_memory_bytes() == psutil.virtual_memory().total
    assert cpu_cores() == 16


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("__version__ = '2.13.0+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", True),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n", True),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", False),
        ("nothing = 1\n", None),
    ],
)
def test_torchs_build_is_read_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, expected: bool | None
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "torch" / "version.py").write_text(version)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert torch_has_cuda() is expected


@pytest.mark.parametrize(
    ("name", "bf16"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100-PCIE-40GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA GeForce RTX 3090", 71e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("NVIDIA B200", 2250e12),
        ("Tesla V100-SXM2-16GB", None),
        ("Tesla T4", None),
        ("NVIDIA T400 4GB", None),
        ("NVIDIA L4000", None),
    ],
)
def test_datasheet_peaks(name: str, bf16: float | None) -> None:
    assert peak_flops(name, "bf16") == bf16


def test_peaks_by_precision() -> None:
    assert peak_flops("Tesla V100-SXM2-16GB", "fp16") == 125e12
    assert peak_flops("Tesla T4", "fp32") == 8.1e12
    assert find_peak("an unknown device") is None
    for _, device in devices():
        peak = device.peak
        assert peak.fp32 <= max(peak.tf32, peak.fp32) <= peak.fp16, device.name
        assert (peak.bf16 > 0) == (peak.capability >= (8, 0)), device.name
