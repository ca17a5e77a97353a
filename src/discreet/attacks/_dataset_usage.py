"""Whether a data set was used at all: many weak signs about records, taken together.

The owner of a data set has records that may have been used, and others of the same draw that surely
were not. If none was used, all of them are exchangeable: their scores may change places. The share
of permutations with as large a difference of means is then an exact p-value, whatever the model.
With a set that is used in part the difference is smaller in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, final

import numpy as np

from discreet import _validate
from discreet.attacks._contract import Finding, Result, attack
from discreet.attacks._roc import area, area_interval
from discreet.attacks._training import seeded_generator
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_PERMUTED = 40
_FEWEST = 8


@final
@dataclass(frozen=True)
class DatasetUsage(Result):
    """Whether a data set was used.

    ``p_value`` is exact: without any use it is at most p with probability at most p. ``auc`` is
    how often a record of the set scores above one that was not used.
    """

    json_kind = "dataset_usage"
    json_properties = ("leaks", "used")
    without_interval = MappingProxyType({"p_value": "exact, for these permutations"})

    p_value: float
    auc: float
    auc_interval: tuple[float, float]
    suspected: int
    heldout: int
    permutations: int
    false_alarm_rate: float

    @property
    def used(self) -> bool:
        """Whether the p-value is at most the false-alarm rate."""
        return self.p_value <= self.false_alarm_rate

    @property
    def finding(self) -> Finding:
        """How often a record of the set outdoes another one; 1/2 by chance."""
        measure = "records of the set that score above others"
        low, high = self.auc_interval
        return Finding(
            self.json_kind, measure, self.auc, low, high, 0.95, 0.5, self.suspected + self.heldout
        )


@attack(family="membership", access="answers")
def dataset_usage(
    scores: ArrayLike,
    suspected: ArrayLike,
    *,
    permutations: int = 9999,
    false_alarm_rate: float = 0.01,
    seed: int | None = None,
) -> DatasetUsage:
    """Tell whether a data set was used, from scores of its records and of others.

    >>> rng = np.random.default_rng(0)
    >>> of_the_set = np.arange(2000) < 1000
    >>> weak = rng.normal(size=2000) + 0.25 * of_the_set
    >>> dataset_usage(weak, of_the_set, seed=1).used
    True

    Parameters
    ----------
    scores : array of numbers
        A score of each record, of any membership attack: higher if it seems to have been used.
    suspected : array of bool
        Which records are of the set; the others are of the same draw, and were surely not used.
    permutations : int
        How often scores change places; the p-value is at least 1 / (1 + permutations).
    false_alarm_rate : float
        How often a set that was not used may be called used.
    seed : int, optional
        Makes the permutations repeatable.

    Returns
    -------
    DatasetUsage
        The p-value, and how far the scores of the set lie above the others'.

    Raises
    ------
    InvalidValue
        If shapes do not fit, or there are too few records or permutations.
    """
    rate = _validate.real("false_alarm_rate", false_alarm_rate, above=0, below=1)
    times = _validate.integer("permutations", permutations, at_least=1)
    if 1 / (1 + times) > rate:
        raise InvalidValue("permutations", times, f"at least {round(1 / rate)} for a rate {rate:g}")
    values, inside = np.asarray(scores, dtype=np.float64), np.asarray(suspected)
    if values.ndim != 1 or np.isnan(values).any():
        raise InvalidValue("scores", f"shape {values.shape}", "a number for each record")
    if inside.dtype != np.bool_ or inside.shape != values.shape:
        shown = f"{inside.dtype} of shape {inside.shape}"
        raise InvalidValue("suspected", shown, f"True or False for each of {len(values)} records")
    count = int(inside.sum())
    if min(count, len(values) - count) < _FEWEST:
        raise InvalidValue("suspected", f"{count} of {len(values)}", f"{_FEWEST} of each at least")
    # Ranks: one record with a huge score does not decide, and all sums are exact.
    ranks = (2 * np.searchsorted(np.sort(values), values, side="left")).astype(np.int64)
    ranks += np.unique(values, return_counts=True)[1][np.unique(values, return_inverse=True)[1]]
    seen, draw, reached = int(ranks[inside].sum()), seeded_generator(seed, 41), 0
    for start in range(0, times, _PERMUTED):
        rows = np.tile(ranks, (min(_PERMUTED, times - start), 1))
        reached += int((draw.permuted(rows, axis=1)[:, :count].sum(axis=1) >= seen).sum())
    auc = area(values[inside], values[~inside])
    return DatasetUsage(
        p_value=(1 + reached) / (1 + times),
        auc=auc,
        auc_interval=area_interval(auc, count, len(values) - count),
        suspected=count,
        heldout=len(values) - count,
        permutations=times,
        false_alarm_rate=rate,
    )
