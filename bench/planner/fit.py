"""Fit the constants of time and memory, and check them on measurements that were left out, a whole family at a time.

    python bench/planner/fit.py [--leave-out]

Least squares of the logarithm of planned over measured speed, robust (soft L1), each family weighted by the fourth root
of its number of rows. Every constant has bounds that its meaning allows, and a weak pull to where it starts. Prints the
values; `src/headway/plan/constants.py` is edited by hand.
"""

from __future__ import annotations

import math
import sys
from dataclasses import fields, replace

import numpy as np
from accuracy import TABLE, trusted
from rows import Measured, judge, read_table
from scipy.optimize import least_squares
from scores import Errors, judged

from headway.plan.constants import MEMORY, TIME, MemoryConstants, TimeConstants
from headway.plan.steptime import step_time

# Where a constant may lie; others: a fourth to four times of where they start.
BOUNDS = {
    "matmul": (0.7, 0.97),
    "matmul_fp8": (0.6, 0.95),
    "misaligned": (0.4, 0.95),
    "tail_waves": (0.3, 1.5),
    "flash1": (0.35, 0.5),
    "flash": (0.6, 0.8),
    "flash_on_hopper": (0.33, 0.45),
    "flash3": (0.65, 0.85),
    "attention_half_tokens": (100.0, 3000.0),
    "bandwidth": (0.6, 0.92),
    "eager_passes": (0.5, 4.0),
    "fused_passes": (0.5, 4.0),
    "compiled_passes": (0.4, 3.0),
    "cast_passes": (0.3, 4.0),
    "link": (0.4, 0.9),
    "network": (0.3, 0.95),
    "overlap": (0.3, 1.0),
    "contention": (0.02, 0.5),
}
PULL = 0.15  # of one constant, against one row's logarithm
NAMES = [field.name for field in fields(TimeConstants)]
# Where the fit starts: shares from vendors' and kernels' papers, before any of these rows was looked at.
START = replace(TIME, matmul=0.85, flash=0.72, flash1=0.42, flash_on_hopper=0.4, flash3=0.75, bandwidth=0.85, link=0.7)


def logarithms(rows: list[Measured], constants: TimeConstants) -> np.ndarray:
    """log(planned speed / measured speed), a row each."""
    planned = [row.request.step_tokens / step_time(row.request, constants).seconds for row in rows]
    measured = [(row.tokens_per_second or 0) * row.request.degrees.devices for row in rows]
    return np.log(np.array(planned) / np.array(measured))


def fit(rows: list[Measured], start: TimeConstants = START) -> TimeConstants:
    sizes: dict[str, int] = {}
    for row in rows:
        sizes[row.family] = sizes.get(row.family, 0) + 1
    weights = np.array([sizes[row.family] ** -0.25 for row in rows])
    first = np.log([getattr(start, name) for name in NAMES])
    bounds = [BOUNDS.get(name, (math.exp(x) / 4, math.exp(x) * 4)) for name, x in zip(NAMES, first, strict=True)]
    low, high = np.log(np.array(bounds)).T
    first = np.clip(first, low + 1e-6, high - 1e-6)

    def named(values: np.ndarray) -> TimeConstants:
        return replace(start, **dict(zip(NAMES, np.exp(values).tolist(), strict=True)))

    def residuals(values: np.ndarray) -> np.ndarray:
        return np.concatenate([logarithms(rows, named(values)) * weights, PULL * (values - first)])

    done = least_squares(residuals, first, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=40)
    return named(done.x)


# Of the memory estimate; its other numbers are counts of what the software keeps.
MEMORY_BOUNDS = {"fragmentation": (0.01, 0.3), "compiled_logit_bytes": (2.0, 10.0), "piece_logit_bytes": (0.1, 2.0)}
MEMORY_START = replace(MEMORY, fragmentation=0.05, compiled_logit_bytes=4.0, piece_logit_bytes=0.5)
_FINEST = 1e-3  # of a step in a constant: the peak is the largest of several moments, and has corners


def fit_memory(rows: list[Measured]) -> MemoryConstants:
    """As `fit`, of planned over measured peaks."""
    names = list(MEMORY_BOUNDS)
    low, high = np.log(np.array(list(MEMORY_BOUNDS.values()))).T
    first = np.log([getattr(MEMORY_START, name) for name in names])

    def named(values: np.ndarray) -> MemoryConstants:
        return replace(MEMORY_START, **dict(zip(names, np.exp(values).tolist(), strict=True)))

    def residuals(values: np.ndarray) -> np.ndarray:
        found = np.log1p(np.array(_memory_errors(rows, named(values))))
        return np.concatenate([found, PULL * (values - first)])

    done = least_squares(residuals, first, bounds=(low, high), loss="soft_l1", f_scale=0.05, diff_step=_FINEST)
    return named(done.x)


def _memory_errors(rows: list[Measured], constants: MemoryConstants) -> list[float]:
    return [error for row in rows if (error := judged(row, memory=constants).memory_error) is not None]


def left_out_of_memory(rows: list[Measured]) -> list[tuple[str, Errors]]:
    """(family, errors of its peaks under constants that were fitted on the peaks of all others)."""
    found: list[tuple[str, Errors]] = []
    for family in sorted({row.family for row in rows}):
        constants = fit_memory([row for row in rows if row.family != family])
        held = _memory_errors([row for row in rows if row.family == family], constants)
        found.append((family, Errors(tuple(held))))
    return found


def with_memory() -> list[Measured]:
    """Peaks of the domain that Headway runs."""
    return [row for row in _trusted_rows() if row.memory_bytes and row.data_parallel]


def with_speed() -> list[Measured]:
    return [row for row in _trusted_rows() if row.tokens_per_second]


def _trusted_rows() -> list[Measured]:
    return judge(trusted(read_table(TABLE))[0])[0]


def left_out(rows: list[Measured]) -> list[tuple[str, Errors]]:
    """(family, errors on it of constants that were fitted on all others)."""
    found: list[tuple[str, Errors]] = []
    for family in sorted({row.family for row in rows}):
        constants = fit([row for row in rows if row.family != family])
        held = logarithms([row for row in rows if row.family == family], constants)
        found.append((family, Errors(tuple(np.expm1(held).tolist()))))
    return found


def main() -> int:
    rows = with_speed()
    constants = fit(rows)
    for name in NAMES:
        print(f"{name:24} {getattr(TIME, name):10.4g} now {getattr(constants, name):10.4g} fitted")
    found = Errors(tuple(np.expm1(logarithms(rows, constants)).tolist()))
    print(f"{found.count} rows: median {found.median:.1%}, within 25 % {found.within(0.25):.1%}")
    peaks = with_memory()
    fitted = fit_memory(peaks)
    for name in MEMORY_BOUNDS:
        print(f"{name:24} {getattr(MEMORY, name):10.4g} now {getattr(fitted, name):10.4g} fitted")
    if "--leave-out" in sys.argv:
        for what, held in (("speed", left_out(rows)), ("memory", left_out_of_memory(peaks))):
            for family, errors in held:
                print(f"{what} {family:16} {errors.count:4} rows: median {errors.median:.1%}, bias {errors.bias:+.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
