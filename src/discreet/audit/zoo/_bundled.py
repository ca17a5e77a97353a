"""The mechanisms of this package, each on two neighbouring inputs, with its own claim.

The claim is the loss that the release itself carries, not one that is written here.
They are called one at a time, as users call them, so the numbers of samples are small:
enough to refute, say, a Laplace mechanism with half of the noise that is due.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, final

from discreet import mechanisms as m
from discreet.audit._outputs import Sampler
from discreet.audit.zoo._specimens import Specimen
from discreet.mechanisms import Release
from discreet.privacy import ApproxDP, Loss
from discreet.randomness import Source
from discreet.randomness import source as make_source

Call = Callable[[Any, Source], Any]

MOST_SAMPLES = 4_000
GAUSSIAN_DELTA = 0.05


@final
@dataclass(frozen=True)
class _OneByOne:
    """Draw by calling a mechanism as a user does; errors are outputs."""

    call: Call

    def __call__(self, data: Any, count: int, source: Source) -> Any:
        return Sampler(lambda given: self.call(given, source)).draw(data, count)


@final
@dataclass(frozen=True)
class _Stream:
    """A run of a stateful mechanism over a row of questions, until it halts."""

    start: Callable[[Source], Any]
    ask: Callable[[Any, Any], Release[Any]]

    def __call__(self, questions: Sequence[Any], source: Source) -> Release[tuple[Any, ...]]:
        run = self.start(source)
        said: list[Any] = []
        for question in questions:
            if run.halted:
                break
            said.append(self.ask(run, question).value)
        return Release(tuple(said), run.loss, {})


@cache
def bundled() -> dict[str, Specimen]:
    """Every mechanism of :mod:`discreet.mechanisms` that releases something, by name."""
    specimens = (*_additive(), *_choices(), *_responses(), *_streams(), *_stable(), *_databases())
    return {specimen.name: specimen for specimen in specimens}


def _specimen(
    name: str,
    call: Call,
    first: Any,
    second: Any,
    about: str,
    *,
    delta: float = 0.0,
    samples: int = MOST_SAMPLES,
) -> Specimen:
    loss: Loss = call(first, make_source(insecure_seed=0)).loss
    return Specimen(
        name=name,
        draw=_OneByOne(call),
        first=first,
        second=second,
        loss=loss,
        broken=False,
        about=about,
        delta=float(loss.claimed_delta) if isinstance(loss, ApproxDP) else delta,
        samples=samples,
    )


def _additive() -> list[Specimen]:
    unit: dict[str, Any] = {"sensitivity": 1, "epsilon": 1}
    normal: dict[str, Any] = {"sensitivity": 1, "stddev": 1}
    letters = "ab"
    return [
        _specimen(
            "laplace_integer",
            lambda v, s: m.laplace_integer(v, **unit, source=s),
            0,
            1,
            "exact Laplace noise",
        ),
        _specimen(
            "laplace_integers",
            lambda v, s: m.laplace_integers(v, **unit, source=s),
            [0, 0],
            [1, 0],
            "exact Laplace noise",
        ),
        _specimen(
            "laplace_real",
            lambda v, s: m.laplace_real(v, **unit, source=s),
            0.1,
            1.1,
            "exact Laplace noise",
        ),
        _specimen(
            "laplace_vector",
            lambda v, s: m.laplace_vector(v, **unit, granularity=2**-10, source=s),
            [0.1, 0.1],
            [0.6, -0.4],
            "exact Laplace noise",
        ),
        _specimen(
            "laplace_count",
            lambda v, s: m.laplace_count(v, epsilon=1, source=s),
            0,
            1,
            "exact Laplace noise",
        ),
        _specimen(
            "laplace_histogram",
            lambda v, s: m.laplace_histogram(
                v, categories=letters, epsilon=1, relation="replace", source=s
            ),
            "ab",
            "bb",
            "exact Laplace noise",
        ),
        _specimen(
            "laplace_fraction",
            lambda v, s: m.laplace_fraction(*v, epsilon=1, source=s),
            (0, 1),
            (1, 1),
            "exact Laplace noise",
        ),
        _specimen(
            "gaussian_integer",
            lambda v, s: m.gaussian_integer(v, **normal, source=s),
            0,
            1,
            "exact Gaussian noise",
            delta=GAUSSIAN_DELTA,
        ),
        _specimen(
            "gaussian_integers",
            lambda v, s: m.gaussian_integers(v, **normal, source=s),
            [0, 0],
            [1, 0],
            "exact Gaussian noise",
            delta=GAUSSIAN_DELTA,
        ),
        _specimen(
            "gaussian_real",
            lambda v, s: m.gaussian_real(v, **normal, source=s),
            0.1,
            1.1,
            "exact Gaussian noise",
            delta=GAUSSIAN_DELTA,
        ),
        _specimen(
            "gaussian_vector",
            lambda v, s: m.gaussian_vector(v, **normal, granularity=2**-10, source=s),
            [0.1, 0.1],
            [0.8, -0.6],
            "exact Gaussian noise",
            delta=GAUSSIAN_DELTA,
        ),
    ]


def _choices() -> list[Specimen]:
    unit: dict[str, Any] = {"sensitivity": 1, "epsilon": 1}
    down, up = [1, 0, 0, 0], [0, 1, 1, 1]
    return [
        _specimen(
            "exponential_choice",
            lambda v, s: m.exponential_choice(v, **unit, source=s),
            down,
            up,
            "a choice by scores",
        ),
        _specimen(
            "exponential_stream",
            lambda v, s: m.exponential_stream([v[:2], v[2:]], **unit, source=s),
            down,
            up,
            "a choice by scores, candidates in two parts",
        ),
        _specimen(
            "bernoulli_parameter",
            lambda v, s: m.bernoulli_parameter(*v, epsilon=3, points=64, source=s),
            (0, 0),
            (1, 0),
            "a choice by scores, truncated Beta",
        ),
        _specimen(
            "report_noisy_max",
            lambda v, s: m.report_noisy_max(v, **unit, granularity=1, source=s),
            down,
            up,
            "a choice by scores",
        ),
        _specimen(
            "permute_and_flip",
            lambda v, s: m.permute_and_flip(v, **unit, source=s),
            down,
            up,
            "a choice by scores",
        ),
    ]


def _responses() -> list[Specimen]:
    return [
        _specimen(
            "two_coin_response",
            lambda v, s: m.two_coin_response(v, source=s),
            True,
            False,
            "randomized response",
        ),
        _specimen(
            "binary_response",
            lambda v, s: m.binary_response(v, epsilon=1, source=s),
            True,
            False,
            "randomized response",
        ),
        _specimen(
            "k_ary_response",
            lambda v, s: m.k_ary_response(v, categories=(0, 1, 2, 3), epsilon=1, source=s),
            0,
            1,
            "randomized response",
        ),
    ]


def _streams() -> list[Specimen]:
    above = _Stream(
        lambda s: m.AboveThreshold(threshold=0, epsilon=2, sensitivity=1, granularity=1, source=s),
        lambda run, value: run.ask(value),
    )
    sparse = _Stream(
        lambda s: m.SparseVector(
            threshold=0, answers=2, epsilon=3, sensitivity=1, granularity=1, source=s
        ),
        lambda run, value: run.ask(value),
    )
    votes = m.most_votes(categories=2, relation="replace")
    stable = _Stream(
        lambda s: m.StableVector(fails=1, epsilon=3, delta=0.1, relation="replace", source=s),
        lambda run, counts: run.ask(counts, votes),
    )
    return [
        _specimen("AboveThreshold", above, (0, 0), (1, -1), "queries against a threshold"),
        _specimen(
            "SparseVector", sparse, (0, 0, 0, 0), (1, 1, -1, -1), "queries against a threshold"
        ),
        _specimen(
            "StableVector",
            stable,
            ((9, 1), (9, 1)),
            ((8, 2), (8, 2)),
            "stable answers in a stream",
            delta=0.1,
        ),
    ]


def _stable() -> list[Specimen]:
    votes = m.most_votes(categories=2, relation="replace")
    budget: dict[str, Any] = {"epsilon": 1, "delta": 0.1, "relation": "replace"}
    middle = m.median(relation="replace", lower=0, upper=3, integer=True, bound=2)
    agreed, nearly_agreed = [1] * 8, [1] * 7 + [0]
    return [
        _specimen(
            "release_if_stable",
            lambda v, s: m.release_if_stable(v, votes, **budget, source=s),
            (9, 1),
            (8, 2),
            "an answer if it is stable, most votes",
        ),
        _specimen(
            "propose_test_release",
            lambda v, s: m.propose_test_release(v, middle, noise_epsilon=1, **budget, source=s),
            [0, 0, 0, 1, 1, 1],
            [0, 0, 1, 1, 1, 1],
            "an answer with noise for the bound, if that holds: a median",
            delta=0.1,
        ),
        _specimen(
            "subsample_and_aggregate",
            lambda v, s: m.subsample_and_aggregate(v, sum, subsets=8, **budget, source=s),
            agreed,
            nearly_agreed,
            "subsample and aggregate, one record a subset",
        ),
    ]


def _databases() -> list[Specimen]:
    queries = [[1, 0], [0, 1]]
    budget: dict[str, Any] = {"epsilon": 1, "relation": "replace"}

    def weights(histogram: Any, source: Source) -> Release[Any]:
        out = m.multiplicative_weights(histogram, queries, rounds=1, **budget, source=source)
        return Release((*out.value.measured, *out.value.weights), out.loss, {})

    def database(histogram: Any, source: Source) -> Release[Any]:
        out = m.small_database(histogram, queries, size=3, **budget, source=source)
        return Release(out.value.histogram, out.loss, {})

    return [
        _specimen("small_database", database, [3, 3], [4, 2], "synthetic histogram", samples=3_000),
        _specimen(
            "multiplicative_weights", weights, [3, 3], [4, 2], "synthetic histogram", samples=1_000
        ),
    ]
