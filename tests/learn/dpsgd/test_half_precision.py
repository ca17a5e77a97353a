"""Passes in half precision: what is clipped and summed is of single precision all the same."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet.errors import InvalidValue, PlanViolation
from discreet.learn import dpsgd
from discreet.learn.dpsgd.engine import GradientEngine, _engine, _forms
from learn.dpsgd.made_up_runs import CLASSES, FEATURES, data, each, network, plan, silenced, wrap

ROWS, WORDS = 5, 30
HALVES = [torch.bfloat16, torch.float16]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
        self.scale = nn.Parameter(torch.ones(16))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, ids):
        return self.head((self.layer(self.words(ids)) * self.scale).mean(1))


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.GRU(FEATURES, 5, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.head(self.inner(x)[0][:, -1])


class Bare(nn.Module):
    """A root-mean-square norm, a bare matrix, slopes, and a product that no rule covers."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(FEATURES, 8), nn.RMSNorm(8)
        self.matrix = nn.Parameter(0.3 * torch.randn(8, 4))
        self.cube = nn.Parameter(0.3 * torch.randn(4, 2, CLASSES))
        self.slopes = nn.PReLU(4)

    def forward(self, x):
        x = self.slopes(self.norm(self.inner(x)) @ self.matrix)
        return torch.einsum("bi,ijk->bjk", x, self.cube).mean(1)


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(4, 8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=4),
        nn.Flatten(),
        nn.Linear(288, CLASSES),
    )


MODELS = {
    "layers": (network, lambda: torch.randn(ROWS, FEATURES)),
    "encoder": (Encoder, lambda: torch.randint(WORDS, (ROWS, 7))),
    "convolutions": (convolutions, lambda: torch.randn(ROWS, 3, 8, 8)),
    "bare": (Bare, lambda: torch.randn(ROWS, FEATURES)),
    "sequence": (Sequence, lambda: torch.randn(ROWS, 4, FEATURES)),
}
# Torch itself has no recurrent layer in float16 on a CPU.
CASES = [
    (name, kind) for name in MODELS for kind in HALVES if (name, kind) != ("sequence", HALVES[1])
]


def made(name, kind, *, autocast):
    torch.manual_seed(1)
    make, draw = MODELS[name]
    model, inputs = make(), draw()
    if autocast:
        return model, inputs
    return model.to(kind), inputs.to(kind) if inputs.is_floating_point() else inputs


@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # torch's, of its own norm under autocast
@pytest.mark.parametrize("autocast", [True, False], ids=["autocast", "parameters"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_sums_are_those_of_the_examples_one_by_one(name, kind, autocast):
    """To what half precision itself leaves uncertain; kept and summed in single precision."""
    model, inputs = made(name, kind, autocast=autocast)
    engine = GradientEngine(model)
    mode = torch.autocast("cpu", dtype=kind, enabled=autocast)
    with engine.recording(ROWS):
        with mode:
            outputs = model(inputs)
        assert engine.is_half
        outputs.float().sin().sum().backward()
        norms, sums = engine.squared_norms()[0], engine.clipped_sum(torch.ones(1, ROWS))
    engine.detach()
    assert {one.dtype for one in (norms, *sums.values())} == {torch.float32}
    expected = {key: torch.zeros(one.shape, dtype=torch.float64) for key, one in sums.items()}
    for row in range(ROWS):
        model.zero_grad()
        with mode:
            outputs = model(inputs[row : row + 1])
        outputs.float().sin().sum().backward()
        gradients = {key: one.grad.double() for key, one in model.named_parameters()}
        square = sum(float(one.square().sum()) for one in gradients.values())
        assert abs(float(norms[row]) - square) <= 0.05 * square
        for key, one in gradients.items():
            expected[key] += one
    whole = math.sqrt(sum(float(one.square().sum()) for one in expected.values()))
    for key, one in expected.items():
        assert float((sums[key] - one).norm()) <= 0.05 * max(float(one.norm()), 0.01 * whole)


def lengths_after_clipping(kind, *, examples=40):
    """Lengths, in double precision, of single examples that were clipped to 1."""
    found = []
    for seed in range(examples):
        torch.manual_seed(seed)
        model = Encoder().to(kind)
        engine = GradientEngine(model)
        with engine.recording(1):
            (50 * model(torch.randint(WORDS, (1, 7)))).float().sum().backward()
            norm = engine.squared_norms().double().sqrt()
            sums = engine.clipped_sum((1.0 / norm).to(torch.float32))
        engine.detach()
        found.append(math.sqrt(sum(float(one.double().square().sum()) for one in sums.values())))
    return found


@pytest.mark.parametrize("kind", HALVES)
def test_an_example_adds_no_more_than_the_clip_norm(kind):
    assert max(lengths_after_clipping(kind)) <= 1.0 + 1e-6


def test_norms_in_half_precision_would_break_the_bound(monkeypatch):
    """The mistake that peers make: norms of the precision of the passes."""

    def rounded(*args):
        return _forms.total_squared_norms(*args).bfloat16()

    monkeypatch.setattr(_engine, "total_squared_norms", rounded)
    assert max(lengths_after_clipping(torch.bfloat16)) > 1.0 + 1e-4


@pytest.mark.parametrize("autocast", [True, False])
def test_a_step_moves_the_model_by_the_clipped_sum(autocast):
    """Noise and sum are of single precision; what the optimizer gets is rounded at the end."""
    kind = torch.bfloat16
    model = network() if autocast else network().to(kind)
    rows, labels = data(64).tensors
    rows = 30 * (rows if autocast else rows.to(kind))
    private, optimizer = wrap(model, plan(), isolation="check", lr=0.0)
    grads = []
    optimizer.register_step_pre_hook(
        lambda *_: grads.append([one.grad.clone() for one in model.parameters()])
    )
    for inputs, targets in silenced(private, TensorDataset(rows, labels)):
        with torch.autocast("cpu", dtype=kind, enabled=autocast):
            losses = each(model(inputs), targets)
        private.backward(losses)
        optimizer.step()
    assert private.certificate().run["isolation"] == "checked"
    private.detach()
    for step in grads:
        assert {one.dtype for one in step} == {torch.float32 if autocast else kind}
        length = math.sqrt(sum(float(one.double().square().sum()) for one in step))
        assert 0.01 < length <= 64 / 16 * (1 + 2**-8)


@pytest.mark.parametrize("form", ["mean", "sum", "each"])
def test_the_backward_pass_of_a_mean_is_refused(form):
    """1/B is rounded in half precision, another way for each B: others would feel one record."""
    model = network()
    private, optimizer = wrap(model, plan(), reduction="sum" if form == "sum" else "mean")
    for inputs, targets in private.batches(data(64)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses = each(model(inputs), targets)
        if form == "mean":
            with pytest.raises(PlanViolation, match="half precision"):
                losses.mean().backward()
            break
        if form == "sum":
            losses.sum().backward()
        else:
            private.backward(losses)
        optimizer.step()
    assert private.steps_taken == (1 if form == "mean" else plan().steps)
    private.detach()


def test_a_scaler_of_gradients_is_refused():
    """How often it halves its scale depends on the gradients of single examples."""
    model = network()
    private, _ = wrap(model, plan(), reduction="sum")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for inputs, targets in private.batches(data(64)):
        with torch.autocast("cpu", dtype=torch.float16):
            losses = each(model(inputs), targets)
        with pytest.raises(InvalidValue, match="GradScaler"):
            scaler.scale(losses.sum()).backward()
        break
    private.detach()


@pytest.mark.parametrize("kind", HALVES)
def test_half_precision_parameters_are_trained_by_a_trainer(kind):
    model = network().to(kind)
    rows, labels = data(64).tensors
    trained = dpsgd.Trainer(
        model,
        plan(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=each,
    ).fit(TensorDataset(rows.to(kind), labels))
    assert trained.certificate.epsilon == plan().epsilon()
    assert {one.dtype for one in trained.model.parameters()} == {kind}
