"""What a user's own script hands over: a module that exists already, a loss function, batches of any form."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel

from headway.data.seam import Sample
from headway.errors import ModelError, Problem, UserError
from headway.model.heads import specialise_head, with_loss
from headway.model.huggingface import HuggingFaceSource
from headway.model.own import OwnSource
from headway.model.own_adapter import weights_digest
from headway.parallel.building import rank_device
from headway.parallel.collectives import exchange, world
from headway.plan.schema import Plan
from headway.task.causal_lm import CausalLM
from headway.task.seam import Batch, Term, Totals

LOSS = "loss"
_IGNORE = -100  # of transformers' losses


@dataclass(frozen=True)
class Loss:
    """A loss function of the script's own, `function(model, batch)`: a scalar, or one for each of `terms`.

    count: None: each value is a mean over the rows of the batch, as torch's losses are by default. A function of the
    batch: each value is a sum over so many items, a number for all terms or one for each by name.
    terms: name -> weight in the loss; 0: reported only.

    Either way a step's loss is, for each term, the mean over all items of all micro batches and ranks.
    """

    function: Callable[[Any, Any], Any]
    count: Callable[[Any], float | Mapping[str, float]] | None = None
    terms: Mapping[str, float] = field(default_factory=lambda: {LOSS: 1.0})


@dataclass
class GivenBatch(Batch):
    """A micro batch of the script's own form. stand_in: all ranks must compute, and it counts as nothing."""

    content: Any = None
    stand_in: bool = False

    def to(self, device: torch.device) -> GivenBatch:
        return GivenBatch({}, self.counts, self.tokens, moved(self.content, device), self.stand_in)


def moved(content: Any, device: torch.device) -> Any:
    """Every tensor of nested mappings, lists and tuples on the device; what has a `to` of its own is asked."""
    if isinstance(content, Mapping):
        return {key: moved(value, device) for key, value in content.items()}
    if isinstance(content, tuple) and hasattr(content, "_fields"):
        return type(content)(*(moved(value, device) for value in content))
    if isinstance(content, list | tuple):
        return type(content)(moved(value, device) for value in content)
    return content.to(device, non_blocking=True) if hasattr(content, "to") else content


def rows_of(content: Any) -> int | None:
    """The length of the first tensor in it; None where there is none."""
    if isinstance(content, torch.Tensor):
        return content.shape[0] if content.ndim else None
    parts = content.values() if isinstance(content, Mapping) else content if isinstance(content, list | tuple) else ()
    return next((rows for part in parts if (rows := rows_of(part)) is not None), None)


class GivenTask:
    """The Task around a Loss. Its batches are GivenBatches; of Headway's own data, the inputs of causal_lm by name."""

    def __init__(self, plan: Plan, loss: Loss | None = None):
        self._plan, self._loss = plan, loss or Loss(_absent)
        self.terms = {name: Term(weight) for name, weight in self._loss.terms.items()}
        self.last: GivenBatch | None = None

    def collate(self, samples: Sequence[Sample], sequence: int) -> Batch:
        """A micro batch of the run file's data. Raises UserError for a loss that does not say what it counts."""
        if self._loss.count is None:
            rule = "gives means over rows, and rows of tokens may be padded or fillers: their mean would be another"
            fix = "give loss=headway.Loss(function, count=...), whose values are sums"
            raise UserError(problems=[Problem("loss", rule, fix=fix)])
        base = CausalLM(self._plan.model_copy(update={"task": self._plan.task.model_copy(update={"options": {}})}))
        batch = base.collate(samples, sequence)
        return GivenBatch({}, self._counts(batch.inputs, batch.inputs), batch.tokens, batch.inputs)

    def batch(self, content: Any, *, stand_in: bool = False) -> Batch:
        """A micro batch of the script's, with its counts; a Batch of Headway's stays as it is."""
        if isinstance(content, Batch):
            return content
        counts = dict.fromkeys(self.terms, 0.0) if stand_in else self._counts(content, content)
        return GivenBatch({}, counts, 0 if stand_in else _tokens(content), content, stand_in)

    def _counts(self, content: Any, shown: Any) -> dict[str, float]:
        if self._loss.count is None:
            rows = rows_of(content)
            if rows is None:
                rule = "a batch without a tensor has no rows to take the mean over"
                fix = "give loss=headway.Loss(function, count=...), whose values are sums"
                raise UserError(problems=[Problem("loss", rule, type(content).__name__, fix)])
            return dict.fromkeys(self.terms, float(rows))
        said = self._loss.count(shown)
        if not isinstance(said, Mapping):
            return dict.fromkeys(self.terms, float(said))
        if said.keys() != self.terms.keys():
            raise _other_names("count", said.keys(), self.terms)
        return {name: float(said[name]) for name in self.terms}

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        """Each term's sum. Raises UserError where the function gives other terms, or no scalars."""
        content = batch.content if isinstance(batch, GivenBatch) else batch.inputs
        values = self._loss.function(model, content)
        found = dict(values) if isinstance(values, Mapping) else {LOSS: values}
        if found.keys() != self.terms.keys():
            raise _other_names("loss", found.keys(), self.terms)
        wrong = [n for n, value in found.items() if not isinstance(value, torch.Tensor) or value.numel() != 1]
        if wrong:
            rule = f"must be a tensor of one number, not {_described(found[wrong[0]])}"
            raise UserError(problems=[Problem(f"loss.{wrong[0]}", rule, fix="return its mean over the batch's rows")])
        if isinstance(batch, GivenBatch):
            self.last = batch
            if batch.stand_in:
                return {name: value.float().reshape(()) * 0.0 for name, value in found.items()}
        means = self._loss.count is None
        return {n: value.float().reshape(()) * (batch.counts[n] if means else 1.0) for n, value in found.items()}

    def metrics(self, totals: Totals) -> dict[str, float]:
        """Each term's mean."""
        return totals.means()

    def probe_batch(self) -> Batch | None:
        """What an export is compared on: the last batch that was seen."""
        return self.last


def _described(value: Any) -> str:
    return f"one of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def _other_names(what: str, found: Any, terms: Mapping[str, Any]) -> UserError:
    rule = f"gave the terms {', '.join(map(str, found))}; those of the loss are {', '.join(terms)}"
    return UserError(problems=[Problem(what, rule, fix="name them all: headway.Loss(function, terms={name: weight})")])


def _absent(model: Any, batch: Any) -> Any:
    raise ModelError("the loss of this run is a function of the script's that started it", fix="start that script")


def _tokens(content: Any) -> int:
    if isinstance(content, Mapping):
        for name in ("attention_mask", "input_ids"):
            if isinstance(content.get(name), torch.Tensor):
                tensor = content[name]
                return int(tensor.sum()) if name == "attention_mask" else tensor.numel()
    return rows_of(content) or 0


def models_own_loss(module: nn.Module) -> Loss:
    """The loss that the module itself returns, a mean over the labels that it does not ignore, else over the rows.

    A language model of transformers predicts the next token: the first column of its labels counts for nothing.
    """
    inner: Any = getattr(module, "get_base_model", None)  # of PEFT's wrapper
    bare: Any = inner() if callable(inner) else module
    shifted = isinstance(bare, PreTrainedModel) and type(bare).__name__.endswith(("ForCausalLM", "LMHeadModel"))

    def count(batch: Any) -> float:
        labels = batch.get("labels") if isinstance(batch, Mapping) else None
        if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
            return float(rows_of(batch) or 0)
        return float(((labels[..., 1:] if shifted and labels.ndim > 1 else labels) != _IGNORE).sum())

    def function(model: Any, batch: Any) -> Any:
        if isinstance(batch, Mapping):
            output = model(**batch)
        else:
            output = model(*batch) if isinstance(batch, list | tuple) else model(batch)
        mean = output.get(LOSS) if isinstance(output, Mapping) else getattr(output, "loss", output)
        if not isinstance(mean, torch.Tensor) or mean.numel() != 1:
            rule = f"returned {_described(mean)}, which is no loss"
            fix = "give prepare(..., loss=function), a function of the model and a batch"
            raise UserError(problems=[Problem("model", rule, type(module).__name__, fix)])
        return mean * count(batch)

    return Loss(function, count)


class GivenSource(OwnSource):
    """The ModelSource of a module that the script has made. Made from the plan alone, it can only say so."""

    def __init__(self, plan: Plan, module: nn.Module | None = None):
        super().__init__(plan, lambda: module)  # pyright: ignore[reportArgumentType]
        self.module = module

    def build(self) -> nn.Module:
        """The module itself, on the rank's device, with rank 0's weights where the ranks had made different ones."""
        if self.module is None:
            what = "the module of this run exists only in the script that started it"
            raise ModelError(what, fix="take the model there: run.export()")
        return on_all_ranks(self.module, rank_device(self._plan))

    def reload(self, folder: Path) -> nn.Module | None:
        """A second module with the folder's weights alone; None where no rank holds the module whole."""
        if self.module is None or any(hasattr(parameter, "ds_tensor") for parameter in self.module.parameters()):
            return None
        fresh = copy.deepcopy(self.module).cpu()
        with torch.no_grad():
            for parameter in fresh.parameters():
                parameter.fill_(torch.nan)
        tensors = {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}
        fresh.load_state_dict(tensors, strict=False)
        return fresh


class GivenTransformersSource(HuggingFaceSource):
    """The ModelSource of a transformers model that the script has made."""

    builds_whole = True

    def __init__(self, plan: Plan, module: PreTrainedModel, *, loss_inside: bool):
        super().__init__(plan)
        self.module, self._inside = module, loss_inside

    def build(self) -> nn.Module:
        """The model itself; on Headway's own data it is told where documents begin, and gives the summed loss."""
        if self._inside:
            self.module.__class__ = with_loss(self._kind)
            specialise_head(self._kind, self.skeleton, self.module)
            self.module.set_attn_implementation(self.config._attn_implementation or "sdpa")
        return on_all_ranks(self.module, rank_device(self._plan))

    def fill(self, name: str, module: nn.Module) -> None:
        """Nothing is left to write: the script has."""


def on_all_ranks(module: nn.Module, device: torch.device) -> nn.Module:
    """The module in fp32 on `device`, with equal weights and buffers on every rank: rank 0's where they differ."""
    module = module.float().to(device)
    if world()[1] > 1 and len(set(exchange(weights_digest(module)))) > 1:
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, 0)
    return module
