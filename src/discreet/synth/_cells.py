"""Divide columns into cells: fine cells from public facts, groups of them from noisy counts.

Fine cells are fixed by the schema alone: each label, each whole number of a short interval, and for
longer intervals a grid that is finer near both ends, on which the bounds and zero stand alone
(many columns are mostly zero). The first noisy histogram of a column joins its fine cells into
groups: rare labels into one, neighbouring numbers until they are more than noise, and a number that
stands out stays alone. Groups are post-processing; a value is drawn from its group by the same
noisy histogram.

A column whose cells may be missing has one more cell for those that are. The table is then read by
a schema with a wider interval (:func:`schema_to_read`), so that every engine stores a number for
them that no value of the column has.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.data import (
    Boolean,
    Bounded,
    Categorical,
    Column,
    Date,
    Integer,
    Real,
    Schema,
    category_text,
    import_arrow,
)
from discreet.engines import stored_columns
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.randomness import Source

MOST_CELLS = 1 << 20
"""The most fine cells of one column."""

_UNIFORM = 128
_NEAR_ENDS = range(2, 12)
_SPIKE_SHARE = 16
_SPIKE_NOISE = 6.0
_BELIEVED = 3.0
_MISSING = "(missing)"
_LOWEST = -(2**53)


@final
@dataclass(frozen=True)
class FineCells:
    """The fine cells of one column: cell i holds the stored integers from starts[i] on.

    ``kind`` is that of the values: ``"label"``, ``"boolean"``, ``"integer"``, ``"date"`` or
    ``"real"``. A stored integer times ``step`` is the value. ``missing`` is what is stored where
    nothing stood: of labels it is one of them, of numbers it has the last cell. ``other`` is the
    label of all texts that are no label, where texts are stored.
    """

    name: str
    kind: str
    starts: tuple[int, ...]
    high: int
    step: Fraction = Fraction(1)
    labels: tuple[str, ...] | None = None
    missing: int | None = None
    other: int | None = None

    @property
    def size(self) -> int:
        """How many cells there are."""
        return len(self.starts) + (self.labels is None and self.missing is not None)

    @property
    def missing_cell(self) -> int | None:
        """The cell of what is missing, if there is one."""
        return None if self.missing is None else self.size - 1

    @property
    def single(self) -> bool:
        """Whether every cell is one stored integer."""
        return self.high - self.starts[0] + 1 == len(self.starts)

    def encode(self, stored: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the cell of each stored integer; what lies outside goes to the nearest."""
        last = len(self.starts) - 1
        if self.single:
            found = np.clip(stored - self.starts[0], 0, last)
        else:
            found = np.clip(np.searchsorted(np.array(self.starts), stored, "right") - 1, 0, last)
        if self.labels is None and self.missing is not None:
            found = np.where(stored == self.missing, last + 1, found)
        return np.asarray(found)

    def encode_texts(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """Return the cell of each text, where texts are stored."""
        assert self.labels is not None
        assert self.other is not None
        codes = {label: at for at, label in enumerate(self.labels)}
        found = [codes.get(text, codes.get(category_text(text.encode()) or "")) for text in texts]
        return np.array([self.other if one is None else one for one in found], dtype=np.int64)

    def bounds(self, cell: int) -> tuple[float, float]:
        """Return the smallest and the largest value of a cell, as numbers."""
        last = self.starts[cell + 1] - 1 if cell + 1 < len(self.starts) else self.high
        return float(self.starts[cell] * self.step), float(last * self.step)

    def describe(self, first: int, last: int) -> str:
        """Return the values of neighbouring cells as text."""
        if self.labels is not None:
            return ", ".join(self.labels[first : last + 1])
        if first == self.missing_cell:
            return "missing"
        low, high = self.bounds(first)[0], self.bounds(last)[1]
        if self.kind == "date":
            days = [np.datetime64(int(end), "D") for end in (low, high)]
            return str(days[0]) if low == high else f"{days[0]} to {days[1]}"
        return f"{low:g}" if low == high else f"{low:g} to {high:g}"

    def draw(
        self, cells: NDArray[np.int64], source: Source, only: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Return stored integers, uniform inside their cells, or among those that may occur."""
        if self.labels is not None:
            return cells
        if only is not None:
            owner = self.encode(only)
            listed, owner = only[np.argsort(owner)], np.sort(owner)
            first = np.searchsorted(owner, cells)
            width = np.searchsorted(owner, cells, "right") - first
            place = first + (uniforms(cells.size, source) * width).astype(np.int64)
            return np.asarray(listed[np.minimum(place, first + np.maximum(width, 1) - 1)])
        starts = np.array(self.starts, dtype=np.int64)
        inside = np.minimum(cells, starts.size - 1)
        stored = starts[inside]
        if not self.single:
            width = (np.append(starts[1:], self.high + 1) - starts)[inside]
            place = np.minimum(uniforms(cells.size, source) * width, width - 1)
            stored = stored + place.astype(np.int64)
        if self.missing is not None:
            stored = np.where(cells == self.missing_cell, self.missing, stored)
        return stored

    def decode(self, stored: NDArray[np.int64]) -> Any:
        """Return the Arrow column of stored integers."""
        pa = import_arrow("pyarrow")
        gone = None if self.missing is None else stored == self.missing
        if self.kind == "label":
            return pa.array(self.labels, pa.string()).take(pa.array(stored, mask=gone))
        if self.kind == "boolean":
            return pa.array(stored == 1)
        if self.kind == "real":
            return pa.array(stored * float(self.step), mask=gone)
        values = stored.astype("datetime64[D]") if self.kind == "date" else stored
        return pa.array(values, mask=gone)


def uniforms(count: int, source: Source) -> NDArray[np.float64]:
    """Return numbers in [0, 1) for drawing from what is public already."""
    return np.asarray((source.words64(count) >> np.uint64(11)) * 2.0**-53)


def schema_to_read(schema: Schema, missing: Sequence[str]) -> Schema:
    """Return the schema by which a table is read so that missing cells can be told apart.

    A column of numbers or dates gets a wider interval: what is missing is stored as one number
    below the declared ones, and all others that lie outside are still moved to the nearest end.

    Parameters
    ----------
    schema
        What was declared.
    missing
        The columns whose missing cells have a cell of their own.

    Raises
    ------
    InvalidValue
        A column is not there, is of truth values, or says itself what is missing.

    """
    if isinstance(missing, str) or len(set(missing)) != len(missing):
        raise InvalidValue("missing", missing, "different names of columns")
    if not missing:
        return schema
    found: dict[str, Column] = {}
    for name in missing:
        column = schema.columns.get(name)
        declared = getattr(column, "missing", None)
        if column is None or isinstance(column, Boolean) or declared is not None:
            expected = "columns of numbers, dates or categories that do not declare missing"
            raise InvalidValue("missing", name, expected)
        if isinstance(column, Categorical):
            if column.complete and _MISSING in column.labels:
                raise InvalidValue("missing", name, f"a column without the label {_MISSING!r}")
            found[name] = replace(column, missing=_MISSING)
        else:
            assert isinstance(column, Bounded)
            found[name] = _widen(name, column)
    return replace(schema, target=None).with_columns(found)


def _widen(name: str, column: Bounded) -> Column:
    """Return a column of numbers with room for one that means missing."""
    if isinstance(column, Real):
        low, high = column.bounds
        if math.isinf(2.0 * (high - low)) or not 2.0 * low - high < 1.5 * low - 0.5 * high < low:
            raise InvalidValue("missing", name, "a column with smaller bounds")
        return Real(2.0 * low - high, high, missing=1.5 * low - 0.5 * high)
    low, high = (int(end) for end in column.bounds)
    floor = _LOWEST if isinstance(column, Integer) else (dt.date.min - dt.date(1970, 1, 1)).days
    lowest = max(2 * low - high - 3, floor)
    middle = (lowest + low) // 2
    if not lowest < middle < low:
        raise InvalidValue("missing", name, "a column with some room below its lower bound")
    if isinstance(column, Integer):
        return Integer(lowest, high, missing=middle)
    start = dt.date(1970, 1, 1)
    return Date(start + dt.timedelta(lowest), column.upper, missing=start + dt.timedelta(middle))


def fine_cells(
    schema: Schema, bins: Mapping[str, object] | None = None, missing: Sequence[str] = ()
) -> tuple[FineCells, ...]:
    """Return the fine cells of all columns, from public facts.

    Parameters
    ----------
    schema
        A complete schema.
    bins
        For some columns of numbers, how many cells of equal width, or the increasing values at
        which cells begin.
    missing
        The columns whose missing cells have a cell of their own.

    Raises
    ------
    InvalidValue
        A column has too many cells, or bins do not fit their column.

    """
    given = dict(bins or {})
    found = []
    read = schema_to_read(schema, missing)
    for name, stored in stored_columns(read).items():
        column = schema.columns[name]
        wanted = given.pop(name, None)
        if stored.labels is not None:
            if wanted is not None:
                raise InvalidValue(f"bins[{name!r}]", wanted, "columns of numbers only")
            found.append(_label_cells(name, read.columns[name], stored.labels, name in missing))
            continue
        grid = stored.grid
        assert grid is not None
        assert isinstance(column, Bounded)
        kind = {Integer: "integer", Date: "date"}.get(type(column), "real")
        # The stored integers inside the bounds: those next to an end may lie a little outside.
        ends = [Fraction(end) / grid.step for end in column.bounds]
        low, high = math.ceil(ends[0]), math.floor(ends[1])
        if low > high:
            low = high = round(ends[0])
        cuts = _cuts(f"bins[{name!r}]", low, high, grid.step, wanted)
        wider = read.columns[name]
        gap = None
        if name in missing:
            assert isinstance(wider, Bounded)
            gap = round(Fraction(wider.fill) / grid.step)
        found.append(FineCells(name, kind, cuts, high, grid.step, missing=gap))
    if given:
        raise InvalidValue("bins", sorted(given), "names of columns of the schema")
    return tuple(found)


def _label_cells(
    name: str, column: Column, labels: tuple[str, ...], has_missing: bool
) -> FineCells:
    if len(labels) > MOST_CELLS:
        raise InvalidValue(f"columns.{name}", len(labels), f"at most {MOST_CELLS} labels")
    texts = tuple(map(str, labels))
    return FineCells(
        name,
        "boolean" if isinstance(column, Boolean) else "label",
        tuple(range(len(texts))),
        len(texts) - 1,
        labels=texts,
        missing=texts.index(_MISSING) if has_missing else None,
        other=texts.index(column.other) if isinstance(column, Categorical) else None,
    )


def _cuts(argument: str, low: int, high: int, step: Fraction, wanted: object) -> tuple[int, ...]:
    """Return where the cells of an interval of integers begin."""
    width = high - low
    if isinstance(wanted, list | tuple):
        ends = [math.ceil(Fraction(_validate.real(argument, one)) / step) for one in wanted]
        if any(not low <= one <= high for one in ends) or ends != sorted(set(ends)):
            raise InvalidValue(argument, wanted, "increasing values inside the bounds")
        return tuple(sorted({low, *ends}))
    if wanted is not None:
        count = _validate.integer(argument, wanted, at_least=1, at_most=MOST_CELLS)
        return tuple(sorted({low + (width + 1) * at // count for at in range(count)}))
    if width < _UNIFORM:
        return tuple(range(low, high + 1))
    starts = {low, low + 1, high}
    starts |= {low + width * at // _UNIFORM for at in range(1, _UNIFORM)}
    for power in _NEAR_ENDS:
        starts |= {low + (width >> power), high - (width >> power)}
    if low < 0 < high:
        starts |= {0, 1}
    return tuple(sorted(one for one in starts if low <= one <= high))


@final
@dataclass(frozen=True, eq=False)
class Groups:
    """Fine cells joined into groups: the group of each cell, and its share inside the group."""

    group_of: NDArray[np.int64]
    share: NDArray[np.float64]

    @property
    def size(self) -> int:
        """How many groups there are."""
        return int(self.group_of.max()) + 1

    def join(self, fine: NDArray[Any]) -> NDArray[Any]:
        """Return the sums of fine cells by group."""
        return np.bincount(self.group_of, weights=fine, minlength=self.size)

    def draw(self, groups: NDArray[np.int64], source: Source) -> NDArray[np.int64]:
        """Return a fine cell for each group in a column, in the groups' proportions."""
        order = np.argsort(self.group_of, kind="stable")
        if order.size == self.size:
            return np.asarray(order[groups])
        owners = self.group_of[order]
        # The shares of each group add up to 1, so group g ends at g + 1 exactly.
        ends = np.cumsum(self.share[order])
        firsts = np.searchsorted(owners, np.arange(self.size))
        before = np.concatenate([[0.0], ends])[firsts]
        inside = np.minimum(ends - before[owners], 1.0)
        last = np.append(firsts[1:], order.size) - 1
        inside[last] = 1.0
        place = np.searchsorted(owners + inside, groups + uniforms(groups.size, source), "right")
        return np.asarray(order[np.clip(place, firsts[groups], last[groups])])


def group_cells(
    cells: FineCells,
    noisy: NDArray[np.float64],
    stddev: float,
    total: float,
    *,
    most: int,
    alone: Iterable[int] = (),
) -> Groups:
    """Join the fine cells of a column by its noisy histogram.

    Parameters
    ----------
    cells
        The column.
    noisy
        The noisy count of each fine cell.
    stddev
        The standard deviation of the noise.
    total
        The noisy number of rows.
    most
        About how many groups a column of numbers gets, beside those that stand out.
    alone
        Cells that are not joined to others.

    """
    projected = project(noisy, total)
    single = np.zeros(cells.size, dtype=bool)
    single[list(alone)] = True
    if cells.missing_cell is not None:
        single[cells.missing_cell] = True
    if cells.labels is not None:
        rare = (noisy < _BELIEVED * stddev) & ~single
        group_of = np.cumsum(~rare) - 1
        if rare.all():
            group_of = np.zeros(cells.size, dtype=np.int64)
        elif rare.any():
            group_of = np.where(rare, (~rare).sum(), group_of)
        return _with_shares(group_of.astype(np.int64), projected)
    if cells.size <= 2:
        return _with_shares(np.arange(cells.size), projected)
    spike = single | (noisy > max(total / _SPIKE_SHARE, _SPIKE_NOISE * stddev))
    rest = max(float(noisy[~spike].sum()), 1.0)
    group_of = np.zeros(cells.size, dtype=np.int64)
    group, mass, joined = -1, math.inf, 0
    for at in range(cells.size):
        enough = mass >= max(rest / most, _BELIEVED * stddev * math.sqrt(joined))
        if spike[at] or (at and spike[at - 1]) or enough:
            group, mass, joined = group + 1, 0.0, 0
        mass += float(noisy[at])
        joined += 1
        group_of[at] = group
    return _with_shares(group_of, projected)


def _with_shares(group_of: NDArray[np.int64], weights: NDArray[np.float64]) -> Groups:
    sums = np.bincount(group_of, weights=weights)
    counts = np.bincount(group_of)
    nothing = sums[group_of] <= 0.0
    safe = np.where(nothing, 1.0, sums[group_of])
    return Groups(group_of, np.where(nothing, 1.0 / counts[group_of], weights / safe))


def project(values: NDArray[np.float64], total: float) -> NDArray[np.float64]:
    """Return the point of {x >= 0, sum x = total} nearest to a table (Held and others 1974)."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    ranked = np.sort(flat)[::-1]
    excess = (np.cumsum(ranked) - total) / np.arange(1, flat.size + 1)
    last = int(np.nonzero(ranked - excess > 0.0)[0][-1])
    return np.asarray(np.maximum(flat - excess[last], 0.0).reshape(np.shape(values)))


def group_names(cells: FineCells, groups: Groups) -> list[str]:
    """Return what each group holds, as text."""
    found = []
    for group in range(groups.size):
        members: Sequence[int] = np.flatnonzero(groups.group_of == group).tolist()
        if cells.labels is None or len(members) == 1:
            found.append(cells.describe(members[0], members[-1]))
        else:
            found.append(", ".join(cells.labels[one] for one in members))
    return found


def stored_value(argument: str, cells: FineCells, schema: Schema, value: Any) -> int:
    """Return what is stored for a public value; one that is not in the domain raises."""
    if value is None and cells.missing is not None:
        return cells.missing
    column = schema.columns[cells.name]
    read = column.read_object(value)
    strange = cells.kind == "label" and str(value) not in (cells.labels or ())
    if math.isnan(read) or strange:
        raise InvalidValue(argument, value, "a value of the column's domain")
    stored = float(column.to_domain(np.array([read]))[0])
    if cells.labels is None and stored != read:
        raise InvalidValue(argument, value, "a value of the column's domain")
    if cells.kind != "real":
        return int(stored)
    return min(max(round(stored / float(cells.step)), cells.starts[0]), cells.high)
