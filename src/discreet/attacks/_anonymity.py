"""Measure uniqueness, k-anonymity, diversity and closeness of a table.

A *quasi-identifier* is a column that others may know of a person: zip code, birth date, sex. Rows
that agree on all of them form a group; a table is k-anonymous if every group has at least k rows.
The figures describe the table, not a population: a row that is unique here may have twins outside,
and then :func:`~discreet.attacks.link_tables` tells how often a link is right.

What k-anonymity does not say: it is no bound on what a release reveals. Groups may agree on the
sensitive value (see below), two anonymous releases of one
population may identify people together, and any column may become known later.

**Sensitive columns.** What a group reveals although no one in it is singled out: l-diversity
and t-closeness. A *group* holds the rows with equal quasi-identifiers; an attacker who knows these
of a person knows the group. With p the distribution of a sensitive column inside a group:

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

**Generalisation.** Coarser cells: the usual repair of a table that identifies people, to be
measured, not trusted. A generalisation maps one text to a coarser one, whatever the other cells
say:

=================  =========================================================================
``zip:prefix=3``   the first three characters
``age:band=10``    numbers in bands of width 10, ``[20, 30)``
``birth:month``    dates to their month; also ``day`` (of times), ``year`` and ``decade``
``city:drop``      the column says nothing any more
=================  =========================================================================

A text that is no number or no date stays as it is, and so does an empty cell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from itertools import combinations
from types import MappingProxyType
from typing import TYPE_CHECKING, final

import numpy as np

from discreet import _validate
from discreet._json import HIDDEN, JsonRecord, written_as
from discreet.attacks._coded_table import (
    CodedColumn,
    CodedTable,
    column_names,
    group_rows,
    read_coded,
)
from discreet.attacks._contract import Finding, Result, attack
from discreet.data import date_in_text, number_in_text
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray


_FORM = re.compile(
    r"(?P<column>.+):(?P<rule>prefix|band|day|month|year|decade|drop)(?:=(?P<size>.+))?"
)
_FORMS = "COLUMN:prefix=N, COLUMN:band=WIDTH, COLUMN:day, :month, :year, :decade or :drop"
_DATE_LENGTHS = {"day": 10, "month": 7, "year": 4, "decade": 3}


@final
@dataclass(frozen=True)
class Generalisation:
    """One column made coarser; see :meth:`parse` for the written form.

    >>> rule = Generalisation.parse("age:band=10")
    >>> rule.text(b"27"), rule.text(b""), str(rule)
    (b'[20, 30)', b'', 'age:band=10')
    >>> Generalisation.parse("birth:decade").text(b"1987-03-01")
    b'198?'
    """

    column: str
    rule: str
    size: float | None = None

    def __post_init__(self) -> None:
        _check(str(self), self.rule, self.size)

    @classmethod
    def parse(cls, text: object) -> Generalisation:
        """Read ``COLUMN:RULE`` or ``COLUMN:RULE=SIZE``."""
        found = _FORM.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise InvalidValue("generalise", text, _FORMS)
        size = found["size"]
        try:
            return cls(found["column"], found["rule"], None if size is None else float(size))
        except ValueError:
            raise InvalidValue("generalise", text, _FORMS) from None

    def __str__(self) -> str:
        size = "" if self.size is None else f"={self.size:g}"
        return f"{self.column}:{self.rule}{size}"

    def text(self, text: bytes) -> bytes:
        """Return the coarser form of one cell."""
        if self.rule == "drop":
            return b"*"
        if not text:
            return text
        if self.rule == "prefix":
            assert self.size is not None
            # Characters, not bytes: half a character would be no text.
            return text.decode("utf-8", "surrogateescape")[: int(self.size)].encode(
                "utf-8", "surrogateescape"
            )
        if self.rule == "band":
            return self._band(text)
        if math.isnan(date_in_text(text)):
            return text
        length = _DATE_LENGTHS[self.rule]
        return text[:length] + (b"?" if self.rule == "decade" else b"")

    def apply(self, column: CodedColumn) -> CodedColumn:
        """Return a whole column in its coarser form; each distinct text is looked at once."""
        book: dict[bytes, int] = {}
        places = [book.setdefault(self.text(text), len(book)) for text in column.texts]
        moved = np.array(places, dtype=np.int64)
        return CodedColumn(moved[column.codes] if places else column.codes, list(book))

    def _band(self, text: bytes) -> bytes:
        number = number_in_text(text)
        if not math.isfinite(number):
            return text
        assert self.size is not None
        # Decimals as they are written: 0.3 is no multiple of 0.1 in binary. What is nearer to 0
        # than every double has an exponent of any size, and is 0 here.
        exact = Fraction(text.decode("ascii").strip()) if number else Fraction(0)
        width = Decimal(repr(self.size))
        start = math.floor(exact / Fraction(width))
        return f"[{_edge(start, width)}, {_edge(start + 1, width)})".encode()


def _edge(steps: int, width: Decimal) -> str:
    """Return a multiple of a width with all its digits: two bands never have one name."""
    _, digits, exponent = width.as_tuple()
    mantissa = int("".join(map(str, digits)))
    text = format(Decimal(f"{steps * mantissa}E{exponent}"), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _check(shown: str, rule: str, size: float | None) -> None:
    sized = rule in {"prefix", "band"}
    known = sized or rule in {*_DATE_LENGTHS, "drop"}
    fits = known and sized == (size is not None)
    if fits and size is not None:
        fits = math.isfinite(size) and size > 0
        if rule == "prefix":
            fits = fits and size == int(size)
    if not fits:
        raise InvalidValue("generalise", shown, _FORMS)


@final
@dataclass(frozen=True)
class SensitiveProfile(JsonRecord):
    """What the groups say about one sensitive column; rows are counted, not groups."""

    column: str
    values: int
    """How many different values the column has."""
    distinct_l: int = field(metadata=written_as("distinct_l_diversity"))
    entropy_l: float = field(metadata=written_as("entropy_l_diversity"))
    closeness_t: float = field(metadata=written_as("t_closeness"))
    distance: str
    """``"categories"`` or ``"ranks"``: which distance ``closeness_t`` is."""
    rows_below_l: Mapping[int, int]
    """For each l, how many rows lie in groups with fewer than l different values."""
    mean_gain: float
    """How much likelier the most common value of the group is to be right than that of the
    table, on average over rows: what an attacker gains without re-identifying anybody."""


def sensitive_profile(
    name: str,
    column: CodedColumn,
    group_of_row: NDArray[np.int64],
    groups: int,
    *,
    levels: Sequence[int],
) -> SensitiveProfile:
    """Measure one sensitive column against groups of rows; there must be a row."""
    ranks, distance = _rank_values(column)
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


def _rank_values(column: CodedColumn) -> tuple[NDArray[np.int64], str]:
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


LEVELS_K = (2, 3, 5, 10, 20, 50)
LEVELS_L = (2, 3, 5)
_ALL_SUBSETS = 4
_LISTED = 20


@final
@dataclass(frozen=True, eq=False)
class AnonymityProfile(JsonRecord):
    """Groups of rows that agree on some columns: counts, which no chance is part of."""

    json_properties = ("unique_share", "expected_hits", "group_sizes")

    columns: tuple[str, ...]
    generalisations: tuple[str, ...]
    rows: int
    groups: int
    k: int = field(metadata=written_as("k_anonymity"))
    """The size of the smallest group: the table is k-anonymous for this k."""
    unique_rows: int
    rows_below_k: Mapping[int, int]
    """For each k, how many rows lie in groups of fewer than k."""
    sizes: Mapping[int, int] = field(metadata=HIDDEN)
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

    @property
    def group_sizes(self) -> list[tuple[int, int]]:
        """The sizes as pairs (size, groups)."""
        return list(self.sizes.items())


@final
@dataclass(frozen=True, eq=False)
class AnonymityResult(Result):
    """The profile of a table as it is, by fewer columns, and after each generalisation."""

    json_kind = "anonymity"
    without_interval = dict.fromkeys(
        ("unique_share", "expected_hits", "entropy_l_diversity", "t_closeness", "mean_gain"),
        "a count on this table, or computed from counts: no chance is part of it",
    )

    profile: AnonymityProfile
    subsets: tuple[AnonymityProfile, ...]
    steps: tuple[AnonymityProfile, ...]
    group_size_of_row: NDArray[np.int64] = field(metadata=HIDDEN)
    """For each row the size of its group. Internal: it points at people."""

    @property
    def finding(self) -> Finding:
        """The share of rows that stand alone: a count on this table, without an interval."""
        measure = "rows that no other row equals"
        counted = self.profile.unique_rows, self.profile.rows
        return Finding.of_count("measure_anonymity", measure, *counted)

    def most_exposed(self, count: int = _LISTED) -> NDArray[np.int64]:
        """Return the numbers of rows in the smallest groups. Internal: it points at people."""
        wanted = _validate.integer("count", count, at_least=0)
        return np.argsort(self.group_size_of_row, kind="stable")[:wanted]


@attack(family="tables", access="table")
def measure_anonymity(
    released: object,
    *,
    quasi_identifiers: Sequence[str],
    sensitive: Sequence[str] = (),
    generalise: Sequence[Generalisation | str] = (),
    k: Sequence[int] = LEVELS_K,
    diversity: Sequence[int] = LEVELS_L,
    delimiter: str = ",",
) -> AnonymityResult:
    """Measure how well rows hide among each other.

    An empty cell is a value like any other: an attacker sees that it is empty.

    Parameters
    ----------
    released
        Whatever :func:`discreet.data.read_table` takes.
    quasi_identifiers : sequence of str
        Columns that others may know of a person.
    sensitive : sequence of str
        Columns whose diversity inside of groups is measured.
    generalise : sequence of rules
        Steps, each on top of those before it; a later rule for the same column replaces the
        earlier one.
    k, diversity : sequence of int
        Levels at which rows in small groups, or groups of few values, are counted.
    delimiter : str
        Of CSV files.

    Returns
    -------
    AnonymityResult
        Profiles of the table, by fewer columns, and after each step.

    Raises
    ------
    InvalidValue
        If a column is missing, the table is empty, or a setting does not fit.

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
    table = read_coded(released, [*names, *secrets], delimiter=delimiter)
    if table.rows == 0:
        raise InvalidValue("released", "no rows", "a table with at least one row")

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
