"""Who stands alone in a table: uniqueness, k-anonymity and what follows from them (S30).

A *quasi-identifier* is a column that others may know of a person: zip code, birth date, sex. Rows
that agree on all of them form a group; a table is k-anonymous if every group has at least k rows.
The figures describe the table, not a population: a row that is unique here may have twins outside,
and then :func:`~discreet.attacks.anonymity.linking.link_tables` tells how often a link is right.

What k-anonymity does not say: it is no bound on what a release reveals. Groups may agree on the
sensitive value (:mod:`discreet.attacks.anonymity.diversity`), two anonymous releases of one
population may identify people together, and any column may become known later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.attacks.anonymity.coded import CodedTable, column_names, group_rows, read_coded
from discreet.attacks.anonymity.diversity import SensitiveProfile, sensitive_profile
from discreet.attacks.anonymity.generalising import Generalisation
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["AnonymityProfile", "AnonymityResult", "measure_anonymity"]

LEVELS_K = (2, 3, 5, 10, 20, 50)
LEVELS_L = (2, 3, 5)
_ALL_SUBSETS = 4
_LISTED = 20


@final
@dataclass(frozen=True, eq=False)
class AnonymityProfile:
    """Groups of rows that agree on some columns."""

    columns: tuple[str, ...]
    generalisations: tuple[str, ...]
    rows: int
    groups: int
    k: int
    """The size of the smallest group: the table is k-anonymous for this k."""
    unique_rows: int
    rows_below_k: Mapping[int, int]
    """For each k, how many rows lie in groups of fewer than k."""
    sizes: Mapping[int, int]
    """For each size that occurs, how many groups have it."""
    sensitive: tuple[SensitiveProfile, ...]

    @property
    def unique_share(self) -> float:
        """The share of rows that no other row equals."""
        return self.unique_rows / self.rows

    @property
    def expected_hits(self) -> float:
        """The share that an attacker re-identifies by a guess in each group: groups / rows.

        The attacker knows the columns of everybody in the table.
        """
        return self.groups / self.rows

    def share_below(self, k: int) -> float:
        """The share of rows in groups of fewer than ``k``, for a ``k`` that was asked for."""
        if k not in self.rows_below_k:
            expected = f"one of the levels that were asked for, {list(self.rows_below_k)}"
            raise InvalidValue("k", k, expected)
        return self.rows_below_k[k] / self.rows

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "columns": list(self.columns),
            "generalisations": list(self.generalisations),
            "rows": self.rows,
            "groups": self.groups,
            "k_anonymity": self.k,
            "unique_rows": self.unique_rows,
            "unique_share": self.unique_share,
            "expected_hits": self.expected_hits,
            "rows_below_k": {str(k): rows for k, rows in self.rows_below_k.items()},
            "group_sizes": [[size, count] for size, count in self.sizes.items()],
            "sensitive": [profile.to_json() for profile in self.sensitive],
        }


@final
@dataclass(frozen=True, eq=False)
class AnonymityResult:
    """The profile of a table as it is, by fewer columns, and after each generalisation."""

    profile: AnonymityProfile
    subsets: tuple[AnonymityProfile, ...]
    steps: tuple[AnonymityProfile, ...]
    group_size_of_row: NDArray[np.int64]
    """For each row the size of its group. Internal: it points at people."""

    def most_exposed(self, count: int = _LISTED) -> NDArray[np.int64]:
        """Return the numbers of rows in the smallest groups. Internal: it points at people."""
        wanted = _validate.integer("count", count, at_least=0)
        return np.argsort(self.group_size_of_row, kind="stable")[:wanted]

    def to_json(self) -> dict[str, Any]:
        """Return counts and shares as JSON values; no row is named."""
        return {
            "attack": "anonymity",
            "profile": self.profile.to_json(),
            "subsets": [profile.to_json() for profile in self.subsets],
            "steps": [profile.to_json() for profile in self.steps],
        }


def measure_anonymity(
    data: object,
    *,
    quasi_identifiers: Sequence[str],
    sensitive: Sequence[str] = (),
    generalise: Sequence[Generalisation | str] = (),
    k: Sequence[int] = LEVELS_K,
    diversity: Sequence[int] = LEVELS_L,
    delimiter: str = ",",
) -> AnonymityResult:
    """Measure how well rows hide among each other.

    ``data`` is whatever :func:`discreet.data.read_table` takes. An empty cell is a value like any
    other: an attacker sees that it is empty. ``generalise`` are steps, each on top of those
    before it; a later rule for the same column replaces the earlier one.

    >>> table = {"zip": ["02139", "02139", "02141"], "ill": ["flu", "flu", "no"]}
    >>> found = measure_anonymity(table, quasi_identifiers=["zip"], sensitive=["ill"])
    >>> found.profile.k, found.profile.unique_rows, found.profile.sensitive[0].distinct_l
    (1, 1, 1)
    >>> found = measure_anonymity(table, quasi_identifiers=["zip"], generalise=["zip:prefix=3"])
    >>> found.steps[0].k
    3
    """
    names = column_names("quasi_identifiers", quasi_identifiers)
    secrets = column_names("sensitive", sensitive) if len(sensitive) else ()
    for name in secrets:
        if name in names:
            raise InvalidValue("sensitive", name, "a column that is no quasi-identifier")
    rules = [_rule(rule, names) for rule in generalise]
    levels = _Levels(_levels("k", k), _levels("diversity", diversity))
    table = read_coded(data, [*names, *secrets], delimiter=delimiter)
    if table.rows == 0:
        raise InvalidValue("data", "no rows", "a table with at least one row")

    profile, sizes = _profile(table, names, secrets, levels, ())
    subsets = [_profile(table, some, (), levels, ())[0] for some in _subsets(names)]
    steps, applied = [], dict[str, Generalisation]()
    for rule in rules:
        applied[rule.column] = rule
        columns = {
            name: applied[name].apply(column) if name in applied else column
            for name, column in table.columns.items()
        }
        coarse = CodedTable(columns, table.rows)
        words = tuple(map(str, applied.values()))
        steps.append(_profile(coarse, names, secrets, levels, words)[0])
    return AnonymityResult(profile, tuple(subsets), tuple(steps), sizes)


@final
@dataclass(frozen=True)
class _Levels:
    k: tuple[int, ...]
    diversity: tuple[int, ...]


def _profile(
    table: CodedTable,
    names: tuple[str, ...],
    sensitive: tuple[str, ...],
    levels: _Levels,
    generalisations: tuple[str, ...],
) -> tuple[AnonymityProfile, NDArray[np.int64]]:
    group_of_row, groups = group_rows([table.columns[name].codes for name in names])
    sizes = np.bincount(group_of_row, minlength=groups)
    found, counts = np.unique(sizes, return_counts=True)
    rows = found * counts
    below = {k: int(np.sum(rows[found < k])) for k in levels.k}
    secrets = [
        sensitive_profile(name, table.columns[name], group_of_row, groups, levels=levels.diversity)
        for name in sensitive
    ]
    profile = AnonymityProfile(
        columns=names,
        generalisations=generalisations,
        rows=table.rows,
        groups=groups,
        k=int(found[0]),
        unique_rows=int(counts[0]) if found[0] == 1 else 0,
        rows_below_k=MappingProxyType(below),
        sizes=MappingProxyType(dict(zip(found.tolist(), counts.tolist(), strict=True))),
        sensitive=tuple(secrets),
    )
    return profile, sizes[group_of_row]


def _subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return all smaller sets of few columns; of many each alone and all but one."""
    count = len(names)
    wanted = range(1, count) if count <= _ALL_SUBSETS else sorted({1, count - 1})
    return [some for size in wanted for some in combinations(names, size)]


def _rule(rule: Generalisation | str, names: tuple[str, ...]) -> Generalisation:
    parsed = rule if isinstance(rule, Generalisation) else Generalisation.parse(rule)
    if parsed.column not in names:
        raise InvalidValue("generalise", str(parsed), f"one of the columns {', '.join(names)}")
    return parsed


def _levels(argument: str, levels: object) -> tuple[int, ...]:
    if isinstance(levels, str) or not isinstance(levels, Sequence) or not levels:
        raise InvalidValue(argument, levels, "one or more integers of at least 2")
    return tuple(sorted({_validate.integer(argument, level, at_least=2) for level in levels}))
