"""S33: a generator taught by a critic under DP-SGD, for tables and pictures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet.data import Boolean, Categorical, Date, Integer, Real, Schema
from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.learn import load_model
from discreet.ledger import Ledger
from discreet.randomness import source
from discreet.report import verify_certificate
from discreet.synth import Gan, GanModel
from discreet.synth._gan import _Fakes
from synth.test_images import LABELS, PICTURES
from synth.worlds import SCHEMA, some_rows

SMALL = Gan(steps=4, batch=64, hidden=8, latent=4)
PLAN = SMALL.plan(SCHEMA, epsilon=2, delta=1e-5)


def test_the_loss_is_that_of_the_critic_and_meets_the_budget() -> None:
    assert PLAN.loss == PLAN.training.loss
    assert 1.9 < PLAN.loss.epsilon(delta=1e-5) <= 2.0
    assert sum(PLAN.form.heads) == PLAN.form.encode(some_rows(3), None).shape[1]


def test_a_row_is_coded_by_itself_and_comes_back() -> None:
    rows = some_rows(200)
    form = Gan(bins=2_000).plan(SCHEMA, epsilon=2, delta=1e-5).form
    codes = form.encode(rows, None)
    assert (codes.sum(axis=1) == len(SCHEMA.columns)).all()
    alone = form.encode({name: values[7:8] for name, values in rows.items()}, None)
    assert np.array_equal(alone[0], codes[7])
    # So sure an output draws its own cell; the probability of another is below 1e-300.
    back = form.decode(codes * 1_000.0, None, source(insecure_seed=1))
    assert back.column("age").to_pylist() == rows["age"].tolist()
    assert back.column("town").to_pylist() == rows["town"].tolist()
    assert back.column("ill").to_pylist() == rows["ill"].tolist()
    assert np.array_equal(back.column("day").to_numpy(), rows["day"].astype("datetime64[D]"))
    assert np.abs(back.column("paid").to_numpy() - rows["paid"]).max() <= 0.5


def test_rows_are_released_charged_saved_and_verified(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.create_dataset("rows", epsilon="2.1", delta="1e-4", unit="row")
        model = PLAN.run(some_rows(500), ledger=ledger, dataset="rows", insecure_seed=1)
        assert len(ledger.history("rows")) == 1
    made = model.sample(20, seed=1)
    assert made.column_names == list(SCHEMA.columns)
    assert model.sample().num_rows == SCHEMA.expected_rows
    model.save_directory(tmp_path / "out")
    same: Any = load_model(tmp_path / "out")
    assert same.sample(20, seed=1) == made
    checks = verify_certificate(tmp_path / "out" / "certificate.json")
    assert [one for one in checks if one.ok is False] == []
    with np.load(tmp_path / "out" / "model.npz") as file:
        arrays = dict(file)
    arrays["shift_0"] = arrays["shift_0"] + 1
    np.savez(tmp_path / "other.npz", **arrays)
    with pytest.raises(SchemaError, match="certificate"):
        GanModel.load(tmp_path / "other.npz")


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows_raise_nothing(rows: int) -> None:
    assert PLAN.run(some_rows(rows)).sample(3).num_rows == 3


def test_pictures_have_a_grid() -> None:
    plan = Gan(steps=4, batch=64, hidden=8, kept=6).plan_pictures(
        [0, 1], expected_rows=3_000, shape=(12, 12), epsilon=2, delta=1e-5
    )
    model = plan.run(PICTURES, LABELS, insecure_seed=1)
    made, labels = model.sample(10, seed=1)
    assert made.shape == (10, 12, 12)
    assert labels.tolist() == [0, 1] * 5
    assert model.grid(3).shape == (24, 36)
    with pytest.raises(InvalidValue, match="label"):
        model.sample(1, label=5)


def test_no_fake_follows_from_its_place_in_a_batch() -> None:
    """Else one record less would change the fakes of others, and all their clipped gradients."""
    import torch

    pictures = Gan(kept=2).plan_pictures(
        [0, 1], expected_rows=90, shape=(8, 8), epsilon=2, delta=1e-5
    )
    for plan, width, mean in ((pictures, 5, 0.5), (PLAN, sum(PLAN.form.heads), None)):
        fakes = _Fakes(plan, source(insecure_seed=3))
        before = torch.get_rng_state()

        def level(given: Any, width: int = width) -> Any:
            return torch.zeros(len(given), width)

        batches = [fakes.draw(level, 40)[:, -2:].numpy() for _ in range(200)]
        assert torch.equal(torch.get_rng_state(), before)  # its generator can be predicted
        drawn = np.stack(batches)[:, :, 0]
        places = drawn.mean(axis=0)
        assert np.abs(places - (mean or 1 / PLAN.form.heads[-1])).max() < 0.17
        after = np.mean(drawn[:, 1:] == drawn[:, :-1])
        assert after == pytest.approx(np.mean(drawn[0] == drawn[1:]), abs=0.05)


@pytest.mark.slow
def test_a_generator_learns_which_labels_are_frequent() -> None:
    """The seeds are fixed. One label in ten is yes; a generator that learned nothing says half."""
    schema = Schema({"a": Categorical(["no", "yes"], other="no")}, expected_rows=5_000)
    values = np.where(np.arange(5_000) % 10 == 0, "yes", "no")
    how = Gan(steps=300, batch=500, hidden=16, latent=4, ratio=1)
    plan = how.plan(schema, epsilon=8, delta=1e-5)
    made = plan.run({"a": values}, insecure_seed=2).sample(2_000, seed=3)
    assert 0.005 < np.mean(np.array(made.column("a").to_pylist()) == "yes") < 0.3


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: Gan(steps=0), InvalidValue),
        (lambda: Gan().plan({"a": 1}, epsilon=1), InvalidValue),  # type: ignore[arg-type]
        (lambda: Gan().plan(Schema({"a": Boolean()}), epsilon=1, delta=1e-5), InvalidValue),
        (
            lambda: Gan().plan(
                Schema(
                    {"a": Integer(0, 1), "b": Real(0, 1)},
                    person="who",
                    rows_per_person=2,
                    expected_rows=9,
                ),
                epsilon=1,
                delta=1e-5,
            ),
            NotApplicable,
        ),
        (lambda: PLAN.run({"age": [1]}), Exception),
        (lambda: PLAN.run(some_rows(3), [1, 2, 3]), InvalidValue),
    ],
)
def test_wrong_input_raises_before_anything_is_charged(call: Any, error: type) -> None:
    with pytest.raises(error):
        call()


def test_dates_are_days() -> None:
    assert isinstance(SCHEMA.columns["day"], Date)
