"""Laplace and Gaussian noise for real-valued answers, on a declared grid.

A release of the real number v goes through integers: v is rounded to the grid
of ``granularity`` g (a power of two), an exact discrete draw is added, and the
integer times g is the answer. Nothing but that integer depends on the data, so
the loss is that of the discrete mechanism on integers of a known sensitivity; the
last bits of a float cannot give the input away.

Rounding is r(v) = floor(v/g + 1/2). It is monotone and commutes with shifts by
whole steps, hence |v - w| <= s implies |r(v) - r(w)| <= ceil(s/g): for one number
nothing is lost when the sensitivity is a whole number of steps. (Rounding ties to
even has no such property: 0.5 and 1.5 go to 0 and 2.) For vectors with at most d
coordinates changed,

    L1:  sum ceil(|v_i - w_i| / g)            <=  s/g + d      (floor of it),
    L2:  sqrt(sum ceil(|v_i - w_i| / g)^2)    <=  s/g + sqrt(d),

since ceil(a) < a + 1 and by Minkowski's inequality. If all values are on the grid
already, nothing is added.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._validate import withheld
from discreet.errors import InvalidValue
from discreet.randomness._answers import read_real, read_reals, to_fraction
from discreet.randomness._discrete import discrete_gaussian, discrete_laplace
from discreet.randomness._sources import Source, choose_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BULK_LIMIT = 1 << 61
_SMALLEST_EXPONENT, _LARGEST_EXPONENT = -1000, 1000


@final
@dataclass(frozen=True, eq=False)
class GridRelease:
    """Noisy steps of the grid, and the values that they stand for.

    ``steps`` is an int for one number and an integer array for several. ``values`` are
    the nearest doubles of ``steps * granularity``: exact up to 2**53 steps, and a
    mere function of the released steps beyond.
    """

    steps: int | NDArray[Any]
    granularity: Fraction
    provenance: dict[str, str]

    @property
    def values(self) -> float | NDArray[np.float64]:
        if not isinstance(self.steps, np.ndarray):
            return _nearest_double(self.steps * self.granularity)
        if self.steps.dtype == object:
            doubles = [_nearest_double(step * self.granularity) for step in self.steps.ravel()]
            return np.array(doubles, dtype=np.float64).reshape(self.steps.shape)
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(np.ldexp(self.steps.astype(np.float64), _exponent(self.granularity)))


def default_granularity(noise: object) -> Fraction:
    """Return the power of two in (noise / 2**41, noise / 2**40] for a Laplace scale or stddev.

    Parameters
    ----------
    noise : number or str
        The Laplace scale or the standard deviation, positive.

    Returns
    -------
    Fraction
        The step of the grid.

    Raises
    ------
    InvalidValue
        If ``noise`` is not a positive number.

    Examples
    --------
    >>> default_granularity(10) == Fraction(1, 2**37)
    True
    """
    exact = _validate.fraction("noise", noise, above=0)
    exponent = exact.numerator.bit_length() - exact.denominator.bit_length()
    if _power_of_two(exponent) > exact:
        exponent -= 1
    return check_granularity(_power_of_two(exponent - 40))


def check_granularity(granularity: object) -> Fraction:
    """Return a granularity as an exact power of two between 2**-1000 and 2**1000, or raise.

    Parameters
    ----------
    granularity : number or str
        The step of a grid. A float is read as the binary number that it is.

    Returns
    -------
    Fraction
        The same number.

    Raises
    ------
    InvalidValue
        If it is not a power of two in that range.
    """
    expected = "a power of two from 2**-1000 to 2**1000, such as 2**-40 or Fraction(1, 1024)"
    exact = (
        Fraction(granularity)  # a float power of two is meant as it is, not as it prints
        if isinstance(granularity, float) and math.isfinite(granularity)
        else _validate.fraction("granularity", granularity, above=0)
    )
    if (
        exact <= 0
        or exact.numerator & (exact.numerator - 1)
        or exact.denominator & (exact.denominator - 1)
    ):
        raise InvalidValue("granularity", granularity, expected)
    if not _SMALLEST_EXPONENT <= _exponent(exact) <= _LARGEST_EXPONENT:
        raise InvalidValue("granularity", granularity, expected)
    return exact


def sensitivity_on_grid(
    sensitivity: object,
    *,
    granularity: object,
    norm: str = "l1",
    coordinates: int = 1,
    values_on_grid: bool = False,
) -> Fraction:
    """Return an upper bound, in steps, on the sensitivity of the rounded values.

    Parameters
    ----------
    sensitivity : number or str
        How far the values of neighbours are apart at most, in the given norm.
    granularity : number or str
        The step of the grid, a power of two.
    norm : {"l1", "l2"}
        The norm of the sensitivity.
    coordinates : int
        The largest number of coordinates that can change between neighbours.
    values_on_grid : bool
        Whether all values are multiples of the granularity, so that rounding adds nothing.

    Returns
    -------
    Fraction
        The sensitivity in steps. The L2 bound rounds sqrt(d) up to a multiple of 2**-40.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> sensitivity_on_grid(1, granularity=2**-40) == 2**40
    True
    >>> sensitivity_on_grid("0.3", granularity="1/4")
    Fraction(2, 1)
    >>> sensitivity_on_grid(1, granularity="1/4", coordinates=5)
    Fraction(9, 1)
    """
    exact = _validate.fraction("sensitivity", sensitivity, above=0)
    step = check_granularity(granularity)
    _validate.one_of("norm", norm, ("l1", "l2"))
    coordinates = _validate.integer("coordinates", coordinates, at_least=1)
    if not isinstance(values_on_grid, bool):
        raise InvalidValue("values_on_grid", values_on_grid, "True or False")
    steps = exact / step
    if values_on_grid:
        return Fraction(math.floor(steps)) if norm == "l1" else steps
    if coordinates == 1:
        return Fraction(math.ceil(steps))
    if norm == "l1":
        return Fraction(math.floor(steps + coordinates))
    return steps + Fraction(math.isqrt((coordinates << 80) - 1) + 1, 1 << 40)


def round_to_grid(values: object, *, granularity: object) -> int | NDArray[Any]:
    """Return floor(v / granularity + 1/2), exactly.

    Parameters
    ----------
    values : number or array
        One finite number or an array of them; private, never shown in an error.
    granularity : number or str
        The step of the grid, a power of two.

    Returns
    -------
    int or array
        The steps. Arrays come back as int64, or as Python integers (dtype object) if a
        value has more steps than fit.

    Raises
    ------
    InvalidValue
        If the granularity is no power of two or a value is not finite.

    Examples
    --------
    >>> round_to_grid([0.5, 1.5, -0.5, 0.49999999999999994], granularity=1).tolist()
    [1, 2, 0, 0]
    """
    return _round(_read_values(values), check_granularity(granularity))


def laplace_on_grid(
    values: object, *, scale: object, granularity: object = None, source: Source | None = None
) -> GridRelease:
    """Return ``values`` rounded to the grid plus discrete Laplace noise of scale ``scale``.

    Parameters
    ----------
    values : number or array
        One finite number or an array of them; private, never shown in an error.
    scale : number or str
        The scale of the noise, any positive rational number.
    granularity : number or str, optional
        The step g of the grid, a power of two; :func:`default_granularity` of the scale
        by default, which does not depend on the values.
    source : Source, optional
        Where the bits come from; the operating system by default.

    Returns
    -------
    GridRelease
        The noisy steps. With D = :func:`sensitivity_on_grid` (L1) steps the release is
        (D g / scale)-DP.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> noisy = laplace_on_grid(120.5, scale=10)
    >>> noisy.values == noisy.steps * float(noisy.granularity)
    True
    """
    exact = _validate.fraction("scale", scale, above=0)
    return _release(values, "scale", scale, exact, granularity, discrete_laplace, source)


def gaussian_on_grid(
    values: object, *, stddev: object, granularity: object = None, source: Source | None = None
) -> GridRelease:
    """Return ``values`` rounded to the grid plus discrete Gaussian noise of parameter ``stddev``.

    Parameters
    ----------
    values : number or array
        One finite number or an array of them; private, never shown in an error.
    stddev : number or str
        The parameter sigma of the noise, any positive rational number.
    granularity : number or str, optional
        The step g of the grid, a power of two; :func:`default_granularity` of ``stddev``
        by default, which does not depend on the values.
    source : Source, optional
        Where the bits come from; the operating system by default.

    Returns
    -------
    GridRelease
        The noisy steps. With D = :func:`sensitivity_on_grid` (L2) steps the release is
        (D g)^2 / (2 stddev^2) - zCDP.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> gaussian_on_grid(np.zeros((2, 2)), stddev=3).steps.shape
    (2, 2)
    """
    exact = _validate.fraction("stddev", stddev, above=0)
    return _release(values, "stddev", stddev, exact, granularity, _gaussian_steps, source)


def _gaussian_steps(steps: Fraction, size: int | None = None, *, source: Source) -> Any:
    return discrete_gaussian(steps * steps, size, source=source)


def _release(
    values: object,
    argument: str,
    given: object,
    noise: Fraction,
    granularity: object,
    draw: Callable[..., Any],
    source: Source | None,
) -> GridRelease:
    """Round, and add what ``draw`` returns for the noise in steps."""
    step = default_granularity(noise) if granularity is None else check_granularity(granularity)
    read = _read_values(values)
    steps = noise / step
    if not isinstance(read, Fraction) and steps >= 1 << 51:
        raise InvalidValue(argument, given, "at most 2**51 steps of the granularity for an array")
    rounded = _round(read, step)
    bits_from = choose_source(source)
    if isinstance(rounded, np.ndarray):
        drawn = draw(steps, rounded.size, source=bits_from).reshape(rounded.shape)
    else:
        drawn = draw(steps, source=bits_from)
    return GridRelease(rounded + drawn, step, bits_from.provenance)


def _read_values(values: object) -> Fraction | NDArray[Any]:
    """Return one exact number, or an array of floats or integers, or raise without showing it."""
    try:
        single = np.asarray(values).ndim == 0
    except (ValueError, TypeError):
        raise withheld("values", "finite numbers") from None
    if single:
        return to_fraction(read_real("values", values))
    return read_reals("values", values, may_be_empty=True)


def _round(values: Fraction | NDArray[Any], step: Fraction) -> int | NDArray[Any]:
    if isinstance(values, Fraction):
        return math.floor(values / step + Fraction(1, 2))
    exponent = _exponent(step)
    if values.dtype.kind == "f":
        with np.errstate(over="ignore", under="ignore"):
            scaled = np.ldexp(values, -exponent)
        if np.all(np.abs(scaled) < _BULK_LIMIT):
            whole = np.floor(scaled)
            # scaled - whole is exact, or rounded within (1/2, 1]: the comparison is exact.
            whole += scaled - whole >= 0.5
            return np.asarray(whole, dtype=np.int64)
    elif exponent <= 0 and values.size:
        largest = max(abs(int(values.min())), abs(int(values.max())))
        if largest << -exponent < _BULK_LIMIT:
            return np.left_shift(values.astype(np.int64), -exponent)
    exact = [math.floor(to_fraction(value) / step + Fraction(1, 2)) for value in values.ravel()]
    fits = all(abs(value) < _BULK_LIMIT for value in exact)
    return np.array(exact, dtype=np.int64 if fits else object).reshape(values.shape)


def _nearest_double(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:  # an error would depend on the data; an infinity is post-processing
        return math.inf if number > 0 else -math.inf


def _exponent(granularity: Fraction) -> int:
    return granularity.numerator.bit_length() - granularity.denominator.bit_length()


def _power_of_two(exponent: int) -> Fraction:
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)
