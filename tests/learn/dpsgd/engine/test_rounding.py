"""The bounds of the rounding bounds against exact arithmetic in double precision."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from discreet.learn.dpsgd.engine import _forms as rounding
from discreet.learn.dpsgd.engine._convolution import Geometry


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def exact(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Norm and spread in double precision."""
    left, right = left.double(), right.double()
    whole = torch.einsum("itp,itd->ipd", left, right).flatten(1).norm(dim=1)
    return whole, (left.norm(dim=2) * right.norm(dim=2)).sum(1)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    half=st.integers(1, 40),
    widths=st.tuples(st.integers(1, 1200), st.integers(1, 600)),
    near=st.sampled_from([0.0, 1e-7, 1e-4, 1e-2, 1.0]),
    sizes=st.tuples(st.integers(-12, 9), st.integers(-12, 9)),
)
def test_gram_norms_are_upper_bounds(
    seed: int, half: int, widths: tuple[int, int], near: float, sizes: tuple[int, int]
) -> None:
    first, second = normal(2, half, widths[0], seed=seed), normal(2, half, widths[1], seed=seed + 1)
    left = torch.cat([first, -first], dim=1) * 10.0 ** sizes[0]
    right = torch.cat([second, second * (1 + near)], dim=1) * 10.0 ** sizes[1]
    whole, spreads = exact(left, right)
    squares = rounding.gram_squared_norms(left, right).double()
    squares = squares.nan_to_num(nan=math.inf)  # overflow; neither gets a weight
    assert bool((squares >= whole.square() * (1 - 1e-6)).all())
    limit = max(64.0, 4 * math.sqrt(2 * half))
    assert bool((squares.sqrt() * limit >= spreads * (1 - 1e-4)).all())
    assert bool((rounding.spread(left, right).double() >= spreads * (1 - 1e-4)).all())


def test_a_bare_gram_norm_is_no_upper_bound() -> None:
    """What the bound is for: without it, norms come out as zero or less."""
    short = 0
    for seed in range(20):
        first, second = normal(1, 1, 512, seed=seed), normal(1, 1, 512, seed=seed + 99)
        left = torch.cat([first, -first], dim=1)
        right = torch.cat([second, second * (1 + 1e-5)], dim=1)
        gram = torch.bmm(left, left.mT) * torch.bmm(right, right.mT)
        whole, _ = exact(left, right)
        short += bool(gram.sum() < 0.5 * whole.square().float())
    assert short > 0


def test_gram_norms_in_half_precision() -> None:
    left, right = normal(3, 20, 64).bfloat16(), normal(3, 20, 48, seed=1).bfloat16()
    whole, _ = exact(left, right)
    norms = rounding.gram_squared_norms(left, right).double().sqrt()
    assert bool((norms >= whole * (1 - 1e-6)).all())
    assert bool((norms <= whole * 1.01).all())


def test_lower_precision_of_products_is_taken_into_account() -> None:
    value = torch.zeros(1)
    before = torch.get_float32_matmul_precision()
    try:
        found = []
        for precision in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(precision)
            found.append(rounding.input_roundoff(value))
    finally:
        torch.set_float32_matmul_precision(before)
    assert found == [0.0, 2.0**-11, 2.0**-8]
    assert rounding.input_roundoff(value.double()) == 0.0


@pytest.mark.parametrize("width", [1, 4096, 8192, 8193, 100_000, 3_000_001])
def test_lengths_of_long_rows(width: int) -> None:
    for value in (0.1, 0.3, 0.7):
        rows = torch.full((2, width), value)
        true = rows.double().norm(dim=1)
        assert float((rounding.lengths(rows).double() / true - 1).abs().max()) < 1e-5
    random = normal(3, width).view(3, 1, width)
    true = random.double().flatten(1).norm(dim=1)
    assert torch.allclose(rounding.lengths(random).double(), true, rtol=1e-6, atol=0)


@settings(max_examples=60, deadline=None)
@given(
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 4),
    padding=st.integers(0, 2),
    seed=st.integers(0, 1000),
)
def test_the_spread_of_patches_is_an_upper_bound(
    kernel: int, stride: int, dilation: int, padding: int, seed: int
) -> None:
    geometry = Geometry(
        (kernel,) * 2, (stride,) * 2, (padding,) * 2, (padding,) * 2, (dilation,) * 2, 1, False
    )
    images = normal(2, 3, 20, 20, seed=seed)
    patches = torch.nn.functional.unfold(images, kernel, dilation, padding, stride)
    maps = normal(2, 4, patches.shape[2], seed=seed + 1)
    spreads = (patches.norm(dim=1) * maps.norm(dim=1)).sum(1)
    bound = rounding.patch_spread(maps, images, geometry.overlap())
    assert bool((bound >= spreads * (1 - 1e-5)).all())
    assert (
        float(patches.square().sum()) <= geometry.overlap() * float(images.square().sum()) * 1.001
    )
