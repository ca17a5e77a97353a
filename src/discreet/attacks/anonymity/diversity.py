"""What a group gives away although nobody in it is singled out: l-diversity and t-closeness.

A *group* holds the rows with equal quasi-identifiers; an attacker who knows these of a person knows
the group. With p the distribution of a sensitive column inside a group:

distinct l-diversity
    every group has at least l different values. Of l = 1 the attacker learns the value
    of everybody in the group, without knowing which row is whose.
entropy l-diversity (Machanavajjhala et al. 2007)
    the entropy of p is at least ln l in every group; the reported l is e to the least entropy.
t-closeness (Li, Li and Venkatasubramanian 2007)
    p is within t of the distribution q of the whole table. For categories the distance is
    1/2 sum |p - q|; for numbers and dates it is the earth mover's distance between ranks,
    sum over j of |P(j) - Q(j)| / (m - 1), P and Q cumulated over the m values in order.

Both distances are computed from the values that occur in a group, so the cost is that of
sorting the rows, whatever the number of groups and values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.attacks.anonymity.coded import CodedColumn, group_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SensitiveProfile", "sensitive_profile"]


@final
@dataclass(frozen=True)
class SensitiveProfile:
    """What the groups say about one sensitive column; rows are counted, not groups."""

    column: str
    values: int
    """How many different values the column has."""
    distinct_l: int
    entropy_l: float
    closeness_t: float
    distance: str
    """``"categories"`` or ``"ranks"``: which distance ``closeness_t`` is."""
    rows_below_l: Mapping[int, int]
    """For each l, how many rows lie in groups with fewer than l different values."""
    mean_gain: float
    """How much likelier the most common value of the group is to be right than that of the
    table, on average over rows: what an attacker gains without re-identifying anybody."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "column": self.column,
            "values": self.values,
            "distinct_l_diversity": self.distinct_l,
            "entropy_l_diversity": self.entropy_l,
            "t_closeness": self.closeness_t,
            "distance": self.distance,
            "rows_below_l": {str(level): rows for level, rows in self.rows_below_l.items()},
            "mean_gain": self.mean_gain,
        }


def sensitive_profile(
    name: str,
    column: CodedColumn,
    group_of_row: NDArray[np.int64],
    groups: int,
    *,
    levels: Sequence[int],
) -> SensitiveProfile:
    """Measure one sensitive column against groups of rows; there must be a row."""
    ranks, distance = _ranked(column)
    values = int(ranks.max()) + 1
    sizes = np.bincount(group_of_row, minlength=groups)
    # One entry for each value that occurs in a group, by group and then by rank.
    pair_of_row, pairs = group_rows([group_of_row, ranks])
    counts = np.bincount(pair_of_row, minlength=pairs)
    first = np.empty(pairs, dtype=np.int64)
    first[pair_of_row] = np.arange(ranks.size)
    group, rank = group_of_row[first], ranks[first]

    share = counts / sizes[group]
    overall = np.bincount(ranks, minlength=values) / ranks.size
    distinct = np.bincount(group, minlength=groups)
    entropy = _sums(group, -share * np.log(share), groups)
    if distance == "ranks":
        gaps = _rank_distances(group, rank, share, overall, groups)
    else:
        excess = np.maximum(share - overall[rank], 0.0)
        gaps = _sums(group, excess, groups)
    commonest = np.zeros(groups)
    np.maximum.at(commonest, group, share)
    gain = float(np.sum(commonest * sizes) / ranks.size - overall.max())
    below = {level: int(np.sum(sizes[distinct < level])) for level in levels}
    return SensitiveProfile(
        column=name,
        values=values,
        distinct_l=int(distinct.min()),
        entropy_l=float(np.exp(max(entropy.min(), 0.0))),
        closeness_t=float(min(gaps.max(), 1.0)),
        distance=distance,
        rows_below_l=MappingProxyType(below),
        mean_gain=gain,
    )


def _ranked(column: CodedColumn) -> tuple[NDArray[np.int64], str]:
    """Return the rank of each row's value: in the order of numbers where every text is one."""
    numbers = column.numbers()
    if bool(np.isnan(numbers[np.unique(column.codes)]).any()):
        codes, _ = group_rows([column.codes])
        return codes, "categories"
    _, rank_of_text = np.unique(numbers, return_inverse=True)
    # A dictionary may hold texts of another table: only ranks that occur here count.
    ranks, _ = group_rows([rank_of_text.astype(np.int64)[column.codes]])
    return ranks, "ranks"


def _rank_distances(
    group: NDArray[np.int64],
    rank: NDArray[np.int64],
    share: NDArray[np.float64],
    overall: NDArray[np.float64],
    groups: int,
) -> NDArray[np.float64]:
    """Return sum over j < m of |P(j) - Q(j)| / (m - 1) for each group; pairs are sorted."""
    values = overall.size
    if values == 1:
        return np.zeros(groups)
    running = np.cumsum(share)
    last = np.append(group[1:] != group[:-1], True)
    starts = np.append(True, last[:-1])
    # Within a group P is constant from one of its ranks to the next.
    lengths = np.diff(np.flatnonzero(np.append(starts, True)))
    before = np.repeat(running[starts] - share[starts], lengths)
    level = running - before
    end = np.where(last, values - 1, np.append(rank[1:], 0))
    cumulated = np.minimum(np.cumsum(overall), 1.0)
    area = np.append(0.0, np.cumsum(cumulated))
    cost = _segment(rank, end, level, cumulated, area)
    # Before its first rank P is zero.
    lead = area[rank[starts]]
    total: NDArray[np.float64] = _sums(group, cost, groups) + lead
    return total / (values - 1)


def _sums(
    group: NDArray[np.int64], weights: NDArray[np.float64], groups: int
) -> NDArray[np.float64]:
    return np.bincount(group, weights=weights, minlength=groups).astype(np.float64)


def _segment(
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    level: NDArray[np.float64],
    cumulated: NDArray[np.float64],
    area: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return sum over start <= j < end of |level - Q(j)|, where Q rises."""
    turn = np.clip(np.searchsorted(cumulated, level), start, end)
    below = level * (turn - start) - (area[turn] - area[start])
    above = (area[end] - area[turn]) - level * (end - turn)
    return np.maximum(below, 0.0) + np.maximum(above, 0.0)
