"""What every Task must hold. A new task adds itself to TASKS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fakes.classifiers import classifier, classifier_plan, labelled
from fakes.models import SEQUENCE, gradients, largest_difference, model_for, plan_for, window
from headway.data.seam import IGNORE, Sample
from headway.task.causal_lm import CausalLM
from headway.task.classification import Classification
from headway.task.instruction import Instruction
from headway.task.preference import Preference
from headway.task.seam import Batch, Task, Totals


@dataclass(frozen=True)
class Case:
    """A task, a model that it can train, and how its samples are made (by a seed)."""

    task: Callable[[], Task]
    model: Callable[[], nn.Module]
    sample: Callable[[int], Sample]


PREFERENCE = {"beta": 0.1, "label_smoothing": 0.1, "per_token": False, "reference": ""}
TASKS = {
    "causal_lm, linear head": Case(
        lambda: CausalLM(plan_for("llama")), lambda: model_for("llama"), lambda seed: window([11, 3 + seed], seed)
    ),
    "causal_lm, soft cap, in chunks": Case(
        lambda: CausalLM(plan_for("gemma2", numerics={"loss_chunk_tokens": 5})),
        lambda: model_for("gemma2"),
        lambda seed: window([11, 3 + seed], seed),
    ),
    "instruction": Case(
        lambda: Instruction(plan_for("llama", task={"kind": "instruction", "options": {"loss_on": "assistant"}})),
        lambda: model_for("llama"),
        lambda seed: answers(window([11, 6 + seed], seed)),
    ),
    "preference": Case(
        lambda: Preference(plan_for("llama", task={"kind": "preference", "options": PREFERENCE})),
        lambda: model_for("llama"),
        lambda seed: replace(answers(window([11, 6 + seed], seed)), reference=(-8.0 - seed, -7.5)),
    ),
    "classification": Case(
        lambda: Classification(classifier_plan(weights=(1.0, 2.0, 0.5))),
        classifier,
        lambda seed: labelled(5 + 3 * seed, seed % 3, seed),
    ),
}
FILLER = window([])


def answers(sample: Sample) -> Sample:
    """The window with nothing learnt in the first half of each document."""
    asked = [sample.positions < (sample.documents == number).sum() // 2 for number in sample.documents]
    prompt = np.array([mask[place] for place, mask in enumerate(asked)])
    return replace(sample, labels=np.where(prompt, IGNORE, sample.labels).astype(np.int32))


@pytest.fixture(params=TASKS)
def case(request: pytest.FixtureRequest) -> Case:
    return TASKS[request.param]


def total(task: Task, model: nn.Module, batch: Batch) -> torch.Tensor:
    """The batch's weighted sum."""
    terms = task.loss(model, batch)
    return torch.stack([terms[name] * term.weight for name, term in task.terms.items()]).sum()


def test_terms_have_names_counts_and_sums(case: Case) -> None:
    task = case.task()
    batch = task.collate([case.sample(1), case.sample(2)], SEQUENCE)
    terms = task.loss(case.model(), batch)
    assert task.terms
    assert terms.keys() == batch.counts.keys() == task.terms.keys()
    for name, value in terms.items():
        assert value.shape == (), name
        assert value.dtype in (torch.float32, torch.float64), name
        assert value.requires_grad or not task.terms[name].weight, name
        assert batch.counts[name] > 0, name


def test_rows_follow_the_samples(case: Case) -> None:
    batch = case.task().collate([case.sample(1), FILLER, case.sample(2)], SEQUENCE)
    assert batch.tokens == len(case.sample(1).tokens) + len(case.sample(2).tokens)
    assert {tensor.shape[0] for tensor in batch.inputs.values() if tensor.ndim > 1} == {3}


def test_fillers_count_as_nothing(case: Case) -> None:
    task, model = case.task(), case.model()
    with_filler = task.collate([case.sample(1), FILLER], SEQUENCE)
    without = task.collate([case.sample(1)], SEQUENCE)
    assert with_filler.counts == without.counts
    found: list[Any] = []
    for batch in (with_filler, without):
        loss = total(task, model, batch)
        loss.backward()
        found.append((loss.item(), gradients(model)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    assert largest_difference(found[0][1], found[1][1]) < 2e-5


def test_a_batch_of_fillers_is_zero_and_reaches_every_parameter(case: Case) -> None:
    """DDP and ZeRO-3 wait for each parameter's gradient on every rank, also on one that has only fillers."""
    task, model = case.task(), case.model()
    batch = task.collate([FILLER, FILLER], SEQUENCE)
    assert set(batch.counts.values()) == {0}
    assert batch.tokens == 0
    loss = total(task, model, batch)
    loss.backward()
    assert loss.item() == 0.0
    found = gradients(model)
    assert found.keys() == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all(bool((gradient == 0).all()) for gradient in found.values())


def test_losses_are_sums(case: Case) -> None:
    """Twice the batch, twice the loss: a mean would not change."""
    task, model = case.task(), case.model()
    once = task.collate([case.sample(1)], SEQUENCE)
    twice = task.collate([case.sample(1), case.sample(1)], SEQUENCE)
    assert twice.counts == {name: 2 * count for name, count in once.counts.items()}
    assert total(task, model, twice).item() == pytest.approx(2 * total(task, model, once).item(), rel=1e-6)


def test_metrics_are_figures_of_the_totals(case: Case) -> None:
    task = case.task()
    totals = Totals(dict.fromkeys(task.terms, 8.0), dict.fromkeys(task.terms, 4.0))
    figures = task.metrics(totals)
    assert figures
    assert all(isinstance(value, float) for value in figures.values())
    assert task.metrics(Totals()) == {}


def test_a_batch_moves_whole(case: Case) -> None:
    batch = case.task().collate([case.sample(1)], SEQUENCE)
    moved = batch.to(torch.device("meta"))
    assert {tensor.device.type for tensor in moved.inputs.values()} == {"meta"}
    assert (moved.counts, moved.tokens) == (batch.counts, batch.tokens)
