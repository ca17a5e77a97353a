"""From scores with and without a record to error rates that hold with confidence.

A guess "it was there" is made where the score exceeds a threshold. At a threshold that was
fixed without looking at the scores, the numbers of guesses under the two worlds are binomial and
Clopper-Pearson bounds are exact: FPR <= fpr and TPR >= tpr, each wrong with half of the error.
Both directions of a privacy guarantee read the same two bounds, so one pair serves both.

A threshold that is the best of many *on the same scores* has no such bounds: taking the largest
of all, as a peer does, alarms in half of the audits where one in twenty may. So a threshold is

- a number, chosen beforehand: for log-likelihood ratios 0 is natural;
- several numbers, chosen beforehand: the error is divided among them (Bonferroni);
- ``"held-out"``: the best on the first half of each list, tested on the second halves. The lists
  must be in an order that has nothing to do with the scores, such as that of the runs; lists that
  are sorted, or drift, are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._confidence import lower_bounds, upper_bounds
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Strength = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]

__all__ = ["HELD_OUT", "Corner", "checked_scores", "corners", "perfect"]

HELD_OUT = "held-out"
_MOST_CANDIDATES = 512
# Halves of a list in any honest order differ so much less than once in a billion audits.
_ALIKE = 1e-9


@final
@dataclass(frozen=True)
class Corner:
    """The corner of a confidence region: FPR <= ``fpr`` and TPR >= ``tpr`` at a threshold."""

    threshold: float
    false_positives: int
    excluded: int
    true_positives: int
    included: int
    fpr: float
    tpr: float

    def evidence(self) -> dict[str, float]:
        """The counts and the bounds, as plain numbers."""
        return dict(vars(self))


def corners(
    included: NDArray[np.float64],
    excluded: NDArray[np.float64],
    *,
    thresholds: float | Sequence[float] | str,
    rate: float,
    strength: Strength,
) -> tuple[Corner, ...]:
    """One corner for each threshold; all hold together except with probability ``rate``.

    ``strength(fpr, tpr)`` is what a held-out half maximises.
    """
    if isinstance(thresholds, str):
        _validate.one_of("thresholds", thresholds, (HELD_OUT,))
        for name, scores in (("included_scores", included), ("excluded_scores", excluded)):
            if scores.size < 2:
                raise InvalidValue(name, scores.size, "at least two scores, to hold one half out")
            _require_alike(name, scores[: scores.size // 2], scores[scores.size // 2 :])
        halves = [
            (scores[: scores.size // 2], scores[scores.size // 2 :])
            for scores in (included, excluded)
        ]
        cut = _best_threshold(halves[0][0], halves[1][0], rate=rate, strength=strength)
        return (_corner(halves[0][1], halves[1][1], cut, rate / 2),)
    cuts = _fixed(thresholds)
    return tuple(_corner(included, excluded, cut, rate / (2 * len(cuts))) for cut in cuts)


def perfect(
    included: int, excluded: int, *, thresholds: float | Sequence[float] | str, rate: float
) -> tuple[float, float]:
    """(FPR, TPR) bounds if no guess were wrong: the best corner that there can be."""
    tests = 1
    if isinstance(thresholds, str):
        included, excluded = included - included // 2, excluded - excluded // 2
    else:
        tests = len(_fixed(thresholds))
    error = rate / (2 * tests)
    return (
        float(upper_bounds([0], excluded, error=error)[0]),
        float(lower_bounds([included], included, error=error)[0]),
    )


def checked_scores(argument: str, scores: ArrayLike) -> NDArray[np.float64]:
    """Scores as an array of one axis; infinite ones have a place, NaN has none."""
    expected = "at least one score, numbers in one axis, none of them NaN"
    try:
        values: NDArray[Any] = np.asarray(scores)
        numbers = values.astype(np.float64)
    except (TypeError, ValueError):
        raise InvalidValue(argument, type(scores).__name__, expected) from None
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "biuf":
        raise InvalidValue(argument, f"shape {values.shape}, {values.dtype}", expected)
    if np.isnan(numbers).any():
        raise InvalidValue(argument, "NaN", expected)
    return numbers


def _require_alike(argument: str, first: NDArray[np.float64], second: NDArray[np.float64]) -> None:
    """Refuse a list whose halves cannot be of one distribution, above all a sorted one.

    The threshold would be chosen on one kind of score and tested on another, and the test would
    not be fair. By Wei and Dudley (2012) the distance of Kolmogorov and Smirnov between two
    samples of one distribution exceeds t with probability at most 2e exp(-2 t^2 n m / (n + m)).
    """
    points = np.concatenate([first, second])
    shares = [
        np.searchsorted(np.sort(half), points, side="right") / half.size for half in (first, second)
    ]
    distance = float(np.max(np.abs(shares[0] - shares[1])))
    weight = first.size * second.size / points.size
    if distance > math.sqrt(math.log(2 * math.e / _ALIKE) / (2 * weight)):
        raise InvalidValue(
            argument,
            "sorted or drifting scores",
            "scores in the order of the runs: one half of the list chooses the threshold, and "
            "the other half tests it",
        )


def _fixed(thresholds: float | Sequence[float]) -> list[float]:
    listed: list[Any] = (
        list(thresholds) if isinstance(thresholds, Sequence | np.ndarray) else [thresholds]
    )
    if not listed:
        raise InvalidValue("thresholds", thresholds, "at least one number, or 'held-out'")
    return [_validate.real("thresholds", cut) for cut in listed]


def _corner(
    included: NDArray[np.float64], excluded: NDArray[np.float64], cut: float, error: float
) -> Corner:
    hits, alarms = int((included > cut).sum()), int((excluded > cut).sum())
    return Corner(
        threshold=cut,
        false_positives=alarms,
        excluded=excluded.size,
        true_positives=hits,
        included=included.size,
        fpr=float(upper_bounds([alarms], excluded.size, error=error)[0]),
        tpr=float(lower_bounds([hits], included.size, error=error)[0]),
    )


def _best_threshold(
    included: NDArray[np.float64],
    excluded: NDArray[np.float64],
    *,
    rate: float,
    strength: Strength,
) -> float:
    """The threshold that shows most on the half that does not testify."""
    pooled = np.unique(np.concatenate([included, excluded]))
    pooled = pooled[np.isfinite(pooled)]
    if pooled.size == 0:
        return 0.0
    if pooled.size > _MOST_CANDIDATES:
        places = np.linspace(0, pooled.size - 1, _MOST_CANDIDATES).astype(np.int64)
        pooled = pooled[places]
    # Between two scores rather than at one: the other half does not repeat them.
    cuts = np.concatenate([[np.nextafter(pooled[0], -np.inf)], (pooled[1:] + pooled[:-1]) / 2])
    hits = included.size - np.searchsorted(np.sort(included), cuts, side="right")
    alarms = excluded.size - np.searchsorted(np.sort(excluded), cuts, side="right")
    fpr = upper_bounds(alarms, excluded.size, error=rate / 2)
    tpr = lower_bounds(hits, included.size, error=rate / 2)
    return float(cuts[int(np.argmax(strength(fpr, tpr)))])
