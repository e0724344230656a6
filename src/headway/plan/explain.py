"""A plan as rows of text: the summary, the memory by item, one value's reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, cast

from headway.config.schema import RunConfig
from headway.errors import PlanError
from headway.plan.asked import asked_row, is_asked, without_effect
from headway.plan.memory import used_bytes
from headway.plan.schema import IntervalPlan, MemoryItem, Plan
from headway.units import format_bytes, format_count, format_seconds

Row = tuple[str, str, str]  # what, value, why

REJECTED = "strategy.rejected."
NOTES = "notes."
_KEY = re.compile(r"[a-z_]+(\.[a-z_]+)+")
# Where the plan keeps what the run file says under another word.
_IN_PLAN = {
    "train": "batch",
    "train.sequence": "data.sequence",
    "train.micro_batch": "batch.micro_batch",
    "train.accumulation": "batch.accumulation",
    "train.activation_checkpointing": "numerics.activation_checkpointing",
    "train.compile": "numerics.compile",
    "train.tf32": "numerics.tf32",
    "train.seed": "numerics.seed",
    "train.log_every": "log_every",
    "model.from": "model.path",
    "model.factory": "model.kind",
    "model.tokenizer": "data.tokenizer",
    "data.more": "data.sources",
    "optimizer.min_lr_ratio": "schedule.min_lr",
    "strategy.gradient_compression": "strategy.compression",
    "launch.grace": "launch.grace_seconds",
    "export.max_shard": "export.max_shard_bytes",
    "train.length": "schedule.steps",
    "train.global_batch": "batch.global_sequences",
    "train.precision": "numerics.precision",
    "train.loss_chunk": "numerics.loss_chunk_tokens",
    "train.eval_every": "evaluate",
    "train.stop_after": "stop_after_seconds",
    "optimizer.lr": "schedule.peak_lr",
    "optimizer.min_lr": "schedule.min_lr",
    "optimizer.schedule": "schedule.kind",
    "optimizer.warmup": "schedule.warmup_steps",
    "strategy.offload": "strategy.offload_optimizer",
    "strategy.offload.optimizer": "strategy.offload_optimizer",
    "strategy.offload.parameters": "strategy.offload_parameters",
    "model.config.vocab": "shape.vocab",
    "model.config.tie_embeddings": "shape.tied",
    "model.config.dropout": "shape.hidden_dropout",
    "data.train.weight": "data.weights",
    "data.more.weight": "data.weights",
    "strategy.reduce_bucket": "strategy.reduce_bucket_elements",
    "strategy.allgather_bucket": "strategy.allgather_bucket_elements",
    "strategy.prefetch_bucket": "strategy.prefetch_bucket_elements",
    "strategy.persistence_threshold": "strategy.persistence_threshold_elements",
    "launch.gpus": "launch.processes",
    "launch.timeout": "launch.timeout_seconds",
    "data.train": "data.store",
    "data.eval": "facts.eval_windows",
}
# Sections that are facts or follow from all the others.
_COUNTED = {
    "memory": "follows from the model, the batch, the strategy and the precision",
    "shape": "counted from the model's config",
    "cluster": "what was found of the machine, or what --on says of it",
    "facts": "what the token store holds, or will hold",
    "headway": "the version that planned",
    "version": "of this layout of a plan",
}


def summary_rows(plan: Plan) -> list[Row]:
    """What will be trained, how, and why, in a dozen lines."""

    def why(key: str, otherwise: str = "") -> str:
        return _worded(plan.reasons.get(key, otherwise))

    batch, schedule, launch = plan.batch, plan.schedule, plan.launch
    numerics, used = plan.numerics, used_bytes(plan.memory, plan.cluster)
    triple = f"{batch.micro_batch} x {batch.accumulation} x {batch.data_parallel_size} = {batch.slots}"
    fill = batch.slots - batch.global_sequences
    filled = f"; {fill} of {batch.slots} places hold a filler of zero count" if fill else ""
    options = [name for name in ("activation_checkpointing", "compile", "tf32") if getattr(numerics, name)]
    options += [f"loss in chunks of {numerics.loss_chunk_tokens} tokens"] if numerics.loss_chunk_tokens else []
    most = "" if plan.fills_windows else "at most "
    return [
        ("model", _model_text(plan), "counted from its config"),
        *([("adapter", _adapter_text(plan), why("adapter", ""))] if plan.adapter else []),
        ("data", _data_text(plan), why("facts", plan.data.store)),
        ("devices", f"{launch.processes} x {plan.cluster.device_name}", why("launch.processes")),
        ("strategy", plan.strategy.label, why("strategy")),
        ("precision", ", ".join([numerics.precision, *options]), why("numerics.precision")),
        ("attention", plan.model.attention, why("model.attention")),
        ("global batch", _batch_text(plan), why("batch.global_sequences")),
        ("micro batch x accumulation x ranks", triple, why("batch.micro_batch") + filled),
        ("steps", f"{schedule.steps} ({most}{format_count(schedule.tokens)} tokens)", why("schedule.steps")),
        ("learning rate", _rate_text(plan), why("schedule.warmup_steps")),
        ("memory", f"{format_bytes(used)} of {format_bytes(plan.memory.device_limit_bytes)} a process", "estimated"),
        ("evaluate", interval_text(plan.evaluate), why("evaluate")),
        ("checkpoint", _checkpoint_text(plan), why("checkpoint.every")),
    ]


def _worded(reason: str) -> str:
    """A reason that is a bare key of the run file, as a sentence."""
    return f"as {reason} says" if _KEY.fullmatch(reason) else reason


def _model_text(plan: Plan) -> str:
    shape = plan.shape
    size = f"{format_count(shape.parameters)} parameters, {shape.layers} layers of {shape.hidden}"
    return f"{shape.arch}, {size}" + (f", from {plan.model.path}" if plan.model.path else "")


def _adapter_text(plan: Plan) -> str:
    asked = plan.adapter
    if asked is None:
        return "none"
    targets = asked.targets if isinstance(asked.targets, str) else ", ".join(asked.targets)
    dropout = f", dropout {asked.dropout:g}" if asked.dropout else ""
    double = ", scales in 8 bits" if asked.double_quantization else ""
    held = f", base in {asked.quantization}{double}" if asked.quantization else ""
    return f"{asked.kind}, rank {asked.rank}, alpha {asked.alpha:g}{dropout}, {targets}{held}"


def _data_text(plan: Plan) -> str:
    data = plan.facts
    if data.layout == "given":
        return "the script's own batches"
    about = "about " if data.estimated else ""
    epochs = plan.schedule.steps * plan.batch.global_sequences / max(1, data.train_windows)
    windows = f"{format_count(data.train_windows)} windows of {data.sequence}"
    return f"{about}{format_count(data.tokens)} tokens, {windows}; read {epochs:.2g} times"


def _batch_text(plan: Plan) -> str:
    tokens = plan.batch.global_sequences * plan.data.sequence
    return f"{plan.batch.global_sequences} sequences = {format_count(tokens)} tokens"


def _rate_text(plan: Plan) -> str:
    schedule = plan.schedule
    after = f"{schedule.kind} to {schedule.min_lr:.3g}" if schedule.kind != "constant" else "constant"
    if schedule.warmup_steps == 0:
        return f"{schedule.peak_lr:.3g} from the start, {after}"
    plural = "s" * (schedule.warmup_steps != 1)
    return f"{schedule.peak_lr:.3g} after {schedule.warmup_steps} step{plural}, then {after}"


def _checkpoint_text(plan: Plan) -> str:
    every = interval_text(plan.checkpoint.every)
    at_end = ", and at the end" if plan.checkpoint.at_end else ""
    return f"{every}{at_end}; keep {plan.checkpoint.keep}"


def interval_text(interval: IntervalPlan) -> str:
    """'every 200 steps', 'every 30 min', 'never'."""
    if interval.steps is not None:
        return "every step" if interval.steps == 1 else f"every {interval.steps} steps"
    return f"every {format_seconds(interval.seconds)}" if interval.seconds is not None else "never"


def reason_rows(plan: Plan) -> list[Row]:
    """(plan path, value, reason) of everything that was derived."""
    values = dict(flatten(plan.model_dump(mode="json", exclude={"reasons"})))
    skipped = (REJECTED, NOTES)
    return [
        (key, _text(values.get(key, "")), _worded(reason))
        for key, reason in plan.reasons.items()
        if not key.startswith(skipped)
    ]


def note_texts(plan: Plan) -> list[str]:
    """What the user should know of the model, that is no fault."""
    return [reason for key, reason in plan.reasons.items() if key.startswith(NOTES)]


def explain(plan: Plan, key: str, config: RunConfig | None = None) -> list[Row]:
    """The values at a plan path and below it ("batch", "batch.micro_batch"), each with its reason.

    A run file's key (train.micro_batch) is taken for the plan's (batch.micro_batch); one that the plan does not keep is
    told from `config`, the run file. A value without a reason of its own has that of what it is part of.

    Raises:
        PlanError: there is no such path; the nearest are named.
    """
    values = dict(flatten(plan.model_dump(mode="json", exclude={"reasons"})))
    known = values.keys() | plan.reasons.keys()
    path = _IN_PLAN.get(key) or (key if _below(key, known) else None)
    if path is None and is_asked(key) and not key.startswith("model.config."):
        return [asked_row(key, config)]
    path = path or _of_the_plan(key, known)
    if path is None and is_asked(key):
        return [asked_row(key, config)]
    if path is None:
        near = get_close_matches(key, [*sorted(known), *_IN_PLAN], n=3, cutoff=0.4) or sorted(plan.reasons)[:3]
        raise PlanError(f"the plan has no value {key!r}", fix=f"for example --explain {', '.join(near)}")
    names = dict.fromkeys([*_below(path, plan.reasons), *_below(path, values)])
    rows = [(name, _text(values.get(name, "")), _reason(plan, name)) for name in names]
    aside = without_effect(key)
    return [(name, value, f"{why}; {aside}" if aside else why) for name, value, why in rows]


def _reason(plan: Plan, name: str) -> str:
    if name in plan.reasons:
        return _worded(plan.reasons[name])
    if name.partition(".")[0] in _COUNTED:
        return _COUNTED[name.partition(".")[0]]
    whole = name.rpartition(".")[0]
    while whole:
        if whole in plan.reasons:
            return f"follows from {whole}: {_worded(plan.reasons[whole])}"
        whole = whole.rpartition(".")[0]
    return "as the run file or its default says"


def _below(path: str, names: Any) -> list[str]:
    return [name for name in names if name == path or name.startswith(f"{path}.")]


def _of_the_plan(key: str, known: set[str]) -> str | None:
    """The plan's path of a run-file key: the only one that ends in the same word."""
    word = key.rpartition(".")[2]
    ends = sorted(name for name in known if name.rpartition(".")[2] == word)
    return ends[0] if len(ends) == 1 else None


def _text(value: Any) -> str:
    """A memory plan's items by name and size; of anything else its own words."""
    if isinstance(value, list) and value and "device_bytes" in str(cast("object", value[0])):
        items = [MemoryItem.model_validate(row) for row in cast("list[object]", value)]
        return ", ".join(
            f"{item.name} {format_bytes(item.device_bytes)}"
            + (f" ({format_bytes(item.host_bytes)} on the host)" if item.host_bytes else "")
            for item in items
        )
    return value if isinstance(value, str) else repr(cast("object", value))


def flatten(value: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, leaf) of nested mappings; lists are leaves."""
    if not isinstance(value, dict):
        yield prefix, value
        return
    for name, inner in cast("dict[str, object]", value).items():
        yield from flatten(inner, f"{prefix}.{name}" if prefix else name)
