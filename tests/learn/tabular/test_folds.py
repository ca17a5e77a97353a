"""Evaluation by folds: who is in which fold, what a record pays, and that models are fresh."""

import numpy as np
import pytest

from discreet.data import Boolean, Categorical, Integer, Real, Schema, plan_schema
from discreet.errors import BudgetExceeded, InvalidValue
from discreet.learn import (
    PrivateAdditiveClassifier,
    PrivateDecisionTree,
    PrivateGaussianNB,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    _evaluation,
    evaluate_folds,
)
from discreet.ledger import Ledger
from discreet.privacy import DiscreteLaplace


def rows(count=600, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 100, (count, 2))
    return x, (x[:, 0] + rng.normal(0, 10, count) > 50).astype(int)


def model(**more):
    facts = {"epsilon": 1.0, "classes": [0, 1], "bounds": (0.0, 100.0), "expected_rows": 600}
    return PrivateLogisticRegression(**{**facts, **more})


def spied(monkeypatch):
    """Record what every fold trained on and what it was judged on."""
    seen = []
    real = _evaluation._count_rows
    trained = PrivateLogisticRegression._hold_rows

    def count(one, batch, positions, counts):
        seen.append(("judged", batch.features.copy()))
        return real(one, batch, positions, counts)

    def hold(self, batch):
        seen.append(("trained", batch.features.copy()))
        return trained(self, batch)

    monkeypatch.setattr(_evaluation, "_count_rows", count)
    monkeypatch.setattr(PrivateLogisticRegression, "_hold_rows", hold)
    return seen


def test_a_record_is_judged_once_and_never_by_a_model_that_saw_it(monkeypatch):
    seen = spied(monkeypatch)
    x, y = rows(200)
    found = evaluate_folds(model(), x, y, epsilon=1.0, folds=4, insecure_seed=1)
    judged = [part for kind, part in seen if kind == "judged"]
    trained = [part for kind, part in seen if kind == "trained"]
    assert len(judged) == len(trained) == 4
    assert sorted(map(tuple, np.concatenate(judged))) == sorted(map(tuple, x))
    for one, other in zip(trained, judged, strict=True):
        assert not set(map(tuple, one)) & set(map(tuple, other))
        assert len(one) + len(other) == 200
    assert found.evaluation.auc() > 0.8


def test_a_record_pays_for_all_fits_but_one_and_for_one_evaluation():
    x, y = rows()
    found = evaluate_folds(model(), x, y, epsilon=0.5, folds=3)
    fit = model().planned_loss(features=2)
    assert found.loss == 2 * fit + DiscreteLaplace(2.0)
    assert found.evaluation.loss == DiscreteLaplace(2.0)
    assert found.epsilon > 1.5 * fit.epsilon(delta=found.delta)


def test_a_record_moves_no_other_one_to_another_fold(monkeypatch):
    seen = spied(monkeypatch)
    x, y = rows(60)
    evaluate_folds(model(), x, y, epsilon=1.0, folds=3, insecure_seed=7)
    first = [set(map(tuple, part)) for kind, part in seen if kind == "judged"]
    seen.clear()
    evaluate_folds(model(), x[:-1], y[:-1], epsilon=1.0, folds=3, insecure_seed=7)
    second = [set(map(tuple, part)) for kind, part in seen if kind == "judged"]
    assert [one - {tuple(x[-1])} for one in first] == second


def test_rows_of_a_person_are_in_one_fold(monkeypatch):
    seen = spied(monkeypatch)
    x, y = rows(90)
    persons = np.arange(90) // 3
    found = evaluate_folds(
        model(rows_per_person=3), x, y, persons=persons, epsilon=1.0, folds=3, insecure_seed=2
    )
    owner = {tuple(row): person for row, person in zip(x, persons, strict=True)}
    for kind, part in seen:
        if kind == "judged":
            owners = [owner[tuple(row)] for row in part]
            assert all(owners.count(one) == 3 for one in owners)
    assert found.evaluation.loss == DiscreteLaplace(3.0, 3)


def test_tables_of_a_schema_by_slices_and_with_a_schema_that_cost_something():
    x, y = rows(400)
    data = {
        "age": x[:, 0],
        "ward": np.where(x[:, 1] > 50, "n", "s"),
        "ill": np.where(y == 1, "yes", "no"),
    }
    facts = {
        "age": Real(),
        "ward": Categorical(["n", "s"]),
        "ill": Categorical(["yes", "no"], other="no"),
    }
    learned = (
        plan_schema(Schema(facts, target="ill", expected_rows=400), epsilon=0.5).run(data).value
    )
    estimator = PrivateAdditiveClassifier(schema=learned, epsilon=2.0)
    found = evaluate_folds(estimator, data, epsilon=1.0, folds=2, by="ward")
    assert found.evaluation.slices == ("ward=n", "ward=s", "ward=other")
    assert found.evaluation.accuracy("ward=n") > 0.6
    plan = estimator.planned().loss
    assert found.loss == plan + DiscreteLaplace(1.0) + learned.unpaid_loss()


def test_the_charge_is_one_and_comes_first(tmp_path):
    x, y = rows(100)
    with Ledger.create(tmp_path / "study.ledger") as book:
        book.create_dataset("people", epsilon=2.5, unit="row")
        naive = PrivateGaussianNB(epsilon=0.5, classes=[0, 1], bounds=(0.0, 100.0))
        asked = {"epsilon": 1.0, "folds": 3, "ledger": book, "dataset": "people"}
        evaluate_folds(naive, x, y, **asked)
        spent = book.show("people").budget.spent["basic"]
        assert float(spent) == pytest.approx(2.0)
        with pytest.raises(BudgetExceeded):
            evaluate_folds(naive, x, y, **asked)
        assert book.show("people").budget.spent["basic"] == spent


def test_what_cannot_be_folded_is_refused():
    x, y = rows(30)
    with pytest.raises(InvalidValue, match="folds"):
        evaluate_folds(model(), x, y, epsilon=1.0, folds=1)
    with pytest.raises(InvalidValue, match="relation"):
        evaluate_folds(model(relation="replace"), x, y, epsilon=1.0)
    with pytest.raises(InvalidValue, match="classifier"):
        evaluate_folds(PrivateLinearRegression(), x, y, epsilon=1.0)


def test_an_empty_fold_is_data_like_any_other():
    x, y = rows(2)
    found = evaluate_folds(model(), x, y, epsilon=1.0, folds=5)
    assert 0.0 <= found.evaluation.accuracy() <= 1.0


def test_whose_rows_they_are_has_to_be_known_where_a_person_has_several():
    """Without persons the rows of one would be in several folds, and all models know the person."""
    x, y = rows(30)
    with pytest.raises(InvalidValue, match="persons"):
        evaluate_folds(model(rows_per_person=3), x, y, epsilon=1.0)


@pytest.mark.parametrize("learner", [PrivateAdditiveClassifier, PrivateDecisionTree])
def test_every_fold_runs_the_plan_that_was_charged(learner):
    """Columns of whole numbers and of labels had another plan once they were encoded."""
    x, y = rows(60)
    facts = {"age": Integer(0, 9), "ward": Categorical(["n", "s"]), "ill": Boolean(rule="> 0")}
    schema = Schema(facts, target="ill", expected_rows=60)
    data = {"age": x[:, 0], "ward": np.where(x[:, 1] > 50, "n", "s"), "ill": y}
    found = evaluate_folds(learner(schema=schema, epsilon=1.0), data, epsilon=50.0, folds=2)
    assert abs(found.evaluation.table().sum() - 60) < 10
