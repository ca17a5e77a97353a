"""What several tests of the calculus are judged by: every loss that can be built."""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from discreet.errors import DiscreetError, NotApplicable
from discreet.privacy import (
    GDP,
    ZCDP,
    Allocated,
    ApproxDP,
    CappedPoisson,
    Correlated,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    Gaussian,
    GaussianMixture,
    Laplace,
    Loss,
    PureDP,
    RandomizedResponse,
    Relation,
    RenyiDP,
    Skellam,
    Strategy,
    SummedDiscreteGaussian,
    from_pair,
)

positive = st.floats(1e-3, 1e3)


small_counts = st.integers(1, 5)


exact = st.one_of(
    st.fractions(0, 10, max_denominator=1000),
    st.floats(0, 10),
    st.decimals(0, 10, places=6),
    st.integers(0, 10),
)


exact_delta = st.fractions(0, 1, max_denominator=10**9)


@st.composite
def finite_pairs(draw, relation):
    size = draw(st.integers(2, 5))
    weights = st.lists(st.integers(0, 50), min_size=size, max_size=size).filter(any)
    pair = [np.array(draw(weights), dtype=float) for _ in range(2)]
    return from_pair(*[list(w / w.sum()) for w in pair], relation=relation)


@st.composite
def renyi_curves(draw, relation):
    orders = draw(st.lists(st.floats(1.01, 100), min_size=1, max_size=4, unique=True))
    return RenyiDP(tuple(orders), tuple(draw(positive) for _ in orders), relation)


@functools.cache
def atoms(relation: Relation) -> st.SearchStrategy[Loss]:
    kinds = [
        st.builds(Gaussian, positive, st.just(relation)),
        st.builds(Laplace, positive, positive, st.just(relation)),
        st.builds(DiscreteLaplace, positive, small_counts, st.just(relation)),
        st.builds(DiscreteGaussian, positive, small_counts, st.just(relation)),
        st.builds(Exponential, positive, st.just(relation)),
        st.builds(PureDP, exact, st.just(relation)),
        st.builds(ApproxDP, exact, exact_delta, st.just(relation)),
        st.builds(ZCDP, positive, st.just(relation)),
        st.builds(GDP, positive, st.just(relation)),
        finite_pairs(relation),
        renyi_curves(relation),
    ]
    if relation is Relation.REPLACE:
        kinds.append(st.builds(RandomizedResponse, positive, st.integers(2, 9)))
    return st.one_of(kinds)


def sampled(base: Loss, rate: float) -> Loss:
    try:
        return base.poisson(rate=rate)
    except NotApplicable:
        return base


@functools.cache
def trees(relation: Relation) -> st.SearchStrategy[Loss]:
    def grow(inner: st.SearchStrategy[Loss]) -> st.SearchStrategy[Loss]:
        steps = [
            st.builds(lambda a, b: a + b, inner, inner),
            st.builds(lambda n, a: n * a, st.integers(1, 10**7), inner),
            st.builds(lambda a, k: a.group(k), inner, small_counts),
        ]
        if relation is Relation.ADD_REMOVE:
            steps.append(st.builds(sampled, inner, st.floats(1e-6, 1)))
        else:
            steps.append(
                st.builds(
                    lambda a, m, extra: a.sample_without_replacement(
                        sample=m, population=m + extra
                    ),
                    inner,
                    st.integers(1, 10**6),
                    st.integers(0, 10**6),
                )
            )
            converted = trees(Relation.ADD_REMOVE)
            steps.append(st.builds(lambda a: a.group(2, relation="replace"), converted))
        return st.one_of(steps)

    return st.recursive(atoms(relation), grow, max_leaves=6)


any_relation = st.sampled_from([Relation.ADD_REMOVE, Relation.REPLACE])


losses = any_relation.flatmap(trees)


# --- kinds that few programs use, by constructors and with numbers of any type --------------


def odd(numbers: st.SearchStrategy) -> st.SearchStrategy:
    """The same numbers, also of the types that numpy and fractions have."""
    kinds = (float, np.float64, np.float32, Fraction, lambda one: max(1, round(one)))
    return st.builds(lambda kind, one: kind(one), st.sampled_from(kinds), numbers)


def odd_counts(most: int) -> st.SearchStrategy:
    return st.builds(
        lambda kind, one: kind(one), st.sampled_from((int, np.int64)), st.integers(1, most)
    )


def attempt(build: Callable[..., Loss], *values: object) -> Loss | None:
    """The loss, or nothing where there is none."""
    try:
        return build(*values)
    except DiscreetError:
        return None


def correlated(noise, relation, column, inverse, counts, rate) -> Loss:
    return Correlated(Gaussian(noise, relation), column, *counts, rate, inverse)


any_kind = st.sampled_from(list(Relation))
columns = st.lists(st.floats(-1, 1), max_size=8).map(lambda rest: np.array([1.0, *rest]))
counts = odd_counts(12)
noises = odd(positive)
rare: st.SearchStrategy[Loss] = st.one_of(
    st.builds(
        attempt,
        st.just(lambda kind, *rest: Allocated(Gaussian(kind[0], kind[1]), *rest)),
        st.tuples(noises, any_kind),
        odd_counts(50),
        counts,
        st.none() | counts,
        counts,
    ),
    st.builds(
        attempt,
        st.just(lambda z, *rest: CappedPoisson(Gaussian(z), *rest)),
        noises,
        odd(st.floats(1e-3, 0.99)),
        odd_counts(50),
        odd_counts(90),
    ),
    st.builds(
        attempt,
        st.just(correlated),
        noises,
        any_kind,
        columns,
        st.booleans(),
        st.tuples(counts, counts, counts),
        st.just(1.0) | odd(st.floats(1e-3, 1)),
    ),
    st.builds(
        attempt,
        st.just(lambda strategy, steps: Gaussian(2.0).correlated(strategy, steps=steps, rate=0.3)),
        st.builds(Strategy.square_root, counts),
        counts,
    ),
    st.builds(
        attempt,
        st.just(GaussianMixture),
        noises,
        st.sets(odd(st.floats(0, 30)), min_size=3, max_size=3).map(list),
        st.sampled_from([(0.5, 0.25, 0.25), np.array([0.1, 0.2, 0.7]), (Fraction(1, 2), 0, 0.5)]),
        any_kind,
    ),
    st.builds(
        attempt,
        st.just(lambda base, mean, shape: base.best_of(mean, shape)),
        st.one_of(losses, st.builds(Gaussian, noises, any_kind)),
        odd(st.floats(1, 1e6)),
        st.sampled_from(["poisson", np.float64("inf")]) | odd(st.floats(-0.9, 9)),
    ),
    st.builds(
        attempt,
        st.just(lambda base, people: base.shuffled(population=people)),
        trees(Relation.REPLACE),
        odd_counts(10**6),
    ),
    st.builds(attempt, st.just(Skellam), noises, noises, noises, any_kind),
    st.builds(
        attempt,
        st.just(SummedDiscreteGaussian),
        noises,
        counts,
        noises,
        noises,
        counts,
        any_kind,
    ),
).filter(lambda loss: loss is not None)


def combined(loss: Loss, times: int, size: int, relation: Relation) -> Loss:
    group = attempt(lambda: loss.group(size, relation=relation))
    return times * (loss if group is None else group)


every_kind: st.SearchStrategy[Loss] = st.builds(combined, rare, small_counts, counts, any_kind)
