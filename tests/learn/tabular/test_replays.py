"""How much of a model is noise: replays against real fits with other noise."""

from pathlib import Path

import numpy as np
import pytest

from discreet.data import Categorical, Real, Schema
from discreet.learn import (
    PrivateAdditiveClassifier,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    train_table,
)
from discreet.report import summary_lines


def numbers(rows=4000):
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (rows, 5))
    score = 3 * x[:, 0] - 2 * x[:, 1]
    return x, score, rng


def spreads(kind, x, y, *, fits=12, **facts):
    """The deviation of coefficients over fits, and what the replays of the first ones say."""
    models = [
        kind(bounds=(-1, 1), expected_rows=len(y), insecure_seed=seed, **facts).fit(x, y)
        for seed in range(fits)
    ]
    real = np.stack([model.coef_ for model in models]).std(axis=0, ddof=1)
    said = np.mean([m.noise_of_coefficients().std(axis=0, ddof=1) for m in models[:4]], axis=0)
    return said / real


@pytest.mark.parametrize("weight", [None, "balanced"])
def test_replays_move_coefficients_as_real_noise_does(weight):
    x, score, rng = numbers()
    y = (score - 2 + rng.logistic(0, 1, len(x)) > 0).astype(int)
    ratio = spreads(
        PrivateLogisticRegression, x, y, epsilon=1.0, classes=[0, 1], class_weight=weight
    )
    assert 0.6 < np.median(ratio) < 1.8
    assert ratio.min() > 0.4


def test_replays_of_regressions_and_classes_are_rather_too_wide():
    x, score, rng = numbers()
    y = np.clip(score / 5 + rng.normal(0, 0.2, len(x)), -1, 1)
    assert (
        np.median(spreads(PrivateLinearRegression, x, y, epsilon=1.0, target_bounds=(-1, 1))) > 0.7
    )
    y = np.digitize(score, [-1, 1])
    ratio = spreads(PrivateLogisticRegression, x, y, epsilon=1.0, classes=[0, 1, 2])
    assert np.median(ratio) > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("cuts", ["uniform", "private"])
def test_bars_of_shapes_cover_the_mean_over_real_noise(cuts):
    """Bins of at least 1 % of the rows; the bars are wider than they need be, never narrower."""
    x, _, rng = numbers(5000)
    score = 3 * np.sin(3 * x[:, 0]) - 2 * np.abs(x[:, 1])
    y = (score + rng.logistic(0, 1, len(x)) > 0).astype(int)
    facts = {"bounds": (-1, 1), "expected_rows": len(y), "classes": [0, 1], "cuts": cuts}
    models = [
        PrivateAdditiveClassifier(epsilon=2.0, insecure_seed=seed, **facts).fit(x, y)
        for seed in range(24)
    ]
    covered = []
    for model in models[:4]:
        replays = model.noise_of_shapes()
        for name, shape in model.shapes_.items():
            middle = np.mean([one.shapes_[name].values[:, 0] for one in models], axis=0)
            reach = 1.96 * replays[name][:, :, 0].std(axis=0, ddof=1)
            rows = np.bincount(shape.bins, weights=shape.mass)[shape.bins]
            covered.append((np.abs(shape.values[:, 0] - middle) <= reach)[rows >= 50])
    assert np.mean(np.concatenate(covered)) > 0.9


@pytest.mark.parametrize("learner", ["logistic", "additive", "naive-bayes"])
def test_a_column_that_says_nothing_is_called_noise(tmp_path, learner):
    """Two constant columns used to be the strongest."""
    rng = np.random.default_rng(0)
    age = rng.uniform(0, 100, 3000)
    data = {
        "age": age,
        "one": np.full(3000, 7.0),
        "two": np.full(3000, 1.0),
        "ward": np.full(3000, "north"),
        "ill": np.where(age + rng.normal(0, 10, 3000) > 50, "yes", "no"),
    }
    rows = [",".join(map(str, row)) for row in zip(*data.values(), strict=True)]
    path = Path(tmp_path) / "a.csv"
    path.write_text("\n".join([",".join(data), *rows]) + "\n", encoding="utf-8")
    facts = {
        "age": Real(0, 100),
        "one": Real(0, 10),
        "two": Real(0, 10),
        "ward": Categorical(["north", "south"]),
        "ill": Categorical(["yes", "no"], other="no"),
    }
    schema = Schema(facts, target="ill", expected_rows=3000)
    done = train_table(path, schema, epsilon=1.0, learner=learner, insecure_seed=5)
    lines = summary_lines(done)
    if learner == "naive-bayes":
        assert "how much of that is noise is not stated for this learner" in lines
        return
    assert "strongest columns: age" in lines
    unsure = next(line for line in lines if line.startswith("not told from noise"))
    assert sorted(unsure.partition(": ")[2].split(", ")) == ["one", "two", "ward"]
