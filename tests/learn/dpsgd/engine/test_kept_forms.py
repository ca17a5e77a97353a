"""What is kept of a gradient between the backward pass and the weighted sum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from discreet.errors import InvalidValue
from discreet.learn.dpsgd.engine import GradientEngine
from discreet.learn.dpsgd.engine._convolution import Convolved, Geometry
from discreet.learn.dpsgd.engine._forms import (
    WEIGHTED,
    Lookup,
    Outer,
    pieces,
    require_unchanged,
)
from discreet.learn.dpsgd.engine._normalization import gains

torch.set_num_threads(1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("repeated", [0, 1, 30])
def test_rows_of_one_example_are_added_before_the_norm(repeated: int) -> None:
    generator = torch.Generator().manual_seed(repeated)
    ids = torch.stack([torch.randperm(40, generator=generator)[:31] for _ in range(4)])
    ids[:, :repeated] = ids[:, repeated : repeated + 1]
    owner = torch.arange(4).repeat_interleave(31)
    values = normal(4 * 31, 3)
    before = values.clone()
    table = torch.zeros(4, 40, 3, dtype=torch.float64)
    table.index_put_((owner, ids.reshape(-1)), values, accumulate=True)
    part = Lookup(owner, ids.reshape(-1), values, examples=4, shape=torch.Size((40, 3)))
    torch.testing.assert_close(part.squared_norms(), table.square().sum((1, 2)))
    weights = normal(4, seed=1)
    total = torch.zeros(40, 3, dtype=torch.float64)
    part.add_to(total, weights, 2.0)
    torch.testing.assert_close(total, 2 * torch.einsum("n,nij->ij", weights, table))
    torch.testing.assert_close(part.per_example(), table)
    assert torch.equal(values, before)  # others may use them too


def test_rows_that_cancel_have_no_norm() -> None:
    values = torch.tensor([[1e20], [1.0], [-1e20]], dtype=torch.float32)
    ids = torch.tensor([2, 1, 2])
    part = Lookup(torch.zeros(3).long(), ids, values, examples=1, shape=torch.Size((4, 1)))
    assert part.squared_norms().item() == pytest.approx(1.0, rel=1e-5)


def test_no_rows() -> None:
    none = torch.zeros(0).long()
    part = Lookup(none, none, torch.zeros(0, 3), examples=2, shape=torch.Size((4, 3)))
    assert part.squared_norms().tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("p", "d"), [(700, 900), (900, 700)])
def test_large_factors_are_weighted_in_pieces(p: int, d: int) -> None:
    examples = 2048
    assert len(pieces(min(p, d), examples, most=WEIGHTED)) > 1
    left, right, weights = normal(examples, p), normal(examples, d, seed=1), normal(examples)
    total = normal(p, d, seed=2)
    expected = total + 0.5 * left.t() @ (right * weights.unsqueeze(1))
    Outer(left, right, torch.Size((p, d))).add_to(total, weights, 0.5)
    torch.testing.assert_close(total, expected)


@pytest.mark.parametrize("features", [1, 2])
@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16])
def test_gains_of_many_units(features: int, kind: torch.dtype) -> None:
    """In pieces, and for halves whose statistics are in float32."""
    shape = (3000,) if features == 1 else (60, 50)
    data, gradient = normal(7, 40, *shape).to(kind), normal(7, 40, *shape, seed=1).to(kind)
    axes = tuple(range(2, 2 + features))
    wide = torch.float64 if kind == torch.float64 else torch.float32
    mean = data.to(wide).mean(axes, keepdim=True)
    rstd = data.to(wide).var(axes, keepdim=True).rsqrt()
    expected = ((data.double() - mean.double()) * rstd.double() * gradient.double()).sum(1)
    found = gains(data, mean, rstd, gradient, features=features)
    assert found.dtype == wide
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def use_of_a_kernel(examples: int = 6, channels: int = 4, inner: int = 2) -> Convolved:
    geometry = Geometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1, False)
    maps, images = normal(examples, channels, 5, 5), normal(examples, inner, 5, 5, seed=1)
    return Convolved(maps, images, geometry, torch.Size((channels, inner, 3, 3)))


def test_gradients_of_a_kernel_that_are_kept() -> None:
    use = use_of_a_kernel()
    expected = use.per_example()
    part = use.choose_form(6)
    use.maps.mul_(2)
    require_unchanged(part)  # nothing is left that could be overwritten
    torch.testing.assert_close(part.squared_norms(), expected.square().sum((1, 2, 3, 4)))
    torch.testing.assert_close(part.per_example(), expected)
    total = torch.zeros(4, 2, 3, 3, dtype=torch.float64)
    part.add_to(total, torch.ones(6, dtype=torch.float64), 2.0)
    torch.testing.assert_close(total, 2 * expected.sum(0))
    removed = torch.tensor([True, False, True, False, False, False])
    assert part.without(removed).per_example()[removed].abs().max() == 0


def test_factors_of_a_kernel_that_are_overwritten_raise() -> None:
    use = use_of_a_kernel(8, 100, 64)
    part = use.choose_form(8)
    use.maps.mul_(2)
    with pytest.raises(InvalidValue, match="in place"):
        require_unchanged(part)


def test_norms_of_two_convolutions() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 3, 2)).double()
    data = normal(4, 1, 6, 6)
    engine = GradientEngine(model)
    with engine.recording(4):
        model(data).square().sum().backward()
        norms = engine.squared_norms()[0]
    for row, norm in zip(data, norms, strict=True):
        gradients = torch.autograd.grad(model(row[None]).square().sum(), list(model.parameters()))
        expected = sum(part.square().sum() for part in gradients)
        torch.testing.assert_close(norm, expected)
