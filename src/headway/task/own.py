"""The Task of a plan. One of the user's own is held to the seam: a slip of it is named, not a traceback in a rank."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
from torch import nn

from headway.data.seam import Sample
from headway.errors import Problem, UserError
from headway.plan.schema import Plan
from headway.registry import resolve
from headway.task.seam import Batch, Task, Term, Totals

_METHODS = ("collate", "loss", "metrics")
_SLIPS = (KeyError, IndexError, AttributeError, NameError, TypeError, ZeroDivisionError)
_CLOSELY = 2  # batches whose values are looked at, which on a GPU waits for them


def task_of(plan: Plan) -> Task:
    """The plan's task. Raises ConfigError for a kind that cannot be imported, UserError for a class that is no Task."""
    made = resolve("task", plan.task.kind)
    if ":" not in plan.task.kind:
        return made(plan)
    if not callable(made):
        raise _wrong("is not a class that makes a Task", plan.task.kind, "name a class, made as Class(plan)")
    try:
        task = made(plan)
    except TypeError as error:
        raise _wrong(f"cannot be made as Class(plan): {error}", plan.task.kind, "def __init__(self, plan)") from error
    return checked(task)


def checked(task: Any) -> Task:
    """A task of the user's own, each of its answers looked at. Raises UserError where it lacks a method or terms."""
    if type(task).__module__.partition(".")[0] == "headway":
        return task
    name = type(task).__name__
    lacking = [method for method in _METHODS if not callable(getattr(task, method, None))]
    if lacking:
        raise _wrong(f"has no {', '.join(lacking)}", name, "see headway.task.seam.Task")
    terms = getattr(task, "terms", None)
    if not (isinstance(terms, Mapping) and terms and all(isinstance(term, Term) for term in terms.values())):
        raise _wrong("has no terms: a mapping of names to Terms", name, 'self.terms = {"loss": Term()}')
    if not any(term.weight for term in terms.values()):
        raise _wrong("has no term with a weight: nothing would be learnt", name, 'self.terms = {"loss": Term()}')
    return CheckedTask(task)


def unwrapped(task: Task) -> Any:
    """The user's own object behind a checked task."""
    return task._task if isinstance(task, CheckedTask) else task


class CheckedTask:
    """A user's task. What it has beyond the seam is asked of it."""

    def __init__(self, task: Any):
        self._task = task
        self._looked = 0
        self.terms: dict[str, Term] = dict(task.terms)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_task"], name)

    def collate(self, samples: Sequence[Sample], sequence: int) -> Batch:
        """Raises UserError for what is no Batch, or does not count each term."""
        with self._named("collate"):
            batch = self._task.collate(samples, sequence)
        if not isinstance(batch, Batch):
            raise self._wrong("collate", f"gave {type(batch).__name__}, not a headway.task.seam.Batch")
        for name in self.terms:
            if name not in batch.counts:
                counted = ", ".join(map(str, batch.counts)) or "nothing"
                raise self._wrong("collate", f"does not count the term {name!r}; it counts {counted}")
            count = batch.counts[name]
            if not isinstance(count, Real) or not math.isfinite(float(count)) or float(count) < 0:
                raise self._wrong("collate", f"counts {count!r} items of {name!r}, which is no number of items")
        return batch

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        """Scalars in fp32. Raises UserError for other terms, for what is no sum, or where no gradient could flow."""
        with self._named("loss"):
            found = self._task.loss(model, batch)
        if not isinstance(found, Mapping):
            said = f"gave {type(found).__name__}, not a mapping of the terms' names to their sums"
            raise self._wrong("loss", said, f"return {{{next(iter(self.terms))!r}: the sum}}")
        unknown = [str(name) for name in found if name not in self.terms]
        absent = [name for name, term in self.terms.items() if term.weight and name not in found]
        if unknown or absent:
            given, named = (", ".join(map(str, names)) or "none" for names in (found, self.terms))
            raise self._wrong("loss", f"gave the terms {given}; those of the task are {named}")
        sums = {name: self._scalar(name, value) for name, value in found.items()}
        learnt = [value for name, value in sums.items() if self.terms[name].weight]
        if torch.is_grad_enabled() and model.training and not any(value.requires_grad for value in learnt):
            said = "gave sums that do not depend on the model's parameters: there is no gradient"
            raise self._wrong("loss", said, "compute them from the model's output, without detach() or .item()")
        self._look_closely(sums, batch)
        return sums

    def _scalar(self, name: str, value: Any) -> torch.Tensor:
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            return value.reshape(()).float()
        what = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise self._wrong("loss", f"gave {what} for {name!r}, not a tensor of one number", "the sum over the batch")

    def _look_closely(self, sums: dict[str, torch.Tensor], batch: Batch) -> None:
        """A sum over no items would count in no mean, or in one of its own making."""
        if self._looked == _CLOSELY:
            return
        self._looked += 1
        for name, value in sums.items():
            if float(value.detach()) != 0.0 and float(batch.counts[name]) == 0.0:
                said = f"gave {float(value.detach()):.4g} for {name!r} in a batch in which collate counts 0 of it"
                raise self._wrong("loss", said, f"counts={{{name!r}: the number of items that are summed}}")

    def metrics(self, totals: Totals) -> dict[str, float]:
        """Raises UserError for what are no figures by name."""
        with self._named("metrics"):
            found = self._task.metrics(totals)
        try:
            return {str(name): float(value) for name, value in found.items()}
        except (AttributeError, TypeError, ValueError) as error:
            said = f"gave what is no mapping of names to numbers: {error}"
            raise self._wrong("metrics", said, "return totals.means()") from error

    @contextmanager
    def _named(self, method: str) -> Iterator[None]:
        """A slip in the user's code, by file and line. Other failures, as of memory, are left as they are."""
        try:
            yield
        except _SLIPS as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            rule = f"failed at {at.filename}:{at.lineno}: {type(error).__name__}: {error}"
            raise self._wrong(method, rule, "correct it; the log holds the traceback") from error

    def _wrong(self, method: str, said: str, fix: str = "see headway.task.seam.Task") -> UserError:
        return _wrong(f"{said}", f"{type(self._task).__name__}.{method}", fix)


def _wrong(rule: str, value: str, fix: str) -> UserError:
    return UserError(problems=[Problem("task", rule, value, fix)])
