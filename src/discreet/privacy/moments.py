"""Renyi divergences of losses, and the accountants that read them: RDP (S8) and moments (S7).

:func:`rdp` is one walk over a loss tree with a handler for each kind of loss. It returns upper
bounds at any real orders above 1, the maximum over both directions; exact for atoms with a known
pair. :func:`rdp_epsilon` and :func:`moments_epsilon` turn the curve into an epsilon. The
zero-concentrated reading lives in :mod:`discreet.privacy.concentrated` and is re-exported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import singledispatch

import numpy as np
from scipy import special

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import renyi, renyi_gaussian
from discreet.privacy.atoms import (
    GDP,
    ZCDP,
    ApproxDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    FinitePair,
    Gaussian,
    Laplace,
    PureDP,
    RandomizedResponse,
    RenyiDP,
)
from discreet.privacy.concentrated import zcdp_epsilon, zcdp_rho
from discreet.privacy.loss import (
    Composition,
    Grouped,
    Loss,
    PoissonSampled,
    SampledWithoutReplacement,
)
from discreet.privacy.renyi import Array
from discreet.privacy.renyi_spectra import envelope, pure_epsilon, spectra

__all__ = ["moments_epsilon", "rdp", "rdp_epsilon", "zcdp_epsilon", "zcdp_rho"]

_SMALLEST_ORDER = 1.0 + 1e-6
_LARGEST_ORDER = 1e7
_WIDEST_LATTICE = 1000.0
_LARGEST_GROUP = 64
_LARGEST_INTEGER_ORDER = 512
_ROUNDING = 2.0**-44  # outweighs the rounding errors and quadrature errors below


def rdp(loss: Loss, orders: float | Sequence[float] | np.ndarray) -> Array:
    """Upper bounds on the Renyi divergence between neighbours, at each order > 1 (S8).

    The bound covers both directions. Infinite where nothing finite is known at an order; a loss
    with no Renyi bound at all raises ``NotApplicable``.

    >>> rdp(Gaussian(noise_multiplier=2.0), [2, 8]).tolist()
    [0.25, 1.0]
    """
    try:
        given = np.asarray(orders, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidValue("orders", orders, "numbers above 1") from None
    flat = given.ravel()
    if not flat.size or not bool(np.all(np.isfinite(flat) & (flat > 1.0))):
        raise InvalidValue("orders", orders, "finite numbers above 1")
    return _curve(loss, flat).reshape(given.shape)


def _curve(loss: Loss, orders: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        bound = np.asarray(_bound(loss, orders), dtype=np.float64)
        # A number that could not be computed is no bound; order infinity bounds every order.
        bound = np.where(np.isnan(bound), np.inf, np.maximum(bound, 0.0))
        return np.minimum(bound, pure_epsilon(loss))


@singledispatch
def _bound(loss: Loss, orders: Array) -> Array:  # noqa: ARG001 - the fallback of the dispatch
    raise NotApplicable(f"no Renyi bound is known for {loss!r}")


@_bound.register
def _(loss: Gaussian, orders: Array) -> Array:
    return orders * (loss.mu * loss.mu / 2.0)


@_bound.register
def _(loss: GDP, orders: Array) -> Array:
    return orders * (loss.mu * loss.mu / 2.0)


@_bound.register
def _(loss: ZCDP, orders: Array) -> Array:
    return orders * loss.rho


@_bound.register
def _(loss: Laplace, orders: Array) -> Array:
    return renyi.laplace_divergence(orders, loss.pure_epsilon)


@_bound.register
def _(loss: DiscreteLaplace, orders: Array) -> Array:
    if loss.sensitivity <= _LARGEST_GROUP:
        return _by_spectra(loss, orders)
    return renyi.two_sided_geometric_divergence(orders, loss.scale, loss.sensitivity)


@_bound.register
def _(loss: DiscreteGaussian, orders: Array) -> Array:
    return renyi_gaussian.discrete_gaussian_divergence(orders, loss.stddev, loss.sensitivity)


@_bound.register
def _(loss: Exponential, orders: Array) -> Array:
    return renyi.bounded_range_divergence(orders, loss.pure_epsilon)


@_bound.register(PureDP)
@_bound.register(ApproxDP)
@_bound.register(RandomizedResponse)
@_bound.register(FinitePair)
def _by_spectra(loss: Loss, orders: Array, *, rate: float = 1.0) -> Array:
    pairs = spectra(loss)
    curves = [renyi.divergence(orders, pair, rate=rate) for pair in pairs]
    worst: Array = np.max(np.stack(curves), axis=0)
    return worst


@_bound.register
def _(loss: RenyiDP, orders: Array) -> Array:
    """The least of two bounds between known orders; infinite above the largest.

    The divergence does not fall with the order, and (order - 1) times it is convex and zero at
    order 1, so it lies below its chords.
    """
    known, values = np.array(loss.orders), np.array(loss.epsilons)
    values = np.minimum.accumulate(values[::-1])[::-1]
    xs = np.concatenate(([1.0], known))
    ys = np.concatenate(([0.0], (known - 1.0) * values))
    chord = np.interp(orders, xs, ys) / (orders - 1.0)
    index = np.searchsorted(known, orders, side="left")
    above = np.append(values, np.inf)[index]
    return np.where(np.isinf(above), above, np.minimum(above, chord))


@_bound.register
def _(loss: Composition, orders: Array) -> Array:
    total = np.zeros_like(orders)
    for part, count in loss.parts:
        total = total + count * _curve(part, orders)
    return total


@_bound.register
def _(loss: PoissonSampled, orders: Array) -> Array:
    base = loss.base
    if isinstance(base, Gaussian):
        if loss.records > 1:
            return renyi_gaussian.binomial_gaussian_divergence(
                orders, base.mu, loss.rate, loss.records
            )
        return renyi_gaussian.poisson_gaussian_divergence(orders, base.mu, loss.rate)
    if isinstance(base, DiscreteGaussian):
        return renyi_gaussian.poisson_lattice_divergence(
            orders, base.sensitivity / base.stddev, loss.rate, base.stddev
        )
    # Mixing with a common part never raises a Renyi divergence (quasi-convexity).
    dominated = np.minimum(_by_spectra(base, orders, rate=loss.rate), _curve(base, orders))
    if isinstance(base, Exponential):
        tighter = renyi.sampled_bounded_range_divergence(orders, base.pure_epsilon, rate=loss.rate)
        return np.minimum(dominated, tighter)
    return dominated


@_bound.register
def _(loss: SampledWithoutReplacement, orders: Array) -> Array:
    """The best of the one-sided bound, Wang, Balle and Kasiviswanathan's, and no amplification."""
    base = loss.base.as_gaussian() if isinstance(loss.base, GDP) else loss.base
    plain = _curve(base, orders)
    if isinstance(base, Gaussian):
        return np.minimum(
            plain,
            renyi_gaussian.without_replacement_gaussian_divergence(orders, base.mu, loss.rate),
        )
    if isinstance(base, DiscreteGaussian) and base.stddev <= _WIDEST_LATTICE:
        mu = base.sensitivity / base.stddev
        return np.minimum(
            plain,
            renyi_gaussian.without_replacement_lattice_divergence(
                orders, mu, loss.rate, base.stddev
            ),
        )
    try:
        pair = envelope(spectra(base))
    except NotApplicable:
        return np.minimum(plain, _ternary_amplification(base, orders, loss.rate))
    return np.minimum(plain, renyi.one_sided_divergence(orders, pair, rate=loss.rate))


def _ternary_amplification(base: Loss, orders: Array, rate: float) -> Array:
    """Theorem 9 of Wang, Balle and Kasiviswanathan (2019), from the base's Renyi curve alone.

    It speaks of integer orders; chords of (order - 1) D join them, since that product is convex.
    """
    usable = orders <= _LARGEST_INTEGER_ORDER
    result = np.full_like(orders, np.inf)
    if not bool(np.any(usable)):
        return result
    top = math.ceil(float(np.max(orders[usable])))
    j = np.arange(2.0, top + 1.0)
    curve = _curve(base, j)
    log_terms = j * math.log(rate) + math.log(2.0) + (j - 1.0) * curve
    log_terms[0] = 2.0 * math.log(rate) + min(
        math.log(2.0) + curve[0], math.log(4.0) + _log_expm1(float(curve[0]))
    )
    log_moments = [0.0]
    for order in range(2, top + 1):
        k = j[: order - 1]
        choose = (
            special.gammaln(order + 1.0)
            - special.gammaln(k + 1.0)
            - special.gammaln(order - k + 1.0)
        )
        log_moments.append(
            float(np.logaddexp(0.0, special.logsumexp(choose + log_terms[: order - 1])))
        )
    chord = np.interp(orders[usable], np.arange(1.0, top + 1.0), log_moments)
    result[usable] = chord / (orders[usable] - 1.0)
    return result


def _log_expm1(x: float) -> float:
    if x <= 0:
        return -math.inf
    return x + math.log(-math.expm1(-x))


@_bound.register
def _(loss: Grouped, orders: Array) -> Array:
    """Group privacy by Hoelder's inequality; see :func:`renyi.group_powers`."""
    size = loss.size
    if size > _LARGEST_GROUP:
        # Every term of the sum is at most the last factor times the first divergence.
        factor = orders * size / (orders * size - size + 1.0)
        return size * factor * _curve(loss.base, orders * size)
    powers = renyi.group_powers(orders, size)
    values = _curve(loss.base, powers.ravel()).reshape(powers.shape)
    bound: Array = np.sum(powers[:, :1] / powers * values, axis=1)
    return bound


def rdp_epsilon(loss: Loss, delta: float) -> float:
    """The least epsilon that the Renyi curve proves at ``delta`` (S8, tight conversion).

    D_a + ln((a-1)/a) - (ln delta + ln a)/(a-1) holds at every order a > 1 (Canonne, Kamath and
    Steinke 2020, proposition 12), and its limit at infinity is the pure epsilon. It is
    unimodal in a, because (a-1) times it is convex, so the orders are searched rather than listed.

    >>> step = Gaussian(noise_multiplier=50.0).poisson(rate=1e-3)
    >>> 0.006 < rdp_epsilon(10_000 * step, 1e-6) < 0.0079
    True
    """
    delta = _validate.real("delta", delta, at_least=0, below=1)
    limit = pure_epsilon(loss)
    if delta == 0:
        _curve(loss, np.array([2.0]))  # refuses what has no Renyi bound
        return limit
    log_delta = math.log(delta)

    def objective(orders: Array) -> Array:
        curve = _curve(loss, orders)
        penalty = np.log1p(-1.0 / orders) - np.log(orders) / (orders - 1.0)
        failure = -log_delta / (orders - 1.0)
        slack = _ROUNDING * curve + 1e-15 * (failure - penalty)
        return curve + penalty + failure + slack

    best = _minimum(objective)
    known = [order for order in _known_orders(loss) if order > 1.0]
    if known:
        best = min(best, float(np.min(objective(np.array(known)))))
    return max(0.0, min(best, limit))


def _known_orders(loss: Loss) -> list[float]:
    """Orders at which a curve inside the loss ends or bends, where the best one often lies."""
    if isinstance(loss, RenyiDP):
        return list(loss.orders)
    if isinstance(loss, Composition):
        return sorted({order for part, _ in loss.parts for order in _known_orders(part)})
    if isinstance(loss, SampledWithoutReplacement):
        return _known_orders(loss.base)
    if isinstance(loss, Grouped):
        return [order / loss.size for order in _known_orders(loss.base)]
    return []


def _minimum(objective: Callable[[Array], Array]) -> float:
    """The least value of a unimodal function of the order; any order gives a valid bound."""
    decade = math.log(10.0)
    lows, highs = math.log(_SMALLEST_ORDER - 1.0), math.log(_LARGEST_ORDER)
    xs = np.arange(-1.0, 3.5, 0.5) * decade
    ys = objective(1.0 + np.exp(xs))
    while True:
        index = int(np.argmin(ys))
        # Infinite values at the lower end say nothing of the way up, so the way down comes first.
        if index == 0 and xs[0] > lows + 1e-9:
            more = np.maximum(xs[0] - np.array([1.5, 1.0, 0.5]) * decade, lows)
            xs = np.concatenate((np.unique(more), xs))
            ys = np.concatenate((objective(1.0 + np.exp(np.unique(more))), ys))
        elif index == len(xs) - 1 and xs[-1] < highs - 1e-9:
            more = np.unique(np.minimum(xs[-1] + np.array([0.5, 1.0, 1.5]) * decade, highs))
            xs = np.concatenate((xs, more))
            ys = np.concatenate((ys, objective(1.0 + np.exp(more))))
        else:
            break
    best = float(ys[index])
    if index in (0, len(xs) - 1):
        return best
    left, right = xs[max(index - 1, 0)], xs[min(index + 1, len(xs) - 1)]
    for _ in range(6):
        xs = np.linspace(left, right, 12)
        ys = objective(1.0 + np.exp(xs))
        index = int(np.argmin(ys))
        gain = best - float(ys[index])
        best = min(best, float(ys[index]))
        left, right = xs[max(index - 1, 0)], xs[min(index + 1, len(xs) - 1)]
        if not gain > 1e-7 * abs(best) and right - left < 0.05:
            break
    return best


def moments_epsilon(loss: Loss, delta: float) -> float:
    """The moments accountant of the lectures, at integer moments lambda >= 1 (S7).

    With alpha(lambda) = lambda D_(lambda + 1), the larger of both directions, epsilon is the
    least (alpha(lambda) + ln(1/delta)) / lambda. Alpha is convex, so that is unimodal and the
    best integer is found by bisecting brackets, however large it is.
    """
    delta = _validate.real("delta", delta, at_least=0, below=1)
    limit = pure_epsilon(loss)
    if delta == 0:
        _curve(loss, np.array([2.0]))
        return limit

    def objective(moments: Array) -> Array:
        curve = _curve(loss, moments + 1.0)
        return (curve - math.log(delta) / moments) * (1.0 + _ROUNDING)

    grid = np.unique(np.floor(2.0 ** np.arange(0.0, 10.0, 0.5)))
    values = objective(grid)
    index = int(np.argmin(values))
    while index == len(grid) - 1 and grid[-1] < _LARGEST_ORDER:
        more = np.minimum(grid[-1] * np.array([2.0, 4.0, 8.0]), _LARGEST_ORDER)
        grid = np.unique(np.concatenate((grid[-2:], more)))
        values = objective(grid)
        index = int(np.argmin(values))
    best = float(values[index])
    if grid[index] == _LARGEST_ORDER:
        return max(0.0, min(best, limit))
    left, right = grid[max(index - 1, 0)], grid[min(index + 1, len(grid) - 1)]
    while right - left > 2:
        grid = np.unique(np.rint(np.linspace(left, right, 12)))
        values = objective(grid)
        index = int(np.argmin(values))
        best = min(best, float(values[index]))
        left, right = grid[max(index - 1, 0)], grid[min(index + 1, len(grid) - 1)]
    return max(0.0, min(best, limit))
