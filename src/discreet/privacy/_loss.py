"""The contract of a privacy loss, and the algebra of losses.

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

**Write your own.** An atom is a frozen data class with ``check()`` and one of ``pair(resolution)``
or ``renyi(orders)``: each has a default made from the other. Everything else (claim, zCDP, groups,
JSON) follows, and may be overridden where a closed form is sharper. Accountants know only what
this module declares. docs/accounting.md has an example.
"""

from __future__ import annotations

import math
from abc import ABCMeta, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, final

from discreet import _validate
from discreet._html import show_bounds, show_loss
from discreet._rounding import round_up
from discreet.errors import InvalidValue, NotApplicable, RelationMismatch

if TYPE_CHECKING:
    import numpy as np

    from discreet.privacy._pair import Array, Pair, Resolution
    from discreet.privacy.theorems import PosteriorBounds

ACCOUNTANTS = ("naive", "advanced", "optimal", "zcdp", "moments", "rdp", "pld", "best")

Exact = int | float | str | Decimal | Fraction

MOST = 10**15  # releases, records and units beyond this would be rounded as floats
DEEPEST = 64  # losses inside one another: what is built can be written and read again

KINDS: dict[str, type[Loss]] = {}  # every kind by the name of its class, its name in JSON too


class Relation(StrEnum):
    """The neighbouring relation that a guarantee speaks of: which two data sets must look alike.

    ``add_remove``
        One unit is present in one data set and absent from the other. The number of
        units is itself private.
    ``replace``
        One unit is changed; the number of units is public.
    ``zero_out``
        One unit is exchanged for one that contributes nothing; the number of units is public.
        For noise that a curator adds this is the pair of ``add_remove``. Noise that the units
        bring along, and that a removed unit takes with it, has a guarantee under ``zero_out`` only.

    The *unit* is whatever the caller counts as one: a record, or a person whose records are
    capped. ``loss.group(k)`` speaks of a unit that owns ``k`` records. The two relations are never
    mixed silently. A loss under ``add_remove`` becomes one under ``replace`` by
    ``loss.group(2, relation="replace")``, because a replacement is one removal and one addition.
    Gaussian noise of a curator under ``add_remove`` is declared ``zero_out`` by
    ``loss.group(1, relation="zero_out")``. There is no way back. Losses, filters, ledgers and
    federated plans know ``zero_out``; mechanisms and the plans of a curator refuse it.

    >>> Relation.parse("replace")
    <Relation.REPLACE: 'replace'>
    """

    ADD_REMOVE = "add_remove"
    REPLACE = "replace"
    ZERO_OUT = "zero_out"

    @classmethod
    def parse(cls, value: object, *, zero_out: bool = False) -> Relation:
        """Return the relation named by ``value``, or raise ``InvalidValue``.

        Parameters
        ----------
        value
            A relation or its name.
        zero_out
            Whether the caller knows ``zero_out``.

        Returns
        -------
        Relation
            The relation.

        Raises
        ------
        InvalidValue
            If it names none, or one that the caller does not know.
        """
        known = tuple(member.value for member in cls if zero_out or member is not cls.ZERO_OUT)
        return cls(_validate.one_of("relation", value, known))


def require_same(first: Relation, second: Relation) -> Relation:
    """Return the common relation of two losses, or raise ``RelationMismatch``."""
    if first is not second:
        raise RelationMismatch(
            f"cannot combine a loss under {first.value!r} with one under {second.value!r}; "
            "convert add_remove to replace with .group(2, relation='replace') "
            "(there is no way back from replace)"
        )
    return first


@final
@dataclass(frozen=True)
class Bounds:
    """A certified bracket: the exact value of the dominating pair lies inside.

    ``tolerance_met`` is false when the bracket is wider than was asked for, as ``note`` explains.
    """

    lower: float
    upper: float
    tolerance_met: bool = True
    note: str = ""
    _repr_html_ = show_bounds

    @property
    def width(self) -> float:
        """How far apart the two bounds are."""
        return self.upper - self.lower

    def __iter__(self) -> Iterator[float]:
        return iter((self.lower, self.upper))


class _Checked(ABCMeta):
    """Calls ``check()`` after every constructor, so that a loss that exists has a theorem."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        loss = super().__call__(*args, **kwargs)
        loss.parse_relation()
        loss.check()
        loss._set(_levels=_count_levels(loss))
        return loss


def _count_levels(loss: Loss) -> int:
    """Return how many losses are inside one another; raise for more than can be read back."""
    values = list(vars(loss).values())
    lists = [value for value in values if isinstance(value, tuple) and len(value) > 0]
    values += [part[0] for value in lists if isinstance(value[0], tuple) for part in value]
    levels = 1 + max((value._levels for value in values if isinstance(value, Loss)), default=0)
    if levels > DEEPEST:
        raise InvalidValue("loss", type(loss).__name__, f"losses nested at most {DEEPEST} deep")
    return levels


class Loss(metaclass=_Checked):
    """What a release reveals about one unit, in the worst case over neighbours.

    Subclasses are frozen data classes: hashable, equal by value, and written to
    JSON by :func:`discreet.privacy.to_json` under the name of their class.
    """

    def __init_subclass__(cls, *, abstract: bool = False) -> None:
        super().__init_subclass__()
        if not cls.__module__.startswith("discreet."):
            from discreet.privacy import __all__ as taken

            if cls.__name__ in taken:
                raise TypeError(f"discreet.privacy has a {cls.__name__}: choose another name")
        if not abstract:
            KINDS[cls.__name__] = cls

    # Whether the repr is a sum, which stands in brackets inside another expression.
    is_sum: ClassVar[bool] = False
    # How many losses are inside one another, this one included; set after :meth:`check`.
    _levels: int
    _repr_html_ = show_loss

    @property
    @abstractmethod
    def relation(self) -> Relation:
        """The neighbouring relation that this loss speaks of."""

    def check(self) -> None:
        """After every constructor: refuse what no theorem covers, bring the rest to one form."""

    def parse_relation(self) -> None:
        """Turn the name of a relation into the relation; called before :meth:`check`."""

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    # --- combinators -----------------------------------------------------------------

    def __add__(self, other: object) -> Loss:
        from discreet.privacy._composition import compose

        if not isinstance(other, Loss):
            return NotImplemented
        return compose([(self, 1), (other, 1)])

    def __radd__(self, other: object) -> Loss:
        # sum() starts from the integer 0, which stands for "nothing released yet".
        if isinstance(other, int) and not isinstance(other, bool) and other == 0:
            return self
        return NotImplemented

    def __mul__(self, times: object) -> Loss:
        from discreet.privacy._composition import compose

        return compose([(self, _validate.integer("times", times, at_least=1, at_most=MOST))])

    __rmul__ = __mul__

    def poisson(
        self, *, rate: float, at_most: int | None = None, population: int | None = None
    ) -> Loss:
        """Return the loss when each record enters with probability ``rate``, independently.

        The number of records drawn must not be used as a public normaliser.

        Parameters
        ----------
        rate
            The probability, above 0 and at most 1; 1 gives the loss itself.
        at_most
            How many records a sample may have; of a larger one a uniform subset is used.
        population
            With ``at_most``: how many records there are, the larger of two neighbours. It must
            be public.

        Returns
        -------
        Loss
            The loss of the sampled release, under the same relation.

        Raises
        ------
        RelationMismatch
            If the loss is under replace and not one Gaussian.
        NotApplicable
            If no theorem says what sampling does to this loss.
        """
        from discreet.privacy._sampling import CappedPoisson

        probability = _validate.real("rate", rate, above=0, at_most=1)
        if (at_most is None) != (population is None):
            raise InvalidValue("at_most", at_most, "together with the population that it caps")
        if at_most is not None and population is not None:
            return CappedPoisson(self, probability, at_most, population)
        return self if probability == 1.0 else self.sampled(probability)

    def sample_without_replacement(self, *, sample: int, population: int) -> Loss:
        """Return the loss on a uniform subset of fixed size, under ``replace``.

        The dominating pair is not tight; only for Gaussian noise is there a lower bound too.

        Parameters
        ----------
        sample
            The number of records drawn.
        population
            The number of records there are, which is public under this relation.

        Returns
        -------
        Loss
            The loss of the sampled release, or the loss itself if everything is drawn.

        Raises
        ------
        RelationMismatch
            If the loss is not under replace.
        """
        from discreet.privacy._sampling import SampledWithoutReplacement

        size = _validate.integer("sample", sample, at_least=1, at_most=MOST)
        total = _validate.integer("population", population, at_least=size, at_most=MOST)
        return self if size == total else SampledWithoutReplacement(self, size, total)

    def shuffled(self, *, population: int) -> Loss:
        """Return what one report costs when reports of ``population`` people are shuffled.

        All use a randomizer of this epsilon; a trusted shuffler hides who sent what, and when.

        Parameters
        ----------
        population
            How many honest reports are certainly in the batch; 1 gives the loss itself.

        Returns
        -------
        Loss
            The loss of the shuffled batch, under replace.

        Raises
        ------
        RelationMismatch, NotApplicable
            If the loss is not under replace, or has no finite epsilon at delta 0.
        """
        from discreet.privacy._shuffling import Shuffled

        total = _validate.integer("population", population, at_least=1, at_most=MOST)
        return self if total == 1 else Shuffled(self, total)

    def group(self, size: int, *, relation: Relation | str | None = None) -> Loss:
        """Return the loss for ``size`` records that belong to one unit.

        Exact for atoms whose group loss is known (Gaussian, Laplace, pure, ...) and for
        Poisson-sampled Gaussians; otherwise the generic bound on the whole loss. Under
        add_remove the records of the unit come and go together.

        Parameters
        ----------
        size
            The number of records.
        relation
            ``"replace"`` with an even size turns an add_remove loss into a replace one:
            k removals and k additions replace k records. ``"zero_out"`` declares Gaussian noise
            under add_remove as zero_out. By default the relation stays.

        Returns
        -------
        Loss
            The loss of the group.

        Raises
        ------
        RelationMismatch
            If a replace loss is asked to become an add_remove one.
        """
        from discreet.privacy._composition import Grouped

        count, target = check_group(self, size, self.relation if relation is None else relation)
        if count == 1 and target is self.relation:
            return self
        exact = self.exact_group(count, target)
        return Grouped(self, count, target) if exact is None else exact

    def best_of(self, mean: float, shape: float | str = 1.0) -> Loss:
        """Return the loss of publishing the best of a random number of runs of this loss.

        This loss must cover all that one run computes, its result and its score. The number of
        runs is drawn before the first one and stays secret. A fixed number K is not covered:
        publishing the best of K runs costs ``K * loss``.

        Parameters
        ----------
        mean
            How many runs are expected, at least 1; 1 gives the loss itself.
        shape
            Of the truncated negative binomial law: 1 is geometric, 0 logarithmic; at least -1.
            ``math.inf`` or ``"poisson"`` is the Poisson law, with which there may be no run.

        Returns
        -------
        Loss
            The loss of the choice; upper bounds only.

        Raises
        ------
        InvalidValue
            If there is no such law.
        """
        from discreet.privacy._selection import BestOf

        expected = _validate.real("mean", mean, at_least=1)
        law = "poisson" if shape == math.inf else shape
        return self if expected == 1.0 and law != "poisson" else BestOf(self, expected, law)

    # --- the contract ----------------------------------------------------------------
    # One of pair and renyi is enough; whatever else is overridden must not be above its default.

    def pair(self, resolution: Resolution) -> Pair:
        """Return the pair of one release: P with the unit against Q without it.

        By default a pair that dominates everything with the curve of :meth:`renyi`.

        Parameters
        ----------
        resolution
            How finely, and around which tilt, the pair is to be seen; any cells are valid.

        Returns
        -------
        Pair
            Its cells, and whether both directions have the same profile.
        """
        from discreet.privacy import _renyi

        if type(self).renyi is Loss.renyi:
            raise NotApplicable(
                f"{self!r} has no privacy-loss distribution here; nothing is assumed about it"
            )
        return _renyi.curve_pair([(self, 1)])

    def renyi(self, orders: Array) -> Array:
        """Return bounds on the Renyi divergence, the larger direction.

        By default the moments of a pair that dominates :meth:`pair`.

        Parameters
        ----------
        orders
            Numbers above 1.

        Returns
        -------
        numpy.ndarray
            A bound for each order.
        """
        from discreet.privacy import _renyi

        if not self.has_own_pair:
            raise NotApplicable(f"no Renyi bound is known for {self!r}")
        return _renyi.pair_divergence(orders, self.pair)

    @property
    def has_own_pair(self) -> bool:
        """Whether more is known than a Renyi curve."""
        return type(self).pair is not Loss.pair

    @property
    def tight(self) -> bool:
        """Whether the pair is the exact one, so that lower bounds hold too."""
        return self.has_own_pair

    def claim(self) -> tuple[Fraction, Fraction] | None:
        """Return the (epsilon, delta) that the loss states by itself, or ``None`` for a curve.

        With delta 0 it is the largest privacy loss (:func:`largest_loss`), which also bounds the
        Renyi divergence of every order. Ledgers compare it exactly. Parameters that the caller
        wrote as decimals are read as these decimals; whatever is computed is rounded up.
        """
        from discreet.privacy import _pair

        return _pair.largest_claim(self.pair(_pair.ROUGH)) if self.has_own_pair else None

    def zcdp(self) -> float:
        """Return the least rho known for which the loss is rho-zCDP.

        A loss is rho-zCDP when its Renyi divergence is at most rho times the order, at every
        order (Bun and Steinke 2016). Exact for Gaussian, Laplace and pure losses.

        Returns
        -------
        float
            An upper bound on rho.

        Raises
        ------
        NotApplicable
            If no rho is known.

        Examples
        --------
        >>> from discreet.privacy import Gaussian
        >>> (4 * Gaussian(noise_multiplier=2.0)).zcdp()
        0.5
        """
        from discreet.privacy import _renyi

        return _renyi.bounded_rho(self, largest_loss(self))

    def gaussian_mu(self) -> float | None:
        """Return mu if the release is exactly mu-GDP, as Gaussian noise is, else ``None``."""
        return None

    @property
    def is_gaussian_noise(self) -> bool:
        """Whether all of it is Gaussian noise on a sum, to which an absent record adds nothing."""
        return False

    def exact_group(self, size: int, relation: Relation) -> Loss | None:
        """Return the exact loss for a group, or ``None`` where only the generic bound is known.

        Raises ``NotApplicable`` where no bound is.
        """
        return None

    def unoriented(self) -> Loss:
        """Return the loss where either data set may be the one with the unit."""
        return self

    def sampling_refusal(self, records: int) -> str | None:
        """Say why ``records`` Poisson-sampled records of one unit have no pair, if so."""
        if not self.has_own_pair:
            return (
                f"{self!r} does not determine what Poisson sampling does to it: give the "
                "mechanism's own loss, such as Gaussian(noise_multiplier=...)"
            )
        if records > 1:
            return (
                f"{records} sampled records of one unit have a known pair for a Gaussian only, "
                f"not for {self!r}; write .poisson(rate=...).group({records}), which bounds it"
            )
        return None

    def sampled(self, rate: float) -> Loss:
        """Return the Poisson-sampled loss at a rate below 1; see :meth:`poisson`."""
        from discreet.privacy._sampling import PoissonSampled

        return PoissonSampled(self, rate)

    def sampled_pair(self, resolution: Resolution, rate: float, records: int = 1) -> Pair:
        """Return the pair of ``records`` Poisson-sampled records; sampling is linear in it."""
        return self.pair(resolution).sampled(rate)

    def sampled_renyi(self, orders: Array, rate: float, records: int = 1) -> Array:
        """Return bounds on the Renyi divergence on a Poisson sample, the larger direction."""
        from discreet.privacy import _renyi

        return _renyi.pair_divergence(orders, lambda seen: self.sampled_pair(seen, rate, records))

    def subset_renyi(self, orders: Array, rate: float) -> Array:
        """Return bounds on the Renyi divergence on a subset of fixed size, a share ``rate``."""
        from discreet.privacy import _renyi

        return _renyi.subset_amplification(self, orders, rate)

    def sampled_gaussian(self) -> tuple[float, float] | None:
        """Return rate and mu of one Poisson-sampled record under Gaussian noise, else ``None``."""
        return None

    def touched_mass(self) -> float:
        """Return the probability that the release looks at a unit: delta is at most this."""
        return 1.0

    def known_orders(self) -> Sequence[float]:
        """Return the orders at which the Renyi curve ends or bends."""
        return ()

    def within_float_range(self) -> Loss:
        """Return the loss, or beyond the range of the numerics one that dominates it.

        Noise can be so small that a density underflows at the other mean, or so large that a
        loss is lost in rounding. More noise and less sampling only help, so smaller noise and a
        larger rate dominate.
        """
        return self

    def beyond_sampling(self) -> Loss | None:
        """Return what stands for the sampled loss where noise is too small for its numerics."""
        return None

    def closed_epsilon(self, delta: float) -> Bounds | None:
        """Return the bracket of epsilon where there is a closed form, else ``None``."""
        return None

    def closed_delta(self, epsilon: float) -> Bounds | None:
        """Return the bracket of delta where there is a closed form, else ``None``."""
        return None

    def closed_curve(self, epsilons: Array) -> Array | None:
        """Return upper bounds on delta at many epsilons where there is a closed form."""
        return None

    # --- readings --------------------------------------------------------------------

    def epsilon(self, *, delta: float, accountant: str = "best") -> float:
        """Return the smallest certified epsilon at ``delta``: always an upper bound.

        Parameters
        ----------
        delta
            At least 0 and below 1.
        accountant
            One of :data:`discreet.privacy.ACCOUNTANTS`.

        Returns
        -------
        float
            Epsilon; infinite where no finite one holds.

        Raises
        ------
        NotApplicable
            If the accountant does not cover this loss; the message says why.
        """
        from discreet.privacy import _accountants

        return _accountants.epsilon(self, delta=delta, accountant=accountant)

    def epsilon_bounds(self, *, delta: float, tolerance: float | None = None) -> Bounds:
        """Return a bracket around the exact epsilon of the dominating pair.

        Parameters
        ----------
        delta
            At least 0 and below 1.
        tolerance
            The width asked for, relative to epsilon; by default 1e-3 relative or 1e-6
            absolute, whichever is larger.

        Returns
        -------
        Bounds
            Both bounds, and whether the tolerance was met.

        Raises
        ------
        NotApplicable
            If no pair is known for a part of the loss.
        """
        from discreet.privacy import _accountants

        return _accountants.epsilon_bounds(self, delta=delta, tolerance=tolerance)

    def delta(self, *, epsilon: float) -> float:
        """Return the smallest certified delta at ``epsilon`` >= 0: always an upper bound."""
        return self.delta_bounds(epsilon=epsilon).upper

    def delta_bounds(self, *, epsilon: float) -> Bounds:
        """Return a bracket around the exact delta of the dominating pair.

        Parameters
        ----------
        epsilon
            At least 0.

        Returns
        -------
        Bounds
            Both bounds, and whether they are close.

        Raises
        ------
        NotApplicable
            If no pair is known for a part of the loss.
        """
        from discreet.privacy import _accountants

        return _accountants.delta_bounds(self, epsilon=epsilon)

    def rdp(self, orders: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return upper bounds on the Renyi divergence between neighbours, in both directions.

        Parameters
        ----------
        orders
            Numbers above 1.

        Returns
        -------
        numpy.ndarray
            A bound for each order; infinite where nothing finite is known.

        Raises
        ------
        NotApplicable
            If the loss has no Renyi bound at all.

        Examples
        --------
        >>> from discreet.privacy import Gaussian
        >>> Gaussian(noise_multiplier=2.0).rdp([2, 8]).tolist()
        [0.25, 1.0]
        """
        from discreet.privacy import _renyi

        return _renyi.rdp(self, orders)

    def tradeoff(self, fpr: float | np.ndarray) -> Any:
        """Return the best true-positive rate any attacker can have at a false-positive rate.

        Parameters
        ----------
        fpr
            A number between 0 and 1, or an array of them.

        Returns
        -------
        float or numpy.ndarray
            An upper bound for each false-positive rate.
        """
        from discreet.privacy import _accountants

        return _accountants.tradeoff(self, fpr)

    def advantage(self) -> float:
        """Return the best TPR - FPR of a membership attacker: delta at epsilon 0."""
        return self.delta(epsilon=0.0)

    def posterior(self, *, prior: float, failure_probability: float = 1e-6) -> PosteriorBounds:
        """Return where the belief of an attacker with this prior may end up.

        Parameters
        ----------
        prior
            The belief before the release, between 0 and 1.
        failure_probability
            Where the loss is unbounded, the interval may fail with this probability over the
            randomness of the release; where it is bounded, the interval holds always.

        Returns
        -------
        PosteriorBounds
            The interval and the probability that it fails.
        """
        from discreet.privacy import _accountants

        return _accountants.posterior(self, prior=prior, failure_probability=failure_probability)


class Atom(Loss, abstract=True):
    """Abstract base: a loss with named parameters and a relation field.

    The relation defaults to ``add_remove``, except for local randomizers, which are ``replace``
    by nature, and is shown in the ``repr`` whenever it is not the default.
    """

    default_relation: ClassVar[Relation] = Relation.ADD_REMOVE
    # Constructor arguments whose field has another name, because Loss.epsilon and
    # Loss.delta are the readings of a loss.
    argument_names: ClassVar[dict[str, str]] = {}

    def parse_relation(self) -> None:
        self._set(relation=Relation.parse(self.relation, zero_out=True))

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


def check_group(base: Loss, size: object, relation: object) -> tuple[int, Relation]:
    """Return the size and the relation of a group of records, or raise if there is none."""
    count = _validate.integer("size", size, at_least=1, at_most=MOST)
    target = Relation.parse(relation, zero_out=True)
    if target is not base.relation:
        if target is Relation.ADD_REMOVE:
            raise RelationMismatch(
                f"there is no way from a loss under {base.relation.value!r} to one under "
                "'add_remove': a guarantee for changed records says nothing about their number"
            )
        if target is Relation.ZERO_OUT and not (
            base.relation is Relation.ADD_REMOVE and base.is_gaussian_noise
        ):
            raise RelationMismatch(
                "only Gaussian noise that a curator adds, under 'add_remove', can be declared "
                f"'zero_out', not {base!r}"
            )
        if target is Relation.REPLACE and count % 2:
            raise InvalidValue("size", size, "an even number when add_remove becomes replace")
    return count, target


def wrap(loss: Loss) -> str:
    """Show a loss as a part of an expression."""
    return f"({loss!r})" if loss.is_sum else repr(loss)


def check_loss(argument: str, value: object) -> Loss:
    """Return ``value`` if it is a loss, or raise ``InvalidValue``."""
    if not isinstance(value, Loss):
        raise InvalidValue(argument, value, "a loss from discreet.privacy")
    return value


@lru_cache(maxsize=1024)
def largest_loss(loss: Loss) -> float:
    """Return the smallest known epsilon at delta 0; infinite where the loss is unbounded.

    >>> from discreet.privacy import PureDP
    >>> largest_loss(10 * PureDP(0.1))
    1.0
    """
    claim = loss.claim()
    return math.inf if claim is None or claim[1] > 0 else round_up(claim[0])
