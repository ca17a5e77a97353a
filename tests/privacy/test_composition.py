"""Group privacy, composition, the lectures' calibrations (S2, S5, S10); the module's shape."""

from __future__ import annotations

import inspect
import math
import random
import subprocess
import sys
from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import (
    DiscreteLaplace,
    Exponential,
    Gaussian,
    Grouped,
    Laplace,
    PureDP,
    Relation,
    theorems,
)
from discreet.privacy._renyi import (
    rdp,
)
from discreet.privacy.theorems import (
    Guarantee,
    advanced_composition,
    advanced_composition_heterogeneous,
    basic_composition,
    gaussian_delta,
    gaussian_epsilon,
    gdp_composition,
    group_approx,
    group_approx_tight,
    group_gaussian,
    group_pure,
    group_zcdp,
    hockey_stick,
    naive_dpsgd,
    naive_dpsgd_analytic,
    optimal_composition_delta,
    optimal_composition_epsilon,
    sgd_sigma,
)
from oracles.renyi_curves import RENYI_ORDERS


def worst_pair(epsilon: float, delta: float) -> tuple[list[float], list[float]]:
    """The pair that dominates every (epsilon, delta)-DP mechanism: reveal, or respond."""
    truth = (1 - delta) / (1 + math.exp(-epsilon))
    lie = 1 - delta - truth
    return [delta, truth, lie, 0.0], [0.0, lie, truth, delta]


def compose(pair: tuple[list[float], list[float]], k: int) -> tuple[list[float], list[float]]:
    """The k-fold product, every outcome written out."""
    p, q = pair
    outcomes = list(product(range(len(p)), repeat=k))
    return (
        [math.prod(p[i] for i in outcome) for outcome in outcomes],
        [math.prod(q[i] for i in outcome) for outcome in outcomes],
    )


def exact_response_delta(epsilon_step: float, k: int, epsilon: float) -> mpmath.mpf:
    """Every term that can matter of the binomial sum, in exact arithmetic up to 50 digits."""
    with mpmath.workdps(50):
        step, target = mpmath.mpf(epsilon_step), mpmath.mpf(epsilon)
        lie = 1 / (1 + mpmath.exp(step))
        last = int((k * step - target) / (2 * step))
        # Below the mode each term is smaller than the next: stop when nothing is added.
        terms, term = mpmath.mpf(0), None
        for lies in range(last, -1, -1):
            if term is None:
                term = mpmath.binomial(k, lies) * lie**lies * (1 - lie) ** (k - lies)
            else:
                term *= (lies + 1) / (mpmath.mpf(k - lies)) * mpmath.exp(step)
            terms += term * -mpmath.expm1(target - (k - 2 * lies) * step)
            if lies < k * lie and term < terms * mpmath.mpf(10) ** -40:
                break
        return terms


@given(epsilon=st.floats(0.0, 3.0), delta=st.floats(0.0, 1e-3), k=st.integers(1, 12))
def test_group_delta_follows_the_chain_of_neighbours(epsilon: float, delta: float, k: int) -> None:
    chained = 0.0
    for _ in range(k):
        chained = delta + math.exp(epsilon) * chained
    tight, loose = group_approx_tight(epsilon, delta, k=k), group_approx(epsilon, delta, k=k)
    assert tight.delta == pytest.approx(min(1.0, chained), rel=1e-12)
    assert tight.delta <= loose.delta * (1 + 1e-12)
    assert tight.epsilon == loose.epsilon == group_pure(epsilon, k=k) == k * epsilon


def test_groups_of_one_and_of_very_many() -> None:
    assert group_approx(0.7, 1e-6, k=1) == Guarantee(0.7, 1e-6)
    assert group_approx_tight(0.7, 1e-6, k=1).delta == pytest.approx(1e-6, rel=1e-15)
    assert group_approx_tight(0.0, 0.125, k=5) == Guarantee(0.0, 0.625)
    assert group_approx(1.0, 1e-6, k=10_000).delta == 1.0
    assert group_approx_tight(1.0, 1e-6, k=10_000).delta == 1.0
    assert group_approx(1.0, 0.0, k=10_000).delta == 0.0
    assert 0.0 < group_approx(7.1, 5e-320, k=101).delta < 1.0


def test_spec_conversion_from_add_remove_to_replace() -> None:
    """Two changes: (2 eps, (1 + e^eps) delta), and 2 mu, not the sqrt 2 mu of two releases."""
    group = group_approx_tight(0.8, 1e-6, k=2)
    assert group.epsilon == 1.6
    assert group.delta == pytest.approx((1 + math.exp(0.8)) * 1e-6, rel=1e-14)
    assert group_gaussian(0.5, k=2) == 1.0 > gdp_composition(0.5, 0.5)
    assert group_zcdp(0.5 * 0.3**2, k=4) == pytest.approx(0.5 * group_gaussian(0.3, k=4) ** 2)


@given(mu=st.floats(0.05, 2.0), epsilon=st.floats(0.0, 2.0), k=st.integers(2, 5))
def test_generic_group_bound_covers_the_exact_gaussian_group(
    mu: float, epsilon: float, k: int
) -> None:
    generic = group_approx_tight(epsilon, gaussian_delta(mu, epsilon), k=k)
    assert gaussian_delta(group_gaussian(mu, k=k), generic.epsilon) <= generic.delta * (1 + 1e-9)


@given(
    epsilon=st.floats(0.05, 2.0),
    delta=st.sampled_from([0.0, 1e-3, 0.1]),
    k=st.integers(1, 5),
    at=st.floats(0.0, 1.1),
)
def test_optimal_composition_is_the_product_of_worst_pairs(
    epsilon: float, delta: float, k: int, at: float
) -> None:
    p, q = compose(worst_pair(epsilon, delta), k)
    target = at * k * epsilon
    closed = optimal_composition_delta(epsilon, delta, k=k, epsilon=target)
    assert closed == pytest.approx(hockey_stick(p, q, target), rel=1e-9, abs=1e-14)
    assert closed == pytest.approx(hockey_stick(q, p, target), rel=1e-9, abs=1e-14)


def test_optimal_composition_at_the_printed_grid_points() -> None:
    """Kairouz, Oh, Viswanath's own formula, at (k - 2i) eps."""
    epsilon, delta, k = 0.3, 1e-4, 9
    for i in range(k // 2 + 1):
        inner = (
            math.fsum(
                math.comb(k, j)
                * (math.exp((k - j) * epsilon) - math.exp((k - 2 * i + j) * epsilon))
                for j in range(i)
            )
            / (1 + math.exp(epsilon)) ** k
        )
        printed = 1 - (1 - delta) ** k * (1 - inner)
        closed = optimal_composition_delta(epsilon, delta, k=k, epsilon=(k - 2 * i) * epsilon)
        assert closed == pytest.approx(printed, rel=1e-9)


@pytest.mark.parametrize(
    ("epsilon_step", "k", "epsilon"),
    [
        (0.1, 100, 3.0),
        (0.01, 10_000, 4.0),
        (0.001, 100_000, 2.0),
        (0.003, 100_000, 5.5),
        (2.0, 1000, 1750.0),
        (1.0986122886681098, 100, 0.0),
        (0.5, 40, 19.999999),
        (30.0, 5, 149.0),
    ],
)
def test_optimal_delta_is_a_close_upper_bound(epsilon_step: float, k: int, epsilon: float) -> None:
    exact = exact_response_delta(epsilon_step, k, epsilon)
    computed = optimal_composition_delta(epsilon_step, 0.0, k=k, epsilon=epsilon)
    assert exact <= computed
    assert computed == pytest.approx(float(exact), rel=1e-8)


def test_optimal_delta_at_the_ends() -> None:
    assert optimal_composition_delta(0.1, 0.0, k=10, epsilon=1.0 + 1e-12) == 0.0
    assert optimal_composition_delta(0.0, 0.0, k=10, epsilon=0.0) == 0.0
    assert optimal_composition_delta(0.0, 0.25, k=1, epsilon=3.0) == 0.25
    assert optimal_composition_delta(0.1, 1.0, k=3, epsilon=0.0) == 1.0
    assert optimal_composition_delta(800.0, 0.0, k=2, epsilon=0.0) == 1.0
    # Positive but far below the floats: rounded up, never to zero.
    assert optimal_composition_delta(0.001, 0.0, k=10**6, epsilon=900.0) == 5e-324


@given(
    epsilon_step=st.floats(1e-3, 3.0),
    delta_step=st.sampled_from([0.0, 1e-12, 1e-9]),
    k=st.integers(1, 2000),
    delta=st.floats(2e-6, 0.5),
)
def test_optimal_epsilon_is_safe_and_tight(
    epsilon_step: float, delta_step: float, k: int, delta: float
) -> None:
    epsilon = optimal_composition_epsilon(epsilon_step, delta_step, k=k, delta=delta)

    def at(value: float) -> float:
        return optimal_composition_delta(epsilon_step, delta_step, k=k, epsilon=value)

    assert at(epsilon) <= delta
    assert epsilon <= math.nextafter(k * epsilon_step, math.inf)
    if epsilon > 0.0:
        assert at(epsilon * (1 - 1e-6)) > delta


def test_peer_defect_one_randomized_response_is_counted() -> None:
    """dp_accounting 0.6 answers 1.0987 for 100 two-coin answers at delta 1e-5: it counts one."""
    epsilon = optimal_composition_epsilon(math.log(3), 0.0, k=100, delta=1e-5)
    assert epsilon == pytest.approx(90.8, abs=0.05)
    exact = exact_response_delta(math.log(3), 100, epsilon)
    assert mpmath.mpf(1e-5) * (1 - mpmath.mpf(1e-6)) <= exact <= 1e-5


def test_optimal_epsilon_at_the_ends() -> None:
    assert optimal_composition_epsilon(0.5, 0.01, k=1, delta=0.01) == 0.5
    assert optimal_composition_epsilon(0.5, 0.0, k=4, delta=0.0) == 2.0
    assert optimal_composition_epsilon(0.1, 0.0, k=1, delta=0.9) == 0.0
    with pytest.raises(InvalidValue, match="what the k steps cost together"):
        optimal_composition_epsilon(0.1, 1e-3, k=100, delta=1e-3)


@given(
    epsilon=st.floats(1e-9, 1.0),
    k=st.integers(1, 3000),
    slack=st.floats(1e-12, 0.5),
)
def test_advanced_bounds_are_sound_and_ordered(epsilon: float, k: int, slack: float) -> None:
    printed = advanced_composition(epsilon, 0.0, k=k, slack=slack)
    sharper = advanced_composition_heterogeneous([epsilon] * k, [0.0] * k, slack=slack)
    assert sharper.epsilon <= printed.epsilon * (1 + 1e-12)
    assert sharper.delta == printed.delta == slack
    assert optimal_composition_delta(epsilon, 0.0, k=k, epsilon=sharper.epsilon) <= slack


def test_heterogeneous_bound_is_sound_on_a_written_out_product() -> None:
    generator = random.Random(3)
    for _ in range(20):
        epsilons = [generator.uniform(0.05, 0.6) for _ in range(8)]
        p, q = [1.0], [1.0]
        for epsilon in epsilons:
            truth = 1 / (1 + math.exp(-epsilon))
            p = [mass * factor for mass in p for factor in (truth, 1 - truth)]
            q = [mass * factor for mass in q for factor in (1 - truth, truth)]
        bound = advanced_composition_heterogeneous(epsilons, [0.0] * 8, slack=0.05)
        assert hockey_stick(p, q, bound.epsilon) <= bound.delta


def test_advanced_composition_as_printed() -> None:
    epsilon, delta, k, slack = 0.2, 1e-7, 50, 1e-6
    composed = advanced_composition(epsilon, delta, k=k, slack=slack)
    expected = math.sqrt(2 * k * math.log(1 / slack)) * epsilon
    expected += k * epsilon * (math.exp(epsilon) - 1)
    assert composed.epsilon == pytest.approx(expected, rel=1e-14)
    assert composed.delta == pytest.approx(k * delta + slack, rel=1e-14)


def test_basic_composition_sums_and_caps() -> None:
    assert basic_composition([0.1] * 10, [0.0] * 10) == Guarantee(1.0, 0.0)
    assert basic_composition([1.0, 2.0], [0.7, 0.7]).delta == 1.0
    assert basic_composition([], []) == Guarantee(0.0, 0.0)
    with pytest.raises(InvalidValue, match="one for each of the 2 epsilons"):
        basic_composition([1.0, 2.0], [0.0])


def test_naive_dpsgd_refuses_the_lectures_own_figure() -> None:
    """Noise multiplier 4 at delta 1e-5 has eps_s = 1.21, where the classical theorem is silent."""
    with pytest.raises(NotApplicable, match=r"1\.21"):
        naive_dpsgd(4.0, steps=100, delta_step=1e-5)
    analytic = naive_dpsgd_analytic(4.0, steps=100, delta_step=1e-5)
    assert analytic == Guarantee(100 * gaussian_epsilon(0.25, 1e-5), 100 * 1e-5)


@given(sigma=st.floats(6.0, 1000.0), steps=st.integers(1, 10_000))
def test_naive_dpsgd_is_never_better_than_the_analytic_step(sigma: float, steps: int) -> None:
    classical = naive_dpsgd(sigma, steps=steps, delta_step=1e-7)
    analytic = naive_dpsgd_analytic(sigma, steps=steps, delta_step=1e-7)
    assert analytic.epsilon <= classical.epsilon
    assert analytic.delta == classical.delta
    step = math.sqrt(2 * math.log(1.25 / 1e-7)) / sigma
    assert classical.epsilon == pytest.approx(steps * step, rel=1e-14)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_sgd_sigma_is_the_printed_formula(epsilon: float) -> None:
    n, lipschitz, delta = 500, 2.0, 1e-6
    sigma = sgd_sigma(epsilon, delta, n=n, lipschitz=lipschitz)
    expected = 64 * n**2 * lipschitz**2 / epsilon**2 * math.log(2 * n / delta) * math.log(2 / delta)
    assert sigma**2 == pytest.approx(expected, rel=1e-13)


def test_sgd_sigma_refuses_steps_beyond_its_linear_bound() -> None:
    with pytest.raises(NotApplicable, match=r"1\.2564"):
        sgd_sigma(20.0, 1e-5, n=100, lipschitz=1.0)


def public_functions() -> list[tuple[str, object]]:
    return [
        (name, getattr(theorems, name))
        for name in theorems.__all__
        if inspect.isfunction(getattr(theorems, name))
    ]


def test_every_closed_form_is_found_here_with_an_example() -> None:
    assert len(theorems.__all__) == len(set(theorems.__all__))
    functions = public_functions()
    assert len(functions) >= 50
    for name, function in functions:
        document = inspect.getdoc(function)
        assert document is not None, name
        assert ">>>" in document, name


def test_theorems_import_no_heavy_part_of_scipy() -> None:
    program = (
        "import sys, discreet.privacy.theorems;"
        "print(sorted({'scipy.optimize', 'scipy.stats', 'scipy.integrate'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: group_pure(-0.1, k=2), "epsilon"),
        (lambda: group_pure(0.1, k=0), "k"),
        (lambda: group_pure(0.1, k=2.0), "k"),
        (lambda: group_approx(0.1, 1.5, k=2), "delta"),
        (lambda: group_approx_tight(0.1, -1e-9, k=2), "delta"),
        (lambda: group_gaussian(math.nan, k=2), "mu"),
        (lambda: group_zcdp("1", k=2), "rho"),
        (lambda: basic_composition([math.inf], [0.0]), "epsilon"),
        (lambda: advanced_composition(0.1, 0.0, k=2, slack=0.0), "slack"),
        (lambda: advanced_composition(0.1, 0.0, k=True, slack=0.1), "k"),
        (lambda: advanced_composition_heterogeneous([0.1], [0.0], slack=1.0), "slack"),
        (lambda: optimal_composition_delta(0.1, 0.0, k=10**10, epsilon=1.0), "k"),
        (lambda: optimal_composition_delta(0.1, 0.0, k=1, epsilon=-1.0), "epsilon"),
        (lambda: optimal_composition_epsilon(0.1, 0.0, k=1, delta=1.0), "delta"),
        (lambda: naive_dpsgd(0.0, steps=1, delta_step=0.1), "noise_multiplier"),
        (lambda: naive_dpsgd_analytic(1.0, steps=0, delta_step=0.1), "steps"),
        (lambda: sgd_sigma(1.0, 0.1, n=0, lipschitz=1.0), "n"),
        (lambda: sgd_sigma(1.0, 0.1, n=1, lipschitz=0.0), "lipschitz"),
    ],
)
def test_bad_input_names_the_argument(call, name) -> None:
    with pytest.raises(InvalidValue) as caught:
        call()
    assert caught.value.argument == name


def test_groups_are_exact_for_gaussians_and_safe_for_others():
    for size in (2, 3, 10, 64, 200):
        grouped = rdp(Grouped(Gaussian(5.0), size, Relation.ADD_REMOVE), [1.5, 4.0])
        exact = rdp(Gaussian(5.0).group(size), [1.5, 4.0])
        assert np.all(grouped >= exact * (1 - 1e-12))
        if size <= 64:
            assert np.allclose(grouped, exact, rtol=1e-12)
        else:
            assert np.all(grouped <= exact * 4)
    for base in (Laplace(3.0), Exponential(0.4), PureDP(0.4), DiscreteLaplace(4.0, 1)):
        generic = rdp(Grouped(base, 3, Relation.ADD_REMOVE), RENYI_ORDERS)
        assert np.all(generic >= rdp(base.group(3), RENYI_ORDERS) * (1 - 1e-9))
    sampled = Gaussian(1.0).poisson(rate=0.01)
    exact = rdp(sampled.group(2), [1.5, 3.0])
    assert np.all(rdp(Grouped(sampled, 2, Relation.ADD_REMOVE), [1.5, 3.0]) >= exact)
