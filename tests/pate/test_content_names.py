"""Names of kept votes: what behaves differently has another name, in every process the same."""

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from discreet.errors import InvalidValue
from discreet.pate import PATEClassifier, partition_records, teacher_votes
from discreet.pate.content_names import content_name

LONG = np.arange(5000.0)
LEVEL = 1.0


def name(value: object) -> str:
    return content_name("value", value)


def clipped(level: float) -> Callable[[Any], Any]:
    return lambda rows: np.clip(rows, -level, level)


def by_level(rows: Any) -> Any:
    return np.minimum(rows, LEVEL)


def changed(array: Any, at: int, value: Any) -> Any:
    other = array.copy()
    other[at] = value
    return other


def forest(**settings: Any) -> Any:
    return make_pipeline(StandardScaler(), RandomForestClassifier(**settings))


@dataclass
class Setting:
    weights: Any
    more: dict[str, float] = field(default_factory=dict)


DIFFERENT = {
    "long arrays that print alike": (LONG, changed(LONG, 2500, -1.0)),
    "types of numbers": (LONG, LONG.astype(np.float32)),
    "shapes": (LONG, LONG.reshape(50, 100)),
    "a scalar and its array": (np.float64(1.0), np.array([1.0])),
    "zeros": (0.0, -0.0),
    "kinds of numbers": (1, 1.0),
    "true and one": (True, 1),
    "text and bytes": ("a", b"a"),
    "where lists end": ([[1], [2, 3]], [[1, 2], [3]]),
    "orders": ([1, 2], [2, 1]),
    "keys": ({"a": 1}, {"b": 1}),
    "objects in arrays": (np.array([LONG, None], object), np.array([-LONG, None], object)),
    "masks": (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0])),
    "parameters": (LogisticRegression(C=1.0), LogisticRegression(C=2.0)),
    "nested parameters": (forest(max_depth=2), forest(max_depth=3)),
    "functions inside": (FunctionTransformer(clipped(1.0)), FunctionTransformer(clipped(2.0))),
    "code": (lambda rows: rows + 1, lambda rows: rows - 1),
    "names in code": (lambda rows: rows.min(), lambda rows: rows.max()),
    "partial arguments": (functools.partial(clipped, 1.0), functools.partial(clipped, 2.0)),
    "fitted state": (
        PCA(1).fit(np.eye(3)).transform,
        PCA(1).fit(np.diag([1.0, 2.0, 3.0])).transform,
    ),
    "methods": (PCA(1).fit(np.eye(3)).transform, PCA(1).fit(np.eye(3)).inverse_transform),
    "one's own classes": (Setting(LONG), Setting(changed(LONG, 2500, -1.0))),
    "generators": (np.random.default_rng(1), np.random.default_rng(2)),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_differs_has_another_name_and_a_copy_the_same(case: str) -> None:
    one, other = DIFFERENT[case]
    assert name(one) != name(other)
    assert name(one) == name(one)
    if isinstance(one, np.ndarray):
        assert name(one) == name(one.copy())


def test_copies_made_anew_share_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for make in (
        lambda: clipped(3.0),
        lambda: forest(max_depth=2),
        lambda: FunctionTransformer(clipped(1.0)),
        lambda: PCA(1).fit(np.eye(3)).transform,
        lambda: Setting(LONG.copy(), {"a": 1.0}),
        lambda: {"x": [1, (2.5, "y")], "z": {3, 4, 5}},
    ):
        assert name(make()) == name(make())
    before = name(by_level)
    monkeypatch.setattr(sys.modules[__name__], "LEVEL", 2.0)
    assert name(by_level) != before  # a global that the function reads


def test_what_refers_to_itself_has_a_name() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    other: list[Any] = [2]
    other.append(other)
    assert name(loop) != name(other)


def test_names_are_the_same_in_every_process() -> None:
    script = (
        "from discreet.pate.content_names import content_name as n\n"
        "class Own:\n"
        "    def fit(self, x): return x in {'a', 'b', 'c', 'd'}\n"
        "print(n('v', [Own(), {'p', 'q', 'r'}, lambda x: Own, max]))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    found = {process.communicate()[0] for process in running}
    assert len(found) == 1
    assert len(found.pop().strip()) == 64


def test_what_cannot_be_read_is_refused() -> None:
    for value in (threading.Lock(), (x for x in [1]), [threading.Lock()]):
        with pytest.raises(InvalidValue, match="content can be read"):
            name(value)


# --- votes ------------------------------------------------------------------------------

RNG = np.random.default_rng(5)
ROWS = RNG.normal(size=(300, 3))
LABELS = (ROWS[:, 0] > 0).astype(np.int64)
PUBLIC = RNG.normal(size=(40, 3)) * 0.3


class Prior(ClassifierMixin, BaseEstimator):
    """Says what a far entry of a long table says."""

    def __init__(self, table: Any = None) -> None:
        self.table = table

    def fit(self, X: Any, y: Any) -> "Prior":  # noqa: N803
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: Any) -> Any:  # noqa: N803
        return np.full(len(X), int(self.table[1500]))


def votes(cache: Path, **how: Any) -> Any:
    parts = partition_records(ROWS, LABELS, teachers=8, insecure_seed=1)
    settings = {"teacher": LogisticRegression(), **how}
    return teacher_votes(parts, ROWS, LABELS, PUBLIC, classes=2, cache=cache, **settings)


def test_votes_of_an_estimator_with_another_long_array_are_not_reused(tmp_path: Path) -> None:
    zeros = np.zeros(3000)
    first = votes(tmp_path, teacher=Prior(zeros))
    second = votes(tmp_path, teacher=Prior(changed(zeros, 1500, 1.0)))
    assert first.tolist() == [[8, 0]] * 40
    assert second.tolist() == [[0, 8]] * 40


def test_votes_under_another_preparation_are_not_reused(tmp_path: Path) -> None:
    """Two preparations that agree on the queries, and not on private rows."""
    assert np.abs(PUBLIC).max() < 1.5 < np.abs(ROWS).max()
    tight, wide = (
        votes(tmp_path, prepare=clipped(level), teacher=LogisticRegression(C=100.0))
        for level in (1.5, 3.5)
    )
    assert len(list(tmp_path.glob("votes-*.npy"))) == 16
    assert not np.array_equal(tight, wide)


def test_a_representation_of_other_public_rows_has_votes_of_its_own(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "classes": [0, 1],
        "epsilon": 2.0,
        "delta": 1e-5,
        "teachers": 8,
        "teacher": LogisticRegression(),
        "aggregator": "gnmax",
        "queries": 40,
        "insecure_seed": 1,
    }
    for view in (FunctionTransformer(clipped(1.5)), FunctionTransformer(clipped(3.5))):
        model = PATEClassifier(**settings, representation=view)
        model.fit(ROWS, LABELS, public=PUBLIC, cache=tmp_path)
    assert len(list(tmp_path.glob("votes-*.npy"))) == 16
