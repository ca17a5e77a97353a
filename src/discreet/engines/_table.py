"""A bounded table and what can be asked of it: exact counts and sums, the same on every engine.

A table has no names of persons in it and no NULL; its columns are 64-bit integers or texts. It
comes in parts, each with all rows of its persons in line. An engine needs to run a function on
every part (:meth:`Table.map_parts`); one that has something better, such as a database, overrides
:meth:`Table.aggregate`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet import data
from discreet.data import Schema, import_arrow
from discreet.engines._lowering import Lowered, Lowering, StoredColumn, stored_columns
from discreet.engines._rows import PERSON, RANK
from discreet.engines._term import Term, Texts, constant, evaluate
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

# With limbs of at most 2**30 in a row, no sum over a table passes 2**62.
MOST_ROWS = 2**32
LIMB = 30
_CHUNK = 1 << 20

Group = tuple[Any, ...]
Sums = dict[Group, tuple[int, ...]]


@dataclass(frozen=True)
class Aggregation:
    """Counts and sums to compute, made of terms; equal ones are compiled once.

    Parameters
    ----------
    keys
        What to group by; without keys there is one group, ``()``.
    sums
        Numbers to add up, with their grids: sums are in steps.
    where
        The rows to use, or None for all.
    cap
        At most this many rows of each person, among those that satisfy ``where``.
    among
        Of the rows that the cap leaves, those to group and add up, or None for all.
    count
        ``"rows"``, or ``"persons"`` with more than ``more_than`` rows that satisfy ``where``.
    more_than
        See ``count``.

    """

    keys: tuple[Term, ...] = ()
    sums: tuple[Lowered, ...] = ()
    where: Term | None = None
    cap: int | None = None
    among: Term | None = None
    count: str = "rows"
    more_than: int = 0

    def __post_init__(self) -> None:
        if self.count not in ("rows", "persons"):
            raise InvalidValue("count", self.count, "rows or persons")
        if self.count == "persons" and (self.keys or self.sums or self.cap is not None):
            raise InvalidValue("count", self.count, "rows, where there are keys, sums or a cap")
        Term("all_of", self.terms).check_size()

    @property
    def terms(self) -> tuple[Term, ...]:
        """Everything that is computed on a row."""
        sums = [limb for one in self.sums for limb in limbs(one)]
        return (*self.keys, *sums, *(one for one in (self.where, self.among) if one is not None))

    @property
    def picks(self) -> bool:
        """Whether it matters which rows of a person count, and not only how many."""
        return bool(self.keys or self.sums or self.among is not None)

    @property
    def names(self) -> list[str]:
        """The stored columns that are read."""
        found = set().union(*(term.columns for term in self.terms))
        found |= {PERSON} if self.cap is not None or self.count == "persons" else set()
        return sorted(found)


def limbs(of: Lowered) -> list[Term]:
    """Return terms of at most 2**30, the high one first, that make up a number less its lowest.

    The number has at most 2**53 steps, so the division by 2**30 is exact in a double.
    """
    low = of.grid.low
    rest = of.term if low == 0 else Term("subtract", (of.term, constant(low)))
    if of.grid.high - low <= 2**LIMB:
        return [rest]
    high = Term("shift", (rest,), (LIMB,))
    weight = Term("multiply", (high, constant(2**LIMB)))
    return [high, Term("subtract", (rest, weight))]


def join_limbs(sums: Sequence[Lowered], count: int, limb_sums: Sequence[int]) -> tuple[int, ...]:
    """Return the exact sums, from those of their limbs and the number of rows."""
    left = list(limb_sums)
    joined = []
    for one in sums:
        total = 0
        for _ in limbs(one):
            total = (total << LIMB) + left.pop(0)
        joined.append(total + one.grid.low * count)
    return tuple(joined)


class Table(ABC):
    """A bounded table; ``schema`` and ``columns`` say what is in it."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.columns: Mapping[str, StoredColumn] = stored_columns(schema)

    @abstractmethod
    def map_parts(self, function: Callable[[Any], bytes], names: Sequence[str]) -> Iterable[bytes]:
        """Return what a function makes of every part of the table, in any order.

        Parameters
        ----------
        function
            Takes an Arrow table and returns bytes; it can be sent to other processes.
        names
            The stored columns that the part has to have. All rows of a person are in one part,
            ordered by ``person`` and ``rank`` where these are in the table.

        """

    def close(self) -> None:  # noqa: B027 - an engine may have nothing to forget
        """Forget the table."""

    def lowering(self) -> Lowering:
        """Return what turns expressions into terms for this table."""
        return Lowering(self.columns)

    def check(self, aggregation: Aggregation) -> None:
        """Raise ``NotApplicable`` for what the engine cannot compute; no row is read."""
        self.require_persons(aggregation)
        nothing = import_arrow("pyarrow").table(
            {name: _nothing(self.columns, name) for name in (aggregation.names or self._one_name)}
        )
        aggregate_part(nothing, aggregation)

    def require_persons(self, aggregation: Aggregation) -> None:
        """Raise ``NotApplicable`` for a cap or a count of persons where the schema names none."""
        if PERSON in aggregation.names and self.schema.person is None:
            raise NotApplicable("this table has no persons")

    def aggregate(self, aggregation: Aggregation) -> Sums:
        """Return the exact count, and the exact sums in steps, of every group that there is.

        Parameters
        ----------
        aggregation
            What to compute.

        Returns
        -------
        dict
            Groups to ``(count, *sums)``. Without keys there is always the group ``()``.

        """
        found: dict[Group, list[int]] = {}
        if not aggregation.keys:
            found[()] = [0] * (1 + len(aggregation.sums))
        names = aggregation.names or self._one_name
        for part in self.map_parts(partial(aggregate_part, aggregation=aggregation), names):
            for group, numbers in json.loads(part):
                total = found.setdefault(tuple(group), [0] * len(numbers))
                for at, number in enumerate(numbers):
                    total[at] += number
        return {group: tuple(numbers) for group, numbers in found.items()}

    def fold(
        self,
        step: Callable[[data.Table], NDArray[Any]],
        zero: NDArray[Any],
        *,
        names: Sequence[str] | None = None,
    ) -> NDArray[Any]:
        """Add up the integer arrays that ``step`` makes of batches, where the rows are.

        Parameters
        ----------
        step
            Takes a :class:`discreet.data.Table` of some rows, at most ``rows_per_person`` of each
            person in the whole table and all these together, and returns integers of the shape of
            ``zero``.
        zero
            What to start from.
        names
            The columns that ``step`` reads; all of them by default.

        Returns
        -------
        numpy.ndarray
            The sum, as Python integers: no number of rows makes it overflow.

        """
        total = np.asarray(zero).astype(object)
        function = partial(fold_part, step=step, schema=self._schema_of(names), shape=total.shape)
        for part in self.map_parts(function, self._stored_names(names)):
            total = total + np.array(json.loads(part), dtype=object).reshape(total.shape)
        return total

    def batches(
        self, names: Sequence[str] | None = None, *, rows: int = 1 << 16
    ) -> Iterator[data.Table]:
        """Yield all rows, at most ``rows_per_person`` of each person, in the schema's domain.

        Parameters
        ----------
        names
            The columns wanted; all of them by default.
        rows
            The most rows of one batch.

        """
        schema = self._schema_of(names)
        ipc = import_arrow("pyarrow.ipc")
        for part in self.map_parts(pack_rows, self._stored_names(names)):
            yield from domain_tables(ipc.open_stream(part).read_all(), schema, rows)

    @property
    def _one_name(self) -> list[str]:
        return [next(iter(self.columns.values())).stored_name]

    def _stored_names(self, names: Sequence[str] | None) -> list[str]:
        wanted = list(self.columns) if names is None else list(names)
        found = [self.columns[name].stored_name for name in wanted]
        return found if self.schema.person is None else [*found, PERSON, RANK]

    def _schema_of(self, names: Sequence[str] | None) -> tuple[Schema, Mapping[str, StoredColumn]]:
        for name in names or ():
            if name not in self.columns:
                raise InvalidValue("names", name, "columns of the schema")
        schema = self.schema
        if names is not None:
            kept = {name: schema.columns[name] for name in names}
            schema = replace(
                schema, columns=kept, target=schema.target if schema.target in kept else None
            )
        schema.require_complete()
        return schema, self.columns


def _nothing(columns: Mapping[str, StoredColumn], name: str) -> Any:
    pa = import_arrow("pyarrow")
    is_text = any(one.is_text and one.stored_name == name for one in columns.values())
    return pa.array([], pa.string() if is_text else pa.int64())


def pack_rows(part: Any) -> bytes:
    """Return an Arrow table as bytes, which ``pyarrow.ipc.open_stream`` reads."""
    pa = import_arrow("pyarrow")
    sink = pa.BufferOutputStream()
    with import_arrow("pyarrow.ipc").new_stream(sink, part.schema) as writer:
        writer.write_table(part.combine_chunks())
    return bytes(sink.getvalue())


def fold_part(
    part: Any, *, step: Callable[[Any], Any], schema: Any, shape: tuple[int, ...]
) -> bytes:
    """Return, as JSON, the sum of what ``step`` makes of the rows of one part."""
    total = np.zeros(shape, dtype=object)
    for batch in domain_tables(part, schema, _CHUNK):
        found = np.asarray(step(batch))
        if found.dtype.kind not in "iubO" or found.shape != shape:
            raise InvalidValue("step", found.dtype.str, f"whole numbers of shape {shape}")
        total = total + found.astype(object)
    return json.dumps(
        np.vectorize(int, otypes=[object])(total).tolist() if total.size else []
    ).encode()


def domain_tables(part: Any, of: Any, rows: int) -> Iterator[data.Table]:
    """Yield the rows of a part in the domain of a schema, at most its cap of each person.

    At most ``rows`` at once, or a few more: all rows of a person come together.
    """
    schema, columns = of
    persons = None
    if schema.person is not None:
        part = part.filter(part.column(RANK).to_numpy() <= schema.rows_per_person)
        persons = part.column(PERSON).to_numpy()
    stop = 0
    while stop < part.num_rows:
        start, stop = stop, min(stop + rows, part.num_rows)
        if persons is not None:
            stop = int(np.searchsorted(persons, persons[stop - 1], side="right"))
        some = part.slice(start, stop - start)
        read: dict[str, Any] = {}
        for name in schema.columns:
            stored = columns[name]
            values = some.column(stored.stored_name).to_numpy().astype(np.int64)
            read[name] = values
            if stored.labels is None:
                read[name] = values * float(stored.grid.step)
        owners = None if persons is None else persons[start:stop]
        yield data.Table(schema, MappingProxyType(read), some.num_rows, owners)


def aggregate_part(part: Any, aggregation: Aggregation) -> bytes:
    """Return, as JSON, the groups of one part with their counts and sums."""
    columns = {name: _array(part.column(name)) for name in part.column_names}
    used = np.ones(part.num_rows, dtype=bool)
    if aggregation.where is not None:
        used &= evaluate(aggregation.where, columns)
    if aggregation.count == "persons":
        _, owned = np.unique(columns[PERSON][used], return_counts=True)
        return json.dumps([[[], [int((owned > aggregation.more_than).sum())]]]).encode()
    if aggregation.cap is not None:
        used &= _in_line(columns[PERSON], used) <= aggregation.cap
    if aggregation.among is not None:
        used &= evaluate(aggregation.among, columns)
    found: dict[Group, list[int]] = {}
    rows = np.flatnonzero(used)
    for start in range(0, rows.size, _CHUNK):
        _add_up(columns, rows[start : start + _CHUNK], aggregation, found)
    return json.dumps([[list(group), numbers] for group, numbers in found.items()]).encode()


def _in_line(persons: NDArray[np.int64], used: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the place of each used row among the used rows of its person, from 1."""
    count = np.cumsum(used)
    first = np.ones(persons.size, dtype=bool)
    first[1:] = persons[1:] != persons[:-1]
    before = np.maximum.accumulate(np.where(first, count - used, 0))
    return np.asarray(count - before)


def _add_up(
    columns: Mapping[str, Any],
    rows: NDArray[np.int64],
    aggregation: Aggregation,
    found: dict[Group, list[int]],
) -> None:
    some = {
        name: Texts(column.codes[rows], column.values)
        if isinstance(column, Texts)
        else column[rows]
        for name, column in columns.items()
    }
    known: dict[bytes, Any] = {}
    codes, groups = _groups([evaluate(key, some, known) for key in aggregation.keys], rows.size)
    counts = np.bincount(codes, minlength=len(groups))
    added = []
    for one in aggregation.sums:
        for limb in limbs(one):
            values = np.broadcast_to(evaluate(limb, some, known), rows.size)
            # Exact: at most 2**20 numbers of at most 2**30 add up below 2**53.
            added.append(np.bincount(codes, weights=values, minlength=len(groups)))
    for at, group in enumerate(groups):
        count = int(counts[at])
        sums = join_limbs(aggregation.sums, count, [int(limb[at]) for limb in added])
        total = found.setdefault(group, [0] * (1 + len(sums)))
        for place, number in enumerate((count, *sums)):
            total[place] += number


def _groups(keys: Sequence[Any], rows: int) -> tuple[NDArray[np.int64], list[Group]]:
    """Return which group each row is in, and the groups."""
    codes = np.zeros(rows, dtype=np.int64)
    arrays = []
    for key in keys:
        array = key.codes if isinstance(key, Texts) else np.broadcast_to(key, rows)
        arrays.append(array)
        values, inverse = np.unique(array, return_inverse=True)
        _, codes = np.unique(codes * max(1, values.size) + inverse, return_inverse=True)
    if not keys:
        return codes, [()]
    _, firsts = np.unique(codes, return_index=True)
    groups = [
        tuple(
            key.values[array[row]] if isinstance(key, Texts) else int(array[row])
            for key, array in zip(keys, arrays, strict=True)
        )
        for row in firsts
    ]
    return codes, groups


def _array(column: Any) -> Any:
    pa = import_arrow("pyarrow")
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    if not pa.types.is_string(column.type):
        return column.to_numpy().astype(np.int64)
    coded = column.combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return Texts(codes, coded.dictionary.to_pylist())
