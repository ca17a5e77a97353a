"""What the attack commands make of the names of models: shadow models like the target."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet.attacks import RetrainedTwin
from discreet.data import Categorical, Integer, Schema
from discreet.learn import PrivateCategoricalNB, PrivateLogisticRegression, load_model, make_learner

SCHEMA = Schema(
    {"age": Integer(0, 100), "ill": Categorical(["no", "yes"], other="no")},
    target="ill",
    expected_rows=200,
)
BUDGET = {"epsilon": 1.0, "delta": 1e-6, "insecure_seed": 1}


def read_back(model: Any, place: Path) -> Any:
    model.save(place / "model")
    return load_model(place / "model")


def people() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    age = draw.integers(0, 101, 200)
    return {"age": age, "ill": np.where(draw.integers(0, 2, 200) == 1, "yes", "no")}


@pytest.mark.parametrize(
    ("kind", "estimator", "options"),
    [
        ("logistic", PrivateLogisticRegression, {"total_step_size": 5.0, "clip_ratio": 0.3}),
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
    made = make_learner(kind, SCHEMA, **BUDGET, **options).fit(people())
    plain = make_learner(kind, SCHEMA, **BUDGET).fit(people())
    target, other = read_back(made, tmp_path), read_back(plain, tmp_path)
    records, labels = target.encoded(people()), np.zeros(200, dtype=np.int64)
    told: list[dict[str, Any]] = []
    right = estimator.fit

    def watched(self: Any, *rest: Any, **more: Any) -> Any:
        told.append(self.get_params())
        return right(self, *rest, **more)

    monkeypatch.setattr(estimator, "fit", watched)
    maker = RetrainedTwin(target)
    shadow = maker(records, labels, 17)
    expected = {**target.for_encoded_rows().get_params(), "insecure_seed": 17}
    assert told == [expected]
    assert options.items() <= told[0].items()
    assert shadow.probabilities(records).shape == (200, 2)
    # Scores of models that were trained otherwise must not be read.
    assert maker.cache_key != RetrainedTwin(other).cache_key
    assert maker.cache_key == RetrainedTwin(target).cache_key
