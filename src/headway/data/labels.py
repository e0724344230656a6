"""The labels of a labelled store: names gathered task by task, put in order, and found in the training data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headway.errors import DataError, Problem

_SHOWN = 5


class Labels:
    """`names` are in the order of the numbers that documents hold, once they are settled."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self._places: dict[str, str] = {}  # name -> its first place; the order is that of the numbers before settling

    def join(self, places: Mapping[str, str], numbers: np.ndarray) -> np.ndarray:
        """int32: a task's own numbers as numbers over all tasks so far; -1 stays."""
        for name, where in places.items():
            self._places.setdefault(name, where)
        order = {name: number for number, name in enumerate(self._places)}
        known = np.array([*(order[name] for name in places), -1], dtype=np.int32)
        return known[numbers]

    def settle(self, numbers: np.ndarray, is_eval: np.ndarray) -> np.ndarray:
        """int32: the numbers by sorted names, whole numbers in their own order; sets `names`.

        Raises:
            DataError: a label occurs in held-out data only, or there is one label alone.
        """
        before = list(self._places)
        trained = set(np.unique(numbers[~is_eval]).tolist())
        unknown = [name for number, name in enumerate(before) if number not in trained]
        if unknown:
            raise DataError(problems=[self._unknown(name) for name in unknown[:_SHOWN]], fix=_more(unknown))
        if len(before) < 2:
            rule = f"every text has the label {before[0]!r}: there is nothing to tell apart"
            raise DataError(problems=[Problem("data.train", rule, fix="check data.train.label_key")])
        self.names = tuple(_in_order(before))
        place = {name: number for number, name in enumerate(self.names)}
        return np.array([place[name] for name in before], dtype="<i4")[numbers]

    def _unknown(self, name: str) -> Problem:
        rule = f"the label {name!r} occurs in the held-out data only: no model could give it"
        fix = "train on texts with that label too, or take these out"
        return Problem("data.eval", rule, where=self._places[name], fix=fix)


def _more(unknown: list[str]) -> str:
    left = len(unknown) - _SHOWN
    return f"{left} more labels are unknown in the same way" if left > 0 else ""


def _in_order(names: list[str]) -> list[str]:
    """Sorted, as numbers where all are whole numbers."""
    if all(name.removeprefix("-").isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)
