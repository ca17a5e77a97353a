"""The isolation probe accepts what keeps examples apart and names what does not (S21)."""

from collections import deque

import pytest
import torch
from torch import nn

from discreet.errors import DiscreetError, InvalidValue, NotApplicable
from discreet.learn.dpsgd.isolation import (
    Culprit,
    TensorSpec,
    check_isolation,
)

VECTOR = TensorSpec((6,))
IMAGE = TensorSpec((3, 8, 8))
WORDS = TensorSpec((7,), torch.int64)


class Calls(nn.Module):
    """A module made of one function, with a linear layer in front of it."""

    def __init__(self, function, size=6):
        super().__init__()
        self.first = nn.Linear(size, size)
        self.function = function

    def forward(self, x):
        return self.function(self.first(x))


class OnlyPart(nn.Module):
    """The first element of what a layer returns."""

    def __init__(self, layer, *, same=False):
        super().__init__()
        self.layer, self.same = layer, same

    def forward(self, x):
        return self.layer(x, x, x)[0] if self.same else self.layer(x)[0]


class CachesTheLastBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.last = None

    def forward(self, x):
        shift = 0.0 if self.last is None else self.last
        self.last = x.detach().mean(0)
        return self.linear(x) + shift


class KeepsAQueue(nn.Module):
    """The memory bank of momentum contrast: rows of earlier batches."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.queue = deque(maxlen=2)

    def forward(self, x):
        self.queue.append(x.detach())
        return self.linear(x)


class HiddenMemory(nn.Module):
    """Keeps a batch where no attribute shows it; only a later answer can."""

    def __init__(self):
        super().__init__()
        memory = []

        class Recall(nn.Module):
            def forward(self, x):
                memory.append(float(x.detach().sum()))
                return x + sum(memory[:-1])

        self.linear, self.recall = nn.Linear(6, 6), Recall()

    def forward(self, x):
        return self.recall(self.linear(x))


class GradientMixer(nn.Module):
    """Its value is that of a linear layer until another example is not finite."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        h = self.linear(x)
        mean = h.mean(0)
        return h + (mean - mean.detach())


class MixingBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient.roll(1, 0)


class OneScaleForAll(torch.autograd.Function):
    """Its backward pass divides by the norm of the gradients of all examples."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient / gradient.norm()


class HookOnAll(nn.Module):
    """A hook that changes the gradients of all examples together."""

    def __init__(self, hook):
        super().__init__()
        self.linear, self.hook = nn.Linear(6, 6), hook

    def forward(self, x):
        h = self.linear(x)
        if h.requires_grad:
            h.register_hook(self.hook)
        return h.tanh()


class EvenBatches(nn.Module):
    """A batch of an odd number of examples gets another scale."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return self.linear(x) * (1 + len(x) % 2)


class PositionInBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.place = nn.Linear(6, 6), nn.Parameter(torch.zeros(100, 6))

    def forward(self, x):
        return self.linear(x) + self.place[: len(x)]


class ZeroScaled(nn.Module):
    """A residual block whose batch normalisation starts with scale zero."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x):
        return x + self.norm(self.linear(x))


def norm_after_convolution(norm):
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(inplace=True), nn.Flatten())


MIXERS = {
    "batch norm 1d": (nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), VECTOR, "1"),
    "batch norm 2d": (norm_after_convolution(nn.BatchNorm2d(4)), IMAGE, "1"),
    "batch norm without statistics": (
        norm_after_convolution(nn.BatchNorm2d(4, track_running_stats=False)),
        IMAGE,
        "1",
    ),
    "batch norm 3d": (
        nn.Sequential(nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2)),
        TensorSpec((1, 3, 4, 4)),
        "1",
    ),
    "batch norm at scale zero": (ZeroScaled(), VECTOR, "norm"),
    "mean over the batch": (Calls(lambda h: h - h.mean(0, keepdim=True)), VECTOR, ""),
    "softmax over the batch": (nn.Sequential(nn.Linear(6, 6), nn.Softmax(dim=0)), VECTOR, "1"),
    "attention along the batch": (
        OnlyPart(nn.MultiheadAttention(6, 2, batch_first=False), same=True),
        TensorSpec((5, 6)),
        "layer",
    ),
    "lstm along the batch": (OnlyPart(nn.LSTM(6, 4)), TensorSpec((5, 6)), "layer"),
    "sorted over the batch": (Calls(lambda h: h[h[:, 0].argsort(dim=0)]), VECTOR, ""),
    "rolled over the batch": (Calls(lambda h: torch.roll(h, 1, dims=0)), VECTOR, ""),
    "divided by the largest": (Calls(lambda h: h / h.abs().max()), VECTOR, ""),
    "stabilised by the largest": (
        Calls(lambda h: (h - h.max().detach()).exp().sum(1).log()),
        VECTOR,
        "",
    ),
    "mixup": (Calls(lambda h: 0.9 * h + 0.1 * h[torch.randperm(len(h))]), VECTOR, ""),
    "a number of the batch": (Calls(lambda h: (h, h.sum().item())), VECTOR, ""),
    "only the mean": (Calls(lambda h: h.mean()), VECTOR, ""),
}


@pytest.mark.parametrize("name", MIXERS)
def test_mixing_is_found_and_the_module_is_named(name):
    model, spec, culprit = MIXERS[name]
    report = check_isolation(model, inputs=spec)
    assert not report.ok
    assert culprit in [one.module for one in report.culprits if one.kind == "mixes"]
    others = {one.module for one in report.culprits} - {culprit}
    assert others == set(), "nobody else is accused"


def test_synchronised_batch_norm_is_found_in_training_mode():
    # Outside a process group it computes what batch normalisation does, on a GPU only;
    # the probe then fails loudly instead of passing it.
    model = nn.Sequential(nn.Linear(6, 6), nn.SyncBatchNorm(6))
    try:
        found = not check_isolation(model, inputs=VECTOR).ok
    except InvalidValue as error:
        found = "SyncBatchNorm" in str(error)
    assert found


@pytest.mark.parametrize(
    ("model", "culprit", "kind"),
    [
        (nn.Sequential(nn.Linear(6, 6), PositionInBatch()), "1", "order"),
        (Calls(lambda h: h / len(h)), "", "batch size"),
        (GradientMixer(), "", "mixes"),
        (Calls(MixingBackward.apply), "first", "gradient"),
        (Calls(OneScaleForAll.apply), "first", "gradient"),
        (HookOnAll(lambda g: g / g.norm()), "linear", "gradient"),
        (HookOnAll(lambda g: g * (10.0 / g.norm()).clamp(max=1.0)), "linear", "gradient"),
        (HookOnAll(lambda g: g * len(g)), "linear", "gradient"),
        (EvenBatches(), "", "batch size"),
        (CachesTheLastBatch(), "", "state"),
        (CachesTheLastBatch(), "", "carried"),
        (KeepsAQueue(), "", "state"),
        (HiddenMemory(), "", "unrepeatable"),
        (Calls(lambda h: torch.zeros_like(h)), "", "blind"),
        (Calls(lambda h: h[1:]), "", "unreadable"),
        (
            Calls(lambda h: h.squeeze().reshape(-1, 6) if len(h) > 1 else h[:, :7:0]),
            "",
            "batch size",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_other_ways_of_touching_are_found(model, culprit, kind):
    report = check_isolation(model, inputs=VECTOR)
    assert (culprit, kind) in [(one.module, one.kind) for one in report.culprits]


@pytest.mark.parametrize("hook", [lambda g: g.clamp(-0.1, 0.1), nn.functional.normalize])
def test_hooks_that_change_each_gradient_by_itself_are_accepted(hook):
    assert check_isolation(HookOnAll(hook), inputs=VECTOR).ok


def test_instance_norm_with_running_statistics_is_found_by_its_state():
    model = norm_after_convolution(nn.InstanceNorm2d(4, affine=True, track_running_stats=True))
    report = check_isolation(model, inputs=IMAGE)
    assert [(one.module, one.type, one.kind) for one in report.culprits] == [
        ("1", "InstanceNorm2d", "state")
    ]
    assert "running_mean" in report.culprits[0].evidence


def test_all_culprits_are_named_not_only_the_first():
    layers = [layer for _ in range(4) for layer in (nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU())]
    report = check_isolation(nn.Sequential(*layers), inputs=VECTOR)
    assert {one.module for one in report.culprits} == {"1", "4", "7", "10"}


class TwoWords(nn.Module):
    """Embeddings and a batch-first recurrent layer: (batch, time) -> (batch, classes)."""

    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.words, self.layer = nn.Embedding(50, 6, padding_idx=0), kind(6, 5, batch_first=True)
        self.last = nn.Linear(5, 4)

    def forward(self, words):
        return self.last(self.layer(self.words(words))[0][:, -1])


class TimeFirst(nn.Module):
    """(batch, time) outside, (time, batch) inside, (time * batch) for the last layer."""

    def __init__(self):
        super().__init__()
        self.words, self.layer, self.last = nn.Embedding(50, 6), nn.GRU(6, 5), nn.Linear(5, 4)

    def forward(self, words):
        h, _ = self.layer(self.words(words.T))
        return self.last(h.reshape(-1, 5)).reshape(len(h), -1, 4).transpose(0, 1)


class SinglePrecisionInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, x):
        return (self.layer(x).float() ** 2).softmax(1).to(x.dtype)


class Rotary(nn.Module):
    """Caches a table that depends on the length alone, and counts its calls."""

    def __init__(self):
        super().__init__()
        self.linear, self.table, self.calls = nn.Linear(6, 6), None, 0

    def forward(self, x):
        self.table, self.calls = torch.arange(x.shape[1]).to(x).cos(), self.calls + 1
        return self.linear(x) * self.table


class DropPath(nn.Module):
    def forward(self, x):
        return x * x.new_empty(len(x), 1).bernoulli_(0.7)


class Routed(nn.Module):
    """Every example goes to one expert; how much dropout draws depends on the others."""

    def __init__(self):
        super().__init__()
        self.gate, self.drop = nn.Linear(6, 3), nn.Dropout(0.5)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        chosen, out = self.gate(x).argmax(1), torch.zeros_like(x)
        for place, expert in enumerate(self.experts):
            out[chosen == place] = self.drop(expert(x[chosen == place]))
        return out


class FirstComeFirstServed(Routed):
    """Experts with room for one example: who comes later is dropped."""

    def forward(self, x):
        chosen, out = self.gate(x).argmax(1), torch.zeros_like(x)
        for place, expert in enumerate(self.experts):
            first = (chosen == place).nonzero()[:1, 0]
            out[first] = expert(x[first])
        return out


def transformer():
    layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.2, batch_first=True)
    return nn.Sequential(nn.Embedding(50, 6), nn.TransformerEncoder(layer, 2), nn.Linear(6, 4))


class StaysFrozen(nn.BatchNorm1d):
    def train(self, mode=True):
        return super().train(False)


def frozen_batch_norm():
    return nn.Sequential(nn.Linear(6, 6), StaysFrozen(6))


ISOLATING = {
    "layer norm": (nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)), VECTOR),
    "group norm": (norm_after_convolution(nn.GroupNorm(2, 4)), IMAGE),
    "instance norm": (norm_after_convolution(nn.InstanceNorm2d(4, affine=True)), IMAGE),
    "dropout": (nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.AlphaDropout(0.2)), VECTOR),
    "drop path": (nn.Sequential(nn.Linear(6, 6), DropPath()), VECTOR),
    "noise on activations": (Calls(lambda h: h + torch.randn_like(h)), VECTOR),
    "random slopes": (nn.Sequential(nn.Linear(6, 6), nn.RReLU()), VECTOR),
    "routing with dropout": (Routed(), VECTOR),
    "lstm": (TwoWords(), WORDS),
    "gru": (TwoWords(nn.GRU), WORDS),
    "lstm with its states": (nn.LSTM(6, 4, 2, batch_first=True, dropout=0.3), TensorSpec((5, 6))),
    "time first": (TimeFirst(), WORDS),
    "declared batch dimension": (nn.LSTM(6, 4), TensorSpec((5, 6), batch_dim=1)),
    "attention": (
        OnlyPart(nn.MultiheadAttention(6, 2, dropout=0.1, batch_first=True), same=True),
        TensorSpec((5, 6)),
    ),
    "transformer": (transformer(), WORDS),
    "embedding bag": (nn.Sequential(nn.EmbeddingBag(50, 6), nn.Linear(6, 4)), WORDS),
    "convolution": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.Flatten()), IMAGE),
    "transposed convolution": (nn.ConvTranspose2d(3, 4, 3, padding=1), IMAGE),
    "spectral norm": (nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), VECTOR),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), VECTOR),
    "frozen batch norm": (frozen_batch_norm(), VECTOR),
    "single precision inside": (SinglePrecisionInside(), VECTOR),
    "public cache and counter": (Rotary(), VECTOR),
    "channels last": (nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), IMAGE),
    "half precision": (nn.Linear(6, 6, dtype=torch.bfloat16), TensorSpec((6,), torch.bfloat16)),
    "several outputs": (Calls(lambda h: {"a": h, "b": (h.sum(1), h.unsqueeze(0))}), VECTOR),
    "zero-initialised": (Calls(lambda h: torch.relu(h) * 0.5), VECTOR),
}


@pytest.mark.parametrize("name", ISOLATING)
def test_isolating_models_are_accepted(name):
    model, spec = ISOLATING[name]
    report = check_isolation(model, inputs=spec)
    assert report.culprits == ()
    assert report.ok
    assert "cannot prove" in report.explain()
    assert {"others replaced", "order", "batch size", "state"} <= set(report.probes)


def test_experts_with_room_for_few_are_found():
    torch.manual_seed(3)
    report = check_isolation(FirstComeFirstServed(), inputs=VECTOR)
    assert {one.module for one in report.culprits} == {""}


@pytest.mark.parametrize("coin", [lambda h: torch.rand_like(h) - 0.5, torch.randn_like])
def test_mixing_in_random_amounts_is_found(coin):
    report = check_isolation(Calls(lambda h: h + coin(h) * h.mean(0)), inputs=VECTOR)
    assert [(one.module, one.kind) for one in report.culprits] == [("", "mixes")]


def test_a_layer_that_only_seems_frozen_is_found():
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    model[1].eval()  # until the next model.train()
    assert {one.module for one in check_isolation(model, inputs=VECTOR).culprits} == {"1"}


def test_the_accepted_list_would_see_a_mixer_behind_each_model():
    """Nobody is accepted because the probe saw nothing: each fails with a mixer behind it."""

    class Behind(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model, self.mixer = model, nn.Identity()
            self.mixer.forward = lambda value: value + 1e-6 * value.mean()

        def forward(self, *inputs):
            value = self.model(*inputs)
            while not isinstance(value, torch.Tensor):
                value = next(iter(value.values() if isinstance(value, dict) else value))
            return self.mixer(value)

    for name in ("lstm", "transformer", "dropout", "group norm", "frozen batch norm"):
        model, spec = ISOLATING[name]
        report = check_isolation(Behind(model), inputs=spec)
        assert {one.module for one in report.culprits} == {"mixer"}, name


def test_a_module_is_found_deep_inside():
    class Block(nn.Module):
        def __init__(self, norm):
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(4, 4, 3, padding=1), norm

        def forward(self, x):
            return x + self.norm(self.convolution(x))

    model = nn.Sequential(
        nn.Conv2d(3, 4, 1),
        nn.Sequential(Block(nn.GroupNorm(2, 4)), Block(nn.BatchNorm2d(4))),
        nn.Flatten(),
    )
    report = check_isolation(model, inputs=IMAGE)
    assert {one.module for one in report.culprits} == {"1.1.norm"}
    with pytest.raises(NotApplicable, match=r"1\.1\.norm \(BatchNorm2d\)"):
        report.require()


# --- manners ----------------------------------------------------------------------------


def test_the_model_and_the_generators_stay_as_they_were():
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)).eval()
    model[0].weight.requires_grad_(False)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    hooks = [len(module._forward_hooks) for module in model.modules()]
    generator = torch.get_rng_state()
    check_isolation(model, inputs=VECTOR)
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert not model.training
    assert model[0].weight.grad is None
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert torch.equal(generator, torch.get_rng_state())


def test_values_of_a_tensor_are_never_read():
    private = torch.full((3, 6), 1e30)
    seen = []

    class Spy(nn.Linear):
        def forward(self, x):
            seen.append(x.detach().abs().nan_to_num(0.0, 0.0, 0.0).max())
            return super().forward(x)

    assert check_isolation(Spy(6, 2), inputs=private).ok
    assert len(seen) > 10
    assert max(seen) < 1e6


def test_several_arguments_by_place_and_by_name():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 3), nn.Embedding(9, 3)

        def forward(self, x, words, mask=None):
            h = self.a(x) + self.b(words).sum(1)
            return h if mask is None else h.masked_fill(mask, 0.0)

    mask = TensorSpec((3,), torch.bool)
    assert check_isolation(Pair(), inputs=(VECTOR, WORDS)).ok
    assert check_isolation(Pair(), inputs={"x": VECTOR, "words": WORDS, "mask": mask}).ok


def test_made_up_values_respect_their_declared_range():
    model = Calls(lambda h: h)
    model.function = lambda h: (h - h.detach() + 1.0).log() + h
    logarithm = nn.Sequential(nn.Identity(), nn.Linear(6, 6))
    logarithm[0].forward = lambda x: x.log()
    with pytest.raises(InvalidValue, match="low= and high="):
        check_isolation(logarithm, inputs=VECTOR)
    report = check_isolation(logarithm, inputs=TensorSpec((6,), low=0.1, high=2.0))
    assert report.ok


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"inputs": "image"}, "inputs"),
        ({"inputs": ()}, "inputs"),
        ({"inputs": VECTOR, "loss": 3}, "loss"),
        ({"inputs": VECTOR, "reduction": "average"}, "reduction"),
        ({"inputs": TensorSpec((5,))}, "inputs"),
        ({"inputs": VECTOR, "targets": 4}, "targets"),
    ],
)
def test_bad_arguments_are_named(given, argument):
    with pytest.raises(InvalidValue) as caught:
        check_isolation(nn.Linear(6, 2), **given)
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"shape": [3]}, "shape"),
        ({"shape": (0,)}, "shape"),
        ({"shape": (), "dtype": torch.complex64}, "dtype"),
        ({"shape": (), "dtype": torch.int64, "values": 1}, "values"),
        ({"shape": (), "values": 5}, "values"),
        ({"shape": (), "low": 1.0, "high": 1.0}, "high"),
        ({"shape": (2,), "batch_dim": 2}, "batch_dim"),
    ],
)
def test_bad_descriptions_are_refused(arguments, argument):
    with pytest.raises(InvalidValue) as caught:
        TensorSpec(**arguments)
    assert caught.value.argument == argument


def test_a_model_that_cannot_be_copied_is_refused():
    model = nn.Linear(6, 2)
    model.kept = model.weight * 2  # not a leaf: torch refuses to copy it
    with pytest.raises(NotApplicable, match="copied"):
        check_isolation(model, inputs=VECTOR)
    with pytest.raises(DiscreetError):
        check_isolation("model", inputs=VECTOR)


def test_reports_are_values():
    report = check_isolation(nn.Sequential(nn.Linear(6, 2), nn.Softmax(0)), inputs=VECTOR)
    assert report == check_isolation(nn.Sequential(nn.Linear(6, 2), nn.Softmax(0)), inputs=VECTOR)
    assert report.culprits[0] == Culprit("1", "Softmax", "mixes", "others replaced")
    with pytest.raises(AttributeError):
        report.culprits = ()
