"""Why nothing is offloaded to NVMe, and what to write instead: one text for the run file and the DeepSpeed JSON."""

from __future__ import annotations

NO_NVME = (
    "is not driven by Headway: its checkpoints and its resume read the states in memory, which offload to NVMe takes "
    "away between steps"
)
NO_NVME_FIX = (
    "states then wait in host memory (12 bytes a parameter, shared by the ranks); where that is too little, more GPUs "
    "under zero-3, or adapter: lora"
)


def no_nvme(value: object) -> object:
    """Raises ValueError for nvme, with the reason and what to write."""
    if isinstance(value, str) and value.strip().lower() == "nvme":
        raise ValueError(f"{NO_NVME}: write cpu; {NO_NVME_FIX}")
    return value
