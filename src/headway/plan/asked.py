"""Run-file keys that the plan does not keep as they stand: what was said, and what memory and time take from it."""

from __future__ import annotations

from typing import Any, cast

from headway.config.fields import write_amount
from headway.config.keys import field_at, fields
from headway.config.schema import RunConfig, Section
from headway.units import Amount

# Keys, with all below them, that change neither memory nor time: what they are for.
ASIDE = {
    "name": "what the run is called",
    "runs": "where run directories are made",
    "data.cache": "where token stores lie",
    "data.workers": "processes that tokenise, before the run",
    "data.encoder": "what tokenises, before the run; the ids are the same",
    "task.beta": "a number in the loss",
    "task.label_smoothing": "a number in the loss",
    "task.per_token": "whether the loss sums or averages an answer's tokens",
    "task.class_weights": "numbers in the loss",
    "task.loss_on": "which tokens of a chat have a loss; all of them are computed",
    "adapter.alpha": "a factor of the pair's product",
    "train.seed": "where weights, order and dropout start",
    "train.log_every": "how often a line is written",
    "optimizer.lr": "how far a step goes",
    "optimizer.betas": "numbers in the update",
    "optimizer.eps": "a number in the update",
    "optimizer.weight_decay": "a number in the update",
    "optimizer.clip": "a bound on the gradient's norm, which is taken in any case",
    "optimizer.schedule": "how far a step goes",
    "optimizer.warmup": "how far the first steps go",
    "optimizer.min_lr_ratio": "how far the last steps go",
    "strategy.gradient_compression.start_step": "when powersgd starts",
    "checkpoint.at_end": "one more save, after the last step",
    "launch.kind": "by what the processes are started",
    "launch.timeout": "how long a rank waits for the others before it gives up",
    "launch.grace": "how long a run may take to save when it is asked to stop",
    "launch.port": "where the ranks meet",
    "launch.debug": "what NCCL and torch write; the time that this takes is not planned",
    "certify": "whether the run must have a certificate first",
    "export": "the model folder, after the last step",
}
# Keys that enter the plan by what they lead to.
LEADS_TO = {
    "model.tokenizer": "its entries are shape.vocab",
    "model.options": "what the factory makes of them is counted: shape",
    "model.config.extra": "it stands in model.config, and what it changes is counted: shape",
    "data.train": "what was read is counted: facts",
    "data.more": "what was read is counted: facts",
    "data.eval": "what was read is counted: facts",
    "data.eval.weight": "held-out data have no weight",
    "task.options": "passed to your own task: task.options",
    "adapter": "there is no adapter: all parameters are trained",
    "strategy.config": "what it says is in the values of strategy, optimizer and numerics; the rest in strategy.engine",
    "strategy.gradient_compression": "gradients are sent as they are",
    "track": "where figures go: what the libraries hold is the item `trackers` of memory.items, on a CPU",
    "track.own": "where figures go: what your own tracker holds is not planned",
}


def without_effect(key: str) -> str:
    """Why a key changes neither memory nor time; "" where it does, or is no key of a run file."""
    found = _nearest(key, ASIDE)
    return f"has no effect on memory or time: {found}" if found else ""


def is_asked(key: str) -> bool:
    """Whether a run file can say it."""
    return field_at(tuple(key.split("."))) is not None


def asked_row(key: str, config: RunConfig | None) -> tuple[str, str, str]:
    """(key, what the run file says or its default, what follows from it)."""
    return key, _said(key, config), without_effect(key) or _nearest(key, LEADS_TO) or "as the run file says"


def _nearest(key: str, table: dict[str, str]) -> str:
    """The entry of the key, or of what it is part of."""
    while key:
        if key in table:
            return table[key]
        key = key.rpartition(".")[0]
    return ""


def _said(key: str, config: RunConfig | None) -> str:
    value: Any = config
    for part in key.split("."):
        if isinstance(value, tuple):  # of several sources, the first
            value = next(iter(cast("tuple[Any, ...]", value)), None)
        if not isinstance(value, Section):
            return "not said"
        value = getattr(value, dict(_names(value)).get(part, part))
    if isinstance(value, Amount):
        return write_amount(value)
    if isinstance(value, Section):
        said = {name: getattr(value, field) for name, field in _names(value)}
        return ", ".join(f"{name}: {inner}" for name, inner in said.items() if inner not in (None, (), {}))
    return "not said" if value is None else str(value)


def _names(section: Section) -> list[tuple[str, str]]:
    return list(zip(fields(type(section)), type(section).model_fields, strict=True))
