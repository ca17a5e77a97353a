"""Where a bound on delta crosses a target, with the error on the safe side (S9)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from discreet.privacy.pairs import Measure
from discreet.privacy.spectrum import UNIT, Inversion, Part, infinite_mass, known_number

__all__ = ["as_one_step", "single_delta", "single_epsilon", "solve"]

ACCURACY = 1e-7
# So many outcomes of a whole plan are listed one by one, which is exact and quick.
MOST_OUTCOMES = 2048


def as_one_step(parts: Sequence[Part], *, is_upper: bool) -> Measure | None:
    """The measure of a whole composition that has few outcomes, or ``None`` if it has many."""
    if len(parts) == 1 and parts[0].steps == 1:
        return parts[0].measure
    size = math.fsum(part.steps * math.log(part.measure.loss.shape[1]) for part in parts)
    if size > math.log(MOST_OUTCOMES) or any(len(part.counts) > 1 for part in parts):
        return None
    loss, mass, error, largest = np.zeros(1), np.ones(1), 1e-15, 0.0
    for part in parts:
        one = part.measure
        for _ in range(part.steps):
            loss = (loss[:, None] + one.loss[0]).ravel()
            mass = (mass[:, None] * one.mass[0]).ravel()
        error += part.steps * (one.mass_error + UNIT)
        largest += part.steps * float(np.abs(one.loss).max())
    # What the sums of the losses may lose.
    rounding = UNIT * largest * sum(part.steps for part in parts)
    loss = loss + rounding if is_upper else loss - rounding
    return Measure.single(loss, mass, infinite_mass(parts), error)


def solve(inversion: Inversion, target: float, guess: float, *, is_upper: bool) -> float:
    """Where the bound crosses ``target``: rounded up for an upper bound, down for a lower."""
    bound: Callable[[float], float] = inversion.upper if is_upper else inversion.lower
    low, high = 0.0, math.inf
    point = guess
    for _ in range(60):
        value = bound(point)
        if value > target or (value == target and not is_upper):
            low = max(low, point)
        else:
            high = min(high, point)
            if point == 0.0:
                break
            if value <= inversion.infinite:
                # Far from the tilt the bounds say nothing: come back in growing steps.
                low, high = _last_resort(bound, target, high, inversion.deviation)
        if math.isfinite(high) and high - low <= max(ACCURACY * high, 1e-12):
            break
        point = _next_point(inversion, point, value, target, low, high)
    if is_upper:
        return high
    return low if low > 0.0 and bound(low) >= target else 0.0


def _last_resort(
    bound: Callable[[float], float], target: float, high: float, deviation: float
) -> tuple[float, float]:
    """A bracket of the crossing below ``high``, found in steps of the tilted deviation."""
    step = 0.05 * deviation
    while step < high:
        if bound(high - step) >= target:
            return high - step, high - 0.5 * step if step > 0.05 * deviation else high
        step *= 2.0
    return 0.0, high


def _next_point(
    inversion: Inversion, point: float, value: float, target: float, low: float, high: float
) -> float:
    """A Newton step on log delta, pushed just past the root; else bisection."""
    finite, slope = inversion.value_and_slope(point)
    excess, wanted = value - inversion.infinite, target - inversion.infinite
    if finite > 0.0 and slope < 0.0 and excess > 0.0 and wanted > 0.0:
        move = math.log(excess / wanted) * finite / -slope
        fresh = point + move
        # Once close, overshoot so that both sides of the root are known.
        if abs(move) < 1e-4 * max(point, 1e-12):
            nudge = 0.3 * ACCURACY * abs(fresh) + 1e-13
            fresh += nudge if low >= point else -nudge
        if low < fresh < high:
            return fresh
    if math.isfinite(high):
        return 0.5 * (low + high)
    return 2.0 * max(point, low, 1e-9) + inversion.deviation


def single_epsilon(measure: Measure, target: float, *, is_upper: bool) -> float:
    """epsilon of one step, exactly: delta is linear in exp(epsilon) between losses."""
    slack = 1.0 + (measure.mass_error if is_upper else -measure.mass_error)
    order = np.argsort(measure.loss[0])
    loss, mass = measure.loss[0, order], measure.mass[0, order] * slack
    anchor = float(loss[-1])
    p = np.cumsum(mass[::-1])[::-1]
    # Where Q leaves the floats an upper bound may count less of it, a lower one may not.
    apart = np.minimum(anchor - loss, 700.0) if is_upper else anchor - loss
    with np.errstate(over="ignore", invalid="ignore"):
        q = np.cumsum((mass * np.exp(apart))[::-1])[::-1]
    wanted = target - float(measure.infinite[0])
    known_number("masses", float(p[0]) + float(np.max(q)) + anchor)
    # delta just at each loss, decreasing; the root lies below the first that is small enough.
    with np.errstate(invalid="ignore"):
        at = p - np.exp(loss - anchor) * q
    index = min(int(np.sum(at > wanted)), len(loss) - 1)
    if p[index] <= wanted or math.isinf(q[index]):
        return 0.0
    value = known_number("losses", anchor + math.log((p[index] - wanted) / q[index]))
    margin = 1e-12 * (1.0 + abs(value))
    return max(0.0, value + margin if is_upper else value - margin)


def single_delta(measure: Measure, epsilon: float, *, is_upper: bool) -> float:
    """delta of one step, exactly."""
    above = measure.loss[0] > epsilon
    value = -float(np.dot(measure.mass[0, above], np.expm1(epsilon - measure.loss[0, above])))
    slack = measure.mass_error + 1e-13
    value *= 1.0 + slack if is_upper else 1.0 - slack
    return min(1.0, max(0.0, known_number("masses", float(measure.infinite[0]) + value)))
