"""The stand-in for the Purchase data: the same people, divided more and more finely."""

import numpy as np
import pytest

from discreet.data.made_up_purchases import made_up_purchases
from discreet.errors import InvalidValue


def test_the_seed_decides_everything() -> None:
    one, again, other = (made_up_purchases(200, classes=5, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(one.x, again.x)
    assert np.array_equal(one.y, again.y)
    assert not np.array_equal(one.x, other.x)


def test_classes_divide_the_same_customers() -> None:
    few, many = (made_up_purchases(3000, classes=classes, seed=1) for classes in (2, 20))
    assert np.array_equal(few.x, many.x)
    assert set(np.unique(few.y)) == {0, 1}
    assert set(np.unique(many.y)) == set(range(20))


def test_baskets_are_zeros_and_ones_of_the_asked_shape() -> None:
    data = made_up_purchases(70, classes=3, products=40, seed=1)
    assert data.x.shape == (70, 40)
    assert data.x.dtype == np.uint8
    assert set(np.unique(data.x)) == {0, 1}
    assert data.y.shape == (70,)
    assert data.classes == 3


def test_baskets_tell_the_class_only_if_tastes_matter() -> None:
    """The nearest class mean, from half of the customers to the others."""

    def accuracy(strength: float) -> float:
        data = made_up_purchases(4000, classes=4, strength=strength, seed=2)
        x, y = data.x.astype(float), data.y
        means = np.stack([x[:2000][y[:2000] == label].mean(axis=0) for label in range(4)])
        nearest = ((x[2000:, None, :] - means) ** 2).sum(axis=2).argmin(axis=1)
        return float((nearest == y[2000:]).mean())

    most_frequent = np.bincount(made_up_purchases(4000, classes=4, seed=2).y).max() / 4000
    assert accuracy(1.0) > most_frequent + 0.2
    assert accuracy(0.0) < most_frequent + 0.05


@pytest.mark.parametrize(
    ("name", "value"),
    [("customers", 0), ("classes", 1), ("products", 0), ("tastes", 0), ("strength", -1.0)],
)
def test_impossible_shops_are_refused(name: str, value: float) -> None:
    options = {"customers": 10, name: value}
    customers = int(options.pop("customers"))
    with pytest.raises(InvalidValue, match=name):
        made_up_purchases(customers, **options)  # type: ignore[arg-type]
