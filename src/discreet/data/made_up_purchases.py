"""Made-up shopping baskets: a stand-in for the Purchase data of Shokri et al. (2017).

The original, 197,324 customers and 600 products, may not be passed on. There the classes are
clusters of customers, and the same customers are divided into 2, 10, 20, 50 or 100 of them.
Here a customer is a point of tastes, the label is the nearest of some typical customers, and
every product is bought with a chance that depends on the tastes. More classes divide the same
people more finely, so that the task becomes harder and a model has to memorise more: the trend
of the paper can be repeated, its figures cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from discreet import _validate

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MadeUpPurchases", "made_up_purchases"]

# Nothing here is about real people: streams of one seed for products, customers and classes.
_PRODUCTS, _CUSTOMERS, _TYPICAL = 0, 1, 2


@final
@dataclass(frozen=True, eq=False)
class MadeUpPurchases:
    """Baskets ``x`` (customers, products) of 0 and 1, and the class of each customer in ``y``."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    classes: int


def made_up_purchases(
    customers: int,
    *,
    classes: int = 100,
    products: int = 600,
    tastes: int = 8,
    strength: float = 1.0,
    seed: int = 0,
) -> MadeUpPurchases:
    """Return made-up customers of ``classes`` kinds.

    Each product is bought with probability 1 / (1 + exp(-(b + strength * w.z))), where z are
    the tastes of the customer and w those that the product meets, both standard normal, and b
    is its popularity. The products and the customers depend on ``seed`` and
    their number alone: another number of classes divides the same customers anew.

    >>> few, many = (made_up_purchases(50, classes=k, seed=1) for k in (2, 10))
    >>> few.x.shape, bool((few.x == many.x).all()), int(many.y.max())
    ((50, 600), True, 9)
    """
    count = _validate.integer("customers", customers, at_least=1)
    kinds = _validate.integer("classes", classes, at_least=2)
    wide = _validate.integer("products", products, at_least=1)
    deep = _validate.integer("tastes", tastes, at_least=1)
    pull = _validate.real("strength", strength, at_least=0)
    start = _validate.integer("seed", seed, at_least=0)
    make = np.random.default_rng  # noqa: TID251 - made-up people have nothing to hide
    shop = make([start, _PRODUCTS])
    direction = shop.normal(size=(deep, wide))
    popularity = shop.normal(-1.5, 1.0, size=wide)
    people = make([start, _CUSTOMERS])
    z = people.normal(size=(count, deep))
    chance = 1.0 / (1.0 + np.exp(-(popularity + pull * (z @ direction))))
    x = (people.random(size=(count, wide)) < chance).astype(np.uint8)
    typical = make([start, _TYPICAL]).normal(size=(kinds, deep))
    # The nearest point: |z - c|^2 without |z|^2, which all candidates share.
    y = np.argmin((typical**2).sum(axis=1) - 2.0 * (z @ typical.T), axis=1)
    return MadeUpPurchases(x, y.astype(np.int64), kinds)
