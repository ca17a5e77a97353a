"""The compiled loop over Gram matrices, its uncompiled twin, torch, and exact norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discreet._threads import Job
from discreet.errors import InvalidValue
from discreet.learn.dpsgd.engine import GradientEngine, compiled_gram, rounding
from discreet.learn.dpsgd.engine.compiled_gram import CompiledGram, GramLoop, GramSums
from discreet.learn.dpsgd.engine.gram_loops import weighted_gram_loop
from discreet.learn.dpsgd.engine.rounding import gram_squared_norms
from learn.dpsgd.engine.judges import check, difference

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def compiled() -> CompiledGram:
    """On every processor that numba compiles for: narrower vectors are slower, not wrong."""
    return CompiledGram()


class PlainGram:
    """The loop as it is, on arrays that share the memory of the tensors."""

    def __init__(self, loop: Callable[..., Any] | None = None) -> None:
        self.loop = weighted_gram_loop(lambda: None) if loop is None else loop

    def sums(self, rows: Tensor, gram: Tensor, least: float, other_least: float) -> GramSums:
        squares = torch.full(rows.shape[:2], math.nan)
        pairs = zip(rows.numpy(), gram.numpy(), squares.numpy(), strict=True)
        totals = torch.tensor([float(self.loop(*one)) for one in pairs])
        others = gram.diagonal(dim1=1, dim2=2).double() + other_least
        spreads = ((squares.double() + least) * others).sqrt().sum(1)
        return GramSums(totals, spreads.square().float())


def factors(terms: int, width: int, *, examples: int = 3) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(terms + width)
    left = torch.randn(examples, terms, width, generator=draw)
    right = torch.randn(examples, terms, 5, generator=draw)
    return left, right


def through(loop: GramLoop | None, monkeypatch: pytest.MonkeyPatch, *both: Tensor) -> Tensor:
    with monkeypatch.context() as patch:
        patch.setattr(rounding, "gram_loop_for", lambda _: loop)
        return gram_squared_norms(*both)


@pytest.mark.parametrize("threads", [0, 1, 2])
@pytest.mark.parametrize("terms", [1, 2, 3, 4, 5, 7, 8, 9, 16, 31])
@pytest.mark.parametrize("width", [1, 16, 200])
def test_the_loop_agrees_with_torch_and_is_no_smaller_than_the_truth(
    threads: int,
    terms: int,
    width: int,
    compiled: CompiledGram,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it is (0), compiled, and compiled for two threads."""
    left, right = factors(terms, width)
    torch.set_num_threads(max(1, threads))
    try:
        found = through(compiled if threads else PlainGram(), monkeypatch, left, right)
        turned = through(compiled if threads else PlainGram(), monkeypatch, right, left)
    finally:
        torch.set_num_threads(1)
    exact = torch.bmm(left.double().transpose(1, 2), right.double()).square().sum((1, 2))
    assert (found.double() >= exact).all()
    assert (turned.double() >= exact).all()
    assert difference(found, through(None, monkeypatch, left, right)) < 1e-5


def test_many_examples_are_parted_among_the_threads(
    compiled: CompiledGram, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = factors(33, 256, examples=70)
    torch.set_num_threads(2)
    try:
        found = through(compiled, monkeypatch, left, right)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(found, through(compiled, monkeypatch, left, right))
    assert difference(found, through(None, monkeypatch, left, right)) < 1e-5


def test_the_comparison_rejects_wrong_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    right_one = weighted_gram_loop(lambda: None)

    def pairs_once(rows: Any, gram: Any, squares: Any) -> Any:
        total = right_one(rows, gram, squares)
        return (total + float((squares * gram.diagonal()).sum())) / 2

    def without_the_rest(rows: Any, gram: Any, squares: Any) -> Any:
        squares[:] = (rows**2).sum(1)
        return right_one(rows[:4], gram[:4, :4], squares[:4])

    def other_rows(rows: Any, gram: Any, squares: Any) -> Any:
        return right_one(rows[::-1], gram, squares)

    left, right = factors(7, 20)
    expected = through(None, monkeypatch, left, right)
    for wrong in (pairs_once, without_the_rest, other_rows):
        found = through(PlainGram(wrong), monkeypatch, left, right)
        assert difference(found, expected) > 1e-3


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_what_is_not_finite_stays_so(
    bad: float, compiled: CompiledGram, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = factors(6, 200)
    left[1, 2, 3] = bad
    found = through(compiled, monkeypatch, left, right)
    assert torch.isfinite(found).tolist() == [True, False, True]


def test_terms_that_cancel_are_bounded_by_their_spread(
    compiled: CompiledGram, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = factors(8, 200)
    left[:, 4:], right[:, 4:] = -left[:, :4], right[:, :4]
    found = through(compiled, monkeypatch, left, right)
    assert (found > 0).all()
    assert difference(found, through(None, monkeypatch, left, right)) < 1e-4


def test_for_which_rows_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_gram, "_made", "loop")
    rows = torch.zeros(2, 3, 256)
    suits = compiled_gram.gram_loop_for
    assert suits(rows) == "loop"
    assert suits(torch.zeros(2, 3, 512)) == "loop"
    for odd in (
        torch.zeros(2, 3, 128),
        torch.zeros(2, 3, 513),
        rows.double(),
        rows.half(),
        torch.zeros(3, 2, 256).transpose(0, 1),
        torch._neg_view(rows),
        rows.to("meta"),
    ):
        assert suits(odd) is None


def test_it_is_compiled_when_it_pays_and_where_vectors_are_wide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = torch.zeros(2, 3, 256)
    monkeypatch.setattr(compiled_gram, "_made", None)
    monkeypatch.setattr(compiled_gram, "CompiledGram", lambda: "loop")
    monkeypatch.setattr(compiled_gram, "_wanted", 0)
    monkeypatch.setattr(compiled_gram, "_COMPILE_AFTER", 3)
    with monkeypatch.context() as patch:
        patch.setattr(compiled_gram, "_has_wide_vectors", lambda: False)
        assert [compiled_gram.gram_loop_for(rows) for _ in range(4)] == [None] * 4
    monkeypatch.setattr(compiled_gram, "_has_wide_vectors", lambda: True)
    monkeypatch.setattr(compiled_gram, "_wanted", 0)
    with monkeypatch.context() as patch:
        patch.setattr(compiled_gram, "numba_works", lambda: False)
        assert compiled_gram.compiled_gram() is None
    assert [compiled_gram.gram_loop_for(rows) for _ in range(3)] == [None, None, "loop"]
    assert compiled_gram.gram_loop_for(rows) == "loop"


def test_whether_vectors_are_wide_is_asked_of_the_processor() -> None:
    assert compiled_gram._has_wide_vectors() in (True, False)


def test_matrices_that_are_not_those_of_the_rows_are_refused(compiled: CompiledGram) -> None:
    """It would read what lies behind them."""
    rows, gram = torch.ones(2, 3, 200), torch.ones(2, 3, 3)
    for odd in (gram.bfloat16(), gram.double(), gram[:1], gram[:, :2], gram.transpose(0, 2)):
        with pytest.raises(InvalidValue, match="gram"):
            compiled.sums(rows, odd, 0.0, 0.0)
    with pytest.raises(InvalidValue, match="gram"):
        compiled.sums(rows.double(), gram.double(), 0.0, 0.0)
    with pytest.raises(InvalidValue, match="rows"):
        compiled.sums(torch.ones(2, 200, 3).transpose(1, 2), gram, 0.0, 0.0)


def test_a_loop_that_broke_off_is_noticed(
    compiled: CompiledGram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Job, "run", lambda *_, **__: None)
    with pytest.raises(RuntimeError, match="broke off"):
        compiled.sums(torch.ones(2, 3, 200), torch.ones(2, 3, 3), 0.0, 0.0)


class Averaged(nn.Module):
    """A layer for every place of a sequence, and another for their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Linear(6, 256)
        self.all = nn.Linear(256, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.all(torch.tanh(self.each(inputs)).mean(1))
        return found


def test_sequences_go_through_it(compiled: CompiledGram, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model, data = Averaged(), torch.randn(5, 9, 6)
    used: list[torch.Size] = []

    class Counted:
        def sums(self, *given: Any) -> GramSums:
            used.append(given[0].shape)
            return compiled.sums(*given)

    monkeypatch.setattr(compiled_gram, "_made", Counted())
    monkeypatch.setattr(
        "discreet.learn.dpsgd.engine.contributions.cheapest_form", lambda *_: "gram"
    )
    check(model, data, tolerance=1e-5)
    assert torch.Size((5, 9, 256)) in used
    engine = GradientEngine(model)
    with engine.recording(5):
        model(data).square().sum().backward()
        norms = engine.squared_norms()
    engine.detach()
    assert norms.shape == (1, 5)
