"""What a check found, and all findings together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from headway.errors import CheckFailed, Problem

Level = Literal["red", "yellow", "note", "green"]


@dataclass(frozen=True)
class Verdict:
    """One check's finding. red stops the run, yellow warns, a note is good to know, green is fine.

    `fix`: what to type or write.

    `evidence`: what it was seen in, where the finding does not say so itself: a file and line, a figure, a message.
    """

    name: str
    level: Level
    finding: str
    fix: str = ""
    evidence: str = ""

    @property
    def ok(self) -> bool:
        return self.level != "red"


def green(name: str, finding: str, *, evidence: str = "") -> Verdict:
    return Verdict(name, "green", finding, evidence=evidence)


def note(name: str, finding: str, fix: str = "", *, evidence: str = "") -> Verdict:
    """What a sound run says as well: it counts for nothing."""
    return Verdict(name, "note", finding, fix, evidence)


def yellow(name: str, finding: str, fix: str = "", *, evidence: str = "") -> Verdict:
    return Verdict(name, "yellow", finding, fix, evidence)


def red(name: str, finding: str, fix: str, *, evidence: str = "") -> Verdict:
    return Verdict(name, "red", finding, fix, evidence)


@dataclass(frozen=True)
class Report:
    """All verdicts, in the order of the table of checks."""

    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        return all(verdict.ok for verdict in self.verdicts)

    @property
    def reds(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.level == "red")

    @property
    def exit_code(self) -> int:
        """Of a command that only checks: 0 nothing to say, 1 warnings, 2 something must be fixed."""
        levels = {verdict.level for verdict in self.verdicts}
        return 2 if "red" in levels else 1 if "yellow" in levels else 0

    def forced(self, names: Iterable[str]) -> Report:
        """The red findings of these names passed, and said to be."""
        passed = set(names)
        return Report(
            tuple(
                replace(v, level="yellow", finding=f"passed by --force: {v.finding}")
                if v.level == "red" and v.name in passed
                else v
                for v in self.verdicts
            )
        )

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "verdicts": [asdict(v) | {"ok": v.ok} for v in self.verdicts]}

    def raise_if_red(self) -> None:
        """Raises CheckFailed with every red finding and its fix."""
        if self.reds:
            problems = [Problem(v.name, v.finding, fix=v.fix) for v in self.reds]
            names = " ".join(f"--force {name}" for name in dict.fromkeys(v.name for v in self.reds))
            raise CheckFailed("the checks found what would fail:", problems=problems, fix=f"or, knowingly: {names}")
