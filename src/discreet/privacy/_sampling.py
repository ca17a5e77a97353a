"""Amplification by sampling: a loss on a Poisson sample, or on a subset of fixed size.

The theorems as functions of numbers are in :mod:`discreet.privacy.theorems`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import final

import numpy as np
from scipy import special

from discreet import _validate
from discreet._rounding import as_written, round_up
from discreet.errors import NotApplicable, RelationMismatch
from discreet.privacy._gaussian import GDP, LARGEST_SAMPLED_MU, SMALLEST_MU, Gaussian
from discreet.privacy._loss import (
    MOST,
    Bounds,
    Loss,
    Relation,
    check_loss,
    largest_loss,
    wrap,
)
from discreet.privacy._pair import Pair, Resolution, mirror, orient
from discreet.privacy._renyi import Array, curve

_SMALLEST_RATE = 1e-12
_CLOSED_FORM_ERROR = 1e-9
# Covers the rounding of a claim (a few units in the last place).
_PAD = 1e-12
# Least charge, so that underflow is never free.
_LEAST = 1e-300
# A capped sample of more records is refused: the tails of its size would not be known.
_MOST_RECORDS = 10**9
_BINOMIAL_ERROR = 1e-9


class _Sampled(Loss, abstract=True):
    """Abstract base: a loss that is read on a share ``rate`` of the records."""

    base: Loss

    @property
    def tight(self) -> bool:
        return self.base.tight

    @property
    def is_gaussian_noise(self) -> bool:
        return self.base.is_gaussian_noise

    def zcdp(self) -> float:
        raise NotApplicable(
            f"{self!r} has no useful zCDP bound: sampling lowers the divergence only at small "
            "orders; use the rdp or pld accountant"
        )


@final
@dataclass(frozen=True, repr=False)
class PoissonSampled(_Sampled):
    """A loss on a Poisson sample; build it with ``.poisson(rate=)``.

    The pair is ((1 - rate) Q + rate P, Q), from add_remove to add_remove (Balle, Barthe and
    Gaboardi 2018; Zhu, Dong and Wang 2022). ``records`` is the number of records of one unit, each
    sampled on its own: the pair is then the binomial mixture of shifts (only for a Gaussian base;
    Ganesh 2024). Under replace only a Gaussian has a pair, that of
    :func:`discreet.privacy.theorems.poisson_replace_delta`. Under zero_out Gaussian noise of a
    curator has the pair of add_remove. Any other loss compares the record with a zeroed one, and
    says nothing of the case that neither is drawn.
    """

    base: Loss
    rate: float
    records: int = 1

    def check(self) -> None:
        rate = _validate.real("rate", self.rate, above=0, below=1)
        records = _validate.integer("records", self.records, at_least=1, at_most=MOST)
        base = check_loss("base", self.base)
        if base.relation is Relation.ZERO_OUT and not base.is_gaussian_noise:
            raise NotApplicable(
                "Poisson amplification under 'zero_out' is known for Gaussian noise of a curator "
                f"only, not for {base!r}: it may show whether a zeroed record was drawn"
            )
        if base.relation is not Relation.REPLACE:
            base = base.as_gaussian() if isinstance(base, GDP) else base
        elif not isinstance(base, Gaussian) or records > 1:
            raise RelationMismatch(
                "Poisson amplification under 'replace' is known for one Gaussian record only, got "
                f"{base!r}; sample without replacement, or state the loss for one added or "
                "removed record"
            )
        refusal = base.sampling_refusal(records)
        if refusal is not None:
            raise NotApplicable(refusal)
        self._set(base=base, rate=rate, records=records)

    @property
    def relation(self) -> Relation:
        return self.base.relation

    def __repr__(self) -> str:
        text = f"{self.base!r}.poisson(rate={self.rate!r})"
        return text if self.records == 1 else f"{text}.group({self.records})"

    def sampling_refusal(self, records: int) -> str | None:
        return refuse_common_sample(self)

    def sampled(self, rate: float) -> Loss:
        if self.records > 1:
            return super().sampled(rate)
        # A product that underflows to a rate of zero would be a release that costs nothing.
        product, exact = self.rate * rate, Fraction(self.rate) * Fraction(rate)
        higher = product if Fraction(product) >= exact else math.nextafter(product, 1.0)
        return PoissonSampled(self.base, higher)

    @property
    def _replaced_shift(self) -> float | None:
        """How far a replaced record moves the mean to either side; None under add_remove."""
        mu = self.base.gaussian_mu()
        return None if self.relation is not Relation.REPLACE or mu is None else 0.5 * mu

    def pair(self, resolution: Resolution) -> Pair:
        shift = self._replaced_shift
        if shift is None:
            return self.base.sampled_pair(resolution, self.rate, self.records)
        from discreet.privacy import _normal_mixtures as mixtures

        return Pair.exact(mixtures.replaced_cells(shift, self.rate, resolution), reflected=True)

    def renyi(self, orders: Array) -> Array:
        shift = self._replaced_shift
        if shift is not None:
            from discreet.privacy._composition import Grouped

            # One record leaves and another comes; sampling itself never raises a divergence.
            one = PoissonSampled(Gaussian(1.0 / shift), self.rate)
            group = Grouped(one, 2, Relation.REPLACE).renyi(orders)
            least: Array = np.minimum(group, curve(self.base, orders))
            return least
        limit = math.inf if self.records > 1 else _order_infinity(self.base, self.rate)
        bound: Array = np.minimum(self.base.sampled_renyi(orders, self.rate, self.records), limit)
        return bound

    def claim(self) -> tuple[Fraction, Fraction] | None:
        claim = self.base.claim() if self.records == 1 else None
        return None if claim is None else _amplify(claim, as_written(self.rate))

    def exact_group(self, size: int, relation: Relation) -> Loss | None:
        if relation is not Relation.REPLACE and isinstance(self.base, Gaussian):
            base = replace(self.base, relation=relation)
            return PoissonSampled(base, self.rate, self.records * size)
        return None

    def touched_mass(self) -> float:
        if self.records == 1:
            return self.rate
        mass = -math.expm1(self.records * math.log1p(-self.rate))
        return min(1.0, mass * (1.0 + 1e-14))

    def sampled_gaussian(self) -> tuple[float, float] | None:
        mu = self.base.gaussian_mu()
        one = self.records == 1 and self.relation is not Relation.REPLACE
        return (self.rate, mu) if mu is not None and one else None

    def within_float_range(self) -> Loss:
        beyond = self.base.beyond_sampling()
        if beyond is not None:
            return beyond.group(self.records)
        base, mu = self.base, self.base.gaussian_mu()
        if mu is not None and mu < SMALLEST_MU:
            base = Gaussian(1.0 / SMALLEST_MU, self.relation)
        rate = max(self.rate, _SMALLEST_RATE)
        same = (base, rate) == (self.base, self.rate)
        return self if same else replace(self, base=base, rate=rate)

    def closed_epsilon(self, delta: float) -> Bounds | None:
        """Return the bracket of one sampled Gaussian.

        With a unit removed delta(log(1 + q (e^eps - 1))) is exactly q times the Gaussian's delta at
        eps, and with a unit added it is at most that (Balle, Barthe and Gaboardi 2018).
        """
        from discreet.privacy.theorems import gaussian_epsilon
        from discreet.privacy.theorems._sampling import amplified_epsilon

        known = self.sampled_gaussian()
        if known is None or not SMALLEST_MU <= known[1] <= LARGEST_SAMPLED_MU:
            return None
        rate, mu = known
        share = delta / rate
        if share >= 1.0:
            return Bounds(0.0, 0.0)
        upper = amplified_epsilon(gaussian_epsilon(mu, share * (1.0 - 1e-15)), rate)
        error = _CLOSED_FORM_ERROR * upper + 1e-12 * rate
        return Bounds(max(0.0, upper - error), upper * (1.0 + 1e-14))


@final
@dataclass(frozen=True, repr=False)
class CappedPoisson(_Sampled):
    """Gaussian noise on a Poisson sample of at most ``at_most`` of ``population`` records.

    Build it with ``.poisson(rate=, at_most=, population=)``; of a larger sample a uniform subset
    is used. Let A be the event that the other records alone fill the sample, p its probability.
    It does not depend on this record, so it may as well be shown. Without A the pair is that of a
    Poisson sample. Given A the record is among those used with the probability
    r = (at_most / population) P(Bin(population, rate) > at_most) / p, and then takes the place of
    another: the shift is 2 at most. So the pair is the union of both cases, with the weights 1 - p
    and p; upper bounds only. ``population`` is the larger neighbour's and must be public. So groups
    of replaced records have the generic bound, and groups of removed records have none.
    """

    base: Loss
    rate: float
    at_most: int
    population: int

    def check(self) -> None:
        rate = _validate.real("rate", self.rate, above=0, below=1)
        total = _validate.integer("population", self.population, at_least=1, at_most=_MOST_RECORDS)
        most = _validate.integer("at_most", self.at_most, at_least=1, at_most=total)
        base = check_loss("base", self.base)
        base = base.as_gaussian() if isinstance(base, GDP) else base
        if not isinstance(base, Gaussian):
            raise NotApplicable(
                f"a capped sample has a known pair for a Gaussian only, not {base!r}"
            )
        if base.relation is not Relation.ADD_REMOVE:
            raise RelationMismatch(
                "the pair of a capped sample is known for a record that is added or removed, not "
                f"under {base.relation.value!r}: another one would keep or take its place"
            )
        self._set(base=base, rate=rate, at_most=most, population=total)

    @property
    def relation(self) -> Relation:
        return self.base.relation

    @property
    def is_gaussian_noise(self) -> bool:
        return False  # an absent record makes room for another

    def __repr__(self) -> str:
        caps = f"at_most={self.at_most}, population={self.population}"
        return f"{self.base!r}.poisson(rate={self.rate!r}, {caps})"

    def sampling_refusal(self, records: int) -> str | None:
        return refuse_common_sample(self)

    def _full(self) -> tuple[float, float]:
        """Return how often the others fill the sample, and how often this record is used then."""
        n, most = self.population, self.at_most
        if most == n:
            return 0.0, 1.0
        full = float(special.bdtrc(most - 1, n - 1, self.rate)) * (1.0 + _BINOMIAL_ERROR)
        used = most / n * float(special.bdtrc(most, n, self.rate)) * (1.0 + _BINOMIAL_ERROR)
        # Where both underflow, one is as good as the other.
        return min(full, 1.0), min(1.0, used / full) if full > 1e-290 else 1.0

    def pair(self, resolution: Resolution) -> Pair:
        from discreet.privacy import _normal_mixtures as mixtures

        mu = _mu_of(self.base)
        full, used = self._full()
        plain = mixtures.shifted_cells(mu, resolution, rate=self.rate)
        if full == 0.0:
            return Pair(plain)
        crowded = mixtures.shifted_cells(2.0 * mu, resolution, rate=min(used, 1.0 - 1e-12))
        return Pair(plain.unite(crowded, full, _BINOMIAL_ERROR))

    @property
    def tight(self) -> bool:
        return False  # no data set shows A and has it move the sum by 2

    def renyi(self, orders: Array) -> Array:
        from discreet.privacy import _normal_mixtures as mixtures

        mu = _mu_of(self.base)
        full, used = self._full()
        plain = mixtures.poisson_gaussian_divergence(orders, mu, self.rate)
        if full == 0.0:
            return plain
        crowded = mixtures.poisson_gaussian_divergence(orders, 2.0 * mu, min(used, 1.0 - 1e-12))
        powers = orders - 1.0
        alone = math.log1p(-full) if full < 1.0 else -math.inf
        either = np.logaddexp(alone + powers * plain, math.log(full) + powers * crowded) / powers
        bound: Array = np.minimum(either, curve(self.base, orders) * 4.0) * (1.0 + 1e-12)
        return bound

    def exact_group(self, size: int, relation: Relation) -> None:
        if relation is not Relation.REPLACE:
            raise NotApplicable(
                f"{self!r} speaks of {self.population} records, and without some of them samples "
                "are full less often: the cost for a group of records is not known"
            )

    def claim(self) -> tuple[Fraction, Fraction] | None:
        return None

    def touched_mass(self) -> float:
        return min(1.0, self.rate * (1.0 + 1e-12))

    def within_float_range(self) -> Loss:
        mu = _mu_of(self.base)
        if 2.0 * mu > LARGEST_SAMPLED_MU:
            return self.base.group(2)
        if mu < SMALLEST_MU:
            return replace(self, base=Gaussian(1.0 / SMALLEST_MU, self.relation))
        return self


def _mu_of(base: Loss) -> float:
    mu = base.gaussian_mu()
    assert mu is not None  # the constructor takes a Gaussian only
    return mu


@final
@dataclass(frozen=True, repr=False)
class SampledWithoutReplacement(_Sampled):
    """A loss on a uniform subset of fixed size; lower bounds for Gaussian noise only.

    The profile at eps >= 0 is that of ((1 - r) Q + r P, Q), r the share drawn; it holds in both
    directions. P and Q are the records before and after, in either order (Balle, Barthe and
    Gaboardi 2018).
    """

    base: Loss
    sample: int
    population: int

    def check(self) -> None:
        size = _validate.integer("sample", self.sample, at_least=1, at_most=MOST)
        total = _validate.integer("population", self.population, at_least=size + 1, at_most=MOST)
        if check_loss("base", self.base).relation is not Relation.REPLACE:
            raise RelationMismatch(
                "sampling without replacement amplifies a loss under 'replace', got "
                f"{self.base!r} under {self.base.relation.value!r}; state the loss of one "
                "replaced record"
            )
        self._set(sample=size, population=total)

    @property
    def relation(self) -> Relation:
        return Relation.REPLACE

    @property
    def rate(self) -> float:
        """The share of the population that is drawn."""
        return self.sample / self.population

    @property
    def tight(self) -> bool:
        return False

    def __repr__(self) -> str:
        return (
            f"{wrap(self.base)}.sample_without_replacement("
            f"sample={self.sample}, population={self.population})"
        )

    def sampling_refusal(self, records: int) -> str | None:
        return refuse_common_sample(self)

    def pair(self, resolution: Resolution) -> Pair:
        seen = replace(resolution, swapped=False)
        one_sided = orient(self.base.unoriented().sampled_pair(seen, self.rate), swapped=False)[1]
        return Pair.of_hull(mirror(one_sided))

    def renyi(self, orders: Array) -> Array:
        """Return the better of the amplified curve and no amplification."""
        limit = np.minimum(curve(self.base, orders), _order_infinity(self.base, self.rate))
        bound: Array = np.minimum(limit, self.base.subset_renyi(orders, self.rate))
        return bound

    def claim(self) -> tuple[Fraction, Fraction] | None:
        claim = self.base.claim()
        return None if claim is None else _amplify(claim, Fraction(self.sample, self.population))

    def touched_mass(self) -> float:
        return round_up(Fraction(self.sample, self.population))

    def known_orders(self) -> tuple[float, ...]:
        return tuple(self.base.known_orders())

    def within_float_range(self) -> Loss:
        return self.base.beyond_sampling() or self


def refuse_common_sample(loss: Loss) -> str:
    """Say why several releases on one Poisson sample have no pair."""
    return (
        f"the pair of {loss!r} on one common Poisson sample is not available; sample "
        "each atom, or describe the joint release by one atom"
    )


def _order_infinity(base: Loss, rate: float) -> float:
    """Return the Renyi divergence of order infinity on a sample, which bounds every order."""
    from discreet.privacy.theorems._sampling import amplified_epsilon

    return amplified_epsilon(largest_loss(base), rate) * (1 + 2**-50)


def _amplify(claim: tuple[Fraction, Fraction], rate: Fraction) -> tuple[Fraction, Fraction]:
    """Return (log(1 + rate (e^eps - 1)), rate delta); never above the claim itself."""
    from discreet.privacy.theorems._sampling import amplified_epsilon

    epsilon, delta = claim
    amplified = amplified_epsilon(round_up(epsilon), round_up(rate)) * (1.0 + _PAD)
    if math.isinf(amplified):
        return epsilon, rate * delta
    return min(epsilon, Fraction(max(amplified, _LEAST))), rate * delta
