"""What a guarantee means: posteriors, trade-off curves and the words for them (S1)."""

from __future__ import annotations

import json
import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InvalidValue
from discreet.privacy.theorems import (
    Explanation,
    advantage,
    approx_delta,
    bayes_error,
    best_accuracy,
    best_tpr,
    expected_cost,
    explain,
    gaussian_delta,
    loss_tail,
    posterior,
    posterior_interval,
    posterior_interval_loose,
    posterior_with_delta,
    two_coin_posterior,
)

PRIORS = st.floats(0.0, 1.0, allow_subnormal=False)
EPSILONS = st.floats(0.0, 8.0)
DELTAS = st.floats(0.0, 1.0)


def worst_pair(epsilon: float, delta: float) -> tuple[list[float], list[float]]:
    """The pair that attains (epsilon, delta) everywhere: reveal, or respond at random."""
    truth = (1 - delta) / (1 + math.exp(-epsilon))
    lie = 1 - delta - truth
    return [delta, truth, lie, 0.0], [0.0, lie, truth, delta]


def attacks_on(pair: tuple[list[float], list[float]]) -> list[tuple[float, float]]:
    """(FPR, TPR) of every deterministic attack: accuse on any set of outputs."""
    members, others = pair
    return [
        (
            math.fsum(q for q, accuse in zip(others, choice, strict=True) if accuse),
            math.fsum(p for p, accuse in zip(members, choice, strict=True) if accuse),
        )
        for choice in product((False, True), repeat=len(members))
    ]


# Posteriors


def test_the_tax_survey_of_the_lecture() -> None:
    assert two_coin_posterior(0.02, answer=True) == pytest.approx(0.0577, abs=5e-5)
    assert two_coin_posterior(0.02, answer=True) == pytest.approx(
        posterior_interval(0.02, math.log(3)).upper, rel=1e-14
    )
    assert two_coin_posterior(0.02, answer=False) == pytest.approx(
        posterior_interval(0.02, math.log(3)).lower, rel=1e-14
    )


def test_annas_interval_as_the_lecture_derives_it() -> None:
    prior, epsilon = 0.4, 0.3
    bounds = posterior_interval(prior, epsilon)
    assert bounds.lower == pytest.approx(prior / (prior + math.exp(epsilon) * (1 - prior)))
    assert bounds.upper == pytest.approx(
        prior * math.exp(epsilon) / (prior * math.exp(epsilon) + 1 - prior)
    )
    assert bounds.failure_probability == 0.0


@given(prior=PRIORS, epsilon=st.floats(0.0, 2000.0))
def test_exact_interval_lies_within_the_loose_one(prior: float, epsilon: float) -> None:
    exact, loose = posterior_interval(prior, epsilon), posterior_interval_loose(prior, epsilon)
    assert 0.0 <= exact.lower <= prior * (1 + 1e-12)
    assert prior * (1 - 1e-12) <= exact.upper <= 1.0
    assert loose.lower <= exact.lower * (1 + 1e-12)
    assert exact.upper <= loose.upper * (1 + 1e-12)


@given(prior=st.floats(0.001, 0.999), epsilon=EPSILONS, place=st.floats(-1.0, 1.0))
def test_every_likelihood_ratio_within_epsilon_stays_inside(
    prior: float, epsilon: float, place: float
) -> None:
    after = posterior(prior, likelihood=math.exp(place * epsilon), alternative=1.0)
    bounds = posterior_interval(prior, epsilon)
    assert bounds.lower - 1e-12 <= after <= bounds.upper + 1e-12


def test_certainty_does_not_move() -> None:
    for prior in (0.0, 1.0):
        for epsilon in (0.0, 1.0, 5000.0):
            assert posterior_interval(prior, epsilon)[:2] == (prior, prior)
    with pytest.raises(InvalidValue, match="can occur"):
        posterior(1.0, likelihood=0.0, alternative=0.5)


# The tail of the loss when delta > 0


@given(mu=st.floats(0.05, 4.0), epsilon=st.floats(0.0, 6.0), more=st.floats(0.01, 5.0))
def test_loss_tail_bounds_the_gaussian_loss(mu: float, epsilon: float, more: float) -> None:
    """The Gaussian loss is N(mu^2/2, mu^2) under the true neighbour: both tails are known."""
    beyond = epsilon + more
    delta = gaussian_delta(mu, epsilon)
    upper = math.erfc((beyond / mu - mu / 2) / math.sqrt(2)) / 2
    lower = math.erfc((beyond / mu + mu / 2) / math.sqrt(2)) / 2
    assert upper <= loss_tail(delta, epsilon=epsilon, beyond=beyond) * (1 + 1e-9)
    bounds = posterior_with_delta(0.3, epsilon=epsilon, delta=delta, beyond=beyond)
    assert upper + lower <= bounds.failure_probability * (1 + 1e-9)


def test_delta_is_not_the_probability_that_the_loss_exceeds_epsilon() -> None:
    """A common misreading: for a Gaussian P(loss > eps) is many times delta(eps)."""
    mu, epsilon = 1.0, 3.0
    exceeded = math.erfc((epsilon / mu - mu / 2) / math.sqrt(2)) / 2
    assert exceeded > 3 * gaussian_delta(mu, epsilon)
    with pytest.raises(InvalidValue, match="beyond"):
        loss_tail(1e-5, epsilon=1.0, beyond=1.0)


@given(delta=DELTAS, epsilon=EPSILONS, more=st.floats(1e-6, 10.0))
def test_loss_tail_is_a_probability_that_falls_with_distance(
    delta: float, epsilon: float, more: float
) -> None:
    near = loss_tail(delta, epsilon=epsilon, beyond=epsilon + more)
    far = loss_tail(delta, epsilon=epsilon, beyond=epsilon + 2 * more)
    assert 0.0 <= far <= near <= 1.0
    assert delta <= far * (1 + 1e-12)


# The trade-off curve


@given(epsilon=EPSILONS, delta=DELTAS)
def test_no_attack_on_the_worst_pair_beats_the_curve_and_one_meets_it(
    epsilon: float, delta: float
) -> None:
    attacks = attacks_on(worst_pair(epsilon, delta))
    for fpr, tpr in attacks:
        assert tpr <= best_tpr(min(1.0, fpr), epsilon=epsilon, delta=delta) + 1e-12
    assert max(tpr - fpr for fpr, tpr in attacks) == pytest.approx(
        advantage(epsilon, delta), abs=1e-12
    )


@given(epsilon=EPSILONS, delta=DELTAS, prior=PRIORS)
def test_best_accuracy_is_that_of_the_best_attack(
    epsilon: float, delta: float, prior: float
) -> None:
    attacks = attacks_on(worst_pair(epsilon, delta))
    best = max(prior * tpr + (1 - prior) * (1 - fpr) for fpr, tpr in attacks)
    assert best_accuracy(epsilon, delta, prior=prior) == pytest.approx(best, abs=1e-12)
    assert bayes_error(epsilon, delta, prior=prior) == pytest.approx(1 - best, abs=1e-12)


@given(epsilon=EPSILONS, delta=DELTAS)
def test_even_prior_accuracy_advantage_and_delta_at_zero_agree(
    epsilon: float, delta: float
) -> None:
    assert best_accuracy(epsilon, delta) == pytest.approx((1 + advantage(epsilon, delta)) / 2)
    assert advantage(epsilon, delta) == pytest.approx(approx_delta(epsilon, delta, epsilon=0.0))
    printed = (math.exp(epsilon) - 1 + 2 * delta) / (math.exp(epsilon) + 1)
    assert advantage(epsilon, delta) == pytest.approx(printed, abs=1e-14)


@given(epsilon=st.floats(0.0, 1500.0), delta=DELTAS, fpr=PRIORS, other=PRIORS)
def test_the_curve_rises_is_concave_and_beats_guessing(
    epsilon: float, delta: float, fpr: float, other: float
) -> None:
    def curve(x: float) -> float:
        return best_tpr(x, epsilon=epsilon, delta=delta)

    assert min(1.0, fpr) - 1e-12 <= curve(fpr) <= 1.0
    low, high = sorted((fpr, other))
    assert curve(low) <= curve(high)
    assert curve((low + high) / 2) >= (curve(low) + curve(high)) / 2 - 1e-12
    assert curve(0.0) >= delta * (1 - 1e-12)


def test_perfect_privacy_and_none() -> None:
    assert best_tpr(0.25, epsilon=0.0) == 0.25
    assert best_tpr(0.0, epsilon=0.0, delta=0.125) == 0.125
    assert best_tpr(0.5, epsilon=0.0, delta=1.0) == 1.0
    assert advantage(0.0) == 0.0
    assert advantage(0.0, 1.0) == 1.0
    assert best_tpr(1e-6, epsilon=1000.0) == 1.0


@given(epsilon=EPSILONS, delta=st.floats(0.0, 0.1), share=st.floats(1e-12, 1.0))
def test_expected_cost_bound(epsilon: float, delta: float, share: float) -> None:
    worst = 250.0
    cost = expected_cost(share * worst, worst=worst, epsilon=epsilon, delta=delta)
    assert cost <= min(worst, math.exp(epsilon) * share * worst + delta * worst) * (1 + 1e-12)
    assert cost >= share * worst * (1 - 1e-12)


# Words


def test_a_pure_guarantee_is_explained_with_an_interval() -> None:
    explanation = explain(1.0, prior=0.4)
    assert explanation.posterior_reason is None
    assert explanation.posterior_lower == pytest.approx(0.19695, abs=1e-5)
    assert explanation.posterior_upper == pytest.approx(0.64440, abs=1e-5)
    assert explanation.failure_probability == 0.0
    assert explanation.odds_factor == math.e
    text = " ".join(explanation.sentences())
    for fragment in ("2.719", "0.1969 and 0.6445", "73.11 %", "27.19 %, 2.719 %, 0.2719 %"):
        assert fragment in text


def test_an_approximate_guarantee_promises_no_interval_for_every_output() -> None:
    explanation = explain(1.0, 1e-6, prior=0.4)
    assert explanation.posterior_lower is None
    assert explanation.posterior_upper is None
    assert explanation.posterior_reason is not None
    assert explanation.beyond == 1.0 + math.log(2)
    assert explanation.failure_probability == pytest.approx(2e-6 * (1 + math.exp(-1) / 2))
    text = " ".join(explanation.sentences())
    assert "No interval for the posterior holds for every output: with delta > 0" in text
    assert "Except with a probability of at most 2.368e-06" in text
    assert "factor of at most 5.437" in text


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 1.0, 20.0, 1000.0])
@pytest.mark.parametrize("delta", [0.0, 1e-9, 0.5, 1.0])
@pytest.mark.parametrize("prior", [0.0, 0.02, 0.5, 1.0])
def test_explanations_are_plain_json_and_plain_words(
    epsilon: float, delta: float, prior: float
) -> None:
    explanation = explain(epsilon, delta, prior=prior)
    document = json.loads(json.dumps(explanation.to_json(), allow_nan=False))
    assert document["advantage"] == explanation.advantage
    assert document["sentences"] == list(explanation.sentences())
    assert (document["odds_factor"] is None) == math.isinf(explanation.odds_factor)
    for sentence in explanation.sentences():
        assert sentence.endswith(".")
        assert sentence[0].isupper()
        assert not any(word in sentence for word in ("nan", "inf ", "None"))


def test_an_explanation_is_frozen_and_equal_by_value() -> None:
    explanation = explain(1.0, 1e-6, prior=0.4)
    assert explanation == explain(1.0, 1e-6, prior=0.4)
    assert isinstance(explanation, Explanation)
    with pytest.raises(AttributeError):
        explanation.epsilon = 0.0


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: posterior_interval(1.1, 1.0), "prior"),
        (lambda: posterior_interval(0.5, -1.0), "epsilon"),
        (lambda: posterior_interval_loose(0.5, math.inf), "epsilon"),
        (lambda: posterior(0.5, likelihood=-1.0, alternative=1.0), "likelihood"),
        (lambda: two_coin_posterior(0.5, answer="yes"), "answer"),
        (lambda: two_coin_posterior(0.5, answer=1), "answer"),
        (lambda: loss_tail(2.0, epsilon=1.0, beyond=2.0), "delta"),
        (lambda: loss_tail(0.1, epsilon=1.0, beyond=0.5), "beyond"),
        (lambda: best_tpr(-0.1, epsilon=1.0), "fpr"),
        (lambda: best_tpr(0.1, epsilon=math.nan), "epsilon"),
        (lambda: advantage(1.0, -0.1), "delta"),
        (lambda: best_accuracy(1.0, 0.0, prior=2.0), "prior"),
        (lambda: expected_cost(5.0, worst=1.0, epsilon=1.0), "baseline"),
        (lambda: explain(-1.0), "epsilon"),
        (lambda: explain(1.0, 1.1), "delta"),
        (lambda: explain(1.0, 0.0, prior=-0.1), "prior"),
        (lambda: explain("1"), "epsilon"),
    ],
)
def test_bad_input_names_the_argument(call, name) -> None:
    with pytest.raises(InvalidValue) as caught:
        call()
    assert caught.value.argument == name
