"""The labels of a classifier in its transformers config, and whether a pretrained head is for these very labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def with_labels(config: dict[str, Any], labels: Sequence[str], pad: int, *, sets: bool = False) -> dict[str, Any]:
    """The config with these labels in this order.

    pad: of the tokenizer, where the config names none: a decoder finds by it where a text ends. sets: a text has any
    number of labels.
    """
    changed = {key: value for key, value in config.items() if key != "num_labels"}
    changed |= {
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
        "problem_type": "multi_label_classification" if sets else "single_label_classification",
    }
    return changed if changed.get("pad_token_id") is not None else changed | {"pad_token_id": pad}


def has_labels(config: dict[str, Any], labels: Sequence[str]) -> bool:
    """Whether the config's head is for exactly these labels, in this order."""
    given: dict[str, str] = config.get("id2label") or {}
    named = {int(number): name for number, name in given.items()}
    return named == dict(enumerate(labels))


def label_count(config: dict[str, Any]) -> int:
    """How many labels a classifier of this config has; transformers' 2 where it says nothing."""
    return len(config.get("id2label") or ()) or int(config.get("num_labels") or 2)
