"""Reconstruction of a private column from answers about it (Dinur and Nissim 2003).

A table has one private bit for each row, and somebody publishes how many of the rows in each of
many public sets have it. If the answers are accurate, all bits follow: the bits between 0 and 1
whose counts are nearest to the answers are rounded. Nearest by least squares; or by the sum of
absolute errors, a linear program, which a few wild answers do not mislead (Dwork, McSherry and
Talwar 2007). With n rows and some n random sets, noise well below sqrt(n) on every
answer does not help; differential privacy for all answers together does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np

from discreet import _validate
from discreet._confidence import Proportion, proportion
from discreet._json import HIDDEN
from discreet.attacks._contract import Finding, Result, attack
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

METHODS = ("least squares", "linear program")


@final
@dataclass(frozen=True, eq=False)
class ReconstructionResult(Result):
    """How many bits were found; ``chance`` is what guessing the more frequent bit would reach.

    ``guesses`` are the bits of all rows. Internal: they are about people.
    """

    json_kind = "reconstruction"
    json_properties = ("leaks",)

    accuracy: Proportion
    chance: float
    queries: int
    guesses: NDArray[np.bool_] = field(repr=False, metadata=HIDDEN)

    @property
    def finding(self) -> Finding:
        """The share of right bits, against guessing the more frequent one."""
        measure = "rows whose private bit was found"
        return Finding.of_share("reconstruction", measure, self.accuracy, self.chance)


@attack(family="reconstruction", access="answers")
def reconstruction(
    answers: ArrayLike,
    queries: ArrayLike,
    secrets: ArrayLike,
    *,
    method: str = "least squares",
    confidence: float = 0.95,
) -> ReconstructionResult:
    """Find the private bits of a table from counts of public sets of its rows.

    >>> rng = np.random.default_rng(0)
    >>> bits, sets = rng.random(60) < 0.5, rng.random((240, 60)) < 0.5
    >>> exact = reconstruction(sets @ bits.astype(float), sets, bits)
    >>> exact.accuracy.share
    1.0

    Parameters
    ----------
    answers : array of numbers
        The published counts, one for each query.
    queries : array of bool, (queries, rows)
        Which rows each query counts.
    secrets : array of bool, (rows,)
        The true bits. The attack is judged by them and does not see them.
    method : {"least squares", "linear program"}
        What makes counts near to the answers.
    confidence : float
        The confidence of the interval; it treats rows as independent trials.

    Returns
    -------
    ReconstructionResult
        The share of right bits with its interval, and the guesses.

    Raises
    ------
    InvalidValue
        If shapes do not fit, or answers are not finite numbers.
    """
    _validate.one_of("method", method, METHODS)
    sets, truth = np.asarray(queries), np.asarray(secrets)
    if sets.ndim != 2 or sets.dtype != np.bool_ or not sets.size:
        shown = f"{sets.dtype} of shape {sets.shape}"
        raise InvalidValue("queries", shown, "True or False, (queries, rows)")
    if truth.dtype != np.bool_ or truth.shape != (sets.shape[1],):
        shown = f"{truth.dtype} of shape {truth.shape}"
        raise InvalidValue("secrets", shown, f"True or False for each of {sets.shape[1]} rows")
    try:
        counts = np.asarray(answers, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidValue("answers", type(answers).__name__, "an array of numbers") from None
    if counts.shape != (len(sets),) or not np.isfinite(counts).all():
        expected = f"a finite number for each of {len(sets)} queries"
        raise InvalidValue("answers", f"shape {counts.shape}", expected)
    guesses = _nearest(sets.astype(np.float64), counts, method) > 0.5
    right = int((guesses == truth).sum())
    share = float(truth.mean())
    return ReconstructionResult(
        proportion(right, truth.size, confidence=confidence),
        max(share, 1.0 - share),
        len(sets),
        guesses,
    )


def _nearest(
    sets: NDArray[np.float64], counts: NDArray[np.float64], method: str
) -> NDArray[np.float64]:
    """Bits between 0 and 1 whose counts are nearest to the answers."""
    from scipy.optimize import linprog, lsq_linear

    if method == "least squares":
        return np.asarray(lsq_linear(sets, counts, bounds=(0.0, 1.0)).x)
    queries, rows = sets.shape
    # Errors below and above the answers are variables: sets x + below - above = counts.
    identity = np.eye(queries)
    found = linprog(
        np.concatenate([np.zeros(rows), np.ones(2 * queries)]),
        A_eq=np.hstack([sets, identity, -identity]),
        b_eq=counts,
        bounds=[(0.0, 1.0)] * rows + [(0.0, None)] * (2 * queries),
    )
    assert found.x is not None  # bits of 0 are always a solution, and errors are bounded below
    return np.asarray(found.x[:rows])
