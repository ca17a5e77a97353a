"""A loop of one's own: stopped, saved and resumed; and models that were under earlier plans."""

import copy
import io
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from discreet.certificate import Certificate
from discreet.errors import InvalidValue, NotApplicable, PlanViolation, SchemaError
from discreet.learn import dpsgd
from discreet.learn.dpsgd import Private, ResumeRefused, Trainer, make_private
from discreet.learn.dpsgd import _requirements as marks
from discreet.learn.dpsgd._certificate import earlier_plans_of, require_sound
from discreet.ledger import Ledger
from discreet.randomness import source
from learn.dpsgd.made_up_runs import data, network, plan

EACH = nn.CrossEntropyLoss(reduction="none")


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(model, optimizer, made, *, steps=None, **options):
    """Take some steps of a plan and end it; the certificate and how many steps were taken."""
    private = make_private(model, optimizer, made, isolation="vouched", **options)
    count = 0
    if steps != 0:
        for batch in private.batches(data(64)):
            private.step(EACH, *batch)
            count += 1
            if count == steps:
                break
    certificate = private.certificate()
    private.detach()
    return certificate, count


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch):
    monkeypatch.setattr(marks, "_KNOWN", {})


# --- stopped, saved, resumed -------------------------------------------------------------------


def test_a_resumed_run_takes_the_steps_that_are_left(tmp_path):
    """Before, two calls of make_private took 2 + 4 steps under a certificate for 4."""
    model = network()
    _, first = train(model, sgd(model), plan(), steps=2, checkpoint=tmp_path)
    again = network(seed=5)
    certificate, second = train(again, sgd(again), plan(), checkpoint=tmp_path)
    assert (first, second, certificate.run["steps_taken"]) == (2, 2, 4)
    assert certificate.epsilon == plan().epsilon()
    assert not earlier_plans_of(certificate)


def test_a_run_that_was_vouched_for_is_not_checked_by_resuming_it(tmp_path):
    for isolation in ("vouched", "check"):
        model = network()
        private = make_private(model, sgd(model), plan(), isolation=isolation, checkpoint=tmp_path)
        for batch in private.batches(data(64)):
            private.step(EACH, *batch)
            if private.steps_taken == 2:
                break
        found = private.certificate().run["isolation"]
        private.detach()
        assert found == "vouched"


def test_the_state_comes_back(tmp_path):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, betas=(0.8, 0.9))
    made = plan(clipping=dpsgd.Quantile(0.5, count_stddev=2.0))
    private = make_private(model, optimizer, made, isolation="vouched", checkpoint=tmp_path)
    for batch in private.batches(data(64)):
        private.step(EACH, *batch)
        private.save({"epoch": private.steps_taken, "rates": [0.5]})
        if private.steps_taken == 3:
            break
    norms = private.clip_norms
    private.detach()
    again = network(seed=5)
    fresh = torch.optim.Adam(again.parameters(), lr=7.0)
    resumed = make_private(again, fresh, made, isolation="vouched", checkpoint=tmp_path)
    assert resumed.steps_taken == 3
    assert resumed.notes == {"epoch": 3, "rates": [0.5]}
    assert resumed.clip_norms == norms
    assert resumed.run_id == private.run_id
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    assert fresh.param_groups[0]["lr"] == 0.1
    assert fresh.param_groups[0]["betas"] == (0.8, 0.9)
    moments = [state["exp_avg"] for state in optimizer.state.values()]
    assert all(map(torch.equal, moments, [state["exp_avg"] for state in fresh.state.values()]))
    resumed.detach()


def test_steps_after_the_last_save_are_lost_and_never_repeated(tmp_path, monkeypatch):
    taken = []
    real = Private._begin_step

    def noted(self):
        real(self)
        taken.append(self._step.number)

    monkeypatch.setattr(Private, "_begin_step", noted)
    model = network()
    private = make_private(
        model, sgd(model), plan(steps=12), isolation="vouched", checkpoint=tmp_path / "run"
    )
    for batch in private.batches(data(64)):
        private.step(EACH, *batch)
        if private.steps_taken == 2:
            private.save()
        if private.steps_taken == 5:
            break
    shutil.copytree(tmp_path / "run", tmp_path / "crash")  # what a kill would leave
    private.detach()
    monkeypatch.setattr("discreet.learn.dpsgd._making._ATTEMPTS", {})
    again = network(seed=5)
    certificate, rest = train(again, sgd(again), plan(steps=12), checkpoint=tmp_path / "crash")
    assert rest < 8  # at least those up to the fifth count
    assert len(taken) == len(set(taken))
    assert certificate.run["steps_taken"] == 12


def _bytes(model):
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.getvalue()


def test_a_run_with_all_its_steps_has_none_left(tmp_path):
    model = network()
    train(model, sgd(model), plan(), checkpoint=tmp_path)
    again = network(seed=5)
    private = make_private(again, sgd(again), plan(), isolation="vouched", checkpoint=tmp_path)
    assert private.certificate().run["steps_taken"] == 4
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    with pytest.raises(PlanViolation, match="all 4 steps"):
        private.batches(data(64))
    private.detach()


def test_a_copy_of_a_run_that_went_on_is_refused(tmp_path):
    model = network()
    train(model, sgd(model), plan(), steps=1, checkpoint=tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    train(model, sgd(model), plan(), steps=1, checkpoint=tmp_path / "run")
    again = network()
    with pytest.raises(ResumeRefused, match="copy of a run that has gone on"):
        train(again, sgd(again), plan(), checkpoint=tmp_path / "copy")
    # the refusal has left nothing behind
    certificate, count = train(again, sgd(again), plan(), checkpoint=tmp_path / "run")
    assert (count, certificate.run["steps_taken"]) == (2, 4)


def test_without_a_ledger_a_resumed_run_says_that_copies_were_not_looked_for(tmp_path, monkeypatch):
    """Two copies of a run are two releases; at least the copy's certificate says so."""
    model = network()
    private = make_private(
        model, sgd(model), plan(), isolation="vouched", checkpoint=tmp_path / "run"
    )
    for batch in private.batches(data(64)):
        private.step(EACH, *batch)
        if private.steps_taken == 2:
            private.save()
            shutil.copytree(tmp_path / "run", tmp_path / "copy")
    twin = private.certificate()
    private.detach()
    monkeypatch.setattr("discreet.learn.dpsgd._making._ATTEMPTS", {})  # another process
    again = network(seed=5)
    certificate, _ = train(again, sgd(again), plan(), checkpoint=tmp_path / "copy")
    assert certificate.run["times_resumed"] == 1
    assert "copy of its directory" in str(certificate.to_json()["warnings"])
    assert "times_resumed" not in twin.run
    assert "copy of its directory" not in str(twin.to_json()["warnings"])


def test_a_directory_is_held_until_detach(tmp_path):
    model, other = network(), network()
    private = make_private(model, sgd(model), plan(), isolation="vouched", checkpoint=tmp_path)
    with pytest.raises(ResumeRefused, match="in use"):
        train(other, sgd(other), plan(), checkpoint=tmp_path)
    private.detach()
    train(other, sgd(other), plan(), checkpoint=tmp_path)


def test_what_a_resumed_run_refuses(tmp_path):
    model = network()
    train(model, sgd(model), plan(), steps=1, checkpoint=tmp_path)
    with pytest.raises(ResumeRefused, match=r"another plan \(changed: noise_multiplier\)"):
        train(model, sgd(model), plan(noise_multiplier=2.0), checkpoint=tmp_path)
    with pytest.raises(ResumeRefused, match=r"trained by torch\.optim\.sgd\.SGD"):
        train(model, torch.optim.Adam(model.parameters()), plan(), checkpoint=tmp_path)
    other = nn.Linear(6, 3)
    with pytest.raises(SchemaError, match="another model"):
        train(other, sgd(other), plan(), checkpoint=tmp_path)
    private = make_private(model, sgd(model), plan(), isolation="vouched", checkpoint=tmp_path)
    with pytest.raises(InvalidValue, match="notes"):
        private.save({"scheduler": object()})
    private.detach()
    with pytest.raises(PlanViolation, match="detach"):
        private.batches(data(64))
    with pytest.raises(NotApplicable, match="checkpoint=directory"):
        private.save()


def test_noise_of_a_seed_is_not_repeated(tmp_path):
    """The same seed and start, twice: one in one go, one that stops after each step."""
    model = network()
    seeded = {"source": source(insecure_seed=3), "checkpoint": tmp_path}
    start = [one.detach().clone() for one in model.parameters()]
    moves = []
    for _ in range(3):
        train(model, sgd(model), plan(noise_multiplier=1e3), steps=1, **seeded)
        moves.append(next(model.parameters()).detach() - start[0])
        start[0] = next(model.parameters()).detach().clone()
    assert not torch.allclose(moves[0], moves[1], atol=1e-2)
    assert not torch.allclose(moves[1], moves[2], atol=1e-2)


def test_a_charge_is_found_again_by_the_id_of_the_run(tmp_path):
    """As docs/training.md has it."""
    ledger = Ledger.create(tmp_path / "study.ledger")
    ledger.create_dataset("people", epsilon=9, delta="1e-3", unit="record")
    model = network()
    for steps in (2, None):
        private = make_private(
            model, sgd(model), plan(), isolation="vouched", checkpoint=tmp_path / "run"
        )
        charge = ledger.charge("people", private.loss, delta="1e-5", key=private.run_id)
        try:
            with charge.attempt():
                for batch in private.batches(data(64)):
                    private.step(EACH, *batch)
                    if private.steps_taken == steps:
                        raise KeyboardInterrupt
        except KeyboardInterrupt:
            assert steps == 2
        private.detach()
    assert charge.replayed
    assert charge.outcome == "completed"


# --- earlier plans -----------------------------------------------------------------------------


def test_three_plans_in_a_row_state_the_sum():
    model = network()
    for times in (1, 2, 3):
        certificate, _ = train(model, sgd(model), plan())
        expected = plan()
        assert certificate.epsilon == (times * expected.loss).epsilon(delta=1e-5)
        assert certificate.loss == times * expected.loss
        assert len(earlier_plans_of(certificate)) == times - 1
        said = [warning for warning in certificate.warnings if "earlier plan" in warning]
        assert len(said) == (times > 1)
        assert Certificate.from_json(json.loads(json.dumps(certificate.to_json()))) == certificate


def test_the_trainer_states_the_sum_too():
    model = network()
    options = {"loss": EACH, "optimizer": sgd(model), "isolation": "vouched"}
    first = Trainer(model, plan(), **options).fit(data(64), progress=False)
    second = Trainer(model, plan(steps=2), **options).fit(data(64), progress=False)
    assert not earlier_plans_of(first.certificate)
    assert earlier_plans_of(second.certificate) == [plan()]
    assert second.certificate.epsilon == (plan().loss + plan(steps=2).loss).epsilon(delta=1e-5)
    private = make_private(model, options["optimizer"], plan(), isolation="vouched")
    assert private.epsilon() == (2 * plan().loss + plan(steps=2).loss).epsilon(delta=1e-5)
    assert private.spent() == second.certificate.epsilon
    assert private.loss == plan().loss  # that is what is to be charged
    private.detach()


def test_a_plan_of_which_no_step_was_drawn_costs_nothing():
    model = network()
    train(model, sgd(model), plan(), steps=0)
    assert not earlier_plans_of(train(model, sgd(model), plan())[0])


def pickled(model):
    file = io.BytesIO()
    torch.save(model, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


def reloaded(model):
    fresh = network(seed=9)
    fresh.load_state_dict(torch.load(io.BytesIO(_bytes(model))))
    return fresh


@pytest.mark.parametrize(
    "way",
    [
        lambda model: model,
        lambda model: copy.deepcopy(model),
        lambda model: nn.Sequential(model, nn.Linear(3, 3)),
        lambda model: nn.Sequential(model[0], nn.Tanh(), nn.Linear(5, 3)),
        lambda model: nn.Sequential(model.requires_grad_(False), nn.Linear(3, 3)),
        pickled,
        reloaded,
    ],
    ids=["same", "copy", "wrapped", "part", "frozen", "torch.save(model)", "state dict"],
)
def test_the_mark_goes_where_the_model_goes(way):
    model = network()
    train(model, sgd(model), plan())
    other = way(model)
    optimizer = torch.optim.SGD([p for p in other.parameters() if p.requires_grad], lr=0.1)
    certificate, _ = train(other, optimizer, plan())
    assert certificate.loss == 2 * plan().loss


class OwnAverage(AveragedModel):
    """An average as users derive it."""


@pytest.mark.parametrize(
    ("kind", "part"), [(AveragedModel, lambda mean: mean), (OwnAverage, lambda mean: mean.module)]
)
def test_the_mark_goes_to_the_averages_of_torch(kind, part):
    """``AveragedModel`` is a copy that was made before any step, and is trained all the same."""
    model = network()
    mean, still, other = (kind(one) for one in (model, network(), nn.Linear(6, 3)))
    other.update_parameters(nn.Linear(6, 3))
    private = make_private(model, sgd(model), plan(), isolation="vouched")
    for batch in private.batches(data(64)):
        private.step(EACH, *batch)
        mean.update_parameters(model)
    private.detach()
    chosen = part(mean)
    certificate, _ = train(chosen, sgd(chosen), plan())
    assert certificate.loss == 2 * plan().loss
    for one in (still, other):
        assert not earlier_plans_of(train(one, sgd(one), plan())[0])


def test_the_mark_goes_with_the_state_of_the_optimizer():
    model = network()
    optimizer = sgd(model)
    train(model, optimizer, plan(), steps=2)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    marks._KNOWN.clear()  # as in another process
    kept = torch.load(io.BytesIO(file.getvalue()))
    fresh = network(seed=9)
    fresh.load_state_dict(kept["model"])
    other = sgd(fresh)
    other.load_state_dict(kept["optimizer"])
    certificate, count = train(fresh, other, plan())
    assert (count, certificate.loss) == (4, 2 * plan().loss)


def test_a_state_that_was_saved_in_the_midst_of_a_run_is_known():
    model = network()
    private = make_private(model, sgd(model), plan(), isolation="vouched")
    for batch in private.batches(data(64)):
        private.step(EACH, *batch)
        if private.steps_taken == 2:
            kept = _bytes(model)
    private.detach()
    fresh = network(seed=9)
    fresh.load_state_dict(torch.load(io.BytesIO(kept)))
    assert train(fresh, sgd(fresh), plan())[0].loss == 2 * plan().loss


def test_the_twin_that_was_under_no_plan_has_no_mark():
    """The same initial values, a frozen part and parameters that did not move are no mark."""
    model = network()
    still = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}], lr=0.1
    )
    train(model, still, plan())
    _bytes(model)
    twin = network()
    certificate, _ = train(twin, sgd(twin), plan())
    assert not earlier_plans_of(certificate)
    assert "earlier_plans" not in certificate.run


def test_our_own_files_keep_earlier_plans(tmp_path):
    model = network()
    train(model, sgd(model), plan(steps=3))
    trainer = Trainer(model, plan(), loss=EACH, optimizer=sgd(model), isolation="vouched")
    trainer.fit(data(64), progress=False).save(tmp_path / "model")
    marks._KNOWN.clear()
    fresh = network(seed=9)
    assert earlier_plans_of(dpsgd.load(tmp_path / "model", fresh)) == [plan(steps=3)]
    certificate, _ = train(fresh, sgd(fresh), plan(), steps=1, checkpoint=tmp_path / "run")
    expected = 2 * plan().loss + plan(steps=3).loss
    assert certificate.epsilon == expected.epsilon(delta=1e-5)
    marks._KNOWN.clear()
    clean = network(seed=8)
    again, _ = train(clean, sgd(clean), plan(), checkpoint=tmp_path / "run")
    assert again.epsilon == certificate.epsilon
    assert len(earlier_plans_of(again)) == 2


def test_plans_that_cannot_be_added_are_refused():
    model = network()
    train(model, sgd(model), plan(unit="person"))
    with pytest.raises(PlanViolation, match=r"one person .* one record .* cannot be added"):
        make_private(model, sgd(model), plan())
    fixed = plan(unit="person", sampler="without_replacement")
    with pytest.raises(PlanViolation, match="cannot be added"):
        make_private(model, sgd(model), fixed)
    train(model, sgd(model), plan(unit="person"))


def test_a_damaged_mark_is_refused():
    model = network()
    optimizer = sgd(model)
    optimizer.param_groups[0][marks.GROUP_ENTRY] = '{"a": {"schema": "none"}}'
    with pytest.raises(SchemaError, match="plan"):
        make_private(model, optimizer, plan())
    optimizer.param_groups[0][marks.GROUP_ENTRY] = "nothing"
    with pytest.raises(SchemaError, match="damaged"):
        make_private(model, optimizer, plan())


def test_a_certificate_that_leaves_an_earlier_plan_out_is_refused():
    model = network()
    train(model, sgd(model), plan(steps=3))
    right = train(model, sgd(model), plan())[0].to_json()
    require_sound(Certificate.from_json(right))
    before = right["run"]["earlier_plans"]
    for change in (
        {"run": {**right["run"], "earlier_plans": []}, "warnings": []},
        {"run": {**right["run"], "earlier_plans": before * 2}},
        {"run": {**right["run"], "earlier_plans": "none"}},
        {"epsilon": plan().epsilon()},
        {"warnings": []},
        {"run": {k: v for k, v in right["run"].items() if k != "earlier_plans"}},
    ):
        with pytest.raises(SchemaError, match="certificate"):
            require_sound(Certificate.from_json({**right, **change}))


CHILD = """
import os, sys, torch
from learn.dpsgd.test_own_runs import EACH, data, make_private, network, plan, sgd
place = sys.argv[1]
model = network()
optimizer = sgd(model)
private = make_private(
    model, optimizer, plan(), isolation="vouched", checkpoint=place + "/run"
)
for batch in private.batches(data(64)):
    private.step(EACH, *batch)
    if private.steps_taken == 1:
        private.save()
    if private.steps_taken == 2:
        torch.save(model, place + "/whole.pt")
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(kept, place + "/kept.pt")
        os._exit(9)
"""


@pytest.mark.slow
def test_in_another_process(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": "tests"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 9, done.stderr
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert train(whole, sgd(whole), plan())[0].loss == 2 * plan().loss
    kept = torch.load(tmp_path / "kept.pt")
    model = network(seed=5)
    model.load_state_dict(kept["model"])
    optimizer = sgd(model)
    optimizer.load_state_dict(kept["optimizer"])
    assert train(model, optimizer, plan())[0].loss == 2 * plan().loss
    fresh = network(seed=5)
    certificate, count = train(fresh, sgd(fresh), plan(), checkpoint=tmp_path / "run")
    assert count <= 2
    assert certificate.run["steps_taken"] == 4
    assert certificate.epsilon == plan().epsilon()
