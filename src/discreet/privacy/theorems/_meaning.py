"""What a guarantee means for a person.

An attacker knows everything but one record. Before the release she holds the prior;
after it, how far can her belief move, how often can she be right, what can it cost?
Post-processing keeps every answer: they hold for whatever is computed from the release.

A survey with two coins, a prior of 0.02 and the answer Yes.

>>> round(two_coin_posterior(0.02, answer=True), 4)
0.0577

An attacker with prior 0.4, against epsilon = 0.1:

>>> exact, loose = posterior_interval(0.4, 0.1), posterior_interval_loose(0.4, 0.1)
>>> round(exact.lower, 4), round(exact.upper, 4), round(loose.lower, 4), round(loose.upper, 4)
(0.3763, 0.4242, 0.3619, 0.4421)
"""

# S1 of docs/coverage.md.

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, NamedTuple

from discreet import _validate
from discreet.errors import InvalidValue

_NO_POINTWISE_BOUND = (
    "no interval for the posterior holds for every output: with delta > 0 an unlikely output "
    "may reveal everything"
)


class PosteriorBounds(NamedTuple):
    """Where a belief may end up; the interval fails with at most ``failure_probability``."""

    lower: float
    upper: float
    failure_probability: float = 0.0


def posterior(prior: float, *, likelihood: float, alternative: float) -> float:
    """Return the posterior by Bayes' rule.

    The answer has ``likelihood`` if the claim is true, ``alternative`` if not.

    >>> posterior(0.5, likelihood=0.75, alternative=0.25)
    0.75

    Parameters
    ----------
    prior : float
        The belief before the release, between 0 and 1.
    likelihood, alternative : float
        Of the answer, if the claim is true and if not.

    Returns
    -------
    float
    """
    prior = _validate.real("prior", prior, at_least=0, at_most=1)
    likelihood = _validate.real("likelihood", likelihood, at_least=0)
    alternative = _validate.real("alternative", alternative, at_least=0)
    joint, other = prior * likelihood, (1.0 - prior) * alternative
    if joint + other == 0.0:
        raise InvalidValue("likelihood", likelihood, "an answer that can occur under the prior")
    return joint / (joint + other)


def two_coin_posterior(prior: float, *, answer: bool) -> float:
    """Return the belief in Yes after a two-coin answer, which is true with probability 3/4.

    >>> (
    ...     round(two_coin_posterior(0.02, answer=True), 4),
    ...     round(two_coin_posterior(0.02, answer=False), 4),
    ... )
    (0.0577, 0.0068)

    Parameters
    ----------
    prior : float
        The belief before the release, between 0 and 1.
    answer : bool
        What the person said.

    Returns
    -------
    float
    """
    if not isinstance(answer, bool):
        raise InvalidValue("answer", answer, "True for Yes or False for No")
    return posterior(
        prior, likelihood=0.75 if answer else 0.25, alternative=0.25 if answer else 0.75
    )


def posterior_interval(prior: float, epsilon: float) -> PosteriorBounds:
    """Return [p / (p + e^eps (1-p)), p e^eps / (p e^eps + 1 - p)] for epsilon-DP; it is tight.

    >>> bounds = posterior_interval(0.4, 1.0)
    >>> round(bounds.lower, 4), round(bounds.upper, 4)
    (0.197, 0.6444)

    Parameters
    ----------
    prior : float
        The belief before the release, between 0 and 1.
    epsilon : float
        At least 0.

    Returns
    -------
    PosteriorBounds
    """
    prior = _validate.real("prior", prior, at_least=0, at_most=1)
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    if prior in (0.0, 1.0):
        return PosteriorBounds(prior, prior)
    shrink = math.exp(-epsilon)
    lower = prior * shrink / (prior * shrink + 1.0 - prior)
    return PosteriorBounds(lower, prior / (prior + (1.0 - prior) * shrink))


def posterior_interval_loose(prior: float, epsilon: float) -> PosteriorBounds:
    """Return a looser interval, p e^-eps to p e^eps, the latter capped at 1.

    >>> posterior_interval_loose(0.4, 1.0).upper
    1.0

    Parameters
    ----------
    prior : float
        The belief before the release, between 0 and 1.
    epsilon : float
        At least 0.

    Returns
    -------
    PosteriorBounds
    """
    prior = _validate.real("prior", prior, at_least=0, at_most=1)
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    return PosteriorBounds(prior * math.exp(-epsilon), min(1.0, prior * _exp(epsilon)))


def loss_tail(delta: float, *, epsilon: float, beyond: float) -> float:
    """Return delta / (1 - e^(epsilon - beyond)), a bound on P(privacy loss > beyond).

    delta(epsilon) is the mean of (1 - e^(epsilon - loss))_+, which is at least
    1 - e^(epsilon - beyond) wherever the loss exceeds ``beyond``. At beyond = epsilon there
    is no such bound: delta is *not* the probability that the loss exceeds epsilon.

    >>> round(loss_tail(1e-6, epsilon=1.0, beyond=1.0 + math.log(2)), 12)
    2e-06

    Parameters
    ----------
    delta, epsilon : float
        The guarantee.
    beyond : float
        Above epsilon.

    Returns
    -------
    float
    """
    delta = _validate.real("delta", delta, at_least=0, at_most=1)
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    beyond = _validate.real("beyond", beyond, above=epsilon)
    if delta == 0.0:
        return 0.0
    return min(1.0, delta / -math.expm1(epsilon - beyond))


def posterior_with_delta(
    prior: float, *, epsilon: float, delta: float, beyond: float
) -> PosteriorBounds:
    """Return the posterior interval at ``beyond`` > epsilon and the probability that it fails.

    Whichever of the two neighbours is true, the loss exceeds ``beyond`` with at most t =
    :func:`loss_tail`, and is below -``beyond`` with at most e^-beyond t, for there the true
    density is e^-beyond times smaller than the other one.

    >>> bounds = posterior_with_delta(0.4, epsilon=1.0, delta=1e-6, beyond=2.0)
    >>> round(bounds.upper, 4), f"{bounds.failure_probability:.3g}"
    (0.8313, '1.8e-06')

    Parameters
    ----------
    prior : float
        The belief before the release, between 0 and 1.
    epsilon, delta : float
        The guarantee.
    beyond : float
        Above epsilon.

    Returns
    -------
    PosteriorBounds
    """
    tail = loss_tail(delta, epsilon=epsilon, beyond=beyond)
    interval = posterior_interval(prior, beyond)
    return interval._replace(failure_probability=min(1.0, tail * (1.0 + math.exp(-beyond))))


def best_tpr(fpr: float, *, epsilon: float, delta: float = 0.0) -> float:
    """Return the best true-positive rate of any attack at a false-positive rate.

    min(1, e^eps fpr + delta, 1 - e^-eps (1 - fpr - delta)); Wasserman and Zhou 2010,
    Kairouz, Oh, Viswanath 2015.

    >>> round(best_tpr(0.01, epsilon=1.0), 4), round(best_tpr(0.9, epsilon=1.0), 4)
    (0.0272, 0.9632)

    Parameters
    ----------
    fpr : float
        The false-positive rate.
    epsilon, delta : float
        The guarantee.

    Returns
    -------
    float
    """
    fpr = _validate.real("fpr", fpr, at_least=0, at_most=1)
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    delta = _validate.real("delta", delta, at_least=0, at_most=1)
    steep = delta if fpr == 0.0 else _exp(epsilon) * fpr + delta
    # 1 - e^-eps (1 - fpr - delta), written so that a small delta is not lost to rounding.
    return min(1.0, steep, math.exp(-epsilon) * (fpr + delta) - math.expm1(-epsilon))


def advantage(epsilon: float, delta: float = 0.0) -> float:
    """Return the largest TPR - FPR of a membership attack, (e^eps - 1 + 2 delta) / (e^eps + 1).

    >>> round(advantage(1.0), 4), round(advantage(0.0, 0.1), 4)
    (0.4621, 0.1)

    Parameters
    ----------
    epsilon, delta : float
        The guarantee.

    Returns
    -------
    float
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    delta = _validate.real("delta", delta, at_least=0, at_most=1)
    return min(1.0, delta + (1.0 - delta) * math.tanh(0.5 * epsilon))


def best_accuracy(epsilon: float, delta: float = 0.0, *, prior: float = 0.5) -> float:
    """Return the largest probability that a guess about one person is right.

    The best corner of the trade-off region: the better of the prior's own guess (with the
    delta that reveals) and (e^eps + delta) / (1 + e^eps).

    >>> round(best_accuracy(1.0), 4), round(best_accuracy(1.0, prior=0.02), 4)
    (0.7311, 0.98)

    Parameters
    ----------
    epsilon, delta : float
        The guarantee.
    prior : float
        The belief before the release, between 0 and 1.

    Returns
    -------
    float
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    delta = _validate.real("delta", delta, at_least=0, at_most=1)
    prior = _validate.real("prior", prior, at_least=0, at_most=1)
    shrink = math.exp(-epsilon)
    return max(
        1.0 - prior + prior * delta,
        prior + (1.0 - prior) * delta,
        (1.0 + delta * shrink) / (1.0 + shrink),
    )


def bayes_error(epsilon: float, delta: float = 0.0, *, prior: float = 0.5) -> float:
    """Return the least probability of error of any guess, 1 - :func:`best_accuracy`.

    >>> round(bayes_error(1.0), 4)
    0.2689

    Parameters
    ----------
    epsilon, delta : float
        The guarantee.
    prior : float
        The belief before the release, between 0 and 1.

    Returns
    -------
    float
    """
    return 1.0 - best_accuracy(epsilon, delta, prior=prior)


def expected_cost(baseline: float, *, worst: float, epsilon: float, delta: float = 0.0) -> float:
    """Return the largest expected cost of taking part, if it is ``baseline`` without the record.

    The cost lies in [0, worst]. Divided by ``worst`` it is a randomized test, so the bound
    is worst * best_tpr(baseline / worst): at most e^eps baseline + delta worst.

    >>> round(expected_cost(10.0, worst=10_000.0, epsilon=0.5, delta=1e-6), 4)
    16.4972

    Parameters
    ----------
    baseline : float
        The expected cost without the record.
    worst : float
        The largest possible cost.
    epsilon, delta : float
        The guarantee.

    Returns
    -------
    float
    """
    worst = _validate.real("worst", worst, above=0)
    baseline = _validate.real("baseline", baseline, at_least=0, at_most=worst)
    return worst * best_tpr(baseline / worst, epsilon=epsilon, delta=delta)


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What (epsilon, delta) means for one person whom an attacker suspects with ``prior``.

    ``posterior_lower`` and ``posterior_upper`` hold for every output; with delta > 0 there
    are none, ``posterior_reason`` says why, and ``beyond_*`` is the interval that holds
    except with ``failure_probability``: at a loss ``beyond`` = epsilon + ln 2.
    """

    epsilon: float
    delta: float
    prior: float
    odds_factor: float
    posterior_lower: float | None
    posterior_upper: float | None
    posterior_reason: str | None
    beyond: float
    beyond_lower: float
    beyond_upper: float
    failure_probability: float
    best_accuracy_even_prior: float
    advantage: float
    tpr_at_fpr_10_percent: float
    tpr_at_fpr_1_percent: float
    tpr_at_fpr_0_1_percent: float

    def sentences(self) -> tuple[str, ...]:
        """Say the numbers in words, one fact a sentence."""
        return (
            *self._belief(),
            (
                "Guessing whether a person took part, at even prior odds, is right at most "
                f"{_percent(self.best_accuracy_even_prior)} of the time (50 % is blind "
                f"guessing); a bet of 1 at even stakes gains at most {_at_most(self.advantage)} "
                "on average."
            ),
            (
                "An attack that wrongly accuses 1 in 10, 1 in 100, 1 in 1000 non-members finds "
                f"at most {_percent(self.tpr_at_fpr_10_percent)}, "
                f"{_percent(self.tpr_at_fpr_1_percent)}, "
                f"{_percent(self.tpr_at_fpr_0_1_percent)} of the members."
            ),
            (
                "These are limits for any attacker with any side knowledge, about one person's "
                "record; they do not limit what the data as a whole teach about people in general."
            ),
        )

    def _belief(self) -> tuple[str, str]:
        if self.posterior_lower is not None and self.posterior_upper is not None:
            return (
                (
                    "Whatever is released, the odds that an attacker gives to a claim about one "
                    f"person change by a factor of at most {_factor(self.epsilon)}."
                ),
                (
                    f"A belief of {_show(self.prior)} ends between "
                    f"{_at_least(self.posterior_lower)} and {_at_most(self.posterior_upper)}."
                ),
            )
        return (
            f"{_NO_POINTWISE_BOUND[0].upper()}{_NO_POINTWISE_BOUND[1:]}.",
            (
                f"Except with a probability of at most {_at_most(self.failure_probability)}, the "
                f"odds change by a factor of at most {_factor(self.beyond)}, and a belief of "
                f"{_show(self.prior)} ends between {_at_least(self.beyond_lower)} and "
                f"{_at_most(self.beyond_upper)}."
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """The fields and the sentences; an odds factor beyond the floats becomes ``None``."""
        fields = asdict(self)
        if math.isinf(self.odds_factor):
            fields["odds_factor"] = None
        return {**fields, "sentences": list(self.sentences())}


def explain(epsilon: float, delta: float = 0.0, *, prior: float = 0.5) -> Explanation:
    """Return everything a person needs to read an (epsilon, delta) guarantee.

    >>> for sentence in explain(1.0, prior=0.4).sentences()[:2]:
    ...     print(sentence)
    Whatever is released, the odds that an attacker gives to a claim about one person change
    by a factor of at most 2.719.
    A belief of 0.4 ends between 0.1969 and 0.6445.
    >>> explain(1.0, 1e-6, prior=0.4).failure_probability < 3e-6
    True

    Parameters
    ----------
    epsilon, delta : float
        The guarantee.
    prior : float
        The belief before the release, between 0 and 1.

    Returns
    -------
    Explanation
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    delta = _validate.real("delta", delta, at_least=0, at_most=1)
    always = posterior_interval(prior, epsilon)
    beyond = epsilon + math.log(2.0)
    likely = posterior_with_delta(prior, epsilon=epsilon, delta=delta, beyond=beyond)
    pure = delta == 0.0
    return Explanation(
        epsilon=epsilon,
        delta=delta,
        prior=float(prior),
        odds_factor=_exp(epsilon),
        posterior_lower=always.lower if pure else None,
        posterior_upper=always.upper if pure else None,
        posterior_reason=None if pure else _NO_POINTWISE_BOUND,
        beyond=beyond,
        beyond_lower=likely.lower,
        beyond_upper=likely.upper,
        failure_probability=likely.failure_probability,
        best_accuracy_even_prior=best_accuracy(epsilon, delta),
        advantage=advantage(epsilon, delta),
        tpr_at_fpr_10_percent=best_tpr(0.1, epsilon=epsilon, delta=delta),
        tpr_at_fpr_1_percent=best_tpr(0.01, epsilon=epsilon, delta=delta),
        tpr_at_fpr_0_1_percent=best_tpr(0.001, epsilon=epsilon, delta=delta),
    )


def _exp(epsilon: float) -> float:
    return math.exp(epsilon) if epsilon < 709.0 else math.inf


def _factor(epsilon: float) -> str:
    return _at_most(math.exp(epsilon)) if epsilon < 14.0 else f"e^{_at_most(epsilon)}"


def _show(value: float) -> str:
    return f"{value:.4g}"


def _at_most(value: float) -> str:
    """Four digits that are not below the value, for sentences that say "at most"."""
    return _round(value, ROUND_CEILING)


def _at_least(value: float) -> str:
    """Four digits that are not above the value."""
    return _round(value, ROUND_FLOOR)


def _round(value: float, rounding: str) -> str:
    # A float that prints as four digits or fewer is meant to be those digits.
    exact = Decimal(repr(value))
    return _show(float(Context(prec=4, rounding=rounding).plus(exact)))


def _percent(value: float) -> str:
    return f"{_at_most(100.0 * value)} %"
