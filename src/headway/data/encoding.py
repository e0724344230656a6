"""Texts to token ids in batches, long texts in parts, with the same ids as the whole text gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from headway.data.accelerated import by_tokenizers

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BATCH_CHARACTERS = 2**20
PART_CHARACTERS = 2**17
_CONTEXT = 128
_TRIES = 8
# One line end with at most a space behind it: the pretokenisers in use end a word there. Tried all the same.
_BORDER = re.compile(r"(?<=\S)\r?\n(?= ?\S)")


def cut_parts(text: str, tokenizer: Tokenizer) -> Iterator[str]:
    """The text in parts of about PART_CHARACTERS, cut only where that changes no token.

    A cut behind a line's end is taken when the characters around it encode the same whole and apart; a tokenizer
    without a pretokeniser may look at any distance, so its texts stay whole.
    """
    start = 0
    while tokenizer.pre_tokenizer is not None and len(text) - start > PART_CHARACTERS * 5 // 4:
        cut = _cut_after(text, start + PART_CHARACTERS, tokenizer)
        if cut is None:
            break
        yield text[start:cut]
        start = cut
    yield text[start:]


def _cut_after(text: str, position: int, tokenizer: Tokenizer) -> int | None:
    borders = _BORDER.finditer(text, position)
    for _, border in zip(range(_TRIES), borders, strict=False):
        left = text[max(border.end() - _CONTEXT, 0) : border.end()]
        right = text[border.end() : border.end() + _CONTEXT]
        apart = [*_ids(tokenizer, left), *_ids(tokenizer, right)]
        if _ids(tokenizer, left + right) == apart:
            return border.end()
    return None


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


@dataclass(frozen=True)
class Encoded:
    """A run of tokens, and of each document that ends in it: where (behind its last token), and its whole length.

    learnt: uint8 beside the tokens, 1 where one is learnt; None where all are.
    """

    tokens: np.ndarray
    ends: list[int]
    lengths: list[int]
    learnt: np.ndarray | None = None


class Encoder:
    """Collects texts and encodes them a batch at a time, each document between its begin and end token.

    begin, end: token ids; None: no such token. encode: texts to ids; None: by the tokenizer itself.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        begin: int | None,
        end: int | None,
        dtype: np.dtype,
        encode: Callable[[Sequence[str]], list[list[int]]] | None = None,
    ):
        self.tokenizer, self.begin, self.end, self.dtype = tokenizer, begin, end, dtype
        self._encode = encode or partial(by_tokenizers, tokenizer)
        self._parts: list[str] = []
        self._last: list[bool] = []  # whether a part ends its document
        self._characters = 0

    def add(self, text: str, spans: Sequence[tuple[int, int]] | None = None) -> None:
        parts = list(cut_parts(text, self.tokenizer))
        self._parts.extend(parts)
        self._last.extend([False] * (len(parts) - 1) + [True])
        self._characters += len(text)

    @property
    def full(self) -> bool:
        return self._characters >= BATCH_CHARACTERS

    def flush(self) -> Iterator[Encoded]:
        """All texts since the last flush, in batches."""
        parts, last = self._parts, self._last
        self._parts, self._last, self._characters = [], [], 0
        length = 0
        for first, end in _batches(parts):
            encoded = self._encode(parts[first:end])
            tokens: list[int] = []
            ends: list[int] = []
            lengths: list[int] = []
            for ids, is_last in zip(encoded, last[first:end], strict=True):
                before = len(tokens)
                if length == 0 and self.begin is not None:
                    tokens.append(self.begin)
                tokens.extend(ids)
                if is_last and self.end is not None:
                    tokens.append(self.end)
                length += len(tokens) - before
                if is_last:
                    ends.append(len(tokens))
                    lengths.append(length)
                    length = 0
            yield Encoded(np.array(tokens, dtype=self.dtype), ends, lengths)


class SpanEncoder:
    """Encodes texts of which some characters are learnt; each text whole, for only so are its tokens' places known.

    ends: a begin and an end token to put around each text; the end token is learnt where the text's last one is.
    """

    def __init__(self, tokenizer: Tokenizer, ends: tuple[int, int] | None, dtype: np.dtype):
        self.tokenizer, self.ends, self.dtype = tokenizer, ends, dtype
        self._texts: list[str] = []
        self._spans: list[Sequence[tuple[int, int]]] = []
        self._characters = 0

    def add(self, text: str, spans: Sequence[tuple[int, int]] | None = None) -> None:
        self._texts.append(text)
        self._spans.append(((0, len(text)),) if spans is None else spans)
        self._characters += len(text)

    @property
    def full(self) -> bool:
        return self._characters >= BATCH_CHARACTERS

    def flush(self) -> Iterator[Encoded]:
        """All texts since the last flush, in batches."""
        texts, spans = self._texts, self._spans
        self._texts, self._spans, self._characters = [], [], 0
        for first, end in _batches(texts):
            encoded = self.tokenizer.encode_batch(texts[first:end], add_special_tokens=False)
            parts = [
                self._framed(np.array(one.ids, dtype=self.dtype), _learnt(one.offsets, mine))
                for one, mine in zip(encoded, spans[first:end], strict=True)
            ]
            lengths = [len(tokens) for tokens, _ in parts]
            yield Encoded(
                np.concatenate([tokens for tokens, _ in parts]),
                np.cumsum(lengths).tolist(),
                lengths,
                np.concatenate([learnt for _, learnt in parts]),
            )

    def _framed(self, tokens: np.ndarray, learnt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.ends is None:
            return tokens, learnt
        begin, end = (np.array([token], dtype=self.dtype) for token in self.ends)
        closes = learnt[-1:] if len(learnt) else np.zeros(1, dtype=np.uint8)
        return np.concatenate([begin, tokens, end]), np.concatenate([np.zeros(1, dtype=np.uint8), learnt, closes])


def _learnt(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """uint8 [tokens]: 1 from the first to the last token that shares a character with a span."""
    learnt = np.zeros(len(offsets), dtype=np.uint8)
    if not len(offsets):
        return learnt
    places = np.array(offsets, dtype=np.int64)
    for first, end in spans:
        touching = np.flatnonzero((places[:, 0] < end) & (places[:, 1] > first) & (places[:, 1] > places[:, 0]))
        if len(touching):
            learnt[touching[0] : touching[-1] + 1] = 1
    return learnt


def _batches(parts: list[str]) -> Iterator[tuple[int, int]]:
    """Ranges of parts of about BATCH_CHARACTERS each: what is encoded at once bounds the memory."""
    first = size = 0
    for end, part in enumerate(parts, start=1):
        size += len(part)
        if size >= BATCH_CHARACTERS:
            yield first, end
            first, size = end, 0
    if first < len(parts):
        yield first, len(parts)
