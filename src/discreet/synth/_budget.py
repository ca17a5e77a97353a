"""The noise of a one-shot synthesis, calibrated in closed form, and what it costs.

Three Gaussian releases, each chosen before or by what the earlier ones gave:

1. the histograms of all d columns;
2. how far each of m candidate tables is from independence, in L1;
3. the chosen tables.

One row adds 1 to one cell of each table. So the d histograms move by sqrt(d) in L2, the m
distances by 1 each, sqrt(m) together, and a chosen table with standard deviation s costs 1 / s^2
of mu^2. Their squares add up to mu^2, and the whole is one Gaussian (Dong, Roth and Su 2022,
corollary 3.3). All numbers are integers in steps of 1/1024 row, and the noise is the discrete
Gaussian. A person with k rows moves everything k times as far. Under ``replace`` a table moves by
sqrt(2) and a distance by 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms import gaussian_integers
from discreet.privacy import GDP, Relation
from discreet.privacy.theorems import discrete_gaussian_mu, gaussian_mu

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.randomness import Source

STEPS = 1024
"""How many steps one row is."""

_UP = 1.0 + 2.0**-48
_LARGEST_STDDEV = 2.0**50
_MOST = 1 << 62
_ATTEMPTS, _FINEST = 40, 44  # the noise is raised by 2**-44, then by twice as much each time


@final
@dataclass(frozen=True)
class GaussianBudget:
    """The standard deviations of the releases, in rows, and the mu that is left for tables.

    ``scores`` is the number of candidates; with 0 there is no second release.
    """

    columns: int
    scores: int
    column_stddev: float
    score_stddev: float
    table_mu: float
    relation: Relation
    rows_per_person: int

    @classmethod
    def make(
        cls,
        *,
        columns: int,
        scores: int,
        epsilon: float,
        delta: float,
        relation: Relation,
        rows_per_person: int = 1,
        column_share: float,
        score_share: float,
        tables: bool = True,
    ) -> GaussianBudget:
        """Divide the mu of (epsilon, delta) by shares of mu^2.

        Parameters
        ----------
        columns, scores
            How many histograms and distances there are.
        epsilon, delta
            The budget.
        relation, rows_per_person
            What neighbours are.
        column_share, score_share
            The shares of mu^2 for the histograms and the distances.
        tables
            Whether any table is measured beside the histograms.

        """
        target = _validate.real("epsilon", epsilon, above=0)
        point = _validate.real("delta", delta, above=0, below=1)
        if not tables:
            column_share, score_share, scores = 1.0, 0.0, 0
        if scores == 0:
            score_share = 0.0
        mu = gaussian_mu(target, point)
        for attempt in range(_ATTEMPTS):
            budget = cls(
                columns,
                scores,
                _shift(columns, relation, rows_per_person) / (math.sqrt(column_share) * mu),
                0.0
                if scores == 0
                else _score_shift(scores, relation, rows_per_person)
                / (math.sqrt(score_share) * mu),
                math.sqrt(max(0.0, 1.0 - column_share - score_share)) * mu if tables else 0.0,
                relation,
                rows_per_person,
            )
            if max(budget.column_stddev, budget.score_stddev) * STEPS >= _LARGEST_STDDEV:
                raise InvalidValue("epsilon", epsilon, "a value with less noise than 2**40 rows")
            if budget.loss.epsilon(delta=point) <= target:
                budget.check_tables()
                return budget
            mu *= 1.0 - 2.0 ** (attempt - _FINEST)
        raise NotApplicable(
            f"no Gaussian noise was certified for epsilon {epsilon!r} and delta {delta!r}"
        )

    @classmethod
    def of_mu(
        cls, columns: int, columns_mu: float, tables_mu: float, relation: Relation, rows: int
    ) -> GaussianBudget:
        """Return the noise of histograms that cost at most one mu, with another for tables.

        Parameters
        ----------
        columns
            How many histograms there are.
        columns_mu, tables_mu
            The mu of all histograms, and of all tables.
        relation, rows
            What neighbours are, and the most rows of a person.

        """
        stddev = _shift(columns, relation, rows) / columns_mu
        for attempt in range(_ATTEMPTS):
            if stddev * STEPS >= _LARGEST_STDDEV:
                shown = f"noise of {stddev:.2g} rows"
                raise InvalidValue("epsilon", shown, "a larger epsilon, with less than 2**40 rows")
            found = cls(columns, 0, stddev, 0.0, tables_mu, relation, rows)
            if found._mu_of_columns <= columns_mu:
                return found
            stddev *= 1.0 + 2.0 ** (attempt - _FINEST)
        raise NotApplicable("no Gaussian noise was certified for the histograms")

    @property
    def loss(self) -> GDP:
        """What all releases reveal together: one Gaussian."""
        square = self._mu_of_columns**2 + self._mu_of_scores**2 + self.table_mu**2
        return GDP(math.sqrt(square) * _UP, self.relation)

    @property
    def _mu_of_columns(self) -> float:
        shift = _shift(self.columns, self.relation, self.rows_per_person)
        changed = _count_changed(self.relation, self.rows_per_person) * self.columns
        return _certify(self.column_stddev, shift, changed)

    @property
    def _mu_of_scores(self) -> float:
        if self.scores == 0:
            return 0.0
        shift = _score_shift(self.scores, self.relation, self.rows_per_person)
        return _certify(self.score_stddev, shift, self.scores)

    def mu_of_table(self, stddev: float) -> float:
        """Return what one table with this noise costs."""
        shift = _shift(1, self.relation, self.rows_per_person)
        return _certify(stddev, shift, _count_changed(self.relation, self.rows_per_person))

    def stddev_of_mu(self, mu: float) -> float:
        """Return the noise of one table that costs at most mu."""
        return replace(self, table_mu=mu).table_stddevs([1.0])[0]

    def check_tables(self) -> None:
        """Raise InvalidValue, while nothing is charged, if too little noise is left for a table.

        One table that gets everything has the least noise of all that can be chosen.
        """
        if self.table_mu:
            self.table_stddevs([1.0])

    def table_stddevs(self, shares: Sequence[float]) -> list[float]:
        """Return the noise of the chosen tables, whose shares of the rest add up to 1."""
        shift = _shift(1, self.relation, self.rows_per_person)
        changed = _count_changed(self.relation, self.rows_per_person)
        scale = 1.0
        for attempt in range(_ATTEMPTS):
            found = [scale * shift / (self.table_mu * math.sqrt(share)) for share in shares]
            if math.fsum(_certify(one, shift, changed) ** 2 for one in found) * _UP <= (
                self.table_mu**2
            ):
                return found
            scale *= 1.0 + 2.0 ** (attempt - _FINEST)
        raise NotApplicable("no Gaussian noise was certified for the chosen tables")

    def add_to_columns(
        self, counts: Sequence[NDArray[np.int64]], source: Source
    ) -> list[NDArray[np.float64]]:
        """Return the histograms of all columns with their noise, in rows."""
        exact = np.concatenate([one.ravel() for one in counts])
        changed = _count_changed(self.relation, self.rows_per_person) * self.columns
        shift = _shift(self.columns, self.relation, self.rows_per_person)
        noisy = _release(exact * STEPS, self.column_stddev, shift, changed, self.relation, source)
        ends = np.cumsum([one.size for one in counts])[:-1]
        return list(np.split(noisy, ends))

    def add_to_scores(self, scores: NDArray[np.int64], source: Source) -> NDArray[np.float64]:
        """Return the distances, given in steps, with their noise, in rows."""
        shift = _score_shift(self.scores, self.relation, self.rows_per_person)
        return _release(scores, self.score_stddev, shift, self.scores, self.relation, source)

    def add_to_table(
        self, counts: NDArray[np.int64], stddev: float, source: Source
    ) -> NDArray[np.float64]:
        """Return a table with noise of a standard deviation of :meth:`table_stddevs`."""
        shift = _shift(1, self.relation, self.rows_per_person)
        changed = _count_changed(self.relation, self.rows_per_person)
        noisy = _release(counts.ravel() * STEPS, stddev, shift, changed, self.relation, source)
        return noisy.reshape(counts.shape)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers from which the loss follows."""
        return {
            "columns": self.columns,
            "scores": self.scores,
            "column_stddev": self.column_stddev,
            "score_stddev": self.score_stddev,
            "table_mu": self.table_mu,
            "rows_per_person": self.rows_per_person,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any], relation: Relation) -> GaussianBudget:
        """Return what :meth:`to_json` wrote; a damaged document raises."""
        return cls(
            _validate.integer("columns", document["columns"], at_least=1),
            _validate.integer("scores", document["scores"], at_least=0),
            _validate.real("column_stddev", document["column_stddev"], above=0),
            _validate.real("score_stddev", document["score_stddev"], at_least=0),
            _validate.real("table_mu", document["table_mu"], at_least=0),
            relation,
            _validate.integer("rows_per_person", document["rows_per_person"], at_least=1),
        )


def _count_changed(relation: Relation, rows: int) -> int:
    """Return how many cells of one table a neighbour changes, at most."""
    return rows * (2 if relation is Relation.REPLACE else 1)


def _shift(tables: int, relation: Relation, rows: int) -> float:
    """Return the L2 distance of some tables of neighbours, in rows."""
    apart = math.sqrt(2.0) if relation is Relation.REPLACE else 1.0
    return rows * apart * math.sqrt(tables) * _UP


def _score_shift(scores: int, relation: Relation, rows: int) -> float:
    apart = 2.0 if relation is Relation.REPLACE else 1.0
    return rows * apart * math.sqrt(scores) * _UP


def _certify(stddev: float, shift: float, changed: int) -> float:
    mu = discrete_gaussian_mu(stddev * STEPS, shift * STEPS, coordinates=changed)
    if mu is None:
        shown = f"noise of {stddev:.2g} rows"
        raise InvalidValue(
            "epsilon", shown, "a smaller epsilon, with noise of about a tenth of a row"
        )
    return mu


def _release(
    exact: NDArray[np.int64],
    stddev: float,
    shift: float,
    changed: int,
    relation: Relation,
    source: Source,
) -> NDArray[np.float64]:
    """Add the noise, in steps, and return rows. Clipping brings no two tables further apart."""
    released = gaussian_integers(
        np.clip(exact, -_MOST, _MOST),
        sensitivity=Fraction(shift * STEPS),
        changed=max(1, min(changed, exact.size)),
        stddev=stddev * STEPS,
        relation=relation,
        source=source,
    )
    return np.asarray(released.value / STEPS)
