"""Samples to the micro batches of each step: the step's number alone says which, at any number of ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Generic, TypeVar

import numpy as np

from headway.data.order import windows_at
from headway.data.seam import Sample, SampleSource

B = TypeVar("B")
# Turns the samples of one micro batch into a batch: `functools.partial(task.collate, sequence=...)`.
Collate = Callable[[Sequence[Sample]], B]

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class LoaderSpec:
    """Steps `first_step` to `last_step` (from 1, both read), `global_sequences` samples each, for one of `world` ranks.

    windows: length of the sample source, over which the order is drawn from `seed`. prefetch_steps: made ahead.
    """

    seed: int
    windows: int
    global_sequences: int
    micro_batch: int
    accumulation: int
    rank: int
    world: int
    first_step: int
    last_step: int
    prefetch_steps: int = 2


def filler() -> Sample:
    """A sample of no tokens, which counts as nothing."""
    nothing = np.empty(0, dtype=np.int32)
    return Sample(-1, nothing, nothing, nothing, nothing)


def rank_windows(spec: LoaderSpec, step: int) -> list[list[int | None]]:
    """The window of every row of this rank's micro batches at `step`; None is a filler.

    Step s reads positions [(s-1) G, s G). Slot j of a step is position (s-1) G + j, a filler from G on; micro step a,
    rank r, row m is slot (a * world + r) * micro + m. So together the ranks read a step's positions once.
    """
    first = (step - 1) * spec.global_sequences
    windows = windows_at(spec.seed, first, first + spec.global_sequences, spec.windows).tolist()
    micro_batches: list[list[int | None]] = []
    for micro_step in range(spec.accumulation):
        slot = (micro_step * spec.world + spec.rank) * spec.micro_batch
        micro_batches.append([windows[j] if j < len(windows) else None for j in range(slot, slot + spec.micro_batch)])
    return micro_batches


class StepLoader(Generic[B]):
    """Iterates over steps: each item is the list of this rank's micro batches. A thread makes them ahead.

    waited_seconds: how long the consumer waited so far. An error of the thread is raised to the consumer.
    """

    def __init__(self, samples: SampleSource, collate: Collate[B], spec: LoaderSpec):
        slots = spec.micro_batch * spec.accumulation * spec.world
        if slots < spec.global_sequences:
            raise ValueError(f"{slots} slots a step cannot hold {spec.global_sequences} sequences")
        if len(samples) != spec.windows:
            raise ValueError(f"the order is over {spec.windows} windows, the source has {len(samples)}")
        self.samples, self.collate, self.spec = samples, collate, spec
        self.waited_seconds = 0.0
        self._ready: Queue[list[B] | BaseException | None] = Queue(maxsize=max(1, spec.prefetch_steps))
        self._closing = Event()
        self._thread = Thread(target=self._work, name="loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[list[B]]:
        while not self._closing.is_set():
            began = time.monotonic()
            item = self._ready.get()
            self.waited_seconds += time.monotonic() - began
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """End the thread; what it made ahead is dropped. May be called twice."""
        self._closing.set()
        while self._thread.is_alive():
            self._drain()
            self._thread.join(_POLL_SECONDS)

    def _drain(self) -> None:
        try:
            while True:
                self._ready.get_nowait()
        except Empty:
            return

    def _work(self) -> None:
        try:
            for step in range(self.spec.first_step, self.spec.last_step + 1):
                if not self._put(self.micro_batches(step)):
                    return
            self._put(None)
        except BaseException as error:  # whatever it is, the training loop must end with it
            self._put(error)

    def micro_batches(self, step: int) -> list[B]:
        """This rank's micro batches of one step, made here and now, whatever was read before."""
        return [self._batch(rows) for rows in rank_windows(self.spec, step)]

    def _batch(self, rows: list[int | None]) -> B:
        return self.collate([filler() if row is None else self.samples[row] for row in rows])

    def _put(self, item: list[B] | BaseException | None) -> bool:
        while not self._closing.is_set():
            try:
                self._ready.put(item, timeout=_POLL_SECONDS)
            except Full:
                continue
            return True
        return False


def eval_batches(samples: SampleSource, collate: Collate[B], micro_batch: int, rank: int, world: int) -> Iterator[B]:
    """Every window once over the ranks, in order; fillers give all ranks equally many batches."""
    rounds = -(-len(samples) // (micro_batch * world))
    for number in range(rounds):
        first = (number * world + rank) * micro_batch
        rows = range(first, first + micro_batch)
        yield collate([samples[row] if row < len(samples) else filler() for row in rows])
