"""``discreet attack membership`` on texts, sparse matrices and predicted numbers."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli import attacked_models
from cli.conftest import Run
from discreet.attacks import ShadowPool, observe, observe_split
from discreet.errors import InvalidValue

FILES = ("--members", "in.csv", "--nonmembers", "out.csv")
TEXTS = (*FILES, "--label", "mood", "--text", "review", "--model", "attacked_models:reviewer")
PRICES = (*FILES, "--label", "price")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])
    return tmp_path


def save(heading: list[str], draw: Any) -> None:
    for name, seed in (("in.csv", 1), ("out.csv", 2)):
        records, labels = draw(150, seed)
        rows = [[*np.atleast_1d(one), label] for one, label in zip(records, labels, strict=True)]
        with Path(name).open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([heading, *rows])


def attacked(run: Run, *arguments: str) -> dict[str, Any]:
    done = run("attack", "membership", *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return {one["attack"]: one for one in json.loads(done.stdout)["results"]}


def test_a_model_of_texts_with_shadow_models(place: Path, run: Run) -> None:
    save(["review", "mood"], attacked_models.reviews)
    shadows = ("--train", "attacked_models:train_reviews", "--shadows", "8", "--seed", "1")
    found = attacked(run, *TEXTS, *shadows, "--output", "page.html")
    assert set(found) == {"yeom", "lira online", "rmia offline", "shokri"}
    assert all(one["auc"]["low"] > 0.5 for one in found.values()), found
    assert (place / "page.html").exists()


def test_a_column_of_texts_is_said(place: Path, run: Run) -> None:
    save(["review", "mood"], attacked_models.reviews)
    for arguments, message in (
        ((*TEXTS[:6], *TEXTS[8:]), "--text says that it has texts"),
        ((*TEXTS[:7], "nothing", *TEXTS[8:]), "--text = nothing: expected a column of in.csv"),
        ((*FILES, "--text", "review"), "--text = review: expected nothing without a model"),
    ):
        done = run("attack", "membership", *arguments)
        assert done.exit_code == 2
        assert message in done.stderr


def test_a_changed_training_function_says_how_it_is_mended(place: Path, run: Run) -> None:
    """The pool goes by the name of the function, and trains one model again."""
    save(["review", "mood"], attacked_models.reviews)
    shadows = ("--shadows", "4", "--seed", "1", "--pool", "pool", "--attack", "rmia", "--train")
    attacked(run, *TEXTS, *shadows, "attacked_models:train_reviews")
    changed = attacked_models.train_smooth_reviews
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changed, "__qualname__", "train_reviews")
        patch.setattr(attacked_models, "train_reviews", changed)
        patch.setitem(sys.modules, "attacked_models", attacked_models)
        patch.setattr(changed, "__module__", "attacked_models")
        done = run("attack", "membership", *TEXTS, *shadows, "attacked_models:train_reviews")
        assert done.exit_code == 2
        assert "--pool = pool" in done.stderr
        assert "cache_key, a text that you change with it" in done.stderr
        patch.setattr(changed, "cache_key", "smooth", raising=False)
        attacked(run, *TEXTS, *shadows, "attacked_models:train_reviews")


def test_a_sparse_matrix_is_read_by_its_arrays(place: Path, run: Run) -> None:
    for name, matrix, seed in zip(("in", "out"), attacked_models.counts(), (1, 2), strict=True):
        arrays = {part: getattr(matrix, part) for part in ("data", "indices", "indptr", "shape")}
        np.savez(f"{name}.npz", labels=attacked_models.reviews(150, seed)[1], **arrays)
    files = ("--members", "in.npz", "--nonmembers", "out.npz")
    found = attacked(run, *files, "--model", "attacked_models:counter")
    assert found["yeom"]["auc"]["low"] > 0.5
    broken = dict(arrays, indices=arrays["indices"] + 10_000)
    huge = dict(arrays, shape=np.array([10**6, 10**6]))
    for given, message in ((broken, "expected an NPZ file"), (huge, "at most 500,000,000 cells")):
        np.savez("in.npz", labels=np.zeros(150, dtype=int), **given)
        done = run("attack", "membership", *files, "--model", "attacked_models:counter")
        assert done.exit_code == 2
        assert message in done.stderr


def test_sparse_records_are_refused_with_the_way_out() -> None:
    inside, outside = attacked_models.counts()
    moods = np.arange(150) % 2
    model = attacked_models.counter()
    for argument, call in (
        ("members", lambda: observe_split(model, members=(inside, moods), nonmembers=(1, 1))),
        ("records", lambda: observe(model, outside, moods, members=moods > 0)),
        ("records", lambda: ShadowPool(inside, moods, attacked_models.train_reviews)),
    ):
        with pytest.raises(InvalidValue, match=r"x\.toarray\(\)") as refused:
            call()
        assert refused.value.argument == argument


def test_predicted_numbers_are_told_and_those_of_a_stranger_are_not(place: Path, run: Run) -> None:
    save(["a", "b", "c", "price"], attacked_models.prices)
    shadows = ("--train", "attacked_models:train_prices", "--shadows", "16", "--seed", "1")
    found = {}
    for name in ("appraiser", "stranger"):
        model = ("--model", f"attacked_models:{name}")
        (alone,) = attacked(run, *PRICES, *model).values()
        (sharper,) = attacked(run, *PRICES, *model, *shadows, "--confidence", "0.999").values()
        found[name] = alone, sharper
    assert found["appraiser"][0]["auc"]["low"] > 0.6
    assert found["appraiser"][1]["auc"]["value"] > found["appraiser"][0]["auc"]["value"]
    # The null target: by the intervals at 99.9 % a false alarm is that rare.
    assert found["stranger"][1]["auc"]["low"] < 0.5 < found["stranger"][1]["auc"]["high"]


def test_what_numbers_cannot_be_attacked_with_is_refused(place: Path, run: Run) -> None:
    save(["a", "b", "c", "price"], attacked_models.prices)
    model = ("--model", "attacked_models:appraiser")
    for given, message in (
        (("--attack", "lira"), "--attack = lira: expected nothing for a model that predicts"),
        (("--public", "in.csv"), "--public = in.csv: expected nothing"),
        (("--pool", "pool"), "--pool = pool: expected nothing"),
    ):
        done = run("attack", "membership", *PRICES, *model, *given)
        assert done.exit_code == 2
        assert message in done.stderr
    done = run("attack", "membership", *FILES[:3], "in.csv", "--label", "price", *model)
    assert "equal to a member" in done.stderr
    save(["a", "b", "c", "price"], lambda count, seed: (np.ones((count, 3)), ["dear"] * count))
    done = run("attack", "membership", *PRICES, *model)
    assert "--members = labels: expected numbers" in done.stderr
