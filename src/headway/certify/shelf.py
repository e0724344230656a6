"""Where certificates are kept, and whether one still holds for a plan."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from headway.certify.numerics import numerics_hash, versions
from headway.certify.schema import CERTIFICATE_VERSION, Certificate
from headway.plan.schema import Plan
from headway.run.whole import write_whole

FOLDER = Path(".headway") / "certificates"


def place_of(plan: Plan, folder: Path = FOLDER) -> Path:
    """The folder of the plan's certificate: certificate.json, certificate.txt, and the runs that it was made from."""
    return folder / numerics_hash(plan)[:16]


def keep(certificate: Certificate, plan: Plan, text: str, folder: Path = FOLDER) -> Path:
    """Put a certificate on the shelf; one that leaves claims out stands beside the whole one, as partial.json."""
    place = place_of(plan, folder)
    place.mkdir(parents=True, exist_ok=True)
    path = place / ("partial.json" if certificate.not_asked else "certificate.json")
    write_whole(path.with_suffix(".txt"), text)
    write_whole(path, certificate.model_dump_json(indent=1) + "\n")
    return path


def find(plan: Plan, folder: Path = FOLDER) -> Certificate | None:
    """The certificate of exactly these numerics and versions, valid or not; None where there is none."""
    path = place_of(plan, folder) / "certificate.json"
    try:
        certificate = Certificate.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None
    same = certificate.numerics == numerics_hash(plan) and certificate.versions == versions()
    return certificate if same and certificate.version == CERTIFICATE_VERSION else None
