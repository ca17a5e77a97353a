"""A private report of a table: one noisy histogram of every column, and what follows from it.

Each column has public cells: one for each label, and for numbers equal parts of the declared
bounds, or single values where there are few. A row is in one cell of each of p columns, so adding
it moves the vector of all counts by sqrt(p), and a person with k rows by at most k sqrt(p).
Replacing a row changes two cells of a column. All counts get discrete Gaussian noise once; numbers
of rows, shares, means and quantiles are post-processing, with the error bars of that noise.

The bars speak of the table as its schema reads it: cells out of bounds are clipped, cells that are
missing count as their declared value.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy.special import ndtri

from discreet import _validate
from discreet._confidence import rows_meant
from discreet.data import (
    Bounded,
    Date,
    Labelled,
    Real,
    Schema,
    check_columns,
    check_integrity,
    table_batches,
)
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn._declared import charged, stated_unit, with_schema_cost
from discreet.learn._exact_descent import default_delta
from discreet.mechanisms import gaussian_integers
from discreet.privacy import GDP, Loss, Relation
from discreet.privacy.theorems import discrete_gaussian_mu, gaussian_mu
from discreet.randomness import source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.data import Column
    from discreet.ledger import Ledger

_CELLS = 64
_STEPS = 1 << 10
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@final
@dataclass(frozen=True, eq=False)
class ColumnReport:
    """What is released of one column.

    Parameters
    ----------
    labels
        The labels of a column of labels; empty for numbers.
    edges
        The ends of the cells of a column of numbers, one more than cells; empty for labels.
    counts
        The noisy count of each cell.
    stddev
        The deviation of the noise of each count.
    is_date
        Whether numbers are days since 1970-01-01.

    """

    labels: tuple[str, ...]
    edges: NDArray[np.float64]
    counts: NDArray[np.float64]
    stddev: float
    is_date: bool = False

    @property
    def rows(self) -> float:
        """About how many rows there are, by this column alone."""
        return float(self.counts.sum())

    def share(self, label: str, *, confidence: float = 0.95) -> tuple[float, float, float]:
        """Return the share of rows with a label, and the ends of its error bar."""
        _validate.one_of("label", label, self.labels)
        at = np.arange(len(self.labels)) == self.labels.index(label)
        return self._ratio(at.astype(np.float64), confidence, least=0.0, most=1.0)

    def mean(self, *, confidence: float = 0.95) -> tuple[float, float, float]:
        """Return the mean of a column of numbers, and the ends of its error bar.

        The bar allows for half the width of a cell beside the noise.
        """
        self._need_numbers()
        middles = (self.edges[1:] + self.edges[:-1]) / 2.0
        value, low, high = self._ratio(
            middles, confidence, least=float(self.edges[0]), most=float(self.edges[-1])
        )
        half = float(np.diff(self.edges).max()) / 2.0
        return value, max(low - half, float(self.edges[0])), min(high + half, float(self.edges[-1]))

    def quantile(self, share: float, *, confidence: float = 0.95) -> tuple[float, float, float]:
        """Return a value below which a share of the rows is, and the ends of its error bar."""
        self._need_numbers()
        part = _validate.real("share", share, at_least=0, at_most=1)
        level = _validate.real("confidence", confidence, above=0, below=1)
        # Rows below an edge, minus that share of all rows: 0 at the quantile, but for the noise.
        below = np.concatenate([[0.0], np.cumsum(self.counts)])
        apart = below - part * below[-1]
        cells = np.arange(len(below))
        spread = self.stddev * np.sqrt(
            cells * (1.0 - part) ** 2 + (len(self.counts) - cells) * part**2
        )
        # Bars at all edges together: the edges that the noise does not tell from the quantile.
        reach = float(ndtri(1.0 - (1.0 - level) / 2.0 / max(len(self.counts) - 1, 1)))
        low = np.flatnonzero(apart + reach * spread < 0.0)
        high = np.flatnonzero(apart - reach * spread > 0.0)
        first = int(low[-1]) if low.size else 0
        last = int(high[0]) if high.size else len(self.edges) - 1
        last = max(last, first)
        smooth = np.maximum.accumulate(apart)
        at = int(np.clip(np.searchsorted(smooth, 0.0), 1, len(self.edges) - 1))
        step = smooth[at] - smooth[at - 1]
        inside = min(max(-smooth[at - 1] / step, 0.0), 1.0) if step > 0.0 else 0.5
        value = self.edges[at - 1] + inside * (self.edges[at] - self.edges[at - 1])
        ends = float(self.edges[first]), float(self.edges[last])
        return min(max(float(value), ends[0]), ends[1]), *ends

    def _ratio(
        self, weights: NDArray[np.float64], confidence: float, *, least: float, most: float
    ) -> tuple[float, float, float]:
        """Return a mean of weights over rows, by the noisy counts, with the bar of their noise."""
        level = _validate.real("confidence", confidence, above=0, below=1)
        reach = float(ndtri(0.5 + level / 2.0))
        total = self.rows
        if total <= 4.0 * reach * self.stddev * math.sqrt(len(self.counts)):
            # The number of rows cannot be told from 0: any mean is possible.
            return (least + most) / 2.0, least, most
        value = min(max(float(weights @ self.counts) / total, least), most)
        away = weights - value
        slack = reach * self.stddev * math.sqrt(len(self.counts)) / total
        bar = reach * self.stddev * float(np.sqrt(away @ away)) / total / (1.0 - slack)
        return value, max(value - bar, least), min(value + bar, most)

    def _need_numbers(self) -> None:
        if self.labels:
            raise NotApplicable("a column of labels has shares, and no mean and no quantiles")


@final
@dataclass(frozen=True, eq=False)
class Description:
    """A released report of a table; everything in it is covered by one loss.

    Parameters
    ----------
    columns
        A report for each column.
    rows
        About how many rows there are, and the ends of the error bar (95 %).
    loss
        What the release reveals about one unit, and what the schema cost if that is unpaid.
    delta
        The delta at which the loss was planned.
    unit
        Whom the loss speaks of.
    about
        Of which rows the figures and their error bars speak: of persons with many, some are
        dropped.

    """

    columns: Mapping[str, ColumnReport]
    rows: tuple[float, float, float]
    loss: Loss
    delta: float
    unit: str
    about: str = rows_meant(None)

    @property
    def epsilon(self) -> float:
        """The epsilon of the loss at its delta."""
        return self.loss.epsilon(delta=self.delta)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        found = {}
        for name, column in self.columns.items():
            one: dict[str, Any] = {"counts": column.counts.tolist(), "stddev": column.stddev}
            if column.labels:
                one |= {"labels": list(column.labels)}
                one["shares"] = [list(column.share(label)) for label in column.labels]
            else:
                one |= {"edges": column.edges.tolist(), "mean": list(column.mean())}
                quantiles = {f"{share:g}": list(column.quantile(share)) for share in _QUANTILES}
                one["quantiles"] = quantiles
            found[name] = one
        return {
            "rows": list(self.rows),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": self.unit,
            "about": self.about,
            "columns": found,
        }

    def lines(self) -> list[str]:
        """Say it in lines of text; brackets hold error bars of 95 %, each for itself."""
        value, low, high = self.rows
        lines = [f"about {max(value, 0.0):.0f} rows [{max(low, 0.0):.0f}, {max(high, 0.0):.0f}]"]
        if self.about != rows_meant(None):
            lines.append(f"all figures are {self.about}")
        for name, column in self.columns.items():
            if column.labels:
                order = np.argsort(-column.counts)[:5]
                said = [_share_words(column, column.labels[at]) for at in order]
                more = len(column.labels) - len(order)
                said += [f"{more} more"] if more else []
            else:
                said = ["mean " + _bar_words(column, column.mean())]
                said += [
                    f"{100 * share:g} % below " + _bar_words(column, column.quantile(share))
                    for share in (0.25, 0.5, 0.75)
                ]
            lines.append(f"{name}: " + ", ".join(said))
        return lines


def _share_words(column: ColumnReport, label: str) -> str:
    value, low, high = column.share(label)
    return f"{label} {100 * value:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def _bar_words(column: ColumnReport, bar: tuple[float, float, float]) -> str:
    if column.is_date:
        days = [str(dt.date(1970, 1, 1) + dt.timedelta(round(one))) for one in bar]
        return f"{days[0]} [{days[1]}, {days[2]}]"
    value, low, high = bar
    return f"{value:.4g} [{low:.4g}, {high:.4g}]"


def describe(
    data: Any,
    schema: Schema,
    *,
    epsilon: float,
    delta: float | None = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    unit: str | None = None,
    insecure_seed: int | None = None,
) -> Description:
    """Release a private report of a table: histograms, shares, means and quantiles.

    Parameters
    ----------
    data
        Whatever :func:`~discreet.data.read_table` takes.
    schema
        What is public about it; complete, as for a learner.
    epsilon, delta
        What it costs. None for delta is :func:`default_delta` of the declared rows. A schema that
        was learned and is unpaid costs more on top.
    relation
        What the guarantee compares.
    ledger, dataset, unit
        As for the ``fit`` of an estimator; the charge comes before a cell is read.
    insecure_seed
        For tests only: the noise can be computed from it.

    Returns
    -------
    Description
        The report.

    Raises
    ------
    InvalidValue, NotApplicable
        If the form of the data or an argument does not fit; nothing was charged.

    Examples
    --------
    >>> from discreet.data import Categorical, Integer
    >>> declared = {"age": Integer(0, 99), "ward": Categorical(["north", "south"])}
    >>> people = {"age": [30, 40, 50, 60] * 1000, "ward": ["north", "south"] * 2000}
    >>> found = describe(people, Schema(declared, expected_rows=4000), epsilon=1.0)
    >>> low, high = found.columns["age"].mean()[1:]
    >>> low < 45 < high, found.epsilon <= 1.0
    (True, True)

    """
    if not isinstance(schema, Schema):
        raise InvalidValue("schema", type(schema).__name__, "a discreet.data Schema")
    schema.require_complete()
    neighbours = Relation.parse(relation)
    cap = schema.rows_per_person or 1
    if schema.person is not None and neighbours is Relation.REPLACE:
        raise NotApplicable("replacing a person may change the number of rows: use add_remove")
    target = _validate.real("epsilon", epsilon, above=0)
    if delta is None and schema.expected_rows is None:
        expected = "a delta, because the schema declares no number of rows to choose one by"
        raise InvalidValue("delta", None, expected)
    point = (
        default_delta(schema.expected_rows or 1)
        if delta is None
        else _validate.real("delta", delta, above=0, below=1)
    )
    check_columns(data, schema)
    check_integrity(data, schema)
    cells = {name: _cells_of(column) for name, column in schema.columns.items()}
    # One row leaves a cell of each column, and under replace another one takes its place.
    moved = len(cells) * (2 if neighbours is Relation.REPLACE else 1)
    shift = cap * math.sqrt(moved) * _STEPS * (1.0 + 2.0**-48)
    stddev, loss = _calibrate(target, point, shift, cap * moved, neighbours)
    bits = source(insecure_seed=insecure_seed)
    whole = with_schema_cost(loss, schema, point)
    word = stated_unit(unit, persons=schema.person is not None)
    with charged(ledger, dataset, loss=whole, delta=point, purpose="describe a table", unit=word):
        counts = {name: np.zeros(len(one) - 1, dtype=np.int64) for name, one in cells.items()}
        for part in table_batches(data, schema, source=bits.derive("rows of the table")):
            for name, edges in cells.items():
                places = _places(part.columns[name], schema.columns[name], edges)
                counts[name] += np.bincount(places, minlength=len(edges) - 1)
        exact = np.concatenate(list(counts.values())) * _STEPS
        noisy = gaussian_integers(
            exact, sensitivity=Fraction(shift), stddev=stddev, relation=neighbours, source=bits
        ).value
    ends = np.cumsum([len(one) - 1 for one in cells.values()])[:-1]
    reports = {}
    for (name, edges), own in zip(cells.items(), np.split(noisy / _STEPS, ends), strict=True):
        column = schema.columns[name]
        labels = column.labels if isinstance(column, Labelled) else ()
        shown = np.empty(0) if labels else edges
        dated = isinstance(column, Date)
        reports[name] = ColumnReport(labels, shown, own, stddev / _STEPS, dated)
    about = rows_meant(schema.rows_per_person)
    return Description(reports, _rows(reports, stddev / _STEPS), whole, point, word, about)


def _calibrate(
    epsilon: float, delta: float, shift: float, moved: int, relation: Relation
) -> tuple[float, Loss]:
    """Return the deviation of the noise, in steps, and the loss that it gives."""
    mu = gaussian_mu(epsilon, delta)
    for attempt in range(60):
        stddev = shift / mu * (1.0 + 2.0 ** (attempt - 40))
        found = discrete_gaussian_mu(stddev, shift, coordinates=moved)
        if found is not None and GDP(found, relation).epsilon(delta=delta) <= epsilon:
            return stddev, GDP(found, relation)
    raise NotApplicable(f"no noise was certified for epsilon {epsilon!r} and delta {delta!r}")


def _cells_of(column: Column) -> NDArray[np.float64]:
    """Return the edges of a column's cells; those of labels are 0, 1, ..."""
    if isinstance(column, Labelled):
        return np.arange(len(column.labels) + 1, dtype=np.float64)
    assert isinstance(column, Bounded)
    lower, upper = column.bounds
    if not isinstance(column, Real) and upper - lower < _CELLS:
        return np.arange(lower - 0.5, upper + 1.0)
    return np.linspace(lower, upper, _CELLS + 1)


def _places(values: NDArray[Any], column: Column, edges: NDArray[np.float64]) -> NDArray[np.int64]:
    if isinstance(column, Labelled):
        return np.asarray(values, dtype=np.int64)
    found = np.searchsorted(edges, values, side="right") - 1
    return np.clip(found, 0, len(edges) - 2)


def _rows(reports: Mapping[str, ColumnReport], stddev: float) -> tuple[float, float, float]:
    """Return the number of rows by all columns together, each by the inverse of its variance."""
    weights = np.array([1.0 / len(one.counts) for one in reports.values()])
    totals = np.array([one.rows for one in reports.values()])
    value = float(weights @ totals / weights.sum())
    bar = 1.96 * stddev / math.sqrt(float(weights.sum()))
    return value, value - bar, value + bar
