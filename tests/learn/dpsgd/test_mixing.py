"""Whether a loop that mixes the examples of a batch outside of the model is found out."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from discreet.errors import InvalidValue, PlanViolation
from discreet.learn.dpsgd import _private
from discreet.learn.dpsgd._lineage import STATED
from learn.dpsgd.made_up_runs import (
    CLASSES,
    FEATURES,
    data,
    each,
    network,
    plan,
    silenced,
    wrap,
)

# --- what mixes ----------------------------------------------------------------------------


def mixup(model, x, y):
    other = torch.arange(len(x) - 1, -1, -1)
    return each(model(0.6 * x + 0.4 * x[other]), y)


def mixup_of_targets(model, x, y):
    hot = functional.one_hot(y, CLASSES).float()
    hot = 0.6 * hot + 0.4 * hot.flip(0)
    return -(hot * model(x).log_softmax(1)).sum(1)


def centred(model, x, y):
    return each(model(x - x.mean(0)), y)


def centred_in_place(model, x, y):
    view = x.view(len(x), -1)
    x -= x.mean()
    return each(model(view), y)


def largest_of_all(model, x, y):
    return each(model(x / x.abs().amax((0, 1), keepdim=True)), y)


def softmax_over_the_batch(model, x, y):
    return each(model(x), y) * functional.softmax(x[:, 0], 0)


def class_weights(model, x, y):
    weight = len(y) / torch.bincount(y, minlength=CLASSES).clamp(min=1)
    return functional.cross_entropy(model(x), y, weight=weight, reduction="none")


def class_counts(model, x, y):
    counts = torch.zeros(CLASSES).scatter_add_(0, y, torch.ones(len(y)))
    return each(model(x), y) * len(y) / counts.clamp(min=1)[y]


def share_of_the_total(model, x, y):
    losses = each(model(x), y)
    return losses / losses.detach().sum()


def below_the_median(model, x, y):
    losses = each(model(x), y)
    return losses * (losses.detach() <= losses.detach().median())


def larger_half(model, x, y):
    losses = each(model(x), y)
    chosen = losses.detach().topk(len(x) // 2).indices
    return losses * torch.zeros_like(losses).index_fill_(0, chosen, 1.0)


def rows_written_elsewhere(model, x, y):
    changed = x.clone()
    changed[1:] = x[:-1]
    return each(model(changed), y)


def a_row_for_all(model, x, y):
    return each(model(x + x[0]), y)


def columns_by_labels(model, x, y):
    return each(model(x[:, y[:1]] + x), y)


def rows_as_columns(model, x, y):
    return each(model(x * (x @ x.T).sum(1, keepdim=True)), y)


def distances_across(model, x, y):
    """A constant with one axis more makes features of the examples."""
    far = functional.pairwise_distance(torch.zeros(len(x), len(x)), x[:, 0])
    return each(model(x * far.sin()[:, None].sign()), y)


def angles_across(model, x, y):
    near = functional.cosine_similarity(torch.ones(len(x), len(x), x.shape[1]), x, dim=1)
    return each(model(x), y) * near[:, 0].detach()


def data_replaced(model, x, y):
    x.data = x.roll(1, 0)
    return each(model(x), y)


MIXING = [
    mixup,
    mixup_of_targets,
    centred,
    centred_in_place,
    largest_of_all,
    softmax_over_the_batch,
    class_weights,
    class_counts,
    share_of_the_total,
    below_the_median,
    larger_half,
    rows_written_elsewhere,
    a_row_for_all,
    columns_by_labels,
    rows_as_columns,
    distances_across,
    angles_across,
    data_replaced,
]


@pytest.fixture(autouse=True)
def _no_probe_of_the_model(monkeypatch):
    """The networks here are known to keep examples apart; what is tested is around them."""
    monkeypatch.setattr(_private, "probe", lambda *_, **__: frozenset())


def run_of(losses_of, dataset=None, *, isolation="check", total=False, model=None, **changes):
    model = model or network()
    private, optimizer = wrap(model, plan(**{"steps": 2, **changes}), isolation=isolation)
    for x, y in silenced(private, dataset or data(64)):
        losses = losses_of(model, x, y)
        if total:
            losses.backward()
        else:
            private.backward(losses)
        optimizer.step()
        optimizer.zero_grad()
    return private


def statements(private):
    """What the certificate says of the run beside what every run says."""
    run = private.certificate().run
    return {name: run[name] for name in STATED if name in run}


@pytest.mark.parametrize("losses_of", MIXING)
def test_examples_that_are_mixed_outside_of_the_model_are_refused(losses_of):
    with pytest.raises(PlanViolation, match="mixed, by"):
        run_of(losses_of)


def sum_of(losses_of, rows, clip_norm):
    """The clipped sum of one step over all of some records, vouched for and without noise."""
    torch.manual_seed(0)
    start = nn.Linear(FEATURES, CLASSES)
    private = run_of(
        losses_of,
        TensorDataset(*rows),
        isolation="vouched",
        model=copy.deepcopy(start),
        sampler="full",
        examples=len(rows[0]),
        expected_batch_size=len(rows[0]),
        steps=1,
        clip_norm=clip_norm,
    )
    pairs = zip(start.parameters(), private.model.parameters(), strict=True)
    return len(rows[0]) * torch.cat([(a - b).detach().flatten() for a, b in pairs])


def moves_by_one(losses_of):
    """By how many clip norms one record moves the sum, for several records and data sets."""
    for clip_norm, size in itertools.product((0.02, 0.2, 4.0), (15, 16)):
        for odd in (None, -9.0, 9.0):
            inputs, labels = data(size).tensors
            if odd is not None:
                inputs, labels = torch.ones_like(inputs), torch.zeros_like(labels)
                inputs[-1], labels[-1] = odd, 1
            whole = sum_of(losses_of, (inputs, labels), clip_norm)
            for left in range(size) if odd is None else (0, size - 1):
                rest = [torch.cat([one[:left], one[left + 1 :]]) for one in (inputs, labels)]
                yield float((whole - sum_of(losses_of, rest, clip_norm)).norm() / clip_norm)


@pytest.mark.parametrize("losses_of", MIXING)
def test_what_is_refused_would_let_one_record_move_the_sum_by_more_than_a_clip_norm(losses_of):
    assert any(moved > 1.05 for moved in moves_by_one(losses_of))


def test_a_loop_that_keeps_examples_apart_moves_the_sum_by_at_most_one_clip_norm():
    assert max(moves_by_one(masked)) <= 1.0001


@pytest.mark.parametrize(
    "losses_of",
    [
        lambda model, x, y: nn.functional.cross_entropy(model(x), y, x.mean(0)[:CLASSES].exp()),
        lambda model, x, y: functional.mse_loss(model(x), x[:, :CLASSES] - x.mean()),
        lambda model, x, y: (model(x) * (x.mean(0) + x)[:, :CLASSES]).sum(),
        lambda model, x, y: each(model(x), y).mean() * x.double().mean() * 2,
    ],
)
def test_a_total_of_what_was_mixed_is_refused(losses_of):
    with pytest.raises((PlanViolation, InvalidValue)):
        run_of(losses_of, total=True)


# --- what does not -------------------------------------------------------------------------


def prepared(model, x, y):
    x = x.to("cpu").float() / 255
    x = (x - torch.zeros(FEATURES)) / torch.ones(FEATURES)
    return each(model(x.view(len(x), -1).flatten(1)), y)


def normalised_by_itself(model, x, y):
    spread = x.std(1, keepdim=True) + x.norm(dim=1)[:, None]
    return each(model((x - x.mean(1, keepdim=True)) / spread), y)


def turned_at_random(model, x, y):
    picture = x.view(-1, 2, 3)
    turned = torch.where(torch.rand(len(x), 1, 1) < 0.5, picture.flip(-1), picture)
    turned = functional.pad(turned, (1, 1))
    at = int(torch.randint(0, 3, ()))
    return each(model(turned[..., at : at + 3].reshape(len(x), -1)), y)


def noisy(model, x, y):
    return each(model(x + 0.1 * torch.randn_like(x) + torch.empty_like(x).normal_()), y)


def one_hot(model, x, y):
    hot = functional.one_hot(y, CLASSES).float() * 0.9 + 0.1 / CLASSES
    losses = functional.mse_loss(model(x), hot, reduction="none")
    return losses.view(len(x), -1).mean(1)


def one_hot_by_hand(model, x, y):
    hot = torch.zeros(len(x), CLASSES).scatter_(1, y[:, None], 1.0)
    hot[torch.arange(len(x)), y] = 1.0
    return functional.binary_cross_entropy_with_logits(model(x), hot, reduction="none").sum(-1)


def focal(model, x, y):
    scores = model(x).log_softmax(dim=-1).gather(1, y.unsqueeze(1)).squeeze(1)
    weights = torch.tensor([0.5, 1.0, 2.0])
    return -weights[y] * (1 - scores.exp()) ** 2 * scores


def masked(model, x, y):
    x = x.clone()
    x[x < 0] = 0.0
    x[:, 0] = x[:, 1]
    known = (y >= 0) & (x[:, 0] < 100)
    losses = each(model(x), y.masked_fill(~known, -100))
    return torch.where(known, losses, torch.zeros(())) * known


def joined(model, x, y):
    return each(model(torch.cat([x[:, :3], x[:, 3:] * 2], dim=1)), y)


def one_by_one(model, x, y):
    x = torch.stack([row - row.median() for row in x])
    scores = model(x)
    return torch.stack([each(scores[i : i + 1], y[i : i + 1])[0] for i in range(len(x))])


def by_token(model, x, y):
    scores = model(x)[:, None].expand(-1, 4, -1)
    targets = y[:, None].repeat(1, 4)
    losses = functional.cross_entropy(
        scores.reshape(-1, CLASSES), targets.reshape(-1), reduction="none"
    )
    return losses.view(len(x), -1).mean(1)


def distilled(model, x, y):
    teacher = network(seed=1).eval()
    with torch.no_grad():
        soft = teacher(x).softmax(1)
    scores = functional.log_softmax(model(x), dim=1)
    return functional.kl_div(scores, soft, reduction="none").sum(1) + 0 * each(scores, y)


def margins(model, x, y):
    scores = model(x)
    right = scores[torch.arange(len(x)), y]
    wrong = scores.masked_fill(functional.one_hot(y, CLASSES).bool(), -1e9).amax(1)
    return (1 + wrong - right).clamp(min=0)


def below_half_precision(model, x, y):
    scores = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return each(scores, y)


def sequence_penalty(model, x, y):
    return each(model(x), y) + 1 - functional.cosine_similarity(x, x * 2)


HONEST = [
    prepared,
    normalised_by_itself,
    turned_at_random,
    noisy,
    one_hot,
    one_hot_by_hand,
    focal,
    masked,
    joined,
    one_by_one,
    by_token,
    distilled,
    margins,
    below_half_precision,
    sequence_penalty,
]


@pytest.mark.parametrize("losses_of", HONEST)
def test_honest_loops_are_not_refused(losses_of):
    stated = statements(run_of(losses_of))
    assert "steps_not_followed" not in stated


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        lambda scores, y: functional.cross_entropy(scores, y) + scores.square().mean(),
        lambda scores, y: each(scores, y).mean(),
        lambda scores, y: -scores.log_softmax(1).gather(1, y.view(-1, 1)).mean(),
        lambda scores, y: functional.mse_loss(scores, functional.one_hot(y, CLASSES).float()),
    ],
)
def test_honest_totals_are_not_refused(loss):
    assert statements(run_of(lambda model, x, y: loss(model(x), y), total=True)) == {}


def test_a_mean_that_is_read_for_a_log_is_counted_and_not_refused():
    def logged(model, x, y):
        losses = each(model(x), y)
        losses.mean().item()
        x.mean(0).tolist()
        return losses

    assert statements(run_of(logged)) == {"steps_with_numbers_read": 2}


def test_losses_that_cannot_be_followed_are_stated():
    def mapped(model, x, y):
        return torch.vmap(lambda scores, hot: -(scores.log_softmax(0) * hot).sum())(
            model(x), functional.one_hot(y, CLASSES)
        )

    private = run_of(mapped)
    assert statements(private) == {"steps_not_followed": 2}
    page = private.certificate().publish(title="mapped").to_json()
    assert any("*not checked*" in one["text"] for one in page["warnings"])
    assert statements(run_of(one_hot)) == {}


def test_what_is_vouched_for_is_not_refused():
    assert run_of(centred, isolation="vouched").steps_taken == 2


def test_a_loss_in_one_call_is_looked_at_too():
    private, _ = wrap(network(), plan(steps=1), isolation="check")

    def share(scores, y):
        losses = each(scores, y)
        return losses / losses.detach().sum()

    batches = private.batches(data(64))
    x, y = next(batches)
    with pytest.raises(PlanViolation, match="mixed, by"):
        private.step(share, x, y)
