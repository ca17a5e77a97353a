"""Students and queries (S23): post-processing of public rows and released labels."""

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from discreet.errors import InvalidValue
from discreet.pate import (
    ConfidentGNMax,
    ImageStudent,
    LaplaceMax,
    SampledVotes,
    ScatteringView,
    SparseVotes,
    StableVotes,
    Student,
    TableStudent,
    central_examples,
    plan_votes,
    stated_plan,
    uncertain_examples,
)
from discreet.pate._image_student import jitter
from discreet.pate._planning import made_up_votes
from discreet.pate._student import make_student, neighbour_graph, spread_labels

RNG = np.random.default_rng(5)
TRUTH = RNG.integers(0, 3, size=300)
CENTRES = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
ROWS = CENTRES[TRUTH] + RNG.normal(size=(300, 2)) * 0.7


def pictures(count: int, seed: int) -> tuple[Any, Any]:
    """Bars that stand, bars that lie, and blots, on 8 x 8 pixels."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 3, size=count)
    images = rng.integers(0, 40, size=(count, 8, 8))
    for image, kind, at in zip(images, kinds, rng.integers(2, 6, size=count), strict=True):
        if kind == 0:
            image[:, at] = 255
        elif kind == 1:
            image[at, :] = 255
        else:
            image[at - 1 : at + 2, at - 1 : at + 2] = 255
    return images.reshape(count, -1).astype(np.float64), kinds


def test_central_examples_stand_for_clusters() -> None:
    chosen = central_examples(ROWS, 3)
    assert sorted(TRUTH[chosen].tolist()) == [0, 1, 2]
    sizes = np.bincount(TRUTH)
    assert sizes[TRUTH[chosen]].tolist() == sorted(sizes.tolist(), reverse=True)
    assert central_examples(ROWS, 3).tolist() == chosen.tolist()
    assert central_examples(ROWS, 10_000).tolist() == list(range(300))
    assert len(central_examples(np.zeros((9, 2)), 4)) == 1
    with pytest.raises(InvalidValue, match="finite"):
        central_examples(np.array([[np.nan]]), 1)
    with pytest.raises(InvalidValue, match="count"):
        central_examples(ROWS, 0)


def test_uncertain_examples_are_the_least_sure_that_were_not_asked() -> None:
    chances = np.column_stack([np.linspace(0.5, 1.0, 300), np.linspace(0.5, 0.0, 300)])
    chosen = uncertain_examples(chances, ROWS, 5, asked=np.arange(10))
    assert len(set(chosen.tolist())) == 5
    assert min(chosen) >= 10
    assert max(chosen) < 10 + 290 // 5
    assert uncertain_examples(chances, ROWS, 5, asked=np.arange(300)).size == 0
    with pytest.raises(InvalidValue, match="probabilities"):
        uncertain_examples(chances[:3], ROWS, 5)


def test_spreading_is_the_closed_form_of_the_paper() -> None:
    graph = neighbour_graph(ROWS[:60], neighbours=5)
    assert abs(graph - graph.T).max() < 1e-12
    assert np.all(np.abs(np.linalg.eigvalsh(graph.toarray())) < 1 + 1e-9)
    examples, labels = np.array([0, 1, 2, 3, 4, 5]), TRUTH[:6]
    found = spread_labels(graph, examples, labels, classes=3, keep=0.1, rounds=400)
    start = np.zeros((60, 3))
    start[examples, labels] = 1.0
    start /= np.maximum(start.sum(axis=0), 1.0)
    exact = np.linalg.solve(np.eye(60) - 0.9 * graph.toarray(), 0.1 * start)
    exact /= exact.sum(axis=1, keepdims=True)
    assert np.allclose(found, exact, atol=1e-9)


def test_spreading_labels_all_from_few_and_unreached_rows_are_uniform() -> None:
    graph = neighbour_graph(ROWS)
    examples = central_examples(ROWS, 6)
    found = spread_labels(graph, examples, TRUTH[examples], classes=3)
    assert np.mean(found.argmax(axis=1) == TRUTH) > 0.97
    alone = sparse.csr_array((3, 3))
    lost = spread_labels(alone, np.array([0]), np.array([1]), classes=2)
    assert lost[2].tolist() == [0.5, 0.5]
    with pytest.raises(InvalidValue, match="two rows"):
        neighbour_graph(np.zeros((1, 2)))


@pytest.mark.parametrize("method", ["self-training", "spreading", "labels-only"])
def test_a_table_student_learns_from_few_labels_and_is_written_down(method: str) -> None:
    examples = central_examples(ROWS, 9)
    student = TableStudent(method=method)
    assert isinstance(student, Student)
    student.fit(ROWS, examples, TRUTH[examples], classes=4)
    assert np.mean(student.scores(ROWS).argmax(axis=1) == TRUTH) > 0.95
    again = make_student("table", student.parameters)
    again.set_arrays(student.arrays())
    assert np.array_equal(again.scores(ROWS), student.scores(ROWS))


def test_a_table_student_of_one_class_or_no_label_still_answers() -> None:
    student = TableStudent().fit(ROWS, np.array([3]), np.array([2]), classes=3)
    assert set(student.scores(ROWS).argmax(axis=1).tolist()) == {2}
    empty = np.empty(0, dtype=np.int64)
    nothing = TableStudent().fit(ROWS, empty, empty, classes=3)
    assert np.all(nothing.scores(ROWS) == 0)
    two = TableStudent().fit(ROWS, np.arange(60), (TRUTH[:60] > 0) * 2, classes=3)
    assert set(two.scores(ROWS).argmax(axis=1).tolist()) == {0, 2}


@pytest.mark.slow
def test_an_image_student_learns_from_few_labels_and_is_written_down() -> None:
    images, kinds = pictures(240, 1)
    student = ImageStudent(size=(8, 8), epochs=10, rate=5e-3)
    assert isinstance(student, Student)
    seen = student.features(images)
    assert np.allclose(np.linalg.norm(seen, axis=1), 1.0, atol=1e-5)
    examples = central_examples(seen, 20)
    student.fit(images, examples, kinds[examples], classes=3, features=seen)
    fresh, truth = pictures(200, 2)
    assert np.mean(student.scores(fresh).argmax(axis=1) == truth) > 0.85
    again = make_student("images", student.parameters)
    again.set_arrays(student.arrays())
    assert np.allclose(again.scores(fresh), student.scores(fresh))
    with pytest.raises(InvalidValue, match="8 x 8 pixels"):
        student.scores(fresh[:, :5])


@pytest.mark.parametrize(("count", "epochs"), [(64, 10), (9, 2), (2, 5)])
def test_an_image_student_learns_from_very_few_images(count: int, epochs: int) -> None:
    """Ten steps in all are no trap for the schedule of the rate."""
    images, kinds = pictures(count, 1)
    student = ImageStudent(size=(8, 8), epochs=epochs)
    student.fit(images, np.arange(2), kinds[:2], classes=3)
    assert np.all(np.isfinite(student.scores(images)))


def test_students_that_know_nothing_or_do_not_exist_are_refused() -> None:
    for student in (TableStudent(), ImageStudent(size=(8, 8))):
        with pytest.raises(InvalidValue, match="fitted student"):
            student.scores(ROWS)
        with pytest.raises(InvalidValue, match="fitted student"):
            student.arrays()
    for wrong, parameters in (("magic", None), ("table", {"x": 1}), (TableStudent(), {"x": 1})):
        with pytest.raises(InvalidValue, match="student"):
            make_student(wrong, parameters)
    with pytest.raises(InvalidValue, match="multiples of 4"):
        ImageStudent(size=(9, 8))


def test_jitter_moves_every_image_a_little_and_by_its_own_draw() -> None:
    images = torch.zeros(6, 1, 28, 28)
    images[:, :, 10:18, 10:18] = 1.0
    moved = jitter(images, generator=torch.Generator().manual_seed(1))
    again = jitter(images, generator=torch.Generator().manual_seed(1))
    assert torch.equal(moved, again)
    assert len({tuple(image.flatten().tolist()) for image in moved}) == 6
    overlap = (moved * images).sum(dim=(1, 2, 3)) / images.sum(dim=(1, 2, 3))
    assert overlap.min() > 0.4
    assert overlap.max() < 1.0


def test_the_view_of_an_image_depends_on_that_image_and_public_ones() -> None:
    images, _ = pictures(60, 3)
    view = ScatteringView(size=(8, 8), dimensions=10).fit(images)
    whole = view.transform(images[:7])
    assert whole.shape == (7, 10)
    for place in range(7):
        assert np.allclose(view.transform(images[place : place + 1])[0], whole[place], atol=1e-5)
    assert view.transform(images[:0]).shape == (0, 10)


@pytest.mark.slow
def test_plans_stay_within_the_budget_and_use_it() -> None:
    common: dict[str, Any] = {"classes": 3, "teachers": 100, "delta": 1e-5, "public_rows": 500}
    votes = made_up_votes(classes=3, teachers=100, agreement=0.8)
    assert abs(votes[:, 0].mean() / 100 - 0.8) < 0.01
    for epsilon in (0.5, 2.0):
        for name in ("auto", "gnmax"):
            plan = plan_votes(name, epsilon=epsilon, **common)
            spent = plan.loss.epsilon(delta=1e-5)
            assert 0.9 * epsilon < spent <= epsilon
            assert 1 <= plan.queries <= 500
    chosen = plan_votes("auto", epsilon=1.0, **common).aggregator
    assert plan_votes(chosen, epsilon=1.0, **common).loss.epsilon(delta=1e-5) <= 1.0
    with pytest.raises(InvalidValue, match="one for 4 classes"):
        plan_votes(chosen, epsilon=1.0, **{**common, "classes": 4})
    with pytest.raises(InvalidValue, match="aggregator"):
        plan_votes("best", epsilon=1.0, **common)
    with pytest.raises(InvalidValue, match="agreement"):
        plan_votes("auto", epsilon=1.0, agreement=1.0, **common)


@pytest.mark.parametrize(
    ("aggregator", "budget"),
    [
        (LaplaceMax(classes=3, teachers=50, epsilon="1/7"), {"queries": 5}),
        (
            ConfidentGNMax(classes=3, teachers=50, threshold=30, selection_noise=9, answer_noise=7),
            {"epsilon": 2.0, "delta": 1e-5, "queries": 40},
        ),
        (
            StableVotes(classes=3, teachers=50, epsilon="1/3", delta=Fraction(1, 10**6)),
            {"queries": 4},
        ),
        (SampledVotes(classes=3, teachers=50, epsilon="1/3", delta=1e-6, cap=2), {"queries": 4}),
        (
            SparseVotes(classes=3, teachers=50, fails=2, epsilon=1, delta=1e-5, relation="replace"),
            {},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_certificate_says_about_an_aggregator_gives_its_loss(
    aggregator: Any, budget: dict[str, Any]
) -> None:
    plan = {"aggregator": aggregator.parameters, "budget": budget}
    told = json.loads(json.dumps({**plan, "queries_planned": 4, "chosen_because": "given"}))
    assert stated_plan(told).loss == aggregator.plan(**budget).loss
