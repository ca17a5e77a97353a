"""Label-only attacks (S28)."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

from attacks.membership.worlds import assert_chance
from discreet.attacks import as_target, label_only
from discreet.attacks._label_only import boundary_distances
from discreet.errors import InvalidValue

label_only_source = import_module("discreet.attacks._label_only")


def half_plane(x: NDArray[np.float64]) -> NDArray[np.int64]:
    return (x @ np.array([3.0, 4.0]) > 5).astype(np.int64)


def test_distance_to_a_plane_is_found() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2)) * 2
    truth = np.abs(x @ np.array([3.0, 4.0]) - 5) / 5
    found = boundary_distances(
        half_plane, x, half_plane(x), np.random.default_rng(1), iterations=6, queries=60
    )
    assert (found >= truth - 1e-9).all()  # it is a distance to a point of the other class
    assert np.median(found / truth) < 1.05
    rough = boundary_distances(half_plane, x, half_plane(x), np.random.default_rng(1), iterations=0)
    assert (found <= rough + 1e-9).all()
    assert np.median(rough / truth) > np.median(found / truth)


def test_wrong_records_are_at_distance_zero() -> None:
    x = np.random.default_rng(0).normal(size=(20, 2)) * 2
    wrong = half_plane(x)
    wrong[:5] = 1 - wrong[:5]
    found = boundary_distances(half_plane, x, wrong, np.random.default_rng(1))
    assert (found[:5] == 0).all()
    assert (found[5:] > 0).all()


def test_bounds_are_kept() -> None:
    asked = []

    def watched(x: NDArray[np.float64]) -> NDArray[np.int64]:
        asked.append((x.min(), x.max()))
        return half_plane(x)

    x = np.random.default_rng(0).uniform(0, 2, size=(30, 2))
    boundary_distances(watched, x, half_plane(x), np.random.default_rng(1), bounds=(0.0, 2.0))
    assert min(low for low, _ in asked) >= 0
    assert max(high for _, high in asked) <= 2


@pytest.fixture(scope="module")
def noisy_labels() -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]]:
    draw = np.random.default_rng(7)
    x = draw.normal(size=(400, 4))
    y = ((x[:, 0] > 0) ^ (draw.random(400) < 0.25)).astype(np.int64)
    return x, y, np.arange(400) < 200


Noisy = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]]


@pytest.mark.parametrize("method", ["boundary", "noise"])
def test_a_memorising_model_gives_members_away(method: str, noisy_labels: Noisy) -> None:
    x, y, members = noisy_labels
    model = KNeighborsClassifier(1).fit(x[:200], y[:200])
    own = label_only(
        as_target(model, output="labels"),
        x,
        y,
        members=members,
        method=method,
        queries=20,
        scale=0.2,
        seed=1,
    )
    assert own.auc > 0.68  # members are always right: 0.5 + 0.5 * (share of errors) at least
    assert own.decisions is None


@pytest.mark.parametrize("method", ["boundary", "noise"])
def test_chance_for_a_model_that_never_saw_the_records(method: str, noisy_labels: Noisy) -> None:
    x, y, members = noisy_labels
    draw = np.random.default_rng(8)
    others = draw.normal(size=(200, 4))
    model = DecisionTreeClassifier(random_state=0).fit(others, (others[:, 0] > 0).astype(int))
    own = label_only(model, x, y, members=members, method=method, queries=20, seed=1)
    assert_chance(own)


def test_public_records_set_the_threshold(noisy_labels: Noisy) -> None:
    x, y, members = noisy_labels
    model = KNeighborsClassifier(1).fit(x[:200], y[:200])
    draw = np.random.default_rng(9)
    z = draw.normal(size=(200, 4))
    public = (z, ((z[:, 0] > 0) ^ (draw.random(200) < 0.25)).astype(np.int64))
    own = label_only(
        model, x, y, members=members, public=public, false_positive_rate=0.2, queries=20, seed=1
    )
    # 200 calibrating and 200 judged: one standard deviation is 4 %.
    assert abs(own.false_positive_rate().share - 0.2) < 6 * 0.04
    assert own.recall().share > own.false_positive_rate().share
    with pytest.raises(InvalidValue, match="public"):
        label_only(model, x, y, members=members, public=(x[:50], y[:50]), seed=1)
    single = x.astype(np.float32)
    for one, two in ((single, x), (x, single)):
        with pytest.raises(InvalidValue, match="public"):
            label_only(model, one, y, members=members, public=(two[:50], y[:50]), seed=1)
    with pytest.raises(InvalidValue, match="at least 9"):
        label_only(
            model, x, y, members=members, public=(z[:5], public[1][:5]), method="noise", seed=1
        )


def accused_by_chance(method: str) -> float:
    """The share accused at 10 % of records that the target never saw, over 60 runs of 24."""
    total = 0
    weights = np.ones(20) / np.sqrt(20)

    def target(x: NDArray[np.float64]) -> NDArray[np.int64]:
        return ((x @ weights) + 0.5 * np.sin(3 * x[:, 0]) > 0).astype(np.int64)

    for seed in range(60):
        x = np.random.default_rng(seed).normal(size=(24 + 199, 20))
        y = target(x)
        own = label_only(
            target,
            x[:24],
            y[:24],
            members=np.arange(24) < 12,
            method=method,
            public=(x[24:], y[24:]),
            iterations=1,
            queries=6,
            copies=6,
            scale=2.0,
            seed=seed,
        )
        assert own.decisions is not None
        total += int(own.decisions.sum())
    return total / (60 * 24)


@pytest.mark.parametrize("method", ["boundary", "noise"])
def test_the_promised_false_positive_rate_is_kept(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 24 judged by 199 in each of 60 runs: the variance of a run's share is at most
    # 0.09 (1/24 + 1/200), so 6 standard deviations are passed in one of 1e9 runs.
    margin = 6 * np.sqrt(0.09 * (1 / 24 + 1 / 200) / 60)
    assert accused_by_chance(method) < 0.1 + margin
    if method != "boundary":
        return
    right = label_only_source.boundary_distances

    def apart(ask: Any, x: Any, y: Any, draw: Any, **options: Any) -> NDArray[np.float64]:
        # Measured apart, 24 records offer fewer points to start from than 199 do.
        parts = (slice(None, 24), slice(24, None))
        return np.concatenate([right(ask, x[part], y[part], draw, **options) for part in parts])

    monkeypatch.setattr(label_only_source, "boundary_distances", apart)
    assert accused_by_chance(method) > 0.1 + margin


def test_records_in_both_sets(noisy_labels: Noisy) -> None:
    x, y, members = noisy_labels
    model = DecisionTreeClassifier(max_depth=3, random_state=0).fit(x[:200], y[:200])
    both_x, both_y = np.concatenate([x, x[:1]]), np.append(y, y[0])
    both = np.append(members, False)
    options = {"members": both, "method": "noise", "copies": 2, "seed": 1}
    dropped = label_only(model, both_x, both_y, overlap="drop", **options)
    assert dropped.records.tolist() == list(range(400))
    assert len(label_only(model, both_x, both_y, overlap="allow", **options).scores) == 401
    with pytest.raises(InvalidValue, match="overlap"):
        label_only(model, both_x, both_y, overlap="maybe", **options)


def test_public_records_of_another_shape(noisy_labels: Noisy) -> None:
    x, y, members = noisy_labels
    model = DecisionTreeClassifier(max_depth=3, random_state=0).fit(x[:200], y[:200])
    for public in ((np.zeros((20, 3)), y[:20]), (np.zeros((20, 4)), y[:19])):
        with pytest.raises(InvalidValue, match="public"):
            label_only(model, x, y, members=members, public=public, method="noise")


def test_shifts_by_hand() -> None:
    # Class 1 if the middle pixel is bright; a bright pixel in the middle survives one of nine
    # shifts, a bright 3 x 3 square all of them.
    images = np.zeros((2, 5, 5))
    images[0, 2, 2] = 1
    images[1, 1:4, 1:4] = 1
    target = as_target(lambda x: (x[:, 2, 2] > 0.5).astype(int), output="labels")
    own = label_only(
        target, images, [1, 1], members=np.array([False, True]), method="shifts", seed=0
    )
    assert own.scores.tolist() == [1 / 9, 1.0]
    with pytest.raises(InvalidValue, match="images"):
        label_only(target, images[:, 2], [1, 1], members=np.array([False, True]), method="shifts")


def test_order_does_not_matter(noisy_labels: Noisy) -> None:
    x, y, members = noisy_labels
    model = DecisionTreeClassifier(max_depth=3, random_state=0).fit(x[:200], y[:200])
    order = np.random.default_rng(0).permutation(400)
    for method in ("boundary", "noise"):
        one = label_only(model, x, y, members=members, method=method, queries=10, seed=2)
        two = label_only(
            model, x[order], y[order], members=members[order], method=method, queries=10, seed=2
        )
        np.testing.assert_allclose(two.scores, one.scores[order], atol=1e-9)


def test_order_does_not_matter_where_the_first_columns_say_nothing() -> None:
    # More records than are tried as starting points, all alike in their first columns.
    x = np.zeros((1300, 11))
    x[:, 9:] = np.random.default_rng(3).normal(size=(1300, 2))
    order = np.random.default_rng(4).permutation(len(x))

    def distances(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        def ask(points: NDArray[np.float64]) -> NDArray[np.int64]:
            return half_plane(points[:, 9:])

        draw = np.random.default_rng(1)
        return boundary_distances(ask, rows, ask(rows), draw, iterations=0)

    np.testing.assert_allclose(distances(x[order]), distances(x)[order], atol=1e-9)


def test_bad_input(noisy_labels: Noisy) -> None:
    x, y, members = noisy_labels
    model = DecisionTreeClassifier().fit(x, y)
    with pytest.raises(InvalidValue, match="method"):
        label_only(model, x, y, members=members, method="magic")
    with pytest.raises(InvalidValue, match="records"):
        label_only(model, np.array([["a"]] * 400), y, members=members)
    with pytest.raises(InvalidValue, match="members"):
        label_only(model, x, y, members=members[:3])
    with pytest.raises(InvalidValue, match="equal to a member"):
        label_only(
            model, np.concatenate([x, x[:1]]), np.append(y, y[0]), members=np.append(members, False)
        )
    constant = as_target(lambda v: np.zeros(len(v), dtype=int), output="labels")
    with pytest.raises(InvalidValue, match="all labels 0"):
        label_only(constant, x, y, members=members)
