"""Noise added to numbers: right, too little, used twice, or in floating point."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.audit.outputs import Raised
from discreet.audit.zoo.specimen import Specimen, laplace_noise
from discreet.privacy import Gaussian, PureDP
from discreet.randomness import Source, gaussian_on_grid, laplace_on_grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ADDITIVE"]

ONE = PureDP(epsilon=1)
PER_RECORD = PureDP(epsilon=1, relation="replace")


def _count(records: tuple[int, ...], count: int, source: Source, *, scale: Fraction | int) -> Any:
    return sum(records) + laplace_noise(scale, count, source)


def laplace_right(records: tuple[int, ...], count: int, source: Source) -> Any:
    """A count of ones with Lap(1)."""
    return _count(records, count, source, scale=1)


def laplace_halved(records: tuple[int, ...], count: int, source: Source) -> Any:
    """The same with Lap(1/2)."""
    return _count(records, count, source, scale=Fraction(1, 2))


def sum_right(records: tuple[int, ...], count: int, source: Source) -> Any:
    """A sum of values in [-1, 1], of which one is replaced: it moves by up to 2."""
    return _count(records, count, source, scale=2)


def sum_off_by_two(records: tuple[int, ...], count: int, source: Source) -> Any:
    """The same sum as if a replaced value moved it by at most 1."""
    return _count(records, count, source, scale=1)


def histogram_right(records: tuple[int, ...], count: int, source: Source) -> Any:
    """Two cells of a histogram with noise of their own; one record is in one of them."""
    cells = np.array([records.count(0), records.count(1)])
    return cells + laplace_noise(1, 2 * count, source).reshape(count, 2)


def histogram_reused(records: tuple[int, ...], count: int, source: Source) -> Any:
    """The same cells with one draw of noise for both."""
    cells = np.array([records.count(0), records.count(1)])
    return cells + laplace_noise(1, count, source)[:, np.newaxis]


def group_right(records: tuple[int, ...], count: int, source: Source) -> Any:
    """A count in which one person may have three records."""
    return _count(records, count, source, scale=3)


def group_ignored(records: tuple[int, ...], count: int, source: Source) -> Any:
    """The same count with noise for one record."""
    return _count(records, count, source, scale=1)


def _textbook_laplace(count: int, source: Source) -> NDArray[np.float64]:
    """The sampler of the textbooks, in doubles: -sign(u) ln(1 - 2|u|)."""
    uniform = (source.words64(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53 - 0.5
    magnitude = -np.log1p(-2 * np.minimum(np.abs(uniform), 0.5 - 2.0**-54))
    return np.asarray(np.where(uniform < 0, -magnitude, magnitude))


def float_on_grid(value: float, count: int, source: Source) -> Any:
    """A real number with exact Laplace noise on a declared grid."""
    return laplace_on_grid(
        np.full(count, value), scale=1, granularity=2.0**-40, source=source
    ).values


def float_textbook(value: float, count: int, source: Source) -> Any:
    """The same with doubles: the sum is rounded to the doubles around it."""
    return value + _textbook_laplace(count, source)


def float_rounded_late(value: float, count: int, source: Source) -> Any:
    """Noise is rounded to the grid and the value is not."""
    return value + np.rint(_textbook_laplace(count, source) * 2.0**20) * 2.0**-20


def gaussian_right(records: tuple[int, ...], count: int, source: Source) -> Any:
    """A count with Gaussian noise of deviation 1."""
    return _gaussian(records, count, source, stddev=1)


def gaussian_halved(records: tuple[int, ...], count: int, source: Source) -> Any:
    """The same with deviation 1/2."""
    return _gaussian(records, count, source, stddev=Fraction(1, 2))


def _gaussian(
    records: tuple[int, ...], count: int, source: Source, *, stddev: Fraction | int
) -> Any:
    answers = np.full(count, float(sum(records)))
    return gaussian_on_grid(answers, stddev=stddev, granularity=2.0**-20, source=source).values


def mean_right(records: tuple[int, ...], count: int, source: Source) -> Any:
    """A sum and a size with noise; their ratio is taken afterwards, and may be anything."""
    noise = laplace_noise(2, 2 * count, source).reshape(count, 2)
    return np.array([sum(records), len(records)]) + noise


def mean_or_error(records: tuple[int, ...], count: int, source: Source) -> Any:
    """The same, but an empty data set is refused with an error."""
    if not records:
        return [Raised("ValueError", "no records")] * count
    return mean_right(records, count, source)


def _specimen(name: str, draw: Any, first: Any, second: Any, about: str, **other: Any) -> Specimen:
    settings = {"loss": ONE, "broken": True, **other}
    return Specimen(name=name, draw=draw, first=first, second=second, about=about, **settings)


ADDITIVE = (
    _specimen("laplace", laplace_right, (), (1,), "count with Lap(1/epsilon)", broken=False),
    _specimen("laplace-halved-noise", laplace_halved, (), (1,), "half of the noise that is due"),
    _specimen(
        "sum-replace",
        sum_right,
        (-1,),
        (1,),
        "sum in [-1, 1], noise for a sensitivity of 2",
        broken=False,
        loss=PER_RECORD,
    ),
    _specimen(
        "sum-sensitivity-off-by-two",
        sum_off_by_two,
        (-1,),
        (1,),
        "a replaced value moves the sum by 2, noise is for 1",
        loss=PER_RECORD,
    ),
    _specimen(
        "histogram", histogram_right, (), (1,), "noise of its own in each cell", broken=False
    ),
    _specimen(
        "histogram-noise-reused",
        histogram_reused,
        (),
        (1,),
        "one draw of noise in both cells: the difference is exact",
    ),
    _specimen(
        "group-of-three",
        group_right,
        (),
        (1, 1, 1),
        "noise for three records of one person",
        broken=False,
    ),
    _specimen(
        "group-size-ignored",
        group_ignored,
        (),
        (1, 1, 1),
        "a person with three records gets the noise of one",
    ),
    _specimen(
        "float-on-grid",
        float_on_grid,
        0.0,
        1.0,
        "real number, exact noise on a declared grid",
        broken=False,
    ),
    _specimen(
        "float-textbook-laplace",
        float_textbook,
        0.0,
        1.0,
        "noise in doubles: outputs near 0 have bits that no sum 1 + noise can have",
    ),
    _specimen(
        "float-noise-rounded-value-not",
        float_rounded_late,
        0.0,
        1 / 3,
        "noise on the grid, value off it: the low bits of the output are those of the value",
    ),
    _specimen(
        "gaussian",
        gaussian_right,
        (),
        (1,),
        "count with N(0, 1)",
        loss=Gaussian(noise_multiplier=1.0),
        delta=0.05,
        broken=False,
    ),
    _specimen(
        "gaussian-halved-noise",
        gaussian_halved,
        (),
        (1,),
        "half of the deviation that is due",
        loss=Gaussian(noise_multiplier=1.0),
        delta=0.05,
    ),
    _specimen(
        "mean-of-noisy-parts",
        mean_right,
        (),
        (1,),
        "sum and size with noise, no error ever",
        broken=False,
    ),
    _specimen(
        "mean-error-on-empty",
        mean_or_error,
        (),
        (1,),
        "an error is raised for one neighbour only: the empty data set",
    ),
)
