"""Seeded releases, bit for bit: value, loss and provenance of every mechanism."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from discreet.mechanisms import (
    AboveThreshold,
    Release,
    SparseVector,
    StableVector,
    bernoulli_parameter,
    binary_response,
    exponential_choice,
    exponential_stream,
    gaussian_integer,
    gaussian_integers,
    gaussian_real,
    gaussian_vector,
    k_ary_response,
    laplace_count,
    laplace_fraction,
    laplace_histogram,
    laplace_integer,
    laplace_integers,
    laplace_real,
    laplace_vector,
    most_votes,
    multiplicative_weights,
    permute_and_flip,
    release_if_stable,
    report_noisy_max,
    small_database,
    subsample_and_aggregate,
    two_coin_response,
)

SEED: dict[str, Any] = {"insecure_seed": 11}
SCORES = [0.5, 2, 3.25]
QUERIES = [[1, 0, 0, 0], [1, 1, 0, 0]]


def run_threshold() -> list[Release[bool]]:
    run = SparseVector(threshold=10, answers=3, epsilon=1, sensitivity=1, **SEED)
    found = []
    while not run.halted:
        found.append(run.ask(1.5 * len(found)))
    return found


def run_above() -> list[Release[bool]]:
    run = AboveThreshold(threshold=10, scale=3, sensitivity=1, **SEED)
    found = []
    while not run.halted:
        found.append(run.ask(1.5 * len(found)))
    return found


def run_stable() -> list[Release[Any]]:
    run = StableVector(fails=2, epsilon=1, delta=1e-5, relation="replace", **SEED)
    votes = most_votes(categories=2, relation="replace")
    data = ([900, 1], [1, 900], [450, 451], [9, 900], [3, 3])
    return [run.ask(counts, votes) for counts in data if not run.halted]


RELEASES: dict[str, tuple[Callable[[], Any], str]] = {
    "laplace_integer": (
        lambda: laplace_integer(120, sensitivity=3, epsilon=0.3, **SEED),
        "1b32cf62219418af",
    ),
    "laplace_integers": (
        lambda: laplace_integers([[1], [9]], sensitivity=1, scale=3, **SEED),
        "f3f55c5e5d10dcf2",
    ),
    "laplace_real": (
        lambda: laplace_real(0.25, sensitivity="1/3", epsilon=0.3, **SEED),
        "167b4abeae0c2544",
    ),
    "laplace_vector": (
        lambda: laplace_vector([0.5, -2.0], sensitivity=1, scale=7, **SEED),
        "7c3aafa4c5d921e4",
    ),
    "gaussian_integer": (
        lambda: gaussian_integer(120, sensitivity=3, stddev="10/3", **SEED),
        "c15953c72764a6c0",
    ),
    "gaussian_integers": (
        lambda: gaussian_integers([3, 4], sensitivity=1, stddev=9, **SEED),
        "dce7a9335e8520b4",
    ),
    "gaussian_real": (
        lambda: gaussian_real(0.25, sensitivity=0.1, stddev=2, **SEED),
        "c08e2fc0960b6080",
    ),
    "gaussian_vector": (
        lambda: gaussian_vector([0.5, -2.0], sensitivity=1, stddev=5, **SEED),
        "5a87e3010ffa7607",
    ),
    "laplace_count": (lambda: laplace_count(12, epsilon=0.3, **SEED), "dec6d34b552bb921"),
    "laplace_histogram": (
        lambda: laplace_histogram("abbac", categories="abd", epsilon=1, relation="replace", **SEED),
        "7e7e5e81b25b1e78",
    ),
    "laplace_fraction": (lambda: laplace_fraction(12, 30, scale=2, **SEED), "3a22d93ba2417fe5"),
    "exponential_choice": (
        lambda: exponential_choice(SCORES, sensitivity=1, epsilon=2, **SEED),
        "575e4b5ae4bc6a14",
    ),
    "exponential_stream": (
        lambda: exponential_stream([SCORES, SCORES], score_range=2, rate="1/3", **SEED),
        "ec17f4d9cf823dc9",
    ),
    "permute_and_flip": (
        lambda: permute_and_flip(SCORES, sensitivity=1, rate=1, **SEED),
        "610e8ff00b3e5d2c",
    ),
    "report_noisy_max": (
        lambda: report_noisy_max(SCORES, sensitivity=1, epsilon=1, **SEED),
        "5a272694cc6dc8bb",
    ),
    "bernoulli_parameter": (
        lambda: bernoulli_parameter(70, 30, epsilon=0.1, **SEED),
        "489305cdd52d17d7",
    ),
    "two_coin_response": (
        lambda: two_coin_response([True, False] * 20, **SEED),
        "faba65043a86ac19",
    ),
    "binary_response": (
        lambda: binary_response([True, False] * 20, epsilon=0.7, **SEED),
        "2b1a8d77520da869",
    ),
    "k_ary_response": (
        lambda: k_ary_response(list("abcab"), categories="abc", epsilon=0.7, **SEED),
        "8bea60cd8d11f1ae",
    ),
    "above_threshold": (run_above, "9b6799a42968142d"),
    "sparse_vector": (run_threshold, "fcbe1d150b9e146e"),
    "stable_vector": (run_stable, "f05e7182f1bd6e8e"),
    "release_if_stable": (
        lambda: release_if_stable(
            [1, 40, 9],
            most_votes(categories=3, relation="add_remove"),
            epsilon=1,
            delta=1e-5,
            **SEED,
        ),
        "927cbbf76588259a",
    ),
    "subsample_and_aggregate": (
        lambda: subsample_and_aggregate(
            list(range(500)),
            lambda part: len(part) > 7,
            subsets=50,
            epsilon=1,
            delta=1e-5,
            relation="add_remove",
            **SEED,
        ),
        "dc1a5c649941b483",
    ),
    "small_database": (
        lambda: small_database(
            [300, 100, 0, 0], QUERIES, size=4, epsilon=1, relation="replace", **SEED
        ),
        "5b0618593606d3c6",
    ),
    "multiplicative_weights": (
        lambda: (
            multiplicative_weights(
                [700, 200, 100, 0], QUERIES, rounds=3, epsilon=3, relation="replace", **SEED
            ).value.measured
        ),
        "898adeb494f7dc17",
    ),
}


def shown(found: Any) -> object:
    if isinstance(found, list):
        return [shown(one) for one in found]
    if not isinstance(found, Release):
        return found
    value = found.value.tolist() if isinstance(found.value, np.ndarray) else found.value
    return value, repr(found.loss), dict(found.provenance)


@pytest.mark.parametrize("name", RELEASES)
def test_a_seed_gives_what_it_gave_in_version_0_1(name: str) -> None:
    release, expected = RELEASES[name]
    assert hashlib.sha256(repr(shown(release())).encode()).hexdigest()[:16] == expected
