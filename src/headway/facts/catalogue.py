"""Known models by name: the fields of their config.json that say how large they are."""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

MODELS = Path(__file__).with_name("models.json")
# What a name says beside the model: how it was tuned or cut, not how large it is.
_BESIDE = re.compile(
    r"\((?:.*?)\)|\+.*$|\b(instruct|chat|base|it|hf|full|lora|qlora|sft|dpo|pretrain|finetune|v0\.\d|\d+k|meta|packed|"
    r"uncased|cased|tokendrop|dropless|baseline|seq cls)\b"
)


@cache
def known_models() -> dict[str, dict[str, Any]]:
    """name -> config."""
    return json.loads(MODELS.read_text(encoding="utf-8"))


@cache
def _by_key() -> dict[str, str]:
    return {_key(name): name for name in known_models()}


def _key(name: str) -> str:
    """'meta-llama/Llama-3.1-8B-Instruct', 'LLAMA3.1_8B', 'Llama 3.1 8B LoRA' -> 'llama3.1 8b'."""
    text = name.lower().rsplit("/", 1)[-1]
    text = re.sub(r"[-_\s]+", " ", text)
    text = _BESIDE.sub(" ", text)
    text = re.sub(r"\b(\d+(?:\.\d+)?) ?(b|m)\b", r"\1\2", text)
    return re.sub(r"[ -]+", "", text)


def find_model(name: str) -> dict[str, Any] | None:
    """The config of a known model, however its name is spelt; None if it is not known."""
    found = _by_key().get(_key(name))
    return dict(known_models()[found]) if found else None


def near_models(name: str) -> list[str]:
    """Known names that are spelt like this one."""
    keys = _by_key()
    return [keys[key] for key in get_close_matches(_key(name), keys, n=4, cutoff=0.5)]
