"""Every sample once over the ranks of a step, the same at any number of ranks, and again from any step on."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from headway.data.loader import LoaderSpec, StepLoader, eval_batches, filler, rank_windows
from headway.data.order import window_at
from headway.data.seam import Sample


class Numbered:
    """A sample source of windows that hold their own number."""

    def __init__(self, count: int):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        token = np.array([index], dtype=np.int32)
        return Sample(index, token, token, token * 0, token * 0)


def numbers(samples: Sequence[Sample]) -> list[int]:
    return [sample.index for sample in samples]


def spec_of(rank: int = 0, world: int = 1, **changes: int) -> LoaderSpec:
    settings = {
        "seed": 3,
        "windows": 23,
        "global_sequences": 8,
        "micro_batch": 2,
        "accumulation": 4,
        "first_step": 1,
        "last_step": 7,
    }
    return LoaderSpec(rank=rank, world=world, **settings | changes)


def read(spec: LoaderSpec) -> list[list[list[int]]]:
    loader = StepLoader(Numbered(spec.windows), numbers, spec)
    try:
        return list(loader)
    finally:
        loader.close()


SHAPES = [(1, 8, 1), (1, 2, 4), (2, 4, 1), (2, 2, 2), (2, 1, 4), (3, 1, 3), (3, 3, 1), (3, 2, 2), (4, 2, 1), (4, 3, 1)]


@pytest.mark.parametrize(("world", "micro", "accumulation"), SHAPES)
def test_ranks_read_each_position_of_a_step_once(world: int, micro: int, accumulation: int) -> None:
    shape = {"micro_batch": micro, "accumulation": accumulation}
    ranks = [read(spec_of(rank, world, **shape)) for rank in range(world)]
    for step in range(1, 8):
        steps = [rank[step - 1] for rank in ranks]
        assert all(len(batches) == accumulation for batches in steps)
        assert all(len(batch) == micro for batches in steps for batch in batches)
        read_now = [number for batches in steps for batch in batches for number in batch]
        expected = [window_at(3, position, 23) for position in range((step - 1) * 8, step * 8)]
        assert sorted(n for n in read_now if n >= 0) == sorted(expected)
        assert read_now.count(-1) == world * micro * accumulation - 8


@pytest.mark.parametrize(("world", "micro", "accumulation"), SHAPES)
def test_slots_go_to_ranks_as_documented(world: int, micro: int, accumulation: int) -> None:
    for rank in range(world):
        spec = spec_of(rank, world, micro_batch=micro, accumulation=accumulation)
        for a, rows in enumerate(rank_windows(spec, 3)):
            for m, row in enumerate(rows):
                slot = (a * world + rank) * micro + m
                assert row == (window_at(3, 16 + slot, 23) if slot < 8 else None)


@pytest.mark.parametrize("first", [1, 2, 4, 7])
def test_starting_later_gives_the_tail(first: int) -> None:
    whole = read(spec_of(1, 2, micro_batch=2, accumulation=2))
    assert read(spec_of(1, 2, micro_batch=2, accumulation=2, first_step=first)) == whole[first - 1 :]


def test_nothing_left_to_read() -> None:
    assert read(spec_of(first_step=8)) == []


def test_the_seed_changes_the_order() -> None:
    assert read(spec_of()) != read(spec_of(seed=4))
    assert read(spec_of()) == read(spec_of())


def test_fillers_hold_nothing() -> None:
    empty = filler()
    assert len(empty.tokens) == len(empty.labels) == len(empty.positions) == len(empty.documents) == 0
    assert empty.tokens.dtype == np.int32


def test_batches_that_cannot_hold_a_step_are_refused() -> None:
    with pytest.raises(ValueError, match="4 slots a step cannot hold 8 sequences"):
        StepLoader(Numbered(23), numbers, spec_of(accumulation=2))
    with pytest.raises(ValueError, match="over 23 windows, the source has 22"):
        StepLoader(Numbered(22), numbers, spec_of())


def test_an_error_of_the_thread_reaches_the_consumer() -> None:
    seen: list[int] = []

    def collate(samples: Sequence[Sample]) -> list[int]:
        seen.append(len(samples))
        if len(seen) > 6:
            raise RuntimeError("cannot be collated")
        return numbers(samples)

    loader = StepLoader(Numbered(23), collate, spec_of())
    got = []
    with pytest.raises(RuntimeError, match="cannot be collated"):
        got.extend(loader)
    assert len(got) <= 1  # four batches a step: the second step fails
    loader.close()
    assert not loader._thread.is_alive()


def test_close_ends_a_thread_that_is_ahead() -> None:
    loader = StepLoader(Numbered(23), numbers, spec_of(last_step=10**9))
    steps = iter(loader)
    next(steps)
    loader.close()
    loader.close()
    assert not loader._thread.is_alive()
    assert "loader" not in [thread.name for thread in threading.enumerate()]


def test_only_so_many_steps_are_made_ahead() -> None:
    made: list[int] = []

    def collate(samples: Sequence[Sample]) -> list[int]:
        made.append(1)
        return numbers(samples)

    loader = StepLoader(Numbered(23), collate, spec_of(last_step=1000, prefetch_steps=3))
    while len(made) < 16:
        time.sleep(0.01)
    time.sleep(0.2)
    # Three steps in the queue and one in the thread's hand, four batches each.
    assert len(made) == 16
    loader.close()


def test_waiting_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=itertools.count(step=0.5).__next__)  # half a second between any two looks
    monkeypatch.setattr("headway.data.loader.time", clock)
    loader = StepLoader(Numbered(23), numbers, spec_of(last_step=2))
    assert len(list(loader)) == 2
    loader.close()
    assert loader.waited_seconds == 1.5  # for two steps and for the end


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("micro", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 7, 12, 23])
def test_evaluation_reads_each_window_once(world: int, micro: int, count: int) -> None:
    ranks = [list(eval_batches(Numbered(count), numbers, micro, rank, world)) for rank in range(world)]
    assert len({len(batches) for batches in ranks}) == 1
    assert all(len(batch) == micro for batches in ranks for batch in batches)
    read_windows = [number for batches in ranks for batch in batches for number in batch]
    assert sorted(number for number in read_windows if number >= 0) == list(range(count))
    in_order = [number for round_of in zip(*ranks, strict=True) for batch in round_of for number in batch]
    assert in_order[:count] == list(range(count))
