"""Which neighbourhoods of characters a text holds that were not met before: where encoders of text may yet differ.

A tokenizer's splitting rule looks at kinds of characters (letter, digit, space, tab, apostrophe, ...) side by side, so
a text that holds a new row of four kinds is one that two encoders have not yet been compared on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

_ROW = 4
_AROUND = 32  # characters on each side of a new row
# Of ASCII: letters that contractions are made of apart from others, and what splitting rules name apart.
_ASCII = ("sdmtlrve", "SDMTLRVE", "0123456789", " ", "\t", "\n\r", "'", '"', "_", "()[]{}<>", ".,;:!?")
_OTHER_ASCII = {"lower": len(_ASCII), "upper": len(_ASCII) + 1, "mark": len(_ASCII) + 2, "control": len(_ASCII) + 3}
# Above it by block: (first code point, of Latin and its neighbours; combining; Greek to Arabic; Indic and on; ...).
_BLOCKS = (0x80, 0xC0, 0x300, 0x370, 0x900, 0x2000, 0x2070, 0x2E80, 0xAC00, 0xD7B0, 0x10000, 0x1F000)
_KINDS = len(_ASCII) + len(_OTHER_ASCII) + len(_BLOCKS)


def _ascii_kinds() -> np.ndarray:
    kinds = np.zeros(128, dtype=np.int32)
    for code in range(128):
        letter = chr(code)
        named = next((n for n, group in enumerate(_ASCII) if letter in group), None)
        name = "lower" if letter.islower() else "upper" if letter.isupper() else "mark" if code > 32 else "control"
        kinds[code] = _OTHER_ASCII[name] if named is None else named
    return kinds


_ASCII_KINDS = _ascii_kinds()


class Contexts:
    """Rows of four kinds of characters that were met so far."""

    def __init__(self) -> None:
        self._met = np.zeros(_KINDS**_ROW, dtype=bool)

    def new_in(self, texts: Sequence[str]) -> Iterator[str]:
        """A piece around the first place of each row that was not met before, of all texts; it is met from now on."""
        for text in texts:
            rows = _rows_of(text)
            places = np.flatnonzero(~self._met[rows])
            found, first = np.unique(rows[places], return_index=True)
            self._met[found] = True
            for place in places[first].tolist():
                yield text[max(0, place - _AROUND) : place + _ROW + _AROUND]


def _rows_of(text: str) -> np.ndarray:
    """int32 [characters - 3]: each row of four kinds as one number; the whole text where it is shorter."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    kinds = np.where(points < 128, _ASCII_KINDS[np.minimum(points, 127)], 0)
    above = points >= 128
    if above.any():
        first_block = len(_ASCII) + len(_OTHER_ASCII) - 1
        kinds[above] = first_block + np.searchsorted(np.array(_BLOCKS), points[above], side="right")
    kinds = np.pad(kinds, (0, max(0, _ROW - len(kinds))))
    rows = np.zeros(len(kinds) - _ROW + 1, dtype=np.int32)
    for offset in range(_ROW):
        rows = rows * _KINDS + kinds[offset : len(kinds) - _ROW + 1 + offset]
    return rows
