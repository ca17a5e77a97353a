"""Steps that break off: their noise is not used again and their batch is not drawn again."""

import os

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet.learn import dpsgd
from discreet.learn.dpsgd import PlanViolation
from discreet.randomness import source
from learn.dpsgd.made_up_runs import data, each, network, plan, wrap

FULL = {"sampler": "full", "expected_batch_size": None}


class Interrupted(torch.optim.SGD):
    """Ctrl-C inside of optimizer.step(), when it is armed."""

    armed = False

    @torch.no_grad()
    def step(self, closure=None):
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return super().step(closure)


def moves(private, optimizer, dataset, count):
    """How far each of some steps moved the model."""
    weight, found = private.model.weight, []
    for inputs, targets in private.batches(dataset):
        before = weight.detach().clone()
        private.backward(each(private.model(inputs), targets))
        optimizer.step()
        found.append((weight.detach() - before).flatten().double())
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize("width", [20, 400])
def test_a_seeded_run_that_goes_on_has_no_noise_of_the_steps_before(width):
    """The planted zeros leave noise only; |correlation| of n normals exceeds 7/sqrt(n) by chance
    with probability below 3e-12."""
    blank = TensorDataset(torch.zeros(64, width), torch.zeros(64, dtype=torch.int64))
    made = plan(steps=6, **FULL)

    def begun(at):
        model = nn.Linear(width, width, bias=False)
        nn.init.zeros_(model.weight)
        run = wrap(model, made, source=source(insecure_seed=3))
        if at:
            run[0]._continue_at(
                at,
                clip_norms=[made.clip_norm],
                earlier_plans={},
                notes={},
                facts={},
                looked_at=[],
                vouched=True,
            )
        return run

    private, optimizer = begun(0)
    steps = moves(private, optimizer, blank, 2) + moves(private, optimizer, blank, 2)
    private.detach()
    for at in (2, 3):
        private, optimizer = begun(at)
        assert "INSECURE seed 3" in private.certificate().randomness["randomness"]
        steps += moves(private, optimizer, blank, 2)
        private.detach()
    units = torch.stack([one / one.norm() for one in steps])
    products = (units @ units.T).fill_diagonal_(0.0)
    assert float(products.abs().max()) < 7 / width
    private, optimizer = begun(2)
    assert torch.equal(steps[4], moves(private, optimizer, blank, 1)[0])  # and a seed repeats it
    private.detach()


@pytest.mark.parametrize(("width", "chunk"), [(260, None), (260, 16), (20, 16)])
def test_noise_is_not_used_again_after_an_interrupt(width, chunk):
    """The planted zeros leave noise only; |correlation| of n normals exceeds 7/sqrt(n) by chance
    with probability below 3e-12."""
    model = nn.Linear(width, width, bias=False)
    optimizer = Interrupted(model.parameters(), lr=1.0)
    private = dpsgd.make_private(model, optimizer, plan(steps=8, **FULL), isolation="vouched")
    blank = TensorDataset(torch.zeros(64, width), torch.zeros(64, dtype=torch.int64))
    updates, armed = [], False
    while private.steps_taken < 8:
        batches = private.batches(blank, max_physical=chunk)
        try:
            for inputs, targets in batches:
                before = model.weight.detach().clone()
                private.backward(each(model(inputs), targets))
                if not armed and private.steps_taken == 2 and private._step.batch.chunk.last:
                    optimizer.armed = armed = True
                optimizer.step()
                if not torch.equal(before, model.weight):
                    updates.append((model.weight.detach() - before).flatten().double())
        except KeyboardInterrupt:
            batches.close()
            assert model.weight.grad is None
    private.detach()
    assert len(updates) == 7
    units = torch.stack([one / one.norm() for one in updates])
    products = (units @ units.T).fill_diagonal_(0.0)
    count = width * width
    assert float(products.abs().max()) < 7 / count**0.5
    for one in updates:
        assert abs(float(one.std()) * 64 - 1) < 7 / (2 * count) ** 0.5


def test_a_rejected_batch_is_not_drawn_again():
    """Leaving the loop whenever a record turns up must not make a plan without that record."""
    private, optimizer = wrap(network(), plan(steps=6, **FULL))
    left = 0
    while private.steps_taken < 6:
        for inputs, targets in private.batches(data(64)):
            if private.steps_taken % 2 == 0:
                left += 1
                break
            private.backward(each(private.model(inputs), targets))
            optimizer.step()
    assert left == 3
    private.detach()


class Poisoned(TensorDataset):
    """One record that cannot be read."""

    def __getitems__(self, places):
        if 0 in places:
            raise ValueError("a record that cannot be read")
        return [self[place] for place in places]


def test_a_batch_that_cannot_be_read_counts():
    private, optimizer = wrap(network(), plan(steps=30, expected_batch_size=32))
    poisoned = Poisoned(*data(64).tensors)
    taken = failed = 0
    while private.steps_taken < 30:
        try:
            for inputs, targets in private.batches(
                poisoned, collate=torch.utils.data.default_collate
            ):
                private.backward(each(private.model(inputs), targets))
                optimizer.step()
                taken += 1
        except ValueError:
            failed += 1
    assert taken + failed == 30
    assert failed > 0
    private.detach()


@pytest.mark.slow
def test_a_checkpointed_run_counts_batches_that_cannot_be_read(tmp_path):
    poisoned, failed, taken = Poisoned(*data(64).tensors), 0, []

    def losses(model, batch):
        taken.append(len(batch[1]))
        return each(model(batch[0]), batch[1])

    out = None
    while out is None:
        trainer = dpsgd.Trainer(
            network(),
            plan(steps=20, expected_batch_size=32),
            losses=losses,
            optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
            isolation="vouched",
            source=source(insecure_seed=3),
        )
        try:
            out = trainer.fit(
                poisoned,
                checkpoint=tmp_path / "run",
                collate=torch.utils.data.default_collate,
                progress=False,
            )
        except ValueError:
            failed += 1
    assert failed > 0
    # Redrawn until all batches could be read, there would be twenty besides the failures.
    assert len(taken) + failed == out.certificate.run["steps_taken"] == 20


def test_noise_of_the_right_phase_after_a_step_that_failed():
    """The noise is prepared ahead by the number of the step, so a lost step must move it on."""
    width = 100
    model = nn.Linear(width, width, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    phases = [dpsgd.Phase(2, 64), dpsgd.Phase(2, 64, 10.0)]
    made = plan(sampler="full", expected_batch_size=None, steps=None, phases=phases)
    private = dpsgd.make_private(model, optimizer, made, isolation="vouched")
    blank = TensorDataset(torch.zeros(64, width), torch.zeros(64, dtype=torch.int64))
    for _ in private.batches(blank):
        break
    sizes = []
    for inputs, targets in private.batches(blank):
        before = model.weight.detach().clone()
        private.backward(each(model(inputs), targets))
        optimizer.step()
        sizes.append(float((model.weight.detach() - before).std()) * 64)
    assert sizes == pytest.approx([1.0, 10.0, 10.0], rel=0.1)
    private.detach()


def test_a_forked_child_cannot_take_the_step():
    private, optimizer = wrap(network(), plan())
    reader, writer = os.pipe()
    for inputs, targets in private.batches(data(64)):
        private.backward(each(private.model(inputs), targets))
        child = os.fork()
        if child == 0:
            try:
                optimizer.step()
                os.write(writer, b"stepped")
            except PlanViolation as error:
                os.write(writer, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        break
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        assert b"forked" in answers.read()
    private.detach()


@pytest.mark.parametrize("place", ["clip norm", "gradients", "recording"])
def test_a_batch_does_not_ride_on_the_noise_of_one_that_broke_off(place, monkeypatch):
    """Ctrl-C after the sum was added, caught in the body of the loop."""
    private, optimizer = wrap(network(), plan(steps=6, clipping=dpsgd.Quantile()))
    loss = nn.CrossEntropyLoss(reduction="none")
    owner, name = {
        "clip norm": (type(private._clip), "end_step"),
        "gradients": (type(private), "_drop_gradients"),
        "recording": (dpsgd.engine._engine.Recorder, "close"),
    }[place]
    broken = 0
    while private.steps_taken < 6:
        try:
            for at, batch in enumerate(private.batches(data(64))):
                before = [p.detach().clone() for p in private.model.parameters()]
                with monkeypatch.context() as patch:
                    if at == 2 and not broken:
                        patch.setattr(owner, name, interrupted)
                    try:
                        private.step(loss, *batch)
                    except KeyboardInterrupt:
                        broken += 1
                        after = list(private.model.parameters())
                        assert all(map(torch.equal, before, after))
                        with pytest.raises(PlanViolation, match="without a batch"):
                            optimizer.step()
        except PlanViolation as error:
            assert "broke off" in str(error)  # noqa: PT017
    assert broken == 1
    private.detach()


def interrupted(*_, **__):
    raise KeyboardInterrupt
