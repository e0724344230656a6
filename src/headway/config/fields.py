"""Field types of the run file: amounts with units, read from text, written back exactly."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

from headway.units import Amount, parse_amount, parse_bytes, parse_count, parse_seconds, parse_share


def _write(amount: Amount) -> str:
    """The exact text of an amount, which reads back as the same amount."""
    unit = "s" if amount.unit == "seconds" else "%" if amount.unit == "share" else f" {amount.unit}"
    value = amount.value * 100 if amount.unit == "share" else amount.value
    return f"{value:.15g}{unit}"


def _read_length(value: object) -> Amount:
    return value if isinstance(value, Amount) else parse_amount(value, ("tokens", "sequences", "steps", "epochs"))


def _read_batch(value: object) -> Amount:
    return value if isinstance(value, Amount) else parse_amount(value, ("tokens", "sequences"))


def _read_interval(value: object) -> Amount:
    return value if isinstance(value, Amount) else parse_amount(value, ("steps", "tokens", "seconds"))


def _read_warmup(value: object) -> Amount:
    """`1%` of the steps, or an amount of steps or tokens."""
    if isinstance(value, Amount):
        return value
    if isinstance(value, str) and not value.rstrip().endswith("%"):
        return parse_amount(value, ("steps", "tokens"))
    return Amount(parse_share(value), "share")


Length = Annotated[Amount, BeforeValidator(_read_length), PlainSerializer(_write, return_type=str)]
BatchSize = Annotated[Amount, BeforeValidator(_read_batch), PlainSerializer(_write, return_type=str)]
Interval = Annotated[Amount, BeforeValidator(_read_interval), PlainSerializer(_write, return_type=str)]
Warmup = Annotated[Amount, BeforeValidator(_read_warmup), PlainSerializer(_write, return_type=str)]
Count = Annotated[int, BeforeValidator(parse_count), Field(gt=0)]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]
Share = Annotated[float, BeforeValidator(parse_share)]
Duration = Annotated[float, BeforeValidator(lambda v: v if isinstance(v, float) else parse_seconds(v))]
