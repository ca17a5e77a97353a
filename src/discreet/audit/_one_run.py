"""One run: many canaries, each included by a fair coin, and guesses about some of them.

Steinke, Nasr and Jagielski (2023), Theorem 5.2. Let m canaries be included by independent fair
coins, let the trainer be (epsilon, delta)-DP in each canary's presence, and let r guesses be
made from its output alone (the rest are abstentions). With W ~ Binomial(r, e^eps / (1 + e^eps)),

    P(at least v guesses are right)
        <= P(W >= v) + 2 m delta max over i in {1, ..., v} of P(v - i <= W < v) / i.

An epsilon at which that is at most the false-alarm rate is refuted. The second term is the price
of delta: a mechanism that fails with probability delta *for each canary* can buy i right guesses
with probability 2 m delta / i. Leaving it out is wrong as soon as m delta is not tiny.

All epsilons up to the bound are refuted, not merely the bound itself. Where 2 m delta exceeds 1
the right side need not grow with epsilon, so the range is covered by intervals, each refuted as
a whole.

One run against a whole trade-off curve (Mahloujifar, Melis and Chaudhuri 2024).

Let C be the number of right guesses among r, about m canaries that were included by fair coins,
and let power(x) be the best true-positive rate of the claimed loss at false-positive rate x:
concave, increasing, the same in both directions. Fix a canary, all other coins, and a set J of
counts. Turning the canary's coin turns "guessed rightly, and C in J" into "guessed wrongly, and
C + 1 in J" without touching the event in the output, so the probability of the former is at most
power(probability of the latter). Averaging over coins and canaries (Jensen) gives, with
p_j = P(C = j),

    sum over j in J of (j / m) p_j  <=  power( sum over j in J of ((r - j + 1) / m) p_(j-1) ).   (1)

Take J = {j + 1, ..., r}. With R_j and H_j the sums over l >= j of (l / m) p_l and of
((r - l) / m) p_l, (1) reads H_j >= power^-1(R_(j+1)); and R_0 + H_0 = r / m. Suppose
P(C >= v) = t. Start at R = v t / m, H = (r - v) t / m and go down from j = v - 1 to 0:

    H' = max(H, power^-1(R)),    R' = R + j / (r - j) (H' - H).

*This never exceeds the truth*: with c_j = j / (r - j), increasing in j, the true (R*, H*)
keeps R* >= R, R* + H* >= R + H and R* - c_j H* >= R - c_j H before every step j. At the start
all mass of {C >= v} lies at v, the least R of that mass. In a step, if H*' >= H', then
R*' - R' = (R* - c_j H*) - (R - c_j H) + c_j (H*' - H') >= 0, and the same with c_(j-1) < c_j for
the third. If H*' < H', then H' = H (else H*' >= power^-1(R*) >= power^-1(R) = H'), so H* < H,
nothing moved in ours, and R* - c_(j-1) H* >= R - c_(j-1) H. Hence if R + H > r / m at the end,
P(C >= v) < t: the claim is refuted at false-alarm rate t.

The end grows if the curve gets lower, so bounds for families of curves follow by bisection.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, final

import numpy as np
from scipy import special

from discreet import _validate
from discreet.audit._inclusion import Inclusion
from discreet.audit._many_runs import gaussian_epsilon_lower, require_gaussian
from discreet.audit._verdict import (
    GAUSSIAN_ONLY,
    Claim,
    Method,
    TrainingAudit,
    check_rate,
    conclude,
    require_positive_delta,
)
from discreet.errors import InvalidValue
from discreet.privacy import Loss
from discreet.privacy.theorems import best_tpr, gaussian_mu

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


ONE_RUN_ASSUMPTIONS = (
    "the canaries were included by the coins of this audit and by nothing else",
    "the scores were computed without knowledge of the coins, from what the trainer released",
    "including one canary or not is a change that the claimed guarantee speaks of",
    "the numbers of canaries and guesses were fixed before the coins were drawn",
)

_MOST_EPSILON = 64.0
_FINEST = 1e-9
_ROUNDING = 1e-9


def audit_one_run(
    inclusion: Inclusion,
    scores: ArrayLike,
    *,
    loss: Loss | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    false_alarm_rate: float = 0.05,
) -> TrainingAudit:
    """Bound epsilon from below by guesses about the canaries of one run.

    ``scores``, one for each canary and larger if it seems included, must come from the
    output of the run alone. The numbers of guesses are those of ``inclusion``, which this
    uses up. The claim is a ``loss``, read at ``delta``, or an ``epsilon`` and ``delta``.

    Formal guarantee: for any trainer, with dependence between the canaries of any kind, the
    bound exceeds the true epsilon at ``delta`` with probability at most ``false_alarm_rate``.

    >>> coins = Inclusion(1000, guesses=(250, 250))
    >>> audit = audit_one_run(coins, coins.included.astype(float), epsilon=4.0, delta=1e-5)
    >>> audit.verdict, round(audit.epsilon_lower, 3)
    ('violated', 5.088)

    Parameters
    ----------
    inclusion
        Which canaries were included, by fair coins.
    scores
        A score of each canary; higher says included.
    loss, epsilon, delta
        The claim: a loss, or two numbers.
    false_alarm_rate
        How often a right claim may be called violated.

    Returns
    -------
    TrainingAudit
        Lower bound, ceiling and verdict.

    Raises
    ------
    InvalidValue
        If scores or the claim cannot be used.
    """
    claim = Claim.read(loss, epsilon, delta)
    rate = check_rate(false_alarm_rate)
    correct = read_guesses(inclusion, scores)
    size, guesses = inclusion.canaries, sum(inclusion.guesses)
    share = rate / inclusion.audits

    def bound(right: int) -> float:
        return one_run_epsilon(
            canaries=size, guesses=guesses, correct=right, delta=claim.delta, rate=share
        )

    return conclude(
        Method.ONE_RUN,
        claim=claim,
        epsilon_lower=bound(correct),
        ceiling=bound(inclusion.most_right),
        rate=rate,
        assumptions=ONE_RUN_ASSUMPTIONS,
        evidence=guess_evidence(inclusion, correct),
    )


def read_guesses(inclusion: Inclusion, scores: ArrayLike) -> int:
    """Use up one audit of the coins: how many guesses are right."""
    if not isinstance(inclusion, Inclusion):
        raise InvalidValue("inclusion", type(inclusion).__name__, "the Inclusion of the run")
    return inclusion.correct(scores)


def guess_evidence(inclusion: Inclusion, correct: int) -> dict[str, object]:
    """What the bound was computed from."""
    return {
        "canaries": inclusion.canaries,
        "guesses_included": inclusion.guesses[0],
        "guesses_excluded": inclusion.guesses[1],
        "correct": correct,
        "could_be_correct": inclusion.most_right,
        "audits_of_these_coins": inclusion.audits,
        **inclusion.provenance,
    }


def one_run_p_value(
    *, canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """At least the probability of as many right guesses under (epsilon, delta)-DP.

    >>> round(one_run_p_value(canaries=100, guesses=4, correct=4, epsilon=0.0, delta=0.0), 9)
    0.0625
    """
    size = _validate.integer("canaries", canaries, at_least=1)
    r = _validate.integer("guesses", guesses, at_least=1, at_most=size)
    v = _validate.integer("correct", correct, at_least=0, at_most=r)
    level = _validate.real("epsilon", epsilon, at_least=0)
    failure = _validate.real("delta", delta, at_least=0, at_most=1)
    return _p_value(size, r, v, level, level, failure)


def one_run_epsilon(
    *, canaries: int, guesses: int, correct: int, delta: float, rate: float
) -> float:
    """Return the largest epsilon such that all smaller ones are refuted at the false-alarm rate.

    Parameters
    ----------
    canaries, guesses, correct
        Counts of the run.
    delta
        Where epsilon is read.
    rate
        The false-alarm rate.

    Returns
    -------
    float
        A lower bound of epsilon.
    """
    size = _validate.integer("canaries", canaries, at_least=1)
    r = _validate.integer("guesses", guesses, at_least=1, at_most=size)
    v = _validate.integer("correct", correct, at_least=0, at_most=r)
    failure = _validate.real("delta", delta, at_least=0, at_most=1)

    def refutes(low: float, high: float) -> bool:
        return _p_value(size, r, v, low, high, failure) <= rate

    if not refutes(0.0, 0.0):
        return 0.0
    if 2.0 * size * failure <= 1.0:
        # The bound is a mixture of tails, each of which grows with epsilon.
        low, high = 0.0, _MOST_EPSILON
        while high - low > _FINEST * (1.0 + high):
            middle = (low + high) / 2
            low, high = (middle, high) if refutes(middle, middle) else (low, middle)
        return low
    reached, step = 0.0, 1.0
    while step > _FINEST and reached < _MOST_EPSILON:
        if refutes(reached, reached + step):
            reached += step
        else:
            step /= 2
    return reached


def suggest_guesses(
    loss: Loss, *, canaries: int, delta: float, false_alarm_rate: float = 0.05
) -> tuple[int, int]:
    """Return the numbers of guesses that show most about a Gaussian mechanism of that epsilon.

    Computed from the claim alone, before there is a run; a poor number costs strength, never
    validity. Few guesses are surer, many count for more: at a false-positive rate a the best
    attack calls a share (a + power(a)) / 2 of the canaries included, power(a) / (a + power(a))
    of them rightly. Never more than :func:`most_guesses` are suggested.

    >>> from discreet.privacy import GDP
    >>> suggest_guesses(GDP(mu=0.925), canaries=100, delta=1e-5)
    (16, 16)

    Parameters
    ----------
    loss
        The claim.
    canaries
        How many there are.
    delta
        Where its epsilon is stated.
    false_alarm_rate
        Of the audit to come.

    Returns
    -------
    tuple of two int
        How many canaries to call included, and how many excluded.

    Raises
    ------
    InvalidValue
        If an argument is wrong.
    """
    if not isinstance(loss, Loss):
        raise InvalidValue("loss", loss, "a loss of discreet.privacy")
    size = _validate.integer("canaries", canaries, at_least=2)
    rate = check_rate(false_alarm_rate)
    levels = np.geomspace(1e-4, 0.5, 60)
    claim = Claim.read(loss, None, delta)
    if claim.delta > 0.0 and claim.epsilon > 0.0:
        mu = gaussian_mu(claim.epsilon, claim.delta)
        powers = special.ndtr(special.ndtri(levels) + mu)
    else:
        powers = np.array([best_tpr(a, epsilon=claim.epsilon) for a in levels.tolist()])
    best, chosen = -1.0, (1, 1)
    for level, power in zip(levels.tolist(), powers.tolist(), strict=True):
        half = min(most_guesses(size), round(size * (level + power) / 2))
        if half < 1:
            continue
        right = math.floor(2 * half * power / (level + power))
        shown = one_run_epsilon(
            canaries=size, guesses=2 * half, correct=right, delta=delta, rate=rate
        )
        if shown > best:
            best, chosen = shown, (half, half)
    return chosen


def most_guesses(canaries: int) -> int:
    """How many canaries to call included, and as many excluded, at most.

    The coins include m/2 of them, give or take sqrt(m)/2. Whoever calls more included than are
    makes wrong guesses however clear the scores, and a few wrong ones cost more than many right
    ones gain. Two and a half deviations of room are about best for a perfect attack: 46 % of
    1,000, which show epsilon 5.6; half of them would show 4.

    >>> most_guesses(1000), most_guesses(2)
    (460, 1)
    """
    return max(1, math.floor(canaries / 2 - 1.25 * math.sqrt(canaries)))


def _p_value(size: int, r: int, v: int, low: float, high: float, failure: float) -> float:
    """The bound of the theorem, or a bound on it for all epsilons between two."""
    if v == 0:
        return 1.0
    # P(W >= w) = 1 - I_(1-q)(r - w + 1, w): 1 - q keeps its digits when q is near 1.
    beyond = float(special.betaincc(r - v + 1.0, float(v), _wrong(high)))
    bought = 0.0
    if failure > 0.0:
        least = beyond if low == high else float(special.betaincc(r - v + 1.0, v, _wrong(low)))
        wanted = np.arange(v - 1, 0, -1, dtype=np.float64)
        tails = np.append(special.betaincc(r - wanted + 1.0, wanted, _wrong(high)), 1.0)
        bought = float(((tails - least) / np.arange(1, v + 1)).max())
    total = beyond + 2.0 * size * failure * bought
    return min(1.0, total * (1.0 + _ROUNDING))


def _wrong(epsilon: float) -> float:
    return 1.0 / (1.0 + math.exp(epsilon))


_LEVELS = 2000
_STEEPEST = 500.0
_LEAST_LEVEL = 1e-9


class Curve(ABC):
    """A claimed trade-off curve, read backwards."""

    @abstractmethod
    def least_fpr(self, power: float) -> float:
        """At most the least false-positive rate at which a test may have this power."""


@final
@dataclass(frozen=True)
class ApproximateCurve(Curve):
    """All of (epsilon, delta)-DP."""

    epsilon: float
    delta: float

    def least_fpr(self, power: float) -> float:
        if self.epsilon > _STEEPEST:
            return 0.0
        steep = (power - self.delta) * math.exp(-self.epsilon)
        return max(0.0, steep, 1.0 - self.delta - math.exp(self.epsilon) * (1.0 - power))


@final
@dataclass(frozen=True)
class GaussianCurve(Curve):
    """The Gaussian mechanism of ``mu``."""

    mu: float

    def least_fpr(self, power: float) -> float:
        return float(special.ndtr(special.ndtri(min(power, 1.0)) - self.mu))


@final
class LossCurve(Curve):
    """The curve of a loss, on a fine grid of levels; between two of them the lower one holds.

    What the loss says at ``delta`` itself is added without a grid.
    """

    def __init__(self, loss: Loss, *, delta: float) -> None:
        self._at_delta = ApproximateCurve(loss.epsilon(delta=delta), delta)
        small = np.geomspace(_LEAST_LEVEL, 0.01, _LEVELS)
        middle = np.linspace(0.01, 0.99, _LEVELS)
        self._levels = np.unique(np.concatenate([[0.0], small, middle, 1.0 - small]))
        self._powers = np.maximum.accumulate(loss.tradeoff(self._levels))

    def least_fpr(self, power: float) -> float:
        # The power grows with the level: what is too little at a level needs a higher one.
        enough = int(np.searchsorted(self._powers, power * (1.0 - _ROUNDING), side="left"))
        on_grid = float(self._levels[enough - 1]) if enough > 0 else 0.0
        return max(on_grid, self._at_delta.least_fpr(power))


@lru_cache(maxsize=32)
def read_curve(loss: Loss, delta: float) -> LossCurve:
    """Return the trade-off curve of a loss; it is cached, because reading one takes long."""
    return LossCurve(loss, delta=delta)


def contradicts_curve(
    curve: Curve, *, canaries: int, guesses: int, correct: int, rate: float
) -> bool:
    """Say whether ``correct`` right guesses or more have a probability below ``rate`` (see above).

    Parameters
    ----------
    curve
        What the claim allows.
    canaries, guesses, correct
        Counts of the run.
    rate
        The false-alarm rate.

    Returns
    -------
    bool
        Whether so many right guesses are less likely than that.
    """
    size = _validate.integer("canaries", canaries, at_least=1)
    r = _validate.integer("guesses", guesses, at_least=1, at_most=size)
    v = _validate.integer("correct", correct, at_least=0, at_most=r)
    limit = r / size * (1.0 + _ROUNDING)
    right, wrong = v * rate / size, (r - v) * rate / size
    for j in range(v - 1, -1, -1):
        raised = max(wrong, curve.least_fpr(right))
        right += j / (r - j) * (raised - wrong)
        wrong = raised
        if right + wrong > limit:
            return True
    return False


def audit_one_run_curve(
    inclusion: Inclusion,
    scores: ArrayLike,
    *,
    loss: Loss,
    delta: float,
    mechanism: str | None = None,
    false_alarm_rate: float = 0.05,
) -> TrainingAudit:
    """Test a claimed loss by its trade-off curve, with the canaries of one run.

    As :func:`~discreet.audit.audit_one_run`; "violated" means that as many right
    guesses have a probability of at most ``false_alarm_rate`` under the claimed curve.
    ``epsilon_lower`` is a bound at ``delta`` for any mechanism; with ``mechanism="gaussian"``
    it is the bound for Gaussian mechanisms, which is larger, and here needs no independence
    between canaries.

    Formal guarantee: a run that keeps ``loss`` is called "violated" with probability at most
    ``false_alarm_rate``, and the bound exceeds the true epsilon no more often.

    Parameters
    ----------
    inclusion, scores, false_alarm_rate
        As for :func:`audit_one_run`.
    loss
        The claim, whose whole trade-off curve is tested.
    delta
        Where its epsilon is stated.
    mechanism
        "gaussian" if the run is one Gaussian mechanism, for a stronger bound.

    Returns
    -------
    TrainingAudit
        Lower bound, ceiling and verdict.

    Raises
    ------
    InvalidValue
        If scores or the claim cannot be used.
    """
    if mechanism is not None:
        require_gaussian(mechanism, loss)
    if not isinstance(loss, Loss):
        raise InvalidValue("loss", loss, "a loss of discreet.privacy")
    claim = Claim.read(loss, None, delta)
    if mechanism is not None:
        require_positive_delta(claim)
    rate = check_rate(false_alarm_rate)
    claimed = read_curve(loss, claim.delta)
    correct = read_guesses(inclusion, scores)
    share = rate / inclusion.audits

    def contradicts(curve: Curve, right: int) -> bool:
        return contradicts_curve(
            curve,
            canaries=inclusion.canaries,
            guesses=sum(inclusion.guesses),
            correct=right,
            rate=share,
        )

    def bound(right: int) -> float:
        return curve_epsilon(
            canaries=inclusion.canaries,
            guesses=sum(inclusion.guesses),
            correct=right,
            delta=claim.delta,
            rate=share,
            gaussian=mechanism is not None,
        )

    everything = sum(inclusion.guesses)
    return conclude(
        Method.ONE_RUN_CURVE if mechanism is None else Method.ONE_RUN_GAUSSIAN,
        claim=claim,
        epsilon_lower=bound(correct),
        ceiling=bound(inclusion.most_right),
        rate=rate,
        assumptions=ONE_RUN_ASSUMPTIONS + (() if mechanism is None else (GAUSSIAN_ONLY,)),
        evidence=guess_evidence(inclusion, correct),
        refutation=(
            f"{correct} right guesses of {everything} are less likely than the false-alarm rate "
            "under the claimed trade-off curve"
            if contradicts(claimed, correct)
            else None
        ),
        weakness=(
            ""
            if contradicts(claimed, inclusion.most_right)
            else "even if all guesses had been right that could be, the claimed trade-off curve "
            "would allow it"
        ),
    )


def curve_epsilon(
    *, canaries: int, guesses: int, correct: int, delta: float, rate: float, gaussian: bool = False
) -> float:
    """Return the largest epsilon such that all smaller ones are refuted, at the false-alarm rate.

    Of (epsilon, delta)-DP, or of Gaussian mechanisms at ``delta``.

    Parameters
    ----------
    canaries, guesses, correct
        Counts of the run.
    delta
        Where epsilon is read.
    rate
        The false-alarm rate.
    gaussian
        Whether the curves are those of Gaussian mechanisms.

    Returns
    -------
    float
        A lower bound of epsilon.
    """

    def contradicts(curve: Curve) -> bool:
        return contradicts_curve(
            curve, canaries=canaries, guesses=guesses, correct=correct, rate=rate
        )

    if gaussian:
        return gaussian_epsilon_lower(_largest(lambda mu: contradicts(GaussianCurve(mu))), delta)
    return _largest(lambda epsilon: contradicts(ApproximateCurve(epsilon, delta)))


def _largest(refuted: Callable[[float], bool]) -> float:
    """The end of the refuted parameters, which are an interval from 0; a lower value of it."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < 64.0 and refuted(high):
        low, high = high, 2.0 * high
    while high - low > 1e-9 * (1.0 + high):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
