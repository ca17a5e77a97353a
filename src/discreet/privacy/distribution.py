"""Certified privacy-loss distributions: brackets for a whole plan (S9).

The caller asks for a tolerance, never for a grid. This module turns a loss into a plan that
:mod:`discreet.privacy.bracket` can search: Gaussians are merged into one, losses without a
tight pair become measures that dominate them, and what has a closed form gets it.

Cost: the number of steps enters only as an exponent, so it does not matter; distinct
atoms cost in proportion to their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeGuard

import numpy as np

from discreet.privacy import bracket, curves, moments, theorems
from discreet.privacy.atoms import (
    GDP,
    ZCDP,
    DiscreteGaussian,
    Exponential,
    Gaussian,
    PureDP,
    RenyiDP,
)
from discreet.privacy.bracket import NO_TIGHT_PAIR, Plan
from discreet.privacy.largest import largest_loss, sampled_mass
from discreet.privacy.loss import (
    Bounds,
    Composition,
    Grouped,
    Loss,
    PoissonSampled,
    SampledWithoutReplacement,
    compose,
)
from discreet.privacy.pairs import Measure
from discreet.privacy.relation import Relation

__all__ = ["delta_bracket", "delta_curve", "epsilon_bracket"]

CLOSED_FORM_ERROR = 1e-9
SMALLEST_MU = 1e-9
SMALLEST_RATE = 1e-12
LARGEST_SAMPLED_MU = 40.0
LARGEST_MU = 1e9
# What is tried where the first bracket is wider than was asked for.
FINER_TOLERANCES = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
OUT_OF_RANGE = "the numbers leave the range of floating point, so nothing is certified"


class _SampledGaussian(Protocol):
    base: Gaussian
    rate: float


def epsilon_bracket(loss: Loss, delta: float, tolerance: float | None = None) -> Bounds:
    """Lower and upper epsilon at ``delta`` (0 <= delta < 1).

    With a tolerance the search goes on from the bracket without one, through finer and finer
    searches that do not depend on the tolerance, until it is met: so a tighter tolerance
    never gives a wider bracket.
    """
    if sampled_mass(loss) <= delta:
        return Bounds(0.0, 0.0)
    found = _or_nothing(lambda: _epsilon_bracket(loss, delta, None), math.inf)
    if not found.tolerance_met:
        found = _looking_away(loss, delta, found)
    if tolerance is None:
        return found
    for finer in FINER_TOLERANCES:
        if found.width <= bracket.promise(found.upper, tolerance):
            break
        again = _or_nothing(partial(_epsilon_bracket, loss, delta, finer), math.inf)
        lower, upper = max(found.lower, again.lower), min(found.upper, again.upper)
        limit = not upper - lower < 0.8 * found.width
        found = replace(found, lower=min(lower, upper), upper=upper)
        if limit or finer <= tolerance:
            break
    asked = bracket.promise(found.upper, tolerance)
    if found.width <= asked:
        return Bounds(found.lower, found.upper)
    note = f"the bracket is {found.width:.3g} wide where {asked:.3g} was asked for"
    return Bounds(found.lower, found.upper, False, found.note or note)


def _looking_away(loss: Loss, delta: float, found: Bounds) -> Bounds:
    """The bracket, or with probability ``mass`` no guarantee from the parts that sample (S6).

    Unless one of them draws the unit, only the other parts look at it. Hockey-stick divergences
    are convex, so delta is at most mass + (1 - mass) times theirs.
    """
    parts = loss.parts if isinstance(loss, Composition) else ()
    sampled = [(part, n) for part, n in parts if sampled_mass(part) < 1.0]
    mass = sampled_mass(compose(sampled)) if sampled else 1.0
    if len(sampled) == len(parts) or mass >= delta:
        return found
    rest = compose((part, n) for part, n in parts if sampled_mass(part) == 1.0)
    upper = epsilon_bracket(rest, (delta - mass) / (1.0 - mass) * (1.0 - 1e-14)).upper
    return replace(found, lower=min(found.lower, upper), upper=min(found.upper, upper))


def delta_bracket(loss: Loss, epsilon: float) -> Bounds:
    """Lower and upper delta at ``epsilon`` >= 0."""
    found, mass = _or_nothing(lambda: _delta_bracket(loss, epsilon), 1.0), sampled_mass(loss)
    return replace(found, lower=min(found.lower, mass), upper=min(found.upper, mass))


def delta_curve(loss: Loss, epsilons: np.ndarray) -> np.ndarray:
    """Upper bounds on delta at increasing epsilons >= 0: the privacy profile."""
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            curve: np.ndarray = np.clip(_delta_curve(loss, epsilons), 0.0, sampled_mass(loss))
            return curve
    except (OverflowError, ZeroDivisionError, ValueError):
        # The curve as a whole leaves the range of floats; single points of it may not.
        return _point_by_point(loss, epsilons)


def _delta_curve(loss: Loss, epsilons: np.ndarray) -> np.ndarray:
    mu = gaussian_mu(loss)
    if mu is None and isinstance(loss, Grouped):
        return _grouped_curve(loss, epsilons)
    if mu is None:
        plan = make_plan(loss, 1e-12)
        mu = _single_gaussian(plan)
        if mu is None:
            return bracket.delta_curve(plan, epsilons) if plan.atoms else np.zeros(len(epsilons))
    return _point_by_point(loss, epsilons)


def _point_by_point(loss: Loss, epsilons: np.ndarray) -> np.ndarray:
    return np.array([delta_bracket(loss, epsilon).upper for epsilon in epsilons.tolist()])


def _or_nothing(search: Callable[[], Bounds], worst: float) -> Bounds:
    """The bracket, or a trivial and marked one where the numbers leave the range of floats."""
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            found = search()
    except (OverflowError, ZeroDivisionError, ValueError):
        return Bounds(0.0, worst, False, OUT_OF_RANGE)
    if not 0.0 <= found.lower <= found.upper:
        return Bounds(0.0, worst, False, OUT_OF_RANGE)
    return found


def _epsilon_bracket(loss: Loss, delta: float, tolerance: float | None) -> Bounds:
    if delta == 0.0:
        return _pure_bracket(loss)
    mu = gaussian_mu(loss)
    if mu is not None and mu > LARGEST_MU:
        return Bounds(0.0, math.inf, False, "epsilon is beyond all reason")
    if mu is not None:
        upper = theorems.gaussian_epsilon(mu, delta)
        return Bounds(max(0.0, upper * (1.0 - CLOSED_FORM_ERROR) - 1e-12), upper)
    if isinstance(loss, Grouped):
        return Bounds(0.0, _grouped_epsilon(loss, delta), False, NO_TIGHT_PAIR)
    if _is_one_sampled_gaussian(loss):
        return _one_sampled_gaussian(loss.base.mu, loss.rate, delta)
    plan = make_plan(loss, 1e-4 * delta)
    mu = _single_gaussian(plan)
    if mu is not None:
        upper = theorems.gaussian_epsilon(mu, delta) if mu <= LARGEST_MU else math.inf
        return Bounds(0.0, upper, False, NO_TIGHT_PAIR)
    return bracket.epsilon_bounds(plan, delta, tolerance) if plan.atoms else Bounds(0.0, 0.0)


def _delta_bracket(loss: Loss, epsilon: float) -> Bounds:
    mu = gaussian_mu(loss)
    if mu is not None:
        value = theorems.gaussian_delta(mu, epsilon) if mu <= LARGEST_MU else 1.0
        upper = min(1.0, value * (1.0 + CLOSED_FORM_ERROR))
        return Bounds(value * (1.0 - CLOSED_FORM_ERROR), upper)
    if isinstance(loss, Grouped):
        return Bounds(0.0, _grouped_delta(loss, epsilon), False, NO_TIGHT_PAIR)
    plan = make_plan(loss, 1e-12)
    mu = _single_gaussian(plan)
    if mu is not None:
        value = theorems.gaussian_delta(mu, epsilon) if mu <= LARGEST_MU else 1.0
        return Bounds(0.0, min(1.0, value * (1.0 + CLOSED_FORM_ERROR)), False, NO_TIGHT_PAIR)
    return bracket.delta_bounds(plan, epsilon) if plan.atoms else Bounds(0.0, 0.0)


def _is_one_sampled_gaussian(loss: Loss) -> TypeGuard[_SampledGaussian]:
    return (
        isinstance(loss, PoissonSampled)
        and isinstance(loss.base, Gaussian)
        and loss.records == 1
        and SMALLEST_MU <= loss.base.mu <= LARGEST_SAMPLED_MU
    )


def _one_sampled_gaussian(mu: float, rate: float, delta: float) -> Bounds:
    """One step has a closed form (S6).

    With a unit removed delta(log(1 + q (e^eps - 1))) is exactly q times the Gaussian's delta at
    eps, and with a unit added it is at most that (Balle, Barthe and Gaboardi 2018).
    """
    share = delta / rate
    if share >= 1.0:
        return Bounds(0.0, 0.0)
    inner = theorems.gaussian_epsilon(mu, share * (1.0 - 1e-15))
    if inner > 500.0:
        upper = inner + math.log(rate + (1.0 - rate) * math.exp(-inner))
    else:
        upper = math.log1p(rate * math.expm1(inner))
    error = CLOSED_FORM_ERROR * upper + 1e-12 * rate
    return Bounds(max(0.0, upper - error), upper * (1.0 + 1e-14))


def _pure_bracket(loss: Loss) -> Bounds:
    """At delta 0 epsilon is the largest loss."""
    top = largest_loss(loss)
    parts = loss.parts if isinstance(loss, Composition) else ((loss, 1),)
    loose = (Grouped, SampledWithoutReplacement, Exponential, ZCDP, RenyiDP)
    if any(isinstance(part, loose) for part, _ in parts):
        return Bounds(0.0, top, False, NO_TIGHT_PAIR)
    return Bounds(top, top)


def gaussian_mu(loss: Loss) -> float | None:
    """mu if the whole loss is one Gaussian (compositions of Gaussians are), else None."""
    parts = loss.parts if isinstance(loss, Composition) else ((loss, 1),)
    total = 0.0
    for part, n in parts:
        if isinstance(part, Gaussian | GDP):
            total += n * part.mu**2
        else:
            return None
    return max(math.sqrt(total) * (1.0 + 4e-16 * len(parts)), SMALLEST_MU)


def _single_gaussian(plan: Plan) -> float | None:
    """mu if a plan came down to one Gaussian, which then has a closed form, else None."""
    if plan.atoms != 1 or len(plan.items) != 1 or plan.tight:
        return None
    loss, n = plan.items[0]
    return loss.mu if n == 1 and isinstance(loss, Gaussian) else None


def tamed(loss: Loss) -> Loss:
    """The loss itself, or beyond the range of the numerics one that dominates it.

    Noise can be so small that a density underflows at the other mean, or so large that a
    loss is lost in rounding. More noise and less sampling only help, so smaller noise and a
    larger rate dominate.
    """
    base = loss.base if isinstance(loss, PoissonSampled | SampledWithoutReplacement) else loss
    if isinstance(base, DiscreteGaussian):
        mu = base.sensitivity / base.stddev
        if mu > LARGEST_SAMPLED_MU:
            return ZCDP(0.5 * mu * mu * (1.0 + 1e-15), base.relation)
    if isinstance(loss, SampledWithoutReplacement) and isinstance(base, Gaussian | GDP):
        return base if base.mu > LARGEST_SAMPLED_MU else loss
    if not isinstance(loss, PoissonSampled):
        return loss
    if isinstance(base, Gaussian):
        if base.mu > LARGEST_SAMPLED_MU:
            return base.group(loss.records)
        if base.mu < SMALLEST_MU:
            base = Gaussian(1.0 / SMALLEST_MU)
    rate = max(loss.rate, SMALLEST_RATE)
    return loss if (base, rate) == (loss.base, loss.rate) else replace(loss, base=base, rate=rate)


def make_plan(loss: Loss, smallest: float) -> Plan:
    """Merge Gaussians, pool Renyi curves, expand generic groups.

    ``smallest`` is a delta that is negligible for the question at hand.
    """
    parts = loss.parts if isinstance(loss, Composition) else ((loss, 1),)
    square = 0.0
    items: list[tuple[Loss, int]] = []
    sampled: list[tuple[float, float, float]] = []
    renyi: list[tuple[Loss, int]] = []
    fixed: list[tuple[Measure, int]] = []
    tight = True
    for given, n in parts:
        part = tamed(given)
        tight = tight and part is given
        if isinstance(part, Gaussian | GDP):
            square += n * part.mu**2
        elif (
            isinstance(part, PoissonSampled)
            and isinstance(part.base, Gaussian)
            and part.records == 1
        ):
            sampled.append((part.rate, part.base.mu, float(n)))
        elif isinstance(part, ZCDP | RenyiDP):
            renyi.append((part, n))
        elif isinstance(part, Grouped):
            fixed.append((_grouped_measure(part, smallest), n))
        elif not (isinstance(part, PureDP) and part.pure_epsilon == 0):
            items.append((part, n))
    if square > 0.0:
        changes = 2.0 if loss.relation is Relation.REPLACE else 1.0
        mu = max(math.sqrt(square), SMALLEST_MU)
        items.append((Gaussian(changes / mu, loss.relation), 1))
    if renyi:
        fixed.append((_renyi_measure(renyi), 1))
    columns = np.array(sampled).reshape(-1, 3)
    return Plan(tuple(items), columns[:, 0], columns[:, 1], columns[:, 2], tuple(fixed), tight)


# --- losses without a tight pair --------------------------------------------------------------


def _delta_upper(loss: Loss, epsilon: float) -> float:
    """A quick upper bound on delta, for searches that need many."""
    if largest_loss(loss) <= epsilon:
        return 0.0
    if gaussian_mu(loss) is not None:
        return delta_bracket(loss, epsilon).upper
    if isinstance(loss, Grouped):
        return _grouped_delta(loss, epsilon)
    plan = make_plan(loss, 1e-12)
    return min(sampled_mass(loss), bracket.delta_upper(plan, epsilon)) if plan.atoms else 0.0


def _grouped_delta(loss: Grouped, epsilon: float) -> float:
    """delta of a group: (e^{k e} - 1) / (e^e - 1) times delta(e) at e = epsilon / k (S2)."""
    part = epsilon / loss.size
    if loss.size * part > 700.0 and largest_loss(loss.base) > part:
        return 1.0
    factor = math.fsum(math.exp(j * part) for j in range(loss.size))
    return min(1.0, factor * _delta_upper(loss.base, part) * (1.0 + 1e-12))


def _grouped_curve(loss: Grouped, epsilons: np.ndarray) -> np.ndarray:
    """:func:`_grouped_delta` at many epsilons."""
    parts = epsilons / loss.size
    deltas = delta_curve(loss.base, parts)
    deltas[parts >= largest_loss(loss.base)] = 0.0
    with np.errstate(over="ignore"):
        factors = sum(np.exp(j * parts) for j in range(loss.size))
        # A delta of 0 times a factor beyond the floats is no number.
        return np.where(deltas > 0.0, np.minimum(factors * deltas * (1.0 + 1e-12), 1.0), 0.0)


def _grouped_epsilon(loss: Grouped, delta: float) -> float:
    """The smallest epsilon, nearly, at which the group bound is at most ``delta``."""
    low, high = 0.0, loss.size * max(1e-6, epsilon_bracket(loss.base, delta).upper)
    if not math.isfinite(high):
        return high
    while _grouped_delta(loss, high) > delta:
        low, high = high, 1.3 * high
        if high > 1e5:
            return math.inf
    while high - low > 2e-5 * high:
        middle = 0.5 * (low + high)
        if _grouped_delta(loss, middle) <= delta:
            high = middle
        else:
            low = middle
    return high


def _grouped_measure(loss: Grouped, smallest: float) -> Measure:
    """A dominating measure of a generic group, from its profile at many points."""
    top = _grouped_epsilon(loss, smallest)
    if not math.isfinite(top):
        return curves.symmetric_measure(np.zeros(1), np.ones(1))
    grid = np.linspace(0.0, top, 97)
    return curves.symmetric_measure(grid, np.array([_grouped_delta(loss, e) for e in grid]))


def _renyi_measure(items: Sequence[tuple[Loss, int]]) -> Measure:
    """All Renyi curves of a plan add up order by order; then one profile stands for them."""
    orders = 1.0 + np.geomspace(1e-3, 1e6, 600)
    total = np.zeros(len(orders))
    for loss, n in items:
        total += n * moments.rdp(loss, orders)
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
    return curves.symmetric_measure(grid, np.exp(np.minimum(log_delta, 0.0)))
