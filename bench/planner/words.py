"""What the cells of a row say: numbers, and words that state something of the run."""

from __future__ import annotations

import re

from doubt import NotJudged, Row

# A part of a note that denies or compares states nothing of the run itself.
_DENIED = r"\b(?:no|not|without|unlike|instead|rather|than|nor|never|except|before|differs?)\b"


def number(row: Row, key: str) -> float | None:
    """Tokens count in binary thousands (32k), parameters in decimal ones (8B); '1,024' is above 1000, '30,5' below."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", row.get(key, "")).replace(",", ".")
    match = re.match(r"~?\s*(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?) ?([kKMBT]\b)?", text)
    if match is None:
        return None
    thousand = 1000.0 if key == "params" else 1024.0
    return float(match[1]) * thousand ** {"k": 1, "K": 1, "M": 2, "B": 3, "T": 4}.get(match[2], 0)


def whole(row: Row, key: str, default: int | None = None) -> int:
    found = number(row, key)
    if found is None or found < 1:
        if default is None:
            raise NotJudged(f"no {key}")
        return default
    return int(found)


def said(row: Row, *keys: str) -> str:
    return " ".join(row.get(key, "") for key in keys).lower()


def stated(row: Row) -> str:
    """The strategy, the model's name, and those parts of the notes that neither deny nor compare."""
    parts = re.split(r"[;:,.]\s+|[()]", said(row, "notes"))
    told = [part for part in parts if not re.search(_DENIED, part)]
    return " ; ".join([said(row, "strategy"), said(row, "model"), *told])
