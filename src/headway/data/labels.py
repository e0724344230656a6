"""The labels of a labelled store: names gathered task by task, put in order, and found in the training data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

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

    def settle(self, numbers: np.ndarray, is_eval: np.ndarray) -> dict[str, np.ndarray]:
        """{"label": int32}: the numbers by sorted names, whole numbers in their own order; sets `names`.

        Raises:
            DataError: a label occurs in held-out data only, or there is one label alone.
        """
        before = list(self._places)
        trained = set(np.unique(numbers[~is_eval]).tolist())
        self._require_trained(self._places, {before[number] for number in trained})
        if len(before) < 2:
            rule = f"every text has the label {before[0]!r}: there is nothing to tell apart"
            raise DataError(problems=[Problem("data.train", rule, fix="check data.train.label_key")])
        place = self._order(before)
        return {"label": np.array([place[name] for name in before], dtype="<i4")[numbers]}

    def settle_sets(self, numbers: np.ndarray, is_eval: np.ndarray) -> dict[str, np.ndarray]:
        """As `settle`, of sets of labels, which are what has been joined.

        label: int32 [documents], the number of its set. label_members: int32, the labels of all sets, one set after the
        other. label_ends: int64 [sets], where each ends.

        Raises:
            DataError: a label occurs in held-out data only, or no text has any.
        """
        sets: list[list[str]] = [json.loads(name) for name in self._places]
        places = {name: where for where, names in zip(self._places.values(), sets, strict=True) for name in names}
        trained = set(np.unique(numbers[~is_eval]).tolist())
        self._require_trained(places, {name for number in trained for name in sets[number]})
        if not places:
            rule = "no text has any label: there is nothing to learn"
            raise DataError(problems=[Problem("data.train", rule, fix="check data.train.label_key")])
        place = self._order(places)
        members = [sorted(place[name] for name in names) for names in sets]
        return {
            "label": numbers.astype("<i4"),
            "label_members": np.array([number for part in members for number in part], dtype="<i4"),
            "label_ends": np.cumsum([len(part) for part in members], dtype="<i8"),
        }

    def _order(self, names: Iterable[str]) -> dict[str, int]:
        self.names = tuple(_in_order(list(names)))
        return {name: number for number, name in enumerate(self.names)}

    def _require_trained(self, places: Mapping[str, str], trained: set[str]) -> None:
        unknown = [name for name in places if name not in trained]
        if unknown:
            problems = [_unknown(name, places[name]) for name in unknown[:_SHOWN]]
            raise DataError(problems=problems, fix=_more(unknown))


def _unknown(name: str, where: str) -> Problem:
    rule = f"the label {name!r} occurs in the held-out data only: no model could give it"
    fix = "train on texts with that label too, or take these out"
    return Problem("data.eval", rule, where=where, fix=fix)


def _more(unknown: list[str]) -> str:
    left = len(unknown) - _SHOWN
    return f"{left} more labels are unknown in the same way" if left > 0 else ""


def _in_order(names: list[str]) -> list[str]:
    """Sorted, as numbers where all are whole numbers."""
    if all(name.removeprefix("-").isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)
