"""Set Laplace and Gaussian noise from a budget, in steps of a grid.

Laplace noise is set by its scale or by a pure epsilon. Gaussian noise is set by ``stddev``,
or by ``epsilon`` and ``delta`` through one of two calibrations:

``analytic``
    Balle and Wang 2018, theorem 8: the least noise, for every epsilon > 0. It is
    then checked on the *discrete* noise: the reading of the loss at delta is at most epsilon.
``classical``
    stddev = sqrt(2 ln(1.25 / delta)) sensitivity / epsilon, Dwork and Roth 2014,
    theorem A.1, proved for epsilon < 1 only and refused elsewhere. Never less noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, final

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms._intervals import Quantile, gaussian_quantile, laplace_quantile
from discreet.mechanisms._parameters import (
    check_steps,
    grid_for,
    read_epsilon,
    read_noise,
    round_up,
    scale_to_draw,
)
from discreet.privacy import DiscreteLaplace, Loss, Relation
from discreet.privacy.theorems import gaussian_classical_stddev, gaussian_mu
from discreet.randomness import Source, discrete_gaussian, discrete_laplace, sensitivity_on_grid

CALIBRATIONS = ("analytic", "classical")
"""How epsilon and delta become noise."""

# The noise is within this share of the least that the search could certify.
_CLOSE = 2e-3


@final
@dataclass(frozen=True)
class LaplaceNoise:
    """Laplace noise in whole steps: the double ``scale`` that is charged for."""

    scale: float
    sensitivity: int
    relation: Relation

    @classmethod
    def read(
        cls, *, sensitivity: int, epsilon: object, scale: object, relation: Relation | str
    ) -> LaplaceNoise:
        """Read ``epsilon`` or ``scale``, exactly one of them."""
        if _validate.exactly_one(epsilon=epsilon, scale=scale) == "scale":
            noise = read_noise("scale", scale)
        else:
            noise = round_up("epsilon", epsilon, sensitivity / read_epsilon(epsilon)[0])
        return cls(noise, sensitivity, Relation.parse(relation))

    @property
    def exact_scale(self) -> Fraction:
        """The rational number that the sampler gets: never less than is charged for."""
        return scale_to_draw(self.scale)

    @property
    def loss(self) -> DiscreteLaplace:
        """The loss of the release, exact."""
        return DiscreteLaplace(self.scale, self.sensitivity, self.relation)

    @property
    def quantile(self) -> Quantile:
        """How far the noise reaches, for a risk."""
        return laplace_quantile(self.exact_scale)

    @property
    def parameters(self) -> dict[str, object]:
        """What the provenance says of the noise."""
        return {
            "scale_in_steps": self.scale,
            "sensitivity_in_steps": self.sensitivity,
            "relation": self.relation.value,
        }

    def draw(self, size: int | None, source: Source) -> Any:
        """Return one integer, or an array of them."""
        return discrete_laplace(self.exact_scale, size, source=source)


@final
@dataclass(frozen=True)
class GaussianNoise:
    """Gaussian noise in steps: the double ``stddev`` that is drawn with, and its loss."""

    stddev: float
    loss: Loss
    calibration: str

    @property
    def quantile(self) -> Quantile:
        """How far the noise reaches, for a risk."""
        return gaussian_quantile(self.stddev)

    @property
    def parameters(self) -> dict[str, object]:
        """What the provenance says of the noise."""
        return {
            "stddev_in_steps": self.stddev,
            "calibration": self.calibration,
            "relation": self.loss.relation.value,
        }

    def draw(self, size: int | None, source: Source) -> Any:
        """Return one integer, or an array of them."""
        return discrete_gaussian(Fraction(self.stddev) ** 2, size, source=source)


def choose_grid(
    about: Callable[[Fraction], Fraction],
    sensitivity: object,
    granularity: object,
    norm: str,
    coordinates: int | None,
) -> tuple[Fraction, Fraction]:
    """Return the granularity and the sensitivity in its steps.

    ``about`` gives the noise for a sensitivity; ``coordinates`` None is one number.
    """
    change = _validate.fraction("sensitivity", sensitivity, above=0)
    rows = coordinates or 1
    grid = grid_for(
        granularity,
        noise=about(change),
        sensitivity=change,
        coordinates=rows if norm == "l1" else math.isqrt(rows - 1) + 1,
        array=coordinates is not None,
    )
    steps = sensitivity_on_grid(change, granularity=grid, norm=norm, coordinates=rows)
    if steps > 1 << 500:
        raise InvalidValue("sensitivity", sensitivity, "at most 2**500 steps of the granularity")
    return grid, steps


def read_laplace_on_grid(
    sensitivity: object,
    epsilon: object,
    scale: object,
    granularity: object,
    relation: Relation | str,
    coordinates: int | None,
) -> tuple[Fraction, LaplaceNoise]:
    """Return the granularity and the noise in its steps; ``coordinates`` None is one number."""
    stated = None
    if _validate.exactly_one(epsilon=epsilon, scale=scale) == "scale":
        stated = Fraction(read_noise("scale", scale))

    def about(change: Fraction) -> Fraction:
        return change / read_epsilon(epsilon)[0] if stated is None else stated

    grid, steps = choose_grid(about, sensitivity, granularity, "l1", coordinates)
    noise = LaplaceNoise.read(
        sensitivity=math.ceil(steps),
        epsilon=epsilon,
        scale=None if stated is None else stated / grid,
        relation=relation,
    )
    if coordinates is not None:
        check_steps(granularity, noise.scale)
    return grid, noise


@final
@dataclass(frozen=True)
class GaussianTarget:
    """Either a deviation, or an epsilon and a delta with the way to meet them."""

    stddev: float | None
    epsilon: float
    delta: float
    calibration: str

    def about(self, norm: Fraction) -> Fraction:
        """Return the deviation that continuous noise would need for an L2 sensitivity ``norm``."""
        if self.stddev is not None:
            return Fraction(self.stddev)
        if self.calibration == "classical":
            return norm * Fraction(gaussian_classical_stddev(self.epsilon, self.delta))
        return norm / Fraction(_largest_mu(self.epsilon, self.delta))

    def in_steps(self, grid: Fraction) -> GaussianTarget:
        """Return the same target, a deviation being counted in steps of the grid."""
        if self.stddev is None:
            return self
        steps = round_up("stddev", self.stddev, Fraction(self.stddev) / grid)
        return GaussianTarget(steps, self.epsilon, self.delta, self.calibration)

    def calibrate(self, norm: Fraction | int, loss_of: Callable[[float], Loss]) -> GaussianNoise:
        """Return the noise whose discrete loss, ``loss_of`` its deviation, meets the target."""
        argument, value = (
            ("epsilon", self.epsilon) if self.stddev is None else ("stddev", self.stddev)
        )
        stddev = round_up(argument, value, self.about(Fraction(norm)))
        if self.stddev is not None:
            return GaussianNoise(stddev, loss_of(stddev), self.calibration)
        met = _raise_until_met(stddev, self.epsilon, self.delta, loss_of)
        return GaussianNoise(*met, self.calibration)


def read_gaussian_target(
    stddev: object, epsilon: float | None, delta: float | None, calibration: str
) -> GaussianTarget:
    method = _validate.one_of("calibration", calibration, CALIBRATIONS)
    if _validate.exactly_one(stddev=stddev, epsilon=epsilon) == "stddev":
        if delta is not None:
            raise InvalidValue("delta", delta, "no value where stddev is given")
        return GaussianTarget(read_noise("stddev", stddev), 0.0, 0.0, "stated")
    target = GaussianTarget(
        None,
        _validate.real("epsilon", epsilon, above=0),
        _validate.real("delta", delta, above=0, below=1),
        method,
    )
    target.about(Fraction(1))  # the classical theorem refuses here, before anything else
    return target


def _raise_until_met(
    stddev: float, epsilon: float, delta: float, loss_of: Callable[[float], Loss]
) -> tuple[float, Loss]:
    """Raise the noise until the certified reading of the discrete loss meets the target.

    Where that took a large step, the interval between the last noise that missed it and the
    first that met it is halved until it is narrow. What is returned was read and met it.
    """
    missed = stddev
    for _ in range(100):
        loss = loss_of(stddev)
        reading = _read_epsilon_of(loss, delta)
        if reading <= epsilon:
            break
        missed = stddev
        stddev *= 1.0 + min(max(1.02 * (reading / epsilon - 1.0), 1e-9), 1.0)
    else:
        raise NotApplicable(
            f"no Gaussian noise was certified for epsilon {epsilon!r} and delta {delta!r}"
        )
    while stddev > missed * (1.0 + _CLOSE):
        middle = 0.5 * (missed + stddev)
        candidate = loss_of(middle)
        if _read_epsilon_of(candidate, delta) <= epsilon:
            stddev, loss = middle, candidate
        else:
            missed = middle
    return stddev, loss


@lru_cache(maxsize=256)
def _largest_mu(epsilon: float, delta: float) -> float:
    return gaussian_mu(epsilon, delta)


@lru_cache(maxsize=256)
def _read_epsilon_of(loss: Loss, delta: float) -> float:
    return loss.epsilon(delta=delta)
