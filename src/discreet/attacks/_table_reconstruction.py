"""Reconstruction of a table from its published statistics, by constraints, as a census was.

A small area publishes counts: by age and sex, by age and origin, and so on. Each count is a
constraint on the table of all cells, whose entries are whole numbers. For every cell the least and
the largest number of people are computed that any table with these counts can have (integer
programs). Where both agree the cell is *settled*: whoever reads the counts knows it, and so knows
everything about the people in it (Garfinkel, Abowd and Martindale 2018).

With noise, a count is only known to lie near the answer. If every answer is within the tolerance
with probability 1 - beta, all that is settled is right with that probability. Without tolerance,
noisy answers contradict each other, and no table fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np

from discreet import _validate
from discreet._json import HIDDEN
from discreet.attacks._contract import Finding, Result, attack
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_MOST_CELLS = 5000


@final
@dataclass(frozen=True, eq=False)
class TableReconstruction(Result):
    """How many people are in cells that the counts settle, and how many of these are right.

    ``least`` and ``most`` bound every cell. Internal: they are about people.
    """

    json_kind = "table reconstruction"

    people: int
    settled_people: int
    settled_cells: int
    wrong_cells: int
    cells: int
    queries: int
    fits: bool
    least: NDArray[np.int64] = field(repr=False, metadata=HIDDEN)
    most: NDArray[np.int64] = field(repr=False, metadata=HIDDEN)

    @property
    def finding(self) -> Finding:
        """The share of people in settled cells."""
        measure = "people in cells that the counts settle"
        return Finding.of_count("table_reconstruction", measure, self.settled_people, self.people)


@attack(family="reconstruction", access="answers")
def table_reconstruction(
    answers: ArrayLike, queries: ArrayLike, cells: ArrayLike, *, tolerance: float = 0.0
) -> TableReconstruction:
    """Find what all tables have in common that agree with published counts.

    >>> by_row, by_column = [[1, 1, 0, 0], [0, 0, 1, 1]], [[1, 0, 1, 0], [0, 1, 0, 1]]
    >>> queries = np.array(by_row + by_column, dtype=bool)
    >>> found = table_reconstruction([2, 3, 0, 5], queries, [0, 2, 0, 3])
    >>> found.settled_people, found.people
    (5, 5)

    Parameters
    ----------
    answers : array of numbers
        The published counts, one for each query.
    queries : array of bool, (queries, cells)
        Which cells of the table each count adds up.
    cells : array of whole numbers, (cells,)
        The true table. The attack is judged by it and does not see it.
    tolerance : float
        How far an answer may be from the true count.

    Returns
    -------
    TableReconstruction
        Bounds of every cell, and how many people they settle. If no table fits, nothing is settled.

    Raises
    ------
    InvalidValue
        If shapes do not fit, or an argument is no count.
    """
    sets, truth = np.asarray(queries), np.asarray(cells)
    if sets.ndim != 2 or sets.dtype != np.bool_ or not sets.size or sets.shape[1] > _MOST_CELLS:
        shown = f"{sets.dtype} of shape {sets.shape}"
        expected = f"True or False, (queries, cells), at most {_MOST_CELLS} cells"
        raise InvalidValue("queries", shown, expected)
    whole = np.issubdtype(truth.dtype, np.integer) and truth.shape == (sets.shape[1],)
    if not whole or truth.min() < 0 or not truth.any():
        expected = f"whole numbers from 0 for each of {sets.shape[1]} cells, not all of them 0"
        raise InvalidValue("cells", f"{truth.dtype} of shape {truth.shape}", expected)
    counts = np.asarray(answers, dtype=np.float64)
    if counts.shape != (len(sets),) or not np.isfinite(counts).all():
        expected = f"a finite number for each of {len(sets)} queries"
        raise InvalidValue("answers", f"shape {counts.shape}", expected)
    slack = _validate.real("tolerance", tolerance, at_least=0)
    least, most = _bound_cells(sets, counts, slack)
    settled = least == most
    return TableReconstruction(
        int(truth.sum()),
        int(truth[settled & (least == truth)].sum()),
        int(settled.sum()),
        int((settled & (least != truth)).sum()),
        sets.shape[1],
        len(sets),
        bool((most >= 0).all()),
        least,
        most,
    )


def _bound_cells(
    sets: NDArray[np.bool_], counts: NDArray[np.float64], slack: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The least and the largest number of each cell; 0 and -1 for all if no table fits."""
    from scipy.optimize import LinearConstraint, milp

    size = sets.shape[1]
    least, most = np.zeros(size, dtype=np.int64), np.full(size, -1, dtype=np.int64)
    low, high = np.ceil(counts - slack - 1e-9), np.floor(counts + slack + 1e-9)
    if (low > high).any():
        return least, most
    limits = LinearConstraint(sets.astype(np.float64), low, high)
    whole = np.ones(size, dtype=np.int64)
    most[:] = np.iinfo(np.int64).max  # of cells that no count speaks of
    for cell in np.flatnonzero(sets.any(axis=0)):
        goal = np.zeros(size)
        goal[cell] = 1.0
        ends = []
        for sign in (1.0, -1.0):
            found = milp(sign * goal, constraints=limits, integrality=whole)
            if found.status == 2:
                return np.zeros(size, dtype=np.int64), np.full(size, -1, dtype=np.int64)
            if found.status != 0:
                raise NotApplicable(f"the integer programs were not solved: {found.message}")
            ends.append(round(float(found.x[cell])))
        least[cell], most[cell] = ends
    return least, most


def marginal_queries(shape: tuple[int, ...], columns: list[tuple[int, ...]]) -> NDArray[np.bool_]:
    """Return which cells each count of some marginal tables adds up.

    >>> marginal_queries((2, 3), [(0,), ()]).sum(axis=1).tolist()
    [3, 3, 6]

    Parameters
    ----------
    shape
        How many values each column has; cells are in C order.
    columns
        For each table, the columns that it is by; none for the total.

    Returns
    -------
    array of bool, (queries, cells)
        For :func:`table_reconstruction`.
    """
    size = math.prod(shape)
    places = np.stack(np.unravel_index(np.arange(size), shape), axis=1)
    rows = []
    for names in columns:
        own = [shape[name] for name in names]
        codes = np.zeros(size, dtype=np.int64)
        if own:
            codes = np.asarray(np.ravel_multi_index(tuple(places[:, list(names)].T), own))
        rows.append(codes[None, :] == np.arange(math.prod(own))[:, None])
    return np.concatenate(rows).astype(np.bool_)
