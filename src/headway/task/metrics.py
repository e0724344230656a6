"""Figures of a language model from sums of its loss."""

from __future__ import annotations

import math


def bits_per_byte(sum_nats: float, text_bytes: int) -> float:
    """Bits that the model needs for each byte of text: its summed loss, over the bytes that the targets stand for.

    Unlike the perplexity it does not depend on the tokenizer, and compares with a compressor. nan for no text.
    """
    return sum_nats / math.log(2) / text_bytes if text_bytes else math.nan


def perplexity(mean_nats: float) -> float:
    """exp of the mean loss; inf where that is beyond a float."""
    return math.exp(mean_nats) if mean_nats < 709 else math.inf
