"""Whole models: attention, recurrence, shared and tied weights, adapters, bare parameters."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.dpsgd.engine import GradientEngine
from learn.dpsgd.engine.judges import check

torch.set_num_threads(1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ids(*shape: int, below: int = 7) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(0))


def settled(model: nn.Module) -> nn.Module:
    """In float64, with every parameter moved away from zeros and ones."""
    model = model.double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(
                parameter.shape, generator=generator, dtype=torch.float64
            )
    return model


class Attend(nn.Module):
    def __init__(self, *, crossed: bool = False, **options: Any) -> None:
        super().__init__()
        self.crossed = crossed
        self.attention = nn.MultiheadAttention(4, 2, **options)

    def forward(self, data: Tensor) -> Tensor:
        other = torch.cat([data, data], dim=1 if self.attention.batch_first else 0) + 1
        keys = other if self.crossed else data
        values = keys.sin() if self.attention.kdim != 4 else keys
        return self.attention(data, keys, values, need_weights=self.crossed)[0]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"crossed": True}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}],
    ids=str,
)
def test_attention(options: dict[str, Any], batch_first: bool) -> None:
    axis = 0 if batch_first else 1
    data = normal(5, 3, 4) if batch_first else normal(3, 5, 4)
    model = settled(Attend(batch_first=batch_first, **options))
    check(model, data, axes=(axis,), out_axis=axis, tolerance=1e-9)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("size", [3, 5])
def test_transformer_layer(batch_first: bool, norm_first: bool, size: int) -> None:
    """Also with as many steps as examples, where sizes cannot tell the axis."""
    layer = nn.TransformerEncoderLayer(
        4, 2, 8, dropout=0.0, batch_first=batch_first, norm_first=norm_first
    )
    axis = 0 if batch_first else 1
    data = normal(5, size, 4) if batch_first else normal(size, 5, 4)
    check(settled(layer), data, axes=(axis,), out_axis=axis, tolerance=1e-9)


def test_decoder_layer() -> None:
    layer = nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    check(settled(layer), normal(5, 3, 4), normal(5, 6, 4, seed=2), tolerance=1e-9)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True},
        {"num_layers": 2, "bidirectional": True},
        {"bias": False, "num_layers": 2},
    ],
    ids=str,
)
def test_recurrent(kind: type[nn.Module], options: dict[str, Any]) -> None:
    model = settled(kind(3, 4, **options))
    axis = 0 if options.get("batch_first") else 1
    data = normal(5, 6, 3) if axis == 0 else normal(6, 5, 3)
    check(model, data, axes=(axis,), out_axis=axis, torch_func=False, tolerance=1e-9)
    check(model, data[:5, :5], axes=(axis,), out_axis=axis, torch_func=False, tolerance=1e-9)


def test_recurrent_variants() -> None:
    check(
        settled(nn.LSTM(3, 4, proj_size=2, batch_first=True)),
        normal(5, 6, 3),
        torch_func=False,
        tolerance=1e-9,
    )
    check(
        settled(nn.RNN(3, 4, nonlinearity="relu", batch_first=True)),
        normal(5, 6, 3),
        torch_func=False,
        tolerance=1e-9,
    )


class Stepwise(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, data: Tensor) -> Tensor:
        state = None
        for step in data.unbind(1):
            state = self.cell(step, state)
        return state[0] if isinstance(state, tuple) else state


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(kind: type[nn.Module]) -> None:
    check(settled(Stepwise(kind(3, 4))), normal(5, 4, 3), torch_func=False, tolerance=1e-9)


def test_recurrent_outputs_are_those_of_torch() -> None:
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        model = settled(kind(3, 4, num_layers=2, bidirectional=True))
        data = normal(6, 5, 3)
        plain = model(data)
        engine = GradientEngine(model)
        with engine.recording(5):
            ours = model(data)
        flat = [(plain[0], ours[0])]
        states = (plain[1], ours[1]) if kind is nn.LSTM else ((plain[1],), (ours[1],))
        flat += list(zip(*states, strict=True))
        for expected, given in flat:
            assert torch.allclose(expected, given, atol=1e-12)


def test_packed_sequences_are_refused() -> None:
    model = nn.LSTM(3, 4, batch_first=True)
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.ones(2, 3, 3), torch.tensor([3, 2]), batch_first=True
    )
    engine = GradientEngine(model)
    with engine.recording(2), pytest.raises(NotApplicable, match="packed"):
        model(packed)


class Twice(nn.Module):
    """One layer used twice, and once more on sequences."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, data: Tensor) -> Tensor:
        return self.layer(self.layer(data).tanh() + data)


@pytest.mark.parametrize(
    ("layer", "data"),
    [
        (lambda: nn.Linear(4, 4), normal(5, 4)),
        (lambda: nn.Linear(4, 4), normal(5, 6, 4)),
        (lambda: nn.Linear(12, 12), normal(5, 2, 12)),
        (lambda: nn.Conv2d(3, 3, 3, padding=1), normal(5, 3, 4, 4)),
        (lambda: nn.Conv2d(12, 12, 3, padding=1), normal(5, 12, 1, 1)),
        (lambda: nn.LayerNorm(4), normal(5, 6, 4)),
        (lambda: nn.GroupNorm(1, 4), normal(5, 4, 3)),
        (lambda: nn.PReLU(), normal(5, 4)),
    ],
    ids=["linear", "sequence", "short", "conv", "ghost conv", "layer norm", "group norm", "prelu"],
)
def test_a_layer_used_twice(layer: Any, data: Tensor) -> None:
    check(settled(Twice(layer())), data, tolerance=1e-9)


class Language(nn.Module):
    """Tied input and output embeddings, positions, a causal layer."""

    def __init__(self, *, words: int = 7, width: int = 4, steps: int = 6) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(steps, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, words)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        steps = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(steps, dtype=torch.float64)
        places = self.places(torch.arange(steps))
        return self.head(self.layer(self.words(tokens) + places, src_mask=mask, is_causal=True))


class Functional(Language):
    """The same tied weight by a plain call of F.linear."""

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1]).unsqueeze(0).expand(tokens.shape)
        hidden = self.layer(self.words(tokens) + self.places(places[:1]))
        return F.linear(hidden, self.words.weight)


class Spread(Language):
    """Positions repeated for every example in memory, or with an axis of size one."""

    def __init__(self, *, copied: bool) -> None:
        super().__init__()
        self.copied = copied

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1]).expand(tokens.shape)
        if self.copied:
            places = places.contiguous()
        return self.head(self.layer(self.words(tokens) + self.places(places)))


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("rows", [4, 6])
def test_positions_spread_over_the_batch(
    copied: bool, rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also with as many examples as positions."""
    check(settled(Spread(copied=copied)), ids(rows, 6), tolerance=1e-9)
    check(settled(Spread(copied=copied)), ids(rows, 6), repeats=2, tolerance=1e-9)
    check(settled(Spread(copied=copied)), ids(rows, 1), tolerance=1e-9)
    assert not caplog.records


def test_tied_embeddings() -> None:
    check(settled(Language()), ids(5, 6), tolerance=1e-9)
    check(settled(Language(words=60, width=2)), ids(3, 3, below=60), tolerance=1e-9)
    model = settled(Functional())
    model.head.bias.requires_grad_(False)
    check(model, ids(5, 6), tolerance=1e-9)
    check(model, ids(6, 6), tolerance=1e-9)


class Vision(nn.Module):
    """Patches, a class token and positions as bare parameters, and a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 4, 2, stride=2)
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.places = nn.Parameter(torch.zeros(1, 5, 4))
        self.temperature = nn.Parameter(torch.ones(()))
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(images.shape[0], -1, -1), tokens], dim=1)
        tokens = self.layer(tokens + self.places[:, : tokens.shape[1]])
        return self.head(tokens[:, 0]) / self.temperature.exp()


def test_bare_parameters(caplog: pytest.LogCaptureFixture) -> None:
    model = settled(Vision())
    check(model, normal(6, 1, 4, 4), tolerance=1e-9)
    check(model, normal(6, 1, 4, 4), repeats=2, tolerance=1e-9)
    check(model, normal(5, 1, 4, 4), tolerance=1e-9)
    assert not caplog.records, "rules suffice"


class Adapter(nn.Module):
    """A frozen layer with a trainable product of two thin matrices beside it (LoRA)."""

    def __init__(self, size: int, *, merge: bool) -> None:
        super().__init__()
        self.base = nn.Linear(size, size)
        self.base.requires_grad_(False)
        self.down = nn.Parameter(torch.zeros(2, size))
        self.up = nn.Parameter(torch.zeros(size, 2))
        self.merge = merge

    def forward(self, data: Tensor) -> Tensor:
        if self.merge:
            return F.linear(data, self.base.weight + self.up @ self.down, self.base.bias)
        return self.base(data) + (data @ self.down.T) @ self.up.t() * 0.5


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("shape", [(5, 6), (5, 3, 6)])
def test_adapters(merge: bool, shape: tuple[int, ...], caplog: pytest.LogCaptureFixture) -> None:
    model = settled(nn.Sequential(Adapter(6, merge=merge), nn.Tanh(), Adapter(6, merge=merge)))
    check(model, normal(*shape), tolerance=1e-9)
    assert not caplog.records


class Einsum(nn.Module):
    """Something no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.form = nn.Parameter(torch.zeros(4, 4, 3))

    def forward(self, data: Tensor, bias: float = 0.5) -> Tensor:
        return torch.einsum("bi,bj,ijk->bk", data, data, self.form) + bias


class Branching(Einsum):
    """Control flow that depends on data: vmap cannot follow it."""

    def forward(self, data: Tensor, bias: float = 0.5) -> Tensor:
        return super().forward(data if float(data.detach().sum()) > 0 else -2 * data)


def test_unknown_modules_go_through_torch_func(caplog: pytest.LogCaptureFixture) -> None:
    model = settled(nn.Sequential(nn.Linear(4, 4), Einsum(), nn.Linear(3, 2)))
    with caplog.at_level(logging.WARNING, logger="discreet.learn.dpsgd"):
        engine = GradientEngine(model)
        with engine.recording(3):
            model(normal(3, 4)).sum().backward()
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "einsum" in caplog.text
    assert "1 (Einsum)" in caplog.text
    assert engine.report["1.form"] == "torch.func"
    assert engine.report["0.weight"] == "linear"
    engine.detach()
    check(model, normal(5, 4), tolerance=1e-9)
    check(model, normal(6, 4), repeats=3, tolerance=1e-9)


class Block(nn.Module):
    """A container without parameters of its own, which uses that of a layer by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.after = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, data: Tensor, notes: Any = None) -> Tensor:
        square = torch.einsum("bi,ij,bj->b", data, self.inner.weight, data)
        if notes is not None:
            notes.seen = data
        return self.after(self.inner(data).tanh()) + square.unsqueeze(1)


class Around(nn.Module):
    """A block among layers with rules; ``way`` says how it is called."""

    def __init__(self, way: str = "plainly") -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(4, 4), Block(), nn.Linear(4, 2)
        self.way = way
        self.borrowed = [self.last.weight]

    def forward(self, data: Tensor) -> Tensor:
        hidden = self.first(data).tanh()
        if self.way == "several rows":  # for each example
            pairs = torch.stack([hidden, hidden * 2], 1).reshape(-1, 4)
            hidden = self.block(pairs).reshape(-1, 2, 4).sum(1)
        elif self.way == "an object":
            hidden = self.block(hidden, type("Notes", (), {})())
        elif self.way == "a weight of others":
            hidden = self.block(hidden @ self.borrowed[0].t() @ self.borrowed[0])
        else:
            hidden = self.block(hidden)
        return self.last(hidden)


@pytest.mark.parametrize(
    ("way", "others"),
    [
        ("plainly", "linear"),
        ("several rows", "linear"),
        ("an object", "torch.func"),
        ("a weight of others", "linear"),
    ],
)
def test_the_smallest_module_without_a_rule_runs_by_example(way: str, others: str) -> None:
    """Or the one around it, where it cannot be handed its examples one by one."""
    model = settled(Around(way))
    engine = GradientEngine(model)
    for _ in range(2):  # a pass that fails half way leaves nothing behind
        with engine.recording(3):
            model(normal(3, 4)).sum().backward()
    assert "torch.func" in engine.report["block.inner.weight"]
    assert others in engine.report["first.weight"]
    assert ("torch.func" in engine.report["first.weight"]) == (others == "torch.func")
    engine.detach()
    check(model, normal(5, 4), torch_func=False, tolerance=1e-9)
    check(model, normal(6, 4), repeats=3, torch_func=False, tolerance=1e-9)


class Borrowing(nn.Module):
    """A container that uses a parameter which is not one of its own."""

    def __init__(self, owners: list[nn.Module]) -> None:
        super().__init__()
        self.inner, self.owners = nn.Linear(4, 4), owners

    def forward(self, data: Tensor) -> Tensor:
        square = torch.einsum("bi,ij,bj->b", data, self.inner.weight, data)
        return self.inner(data) @ self.owners[0].weight + square.unsqueeze(1)


def test_a_container_that_borrows_a_parameter_is_run_with_its_owner() -> None:
    first = nn.Linear(4, 4)
    model = settled(nn.Sequential(first, Borrowing([first]), nn.Linear(4, 2)))
    check(model, normal(5, 4), torch_func=False, tolerance=1e-9)


def test_modules_that_vmap_cannot_follow(caplog: pytest.LogCaptureFixture) -> None:
    model = settled(nn.Sequential(nn.Linear(4, 4), Branching(), nn.Linear(3, 2)))
    data = normal(5, 4)
    with caplog.at_level(logging.WARNING, logger="discreet.learn.dpsgd"):
        check(model, data, torch_func=False, tolerance=1e-9)
    assert "one by one" in caplog.text


class Whole(nn.Module):
    """A child's weight used by its parent in a way no rule knows: the parent is the black box."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, data: Tensor) -> Tensor:
        return torch.einsum("bi,ji->bj", self.inner(data), self.inner.weight)


def test_the_whole_model_as_a_black_box() -> None:
    check(settled(Whole()), normal(5, 4), tolerance=1e-9)


def test_time_first_is_refused_when_it_cannot_be_told() -> None:
    """A linear layer between sequence-first layers, with as many steps as examples."""

    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 4)
            self.second = nn.GRU(4, 4)

        def forward(self, data: Tensor) -> Tensor:
            return self.second(self.first(data))[0]

    model = settled(Between())
    check(model, normal(6, 5, 3), axes=(1,), out_axis=1, torch_func=False, tolerance=1e-9)
    engine = GradientEngine(model)
    with engine.recording(5), pytest.raises(InvalidValue, match="batch_axis"):
        model(normal(5, 5, 3))
    engine.detach()
    check(
        model,
        normal(5, 5, 3),
        axes=(1,),
        out_axis=1,
        torch_func=False,
        tolerance=1e-9,
        batch_axis=1,
    )
    engine = GradientEngine(model)
    with engine.recording(5):
        model(normal(6, 5, 3))  # a shape that tells
    with engine.recording(5):
        model(normal(5, 5, 3))[0].sum().backward()
        norms = engine.squared_norms()
    assert norms.shape == (1, 5)


def test_wrong_sizes_are_refused() -> None:
    model = nn.Linear(3, 2)
    engine = GradientEngine(model)
    with engine.recording(4), pytest.raises(InvalidValue, match="examples along the first axis"):
        model(torch.ones(5, 3))
    with engine.recording(4), pytest.raises(NotApplicable, match="no axis"):
        model(torch.ones(3))


def test_examples_merged_with_positions() -> None:
    """(examples * positions, features), examples outermost."""

    class Flatten(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.linear = nn.Linear(4, 4)
            self.shift = nn.Parameter(torch.zeros(4))
            self.norm = nn.LayerNorm(4)
            self.conv = nn.Conv1d(2, 3, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            flat = self.embed(tokens.reshape(-1))
            flat = self.norm(self.linear(flat).tanh() + self.shift)
            images = self.conv(flat.reshape(-1, 2, 4))
            return images.reshape(tokens.shape[0], -1)

    check(settled(Flatten()), ids(5, 6), tolerance=1e-9)
    check(settled(Flatten()), ids(6, 6), repeats=2, tolerance=1e-9)


def test_dropout_is_drawn_once() -> None:
    """The recorded pass is the only one: same draws, same gradients as plain autograd."""
    for middle in (nn.Linear(6, 4), Einsum4()):
        model = settled(nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), middle))
        data = normal(5, 4)
        torch.manual_seed(9)
        model(data).square().sum().backward()
        plain = {name: p.grad.clone() for name, p in model.named_parameters()}
        model.zero_grad()
        engine = GradientEngine(model)
        torch.manual_seed(9)
        with engine.recording(5):
            model(data).square().sum().backward()
            engine.squared_norms()
            ours = engine.clipped_sum(torch.ones(1, 5, dtype=torch.float64))
        for name, gradient in plain.items():
            assert torch.allclose(gradient, ours[name], atol=1e-12)


class Einsum4(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.form = nn.Parameter(torch.zeros(6, 4))

    def forward(self, data: Tensor) -> Tensor:
        return torch.einsum("bi,ij->bj", data, self.form)


class Cubed(torch.autograd.Function):
    """Not a torch function: nothing sees it being called."""

    @staticmethod
    def forward(ctx: Any, data: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(data, weight)
        return data * weight**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        data, weight = ctx.saved_tensors
        return gradient * weight**3, (3 * gradient * data * weight**2).sum(0)


class Unseen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, data: Tensor) -> Tensor:
        return Cubed.apply(data, self.weight)


def test_parameters_that_act_unseen(caplog: pytest.LogCaptureFixture) -> None:
    model = settled(nn.Sequential(nn.Linear(4, 4), Unseen(), nn.Linear(4, 2)))
    with caplog.at_level(logging.WARNING, logger="discreet.learn.dpsgd"):
        check(model, normal(5, 4), torch_func=False, tolerance=1e-9)
    assert "1 (Unseen): something other than a torch function uses 1.weight" in caplog.text
