"""Correlated noise: all patterns by brute force, exact fractions, quadrature, and planted bugs."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.privacy import (
    GDP,
    Correlated,
    Gaussian,
    Grouped,
    Laplace,
    Strategy,
    choose_bands,
    from_json,
    theorems,
    to_json,
)
from discreet.privacy.theorems import (
    block_norms,
    inverse_square_root_coefficients,
    inverse_toeplitz,
    least_error_coefficients,
    majorant,
    prefix_errors,
    square_root_coefficients,
    toeplitz_sensitivity,
)


def matrix(column, steps):
    """C, written out."""
    wide = np.append(np.asarray(column)[:steps], np.zeros(max(0, steps - len(column))))
    return np.array([[wide[i - j] if i >= j else 0.0 for j in range(steps)] for i in range(steps)])


def patterns(steps, separation, participations):
    """Every set of steps that one record may take part in."""
    for size in range(1, participations + 1):
        for chosen in itertools.combinations(range(steps), size):
            if all(b - a >= separation for a, b in itertools.pairwise(chosen)):
                yield list(chosen)


def largest_move(c, steps, separation, participations):
    """The largest |C D| over all patterns and signs of numbers: a bound from below and above.

    For vectors the sum of |X_ij| bounds it, which some signs attain where X has one sign.
    """
    square = c.T @ c
    above = below = 0.0
    for chosen in patterns(steps, separation, participations):
        part = square[np.ix_(chosen, chosen)]
        above = max(above, float(np.abs(part).sum()))
        for signs in itertools.product((1.0, -1.0), repeat=min(len(chosen), 3)):
            d = np.append(np.array(signs), np.ones(len(chosen) - len(signs)))
            below = max(below, float(d @ part @ d))
    return math.sqrt(below), math.sqrt(above)


SHAPES = [(n, b, k) for n in (1, 2, 5, 7) for b in (1, 2, 3, 5) for k in (1, 2, 7)]


@pytest.mark.parametrize(("steps", "separation", "participations"), SHAPES)
def test_the_sensitivity_is_that_of_the_worst_pattern(steps, separation, participations):
    chance = np.random.default_rng(steps * 100 + separation * 10 + participations)
    size = {"steps": steps, "separation": separation, "participations": participations}
    for bands in (1, 2, 3, 7):
        falling = np.sort(chance.random(bands))[::-1] + 0.01
        free = np.append(1.0, chance.uniform(-1, 1, bands - 1))
        for column in (falling, free):
            below, above = largest_move(matrix(column, steps), steps, separation, participations)
            covered = column is falling or bands <= separation or min(steps, bands) == 1
            once = participations == 1 or separation >= steps
            if not covered and not once and min(steps, bands) > separation:
                continue
            found = toeplitz_sensitivity(column, **size)
            assert below <= found * (1 + 1e-15)
            assert found == pytest.approx(above, rel=1e-12)
            assert below == pytest.approx(above, rel=1e-12)  # exact: some data attain it


def test_what_no_case_covers_is_refused():
    with pytest.raises(NotApplicable, match="as many coefficients as the separation"):
        toeplitz_sensitivity([1.0, 0.2, 0.5], steps=9, separation=2, participations=3)
    with pytest.raises(NotApplicable, match="never increase"):
        toeplitz_sensitivity([1.0, -0.5], steps=9, separation=1, participations=9)
    with pytest.raises(NotApplicable, match="reach further"):
        block_norms([1.0, 0.5, 0.2], steps=9, separation=2, participations=5)
    for bad in ([], [0.0, 1.0], [-1.0], [1.0, math.nan], [[1.0]]):
        with pytest.raises(InvalidValue, match="coefficients"):
            toeplitz_sensitivity(bad, steps=3, separation=1, participations=1)


@pytest.mark.parametrize("bands", [1, 2, 4, 7])
def test_the_inverse_strategy_is_never_charged_too_little(bands):
    """Exact fractions of the very floats that the generator would use."""
    steps = 24
    inverse = [Fraction(one) for one in inverse_square_root_coefficients(bands).tolist()]
    c = [1 / inverse[0]]
    for i in range(1, steps):
        reach = range(1, min(i, bands - 1) + 1)
        c.append(-sum((inverse[j] * c[i - j] for j in reach), Fraction(0)) / inverse[0])
    assert all(one >= after >= 0 for one, after in itertools.pairwise(c))
    above = majorant([float(one) for one in inverse], steps=steps)
    assert all(Fraction(high) >= exact for high, exact in zip(above.tolist(), c, strict=True))
    strategy = Strategy(tuple(map(float, inverse)), inverse=True)
    for separation, times in ((1, 24), (5, 3), (6, 4), (24, 1)):
        total = [Fraction(0)] * steps
        for begin in range(0, separation * times, separation):
            for at in range(begin, steps):
                total[at] += c[at - begin]
        exact = sum(one * one for one in total)
        found = strategy.sensitivity(steps=steps, separation=separation, participations=times)
        assert Fraction(found) ** 2 >= exact
        assert found == pytest.approx(math.sqrt(exact), rel=1e-10)


def test_series_errors_and_optima_against_matrices():
    for column in (square_root_coefficients(6), least_error_coefficients(5, steps=40)):
        c = matrix(column, 40)
        inverse = np.linalg.inv(c)
        np.testing.assert_allclose(inverse_toeplitz(column, steps=40), inverse[:, 0], atol=1e-12)
        noise = np.tril(np.ones((40, 40))) @ inverse
        expected = np.sqrt((noise**2).sum(axis=1))
        np.testing.assert_allclose(prefix_errors(column, steps=40), expected, rtol=1e-10)
    long = np.append(1.0, np.full(299, -1e-3))  # several blocks of rows
    product = np.convolve(inverse_toeplitz(long, steps=9000), long)[:9000]
    assert abs(product[0] - 1) < 1e-12
    assert np.abs(product[1:]).max() < 1e-12
    best = least_error_coefficients(4, steps=64)
    least = math.log(np.mean(prefix_errors(best, steps=64) ** 2))
    for i in range(1, 4):
        for step in (-0.02, 0.02):
            other = best.copy()
            other[i] += step
            changed = np.mean(prefix_errors(other, steps=64) ** 2) * np.dot(other, other)
            assert math.log(changed) > least


def total_error(strategy, steps, participations, separation):
    reach = {"separation": separation, "participations": participations}
    return strategy.sensitivity(steps=steps, **reach) * strategy.error(steps=steps)


def test_errors_are_those_of_the_published_strategies():
    """Max and root mean square errors that FRONTIER.md lists, checked there on their own."""
    for steps, largest, mean in ((1000, 3.2650, 3.1022), (2000, 3.4857, 3.3230)):
        c = square_root_coefficients(steps)
        errors = prefix_errors(c / c[0], steps=steps) / c[0]  # norm 1: once the sensitivity
        assert errors.max() == pytest.approx(largest, abs=6e-5)
        assert math.sqrt(np.mean(errors**2)) == pytest.approx(mean, abs=6e-5)
    plain = prefix_errors([1.0], steps=1000)
    assert plain.max() == pytest.approx(31.62, abs=5e-3)
    for bands, known in ((4, 12.66), (16, 6.89), (64, 4.27)):
        one = Strategy.inverse_square_root(bands)
        found = one.sensitivity(steps=1000, participations=1) * one.errors(steps=1000).max()
        assert found == pytest.approx(known, abs=6e-3)
    assert total_error(Strategy.independent(), 1024, 8, 128) == pytest.approx(64.03, abs=6e-3)
    assert total_error(Strategy.square_root(1024), 1024, 8, 128) == pytest.approx(13.02, abs=6e-3)
    assert total_error(Strategy.square_root(128), 1024, 8, 128) == pytest.approx(10.294, abs=6e-4)
    inverse = Strategy.inverse_square_root(64)
    assert total_error(inverse, 1024, 8, 128) == pytest.approx(10.613, abs=6e-4)
    best = Strategy.optimised(128, steps=1024)
    assert total_error(best, 1024, 8, 128) == pytest.approx(9.965, abs=6e-4)


@pytest.mark.slow
def test_the_larger_tables_of_errors():
    for steps, times, apart, cut, best in (
        (2048, 16, 128, 18.534, 17.137),
        (4096, 16, 256, 19.552, 18.015),
    ):
        found = total_error(Strategy.square_root(apart), steps, times, apart)
        assert found == pytest.approx(cut, abs=6e-4)
        found = total_error(Strategy.optimised(apart, steps=steps), steps, times, apart)
        assert found == pytest.approx(best, abs=6e-4)
    found = total_error(Strategy.square_root(1000), 10_000, 10, 1000)
    assert found == pytest.approx(14.579, abs=6e-4)


# --- the loss ---------------------------------------------------------------------------------


def test_fixed_steps_cost_one_gaussian():
    strategy = Strategy.square_root(4)
    run = Gaussian(3.0).correlated(strategy, steps=32, separation=8)
    assert isinstance(run, Correlated)
    assert run.sensitivity == pytest.approx(2.0)
    one = Gaussian(1.5)
    for delta in (1e-3, 1e-8):
        low, high = run.epsilon_bounds(delta=delta)
        exact = one.epsilon(delta=delta)
        assert low <= exact <= high * (1 + 1e-12)
        assert high == pytest.approx(exact, rel=1e-9)
    assert run.zcdp() == pytest.approx(one.zcdp(), rel=1e-12)
    assert (run + run).epsilon(delta=1e-6) == pytest.approx((2 * one).epsilon(delta=1e-6))
    replaced = Gaussian(3.0, "replace").correlated(strategy, steps=32, separation=8)
    assert replaced.epsilon(delta=1e-6) == pytest.approx(
        Gaussian(1.5, "replace").epsilon(delta=1e-6)
    )
    assert GDP(1 / 3).correlated(strategy, steps=32, separation=8) == run
    assert run.group(3).epsilon(delta=1e-6) == pytest.approx(one.group(3).epsilon(delta=1e-6))
    assert Gaussian(2.0).correlated(Strategy.independent(), steps=5, separation=1).epsilon(
        delta=1e-6
    ) == pytest.approx((5 * Gaussian(2.0)).epsilon(delta=1e-6))


def sampled_delta(c, steps, separation, rate, noise, epsilon, *, added):
    """delta of turns of one group, by a grid over the space that its columns span.

    The group that begins first; nothing is assumed about rows in common.
    """
    turns = list(range(0, steps, separation))
    assert len(turns) == 2
    basis, coordinates = np.linalg.qr(matrix(c, steps)[:, turns] / noise)
    del basis
    axis = np.linspace(-7.5, 9.0, 661)
    x, y = np.meshgrid(axis, axis)
    cell = (axis[1] - axis[0]) ** 2 / (2.0 * math.pi)
    q = np.exp(-0.5 * (x * x + y * y)) * cell
    p = np.zeros_like(q)
    for coins in itertools.product((0, 1), repeat=2):
        weight = math.prod(rate if coin else 1.0 - rate for coin in coins)
        a, b = coordinates @ np.array(coins, dtype=float)
        p += weight * np.exp(-0.5 * ((x - a) ** 2 + (y - b) ** 2)) * cell
    if added:
        p, q = q, p
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def test_turns_of_a_group_against_quadrature():
    for column, steps, separation in (((0.8, 0.6), 4, 2), ((0.8, 0.6), 3, 2), ((0.6, -0.8), 5, 3)):
        rate, noise = 0.3, 0.9
        run = Gaussian(noise).correlated(
            Strategy(column), steps=steps, separation=separation, rate=rate
        )
        for epsilon in (0.2, 1.0):
            exact = max(
                sampled_delta(column, steps, separation, rate, noise, epsilon, added=way)
                for way in (False, True)
            )
            low, high = run.delta_bounds(epsilon=epsilon)
            assert low <= exact * (1 + 5e-4)
            assert exact <= high * (1 + 5e-4)
            assert high - low < 2e-3 * exact
    # More bands than groups: rows in common. Charged as if there were none, it is too little.
    column = np.array([0.6, 0.6, 0.53])
    column = column / np.linalg.norm(column)
    true = sampled_delta(column, 4, 2, 0.3, 0.9, 1.0, added=False)
    claimed = (2 * Gaussian(0.9).poisson(rate=0.3)).delta(epsilon=1.0)
    assert true > 1.1 * claimed
    with pytest.raises(NotApplicable, match="at most as many bands as groups"):
        Gaussian(0.9).correlated(Strategy(tuple(column)), steps=4, separation=2, rate=0.3)


def test_turns_are_a_composition_of_poisson_samples():
    strategy = Strategy.square_root(16)
    run = Gaussian(1.2).correlated(strategy, steps=160, rate=0.1)
    plain = 10 * Gaussian(1.2).poisson(rate=0.1)
    for delta in (1e-4, 1e-7):
        assert run.epsilon(delta=delta) == pytest.approx(plain.epsilon(delta=delta), rel=1e-3)
        assert run.epsilon_bounds(delta=delta).lower > 0.999 * plain.epsilon(delta=delta)
    cut = Gaussian(1.2).correlated(strategy, steps=161, rate=0.1)
    eleven = (11 * Gaussian(1.2).poisson(rate=0.1)).epsilon(delta=1e-6)
    assert run.epsilon(delta=1e-6) < cut.epsilon(delta=1e-6) < eleven
    twice = (run + run).epsilon_bounds(delta=1e-6)
    assert twice.lower <= (2 * plain).epsilon(delta=1e-6) <= twice.upper * (1 + 1e-3)
    np.testing.assert_allclose(run.rdp([2.0, 8.0]), plain.rdp([2.0, 8.0]), rtol=1e-9)
    with pytest.raises(NotApplicable, match="no useful zCDP"):
        run.zcdp()
    assert run.delta(epsilon=0.0) <= 1 - 0.9**10 + 1e-12


def test_a_person_with_records_in_two_groups_is_not_charged_as_one_group():
    """Records in different groups meet in one row: only the generic bound is taken."""
    column = (0.72, 0.694)
    run = Gaussian(1.0).correlated(Strategy(column), steps=2, separation=2, rate=0.9)
    pair = run.group(2)
    assert isinstance(pair, Grouped)
    # Records that always take part, in steps 0 and 1: their columns overlap.
    moved = np.linalg.norm(matrix(column, 2) @ np.ones(2))
    truth = 0.81 * Gaussian(1 / moved).delta(epsilon=2.0)
    assert pair.delta(epsilon=2.0) >= truth
    zero = run.group(1, relation="zero_out")
    assert zero.relation == "zero_out"
    assert zero.epsilon(delta=1e-5) == pytest.approx(run.epsilon(delta=1e-5), rel=1e-9)


def test_refusals_of_the_loss():
    strategy = Strategy.square_root(4)
    with pytest.raises(NotApplicable, match="at most as many bands"):
        Gaussian(1.0).correlated(Strategy.inverse_square_root(4), steps=8, rate=0.5)
    with pytest.raises(NotApplicable, match="all of its turns"):
        Gaussian(1.0).correlated(strategy, steps=8, participations=1, rate=0.5)
    with pytest.raises(NotApplicable, match="never increase"):
        Gaussian(1.0).correlated(Strategy((1.0, -0.5)), steps=8, separation=1)
    with pytest.raises(NotApplicable, match="is Gaussian"):
        Correlated(Laplace(1.0), (1.0,), 2, 1, 2)
    with pytest.raises(InvalidValue, match="separation"):
        Gaussian(1.0).correlated(strategy, steps=8)
    with pytest.raises(InvalidValue, match="separation"):
        strategy.sensitivity(steps=8, participations=2)
    # A rate of 1 is that of a group that always takes its turn, not of one participation.
    always = Gaussian(1.0).correlated(strategy, steps=8, rate=1.0)
    assert always.sensitivity == pytest.approx(math.sqrt(2))
    once = Gaussian(1.0).correlated(strategy, steps=8, participations=1)
    assert once.sensitivity == pytest.approx(1.0)
    with pytest.raises(InvalidValue, match="strategy"):
        Gaussian(1.0).correlated((1.0, 0.5), steps=8)
    for rate in (0.0, 1.5, math.nan):
        with pytest.raises(InvalidValue, match="rate"):
            Gaussian(1.0).correlated(strategy, steps=8, rate=rate)
    run = Gaussian(1.0).correlated(strategy, steps=8, separation=4)
    with pytest.raises(NotApplicable, match="whole run"):
        run.poisson(rate=0.1)
    for bad in ((), (0.0,), (1.0, math.inf), ("a",)):
        with pytest.raises(InvalidValue, match="coefficients"):
            Strategy(bad)
    with pytest.raises(InvalidValue, match="inverse"):
        Strategy((1.0,), inverse=1)


def test_json_and_names():
    strategy = Strategy.square_root(12)
    runs = [
        Gaussian(2.0).correlated(strategy, steps=50, separation=25),
        Gaussian(2.0, "replace").correlated(strategy, steps=50, rate=0.2),
        Gaussian(2.0).correlated(Strategy.inverse_square_root(3), steps=9, separation=3),
    ]
    for run in runs:
        document = to_json(run)
        assert from_json(document) == run
        assert "inverse" in document["loss"] or not run.inverse
        document["loss"]["coefficients"][0] = -1.0
        with pytest.raises(SchemaError, match="coefficients"):
            from_json(document)
    assert "12 of digest" in repr(runs[0])
    assert repr(runs[0]) != repr(Gaussian(2.0).correlated(
        Strategy((*strategy.coefficients[:11], 0.1)), steps=50, separation=25
    ))  # fmt: skip
    short = Gaussian(1.1).correlated(Strategy((0.8, 0.6)), steps=7, separation=3)
    names = {"Gaussian": Gaussian, "Strategy": Strategy}
    assert eval(repr(short), names) == short


# --- mutants: how a wrong sampler or a wrong count would show -----------------------------------


def test_samplers_that_break_the_separation_would_cost_far_more_than_claimed():
    """At 16 to 128 bands, patterns that other samplers allow move C G by 1.3 to 3.1 times more."""
    steps, batches = 2048, 128
    found = {"shuffled": [], "poisson": []}
    for bands in (16, 32, 64, 128):
        column = np.asarray(Strategy.optimised(bands, steps=steps).coefficients)
        wide = np.append(column, np.zeros(steps - bands))

        def move(chosen, wide=wide):
            return math.sqrt(float(np.sum(sum(np.roll(wide, one) for one in chosen) ** 2)))

        # Once in each epoch, at its end and at the beginning of the next.
        epochs = [batches * e + (batches - 1 if e % 2 == 0 else 0) for e in range(8)]
        found["shuffled"].append(move(epochs) / math.sqrt(8))
        # Poisson or fixed-size batches: in eight steps in a row.
        found["poisson"].append(move(range(8)) / math.sqrt(8))
    assert all(1.25 < ratio < 1.45 for ratio in found["shuffled"])
    assert all(1.9 < ratio < 3.2 for ratio in found["poisson"])
    assert max(found["poisson"]) > 2.5


def test_planted_bugs_are_seen(monkeypatch):
    from discreet.privacy import _correlation

    def fails(test, *args):
        with pytest.raises(AssertionError):
            test(*args)

    with monkeypatch.context() as patch:
        # The squares of columns, as if no two met.
        def orthogonal(c, *, steps, separation, participations):
            times = min(participations, -(-steps // separation))
            return math.sqrt(times) * float(np.linalg.norm(np.asarray(c)[:steps]))

        patch.setattr(theorems, "toeplitz_sensitivity", orthogonal)
        patch.setitem(globals(), "toeplitz_sensitivity", orthogonal)
        fails(test_the_sensitivity_is_that_of_the_worst_pattern, 7, 1, 7)
        _correlation._sensitivity.cache_clear()
        fails(test_the_inverse_strategy_is_never_charged_too_little, 4)
    _correlation._sensitivity.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(
            theorems, "block_norms", lambda c, **shape: [(1.0, shape["participations"] - 1)]
        )
        fails(test_turns_of_a_group_against_quadrature)


# --- the number of bands ------------------------------------------------------------------------


@pytest.mark.slow
def test_more_epsilon_or_fewer_epochs_ask_for_more_bands():
    few, _ = choose_bands(epsilon=0.25, delta=1e-6, steps=256, rate=1 / 32)
    many, noise = choose_bands(epsilon=8.0, delta=1e-6, steps=64, rate=1 / 64)
    assert few.bands <= 4 < 16 <= many.bands
    run = Gaussian(noise).correlated(many, steps=64, rate=many.bands / 64)
    assert 7.9 < run.epsilon(delta=1e-6) <= 8.0
    tight, _ = choose_bands(epsilon=8.0, delta=1e-6, steps=64, rate=1 / 64, at_most=4)
    assert tight.bands == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epochs", "epsilon", "gain", "bands"),
    [
        (16, 0.25, 1.00, 1),
        (16, 4, 1.51, 16),
        (4, 1, 1.67, 16),
        (1, 1, 3.06, 64),
        (1, 16, 5.20, 128),
    ],
)
def test_the_gains_over_independent_noise(epochs, epsilon, gain, bands):
    """Of FRONTIER.md, at 2048 steps and delta 1e-6."""
    steps, delta = 2048, 1e-6
    budget = {"epsilon": epsilon, "delta": delta, "steps": steps, "rate": epochs / steps}
    plain, noise = choose_bands(**budget, at_most=1)
    best, less = choose_bands(**budget, at_most=128)
    found = noise * plain.error(steps=steps) / (less * best.error(steps=steps))
    assert best.bands == bands
    assert found == pytest.approx(gain, abs=0.02)
