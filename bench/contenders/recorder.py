"""What every peer writes down: when it got how far, and what each step read. One file a rank, one JSON object a line.

{"mark": "imported", "time": unix seconds}
{"step": 1, "time": unix seconds at its end, "tokens": real tokens, "targets": tokens that were predicted, "loss": nats}
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

SEQUENCE = 256
MICRO_BATCH = 4
CLIP = 1.0
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


@dataclass(frozen=True)
class Job:
    """What the parent asks of a peer. data: a folder made by corpus.py. variant: see each script."""

    data: Path
    out: Path
    steps: int
    variant: str

    @staticmethod
    def from_arguments() -> Job:
        parser = argparse.ArgumentParser()
        parser.add_argument("--data", type=Path, required=True)
        parser.add_argument("--out", type=Path, required=True)
        parser.add_argument("--steps", type=int, required=True)
        parser.add_argument("--variant", default="")
        return Job(**vars(parser.parse_args()))

    def model_config(self) -> dict[str, object]:
        return json.loads((self.data / "model.json").read_text())

    def windows(self) -> np.ndarray:
        """uint16 [windows, SEQUENCE + 1], full of text, no borders."""
        return np.load(self.data / "windows.npy", mmap_mode="r")

    def documents(self) -> list[np.ndarray]:
        """Token ids of each ragged document."""
        offsets = np.load(self.data / "offsets.npy")
        return np.split(np.load(self.data / "tokens.npy"), offsets[1:-1])


class Recorder:
    def __init__(self, job: Job):
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self._file = (job.out / f"rank-{self.rank}.jsonl").open("w")
        self._write({"mark": "python", "time": psutil.Process().create_time()})

    def mark(self, name: str) -> None:
        self._write({"mark": name, "time": time.time()})

    def step(self, step: int, tokens: int, targets: int, loss: float) -> None:
        line = {"step": step, "time": time.time(), "tokens": int(tokens), "targets": int(targets), "loss": float(loss)}
        self._write(line)

    def _write(self, line: dict[str, object]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def deepspeed_without_compiling() -> None:
    """The first process group on a CPU would otherwise compile an op for 100 seconds; gloo does the same work."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def require_deepspeed(model: Any) -> None:
    """Peers fall back to DDP without a word where they think that DeepSpeed is not wanted."""
    import deepspeed

    if not isinstance(model, deepspeed.DeepSpeedEngine) or model.zero_optimization_stage() != 2:
        raise SystemExit(f"this runs {type(model).__name__}, not DeepSpeed ZeRO-2")


def require_ddp(model: Any) -> None:
    from torch.nn.parallel import DistributedDataParallel

    if not isinstance(model, DistributedDataParallel):
        raise SystemExit(f"this runs {type(model).__name__}, not DDP")


def zero_2() -> dict[str, object]:
    """DeepSpeed's ZeRO-2 with its default buckets, at most as large as the model; the same for every contender."""
    return {
        "stage": 2,
        "reduce_bucket_size": 10_000_000,
        "allgather_bucket_size": 10_000_000,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "reduce_scatter": True,
    }
