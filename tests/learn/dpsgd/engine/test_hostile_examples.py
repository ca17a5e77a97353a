"""Examples made to break floating point: none may contribute more than C or drown the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from discreet.learn.dpsgd._clipping import Automatic, Clipping, Flat
from discreet.learn.dpsgd.engine import GradientEngine
from discreet.learn.dpsgd.engine._forms import cheapest_form

Losses = Callable[[Tensor], Tensor]


def clipped(
    model: nn.Module,
    data: Tensor,
    losses: Losses,
    *,
    rule: Clipping | None = None,
    clip_norm: float = 1.0,
    start: Tensor | None = None,
) -> Tensor:
    """The clipped sum over all parameters as one float64 vector, added to ``start`` if given."""
    engine = GradientEngine(model)
    totals = [torch.zeros_like(p) for p in model.parameters()]
    if start is not None:
        for total, part in zip(totals, start.split([p.numel() for p in totals]), strict=True):
            total.copy_(part.view(total.shape))
    with engine.recording(data.shape[0]):
        losses(model(data)).sum().backward()
        weights = (rule or Flat()).weights(engine.squared_norms(), clip_norm=clip_norm)
        engine.add_clipped_sum(weights, totals)
    engine.detach()
    return torch.cat([total.double().flatten() for total in totals])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def times(factors: Tensor) -> Losses:
    return lambda outputs: (outputs * factors).flatten(1).sum(1)


# (examples, terms, outputs, inputs): by Gram matrices, stored, stored, formed twice.
SHAPES = [(2, 2, 512, 512), (8, 90, 180, 190), (64, 32, 64, 80), (256, 20, 36, 36)]


def test_the_shapes_take_different_ways() -> None:
    assert [cheapest_form(*shape) for shape in SHAPES] == ["gram", "store", "store", "pass"]
    assert cheapest_form(16, 64, 64, 32 * 9) == "store"
    assert cheapest_form(16, 64, 128, 64 * 9) != "store"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1e6, 1e9, 1e15])
def test_terms_that_cancel(shape: tuple[int, int, int, int], size: float) -> None:
    examples, terms, outputs, inputs = shape
    half = terms // 2
    for seed in range(5):
        data = torch.zeros(examples, terms, inputs)
        rows = normal(half, inputs, seed=seed) * size / inputs**0.5
        near = normal(half, inputs, seed=seed + 50) * size * 1e-4 / inputs**0.5
        data[0] = torch.cat([rows, (rows + near).flip(0)])
        factors = torch.zeros(examples, terms, outputs)
        signs = normal(half, outputs, seed=seed + 100) / outputs**0.5
        factors[0] = torch.cat([signs, -signs.flip(0)])
        model = nn.Linear(inputs, outputs, bias=False)
        total = clipped(model, data, times(factors))
        assert float(total.norm()) <= 1 + 2**-10


@pytest.mark.parametrize("shape", SHAPES)
def test_terms_that_cancel_leave_others_and_noise_alone(shape: tuple[int, ...]) -> None:
    examples, terms, outputs, inputs = shape
    model = nn.Linear(inputs, outputs, bias=False)
    data = normal(examples, terms, inputs) * 1e-2
    noise = normal(outputs * inputs, seed=3)
    factors = torch.ones(examples, terms, outputs)
    with_zero, hostile = data.clone(), data.clone()
    with_zero[1] = 0
    hostile[1] = 0
    hostile[1, 0], hostile[1, -1] = 1e15, -1e15
    before = clipped(model, with_zero, times(factors), start=noise)
    after = clipped(model, hostile, times(factors), start=noise)
    assert float((after - before).norm()) <= 2**-10


class Pool(nn.Module):
    """An embedding whose example's rows cancel exactly, in a table shared with the others."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids)


def test_looked_up_rows_that_cancel_leave_others_and_noise_alone() -> None:
    noise = normal(15)
    ids = torch.tensor([[1, 1, 2], [2, 2, 2], [1, 0, 3]])
    factors = torch.zeros(3, 3, 3)
    factors[1:] = normal(2, 3, 3)
    before = clipped(Pool(), ids, times(factors), start=noise)
    factors[0, 0], factors[0, 1] = 1e20, -1e20
    after = clipped(Pool(), ids, times(factors), start=noise)
    assert torch.equal(after, before)


class Tied(nn.Module):
    """Every output is a looked-up row times the table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(300, 64)
        nn.init.normal_(self.table.weight, generator=torch.Generator().manual_seed(1))

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids) @ self.table.weight.t()


@pytest.mark.parametrize("size", [1e4, 1e8, 1e12])
def test_tied_tables_whose_terms_cancel(size: float) -> None:
    ids = torch.randint(0, 300, (40, 6), generator=torch.Generator().manual_seed(2))
    ids[0, 3:] = ids[0, :3]
    factors = normal(40, 6, 300)
    noise = normal(300 * 64, seed=5)
    factors[0] = 0
    before = clipped(Tied(), ids, times(factors), start=noise)
    factors[0, :3] = normal(3, 300, seed=7) * size
    factors[0, 3:] = -factors[0, :3] * (1 + 1e-6)
    after = clipped(Tied(), ids, times(factors), start=noise)
    assert float((after - before).norm()) <= 1 + 2**-10


class Blurred(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(before, after, 3, padding=1, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images)


@pytest.mark.parametrize("size", [1e6, 1e12])
@pytest.mark.parametrize(("before", "after"), [(32, 64), (64, 128)])  # stored, formed twice
def test_convolutions_whose_positions_cancel(size: float, before: int, after: int) -> None:
    images = normal(16, before, 8, 8)
    row = normal(before, 1, 1, seed=1) * size
    factors = normal(16, after, 8, 8, seed=2)
    factors[0] = 0
    noise = normal(after * before * 9, seed=5)
    without = clipped(Blurred(before, after), images, times(factors), start=noise)
    images[0] = row.expand(before, 8, 8)
    factors[0, :, 2, 2:6] = normal(after, 1, seed=4)
    factors[0, :, 5, 2:6] = -factors[0, :, 2, 2:6]
    total = clipped(Blurred(before, after), images, times(factors), start=noise)
    assert float((total - without).norm()) <= 2**-8  # its own gradient is zero


@pytest.mark.parametrize("rule", [Flat(), Automatic()])
def test_squares_that_underflow(rule: Clipping) -> None:
    model = nn.Linear(1, 1000, bias=False)
    total = clipped(
        model, torch.full((1, 1), 1.5e19), times(torch.tensor(2.5e-23)), rule=rule, clip_norm=1e-3
    )
    assert float(total.norm()) <= 1e-3
    with_bias = nn.Linear(1, 1000)
    total = clipped(
        with_bias,
        torch.full((1, 1), 1.5e19),
        times(torch.tensor(2.5e-23)),
        rule=rule,
        clip_norm=1e-3,
    )
    assert float(total.norm()) <= 1e-3


def test_gram_matrices_that_underflow() -> None:
    model = nn.Linear(1024, 1024, bias=False)
    data = torch.full((1, 64, 1024), 1.0e19 / 1024**0.5)
    total = clipped(model, data, times(torch.tensor(2.5e-23)), clip_norm=0.1)
    assert float(total.norm()) <= 0.1


class Repeated(nn.Module):
    """A bare parameter of ten million entries, all with the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(10_000_000))

    def forward(self, data: Tensor) -> Tensor:
        return (data * self.values).sum(1)


def test_norms_of_many_equal_entries_are_not_cut_short() -> None:
    for value in (0.1, 0.3, 0.7):
        total = clipped(Repeated(), torch.full((1, 1), value), lambda outputs: outputs)
        assert float(total.norm()) <= 1.0


def test_ordinary_examples_are_clipped_as_before() -> None:
    """Norms for clipping exceed the true ones by less than one per cent."""
    for examples, terms, outputs, inputs in SHAPES:
        model = nn.Linear(inputs, outputs, bias=False)
        data, factors = normal(examples, terms, inputs), normal(examples, terms, outputs, seed=1)
        engine = GradientEngine(model)
        with engine.recording(examples):
            times(factors)(model(data)).sum().backward()
            norms = engine.squared_norms()[0].double().sqrt()
        engine.detach()
        exact = torch.bmm(factors.double().transpose(1, 2), data.double()).flatten(1).norm(dim=1)
        assert bool((norms >= exact * (1 - 2**-15)).all())
        assert bool((norms <= exact * 1.01).all())


def test_the_plain_twin_is_moved_by_what_these_examples_do() -> None:
    """In float32, terms added one after another do wipe out what was in a sum."""
    start = normal(4)
    assert not torch.equal((start + 1e20) - 1e20, start)
    assert float(F.linear(torch.tensor([2.5e-23]).square(), torch.ones(1, 1))) == 0.0
