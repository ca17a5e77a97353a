"""Private tables in the domain that their schema declares, whole or in batches.

**Formal guarantee.** Each row of the result is a function of one record alone, so two inputs that
differ in one record give tables that differ in one row. No record can cause an error, move
a bound, add a category or shift another row. With persons in the schema, two inputs that differ
in one person's records give tables that differ in at most ``rows_per_person`` rows.

What can be an error is public: the form of the file, the names and types of its columns. It is
raised by :func:`check_columns` and before the first batch, hence before a budget is charged.

=====================================  =========================================================
a cell that is no number, empty, NaN   the declared ``missing`` value of the column
a number out of bounds, infinite       the nearer bound
a text that is no declared category    the declared ``other``
an empty cell of a category            the declared ``missing`` label, or ``other``
a line with too few, too many cells    empty cells at its end; surplus cells are ignored
bytes that are not UTF-8               no number and no category, as above
a line of more than 1 MiB              the first MiB of it
an empty line                          no record
an empty file                          a table without rows
a row without a person                 left out, where the schema has persons
=====================================  =========================================================

**The cap on a person's rows.** Which rows of a person are used is a function of that person's own
rows and of randomness drawn for them. So adding or removing a person adds or removes at most
``rows_per_person`` rows and leaves every other row as it was, which is what
:meth:`discreet.data.Schema.unit_loss` charges for. A rule that looked across persons would void
this: "the first 100,000 rows of the file", "drop persons until the classes are balanced" or one
common pool for rows without a name would let one person's rows push out those of others.

``"random"``
    Each row draws 64 random bits; a person's rows with the smallest numbers are kept. That is a
    uniformly random subset (exactly so unless two of the numbers are equal, when the earlier row
    goes first; privacy does not rest on it).
``"first"``
    The first rows of each person in the order of the file. It draws nothing, but is
    only representative where that order is.

A row whose cell for the person is empty belongs to no known person and is left out: it cannot
be charged to anyone. Names are compared as texts without the blanks around them: two spellings
are two persons. In a column of numbers NaN is empty, and every other number names a person, an
infinity and a fraction too; a name that is not UTF-8 is compared by its bytes. The curator's
engines follow the same rule.

The choice needs a pass of its own over the column of persons, and memory for their names and
up to 200 bytes a kept row while it sorts, however wide the rows are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.data._cells import RawBatch
from discreet.data._readers import TableInput, open_input
from discreet.data._schema import Schema
from discreet.errors import InvalidValue
from discreet.randomness import Source, choose_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHOICES = ("random", "first")


def rows_and_owners(
    batches: Iterable[RawBatch],
    *,
    person: str,
    cap: int,
    choose: str,
    source: Source,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the rows to be used, in increasing order, and of the owner of each.

    >>> from discreet.randomness import source
    >>> batch = RawBatch({"who": np.array(["a", "b", "", "a", "a"], dtype=object)}, 5)
    >>> rows_and_owners([batch], person="who", cap=2, choose="first", source=source())
    (array([0, 1, 3]), array([0, 1, 0]))
    """
    _validate.one_of("choose", choose, CHOICES)
    numbers: dict[bytes, int] = {}
    kept = _Kept(cap)
    start = 0
    for batch in batches:
        codes, names = batch.texts(person)
        owners = np.array(
            [numbers.setdefault(name, len(numbers)) if name else -1 for name in names],
            dtype=np.int64,
        )
        of_row = owners[codes] if names else np.empty(0, dtype=np.int64)
        rows = start + np.flatnonzero(of_row >= 0)
        of_row = of_row[of_row >= 0]
        order = source.words64(rows.size) if choose == "random" else rows.astype(np.uint64)
        kept.enter(of_row, order, rows)
        start += batch.rows
    rows, owners = kept.rows_and_owners()
    sequence = np.argsort(rows)
    return rows[sequence], owners[sequence]


class _Kept:
    """The ``cap`` rows with the smallest order of each owner, among all that entered."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]] = []
        self._pending = 0
        self._merged = 0

    def enter(
        self, owners: NDArray[np.int64], order: NDArray[np.uint64], rows: NDArray[np.int64]
    ) -> None:
        self._parts.append((owners, order, rows))
        self._pending += rows.size
        # Sorting only when the new rows are as many as the old ones keeps the whole n log n.
        if self._pending > max(self._merged, 1 << 16):
            self._merge()

    def rows_and_owners(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        self._merge()
        nothing = np.empty(0, dtype=np.int64)
        return (self._parts[0][2], self._parts[0][0]) if self._parts else (nothing, nothing)

    def _merge(self) -> None:
        if not self._parts:
            return
        owners, order, rows = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        sequence = np.lexsort((rows, order, owners))
        owners, order, rows = owners[sequence], order[sequence], rows[sequence]
        firsts = np.flatnonzero(np.concatenate([[True], owners[1:] != owners[:-1]]))
        sizes = np.diff(np.concatenate([firsts, [owners.size]]))
        rank = np.arange(owners.size) - np.repeat(firsts, sizes)
        keep = rank < self._cap
        self._parts = [(owners[keep], order[keep], rows[keep])]
        self._merged, self._pending = int(keep.sum()), 0


_BATCH_ROWS = 1 << 16


@final
@dataclass(frozen=True, eq=False)
class Table:
    """Rows inside the domain of a schema; still private.

    ``columns`` holds an array for each column of the schema: numbers (dates as days since
    1970-01-01) inside the bounds, or codes into the labels. Where the schema has persons,
    ``persons`` numbers the owner of each row, in an order that means nothing.
    """

    schema: Schema
    columns: Mapping[str, NDArray[Any]]
    rows: int
    persons: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        # Not the number of rows, which is private under add_remove.
        return f"Table({', '.join(self.columns)})"


@final
@dataclass(frozen=True, eq=False)
class Used:
    """The rows of a batch that are used, and the number of the owner of each."""

    rows: NDArray[np.int64]
    owners: NDArray[np.int64]


def check_columns(data: object, schema: Schema) -> None:
    """Raise unless the input has the columns that the schema needs; no record is looked at."""
    _require_schema(schema)
    open_input(data, schema)


def check_integrity(data: object, schema: Schema) -> None:
    """Raise where a packed or Parquet file is damaged or cut off, by reading it to its end.

    Cells are not looked at: it is the file that is damaged, and not a record that is odd.
    """
    _require_schema(schema)
    open_input(data, schema).check_integrity(schema.file_columns)


def read_table(
    data: object,
    schema: Schema,
    *,
    choose: str = "random",
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Table:
    """Return a whole table in the domain of its schema.

    ``data`` is the path of a CSV or Parquet file, a data frame, a mapping of names to arrays, a
    matrix whose columns are in the order of ``schema.file_columns``, or an Arrow table.

    >>> from discreet.data import Categorical, Integer
    >>> schema = Schema({"age": Integer(17, 90), "sex": Categorical(["F", "M"])})
    >>> table = read_table({"age": ["38", 400, None], "sex": ["M", "x", "F"]}, schema)
    >>> table.columns["age"], table.columns["sex"]
    (array([38., 90., 54.]), array([1, 2, 0]))
    """
    batches = list(
        table_batches(data, schema, choose=choose, source=source, insecure_seed=insecure_seed)
    )
    columns = {
        name: np.concatenate([batch.columns[name] for batch in batches])
        if batches
        else column.to_domain(np.empty(0))
        for name, column in schema.columns.items()
    }
    owners = [np.empty(0, dtype=np.int64)]
    owners += [batch.persons for batch in batches if batch.persons is not None]
    persons = None if schema.person is None else np.concatenate(owners)
    return Table(schema, MappingProxyType(columns), sum(batch.rows for batch in batches), persons)


def table_batches(
    data: object,
    schema: Schema,
    *,
    batch_rows: int = _BATCH_ROWS,
    choose: str = "random",
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Iterator[Table]:
    """Yield the table in batches of at most ``batch_rows`` rows, for files larger than memory.

    The schema and the columns of the input are checked before this returns. With persons in the
    schema the input is read twice. How rows fall into batches is an accident of the input and may
    depend on records: use the rows, not the batches.
    """
    _require_schema(schema)
    schema.require_complete()
    size = _validate.integer("batch_rows", batch_rows, at_least=1)
    _validate.one_of("choose", choose, CHOICES)
    bits = choose_source(source, insecure_seed)
    table = open_input(data, schema)
    parts = raw_rows(table, schema, cap=schema.rows_per_person, choose=choose, source=bits)
    return _in_domain(parts, schema, size)


def raw_rows(
    table: TableInput,
    schema: Schema,
    *,
    cap: int | None,
    choose: str,
    source: Source,
    batch_rows: int = _BATCH_ROWS,
    names: Sequence[str] | None = None,
) -> Iterator[tuple[RawBatch, Used | None]]:
    """Yield batches as they came, and which of their rows are used; None means all of them."""
    wanted = list(schema.columns) if names is None else list(names)
    if schema.person is None or cap is None:
        for batch in table.batches(wanted, batch_rows):
            yield batch, None
        return
    persons = table.batches([schema.person], batch_rows)
    rows, owners = rows_and_owners(
        persons, person=schema.person, cap=cap, choose=choose, source=source
    )
    start = 0
    for batch in table.batches(wanted, batch_rows):
        first, last = np.searchsorted(rows, [start, start + batch.rows])
        yield batch, Used(rows[first:last] - start, owners[first:last])
        start += batch.rows


def _in_domain(
    parts: Iterator[tuple[RawBatch, Used | None]], schema: Schema, size: int
) -> Iterator[Table]:
    for batch, used in parts:
        columns = {}
        for name, column in schema.columns.items():
            raw = batch.numbers(name, column)
            columns[name] = column.to_domain(raw if used is None else raw[used.rows])
        rows = batch.rows if used is None else used.rows.size
        for start in range(0, rows, size):
            stop = min(start + size, rows)
            part = {name: values[start:stop] for name, values in columns.items()}
            owners = None if used is None else used.owners[start:stop]
            yield Table(schema, MappingProxyType(part), stop - start, owners)


def _require_schema(schema: object) -> None:
    if not isinstance(schema, Schema):
        raise InvalidValue("schema", type(schema).__name__, "a Schema")
