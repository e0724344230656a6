"""Which window is read at which position of a run: one permutation an epoch, computed, never stored.

A Feistel network is a permutation of 2^k numbers whatever its round function; here four rounds mix with splitmix64,
keyed by (seed, epoch). Numbers at or above the number of windows are sent through again until they land below it
("cycle walking"), which keeps it a permutation. Integers only: the same on every machine and numpy version.
"""

from __future__ import annotations

import numpy as np

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_ROUNDS = 4


def _mix(value: int) -> int:
    """splitmix64's finaliser: a bijection of 64 bits in which every bit of input moves every bit of output."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _mix_array(values: np.ndarray) -> np.ndarray:
    """_mix of each uint64, which wraps around by itself."""
    values = values + np.uint64(_GAMMA)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _round_keys(seed: int, epoch: int) -> list[int]:
    start = _mix(_mix(seed & _MASK) ^ (epoch & _MASK))
    return [_mix((start + number * _GAMMA) & _MASK) for number in range(_ROUNDS)]


def _half_bits(windows: int) -> int:
    """Bits of each half of the network: the smallest even number of bits that holds every window, halved."""
    return max(1, (max(windows - 1, 1).bit_length() + 1) // 2)


def window_at(seed: int, position: int, windows: int) -> int:
    """The window read at global sample `position` (from 0); epoch = position // windows.

    Each epoch reads every window once, in an order of its own. Raises ValueError for no windows.
    """
    if windows < 1 or position < 0:
        raise ValueError(f"there is no window at position {position} of {windows}")
    epoch, value = divmod(position, windows)
    bits = _half_bits(windows)
    mask = (1 << bits) - 1
    keys = _round_keys(seed, epoch)
    while True:
        left, right = value >> bits, value & mask
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        value = left << bits | right
        if value < windows:
            return value


def windows_at(seed: int, first: int, last: int, windows: int) -> np.ndarray:
    """window_at of every position in [first, last): int64 [last - first]."""
    if windows < 1 or first < 0:
        raise ValueError(f"there is no window at position {first} of {windows}")
    parts = [np.empty(0, dtype=np.int64)]
    while first < last:
        epoch, start = divmod(first, windows)
        count = min(last - first, windows - start)
        parts.append(_permute(np.arange(start, start + count, dtype=np.uint64), _round_keys(seed, epoch), windows))
        first += count
    return np.concatenate(parts)


def _permute(values: np.ndarray, keys: list[int], windows: int) -> np.ndarray:
    bits, mask = np.uint64(_half_bits(windows)), np.uint64((1 << _half_bits(windows)) - 1)
    out = values
    outside = np.arange(len(values))
    while len(outside):
        left, right = values >> bits, values & mask
        for key in keys:
            left, right = right, left ^ (_mix_array(right ^ np.uint64(key)) & mask)
        values = left << bits | right
        out[outside] = values
        again = values >= np.uint64(windows)
        outside, values = outside[again], values[again]
    return out.astype(np.int64)
