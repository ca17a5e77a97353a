"""S22: the loops agree with one another and a slow twin; noise and draws are what is paid for."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from discreet.errors import InvalidValue
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
    _steps,
    train,
)
from discreet.learn.projected_sgd._steps import draw_blocks, take_steps
from discreet.randomness import NormalStream, source

RNG = np.random.default_rng(11)
N, D = 30, 5
ROWS = RNG.normal(size=(N, D))
ROWS /= np.linalg.norm(ROWS, axis=1, keepdims=True)
SIGNS = np.where(ROWS @ np.arange(1.0, D + 1) > 0, 1.0, -1.0)
SIGNS[3] = math.nan
REGIONS = [L2Ball(0.8), Box(-0.3, 0.5), Simplex(0.9)]
LOSSES = [Logistic(), Hinge(), Huber(0.4), Squared(), SquaredHinge()]


def planned(**changes):
    base = SgdPlan(
        records=N,
        dimension=D,
        steps=700,
        lipschitz=1.0,
        diameter=1.6,
        stddev=40.0,
        step=0.01,
        epsilon=1.0,
        delta=1e-6,
        calibration="calibrated",
        clipped=False,
        output="last",
    )
    return replace(base, **changes)


def blocks(plan, seed=1):
    bits = source(insecure_seed=seed)
    return list(draw_blocks(plan, records=bits.derive("r"), stream=NormalStream(source=bits)))


def slow_twin(drawn, noise, *, loss, region, plan):
    """Lists and floats; nothing shared with the loops but the loss's own derivative."""
    theta = [float(value) for value in region.project(np.zeros(D))]
    total = [0.0] * D
    for t, i in enumerate(drawn):
        total = [a + b for a, b in zip(total, theta, strict=True)]
        gradient = [0.0] * D
        if not math.isnan(SIGNS[i]):
            score = 0.0
            for a, x in zip(theta, ROWS[i], strict=True):
                score += a * x
            gradient = [loss.slope(score, SIGNS[i]) * x for x in ROWS[i]]
            norm = math.sqrt(math.fsum(g * g for g in gradient))
            if norm > plan.lipschitz:
                gradient = [g * plan.lipschitz / norm for g in gradient]
        rate = plan.step / math.sqrt(t + 1)
        moved = [a - rate * (N * g + e) for a, g, e in zip(theta, gradient, noise[t], strict=True)]
        theta = [float(value) for value in region.project(np.array(moved))]
    return np.array(theta if plan.output == "last" else [value / len(drawn) for value in total])


@pytest.mark.parametrize("output", ["last", "average"])
@pytest.mark.parametrize("lipschitz", [10.0, 0.3])
@pytest.mark.parametrize("region", REGIONS, ids=lambda region: type(region).__name__)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_stepwise_and_slow_twin_agree(loss, region, lipschitz, output):
    plan = planned(lipschitz=lipschitz, output=output, steps=200)
    drawn = blocks(plan)
    settings = {"loss": loss, "projection": region, "plan": plan}
    found = take_steps(ROWS, SIGNS, iter(drawn), engine="stepwise", **settings)
    indices, noise = (np.concatenate(part) for part in zip(*drawn, strict=True))
    slow = slow_twin(indices, noise, loss=loss, region=region, plan=plan)
    assert found == pytest.approx(slow, abs=1e-9)


@pytest.mark.slow  # compiling takes ten seconds
def test_compiled_and_stepwise_agree_to_the_last_bit():
    for loss, region, lipschitz, output in itertools.product(
        LOSSES, REGIONS, (10.0, 0.3), ("last", "average")
    ):
        plan = planned(lipschitz=lipschitz, output=output)
        drawn = blocks(plan)
        settings = {"loss": loss, "projection": region, "plan": plan}
        results = [
            take_steps(ROWS, SIGNS, iter(drawn), engine=engine, **settings)
            for engine in ("compiled", "stepwise")
        ]
        assert np.array_equal(*results)


@pytest.mark.slow
def test_blocks_cut_the_run_but_not_the_steps():
    plan = planned()
    indices, noise = (np.concatenate(part) for part in zip(*blocks(plan), strict=True))
    settings = {"loss": Logistic(), "projection": L2Ball(0.8), "plan": plan, "engine": "compiled"}
    whole = take_steps(ROWS, SIGNS, iter([(indices, noise)]), **settings)
    cut = [(indices[:123], noise[:123]), (indices[123:], noise[123:])]
    assert np.array_equal(take_steps(ROWS, SIGNS, iter(cut), **settings), whole)


def test_a_given_projection_runs_stepwise_like_the_built_in_one():
    plan = planned()
    given = GivenProjection(L2Ball(0.8).project, radius=0.8)
    results = [
        take_steps(ROWS, SIGNS, iter(blocks(plan)), loss=Hinge(), projection=region, plan=plan)
        for region in (given, L2Ball(0.8))
    ]
    assert np.array_equal(*results)
    with pytest.raises(InvalidValue, match="engine"):
        take_steps(
            ROWS,
            SIGNS,
            iter(blocks(plan)),
            loss=Hinge(),
            projection=given,
            plan=plan,
            engine="compiled",
        )


def test_without_numba_long_runs_go_stepwise_and_compiling_is_refused(monkeypatch):
    ball = L2Ball(0.8)
    assert _steps.engine_for("auto", ball, 10**6) == "compiled"
    assert _steps.engine_for("auto", ball, 1000) == "stepwise"
    monkeypatch.setattr(_steps, "numba_is_installed", lambda: False)
    assert _steps.engine_for("auto", ball, 10**6) == "stepwise"
    with pytest.raises(InvalidValue, match="numba is missing"):
        _steps.engine_for("compiled", ball, 10**6)


def test_without_noise_and_projection_it_is_plain_sgd():
    plan = planned(stddev=0.0, step=1e-4, lipschitz=10.0)
    drawn = blocks(plan)
    theta = np.zeros(D)
    for t, i in enumerate(np.concatenate([part[0] for part in drawn])):
        change = 0.0 if math.isnan(SIGNS[i]) else float(ROWS[i] @ theta) - SIGNS[i]
        theta = theta - 1e-4 / math.sqrt(t + 1) * N * change * ROWS[i]
    found = take_steps(ROWS, SIGNS, iter(drawn), loss=Squared(), projection=L2Ball(1e6), plan=plan)
    assert found == pytest.approx(theta, rel=1e-9)


def test_seeds_repeat_and_systems_do_not():
    settings = {"loss": Logistic(), "projection": L2Ball(0.8), "plan": planned()}

    def run(bits):
        return train(ROWS, SIGNS, bits=bits, **settings)

    first, again = run(source(insecure_seed=4)), run(source(insecure_seed=4))
    assert np.array_equal(first.theta, again.theta)
    assert "INSECURE" in first.provenance["randomness"]
    assert not np.array_equal(run(None).theta, run(None).theta)
    assert run(None).provenance["randomness"] == "operating system"


def test_data_that_the_plan_does_not_describe_is_refused():
    with pytest.raises(InvalidValue, match="features"):
        train(ROWS[1:], SIGNS[1:], loss=Hinge(), projection=L2Ball(), plan=planned())


# --- the noise that is really added: n L times the multiplier that is paid for ----------------

WIDE = 20_000
FALSE_ALARM = 6.5  # standard errors; two-sided 8e-11 for each test


def deviations(stddev, paid):
    """How far the noise of one step on gradients of zero is from ``paid``, in standard errors."""
    plan = planned(records=4, dimension=WIDE, steps=2, stddev=stddev, step=1.0)
    run = train(
        np.zeros((4, WIDE)),
        np.zeros(4),
        loss=Squared(),
        projection=Box(-1e12, 1e12),
        plan=replace(plan, steps=2),
    )
    # theta_2 = -e_1 - e_2 / sqrt 2, of variance 3/2 sigma^2.
    square = float((run.theta**2).mean()) / 1.5
    return (square / paid**2 - 1.0) / math.sqrt(2.0 / WIDE)


def test_the_noise_is_what_the_loss_says_and_mutants_are_seen():
    n, steep = 50, 2.0
    plan = SgdPlan.make(
        records=n, dimension=3, lipschitz=steep, diameter=1.0, epsilon=1.0, delta=1e-6, steps=2500
    )
    paid = plan.loss.parts[0][0].base.noise_multiplier * n * steep
    assert abs(deviations(plan.stddev, paid)) < FALSE_ALARM
    for mutant in (0.5, 1.0 / n, 1.0 / steep, 0.95):  # half, no factor n, no factor L, a bit less
        assert abs(deviations(mutant * plan.stddev, paid)) > FALSE_ALARM


def test_noise_is_fresh_in_every_step_and_coordinate():
    plan = planned(dimension=8, steps=40_000, stddev=1.0)
    stream = NormalStream()
    noise = np.concatenate([part[1] for part in draw_blocks(plan, records=source(), stream=stream)])
    assert noise.shape == (40_000, 8)
    correlations = np.corrcoef(np.hstack([noise[1:], noise[:-1]]).T)
    rest = correlations[~np.eye(16, dtype=bool)]
    assert np.abs(rest).max() < 8.0 / math.sqrt(40_000)
    assert stats.kstest(noise.ravel()[::7], "norm").pvalue > 1e-10


def uniformity(drawn, n):
    return stats.chisquare(np.bincount(drawn, minlength=n)).pvalue


def test_records_are_drawn_uniformly_and_a_modulo_bias_is_seen():
    n = 200
    plan = planned(records=n, dimension=1, steps=200_000)
    drawn = np.concatenate(
        [part[0] for part in draw_blocks(plan, records=source(), stream=NormalStream())]
    )
    assert drawn.size == 200_000
    assert uniformity(drawn, n) > 1e-10
    biased = source().words8(200_000) % n
    assert uniformity(biased, n) < 1e-10
    pairs = drawn[:-1:2] % 14 * 14 + drawn[1::2] % 14
    table = np.bincount(pairs, minlength=196).reshape(14, 14)
    assert stats.chi2_contingency(table).pvalue > 1e-10
