"""S11, S13: the share of two counts, by Laplace noise (1/N^2) and by a choice (1/N)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from discreet.errors import InvalidValue
from discreet.mechanisms import (
    bernoulli_parameter,
    bernoulli_parameter_error,
    laplace_fraction,
    laplace_fraction_error,
)

EPSILON = 0.1


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize("share", [0.5, 0.3])
def test_the_errors_fall_like_one_over_n_squared_and_one_over_n(
    relation: str, share: float
) -> None:
    facts = {"epsilon": EPSILON, "relation": relation}
    small, large = (
        [
            error(round(n * share), n - round(n * share), **facts)
            for error in (laplace_fraction_error, bernoulli_parameter_error)
        ]
        for n in (20_000, 200_000)
    )
    falls = [less.exact / more.exact for less, more in zip(large, small, strict=True)]
    assert falls[0] == pytest.approx(1 / 100, rel=0.01)
    assert falls[1] == pytest.approx(1 / 10, rel=0.05)
    for found in large:
        assert found.exact == pytest.approx(found.formula, rel=0.02)
    # A law that is wrong by a factor of 10 would be seen: 1/N is not 1/N^2.
    assert abs(falls[0] - 1 / 10) > 0.05
    assert small[1].exact > 100 * small[0].exact


def test_the_scale_of_the_lecture_is_10_under_add_remove_and_20_under_replace() -> None:
    by_epsilon, by_scale, replaced, twice = (
        laplace_fraction_error(500, 500, **facts)
        for facts in (
            {"epsilon": 0.1},
            {"scale": 10},
            {"epsilon": 0.1, "relation": "replace"},
            {"scale": 20},
        )
    )
    assert by_epsilon == by_scale
    assert replaced == twice
    # Two counts of variance about 2 b^2 = 200 each, for a share of 1/2: 100 / N^2.
    assert by_epsilon.formula * 1000**2 == pytest.approx(100, rel=2e-3)
    printed = laplace_fraction_error(500, 500, scale=22)  # the lecture's slip
    assert printed.formula > 4 * by_epsilon.formula


def test_the_error_of_a_choice_is_that_of_the_beta_law() -> None:
    heads, tails, c = 40_000, 60_000, EPSILON / math.log(9)
    a, b = 1 + c * heads, 1 + c * tails
    mean = a / (a + b)
    expected = a * b / ((a + b) ** 2 * (a + b + 1)) + (mean - 0.4) ** 2
    found = bernoulli_parameter_error(heads, tails, epsilon=EPSILON)
    assert found.exact == pytest.approx(expected, rel=1e-3)
    # The usual c = epsilon / (2 D) counts each flip 0.0217 and has more than twice the error.
    usual = bernoulli_parameter_error(heads, tails, epsilon=EPSILON, calibration="sensitivity")
    assert usual.exact / found.exact == pytest.approx(2 * math.log(10) / math.log(9), rel=0.02)


def test_the_errors_are_those_of_the_mechanisms() -> None:
    """Mean squares of released shares within 6 standard errors of the exact ones."""
    having, lacking, runs = 30, 50, 400
    share = having / (having + lacking)
    shown = {
        "laplace": [
            laplace_fraction(having, lacking, epsilon=1, insecure_seed=seed).value.fraction
            for seed in range(runs)
        ],
        "choice": [
            bernoulli_parameter(having, lacking, epsilon=1, points=64, insecure_seed=seed).value
            for seed in range(runs)
        ],
    }
    exact = {
        "laplace": laplace_fraction_error(having, lacking, epsilon=1).exact,
        "choice": bernoulli_parameter_error(having, lacking, epsilon=1, points=64).exact,
    }
    for name, values in shown.items():
        squares = (np.array(values) - share) ** 2
        error = float(squares.std()) / math.sqrt(runs)
        assert abs(float(squares.mean()) - exact[name]) < 6 * error
        assert abs(float(squares.mean()) - 2 * exact[name]) > 6 * error  # half the noise is seen


def test_with_few_records_the_choice_errs_less() -> None:
    """Where the noise is larger than the counts, values from .1 to .9 are better than 0 or 1."""
    few = {"epsilon": EPSILON}
    assert (
        bernoulli_parameter_error(5, 5, **few).exact
        < 0.5 * laplace_fraction_error(5, 5, **few).exact
    )


@pytest.mark.parametrize("error", [laplace_fraction_error, bernoulli_parameter_error])
def test_bad_assumptions_are_named(error: object) -> None:
    for counts, facts in (((0, 0), {}), ((-1, 5), {}), ((1, 1), {"epsilon": 0})):
        with pytest.raises(InvalidValue):
            error(*counts, **{"epsilon": 1, **facts})  # type: ignore[operator]
    with pytest.raises(InvalidValue, match="scale"):
        laplace_fraction_error(1, 1, scale=51)
