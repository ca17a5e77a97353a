"""S33: the released model: rows, tables with error bars, files, certificates."""

import datetime as dt
import json
from pathlib import Path

import numpy as np
import pytest

from discreet.data import Categorical, Integer, Schema
from discreet.errors import InvalidValue, SchemaError
from discreet.learn import load_model
from discreet.ledger import Ledger
from discreet.report import verify_certificate
from discreet.synth import OneShot, Synthesizer, SyntheticModel
from synth.worlds import SCHEMA, some_rows

ROWS = some_rows(3000)


@pytest.fixture(scope="module")
def model() -> SyntheticModel:
    return OneShot().plan(SCHEMA, epsilon=3.0, delta=1e-6).run(ROWS, insecure_seed=1)


def test_rows_are_like_the_table(model: SyntheticModel) -> None:
    """The seed is fixed; the margins are several times the noise."""
    rows = model.sample(seed=1)
    assert abs(rows.num_rows - 3000) < 100
    age, ill = rows["age"].to_numpy(), rows["ill"].to_numpy(zero_copy_only=False)
    assert abs(age.mean() - ROWS["age"].mean()) < 3
    assert abs(ill[age < 50].mean() - ROWS["ill"][ROWS["age"] < 50].mean()) < 0.1
    paid = rows["paid"].to_numpy()
    assert abs((paid == 0).mean() - 1 / 3) < 0.1  # the spike at zero stays a spike
    assert rows["day"].type == "date32[day]"
    assert set(rows["town"].to_pylist()) <= {"ham", "eton", "ware", "elsewhere"}


def test_sampling_is_free_and_repeatable(model: SyntheticModel) -> None:
    assert model.sample(30, seed=5).equals(model.sample(30, seed=5))
    assert not model.sample(30).equals(model.sample(30))
    assert model.sample(0).num_rows == 0


def test_given_values_of_wide_cells_hold_exactly(model: SyntheticModel) -> None:
    """A cell of a long interval holds many values; every row has one that was asked for."""
    days = [dt.date(2021, 3, 3), dt.date(2021, 3, 4), dt.date(2022, 9, 9)]
    for asked in (days[0], days):
        rows = model.sample(300, given={"day": asked}, seed=3)
        assert set(rows["day"].to_pylist()) == set(asked if isinstance(asked, list) else [asked])
    rows = model.sample(50, given={"paid": 123.5, "age": 40}, seed=3).to_pydict()
    assert (set(rows["paid"]), set(rows["age"])) == ({123.5}, {40})


def test_given_values_hold_in_every_row(model: SyntheticModel) -> None:
    rows = model.sample(200, given={"ill": True, "age": [20, 21, 22]}, seed=2)
    assert set(rows["ill"].to_pylist()) == {True}
    assert set(rows["age"].to_pylist()) <= {20, 21, 22}
    towns = model.sample(200, given={"town": "ware"}, seed=2)
    assert np.mean(towns["age"].to_numpy()) > 70
    for bad in ({"town": "atlantis"}, {"age": 1000}, {"weight": 3}, {"age": "x"}, "age"):
        with pytest.raises(InvalidValue):
            model.sample(5, given=bad)


def test_tables_have_error_bars_where_they_were_measured(model: SyntheticModel) -> None:
    one = model.marginal("ill")
    assert one.labels == (("false", "true"),)
    assert one.noisy is not None
    assert one.stddev is not None
    assert one.bound is not None
    right = np.array([(~ROWS["ill"]).sum(), ROWS["ill"].sum()])
    assert np.all(np.abs(one.noisy - right) < 6 * one.stddev)
    assert np.abs(one.counts - right).sum() < one.bound
    for measured in model.measured:
        names = [model.columns[at] for at in measured.columns]
        assert model.marginal(*names).stddev is not None
    turned = model.marginal("ill", "town").counts
    np.testing.assert_allclose(turned, model.marginal("town", "ill").counts.T)
    assert turned.sum() == pytest.approx(model.total)
    with pytest.raises(InvalidValue):
        model.marginal("ill", "ill")
    with pytest.raises(InvalidValue):
        model.marginal()


@pytest.mark.slow
def test_error_bars_have_the_size_of_the_noise() -> None:
    """The seeds are fixed; 160 normal scores leave [.4, 1.8] with a probability below 1e-9."""
    schema = Schema({"a": Integer(0, 1), "b": Integer(0, 1)})
    plan = OneShot(evaluations=1).plan(schema, epsilon=1.0, delta=1e-6)
    data = {"a": [0, 1] * 50, "b": [0, 1, 1, 1] * 25}
    found = []
    for seed in range(60):
        one = plan.run(data, insecure_seed=seed).marginal("a", "b")
        if one.noisy is not None:
            found.append((one.noisy - [[25, 25], [0, 50]]) / one.stddev)
    assert len(found) > 40
    assert 0.4 < np.mean(np.square(found)) < 1.8


def test_files_come_back_and_damage_is_found(model: SyntheticModel, tmp_path: Path) -> None:
    model.save(tmp_path / "model.npz")
    again = SyntheticModel.load(tmp_path / "model.npz")
    assert again.sample(50, seed=3).equals(model.sample(50, seed=3))
    assert again.certificate_ == model.certificate_
    with np.load(tmp_path / "model.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    changed = dict(arrays)
    changed["node_0"] = arrays["node_0"][:, ::-1].copy()
    head = json.loads(str(arrays["discreet_json"]))
    other = {**arrays, "discreet_json": np.array(json.dumps({**head, "format": 9}))}
    cheaper = {**head, "plan": {**head["plan"], "column_stddev": 1.0}}
    cheap = {**arrays, "discreet_json": np.array(json.dumps(cheaper))}
    missing = {name: one for name, one in arrays.items() if name != "share_0"}
    for at, bad in enumerate((changed, other, cheap, missing)):
        np.savez(tmp_path / f"{at}.npz", **bad)
        with pytest.raises(SchemaError):
            SyntheticModel.load(tmp_path / f"{at}.npz")


def test_the_certificate_is_accepted_and_a_false_one_is_not(tmp_path: Path) -> None:
    plan = OneShot().plan(SCHEMA, epsilon=1.0, delta=1e-6)
    with Ledger.create(tmp_path / "book") as ledger:
        ledger.create_dataset("rows", epsilon=2, delta="1e-5", unit="row")
        made = plan.run(ROWS, ledger=ledger, dataset="rows")
        made.save_directory(tmp_path / "out")
        place = tmp_path / "out" / "certificate.json"
        checks = {one.what: one.ok for one in verify_certificate(place, ledger=ledger)}
        assert set(checks.values()) == {True}
        assert "the model is the one of the certificate" in checks
        read = load_model(tmp_path / "out")
        assert read.sample(9, seed=1).equals(made.sample(9, seed=1))
        document = json.loads(place.read_text())
        document["plan"]["column_stddev"] /= 2
        place.write_text(json.dumps(document))
        wrong = [one.what for one in verify_certificate(place, ledger=ledger) if one.ok is False]
        assert "the loss is that of the plan" in wrong


def test_the_estimator_has_the_form_of_scikit_learn() -> None:
    from sklearn.base import clone
    from sklearn.exceptions import NotFittedError

    odd = {"bins": {"paid": [np.int64(1), 500]}, "groups": np.int64(30)}
    made = Synthesizer(epsilon=1, delta=1e-6, schema=SCHEMA, insecure_seed=3, **odd)
    assert clone(made).get_params() == made.get_params()
    with pytest.raises(NotFittedError):
        made.sample()
    assert made.planned_loss() == made.fit(ROWS).certificate_.loss
    assert made.sample(5).num_rows == 5
    assert made.marginal("ill").counts.sum() == pytest.approx(made.model_.total)


def test_several_rows_a_person_and_ids_that_are_made_up() -> None:
    columns = {"age": Integer(0, 9), "ill": Categorical(["yes", "no"], other="no")}
    schema = Schema(columns, person="who", rows_per_person=3, expected_rows=300)
    data = {"age": [1, 2, 3] * 100, "ill": ["no"] * 300, "who": np.arange(300) // 6}
    made = OneShot().plan(schema, epsilon=2.0, delta=1e-6).run(data, insecure_seed=1)
    assert made.certificate_.unit == "person"
    assert made.sample(20)["who"].to_pylist() == list(range(20))
    assert 60 < made.total < 240  # 50 persons with 3 rows each count


@pytest.mark.slow
def test_other_frames_are_taken(tmp_path: Path) -> None:
    import pandas as pd
    import pyarrow.parquet as pq

    frame = pd.DataFrame(ROWS)
    plan = OneShot().plan(SCHEMA, epsilon=1.0, delta=1e-6)
    models = [plan.run(ROWS, insecure_seed=4), plan.run(frame, insecure_seed=4)]
    pq.write_table(models[0].sample(100), tmp_path / "rows.parquet")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    models.append(plan.run(tmp_path / "rows.csv", insecure_seed=4))
    assert len({one.certificate_.model_digest for one in models}) == 1
    plan.run(tmp_path / "rows.parquet")
