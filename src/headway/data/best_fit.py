"""Whole examples into windows: each, the longest first, where it leaves the least room."""

from __future__ import annotations

import numpy as np

# Examples that are packed together. A window's members come from one chunk, so the order of the data stays mixed, and
# the lists in hand stay small.
CHUNK = 2**16


def best_fit(lengths: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """(members, windows): the examples in the order of their windows, and where each window begins among them.

    Best-fit decreasing, a chunk of examples at a time. members: int64 [examples]. windows: int64 [windows + 1].

    Args:
        lengths: of each example, from 1 to `room`.
    """
    members: list[int] = []
    windows = [0]
    for first in range(0, len(lengths), CHUNK):
        for window in _fill(lengths[first : first + CHUNK], room):
            members += [first + number for number in window]
            windows.append(len(members))
    return np.array(members, dtype=np.int64), np.array(windows, dtype=np.int64)


def _fill(lengths: np.ndarray, room: int) -> list[list[int]]:
    """The windows of one chunk, in the order in which they were opened."""
    windows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(room + 1)]  # room left -> open windows, the last opened first
    open_rooms = 0  # bit r: a window with r tokens of room is open
    order = np.argsort(-lengths, kind="stable")
    for number, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        fitting = open_rooms >> length
        if fitting:
            left = length + (fitting & -fitting).bit_length() - 1  # the least room that is enough
            window = by_room[left].pop()
            if not by_room[left]:
                open_rooms ^= 1 << left
        else:
            left, window = room, len(windows)
            windows.append([])
        windows[window].append(number)
        left -= length
        if left:
            by_room[left].append(window)
            open_rooms |= 1 << left
    return windows
