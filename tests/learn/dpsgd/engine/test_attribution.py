"""Whose gradient is whose: models that fold, stack or reorder their examples on the way."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.dpsgd import _trial as attribution
from discreet.learn.dpsgd import verify_attribution
from discreet.learn.dpsgd.engine import GradientEngine
from discreet.learn.dpsgd.engine._axes import Axes, Folds
from discreet.learn.dpsgd.isolation import TensorSpec
from discreet.learn.dpsgd.isolation._subject import copy_for_probing, describe
from learn.dpsgd.engine.judges import check


class Shaped(nn.Module):
    """A linear layer between two changes of layout, then another one on (examples, features)."""

    def __init__(self, layout: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 6)
        self.outer = nn.Linear(6, 3)
        self.layout = layout

    def forward(self, data: Tensor) -> Tensor:
        return self.outer(self.layout(self.inner, data))


def example_major(inner: nn.Module, data: Tensor) -> Tensor:
    flat = inner(data.reshape(-1, data.shape[2])).tanh()
    return flat.view(*data.shape[:2], -1).mean(1)


def time_major(inner: nn.Module, data: Tensor) -> Tensor:
    flat = inner(data.transpose(0, 1).reshape(-1, data.shape[2])).tanh()
    return flat.view(data.shape[1], data.shape[0], -1).mean(0)


def time_major_by_steps(inner: nn.Module, data: Tensor) -> Tensor:
    flat = inner(data.permute(1, 0, 2).contiguous().view(-1, data.shape[2])).tanh()
    return flat.view(data.shape[1], data.shape[0], -1).mean(0)


def window_major(inner: nn.Module, data: Tensor) -> Tensor:
    windows = torch.cat([data[:, :6], data[:, 2:8]])  # (windows * examples, 6, features)
    return inner(windows).tanh().view(2, data.shape[0], 6, -1).mean((0, 2))


def concatenated(inner: nn.Module, data: Tensor) -> Tensor:
    first = data[:, 0]
    result = inner(torch.cat([first, 2 * first])).tanh()
    return result[: len(first)] + result[len(first) :]


def transposed(inner: nn.Module, data: Tensor) -> Tensor:
    return inner(data.transpose(0, 1)).tanh().mean(0)


def stacked(inner: nn.Module, data: Tensor) -> Tensor:
    return inner(torch.stack([data[:, 0], data[:, 1]])).tanh().sum(0)


def sorted_rows(inner: nn.Module, data: Tensor) -> Tensor:
    first = data[:, 0]
    order = first[:, 0].argsort()
    return inner(first[order]).tanh()[order.argsort()]


def reversed_rows(inner: nn.Module, data: Tensor) -> Tensor:
    return inner(data[:, 0].flip(0)).tanh().flip(0)


def by_expert(inner: nn.Module, data: Tensor) -> Tensor:
    flat = data.reshape(-1, data.shape[2])
    result = flat.new_zeros(flat.shape[0], 6)
    for side in (flat[:, 0] > 0, flat[:, 0] <= 0):
        places = side.nonzero().squeeze(1)
        result = result.index_put((places,), inner(flat[places]))
    return result.tanh().view(*data.shape[:2], -1).mean(1)


UNSEEN_BY_SHAPE = [time_major, time_major_by_steps, window_major, concatenated]
REORDERED = [sorted_rows, reversed_rows]
BY_VALUE = [by_expert]
TIME_FIRST = [transposed, stacked]


def batch(rows: int, time: int) -> Tensor:
    return torch.randn(
        rows, time, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(rows)
    )


@pytest.mark.parametrize(
    "layout", [example_major, *UNSEEN_BY_SHAPE, *REORDERED, *BY_VALUE, *TIME_FIRST]
)
@pytest.mark.parametrize(("rows", "time"), [(3, 8), (8, 8), (4, 8), (1, 8)])
def test_folded_rows_find_their_examples(layout: Any, rows: int, time: int) -> None:
    check(Shaped(layout).double(), batch(rows, time), torch_func=False, tolerance=1e-9)


def test_only_an_unknown_order_is_run_example_by_example(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="discreet.learn.dpsgd")
    for layout, words in ((example_major, "linear"), (time_major, "torch.func")):
        model = Shaped(layout).double()
        engine = GradientEngine(model)
        with engine.recording(4):
            model(batch(4, 6)).sum().backward()
            engine.squared_norms()
        assert words in engine.report["inner.weight"]
        assert ("no telling which rows" in caplog.text) == (words == "torch.func")
        engine.detach()


def test_hooks_of_the_model_see_whole_batches_once() -> None:
    model = Shaped(time_major).double()
    seen: list[int] = []
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[0]))
    model.register_forward_hook(lambda _, __, result: seen.append(result.shape[0]))
    engine = GradientEngine(model)
    apart: list[bool] = []
    model.outer.register_forward_hook(lambda *_: apart.append(engine.runs_by_example))
    with engine.recording(4):
        model(batch(4, 6)).sum().backward()
        assert float(engine.squared_norms().min()) > 0
    engine.detach()
    assert seen == [4, 4]
    assert apart == [True]
    assert not engine.runs_by_example


def test_an_input_with_several_rows_for_each_example_is_refused() -> None:
    """Two crops of every example, all first crops before all second ones."""
    model = nn.Linear(5, 1)
    engine = GradientEngine(model)
    with engine.recording(4), pytest.raises(NotApplicable, match="none of its inputs"):
        model(torch.ones(8, 5))


@pytest.mark.parametrize("time", [5, 8, 12])
@pytest.mark.parametrize("layout", TIME_FIRST)
def test_wrong_attribution_is_found(
    layout: Any, time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that takes every first axis for the examples does not get through the trial."""
    monkeypatch.setattr(Folds, "axis", lambda *_: 0)
    with pytest.raises(NotApplicable, match=r"inner\.(weight|bias)"):
        verify_attribution(Shaped(layout), torch.zeros(1, time, 5))


@pytest.mark.parametrize(
    "layout", [example_major, *UNSEEN_BY_SHAPE, *REORDERED, *BY_VALUE, *TIME_FIRST]
)
def test_right_attribution_is_accepted(layout: Any, caplog: pytest.LogCaptureFixture) -> None:
    verify_attribution(Shaped(layout), torch.zeros(1, 8, 5), groups=None)
    assert not caplog.records
    assert not logging.getLogger("discreet.learn.dpsgd").filters


class Sentence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.attend = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.shift = nn.Parameter(torch.zeros(8))

    def forward(self, words: Tensor) -> Tensor:
        return (self.attend(self.embed(words)) + self.shift) @ self.embed.weight.t()


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Sentence(), TensorSpec((4,), torch.int64, values=11)),
        (nn.LSTM(4, 3), TensorSpec((3, 4), batch_dim=1)),
        (nn.TransformerEncoderLayer(8, 2, 16), TensorSpec((3, 8), batch_dim=1)),
        (
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout(), nn.Flatten(), nn.Linear(16, 3)),
            torch.zeros(1, 1, 4, 4),
        ),
    ],
    ids=["tied", "lstm", "sequence first", "convolution"],
)
def test_ordinary_models_are_accepted(model: nn.Module, inputs: Any) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    verify_attribution(model, inputs, groups=[[n] for n, _ in model.named_parameters()])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_an_engine_that_cuts_everything_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading of shapes that was there before: any multiple is taken as example-major."""
    monkeypatch.setattr(
        Axes, "_cut", lambda self, data, _, **__: bool(self.rows) and not data.shape[0] % self.rows
    )
    monkeypatch.setattr(Folds, "axis", lambda *_: 0)
    for layout in [*UNSEEN_BY_SHAPE, *REORDERED]:
        with pytest.raises(NotApplicable, match=r"inner\.weight \(in inner, a Linear\)"):
            verify_attribution(Shaped(layout), torch.zeros(1, 8, 5))


def test_an_engine_with_wrong_sums_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = GradientEngine.clipped_sum

    def shuffled(self: GradientEngine, weights: Tensor) -> dict[str, Tensor]:
        return right(self, weights.flip(1))

    monkeypatch.setattr(attribution.GradientEngine, "clipped_sum", shuffled)
    with pytest.raises(NotApplicable, match="weight"):
        verify_attribution(nn.Linear(3, 2), torch.zeros(1, 3))


# --- what the trial says: too large, unheard, or of another example -------------------------------


def with_norms(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    right = GradientEngine.squared_norms

    def changed(self: GradientEngine, **options: Any) -> Tensor:
        return change(right(self, **options))

    monkeypatch.setattr(attribution.GradientEngine, "squared_norms", changed)


def test_norms_that_are_too_large_are_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that is clipped more than it need be gives away less."""
    with_norms(monkeypatch, lambda norms: norms * 3.0 + 1.0)
    verify_attribution(nn.Linear(3, 2), torch.zeros(1, 3))


def test_norms_that_are_too_small_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with_norms(monkeypatch, lambda norms: norms * 0.99)
    with pytest.raises(NotApplicable, match="given to the wrong examples"):
        verify_attribution(nn.Linear(3, 2), torch.zeros(1, 3))


def test_norms_of_other_examples_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with_norms(monkeypatch, lambda norms: norms.flip(1))
    with pytest.raises(NotApplicable, match="given to the wrong examples"):
        verify_attribution(nn.Linear(3, 2), torch.zeros(1, 3))


@pytest.mark.parametrize("lose", ["norms", "sums"])
def test_a_gradient_that_was_not_heard_is_named(lose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if lose == "norms":
        with_norms(monkeypatch, torch.zeros_like)
    else:
        right = GradientEngine.clipped_sum
        monkeypatch.setattr(
            attribution.GradientEngine,
            "clipped_sum",
            lambda self, weights: {
                name: torch.zeros_like(one) for name, one in right(self, weights).items()
            },
        )
    with pytest.raises(NotApplicable, match="no gradient of it was heard"):
        verify_attribution(nn.Linear(3, 2), torch.zeros(1, 3))


def test_one_of_two_orders_is_known_where_sizes_tell_nothing() -> None:
    """As many examples as positions in a fold: both orders are followed from the input."""

    def pairs(inner: nn.Module, data: Tensor) -> Tensor:
        return inner(data.reshape(-1, 2, 5)).tanh().view(data.shape[0], -1, 6).mean(1)

    check(Shaped(pairs).double(), batch(2, 8), torch_func=False, tolerance=1e-9)
    check(Shaped(transposed).double(), batch(2, 8), torch_func=False, tolerance=1e-9)


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, data: Tensor) -> Tensor:
        return self.layer(data).mean()


def test_what_cannot_be_tried_is_refused() -> None:
    with pytest.raises(NotApplicable, match="no output"):
        verify_attribution(Whole(), torch.zeros(1, 3))
    with pytest.raises(NotApplicable, match="mix"):
        verify_attribution(nn.BatchNorm1d(3), torch.zeros(1, 3))
    with pytest.raises(InvalidValue, match="trainable"):
        verify_attribution(nn.Linear(3, 2).requires_grad_(False), torch.zeros(1, 3))
    with pytest.raises(InvalidValue, match="model"):
        verify_attribution("model", torch.zeros(1, 3))  # type: ignore[arg-type]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_made_during_a_recording_trains_plainly(copied: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.GRU(4, 2, batch_first=True))
    engine = GradientEngine(model)
    data = torch.ones(2, 4, 3)
    with engine.recording(2):
        twin = copied(model)
        twin(data)[0].sum().backward()
        again = copied(twin)
        model(data)[0].sum().backward()
        assert float(engine.squared_norms().min()) > 0
    for other in (twin, again):
        other(torch.ones(5, 4, 3))[0].sum().backward()
        assert all(p.grad is not None for p in other.parameters())
    assert all(p.grad is None for p in model.parameters())
    assert "forward" not in model.__dict__


def held_by(thing: object) -> int:
    """How many numbers the tensors have that an object holds, each tensor once."""
    seen: set[int] = set()
    waiting, total = [thing], 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | nn.Module):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            total += one.untyped_storage().size() // one.element_size()
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
        elif hasattr(one, "__dict__"):
            waiting += vars(one).values()
    return total


def test_memory_does_not_grow_with_the_examples() -> None:
    model = nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 2))
    subject = copy_for_probing(model, loss=None, description=describe(torch.zeros(1, 40), None))
    names = list(subject.trainable())
    weights = sum(p.numel() for p in model.parameters())
    groupings = [[[name] for name in names], [names]]
    small, large = (
        held_by(attribution._Trial(subject, size, groupings, seed=1)) for size in (2, 16)
    )
    assert small < 2.2 * weights  # the sums of both groupings, and little else
    assert large - small < weights  # the batch and the outputs, and no gradients
