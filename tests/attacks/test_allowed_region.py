"""The region of a guarantee: right ones raise no alarm, wrong ones do, wherever they are wrong."""

import math

import numpy as np
import pytest
from scipy import stats

from discreet.attacks import Roc
from discreet.attacks import _roc as roc
from discreet.attacks._roc import roc_curve
from discreet.errors import InvalidValue
from discreet.privacy import GDP, Loss, PureDP


def normal(rng: np.random.Generator) -> tuple[Roc, Loss]:
    """All of the curve is on the border of what the guarantee allows."""
    return roc_curve(rng.normal(1.0, 1, COUNT), rng.normal(0, 1, COUNT)), GDP(1.0)


def two_answers(rng: np.random.Generator) -> tuple[Roc, Loss]:
    """Randomised response: nothing but ties, and both corners are on the border."""
    truth = 1 / (1 + math.exp(-1.0))
    inside, outside = rng.random(COUNT) < truth, rng.random(COUNT) < 1 - truth
    return roc_curve(inside.astype(float), outside.astype(float)), PureDP(epsilon=1.0)


def alarm(curve: Roc, loss: Loss) -> bool:
    return curve.exceeds(loss, error=RATE)


COUNT, TRIALS, RATE = 60, 300, 0.2
# A binomial law of this rate passes it with a probability of 1e-9.
MOST = int(stats.binom.isf(1e-9, TRIALS, RATE))


@pytest.mark.parametrize("world", [normal, two_answers])
def test_false_alarms_are_as_rare_as_stated(world: object) -> None:
    rng = np.random.default_rng(1)
    alarms = sum(alarm(*world(rng)) for _ in range(TRIALS))  # type: ignore[operator]
    assert alarms <= MOST


def test_bounds_for_each_point_alone_would_raise_false_alarms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planted bug: the same, without a part of the error for every bound."""
    lower, upper = roc.lower_bounds, roc.upper_bounds
    parts = 4 * COUNT
    monkeypatch.setattr(roc, "lower_bounds", lambda h, n, error: lower(h, n, error=parts * error))
    monkeypatch.setattr(roc, "upper_bounds", lambda h, n, error: upper(h, n, error=parts * error))
    rng = np.random.default_rng(1)
    assert sum(alarm(*normal(rng)) for _ in range(TRIALS)) > MOST


@pytest.mark.parametrize("level", [0.02, 0.5, 0.98])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_violation_is_seen_wherever_it_is(level: float, sign: int) -> None:
    """Members have one score more often than a guarantee of 0.05 allows, all others tie."""
    size = 20000
    high = np.arange(size) < level * size
    more = np.arange(size) < (level + 0.3 * level * (1 - level) + 0.014) * size
    curve = roc_curve(sign * more.astype(float), sign * high.astype(float))
    assert len(curve.thresholds) == 3
    assert curve.exceeds(PureDP(epsilon=0.05))
    assert not curve.exceeds(PureDP(epsilon=3.0))
    same = roc_curve(sign * high.astype(float), sign * high.astype(float))
    assert not same.exceeds(PureDP(epsilon=0.05))


def test_few_records_can_show_nothing() -> None:
    loss = PureDP(epsilon=0.1)
    few, many = (roc_curve(np.zeros(size), np.zeros(size)) for size in (9, 100))
    assert not few.could_exceed(loss)
    assert many.could_exceed(loss)
    # Nor can many, where nearly everything is allowed.
    assert not many.could_exceed(PureDP(epsilon=20.0))
    with pytest.raises(InvalidValue, match="error"):
        few.exceeds(loss, error=0)


def test_long_curves_are_compared_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    curve = roc_curve(rng.normal(1.5, 1, 500), rng.normal(0, 1, 500))
    losses = [GDP(mean) for mean in (0.2, 0.4, 0.6, 1.5)]
    whole = [curve.exceeds(loss) for loss in losses]
    monkeypatch.setattr(roc, "_CHUNK", 7)
    assert [curve.exceeds(loss) for loss in losses] == whole == [True, True, True, False]
