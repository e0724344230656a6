"""Predict the next token. The loss is one term, `loss`: nats summed over the positions that have a label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from headway.data.seam import IGNORE, Sample
from headway.errors import ConfigError, Problem
from headway.model.attention import attention_inputs
from headway.plan.schema import Plan
from headway.task.metrics import perplexity
from headway.task.seam import Batch, Term, Totals

_LOSS_INSIDE = ("config", "pretrained")  # model kinds whose forward takes targets and gives the summed loss


class CausalLM:
    """The Task of kind `causal_lm`. `option_names`: the options that a task with this loss takes. A batch's inputs:

    input_ids, labels, position_ids: int64 [rows, sequence]; IGNORE where a position has no target
    kept: int64 [targets], the positions of the flattened batch that have a label
    borders: int32 [fragments + 1], where the documents of the flattened batch begin, and its length
    """

    option_names: frozenset[str] = frozenset()

    def __init__(self, plan: Plan):
        unknown = sorted(plan.task.options.keys() - self.option_names)
        if unknown:
            rule = f"{plan.task.kind} has no such option"
            raise ConfigError(problems=[Problem(f"task.options.{key}", rule, fix="drop it") for key in unknown])
        self.terms = {"loss": Term()}
        self._attention = plan.model.attention
        self._static_shapes = plan.numerics.compile
        self._chunk_tokens = plan.numerics.loss_chunk_tokens
        self._loss_inside = plan.model.kind in _LOSS_INSIDE

    def collate(self, samples: Sequence[Sample], sequence: int) -> Batch:
        """Samples, short ones padded to the right, to one micro batch of [len(samples), sequence].

        Padding has no label and belongs to the document before it, which causal attention keeps from seeing it.
        """
        shape = (len(samples), sequence)
        ids, labels = np.zeros(shape, dtype=np.int64), np.full(shape, IGNORE, dtype=np.int64)
        positions = np.empty(shape, dtype=np.int64)
        borders = [np.arange(0, (len(samples) + 1) * sequence, sequence, dtype=np.int32)]
        for row, sample in enumerate(samples):
            length = len(sample.tokens)
            ids[row, :length], labels[row, :length] = sample.tokens, sample.labels
            positions[row, :length] = sample.positions
            after = int(sample.positions[-1]) + 1 if length else 0
            positions[row, length:] = np.arange(after, after + sequence - length)
            inner = np.flatnonzero(np.diff(sample.documents)) + (row * sequence + 1)
            borders.append(inner.astype(np.int32))
        kept = np.flatnonzero(labels != IGNORE)
        inputs = {
            "input_ids": ids,
            "labels": labels,
            "position_ids": positions,
            "kept": kept,
            "borders": np.sort(np.concatenate(borders)),
        }
        tokens = sum(len(sample.tokens) for sample in samples)
        return Batch({k: torch.from_numpy(v) for k, v in inputs.items()}, {"loss": float(len(kept))}, tokens)

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        """{"loss": sum of the targets' cross entropy in nats, fp32, with graph}; 0 for a batch of fillers."""
        inputs = batch.inputs
        if not self._loss_inside:
            flat = self.logits(model, inputs).flatten(0, 1).float()
            return {"loss": F.cross_entropy(flat, inputs["labels"].flatten(), ignore_index=IGNORE, reduction="sum")}
        arguments = attention_inputs(inputs, self._attention, static_shapes=self._static_shapes)
        kept, every = inputs["kept"], inputs["labels"].flatten()
        return model(
            input_ids=inputs["input_ids"],
            use_cache=False,
            targets=every.index_select(0, kept),
            kept=None if kept.shape[0] == every.shape[0] else kept,
            chunk_tokens=self._chunk_tokens,
            **arguments,
        )

    def logits(self, model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """[rows, sequence, entries] of a model that is the user's own."""
        return _logits(model(input_ids=inputs["input_ids"], position_ids=inputs["position_ids"]))

    def metrics(self, totals: Totals) -> dict[str, float]:
        """loss (nats a target) and perplexity; {} where there was no target."""
        means = totals.means()
        return {**means, "perplexity": perplexity(means["loss"])} if "loss" in means else {}


def _logits(output: Any) -> torch.Tensor:
    """[rows, sequence, entries] of a user's model, which may return a tensor, a tuple, or an object with logits."""
    if isinstance(output, torch.Tensor):
        return output
    return output[0] if isinstance(output, tuple) else output.logits
