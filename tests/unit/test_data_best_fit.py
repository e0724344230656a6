"""Whole examples into windows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from headway.data import best_fit as module
from headway.data.best_fit import best_fit


def windows_of(lengths: list[int], room: int) -> list[list[int]]:
    members, windows = best_fit(np.array(lengths, dtype=np.int64), room)
    return [members[a:b].tolist() for a, b in pairwise(windows)]


def test_each_goes_where_it_leaves_the_least_room() -> None:
    assert windows_of([3, 7, 5, 2, 6, 4], 10) == [[1, 0], [4, 5], [2, 3]]
    assert windows_of([10, 10, 1], 10) == [[0], [1], [2]]
    assert windows_of([], 10) == []


@pytest.mark.parametrize("room", [1, 16, 100])
def test_every_example_lies_whole_in_one_window(room: int) -> None:
    lengths = np.random.default_rng(room).integers(1, room + 1, 500)
    found = windows_of(lengths.tolist(), room)
    assert sorted(number for window in found for number in window) == list(range(500))
    assert all(0 < lengths[window].sum() <= room for window in found)
    assert found == windows_of(lengths.tolist(), room)


def test_it_is_tight_and_no_worse_than_in_turn() -> None:
    lengths = np.random.default_rng(0).lognormal(4.0, 0.8, 5000).astype(int).clip(1, 512)
    in_turn, left = 0, 0
    for length in lengths.tolist():
        if length > left:
            in_turn, left = in_turn + 1, 512
        left -= length
    found = len(windows_of(lengths.tolist(), 512))
    least = -(-int(lengths.sum()) // 512)
    assert found <= 1.01 * least
    assert in_turn > 1.05 * least


def test_chunks_keep_the_order_of_the_data_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(1).integers(1, 40, 300).tolist()
    monkeypatch.setattr(module, "CHUNK", 50)
    found = windows_of(lengths, 64)
    chunks = [{number // 50 for number in window} for window in found]
    assert all(len(chunk) == 1 for chunk in chunks)
    assert [min(chunk) for chunk in chunks] == sorted(min(chunk) for chunk in chunks)
    assert sorted(number for window in found for number in window) == list(range(300))
