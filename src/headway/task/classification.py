"""Name the class of a text, or each of its labels.

One class a text: nats summed over the texts, each times its label's weight; the mean is over the weights. Any number of
labels: each is a yes or a no; nats summed over texts and labels, a yes times its label's weight; the mean is over all
of them (transformers' multi_label_classification). A guess is a yes that is likelier than not, and a text is right
where all its labels are.

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
from headway.task.metrics import macro_f1, micro_f1
from headway.task.seam import Batch, Term, Totals

_COUNTS = ("hits", "guesses", "texts")  # of each label
_MULTIPLE = 8  # rows are padded to a multiple of it, and no further than the longest text


class Classification:
    """One class a text; options `labels`, their names, and `weights`. A batch's inputs:

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
        inputs, texts, weight = self._targets(samples)
        inputs |= {"input_ids": ids, "attention_mask": mask}
        counts = dict.fromkeys(self.terms, texts) | {"loss": weight}
        tokens = sum(len(sample.tokens) for sample in samples)
        return Batch({k: torch.from_numpy(v) for k, v in inputs.items()}, counts, tokens)

    def _targets(self, samples: Sequence[Sample]) -> tuple[dict[str, np.ndarray], float, float]:
        """(inputs of the loss, how many texts, what the mean loss is over)."""
        labels = np.array([sample.label for sample in samples], dtype=np.int64)
        weights = np.where(labels == IGNORE, 0, self._weights[np.maximum(labels, 0)]).astype(np.float32)
        return {"labels": labels, "weights": weights}, float((labels != IGNORE).sum()), float(weights.sum(dtype=float))

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        """Sums of the terms; those of single labels in evaluation only."""
        inputs = batch.inputs
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits.float()
        terms, counted = self._judged(logits, inputs)
        if model.training and torch.is_grad_enabled():  # DeepSpeed's wrapper says training in evaluation too
            return terms
        counts = [part.float().unbind() for part in counted]
        names = [[f"{kind}.{number}" for number in range(len(self._weights))] for kind in _COUNTS]
        return terms | {name: n for row, ns in zip(names, counts, strict=True) for name, n in zip(row, ns, strict=True)}

    def _judged(
        self, logits: torch.Tensor, inputs: dict[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """({"loss", "accuracy"}: sums, [labels] each of _COUNTS)."""
        labels = inputs["labels"]
        losses = F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none")
        guesses, real = logits.detach().argmax(-1), labels != IGNORE
        hit = (guesses == labels) & real
        counted = [
            torch.bincount(part, minlength=len(self._weights)) for part in (labels[hit], guesses[real], labels[real])
        ]
        terms = {"loss": (losses * inputs["weights"]).sum(), "accuracy": hit.sum().float()}
        return terms, (counted[0], counted[1], counted[2])

    def metrics(self, totals: Totals) -> dict[str, float]:
        """loss, accuracy and macro F1; {} where there was no text."""
        if not totals.counts.get("accuracy"):
            return {}
        hits, guesses, texts = ([totals.sums.get(f"{k}.{n}", 0.0) for n in range(len(self._weights))] for k in _COUNTS)
        means = totals.means()
        figures = {"loss": means["loss"], "accuracy": means["accuracy"], "macro_f1": macro_f1(hits, guesses, texts)}
        return figures | self._more_figures(hits, guesses, texts)

    def _more_figures(self, hits: list[float], guesses: list[float], texts: list[float]) -> dict[str, float]:
        return {}  # with one class a text, micro F1 is the accuracy


class LabelSets(Classification):
    """Any number of labels a text. A batch's `labels`: fp32 [rows, labels], 1 yes, 0 no, IGNORE for fillers."""

    def _targets(self, samples: Sequence[Sample]) -> tuple[dict[str, np.ndarray], float, float]:
        labels = np.zeros((len(samples), len(self._weights)), dtype=np.float32)
        for row, sample in enumerate(samples):
            if sample.held is None:
                labels[row] = IGNORE
            else:
                labels[row, list(sample.held)] = 1
        texts = float((labels[:, 0] != IGNORE).sum())
        return {"labels": labels}, texts, texts * len(self._weights)

    def _judged(
        self, logits: torch.Tensor, inputs: dict[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        real = (inputs["labels"][:, :1] != IGNORE).float()
        truth = inputs["labels"].clamp(min=0)
        weights = torch.from_numpy(self._weights).to(logits.device)
        losses = F.binary_cross_entropy_with_logits(logits, truth, pos_weight=weights, reduction="none")
        guesses = (logits.detach() > 0).float()
        right = ((guesses == truth).all(-1, keepdim=True) * real).sum()
        counted = ((truth * guesses * real).sum(0), (guesses * real).sum(0), (truth * real).sum(0))
        return {"loss": (losses * real).sum(), "accuracy": right}, counted

    def _more_figures(self, hits: list[float], guesses: list[float], texts: list[float]) -> dict[str, float]:
        return {"micro_f1": micro_f1(hits, guesses, texts)}


def classification(plan: Plan) -> Classification:
    """The Task of kind `classification`, as the data has it."""
    return LabelSets(plan) if plan.task.options.get("sets") else Classification(plan)
