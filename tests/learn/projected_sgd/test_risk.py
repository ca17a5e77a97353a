"""S22: the measured excess risk is enclosed, and on average below the bound of the plan."""

import math

import numpy as np
import pytest
from scipy import optimize

from discreet.learn.projected_sgd import (
    Box,
    GivenProjection,
    Hinge,
    Huber,
    L2Ball,
    Logistic,
    SgdPlan,
    Simplex,
    Squared,
    SquaredHinge,
    excess_risk_without_privacy,
    train,
)
from discreet.randomness import source

RNG = np.random.default_rng(2)
ROWS = RNG.normal(size=(60, 3))
ROWS /= np.linalg.norm(ROWS, axis=1, keepdims=True)
SIGNS = np.where(ROWS @ [1.0, -2.0, 0.5] + RNG.normal(0, 0.5, 60) > 0, 1.0, -1.0)
LOSSES = [Logistic(), Hinge(), Huber(0.4), Squared(), SquaredHinge()]
REGIONS = [L2Ball(2.0), Box(-1.0, 1.5), Simplex(2.0)]


def risk(theta, loss):
    return float(loss.values(ROWS @ theta, SIGNS).sum())


def reference(loss, region):
    """The minimum by a general solver, from several starts."""
    if isinstance(region, L2Ball):
        limits = {"constraints": {"type": "ineq", "fun": lambda p: region.radius**2 - p @ p}}
    elif isinstance(region, Box):
        limits = {"bounds": [(region.lower, region.upper)] * 3}
    else:
        total = {"type": "eq", "fun": lambda p: p.sum() - region.total}
        limits = {"bounds": [(0.0, None)] * 3, "constraints": total}
    starts = [region.project(RNG.normal(size=3)) for _ in range(4)]
    found = [
        optimize.minimize(risk, p, args=(loss,), method="SLSQP", tol=1e-12, **limits)
        for p in starts
    ]
    return min(risk(region.project(result.x), loss) for result in found)


@pytest.mark.parametrize("region", REGIONS, ids=lambda region: type(region).__name__)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_minimum_is_enclosed(loss, region):
    theta = region.start(3)
    measured = excess_risk_without_privacy(theta, ROWS, SIGNS, loss=loss, projection=region)
    assert measured.private
    assert measured.records == 60
    best = reference(loss, region)
    assert measured.lower - 1e-9 <= measured.upper
    assert risk(theta, loss) - best <= measured.upper + 1e-6
    if not isinstance(loss, Hinge):
        assert measured.upper - measured.lower <= 1e-3
        assert measured.lower == pytest.approx(risk(theta, loss) - best, abs=1e-3)
    else:
        assert measured.upper - measured.lower <= 60 * 1e-3


def test_a_given_set_has_no_certified_minimum():
    region = GivenProjection(L2Ball(2.0).project, radius=2.0)
    theta = np.array([0.1, 0.0, 0.0])
    given = excess_risk_without_privacy(theta, ROWS, SIGNS, loss=Logistic(), projection=region)
    built_in = excess_risk_without_privacy(
        theta, ROWS, SIGNS, loss=Logistic(), projection=L2Ball(2.0), bound=7.0
    )
    assert given.upper is None
    assert given.lower == pytest.approx(built_in.lower, abs=1e-3)
    assert "not for release" in str(given)
    assert "bound on its mean: 7" in str(built_in)


def test_records_that_count_for_nothing_have_no_risk():
    nothing = np.full(60, math.nan)
    measured = excess_risk_without_privacy(
        np.zeros(3), ROWS, nothing, loss=Logistic(), projection=L2Ball(2.0)
    )
    assert (measured.lower, measured.upper, measured.records) == (0.0, 0.0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("output", ["last", "average"])
@pytest.mark.parametrize(
    ("loss", "region"),
    [
        (Logistic(), L2Ball(2.0)),
        (Hinge(), Box(-1.0, 1.5)),
        (Huber(0.4), Simplex(2.0)),
        (Squared(), L2Ball(2.0)),
        (SquaredHinge(), L2Ball(2.0)),
    ],
    ids=lambda thing: getattr(thing, "name", ""),
)
def test_the_mean_excess_risk_is_below_the_bound(loss, region, output):
    slope = loss.slope_bound(score_bound=region.reach(3), target_bound=1.0)
    plan = SgdPlan.make(
        records=60,
        dimension=3,
        lipschitz=slope * (1 + 1e-9),
        diameter=region.diameter(3),
        epsilon=20.0,
        delta=1e-4,
        output=output,
    )
    assert plan.steps == 3600
    seen = []
    for seed in range(8):
        bits = source(insecure_seed=seed)
        run = train(ROWS, SIGNS, loss=loss, projection=region, plan=plan, bits=bits)
        assert region.project(run.theta.copy()) == pytest.approx(run.theta, abs=1e-9)
        seen.append(risk(run.theta, loss))
    start = excess_risk_without_privacy(region.start(3), ROWS, SIGNS, loss=loss, projection=region)
    lowest = risk(region.start(3), loss) - start.upper
    assert 0.0 <= np.mean(seen) - lowest <= plan.excess_risk_bound()
