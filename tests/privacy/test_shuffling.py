"""Shuffled reports: checked values, slow twins, composition, and a published pair that is wrong."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from discreet.errors import InvalidValue, NotApplicable, RelationMismatch
from discreet.privacy import (
    ApproxDP,
    FinitePair,
    Gaussian,
    PureDP,
    RandomizedResponse,
    Resolution,
    Shuffled,
    from_json,
    to_json,
)
from discreet.privacy import _shuffling as shuffling

DELTA = 1e-6
# Epsilon at delta 1e-6 of (population, epsilon of a report): clones 2021, stronger clones, and a
# lower bound that no analysis can beat (binary response, everybody else says no).
CHECKED = {
    (1_000, 1): (0.1824, 0.14867, 0.1266),
    (1_000, 2): (0.5455, 0.39709, 0.3233),
    (1_000, 3): (1.2646, 0.82311, 0.6949),
    (1_000, 4): (3.990, 1.85291, 1.6910),
    (10_000, 0.5): (0.0204, 0.01812, 0.0162),
    (10_000, 1): (0.0530, 0.04321, 0.0357),
    (10_000, 2): (0.1551, 0.11440, 0.0870),
    (10_000, 3): (0.3207, 0.22608, 0.1692),
    (10_000, 4): (0.6009, 0.41081, 0.3146),
    (100_000, 0.5): (0.0058, 0.00515, 0.0046),
    (100_000, 1): (0.0153, 0.01243, 0.0101),
    (100_000, 2): (0.0450, 0.03319, 0.0247),
    (100_000, 3): (0.0928, 0.06563, 0.0472),
    (100_000, 4): (0.1698, 0.11815, 0.0847),
    (100_000, 6): (0.5242, 0.35703, 0.2677),
}
# With 400 blocks, so as brackets.
BRACKETS = {
    (10**6, 0.5): (0.00143, 0.00143),
    (10**6, 1): (0.00351, 0.00352),
    (10**6, 2): (0.00950, 0.00954),
    (10**6, 3): (0.01879, 0.01903),
    (10**6, 4): (0.03388, 0.03514),
    (10**7, 1): (0.00097, 0.00097),
    (10**7, 2): (0.00267, 0.00268),
    (10**7, 3): (0.00535, 0.00542),
    (10**7, 4): (0.00956, 0.00991),
}


def local(epsilon):
    return PureDP(epsilon, relation="replace")


def all_clones_delta(others, epsilon, chance, at):
    """Delta of the clones' pair, with every number of clones by itself and another library."""
    top = math.exp(epsilon)
    a = top / (top + 1.0)
    clones = np.arange(others + 1)
    weight = stats.binom.pmf(clones, others, chance)
    seen = weight > 1e-30
    clones, weight = clones[seen], weight[seen]
    place = (a * math.exp(at) - (1 - a)) / ((2 * a - 1) * (1 + math.exp(at)))
    k = np.ceil(place * (clones + 1))
    more, fewer = stats.binom.sf(k - 2, clones, 0.5), stats.binom.sf(k - 1, clones, 0.5)
    yes, no = a * more + (1 - a) * fewer, (1 - a) * more + a * fewer
    return float(weight @ np.maximum(yes - math.exp(at) * no, 0.0))


@pytest.mark.parametrize(("case", "known"), CHECKED.items())
def test_the_checked_values(case, known):
    population, epsilon = case
    clones, stronger, least = known
    bounds = local(epsilon).shuffled(population=population).epsilon_bounds(delta=DELTA)
    assert bounds.tolerance_met
    assert bounds.lower - 6e-6 <= stronger <= bounds.upper + 6e-6
    assert bounds.width <= 3e-4 * bounds.upper
    assert least < bounds.lower
    assert bounds.upper < clones


@pytest.mark.parametrize(("case", "known"), BRACKETS.items())
def test_the_checked_brackets(case, known):
    population, epsilon = case
    bounds = local(epsilon).shuffled(population=population).epsilon_bounds(delta=DELTA)
    assert known[0] - 6e-6 <= bounds.lower <= bounds.upper <= known[1] + 6e-6
    assert bounds.width <= 3e-3 * bounds.upper


@pytest.mark.parametrize("case", [(1_000, 1), (1_000, 4), (10_000, 2)])
def test_every_number_of_clones_by_itself_lies_in_the_bracket(case):
    population, epsilon = case
    top = math.exp(epsilon)
    clones, _, least = CHECKED[case]
    loss = local(epsilon).shuffled(population=population)
    for at in (0.0, 0.3 * least, least, 1.2 * least):
        exact = all_clones_delta(population - 1, epsilon, 2 / (top + 1), at)
        bounds = loss.delta_bounds(epsilon=at)
        assert bounds.lower <= exact * (1 + 1e-9)
        assert exact * (1 - 1e-9) <= bounds.upper <= exact * 1.001 + 1e-15
    # The twin also knows the older pair, and the attack that gives the lower bound.
    assert all_clones_delta(population - 1, epsilon, 1 / top, clones) == pytest.approx(
        DELTA, rel=0.03
    )
    yes = top / (top + 1)
    counts = np.arange(population + 1)
    others = stats.binom.pmf(counts, population - 1, 1 - yes)
    moved = np.append(0.0, others[:-1])
    p, q = yes * moved + (1 - yes) * others, (1 - yes) * moved + yes * others
    level = math.exp(least)
    seen = max(np.maximum(p - level * q, 0).sum(), np.maximum(q - level * p, 0).sum())
    assert seen == pytest.approx(DELTA, rel=0.03)


def exact_pair(population, odds):
    """Return the pair as exact fractions, for rational odds e^epsilon."""
    chance, a = 2 / (odds + 1), odds / (odds + 1)
    p, q = Counter(), Counter()
    for n in range(population):
        weight = math.comb(population - 1, n) * chance**n * (1 - chance) ** (population - 1 - n)
        for yes in range(n + 1):
            one = weight * math.comb(n, yes) / 2**n
            for table, more in ((p, a), (q, 1 - a)):
                table[yes + 1, n] += one * more
                table[yes, n] += one * (1 - more)
    return p, q


def exact_delta(p, q, at):
    level = Fraction(math.exp(at))
    return float(sum(max(p[x] - level * q[x], Fraction()) for x in set(p) | set(q)))


@pytest.mark.parametrize("population", [2, 3, 7, 12])
def test_small_batches_against_exact_fractions(population):
    odds = Fraction(7, 2)
    p, q = exact_pair(population, odds)
    assert sum(p.values()) == sum(q.values()) == 1
    loss = local(math.log(3.5)).shuffled(population=population)
    for at in (0.0, 0.2, 0.7, 1.2):
        bounds = loss.delta_bounds(epsilon=at)
        assert bounds.lower <= exact_delta(p, q, at) * (1 + 1e-11) + 1e-18
        assert (
            exact_delta(p, q, at) <= bounds.upper * (1 + 1e-11) <= bounds.lower * 1.000001 + 1e-12
        )
    for order in (1.5, 2.0, 9.0):
        exact = math.log(sum(float(p[x]) ** order * float(q[x]) ** (1 - order) for x in p)) / (
            order - 1
        )
        assert exact <= loss.rdp([order])[0] <= exact * (1 + 1e-6) + 1e-12


def test_composed_batches_against_the_listed_product():
    odds, at = Fraction(7, 2), 0.9
    p, q = exact_pair(5, odds)
    outcomes = list(p)
    square = Counter(), Counter()
    for pair in itertools.product(outcomes, repeat=2):
        square[0][pair] = p[pair[0]] * p[pair[1]]
        square[1][pair] = q[pair[0]] * q[pair[1]]
    exact = exact_delta(*square, at)
    bounds = (2 * local(math.log(3.5)).shuffled(population=5)).delta_bounds(epsilon=at)
    assert bounds.lower <= exact * (1 + 1e-9)
    assert exact * (1 - 1e-9) <= bounds.upper <= 1.02 * exact


@pytest.mark.slow
@pytest.mark.parametrize(("population", "epsilon"), [(1_000, 1), (100_000, 4), (10**8, 2)])
def test_cells_and_the_closed_form_agree(population, epsilon):
    from discreet.privacy import _accountants, _bracket

    loss = local(epsilon).shuffled(population=population)
    closed = loss.epsilon_bounds(delta=DELTA)
    cells = _bracket.epsilon_bounds(_accountants.make_terms(loss, 1e-10), DELTA, None)
    assert cells.lower <= closed.upper
    assert closed.lower <= cells.upper
    assert cells.tolerance_met
    many = (100 * loss).epsilon_bounds(delta=DELTA)
    assert many.tolerance_met
    # The pair is nearly that of Gaussian noise with mu = 2 tanh(epsilon / 2) / sqrt(mean clones).
    mean = 2 * (population - 1) / (math.exp(epsilon) + 1)
    mu = 10 * 2 * math.tanh(epsilon / 2) / math.sqrt(mean)
    assert many.upper == pytest.approx(Gaussian(1 / mu).epsilon(delta=DELTA), rel=0.01)


@pytest.mark.parametrize("population", [60, pytest.param(400, marks=pytest.mark.slow)])
def test_cells_have_the_whole_mass_and_convolve_like_a_fine_grid(population):
    epsilon, steps, step = 1.5, 12, 1e-4
    loss = local(epsilon).shuffled(population=population)
    pair = loss.pair(Resolution())
    assert pair.above.p.sum() == pytest.approx(1, abs=1e-9)
    assert pair.below[0].q.sum() == pytest.approx(1, abs=1e-9)
    clones = np.arange(population)
    weight = stats.binom.pmf(clones, population - 1, 2 / (math.exp(epsilon) + 1))
    odds = math.exp(-epsilon)
    size = 1 << 20
    grids = np.zeros((2, size))
    for n, one in zip(clones, weight, strict=True):
        if one < 1e-18:
            continue
        x = np.arange(n + 2)
        p = stats.binom.pmf(x - 1, n, 0.5) + odds * stats.binom.pmf(x, n, 0.5)
        value = np.log((x + odds * (n + 1 - x)) / (odds * x + n + 1 - x)) / step
        for grid, rounded in zip(grids, (np.floor(value), np.ceil(value)), strict=True):
            np.add.at(grid, rounded.astype(int) % size, one * p / (1 + odds))
    losses = np.fft.fftfreq(size, 1 / size) * step
    at = 0.4 * (steps * loss).epsilon(delta=DELTA)
    low, high = (
        np.fft.irfft(np.fft.rfft(grid) ** steps, size)[losses > at]
        @ -np.expm1(at - losses[losses > at])
        for grid in grids
    )
    bounds = (steps * loss).delta_bounds(epsilon=at)
    assert bounds.lower <= high
    assert low <= bounds.upper <= 1.02 * high


@mpmath.workdps(40)
def test_tails_of_the_binomial_are_as_accurate_as_is_counted_on():
    for clones, deviations in itertools.product((50, 3_000, 10**6), (0.0, 1.0, 4.0, 13.0)):
        k = math.ceil(clones / 2 + deviations * math.sqrt(clones) / 2)
        if k > clones:
            continue
        log_first = (
            mpmath.loggamma(clones + 1)
            - mpmath.loggamma(k + 1)
            - mpmath.loggamma(clones - k + 1)
            - clones * mpmath.log(2)
        )
        term = total = mpmath.mpf(1)
        for x in range(k, clones):
            term *= mpmath.mpf(clones - x) / (x + 1)
            total += term
            if term < total * mpmath.mpf(10) ** -20:
                break
        exact = mpmath.exp(log_first) * total
        found = float(shuffling.tail_of_binomial(np.array([float(k)]), float(clones), 0.5)[0])
        assert abs(found - exact) <= shuffling._tail_error(clones) * exact


@pytest.mark.parametrize(
    ("people", "epsilon"), [(10**9, 20.0), (10**9, 17.3), (10**8, 16.1), (5000, 1.2), (10**6, 40.0)]
)
def test_the_law_of_the_number_of_clones_is_on_the_side_that_is_wanted(people, epsilon):
    """A chance of 4e-9 has no rest among the floats: rounded, it moved tails by n times 1e-16."""
    with mpmath.workdps(40):
        odds = mpmath.exp(-mpmath.mpf(epsilon))
        chance = 2 * odds / (1 + odds)
        for first in (True, False):
            blocks = shuffling._make_blocks(epsilon, people - 1, 10**5, 1e-30, first)
            counts = blocks.clones
            term = (1 - chance) ** (people - 1)
            found, total = mpmath.mpf(blocks.lost), mpmath.mpf(0)
            weights = dict(
                zip(counts.tolist(), zip(blocks.weight, blocks.error, strict=True), strict=True)
            )
            for k in range(int(counts[min(len(counts) - 1, 40)]) + 1):
                total += term
                weight, error = weights.get(float(k), (0.0, 0.0))
                sign = 1 if first else -1
                found += mpmath.mpf(weight) + sign * mpmath.mpf(error)
                # Fewer clones dominate, so P(N <= k) is too large in a pair above.
                assert sign * (found - total) >= -(mpmath.mpf(10) ** -25)
                term *= mpmath.mpf(people - 1 - k) / (k + 1) * chance / (1 - chance)
            assert abs(found - total) <= 1e-6 * total + mpmath.mpf(10) ** -25


def test_a_pair_that_forgets_the_person_is_refused_by_the_twin():
    """The judge sees a planted error: clones twice as likely as they are."""
    top = math.e
    exact = all_clones_delta(999, 1, 2 / (top + 1), 0.14)
    wrong = all_clones_delta(999, 1, 4 / (top + 3), 0.14)
    bounds = local(1).shuffled(population=1000).delta_bounds(epsilon=0.14)
    assert bounds.lower <= exact <= bounds.upper
    assert not bounds.lower <= wrong <= bounds.upper


# --- a published pair that is not an upper bound -----------------------------------------------


def published_response_delta(k, population, epsilon, at):
    """The pair for k-ary response by "variation ratio" (Wang et al. 2024), which is refuted."""
    top = math.exp(epsilon)
    alpha = 1 / (top + k - 1)
    p, q = Counter(), Counter()
    for n in range(population):
        weight = stats.binom.pmf(n, population - 1, 2 * alpha)
        for first in range(n + 1):
            one = weight * math.comb(n, first) / 2**n
            for table, (up, down) in ((p, (alpha * top, alpha)), (q, (alpha, alpha * top))):
                table[first + 1, n - first] += one * up
                table[first, n - first + 1] += one * down
                table[first, n - first] += one * (1 - up - down)
    return sum(max(p[x] - math.exp(at) * q[x], 0.0) for x in p)


def true_response_delta(k, population, epsilon, at):
    """The largest delta of shuffled k-ary response, over what the other people may say."""
    top = math.exp(epsilon)
    truth, lie = top / (top + k - 1), 1 / (top + k - 1)

    def counts(values):
        table = {(0,) * k: 1.0}
        for value in values:
            grown = Counter()
            for seen, weight in table.items():
                for said in range(k):
                    more = (*seen[:said], seen[said] + 1, *seen[said + 1 :])
                    grown[more] += weight * (truth if said == value else lie)
            table = grown
        return table

    worst = 0.0
    for others in itertools.combinations_with_replacement(range(k), population - 1):
        p, q = counts((0, *others)), counts((1, *others))
        worst = max(worst, sum(max(p[x] - math.exp(at) * q[x], 0.0) for x in p))
    return worst


def test_the_published_pair_for_k_ary_response_is_refuted_and_ours_is_not():
    published = published_response_delta(4, 4, 1, 0.5)
    true = true_response_delta(4, 4, 1, 0.5)
    assert published == pytest.approx(0.0400, abs=5e-5)
    assert true == pytest.approx(0.0472, abs=5e-5)
    ours = RandomizedResponse(1.0, 4).shuffled(population=4)
    assert published < true <= ours.delta(epsilon=0.5)


# --- the algebra -----------------------------------------------------------------------------


def test_it_composes_scales_to_groups_and_is_written_like_any_loss():
    loss = RandomizedResponse(1.0, 5).shuffled(population=50)
    assert isinstance(loss, Shuffled)
    assert repr(loss) == "RandomizedResponse(epsilon=1.0, categories=5).shuffled(population=50)"
    plan = 3 * loss + PureDP(0.1, relation="replace")
    assert from_json(to_json(plan)) == plan
    assert loss.claim() == (1, 0)
    assert loss.epsilon(delta=0) == 1.0
    assert plan.epsilon_bounds(delta=DELTA).upper < 3.1
    sample = loss.sample_without_replacement(sample=500, population=5_000)
    assert sample.epsilon(delta=DELTA) < loss.epsilon(delta=DELTA)
    assert (2 * local(1)).shuffled(population=500).claim() == (2, 0)
    assert local(1).shuffled(population=1) == local(1)


@pytest.mark.slow
def test_groups_and_concentrated_privacy_follow_from_the_pair():
    loss = local(1).shuffled(population=500)
    one = loss.epsilon(delta=DELTA)
    assert one < loss.group(2).epsilon(delta=DELTA) <= 2.0
    assert loss.rdp([2.0])[0] <= 2 * loss.zcdp() < 0.1 * local(1).zcdp()


@pytest.mark.parametrize("epsilon", [1e-9, 1e-3, 30, 599, 601, 10**6])
@pytest.mark.parametrize("population", [2, 1_000, 10**12])
def test_extreme_losses_are_upper_bounds_that_never_exceed_the_report(epsilon, population):
    loss = local(epsilon).shuffled(population=population)
    bounds = loss.epsilon_bounds(delta=1e-9)
    assert 0 <= bounds.lower <= bounds.upper <= epsilon * (1 + 1e-9)
    if population > 1_000:
        return
    twice = (2 * loss).epsilon_bounds(delta=1e-9)
    assert bounds.lower <= twice.upper * (1 + 1e-9)
    assert twice.upper <= 2 * epsilon * (1 + 1e-9)


def test_more_people_and_smaller_reports_never_cost_more():
    grid = [
        [local(e).shuffled(population=n).epsilon_bounds(delta=DELTA) for n in (2, 30, 900, 10**5)]
        for e in (0.3, 1, 4)
    ]
    for row in grid:
        assert all(b.lower <= a.upper for a, b in itertools.pairwise(row))
    for small, large in itertools.pairwise(grid):
        assert all(a.lower <= b.upper for a, b in zip(small, large, strict=True))


def test_what_no_theorem_covers_is_refused():
    with pytest.raises(RelationMismatch, match="under 'replace'"):
        PureDP(1).shuffled(population=10)
    for curve in (Gaussian(1.0, "replace"), ApproxDP(1, 1e-6, "replace")):
        with pytest.raises(NotApplicable, match="finite epsilon at delta 0"):
            curve.shuffled(population=10)
    with pytest.raises(NotApplicable):
        FinitePair((1.0, 0.0), (0.5, 0.5), "replace").shuffled(population=10)
    for population in (0, -3, 2.5, "many", True, 10**16):
        with pytest.raises(InvalidValue, match="population"):
            local(1).shuffled(population=population)
