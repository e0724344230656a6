"""How far the planner is off: errors of memory and speed, the confusion of what fits, the regret of its choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from rows import GIB, Measured

from headway.plan.constants import MEMORY, TIME, MemoryConstants, TimeConstants
from headway.plan.footprint import footprint
from headway.plan.steptime import step_time

_Thing = TypeVar("_Thing")
# Each measured row's device memory is cut here, as shares of its measured peak: below, it would not have fitted.
CUTS = (0.9, 1.1)


@dataclass(frozen=True)
class Judged:
    """A measurement beside what the planner says. Bytes, and tokens a second of one device; None: not measured."""

    row: Measured
    memory_bytes: float
    tokens_per_second: float

    @property
    def memory_error(self) -> float | None:
        """Planned over measured, less one."""
        measured = self.row.memory_bytes
        return self.memory_bytes / measured - 1 if measured else None

    @property
    def speed_error(self) -> float | None:
        measured = self.row.tokens_per_second
        return self.tokens_per_second / measured - 1 if measured else None

    @property
    def fits(self) -> bool:
        """Whether the planner would let it run on the device that it ran on."""
        return self.memory_bytes <= self.row.request.machine.device.memory_bytes


def judged(row: Measured, time: TimeConstants = TIME, memory: MemoryConstants = MEMORY) -> Judged:
    """Memory of the kind that was measured, and speed."""
    made = footprint(row.request, memory)
    kinds = {"allocated": made.allocated_bytes, "reserved": made.reserved_bytes, "device": made.device_bytes}
    seconds = step_time(row.request, time).seconds
    rate = row.request.step_tokens / seconds / row.request.degrees.devices
    return Judged(row, kinds[row.memory_kind], rate)


@dataclass(frozen=True)
class Errors:
    """Absolute relative errors of one group of rows."""

    values: tuple[float, ...]

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def median(self) -> float:
        return median(abs(value) for value in self.values)

    @property
    def ninetieth(self) -> float:
        """The 90th percentile: nine of ten are at most this."""
        ordered = sorted(abs(value) for value in self.values)
        return ordered[max(0, -(-9 * len(ordered) // 10) - 1)]

    @property
    def bias(self) -> float:
        """The median with its sign: above 0, the planner says more than was measured."""
        return median(self.values)

    def within(self, bound: float) -> float:
        return sum(abs(value) <= bound for value in self.values) / len(self.values)


def errors(rows: Iterable[Judged], kind: Callable[[Judged], float | None]) -> Errors | None:
    found = tuple(value for row in rows if (value := kind(row)) is not None)
    return Errors(found) if found else None


def grouped(rows: Iterable[_Thing], key: Callable[[_Thing], str]) -> dict[str, list[_Thing]]:
    groups: dict[str, list[_Thing]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


@dataclass(frozen=True)
class Confusion:
    """Of device memories that were too small, how many the planner took for enough; and the other way round."""

    too_small: int
    missed: int  # it did not fit, the planner says that it does
    enough: int
    false_alarms: int

    @property
    def missed_share(self) -> float:
        return self.missed / self.too_small if self.too_small else 0.0

    @property
    def false_share(self) -> float:
        return self.false_alarms / self.enough if self.enough else 0.0


def confusion(rows: Iterable[Judged]) -> Confusion:
    """Every measured row at both cuts of its device's memory, and the rows that ran out of memory for real."""
    small = enough = missed = alarms = 0
    for row in rows:
        if row.row.out_of_memory:
            small, missed = small + 1, missed + row.fits
        elif row.row.memory_bytes:
            low, high = (cut * row.row.memory_bytes for cut in CUTS)
            small, enough = small + 1, enough + 1
            missed += row.memory_bytes <= low
            alarms += row.memory_bytes > high
    return Confusion(small, missed, enough, alarms)


@dataclass(frozen=True)
class Choice:
    """What the planner takes among settings that were measured. regret: of the best measured speed, lost."""

    group: str
    settings: int
    regret: float
    picked: Judged
    best: Judged


def choices(rows: Iterable[Judged]) -> list[Choice]:
    """For each model on one machine at one sequence length: the setting that the planner expects to be the fastest."""

    def same(row: Judged) -> str:
        raw, request = row.row.row, row.row.request
        places = (raw.get("family"), raw.get("model"), raw.get("gpu_key") or raw.get("gpu"), request.degrees.devices)
        return " | ".join(str(part) for part in (*places, request.sequence))

    found: list[Choice] = []
    for group, members in grouped(rows, same).items():
        run = [m for m in members if m.row.tokens_per_second or m.row.out_of_memory]
        if len({_setting(m) for m in run}) < 2 or not any(m.row.tokens_per_second for m in run):
            continue
        fitting = [m for m in run if m.fits] or run
        picked = max(fitting, key=lambda m: m.tokens_per_second)
        best = max(run, key=lambda m: m.row.tokens_per_second or 0)
        got, most = picked.row.tokens_per_second or 0.0, best.row.tokens_per_second or 1.0
        found.append(Choice(group, len(run), 1 - got / most, picked, best))
    return found


def _setting(row: Judged) -> tuple[object, ...]:
    request = row.row.request
    batch = (request.micro_batch, request.accumulation, request.checkpointing)
    return (request.degrees, request.stage, *batch, request.software, request.precision)


def gibibytes(count: float | None) -> str:
    return "" if count is None else f"{count / GIB:.1f}"
