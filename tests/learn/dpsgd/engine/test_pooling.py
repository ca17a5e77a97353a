"""Max pooling in another memory order gives torch's own values and gradients, bit by bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from discreet.learn.dpsgd.engine import GradientEngine
from discreet.learn.dpsgd.engine._pooling import max_pool2d


def both(images: Tensor, *args: object) -> list[tuple[Tensor, Tensor]]:
    results = []
    for pool in (F.max_pool2d, max_pool2d):
        given_images = images.detach().requires_grad_()
        pooled = pool(given_images, *args)
        torch.manual_seed(3)
        pooled.backward(torch.randn_like(pooled))
        assert given_images.grad is not None
        results.append((pooled.detach(), given_images.grad))
    return results


@settings(max_examples=60, deadline=None)
@given(
    channels=st.integers(1, 20),
    height=st.integers(5, 12),
    width=st.integers(5, 12),
    kernel=st.integers(1, 3),
    stride=st.one_of(st.none(), st.integers(1, 3)),
    pad=st.booleans(),
    dilation=st.integers(1, 2),
    ceil_mode=st.booleans(),
    double=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_bit_by_bit(
    channels: int,
    height: int,
    width: int,
    kernel: int,
    stride: int | None,
    pad: bool,
    dilation: int,
    ceil_mode: bool,
    double: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    # Few values, so that most windows have ties; and values that compare in odd ways.
    images = torch.randint(-2, 3, (3, channels, height, width)).to(
        torch.float64 if double else torch.float32
    )
    images[0, 0, 0, :3] = torch.tensor([-0.0, float("inf"), float("-inf")])
    images[1, -1, 1, 2] = float("nan")
    plain, ours = both(images, kernel, stride, kernel // 2 if pad else 0, dilation, ceil_mode)
    for one, other in zip(plain, ours, strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
        assert other.is_contiguous()


def test_what_it_does_not_cover_is_left_to_torch() -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 16, 6, 6)
    values, places = max_pool2d(images, 2, return_indices=True)
    expected = F.max_pool2d(images, 2, return_indices=True)
    assert torch.equal(values, expected[0])
    assert torch.equal(places, expected[1])
    assert torch.equal(max_pool2d(images[0], (2, 3)), F.max_pool2d(images[0], (2, 3)))
    assert max_pool2d(images[:0], 2).shape == (0, 16, 3, 3)
    with pytest.raises(RuntimeError, match="pad should be"):
        max_pool2d(images, 2, padding=2)


@pytest.mark.parametrize("inplace", [False, True])
def test_recorded_gradients_are_those_of_single_examples(inplace: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.ReLU(inplace=inplace),
        nn.Flatten(),
        nn.Linear(8 * 25, 3),
    )
    inputs, labels = torch.randn(5, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1])
    engine = GradientEngine(model)
    with engine.recording(5):
        F.cross_entropy(model(inputs), labels, reduction="sum").backward()
        norms = engine.squared_norms()[0]
    engine.detach()
    for at in range(5):
        model.zero_grad()
        F.cross_entropy(model(inputs[at : at + 1]), labels[at : at + 1]).backward()
        alone = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
        assert float(norms[at]) == pytest.approx(alone, rel=1e-4)
