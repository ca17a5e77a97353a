"""Numbers as people write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.cli._app import format_value
from discreet.cli._options import count, real
from discreet.errors import InvalidValue


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.01", 0.01),
        ("1e-5", 1e-5),
        ("1E-5", 1e-5),
        ("256/60000", 256 / 60000),
        ("1e3/1e6", 1e-3),
        (" 1 / 4 ", 0.25),
        ("-3/4", -0.75),
    ],
)
def test_real_reads_decimals_scientific_notation_and_fractions(text: str, value: float) -> None:
    assert real("x", text) == value


@pytest.mark.parametrize(
    "text", ["", "x", "1/0", "1/2/3", "nan", "inf", "-inf", "1/inf/", "1e999", "/", "0x10", "1,5"]
)
def test_real_refuses_what_is_not_a_finite_number(text: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        real("x", text)
    assert refused.value.value == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_real_reads_back_what_python_prints(value: float) -> None:
    assert real("x", repr(value)) == value


@given(st.integers(1, 2**53), st.integers(1, 2**53))
def test_a_fraction_is_the_correctly_rounded_quotient(numerator: int, denominator: int) -> None:
    assert real("x", f"{numerator}/{denominator}") == numerator / denominator


def test_a_refused_number_is_reported_as_typed_with_its_range() -> None:
    with pytest.raises(InvalidValue, match=r"^rate = '5/4': expected a number with 0 < rate <= 1$"):
        real("rate", "5/4", above=0, at_most=1)


@pytest.mark.parametrize(
    ("text", "value"), [("14062", 14062), ("1e6", 10**6), ("2.0", 2), ("6/3", 2)]
)
def test_count_reads_integers(text: str, value: int) -> None:
    number = count("steps", text)
    assert number == value
    assert isinstance(number, int)


def test_count_keeps_integers_that_floats_cannot_hold() -> None:
    assert count("steps", str(2**53 + 1)) == 2**53 + 1


@pytest.mark.parametrize("text", ["1.5", "0", "-1", "x", "1e300", "nan", "inf", "1/3", ""])
def test_count_refuses_what_is_not_a_positive_integer(text: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        count("steps", text, at_least=1)
    assert refused.value.argument == "steps"
    assert refused.value.value == text


@given(st.text())
def test_no_text_makes_a_number_by_accident_or_breaks_the_line(text: str) -> None:
    assert len(format_value(text).splitlines()) == 1
    try:
        value = real("x", text)
    except InvalidValue:
        return
    assert math.isfinite(value)
