"""A certificate on one page of text."""

from __future__ import annotations

import textwrap
import time

from headway.certify.schema import Certificate, Claim

_WIDTH = 110


def render(certificate: Certificate) -> str:
    """What was claimed, measured, bounded, put in place of what, and not proven."""
    verdict = "VALID" if certificate.valid else "REFUSED: a claim failed"
    if certificate.holds and certificate.not_asked:
        left_out = ", ".join(map(str, certificate.not_asked))
        verdict = f"PARTIAL: what was asked for holds; claims {left_out} were not asked for, so no run may rely on it"
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(certificate.time))
    packages = ", ".join(f"{name} {number}" for name, number in certificate.versions.items())
    lines = [
        f"Certificate {certificate.id}: {verdict}",
        f"  plan {certificate.numerics[:16]}, {certificate.strategy}; made {made} in {certificate.seconds:g} s",
        f"  on {certificate.machine}; {packages}",
        "",
    ]
    for claim in certificate.claims:
        lines += [*_claim(claim), ""]
    lines += ["In place of the plan's own:", *(f"  - {text}" for text in certificate.substitutions)]
    return "\n".join(lines) + "\n"


def _claim(claim: Claim) -> list[str]:
    lines = [f"{claim.number}. {claim.name}: {claim.outcome.upper()}   [{claim.level}]"]
    if claim.reason:
        lines += textwrap.wrap(claim.reason, _WIDTH, initial_indent="   why: ", subsequent_indent="        ")
    for measure in claim.measures:
        mark = " " if measure.holds else "!"
        bound = "to the bit" if measure.bound == 0 else f"bound {measure.bound:.1e}"
        where = f"  ({measure.where})" if measure.where and measure.value else ""
        lines.append(f" {mark} {measure.what}: {measure.value:.2e}, {bound}{where}")
    lines += [f"   {note}" for note in claim.notes]
    return [*lines, f"   does not prove: {claim.does_not_prove}"]
