"""Capped Poisson samples, and records that are zeroed out instead of removed."""

import json
import math
from functools import partial

import numpy as np
import pytest
from mpmath import mp, mpf

from discreet.errors import InvalidValue, NotApplicable, RelationMismatch, SchemaError
from discreet.privacy import (
    GDP,
    ApproxDP,
    CappedPoisson,
    DiscreteGaussian,
    Exponential,
    Filter,
    Gaussian,
    Grouped,
    Laplace,
    PoissonSampled,
    PureDP,
    Relation,
    Skellam,
    Strategy,
    _loss,
    from_json,
    from_pair,
    least_noise_multiplier,
    to_json,
)
from discreet.privacy._pair import FINE, orient, profile
from privacy.test_bracket_judges import plant


def one_capped_step(epsilon: float, noise: float, loss: CappedPoisson, *, added: bool) -> float:
    """delta of one step by quadrature: the two cases, each with its own pair."""
    _, full, used = loss._full()
    total = mpf(0)
    for weight, shift, share in ((1 - full, 1 / noise, loss.rate), (full, 2 / noise, used)):
        m, q, x = mpf(shift), mpf(share), mp.exp(epsilon)
        # The loss crosses log(level) at one outcome; on one side of it the first law is larger.
        level = 1 / x if added else x
        if level <= 1 - q:
            total += weight * (0 if added else 1 - x)
            continue
        cut = mp.log((level - 1 + q) / q) / m + m / 2
        if added:
            p, other = mp.ncdf(cut), (1 - q) * mp.ncdf(cut) + q * mp.ncdf(cut - m)
        else:
            p, other = (1 - q) * mp.ncdf(-cut) + q * mp.ncdf(m - cut), mp.ncdf(-cut)
        total += weight * (p - x * other)
    return float(total)


def capped_agrees() -> None:
    for noise, rate, most, population in ((1.0, 0.05, 55, 1000), (0.7, 0.1, 9, 100)):
        loss = Gaussian(noise).poisson(rate=rate, at_most=most, population=population)
        for epsilon in (0.05, 0.3, 1.0):
            exact = max(one_capped_step(epsilon, noise, loss, added=way) for way in (True, False))
            found = loss.delta(epsilon=epsilon)
            assert exact <= found * (1 + 1e-9)
            assert found <= exact * (1 + 2e-3)
            for way in (True, False):
                exact = one_capped_step(epsilon, noise, loss, added=way)
                above = orient(loss.pair(FINE), swapped=way)[1]
                (found,) = profile(above, np.array([epsilon]))
                assert exact * (1 - 1e-9) <= found <= exact * (1 + 2e-3) + 1e-9


def test_a_capped_sample_against_quadrature():
    capped_agrees()


def test_how_often_a_capped_sample_is_full_by_simulation():
    # FRONTIER: 4e6 draws gave .25071 and .04583 +- .0002.
    _, full, used = Gaussian(1.0).poisson(rate=0.05, at_most=55, population=1000)._full()
    chance = np.random.default_rng(3)
    draws = 2_000_000
    others = chance.binomial(999, 0.05, size=draws)
    crowded = others >= 55
    assert abs(crowded.mean() - full) < 6 * math.sqrt(full * (1 - full) / draws)
    # Given that, the record is drawn and then survives among one too many.
    survives = (chance.random(draws) < 0.05) * (chance.random(draws) < 55 / (others + 1))
    count = int(crowded.sum())
    assert abs(survives[crowded].mean() - used) < 6 * math.sqrt(used / count)


def exact_tail(at_least: int, count: int, chance: float) -> mpf:
    """P(Bin(count, chance) >= at_least), for numbers above the mean."""
    q = mpf(chance)
    log_first = mp.loggamma(count + 1) - mp.loggamma(at_least + 1)
    log_first += at_least * mp.log(q) + (count - at_least) * mp.log(1 - q)
    term = total = mp.exp(log_first - mp.loggamma(count - at_least + 1))
    for k in range(at_least, count):
        term *= mpf(count - k) / (k + 1) * q / (1 - q)
        total += term
        if term < total * mpf(10) ** -25:
            break
    return total


@pytest.mark.parametrize(
    ("population", "rate", "most"),
    [(100, 0.1, 14), (60_000, 256 / 60_000, 320), (184_620_245, 1.276778490390925e-07, 30),
     (76_763_725, 1.907323534929351e-07, 88), (59_311_795, 0.05, 2_970_000), (10**9, 4e-9, 9)],
)  # fmt: skip
def test_how_often_a_capped_sample_is_full_is_known_for_large_populations_too(
    population, rate, most
):
    """By scipy's binomial tails it was off by 2.7e-7 for the fourth, and 1e-9 was counted on."""
    low, high, used = Gaussian(1.0).poisson(rate=rate, at_most=most, population=population)._full()
    with mp.workdps(40):
        full = exact_tail(most, population - 1, rate)
        moved = mpf(most) / population * exact_tail(most + 1, population, rate)
        assert low <= full <= high <= low * (1 + 1e-6)
        assert moved / full <= used <= moved / full * (1 + 2e-6)


# The table of FRONTIER.md.
@pytest.mark.parametrize(
    ("population", "rate", "noise", "steps", "most", "known"),
    [
        (60_000, 256 / 60_000, 1.1, 14_062, 300, 3.4303),
        (60_000, 256 / 60_000, 1.1, 14_062, 320, 2.4077),
        (60_000, 256 / 60_000, 1.1, 14_062, 340, 2.3818),
        (60_000, 256 / 60_000, 1.1, 14_062, 384, 2.3817),
        (10_000, 0.01, 1.0, 1000, 120, 5.2285),
        (10_000, 0.01, 1.0, 1000, 140, 1.9680),
    ],
)
def test_capped_samples_cost_what_was_computed_elsewhere(
    population, rate, noise, steps, most, known
):
    step = Gaussian(noise).poisson(rate=rate, at_most=most, population=population)
    assert (steps * step).epsilon(delta=1e-5) == pytest.approx(known, rel=3e-4)


def test_more_records_than_stated_cost_more():
    step = partial(Gaussian(1.1).poisson, rate=256 / 60_000, at_most=320)
    stated, real = step(population=60_000), step(population=66_000)
    assert (14_062 * real).epsilon(delta=1e-5) > 1.5 * (14_062 * stated).epsilon(delta=1e-5)


def test_a_capped_sample_is_between_a_poisson_sample_and_a_pair_of_records():
    loss = Gaussian(1.0).poisson(rate=0.05, at_most=55, population=1000)
    orders = [1.5, 3.0, 20.0]
    assert np.all(loss.rdp(orders) >= Gaussian(1.0).poisson(rate=0.05).rdp(orders))
    assert np.all(loss.rdp(orders) <= Gaussian(0.5).rdp(orders) * (1 + 1e-9))
    most = Gaussian(1.0).poisson(rate=0.05, at_most=1000, population=1000)
    same = Gaussian(1.0).poisson(rate=0.05)
    assert most.delta(epsilon=0.1) == pytest.approx(same.delta(epsilon=0.1), rel=1e-3)
    assert from_json(to_json(loss)) == loss
    assert loss.epsilon_bounds(delta=1e-5).lower == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"at_most": 5},
        {"population": 5},
        {"at_most": 0, "population": 5},
        {"at_most": 6, "population": 5},
        {"at_most": 2.5, "population": 5},
        {"at_most": math.nan, "population": 5},
        {"at_most": 5, "population": 10**30},
        {"at_most": 5, "population": 50, "rate": 1.0},
    ],
)
def test_wrong_caps_are_named(wrong):
    with pytest.raises(InvalidValue):
        Gaussian(1.0).poisson(**{"rate": 0.1, **wrong})


def test_caps_that_no_theorem_covers_are_refused():
    caps = {"rate": 0.1, "at_most": 5, "population": 50}
    with pytest.raises(NotApplicable):
        Laplace(1.0).poisson(**caps)
    for relation in ("replace", "zero_out"):
        with pytest.raises(RelationMismatch):
            Gaussian(1.0, relation).poisson(**caps)


def test_a_capped_sample_has_groups_of_replaced_records_only():
    """A chain of removals passes through populations that the loss does not speak of."""
    step = Gaussian(1.0).poisson(rate=0.1, at_most=5, population=50)
    for loss in (step, 3 * step, 3 * step + PureDP(0.1), step.best_of(3)):
        for make in (lambda one: one.group(2), lambda one: Grouped(one, 2, one.relation)):
            with pytest.raises(NotApplicable, match="50 records"):
                make(loss)
        assert loss.group(1) == loss
        # One record leaves and another comes: the larger of two neighbours has 50 records.
        replaced = loss.group(2, relation="replace")
        assert replaced.group(2).size == 4
        assert from_json(to_json(replaced)) == replaced
    assert step.group(2, relation="replace").epsilon(delta=1e-6) > step.epsilon(delta=1e-6)
    text = json.dumps(to_json(step.group(2, relation="replace")))
    with pytest.raises(SchemaError, match="50 records"):
        from_json(json.loads(text.replace('"replace"', '"add_remove"')))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("2.0 * mu", "1.0 * mu"),
        ("(1.0 - low, high)", "(1.0 - low, 0.5 * high)"),
        ("(1.0 - low, high))", "(1.0 - low, high)).reversed()"),
    ],
)
def test_a_bug_in_the_capped_pair_is_found(monkeypatch, right, wrong):
    plant(monkeypatch, CappedPoisson, "pair", right, wrong)
    with pytest.raises(AssertionError):
        capped_agrees()


def test_zeroing_out_a_record_costs_what_removing_it_costs():
    removed = 100 * Gaussian(2.0).poisson(rate=0.1)
    zeroed = 100 * Gaussian(2.0, "zero_out").poisson(rate=0.1)
    assert zeroed.relation is Relation.ZERO_OUT
    assert zeroed.epsilon_bounds(delta=1e-6) == removed.epsilon_bounds(delta=1e-6)
    assert removed.group(1, relation="zero_out") == zeroed
    assert (Gaussian(2.0).allocate(batches=5)).group(3, relation="zero_out").relation == "zero_out"
    assert from_json(to_json(zeroed)) == zeroed
    assert repr(Gaussian(2.0, "zero_out")) == "Gaussian(noise_multiplier=2.0, relation='zero_out')"
    # A record is zeroed out, and another put in its place.
    exchanged = Gaussian(2.0, "zero_out").group(2, relation="replace")
    assert exchanged == Gaussian(2.0, "replace")
    budget = Filter(epsilon=30, delta=1e-6, kind="rdp", relation="zero_out", orders=[2, 8, 32])
    budget.charge(zeroed)
    with pytest.raises(RelationMismatch):
        budget.charge(removed)


def test_zero_out_never_becomes_add_remove_and_only_gaussian_noise_is_declared():
    with pytest.raises(RelationMismatch):
        Gaussian(1.0, "zero_out").group(2, relation="add_remove")
    with pytest.raises(RelationMismatch):
        Gaussian(1.0, "zero_out") + Gaussian(1.0)
    for loss in (Laplace(1.0), Gaussian(1.0) + PureDP(0.1), Gaussian(1.0, "replace")):
        with pytest.raises(RelationMismatch, match="zero_out"):
            loss.group(1, relation="zero_out")
    for refuses in (
        lambda: least_noise_multiplier(epsilon=1, delta=1e-6, relation="zero_out"),
        lambda: Relation.parse("zero_out"),
    ):
        with pytest.raises(InvalidValue, match="relation"):
            refuses()


@pytest.mark.parametrize(
    ("owner", "name", "right", "wrong", "judge"),
    [
        # Any loss may be declared zero_out; a guarantee for zeroed records holds for removed ones.
        (_loss, "check_group", "target is Relation.ZERO_OUT", "False", "declared"),
        (_loss, "check_group", "target is Relation.ADD_REMOVE", "False", "declared"),
        (PoissonSampled, "check", "base.relation is Relation.ZERO_OUT", "False", "amplified"),
    ],
)
def test_a_zeroed_record_that_counts_as_a_removed_one_is_found(
    monkeypatch, owner, name, right, wrong, judge
):
    judges = {
        "declared": test_zero_out_never_becomes_add_remove_and_only_gaussian_noise_is_declared,
        "amplified": test_a_claim_about_zeroed_records_is_not_amplified,
    }
    plant(monkeypatch, owner, name, right, wrong)
    with pytest.raises(pytest.fail.Exception):
        judges[judge]()


def test_a_claim_about_zeroed_records_is_not_amplified():
    """Answers that show whether the record was drawn: three laws, of which a claim bounds two."""
    rate, truth = 0.1, math.e / (1.0 + math.e)
    absent, zeroed, there = (1.0, 0.0, 0.0), (0.0, 1.0 - truth, truth), (0.0, truth, 1.0 - truth)
    both = [
        [(1.0 - rate) * none + rate * one for none, one in zip(absent, drawn, strict=True)]
        for drawn in (there, zeroed)
    ]
    epsilon = PureDP(1).poisson(rate=rate).epsilon(delta=0)  # right for a record that is removed
    delta = sum(max(0.0, p - math.exp(epsilon) * q) for p, q in zip(*both, strict=True))
    assert delta > 0.04
    for loss in (
        PureDP(1, "zero_out"),
        ApproxDP(1, 1e-6, "zero_out"),
        GDP(1.0, "zero_out"),
        Laplace(1.0, relation="zero_out"),
        DiscreteGaussian(1.0, 1, "zero_out"),
        Exponential(1.0, "zero_out"),
        from_pair(there, zeroed, relation="zero_out"),
        Skellam(1e4, 10, 20),
    ):
        with pytest.raises(NotApplicable, match=r"zero_out|does not determine"):
            loss.poisson(rate=rate)
    for build in (
        lambda: GDP(1.0, "zero_out").allocate(batches=10),
        lambda: GDP(1.0, "zero_out").correlated(Strategy.square_root(2), steps=8, rate=rate),
        lambda: GDP(1.0, "replace").correlated(Strategy.square_root(2), steps=8, rate=rate),
    ):
        with pytest.raises(NotApplicable, match="Gaussian"):
            build()
    assert GDP(1.0).poisson(rate=rate) == Gaussian(1.0).poisson(rate=rate)
