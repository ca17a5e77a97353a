"""Batches that are padded to their longest example: one record must not change the others."""

from collections import namedtuple

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import Dataset

from discreet.errors import NotApplicable
from discreet.learn import dpsgd
from discreet.learn.dpsgd import PlanViolation
from discreet.learn.dpsgd._padding import padded_pair, require_padding_ignored
from discreet.ledger import Ledger
from learn.dpsgd.made_up_runs import plan, wrap

LETTERS = 12


class Names(Dataset):
    """Names of different lengths; or all equally long."""

    def __init__(self, count=64, length=None):
        draw = torch.Generator().manual_seed(3)
        lengths = torch.randint(2, 9, (count,), generator=draw).tolist()
        self.names = [
            torch.randint(1, LETTERS, (length or one,), generator=draw) for one in lengths
        ]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, at):
        return self.names[at], at % 2


def padded(items):
    names, labels = zip(*items, strict=True)
    return pad_sequence(names, batch_first=True), torch.tensor(labels)


def with_lengths(items):
    names, labels = padded(items)
    return names, torch.tensor([len(name) for name, _ in items]), labels


def sorted_with_lengths(items):
    return with_lengths(sorted(items, key=lambda item: -len(item[0])))


def to_length_twelve(items):
    names, labels = padded(items)
    return functional.pad(names, (0, 12 - names.shape[1])), labels


def to_a_multiple(items):
    names, labels = padded(items)
    return functional.pad(names, (0, -names.shape[1] % 32)), labels


def to_a_power_of_two(items):
    names, labels = padded(items)
    return functional.pad(names, (0, (1 << (names.shape[1] - 1).bit_length()) - len(names[0]))), (
        labels
    )


class LongestSoFar:
    """A collate that never pads less than it did before."""

    def __init__(self):
        self.longest = 0

    def __call__(self, items):
        names, labels = padded(items)
        self.longest = max(self.longest, names.shape[1])
        return functional.pad(names, (0, self.longest - names.shape[1])), labels


class CharLSTM(nn.Module):
    """As in tutorials: what the last letter of the batch leaves."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.letters = nn.Embedding(LETTERS, 5, padding_idx=0)
        self.lstm = nn.LSTM(5, 6, batch_first=True)
        self.last = nn.Linear(6, 2)

    def forward(self, names):
        return self.last(self.lstm(self.letters(names))[0][:, -1])


class AtLength(CharLSTM):
    def forward(self, names, lengths):
        states = self.lstm(self.letters(names))[0]
        return self.last(states[torch.arange(len(names)), lengths - 1])


class Masked(nn.Module):
    """A mean of the letters that are there."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.letters, self.last = nn.Embedding(LETTERS, 5), nn.Linear(5, 2)

    def forward(self, names):
        mask = (names != 0).unsqueeze(2)
        return self.last((self.letters(names).tanh() * mask).sum(1) / mask.sum(1))


class Bag(Masked):
    """A sum that trusts that the row of the padding stays zero."""

    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(LETTERS, 5, padding_idx=0)

    def forward(self, names):
        return self.last(self.letters(names).sum(1))


def each(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


def by_loop(model, dataset, collate, **options):
    private, optimizer = wrap(model, plan(steps=2))
    private._record.isolation = "checked"  # the probe of one shape is not what is tested here
    try:
        for *x, y in private.batches(dataset, collate=collate, **options):
            private.backward(each(model(*x), y))
            optimizer.step()
    finally:
        private.detach()


def by_trainer(model, dataset, collate, **options):
    known = dpsgd.TensorSpec((6,), torch.int64, values=LETTERS)
    described = (known, dpsgd.TensorSpec((), torch.int64, values=6))
    dpsgd.Trainer(
        model,
        plan(steps=2),
        loss=nn.CrossEntropyLoss(reduction="none"),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        inputs=described if isinstance(model, AtLength) else known,
    ).fit(dataset, collate=collate, progress=False, **options)


@pytest.mark.parametrize(
    ("run", "dataset", "model"),
    [
        (by_loop, Names(), CharLSTM),
        (by_loop, Names(length=6), CharLSTM),
        (by_loop, Names(), Bag),
        (by_trainer, Names(length=6), CharLSTM),
        (by_trainer, Names(), Bag),
    ],
)
def test_a_model_that_feels_the_padding_is_refused(run, dataset, model):
    """Also if the first batch shows one length only: one example is cut short."""
    with pytest.raises(PlanViolation, match="changes with the padding") as refusal:
        run(model(), dataset, padded)
    assert "tensor" not in str(refusal.value)


@pytest.mark.parametrize(
    ("run", "model", "collate"),
    [
        (by_loop, Masked, padded),
        (by_loop, AtLength, with_lengths),
        (by_loop, AtLength, sorted_with_lengths),
        (by_loop, CharLSTM, to_length_twelve),
        (by_trainer, Masked, padded),
        (by_trainer, AtLength, sorted_with_lengths),
    ],
)
def test_a_model_that_ignores_the_padding_is_accepted(run, model, collate):
    run(model(), Names(), collate)


def with_random_letters(items):
    names, labels = padded(items)
    names = names.repeat(1, 16)  # two draws are alike with a chance of 1e-20
    return torch.where(
        torch.rand(names.shape) < 0.9, torch.randint_like(names, LETTERS), names
    ), labels


def test_a_collate_that_draws_is_not_called_padding():
    """Masks for language models, drawn in collate: what differs is not how far they are padded."""
    with pytest.raises(NotApplicable, match="draws at random"):
        by_loop(Masked(), Names(), with_random_letters)


class Mean(Bag):
    def forward(self, names):
        return self.last(self.letters(names).mean(1))


@pytest.mark.slow
@pytest.mark.parametrize("dataset", [Names(), Names(length=6), Names(length=4)])
@pytest.mark.parametrize("make", [lambda: to_a_multiple, lambda: to_a_power_of_two, LongestSoFar])
@pytest.mark.parametrize("run", [by_loop, by_trainer])
def test_padding_in_blocks_or_as_far_as_ever_is_felt_too(dataset, make, run):
    with pytest.raises(PlanViolation, match="changes with the padding"):
        run(Mean(), dataset, make())
    run(Masked(), dataset, make())


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_layer_that_forgets_over_a_long_padding_may_learn_to_remember(layer):
    """At the start the two results agree to 1e-9: only a copy that remembers shows more."""

    def in_blocks(items):
        names, labels = padded(items)
        return functional.pad(names, (0, -names.shape[1] % 64)), labels

    def run(model, batch):
        return model(batch[0])

    pair = padded_pair([Names()[at] for at in range(4)], in_blocks)
    model = CharLSTM()
    model.lstm, model.last = layer(5, 32, batch_first=True), nn.Linear(32, 2)
    with pytest.raises(PlanViolation, match="changes with the padding"):
        require_padding_ignored(model, pair, run)
    require_padding_ignored(Masked(), pair, run)


def test_one_long_example_late_in_the_batch_is_found():
    """The first 16 are equally long, and collate would make all of them longer only for a long one.

    Of an example that cannot be cut the others are all that shows it.
    """

    class Counts(Names):
        def __getitem__(self, at):
            return 9 if at == 40 else 1, at % 2

    def ones(items):
        counts, labels = zip(*items, strict=True)
        names = pad_sequence([torch.ones(one, dtype=torch.int64) for one in counts], True)
        return names, torch.tensor(labels)

    private, _ = wrap(CharLSTM(), plan(steps=1, sampler="full", expected_batch_size=None))
    private._record.isolation = "checked"
    batches = private.batches(Counts(), collate=ones)
    x, _ = next(batches)
    with pytest.raises(PlanViolation, match="changes with the padding"):
        private.model(x)
    private.detach()


def test_removing_one_long_record_moves_the_sum_of_the_refused_model_by_clip_norms():
    """What it is about: the gradients of all others change, not only that of the long one."""
    model, names = CharLSTM(), Names(count=16)
    items = [names[at] for at in range(16)] + [(torch.ones(40, dtype=torch.int64), 0)]

    def clipped_sum(batch, count):
        total = 0.0
        x, y = padded(batch)
        for row in range(count):
            loss = functional.cross_entropy(model(x[row : row + 1]), y[row : row + 1])
            parts = torch.autograd.grad(loss, list(model.parameters()))
            gradient = torch.cat([part.reshape(-1) for part in parts])
            total = total + gradient / max(1.0, 5.0 * float(gradient.norm())) * 5.0
        return total

    moved = clipped_sum(items, 16) - clipped_sum(items[:-1], 16)
    assert float(moved.norm()) > 0.5, "without what the long record adds itself"


def test_before_the_charge_where_public_examples_show_it(tmp_path):
    trainer = dpsgd.Trainer(
        CharLSTM(),
        plan(),
        loss=nn.CrossEntropyLoss(reduction="none"),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    ledger = dpsgd_ledger(tmp_path)
    with pytest.raises(PlanViolation, match="changes with the padding"):
        trainer.fit(
            Names(),
            collate=padded,
            validation=Names(count=8),
            ledger=ledger,
            dataset_name="names",
            progress=False,
        )
    assert ledger.history("names") == []


def dpsgd_ledger(tmp_path):

    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.create_dataset("names", epsilon=100, delta="1e-2", unit="record")
    return ledger


class Padding(Names):
    """A data set that pads by itself."""

    def __getitems__(self, places):
        names, labels = padded([self[at] for at in places])
        return list(zip(names, labels, strict=True))


def test_a_data_set_that_pads_is_noticed_when_shapes_vary():
    with pytest.raises(PlanViolation, match="changes with the padding"):
        by_loop(CharLSTM(), Padding(), None, max_physical=2)


def test_vouching_skips_it():
    private, optimizer = wrap(CharLSTM(), plan(steps=1), isolation="vouched")
    for x, y in private.batches(Names(), collate=padded):
        private.backward(each(private.model(x), y))
        optimizer.step()
    private.detach()


class PerLetter(Masked):
    def forward(self, names):
        return self.last(self.letters(names))


def test_outputs_as_long_as_the_batch_are_refused_in_a_loop():
    """What becomes of them in the loss cannot be seen there."""
    with pytest.raises(PlanViolation, match="changes with the padding"):
        by_loop(PerLetter(), Names(), padded)


def of_letters(model, batch):
    """A loss for each name from its own letters."""
    names, _ = batch
    spelled = functional.cross_entropy(model(names).transpose(1, 2), names, reduction="none")
    return (spelled * (names > 0)).sum(1) / (names > 0).sum(1)


def of_all_places(model, batch):
    """The same with what was padded."""
    names, _ = batch
    spelled = functional.cross_entropy(model(names).transpose(1, 2), names, reduction="none")
    return spelled.mean(1)


@pytest.mark.parametrize("losses", [of_letters, of_all_places])
def test_in_a_loop_whose_losses_are_known_these_must_not_feel_the_padding(losses):
    model = nn.Sequential(nn.Embedding(LETTERS, 4), nn.Linear(4, LETTERS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = dpsgd.make_private(model, optimizer, plan(), losses=losses)
    batches = private.batches(Names(), collate=padded)
    if losses is of_all_places:
        with pytest.raises(PlanViolation, match="changes with the padding"):
            next(batches)
    else:
        private.backward(losses(model, next(batches)))
        optimizer.step()
    private.detach()


def test_tensors_that_are_not_those_of_the_batch_cannot_be_tried_out():
    private, _ = wrap(Masked(), plan())
    private._record.isolation = "checked"
    batches = private.batches(Names(), collate=padded)
    x, _ = next(batches)
    with pytest.raises(NotApplicable, match="not those of the batch"):
        private.model((x + 1) % LETTERS)
    private.detach()


Item = namedtuple("Item", ["letters", "length", "label"])


@pytest.mark.parametrize(
    ("item", "collate", "shape"),
    [
        (Item(torch.ones(8), 8, 1), lambda items: pad_sequence([i.letters for i in items]), (4, 1)),
        (
            {"ids": [1] * 6, "mask": [1] * 6, "label": 1},
            lambda items: {
                key: pad_sequence([torch.tensor(i[key]) for i in items], batch_first=True)
                for key in ("ids", "mask")
            },
            (1, 3),
        ),
        (
            "abcdef",
            lambda items: pad_sequence([torch.tensor(list(map(ord, i))) for i in items]),
            (3, 1),
        ),
    ],
    ids=["named tuple", "dict of lists", "text"],
)
def test_examples_of_many_kinds_are_cut_short(item, collate, shape):
    short, _ = padded_pair([item, item], collate)
    first = short["ids"] if isinstance(short, dict) else short
    assert tuple(first.shape) == shape
    assert padded_pair([item], lambda items: torch.zeros(len(items), 5)) is None


def test_images_are_not_taken_for_sequences():
    image = (torch.zeros(3, 8, 8), 1)
    stacked = torch.utils.data.default_collate
    assert padded_pair([image, image], stacked) is None


def test_packing_inside_of_the_model_is_accepted():
    class Packed(AtLength):
        def forward(self, names, lengths):
            packed = pack_padded_sequence(
                self.letters(names), lengths.cpu(), batch_first=True, enforce_sorted=False
            )
            return self.last(self.lstm(packed)[1][0][-1])

    pair = padded_pair([Names()[at] for at in range(8)], with_lengths)

    require_padding_ignored(Packed(), pair, lambda model, batch: model(*batch[:-1]))
