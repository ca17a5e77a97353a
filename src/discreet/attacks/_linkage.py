"""Link a release without names to a register with names, and measure how often a link is right.

For every released row the *candidates* are the rows of the register that agree with it on all keys:
exactly, or within a tolerance for numbers and dates. One candidate is a unique match. Whether it
is right depends on who is missing from the register, so without known truth only the number of
matches is known; with it, the share of people who were re-identified, with an interval.

An empty key agrees with nothing, and so does a tolerant key that is no number and no date. Exact
keys and one tolerant key are counted by sorting alone; with further tolerant keys the candidates
by the first ones are looked at one by one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, final

import numpy as np

from discreet import _validate
from discreet._confidence import Proportion, proportion
from discreet._json import HIDDEN, JsonRecord, written_as
from discreet.attacks._anonymity import Generalisation
from discreet.attacks._coded_table import CodedColumn, CodedTable, group_rows, read_coded
from discreet.attacks._contract import Finding, Result, attack
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray


@final
@dataclass(frozen=True)
class KnownTruth(JsonRecord):
    """How right the matches are, where it is known who every row is."""

    people_in_both: int
    """Released rows whose person is in the register at all."""
    correct_matches: int
    """Unique matches with the right person."""
    expected_correct: float = field(metadata=written_as("expected_correct_with_guessing"))
    """Right guesses to be expected by picking one of the candidates of each row at random."""
    reidentified: Proportion
    """Correct matches among all released rows."""
    precision: Proportion | None
    """Correct matches among unique matches; None without a unique match."""


@final
@dataclass(frozen=True, eq=False)
class LinkageResult(Result):
    """Candidates in a register for every released row."""

    json_kind = "linkage"
    json_properties = ("unique_share",)
    without_interval = dict.fromkeys(
        ("unique_share", "expected_correct_with_guessing"),
        "a count on these two tables, or computed from counts: no chance is part of it",
    )

    keys: tuple[str, ...]
    tolerance: Mapping[str, float]
    generalisations: tuple[str, ...]
    released_rows: int
    register_rows: int
    linkable_rows: int
    """Released rows with no empty key."""
    candidate_counts: Mapping[str, int]
    """Released rows by the number of their candidates, from ``"0"`` to ``"over 20"``."""
    unique_matches: int
    """Released rows with exactly one candidate."""
    mutual_matches: int
    """Unique matches whose candidate is the unique match of no other released row."""
    truth: KnownTruth | None
    match: NDArray[np.int64] = field(metadata=HIDDEN)
    """For each released row its unique match in the register, or -1. Internal: names people."""

    @property
    def unique_share(self) -> float:
        """The share of released rows with exactly one candidate."""
        return self.unique_matches / self.released_rows

    @property
    def correct_matches(self) -> int:
        """Unique matches with the right person, where the truth is known."""
        if self.truth is None:
            raise NotApplicable("without known truth it is not known which matches are right")
        return self.truth.correct_matches

    @property
    def finding(self) -> Finding:
        """Rows that were linked to the right person, against guessing in the whole register.

        Without a known truth, the share of rows with one candidate: a count on these tables.
        """
        if self.truth is None:
            measure = "released rows with exactly one candidate"
            counted = self.unique_matches, self.released_rows
            return Finding.of_count("link_tables", measure, *counted)
        guessing = self.truth.people_in_both / (self.released_rows * max(self.register_rows, 1))
        measure = "released rows linked to the right person"
        return Finding.of_share("link_tables", measure, self.truth.reidentified, guessing)


def _judge(
    candidates: NDArray[np.int64],
    match: NDArray[np.int64],
    true: NDArray[np.int64],
    among: NDArray[np.bool_],
    confidence: float,
) -> KnownTruth:
    unique = candidates == 1
    correct = int(np.count_nonzero(unique & (match == true)))
    matched = int(np.count_nonzero(unique))
    return KnownTruth(
        people_in_both=int(np.count_nonzero(true >= 0)),
        correct_matches=correct,
        expected_correct=float(np.sum(1.0 / candidates[among])),
        reidentified=proportion(correct, candidates.size, confidence=confidence),
        precision=proportion(correct, matched, confidence=confidence) if matched else None,
    )


def _histogram(candidates: NDArray[np.int64]) -> dict[str, int]:
    bounds = [(0, 0), (1, 1), (2, 2), (3, 5), (6, 10), (11, 20)]
    counted = {
        str(low) if low == high else f"{low} to {high}": int(
            np.count_nonzero((candidates >= low) & (candidates <= high))
        )
        for low, high in bounds
    }
    return {**counted, "over 20": int(np.count_nonzero(candidates > bounds[-1][1]))}


# Pairs looked at in one go, and altogether, where several keys are tolerant.
_CHUNK_PAIRS = 1 << 22
_MOST_PAIRS = 2 * 10**9


@attack(family="tables", access="table")
def link_tables(
    released: object,
    register: object,
    *,
    on: Sequence[str] | Mapping[str, str],
    tolerance: Mapping[str, float] | None = None,
    generalise: Sequence[Generalisation | str] = (),
    truth: str | tuple[str, str] | None = None,
    confidence: float = 0.95,
    delimiter: str = ",",
) -> LinkageResult:
    """Match every released row with the register.

    Parameters
    ----------
    released, register
        Whatever :func:`discreet.data.read_table` takes.
    on : sequence of str, or mapping
        The keys, columns of both tables; a mapping gives the names in the register.
    tolerance : mapping, optional
        How far numbers of a key may lie apart, days for dates.
    generalise : sequence of rules
        Make keys coarser in both tables before they are compared.
    truth : str or pair of str, optional
        The column that says who a row is. It is used to count, never to match.
    confidence : float
        Of the intervals of shares.
    delimiter : str
        Of CSV files.

    Returns
    -------
    LinkageResult
        Counts of candidates and matches, and with a known truth how many are right.

    Raises
    ------
    InvalidValue
        If a column is missing, a table is empty, or a setting does not fit.

    >>> release = {"zip": ["02139", "02139"], "age": [45, 60], "who": ["a", "b"]}
    >>> register = {"zip": ["02139", "02139", "9"], "age": [46, 30, 60], "who": ["a", "c", "b"]}
    >>> found = link_tables(release, register, on=["zip", "age"], tolerance={"age": 1}, truth="who")
    >>> found.unique_matches, found.correct_matches
    (1, 1)
    """
    keys = _keys(on)
    ranges = _tolerances(tolerance or {}, keys)
    rules = _rules(generalise, keys, ranges)
    _validate.real("confidence", confidence, above=0, below=1)
    who = (truth, truth) if isinstance(truth, str) else truth
    if who is not None and [type(name) for name in who] != [str, str]:
        raise InvalidValue("truth", truth, "a column of both tables, or its two names")

    left, right = _read(released, register, keys, who, delimiter, rules)
    for argument, table in (("released", left), ("register", right)):
        if table.rows == 0:
            raise InvalidValue(argument, "no rows", "a table with at least one row")
    for key in keys:
        if key not in rules and key not in ranges:
            _refuse_times_beside_days(key, left.columns[key], right.columns[key])
    comparison = _Comparison(left, right, tuple(keys), ranges)
    counts, match = comparison.matches()
    unique = counts == 1
    hits = np.bincount(match[unique], minlength=right.rows)
    mutual = unique & (hits[np.maximum(match, 0)] == 1)
    known = None if who is None else _match_known(left, right, comparison)
    return LinkageResult(
        keys=tuple(keys),
        tolerance=MappingProxyType(ranges),
        generalisations=tuple(map(str, rules.values())),
        released_rows=left.rows,
        register_rows=right.rows,
        linkable_rows=int(np.count_nonzero(comparison.complete[: left.rows])),
        candidate_counts=MappingProxyType(_histogram(counts)),
        unique_matches=int(np.count_nonzero(unique)),
        mutual_matches=int(np.count_nonzero(mutual)),
        truth=None if known is None else _judge(counts, match, *known, confidence),
        match=np.where(unique, match, -1),
    )


_WHO = "\0who"
_DAY = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _refuse_times_beside_days(key: str, one: CodedColumn, other: CodedColumn) -> None:
    """Refuse to compare times with days: they are never equal, so no person would be found."""
    kinds = []
    for column in (one, other):
        texts = [column.texts[code] for code in np.unique(column.codes)]
        days = any(_DAY.fullmatch(text) for text in texts)
        kinds.append((days, any(_DAY.match(text) and text[10:11] == b" " for text in texts)))
    if kinds in ([(True, False), (False, True)], [(False, True), (True, False)]):
        expected = f"times in both tables or in none: generalise={key + ':day'!r} cuts them off"
        raise InvalidValue("on", f"{key!r}, times in one table and days in the other", expected)


def _read(
    released: object,
    register: object,
    keys: Mapping[str, str],
    who: tuple[str, str] | None,
    delimiter: str,
    rules: Mapping[str, Generalisation],
) -> tuple[CodedTable, CodedTable]:
    """Read both tables with codes that agree, under the names of the released one."""
    books: dict[str, dict[bytes, int]] = {key: {} for key in [*keys, *([_WHO] if who else [])]}
    tables = []
    for side, (argument, data) in enumerate((("released", released), ("register", register))):
        name_of = {key: key if side == 0 else other for key, other in keys.items()}
        if who is not None:
            name_of[_WHO] = who[side]
        if len(set(name_of.values())) < len(name_of):
            raise InvalidValue("truth", who, "a column that is not among the keys")
        table = read_coded(
            data,
            list(name_of.values()),
            delimiter=delimiter,
            argument=argument,
            dictionaries={name: books[key] for key, name in name_of.items()},
        )
        tables.append((name_of, table))
    sides = []
    for name_of, table in tables:
        columns = {}
        for key, name in name_of.items():
            # The texts of both tables, so that both have the same codes after generalising.
            column = CodedColumn(table.columns[name].codes, list(books[key]))
            columns[key] = rules[key].apply(column) if key in rules else column
        sides.append(CodedTable(columns, table.rows))
    return sides[0], sides[1]


class _Comparison:
    """Two tables side by side: groups by exact keys, numbers for tolerant ones."""

    def __init__(
        self,
        left: CodedTable,
        right: CodedTable,
        keys: tuple[str, ...],
        ranges: Mapping[str, float],
    ) -> None:
        self._left_rows = left.rows
        both = {
            key: np.concatenate([left.columns[key].codes, right.columns[key].codes])
            for key in left.columns
        }
        filled = [np.array([bool(text) for text in left.columns[key].texts]) for key in keys]
        full = [mask[both[key]] for key, mask in zip(keys, filled, strict=True)]
        self.complete = np.logical_and.reduce(full)
        exact = [both[key] for key in keys if key not in ranges]
        rows = left.rows + right.rows
        self.group = group_rows(exact)[0] if exact else np.zeros(rows, dtype=np.int64)
        self.values: list[NDArray[np.float64]] = []
        self.ranges: list[float] = []
        for key, width in ranges.items():
            numbers = left.columns[key].numbers()
            if bool(np.isnan(numbers).all()):
                expected = f"a tolerance for a column of numbers or of dates, which {key!r} is not"
                raise InvalidValue("tolerance", {key: width}, expected)
            self.values.append(numbers[both[key]])
            self.complete &= ~np.isnan(self.values[-1])
            self.ranges.append(width)

    def matches(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return for each released row how many candidates it has, and one of them, or -1."""
        first, last, order = self._windows()
        if len(self.values) > 1:
            return self._sift(first, last, order)
        counts = last - first
        if order.size == 0:
            return counts, np.full(counts.size, -1, dtype=np.int64)
        return counts, np.where(counts > 0, order[np.minimum(first, order.size - 1)], -1)

    def agree(self, rows: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether pairs of a released row and a row of the register agree on every key."""
        right = others + self._left_rows
        full = self.complete[rows] & self.complete[right]
        same: NDArray[np.bool_] = full & (self.group[rows] == self.group[right])
        for values, width in zip(self.values, self.ranges, strict=True):
            middle, other = values[rows], values[right]
            same &= (other >= middle - width) & (other <= middle + width)
        return same

    def _windows(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return where candidates by group and first number lie in an order of the register."""
        left = self._left_rows
        usable = np.flatnonzero(self.complete[left:])
        group, ours = self.group[left:][usable], self.group[:left]
        if self.values:
            levels, rank = np.unique(self.values[0][left:][usable], return_inverse=True)
            low = np.searchsorted(levels, self.values[0][:left] - self.ranges[0], side="left")
            high = np.searchsorted(levels, self.values[0][:left] + self.ranges[0], side="right")
            span = levels.size + 1
            places = group * span + rank
            lows, highs = ours * span + low, ours * span + high
        else:
            places, lows, highs = group, ours, ours + 1
        order = np.argsort(places, kind="stable")
        places = places[order]
        first = np.searchsorted(places, lows, side="left")
        last = np.searchsorted(places, highs, side="left")
        empty = ~self.complete[:left]
        first[empty] = last[empty] = 0
        return first, last, usable[order]

    def _sift(
        self, first: NDArray[np.int64], last: NDArray[np.int64], order: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        width = last - first
        total = int(np.sum(width))
        if total > _MOST_PAIRS:
            expected = f"keys that leave fewer pairs to look at than {total:.3g}"
            raise InvalidValue("tolerance", dict(enumerate(self.ranges)), expected)
        counts = np.zeros(width.size, dtype=np.int64)
        match = np.full(width.size, -1, dtype=np.int64)
        ends = np.cumsum(width)
        start = 0
        while start < width.size:
            done = ends[start] - width[start]
            stop = max(start + 1, int(np.searchsorted(ends, done + _CHUNK_PAIRS, side="right")))
            rows = np.repeat(np.arange(start, stop), width[start:stop])
            offset = np.arange(rows.size) - (ends[rows] - width[rows] - done)
            others = order[first[rows] + offset]
            kept = self.agree(rows, others)
            counts += np.bincount(rows[kept], minlength=width.size)
            match[rows[kept]] = others[kept]
            start = stop
        return counts, match


def _match_known(
    left: CodedTable, right: CodedTable, comparison: _Comparison
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the register's row of each released person, or -1, and whether it is a candidate."""
    texts = left.columns[_WHO].texts
    codes = right.columns[_WHO].codes
    named = np.array([bool(text) for text in texts])
    if not bool(np.all(named[codes])):
        raise InvalidValue("truth", "an empty cell", "to know who every row of the register is")
    if np.bincount(codes, minlength=len(texts)).max() > 1:
        raise InvalidValue("truth", "one person twice", "one row of the register for each person")
    row_of = np.full(len(texts), -1, dtype=np.int64)
    row_of[codes] = np.arange(right.rows)
    true = np.where(named[left.columns[_WHO].codes], row_of[left.columns[_WHO].codes], -1)
    rows = np.flatnonzero(true >= 0)
    among = np.zeros(left.rows, dtype=bool)
    among[rows] = comparison.agree(rows, true[rows])
    return true, among


def _keys(on: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    expected = "names of columns of both tables, or a mapping of names to names"
    if isinstance(on, Mapping):
        keys = dict(on)
    elif isinstance(on, str) or not isinstance(on, Sequence):
        raise InvalidValue("on", on, expected)
    else:
        keys = {name: name for name in on}
        if len(keys) < len(on):
            raise InvalidValue("on", list(on), expected)
    named = all(type(name) is str and name for name in [*keys, *keys.values()])
    if not keys or not named or len(set(keys.values())) < len(keys):
        raise InvalidValue("on", on, expected)
    return keys


def _tolerances(tolerance: Mapping[str, float], keys: Mapping[str, str]) -> dict[str, float]:
    for key in tolerance:
        if key not in keys:
            raise InvalidValue("tolerance", key, f"one of the keys {', '.join(keys)}")
    return {key: _validate.real("tolerance", tolerance[key], at_least=0) for key in tolerance}


def _rules(
    generalise: Sequence[Generalisation | str],
    keys: Mapping[str, str],
    ranges: Mapping[str, float],
) -> dict[str, Generalisation]:
    rules = {}
    for rule in generalise:
        parsed = rule if isinstance(rule, Generalisation) else Generalisation.parse(rule)
        if parsed.column not in keys or parsed.column in ranges:
            expected = "one of the keys without a tolerance"
            raise InvalidValue("generalise", str(parsed), expected)
        rules[parsed.column] = parsed
    return rules
