"""Quantile regression (S28): no shadow models, and an error rate that holds."""

from importlib import import_module

import numpy as np
import pytest
from sklearn.linear_model import QuantileRegressor

from attacks.membership.worlds import assert_chance
from discreet.attacks import Observation, quantile_regression, yeom
from discreet.attacks._records import record_digests
from discreet.errors import InvalidValue, NotApplicable

quantile_source = import_module("discreet.attacks._quantile")


def answers(
    draw: np.random.Generator, count: int, gain: float, columns: int = 3
) -> tuple[Observation, Observation]:
    """Logits that the record predicts, in place and in spread, and a gain for members."""
    x = draw.normal(size=(count, columns))
    labels = draw.integers(0, 2, count)
    members = np.arange(count) < count // 3
    z = 5 * x[:, 0] + (0.3 + 0.3 * (x[:, 1] > 0)) * (draw.normal(size=count) + gain * members)
    two = np.column_stack([np.zeros(count), z])
    two[labels == 0] = two[labels == 0][:, ::-1]
    scores = two - np.logaddexp(two[:, :1], two[:, 1:])
    seen = Observation(scores, labels, members, record_digests(x, labels), x)
    return seen.part(np.arange(count) < 2 * (count // 3)), seen.part(
        np.arange(count) >= 2 * (count // 3)
    )


def test_finds_members_that_a_common_threshold_misses() -> None:
    seen, public = answers(np.random.default_rng(0), 3000, gain=2.0)
    own = quantile_regression(seen, public, seed=1)
    # A gain of 2 standard deviations on a logit of spread 5: Phi(sqrt 2) = 0.92 at best.
    assert own.auc > 0.7
    assert yeom(seen).auc < 0.6
    assert own.advantage().low > 0.15
    assert own.false_positive_rate().low < 0.05 < own.false_positive_rate().high + 0.03


def test_chance_where_nothing_leaks() -> None:
    seen, public = answers(np.random.default_rng(1), 1500, gain=0.0)
    assert_chance(quantile_regression(seen, public, seed=1))


def test_the_false_positive_rate_holds_for_a_useless_regression() -> None:
    # 60 runs with 100 judged non-members each; with 50 calibrating records the rate of a run
    # varies by about 0.05, so the mean by 0.0065: six of these and the binomial part.
    class Nothing:
        def fit(self, *_: object) -> "Nothing":
            return self

        def predict(self, rows: np.ndarray) -> np.ndarray:
            return np.zeros(len(rows))

    draw = np.random.default_rng(2)
    rates = []
    for _ in range(60):
        seen, public = answers(draw, 300, gain=0.0)
        own = quantile_regression(
            seen, public, false_positive_rate=0.2, regressor=lambda _: Nothing(), seed=0
        )
        rates.append(own.false_positive_rate().share)
    assert abs(np.mean(rates) - 0.2) < 6 * 0.0085


class ByNorm:
    """Predicts the size of what it is shown, so that rows of another size are surprising."""

    def __init__(self, level: float) -> None:
        self.above = float(level > 0.5)

    def fit(self, *_: object) -> "ByNorm":
        return self

    def predict(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(np.linalg.norm(rows, axis=1) + self.above)


def test_the_false_positive_rate_holds_with_more_columns_than_records() -> None:
    # Directions that were fitted to the calibrating records make these larger than the others.
    # 61 judged by 50 in each of 20 runs: the variance of a run's share is about
    # 0.16 (1/61 + 1/51), so 6 standard deviations are passed in one of 1e9 runs.
    draw = np.random.default_rng(6)
    rates = []
    for _ in range(20):
        seen, public = answers(draw, 300, gain=0.0, columns=400)
        judged = seen.part(np.append(np.flatnonzero(seen.members)[:1], np.arange(139, 200)))
        own = quantile_regression(judged, public, false_positive_rate=0.2, regressor=ByNorm, seed=0)
        rates.append(own.false_positive_rate().share)
    margin = 6 * np.sqrt(0.16 * (1 / 61 + 1 / 51) / 20)
    assert abs(np.mean(rates) - 10 / 51) < margin


def test_main_directions_are_the_same_by_rows_and_by_columns() -> None:
    rows = np.random.default_rng(7).normal(size=(50, 49)) * np.linspace(1, 9, 49)
    tall = quantile_source._main_directions(rows)
    wide = quantile_source._main_directions(np.column_stack([rows, np.zeros((50, 9))]))
    assert tall.shape == (49, 32)
    assert wide.shape == (58, 32)
    np.testing.assert_allclose(np.abs((tall * wide[:49]).sum(axis=0)), 1.0, atol=1e-9)


def test_other_regressors_features_and_many_columns() -> None:
    seen, public = answers(np.random.default_rng(3), 900, gain=2.0, columns=80)
    own = quantile_regression(
        seen,
        public,
        features=lambda x: x[:, :2],
        regressor=lambda level: QuantileRegressor(quantile=level, alpha=0.0),
        seed=0,
    )
    assert own.auc > 0.75
    assert own.metadata["regressor"] == "QuantileRegressor"
    assert 0 < quantile_regression(seen, public, seed=0).auc < 1


def test_order_does_not_matter() -> None:
    seen, public = answers(np.random.default_rng(4), 600, gain=2.0)
    order = np.random.default_rng(0).permutation(len(seen))
    one = quantile_regression(seen, public, seed=1)
    two = quantile_regression(seen.part(order), public, seed=1)
    np.testing.assert_allclose(two.scores, one.scores[order])


def test_bad_input() -> None:
    seen, public = answers(np.random.default_rng(5), 300, gain=0.0)
    with pytest.raises(InvalidValue, match="also evaluated"):
        quantile_regression(seen, seen)
    with pytest.raises(InvalidValue, match="at least 40"):
        quantile_regression(seen, public.part(np.arange(30)))
    members = Observation(
        public.log_probabilities, public.labels, ~public.members, public.digests, public.records
    )
    with pytest.raises(InvalidValue, match="100 members"):
        quantile_regression(seen, members)
    bare = Observation(public.log_probabilities, public.labels, public.members, public.digests)
    with pytest.raises(NotApplicable, match="looks at the records"):
        quantile_regression(seen, bare)
    with pytest.raises(InvalidValue, match="false_positive_rate"):
        quantile_regression(seen, public, false_positive_rate=0.7)
    words = Observation(
        public.log_probabilities,
        public.labels,
        public.members,
        public.digests,
        np.array([["a"]] * len(public)),
    )
    with pytest.raises(InvalidValue, match="not numbers"):
        quantile_regression(seen, words)
