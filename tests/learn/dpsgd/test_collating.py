"""Batches whose collate mixes examples: one record must not change what is made of the others."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from discreet.errors import NotApplicable
from discreet.learn.dpsgd import PlanViolation, TensorSpec, Trainer
from discreet.learn.dpsgd._collating import require_rows_apart
from discreet.ledger import Ledger
from learn.dpsgd.made_up_runs import plan, wrap
from learn.dpsgd.test_padding import (
    Masked,
    Names,
    by_loop,
    by_trainer,
    each,
    padded,
    sorted_with_lengths,
    to_a_multiple,
)

ROWS = torch.randn(64, 4, generator=torch.Generator().manual_seed(2))


class Vectors(Dataset):
    def __len__(self):
        return len(ROWS)

    def __getitem__(self, at):
        return ROWS[at], at % 2


def stacked(items):
    rows, labels = zip(*items, strict=True)
    return torch.stack(rows), torch.tensor(labels)


def centred(items):
    rows, labels = stacked(items)
    return rows - rows.mean(0), labels


def ranked(items):
    rows, labels = stacked(items)
    return rows.argsort(0).argsort(0).float(), labels


def blended(items):
    rows, labels = stacked(items)
    share = np.random.beta(0.4, 0.4)  # noqa: NPY002
    return share * rows + (1 - share) * rows[torch.randperm(len(rows))], labels


def sometimes_blended(items):
    rows, labels = stacked(items)
    return (0.5 * rows + 0.5 * rows.flip(0) if random.random() < 0.4 else rows), labels


def smoothed_labels(items):
    rows, labels = stacked(items)
    return torch.cat([rows, labels.float().mean().expand(len(rows), 1)], 1)[:, 1:], labels


def with_their_number(items):
    rows, labels = stacked(items)
    return rows * len(rows), labels


def with_times_first(items):
    """The rows are on the second axis; each is divided by the largest of the batch."""
    rows, labels = stacked(items)
    return (rows / rows.max()).T, labels


MIXED = [centred, ranked, blended, sometimes_blended, smoothed_labels, with_their_number]


@pytest.mark.parametrize("collate", [*MIXED, with_times_first])
def test_a_collate_that_mixes_examples_is_refused(collate):
    with pytest.raises(PlanViolation, match="collate mixes examples") as refusal:
        require_rows_apart([Vectors()[at] for at in range(12)], collate)
    assert "tensor" not in str(refusal.value)


def fitted(collate, **options):
    Trainer(
        nn.Linear(4, 2),
        plan(steps=2),
        loss=nn.CrossEntropyLoss(reduction="none"),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        inputs=None if "validation" in options else TensorSpec((4,)),
    ).fit(Vectors(), collate=collate, progress=False, **options)


def test_a_run_with_it_is_refused():
    with pytest.raises(PlanViolation, match="collate mixes examples"):
        fitted(centred)
    with pytest.raises(PlanViolation, match="collate mixes examples"):
        by_loop(nn.Linear(4, 2), Vectors(), blended)


def noisy(items):
    rows, labels = stacked(items)
    return rows + 0.1 * torch.randn_like(rows) + np.random.normal(), labels  # noqa: NPY002


@pytest.mark.parametrize(
    ("collate", "data"),
    [
        (stacked, Vectors()),
        (noisy, Vectors()),
        (lambda items: stacked(items)[::-1], Vectors()),
        (lambda items: {"places": torch.arange(len(items)), "rows": stacked(items)[0]}, Vectors()),
        (padded, Names()),
        (sorted_with_lengths, Names()),
        (to_a_multiple, Names()),
        (lambda items: pad_sequence([one for one, _ in items]), Names()),
    ],
)
def test_one_that_does_not_is_accepted(collate, data):
    """Numbers of torch and numpy may be drawn, rows sorted or on the second axis."""
    require_rows_apart([data[at] for at in range(12)], collate)


def test_what_it_draws_otherwise_is_as_it_would_have_been():
    def drawn():
        return random.random(), np.random.random(), float(torch.rand(()))  # noqa: NPY002

    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    first = drawn()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    require_rows_apart([Vectors()[at] for at in range(4)], noisy)
    assert drawn() == first


class Remembering:
    def __init__(self):
        self.mean = torch.zeros(4)

    def __call__(self, items):
        rows, labels = stacked(items)
        self.mean = 0.9 * self.mean + 0.1 * rows.mean(0)
        return rows - self.mean, labels


class DrawingByItself:
    def __init__(self):
        self.numbers = np.random.default_rng(1)

    def __call__(self, items):
        rows, labels = stacked(items)
        return rows * self.numbers.random(), labels


@pytest.mark.parametrize("collate", [Remembering(), DrawingByItself()])
def test_one_that_differs_from_call_to_call_is_refused(collate):
    with pytest.raises(NotApplicable, match="remembers earlier batches"):
        require_rows_apart([Vectors()[at] for at in range(12)], collate)


def test_its_errors_show_no_values():
    def odd(items):
        if len(items) == 9:
            raise KeyError("secret of somebody")
        return stacked(items)

    with pytest.raises(NotApplicable, match="raised KeyError on a few") as refusal:
        require_rows_apart([Vectors()[at] for at in range(8)], odd)
    assert "secret" not in str(refusal.value)


def cut_to_the_shortest(items):
    names, labels = zip(*items, strict=True)
    least = min(map(len, names))
    return torch.stack([one[:least] for one in names]), torch.tensor(labels)


@pytest.mark.parametrize("run", [by_loop, by_trainer])
def test_examples_cut_to_the_shortest_are_refused(run):
    with pytest.raises(PlanViolation, match="to the shortest of them"):
        run(Masked(), Names(), cut_to_the_shortest)


def test_before_the_charge_where_public_examples_show_it(tmp_path):
    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.create_dataset("people", epsilon=9, delta="1e-3", unit="record")
        with pytest.raises(PlanViolation, match="collate mixes"):
            fitted(centred, validation=Vectors(), ledger=ledger, dataset_name="people")
        assert not ledger.history("people")


def test_removing_one_record_moves_the_sum_of_all_others():
    """What the refusal is for: the rows of all others move as one, beyond any clip norm."""
    far = [*(Vectors()[at] for at in range(8)), (torch.full((4,), 1e3), 0)]
    with_it, _ = centred(far)
    without, _ = centred(far[:-1])
    assert float((with_it[:-1] - without).norm(dim=1).min()) > 100


def test_vouching_skips_it():
    private, optimizer = wrap(nn.Linear(4, 2), plan(steps=1), isolation="vouched")
    for rows, labels in private.batches(Vectors(), collate=centred):
        private.backward(each(private.model(rows), labels))
        optimizer.step()
    private.detach()
