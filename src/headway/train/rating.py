"""What this machine can do, measured through torch and its process group: `headway calibrate` starts it as ranks.

All ranks measure at the same time, as they compute at the same time. Reads settings-N.json (plans) from the run
directory and writes rates.json there. Nothing is trained that is kept.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.distributed as dist

from headway.data.seam import Sample
from headway.model.source import source_of
from headway.parallel.collectives import barrier, exchange, sum_over_ranks, world
from headway.parallel.seam import Engine
from headway.plan.schema import Plan
from headway.registry import resolve
from headway.run.paths import RunDir
from headway.run.whole import write_whole
from headway.task.own import task_of
from headway.task.seam import Batch
from headway.train import environment
from headway.train.context import RankContext, join, leave, seed_everything
from headway.train.peak import matmul_flops
from headway.train.worker import StopSignals, as_rank

RATES = "rates.json"
SETTING = "setting-{}.json"
_MIB = 1024**2
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_DISK_BYTES = 128 * _MIB
_LINK_BYTES = (4096, 64 * 1024, _MIB, 16 * _MIB, 64 * _MIB)
_COPY_BYTES = {"cpu": 128 * _MIB, "cuda": 1024 * _MIB}  # beyond every cache
_TURN_SECONDS, _MOST_REPEATS = 0.1, 12
_SHORT_SECONDS = 0.15
_AGREED = 0.05


def main(run_dir: str) -> int:
    return as_rank(run_dir, _work)


def _work(run: RunDir, _: StopSignals) -> None:
    plans = [Plan.model_validate_json(path.read_text()) for path in _settings(run)]
    environment.prepare(plans[0].launch.device)
    context = RankContext.from_environment()
    device = join(context, plans[0])
    job = json.loads((run.path / "job.json").read_text())
    found = {
        "process_bytes": max(exchange(psutil.Process().memory_info().rss)),
        "matmul_flops": _slowest(matmul_flops(device, _DTYPES[plans[0].numerics.precision])),
        "copy_bytes_per_second": _slowest(_copy_rate(device)),
        "link": _link(device),
        "host_bytes_per_second": _host_rate(device),
        "disk_bytes_per_second": _disk_rate(Path(job["disk"])) if context.rank == 0 else None,
    }
    barrier()
    found["steps"] = _steps(plans, job["turns"])
    if context.rank == 0:
        write_whole(run.path / RATES, json.dumps(found))
    leave()


def _settings(run: RunDir) -> list[Path]:
    """setting-0.json, setting-1.json, ... in the order of their numbers."""
    return sorted(run.path.glob(SETTING.format("*")), key=lambda path: int(path.stem.partition("-")[2]))


def _slowest(rate: float) -> float:
    """Ranks go at the pace of the slowest."""
    return min(exchange(rate))


def _timed(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median seconds of one call."""
    work()
    seconds: list[float] = []
    for _ in range(repeats):
        _wait(device)
        before = time.perf_counter()
        work()
        _wait(device)
        seconds.append(time.perf_counter() - before)
    return statistics.median(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _copy_rate(device: torch.device) -> float:
    """Bytes read and written a second by a copy that no cache holds."""
    size = _COPY_BYTES[device.type]
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * size / _timed(lambda: target.copy_(source), device, 5)


def _link(device: torch.device) -> list[tuple[int, float]]:
    """(bytes, seconds) of an all-reduce; [] where a rank is alone."""
    if world()[1] == 1:
        return []
    found: list[tuple[int, float]] = []
    for size in _LINK_BYTES:
        tensor = torch.ones(size // 4, dtype=torch.float32, device=device)
        barrier()
        found.append((size, _timed(lambda tensor=tensor: dist.all_reduce(tensor), device, 5 if size > _MIB else 20)))
    return found


def _host_rate(device: torch.device) -> float | None:
    """Bytes a second from pinned host memory to the device; None on a CPU."""
    if device.type != "cuda":
        return None
    source = torch.empty(256 * _MIB, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=device)
    return _slowest(source.numel() / _timed(lambda: target.copy_(source, non_blocking=True), device, 5))


def _disk_rate(folder: Path) -> float | None:
    """Bytes a second that reach the disk; None where it has no room."""
    path = folder / f".headway-rate-{os.getpid()}"
    block = os.urandom(_MIB)
    try:
        with path.open("wb") as file:
            before = time.perf_counter()
            for _ in range(_DISK_BYTES // _MIB):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            return _DISK_BYTES / (time.perf_counter() - before)
    except OSError:
        return None
    finally:
        path.unlink(missing_ok=True)


@dataclass
class _Bench:
    """One setting's engine with a step of random tokens, and how long its steps took."""

    plan: Plan
    engine: Engine
    batches: list[Batch]
    taken: list[float] = field(default_factory=list[float])
    turns: list[float] = field(default_factory=list[float])  # the median of each
    repeats: int = 1  # steps of one turn: a short one is made several times, for it swings the most

    @staticmethod
    def of(plan: Plan) -> _Bench:
        seed_everything(plan.numerics.seed, world()[0])
        task = task_of(plan)
        engine: Engine = resolve("strategy", plan.strategy.kind)().prepare(source_of(plan), task, plan)
        return _Bench(plan, engine, [_batch(plan, task) for _ in range(plan.batch.accumulation)])

    def step(self) -> None:
        barrier()
        before = time.perf_counter()
        self.engine.train_step(self.batches, 1e-4, lambda means, norm: True)
        sum_over_ranks({"stop": 0.0, "save": 0.0, "eval": 0.0}, self.engine.device)  # as the loop does between steps
        _wait(self.engine.device)
        self.taken.append(time.perf_counter() - before)

    def warm_up(self) -> None:
        """Steps that build what later ones find, and tell how many of them make a turn."""
        self.step()
        if self._last() < _SHORT_SECONDS:  # ZeRO-3 goes by what it saw of the first step only from the second on
            self.step()
        self.repeats = max(1, min(_MOST_REPEATS, int(_TURN_SECONDS / self._last())))
        self.taken.clear()

    def turn(self) -> None:
        """Some steps. Of short ones another before them, not counted: it finds every cache filled by the others."""
        if self.repeats > 1:
            self.step()
            self.taken.pop()
        for _ in range(self.repeats):
            self.step()
        self.turns.append(max(exchange(statistics.median(self.taken[-self.repeats :]))))

    def settled(self, least_turns: int) -> bool:
        """Whether its turns agree, or one more has told. The same on all ranks, as steps hold collectives."""
        agreed = max(self.turns) <= (1 + _AGREED) * min(self.turns)
        return len(self.turns) > least_turns or (len(self.turns) == least_turns and agreed)

    def _last(self) -> float:
        return max(exchange(self.taken[-1]))


def _steps(plans: list[Plan], turns: int) -> list[dict[str, Any]]:
    """Median seconds of a real training step of each setting, of the slowest rank.

    The settings take turns, so that load from elsewhere falls on all of them alike.
    """
    benches = [_Bench.of(plan) for plan in plans]
    for bench in benches:
        bench.warm_up()
    unsettled = benches
    while unsettled:
        for bench in unsettled:
            bench.turn()
        unsettled = [bench for bench in unsettled if not bench.settled(turns)]
    found = [{"seconds": max(exchange(statistics.median(each.taken))), "steps": len(each.taken)} for each in benches]
    for bench in benches:
        bench.engine.close()
    return found


def _batch(plan: Plan, task: Any) -> Batch:
    """Windows of random tokens, each one document."""
    sequence, rng = plan.data.sequence, np.random.default_rng(plan.numerics.seed)
    samples = [
        Sample(
            index=index,
            tokens=rng.integers(0, plan.shape.vocab, sequence),
            labels=rng.integers(0, plan.shape.vocab, sequence),
            positions=np.arange(sequence),
            documents=np.zeros(sequence, dtype=np.int64),
        )
        for index in range(plan.batch.micro_batch)
    ]
    return task.collate(samples, sequence)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
