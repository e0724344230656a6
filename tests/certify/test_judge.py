"""How two sets of arrays are compared: what is large counts, what is rounding does not, and nothing can hide."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headway.certify.judge import worst


def arrays(**values: float) -> dict[str, np.ndarray]:
    return {name: np.full(100, value, dtype=np.float32) for name, value in values.items()}


def test_the_worst_parameter_is_named() -> None:
    value, where = worst(arrays(a=1.0, b=2.2), arrays(a=1.0, b=2.0))
    assert where == "b"
    assert value == pytest.approx(0.1, rel=1e-6)


def test_a_small_parameter_does_not_hide_behind_a_large_one() -> None:
    value, where = worst(arrays(a=1000.0, b=0.0011), arrays(a=1000.0, b=0.001))
    assert (where, value) == ("b", pytest.approx(0.1, rel=1e-5))


def test_a_gradient_that_is_zero_but_for_rounding_is_no_fault() -> None:
    mine, theirs = arrays(weight=1.0, bias=2e-9), arrays(weight=1.0, bias=-1e-9)
    assert worst(mine, theirs)[0] > 1.0
    assert worst(mine, theirs, floor=0.01)[0] < 1e-6
    assert worst(arrays(weight=1.0, bias=0.1), theirs, floor=0.01)[0] > 1.0, "a fault in the same place is one"


def test_what_is_missing_or_not_a_number_is_the_worst() -> None:
    assert worst(arrays(a=1.0), arrays(a=1.0, b=1.0)) == (math.inf, "b")
    assert math.isnan(worst(arrays(a=5.0, b=math.nan), arrays(a=1.0, b=1.0))[0])
    assert worst({}, {})[0] == math.inf, "nothing recorded proves nothing"
