"""Losses that mix examples are found, in a probe and in the graph of a loop's losses (S21)."""

import copy
import pickle
from collections import UserDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from discreet.errors import NotApplicable
from discreet.learn import dpsgd
from discreet.learn.dpsgd._losses import (
    LossWatch,
    require_losses_apart,
    require_total_apart,
)
from discreet.learn.dpsgd.isolation import TensorSpec, check_isolation
from learn.dpsgd.made_up_runs import batch_of, data, each, network, plan, wrap

CLASSES = TensorSpec((), torch.int64, values=4)
VECTOR = TensorSpec((6,))


def classifier():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 4))


def contrastive(output, targets):
    similar = functional.normalize(output, dim=1) @ functional.normalize(output, dim=1).T
    return functional.cross_entropy(similar, torch.arange(len(output)), reduction="none")


def focal_mean(output, targets):
    losses = functional.cross_entropy(output, targets, reduction="none")
    return (losses * losses.detach()).sum() / losses.detach().sum()


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0, 0.5])), "reduction"),
        (contrastive, "mixes"),
        (lambda output, targets: contrastive(output, targets).mean(), "reduction"),
        (focal_mean, "reduction"),
        (lambda output, targets: output.square().sum().sqrt(), "reduction"),
        (lambda output, targets: nn.CrossEntropyLoss()(output, targets.roll(1)), "reduction"),
    ],
    ids=["class weights", "contrastive", "contrastive mean", "focal", "norm", "rolled targets"],
)
def test_losses_that_mix_examples_are_found(loss, kind):
    report = check_isolation(classifier(), inputs=VECTOR, targets=CLASSES, loss=loss)
    assert [(one.module, one.kind) for one in report.culprits] == [("loss", kind)]


@pytest.mark.parametrize(
    ("loss", "reduction"),
    [
        (nn.CrossEntropyLoss(), "mean"),
        (nn.CrossEntropyLoss(reduction="sum"), "sum"),
        (nn.CrossEntropyLoss(reduction="none", weight=torch.tensor([1.0, 2.0, 3.0, 0.5])), None),
        (nn.CrossEntropyLoss(reduction="sum", weight=torch.tensor([1.0, 2.0, 3.0, 0.5])), "sum"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), "mean"),
        (lambda output, targets: functional.multi_margin_loss(output, targets), "mean"),
    ],
)
def test_losses_that_add_up_are_accepted_and_their_reduction_is_known(loss, reduction):
    report = check_isolation(classifier(), inputs=VECTOR, targets=CLASSES, loss=loss)
    assert report.culprits == ()
    assert report.reduction == reduction


def test_a_declared_reduction_is_checked():
    mean = nn.CrossEntropyLoss()
    given = {"inputs": VECTOR, "targets": CLASSES, "loss": mean}
    assert check_isolation(classifier(), **given, reduction="mean").ok
    report = check_isolation(classifier(), **given, reduction="sum")
    assert [(one.module, one.kind) for one in report.culprits] == [("loss", "reduction")]


def test_class_weights_are_found_without_a_declared_number_of_classes():
    weight = torch.ones(10)
    weight[7] = 3.0
    model = nn.Linear(6, 10)
    loss = nn.CrossEntropyLoss(weight=weight)
    labels = torch.zeros(1, dtype=torch.int64)
    report = check_isolation(model, inputs=VECTOR, targets=labels, loss=loss)
    assert [one.kind for one in report.culprits] == ["reduction"]


@pytest.mark.parametrize(
    "loss",
    [
        contrastive,
        lambda output, targets: output.sum(1) / output.sum().detach() * output.sum(),
        lambda output, targets: output.sum(1).sort().values,
        lambda output, targets: output.sum(1).roll(1),
        lambda output, targets: output.softmax(0).sum(1) + output[:, 0].log_softmax(0),
    ],
    ids=["contrastive", "normalised", "sorted", "rolled", "softmax"],
)
def test_losses_of_a_loop_that_mix_examples_are_found_in_their_graph(loss):
    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(4))
    output = classifier()(inputs)
    with pytest.raises(NotApplicable, match="other examples"):
        require_losses_apart(loss(output, torch.tensor([3, 1, 0, 2, 1])), output)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize(
    "loss",
    [
        lambda output, targets: functional.cross_entropy(output, targets, reduction="none"),
        lambda output, targets: output.square().sum(1) * float("inf"),
        lambda output, targets: output.T.reshape(4, -1).sum(0),
        lambda output, targets: torch.zeros(len(output), requires_grad=True),
    ],
    ids=["cross entropy", "infinite", "time first", "constant"],
)
def test_losses_that_stay_apart_pass_and_their_graph_is_kept(loss, rows):
    model = classifier()
    output = model(torch.randn(rows, 6, generator=torch.Generator().manual_seed(4)))
    losses = loss(output, torch.zeros(rows, dtype=torch.int64))
    require_losses_apart(losses, {"logits": output, "nothing": None})
    losses.sum().backward()
    assert all(p.grad is None or p.grad.shape == p.shape for p in model.parameters())


@pytest.mark.parametrize(
    "loss",
    [
        lambda output, targets: contrastive(output, targets).mean(),
        lambda output, targets: output.sum().square(),
        lambda output, targets: output.softmax(0).log().mean(),
        lambda output, targets: output.square().sum() / output.exp().sum(),
    ],
    ids=["contrastive", "square of a sum", "softmax", "quotient"],
)
@pytest.mark.parametrize("rows", [3, 5])
def test_totals_that_mix_examples_are_found_by_their_second_derivatives(loss, rows):
    inputs = torch.randn(rows, 6, generator=torch.Generator().manual_seed(4))
    output = classifier()(inputs)
    with pytest.raises(NotApplicable, match="other examples"):
        require_total_apart(loss(output, torch.arange(rows) % 4), output, rows=rows)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(reduction="sum"),
        lambda output, targets: (output.sum(1) ** 3).mean(),
        lambda output, targets: output.clamp(min=0).mean(),
        lambda output, targets: output.T.reshape(4, -1).sum(0).square().mean(),
    ],
    ids=["cross entropy", "sum", "cubes", "linear", "time first"],
)
@pytest.mark.parametrize("rows", [1, 2, 4, 5])
def test_totals_of_single_losses_pass(loss, rows):
    model = classifier()
    output = model(torch.randn(rows, 6, generator=torch.Generator().manual_seed(4)))
    total = loss(output, torch.arange(rows) % 4)
    require_total_apart(total, output, rows=rows)
    total.backward()
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())


def sequence_first(rows):
    """Outputs (time, examples, scores) with as many times as examples."""
    inputs = torch.randn(rows, rows, 6, generator=torch.Generator().manual_seed(4))
    return classifier()(inputs)


@pytest.mark.parametrize(
    ("hook", "found"),
    [
        (lambda g: g / g.norm(), True),
        (lambda g: g * (100.0 / g.norm()).clamp(max=1.0), True),
        (lambda g: g * len(g[g != 0]), True),
        (lambda g: g.clamp(-0.1, 0.1), False),
        (functional.normalize, False),
    ],
)
def test_hooks_between_model_and_loss_that_look_at_all_gradients_are_found(hook, found):
    model = network()
    private, optimizer = wrap(model, plan(steps=1), isolation="check")
    try:
        for x, y in private.batches(data(64)):
            output = private.model(x)
            output.register_hook(hook)
            if found:
                with pytest.raises(NotApplicable, match="depends on the model's output for other"):
                    private.backward(each(output, y))
                break
            private.backward(each(output, y))
            optimizer.step()
    finally:
        private.detach()


def test_where_the_examples_are_is_found_out():
    output = sequence_first(4)
    require_total_apart(output.sum((0, 2)).square().mean(), output, rows=4)
    output = sequence_first(4)
    require_losses_apart(output.sum((0, 2)).square(), output)
    output = sequence_first(4)
    with pytest.raises(NotApplicable):
        require_total_apart(output.sum().square(), output, rows=4)


BILINEAR = {
    "rolled": lambda one, other: (one * other.roll(1, 0)).mean(),
    "all pairs": lambda one, other: (one @ other.t()).mean(),
    "beside others": lambda one, other: one.square().mean() + (one * other.flip(0)).mean(),
    "the second alone is not linear": lambda one, other: (one.sum() * other.square()).mean(),
}


@pytest.mark.parametrize("loss", BILINEAR.values(), ids=BILINEAR)
@pytest.mark.parametrize("rows", [3, 5])
def test_totals_of_two_calls_that_mix_examples_are_found(loss, rows):
    """Neither output has second derivatives of its own that would show it."""
    x = torch.randn(rows, 6, generator=torch.Generator().manual_seed(4))
    model = classifier()
    outputs = [model(x), model(x.flip(1))]
    with pytest.raises(NotApplicable, match="other examples"):
        require_total_apart(loss(*outputs), outputs, rows=rows)


@pytest.mark.parametrize("rows", [1, 2, 4, 5])
@pytest.mark.parametrize(
    "loss",
    [
        lambda one, other: (one * other).mean(),
        lambda one, other: (one.sum(1) * other.exp().sum(1)).mean(),
        lambda one, other: (one - other).square().sum(1).add(1).sqrt().mean(),
        lambda one, other: one.square().mean() + other.square().mean(),
    ],
    ids=["products", "sums", "distances", "two losses"],
)
def test_totals_of_two_calls_example_by_example_pass(loss, rows):
    x = torch.randn(rows, 6, generator=torch.Generator().manual_seed(4))
    model = classifier()
    outputs = [model(x), model(x.flip(1))]
    total = loss(*outputs)
    require_total_apart(total, outputs, rows=rows)
    total.backward()
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())


def test_two_outputs_with_their_examples_on_different_axes():
    output = sequence_first(4)
    other = output.detach().transpose(0, 1).clone().requires_grad_()
    apart = (output.sum((0, 2)) * other.sum((1, 2))).mean()
    require_total_apart(apart, [output, other], rows=4)
    mixed = (output.sum((0, 2)) * other.sum((1, 2)).roll(1)).mean()
    with pytest.raises(NotApplicable, match="other examples"):
        require_total_apart(mixed, [output, other], rows=4)


def in_first_step(passes):
    """Take backward passes in the first step of a checked run."""
    private, optimizer = wrap(network(), plan(), isolation="check")
    batches = private.batches(data(64))
    try:
        passes(private, *next(batches))
        optimizer.step()
    finally:
        private.detach()
    return private


@pytest.mark.parametrize("loss", BILINEAR.values(), ids=BILINEAR)
def test_a_loop_with_two_calls_of_the_model(loss):
    with pytest.raises(NotApplicable, match="other examples"):
        in_first_step(lambda p, x, _: loss(p.model(x), p.model(x.flip(1))).backward())
    private = in_first_step(lambda p, x, _: (p.model(x) * p.model(x.flip(1))).mean().backward())
    assert private.certificate().run["isolation"] == "checked"


def several_totals(private, inputs, targets):
    functional.cross_entropy(private.model(inputs), targets).backward()
    scores = private.model(inputs)
    (scores @ scores.t()).mean().backward()


def several_losses(private, inputs, targets):
    private.backward(each(private.model(inputs), targets))
    scores = private.model(inputs)
    private.backward((scores @ scores.t()).mean(1))


@pytest.mark.parametrize("passes", [several_totals, several_losses])
def test_every_loss_of_a_batch_is_judged(passes):
    with pytest.raises(NotApplicable, match="other examples"):
        in_first_step(passes)


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x):
        hidden = self.first(x).tanh()
        return {"hidden": hidden, "scores": self.last(hidden)}


def watching(model):
    """A watch of the losses of a batch that was just handed out."""
    watch = LossWatch(model)
    watch.open(batch_of(3))
    return watch


def test_the_watch_judges_one_batch_and_differentiates_nothing_inside_the_model():
    torch.manual_seed(0)
    model = TwoOutputs()
    reached = []
    model.last.register_full_backward_hook(lambda *_: reached.append(1))
    watch = watching(model)
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(4))
    targets = torch.tensor([0, 1, 2])
    with torch.no_grad():
        model(x)
    model.eval()(x)
    out = model.train()(x[:1])
    watch.backward(
        functional.cross_entropy(out["scores"], targets[:1], reduction="none"), batch_of(1)
    )
    assert watch.close(batch_of(1)), "one example says nothing"
    out = model(x)
    losses = functional.cross_entropy(out["scores"], targets, reduction="none")
    watch.backward(losses + out["hidden"].square().sum(1), batch_of(3))
    with pytest.raises(NotApplicable, match="other examples"):
        watch.backward(losses * out["hidden"].sum(), batch_of(3))
    assert not watch.close(batch_of(3))
    watch.remove()
    assert reached == []
    assert len(model._forward_hooks) == 0
    losses.sum().backward()
    assert reached == [1]


@pytest.mark.parametrize("reduce", [lambda losses: losses, torch.mean], ids=["each", "mean"])
def test_the_watch_finds_a_loss_that_compares_examples(reduce):
    model = classifier()
    watch = watching(model)
    output = model(torch.randn(5, 6, generator=torch.Generator().manual_seed(4)))
    with pytest.raises(NotApplicable, match="other examples"):
        watch.backward(reduce(contrastive(output, None)), batch_of(5))


def test_the_watch_gives_up_where_calls_are_chained_and_is_inert_in_a_copy():
    model = nn.Sequential(nn.Linear(6, 6))
    watch = watching(model)
    copied = copy.deepcopy(model)
    (hook,) = pickle.loads(pickle.dumps(model))._forward_hooks.values()
    assert hook._watch is None
    x = torch.ones(3, 6)
    assert copied(x).requires_grad
    watch.backward(model(model(x)).sum(1), batch_of(3))
    assert not watch.close(batch_of(3))
    watch.remove()
    watch = watching(model)
    model(x)
    watch.open(batch_of(3))
    watch.backward(model(x).sum(1), batch_of(3))
    assert not watch.close(batch_of(3))
    watch.remove()


@pytest.mark.parametrize("width", [8, 16, 24, 7])
def test_features_are_not_taken_for_examples(width):
    """Also where the rows divide their number: a Gram matrix of examples adds up columns."""
    model = nn.Linear(6, width)
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(4))
    watch = watching(model)
    output = model(x)
    watch.backward(output.square().mean(), batch_of(8))
    with pytest.raises(NotApplicable, match="other examples"):
        watch.backward((output @ output.t()).mean(), batch_of(8))
    watch.remove()


@pytest.mark.parametrize(
    ("model", "batch_axis", "found"),
    [
        (nn.Linear(6, 16), None, True),
        (nn.Linear(6, 16), 0, True),
        (nn.Linear(6, 16), 1, False),
        (nn.LSTM(6, 4), None, False),
        (nn.LSTM(6, 4, batch_first=True), None, True),
    ],
)
def test_in_a_run_the_first_axis_is_that_of_the_examples(model, batch_axis, found):
    """Unless it was told of another one, or layers take the time first."""
    inputs = torch.zeros(5, 6) if isinstance(model, nn.Linear) else torch.zeros(5, 5, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = dpsgd.make_private(
        model, optimizer, plan(), isolation="vouched", batch_axis=batch_axis
    )
    private._record.isolation = "checked"  # what is probed before is not what is tested here
    private._prepare(inputs)
    (watch,) = [one for one in private._watches if isinstance(one, LossWatch)]
    assert watch._examples_first is found
    private.detach()


@dataclass
class Output:
    scores: torch.Tensor
    name: str = "output"


@dataclass(frozen=True, slots=True)
class FrozenOutput:
    scores: torch.Tensor


class DictOutput(dict):
    """As in libraries whose outputs have both keys and attributes."""

    @property
    def scores(self):
        return self["scores"]


Pair = namedtuple("Pair", ["scores", "rest"])


class InUserDict(UserDict):
    scores = DictOutput.scores


class Holding(nn.Module):
    """Returns its scores inside of an object."""

    def __init__(self, hold):
        super().__init__()
        self.inner, self.hold = network(), hold

    def forward(self, x):
        return self.hold(self.inner(x))


HOLDERS = {
    "dataclass": Output,
    "frozen dataclass with slots": FrozenOutput,
    "subclass of dict": lambda scores: DictOutput(scores=scores),
    "subclass of UserDict": lambda scores: InUserDict(scores=scores),
    "named tuple": lambda scores: Pair(scores, None),
    "attributes": lambda scores: SimpleNamespace(scores=scores),
    "nested": lambda scores: SimpleNamespace(inner=[Output(scores)], scores=scores),
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
@pytest.mark.parametrize("reduce", [lambda losses: losses, torch.mean], ids=["each", "mean"])
def test_a_loss_that_compares_examples_is_found_whatever_the_model_returns(hold, reduce):
    """A criterion of single examples passes with the same output."""
    x, y = data(5)[:]
    model = Holding(hold)
    watch = watching(model)
    scores = model(x).scores
    watch.backward(reduce(each(scores, y)), batch_of(5))
    with pytest.raises(NotApplicable, match="other examples"):
        watch.backward(reduce(contrastive(scores, y)), batch_of(5))


@pytest.mark.parametrize("reduce", [False, True], ids=["each", "mean"])
def test_a_run_with_a_dataclass_is_judged(reduce):
    private, _ = wrap(Holding(Output), plan(), isolation="check")
    batches = private.batches(data(64))
    losses = contrastive(private.model(next(batches)[0]).scores, None)
    with pytest.raises(NotApplicable, match="other examples"):
        losses.mean().backward() if reduce else private.backward(losses)
    private.detach()


def test_a_model_keeps_the_object_that_it_returned():
    """The watch hands on a copy: what the model itself holds is as it was."""
    kept = []
    model = Holding(lambda scores: kept.append(Output(scores)) or kept[-1])
    watch = watching(model)
    output = model(torch.ones(3, 6))
    assert output is not kept[0]
    assert output.name == "output"
    assert output.scores.grad_fn.next_functions[0][0] is kept[0].scores.grad_fn
    watch.remove()


@pytest.mark.parametrize("isolation", ["vouched", "check"])
def test_what_leaves_the_model_unseen_is_refused_unless_vouched_for(isolation):
    """An activation that a hook took aside is not among the outputs."""
    model, aside = network(), []
    model[0].register_forward_hook(lambda _, __, output: aside.append(output))
    private, optimizer = wrap(model, plan(steps=1), isolation=isolation)
    batches = private.batches(data(64))
    x, y = next(batches)
    losses = each(model(x), y) + aside[-1].square().sum(1)
    if isolation == "vouched":
        private.backward(losses)
        optimizer.step()
    else:
        with pytest.raises(NotApplicable, match="cannot be seen"):
            private.backward(losses)
    private.detach()
