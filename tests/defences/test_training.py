"""Defences in training and at the output do what their papers say (S32)."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from discreet.defences import (
    Answers,
    BenchData,
    LabelOnly,
    MemGuard,
    NetworkTraining,
    PateTraining,
    PrivateTraining,
    RandomScores,
    Rounded,
    Selena,
    SyntheticTraining,
    standard_defences,
)
from discreet.defences._outputs import _train_judge
from discreet.defences._selena import leave_out
from discreet.errors import InvalidValue

DRAW = np.random.default_rng(1)
X = DRAW.normal(size=(120, 30)).astype(np.float32)
Y = DRAW.integers(3, size=120)
PLAIN = NetworkTraining(3, hidden=32, epochs=40, batch_size=32, learning_rate=0.01)


def log_answers(model: Any, x: Any = X) -> Any:
    with torch.no_grad():
        return model(torch.from_numpy(x)).log_softmax(dim=1).double().numpy()


def losses(model: Any) -> Any:
    return -log_answers(model)[np.arange(len(Y)), Y]


def entropy(logs: Any) -> float:
    return float(-(np.exp(logs) * logs).sum(axis=1).mean())


def test_plain_training_remembers_and_each_defence_remembers_less() -> None:
    plain = losses(PLAIN(X, Y, 1)).mean()
    assert plain < 0.25
    for changed in ({"weight_decay": 0.05}, {"epochs": 3}, {"dropout": 0.7}, {"smoothing": 0.4}):
        assert losses(replace(PLAIN, **changed)(X, Y, 1)).mean() > 1.5 * plain, changed


def test_many_at_once_are_as_alone_and_repeat() -> None:
    sizes = [(X, Y), (X[:90], Y[:90])]
    together = PLAIN.many(sizes, [3, 4])
    np.testing.assert_allclose(
        log_answers(together[0]), log_answers(PLAIN(X, Y, 3)), rtol=1e-2, atol=1e-2
    )
    assert np.abs(log_answers(together[0]) - log_answers(together[1])).max() > 0.1


def test_relaxloss_keeps_the_loss_near_its_target() -> None:
    relaxed = replace(PLAIN, relax=0.7)(X, Y, 1)
    assert 0.5 < losses(relaxed).mean() < 0.95


def test_hamp_asks_for_entropy() -> None:
    soft = replace(PLAIN, entropy=0.8)(X, Y, 1)
    assert entropy(log_answers(soft)) > 0.6 * math.log(3)
    assert entropy(log_answers(PLAIN(X, Y, 1))) < 0.3 * math.log(3)


def test_an_adversary_makes_answers_less_sure() -> None:
    other = DRAW.normal(size=(80, 30)).astype(np.float32)
    against = replace(PLAIN, adversary=5.0, reference=(other, DRAW.integers(3, size=80)))
    assert losses(against(X, Y, 1)).mean() > 1.5 * losses(PLAIN(X, Y, 1)).mean()


def test_selena_answers_as_models_that_have_not_seen_the_record() -> None:
    """Labels at random can be remembered but not learned: the distilled model knows few of them."""
    selena = Selena(replace(PLAIN, epochs=40), splits=6, left_out=3)
    assert (log_answers(selena(X, Y, 1)).argmax(axis=1) == Y).mean() < 0.65
    assert (log_answers(PLAIN(X, Y, 1)).argmax(axis=1) == Y).mean() > 0.9
    absent = leave_out(200, 25, 10, seed=4)
    assert (absent.sum(axis=0) == 10).all()
    assert absent.any(axis=1).all()


def test_private_training_claims_what_its_plan_proves() -> None:
    train = PrivateTraining(3, 120, epsilon=2.0, delta=1e-4, steps=20, expected_batch_size=30)
    assert train.loss.epsilon(delta=1e-4) <= 2.0
    assert log_answers(train(X, Y, 1)).shape == (120, 3)
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        PrivateTraining(3, 120)


def test_students_of_teachers_claim_what_their_votes_prove() -> None:
    train = PateTraining(3, X[:40], epsilon=3.0, delta=1e-4, teachers=5)
    assert train.loss.epsilon(delta=1e-4) <= 3.0
    student = train(X, Y, 1)
    assert student.certificate_.loss == train.loss
    assert student.predict_proba(X).shape == (120, 3)


def test_synthetic_training_learns_what_the_records_have_in_common() -> None:
    """The network of a private model of the records is right, and its loss is that of the model."""
    draw = np.random.default_rng(2)
    codes = draw.integers((3, 4), size=(600, 2))
    bits = np.concatenate([np.eye(3)[codes[:, 0]], np.eye(4)[codes[:, 1]]], axis=1).astype("f4")
    labels = (codes[:, 0] > 0).astype(np.int64)
    train = SyntheticTraining(replace(PLAIN, classes=2), (3, 4), epsilon=8.0, delta=1e-4)
    assert train.loss.epsilon(delta=1e-4) <= 8.0
    model = train(bits, labels, 1)
    assert (log_answers(model, bits).argmax(axis=1) == labels).mean() > 0.95
    with pytest.raises(InvalidValue, match="bits in 7 columns"):
        train(bits[:, :5], labels, 1)
    with pytest.raises(InvalidValue, match="at least 2 columns"):
        SyntheticTraining(PLAIN, (1,))


# --- at the output -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answers() -> Answers:
    """A model that is surer of its members than of others."""
    inside, outside = X[:60], X[60:]
    model = replace(PLAIN, epochs=80)(inside, Y[:60], 1)
    asked = log_answers(model)
    names = np.arange(len(asked), dtype=np.uint64)
    return Answers(asked, names, log_answers(model, inside), log_answers(model, outside), 7)


def test_label_only_says_the_label(answers: Answers) -> None:
    found = LabelOnly()(answers)
    np.testing.assert_array_equal(found.argmax(axis=1), answers.asked.argmax(axis=1))
    assert (np.exp(found).sum(axis=1) == 1).all()
    assert np.isin(found, (0.0, -np.inf)).all()


def test_rounded_answers_show_few_digits_of_few_classes(answers: Answers) -> None:
    found = np.exp(Rounded(decimals=1, top=2)(answers))
    assert ((found > 0).sum(axis=1) <= 2).all()
    np.testing.assert_allclose(10 * found, np.rint(10 * found), atol=1e-9)
    flat = replace(answers, asked=np.full((2, 50), -math.log(50)))
    assert (np.exp(Rounded(top=3)(flat)).sum(axis=1) == 1).all()  # nothing left: the label


def test_random_scores_keep_the_order_alone(answers: Answers) -> None:
    found = RandomScores()(answers)
    np.testing.assert_array_equal(found.argmax(axis=1), answers.asked.argmax(axis=1))
    sets = {tuple(np.sort(row)) for row in answers.reference}
    assert all(tuple(np.sort(row)) in sets for row in found)


def test_memguard_fools_its_judge_keeps_labels_and_does_not_wear_off(answers: Answers) -> None:
    found = MemGuard()(answers)
    np.testing.assert_array_equal(found.argmax(axis=1), answers.asked.argmax(axis=1))
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1, atol=1e-5)
    with torch.enable_grad():
        judge = _train_judge(answers)

    def doubt(logs: Any) -> float:
        scores = torch.from_numpy(np.sort(np.exp(logs), axis=1)).float()
        return float((torch.sigmoid(judge(scores)) - 0.5).abs().mean())

    assert doubt(found) < 0.7 * doubt(answers.asked)
    np.testing.assert_array_equal(MemGuard()(answers), found)


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        ({"classes": 1}, "classes"),
        ({"dropout": 1.0}, "dropout"),
        ({"relax": 0.0}, "relax"),
        ({"relax": 0.7, "classes": 2}, "relax"),
        ({"entropy": 1.0}, "entropy"),
        ({"adversary": 1.0}, "reference"),
        ({"learning_rate": -1.0}, "learning_rate"),
    ],
)
def test_training_that_cannot_be_is_refused(settings: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        NetworkTraining(**{"classes": 3, **settings})
    assert refused.value.argument == argument


def test_the_usual_rows_have_names_and_only_private_ones_a_guarantee() -> None:
    data = BenchData.split(X, Y)
    rows = standard_defences(data)
    assert len(rows) == 17
    assert {row.name for row in rows if row.epsilon is not None} == {
        "DP-SGD, epsilon 1",
        "DP-SGD, epsilon 8",
        "DP-SGD, epsilon 100",
        "DP-SGD, vacuous epsilon",
        "PATE, epsilon 8",
    }
    bits = np.tile(np.eye(2, dtype=np.float32), (60, 2))
    asked = standard_defences(BenchData.split(bits, Y), categories=(2, 2))
    assert [row.where for row in asked if row.name == "synthetic records, epsilon 8"] == ["data"]
    quick = standard_defences(data, quick=True)
    assert len(quick) == 6
    assert {row.where for row in quick} == {"none", "output", "training"}
    assert len({row.key() for row in rows}) == 17
