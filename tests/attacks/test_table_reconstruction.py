"""Tables follow from their published counts, and noise for a budget keeps them (S30)."""

import math
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from discreet.attacks import (
    marginal_queries,
    reconstruction,
    run_attack,
    table_reconstruction,
)
from discreet.errors import InvalidValue
from discreet.mechanisms import laplace_integer
from discreet.randomness import source

SHAPE = (2, 8, 3)  # sex, age band and origin of the people of one block
TABLES = [(), (0, 1), (0, 2), (1, 2)]
QUERIES = marginal_queries(SHAPE, TABLES)


def block(people: int, seed: int) -> Any:
    draw = np.random.default_rng(seed)
    return np.bincount(draw.integers(math.prod(SHAPE), size=people), minlength=48)


def noisy(counts: Any, epsilon: float, seed: int) -> tuple[Any, float]:
    """All counts with Laplace noise for one budget, and a tolerance wrong with chance 1e-9."""
    bits, scale = source(insecure_seed=seed), len(TABLES) / epsilon
    answers = [
        laplace_integer(int(c), sensitivity=len(TABLES), epsilon=epsilon, source=bits).value
        for c in counts
    ]
    return np.array(answers, dtype=float), math.ceil(scale * math.log(len(counts) / 1e-9))


def test_exact_counts_of_a_block_settle_most_people_and_never_wrongly() -> None:
    shares = []
    for seed in range(3):
        cells = block(12, seed)
        found = table_reconstruction(QUERIES @ cells, QUERIES, cells)
        assert found.fits
        assert found.wrong_cells == 0
        assert (found.least <= cells).all()
        assert (cells <= found.most).all()
        shares.append(found.finding.value)
    assert np.mean(shares) > 0.6


def test_noise_for_a_budget_settles_little_and_a_tolerance_too_small_is_wrong() -> None:
    """The null target: at epsilon 1 what is settled is right, and next to nothing is."""
    cells = block(12, 1)
    settled = {}
    for epsilon in (1.0, 100.0):
        answers, tolerance = noisy(QUERIES @ cells, epsilon, 3)
        found = table_reconstruction(answers, QUERIES, cells, tolerance=tolerance)
        assert found.fits
        assert found.wrong_cells == 0
        settled[epsilon] = found.settled_people
    assert settled[1.0] == 0
    exact = table_reconstruction(QUERIES @ cells, QUERIES, cells)
    assert settled[100.0] <= exact.settled_people
    # The planted fault: answers with noise, read as if they were exact.
    answers, _ = noisy(QUERIES @ cells, 1.0, 3)
    careless = table_reconstruction(answers, QUERIES, cells)
    assert not careless.fits or careless.wrong_cells > 0


def test_a_total_alone_settles_nobody() -> None:
    found = table_reconstruction([12], QUERIES[:1], block(12, 1))
    assert (found.settled_people, found.fits) == (0, True)


def test_a_cell_that_no_count_speaks_of_is_unbounded() -> None:
    queries = np.array([[True, False]])
    found = table_reconstruction([2], queries, [2, 7])
    assert found.least.tolist() == [2, 0]
    assert found.most[0] == 2
    assert found.most[1] > 10**15
    assert found.settled_people == 2


def test_a_table_that_nobody_here_made_follows_from_its_counts() -> None:
    """Tumours by diagnosis, size and texture, each cut in three."""
    x, y = load_breast_cancer(return_X_y=True)
    bands = [np.digitize(x[:40, at], np.quantile(x[:40, at], (1 / 3, 2 / 3))) for at in (0, 1)]
    cells = np.bincount(np.ravel_multi_index([y[:40], *bands], (2, 3, 3)), minlength=18)
    queries = marginal_queries((2, 3, 3), [(0, 1), (0, 2), (1, 2)])
    run = run_attack(
        "table_reconstruction", {"answers": queries @ cells, "queries": queries, "cells": cells}
    )
    assert run.finding is not None
    assert run.finding.value > 0.1
    assert run.result.wrong_cells == 0


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"queries": np.ones((1, 2))}, "queries"),
        ({"cells": [1, -1]}, "cells"),
        ({"cells": [0, 0]}, "cells"),
        ({"cells": [0.5, 1.0]}, "cells"),
        ({"answers": [1.0, 2.0]}, "answers"),
        ({"answers": [math.nan]}, "answers"),
        ({"tolerance": -1.0}, "tolerance"),
    ],
)
def test_counts_that_cannot_be_are_refused(change: dict[str, Any], argument: str) -> None:
    good = {"answers": [2.0], "queries": np.ones((1, 2), dtype=bool), "cells": [1, 1]}
    with pytest.raises(InvalidValue) as refused:
        table_reconstruction(**{**good, **change})
    assert refused.value.argument == argument


# --- bits of a column, by linear programs ------------------------------------------------------


def answered(rows: int, queries: int, noise: Any, seed: int) -> Any:
    draw = np.random.default_rng(seed)
    bits, sets = draw.random(rows) < 0.5, draw.random((queries, rows)) < 0.5
    return sets @ bits.astype(float) + noise(draw, queries), sets, bits


def test_linear_programs_are_not_misled_by_wild_answers() -> None:
    """A tenth of the answers is anything at all; all others are right to within one."""

    def noise(draw: Any, size: int) -> Any:
        wild = draw.random(size) < 0.1
        return np.where(wild, draw.uniform(-60, 60, size), draw.uniform(-1, 1, size))

    given = answered(60, 300, noise, 1)
    program = reconstruction(*given, method="linear program")
    squares = reconstruction(*given)
    assert program.accuracy.share > 0.98
    assert program.accuracy.share > squares.accuracy.share
    with pytest.raises(InvalidValue, match="method"):
        reconstruction(*given, method="guess")


@pytest.mark.parametrize("method", ["least squares", "linear program"])
def test_a_budget_for_all_answers_together_keeps_the_bits(method: str) -> None:
    """Laplace noise of one budget over all answers: epsilon 1 keeps them, epsilon 1000 does not."""

    def by_budget(epsilon: float) -> Any:
        def noise(draw: Any, size: int) -> Any:
            return draw.laplace(scale=size / epsilon, size=size)

        return reconstruction(*answered(60, 240, noise, 2), method=method)

    shares = [by_budget(epsilon).accuracy.share for epsilon in (1.0, 100.0, 1000.0)]
    assert shares[0] < 0.75
    assert shares[-1] > 0.98
    assert shares == sorted(shares)
