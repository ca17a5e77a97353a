"""LiRA (S28): by hand, against theory, at chance, and with its classic bugs planted."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from attacks.membership.worlds import (
    GaussianWorld,
    assert_chance,
    by_hand,
    forget_twins,
    permuted,
    without_twins,
)
from discreet.attacks import Observation, ShadowPool, ShadowScores, lira, yeom
from discreet.errors import InvalidValue

lira_source = import_module("discreet.attacks._lira")


def small() -> tuple[Observation, ShadowScores]:
    """Record 0: inside 1, 3; outside -1, 1; target 2. Record 1: inside 0, 4; outside 0, 2."""
    return by_hand(
        [2.0, 3.0],
        [[1.0, 0.0], [3.0, 0.0], [-1.0, 4.0], [1.0, 2.0]],
        [[True, True], [True, False], [False, True], [False, False]],
        [True, False],
    )


def judge_online() -> None:
    seen, shadows = small()
    own = lira(seen, shadows, variance="per_record")
    # Record 0: N(2, 2) against N(0, 2) at 2. Record 1: N(2, 8) against N(1, 2) at 3.
    wanted = [
        stats.norm.logpdf(2, 2, np.sqrt(2)) - stats.norm.logpdf(2, 0, np.sqrt(2)),
        stats.norm.logpdf(3, 2, np.sqrt(8)) - stats.norm.logpdf(3, 1, np.sqrt(2)),
    ]
    np.testing.assert_allclose(own.scores, wanted, rtol=1e-5)
    assert wanted[0] == pytest.approx(1.0)
    assert own.decisions is not None
    assert own.decisions.tolist() == [True, wanted[1] > 0]


def judge_offline() -> None:
    seen, shadows = small()
    own = lira(seen, shadows, variance="per_record", mode="offline")
    # Two models without each: one degree of freedom, variance 2 (1 + 1/2).
    wanted = [-stats.t.logsf(2, 1, 0, np.sqrt(3)), -stats.t.logsf(3, 1, 1, np.sqrt(3))]
    np.testing.assert_allclose(own.scores, wanted, rtol=1e-5)
    assert own.threshold == pytest.approx(-np.log(0.05))


def test_online_by_hand() -> None:
    judge_online()


def test_offline_by_hand() -> None:
    judge_offline()


def test_shared_and_moderated_variance_by_hand() -> None:
    seen, shadows = small()
    # Sums of squares inside: 2 and 8, one degree of freedom each; outside: 2 and 2.
    shared = lira(seen, shadows, variance="shared").scores
    inside, outside = np.sqrt(5.0), np.sqrt(2.0)
    wanted = [
        stats.norm.logpdf(2, 2, inside) - stats.norm.logpdf(2, 0, outside),
        stats.norm.logpdf(3, 2, inside) - stats.norm.logpdf(3, 1, outside),
    ]
    np.testing.assert_allclose(shared, wanted, rtol=1e-5)
    moderated = lira(seen, shadows).scores
    spread = [np.sqrt((2 + 4 * 5) / 5), np.sqrt((8 + 4 * 5) / 5)]
    wanted = [
        stats.norm.logpdf(2, 2, spread[0]) - stats.norm.logpdf(2, 0, outside),
        stats.norm.logpdf(3, 2, spread[1]) - stats.norm.logpdf(3, 1, outside),
    ]
    np.testing.assert_allclose(moderated, wanted, rtol=1e-5)


@pytest.fixture(scope="module")
def leaking() -> tuple[Observation, ShadowScores]:
    return GaussianWorld(2000, gain=1.0).pool(65).run().leave_out(0)


@pytest.fixture(scope="module")
def silent() -> ShadowScores:
    return GaussianWorld(2000, gain=0.0).pool(16).run()


def test_near_the_optimum_of_the_gaussian_world(leaking: tuple[Observation, ShadowScores]) -> None:
    # With everything known the score of a record is a shift by gain / noise in units of sigma.
    draw = np.random.default_rng(3)
    shift = 1 / draw.uniform(0.5, 1.5, 200_000)
    score = shift * draw.standard_normal((2, 200_000))
    best = lira_area(score[0] + shift**2 / 2, score[1] - shift**2 / 2)
    found = lira(*leaking)
    assert best - 0.03 < found.auc < best + 0.03
    offline = lira(*leaking, mode="offline")
    assert offline.auc > best - 0.06
    assert found.auc > yeom(leaking[0]).auc + 0.1
    assert found.advantage().low > 0.2
    # Decisions at the natural threshold are nearly the best ones.
    assert found.best_advantage - found.advantage().value < 0.05
    assert offline.false_positive_rate().share == pytest.approx(0.05, abs=0.03)


def lira_area(members: NDArray[np.float64], nonmembers: NDArray[np.float64]) -> float:
    ordered = np.sort(nonmembers)
    return float(np.mean(np.searchsorted(ordered, members) / len(ordered)))


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_chance_where_nothing_leaks(mode: str, silent: ShadowScores) -> None:
    assert_chance(lira(*silent.leave_out(3), mode=mode))


def test_order_of_records_and_models_does_not_matter(
    leaking: tuple[Observation, ShadowScores],
) -> None:
    seen, shadows = leaking
    order = np.random.default_rng(0).permutation(len(seen))
    rows = np.random.default_rng(1).permutation(len(shadows))
    turned = ShadowScores(
        [shadows.log_probabilities[row] for row in rows],
        shadows.inclusion[rows],
        shadows.labels,
        shadows.digests,
    )
    for mode in ("online", "offline"):
        how: dict[str, Any] = {"mode": mode, "variance": "moderated", "limit": 8.0}
        one = lira(seen, shadows, **how)
        two = lira(permuted(seen, order), turned, **how)
        np.testing.assert_allclose(two.scores, one.scores[order], rtol=1e-9)
        assert two.auc == pytest.approx(one.auc)


def judge_nominal_rate(variance: str, models: int) -> float:
    """The share of 20,000 non-members that offline LiRA accuses at 5 %, Gaussian logits."""
    draw = np.random.default_rng(models)
    count = 20_000
    # Variances from the prior that moderation assumes: scaled inverse chi-square, 4 degrees.
    spread = np.sqrt(4 / draw.chisquare(4, count)) if variance != "shared" else np.ones(count)
    values = draw.normal(size=count) + 0.2 * spread * draw.standard_normal((models + 1, count))
    inclusion = np.zeros((models, count), dtype=bool)
    half = [bool(place % 2) for place in range(count)]
    seen, shadows = by_hand(
        values[0].tolist(), [row.tolist() for row in values[1:]], inclusion.tolist(), half
    )
    decisions = lira(seen, shadows, mode="offline", variance=variance).decisions
    assert decisions is not None
    return float(decisions.mean())


@pytest.mark.parametrize(
    ("variance", "models"), [("per_record", 3), ("moderated", 4), ("shared", 3)]
)
def test_the_nominal_rate_holds_with_few_models(
    variance: str, models: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Six standard deviations of a share of 20,000; for the moderated variance the common
    # variance is the mean of a heavy-tailed prior, above its scale, which errs on the safe side.
    sigma = np.sqrt(0.05 * 0.95 / 20_000)
    found = judge_nominal_rate(variance, models)
    assert found < 0.05 + 6 * sigma
    if variance != "moderated":
        assert found > 0.05 - 6 * sigma

    def plug_in(self: object, value: NDArray[np.float64]) -> NDArray[np.float64]:
        standard = (value - self.mean) / np.sqrt(self.variance)  # type: ignore[attr-defined]
        return -special.log_ndtr(-standard)

    if variance != "moderated":
        monkeypatch.setattr(lira_source._Gaussians, "surprise", plug_in)
        assert judge_nominal_rate(variance, models) > 0.05 + 6 * sigma


def test_the_tail_of_student_beyond_all_numbers() -> None:
    for freedom, value in ((5.0, 1e60), (700.0, 120.0), (3e4, 40.0), (1e6, 45.0), (31.0, 1e12)):
        with mpmath.workdps(40):
            x = mpmath.mpf(freedom) / (freedom + mpmath.mpf(value) ** 2)
            a = mpmath.mpf(freedom) / 2
            series = mpmath.hyp2f1(a + 0.5, 1, a + 1, x)
            whole = x**a * mpmath.sqrt(1 - x) / (a * mpmath.beta(a, 0.5)) * series / 2
            wanted = float(mpmath.log(whole))
        [own] = lira_source._log_student_tail(np.array([value]), np.array([freedom]))
        assert abs(own - wanted) < 0.002
    values = np.linspace(-50, 7e7, 10_001)
    tails = lira_source._log_student_tail(values, np.full(10_001, 50.0))
    assert (np.diff(tails) < 0).all()
    assert np.isfinite(tails).all()
    np.testing.assert_allclose(
        lira_source._log_student_tail(np.array([-3.0, 0.0, 2.0]), np.full(3, 7.0)),
        stats.t.logsf([-3.0, 0.0, 2.0], 7),
    )


# --- planted bugs -----------------------------------------------------------------------


def test_cumulative_instead_of_density_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def cumulative(self: object, value: NDArray[np.float64]) -> NDArray[np.float64]:
        return special.log_ndtr((value - self.mean) / np.sqrt(self.variance))  # type: ignore[attr-defined]

    judge_online()
    monkeypatch.setattr(lira_source._Gaussians, "log_density", cumulative)
    with pytest.raises(AssertionError):
        judge_online()


def test_members_in_the_reference_set_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable[..., object] = lira_source._fit

    def everyone(kind: str, values: object, used: NDArray[np.bool_], variance: str) -> object:
        return right(kind, values, np.ones_like(used), variance)

    judge_offline()
    monkeypatch.setattr(lira_source, "_fit", everyone)
    with pytest.raises(AssertionError):
        judge_offline()


def test_the_target_as_its_own_reference_is_caught(
    silent: ShadowScores, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The examiner hands over the whole pool and forgets to leave the target out.
    seen, _ = silent.leave_out(3)
    assert_chance(lira(seen, silent))
    forget_twins(monkeypatch)
    with pytest.raises(AssertionError):
        assert_chance(lira(seen, silent))


def test_the_complementary_twin_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    # In pairs of complementary halves every record is inside half of the models, so that the
    # other five give away on which side it lies in the sixth; the twin's side alone decides.
    world = GaussianWorld(40_000, gain=0.0)
    draw = np.random.default_rng(8)
    halves = np.array([draw.permutation(40_000) < 20_000 for _ in range(3)])
    pool = ShadowPool(
        world.records,
        world.labels,
        world.train,
        inclusion=np.concatenate([halves, ~halves]),
        seed=2,
    )
    scores = pool.run()
    assert len(scores.without(2)) == 4  # neither row 2 nor row 5
    assert_chance(lira(*scores.leave_out(2), variance="shared"))
    forget_twins(monkeypatch)
    seen, others = scores.leave_out(2)
    assert len(others) == 5
    with pytest.raises(AssertionError):
        assert_chance(lira(seen, others, variance="shared"))


# --- bad input --------------------------------------------------------------------------


def test_too_few_shadows() -> None:
    seen, shadows = GaussianWorld(200, gain=1.0).pool(4).run().leave_out(0)
    with pytest.raises(InvalidValue, match="train more shadow models"):
        lira(seen, shadows)
    one = by_hand([0.0, 0.0], [[1.0, 1.0]], [[False, False]], [True, False])
    with pytest.raises(InvalidValue, match="train more shadow models"):
        lira(*one, mode="offline")


def test_records_that_are_not_in_the_pool_or_twice() -> None:
    seen, shadows = small()
    other = Observation(
        seen.log_probabilities, seen.labels, seen.members, seen.digests + np.uint64(1)
    )
    with pytest.raises(InvalidValue, match="1 records that are not in the shadow pool"):
        lira(other, shadows)
    doubled = without_twins(
        ShadowScores(
            shadows.log_probabilities,
            shadows.inclusion,
            shadows.labels,
            shadows.digests * np.uint64(0),
        )
    )
    zero = Observation(
        seen.log_probabilities[::-1],
        seen.labels,
        seen.members,
        np.array([0, 0], dtype=np.uint64),
    )
    assert len(lira(zero, doubled).scores) == 2  # same order: no doubt
    with pytest.raises(InvalidValue, match="more than once"):
        doubled.places(zero.part(np.array([0])))


def test_bad_options() -> None:
    seen, shadows = small()
    for wrong in ({"mode": "sideways"}, {"variance": "none"}, {"limit": 0}):
        with pytest.raises(InvalidValue, match=next(iter(wrong))):
            lira(seen, shadows, **wrong)  # type: ignore[arg-type]
