"""Whatever is wrong with what is public is found before a ledger is charged (S23)."""

import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.exceptions import NotFittedError
from sklearn.naive_bayes import GaussianNB

from discreet.errors import InvalidValue
from discreet.ledger import Ledger
from discreet.pate import InteractiveGNMax, PATEClassifier, SparseVotes, StableVotes, TableStudent
from discreet.pate import _teachers as teachers_module

RNG = np.random.default_rng(2)
ROWS = RNG.normal(size=(300, 3))
LABELS = (ROWS.sum(axis=1) > 0).astype(np.int64)
PUBLIC = RNG.normal(size=(60, 3))
SETTINGS: dict[str, Any] = {
    "classes": [0, 1],
    "epsilon": 2.0,
    "delta": 1e-5,
    "teachers": 20,
    "teacher": GaussianNB(),
    "aggregator": "gnmax",
    "queries": 20,
    "insecure_seed": 1,
}


def plain(X: Any, y: Any, queries: Any, *, classes: int, seed: int) -> Any:  # noqa: N803
    return np.zeros(len(queries), dtype=np.int64)


class Locked:
    """Cannot be sent to a worker, nor copied."""

    cache_key = "locked"

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, X: Any, y: Any, queries: Any, *, classes: int, seed: int) -> Any:  # noqa: N803
        return plain(X, y, queries, classes=classes, seed=seed)


class Miscounting:
    cache_key = "miscounting"

    def vote_together(self, parts: Any, queries: Any, *, classes: int, seeds: Any) -> Any:
        return [np.zeros(len(queries[0]), dtype=np.int64)]


class BadStudent:
    """A student of one's own that fails in one of several ways."""

    kind = "own"

    def __init__(self, fault: str) -> None:
        self.fault = fault

    @property
    def parameters(self) -> dict[str, Any]:
        return {"size": Fraction(1, 2)} if self.fault == "parameters" else {}

    def features(self, rows: Any) -> Any:
        return rows

    def fit(self, rows: Any, examples: Any, labels: Any, *, classes: int, features: Any) -> Any:
        if self.fault == "fit":
            raise KeyError("nothing fits")
        self.shape = (classes if self.fault != "shape" else classes + 1,)
        return self

    def scores(self, rows: Any) -> Any:
        return np.full((len(rows), *self.shape), np.nan if self.fault == "scores" else 0.0)

    def arrays(self) -> Any:
        return {"w": np.array(["a"]) if self.fault == "arrays" else np.zeros(2)}

    def set_arrays(self, arrays: Any) -> None:
        raise AssertionError("nobody reads this back")


class Guarded(TransformerMixin, BaseEstimator):
    """A representation that holds what nobody can read."""

    def fit(self, X: Any, y: Any = None) -> Any:  # noqa: N803
        self.lock_ = threading.Lock()
        return self

    def transform(self, X: Any) -> Any:  # noqa: N803
        return X


def mistakes(place: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """What is wrong, and about which argument it is said."""
    (place / "file").write_text("x", encoding="utf-8")
    (place / "broken").mkdir()
    (place / "broken" / "partition.key").write_bytes(b"short")
    (place / "odd" / "partition.key").mkdir(parents=True)
    return {
        "too few persons": ({"persons": np.arange(10)}, "persons"),
        "persons in two columns": ({"persons": np.zeros((300, 2))}, "persons"),
        "one name for all": ({"persons": "ann"}, "persons"),
        "persons without an order": ({"persons": {1, 2}}, "persons"),
        "a function without cache_key": ({"teacher": plain, "cache": place / "a"}, "cache_key"),
        "a cache inside nothing": ({"cache": place / "no" / "such"}, "cache"),
        "a cache that is a file": ({"cache": place / "file"}, "cache"),
        "a cache that is no path": ({"cache": 3}, "cache"),
        "a cache with a zero in its name": ({"cache": "a\0b"}, "cache"),
        "a cache with a damaged key": ({"cache": place / "broken"}, "cache"),
        "a cache whose key is a directory": ({"cache": place / "odd"}, "cache"),
        "a representation without a name": (
            {"representation": Guarded(), "cache": place / "b"},
            "cache_key",
        ),
        "one public row": ({"public": PUBLIC[:1]}, "public"),
        "no public row": ({"public": PUBLIC[:0]}, "public"),
        "a teacher that cannot be copied": ({"teacher": Locked()}, "teacher"),
        "one that cannot be sent": ({"teacher": Locked(), "n_jobs": 2}, "teacher"),
        "a group with too few answers": ({"teacher": Miscounting()}, "teacher"),
        "no workers": ({"n_jobs": 0}, "n_jobs"),
        **{
            f"a student with bad {fault}": ({"student": BadStudent(fault)}, "student")
            for fault in ("fit", "shape", "scores", "arrays", "parameters")
        },
    }


@pytest.mark.slow
def test_mistakes_are_told_before_anything_is_charged(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "a.ledger") as ledger:
        ledger.create_dataset("d", epsilon=50, delta=1e-2)
        ledger.create_dataset("p", epsilon=50, delta=1e-2, unit="person")
        for words, (changes, argument) in mistakes(tmp_path).items():
            told = {"public": PUBLIC, **changes}
            extra = {n: told.pop(n) for n in ("public", "persons", "cache") if n in told}
            model = PATEClassifier(**{**SETTINGS, **told})
            dataset = "p" if "persons" in extra else "d"
            with pytest.raises(InvalidValue) as caught:
                model.fit(ROWS, LABELS, ledger=ledger, dataset=dataset, **extra)
            assert caught.value.argument == argument, words
            assert not list(ledger.history(dataset)), words


def test_a_rehearsal_says_what_fit_would_say_and_what_it_will_charge(tmp_path: Path) -> None:
    found = mistakes(tmp_path)
    for words in (
        "a function without cache_key",
        "a cache that is a file",
        "a cache with a damaged key",
        "one public row",
        "no workers",
        "a student with bad fit",
    ):
        changes, argument = found[words]
        told = {"public": PUBLIC, **changes}
        extra = {n: told.pop(n) for n in ("public", "cache") if n in told}
        with pytest.raises(InvalidValue) as caught:
            PATEClassifier(**{**SETTINGS, **told}).rehearse(**extra)
        assert caught.value.argument == argument, words
    model = PATEClassifier(**SETTINGS)
    loss = model.rehearse(PUBLIC)
    assert not hasattr(model, "n_features_in_")
    assert model.fit(ROWS, LABELS, public=PUBLIC).certificate_.loss == loss


@pytest.mark.parametrize("queries", [1, 2])
def test_teachers_are_rehearsed_on_all_public_rows_and_once(
    queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A teacher that cannot learn from one repeated row is no mistake where there are more."""
    tried: list[int] = []
    right = teachers_module._try_on_public_rows

    def counted(kind: Any, lesson: Any) -> Any:
        tried.append(len(np.unique(lesson.features, axis=0)))
        return right(kind, lesson)

    monkeypatch.setattr(teachers_module, "_try_on_public_rows", counted)
    settings = {**SETTINGS, "teacher": QuadraticDiscriminantAnalysis(), "queries": queries}
    model = PATEClassifier(**settings).fit(ROWS, LABELS, public=PUBLIC)
    assert model.certificate_.plan["queries_asked"] == queries
    assert tried == [60]


def test_every_kind_is_rehearsed_with_every_column_set_that_it_meets() -> None:
    def narrow(X: Any, y: Any, queries: Any, *, classes: int, seed: int) -> Any:  # noqa: N803
        if X.shape[1] == 1:
            raise ValueError("one column is not enough")
        return np.zeros(len(queries), dtype=np.int64)

    settings = {**SETTINGS, "teacher": [GaussianNB(), narrow], "columns": [[0, 1], [1, 2], [2]]}
    with pytest.raises(InvalidValue, match="one column is not enough"):
        PATEClassifier(**settings).rehearse(PUBLIC)


@pytest.mark.parametrize(
    "aggregator",
    [
        StableVotes(classes=2, teachers=20, epsilon="1/4", delta=np.float32(1e-3)),
        SparseVotes(
            classes=2,
            teachers=20,
            fails=np.int64(1),
            epsilon=Fraction(3, 2),
            delta=Fraction(1, 100),
        ),
        InteractiveGNMax(
            classes=2,
            teachers=20,
            threshold=Fraction(21, 2),
            selection_noise=np.float64(20),
            answer_noise=10,
            confidence=np.float32(0.75),
        ),
    ],
)
def test_parameters_of_any_number_type_can_be_certified_and_saved(
    aggregator: Any, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "aggregator": aggregator, "epsilon": Fraction(19, 10)}
    settings |= {"delta": Fraction(1, 50), "teachers": np.int64(20)}
    model = PATEClassifier(**settings).fit(ROWS, LABELS, public=PUBLIC)
    model.save(tmp_path / "student.npz")
    again = PATEClassifier.load(tmp_path / "student.npz")
    assert again.certificate_ == model.certificate_
    assert again.epsilon == 1.9
    assert again.delta == 0.02


def test_a_student_that_is_given_is_not_fitted_in_place(tmp_path: Path) -> None:
    given = TableStudent(method="labels-only")
    settings = {**SETTINGS, "student": given}
    one = PATEClassifier(**settings).fit(ROWS, LABELS, public=PUBLIC)
    said = one.predict_proba(ROWS)
    other = PATEClassifier(**settings).fit(ROWS, 1 - LABELS, public=PUBLIC)
    assert one.student_ is not given
    assert one.student_ is not other.student_
    assert np.array_equal(one.predict_proba(ROWS), said)
    with pytest.raises(InvalidValue, match="fitted student"):
        given.scores(ROWS)
    one.save(tmp_path / "student.npz")
    assert np.array_equal(PATEClassifier.load(tmp_path / "student.npz").predict_proba(ROWS), said)


def test_a_student_of_ones_own_works_and_is_not_saved_as_another(tmp_path: Path) -> None:
    model = PATEClassifier(**{**SETTINGS, "student": BadStudent("")})
    model.fit(ROWS, LABELS, public=PUBLIC)
    assert len(model.labels_) == 20
    with pytest.raises(InvalidValue, match="kind that load knows"):
        model.save(tmp_path / "student.npz")


def test_labels_are_kept_where_a_student_fails_after_all() -> None:
    class Late(BadStudent):
        def fit(self, rows: Any, examples: Any, labels: Any, **more: Any) -> Any:
            if len(rows) > 64:  # more than the rehearsal has
                raise MemoryError("too many rows")
            return super().fit(rows, examples, labels, **more)

    model = PATEClassifier(**{**SETTINGS, "student": Late("")}).fit(ROWS, LABELS, public=PUBLIC)
    assert model.certificate_.plan["public_rows"] == 60
    with pytest.raises(MemoryError):
        model.fit(ROWS, LABELS, public=np.vstack([PUBLIC, -PUBLIC]))
    assert len(model.labels_) == len(model.examples_) == 20
    # The certificate of the earlier fit does not speak of these labels.
    assert not hasattr(model, "certificate_")
    with pytest.raises(NotFittedError):
        model.predict(ROWS)


def test_a_full_disk_does_not_cost_a_run_that_was_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(teachers_module.ArrayCache, "put", full)
    model = PATEClassifier(**SETTINGS)
    with pytest.warns(UserWarning, match="could not be kept"):
        model.fit(ROWS, LABELS, public=PUBLIC, cache=tmp_path)
    assert len(model.labels_) == 20
