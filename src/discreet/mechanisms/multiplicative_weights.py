"""Multiplicative weights with the exponential mechanism, the successor of S19 (MWEM).

Hardt, Ligett and McSherry 2012. A synthetic distribution over the domain starts uniform; in
each round the exponential mechanism picks a query that it answers badly, the answer is
measured with discrete Laplace noise, and the weights of the domain are moved towards the
measurement. Work grows with queries x domain, not with the number of databases.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import numpy as np

from discreet import _validate
from discreet.mechanisms.parameters import drawn_scale, rounded_up
from discreet.mechanisms.release import Release
from discreet.mechanisms.small_database import public_total, read_histogram, read_queries
from discreet.privacy import DiscreteLaplace, Exponential, Loss, Relation
from discreet.randomness import Source, choose_source, discrete_laplace, select

__all__ = ["SyntheticDistribution", "multiplicative_weights", "multiplicative_weights_loss"]

# Synthetic answers are public; rounded to this part of a record they make scores integers,
# so that no float rounding can raise the sensitivity of a score.
_PARTS = 1 << 10


@final
@dataclass(frozen=True)
class SyntheticDistribution:
    """Released weights over the domain, and the noisy measurements that made them."""

    weights: tuple[float, ...]
    measured: tuple[tuple[int, int], ...]

    def answers(self, queries: object) -> np.ndarray:
        """The fraction that satisfies each query; free."""
        matrix = read_queries(queries, len(self.weights))
        return np.asarray(matrix @ np.array(self.weights), dtype=np.float64)


def multiplicative_weights_loss(*, rounds: int, epsilon: object, relation: Relation | str) -> Loss:
    """Return T (Exponential(e) + DiscreteLaplace(1/e)), e = epsilon / (2 T), before a run.

    As a pure guarantee it sums to epsilon; at delta > 0 the accountants read less.

    >>> loss = multiplicative_weights_loss(rounds=8, epsilon=2, relation="replace")
    >>> loss.epsilon(delta=0), loss.epsilon(delta=1e-6) < 2
    (2.0, True)
    """
    count = _validate.integer("rounds", rounds, at_least=1)
    chosen = Relation.parse(relation)
    step = _step(count, epsilon)
    pick = Exponential(rounded_up("epsilon", epsilon, step), chosen)
    return count * pick + count * DiscreteLaplace(_scale(step), 1, chosen)


def multiplicative_weights(
    histogram: object,
    queries: object,
    *,
    rounds: int,
    epsilon: object,
    relation: Relation | str,
    public_size: int | None = None,
    replays: int = 10,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[SyntheticDistribution]:
    """Release a distribution over the domain that answers the queries (MWEM).

    **Guarantee.** The loss is ``rounds`` x (Exponential(e) + DiscreteLaplace(1/e)) with
    e = epsilon / (2 rounds), so epsilon-DP (basic composition); the choice of a query and
    its measurement depend on earlier ones only through their released results, and the
    parameters of every step are fixed beforehand. Counts of 0/1 queries have sensitivity 1
    under both relations; so has the score abs(count - synthetic count) of a query, on
    integers (the synthetic count is public and rounded). The weights are post-processing.

    Arguments are as in :func:`discreet.mechanisms.small_database`. ``replays`` is how often the
    measurements so far are gone through again in each round; it costs nothing. There is no
    interval: the error depends on the data.

    >>> out = multiplicative_weights(
    ...     [700, 200, 100, 0],
    ...     [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0]],
    ...     rounds=3,
    ...     epsilon=3,
    ...     relation="replace",
    ...     insecure_seed=2,
    ... )
    >>> abs(float(out.value.answers([[1, 0, 0, 0]])[0]) - 0.7) < 0.1
    True
    """
    loss = multiplicative_weights_loss(rounds=rounds, epsilon=epsilon, relation=relation)
    chosen = Relation.parse(relation)
    again = _validate.integer("replays", replays, at_least=1)
    matrix = read_queries(queries)
    counts = read_histogram(histogram, matrix.shape[1])
    total = max(1, public_total(counts, chosen, public_size))
    step = _step(rounds, epsilon)
    bits = choose_source(source, insecure_seed)
    true = matrix @ counts
    weights = np.full(counts.size, 1.0 / counts.size)
    average = np.zeros(counts.size)
    measured: list[tuple[int, int]] = []
    for _ in range(rounds):
        synthetic = np.rint(matrix @ weights * total * _PARTS).astype(np.int64)
        scores = np.abs(_PARTS * true - synthetic)
        picked = select(scores, rate=step / (2 * _PARTS), source=bits)
        noisy = int(true[picked]) + discrete_laplace(drawn_scale(_scale(step)), source=bits)
        measured.append((picked, noisy))
        weights = _moved(weights, matrix, measured, total, again)
        average += weights / rounds
    released = SyntheticDistribution(
        tuple(float(weight) for weight in average / average.sum()), tuple(measured)
    )
    provenance: dict[str, Any] = {
        "mechanism": "multiplicative_weights",
        "rounds": rounds,
        "queries": len(matrix),
        "epsilon_of_a_step": str(step),
        "relation": chosen.value,
        "public_size": total,
        **bits.provenance,
    }
    return Release(released, loss, provenance)


def _moved(
    weights: np.ndarray,
    matrix: np.ndarray,
    measured: list[tuple[int, int]],
    total: int,
    replays: int,
) -> np.ndarray:
    """Return the weights after going through the public measurements ``replays`` times."""
    for _ in range(replays):
        for query, noisy in measured:
            # A measurement outside 0 .. total says no more than the nearest bound.
            target = min(max(noisy / total, 0.0), 1.0)
            gap = target - float(matrix[query] @ weights)
            weights = weights * np.exp(0.5 * gap * matrix[query])
            weights = weights / weights.sum()
    return weights


def _step(rounds: int, epsilon: object) -> Fraction:
    return _validate.fraction("epsilon", epsilon, above=0) / (2 * rounds)


def _scale(step: Fraction) -> float:
    """Return the noise scale 1 / step as a double, not below it."""
    return rounded_up("epsilon", str(step), 1 / step)
