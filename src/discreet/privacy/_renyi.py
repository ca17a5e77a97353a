"""Renyi divergences of losses, and the accountants that read them: RDP, moments and zCDP.

For distributions P and Q with ratio ``1 + g = P / Q`` every Renyi divergence, in either
direction, is a power moment under Q: with power ``b``

    (a - 1) D_a(P || Q) = log E_Q (1 + g)^a,       (a - 1) D_a(Q || P) = log E_Q (1 + g)^(1 - a).

Because ``E_Q g = 0`` the moment is ``1 + E_Q[(1 + g)^b - 1 - b g]``, and for b > 1 and b < 0 the
bracket is never negative (Bernoulli). Summing that *excess* keeps full relative precision where
the divergence is 1e-18 as well as where it is 1e13. Sampling at a rate q turns g into q g.

:func:`rdp` returns upper bounds at any real orders above 1, the maximum over both directions;
:func:`rdp_epsilon`, :func:`moments_epsilon` and :func:`zcdp_epsilon` turn a curve into an epsilon.
"""

# S4, S7 and S8 of docs/coverage.md.

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import special

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy._loss import Atom, Loss, largest_loss
from discreet.privacy._pair import FINE, Measure, Pair, Resolution, hull_of_profile, orient

Array: TypeAlias = npt.NDArray[np.float64]

_SMALLEST_ORDER = 1.0 + 1e-6
_LARGEST_ORDER = 1e7
_LARGEST_INTEGER_ORDER = 512
_ROUNDING = 2.0**-44  # outweighs the rounding errors and quadrature errors below
_LARGEST_BLOCK = 1_000_000  # nodes that are evaluated at once: bounds the memory
_NO_CHANCE = -1e5  # a log ratio that stands for zero where the power is positive
_OVERFLOW = 600.0  # excesses beyond exp of this are summed in a shifted scale
_LARGEST_EXPONENT = 1e14  # beyond it rounding alone moves an exponent by a percent
_CELLS_PER_DOUBLING = 2048


# --- moments of losses that are known point by point ------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Spectrum:
    """A pair (P, Q) as seen from Q: where the loss lies and how likely that is.

    ``log_weight`` is the log-probability of each point under Q, ``log_ratio`` is log(P/Q) there,
    and ``gain`` is P/Q - 1, stored apart because it may be far smaller than 1. ``missing`` is the
    mass of P where Q has none. A ``symmetric`` pair is exchanged by a reflection; then the
    divergence of a mixture from its base is the larger direction (Mironov, Talwar and Zhang
    2019, theorem 5) and the other one is not computed.
    """

    log_weight: Array
    log_ratio: Array
    gain: Array
    missing: float = 0.0
    symmetric: bool = False

    @classmethod
    def from_losses(cls, log_weight: Array, log_ratio: Array) -> Spectrum:
        """A symmetric pair that is given by its loss values."""
        with np.errstate(over="ignore"):
            return cls(log_weight, log_ratio, np.expm1(log_ratio), symmetric=True)

    @classmethod
    def unbounded(cls) -> Spectrum:
        """The pair of two distributions that share nothing: every divergence is infinite."""
        return cls(np.zeros(1), np.full(1, -np.inf), np.full(1, -1.0), missing=1.0)


def sampled_ratio(spectrum: Spectrum, rate: float) -> tuple[Array, Array]:
    """Return the gain and log-ratio of the sampled pair: (1 - rate) Q + rate P against Q."""
    gain = rate * spectrum.gain
    if rate == 1.0:
        return gain, spectrum.log_ratio
    return gain, sampled_log_ratio(gain, spectrum.log_ratio, rate)


def sampled_log_ratio(gain: Array, log_ratio: Array, rate: float) -> Array:
    """log(1 - rate + rate exp(log_ratio)), given gain = rate (exp(log_ratio) - 1)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.logaddexp(np.log1p(-rate), np.log(rate) + log_ratio)
        return np.where((gain < -0.5) | (gain > 1.0), far, np.log1p(np.clip(gain, -0.6, 1.0)))


def exp_excess(x: Array) -> Array:
    """exp(x) - 1 - x, accurate near zero."""
    near = np.clip(x, -0.5, 0.5)
    series = np.ones_like(near)
    for k in range(15, 2, -1):
        series = 1.0 + near * series / k
    return np.where(np.abs(x) <= 0.5, 0.5 * near * near * series, np.expm1(x) - x)


def _log_shortfall(gain: Array) -> Array:
    """log(1 + gain) - gain for |gain| < 0.1, accurate near zero."""
    half = gain / (2.0 + gain)
    square = half * half
    series = np.zeros_like(half)
    for odd in (15, 13, 11, 9, 7, 5, 3):
        series = series * square + 1.0 / odd
    return 2.0 * half * square * series - gain * half


def weighted_excess(power: Array, log_weight: Array, gain: Array, log_gain: Array) -> Array:
    """exp(log_weight) ((1 + gain)^power - 1 - power gain), a sum of terms that are never negative.

    All powers are above 1, or all are negative. ``log_gain`` is log(1 + gain).
    """
    weight = np.exp(log_weight)
    small = np.abs(gain) < 0.1
    near = np.where(small, gain, 0.0)
    if power.size and power[0] > 0:
        log_gain = np.maximum(log_gain, _NO_CHANCE)
        mixed = np.exp(log_weight + log_gain)
        x = (power - 1.0) * log_gain
        bend = np.where(
            small,
            weight * (near * log_gain + _log_shortfall(near)),
            mixed * (log_gain - 1.0) + weight,
        )
        tail = np.exp(log_weight + log_gain + x) - mixed * (1.0 + x)
        first = np.where(x < 1.0, mixed * exp_excess(np.minimum(x, 1.0)), tail)
        return first + (power - 1.0) * np.maximum(bend, 0.0)
    mixed = np.exp(log_weight + log_gain)
    x = power * log_gain
    bend = np.where(small, weight * _log_shortfall(near), weight * (1.0 + log_gain) - mixed)
    tail = np.exp(log_weight + x) - weight * (1.0 + x)
    first = np.where(x < 1.0, weight * exp_excess(np.minimum(x, 1.0)), tail)
    return first + power * np.minimum(bend, 0.0)


def log_moments(
    powers: Array,
    counts: npt.NDArray[np.int64],
    log_weight: Array,
    gain: Array,
    log_gain: Array,
    *,
    both_powers: bool = False,
) -> Array:
    """log E (1 + gain)^power, one row for each power; row i owns counts[i] consecutive nodes.

    ``both_powers`` adds the excess of 1 - power, which serves :func:`one_sided_divergence`.
    Infinite where the exponents are too large to be known to a digit after the point.
    """
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    power = np.repeat(powers, counts)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        peak = np.maximum.reduceat(log_weight + power * log_gain, starts)
        shift = np.maximum(0.0, peak - _OVERFLOW)
        shifted = log_weight - np.repeat(shift, counts)
        excess = weighted_excess(power, shifted, gain, log_gain)
        if both_powers:
            excess = excess + weighted_excess(1.0 - power, shifted, gain, log_gain)
        total = np.add.reduceat(excess, starts)
        with np.errstate(divide="ignore"):
            result = np.where(shift > 0, shift + np.log(total + np.exp(-shift)), np.log1p(total))
        known = np.maximum(log_gain, _NO_CHANCE)
        largest = np.maximum.reduceat(np.abs(power * known), starts)
        return np.where(largest < _LARGEST_EXPONENT, result, np.inf)


def _spectral_moments(
    powers: Array, spectrum: Spectrum, rate: float, *, both_powers: bool = False
) -> Array:
    gain, log_gain = sampled_ratio(spectrum, rate)
    if powers[0] < 0 and bool(np.any(np.isneginf(log_gain))):
        return np.full_like(powers, np.inf)
    size = len(gain)
    rows = max(1, _LARGEST_BLOCK // size)
    parts = []
    for begin in range(0, len(powers), rows):
        block = powers[begin : begin + rows]
        nodes = [np.tile(a, len(block)) for a in (spectrum.log_weight, gain, log_gain)]
        counts = np.full(len(block), size)
        parts.append(log_moments(block, counts, *nodes, both_powers=both_powers))
    return np.concatenate(parts)


def divergence(orders: Array, spectrum: Spectrum, *, rate: float = 1.0) -> Array:
    """max of D_a(M || Q) and D_a(Q || M) for the mixture M = (1 - rate) Q + rate P."""
    if spectrum.missing > 0:
        return np.full_like(orders, np.inf)
    result = _spectral_moments(orders, spectrum, rate)
    if not spectrum.symmetric:
        result = np.maximum(result, _spectral_moments(1.0 - orders, spectrum, rate))
    return np.maximum(result, 0.0) / (orders - 1.0)


def one_sided_divergence(orders: Array, spectrum: Spectrum, *, rate: float) -> Array:
    """A bound for every pair whose hockey-stick profiles, both ways, lie below the sampled one.

    A sample without replacement has delta'(log(1 + rate (e^eps - 1))) <= rate delta(eps) in both
    directions, eps >= 0 (Balle, Barthe and Gaboardi 2018). A Renyi moment is an
    integral of the two profiles with positive weights (Sason and Verdu 2016), and the
    profile of the mixture M against Q *is* the right-hand side. With g = rate (P/Q - 1) hence

        exp((a - 1) D_a) <= 1 + E_Q[((1+g)^a - 1 - a g) + ((1+g)^(1-a) - 1 - (1-a) g); g > 0].
    """
    if spectrum.missing > 0:
        return np.full_like(orders, np.inf)
    above = spectrum.gain > 0
    if not bool(np.any(above)):
        return np.zeros_like(orders)
    upper = Spectrum(spectrum.log_weight[above], spectrum.log_ratio[above], spectrum.gain[above])
    return _spectral_moments(orders, upper, rate, both_powers=True) / (orders - 1.0)


def log_of_excess(
    orders: Array, excess: Array, large: Array, use_large: npt.NDArray[np.bool_]
) -> Array:
    """Return a divergence from the excess of its moment, or the log of a large moment."""
    return np.where(use_large, large, np.log1p(np.where(use_large, 0.0, excess))) / (orders - 1.0)


def envelope(pairs: tuple[Spectrum, ...]) -> Spectrum:
    """One spectrum whose hockey-stick profile at eps >= 0 is at least that of every pair."""
    if len(pairs) == 1 or any(pair.missing > 0 for pair in pairs):
        return max(pairs, key=lambda pair: pair.missing)
    ratios = np.unique(np.concatenate([pair.gain[pair.gain > 0] for pair in pairs]))
    if not len(ratios):
        return pairs[0]
    knots = np.concatenate(([0.0], ratios))
    profiles = []
    for pair in pairs:
        order = np.argsort(pair.gain)[::-1]
        gain, weight = pair.gain[order], np.exp(pair.log_weight[order])
        mass = np.concatenate(([0.0], np.cumsum(weight)))
        first = np.concatenate(([0.0], np.cumsum(weight * gain)))
        above = np.searchsorted(-gain, -knots, side="left")
        profiles.append(first[above] - knots * mass[above])
    profile = np.maximum.reduce(profiles)
    slopes = np.append(np.diff(profile) / np.diff(knots), 0.0)
    kinks = np.maximum(np.diff(slopes), 0.0)
    seen = kinks > 0
    gain = ratios[seen]
    return Spectrum(np.log(kinks[seen]), np.log1p(gain), gain)


class Listed(Atom, abstract=True):
    """Abstract base: an atom whose losses can be listed with their probabilities.

    Continuous pieces are replaced by quadrature nodes, long lattices by a pair that dominates them.
    """

    @abstractmethod
    def spectra(self) -> tuple[Spectrum, ...]:
        """Return the pairs that have to be considered, as seen from Q."""

    def renyi(self, orders: Array) -> Array:
        return spectral_divergence(orders, self.spectra())

    def sampled_renyi(self, orders: Array, rate: float, records: int = 1) -> Array:
        # Mixing with a common part never raises a Renyi divergence (quasi-convexity).
        return np.minimum(
            spectral_divergence(orders, self.spectra(), rate=rate), curve(self, orders)
        )

    def subset_renyi(self, orders: Array, rate: float) -> Array:
        return one_sided_divergence(orders, envelope(self.spectra()), rate=rate)


def spectral_divergence(orders: Array, pairs: Sequence[Spectrum], *, rate: float = 1.0) -> Array:
    """Return the largest divergence of several pairs, on a Poisson sample."""
    worst: Array = np.max(np.stack([divergence(orders, one, rate=rate) for one in pairs]), axis=0)
    return worst


def response_spectrum(epsilon: float, categories: int = 2) -> Spectrum:
    """Return k-ary randomized response; the binary one dominates every epsilon-DP pair."""
    if math.isinf(epsilon):
        return Spectrum.unbounded()
    log_truth = -math.log1p((categories - 1) * math.exp(-epsilon))
    weights = [log_truth, log_truth - epsilon]
    losses = [-epsilon, epsilon]
    if categories > 2:
        weights.append(log_truth - epsilon + math.log(categories - 2))
        losses.append(0.0)
    return Spectrum.from_losses(np.array(weights), np.array(losses))


def pair_divergence(orders: Array, seen: Callable[[Resolution], Pair]) -> Array:
    """Return the moments of a pair that dominates the one seen, in both directions."""
    pair = seen(FINE)
    ways = (False,) if pair.reflected else (False, True)
    curves = [_measure_divergence(orders, orient(pair, swapped=way)[1]) for way in ways]
    worst: Array = np.max(np.stack(curves), axis=0)
    return worst


def _measure_divergence(orders: Array, measure: Measure) -> Array:
    loss, mass = measure.loss[0], measure.mass[0] * (1.0 + measure.mass_error)
    seen = mass > 0
    if float(measure.infinite[0]) > 0.0 or not bool(np.any(seen)):
        return np.full_like(orders, np.inf)
    log_weight = np.log(mass[seen]) - loss[seen]
    return divergence(orders, Spectrum.from_losses(log_weight, loss[seen]))


def curve_pair(items: Sequence[tuple[Loss, int]]) -> Pair:
    """Return one pair for losses of which Renyi curves are known: they add up order by order."""
    orders = 1.0 + np.geomspace(1e-3, 1e6, 600)
    total = np.zeros(len(orders))
    for loss, n in items:
        total += n * curve(loss, orders)
    usable = np.isfinite(total)
    orders, total = orders[usable], total[usable]
    # Where even the best order needs this epsilon, delta is far below any question.
    top = float(np.min(total + 60.0 * math.log(10.0) / (orders - 1.0)))
    grid = np.linspace(0.0, top, 1201)
    log_delta = np.min(
        (orders - 1.0) * (total - grid[:, None])
        - np.log(orders)
        + (orders - 1.0) * np.log1p(-1.0 / orders),
        axis=1,
    )
    return Pair.of_hull(hull_of_profile(grid, np.exp(np.minimum(log_delta, 0.0))))


# --- curves of losses -------------------------------------------------------------------------


def rdp(loss: Loss, orders: float | Sequence[float] | np.ndarray) -> Array:
    """See :meth:`discreet.privacy.Loss.rdp`."""
    try:
        given = np.asarray(orders, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InvalidValue("orders", orders, "numbers above 1") from None
    flat = given.ravel()
    if not flat.size or not bool(np.all(np.isfinite(flat) & (flat > 1.0))):
        raise InvalidValue("orders", orders, "finite numbers above 1")
    return curve(loss, flat).reshape(given.shape)


def curve(loss: Loss, orders: Array) -> Array:
    """Return the Renyi bounds of a loss, infinite where they could not be computed."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        bound = np.asarray(loss.renyi(orders), dtype=np.float64)
        # A number that could not be computed is no bound; order infinity bounds every order.
        bound = np.where(np.isnan(bound), np.inf, np.maximum(bound, 0.0))
        return np.minimum(bound, largest_loss(loss))


def subset_amplification(base: Loss, orders: Array, rate: float) -> Array:
    """Theorem 9 of Wang, Balle and Kasiviswanathan (2019), from the base's Renyi curve alone.

    It speaks of integer orders; chords of (order - 1) D join them, since that product is convex.
    """
    usable = orders <= _LARGEST_INTEGER_ORDER
    result = np.full_like(orders, np.inf)
    if not bool(np.any(usable)):
        return result
    top = math.ceil(float(np.max(orders[usable])))
    j = np.arange(2.0, top + 1.0)
    known = curve(base, j)
    log_terms = j * math.log(rate) + math.log(2.0) + (j - 1.0) * known
    log_terms[0] = 2.0 * math.log(rate) + min(
        math.log(2.0) + known[0], math.log(4.0) + _log_expm1(float(known[0]))
    )
    log_moments = [0.0]
    for order in range(2, top + 1):
        terms = log_choose(order, j[: order - 1]) + log_terms[: order - 1]
        log_moments.append(float(np.logaddexp(0.0, special.logsumexp(terms))))
    chord = np.interp(orders[usable], np.arange(1.0, top + 1.0), log_moments)
    result[usable] = chord / (orders[usable] - 1.0)
    return result


def _log_expm1(x: float) -> float:
    return -math.inf if x <= 0 else x + math.log(-math.expm1(-x))


def log_choose(n: int, k: Array) -> Array:
    """Return the logarithms of the binomial coefficients of n over k."""
    top = special.gammaln(n + 1.0)
    return np.asarray(top - special.gammaln(k + 1.0) - special.gammaln(n - k + 1.0))


def pure_rho(epsilon: float) -> float:
    """Return epsilon tanh(epsilon / 2), the zCDP parameter of randomized response; tight.

    Its log-moment at order a is log cosh(y) - log cosh(x), x = eps/2, y = (2a - 1) x. As a
    function of y^2 log cosh is concave, so it lies below its tangent at x^2, which is
    a (a-1) eps tanh(eps/2).
    """
    return epsilon * math.tanh(epsilon / 2.0)


def bounded_rho(loss: Loss, largest: float) -> float:
    """Return a zCDP parameter of a loss whose ``largest`` value is finite."""
    bound = pure_rho(largest) if math.isfinite(largest) else math.inf
    if math.isinf(bound):
        raise NotApplicable(f"{loss!r} has infinite Renyi divergence, hence no zCDP bound")
    return min(bound, scanned_rho(loss, largest))


def scanned_rho(loss: Loss, largest: float) -> float:
    """Return the supremum of D_a / a from above, on cells of orders; 0.04 % too large at most.

    D does not fall with the order, so on [a, b] the quotient is at most D_b / a; beyond order
    largest / rho it is below largest / a.
    """
    if largest == 0:
        return 0.0
    best = 0.0
    start = 0
    while True:
        edges = 2.0 ** (np.arange(start, start + _CELLS_PER_DOUBLING + 1.0) / _CELLS_PER_DOUBLING)
        orders = edges[1:]
        best = max(best, float(np.max(loss.renyi(orders) / edges[:-1])))
        if largest / edges[-1] <= best or not best > 0:
            return best
        start += _CELLS_PER_DOUBLING


# --- accountants ------------------------------------------------------------------------------


def rdp_epsilon(loss: Loss, delta: float) -> float:
    """The least epsilon that the Renyi curve proves at ``delta``.

    D_a + ln((a-1)/a) - (ln delta + ln a)/(a-1) holds at every order a > 1 (Canonne, Kamath and
    Steinke 2020, proposition 12), and its limit at infinity is the pure epsilon. It is
    unimodal in a, because (a-1) times it is convex, so the orders are searched rather than listed.

    >>> from discreet.privacy import Gaussian
    >>> step = Gaussian(noise_multiplier=50.0).poisson(rate=1e-3)
    >>> 0.006 < rdp_epsilon(10_000 * step, 1e-6) < 0.0079
    True
    """
    delta = _validate.real("delta", delta, at_least=0, below=1)
    limit = largest_loss(loss)
    if delta == 0:
        curve(loss, np.array([2.0]))  # refuses what has no Renyi bound
        return limit
    log_delta = math.log(delta)

    def objective(orders: Array) -> Array:
        found = curve(loss, orders)
        penalty = np.log1p(-1.0 / orders) - np.log(orders) / (orders - 1.0)
        failure = -log_delta / (orders - 1.0)
        slack = _ROUNDING * found + 1e-15 * (failure - penalty)
        return found + penalty + failure + slack

    return max(0.0, min(_least_over_orders(loss, objective), limit))


def _least_over_orders(loss: Loss, objective: Callable[[Array], Array]) -> float:
    """The least value over all orders, those at which the loss was stated included."""
    best = _minimum(objective)
    known = [order for order in loss.known_orders() if order > 1.0]
    return min(best, float(np.min(objective(np.array(known))))) if known else best


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
    # Curves that are known at integer orders and joined by chords have their least value there.
    order = 1.0 + math.exp(float(xs[index]))
    whole = np.maximum(np.array([math.floor(order), math.ceil(order)], dtype=float), 2.0)
    return min(best, float(np.min(objective(whole))))


def moments_epsilon(loss: Loss, delta: float) -> float:
    """The moments accountant (Abadi et al. 2016), at every real moment lambda > 0.

    With alpha(lambda) = lambda D_(lambda + 1), the larger of both directions, epsilon is the
    least (alpha(lambda) + ln(1/delta)) / lambda. Alpha is convex, so that is unimodal, and lambda
    is searched like the orders of :func:`rdp_epsilon`. Moments of integer order alone, as the
    paper computes them, give more: 111.5 instead of 98 for a Gaussian of noise multiplier 0.1.

    >>> from discreet.privacy import Gaussian
    >>> 97.98 < moments_epsilon(Gaussian(noise_multiplier=0.1), 1e-5) < 97.99
    True
    """
    delta = _validate.real("delta", delta, at_least=0, below=1)
    limit = largest_loss(loss)
    if delta == 0:
        curve(loss, np.array([2.0]))
        return limit

    def objective(orders: Array) -> Array:
        return (curve(loss, orders) - math.log(delta) / (orders - 1.0)) * (1.0 + _ROUNDING)

    return max(0.0, min(_least_over_orders(loss, objective), limit))


def zcdp_epsilon(loss: Loss, delta: float) -> float:
    """The least epsilon that rho-zCDP proves at ``delta`` (Canonne, Kamath and Steinke 2020)."""
    from discreet.privacy.theorems import zcdp_to_approx_tight

    delta = _validate.real("delta", delta, at_least=0, below=1)
    rho = loss.zcdp()
    if rho == 0:
        return 0.0
    return math.inf if delta == 0 or rho > 1e150 else zcdp_to_approx_tight(rho, delta)
