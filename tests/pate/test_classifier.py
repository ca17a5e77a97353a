"""PATEClassifier (S23): charged first, within the budget, and only the student leaves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import FunctionTransformer

from discreet.errors import BudgetExceeded, InvalidValue, NotApplicable, SchemaError
from discreet.learn import _estimator as base
from discreet.learn._model_file import read_model, write_model
from discreet.ledger import Ledger
from discreet.pate import (
    ConfidentGNMax,
    InteractiveGNMax,
    PATEClassifier,
    SparseVotes,
)
from discreet.pate import _classifier as module
from discreet.report import draw_flow
from discreet.report._command_charts import flow_chart, flow_lines
from discreet.report._drawing import inline_svg

RNG = np.random.default_rng(11)
CENTRES = np.array([[0.0, 0.0, 0.0], [3.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
NAMES = np.array(["ash", "birch", "cedar"])
CODES = RNG.integers(0, 3, size=2000)
ROWS = CENTRES[CODES] + RNG.normal(size=(2000, 3)) * 0.8
LABELS = NAMES[CODES]
PUBLIC_TRUTH = RNG.integers(0, 3, size=300)
PUBLIC = CENTRES[PUBLIC_TRUTH] + RNG.normal(size=(300, 3)) * 0.8
SETTINGS: dict[str, Any] = {
    "classes": NAMES.tolist(),
    "epsilon": 1.0,
    "delta": 1e-5,
    "teachers": 80,
    "teacher": GaussianNB(var_smoothing=1e-2),
    "aggregator": "gnmax",
    "queries": 50,
    "insecure_seed": 4,
}


def fitted(**changes: Any) -> PATEClassifier:
    extra = {name: changes.pop(name) for name in ("persons", "cache") if name in changes}
    model = PATEClassifier(**{**SETTINGS, **changes})
    return model.fit(ROWS, LABELS, public=PUBLIC, **extra)


@pytest.fixture(scope="module")
def usual() -> PATEClassifier:
    """Fitted as SETTINGS say, for tests that only look at it."""
    return fitted()


def accuracy(model: PATEClassifier) -> float:
    return float(np.mean(model.predict(PUBLIC) == NAMES[PUBLIC_TRUTH]))


def test_the_student_is_good_and_the_certificate_says_what_was_done(
    usual: PATEClassifier,
) -> None:
    model = usual
    assert accuracy(model) > 0.9
    paper = model.certificate_
    assert 0.9 < paper.epsilon <= 1.0
    assert paper.loss == model.planned_loss(public_rows=300)
    assert "INSECURE" in paper.randomness["randomness"]
    assert paper.plan["partition"]["disjoint"] is True
    assert paper.plan["labels_used"] == len(model.labels_)
    assert paper.plan["unit"] == "row"
    # Public facts only: neither the number of records nor sizes of parts.
    assert "2000" not in json.dumps(paper.to_json())
    chances = model.predict_proba(PUBLIC)
    assert np.allclose(chances.sum(axis=1), 1.0)
    assert not hasattr(model, "teachers_")
    assert clone(model).get_params()["epsilon"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"aggregator": "auto"},
        {"rounds": 3, "queries": 60},
        {
            "aggregator": ConfidentGNMax(
                classes=3, teachers=80, threshold=50, selection_noise=60, answer_noise=30
            )
        },
        {
            "aggregator": InteractiveGNMax(
                classes=3,
                teachers=80,
                threshold=20,
                selection_noise=60,
                answer_noise=30,
                confidence=0.9,
            ),
            "rounds": 2,
            "queries": 60,
        },
        {
            "aggregator": SparseVotes(classes=3, teachers=80, fails=2, epsilon=4, delta=1e-5),
            "epsilon": 4.0,
        },
        {"representation": PCA(2), "columns": [[0], [0, 1]]},
        {"student_parameters": {"method": "spreading"}},
        {"relation": "replace"},
        {"persons": [f"p{place // 3}" for place in range(2000)]},
    ],
    ids=[
        "auto",
        "rounds",
        "confident",
        "interactive",
        "sparse",
        "view",
        "spreading",
        "replace",
        "persons",
    ],
)
def test_every_way_stays_within_its_budget(changes: dict[str, Any]) -> None:
    model = fitted(**changes)
    paper = model.certificate_
    assert paper.epsilon <= SETTINGS["epsilon"] * (4 if "epsilon" in changes else 1)
    assert accuracy(model) > 0.75
    assert len(set(model.examples_.tolist())) == len(model.examples_)
    assert paper.relation == changes.get("relation", "add_remove")
    assert paper.plan["unit"] == ("person" if "persons" in changes else "row")
    assert paper.plan["queries_asked"] <= changes.get("queries", 300)


def test_nothing_is_read_before_it_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.create(tmp_path / "study.ledger") as ledger:
        ledger.create_dataset("trees", epsilon=1.1, delta=2e-5)
        model = PATEClassifier(**SETTINGS)
        model.fit(ROWS, LABELS, public=PUBLIC, ledger=ledger, dataset="trees")
        assert model.certificate_.receipt is not None

        def read(*arguments: Any, **more: Any) -> Any:
            raise AssertionError("a record was read without a charge")

        monkeypatch.setattr(module, "partition_records", read)
        monkeypatch.setattr(module.TeacherEnsemble, "votes", read)
        with pytest.raises(BudgetExceeded):
            clone(model).fit(ROWS, LABELS, public=PUBLIC, ledger=ledger, dataset="trees")
    # Both are what a run reads by: it would have been noticed.
    for owner, name in ((module, "partition_records"), (module.TeacherEnsemble, "votes")):
        monkeypatch.undo()
        monkeypatch.setattr(owner, name, read)
        with pytest.raises(AssertionError, match="without a charge"):
            clone(model).fit(ROWS, LABELS, public=PUBLIC)


def test_odd_records_and_missing_classes_are_no_error() -> None:
    rows = ROWS.astype(object)
    rows[3, 1], rows[4, 0], rows[5, 2] = "many", None, 1e308
    labels = LABELS.astype(object)
    labels[7] = "larch"
    model = PATEClassifier(**SETTINGS).fit(rows, labels, public=PUBLIC)
    assert accuracy(model) > 0.85
    nobody = PATEClassifier(**SETTINGS).fit(ROWS[:0], LABELS[:0], public=PUBLIC)
    assert nobody.predict(PUBLIC).shape == (300,)
    assert nobody.certificate_.plan["partition"] == model.certificate_.plan["partition"]
    some = PATEClassifier(**SETTINGS).fit(ROWS[CODES > 0], LABELS[CODES > 0], public=PUBLIC)
    assert set(some.predict(PUBLIC).tolist()) <= set(NAMES.tolist())


@pytest.mark.parametrize("rounds", [1, 3])
def test_equal_public_rows_are_no_error_after_the_charge(rounds: int) -> None:
    """Fewer rows differ than queries were paid for: all queries are asked nevertheless."""
    public = np.repeat(PUBLIC[:20], 5, axis=0)
    model = PATEClassifier(**SETTINGS, rounds=rounds).fit(ROWS, LABELS, public=public)
    assert model.certificate_.plan["queries_asked"] == 50
    assert len(set(model.examples_.tolist())) == len(model.examples_)


def test_public_rows_that_are_private_as_well_raise_nothing() -> None:
    model = PATEClassifier(**SETTINGS).fit(ROWS, LABELS, public=ROWS[:300])
    other = PATEClassifier(**SETTINGS).fit(ROWS[300:], LABELS[300:], public=ROWS[:300])
    assert model.certificate_.to_json().keys() == other.certificate_.to_json().keys()
    assert model.certificate_.epsilon == other.certificate_.epsilon


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": None}, "classes = None"),
        ({"epsilon": 0.0}, "epsilon = 0"),
        ({"delta": None}, "delta = None"),
        ({"teachers": 0}, "teachers = 0"),
        ({"teacher": "oracle"}, "teacher = 'oracle'"),
        ({"student": "magic"}, "student = 'magic'"),
        ({"rounds": 0}, "rounds = 0"),
        ({"queries": 0}, "queries = 0"),
        ({"representation": "wavelets"}, "representation = 'wavelets'"),
        ({"representation": 3}, "representation = 3"),
        ({"columns": [[9]]}, "column numbers from 0 to 2"),
        ({"aggregator": 3}, "aggregator = 3"),
        (
            {"representation": FunctionTransformer(lambda rows: rows - rows.mean(axis=0))},
            "row by row",
        ),
    ],
)
def test_bad_parameters_are_named_before_anything_happens(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*arguments: Any, **more: Any) -> Any:
        raise AssertionError("a record was read")

    monkeypatch.setattr(module, "partition_records", read)
    with pytest.raises(InvalidValue, match=message):
        fitted(**changes)


def test_bad_public_data_are_named() -> None:
    model = PATEClassifier(**SETTINGS)
    for wrong in (None, PUBLIC[:1], PUBLIC[:, 0]):
        with pytest.raises(InvalidValue, match=r"public|X ="):
            model.fit(ROWS, LABELS, public=wrong)
    with pytest.raises(ValueError, match="features"):
        model.fit(ROWS, LABELS, public=PUBLIC[:, :2])


def test_a_saved_student_answers_alike_and_holds_no_teacher(
    usual: PATEClassifier, tmp_path: Path
) -> None:
    model = usual
    model.save(tmp_path / "student.npz")
    again = PATEClassifier.load(tmp_path / "student.npz")
    assert np.array_equal(again.predict_proba(PUBLIC), model.predict_proba(PUBLIC))
    assert again.certificate_ == model.certificate_
    with pytest.raises(NotApplicable, match="its teachers are not in the file"):
        again.fit(ROWS, LABELS, public=PUBLIC)
    with np.load(tmp_path / "student.npz", allow_pickle=False) as file:
        assert set(file.files) == {"discreet_json", "weights", "centre", "scale"}
    (tmp_path / "student.npz").write_bytes(b"nothing")
    with pytest.raises(SchemaError):
        PATEClassifier.load(tmp_path / "student.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": {"queries": 60}}, "its plan costs"),
        ({"budget": {}}, "cannot be read"),
        ({"aggregator": {"aggregator": "Oracle"}}, "cannot be read"),
        ({"teachers": 800}, "disagree about teachers"),
        ({"features": 4}, "disagree about features"),
        ({"student": {"kind": "images"}}, "disagree about student"),
    ],
)
def test_a_certificate_that_does_not_fit_its_plan_is_refused(
    change: dict[str, Any],
    message: str,
    saved: tuple[dict[str, Any], dict[str, Any]],
    tmp_path: Path,
) -> None:
    head, arrays = saved
    paper = {**head["certificate"], "plan": {**head["certificate"]["plan"], **change}}
    told = {name: value for name, value in head.items() if name not in ("kind", "format")}
    told["certificate"] = paper
    path = tmp_path / "forged.npz"
    write_model(path, kind="PATEClassifier", head=told, arrays=arrays)
    with pytest.raises(SchemaError, match="disagree about"):
        PATEClassifier.load(path)
    # The same lie in the plan of the model, and a file of 0.1, which had none.
    for plan in ({**head["plan"], **change}, None):
        write_model(path, kind="PATEClassifier", head={**told, "plan": plan}, arrays=arrays)
        with pytest.raises(SchemaError, match=message):
            PATEClassifier.load(path)


@pytest.fixture(scope="module")
def saved(
    usual: PATEClassifier, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    path = tmp_path_factory.mktemp("saved") / "student.npz"
    usual.save(path)
    return read_model(path, kind="PATEClassifier")


def test_names_of_columns_survive_saving(usual: PATEClassifier, tmp_path: Path) -> None:
    names = ["height", "girth", "age"]
    frames = [pd.DataFrame(table, columns=names) for table in (ROWS, PUBLIC)]
    model = PATEClassifier(**SETTINGS).fit(frames[0], LABELS, public=frames[1])
    model.save(tmp_path / "student.npz")
    again = PATEClassifier.load(tmp_path / "student.npz")
    assert again.feature_names_in_.tolist() == names
    assert np.array_equal(again.predict(frames[1]), model.predict(frames[1]))
    for one in (model, again):
        with pytest.raises(ValueError, match="feature names should match"):
            one.predict(frames[1][names[::-1]])
    with pytest.raises(ValueError, match="feature names should match"):
        PATEClassifier(**SETTINGS).fit(frames[0], LABELS, public=frames[1][names[::-1]])
    usual.save(tmp_path / "plain.npz")
    assert not hasattr(PATEClassifier.load(tmp_path / "plain.npz"), "feature_names_in_")


def test_votes_are_kept_for_a_run_that_goes_on(tmp_path: Path) -> None:
    first = fitted(cache=tmp_path / "votes")
    count = len(list((tmp_path / "votes").glob("votes-*.npy")))
    assert count == 80
    again = fitted(cache=tmp_path / "votes")
    assert len(list((tmp_path / "votes").glob("votes-*.npy"))) == count
    paper = again.certificate_.plan["partition"]
    assert paper == first.certificate_.plan["partition"]


def test_the_picture_shows_the_flow_in_public_numbers(
    usual: PATEClassifier, tmp_path: Path
) -> None:
    paper = usual.certificate_
    words = flow_lines(paper)
    assert "80 teachers, disjoint" in words["teachers"]
    assert f"{paper.plan['queries_asked']} queries asked" in words["labels"]
    assert "300 public rows" in words["public"]
    draw_flow(paper, tmp_path / "flow.png")
    assert (tmp_path / "flow.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidValue, match="ends in"):
        draw_flow(paper, tmp_path / "flow.txt")


def test_the_flow_of_a_certificate_is_a_picture_for_a_page() -> None:
    paper = fitted(teacher=[GaussianNB(), GaussianNB(var_smoothing=1e-2)]).certificate_
    plan = json.loads(json.dumps(paper.to_json()))["plan"]
    figure = flow_chart(plan, relation=paper.relation)
    assert figure is not None
    text = inline_svg(figure, salt="x")
    for words in ("80 teachers, disjoint", "300 public rows", "2 kinds of teachers", "may leave"):
        assert words in text
    assert f"{plan['queries_asked']} queries asked" in text
    drawn = flow_chart({**plan, "student": {"kind": "<script>"}}, relation="replace")
    assert drawn is not None
    assert "<script>" not in inline_svg(drawn, salt="x")
    assert "their number is public" in inline_svg(drawn, salt="x")
    for wrong in ({}, {"partition": 3}, {**plan, "teacher": []}, {**plan, "aggregator": None}):
        assert flow_chart(wrong, relation="replace") is None


@pytest.mark.parametrize(("unit", "persons"), [("patient", False), ("row", True)])
def test_a_budget_for_another_unit_is_refused(tmp_path: Path, unit: str, persons: bool) -> None:
    with Ledger.create(tmp_path / "a.ledger") as ledger:
        ledger.create_dataset("trees", epsilon=5, delta=1e-3, unit=unit)
        owners = np.arange(len(ROWS)) // 2 if persons else None
        with pytest.raises(InvalidValue, match="unit"):
            PATEClassifier(**SETTINGS).fit(
                ROWS, LABELS, public=PUBLIC, persons=owners, ledger=ledger, dataset="trees"
            )
        assert not list(ledger.history("trees"))


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"n_jobs": 0}, "n_jobs"),
        ({"n_jobs": -3}, "n_jobs"),
        ({"n_jobs": "x"}, "n_jobs"),
    ],
)
def test_public_mistakes_are_found_before_the_charge(
    changes: dict[str, Any], argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def charged(*_: Any, **__: Any) -> Any:
        raise AssertionError("charged")

    monkeypatch.setattr(base, "charged", charged)
    with pytest.raises(InvalidValue) as caught:
        fitted(**changes)
    assert caught.value.argument == argument
    with pytest.raises(NotApplicable, match="use add_remove"):
        fitted(relation="replace", persons=np.arange(len(ROWS)))
    with pytest.raises(AssertionError, match="charged"):
        fitted()
