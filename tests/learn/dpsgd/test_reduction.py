import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from discreet.errors import InvalidValue, PlanViolation
from discreet.learn import dpsgd
from discreet.learn.dpsgd._lineage import _LoopMode
from discreet.learn.dpsgd._losses import check_reduction
from learn.dpsgd.made_up_runs import data, each, network, plan, silenced, wrap

ROWS = 8


def outputs():
    return torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()


def classes():
    return torch.arange(ROWS) % 3


@pytest.mark.parametrize(
    ("make", "reduction"),
    [
        (lambda o: F.cross_entropy(o, classes()), "mean"),
        (lambda o: F.cross_entropy(o, classes(), reduction="sum"), "sum"),
        (lambda o: F.cross_entropy(o, classes(), reduction="none").mean(), "mean"),
        (lambda o: F.cross_entropy(o, classes(), reduction="none").sum(), "sum"),
        (lambda o: F.cross_entropy(o, classes(), reduction="none").sum() / ROWS, "mean"),
        (lambda o: -F.log_softmax(o, 1)[:, 0].mean(), "mean"),
        (lambda o: F.cross_entropy(o, classes()) / 1, "mean"),
        (lambda o: F.mse_loss(o, torch.zeros(ROWS, 3)), "mean"),
        (lambda o: F.mse_loss(o, torch.zeros(ROWS, 3), reduction="sum"), "sum"),
        (lambda o: F.huber_loss(o, torch.zeros(ROWS, 3)), "mean"),
        (lambda o: F.binary_cross_entropy_with_logits(o, torch.ones(ROWS, 3)), "mean"),
        (lambda o: F.cross_entropy(o, classes()) + 0.5 * F.mse_loss(o, o.detach() * 2), "mean"),
        (lambda o: F.cross_entropy(o, classes(), weight=torch.ones(3), reduction="sum"), "sum"),
    ],
)
def test_reductions_are_read_off_the_graph(make, reduction):
    other = {"mean": "sum", "sum": "mean"}[reduction]
    check_reduction(make(outputs()), declared=reduction, rows=ROWS)
    with pytest.raises(InvalidValue, match=f"reduction = '{other}'"):
        check_reduction(make(outputs()), declared=other, rows=ROWS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda o: F.cross_entropy(o, classes(), weight=torch.tensor([1.0, 2, 3])), "weighted"),
        (lambda o: F.cross_entropy(o, classes().where(classes() > 0, -100)), "ignore_index"),
        (lambda o: (o.sum(1) * (classes() > 0)).sum() / (classes() > 0).sum(), "divisor"),
        (lambda o: o.sum() / o.detach().sum(), "divisor"),
        (lambda o: o.sum() / o.mean(), "divisor"),
        (lambda o: o.mean() * 65536.0, "scaling"),
        (lambda o: o.mean() / 4, "divisor"),
        (lambda o: o.mean() / torch.ones(()), "divisor"),
        (lambda o: o.mean() + torch.ones(()), "no recorded output|term"),
        (lambda o: o.sum(1), "scalar"),
        (lambda o: torch.ones(()), "constant"),
    ],
)
def test_losses_that_mix_or_hide_examples_are_refused(make, message):
    with pytest.raises(InvalidValue, match=message):
        check_reduction(make(outputs()), declared="mean", rows=ROWS)


def test_mean_weighted_by_classes_does_mix():
    """The reason for the refusal: another example's class changes this example's gradient."""
    weight = torch.tensor([1.0, 20.0, 1.0])
    gradients = []
    for second in (0, 1):
        scores = torch.zeros(2, 3, requires_grad=True)
        F.cross_entropy(scores, torch.tensor([0, second]), weight=weight).backward()
        gradients.append(scores.grad[0].clone())
    assert not torch.allclose(*gradients, rtol=0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda o: torch.logsumexp(o, (0, 1)), "does not show"),
        (lambda o: o.sum(1).max(), "does not show"),
        (lambda o: o.sum(1).topk(2).values.mean(), "not equally many"),
        (lambda o: o.sum(1).topk(2).values.sum(), "not equally many"),
        (
            lambda o: F.cross_entropy(o, classes(), reduction="none")[classes() > 0].mean(),
            "numbers",
        ),
        (lambda o: F.cross_entropy(o[classes() > 0], classes()[classes() > 0]), "numbers"),
        # Masks that happen to select everything today.
        (lambda o: F.cross_entropy(o, classes(), reduction="none")[classes() >= 0].mean(), "mask"),
        (lambda o: F.cross_entropy(o[classes() >= 0], classes()), "mask"),
        (lambda o: o.sum(1).masked_select(classes() >= 0).mean(), "mask"),
        (
            lambda o: F.cross_entropy(o, classes(), weight=torch.ones(3), label_smoothing=0.1),
            "weighted",
        ),
        (lambda o: F.mse_loss(o[1:], torch.zeros(ROWS - 1, 3)), "not equally many"),
        (lambda o: o.mean() + o.mean() * o.square().mean(), "factor"),
        (lambda o: o.mean() + o.sum() * (1 / (classes() > 0).sum()), "factor"),
    ],
)
@pytest.mark.parametrize("declared", ["mean", "sum"])
def test_what_hides_or_selects_examples_is_refused(make, message, declared):
    with pytest.raises(InvalidValue, match=message):
        check_reduction(make(outputs()), declared=declared, rows=ROWS)


def test_label_smoothing_without_weights_is_a_mean():
    smooth = F.cross_entropy(outputs(), classes(), label_smoothing=0.1)
    check_reduction(smooth, declared="mean", rows=ROWS)
    with pytest.raises(InvalidValue, match="reduction = 'sum'"):
        check_reduction(smooth, declared="sum", rows=ROWS)


def test_a_backward_pass_that_cannot_be_looked_at_is_refused():
    private, optimizer = wrapped()
    for inputs, targets in private.batches(data(64)):
        torch.autograd.backward(each(private.model(inputs), targets).mean())
        with pytest.raises(PlanViolation, match=r"not loss\.backward"):
            optimizer.step()
        break
    private.detach()


def test_later_losses_are_looked_at_too():
    """The first batches are whole; then one has a target that is ignored."""
    private, optimizer = wrapped()
    for inputs, targets in private.batches(data(64)):
        if private.steps_taken == 2:
            targets[0] = -100
            with pytest.raises(InvalidValue, match="ignore_index"):
                F.cross_entropy(private.model(inputs), targets).backward()
            break
        F.cross_entropy(private.model(inputs), targets).backward()
        optimizer.step()
    assert private.steps_taken == 3
    private.detach()


def wrapped(**options):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return dpsgd.make_private(model, optimizer, plan(), isolation="vouched", **options), optimizer


@pytest.mark.parametrize(
    ("loss", "declared"),
    [
        (lambda o, t: each(o, t).sum(), "mean"),
        (lambda o, t: each(o, t).mean(), "sum"),
        (lambda o, t: F.cross_entropy(o, t, weight=torch.tensor([1.0, 2.0, 3.0])), "mean"),
    ],
)
def test_the_loop_looks_at_the_first_loss(loss, declared):
    private, _ = wrapped(reduction=declared)
    before = [p.detach().clone() for p in private.model.parameters()]
    for inputs, targets in private.batches(data(64)):
        with pytest.raises(InvalidValue):
            loss(private.model(inputs), targets).backward()
        break
    after = private.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert private.steps_taken == 1
    private.detach()


def test_the_watch_is_gone_after_leaving():
    private, optimizer = wrapped()
    for step, (inputs, targets) in enumerate(private.batches(data(64), max_physical=6)):
        each(private.model(inputs), targets).mean().backward()
        optimizer.step()
        if step > 20:
            break
    assert torch.overrides._get_current_function_mode() is None
    private.detach()
    private, _ = wrapped()
    for _ in private.batches(data(64)):
        break
    assert torch.overrides._get_current_function_mode() is None
    private.detach()


def test_the_watch_does_not_disturb_other_modes():
    seen = []
    model = nn.Linear(2, 1)
    mode = _LoopMode(seen.append, lambda *_: None)
    mode.start()
    with torch.device("meta"):
        mode.stop()
        assert torch.zeros(2).device.type == "meta"
    assert torch.zeros(2).device.type == "cpu"
    model(torch.ones(3, 2)).sum().backward()
    assert seen == []
    assert torch.overrides._get_current_function_mode() is None


def test_only_losses_of_the_model_are_looked_at():
    seen = []
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    modes = [_LoopMode(heard, lambda *_: None) for heard in (seen.append, lambda _: None)]
    for mode, one in zip(modes, (model, other), strict=True):
        mode.start()
        one.register_forward_hook(lambda _, __, out, mode=mode: mode.nodes.append(out.grad_fn))
    other(torch.ones(3, 2)).sum().backward()
    assert seen == []
    loss = (model(torch.ones(3, 2)) * 2).relu().sum()
    loss.backward()
    assert len(seen) == 1
    assert seen[0] is loss
    for mode in modes:
        mode.stop()
    assert torch.overrides._get_current_function_mode() is None


def test_two_plans_side_by_side():
    """As for the two networks of a GAN, or two models on two data sets."""
    runs = [wrapped(reduction=reduction) for reduction in ("mean", "sum")]
    loops = [private.batches(data(64)) for private, _ in runs]
    for batches in zip(*loops, strict=True):
        for (private, optimizer), (inputs, targets), name in zip(
            runs, batches, ("mean", "sum"), strict=True
        ):
            getattr(each(private.model(inputs), targets), name)().backward()
            optimizer.step()
    assert [private.steps_taken for private, _ in runs] == [4, 4]
    for private, _ in runs:
        private.detach()
    assert torch.overrides._get_current_function_mode() is None


class Outer(nn.Module):
    """No plain stack of layers."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, inputs):
        return self.inner(inputs).clone()


class Unruly(nn.Module):
    """No rule covers what it does with its parameter, so it runs example by example."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 3) / 6)

    def forward(self, inputs):
        return torch.einsum("bi,ij->bj", inputs, self.weight.exp().cumsum(0))


def weighted(model, inputs, targets):
    F.cross_entropy(model(inputs), targets, weight=torch.tensor([1.0, 2.0, 3.0])).backward()


def contrastive(model, inputs, _):
    scores = model(inputs)
    (scores @ scores.t()).mean().backward()


def unheard_of(model, inputs, targets):
    torch.autograd.backward(F.cross_entropy(model(inputs), targets))


def steps_by_form(make, *, good):
    """A run, and the first batch after so many good steps."""
    model = make()
    private, optimizer = wrap(model, plan(steps=6), isolation="check")
    batches = private.batches(data(64))
    for _ in range(good):
        inputs, targets = next(batches)
        private.backward(each(model(inputs), targets))
        optimizer.step()
    return private, optimizer, batches


@pytest.mark.parametrize("make", [network, Outer, Unruly])
@pytest.mark.parametrize("other", [weighted, contrastive, unheard_of])
@pytest.mark.parametrize("good", [0, 3, 4])
def test_one_form_of_backward_for_each_batch(make, other, good):
    """In the first step and in later ones."""
    private, optimizer, batches = steps_by_form(make, good=good)
    model = private.model
    inputs, targets = next(batches)
    assert isinstance(torch.overrides._get_current_function_mode(), _LoopMode)
    private.backward(each(model(inputs), targets))
    with pytest.raises(PlanViolation, match="one form of backward"):
        other(model, inputs, targets)
    optimizer.step()  # what was refused was not recorded
    assert ("torch.func" in private._gradients.report.values()) == (make is Unruly)
    assert private.steps_taken == good + 1
    inputs, targets = next(batches)
    F.cross_entropy(model(inputs), targets).backward()
    with pytest.raises(PlanViolation, match="one form of backward"):
        private.backward(each(model(inputs), targets))
    with pytest.raises(PlanViolation, match="one form of backward"):
        private.step(nn.CrossEntropyLoss(reduction="none"), inputs, targets)
    optimizer.step()
    private.detach()


def test_a_refused_form_leaves_no_trace_and_losses_may_come_in_several_calls():
    def trained(passes):
        model = network()
        private, optimizer = wrap(model, plan(clip_norm=0.1))
        for inputs, targets in silenced(private, data(64)):
            passes(private, inputs, targets)
            optimizer.step()
        private.detach()
        return list(model.parameters())

    def at_once(private, inputs, targets):
        private.backward(each(private.model(inputs), targets) + private.model(inputs)[:, 0])

    def in_turn(private, inputs, targets):
        private.backward(each(private.model(inputs), targets))
        with pytest.raises(PlanViolation, match="one form"):
            contrastive(private.model, inputs, targets)
        private.backward(private.model(inputs)[:, 0])

    def totals(private, inputs, targets):
        F.cross_entropy(private.model(inputs), targets).backward()
        private.model(inputs)[:, 0].mean().backward()

    expected = trained(at_once)
    for found in (trained(in_turn), trained(totals)):
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize("good", [1, 3, 4])
def test_a_step_in_one_call_ends_its_batch(good):
    private, _, batches = steps_by_form(network, good=good)
    model = private.model
    inputs, targets = next(batches)
    kept = model(inputs)
    private.step(nn.CrossEntropyLoss(reduction="none"), inputs, targets)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(InvalidValue, match="earlier batch"):
        F.cross_entropy(kept, targets).backward()
    assert all(map(torch.equal, before, model.parameters()))
    private.detach()
