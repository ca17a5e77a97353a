"""Data-dependent figures: tighter for these votes, and private like the votes.

**What it says.** For queries fixed beforehand, the labels on these data and on any neighbouring
data have at most this Renyi divergence. **What it does not say.** It is no property of the
mechanism: another data set has another figure. Therefore

- it decides nothing: sessions refuse by data-independent cost;
- it must not be published or stored as it is, since it tells about the votes; release it
  by :func:`discreet.pate.sanitise`;
- it does not cover queries, or student's predictions, that were chosen after seeing answers.

It composes with nothing here, and a ledger does not take it.

**Smooth sensitivity.** A figure f(D) is the sum over queries of a value v(cell). A neighbour moves
every query to an adjacent cell at most. With ls(c) the largest |v(c') - v(c)| over adjacent c',
and ls_d(c) the largest ls within d moves of c,

    L_d(D) = sum over queries of ls_d(cell),     S(D) = max over d of e^(-beta d) L_d(D).

S is a beta-smooth upper bound of the local sensitivity (Nissim, Raskhodnikova and Smith 2007,
definition 2.1): L_0(D) is at least |f(D) - f(D')|, and since the cells within d moves of c
are within d + 1 moves of every adjacent cell, L_d(D) <= L_(d+1)(D'), so S(D) <= e^beta S(D').
Adding a public constant keeps both. Nothing is assumed of v, not even that it is monotone.

**Publishing a figure.** The figure f(D), the divergence of the labels at one order a, is released
as

    f(D) + z s S(D) + N(0, (s S(D))^2),

S a beta-smooth upper bound of its local sensitivity, s the
``noise`` and z the quantile of the noise for ``failure``. So what comes out is at least f(D)
except with probability ``failure`` over its noise. The shift by z s S(D) depends on
the data as well: between neighbours the means differ by at most k min(S, S'), with
k = 1 + z s (e^beta - 1).

**Its cost.** The two releases are Gaussians with variances whose ratio v lies between e^(-2 beta)
and e^(2 beta) and means at most k min(S, S') apart. Their divergence of order b is

    h(v) + b k^2 min(1, v) / (2 s^2 w),   w = b - (b-1) v > 0,
    h(v) = -(1/2) log v - log(w) / (2 (b-1))

(Gil, Alajaji and Linder 2013). h falls up to v = 1 and rises from there, the second term rises,
so it is at most the larger of its value at e^(2 beta), and h(e^(-2 beta)) + b k^2 / (2 s^2).
Noise and mean live on a grid of 2**-40; S is at least 2**-20, so the noise has a
deviation of at least 2**20 s steps, where sums over the grid and integrals agree to all digits
(their difference is below exp(-2**39 s^2)). One step is added to S for the rounding of the mean.

**What is then published.** At order a the labels and the figure together have divergence at most
figure + cost on the data at hand, in both directions, with probability 1 - ``failure``. Every
parameter must be chosen without looking at the votes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np
from scipy.special import ndtri

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms import Charge
from discreet.pate._aggregator import Aggregator
from discreet.pate._surface import RESOLUTION, QueryCells
from discreet.privacy import Loss, Relation, RenyiDP
from discreet.randomness import Source, choose_source, discrete_gaussian

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


# The hundred orders at which a figure is computed unless others are named.
ORDERS: tuple[float, ...] = (
    *(1.0 + 2.0 ** (k / 4.0) for k in range(-12, 4)),
    *(float(order) for order in range(3, 65)),
    *(float(round(64 * 2.0 ** (k / 4.0))) for k in range(1, 23)),
)


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
        by_votes = float(np.min(convert_rdp(self._epsilons, self._orders, point)))
        return min(by_votes, self.data_independent_epsilon(delta=point))

    def data_independent_epsilon(self, *, delta: float) -> float:
        """What all queries cost if all are answered, for all votes; both directions."""
        point = _validate.real("delta", delta, above=0, below=1)
        return float(self._loss.epsilon(delta=point))

    def __repr__(self) -> str:
        return f"<DataDependentRDP of {self._queries} queries: private, not for publication>"

    def to_json(self) -> NoReturn:
        """Refuse: the figure tells about the votes."""
        self._refuse()

    def __reduce__(self) -> NoReturn:
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

    ``votes`` has one histogram a row. ``aggregator`` is one that has a surface: LaplaceMax, GNMax,
    ConfidentGNMax, or InteractiveGNMax with the student's ``predictions``. ``one_sided`` bounds
    the divergence from the data to its neighbours only, as the papers do; by default both
    directions. Never more than the data-independent figure, at any order or delta.

    >>> from discreet.pate import GNMax
    >>> figure = data_dependent_rdp(
    ...     GNMax(classes=3, teachers=250, noise=20), [[240, 5, 5], [130, 120, 0]]
    ... )
    >>> figure
    <DataDependentRDP of 2 queries: private, not for publication>
    >>> figure.private_epsilon(delta=1e-5) < figure.data_independent_epsilon(delta=1e-5)
    True

    Parameters
    ----------
    aggregator
        One that has a surface.
    votes, predictions
        Private histograms, and what a student said before.
    orders
        At which the divergence is bounded.
    one_sided
        Whether to bound the papers' direction only.
    resolution
        Cells for each vote.

    Returns
    -------
    DataDependentRDP
        The figure, which is private itself.

    Raises
    ------
    NotApplicable
        If no such bound is known for the aggregator.
    InvalidValue
        If votes are no histograms.
    """
    known = read_orders(orders)
    surface = aggregator.surface(resolution=resolution, one_sided=one_sided)
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


def convert_rdp(epsilons: Array, orders: Array, delta: float) -> Array:
    """The epsilon that each divergence proves at ``delta`` (Canonne, Kamath and Steinke 2020)."""
    penalty = np.log1p(-1.0 / orders) - np.log(orders) / (orders - 1.0)
    room = epsilons + penalty - math.log(delta) / (orders - 1.0)
    return np.asarray(np.maximum(room * (1.0 + 1e-12) + 1e-14, 0.0))


def smooth_bound(values: Array, cells: QueryCells, *, beta: float, reach: tuple[int, int]) -> float:
    """Return S for queries in ``cells`` of the table ``values``; private.

    ``reach`` says how far adjacent cells are, in rows and columns.

    >>> line = np.array([[0.0, 0.0, 0.0, 1.0, 1.0]])
    >>> one = np.array([1])
    >>> cells = QueryCells(rows=0 * one, columns=0 * one, counts=one)
    >>> round(smooth_bound(line, cells, beta=0.5, reach=(0, 1)), 6)  # the jump is 2 moves away
    0.367879
    """
    widest = adjacent_change(values, reach)
    most = float(widest.max()) * float(cells.counts.sum())
    best, moves = 0.0, 0
    steps = max(
        math.ceil(size / by) for size, by in zip(values.shape, reach, strict=True) if by > 0
    )
    while True:
        total = float(cells.counts @ widest[cells.rows, cells.columns])
        best = max(best, math.exp(-beta * moves) * total)
        moves += 1
        # Nothing further away can matter once the largest of all would be discounted below.
        if moves > steps or math.exp(-beta * moves) * most <= best:
            return best
        widest = _largest(widest, reach)


def adjacent_change(values: Array, reach: tuple[int, int]) -> Array:
    """The largest change of the value from a cell to an adjacent one."""
    smallest = -_largest(-values, reach)
    return np.asarray(np.maximum(_largest(values, reach) - values, values - smallest))


def _largest(table: Array, reach: tuple[int, int]) -> Array:
    """The largest value among the cells within reach."""
    from scipy import ndimage

    size = (2 * reach[0] + 1, 2 * reach[1] + 1)
    return np.asarray(ndimage.maximum_filter(table, size=size, mode="nearest"))


_GRID = Fraction(1, 1 << 40)
_LEAST_SENSITIVITY = 2.0**-20
# Rounding errors of figures and sensitivities are far below; neighbours may differ by both.
_ROUNDING = 1e-9
_CELLS_WITHIN_A_MINUTE = 600_000_000


@final
@dataclass(frozen=True)
class ReleaseNoise:
    """The public parameters of a release: order, smoothness beta, noise and failure.

    >>> noise = ReleaseNoise.costing(0.1, order=20)
    >>> 0.099 < noise.cost(20) <= 0.1
    True
    """

    order: float
    beta: float
    noise: float
    failure: float = 0.01

    def __post_init__(self) -> None:
        _validate.real("order", self.order, above=1, at_most=10_000)
        _validate.real("beta", self.beta, at_least=1e-6, at_most=10)
        _validate.real("noise", self.noise, at_least=0.01, at_most=1e6)
        _validate.real("failure", self.failure, at_least=1e-9, at_most=0.5)
        if math.isinf(self.cost(self.order)):
            raise InvalidValue("beta", self.beta, "a number with exp(2 beta) < order / (order - 1)")

    @property
    def quantile(self) -> float:
        """z: how many deviations are added."""
        return float(-ndtri(self.failure)) * (1.0 + 1e-9) + 1e-9

    def cost(self, order: float) -> float:
        """The divergence of the release itself at an order; infinite where beta is too large."""
        b = _validate.real("order", order, above=1)
        beta = self.beta + 4.0 * _ROUNDING
        widest, narrowest = math.exp(2.0 * beta), math.exp(-2.0 * beta)
        if b - (b - 1.0) * widest <= 1e-9:
            return math.inf
        apart = 1.0 + self.quantile * self.noise * math.expm1(beta)
        shift = b * (apart / self.noise) ** 2 / 2.0
        above = _spread(widest, b) + shift / (b - (b - 1.0) * widest)
        below = _spread(narrowest, b) + shift
        return max(above, below) * (1.0 + 1e-12)

    def loss(self, relation: Relation | str = Relation.ADD_REMOVE) -> Loss:
        """What the release of a figure costs by itself, for all votes.

        It comes on top of the loss of the labels: a ledger that is charged for both covers both.

        >>> ReleaseNoise.costing(0.1, order=20).loss().epsilon(delta=1e-5) < 0.6
        True
        """
        pairs = {order: self.cost(order) for order in (*ORDERS, float(self.order))}
        finite = {order: cost for order, cost in pairs.items() if math.isfinite(cost)}
        return RenyiDP(tuple(finite), tuple(finite.values()), Relation.parse(relation))

    @classmethod
    def costing(
        cls, cost: float, *, order: float, beta: float | None = None, failure: float = 0.01
    ) -> ReleaseNoise:
        """The least noise whose release costs at most ``cost`` at ``order``.

        ``beta`` is 0.2 / order unless it is given. A larger one lowers the sensitivity of
        stable votes and raises the least cost that is possible.
        """
        budget = _validate.real("cost", cost, above=0)
        at = _validate.real("order", order, above=1, at_most=10_000)
        smoothness = 0.2 / at if beta is None else _validate.real("beta", beta, at_least=1e-6)
        low, high = 0.01, 1e6
        if cls(at, smoothness, high, failure).cost(at) > budget:
            raise InvalidValue("cost", cost, f"more than beta = {smoothness:g} costs by itself")
        for _ in range(80):
            middle = math.sqrt(low * high)
            enough = cls(at, smoothness, middle, failure).cost(at) <= budget
            low, high = (low, middle) if enough else (middle, high)
        return cls(at, smoothness, high, failure)


@final
@dataclass(frozen=True)
class SanitisedRDP:
    """A published figure: labels and figure together, at one order, on the data at hand.

    ``figure`` bounds the divergence of the labels with probability 1 - ``failure`` over its
    noise, and ``cost`` that of its own release. It may be stored. It is a statement about one
    data set, so it is no loss: it composes with nothing, and ledgers charge the
    data-independent loss.
    """

    order: float
    figure: float
    cost: float
    failure: float
    data_independent: float
    queries: int
    aggregator: dict[str, Any]
    randomness: str

    @property
    def total(self) -> float:
        """The divergence of labels and figure together."""
        return self.figure + self.cost

    def epsilon(self, *, delta: float) -> float:
        """The epsilon that the total proves at ``delta``, figure included."""
        point = _validate.real("delta", delta, above=0, below=1)
        return float(convert_rdp(np.array([self.total]), np.array([self.order]), point)[0])

    def to_json(self) -> dict[str, Any]:
        """The figure as plain JSON values, with what it is."""
        label = "data-dependent, sanitised by smooth sensitivity"
        return {"kind": label, **asdict(self), "total": self.total}


def sanitise(
    aggregator: Aggregator,
    votes: Any,
    *,
    noise: ReleaseNoise,
    predictions: Any = None,
    resolution: int = RESOLUTION,
    source: Source | None = None,
    insecure_seed: int | None = None,
    charge: Charge | None = None,
) -> SanitisedRDP:
    """Publish the data-dependent divergence of a stream of queries fixed beforehand.

    See the module for the guarantee. ``charge`` is called with the loss of this release, which
    the labels have not paid for, before anything is drawn; if it raises, nothing is published.
    The figure is cut at 0 and at the data-independent one, which is post-processing; where it
    would not be below, publish that one instead.

    >>> from discreet.pate import GNMax
    >>> published = sanitise(
    ...     GNMax(classes=3, teachers=900, noise=20),
    ...     [[800, 50, 50]] * 100,
    ...     noise=ReleaseNoise.costing(0.1, order=8),
    ...     insecure_seed=1,
    ... )
    >>> published.total < published.data_independent
    True

    Parameters
    ----------
    aggregator, votes, predictions, resolution
        As for :func:`data_dependent_rdp`.
    noise
        The noise of the release, and its order.
    source, insecure_seed
        Where noise is drawn from.
    charge
        Called with the loss of the release before it is drawn.

    Returns
    -------
    SanitisedRDP
        An upper bound to publish, with its own cost.

    Raises
    ------
    NotApplicable
        If no such bound is known for the aggregator.
    InvalidValue
        If an argument is wrong.
    """
    if not isinstance(noise, ReleaseNoise):
        raise InvalidValue("noise", noise, "a ReleaseNoise, such as ReleaseNoise.costing(...)")
    surface = aggregator.surface(resolution=resolution)
    if surface.rows * surface.columns * (aggregator.teachers + 1) > _CELLS_WITHIN_A_MINUTE:
        raise InvalidValue(
            "resolution",
            resolution,
            f"fewer cells than {surface.rows} x {surface.columns} for this many teachers",
        )
    bits = choose_source(source, insecure_seed)
    cells = surface.cells(votes, predictions)
    if charge is not None:
        charge(noise.loss(aggregator.neighbours))
    table = surface.table(noise.order)
    figure = float(cells.counts @ table[cells.rows, cells.columns]) * (1.0 + 1e-12)
    smooth = smooth_bound(table, cells, beta=noise.beta, reach=surface.reach)
    sensitivity = smooth * (1.0 + _ROUNDING) + _LEAST_SENSITIVITY
    queries = int(cells.counts.sum())
    independent = queries * float(surface.independent.rdp([noise.order])[0])
    published = _noisy(figure, sensitivity * noise.noise, noise.quantile, bits)
    return SanitisedRDP(
        order=noise.order,
        figure=min(max(published, 0.0), independent),
        cost=noise.cost(noise.order),
        failure=noise.failure,
        data_independent=independent,
        queries=queries,
        aggregator=aggregator.parameters,
        randomness=bits.provenance["randomness"],
    )


def _noisy(figure: float, deviation: float, quantile: float, source: Source) -> float:
    """The figure, shifted by the quantile and with noise, exact on the grid."""
    width = Fraction(deviation) / _GRID
    centre = math.ceil((Fraction(figure) + Fraction(quantile * deviation)) / _GRID)
    draw = discrete_gaussian(width * width, source=source)
    return float((centre + draw) * _GRID)


def _spread(ratio: float, order: float) -> float:
    """h(v): what two different variances cost."""
    w = order - (order - 1.0) * ratio
    return -0.5 * math.log(ratio) - math.log(w) / (2.0 * (order - 1.0))
