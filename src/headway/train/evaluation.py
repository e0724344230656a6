"""Held-out figures: from a run's totals, and of a module alone, in the very sums that the run's ranks would make."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import nn

from headway.data.loader import eval_batches
from headway.data.seam import SampleSource
from headway.plan.schema import Plan
from headway.task.metrics import bits_per_byte
from headway.task.seam import Task, Totals
from headway.train.loop import mean_loss

_GZIP_BYTES = 1024  # of a document, in the mean: gzip's header and trailer are 18
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def held_out_figures(plan: Plan, task: Task, totals: Totals) -> dict[str, float]:
    """The task's metrics, of text with its bits per byte. `loss` is always among them.

    Beside them those of `gzip -9` on each document alone, where that says something: not of the answers cut out of
    chats, nor of documents so short that gzip's header and its empty window are what is measured.
    """
    figures = task.metrics(totals)
    facts = plan.facts
    if facts.eval_bytes and "loss" in totals.sums:
        figures["bits_per_byte"] = bits_per_byte(totals.sums["loss"], facts.eval_bytes)
        if plan.task.kind != "instruction" and facts.eval_bytes >= _GZIP_BYTES * facts.eval_documents:
            figures["gzip_bits_per_byte"] = 8 * facts.eval_gzip_bytes / facts.eval_bytes
    figures.setdefault("loss", mean_loss(totals, {name: term.weight for name, term in task.terms.items()}))
    return figures


@torch.no_grad()
def judge(module: nn.Module, task: Task, plan: Plan, samples: SampleSource) -> dict[str, float]:
    """The figures that the run itself gave, or would give, of these weights: batches and sums are those of its ranks.

    On the run's kind of device the losses are equal to the last bit (fp32); elsewhere within rounding.
    """
    module.eval()
    device = next(module.parameters()).device
    world, micro_batch = plan.batch.data_parallel_size, plan.batch.micro_batch
    collate = partial(task.collate, sequence=plan.data.sequence)
    sums, counts = dict.fromkeys(task.terms, 0.0), dict.fromkeys(task.terms, 0.0)
    for rank in range(world):
        mine = dict.fromkeys(task.terms, 0.0)
        for batch in eval_batches(samples, collate, micro_batch, rank, world):
            with _precision(plan, device):
                terms = task.loss(module, batch.to(device))
            for name, value in terms.items():
                mine[name] += float(value)
                counts[name] += batch.counts[name]
        sums = {name: sums[name] + mine[name] for name in sums}
    return held_out_figures(plan, task, Totals(sums, counts))


def _precision(plan: Plan, device: torch.device) -> AbstractContextManager[object]:
    dtype = _DTYPES.get(plan.numerics.precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
