"""Votes: histograms of them, exact noise on them, and what one moved vote costs.

**What a neighbour changes.** The number of teachers is fixed and public, and every teacher
votes on every query. If one record reaches at most one teacher, neighbouring data give
histograms in which one vote has moved from one class to another, in every query. That holds

- under ``add_remove`` if a record's teacher follows from the record alone, such as a hash
  of it or a draw of its own (chunks of a list shift when a record is added);
- under ``replace`` if a record's teacher follows from its position.

If the teacher follows from the record's content, a *replaced* record can leave one teacher and
enter another: take the loss under ``add_remove`` and
``loss.group(2, relation="replace")``.

**Noise.** Counts are integers; noise is drawn in steps of 2**-30 of a vote (``STEPS``), so that
ties have next to no probability and the losses below are those of continuous noise but for the
last digits. Nothing rests on that: every statement holds for the discrete noise.

*Losses.* One moved vote shifts the histogram by an integer vector with two entries of size one.
Gaussian noise of deviation s on all counts is GDP(sqrt(2) / s) by the domination theorem of
:func:`discreet.privacy.theorems.discrete_gaussian_mu`, and on the largest count alone, which
moves by at most one, GDP(1 / s). Laplace noise of scale b on all counts is two
releases of PureDP(1 / b), one for each count that moves; together PureDP(2 / b),
but the two compose to less at delta > 0.

*Tails.* Z is one discrete Gaussian in steps, t = s STEPS its deviation in steps.
The normaliser is at least sqrt(2 pi) t by Poisson summation and larger by a factor below
1 + 3 exp(-2 pi^2 t^2), which is 1 in double precision, and a sum of a falling function is within
one term of its integral, so P(k <= Z) lies between the normal tails at k / t and
(k - 1) / t, for every integer k by symmetry. The difference of two has weights
exp(-k^2 / (4 t^2)) times a theta function that is constant to within 2 exp(-pi^2 t^2), hence the
same bound with sqrt(2) t. The tail of the difference of two discrete Laplace noises is closed.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from discreet._validate import fraction, withheld
from discreet.errors import InvalidValue
from discreet.privacy import GDP, Loss, PureDP, Relation
from discreet.privacy.theorems import discrete_gaussian_mu
from discreet.randomness import Source, discrete_gaussian, discrete_laplace

if TYPE_CHECKING:
    from numpy.typing import NDArray


def read_histogram(votes: Any, *, classes: int, teachers: int) -> NDArray[np.int64]:
    """Return one histogram, or raise without showing a vote.

    >>> read_histogram([3, 0, 1], classes=3, teachers=4).tolist()
    [3, 0, 1]
    >>> read_histogram([3, 0, 2], classes=3, teachers=4)
    Traceback (most recent call last):
    discreet.errors.InvalidValue: votes = 'withheld': expected 3 counts, ...
    """
    return _check(votes, (classes,), classes, teachers)


def read_histograms(votes: Any, *, classes: int, teachers: int) -> NDArray[np.int64]:
    """Return a table of histograms, one query a row, or raise without showing a vote."""
    rows = _array(votes, classes, teachers)
    if rows.ndim != 2 or rows.shape[0] == 0:
        raise withheld("votes", f"a table with one row of {classes} counts for each query")
    return _check(rows, (rows.shape[0], classes), classes, teachers)


def count_votes(predictions: Any, *, classes: int) -> NDArray[np.int64]:
    """Count predictions, one row for each teacher and one column for each query.

    Returns one histogram for each query. A prediction outside 0 .. classes - 1 raises.

    >>> count_votes([[0, 1], [0, 2], [1, 2]], classes=3).tolist()
    [[2, 1, 0], [0, 1, 2]]

    Parameters
    ----------
    predictions
        Class codes, one row for each teacher.
    classes
        How many classes there are.

    Returns
    -------
    array of int
        A histogram for each query.

    Raises
    ------
    InvalidValue
        If a prediction is no class.
    """
    table = np.asarray(predictions)
    if table.ndim != 2 or table.size == 0 or table.dtype.kind not in "iu":
        raise withheld("predictions", "a table of integers, teachers by queries")
    if bool(np.any(table < 0)) or bool(np.any(table >= classes)):
        raise withheld("predictions", f"classes from 0 to {classes - 1}")
    queries = table.shape[1]
    places = table.astype(np.int64) + classes * np.arange(queries, dtype=np.int64)
    counts = np.bincount(places.ravel(), minlength=classes * queries)
    return counts.reshape(queries, classes).astype(np.int64)


def _check(votes: Any, shape: tuple[int, ...], classes: int, teachers: int) -> NDArray[np.int64]:
    counts = _array(votes, classes, teachers)
    if counts.shape != shape:
        raise withheld("votes", _describe_histogram(classes, teachers))
    # Compared before the sum, which could overflow.
    if bool(np.any(counts < 0)) or bool(np.any(counts > teachers)):
        raise withheld("votes", _describe_histogram(classes, teachers))
    table = counts.astype(np.int64)
    if bool(np.any(table.sum(axis=-1) != teachers)):
        raise withheld("votes", _describe_histogram(classes, teachers))
    return table


def _array(votes: Any, classes: int, teachers: int) -> NDArray[Any]:
    try:
        counts = np.asarray(votes)
    except (TypeError, ValueError):
        raise withheld("votes", _describe_histogram(classes, teachers)) from None
    if counts.dtype.kind not in "iu":
        raise withheld("votes", _describe_histogram(classes, teachers))
    return counts


def _describe_histogram(classes: int, teachers: int) -> str:
    return f"{classes} counts, integers that are not negative and sum to {teachers} teachers"


# Grid steps in one vote.
STEPS = 1 << 30

_LEAST, _MOST = Fraction(1, 10), 10**6
# Covers a handful of roundings and the functions of scipy.special (relative, in logarithms).
_SLACK = 1e-12


def read_noise(argument: str, value: object) -> Fraction:
    """Return a scale or deviation in votes, exactly; from a tenth of a vote to a million.

    >>> read_noise("answer_noise", 40)
    Fraction(40, 1)
    """
    level = fraction(argument, value, above=0)
    if not _LEAST <= level <= _MOST:
        raise InvalidValue(argument, value, f"a number with 0.1 <= {argument} <= 1e+06 (votes)")
    return level


def argmax_loss(noise: Fraction, relation: Relation) -> Loss:
    """The loss of naming the largest of all counts with Gaussian noise: GDP(sqrt(2) / noise).

    >>> argmax_loss(Fraction(40), Relation.REPLACE)
    GDP(mu=0.035355..., relation='replace')
    """
    shift = math.nextafter(math.sqrt(2.0), 2.0) * STEPS
    return GDP(_dominating(noise, shift, 2), relation)


def maximum_loss(noise: Fraction, relation: Relation) -> Loss:
    """The loss of the largest count with Gaussian noise: GDP(1 / noise)."""
    return GDP(_dominating(noise, float(STEPS), 1), relation)


def laplace_votes_loss(scale: Fraction, relation: Relation) -> Loss:
    """The loss of all counts with Laplace noise: two counts move by one vote each.

    >>> laplace_votes_loss(Fraction(20), Relation.ADD_REMOVE)
    2 * PureDP(epsilon=0.05)
    """
    return 2 * PureDP(1 / scale, relation)


def gaussian_winners(
    table: NDArray[np.int64], *, noise: Fraction, source: Source
) -> NDArray[np.int64]:
    """Name the largest count of every row after Gaussian noise; ties go to the lowest class."""
    draws = discrete_gaussian((noise * STEPS) ** 2, table.size, source=source)
    return np.asarray(np.argmax(table * STEPS + draws.reshape(table.shape), axis=1))


def laplace_winners(
    table: NDArray[np.int64], *, scale: Fraction, source: Source
) -> NDArray[np.int64]:
    """Name the largest count of every row after Laplace noise; ties go to the lowest class."""
    draws = discrete_laplace(scale * STEPS, table.size, source=source)
    return np.asarray(np.argmax(table * STEPS + draws.reshape(table.shape), axis=1))


def passes(
    counts: NDArray[np.int64], *, threshold: Fraction, noise: Fraction, source: Source
) -> NDArray[np.bool_]:
    """Whether each count with Gaussian noise of its own reaches the threshold."""
    draws = discrete_gaussian((noise * STEPS) ** 2, counts.size, source=source)
    return np.asarray(counts * STEPS + draws >= math.ceil(threshold * STEPS))


def gaussian_difference_log_tail(
    gaps: NDArray[np.float64], *, noise: Fraction
) -> NDArray[np.float64]:
    """An upper bound on log P(Z' - Z >= gap), gaps in votes, any sign."""
    wide = math.sqrt(2.0) * float(noise)
    tail = special.log_ndtr((2.0 / STEPS - gaps) / wide)
    return np.asarray(np.minimum(tail * (1.0 - _SLACK), 0.0))


def laplace_difference_log_tail(
    gaps: NDArray[np.float64], *, scale: Fraction
) -> NDArray[np.float64]:
    """An upper bound on log P(Z' - Z >= gap) for gaps >= 0 in votes (closed form)."""
    unit = float(1 / (scale * STEPS))
    steps = gaps * STEPS
    r, rest = math.exp(-unit), -math.expm1(-unit)
    wide = steps + r / rest + (1.0 + r * r) / (rest * (1.0 + r))
    tail = np.log(wide * rest) - 2.0 * math.log1p(r) - steps * unit
    return np.asarray(np.minimum(tail + 1e-12 * (1.0 + np.abs(tail)), 0.0))


def _dominating(noise: Fraction, shift: float, coordinates: int) -> float:
    deviation = math.nextafter(float(noise), 0.0) * STEPS
    mu = discrete_gaussian_mu(deviation, shift, coordinates=coordinates)
    if mu is None:  # not for a noise that read_noise admits
        raise InvalidValue("noise", str(noise), "at least a tenth of a vote")
    return mu


def read_prediction(
    prediction: Any, *, classes: int, teachers: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Read a student's probabilities; return them and the votes that they expect, rounded.

    >>> read_prediction([0.25, 0.75], classes=2, teachers=10)[1].tolist()
    [2, 8]
    """
    expected = f"{classes} probabilities that sum to 1 within 1e-6"
    try:
        chances = np.asarray(prediction, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidValue("prediction", prediction, expected) from None
    fine = chances.shape == (classes,) and bool(np.all((chances >= 0) & (chances <= 1)))
    if not fine or abs(float(chances.sum()) - 1.0) > 1e-6:
        raise InvalidValue("prediction", prediction, expected)
    return chances, np.rint(teachers * chances).astype(np.int64)
