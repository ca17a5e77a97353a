"""Private PAC learning of a finite class: the exponential mechanism, with its sample bound.

Of finitely many public hypotheses one is chosen with probability proportional to
exp(-epsilon (errors on the rows)). One row changes all numbers of errors in one direction, by at
most 1, so under ``add_remove`` the choice is epsilon-DP with the full epsilon, and under
``replace`` with half of it in the exponent.

**Bound.** With probability 1 - beta the chosen hypothesis errs on fresh rows of the same
distribution by at most ``excess`` more than the best of the class. Half of beta is for the
mechanism: with k hypotheses its choice makes at most ln(2k / beta) / rate more errors on the n
rows than the best does. Half is for the rows: by Hoeffding's inequality and a union bound no
hypothesis' share of errors is further than sqrt(ln(4k / beta) / (2n)) from the true one, which
counts twice. Kasiviswanathan, Lee, Nissim, Raskhodnikova and Smith (2011) prove the same up to
constants.
"""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn._declared import charged, stated_unit
from discreet.learn._intake import plain_table, targets_of
from discreet.mechanisms import exponential_choice
from discreet.privacy import Exponential, Loss, Relation

if TYPE_CHECKING:
    from discreet.ledger import Ledger

Hypothesis = Callable[[Any], Any]
"""From one row to a label; a public function."""

_MOST_HYPOTHESES = 1 << 24
_MOST_ROWS = 1 << 53


@final
@dataclass(frozen=True)
class FiniteChoice:
    """The hypothesis that was chosen, and what is known of it without looking again.

    Parameters
    ----------
    hypothesis
        The chosen function.
    number
        Its place among the hypotheses.
    loss
        What the choice reveals about one unit.
    hypotheses
        How many there were to choose from.
    relation
        What the guarantee compares.

    """

    hypothesis: Hypothesis
    number: int
    loss: Loss
    hypotheses: int
    relation: Relation

    def excess(self, rows: int, *, beta: float = 0.05) -> float:
        """Return by how much more it may err on fresh rows than the best, at a number of rows."""
        epsilon = self.loss.epsilon(delta=0.0)
        return excess_error(
            self.hypotheses, rows, epsilon=epsilon, beta=beta, relation=self.relation
        )


def excess_error(
    hypotheses: int,
    rows: int,
    *,
    epsilon: float,
    beta: float = 0.05,
    relation: Relation | str = Relation.ADD_REMOVE,
) -> float:
    """Return the bound on the error above the best of the class, for fresh rows.

    Parameters
    ----------
    hypotheses
        How many there are.
    rows
        How many independent rows the choice is made on.
    epsilon
        What the choice costs.
    beta
        With this probability the bound may fail.
    relation
        What the guarantee compares.

    >>> round(excess_error(1000, 10_000, epsilon=1.0), 3)
    0.049
    """
    count = _validate.integer("hypotheses", hypotheses, at_least=1, at_most=_MOST_HYPOTHESES)
    size = _validate.integer("rows", rows, at_least=1, at_most=_MOST_ROWS)
    budget = _validate.real("epsilon", epsilon, above=0)
    failure = _validate.real("beta", beta, above=0, below=1)
    rate = budget / (2.0 if Relation.parse(relation) is Relation.REPLACE else 1.0)
    private = math.log(2.0 * count / failure) / rate / size
    return private + 2.0 * math.sqrt(math.log(4.0 * count / failure) / (2.0 * size))


def rows_needed(
    hypotheses: int,
    *,
    alpha: float,
    epsilon: float,
    beta: float = 0.05,
    relation: Relation | str = Relation.ADD_REMOVE,
) -> int:
    """Return the least number of rows at which :func:`excess_error` is at most ``alpha``.

    >>> rows_needed(1000, alpha=0.05, epsilon=1.0), rows_needed(1000, alpha=0.05, epsilon=0.01)
    (9451, 40263)
    """
    wanted = _validate.real("alpha", alpha, above=0, below=1)

    def suffice(rows: int) -> bool:
        found = excess_error(hypotheses, rows, epsilon=epsilon, beta=beta, relation=relation)
        return found <= wanted

    if not suffice(_MOST_ROWS):
        raise NotApplicable(f"no number of rows below 2**53 gives an excess of {wanted}")
    low, high = 0, 1
    while not suffice(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffice(middle) else (middle, high)
    return high


def choose_hypothesis(
    hypotheses: Sequence[Hypothesis],
    X: Any,
    y: Any,
    *,
    epsilon: float,
    relation: Relation | str = Relation.ADD_REMOVE,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    unit: str | None = None,
    insecure_seed: int | None = None,
) -> FiniteChoice:
    """Choose the hypothesis with the fewest errors, by the exponential mechanism.

    Parameters
    ----------
    hypotheses
        Public functions from one row of ``X`` to a label. They must not know the records. One that
        raises on a row errs on it, and its warnings are not shown: both would tell of that row.
    X, y
        The rows, an array or a list of lists, and their labels.
    epsilon
        What the choice costs, for one row.
    relation
        What the guarantee compares.
    ledger, dataset, unit
        As for the ``fit`` of an estimator; the charge comes before a row is read.
    insecure_seed
        For tests only: the choice can be computed from it.

    Returns
    -------
    FiniteChoice
        The hypothesis.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; nothing was charged.

    Examples
    --------
    >>> cuts = [lambda row, cut=cut: int(row[0] > cut) for cut in range(100)]
    >>> rows = np.arange(100.0).repeat(50)[:, None]
    >>> chosen = choose_hypothesis(cuts, rows, (rows[:, 0] > 37).astype(int), epsilon=1.0)
    >>> 35 <= chosen.number <= 39, chosen.excess(5000) < 0.1
    (True, True)

    """
    if not isinstance(hypotheses, list | tuple) or not all(map(callable, hypotheses)):
        raise InvalidValue("hypotheses", type(hypotheses).__name__, "a list of public functions")
    _validate.integer("hypotheses", len(hypotheses), at_least=1, at_most=_MOST_HYPOTHESES)
    neighbours = Relation.parse(relation)
    budget = _validate.real("epsilon", epsilon, above=0)
    table = plain_table(X)
    if table.ndim != 2:
        raise InvalidValue("X", type(X).__name__, "rows of one length: an array of two dimensions")
    labels = targets_of(y, table)
    with charged(
        ledger,
        dataset,
        loss=Exponential(budget, neighbours),
        delta=0.0,
        purpose="choose a hypothesis",
        unit=stated_unit(unit, persons=False),
    ):
        with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
            errors = [
                sum(not _right(one, row, label) for row, label in zip(table, labels, strict=True))
                for one in hypotheses
            ]
        chosen = exponential_choice(
            [-count for count in errors],
            sensitivity=1,
            monotone=neighbours is Relation.ADD_REMOVE,
            epsilon=budget,
            relation=neighbours,
            insecure_seed=insecure_seed,
        )
    number = int(chosen.value)
    return FiniteChoice(hypotheses[number], number, chosen.loss, len(hypotheses), neighbours)


def _right(hypothesis: Hypothesis, row: Any, label: Any) -> bool:
    try:
        return bool(hypothesis(row.copy()) == label)
    except Exception:  # noqa: BLE001 - an error would tell of this row
        return False
