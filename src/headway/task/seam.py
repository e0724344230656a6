"""What is learnt. A task turns samples into a batch, and a batch into named sums with counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

from headway.data.seam import Sample


@dataclass
class Batch:
    """One micro batch on the host.

    inputs: tensors for the task's loss: [micro_batch, ...], or 1-D for what rows do not divide (borders).
    counts: term name -> how many items (target tokens, documents) its sum is taken over. Known before the forward pass.
    tokens: positions that hold a real token, for throughput.
    """

    inputs: dict[str, torch.Tensor]
    counts: dict[str, float]
    tokens: int

    def to(self, device: torch.device) -> Batch:
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in self.inputs.items()}
        return Batch(moved, self.counts, self.tokens)


@dataclass(frozen=True)
class Term:
    """A loss term: weight x (sum over all ranks and micro batches) / (count over the same)."""

    weight: float = 1.0


@dataclass
class Totals:
    """Sums and counts by term, over any number of batches and ranks."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)

    def means(self) -> dict[str, float]:
        return {name: self.sums[name] / self.counts[name] for name in self.sums if self.counts.get(name)}


class Task(Protocol):
    """At most six methods. `terms` declares the loss; a term of weight 0 is reported only."""

    terms: dict[str, Term]

    def collate(self, samples: Sequence[Sample], sequence: int) -> Batch:
        """Samples (some may be fillers, of zero count) to one micro batch of [len(samples), sequence]."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        """Term name -> sum (scalar, with graph, at least fp32) over this batch's items. Never a mean."""
        ...

    def metrics(self, totals: Totals) -> dict[str, float]:
        """Evaluation figures by name (loss, perplexity, ...) from global totals."""
        ...
