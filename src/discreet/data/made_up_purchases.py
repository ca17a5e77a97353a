"""Made-up shopping baskets: a stand-in for the Purchase data of Shokri et al. (2017).

The original, 197,324 customers and 600 products, may not be passed on. There the classes are
clusters of customers by what they buy, and the same customers are divided into 2, 10, 20, 50 or
100 of them. Here as well: a customer has some shopping habits and is more or less busy, every
product is bought with a chance that depends on both, and k-means divides the baskets. More
classes divide the same people more finely, so that the task becomes harder and a model has to
memorise more: the trend of the paper can be repeated, its figures cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MadeUpPurchases", "made_up_purchases"]

# Classes need to be divisions that can be repeated, not the best ones: k-means may end early.
_ROUNDS = 15


class Chance(Protocol):
    """Draws numbers, as a generator of numpy does."""

    def normal(self, *, size: tuple[int, ...]) -> Any: ...
    def random(self, *, size: tuple[int, ...]) -> Any: ...


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
    draw: Chance,
    classes: int = 100,
    products: int = 600,
    habits: int = 15,
    strength: float = 3.0,
) -> MadeUpPurchases:
    """Return made-up customers, divided into ``classes`` kinds by what they buy.

    Each product is bought with probability 1 / (1 + exp(-(b + a + strength * w.z))), where z
    are the habits of the customer (standard normal), w those that the product meets (normal,
    with an expected length of 1), b is the popularity of the product and a how much the customer
    buys. ``draw`` is a generator of numpy; the classes are drawn last, so that from an equal
    start another number of them divides the same customers anew. Classes differ in size.

    >>> start = np.random.default_rng
    >>> few, many = (made_up_purchases(50, draw=start(1), classes=k) for k in (2, 10))
    >>> few.x.shape, bool((few.x == many.x).all()), int(many.y.max())
    ((50, 600), True, 9)
    """
    count = _validate.integer("customers", customers, at_least=2)
    kinds = _validate.integer("classes", classes, at_least=2, at_most=count)
    wide = _validate.integer("products", products, at_least=1)
    deep = _validate.integer("habits", habits, at_least=1)
    pull = _validate.real("strength", strength, at_least=0)
    if not (hasattr(draw, "normal") and hasattr(draw, "random")):
        raise InvalidValue("draw", draw, "a generator of numpy, such as default_rng(1)")
    meets = pull / np.sqrt(deep) * draw.normal(size=(deep, wide))
    popularity = draw.normal(size=(wide,)) - 2.5
    own = draw.normal(size=(count, deep))
    busy = draw.normal(size=(count, 1))
    chance = 1.0 / (1.0 + np.exp(-(popularity + busy + own @ meets)))
    x = (draw.random(size=(count, wide)) < chance).astype(np.uint8)
    order = np.argsort(draw.random(size=(count,)), kind="stable")
    return MadeUpPurchases(x, _clusters(x.astype(np.float32), order[:kinds]), kinds)


def _clusters(x: NDArray[np.float32], first: NDArray[np.intp]) -> NDArray[np.int64]:
    """Lloyd's k-means from the records ``first``; a centre that nobody is near stays."""
    kinds = len(first)
    centres = x[first].copy()
    nearest = np.full(len(x), -1)
    for _ in range(_ROUNDS):
        # |x - c|^2 without |x|^2, which all candidates share.
        again = np.argmin((centres**2).sum(axis=1) - 2.0 * (x @ centres.T), axis=1)
        if np.array_equal(again, nearest):
            break
        nearest = again
        for kind in range(kinds):
            mine = nearest == kind
            if mine.any():
                centres[kind] = x[mine].mean(axis=0)
    return nearest.astype(np.int64)
