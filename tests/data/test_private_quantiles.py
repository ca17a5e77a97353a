"""Private bounds: sensitivity by enumeration, choices by their exact probabilities."""

import datetime as dt
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from discreet.data.columns import Date, Integer, Real
from discreet.data.private_quantiles import (
    CellCounts,
    QuantilePair,
    bounded_by,
    default_grid,
    grid_of,
    quantile_scores,
    score_sensitivity,
)
from discreet.errors import InvalidValue
from discreet.privacy import Exponential, Relation
from discreet.randomness import source

REJECT = 1e-9
SHARES = [Fraction(1, 200), Fraction(1, 4), Fraction(1, 2), Fraction(19, 20)]
TINY = [np.array(counts) for counts in itertools.product(range(4), repeat=4)]


def moved(counts, *, add=None, remove=None):
    new = counts.copy()
    for at, step in ((add, 1), (remove, -1)):
        if at is not None:
            new[at] += step
    return new


def slow_scores(counts, share):
    """The definition: how far the rank is from the ranks of the cell, in exact arithmetic."""
    rank = share * int(counts.sum())
    scores = []
    for at in range(len(counts)):
        first, last = int(counts[:at].sum()), int(counts[: at + 1].sum())
        scores.append(-max(Fraction(0), first - rank, rank - last) * share.denominator)
    return scores


def neighbours(counts, relation):
    cells = range(len(counts))
    if relation is Relation.ADD_REMOVE:
        return [moved(counts, add=at) for at in cells]
    return [moved(counts, add=a, remove=b) for a in cells for b in cells if a != b and counts[b]]


def largest_move(relation, share):
    """The largest change of a score, and the largest range of changes, over all tiny tables."""
    most = widest = 0
    for counts in TINY:
        before = quantile_scores(counts, share=share)
        for other in neighbours(counts, relation):
            change = quantile_scores(other, share=share) - before
            most = max(most, int(np.abs(change).max()))
            widest = max(widest, int(change.max() - change.min()))
    return most, widest


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("relation", list(Relation))
def test_sensitivity_holds_and_is_attained(relation, share):
    stated = score_sensitivity(share, relation)
    most, widest = largest_move(relation, share)
    assert most <= stated
    assert widest <= 2 * stated
    # One unit less would be wrong where a tiny table is enough to show it.
    if share in (Fraction(1, 4), Fraction(1, 2)):
        assert most > stated - 1


def test_a_range_of_one_record_would_be_wrong():
    # Ranks move by 19/20 in both directions at once: the range is not 1 but 2 max(q, 1 - q).
    share = Fraction(19, 20)
    counts = np.array([30, 30, 1, 1, 0])
    before = quantile_scores(counts, share=share)
    change = quantile_scores(moved(counts, add=4), share=share) - before
    assert change.max() - change.min() > share.denominator
    assert change.max() - change.min() <= 2 * score_sensitivity(share, Relation.ADD_REMOVE)


@settings(max_examples=100)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=8).map(np.array), st.sampled_from(SHARES))
def test_scores_are_what_they_are_said_to_be(counts, share):
    assert quantile_scores(counts, share=share).tolist() == slow_scores(counts, share)


def probabilities(counts, share, epsilon, sensitivity):
    weights = np.exp(quantile_scores(counts, share=share) * epsilon / (2 * sensitivity))
    return weights / weights.sum()


def largest_loss(share, epsilon, relation, *, factor=1.0):
    """The exact epsilon of one choice over all pairs of tiny neighbours."""
    sensitivity = factor * score_sensitivity(share, relation)
    worst = 0.0
    for counts in TINY:
        first = probabilities(counts, share, epsilon, sensitivity)
        for other in neighbours(counts, relation):
            second = probabilities(other, share, epsilon, sensitivity)
            worst = max(worst, float(np.abs(np.log(first) - np.log(second)).max()))
    return worst


@pytest.mark.parametrize("relation", list(Relation))
def test_no_pair_of_tiny_tables_loses_more_than_claimed(relation):
    for share in (Fraction(1, 4), Fraction(1, 2)):
        assert largest_loss(share, 2.0, relation) <= 2.0
    # Half of the sensitivity must be refuted by the same enumeration.
    assert largest_loss(Fraction(1, 2), 2.0, relation, factor=0.5) > 2.0


def test_choices_have_their_exact_probabilities():
    # 2 x 1500 draws, two chi-square tests at 1e-9; the seed is fixed.
    pair = QuantilePair((0.0, 1.0, 2.0, 3.0), Fraction(1), Fraction(1, 4), Relation.ADD_REMOVE)
    counts = pair.counts()
    counts.add(np.array([-1.0, 0.5, 0.5, 1.0, 1.5, 1.5, 2.5, 2.5, 9.0, np.nan]))
    assert counts.counts.tolist() == [1, 3, 2, 2, 1]
    bits = source(insecure_seed=5)
    drawn = [[choice.value for choice in pair.choose(counts, bits)[1]] for _ in range(1500)]
    for at, share in enumerate((Fraction(1, 4), Fraction(3, 4))):
        seen = np.bincount([row[at] for row in drawn], minlength=5)
        right = probabilities(counts.counts, share, 1.0, 3)
        assert stats.chisquare(seen, 1500 * right).pvalue > REJECT
        wrong = probabilities(counts.counts, share, 1.0, 1.5)  # twice the rate
        assert stats.chisquare(seen, 1500 * wrong).pvalue < REJECT


def test_cells_are_counted_over_batches():
    values = np.random.default_rng(2).normal(size=1000) * 3
    whole, parts = (CellCounts(np.array([-2.0, 0.0, 1.0])) for _ in range(2))
    whole.add(values)
    for part in np.array_split(values, 7):
        parts.add(part)
    expected = [
        np.sum(values <= -2),
        np.sum((values > -2) & (values <= 0)),
        np.sum((values > 0) & (values <= 1)),
        np.sum(values > 1),
    ]
    assert whole.counts.tolist() == parts.counts.tolist() == expected
    whole.add(np.array([np.inf, -np.inf, np.nan]))
    assert int(whole.counts.sum()) == 1002


def test_every_pair_of_cells_gives_proper_bounds():
    pair = QuantilePair((0, 1, 2, 3), Fraction(1), Fraction(1, 4), Relation.ADD_REMOVE)
    for first, last in itertools.combinations_with_replacement(range(5), 2):
        low, high = pair._ends(first, last)
        assert low < high
        assert {low, high} <= {0, 1, 2, 3}
    assert pair._ends(1, 1) == (0, 1)
    assert pair._ends(1, 3) == (0, 3)


def test_the_share_left_out_follows_from_public_numbers():
    grid = tuple(range(100))

    def tail(rows, epsilon="1/2"):
        return QuantilePair.planned(
            grid,
            epsilon=Fraction(epsilon),
            relation=Relation.ADD_REMOVE,
            expected_units=rows,
        ).tail

    assert tail(None) == Fraction(1, 20)
    assert tail(10) == Fraction(1, 4)
    assert tail(10**7) == Fraction(1, 200)
    # (ln 101 + ln 100) / (1/4) = 36.88 ranks of 1000
    assert tail(1000) == Fraction(37, 1000)
    assert math.isclose((math.log(101) + math.log(100)) / 0.25, 36.881, abs_tol=1e-3)
    assert tail(1000, "1/4") > tail(1000)


def test_the_loss_is_that_of_two_choices():
    pair = QuantilePair((0, 1), Fraction(1, 4), Fraction(1, 20), Relation.REPLACE)
    assert pair.loss == 2 * Exponential(0.25, Relation.REPLACE)
    _, releases = pair.choose(pair.counts(), source())
    assert releases[0].loss + releases[1].loss == pair.loss


def test_grids():
    for column in (Real(), Integer(), Date()):
        grid = default_grid(column)
        assert list(grid) == sorted(set(grid))
        assert bounded_by(column, (grid[0], grid[-1])).complete
    assert default_grid(Real())[-1] == 7e12
    assert 0 in default_grid(Integer())
    assert all(isinstance(point, int) for point in default_grid(Integer()))
    assert grid_of("x", Integer(), [1, 5, 9]) == (1, 5, 9)
    assert grid_of("x", Date(), [dt.date(2000, 1, 1), dt.date(2001, 1, 1)])
    for wrong in ([1], [2, 1], [1, 1], "12", [1, 2.5], [1, None], 3):
        with pytest.raises(InvalidValue, match=r"grids\['x'\]"):
            grid_of("x", Integer(), wrong)


def test_a_declared_missing_value_moves_inside_the_bounds():
    assert bounded_by(Integer(missing=-1), (10, 20)) == Integer(10, 20, missing=10)
    assert bounded_by(Real(missing=15.0), (10.0, 20.0)) == Real(10, 20, missing=15)
    assert bounded_by(Real(), (10.0, 20.0)) == Real(10, 20)
