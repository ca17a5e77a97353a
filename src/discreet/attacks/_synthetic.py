"""Attacks on synthetic rows: membership, and what the rows reveal about people.

Two ask for membership. :func:`distance_ratio` compares how near a record is to synthetic rows with
how near it is to rows of the same population (van Breugel and others 2023, by nearest
neighbours). :func:`counting_shadows` makes synthetic tables itself, with and without a record,
and learns to tell them apart by how many rows agree with the record on some columns (Stadler,
Oprisanu and Troncoso 2022; Houssiau and others 2022).

Three ask what the rows reveal about people (Giomi and others 2023): :func:`singling_out`,
:func:`linkability` and :func:`synthetic_inference`. Synthetic rows teach something true about
everybody, also about people who were not in the table. So each attack is made on a control group
too, and only what goes beyond it is a risk: (s - c) / (1 - c).

All of them read private rows: what they find is internal. None of them bounds anything: a proof and
an audit with the worst case do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from discreet import _validate
from discreet._confidence import Proportion, proportion
from discreet.attacks._coded_table import column_names, read_coded
from discreet.attacks._contract import Finding, Result, attack
from discreet.attacks._membership import MembershipResult
from discreet.attacks._training import seeded_generator
from discreet.data import named_columns
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.attacks._training import Generator

_MOST_TARGETS = 2_000
_MOST_ROWS = 50_000
_AT_ONCE = 1 << 22
_TRIES = 40
_NEAR = 0.05


@final
@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows as an attacker compares them; numbers lie in [0, 1], other cells are equal or not."""

    names: tuple[str, ...]
    values: NDArray[np.float64]
    is_number: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, most: int, rng: Generator) -> _Rows:
        """Return the rows, or a sample of them where there are more."""
        if len(self) <= most:
            return self
        chosen = np.sort(rng.choice(len(self), most, replace=False))
        return _Rows(self.names, self.values[chosen], self.is_number)

    def select(self, names: Sequence[str]) -> _Rows:
        """Return some of the columns."""
        places = [self.names.index(name) for name in names]
        return _Rows(tuple(names), self.values[:, places], self.is_number[places])

    def nearest(self, others: _Rows, count: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return the distances to the nearest others, and which they are, nearest first."""
        rows = max(1, _AT_ONCE // max(1, others.values.size))
        distances, places = [], []
        for start in range(0, len(self), rows):
            apart = np.zeros((min(rows, len(self) - start), len(others)))
            for column, number in enumerate(self.is_number):
                one = self.values[start : start + rows, column][:, None]
                two = others.values[:, column][None, :]
                apart += np.abs(one - two) if number else one != two
            order = np.argsort(apart, axis=1, kind="stable")[:, :count]
            places.append(order)
            distances.append(np.take_along_axis(apart, order, axis=1))
        return np.concatenate(distances), np.concatenate(places)


def _read_tables(columns: Sequence[str] | None, tables: Mapping[str, object]) -> tuple[_Rows, ...]:
    """Return all tables with the columns of the first one, coded alike."""
    first = next(iter(tables))
    known = named_columns(tables[first])
    if columns is None and known is None:
        expected = "a data frame, an Arrow table or a mapping; for a file, name the columns"
        raise InvalidValue(first, tables[first], expected)
    names = column_names("columns", list(known or ()) if columns is None else columns)
    books: dict[str, dict[bytes, int]] = {name: {} for name in names}
    coded = [
        read_coded(one, names, argument=argument, dictionaries=books)
        for argument, one in tables.items()
    ]
    for argument, one in zip(tables, coded, strict=True):
        if one.rows == 0:
            raise InvalidValue(argument, "no rows", "at least one row")
    is_number = np.zeros(len(names), dtype=bool)
    found = [np.empty((one.rows, len(names))) for one in coded]
    for at, name in enumerate(names):
        # The last table has all texts of the dictionary that they share.
        numbers = coded[-1].columns[name].numbers()
        is_number[at] = not np.isnan(numbers).any() and numbers.size > 2
        low, high = (numbers.min(), numbers.max()) if is_number[at] else (0.0, 1.0)
        for rows, one in zip(found, coded, strict=True):
            codes = one.columns[name].codes
            rows[:, at] = (numbers[codes] - low) / (high - low) if is_number[at] else codes
    return tuple(_Rows(names, rows, is_number) for rows in found)


# --- membership ----------------------------------------------------------------------------------


@attack(family="membership", access="table")
def distance_ratio(
    released: object,
    members: object,
    nonmembers: object,
    auxiliary: object,
    *,
    columns: Sequence[str] | None = None,
    neighbours: int = 1,
    seed: int = 0,
) -> MembershipResult:
    """Call a record a member if synthetic rows are nearer to it than rows of the population.

    Parameters
    ----------
    released
        The synthetic rows.
    members, nonmembers
        Private rows that were used, and rows of the same kind that were not.
    auxiliary
        Rows of the population that the attacker has.
    columns
        The columns to compare; all of ``released`` by default.
    neighbours
        Which nearest row counts: the first, the second and so on.
    seed
        Of the sample that is taken of large tables.

    Returns
    -------
    MembershipResult
        Scores of both groups. It is internal.

    Raises
    ------
    InvalidValue
        If a table is empty or lacks a column.
    """
    which = _validate.integer("neighbours", neighbours, at_least=1)
    tables = {"released": released, "members": members}
    tables |= {"nonmembers": nonmembers, "auxiliary": auxiliary}
    made, inside, outside, others = _read_tables(columns, tables)
    rng = seeded_generator(_validate.integer("seed", seed, at_least=0))
    made, others = made.take(_MOST_ROWS, rng), others.take(_MOST_ROWS, rng)
    if which > min(len(made), len(others)):
        raise InvalidValue("neighbours", which, "at most as many as there are rows")
    # As many rows of each kind: the nearest of more rows is nearer.
    fewest = min(len(made), len(others))
    made, others = made.take(fewest, rng), others.take(fewest, rng)
    scores = []
    for group in (inside.take(_MOST_TARGETS, rng), outside.take(_MOST_TARGETS, rng)):
        near, far = (group.nearest(one, which)[0][:, -1] for one in (made, others))
        scores.append(np.log((far + 1e-3) / (near + 1e-3)))
    return _membership("distance_ratio", scores[0], scores[1], {"neighbours": which})


@attack(family="membership", access="table")
def counting_shadows(
    train: Callable[[dict[str, NDArray[Any]], int], object],
    auxiliary: object,
    canaries: object,
    *,
    tables: int = 40,
    rows: int | None = None,
    queries: int = 200,
    seed: int = 0,
) -> MembershipResult:
    """Learn from synthetic tables with and without a record to tell whether it was there.

    For each canary, ``tables`` synthetic tables are made, half of them with it. Features are how
    many synthetic rows agree with the canary on random sets of up to three columns. A forest
    learns on one half of the tables and is judged on the other.

    Parameters
    ----------
    train
        ``train(rows, seed)`` returns the synthetic table of a mapping of columns.
    auxiliary
        Rows of the attacker, from which tables are drawn.
    canaries
        The records that are asked about, one row each.
    tables
        How many synthetic tables are made for each canary; a multiple of four.
    rows
        How many rows each table has; by default half of ``auxiliary``.
    queries
        How many sets of columns are counted, at most.
    seed
        Of all draws.

    Returns
    -------
    MembershipResult
        One score for each synthetic table that was judged.

    Raises
    ------
    InvalidValue
        If a number or a table does not do.
    """
    from sklearn.ensemble import RandomForestClassifier  # type: ignore[import-untyped]

    count = _validate.integer("tables", tables, at_least=8)
    if count % 4:
        raise InvalidValue("tables", tables, "a multiple of four")
    known, asked = _arrays("auxiliary", auxiliary), _arrays("canaries", canaries)
    size = len(next(iter(known.values())))
    each = _validate.integer("rows", size // 2 if rows is None else rows, at_least=1, at_most=size)
    rng = seeded_generator(_validate.integer("seed", seed, at_least=0))
    most = _validate.integer("queries", queries, at_least=1)
    found: list[list[NDArray[np.float64]]] = [[], []]
    for canary in range(len(next(iter(asked.values())))):
        sets = [rng.choice(len(asked), min(len(asked), 1 + at % 3), False) for at in range(most)]
        features = np.empty((count, most))
        inside = np.arange(count) % 2 == 1
        for at in range(count):
            chosen = rng.choice(size, each, replace=False)
            table = {name: known[name][chosen] for name in asked}
            if inside[at]:
                table = {
                    name: np.concatenate([values, asked[name][canary : canary + 1]])
                    for name, values in table.items()
                }
            made = train(table, int(rng.integers(1 << 31)))
            record = {name: values[canary : canary + 1] for name, values in asked.items()}
            features[at] = _agreeing(made, record, sets)
        learn = np.arange(count) < count // 2
        forest = RandomForestClassifier(100, random_state=int(rng.integers(1 << 31)))
        forest.fit(features[learn], inside[learn])
        scores = forest.predict_proba(features[~learn])[:, 1]
        for truth in (True, False):
            found[not truth].append(scores[inside[~learn] == truth])
    settings = {"tables": count, "queries": most, "rows": each}
    inside_scores, outside_scores = (np.concatenate(one) for one in found)
    return _membership("counting_shadows", inside_scores, outside_scores, settings)


def _arrays(argument: str, table: object) -> dict[str, NDArray[Any]]:
    columns = named_columns(table)
    if not columns:
        expected = "a data frame, an Arrow table or a mapping"
        raise InvalidValue(argument, type(table).__name__, expected)
    found = {name: np.asarray(values) for name, values in columns.items()}
    if not all(values.shape == (len(found[next(iter(found))]),) for values in found.values()):
        raise InvalidValue(argument, "its columns", "columns of the same length")
    if not len(next(iter(found.values()))):
        raise InvalidValue(argument, "no rows", "at least one row")
    return found


def _agreeing(
    made: object, record: Mapping[str, NDArray[Any]], sets: Sequence[NDArray[np.intp]]
) -> NDArray[np.float64]:
    """Return the number of rows that agree with a record on sets of columns; numbers: nearly."""
    try:
        rows, one = _read_tables(list(record), {"released": made, "canaries": record})
    except InvalidValue as error:
        if error.argument == "released" and error.value == "no rows":
            return np.zeros(len(sets))
        raise
    apart = np.abs(rows.values - one.values)
    agree = np.where(rows.is_number, apart <= _NEAR, apart == 0)
    return np.array([float(agree[:, columns].all(axis=1).sum()) for columns in sets])


def _membership(
    name: str,
    inside: NDArray[np.float64],
    outside: NDArray[np.float64],
    settings: Mapping[str, Any],
) -> MembershipResult:
    scores = np.concatenate([inside, outside])
    members = np.arange(scores.size) < inside.size
    nothing = np.zeros(scores.size, dtype=np.int64)
    places = np.arange(scores.size)
    return MembershipResult(name, scores, members, nothing, places, metadata=settings)


# --- what rows say about people, beside a control group ---------------------------------------


@final
@dataclass(frozen=True)
class ControlledResult(Result):
    """How often an attack worked on people of the table, and on others, who were not in it.

    ``targets`` and ``control`` have intervals that hold together with ``confidence``.
    """

    json_kind = "controlled"
    json_properties = ("risk", "leaks")
    without_interval: ClassVar[Mapping[str, str]] = {"risk": "the finding has its interval"}

    attack: str
    measure: str
    targets: Proportion
    control: Proportion
    confidence: float

    @property
    def risk(self) -> float:
        """The success beyond that on the control group, as a share of what was left to it."""
        return _excess_over_control(self.targets.share, self.control.share)

    @property
    def finding(self) -> Finding:
        """The risk; what the control group explains counts as chance."""
        low = _excess_over_control(self.targets.low, self.control.high)
        high = _excess_over_control(self.targets.high, self.control.low)
        trials = self.targets.trials
        return Finding(
            self.attack, self.measure, self.risk, low, high, self.confidence, 0.0, trials
        )

    def __str__(self) -> str:
        return f"right about people of the table {self.targets}, about others {self.control}"


def _excess_over_control(targets: float, control: float) -> float:
    return 0.0 if control >= 1.0 else max(-1.0, (targets - control) / (1.0 - control))


def _judge(
    name: str,
    measure: str,
    hits: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    confidence: float,
) -> ControlledResult:
    level = _validate.real("confidence", confidence, above=0, below=1)
    shares = [proportion(int(one.sum()), one.size, confidence=(1.0 + level) / 2.0) for one in hits]
    return ControlledResult(name, measure, shares[0], shares[1], level)


def _read_groups(
    columns: Sequence[str] | None,
    released: object,
    members: object,
    nonmembers: object,
    seed: int,
    most: int = _MOST_TARGETS,
) -> tuple[_Rows, _Rows, _Rows, Generator]:
    """Return the released rows and as many targets as controls, which have to be equally many."""
    tables = {"released": released, "members": members, "nonmembers": nonmembers}
    made, inside, outside = _read_tables(columns, tables)
    rng = seeded_generator(_validate.integer("seed", seed, at_least=0))
    size = min(most, len(inside), len(outside))
    return made.take(_MOST_ROWS, rng), inside.take(size, rng), outside.take(size, rng), rng


@attack(family="tables", access="table")
def singling_out(
    released: object,
    members: object,
    nonmembers: object,
    *,
    columns: Sequence[str] | None = None,
    width: int = 3,
    guesses: int = 500,
    seed: int = 0,
    confidence: float = 0.95,
) -> ControlledResult:
    """Guess conditions that exactly one person meets, from rows that are alone with theirs.

    A guess is made from a synthetic row: equal to it in some columns, and for numbers as far out
    as it. Guesses that exactly one synthetic row meets are tried.

    Parameters
    ----------
    released
        The synthetic rows.
    members, nonmembers
        Private rows that were used, and as many of the same kind that were not.
    columns
        The columns to look at; all of ``released`` by default.
    width
        How many columns a condition has.
    guesses
        How many conditions are tried.
    seed, confidence
        Of the draws; of the interval.

    Returns
    -------
    ControlledResult
        How many conditions single out a member, and a record of the control group. Internal.

    Raises
    ------
    InvalidValue
        If a table is empty or lacks a column, or no condition is met by one synthetic row alone.
    """
    made, inside, outside, rng = _read_groups(
        columns, released, members, nonmembers, seed, _MOST_ROWS
    )
    wide = _validate.integer("width", width, at_least=1, at_most=len(made.names))
    most = _validate.integer("guesses", guesses, at_least=1)
    middle = np.median(made.values, axis=0)
    hits: list[list[bool]] = [[], []]
    for _ in range(_TRIES * most):
        row = made.values[rng.integers(len(made))]
        chosen = rng.choice(len(made.names), wide, replace=False)

        def matching(rows: _Rows, row: Any = row, chosen: Any = chosen) -> int:
            met = np.ones(len(rows), dtype=bool)
            for at in chosen:
                values = rows.values[:, at]
                if not rows.is_number[at]:
                    met &= values == row[at]
                else:
                    met &= values >= row[at] if row[at] >= middle[at] else values <= row[at]
            return int(np.count_nonzero(met))

        if matching(made) == 1:
            hits[0].append(matching(inside) == 1)
            hits[1].append(matching(outside) == 1)
        if len(hits[0]) == most:
            break
    if not hits[0]:
        raise InvalidValue(
            "released", f"{len(made)} rows", "some row that is alone with its values"
        )
    found = np.array(hits[0]), np.array(hits[1])
    return _judge("singling_out", "risk of being singled out", found, confidence)


@attack(family="tables", access="table")
def linkability(
    released: object,
    members: object,
    nonmembers: object,
    on: Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    neighbours: int = 1,
    seed: int = 0,
    confidence: float = 0.95,
) -> ControlledResult:
    """Link what two parties know about a person by the synthetic rows that are nearest to both.

    Parameters
    ----------
    released
        The synthetic rows.
    members, nonmembers
        Private rows that were used, and as many of the same kind that were not.
    on
        The columns of the first party; the second one has the others.
    columns
        All columns to look at; those of ``released`` by default.
    neighbours
        How many nearest rows are looked at.
    seed, confidence
        Of the draws; of the interval.

    Returns
    -------
    ControlledResult
        How many people are linked, and how many of the control group. Internal.

    Raises
    ------
    InvalidValue
        If a table is empty or lacks a column, or one party has no column.
    """
    made, inside, outside, _ = _read_groups(columns, released, members, nonmembers, seed)
    first = column_names("on", on)
    second = [name for name in made.names if name not in first]
    if not second or not set(first) <= set(made.names):
        raise InvalidValue("on", list(on), f"some but not all of {', '.join(made.names)}")
    near = _validate.integer("neighbours", neighbours, at_least=1, at_most=len(made))

    def hits(group: _Rows) -> NDArray[np.bool_]:
        left, right = (
            group.select(names).nearest(made.select(names), near)[1] for names in (first, second)
        )
        return np.asarray((left[:, :, None] == right[:, None, :]).any(axis=(1, 2)))

    found = hits(inside), hits(outside)
    return _judge("linkability", "risk of being linked", found, confidence)


@attack(family="tables", access="table")
def synthetic_inference(
    released: object,
    members: object,
    nonmembers: object,
    attribute: str,
    *,
    columns: Sequence[str] | None = None,
    seed: int = 0,
    confidence: float = 0.95,
) -> ControlledResult:
    """Guess an attribute of a person from the synthetic row that is nearest in all others.

    Parameters
    ----------
    released
        The synthetic rows.
    members, nonmembers
        Private rows that were used, and as many of the same kind that were not.
    attribute
        The column to guess. A number is right within a twentieth of its range.
    columns
        All columns to look at; those of ``released`` by default.
    seed, confidence
        Of the draws; of the interval.

    Returns
    -------
    ControlledResult
        How many guesses are right, and how many about the control group. Internal.

    Raises
    ------
    InvalidValue
        If a table is empty or lacks a column, or there is no other column.
    """
    made, inside, outside, _ = _read_groups(columns, released, members, nonmembers, seed)
    others = [name for name in made.names if name != attribute]
    if attribute not in made.names or not others:
        expected = f"one of {', '.join(made.names)}, beside others"
        raise InvalidValue("attribute", attribute, expected)
    secret = made.select([attribute])
    allowed = _NEAR if secret.is_number[0] else 0.0

    def hits(group: _Rows) -> NDArray[np.bool_]:
        nearest = group.select(others).nearest(made.select(others), 1)[1][:, 0]
        truth = group.select([attribute]).values[:, 0]
        return np.asarray(np.abs(secret.values[nearest, 0] - truth) <= allowed)

    found = hits(inside), hits(outside)
    return _judge("synthetic_inference", f"risk that {attribute} is inferred", found, confidence)
