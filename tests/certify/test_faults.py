"""Every claim can fail: each planted fault is caught by the claim that should catch it, and by a figure it measured."""

from __future__ import annotations

from collections import Counter

import pytest

from headway.certify.schema import CLAIMS
from tests.certify.faults import FAULTS, Certifier, Fault

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]


def test_every_claim_has_two_faults() -> None:
    counted = Counter(fault.claim for fault in FAULTS)
    assert all(counted[claim] >= 2 for claim in CLAIMS)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_caught(fault: Fault, certifier: Certifier) -> None:
    claim = certifier.with_fault(fault)
    broken = [measure for measure in claim.measures if not measure.holds]
    print([f"{measure.what}: {measure.value:.3g} (bound {measure.bound:.3g}) {measure.where}" for measure in broken])
    assert claim.number == fault.claim
    assert claim.outcome == "failed"
    assert broken, f"it failed without a figure: {claim.reason}"


PLANS = list(dict.fromkeys(fault.words for fault in FAULTS if "train.compile=true" not in fault.words))


@pytest.mark.parametrize("words", PLANS, ids=" ".join)
def test_the_same_plan_without_a_fault_passes(words: tuple[str, ...], certifier: Certifier) -> None:
    asked = sorted({fault.claim for fault in FAULTS if fault.words == words})
    claims = certifier.claims(words, asked)
    assert [claim.number for claim in claims] == asked
    assert {claim.outcome for claim in claims} == {"proven"}, claims
