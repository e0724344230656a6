"""One certificate of a plan at a time: its small runs lie in one folder."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest

from fakes.jobs import wait_for
from fakes.plans import LAPTOP, SMALL, plan_of
from headway.api import certifying
from headway.certify import shelf
from headway.certify.numerics import numerics_hash, versions
from headway.certify.schema import CLAIMS, Certificate, Claim, Measure
from headway.data.lock import only_builder
from headway.data.seam import Silent
from headway.plan.schema import Plan


def certificate(plan: Plan) -> Certificate:
    found: dict[str, Any] = {
        "id": "x",
        "numerics": numerics_hash(plan),
        "versions": versions(),
        "machine": "",
        "time": 0,
    }
    claims = tuple(Claim(number=number, name="", level="", outcome="proven") for number in CLAIMS)
    return Certificate(**found, seconds=0, strategy="", claims=claims, shrunk={}, substitutions=())


@pytest.mark.parametrize("value", [math.inf, math.nan, 2.0])
def test_a_refused_certificate_is_found_again(value: float, tmp_path: Path) -> None:
    """An engine that lost a parameter differs by infinity, and the refusal must hold at the next start."""
    plan = plan_of(SMALL, LAPTOP)
    made = certificate(plan)
    failed = made.claims[0].model_copy(
        update={"outcome": "failed", "measures": (Measure(what="loss", value=value, bound=1.0),)}
    )
    made = made.model_copy(update={"claims": (failed, *made.claims[1:])})
    shelf.keep(made, plan, "text", tmp_path)
    found = shelf.find(plan, tmp_path)
    assert found is not None
    assert not found.valid
    assert str(found.claims[0].measures[0].value) == str(value)
    json.loads(shelf.place_of(plan, tmp_path).joinpath("certificate.json").read_text(), parse_constant=pytest.fail)


def test_a_second_process_waits_and_takes_the_first_ones_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_of(SMALL, LAPTOP)
    plan = plan.model_copy(update={"facts": plan.facts.model_copy(update={"estimated": False})})
    monkeypatch.setattr(certifying, "certify", lambda *_, **__: pytest.fail("the other process has made it"))
    notes: list[str] = []
    found: list[Certificate] = []
    told = certifying.Told(lambda name: None, notes.append)
    with only_builder(shelf.place_of(plan) / "lock", Silent()):
        second = threading.Thread(target=lambda: found.append(certifying.certified(plan, told)[0]))
        second.start()
        wait_for(lambda: bool(notes), "the second to wait")
        made = certificate(plan)
        shelf.keep(made, plan, "text")
    second.join(30)
    assert "waiting for process" in notes[0]
    assert found == [made]
