"""A training sample as a person reads it: decoded, with the borders between documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headway.data.seam import Sample
from headway.data.vocabulary import load_tokenizer

BORDER = "\n──── next document ────\n"


def decode_sample(sample: Sample, tokenizer: Path, *, special_tokens: bool = True) -> str:
    """The sample's text, special tokens shown if wanted, a line between documents (which do not see each other)."""
    decoder = load_tokenizer(tokenizer)
    cuts = np.flatnonzero(np.diff(sample.documents)) + 1
    parts = np.split(sample.tokens, cuts)
    return BORDER.join(decoder.decode(part.tolist(), skip_special_tokens=not special_tokens) for part in parts)
