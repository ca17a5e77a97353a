"""The shadow pool (S28): halves, cache, resumption after a kill, several processes, Ray."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.svm import LinearSVC

from discreet._cache import ArrayCache
from discreet.attacks import (
    ShadowPool,
    Target,
    as_target,
    observe,
    observe_split,
    on_records,
)
from discreet.attacks import _shadow_pool as shadow_pool
from discreet.attacks import _shadow_scores as shadow_scores
from discreet.errors import InvalidValue, NotApplicable
from oracles.ray_process import run_with_ray

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(60, 3))
Y = (X[:, 0] + DRAW.normal(size=60) > 0).astype(np.int64)


def train(indices: NDArray[np.intp]) -> LogisticRegression:
    return LogisticRegression().fit(X[indices], Y[indices])


def seeded(indices: NDArray[np.intp], seed: int) -> Target:
    value = float(np.random.default_rng(seed).uniform(0.2, 0.8) + 1e-4 * indices.sum() / 1e3)
    return as_target(lambda x: np.full(len(x), value), output="probabilities")


class TestHalves:
    def test_fair_independent_and_stable(self) -> None:
        pool = ShadowPool(X, Y, train, models=400, seed=5)
        assert (pool.inclusion.sum(axis=1) == 30).all()
        # Each record is inside Binomial(400, 1/2) models: six standard deviations of 10.
        assert (np.abs(pool.inclusion.sum(axis=0) - 200) < 60).all()
        # Two records are inside together in 29/118 of the models; 1770 pairs.
        together = (pool.inclusion.T.astype(int) @ pool.inclusion.astype(int))[
            np.triu_indices(60, 1)
        ]
        assert abs(together.mean() / 400 - 29 / 118) < 1e-12
        assert np.abs(together - 400 * 29 / 118).max() < 7 * np.sqrt(400 * 0.25 * 0.75)
        # More models are added behind; the first stay what they are.
        fewer = ShadowPool(X, Y, train, models=7, seed=5, pairs=False)
        np.testing.assert_array_equal(fewer.inclusion, pool.inclusion[:7])
        other = ShadowPool(X, Y, train, models=7, seed=6)
        assert (other.inclusion != fewer.inclusion).any()

    def test_few_models_come_in_pairs_so_that_none_misses_a_record(self) -> None:
        for models in (2, 4, 8):
            pool = ShadowPool(X, Y, train, models=models, seed=5)
            assert (pool.inclusion.sum(axis=0) == models // 2).all()
            np.testing.assert_array_equal(pool.inclusion[1::2], ~pool.inclusion[::2])
        odd = ShadowPool(X, Y, train, models=5, seed=5).inclusion
        np.testing.assert_array_equal(odd[:4], pool.inclusion[:4])
        # Many models, and records too few to tell a twin by, have independent halves.
        for many in (ShadowPool(X, Y, train, models=40), ShadowPool(X[:30], Y[:30], train)):
            assert not (many.inclusion[1] == ~many.inclusion[0]).all()
        paired = ShadowPool(X, Y, train, models=40, pairs=True).inclusion
        assert (paired.sum(axis=0) == 20).all()

    def test_given_ones(self) -> None:
        given = np.arange(60) % 2 == np.arange(3)[:, None] % 2
        pool = ShadowPool(X, Y, train, inclusion=given, seed=1)
        assert pool.models == 3
        np.testing.assert_array_equal(pool.run().inclusion, given)
        for wrong in (given[:, :5], given.astype(int), np.ones_like(given)):
            with pytest.raises(InvalidValue, match="inclusion"):
                ShadowPool(X, Y, train, inclusion=wrong)


class TestScores:
    def test_scores_are_those_of_models_trained_on_the_halves(self) -> None:
        pool = ShadowPool(X, Y, train, models=5, seed=2)
        with pytest.raises(NotApplicable, match="run"):
            _ = pool.scores
        scores = pool.run()
        for row in range(5):
            wanted = train(np.flatnonzero(pool.inclusion[row])).predict_proba(X)
            np.testing.assert_allclose(pool.probabilities[row], wanted, rtol=1e-5)
            np.testing.assert_allclose(scores.confidences[row], wanted[np.arange(60), Y], rtol=1e-5)
            np.testing.assert_allclose(
                scores.losses[row], -np.log(wanted[np.arange(60), Y]), rtol=1e-5
            )

    def test_leave_one_out(self) -> None:
        pool = ShadowPool(X, Y, train, models=5, seed=2, pairs=False)
        pool.run()
        seen, others = pool.leave_out(1)
        assert len(others) == len(pool.without(1)) == 4
        np.testing.assert_array_equal(seen.members, pool.inclusion[1])
        np.testing.assert_array_equal(others.inclusion, pool.inclusion[[0, 2, 3, 4]])
        model = train(np.flatnonzero(pool.inclusion[1]))
        again = pool.observe(model, members=pool.inclusion[1])
        np.testing.assert_allclose(again.losses, seen.losses, rtol=1e-5)

    def test_what_is_computed_for_the_pool_serves_its_parts(self) -> None:
        scores = ShadowPool(X, Y, train, models=5, seed=2).run()
        fresh = scores.without(2)
        wanted = fresh.losses, fresh.confidences, fresh.scaled_logits()
        assert scores.losses.shape == scores.confidences.shape == scores.scaled_logits().shape
        cut = scores.without(2)
        for one, two in zip(
            wanted, (cut.losses, cut.confidences, cut.scaled_logits()), strict=True
        ):
            np.testing.assert_array_equal(one, two)

    def test_a_half_without_a_class(self) -> None:
        y = np.append(np.zeros(59, dtype=int), 2)
        y[:20] = 1
        pool = ShadowPool(X, y, lambda i: LogisticRegression().fit(X[i], y[i]), models=6, seed=0)
        scores = pool.run()
        assert scores.probabilities.shape == (6, 60, 3)
        without = ~pool.inclusion[:, 59]
        assert without.any()
        assert (scores.probabilities[without, :, 2] == 0).all()

    def test_data_frames_and_pipelines(self) -> None:
        frame = pd.DataFrame({"age": X[:, 0], "town": np.array(["a", "b"])[(X[:, 1] > 0) * 1]})

        def fit(indices: NDArray[np.intp]) -> object:
            columns = ColumnTransformer(
                [("towns", OneHotEncoder(), ["town"])], remainder="passthrough"
            )
            return make_pipeline(columns, LogisticRegression()).fit(frame.iloc[indices], Y[indices])

        scores = ShadowPool(frame, Y, fit, models=3, seed=0, pairs=False).run()
        seen, others = scores.leave_out(0)
        assert len(others) == 2
        assert len(seen.part(np.arange(5)).records) == 5
        assert np.isfinite(scores.losses).all()


class TestCache:
    def counting(self, log: Path) -> type:
        class Counting:
            cache_key = "counting"

            def __call__(self, indices: NDArray[np.intp], seed: int) -> Target:
                with log.open("a", encoding="utf-8") as stream:
                    stream.write("x")
                return seeded(indices, seed)

        return Counting

    def test_everything_is_trained_once(self, tmp_path: Path) -> None:
        log, home = tmp_path / "log", tmp_path / "pool"
        make = self.counting(log)
        first = ShadowPool(X, Y, make(), models=4, cache=home, seed=1)
        first.run()
        again = ShadowPool(X, Y, make(), models=4, cache=home, seed=1, check=False)
        np.testing.assert_array_equal(again.run().losses, first.scores.losses)
        assert log.read_text() == "x" * 4
        more = ShadowPool(X, Y, make(), models=6, cache=home, seed=1)
        np.testing.assert_array_equal(more.run().losses[:4], first.scores.losses)
        more.run()
        # Two that were missing, and one of the kept ones again, once.
        assert log.read_text() == "x" * 7

    def test_a_change_that_the_text_does_not_say_is_refused(self, tmp_path: Path) -> None:
        """Behaviour is compared, not code: a closure, a file or a global may be what changed."""
        shift = [0.0]

        def moved(indices: NDArray[np.intp], seed: int) -> Target:
            value = 0.5 + shift[0] + 1e-4 * (seed % 7)
            return as_target(lambda x: np.full(len(x), value), output="probabilities")

        how = {"models": 3, "cache": tmp_path, "cache_key": "moved", "seed": 1}
        before = ShadowPool(X, Y, moved, **how).run().losses
        np.testing.assert_array_equal(ShadowPool(X, Y, moved, **how).run().losses, before)
        shift[0] = 0.1
        with pytest.raises(InvalidValue, match="trained again, answers otherwise") as refused:
            ShadowPool(X, Y, moved, **how).run()
        assert refused.value.argument == "cache"
        stale = ShadowPool(X, Y, moved, **how, check=False).run().losses
        np.testing.assert_array_equal(stale, before)
        now = ShadowPool(X, Y, moved, **{**how, "cache_key": "moved by 0.1"}).run().losses
        assert (now != before).all()

    def test_a_function_needs_a_text_and_an_estimator_of_scikit_learn_none(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(InvalidValue, match="cache_key = None"):
            ShadowPool(X, Y, seeded, models=2, cache=tmp_path)
        with pytest.raises(InvalidValue, match="cache_key"):
            ShadowPool(X, Y, seeded, models=2, cache=tmp_path, cache_key="")
        on = on_records(LogisticRegression().fit, X, Y)
        one = ShadowPool(X, Y, on, models=2, cache=tmp_path, seed=0).run().losses
        other = on_records(LogisticRegression(C=1e-6).fit, X, Y)
        two = ShadowPool(X, Y, other, models=2, cache=tmp_path, seed=0).run().losses
        assert (one != two).any()

    def test_the_directory_says_what_it_holds(self, tmp_path: Path) -> None:
        pool = ShadowPool(X, Y, seeded, models=2, cache=tmp_path, cache_key="my training")
        (kept,) = tmp_path.glob("pool-*.json")
        document = json.loads(kept.read_text(encoding="utf-8"))
        assert (document["cache_key"], document["seed"]) == ("my training", pool.seed)
        assert any(text.startswith("numpy ") for text in document["versions"])

    @pytest.mark.parametrize("change", ["data", "labels", "seed", "key"])
    def test_another_experiment_gets_nothing(self, change: str, tmp_path: Path) -> None:
        log, home = tmp_path / "log", tmp_path / "pool"
        make = self.counting(log)
        ShadowPool(X, Y, make(), models=2, cache=home, seed=1).run()
        x, y = X.copy(), Y.copy()
        if change == "data":
            x[7, 1] += 1e-9
        if change == "labels":
            y[3] = 1 - y[3]
        key = "other" if change == "key" else None
        seed = 2 if change == "seed" else 1
        ShadowPool(x, y, make(), models=2, cache=home, seed=seed, cache_key=key).run()
        assert log.read_text() == "x" * 4

    def test_a_seed_that_nobody_chose_is_kept(self, tmp_path: Path) -> None:
        one = ShadowPool(X, Y, seeded, models=3, cache=tmp_path, cache_key="s")
        two = ShadowPool(X, Y, seeded, models=3, cache=tmp_path, cache_key="s")
        assert one.seed == two.seed
        np.testing.assert_array_equal(one.run().losses, two.run().losses)
        assert (
            ShadowPool(X + 1, Y, seeded, models=3, cache=tmp_path, cache_key="s").seed != one.seed
        )
        assert ShadowPool(X, Y, seeded, models=3).seed != ShadowPool(X, Y, seeded, models=3).seed
        for kept in tmp_path.glob("pool-*.json"):
            kept.write_text("{", encoding="utf-8")
        with pytest.raises(InvalidValue, match="damaged"):
            ShadowPool(X, Y, seeded, models=3, cache=tmp_path, cache_key="s")

    @pytest.mark.parametrize("links", [True, False])
    def test_pools_that_begin_together_have_one_seed(
        self, links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The other one keeps its seed after this one has looked, and before it writes."""
        create = shadow_pool.create_file

        def late(path: Path, content: str, *, private: bool) -> bool:
            monkeypatch.setattr(shadow_pool, "create_file", create)
            assert shadow_pool.keep_seed(tmp_path, "data", 5) == 5
            return create(path, content, private=private)

        def no_links(*_: object) -> None:
            raise PermissionError("no links on this disk")

        monkeypatch.setattr(shadow_pool, "create_file", late)
        if not links:
            monkeypatch.setattr(os, "link", no_links)
        assert shadow_pool.keep_seed(tmp_path, "data", 7) == 5
        assert shadow_pool.keep_seed(tmp_path, "data", 9) == 5
        assert shadow_pool.keep_seed(tmp_path, "other", 9) == 9
        assert len(list(tmp_path.iterdir())) == 2

    def test_damaged_scores_are_trained_again(self, tmp_path: Path) -> None:
        pool = ShadowPool(X, Y, seeded, models=3, cache=tmp_path, cache_key="s", seed=1)
        wanted = pool.run().losses
        files = sorted(tmp_path.glob("*.npy"))
        assert len(files) == 3
        files[0].write_bytes(files[0].read_bytes()[:50])
        files[1].unlink()
        again = ShadowPool(X, Y, seeded, models=3, cache=tmp_path, cache_key="s", seed=1)
        np.testing.assert_array_equal(again.run().losses, wanted)

    def test_one_changed_bit_is_seen_and_certain_answers_are_not_damage(
        self, tmp_path: Path
    ) -> None:
        files = ArrayCache(tmp_path)
        sure = np.array([[0.0, -np.inf], [np.log(0.25), np.log(0.75)]], dtype=np.float32)
        files.put("one", sure)
        found = files.get("one", (2, 2), np.float32)
        assert found is not None
        np.testing.assert_array_equal(found, sure)
        assert files.get("one", (2, 3), np.float32) is None
        assert files.get("one", (2, 2), np.float64) is None
        path = tmp_path / "one.npy"
        content = bytearray(path.read_bytes())
        content[-36] ^= 1  # the lowest bit of the last score: still a distribution
        path.write_bytes(content)
        assert files.get("one", (2, 2), np.float32) is None
        np.save(path, sure)  # without a checksum
        assert files.get("one", (2, 2), np.float32) is None

    def test_directories_that_are_none(self, tmp_path: Path) -> None:
        place = tmp_path / "file"
        place.write_text("", encoding="utf-8")
        with pytest.raises(InvalidValue, match="cache"):
            ShadowPool(X, Y, seeded, models=2, cache=place, cache_key="s")
        home = tmp_path / "pool"
        ShadowPool(X, Y, seeded, models=2, cache=home, cache_key="s")
        (kept,) = home.glob("pool-*.json")
        text = kept.read_text(encoding="utf-8")
        kept.write_text(re.sub(r"\d+}", "-5}", text), encoding="utf-8")
        with pytest.raises(InvalidValue, match="damaged"):
            ShadowPool(X, Y, seeded, models=2, cache=home, cache_key="s")


class TestTwins:
    def test_find_copies_records_do_not_hide_a_twin(self) -> None:
        x, y = np.concatenate([X, X]), np.concatenate([Y, Y])
        scores = ShadowPool(x, y, seeded, models=6, seed=0, pairs=False).run()
        seen, _ = scores.leave_out(2)
        mixed = seen.part(np.random.default_rng(1).permutation(120))
        for one in (seen, mixed, replace(mixed, members=~mixed.members)):
            left = scores.apart_from(one)
            assert len(left) == 5
            np.testing.assert_array_equal(left.inclusion, np.delete(scores.inclusion, 2, axis=0))
        assert len(scores.align(seen, signal="loss").shadow) == 5
        # Near twins are not recognized: this is said, and not more is promised.
        members = seen.members.copy()
        members[0] = ~members[0]
        assert len(scores.apart_from(replace(seen, members=members))) == 6

    def test_with_few_records_a_twin_is_refused(self) -> None:
        scores = ShadowPool(X[:30], Y[:30], seeded, models=10, seed=0).run()
        seen, others = scores.leave_out(3)
        assert len(others.apart_from(seen)) == 9
        for call in (scores.apart_from, partial(scores.align, signal="loss")):
            with pytest.raises(InvalidValue, match="all 30 records in common"):
                call(seen)
        # Nothing in common, and nothing to be divided, is no sign of a twin.
        assert len(scores.apart_from(replace(seen, digests=seen.digests + np.uint64(1)))) == 10
        assert len(scores.apart_from(replace(seen, members=np.ones(30, dtype=bool)))) == 10

    @pytest.mark.parametrize("complement", [False, True])
    @pytest.mark.parametrize("common", ["members", "nonmembers"])
    def test_a_twin_is_seen_where_one_side_is_foreign(self, common: str, complement: bool) -> None:
        draw = np.random.default_rng(3)
        x, y = draw.normal(size=(120, 2)), np.arange(120) % 2
        scores = ShadowPool(x, y, seeded, models=6, seed=0, pairs=False).run()
        side = scores.inclusion[2] ^ complement
        own, foreign = (x[side], y[side]), (draw.normal(size=(50, 2)), np.arange(50) % 2)
        pair = (own, foreign) if common == "members" else (foreign, own)
        seen = observe_split(seeded(np.arange(3), 1), members=pair[0], nonmembers=pair[1])
        left = scores.apart_from(seen)
        np.testing.assert_array_equal(left.inclusion, np.delete(scores.inclusion, 2, axis=0))
        # One record on the other side, and it is no twin; half of them, and it still is one.
        moved = replace(seen, members=seen.members ^ (np.arange(len(seen)) == 55))
        if common == "nonmembers":
            assert len(scores.apart_from(moved)) == 6
        some = np.flatnonzero(np.isin(seen.digests, scores.digests))
        assert len(scores.apart_from(seen.part(some[:45]))) == 5
        with pytest.raises(InvalidValue, match="all 20 records in common"):
            scores.apart_from(seen.part(some[:20]))

    def test_how_often_chance_makes_a_twin(self) -> None:
        """Against all sets of 8 records: 0 and 1 are copies, 2 and 3 are in common as well."""
        for size in range(1, 8):
            places = [set(one) for one in combinations(range(8), size)]
            for a, b, c in product(range(3), range(2), range(2)):
                alike = sum((len(one & {0, 1}), 2 in one, 3 in one) == (a, b, c) for one in places)
                found = shadow_scores._chance_to_divide(
                    8, size, np.array([2, 1, 1]), np.array([a, b, c])
                )
                assert found == pytest.approx(2 * alike / len(places), abs=1e-12)

    def test_large_training_sets_are_alike_by_chance(self) -> None:
        """Models of all records but one have the same 45 inside, whatever the target has."""
        inclusion = np.ones((8, 400), dtype=bool)
        inclusion[np.arange(8), 399 - np.arange(8)] = False
        scores = ShadowPool(
            np.arange(400.0)[:, None], np.arange(400) % 2, seeded, inclusion=inclusion, seed=0
        ).run()
        seen, _ = scores.leave_out(0)
        with pytest.raises(InvalidValue, match="to tell a twin of the target from chance"):
            scores.apart_from(seen.part(np.arange(45)))

    def test_a_twin_is_seen_in_another_precision(self) -> None:
        pool = ShadowPool(X.astype(np.float32), Y, seeded, models=6, seed=0, pairs=False)
        scores = pool.run()
        seen = observe(seeded(np.arange(3), 1), X, Y, members=pool.inclusion[4])
        assert len(scores.apart_from(seen)) == 5
        assert len(scores.align(seen, signal="loss").shadow) == 5
        # Digests that were not made from the records are not made anew.
        other = replace(seen, digests=np.arange(60, dtype=np.uint64))
        assert len(scores.apart_from(other)) == 6


class TestSeeds:
    def test_a_setting_does_not_get_the_seed(self) -> None:
        got: list[tuple[float, int]] = []

        def fit(indices: NDArray[np.intp], C: float = 1.0, seed: int = -1) -> Target:  # noqa: N803
            got.append((C, seed))
            return seeded(indices, seed)

        ShadowPool(X, Y, fit, models=3, seed=0).run()
        assert [one[0] for one in got] == [1.0] * 3
        assert len({one[1] for one in got} - {-1}) == 3


class Named:
    """A model that is sure of the class that it names first."""

    def __init__(self, names: list[object]) -> None:
        self.classes_ = np.array(names)

    def predict(self, x: NDArray[np.float64]) -> NDArray[Any]:
        return np.repeat(self.classes_[:1], len(x))

    def predict_proba(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.tile([0.9, 0.1], (len(x), 1))


@pytest.mark.parametrize("names", [["1", "0"], [1.0, 0.0], [True, False]])
def test_models_with_names_are_read_by_name(names: list[object]) -> None:
    """Their columns are in another order than the labels."""
    scores = ShadowPool(X, Y, lambda _: Named(names), models=1, seed=0).run()
    np.testing.assert_allclose(scores.confidences[0], np.where(Y == 1, 0.9, 0.1), rtol=1e-6)


@pytest.mark.parametrize("names", [["yes", "no"], ["1", "2"], [-1, 1], [0.5, 1.0], ["0", "0.0"]])
def test_models_of_other_classes_are_refused(names: list[object]) -> None:
    pool = ShadowPool(X, Y, lambda _: Named(names), models=1, seed=0)
    with pytest.raises(InvalidValue, match="which class is which is not known"):
        pool.run()


def test_a_pool_asks_a_target_with_names() -> None:
    pool = ShadowPool(X, Y, seeded, models=1, seed=0)
    for names in (["no", "yes"], ["1", "2"], [-1, 1]):
        model = LogisticRegression().fit(X, np.array(names)[Y])
        seen = pool.observe(model, members=pool.inclusion[0])
        np.testing.assert_array_equal(seen.labels, Y)
        p = model.predict_proba(X)[np.arange(60), Y]
        np.testing.assert_allclose(seen.confidences, p)


SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
from discreet.attacks import ShadowPool, as_target

home, log = Path(sys.argv[1]), Path(sys.argv[2])
x = np.arange(200.0)[:, None]
y = np.arange(200) % 2

def train(indices, seed):
    with log.open("a") as stream:
        stream.write("x")
    time.sleep(0.15)
    value = float(np.random.default_rng(seed).uniform(0.1, 0.9))
    return as_target(lambda x: np.full(len(x), value), output="probabilities")

pool = ShadowPool(x, y, train, models=12, cache=home, cache_key="slow")
np.save(sys.argv[3], pool.run().losses)
"""


@pytest.mark.slow
def test_a_killed_pool_takes_up_where_it_was(tmp_path: Path) -> None:
    home, log, out = tmp_path / "pool", tmp_path / "log", tmp_path / "losses.npy"
    command = [sys.executable, "-c", SCRIPT, str(home), str(log), str(out)]
    process = subprocess.Popen(command)
    # A name with a dot first is the draft of a file that the signal may leave behind.
    deadline = time.monotonic() + 60
    while len(list(home.glob("[!.]*.npy"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = {path.name: path.read_bytes() for path in home.glob("[!.]*.npy")}
    assert 3 <= len(kept) < 12
    assert not out.exists()
    begun = len(log.read_text())
    assert begun <= len(kept) + 1
    subprocess.run(command, check=True, timeout=60)
    # Only what was missing, and one of the kept ones again, to compare.
    assert len(log.read_text()) - begun == 12 - len(kept) + 1
    assert {name: (home / name).read_bytes() for name in kept} == kept
    assert len(list(home.glob("[!.]*.npy"))) == 12
    assert np.load(out).shape == (12, 200)


class TestParallel:
    @pytest.mark.parametrize(
        "backend", [pytest.param(None, marks=pytest.mark.slow, id="processes"), "threading"]
    )
    @pytest.mark.parametrize("kept", [True, False])
    def test_several_jobs_give_the_same(
        self, backend: str | None, kept: bool, tmp_path: Path
    ) -> None:
        def inner(indices: NDArray[np.intp], seed: int) -> Target:
            # Defined here: other processes do not know the modules of the tests.
            value = float(np.random.default_rng(seed).uniform(0.2, 0.8))
            return as_target(lambda x: np.full(len(x), value), output="probabilities")

        wanted = ShadowPool(X, Y, inner, models=9, seed=4).run().losses
        pool = ShadowPool(
            X,
            Y,
            inner,
            models=9,
            seed=4,
            n_jobs=2,
            backend=backend,
            cache=tmp_path if kept else None,
            cache_key="seeded",
        )
        np.testing.assert_array_equal(pool.run().losses, wanted)

    def test_an_error_in_training_comes_through(self) -> None:
        def broken(indices: NDArray[np.intp]) -> Target:
            raise ZeroDivisionError("planted")

        with pytest.raises(ZeroDivisionError, match="planted"):
            ShadowPool(X, Y, broken, models=2, n_jobs=2, backend="threading").run()


RAY = """
import sys
import numpy as np
import ray
from discreet.attacks import ShadowPool, as_target

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[1])
x, y = np.arange(40.0)[:, None], np.arange(40) % 2

def train(indices, seed):
    import os
    assert os.getpid() != driver
    value = float(np.random.default_rng(seed).uniform(0.1, 0.9))
    return as_target(lambda x: np.full(len(x), value), output="probabilities")

import os
driver = os.getpid()
pool = ShadowPool(
    x, y, train, models=4, seed=3, n_jobs=2, backend="ray", cache=sys.argv[2], cache_key="r"
)
losses = pool.run().losses
assert ray.is_initialized()
ray.shutdown()
driver = -1
alone = ShadowPool(x, y, train, models=4, seed=3).run().losses
np.testing.assert_array_equal(losses, alone)
print("same")
"""


@pytest.mark.slow
def test_a_real_ray_gives_the_same(tmp_path: Path) -> None:
    assert "same" in run_with_ray(RAY, tmp_path, str(tmp_path / "pool"))
    assert len(list((tmp_path / "pool").glob("*.npy"))) == 4


def test_progress_is_shown_on_a_terminal_and_never_on_stdout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ShadowPool(X, Y, seeded, models=2, seed=0, progress=True).run()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ShadowPool(X, Y, seeded, models=2, seed=0, progress=True).run()
    shown = capsys.readouterr()
    assert "shadow models" in shown.err
    assert shown.out == ""


def test_a_directory_in_the_place_of_scores_is_named_before_training(tmp_path: Path) -> None:
    def never(indices: object) -> object:
        raise AssertionError

    never.__qualname__ = seeded.__qualname__  # a name is part of the description
    place = tmp_path / "pool"
    ShadowPool(X, Y, seeded, models=1, seed=0, cache=place, cache_key="k").run()
    [kept] = place.glob("*.npy")
    kept.unlink()
    kept.mkdir()
    with pytest.raises(InvalidValue, match="is a directory, not a file"):
        ShadowPool(X, Y, never, models=1, seed=0, cache=place, cache_key="k").run()


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"models": 0}, "models"),
            ({"n_jobs": 0}, "n_jobs"),
            ({"backend": "mpi"}, "backend"),
            ({"seed": -1}, "seed"),
            ({"cache_key": ""}, "cache_key"),
            ({"group": 0}, "group"),
            ({"classes": 1}, "labels"),
        ],
    )
    def test_options(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(InvalidValue, match=message):
            ShadowPool(X, Y, train, **change)  # type: ignore[arg-type]

    def test_data(self) -> None:
        with pytest.raises(InvalidValue, match="records"):
            ShadowPool(X[:3], Y[:3], train)
        with pytest.raises(InvalidValue, match="one for each of 60"):
            ShadowPool(X, Y[:5], train)
        with pytest.raises(InvalidValue, match="labels"):
            ShadowPool(X, Y - 1, train)
        with pytest.raises(InvalidValue, match="two classes"):
            ShadowPool(X, Y * 0, train)
        with pytest.raises(InvalidValue, match="train"):
            ShadowPool(X, Y, 3)  # type: ignore[arg-type]

    def test_models(self) -> None:
        with pytest.raises(NotApplicable, match="labels only"):
            ShadowPool(X, Y, lambda i: LinearSVC().fit(X[i], Y[i]), models=1).run()
        wide = as_target(lambda x: np.full((len(x), 3), 1 / 3), output="probabilities")
        with pytest.raises(InvalidValue, match="3 classes"):
            ShadowPool(X, Y, lambda _: wide, models=1).run()
        row = ShadowPool(X, Y, train, models=2, seed=0).run()
        with pytest.raises(InvalidValue, match="row"):
            row.without(2)
