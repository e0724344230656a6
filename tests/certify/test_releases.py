"""The fault that certify was written for: ZeRO-2 with optimizer offload and accumulation, under DeepSpeed 0.18.9.

From September 2024 to May 2026 gradients of micro batches were lost there, without a word.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from headway.certify.schema import CLAIMS, Claim
from tests.certify.faults import OFFLOAD, ZERO_2, Certifier

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
FAULTY = ROOT / ".venv-deepspeed-0.18.9"
ASKED = (1, 2, 3, 4, 6, 7, 8)  # not 5: its trajectories part, as one of them loses gradients


@pytest.fixture(scope="module")
def faulty() -> list[dict[int, Claim]]:
    """Claims of the plan with offload, and of the same plan without, in the environment of the faulty release."""
    if not (FAULTY / "installed").is_file():
        pytest.skip(f"{FAULTY.name} is absent: make {FAULTY.name}/installed")
    command = [FAULTY / "bin" / "python", "-m", "tests.certify.judged", ",".join(map(str, ASKED)), OFFLOAD, ZERO_2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    ended = subprocess.run(
        [str(word) for word in command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500
    )
    assert ended.returncode == 0, ended.stderr
    plans = json.loads(ended.stdout.splitlines()[-1])
    return [{claim["number"]: Claim.model_validate(claim) for claim in claims} for claims in plans]


def test_the_faulty_release_is_refused(faulty: list[dict[int, Claim]]) -> None:
    with_offload = faulty[0]
    broken = {measure.what: measure for measure in with_offload[1].measures if not measure.holds}
    print({what: (measure.value, measure.where) for what, measure in broken.items()})
    assert with_offload[1].outcome == "failed"
    assert set(broken) == {"gradients of 6 steps", "gradient norm"}
    assert broken["gradients of 6 steps"].value > 0.5
    assert 0.1 < broken["gradient norm"].value < 0.6
    # A run looks well in every other way: it resumes, exports and keeps its tables.
    assert {number for number, claim in with_offload.items() if claim.outcome == "failed"} == {1, 2}


def test_without_offload_the_same_release_passes(faulty: list[dict[int, Claim]]) -> None:
    assert {claim.outcome for claim in faulty[1].values()} == {"proven"}, faulty[1]


@pytest.mark.parametrize("words", [(OFFLOAD,), (ZERO_2,)], ids=["offload", "zero-2"])
def test_the_pinned_release_passes(words: tuple[str, ...], certifier: Certifier) -> None:
    claims = certifier.claims(words, CLAIMS)
    assert {claim.outcome for claim in claims} == {"proven"}, claims
