"""Bound error rates with confidence from scores with and without a record.

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

The trainer is run with and without one record, and a score tells which it was.
(epsilon, delta)-DP bounds every such test: TPR <= e^epsilon FPR + delta and
TNR <= e^epsilon FNR + delta (Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015). With
FPR <= a and TPR >= b by Clopper and Pearson (Jagielski, Ullman and Oprea 2020),

    epsilon >= max( ln((b - delta) / a),  ln((1 - a - delta) / (1 - b)) ).

Nothing is assumed about the trainer, but thousands of runs certify little: with no wrong guess in
1,000 runs the bound is below 5.

A claimed trade-off curve is tested directly (f-DP; Dong, Roth and Su 2022). A loss
bounds the power of every test at every level, not only at one (epsilon, delta). If
FPR <= a and TPR >= b with confidence, and b exceeds the best power that the claimed loss
allows at level a, then the claim is false: the power grows with the level, so at the true FPR,
which is at most a, it is no larger. This reads the claim where the data are, at error
rates that can be measured, instead of at a delta of 1e-5 where they say little. Valid for every
mechanism.

The Gaussian bound is stronger, and valid only for Gaussian mechanisms. If
the mechanism is a Gaussian one, adaptive compositions without subsampling included, its
trade-off curve is G_mu for a single number mu (Dong, Roth and Su 2022), and *one* point of it
tells all of it: FPR <= a and TPR >= b give

    mu >= Phi^-1(b) - Phi^-1(a),    epsilon(delta) >= epsilon of G_mu at delta

(Nasr et al. 2023). A test at moderate error rates so speaks about delta = 1e-5, which no
assumption-free audit of that size can. The price: for another mechanism the number means
nothing. Subsampled Gaussians are not Gaussian; for them the extrapolation from one point to the
tail is not a theorem and may exceed the truth. So the mechanism must be named, and a claimed
loss that is not Gaussian is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy import special

from discreet import _validate
from discreet._confidence import lower_bounds, upper_bounds
from discreet._rounding import at_least, at_most
from discreet.audit._verdict import (
    GAUSSIAN_ONLY,
    Claim,
    Method,
    TrainingAudit,
    check_rate,
    conclude,
    require_positive_delta,
)
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import GDP, Composition, Gaussian, Loss
from discreet.privacy.theorems import best_tpr

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Strength = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


HELD_OUT = "held-out"
_MOST_CANDIDATES = 512
# Halves of a list in any honest order differ so much less than once in a billion audits.
_ALIKE = 1e-9


@final
@dataclass(frozen=True)
class ErrorRates:
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


def bound_error_rates(
    included: NDArray[np.float64],
    excluded: NDArray[np.float64],
    *,
    thresholds: float | Sequence[float] | str,
    rate: float,
    strength: Strength,
) -> tuple[ErrorRates, ...]:
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
    cuts = _read_thresholds(thresholds)
    return tuple(_corner(included, excluded, cut, rate / (2 * len(cuts))) for cut in cuts)


def best_possible_rates(
    included: int, excluded: int, *, thresholds: float | Sequence[float] | str, rate: float
) -> tuple[float, float]:
    """(FPR, TPR) bounds if no guess were wrong: the best corner that there can be."""
    tests = 1
    if isinstance(thresholds, str):
        included, excluded = included - included // 2, excluded - excluded // 2
    else:
        tests = len(_read_thresholds(thresholds))
    error = rate / (2 * tests)
    return (
        float(upper_bounds([0], excluded, error=error)[0]),
        float(lower_bounds([included], included, error=error)[0]),
    )


def check_scores(argument: str, scores: ArrayLike) -> NDArray[np.float64]:
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


def _read_thresholds(thresholds: float | Sequence[float]) -> list[float]:
    listed: list[Any] = (
        list(thresholds) if isinstance(thresholds, Sequence | np.ndarray) else [thresholds]
    )
    if not listed:
        raise InvalidValue("thresholds", thresholds, "at least one number, or 'held-out'")
    return [_validate.real("thresholds", cut) for cut in listed]


def _corner(
    included: NDArray[np.float64], excluded: NDArray[np.float64], cut: float, error: float
) -> ErrorRates:
    hits, alarms = int((included > cut).sum()), int((excluded > cut).sum())
    return ErrorRates(
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
    """The threshold that shows most on the half that does not test it."""
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


RUN_ASSUMPTIONS = (
    "the scores are of independent runs, or of canaries that do not influence one another",
    "the data sets behind the two lists of scores differ in one unit",
    "the order of the scores in each list does not depend on them",
    "thresholds that were given as numbers were chosen without looking at these scores",
)


def audit_runs(
    included_scores: ArrayLike,
    excluded_scores: ArrayLike,
    *,
    loss: Loss | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    thresholds: float | Sequence[float] | str = HELD_OUT,
    false_alarm_rate: float = 0.05,
) -> TrainingAudit:
    """Bound epsilon from below by scores of runs with and of runs without a record.

    Scores should be larger with the record. The claim is a ``loss``, read at ``delta``, or an
    ``epsilon`` and ``delta``. ``thresholds`` are one number or several that were
    chosen beforehand, or "held-out": the best on the first half of each list, tested on the rest.

    Formal guarantee: if every run is independent of the others, the bound exceeds the true
    epsilon at ``delta`` with probability at most ``false_alarm_rate``, for any trainer.

    >>> with_it, without = [1.0] * 500, [0.0] * 500
    >>> audit = audit_runs(with_it, without, epsilon=1.0, thresholds=0.5)
    >>> audit.verdict, round(audit.epsilon_lower, 3), round(audit.ceiling, 3)
    ('violated', 4.906, 4.906)

    Parameters
    ----------
    included_scores, excluded_scores
        A score of each run with and without the record; higher says included.
    loss, epsilon, delta
        The claim: a loss, or two numbers.
    thresholds
        One or several, or how they are chosen.
    false_alarm_rate
        How often a right claim may be called violated.

    Returns
    -------
    TrainingAudit
        Lower bound, ceiling and verdict.

    Raises
    ------
    InvalidValue
        If scores, thresholds or the claim cannot be used.
    """
    claim = Claim.read(loss, epsilon, delta)
    rate = check_rate(false_alarm_rate)
    included = check_scores("included_scores", included_scores)
    excluded = check_scores("excluded_scores", excluded_scores)

    def strength(fpr: NDArray[np.float64], tpr: NDArray[np.float64]) -> NDArray[np.float64]:
        return epsilons_from_rates(fpr, tpr, delta=claim.delta)

    tested = bound_error_rates(
        included, excluded, thresholds=thresholds, rate=rate, strength=strength
    )
    best = max(
        tested, key=lambda corner: epsilon_from_rates(corner.fpr, corner.tpr, delta=claim.delta)
    )
    most = best_possible_rates(included.size, excluded.size, thresholds=thresholds, rate=rate)
    return conclude(
        Method.MANY_RUNS,
        claim=claim,
        epsilon_lower=epsilon_from_rates(best.fpr, best.tpr, delta=claim.delta),
        ceiling=epsilon_from_rates(*most, delta=claim.delta),
        rate=rate,
        assumptions=RUN_ASSUMPTIONS,
        evidence={**best.evidence(), "thresholds_tested": len(tested)},
    )


def epsilons_from_rates(
    fpr: NDArray[np.float64], tpr: NDArray[np.float64], *, delta: float
) -> NDArray[np.float64]:
    """The least epsilon at which a test may have these rates; -inf where delta explains them."""
    with np.errstate(divide="ignore"):
        present = np.log(np.maximum(tpr - delta, 0.0)) - np.log(fpr)
        absent = np.log(np.maximum(1.0 - fpr - delta, 0.0)) - np.log1p(-tpr)
    # A few units in the last place, downwards: this is a lower bound.
    best = np.maximum(present, absent)
    return np.asarray(best - 1e-14 * (1.0 + np.abs(np.where(np.isfinite(best), best, 0.0))))


def epsilon_from_rates(fpr: float, tpr: float, *, delta: float) -> float:
    """Return :func:`epsilons_from_rates` of one pair of rates, or 0 if it is negative.

    Parameters
    ----------
    fpr, tpr
        Upper bound of the false-positive, lower bound of the true-positive rate.
    delta
        Where epsilon is read.

    Returns
    -------
    float
        The least epsilon at which both can be.
    """
    return max(0.0, float(epsilons_from_rates(np.array([fpr]), np.array([tpr]), delta=delta)[0]))


_MARGIN = 1e-12


def audit_tradeoff(
    included_scores: ArrayLike,
    excluded_scores: ArrayLike,
    *,
    loss: Loss,
    delta: float | None = None,
    thresholds: float | Sequence[float] | str = HELD_OUT,
    false_alarm_rate: float = 0.05,
) -> TrainingAudit:
    """Test whether scores of runs with and without a record contradict a claimed loss.

    As :func:`~discreet.audit.audit_runs`, but "violated" means that the measured error
    rates lie, with confidence, below the claimed trade-off curve. ``epsilon_lower`` is the
    assumption-free bound at ``delta`` from the same rates; the claim may be violated although
    that bound is below it.

    Formal guarantee: for runs that keep the claimed loss the verdict is "violated" with
    probability at most ``false_alarm_rate``.

    >>> from discreet.privacy import GDP
    >>> with_it = [1.0] * 300 + [0.0] * 100
    >>> without = [1.0] * 100 + [0.0] * 300
    >>> audit_tradeoff(with_it, without, loss=GDP(mu=0.5), delta=1e-5, thresholds=0.5).verdict
    'violated'

    Parameters
    ----------
    included_scores, excluded_scores, thresholds, false_alarm_rate
        As for :func:`audit_runs`.
    loss
        The claim, whose whole trade-off curve is tested.
    delta
        Where its epsilon is stated.

    Returns
    -------
    TrainingAudit
        Lower bound, ceiling and verdict.

    Raises
    ------
    InvalidValue
        If scores, thresholds or the claim cannot be used.
    """
    if not isinstance(loss, Loss):
        raise InvalidValue("loss", loss, "a loss of discreet.privacy")
    claim = Claim.read(loss, None, delta)
    rate = check_rate(false_alarm_rate)
    included = check_scores("included_scores", included_scores)
    excluded = check_scores("excluded_scores", excluded_scores)

    def best_power(fpr: NDArray[np.float64]) -> NDArray[np.float64]:
        """The best power by the whole curve, and by what the loss says at delta itself."""
        whole = loss.tradeoff(np.minimum(fpr, 1.0))
        at_delta = [
            best_tpr(min(level, 1.0), epsilon=claim.epsilon, delta=claim.delta)
            for level in fpr.tolist()
        ]
        return np.asarray(np.minimum(whole, at_delta))

    def margin(fpr: NDArray[np.float64], tpr: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(tpr - best_power(fpr) - _MARGIN)

    tested = bound_error_rates(
        included, excluded, thresholds=thresholds, rate=rate, strength=margin
    )
    margins = margin(
        np.array([corner.fpr for corner in tested]), np.array([corner.tpr for corner in tested])
    )
    at = int(np.argmax(margins))
    best, beyond = tested[at], float(margins[at])
    bound = float(best_power(np.array([best.fpr]))[0])
    most = best_possible_rates(included.size, excluded.size, thresholds=thresholds, rate=rate)
    could = float(margin(np.array(most[:1]), np.array(most[1:]))[0]) > 0.0
    return conclude(
        Method.TRADEOFF,
        claim=claim,
        epsilon_lower=max(
            epsilon_from_rates(corner.fpr, corner.tpr, delta=claim.delta) for corner in tested
        ),
        ceiling=epsilon_from_rates(*most, delta=claim.delta),
        rate=rate,
        assumptions=RUN_ASSUMPTIONS,
        evidence={
            **best.evidence(),
            "allowed_tpr": bound,
            "thresholds_tested": len(tested),
        },
        refutation=(
            f"at a false-positive rate of at most {at_most(best.fpr)} the true-positive rate is at "
            f"least {at_least(best.tpr)}; the claimed loss allows {at_most(bound)}"
            if beyond > 0.0
            else None
        ),
        weakness=(
            ""
            if could
            else "even if every guess had been right, the error rates would be allowed by the "
            "claimed trade-off curve"
        ),
    )


def audit_gaussian(
    included_scores: ArrayLike,
    excluded_scores: ArrayLike,
    *,
    mechanism: str,
    loss: Loss | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    thresholds: float | Sequence[float] | str = HELD_OUT,
    false_alarm_rate: float = 0.05,
) -> TrainingAudit:
    """Bound the mu, and so epsilon, of a *Gaussian* mechanism from below.

    ``mechanism="gaussian"`` is the caller's word that the scores come from a Gaussian mechanism
    without subsampling; nothing else is accepted. Otherwise as
    :func:`~discreet.audit.audit_runs`.

    Formal guarantee: for a Gaussian mechanism and independent scores, the bound exceeds the
    true epsilon at ``delta`` with probability at most ``false_alarm_rate``. For any other
    mechanism there is none.

    Parameters
    ----------
    included_scores, excluded_scores, loss, epsilon, delta, thresholds, false_alarm_rate
        As for :func:`audit_runs`.
    mechanism
        The word "gaussian": the caller vouches for it.

    Returns
    -------
    TrainingAudit
        Lower bound, ceiling and verdict.

    Raises
    ------
    NotApplicable
        If the mechanism is no Gaussian one.
    InvalidValue
        If an argument cannot be used.
    """
    require_gaussian(mechanism, loss)
    claim = require_positive_delta(Claim.read(loss, epsilon, delta))
    rate = check_rate(false_alarm_rate)
    included = check_scores("included_scores", included_scores)
    excluded = check_scores("excluded_scores", excluded_scores)
    tested = bound_error_rates(
        included, excluded, thresholds=thresholds, rate=rate, strength=_mus_at
    )
    best = max(tested, key=lambda corner: _mu_at(corner.fpr, corner.tpr))
    mu = _mu_at(best.fpr, best.tpr)
    most = _mu_at(
        *best_possible_rates(included.size, excluded.size, thresholds=thresholds, rate=rate)
    )
    return conclude(
        Method.GAUSSIAN,
        claim=claim,
        epsilon_lower=gaussian_epsilon_lower(mu, claim.delta),
        ceiling=gaussian_epsilon_lower(most, claim.delta),
        rate=rate,
        assumptions=(GAUSSIAN_ONLY, *RUN_ASSUMPTIONS),
        evidence={**best.evidence(), "mu_lower": max(0.0, mu), "thresholds_tested": len(tested)},
    )


def require_gaussian(mechanism: str, loss: Loss | None) -> None:
    """Refuse a loss that is not declared to be Gaussian or is known not to be.

    Parameters
    ----------
    mechanism
        What the caller says that it is.
    loss
        The claimed loss, if there is one.

    Raises
    ------
    NotApplicable
        Unless both are Gaussian.
    """
    if mechanism != "gaussian":
        raise NotApplicable(
            f"this bound is {GAUSSIAN_ONLY}; say mechanism='gaussian' if that is what ran "
            f"(mechanism = {mechanism!r})"
        )
    parts = [part for part, _ in loss.parts] if isinstance(loss, Composition) else [loss]
    for part in parts:
        if part is not None and not isinstance(part, Gaussian | GDP):
            raise NotApplicable(f"this bound is {GAUSSIAN_ONLY}; the claimed loss has {part!r}")


def gaussian_epsilon_lower(mu: float, delta: float) -> float:
    """At most the epsilon of a Gaussian mechanism of ``mu`` at ``delta``."""
    return max(0.0, GDP(mu=mu).epsilon_bounds(delta=delta).lower) if mu > 0.0 else 0.0


def gaussian_epsilon_from_rates(fpr: float, tpr: float, *, delta: float) -> float:
    """Return at most the epsilon of a Gaussian mechanism with FPR <= ``fpr``, TPR >= ``tpr``.

    Parameters
    ----------
    fpr, tpr
        Upper bound of the false-positive, lower bound of the true-positive rate.
    delta
        Where epsilon is read.

    Returns
    -------
    float
        The epsilon of the least Gaussian mechanism that allows both.
    """
    return gaussian_epsilon_lower(_mu_at(fpr, tpr), delta)


def _mus_at(fpr: NDArray[np.float64], tpr: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(special.ndtri(tpr) - special.ndtri(fpr))


def _mu_at(fpr: float, tpr: float) -> float:
    # Downwards by more than the error of the two quantiles.
    return float(special.ndtri(tpr) - special.ndtri(fpr)) - 1e-10
