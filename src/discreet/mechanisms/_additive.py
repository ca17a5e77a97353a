"""The Laplace and the Gaussian mechanism, exact, for numbers and arrays.

All eight functions take one path: read the parameters, choose a grid, set the noise, draw it,
release. Which of them is right depends on the function called, never on the value: the sum of no
numbers is an ``int`` in Python and the sum of some is a ``float``, and the type of an answer must
not tell them apart. **Integers** stay integers. **Real numbers** are rounded to a declared grid,
get integer noise in steps of the grid, and are released as multiples of ``granularity``; the
loss is that of the integer mechanism for the sensitivity *after* rounding
(:func:`discreet.randomness.sensitivity_on_grid`), and the noise is set for that sensitivity.

**Laplace.** Noise with P(x) proportional to exp(-|x| / scale) is added to an answer whose L1
sensitivity under the stated relation is at most ``sensitivity``; that is (sensitivity / scale)-DP
(Dwork, McSherry, Nissim and Smith 2006, theorem 1; on the integers Ghosh, Roughgarden and
Sundararajan 2009).

*Loss of a vector.* Let the answers of two neighbours differ by (k_1, ..., k_d), the sum of
|k_i| being at most D. Change one coordinate after the other: the i-th change is the pair of
one-dimensional noise shifted by k_i. The noise is log-concave, so thresholds are the most
powerful tests for every shift at once, and the trade-off functions of the changes chain into
that of one shift by the sum of |k_i|; by the group-privacy lemma of Dong, Roth and Su (2022,
theorem 2.14) the chain is a bound for the whole change. Hence
``DiscreteLaplace(scale, sensitivity=D)`` dominates the vector release as well, and it is tight
when one coordinate can take all of the change.

**Gaussian.** Discrete Gaussian noise, P(x) proportional to exp(-x^2 / (2 stddev^2)), is added to
an answer whose L2 sensitivity is at most ``sensitivity``. How its size is set
stands in :mod:`._noise`.

One number has exactly the pair ``DiscreteGaussian(stddev, sensitivity)``, both in
steps of the grid (the noise is log-concave, so the largest shift is the worst). For a vector
the worst split of an L2 shift over coordinates is not one of these pairs; its loss is
``GDP(mu)``, by :func:`discreet.privacy.theorems.discrete_gaussian_mu`, and
``ZCDP(sensitivity^2 / (2 stddev^2))`` (Canonne, Kamath and Steinke 2020, theorem 14) where that
theorem is silent because the noise is below about one step.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet import _validate
from discreet.mechanisms._intervals import integer_bars, integers_bars, real_bars, saturate
from discreet.mechanisms._noise import (
    GaussianNoise,
    LaplaceNoise,
    choose_grid,
    read_gaussian_target,
    read_laplace_on_grid,
)
from discreet.mechanisms._parameters import check_steps, round_up
from discreet.mechanisms._release import Release
from discreet.privacy import GDP, ZCDP, DiscreteGaussian, Loss, Relation
from discreet.privacy.theorems import discrete_gaussian_mu
from discreet.randomness import (
    GridRelease,
    Source,
    choose_source,
    read_integer,
    read_integers,
    read_real,
    read_reals,
    round_to_grid,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


def laplace_integer(
    value: int,
    *,
    sensitivity: int,
    epsilon: object = None,
    scale: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[int]:
    """Release an integer plus discrete Laplace noise; (sensitivity / scale)-DP.

    Parameters
    ----------
    value : int
        The private answer, an integer of any size.
    sensitivity : int
        By how much the answer changes at most between neighbours.
    epsilon, scale : number or str
        The pure epsilon to meet, or the scale of the noise: exactly one of them.
    relation : Relation or str
        What neighbours are.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release of int
        The noisy integer, with its exact loss. ``interval`` uses the exact tail of the noise.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; a private value is not shown.

    Examples
    --------
    >>> noisy = laplace_integer(120, sensitivity=1, epsilon=0.1, insecure_seed=7)
    >>> noisy.loss, noisy.loss.epsilon(delta=0)
    (DiscreteLaplace(scale=10.0), 0.1)
    >>> low, high = noisy.interval(confidence=0.95)
    >>> low <= 120 <= high, high - low
    (True, 60)
    """
    steps = _read_steps(sensitivity)
    noise = LaplaceNoise.read(sensitivity=steps, epsilon=epsilon, scale=scale, relation=relation)
    return _release_integer("laplace_integer", value, noise, choose_source(source, insecure_seed))


def laplace_integers(
    values: Any,
    *,
    sensitivity: int,
    epsilon: object = None,
    scale: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[NDArray[np.int64]]:
    """Release an integer array plus discrete Laplace noise; (sensitivity / scale)-DP.

    Parameters
    ----------
    values : array of int
        The private answers, integers that fit 64 bits.
    sensitivity : int
        The L1 norm of the largest change between neighbours.
    epsilon, scale : number or str
        The pure epsilon to meet, or the scale of the noise: exactly one of them.
    relation : Relation or str
        What neighbours are.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release of array
        The noisy integers. The loss dominates every split of the sensitivity over coordinates
        and is tight if one coordinate can take all of it. ``interval`` holds for all
        coordinates together.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; a private value is not shown.

    Examples
    --------
    >>> noisy = laplace_integers([3, 0, 9], sensitivity=2, scale=0.01)  # hardly any noise
    >>> noisy.value.tolist(), noisy.loss.epsilon(delta=0)
    ([3, 0, 9], 200.0)
    """
    steps = _read_steps(sensitivity)
    noise = LaplaceNoise.read(sensitivity=steps, epsilon=epsilon, scale=scale, relation=relation)
    answers = read_integers("values", values)
    return _release_integers(
        "laplace_integers", answers, noise, choose_source(source, insecure_seed)
    )


def laplace_real(
    value: Any,
    *,
    sensitivity: object,
    epsilon: object = None,
    scale: object = None,
    granularity: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[float]:
    """Release a real number on a grid plus Laplace noise; pure DP, rounding included.

    Parameters
    ----------
    value : number
        The private answer. It must be finite: clip before.
    sensitivity : number or str
        By how much the answer changes at most between neighbours.
    epsilon, scale : number or str
        The pure epsilon to meet, or the scale of the noise: exactly one of them.
    granularity : number or str, optional
        The step of the grid, a power of two that must not be chosen by looking at the data.
        By default just below 2**-40 of the noise, and finer for a tiny epsilon.
    relation : Relation or str
        What neighbours are.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release of float
        A multiple of the granularity. With D = ceil(sensitivity / granularity) steps it is
        (D granularity / scale)-DP, and with ``epsilon`` the scale is
        D granularity / epsilon.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; a private value is not shown.

    Examples
    --------
    >>> noisy = laplace_real(0.25, sensitivity=0.5, epsilon=1, granularity=2**-10)
    >>> noisy.value * 2**10 == round(noisy.value * 2**10), noisy.loss.epsilon(delta=0)
    (True, 1.0)
    >>> noisy.loss
    DiscreteLaplace(scale=512.0, sensitivity=512)
    """
    grid, noise = read_laplace_on_grid(sensitivity, epsilon, scale, granularity, relation, None)
    answer = read_real("value", value)
    bits = choose_source(source, insecure_seed)
    return _release_on_grid("laplace_real", answer, grid, noise, bits)


def laplace_vector(
    values: Any,
    *,
    sensitivity: object,
    changed: int | None = None,
    epsilon: object = None,
    scale: object = None,
    granularity: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[NDArray[np.float64]]:
    """Release a real array on a grid plus Laplace noise; pure DP, rounding included.

    Parameters
    ----------
    values : array
        The private answers. They must be finite: clip before.
    sensitivity : number or str
        The L1 norm of the largest change between neighbours.
    changed : int, optional
        The largest number of coordinates in which neighbours can differ; all by default.
    epsilon, scale : number or str
        The pure epsilon to meet, or the scale of the noise: exactly one of them.
    granularity : number or str, optional
        The step of the grid, a power of two that must not be chosen by looking at the data.
        By default just below 2**-40 of the noise, and finer for a tiny epsilon.
    relation : Relation or str
        What neighbours are.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release of array
        Multiples of the granularity. Rounding adds at most ``changed`` steps to the
        sensitivity. ``interval`` holds for all coordinates together.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; a private value is not shown.

    Examples
    --------
    >>> noisy = laplace_vector([0.5, 2.0], sensitivity=1, epsilon=0.5, granularity=2**-4)
    >>> noisy.loss, noisy.loss.epsilon(delta=0)
    (DiscreteLaplace(scale=36.0, sensitivity=18), 0.5)
    """
    answers = read_reals("values", values)
    coordinates = _read_coordinates(changed, answers.size)
    grid, noise = read_laplace_on_grid(
        sensitivity, epsilon, scale, granularity, relation, coordinates
    )
    bits = choose_source(source, insecure_seed)
    return _release_on_grid("laplace_vector", answers, grid, noise, bits)


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
    """Release an integer plus discrete Gaussian noise, with its exact loss.

    Parameters
    ----------
    value : int
        The private answer, an integer of any size.
    sensitivity : int
        By how much the answer changes at most between neighbours.
    stddev : number or str, optional
        The standard deviation of the noise, unless epsilon is given.
    epsilon, delta : float, optional
        What to meet instead.
    calibration : {"analytic", "classical"}
        How epsilon and delta become noise.
    relation : Relation or str
        What neighbours are.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release of int
        The noisy integer; its loss is a ``DiscreteGaussian``.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; a private value is not shown.

    Examples
    --------
    >>> noisy = gaussian_integer(120, sensitivity=1, epsilon=1.0, delta=1e-5, insecure_seed=7)
    >>> noisy.loss.epsilon(delta=1e-5) <= 1.0
    True
    >>> 3.73 < noisy.loss.stddev < 3.75
    True
    >>> low, high = noisy.interval(confidence=0.95)
    >>> low <= 120 <= high
    True
    """
    steps = _read_steps(sensitivity)
    target = read_gaussian_target(stddev, epsilon, delta, calibration)
    noise = target.calibrate(steps, partial(_one_number_loss, steps, Relation.parse(relation)))
    return _release_integer("gaussian_integer", value, noise, choose_source(source, insecure_seed))


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
    """Release an integer array plus discrete Gaussian noise; mu-GDP.

    Parameters
    ----------
    values : array of int
        The private answers, integers that fit 64 bits.
    sensitivity : number or str
        The L2 norm of the largest change between neighbours.
    changed : int, optional
        The largest number of coordinates in which neighbours can differ; all by default.
    stddev : number or str, optional
        The standard deviation of the noise, unless epsilon is given.
    epsilon, delta : float, optional
        What to meet instead.
    calibration : {"analytic", "classical"}
        How epsilon and delta become noise.
    relation : Relation or str
        What neighbours are.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release of array
        The noisy integers; the loss is that of the module's text. ``interval`` holds for all
        coordinates together.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; a private value is not shown.

    Examples
    --------
    >>> noisy = gaussian_integers([3, 0, 9], sensitivity=1, stddev=20)
    >>> noisy.loss  # 1/20, and a little for the steps
    GDP(mu=0.0500...)
    """
    answers = read_integers("values", values)
    norm = _validate.fraction("sensitivity", sensitivity, above=0)
    shift = round_up("sensitivity", sensitivity, norm)
    target = read_gaussian_target(stddev, epsilon, delta, calibration)
    coordinates = _read_coordinates(changed, answers.size)
    neighbours = Relation.parse(relation)
    noise = target.calibrate(norm, partial(_many_numbers_loss, shift, coordinates, neighbours))
    return _release_integers(
        "gaussian_integers", answers, noise, choose_source(source, insecure_seed)
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
    """Release a real number on a grid plus discrete Gaussian noise, with its exact loss.

    Parameters
    ----------
    value : number
        The private answer. It must be finite: clip before.
    sensitivity : number or str
        By how much the answer changes at most between neighbours.
    stddev : number or str, optional
        The standard deviation of the noise, unless epsilon is given.
    epsilon, delta : float, optional
        What to meet instead.
    calibration : {"analytic", "classical"}
        How epsilon and delta become noise.
    granularity : number or str, optional
        The step of the grid, a power of two that must not be chosen by looking at the data.
        By default just below 2**-40 of the noise, and finer for a tiny epsilon.
    relation : Relation or str
        What neighbours are.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release of float
        A multiple of the granularity. The loss speaks of
        ceil(sensitivity / granularity) steps.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; a private value is not shown.

    Examples
    --------
    >>> noisy = gaussian_real(0.25, sensitivity=1, stddev=4, granularity=2**-10)
    >>> noisy.loss, noisy.value * 2**10 == round(noisy.value * 2**10)
    (DiscreteGaussian(stddev=4096.0, sensitivity=1024), True)
    """
    target = read_gaussian_target(stddev, epsilon, delta, calibration)
    grid, norm = choose_grid(target.about, sensitivity, granularity, "l2", None)
    steps = math.ceil(norm)
    loss_of = partial(_one_number_loss, steps, Relation.parse(relation))
    noise = target.in_steps(grid).calibrate(steps, loss_of)
    answer = read_real("value", value)
    bits = choose_source(source, insecure_seed)
    return _release_on_grid("gaussian_real", answer, grid, noise, bits)


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
    """Release a real array on a grid plus discrete Gaussian noise; mu-GDP, rounding included.

    Parameters
    ----------
    values : array
        The private answers. They must be finite: clip before.
    sensitivity : number or str
        The L2 norm of the largest change between neighbours.
    changed : int, optional
        The largest number of coordinates in which neighbours can differ; all by default.
    stddev : number or str, optional
        The standard deviation of the noise, unless epsilon is given.
    epsilon, delta : float, optional
        What to meet instead.
    calibration : {"analytic", "classical"}
        How epsilon and delta become noise.
    granularity : number or str, optional
        The step of the grid, a power of two that must not be chosen by looking at the data.
        By default just below 2**-40 of the noise, and finer for a tiny epsilon.
    relation : Relation or str
        What neighbours are.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release of array
        Multiples of the granularity. Rounding adds the square root of ``changed`` steps to
        the sensitivity. ``interval`` holds for all coordinates together.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; a private value is not shown.

    Examples
    --------
    >>> noisy = gaussian_vector([0.5, 2.0], sensitivity=1, epsilon=1.0, delta=1e-5)
    >>> noisy.loss, noisy.loss.epsilon(delta=1e-5) <= 1.0
    (GDP(mu=0.26805...), True)
    """
    answers = read_reals("values", values)
    target = read_gaussian_target(stddev, epsilon, delta, calibration)
    coordinates = _read_coordinates(changed, answers.size)
    grid, norm = choose_grid(target.about, sensitivity, granularity, "l2", coordinates)
    shift = round_up("sensitivity", sensitivity, norm)
    loss_of = partial(_many_numbers_loss, shift, coordinates, Relation.parse(relation))
    noise = target.in_steps(grid).calibrate(norm, loss_of)
    check_steps(granularity, noise.stddev)
    bits = choose_source(source, insecure_seed)
    return _release_on_grid("gaussian_vector", answers, grid, noise, bits)


# --- The path that all of them take -------------------------------------------------------


def _release_integer(
    mechanism: str, value: object, noise: LaplaceNoise | GaussianNoise, bits: Source
) -> Release[int]:
    loss = noise.loss
    noisy = read_integer("value", value) + noise.draw(None, bits)
    provenance = {"mechanism": mechanism, **noise.parameters, **bits.provenance}
    return Release(noisy, loss, provenance, integer_bars(noisy, noise.quantile))


def _release_integers(
    mechanism: str,
    answers: NDArray[np.int64],
    noise: LaplaceNoise | GaussianNoise,
    bits: Source,
) -> Release[NDArray[np.int64]]:
    loss = noise.loss
    draws = noise.draw(answers.size, bits).reshape(answers.shape)
    shape = list(answers.shape)
    return Release(
        saturate(answers, draws),
        loss,
        {"mechanism": mechanism, **noise.parameters, "shape": shape, **bits.provenance},
        integers_bars(answers, draws, noise.quantile),
    )


def _release_on_grid(
    mechanism: str, answer: Any, grid: Fraction, noise: LaplaceNoise | GaussianNoise, bits: Source
) -> Release[Any]:
    """Round one number or an array to the grid, and add noise in its steps."""
    loss = noise.loss
    rounded = round_to_grid(answer, granularity=grid)
    more: dict[str, object] = {"granularity": str(grid)}
    if isinstance(rounded, np.ndarray):
        more["shape"] = list(rounded.shape)
        steps = rounded + noise.draw(rounded.size, bits).reshape(rounded.shape)
    else:
        steps = rounded + noise.draw(None, bits)
    return Release(
        GridRelease(steps, grid, bits.provenance).values,
        loss,
        {"mechanism": mechanism, **noise.parameters, **more, **bits.provenance},
        real_bars(steps, grid, noise.quantile),
    )


def _read_steps(sensitivity: object) -> int:
    return _validate.integer("sensitivity", sensitivity, at_least=1, at_most=1 << 500)


def _read_coordinates(changed: int | None, size: int) -> int:
    if changed is None:
        return size
    return _validate.integer("changed", changed, at_least=1, at_most=size)


def _one_number_loss(steps: int, relation: Relation, stddev: float) -> Loss:
    return DiscreteGaussian(stddev, steps, relation)


def _many_numbers_loss(shift: float, coordinates: int, relation: Relation, stddev: float) -> Loss:
    mu = discrete_gaussian_mu(stddev, shift, coordinates=coordinates)
    if mu is not None:
        return GDP(mu, relation)
    ratio = Fraction(shift) / Fraction(stddev)
    return ZCDP(round_up("stddev", stddev, ratio * ratio / 2), relation)
