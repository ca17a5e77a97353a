"""S22: what theory promises about the risk of the model, before any data is seen.

All bounds speak of F(theta), the *sum* of the losses of n records, on a convex set of diameter D,
for steps theta_{t+1} = Pi(theta_t - c/sqrt(t) g_t) with E g_t a subgradient and E |g_t|^2 <= G^2.
Here g = n grad + N(0, sigma^2 I), so G^2 = n^2 L^2 + d sigma^2. Under clipping g is no longer
unbiased and none of them holds.
"""

from __future__ import annotations

import math

from discreet import _validate

__all__ = ["average_bound", "best_step", "gradient_bound", "last_iterate_bound"]


def gradient_bound(*, records: int, lipschitz: float, dimension: int, stddev: float) -> float:
    """Return G = sqrt(n^2 L^2 + d sigma^2).

    >>> gradient_bound(records=3, lipschitz=1.0, dimension=4, stddev=2.0)
    5.0
    """
    return math.hypot(records * lipschitz, math.sqrt(dimension) * stddev)


def best_step(*, diameter: float, gradient: float) -> float:
    """Return c = D / G, which makes D^2/c + c G^2 smallest: the lecture's step D / (G sqrt t)."""
    return diameter / gradient


def last_iterate_bound(*, diameter: float, gradient: float, step: float, steps: int) -> float:
    """Return (D^2/c + c G^2)(2 + ln T)/sqrt(T) >= E F(theta_T) - min F.

    Shamir and Zhang 2013, theorem 2, for T > 1; it falls with T, so it also holds one step later.

    >>> round(last_iterate_bound(diameter=2.0, gradient=5.0, step=0.4, steps=10_000), 4)
    2.2421
    """
    count = _validate.integer("steps", steps, at_least=2)
    spread = _spread(diameter, gradient, step)
    return spread * (2.0 + math.log(count)) / math.sqrt(count)


def average_bound(*, diameter: float, gradient: float, step: float, steps: int) -> float:
    """Return (D^2/(2c) + c G^2)/sqrt(T) >= E F(mean of theta_1 .. theta_T) - min F.

    Zinkevich 2003, theorem 1: the regret of steps c/sqrt(t) is at most
    D^2 sqrt(T)/(2c) + G^2/2 * sum of c/sqrt(t), and the sum is at most 2 c sqrt(T).
    """
    count = _validate.integer("steps", steps, at_least=1)
    spread = _spread(diameter, gradient, step) - 0.5 * diameter**2 / step
    return spread / math.sqrt(count)


def _spread(diameter: float, gradient: float, step: float) -> float:
    wide = _validate.real("diameter", diameter, above=0)
    steep = _validate.real("gradient", gradient, above=0)
    pace = _validate.real("step", step, above=0)
    return wide * wide / pace + pace * steep * steep
