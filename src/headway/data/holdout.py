"""Which documents are held out: a pure function of a document's text, the seed and the share."""

from __future__ import annotations

import hashlib

import numpy as np

SCALE = 2**64


def document_hash(text: bytes, seed: int) -> int:
    """64 bits, even over documents; equal texts are always on the same side of the split."""
    return int.from_bytes(hashlib.sha256(b"%d\0" % seed + text).digest()[:8], "little")


def threshold(share: float) -> int:
    """Documents whose hash is below are held out."""
    return int(share * SCALE)


def held_out(hashes: np.ndarray, share: float) -> np.ndarray:
    """bool [documents]: which are held out of documents with these uint64 hashes.

    A small set can fall to one side altogether. Of two documents or more, one at least is held out (the lowest) and one
    at least is left to train on (the highest).
    """
    held = hashes < np.uint64(threshold(share))
    if share > 0 and len(hashes) > 1:
        if not held.any():
            held[np.argmin(hashes)] = True
        elif held.all():
            held[np.argmax(hashes)] = False
    return held


def encode_text(text: str) -> tuple[bytes, int]:
    """UTF-8 bytes of a text, and how many lone surrogates (which are no characters) became U+FFFD in it."""
    try:
        return text.encode("utf-8"), 0
    except UnicodeEncodeError:
        # surrogatepass joins true pairs that arrived apart; what cannot be decoded again is lone.
        repaired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return repaired.encode("utf-8"), repaired.count("\ufffd") - text.count("\ufffd")
