"""Targets (S28): what may be asked of a model, and what a model may answer."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from torch import nn

from discreet.attacks import ShadowPool, Target, as_target, class_indices
from discreet.attacks._target import log_softmax
from discreet.errors import InvalidValue, NotApplicable

X = np.array([[-1.0, 0.0], [1.0, 0.5], [2.0, -1.0], [-2.0, 1.0], [0.1, 0.2]])
Y = np.array([0, 1, 1, 0, 1])


def test_the_package_is_light_to_import() -> None:
    program = (
        "import sys, discreet.attacks; print('torch' in sys.modules, 'sklearn' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]


def test_every_public_name_is_there() -> None:
    import discreet.attacks as attacks

    for name in attacks.__all__:
        assert getattr(attacks, name).__doc__, name
    assert set(attacks.__all__) <= set(dir(attacks))
    with pytest.raises(AttributeError, match="nothing"):
        attacks.nothing  # noqa: B018


class TestModules:
    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 3))

    def test_softmax_of_the_logits_in_evaluation_mode(self) -> None:
        module = self.module()
        module.eval()
        with torch.no_grad():
            wanted = torch.softmax(module(torch.tensor(X, dtype=torch.float32)).double(), dim=1)
        module.train()
        target = as_target(module, batch_size=2)
        assert isinstance(target, Target)
        np.testing.assert_allclose(target.probabilities(X), wanted.numpy(), atol=1e-12)
        assert target.classes == 3
        assert target.labels(X).tolist() == wanted.argmax(dim=1).tolist()

    def test_every_mode_is_put_back_and_nothing_changes(self) -> None:
        module = self.module()
        module[1].eval()  # a mixture of modes must survive
        before = {name: value.clone() for name, value in module.state_dict().items()}
        as_target(module).probabilities(X)
        assert module.training
        assert not module[1].training
        assert module[2].training
        for name, value in module.state_dict().items():
            assert torch.equal(value, before[name])

    def test_modes_are_put_back_after_an_error(self) -> None:
        module = self.module()
        with pytest.raises(RuntimeError):
            as_target(module).probabilities(np.zeros((2, 5)))
        assert module.training

    def test_integers_stay_integers(self) -> None:
        words = nn.Sequential(nn.EmbeddingBag(10, 4), nn.Linear(4, 2))
        assert as_target(words).probabilities(np.array([[1, 2, 3]])).shape == (1, 2)

    def test_probabilities_are_not_taken_for_logits(self) -> None:
        torch.manual_seed(0)
        sure = nn.Sequential(nn.Linear(2, 3), nn.Softmax(dim=1))
        with pytest.raises(InvalidValue, match=r"sum to 1.: expected as_target\(output="):
            as_target(sure).probabilities(X)
        with torch.no_grad():
            wanted = sure(torch.tensor(X, dtype=torch.float32)).double().numpy()
        said = as_target(sure, output="probabilities").probabilities(X)
        np.testing.assert_allclose(said, wanted, atol=1e-12)
        # Whoever says that these are logits is believed.
        believed = as_target(sure, output="logits").log_probabilities(X)
        np.testing.assert_array_equal(believed, log_softmax(wanted))
        assert as_target(nn.Sequential(sure, nn.Identity())).probabilities(X[:1]).shape == (1, 3)

    def test_one_column_of_probabilities_is_not_taken_for_logits(self) -> None:
        torch.manual_seed(0)
        sure = nn.Sequential(nn.Linear(2, 1), nn.Sigmoid())
        many = np.random.default_rng(0).normal(size=(40, 2))
        with pytest.raises(InvalidValue, match=r"one column .* expected as_target\(output="):
            as_target(sure).probabilities(many)
        assert as_target(sure, output="probabilities").probabilities(many).shape == (40, 2)
        assert as_target(sure[0]).probabilities(many).shape == (40, 2)

    def test_integers_for_a_module_of_floats(self) -> None:
        module = nn.Linear(2, 3).train()
        images = np.ones((2, 2), dtype=np.uint8)
        with pytest.raises(InvalidValue, match=r"integers .torch.uint8..: expected floats"):
            as_target(module).probabilities(images)
        assert module.training
        assert as_target(module).probabilities(images / 255).shape == (2, 3)

    def test_one_logit_is_that_of_class_one(self) -> None:
        module = nn.Linear(2, 1)
        wanted = torch.sigmoid(module(torch.tensor(X, dtype=torch.float32))).detach().numpy()[:, 0]
        np.testing.assert_allclose(as_target(module).probabilities(X)[:, 1], wanted, atol=1e-6)

    def test_records_in_memory_that_is_not_ours(self) -> None:
        # Other processes see large records as mapped files; torch would warn, an error here.
        fixed = X.copy()
        fixed.flags.writeable = False
        module = nn.Linear(2, 2)
        np.testing.assert_array_equal(
            as_target(module).probabilities(fixed), as_target(module).probabilities(X)
        )
        np.testing.assert_array_equal(
            as_target(module).probabilities(X[::-1]), as_target(module).probabilities(X)[::-1]
        )

    def test_tensors_are_records_too(self) -> None:
        module = nn.Linear(2, 2)
        both = as_target(module).probabilities(torch.tensor(X)), as_target(module).probabilities(X)
        np.testing.assert_array_equal(*both)


class TestEstimators:
    def test_probabilities(self) -> None:
        model = LogisticRegression().fit(X, Y)
        target = as_target(model)
        np.testing.assert_allclose(target.probabilities(X), model.predict_proba(X), atol=1e-12)

    def test_a_missing_class_keeps_its_column(self) -> None:
        model = LogisticRegression().fit(X, np.where(Y == 1, 3, 1))
        target = as_target(model, classes=5)
        answer = target.probabilities(X)
        assert answer.shape == (5, 5)
        np.testing.assert_array_equal(answer[:, [0, 2, 4]], 0.0)
        np.testing.assert_allclose(answer[:, [1, 3]], model.predict_proba(X), atol=1e-12)

    @pytest.mark.parametrize("kind", [LogisticRegression, RidgeClassifier])
    def test_a_class_that_the_model_has_not_is_no_label(self, kind: Any) -> None:
        model = kind().fit(X, np.where(Y == 1, 7, 3))
        target = as_target(model)
        assert class_indices(target, [3, 7]).tolist() == [3, 7]
        for label in (0, 1, 5, 8):
            with pytest.raises(InvalidValue, match=f"labels = {label}: expected"):
                class_indices(target, [7, label, 3])
        # Whoever states the classes says that there are records of the others.
        assert class_indices(as_target(model, classes=9), [1, 8]).tolist() == [1, 8]

    def test_a_half_without_a_class_is_asked_about_it(self) -> None:
        # The target has never met class 1, nor has one of the shadow models.
        labels = np.array([0, 1, 2, 0, 2])
        halves = np.array([[True, False, True, False, False], [False, True, False, True, True]])

        def train(indices: np.ndarray) -> LogisticRegression:
            return LogisticRegression().fit(X[indices], labels[indices])

        pool = ShadowPool(X, labels, train, inclusion=halves)
        seen = pool.observe(train(np.array([0, 2, 3])), members=halves[0])
        assert seen.classes == 3
        assert seen.confidences[1] == 0.0
        assert pool.run().confidences[0, 1] == 0.0

    def test_labels_only(self) -> None:
        model = RidgeClassifier().fit(X, Y)
        target = as_target(model)
        assert target.label_only
        assert target.labels(X).tolist() == model.predict(X).tolist()
        with pytest.raises(NotApplicable, match="labels only"):
            target.probabilities(X)
        with pytest.raises(InvalidValue, match="no predict_proba"):
            as_target(model, output="probabilities")

    def test_names_of_classes(self) -> None:
        model = LogisticRegression().fit(X, np.array(["no", "yes"])[Y])
        target = as_target(model)
        assert target.names == ("no", "yes")
        assert class_indices(target, np.array(["yes", "no"])).tolist() == [1, 0]
        with pytest.raises(InvalidValue, match="maybe"):
            class_indices(target, np.array(["maybe"]))
        # Whoever numbers the classes may have begun with either.
        with pytest.raises(InvalidValue, match="labels = 0"):
            class_indices(target, np.array([0, 1]))

    @pytest.mark.parametrize(
        "classes", [["1", "2"], [1.0, 2.0], [-1, 1], ["-1", "1"], ["0", "1"], [False, True]]
    )
    @pytest.mark.parametrize("form", [lambda y: y, str, int, float, lambda y: str(float(y))])
    def test_numbers_that_name_classes_are_not_columns(
        self, classes: list[object], form: Callable[[object], object]
    ) -> None:
        if classes == [False, True] and form is str:
            form = repr
        model = LogisticRegression().fit(X, np.array(classes)[Y])
        target = as_target(model)
        assert class_indices(target, [form(classes[code]) for code in Y]).tolist() == Y.tolist()
        assert target.labels(X).tolist() == model.predict_proba(X).argmax(axis=1).tolist()
        np.testing.assert_allclose(target.probabilities(X), model.predict_proba(X), atol=1e-12)
        with pytest.raises(InvalidValue, match="labels"):
            class_indices(target, [7])

    def test_negative_labels_of_a_model_without_probabilities(self) -> None:
        target = as_target(RidgeClassifier().fit(X, 2 * Y - 1))
        assert target.names == (-1, 1)
        assert set(target.labels(X).tolist()) <= {0, 1}

    def test_names_that_read_alike_are_told_by_themselves_alone(self) -> None:
        model = LogisticRegression().fit(X, np.array(["1", "1.0"])[Y])
        target = as_target(model)
        assert class_indices(target, ["1.0", "1"]).tolist() == [1, 0]
        with pytest.raises(InvalidValue, match="labels"):
            class_indices(target, ["01"])

    def test_identifiers_are_no_classes(self) -> None:
        model = LogisticRegression().fit(X, Y * 10**10)
        with pytest.raises(InvalidValue, match="10000000000: expected classes from 0, each below"):
            as_target(model)


class TestCallables:
    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            ([[0.7, 0.7]], "sums to 1.4"),
            ([[-0.5, 1.5]], "from 0 to 1"),
            ([[np.nan, 1.0]], "finite"),
            ([[0.5, 0.5]] * 2, "one row for each record"),
            ([[[0.5, 0.5]]], "scores"),
        ],
    )
    def test_scores_that_are_not_probabilities(self, answer: object, message: str) -> None:
        target = as_target(lambda _: np.array(answer), output="probabilities")
        with pytest.raises(InvalidValue, match=message):
            target.probabilities(X[:1])

    def test_a_callable_says_what_it_returns(self) -> None:
        with pytest.raises(InvalidValue, match="output"):
            as_target(lambda x: x)
        with pytest.raises(InvalidValue, match="model"):
            as_target(3)

    def test_labels_out_of_range(self) -> None:
        target = as_target(lambda x: np.full(len(x), 7), output="labels", classes=3)
        with pytest.raises(InvalidValue, match="from 0 to 2"):
            target.labels(X)

    def test_a_target_passes_through(self) -> None:
        target = as_target(lambda x: np.zeros((len(x), 2)), output="logits")
        assert as_target(target) is target
        with pytest.raises(InvalidValue, match="output"):
            as_target(target, output="labels")

    def test_true_labels_are_checked(self) -> None:
        target = as_target(lambda x: np.zeros((len(x), 2)), output="logits", classes=2)
        for labels in ([-1, 0], [0, 2], [0.5, 1.0], [[0]]):
            with pytest.raises(InvalidValue, match="labels"):
                class_indices(target, labels)

    def test_no_records(self) -> None:
        target = as_target(lambda x: np.zeros((len(x), 2)), output="logits")
        with pytest.raises(InvalidValue, match="records"):
            target.probabilities(X[:0])


def test_log_softmax_keeps_what_is_beside_one() -> None:
    # log p = -log(1 + exp(-60)), which is 0 if it is computed through p.
    answer = log_softmax(np.array([[60.0, 0.0]]))
    assert answer[0, 0] == pytest.approx(-np.exp(-60.0), rel=1e-12)
    ties = log_softmax(np.zeros((1, 4)))
    np.testing.assert_allclose(ties, -np.log(4.0))
