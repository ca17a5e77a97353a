"""Models that order, select or group rows by their values: whose gradient is whose stays right.

A record moves the clipped sum by at most one clip norm when it is taken out of its batch, which
holds only if every example's own gradient was clipped. Lengths are counted from padding and differ
from row to row, as in made-up batches they rarely do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from discreet.learn.dpsgd.engine import GradientEngine

torch.set_num_threads(1)
WIDTH, ROWS, TIME, CLIP = 4, 5, 6, 0.05
LENGTHS = (2, 6, 3, 5, 4)


class Ordered(nn.Module):
    """Changes the order of the rows, applies a layer, and changes it back."""

    def __init__(self, through: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.table = nn.Embedding(20, WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.other = nn.Linear(WIDTH, WIDTH)
        self.outer = nn.Linear(WIDTH, 2)
        self.through = through

    def forward(self, ids: Tensor) -> Tensor:
        lengths = (ids > 0).sum(1)
        rows = self.table(ids).mean(1)
        return self.outer(self.through(self, rows, lengths).tanh())


class OrderedAtLast(Ordered):
    """Does so in its last layer: no later one can notice that its rows have moved."""

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.table(ids).mean(1)
        return rows + self.through(self, rows, (ids > 0).sum(1)) * torch.arange(1, WIDTH + 1)


def back(order: Tensor) -> Tensor:
    return torch.argsort(order)


def sort(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    _, order = lengths.sort(descending=True)
    return model.inner(rows[order]).tanh()[back(order)]


def index_select(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    order = lengths.argsort()
    return model.inner(rows.index_select(0, order)).tanh().index_select(0, back(order))


def topk(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    order = lengths.topk(len(lengths)).indices
    return model.inner(rows[order]).tanh()[back(order)]


def gather(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    order = lengths.argsort()[:, None].expand_as(rows)
    return torch.zeros_like(rows).scatter(0, order, model.inner(rows.gather(0, order)).tanh())


def take_along(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    order = lengths.argsort()[:, None].expand_as(rows)
    return torch.take_along_dim(model.inner(rows.take_along_dim(order, 0)), order.argsort(0), 0)


def permutation_matrix(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    matrix = F.one_hot(lengths.argsort(), len(lengths)).to(rows)
    return matrix.t() @ model.inner(matrix @ rows).tanh()


def einsum(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    matrix = F.one_hot(lengths.argsort(), len(lengths)).to(rows)
    moved = model.inner(torch.einsum("ij,jd->id", matrix, rows)).tanh()
    return torch.einsum("ij,id->jd", matrix, moved)


def route(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    long = lengths > 3
    result = torch.zeros_like(rows)
    result[long] = model.inner(rows[long]).tanh()
    result[~long] = model.other(rows[~long]).tanh()
    return result


def route_by_places(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    long, short = (lengths > 3).nonzero().squeeze(1), (lengths <= 3).nonzero().squeeze(1)
    result = torch.zeros_like(rows).index_add(0, long, model.inner(rows[long]).tanh())
    return result.index_add(0, short, model.other(rows[short]).tanh())


def buckets(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    result = torch.zeros_like(rows)
    for length in lengths.unique():
        places = (lengths == length).nonzero().squeeze(1)
        result = result.index_copy(0, places, model.inner(rows[places]).tanh())
    return result


def put(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    order = lengths.argsort()
    moved = torch.zeros_like(rows).index_put((order,), rows)
    return model.inner(moved).tanh()[order]


def added(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    order = lengths.argsort()
    return model.inner(torch.zeros_like(rows).index_add(0, order, rows)).tanh()[order]


def shifted(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    """Padding in front and cropping behind moves every row by one; a copy of the last one stays."""
    wide = F.pad(rows, (0, 0, 1, -1)) if len(rows) > 1 else rows
    inner = model.inner(wide).tanh()
    back = F.pad(inner, (0, 0, -1, 1)) if len(rows) > 1 else inner
    last = (torch.arange(len(rows)) == len(rows) - 1)[:, None] & (lengths > -1)[:, None]
    return torch.where(last, model.inner(rows).tanh(), back)


def matrix_of(rows: Tensor, lengths: Tensor) -> Tensor:
    """The permutation from numbers of Python, which nothing follows."""
    matrix = torch.zeros(len(rows), len(rows), dtype=rows.dtype)
    for place, row in enumerate(lengths.argsort().tolist()):
        matrix[place, row] = 1
    return matrix


def into_one_of_two(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    order = lengths.argsort()
    both = torch.zeros(2, *rows.shape, dtype=rows.dtype)
    both[1, order] = rows
    return model.inner(both[1]).tanh()[order]


def into_copies(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    """Writing all rows to every place puts the examples along the second axis."""
    copies = (rows * 0)[:, None].repeat(1, len(rows), 1)
    copies[:] = rows
    return model.inner((copies * matrix_of(rows, lengths)[:, :, None]).sum(1)).tanh()


def along_channels(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    """A convolution for which the examples are channels."""
    return model.inner(F.conv1d(rows[None], matrix_of(rows, lengths)[:, :, None])[0]).tanh()


def as_values(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    keys = torch.eye(len(rows), dtype=rows.dtype)
    queries = matrix_of(rows, lengths) * 1e4
    return model.inner(F.scaled_dot_product_attention(queries, keys, rows)).tanh()


def summed_with(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    return model.inner(torch.tensordot(matrix_of(rows, lengths), rows, 1)).tanh()


def added_to_a_constant(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    order = torch.tensor(lengths.argsort().tolist())
    return model.inner(torch.zeros(rows.shape).to(rows.dtype).index_add(0, order, rows)).tanh()


def scattered_into_a_constant(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    order = torch.tensor(lengths.argsort().tolist())[:, None].expand(rows.shape)
    return model.inner(torch.zeros(rows.shape, dtype=rows.dtype).scatter(0, order, rows)).tanh()


def larger_of_two(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    """A constant with one axis more puts the examples along the second."""
    least = torch.full((len(rows), 1, 1), -1e9, dtype=rows.dtype)
    copies = torch.max(rows, least) * matrix_of(rows, lengths)[:, :, None]
    return model.inner(copies.sum(1)).tanh()


class InNumpy(torch.autograd.Function):
    """Orders rows where torch does not see it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor) -> Tensor:
        ctx.order = order
        return torch.from_numpy(rows.detach().numpy()[order.numpy()].copy())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[back(ctx.order)], None


def chosen(rows: Tensor, order: Tensor) -> Tensor:
    return rows[order]


with warnings.catch_warnings():  # torch calls it deprecated; models still have such functions
    warnings.simplefilter("ignore", DeprecationWarning)
    scripted = torch.jit.script(chosen)


UNSEEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "numpy": lambda rows, order: InNumpy.apply(rows, order),
    "script": scripted,
    "vmap": lambda rows, order: torch.vmap(lambda at: rows.index_select(0, at[None])[0])(order),
    "vmap of columns": lambda rows, order: torch.vmap(lambda one: one[order], 1, 1)(rows),
}


def unseen(choose: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Order the rows in what no mode of torch sees the inside of."""

    def way(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
        return model.inner(choose(rows, lengths.argsort())).tanh()

    return way


def through_a_view(write: Callable[[Tensor, Tensor, Tensor], object]) -> Callable[..., Tensor]:
    """Use a view that was made before the rows were written into the tensor itself."""

    def way(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
        moved = rows * 0
        view = moved[:]
        write(moved, torch.tensor(lengths.argsort().tolist()), rows)
        return model.inner(view if view.any() else moved).tanh()

    return way


def row_by_row(write: Callable[[Tensor, int, Tensor], object]) -> Callable[..., Tensor]:
    """Order the rows by writing them into another tensor one by one."""

    def way(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
        order = lengths.argsort().tolist()
        moved = torch.zeros_like(rows)
        for place, row in enumerate(order):
            write(moved, place, rows[row])
        done = model.inner(moved).tanh()
        result = torch.zeros_like(done)
        for place, row in enumerate(order):
            write(result, row, done[place])
        return result

    return way


def write_column(into: Tensor, place: int, row: Tensor) -> None:
    into.t()[:, place] = row


def write_cells(into: Tensor, place: int, row: Tensor) -> None:
    for column in range(WIDTH):
        into[:, column][..., place] = row[column]


WRITES: dict[str, Callable[[Tensor, int, Tensor], object]] = {
    "row": lambda into, place, row: into.__setitem__(place, row),
    "slice": lambda into, place, row: into.__setitem__(slice(place, place + 1), row[None]),
    "view": lambda into, place, row: into[place].copy_(row),
    "select": lambda into, place, row: into.select(0, place).add_(row),
    "narrow": lambda into, place, row: into.narrow(0, place, 1).copy_(row[None]),
    "flat": lambda into, place, row: into.view(-1)[place * WIDTH : (place + 1) * WIDTH].copy_(row),
    "strided": lambda into, place, row: into.as_strided((WIDTH,), (1,), WIDTH * place).copy_(row),
    "data": lambda into, place, row: into.data.__setitem__(place, row),
    "detached": lambda into, place, row: torch.mul(row.detach(), 1, out=into.detach()[place]),
    "column": write_column,
    "cells": write_cells,
}
WHOLES: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "copy": lambda into, order, rows: into.copy_(rows[order]),
    "sum": lambda into, order, rows: into.add_(rows[order]),
    "index_copy": lambda into, order, rows: into.index_copy_(0, order, rows),
    "index_put": lambda into, order, rows: into.index_put_((order,), rows),
    "data": lambda into, order, rows: setattr(into, "data", rows.data[order]),
}
WAYS = [
    sort,
    index_select,
    topk,
    gather,
    take_along,
    permutation_matrix,
    einsum,
    route,
    route_by_places,
    buckets,
    put,
    added,
    shifted,
    into_one_of_two,
    into_copies,
    along_channels,
    as_values,
    summed_with,
    added_to_a_constant,
    scattered_into_a_constant,
    larger_of_two,
    *(pytest.param(unseen(choose), id=f"unseen in {name}") for name, choose in UNSEEN.items()),
    *(pytest.param(through_a_view(write), id=f"viewed, {name}") for name, write in WHOLES.items()),
    *(pytest.param(row_by_row(write), id=f"written by {name}") for name, write in WRITES.items()),
]


def padded(lengths: tuple[int, ...]) -> Tensor:
    ids = torch.randint(1, 20, (ROWS, TIME), generator=torch.Generator().manual_seed(3))
    for row, length in enumerate(lengths):
        ids[row, length:] = 0
    return ids[: len(lengths)]


def clipped_sum(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    engine = GradientEngine(model)
    with engine.recording(len(ids)):
        model(ids).sin().sum().backward()
        norms = engine.squared_norms().sqrt()
        result = engine.clipped_sum((CLIP / norms).clamp(max=1.0))
    engine.detach()
    return result


def made(
    way: Callable[[nn.Module, Tensor, Tensor], Tensor], kind: type[Ordered] = Ordered
) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return kind(way).double(), padded(LENGTHS)


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return float(sum((one[name] - other[name]).square().sum() for name in one) ** 0.5)


@pytest.mark.parametrize("kind", [Ordered, OrderedAtLast])
@pytest.mark.parametrize("way", WAYS)
def test_a_record_moves_the_clipped_sum_by_at_most_one_clip_norm(
    way: Callable[[nn.Module, Tensor, Tensor], Tensor], kind: type[Ordered]
) -> None:
    model, ids = made(way, kind)
    whole = clipped_sum(model, ids)
    alone = [clipped_sum(model, row[None]) for row in ids]
    expected = {name: sum(one[name] for one in alone) for name in whole}
    assert distance(whole, expected) < 1e-9
    for row in range(ROWS):
        rest = torch.cat((ids[:row], ids[row + 1 :]))
        assert distance(whole, clipped_sum(model, rest)) <= CLIP * (1 + 1e-6)


class NoRule(nn.Module):
    """Meets its data in an operation that the engine has no rule for."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, data: Tensor, beside: Tensor | None = None) -> Tensor:
        places = torch.linalg.matrix_exp(self.weight * 0.1)
        distances = torch.cdist(data[None], places[None])[0]
        return distances if beside is None else distances + 0 * beside.sum()


# Rows of several examples as they reach a module that is run example by example.
SHAPES: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "flat": lambda odd, h: odd(h.flatten(0, 1)).view(len(h), TIME, WIDTH).mean(1),
    "flat and rows": lambda odd, h: odd(h.flatten(0, 1), h[:, 0]).view(len(h), TIME, WIDTH).mean(1),
    "copies": lambda odd, h: odd(h.mean(1).repeat_interleave(2, 0)).view(-1, 2, WIDTH).mean(1),
    "copies and rows": lambda odd, h: (
        odd(h.mean(1).repeat_interleave(2, 0), h[:, 0]).view(-1, 2, WIDTH).mean(1)
    ),
    "rows and all of them": lambda odd, h: odd(h.mean(1), h.flatten(0, 1)),
    "in two parts": lambda odd, h: torch.cat([odd(part.mean(1)) for part in h.tensor_split(2)]),
    "in two parts and rows": lambda odd, h: torch.cat(
        [odd(part.mean(1), h[:, 0]) for part in h.tensor_split(2)]
    ),
    "time first and rows": lambda odd, h: (
        odd(h.transpose(0, 1).flatten(0, 1), h[:, 0]).view(TIME, -1, WIDTH).mean(0)
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_example_sees_the_rows_of_others(shape: str) -> None:
    """What cannot be cut into examples at an inner module is cut at the one around it."""

    def way(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
        return SHAPES[shape](model.inner, rows[:, None] * torch.arange(1, TIME + 1)[:, None])

    torch.manual_seed(5)
    model, ids = made(way)
    model.inner = NoRule().double()
    whole = clipped_sum(model, ids)
    alone = [clipped_sum(model, row[None]) for row in ids]
    expected = {name: sum(one[name] for one in alone) for name in whole}
    assert distance(whole, expected) < 1e-9
    for row in range(ROWS):
        rest = torch.cat((ids[:row], ids[row + 1 :]))
        assert distance(whole, clipped_sum(model, rest)) <= CLIP * (1 + 1e-6)


def test_a_sequence_written_step_by_step_stays_in_order() -> None:
    """Writing into one time step or one column of every row moves no row, and costs nothing."""

    def way(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
        steps = torch.zeros(len(rows), 3, WIDTH, dtype=rows.dtype)
        for step in range(3):
            steps[:, step] = rows * (step + 1)
            steps[:, step].add_(rows)
            steps.transpose(0, 1)[step].mul_(2)
        return model.inner(steps).tanh().mean(1) + 0 * lengths[:, None]

    model, ids = made(way)
    engine = GradientEngine(model)
    with engine.recording(len(ids)):
        model(ids).sin().sum().backward()
        engine.squared_norms()
    assert "torch.func" not in " ".join(engine.report.values())
    engine.detach()


def test_the_judge_notices_rows_in_a_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that takes every first axis for the examples clips mixed gradients."""
    from discreet.learn.dpsgd.engine._axes import Folds

    monkeypatch.setattr(Folds, "axis", lambda *_: 0)
    model, ids = made(sort)
    whole = clipped_sum(model, ids)
    alone = [clipped_sum(model, row[None]) for row in ids]
    expected = {name: sum(one[name] for one in alone) for name in whole}
    assert distance(whole, expected) > 1e-3
