"""Amounts with units: read from what people write, printed as people read.

    10B tokens · 500 steps · 2 epochs · 64 sequences · 30 min · 0.5% · 1.5 GiB · 32k

k, M, B and T are powers of 1000 (a 32k vocabulary has 32,000 entries); KiB, MiB, GiB, TiB are powers of 1024.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_MULTIPLIER = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_BYTES = {"b": 1} | {
    prefix + tail: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for tail, base in (("", 1000), ("b", 1000), ("ib", 1024))
}
_SECONDS = {
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
}
_AMOUNTS = {"token": "tokens", "step": "steps", "epoch": "epochs", "sequence": "sequences"}
_LARGEST = 1e18  # more than anything that is counted, and below what 64 bits hold
_LONGEST_SECONDS = 1e10  # three centuries; timedelta holds 8e13
_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z%]*)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True)
class Amount:
    """A value with its unit: tokens, sequences, steps, epochs or seconds."""

    value: float
    unit: str

    def __str__(self) -> str:
        if self.unit == "seconds":
            return format_seconds(self.value)
        unit = self.unit.removesuffix("s") if self.value == 1 else self.unit
        return f"{format_count(self.value)} {unit}"


def _split(text: str, legal: str) -> tuple[float, str, str]:
    match = _NUMBER.fullmatch(text)
    value = float(match[1].replace("_", "")) if match else math.inf
    if match is None or not math.isfinite(value):
        raise ValueError(legal)
    return value, match[2], match[3]


def _countable(value: float) -> float:
    if abs(value) > _LARGEST:
        raise ValueError("is larger than anything that could be counted (1e18)")
    return value


def _scaled(value: float, multiplier: int) -> float:
    """The product as written in decimal: 0.29M is 290000, though 0.29 * 1e6 is not."""
    product = value * multiplier
    nearest = round(product)
    return float(nearest) if abs(product - nearest) <= 1e-12 * max(1.0, abs(product)) else product


def parse_count(text: object) -> int:
    """A whole number; `32k`, `0.5M`, `10B` and `1e6` are accepted."""
    legal = "must be a whole number such as 512, 32k or 0.5M"
    if isinstance(text, bool) or not isinstance(text, int | float | str):
        raise ValueError(legal)
    if isinstance(text, str):
        value, suffix, rest = _split(text, legal)
        if suffix.lower() not in _MULTIPLIER or rest:
            raise ValueError(legal)
        text = _scaled(value, _MULTIPLIER[suffix.lower()])
    if not math.isfinite(text) or text != int(text):
        raise ValueError(legal)
    return int(_countable(text))


def _unit(first: str, second: str) -> tuple[str, str]:
    """(multiplier, unit's stem) of `B tokens`, `Btokens`, `tokens`, `min`."""
    multiplier, word = (first.lower(), second) if second else ("", first)
    if word == "M":  # 5M is five million of something to most people, never five minutes
        return multiplier, ""
    stem = word.lower() if len(word) == 1 else word.lower().removesuffix("s")
    if stem not in _AMOUNTS and stem not in _SECONDS and not second and stem[1:] in _AMOUNTS:
        return stem[0], stem[1:]
    return multiplier, stem


def parse_amount(text: object, units: tuple[str, ...]) -> Amount:
    """`10B tokens`, `500 steps`, `30 min`: one of `units` (seconds stands for every unit of time).

    Tokens, steps and sequences come to a whole number; epochs and times may be parts.
    """
    names = ["a time such as '30 min'" if unit == "seconds" else f"'N {unit}'" for unit in units]
    legal = f"needs a number with a unit: {' or '.join(names)}"
    if not isinstance(text, str):
        raise ValueError(legal)
    value, first, second = _split(text, legal)
    multiplier, stem = _unit(first, second)
    if _AMOUNTS.get(stem) in units and multiplier in _MULTIPLIER:
        amount = Amount(_scaled(value, _MULTIPLIER[multiplier]), _AMOUNTS[stem])
    elif stem in _SECONDS and "seconds" in units and not multiplier:
        amount = Amount(value * _SECONDS[stem], "seconds")
    else:
        raise ValueError(legal)
    if amount.value <= 0:
        raise ValueError("must be above zero")
    if amount.unit == "seconds" and amount.value > _LONGEST_SECONDS:
        raise ValueError("is longer than three centuries")
    _countable(amount.value)
    if amount.unit in ("tokens", "steps", "sequences") and amount.value != int(amount.value):
        raise ValueError(f"must be a whole number of {amount.unit}")
    return amount


def parse_seconds(text: object) -> float:
    """A duration in seconds from `90 s`, `30 min`, `2 h`, `1.5 days`."""
    return parse_amount(text, ("seconds",)).value


def parse_share(text: object) -> float:
    """A share of a whole, from `0.5%` or `0.005`: 0 <= share < 1."""
    legal = "must be a share such as 0.5% or 0.005"
    if isinstance(text, str):
        value, suffix, rest = _split(text, legal)
        if suffix not in ("", "%") or rest:
            raise ValueError(legal)
        share = value / 100 if suffix else value
    elif isinstance(text, int | float) and not isinstance(text, bool):
        share = float(text)
    else:
        raise ValueError(legal)
    if not 0 <= share < 1:
        raise ValueError("must be at least 0% and below 100%")
    return share


def parse_bytes(text: object) -> int:
    """Bytes from `5GB`, `1.5 GiB` or a plain number of bytes."""
    legal = "must be a size such as 5GB or 512MiB"
    if isinstance(text, int | float) and not isinstance(text, bool):
        value, size = float(text), 1
    elif isinstance(text, str):
        value, suffix, rest = _split(text, legal)
        if (suffix and suffix.lower() not in _BYTES) or rest:
            raise ValueError(legal)
        size = _BYTES[suffix.lower()] if suffix else 1
    else:
        raise ValueError(legal)
    count = _scaled(value, size) if math.isfinite(value) else math.nan
    if not count >= 0 or (size == 1 and count != int(count)):
        raise ValueError(f"{legal}, a whole number of bytes")
    return int(_countable(count))


def format_count(value: float) -> str:
    """1234567 -> '1.23M'; whole numbers below ten thousand stay exact."""
    if abs(value) < 9_999.5:
        return f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"
    for size, suffix in ((1e3, "k"), (1e6, "M"), (1e9, "B")):
        if abs(value) < size * 999.5:
            return f"{value / size:.3g}{suffix}"
    return f"{value / 1e12:.3g}T" if abs(value) < 999.5e12 else f"{value:.3g}"


def format_bytes(count: float) -> str:
    """Bytes in binary units: '1.50 GiB'."""
    for power, suffix in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(count) >= 1024**power:
            return f"{count / 1024**power:.2f} {suffix}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """'0.85 s', '42 s', '3 min 20 s', '5 h 12 min', '2 d 3 h'."""
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    for size, name, part, part_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            count, rest = divmod(whole, size)
            return f"{count} {name} {rest // part} {part_name}" if rest // part else f"{count} {name}"
    return f"{whole} s"
