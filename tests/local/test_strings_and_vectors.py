"""Sketches, frequent strings and unit vectors."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from discreet.errors import InvalidValue, MechanismHalted, NotApplicable
from discreet.local import CountMeanSketch, HeavyHitters, VectorOracle
from discreet.local._vectors import _choose_cap
from discreet.mechanisms import channel_epsilon

ROOT = Fraction(7, 5)


@pytest.mark.parametrize(("width", "rows"), [(2, 1), (2, 3), (4, 2)])
def test_the_channel_of_a_sketch_has_exactly_the_stated_odds(width: int, rows: int) -> None:
    _, matrix = CountMeanSketch(1, width=width, rows=rows).channel(ROOT)
    assert all(sum(row) == 1 for row in matrix)
    ratios = [max(column) / min(column) for column in zip(*matrix, strict=True)]
    assert max(ratios) == ROOT**2
    assert channel_epsilon(matrix) == pytest.approx(2 * math.log(1.4), rel=1e-12)


def test_a_sketch_finds_the_shares_of_words() -> None:
    plan = CountMeanSketch(4, width=256, rows=64)
    words = ["tea"] * 9_000 + ["milk"] * 1_000 + [f"word {i}" for i in range(2_000)]
    server = plan.server()
    assert server.aggregate(plan.randomize_each(words, insecure_seed=4)) == 12_000
    assert plan.client().randomize(10**9999)  # more digits than Python would write
    asked = ["tea", "milk", "never", b"tea", 5, 1.5, None]
    found = server.estimate(asked)
    true = np.array([0.75, 1 / 12, 0, 0, 0, 0, 0])
    low, high = found.interval(confidence=1 - 1e-7)
    assert ((low <= true) & (true <= high)).all()
    assert np.abs(found.shares - true).max() < 0.05
    # More people do not narrow it below what collisions leave open.
    assert (high - low)[0] > 0.005
    with pytest.raises(InvalidValue, match="values"):
        plan.randomize_each("tea")
    for wrong in ({"width": 100}, {"rows": 0}, {"epsilon": -1}):
        with pytest.raises(InvalidValue):
            CountMeanSketch(**{"epsilon": 1, **wrong})
    bad = plan.randomize_each(["tea"])
    bad[0, 12] = 64
    assert plan.server().aggregate(bad) == 0
    with pytest.raises(NotApplicable):
        plan.server().estimate(["tea"])


def test_frequent_strings_are_found_letter_by_letter() -> None:
    rng = np.random.default_rng(8)
    rest = ["".join(row) for row in rng.choice(list("abcdefgh"), (20_000, 6))]
    people = ["badge"] * 12_000 + ["headed"] * 8_000 + rest + [None, 7, "ZZZ", "bad\0ge"] * 50
    order = rng.permutation(len(people))
    hunt = HeavyHitters("abcdefgh", 6, 3, step=2, survivors=16)
    found = hunt.run([people[i] for i in order], insecure_seed=3)
    assert [text for text, _ in found[:2]] == ["badge", "headed"]
    assert found[0][1] == pytest.approx(0.3, abs=0.05)
    assert float(hunt.loss.epsilon(delta=0)) == 3
    with pytest.raises(MechanismHalted, match="all rounds"):
        hunt.close_round([])


def test_who_is_no_candidate_sends_a_report_like_anybody() -> None:
    hunt = HeavyHitters("ab", 4, 2, step=2, survivors=2)
    reports = hunt.randomize_each(["abab", "zz", None, 5, "", "\0", "a" * 99])
    assert reports.shape == (7, hunt.oracle.report_bytes)
    assert hunt.prefix("") == "\0\0"
    assert "\0a" not in hunt.oracle.domain.labels  # nothing follows an end
    # Fewer people than the noise: nothing goes on, and no error.
    assert hunt.close_round(hunt.randomize_each(["ab"] * 3, insecure_seed=1)) in ([], ["ab"])
    with pytest.raises(NotApplicable):
        HeavyHitters("ab", 4, 2).close_round([b"noise"])
    for wrong in (("", 3), ("a\0", 3), ("ab", 0)):
        with pytest.raises(InvalidValue):
            HeavyHitters(*wrong, 1)
    with pytest.raises(InvalidValue, match="candidates"):
        HeavyHitters("abcdefghijklmnopqrstuvwxyz", 9, 1, step=5)


# --- unit vectors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "epsilon",
    [2, *(pytest.param(e, marks=pytest.mark.slow) for e in (Fraction(1, 100), 1, 4, 8, 16, 30))],
)
@mpmath.workdps(25)
def test_the_density_ratio_by_quadrature_is_at_most_e_to_the_epsilon(epsilon: Fraction) -> None:
    """The density against N(0, I/d) depends on <u, v> alone, for d from 1 to 1,000 and any d."""
    chance, threshold, _ = _choose_cap(float(epsilon))
    p = mpmath.mpf(chance.numerator) / chance.denominator
    for dimension in (1, 2, 10, 100, 1_000):
        root = mpmath.sqrt(dimension)
        g = mpmath.mpf(threshold) / root

        def density(s: mpmath.mpf, root: mpmath.mpf = root) -> mpmath.mpf:
            return root / mpmath.sqrt(2 * mpmath.pi) * mpmath.exp(-((root * s) ** 2) / 2)

        far = mpmath.mpf(40) / root
        points = [g, *(g + (far - g) * k / 10 for k in range(1, 11))]
        beyond = mpmath.quad(density, points)
        ratio = p / beyond / ((1 - p) / (1 - beyond))
        assert ratio <= mpmath.exp(mpmath.mpf(str(float(epsilon))))
        assert mpmath.log(ratio) >= float(epsilon) * (1 - 1e-6)


@pytest.mark.parametrize(("epsilon", "known"), [(1, 6.33), (2, 1.617), (4, 0.435), (8, 0.133)])
def test_the_error_of_a_vector_is_that_of_the_paper(epsilon: int, known: float) -> None:
    oracle = VectorOracle(1_000, epsilon)
    assert oracle.mean_square_error(1) / 1_000 == pytest.approx(known, rel=0.01)
    assert oracle.assumptions


@pytest.mark.parametrize("dimension", [1, 2, 30])
def test_vectors_are_unbiased_with_the_stated_error(dimension: int) -> None:
    oracle = VectorOracle(dimension, 4)
    people = 6_000
    direction = np.arange(1.0, dimension + 1)
    direction /= np.linalg.norm(direction)
    server = oracle.server()
    reports = oracle.randomize_each(np.tile(3.0 * direction, (people, 1)), insecure_seed=6)
    assert server.aggregate(reports) == people
    found = server.estimate()
    error = float(np.sum((found.mean - direction) ** 2))
    # A sum of squares of d near-normal errors: beyond 40 times its mean below 1e-8 (d = 1).
    assert error < 40 * found.mean_square_error
    single = (
        reports[:, 12:].copy().view("<i4")
        / (1 << 20)
        / (oracle._method.bias / math.sqrt(dimension))
    )
    measured = float(np.mean(np.sum((single - direction) ** 2, axis=1)))
    assert measured == pytest.approx(oracle.mean_square_error(1), rel=0.15)
    # In the cap exactly as often as the coin says, seen through the grid.
    along = reports[:, 12:].copy().view("<i4") @ direction / (1 << 20) * math.sqrt(dimension)
    in_cap = float(np.mean(along >= oracle._method.threshold))
    assert abs(in_cap - float(oracle._method.chance)) < 5.5 * math.sqrt(0.25 / people)


def test_what_has_no_direction_is_reported_all_the_same() -> None:
    oracle = VectorOracle(2, 1)
    odd = [[0.0, 0.0], [math.nan, 1.0], [math.inf, 0.0], [1e300, 1e300], [1e-320, 0.0]]
    assert np.allclose(np.linalg.norm(oracle._read(odd), axis=1), 1.0)
    assert oracle.server().aggregate(oracle.randomize_each(odd)) == 5
    for nothing in ("text", None, 3.0, [1.0], [[1.0, 2.0]], ["a", "b"], object()):
        assert oracle._identify(nothing) == oracle._identify([1.0, 0.0])
        assert len(oracle.client().randomize(nothing)) == oracle.report_bytes
    with pytest.raises(NotApplicable, match="no finite list"):
        oracle.channel(2)
    forged = oracle.randomize_each([[1.0, 0.0]])
    forged[:, 12:16] = 127
    server = oracle.server()
    assert server.aggregate(forged) == 0
    assert server.rejected == {"impossible": 1}
    for wrong in ([1.0, 2.0], [[1.0]], "text"):
        with pytest.raises(InvalidValue, match="values"):
            oracle.randomize_each(wrong)
    for dimension, epsilon in ((0, 1), (2, 0), (2, 31), (2, "1/10000000")):
        with pytest.raises(InvalidValue):
            VectorOracle(dimension, epsilon)


@pytest.mark.parametrize("dimension", [1, 2, 9, 2_000])
@pytest.mark.parametrize("epsilon", ["1/100", 4, 30])
def test_a_made_up_vector_is_not_much_longer_than_a_true_one(
    dimension: int, epsilon: str | int
) -> None:
    oracle = VectorOracle(dimension, epsilon)
    true = oracle.randomize_each(np.eye(dimension)[[0] * 300])
    assert oracle.server().aggregate(true) == 300
    for room, counted in ((21.0, 1), (23.0, 0)):
        payload = np.zeros((1, dimension), dtype="<i4")
        payload[0, 0] = int((1 << 20) * (1 + room / math.sqrt(dimension)))
        fake = true[:1].copy()
        fake[:, 12:] = payload.view(np.uint8)
        assert oracle.server().aggregate(fake) == counted
