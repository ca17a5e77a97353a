"""The stand-in for the Purchase data: the same people, divided more and more finely."""

import numpy as np
import pytest

from discreet.data import made_up_purchases
from discreet.errors import InvalidValue


def test_the_seed_decides_everything() -> None:
    one, again, other = (
        made_up_purchases(200, draw=np.random.default_rng(seed), classes=5) for seed in (3, 3, 4)
    )
    assert np.array_equal(one.x, again.x)
    assert np.array_equal(one.y, again.y)
    assert not np.array_equal(one.x, other.x)


def test_classes_divide_the_same_customers() -> None:
    few, many = (
        made_up_purchases(3000, draw=np.random.default_rng(1), classes=classes)
        for classes in (2, 20)
    )
    assert np.array_equal(few.x, many.x)
    assert set(np.unique(few.y)) == {0, 1}
    assert set(np.unique(many.y)) == set(range(20))


def test_baskets_are_zeros_and_ones_of_the_asked_shape() -> None:
    data = made_up_purchases(70, draw=np.random.default_rng(1), classes=3, products=40)
    assert data.x.shape == (70, 40)
    assert data.x.dtype == np.uint8
    assert set(np.unique(data.x)) == {0, 1}
    assert data.y.shape == (70,)
    assert data.classes == 3


def test_every_customer_is_nearest_to_the_own_class() -> None:
    """What k-means ends with, up to the few who still change sides when it is stopped."""
    data = made_up_purchases(3000, draw=np.random.default_rng(2), classes=8, products=200)
    x = data.x.astype(float)
    means = np.stack([x[data.y == label].mean(axis=0) for label in range(8)])
    nearest = ((x[:, None, :] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == data.y).mean() > 0.97


@pytest.mark.parametrize(("strength", "directions"), [(0.0, 1), (3.0, 4)])
def test_customers_differ_by_their_habits_and_by_how_much_they_buy(
    strength: float, directions: int
) -> None:
    """So many directions stand out of the noise: three habits, if they matter, and one more."""
    draw = np.random.default_rng(2)
    data = made_up_purchases(4000, draw=draw, classes=2, habits=3, strength=strength, products=90)
    spread = np.linalg.svd(data.x - data.x.mean(axis=0), compute_uv=False)
    ratios = spread[:10] / spread[1:11]
    assert int(ratios.argmax()) + 1 == directions
    assert ratios.max() > 1.3


def test_as_many_classes_as_customers() -> None:
    data = made_up_purchases(12, draw=np.random.default_rng(1), classes=12)
    assert sorted(data.y.tolist()) == list(range(12))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("customers", 0),
        ("classes", 1),
        ("classes", 11),
        ("products", 0),
        ("habits", 0),
        ("strength", -1.0),
    ],
)
def test_impossible_shops_are_refused(name: str, value: float) -> None:
    options = {"customers": 10, "classes": 3, name: value}
    customers = int(options.pop("customers"))
    with pytest.raises(InvalidValue, match=name):
        made_up_purchases(customers, draw=np.random.default_rng(1), **options)  # type: ignore[arg-type]


def test_something_that_draws_nothing_is_refused() -> None:
    with pytest.raises(InvalidValue, match="draw"):
        made_up_purchases(10, draw=7, classes=3)  # type: ignore[arg-type]
