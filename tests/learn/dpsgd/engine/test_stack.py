"""Plain stacks of linear layers: the short way gives what the general way and the twins give."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from discreet.errors import InvalidValue
from discreet.learn.dpsgd.engine import GradientEngine
from discreet.learn.dpsgd.engine import stack as stack_module
from discreet.learn.dpsgd.engine.recorder import Recorder
from discreet.learn.dpsgd.engine.stack_pass import StackPass
from learn.dpsgd.engine.judges import check, difference

torch.set_num_threads(1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def deep() -> nn.Module:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 5), nn.Sigmoid())
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), inner, nn.Linear(5, 3)).double()


def frozen(*names: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = deep()
        for name in names:
            model.get_parameter(name).requires_grad_(False)
        return model

    return make


STACKS: dict[str, Callable[[], nn.Module]] = {
    "one layer": lambda: nn.Linear(4, 3).double(),
    "one in a sequence": lambda: nn.Sequential(nn.Linear(4, 3)).double(),
    "deep": deep,
    "wide behind": lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 9)).double(),
    "no activation": lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)).double(),
    "without bias": lambda: nn.Sequential(
        nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False)
    ).double(),
    "first layer frozen": frozen("0.weight", "0.bias"),
    "weight frozen": frozen("2.0.weight"),
    "bias frozen": frozen("3.bias"),
    "flattened": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double(),
}


def refuse_general_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the general way was taken")

    monkeypatch.setattr(Recorder, "__enter__", refuse)


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("rows", [1, 7])
def test_stacks_agree_with_the_twins(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_general_way(monkeypatch)
    torch.manual_seed(3)
    check(STACKS[name](), normal(rows, 4), tolerance=1e-9)
    check(STACKS[name](), normal(rows, 4), tolerance=1e-9, mean=True)


def test_images_are_flattened(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_general_way(monkeypatch)
    check(STACKS["flattened"](), normal(5, 2, 2), tolerance=1e-9)
    transposed = normal(5, 2, 2).transpose(1, 2)
    check(STACKS["flattened"](), transposed, tolerance=1e-9)


def test_single_precision_and_layers_clipped_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_general_way(monkeypatch)
    check(deep().float(), normal(6, 4).float())
    apart = [["0.weight", "0.bias"], ["2.0.bias", "3.weight"], ["3.bias", "2.0.weight"]]
    check(deep(), normal(6, 4), groups=apart, tolerance=1e-9)


class Watching(TorchFunctionMode):
    """A mode of somebody else, who wants to see the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[Any] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func)
        return func(*args, **(kwargs or {}))


class Doubled(nn.Linear):
    """A subclass whose forward pass is its own."""

    def forward(self, data: Tensor) -> Tensor:
        return 2 * super().forward(data)


def takes_short_way(model: nn.Module, data: Tensor, prepare: Callable[[], object]) -> bool:
    engine = GradientEngine(model)
    stack = engine._boxes.stack
    prepare()
    with engine.recording(len(data)):
        model(data).sum().backward()
        short = stack is not None and bool(stack.passes)
    engine.detach()
    return short


def test_what_is_not_foreseen_goes_the_general_way() -> None:
    data = normal(5, 4)
    assert takes_short_way(deep(), data, lambda: None)

    model = deep()
    heard: list[Tensor] = []
    hook: Any = lambda *args: heard.append(args[-1])  # noqa: E731
    assert not takes_short_way(model, data, lambda: model[1].register_forward_hook(hook))
    assert len(heard) == 1
    check(model, data, tolerance=1e-9, torch_func=False)

    model = deep()
    own = model[1].forward
    twice: Any = lambda values: 2 * own(values)  # noqa: E731
    assert not takes_short_way(model, data, lambda: setattr(model[1], "forward", twice))
    check(model, data, tolerance=1e-9, torch_func=False)

    for odd in (
        nn.Sequential(Doubled(4, 3)).double(),
        nn.Sequential(nn.Linear(4, 3), nn.ReLU()).double(),
        nn.Sequential(nn.ReLU(), nn.Linear(4, 3)).double(),
        nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)).double(),
        nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Tanh(), nn.Linear(4, 2)).double(),
    ):
        assert not takes_short_way(odd, data, lambda: None)
        check(odd, data, tolerance=1e-9)

    layer = nn.Linear(4, 4)
    shared = nn.Sequential(layer, nn.Tanh(), layer).double()
    assert not takes_short_way(shared, data, lambda: None)
    check(shared, data, tolerance=1e-9)

    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()
    tied[1].weight = tied[0].weight
    assert not takes_short_way(tied, data, lambda: None)
    check(tied, data, tolerance=1e-9)

    normalised = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))).double()
    assert not takes_short_way(normalised, data, lambda: None)
    check(normalised, data, tolerance=1e-9, torch_func=False)


def test_what_stands_before_parameters_or_parts_goes_the_general_way() -> None:
    data = normal(5, 4)

    def shadow_weight(model: nn.Module) -> None:
        vars(model[3])["weight"] = 2 * model[3].weight.detach()  # type: ignore[index]

    def other_parts(model: nn.Module) -> None:
        model._modules = dict(model._modules)

    def other_parameters(model: nn.Module) -> None:
        model[0]._parameters = dict(model[0]._parameters)  # type: ignore[index]

    for change in (shadow_weight, other_parts, other_parameters):
        model = deep()
        assert takes_short_way(model, data, lambda: None)
        assert not takes_short_way(model, data, lambda change=change, model=model: change(model))
    model = deep()
    shadow_weight(model)
    assert GradientEngine(model)._boxes.stack is None, "from the beginning"
    model, other = deep(), deep()
    model.forward = other.forward  # type: ignore[method-assign]
    with pytest.raises(InvalidValue, match="every use of a parameter"):
        takes_short_way(model, data, lambda: None)  # the layers of another model
    model = deep()
    engine = GradientEngine(model)
    own = type(model).forward.__get__(model)
    with engine.recording(5):
        stack: Any = engine._boxes.stack
        assert stack.fits(own, (data,), {})
        assert not stack.fits(own, (data.to_sparse(),), {})
    engine.detach()


@pytest.mark.parametrize("name", ["linear", "relu", "tanh", "sigmoid"])
def test_patched_functions_go_the_general_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home: Any = torch if name in ("tanh", "sigmoid") else nn.functional
    own = getattr(home, name)
    model, data = deep(), normal(5, 4)
    patched: Any = lambda *args, **kwargs: own(*args, **kwargs)  # noqa: E731
    assert not takes_short_way(model, data, lambda: monkeypatch.setattr(home, name, patched))


class OnlyLooking(Watching):
    """A mode that does not need the calls within a model."""

    needs_no_inner_calls = True


def test_modes_that_need_no_inner_calls_do_not_stand_in_the_way() -> None:
    model, data = deep(), normal(6, 4)
    for modes, short in (
        ([OnlyLooking()], True),
        ([OnlyLooking(), OnlyLooking()], True),
        ([OnlyLooking(), Watching()], False),
        ([Watching(), OnlyLooking()], False),
    ):
        engine = GradientEngine(model)
        with ExitStack() as stack, engine.recording(6):
            for mode in modes:
                stack.enter_context(mode)
            model(data).sum().backward()
            assert bool(engine._boxes.stack.passes) == short  # type: ignore[union-attr]
        engine.detach()


def test_modes_sequences_copies_and_gradients_of_inputs_go_the_general_way() -> None:
    model, data = deep(), normal(6, 4)
    mode = Watching()
    engine = GradientEngine(model)
    with mode, engine.recording(6):
        model(data).sum().backward()
        assert not engine._boxes.stack.passes  # type: ignore[union-attr]
    assert torch.nn.functional.linear in mode.seen
    with engine.recording(6):
        inputs = data.clone().requires_grad_()
        model(inputs).sum().backward()
        assert not engine._boxes.stack.passes  # type: ignore[union-attr]
        assert inputs.grad is not None
    engine.detach()
    check(deep(), data, repeats=2, tolerance=1e-9)
    check(deep(), normal(5, 3, 4), tolerance=1e-9)


def test_a_parameter_beside_the_layers_does_not_shift_the_others() -> None:
    model = nn.Sequential(nn.Linear(4, 3)).double()
    model.register_parameter("scale", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    check(model, normal(5, 4), tolerance=1e-9)


def test_several_passes_and_both_ways_add_up() -> None:
    """A model that is run three times in one recording, once in the general way."""
    model = deep()
    first, second, third = normal(5, 4), normal(5, 4, seed=1), normal(5, 4, seed=2)
    weights = torch.linspace(0.1, 1, 5, dtype=torch.float64).unsqueeze(0)
    engine = GradientEngine(model)
    with engine.recording(5):
        loss = model(first).square().sum() + model(second).sin().sum()
        with Watching():
            loss = loss + model(third).cos().sum()
        loss.backward()
        norms = engine.squared_norms()
        sums = engine.clipped_sum(weights)
    engine.detach()
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for row in range(5):
        model.zero_grad()
        outputs = [model(data[row : row + 1]) for data in (first, second, third)]
        (outputs[0].square().sum() + outputs[1].sin().sum() + outputs[2].cos().sum()).backward()
        square = sum(float(p.grad.square().sum()) for p in model.parameters())  # type: ignore[union-attr]
        assert abs(float(norms[0, row]) / square - 1) < 1e-9
        for name, p in model.named_parameters():
            assert p.grad is not None
            expected[name] += weights[0, row] * p.grad
    for name, total in expected.items():
        assert difference(sums[name], total) < 1e-9


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e200])
def test_an_example_that_is_not_finite_leaves_nothing(bad: float) -> None:
    model, data = deep(), normal(5, 4)
    data[2, 1] = bad
    engine = GradientEngine(model)
    with engine.recording(5):
        model(data).square().sum().backward()
        norms = engine.squared_norms()
        weights = torch.where(torch.isfinite(norms), 1.0, 0.0)
        sums = engine.clipped_sum(weights)
    with engine.recording(4):
        model(data[[0, 1, 3, 4]]).square().sum().backward()
        others = engine.clipped_sum(torch.ones(1, 4, dtype=torch.float64))
    engine.detach()
    assert not torch.isfinite(norms[0, 2])
    for name, total in others.items():
        assert difference(sums[name], total) < 1e-9


def test_inputs_that_change_meanwhile_are_noticed() -> None:
    model, data = deep(), normal(5, 4)
    engine = GradientEngine(model)
    weights = torch.ones(1, 5, dtype=torch.float64)
    with engine.recording(5):
        outputs = model(data)
        data.mul_(2)
        with pytest.raises(InvalidValue, match="in place"):
            outputs.sum().backward()
    for groups in (
        None,
        [["0.weight", "0.bias"], ["2.0.weight", "2.0.bias", "3.weight", "3.bias"]],
    ):
        changed = GradientEngine(deep(), groups=groups)
        with changed.recording(5):
            changed._model(data).sum().backward()
            changed.squared_norms()
            data.mul_(2)
            with pytest.raises(InvalidValue, match="in place"):
                changed.clipped_sum(weights.expand(2 if groups else 1, 5))
    with engine.recording(5):
        outputs = model(data).sum()
        outputs.backward(retain_graph=True)
        with pytest.raises(InvalidValue, match="one backward pass"):
            outputs.backward()


def test_gradients_around_the_record_still_raise() -> None:
    model, data = deep(), normal(5, 4)
    engine = GradientEngine(model)
    with engine.recording(5), pytest.raises(InvalidValue, match=r"0\.weight"):
        (model(data).sum() + model[0].weight.square().sum()).backward()


@pytest.mark.parametrize("name", STACKS)
def test_a_last_use_gives_the_same_sum_and_leaves_what_others_hold(name: str) -> None:
    torch.manual_seed(3)
    model, data = STACKS[name](), normal(6, 4)
    before = data.clone()
    weights = torch.linspace(0.1, 1, 6, dtype=torch.float64).unsqueeze(0)
    engine = GradientEngine(model)
    sums = []
    for last in (False, True):
        with engine.recording(6):
            outputs = model(data)
            outputs.retain_grad()
            outputs.square().sum().backward()
            engine.squared_norms()
            totals = [torch.ones_like(p) for p in engine.parameters.values()]
            engine.add_clipped_sum(weights, totals, last=last)
            sums.append(totals)
            assert torch.equal(outputs.grad, 2 * outputs.detach())  # type: ignore[arg-type]
            assert torch.equal(data, before)
    engine.detach()
    for first, second in zip(*sums, strict=True):
        assert torch.equal(first, second)


def test_the_report_names_the_rule() -> None:
    model = deep()
    engine = GradientEngine(model)
    with engine.recording(5):
        model(normal(5, 4)).sum().backward()
    assert set(engine.report.values()) == {"linear"}


@pytest.mark.parametrize("name", STACKS)
def test_cross_entropy_without_autograd_is_that_with_it(name: str) -> None:
    torch.manual_seed(3)
    model, data = STACKS[name](), normal(6, 4)
    targets = torch.randint(3, (6,))
    weights = torch.linspace(0.1, 1, 6, dtype=torch.float64).unsqueeze(0)
    engine = GradientEngine(model)
    results = []
    for at_once in (True, False):
        with engine.recording(6):
            if at_once:
                assert engine.cross_entropy((data,), targets)
            else:
                nn.functional.cross_entropy(model(data), targets, reduction="sum").backward()
            results.append((engine.squared_norms(), engine.clipped_sum(weights)))
    engine.detach()
    assert difference(results[0][0], results[1][0]) < 1e-12
    for parameter, total in results[0][1].items():
        assert difference(total, results[1][1][parameter]) < 1e-12


def test_targets_that_are_no_classes_are_left_to_torch() -> None:
    model, data = deep(), normal(3, 4)
    engine = GradientEngine(model)
    assert not engine.cross_entropy((data,), torch.tensor([0, 1, 2]))  # nothing is recorded yet
    for odd in ([0, 1, 3], [0, -1, 2], [0, -100, 2]):
        with engine.recording(3):
            assert not engine.cross_entropy((data,), torch.tensor(odd))
            assert not engine.heard
    other = GradientEngine(nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)).double())
    with other.recording(3):
        assert not other.cross_entropy((data,), torch.tensor([0, 1, 2]))


def test_the_judges_reject_wrong_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted mistakes in the short way do not get past ``check``."""
    data = normal(5, 4)
    own_norms = StackPass.squared_norms
    own_add = StackPass.add_to
    own_backward = stack_module.Stack.backward
    identity = stack_module._Activation(torch.relu_, lambda *_: None)

    def without_bias(self: Any, factor: float) -> Tensor:
        bias = torch.stack([left.square().sum(1) for left in self._lefts]).sum(0)
        return own_norms(self, factor) - factor * bias

    def unweighted(self: Any, totals: Any, weights: Tensor, factor: float, *, last: bool) -> None:
        own_add(self, totals, torch.ones_like(weights), factor, last=last)

    def scaled(self: Any, kept: Any, gradient: Tensor) -> None:
        own_backward(self, kept, gradient / len(gradient))

    for owner, name, mutant in (
        (StackPass, "squared_norms", without_bias),
        (StackPass, "add_to", unweighted),
        (stack_module.Stack, "backward", scaled),
        (stack_module, "_ACTIVATIONS", {**stack_module._ACTIVATIONS, nn.ReLU: identity}),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, mutant)
            with pytest.raises(AssertionError):
                check(deep(), data)
    check(deep(), data)


@pytest.mark.parametrize("change", ["exchange", "append"])
def test_parts_that_were_exchanged_are_noticed(change: str) -> None:
    model, data = deep(), normal(5, 4)
    engine = GradientEngine(model)
    targets = torch.zeros(5, dtype=torch.int64)
    with engine.recording(5):
        assert engine.cross_entropy((data,), targets)
    if change == "exchange":
        place = next(at for at, one in enumerate(model) if isinstance(one, nn.ReLU | nn.Tanh))
        model[place] = nn.Softplus()
    else:
        model.append(nn.Softplus())
    with engine.recording(5):
        assert not engine.cross_entropy((data,), targets)
    engine.detach()
