"""Property inference (S29): features that ignore numbering, leaks found, chance without any.

Statistical checks use intervals at confidence 1 - 1e-9 over fixed seeds.
"""

import copy
import json
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import LinearSVC
from torch import nn

from discreet.attacks import (
    NetworkTrainer,
    Perceptron,
    PropertyResult,
    as_target,
    property_sets,
    train_shadows,
)
from discreet.attacks import _property as property_attack
from discreet.attacks import property_inference as infer
from discreet.attacks._property import layers_of, sorted_weights, weight_sets
from discreet.errors import InvalidValue, NotApplicable

SURE = 1 - 1e-9


# --- training sets ----------------------------------------------------------------------


def test_sets_have_the_shares_and_no_record_twice() -> None:
    has = np.random.default_rng(1).random(500) < 0.4
    drawn = property_sets(has, shares=(0.25, 0.5), size=80, sets=9, seed=4)
    assert len(drawn) == 9
    for rows, holds in zip(drawn.indices, drawn.holds, strict=True):
        assert len(np.unique(rows)) == 80
        assert has[rows].sum() == (40 if holds else 20)
    assert drawn.held_out.sum() == 4
    used = [
        np.concatenate([r for r, h in zip(drawn.indices, drawn.held_out, strict=True) if h == k])
        for k in (False, True)
    ]
    assert not set(used[0].tolist()) & set(used[1].tolist())
    again = property_sets(has, shares=(0.25, 0.5), size=80, sets=9, seed=4)
    assert all((a == b).all() for a, b in zip(drawn.indices, again.indices, strict=True))
    other = property_sets(has, shares=(0.25, 0.5), size=80, sets=9)
    assert any((a != b).any() for a, b in zip(drawn.indices, other.indices, strict=True))


@pytest.mark.parametrize(
    "wrong",
    [
        {"has": np.zeros(10)},
        {"has": np.zeros((2, 5), dtype=bool)},
        {"shares": (0.5, 0.5)},
        {"shares": (0.4, 0.45)},
        {"shares": (-0.1, 0.5)},
        {"size": 0},
        {"size": 9},
        {"sets": 1},
        {"held_out": 0.0},
    ],
)
def test_impossible_sets_are_refused(wrong: dict[str, Any]) -> None:
    given = {"has": np.arange(10) % 2 == 0, "shares": (0.2, 0.8), "size": 5, "sets": 4, **wrong}
    with pytest.raises(InvalidValue):
        property_sets(given.pop("has"), **given)


def test_trainers_get_indices_and_different_seeds() -> None:
    drawn = property_sets(np.arange(20) % 2 == 0, shares=(0.2, 0.8), size=5, sets=6, seed=3)
    with_seed = train_shadows(lambda rows, seed: (rows.tolist(), seed), drawn)
    assert [rows for rows, _ in with_seed] == [rows.tolist() for rows in drawn.indices]
    assert len({seed for _, seed in with_seed}) == 6
    alone = train_shadows(lambda rows: rows.sum(), drawn)
    assert alone == [rows.sum() for rows in drawn.indices]
    x = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)
    trainer = NetworkTrainer(x, np.arange(20) % 2, Perceptron(3, 2, hidden=(4,)), epochs=2)
    grouped = train_shadows(trainer, drawn, group=4)
    for model, rows, (_, seed) in zip(grouped, drawn.indices, with_seed, strict=True):
        torch.testing.assert_close(model(torch.tensor(x)), trainer(rows, seed)(torch.tensor(x)))


# --- weights ----------------------------------------------------------------------------


def renumbered(model: nn.Sequential, seed: int) -> nn.Sequential:
    """The same function with other numbers for its hidden units."""
    chance = np.random.default_rng(seed)
    parts = [part for part in model if list(part.parameters())]
    weights = [(part.weight.detach().clone(), part.bias.detach().clone()) for part in parts]
    for place in range(len(weights) - 1):
        order = torch.tensor(chance.permutation(len(weights[place][1])))
        weights[place] = weights[place][0][order], weights[place][1][order]
        weight, bias = weights[place + 1]
        grouped = weight.reshape(len(weight), len(order), -1)[:, order].reshape(weight.shape)
        weights[place + 1] = grouped, bias
    twin = copy.deepcopy(model)
    for part, (weight, bias) in zip(
        [p for p in twin if list(p.parameters())], weights, strict=True
    ):
        part.weight.data, part.bias.data = weight, bias
    return twin


def dense() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3)
    ).double()


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3)
    ).double()


@pytest.mark.parametrize("form", [sorted_weights, weight_sets])
@pytest.mark.parametrize(("make", "shape"), [(dense, (4, 5)), (convolutional, (4, 2, 5, 5))])
def test_features_do_not_depend_on_the_numbering(form: Any, make: Any, shape: Any) -> None:
    torch.manual_seed(3)
    model = make()
    plain = np.concatenate([np.append(w.ravel(), b) for w, b in layers_of(model)])
    for seed in range(3):
        other = renumbered(model, seed)
        x = torch.rand(shape, dtype=torch.float64)
        torch.testing.assert_close(model(x), other(x))  # the twin is one
        moved = np.concatenate([np.append(w.ravel(), b) for w, b in layers_of(other)])
        assert not np.allclose(plain, moved)
        np.testing.assert_allclose(form(layers_of(model)), form(layers_of(other)), rtol=1e-10)
    torch.manual_seed(4)
    assert not np.allclose(form(layers_of(model)), form(layers_of(make())))


def test_weights_of_known_models_are_read_in_order() -> None:
    x = np.random.default_rng(2).normal(size=(60, 3))
    y = np.arange(60) % 3
    network = MLPClassifier((4, 2), max_iter=5, random_state=1)
    with pytest.warns(UserWarning, match="[Mm]aximum iterations"):
        network.fit(x, y)
    assert [w.shape for w, _ in layers_of(network)] == [(4, 3), (2, 4), (3, 2)]
    linear = LogisticRegression().fit(x, y)
    ((weight, bias),) = layers_of(linear)
    assert (weight == linear.coef_).all()
    assert (bias == linear.intercept_).all()
    nested = nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(3, 2, bias=False)), nn.Linear(2, 2)
    )
    assert next(b.tolist() for _, b in layers_of(nested)) == [0.0, 0.0]


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)),
        nn.Sequential(nn.Conv2d(2, 2, 1, groups=2)),
        nn.ReLU(),
        nn.TransformerEncoderLayer(4, 2),
        GaussianNB(),
        "weights",
    ],
)
def test_models_of_unknown_order_are_refused(model: Any) -> None:
    with pytest.raises(NotApplicable, match="layers="):
        layers_of(model)


# --- the attack -------------------------------------------------------------------------


def records(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two groups that differ in their features; the label follows a third one."""
    chance = np.random.default_rng(seed)
    group = chance.random(count) < 0.5
    x = chance.normal(size=(count, 3)) + np.stack([1.5 * group, -1.0 * group, 0 * group], axis=1)
    y = (x[:, 2] + 0.8 * x[:, 0] * group + 0.5 * chance.normal(size=count) > 0).astype(int)
    return x, y, group


X, Y, GROUP = records(3000, 5)
QUERIES = records(40, 6)[0]


@pytest.fixture(scope="module")
def shadows() -> tuple[list[Any], np.ndarray, np.ndarray]:
    drawn = property_sets(GROUP, shares=(0.2, 0.8), size=200, sets=120, seed=7)
    models = train_shadows(lambda rows: LogisticRegression().fit(X[rows], Y[rows]), drawn)
    return models, drawn.holds, drawn.held_out


@pytest.fixture(scope="module")
def innocent() -> tuple[list[Any], np.ndarray, np.ndarray]:
    """All sets have the same share: what is called the property says nothing about them."""
    chance = np.random.default_rng(8)
    sets = [chance.choice(len(X), 200, replace=False) for _ in range(160)]
    models = [LogisticRegression().fit(X[rows], Y[rows]) for rows in sets]
    return models, chance.permutation(np.arange(160) % 2 == 0), np.arange(160) >= 80


def run(shadows: Any, **options: Any) -> PropertyResult:
    models, holds, held_out = shadows
    return infer(models, holds, **{"held_out": held_out, "queries": QUERIES, "seed": 1, **options})


def at_chance(result: PropertyResult) -> bool:
    return result.accuracy.low <= 0.5 <= result.accuracy.high


@pytest.mark.parametrize("access", ["outputs", "sorted weights", "weight sets"])
def test_a_property_that_shapes_the_model_is_found(access: str, shadows: Any) -> None:
    result = run(shadows, access=access, confidence=SURE)
    assert result.leaks
    assert result.accuracy.share > 0.85
    assert result.auc > 0.9
    assert result.accuracy.trials == result.training_shadows == 60
    assert result.chance == 0.5
    assert result.with_property.trials == result.without_property.trials == 30


def test_three_outputs_tell_a_property_and_nothing_of_innocent_models(
    shadows: Any, innocent: Any
) -> None:
    few = QUERIES[:3]
    assert run(shadows, queries=few, confidence=SURE).leaks
    assert at_chance(run(innocent, queries=few, confidence=SURE))


@pytest.mark.parametrize("access", ["outputs", "sorted weights"])
def test_models_that_do_not_know_the_property_are_at_chance(access: str, innocent: Any) -> None:
    result = run(innocent, access=access, confidence=SURE)
    assert at_chance(result)
    assert not result.leaks
    assert "no leak" in result.verdict


def test_judging_on_the_shadows_learned_from_is_caught(
    innocent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"confidence": SURE}
    nearest = KNeighborsClassifier(1)
    assert at_chance(run(innocent, classifier=nearest, **options))
    models, holds, _ = innocent
    features = np.stack(property_attack.shadow_features(models, "outputs", QUERIES, None))
    monkeypatch.setattr(
        property_attack, "_fit", lambda meta, *_: KNeighborsClassifier(1).fit(features, holds)
    )
    assert not at_chance(run(innocent, classifier=nearest, **options))


def swapped_networks(count: int) -> tuple[list[nn.Sequential], np.ndarray]:
    """Large and small units: with the property the large one votes for, else against.

    Sums over the units are the same in both cases, and units are numbered by chance: no line
    through the plain weights tells the two apart.
    """
    chance = np.random.default_rng(9)
    holds = np.arange(count) % 2 == 0
    models = []
    for hold in holds:
        model = nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1)).double()
        order = chance.permutation(2)
        sizes = np.array([3.0, 1.0]) + 0.1 * chance.normal(size=2)
        votes = np.array([1.0, -1.0]) * (1 if hold else -1) + 0.1 * chance.normal(size=2)
        model[0].weight.data = torch.tensor(sizes[order][:, None])
        model[0].bias.data.zero_()
        model[2].weight.data = torch.tensor(votes[order][None])
        model[2].bias.data.zero_()
        models.append(model)
    return models, holds


@pytest.mark.parametrize("access", ["sorted weights", "weight sets"])
def test_plain_weights_hide_what_sorted_ones_show(
    access: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, holds = swapped_networks(160)
    options = {"access": access, "confidence": SURE, "held_out": np.arange(160) >= 80, "seed": 1}
    assert infer(models, holds, **options).accuracy.share == 1.0

    def unsorted(layers: Any) -> np.ndarray:
        return np.concatenate([np.append(weight.ravel(), bias) for weight, bias in layers])

    monkeypatch.setattr(property_attack, "sorted_weights", unsorted)
    monkeypatch.setattr(property_attack, "weight_sets", unsorted)
    assert at_chance(infer(models, holds, **options))


def test_the_order_of_queries_does_not_matter(shadows: Any) -> None:
    order = np.random.default_rng(3).permutation(len(QUERIES))
    one = run(shadows)
    other = run(shadows, queries=QUERIES[order])
    assert one.accuracy == other.accuracy
    assert one.auc == pytest.approx(other.auc, abs=1e-3)


def test_the_last_half_is_held_out_as_it_is_drawn(shadows: Any) -> None:
    assert run(shadows, held_out=None) == run(shadows)


def test_the_target_is_scored(shadows: Any) -> None:
    drawn = property_sets(GROUP, shares=(0.2, 0.8), size=200, sets=2, seed=77)
    low, high = train_shadows(lambda rows: LogisticRegression().fit(X[rows], Y[rows]), drawn)
    scores = [run(shadows, target=t).target_score for t in (low, high)]
    assert scores[0] is not None
    assert scores[1] is not None
    assert scores[0] < 0.5 < scores[1]


def test_labels_alone_are_enough_to_look_at() -> None:
    drawn = property_sets(GROUP, shares=(0.1, 0.9), size=200, sets=60, seed=7)
    models = train_shadows(lambda rows: LinearSVC().fit(X[rows], Y[rows]), drawn)
    result = run((models, drawn.holds, drawn.held_out), queries=records(200, 10)[0])
    assert result.features == 400
    assert result.leaks


def test_the_result_is_plain_json_and_readable(shadows: Any) -> None:
    result = run(shadows, target=shadows[0][0])
    read = json.loads(json.dumps(result.to_json()))
    assert read["held_out_shadows"] == 60
    assert "target: has the property with score" in str(result)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queries": None}, "records to ask"),
        ({"queries": QUERIES[:0]}, "records to ask"),
        ({"access": "weights"}, "one of outputs"),
        ({"held_out": 0.5}, "one bool for each"),
        ({"held_out": np.ones(119, dtype=bool)}, "one bool for each"),
        ({"held_out": np.zeros(120, dtype=bool)}, "one held out"),
        ({"held_out": np.arange(120) > 6}, "5 to learn from"),
        ({"classifier": RidgeClassifier()}, "predict_proba"),
        (
            {"target": as_target(lambda r: np.full((len(r), 3), 1 / 3), output="probabilities")},
            "one",
        ),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str, shadows: Any) -> None:
    with pytest.raises(InvalidValue, match=message):
        run(shadows, **options)


def test_bad_shadows_are_named(shadows: Any) -> None:
    models, holds, held_out = shadows
    with pytest.raises(InvalidValue, match="one bool for each of 120"):
        run((models, holds[:-1], held_out))
    with pytest.raises(InvalidValue, match="one bool"):
        run((models, holds.astype(int), held_out))
    with pytest.raises(InvalidValue, match="one model twice"):
        run(([*models[:-1], models[0]], holds, held_out))
    with pytest.raises(InvalidValue, match=r"0 \+ 0 shadow models with the property"):
        run((models, np.zeros_like(holds), held_out))
    with pytest.raises(InvalidValue, match="perfect score"):
        run((models[:14], holds[:14], np.arange(14) >= 10))
    assert run((models[:24], holds[:24], np.arange(24) >= 12)).accuracy.trials == 12
    other = LogisticRegression().fit(X, np.arange(len(X)) % 3)
    with pytest.raises(InvalidValue, match="one architecture"):
        run(([*models[:-1], other], holds, held_out))


@pytest.mark.parametrize("access", ["outputs", "sorted weights", "weight sets"])
def test_find_copies_a_model_are_refused(access: str, shadows: Any) -> None:
    models, holds, held_out = shadows
    with pytest.raises(InvalidValue, match="number 0 and number 119 agree in every number"):
        run(([*models[:-1], copy.deepcopy(models[0])], holds, held_out), access=access)


def test_different_models_may_give_the_same_few_answers() -> None:
    def share(one: float) -> Any:
        return as_target(lambda x: np.full(len(x), one), output="probabilities")

    holds = np.arange(24) % 2 == 0
    result = run(([share(0.3 if held else 0.4) for held in holds], holds, np.arange(24) >= 12))
    assert result.accuracy.share == 1.0


def test_chance_is_the_more_frequent_kind(shadows: Any) -> None:
    models, holds, _ = shadows
    chosen = np.concatenate([np.flatnonzero(holds)[:15], np.flatnonzero(~holds)[:50]])
    held_out = np.repeat([False, True, False, True], [5, 10, 20, 30])
    always = DummyClassifier(strategy="most_frequent")
    result = run(([models[i] for i in chosen], holds[chosen], held_out), classifier=always)
    # "Without" is right for 30 of 40, and that is no leak.
    assert result.chance == 0.75
    assert (result.accuracy.successes, result.accuracy.trials) == (30, 40)
    assert result.accuracy.low > 0.5
    assert not result.leaks


@pytest.mark.slow
def test_a_coin_is_not_inferred_although_one_pool_of_records_would_show_it() -> None:
    """Sets from the same few people share their chance differences; other people do not.

    Held-out accuracies on other people average to a half over coins; fixed seeds.
    """
    chance = np.random.default_rng(12)
    apart, together = [], []
    plain = LogisticRegression(C=0.1, max_iter=1000)
    for seed in range(10):
        mark = chance.random(400) < 0.5
        rows = slice(400 * (seed % 7), 400 * (seed % 7 + 1))
        x, y = X[rows], Y[rows]
        drawn = property_sets(mark, shares=(0.1, 0.9), size=90, sets=60, seed=seed)
        models = train_shadows(lambda at, x=x, y=y: GaussianNB().fit(x[at], y[at]), drawn)
        apart.append(run((models, drawn.holds, drawn.held_out), classifier=plain).accuracy.share)
        mixed = ~drawn.held_out  # judge within the pool that is learned from
        half = [model for model, kept in zip(models, mixed, strict=True) if kept]
        inside = run((half, drawn.holds[mixed], np.arange(30) >= 16), classifier=plain)
        together.append(inside.accuracy.share)
    assert np.mean(together) > 0.8
    assert abs(np.mean(apart) - 0.5) < 0.15
