"""What a release of DeepSpeed is known to break is refused before the start, by its version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.plans import LAPTOP, SMALL, plan_of
from headway.check import releases
from headway.check.report import Verdict
from headway.check.subject import Subject
from headway.plan.schema import Plan

OFFLOAD = f"strategy={json.dumps({'kind': 'zero-2', 'offload': {'optimizer': 'cpu'}})}"


def verdict(plan: Plan, monkeypatch: pytest.MonkeyPatch, installed: str) -> Verdict:
    monkeypatch.setattr(releases.metadata, "version", lambda package: installed)
    return releases.releases("releases", Subject(plan, None, Path()))


@pytest.mark.parametrize(
    ("words", "installed", "ok"),
    [
        ((OFFLOAD, "train.micro_batch=2"), "0.18.9", False),
        ((OFFLOAD, "train.micro_batch=2"), "0.19.8", True),
        ((OFFLOAD, "train.micro_batch=8"), "0.18.9", True),  # no accumulation
        (("strategy=zero-2", "train.micro_batch=2"), "0.18.9", True),
        (("strategy=ddp",), "0.18.9", True),
    ],
)
def test_lost_gradients(words: tuple[str, ...], installed: str, ok: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = verdict(plan_of(SMALL, LAPTOP, *words), monkeypatch, installed)
    assert found.ok is ok
    assert ok or ("gradients of micro batches" in found.finding and "0.19.3" in found.fix)


def test_stage_0_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(SMALL, LAPTOP, "strategy=zero-0")
    assert verdict(plan, monkeypatch, "0.19.8").ok
    in_16_bits = plan.model_copy(update={"numerics": plan.numerics.model_copy(update={"precision": "bf16"})})
    assert "another optimizer path" in verdict(in_16_bits, monkeypatch, "0.19.8").finding


def test_an_odd_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = {"kind": "zero-1", "allgather_bucket": 30001}
    found = verdict(plan_of(SMALL, LAPTOP, f"strategy={json.dumps(bucket)}"), monkeypatch, "0.19.8")
    assert not found.ok
    assert "even number" in found.fix
