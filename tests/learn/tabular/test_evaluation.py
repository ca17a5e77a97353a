"""Paid evaluations: what a row moves, measures against scikit-learn, coverage, refusals."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.metrics import average_precision_score, roc_auc_score

from discreet.data import Boolean, Categorical, Integer, Schema
from discreet.errors import BudgetExceeded, InvalidValue, NotApplicable
from discreet.learn import (
    Evaluation,
    PrivateAdditiveClassifier,
    PrivateCategoricalNB,
    PrivateDecisionTree,
    PrivateGaussianNB,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    evaluate,
)
from discreet.learn import _evaluation as evaluation
from discreet.ledger import Ledger
from discreet.privacy import DiscreteLaplace

RNG = np.random.default_rng(8)
FACTS = {
    "age": Integer(0, 100),
    "ward": Categorical(["north", "south"]),
    "smokes": Boolean(),
    "ill": Categorical(["no", "yes"], other="no"),
}
SCHEMA = Schema(FACTS, target="ill", expected_rows=1000)


def patients(rows):
    age, ward = RNG.integers(0, 101, rows), RNG.choice(["north", "south"], rows)
    smokes = RNG.random(rows) < 0.3
    ill = np.where(age + 20 * smokes + RNG.normal(0, 15, rows) > 60, "yes", "no")
    return {"age": age, "ward": ward, "smokes": smokes, "ill": ill}


def exact(monkeypatch):
    """Leave the noise away, and note what was asked of it."""
    asked = []

    def release(counts, **how):
        asked.append((counts.copy(), how))

        class Answer:
            value = counts

        return Answer

    monkeypatch.setattr(evaluation, "laplace_integers", release)
    return asked


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize(
    "kind", [PrivateLogisticRegression, PrivateAdditiveClassifier, PrivateDecisionTree]
)
def test_a_row_is_in_one_cell_whatever_the_others_are(monkeypatch, kind, relation):
    table = patients(60)
    table["ill"][::7] = "perhaps"  # the other label is no
    model = kind(schema=SCHEMA, epsilon=5.0, relation=relation).fit(table)
    asked = exact(monkeypatch)
    evaluate(model, table, epsilon=2.0, by="ward")
    for at in (0, 7, 59):
        evaluate(model, {k: np.delete(v, at) for k, v in table.items()}, epsilon=2.0, by="ward")
    (whole, how), *others = asked
    for less, same in others:
        assert {k: v for k, v in same.items() if k != "source"} == {
            k: v for k, v in how.items() if k != "source"
        }
        assert np.abs(whole - less).sum() == 1
    assert how["sensitivity"] == (1 if relation == "add_remove" else 2)
    assert how["scale"] == how["sensitivity"] / 2.0
    assert whole.shape == (3, 2, 64)  # north, south, other
    assert whole.sum() == 60


def test_measures_are_those_of_scikit_learn(monkeypatch):
    data = load_breast_cancer()
    bounds = (data.data.min(axis=0), data.data.max(axis=0))
    model = PrivateGaussianNB(classes=[0, 1], bounds=bounds, epsilon=10.0, insecure_seed=1)
    model.fit(data.data, data.target)
    exact(monkeypatch)
    found = evaluate(model, data.data, data.target, epsilon=1.0)
    # Scores in 64 parts, as the histogram has them.
    score = np.minimum((model.predict_proba(data.data)[:, 1] * 64).astype(int), 63)
    assert found.auc() == pytest.approx(roc_auc_score(data.target, score))
    assert found.average_precision() == pytest.approx(average_precision_score(data.target, score))
    assert found.accuracy() == pytest.approx(np.mean((score >= 32) == data.target))
    assert found.confusion(threshold=0.25)[1, 1] == np.sum((score >= 16) & (data.target == 1))
    cut = found.best_threshold(cost_of_missing=3.0)
    costs = [
        3 * np.sum((score < k) & (data.target == 1)) + np.sum((score >= k) & (data.target == 0))
        for k in range(65)
    ]
    assert costs[round(cut * 64)] == min(costs)
    shares = found.calibration(parts=2)
    assert [rows for _, _, rows in shares] == [np.sum(score < 32), np.sum(score >= 32)]
    assert shares[1][1] == pytest.approx(np.mean(data.target[score >= 32]))


def test_more_classes_are_counted_by_prediction(monkeypatch):
    data = load_iris()
    model = PrivateCategoricalNB(classes=[0, 1, 2], categories=[8] * 4, epsilon=100.0)
    codes = np.floor(data.data).astype(int)
    model.fit(codes, data.target)
    exact(monkeypatch)
    found = evaluate(model, codes, data.target, epsilon=1.0)
    assert found.accuracy() == pytest.approx(model.score(codes, data.target))
    assert found.confusion().shape == (3, 3)
    for ask in (found.auc, found.best_threshold, found.calibration):
        with pytest.raises(NotApplicable, match="two classes"):
            ask()


def test_intervals_cover_what_rows_of_that_kind_do():
    """100 releases of 500 rows; at 95 % fewer than 75 hits have a chance below 1e-6."""
    scores = np.linspace(0.0, 1.0, 64)
    ill = scores**2
    truth = np.stack([1.0 - ill, ill]) / 64.0
    exact_auc = evaluation._auc(truth * 1e9)
    rng = np.random.default_rng(9)
    hits = {"auc": 0, "accuracy": 0}
    for _ in range(100):
        noise = np.rint(rng.laplace(0.0, 1.0, (1, 2, 64)))
        counts = rng.poisson(500 * truth)[None] + noise
        found = Evaluation(counts.astype(np.int64), (0, 1), ("",), 1.0, DiscreteLaplace(1.0))
        low, high = found.interval("auc")
        hits["auc"] += low <= exact_auc <= high
        low, high = found.interval("accuracy")
        hits["accuracy"] += low <= truth[0, :32].sum() + truth[1, 32:].sum() <= high
    assert min(hits.values()) >= 75, hits


def test_the_charge_comes_first_and_persons_pay_for_their_rows(tmp_path):
    schema = Schema({**FACTS}, target="ill", expected_rows=1000, person="who", rows_per_person=2)
    table = {**patients(300), "who": np.arange(300) // 3}
    model = PrivateLogisticRegression(schema=schema, epsilon=3.0, max_iter=10).fit(table)
    with Ledger.create(tmp_path / "book") as book:
        book.create_dataset("d", epsilon=1, delta="1e-6", unit="person")
        paid = {"ledger": book, "dataset": "d"}
        found = evaluate(model, table, epsilon=0.75, by="smokes", insecure_seed=1, **paid)
        assert found.slices == ("smokes=no", "smokes=yes")
        assert found.loss == DiscreteLaplace(found.scale, 2)
        assert found.loss.epsilon(delta=0) <= 0.75
        with pytest.raises(BudgetExceeded):
            evaluate(model, table, epsilon=0.75, ledger=book, dataset="d")
        with pytest.raises(InvalidValue, match="by"):
            evaluate(model, table, epsilon=0.1, by="age", ledger=book, dataset="d")
        assert len(book.history("d")) == 1
    assert found.about == found.to_json()["about"]
    assert "of the rows kept: at most 2 of each person's rows" in found.lines()[0]
    # 100 persons with two rows each count; the noise of 256 cells together is of deviation 60.
    assert abs(found.table().sum() - 200) < 400


def test_what_is_no_fitted_classifier_is_refused():
    regressor = PrivateLinearRegression(bounds=(0.0, 1.0), target_bounds=(0.0, 1.0))
    unfitted = PrivateDecisionTree(classes=[0, 1], bounds=(0.0, 1.0))
    for model in (regressor, unfitted, "model"):
        with pytest.raises(InvalidValue, match="model"):
            evaluate(model, [[0.5]], [1], epsilon=1.0)
    fitted = unfitted.set_params(depth=1).fit([[0.5]], [1])
    for epsilon in (0.0, -1.0, float("nan")):
        with pytest.raises(InvalidValue, match="epsilon"):
            evaluate(fitted, [[0.5]], [1], epsilon=epsilon)
    empty = evaluate(fitted, np.empty((0, 1)), [], epsilon=1.0)
    assert 0.0 <= empty.auc() <= 1.0
    assert all(0.0 <= end <= 1.0 for end in empty.interval("accuracy"))
    assert "accuracy" in empty.lines()[0]
