"""What the attack commands make of the names of models: shadow models like the target."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet.cli.attack_subjects import SameLearner
from discreet.data import Categorical, Integer, Schema
from discreet.learn.choosing import BINS, TableLearner
from discreet.learn.naive_bayes import PrivateCategoricalNB
from discreet.learn.tabular import PrivateLogisticRegression

SCHEMA = Schema(
    {"age": Integer(0, 100), "ill": Categorical(["no", "yes"], other="no")},
    target="ill",
    expected_rows=200,
)
BUDGET = {"epsilon": 1.0, "delta": 1e-6, "insecure_seed": 1}


def read_back(learner: TableLearner, place: Path) -> TableLearner:
    learner.save(place / "model")
    return TableLearner.load(learner.learner, learner.schema, place / "model")


def rows_for(kind: str) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, 200)
    if kind == "naive-bayes":
        return draw.integers(0, BINS, (200, 1)), labels
    return draw.uniform(-1, 1, (200, 1)).astype(np.float32), labels


@pytest.mark.parametrize(
    ("kind", "estimator", "options"),
    [
        ("logistic", PrivateLogisticRegression, {"pace": 5.0, "clip_ratio": 0.3}),
        ("naive-bayes", PrivateCategoricalNB, {"noise": "gaussian", "relation": "replace"}),
    ],
)
def test_shadow_models_are_trained_as_the_target_was(
    kind: str,
    estimator: Any,
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = TableLearner.make(kind, SCHEMA, **BUDGET, **options)
    plain = TableLearner.make(kind, SCHEMA, **BUDGET)
    records, labels = rows_for(kind)
    for one in (made, plain):
        one.estimator.fit(records, labels)
    target, other = read_back(made, tmp_path), read_back(plain, tmp_path)
    told: list[dict[str, Any]] = []
    right = estimator.fit

    def watched(self: Any, *rest: Any, **more: Any) -> Any:
        told.append(self.get_params())
        return right(self, *rest, **more)

    monkeypatch.setattr(estimator, "fit", watched)
    maker = SameLearner(target)
    shadow = maker(records, labels, 17)
    assert told == [{**target.estimator.get_params(), "insecure_seed": 17}]
    assert options.items() <= told[0].items()
    assert shadow.probabilities(records).shape == (200, 2)
    # Scores of models that were trained otherwise must not be read.
    assert maker.cache_key != SameLearner(other).cache_key
    assert maker.cache_key == SameLearner(target).cache_key
