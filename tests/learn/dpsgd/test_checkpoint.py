"""Killed and resumed: one charge, no step twice, the same certificate."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset, default_collate

from discreet import _files
from discreet.errors import AlreadyCharged, InvalidValue, SchemaError
from discreet.learn import dpsgd
from discreet.learn.dpsgd import Private, ResumeRefused, Trainer
from discreet.learn.dpsgd._certificate import plan_of
from discreet.learn.dpsgd._checkpoint import (
    pack_optimizer,
    read_tensors,
    tensors_of,
    unpack_optimizer,
    write_tensors,
    write_whole,
)
from discreet.learn.dpsgd._run_directory import RunDirectory
from discreet.ledger import Ledger
from discreet.randomness import source
from learn.dpsgd.made_up_runs import data, network, plan

KILLED = Path(__file__).with_name("killed_run.py")


class Stop(Exception):
    """A run breaks off here."""


def trainer(model=None, made=None, **options):
    base = {
        "loss": nn.CrossEntropyLoss(reduction="none"),
        "optimizer": lambda p: torch.optim.Adam(p, lr=0.05),
        "isolation": "vouched",
    }
    return Trainer(model or network(), made or plan(steps=12), **{**base, **options})


@pytest.fixture
def noted(monkeypatch):
    """The numbers of the steps that take noise; ``stop`` breaks off at one of them."""
    held = {"steps": [], "stop": None}
    real = Private._begin_step

    def begin(self):
        real(self)
        held["steps"].append(self._step.number)
        if held["stop"] == self._step.number:
            held["stop"] = None
            raise Stop

    monkeypatch.setattr(Private, "_begin_step", begin)
    return held


# --- killed for real ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    place = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, str(KILLED), str(place), "4", "poisson", "shuffled"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return place


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["poisson", "shuffled"])
def test_signal_9_at_any_time(killed, sampler):
    place = killed / sampler
    steps = [int(line) for line in (place / "steps.log").read_text().split()]
    assert len(steps) == len(set(steps)), "a step was taken twice"
    assert steps == sorted(steps)
    assert max(steps) == 399
    with Ledger.open(place / "study.ledger") as ledger:
        rows = ledger.history("patients")
        assert [row.outcome for row in rows] == ["completed"]
        assert ledger.verify().ok
        certificate = dpsgd.load(place / "run", nn.Linear(6, 3))
        assert certificate.receipt == ledger.receipt("patients", rows[0].seq)
    assert certificate.run["steps_taken"] == plan_of(certificate).steps == 400
    assert certificate.loss == plan_of(certificate).loss
    if sampler == "shuffled":  # no record more than once in an epoch: epochs are never re-entered
        ends = [(a, b) for a, b in itertools.pairwise(steps) if b != a + 1]
        assert all(after % 5 == 0 for _, after in ends)


# --- broken off in this process ------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 5, 11])
def test_a_run_that_breaks_off_goes_on_where_it_was(tmp_path, noted, at):
    noted["stop"] = at
    with pytest.raises(Stop):
        trainer().fit(data(64), checkpoint=tmp_path / "run", checkpoint_every=3)
    out = trainer().fit(data(64), checkpoint=tmp_path / "run", checkpoint_every=3)
    # The batch of the step at which it broke off was drawn: it is not drawn again.
    assert noted["steps"] == list(range(12))
    assert out.certificate.run["steps_taken"] == 12


@pytest.mark.parametrize("at", [0, 1, 5, 11])
def test_a_run_that_dies_gives_up_what_may_have_been_seen(tmp_path, noted, at, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "give_back", lambda self, taken: None)
        real = RunDirectory.save_state
        patch.setattr(
            RunDirectory,
            "save_state",
            lambda self, tensors, notes: (
                real(self, tensors, notes)
                if noted["stop"] is not None or not noted["steps"]
                else None
            ),
        )
        noted["stop"] = at
        with pytest.raises(Stop):
            trainer().fit(data(64), checkpoint=tmp_path / "run", checkpoint_every=3)
    first = list(noted["steps"])
    noted["steps"].clear()
    reserved = json.loads((tmp_path / "run/progress.json").read_text())["reserved"]
    assert reserved > at
    out = trainer().fit(data(64), checkpoint=tmp_path / "run")
    assert noted["steps"] == list(range(reserved, 12))
    assert not set(first) & set(noted["steps"])
    assert out.certificate.run["steps_taken"] == 12


def test_the_counter_is_on_the_disk_before_the_noise_is_used(tmp_path, monkeypatch):
    seen = []
    real = Private._begin_step

    def begin(self):
        real(self)
        known = json.loads((tmp_path / "run/progress.json").read_text())["reserved"]
        seen.append(known > self._step.number)

    monkeypatch.setattr(Private, "_begin_step", begin)
    trainer().fit(data(64), checkpoint=tmp_path / "run")
    assert seen == [True] * 12


def test_all_of_the_state_comes_back(tmp_path, noted):
    """With seeded draws of its own each attempt is fresh; the state itself is compared."""

    def build():
        return trainer(
            scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5), average=0.8
        )

    noted["stop"] = 7
    first = build()
    with pytest.raises(Stop):
        first.fit(data(64), checkpoint=tmp_path / "run")
    second = build()
    noted["stop"] = 8
    with pytest.raises(Stop):
        second.fit(data(64), checkpoint=tmp_path / "run")
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    ours, theirs = pack_optimizer(first.optimizer), pack_optimizer(second.optimizer)
    assert ours[1] == theirs[1]
    assert set(ours[0]) == set(theirs[0])
    assert all(torch.equal(ours[0][name], theirs[0][name]) for name in ours[0])
    assert first.scheduler.state_dict() == second.scheduler.state_dict()
    assert second.optimizer.param_groups[0]["lr"] == 0.05 * 0.5**3
    assert first._average.updates == second._average.updates == 7
    averages = zip(
        first._average.tensors().values(), second._average.tensors().values(), strict=True
    )
    assert all(torch.equal(one, other) for one, other in averages)


def test_the_clip_norm_comes_back(tmp_path, noted):
    made = plan(steps=12, clipping="quantile")
    noted["stop"] = 6
    with pytest.raises(Stop):
        trainer(made=made).fit(data(64), checkpoint=tmp_path / "run")
    _, notes = read_tensors(tmp_path / "run/state.safetensors")
    assert len(notes["clip_norms"]) == 7
    out = trainer(made=made).fit(data(64), checkpoint=tmp_path / "run")
    _, after = read_tensors(tmp_path / "run/state.safetensors")
    assert after["clip_norms"][:7] == notes["clip_norms"]
    assert out.certificate.run["final_clip_norm"] == after["clip_norms"][-1]


def test_noise_and_batches_are_fresh_after_a_resume(tmp_path, noted):
    """Even a seeded run, which would repeat itself, does not after it was resumed."""
    ends = []
    for place, stop in (("one", 0), ("two", None)):
        noted["stop"] = stop
        made = trainer(source=source(insecure_seed=4))
        if stop is not None:
            with pytest.raises(Stop):
                made.fit(data(64), checkpoint=tmp_path / place)
        made = trainer(source=source(insecure_seed=4))
        ends.append(made.fit(data(64), checkpoint=tmp_path / place).model[0].weight.detach())
    assert not torch.equal(*ends)


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 13},
        {"noise_multiplier": 1.01},
        {"clip_norm": 2.0},
        {"expected_batch_size": 17},
        {"clipping": "automatic"},
        {"sampler": "shuffled"},
        {"delta": 1e-6},
        {"unit": "person"},
    ],
)
def test_a_changed_plan(tmp_path, noted, changes):
    noted["stop"] = 3
    with pytest.raises(Stop):
        trainer().fit(data(64), checkpoint=tmp_path)
    changed = plan(**{"steps": 12, **changes})
    with pytest.raises(ResumeRefused, match="another plan"):
        trainer(made=changed).fit(data(64), checkpoint=tmp_path)
    assert noted["steps"] == [0, 1, 2, 3]


def test_a_run_that_is_complete(tmp_path):
    trainer().fit(data(64), checkpoint=tmp_path)
    with pytest.raises(ResumeRefused, match="complete"):
        trainer().fit(data(64), checkpoint=tmp_path)


def test_a_run_that_is_in_use(tmp_path):
    held = RunDirectory(tmp_path, plan())
    with pytest.raises(ResumeRefused, match="in use in this process"):
        RunDirectory(tmp_path, plan())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _files._IN_USE.clear()
            _files.hold_directory(tmp_path)
        except ResumeRefused as error:
            code = 42 if "by another process" in str(error) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 42
    held.close()
    RunDirectory(tmp_path, plan()).close()


def test_a_directory_with_other_things_in_it(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InvalidValue, match="empty directory"):
        trainer().fit(data(64), checkpoint=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lock", "notes.txt"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("progress.json", "{"),
        ("progress.json", '{"schema": "discreet.dpsgd.run", "version": 1}'),
        ("progress.json", '{"schema": "discreet.dpsgd.run", "version": 2}'),
        ("run.json", "[]"),
        ("state.safetensors", "damaged"),
    ],
)
def test_damaged_files(tmp_path, noted, file, content):
    noted["stop"] = 3
    with pytest.raises(Stop):
        trainer().fit(data(64), checkpoint=tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(SchemaError):
        trainer().fit(data(64), checkpoint=tmp_path)
    assert noted["steps"] == [0, 1, 2, 3]


def test_a_state_that_is_gone_or_of_another_time(tmp_path, noted):
    noted["stop"] = 6
    with pytest.raises(Stop):
        trainer().fit(data(64), checkpoint=tmp_path)
    progress = json.loads((tmp_path / "progress.json").read_text())
    (tmp_path / "progress.json").write_text(json.dumps({**progress, "reserved": 2}))
    with pytest.raises(ResumeRefused, match="different times"):
        trainer().fit(data(64), checkpoint=tmp_path)
    (tmp_path / "progress.json").write_text(json.dumps(progress))
    (tmp_path / "state.safetensors").unlink()
    with pytest.raises(ResumeRefused, match="no state"):
        trainer().fit(data(64), checkpoint=tmp_path)


def test_a_state_of_another_run(tmp_path, noted):
    for place in ("one", "two"):
        noted["stop"] = 3
        with pytest.raises(Stop):
            trainer().fit(data(64), checkpoint=tmp_path / place)
    state = (tmp_path / "one/state.safetensors").read_bytes()
    (tmp_path / "two/state.safetensors").write_bytes(state)
    with pytest.raises(ResumeRefused, match="another run"):
        trainer().fit(data(64), checkpoint=tmp_path / "two")


@pytest.mark.parametrize(
    "options",
    [
        {"scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 2)},
        {"average": 0.9},
        {"optimizer": lambda p: torch.optim.SGD([{"params": p[:2]}, {"params": p[2:]}], lr=0.1)},
        {"model": nn.Linear(6, 3)},
    ],
)
def test_another_trainer(tmp_path, noted, options):
    noted["stop"] = 3
    with pytest.raises(Stop):
        trainer().fit(data(64), checkpoint=tmp_path)
    with pytest.raises((ResumeRefused, SchemaError)):
        trainer(**options).fit(data(64), checkpoint=tmp_path)
    assert noted["steps"] == [0, 1, 2, 3]


# --- the ledger ----------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "study.ledger") as made:
        made.create_dataset("patients", epsilon=80, delta="1e-3")
        made.create_dataset("others", epsilon=80, delta="1e-3")
        yield made


def outcomes(ledger):
    assert ledger.verify().ok
    return [row.outcome for row in ledger.history("patients")]


def test_a_run_killed_between_its_outcome_and_its_last_note_is_complete(
    tmp_path, ledger, monkeypatch
):
    charged = {"ledger": ledger, "dataset_name": "patients", "checkpoint": tmp_path / "run"}

    def dies(self):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "finish", dies)
        with pytest.raises(Stop):
            trainer().fit(data(64), **charged)
    assert outcomes(ledger) == ["completed"]
    for words in ("ledger says .* completed already; its model", "is complete"):
        with pytest.raises(ResumeRefused, match=words):
            trainer().fit(data(64), **charged)
    assert dpsgd.load(tmp_path / "run", network()).run["steps_taken"] == 12
    assert outcomes(ledger) == ["completed"]


def test_of_two_find_copies_a_run_one_is_completed(tmp_path, noted, ledger):
    noted["stop"] = 5
    with pytest.raises(Stop):
        trainer().fit(data(64), ledger=ledger, dataset_name="patients", checkpoint=tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    trainer().fit(data(64), ledger=ledger, dataset_name="patients", checkpoint=tmp_path / "run")
    with pytest.raises(ResumeRefused, match="completed already"):
        trainer().fit(
            data(64), ledger=ledger, dataset_name="patients", checkpoint=tmp_path / "copy"
        )
    assert outcomes(ledger) == ["completed"]


@pytest.mark.parametrize("every", [1, 100])
def test_a_copy_that_ends_first_leaves_the_other_without_a_model(tmp_path, noted, ledger, every):
    """The other finds out when it saves its state, or at the latest when it would certify."""
    options = {"ledger": ledger, "dataset_name": "patients", "progress": False}
    noted["stop"] = 5
    with pytest.raises(Stop):
        trainer().fit(data(64), checkpoint=tmp_path / "run", **options)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    noted["stop"] = None
    ended = []

    class Waiting(TensorDataset):
        def __getitems__(self, places):
            if not ended:
                ended.append(trainer().fit(data(64), checkpoint=tmp_path / "copy", **options))
            return [self[place] for place in places]

    with pytest.raises((ResumeRefused, AlreadyCharged)):
        trainer(inputs=dpsgd.TensorSpec((6,))).fit(
            Waiting(*data(64).tensors),
            checkpoint=tmp_path / "run",
            checkpoint_every=every,
            collate=default_collate,
            **options,
        )
    assert (
        dpsgd.load(tmp_path / "copy", network()).model_digest == ended[0].certificate.model_digest
    )
    left = {entry.name for entry in (tmp_path / "run").iterdir()}
    assert not left & {"model.safetensors", "certificate.json", "unpublished"}
    with pytest.raises(ResumeRefused, match="completed already"):
        trainer().fit(data(64), checkpoint=tmp_path / "run", **options)
    assert outcomes(ledger) == ["completed"]


def test_a_run_killed_before_its_model_is_in_place(tmp_path, ledger, monkeypatch):
    charged = {"ledger": ledger, "dataset_name": "patients", "checkpoint": tmp_path / "run"}

    def dies(self, digest):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "publish", dies)
        with pytest.raises(Stop):
            trainer().fit(data(64), **charged)
    assert not (tmp_path / "run" / "certificate.json").exists()
    with pytest.raises(ResumeRefused, match="completed already; its model"):
        trainer().fit(data(64), **charged)
    assert dpsgd.load(tmp_path / "run", network()).run["steps_taken"] == 12


def test_a_resumed_run_is_not_charged_again(tmp_path, noted, ledger):
    options = {"checkpoint": tmp_path / "run", "ledger": ledger, "dataset_name": "patients"}
    for stop in (2, 5):
        noted["stop"] = stop
        with pytest.raises(Stop):
            trainer().fit(data(64), **options)
        assert outcomes(ledger) == ["open"]
    out = trainer().fit(data(64), **options)
    assert outcomes(ledger) == ["completed"]
    (row,) = ledger.history("patients")
    assert out.certificate.receipt == ledger.receipt("patients", row.seq)


def test_a_crash_between_charge_and_receipt_does_not_charge_twice(
    tmp_path, noted, ledger, monkeypatch
):
    options = {"checkpoint": tmp_path / "run", "ledger": ledger, "dataset_name": "patients"}

    def dead(self, receipt):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "save_receipt", dead)
        with pytest.raises(Stop):
            trainer().fit(data(64), **options)
    assert len(ledger.history("patients")) == 1
    assert noted["steps"] == []
    trainer().fit(data(64), **options)
    assert len(ledger.history("patients")) == 1


def test_the_ledger_must_be_the_same(tmp_path, noted, ledger):
    options = {"checkpoint": tmp_path / "run", "ledger": ledger, "dataset_name": "patients"}
    noted["stop"] = 2
    with pytest.raises(Stop):
        trainer().fit(data(64), **options)
    with pytest.raises(ResumeRefused, match="pass that ledger"):
        trainer().fit(data(64), checkpoint=tmp_path / "run")
    with pytest.raises(ResumeRefused, match="another ledger or dataset"):
        trainer().fit(data(64), **{**options, "dataset_name": "others"})
    with Ledger.create(tmp_path / "second.ledger") as second:
        second.create_dataset("patients", epsilon=80, delta="1e-3")
        with pytest.raises(ResumeRefused, match="another ledger"):
            trainer().fit(data(64), **{**options, "ledger": second})
        assert second.history("patients") == []
    assert len(ledger.history("others")) == 0
    assert noted["steps"] == [0, 1, 2]


def test_steps_without_a_charge_are_not_legalised_later(tmp_path, noted, ledger):
    noted["stop"] = 2
    with pytest.raises(Stop):
        trainer().fit(data(64), checkpoint=tmp_path / "run")
    with pytest.raises(ResumeRefused, match="without being charged"):
        trainer().fit(data(64), checkpoint=tmp_path / "run", ledger=ledger, dataset_name="patients")
    assert ledger.history("patients") == []


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.9), amsgrad=True),
        lambda p: torch.optim.Adagrad(p),
        lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)),
        lambda p: torch.optim.RMSprop(p, centered=True),
    ],
)
def test_optimizers_survive_a_file(tmp_path, make):
    one, two = nn.Linear(3, 2), nn.Linear(3, 2)
    two.load_state_dict(one.state_dict())
    first, second = make(one.parameters()), make(two.parameters())

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()

    for _ in range(3):
        step(one, first)
    tensors, plain = pack_optimizer(first)
    write_tensors(tmp_path / "s", {**tensors, **tensors_of(one)}, notes=plain)
    read, notes = read_tensors(tmp_path / "s")
    two.load_state_dict({name: read[name] for name in ("weight", "bias")})
    unpack_optimizer(second, {n: t for n, t in read.items() if "." in n}, notes)
    for _ in range(2):
        step(one, first)
        step(two, second)
    assert torch.equal(one.weight, two.weight)


def test_state_that_is_no_tensor_is_refused_before_the_start(tmp_path, noted):
    class Odd(nn.Linear):
        def get_extra_state(self):
            return {"a": object()}

        def set_extra_state(self, state):
            pass

    with pytest.raises(InvalidValue, match="without pickle"):
        trainer(Odd(6, 3)).fit(data(64), checkpoint=tmp_path)
    assert noted["steps"] == []


def test_a_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, b"first")

    def full(_):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            write_whole(path, b"second")
    assert path.read_bytes() == b"first"
    write_whole(path, b"third")
    assert path.read_bytes() == b"third"


def test_what_a_killed_writer_left_behind_is_removed(tmp_path, noted):
    noted["stop"] = 3
    with pytest.raises(Stop):
        trainer().fit(data(64), checkpoint=tmp_path)
    (tmp_path / ".state.safetensors.123").write_bytes(b"half a file")
    trainer().fit(data(64), checkpoint=tmp_path)
    assert not list(tmp_path.glob(".*"))


def test_a_beginning_that_was_killed_is_begun_again(tmp_path):
    RunDirectory(tmp_path, plan(steps=12)).close()
    (tmp_path / "run.json").unlink()
    assert trainer().fit(data(64), checkpoint=tmp_path).certificate.run["steps_taken"] == 12


def test_nothing_is_pickled(tmp_path):
    trainer().fit(data(64), checkpoint=tmp_path)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == [
        "certificate.json",
        "lock",
        "model.safetensors",
        "progress.json",
        "run.json",
        "state.safetensors",
    ]
