"""What a plan gathers while it is made: a reason for each derived value, and every problem, so none hides another."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from headway.errors import PlanError, Problem


@dataclass
class Ledger:
    """origins: run-file key -> "run.yaml:7", so that a problem can say where its value was written."""

    origins: Mapping[str, str] = field(default_factory=dict[str, str])
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    problems: list[Problem] = field(default_factory=list[Problem])

    def because(self, key: str, reason: str) -> None:
        """Note why the plan's value `key` ("batch.micro_batch") is as it is."""
        self.reasons[key] = reason

    def refuse(self, key: str, value: object, rule: str, fix: str) -> None:
        """Note that the run file's `key` cannot be."""
        self.problems.append(Problem(key, rule, value, fix, self.where(key)))

    def where(self, key: str) -> str:
        """Where a key was written: its own line, or the line of the section around it."""
        while key:
            if key in self.origins:
                return self.origins[key]
            key = key.rpartition(".")[0]
        return ""

    @contextmanager
    def collecting(self) -> Generator[None]:
        """Take the problems of a PlanError raised inside, and go on."""
        try:
            yield
        except PlanError as error:
            self.problems += self.placed(error).problems

    def placed(self, error: PlanError) -> PlanError:
        """The same problems, each with where its key was written."""
        return PlanError(problems=[replace(p, where=p.where or self.where(p.key)) for p in error.problems])

    def raise_problems(self) -> None:
        """Raises PlanError with everything that was refused, if anything was."""
        if self.problems:
            raise PlanError(problems=self.problems)
