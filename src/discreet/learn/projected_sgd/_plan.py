"""The plan of a private projected SGD run, complete before any data is read, and its risk bounds.

Each of T steps draws one of n records uniformly and releases n grad + N(0, sigma^2 I). Under
``replace`` (n public) the drawn record's gradient changes by at most 2L in norm, so the step on
the drawn record is a Gaussian release of noise multiplier sigma / (n L), and the draw of one record
out of n is sampling without replacement: ``Gaussian(sigma / (n L), "replace")`` amplified by
``sample_without_replacement(sample=1, population=n)``, T times. All iterates are paid for, so
the last one, their average, or all of them may be published.

``formula`` noise is the closed form 8 n L / epsilon sqrt(ln(2n/delta) ln(2/delta)) in the manner of
Bassily, Smith and Thakurta (2014); what it really costs is read off its loss and is much less than
the target. ``calibrated`` noise is the least that the accountant certifies for the target.

**Bounds.** All speak of F(theta), the *sum* of the losses of n records, on a convex set of diameter
D, for steps theta_{t+1} = Pi(theta_t - c/sqrt(t) g_t) with E g_t a subgradient and
E |g_t|^2 <= G^2. Here g = n grad + N(0, sigma^2 I), so G^2 = n^2 L^2 + d sigma^2. Under clipping g
is no longer unbiased and none of them holds.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, final

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import Gaussian, Loss, Relation, calibrate
from discreet.privacy.theorems import gaussian_mu, sgd_sigma

CALIBRATIONS = ("calibrated", "formula")
OUTPUTS = ("last", "average")

_MOST_STEPS_BY_DEFAULT = 10_000_000
# Rounding in the loop (a few operations of relative error 2**-53 a coordinate) stays below this
# share of the sensitivity; the noise is raised by as much.
_ROUNDING = 2.0**-30


def steps_for(records: int, steps: int | None) -> int:
    """Return T: n^2, at most ten million by default, or what was asked for.

    >>> steps_for(3000, None), steps_for(1_000_000, None), steps_for(10, 7)
    (9000000, 10000000, 7)
    """
    if steps is not None:
        return _validate.integer("steps", steps, at_least=2, at_most=1 << 53)
    return min(max(2, records * records), _MOST_STEPS_BY_DEFAULT)


@final
@dataclass(frozen=True)
class SgdPlan:
    """Public numbers of a run; build it with :meth:`make`.

    >>> modern = SgdPlan.make(
    ...     records=3000, dimension=20, lipschitz=1.0, diameter=2.0, epsilon=1.0, delta=1e-6
    ... )
    >>> formula = SgdPlan.make(
    ...     records=3000,
    ...     dimension=20,
    ...     lipschitz=1.0,
    ...     diameter=2.0,
    ...     epsilon=1.0,
    ...     delta=1e-6,
    ...     calibration="formula",
    ... )
    >>> round(formula.stddev / modern.stddev, 1)
    15.6
    """

    records: int
    dimension: int
    steps: int
    lipschitz: float
    diameter: float
    stddev: float
    step: float
    epsilon: float
    delta: float
    calibration: str
    clipped: bool
    output: str

    @classmethod
    def make(
        cls,
        *,
        records: int,
        dimension: int,
        lipschitz: float,
        diameter: float,
        epsilon: float,
        delta: float,
        steps: int | None = None,
        calibration: str = "calibrated",
        clipped: bool = False,
        output: str = "last",
        step: float | None = None,
    ) -> SgdPlan:
        """Calibrate the noise and choose step sizes c / sqrt(t), with c = D / G unless given.

        ``lipschitz`` is the largest norm of one record's gradient, by the loss or by clipping.
        """
        n = _validate.integer("records", records, at_least=1)
        d = _validate.integer("dimension", dimension, at_least=1)
        bound = "clip_norm" if clipped is True else "lipschitz"
        steep = _validate.real(bound, lipschitz, at_least=1e-100, at_most=1e100)
        # Beyond these, products of them are no doubles any more.
        wide = _validate.real("diameter", diameter, at_least=1e-100, at_most=1e101)
        target = _validate.real("epsilon", epsilon, above=0)
        point = _validate.real("delta", delta, above=0, below=1)
        way = _validate.one_of("calibration", calibration, CALIBRATIONS)
        kept = _validate.one_of("output", output, OUTPUTS)
        if not isinstance(clipped, bool):
            raise InvalidValue("clipped", clipped, "True or False")
        count = steps_for(n, n * n if steps is None and way == "formula" else steps)
        if way == "formula":
            if count != n * n:
                expected = f"{n * n}: the noise of calibration='formula' is for T = n^2"
                raise InvalidValue("steps", count, expected)
            stddev = sgd_sigma(target, point, n=n, lipschitz=steep)
        else:
            multiplier = _least_noise(n, count, target, point)
            stddev = multiplier * (1.0 + 2.0 * _ROUNDING) * n * steep
        gradient = gradient_bound(records=n, lipschitz=steep, dimension=d, stddev=stddev)
        size = (
            best_step(diameter=wide, gradient=gradient)
            if step is None
            else _validate.real("step", step, above=0)
        )
        return cls(n, d, count, steep, wide, stddev, size, target, point, way, clipped, kept)

    @property
    def loss(self) -> Loss:
        """What all iterates together reveal about one replaced record."""
        multiplier = self.stddev / (self.records * self.lipschitz) / (1.0 + _ROUNDING)
        return _loss(multiplier, self.records, self.steps)

    @property
    def gradient(self) -> float:
        """G, the root of the bound on E |g_t|^2."""
        return gradient_bound(
            records=self.records,
            lipschitz=self.lipschitz,
            dimension=self.dimension,
            stddev=self.stddev,
        )

    def excess_risk_bound(self) -> float:
        """Return the bound on the expected excess of the sum of losses over its minimum.

        Refused under clipping, where gradients are biased.
        """
        if self.clipped:
            raise NotApplicable(
                "the excess-risk bound needs unbiased gradients and does not survive clipping: "
                "state the Lipschitz constant of the loss instead of clip_norm"
            )
        bound = last_iterate_bound if self.output == "last" else average_bound
        return bound(
            diameter=self.diameter, gradient=self.gradient, step=self.step, steps=self.steps
        )

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return asdict(self)


def gradient_bound(*, records: int, lipschitz: float, dimension: int, stddev: float) -> float:
    """Return G = sqrt(n^2 L^2 + d sigma^2).

    >>> gradient_bound(records=3, lipschitz=1.0, dimension=4, stddev=2.0)
    5.0
    """
    return math.hypot(records * lipschitz, math.sqrt(dimension) * stddev)


def best_step(*, diameter: float, gradient: float) -> float:
    """Return c = D / G, which makes D^2/c + c G^2 smallest."""
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
    size = _validate.real("step", step, above=0)
    return wide * wide / size + size * steep * steep


def _loss(multiplier: float, records: int, steps: int) -> Loss:
    one = Gaussian(multiplier, Relation.REPLACE)
    return steps * one.sample_without_replacement(sample=1, population=records)


@lru_cache(maxsize=256)
def _least_noise(records: int, steps: int, epsilon: float, delta: float) -> float:
    # The central limit of Bu, Dong, Long and Su 2020 is near; the search starts in the middle of
    # its bracket. Without amplification mu = 2 sqrt(T) / multiplier, which is always enough.
    mu = gaussian_mu(epsilon, delta)
    near = 2.0 / math.sqrt(math.log1p((mu * records) ** 2 / steps))
    wide = max(16.0 * near, 4.0 * math.sqrt(steps) / mu)
    return calibrate(
        lambda multiplier: _loss(multiplier, records, steps),
        epsilon=epsilon,
        delta=delta,
        bracket=(near * near / wide, wide),
        increasing=False,
    )
