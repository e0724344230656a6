"""What of a model is compared with its export: logits of a transformers model, losses of a module of one's own."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from headway.data.seam import IGNORE, Sample
from headway.errors import ModelError
from headway.export.card import Provenance, render_card
from headway.export.census import count
from headway.export.folder import ADAPTER, CARD, RECORD, is_adapter, read_record, write_json
from headway.export.own import LOADER
from headway.export.verify import (
    BOUNDS,
    Census,
    ExportCheck,
    coarsest,
    model_logits,
    probe_ids,
    quantised_logits,
    verify_export,
)
from headway.model.adapter import PREFIX
from headway.model.source import source_of
from headway.plan.schema import Plan
from headway.task.seam import Batch, Task

_PROBE_TOKENS = 128


@dataclass(frozen=True)
class Comparison:
    """measure(module): fp32 tensor on the host, by all ranks together; verify(folder, measured, provenance)."""

    measure: Callable[[nn.Module], torch.Tensor]
    verify: Callable[[Path, torch.Tensor, Provenance], ExportCheck]


def comparison(plan: Plan, task: Task) -> Comparison:
    """How this plan's model is compared with its folder."""
    if ":" not in plan.model.kind:
        ids = probe_ids(plan)
        held = plan.adapter is not None and plan.adapter.quantization is not None
        return Comparison(
            lambda model: quantised_logits(model, ids, plan) if held else model_logits(model, ids),
            lambda folder, reference, provenance: verify_export(folder, ids, reference, provenance),
        )
    return Comparison(
        lambda model: own_losses(model, task, plan),
        lambda folder, reference, provenance: verify_own(folder, task, reference, provenance),
    )


def probe_batch(task: Task, plan: Plan) -> Batch:
    """Two samples of fixed pseudo-random tokens, the same on every rank; a task may give a batch of its own."""
    own: Any = getattr(task, "probe_batch", None)
    if own is not None and (batch := own()) is not None:
        return batch
    random = np.random.default_rng(plan.numerics.seed + 1)
    length = min(_PROBE_TOKENS, plan.data.sequence)
    samples: list[Sample] = []
    for index in range(2):
        tokens = random.integers(0, plan.shape.vocab, length, dtype=np.int32)
        labels = np.append(tokens[1:], IGNORE).astype(np.int32)
        places = np.arange(length, dtype=np.int32)
        samples.append(Sample(index, tokens, labels, places, np.zeros(length, dtype=np.int32)))
    return task.collate(samples, plan.data.sequence)


@torch.no_grad()
def own_losses(model: nn.Module, task: Task, plan: Plan) -> torch.Tensor:
    """fp32 [terms]: each loss term's mean over a fixed batch, in evaluation mode."""
    training = model.training
    model.eval()
    batch = probe_batch(task, plan)
    try:
        terms = task.loss(model, batch.to(next(model.parameters()).device))
    finally:
        model.train(training)
    return torch.tensor([float(terms[name]) / max(batch.counts[name], 1.0) for name in sorted(terms)])


Load = Callable[[Path], nn.Module | None]


def verify_own(
    folder: Path, task: Task, reference: torch.Tensor, provenance: Provenance, load: Load | None = None
) -> ExportCheck:
    """Load the folder by its own loader, compare tensors and losses, and write the verdict into record and card.

    A ModelSource class of the user's is asked for `load(folder)`; without it only the stored values are compared.
    load: in its place. An adapter within a merged model's folder is compared too; the worse of the two is returned.
    """
    check = _verified(folder, task, reference, provenance, load)
    if not (folder / ADAPTER / RECORD).is_file():
        return check
    within = _verified(folder / ADAPTER, task, reference, provenance, load)
    return max(check, within, key=lambda one: (not one.verified, one.max_difference))


def _verified(
    folder: Path, task: Task, reference: torch.Tensor, provenance: Provenance, load: Load | None
) -> ExportCheck:
    record = read_record(folder)
    plan = provenance.plan
    try:
        model, loader = _loaded(folder, plan) if load is None else (load(folder), "the script's own module")
        check = _compared(folder, task, reference, plan, (record, model, loader))
    except Exception as error:  # a user's code may fail in any way
        said = f"it cannot be loaded: {type(error).__name__}: {' '.join(str(error).split())}"
        check = ExportCheck(False, math.inf, 0.0, said, Census(len(record["tensors"])))
    check = replace(check, folder=str(folder), compared="losses")
    write_json(folder / RECORD, {**record, "verified": check.verified, "check": asdict(check)})
    card = render_card(provenance, check.sentence(), adapter=is_adapter(folder))
    (folder / CARD).write_text(card, encoding="utf-8")
    return check


def _compared(
    folder: Path,
    task: Task,
    reference: torch.Tensor,
    plan: Plan,
    found: tuple[dict[str, Any], nn.Module | None, str],
) -> ExportCheck:
    record, model, loader = found
    stored: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        stored |= {name.removeprefix(PREFIX): tensor for name, tensor in load_file(file).items()}
    census = count(stored, record["tensors"], ())
    share, reason = BOUNDS[coarsest(plan)]
    bound = share * max(1.0, float(reference.abs().max()))
    if model is None:
        remark = "no second module could be made of it: its values were compared, not what it computes"
        return ExportCheck(census.whole, 0.0, bound, reason, census, remarks=(remark,), loader=loader)
    difference = float((own_losses(model.float(), task, plan) - reference).abs().max())
    return ExportCheck(census.whole and difference <= bound, difference, bound, reason, census, loader=loader)


def _loaded(folder: Path, plan: Plan) -> tuple[nn.Module | None, str]:
    file = folder / LOADER
    if not file.is_file():
        load: Any = getattr(source_of(plan), "load", None)
        return (load(folder), "its own ModelSource") if load else (None, "safetensors alone")
    spec = importlib.util.spec_from_file_location("headway_exported_model", file)
    if spec is None or spec.loader is None:
        raise ModelError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load(), f"its own {LOADER}"
