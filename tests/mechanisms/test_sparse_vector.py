"""S15: exact output probabilities, halting, budgets; planted mistakes must be refuted."""

from __future__ import annotations

import copy
import math
import os
import pickle
import threading
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discreet.errors import InvalidValue, NotApplicable, RelationMismatch
from discreet.mechanisms import AboveThreshold, MechanismHalted, SparseVector, step_budget
from discreet.privacy import PureDP
from discreet.randomness import source
from mechanisms.exact_runs import largest_log_ratio, patterns, round_probability, run_probability
from randomness.scripted_source import ScriptedSource

REJECT = 1e-9


def scales(run: AboveThreshold | SparseVector) -> tuple[float, float]:
    return float(run.threshold_scale), float(run.query_scale)


def first_yes_pair(
    first: list[int], second: list[int], threshold: float, query: float
) -> tuple[list[float], list[float]]:
    """The distributions of AboveThreshold's output (index of the yes, or none) on two inputs."""
    runs = patterns(len(first), 1)
    return tuple(
        [run_probability([-v for v in values[: len(p)]], p, threshold, query) for p in runs]
        for values in (first, second)
    )


def worst_epsilon(threshold: float, query: float, noes: int, *, monotone: bool = False) -> float:
    """The largest loss over neighbours that differ by one in every query, noes then one yes."""
    worst = 0.0
    for level in range(-12, 13, 6):
        for final in range(-12, 13, 6):
            for change in ((1, -1), (-1, 1), (1, 1), (-1, -1), (1, 0), (0, 1)):
                if monotone and change[0] * change[1] < 0:
                    continue
                before = [level] * noes + [final]
                after = [level + change[0]] * noes + [final + change[1]]
                p, q = (
                    round_probability([-v for v in x], [False] * noes + [True], threshold, query)
                    for x in (before, after)
                )
                worst = max(worst, abs(math.log(p / q)))
    return worst


# --- the loss, exactly --------------------------------------------------------------------


def test_probabilities_of_all_runs_sum_to_one() -> None:
    p, q = first_yes_pair([0, 3, -2], [1, 2, -1], 2.0, 4.0)
    assert sum(p) == pytest.approx(1, abs=1e-12)
    assert sum(q) == pytest.approx(1, abs=1e-12)
    runs = patterns(4, 2)
    total = sum(run_probability([1, -1, 2, 0][: len(r)], r, 2.0, 4.0) for r in runs)
    assert total == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("epsilon", ["1/2", 1, 2])
def test_two_queries_stay_within_the_claimed_loss(epsilon: object) -> None:
    run = AboveThreshold(threshold=0, sensitivity=1, epsilon=epsilon, granularity=1)
    claimed = float(Fraction(epsilon))
    assert run.loss.epsilon(delta=0) == claimed
    assert scales(run) == (2 / claimed, 4 / claimed)
    for first in ([0, 0], [3, -3], [-6, 6], [-9, 1]):
        for a in (-1, 0, 1):
            for b in (-1, 0, 1):
                second = [first[0] + a, first[1] + b]
                p, q = first_yes_pair(first, second, *scales(run))
                # delta at the claimed epsilon is zero up to the rounding of the sums
                excess = sum(max(0, x - math.exp(claimed) * y) for x, y in zip(p, q, strict=True))
                assert excess <= 1e-13
                assert largest_log_ratio(p, q) <= claimed + 1e-9


def test_many_noes_come_close_to_the_claim_and_not_beyond() -> None:
    run = AboveThreshold(threshold=0, sensitivity=1, epsilon=1, granularity=1)
    worst = worst_epsilon(*scales(run), noes=60)
    assert 0.8 < worst <= 1 + 1e-9


@pytest.mark.slow
def test_monotone_noise_suffices_for_monotone_queries_only() -> None:
    run = AboveThreshold(threshold=0, sensitivity=1, epsilon=1, granularity=1, monotone=True)
    assert scales(run) == (2, 2)
    assert worst_epsilon(*scales(run), noes=60, monotone=True) <= 1 + 1e-9
    # The planted mistake: the same noise for queries that move in both directions.
    assert worst_epsilon(*scales(run), noes=60) > 1.2


def log_ratio(pattern: list[bool], run: AboveThreshold | SparseVector, **how: bool) -> float:
    """The loss when all noes move up by one and all yeses down by one, from -3."""
    p, q = (
        run_probability(
            [3 + (shift if answer else -shift) for answer in pattern], pattern, *scales(run), **how
        )
        for shift in (0, 1)
    )
    return abs(math.log(p / q))


@pytest.mark.parametrize("refreshed", [True, False])
def test_going_on_after_the_first_yes_is_refuted(refreshed: bool) -> None:
    run = AboveThreshold(threshold=0, sensitivity=1, epsilon=1, granularity=1)
    assert 0.999 < log_ratio([False] * 60 + [True], run, refreshed=refreshed) <= 1 + 1e-9
    assert log_ratio([False] * 60 + [True] * 2, run, refreshed=refreshed) > 1.2


def test_a_whole_sparse_vector_stays_within_its_loss_and_one_more_answer_does_not() -> None:
    run = SparseVector(threshold=0, answers=2, sensitivity=1, epsilon=2, granularity=1)
    assert run.loss == 2 * PureDP(1)
    one_round = [False] * 60 + [True]
    assert 1.999 < log_ratio(one_round * 2, run) <= 2 + 1e-9
    assert log_ratio(one_round * 3, run) > 2.9  # as if Q + 1 were allowed


# --- the object behaves as the model ---------------------------------------------------------


def observed(make: object, values: list[float], times: int) -> Counter[tuple[bool, ...]]:
    seen: Counter[tuple[bool, ...]] = Counter()
    for number in range(times):
        run = make(number)
        answers = []
        for value in values:
            answers.append(run.ask(value).value)
            if run.halted:
                break
        seen[tuple(answers)] += 1
    return seen


def chi_square(seen: Counter[tuple[bool, ...]], expected: dict[tuple[bool, ...], float]) -> float:
    total = sum(seen.values())
    assert set(seen) <= set(expected)
    order = sorted(expected)
    counts = np.array([seen[key] for key in order], dtype=float)
    model = np.array([expected[key] for key in order]) * total
    assert model.min() > 5
    return float(stats.chi2.sf(((counts - model) ** 2 / model).sum(), len(order) - 1))


def model(
    values: list[int], answers: int, threshold: float, query: float, **how: bool
) -> dict[tuple[bool, ...], float]:
    gaps = [-value for value in values]
    runs = patterns(len(values), answers)
    return {r: run_probability(gaps[: len(r)], r, threshold, query, **how) for r in runs}


def test_above_threshold_has_the_exact_distribution() -> None:
    bits = source(insecure_seed=101)
    values = [-2, 1, 0]
    seen = observed(
        lambda _: AboveThreshold(threshold=0, sensitivity=1, epsilon=1, granularity=1, source=bits),
        values,
        6000,
    )
    assert chi_square(seen, model(values, 1, 2, 4)) > REJECT
    assert chi_square(seen, model(values, 1, 2, 1)) < REJECT  # a wrong scale is noticed


@pytest.mark.slow
def test_sparse_vector_has_the_exact_distribution_with_fresh_thresholds() -> None:
    bits = source(insecure_seed=102)
    values = [1, 1, 0, -1]
    seen = observed(
        lambda _: SparseVector(
            threshold=0,
            answers=2,
            sensitivity=1,
            scale=6,
            monotone=True,
            granularity=1,
            source=bits,
        ),
        values,
        8000,
    )
    assert chi_square(seen, model(values, 2, 6, 6)) > REJECT
    # A threshold that is not refreshed gives another distribution.
    assert chi_square(seen, model(values, 2, 6, 6, refreshed=False)) < REJECT


@pytest.mark.slow
def test_a_fine_grid_keeps_loss_and_distribution() -> None:
    bits = source(insecure_seed=103)
    seen = observed(
        lambda _: AboveThreshold(threshold=0.5, sensitivity=1, epsilon=1, source=bits),
        [-1.5, 1.5],
        4000,
    )
    # Continuous limit on a grid of 1/16, thresholds and values in sixteenths.
    runs = {r: run_probability([32, -16][: len(r)], r, 32, 64) for r in patterns(2, 1)}
    assert chi_square(seen, runs) > REJECT
    run = AboveThreshold(threshold=0.5, sensitivity=1, epsilon=1)
    assert run.loss == PureDP(1)
    assert run.granularity < Fraction(1, 2**30)


def test_the_grid_is_paid_for_where_the_sensitivity_is_no_multiple_of_it() -> None:
    by_scale = AboveThreshold(threshold=0, sensitivity="1/3", scale=4, granularity="1/4")
    assert by_scale.loss == PureDP(Fraction(2 * 2, 4 * 4))  # two steps of 1/4 over scale 4
    by_epsilon = AboveThreshold(threshold=0, sensitivity="1/3", epsilon=1, granularity="1/4")
    assert by_epsilon.loss == PureDP(1)
    assert by_epsilon.threshold_scale == 4  # 2 x two steps


# --- halting ----------------------------------------------------------------------------


def test_it_halts_and_cannot_be_asked_again() -> None:
    run = SparseVector(threshold=0, answers=2, sensitivity=1, epsilon=1)
    assert [run.ask(v).value for v in (1e6, -1e6, 1e6)] == [True, False, True]
    assert run.halted
    assert run.remaining == 0
    assert run.asked == 3
    messages = set()
    for question in (-1e9, 1e9, math.nan, "no number"):
        with pytest.raises(MechanismHalted) as caught:
            run.ask(question)
        messages.add(str(caught.value))
    assert len(messages) == 1
    assert run.asked == 3


def test_threads_get_no_answer_beyond_the_last() -> None:
    for answers in (1, 7):
        run = SparseVector(threshold=0, answers=answers, sensitivity=1, epsilon=1)
        yes: list[bool] = []
        refused: list[int] = []
        gate = threading.Barrier(8)

        def work(
            run: SparseVector = run,
            gate: threading.Barrier = gate,
            yes: list[bool] = yes,
            refused: list[int] = refused,
        ) -> None:
            gate.wait()
            for _ in range(20):
                try:
                    yes.append(run.ask(1e9).value)
                except MechanismHalted:
                    refused.append(1)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert yes == [True] * answers
        assert len(refused) == 160 - answers


def test_copies_pickles_and_forks_are_refused() -> None:
    run = AboveThreshold(threshold=0, sensitivity=1, epsilon=1)
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(NotApplicable, match="copied or pickled"):
            act(run)
    run._pid = os.getpid() + 1  # what a forked child sees
    with pytest.raises(NotApplicable, match="fork"):
        run.ask(0)
    assert run.asked == 0


# --- budgets, charges, provenance -----------------------------------------------------------


def test_the_loss_is_charged_once_before_anything_is_drawn() -> None:
    charged = []
    run = AboveThreshold(threshold=0, sensitivity=1, epsilon=1, charge=charged.append)
    run.ask(1e9)
    assert charged == [PureDP(1)] == [run.loss]

    def refuse(loss: object) -> None:
        raise RuntimeError("no budget")

    nothing = ScriptedSource()
    with pytest.raises(RuntimeError, match="no budget"):
        AboveThreshold(threshold=0, sensitivity=1, epsilon=1, charge=refuse, source=nothing)
    assert nothing.used == 0


@given(
    st.integers(1, 3000),
    st.floats(0.05, 8),
    st.sampled_from([1e-3, 1e-6, 1e-10]),
)
def test_budgets_keep_their_promise(runs: int, epsilon: float, delta: float) -> None:
    budget = step_budget(runs=runs, epsilon=epsilon, delta=delta)
    step = float(budget.epsilon)
    if budget.composition == "basic":
        assert budget.epsilon * runs == Fraction(repr(epsilon))
    else:
        assert budget.epsilon * runs > Fraction(repr(epsilon))
        total = math.sqrt(2 * runs * math.log(1 / delta)) * step + runs * step * math.expm1(step)
        assert total <= epsilon
        lam = 2 / step
        assert lam == pytest.approx(math.sqrt(32 * runs * math.log(1 / delta)) / epsilon)
        assert lam * epsilon >= math.sqrt(32 * runs * math.log(1 / delta)) * (1 - 1e-15)


def test_accountants_confirm_the_printed_noise() -> None:
    run = SparseVector(threshold=0, answers=200, sensitivity=1, epsilon=1, delta=1e-6)
    assert run.loss.epsilon(delta=1e-6) <= 1
    assert run.ask(0).provenance["composition"] == "advanced"
    few = SparseVector(threshold=0, answers=20, sensitivity=1, epsilon=1, delta=1e-6)
    assert few.loss.epsilon(delta=0) == 1


@pytest.mark.parametrize(("answers", "epsilon"), [(1, 1), (30, 0.5), (300, 1), (300, 4)])
def test_accounted_noise_is_the_least_that_is_confirmed(answers: int, epsilon: float) -> None:
    closed = step_budget(runs=answers, epsilon=epsilon, delta=1e-6)
    best = step_budget(runs=answers, epsilon=epsilon, delta=1e-6, composition="accounted")
    assert best.epsilon >= closed.epsilon
    assert (answers * PureDP(best.epsilon)).epsilon(delta=1e-6) <= epsilon
    more = best.epsilon * Fraction(102, 100)
    assert (answers * PureDP(more)).epsilon_bounds(delta=1e-6).lower > epsilon
    if answers == 300:
        assert best.epsilon > 2 * closed.epsilon
    run = SparseVector(
        threshold=0,
        answers=answers,
        sensitivity=1,
        epsilon=epsilon,
        delta=1e-6,
        composition="accounted",
    )
    assert run.loss == answers * PureDP(best.epsilon)


def test_advanced_composition_is_refused_where_it_is_not_proved() -> None:
    with pytest.raises(InvalidValue, match="basic composition"):
        step_budget(runs=1, epsilon=60, delta=0.3, composition="advanced")
    assert step_budget(runs=1, epsilon=60, delta=0.3).composition == "basic"
    for name in ("advanced", "accounted"):
        with pytest.raises(InvalidValue, match="delta = None"):
            step_budget(runs=1, epsilon=1, composition=name)


def test_releases_share_the_loss_and_record_the_seed() -> None:
    run = AboveThreshold(threshold=0, sensitivity=1, epsilon=1, insecure_seed=9)
    first, second = run.ask(-1e6), run.ask(1e6)
    assert first.loss is second.loss is run.loss
    assert first.provenance["randomness"] == "INSECURE seed 9"
    assert first.provenance["loss"] == "shared by all answers of the run"
    assert [first.provenance["question"], second.provenance["question"]] == [1, 2]
    again = AboveThreshold(threshold=0, sensitivity=1, epsilon=1, insecure_seed=9)
    assert again._bar == run._bar


def test_intervals_cover_the_value() -> None:
    bits = source(insecure_seed=104)
    for value in (-3, 0, 5):
        misses = 0
        for _ in range(1500):
            run = AboveThreshold(threshold=0, sensitivity=1, epsilon=1, granularity=1, source=bits)
            low, high = run.ask(value).interval(confidence=0.6)
            misses += not low <= value <= high
        assert stats.binom.sf(misses - 1, 1500, 0.4) > REJECT
    run = AboveThreshold(threshold=10, sensitivity=1, epsilon=1, granularity=1)
    low, high = run.ask(1e6).interval(confidence=0.95)
    assert high == math.inf
    assert -40 < low < 10
    assert round(low) == low


# --- bad input --------------------------------------------------------------------------

GOOD = {"threshold": 0, "sensitivity": 1, "epsilon": 1}


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": None}, "epsilon"),
        ({"scale": 2}, "epsilon"),
        ({"epsilon": None, "scale": -1}, "scale"),
        ({"sensitivity": 0}, "sensitivity"),
        ({"sensitivity": math.inf}, "sensitivity"),
        ({"threshold": math.nan}, "threshold"),
        ({"granularity": 3}, "granularity"),
        ({"monotone": 1}, "monotone"),
        ({"relation": "neighbours"}, "relation"),
        ({"insecure_seed": 1}, "insecure_seed"),
        ({"answers": 0}, "answers"),
        ({"answers": 2.0}, "answers"),
        ({"delta": 1}, "delta"),
        ({"epsilon": None, "scale": 1, "delta": 0.1}, "delta"),
        ({"composition": "none"}, "composition"),
    ],
)
def test_bad_parameters_are_named_before_anything_is_drawn(
    change: dict[str, object], argument: str
) -> None:
    nothing = ScriptedSource()
    with pytest.raises(InvalidValue) as caught:
        SparseVector(**{**GOOD, "answers": 2, "source": nothing, **change})
    assert caught.value.argument == argument
    assert nothing.used == 0


def test_monotone_counts_are_refused_under_replace() -> None:
    with pytest.raises(RelationMismatch, match="replace"):
        AboveThreshold(**GOOD, monotone=True, relation="replace")


@pytest.mark.parametrize("value", [math.nan, math.inf, "3", True, [1.0], None])
def test_bad_values_are_withheld_and_cost_no_answer(value: object) -> None:
    run, twin = (AboveThreshold(**GOOD, source=source(insecure_seed=1)) for _ in range(2))
    with pytest.raises(InvalidValue, match="withheld"):
        run.ask(value)
    assert run.asked == 0
    assert run._source.read(16) == twin._source.read(16), "no bits were drawn"
    assert run.ask(1e9).value is True


def test_numpy_integers_do_not_overflow() -> None:
    run = AboveThreshold(threshold=np.int64(2**40), sensitivity=np.int64(2**30), epsilon=1)
    assert run.loss == PureDP(1)
    assert run.ask(np.int64(2**60)).value is True
