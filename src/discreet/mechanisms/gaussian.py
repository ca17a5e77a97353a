"""S12: the Gaussian mechanism, exact on integers or a declared grid, for numbers and vectors.

Discrete Gaussian noise, P(x) proportional to exp(-x^2 / (2 stddev^2)), is added to an answer
whose L2 sensitivity under the stated relation is at most ``sensitivity``. The noise is set by
``stddev``, or by ``epsilon`` and ``delta`` through one of two calibrations:

``analytic``
    Balle and Wang 2018, theorem 8: the least noise, for every epsilon > 0. It is
    then checked on the *discrete* noise: the reading of the loss at delta is at most epsilon.
``classical``
    stddev = sqrt(2 ln(1.25 / delta)) sensitivity / epsilon, Dwork and Roth 2014,
    theorem A.1, proved for epsilon < 1 only and refused elsewhere (S5). Never less noise.

Losses: one number has exactly the pair ``DiscreteGaussian(stddev, sensitivity)``, both in
steps of the grid (the noise is log-concave, so the largest shift is the worst). For a vector
the worst split of an L2 shift over coordinates is not one of these pairs; its loss is
``GDP(mu)``, by the domination theorem of :mod:`.gaussian_dominance`, and
``ZCDP(sensitivity^2 / (2 stddev^2))`` (Canonne, Kamath and Steinke 2020, theorem 14) where that
theorem is silent because the noise is below about one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms.error_bars import (
    gaussian_reach,
    integer_bars,
    integers_bars,
    real_bars,
    saturated,
)
from discreet.mechanisms.gaussian_dominance import dominating_mu
from discreet.mechanisms.parameters import (
    either,
    few_enough_steps,
    grid_for,
    rounded_up,
    stated_noise,
)
from discreet.mechanisms.release import Release
from discreet.privacy import GDP, ZCDP, DiscreteGaussian, Loss, Relation
from discreet.privacy.theorems import gaussian_classical_stddev, gaussian_mu
from discreet.randomness import (
    Source,
    choose_source,
    discrete_gaussian,
    gaussian_on_grid,
    read_integer,
    read_integers,
    read_real,
    read_reals,
    sensitivity_on_grid,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "CALIBRATIONS",
    "gaussian_integer",
    "gaussian_integers",
    "gaussian_real",
    "gaussian_vector",
]

CALIBRATIONS = ("analytic", "classical")
"""How epsilon and delta become noise."""

# The noise is within this share of the least that the search could certify.
_CLOSE = 2e-3


@final
@dataclass(frozen=True)
class _Noise:
    """Gaussian noise in steps: the double ``stddev`` that is drawn with, and its loss."""

    stddev: float
    loss: Loss

    @property
    def variance(self) -> Fraction:
        return Fraction(self.stddev) ** 2


def gaussian_integer(
    value: int,
    *,
    sensitivity: int,
    stddev: object = None,
    epsilon: float | None = None,
    delta: float | None = None,
    calibration: str = "analytic",
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[int]:
    """S12: an integer answer plus discrete Gaussian noise, with its exact loss.

    >>> noisy = gaussian_integer(120, sensitivity=1, epsilon=1.0, delta=1e-5, insecure_seed=7)
    >>> noisy.loss.epsilon(delta=1e-5) <= 1.0
    True
    >>> 3.73 < noisy.loss.stddev < 3.75
    True
    >>> low, high = noisy.interval(confidence=0.95)
    >>> low <= 120 <= high
    True
    """
    change = _validate.integer("sensitivity", sensitivity, at_least=1, at_most=1 << 500)
    target = _target(stddev, epsilon, delta, calibration)
    noise = _noise(target, change, partial(_one_number, change, Relation.parse(relation)))
    bits = choose_source(source, insecure_seed)
    answer = read_integer("value", value)
    noisy = answer + discrete_gaussian(noise.variance, source=bits)
    return Release(
        noisy,
        noise.loss,
        _provenance("gaussian_integer", noise, target, bits),
        integer_bars(noisy, gaussian_reach(noise.stddev)),
    )


def gaussian_integers(
    values: Any,
    *,
    sensitivity: object,
    changed: int | None = None,
    stddev: object = None,
    epsilon: float | None = None,
    delta: float | None = None,
    calibration: str = "analytic",
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[NDArray[np.int64]]:
    """S12: an integer array of L2 sensitivity ``sensitivity``; mu-GDP (see the module).

    ``changed`` is the largest number of coordinates in which neighbours can differ (None: all).
    ``interval`` holds for all coordinates together.

    >>> noisy = gaussian_integers([3, 0, 9], sensitivity=1, stddev=20)
    >>> noisy.loss  # 1/20, and a little for the steps
    GDP(mu=0.0500...)
    """
    answers = read_integers("values", values)
    norm = _validate.fraction("sensitivity", sensitivity, above=0)
    shift = rounded_up("sensitivity", sensitivity, norm)
    target = _target(stddev, epsilon, delta, calibration)
    coordinates = _coordinates(changed, answers.size)
    noise = _noise(
        target, norm, partial(_many_numbers, shift, coordinates, Relation.parse(relation))
    )
    bits = choose_source(source, insecure_seed)
    draws = discrete_gaussian(noise.variance, answers.size, source=bits).reshape(answers.shape)
    return Release(
        saturated(answers, draws),
        noise.loss,
        _provenance("gaussian_integers", noise, target, bits, shape=list(answers.shape)),
        integers_bars(answers, draws, gaussian_reach(noise.stddev)),
    )


def gaussian_real(
    value: Any,
    *,
    sensitivity: object,
    stddev: object = None,
    epsilon: float | None = None,
    delta: float | None = None,
    calibration: str = "analytic",
    granularity: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[float]:
    """S12: a real answer on a grid plus discrete Gaussian noise, with its exact loss.

    ``granularity`` is a power of two that must not be chosen by looking at the data; None means
    the one just below 2**-40 of the noise (finer for a tiny mu). The loss speaks of
    ceil(sensitivity / granularity) steps. The value must be finite: clip before.

    >>> noisy = gaussian_real(0.25, sensitivity=1, stddev=4, granularity=2**-10)
    >>> noisy.loss, noisy.value * 2**10 == round(noisy.value * 2**10)
    (DiscreteGaussian(stddev=4096.0, sensitivity=1024), True)
    """
    target = _target(stddev, epsilon, delta, calibration)
    grid, norm = _on_grid(target, sensitivity, granularity, coordinates=None)
    steps = math.ceil(norm)
    noise = _noise(
        target.in_steps(grid), steps, partial(_one_number, steps, Relation.parse(relation))
    )
    bits = choose_source(source, insecure_seed)
    answer = read_real("value", value)
    noisy = gaussian_on_grid(
        answer, stddev=Fraction(noise.stddev) * grid, granularity=grid, source=bits
    )
    return Release(
        float(noisy.values),
        noise.loss,
        _provenance("gaussian_real", noise, target, bits, granularity=str(grid)),
        real_bars(noisy.steps, grid, gaussian_reach(noise.stddev)),
    )


def gaussian_vector(
    values: Any,
    *,
    sensitivity: object,
    changed: int | None = None,
    stddev: object = None,
    epsilon: float | None = None,
    delta: float | None = None,
    calibration: str = "analytic",
    granularity: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[NDArray[np.float64]]:
    """S12: a real array of L2 sensitivity ``sensitivity`` on a grid; mu-GDP, rounding included.

    ``changed`` is the largest number of coordinates in which neighbours can differ (None: all);
    rounding adds the square root of that many steps to the sensitivity. ``interval`` holds for
    all coordinates together.

    >>> noisy = gaussian_vector([0.5, 2.0], sensitivity=1, epsilon=1.0, delta=1e-5)
    >>> noisy.loss, noisy.loss.epsilon(delta=1e-5) <= 1.0
    (GDP(mu=0.26805...), True)
    """
    answers = read_reals("values", values)
    target = _target(stddev, epsilon, delta, calibration)
    coordinates = _coordinates(changed, answers.size)
    grid, norm = _on_grid(target, sensitivity, granularity, coordinates=coordinates)
    shift = rounded_up("sensitivity", sensitivity, norm)
    noise = _noise(
        target.in_steps(grid),
        norm,
        partial(_many_numbers, shift, coordinates, Relation.parse(relation)),
    )
    few_enough_steps(granularity, noise.stddev)
    bits = choose_source(source, insecure_seed)
    noisy = gaussian_on_grid(
        answers, stddev=Fraction(noise.stddev) * grid, granularity=grid, source=bits
    )
    return Release(
        np.asarray(noisy.values),
        noise.loss,
        _provenance(
            "gaussian_vector", noise, target, bits, granularity=str(grid), shape=list(answers.shape)
        ),
        real_bars(noisy.steps, grid, gaussian_reach(noise.stddev)),
    )


@final
@dataclass(frozen=True)
class _Target:
    """Either a deviation, or an epsilon and a delta with the way to meet them."""

    stddev: float | None
    epsilon: float
    delta: float
    calibration: str

    def about(self, norm: Fraction) -> Fraction:
        """The deviation that continuous noise would need for an L2 sensitivity ``norm``."""
        if self.stddev is not None:
            return Fraction(self.stddev)
        if self.calibration == "classical":
            return norm * Fraction(gaussian_classical_stddev(self.epsilon, self.delta))
        return norm / Fraction(_largest_mu(self.epsilon, self.delta))

    def in_steps(self, grid: Fraction) -> _Target:
        if self.stddev is None:
            return self
        steps = rounded_up("stddev", self.stddev, Fraction(self.stddev) / grid)
        return _Target(steps, self.epsilon, self.delta, self.calibration)


def _target(
    stddev: object, epsilon: float | None, delta: float | None, calibration: str
) -> _Target:
    method = _validate.one_of("calibration", calibration, CALIBRATIONS)
    if either(stddev=stddev, epsilon=epsilon) == "stddev":
        if delta is not None:
            raise InvalidValue("delta", delta, "no value where stddev is given")
        return _Target(stated_noise("stddev", stddev), 0.0, 0.0, "stated")
    target = _Target(
        None,
        _validate.real("epsilon", epsilon, above=0),
        _validate.real("delta", delta, above=0, below=1),
        method,
    )
    target.about(Fraction(1))  # the classical theorem refuses here, before anything else
    return target


def _noise(target: _Target, norm: Fraction | int, loss_of: Callable[[float], Loss]) -> _Noise:
    argument, value = (
        ("epsilon", target.epsilon) if target.stddev is None else ("stddev", target.stddev)
    )
    stddev = rounded_up(argument, value, target.about(Fraction(norm)))
    if target.stddev is None:
        return _calibrated(stddev, target.epsilon, target.delta, loss_of)
    return _Noise(stddev, loss_of(stddev))


def _calibrated(
    stddev: float, epsilon: float, delta: float, loss_of: Callable[[float], Loss]
) -> _Noise:
    """Raise the noise until the certified reading of the discrete loss meets the target.

    Where that took a large step, the interval between the last noise that missed it and the
    first that met it is halved until it is narrow. What is returned was read and met it.
    """
    missed = stddev
    for _ in range(100):
        loss = loss_of(stddev)
        reading = _reading(loss, delta)
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
        if _reading(candidate, delta) <= epsilon:
            stddev, loss = middle, candidate
        else:
            missed = middle
    return _Noise(stddev, loss)


@lru_cache(maxsize=256)
def _largest_mu(epsilon: float, delta: float) -> float:
    return gaussian_mu(epsilon, delta)


@lru_cache(maxsize=256)
def _reading(loss: Loss, delta: float) -> float:
    return loss.epsilon(delta=delta)


def _one_number(steps: int, relation: Relation, stddev: float) -> Loss:
    return DiscreteGaussian(stddev, steps, relation)


def _many_numbers(shift: float, coordinates: int, relation: Relation, stddev: float) -> Loss:
    mu = dominating_mu(stddev, shift, coordinates=coordinates)
    if mu is not None:
        return GDP(mu, relation)
    ratio = Fraction(shift) / Fraction(stddev)
    return ZCDP(rounded_up("stddev", stddev, ratio * ratio / 2), relation)


def _on_grid(
    target: _Target, sensitivity: object, granularity: object, *, coordinates: int | None
) -> tuple[Fraction, Fraction]:
    """Return the granularity and the L2 sensitivity in its steps; None is one number."""
    norm = _validate.fraction("sensitivity", sensitivity, above=0)
    rows = coordinates or 1
    grid = grid_for(
        granularity,
        noise=target.about(norm),
        sensitivity=norm,
        coordinates=math.isqrt(rows - 1) + 1,
        array=coordinates is not None,
    )
    steps = sensitivity_on_grid(norm, granularity=grid, norm="l2", coordinates=rows)
    if steps > 1 << 500:
        raise InvalidValue("sensitivity", sensitivity, "at most 2**500 steps of the granularity")
    return grid, steps


def _coordinates(changed: int | None, size: int) -> int:
    if changed is None:
        return size
    return _validate.integer("changed", changed, at_least=1, at_most=size)


def _provenance(
    mechanism: str, noise: _Noise, target: _Target, bits: Source, **more: object
) -> dict[str, Any]:
    return {
        "mechanism": mechanism,
        "stddev_in_steps": noise.stddev,
        "calibration": target.calibration,
        "relation": noise.loss.relation.value,
        **more,
        **bits.provenance,
    }
