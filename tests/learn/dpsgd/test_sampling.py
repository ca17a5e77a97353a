"""False alarms: each statistical test below fires wrongly with probability at most 1e-9."""

import math
from itertools import combinations, islice

import numpy as np
import pytest
from scipy import stats

from discreet.errors import InvalidValue
from discreet.learn.dpsgd import Phase, Plan
from discreet.learn.dpsgd._batches import (
    PoissonSampler,
    draws,
    first_step_after,
    subset,
)
from discreet.randomness import source

ALARM = 1e-9


def plan(**changes):
    base = {
        "examples": 40,
        "expected_batch_size": 8,
        "steps": 12,
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "delta": 1e-5,
    }
    return Plan(**{**base, **changes})


def seeded(number):
    return source(insecure_seed=number)


def fits(observed, probabilities):
    """Whether counts fit the probabilities, by a chi-square test over cells of enough mass."""
    observed, expected = np.asarray(observed, float), np.asarray(probabilities) * np.sum(observed)
    rich = expected >= 10
    cells = [*observed[rich], observed[~rich].sum()]
    wanted = [*expected[rich], expected[~rich].sum()]
    if wanted[-1] < 1:
        cells, wanted = cells[:-1], wanted[:-1]
        cells[-1] += observed[~rich].sum()
    wanted = np.asarray(wanted) * np.sum(cells) / np.sum(wanted)
    return stats.chisquare(cells, wanted).pvalue > ALARM


@pytest.mark.parametrize(
    ("population", "rate"), [(60, 0.05), (2_000, 0.01), (10, 0.7), (60_000, 256 / 60_000)]
)
def test_counts_are_binomial(population, rate):
    sampler = PoissonSampler(population=population, rate=rate, source=seeded(3))
    counts = np.bincount([sampler.count() for _ in range(4_000)], minlength=population + 1)
    assert fits(counts, stats.binom.pmf(np.arange(population + 1), population, rate))
    wrong = stats.binom.pmf(np.arange(population + 1), population, rate * 1.25)
    assert not fits(counts, wrong)


def test_a_rate_of_one_takes_everything():
    sampler = PoissonSampler(population=7, rate=1.0)
    assert sampler.draw().tolist() == list(range(7))
    assert PoissonSampler(population=0, rate=0.5).draw().tolist() == []


def test_poisson_draws_are_independent_coins():
    """On four records all sixteen outcomes have the probabilities of independent coins."""
    sampler = PoissonSampler(population=4, rate=0.3, source=seeded(8))
    counts = np.zeros(16)
    for _ in range(6_000):
        counts[sum(1 << int(i) for i in sampler.draw())] += 1
    exact = [0.3 ** m.bit_count() * 0.7 ** (4 - m.bit_count()) for m in range(16)]
    assert fits(counts, exact)
    assert not fits(counts, np.full(16, 1 / 16))


def test_the_system_source_serves_too():
    sampler = PoissonSampler(population=1_000, rate=0.5)
    first, second = sampler.draw(), sampler.draw()
    assert abs(len(first) - 500) < 110  # more than 6.9 deviations
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5])
def test_subsets_are_uniform(size):
    outcomes = {held: at for at, held in enumerate(combinations(range(5), size))}
    counts = np.zeros(len(outcomes))
    random = seeded(size)
    for _ in range(3_000):
        held = subset(size, population=5, source=random)
        assert np.all(np.diff(held) > 0)
        counts[outcomes[tuple(held.tolist())]] += 1
    assert len(outcomes) == 1 or fits(counts, np.full(len(outcomes), 1 / len(outcomes)))


@pytest.mark.parametrize(("size", "population"), [(4_096, 10_000), (9_000, 10_000), (5_000, 5_000)])
def test_large_subsets_have_the_right_size(size, population):
    held = subset(size, population=population, source=seeded(1))
    assert len(held) == len(set(held.tolist())) == size
    assert held.min() >= 0
    assert held.max() < population
    halves = int((held < population // 2).sum())
    spread = math.sqrt(max(1.0, size * (population - size) / population / 4))
    assert abs(halves - size / 2) < 7 * spread


def test_a_seed_fixes_the_draws_and_steps_differ():
    one = [d.tolist() for d in draws(plan(), population=40, source=seeded(1))]
    two = [d.tolist() for d in draws(plan(), population=40, source=seeded(1))]
    other = [d.tolist() for d in draws(plan(), population=40, source=seeded(2))]
    assert one == two
    assert one != other
    assert len({tuple(d) for d in one}) > 6


def test_rate_is_the_plans_when_the_length_differs():
    """Under add_remove n is private: 400 records are sampled at the planned 8 of 40."""
    sizes = [len(d) for d in draws(plan(steps=600), population=400, source=seeded(4))]
    assert abs(np.mean(sizes) - 80) < 7 * math.sqrt(400 * 0.2 * 0.8 / 600)


def test_a_public_length_must_agree():
    for made in (plan(public_examples=True), plan(sampler="without_replacement")):
        with pytest.raises(InvalidValue, match="public number of examples 40"):
            draws(made, population=41)


def test_fixed_size_batches_have_that_size():
    made = plan(sampler="without_replacement")
    batches = list(draws(made, population=40, source=seeded(2)))
    assert [len(batch) for batch in batches] == [8] * 12
    assert len({tuple(batch.tolist()) for batch in batches}) == 12


def test_full_batches_hold_everything():
    made = plan(sampler="full", expected_batch_size=None)
    assert all(d.tolist() == list(range(33)) for d in draws(made, population=33))


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_every_record_takes_part_once_in_a_shuffled_epoch(relation):
    made = plan(sampler="shuffled", relation=relation, expected_batch_size=7, steps=18)
    assert made.batches_per_epoch(made.phases[0]) == 6
    batches = list(draws(made, population=40, source=seeded(6)))
    for epoch in range(3):
        held = np.concatenate(batches[6 * epoch : 6 * epoch + 6])
        assert sorted(held.tolist()) == list(range(40))
    sizes = {len(batch) for batch in batches}
    assert sizes == {7, 5} if relation == "replace" else len(sizes) > 2


def test_one_more_record_changes_one_batch_of_an_epoch_under_add_remove():
    """With equal bits, the neighbour's epoch differs in the batch of the new record only."""
    made = plan(sampler="shuffled", expected_batch_size=10, steps=4)
    fewer = list(draws(made, population=40, source=seeded(9)))
    more = list(draws(made, population=41, source=seeded(9)))
    changed = [a.tolist() != b.tolist() for a, b in zip(fewer, more, strict=True)]
    assert sum(changed) == 1
    at = changed.index(True)
    assert set(more[at].tolist()) - set(fewer[at].tolist()) == {40}


def test_phases_follow_one_another():
    made = plan(
        expected_batch_size=None,
        steps=None,
        sampler="without_replacement",
        phases=[Phase(2, 3), Phase(3, 9)],
    )
    assert [len(d) for d in draws(made, population=40)] == [3, 3, 9, 9, 9]
    assert [len(d) for d in draws(made, population=40, start=1)] == [3, 9, 9, 9]
    assert [len(d) for d in draws(made, population=40, start=4)] == [9]
    assert list(draws(made, population=40, start=5)) == []


def test_a_broken_shuffled_epoch_is_not_finished():
    made = plan(sampler="shuffled", expected_batch_size=10, steps=10)
    assert [first_step_after(made, s) for s in range(11)] == [0, 4, 4, 4, 4, 8, 8, 8, 8, 10, 10]
    assert first_step_after(plan(), 5) == 5
    with pytest.raises(InvalidValue, match="epoch"):
        draws(made, population=40, start=1)
    phased = plan(
        sampler="shuffled",
        expected_batch_size=None,
        steps=None,
        phases=[Phase(3, 10), Phase(8, 20)],
    )
    assert [first_step_after(phased, s) for s in range(12)] == [
        0,
        3,
        3,
        3,
        5,
        5,
        7,
        7,
        9,
        9,
        11,
        11,
    ]


def test_sampling_a_million_records_costs_the_batch_not_the_data_set(monkeypatch):
    asked = []
    real = type(seeded(1)).read

    def counting(self, count):
        asked.append(count)
        return real(self, count)

    monkeypatch.setattr(type(seeded(1)), "read", counting)
    made = plan(examples=10**6, expected_batch_size=1_000, steps=50)
    sizes = [len(d) for d in islice(draws(made, population=10**6, source=seeded(1)), 20)]
    assert sum(asked) < 20 * sum(sizes)


def test_bad_arguments_are_named():
    with pytest.raises(InvalidValue, match="population"):
        draws(plan(), population=-1)
    with pytest.raises(InvalidValue, match="start"):
        draws(plan(), population=40, start=13)
    with pytest.raises(InvalidValue, match="rate"):
        PoissonSampler(population=3, rate=0.0)
    with pytest.raises(InvalidValue, match="size"):
        subset(4, population=3)


def test_a_capped_batch_is_never_larger_and_otherwise_a_poisson_sample():
    made = plan(examples=100, expected_batch_size=10, steps=2_000, at_most=12, public_examples=True)
    sizes = [len(batch) for batch in draws(made, population=100, source=seeded(31))]
    assert max(sizes) == 12
    smaller = sum(size < 12 for size in sizes)
    assert stats.binomtest(smaller, len(sizes), stats.binom.cdf(11, 100, 0.1)).pvalue > ALARM
