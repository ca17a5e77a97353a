"""Selections: of bounded range, such as the exponential mechanism, and the best of several runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, final

import numpy as np

from discreet import _validate
from discreet._rounding import as_written
from discreet.privacy._loss import Loss, Relation, check_loss, largest_loss, wrap
from discreet.privacy._pair import Pair, Resolution, hull_of_profile
from discreet.privacy._renyi import (
    Array,
    Listed,
    Spectrum,
    curve,
    log_moments,
    response_spectrum,
    sampled_ratio,
    scanned_rho,
)

_RANGE_CELLS = 256
# Orders from 1.02 to about a million at which the second divergence of a choice is tried.
_TRIED_ORDERS = 1.0 + np.geomspace(0.02, 1e6, 160)


@final
@dataclass(frozen=True, repr=False, init=False)
class Exponential(Listed):
    """An epsilon-bounded-range selection, such as the exponential mechanism.

    Also report-noisy-max with Gumbel noise (Durfee and Rogers 2019). Epsilon-bounded range
    implies epsilon-DP and epsilon^2/8-zCDP. Its worst pair depends on which outputs are
    compared, so only upper bounds are certified.

    Parameters
    ----------
    epsilon : float
        The length of the interval that holds all losses.
    relation : Relation or str
        What neighbours are.
    """

    argument_names: ClassVar[dict[str, str]] = {"pure_epsilon": "epsilon"}

    pure_epsilon: float
    relation: Relation = Relation.ADD_REMOVE

    def __init__(self, epsilon: float, relation: Relation | str = Relation.ADD_REMOVE) -> None:
        self._set(pure_epsilon=epsilon, relation=relation)

    def check(self) -> None:
        self._set(
            pure_epsilon=_validate.real("epsilon", self.pure_epsilon, above=0, at_most=1e300),
        )

    def exact_group(self, size: int, relation: Relation) -> Loss:
        return Exponential(self.pure_epsilon * size, relation)

    @property
    def tight(self) -> bool:
        return False

    def pair(self, resolution: Resolution) -> Pair:
        """Return the hull of the profile over all intervals [t - epsilon, t] of losses.

        It is (e^{epsilon/2} - e^{eps/2})^2 / (e^epsilon - 1) for |eps| <= epsilon (Dong, Durfee
        and Rogers 2020).
        """
        epsilon = self.pure_epsilon
        grid = np.linspace(0.0, epsilon, max(resolution.cells, 64))
        delta = np.expm1(0.5 * (grid - epsilon)) ** 2 / -math.expm1(-epsilon)
        return Pair.of_hull(hull_of_profile(grid, delta))

    def spectra(self) -> tuple[Spectrum, ...]:
        return (response_spectrum(self.pure_epsilon),)

    def renyi(self, orders: Array) -> Array:
        return _bounded_range_divergence(orders, self.pure_epsilon)

    def sampled_renyi(self, orders: Array, rate: float, records: int = 1) -> Array:
        dominated = super().sampled_renyi(orders, rate, records)
        return np.minimum(dominated, _sampled_divergence(orders, self.pure_epsilon, rate=rate))

    def claim(self) -> tuple[Fraction, Fraction]:
        return as_written(self.pure_epsilon), Fraction(0)

    def zcdp(self) -> float:
        """Return epsilon^2 / 8 (Cesar and Rogers 2021), or a scan of the curve if that is less."""
        quadratic = self.pure_epsilon * self.pure_epsilon / 8.0
        if self.pure_epsilon < 1.0:
            return quadratic
        return min(quadratic, scanned_rho(self, self.pure_epsilon))


@final
@dataclass(frozen=True, repr=False)
class BestOf(Loss):
    """The best of a random number of runs of one loss; build it with ``.best_of(mean, shape)``.

    Papernot and Steinke 2022, theorems 2 and 6. The number K of runs is drawn before the first one,
    independently of the data, and stays secret, as does everything but the best run. Let e(a)
    be the Renyi curve of one run. If K is truncated negative binomial with the parameters
    ``shape`` = eta > -1 and gamma, then for every order b the best run has at order a

        e(a) + (1 + eta) ((1 - 1/b) e(b) + log(1 / gamma) / b) + log(mean) / (a - 1).

    Shape 1 is the geometric law, shape 0 the logarithmic one. If K is Poisson, the middle term is
    ``mean`` times delta of one run at epsilon log(1 + 1 / (a - 1)).
    """

    base: Loss
    mean: float
    shape: float | str = 1.0

    def check(self) -> None:
        check_loss("base", self.base)
        mean = _validate.real("mean", self.mean, at_least=1, at_most=1e12)
        shape = self.shape
        if shape != "poisson":
            shape = _validate.real("shape", shape, above=-1, at_most=1e3)
        self._set(mean=mean, shape=shape)

    @property
    def relation(self) -> Relation:
        return self.base.relation

    def __repr__(self) -> str:
        return f"{wrap(self.base)}.best_of(mean={self.mean!r}, shape={self.shape!r})"

    def renyi(self, orders: Array) -> Array:
        once = curve(self.base, orders)
        several = math.log(self.mean) / (orders - 1.0)
        if isinstance(self.shape, str):
            from discreet.privacy._accountants import delta_curve

            at = np.log1p(1.0 / (orders - 1.0))
            order = np.argsort(at)
            deltas = np.empty_like(at)
            deltas[order] = delta_curve(self.base, at[order])
            bound: Array = (once + self.mean * deltas + several) * (1.0 + 1e-12)
            return bound
        second = _second_run(self.base, self.mean, self.shape)
        total: Array = (once + (1.0 + self.shape) * second + several) * (1.0 + 1e-12)
        return total

    def claim(self) -> tuple[Fraction, Fraction] | None:
        """Return (2 + eta) epsilon where one run is pure: the limit of large orders."""
        claim = self.base.claim()
        if claim is None or claim[1] > 0 or isinstance(self.shape, str):
            return None
        return claim[0] * (2 + Fraction(self.shape)), Fraction(0)

    def exact_group(self, size: int, relation: Relation) -> None:
        self.base.exact_group(size, relation)  # raises where a run has no group bound

    def sampling_refusal(self, records: int) -> str | None:
        return f"{self!r} is a choice among whole runs; sample inside a run instead"


@lru_cache(maxsize=64)
def _second_run(base: Loss, mean: float, shape: float) -> float:
    """Return the least (1 - 1/b) e(b) + log(1 / gamma) / b of the orders that are tried."""
    log_gamma = log_stopping(mean, shape)
    tried = curve(base, _TRIED_ORDERS)
    second = (1.0 - 1.0 / _TRIED_ORDERS) * tried + log_gamma / _TRIED_ORDERS
    return min(float(np.min(second)), log_gamma, largest_loss(base))


def log_stopping(mean: float, shape: float) -> float:
    """Return log(1 / gamma) of the truncated negative binomial law with this mean, rounded up.

    The mean is 1 / gamma for shape 1, (1/gamma - 1) / log(1/gamma) for shape 0 and otherwise
    eta (1 - gamma) / (gamma (1 - gamma^eta)); it grows with log(1 / gamma). Near shape -1 gamma
    may be far below the smallest float.
    """

    def log_share(log: float) -> float:
        return math.log(-math.expm1(-log))

    def log_mean(log: float) -> float:
        size = abs(shape)
        rest = math.log(log) if size < 1e-30 else log_share(size * log) - math.log(size)
        return min(1.0, 1.0 + shape) * log + log_share(log) - rest

    low, high = 0.0, 1e-12
    above = math.log(mean) + 1e-12  # what the logarithms may lose
    while log_mean(high) <= above:
        high *= 2.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if log_mean(middle) <= above:
            low = middle
        else:
            high = middle
    return high


def _bounded_range_divergence(orders: Array, epsilon: float) -> Array:
    """Return the tight D_a of epsilon-bounded range: losses that lie in some [t - eps, t].

    Given t, the two-point pair on the ends maximises every convex moment. The best t is
    eps - log(a (1 - e^(-(a-1) eps)) / ((a-1) (1 - e^(-a eps)))). For tiny a eps the bound
    a eps^2 / 8 is used (Cesar and Rogers 2021), from which it cannot be told apart.
    """
    lower = np.expm1(-(orders - 1.0) * epsilon) / (orders - 1.0)
    upper = np.expm1(-orders * epsilon) / orders
    top = np.clip(epsilon - np.log(lower / upper), 0.0, epsilon)
    moments = _two_point_moments(orders, top, top - epsilon, 1.0)
    quadratic = orders * (epsilon * epsilon / 8.0)
    tiny = orders * epsilon < 1e-6
    return np.where(tiny, quadratic, np.minimum(quadratic, moments / (orders - 1.0)))


def _sampled_divergence(orders: Array, epsilon: float, *, rate: float) -> Array:
    """Return an upper bound for a Poisson-sampled epsilon-bounded-range release.

    The end t is confined to one of many cells [c, c + w]; there the losses lie in
    [c - eps, c + w], whose two-point pair dominates. The maximum over the cells is certified
    and at most about 2 / 256 too large.
    """
    edges = np.linspace(0.0, epsilon, _RANGE_CELLS + 1)
    high, low = np.tile(edges[1:], len(orders)), np.tile(edges[:-1] - epsilon, len(orders))
    every = np.repeat(orders, _RANGE_CELLS)
    best = np.maximum(
        _two_point_moments(every, high, low, rate), _two_point_moments(1.0 - every, high, low, rate)
    )
    worst: Array = np.max(best.reshape(len(orders), _RANGE_CELLS), axis=1)
    return worst / (orders - 1.0)


def _two_point_moments(powers: Array, high: Array, low: Array, rate: float) -> Array:
    """log E (1 + rate (P/Q - 1))^power for the pair whose loss is high >= 0 or low <= 0."""
    span = -np.expm1(low - high)
    with np.errstate(divide="ignore"):
        # P(high) solves p e^high + (1 - p) e^low = 1.
        log_high = np.log(-np.expm1(low)) - high - np.log(span)
        log_low = np.log(-np.expm1(-high)) - np.log(span)
    ratios = np.stack([high, low], axis=1).ravel()
    spectrum = Spectrum.from_losses(np.stack([log_high, log_low], axis=1).ravel(), ratios)
    gain, log_gain = sampled_ratio(spectrum, rate)
    counts = np.full(len(powers), 2)
    return log_moments(powers, counts, spectrum.log_weight, gain, log_gain)
