"""One optimizer step, the same for every engine: counts first, then backward, then a verdict, then step or discard.

The loss of a step is, for each term, weight x (sum over all micro batches and ranks) / (count over the same). Engines
average gradients over the data-parallel ranks, so each backward takes sum x data_parallel_size / global count.
So padding, packing, accumulation and world size never change the loss.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import nn

from headway.parallel.collectives import sum_over_ranks, world
from headway.parallel.seam import Guard, StepResult
from headway.task.seam import Batch, Task, Totals

Verdict = Callable[[float], bool]  # global gradient norm -> apply the step?


class SteppingEngine(ABC):
    """What `train_step` and `evaluate` share; a subclass says how to run backward and how to apply."""

    model: nn.Module
    device: torch.device
    task: Task

    def train_step(self, micro_batches: Sequence[Batch], lr: float, guard: Guard) -> StepResult:
        """See `headway.parallel.seam.Engine.train_step`."""
        counts, tokens = self._global_counts(micro_batches)
        sums: dict[str, torch.Tensor] = {}
        self.model.train()
        for index, batch in enumerate(micro_batches):
            last = index == len(micro_batches) - 1
            with self._micro_step(last):
                with self._precision():  # not around the backward pass too: autocast would keep its copies of weights
                    terms = self.task.loss(self.model, batch.to(self.device))
                self._backward(self._objective(terms, counts), last)
            for name, value in terms.items():
                detached = value.detach().double()
                sums[name] = sums[name] + detached if name in sums else detached
        totals = Totals(sum_over_ranks({name: float(sums[name]) for name in sorted(sums)}, self.device), counts)
        means = totals.means()

        def verdict(grad_norm: float) -> bool:
            return math.isfinite(grad_norm) and guard(means, grad_norm)

        grad_norm, applied = self._apply(lr, verdict)
        return StepResult(totals, grad_norm, applied, tokens, self._used_lr(), self._loss_scale())

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch]) -> Totals:
        """See `headway.parallel.seam.Engine.evaluate`."""
        self.model.eval()
        sums: dict[str, float] = dict.fromkeys(self.task.terms, 0.0)
        counts: dict[str, float] = dict.fromkeys(self.task.terms, 0.0)
        for batch in batches:
            with self._precision():
                terms = self.task.loss(self.model, batch.to(self.device))
            for name, value in terms.items():
                sums[name] += float(value)
                counts[name] += batch.counts[name]
        names = sorted(self.task.terms)
        flat = {f"sum {name}": sums[name] for name in names} | {f"count {name}": counts[name] for name in names}
        total = sum_over_ranks(flat, self.device)
        return Totals({n: total[f"sum {n}"] for n in names}, {n: total[f"count {n}"] for n in names})

    def _global_counts(self, micro_batches: Sequence[Batch]) -> tuple[dict[str, float], int]:
        mine = {name: sum(batch.counts[name] for batch in micro_batches) for name in sorted(self.task.terms)}
        mine["\ntokens"] = sum(batch.tokens for batch in micro_batches)
        summed = sum_over_ranks(mine, self.device)
        return summed, int(summed.pop("\ntokens"))

    def _objective(self, terms: dict[str, torch.Tensor], counts: dict[str, float]) -> torch.Tensor:
        size = world()[1]
        parts = [
            value * (self.task.terms[name].weight * size / max(counts[name], 1.0))
            for name, value in terms.items()
            if self.task.terms[name].weight != 0.0
        ]
        return torch.stack(parts).sum() if len(parts) > 1 else parts[0]

    @abstractmethod
    def _precision(self) -> AbstractContextManager[object]:
        """The context that a forward pass runs in."""

    @abstractmethod
    def _micro_step(self, last: bool) -> AbstractContextManager[object]:
        """The context of one micro batch; gradients are exchanged only in the last."""

    @abstractmethod
    def _backward(self, objective: torch.Tensor, last: bool) -> None: ...

    @abstractmethod
    def _apply(self, lr: float, verdict: Verdict) -> tuple[float, bool]:
        """(global gradient norm before clipping, whether the step was applied); gradients are cleared either way."""

    @abstractmethod
    def _used_lr(self) -> float:
        """The learning rate as the optimizer holds it, so that the record shows what was used, not what was asked."""

    def _loss_scale(self) -> float:
        return 1.0
