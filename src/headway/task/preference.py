"""Prefer one answer to another (DPO, Rafailov et al. 2023, eq. 7): a classifier of pairs, by log-probabilities.

With the log-probability of an answer's tokens under the model less that under the reference, times beta, as its reward:
the loss of a pair is -log sigmoid(reward of the chosen - reward of the rejected) in nats, smoothed as in Mitchell 2023
(a share of the labels is taken for wrong). The reference is the model as it was before the first step, asked once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from headway.data.seam import Sample
from headway.model.attention import attention_inputs
from headway.plan.schema import Plan
from headway.task.causal_lm import CausalLM
from headway.task.seam import Batch, Term, Totals

_MULTIPLE = 8  # rows are padded to a multiple of it, and no further than the longest answer
_REPORTED = ("accuracy", "margin", "reward_chosen", "reward_rejected")


class Preference(CausalLM):
    """The Task of kind `preference`; options beta, label_smoothing, per_token. A batch's inputs beside causal_lm's:

    input_ids, labels, position_ids: int64 [pairs, 2, length], the chosen answer first, each behind its prompt
    reference: fp32 [pairs, 2], the log-probabilities of the answers under the reference
    real: fp32 [pairs], 0 for fillers
    per_token: an answer's log-probability is its mean over the answer's tokens, not their sum.
    """

    option_names = frozenset({"beta", "label_smoothing", "per_token", "reference"})

    def __init__(self, plan: Plan):
        super().__init__(plan)
        options = plan.task.options
        self.terms = {"loss": Term(), **dict.fromkeys(_REPORTED, Term(0.0))}
        self._beta, self._smoothing = float(options["beta"]), float(options["label_smoothing"])
        self._per_token = bool(options["per_token"])
        # Equal on all ranks, whatever their answers' lengths: ZeRO-3 gathers the head once for each part.
        tokens = 2 * plan.batch.micro_batch * plan.data.sequence
        self._parts = -(-tokens // self._chunk_tokens) if self._chunk_tokens else 1

    def collate(self, samples: Sequence[Sample], sequence: int) -> Batch:
        """Pairs to one micro batch of [len(samples), 2, length]."""
        rows = [row for sample in samples for row in answers(sample)]
        longest = max((len(row.tokens) for row in rows), default=0)
        length = sequence if self._static_shapes else min(sequence, -(-max(longest, 1) // _MULTIPLE) * _MULTIPLE)
        flat = super().collate(rows, length)
        real = [float(len(sample.tokens) > 0) for sample in samples]
        known = [sample.reference or (0.0, 0.0) for sample in samples]
        shaped = {k: v.unflatten(0, (len(samples), 2)) if v.ndim == 2 else v for k, v in flat.inputs.items()}
        shaped |= {
            "reference": torch.tensor(known, dtype=torch.float32).view(len(samples), 2),
            "real": torch.tensor(real, dtype=torch.float32),
        }
        return Batch(shaped, dict.fromkeys(self.terms, sum(real)), flat.tokens)

    def log_probabilities(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """fp32 [pairs, 2], with graph: of each answer's tokens, summed, or their mean where `per_token`."""
        pairs = batch.inputs["real"].shape[0]
        inputs = {k: v.flatten(0, 1) if v.ndim == 3 else v for k, v in batch.inputs.items()}
        kept, every = inputs["kept"], inputs["labels"].flatten()
        row = kept // inputs["labels"].shape[1]
        if self._loss_inside:
            arguments = attention_inputs(inputs, self._attention, static_shapes=self._static_shapes)
            called: dict[str, Any] = {"targets": every.index_select(0, kept), "kept": kept, "parts": self._parts}
            found = model(input_ids=inputs["input_ids"], use_cache=False, **called, **arguments)["nats"]
        else:
            logits = self.logits(model, inputs).flatten(0, 1).index_select(0, kept)
            found = F.cross_entropy(logits.float(), every.index_select(0, kept), reduction="none")
        summed = found.new_zeros(2 * pairs).index_add(0, row, -found)
        if self._per_token:
            summed = summed / torch.bincount(row, minlength=2 * pairs).clamp_min(1)
        return summed.view(pairs, 2)

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        """Sums over the pairs: loss in nats, how many are judged right, margins and rewards."""
        real = batch.inputs["real"]
        rewards = self._beta * (self.log_probabilities(model, batch) - batch.inputs["reference"]) * real[:, None]
        chosen, rejected = rewards.unbind(1)
        margin, smoothing = chosen - rejected, self._smoothing
        losses = -(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin)
        shown = rewards.detach()
        return {
            "loss": (losses * real).sum(),
            "accuracy": ((margin.detach() > 0) * real).sum(),
            "margin": margin.detach().sum(),
            "reward_chosen": shown[:, 0].sum(),
            "reward_rejected": shown[:, 1].sum(),
        }

    def metrics(self, totals: Totals) -> dict[str, float]:
        """loss (nats a pair), accuracy, margin and rewards (nats, times beta); {} where there was no pair."""
        return totals.means()


def answers(sample: Sample) -> tuple[Sample, Sample]:
    """The chosen and the rejected answer of a pair, each as a sample of one document; two fillers of a filler."""
    first = sample.documents == 0
    parts = [
        Sample(
            sample.index,
            sample.tokens[mine],
            sample.labels[mine],
            sample.positions[mine],
            np.zeros(int(mine.sum()), dtype=np.int32),
        )
        for mine in (first, ~first)
    ]
    return parts[0], parts[1]
