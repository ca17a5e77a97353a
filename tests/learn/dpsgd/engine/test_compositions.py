"""Random models put together from all kinds of layers, shared ones among them."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from learn.dpsgd.engine.judges import check

torch.set_num_threads(1)

WIDTH = 4

# Each keeps the shape (examples, steps, WIDTH).
LAYERS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "wide": lambda: nn.Sequential(nn.Linear(WIDTH, 9, bias=False), nn.Tanh(), nn.Linear(9, WIDTH)),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "rms norm": lambda: nn.RMSNorm(WIDTH),
    "conv": lambda: Across(nn.Conv1d(WIDTH, WIDTH, 3, padding=1)),
    "grouped conv": lambda: Across(nn.Conv1d(WIDTH, WIDTH, 3, padding="same", groups=2)),
    "transposed conv": lambda: Across(nn.ConvTranspose1d(WIDTH, WIDTH, 3, padding=1)),
    "group norm": lambda: Across(nn.GroupNorm(2, WIDTH)),
    "attention": lambda: First(nn.MultiheadAttention(WIDTH, 2, batch_first=True), times=3),
    "lstm": lambda: First(nn.LSTM(WIDTH, WIDTH, batch_first=True), times=1),
    "gru": lambda: First(nn.GRU(WIDTH, WIDTH, batch_first=True), times=1),
    "prelu": lambda: nn.PReLU(),
    "scale": lambda: Scale(),
    "einsum": lambda: Mixed(),
    "residual": lambda: Residual(nn.Linear(WIDTH, WIDTH)),
    "normed": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
}


class Across(nn.Module):
    """A layer over the steps."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, data: Tensor) -> Tensor:
        return self.layer(data.transpose(1, 2)).transpose(1, 2)


class First(nn.Module):
    """A layer with several outputs, the first of them."""

    def __init__(self, layer: nn.Module, *, times: int) -> None:
        super().__init__()
        self.layer = layer
        self.times = times

    def forward(self, data: Tensor) -> Tensor:
        return self.layer(*[data] * self.times)[0]


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((WIDTH,), 0.8))
        self.shift = nn.Parameter(torch.zeros(1, 1, WIDTH))

    def forward(self, data: Tensor) -> Tensor:
        return data * self.gain + self.shift


class Mixed(nn.Module):
    """An operation without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(WIDTH))

    def forward(self, data: Tensor) -> Tensor:
        return torch.einsum("bti,io->bto", data, self.weight)


class Residual(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, data: Tensor) -> Tensor:
        return data + self.layer(data).tanh()


def build(kinds: list[str], again: list[int], *, embed: bool) -> nn.Module:
    layers = [LAYERS[kind]() for kind in kinds]
    layers += [layers[at % len(layers)] for at in again]
    if embed:
        layers.insert(0, nn.Embedding(5, WIDTH))
    model = nn.Sequential(*layers).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


@settings(max_examples=60)
@given(
    kinds=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=4),
    again=st.lists(st.integers(0, 3), max_size=2),
    embed=st.booleans(),
    rows=st.sampled_from([1, 2, 3, 4, 6]),
    steps=st.integers(1, 5),
    split=st.booleans(),
    mean=st.booleans(),
    seed=st.integers(0, 99),
)
def test_random_models(
    kinds: list[str],
    again: list[int],
    embed: bool,
    rows: int,
    steps: int,
    split: bool,
    mean: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    model = build(kinds, again, embed=embed)
    if embed:
        data = torch.randint(5, (rows, steps))
    else:
        data = torch.randn(rows, steps, WIDTH, dtype=torch.float64)
    recurrent = any(kind in ("lstm", "gru") for kind in kinds)
    names = [name for name, _ in model.named_parameters()]
    groups = [names[: len(names) // 2], names[len(names) // 2 :]] if len(names) > 1 else None
    check(
        model,
        data,
        repeats=2 if split and rows % 2 == 0 else 1,
        mean=mean,
        groups=groups,
        torch_func=not recurrent,
        tolerance=1e-8,
    )
