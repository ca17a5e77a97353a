"""Data-dependent figures: tighter for these votes, and private like the votes (S25).

**What it says.** For queries fixed beforehand, the labels on these data and on any neighbouring
data have at most this Renyi divergence. **What it does not say.** It is no property of the
mechanism: another data set has another figure. Therefore

- it decides nothing: sessions refuse by data-independent cost;
- it must not be published or stored as it is, since it tells about the votes; release it
  by :func:`discreet.pate.sanitise`;
- it does not cover queries, or student's predictions, that were chosen after seeing answers.

It composes with nothing here, and a ledger does not take it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.pate.aggregator import Aggregator
from discreet.pate.surface import RESOLUTION, surface_of
from discreet.privacy import Loss

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

__all__ = ["ORDERS", "DataDependentRDP", "converted", "data_dependent_rdp"]

ORDERS: tuple[float, ...] = (
    *(1.0 + 2.0 ** (k / 4.0) for k in range(-12, 4)),
    *(float(order) for order in range(3, 65)),
    *(float(round(64 * 2.0 ** (k / 4.0))) for k in range(1, 23)),
)
"""The hundred orders at which a figure is computed unless others are named."""


@final
class DataDependentRDP:
    """The Renyi divergences of a stream on the data at hand: private, and of its own type.

    Whatever would write it down is refused: JSON, pickle and copies, ledgers (which take losses
    only). ``repr`` shows no figure. The two methods that return numbers say what they are.
    """

    __slots__ = ("_epsilons", "_loss", "_orders", "_queries")

    def __init__(self, *, orders: Array, epsilons: Array, loss: Loss, queries: int) -> None:
        self._orders, self._epsilons = orders.copy(), epsilons.copy()
        self._loss = loss
        self._queries = queries

    @property
    def orders(self) -> tuple[float, ...]:
        """The orders; public."""
        return tuple(self._orders.tolist())

    def private_rdp(self) -> Array:
        """The divergence at every order. It depends on the votes: not for publication."""
        return self._epsilons.copy()

    def private_epsilon(self, *, delta: float) -> float:
        """The least epsilon that is proved at ``delta`` for these votes. Not for publication.

        By the divergences, or data-independently where that is less: divergences lose in the
        conversion, the data-independent loss does not. For comparison with figures in papers,
        which are of this kind.
        """
        point = _validate.real("delta", delta, above=0, below=1)
        by_votes = float(np.min(converted(self._epsilons, self._orders, point)))
        return min(by_votes, self.data_independent_epsilon(delta=point))

    def data_independent_epsilon(self, *, delta: float) -> float:
        """What all queries cost whatever the votes are, all answered; both directions."""
        point = _validate.real("delta", delta, above=0, below=1)
        return float(self._loss.epsilon(delta=point))

    def __repr__(self) -> str:
        return f"<DataDependentRDP of {self._queries} queries: private, not for publication>"

    def to_json(self) -> NoReturn:
        """Refuse: the figure tells about the votes."""
        self._refuse()

    def __reduce__(self) -> NoReturn:
        self._refuse()

    def __copy__(self) -> NoReturn:
        self._refuse()

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotApplicable(
            "a data-dependent figure tells about the private votes and is not stored; release "
            "it with discreet.pate.sanitise, or store the data-independent loss"
        )


def data_dependent_rdp(
    aggregator: Aggregator,
    votes: Any,
    *,
    predictions: Any = None,
    orders: Sequence[float] | None = None,
    one_sided: bool = False,
    resolution: int = RESOLUTION,
) -> DataDependentRDP:
    """Return the data-dependent divergences of a stream of queries that were fixed beforehand.

    ``votes`` has one histogram a row. ``aggregator`` is a LaplaceMax, GNMax, ConfidentGNMax,
    or InteractiveGNMax with the student's ``predictions``. ``one_sided`` bounds the
    divergence from the data to its neighbours only, as the papers do; by default both
    directions. Never more than the data-independent figure, at any order or delta.

    >>> from discreet.pate import GNMax
    >>> figure = data_dependent_rdp(
    ...     GNMax(classes=3, teachers=250, noise=20), [[240, 5, 5], [130, 120, 0]]
    ... )
    >>> figure
    <DataDependentRDP of 2 queries: private, not for publication>
    >>> figure.private_epsilon(delta=1e-5) < figure.data_independent_epsilon(delta=1e-5)
    True
    """
    known = read_orders(orders)
    surface = surface_of(aggregator, resolution=resolution, one_sided=one_sided)
    cells = surface.cells(votes, predictions)
    values = surface.values(cells.rows, cells.columns, known)
    queries = int(cells.counts.sum())
    total = cells.counts @ values * (1.0 + 1e-12)
    loss = queries * surface.independent
    return DataDependentRDP(
        orders=known,
        epsilons=np.minimum(total, queries * surface.independent.rdp(known)),
        loss=loss,
        queries=queries,
    )


def read_orders(orders: Sequence[float] | None) -> Array:
    """Return orders above 1 as an array, the default ones for None."""
    if orders is None:
        return np.array(ORDERS)
    try:
        known = np.array(orders, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidValue("orders", orders, "numbers above 1") from None
    if known.ndim != 1 or not known.size or not bool(np.all(np.isfinite(known) & (known > 1))):
        raise InvalidValue("orders", orders, "a row of finite numbers above 1")
    return known


def converted(epsilons: Array, orders: Array, delta: float) -> Array:
    """The epsilon that each divergence proves at ``delta`` (S8, Canonne et al. 2020)."""
    penalty = np.log1p(-1.0 / orders) - np.log(orders) / (orders - 1.0)
    room = epsilons + penalty - math.log(delta) / (orders - 1.0)
    return np.asarray(np.maximum(room * (1.0 + 1e-12) + 1e-14, 0.0))
