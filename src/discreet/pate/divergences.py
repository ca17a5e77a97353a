"""Renyi bounds for one query that know its votes: LNMax, GNMax and the threshold test (S25).

Let P and Q be the distributions of the label on two data sets, i the winner on the data at hand,
and let all other labels together have probability at most q under P and q' under Q. Then

    sum over labels of P^a Q^(1-a)  <=  (1-q)^a (1-q')^(1-a)  +  R(q)           (a > 1)

*Gaussian noise.* If D_m(P || Q) <= rho m for all m, Hoelder's inequality on the other labels
with the order m = 1 + x gives R(q) = q^(1 - (a-1)/x) exp((a-1) rho (x+1)) for every
x >= a - 1. With L = -log q it is least at x = sqrt(L / rho):
R = exp(-L + (a-1) (2 sqrt(L rho) + rho)). In the same way q' <= psi(q) =
exp(-(sqrt L - sqrt rho)^2). This is theorem 6 of Papernot et al. (2018) with its proposition 10;
besides, q' is read off the votes, and the smaller of both bounds counts.

*Laplace noise.* No label's probabilities differ by more than exp(2/scale), so
R(q) = q exp(2 (a-1) / scale): theorem 3 of Papernot et al. (2017).

*Only bounds on q are known.* The right side must hold for the true q too, which may be anything
from 0 to its bound. For Laplace noise it is convex in q, so its largest value is at one of the
ends. For Gaussian noise with q' from the votes its derivative is at least
(1 - k) R(q)/q - a (1-q')^(1-a), k = (a-1)/x, which falls with q; where it is not negative
at the bound, the right side rises up to there, and elsewhere 1 takes the place of (1-q)^a. With
q' = psi(q) the derivative is at least

    V ((a-1) (psi' - 1) - 1) + (1 - k) R(q)/q,      V = ((1-q) / (1-psi))^(a-1),

if psi' = (psi/q) (1 - sqrt(rho/L)) >= 1, and so not negative where also (1 - k) R(q)/q >= V. Both
conditions hold for all smaller q if they hold at the bound (psi' and R/q fall with q, and V
rises), so they are checked there.

*Both directions.* Exchanging q and q' bounds the divergence from the neighbour to the data. The
papers state the divergence from the data only; here the larger of both is taken unless
``one_sided``. All bounds are cut at the data-independent one.

*The threshold test* has two outcomes whose probabilities depend on the largest count, which
differs by at most one between neighbours. If the answer has divergence e, test and answer
together have exactly

    (1/(a-1)) log( p^a r^(1-a) exp((a-1) e) + (1-p)^a (1-r)^(1-a) ),

with p and r the probabilities of passing; the largest over the three values of the
neighbour's count, and both directions, is taken. No expected number of answers is involved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

__all__ = ["gaussian_label", "laplace_label", "selection_and_label", "threshold_chances"]

# Outweighs the rounding of the formulas below: relative, and absolute in log moments.
_RELATIVE = 1e-10
_ABSOLUTE = 2e-15


def gaussian_label(
    log_q: Array, log_q_near: Array, *, rho: float, orders: Array, one_sided: bool = False
) -> Array:
    """The bound for GNMax at every row of ``log_q`` and every order, cut at rho a.

    ``log_q`` bounds the probability of another label than the winner on the data,
    ``log_q_near`` on every neighbour. ``rho`` is the zCDP parameter of the mechanism.
    """
    forward = _gaussian_moment(log_q, log_q_near, rho, orders)
    if not one_sided:
        forward = np.maximum(forward, _gaussian_moment(log_q_near, log_q, rho, orders))
    return _cut(forward, orders, np.broadcast_to(rho * orders, forward.shape))


def laplace_label(
    log_q: Array,
    log_q_near: Array,
    *,
    pure_epsilon: float,
    independent: Array,
    orders: Array,
    one_sided: bool = False,
) -> Array:
    """The bound for LNMax; ``independent`` is the data-independent curve at the orders."""
    forward = _laplace_moment(log_q, log_q_near, pure_epsilon, orders)
    if not one_sided:
        backward = _laplace_moment(log_q_near, log_q, pure_epsilon, orders)
        forward = np.maximum(forward, backward)
    return _cut(forward, orders, np.broadcast_to(independent, forward.shape))


def threshold_chances(distances: Array, *, noise: float, step: float) -> tuple[Array, ...]:
    """Bounds on log P(pass) and log P(fail), (low, high, low, high), for threshold - count.

    ``step`` is the width of the grid that the noise lives on, see :mod:`discreet.pate.noise`; the
    threshold is rounded up to that grid, so both sides are moved outwards by two steps.
    """
    x, h = distances / noise, 2.0 * step / noise
    slack = 1e-13
    bounds = (
        special.log_ndtr(-x - h) * (1.0 + slack) - 1e-16,
        np.minimum(special.log_ndtr(h - x) * (1.0 - slack), 0.0),
        special.log_ndtr(x - h) * (1.0 + slack) - 1e-16,
        np.minimum(special.log_ndtr(x + h) * (1.0 - slack), 0.0),
    )
    return tuple(np.asarray(bound) for bound in bounds)


def selection_and_label(
    here: tuple[Array, ...],
    near: list[tuple[Array, ...]],
    label: Array,
    *,
    orders: Array,
    independent: Array,
    one_sided: bool = False,
) -> Array:
    """The joint bound for a threshold test and the label that follows if it is passed.

    ``here`` and each of ``near`` are :func:`threshold_chances` of the data and of a possible
    neighbour; ``label`` is the bound for the label, rows by orders.
    """
    moments = []
    for other in near:
        moments.append(_test_moment(here, other, label, orders))
        if not one_sided:
            moments.append(_test_moment(other, here, label, orders))
    worst: Array = np.max(np.stack(moments), axis=0)
    return _cut(worst, orders, np.broadcast_to(independent, worst.shape))


def _test_moment(p: tuple[Array, ...], r: tuple[Array, ...], label: Array, orders: Array) -> Array:
    p_high, fail_high = p[1][:, None], p[3][:, None]
    r_low, other_fail_low = r[0][:, None], r[2][:, None]
    passing = orders * p_high + (1.0 - orders) * r_low + (orders - 1.0) * label
    failing = orders * fail_high + (1.0 - orders) * other_fail_low
    moment: Array = np.logaddexp(passing, failing)
    # The two exponents are differences of large numbers; each rounding counts by its weight.
    lost = 2.0**-50 * orders
    error = np.exp(passing - moment) * lost * (np.abs(p_high) + np.abs(r_low))
    error += np.exp(failing - moment) * lost * (np.abs(fail_high) + np.abs(other_fail_low))
    total: Array = moment + error
    return total


def _gaussian_moment(log_p: Array, log_r: Array, rho: float, orders: Array) -> Array:
    """log sum P^a Q^(1-a), P with other labels at most exp(log_p); infinite where unknown."""
    low, log_stay, log_near = _parts(log_p, log_r)
    height, stay = -low[:, None], log_stay[:, None]
    more = orders - 1.0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        root = np.sqrt(rho / height)
        usable = more * root < 1.0
        rest = -height + more * (2.0 * np.sqrt(height * rho) + rho)
        # log of (1 - k) R(q)/q
        slope = np.log1p(-more * root) + rest + height
        # q' from the votes
        near = -more * log_near[:, None]
        rising = slope >= np.log(orders) + near
        by_votes = np.logaddexp(near + np.where(rising, orders * stay, 0.0), rest)
        by_votes = np.where(usable & np.isfinite(near), by_votes, np.inf)
        # q' = psi(q)
        log_psi = -np.square(np.sqrt(height) - np.sqrt(rho))
        kept = np.log1p(-np.exp(log_psi))
        growth = more * (stay - kept)
        rising = (log_psi + height + np.log1p(-root) >= 0.0) & (slope >= growth)
        by_order = np.logaddexp(orders * stay - more * kept, rest)
        by_order = np.where(usable & (height > rho) & rising, by_order, np.inf)
        return np.asarray(np.fmin(by_votes, by_order))


def _laplace_moment(log_p: Array, log_r: Array, pure_epsilon: float, orders: Array) -> Array:
    low, log_stay, log_near = _parts(log_p, log_r)
    with np.errstate(invalid="ignore", over="ignore"):
        near = (1.0 - orders) * log_near[:, None]
        rest = low[:, None] + (orders - 1.0) * pure_epsilon
        full = np.logaddexp(near + orders * log_stay[:, None], rest)
        moment = np.maximum(near, full)
        return np.asarray(np.where(np.isfinite(log_near)[:, None], moment, np.inf))


def _parts(log_p: Array, log_r: Array) -> tuple[Array, Array, Array]:
    """log q, log(1 - q) and log(1 - q'), the last two minus infinity where q reaches 1."""
    low = np.minimum(log_p, 0.0)
    with np.errstate(divide="ignore"):
        stay = np.log1p(-np.exp(low))
        near = np.log1p(-np.exp(np.minimum(log_r, 0.0)))
    return low, stay, near


def _cut(moment: Array, orders: Array, independent: Array) -> Array:
    with np.errstate(invalid="ignore"):
        bound = (np.maximum(moment, 0.0) * (1.0 + _RELATIVE) + _ABSOLUTE) / (orders - 1.0)
    bound = np.where(np.isnan(bound), np.inf, bound)
    return np.minimum(bound, independent)
