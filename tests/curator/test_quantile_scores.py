"""The score of a quantile: its sensitivity, and what a choice by it loses, by enumeration."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.curator._numbers import quantile_scores, score_sensitivity
from discreet.privacy import Relation

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
