"""What a recording promises: nothing left behind, nothing around it, weight 0 means absent."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.dpsgd.engine import GradientEngine
from learn.dpsgd.engine.judges import by_microbatches, check, difference

torch.set_num_threads(1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def test_the_model_is_left_as_it_was() -> None:
    model = small()
    before = dict(model.__dict__), [dict(child.__dict__) for child in model]
    engine = GradientEngine(model)
    with engine.recording(2):
        assert "forward" in model.__dict__
        model(normal(2, 4)).sum().backward()
    engine.detach()
    assert (dict(model.__dict__), [dict(child.__dict__) for child in model]) == before
    assert all(not p._backward_hooks for p in model.parameters())
    model(normal(2, 4)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_forward_of_its_own_is_given_back() -> None:
    model = small()
    own = model.forward
    model.forward = lambda data: own(data) * 2  # type: ignore[method-assign]
    mine = model.forward
    check(model, normal(5, 4), tolerance=1e-9, torch_func=False)
    assert model.forward is mine


def test_plain_training_between_recordings() -> None:
    model = small()
    GradientEngine(model)
    model(normal(2, 4)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_evaluation_and_no_grad_are_not_touched() -> None:
    model = small()
    engine = GradientEngine(model)
    with engine.recording(2):
        model.eval()
        assert model(normal(7, 4)).shape == (7, 3)  # no size is expected here
        model.train()
        with torch.no_grad():
            assert model(normal(9, 4)).shape == (9, 3)
        model(normal(2, 4)).sum().backward()
        assert engine.heard
        assert engine.squared_norms().shape == (1, 2)


def test_a_copy_of_the_model_trains_plainly() -> None:
    model = small()
    engine = GradientEngine(model)
    with engine.recording(2):
        model(normal(2, 4)).sum().backward()
    twin = copy.deepcopy(model)
    twin(normal(3, 4)).sum().backward()
    assert all(p.grad is not None for p in twin.parameters())
    assert all(p.grad is None for p in model.parameters())


def test_a_gradient_around_the_record_raises() -> None:
    model = small()
    engine = GradientEngine(model)
    with engine.recording(2):
        loss = model(normal(2, 4)).sum() + model[0].weight.square().sum()
        with pytest.raises(InvalidValue, match=r"0\.weight.*plain autograd"):
            loss.backward()
    with engine.recording(2), pytest.raises(InvalidValue, match="plain autograd"):
        model[2](model[0](normal(2, 4))).sum().backward()
    with engine.recording(2):
        model.eval()
        with pytest.raises(InvalidValue, match="training mode"):
            model(normal(2, 4)).sum().backward()


class Leaky(nn.Module):
    """Hides a derived tensor in its outputs, so that a penalty can be put on it outside."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4, dtype=torch.float64))

    def forward(self, data: Tensor) -> tuple[Tensor, Tensor]:
        squared = self.weight * self.weight
        return data @ squared, squared


def test_a_derived_tensor_around_the_record_raises() -> None:
    model = Leaky()
    engine = GradientEngine(model)
    with engine.recording(2):
        outputs, squared = model(normal(2, 4))
        with pytest.raises(InvalidValue, match="weight"):
            (outputs.sum() + squared.sum()).backward()


def test_several_backward_passes_add_up() -> None:
    model = small()
    engine = GradientEngine(model)
    with engine.recording(3):
        model(normal(3, 4)).sum().backward()
        (2 * model(normal(3, 4, seed=1))).sum().backward()
        norms = engine.squared_norms()
        sums = engine.clipped_sum(torch.ones(1, 3, dtype=torch.float64))
    gradients = []
    for at in range(3):
        model.zero_grad()
        (
            model(normal(3, 4)[at : at + 1]).sum()
            + 2 * model(normal(3, 4, seed=1)[at : at + 1]).sum()
        ).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    squares = [[sum(float(g.square().sum()) for g in row) for row in gradients]]
    assert difference(norms, torch.tensor(squares, dtype=torch.float64)) < 1e-10
    for total, *parts in zip(sums.values(), *gradients, strict=True):
        assert difference(total, sum(parts)) < 1e-10


def test_one_graph_goes_backward_once() -> None:
    model = small()
    engine = GradientEngine(model)
    with engine.recording(2):
        loss = model(normal(2, 4)).sum()
        loss.backward(retain_graph=True)
        with pytest.raises(InvalidValue, match="one backward pass"):
            loss.backward()


def test_inputs_changed_in_place_are_refused() -> None:
    class Overwrites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, data: Tensor) -> Tensor:
            hidden = data * 1.0
            outputs = self.linear(hidden)
            hidden += 1
            return outputs + hidden

    model = Overwrites()
    engine = GradientEngine(model)
    with engine.recording(2), pytest.raises(InvalidValue, match="in place"):
        model(torch.ones(2, 4)).sum().backward()


def test_outputs_changed_in_place_are_right() -> None:
    model = nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 6), nn.ReLU(inplace=True)
    ).double()
    check(model, normal(5, 4), tolerance=1e-10)
    check(model, normal(5, 3, 4), tolerance=1e-10)


LAYERS: dict[str, tuple[Any, Tensor]] = {
    "linear": (lambda: nn.Linear(4, 3), normal(5, 4)),
    "sequence": (lambda: nn.Linear(4, 3), normal(5, 6, 4)),
    "gram": (lambda: nn.Linear(600, 600), normal(5, 2, 600)),
    "gram, many terms": (lambda: nn.Linear(300, 300), normal(5, 90, 300)),
    "pass": (lambda: nn.Linear(36, 36), normal(210, 20, 36)),
    "store, few terms": (lambda: nn.Linear(100, 100), normal(30, 60, 100)),
    "store": (lambda: nn.Linear(300, 300), normal(5, 100, 300)),
    "conv": (lambda: nn.Conv2d(3, 4, 3), normal(5, 3, 6, 6)),
    "wide conv": (lambda: nn.Conv2d(64, 64, 3, padding=1), normal(9, 64, 4, 4)),
    "stored wide conv": (lambda: nn.Conv2d(64, 64, 3, padding=1), normal(9, 64, 12, 12)),
    "group norm": (lambda: nn.GroupNorm(1, 3), normal(5, 3, 4)),
    "layer norm": (lambda: nn.LayerNorm(4), normal(5, 6, 4)),
    "lstm": (lambda: Outputs(nn.LSTM(4, 3, batch_first=True)), normal(5, 6, 4)),
}


class Outputs(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, data: Tensor) -> Tensor:
        return self.layer(data)[0]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e200])
def test_weight_zero_removes_what_is_not_finite(kind: str, poison: float) -> None:
    """The sum over the others is what it is without the poisoned example."""
    torch.manual_seed(0)
    model = LAYERS[kind][0]().double()
    data = LAYERS[kind][1].clone()
    data[1] *= poison
    engine = GradientEngine(model)
    rows = data.shape[0]
    with engine.recording(rows):
        losses = model(data).flatten(1).square().sum(1)
        losses.sum().backward()
        norms = engine.squared_norms()
        weights = torch.where(torch.isfinite(norms), 1.0, 0.0).double()
        sums = engine.clipped_sum(weights)
    if kind not in ("layer norm", "lstm", "group norm") or not math.isfinite(poison):
        assert not bool(torch.isfinite(norms[0, 1])), "it can be seen"
    assert bool(torch.isfinite(norms[0, [0, *range(2, rows)]]).all())
    kept = [at for at in range(rows) if bool(torch.isfinite(norms[0, at]))]
    model.zero_grad()
    model(data[kept]).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert difference(sums[name], parameter.grad) < 1e-9, name


def test_weight_zero_removes_poisoned_embeddings() -> None:
    model = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 2)).double()
    with torch.no_grad():
        model[0].weight[2] = math.inf
    tokens = torch.tensor([[0, 1], [2, 3], [4, 5]])
    engine = GradientEngine(model)
    with engine.recording(3):
        model(tokens).square().sum().backward()
        norms = engine.squared_norms()
        sums = engine.clipped_sum(torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64))
    assert torch.isfinite(norms).tolist() == [[True, False, True]]
    assert all(bool(torch.isfinite(total).all()) for total in sums.values())


def test_float32_norms_that_overflow_are_seen_and_removed() -> None:
    model = nn.Linear(4, 2)
    data = torch.ones(3, 4)
    data[1] = 1e25
    engine = GradientEngine(model)
    with engine.recording(3):
        model(data).sum().backward()
        norms = engine.squared_norms()
        sums = engine.clipped_sum(torch.tensor([[1.0, 0.0, 1.0]]))
    assert torch.isfinite(norms).tolist() == [[True, False, True]]
    assert sums["weight"].tolist() == [[2.0] * 4] * 2


def test_groups_are_clipped_apart() -> None:
    groups = [["0.weight"], ["0.bias", "2.weight", "2.bias"]]
    check(small(), normal(5, 4), groups=groups, tolerance=1e-10)
    check(small(), normal(5, 6, 4), groups=groups, tolerance=1e-10)
    check(small(), normal(5, 4), groups=[["2.bias"], ["0.weight", "0.bias", "2.weight"]])


@pytest.mark.parametrize(
    "groups",
    [
        [["0.weight"]],
        [["0.weight", "0.bias", "2.weight", "2.bias"], []],
        [["0.weight", "0.bias", "2.weight", "2.bias"], ["0.weight"]],
        [["0.weight", "0.bias", "2.weight", "2.bias", "3.weight"]],
    ],
)
def test_wrong_groups_are_refused(groups: list[list[str]]) -> None:
    with pytest.raises(InvalidValue, match="groups"):
        GradientEngine(small(), groups=groups)


def test_wrong_arguments_are_refused() -> None:
    model = small()
    engine = GradientEngine(model)
    for size in (-1, 2.0, True, "2"):
        with pytest.raises(InvalidValue, match="batch_size"):
            engine.expect(size)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="rows_per_unit"):
        engine.expect(2, rows_per_unit=0)
    with pytest.raises(InvalidValue, match="expect"):
        engine.squared_norms()
    with engine.recording(2):
        model(normal(2, 4)).sum().backward()
        for scale in (0, -1.0, math.nan, math.inf, "2"):
            with pytest.raises(InvalidValue, match="scale"):
                engine.squared_norms(scale=scale)  # type: ignore[arg-type]
        with pytest.raises(InvalidValue, match="weights"):
            engine.clipped_sum(torch.ones(2))
    with pytest.raises(InvalidValue, match="batch_axis"):
        GradientEngine(model, batch_axis=2)
    with pytest.raises(InvalidValue, match="trainable"):
        GradientEngine(nn.ReLU())


def test_frozen_parameters() -> None:
    model = small()
    model[0].weight.requires_grad_(False)
    check(model, normal(5, 4), tolerance=1e-10)
    engine = GradientEngine(model)
    assert list(engine.parameters) == ["0.bias", "2.weight", "2.bias"]
    model[0].weight.requires_grad_(True)
    with pytest.raises(InvalidValue, match="unfrozen"):
        engine.expect(2)
    model[0].requires_grad_(False)
    check(model, normal(5, 4), tolerance=1e-10)
    for layer in (nn.Conv2d(3, 4, 3), nn.LayerNorm(4), nn.GroupNorm(1, 3)):
        for name in ("weight", "bias"):
            fresh = copy.deepcopy(layer).double()
            getattr(fresh, name).requires_grad_(False)
            check(fresh, normal(5, 3, 4, 4), tolerance=1e-10)


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        (nn.BatchNorm1d(4), torch.ones(3, 4), "mixes"),
        (
            nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
            torch.ones(2, 3, 4),
            "buffers",
        ),
        (nn.Embedding(7, 3, max_norm=1.0), torch.zeros(3, 2, dtype=torch.int64), "max_norm"),
        (
            nn.Embedding(7, 3, scale_grad_by_freq=True),
            torch.zeros(3, 2, dtype=torch.int64),
            "one another",
        ),
        (nn.Embedding(7, 3, sparse=True), torch.zeros(3, 2, dtype=torch.int64), "sparse"),
        (nn.EmbeddingBag(7, 3, mode="max"), torch.zeros(3, 2, dtype=torch.int64), "mode"),
    ],
    ids=["batch norm", "instance norm", "max norm", "frequency", "sparse", "max bag"],
)
def test_layers_that_mix_examples_are_refused(model: nn.Module, data: Tensor, words: str) -> None:
    engine = GradientEngine(model)
    with engine.recording(data.shape[0]), pytest.raises(NotApplicable, match=words):
        model(data)


def test_embedding_bags_with_offsets_and_weights() -> None:
    offsets = [0, 2, 2, 5]
    tokens = torch.tensor([1, 3, 3, 4, 4, 0, 6])
    bounds = [0, 2, 2, 5, 7]
    for mode in ("sum", "mean"):
        for last in (False, True):
            torch.manual_seed(0)
            layer = nn.EmbeddingBag(7, 3, mode=mode, include_last_offset=last).double()
            starts = torch.tensor(offsets + ([7] if last else []))
            weights = normal(7) if mode == "sum" else None
            engine = GradientEngine(layer)
            with engine.recording(4):
                layer(tokens, starts, weights).square().sum().backward()
                norms = engine.squared_norms()
            engine.detach()
            for at in range(4):
                layer.zero_grad()
                part = slice(bounds[at], bounds[at + 1])
                own = torch.tensor([0, part.stop - part.start] if last else [0])
                chosen = None if weights is None else weights[part]
                layer(tokens[part], own, chosen).square().sum().backward()
                expected = float(layer.weight.grad.square().sum())
                assert float(norms[0, at]) == pytest.approx(expected, rel=1e-10, abs=1e-20)


def test_the_report_names_rules() -> None:
    model = nn.Sequential(nn.Conv1d(1, 2, 2), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(6, 2))
    engine = GradientEngine(model)
    assert set(engine.report.values()) == {"not used yet"}
    with engine.recording(2):
        model(torch.ones(2, 1, 4)).sum().backward()
    assert engine.report == {
        "0.weight": "convolution",
        "0.bias": "convolution",
        "1.weight": "group norm",
        "1.bias": "group norm",
        "3.weight": "linear",
        "3.bias": "linear",
    }


def test_add_clipped_sum_adds() -> None:
    for kind in LAYERS:
        torch.manual_seed(0)
        model = LAYERS[kind][0]().double()
        data = LAYERS[kind][1]
        engine = GradientEngine(model)
        weights = normal(1, data.shape[0]).abs()
        with engine.recording(data.shape[0]):
            model(data).square().sum().backward()
            engine.squared_norms(scale=3.0)
            sums = engine.clipped_sum(weights)
            totals = [torch.ones_like(p) for p in model.parameters()]
            engine.add_clipped_sum(weights, totals)
        for total, alone in zip(totals, sums.values(), strict=True):
            assert difference(total - 1, alone) < 1e-9


class TiedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, data: Tensor) -> Tensor:
        return self.layer(self.layer(data).tanh())


def test_the_judges_reject_wrong_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted mistakes in the book-keeping do not get past ``check``."""
    import discreet.learn.dpsgd.engine._engine as engine_module
    import discreet.learn.dpsgd.engine._forms as contributions
    import discreet.learn.dpsgd.engine._recorder as recorder_module

    torch.manual_seed(0)
    shared, data = TiedTwice().double(), normal(5, 4)
    check(shared, data, tolerance=1e-9)

    def sum_of_norms(parts: Any) -> Any:
        whole = contributions.merge(parts)

        class Wrong:
            def squared_norms(self) -> Tensor:
                return torch.stack([part.squared_norms() for part in parts]).sum(0)

            def __getattr__(self, name: str) -> Any:
                return getattr(whole, name)

        return Wrong()

    with monkeypatch.context() as patch:
        patch.setattr(recorder_module, "merge", sum_of_norms)
        with pytest.raises(AssertionError):
            check(shared, data)
    with monkeypatch.context() as patch:
        patch.setattr(recorder_module, "merge", lambda parts: parts[0])
        with pytest.raises(AssertionError):
            check(shared, data)
    general = nn.Sequential(small(), nn.Identity())  # no plain stack
    whole = contributions.total_squared_norms
    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "total_squared_norms", lambda p, f: whole(p[:-1], f))
        with pytest.raises(AssertionError):
            check(general, data)
    with monkeypatch.context() as patch:
        original = contributions.Outer.add_to
        patch.setattr(
            contributions.Outer,
            "add_to",
            lambda self, total, weights, factor: original(self, total, weights.sqrt(), factor),
        )
        with pytest.raises(AssertionError):
            check(general, data)


def test_the_microbatch_judge_is_plain_autograd() -> None:
    model = small()
    rows = by_microbatches(model, (normal(3, 4),), (0,), 0, 3)
    assert len(rows) == 3
    assert rows[0]["0.weight"].abs().sum() > 0
