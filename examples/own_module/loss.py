"""A loss of one's own: the next token and, with a weight, the one after it. Two terms, each with its own count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from headway.data.seam import IGNORE, Sample
from headway.plan.schema import Plan
from headway.task.seam import Batch, Term, Totals


class NextAndAfter:
    """The loss of a step is next + weight x after, each the mean over its own targets, of all ranks and micro batches.

    Documents of one window are kept apart in the targets; the convolutions look over their borders, so
    `data.packing` is off in this example.
    """

    def __init__(self, plan: Plan):
        self.terms = {"next": Term(), "after": Term(float(plan.task.options.get("weight", 0.3)))}

    def collate(self, samples: Sequence[Sample], sequence: int) -> Batch:
        ids = np.zeros((len(samples), sequence), dtype=np.int64)
        labels = np.full((2, len(samples), sequence), IGNORE, dtype=np.int64)
        for row, sample in enumerate(samples):
            length = len(sample.tokens)
            ids[row, :length], labels[0, row, :length] = sample.tokens, sample.labels
            same = sample.documents[:-1] == sample.documents[1:]
            labels[1, row, : max(0, length - 1)] = np.where(same, sample.labels[1:], IGNORE)
        counts = {name: float((labels[number] != IGNORE).sum()) for number, name in enumerate(self.terms)}
        inputs = {"input_ids": ids, "next": labels[0], "after": labels[1]}
        tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
        return Batch(tensors, counts, tokens=sum(len(sample.tokens) for sample in samples))

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        logits = model(batch.inputs["input_ids"])
        return {name: _summed(each, batch.inputs[name]) for name, each in zip(self.terms, logits, strict=True)}

    def metrics(self, totals: Totals) -> dict[str, float]:
        return totals.means()


def _summed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    flat = logits.flatten(0, 1).float()
    return F.cross_entropy(flat, labels.flatten(), ignore_index=IGNORE, reduction="sum")
