"""Plans for persons who own several records: who is sampled, what is clipped, what it costs."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from discreet.errors import InvalidValue, PlanViolation, SchemaError
from discreet.learn import dpsgd
from discreet.learn.dpsgd._certificate import require_sound
from discreet.ledger import Ledger
from discreet.privacy import Gaussian
from discreet.randomness import source
from learn.dpsgd.made_up_runs import FEATURES, clipped, data, each, network, plan, steps_of, wrap


def owned(counts):
    """Owners in mixed order, the number of records of each given."""
    owners = [person for person, count in enumerate(counts) for _ in range(count)]
    order = np.random.default_rng(0).permutation(len(owners))
    return [owners[at] for at in order]


def numbered(count):
    return TensorDataset(torch.arange(count))


def drawn(people, places):
    return [int(row) for (row,) in people.__getitems__(places)]


def test_a_person_gives_records_of_that_person_without_repetition():
    owners = owned([5, 1, 3, 2])
    people = dpsgd.People(numbered(len(owners)), owners)
    names = list(dict.fromkeys(owners))  # in the order of first appearance
    assert len(people) == 4
    for count in (1, 2, 3, 7):
        places = [place for place in (3, 0, 2) for _ in range(count)]
        found = drawn(people, places)
        assert [owners[row] for row in found] == [names[place] for place in places]
        for start in range(0, len(found), count):
            _, times = np.unique(found[start : start + count], return_counts=True)
            held = owners.count(owners[found[start]])
            assert len(times) == min(count, held)
            assert times.max() <= math.ceil(count / held)
    assert owners[int(people[1][0])] == names[1]


def test_every_record_of_a_person_is_chosen_equally_often():
    """Two of five, 4,000 times; each count is within five deviations for this seed."""
    people = dpsgd.People(numbered(5), ["ann"] * 5, source=source(insecure_seed=3))
    rows = [row for _ in range(4_000) for row in drawn(people, [0, 0])]
    counts = np.bincount(rows, minlength=5)
    deviation = math.sqrt(4_000 * 0.4 * 0.6)
    assert np.all(abs(counts - 1_600) <= 5 * deviation)


def ragged(counts, *, seed=0):
    """Records of persons, some wild, and their owners."""
    owners = owned(counts)
    inputs, targets = data(len(owners), seed=seed).tensors
    scale = torch.tensor([100.0 if owner % 2 else 0.1 for owner in owners])
    return TensorDataset(inputs * scale.unsqueeze(1), targets), owners


def test_the_mean_gradient_of_a_persons_records_is_clipped_as_one():
    counts = [3] * 6
    rows, owners = ragged(counts)
    made = plan(
        examples=6, expected_batch_size=6, sampler="full", unit="person", augmentations=3, steps=1
    )
    private, optimizer = wrap(network(), made)
    people = dpsgd.People(rows, owners)
    (start, _, _, moved), *_ = steps_of(private, optimizer, people)
    loss = nn.CrossEntropyLoss()
    expected = {name: torch.zeros_like(one) for name, one in start.named_parameters()}
    for person in range(6):
        own = [at for at, owner in enumerate(owners) if owner == person]
        start.zero_grad()
        loss(start(rows.tensors[0][own]), rows.tensors[1][own]).backward()
        gradient = {name: one.grad.clone() for name, one in start.named_parameters()}
        for name, part in clipped(gradient, made.clip_norm).items():
            expected[name] += part / 6
    for name, one in moved.items():
        torch.testing.assert_close(one, expected[name], rtol=1e-4, atol=1e-6)
    private.detach()


@pytest.mark.parametrize("by_record", [False, True])
def test_one_person_more_moves_the_sum_by_no_more_than_is_charged(by_record):
    """A full batch with and without each person; with records, each of up to three is clipped."""
    counts = [1, 2, 3, 2]
    rows, owners = ragged(counts)

    def sum_of(leave_out):
        kept = [at for at, owner in enumerate(owners) if owner != leave_out]
        some, whose = TensorDataset(*(one[kept] for one in rows.tensors)), [owners[i] for i in kept]
        if by_record:
            given = dpsgd.CappedRecords(some, whose, at_most=3)
            options = {"records_per_unit": 3}
        else:
            given, options = dpsgd.People(some, whose), {"augmentations": 6}
        size = len(given)
        made = plan(
            examples=size,
            expected_batch_size=size,
            sampler="full",
            unit="person",
            steps=1,
            **options,
        )
        private, optimizer = wrap(network(), made)
        (_, _, _, moved), *_ = steps_of(private, optimizer, given)
        private.detach()
        return torch.cat([one.flatten() for one in moved.values()]) * size

    whole = sum_of(None)
    distances = [float((whole - sum_of(person)).norm()) for person in range(4)]
    most = [float(count if by_record else 1) for count in counts]
    assert all(found <= allowed + 1e-5 for found, allowed in zip(distances, most, strict=True))
    assert max(distances) > 0.9  # wild persons are clipped


def test_a_step_with_records_of_persons_costs_the_mixture_of_their_samples():
    """By integration: k of G records are drawn with binomial probability, and move the sum by k."""
    made = plan(
        examples=1_600,
        expected_batch_size=16,
        steps=1,
        unit="person",
        records_per_unit=8,
        noise_multiplier=1.0,
    )
    weights = stats.binom.pmf(np.arange(9), 8, 0.01)

    def upper(x):
        return weights @ stats.norm.pdf(x - np.arange(9))

    for epsilon in (0.5, 1.0):

        def more(x, e=epsilon):
            return max(0.0, upper(x) - math.exp(e) * stats.norm.pdf(x))

        def less(x, e=epsilon):
            return max(0.0, stats.norm.pdf(x) - math.exp(e) * upper(x))

        expected = max(
            integrate.quad(way, -12, 20, limit=2_000, points=np.linspace(-3, 12, 31))[0]
            for way in (more, less)
        )
        found = made.loss.delta(epsilon=epsilon)
        assert expected * (1 - 1e-6) <= found <= expected * (1 + 1e-3)
    assert 2.40e-4 < made.loss.delta(epsilon=1.0) < 2.42e-4


def test_each_step_is_a_group_of_its_own():
    made = plan(unit="person", records_per_unit=3, steps=7)
    assert made.loss == 7 * Gaussian(1.0).poisson(rate=0.25).group(3)
    whole = plan(unit="person", records_per_unit=3, steps=7, sampler="full", expected_batch_size=64)
    exact = (7 * Gaussian(1.0 / 3)).epsilon(delta=1e-5)
    assert exact * (1 - 1e-9) <= whole.epsilon() <= exact * (1 + 1e-9)
    aimed = plan(unit="person", records_per_unit=3, noise_multiplier=None, epsilon=2.0)
    assert 1.98 <= aimed.epsilon() <= 2.0


def test_a_plan_for_groups_is_read_back_and_has_a_version_of_its_own():
    made = plan(unit="person", records_per_unit=3)
    body = made.to_json()
    assert body["version"] == 4
    assert dpsgd.Plan.from_json(json.dumps(body)) == made
    assert "records_per_unit" not in plan().to_json()
    for spoiled in (
        {**body, "version": 1},
        {**body, "records_per_unit": 1},
        {key: body[key] for key in body if key != "records_per_unit"},
        {**plan().to_json(), "version": 4},
    ):
        with pytest.raises(SchemaError):
            dpsgd.Plan.from_json(spoiled)


@pytest.mark.parametrize(
    "changes",
    [
        {"unit": "record"},
        {"sampler": "shuffled"},
        {"relation": "replace"},
        {"at_most": 32, "public_examples": True},
        {"sampler": "fixed_bins"},
        {"records_per_unit": 0},
        {"records_per_unit": 2.5},
    ],
)
def test_groups_whose_cost_is_not_exact_are_refused(changes):
    with pytest.raises(InvalidValue) as caught:
        plan(**{"unit": "person", "records_per_unit": 2, **changes})
    assert caught.value.argument == "records_per_unit"


@pytest.mark.parametrize(
    "owners",
    [
        [("ann", "ben"), "ann", "ben"],
        ["ann", None, "ben"],
        ["ann", float("nan"), "ben"],
        [1.0, 2.0, 2.0],
        [True, False, True],
        ["ann", "ben"],
        [1, "1", 2],
        torch.rand(3),
    ],
)
def test_owners_that_name_nobody_or_two_are_refused(owners):
    for make in (dpsgd.People, lambda *args: dpsgd.CappedRecords(*args, at_most=1)):
        with pytest.raises(InvalidValue) as caught:
            make(numbered(3), owners)
        assert caught.value.argument == "owners"
        assert "ann" not in str(caught.value)


@pytest.mark.parametrize(
    "owners", [np.array([1, 1, 2]), torch.tensor([1, 1, 2]), np.array(["a", "a", "b"])]
)
def test_owners_may_come_as_arrays(owners):
    assert len(dpsgd.People(numbered(3), owners)) == 2


def test_no_person_has_more_records_than_the_cap():
    owners = owned([7, 1, 2, 4])
    capped = dpsgd.CappedRecords(numbered(len(owners)), owners, at_most=2)
    rows = [int(row) for (row,) in capped.__getitems__(range(len(capped)))]
    assert rows == [int(capped[at][0]) for at in range(len(capped))]
    assert sorted(np.bincount([owners[row] for row in rows]).tolist()) == [1, 2, 2, 2]
    chosen = {
        tuple(int(capped[at][0]) for at in range(len(capped)))
        for seed in range(20)
        for capped in [
            dpsgd.CappedRecords(
                numbered(len(owners)), owners, at_most=2, source=source(insecure_seed=seed)
            )
        ]
    }
    assert len(chosen) > 1


def test_data_and_plan_must_mean_the_same_persons(tmp_path):
    """Before anything is drawn or charged."""
    rows, owners = ragged([2, 2, 3])
    people = dpsgd.People(rows, owners)
    capped = dpsgd.CappedRecords(rows, owners, at_most=3)
    grouped = plan(unit="person", records_per_unit=2)
    for made, given, words in (
        (plan(), people, "Plan\\(unit='person'\\)"),
        (grouped, people, "records_per_unit"),
        (plan(unit="person"), capped, "records_per_unit=3"),
        (grouped, capped, "records_per_unit=3"),
        (grouped, rows, "CappedRecords"),
    ):
        private, _ = wrap(network(), made)
        with pytest.raises(PlanViolation, match=words):
            private.batches(given)
        assert private.steps_taken == 0
        private.detach()
    with Ledger.create(tmp_path / "persons.ledger") as ledger:
        ledger.create_dataset("visits", epsilon=100, delta="1e-3", unit="person")
        trainer = dpsgd.Trainer(
            network(),
            grouped,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            loss=each,
            inputs=dpsgd.TensorSpec((FEATURES,)),
        )
        with pytest.raises(PlanViolation, match="records_per_unit=3"):
            trainer.fit(capped, ledger=ledger, dataset_name="visits")
        assert not ledger.history("visits")


def test_a_trainer_charges_persons_and_certifies_what_one_owns(tmp_path):
    rows, owners = ragged([2, 2, 3, 1] * 8)
    made = plan(examples=64, unit="person", records_per_unit=2)
    with Ledger.create(tmp_path / "persons.ledger") as ledger:
        ledger.create_dataset("visits", epsilon=100, delta="1e-3", unit="person")
        trained = dpsgd.Trainer(
            network(),
            made,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            loss=each,
            inputs=dpsgd.TensorSpec((FEATURES,)),
            targets=dpsgd.TensorSpec((), torch.int64, values=3),
        ).fit(dpsgd.CappedRecords(rows, owners, at_most=2), ledger=ledger, dataset_name="visits")
    paper = trained.certificate
    assert require_sound(paper) == made
    assert paper.unit == "person"
    assert "one unit owns at most 2 examples" in paper.assumptions
    assert paper.epsilon == made.epsilon()


class Sentences(Dataset):
    """Texts of different lengths, padded by ``collate``."""

    def __len__(self):
        return 12

    def __getitem__(self, at):
        return torch.arange(1, 3 + at % 4), at % 2


def padded(rows):
    texts = [text for text, _ in rows]
    return nn.utils.rnn.pad_sequence(texts, batch_first=True), torch.tensor([y for _, y in rows])


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(10, 4), nn.Linear(4, 2)

    def forward(self, ids):
        return self.head((self.words(ids) * (ids > 0).unsqueeze(2)).sum(1))


@pytest.mark.parametrize("workers", [0, 2])
def test_texts_of_persons_are_padded_and_may_be_read_by_workers(workers):
    """The look at padding compares the same records, not two choices of a person's records."""
    made = plan(examples=3, expected_batch_size=3, sampler="full", unit="person", augmentations=2)
    model = Masked()
    private, optimizer = wrap(model, made, isolation="check", lr=0.1)
    people = dpsgd.People(Sentences(), ["ann", "ben", "cid"] * 4)
    for ids, labels in private.batches(people, collate=padded, workers=workers):
        assert len(ids) == 6
        private.backward(each(model(ids), labels))
        optimizer.step()
    assert private.steps_taken == made.steps
    private.detach()
