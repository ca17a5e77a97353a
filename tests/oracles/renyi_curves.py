"""What several tests of the calculus are judged by: divergences by plain sums, and atoms."""

from __future__ import annotations

import mpmath
import numpy as np
from hypothesis import strategies as st

from discreet.privacy import (
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    FinitePair,
    Gaussian,
    Laplace,
    Loss,
    PureDP,
)

RENYI_ORDERS = np.array([1.0001, 1.3, 2.0, 3.7, 12.0, 100.5, 4000.0, 1e6])


def finite_divergence(p: list, q: list, order: float, rate: float = 1.0) -> float:
    """The worst of the four directions of a finite pair, sampled, by plain sums."""
    with mpmath.workdps(40):
        a, r = mpmath.mpf(order), mpmath.mpf(rate)
        results = []
        for x, y in ((p, q), (q, p)):
            mixed = [(1 - r) * v + r * u for u, v in zip(x, y, strict=True)]
            for s, t in ((mixed, y), (y, mixed)):
                total = mpmath.fsum(u**a * v ** (1 - a) for u, v in zip(s, t, strict=True) if u > 0)
                results.append(mpmath.log(total) / (a - 1))
        return float(max(results))


def near(value: float, expected: float, relative: float = 1e-9) -> bool:
    return abs(value - expected) <= relative * abs(expected)


def without_replacement(base: Loss, sample: int, population: int) -> Loss:
    return base.sample_without_replacement(sample=sample, population=population)


positive = st.floats(0.05, 20.0)


rates = st.floats(1e-6, 1.0)


atoms = st.one_of(
    positive.map(Gaussian),
    positive.map(Laplace),
    st.tuples(positive, st.integers(1, 100)).map(lambda t: DiscreteLaplace(*t)),
    st.tuples(positive, st.integers(1, 5)).map(lambda t: DiscreteGaussian(*t)),
    positive.map(PureDP),
    positive.map(Exponential),
    st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99)).map(
        lambda t: FinitePair((t[0], 1 - t[0]), (t[1], 1 - t[1]))
    ),
)


sampled_atoms = st.builds(lambda base, rate: base.poisson(rate=rate), atoms, rates)


losses = st.one_of(atoms, sampled_atoms)
