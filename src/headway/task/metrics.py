"""Figures of a model from sums over all that was evaluated."""

from __future__ import annotations

import math
from collections.abc import Sequence


def bits_per_byte(sum_nats: float, text_bytes: int) -> float:
    """Bits that the model needs for each byte of text: its summed loss, over the bytes that the targets stand for.

    Unlike the perplexity it does not depend on the tokenizer, and compares with a compressor. nan for no text.
    """
    return sum_nats / math.log(2) / text_bytes if text_bytes else math.nan


def perplexity(mean_nats: float) -> float:
    """exp of the mean loss; inf where that is beyond a float."""
    return math.exp(mean_nats) if mean_nats < 709 else math.inf


def micro_f1(hits: Sequence[float], guesses: Sequence[float], texts: Sequence[float]) -> float:
    """2 hits / (guesses + texts) over all labels together; nan where nothing was guessed or true."""
    total = sum(guesses) + sum(texts)
    return 2 * sum(hits) / total if total else math.nan


def macro_f1(hits: Sequence[float], guesses: Sequence[float], texts: Sequence[float]) -> float:
    """Mean of 2 hits / (guesses + texts) over the labels that were guessed or true; nan where none was."""
    scores = [2 * h / (g + t) for h, g, t in zip(hits, guesses, texts, strict=True) if g + t > 0]
    return sum(scores) / len(scores) if scores else math.nan
