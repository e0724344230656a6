"""How large the proof's runs are on this machine, and how close its losses must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.facts.schema import ClusterFacts

GIB = 2**30
STEPS = 30
CHECKPOINT_EVERY = 8
KILL_AT = 12  # behind one checkpoint, before the next

# (least memory of the GPU, hidden, layers): 1.3 B, 0.7 B, 0.3 B and 0.15 B parameters with 16 bytes of state each.
_LARGE = ((70, 2048, 24), (36, 1536, 24), (18, 1024, 24), (0, 768, 20))


@dataclass(frozen=True)
class Scale:
    """close: largest mean difference of two loss curves that must be one. exact: a resumed run equals to the bit."""

    on_gpu: bool
    processes: int
    precision: str
    close: float
    exact: bool
    sections: dict[str, Any]
    large: dict[str, Any]


def scale_for(cluster: ClusterFacts) -> Scale:
    """Small runs on GPUs; on a CPU tiny ones, two processes, fp32."""
    if cluster.device == "cpu":
        sections = _sections("${stdlib}/json/*.py ${stdlib}/email/*.py ${stdlib}/xml/**/*.py", (64, 2, 4), 64, 2, 2)
        return Scale(False, 2, "fp32", 1e-4, True, sections, {})
    processes = cluster.devices_per_host
    precision = "bf16" if cluster.bf16 else "fp32"
    sections = _sections("${stdlib}/*.py ${stdlib}/*/*.py", (512, 8, 8), 1024, 4, processes)
    hidden, layers = next((h, n) for least, h, n in _LARGE if cluster.device_memory_bytes >= least * GIB)
    large = _sections("${stdlib}/*.py ${stdlib}/*/*.py", (hidden, layers, hidden // 128), 2048, 8, processes)
    del large["train"]["micro_batch"]  # the plan chooses it by the memory that it expects
    large["train"]["length"] = "12 steps"
    return Scale(True, processes, precision, 0.05 if cluster.bf16 else 1e-3, False, sections, large)


def _sections(
    files: str, model: tuple[int, int, int], sequence: int, micro_batch: int, processes: int
) -> dict[str, Any]:
    """A run file without its strategy. model: hidden, layers, heads. Two micro batches a step, so both are summed."""
    hidden, layers, heads = model
    return {
        "model": {
            "config": {"arch": "llama", "hidden": hidden, "layers": layers, "heads": heads},
            "tokenizer": {"train": "2k"},
        },
        "data": {"train": {"paths": files.split()}, "eval": "2%"},
        "train": {
            "length": f"{STEPS} steps",
            "sequence": sequence,
            "global_batch": f"{processes * micro_batch * 2} sequences",
            "micro_batch": micro_batch,
            "eval_every": None,
        },
        "optimizer": {"lr": 1e-3, "warmup": "4 steps"},
        "checkpoint": {"every": None, "at_end": False},
        "export": {"at_end": False},
        "launch": {"processes": processes, "timeout": "2 min"},
    }
