"""The task's options, made concrete from what the data holds: what is learnt of a chat, labels and their weights."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from headway.config.schema import TaskConfig
from headway.facts.schema import DataFacts
from headway.plan.ledger import Ledger
from headway.plan.schema import TaskPlan
from headway.units import format_bytes

REFERENCE_BYTES = 8  # two fp32 log-probabilities a pair
# Of a plan whose data is not built yet.
SOME_LABELS = ("first label", "second label")


def plan_task(task: TaskConfig, data: DataFacts, ledger: Ledger) -> TaskPlan:
    """The task with every option written out."""
    if task.kind == "instruction":
        learnt = task.loss_on or "assistant"
        if task.loss_on is None:
            ledger.because("task.options.loss_on", "the assistant's words; task.loss_on: all learns the whole chat")
        share = f"{data.train_targets / max(data.tokens, 1):.0%} of the tokens are learnt"
        if not data.estimated:
            ledger.because("facts.train_targets", share)
        return TaskPlan(kind=task.kind, options={"loss_on": learnt})
    if task.kind == "preference":
        return _preference(task, data, ledger)
    if task.kind == "classification":
        labels = data.labels or SOME_LABELS
        options: dict[str, Any] = {"labels": list(labels), "weights": _weights(task, data, ledger)}
        if data.label_sets:
            ledger.because("task.options.sets", "the data gives each text a list of labels: each is a yes or a no")
            options["sets"] = True
        return TaskPlan(kind=task.kind, options=options)
    return TaskPlan(kind=task.kind, options=task.options)


def _preference(task: TaskConfig, data: DataFacts, ledger: Ledger) -> TaskPlan:
    """Beta 0.1, no smoothing, sums over tokens unless told otherwise: DPO as it was published."""
    if task.beta is None:
        ledger.because("task.options.beta", "DPO's own default")
    pairs = data.train_windows + data.eval_windows
    size = format_bytes(pairs * REFERENCE_BYTES)
    cost = "one forward pass over both answers of each pair, a third of what training on them once costs"
    ledger.because("task.options.reference", f"{pairs} pairs, {size} beside the token store: {cost}; then kept")
    options = {
        "beta": 0.1 if task.beta is None else task.beta,
        "label_smoothing": task.label_smoothing or 0.0,
        "per_token": bool(task.per_token),
        "reference": "",
    }
    return TaskPlan(kind=task.kind, options=options)


def _weights(task: TaskConfig, data: DataFacts, ledger: Ledger) -> list[float]:
    """One weight a label. balanced: texts / (labels x texts of the label), so that every label weighs the same.

    Where a text has any number of labels, the weight is that of its yes; balanced: texts without it / texts with it.
    """
    asked, labels = task.class_weights, data.labels or SOME_LABELS
    if asked is None or data.estimated:
        return [1.0] * len(labels)
    if asked == "balanced":
        if data.label_sets:
            ledger.because("task.options.weights", "balanced: texts without the label / texts with it")
            return [(data.documents - count) / count for count in data.label_counts]
        ledger.because("task.options.weights", "balanced: texts / (labels x texts of the label)")
        total = sum(data.label_counts)
        return [total / (len(labels) * count) for count in data.label_counts]
    for name in asked.keys() - set(labels):
        near = get_close_matches(name, labels, n=1)
        fix = f"did you mean {near[0]}?" if near else f"one of: {', '.join(labels[:20])}"
        ledger.refuse(f"task.class_weights.{name}", asked[name], "is no label of the data", fix)
    ledger.raise_problems()
    return [asked.get(name, 1.0) for name in labels]
