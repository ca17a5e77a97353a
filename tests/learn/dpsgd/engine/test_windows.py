"""Models that cut each example into windows, and lay the windows of all beside each other.

Rows of one example stay together or they do not; where they do not, or where it cannot be told, the
model runs example by example. The clipped sum is that of the examples one by one in every case.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from discreet.learn.dpsgd.engine import GradientEngine
from learn.dpsgd.engine.judges import by_engine, check

torch.set_num_threads(1)
SIDE, CUT, WIDTH = 4, 2, 6


def windows(x: Tensor) -> Tensor:
    """(examples, side, side, width) to (examples * windows, positions, width)."""
    parts = x.view(len(x), CUT, SIDE // CUT, CUT, SIDE // CUT, WIDTH)
    return parts.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, (SIDE // CUT) ** 2, WIDTH)


def windows_outermost(x: Tensor) -> Tensor:
    """The same with the windows before the examples: rows of one example are scattered."""
    parts = x.view(len(x), CUT, SIDE // CUT, CUT, SIDE // CUT, WIDTH)
    return parts.permute(1, 3, 0, 2, 4, 5).reshape(-1, (SIDE // CUT) ** 2, WIDTH)


class Attention(nn.Module):
    """Attention inside windows with learned relative positions, as in Swin."""

    def __init__(self, cut: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.cut = cut
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.places = nn.Parameter(torch.randn(1, 2, 4, 4))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.cut(x)
        count, time, _ = rows.shape
        qkv = self.qkv(rows).reshape(count, time, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        weights = (q @ k.transpose(-2, -1) + self.places).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(count, time, WIDTH)
        done = self.out(mixed).tanh()
        if self.cut is windows_outermost:
            return done.view(-1, len(x), time * WIDTH).transpose(0, 1).flatten(1)
        return done.view(len(x), -1)


class Opaque(nn.Module):
    """Uses its parameter where no rule is, on rows of windows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, rows: Tensor) -> Tensor:
        weights = torch.cdist(rows, self.weight.expand(len(rows), WIDTH, WIDTH))
        return (weights - rows.mean(1, keepdim=True)).tanh()


class OpaqueInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.inner = Opaque()
        self.after = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.inner(windows(self.before(x)))
        return self.after(rows).view(len(x), -1)


def images(rows: int) -> Tensor:
    draws = torch.Generator().manual_seed(rows)
    return torch.randn(rows, SIDE, SIDE, WIDTH, generator=draws, dtype=torch.float64)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("cut", [windows, windows_outermost])
def test_windows_of_one_example_are_clipped_as_one(cut: Callable[..., Tensor], rows: int) -> None:
    torch.manual_seed(rows)
    check(Attention(cut).double(), images(rows), torch_func=False, tolerance=1e-9)


def test_windows_need_no_example_by_example() -> None:
    model = Attention(windows).double()
    engine = GradientEngine(model)
    by_engine(model, (images(3),), 0, 3, torch.ones(1, 3, dtype=torch.float64), engine=engine)
    assert "torch.func" not in str(engine.report)


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_a_module_without_rule_gets_all_windows_of_an_example(rows: int) -> None:
    """It alone runs example by example, on the windows of one; those around it by rules."""
    torch.manual_seed(rows)
    model = OpaqueInside().double()
    check(model, images(rows), torch_func=False, tolerance=1e-9)
    engine = GradientEngine(model)
    weights = torch.ones(1, rows, dtype=torch.float64)
    by_engine(model, (images(rows),), 0, rows, weights, engine=engine)
    opaque = [name for name, rules in engine.report.items() if "torch.func" in rules]
    assert opaque == ["inner.weight"]


class Gathering(nn.Module):
    """Takes as many rows as there are examples, of twice as many."""

    def __init__(self, take: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.take = take
        self.inner = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.take(x.reshape(2 * len(x), 3), len(x)))


@pytest.mark.parametrize(
    "take",
    [
        lambda pairs, rows: pairs.gather(1, torch.zeros(rows, 3, dtype=torch.int64)),
        lambda pairs, rows: torch.gather(pairs, 1, torch.ones(rows, 3, dtype=torch.int64)),
        lambda pairs, rows: torch.take_along_dim(pairs[:rows], torch.zeros(rows, 3).long(), 1),
        lambda pairs, rows: F.embedding(torch.arange(rows), pairs),
    ],
    ids=["gather", "torch.gather", "take_along_dim", "embedding"],
)
def test_rows_that_a_call_leaves_out_are_noticed(take: Callable[..., Tensor]) -> None:
    """The first rows are those of the first examples: a place says nothing about whose it is."""
    torch.manual_seed(0)
    model = Gathering(take).double()
    engine = GradientEngine(model)
    x = torch.randn(4, 6, dtype=torch.float64)
    by_engine(model, (x,), 0, 4, torch.ones(1, 4, dtype=torch.float64), engine=engine)
    assert all("torch.func" in rules for rules in engine.report.values())
