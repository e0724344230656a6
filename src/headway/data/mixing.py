"""Several sources by weight: which windows an epoch reads.

An epoch is so long that every window of every source is read at least once at the weights asked for, but at most
LONGEST times all windows. Within it, source s gets weight_s of the windows, to one window; its windows are read
equally often, to one time. The order of an epoch's windows is the run's own (headway.data.order), as without weights:
a position is one integer, and what was read of each source a function of it (headway.data.ledger).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headway.data.order import windows_at
from headway.errors import DataError, Problem

LONGEST = 8


def epoch_counts(counts: Sequence[int], weights: Sequence[float]) -> list[int]:
    """How many windows of each source an epoch reads; their sum is its length."""
    shares = np.asarray(weights, dtype=np.float64) / sum(weights)
    longest = max(-(-count // share) for count, share in zip(counts, shares, strict=True))
    length = int(min(longest, LONGEST * sum(counts)))
    exact = shares * length
    found = np.floor(exact).astype(np.int64)
    left = length - int(found.sum())
    found[np.argsort(found - exact, kind="stable")[:left]] += 1  # the largest remainders
    return found.tolist()


def mixture_of(counts: Sequence[int], weights: Sequence[float], seed: int) -> np.ndarray:
    """int64: the windows of an epoch, source after source; `counts` windows of each stand one source after the other.

    Raises DataError naming each source that has no window.
    """
    empty = [number for number, count in enumerate(counts) if count == 0]
    if empty:
        keys = ["data.train" if number == 0 else f"data.more[{number - 1}]" for number in empty]
        rule, fix = "has a weight, but no training window can be made of it", "give it more text, or leave it out"
        raise DataError(problems=[Problem(key, rule, fix=fix) for key in keys])
    parts: list[np.ndarray] = []
    first = 0
    for number, (count, wanted) in enumerate(zip(counts, epoch_counts(counts, weights), strict=True)):
        # As often as it takes, each time all of them but the last, which takes the first of a shuffled order.
        parts.append(first + windows_at(seed + number, 0, wanted, count))
        first += count
    return np.concatenate(parts).astype(np.int64)
