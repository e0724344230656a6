"""The order of samples is a permutation of each epoch, the same in both forms and on every machine."""

from __future__ import annotations

import numpy as np
import pytest

from headway.data.order import window_at, windows_at

PINNED = [5, 2, 8, 3, 9, 4, 6, 1, 7, 0, 7, 5, 9, 2, 4, 0, 8, 1, 6, 3]
SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 101, 255, 256, 257, 997, 1000, 4095, 4096, 4097, 65_537]


@pytest.mark.parametrize("windows", SIZES)
def test_an_epoch_reads_every_window_once(windows: int) -> None:
    for epoch in range(3):
        read = windows_at(7, epoch * windows, (epoch + 1) * windows, windows)
        assert np.array_equal(np.sort(read), np.arange(windows))


@pytest.mark.parametrize("windows", [1, 2, 3, 10, 64, 997])
def test_both_forms_agree_over_epoch_borders(windows: int) -> None:
    one_by_one = [window_at(3, position, windows) for position in range(3 * windows)]
    assert windows_at(3, 0, 3 * windows, windows).tolist() == one_by_one
    first, last = windows // 2, 2 * windows + windows // 3 + 1
    assert windows_at(3, first, last, windows).tolist() == one_by_one[first:last]


def test_the_order_is_what_it_always_was() -> None:
    # A change here changes the order of every run that is resumed.
    assert [window_at(0, position, 10) for position in range(20)] == PINNED


def test_epochs_and_seeds_differ() -> None:
    windows = 1000
    orders = [tuple(windows_at(seed, e * windows, (e + 1) * windows, windows)) for seed in (0, 1, -1) for e in range(3)]
    assert len(set(orders)) == 9
    for one in orders:
        for other in orders:
            if one is not other:
                # Two random permutations share one place on average; 12 would be one chance in 10^9.
                assert sum(a == b for a, b in zip(one, other, strict=True)) < 12


def test_places_are_even() -> None:
    """Over many seeds each window is first, or follows another, about equally often."""
    windows, seeds = 50, 20_000
    first = np.bincount([window_at(seed, 0, windows) for seed in range(seeds)], minlength=windows)
    expected = seeds / windows
    chi_square = float(((first - expected) ** 2 / expected).sum())
    # 49 degrees of freedom: mean 49, deviation 10.
    assert chi_square < 100
    follows = [window_at(seed, 1, windows) - window_at(seed, 0, windows) for seed in range(2000)]
    assert np.mean([step == 1 for step in follows]) < 0.04


def test_large_orders_need_no_memory() -> None:
    windows = 10**15 + 1
    read = windows_at(5, 10**15 - 3, 10**15 + 5, windows)
    assert read.tolist() == [window_at(5, 10**15 - 3 + n, windows) for n in range(8)]
    assert ((read >= 0) & (read < windows)).all()


def test_no_windows_is_an_error() -> None:
    with pytest.raises(ValueError, match="no window"):
        window_at(0, 0, 0)
    with pytest.raises(ValueError, match="no window"):
        windows_at(0, 0, 5, 0)
    with pytest.raises(ValueError, match="no window"):
        window_at(0, -1, 5)
    assert windows_at(0, 4, 4, 5).tolist() == []
