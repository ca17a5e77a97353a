"""S38: trees and forests: scores, neighbours under recorded answers, costs, odd tables."""

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.tree import DecisionTreeClassifier

from discreet.data import Categorical, Integer, Real, Schema
from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.learn import PrivateDecisionTree, PrivateRandomForest, load_model
from discreet.learn import _trees as trees
from discreet.learn._binning import label_cells, number_cells
from discreet.privacy import DiscreteLaplace, Exponential, Relation

STEPS = 1024
RELATIONS = (Relation.ADD_REMOVE, Relation.REPLACE)
CELLS = (number_cells("x", 0.0, 1.0), label_cells("y", ["a", "b", "c"]))
SMALL = {"classes": [0, 1], "bounds": ([0.0, 0.0], [1.0, 2.0]), "categories": [0, 3]}


def gini(counts):
    total = sum(counts)
    return Fraction(sum(n * n for n in counts), total) if total else Fraction(0)


def test_one_row_changes_a_score_by_at_most_one_and_comes_close():
    """Every node of up to six rows of three classes, and every class that may come."""
    changes = []
    for counts in itertools.product(range(7), repeat=3):
        before = int(trees.measure_purity(np.array(counts)))
        assert before == math.floor(gini(counts) * STEPS)
        for k in range(3):
            more = list(counts)
            more[k] += 1
            changes.append(int(trees.measure_purity(np.array(more))) - before)
    assert max(changes) == STEPS
    assert -STEPS < min(changes) < -0.7 * STEPS


def test_scores_of_large_nodes_do_not_overflow():
    counts = np.array([[2_000_000_000, 1], [1, 2_000_000_000]])
    assert trees.measure_purity(counts).tolist() == [
        math.floor(gini(row.tolist()) * STEPS) for row in counts
    ]


def test_scores_are_those_of_a_slow_twin():
    rng = np.random.default_rng(1)
    table = np.column_stack([rng.uniform(-0.1, 1.1, 50), rng.integers(0, 3, 50)])
    table[3, 0] = np.nan
    codes = [one.codes(table[:, at]) for at, one in enumerate(CELLS)]
    targets, nodes = rng.integers(0, 2, 50), rng.integers(0, 4, 50)
    found = trees.question_scores(CELLS, codes, targets, nodes, width=4, classes=2)
    for node in range(4):
        rows = np.flatnonzero(nodes == node)
        questions = [(0, cell) for cell in range(CELLS[0].ordered)] + [(1, k) for k in range(3)]
        for place, (at, cell) in enumerate(questions):
            left = trees.goes_left(CELLS[at], codes[at][rows], cell)
            sides = [
                np.bincount(targets[rows[side]], minlength=2).tolist() for side in (left, ~left)
            ]
            assert found[node, place] == sum(math.floor(gini(side) * STEPS) for side in sides)


# --- neighbours -----------------------------------------------------------------------------


class Recorder:
    """Stands where answers are drawn: the first fit's answers are given again."""

    def __init__(self):
        self.answers, self.asked, self.charges = [], [], []
        self.rng = np.random.default_rng(2)

    def choose(self, scores, *, score_range, epsilon, source):
        del source
        self.charges.append(("question", epsilon, score_range))
        return self._answer(np.array(scores), lambda: int(self.rng.integers(len(scores))))

    def count(self, values, *, sensitivity, scale, relation, source):
        del source
        self.charges.append(("leaves", scale, sensitivity, relation))
        return self._answer(
            np.array(values), lambda: values + self.rng.integers(-3, 4, values.shape)
        )

    def _answer(self, exact, draw):
        at = len(self.asked)
        self.asked.append(exact)
        if at == len(self.answers):
            self.answers.append(draw())
        return SimpleNamespace(value=self.answers[at])

    def again(self):
        seen, self.asked, charges, self.charges = self.asked, [], self.charges, []
        return seen, charges


TABLE = np.array([[0.1, 0], [0.9, 1], [0.5, 2], [np.nan, 1], [np.inf, 7], [0.3, np.nan], [0.3, 0]])
LABELS = np.array([0, 1, 1, 0, 1, 0, 3])


@pytest.mark.parametrize("kind", [PrivateDecisionTree, PrivateRandomForest])
@pytest.mark.parametrize("relation", RELATIONS)
def test_neighbours_change_one_node_of_a_level_within_its_range(monkeypatch, kind, relation):
    recorder = Recorder()
    monkeypatch.setattr(trees, "exponential_choice", recorder.choose)
    monkeypatch.setattr(trees, "laplace_integers", recorder.count)
    # A row is dealt by its place, so that all others stay where they are.
    monkeypatch.setattr(
        trees, "uniform_integers", lambda below, size, source: np.arange(size) % below
    )
    more = {"trees": 2} if kind is PrivateRandomForest else {}
    model = kind(**SMALL, depth=2, epsilon=2.0, relation=relation, insecure_seed=1, **more)
    known = LABELS < 2
    base = (TABLE[known], LABELS[known])
    first = model.fit(*base)
    seen, charges = recorder.again()
    plan = first.plan_
    neighbours = []
    if relation is Relation.REPLACE:
        for row, label in itertools.product(range(len(TABLE)), (0, 1)):
            table, labels = base[0].copy(), base[1].copy()
            table[1], labels[1] = TABLE[row], label
            neighbours.append((table, labels))
    else:
        for row, label in itertools.product(range(len(TABLE)), (0, 1)):
            neighbours.append((np.vstack([base[0], TABLE[row]]), np.append(base[1], label)))
        odd = (np.vstack([base[0], TABLE[-1]]), np.append(base[1], 3))
        neighbours.append(odd)
    furthest = 0.0
    for data in neighbours:
        other = model.fit(*data)
        again, charges_again = recorder.again()
        assert charges_again == charges
        assert other.certificate_.plan == first.certificate_.plan
        per_tree = len(seen) // plan.trees
        for level in range(plan.depth):
            total = 0.0
            for number in range(plan.trees):
                begin = number * per_tree + 2**level - 1
                for at in range(begin, begin + 2**level):
                    change = again[at] - seen[at]
                    # All scores that no neighbour touches stay; the losses lie in one interval.
                    total += float(change.max() - change.min()) / (2 * STEPS)
            assert total <= plan.changes
            furthest = max(furthest, total)
        moved = sum(
            np.abs(again[at] - seen[at]).sum() for at in range(per_tree - 1, len(seen), per_tree)
        )
        assert moved <= plan.changes
    assert furthest > 0.4
    # What was drawn is what was charged.
    questions = [charge[1] for charge in charges if charge[0] == "question"]
    assert set(questions) == {plan.split_epsilon}
    assert {charge[2] for charge in charges if charge[0] == "question"} == {2 * STEPS}
    leaves = {charge[1:] for charge in charges if charge[0] == "leaves"}
    assert leaves == {(plan.leaf_scale, plan.changes, relation)}
    levels = Exponential(plan.changes * plan.split_epsilon, relation)
    expected = plan.depth * levels + DiscreteLaplace(plan.leaf_scale, plan.changes, relation)
    assert first.certificate_.loss == expected
    assert expected.epsilon(delta=0.0) <= 2.0


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, 7.7, 1000.0])
def test_plans_never_cost_more_than_was_asked_for(relation, epsilon):
    for depth in range(11):
        plan = trees.TreesPlan.make(trees=3, depth=depth, epsilon=epsilon, relation=relation)
        spent = plan.loss.epsilon(delta=0.0)
        assert epsilon * (1 - 1e-9) <= spent <= epsilon
        assert trees.TreesPlan.from_json(plan.to_json()) == plan


def test_replacing_halves_what_questions_and_leaves_get():
    one, two = (
        trees.TreesPlan.make(trees=1, depth=4, epsilon=1.0, relation=relation)
        for relation in RELATIONS
    )
    assert two.split_epsilon == pytest.approx(one.split_epsilon / 2, rel=1e-9)
    assert two.leaf_scale == pytest.approx(2 * one.leaf_scale, rel=1e-9)


# --- what is learned ------------------------------------------------------------------------


@pytest.mark.parametrize("load", [load_breast_cancer, load_iris, load_wine])
def test_with_hardly_any_noise_it_learns_tables_of_others(load):
    data = load()
    bounds = (data.data.min(axis=0) - 1.0, data.data.max(axis=0) + 1.0)
    classes = list(range(len(data.target_names)))
    shared = {"classes": classes, "bounds": bounds, "epsilon": 1000.0, "insecure_seed": 3}
    plain = DecisionTreeClassifier(max_depth=3, random_state=0).fit(data.data, data.target)
    known = plain.score(data.data, data.target)
    tree = PrivateDecisionTree(**shared, depth=3).fit(data.data, data.target)
    assert tree.score(data.data, data.target) > known - 0.05
    forest = PrivateRandomForest(**shared, depth=2, trees=3).fit(data.data, data.target)
    assert forest.score(data.data, data.target) > 0.8
    for model in (tree, forest):
        assert np.allclose(model.predict_proba(data.data).sum(axis=1), 1.0)


def test_questions_and_leaves_are_said_in_words(tmp_path):
    facts = {"age": Integer(0, 100), "ward": Categorical(["north", "south"], other="south")}
    schema = Schema(
        {**facts, "ill": Categorical(["no", "yes"], other="no")}, target="ill", expected_rows=2000
    )
    rng = np.random.default_rng(4)
    age, ward = rng.integers(0, 101, 2000), rng.choice(["north", "south"], 2000)
    ill = np.where((age > 60) & (ward == "south"), "yes", "no")
    table = {"age": age, "ward": ward, "ill": ill}
    model = PrivateDecisionTree(schema=schema, epsilon=100.0, depth=2, insecure_seed=1).fit(table)
    assert model.score(table) > 0.97
    words = model.describe()
    assert "ward is " in words
    assert "age < 60.5?" in words or "age < 61.5?" in words
    gains = model.importances()
    assert set(gains) == {"age", "ward"}
    assert min(gains.values()) > 50.0
    model.save_directory(tmp_path / "model")
    assert load_model(tmp_path / "model").describe() == words
    with pytest.raises(InvalidValue, match="number"):
        model.describe(1)


def test_the_depth_follows_from_public_numbers():
    depths = [
        PrivateDecisionTree(classes=[0, 1], bounds=(0.0, 1.0), epsilon=epsilon, expected_rows=rows)
        .planned(features=2)
        .depth
        for epsilon, rows in ((0.01, 100), (1.0, 1000), (1.0, 32_000), (8.0, 10**6))
    ]
    assert depths == [1, 3, 8, 8]
    with pytest.raises(InvalidValue, match="expected_rows"):
        PrivateDecisionTree(classes=[0, 1], bounds=(0.0, 1.0)).planned(features=2)


def test_the_first_row_of_a_person_counts():
    table = np.array([[0.1], [0.9], [0.1], [0.9]] * 300)
    answers = np.array([0, 1, 0, 1] * 300)
    names = np.repeat([f"p{k}" for k in range(600)], 2)
    facts = {"classes": [0, 1], "bounds": (0.0, 1.0), "depth": 1, "epsilon": 50.0}
    model = PrivateDecisionTree(**facts, rows_per_person=2, insecure_seed=1)
    model.fit(table, answers, persons=names)
    # The second rows, all of class 1, are read by nobody.
    assert abs(int(model.trees_[0].counts.sum()) - 600) < 5
    assert set(model.predict(table)) == {0}
    assert model.certificate_.unit == "person"
    with pytest.raises(InvalidValue, match="persons"):
        model.fit(table, answers)
    with pytest.raises(NotApplicable):
        PrivateDecisionTree(**facts, rows_per_person=2, relation="replace").fit(
            table, answers, persons=names
        )


def test_rows_may_hold_anything():
    hostile = np.array(
        [[np.nan, "x", -1e308], [np.inf, None, [1]], ["9" * 400, 2.5, b"?"], [object(), 1j, True]],
        dtype=object,
    )
    facts = {"classes": ["a", "b"], "bounds": (0.0, 1.0), "categories": [0, 4, 0], "depth": 3}
    facts["expected_rows"] = 40
    for labels in (["a", "b", "a", None], [1, 2, 3, 4], ["b"] * 4):
        for kind in (PrivateDecisionTree, PrivateRandomForest):
            model = kind(**facts).fit(hostile, np.array(labels, dtype=object))
            assert model.predict(hostile).shape == (4,)
    empty = PrivateDecisionTree(**facts).fit(np.empty((0, 3)), np.empty(0))
    assert np.isfinite(empty.predict_log_proba(hostile)).all()


def test_a_schema_of_one_label_and_an_undeclared_one_is_planned():
    schema = Schema(
        {
            "a": Real(0, 1),
            "b": Categorical(["only"], other="only"),
            "t": Categorical(["u", "v"], other="u"),
        },
        target="t",
        expected_rows=100,
    )
    model = PrivateRandomForest(schema=schema, trees=2, depth=2)
    model.fit({"a": [0.1, 0.9], "b": ["only", "else"], "t": ["u", "v"]})
    assert model.predict({"a": [0.5], "b": [None]}).shape == (1,)


def test_damaged_trees_are_refused(tmp_path):
    model = PrivateDecisionTree(classes=[0, 1], bounds=(0.0, 1.0), depth=1)
    model.fit(np.zeros((3, 1)), [0, 1, 0])
    for name, array in (("column", [[5]]), ("counts", [[[1, 2]]]), ("cell", [[1, 2]])):
        arrays = {**model._arrays, name: np.array(array)}
        with pytest.raises(SchemaError):
            model._restore(arrays)
