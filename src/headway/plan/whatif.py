"""Runs that nobody wrote a file for: a model and a machine, and usual choices for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.config.load import LoadedRun, from_mapping
from headway.config.schema import RunConfig
from headway.facts.schema import DataFacts, ModelShape
from headway.units import Amount

# Hoffmann et al. 2022, 'Training Compute-Optimal Large Language Models': about 20 tokens for each parameter.
TOKENS_PER_PARAMETER = 20
_USUAL_SEQUENCE = 4096
_USUAL_BATCH_TOKENS = ((1_000_000_000, 524_288), (20_000_000_000, 2_097_152))  # models up to so many parameters
_LARGE_BATCH_TOKENS = 4_194_304


def run_for(model: Mapping[str, Any], shape: ModelShape, overrides: Sequence[str], devices: int) -> LoadedRun:
    """A run file for a model alone: pretraining of a compute-optimal length, with overrides laid over it.

    model: the run file's section. devices: each gets at least one sequence of a step.
    """
    sequence = min(_USUAL_SEQUENCE, shape.max_sequence or _USUAL_SEQUENCE)
    batch = next((tokens for most, tokens in _USUAL_BATCH_TOKENS if shape.parameters <= most), _LARGE_BATCH_TOKENS)
    train = {
        "length": f"{TOKENS_PER_PARAMETER * shape.parameters} tokens",
        "sequence": sequence,
        "global_batch": f"{max(batch, sequence * devices)} tokens",
    }
    return _run(model, train, overrides)


def task_for(model: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """The task that the overrides ask for: known before the shape, which its head belongs to."""
    train = {"length": "1 step", "sequence": _USUAL_SEQUENCE, "global_batch": f"{_LARGE_BATCH_TOKENS} tokens"}
    return _run(model, train, overrides).config.task.kind


def _run(model: Mapping[str, Any], train: dict[str, Any], overrides: Sequence[str]) -> LoadedRun:
    data = {"name": "what-if", "model": dict(model), "data": {"train": ["*.txt"]}, "train": train}
    return from_mapping(data | {"optimizer": {"lr": 3e-4}}, where="--model", base=Path(), overrides=overrides)


def data_for(config: RunConfig, vocab: int) -> DataFacts:
    """As much text as the run reads; of a length in epochs or steps, as much as one epoch of a million windows."""
    sequence, length = config.train.sequence, config.train.length
    windows = max(1, int(_tokens(length, sequence)) // sequence)
    return DataFacts(
        store="",
        store_hash="",
        tokenizer="",
        vocab=vocab,
        sequence=sequence,
        documents=windows,
        tokens=windows * sequence,
        train_windows=windows,
        train_targets=windows * (sequence - 1),
        eval_documents=0,
        eval_windows=0,
        eval_targets=0,
        eval_bytes=0,
        eval_gzip_bytes=0,
        estimated=True,
    )


def _tokens(length: Amount, sequence: int) -> float:
    if length.unit == "tokens":
        return length.value
    return length.value * sequence if length.unit == "sequences" else 1_000_000 * sequence
