"""The accountants: one loss, several theorems that turn it into an epsilon.

============  ====================================================================
``naive``     the exact (epsilon, delta) of every step, summed (S5, basic)
``advanced``  the same steps under advanced composition (S5)
``optimal``   the same steps, each worst-case, composed exactly (S5, Kairouz-Oh-Viswanath)
``zcdp``      zero-concentrated DP, summed, tight conversion (S4)
``moments``   the moments accountant of the lectures: integer orders (S7)
``rdp``       Renyi DP at real orders, tight conversion (S8)
``pld``       certified privacy-loss distributions (S9)
``best``      the smallest of those that apply
============  ====================================================================

Every answer is an upper bound. An accountant that does not cover a loss raises
``NotApplicable`` and says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import distribution, moments
from discreet.privacy.atoms import ApproxDP, PureDP
from discreet.privacy.largest import basic_epsilon, largest_loss
from discreet.privacy.loss import ACCOUNTANTS, Bounds, Composition, Loss, compose
from discreet.privacy.meaning import PosteriorBounds, posterior_interval

__all__ = [
    "delta_bounds",
    "epsilon",
    "epsilon_bounds",
    "every_accountant",
    "posterior",
    "tradeoff",
]


def epsilon(loss: Loss, *, delta: float, accountant: str = "best") -> float:
    """See :meth:`discreet.privacy.Loss.epsilon`."""
    target = _validate.real("delta", delta, at_least=0, below=1)
    name = _validate.one_of("accountant", accountant, ACCOUNTANTS)
    return _reading(name, loss, target)


def _reading(name: str, loss: Loss, delta: float) -> float:
    """What an accountant says; where a claim is beyond floating point, infinity."""
    try:
        return _READERS[name](loss, delta)
    except OverflowError:
        return math.inf


def epsilon_bounds(loss: Loss, *, delta: float, tolerance: float | None = None) -> Bounds:
    """See :meth:`discreet.privacy.Loss.epsilon_bounds`."""
    target = _validate.real("delta", delta, at_least=0, below=1)
    if tolerance is not None:
        tolerance = _validate.real("tolerance", tolerance, above=0, below=1)
    bracket = distribution.epsilon_bracket(loss, target, tolerance)
    pure = basic_epsilon(loss, target)
    if pure < bracket.upper:
        return Bounds(min(bracket.lower, pure), pure, bracket.tolerance_met, bracket.note)
    return bracket


def delta_bounds(loss: Loss, *, epsilon: float) -> Bounds:
    """See :meth:`discreet.privacy.Loss.delta_bounds`."""
    at = _validate.real("epsilon", epsilon, at_least=0)
    if largest_loss(loss) <= at:
        return Bounds(0.0, 0.0)
    return distribution.delta_bracket(loss, at)


def every_accountant(loss: Loss, *, delta: float) -> dict[str, float | str]:
    """Each accountant's epsilon, or the reason why it does not apply."""
    answers: dict[str, float | str] = {}
    for name in ACCOUNTANTS:
        try:
            answers[name] = epsilon(loss, delta=delta, accountant=name)
        except NotApplicable as reason:
            answers[name] = str(reason)
    return answers


def tradeoff(loss: Loss, fpr: float | np.ndarray) -> Any:
    """See :meth:`discreet.privacy.Loss.tradeoff`.

    The best power at level a is min over eps of e^eps a + delta(eps) and of
    1 - e^-eps (1 - a - delta(eps)); every eps is valid, so a finite set of them is.
    """
    try:
        level = np.asarray(fpr, dtype=float)
    except (TypeError, ValueError):
        raise InvalidValue("fpr", fpr, "numbers with 0 <= fpr <= 1") from None
    wrong = level[~((level >= 0.0) & (level <= 1.0))]
    if wrong.size or not level.size:
        shown = float(wrong.flat[0]) if wrong.size else fpr
        raise InvalidValue("fpr", shown, "at least one number, each with 0 <= fpr <= 1")
    points, deltas = _profile(loss)
    flat = level.reshape(-1, 1)
    steep = np.exp(np.minimum(points, 700.0)) * flat + deltas
    shallow = 1.0 - np.exp(-points) * (1.0 - flat - deltas)
    steep[:, points > 700.0] = 1.0
    best = np.minimum(np.minimum(steep, shallow).min(axis=1), 1.0).reshape(level.shape)
    return float(best) if level.ndim == 0 else best


# Lines that a trade-off curve is the least of; few looks at a loss serve all of them.
_CURVE_POINTS = 192


@lru_cache(maxsize=64)
def _profile(loss: Loss) -> tuple[np.ndarray, np.ndarray]:
    top = largest_loss(loss)
    reach = min(epsilon(loss, delta=1e-9), top)
    if not math.isfinite(reach):
        # A probability of failing outright: go to where little more than that is left.
        floor = delta_bounds(loss, epsilon=700.0).upper
        excesses = ((1.0 - floor) * share for share in (1e-6, 1e-3, 0.5))
        reaches = (epsilon(loss, delta=floor + excess) for excess in excesses if floor < 1.0)
        reach = next((found for found in reaches if math.isfinite(found)), 0.0)
    points = np.append(np.linspace(0.0, reach, _CURVE_POINTS), reach * 1.2)
    if math.isfinite(top):
        points = np.append(points[points < top], top)
    deltas = distribution.delta_curve(loss, points)
    deltas[points >= top] = 0.0
    return points, deltas


def posterior(loss: Loss, *, prior: float, failure_probability: float = 1e-6) -> PosteriorBounds:
    """See :meth:`discreet.privacy.Loss.posterior`.

    Without a bound on the loss: P(loss > e') <= delta(e) / (1 - e^{e - e'}) for e < e' (S1).
    Several gaps e' - e are tried; each is valid.
    """
    belief = _validate.real("prior", prior, above=0, below=1)
    chance = _validate.real("failure_probability", failure_probability, above=0, below=1)
    pure = largest_loss(loss)
    if math.isfinite(pure):
        return posterior_interval(belief, pure)
    # Both ends may fail: the lower one with at most the probability of the upper one.
    best = min(
        epsilon(loss, delta=0.5 * chance * -math.expm1(-gap)) + gap for gap in (0.05, 0.2, 0.5, 1.0)
    )
    if not math.isfinite(best):
        return PosteriorBounds(0.0, 1.0, chance)
    return posterior_interval(belief, best)._replace(failure_probability=chance)


# --- the accountants --------------------------------------------------------------------


def _parts(loss: Loss) -> tuple[tuple[Loss, int], ...]:
    return loss.parts if isinstance(loss, Composition) else ((loss, 1),)


def _step_claims(loss: Loss, delta: float) -> list[tuple[Fraction | float, float, int]]:
    """(epsilon, delta, count) of every step when ``delta`` is shared out equally.

    Steps with a pure guarantee need no share.
    """
    unbounded = sum(n for part, n in _parts(loss) if not math.isfinite(largest_loss(part)))
    share = delta / unbounded if unbounded else 0.0
    claims: list[tuple[Fraction | float, float, int]] = []
    for part, n in _parts(loss):
        if isinstance(part, PureDP):
            claims.append((part.pure_epsilon, 0.0, n))
        elif (
            isinstance(part, ApproxDP)
            and part.claimed_delta > 0
            and share >= float(part.claimed_delta)
        ):
            claims.append((part.claimed_epsilon, float(part.claimed_delta), n))
        elif math.isfinite(largest_loss(part)):
            claims.append((largest_loss(part), 0.0, n))
        else:
            claims.append((distribution.epsilon_bracket(part, share).upper, share, n))
    return claims


def _naive(loss: Loss, delta: float) -> float:
    claims = _step_claims(loss, delta)
    if any(not math.isfinite(value) for value, _, _ in claims):
        return math.inf
    return _round_up(sum((n * _exact(value) for value, _, n in claims), start=Fraction(0)))


def _exact(value: Fraction | float) -> Fraction:
    return value if isinstance(value, Fraction) else Fraction(value)


def _round_up(value: Fraction) -> float:
    number = float(value)
    return number if Fraction(number) >= value else math.nextafter(number, math.inf)


# How delta is shared between the composition theorem and the steps: each share is valid.
_SLACK_SHARES = (0.1, 0.5, 0.9)


def _advanced(loss: Loss, delta: float) -> float:
    if delta == 0.0:
        raise NotApplicable("advanced composition needs delta > 0: it pays for its gain with delta")
    return min(_advanced_with(slack, claims) for slack, claims in _shared(loss, delta))


def _advanced_with(slack: float, claims: list[tuple[Fraction | float, float, int]]) -> float:
    if any(not math.isfinite(value) for value, _, _ in claims):
        return math.inf
    square = math.fsum(n * float(value) ** 2 for value, _, n in claims)
    drift = math.fsum(n * float(value) * _expm1(float(value)) for value, _, n in claims)
    return (math.sqrt(2.0 * math.log(1.0 / slack) * square) + drift) * (1.0 + 1e-14)


def _expm1(value: float) -> float:
    return math.expm1(value) if value < 700.0 else math.inf


def _shared(
    loss: Loss, delta: float
) -> list[tuple[float, list[tuple[Fraction | float, float, int]]]]:
    """Several ways to share delta; all of it for the theorem where the steps need none."""
    if math.isfinite(largest_loss(loss)):
        return [(delta, _step_claims(loss, 0.0))]
    return [(s * delta, _step_claims(loss, (1.0 - s) * delta)) for s in _SLACK_SHARES]


def _optimal(loss: Loss, delta: float) -> float:
    if sum(n for _, n in _parts(loss)) == 1:
        return _naive(loss, delta)
    return min(_optimal_with(loss, delta, claims) for _, claims in _shared(loss, delta))


def _optimal_with(
    loss: Loss, delta: float, claims: list[tuple[Fraction | float, float, int]]
) -> float:
    if any(not math.isfinite(value) for value, _, _ in claims):
        return math.inf
    worst = compose(
        (
            ApproxDP(_exact(e), Fraction(d), loss.relation)
            if d > 0.0
            else PureDP(_exact(e), loss.relation),
            n,
        )
        for e, d, n in claims
    )
    return epsilon_bounds(worst, delta=delta).upper


def _pld(loss: Loss, delta: float) -> float:
    return epsilon_bounds(loss, delta=delta).upper


def _best(loss: Loss, delta: float) -> float:
    """PLD, and the others only where they could be smaller.

    Where the bracket of the dominating pair meets its tolerance, every other accountant
    lies above its lower bound, so none can be better by more than the tolerance.
    """
    bracket = epsilon_bounds(loss, delta=delta)
    if bracket.tolerance_met:
        return bracket.upper
    answers = [bracket.upper]
    for name in ("naive", "advanced", "optimal", "zcdp", "rdp"):
        try:
            answers.append(_reading(name, loss, delta))
        except NotApplicable:
            continue
    return min(answers)


_READERS: dict[str, Callable[[Loss, float], float]] = {
    "naive": _naive,
    "advanced": _advanced,
    "optimal": _optimal,
    "zcdp": moments.zcdp_epsilon,
    "moments": moments.moments_epsilon,
    "rdp": moments.rdp_epsilon,
    "pld": _pld,
    "best": _best,
}
