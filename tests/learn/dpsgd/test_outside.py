"""What reaches the loss of a private run from outside of its batch and its model."""

import copy
import pickle
import shutil
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from discreet.errors import InvalidValue
from discreet.learn import dpsgd
from discreet.learn.dpsgd import PlanViolation
from discreet.learn.dpsgd._certificate import problems
from discreet.learn.dpsgd._lineage import plain
from learn.dpsgd.made_up_runs import CLASSES, FEATURES, data, each, network, plan, wrap

# --- parameters outside of the model -------------------------------------------------------


class Temperature(nn.Module):
    """A criterion that learns."""

    def __init__(self):
        super().__init__()
        self.log = nn.Parameter(torch.zeros(()))

    def forward(self, scores, targets):
        return each(scores * self.log.exp(), targets)


class Prompted(nn.Module):
    """Adds a tensor to its inputs that is not one of its parameters."""

    def __init__(self, prompt):
        super().__init__()
        self.inner, self.prompt = network(), prompt

    def forward(self, x):
        return self.inner(x + self.prompt())


def learned_temperature():
    criterion = Temperature()
    return network(), criterion.parameters(), lambda model, x, y: criterion(model(x), y)


def head():
    last = nn.Linear(CLASSES, CLASSES)
    return network(), last.parameters(), lambda model, x, y: each(last(model(x)), y)


def prompt_on_the_inputs():
    prompt = torch.zeros(FEATURES, requires_grad=True)
    return network(), [prompt], lambda model, x, y: each(model(x + prompt), y)


def prompt_inside():
    raw = torch.zeros(FEATURES, requires_grad=True)
    held = {"prompt": raw + 0}

    def losses(model, x, y):
        held["prompt"] = raw + 0  # computed outside of the forward call, where it is only read
        return each(model(x), y)

    return Prompted(lambda: held["prompt"]), [raw], losses


OUTSIDE = [learned_temperature, head, prompt_on_the_inputs, prompt_inside]


def trained(private, losses, form="each", others=(), **options):
    theirs = torch.optim.SGD(others, lr=1.0) if others else None
    for x, y in private.batches(data(64), **options):
        found = losses(private.model, x, y)
        private.backward(found) if form == "each" else found.mean().backward()
        private.optimizer.step()
        if theirs is not None:
            theirs.step()


@pytest.mark.parametrize("make", OUTSIDE)
@pytest.mark.parametrize("form", ["each", "mean"])
def test_a_parameter_outside_of_the_model_is_refused(make, form):
    model, others, losses = make()
    isolation = "vouched" if form == "each" else "check"
    private, _ = wrap(model, plan(), isolation=isolation)
    with pytest.raises(PlanViolation, match="not one of the parameters under the plan"):
        trained(private, losses, form, list(others))
    private.detach()


@pytest.mark.parametrize("make", OUTSIDE)
def test_the_same_without_gradients_is_accepted(make):
    model, others, losses = make()
    for one in others:
        one.requires_grad_(False)
    if make is prompt_inside:
        model.prompt = lambda: torch.zeros(FEATURES)
    private, _ = wrap(model, plan(steps=2))
    trained(private, losses)
    private.detach()


def test_gradients_of_the_inputs_are_refused():
    private, _ = wrap(network(), plan())
    batches = private.batches(data(64))
    x, y = next(batches)
    with pytest.raises(PlanViolation, match="not one of the parameters under the plan"):
        private.backward(each(private.model(x.requires_grad_()), y))
    private.detach()


def test_a_parameter_that_comes_in_later_is_refused_in_one_loss_each():
    """The graph is looked at in every step."""
    temperature = Temperature()
    private, _ = wrap(network(), plan(steps=6))

    def losses(model, x, y):
        return (temperature if private.steps_taken == 3 else each)(model(x), y)

    with pytest.raises(PlanViolation, match="not one of the parameters under the plan"):
        trained(private, losses)
    assert private.steps_taken == 4, "the step that was refused counts"
    private.detach()


def test_a_penalty_of_two_models_under_plans_of_their_own_is_accepted():
    """The leaves of another engine are known too."""
    first, second = network(seed=0), network(seed=1)
    one, optimizer = wrap(first, plan(sampler="full", expected_batch_size=None, steps=1))
    two, other = wrap(second, plan(sampler="full", expected_batch_size=None, steps=1))
    for (x, y), (z, _) in zip(one.batches(data(64)), two.batches(data(64)), strict=True):
        apart = functional.mse_loss(first(x), second(z), reduction="none").sum(1)
        one._record.lineage._refuse_outside(plain(apart))
        one.backward(each(first(x), y))
        optimizer.step()
        two.backward(each(second(z), y))
        other.step()
    one.detach()
    two.detach()


# --- rows of other batches, and other models -----------------------------------------------


def test_rows_of_another_loader_are_refused():
    other = data(64, seed=5).tensors[0]
    private, _ = wrap(network(), plan())
    with pytest.raises(PlanViolation, match="another loader"):
        trained(private, lambda model, x, y: each(model(other[: len(x)]), y))
    private.detach()


@pytest.mark.parametrize("first", [2, 3])
def test_rows_of_another_loader_are_refused_in_later_steps(first):
    """Whether what is given is of the batch is seen in every step."""
    other = data(64, seed=5).tensors[0]
    private, _ = wrap(network(), plan(steps=6))

    def losses(model, x, y):
        return each(model(other[: len(x)] if private.steps_taken >= first else x), y)

    with pytest.raises(PlanViolation, match="another loader"):
        trained(private, losses)
    assert private.steps_taken == first + 1
    private.detach()


@pytest.mark.parametrize("form", ["each", "mean"])
@pytest.mark.parametrize("use", ["inputs", "mixed", "targets", "losses"])
def test_rows_of_an_earlier_batch_are_refused(form, use):
    private, _ = wrap(network(), plan(sampler="full", expected_batch_size=None))
    kept = []

    def losses(model, x, y):
        kept.append((x, y, model(x)))
        x0, y0, scores = kept[0]
        if use == "inputs":
            return each(model(x0), y)
        if use == "mixed":
            return each(model(0.9 * x + 0.1 * x0), y)
        if use == "targets":
            return each(model(x), y0)
        return each(model(x) + scores.detach(), y)

    with pytest.raises(PlanViolation, match="an earlier batch"):
        trained(private, losses, form)
    assert private.steps_taken == 2
    private.detach()


def test_made_up_inputs_are_accepted():
    """As a discriminator gets them from a generator."""
    private, _ = wrap(network(), plan())
    trained(private, lambda model, x, y: each(model(torch.rand(len(x), FEATURES)), y))
    assert facts(private.certificate()) == {}
    private.detach()


def test_another_model_cannot_be_loaded_during_a_run():
    model = network()
    private, optimizer = wrap(model, plan())
    model.load_state_dict(network(seed=3).state_dict())  # before the first batch: a start
    for at, (x, y) in enumerate(private.batches(data(64))):
        private.backward(each(model(x), y))
        optimizer.step()
        if at == 1:
            before = [one.detach().clone() for one in model.parameters()]
            for part in (model, model[0]):
                with pytest.raises(PlanViolation, match="load_state_dict"):
                    part.load_state_dict(part.state_dict())
            assert all(map(torch.equal, before, model.parameters()))
    copied = copy.deepcopy(model)
    copied.load_state_dict(network().state_dict())
    pickle.loads(pickle.dumps(model)).load_state_dict(network().state_dict())
    private.detach()
    model.load_state_dict(network().state_dict())
    assert not model._load_state_dict_pre_hooks
    assert not model._forward_hooks


# --- numbers that are read, and tensors that are brought in ----------------------------------


def run_of(losses, *, after=lambda losses: None, form="each", public=(), **options):
    private, optimizer = wrap(network(), plan(steps=4), public=public, **options)
    for x, y in private.batches(data(64)):
        found = losses(private.model, x, y)
        private.backward(found) if form == "each" else found.mean().backward()
        optimizer.step()
        after(found)
    certificate = private.certificate()
    private.detach()
    return certificate


def facts(certificate):
    """What a certificate states of what was read and brought in."""
    names = ("steps_with_numbers_read", "steps_with_writes", "outside_tensors")
    return {name: certificate.run[name] for name in names if name in certificate.run}


def honest(model, x, y):
    return each(model(x), y)


READINGS = {
    "item": lambda losses: losses.mean().item(),
    "float": lambda losses: float(losses.detach().sum()),
    "int": lambda losses: int(losses.detach().sum()),
    "tolist": lambda losses: losses.tolist(),
    "numpy": lambda losses: losses.detach().numpy(),
    "asarray": lambda losses: np.asarray(losses.detach()),
    "if": lambda losses: bool(losses.mean() > 1),
    "max": lambda losses: max(losses.unbind()),
    "print": lambda losses: repr(losses),
    "format": lambda losses: f"{losses.detach().mean():.2f}",
    "pickle": lambda losses: pickle.dumps(losses.detach()),
    "equal": lambda losses: torch.equal(losses, losses + 1),
    "through a copy": lambda losses: float(copy.deepcopy(losses.detach()).sum()),
    "through a sum": lambda losses: (torch.zeros(()) + losses.detach().sum()).item(),
    "through a write": lambda losses: written(losses).item(),
    "through a view": lambda losses: through_a_view(losses).item(),
    "through .data": lambda losses: through_data(losses).item(),
    "through out=": lambda losses: through_out(losses).item(),
    "torch.tensor": lambda losses: copied(torch.tensor, losses).item(),
    "torch.as_tensor": lambda losses: copied(torch.as_tensor, losses).item(),
    "new_tensor": lambda losses: copied(torch.zeros(1).new_tensor, losses).item(),
    "clone": lambda losses: losses.clone().detach().mean().item(),
    "its memory": lambda losses: losses.detach().untyped_storage()[0],
    "how many": lambda losses: len((losses > 1).nonzero()),
    "a mask": lambda losses: losses[losses > 1].shape,
    "where": lambda losses: torch.where(losses > 1)[0].shape,
    "unique": lambda losses: losses.detach().unique().numel(),
    "bincount": lambda losses: (losses > 1).long().bincount().numel(),
    "one_hot": lambda losses: functional.one_hot((losses > 1).long()).shape,
    "repeat_interleave": lambda losses: losses.repeat_interleave((losses > 1).long()).shape,
    "tensor_split": lambda losses: torch.tensor_split(losses, (losses > 1).sum()[None].cpu()),
    "a slice": lambda losses: losses[: (losses > 1).sum()].shape,
    "narrow": lambda losses: losses.narrow(0, 0, (losses > 1).sum()).shape,
    "zeros": lambda losses: torch.zeros((losses > 1).sum()).shape,
    "a number that torch takes": lambda losses: torch.full((2,), losses.detach().mean()).numpy(),
    "alpha": lambda losses: torch.ones(2).add(torch.ones(2), alpha=losses.detach().mean()),
}


def through_a_view(losses):
    kept = torch.zeros(3)
    kept[:1].copy_(losses.detach().mean())
    return kept.sum()


def through_data(losses):
    kept = torch.zeros(())
    kept.data.copy_(losses.detach().mean())
    return kept


def through_out(losses):
    kept = torch.zeros(2, 1)
    torch.mean(losses.detach(), 0, keepdim=True, out=kept[0])
    return kept.sum()


def copied(copy_of, losses):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather have clone().detach()
        return copy_of(losses.detach().mean(), dtype=torch.float64)


def written(losses):
    kept = torch.zeros(3)
    kept[0] = losses.detach().mean()
    return kept.sum()


@pytest.mark.parametrize("read", READINGS.values(), ids=READINGS)
def test_numbers_that_are_read_are_stated(read):
    certificate = run_of(honest, after=read)
    assert facts(certificate) == {"steps_with_numbers_read": 4}
    assert "In 4 steps the loop read numbers" in str(certificate)
    again = type(certificate).from_json(certificate.to_json())
    assert again == certificate
    assert problems(again) == []


def test_sizes_that_are_public_are_no_numbers_read():
    def look(losses):
        rows = losses.detach()[:, None].repeat(1, 4)
        functional.one_hot((rows[:, 0] > 1).long(), 2)
        functional.one_hot((rows[:, 0] > 1).long(), num_classes=2)
        _ = rows.view(-1, 2, 2)[..., :1], rows.narrow(1, 0, 2), rows.topk(2), rows.expand(-1, 4)
        _ = rows.repeat_interleave(2, 0), rows.split(1), rows.tensor_split([1, 2], 1), rows[:3, 1:]
        _ = torch.full((2,), 3.0), torch.zeros(len(rows)), torch.zeros_like(rows).copy_(rows)
        _ = torch.lerp(torch.ones(2), torch.zeros(2), rows.mean()), rows.clamp(min=0.1)

    assert facts(run_of(honest, after=look)) == {}


def test_losses_that_are_only_added_up_are_no_numbers_read():
    totals = torch.zeros(3), [torch.zeros(2)], torch.zeros(2, 2)

    def add(losses):
        totals[0].add_(losses.detach().mean())
        totals[1][0] += losses.detach().sum()
        totals[2][0].add_(losses.detach().max())

    assert facts(run_of(honest, after=add)) == {}


def test_what_was_added_up_outside_and_is_read_at_the_end_is_stated():
    total = torch.zeros(())
    private, optimizer = wrap(network(), plan(steps=4))
    for x, y in private.batches(data(64)):
        losses = each(private.model(x), y)
        private.backward(losses)
        optimizer.step()
        total += losses.detach().mean()
    assert facts(private.certificate()) == {}
    total.item()
    assert facts(private.certificate()) == {"steps_with_numbers_read": 1}
    private.detach()


@pytest.mark.parametrize("early", [True, False])
def test_a_hook_of_the_model_that_reads_is_stated(early):
    model, seen = network(), []

    def outputs(_, __, out):
        seen.append(out.detach().mean().item())

    def inputs(_, given):
        seen.append(given[0].mean().item())

    for hook in ("register_forward_hook", "register_forward_pre_hook"):
        model = network()
        act = outputs if hook == "register_forward_hook" else inputs
        if early:
            getattr(model, hook)(act)
        private, optimizer = wrap(model, plan(steps=4))
        if not early:
            getattr(model, hook)(act)
        for x, y in private.batches(data(64)):
            private.backward(each(model(x), y))
            optimizer.step()
        assert facts(private.certificate()) == {"steps_with_numbers_read": 4}
        private.detach()


@pytest.mark.parametrize("form", ["each", "mean"])
def test_a_scheduler_stepped_on_the_training_loss_is_stated(form):
    model = network()
    private, optimizer = wrap(model, plan(steps=4))
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    for x, y in private.batches(data(64)):
        loss = each(model(x), y)
        private.backward(loss) if form == "each" else loss.mean().backward()
        optimizer.step()
        scheduler.step(loss.detach().mean())
    assert facts(private.certificate()) == {"steps_with_numbers_read": 4}
    private.detach()


def test_how_often_numbers_are_read_in_a_step_is_not_told():
    """With max_physical it would tell how many examples were drawn."""
    private, optimizer = wrap(network(), plan(steps=3))
    for x, y in private.batches(data(64), max_physical=3):
        losses = each(private.model(x), y)
        private.backward(losses)
        optimizer.step()
        losses.tolist()
    assert facts(private.certificate()) == {"steps_with_numbers_read": 3}
    private.detach()


def test_numbers_read_after_the_loop_are_stated():
    losses = []
    private, optimizer = wrap(network(), plan(steps=2))
    for x, y in private.batches(data(64)):
        losses.append(each(private.model(x), y))
        private.backward(losses[-1])
        optimizer.step()
    assert facts(private.certificate()) == {}
    assert torch.cat(losses).mean().item() > 0
    assert facts(private.certificate()) == {"steps_with_numbers_read": 1}
    private.detach()


@pytest.mark.parametrize("form", ["each", "mean"])
def test_the_honest_twin_states_nothing(form):
    def losses(model, x, y):
        noise = torch.randn(x.shape[-1]) * 0.1
        x = (x + noise).to(torch.float32).reshape(len(x), -1)
        picked = model(x).log_softmax(1)
        return -(picked * torch.eye(CLASSES)[y]).sum(1) * torch.tensor(1.0)

    certificate = run_of(losses, form=form)
    assert facts(certificate) == {}
    plainly = run_of(honest, form=form)
    assert facts(run_of(honest, form=form, isolation="check")) == {}, (
        "the checks read, not the loop"
    )
    assert facts(plainly) == {}
    assert certificate.warnings == plainly.warnings


WEIGHT = torch.tensor([1.0, 2.0, 0.5])


def weighted(model, x, y):
    return functional.cross_entropy(model(x), y, weight=WEIGHT, reduction="none")


OUTSIDERS = {
    "class weights": weighted,
    "a factor": lambda model, x, y: each(model(x), y) * WEIGHT[0],
    "weights by class": lambda model, x, y: each(model(x), y) * WEIGHT[y],
    "a shift of the inputs": lambda model, x, y: each(model(x + WEIGHT.sum()), y),
    "other targets": lambda model, x, y: each(model(x), WEIGHT.argsort()[y]),
    "made of it": lambda model, x, y: each(model(x), y) * (2 * WEIGHT)[1],
}


@pytest.mark.parametrize("losses", OUTSIDERS.values(), ids=OUTSIDERS)
def test_tensors_from_outside_are_stated_unless_declared(losses):
    certificate = run_of(losses)
    assert facts(certificate) == {"outside_tensors": 1}
    assert "Tensors entered the loss from outside" in str(certificate)
    assert facts(run_of(losses, public=[WEIGHT])) == {}


class Telling(nn.Module):
    """Leaves what its layers made where the loop finds it."""

    def __init__(self, cut):
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES)
        self.cut = cut

    def forward(self, x):
        hidden = self.first(x)
        self.hidden = hidden.detach() if self.cut else hidden
        return self.last(hidden.relu())


@pytest.mark.parametrize("cut", [True, False])
def test_what_the_model_made_in_its_forward_pass_is_not_from_outside(cut):
    private, optimizer = wrap(Telling(cut), plan(steps=3))
    for x, y in private.batches(data(64)):
        outputs = private.model(x)
        private.backward(each(outputs, y) + private.model.hidden.square().mean(1))
        optimizer.step()
    assert facts(private.certificate()) == {}
    private.detach()


@pytest.mark.parametrize("losses", OUTSIDERS.values(), ids=OUTSIDERS)
@pytest.mark.parametrize("only", [3, 5])
def test_tensors_from_outside_are_seen_in_every_step(losses, only):
    """Also in a step that is no power of two, and in no other."""
    step = 0

    def late(model, x, y):
        nonlocal step
        step += 1
        return (losses if step - 1 == only else honest)(model, x, y)

    private, optimizer = wrap(network(), plan(steps=6))
    for x, y in private.batches(data(64)):
        private.backward(late(private.model, x, y))
        optimizer.step()
    assert facts(private.certificate()) == {"outside_tensors": 1}
    private.detach()


def test_a_bank_that_a_hook_fills_is_refused():
    model, bank = network(), []
    private, _ = wrap(model, plan(steps=6))
    model.register_forward_pre_hook(lambda _, given: bank.append(given[0].clone().detach()))

    def losses(model, x, y):
        scores = model(x)
        near = sum(one.mean() for one in bank[:-1][:1]) if private.steps_taken > 2 else 0.0
        return each(scores, y) * (1.0 + near)

    with pytest.raises(PlanViolation, match="an earlier batch"):
        trained(private, losses)
    private.detach()


def test_a_second_network_that_learns_from_raw_rows_is_stated():
    second = nn.Linear(FEATURES, CLASSES)

    def losses(model, x, y):
        own = functional.cross_entropy(second(x), y)
        slopes = torch.autograd.grad(own, list(second.parameters()))
        with torch.no_grad():
            for one, slope in zip(second.parameters(), slopes, strict=True):
                one.data = one.data - 0.1 * slope
        return each(model(x) + second(x).detach(), y)

    assert facts(run_of(losses)) == {"outside_tensors": 1}


def test_a_teacher_is_stated_unless_declared():
    teacher = network(seed=9)

    def losses(model, x, y):
        with torch.no_grad():
            soft = teacher.eval()(x).softmax(1)
        return -(model(x).log_softmax(1) * soft).sum(1)

    assert facts(run_of(losses)) == {"outside_tensors": 1}
    assert facts(run_of(losses, public=[teacher])) == {}


@pytest.mark.parametrize("public", [[3], ["teacher"], [None]])
def test_what_is_declared_public_is_checked(public):
    with pytest.raises(InvalidValue, match="public"):
        wrap(network(), plan(), public=public)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(reduction="none"), each])
def test_the_trainer_states_the_same(loss):
    def fitted(loss, **options):
        return dpsgd.Trainer(
            network(),
            plan(steps=3),
            loss=loss,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            isolation="vouched",
            **options,
        ).fit(data(64), progress=False)

    assert facts(fitted(loss).certificate) == {}

    def reads(outputs, targets):
        assert torch.isfinite(outputs).all()
        return functional.cross_entropy(outputs, targets, weight=WEIGHT, reduction="none")

    assert facts(fitted(reads).certificate) == {"steps_with_numbers_read": 3, "outside_tensors": 1}
    stated = facts(fitted(reads, public=[WEIGHT]).certificate)
    assert stated == {"steps_with_numbers_read": 3}


def test_facts_survive_a_resumed_run(tmp_path):
    def part(steps):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        private = dpsgd.make_private(
            model, optimizer, plan(steps=4), isolation="vouched", checkpoint=tmp_path
        )
        for x, y in private.batches(data(64)):
            losses = each(model(x), y)
            private.backward(losses)
            optimizer.step()
            if steps == 2:
                losses.tolist()
            if private.steps_taken == steps:
                break
        certificate = private.certificate()
        private.detach()
        return facts(certificate)

    assert part(2) == {"steps_with_numbers_read": 2}
    assert part(4) == {"steps_with_numbers_read": 2}


@pytest.mark.parametrize("kind", ["own loop", "trainer"])
def test_a_crash_forgets_nothing(tmp_path, kind, monkeypatch):
    """What happened after the last saved state is on the disk before the next line runs."""

    class Killed(BaseException):
        pass

    def run(place, reads):
        model, seen = network(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        if reads:
            optimizer.register_step_post_hook(lambda *_: model[0].weight.data.add_(1.0))

        def loss(outputs, targets):
            losses = each(outputs, targets)
            if reads:
                seen.append(losses.tolist())
                shutil.copytree(place, tmp_path / "crash", dirs_exist_ok=True)
                if len(seen) == 4:  # the trainer has rehearsed once
                    raise Killed
            return losses

        if kind == "trainer":
            trainer = dpsgd.Trainer(
                model, plan(steps=12), loss=loss, optimizer=optimizer, isolation="vouched"
            )
            options = {"checkpoint": place, "checkpoint_every": 2, "progress": False}
            return facts(trainer.fit(data(64), **options).certificate)
        private = dpsgd.make_private(
            model, optimizer, plan(steps=12), isolation="vouched", checkpoint=place
        )
        for x, y in private.batches(data(64)):
            private.backward(loss(model(x), y))
            optimizer.step()
            private.save()
        return facts(private.certificate())

    with pytest.raises(Killed):
        run(tmp_path / "run", reads=True)
    monkeypatch.setattr("discreet.learn.dpsgd._making._ATTEMPTS", {})
    stated = run(tmp_path / "crash", reads=False)
    assert stated["steps_with_numbers_read"] >= 3
    assert stated["steps_with_writes"] >= 2


def test_a_run_that_reads_nothing_states_nothing_after_a_crash(tmp_path, monkeypatch):
    model = network()
    private, optimizer = wrap(model, plan(steps=12), checkpoint=tmp_path / "run", source=None)
    for x, y in private.batches(data(64)):
        private.backward(each(model(x), y))
        optimizer.step()
        if private.steps_taken == 3:
            break
    shutil.copytree(tmp_path / "run", tmp_path / "crash")
    monkeypatch.setattr("discreet.learn.dpsgd._making._ATTEMPTS", {})
    resumed, _ = wrap(network(), plan(steps=12), checkpoint=tmp_path / "crash", source=None)
    assert facts(resumed.certificate()) == {}
    resumed.detach()
    private.detach()
