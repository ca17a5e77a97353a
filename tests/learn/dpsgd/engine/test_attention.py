"""Attention: torch's own function, whose projections are recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from discreet.errors import InvalidValue
from discreet.learn.dpsgd.engine import GradientEngine
from learn.dpsgd.engine.judges import check

torch.set_num_threads(1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Attend(nn.Module):
    """A map before, so that gradients go on; then self-attention."""

    def __init__(self, *, masked: str = "", before: bool = True, **options: Any) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6) if before else nn.Identity()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True, **options)
        self.masked = masked

    def forward(self, data: Tensor) -> Tensor:
        data = self.before(data)
        extra: dict[str, Any] = {}
        steps = data.shape[1]
        if self.masked:
            extra["attn_mask"] = torch.ones(steps, steps, dtype=torch.bool).triu(1)
        if self.masked == "causal":
            extra["is_causal"] = True
        return self.attention(data, data, data, need_weights=False, **extra)[0]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"masked": "causal"},
        {"masked": "by a mask"},
        {"add_zero_attn": True},
    ],
    ids=str,
)
def test_gradients(options: dict[str, Any], before: bool) -> None:
    torch.manual_seed(0)
    model = Attend(before=before, **options).double()
    check(model, normal(5, 4, 6), tolerance=1e-9, torch_func=False)


def test_gradients_through_other_kernels() -> None:
    torch.manual_seed(0)
    model = Attend().double()
    with sdpa_kernel(SDPBackend.MATH):
        check(model, normal(5, 4, 6), tolerance=1e-9, torch_func=False)


@pytest.mark.parametrize("frozen", ["in_proj", "out_proj"])
def test_frozen_projections(frozen: str) -> None:
    torch.manual_seed(0)
    model = Attend().double()
    for name, parameter in model.attention.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    check(model, normal(5, 4, 6), tolerance=1e-9, torch_func=False)


def test_batches_in_many_pieces() -> None:
    """More examples than fit into the cache at once."""
    torch.manual_seed(0)
    model = nn.MultiheadAttention(64, 4, batch_first=True).double()
    data = normal(12, 160, 64)
    engine = GradientEngine(model)
    loss = normal(12, 160, 64, seed=1)
    with engine.recording(12):
        (model(data, data, data, need_weights=False)[0] * loss).sum().backward()
        total = engine.clipped_sum(torch.ones(1, 12, dtype=torch.float64))
    (model(data, data, data, need_weights=False)[0] * loss).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(total[name], parameter.grad, rtol=1e-9, atol=1e-9)


def test_dropout_draws_as_torch_does() -> None:
    torch.manual_seed(0)
    model = Attend(dropout=0.5).double()
    data = normal(5, 4, 6)
    torch.manual_seed(3)
    expected = model(data)
    engine = GradientEngine(model)
    torch.manual_seed(3)
    with engine.recording(5):
        torch.testing.assert_close(model(data), expected)


def test_a_second_backward_pass_raises() -> None:
    """Gradients count once."""
    torch.manual_seed(0)
    model = Attend().double()
    model.attention.out_proj.requires_grad_(False)
    engine = GradientEngine(model)
    with engine.recording(5):
        loss = model(normal(5, 4, 6)).sum()
        loss.backward(retain_graph=True)
        with pytest.raises((RuntimeError, InvalidValue), match=r"in-?place|one backward pass"):
            loss.backward()
