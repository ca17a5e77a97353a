"""What one private cell can cause is no error after the charge: such an example adds nothing."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from discreet.errors import InvalidValue
from discreet.learn.dpsgd import TensorSpec, Trainer
from discreet.learn.dpsgd._step import are_classes, blank_rows
from discreet.ledger import Ledger
from discreet.randomness import source
from learn.dpsgd.made_up_runs import CLASSES, FEATURES, Silence, data, each, network, plan, wrap

EACH = nn.CrossEntropyLoss(reduction="none")
FULL = {"sampler": "full", "expected_batch_size": None}


def gathered(outputs, targets):
    return -outputs.log_softmax(1).gather(1, targets.unsqueeze(1)).squeeze(1)


def one_hot(outputs, targets):
    wanted = nn.functional.one_hot(targets, CLASSES).float()
    return nn.functional.cross_entropy(outputs, wanted, reduction="none")


def asserted(outputs, targets):
    assert targets.max() < CLASSES
    return each(outputs, targets)


def looked_up(outputs, targets):
    names = {0: 0, 1: 1, 2: 2}
    return each(outputs, torch.tensor([names[int(one)] for one in targets]))


LOSSES = [
    EACH,
    nn.NLLLoss(reduction="none"),
    nn.MultiMarginLoss(reduction="none"),
    gathered,
    one_hot,
    asserted,
    looked_up,
    lambda outputs, targets: each(outputs, targets),
]


def moved(loss, dataset, *, model=None, good=0, skip=(), **options):
    """What a step without noise moves, where nothing is counted of the rows ``skip``."""
    model = network() if model is None else model
    private, _ = wrap(model, plan(steps=good + 1, **FULL), **options)
    start = copy.deepcopy(model.state_dict())
    for at, (*inputs, targets) in enumerate(private.batches(dataset)):
        private._noise = Silence(private._setup.trained)
        if at < good:  # the short way is taken from the second step on
            private.step(loss, *inputs, targets.clamp(0, CLASSES - 1))
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(start[name])
            continue
        if not skip:
            private.step(loss, *inputs, targets)
        else:
            mask = torch.zeros(len(targets), dtype=torch.bool)
            mask[list(skip)] = True
            whole = loss(model(*inputs), targets.masked_fill(mask, 0))
            private.backward(whole.masked_fill(mask, 0.0))
            private.optimizer.step()
    private.detach()
    return [start[name] - value for name, value in model.state_dict().items()]


@pytest.mark.parametrize(
    ("loss", "wrong"), [*((loss, 31) for loss in LOSSES), (EACH, -1), (EACH, 2**40)]
)
def test_a_label_that_is_no_class_adds_nothing(loss, wrong):
    inputs, targets = data(64).tensors
    changed = targets.clone()
    changed[[5, 17]] = wrong
    found = moved(loss, TensorDataset(inputs, changed))
    expected = moved(loss, TensorDataset(inputs, targets), skip=(5, 17))
    plain = moved(loss, TensorDataset(inputs, targets))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))
    assert not all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, plain, strict=True))


@pytest.mark.parametrize("isolation", ["vouched", "check"])
def test_on_the_short_way_too(isolation):
    inputs, targets = data(64).tensors
    changed = targets.clone()
    changed[5] = 31
    options = {"good": 3, "isolation": isolation}
    found = moved(EACH, TensorDataset(inputs, changed), **options)
    expected = moved(EACH, TensorDataset(inputs, targets), skip=(5,), **options)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))


def test_a_batch_of_nothing_else_is_a_step_of_pure_noise():
    inputs, targets = data(64).tensors
    found = moved(EACH, TensorDataset(inputs, targets + CLASSES))
    assert not any(part.any() for part in found)


class Words(nn.Module):
    """Tokens, and a buffer that counts the passes."""

    def __init__(self, *, fails_late=False):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 4)
        self.head = nn.Linear(4, CLASSES)
        self.register_buffer("passes", torch.zeros(()))
        self.late = fails_late

    def forward(self, tokens):
        if self.training:
            self.passes += 1
        return self.head(self.embedding(tokens).mean(1))


@pytest.mark.parametrize("isolation", ["vouched", "check"])
def test_a_token_that_the_vocabulary_lacks_adds_nothing(isolation):
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 11, (64, 5), generator=draw)
    targets = data(64).tensors[1]
    changed = tokens.clone()
    changed[9, 2] = 11
    models = Words(), Words()
    options = {"isolation": isolation}
    if isolation == "check":
        options["inputs"] = TensorSpec((5,), torch.int64, values=11)
    found = moved(EACH, TensorDataset(changed, targets), model=models[0], **options)
    expected = moved(EACH, TensorDataset(tokens, targets), model=models[1], skip=(9,), **options)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))
    assert int(models[0].passes) == int(models[1].passes) == 1  # no more passes than without it


def test_sequences_first():
    """Examples along the second axis, where time is as long as the batch."""

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embedding = nn.Embedding(11, 4)
            self.cell = nn.GRU(4, 5)
            self.head = nn.Linear(5, CLASSES)

        def forward(self, tokens):
            return self.head(self.cell(self.embedding(tokens))[0][-1])

    tokens = torch.randint(0, 11, (8, 8), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[2, 3] = 11  # the fourth example
    targets = data(8).tensors[1]
    batch = [changed, targets]
    found = blank_rows(
        lambda model, parts: each(model(parts[0]), parts[1]), Last(), batch, rows=8, axis=1
    )
    assert found is not None
    assert found[1].tolist() == [row == 3 for row in range(8)]
    assert torch.equal(found[0][0][:, 3], torch.zeros(8, dtype=torch.int64))
    assert torch.equal(found[0][0][:, 4], tokens[:, 4])


def test_classes_are_told_apart_before_a_device_would_end_the_process():
    """On the CPU torch raises; elsewhere it does not, and the process is lost."""
    targets = torch.tensor([0, 2, -100])
    assert are_classes(EACH, torch.zeros(3, 3), targets)
    assert not are_classes(EACH, torch.zeros(3, 2), targets)
    assert not are_classes(nn.MultiMarginLoss(reduction="none"), torch.zeros(3, 3), targets)
    assert are_classes(EACH, torch.zeros(3, 3), torch.full((3, 3), 1 / 3))
    assert are_classes(nn.MSELoss(reduction="none"), torch.zeros(3), targets)


def test_what_no_single_example_causes_is_an_error():
    private, _ = wrap(network(features=5), plan(**FULL))
    batch = next(batches := private.batches(data(64)))
    with pytest.raises(InvalidValue, match="withheld"):
        private.step(EACH, *batch)
    assert batches
    private.detach()


# --- the trainer, on neighbours ----------------------------------------------------------------


class Records(Dataset):
    """Examples as a user's own code gives them."""

    def __init__(self, inputs, targets, kind=torch.float32):
        self.inputs, self.targets, self.kind = inputs, targets, kind

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index].to(self.kind), self.targets[index]


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "study.ledger") as made:
        made.create_dataset("patients", epsilon=90, delta="1e-2", unit="record")
        yield made


def fitted(dataset, ledger, *, model=None, fit=None, **options):
    model = network() if model is None else model
    options = {
        "loss": EACH,
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.1),
        "isolation": "vouched",
        "source": source(insecure_seed=1),
        **options,
    }
    made = plan(**FULL)
    return Trainer(model, made, **options).fit(
        dataset, ledger=ledger, dataset_name="patients", progress=False, **(fit or {})
    )


def neighbours(kind):
    inputs, targets = data(64).tensors
    labels = targets.tolist()
    other = list(labels)
    if kind == "label":
        other[7] = 31
    elif kind == "negative":
        other[7] = -5
    elif kind == "float label":
        other[0] = 1.0  # the first of a batch decides the type of all
    elif kind == "missing label":
        other[0] = float("nan")
    elif kind == "feature":
        inputs = inputs.clone()
    changed = inputs.clone()
    if kind == "feature":
        changed[7, 2] = float("nan")
    return Records(inputs, labels), Records(changed, other)


KINDS = ["label", "negative", "float label", "missing label", "feature"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("known", ["inputs", "both", "validation"])
def test_neighbours_that_differ_in_one_such_record_both_succeed(ledger, kind, known, caplog):
    options, fit = {}, {}
    if known == "validation":
        fit = {"validation": data(9, seed=4)}
    else:
        options["inputs"] = TensorSpec((FEATURES,))
    if known == "both":
        options["targets"] = TensorSpec((), torch.int64, values=CLASSES)
    outs = [fitted(dataset, ledger, fit=fit, **options) for dataset in neighbours(kind)]
    assert [row.outcome for row in ledger.history("patients")] == ["completed"] * 2
    first, second = (out.certificate.to_json() for out in outs)
    for paper in (first, second):
        del paper["receipt"], paper["model_digest"], paper["hash"]
    assert first == second
    assert not caplog.text


@pytest.mark.parametrize("shown", [False, True])
def test_losses_of_ones_own(ledger, shown):
    def losses(model, batch):
        return gathered(model(batch[0]), batch[1])

    for dataset in neighbours("label"):
        fitted(
            TensorDataset(dataset.inputs, torch.tensor(dataset.targets)),
            ledger,
            loss=None,
            losses=losses,
            fit={"show_private_loss": shown},
        )
    assert [row.outcome for row in ledger.history("patients")] == ["completed"] * 2


# --- rehearsed before the charge ---------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["vouched", "check"])
def test_a_dataset_that_tells_nothing_is_refused_before_the_charge(ledger, isolation):
    with pytest.raises(InvalidValue, match=r"inputs.*TensorSpec.*Nothing was charged"):
        fitted(neighbours("label")[0], ledger, isolation=isolation)
    assert ledger.history("patients") == []


@pytest.mark.parametrize("how", ["spec", "validation", "table", "targets"])
def test_declared_float64_is_refused_before_the_charge(ledger, how):
    inputs, targets = data(64).tensors
    dataset = Records(inputs, targets.tolist(), torch.float64)
    options, fit = {}, {}
    if how == "spec":
        options["inputs"] = TensorSpec((FEATURES,), torch.float64)
    elif how == "targets":
        options["inputs"] = TensorSpec((FEATURES,))
        options["targets"] = TensorSpec((), torch.float64)
    elif how == "validation":
        fit["validation"] = dataset
    else:
        dataset = TensorDataset(inputs.double(), targets)
    with pytest.raises((InvalidValue, RuntimeError), match=r"Double|float64"):
        fitted(dataset, ledger, fit=fit, **options)
    assert ledger.history("patients") == []


@pytest.mark.parametrize("isolation", ["vouched", "check"])
def test_float64_that_was_not_declared_gets_the_declared_type(ledger, isolation):
    inputs, targets = data(64).tensors
    options = {"inputs": TensorSpec((FEATURES,)), "isolation": isolation}
    outs = [
        fitted(Records(inputs, targets.tolist(), kind), ledger, **options)
        for kind in (torch.float32, torch.float64)
    ]
    assert [row.outcome for row in ledger.history("patients")] == ["completed"] * 2
    assert outs[0].certificate.model_digest == outs[1].certificate.model_digest


def test_labels_of_other_types(ledger):
    inputs, targets = data(64).tensors
    for kind in (torch.int32, torch.uint8, torch.float64):
        fitted(Records(inputs, targets.to(kind)), ledger, inputs=TensorSpec((FEATURES,)))
    assert [row.outcome for row in ledger.history("patients")] == ["completed"] * 3


def test_a_public_label_that_is_no_class_is_refused_before_the_charge(ledger):
    public = data(700, seed=4)
    public.tensors[1][650] = 31
    with pytest.raises((InvalidValue, IndexError), match="31"):
        fitted(neighbours("label")[0], ledger, fit={"validation": public})
    assert ledger.history("patients") == []


def test_shapes_that_do_not_fit_are_refused_before_the_charge(ledger):
    with pytest.raises(InvalidValue, match=r"\(7,\) torch.float32.*Nothing was charged"):
        fitted(neighbours("label")[0], ledger, inputs=TensorSpec((7,)))
    with pytest.raises(InvalidValue, match="one loss for each example"):
        fitted(
            neighbours("label")[0],
            ledger,
            loss=lambda outputs, targets: each(outputs, targets).mean(),
            inputs=TensorSpec((FEATURES,)),
            targets=TensorSpec((), torch.int64, values=CLASSES),
        )
    assert ledger.history("patients") == []


def test_real_examples_are_not_read_before_the_charge(ledger):
    class Watched(Records):
        def __getitem__(self, index):
            assert len(ledger.history("patients")) == 1
            return super().__getitem__(index)

    inputs, targets = data(64).tensors
    fitted(Watched(inputs, targets.tolist()), ledger, inputs=TensorSpec((FEATURES,)))


def test_segmentation(ledger):
    """One class for each place of an image."""
    inputs = torch.randn(64, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.randint(0, CLASSES, (64, 4, 4), generator=torch.Generator().manual_seed(1))
    changed = targets.clone()
    changed[3, 1, 1] = 77

    def per_image(outputs, wanted):
        return EACH(outputs, wanted).mean((1, 2))

    for labels in (targets, changed):
        fitted(
            Records(inputs, labels),
            ledger,
            model=nn.Conv2d(2, CLASSES, 1),
            loss=per_image,
            inputs=TensorSpec((2, 4, 4)),
            targets=TensorSpec((4, 4), torch.int64, values=CLASSES),
        )
    assert [row.outcome for row in ledger.history("patients")] == ["completed"] * 2
