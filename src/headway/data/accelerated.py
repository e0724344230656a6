"""tokie, a faster encoder of texts, in place of `tokenizers` where it is installed and gives the same ids.

Nothing rests on its word: some text is encoded by both before it is taken for a store, and of every batch after that a
part, and whatever stands around characters of kinds that did not stand side by side before (0.1.4 splits a tab before
an apostrophe otherwise). Where they differ once, the whole store is made anew by `tokenizers`. Two kinds of text go to
`tokenizers` always: one that spells out a token of the tokenizer's own, for that a spelt token means its letters cannot
be said to tokie; and a long one, which tokie cuts into parts, with other ids at the seams (0.1.4, above 64 KiB).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from headway.data.contexts import Contexts
from headway.errors import HeadwayError, MissingExtra

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PACKAGE, REFERENCE = "tokie", "tokenizers"
FIRST_CHARACTERS, LATER_CHARACTERS = (
    2**17,
    2**14,
)  # of a batch of 2**20, compared: the first of a process, and each after
_PIECE = 2**12
_LONG_BYTES = 2**15
# What encoders disagree on where they do: spaces, line ends, composed letters, other scripts, digits, contractions.
_HARD = (
    "  two  spaces\n\n\n\tand a tab \r\n  ",
    "I'll say it's DON'T, we've O'Neill's rock'n'roll",
    "e\u0301 \u00e9 \ufb01 \u00bd \u00c5 \u212b \u0130I\u0131i \u1e9e\u00df",
    "\u65e5\u672c\u8a9e \u043f\u0440\u0438\u0432\u0435\u0442 \u0639\u0631\u0628\u064a \u05e9\u05dc\u05d5\u05dd",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \ud55c\uad6d\uc5b4 \u0e44\u0e17\u0e22",
    "\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 \u200b\u00a0\u3000\u2028\ufeff\u0000\u0007",
    "1234567 3.14159 0x1F 1,000,000 \u0661\u0662\u0663 \u2167 x\u00b2",
    "def f(x):\n    return {'a': [x**2, -1]}  # !?;:--...==>\n\n\n",
    "a" * 300 + " " * 40 + "\n" * 5 + "=" * 80,
)


class IdsDiffer(HeadwayError):
    """tokie gave other ids than `tokenizers`: its store is not to be used."""


class Accelerated:
    """Ids of whole texts by tokie, a part of them compared. May be called from several threads.

    Raises:
        MissingExtra: when made, tokie is not installed.
        IdsDiffer: when made or later; also where tokie cannot read the tokenizer or fails over a text.
    """

    def __init__(self, folder: Path, reference: Tokenizer):
        self._reference = reference
        added = sorted((t.content for t in reference.get_added_tokens_decoder().values()), key=len, reverse=True)
        # A normaliser may make such a token of other letters.
        self._spelt = re.compile("|".join(map(re.escape, added)), re.IGNORECASE) if added else None
        self._tokenizer = _loaded(folder / "tokenizer.json")
        self._lock, self._asked, self._contexts = Lock(), 0, Contexts()
        self._compare(_HARD)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without begin and end tokens."""
        kept = {n for n, text in enumerate(texts) if not self._may(text)}
        given = [text for n, text in enumerate(texts) if n not in kept]
        with self._lock:
            first, self._asked = self._asked == 0, self._asked + 1
            new = list(self._contexts.new_in(given))
        longest = max(given, key=len, default="")
        self._compare([longest, *new, *_sample(given, FIRST_CHARACTERS if first else LATER_CHARACTERS)])
        theirs = iter(_encoded(self._tokenizer, given))
        ours = iter(by_tokenizers(self._reference, [texts[n] for n in sorted(kept)]))
        return [next(ours if n in kept else theirs) for n in range(len(texts))]

    def _may(self, text: str) -> bool:
        """Whether tokie may encode the text."""
        if len(text) > _LONG_BYTES // 4 and len(text.encode()) > _LONG_BYTES:
            return False
        return self._spelt is None or not self._spelt.search(text)

    def _compare(self, texts: Sequence[str]) -> None:
        texts = [text for text in texts if self._may(text)]
        pairs = zip(texts, _encoded(self._tokenizer, texts), by_tokenizers(self._reference, texts), strict=True)
        for text, theirs, ours in pairs:
            if theirs != ours:
                at = next((n for n, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), len(ours))
                around = self._reference.decode(ours[max(0, at - 3) : at + 3])
                raise IdsDiffer(f"at token {at} of {text[:40]!r}, near {around!r}")


def by_tokenizers(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text by `tokenizers`, without begin and end tokens."""
    return [encoded.ids for encoded in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]


def is_installed() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


def library_version(name: str) -> str:
    """'tokie 0.1.4', for the record."""
    return f"{name} {importlib.metadata.version(name)}"


def _loaded(path: Path) -> Any:
    try:
        tokie: Any = importlib.import_module(PACKAGE)
    except ImportError as error:
        raise MissingExtra(PACKAGE, PACKAGE, "encoding with data.encoder: tokie") from error
    tokenizer = _guarded(tokie.Tokenizer.from_json, str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _encoded(tokenizer: Any, texts: list[str] | Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in _guarded(tokenizer.encode_batch, list(texts), False)]


def _guarded(call: Any, *arguments: Any) -> Any:
    """The call's answer; whatever it fails with, a panic of its Rust too, as IdsDiffer."""
    try:
        return call(*arguments)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # PanicException is no Exception
        raise IdsDiffer(f"{type(error).__name__}: {error}") from error


def _sample(texts: Sequence[str], characters: int) -> list[str]:
    """Pieces of the texts, evenly spread over them, of about so many characters together."""
    wanted = max(1, characters // _PIECE)
    step = max(1, -(-len(texts) // wanted))
    each = max(_PIECE, characters // max(1, len(texts)))
    return [text[len(text) // 3 :][:each] if len(text) > each else text for text in texts[::step]]
