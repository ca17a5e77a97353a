"""What changes a model or its optimizer outside of the plan's steps is stated."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

from discreet.learn import dpsgd
from discreet.learn.dpsgd._certificate import earlier_plans_of, problems
from discreet.learn.dpsgd._lineage import STATED
from discreet.learn.dpsgd._watches import bits
from learn.dpsgd.made_up_runs import CLASSES, FEATURES, data, each, network, plan

STEPS = 5


def loop(model, *, optimizer=None, before=None, after=None, from_step=0, **options):
    """A run that calls ``before(x, loss)`` and ``after(x, loss)`` around its later steps."""
    chosen = [one for one in model.parameters() if one.requires_grad]
    optimizer = optimizer or torch.optim.SGD(chosen, lr=0.1, momentum=0.9)
    made = {"isolation": "vouched", **{k: v for k, v in options.items() if k != "max_physical"}}
    private = dpsgd.make_private(model, optimizer, plan(steps=STEPS), **made)
    for x, y in private.batches(data(64), max_physical=options.get("max_physical")):
        later = private.steps_taken >= from_step
        losses = each(model(x), y)
        private.backward(losses)
        if before is not None and later:
            before(x, losses)
        optimizer.step()
        optimizer.zero_grad()
        if after is not None and later and private.stepped:
            after(x, losses)
    certificate = private.certificate()
    private.detach()
    return certificate


def writes(certificate):
    return certificate.run.get("steps_with_writes", 0)


@torch.no_grad()
def adds_a_row(model, x, _):
    model[0].weight.add_(x[0])


def adds_a_row_by_data(model, x, _):
    model[0].weight.data.add_(x[0])


def adds_to_one_number(model, x, _):
    model[0].weight.data[0, 0] += 1e-6 * float(x[0, 0] > 0) + 1e-6


def copies_another(model, x, _):
    other = network(seed=4)
    for one, another in zip(model.parameters(), other.parameters(), strict=True):
        one.data.copy_(another.data)
        one.data[0] += 1e-3 * x.detach().mean()


def exchanges_the_memory(model, x, _):
    model[2].bias.data = torch.full((CLASSES,), 0.25) + x[0, 0]


def clamps(model, *_):
    with torch.no_grad():
        for one in model.parameters():
            one.clamp_(-0.01, 0.01)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "write",
    [
        adds_a_row,
        adds_a_row_by_data,
        adds_to_one_number,
        copies_another,
        exchanges_the_memory,
        clamps,
    ],
)
def test_parameters_that_are_written_by_hand_are_stated(write, when):
    model = network()
    kept = []  # so that new memory is new

    def act(x, losses):
        write(model, x, losses)
        kept.append(model[2].bias.data)

    certificate = loop(model, from_step=2, **{when: act})
    assert writes(certificate) == 3
    assert "something else than the steps of the plan" in str(certificate)
    assert problems(certificate) == []
    assert type(certificate).from_json(certificate.to_json()) == certificate


def test_the_last_write_before_the_certificate_is_seen_and_a_later_one_too():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = dpsgd.make_private(model, optimizer, plan(), isolation="vouched")
    for batch in private.batches(data(64)):
        private.step(nn.CrossEntropyLoss(reduction="none"), *batch)
    assert writes(private.certificate()) == 0
    model[0].bias.data.zero_()
    assert writes(private.certificate()) == 1
    assert writes(private.certificate()) == 1, "counted once"
    private.detach()
    model[0].bias.data.fill_(1.0)
    assert writes(private.certificate()) == 1, "a step is counted once"


def test_a_write_after_the_plan_has_ended_is_seen():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = dpsgd.make_private(model, optimizer, plan(), isolation="vouched")
    for batch in private.batches(data(64)):
        private.step(each, *batch)
    private.detach()
    assert writes(private.certificate()) == 0
    model[0].bias.data.fill_(1.0)
    assert writes(private.certificate()) == 1


HOOKS = {
    "in place": lambda one: one.grad.add_(1.0),
    "by data": lambda one: one.grad.data.add_(1.0),
    "another": lambda one: setattr(one, "grad", one.grad + 1.0),
}


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("change", HOOKS.values(), ids=HOOKS)
def test_a_hook_that_changes_the_noisy_gradient_is_stated(change, early):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def hook(*_):
        for one in model.parameters():
            if one.grad is not None:
                change(one)

    handles = []

    def register(*_):
        if not handles:
            handles.append(optimizer.register_step_pre_hook(hook))

    # In the first batch it is too late to be put before the last look: that is stated, too.
    certificate = loop(model, optimizer=optimizer, **{"before" if early else "after": register})
    assert writes(certificate) == (STEPS if early else STEPS - 1)


class Centred(torch.optim.SGD):
    """An optimizer that changes its gradients."""

    def step(self, closure=None):
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    one.grad.data.sub_(1.0)
        return super().step(closure)


def test_an_optimizer_of_ones_own_that_changes_the_noisy_gradient_is_stated():
    model = network()
    assert writes(loop(model, optimizer=Centred(model.parameters(), lr=0.1))) == STEPS


def test_hooks_that_only_read_are_no_writes():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    optimizer.register_step_pre_hook(lambda *_: norms.append(1))
    private = dpsgd.make_private(model, optimizer, plan(), isolation="vouched")
    optimizer.register_step_pre_hook(lambda *_: norms.append(model[0].weight.grad.norm()))
    optimizer.register_step_post_hook(lambda *_: norms.append(model[0].weight.norm()))
    for batch in private.batches(data(64)):
        private.step(each, *batch)
    assert writes(private.certificate()) == 0
    private.detach()


def test_a_hook_after_the_step_that_writes_is_stated_in_any_order():
    for late in (True, False):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def clamp(*_, model=model):
            clamps(model)

        if not late:
            optimizer.register_step_post_hook(clamp)
        private = dpsgd.make_private(model, optimizer, plan(), isolation="vouched")
        if late:
            optimizer.register_step_post_hook(clamp)
        for batch in private.batches(data(64)):
            private.step(each, *batch)
        assert writes(private.certificate()) == 4
        private.detach()


def test_the_state_of_the_optimizer_is_watched():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def add(x, _):
        optimizer.state[model[0].weight]["momentum_buffer"].add_(x[0])

    assert writes(loop(model, optimizer=optimizer, after=add, from_step=2)) == 3

    def replace(x, _):
        optimizer.state[model[0].weight]["momentum_buffer"] = x[:5].clone()

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert writes(loop(model, optimizer=optimizer, after=replace, from_step=3)) == 2


def test_a_rate_that_is_a_tensor_of_the_loss_is_a_number_read():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def rate(_, losses):
        optimizer.param_groups[0]["lr"] = losses.detach().mean()

    certificate = loop(model, optimizer=optimizer, before=rate)
    assert certificate.run["steps_with_numbers_read"] == STEPS


class Bank(nn.Module):
    """Begins to write what it sees into a buffer in its fourth pass."""

    def __init__(self, write):
        super().__init__()
        self.register_buffer("seen", torch.zeros(FEATURES))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64), persistent=False)
        self.write, self.calls = write, 0
        self.inner = network()

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            self.calls += 1
            if self.calls > 3:
                self.write(self, x)
        return self.inner(x)


def in_place(bank, x):
    bank.seen.add_(x.detach().mean(0))


def by_data(bank, x):
    bank.seen.data.add_(x.detach().mean(0))


def a_view(bank, x):
    bank.seen[:2].data.add_(x.detach().mean())


def assigned(bank, x):
    bank.seen = bank.seen + x.detach().mean(0)


@pytest.mark.parametrize("write", [in_place, by_data, a_view, assigned])
def test_buffers_that_are_written_in_later_steps_are_stated(write):
    model = Bank(write)
    private_specs = {"isolation": "check", "inputs": dpsgd.TensorSpec((FEATURES,))}
    certificate = loop(model, **private_specs)
    assert writes(certificate) >= 2
    quiet = loop(Bank(lambda *_: None), **private_specs)
    assert "steps_with_writes" not in quiet.run


# --- the twins that write nothing ------------------------------------------------------------


def test_plain_training_with_schedules_averages_and_pieces_states_nothing():
    model = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(FEATURES, 5)),
        nn.Tanh(),
        nn.Dropout(0.1),
        nn.Linear(5, CLASSES),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    shadow = AveragedModel(copy.deepcopy(network()))
    average = dpsgd.ParameterAverage(model)
    own = [one.detach().clone() for one in model.parameters()]

    def after(*_):
        scheduler.step()
        average.update()
        for mean, one in zip(own, model.parameters(), strict=True):
            mean.lerp_(one.detach(), 0.1)
        kept = [one.detach().clone() for one in model.parameters()]
        with torch.no_grad():  # evaluated with the averages, and put back
            for one, mean in zip(model.parameters(), own, strict=True):
                one.copy_(mean)
            for one, before in zip(model.parameters(), kept, strict=True):
                one.copy_(before)

    certificate = loop(model, optimizer=optimizer, after=after, isolation="check")
    assert {"steps_with_writes", "steps_with_numbers_read"}.isdisjoint(certificate.run)
    assert shadow.n_averaged == 0
    clean = loop(network(), max_physical=3, optimizer=None)
    assert "steps_with_writes" not in clean.run


def test_our_own_average_in_place_of_the_parameters_is_no_write():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = dpsgd.ParameterAverage(model, decay=0.5)
    private = dpsgd.make_private(
        model, optimizer, plan(), isolation="vouched", after_step=[average.update]
    )
    for batch in private.batches(data(64)):
        private.step(each, *batch)
        average.exchange()
        average.exchange()
    average.exchange()
    assert writes(private.certificate()) == 0
    private.detach()
    model[0].weight.data.zero_()
    average.exchange()  # notes what was written before it
    assert writes(private.certificate()) == 1


@pytest.mark.parametrize("average", [None, 0.9])
def test_the_trainer_states_the_same(average, tmp_path):
    def fitted(**options):
        model = network()
        trainer = dpsgd.Trainer(
            model,
            plan(steps=3),
            loss=nn.CrossEntropyLoss(reduction="none"),
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.1),
            scheduler=options.get("scheduler"),
            average=average,
            isolation="vouched",
        )
        if options.get("clamp"):
            trainer.optimizer.register_step_post_hook(lambda *_: clamps(model))
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        return trainer.fit(data(64), validation=data(8), checkpoint=place, progress=False)

    honest = fitted(scheduler=lambda made: torch.optim.lr_scheduler.ExponentialLR(made, 0.9))
    assert "steps_with_writes" not in honest.certificate.run
    assert writes(fitted(clamp=True).certificate) == 3


def test_writes_survive_a_resumed_run_which_adds_none(tmp_path):
    def part(steps, write):
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        private = dpsgd.make_private(
            model, optimizer, plan(steps=6), isolation="vouched", checkpoint=tmp_path
        )
        for batch in private.batches(data(64)):
            private.step(each, *batch)
            if write:
                clamps(model)
            if private.steps_taken == steps:
                break
        certificate = private.certificate()
        private.detach()
        return writes(certificate)

    assert part(2, write=False) == 0
    assert part(4, write=True) == 2
    assert part(6, write=False) == 2


def test_a_model_that_is_changed_between_resuming_and_the_first_batch_is_stated(tmp_path):
    for first in (True, False):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        private = dpsgd.make_private(
            model, optimizer, plan(), isolation="vouched", checkpoint=tmp_path
        )
        clamps(model)  # before the first run: a start
        for batch in private.batches(data(64)):
            private.step(each, *batch)
            break
        assert writes(private.certificate()) == (0 if first else 1)
        private.detach()


@pytest.mark.parametrize(
    "kind", [torch.float64, torch.bfloat16, torch.bool, torch.uint8, torch.complex64, torch.int64]
)
def test_every_kind_of_tensor_has_bits(kind):
    one = torch.ones(3, 5).to(kind)
    before = bits(one)
    assert before == bits(one.clone())
    one.t()[1, 2] = 0
    assert bits(one) != before
    assert bits(one.t()) == bits(one.t().contiguous())
    assert isinstance(bits(one[0, 0]), int)
    assert isinstance(bits(torch.zeros(0, dtype=kind)), int)


@pytest.mark.slow
def test_a_training_loop_of_torch_with_averages_and_a_plateau_states_nothing():
    """The loop of pytorch/examples (mnist), with torch's moving average and a public plateau."""
    draw = torch.Generator().manual_seed(0)
    images = TensorDataset(
        torch.rand(64, 1, 8, 8, generator=draw), torch.randint(0, 3, (64,), generator=draw)
    )
    public = torch.rand(16, 1, 8, 8, generator=draw), torch.randint(0, 3, (16,), generator=draw)

    def run(*, on_training_loss=False, restarts=False):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()
        )
        model.extend([nn.Linear(36, 3), nn.LogSoftmax(1)])
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        private = dpsgd.make_private(model, optimizer, plan(steps=4))
        model.train()
        for x, target in private.batches(images):
            optimizer.zero_grad()
            loss = nn.functional.nll_loss(model(x), target)
            loss.backward()
            optimizer.step()
            average.update_parameters(model)
            model.eval()
            with torch.no_grad():
                judged = nn.functional.nll_loss(model(public[0]), public[1]).item()
            model.train()
            scheduler.step(loss.detach() if on_training_loss else judged)
            if restarts:
                with torch.no_grad():
                    for one, mean in zip(model.parameters(), average.parameters(), strict=True):
                        one.copy_(mean)
        certificate = private.certificate()
        private.detach()
        assert earlier_plans_of(train_once(average.module)) == [plan(steps=4)]
        return {key: value for key, value in certificate.run.items() if key in STATED}

    def train_once(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        private = dpsgd.make_private(model, optimizer, plan(), isolation="vouched")
        certificate = private.certificate()
        private.detach()
        return certificate

    assert run() == {}
    assert run(on_training_loss=True) == {"steps_with_numbers_read": 4}
    assert run(restarts=True).keys() == {"steps_with_writes"}
