"""What can be named in a run file: (room, kind) -> where its options and its code live.

A table, not decorators: the whole list is readable here, and naming a kind imports nothing.
`kind: package.module:Class` in the run file takes the user's own class in place of a row.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from headway.errors import ConfigError, MissingExtra, Problem


@dataclass(frozen=True)
class Row:
    """One registered kind: an import path for the code and the pip extra that it needs."""

    implementation: str
    extra: str = ""
    package: str = ""  # the importable name that the extra brings
    further: tuple[str, ...] = ()  # and others

    @property
    def packages(self) -> tuple[str, ...]:
        """Every importable name that the row needs."""
        return (self.package, *self.further) if self.package else ()


TABLE: dict[tuple[str, str], Row] = {
    ("model", "config"): Row("headway.model.huggingface:HuggingFaceSource"),
    ("model", "pretrained"): Row("headway.model.huggingface:HuggingFaceSource"),
    ("task", "causal_lm"): Row("headway.task.causal_lm:CausalLM"),
    ("task", "instruction"): Row("headway.task.instruction:Instruction"),
    ("task", "preference"): Row("headway.task.preference:Preference"),
    ("task", "classification"): Row("headway.task.classification:classification"),
    ("adapter", "lora"): Row("headway.model.adapter:LoraSource", "lora", "peft"),
    ("adapter", "qlora"): Row("headway.model.quantized:QloraSource", "qlora", "bitsandbytes", ("peft",)),
    ("data", "text"): Row("headway.data.sources:TextFiles"),
    ("data", "jsonl"): Row("headway.data.sources:JsonLines"),
    ("data", "csv"): Row("headway.data.sources:Csv"),
    ("data", "parquet"): Row("headway.data.sources:Parquet", "parquet", "pyarrow"),
    ("data", "arrow"): Row("headway.data.sources:Arrow", "parquet", "pyarrow"),
    ("data", "tar"): Row("headway.data.sources:Tar"),
    ("data", "tfrecord"): Row("headway.data.sources:TfRecord"),
    ("data", "synthetic"): Row("headway.data.sources:Synthetic"),
    ("strategy", "single"): Row("headway.parallel.ddp:Single"),
    ("strategy", "ddp"): Row("headway.parallel.ddp:DDP"),
    ("strategy", "deepspeed"): Row("headway.parallel.deepspeed:DeepSpeed"),
    ("launch", "local"): Row("headway.launch.local:LocalLauncher"),
    ("track", "jsonl"): Row("headway.track.jsonl:JsonLinesTracker"),
    ("track", "tensorboard"): Row("headway.track.tensorboard:TensorBoardTracker", "tensorboard", "tensorboard"),
    ("track", "mlflow"): Row("headway.track.mlflow:MlflowTracker", "mlflow", "mlflow"),
    ("track", "wandb"): Row("headway.track.wandb:WandbTracker", "wandb", "wandb"),
    ("store", "local"): Row("headway.checkpoint.store:LocalStore"),
}


# What a user's own script hands over to `headway.prepare`, as its plan names it.
GIVEN = "headway.train.given:"
GIVEN_MODEL, GIVEN_TRANSFORMERS = f"{GIVEN}GivenSource", f"{GIVEN}GivenTransformersSource"
GIVEN_TASK, GIVEN_DATA = f"{GIVEN}GivenTask", f"{GIVEN}GivenBatch"


def kinds(room: str) -> list[str]:
    """The registered kinds of one room, in the order of the table."""
    return [kind for where, kind in TABLE if where == room]


def resolve(room: str, kind: str) -> Any:
    """Import and return the class behind (room, kind) or behind a user's `package.module:Class`.

    Raises:
        ConfigError: the kind is neither a row nor an importable path.
        MissingExtra: the row's optional package is not installed.
    """
    row = TABLE.get((room, kind))
    if row is None and ":" not in kind:
        near = get_close_matches(kind, kinds(room), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(kinds(room))}"
        rule = f"is not a known kind of {room}; {hint}"
        raise ConfigError(problems=[Problem(f"{room}.kind", rule, kind, "or name your own as package.module:Class")])
    for package in row.packages if row is not None else ():
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise _missing(room, kind, row, package) from error
    return load_object(row.implementation if row else kind, f"{room}.kind")


def require_extra(room: str, kind: str) -> None:
    """Raises MissingExtra where the row's optional package is not installed; imports nothing."""
    row = TABLE.get((room, kind))
    for package in row.packages if row is not None else ():
        if importlib.util.find_spec(package) is None:
            raise _missing(room, kind, row, package)


def _missing(room: str, kind: str, row: Row | None, package: str) -> MissingExtra:
    return MissingExtra(package, row.extra if row else "", f"{room} kind {kind!r}")


def load_object(path: str, key: str) -> Any:
    """The object behind `package.module:name`; `key` is the run-file key that names it."""
    module_name, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            problems=[Problem(key, f"cannot be imported: {error}", path, "check the spelling and PYTHONPATH")]
        ) from error
