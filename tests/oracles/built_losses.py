"""What several tests of the calculus are judged by: every loss that can be built."""

from __future__ import annotations

import functools

import numpy as np
from hypothesis import strategies as st

from discreet.errors import NotApplicable
from discreet.privacy import (
    GDP,
    ZCDP,
    ApproxDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    Gaussian,
    Laplace,
    Loss,
    PureDP,
    RandomizedResponse,
    Relation,
    RenyiDP,
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
