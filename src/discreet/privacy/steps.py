"""Every loss of the algebra as a measure of one step: the handler table of the PLD walk.

``step(loss, view)`` returns the measures of :mod:`discreet.privacy.pairs`. ``lower`` is
``None`` where the loss has no tight pair and only upper bounds can be certified (S9).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache, singledispatch

import numpy as np
from scipy import special

from discreet.errors import NotApplicable
from discreet.privacy import curves
from discreet.privacy.atoms import (
    GDP,
    ApproxDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    FinitePair,
    Gaussian,
    Laplace,
    PureDP,
    RandomizedResponse,
)
from discreet.privacy.loss import Loss, PoissonSampled, SampledWithoutReplacement
from discreet.privacy.pairs import (
    Array,
    Cells,
    Measure,
    Outcomes,
    gaussian_edges,
    gaussian_outcomes,
    laplace_cells,
    many_shifts_outcomes,
    oriented,
    point_cells,
)

__all__ = ["Step", "View", "has_two_orders", "is_symmetric", "stacked_gaussians", "step"]

MOST_POINTS = 4096
LARGE_STDDEV = 2.0e4
# A sampled group of so many shifts is dear; neighbours are moved together.
_MOST_SHIFTS, _FEWER_SHIFTS = 2048, 512


@dataclass(frozen=True)
class View:
    """How finely, and around which tilt, a step is to be seen.

    ``swapped`` exchanges the pair (a unit added instead of removed), ``tail`` is the mass
    that may be moved to loss +infinity, ``focus`` the epsilon of interest, ``rate`` the
    Poisson rate in force. ``turned`` gives the lower measures of finite pairs of unknown
    order the other order.
    """

    swapped: bool
    tau: float
    cells: int
    tail: float
    focus: float = math.inf
    rate: float = 1.0
    records: int = 1
    turned: bool = False


@dataclass(frozen=True)
class Step:
    """The measures of one step, below and above its pair."""

    lower: Measure | None
    upper: Measure


def is_symmetric(loss: Loss) -> bool:
    """Whether the upper measure of a step is the same in both directions.

    Finite pairs are compared, or made so; all other pairs but sampled ones are exchanged by a
    reflection.
    """
    if isinstance(loss, FinitePair):
        return not loss.oriented or curves.worst_order(loss.p, loss.q).both_ways
    return not isinstance(loss, PoissonSampled)


def has_two_orders(loss: Loss) -> bool:
    """Whether a release has a finite pair that may stand in either order, and the order matters."""
    base = loss.base if isinstance(loss, PoissonSampled) else loss
    return (
        isinstance(base, FinitePair)
        and not base.oriented
        and not curves.worst_order(base.p, base.q).both_ways
    )


@singledispatch
def step(loss: Loss, view: View) -> Step:
    """The measures of one step; raises ``NotApplicable`` for a loss without any."""
    return _exact(_cells(loss, view))


def _exact(cells: Cells) -> Step:
    return Step(cells.lower(), cells.upper())


@step.register
def _(loss: PoissonSampled, view: View) -> Step:
    inside = replace(view, rate=view.rate * loss.rate, records=loss.records)
    if loss.records > 1 and isinstance(loss.base, Gaussian):
        return _sampled_group(loss.base.mu, inside)
    return step(loss.base, inside)


@step.register
def _(loss: Exponential, view: View) -> Step:
    measure = curves.bounded_range_measure(loss.pure_epsilon, max(view.cells, 64))
    if view.rate == 1.0:
        return Step(None, measure)
    point, mass = measure.loss[0], measure.mass[0]
    sampled = oriented(
        mass, mass * np.exp(-point), point, point, point, rate=view.rate, swapped=view.swapped
    )
    return Step(None, replace(sampled.upper(), mass_error=measure.mass_error))


@step.register
def _(loss: FinitePair, view: View) -> Step:
    pair = (loss.q, loss.p) if view.turned and not loss.oriented else (loss.p, loss.q)
    p, q = np.array(pair)
    exact = point_cells(p, q, rate=view.rate, swapped=view.swapped)
    if loss.oriented:
        return _exact(exact)
    worst = curves.worst_order(loss.p, loss.q)
    every = oriented(
        worst.p,
        worst.q,
        worst.loss,
        worst.loss,
        worst.loss,
        rate=view.rate,
        swapped=view.swapped,
        only_p=worst.infinite,
        only_q=worst.infinite,
    )
    return Step(exact.lower(), every.upper())


@step.register
def _(loss: SampledWithoutReplacement, view: View) -> Step:
    """The profile at eps >= 0 is that of ((1 - r) Q + r P, Q); it holds in both directions.

    P and Q are the records before and after, in either order.
    """
    base = replace(loss.base, oriented=False) if isinstance(loss.base, FinitePair) else loss.base
    one_sided = step(base, replace(view, rate=view.rate * loss.rate, swapped=False)).upper
    symmetric = curves.mirrored(one_sided)
    if symmetric is None:
        losses = one_sided.loss[0]
        grid = np.unique(np.append(losses[losses >= 0.0], 0.0))
        symmetric = curves.symmetric_measure(grid, curves.profile(one_sided, grid))
    return Step(None, symmetric)


@singledispatch
def _cells(loss: Loss, view: View) -> Cells:  # noqa: ARG001 - the handlers need it
    raise NotApplicable(
        f"{loss!r} has no privacy-loss distribution here; nothing is assumed about it"
    )


@_cells.register
def _(loss: Gaussian, view: View) -> Cells:
    return _gaussian(loss.mu, view)


@_cells.register
def _(loss: GDP, view: View) -> Cells:
    return _gaussian(loss.mu, view)


def _gaussian(mu: float, view: View, *, lattice: float | None = None) -> Cells:
    weights, shifts = np.array([[1.0]]), np.array([[mu]])
    if view.rate < 1.0:
        weights, shifts = np.array([[1.0 - view.rate, view.rate]]), np.array([[0.0, mu]])
    return _normal_outcomes(weights, shifts, view, lattice=lattice).cells(swapped=view.swapped)


def _sampled_group(mu: float, view: View) -> Step:
    """Each of ``records`` is drawn with ``rate``: a binomial mixture of shifts (Ganesh 2024).

    Shifts that hardly ever happen are moved: away from 0 every hockey stick grows, towards 0 it
    falls. For the upper measure the largest go to infinity and the smallest up to the first that
    stays; for the lower one the largest go down to the last that stays and the smallest to 0.
    """
    n = view.records
    k, log_weight, beyond = _binomial(n, view.rate)
    last = int(np.argmax(beyond <= view.tail))
    # At the left end of the outcomes small shifts count most.
    left = log_weight - mu * k * (0.5 * mu * k - float(special.ndtri(view.tail)))
    first = min(int(np.argmax(left > left.max() - 40.0)), last)
    weights, shifts = np.exp(log_weight[first : last + 1]), mu * k[first : last + 1]
    above = float(beyond[last])
    raised, lowered, low_shifts = weights.copy(), weights.copy(), shifts
    lowered[-1] += above
    if first:
        below = float(special.bdtr(first - 1, n, view.rate))
        raised[0] += below
        lowered, low_shifts = np.append(below, lowered), np.append(0.0, shifts)
    high_shifts = shifts
    if len(shifts) > _MOST_SHIFTS:
        raised, high_shifts = _fewer_shifts(raised, shifts, upwards=True)
        lowered, low_shifts = _fewer_shifts(lowered, low_shifts, upwards=False)
    # What the logarithms of the weights, and of their sum at an outcome, may lose.
    error = 4e-16 * (
        3.0 * float(special.gammaln(n + 1)) + 100.0 + float(np.abs(left[first:]).max())
    )
    # A sum of gains has the mass that went to infinity at 0 too, where P weighs at least 0.1.
    upper = _mixture_cells(raised, high_shifts, view, error + 10.0 * above)
    if not view.swapped:
        upper = replace(upper, high_tail=upper.high_tail + above)
    return Step(_mixture_cells(lowered, low_shifts, view, error).lower(), upper.upper())


@lru_cache(maxsize=4)
def _binomial(n: int, rate: float) -> tuple[Array, Array, Array]:
    """The numbers 0 to n, the logarithms of their binomial weights, and the mass beyond each."""
    k = np.arange(n + 1)
    log_weight = (
        special.gammaln(n + 1)
        - special.gammaln(k + 1)
        - special.gammaln(n - k + 1)
        + k * math.log(rate)
        + (n - k) * math.log1p(-rate)
    )
    return k, log_weight, special.bdtrc(k, n, rate)


def _fewer_shifts(weights: Array, shifts: Array, *, upwards: bool) -> tuple[Array, Array]:
    """Move neighbouring shifts together: away from 0 every hockey stick grows."""
    starts = np.arange(0, len(shifts), -(-len(shifts) // _FEWER_SHIFTS))
    ends = np.append(starts[1:], len(shifts)) - 1
    return np.add.reduceat(weights, starts), shifts[ends if upwards else starts]


def _mixture_cells(weights: Array, shifts: Array, view: View, error: float) -> Cells:
    if shifts[0] == 0.0 and weights[0] > 0.1:
        outcomes = _normal_outcomes(weights[None, :], shifts[None, :], view)
    else:
        edge = _edges(weights[None, :], shifts[None, :], view)
        outcomes = many_shifts_outcomes(weights[None, :], shifts[None, :], edge=edge)
    cells = outcomes.cells(swapped=view.swapped)
    return replace(
        cells,
        low=cells.low + error,
        high=cells.high + error,
        mass_slack=cells.mass_slack + error,
        average_slack=cells.average_slack + error,
    )


def _normal_outcomes(
    weights: Array, shifts: Array, view: View, *, lattice: float | None = None
) -> Outcomes:
    edge = _edges(weights, shifts, view)
    if lattice is not None:
        # Cells of integers end halfway between two of them.
        edge = (np.floor(edge * lattice) + 0.5) / lattice
    return gaussian_outcomes(weights, shifts, edge=edge)


def _edges(weights: Array, shifts: Array, view: View) -> Array:
    return gaussian_edges(
        weights,
        shifts,
        tau=view.tau,
        cells=view.cells,
        tail=view.tail,
        focus=view.focus,
        swapped=view.swapped,
    )


def stacked_gaussians(rates: Array, mus: Array, view: View) -> Outcomes:
    """The outcomes of many Poisson-sampled Gaussians at once, one row each."""
    weights = np.stack([1.0 - rates, rates], axis=1)
    shifts = np.stack([np.zeros_like(mus), mus], axis=1)
    return _normal_outcomes(weights, shifts, view)


@_cells.register
def _(loss: Laplace, view: View) -> Cells:
    return laplace_cells(
        loss.pure_epsilon, rate=view.rate, count=max(view.cells, 16), swapped=view.swapped
    )


@_cells.register
def _(loss: DiscreteLaplace, view: View) -> Cells:
    """Runs of consecutive integers between the two centres; geometric sums are exact."""
    inner = loss.sensitivity - 1
    runs = min(inner, max(view.cells, 16)) if inner > MOST_POINTS else inner
    bounds = np.unique(np.round(np.linspace(0, inner, runs + 1))) if inner else np.zeros(1)
    first, last = bounds[:-1] + 1, bounds[1:]
    size, scale = float(loss.sensitivity), loss.scale
    norm = 1.0 + math.exp(-1.0 / scale)
    run = -np.expm1(-(last - first + 1) / scale)
    p = np.concatenate([[math.exp(-size / scale)], np.exp(-(size - last) / scale) * run, [1.0]])
    q = np.concatenate([[1.0], np.exp(-first / scale) * run, [math.exp(-size / scale)]])
    edge = loss.pure_epsilon
    low = np.concatenate([[-edge], (2 * first - size) / scale, [edge]])
    high = np.concatenate([[-edge], (2 * last - size) / scale, [edge]])
    average = np.concatenate([[-edge], (first + last - size) / scale, [edge]])
    return oriented(p / norm, q / norm, average, low, high, rate=view.rate, swapped=view.swapped)


@_cells.register
def _(loss: DiscreteGaussian, view: View) -> Cells:
    """Exact sums over integers; for huge deviations midpoint sums with their error bound."""
    sigma, shift = loss.stddev, loss.sensitivity
    reach = float(-special.ndtri(view.tail)) + 1.0
    if sigma > LARGE_STDDEV:
        cells = _gaussian(shift / sigma, view, lattice=sigma)
        # Euler-Maclaurin: a run of integers against the integral over it.
        error = (6.0 + reach**2) / sigma**2
        return replace(
            cells,
            mass_slack=cells.mass_slack + error,
            average_slack=cells.average_slack + error,
        )
    bottom, top = -math.ceil(reach * sigma), shift + math.ceil(reach * sigma)
    x = np.arange(bottom, top + 1, dtype=float)
    q = np.exp(-0.5 * (x / sigma) ** 2)
    p = np.exp(-0.5 * ((x - shift) / sigma) ** 2)
    total = float(q.sum())
    p, q = p / total, q / total
    loss_at = (shift * x - 0.5 * shift**2) / sigma**2
    size = max(1, len(x) // max(MOST_POINTS, 4 * view.cells))
    starts = np.arange(0, len(x), size)
    ends = np.append(starts[1:], len(x)) - 1
    p, q = np.add.reduceat(p, starts), np.add.reduceat(q, starts)
    low, high = loss_at[starts], loss_at[ends]
    with np.errstate(divide="ignore", invalid="ignore"):
        average = np.where((p > 0) & (q > 0), np.log(p / q), low)
    if size == 1:
        average = low
    cells = oriented(
        p, q, np.clip(average, low, high), low, high, rate=view.rate, swapped=view.swapped
    )
    tail = float(special.ndtr(-(reach - 1.0)))
    # Dividing by the truncated sum made every mass larger by up to twice the tail.
    return replace(cells, high_tail=tail, low_tail=tail, mass_slack=1e-13 + 4.0 * tail)


@_cells.register
def _(loss: PureDP, view: View) -> Cells:
    return _two_points(float(loss.pure_epsilon), 0.0, 1.0, view)


@_cells.register
def _(loss: RandomizedResponse, view: View) -> Cells:
    truth = loss.truth_probability
    share = truth * (1.0 + math.exp(-loss.pure_epsilon))
    return _two_points(loss.pure_epsilon, 0.0, min(share, 1.0), view)


@_cells.register
def _(loss: ApproxDP, view: View) -> Cells:
    return _two_points(float(loss.claimed_epsilon), float(loss.claimed_delta), 1.0, view)


def _two_points(epsilon: float, delta: float, share: float, view: View) -> Cells:
    """Randomized response on a ``share`` of outcomes, nothing on the rest, delta for free."""
    inside = (1.0 - delta) * share
    yes = inside / (1.0 + math.exp(-epsilon))
    no = inside * math.exp(-epsilon) / (1.0 + math.exp(-epsilon))
    p, q = np.array([no, yes]), np.array([yes, no])
    loss = np.array([-epsilon, epsilon])
    if share < 1.0:
        rest = (1.0 - delta) * (1.0 - share)
        p, q = np.append(p, rest), np.append(q, rest)
        loss = np.append(loss, 0.0)
    return oriented(
        p, q, loss, loss, loss, rate=view.rate, swapped=view.swapped, only_p=delta, only_q=delta
    )
