"""S14, S27: randomized response: exact coins, exact epsilon, estimates and intervals."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms import (
    binary_estimate,
    binary_response,
    channel_epsilon,
    k_ary_estimate,
    k_ary_response,
    response_channel,
    two_coin_estimate,
    two_coin_response,
)
from discreet.mechanisms._response import Channel, _at_most
from discreet.privacy import RandomizedResponse, from_pair
from discreet.randomness import source
from mechanisms.exact_pairs import REJECT, chi_square
from randomness.scripted_source import ScriptedSource

PEOPLE = 40_000


def test_two_coins_tell_the_truth_three_times_in_four() -> None:
    for truth in (True, False):
        said = two_coin_response(np.full(PEOPLE, truth), insecure_seed=81).value
        honest = int((said == truth).sum())
        assert chi_square([honest, PEOPLE - honest], [0.75, 0.25]) > REJECT
        assert chi_square([honest, PEOPLE - honest], [0.5, 0.5]) < REJECT
    assert two_coin_response(True).loss == RandomizedResponse(math.log(3.0))
    # The exact local epsilon of the channel is ln 3, and the claim is not below it.
    rows = ((Fraction(3, 4), Fraction(1, 4)), (Fraction(1, 4), Fraction(3, 4)))
    assert channel_epsilon(rows) == pytest.approx(math.log(3), rel=1e-12)
    with mpmath.workdps(40):
        assert two_coin_response(True).loss.pure_epsilon >= mpmath.log(3)


@pytest.mark.parametrize("epsilon", [0.1, 1, "7/3"])
def test_binary_truth_has_odds_e_to_the_epsilon(epsilon: object) -> None:
    truth = math.exp(float(Fraction(str(epsilon))))
    said = binary_response(np.ones(PEOPLE, dtype=bool), epsilon=epsilon, insecure_seed=82).value
    honest = int(said.sum())
    assert chi_square([honest, PEOPLE - honest], [truth / (1 + truth), 1 / (1 + truth)]) > REJECT
    assert chi_square([honest, PEOPLE - honest], [1 / (1 + truth), truth / (1 + truth)]) < REJECT


@pytest.mark.parametrize("k", [2, 3, 7])
def test_k_ary_responses_have_the_rows_of_the_channel(k: int) -> None:
    for truth in (0, k - 1):
        release = k_ary_response(
            [truth] * PEOPLE, categories=range(k), epsilon=1.5, insecure_seed=83
        )
        counts = np.bincount(release.value, minlength=k).tolist()
        assert chi_square(counts, response_channel(1.5, categories=k)[truth]) > REJECT
        # The wrong k: as if there were one category more, or less.
        wrong = list(response_channel(1.5, categories=k + 1)[0][:k])
        wrong[truth], wrong[0] = wrong[0], wrong[truth]
        wrong[-1 if truth != k - 1 else 0] += 1 - sum(wrong)
        assert chi_square(counts, wrong) < REJECT
    assert release.loss == RandomizedResponse(1.5, k)


@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 5.0])
def test_the_local_epsilon_is_exact(k: int, epsilon: float) -> None:
    rows = response_channel(epsilon, categories=k)
    assert channel_epsilon(rows) == pytest.approx(epsilon, rel=1e-12)
    loss = RandomizedResponse(epsilon, k)
    pair = from_pair(rows[0], rows[1], relation="replace")
    for at in (0.0, epsilon / 3, epsilon * 0.9):
        assert loss.delta(epsilon=at) == pytest.approx(pair.delta(epsilon=at), rel=1e-6, abs=1e-9)


def test_one_answer_is_one_value_without_an_interval() -> None:
    for single in (
        two_coin_response(True),
        binary_response(np.bool_(True), epsilon=1),
        k_ary_response("b", categories="abc", epsilon=1),
        k_ary_response(2, categories=[1, 2], epsilon=1),
    ):
        assert not isinstance(single.value, np.ndarray | list)
        with pytest.raises(NotApplicable):
            single.interval()


def test_shapes_and_labels_are_kept() -> None:
    said = binary_response(np.ones((3, 4), dtype=bool), epsilon=2000)
    assert said.value.shape == (3, 4)
    assert said.value.all()
    assert k_ary_response(np.array(["x", "y"]), categories=["x", "y"], epsilon=2000).value == [
        "x",
        "y",
    ]


def test_two_coin_estimator_and_variances() -> None:
    # S14: 2 mean - 1/2.
    said = np.array([True] * 60 + [False] * 40)
    estimate = two_coin_estimate(said)
    assert estimate.share == pytest.approx(2 * 0.6 - 0.5)
    assert estimate.people == 100
    assert estimate.noise_variance == pytest.approx(3 / 400)
    channel = Channel.two_coin()
    for share in (0.0, 0.02, 0.3, 0.5, 1.0):
        # At least four times the variance of truthful answers.
        assert channel.survey_variance(share, 100) >= 4 * share * (1 - share) / 100
        assert channel.survey_variance(share, 100) == pytest.approx(
            share * (1 - share) / 100 + channel.noise_variance(share, 100)
        )


@pytest.mark.parametrize("people", [4, 9])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_estimators_are_unbiased_with_the_stated_variances(people: int, epsilon: float) -> None:
    channel = Channel.of(epsilon, 3)
    for belonging in (0, 2, people):
        mass = np.convolve(
            stats.binom.pmf(range(belonging + 1), belonging, channel.truth),
            stats.binom.pmf(range(people - belonging + 1), people - belonging, channel.lie),
        )
        estimates = [channel.estimate(seen, people) for seen in range(people + 1)]
        shares = np.array([e.share for e in estimates])
        mean = float(mass @ shares)
        assert mean == pytest.approx(belonging / people, abs=1e-9)
        variance = float(mass @ (shares - mean) ** 2)
        assert variance == pytest.approx(channel.noise_variance(belonging / people, people))
        stated = float(mass @ [e.noise_variance for e in estimates])
        assert stated == pytest.approx(variance)
    # Over the whole survey (a sample of people, then coins) the variance is unbiased too.
    share = 0.3
    chance = channel.lie + channel.contrast * share
    mass = stats.binom.pmf(range(people + 1), people, chance)
    assert float(mass @ [e.variance for e in estimates]) == pytest.approx(
        channel.survey_variance(share, people)
    )


def test_binary_and_k_ary_estimates_agree() -> None:
    said = [True] * 70 + [False] * 30
    one = binary_estimate(said, epsilon=0.8)
    both = k_ary_estimate(said, categories=[True, False], epsilon=0.8)
    assert one == both[True]
    assert both[True].share + both[False].share == pytest.approx(1.0)


@pytest.mark.parametrize(("first", "second"), [(5, 0), (0, 5), (7, 9), (1, 1), (300, 20)])
def test_sums_of_binomials_against_convolution(first: int, second: int) -> None:
    mass = np.convolve(
        stats.binom.pmf(range(first + 1), first, 0.7),
        stats.binom.pmf(range(second + 1), second, 0.2),
    )
    for limit in (-1, 0, first // 2, first, first + second, first + second + 3):
        exact = mass[: max(limit + 1, 0)].sum()
        assert _at_most(limit, first, 0.7, second, 0.2) == pytest.approx(exact, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("people", [1, 2, 12, 60])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.999])
def test_interval_coverage_by_enumeration(people: int, confidence: float) -> None:
    channel = Channel.of(1.0, 2)
    from discreet.mechanisms._response import response_bars

    ends = [response_bars(seen, people, channel)(confidence) for seen in range(people + 1)]
    assert all(0 <= low <= high <= 1 for low, high in ends)
    for belonging in range(people + 1):
        mass = np.convolve(
            stats.binom.pmf(range(belonging + 1), belonging, channel.truth),
            stats.binom.pmf(range(people - belonging + 1), people - belonging, channel.lie),
        )
        inside = [low <= belonging / people <= high for low, high in ends]
        assert float(mass @ inside) >= confidence - 1e-9
    # And they narrow: half of the width is not much more than a normal one.
    if people == 60 and confidence == 0.9:
        width = max(high - low for low, high in ends)
        assert width < 2 * 1.645 * math.sqrt(channel.noise_variance(0.5, 60)) * 1.25


@pytest.mark.slow
def test_intervals_of_large_surveys_and_many_categories() -> None:
    bits = source(insecure_seed=84)
    truth = ["a"] * 500 + ["b"] * 1500
    missed = 0
    for _ in range(60):
        low, high = k_ary_response(truth, categories="abc", epsilon=1, source=bits).interval(
            confidence=0.9
        )
        missed += not (np.all(low <= [0.25, 0.75, 0]) and np.all(high >= [0.25, 0.75, 0]))
    assert missed <= 60 * 0.1 + 6.5 * math.sqrt(60 * 0.09)
    large = two_coin_response(np.arange(1_000_000) < 200_000, insecure_seed=85)
    low, high = large.interval(confidence=0.99)
    assert low < 0.2 < high
    assert high - low == pytest.approx(2 * 2.5758 * math.sqrt(0.75e-6), rel=0.01)


def test_an_insecure_seed_repeats_and_is_recorded() -> None:
    answers = np.arange(200) % 2 == 0
    for call in (
        lambda seed: two_coin_response(answers, insecure_seed=seed),
        lambda seed: binary_response(answers, epsilon=1, insecure_seed=seed),
        lambda seed: k_ary_response(
            answers.tolist(), categories=[True, False], epsilon=1, insecure_seed=seed
        ),
    ):
        assert np.array_equal(call(5).value, call(5).value)
        assert not np.array_equal(call(5).value, call(6).value)
        assert call(5).provenance["randomness"] == "INSECURE seed 5"


@pytest.mark.parametrize("answers", [[], 1, 0, None, "yes", [1, 0], [True, None], 0.5, math.nan])
def test_binary_answers_are_booleans_that_no_error_shows(answers: object) -> None:
    for call in (
        lambda: two_coin_response(answers, source=ScriptedSource()),
        lambda: binary_response(answers, epsilon=1, source=ScriptedSource()),
    ):
        with pytest.raises(InvalidValue, match=r"^answers = 'withheld'"):
            call()


@pytest.mark.parametrize("answers", [[], ["d"], "d", None, [["a"]], 1.5])
def test_answers_outside_the_categories_are_refused_unseen(answers: object) -> None:
    with pytest.raises(InvalidValue, match=r"^answers = 'withheld'"):
        k_ary_response(answers, categories="abc", epsilon=1, source=ScriptedSource())


@pytest.mark.parametrize(
    ("wrong", "argument"),
    [
        ({"categories": ["a"]}, "categories"),
        ({"categories": "aa"}, "categories"),
        ({"categories": [["a"], ["b"]]}, "categories"),
        ({"categories": 3}, "categories"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": -1}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": True}, "epsilon"),
        ({"epsilon": None}, "epsilon"),
        ({"insecure_seed": 1}, "insecure_seed"),
    ],
)
def test_wrong_parameters_are_refused_before_a_draw(
    wrong: dict[str, object], argument: str
) -> None:
    arguments = {"categories": "ab", "epsilon": 1, **wrong}
    with pytest.raises(InvalidValue, match=f"^{argument} = "):
        k_ary_response("a", source=ScriptedSource(), **arguments)
