"""Choosing a learner by public facts, and comparing several for a price."""

import numpy as np
import pytest

from discreet.data import Categorical, Integer, Real, Schema, read_table
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn import (
    Comparison,
    PrivateAdditiveClassifier,
    PrivateAdditiveRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    choose_learner,
    compare_learners,
    make_learner,
)
from discreet.privacy import GDP
from discreet.privacy.theorems import gaussian_mu

YES_NO = Categorical(["yes", "no"], other="no")


def schema(rows=2000, **changes):
    columns = {"age": Integer(0, 100), "sex": Categorical(["F", "M"]), "ill": YES_NO}
    return Schema(columns, **{"target": "ill", "expected_rows": rows, **changes})


def people(rows=2000, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 101, rows)
    ill = np.where(age + rng.normal(0, 10, rows) > 50, "yes", "no")
    return {"age": age, "sex": rng.choice(["F", "M"], rows), "ill": ill}


def test_the_choice_follows_from_public_facts():
    """Shapes from a signal of 20 on (50 for numbers), naive Bayes where linear models have < 3."""
    assert choose_learner(schema(), epsilon=1.0, delta=1e-6).learner == "additive"
    assert choose_learner(schema(300), epsilon=1.0, delta=1e-6).learner == "logistic"
    assert choose_learner(schema(20), epsilon=0.1, delta=1e-6).learner == "naive-bayes"
    of_number = schema(400, target="age")
    assert choose_learner(of_number, epsilon=1.0, delta=1e-6).learner == "linear"
    assert choose_learner(of_number, epsilon=8.0, delta=1e-6).learner == "additive"
    persons = schema(20, person="name", rows_per_person=3)
    assert choose_learner(persons, epsilon=0.1, delta=1e-6).learner == "logistic"
    persons = schema(90_000, person="name", rows_per_person=3)
    assert choose_learner(persons, epsilon=1.0, delta=1e-6).learner == "additive"
    many = schema(10**7, person="name", rows_per_person=17)
    assert choose_learner(many, epsilon=1.0, delta=1e-6).learner == "logistic"
    with pytest.raises(InvalidValue, match="expected_rows"):
        choose_learner(schema(None), epsilon=1.0, delta=1e-6)
    with pytest.raises(NotApplicable, match="target"):
        choose_learner(Schema({"a": Real(0, 1)}, expected_rows=5), epsilon=1.0, delta=1e-6)


def test_the_line_is_drawn_at_the_signal():
    """mu n / sqrt(34 + 3) = 20 for one number and three labels."""
    edge = 20.0 * 37**0.5 / gaussian_mu(1.0, 1e-6)
    for rows, learner in ((int(edge), "logistic"), (int(edge) + 1, "additive")):
        assert choose_learner(schema(rows), epsilon=1.0, delta=1e-6).learner == learner


@pytest.mark.parametrize("learner", ["logistic", "naive-bayes"])
def test_labels_come_back_in_the_words_of_the_schema(learner):
    declared = schema()
    model = make_learner(learner, declared, epsilon=2.0, insecure_seed=1)
    model.fit(read_table(people(), declared))
    without = {name: values for name, values in people(seed=9).items() if name != "ill"}
    predicted = model.predict(read_table(without, declared.for_prediction()))
    assert model.classes_.tolist() == ["no", "yes"]
    assert np.mean(predicted == people(seed=9)["ill"]) > 0.8


def test_a_comparison_costs_more_than_one_run_and_stays_in_the_budget():
    plan = compare_learners(schema(), epsilon=1.0, delta=1e-6)
    assert plan.loss.epsilon(delta=1e-6) <= 1.0
    assert plan.loss == plan.run_loss.best_of(1 / plan.stop)
    assert plan.run_loss.epsilon(delta=1e-6) < 0.7, "one run alone must cost much less"


def test_a_comparison_finds_a_learner_that_works():
    declared = schema()
    table = read_table(people(), declared)
    plan = compare_learners(declared, epsilon=4.0, delta=1e-6)
    best = plan.run(table, insecure_seed=3)
    assert best.loss == plan.loss
    assert best.value.score(table) > 0.75


def test_a_run_that_costs_more_than_planned_is_refused():
    """The mutant that hands every run the whole budget."""
    declared = schema()
    honest = compare_learners(declared, epsilon=1.0, delta=1e-6)
    mutant = Comparison(**{**honest.__dict__, "train_epsilon": 1.0})
    with pytest.raises(NotApplicable, match="costs more than was planned"):
        mutant.run(read_table(people(50), declared), insecure_seed=1)
    assert GDP(0.1).relation.value == "add_remove"


def test_comparisons_of_regressions_and_persons():
    numeric = schema(target="age")
    table = read_table(people(300), numeric)
    plan = compare_learners(numeric, epsilon=2.0, delta=1e-6)
    assert [name for name, _ in plan.candidates] == ["linear", "additive"]
    kinds = PrivateLinearRegression | PrivateAdditiveRegressor
    assert isinstance(plan.run(table, insecure_seed=2).value, kinds)
    persons = schema(person="name", rows_per_person=2)
    data = {**people(60), "name": [f"p{i // 3}" for i in range(60)]}
    plan = compare_learners(persons, epsilon=2.0, delta=1e-6)
    assert "naive-bayes" not in [name for name, _ in plan.candidates]
    table = read_table(data, persons, insecure_seed=1)
    kinds = PrivateLogisticRegression | PrivateAdditiveClassifier
    assert isinstance(plan.run(table, insecure_seed=2).value, kinds)
    with pytest.raises(InvalidValue, match="learner"):
        make_learner("jungle", schema())
    with pytest.raises(InvalidValue, match="classification"):
        make_learner("linear", schema())
