"""Laplace noise, continuous and on the integers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np
from scipy import special

from discreet import _validate
from discreet._rounding import as_written
from discreet.privacy._loss import Loss, Relation
from discreet.privacy._pair import Cells, Pair, Resolution
from discreet.privacy._renyi import Array, Listed, Spectrum, bounded_rho, exp_excess, log_of_excess

_MOST_POINTS = 4096
_LARGEST_LISTED = 64
_LONGEST_LATTICE = 4096
_PANEL_NODES = 20
_HALVINGS = 34


@final
@dataclass(frozen=True, repr=False)
class Laplace(Listed):
    """Laplace noise of ``scale`` on a query whose L1 sensitivity under the relation is given.

    Parameters
    ----------
    scale : float
        Of the noise.
    sensitivity : float
        The L1 norm of the largest change between neighbours.
    relation : Relation or str
        What neighbours are.
    """

    scale: float
    sensitivity: float = 1.0
    relation: Relation = Relation.ADD_REMOVE

    def check(self) -> None:
        self._set(
            scale=_validate.real("scale", self.scale, above=0),
            sensitivity=_validate.real("sensitivity", self.sensitivity, above=0),
        )

    @property
    def pure_epsilon(self) -> float:
        """The pure guarantee sensitivity / scale."""
        return self.sensitivity / self.scale

    def exact_group(self, size: int, relation: Relation) -> Loss:
        return Laplace(self.scale, self.sensitivity * size, relation)

    def pair(self, resolution: Resolution) -> Pair:
        """Return two points outside the means, where the loss is -epsilon or epsilon, and cells.

        Between the means the loss is linear in the outcome, and the cells are uniform in it.
        """
        epsilon, count = self.pure_epsilon, max(resolution.cells, 16)
        edge = np.linspace(-epsilon, epsilon, count + 1)
        # P has density exp(-(epsilon - l) / 2) / 4 per unit of loss l, Q the mirror image.
        present = 0.5 * np.exp(-(epsilon - edge[1:]) / 2) * -np.expm1(-np.diff(edge) / 2)
        outer = 0.5 * math.exp(-epsilon)
        p = np.concatenate([[outer], present, [0.5]])
        q = np.concatenate([[0.5], present[::-1], [outer]])
        low = np.concatenate([[-epsilon], edge[:-1], [epsilon]])
        high = np.concatenate([[-epsilon], edge[1:], [epsilon]])
        middle = 0.5 * (edge[1:] + edge[:-1])
        average = np.concatenate([[-epsilon], middle, [epsilon]])
        return Pair.exact(Cells.points(p, q, average, low=low, high=high), reflected=True)

    def spectra(self) -> tuple[Spectrum, ...]:
        """Two atoms at -eps and eps, and the density e^(-(l + eps)/2) / 4 between them.

        Gauss-Legendre panels halve towards eps until they resolve e^(order l) for orders up to
        1e10, and towards 0, where one-sided bounds have their kink.
        """
        epsilon = self.pure_epsilon
        if math.isinf(epsilon):
            return (Spectrum.unbounded(),)
        points, weights = special.roots_legendre(_PANEL_NODES)
        near = min(1.0, epsilon) * 0.5 ** np.arange(_HALVINGS)
        plain = np.linspace(-epsilon, epsilon, 2 * math.ceil(min(epsilon, 150.0)) + 1)
        edges = np.unique(np.concatenate((plain, epsilon - near, near, [0.0])))
        half = np.diff(edges) / 2.0
        middle = (edges[1:] + edges[:-1]) / 2.0
        inner = (middle[:, None] + half[:, None] * points).ravel()
        log_inner = (
            np.log(half[:, None] * weights).ravel() - math.log(4.0) - (inner + epsilon) / 2.0
        )
        log_weight = np.concatenate((log_inner, [-math.log(2.0), -epsilon - math.log(2.0)]))
        return (Spectrum.from_losses(log_weight, np.concatenate((inner, [-epsilon, epsilon]))),)

    def renyi(self, orders: Array) -> Array:
        return _laplace_divergence(orders, self.pure_epsilon)

    def claim(self) -> tuple[Fraction, Fraction]:
        return as_written(self.sensitivity) / as_written(self.scale), Fraction(0)

    def zcdp(self) -> float:
        """Return epsilon + e^-epsilon - 1, the divergence of order 1.

        Harrison and Manurangsi 2025. The log-moment is
        log(cosh(y eps) + sinh(y eps) / (2y)) - eps/2 at y = a - 1/2. As a function of y^2 that is
        the log of an entire function of order 1/2 whose zeros are real and negative (they are
        minus the eigenvalues of -u'' = w u, u'(0) = u(0)/2, u(eps) = 0), hence concave.
        """
        epsilon = self.pure_epsilon
        if epsilon < 1e-3:
            return epsilon * epsilon * (0.5 - epsilon / 6.0 + epsilon**2 / 24.0)
        return epsilon + math.expm1(-epsilon)


@final
@dataclass(frozen=True, repr=False)
class DiscreteLaplace(Listed):
    """Two-sided geometric noise, P(x) proportional to exp(-|x| / scale), on integers.

    ``sensitivity`` is an integer: the most that one neighbour changes the (scalar) query.

    Parameters
    ----------
    scale : float
        Of the noise.
    sensitivity : int
        By how much the answer changes at most between neighbours.
    relation : Relation or str
        What neighbours are.
    """

    scale: float
    sensitivity: int = 1
    relation: Relation = Relation.ADD_REMOVE

    def check(self) -> None:
        self._set(
            scale=_validate.real("scale", self.scale, above=0),
            sensitivity=_validate.integer(
                "sensitivity", self.sensitivity, at_least=1, at_most=10**300
            ),
        )

    @property
    def pure_epsilon(self) -> float:
        """The pure guarantee sensitivity / scale."""
        return self.sensitivity / self.scale

    def exact_group(self, size: int, relation: Relation) -> Loss:
        return DiscreteLaplace(self.scale, self.sensitivity * size, relation)

    def pair(self, resolution: Resolution) -> Pair:
        """Return runs of consecutive integers between the two centres; geometric sums are exact."""
        inner = self.sensitivity - 1
        runs = min(inner, max(resolution.cells, 16)) if inner > _MOST_POINTS else inner
        bounds = (
            np.unique(np.round(np.linspace(0, float(inner), runs + 1))) if inner else np.zeros(1)
        )
        first, last = bounds[:-1] + 1, bounds[1:]
        size, scale = float(self.sensitivity), self.scale
        norm = 1.0 + math.exp(-1.0 / scale)
        run = -np.expm1(-(last - first + 1) / scale)
        p = np.concatenate([[math.exp(-size / scale)], np.exp(-(size - last) / scale) * run, [1.0]])
        q = np.concatenate([[1.0], np.exp(-first / scale) * run, [math.exp(-size / scale)]])
        edge = self.pure_epsilon
        low = np.concatenate([[-edge], (2 * first - size) / scale, [edge]])
        high = np.concatenate([[-edge], (2 * last - size) / scale, [edge]])
        average = np.concatenate([[-edge], (first + last - size) / scale, [edge]])
        cells = Cells.points(p / norm, q / norm, average, low=low, high=high)
        return Pair.exact(cells, reflected=True)

    def spectra(self) -> tuple[Spectrum, ...]:
        t, steps = 1.0 / self.scale, self.sensitivity
        if math.isinf(steps * t):
            return (Spectrum.unbounded(),)
        log_share = -math.log1p(math.exp(-t))  # of the noise at or below zero
        log_unit = log_share + math.log(-math.expm1(-t)) if t > 0 else -math.inf
        outer_weights, outer = [log_share, log_share - steps * t], [-steps * t, steps * t]
        if steps <= _LONGEST_LATTICE:
            x = np.arange(1.0, steps)
            inner, log_inner = (2.0 * x - steps) * t, log_unit - x * t
        else:
            inner, log_inner = _dominating_lattice(t, steps, log_share)
        log_weight = np.concatenate((log_inner, outer_weights))
        return (Spectrum.from_losses(log_weight, np.concatenate((inner, outer))),)

    def renyi(self, orders: Array) -> Array:
        if self.sensitivity <= _LARGEST_LISTED:
            return super().renyi(orders)
        return _two_sided_geometric_divergence(orders, self.scale, self.sensitivity)

    def claim(self) -> tuple[Fraction, Fraction]:
        return as_written(self.sensitivity) / as_written(self.scale), Fraction(0)

    def zcdp(self) -> float:
        return bounded_rho(self, self.pure_epsilon * (1 + 2**-52))


def _laplace_divergence(orders: Array, epsilon: float) -> Array:
    """Return D_a of Laplace noise with sensitivity / scale = epsilon (Mironov 2017, table II)."""
    up, down = (orders - 1.0) * epsilon, orders * epsilon
    share = orders / (2.0 * orders - 1.0)
    rest = (orders - 1.0) / (2.0 * orders - 1.0)
    excess = share * exp_excess(np.minimum(up, 1.0)) + rest * exp_excess(-down)
    large = up + np.log(share + rest * np.exp(-up - down))
    return log_of_excess(orders, excess, large, up > 1.0)


def _two_sided_geometric_divergence(orders: Array, scale: float, sensitivity: int) -> Array:
    """Return D_a of discrete Laplace noise, by summing the geometric series.

    With t = 1/scale and eps = sensitivity t the moment is A e^((a-1) eps) + (1-A) e^(-a eps),
    A = sinh(a t) / (2 cosh(t/2) sinh((a - 1/2) t)).
    """
    t = 1.0 / scale
    epsilon = sensitivity / scale
    up, down = (orders - 1.0) * epsilon, orders * epsilon
    bottom = (1.0 + np.exp(-t)) * -np.expm1(-(2.0 * orders - 1.0) * t)
    share = -np.expm1(-2.0 * orders * t) / bottom
    rest = np.exp(-t) * -np.expm1(-2.0 * (orders - 1.0) * t) / bottom
    # (a-1) A - a (1-A) vanishes with t squared: near zero from the series of sinh z - z.
    wide, narrow = np.minimum(orders * t, 1.0), np.minimum((orders - 1.0) * t, 1.0)
    curved = (orders - 1.0) * _sinh_excess(wide) - orders * _sinh_excess(narrow)
    with np.errstate(over="ignore", invalid="ignore"):
        curved = curved / (2.0 * np.cosh(t / 2.0) * np.sinh((orders - 0.5) * t))
    slope = np.where(orders * t < 1.0, curved, (orders - 1.0) * share - orders * rest)
    excess = share * exp_excess(np.minimum(up, 1.0)) + rest * exp_excess(-down) + slope * epsilon
    large = up + np.log(share + rest * np.exp(-up - down))
    return log_of_excess(orders, np.maximum(excess, 0.0), large, up > 1.0)


def _sinh_excess(x: Array) -> Array:
    """sinh(x) - x for 0 <= x <= 1, by its series."""
    square = x * x
    series = np.ones_like(x)
    for k in range(8, 1, -1):
        series = 1.0 + square * series / (2 * k * (2 * k + 1))
    return x * square * series / 6.0


def _dominating_lattice(t: float, steps: int, log_share: float) -> tuple[Array, Array]:
    """Gather runs of lattice points at the two ends of each run, keeping both masses.

    Moving mass outwards with the mean of P/Q unchanged raises every convex moment: the connected
    dots dominate the lattice (Doroshenko et al. 2022).
    """
    cuts = np.unique(np.rint(np.linspace(1.0, steps - 1.0, _LONGEST_LATTICE + 1)))
    first, last = cuts[:-1], cuts[1:] - 1.0
    last[-1] = cuts[-1]
    length = last - first + 1.0
    low, high = (2.0 * first - steps) * t, (2.0 * last - steps) * t
    base = np.expm1(-length * t)
    log_mass = log_share - first * t + np.log(-base)  # under Q: sum of (1-e^-t) e^-xt shares
    # Under P the run weighs sum e^{-(steps - x) t}; relative to Q at the low end the mean of P/Q
    # is e^low times the mean of e^{2 j t}, j = 0 .. length - 1, under weights e^{-j t}.
    mean_over_low = np.exp((length - 1.0) * t)
    span = np.expm1(high - low)
    with np.errstate(divide="ignore", invalid="ignore"):
        upper = np.where(span > 0, (mean_over_low - 1.0) / span, 0.0)
    upper = np.clip(upper, 0.0, 1.0)
    with np.errstate(divide="ignore"):
        weights = np.concatenate((log_mass + np.log1p(-upper), log_mass + np.log(upper)))
    return np.concatenate((low, high)), weights
