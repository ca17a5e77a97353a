"""Private categories: the exact distributions of neighbours, and an auditor."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from discreet.audit import audit_mechanism
from discreet.data._schema_learning import StableCategories, TextCounts, category_text
from discreet.privacy import ApproxDP, Relation
from discreet.randomness import source
from mechanisms.exact_pairs import delta_of, shifted_laplace

REACH = 400
EPSILON, DELTA = Fraction(1, 2), Fraction(1, 1000)


def outcomes(count, *, threshold, scale):
    """P(not released), then P(noisy count = v) for v from the threshold up."""
    if count == 0:
        return np.array([1.0, *[0.0] * (REACH + 1 - threshold)])
    noisy = shifted_laplace(scale, count, REACH)
    released = noisy[REACH + threshold :]
    return np.array([1.0 - released.sum(), *released])


def worst_delta(epsilon, *, threshold, scale):
    """The delta of one text at this epsilon over all neighbouring counts that matter."""
    pairs = [(count, count + 1) for count in range(3 * threshold)]
    return max(
        delta_of(
            outcomes(first, threshold=threshold, scale=scale),
            outcomes(second, threshold=threshold, scale=scale),
            epsilon,
        )
        for first, second in pairs
    )


def test_the_claim_is_the_exact_delta_and_mutants_break_it():
    plan = StableCategories.plan(epsilon=EPSILON, delta=DELTA, relation=Relation.ADD_REMOVE)
    scale, claimed = float(1 / EPSILON), float(plan.test.delta)
    assert claimed <= DELTA
    exact = worst_delta(0.5, threshold=plan.threshold, scale=scale)
    assert exact <= claimed * (1 + 1e-9)
    assert exact >= claimed * (1 - 1e-6)
    # A threshold one lower, noise of half the scale, and a threshold forgotten altogether.
    assert worst_delta(0.5, threshold=plan.threshold - 1, scale=scale) > claimed * 1.5
    assert worst_delta(0.5, threshold=plan.threshold, scale=scale / 2) > claimed * 1.5
    assert worst_delta(0.5, threshold=1, scale=scale) > 0.5


def test_under_replace_two_texts_change():
    plan = StableCategories.plan(epsilon=EPSILON, delta=DELTA, relation=Relation.REPLACE)
    assert plan.loss == 2 * ApproxDP(Fraction(1, 4), plan.test.delta, Relation.REPLACE)
    assert plan.loss.epsilon(delta=float(DELTA)) <= 0.5 * (1 + 1e-9)
    # Exactly: a record moves from one text, which loses it, to another, which gains it.
    threshold, scale = plan.threshold, 4.0

    def pair(lost, gained):
        first = np.outer(
            outcomes(lost, threshold=threshold, scale=scale),
            outcomes(gained, threshold=threshold, scale=scale),
        )
        return first.ravel()

    for lost, gained in [(1, 0), (1, 5), (threshold, threshold), (threshold + 9, 0)]:
        found = delta_of(pair(lost, gained), pair(lost - 1, gained + 1), 0.5)
        assert found <= float(2 * plan.test.delta) * (1 + 1e-9)


def test_noise_and_threshold_are_those_of_the_plan():
    # 4,000 draws with a fixed seed: chi-square at 1e-9 accepts the scale and rejects its half.
    plan = StableCategories.plan(epsilon=EPSILON, delta=DELTA, relation=Relation.ADD_REMOVE)
    bits = source(insecure_seed=3)
    count = plan.threshold + 2
    seen = [plan.choose({"x": count}, bits).value.get("x") for _ in range(4000)]
    assert all(value is None or value >= plan.threshold for value in seen)
    edges = range(plan.threshold, plan.threshold + 8)
    counted = [seen.count(None), *(seen.count(edge) for edge in edges)]
    counted.append(len(seen) - sum(counted))

    def p_value(scale):
        law = outcomes(count, threshold=plan.threshold, scale=scale)[:9]
        law = np.append(law, 1 - law.sum())
        return stats.chisquare(counted, 4000 * law).pvalue

    assert p_value(2.0) > 1e-9
    assert p_value(1.0) < 1e-9


def test_the_auditor_finds_nothing_but_would():
    plan = StableCategories.plan(
        epsilon=Fraction(1), delta=Fraction(1, 100), relation=Relation.ADD_REMOVE
    )
    bits = source()
    ordinary, unique = {"a": 8}, {"a": 8, "rare": 1}

    def right(counts):
        return ",".join(f"{k}={v}" for k, v in plan.choose(counts, bits).value.items())

    def without_threshold(counts):
        return ",".join(sorted(counts))

    options = {"loss": plan.loss, "delta": 0.01, "false_alarm_rate": 1e-9}
    for first, second in ((ordinary, unique), (ordinary, {"a": 9})):
        assert not audit_mechanism(right, first, second, samples=1500, **options).violated
    assert audit_mechanism(without_threshold, ordinary, unique, samples=400, **options).violated


def test_texts_that_may_be_categories():
    assert category_text(b"M\xc3\xa4nnlich") == "Männlich"
    assert category_text(b"12.000") == "12"
    assert category_text(b"x" * 100) == "x" * 100
    for text in (b"", b"\xff", b"\xed\xa0\x80", b"x" * 101):
        assert category_text(text) is None


def test_counting_over_batches():
    counts = TextCounts()
    counts.add(np.array([0, 1, 1, 2]), [b"a", b"3.0", b"\xff"])
    counts.add(np.array([0, 0]), [b"3", b"never"])
    assert counts.counts == {"a": 1, "3": 4}


def test_only_what_occurs_can_come_out():
    plan = StableCategories.plan(epsilon=EPSILON, delta=DELTA, relation=Relation.ADD_REMOVE)
    released = plan.choose({"a": 10_000, "b": 20_000, "none": 0}, source())
    assert list(released.value) == ["b", "a"]  # largest first; other orders: below 1e-1000
    assert released.loss == plan.loss
    assert released.provenance["threshold"] == plan.threshold
    assert plan.choose({}, source()).value == {}
    assert math.isclose(float(plan.test.delta), math.exp(-0.5 * plan.test.threshold) /
                        (1 + math.exp(-0.5)), rel_tol=1e-9)  # fmt: skip


@pytest.mark.parametrize("delta", [0, 1, -1])
def test_wrong_deltas(delta):
    with pytest.raises(ValueError, match="delta"):
        StableCategories.plan(epsilon=EPSILON, delta=Fraction(delta), relation=Relation.ADD_REMOVE)
