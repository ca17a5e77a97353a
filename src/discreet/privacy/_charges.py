"""How one adaptive charge is read: as epsilon, rho, mu^2 or a Renyi divergence.

A :class:`~discreet.privacy.Filter` adds up numbers along a path that the analyst chooses, so
every number here is an upper bound and an exact rational.

**The part that may fail.** An (epsilon, delta)-DP release equals, for any fixed pair of
neighbours, an epsilon-DP release with probability 1 - delta and anything at all with
probability delta (Kairouz, Oh, Viswanath 2015). :func:`separate_delta` takes that delta out of a
charge and leaves the good part. Whatever the analyst does, with P_g and Q_g the measures of
"no failure on the way", P - e^eps Q <= (P - P_g) + (P_g - e^eps Q_g), so

    delta(eps) of all  <=  sum of the deltas  +  delta(eps) of the good parts,

and a filter for the good parts becomes one for everything once the sum of the deltas is
capped. It is the argument by which Whitehouse, Ramdas, Rogers and Wu (2023) treat approximate
zCDP, and it does not depend on how the good parts are measured.

**Two readings of one charge.** A plan that is charged with a delta may be read as the claim
(epsilon, delta), or as it is where it has no failures of its own, such as a Gaussian. Every lane
of a filter (:mod:`discreet.privacy._filters`) takes the reading that costs it less. This is valid:
split the transcripts by the lane i that they end with. On those, P - e^eps Q is at most the mass of
"a failure in the readings of lane i" plus what the good parts of lane i allow. Over all i these
masses are at most the probability that some step fails in a reading which a lane, still open
after that step, takes there; and a step adds at most the sum of the deltas of these readings. So
one cap on that sum covers all lanes. A sum for each lane with a cap for each would not do: an
analyst who sees the first failure stops, and otherwise goes on to the next lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from discreet import _validate
from discreet._rounding import round_up
from discreet.errors import NotApplicable
from discreet.privacy._claims import ApproxDP, PureDP
from discreet.privacy._composition import parts_of
from discreet.privacy._loss import Loss, Relation, require_same
from discreet.privacy.theorems import gaussian_mu, gdp_from_pure, zcdp_from_pure

# Covers the rounding of single readings (a few units in the last place each).
_PAD = 1e-12
# Renyi readings of sampled losses come from numerical integration.
_RENYI_PAD = 1e-9
# Least charge, so that underflow is never free.
_LEAST = 1e-300
_HINT = ": charge it with delta=..., so that the accountant reads the plan at that delta"


class Reading(NamedTuple):
    """A charge without its failures: losses with counts, and the delta set apart."""

    parts: tuple[tuple[Loss, int], ...]
    delta: Fraction


def plan_claim(loss: Loss, delta: object) -> ApproxDP:
    """Return what the accountant certifies for a plan declared beforehand, as a claim to spend.

    Parameters
    ----------
    loss
        The whole plan.
    delta
        Above 0 and below 1.

    Returns
    -------
    ApproxDP
        The claim (epsilon, delta), under the relation of the plan.

    Raises
    ------
    NotApplicable
        If the plan has no finite epsilon at this delta.

    Examples
    --------
    >>> from discreet.privacy import Gaussian
    >>> claim = plan_claim(100 * Gaussian(20.0), "1e-5")
    >>> claim.epsilon(delta=1e-5) >= (100 * Gaussian(20.0)).epsilon(delta=1e-5)
    True
    """
    return _claim_at(loss, _validate.fraction("delta", delta, above=0, below=1))


@lru_cache(maxsize=1024)
def _claim_at(loss: Loss, given: Fraction) -> ApproxDP:
    epsilon = loss.epsilon(delta=_round_down(given))
    if not math.isfinite(epsilon):
        raise NotApplicable(f"{loss!r} has no finite epsilon at delta = {float(given):g}")
    return ApproxDP(Fraction(epsilon), given, loss.relation)


def readings(loss: Loss, claim: ApproxDP | None, *, relation: Relation) -> tuple[Reading, ...]:
    """The ways in which a lane may read a charge: as it is, and as a ``claim`` that holds of it.

    A charge that has a claim is read as it is only where it states no delta of its own.
    """
    as_it_is = separate_delta(loss, relation=relation)
    if claim is None:
        return (as_it_is,)
    as_claim = separate_delta(claim, relation=relation)
    return (as_claim,) if as_it_is.delta else (as_it_is, as_claim)


def all_gaussian(loss: Loss) -> bool:
    """Whether a charge is made of Gaussian noise only, so that sums of mu^2 lose nothing."""
    return all(part.gaussian_mu() is not None for part, _ in parts_of(loss))


def separate_delta(loss: Loss, *, relation: Relation) -> Reading:
    """Separate a charge into its failure probability and the rest.

    Only losses that state a delta of their own have one.
    """
    if not isinstance(loss, Loss):
        raise NotApplicable(f"a charge is a loss, not {loss!r}")
    require_same(relation, loss.relation)
    parts: list[tuple[Loss, int]] = []
    failures = Fraction(0)
    for part, count in parts_of(loss):
        claim = part.claim()
        if claim is None or claim[1] == 0:
            parts.append((part, count))
        else:
            parts.append((PureDP(claim[0], relation), count))
            failures += count * claim[1]
    return Reading(tuple(parts), failures)


# --- epsilon -------------------------------------------------------------------------


def pure_epsilon(good: Reading) -> Fraction:
    """The sum of the pure epsilons, exact for losses that state their parameters.

    >>> from discreet.privacy import Laplace
    >>> pure_epsilon(separate_delta(10 * Laplace(scale=10.0), relation=Relation.ADD_REMOVE))
    Fraction(1, 1)
    """
    total = Fraction(0)
    for part, count in good.parts:
        claim = part.claim()
        if claim is None:
            raise NotApplicable(f"{part!r} has no pure epsilon{_HINT}")
        total += count * claim[0]
    return total


# --- rho -----------------------------------------------------------------------------


def rho(good: Reading) -> Fraction:
    """The sum of the zCDP parameters (Bun and Steinke 2016)."""
    return _sum_parts(good, _rho_of)


@lru_cache(maxsize=1024)
def _rho_of(loss: Loss) -> float:
    claim = loss.claim()
    bound = math.inf if claim is None else _if_moderate(claim[0], zcdp_from_pure)
    if claim is not None and math.isinf(bound):
        return math.inf
    try:
        return min(bound, loss.zcdp())
    except NotApplicable as reason:
        if claim is None:
            raise NotApplicable(f"{reason}{_HINT}") from None
        return bound


@lru_cache(maxsize=1024)
def zcdp_order(epsilon: float, delta: float) -> float:
    """The order at which the largest rho-zCDP budget converts to (epsilon, delta)."""
    low, high = -18.0, 40.0
    for _ in range(6):
        step = (high - low) / 200.0
        best = max((low + k * step for k in range(201)), key=lambda u: _rho_at(u, epsilon, delta))
        low, high = best - step, best + step
    return 1.0 + math.exp(0.5 * (low + high))


def zcdp_budget(epsilon: float, delta: float) -> Fraction:
    """The largest rho whose conversion at its best order stays within (epsilon, delta).

    Canonne, Kamath, Steinke 2020, proposition 12. Every order gives a valid budget, so an
    imperfect maximum is on the safe side.

    >>> from discreet.privacy.theorems import zcdp_to_approx_tight
    >>> 0.9999 < zcdp_to_approx_tight(float(zcdp_budget(1.0, 1e-6)), 1e-6) <= 1.0
    True
    """
    order = zcdp_order(epsilon, delta)
    return Fraction(max(0.0, _rho_at(math.log(order - 1.0), epsilon, delta) * (1.0 - _PAD)))


def _rho_at(log_above: float, epsilon: float, delta: float) -> float:
    order = 1.0 + math.exp(log_above)
    return _renyi_room(epsilon, delta, order) / order


# --- mu^2 ----------------------------------------------------------------------------


def mu_squared(good: Reading) -> Fraction:
    """The sum of the squared Gaussian-DP parameters (Dong, Roth, Su 2022)."""
    return _sum_parts(good, _mu_squared_of)


@lru_cache(maxsize=1024)
def _mu_squared_of(loss: Loss) -> float:
    exact = loss.gaussian_mu()
    if exact is not None:
        return exact * exact
    claim = loss.claim()
    if claim is None:
        raise NotApplicable(f"{loss!r} is not known to be Gaussian-DP{_HINT}")
    # e^eps-indistinguishable distributions are obtained from N(0, 1) and N(mu, 1) by cutting
    # at mu/2 (randomized response) and post-processing, for this mu.
    mu = _if_moderate(claim[0], gdp_from_pure)
    return mu * mu


@lru_cache(maxsize=1024)
def gdp_budget(epsilon: float, delta: float) -> Fraction:
    """The largest mu^2 for which mu-GDP is (epsilon, delta)-DP."""
    mu = Fraction(gaussian_mu(epsilon, delta))
    return mu * mu * (1 - Fraction(_PAD))


# --- Renyi ---------------------------------------------------------------------------


def renyi(good: Reading, *, order: float) -> Fraction:
    """The sum of the Renyi divergences at one order (Mironov 2017)."""
    return _sum_parts(good, lambda part: float(part.rdp([order])[0]))


def rdp_budget(epsilon: float, delta: float, *, order: float) -> Fraction:
    """The largest divergence at ``order`` that converts to (epsilon, delta), or 0."""
    return Fraction(max(0.0, _renyi_room(epsilon, delta, order) * (1.0 - _RENYI_PAD)))


def _renyi_room(epsilon: float, delta: float, order: float) -> float:
    """Return eps - ln((a-1)/a) + (ln delta + ln a) / (a - 1), the largest divergence at order a."""
    conversion = (math.log(delta) + math.log(order)) / (order - 1.0)
    return epsilon - math.log1p(-1.0 / order) + conversion


def _if_moderate(epsilon: Fraction, convert: Callable[[float], float]) -> float:
    return math.inf if epsilon > 10**9 else convert(round_up(epsilon))


# --- rounding ------------------------------------------------------------------------


def _round_down(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) <= value else math.nextafter(near, 0.0)


def _sum_parts(good: Reading, of: Callable[[Loss], float]) -> Fraction:
    total = Fraction(0)
    for part, count in good.parts:
        try:
            value = max(of(part), _LEAST)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise NotApplicable(f"{part!r} has no finite reading of this kind")
        total += count * Fraction(value)
    return total
