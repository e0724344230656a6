"""Rules between keys that need nothing but the run file. A table: each rule names the sections that it reads.

A rule runs when all its sections could be read, so one bad key does not hide what is wrong elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, cast

from headway.config.schema import (
    AdapterConfig,
    DataConfig,
    LaunchConfig,
    ModelConfig,
    OptimizerConfig,
    SourceConfig,
    StrategyConfig,
    TaskConfig,
    TrackConfig,
    TrainConfig,
)
from headway.errors import Problem
from headway.registry import GIVEN_DATA, GIVEN_TRANSFORMERS, kinds
from headway.units import Amount, format_count

Rule = Callable[..., Iterable[Problem]]

_IMPORT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
SMALLEST_VOCABULARY = 257
VOCABULARY_RULE = f"must be at least {SMALLEST_VOCABULARY}: one entry for each byte, and the end of text"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _known_kind(key: str, kind: str, legal: list[str]) -> Iterator[Problem]:
    if kind in legal or ":" in kind:
        return
    near = get_close_matches(kind.lower(), legal, n=1)
    fix = f"did you mean {near[0]}?" if near else "or name your own as package.module:Class"
    yield Problem(key, f"must be one of: {', '.join(legal)}", kind, fix)


# --- model and data --------------------------------------------------------------------------------------------------


def _revision(model: ModelConfig) -> Iterator[Problem]:
    if model.revision is not None and model.from_ is None:
        yield Problem("model.revision", "has a meaning only with model.from", model.revision, "remove it")


def _tokenizer(model: ModelConfig, data: DataConfig) -> Iterator[Problem]:
    if model.from_ is None and model.tokenizer is None and data.train.kind != GIVEN_DATA:
        fix = "tokenizer: {train: 32k} to train one on the data, or {from: ./folder}"
        yield Problem("model.tokenizer", "is required for a model from scratch", fix=fix)
    size = model.tokenizer.train if model.tokenizer else None
    if size is not None and size < SMALLEST_VOCABULARY:
        yield Problem("model.tokenizer.train", VOCABULARY_RULE, size, "e.g. train: 8k")


def _own_model(model: ModelConfig, task: TaskConfig, data: DataConfig) -> Iterator[Problem]:
    """A model of the user's own, and what Headway cannot do for it."""
    if model.factory in (None, GIVEN_TRANSFORMERS):
        if model.options:
            yield Problem("model.options", "has a meaning only with model.factory", fix="remove it")
        return
    if not _IMPORT.fullmatch(model.factory):
        yield Problem("model.factory", "must be package.module:name", model.factory, "for example factory: net:make")
    if task.kind == "causal_lm" and data.packing:
        rule = "would let documents of one sequence see each other: your module is not told where they begin"
        fix = "write data: {packing: false}, or a task of your own, which gets the borders"
        yield Problem("data.packing", rule, True, fix)
    if task.kind in kinds("task") and task.kind != "causal_lm":
        rule = f"needs a model of the transformers library; yours is {model.factory}"
        yield Problem("task.kind", rule, task.kind, "write task: causal_lm, or a task of your own")


def _arch(model: ModelConfig) -> Iterator[Problem]:
    arch = model.config
    if arch is None:
        return
    if arch.hidden % arch.heads and "head_dim" not in arch.extra:
        nearby = [n for n in range(max(1, arch.heads - 64), arch.heads + 64) if arch.hidden % n == 0]
        fix = f"{min(nearby, key=lambda n: abs(n - arch.heads))} does" if nearby else ""
        yield Problem("model.config.heads", f"must divide model.config.hidden ({arch.hidden})", arch.heads, fix)
    if arch.kv_heads and arch.heads % arch.kv_heads:
        rule = f"must divide model.config.heads ({arch.heads})"
        yield Problem("model.config.kv_heads", rule, arch.kv_heads)
    trained = model.tokenizer.train if model.tokenizer else None
    if trained and arch.vocab != "auto" and trained > arch.vocab:
        rule = f"is smaller than the tokenizer that is trained ({trained} entries)"
        yield Problem("model.config.vocab", rule, arch.vocab, "leave it out, or train a smaller tokenizer")


def _sequence_fits(model: ModelConfig, train: TrainConfig) -> Iterator[Problem]:
    longest = model.config.max_sequence if model.config else "auto"
    if longest != "auto" and longest < train.sequence:
        rule = f"is longer than model.config.max_sequence ({longest})"
        yield Problem("train.sequence", rule, train.sequence, "raise max_sequence, or shorten the sequence")


def _something_to_predict(task: TaskConfig, train: TrainConfig) -> Iterator[Problem]:
    """Of a language model; a classifier reads a token and says its label, and a task of one's own may do anything."""
    if task.kind in ("causal_lm", "instruction", "preference") and train.sequence < 2:
        yield Problem(
            "train.sequence", "leaves nothing to predict: one token has no next", train.sequence, "at least 2"
        )


def _sources(data: DataConfig) -> Iterator[Problem]:
    sources = {"data.train": data.train, **{f"data.more[{n}]": source for n, source in enumerate(data.more)}}
    if isinstance(data.eval, SourceConfig):
        sources["data.eval"] = data.eval
    for key, source in sources.items():
        yield from _known_kind(f"{key}.kind", source.kind, ["auto", *kinds("data")])
        if source.kind == "synthetic" and source.paths:
            yield Problem(f"{key}.paths", "has no meaning with kind: synthetic", fix="remove one of the two")
        elif source.kind in ("auto", *kinds("data")) and source.kind != "synthetic" and not source.paths:
            fix = f'for example {key.rpartition(".")[2]}: ["corpus/**/*.txt"]'
            yield Problem(key, "names no files", fix=fix)


def _encoder(data: DataConfig, task: TaskConfig) -> Iterator[Problem]:
    if data.encoder == "tokie" and task.kind in ("instruction", "preference"):
        rule = f"has no effect with task: {task.kind}: of chats, the places of their tokens are needed, which it lacks"
        yield Problem("data.encoder", rule, "tokie", "remove it")


def _weights(data: DataConfig) -> Iterator[Problem]:
    """Shares of the windows: of all training sources, or of none."""
    every = {"data.train": data.train, **{f"data.more[{n}]": source for n, source in enumerate(data.more)}}
    weighted = [key for key, source in every.items() if source.weight is not None]
    if len(every) == 1 and weighted:
        yield Problem("data.train.weight", "has a meaning beside other sources only", data.train.weight, "remove it")
    elif weighted:
        for key in sorted(every.keys() - set(weighted)):
            fix = "give every source a weight, or none"
            yield Problem(f"{key}.weight", "is missing: other sources have one", fix=fix)
    if isinstance(data.eval, SourceConfig) and data.eval.weight is not None:
        yield Problem("data.eval.weight", "has no meaning: all held-out data is judged", data.eval.weight, "remove it")


def _task_kind(task: TaskConfig) -> Iterator[Problem]:
    yield from _known_kind("task.kind", task.kind, kinds("task"))


def _task_options(task: TaskConfig) -> Iterator[Problem]:
    """An option of another task would be silently without effect."""
    own = {"loss_on": "instruction", "class_weights": "classification"}
    own |= dict.fromkeys(("beta", "label_smoothing", "per_token"), "preference")
    for name, kind in own.items():
        if (value := getattr(task, name)) is not None and task.kind != kind:
            yield Problem(f"task.{name}", f"has no effect with task: {task.kind}", value, f"write kind: {kind}")
    if task.options and ":" not in task.kind:
        fix = f"write {' or '.join(own)} beside kind, or remove it"
        yield Problem("task.options", "are those of a task of your own", fix=fix)


_ALONE = {"classification": "each text", "preference": "each pair"}


def _one_text_a_sequence(task: TaskConfig, data: DataConfig) -> Iterator[Problem]:
    if task.kind in _ALONE and "packing" in data.model_fields_set and data.packing:
        rule = f"has no effect with task: {task.kind}: {_ALONE[task.kind]} stands alone"
        yield Problem("data.packing", rule, True, "remove it")


def _smoothing(task: TaskConfig) -> Iterator[Problem]:
    if task.label_smoothing is not None and task.label_smoothing >= 0.5:
        rule = "must be below 0.5: more would prefer what was rejected"
        yield Problem("task.label_smoothing", rule, task.label_smoothing, "for example 0.1")


def _adapter(adapter: AdapterConfig | None, model: ModelConfig, task: TaskConfig) -> Iterator[Problem]:
    if adapter is None:
        return
    if adapter.kind != "qlora":
        for key in ("quantization", "double_quantization"):
            if getattr(adapter, key) is not None:
                fix = "remove it, or write kind: qlora"
                yield Problem(f"adapter.{key}", "has no effect with kind: lora", getattr(adapter, key), fix)
    if model.config or (model.factory and adapter.kind == "qlora"):
        fix = "write model: {from: FOLDER}, or remove adapter to train all weights"
        yield Problem("adapter", "needs a pretrained model of the transformers library", fix=fix)
    if task.kind == "classification":
        rule = "is for language models: the head of a classifier starts fresh and must be trained as a whole"
        yield Problem("adapter", rule, fix="remove adapter to train all weights")
    if not adapter.targets:
        yield Problem("adapter.targets", "names no layer", fix="write targets: all-linear")


# --- length and batch ------------------------------------------------------------------------------------------------


def _batch_tokens(train: TrainConfig) -> float | None:
    """None where the batch follows from the number of processes."""
    batch = train.global_batch
    if batch == "auto":
        return None
    return batch.value if batch.unit == "tokens" else batch.value * train.sequence


def _tokens(amount: Amount, train: TrainConfig) -> float | None:
    """Tokens of an amount where the file alone tells; None for epochs, shares and times."""
    if amount.unit == "steps":
        batch = _batch_tokens(train)
        return None if batch is None else amount.value * batch
    return {"tokens": amount.value, "sequences": amount.value * train.sequence}.get(amount.unit)


def _batch_holds_a_sequence(train: TrainConfig) -> Iterator[Problem]:
    batch = _batch_tokens(train)
    if batch is None and "auto" in (train.micro_batch, train.accumulation):
        rule = "auto is micro_batch x accumulation x processes, and these are not both given"
        yield Problem("train.global_batch", rule, "auto", "write train.micro_batch and train.accumulation")
    if batch is not None and batch < train.sequence:
        rule = f"is less than one sequence ({train.sequence} tokens)"
        yield Problem("train.global_batch", rule, str(train.global_batch), "raise it, or shorten train.sequence")


def _length_holds_a_step(train: TrainConfig) -> Iterator[Problem]:
    length, batch = _tokens(train.length, train), _batch_tokens(train)
    if length is not None and batch is not None and length < batch:
        rule = f"is less than one step ({format_count(batch)} tokens, train.global_batch)"
        yield Problem("train.length", rule, str(train.length), "train longer, or in smaller batches")


def _warmup_ends(train: TrainConfig, optimizer: OptimizerConfig) -> Iterator[Problem]:
    warmup, length = _tokens(optimizer.warmup, train), _tokens(train.length, train)
    if warmup is not None and length is not None and warmup >= length:
        rule = f"is not shorter than the run (train.length = {train.length})"
        yield Problem("optimizer.warmup", rule, str(optimizer.warmup), "for example warmup: 1%")


def _evaluation_has_data(train: TrainConfig, data: DataConfig) -> Iterator[Problem]:
    if isinstance(train.eval_every, Amount) and not data.eval:
        fix = "add eval: 0.5% to data, or remove eval_every"
        yield Problem("train.eval_every", "has nothing to evaluate: data.eval is not set", str(train.eval_every), fix)


# --- strategy and launch ---------------------------------------------------------------------------------------------

_DEEPSPEED_ONLY = ("reduce_bucket", "allgather_bucket", "prefetch_bucket", "persistence_threshold")
_STAGE_3_ONLY = ("prefetch_bucket", "persistence_threshold")


def _strategy_kind(strategy: StrategyConfig) -> Iterator[Problem]:
    kind = strategy.kind
    if kind.lower().startswith("zero"):
        if strategy.stage is not None:
            rule = f"and strategy.stage ({strategy.stage}) name two stages"
            yield Problem("strategy.kind", rule, kind, f"write strategy: zero-{strategy.stage}")
        else:
            yield Problem("strategy.kind", "is no stage of ZeRO", kind, "write zero-0, zero-1, zero-2 or zero-3")
        return
    yield from _known_kind("strategy.kind", kind, ["auto", *kinds("strategy"), "zero-0", "zero-1", "zero-2", "zero-3"])


def _only_deepspeed(strategy: StrategyConfig) -> Iterator[Problem]:
    """Stage, offload and buckets are DeepSpeed's: with ddp they would be silently without effect."""
    kind, stage = strategy.kind, strategy.stage
    if kind == "deepspeed" or kind.lower().startswith("zero") or ":" in kind:
        return
    if stage is not None:
        yield Problem("strategy.stage", f"has no effect with kind: {kind}", stage, f"write strategy: zero-{stage}")
    for part, stages in (("optimizer", "zero-2"), ("parameters", "zero-3")):
        if getattr(strategy.offload, part) != "none":
            fix = f"write strategy: {{kind: {stages}, offload: ...}}"
            yield Problem(f"strategy.offload.{part}", f"needs DeepSpeed; the kind is {kind}", "cpu", fix)
    if strategy.config is not None:
        rule = f"is a DeepSpeed JSON, and the kind is {kind}"
        yield Problem("strategy.config", rule, strategy.config, "write kind: deepspeed, or remove config")
    for name in _DEEPSPEED_ONLY:
        if (value := getattr(strategy, name)) is not None:
            yield Problem(
                f"strategy.{name}", f"has no effect with kind: {kind}", value, "write kind: zero-2, or remove it"
            )


def _needs_stage(strategy: StrategyConfig) -> Iterator[Problem]:
    if strategy.kind != "deepspeed":
        return
    stage = strategy.stage
    if strategy.offload.parameters != "none" and stage != 3:
        rule = f"needs ZeRO stage 3; the stage is {'not set' if stage is None else stage}"
        yield Problem("strategy.offload.parameters", rule, "cpu", "write kind: zero-3, or offload the optimizer only")
    if strategy.offload.optimizer != "none" and stage == 0:
        rule = "needs ZeRO stage 1, 2 or 3; the stage is 0"
        yield Problem("strategy.offload.optimizer", rule, "cpu", "write kind: zero-2")
    for name in _STAGE_3_ONLY:
        if (value := getattr(strategy, name)) is not None and stage not in (3, None):
            rule = f"has no effect below ZeRO stage 3; the stage is {stage}"
            yield Problem(f"strategy.{name}", rule, value, "write kind: zero-3, or remove it")


def _compression(strategy: StrategyConfig) -> Iterator[Problem]:
    """PyTorch's communication hooks belong to DDP; ZeRO++ to ZeRO's stage 3."""
    asked, kind = strategy.gradient_compression, strategy.kind
    if asked is not None and kind != "ddp" and ":" not in kind:
        fix = "write kind: ddp; for ZeRO on GPUs, stage 3 with quantized_gradients: true"
        yield Problem("strategy.gradient_compression", f"is of kind: ddp; the kind is {kind}", asked.kind, fix)
    if asked is not None and asked.kind == "powersgd" and asked.start_step < 2:
        rule = "must be at least 2: DDP arranges its buckets after the first step"
        yield Problem("strategy.gradient_compression.start_step", rule, asked.start_step, "write 2 or more")
    zero_plus = {"quantized_weights": False, "quantized_gradients": False, "secondary_partition": 1}
    for name, off in zero_plus.items():
        value = getattr(strategy, name)
        if value != off and ":" not in kind and not (kind == "deepspeed" and strategy.stage in (3, None)):
            what = kind if kind != "deepspeed" else f"ZeRO stage {strategy.stage}"
            yield Problem(f"strategy.{name}", f"is of ZeRO stage 3; this is {what}", value, "write kind: zero-3")


def _launch(launch: LaunchConfig, strategy: StrategyConfig) -> Iterator[Problem]:
    yield from _known_kind("launch.kind", launch.kind, kinds("launch"))
    if launch.gpus is not None and launch.device == "cpu":
        yield Problem("launch.gpus", "contradicts launch.device: cpu", launch.gpus, "write processes, or remove device")
    started = launch.gpus or launch.processes or 1
    if strategy.kind == "single" and started > 1:
        key = "launch.gpus" if launch.gpus else "launch.processes"
        yield Problem(key, "is more than strategy: single can use", started, "write strategy: ddp, or 1 here")


def _device_can(launch: LaunchConfig, train: TrainConfig, model: ModelConfig) -> Iterator[Problem]:
    if launch.device != "cpu":
        return
    if train.precision == "fp16":
        fix = "write precision: fp32 (exact) or bf16 (slow on most CPUs)"
        yield Problem("train.precision", "cannot be trained on a CPU", "fp16", fix)
    if train.tf32 is True:
        yield Problem("train.tf32", "has no effect on a CPU", True, "remove it, or write auto")
    if model.attention == "flash":
        yield Problem("model.attention", "has no kernel on a CPU", "flash", "write sdpa, or leave it out")


def _mlflow_uri(track: TrackConfig) -> Iterator[Problem]:
    uri = track.mlflow.uri if track.mlflow else None
    if uri is not None and "://" not in uri and not uri.startswith("databricks"):
        fix = "for example http://localhost:5000, or sqlite:///mlflow.db; without uri there is a store beside the runs"
        yield Problem("track.mlflow.uri", "is the URL of no server or database", uri, fix)


def _own_trackers(track: TrackConfig) -> Iterator[Problem]:
    for index, path in enumerate(track.own):
        if not _IMPORT.fullmatch(path):
            yield Problem(f"track.own[{index}]", "must be package.module:Class", path, "for example tracking:Board")


def _name(name: str | None) -> Iterator[Problem]:
    if name is not None and not _NAME.fullmatch(name):
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "my-run"
        yield Problem("name", "becomes a folder: letters, digits, dot, dash and underscore only", name, f"name: {safe}")


RULES: tuple[tuple[tuple[str, ...], Rule], ...] = (
    (("name",), _name),
    (("model",), _revision),
    (("model", "data"), _tokenizer),
    (("model", "task", "data"), _own_model),
    (("model",), _arch),
    (("model", "train"), _sequence_fits),
    (("task", "train"), _something_to_predict),
    (("data",), _sources),
    (("data",), _weights),
    (("data", "task"), _encoder),
    (("task",), _task_kind),
    (("task",), _task_options),
    (("task", "data"), _one_text_a_sequence),
    (("task",), _smoothing),
    (("adapter", "model", "task"), _adapter),
    (("train",), _batch_holds_a_sequence),
    (("train",), _length_holds_a_step),
    (("train", "optimizer"), _warmup_ends),
    (("train", "data"), _evaluation_has_data),
    (("strategy",), _strategy_kind),
    (("strategy",), _only_deepspeed),
    (("strategy",), _needs_stage),
    (("strategy",), _compression),
    (("launch", "strategy"), _launch),
    (("launch", "train", "model"), _device_can),
    (("track",), _own_trackers),
    (("track",), _mlflow_uri),
)


# (section, alternatives, whether one of them is needed, fix): judged on the raw values, so nothing can hide them.
ALTERNATIVES = (
    (
        "model",
        ("from", "config", "factory"),
        True,
        "from: a pretrained folder or Hub id; config: {arch: llama, ...} for a new model; factory: your own module",
    ),
    ("model.tokenizer", ("from", "train"), True, "for example tokenizer: {train: 32k}"),
    ("launch", ("gpus", "processes"), False, "keep one: gpus starts one process each"),
)


def broken_alternatives(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Sections that give two of a set of alternatives, or none where one is needed."""
    for key, names, needed, fix in ALTERNATIVES:
        section: Mapping[str, Any] | None = data
        for part in key.split("."):
            inner: object = section.get(part) if section else None
            section = cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else None
        if section is None:
            continue
        given = [name for name in names if section.get(name) is not None]
        if len(given) > 1:
            yield Problem(key, f"has both {' and '.join(given)}: give one", fix=fix)
        elif needed and not given:
            yield Problem(key, f"needs {' or '.join(names)}", fix=fix)


def broken_rules(sections: Mapping[str, Any]) -> list[Problem]:
    """The Problems (without `where`) of every rule whose sections are all given."""
    return [
        problem
        for names, rule in RULES
        if all(name in sections for name in names)
        for problem in rule(*(sections[name] for name in names))
    ]
