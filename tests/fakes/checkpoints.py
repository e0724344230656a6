"""Made-up training state, cut for any number of ranks, and ranks that are threads: for the checkpoint tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from headway.checkpoint.layout import TrainingState
from headway.checkpoint.load import newest_complete, open_reader
from headway.checkpoint.ranks import ALONE, Ranks
from headway.checkpoint.reader import StoredState
from headway.checkpoint.save import Saved, SaveJob, save_checkpoint
from headway.checkpoint.store import LocalStore
from headway.parallel.seam import Slice

Result = TypeVar("Result")
State = dict[tuple[str, str], torch.Tensor]  # (name, kind) -> whole tensor

SHAPES = {"embed.weight": (37, 8), "layer.0.norm": (8,), "layer.0.weight": (8, 24), "scale": (), "nothing": (0, 4)}
KINDS = {"weight": torch.float32, "exp_avg": torch.bfloat16, "exp_avg_sq": torch.float32}


def make_state(seed: int) -> State:
    draw = torch.Generator().manual_seed(seed)
    return {
        (name, kind): torch.randn(shape, generator=draw).to(dtype)
        for name, shape in SHAPES.items()
        for kind, dtype in KINDS.items()
    }


def rank_slices(state: State, rank: int, world: int) -> Iterator[Slice]:
    """This rank's run of each flattened tensor, as ZeRO cuts it: uneven, and empty for some ranks."""
    for (name, kind), tensor in state.items():
        flat = tensor.reshape(-1)
        per_rank = -(-flat.numel() // world)
        start, stop = min(rank * per_rank, flat.numel()), min((rank + 1) * per_rank, flat.numel())
        if start < stop or (flat.numel() == 0 and rank == 0):
            yield Slice(name, kind, tuple(tensor.shape), start, flat[start:stop])


def save_job(step: int, state: State, ranks: Ranks = ALONE, **changes: Any) -> SaveJob:
    training = TrainingState(step=step, position=step * 8, tokens=step * 1000, scalars={"optimizer_step": float(step)})
    job = SaveJob(training, rank_slices(state, ranks.rank, ranks.world), None, keep=3)
    return replace(job, **changes)


def save(store: LocalStore, step: int, **changes: Any) -> Saved:
    """A checkpoint by one rank, whose state is drawn from the step's number."""
    return save_checkpoint(store, save_job(step, make_state(step), **changes))


def run_ranks(world: int, work: Callable[[Ranks], Result]) -> list[Result | Exception]:
    """`work` on `world` threads that exchange values; what each returned or raised. A rank left waiting fails."""
    barrier = threading.Barrier(world, timeout=30)
    table: list[object] = [None] * world

    def run(rank: int) -> Result | Exception:
        def exchange(value: object) -> list[object]:
            table[rank] = value
            barrier.wait()
            values = list(table)
            barrier.wait()
            return values

        try:
            return work(Ranks(rank, world, exchange))
        except Exception as error:
            return error

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(run, range(world)))


def open_newest(store: LocalStore) -> StoredState:
    return open_reader(store, newest_complete(store))


def assert_holds(reader: StoredState, state: State) -> None:
    """The stored state is this one, to the bit."""
    for (name, kind), tensor in state.items():
        read = reader.read(name, kind, 0, tensor.numel())
        assert read.dtype == tensor.dtype, (name, kind)
        assert torch.equal(read.view(tensor.shape), tensor), (name, kind)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, to prove that nothing in it was touched."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
