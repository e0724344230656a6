"""What a model drops in training, by its config alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headway.facts.architectures import ARCHITECTURES

# As transformers' configs name them: of attention's scores, and of what a layer adds to the residual stream.
_ATTENTION = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
_HIDDEN = ("resid_pdrop", "hidden_dropout_prob", "hidden_dropout", "dropout")

# Of architectures that are counted only, where transformers' own is not zero.
_DEFAULTS = {"opt": {"dropout": 0.1}}


def drops_attention(config: dict[str, Any]) -> bool:
    return _any(config, _ATTENTION)


def drops_hidden(config: dict[str, Any]) -> bool:
    return _any(config, _HIDDEN)


def _any(config: dict[str, Any], keys: Iterable[str]) -> bool:
    arch = ARCHITECTURES.get(str(config.get("model_type")))
    defaults = arch.defaults if arch else _DEFAULTS.get(str(config.get("model_type")), {})
    return any(config.get(key, defaults.get(key)) for key in keys)
