"""Field types of the run file: amounts with units, read from text, written back exactly."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from headway.config.offload import no_nvme
from headway.units import Amount, parse_amount, parse_bytes, parse_count, parse_seconds, parse_share

Auto = Literal["auto"]
Positive = Annotated[int, Field(gt=0)]
Layers = Annotated[int, Field(gt=0, le=10_000)]  # a hundred times what anyone has built
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what every generator takes
Port = Annotated[int, Field(ge=1, le=65535)]
Above = Annotated[float, Field(gt=0)]  # a number above zero
AtLeast = Annotated[float, Field(ge=0)]  # zero or above
Ratio = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]  # the memory of a running mean, or a dropped share
Texts = Annotated[tuple[str, ...], Field(strict=False)]  # a list in the file
Betas = Annotated[tuple[Decay, Decay], Field(strict=False)]


def _no_flag(value: object) -> object:
    if isinstance(value, bool):  # True == 1 would pass as stage 1
        raise ValueError("must be 0, 1, 2 or 3")
    return value


Stage = Annotated[Literal[0, 1, 2, 3], BeforeValidator(_no_flag)]

Place = Annotated[Literal["none", "cpu"], BeforeValidator(no_nvme)]

_AMOUNT_UNITS = ("tokens", "sequences", "steps", "epochs")


def write_amount(amount: Amount) -> str:
    """The exact text of an amount, which reads back as the same amount."""
    unit = "s" if amount.unit == "seconds" else "%" if amount.unit == "share" else f" {amount.unit}"
    value = amount.value * 100 if amount.unit == "share" else amount.value
    return f"{value:.15g}{unit}"


def _is_wall_time(value: object) -> bool:
    try:
        parse_seconds(value)
    except ValueError:
        return False
    return True


def _read_length(value: object) -> Amount:
    if isinstance(value, Amount):
        return value
    if _is_wall_time(value):
        raise ValueError(
            "is a wall time, but what is learnt must not depend on the speed of the machine: give tokens, sequences, "
            "steps or epochs here, and the time limit as train.stop_after"
        )
    return parse_amount(value, _AMOUNT_UNITS)


def _read_batch(value: object) -> Amount | Auto:
    if isinstance(value, Amount):
        return value
    return "auto" if value == "auto" else parse_amount(value, ("tokens", "sequences"))


def _write_batch(value: Amount | Auto) -> str:
    return write_amount(value) if isinstance(value, Amount) else value


def _read_interval(value: object) -> Amount:
    return value if isinstance(value, Amount) else parse_amount(value, ("steps", "tokens", "seconds"))


def _read_warmup(value: object) -> Amount:
    """`1%` of the steps, or an amount of steps or tokens."""
    if isinstance(value, Amount):
        return value
    if isinstance(value, str) and not value.rstrip().endswith("%"):
        return parse_amount(value, ("steps", "tokens"))
    return Amount(parse_share(value), "share")


def _write_seconds(seconds: float) -> str:
    return f"{seconds:.15g}s"


Length = Annotated[Amount, BeforeValidator(_read_length), PlainSerializer(write_amount, return_type=str)]
BatchSize = Annotated[Amount | Auto, BeforeValidator(_read_batch), PlainSerializer(_write_batch, return_type=str)]
Interval = Annotated[Amount, BeforeValidator(_read_interval), PlainSerializer(write_amount, return_type=str)]
Warmup = Annotated[Amount, BeforeValidator(_read_warmup), PlainSerializer(write_amount, return_type=str)]
Count = Annotated[int, BeforeValidator(parse_count), Field(gt=0)]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]
Share = Annotated[float, BeforeValidator(parse_share)]
Duration = Annotated[float, BeforeValidator(parse_seconds), PlainSerializer(_write_seconds, return_type=str)]
