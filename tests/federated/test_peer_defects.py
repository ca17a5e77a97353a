"""S26: defects of other frameworks, as mutants that the same checks refute, beside ours.

Numbers are those of section 2.5 of the design. The masks of 32 bits (6) are in test_secure.py.
"""

import math

import numpy as np
import pytest

from discreet.audit import audit_gaussian
from discreet.federated import Client, FederatedPlan, Round
from discreet.learn.dpsgd import Quantile
from discreet.privacy import Gaussian
from discreet.privacy.theorems import gaussian_classical_stddev

UNIT = np.eye(4)[0]


def flower_clip(norm, inside, quantile=0.5, rate=0.2):
    """Flower 1.41: the bit says "was clipped", and the exponent has the sign for "was not"."""
    return norm * math.exp(-rate * ((1.0 - inside) - quantile))


@pytest.mark.parametrize("start", [0.1, 3.0])
def test_1_the_adaptive_clip_of_the_peer_runs_away_and_ours_arrives(start):
    rule, ours, theirs = Quantile(), start, start
    for _ in range(60):
        ours = rule.next_clip_norm(
            100.0 * ((ours >= 1.0) - 0.5), clip_norm=ours, initial=start, expected_batch_size=100
        )
        theirs = flower_clip(theirs, float(theirs >= 1.0))
    assert 0.8 < ours < 1.25
    assert theirs < 1e-3 or theirs > 1e3


def scores(release, runs=400):
    return [[release(present) for _ in range(runs)] for present in (True, False)]


def test_2_weights_that_are_not_capped_are_refuted_by_an_audit_and_ours_are_not():
    claim = Gaussian(1.0)
    plan = FederatedPlan(
        clients=10,
        expected_cohort=10,
        rounds=1,
        clip_norm=1.0,
        delta=1e-5,
        sampler="full",
        noise_multiplier=1.0,
        weight_cap=100,
        planned_weight=0.1,
    )
    assert plan.loss == claim

    def theirs(present):
        # A weighted mean: noise for ten equal clients, and one has 10,000 examples.
        counts = np.array([10.0] * 9 + [10_000.0 * present])
        updates = np.zeros(10)
        updates[9] = 1.0
        noise = Round(plan, 0, size=1, asked=()).finish().update[0]  # of deviation 1 / (10 * 0.1)
        return float((counts * updates).sum() / counts.sum() + noise / 10)

    def ours(present):
        one = Round(plan, 0, size=1, asked=range(10))
        for client in range(9):
            one.receive(client, Client(plan, examples=10).reply(np.zeros(1)))
        if present:
            one.receive(9, Client(plan, examples=10_000).reply(np.ones(1) * 7))
        return float(one.finish().update[0])

    found = {
        name: audit_gaussian(*scores(release), loss=claim, delta=1e-5, mechanism="gaussian")
        for name, release in (("theirs", theirs), ("ours", ours))
    }
    assert found["theirs"].verdict == "violated"
    assert found["ours"].verdict != "violated"


def test_3_replies_that_stay_away_do_not_move_the_denominator_and_nan_does_not_spread():
    plan = FederatedPlan(
        clients=3000, expected_cohort=100, rounds=1, clip_norm=1.0, delta=1e-5, noise_multiplier=1.0
    )
    # The peer divides by the two that replied: one of them moves the mean by a half, the noise has
    # a hundredth. That is mu = 50, where 1 was promised.
    assert Gaussian(1 / 50).epsilon(delta=1e-5) > 1400
    two = Round(plan, 0, size=4, asked=range(100))
    two.receive(0, {"update": UNIT})
    two.receive(1, {"update": np.full(4, np.nan)})
    update = two.finish().update
    assert np.isfinite(update).all()
    assert np.abs(update).max() < 0.01 + 8 * 0.01
    idle = Round(plan, 0, size=4, asked=range(100))
    assert idle.receive(0, {"update": np.zeros(4)}) == "counted"  # no division by its length
    assert np.isfinite(idle.finish().update).all()


@pytest.mark.parametrize(("stated", "true"), [(1, 1.61), (4, 7.91), (10, 25.4), (50, 300)])
def test_5_local_noise_by_the_classical_formula_costs_more_than_it_says(stated, true):
    # LocalDpMod: sqrt(2 ln(1.25 / delta)) / epsilon for any epsilon, and for a removed update,
    # where a changed one moves twice as far.
    deviation = math.sqrt(2 * math.log(1.25 / 1e-5)) / stated
    costs = Gaussian(deviation, relation="replace").epsilon(delta=1e-5)
    assert costs == pytest.approx(true, rel=0.05)
    assert costs > 1.5 * stated
    ours = FederatedPlan(
        clients=10,
        expected_cohort=10,
        rounds=1,
        clip_norm=1.0,
        delta=1e-5,
        trust="nobody",
        dimension=4,
        epsilon=min(stated, 25),
    )
    assert ours.epsilon() <= stated
    if stated == 1:
        assert gaussian_classical_stddev(0.999, 1e-5) == pytest.approx(deviation, rel=0.01)


def test_5_no_sensitivity_is_asked_for_beside_the_clip():
    with pytest.raises(TypeError, match="sensitivity"):
        FederatedPlan(
            clients=9, expected_cohort=3, rounds=1, clip_norm=1.0, delta=1e-5, epsilon=1.0,
            sensitivity=1e-4,
        )  # fmt: skip
