"""A task of the user's own: what it gets wrong is named, with what it should have given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fakes.models import plan_for
from headway.errors import ConfigError, UserError
from headway.task.causal_lm import CausalLM
from headway.task.own import checked, task_of, unwrapped
from headway.task.seam import Batch, Term, Totals

MODEL = nn.Linear(1, 1)


class Mine:
    """A task that does everything right, unless told otherwise."""

    def __init__(self, plan: Any = None, **answers: Any):
        self.terms: Any = answers.pop("terms", {"loss": Term(), "seen": Term(0.0)})
        self.answers = answers
        self.extra = 5

    def collate(self, samples: Any, sequence: int) -> Any:
        batch = Batch({"x": torch.ones(2, 1)}, {"loss": 2.0, "seen": 2.0}, 2)
        return self.answers.get("batch", batch)

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        right = {"loss": model(batch.inputs["x"]).sum(), "seen": torch.tensor([2])}
        return self.answers.get("found", right)

    def metrics(self, totals: Totals) -> Any:
        return self.answers.get("figures", totals.means())


class Empty:
    def __init__(self, plan: Any):
        self.terms = {}


class NoPlan:
    def __init__(self) -> None:
        pass


def test_what_is_right_is_left_as_it_is() -> None:
    task = checked(Mine())
    batch = task.collate([], 8)
    terms = task.loss(MODEL, batch)
    assert torch.equal(terms["loss"], MODEL(torch.ones(2, 1)).sum())
    assert terms["loss"].requires_grad
    assert (terms["seen"].dtype, terms["seen"].shape) == (torch.float32, ())
    assert task.metrics(Totals({"loss": 1.0}, {"loss": 2.0})) == {"loss": 0.5}
    assert task.extra == 5  # pyright: ignore[reportAttributeAccessIssue]
    assert not hasattr(task, "absent")
    assert isinstance(unwrapped(task), Mine)
    own = CausalLM(plan_for("llama"))
    assert checked(own) is own
    assert unwrapped(own) is own


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"batch": {"x": 1}}, "Mine.collate': gave dict, not a headway.task.seam.Batch"),
        ({"batch": Batch({}, {"loss": 1.0}, 1)}, "does not count the term 'seen'; it counts loss"),
        ({"batch": Batch({}, {}, 1)}, "it counts nothing"),
        ({"batch": Batch({}, {"loss": float("nan"), "seen": 1.0}, 1)}, "counts nan items of 'loss'"),
        ({"batch": Batch({}, {"loss": -1.0, "seen": 1.0}, 1)}, "counts -1.0 items"),
        ({"batch": Batch({}, {"loss": "2", "seen": 1.0}, 1)}, "counts '2' items"),  # pyright: ignore
        ({"found": torch.ones(())}, "gave Tensor, not a mapping of the terms' names to their sums"),
        ({"found": {"loss": 3.0}}, "gave float for 'loss', not a tensor of one number"),
        ({"found": {"loss": torch.ones(2, 1)}}, r"gave a tensor of shape \[2, 1\] for 'loss'"),
        ({"found": {"seen": torch.ones(())}}, "gave the terms seen; those of the task are loss, seen"),
        ({"found": {}}, "gave the terms none"),
        ({"found": {"loss": torch.ones(()), "other": torch.ones(())}}, "gave the terms loss, other"),
        ({"found": {"loss": torch.ones(())}}, "do not depend on the model's parameters"),
        ({"batch": Batch({"x": torch.ones(2, 1)}, {"loss": 2.0, "seen": 0.0}, 2)}, "gave 2 for 'seen' in a batch"),
        ({"figures": 0.5}, "gave what is no mapping of names to numbers"),
        ({"figures": {"loss": torch.ones(2)}}, "gave what is no mapping of names to numbers"),
        ({"figures": {"loss": None}}, "gave what is no mapping of names to numbers"),
    ],
)
def test_odd_answers_are_named(answers: dict[str, Any], said: str) -> None:
    task = checked(Mine(**answers))

    def all_of_it() -> None:
        task.loss(MODEL, task.collate([], 8))
        task.metrics(Totals({"loss": 1.0}, {"loss": 2.0}))

    with pytest.raises(UserError, match=said) as found:
        all_of_it()
    assert all(problem.fix for problem in found.value.problems)


def test_a_slip_in_the_users_code_is_named_by_its_line() -> None:
    task = checked(Mine())
    with pytest.raises(UserError, match=r"Mine\.loss': failed at .*test_task_own\.py:\d+: KeyError: 'x'") as found:
        task.loss(MODEL, Batch({}, {"loss": 1.0, "seen": 1.0}, 1))
    assert isinstance(found.value.__cause__, KeyError)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        task.loss(MODEL, Batch({"x": torch.ones(1, 3)}, {"loss": 1.0, "seen": 1.0}, 1))


def test_without_gradients_a_detached_sum_is_right() -> None:
    task = checked(Mine(found={"loss": torch.ones(())}))
    with torch.no_grad():
        assert float(task.loss(MODEL, task.collate([], 8))["loss"]) == 1.0


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (object(), "has no collate, loss, metrics"),
        (Mine(terms={}), "has no terms"),
        (Mine(terms=["loss"]), "has no terms"),
        (Mine(terms={"loss": 1.0}), "has no terms"),
        (Mine(terms={"loss": Term(0.0)}), "has no term with a weight"),
    ],
)
def test_what_is_no_task_is_refused(task: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        checked(task)


def test_the_class_is_made_of_the_plan() -> None:
    def plan(kind: str) -> Any:
        made = plan_for("llama")
        return made.model_copy(update={"task": made.task.model_copy(update={"kind": kind})})

    here = __name__
    assert isinstance(unwrapped(task_of(plan(f"{here}:Mine"))), Mine)
    assert isinstance(task_of(plan("causal_lm")), CausalLM)
    for name, said in (
        ("NoPlan", r"cannot be made as Class\(plan\)"),
        ("Empty", "has no collate"),
        ("MODEL", "cannot be made"),
    ):
        with pytest.raises(UserError, match=said):
            task_of(plan(f"{here}:{name}"))
    with pytest.raises(ConfigError, match="cannot be imported"):
        task_of(plan(f"{here}:Absent"))
