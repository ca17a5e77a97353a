import io
import logging

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from discreet.errors import BudgetExceeded, InvalidValue
from discreet.learn import dpsgd
from discreet.learn.dpsgd import PlanViolation, Trainer
from discreet.learn.dpsgd._run_frame import charged_once
from discreet.learn.dpsgd._trainer import Display
from discreet.ledger import Ledger, check_receipt
from discreet.randomness import source
from learn.dpsgd.made_up_runs import data, network, plan

LOSS = nn.CrossEntropyLoss(reduction="none")


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def trainer(model=None, made=None, **options):
    options = {"loss": LOSS, "optimizer": sgd, "isolation": "vouched", **options}
    return Trainer(model or network(), made or plan(), **options)


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "study.ledger") as made:
        made.create_dataset("patients", epsilon=50, delta="1e-4", unit="record")
        yield made


class Watched(Dataset):
    """Data that notes when it is read."""

    def __init__(self, base, on_read):
        self.base, self.on_read = base, on_read

    def __len__(self):
        return len(self.base)

    def __getitem__(self, index):
        self.on_read()
        return self.base[index]


def fail():
    raise AssertionError("read before it was charged")


def test_the_whole_plan_is_charged_once_and_before_the_first_read(ledger):
    charges_at_reads = []

    def note():
        charges_at_reads.append(len(ledger.history("patients")))

    made = plan()
    dataset = Watched(data(64), note)
    out = trainer(made=made, inputs=dpsgd.TensorSpec((6,))).fit(
        dataset, ledger=ledger, dataset_name="patients", purpose="triage", analyst=None
    )
    assert charges_at_reads
    assert set(charges_at_reads) == {1}
    (row,) = ledger.history("patients")
    assert row.outcome == "completed"
    assert out.certificate.loss == made.loss
    assert check_receipt(out.certificate.receipt) == []
    assert out.certificate.receipt == ledger.receipt("patients", row.seq)
    assert ledger.verify().ok


def test_a_budget_that_is_short_stops_everything_before_the_first_read(ledger):
    reads = []
    dataset = Watched(data(64), lambda: reads.append(1))
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    made = plan(noise_multiplier=0.05)
    with pytest.raises(BudgetExceeded):
        trainer(model, made, inputs=dpsgd.TensorSpec((6,))).fit(
            dataset, ledger=ledger, dataset_name="patients"
        )
    assert reads == []
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert ledger.history("patients") == []
    trainer(model).fit(dataset)  # and the model is free again


@pytest.mark.parametrize(
    ("budgeted", "planned"),
    [
        ("person", "record"),
        ("patient", "example"),
        ("person", "patient"),
        ("record", "person"),
        ("Household", "row"),
    ],
)
def test_a_budget_for_another_unit_is_refused_before_the_charge(
    ledger, tmp_path, budgeted, planned
):
    ledger.create_dataset("people", epsilon=50, delta="1e-4", unit=budgeted)
    reads = []
    dataset = Watched(data(64), lambda: reads.append(1))
    options = {"ledger": ledger, "dataset_name": "people", "checkpoint": tmp_path / "run"}
    known = {"inputs": dpsgd.TensorSpec((6,))}
    with pytest.raises(InvalidValue, match=f"one {budgeted}, the plan for one {planned}") as caught:
        trainer(made=plan(unit=planned), **known).fit(dataset, **options)
    assert caught.value.argument == "dataset_name"
    assert (reads, ledger.history("people")) == ([], [])
    # What the error advises works, in the same directory.
    said = caught.value.expected.split("unit=")[1].split(")")[0].strip("'")
    out = trainer(made=plan(unit=said), **known).fit(dataset, **options)
    assert out.certificate.unit == budgeted
    assert len(ledger.history("people")) == 1


@pytest.mark.parametrize(
    ("budgeted", "planned"),
    [
        ("person", "person"),
        ("patient", "person"),
        ("Patient", "patient"),
        ("row", "record"),
        ("example", "record"),
    ],
)
def test_a_budget_for_the_same_unit_is_charged(ledger, budgeted, planned):
    ledger.create_dataset("people", epsilon=50, delta="1e-4", unit=budgeted)
    out = trainer(made=plan(unit=planned)).fit(data(64), ledger=ledger, dataset_name="people")
    assert out.certificate.unit == planned
    (row,) = ledger.history("people")
    assert row.outcome == "completed"


def test_the_charge_itself_compares_units(ledger):
    ledger.create_dataset("people", epsilon=50, delta="1e-4", unit="person")
    names = {"purpose": None, "analyst": None, "project": None}
    with (
        pytest.raises(InvalidValue, match="dataset_name"),
        charged_once(ledger, "people", plan(), None, names=names),
    ):
        raise AssertionError("the block must not run")
    assert ledger.history("people") == []


def mixing():
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def compared(outputs, targets):
    return LOSS(outputs - outputs.mean(0), targets)


def with_a_second_optimizer():
    model = network()
    second = torch.optim.Adam(model.parameters())

    def losses(inside, batch):
        second.step()
        return LOSS(inside(batch[0]), batch[1])

    return trainer(model, loss=None, losses=losses)


@pytest.mark.parametrize(
    ("make", "fit", "error"),
    [
        (
            lambda: trainer(mixing(), isolation="check", inputs=dpsgd.TensorSpec((6,))),
            {},
            PlanViolation,
        ),
        (lambda: trainer(mixing(), isolation="check"), {"validation": data(9)}, PlanViolation),
        # The shapes of a table are known without reading it.
        (lambda: trainer(mixing(), isolation="check"), {}, PlanViolation),
        (lambda: trainer(loss=compared, isolation="check"), {}, PlanViolation),
        (lambda: trainer(loss=nn.functional.cross_entropy), {}, InvalidValue),
        (lambda: trainer(loss=nn.functional.cross_entropy), {"validation": data(9)}, InvalidValue),
        (lambda: trainer(loss=lambda outputs, _: outputs.square()), {}, InvalidValue),
        (lambda: trainer(loss=None, losses=lambda model, batch: 0.0), {}, InvalidValue),
        (lambda: with_a_second_optimizer(), {}, PlanViolation),
        (lambda: trainer(batch_axis=2), {}, InvalidValue),
        (lambda: trainer(source=3), {}, InvalidValue),
        (lambda: trainer(network(features=5)), {}, InvalidValue),
        (lambda: trainer(network().double()), {}, InvalidValue),
        (lambda: trainer(), {"dataset": Watched(data(64), fail)}, InvalidValue),
        (lambda: trainer(targets=dpsgd.TensorSpec(())), {}, InvalidValue),
        (lambda: trainer(), {"max_physical": 0}, InvalidValue),
        (lambda: trainer(), {"workers": -1}, InvalidValue),
        (lambda: trainer(), {"collate": "default"}, InvalidValue),
        (lambda: trainer(), {"checkpoint": __file__}, InvalidValue),
        (lambda: trainer(), {"validation": []}, InvalidValue),
        (lambda: trainer(), {"purpose": " in the margin"}, InvalidValue),
        (lambda: trainer(made=plan(public_examples=True)), {"dataset": data(63)}, InvalidValue),
        (lambda: trainer(), {"dataset": TensorDataset(torch.zeros(0, 6))}, InvalidValue),
        (lambda: trainer(), {"dataset_name": None}, InvalidValue),
        (lambda: trainer(), {"checkpoint_every": 0}, InvalidValue),
        (lambda: trainer(), {"validate_every": -1}, InvalidValue),
        (lambda: trainer(), {"validation": 3}, InvalidValue),
        (lambda: trainer(isolation="maybe"), {}, InvalidValue),
    ],
)
def test_bad_input_is_refused_before_anything_is_charged(ledger, make, fit, error):
    options = {"dataset": data(64), "ledger": ledger, "dataset_name": "patients", **fit}
    with pytest.raises(error):
        make().fit(**options)
    assert ledger.history("patients") == []


def test_trying_out_the_loss_leaves_the_model_as_it_was(ledger):
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 3))
    model[1].eval()
    modes = []

    def losses(inside, batch):
        modes.append((inside.training, inside[1].training, torch.is_grad_enabled()))
        return LOSS(inside(batch[0]), batch[1])

    trainer(model, loss=None, losses=losses).fit(
        data(64), ledger=ledger, dataset_name="patients", progress=False
    )
    assert modes[0] == (False, False, False)
    assert set(modes[1:]) == {(True, True, True)}  # fit() calls train(), as loops do


@pytest.mark.parametrize(
    "options",
    [
        {"loss": nn.CrossEntropyLoss()},
        {"loss": nn.MSELoss(reduction="sum")},
        {"loss": None},
        {"losses": lambda model, batch: 0},
        {"average": 1.0},
        {"optimizer": "sgd"},
        {"optimizer": lambda parameters: None},
        {"scheduler": "step"},
        {"made": "a plan"},
        {"model": nn.Linear(6, 3).requires_grad_(False)},
    ],
)
def test_bad_trainers(options):
    with pytest.raises(InvalidValue):
        trainer(**options)


def test_it_learns():
    torch.manual_seed(0)
    inputs = torch.randn(1_000, 6)
    targets = (inputs @ torch.randn(6, 3)).argmax(1)
    made = plan(examples=1_000, expected_batch_size=250, steps=60, noise_multiplier=1.0)
    held_out = TensorDataset(inputs[800:], targets[800:])
    out = trainer(
        nn.Linear(6, 3),
        made,
        optimizer=lambda p: torch.optim.Adam(p, lr=0.1),
        scheduler=lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 60),
        average=0.9,
        source=source(insecure_seed=3),
    ).fit(TensorDataset(inputs[:800], targets[:800]), validation=held_out, validate_every=20)
    assert [row["step"] for row in out.history] == [20, 40, 60]
    assert out.history[-1]["accuracy"] > 0.8
    assert not out.model.training
    shown = float((out.model(inputs[800:]).argmax(1) == targets[800:]).float().mean())
    assert shown == pytest.approx(out.history[-1]["accuracy"])  # the average is what is returned


def test_a_seeded_run_repeats_itself():
    ends = []
    for _ in range(2):
        out = trainer(source=source(insecure_seed=5)).fit(data(64))
        ends.append([p.detach().clone() for p in out.model.parameters()])
        assert "INSECURE" in out.certificate.warnings[0]
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    secure = [trainer().fit(data(64)).model[0].weight.detach().clone() for _ in range(2)]
    assert not torch.equal(*secure)


def test_losses_of_any_shape_of_batch():
    dataset = [{"x": torch.randn(6), "y": i % 3} for i in range(64)]

    def losses(model, batch):
        return LOSS(model(batch["x"]), batch["y"])

    out = trainer(loss=None, losses=losses).fit(dataset, max_physical=5, validation=dataset)
    assert out.certificate.run["steps_taken"] == 4
    assert "accuracy" not in out.history[-1]
    assert out.history[-1]["validation loss"] > 0


def test_physical_batches_and_workers():
    out = trainer().fit(data(64), max_physical=3, workers=1)
    assert out.certificate.run["steps_taken"] == 4


def test_delta_too_large_is_logged_and_certified(caplog):
    with caplog.at_level(logging.WARNING, logger="discreet.learn.dpsgd"):
        out = trainer(made=plan(delta=0.1)).fit(data(64))
    assert "DELTA IS TOO LARGE" in caplog.text
    assert "DELTA IS TOO LARGE" in out.certificate.warnings[0]


def test_nothing_is_shown_where_there_is_no_terminal(capfd):
    trainer().fit(data(64))
    assert capfd.readouterr() == ("", "")


def test_the_display_shows_public_figures_and_epsilon_only(capfd):
    trainer().fit(data(64), validation=data(30, seed=4), progress=True)
    shown = capfd.readouterr().err
    assert "epsilon" in shown
    assert "validation" in shown
    assert "private loss" not in shown


def test_the_private_loss_is_marked():
    model = network()
    private = dpsgd.make_private(model, sgd(model.parameters()), plan(), isolation="vouched")
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    with Display(private, shown=True, console=console) as display:
        display.step(private_loss=1.25)
        display._bar.refresh()
    assert "private loss 1.25, NOT FOR RELEASE" in console.file.getvalue()
    private.detach()


def test_a_run_that_fails_frees_the_model_and_leaves_the_charge_spent(ledger):
    def losses(model, batch):
        if model.training:
            raise RuntimeError("a bug in the loss")
        return LOSS(model(batch[0]), batch[1])

    model = network()
    with pytest.raises(RuntimeError, match="a bug in the loss"):
        trainer(model, loss=None, losses=losses).fit(
            data(64), ledger=ledger, dataset_name="patients"
        )
    (row,) = ledger.history("patients")
    assert row.outcome == "failed"
    assert torch.overrides._get_current_function_mode() is None
    trainer(model).fit(data(64))


def test_saving(tmp_path):
    out = trainer().fit(data(64))
    out.save(tmp_path / "model")
    twin = network(seed=8)
    assert dpsgd.load(tmp_path / "model", twin) == out.certificate
    assert torch.equal(twin[0].weight, out.model[0].weight)


@pytest.mark.slow
def test_a_million_records_are_trained_on():
    """S21: as many records as such training is meant for; a step reads one batch of them."""
    x = torch.randn(10**6, 20, generator=torch.Generator().manual_seed(1))
    y = (x[:, :10].sum(1) > 0).long()
    made = dpsgd.Plan(
        examples=10**6,
        expected_batch_size=1_000,
        steps=100,
        clip_norm=1.0,
        epsilon=0.1,
        delta=1e-8,
    )
    model = nn.Linear(20, 2)
    run = Trainer(model, made, loss=LOSS, optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    trained = run.fit(TensorDataset(x, y), progress=False)
    with torch.no_grad():
        assert (trained.model(x).argmax(1) == y).double().mean() > 0.9
    assert trained.certificate.epsilon <= 0.1
