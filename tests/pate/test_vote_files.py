"""Names of kept votes: what votes otherwise has another name, in every process the same."""

import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from discreet._cache import describe, fingerprint
from discreet.errors import InvalidValue
from discreet.pate import PATEClassifier, ScatteringView, partition_records, teacher_votes

RNG = np.random.default_rng(5)
ROWS = RNG.normal(size=(300, 3))
LABELS = (ROWS[:, 0] > 0).astype(np.int64)
PUBLIC = RNG.normal(size=(40, 3)) * 0.3
LONG = np.arange(5000.0)


def name(*parts: object, cache_key: str | None = None, tried: Any = ()) -> str:
    return fingerprint(describe(*parts, cache_key=cache_key), *tried)


def votes(cache: Path | None, **how: Any) -> Any:
    parts = partition_records(ROWS, LABELS, teachers=8, insecure_seed=1)
    settings = {"teacher": LogisticRegression(), **how}
    return teacher_votes(parts, ROWS, LABELS, PUBLIC, classes=2, cache=cache, **settings)


def kept(place: Path) -> int:
    return len(list(place.glob("votes-*.npy")))


def forest(**settings: Any) -> Any:
    return make_pipeline(StandardScaler(), RandomForestClassifier(**settings))


class Prior(ClassifierMixin, BaseEstimator):
    """Says what a far entry of a long table says."""

    def __init__(self, table: Any = None) -> None:
        self.table = table

    def fit(self, X: Any, y: Any) -> "Prior":  # noqa: N803
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: Any) -> Any:  # noqa: N803
        return np.full(len(X), int(self.table[1500]))


def changed(at: int, value: float) -> Any:
    other = LONG.copy()
    other[at] = value
    return other


DIFFERENT = {
    "parameters": (LogisticRegression(C=1.0), LogisticRegression(C=2.0)),
    "nested parameters": (forest(max_depth=2), forest(max_depth=3)),
    "kinds of numbers": (LogisticRegression(C=1), LogisticRegression(C=1.0)),
    "long arrays that print alike": (
        GaussianNB(priors=LONG),
        GaussianNB(priors=changed(2500, -1.0)),
    ),
    "steps": (make_pipeline(StandardScaler(), PCA()), make_pipeline(PCA(), StandardScaler())),
    "fitted state": (
        PCA(1).fit(np.eye(3)).transform,
        PCA(1).fit(np.diag([1.0, 2.0, 3.0])).transform,
    ),
    "methods": (PCA(1).fit(np.eye(3)).transform, PCA(1).fit(np.eye(3)).inverse_transform),
    "functions of numpy": (FunctionTransformer(np.log1p), FunctionTransformer(np.sqrt)),
    "views of images": (ScatteringView(dimensions=5), ScatteringView(dimensions=6)),
    "where lists end": ([[1], [2, 3]], [[1, 2], [3]]),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_differs_has_another_name(case: str) -> None:
    one, other = DIFFERENT[case]
    assert name(one) == name(one)
    assert name(one) != name(other)
    assert name(one, other) != name(other, one)
    # A text of one's own does not hide what is known besides.
    assert name(one, cache_key="a") != name(other, cache_key="a")
    assert name(one, cache_key="a") != name(one, cache_key="b")


def test_names_follow_the_public_rehearsal() -> None:
    assert name(tried=[LONG]) != name(tried=[changed(7, 0.5)])
    assert name(tried=[LONG, LONG]) != name(tried=[LONG])


@pytest.mark.slow
def test_names_are_the_same_in_every_process() -> None:
    script = (
        "from discreet._cache import describe, fingerprint\n"
        "from sklearn.ensemble import RandomForestClassifier\n"
        "print(fingerprint(describe({'a': 1}, RandomForestClassifier(5), cache_key='x')))"
    )
    elsewhere = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert elsewhere.stdout.strip() == name({"a": 1}, RandomForestClassifier(5), cache_key="x")


class Forest(RandomForestClassifier):  # type: ignore[misc]
    """Of one's own: its methods may be others than those of scikit-learn."""


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "value",
    [
        Prior(LONG),
        Forest(),
        make_pipeline(StandardScaler(), Prior(LONG)),
        FunctionTransformer(lambda rows: rows),
        RandomForestClassifier(random_state=np.random.RandomState(1)),
        lambda rows: rows,
        threading.Lock(),
        np.array([None, threading.Lock()], dtype=object),
        LOOP,
    ],
    ids=lambda value: type(value).__name__,
)
def test_code_of_ones_own_needs_a_cache_key(value: Any) -> None:
    with pytest.raises(InvalidValue, match="cache_key = None: expected a text that you change"):
        name(value)
    if value is not LOOP:
        assert len(name(value, cache_key="mine")) == 64


@pytest.mark.parametrize("wrong", ["", 3, b"x"])
def test_a_bad_cache_key_is_named(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="cache_key ="):
        votes(tmp_path, cache_key=wrong)


HELPER = """
import numpy as np
def answer(queries):
    return np.full(len(queries), {code})
"""
ESTIMATOR = """
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
import pate_own_helper
class Own(ClassifierMixin, BaseEstimator):
    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self
    def predict(self, X):
        return pate_own_helper.answer(X)
"""


def own_estimator(place: Path, code: int) -> Any:
    """An estimator whose answers come from a module beside its own, as it is on the disk now."""
    (place / "pate_own_helper.py").write_text(HELPER.format(code=code), encoding="utf-8")
    (place / "pate_own_estimator.py").write_text(ESTIMATOR, encoding="utf-8")
    for module in ("pate_own_helper", "pate_own_estimator"):
        sys.modules.pop(module, None)
    importlib.invalidate_caches()
    return importlib.import_module("pate_own_estimator").Own()


def test_a_changed_helper_module_does_not_get_the_votes_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    place = tmp_path / "kept"
    with pytest.raises(InvalidValue, match="cache_key = None"):
        votes(place, teacher=own_estimator(tmp_path, 0))
    for code, histogram in ((0, [8, 0]), (1, [0, 8]), (0, [8, 0])):
        teacher = own_estimator(tmp_path, code)
        found = votes(place, teacher=teacher, cache_key="own estimator")
        assert found.tolist() == [histogram] * 40
    assert kept(place) == 16
    # As an attribute the text does the same.
    teacher = own_estimator(tmp_path, 1)
    type(teacher).cache_key = "own estimator"
    assert votes(tmp_path / "b", teacher=teacher).tolist() == [[0, 8]] * 40


def test_a_change_that_only_private_rows_show_needs_another_cache_key(tmp_path: Path) -> None:
    """Two preparations that agree on public rows: only their author can tell that they differ.

    Looking at private rows for it would let one record decide what is trained again.
    """
    assert np.abs(PUBLIC).max() < 1.5 < np.abs(ROWS).max()
    tight, wide = (lambda rows, level=level: np.clip(rows, -level, level) for level in (1.5, 3.5))
    how: dict[str, Any] = {"teacher": LogisticRegression(C=100.0)}
    first = votes(tmp_path, prepare=tight, cache_key="tight", **how)
    second = votes(tmp_path, prepare=wide, cache_key="wide", **how)
    assert kept(tmp_path) == 16
    assert not np.array_equal(first, second)
    assert np.array_equal(votes(None, prepare=wide, **how), second)
    # Under the old text the old votes come back, and nothing is raised: an error would be about
    # the private rows.
    assert np.array_equal(votes(tmp_path, prepare=wide, cache_key="tight", **how), first)


def test_votes_of_an_estimator_with_another_long_array_are_not_reused(tmp_path: Path) -> None:
    zeros, other = np.zeros(3000), np.zeros(3000)
    other[1500] = 1.0
    assert votes(tmp_path, teacher=Prior(zeros), cache_key="p").tolist() == [[8, 0]] * 40
    assert votes(tmp_path, teacher=Prior(other), cache_key="p").tolist() == [[0, 8]] * 40


def test_estimators_of_scikit_learn_need_no_cache_key(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "classes": [0, 1],
        "epsilon": 2.0,
        "delta": 1e-5,
        "teachers": 8,
        "aggregator": "gnmax",
        "queries": 40,
        "insecure_seed": 1,
    }
    for times in (1, 2):  # the second time trains nothing
        for components in (1, 2):
            view = make_pipeline(StandardScaler(), PCA(components, random_state=0))
            model = PATEClassifier(**settings, representation=view)
            model.fit(ROWS, LABELS, public=PUBLIC, cache=tmp_path)
        assert kept(tmp_path) == 16, times
    assert model.rehearse(PUBLIC, cache=tmp_path) == model.certificate_.loss
    own = PATEClassifier(**settings, representation=FunctionTransformer(lambda rows: rows))
    with pytest.raises(InvalidValue, match="cache_key"):
        own.rehearse(PUBLIC, cache=tmp_path)
    assert own.rehearse(PUBLIC, cache=tmp_path, cache_key="as it is") == model.certificate_.loss
    own.fit(ROWS, LABELS, public=PUBLIC, cache=tmp_path, cache_key="as it is")
    assert kept(tmp_path) == 24
