"""Amounts with units: what people write, and what is refused."""

from __future__ import annotations

import pytest

from headway.units import (
    Amount,
    format_bytes,
    format_count,
    format_seconds,
    parse_amount,
    parse_bytes,
    parse_count,
    parse_seconds,
    parse_share,
)

EVERY = ("tokens", "sequences", "steps", "epochs", "seconds")


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("10B tokens", Amount(10_000_000_000, "tokens")),
        ("10Btokens", Amount(10_000_000_000, "tokens")),
        ("0.29M tokens", Amount(290_000, "tokens")),  # 0.29 * 1e6 is not a whole number in binary
        ("1_000 steps", Amount(1000, "steps")),
        ("500steps", Amount(500, "steps")),
        ("1 step", Amount(1, "steps")),
        ("0.5 epochs", Amount(0.5, "epochs")),
        ("64 Sequences", Amount(64, "sequences")),
        ("30 min", Amount(1800, "seconds")),
        ("30m", Amount(1800, "seconds")),
        ("1.5 days", Amount(129_600, "seconds")),
        ("90s", Amount(90, "seconds")),
    ],
)
def test_amounts_are_read(text: str, amount: Amount):
    assert parse_amount(text, EVERY) == amount


@pytest.mark.parametrize(
    "text",
    ["", "tokens", "5M", "10 parsecs", "10 tokens please", "nan tokens", "1e999 tokens", 500, None, True, "5k min"],
)
def test_other_amounts_are_refused_with_the_legal_units(text: object):
    with pytest.raises(ValueError, match="needs a number with a unit: 'N tokens'"):
        parse_amount(text, EVERY)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0 steps", "above zero"),
        ("-3 tokens", "above zero"),
        ("0.5 steps", "whole"),
        ("1e300 steps", "larger than anything"),
        ("1e300 days", "longer than three centuries"),
        ("1e12 h", "longer than three centuries"),  # what a time-out can still hold is less
    ],
)
def test_amounts_that_mean_nothing_are_refused(text: str, why: str):
    with pytest.raises(ValueError, match=why):
        parse_amount(text, EVERY)


def test_a_unit_that_does_not_belong_is_refused():
    with pytest.raises(ValueError, match=r"'N tokens' or 'N sequences'$"):
        parse_amount("30 min", ("tokens", "sequences"))


@pytest.mark.parametrize(
    ("text", "count"), [("32k", 32_000), ("0.5M", 500_000), (1e6, 1_000_000), ("1e3", 1000), (7, 7)]
)
def test_counts(text: object, count: int):
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["1.5", "32 kb", True, None, float("inf"), float("nan"), "1e999", [1]])
def test_other_counts_are_refused(text: object):
    with pytest.raises(ValueError, match="must be a whole number"):
        parse_count(text)


@pytest.mark.parametrize("text", ["1e300", 10**40, "2e6T"])
def test_counts_that_no_machine_counts_are_refused(text: object):
    with pytest.raises(ValueError, match="larger than anything"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("5GB", 5 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("1.1 GiB", int(1.1 * 2**30)),
        ("10k", 10_000),
        (5e9, 5 * 10**9),
        (3, 3),
    ],
)
def test_sizes(text: object, count: int):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["0.3", -1, "5 GB now", "5 Gx", True, float("inf"), float("nan")])
def test_other_sizes_are_refused(text: object):
    with pytest.raises(ValueError, match="must be a size"):
        parse_bytes(text)


def test_shares_and_durations():
    assert parse_share("0.5%") == parse_share(0.005) == 0.005
    assert parse_seconds("2 h") == 7200
    for wrong in ("100%", 1, -0.1):
        with pytest.raises(ValueError, match="below 100%"):
            parse_share(wrong)
    for wrong in ("a few", True, "5 percent"):
        with pytest.raises(ValueError, match="must be a share"):
            parse_share(wrong)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234.5, "1234"),
        (9_999, "9999"),
        (9_999.6, "10k"),
        (12_345, "12.3k"),
        (999_999, "1M"),
        (1.5e9, "1.5B"),
        (2e12, "2T"),
        (0.12345, "0.123"),
        (-50_000, "-50k"),
    ],
)
def test_counts_are_printed_without_exponents(value: float, text: str):
    assert format_count(value) == text


def test_sizes_and_times_are_printed():
    assert [format_bytes(n) for n in (512, 1536, 3 * 2**29, 2**41)] == ["512 B", "1.50 KiB", "1.50 GiB", "2.00 TiB"]
    seconds = (0.85, 42, 59.7, 200, 3600, 18_720, 183_600)
    assert [format_seconds(s) for s in seconds] == [
        "0.85 s",
        "42 s",
        "1 min",
        "3 min 20 s",
        "1 h",
        "5 h 12 min",
        "2 d 3 h",
    ]
    assert [str(Amount(*a)) for a in ((1, "steps"), (1e10, "tokens"), (90, "seconds"))] == [
        "1 step",
        "10B tokens",
        "1 min 30 s",
    ]
