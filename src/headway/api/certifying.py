"""Certifying a plan before its first paid step, and saying whether a plan is certified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headway.certify import shelf
from headway.certify.report import render
from headway.certify.run import certify
from headway.certify.schema import CLAIMS, Certificate, Claim
from headway.errors import NotCertified, UserError
from headway.plan.schema import Plan


def on_the_shelf(plan: Plan) -> tuple[Certificate, Path] | None:
    """A certificate that still holds and its file; None where there is none, or where the data is not built yet."""
    known = None if plan.facts.estimated else shelf.find(plan)
    return None if known is None else (known, shelf.place_of(plan) / "certificate.json")


def certified(plan: Plan, progress: Callable[[str], None], *, again: bool = False) -> tuple[Certificate, Path]:
    """The plan's certificate and its file: the one on the shelf if it still holds, else a new one."""
    known = None if again else on_the_shelf(plan)
    if known is not None:
        return known
    made = certify(plan, shelf.place_of(plan) / "runs", progress)
    return made, shelf.keep(made, plan, render(made))


def certified_in_part(plan: Plan, claims: Sequence[int], progress: Callable[[str], None]) -> tuple[Certificate, Path]:
    """These claims alone, made anew. Raises UserError where a number is no claim's."""
    unknown = [number for number in claims if number not in CLAIMS]
    if unknown:
        raise UserError(f"there is no claim {', '.join(map(str, unknown))}", fix="claims are numbered from 1 to 8")
    made = certify(plan, shelf.place_of(plan) / "runs-partial", progress, claims=claims)
    return made, shelf.keep(made, plan, render(made))


def require(plan: Plan, progress: Callable[[str], None]) -> Certificate:
    """A valid certificate, made now where there is none. Raises NotCertified naming the claims that failed."""
    certificate, path = certified(plan, progress)
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
