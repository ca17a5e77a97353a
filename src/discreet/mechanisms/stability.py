"""Exact answers to stable questions: M_stab, also called propose-test-release (S16).

If an answer stays the same however a few records are changed, it can be released as it
is. The mechanism tests with noise how many changes the answer withstands:

    release f(D) if dist(D) + noise > T = ln(1/delta) / epsilon, else fail.

dist(D) is (fewest changes that alter f) - 1, or any integer that (a) changes by at
most one between neighbours and (b) is zero or less wherever a neighbour has another
answer; the fewest changes satisfy both. The noise is discrete Laplace of scale
1 / epsilon, so the test is dist + noise >= m with m = floor(T) + 1.

**Guarantee.** (epsilon, delta')-DP with delta' = e^(-epsilon m) / (1 + e^-epsilon),
which is below delta, and attained. Proof: if f(D) = f(D'), the outcome is
post-processing of a noisy count of sensitivity 1 and epsilon-DP; otherwise both
distances are at most 0, the answer comes out with probability at most
P(noise >= m) = delta', and the probabilities of failing are still within e^epsilon.
(Continuous noise would give delta / 2.)

The ready functions for medians, modes and votes are in
:mod:`discreet.mechanisms.distances`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any, Generic, NamedTuple, TypeVar, final

from discreet import _validate
from discreet._validate import withheld
from discreet.errors import InvalidValue, RelationMismatch
from discreet.mechanisms.certified import (
    exp_bounds,
    laplace_tail,
    threshold_above,
    workable_delta,
    workable_epsilon,
)
from discreet.mechanisms.release import Release
from discreet.privacy import ApproxDP, Relation
from discreet.randomness import Source, choose_source, discrete_laplace

__all__ = [
    "FAIL",
    "Fail",
    "StabilityTest",
    "StableFunction",
    "agreed_relation",
    "release_if_stable",
    "stability_test",
]

Data = TypeVar("Data")
Value = TypeVar("Value")


class Fail(Enum):
    """The type of :data:`FAIL`, so that a type checker can tell it from an answer."""

    FAIL = "fail"

    def __repr__(self) -> str:
        return "FAIL"


FAIL = Fail.FAIL
"""The outcome of a test that was not passed."""


@final
@dataclass(frozen=True)
class StableFunction(Generic[Data, Value]):
    """A function of the data together with its distance to instability.

    ``distance(data)`` is an integer as described on top of this module, counted in
    changes of ``relation``; the caller vouches for it. Neither callable may raise an
    error that depends on the records.

    >>> larger = StableFunction(
    ...     value=lambda counts: int(counts[1] > counts[0]),
    ...     distance=lambda counts: abs(counts[1] - counts[0]) - 1,
    ...     relation="add_remove",
    ...     name="which of two counts is larger",
    ... )
    >>> larger.value([10, 400]), larger.distance([10, 400])
    (1, 389)
    """

    value: Callable[[Data], Value]
    distance: Callable[[Data], int]
    relation: Relation | str
    name: str = "a function given by the caller"

    def __post_init__(self) -> None:
        for argument in ("value", "distance"):
            if not callable(getattr(self, argument)):
                raise InvalidValue(argument, getattr(self, argument), "a function of the data")
        object.__setattr__(self, "relation", Relation.parse(self.relation))

    def evaluate(self, data: Data) -> tuple[Value, int]:
        """Return the answer and its distance, neither of which is private yet."""
        value, distance = self.value(data), self.distance(data)
        try:
            return value, _validate.integer("distance", distance)
        except InvalidValue:
            raise withheld("distance", "an integer from the distance function") from None


@final
class StabilityTest(NamedTuple):
    """The public parameters of a test: distance + noise of scale 1/epsilon >= threshold."""

    epsilon: Fraction
    threshold: int
    delta: Fraction

    def passes(self, distance: int) -> float:
        """The probability that an answer of this distance is released."""
        beyond = self.threshold - distance
        if beyond >= 0:
            return float(laplace_tail(self.epsilon, beyond))
        # P(noise >= -k) = 1 - P(noise >= k + 1)
        return 1.0 - float(laplace_tail(self.epsilon, 1 - beyond))

    def distance_needed(self, failure: float) -> int:
        """The least distance that is released with probability at least 1 - ``failure``.

        It is about (ln(1/delta) + ln(1/failure)) / epsilon, as in the lectures.
        """
        chance = workable_delta(failure)
        # P(noise <= -k) = e^(-epsilon k) / (1 + e^-epsilon) must not pass the failure.
        near = exp_bounds(self.epsilon)[0]
        k = threshold_above(self.epsilon, min(chance * (1 + near), Fraction(1)))
        return self.threshold + k - 1


def stability_test(*, epsilon: object, delta: object) -> StabilityTest:
    """Return threshold and exact delta of M_stab before anything is run (S16).

    >>> test = stability_test(epsilon=1, delta=1e-5)
    >>> test.threshold, float(test.delta)
    (12, 4.49177914983e-06)
    """
    rate = workable_epsilon(epsilon)
    target = workable_delta(delta)
    threshold = threshold_above(rate, target)
    return StabilityTest(rate, threshold, laplace_tail(rate, threshold))


def release_if_stable(
    data: Data,
    function: StableFunction[Data, Value],
    *,
    epsilon: object,
    delta: object,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[Value | Fail]:
    """Release f(data) exactly, or :data:`FAIL` (M_stab, S16).

    The loss is ApproxDP(epsilon, delta') with the exact delta' of
    :func:`stability_test`, below ``delta``; it is spent in either case. There is no
    interval: an answer that comes out is f(data) itself.

    >>> from discreet.mechanisms import most_votes
    >>> votes = most_votes(categories=3, relation="replace")
    >>> out = release_if_stable(
    ...     [1, 900, 2], votes, epsilon=1, delta=1e-5, relation="replace", insecure_seed=1
    ... )
    >>> out.value, out.loss
    (1, ApproxDP(epsilon=1, delta=4.49177914983e-06, relation='replace'))
    """
    test = stability_test(epsilon=epsilon, delta=delta)
    chosen = agreed_relation(function, relation)
    bits = choose_source(source, insecure_seed)
    value, distance = function.evaluate(data)
    noise = discrete_laplace(1 / test.epsilon, source=bits)
    outcome = value if distance + noise >= test.threshold else FAIL
    provenance: dict[str, Any] = {
        "mechanism": "release_if_stable",
        "function": function.name,
        "relation": chosen.value,
        "threshold": test.threshold,
        "scale": str(1 / test.epsilon),
        **bits.provenance,
    }
    return Release(outcome, ApproxDP(test.epsilon, test.delta, chosen), provenance)


def agreed_relation(function: StableFunction[Any, Any], relation: Relation | str) -> Relation:
    """Return the relation if the function's distance is counted in its changes."""
    chosen = Relation.parse(relation)
    if not isinstance(function, StableFunction):
        raise InvalidValue("function", function, "a StableFunction")
    if function.relation is not chosen:
        raise RelationMismatch(
            f"the distance of {function.name!r} counts changes under {function.relation!s}, "
            f"the release was asked for under {chosen!s}"
        )
    return chosen
