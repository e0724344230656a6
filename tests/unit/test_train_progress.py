"""Was done what was planned? Counted while it is done, compared at the end."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.plans import LAPTOP, SMALL, plan_of
from headway.checkpoint.layout import TrainingState
from headway.parallel.seam import StepResult
from headway.plan.schedule import learning_rate
from headway.plan.schema import Plan
from headway.task.seam import Totals
from headway.train.progress import Progress

STEPS = 6


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of(SMALL, LAPTOP, f"train.length={STEPS} steps")


def after(plan: Plan, steps: int, *, lr_factor: float = 1.0, tokens_missing: int = 0) -> Progress:
    """The progress of a run whose windows are full but for `tokens_missing`."""
    progress = Progress()
    tokens = plan.batch.global_sequences * plan.data.sequence
    for step in range(1, steps + 1):
        short = tokens_missing if step == 1 else 0
        lr = learning_rate(plan.schedule, step) * lr_factor
        progress.add(step, plan, StepResult(Totals(), 1.0, step != 2, tokens - short, lr))
    return progress


def test_nothing_differs_in_a_run_as_planned(plan: Plan) -> None:
    assert after(plan, STEPS).differences(plan) == []


def test_a_short_window_at_the_end_of_an_epoch_is_no_difference(plan: Plan) -> None:
    assert after(plan, STEPS, tokens_missing=plan.data.sequence - 1).differences(plan) == []


@pytest.mark.parametrize("missing", [-1, 10], ids=["more", "fewer"])
def test_tokens(missing: int, plan: Plan) -> None:
    progress = after(plan, STEPS, tokens_missing=missing * plan.data.sequence)
    assert progress.differences(plan) == [f"tokens: planned {plan.schedule.tokens}, read {progress.tokens}"]


def test_steps(plan: Plan) -> None:
    differences = after(plan, STEPS - 1).differences(plan)
    assert f"steps: planned {STEPS}, done {STEPS - 1}" in differences
    assert any(text.startswith("samples: planned") for text in differences)


def test_one_wrong_learning_rate(plan: Plan) -> None:
    progress = after(plan, STEPS)
    progress.add(STEPS, plan, StepResult(Totals(), 1.0, True, 0, learning_rate(plan.schedule, STEPS) + 1e-5))
    assert any(
        text.startswith("learning rate: off the planned table by up to 1e-05") for text in progress.differences(plan)
    )


def test_counters_outlive_a_checkpoint(plan: Plan) -> None:
    before = after(plan, 4, lr_factor=1.5)
    assert before.discarded == 1
    state = TrainingState(before.step, before.position, before.tokens, counters=before.counters())
    assert Progress.from_state(state) == before


@pytest.mark.parametrize(
    ("task", "documents", "shown"), [("causal_lm", 4, True), ("causal_lm", 400, False), ("instruction", 4, False)]
)
def test_gzip_is_shown_where_it_says_something(task: str, documents: int, shown: bool) -> None:
    """Of texts of some length; not of answers of a few words, on which its header is most of what it writes."""
    from types import SimpleNamespace

    from headway.task.seam import Term, Totals
    from headway.train.evaluation import held_out_figures

    facts = SimpleNamespace(eval_bytes=20_000, eval_gzip_bytes=9_000, eval_documents=documents)
    plan: Any = SimpleNamespace(facts=facts, task=SimpleNamespace(kind=task))
    learnt: Any = SimpleNamespace(metrics=Totals.means, terms={"loss": Term()})
    figures = held_out_figures(plan, learnt, Totals({"loss": 8000.0}, {"loss": 4000.0}))
    assert figures["loss"] == 2.0
    assert figures["bits_per_byte"] == pytest.approx(8000 / 0.6931471805599453 / 20_000)
    assert ("gzip_bits_per_byte" in figures) is shown
    if shown:
        assert figures["gzip_bits_per_byte"] == 3.6
