"""S19: exact probabilities of every small database, the loss of all neighbours, the bound."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest
from scipy import stats

from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms import (
    answerable_queries,
    candidate_count,
    evaluate_without_privacy,
    multiplicative_weights,
    multiplicative_weights_loss,
    small_database,
)
from discreet.mechanisms._small_database import (
    SmallDatabase,
    _candidate,
    _candidates,
    error_bound,
    small_database_size,
)
from discreet.privacy import DiscreteLaplace, Exponential
from discreet.randomness import source
from randomness.scripted_source import ScriptedSource

REJECT = 1e-9
QUERIES = np.array([[1, 0, 0], [1, 1, 0]])


def candidates(domain: int, size: int) -> list[tuple[int, ...]]:
    return [
        tuple(records.count(value) for value in range(domain))
        for records in combinations_with_replacement(range(domain), size)
    ]


def probabilities(
    histogram: tuple[int, ...], size: int, rate: float, total: float, *, own_size: bool = False
) -> dict[tuple[int, ...], float]:
    """exp(-rate max_k |N h_k - c_k|), normalised; obvious and slow."""
    counts = QUERIES @ np.array(histogram)
    scale = 1.0
    if own_size:  # a mistake: fractions of a private number of records
        scale, total = 10 / max(1, sum(histogram)), max(1, sum(histogram))
    weights = {}
    for candidate in candidates(QUERIES.shape[1], size):
        error = np.abs(total * (QUERIES @ np.array(candidate)) / size - counts).max()
        weights[candidate] = math.exp(-rate * scale * error)
    norm = math.fsum(weights.values())
    return {key: weight / norm for key, weight in weights.items()}


def histograms(domain: int, records: int) -> list[tuple[int, ...]]:
    return candidates(domain, records)


def loss_range(p: dict[tuple[int, ...], float], q: dict[tuple[int, ...], float]) -> float:
    """How far apart the largest and the smallest privacy loss are; epsilon bounds it."""
    ratios = [math.log(p[key] / q[key]) for key in p]
    return max(ratios) - min(ratios)


def worst_range(epsilon_rate: float, relation: str, **how: bool) -> float:
    """The largest bounded range over all neighbours of small data sets."""
    worst = 0.0
    for records in (1, 2, 4, 6):
        others = histograms(3, records if relation == "replace" else records + 1)
        for first in histograms(3, records):
            for second in others:
                moved = np.abs(np.array(first) - np.array(second)).sum()
                if moved != (2 if relation == "replace" else 1):
                    continue
                total = float(records if relation == "replace" else 5)
                p, q = (probabilities(h, 3, epsilon_rate, total, **how) for h in (first, second))
                worst = max(worst, loss_range(p, q))
    return worst


@pytest.mark.parametrize("relation", ["replace", "add_remove"])
def test_all_neighbours_stay_within_epsilon(relation: str) -> None:
    epsilon = 1.5
    worst = worst_range(epsilon / 2, relation)
    assert 0.9 * epsilon < worst <= epsilon + 1e-9
    assert worst_range(epsilon, relation) > 1.5 * epsilon  # planted: the factor 2 forgotten


def test_scores_relative_to_a_private_number_are_refuted() -> None:
    assert worst_range(0.75, "add_remove", own_size=True) > 1.6


@pytest.mark.slow
@pytest.mark.parametrize(("relation", "public"), [("replace", None), ("add_remove", 9)])
def test_every_database_has_its_exact_probability(relation: str, public: int | None) -> None:
    histogram, size, epsilon, draws = (5, 2, 1), 3, 1.5, 6000
    model = probabilities(histogram, size, epsilon / 2, public or 8)
    wrong = probabilities(histogram, size, epsilon, public or 8)
    bits = source(insecure_seed=501)
    seen = Counter(
        small_database(
            histogram, QUERIES, size=size, epsilon=epsilon, relation=relation,
            public_size=public, source=bits,
        ).value.histogram
        for _ in range(draws)
    )  # fmt: skip
    assert set(seen) <= set(model)

    def p_value(of: dict[tuple[int, ...], float]) -> float:
        expected = np.array([of[key] * draws for key in of])
        counts = np.array([seen[key] for key in of])
        return float(stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), len(of) - 1))

    assert min(model.values()) * draws > 5
    assert p_value(model) > REJECT
    assert p_value(wrong) < REJECT


GRADED = np.array([[3, 1, 0], [0, 2, 3]])  # thirds


def graded_range(*, rate: float, unit: float) -> float:
    """The bounded range over all neighbours, where a query's numbers are thirds."""
    worst = 0.0
    for first in histograms(3, 3):
        for second in histograms(3, 3):
            if np.abs(np.array(first) - np.array(second)).sum() == 2:
                found = []
                for histogram in (first, second):
                    true = GRADED @ np.array(histogram) / unit
                    weights = {
                        c: math.exp(
                            -rate * np.abs(3 * GRADED @ np.array(c) / 2 / unit - true).max()
                        )
                        for c in candidates(3, 2)
                    }
                    norm = math.fsum(weights.values())
                    found.append({key: value / norm for key, value in weights.items()})
                worst = max(worst, loss_range(*found))
    return worst


def test_queries_between_0_and_1_have_sensitivity_1() -> None:
    """S19: all neighbours by enumeration; integers taken for counts are refuted."""
    assert 0.8 < graded_range(rate=0.5, unit=3) <= 1 + 1e-9
    assert graded_range(rate=0.5, unit=1) > 2  # planted: the denominator forgotten


def test_graded_queries_are_released_with_their_exact_probabilities() -> None:
    histogram, draws = (3, 0, 1), 2500
    bits = source(insecure_seed=511)
    seen = Counter(
        small_database(
            histogram, GRADED, size=1, epsilon=2, relation="replace", denominator=3, source=bits
        ).value.histogram
        for _ in range(draws)
    )

    def p_value(unit: float) -> float:
        true = GRADED @ np.array(histogram) / unit
        keys = candidates(3, 1)
        errors = [np.abs(4 * GRADED @ np.array(key) / unit - true).max() for key in keys]
        expected = np.exp(-np.array(errors))
        expected *= draws / expected.sum()
        return float(stats.chisquare([seen[key] for key in keys], expected).pvalue)

    assert p_value(3) > REJECT
    assert p_value(1) < REJECT


def test_weights_measure_graded_queries_with_the_noise_that_is_charged() -> None:
    facts = {"rounds": 1, "epsilon": 2, "relation": "replace", "denominator": 3}
    loss = multiplicative_weights_loss(**facts)
    assert loss == Exponential(1, "replace") + DiscreteLaplace(3, 3, "replace")
    assert loss.epsilon(delta=0) == 2
    bits = source(insecure_seed=512)
    noises = []
    for _ in range(1500):
        ((query, noisy),) = multiplicative_weights(
            [3, 0, 1], GRADED, source=bits, **facts
        ).value.measured
        noises.append(noisy - int((GRADED @ [3, 0, 1])[query]))
    spread = float(np.mean(np.abs(noises)))

    def mean_size(scale: float) -> float:
        ratio = math.exp(-1 / scale)
        return 2 * ratio / (1 - ratio**2)

    # Five standard errors of the mean of sizes of scale 3; noise of scale 1 is far away.
    assert abs(spread - mean_size(3)) < 5 * 3.2 / math.sqrt(1500) < mean_size(3) - mean_size(1)
    out = multiplicative_weights(
        [300, 100, 500], GRADED, rounds=6, epsilon=60, relation="replace", denominator=3,
        insecure_seed=3,
    )  # fmt: skip
    measured = evaluate_without_privacy(out, [300, 100, 500], GRADED, denominator=3)
    assert measured.error < 0.05
    assert np.all((out.value.answers(GRADED, 3) >= 0) & (out.value.answers(GRADED, 3) <= 1))


def test_graded_databases_stay_within_the_bound() -> None:
    out = small_database(
        [300, 100, 500], GRADED, size=6, epsilon=4, relation="replace", denominator=3,
        insecure_seed=4,
    )  # fmt: skip
    measured = evaluate_without_privacy(out, [300, 100, 500], GRADED, denominator=3)
    assert measured.bound is not None
    assert measured.error <= measured.bound
    with pytest.raises(InvalidValue, match="integers from 0 to 3"):
        small_database([1, 2, 3], [[4, 0, 0]], size=1, epsilon=1, relation="replace", denominator=3)
    with pytest.raises(InvalidValue, match="denominator"):
        small_database([1, 2, 3], GRADED, size=1, epsilon=1, relation="replace", denominator=0)


def test_the_number_of_queries_is_exponential_in_the_number_of_records() -> None:
    facts = {"domain": 2**20, "epsilon": 1.0}
    logs = [
        answerable_queries(records=n, error=0.1, **facts).log_queries + math.log(2)
        for n in (10**5, 2 * 10**5, 4 * 10**5)
    ]
    assert all(1.95 < more / less < 2.2 for less, more in pairwise(logs))
    # It is the bound of the mechanism, turned around: K queries fit, a few more do not.
    for error in (0.2, 0.22):
        found = answerable_queries(records=10**5, error=error, **facts)
        most = math.exp(found.log_queries)
        bounds = [
            min(
                error_bound(queries=int(most * f), size=s, records=10**5, failure=0.05, **facts)
                for s in range(found.size - 40, found.size + 40)
            )
            for f in (0.95, 1.1)
        ]
        assert bounds[0] <= error < bounds[1]
    assert answerable_queries(records=10, error=0.1, **facts).log_queries == -math.inf


def test_candidates_are_enumerated_once_each() -> None:
    for domain, size in ((1, 4), (3, 5), (6, 8)):
        rows = np.concatenate(list(_candidates(domain, size)))
        assert rows.sum(axis=1).tolist() == [size] * len(rows)
        listed = [tuple(row) for row in rows.tolist()]
        assert len(set(listed)) == len(listed) == candidate_count(domain=domain, size=size)
        for index in (0, len(listed) // 2, len(listed) - 1):
            assert _candidate(index, domain, size) == listed[index]
    assert candidate_count(domain=6, size=10) > 3000
    many = np.concatenate(list(_candidates(6, 12)))  # more than one part
    assert len(many) == candidate_count(domain=6, size=12) == 6188


def test_a_database_within_alpha_exists() -> None:
    # The fact behind the size of S19, tried on random data over a small domain.
    generator = np.random.default_rng(7)
    for alpha in (0.45, 0.6):
        for _ in range(20):
            queries = generator.integers(0, 2, (4, 4))
            data = generator.dirichlet([0.5] * 4)
            size = small_database_size(queries=4, alpha=alpha)
            rows = np.concatenate(list(_candidates(4, size)))
            errors = np.abs(rows @ queries.T / size - queries @ data).max(axis=1)
            assert errors.min() <= alpha
            assert errors.min() <= math.sqrt(math.log(8) / (2 * size))


def test_the_measured_error_stands_beside_the_bound() -> None:
    histogram = [4000, 2000, 1000, 0]
    queries = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 0, 1]]
    failures = 0
    for seed in range(60):
        out = small_database(
            histogram, queries, size=8, epsilon=1, relation="replace", insecure_seed=seed
        )
        measured = evaluate_without_privacy(out, histogram, queries, failure=0.05)
        bound = error_bound(queries=3, domain=4, size=8, records=7000, epsilon=1, failure=0.05)
        assert measured.bound == pytest.approx(bound)
        failures += measured.error > bound
        low, high = out.interval(confidence=0.95)
        true = np.array(queries) @ histogram / 7000
        assert np.all((low <= true) & (true <= high)) == (measured.error <= bound)
    assert stats.binom.sf(failures - 1, 60, 0.05) > REJECT
    assert "error" not in out.provenance


def test_sizes_and_bounds_of_the_lectures() -> None:
    assert small_database_size(queries=1000, alpha=0.1) == math.ceil(math.log2(1000) / 0.01)
    assert small_database_size(queries=1, alpha=0.1) == 1
    alpha, K, X, n, beta = 0.3, 16, 4, 2000, 0.05
    size = small_database_size(queries=K, alpha=alpha)
    printed = alpha + 2 / n * (size * math.log(X) - math.log(beta))
    ours = error_bound(queries=K, domain=X, size=size, records=n, epsilon=1, failure=beta)
    assert ours < printed


def test_loss_provenance_and_missing_interval() -> None:
    out = small_database(
        [5, 5, 5], QUERIES, alpha=0.7, epsilon=0.3, relation="add_remove", public_size=12,
        insecure_seed=3,
    )  # fmt: skip
    assert out.loss == Exponential(0.3)
    assert out.provenance["size"] == small_database_size(queries=2, alpha=0.7)
    assert out.provenance["randomness"] == "INSECURE seed 3"
    with pytest.raises(NotApplicable):
        out.interval()
    assert evaluate_without_privacy(out, [5, 5, 5], QUERIES).bound is None
    assert SmallDatabase((3, 1, 0)).answers(QUERIES).tolist() == [0.75, 1.0]


GOOD = {"histogram": [3, 4, 5], "queries": QUERIES, "epsilon": 1, "relation": "replace", "size": 2}


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"relation": "x"}, "relation"),
        ({"relation": "add_remove"}, "public_size"),
        ({"public_size": 3}, "public_size"),
        ({"alpha": 0.5}, "size"),
        ({"size": None}, "size"),
        ({"size": None, "alpha": 1}, "alpha"),
        ({"size": 0}, "size"),
        ({"largest": 3}, "size"),
        ({"queries": [[1, 0, 2]]}, "queries"),
        ({"queries": [[0.5, 0, 1]]}, "queries"),
        ({"queries": [[1, 0], [1]]}, "queries"),
        ({"queries": [1, 0, 1]}, "queries"),
        ({"histogram": [3, 4]}, "histogram"),
        ({"histogram": [3, 4, -1]}, "histogram"),
        ({"histogram": [3.0, 4.0, 5.0]}, "histogram"),
        ({"histogram": [3, 4, 2**60]}, "histogram"),
        ({"insecure_seed": 3}, "insecure_seed"),
    ],
)
def test_bad_input_is_named_before_anything_is_drawn(
    change: dict[str, object], argument: str
) -> None:
    nothing = ScriptedSource()
    with pytest.raises(InvalidValue) as caught:
        small_database(**{**GOOD, "source": nothing, **change})
    assert caught.value.argument == argument
    assert nothing.used == 0
    if argument == "histogram":
        assert caught.value.value == "withheld"


# --- multiplicative weights -------------------------------------------------------------------


def test_the_loss_of_multiplicative_weights_is_declared() -> None:
    loss = multiplicative_weights_loss(rounds=4, epsilon=2, relation="replace")
    assert loss == 4 * Exponential(0.25, "replace") + 4 * DiscreteLaplace(4, 1, "replace")
    assert loss.epsilon(delta=0) == 2
    out = multiplicative_weights(
        [9, 3, 1], QUERIES, rounds=4, epsilon=2, relation="replace", insecure_seed=1
    )
    assert out.loss == loss
    assert out.provenance["randomness"] == "INSECURE seed 1"
    assert len(out.value.measured) == 4


@pytest.mark.slow
def test_picks_and_measurements_have_their_exact_distribution() -> None:
    histogram, draws, step = [30, 0, 6], 4000, 0.25
    bits = source(insecure_seed=601)
    measured = [
        multiplicative_weights(
            histogram, QUERIES, rounds=1, epsilon=0.5, relation="replace", source=bits
        ).value.measured[0]
        for _ in range(draws)
    ]
    true = QUERIES @ histogram
    errors = np.abs(true - np.rint(QUERIES @ np.full(3, 1 / 3) * 36 * 1024) / 1024)
    picked = sum(query for query, _ in measured)

    def p_value(rate: float) -> float:
        weights = np.exp(rate * errors)
        return stats.binomtest(picked, draws, float(weights[1] / weights.sum())).pvalue

    assert p_value(step / 2) > REJECT
    assert p_value(step) < REJECT
    noise = np.array([noisy - true[query] for query, noisy in measured])
    ratio = math.exp(-step)
    cells = [(1 - ratio) / (1 + ratio) * ratio ** abs(k) for k in range(-8, 9)]
    counts = [int(np.sum(noise == k)) for k in range(-8, 9)]
    cells.append(1 - sum(cells))
    counts.append(draws - sum(counts))
    assert stats.chisquare(counts, np.array(cells) * draws).pvalue > REJECT


def test_generous_budgets_answer_well_and_small_ones_still_answer() -> None:
    generator = np.random.default_rng(8)
    histogram = generator.multinomial(20_000, generator.dirichlet([0.3] * 32))
    queries = generator.integers(0, 2, (40, 32))
    true = queries @ histogram / 20_000
    uniform = np.abs(queries.mean(axis=1) - true).max()
    good = multiplicative_weights(
        histogram, queries, rounds=25, epsilon=50, relation="replace", insecure_seed=2
    )
    assert np.abs(good.value.answers(queries) - true).max() < 0.5 * uniform
    assert math.fsum(good.value.weights) == pytest.approx(1)
    poor = multiplicative_weights(
        histogram, queries, rounds=3, epsilon=0.001, relation="add_remove", public_size=20_000,
        insecure_seed=2,
    )  # fmt: skip
    assert np.all(np.isfinite(poor.value.weights))


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"rounds": 0}, "rounds"),
        ({"epsilon": -1}, "epsilon"),
        ({"replays": 0}, "replays"),
        ({"histogram": [1]}, "histogram"),
        ({"queries": [[2, 0, 0]]}, "queries"),
        ({"relation": "add_remove"}, "public_size"),
    ],
)
def test_bad_rounds_are_named_before_anything_is_drawn(
    change: dict[str, object], argument: str
) -> None:
    nothing = ScriptedSource()
    good = {"histogram": [3, 4, 5], "queries": QUERIES, "rounds": 2, "epsilon": 1}
    with pytest.raises(InvalidValue) as caught:
        multiplicative_weights(**{**good, "relation": "replace", "source": nothing, **change})
    assert caught.value.argument == argument
    assert nothing.used == 0
