"""Faults of published synthesisers, each beside a correct mechanism where the zoo has none yet.

They were found in published code: a selection with half of the noise that is due, the rows of one
user counted as one, the exact number of rows, categories read off the data, batches that favour
rare categories, tables that were measured and not charged for, noise in doubles, and a measure of
"privacy" that looks at the private rows.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.audit.zoo._specimens import draw_index, draw_normal, laplace_noise, specimen
from discreet.privacy import Gaussian
from discreet.randomness import bernoulli, uniform_integers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.randomness import Source

Records = tuple[Any, ...]
_ONE: dict[str, Any] = {"loss": Gaussian(noise_multiplier=1.0), "delta": 0.05}

# Two columns of four cells. The public estimate of the first is too high in the cell of the record
# to come, that of the second too low: its distance falls, the other rises.
_ESTIMATES = ((0, 0, 0, 0), (4, 0, 0, 0))
_COMING = (0, 0)


def _distances(records: Records) -> tuple[int, ...]:
    """Return how far the tables of both columns are from their public estimates, in L1."""
    found = []
    for column, estimate in enumerate(_ESTIMATES):
        counts = np.bincount([one[column] for one in records] or [0], minlength=4)
        counts = counts if records else np.zeros(4, dtype=np.int64)
        found.append(int(np.abs(counts - np.array(estimate)).sum()))
    return tuple(found)


@specimen(
    "synthesis-selection",
    (),
    (_COMING,),
    "the table that fits worst, by exp(distance / 2): distances move both ways",
    broken=False,
)
def selection_right(records: Records, count: int, source: Source) -> Any:
    """The exponential mechanism over distances of sensitivity 1."""
    return draw_index(_distances(records), count, source, rate=0.5)


@specimen(
    "synthesis-selection-monotone",
    (),
    (_COMING,),
    "the same by exp(distance), as if all distances moved one way",
)
def selection_monotone(records: Records, count: int, source: Source) -> Any:
    """The same with the rate for monotone scores."""
    return draw_index(_distances(records), count, source, rate=1.0)


@specimen(
    "synthesis-user-noise-unscaled",
    (),
    ("me",) * 3,
    "a user with three records gets the Gaussian noise of one",
    **_ONE,
)
def user_noise_unscaled(records: Records, count: int, source: Source) -> Any:
    """A cell of a table with noise for one record."""
    return draw_normal(len(records), count, source)


@specimen(
    "synthesis-rows-noisy",
    (1, 1, 1),
    (1, 1, 1, 1),
    "as many rows as the noisy total says",
    broken=False,
)
def rows_noisy(records: Records, count: int, source: Source) -> Any:
    """The number of synthetic rows of a noisy count."""
    return np.maximum(0.0, np.rint(len(records) + laplace_noise(1, count, source)))


@specimen(
    "synthesis-rows-exact",
    (1, 1, 1),
    (1, 1, 1, 1),
    "a noisy table, and exactly as many rows as there were",
)
def rows_exact(records: Records, count: int, source: Source) -> Any:
    """A noisy count beside the number of rows drawn by it."""
    noisy = len(records) + laplace_noise(1, count, source)
    return np.stack([noisy, np.full(count, float(len(records)))], axis=1)


@specimen(
    "synthesis-categories-from-data",
    ("a", "a"),
    ("a", "a", "rare"),
    "cells for the categories that occur: a rare one betrays its owner",
)
def categories_from_data(records: Records, count: int, source: Source) -> Any:
    """Noisy counts of the categories in the data; the others are missing."""
    released = np.full((count, 2), np.nan)
    for at, name in enumerate(("a", "rare")):
        if name in records:
            released[:, at] = records.count(name) + laplace_noise(1, count, source)
    return released


_RATE = 0.01


@specimen(
    "synthesis-batches-by-category",
    ("common",) * 99,
    (*("common",) * 99, "rare"),
    "batches of one category, accounted as uniform ones: the rare record is in every second",
    loss=Gaussian(noise_multiplier=1.0).poisson(rate=_RATE),
    delta=0.001,
)
def batches_by_category(records: Records, count: int, source: Source) -> Any:
    """The noisy sum of a batch; a batch is drawn from one category, and each is as likely."""
    names = sorted(set(records))
    chosen = uniform_integers(len(names), count, source=source)
    # One record is drawn from the category of the batch; the rare one is worth 1, others 0.
    rare = chosen == names.index("rare") if "rare" in names else np.zeros(count, dtype=bool)
    return rare + draw_normal(0, count, source)


@specimen(
    "synthesis-batches-uniform",
    ("common",) * 99,
    (*("common",) * 99, "rare"),
    "each record is in a batch with the probability that is accounted for",
    loss=Gaussian(noise_multiplier=1.0).poisson(rate=_RATE),
    delta=0.001,
    broken=False,
)
def batches_uniform(records: Records, count: int, source: Source) -> Any:
    """The same with batches of all records alike."""
    drawn = bernoulli(Fraction(_RATE), count, source=source)
    return drawn * ("rare" in records) + draw_normal(0, count, source)


@specimen(
    "synthesis-tables-not-charged",
    (),
    ("me",),
    "six tables are measured, and the budget is charged for one",
    **_ONE,
)
def tables_not_charged(records: Records, count: int, source: Source) -> Any:
    """Six noisy cells of one record, and their mean, at the price of one cell."""
    cells = draw_normal(len(records), 6 * count, source).reshape(count, 6)
    return cells.mean(axis=1)


@specimen(
    "synthesis-float-gaussian",
    0.0,
    1.0,
    "Gaussian noise in doubles: outputs near 0 have bits that no sum 1 + noise can have",
    **_ONE,
)
def float_gaussian(value: float, count: int, source: Source) -> Any:
    """A cell with the noise of Box and Muller in doubles."""
    words = source.words64(2 * count) >> np.uint64(11)
    first, second = np.split((words.astype(np.float64) + 1.0) * 2.0**-53, 2)
    noise: NDArray[np.float64] = np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)
    return value + noise


@specimen(
    "synthesis-similarity-score",
    (0.25, 0.5),
    (0.25, 0.5, 1.0),
    "the exact distance to the closest private record, beside the rows",
)
def similarity_score(records: Records, count: int, source: Source) -> Any:
    """How near a random row is to the nearest private one, as reports on privacy print it."""
    rows = uniform_integers(65, count, source=source) / 64.0
    return np.abs(rows[:, None] - np.array(records)).min(axis=1)
