"""The compiled loops of one layer, their uncompiled twins, and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from discreet.errors import InvalidValue
from discreet.learn.dpsgd.engine import GradientEngine, compiled_stack
from discreet.learn.dpsgd.engine.compiled_stack import (
    CompiledPass,
    Loops,
    add_squared_norms,
    compiled_loops,
    compiled_norms,
    gradients_and_norms,
    weigh,
)
from learn.dpsgd.engine.judges import check, difference

torch.set_num_threads(1)
PLAIN = Loops(gradients_and_norms, weigh, add_squared_norms)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def both_ways(
    monkeypatch: pytest.MonkeyPatch, data: Tensor, targets: Tensor, loops: Loops | None
) -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(data[0].numel(), 4)).to(data.dtype)
    monkeypatch.setattr("discreet.learn.dpsgd.engine.stack.loops_after", lambda _: loops)
    engine = GradientEngine(model)
    weights = torch.linspace(0.1, 1, len(data), dtype=data.dtype).unsqueeze(0)
    with engine.recording(len(data)):
        assert engine.cross_entropy((data,), targets)
        compiled = isinstance(engine._boxes.only_pass(), CompiledPass)
        assert compiled == (loops is not None)
        norms = engine.squared_norms(scale=2.0)
        sums = engine.clipped_sum(weights)
        again = engine.clipped_sum(weights)
        totals = [torch.zeros_like(p) for p in model.parameters()]
        engine.add_clipped_sum(weights, totals, last=True)
    engine.detach()
    for name, last in zip(sums, totals, strict=True):
        assert torch.equal(sums[name], again[name])
        assert torch.equal(sums[name], last)
    return norms, sums


@pytest.mark.parametrize("kind", list(TOLERANCE))
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", [(1, 5), (40, 5), (9, 2, 3)])
def test_the_loops_agree_with_torch(
    kind: torch.dtype,
    compiled: bool,
    shape: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = torch.Generator().manual_seed(1)
    data = 3 * torch.randn(*shape, generator=draw, dtype=kind)
    targets = torch.randint(4, shape[:1], generator=draw)
    expected = both_ways(monkeypatch, data, targets, None)
    found = both_ways(monkeypatch, data, targets, compiled_loops() if compiled else PLAIN)
    assert difference(found[0], expected[0]) < TOLERANCE[kind]
    for name, total in expected[1].items():
        assert difference(found[1][name], total) < TOLERANCE[kind]


def test_the_comparison_rejects_wrong_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(1)
    data = torch.randn(9, 5, generator=draw, dtype=torch.float64)
    targets = torch.randint(4, (9,), generator=draw)
    expected = both_ways(monkeypatch, data, targets, None)

    def without_bias(outputs: Any, targets: Any, inputs: Any, least: Any, norms: Any) -> bool:
        done = gradients_and_norms(outputs, targets, inputs, least, norms)
        norms -= (outputs**2).sum(1)
        return done

    def other_class(outputs: Any, targets: Any, inputs: Any, least: Any, norms: Any) -> bool:
        return gradients_and_norms(outputs, (targets + 1) % 4, inputs, least, norms)

    def bias_unweighted(
        gradients: Any, weights: Any, factor: Any, weighted: Any, total: Any
    ) -> None:
        total += factor * gradients.sum(0)
        weigh(gradients, weights, factor, weighted, np.zeros_like(total))

    for wrong in (
        PLAIN._replace(gradients_and_norms=without_bias),
        PLAIN._replace(gradients_and_norms=other_class),
        PLAIN._replace(weigh=bias_unweighted),
    ):
        norms, sums = both_ways(monkeypatch, data, targets, wrong)
        off = [difference(norms, expected[0])]
        off += [difference(sums[name], total) for name, total in expected[1].items()]
        assert max(off) > 1e-3


@pytest.mark.parametrize("loops", [PLAIN, "compiled"])
def test_targets_that_are_no_classes_change_nothing(loops: Any) -> None:
    used = compiled_loops() if loops == "compiled" else loops
    outputs = np.ones((3, 4))
    norms = np.full(3, 7.0)
    for odd in (-1, -100, 4):
        targets = np.array([0, odd, 1])
        assert not used.gradients_and_norms(outputs, targets, np.ones((3, 2)), 0.0, norms)
    assert (outputs == 1).all()
    assert (norms == 7).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_examples_that_are_not_finite_leave_nothing(bad: float) -> None:
    """Compiled without assuming that numbers are finite."""
    compiled_loops()
    model = nn.Linear(5, 4)
    draw = torch.Generator().manual_seed(1)
    data = torch.randn(9, 5, generator=draw)
    targets = torch.randint(4, (9,), generator=draw)
    data[3, 2] = bad
    engine = GradientEngine(model)
    sums = []
    for chosen in (list(range(9)), [0, 1, 2, 4, 5, 6, 7, 8]):
        with engine.recording(len(chosen)):
            assert engine.cross_entropy((data[chosen],), targets[chosen])
            norms = engine.squared_norms()
            weights = torch.where(torch.isfinite(norms), 1.0, 0.0)
            assert weights.sum() == 8
            sums.append(engine.clipped_sum(weights))
    engine.detach()
    for name, total in sums[1].items():
        assert difference(sums[0][name], total) < 1e-5


def test_inputs_that_change_meanwhile_are_noticed() -> None:
    compiled_loops()
    model, data = nn.Linear(5, 4), torch.ones(3, 5)
    engine = GradientEngine(model)
    with engine.recording(3):
        assert engine.cross_entropy((data,), torch.zeros(3, dtype=torch.int64))
        engine.squared_norms()
        data.mul_(2)
        with pytest.raises(InvalidValue, match="in place"):
            engine.clipped_sum(torch.ones(1, 3))


@pytest.mark.parametrize("kind", list(TOLERANCE))
@pytest.mark.parametrize("compiled", [False, True])
def test_norms_of_several_layers(
    kind: torch.dtype, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = compiled_loops() if compiled else PLAIN
    monkeypatch.setattr("discreet.learn.dpsgd.engine.stack.loops_after", lambda _: loops)
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(kind)
    data = torch.randn(9, 5, dtype=kind)
    check(model, data, tolerance=TOLERANCE[kind])
    check(model, data, tolerance=TOLERANCE[kind], mean=True)
    targets = torch.randint(3, (9,))
    engine = GradientEngine(model)
    with engine.recording(9):
        assert engine.cross_entropy((data,), targets)
        found = engine.squared_norms()
    monkeypatch.setattr("discreet.learn.dpsgd.engine.stack.loops_after", lambda _: None)
    with engine.recording(9):
        assert engine.cross_entropy((data,), targets)
        assert difference(found, engine.squared_norms()) < TOLERANCE[kind]
    wrong = PLAIN._replace(add_squared_norms=lambda *_: None)
    monkeypatch.setattr("discreet.learn.dpsgd.engine.stack.loops_after", lambda _: wrong)
    with pytest.raises(AssertionError):
        check(model, data)


def test_norms_of_large_layers_are_left_to_torch() -> None:
    assert compiled_norms([torch.ones(2, 3)], [torch.ones(2, 4)], 0.0, PLAIN) is not None
    assert compiled_norms([torch.ones(2, 3)], [torch.ones(2, 5000)], 0.0, PLAIN) is None
    assert compiled_norms([torch.ones(600, 1000)], [torch.ones(600, 1000)], 0.0, PLAIN) is None


def test_odd_layouts_and_wide_rows_are_left_to_torch() -> None:
    targets = torch.zeros(8, dtype=torch.int64)
    assert CompiledPass.suits(torch.ones(4, 5), targets)
    assert not CompiledPass.suits(torch.ones(5, 4).t(), targets)
    assert not CompiledPass.suits(torch.ones(4, 5000), targets)
    assert not CompiledPass.suits(torch.ones(4, 5), targets[::2])


def test_they_are_compiled_when_it_pays_and_where_numba_is(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Compiler:
        def __call__(self) -> str:
            made.append("compiled")
            return "loops"

        def cache_info(self) -> Any:
            return type("Info", (), {"currsize": len(made)})

    monkeypatch.setattr(compiled_stack, "compiled_loops", Compiler())
    assert compiled_stack.loops_after(100) is None
    with monkeypatch.context() as patch:
        patch.setattr(compiled_stack, "_numba_works", lambda: False)
        assert compiled_stack.loops_after(10**6) is None
    assert not made
    assert compiled_stack.loops_after(1 << 14) == "loops"
    assert compiled_stack.loops_after(1) == "loops"  # what is compiled is used at once
