"""What a model folder is asked for: a continuation, an answer, a label. Read off its files; no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.data.templates import read_template

ANSWERING = ("instruction", "preference")


def task_of(folder: Path) -> str:
    """The kind of task: of a folder of Headway's, the one that it was trained for.

    Of any other: classification where its config says so; instruction where its tokenizer has a chat template, for such
    a model has learnt nothing else; else causal_lm.
    """
    recorded = _json(folder / "headway.json").get("plan", {}).get("task", {}).get("kind")
    if isinstance(recorded, str):
        return recorded
    named = _json(folder / "config.json").get("architectures") or []
    if any(str(name).endswith("ForSequenceClassification") for name in named):
        return "classification"
    try:
        return "causal_lm" if read_template(folder) is None else "instruction"
    except (OSError, ValueError, KeyError, TypeError):
        return "causal_lm"  # what is wrong with the tokenizer's files is said by whoever loads them


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
