"""Every claim can fail: each planted fault is caught by the claim that should catch it, and by a figure it measured."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from headway.certify.schema import CLAIMS
from tests.certify.faults import COMPILE, DDP, FAULTS, OFFLOAD, ZERO_2, Certifier, Fault

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


# Those that tests/certify/test_releases.py certifies whole are left out, and the one that compiles.
ELSEWHERE = ((OFFLOAD,), (ZERO_2,), (DDP, COMPILE))
PLANS = [words for words in dict.fromkeys(fault.words for fault in FAULTS) if words not in ELSEWHERE]


@pytest.mark.parametrize("words", PLANS, ids=" ".join)
def test_the_same_plan_without_a_fault_passes(words: tuple[str, ...], certifier: Certifier) -> None:
    asked = sorted({fault.claim for fault in FAULTS if fault.words == words})
    claims = certifier.claims(words, asked)
    assert [claim.number for claim in claims] == asked
    assert {claim.outcome for claim in claims} == {"proven"}, claims


def test_one_process_proves_what_it_can_and_says_what_it_cannot(certifier: Certifier) -> None:
    claims = {claim.number: claim for claim in certifier.claims((ZERO_2, "launch.processes=1"), CLAIMS)}
    assert claims[5].outcome == "not proven"
    assert "second process" in claims[5].reason
    assert {claim.outcome for number, claim in claims.items() if number != 5} == {"proven"}, claims


@pytest.mark.skipif(not os.environ.get("HEADWAY_TEST_COMPILE"), reason="compiles for minutes: HEADWAY_TEST_COMPILE=1")
@pytest.mark.timeout(900)
def test_a_compiled_plan_passes(certifier: Certifier) -> None:
    claims = certifier.claims((DDP, COMPILE), (1, 3))
    assert {claim.outcome for claim in claims} == {"proven"}, claims
