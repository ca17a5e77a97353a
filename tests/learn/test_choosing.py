"""Choosing a learner by public facts, and comparing several for a price."""

import numpy as np
import pytest

from discreet.data import Categorical, Integer, Real, Schema, read_table
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn import choosing
from discreet.learn.choosing import TableLearner, best_learner, choose_learner, plan_best
from discreet.learn.selection import selection_loss
from discreet.privacy import GDP

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
    assert choose_learner(schema(), epsilon=1.0, delta=1e-6).learner == "logistic"
    assert choose_learner(schema(20), epsilon=0.1, delta=1e-6).learner == "naive-bayes"
    of_number = schema(target="age")
    assert choose_learner(of_number, epsilon=1.0, delta=1e-6).learner == "linear"
    persons = schema(20, person="name", rows_per_person=3)
    assert choose_learner(persons, epsilon=0.1, delta=1e-6).learner == "logistic"
    with pytest.raises(InvalidValue, match="expected_rows"):
        choose_learner(schema(None), epsilon=1.0, delta=1e-6)
    with pytest.raises(NotApplicable, match="target"):
        choose_learner(Schema({"a": Real(0, 1)}, expected_rows=5), epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize("learner", ["logistic", "naive-bayes"])
def test_labels_come_back_in_the_words_of_the_schema(learner):
    declared = schema()
    model = TableLearner.make(learner, declared, epsilon=2.0, insecure_seed=1)
    model.fit(read_table(people(), declared))
    without = {name: values for name, values in people(seed=9).items() if name != "ill"}
    predicted = model.predicted(read_table(without, declared.for_prediction()))
    assert list(predicted) == ["ill", "probability of yes", "probability of no"]
    assert np.mean(predicted["ill"] == people(seed=9)["ill"]) > 0.8


def test_a_comparison_costs_more_than_one_run_and_stays_in_the_budget():
    plan = plan_best(schema(), epsilon=1.0, delta=1e-6)
    assert plan.loss.epsilon(delta=1e-6) <= 1.0
    assert plan.loss == selection_loss(plan.run_loss, stop=plan.stop)
    assert plan.run_loss.epsilon(delta=1e-6) < 0.7, "one run alone must cost much less"


def test_a_comparison_finds_a_learner_that_works():
    declared = schema()
    table = read_table(people(), declared)
    plan = plan_best(declared, epsilon=4.0, delta=1e-6)
    best = best_learner(plan, table, insecure_seed=3)
    assert best.loss == plan.loss
    right = best.value.estimator.score(best.value.features(table), best.value.targets(table))
    assert right > 0.75


def test_a_run_that_costs_more_than_planned_is_refused():
    """The mutant that hands every run the whole budget."""
    declared = schema()
    honest = plan_best(declared, epsilon=1.0, delta=1e-6)
    mutant = choosing.BestPlan(**{**honest.__dict__, "train_epsilon": 1.0})
    with pytest.raises(NotApplicable, match="costs more than was planned"):
        best_learner(mutant, read_table(people(50), declared), insecure_seed=1)
    assert GDP(0.1).relation.value == "add_remove"


def test_comparisons_of_regressions_and_persons():
    numeric = schema(target="age")
    table = read_table(people(300), numeric)
    plan = plan_best(numeric, epsilon=2.0, delta=1e-6)
    assert best_learner(plan, table, insecure_seed=2).value.learner == "linear"
    persons = schema(person="name", rows_per_person=2)
    data = {**people(60), "name": [f"p{i // 3}" for i in range(60)]}
    plan = plan_best(persons, epsilon=2.0, delta=1e-6)
    assert "naive-bayes" not in [name for name, _ in plan.candidates]
    table = read_table(data, persons, insecure_seed=1)
    assert best_learner(plan, table, insecure_seed=2).value.learner == "logistic"
    with pytest.raises(InvalidValue, match="learner"):
        TableLearner.make("forest", schema())
    with pytest.raises(InvalidValue, match="classification"):
        TableLearner.make("linear", schema())
