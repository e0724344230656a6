"""Micro batches from what a user's script has: a dataset, whose order Headway draws, or a loader with its own.

Both go on at a resume where they stood, to the bit: a dataset's order is a function of the position, and a loader is
read again up to there, in random states of its own, which training's neither see nor disturb.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, default_collate

from headway.checkpoint.random_state import RandomState, capture_random_state, restore_random_state
from headway.data.loader import LoaderSpec, rank_windows
from headway.errors import DataError, PlanError, Problem, UserError
from headway.parallel.collectives import exchange, world
from headway.plan.schema import Plan
from headway.task.seam import Batch
from headway.train.given import rows_of

MakeBatch = Callable[..., Batch]  # (content, stand_in=False)


@dataclass
class Feed:
    """`steps` yields each step's micro batches; waited_seconds: spent on making them."""

    steps: Iterator[list[Batch]]
    waited_seconds: float = 0.0

    def __iter__(self) -> Iterator[list[Batch]]:
        while True:
            began = time.monotonic()
            micro_batches = next(self.steps, None)
            self.waited_seconds += time.monotonic() - began
            if micro_batches is None:
                return
            yield micro_batches


def feed(source: Any, collate: Callable[[list[Any]], Any] | None, plan: Plan, done: int, make: MakeBatch) -> Feed:
    """The micro batches of every step after `done`. Raises UserError for what is neither a dataset nor a loader."""
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, DataLoader):
        return Feed(_from_dataset(source, collate or default_collate, plan, done, make))
    if collate is not None:
        rule = "is for a dataset; a loader makes its own batches"
        raise UserError(problems=[Problem("collate", rule, fix="drop it")])
    if not isinstance(source, Iterable):
        rule = f"{type(source).__name__} is neither a dataset (a length and items by number) nor can it be read in turn"
        raise UserError(problems=[Problem("batches", rule, fix="give a dataset, or a loader of batches")])
    _require_shared(source)
    return Feed(_from_loader(source, plan, done, make))


def _from_dataset(
    dataset: Any, collate: Callable[[list[Any]], Any], plan: Plan, done: int, make: MakeBatch
) -> Iterator[list[Batch]]:
    if not len(dataset):
        raise DataError(problems=[Problem("batches", "the dataset is empty")])
    rank, size = world()
    spec = LoaderSpec(
        seed=plan.numerics.seed,
        windows=len(dataset),
        global_sequences=plan.batch.global_sequences,
        micro_batch=plan.batch.micro_batch,
        accumulation=plan.batch.accumulation,
        rank=rank,
        world=size,
        first_step=done + 1,
        last_step=plan.schedule.steps,
    )
    for step in range(spec.first_step, spec.last_step + 1):
        lane = Lane(plan.numerics.seed, 1, step, rank)
        with lane.entered():
            rows = rank_windows(spec, step)
            kept = [[row for row in part if row is not None] for part in rows]
            # A rank without a row of its own computes one all the same: its peers wait for its gradients.
            micro_batches = [make(collate([dataset[row] for row in part or [0]]), stand_in=not part) for part in kept]
        yield micro_batches


def _from_loader(loader: Iterable[Any], plan: Plan, done: int, make: MakeBatch) -> Iterator[list[Batch]]:
    lane = Lane(plan.numerics.seed, 2, 0, world()[0])
    items = _endless(loader, plan.numerics.seed, lane)
    for _ in range(done * plan.batch.accumulation):
        lane.next(items)
    for step in range(done + 1, plan.schedule.steps + 1):
        contents = [lane.next(items) for _ in range(plan.batch.accumulation)]
        if step == done + 1:
            _require_rows(contents, plan)
        yield [make(content) for content in contents]


def _endless(loader: Iterable[Any], seed: int, lane: Lane) -> Iterator[Any]:
    """Epoch after epoch, each from a random state of its own."""
    epoch = 0
    while True:
        lane.restart(seed, 2, epoch, world()[0])
        sampler = getattr(loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)  # pyright: ignore[reportOptionalMemberAccess]
        found = False
        for item in loader:
            found = True
            yield item
        if not found:
            rule = "the loader gave no batch" + (" a second time: an iterator can be read once only" if epoch else "")
            raise DataError(problems=[Problem("batches", rule, fix="give the loader itself, with whole batches")])
        epoch += 1


def _require_shared(loader: Any) -> None:
    """Raises UserError where every rank would read all of the data, each in an order of its own."""
    if world()[1] == 1 or not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return
    if isinstance(loader.sampler, RandomSampler | SequentialSampler):
        rule = f"each of the {world()[1]} ranks would read all of the data"
        fix = "give the dataset itself, run.batches(dataset, collate), or a loader with a DistributedSampler"
        raise UserError(problems=[Problem("batches", rule, fix=fix)])


def _require_rows(contents: list[Any], plan: Plan) -> None:
    """The plan's global batch is what a step learns from. Raises PlanError where the loader gives other numbers."""
    rows = [rows_of(content) for content in contents]
    found = [count for ranks in exchange(rows) for count in ranks]
    if any(count is None for count in found):
        return
    total, batch = sum(count or 0 for count in found), plan.batch
    if total != batch.global_sequences:
        rule = f"the loader's batches have {total} rows a step, and the plan's global batch is {batch.global_sequences}"
        fix = f"batch_size={batch.micro_batch} (run.plan.batch.micro_batch), or another train.global_batch"
        raise PlanError(problems=[Problem("train.global_batch", rule, fix=fix)])


class Lane:
    """Random states beside those of training: what runs inside draws from these, and they go on where they stood."""

    def __init__(self, *seed: int):
        self._inside = False
        self.restart(*seed)

    def restart(self, *seed: int) -> None:
        """Begin anew at the seed; inside too."""
        before = capture_random_state()
        state = np.random.SeedSequence(list(seed)).generate_state(3)
        random.seed(int(state[0]))
        np.random.seed(int(state[1]))
        torch.default_generator.manual_seed(int(state[2]))  # the host's alone
        self._state: RandomState = capture_random_state()
        if not self._inside:
            restore_random_state(before)

    @contextmanager
    def entered(self) -> Iterator[None]:
        before = capture_random_state()
        restore_random_state(self._state)
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            self._state = capture_random_state()
            restore_random_state(before)

    def next(self, items: Iterator[Any]) -> Any:
        with self.entered():
            return next(items)
