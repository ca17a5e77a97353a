"""Gaussian noise, continuous and on the integers, and Gaussian differential privacy."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np
from scipy import special

from discreet import _validate
from discreet.errors import InvalidValue, RelationMismatch
from discreet.privacy._claims import ZCDP
from discreet.privacy._loss import Atom, Loss, Relation
from discreet.privacy._pair import Cells, Pair, Resolution
from discreet.privacy._renyi import Array

if TYPE_CHECKING:
    from discreet.privacy._correlation import Strategy

SMALLEST_MU = 1e-9
LARGEST_SAMPLED_MU = 40.0
_MOST_POINTS = 4096
_LARGE_STDDEV = 2.0e4
_WIDEST_LATTICE = 1000.0


# The numerics of normal mixtures are read on first use: describing a loss does not wait for them.


class _Normal(Atom, abstract=True):
    """Abstract base: what Gaussian noise and a claim of mu-GDP have in common."""

    @abstractmethod
    def gaussian_mu(self) -> float: ...

    def pair(self, resolution: Resolution) -> Pair:
        from discreet.privacy import _normal_mixtures as mixtures

        return Pair.exact(mixtures.shifted_cells(self.gaussian_mu(), resolution), reflected=True)

    def renyi(self, orders: Array) -> Array:
        return orders * self.zcdp()

    def claim(self) -> None:
        return None

    def zcdp(self) -> float:
        mu = self.gaussian_mu()
        return mu * mu / 2.0

    def allocate(self, *, batches: int, participations: int = 1, steps: int | None = None) -> Loss:
        """Return the loss of an epoch in which each record takes part in a random step.

        The choice is drawn anew in every epoch and stays secret, and so do the sizes of the
        batches: ``10 * Gaussian(1.0).allocate(batches=50)`` are ten epochs. If each record keeps
        its step in all E epochs, the loss is one epoch of ``Gaussian(noise / sqrt(E))``.

        Parameters
        ----------
        batches
            Into how many steps the epoch is divided.
        participations
            In how many of these steps each record takes part; all sets are equally likely.
        steps
            How many steps are carried out, if that was fixed beforehand; by default all.

        Returns
        -------
        Loss
            The loss of one epoch; under replace it is that of every participation.

        Raises
        ------
        InvalidValue
            If there are more participations or steps than batches.
        """
        from discreet.privacy._allocation import Allocated

        total = _validate.integer("batches", batches, at_least=1)
        taken = _validate.integer("participations", participations, at_least=1, at_most=total)
        if steps is not None:
            _validate.integer("steps", steps, at_least=1, at_most=total)
        if taken == total:
            return (total if steps is None else steps) * self
        return Allocated(self, total, taken, steps)

    def correlated(
        self,
        strategy: Strategy,
        *,
        steps: int,
        separation: int | None = None,
        participations: int | None = None,
        rate: float | None = None,
    ) -> Loss:
        """Return the loss of all steps of a run with this noise, correlated by a strategy.

        Without ``rate`` the steps of each record are fixed beforehand, for instance one batch
        that it is in for all epochs. With it the records are divided into ``separation`` groups
        that take turns, and are Poisson-sampled at their turn.

        Parameters
        ----------
        strategy
            How the noise of the steps is correlated.
        steps
            How many there are.
        separation
            How far two steps of one record are apart at least: the number of groups, or of
            batches in an epoch. May be left out with a rate, for as many groups as bands, or
            where ``participations=1``.
        participations
            How often a record takes part at most; by default as often as fits.
        rate
            The probability with which a record is drawn when it is its group's turn.

        Returns
        -------
        Loss
            That of the whole run.

        Raises
        ------
        NotApplicable
            If the sensitivity of the strategy, or its amplification, is not known.
        """
        from discreet.privacy._correlation import Correlated, Strategy, check_shape

        if not isinstance(strategy, Strategy):
            raise InvalidValue("strategy", strategy, "a discreet.privacy.Strategy")
        if separation is None and rate is not None:
            separation = strategy.bands
        apart, times = check_shape(steps, separation, participations)
        share = 1.0 if rate is None else rate
        return Correlated(self, strategy.coefficients, steps, apart, times, share, strategy.inverse)

    def sampling_refusal(self, records: int) -> str | None:
        return None

    def beyond_sampling(self) -> Loss | None:
        return self if self.gaussian_mu() > LARGEST_SAMPLED_MU else None


@final
@dataclass(frozen=True, repr=False)
class Gaussian(_Normal):
    """Gaussian noise of standard deviation ``noise_multiplier`` times the clip norm.

    The clip norm is the most that one added or removed record contributes in L2
    norm. Under ``replace`` one record leaves and another enters, so the means are
    2 apart and mu = 2 / noise_multiplier.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation over clip norm.
    relation : Relation or str
        What neighbours are.
    """

    noise_multiplier: float
    relation: Relation = Relation.ADD_REMOVE

    def check(self) -> None:
        self._set(
            noise_multiplier=_validate.real(
                "noise_multiplier", self.noise_multiplier, at_least=1e-150, at_most=1e150
            ),
        )

    @property
    def mu(self) -> float:
        """The Gaussian-DP parameter: distance of the means over the deviation."""
        changes = 2.0 if self.relation is Relation.REPLACE else 1.0
        return changes / self.noise_multiplier

    @property
    def is_gaussian_noise(self) -> bool:
        return True

    def exact_group(self, size: int, relation: Relation) -> Loss:
        replaced = relation is Relation.REPLACE and self.relation is not Relation.REPLACE
        changed = 2 if replaced else 1
        return Gaussian(self.noise_multiplier * changed / size, relation)

    def gaussian_mu(self) -> float:
        return self.mu

    def sampled_pair(self, resolution: Resolution, rate: float, records: int = 1) -> Pair:
        from discreet.privacy import _normal_mixtures as mixtures

        if records > 1:
            return mixtures.sampled_group_pair(self.mu, rate, records, resolution)
        return Pair.exact(mixtures.shifted_cells(self.mu, resolution, rate=rate))

    def sampled_renyi(self, orders: Array, rate: float, records: int = 1) -> Array:
        from discreet.privacy import _normal_mixtures as mixtures

        if records > 1:
            return mixtures.binomial_gaussian_divergence(orders, self.mu, rate, records)
        return mixtures.poisson_gaussian_divergence(orders, self.mu, rate)

    def subset_renyi(self, orders: Array, rate: float) -> Array:
        from discreet.privacy import _normal_mixtures as mixtures

        return mixtures.without_replacement_gaussian_divergence(orders, self.mu, rate)


@final
@dataclass(frozen=True, repr=False)
class GDP(_Normal):
    """A mu-Gaussian-DP release (Dong, Roth and Su 2022): dominated by N(mu, 1) against N(0, 1).

    Parameters
    ----------
    mu : float
        From 1e-150 to 1e150.
    relation : Relation or str
        What neighbours are.
    """

    mu: float
    relation: Relation = Relation.ADD_REMOVE

    def check(self) -> None:
        self._set(
            mu=_validate.real("mu", self.mu, at_least=1e-150, at_most=1e150),
        )

    def as_gaussian(self) -> Gaussian:
        """Return the Gaussian with this mu under the same relation."""
        changes = 2.0 if self.relation is Relation.REPLACE else 1.0
        return Gaussian(changes / self.mu, self.relation)

    def exact_group(self, size: int, relation: Relation) -> Loss:
        return GDP(self.mu * size, relation)

    def gaussian_mu(self) -> float:
        return self.mu

    def sampled_pair(self, resolution: Resolution, rate: float, records: int = 1) -> Pair:
        return self.as_gaussian().sampled_pair(resolution, rate, records)

    def sampled_renyi(self, orders: Array, rate: float, records: int = 1) -> Array:
        return self.as_gaussian().sampled_renyi(orders, rate, records)

    def subset_renyi(self, orders: Array, rate: float) -> Array:
        return self.as_gaussian().subset_renyi(orders, rate)


@final
@dataclass(frozen=True, repr=False)
class GaussianMixture(Atom):
    """Gaussian noise on a contribution of random size: N(0, s^2) against a mixture of N(c_j, s^2).

    For a person with capped, unequal contributions: ``shifts`` are the sizes that what the person
    adds in one release may have, in clip norms, and ``weights`` how likely each is, by sampling
    that does not depend on the data. Vectors of these lengths are covered by numbers on one line:
    that moves them together, and equal signs together raise every hockey stick. Larger shifts
    dominate smaller ones.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation over clip norm.
    shifts : tuple of float
        At least 0 and distinct, in any order.
    weights : tuple of float
        Their probabilities.
    relation : Relation or str
        Only add_remove or zero_out.
    """

    noise_multiplier: float
    shifts: tuple[float, ...]
    weights: tuple[float, ...]
    relation: Relation = Relation.ADD_REMOVE

    def check(self) -> None:
        noise = _validate.real("noise_multiplier", self.noise_multiplier, above=0, at_most=1e150)
        given = _validate.several("shifts", self.shifts, "the sizes of a contribution")
        shifts = [_validate.real("shifts", value, at_least=0, at_most=1e150) for value in given]
        weighed = _validate.several(
            "weights", self.weights, "a probability for each shift", count=len(shifts)
        )
        weights = [_validate.real("weights", value, at_least=0, at_most=1) for value in weighed]
        if not shifts or abs(math.fsum(weights) - 1.0) > 1e-12:
            raise InvalidValue("weights", self.weights, "probabilities that sum to 1 within 1e-12")
        known = sorted((c, w) for c, w in zip(shifts, weights, strict=True) if w > 0)
        if len({c for c, _ in known}) < len(known) or known[-1][0] == 0.0:
            raise InvalidValue("shifts", self.shifts, "distinct numbers, the largest above 0")
        if known[-1][0] / noise > LARGEST_SAMPLED_MU or known[-1][0] / noise < SMALLEST_MU:
            raise InvalidValue(
                "shifts",
                self.shifts,
                f"at most {LARGEST_SAMPLED_MU:g} times the noise, and more than none",
            )
        if self.relation is Relation.REPLACE:
            raise RelationMismatch("a mixture of shifts speaks of a unit that comes or goes")
        self._set(
            noise_multiplier=noise,
            shifts=tuple(c for c, _ in known),
            weights=tuple(w for _, w in known),
        )

    def _scale(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.weights), np.array(self.shifts) / self.noise_multiplier

    def pair(self, resolution: Resolution) -> Pair:
        from discreet.privacy import _normal_mixtures as mixtures

        weights, shifts = self._scale()
        only = len(shifts) == 1
        return Pair.exact(mixtures.group_cells(weights, shifts, resolution), reflected=only)

    def renyi(self, orders: Array) -> Array:
        """Return Minkowski's bound, at most that of the largest shift, in both directions."""
        from discreet.privacy import _normal_mixtures as mixtures

        weights, shifts = self._scale()
        largest: Array = orders * (float(shifts[-1]) ** 2 / 2.0)
        away = np.minimum(mixtures.minkowski(orders, shifts**2, np.log(weights)), largest)
        stays = -math.log(weights[0]) if shifts[0] == 0.0 else math.inf
        return np.asarray(np.maximum(away, np.minimum(largest, stays)))

    def claim(self) -> None:
        return None

    def zcdp(self) -> float:
        return (self.shifts[-1] / self.noise_multiplier) ** 2 / 2.0

    def exact_group(self, size: int, relation: Relation) -> Loss | None:
        return None

    def sampling_refusal(self, records: int) -> str | None:
        return f"{self!r} has its sampling in its weights already"

    def touched_mass(self) -> float:
        if self.shifts[0] > 0.0:
            return 1.0
        # The weights sum to 1 but for rounding, and then the larger of both counts.
        seen = max(1.0 - self.weights[0], math.fsum(self.weights[1:]))
        return min(1.0, seen * (1.0 + 1e-15))


@final
@dataclass(frozen=True, repr=False)
class DiscreteGaussian(Atom):
    """Discrete Gaussian noise, P(x) proportional to exp(-x^2 / (2 stddev^2)), on integers.

    For a scalar query with integer ``sensitivity``. The noise is log-concave, so the
    largest shift dominates every smaller one.

    Parameters
    ----------
    stddev : float
        The parameter of the noise.
    sensitivity : int
        By how much the answer changes at most between neighbours.
    relation : Relation or str
        What neighbours are.
    """

    stddev: float
    sensitivity: int = 1
    relation: Relation = Relation.ADD_REMOVE

    def check(self) -> None:
        self._set(
            stddev=_validate.real("stddev", self.stddev, above=0),
            sensitivity=_validate.integer(
                "sensitivity", self.sensitivity, at_least=1, at_most=10**300
            ),
        )

    def exact_group(self, size: int, relation: Relation) -> Loss:
        return DiscreteGaussian(self.stddev, self.sensitivity * size, relation)

    @property
    def _mu(self) -> float:
        return self.sensitivity / self.stddev

    def pair(self, resolution: Resolution) -> Pair:
        """Return exact sums over integers, or for huge deviations midpoint sums."""
        if self.stddev > _LARGE_STDDEV:
            return replace(self._smooth_pair(resolution, 1.0), reflected=True)
        sigma, shift = self.stddev, self.sensitivity
        reach = float(-special.ndtri(resolution.tail)) + 1.0
        bottom, top = -math.ceil(reach * sigma), shift + math.ceil(reach * sigma)
        x = np.arange(bottom, top + 1, dtype=float)
        q = np.exp(-0.5 * (x / sigma) ** 2)
        p = np.exp(-0.5 * ((x - shift) / sigma) ** 2)
        total = float(q.sum())
        p, q = p / total, q / total
        loss_at = (shift * x - 0.5 * shift**2) / sigma**2
        size = max(1, len(x) // max(_MOST_POINTS, 4 * resolution.cells))
        starts = np.arange(0, len(x), size)
        ends = np.append(starts[1:], len(x)) - 1
        p, q = np.add.reduceat(p, starts), np.add.reduceat(q, starts)
        low, high = loss_at[starts], loss_at[ends]
        with np.errstate(divide="ignore", invalid="ignore"):
            average = np.where((p > 0) & (q > 0), np.log(p / q), low)
        if size == 1:
            average = low
        cells = Cells.points(p, q, np.clip(average, low, high), low=low, high=high)
        tail = float(special.ndtr(-(reach - 1.0)))
        # Dividing by the truncated sum made every mass larger by up to twice the tail.
        side = replace(cells.with_unit, low_tail=tail, high_tail=tail, slack=1e-13 + 4.0 * tail)
        return Pair.exact(replace(cells, with_unit=side, without=side), reflected=True)

    def _smooth_pair(self, resolution: Resolution, rate: float) -> Pair:
        """Return the cells of a Gaussian, with the error of Euler and Maclaurin.

        That is a run of integers against the integral over it.
        """
        from discreet.privacy import _normal_mixtures as mixtures

        reach = float(-special.ndtri(resolution.tail)) + 1.0
        error = (6.0 + reach**2) / self.stddev**2
        cells = mixtures.shifted_cells(self._mu, resolution, rate=rate, lattice=self.stddev)
        with_unit = replace(cells.with_unit, slack=cells.with_unit.slack + error)
        without = replace(cells.without, slack=cells.without.slack + error)
        slack = cells.slack + error
        return Pair.exact(replace(cells, with_unit=with_unit, without=without, slack=slack))

    def sampled_pair(self, resolution: Resolution, rate: float, records: int = 1) -> Pair:
        if self.stddev > _LARGE_STDDEV:
            return self._smooth_pair(resolution, rate)
        return super().sampled_pair(resolution, rate, records)

    def renyi(self, orders: Array) -> Array:
        from discreet.privacy import _normal_mixtures as mixtures

        return mixtures.discrete_gaussian_divergence(orders, self.stddev, self.sensitivity)

    def sampled_renyi(self, orders: Array, rate: float, records: int = 1) -> Array:
        from discreet.privacy import _normal_mixtures as mixtures

        return mixtures.poisson_lattice_divergence(orders, self._mu, rate, self.stddev)

    def subset_renyi(self, orders: Array, rate: float) -> Array:
        from discreet.privacy import _normal_mixtures as mixtures

        if self.stddev > _WIDEST_LATTICE:
            return super().subset_renyi(orders, rate)
        return mixtures.without_replacement_lattice_divergence(orders, self._mu, rate, self.stddev)

    def claim(self) -> None:
        return None

    def zcdp(self) -> float:
        return self._mu * self._mu / 2.0

    def beyond_sampling(self) -> Loss | None:
        if self._mu <= LARGEST_SAMPLED_MU:
            return None
        return ZCDP(0.5 * self._mu * self._mu * (1.0 + 1e-15), self.relation)

    def within_float_range(self) -> Loss:
        return self.beyond_sampling() or self
