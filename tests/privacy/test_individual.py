"""Budgets of single records: the best adaptive adversary, rounding, and mutants that give room.

The adversary owns one record and chooses before every step how much it adds, by the answers so far.
Only the log-likelihood ratio of these answers and what the record has spent matter, so its best
strategy is found backwards, over all strategies at once, by quadrature.
"""

import math
from itertools import product

import numpy as np
import pytest
from scipy.special import ndtr

from discreet.errors import InvalidValue, NotApplicable, RelationMismatch
from discreet.privacy import GDP, ZCDP, Gaussian, IndividualFilter, Laplace, RenyiDP

NODES = np.linspace(-8.5, 8.5, 301)
WEIGHTS = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()
NORMS = (0.4, 0.7, 1.0)


def gaussian_delta(mu, epsilon):
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)


class PaysAfterwards:
    """A mutant's rule: a record takes part while its budget is not used up yet."""

    def _has_room(self, before, after):
        return before < self._cap


def admitted(make, norms):
    """Which steps of a path of norms are admitted."""
    budget = make()
    return tuple(bool(budget.admit([norm], stddev=1.0)[0]) for norm in norms)


def strongest(make, epsilon, steps=3):
    """The largest delta that an adaptive choice of norms reaches, by backward induction.

    V(path, v) is the best E_P (1 - e^(eps - v))_+ from the losses v so far. The loss of a step of
    size m is N(m^2 / 2, m^2) with the record; for the last step there is a closed form.
    """
    allowed = {path: admitted(make, path) for path in product(NORMS, repeat=steps)}

    def value(path, v):
        if len(path) == steps:
            return -np.expm1(np.minimum(epsilon - v, 0.0))
        best = np.zeros(len(v))
        for norm in NORMS:
            longer = (*path, norm)
            whole = longer + (NORMS[0],) * (steps - len(longer))
            if not allowed[whole][len(path)]:
                found = value(longer, v)
            elif len(longer) == steps:
                found = gaussian_delta(norm, epsilon - v)
            else:
                after = np.add.outer(v, norm * norm / 2 + norm * NODES)
                found = value(longer, after.ravel()).reshape(after.shape) @ WEIGHTS
            best = np.maximum(best, found)
        return best

    return float(value((), np.zeros(1))[0])


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_no_adaptive_adversary_passes_the_budget(epsilon):
    """It reaches the whole of GDP(1) by spending all at once, and no more in any other way."""
    found = strongest(lambda: IndividualFilter(GDP(1.0), records=1), epsilon)
    assert found == pytest.approx(gaussian_delta(1.0, epsilon), rel=0.005)


def test_the_judge_refutes_a_filter_that_pays_afterwards(monkeypatch):
    monkeypatch.setattr(IndividualFilter, "_has_room", PaysAfterwards._has_room)
    found = strongest(lambda: IndividualFilter(GDP(1.0), records=1), 0.5)
    assert found > gaussian_delta(1.0, 0.5) * 1.1


def test_the_judge_refutes_charges_of_half_the_square(monkeypatch):
    right = IndividualFilter._charges
    monkeypatch.setattr(
        IndividualFilter, "_charges", lambda self, mu, rate: right(self, mu, rate) / 2
    )
    found = strongest(lambda: IndividualFilter(GDP(1.0), records=1), 0.5)
    assert found > gaussian_delta(1.0, 0.5) * 1.1


def test_sums_at_one_order_are_those_of_the_losses():
    """As many steps as the order has room for, sampled or not; sampled norms are rounded up."""
    order, most = 8.0, 40.5
    for norm, rate in [(0.2, 1.0), (0.2, 0.3), (0.15, 0.01)]:
        step = Gaussian(1 / norm)
        step = step if rate == 1.0 else step.poisson(rate=rate)
        total = most * step.rdp([order])[0]
        budget = IndividualFilter(RenyiDP([order], [total]), records=1)
        steps = 0
        while budget.admit([norm], stddev=1.0, rate=rate)[0]:
            steps += 1
            assert steps <= most
        assert steps >= (0.75 if rate < 1.0 else 0.999) * most - 1


def test_a_record_decides_by_itself_alone():
    """What others add changes nothing for a record, or its neighbours' sets would differ."""
    rng = np.random.default_rng(5)
    mine = rng.uniform(0, 0.6, 30)
    alone = IndividualFilter(GDP(1.0), records=1)
    crowd = IndividualFilter(GDP(1.0), records=4)
    for norm in mine.tolist():
        others = rng.uniform(0, 2.0, 3)
        together = crowd.admit([*others, norm], stddev=1.5)
        assert together[3] == alone.admit([norm], stddev=1.5)[0]


def test_small_contributions_last_longer_and_passed_records_may_return():
    budget = IndividualFilter(GDP(1.0), records=4)
    rows = [budget.admit([0.0, 0.5, 1.0, math.nan], stddev=1.0).tolist() for _ in range(5)]
    assert rows == [[True, True, True, False]] + 3 * [[True, True, False, False]] + [
        [True, False, False, False]
    ]
    passed = IndividualFilter(GDP(1.0), records=1)
    taken = [bool(passed.admit([norm], stddev=1.0)[0]) for norm in (0.8, 0.8, 0.6, 0.1, 0.0)]
    assert taken == [True, False, True, False, True]


def test_a_budget_is_used_up_exactly_and_the_guarantee_covers_the_rounding():
    budget = IndividualFilter(GDP(1.0), records=1)
    steps = 0
    while budget.admit([0.1], stddev=1.0)[0]:
        steps += 1
    assert steps == 100
    assert GDP(1.0).epsilon(delta=1e-6) <= budget.guarantee.epsilon(delta=1e-6)
    assert budget.guarantee.epsilon(delta=1e-6) <= GDP(1.0).epsilon(delta=1e-6) * (1 + 1e-9)
    tiny = IndividualFilter(GDP(1.0), records=1)
    tiny.admit([1e-200], stddev=1.0)
    assert tiny._spent[0] > 0, "underflow is not free"
    assert repr(budget) == "IndividualFilter(GDP(mu=1.000000000001))"


@pytest.mark.parametrize("norm", [-1.0, math.nan, math.inf])
def test_a_norm_that_is_none_takes_no_part(norm):
    for budget in (GDP(1.0), RenyiDP([4.0], [1.0])):
        assert not IndividualFilter(budget, records=1).admit([norm], stddev=1.0)[0]
    sampled = IndividualFilter(RenyiDP([4.0], [1.0]), records=1)
    assert not sampled.admit([norm], stddev=1.0, rate=0.5)[0]


def test_refusals():
    with pytest.raises(NotApplicable, match="one order"):
        IndividualFilter(RenyiDP([2.0, 3.0], [1.0, 1.0]), records=1)
    for budget in (Laplace(1.0), ZCDP(1.0), Gaussian(1.0).poisson(rate=0.1)):
        with pytest.raises(NotApplicable, match="GDP"):
            IndividualFilter(budget, records=1)
    with pytest.raises(RelationMismatch):
        IndividualFilter(GDP(1.0, relation="replace"), records=1)
    budget = IndividualFilter(GDP(1.0), records=2)
    with pytest.raises(InvalidValue, match="norms"):
        budget.admit([1.0], stddev=1.0)
    with pytest.raises(InvalidValue, match="stddev"):
        budget.admit([1.0, 1.0], stddev=0.0)
    with pytest.raises(NotApplicable, match="Renyi"):
        budget.admit([1.0, 1.0], stddev=1.0, rate=0.5)
