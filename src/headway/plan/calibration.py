"""Measured steps and sizes to rates: what `headway calibrate` writes into a cluster file, and how a step follows.

seconds = flops / layer_flops + stream_bytes / stream_rate + layers x layer_seconds + parameters / update_rate
          + step_seconds

fitted to steps of the real engine by least squares on relative errors, no term below zero. What DeepSpeed's stages take
beside that is fitted in the same way, to their layers, their parameters and a fixed part of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from headway.plan.work import Work


def terms_of(work: Work) -> list[float]:
    """FLOPs, kept bytes, layer passes, updated parameters, and the step itself, once."""
    return [work.flops, work.stream_bytes, work.layer_passes, work.updated_parameters, 1.0]


def fit_terms(amounts: Sequence[Sequence[float]], seconds: Sequence[float], wholes: Sequence[float]) -> list[float]:
    """Seconds of one unit of each term: amounts x units = seconds.

    wholes: what each error is held against, the time of the whole step. With so few unknowns every subset of terms is
    tried: the best without a negative one is the non-negative least squares solution.
    """
    rows = [[term / whole for term in terms] for terms, whole in zip(amounts, wholes, strict=True)]
    right = [taken / whole for taken, whole in zip(seconds, wholes, strict=True)]
    count = len(amounts[0])
    best, lowest = [0.0] * count, sum(value**2 for value in right)
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            found = _solve([[row[column] for column in chosen] for row in rows], right)
            if found is None or min(found) < 0:
                continue
            full = [0.0] * count
            for column, value in zip(chosen, found, strict=True):
                full[column] = value
            planned = [sum(a * b for a, b in zip(row, full, strict=True)) for row in rows]
            wrong = sum((one - other) ** 2 for one, other in zip(planned, right, strict=True))
            if wrong < lowest:
                best, lowest = full, wrong
    return best


def _solve(rows: list[list[float]], wanted: list[float]) -> list[float] | None:
    """x of least squares |rows x - wanted|, by the normal equations; None where they are singular."""
    size = len(rows[0])
    if size > len(rows):
        return None
    scale = [max(abs(row[i]) for row in rows) or 1.0 for i in range(size)]
    scaled = [[row[i] / scale[i] for i in range(size)] for row in rows]
    matrix = [[sum(row[i] * row[j] for row in scaled) for j in range(size)] for i in range(size)]
    right = [sum(row[i] * one for row, one in zip(scaled, wanted, strict=True)) for i in range(size)]
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

    A ring moves 2 (N - 1) / N of a message over each link; the largest message shows the rate, and whichever was the
    fastest what any takes at least.
    """
    size, seconds = max(points)
    return 2 * (ranks - 1) / ranks * size / seconds, min(seconds for _, seconds in points)
