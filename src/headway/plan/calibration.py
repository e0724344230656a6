"""Measured steps and sizes to rates: what `headway calibrate` writes into a cluster file, and how a step follows.

seconds = flops / layer_flops + stream_bytes / stream_rate + layers x layer_seconds + parameters / update_rate

fitted to steps of the real engine by least squares on relative errors, no term below zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from headway.plan.work import Work

Terms = tuple[float, float, float, float]


def terms_of(work: Work) -> Terms:
    return work.flops, work.stream_bytes, float(work.layer_passes), work.updated_parameters


def fit_terms(works: Sequence[Work], seconds: Sequence[float]) -> Terms:
    """Seconds of one unit of each term. With four unknowns every subset of terms is tried: the best without a
    negative one is the non-negative least squares solution."""
    rows = [[term / taken for term in terms_of(work)] for work, taken in zip(works, seconds, strict=True)]
    best, lowest = (0.0, 0.0, 0.0, 0.0), float("inf")
    for size in range(1, 5):
        for chosen in combinations(range(4), size):
            found = _solve([[row[column] for column in chosen] for row in rows])
            if found is None or min(found) < 0:
                continue
            full = [0.0] * 4
            for column, value in zip(chosen, found, strict=True):
                full[column] = value
            wrong = sum((sum(a * b for a, b in zip(row, full, strict=True)) - 1) ** 2 for row in rows)
            if wrong < lowest:
                best, lowest = (full[0], full[1], full[2], full[3]), wrong
    return best


def _solve(rows: list[list[float]]) -> list[float] | None:
    """x of least squares |rows x - 1|, by the normal equations; None where they are singular."""
    size = len(rows[0])
    scale = [max(abs(row[i]) for row in rows) or 1.0 for i in range(size)]
    scaled = [[row[i] / scale[i] for i in range(size)] for row in rows]
    matrix = [[sum(row[i] * row[j] for row in scaled) for j in range(size)] for i in range(size)]
    right = [sum(row[i] for row in scaled) for i in range(size)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(matrix[r][i]))
        if abs(matrix[pivot][i]) < 1e-9:
            return None
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        right[i], right[pivot] = right[pivot], right[i]
        for r in range(size):
            if r != i:
                factor = matrix[r][i] / matrix[i][i]
                matrix[r] = [a - factor * b for a, b in zip(matrix[r], matrix[i], strict=True)]
                right[r] -= factor * right[i]
    return [right[i] / matrix[i][i] / scale[i] for i in range(size)]


def link_rate(points: Sequence[tuple[int, float]], ranks: int) -> tuple[float, float]:
    """(bus bytes a second, seconds of the smallest message) from (bytes, seconds) of all-reduces.

    A ring moves 2 (N - 1) / N of a message over each link; the largest message shows the rate.
    """
    size, seconds = max(points)
    return 2 * (ranks - 1) / ranks * size / seconds, min(points)[1]
