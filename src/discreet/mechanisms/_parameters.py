"""Public parameters of a mechanism: exact numbers, and one way to set the noise.

The noise that is drawn is never less than the noise that the loss speaks of. A scale is turned
into a double first (upwards, so never less noise than was asked for). Readings take that double
as the binary number that it is or, as a budget does, as the decimal that it prints as:
the sampler gets the larger of the two (:func:`scale_to_draw`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import final

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.privacy import Relation
from discreet.randomness import check_granularity, default_granularity

# Arrays are drawn in 64 bits: the noise must have fewer steps than this.
_MOST_STEPS = 1 << 51
_FINER_FOR_ARRAYS = 6
_FASTEST = 1 << 500


def round_up(argument: str, value: object, exact: Fraction) -> float:
    """Return the least double that is at least ``exact``, also as the decimal that it prints as.

    Parameters
    ----------
    argument : str
        The name of the argument, for the error.
    value : object
        What the caller wrote, for the error.
    exact : Fraction
        The number to round.

    Returns
    -------
    float
        A positive double.

    Raises
    ------
    InvalidValue
        If there is no such positive double.

    Examples
    --------
    >>> round_up("scale", "10/3", Fraction(10, 3)) >= Fraction(10, 3)
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


def scale_to_draw(scale: float) -> Fraction:
    """Return the scale to draw with: at least what the double is, and what it prints as.

    >>> scale_to_draw(0.3) == Fraction(3, 10) > Fraction(0.3)
    True
    >>> scale_to_draw(0.1) == Fraction(0.1) > Fraction(1, 10)
    True
    """
    return max(Fraction(scale), Fraction(repr(scale)))


def read_epsilon(epsilon: object) -> tuple[Fraction, float]:
    """Return the exact epsilon to aim at, and the double, not below it, that reports it.

    0.1 means one tenth, which is less than the double that prints so. 0.3 prints for a double
    that is less than three tenths: there the double itself is the aim.

    Parameters
    ----------
    epsilon : number or str
        What the caller wrote.

    Returns
    -------
    tuple of Fraction and float
        The aim, and what is reported.

    Raises
    ------
    InvalidValue
        If it is not a positive number.
    """
    exact = _validate.fraction("epsilon", epsilon, above=0)
    if isinstance(epsilon, float):
        exact = min(exact, Fraction(float(epsilon)))
    return exact, round_up("epsilon", epsilon, exact)


def read_noise(argument: str, value: object) -> float:
    """Return a scale or a standard deviation as the double that is drawn with."""
    exact = _validate.fraction(argument, value, above=0)
    return float(value) if isinstance(value, float) else round_up(argument, value, exact)


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


def check_steps(granularity: object, noise_in_steps: float) -> None:
    """Raise unless the noise of an array fits 64 bits."""
    if noise_in_steps >= _MOST_STEPS:
        raise InvalidValue(
            "granularity", granularity, "a grid on which the noise has fewer than 2**51 steps"
        )


@final
@dataclass(frozen=True)
class SelectionRate:
    """The rate of a selection and what it costs; ``reported`` is a double not below it.

    A selection draws one candidate by scores u(D, y), the higher the better. Scores may all be
    moved by the same amount without any effect, so what a neighbour can do is measured by the
    *range*

        R = max over neighbours of (max over y of d(y) - min over y of d(y)),  d = u(D') - u(D).

    With abs(d(y)) <= sensitivity it is at most 2 sensitivity; if moreover all scores move in one
    direction (``monotone``, such as counts under add_remove) at most sensitivity. A caller who
    knows better states ``score_range``. A selection at ``rate`` then costs epsilon = rate R.
    """

    rate: Fraction
    epsilon: Fraction
    reported: float
    relation: Relation

    @classmethod
    def read(
        cls,
        *,
        sensitivity: object,
        score_range: object,
        monotone: bool,
        epsilon: object,
        rate: object,
        relation: Relation | str,
    ) -> SelectionRate:
        """Read the range of the scores, and ``epsilon`` or ``rate``, exactly one of them."""
        neighbours = Relation.parse(relation)
        width = read_range(sensitivity, score_range, monotone, neighbours)
        if _validate.exactly_one(epsilon=epsilon, rate=rate) == "rate":
            pace = _validate.fraction("rate", rate, above=0)
            if pace > _FASTEST:
                raise InvalidValue("rate", rate, "at most 2**500")
            cost = pace * width
            return cls(pace, cost, round_up("rate", rate, cost), neighbours)
        target, reported = read_epsilon(epsilon)
        if target / width > _FASTEST:
            raise InvalidValue("epsilon", epsilon, "at most 2**500 times the range of the scores")
        return cls(target / width, target, reported, neighbours)


def read_range(
    sensitivity: object, score_range: object, monotone: bool, relation: Relation
) -> Fraction:
    """Return the range R of the score differences that the caller vouches for."""
    one_way = _validate.flag("monotone", monotone)
    if _validate.exactly_one(sensitivity=sensitivity, score_range=score_range) == "score_range":
        if one_way:
            raise InvalidValue("monotone", monotone, "False where score_range says everything")
        return _validate.fraction("score_range", score_range, above=0)
    if one_way and relation is not Relation.ADD_REMOVE:
        raise InvalidValue(
            "monotone", monotone, "False under replace: one record leaves and another comes"
        )
    return _validate.fraction("sensitivity", sensitivity, above=0) * (1 if one_way else 2)
