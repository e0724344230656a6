"""Name the class of a text. Loss: nats summed over the texts, each times its label's weight; the mean is over weights.

Accuracy and, in evaluation, each label's hits, guesses and texts are terms of weight 0: their sums over all ranks give
the macro F1 of the whole held-out data, not a mean of batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from headway.data.seam import IGNORE, Sample
from headway.plan.schema import Plan
from headway.task.metrics import macro_f1
from headway.task.seam import Batch, Term, Totals

_COUNTS = ("hits", "guesses", "texts")  # of each label
_MULTIPLE = 8  # rows are padded to a multiple of it, and no further than the longest text


class Classification:
    """The Task of kind `classification`; options `labels`, their names, and `weights`. A batch's inputs:

    input_ids, attention_mask: int64 [rows, length]; labels: int64 [rows], IGNORE for fillers; weights: fp32 [rows]
    """

    def __init__(self, plan: Plan):
        self._weights = np.array(plan.task.options["weights"], dtype=np.float32)
        self._pad = plan.model.config.get("pad_token_id") or 0
        self._static_shapes = plan.numerics.compile
        counted = [f"{kind}.{number}" for kind in _COUNTS for number in range(len(self._weights))]
        self.terms = {"loss": Term(), "accuracy": Term(0.0), **dict.fromkeys(counted, Term(0.0))}

    def collate(self, samples: Sequence[Sample], sequence: int) -> Batch:
        longest = max((len(sample.tokens) for sample in samples), default=0)
        length = sequence if self._static_shapes else min(sequence, -(-max(longest, 1) // _MULTIPLE) * _MULTIPLE)
        ids = np.full((len(samples), length), self._pad, dtype=np.int64)
        mask = np.zeros(ids.shape, dtype=np.int64)
        mask[:, 0] = 1  # a filler attends to something: a softmax over nothing is no number
        for row, sample in enumerate(samples):
            ids[row, : len(sample.tokens)], mask[row, : len(sample.tokens)] = sample.tokens, 1
        labels = np.array([sample.label for sample in samples], dtype=np.int64)
        weights = np.where(labels == IGNORE, 0, self._weights[np.maximum(labels, 0)]).astype(np.float32)
        inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels, "weights": weights}
        texts = float((labels != IGNORE).sum())
        counts = dict.fromkeys(self.terms, texts) | {"loss": float(weights.sum(dtype=np.float64))}
        tokens = sum(len(sample.tokens) for sample in samples)
        return Batch({k: torch.from_numpy(v) for k, v in inputs.items()}, counts, tokens)

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        """Sums of the terms; those of single labels in evaluation only."""
        inputs, labels = batch.inputs, batch.inputs["labels"]
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits.float()
        losses = F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none")
        guesses, real = logits.detach().argmax(-1), labels != IGNORE
        hit = (guesses == labels) & real
        terms = {"loss": (losses * inputs["weights"]).sum(), "accuracy": hit.sum().float()}
        if model.training and torch.is_grad_enabled():  # DeepSpeed's wrapper says training in evaluation too
            return terms
        found = (labels[hit], guesses[real], labels[real])
        counts = [torch.bincount(part, minlength=len(self._weights)).float().unbind() for part in found]
        names = [[f"{kind}.{number}" for number in range(len(self._weights))] for kind in _COUNTS]
        return terms | {name: n for row, ns in zip(names, counts, strict=True) for name, n in zip(row, ns, strict=True)}

    def metrics(self, totals: Totals) -> dict[str, float]:
        """loss, accuracy and macro F1; {} where there was no text."""
        if not totals.counts.get("accuracy"):
            return {}
        hits, guesses, texts = ([totals.sums.get(f"{k}.{n}", 0.0) for n in range(len(self._weights))] for k in _COUNTS)
        means = totals.means()
        return {"loss": means["loss"], "accuracy": means["accuracy"], "macro_f1": macro_f1(hits, guesses, texts)}
