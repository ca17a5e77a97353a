"""Public parameters of a mechanism: exact numbers, and one way to set the noise.

The noise that is drawn is never less than the noise that the loss speaks of. A scale is turned
into a double first (upwards, so never less noise than was asked for). Readings take that double
as the binary number that it is or, as a budget does, as the decimal that it prints as:
the sampler gets the larger of the two (:func:`drawn_scale`).
"""

from __future__ import annotations

import math
from fractions import Fraction

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.randomness import check_granularity, default_granularity

__all__ = [
    "drawn_scale",
    "either",
    "few_enough_steps",
    "flag",
    "grid_for",
    "rounded_up",
    "stated_epsilon",
    "stated_noise",
]

# Arrays are drawn in 64 bits: the noise must have fewer steps than this.
_MOST_STEPS = 1 << 51
_FINER_FOR_ARRAYS = 6


def either(**given: object) -> str:
    """Return the name of the one argument that is not None, or raise.

    >>> either(epsilon=0.1, scale=None)
    'epsilon'
    >>> either(epsilon=None, scale=None)
    Traceback (most recent call last):
    discreet.errors.InvalidValue: epsilon = None: expected exactly one of epsilon, scale
    """
    names = [name for name, value in given.items() if value is not None]
    if len(names) == 1:
        return names[0]
    wrong = names[0] if names else next(iter(given))
    raise InvalidValue(wrong, given[wrong], "exactly one of " + ", ".join(given))


def flag(argument: str, value: object) -> bool:
    """Return a genuine True or False, or raise."""
    if not isinstance(value, bool):
        raise InvalidValue(argument, value, "True or False")
    return value


def rounded_up(argument: str, value: object, exact: Fraction) -> float:
    """Return the least double that is at least ``exact``, also as the decimal that it prints as.

    ``value`` is what the caller wrote.

    >>> rounded_up("scale", "10/3", Fraction(10, 3)) >= Fraction(10, 3)
    True
    """
    try:
        nearest = float(exact)
    except OverflowError:
        nearest = math.inf
    while nearest < math.inf and min(Fraction(nearest), Fraction(repr(nearest))) < exact:
        nearest = math.nextafter(nearest, math.inf)
    if not 0.0 < nearest < math.inf:
        raise InvalidValue(argument, value, "a value whose noise is a positive double")
    return nearest


def drawn_scale(scale: float) -> Fraction:
    """Return the scale to draw with: at least what the double is, and what it prints as.

    >>> drawn_scale(0.3) == Fraction(3, 10) > Fraction(0.3)
    True
    >>> drawn_scale(0.1) == Fraction(0.1) > Fraction(1, 10)
    True
    """
    return max(Fraction(scale), Fraction(repr(scale)))


def stated_epsilon(epsilon: object) -> tuple[Fraction, float]:
    """Return the exact epsilon to aim at, and the double, not below it, that reports it.

    0.1 means one tenth, which is less than the double that prints so. 0.3 prints for a double
    that is less than three tenths: there the double itself is the aim.
    """
    exact = _validate.fraction("epsilon", epsilon, above=0)
    if isinstance(epsilon, float):
        exact = min(exact, Fraction(float(epsilon)))
    return exact, rounded_up("epsilon", epsilon, exact)


def stated_noise(argument: str, value: object) -> float:
    """Return a scale or a standard deviation as the double that is drawn with."""
    exact = _validate.fraction(argument, value, above=0)
    return float(value) if isinstance(value, float) else rounded_up(argument, value, exact)


def grid_for(
    granularity: object,
    *,
    noise: Fraction,
    sensitivity: Fraction,
    coordinates: int = 1,
    array: bool = False,
) -> Fraction:
    """Return the stated granularity, or the default one for this much noise.

    The default is just below 2**-40 of the noise, and finer if rounding would otherwise add more
    than about 2**-20 of the sensitivity; for arrays, whose noise must fit 64 bits, at
    most 64 times finer. It depends on public numbers only.

    >>> grid_for(None, noise=Fraction(10), sensitivity=Fraction(1)) == Fraction(1, 2**37)
    True
    """
    if granularity is not None:
        return check_granularity(granularity)
    try:
        grid = default_granularity(noise)
        finer = math.ceil(grid * coordinates * 2**20 / sensitivity).bit_length() - 1
        if finer > 0:
            grid /= 2 ** (min(finer, _FINER_FOR_ARRAYS) if array else finer)
        return check_granularity(grid)
    except InvalidValue as error:
        raise InvalidValue("granularity", granularity, error.expected) from None


def few_enough_steps(granularity: object, noise_in_steps: float) -> None:
    """Raise unless the noise of an array fits 64 bits."""
    if noise_in_steps >= _MOST_STEPS:
        raise InvalidValue(
            "granularity", granularity, "a grid on which the noise has fewer than 2**51 steps"
        )
