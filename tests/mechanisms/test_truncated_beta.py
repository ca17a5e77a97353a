"""S13: the coin's parameter by the exponential mechanism, a truncated Beta."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from discreet.errors import InvalidValue
from discreet.mechanisms import bernoulli_parameter
from discreet.mechanisms._selection import _table
from discreet.privacy import Exponential, Relation
from discreet.randomness import source
from mechanisms.exact_pairs import REJECT, chi_square
from randomness.scripted_source import ScriptedSource


def truncated_beta_cells(heads: int, tails: int, c: float, edges: np.ndarray) -> np.ndarray:
    beta = stats.beta(1 + c * heads, 1 + c * tails)
    return np.diff(beta.cdf(edges)) / (beta.cdf(0.9) - beta.cdf(0.1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("relation", "calibration", "c", "cost"),
    [
        (
            "add_remove",
            "sensitivity",
            0.5 / (2 * 2.302585093),
            0.5 * 2.197224577 / (2 * 2.302585093),
        ),
        ("add_remove", "range", 0.5 / 2.197224577, 0.5),
        ("replace", "sensitivity", 0.5 / (2 * 2.197224577), 0.5),
        ("replace", "range", 0.5 / (2 * 2.197224577), 0.5),
    ],
)
def test_draws_follow_the_truncated_beta(
    relation: str, calibration: str, c: float, cost: float
) -> None:
    bits = source(insecure_seed=61)
    edges = np.linspace(0.1, 0.9, 17)
    draws = []
    for _ in range(1500):
        release = bernoulli_parameter(
            30,
            10,
            epsilon=0.5,
            relation=relation,
            calibration=calibration,
            points=512,
            source=bits,
        )
        draws.append(release.value)
    assert release.provenance["concentration"] == pytest.approx(c, rel=1e-8)
    assert isinstance(release.loss, Exponential)
    # 512 midpoints do not reach the ends of the interval, so the cost is a little less.
    assert cost * 0.99 < release.loss.pure_epsilon <= min(cost * (1 + 1e-8), 0.5)
    seen, _ = np.histogram(draws, bins=edges)
    assert chi_square(seen.tolist(), truncated_beta_cells(30, 10, c, edges)) > REJECT
    # Forgetting the factor c is seen at once.
    assert chi_square(seen.tolist(), truncated_beta_cells(30, 10, 1.0, edges)) < REJECT


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("points", [2, 33, 1024])
def test_the_range_of_the_rounded_scores_is_exact(relation: Relation, points: int) -> None:
    table = _table(Fraction(1, 10), points)
    changes = (
        [[a - b for a, b in zip(table.heads, table.tails, strict=True)]]
        if relation is Relation.REPLACE
        else [table.heads, table.tails]
    )
    widest = max(max(change) - min(change) for change in changes)
    assert widest <= table.spread(relation)
    assert table.spread(relation) <= widest * (1 + 1e-12)
    limit = math.log(9) * (2 if relation is Relation.REPLACE else 1)
    assert table.spread(relation) / 2**52 <= limit
    assert 0.1 < min(table.candidates) < max(table.candidates) < 0.9


def test_neighbours_stay_within_the_loss() -> None:
    table = _table(Fraction(1, 10), 64)
    release = bernoulli_parameter(5, 4, epsilon=1, points=64)
    c = release.provenance["concentration"] / 2**52

    def output(heads: int, tails: int) -> np.ndarray:
        scores = c * np.array(
            [heads * a + tails * b for a, b in zip(table.heads, table.tails, strict=True)]
        )
        weights = np.exp(scores - scores.max())
        return weights / weights.sum()

    for pair in (((5, 4), (6, 4)), ((5, 4), (5, 5))):
        losses = np.log(output(*pair[0]) / output(*pair[1]))
        assert losses.max() - losses.min() <= release.loss.pure_epsilon * (1 + 1e-9)
    # A replaced flip costs more than an added one: the relation matters.
    losses = np.log(output(5, 4) / output(6, 3))
    assert losses.max() - losses.min() > release.loss.pure_epsilon * 1.5


def test_shortfall_and_seed() -> None:
    first = bernoulli_parameter(70, 30, epsilon=1, insecure_seed=2)
    assert first.value == bernoulli_parameter(70, 30, epsilon=1, insecure_seed=2).value
    assert first.provenance["randomness"] == "INSECURE seed 2"
    c = first.provenance["concentration"]
    assert first.shortfall(confidence=0.9) == pytest.approx(math.log(4096 / 0.1) / c, rel=1e-6)
    best = max(70 * math.log(t) + 30 * math.log(1 - t) for t in np.linspace(0.1001, 0.8999, 999))
    mine = 70 * math.log(first.value) + 30 * math.log(1 - first.value)
    assert best - mine <= first.shortfall(confidence=1 - 1e-9)


@pytest.mark.parametrize(
    ("wrong", "argument"),
    [
        ({"heads": -1}, "heads"),
        ({"heads": 1.0}, "heads"),
        ({"tails": True}, "tails"),
        ({"tails": math.nan}, "tails"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"margin": 0}, "margin"),
        ({"margin": 0.5}, "margin"),
        ({"points": 1}, "points"),
        ({"calibration": "lecture"}, "calibration"),
        ({"relation": "swap"}, "relation"),
    ],
)
def test_wrong_parameters_are_refused_before_a_draw(
    wrong: dict[str, object], argument: str
) -> None:
    arguments = {"heads": 3, "tails": 4, "epsilon": 1, "points": 16, **wrong}
    heads, tails = arguments.pop("heads"), arguments.pop("tails")
    with pytest.raises(InvalidValue, match=f"^{argument} = "):
        bernoulli_parameter(heads, tails, source=ScriptedSource(), **arguments)
