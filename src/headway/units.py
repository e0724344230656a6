"""Amounts with units: read from what people write, printed as people read.

    10B tokens · 500 steps · 2 epochs · 64 sequences · 30 min · 0.5% · 1.5 GiB · 32k

k, M, B and T are powers of 1000 (a 32k vocabulary has 32,000 entries); KiB, MiB, GiB, TiB are powers of 1024.
"""

from __future__ import annotations

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
_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z%]*)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True)
class Amount:
    """A value with its unit: tokens, sequences, steps, epochs or seconds."""

    value: float
    unit: str

    def __str__(self) -> str:
        if self.unit == "seconds":
            return format_seconds(self.value)
        return f"{format_count(self.value)} {self.unit}"


def _split(text: str) -> tuple[float, str, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"cannot be read as a number with a unit: {text!r}")
    return float(match[1].replace("_", "")), match[2], match[3]


def parse_count(text: object) -> int:
    """A whole number; `32k`, `0.5M`, `10B` and `1e6` are accepted."""
    if isinstance(text, bool) or not isinstance(text, int | float | str):
        raise ValueError("must be a whole number such as 512, 32k or 0.5M")
    if isinstance(text, str):
        value, suffix, rest = _split(text)
        if suffix.lower() not in _MULTIPLIER or rest:
            raise ValueError("must be a whole number such as 512, 32k or 0.5M")
        text = value * _MULTIPLIER[suffix.lower()]
    if text != int(text):
        raise ValueError("must be a whole number")
    return int(text)


def parse_amount(text: object, units: tuple[str, ...]) -> Amount:
    """`10B tokens`, `500 steps`, `30 min`: one of `units` (seconds stands for every unit of time)."""
    legal = ", ".join("a time such as '30 min'" if unit == "seconds" else f"'N {unit}'" for unit in units)
    if not isinstance(text, str):
        raise ValueError(f"needs a unit: {legal}")
    value, first, second = _split(text)
    multiplier, word = (first, second) if second else ("", first)
    name = word.lower()
    stem = name.removesuffix("s") if name not in ("s",) else name
    if stem in _AMOUNTS and _AMOUNTS[stem] in units and multiplier.lower() in _MULTIPLIER:
        amount = Amount(value * _MULTIPLIER[multiplier.lower()], _AMOUNTS[stem])
    elif stem in _SECONDS and "seconds" in units and not multiplier:
        amount = Amount(value * _SECONDS[stem], "seconds")
    else:
        raise ValueError(f"needs one of these units: {legal}")
    if amount.value <= 0:
        raise ValueError("must be above zero")
    return amount


def parse_seconds(text: object) -> float:
    """A duration in seconds from `90 s`, `30 min`, `2 h`, `1.5 days`."""
    return parse_amount(text, ("seconds",)).value


def parse_share(text: object) -> float:
    """A share of a whole, from `0.5%` or `0.005`: 0 <= share < 1."""
    if isinstance(text, str):
        value, suffix, rest = _split(text)
        if suffix not in ("", "%") or rest:
            raise ValueError("must be a share such as 0.5% or 0.005")
        share = value / 100 if suffix else value
    elif isinstance(text, int | float) and not isinstance(text, bool):
        share = float(text)
    else:
        raise ValueError("must be a share such as 0.5% or 0.005")
    if not 0 <= share < 1:
        raise ValueError("must be at least 0% and below 100%")
    return share


def parse_bytes(text: object) -> int:
    """Bytes from `5GB`, `1.5 GiB` or a plain number of bytes."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    if not isinstance(text, str):
        raise ValueError("must be a size such as 5GB or 512MiB")
    value, suffix, rest = _split(text)
    if (suffix and suffix.lower() not in _BYTES) or rest:
        raise ValueError("must be a size such as 5GB or 512MiB")
    return int(value * (_BYTES[suffix.lower()] if suffix else 1))


def format_count(value: float) -> str:
    """1234567 -> '1.23M'; whole numbers below ten thousand stay exact."""
    if abs(value) < 10_000:
        return f"{value:g}" if value == int(value) else f"{value:.3g}"
    for size, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:g}"


def format_bytes(count: float) -> str:
    """Bytes in binary units: '1.50 GiB'."""
    for power, suffix in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(count) >= 1024**power:
            return f"{count / 1024**power:.2f} {suffix}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """'0.85 s', '42 s', '3 min 20 s', '5 h 12 min', '2 d 3 h'."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    for size, name, part, part_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            return f"{whole} {name} {rest // part} {part_name}" if rest // part else f"{whole} {name}"
    return f"{seconds:.0f} s"
