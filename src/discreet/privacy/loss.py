"""The algebra of privacy losses.

A loss is an immutable description of what a release reveals, not a number:

>>> from discreet.privacy import Gaussian, Laplace
>>> step = Gaussian(noise_multiplier=1.1).poisson(rate=256 / 60_000)
>>> run = 14_062 * step + Laplace(scale=20.0)
>>> run
Laplace(scale=20.0) + 14062 * Gaussian(noise_multiplier=1.1).poisson(rate=0.004266666666666667)

Losses compose (``a + b``, ``n * a``), are amplified by sampling
(``.poisson``, ``.sample_without_replacement``), scale to groups (``.group``) and
are read by accountants (``.epsilon`` and friends). Composition speaks of one
plan that was declared beforehand; for losses that are chosen after seeing
answers use :class:`discreet.privacy.Filter`.

Every class here is either abstract (:class:`Loss`) or final.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable, RelationMismatch
from discreet.privacy.relation import Relation, require_same

if TYPE_CHECKING:
    from discreet.privacy.meaning import PosteriorBounds

__all__ = [
    "ACCOUNTANTS",
    "Bounds",
    "Composition",
    "Grouped",
    "Loss",
    "PoissonSampled",
    "SampledWithoutReplacement",
]

ACCOUNTANTS = ("naive", "advanced", "optimal", "zcdp", "moments", "rdp", "pld", "best")


@final
@dataclass(frozen=True)
class Bounds:
    """A certified bracket: the exact value of the dominating pair lies inside.

    ``tolerance_met`` is false when the bracket is wider than was asked for, and
    ``note`` then says why; both numbers are valid all the same.
    """

    lower: float
    upper: float
    tolerance_met: bool = True
    note: str = ""

    @property
    def width(self) -> float:
        """How far apart the two bounds are."""
        return self.upper - self.lower

    def __iter__(self) -> Iterator[float]:
        return iter((self.lower, self.upper))


class Loss(ABC):
    """What a release reveals about one unit, in the worst case over neighbours.

    Subclasses are frozen data classes: hashable, equal by value, and written to
    JSON by :func:`discreet.privacy.to_json`.
    """

    @property
    @abstractmethod
    def relation(self) -> Relation:
        """The neighbouring relation that this loss speaks of."""

    # --- combinators -----------------------------------------------------------------

    def __add__(self, other: object) -> Loss:
        if not isinstance(other, Loss):
            return NotImplemented
        return compose([(self, 1), (other, 1)])

    def __radd__(self, other: object) -> Loss:
        # sum() starts from the integer 0, which stands for "nothing released yet".
        if isinstance(other, int) and not isinstance(other, bool) and other == 0:
            return self
        return NotImplemented

    def __mul__(self, times: object) -> Loss:
        return compose([(self, _validate.integer("times", times, at_least=1))])

    __rmul__ = __mul__

    def poisson(self, *, rate: float) -> Loss:
        """The loss when each record enters with probability ``rate``, independently.

        Proved here from add_remove to add_remove (S6). The number of records drawn must
        not be used as a public normaliser. ``rate`` 1 is the loss itself.
        """
        return poisson_sample(self, rate)

    def sample_without_replacement(self, *, sample: int, population: int) -> Loss:
        """The loss on a uniform subset of fixed size, under ``replace`` (S6).

        ``population`` is public under this relation. The dominating pair is not tight, so
        only upper bounds are certified.
        """
        size = _validate.integer("sample", sample, at_least=1)
        total = _validate.integer("population", population, at_least=size)
        return self if size == total else SampledWithoutReplacement(self, size, total)

    def group(self, size: int, *, relation: Relation | str | None = None) -> Loss:
        """The loss for ``size`` records that belong to one unit (S2).

        Exact for atoms whose group loss is known (Gaussian, Laplace, pure, ...) and for
        Poisson-sampled Gaussians; otherwise the generic bound on the whole loss. Under
        add_remove the records of the unit come and go together. Pass
        ``relation="replace"`` with ``size=2`` (or any even size) to turn an add_remove
        loss into a replace one: k removals and k additions replace k records.
        """
        count, target = _check_group(self, size, self.relation if relation is None else relation)
        if count == 1:
            return self
        exact = self._exact_group(count, target)
        return Grouped(self, count, target) if exact is None else exact

    def _exact_group(self, size: int, relation: Relation) -> Loss | None:
        """The exact loss for a group, or ``None`` where only the generic bound is known."""
        return None

    # --- readings --------------------------------------------------------------------

    def epsilon(self, *, delta: float, accountant: str = "best") -> float:
        """The smallest certified epsilon at ``delta``: always an upper bound.

        ``accountant`` is one of :data:`ACCOUNTANTS`; one that does not cover this loss
        raises ``NotApplicable`` and says why. Infinite where no finite epsilon holds.
        """
        from discreet.privacy import account

        return account.epsilon(self, delta=delta, accountant=accountant)

    def epsilon_bounds(self, *, delta: float, tolerance: float | None = None) -> Bounds:
        """A bracket around the exact epsilon of the dominating pair (S9).

        ``tolerance`` is the width asked for, relative to epsilon; by default 1e-3
        relative or 1e-6 absolute, whichever is larger.
        """
        from discreet.privacy import account

        return account.epsilon_bounds(self, delta=delta, tolerance=tolerance)

    def delta(self, *, epsilon: float) -> float:
        """The smallest certified delta at ``epsilon``: always an upper bound."""
        return self.delta_bounds(epsilon=epsilon).upper

    def delta_bounds(self, *, epsilon: float) -> Bounds:
        """A bracket around the exact delta of the dominating pair (S9)."""
        from discreet.privacy import account

        return account.delta_bounds(self, epsilon=epsilon)

    def rdp(self, orders: Sequence[float] | np.ndarray) -> np.ndarray:
        """Renyi divergence bounds at the given orders (> 1), both directions (S8)."""
        from discreet.privacy import moments

        return moments.rdp(self, orders)

    def tradeoff(self, fpr: float | np.ndarray) -> Any:
        """The best true-positive rate any attacker can have at a false-positive rate."""
        from discreet.privacy import account

        return account.tradeoff(self, fpr)

    def advantage(self) -> float:
        """The best TPR - FPR of a membership attacker: delta at epsilon 0."""
        return self.delta(epsilon=0.0)

    def posterior(self, *, prior: float, failure_probability: float = 1e-6) -> PosteriorBounds:
        """Where an attacker with this prior may end up (S1).

        Where the loss is bounded the interval holds always; otherwise it holds except with
        ``failure_probability`` over the randomness of the release.
        """
        from discreet.privacy import account

        return account.posterior(self, prior=prior, failure_probability=failure_probability)


@final
@dataclass(frozen=True, repr=False)
class Composition(Loss):
    """Several losses of one declared plan; build it with ``+`` and ``*``.

    ``parts`` holds each distinct loss with its count, in a canonical order, so that
    ``a + b == b + a`` and ``a + a == 2 * a``.
    """

    parts: tuple[tuple[Loss, int], ...]

    def __post_init__(self) -> None:
        counts = _merged(self.parts)
        if sum(counts.values()) == 1:
            raise InvalidValue("parts", self.parts, "several releases; one loss stands for itself")
        ordered = sorted(counts.items(), key=lambda item: _order(item[0]))
        object.__setattr__(self, "parts", tuple(ordered))

    @property
    def relation(self) -> Relation:
        return self.parts[0][0].relation

    def __repr__(self) -> str:
        return " + ".join(repr(loss) if n == 1 else f"{n} * {loss!r}" for loss, n in self.parts)

    def _exact_group(self, size: int, relation: Relation) -> Loss | None:
        grouped = [(loss._exact_group(size, relation), n) for loss, n in self.parts]
        exact = [(loss, n) for loss, n in grouped if loss is not None]
        return compose(exact) if len(exact) == len(grouped) else None


def compose(parts: Iterable[tuple[Loss, int]]) -> Loss:
    """Flatten, merge and order losses into one; a single loss stays itself."""
    counts = _merged(parts)
    if sum(counts.values()) == 1:
        return next(iter(counts))
    return Composition(tuple(counts.items()))


def _merged(parts: Iterable[tuple[Loss, int]]) -> dict[Loss, int]:
    """Each distinct loss of one relation, with its count."""
    counts: dict[Loss, int] = {}
    for loss, times in parts:
        n = _validate.integer("count", times, at_least=1)
        inner = loss.parts if isinstance(loss, Composition) else ((_a_loss("parts", loss), 1),)
        for part, m in inner:
            counts[part] = counts.get(part, 0) + n * m
    if not counts:
        raise InvalidValue("parts", (), "at least one loss")
    first = next(iter(counts))
    for part in counts:
        require_same(first.relation, part.relation)
    return counts


@lru_cache(maxsize=4096)
def _order(loss: Loss) -> tuple[int, str, str]:
    text = repr(loss)
    return len(text), text, type(loss).__name__


@final
@dataclass(frozen=True, repr=False)
class PoissonSampled(Loss):
    """A loss on a Poisson sample; build it with ``.poisson(rate=)``.

    ``records`` is the number of records of one unit, each sampled on its own: the pair
    is then the binomial mixture of shifts (only for a Gaussian base; Ganesh 2024).
    """

    base: Loss
    rate: float
    records: int = 1

    def __post_init__(self) -> None:
        from discreet.privacy.atoms import GDP

        rate = _validate.real("rate", self.rate, above=0, below=1)
        records = _validate.integer("records", self.records, at_least=1)
        base = self.base.as_gaussian() if isinstance(self.base, GDP) else self.base
        _check_sampling(base, records)
        for name, value in (("base", base), ("rate", rate), ("records", records)):
            object.__setattr__(self, name, value)

    @property
    def relation(self) -> Relation:
        return Relation.ADD_REMOVE

    def __repr__(self) -> str:
        text = f"{_wrapped(self.base)}.poisson(rate={self.rate!r})"
        return text if self.records == 1 else f"{text}.group({self.records})"

    def _exact_group(self, size: int, relation: Relation) -> Loss | None:
        from discreet.privacy.atoms import Gaussian

        if relation is Relation.ADD_REMOVE and isinstance(self.base, Gaussian):
            return PoissonSampled(self.base, self.rate, self.records * size)
        return None


def _check_sampling(base: Loss, records: int) -> None:
    """Refuse what no theorem gives (S6): each record of a unit is drawn on its own."""
    from discreet.privacy.atoms import ZCDP, Atom, Gaussian, RenyiDP

    if _a_loss("base", base).relation is not Relation.ADD_REMOVE:
        raise RelationMismatch(
            f"Poisson amplification needs a loss under 'add_remove', got {base!r} under "
            f"{base.relation.value!r} (S6); sample without replacement, or state the loss "
            "for one added or removed record"
        )
    if isinstance(base, (ZCDP, RenyiDP)):
        raise NotApplicable(
            f"{base!r} does not determine what Poisson sampling does to it (S8): give the "
            "mechanism's own loss, such as Gaussian(noise_multiplier=...)"
        )
    if not isinstance(base, Atom):
        raise NotApplicable(
            f"the pair of {base!r} on one common Poisson sample is not available; sample "
            "each atom, or describe the joint release by one atom"
        )
    if records > 1 and not isinstance(base, Gaussian):
        raise NotApplicable(
            f"{records} sampled records of one unit have a known pair for a Gaussian only, not "
            f"for {base!r}; write .poisson(rate=...).group({records}), which bounds it"
        )


def poisson_sample(base: Loss, rate: float) -> Loss:
    """See :meth:`Loss.poisson`."""
    from discreet.privacy.atoms import GDP, Gaussian

    probability = _validate.real("rate", rate, above=0, at_most=1)
    if probability == 1.0:
        return base
    if isinstance(base, PoissonSampled) and base.records == 1:
        return PoissonSampled(base.base, _product_rounded_up(base.rate, probability))
    if (
        isinstance(base, Composition)
        and base.relation is Relation.ADD_REMOVE
        and all(isinstance(a, Gaussian | GDP) for a, _ in base.parts)
    ):
        # Gaussian releases on one common sample are one Gaussian release.
        square = math.fsum(n * a.mu**2 for a, n in base.parts if isinstance(a, Gaussian | GDP))
        return PoissonSampled(Gaussian(1.0 / (math.sqrt(square) * (1.0 + 1e-15))), probability)
    return PoissonSampled(base, probability)


def _product_rounded_up(first: float, second: float) -> float:
    # A product that underflows to a rate of zero would be a release that costs nothing.
    product = first * second
    exact = Fraction(first) * Fraction(second)
    return product if Fraction(product) >= exact else math.nextafter(product, 1.0)


@final
@dataclass(frozen=True, repr=False)
class SampledWithoutReplacement(Loss):
    """A loss on a uniform subset of fixed size; upper bounds only."""

    base: Loss
    sample: int
    population: int

    def __post_init__(self) -> None:
        size = _validate.integer("sample", self.sample, at_least=1)
        total = _validate.integer("population", self.population, at_least=size + 1)
        if _a_loss("base", self.base).relation is not Relation.REPLACE:
            raise RelationMismatch(
                "sampling without replacement amplifies a loss under 'replace' (S6), got "
                f"{self.base!r} under {self.base.relation.value!r}; state the loss of one "
                "replaced record"
            )
        object.__setattr__(self, "sample", size)
        object.__setattr__(self, "population", total)

    @property
    def relation(self) -> Relation:
        return Relation.REPLACE

    @property
    def rate(self) -> float:
        """The share of the population that is drawn."""
        return self.sample / self.population

    def __repr__(self) -> str:
        return (
            f"{_wrapped(self.base)}.sample_without_replacement("
            f"sample={self.sample}, population={self.population})"
        )


@final
@dataclass(frozen=True, repr=False)
class Grouped(Loss):
    """The generic group bound on a whole loss (S2, tight form); upper bounds only."""

    base: Loss
    size: int
    target: Relation

    def __post_init__(self) -> None:
        count, target = _check_group(_a_loss("base", self.base), self.size, self.target)
        if count == 1:
            raise InvalidValue("size", self.size, "an integer with 2 <= size")
        object.__setattr__(self, "size", count)
        object.__setattr__(self, "target", target)

    @property
    def relation(self) -> Relation:
        return self.target

    def __repr__(self) -> str:
        extra = "" if self.target is self.base.relation else f", relation={self.target.value!r}"
        return f"{_wrapped(self.base)}.group({self.size}{extra})"

    def _exact_group(self, size: int, relation: Relation) -> Loss | None:
        return Grouped(self.base, self.size * size, relation)


def _check_group(base: Loss, size: object, relation: object) -> tuple[int, Relation]:
    """The size and the relation of a group of records, or an error if there is no such group."""
    count, target = _validate.integer("size", size, at_least=1), Relation.parse(relation)
    if target is not base.relation:
        if target is Relation.ADD_REMOVE:
            raise RelationMismatch(
                "there is no way from a loss under 'replace' to one under 'add_remove': "
                "a guarantee for changed records says nothing about their number"
            )
        if count % 2:
            raise InvalidValue("size", size, "an even number when add_remove becomes replace")
    return count, target


def _a_loss(argument: str, value: object) -> Loss:
    if not isinstance(value, Loss):
        raise InvalidValue(argument, value, "a loss from discreet.privacy")
    return value


def _wrapped(loss: Loss) -> str:
    return f"({loss!r})" if isinstance(loss, Composition) else repr(loss)
