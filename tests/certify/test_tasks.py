"""The claims on other tasks than the next token: a chat's answers, a text's class."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.classifiers import LABELS
from headway.certify.judge import judge
from headway.certify.run import evidence_of, make_runs, open_workshop
from headway.certify.schema import Claim
from headway.facts.labels import with_labels
from headway.facts.shape import shape_of
from headway.plan.schema import Plan
from tests.certify.faults import DDP, UNEVEN, ZERO_2, Certifier, plan_for

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

_BERT = {
    "model_type": "bert",
    "vocab_size": 4096,
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 256,
    "hidden_dropout_prob": 0.1,
}


def classifier_plan(*words: str, sets: bool = False) -> Plan:
    """An encoder with dropout and uneven weights of three labels; documents are made up."""
    plan = plan_for(*words)
    config = with_labels(_BERT, LABELS, 0, sets=sets)
    options = {"labels": list(LABELS), "weights": [1.0, 4.0, 0.5], **({"sets": True} if sets else {})}
    parts = {
        "model": plan.model.model_copy(update={"config": config}),
        "task": plan.task.model_copy(update={"kind": "classification", "options": options}),
        "data": plan.data.model_copy(update={"packing": False}),
        "shape": shape_of(config, "classification"),
    }
    return plan.model_copy(update=parts)


def proven(plan: Plan, folder: Path, claims: tuple[int, ...]) -> tuple[Claim, ...]:
    shop = open_workshop(plan, folder)
    make_runs(shop, claims)
    found = judge(evidence_of(shop), claims)
    broken = [(c.number, c.reason, m) for c in found for m in c.measures if not m.holds]
    assert {claim.outcome for claim in found} == {"proven"}, broken
    return found


def test_the_gradients_of_answers_are_those_of_plain_pytorch(certifier: Certifier, tmp_path: Path) -> None:
    plan = plan_for(DDP, UNEVEN, "task=instruction")
    assert plan.task.options == {"loss_on": "assistant"}
    proven(plan, tmp_path / "chats", (1, 7))


def test_the_gradients_of_preferences_are_those_of_plain_pytorch(certifier: Certifier, tmp_path: Path) -> None:
    """The reference is asked of the engine, kept, and found again by a run on one rank and by one that goes on."""
    plan = plan_for(ZERO_2, UNEVEN, "task=preference", "task.label_smoothing=0.1")
    claims = proven(plan, tmp_path / "pairs", (1, 2, 4, 7))
    assert any("gradients" in measure.what for measure in claims[0].measures)


def test_the_gradients_of_classes_are_those_of_plain_pytorch(certifier: Certifier, tmp_path: Path) -> None:
    claims = proven(classifier_plan(ZERO_2, UNEVEN), tmp_path / "texts", (1, 2, 6, 7))
    assert any("gradients" in measure.what for measure in claims[0].measures)


def test_the_gradients_of_label_sets_are_those_of_plain_pytorch(certifier: Certifier, tmp_path: Path) -> None:
    proven(classifier_plan(DDP, UNEVEN, sets=True), tmp_path / "sets", (1, 7))
