"""Rounding keeps the direction of a bound."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet._rounding import at_least, at_most
from discreet.cli._app import finite, print_json

REALS = st.floats(0, 1e300, allow_subnormal=False)


@given(REALS, st.integers(2, 8))
def test_what_is_shown_bounds_what_was_computed(value: float, digits: int) -> None:
    upper, lower = float(at_most(value, digits=digits)), float(at_least(value, digits=digits))
    assert lower <= value <= upper
    step = 1.001 * 10.0 ** (1 - digits)
    assert value * (1 - step) <= lower
    assert upper <= value * (1 + step)


def test_short_numbers_are_shown_as_they_are() -> None:
    assert (at_most(0.5), at_least(0.5)) == ("0.5", "0.5")
    assert (at_most(0.0), at_least(0.0)) == ("0", "0")
    assert at_most(math.inf) == "inf"


def test_json_has_no_infinity() -> None:
    assert finite(math.inf) is None
    assert finite(0.0) == 0.0
    with pytest.raises(ValueError, match="JSON"):
        print_json({"epsilon": math.inf})
