"""The compiled loops of one layer, their uncompiled twins, and torch."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any

import numba
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from discreet._threads import Job
from discreet.errors import InvalidValue
from discreet.learn.dpsgd.clipping import Flat
from discreet.learn.dpsgd.engine import GradientEngine, compiled_stack
from discreet.learn.dpsgd.engine.compiled_stack import (
    LinearLayer,
    Loops,
    compiled_loops,
    suit_norms,
    suits,
)
from discreet.learn.dpsgd.engine.stack_loops import (
    add_squared_norms,
    at_most,
    back_through,
    gradients_and_norms,
    linear,
    rectify,
    weigh,
)
from learn.dpsgd.engine.judges import check, difference

torch.set_num_threads(1)


class PlainLoops:
    """The loops as they are, on arrays that share the memory of the tensors."""

    def __init__(self, **others: Any) -> None:
        self.loops: dict[str, Any] = {
            "linear": linear,
            "gradients_and_norms": gradients_and_norms,
            "back_through": back_through,
            "rectify": rectify,
            "weigh": weigh,
            "add_squared_norms": add_squared_norms,
            "at_most": at_most,
            **others,
        }

    def gradients_and_norms(
        self,
        layer: LinearLayer,
        targets: Tensor,
        inputs: Tensor,
        least: float,
        norms: Tensor,
        *,
        below: Tensor | None = None,
        rectified: bool = False,
    ) -> tuple[Tensor | None, bool]:
        found = norms.numpy()
        outputs = torch.full((len(inputs), len(layer.bias)), float("nan"))
        weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        self.loops["linear"](inputs.numpy(), weight, bias, outputs.numpy())
        given = outputs.numpy(), targets.numpy(), inputs.numpy(), found.dtype.type(least)
        done = self.loops["gradients_and_norms"](*given, found)
        if below is not None:
            self.loops["back_through"](outputs.numpy(), weight, below.numpy())
        if below is not None and rectified:
            self.loops["rectify"](below.numpy(), inputs.numpy())
        return (outputs if done else None), bool(np.isfinite(found).all())

    def weigh(
        self, lefts: Sequence[Tensor], weights: Tensor, factor: float, totals: Sequence[Tensor]
    ) -> None:
        kind = weights.numpy().dtype.type
        for left, total in zip(lefts, totals, strict=True):
            given = left.numpy(), weights.numpy(), kind(factor), total.numpy()
            half = left.shape[1] // 2
            self.loops["weigh"](*given, 0, half)
            self.loops["weigh"](*given, half, left.shape[1])

    def norms(
        self,
        lefts: Sequence[Tensor],
        rights: Sequence[Tensor],
        least: float,
        factor: float,
        *,
        begun: Tensor | None = None,
        rectified: bool = False,
    ) -> tuple[Tensor, bool]:
        whole = torch.zeros(1, len(lefts[0]), dtype=lefts[0].dtype)
        totals = (whole if begun is None else begun.clone())[0].numpy()
        if rectified:
            self.loops["rectify"](lefts[0].numpy(), rights[1].numpy())
        for left, right in zip(lefts, rights, strict=True):
            given = left.numpy(), right.numpy(), totals.dtype.type(least)
            self.loops["add_squared_norms"](*given, totals)
        return factor * torch.from_numpy(totals).unsqueeze(0), bool(np.isfinite(totals).all())

    def at_most(self, squared_norms: Tensor, bound: float, most: float) -> Tensor:
        weights = torch.empty_like(squared_norms)
        self.loops["at_most"](
            squared_norms.flatten().numpy(), bound, most, weights.view(-1).numpy()
        )
        return weights


PLAIN = PlainLoops()


def both_ways(
    monkeypatch: pytest.MonkeyPatch, data: Tensor, targets: Tensor, loops: Loops | None
) -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(data[0].numel(), 4))
    monkeypatch.setattr("discreet.learn.dpsgd.engine.stack.loops_after", lambda _: loops)
    engine = GradientEngine(model)
    weights = torch.linspace(0.1, 1, len(data), dtype=data.dtype).unsqueeze(0)
    with engine.recording(len(data)):
        assert engine.cross_entropy((data,), targets)
        found = engine._boxes.only_pass()
        assert found is not None
        assert (found._norms is not None) == (loops is not None)
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


@pytest.mark.parametrize("threads", [0, 1, 2])
@pytest.mark.parametrize("shape", [(1, 5), (40, 5), (9, 2, 3), (130, 700)])
def test_the_loops_agree_with_torch(
    threads: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are (0), compiled, and compiled for two threads."""
    draw = torch.Generator().manual_seed(1)
    data = 3 * torch.randn(*shape, generator=draw)
    targets = torch.randint(4, shape[:1], generator=draw)
    expected = both_ways(monkeypatch, data, targets, None)
    torch.set_num_threads(max(1, threads))
    try:
        found = both_ways(monkeypatch, data, targets, compiled_loops() if threads else PLAIN)
    finally:
        torch.set_num_threads(1)
    assert difference(found[0], expected[0]) < 1e-5
    for name, total in expected[1].items():
        assert difference(found[1][name], total) < 1e-5


def test_the_comparison_rejects_wrong_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(1)
    data = torch.randn(9, 5, generator=draw)
    targets = torch.randint(4, (9,), generator=draw)
    expected = both_ways(monkeypatch, data, targets, None)

    def without_bias(outputs: Any, targets: Any, inputs: Any, least: Any, norms: Any) -> bool:
        done = gradients_and_norms(outputs, targets, inputs, least, norms)
        norms -= (outputs**2).sum(1)
        return done

    def other_class(outputs: Any, targets: Any, inputs: Any, least: Any, norms: Any) -> bool:
        return gradients_and_norms(outputs, (targets + 1) % 4, inputs, least, norms)

    def bias_unweighted(
        gradients: Any, weights: Any, factor: Any, total: Any, start: int, end: int
    ) -> None:
        total[start:end] += factor * gradients[:, start:end].sum(0)
        weigh(gradients, weights, factor, np.zeros_like(total), start, end)

    for wrong in (
        PlainLoops(gradients_and_norms=without_bias),
        PlainLoops(gradients_and_norms=other_class),
        PlainLoops(weigh=bias_unweighted),
    ):
        norms, sums = both_ways(monkeypatch, data, targets, wrong)
        off = [difference(norms, expected[0])]
        off += [difference(sums[name], total) for name, total in expected[1].items()]
        assert max(off) > 1e-3


@pytest.mark.parametrize("loops", [PLAIN, "compiled"])
def test_targets_that_are_no_classes_change_nothing(loops: Any) -> None:
    used = compiled_loops() if loops == "compiled" else loops
    norms = torch.full((3,), 7.0)
    layer = LinearLayer(torch.ones(4, 2), torch.ones(4))
    for odd in (-1, -100, 4):
        targets = torch.tensor([0, odd, 1])
        left, _ = used.gradients_and_norms(layer, targets, torch.ones(3, 2), 0.0, norms)
        assert left is None
    assert (norms == 7).all()


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_examples_that_are_not_finite_leave_nothing(bad: float, layers: int) -> None:
    """Compiled without assuming that numbers are finite."""
    compiled_loops()
    torch.manual_seed(4)
    below = [nn.Sequential(nn.Linear(5, 5), nn.ReLU()) for _ in range(layers - 1)]
    model = nn.Sequential(*below, nn.Linear(5, 4))
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


def test_a_pass_is_not_used_after_its_last_use() -> None:
    """Its factors were weighted in place, which torch does not notice."""
    compiled_loops()
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4))
    engine = GradientEngine(model)
    with engine.recording(3):
        assert engine.cross_entropy((torch.ones(3, 5),), torch.zeros(3, dtype=torch.int64))
        engine.squared_norms()
        one = engine._boxes.only_pass()
        assert one is not None
        totals = [torch.zeros_like(p) for p in model.parameters()]
        wrong = [torch.zeros(2, 2), *totals[1:]]
        with pytest.raises(RuntimeError, match=r"shape|size"):
            engine.add_clipped_sum(torch.ones(1, 3), wrong, last=True)
        with pytest.raises(RuntimeError, match="last use"):
            engine.add_clipped_sum(torch.ones(1, 3), totals)
        with pytest.raises(RuntimeError, match="last use"):
            one.factors()


def test_no_examples_at_all() -> None:
    compiled_loops()
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4))
    engine = GradientEngine(model)
    with engine.recording(0):
        assert engine.cross_entropy((torch.ones(0, 5),), torch.zeros(0, dtype=torch.int64))
        assert engine.squared_norms().shape == (1, 0)
        assert not any(total.any() for total in engine.clipped_sum(torch.ones(1, 0)).values())


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


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_norms_of_several_layers(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    loops = compiled_loops() if threads else PLAIN
    monkeypatch.setattr("discreet.learn.dpsgd.engine.stack.loops_after", lambda _: loops)
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    data = torch.randn(9, 5)
    check(model, data, tolerance=1e-5)
    check(model, data, tolerance=1e-5, mean=True)
    targets = torch.randint(3, (9,))
    engine = GradientEngine(model)
    with engine.recording(9):
        assert engine.cross_entropy((data,), targets)
        found = engine.squared_norms()
    monkeypatch.setattr("discreet.learn.dpsgd.engine.stack.loops_after", lambda _: None)
    with engine.recording(9):
        assert engine.cross_entropy((data,), targets)
        assert difference(found, engine.squared_norms()) < 1e-5
    wrong = PlainLoops(add_squared_norms=lambda *_: None)
    monkeypatch.setattr("discreet.learn.dpsgd.engine.stack.loops_after", lambda _: wrong)
    with pytest.raises(AssertionError):
        check(model, data)
    torch.set_num_threads(max(1, threads))
    try:
        lefts, rights = [torch.randn(300, 90), torch.randn(10, 300).t()], [torch.randn(300, 70)] * 2
        totals, is_finite = loops.norms(lefts, rights, 0.5, 2.0)
        lefts[1][7, 3] = float("inf")
        assert not loops.norms(lefts, rights, 0.5, 2.0)[1]
        lefts[1][7, 3] = 0.0
    finally:
        torch.set_num_threads(1)
    assert is_finite
    totals[0, 7] = loops.norms(lefts, rights, 0.5, 2.0)[0][0, 7]
    pairs = zip(lefts, rights, strict=True)
    expected = sum(2 * (a.square().sum(1) + 0.5) * (b.square().sum(1) + 1) for a, b in pairs)
    assert difference(totals[0], expected) < 1e-5


def test_what_suits_the_norms() -> None:
    narrow, wide = torch.ones(2, 3), torch.ones(2, 5000)
    assert suit_norms([narrow], [narrow])
    assert not suit_norms([narrow], [wide])
    assert not suit_norms([narrow, wide], [narrow, narrow])
    assert not suit_norms([narrow.double()], [narrow.double()])


@pytest.mark.parametrize("loops", [PLAIN, "compiled"])
@pytest.mark.parametrize("shape", [(1, 9), (3, 3)])
def test_weights_agree_with_torch(
    loops: Any, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row of the table in :mod:`discreet.learn.dpsgd.clipping`."""
    inf, nan = float("inf"), float("nan")
    norms = torch.tensor([0.0, 1e-40, 0.25, 1.0, 4.0, 1e30, inf, nan, -1e-3]).reshape(shape)
    expected = {}
    used = compiled_loops() if loops == "compiled" else loops
    for chosen in (None, used):
        monkeypatch.setattr(compiled_stack, "ready_loops", lambda _, chosen=chosen: chosen)
        for factor in (1.0, 0.01):
            with np.errstate(divide="ignore", invalid="ignore"):
                found = Flat().weights(norms, clip_norm=0.5, factor=factor)
            assert difference(found, expected.setdefault(factor, found)) < 1e-6
            assert (found.flatten()[6:] == 0).all()
            assert float(found.max()) <= factor


def test_what_suits_the_weights() -> None:
    compiled_loops()
    assert compiled_stack.ready_loops(torch.ones(1, 3)) is compiled_loops()
    assert compiled_stack.ready_loops(torch.ones(1, 3).double()) is None
    assert compiled_stack.ready_loops(torch.ones(3, 2).t()) is None


STACKS: dict[str, list[nn.Module]] = {
    "relu, tanh": [nn.Linear(6, 300), nn.ReLU(), nn.Linear(300, 5), nn.Tanh(), nn.Linear(5, 9)],
    "relu, relu": [nn.Linear(6, 600), nn.ReLU(), nn.Linear(600, 270), nn.ReLU(), nn.Linear(270, 9)],
    "tanh, relu": [nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 1)],
    "relu, none": [nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 8), nn.Linear(8, 2)],
    "none, relu": [nn.Linear(6, 7), nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 3)],
    "one relu": [nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 4)],
    "many classes": [nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 40)],
    "four layers": [
        *(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU()),
        *(nn.Linear(9, 9), nn.Sigmoid(), nn.Linear(9, 5)),
    ],
}


def in_one_call(
    monkeypatch: pytest.MonkeyPatch, name: str, rows: int, loops: Loops | None
) -> list[Tensor]:
    """Norms and sums twice, then for the last time."""
    monkeypatch.setattr("discreet.learn.dpsgd.engine.stack.loops_after", lambda _: loops)
    torch.manual_seed(5)
    model = deepcopy(nn.Sequential(*STACKS[name]))
    engine = GradientEngine(model)
    data, targets = torch.randn(rows, 6), torch.randint(model[-1].out_features, (rows,))
    weights = torch.rand(1, rows)
    with engine.recording(rows):
        assert engine.cross_entropy((data,), targets)
        norms = engine.squared_norms(scale=3.0)
        assert torch.equal(norms, engine.squared_norms(scale=3.0))
        sums = [*engine.clipped_sum(weights).values()]
        again = [*engine.clipped_sum(weights).values()]
        totals = [torch.zeros_like(p) for p in model.parameters()]
        engine.add_clipped_sum(weights, totals, last=True)
    engine.detach()
    for first, second, third in zip(sums, again, totals, strict=True):
        assert difference(first, second) < 1e-6
        assert difference(first, third) < 1e-6
    return [norms, *sums]


@pytest.mark.parametrize("threads", [0, 1, 2])
@pytest.mark.parametrize("rows", [1, 33, 130])
@pytest.mark.parametrize("name", STACKS)
def test_several_layers_in_one_call(
    name: str, rows: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the loops are (0), compiled, and compiled for two threads; wide layers behind narrow."""
    expected = in_one_call(monkeypatch, name, rows, None)
    torch.set_num_threads(max(1, threads))
    try:
        found = in_one_call(monkeypatch, name, rows, compiled_loops() if threads else PLAIN)
    finally:
        torch.set_num_threads(1)
    for one, other in zip(found, expected, strict=True):
        assert difference(one, other) < 1e-5


@pytest.mark.parametrize(
    "wrong",
    [
        PlainLoops(rectify=lambda *_: None),
        PlainLoops(back_through=lambda g, w, below: back_through(g, w[::-1], below)),
        PlainLoops(back_through=lambda g, w, below: back_through(g[:, :-1], w[:-1], below)),
        PlainLoops(weigh=lambda g, w, f, t, a, b: weigh(g, w, f, t, a, b - 1)),
        PlainLoops(weigh=lambda g, w, f, t, a, b: weigh(g[:-1], w, f, t, a, b)),
    ],
)
def test_the_comparison_of_layers_rejects_wrong_loops(
    wrong: PlainLoops, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("relu, relu", "four layers"):
        expected = in_one_call(monkeypatch, name, 33, None)
        found = in_one_call(monkeypatch, name, 33, wrong)
        off = [difference(one, other) for one, other in zip(found, expected, strict=True)]
        assert max(off) > 1e-3


def test_what_a_unit_passes_back_follows_torch_where_it_is_not_a_number() -> None:
    nan, inf = float("nan"), float("inf")
    results = torch.tensor([[nan, inf, -inf, 0.0, -0.0, 1e-45, -1e-45]])
    expected = torch.ops.aten.threshold_backward(torch.ones(1, 7), results, 0)
    found = torch.ones(1, 7)
    rectify(found.numpy(), results.numpy())
    assert torch.equal(found, expected)


@lru_cache(maxsize=1)
def compiled_linear() -> Any:
    return numba.njit(linear)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("classes", [1, 2, 3, 4, 5, 6, 9, 10, 11])
def test_outputs_agree_with_torch(classes: int, compiled: bool) -> None:
    """Sums of two rows and five outputs at a time, whatever is left over."""
    function = compiled_linear() if compiled else linear
    for rows in (1, 2, 3, 8, 17):
        draw = torch.Generator().manual_seed(rows)
        data = torch.randn(rows, 7, generator=draw, dtype=torch.float64)
        weight = torch.randn(classes, 7, generator=draw, dtype=torch.float64)
        bias = torch.randn(classes, generator=draw, dtype=torch.float64)
        found = torch.full((rows, classes), float("nan"), dtype=torch.float64)
        function(data.numpy(), weight.numpy(), bias.numpy(), found.numpy())
        assert difference(found, nn.functional.linear(data, weight, bias)) < 1e-12


def test_odd_layouts_and_wide_rows_are_left_to_torch() -> None:
    layer, data = LinearLayer(torch.ones(3, 5), torch.ones(3)), torch.ones(4, 5)
    targets = torch.zeros(8, dtype=torch.int64)
    assert suits(layer, data, targets)
    assert not suits(layer, torch.ones(5, 4).t(), targets)
    assert not suits(layer, torch.ones(4, 5000), targets)
    assert not suits(layer, data.double(), targets)
    assert not suits(layer, data, targets[::2])
    assert not suits(LinearLayer(torch.ones(5, 3).t(), layer.bias), data, targets)
    assert not suits(LinearLayer(layer.weight, torch.ones(6)[::2]), data, targets)


def test_they_are_compiled_when_it_pays_and_where_numba_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_stack, "_made", None)
    monkeypatch.setattr(compiled_stack, "CompiledLoops", lambda: "loops")
    assert compiled_stack.loops_after(100) is None
    assert compiled_stack.ready_loops(torch.ones(1, 3)) is None
    with monkeypatch.context() as patch:
        patch.setattr(compiled_stack, "numba_works", lambda: False)
        assert compiled_stack.loops_after(10**6) is None
    assert compiled_stack._made is None
    assert compiled_stack.loops_after(1 << 14) == "loops"
    assert compiled_stack.loops_after(1) == "loops"  # what is compiled is used at once
    assert compiled_stack.ready_loops(torch.ones(1, 3)) == "loops"


@pytest.mark.parametrize("kind", [torch.float64, torch.float16])
def test_the_default_dtype_does_not_matter(kind: torch.dtype) -> None:
    """Addresses of another dtype would be read as norms of zero, and nothing would be clipped."""
    torch.manual_seed(1)
    lefts, rights = [torch.randn(40, 7), torch.randn(40, 3)], [torch.randn(40, 5)] * 2
    norms = torch.rand(1, 40)
    loops = compiled_loops()
    expected = loops.norms(lefts, rights, 0.0, 1.0)[0], loops.at_most(norms, 0.5, 1.0)
    torch.set_default_dtype(kind)
    try:
        found = loops.norms(lefts, rights, 0.0, 1.0)[0], loops.at_most(norms, 0.5, 1.0)
        with torch.device("meta"):
            again = loops.norms(lefts, rights, 0.0, 1.0)[0], loops.at_most(norms, 0.5, 1.0)
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other, third in zip(found, expected, again, strict=True):
        assert one.dtype == third.dtype == torch.float32
        assert torch.equal(one, other)
        assert torch.equal(third, other)


@pytest.mark.parametrize("layers", [1, 2])
def test_weights_of_another_dtype_and_totals_of_another_shape(layers: int) -> None:
    compiled_loops()
    model = nn.Linear(4, 3) if layers == 1 else nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    engine = GradientEngine(model)
    with engine.recording(8):
        assert engine.cross_entropy((torch.randn(8, 4),), torch.zeros(8, dtype=torch.int64))
        engine.squared_norms()
        weights = torch.rand(1, 8)
        expected = engine.clipped_sum(weights)
        for name, total in engine.clipped_sum(weights.double()).items():
            assert difference(total, expected[name]) < 1e-6
        totals = [torch.zeros_like(p) for p in model.parameters()]
        memory = torch.zeros(64)
        for odd in (memory[:2], memory[:6:2], memory[:3].double()):
            with pytest.raises(InvalidValue, match="totals"):
                engine.add_clipped_sum(weights, [*totals[:-1], odd])
        assert not memory.any()


def test_a_loop_that_broke_off_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms that were not computed would be zero, and their examples not clipped."""
    loops = compiled_loops()
    monkeypatch.setattr(Job, "run", lambda *_, **__: None)
    norms, layer = torch.rand(1, 8), LinearLayer(torch.ones(3, 4), torch.ones(3))
    targets, data = torch.zeros(8, dtype=torch.int64), torch.ones(8, 4)
    for call in (
        lambda: loops.norms([data], [data], 0.0, 1.0),
        lambda: loops.at_most(norms, 0.5, 1.0),
        lambda: loops.weigh([data], norms[0], 1.0, [torch.zeros(4)]),
        lambda: loops.gradients_and_norms(layer, targets, data, 0.0, norms[0]),
    ):
        with pytest.raises(RuntimeError, match="broke off"):
            call()


def test_products_that_round_their_inputs_are_allowed_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of medium precision, both factors of a weighted sum may be longer by 2^-8."""
    compiled_loops()
    data = torch.randn(5, 4)
    general = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    general[1].register_forward_hook(lambda *_: None)  # which the short way would not call
    apart = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3, bias=False))
    for model in (
        nn.Linear(4, 3),
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)),
        general,
        apart,
    ):
        engine = GradientEngine(model)
        norms = []
        for precision in ("highest", "medium"):
            with monkeypatch.context() as patch:
                patch.setattr(torch, "get_float32_matmul_precision", lambda p=precision: p)
                with engine.recording(5):
                    model(data).square().sum(1).sum().backward()
                    norms.append(engine.squared_norms())
        engine.detach()
        most = norms[0] * (1 + 2.0**-8) ** 4
        if model is apart:  # what bounds more is added where no bias shares its factor
            assert (norms[1] >= most * (1 - 1e-5)).all()
        else:
            assert difference(norms[1], most) < 1e-5
