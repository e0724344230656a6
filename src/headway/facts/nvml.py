"""GPUs as the driver's own library sees them (NVML, by the optional package nvidia-ml-py): health, load, links."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Bits of nvmlDeviceGetCurrentClocksEventReasons that mean the device is held back (nvml.h).
THROTTLES = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


@dataclass(frozen=True)
class GpuState:
    """One device at this moment. None where the driver does not tell."""

    index: int
    name: str
    memory_bytes: int
    free_bytes: int
    processes: tuple[int, ...] = ()  # pids that compute on it
    uncorrected_errors: int | None = None  # ECC, since the last reset
    rows_pending: bool = False  # memory rows wait for a reset to be replaced
    throttled: tuple[str, ...] = ()
    temperature_celsius: int | None = None
    links: tuple[bool, ...] = ()  # NVLinks that are up or down


@dataclass(frozen=True)
class Nvml:
    """The driver and its devices; `problem` says why nothing could be asked."""

    driver: str = ""
    cuda: str = ""  # the newest CUDA release that the driver runs, "12.8"
    gpus: tuple[GpuState, ...] = ()
    problem: str = ""


def read_nvml() -> Nvml:
    """Ask NVML once. Never raises: a missing package or driver is a `problem`."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return Nvml(problem="the package nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
    except Exception as error:  # NVMLError: a class of the module that is asked here
        return Nvml(problem=f"NVML does not start: {error}")
    try:
        count = int(nvml.nvmlDeviceGetCount())
        version = int(_asked(nvml.nvmlSystemGetCudaDriverVersion, 0) or 0)
        return Nvml(
            driver=_text(_asked(nvml.nvmlSystemGetDriverVersion, "")),
            cuda=f"{version // 1000}.{version % 1000 // 10}" if version else "",
            gpus=tuple(_device(nvml, index) for index in range(count)),
        )
    except Exception as error:
        return Nvml(problem=f"NVML does not answer: {error}")
    finally:
        nvml.nvmlShutdown()


def _device(nvml: Any, index: int) -> GpuState:
    device: Any = nvml.nvmlDeviceGetHandleByIndex(index)
    memory: Any = nvml.nvmlDeviceGetMemoryInfo(device)
    running: Any = _asked(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(device), ())
    errors = _asked(lambda: int(nvml.nvmlDeviceGetTotalEccErrors(device, 1, 0)), None)  # uncorrected, volatile
    rows: Any = _asked(lambda: nvml.nvmlDeviceGetRemappedRows(device), (0, 0, 0, 0))
    reasons = int(_asked(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(device), 0) or 0)
    links: list[bool] = []
    for link in range(18):  # NVML_NVLINK_MAX_LINKS
        state = _asked(lambda link=link: bool(nvml.nvmlDeviceGetNvLinkState(device, link)), None)
        if state is None:
            break
        links.append(state)
    return GpuState(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(device)),
        memory_bytes=int(memory.total),
        free_bytes=int(memory.free),
        processes=tuple(int(process.pid) for process in running),
        uncorrected_errors=errors,
        rows_pending=bool(rows[2]),
        throttled=tuple(text for bit, text in THROTTLES.items() if reasons & bit),
        temperature_celsius=_asked(lambda: int(nvml.nvmlDeviceGetTemperature(device, 0)), None),
        links=tuple(links),
    )


def _asked(question: Callable[[], Any], otherwise: Any) -> Any:
    """A question that this device or driver may not support."""
    try:
        return question()
    except Exception:
        return otherwise


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
