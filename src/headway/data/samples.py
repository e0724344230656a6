"""A training sample as a person reads it: decoded, with the borders between documents, and what is learnt marked."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from headway.data.seam import IGNORE, Sample
from headway.data.vocabulary import load_tokenizer

BORDER = "\n──── next document ────\n"
LEARNT, LEARNT_END = "⟦", "⟧"  # around tokens that are learnt, where others are not


def decode_sample(sample: Sample, tokenizer: Path, *, special_tokens: bool = True) -> str:
    """The sample's text, special tokens shown if wanted, a line between documents (which do not see each other).

    Where only a part is learnt (the assistant's words), that part stands between ⟦ and ⟧.
    """
    decoder = load_tokenizer(tokenizer)
    starts = np.flatnonzero(np.diff(sample.documents, prepend=-1))
    learnt = np.append(False, sample.labels[:-1] != IGNORE)[: len(sample.tokens)]
    first = np.zeros(len(sample.tokens), dtype=bool)
    first[starts] = True
    partly = learnt.any() and not (learnt | first).all()
    runs = [*starts.tolist(), len(sample.tokens)]

    def text(part: np.ndarray) -> str:
        return decoder.decode(part.tolist(), skip_special_tokens=not special_tokens)

    documents: list[str] = []
    for begin, end in pairwise(runs):
        tokens, marks = sample.tokens[begin:end], learnt[begin:end] & ~first[begin:end]
        if not partly:
            documents.append(text(tokens))
            continue
        cuts = np.flatnonzero(np.diff(marks)) + 1
        pieces = zip(np.split(tokens, cuts), np.split(marks, cuts), strict=True)
        documents.append(
            "".join(f"{LEARNT}{text(part)}{LEARNT_END}" if mark[0] else text(part) for part, mark in pieces)
        )
    return BORDER.join(documents)


def decode_prompt(sample: Sample, tokenizer: Path) -> str:
    """The first document's text up to the first token that is learnt, special tokens included."""
    taught = np.flatnonzero(sample.labels != IGNORE)
    end = int(taught[0]) + 1 if len(taught) else len(sample.tokens)
    return load_tokenizer(tokenizer).decode(sample.tokens[:end].tolist(), skip_special_tokens=False)


def excerpt(shown: str, characters: int) -> str:
    """The start of a decoded sample, far enough to show something that is learnt."""
    if len(shown) <= characters:
        return shown
    mark = shown.find(LEARNT)
    half = characters // 2
    if mark < half:
        return shown[:characters] + " ..."
    return f"{shown[:half]} ... {shown[mark : mark + half]} ..."
