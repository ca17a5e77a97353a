"""S11: counts, histograms and the fraction of lecture 004."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from discreet.errors import InvalidValue
from discreet.mechanisms import laplace_count, laplace_fraction, laplace_histogram
from discreet.privacy import DiscreteLaplace
from discreet.randomness import source
from mechanisms.exact_pairs import REJECT, delta_of, product, shifted_laplace
from randomness.goodness import chi_square_p, laplace_pmf


def test_the_lecture_scales() -> None:
    # S11: epsilon 0.1 means scale 10 under add_remove and 20 under replace.
    for relation, scale, counts in (("add_remove", 10.0, 1), ("replace", 20.0, 2)):
        expected = counts * DiscreteLaplace(scale, 1, relation)
        share = laplace_fraction(5, 9, epsilon=0.1, relation=relation)
        bins = laplace_histogram("ab", categories="ab", epsilon=0.1, relation=relation)
        assert share.loss == bins.loss == expected
        assert share.loss.epsilon(delta=0) == 0.1
    # One count, and one category, change by one under both.
    assert laplace_count(5, epsilon=0.1, relation="replace").loss == DiscreteLaplace(
        10.0, 1, "replace"
    )
    single = laplace_histogram("ab", categories="a", epsilon=0.1, relation="replace")
    assert single.loss == DiscreteLaplace(10.0, 1, "replace")


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_the_histogram_loss_is_the_pair_of_its_outputs(relation: str) -> None:
    loss = laplace_histogram("aab", categories="abc", scale=3.0, relation=relation).loss
    centre, up, down = (shifted_laplace(3.0, shift, 60) for shift in (0, 1, -1))
    p = centre if relation == "add_remove" else product(centre, centre)
    q = up if relation == "add_remove" else product(up, down)
    for epsilon in (0.0, 0.1, 0.3, 0.5, 0.66):
        exact = delta_of(p, q, epsilon)
        low, high = loss.delta_bounds(epsilon=epsilon)
        assert low * (1 - 1e-9) - 1e-14 <= exact <= high * (1 + 1e-9) + 1e-14
    if relation == "replace":
        # Charging for one count only is refuted.
        assert delta_of(p, q, 0.1) > DiscreteLaplace(3.0).delta(epsilon=0.1) + 1e-3


def test_histogram_counts_and_noise() -> None:
    records = ["red"] * 5 + ["blue"] * 2 + ["green"] + [["not", "hashable"], None]
    exact = laplace_histogram(records, categories=["blue", "red", "grey"], scale=0.01)
    assert exact.value == {"blue": 2, "red": 5, "grey": 0}
    many = laplace_histogram([], categories=range(50_000), scale=2, insecure_seed=4)
    draws = np.array(list(many.value.values()))
    assert chi_square_p(draws, laplace_pmf(Fraction(2)), 40) > REJECT
    assert chi_square_p(draws, laplace_pmf(Fraction(1)), 40) < REJECT
    assert "randomness" in many.provenance
    assert str(records) not in str(exact.provenance)


def test_histogram_intervals_hold_together() -> None:
    bits = source(insecure_seed=31)
    missed = 0
    for _ in range(500):
        release = laplace_histogram("aab", categories="abc", scale=4, source=bits)
        low, high = release.interval(confidence=0.9)
        missed += not np.all((low <= [2, 1, 0]) & (high >= [2, 1, 0]))
    assert missed <= 500 * 0.1 + 6.5 * np.sqrt(500 * 0.09)
    assert missed > 0


def test_fraction_is_a_function_of_the_noisy_counts() -> None:
    bits = source(insecure_seed=32)
    missed = 0
    for _ in range(500):
        release = laplace_fraction(30, 70, epsilon=1, source=bits)
        share, having, lacking = release.value
        assert share == max(having, 0) / (max(having, 0) + max(lacking, 0))
        low, high = release.interval(confidence=0.9)
        assert low <= share <= high
        missed += not low <= 0.3 <= high
    assert missed <= 500 * 0.1 + 6.5 * np.sqrt(500 * 0.09)


def test_a_fraction_of_nobody_is_defined() -> None:
    shares = {laplace_fraction(0, 0, scale=2).value.fraction for _ in range(200)}
    assert all(0.0 <= share <= 1.0 for share in shares)
    nobody = laplace_fraction(0, 0, scale=0.01)
    assert nobody.value == (0.5, 0, 0)
    low, high = nobody.interval()
    assert low <= 0.0
    assert high >= 1.0


@pytest.mark.parametrize("categories", [[], ["a", "a"], [["a"]], 3, None])
def test_categories_are_public_and_distinct(categories: object) -> None:
    with pytest.raises(InvalidValue, match=r"^categories = "):
        laplace_histogram("ab", categories=categories, epsilon=1)


@pytest.mark.parametrize("count", [-1, 1.0, True, None, "3", float("nan")])
def test_a_count_is_a_natural_number_that_no_error_shows(count: object) -> None:
    for call in (
        lambda: laplace_count(count, epsilon=1),
        lambda: laplace_fraction(count, 3, epsilon=1),
        lambda: laplace_fraction(3, count, epsilon=1),
    ):
        with pytest.raises(InvalidValue, match="= 'withheld': expected an integer >= 0"):
            call()
