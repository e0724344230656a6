"""Certifying a plan before its first paid step, and saying whether a plan is certified."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headway.certify import shelf
from headway.certify.report import render
from headway.certify.run import certify
from headway.certify.schema import CLAIMS, Certificate, Claim
from headway.data.lock import only_builder
from headway.data.seam import Silent
from headway.errors import NotCertified, UserError
from headway.plan.schema import Plan


def on_the_shelf(plan: Plan) -> tuple[Certificate, Path] | None:
    """A certificate that still holds and its file; None where there is none, or where the data is not built yet."""
    known = None if plan.facts.estimated else shelf.find(plan)
    return None if known is None else (known, shelf.place_of(plan) / "certificate.json")


@dataclass(frozen=True)
class Told:
    """Who hears of the work: `run` the name of each small run as it begins, `note` what is waited for."""

    run: Callable[[str], None]
    note: Callable[[str], None]


class _Notes(Silent):
    def __init__(self, told: Told):
        self._told = told

    def note(self, text: str) -> None:
        self._told.note(text)


@contextmanager
def _alone(plan: Plan, told: Told) -> Iterator[Path]:
    """The plan's place on the shelf, whose small runs no other process makes meanwhile."""
    place = shelf.place_of(plan)
    with only_builder(place / "lock", _Notes(told)):
        yield place


def certified(plan: Plan, told: Told, *, again: bool = False) -> tuple[Certificate, Path]:
    """The plan's certificate and its file: the one on the shelf if it still holds, else a new one."""
    with _alone(plan, told) as place:
        known = None if again else on_the_shelf(plan)
        if known is not None:
            return known
        made = certify(plan, place / "runs", told.run)
        return made, shelf.keep(made, plan, render(made))


def require_claims(claims: Sequence[int]) -> None:
    """Raises UserError where a number is no claim's."""
    unknown = [number for number in claims if number not in CLAIMS]
    if unknown:
        raise UserError(f"there is no claim {', '.join(map(str, unknown))}", fix="claims are numbered from 1 to 8")


def certified_in_part(plan: Plan, claims: Sequence[int], told: Told) -> tuple[Certificate, Path]:
    """These claims alone, made anew."""
    with _alone(plan, told) as place:
        made = certify(plan, place / "runs-partial", told.run, claims=claims)
        return made, shelf.keep(made, plan, render(made))


def require(plan: Plan, told: Told) -> Certificate:
    """A valid certificate, made now where there is none. Raises NotCertified naming the claims that failed."""
    certificate, path = certified(plan, told)
    if not certificate.valid:
        failed = [claim for claim in certificate.claims if claim.outcome == "failed"]
        lines = [f"claim {claim.number} ({claim.name}) failed: {why(claim)}" for claim in failed]
        raise NotCertified(
            "this plan does not compute what it should:\n" + "\n".join(lines),
            fix=f"{path.with_suffix('.txt')} shows every figure; another strategy or release may hold",
        )
    return certificate


def why(claim: Claim) -> str:
    """A failed claim in one line."""
    broken = [f"{m.what}: {m.value:.2e}, bound {m.bound:.1e}" for m in claim.measures if not m.holds]
    return "; ".join([*broken, claim.reason]).strip("; ")
