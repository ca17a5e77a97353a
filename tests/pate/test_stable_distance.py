"""S24: the distance of a vote against all histograms that can be reached."""

import itertools

import numpy as np
import pytest

from discreet.mechanisms import votes_distance
from discreet.pate._stable_votes import lead_distance
from oracles.vote_labels import histograms, moved


def winner(votes):
    return votes.index(max(votes))


def moves_to_another_winner(votes) -> int:
    """Breadth-first search over moved votes."""
    seen, border, moves = {votes}, [votes], 0
    while True:
        moves += 1
        border = [other for one in border for other in moved(one) if other not in seen]
        if any(winner(other) != winner(votes) for other in border):
            return moves
        seen.update(border)


@pytest.mark.parametrize(("teachers", "classes"), [(1, 2), (2, 3), (7, 2), (8, 2), (7, 3), (5, 4)])
def test_distance_is_exact_for_votes(teachers, classes) -> None:
    for votes in histograms(teachers, classes):
        exact = moves_to_another_winner(votes) - 1
        assert votes_distance(votes, moved=True) == exact, votes


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_lead_distance_moves_by_one_and_is_safe(cap) -> None:
    """M_samp: a neighbour moves up to ``cap`` votes."""
    for votes in histograms(8, 3):
        distance = lead_distance(np.array(votes), cap=cap)
        reached = {votes}
        for _ in range(cap):
            reached |= {other for one in reached for other in moved(one)}
        for other in reached:
            assert abs(lead_distance(np.array(other), cap=cap) - distance) <= 1
            if winner(other) != winner(votes):
                assert distance <= 0


def test_disjoint_teachers_answer_at_least_as_often_by_the_exact_distance() -> None:
    for votes in itertools.chain(histograms(9, 3), histograms(6, 4)):
        assert votes_distance(votes, moved=True) >= lead_distance(np.array(votes), cap=1)


def test_a_distance_that_forgets_the_tie_rule_would_be_caught() -> None:
    wrong = [
        votes
        for votes in histograms(7, 3)
        if min((max(votes) - v) // 2 for i, v in enumerate(votes) if i != winner(votes))
        != moves_to_another_winner(votes) - 1
    ]
    assert wrong
