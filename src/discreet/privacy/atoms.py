"""The atoms of the algebra: one class for each kind of single release.

The relation is part of every atom. It defaults to ``add_remove``, except for
local randomizers (randomized response), which are ``replace`` by nature, and it
is shown in the ``repr`` whenever it is not the default.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, RelationMismatch
from discreet.privacy.loss import Loss
from discreet.privacy.relation import Relation

__all__ = [
    "GDP",
    "ZCDP",
    "ApproxDP",
    "Atom",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Exponential",
    "FinitePair",
    "Gaussian",
    "Laplace",
    "PureDP",
    "RandomizedResponse",
    "RenyiDP",
    "from_pair",
]


Exact = int | float | str | Decimal | Fraction


class Atom(Loss):
    """Abstract base: a loss with named parameters and a relation field."""

    default_relation: ClassVar[Relation] = Relation.ADD_REMOVE
    # Constructor arguments whose field has another name, because Loss.epsilon and
    # Loss.delta are the readings of a loss.
    argument_names: ClassVar[dict[str, str]] = {}

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        shown = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Relation):
                if value is not self.default_relation:
                    shown.append(f"relation={value.value!r}")
            elif field.default is MISSING or value != field.default:
                argument = self.argument_names.get(field.name, field.name)
                shown.append(f"{argument}={_plain(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


def _plain(value: object) -> str:
    """Show an exact rational as the decimal the caller wrote where there is one."""
    if not isinstance(value, Fraction):
        return repr(value)
    if value.denominator == 1:
        return str(value.numerator)
    try:
        decimal = repr(float(value))
    except OverflowError:
        return repr(str(value))
    return decimal if Fraction(decimal) == value else repr(str(value))


@final
@dataclass(frozen=True, repr=False)
class Gaussian(Atom):
    """Gaussian noise of standard deviation ``noise_multiplier`` times the clip norm.

    The clip norm is the most that one added or removed record contributes in L2
    norm. Under ``replace`` one record leaves and another enters, so the means are
    2 apart and mu = 2 / noise_multiplier.
    """

    noise_multiplier: float
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        self._set(
            noise_multiplier=_validate.real(
                "noise_multiplier", self.noise_multiplier, at_least=1e-150, at_most=1e150
            ),
            relation=Relation.parse(self.relation),
        )

    @property
    def mu(self) -> float:
        """The Gaussian-DP parameter: distance of the means over the deviation."""
        changes = 2.0 if self.relation is Relation.REPLACE else 1.0
        return changes / self.noise_multiplier

    def _exact_group(self, size: int, relation: Relation) -> Loss | None:
        changed = 1 if relation is self.relation else 2
        return Gaussian(self.noise_multiplier * changed / size, relation)


@final
@dataclass(frozen=True, repr=False)
class Laplace(Atom):
    """Laplace noise of ``scale`` on a query whose L1 sensitivity under the relation is given."""

    scale: float
    sensitivity: float = 1.0
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        self._set(
            scale=_validate.real("scale", self.scale, above=0),
            sensitivity=_validate.real("sensitivity", self.sensitivity, above=0),
            relation=Relation.parse(self.relation),
        )

    @property
    def pure_epsilon(self) -> float:
        """The pure guarantee sensitivity / scale."""
        return self.sensitivity / self.scale

    def _exact_group(self, size: int, relation: Relation) -> Loss | None:
        return Laplace(self.scale, self.sensitivity * size, relation)


@final
@dataclass(frozen=True, repr=False)
class DiscreteLaplace(Atom):
    """Two-sided geometric noise, P(x) proportional to exp(-|x| / scale), on integers.

    ``sensitivity`` is an integer: the most that one neighbour changes the (scalar) query.
    """

    scale: float
    sensitivity: int = 1
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        self._set(
            scale=_validate.real("scale", self.scale, above=0),
            sensitivity=_validate.integer("sensitivity", self.sensitivity, at_least=1),
            relation=Relation.parse(self.relation),
        )

    @property
    def pure_epsilon(self) -> float:
        """The pure guarantee sensitivity / scale."""
        return self.sensitivity / self.scale

    def _exact_group(self, size: int, relation: Relation) -> Loss | None:
        return DiscreteLaplace(self.scale, self.sensitivity * size, relation)


@final
@dataclass(frozen=True, repr=False)
class DiscreteGaussian(Atom):
    """Discrete Gaussian noise, P(x) proportional to exp(-x^2 / (2 stddev^2)), on integers.

    For a scalar query with integer ``sensitivity``. The noise is log-concave, so the
    largest shift dominates every smaller one.
    """

    stddev: float
    sensitivity: int = 1
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        self._set(
            stddev=_validate.real("stddev", self.stddev, above=0),
            sensitivity=_validate.integer("sensitivity", self.sensitivity, at_least=1),
            relation=Relation.parse(self.relation),
        )

    def _exact_group(self, size: int, relation: Relation) -> Loss | None:
        return DiscreteGaussian(self.stddev, self.sensitivity * size, relation)


@final
@dataclass(frozen=True, repr=False, init=False)
class RandomizedResponse(Atom):
    """k-ary randomized response: the truth with odds exp(epsilon) against each lie (S14)."""

    default_relation: ClassVar[Relation] = Relation.REPLACE

    argument_names: ClassVar[dict[str, str]] = {"pure_epsilon": "epsilon"}

    pure_epsilon: float
    categories: int = 2
    relation: Relation = Relation.REPLACE

    def __init__(
        self,
        epsilon: float,
        categories: int = 2,
        relation: Relation | str = Relation.REPLACE,
    ) -> None:
        self._set(
            pure_epsilon=_validate.real("epsilon", epsilon, above=0),
            categories=_validate.integer("categories", categories, at_least=2),
            relation=Relation.parse(relation),
        )
        if self.relation is not Relation.REPLACE:
            raise RelationMismatch(
                "randomized response speaks of a changed answer, so its relation is 'replace'; "
                f"got {self.relation.value!r}"
            )

    @classmethod
    def two_coin(cls) -> RandomizedResponse:
        """The lectures' survey: heads, the truth; tails, a second coin answers. epsilon = ln 3."""
        return cls(math.log(3.0))

    @property
    def truth_probability(self) -> float:
        """How often the true category is reported."""
        return 1.0 / (1.0 + (self.categories - 1) * math.exp(-self.pure_epsilon))

    def _exact_group(self, size: int, relation: Relation) -> Loss | None:
        # Every record passes through a channel of its own, so a group is a composition.
        return size * self


@final
@dataclass(frozen=True, repr=False, init=False)
class Exponential(Atom):
    """An epsilon-bounded-range selection, such as the exponential mechanism.

    Also report-noisy-max with Gumbel noise (Durfee and Rogers 2019). Epsilon-bounded range
    implies epsilon-DP and epsilon^2/8-zCDP. Its worst pair depends on which outputs are
    compared, so only upper bounds are certified.
    """

    argument_names: ClassVar[dict[str, str]] = {"pure_epsilon": "epsilon"}

    pure_epsilon: float
    relation: Relation = Relation.ADD_REMOVE

    def __init__(self, epsilon: float, relation: Relation | str = Relation.ADD_REMOVE) -> None:
        self._set(
            pure_epsilon=_validate.real("epsilon", epsilon, above=0),
            relation=Relation.parse(relation),
        )

    def _exact_group(self, size: int, relation: Relation) -> Loss | None:
        return Exponential(self.pure_epsilon * size, relation)


@final
@dataclass(frozen=True, repr=False, init=False)
class PureDP(Atom):
    """An epsilon-DP release of which nothing more is known. ``epsilon`` is kept exactly.

    >>> 10 * PureDP(0.1)
    10 * PureDP(epsilon=0.1)
    >>> (10 * PureDP(0.1)).epsilon(delta=0)
    1.0
    """

    argument_names: ClassVar[dict[str, str]] = {"pure_epsilon": "epsilon"}

    pure_epsilon: Fraction
    relation: Relation = Relation.ADD_REMOVE

    def __init__(self, epsilon: Exact, relation: Relation | str = Relation.ADD_REMOVE) -> None:
        self._set(
            pure_epsilon=_validate.fraction("epsilon", epsilon, at_least=0),
            relation=Relation.parse(relation),
        )

    def _exact_group(self, size: int, relation: Relation) -> Loss | None:
        return PureDP(self.pure_epsilon * size, relation)


@final
@dataclass(frozen=True, repr=False, init=False)
class ApproxDP(Atom):
    """An (epsilon, delta)-DP release of which nothing more is known; kept exactly."""

    argument_names: ClassVar[dict[str, str]] = {
        "claimed_epsilon": "epsilon",
        "claimed_delta": "delta",
    }

    claimed_epsilon: Fraction
    claimed_delta: Fraction
    relation: Relation = Relation.ADD_REMOVE

    def __init__(
        self, epsilon: Exact, delta: Exact, relation: Relation | str = Relation.ADD_REMOVE
    ) -> None:
        self._set(
            claimed_epsilon=_validate.fraction("epsilon", epsilon, at_least=0),
            claimed_delta=_validate.fraction("delta", delta, at_least=0, at_most=1),
            relation=Relation.parse(relation),
        )


@final
@dataclass(frozen=True, repr=False)
class ZCDP(Atom):
    """A rho-zero-concentrated-DP release (Bun and Steinke 2016); upper bounds only."""

    rho: float
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        self._set(
            rho=_validate.real("rho", self.rho, above=0),
            relation=Relation.parse(self.relation),
        )

    def _exact_group(self, size: int, relation: Relation) -> Loss | None:
        return ZCDP(self.rho * size**2, relation)


@final
@dataclass(frozen=True, repr=False)
class GDP(Atom):
    """A mu-Gaussian-DP release (Dong, Roth and Su 2022): dominated by N(mu, 1) against N(0, 1)."""

    mu: float
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        self._set(
            mu=_validate.real("mu", self.mu, at_least=1e-150, at_most=1e150),
            relation=Relation.parse(self.relation),
        )

    def as_gaussian(self) -> Gaussian:
        """The Gaussian with this mu under the same relation."""
        changes = 2.0 if self.relation is Relation.REPLACE else 1.0
        return Gaussian(changes / self.mu, self.relation)

    def _exact_group(self, size: int, relation: Relation) -> Loss | None:
        return GDP(self.mu * size, relation)


@final
@dataclass(frozen=True, repr=False)
class RenyiDP(Atom):
    """A Renyi-DP curve known at finitely many orders; upper bounds only (S8)."""

    orders: tuple[float, ...]
    epsilons: tuple[float, ...]
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        orders = tuple(_validate.real("orders", order, above=1) for order in self.orders)
        epsilons = tuple(_validate.real("epsilons", value, at_least=0) for value in self.epsilons)
        if not orders or len(orders) != len(epsilons):
            raise InvalidValue("epsilons", self.epsilons, f"as many values as orders {orders}")
        if len(set(orders)) != len(orders):
            raise InvalidValue("orders", self.orders, "distinct orders")
        pairs = sorted(zip(orders, epsilons, strict=True))
        self._set(
            orders=tuple(order for order, _ in pairs),
            epsilons=tuple(value for _, value in pairs),
            relation=Relation.parse(self.relation),
        )


@final
@dataclass(frozen=True, repr=False)
class FinitePair(Atom):
    """The pair of output distributions of one mechanism on two neighbours.

    Either distribution may belong to either data set, anew in every release: each release
    counts as the pair whose profile is the larger one of both orders
    (:func:`discreet.privacy.curves.worst_order`). With ``oriented`` P belongs to the same data
    set in every release, under ``add_remove`` to the one with the unit; both directions of the
    whole plan still count. The caller asserts that no other neighbours are worse.
    """

    p: tuple[float, ...]
    q: tuple[float, ...]
    relation: Relation = Relation.ADD_REMOVE
    oriented: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.oriented, bool):
            raise InvalidValue("oriented", self.oriented, "True or False")
        p, q = _distribution("P", self.p), _distribution("Q", self.q)
        if len(p) != len(q):
            raise InvalidValue("Q", self.q, f"as many probabilities as P has ({len(p)})")
        pairs = sorted((a, b) for a, b in zip(p, q, strict=True) if a > 0 or b > 0)
        self._set(
            p=tuple(a for a, _ in pairs),
            q=tuple(b for _, b in pairs),
            relation=Relation.parse(self.relation),
        )


def from_pair(
    P: Sequence[float],  # noqa: N803 - the distributions are called P and Q everywhere
    Q: Sequence[float],  # noqa: N803
    *,
    relation: Relation | str = Relation.ADD_REMOVE,
    oriented: bool = False,
) -> FinitePair:
    """The loss of a mechanism whose worst neighbours give the finite distributions P and Q.

    In ``n * from_pair(P, Q)`` each release may have P on either side. Pass ``oriented=True`` if
    P belongs to the same data set in all releases (under ``add_remove`` to the one with the
    unit): then they cost less.

    >>> pair, same_way = [0.9, 0.1], from_pair([0.9, 0.1], [0.5, 0.5], oriented=True)
    >>> (2 * same_way).delta(epsilon=1) < (2 * from_pair(pair, [0.5, 0.5])).delta(epsilon=1)
    True
    """
    return FinitePair(tuple(P), tuple(Q), Relation.parse(relation), oriented)


def _distribution(argument: str, values: Sequence[float] | np.ndarray) -> list[float]:
    numbers = [_validate.real(argument, value, at_least=0, at_most=1) for value in values]
    if not numbers or abs(math.fsum(numbers) - 1.0) > 1e-12:
        raise InvalidValue(argument, values, "probabilities that sum to 1 within 1e-12")
    return numbers
