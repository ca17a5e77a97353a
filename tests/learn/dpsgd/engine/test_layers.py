"""Every kind of layer: engine = microbatch loop = torch.func."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from discreet.learn.dpsgd import verify_attribution
from learn.dpsgd.engine.judges import check

torch.set_num_threads(1)

# torch says this of its own accord, with and without the engine.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ids(*shape: int, below: int = 7, seed: int = 0) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


LAYERS = {
    "linear": (lambda: nn.Linear(4, 3), normal(5, 4)),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False), normal(5, 4)),
    "linear on sequences": (lambda: nn.Linear(4, 3), normal(5, 6, 4)),
    "linear on long sequences": (lambda: nn.Linear(4, 3), normal(3, 40, 4)),
    "linear on short sequences": (lambda: nn.Linear(40, 30), normal(3, 2, 40)),
    "linear on grids": (lambda: nn.Linear(4, 3), normal(5, 2, 3, 4)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), normal(5, 3, 9)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1), normal(5, 3, 6, 7)),
    "conv2d without bias": (lambda: nn.Conv2d(3, 4, (3, 2), bias=False), normal(5, 3, 6, 7)),
    "conv2d strided": (
        lambda: nn.Conv2d(3, 4, 3, stride=(2, 3), padding=(1, 0)),
        normal(5, 3, 8, 9),
    ),
    "conv2d dilated": (lambda: nn.Conv2d(3, 4, 2, dilation=(2, 3)), normal(5, 3, 8, 9)),
    "conv2d grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), normal(5, 4, 6, 6)),
    "conv2d depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1), normal(5, 4, 6, 6)),
    "conv2d same": (lambda: nn.Conv2d(3, 4, (4, 2), padding="same"), normal(5, 3, 6, 7)),
    "conv2d valid": (lambda: nn.Conv2d(3, 4, 2, padding="valid"), normal(5, 3, 6, 7)),
    "conv2d one position": (lambda: nn.Conv2d(8, 9, 3), normal(5, 8, 3, 3)),
    "conv2d one position same": (lambda: nn.Conv2d(8, 9, 2, padding="same"), normal(5, 8, 1, 1)),
    "conv2d reflect": (
        lambda: nn.Conv2d(3, 4, 3, padding=2, padding_mode="reflect"),
        normal(5, 3, 6, 7),
    ),
    "conv2d circular": (
        lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"),
        normal(5, 3, 6, 7),
    ),
    "conv2d replicate": (
        lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="replicate"),
        normal(5, 3, 6, 7),
    ),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, padding=1, stride=(1, 2, 1)), normal(4, 2, 4, 5, 3)),
    "conv transpose 1d": (lambda: nn.ConvTranspose1d(3, 4, 3, stride=2), normal(5, 3, 5)),
    "conv transpose 2d": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        normal(5, 4, 5, 4),
    ),
    "conv transpose output padding": (
        lambda: nn.ConvTranspose2d(2, 3, 2, dilation=3, output_padding=2),
        normal(4, 2, 4, 4),
    ),
    "conv transpose one position": (lambda: nn.ConvTranspose2d(9, 8, 2), normal(5, 9, 1, 1)),
    "conv transpose 3d": (lambda: nn.ConvTranspose3d(2, 3, 2, dilation=2), normal(4, 2, 3, 3, 2)),
    "embedding": (lambda: nn.Embedding(7, 3), ids(5, 6)),
    "embedding of one id": (lambda: nn.Embedding(7, 3), ids(5)),
    "embedding with padding": (lambda: nn.Embedding(7, 3, padding_idx=2), ids(5, 6)),
    "embedding with padding from the end": (lambda: nn.Embedding(7, 3, padding_idx=-1), ids(5, 6)),
    "embedding of scattered ids": (lambda: nn.Embedding(7, 3), ids(6, 10).t()[:5, ::2]),
    "embedding of grids": (lambda: nn.Embedding(7, 3), ids(5, 2, 4)),
    "embedding bag mean": (lambda: nn.EmbeddingBag(7, 3), ids(5, 6)),
    "embedding bag sum": (lambda: nn.EmbeddingBag(7, 3, mode="sum"), ids(5, 6)),
    "embedding bag padding": (lambda: nn.EmbeddingBag(7, 3, padding_idx=1), ids(5, 6)),
    "layer norm": (lambda: nn.LayerNorm(4), normal(5, 4)),
    "layer norm on sequences": (lambda: nn.LayerNorm(4), normal(5, 6, 4)),
    "layer norm on images": (lambda: nn.LayerNorm((3, 4)), normal(5, 2, 3, 4)),
    "layer norm without shift": (lambda: nn.LayerNorm(4, bias=False), normal(5, 6, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), normal(5, 4, 3, 3)),
    "group norm on vectors": (lambda: nn.GroupNorm(1, 4), normal(5, 4)),
    "instance norm 1d": (lambda: nn.InstanceNorm1d(3, affine=True), normal(5, 3, 6)),
    "instance norm 2d": (lambda: nn.InstanceNorm2d(3, affine=True), normal(5, 3, 4, 4)),
    "instance norm 3d": (lambda: nn.InstanceNorm3d(3, affine=True), normal(5, 3, 2, 3, 2)),
    "rms norm": (lambda: nn.RMSNorm(4), normal(5, 6, 4)),
    "prelu": (lambda: nn.PReLU(), normal(5, 4)),
    "prelu of channels": (lambda: nn.PReLU(3), normal(5, 3, 4)),
    "bilinear": (lambda: Pair(), normal(5, 4)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), normal(5, 4)),
    "orthogonal": (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), normal(5, 4)),
    "batch norm with fixed statistics": (lambda: fixed(nn.BatchNorm2d(3)), normal(5, 3, 4, 4)),
    "instance norm with fixed statistics": (
        lambda: fixed(nn.InstanceNorm1d(3, affine=True, track_running_stats=True)),
        normal(5, 3, 4),
    ),
}


class Pair(nn.Module):
    """Bilinear in its input and a shifted copy: there is no rule for it."""

    def __init__(self) -> None:
        super().__init__()
        self.form = nn.Bilinear(4, 4, 3)

    def forward(self, data: Tensor) -> Tensor:
        return self.form(data, data + 1)


def fixed(layer: nn.Module) -> nn.Module:
    """A training model around a layer in evaluation mode, with statistics that are not trivial."""
    layer.running_mean += torch.arange(3)
    layer.running_var += torch.arange(3)
    model = nn.Sequential(layer)
    model.train()
    layer.eval()
    return model


def made(kind: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(3)
    model = LAYERS[kind][0]().to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += torch.randn_like(parameter)
    return model


# torch.func itself warns or fails here; the microbatch loop judges alone.
NOT_FOR_TORCH_FUNC = {
    "bilinear",
    "embedding bag mean",
    "embedding bag sum",
    "embedding bag padding",
}


@pytest.mark.parametrize("kind", LAYERS)
def test_layer(kind: str) -> None:
    """First in the model, where no input gradient is needed; float64 leaves no doubt."""
    check(
        made(kind, torch.float64),
        LAYERS[kind][1],
        tolerance=1e-10,
        torch_func=kind not in NOT_FOR_TORCH_FUNC,
    )


@pytest.mark.parametrize("kind", LAYERS)
def test_layer_in_float32_behind_another(kind: str) -> None:
    data = LAYERS[kind][1]
    model = made(kind, torch.float32)
    if data.is_floating_point():
        data = data.to(torch.float32)
        model = nn.Sequential(Shift(data.shape[1:]), model)
    check(model, data, mean=True, torch_func=kind not in NOT_FOR_TORCH_FUNC)


class Shift(nn.Module):
    """A bare parameter in front, so that input gradients are needed."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.full(tuple(shape), 0.1))

    def forward(self, data: Tensor) -> Tensor:
        return data * 1.5 + self.by


@pytest.mark.parametrize("kind", LAYERS)
def test_units_of_several_rows(kind: str) -> None:
    """Augmentation multiplicity: the gradient of a unit is the mean over its rows."""
    data = LAYERS[kind][1]
    data = torch.cat([data, data.flip(-1)])[:6] if data.ndim > 1 else torch.cat([data, data])[:6]
    check(
        made(kind, torch.float64),
        data,
        repeats=3,
        tolerance=1e-10,
        torch_func=kind not in NOT_FOR_TORCH_FUNC,
    )


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("rows", [0, 1])
def test_no_example_and_one(kind: str, rows: int) -> None:
    check(
        made(kind, torch.float64),
        LAYERS[kind][1][:rows],
        tolerance=1e-10,
        torch_func=kind not in NOT_FOR_TORCH_FUNC,
    )


@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind.startswith(("conv2d", "group"))])
def test_channels_last(kind: str) -> None:
    data = LAYERS[kind][1]
    if data.ndim == 4:
        data = data.to(memory_format=torch.channels_last)
        model = made(kind, torch.float64).to(memory_format=torch.channels_last)
        check(model, data, tolerance=1e-10, torch_func=kind not in NOT_FOR_TORCH_FUNC)
    else:
        check(
            made(kind, torch.float64),
            data.t().contiguous().t(),
            tolerance=1e-10,
            torch_func=kind not in NOT_FOR_TORCH_FUNC,
        )


class ThenInPlace(nn.Module):
    """A layer behind another, whose result is changed in place as by nn.ReLU(inplace=True)."""

    def __init__(self, shape: torch.Size, layer: nn.Module) -> None:
        super().__init__()
        self.before, self.layer = Shift(shape), layer

    def forward(self, data: Tensor) -> Tensor:
        if data.is_floating_point():
            data = self.before(data)
        return self.layer(data).mul_(1.5).add_(0.1)


@pytest.mark.parametrize("kind", LAYERS)
def test_an_operation_in_place_behind_a_layer(kind: str) -> None:
    data = LAYERS[kind][1]
    model = ThenInPlace(data.shape[1:], made(kind, torch.float64)).double()
    if not data.is_floating_point():
        model.before = nn.Identity()
    check(model, data, tolerance=1e-10, torch_func=False)


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True)])
def test_the_trial_accepts_a_norm_followed_by_relu_in_place(norm: nn.Module) -> None:
    model = nn.Sequential(nn.Conv1d(3, 4, 3), norm, nn.ReLU(inplace=True), nn.Flatten())
    verify_attribution(model, torch.zeros(1, 3, 6))
