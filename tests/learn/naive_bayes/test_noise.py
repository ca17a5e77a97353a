"""S20: the noise of the tables: its loss, its scale, and an auditor that tries to refute it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from discreet.audit import audit_mechanism
from discreet.errors import InvalidValue
from discreet.learn._noisy_counts import CategoryCounts, TableNoise
from discreet.privacy import GDP, DiscreteLaplace
from discreet.privacy.theorems import gaussian_mu
from discreet.randomness import source


def planned(**changes):
    settings = {"features": 4, "unit": 1, "epsilon": 1.0, "delta": 0.0, "relation": "add_remove"}
    return TableNoise.plan(**{**settings, **changes})


@pytest.mark.parametrize(("relation", "tables"), [("add_remove", 4), ("replace", 8)])
@pytest.mark.parametrize("unit", [1, 2**32])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 7.0])
def test_each_table_gets_its_share_of_epsilon(relation, tables, unit, epsilon):
    noise = planned(relation=relation, unit=unit, epsilon=epsilon)
    assert noise.kind == "laplace"
    assert noise.parameter == pytest.approx(tables * unit / epsilon, rel=1e-15)
    assert noise.loss == tables * DiscreteLaplace(noise.parameter, unit, relation)
    assert noise.loss.epsilon(delta=0.0) == pytest.approx(epsilon, rel=1e-12)
    assert noise.loss.epsilon(delta=0.0) <= epsilon


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize("unit", [1, 2**32])
@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.001, 1e-9), (0.1, 1e-6), (0.5, 1e-6), (1.0, 1e-5), (4.0, 1e-3)]
)
def test_gaussian_noise_is_calibrated_from_above(relation, unit, epsilon, delta):
    noise = planned(
        features=30, unit=unit, epsilon=epsilon, delta=delta, relation=relation, noise="gaussian"
    )
    tables = 60 if relation == "replace" else 30
    ideal = math.sqrt(tables) * unit / gaussian_mu(epsilon, delta)
    assert ideal * (1 - 1e-9) <= noise.parameter <= 1.05 * ideal
    assert isinstance(noise.loss, GDP)
    assert noise.loss.relation.value == relation
    assert 0.95 * epsilon <= noise.loss.epsilon(delta=delta) <= epsilon


def test_tiny_gaussian_noise_is_still_certified():
    noise = planned(features=1, epsilon=60.0, delta=1e-3, noise="gaussian")
    assert noise.parameter < 1.0
    assert noise.loss.epsilon(delta=1e-3) <= 60.0


def test_auto_takes_the_smaller_variance():
    few = planned(features=1, delta=1e-6)
    many = planned(features=200, delta=1e-6)
    assert (few.kind, many.kind) == ("laplace", "gaussian")
    other = planned(features=200, delta=1e-6, noise="laplace")
    assert many.stddev < other.stddev
    assert planned(features=200).kind == "laplace"


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"delta": -1e-9}, "delta"),
        ({"noise": "gaussian"}, "delta"),
        ({"noise": "cauchy"}, "noise"),
        ({"relation": "swap"}, "relation"),
        ({"epsilon": 1e-15, "unit": 2**12}, "epsilon"),
    ],
)
def test_bad_parameters_are_named(changes, argument):
    with pytest.raises(InvalidValue) as caught:
        planned(**changes)
    assert caught.value.argument == argument


# --- the scale that is really drawn -----------------------------------------------------

CELLS = 40_000
FALSE_ALARM = 6.5  # standard errors; two-sided 8e-11 for each test


def deviations(noise, planned_noise):
    """How many standard errors the mean of |x|^p is off, p = 1 (Laplace) or 2 (Gaussian)."""
    drawn = np.abs(noise.release(np.zeros(CELLS, dtype=np.int64), source()).astype(float))
    if planned_noise.kind == "laplace":
        ratio = math.exp(-1.0 / planned_noise.parameter)
        mean = 2.0 * ratio / (1.0 - ratio**2)
        second = 2.0 * ratio / (1.0 - ratio) ** 2
        return (drawn.mean() - mean) / math.sqrt((second - mean**2) / CELLS)
    variance = planned_noise.parameter**2
    return ((drawn**2).mean() - variance) / (variance * math.sqrt(2.0 / CELLS))


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize("unit", [1, 2**32])
def test_the_noise_has_the_planned_scale_and_wrong_scales_are_seen(relation, kind, unit):
    noise = planned(features=10, unit=unit, delta=1e-6, relation=relation, noise=kind)
    assert abs(deviations(noise, noise)) < FALSE_ALARM
    for factor in (0.5, 0.9, 1.1):
        wrong = replace(noise, parameter=factor * noise.parameter)
        assert abs(deviations(wrong, noise)) > FALSE_ALARM


# --- neighbours -------------------------------------------------------------------------

BASE = [(0, 1, 0), (1, 0, 1), (0, 0, 0)]
NEIGHBOURS = {"add_remove": [*BASE, (1, 1, 1)], "replace": [*BASE[:2], (1, 1, 1)]}


def cells_of(records):
    counts = CategoryCounts(2, [2, 2])
    codes, *columns = np.array(records).T
    counts.add(codes, columns)
    return counts.cells()


def audit(noise, relation, claimed):
    def release(records, count):
        return list(noise.release(np.tile(cells_of(records), (count, 1)), source()))

    return audit_mechanism(
        release,
        BASE,
        NEIGHBOURS[relation],
        loss=claimed,
        samples=24_000,
        false_alarm_rate=1e-9,
        batch=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_the_auditor_refutes_wrong_noise_and_not_ours(relation):
    noise = planned(features=2, epsilon=2.0, relation=relation)
    assert not audit(noise, relation, noise.loss).violated
    half = replace(noise, parameter=0.5 * noise.parameter)
    assert audit(half, relation, noise.loss).violated


def test_the_auditor_refutes_the_sensitivity_of_the_wrong_relation():
    mistaken = planned(features=2, epsilon=2.0, relation="add_remove")
    right = planned(features=2, epsilon=2.0, relation="replace")
    assert audit(mistaken, "replace", right.loss).violated
