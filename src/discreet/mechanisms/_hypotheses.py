"""Learn from a finite class of hypotheses: the exponential mechanism on their errors.

One record changes the number of errors of every hypothesis by at most 1, and under add_remove all
of them in one direction. So the choice costs epsilon, however many hypotheses there are; as without
privacy, only the logarithm of their number decides how many records are needed (Kasiviswanathan
et al. 2011).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import special

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.mechanisms._intervals import least_integer
from discreet.mechanisms._parameters import SelectionRate
from discreet.mechanisms._release import Selection
from discreet.mechanisms._selection import exponential_choice, utility_bound
from discreet.privacy import Relation
from discreet.randomness import Source


def choose_hypothesis(
    predictions: Any,
    labels: Any,
    *,
    candidates: Sequence[Any] | None = None,
    epsilon: object,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Selection[Any]:
    """Choose a hypothesis that makes few errors on private records.

    Parameters
    ----------
    predictions : array
        One row for each hypothesis, one column for each record; private. The hypotheses must be
        public, and what each says of a record must follow from that record alone.
    labels : array
        What is right about each record; private.
    candidates : sequence, optional
        The hypotheses, one for each row. Without it the value is the number of the chosen one.
    epsilon : number or str
        What the choice may cost.
    relation : Relation or str
        What neighbours are.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Selection
        The hypothesis. Its ``shortfall`` is in errors on these records; :func:`pac_records` says
        what that means for new ones.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; records are not shown.

    Examples
    --------
    >>> rows = np.arange(1000)
    >>> thresholds = range(0, 1001, 100)
    >>> says = [rows >= threshold for threshold in thresholds]
    >>> choose_hypothesis(says, rows >= 300, candidates=thresholds, epsilon=1).value
    300
    """
    said, right = np.asarray(predictions), np.asarray(labels)
    if right.ndim != 1 or said.ndim != 2 or said.shape[1] != len(right) or not len(said):
        raise InvalidValue(
            "predictions",
            f"shape {said.shape}",
            f"(hypotheses, records), and labels of shape (records,), not {right.shape}",
        )
    errors = np.not_equal(said, right).sum(axis=1, dtype=np.int64)
    neighbours = Relation.parse(relation)
    return exponential_choice(
        -errors,
        candidates=candidates,
        sensitivity=1,
        monotone=neighbours is Relation.ADD_REMOVE,
        epsilon=epsilon,
        relation=neighbours,
        source=source,
        insecure_seed=insecure_seed,
    )


def pac_records(
    hypotheses: int,
    *,
    epsilon: object,
    error: float,
    failure: float = 0.05,
    realizable: bool = True,
    relation: Relation | str = Relation.ADD_REMOVE,
) -> int:
    """Return how many independent records suffice for :func:`choose_hypothesis`.

    Parameters
    ----------
    hypotheses : int
        How many there are.
    epsilon : number or str
        What the choice may cost.
    error : float
        With ``realizable``, the share of new records on which the chosen one may be wrong;
        otherwise by how much that share may exceed that of the best hypothesis.
    failure : float
        The probability, over records and choice, with which it may be larger.
    realizable : bool
        Whether one of the hypotheses is right about every record.
    relation : Relation or str
        What neighbours are.

    Returns
    -------
    int
        The number of records.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Notes
    -----
    Half of ``failure`` is for the choice: it makes fewer than s = (ln H + ln(2/failure)) / rate
    errors more than the best one on the records. Realizable: a hypothesis of larger error makes so
    few on m records with probability P(Bin(m, error) < s), and there are at most H of them.
    Otherwise all shares are within t = sqrt(ln(4 H/failure) / (2 m)) of the truth (Hoeffding), and
    2 t + s/m <= error is asked for.

    Examples
    --------
    >>> [pac_records(2**bits, epsilon="1/2", error=0.1) for bits in (5, 10, 20)]
    [307, 442, 704]
    >>> pac_records(2**10, epsilon="1/2", error=0.1, realizable=False)
    2499
    """
    count = _validate.integer("hypotheses", hypotheses, at_least=1)
    width = _validate.real("error", error, above=0, below=1)
    chance = _validate.real("failure", failure, above=0, below=1)
    exact = _validate.flag("realizable", realizable)
    neighbours = Relation.parse(relation)
    pace = SelectionRate.read(
        sensitivity=1,
        score_range=None,
        monotone=neighbours is Relation.ADD_REMOVE,
        epsilon=epsilon,
        rate=None,
        relation=neighbours,
    )
    lost = utility_bound(count, rate=pace.rate, beta=chance / 2)
    most = math.ceil(lost) - 1
    if most > 2**50:
        raise InvalidValue("epsilon", epsilon, "large enough for fewer than 2**50 errors")

    def few_enough(records: int) -> bool:
        return bool(count * special.bdtr(most, records, width) * (1 + 1e-9) <= chance / 2)

    def close_enough(records: int) -> bool:
        spread = math.sqrt((math.log(4 * count) - math.log(chance)) / (2 * max(records, 1)))
        return (2 * spread + lost / max(records, 1)) * (1 + 1e-12) <= width

    enough: Callable[[int], bool] = few_enough if exact else close_enough
    return least_integer(enough, most + 1)
