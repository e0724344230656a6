"""Small classifiers: configs with labels, plans, samples of labelled texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from fakes.models import SEQUENCE, VOCAB, config_of, filled, plan_for
from headway.data.seam import IGNORE, Sample
from headway.facts.labels import with_labels
from headway.model.huggingface import HuggingFaceSource
from headway.plan.schema import Plan

LABELS = ("land", "light", "sea")
PAD = 0
_BERT: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": SEQUENCE,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": PAD,
}


def classifier_config(arch: str = "bert", labels: Sequence[str] = LABELS, **changes: Any) -> dict[str, Any]:
    base = _BERT if arch == "bert" else config_of(arch)
    return with_labels({**base, **changes}, labels, PAD)


def classifier_plan(
    arch: str = "bert", weights: Sequence[float] = (1.0, 1.0, 1.0), path: Path | None = None, **changes: Any
) -> Plan:
    task = {"kind": "classification", "options": {"labels": list(LABELS), "weights": list(weights)}}
    fresh = {"fresh_head": changes.pop("fresh_head", False)}
    sections = {"task": task, "data": {"packing": False, "tokenizer": ""}, "model": fresh, **changes}
    config = sections.pop("config", None) or classifier_config(arch)
    return plan_for(arch, config=config, path=str(path) if path else None, **sections)


def classifier(arch: str = "bert", **changes: Any) -> PreTrainedModel:
    return filled(HuggingFaceSource(classifier_plan(arch, **changes)))


def held(length: int, labels: Sequence[int], seed: int = 0) -> Sample:
    """As `labelled`, with any number of labels."""
    return replace(labelled(length, IGNORE, seed), held=tuple(labels))


def labelled(length: int, label: int, seed: int = 0) -> Sample:
    """A text of random tokens, none of them padding."""
    tokens = np.random.default_rng(seed).integers(1, VOCAB, length).astype(np.int32)
    places, zeros = np.arange(length, dtype=np.int32), np.zeros(length, dtype=np.int32)
    return Sample(0, tokens, np.full(length, IGNORE, dtype=np.int32), places, zeros, label)
