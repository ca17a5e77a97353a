"""Model inversion (S29): slopes, faithful pictures, and judges that were not attacked.

Recognition by chance: with 40 classes more than 12 hits have probability below 1e-9.
"""

import copy
import json
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from discreet.attacks import Prior, as_target, invert, recognition
from discreet.attacks._inversion import DifferenceClimb, ExactClimb
from discreet.attacks._picture_prior import blur, cosine_directions, total_variation
from discreet.errors import InvalidValue, NotApplicable

CLASSES, SIDE = 40, 12


# --- pictures ---------------------------------------------------------------------------


def test_the_slope_of_total_variation_is_its_derivative() -> None:
    pictures = np.random.default_rng(1).random((2, 4, 5))
    value, slope = total_variation(pictures)
    for place in np.ndindex(pictures.shape):
        moved = pictures.copy()
        moved[place] += 1e-6
        change = (total_variation(moved)[0] - value).sum() / 1e-6
        assert slope[place] == pytest.approx(change, abs=1e-3)


def test_total_variation_counts_edges() -> None:
    flat = np.full((1, 6, 6), 0.3)
    half = flat.copy()
    half[:, :, 3:] = 0.8
    assert total_variation(flat)[0][0] == 0.0
    assert (total_variation(flat)[1] == 0).all()
    assert total_variation(half, corner=1e-6)[0][0] == pytest.approx(6 * 0.5, abs=1e-4)


def test_blurring_keeps_the_mean_and_lessens_the_variation() -> None:
    noise = np.random.default_rng(2).random((3, 20, 20))
    soft = blur(noise, 1.5)
    assert (total_variation(soft)[0] < total_variation(noise)[0] / 3).all()
    assert np.abs(soft.mean(axis=(1, 2)) - noise.mean(axis=(1, 2))).max() < 0.02
    assert blur(noise, 0) is noise


# --- people -----------------------------------------------------------------------------


def templates(seed: int) -> np.ndarray:
    """Made-up faces: smooth, and different for all."""
    made = blur(np.random.default_rng(seed).normal(size=(CLASSES, SIDE, SIDE)), 1.2)
    made = made - made.mean(axis=(1, 2), keepdims=True)
    return np.clip(0.5 + 0.2 * made / made.std(axis=(1, 2), keepdims=True), 0, 1)


def photographs(of: np.ndarray, each: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    noise = 0.1 * np.random.default_rng(seed).normal(size=(CLASSES * each, SIDE, SIDE))
    return np.clip(np.repeat(of, each, axis=0) + noise, 0, 1), np.repeat(np.arange(CLASSES), each)


FACES = templates(1)
TRAIN, TEST = photographs(FACES, 3, 2), photographs(FACES, 2, 3)


def flat(pictures: np.ndarray) -> np.ndarray:
    return pictures.reshape(len(pictures), -1)


def network(pair: tuple[np.ndarray, np.ndarray], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(SIDE * SIDE, 60), nn.Tanh(), nn.Dropout(0.1), nn.Linear(60, CLASSES)
    )
    x, y = torch.tensor(pair[0], dtype=torch.float32), torch.tensor(pair[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


@pytest.fixture(scope="module")
def attacked() -> nn.Module:
    return network(TRAIN, 4)


@pytest.fixture(scope="module")
def judge() -> Any:
    """Another kind of model, trained on other photographs of the same people."""
    x, y = photographs(FACES, 3, 5)
    return LogisticRegression(C=10, max_iter=500).fit(flat(x), y)


def judged(result: Any, judge: Any, **options: Any) -> Any:
    return recognition(
        result, judge, **{"photographs": flat(TEST[0]), "labels": TEST[1], **options}
    )


def test_people_are_recognised_in_inverted_pictures(attacked: nn.Module, judge: Any) -> None:
    attacked.train()
    before = copy.deepcopy(attacked.state_dict())
    result = invert(attacked, shape=(SIDE, SIDE), steps=80, restarts=2, seed=6)
    assert attacked.training  # modes, weights and gradients are as they were
    assert attacked[3].training
    assert all((before[name] == value).all() for name, value in attacked.state_dict().items())
    assert result.images.shape == (CLASSES, SIDE, SIDE)
    assert result.images.min() >= 0
    assert result.images.max() <= 1
    assert result.confidences.min() > 0.5
    assert result.queries == 2 + 2 * CLASSES * 81 + CLASSES
    found = judged(result, judge)
    assert found.rate.share > 0.9
    assert found.leaks
    assert found.chance == 1 / CLASSES
    assert found.photographs.share > 0.9
    centred = flat(result.images) - flat(result.images).mean(axis=1, keepdims=True)
    faces = flat(FACES) - flat(FACES).mean(axis=1, keepdims=True)
    alike = (centred @ faces.T) / np.linalg.norm(faces, axis=1)
    assert (alike.argmax(axis=1) == np.arange(CLASSES)).mean() > 0.9  # they look like them, too


def test_people_that_a_model_has_never_seen_are_not_recognised(judge: Any) -> None:
    strangers = network(photographs(templates(77), 3, 8), 9)
    result = invert(strangers, shape=(SIDE, SIDE), steps=60, restarts=1, seed=6)
    assert result.confidences.min() > 0.5  # the attack has done what it could
    found = judged(result, judge)
    assert found.rate.successes <= 12
    assert not judged(result, judge, confidence=1 - 1e-9).leaks


class Completions(Prior):
    """A generator fitted on pictures of strangers, and the pixels of a picture that are known."""

    def __init__(self, strangers: np.ndarray, known: np.ndarray, prompt: np.ndarray) -> None:
        super().__init__((SIDE, SIDE))
        rows = flat(strangers)
        self.mean, self.known, self.prompt = rows.mean(axis=0), known, prompt
        _, spread, directions = np.linalg.svd(rows - self.mean, full_matrices=False)
        self.draw = directions[:60] * spread[:60, None] / np.sqrt(len(rows))

    def starts(self, count: int, seed: int | None) -> np.ndarray:
        """The best guess without the model: ridge regression of the known pixels."""
        seen = self.draw[:, self.known]
        codes = np.linalg.solve(
            seen @ seen.T + 0.01 * np.eye(60), seen @ (self.prompt - self.mean[self.known])
        )
        return np.tile(codes, (count, 1))

    def decode(self, codes: np.ndarray) -> np.ndarray:
        return np.clip(self.mean + codes @ self.draw, 0, 1)

    def pull_back(self, codes: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        return gradient @ self.draw.T

    def penalty(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen = self.draw[:, self.known]
        away = self.mean[self.known] + codes @ seen - self.prompt
        value = (away**2).sum(axis=1) + 0.01 * (codes**2).sum(axis=1)
        return value, 2 * away @ seen.T + 0.02 * codes


def test_half_a_picture_is_completed_by_the_model_and_not_by_strangers_alone(
    attacked: nn.Module,
) -> None:
    """The left half is the prompt, the generator has seen strangers: who knows the right half?"""
    strangers = np.concatenate([templates(seed) for seed in range(100, 115)])
    known = np.tile(np.arange(SIDE) < SIDE // 2, SIDE)
    never_saw = network(photographs(templates(77), 3, 8), 9)

    def alike(picture: np.ndarray, person: int) -> float:
        return float(np.corrcoef(picture.ravel()[~known], FACES[person].ravel()[~known])[0, 1])

    found: list[list[float]] = []
    for person in range(8):
        prior = Completions(strangers, known, FACES[person].ravel()[known])
        guess = prior.decode(prior.starts(1, None))[0]
        pictures = [
            invert(
                model, shape=(SIDE, SIDE), classes=[person], prior=prior, steps=100, restarts=1
            ).images[0]
            for model in (attacked, never_saw)
        ]
        found.append([alike(picture, person) for picture in (guess, *pictures)])
    guessed, completed, by_a_stranger = np.mean(found, axis=0)
    assert completed > guessed + 0.2
    assert all(row[1] > row[0] for row in found)
    assert by_a_stranger < guessed  # a model without these people does not help


def test_the_attacked_model_is_no_judge_and_a_copy_neither() -> None:
    strangers = network(photographs(templates(77), 3, 8), 9)
    result = invert(strangers, shape=(SIDE, SIDE), steps=60, restarts=1, seed=6)
    # This is what the mistake would report: full success on people never seen.
    assert (as_target(strangers).labels(result.images) == np.arange(CLASSES)).all()
    options = {"photographs": TEST[0], "labels": TEST[1]}
    for same in (strangers, copy.deepcopy(strangers), as_target(strangers)):
        with pytest.raises(InvalidValue, match="the attacked model"):
            recognition(result, same, **options)


def test_a_judge_must_know_real_photographs(attacked: nn.Module) -> None:
    result = invert(attacked, shape=(SIDE, SIDE), steps=5, restarts=1, seed=6)
    blind = as_target(lambda x: np.zeros(len(x), dtype=int), output="labels", classes=CLASSES)
    with pytest.raises(InvalidValue, match="recognises real photographs"):
        judged(result, blind)


def test_the_priors_do_what_they_say(attacked: nn.Module) -> None:
    options = {"shape": (SIDE, SIDE), "steps": 60, "restarts": 1, "seed": 6}
    rough = invert(attacked, total_variation=0, smoothing=0, **options)
    soft = invert(attacked, total_variation=0.1, smoothing=1, **options)
    assert total_variation(soft.images)[0].mean() < total_variation(rough.images)[0].mean() / 2
    narrow = invert(attacked, bounds=(0.4, 0.6), **options)
    assert narrow.images.min() >= 0.4
    assert narrow.images.max() <= 0.6


def test_more_starts_are_never_worse_and_the_best_is_kept(attacked: nn.Module) -> None:
    options = {"shape": (SIDE, SIDE), "steps": 15, "total_variation": 0, "seed": 6}
    one, four = (invert(attacked, restarts=count, **options) for count in (1, 4))
    assert (four.confidences >= one.confidences - 1e-9).all()
    assert (four.confidences > one.confidences).any()


def test_pictures_do_not_depend_on_the_order_of_classes(attacked: nn.Module) -> None:
    options = {"shape": (SIDE, SIDE), "steps": 10, "restarts": 2, "seed": 6}
    one = invert(attacked, classes=[3, 17, 8], **options)
    other = invert(attacked, classes=[8, 3, 17], **options)
    assert other.classes == (8, 3, 17)
    np.testing.assert_allclose(one.images, other.images[[1, 2, 0]], atol=1e-5)


# --- black boxes ------------------------------------------------------------------------


def linear_pair() -> tuple[nn.Module, np.ndarray, np.ndarray]:
    torch.manual_seed(2)
    model = nn.Linear(12, 3).double()
    return model, np.random.default_rng(3).random((5, 12)) * 0.5 + 0.2, np.array([0, 1, 2, 0, 1])


def test_both_slopes_are_the_one_on_paper() -> None:
    model, inputs, goals = linear_pair()
    weight, bias = (p.detach().numpy() for p in model.parameters())
    scores = inputs @ weight.T + bias
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    slope = weight[goals] - p @ weight  # of log softmax
    values, exact = ExactClimb(model, (12,), probabilities=False)(inputs, goals)
    np.testing.assert_allclose(values, np.log(p[np.arange(5), goals]), rtol=1e-10)
    np.testing.assert_allclose(exact, slope, rtol=1e-9)
    directions = cosine_directions(3, 4, 3)
    climb = DifferenceClimb(as_target(model), (12,), directions, step=1e-6, bounds=(0.0, 1.0))
    assert climb.queries == 10
    np.testing.assert_allclose(
        climb(inputs, goals)[1], slope @ directions.T @ directions, atol=1e-5
    )


def test_a_module_of_probabilities_has_the_same_slope() -> None:
    model, inputs, goals = linear_pair()
    soft = nn.Sequential(model, nn.Softmax(dim=1))
    one = ExactClimb(model, (12,), probabilities=False)(inputs, goals)
    two = ExactClimb(soft, (12,), probabilities=True)(inputs, goals)
    np.testing.assert_allclose(one[1], two[1], rtol=1e-8)


def one_column(*, flat: bool, sigmoid: bool) -> nn.Module:
    """A network that says log(p / (1 - p)) of class 1, or p, as one column or none."""
    linear = nn.Linear(3, 1).double()
    with torch.no_grad():
        linear.weight[:] = torch.tensor([[2.0, -1.0, 0.5]])
        linear.bias[:] = -0.75
    parts: list[nn.Module] = [linear]
    if sigmoid:
        parts.append(nn.Sigmoid())
    if flat:
        parts.append(nn.Flatten(0))
    return nn.Sequential(*parts)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("sigmoid", [False, True])
def test_both_classes_of_one_column_are_climbed(flat: bool, sigmoid: bool) -> None:
    model = one_column(flat=flat, sigmoid=sigmoid)
    output = "probabilities" if sigmoid else "logits"
    found = invert(
        model, shape=(3,), steps=100, restarts=2, learning_rate=0.1, output=output, seed=1
    )
    # A linear logit is largest, and smallest, in a corner of the cube.
    logits = np.array([-1.75, 1.75])
    np.testing.assert_allclose(found.images, [[0, 1, 0], [1, 0, 1]], atol=1e-9)
    np.testing.assert_allclose(found.confidences, 1 / (1 + np.exp(-np.abs(logits))), rtol=1e-9)
    first = invert(model, shape=(3,), classes=[0], steps=2, restarts=1, output=output, seed=1)
    assert first.classes == (0,)
    inputs, goals = np.random.default_rng(4).random((6, 3)), np.array([0, 1, 0, 1, 0, 1])
    climb = ExactClimb(model, (3,), probabilities=sigmoid)
    measured = DifferenceClimb(
        as_target(model, output=output), (3,), np.eye(3), step=1e-7, bounds=(-1.0, 2.0)
    )
    for exact, paper in zip(climb(inputs, goals), measured(inputs, goals), strict=True):
        np.testing.assert_allclose(exact, paper, atol=1e-6)


def test_a_column_of_probabilities_must_be_declared() -> None:
    with pytest.raises(InvalidValue, match="one column of numbers from 0 to 1"):
        invert(one_column(flat=False, sigmoid=True), shape=(3,), steps=1)
    wide = one_column(flat=False, sigmoid=False)
    assert invert(wide, shape=(3,), steps=1).classes == (0, 1)


@pytest.mark.parametrize("gradients", ["exact", "differences"])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_queries_are_the_records_that_the_model_was_asked_about(
    gradients: str, columns: int
) -> None:
    asked = []
    torch.manual_seed(3)
    model = nn.Linear(2, columns)
    model.register_forward_hook(lambda _, inputs, output: asked.append(len(inputs[0])))
    found = invert(model, shape=(2,), gradients=gradients, steps=5, restarts=2, seed=1)
    assert found.queries == sum(asked)


def test_a_black_box_is_inverted_by_differences(judge: Any, attacked: nn.Module) -> None:
    few = list(range(10))
    result = invert(
        judge,
        shape=(SIDE * SIDE,),
        picture=(SIDE, SIDE),
        classes=few,
        steps=25,
        restarts=1,
        frequencies=8,
        learning_rate=0.04,
        seed=6,
    )
    assert result.gradients == "differences"
    assert result.queries == 2 + 65 * 10 * 26 + 10
    seen = np.isin(TEST[1], few)
    found = recognition(
        result,
        attacked,
        photographs=TEST[0][seen].astype(np.float32),
        labels=TEST[1][seen],
        confidence=1 - 1e-6,
    )
    assert found.rate.share >= 0.8
    assert found.leaks


def test_records_that_are_no_pictures_are_climbed_without_priors() -> None:
    model, _, _ = linear_pair()
    result = invert(model, shape=(12,), steps=100, restarts=1, seed=1)
    assert result.picture is None
    assert result.total_variation == result.smoothing == 0
    by_differences = invert(
        model, shape=(12,), gradients="differences", steps=100, restarts=1, seed=1
    )
    # A linear model is climbed into a corner, whichever way.
    np.testing.assert_allclose(by_differences.confidences, result.confidences, atol=0.02)


def tree() -> Any:
    return DecisionTreeClassifier(random_state=0).fit(flat(TRAIN[0]), TRAIN[1])


PICTURE = {"shape": (SIDE * SIDE,), "picture": (SIDE, SIDE), "frequencies": 4, "seed": 1}


def test_the_steps_of_a_forest_are_climbed() -> None:
    forest = RandomForestClassifier(60, max_depth=4, random_state=0)
    forest.fit(flat(TRAIN[0]), TRAIN[1] % 2)
    middle = forest.predict_proba(np.full((1, SIDE * SIDE), 0.5))[0]
    found = invert(forest, steps=15, restarts=2, **PICTURE)
    assert (found.confidences > middle).all()


def test_a_module_of_probabilities_must_be_told() -> None:
    sure = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))
    with pytest.raises(InvalidValue, match="sum to 1"):
        invert(sure, shape=(4,), steps=1)
    assert invert(sure, shape=(4,), steps=1, output="probabilities").classes == (0, 1, 2)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (tree(), "no slope"),
        (as_target(lambda x: np.zeros(len(x), int), output="labels", classes=3), "labels only"),
    ],
)
def test_what_cannot_be_climbed_is_refused(model: Any, message: str) -> None:
    with pytest.raises(NotApplicable, match=message):
        invert(model, **PICTURE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": [0, 40]}, "classes <= 39"),
        ({"classes": [-1]}, "classes = -1"),
        ({"classes": [1, 1]}, "each named once"),
        ({"classes": []}, "at least one class"),
        ({"shape": ()}, "shape of one record"),
        ({"picture": (7, 7)}, "height and width"),
        ({"bounds": (1.0, 0.0)}, "the smaller one first"),
        ({"steps": 0}, "steps"),
        ({"restarts": 0}, "restarts"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"total_variation": -1}, "total_variation"),
        ({"smoothing": -1}, "smoothing"),
        ({"start": np.zeros(3)}, "start"),
        ({"start": np.full(SIDE * SIDE, 2.0)}, "start"),
        ({"gradients": "exact"}, "no torch module"),
        ({"gradients": "guessed"}, "one of exact"),
        ({"frequencies": 99}, "at most 12"),
        ({"max_queries": 1000}, "max_queries"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str, judge: Any) -> None:
    with pytest.raises(InvalidValue, match=message):
        invert(judge, **{**PICTURE, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"photographs": flat(TEST[0])[:4], "labels": TEST[1][:4]}, "none of class 2"),
        ({"labels": TEST[1] + 1}, "labels = 40"),
        ({"labels": TEST[1][:-1]}, "one per photograph"),
        ({"photographs": flat(TEST[0])[:, :9]}, "the size of the inverted"),
        ({"confidence": 0}, "confidence"),
    ],
)
def test_bad_photographs_are_named(
    options: dict[str, Any], message: str, attacked: nn.Module, judge: Any
) -> None:
    result = invert(attacked, shape=(SIDE, SIDE), steps=2, restarts=1, seed=1)
    with pytest.raises(InvalidValue, match=message):
        judged(result, judge, **options)


def test_results_are_plain_json_and_readable(attacked: nn.Module, judge: Any) -> None:
    result = invert(attacked, shape=(SIDE, SIDE), steps=30, restarts=1, seed=1)
    assert json.loads(json.dumps(result.to_json()))["shape"] == [SIDE, SIDE]
    assert "inverted by exact gradients" in str(result)
    found = judged(result, judge)
    assert json.loads(json.dumps(found.to_json()))["rate"]["trials"] == CLASSES
    assert "recognised" in str(found)
