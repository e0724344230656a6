"""The same steps in plain PyTorch: one process, no packing, no engine, nothing fused, nothing of Headway's arithmetic.

Each document goes through the transformers model alone; losses are summed and divided by the count of the whole step;
then torch's own clipping and optimizer, at a learning rate from the textbook formula. Every step begins where the
engine's step began.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from headway.certify.outcome import Outcome
from headway.data.order import window_at
from headway.data.seam import IGNORE, Sample, SampleSource
from headway.model.naming import named_state
from headway.model.seam import ModelSource
from headway.model.source import source_of
from headway.parallel.building import build_filled
from headway.plan.schema import OptimizerPlan, Plan, SchedulePlan
from headway.task.own import task_of
from headway.task.seam import Batch, Task
from headway.train.build import open_data


def rates(schedule: SchedulePlan) -> np.ndarray:
    """float64 [steps]: linear warm-up to the peak, then cosine or linear decay to the floor, or constant."""
    steps = np.arange(1, schedule.steps + 1, dtype=np.float64)
    warm = steps / max(schedule.warmup_steps, 1)
    rest = (steps - schedule.warmup_steps) / max(schedule.steps - schedule.warmup_steps, 1)
    floor = schedule.min_lr / schedule.peak_lr
    decay = {
        "cosine": floor + (1 - floor) * (1 + np.cos(np.pi * rest)) / 2,
        "linear": floor + (1 - floor) * (1 - rest),
        "constant": np.ones_like(steps),
    }[schedule.kind]
    return schedule.peak_lr * np.where(steps <= schedule.warmup_steps, warm, decay)


def sample_name(tokens: np.ndarray, labels: np.ndarray) -> str:
    """A short hash of what a window teaches: its tokens up to the last that has a label; '' where none has."""
    labelled = np.flatnonzero(labels != IGNORE)
    if not len(labelled):
        return ""
    end = int(labelled[-1]) + 1
    content = np.concatenate([tokens[:end], labels[:end]]).astype("<i8")
    return hashlib.sha256(content.tobytes()).hexdigest()[:16]


def row_names(batch: Batch, filler: str = "") -> list[str]:
    """The name of each row, as `sample_name` gives it; of a user's own batch, a hash of what every input has there.

    `filler`: the name that a filler's row gets, so that it is '' too.
    """
    inputs = {name: tensor.numpy() for name, tensor in batch.inputs.items()}
    labels = inputs.get("labels", np.empty((0, 0), dtype=np.int64))
    if {"input_ids", "attention_mask"} <= inputs.keys() and (labels.ndim == 1 or labels.dtype.kind == "f"):
        rows = zip(inputs["input_ids"], inputs["attention_mask"].sum(1).tolist(), labels, strict=True)
        return [text_name(row[:length], _numbers(label)) for row, length, label in rows]
    if {"input_ids", "labels"} <= inputs.keys():
        pairs = zip(inputs["input_ids"], inputs["labels"], strict=True)
        if labels.ndim == 3:  # two answers
            return ["".join(map(sample_name, ids, goals)) for ids, goals in pairs]
        return [sample_name(row, labels) for row, labels in pairs]
    count = len(next(iter(inputs.values())))
    tables = [values for _, values in sorted(inputs.items()) if values.ndim > 1 and len(values) == count]
    names: list[str] = []
    for row in range(count):
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(table[row]).tobytes() for table in tables))
        names.append(digest.hexdigest()[:16])
    return ["" if name == filler else name for name in names]


def filler_name(task: Task, sequence: int) -> str:
    """What `row_names` calls the row of a filler."""
    empty = np.zeros(0, dtype=np.int32)
    return row_names(task.collate([Sample(-1, empty, empty, empty, empty)], sequence))[0]


def text_name(tokens: np.ndarray, labels: Sequence[int] | None) -> str:
    """A short hash of a labelled text: its tokens and the numbers of its labels; '' for a filler, which has None."""
    content = np.concatenate([tokens, [IGNORE], labels or []]).astype("<i8")
    return "" if labels is None else hashlib.sha256(content.tobytes()).hexdigest()[:16]


def _numbers(row: np.ndarray) -> Sequence[int] | None:
    """The labels of a row of a batch: its class, or of a row of yes and no, those of yes."""
    found = row.tolist() if row.ndim else [int(row)]
    if found[0] == IGNORE:
        return None
    return np.flatnonzero(row == 1).tolist() if row.ndim else found


def _name_of(window: Sample) -> str:
    held = window.held if window.held is not None else (window.label,)
    return sample_name(window.tokens, window.labels) or text_name(window.tokens, held)


def run_reference(plan: Plan, engine: Outcome) -> dict[str, Any]:
    """Each step from the state that the engine had: losses, norms, rates, tokens, sample names and gradients by step.

    Then the update by the engine's own gradients: weights and moments after each step. So each comparison is of one
    computation. Left to itself, a second trajectory would drift: Adam moves a weight whose gradient is mere rounding
    by a whole learning rate, in either direction.
    """
    source: ModelSource = source_of(plan)
    model = build_filled(source, torch.device("cpu"))
    samples = open_data(plan, "train")
    own = _OwnTask(plan) if ":" in plan.task.kind else None
    if plan.task.kind == "preference":
        own = _Pairs(plan, model, samples)
    optimizer = _optimizer(plan.optimizer, model)
    table = rates(plan.schedule)
    found: dict[str, Any] = {"losses": [], "norms": [], "rates": table.tolist(), "tokens": [], "samples": []}
    found |= {f"weight@0/{name}": p.detach().clone().numpy() for name, p in named_state(model)}
    model.train()
    for step in range(1, plan.schedule.steps + 1):
        total = plan.batch.global_sequences
        positions = range((step - 1) * total, step * total)
        windows = [samples[window_at(plan.numerics.seed, position, len(samples))] for position in positions]
        _take_state(model, optimizer, engine, step - 1)
        found["losses"].append(_backward(model, windows, plan) if own is None else own.backward(model, windows))
        found |= {f"gradient@{step}/{name}": gradient.clone().numpy() for name, gradient in _gradients(model)}
        norm = torch.nn.utils.get_total_norm([gradient for _, gradient in _gradients(model)], foreach=False)
        found["norms"].append(float(norm))
        _take_gradients(model, engine, step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), plan.optimizer.clip or math.inf, foreach=False)
        for group in optimizer.param_groups:
            group["lr"] = float(table[step - 1])
        optimizer.step()
        found |= _state_after(step, model, optimizer)
        found["tokens"].append(sum(len(window.tokens) for window in windows))
        found["samples"].append([own.name(window) if own else _name_of(window) for window in windows])
    return found


def _backward(model: nn.Module, windows: list[Sample], plan: Plan) -> float:
    """The gradients of a step's mean loss, document by document; the loss."""
    model.zero_grad()
    loss = 0.0
    parts = _classes(model, windows, plan) if plan.task.kind == "classification" else _next_tokens(model, windows)
    for part in parts:
        part.backward()
        loss += float(part)
    return loss


def _next_tokens(model: nn.Module, windows: list[Sample]) -> Iterator[torch.Tensor]:
    """Each document's share of the mean over all targets of the step."""
    count = sum(int((window.labels != IGNORE).sum()) for window in windows)
    for tokens, labels in (part for window in windows for part in _documents(window)):
        logits = _logits(model, tokens[None])[0].float()
        yield F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum") / count


def _classes(model: nn.Module, windows: list[Sample], plan: Plan) -> Iterator[torch.Tensor]:
    """Each text's share of the mean over all texts of the step, by their labels' weights; no padding."""
    weights: list[float] = plan.task.options["weights"]
    if plan.task.options.get("sets"):
        yield from _yes_or_no(model, windows, torch.tensor(weights))
        return
    total = sum(weights[window.label] for window in windows)
    for window in windows:
        logits = model(input_ids=torch.from_numpy(window.tokens)[None].long()).logits[0].float()
        yield -logits.log_softmax(0)[window.label] * weights[window.label] / total


def _yes_or_no(model: nn.Module, windows: list[Sample], weights: torch.Tensor) -> Iterator[torch.Tensor]:
    """Each text's share of the mean over all texts and labels; a yes by its label's weight."""
    for window in windows:
        logits = model(input_ids=torch.from_numpy(window.tokens)[None].long()).logits[0].float()
        truth = torch.tensor([float(number in (window.held or ())) for number in range(len(weights))])
        losses = -weights * truth * F.logsigmoid(logits) - (1 - truth) * F.logsigmoid(-logits)
        yield losses.sum() / (len(windows) * len(weights))


class _Pairs:
    """Preferences, one answer at a time; the reference is the model as it is now, asked of every pair."""

    def __init__(self, plan: Plan, model: nn.Module, samples: SampleSource):
        self._options = plan.task.options
        model.eval()
        with torch.no_grad():
            self._known = [self._log_probabilities(model, samples[number]) for number in range(len(samples))]

    def _log_probabilities(self, model: nn.Module, window: Sample) -> torch.Tensor:
        """fp32 [2]."""
        found: list[torch.Tensor] = []
        for tokens, labels in _documents(window):
            kept = labels != IGNORE
            logs = _logits(model, tokens[None])[0].float().log_softmax(-1)[kept]
            each = logs.gather(1, labels[kept][:, None])
            found.append(each.mean() if self._options["per_token"] else each.sum())
        return torch.stack(found)

    def name(self, window: Sample) -> str:
        sides = [window.documents == number for number in (0, 1)]
        return "".join(sample_name(window.tokens[side], window.labels[side]) for side in sides)

    def backward(self, model: nn.Module, windows: list[Sample]) -> float:
        """The gradients of the mean loss of a step's pairs; the loss."""
        model.zero_grad()
        beta, smoothing = self._options["beta"], self._options["label_smoothing"]
        total = 0.0
        for window in windows:
            rewards = beta * (self._log_probabilities(model, window) - self._known[window.index])
            right = torch.sigmoid(rewards[0] - rewards[1])
            loss = -((1 - smoothing) * right.log() + smoothing * (1 - right).log()) / len(windows)
            loss.backward()
            total += float(loss.detach())
        return total


class _OwnTask:
    """The user's own task, asked for one sample at a time: no packing, no accumulation, nothing shared out."""

    def __init__(self, plan: Plan):
        self._task: Task = task_of(plan)
        self._sequence = plan.data.sequence
        self._filler = filler_name(self._task, plan.data.sequence)

    def name(self, window: Sample) -> str:
        return row_names(self._task.collate([window], self._sequence), self._filler)[0]

    def backward(self, model: nn.Module, windows: list[Sample]) -> float:
        """The gradients of a step's loss, each term the mean over its own count; the sum of the terms' means."""
        task = self._task
        batches = [task.collate([window], self._sequence) for window in windows]
        counts = {name: max(sum(batch.counts[name] for batch in batches), 1.0) for name in task.terms}
        model.zero_grad()
        loss = 0.0
        for batch in batches:
            terms = {name: value / counts[name] for name, value in task.loss(model, batch).items()}
            weighted = torch.stack([task.terms[name].weight * value for name, value in terms.items()]).sum()
            weighted.backward()
            loss += float(weighted)
        return loss


def _logits(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """[1, length, entries]. A user's own model is called as training calls it, and may return a bare tensor."""
    if isinstance(model, PreTrainedModel):
        return model(input_ids=tokens, use_cache=False).logits
    output = model(input_ids=tokens, position_ids=torch.arange(tokens.shape[1])[None])
    found = output[0] if isinstance(output, tuple) else output
    return found if isinstance(found, torch.Tensor) else found.logits


def _gradients(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, p.grad) for name, p in named_state(model) if p.grad is not None]


@torch.no_grad()
def _take_state(model: nn.Module, optimizer: torch.optim.Optimizer, engine: Outcome, step: int) -> None:
    """The engine's weights and moments after `step`. What it lacks stays as it is: the judge will see it."""
    weights, moments = engine.group(f"weight@{step}"), engine.group(f"moment@{step}")
    for name, parameter in named_state(model):
        if name in weights:
            parameter.copy_(torch.from_numpy(weights[name]).view_as(parameter))
        kinds = {key.partition("/")[0]: value for key, value in moments.items() if key.partition("/")[2] == name}
        if step > 0 and kinds:
            state = {kind: torch.from_numpy(value.copy()).view_as(parameter) for kind, value in kinds.items()}
            optimizer.state[parameter] = {"step": torch.tensor(float(step)), **state}


def _take_gradients(model: nn.Module, engine: Outcome, step: int) -> None:
    gradients = engine.group(f"gradient@{step}")
    for name, parameter in named_state(model):
        if name in gradients:
            parameter.grad = torch.from_numpy(gradients[name].copy()).view_as(parameter)


def _state_after(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name, parameter in named_state(model):
        found[f"weight@{step}/{name}"] = parameter.detach().clone().numpy()
        for kind, tensor in optimizer.state.get(parameter, {}).items():
            if isinstance(tensor, torch.Tensor) and tensor.shape == parameter.shape:
                found[f"moment@{step}/{kind}/{name}"] = tensor.detach().flatten().clone().numpy()
    return found


def _documents(window: Sample) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(tokens, labels) of each document of a window that has anything to learn."""
    for number in np.unique(window.documents):
        mine = window.documents == number
        labels = torch.from_numpy(window.labels[mine]).long()
        if bool((labels != IGNORE).any()):
            yield torch.from_numpy(window.tokens[mine]).long(), labels


def _optimizer(plan: OptimizerPlan, model: nn.Module) -> torch.optim.Optimizer:
    decayed = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    groups = [
        {"params": decayed, "weight_decay": plan.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    plain: dict[str, Any] = {"lr": 0.0, "foreach": False}
    match plan.kind:
        case "adamw":
            return torch.optim.AdamW(groups, betas=plan.betas, eps=plan.eps, **plain)
        case "adam":
            return torch.optim.Adam(groups, betas=plan.betas, eps=plan.eps, **plain)
        case "sgd":
            return torch.optim.SGD(groups, momentum=plan.momentum, **plain)
        case "rmsprop":
            return torch.optim.RMSprop(groups, alpha=plan.betas[1], eps=plan.eps, **plain)
