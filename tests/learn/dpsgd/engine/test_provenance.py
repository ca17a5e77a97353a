"""Which tensors are the examples: what comes from the inputs, not what happens to be as long."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discreet.errors import DiscreetError
from discreet.learn.dpsgd import verify_attribution
from discreet.learn.dpsgd.engine import GradientEngine
from discreet.learn.dpsgd.engine._axes import Folds
from discreet.learn.dpsgd.engine._layout import LOST, REORDERED
from discreet.learn.dpsgd.engine._recorder import Recorder
from learn.dpsgd.engine.judges import check

TIME = 24  # as many as examples, and a multiple of every size that a trial of 2, 3 and 4 has


def made(*shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=draw)


class Sequences(nn.Module):
    """Over (examples, time, 4); ``use`` computes (examples, 4)."""

    def __init__(self, use: Any) -> None:
        super().__init__()
        self.token = nn.Linear(4, 4)
        self.place = nn.Embedding(TIME, 4)
        self.scale = nn.Parameter(made(4))
        self.decay = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.head = nn.Linear(4, 3)
        self.register_buffer("known", torch.arange(TIME))
        self.ids = torch.arange(TIME)
        self.table = made(TIME, 4, seed=3)
        self.use = use
        self.double()

    def forward(self, data: Tensor) -> Tensor:
        return self.head(self.use(self, data))


def plain_positions(model: Any, data: Tensor) -> Tensor:
    return (model.token(data) * model.place(model.ids)).mean(1)


def fresh_positions(model: Any, data: Tensor) -> Tensor:
    return (model.token(data) * model.place(torch.arange(data.shape[1]))).mean(1)


def known_positions(model: Any, data: Tensor) -> Tensor:
    return (model.token(data) * model.place(model.known[: data.shape[1]])).mean(1)


def repeated_positions(model: Any, data: Tensor) -> Tensor:
    places = torch.arange(data.shape[1]).expand(data.shape[0], -1)
    return (model.token(data) * model.place(places)).mean(1)


def typed_times(model: Any, data: Tensor) -> Tensor:
    times = torch.arange(data.shape[1]).type_as(data) / data.shape[1]
    return (model.token(data) * torch.sin(times[:, None] * model.scale)).mean(1)


def converted_times(model: Any, data: Tensor) -> Tensor:
    times = torch.arange(data.shape[1]).to(data) / data.shape[1]
    return (model.token(data) * torch.sin(times[:, None] * model.scale)).mean(1)


def plain_table(model: Any, data: Tensor) -> Tensor:
    return (model.token(data) + model.decay * model.table).tanh().mean(1)


def projected_table(model: Any, data: Tensor) -> Tensor:
    scores = model.token(data).mean(1) @ model.token(model.table).t()
    return scores.softmax(1) @ model.token(model.table)


def decay_of_distance(model: Any, data: Tensor) -> Tensor:
    times = data.new_ones(data.shape[1]).cumsum(0)
    distance = (times[:, None] - times).abs()
    return (torch.exp(-model.decay * distance) @ model.token(data)).mean(1)


CONSTANTS = [
    plain_positions,
    fresh_positions,
    known_positions,
    repeated_positions,
    typed_times,
    converted_times,
    plain_table,
    projected_table,
    decay_of_distance,
]


@pytest.mark.parametrize("use", CONSTANTS)
@pytest.mark.parametrize("rows", [TIME, 7])
def test_constants_as_long_as_the_batch_are_not_the_examples(use: Any, rows: int) -> None:
    check(Sequences(use), made(rows, TIME, 4, seed=1), torch_func=False, tolerance=1e-9)


@pytest.mark.parametrize("use", [plain_positions, typed_times, plain_table])
def test_an_engine_that_trusts_lengths_would_be_noticed(
    use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug is the reading that was there before: unknown tensors are data.

    Where the axis is followed, the tensors are found to be at odds, so it must be lost as well.
    """
    monkeypatch.setattr(Recorder, "is_data", lambda *_: True)
    monkeypatch.setattr(Folds, "axis", lambda *_: 0)
    with pytest.raises((AssertionError, DiscreetError)):
        check(Sequences(use), made(TIME, TIME, 4, seed=1), torch_func=False, tolerance=1e-9)


def last_of_each(model: Any, data: Tensor) -> Tensor:
    last = (data[:, :, 0] > 0).sum(1).clamp(max=data.shape[1] - 1)
    return model.token(data).tanh()[torch.arange(data.shape[0]), last]


def over_time(model: Any, data: Tensor) -> Tensor:
    state = data.new_zeros(data.shape[0], 4)
    for step in data.transpose(0, 1).unbind(0):
        state = (model.token(step) + state).tanh()
    return state


def iterated(model: Any, data: Tensor) -> Tensor:
    outputs = [model.token(step).tanh() for step in data.transpose(0, 1)]
    return torch.stack(outputs).mean(0) * model.scale


def heads(model: Any, data: Tensor) -> Tensor:
    rows, time, _ = data.shape
    parts = model.token(data).view(rows, time, 2, 2).transpose(1, 2)
    mixed = (parts @ parts.transpose(-2, -1)).softmax(-1) @ parts
    return model.token(mixed.transpose(1, 2).reshape(rows, time, 4)).mean(1)


def filled(model: Any, data: Tensor) -> Tensor:
    out = torch.zeros(data.shape[0], 4, dtype=data.dtype)
    out[:, :2] = model.token(data).mean(1)[:, :2]
    out[:, 2:] = model.token(data.sin()).mean(1)[:, 2:]
    return model.token(out)


def filled_by_time(model: Any, data: Tensor) -> Tensor:
    out = data.new_zeros(data.shape[1], data.shape[0], 4)
    for at in range(data.shape[1]):
        out[at] = model.token(data[:, at])
    return out.transpose(0, 1).tanh().mean(1) * model.scale


def filled_through_a_view(model: Any, data: Tensor) -> Tensor:
    out = torch.zeros(data.shape[0], 4, dtype=data.dtype)
    out[:, :2].copy_(model.token(data).mean(1)[:, :2])
    return model.token(out)


@pytest.mark.parametrize(
    "use",
    [last_of_each, over_time, iterated, heads, filled, filled_by_time, filled_through_a_view],
)
@pytest.mark.parametrize("rows", [TIME, 5])
def test_usual_ways_of_moving_axes_stay_on_the_fast_path(
    use: Any, rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    check(Sequences(use), made(rows, TIME, 4, seed=2), torch_func=False, tolerance=1e-9)
    assert "torch.func" not in caplog.text


class LastState(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.inner = kind(4, 4, batch_first=True)
        self.head = nn.Linear(4, 3)
        self.double()

    def forward(self, data: Tensor) -> Tensor:
        _, last = self.inner(data)
        return self.head((last[0] if isinstance(last, tuple) else last)[-1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("rows", [1, 6])
def test_last_states_of_recurrent_layers(
    kind: Any, rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    check(LastState(kind), made(rows, 6, 4, seed=2), torch_func=False, tolerance=1e-9)
    assert "torch.func" not in caplog.text


def flipped(model: Any, data: Tensor) -> Tensor:
    return model.token(data[:, 0].flip(0)).tanh().flip(0)


def ordered(model: Any, data: Tensor) -> Tensor:
    order = data[:, 0, 0].argsort()
    return model.token(data[order]).tanh().mean(1)[order.argsort()]


def rolled(model: Any, data: Tensor) -> Tensor:
    return model.token(data.mean(1).roll(1, 0)).tanh().roll(-1, 0)


def chosen(model: Any, data: Tensor) -> Tensor:
    order = torch.arange(data.shape[0]).flip(0)
    return model.token(data.mean(1).index_select(0, order)).tanh().index_select(0, order)


def swapped_halves(model: Any, data: Tensor) -> Tensor:
    half = data.shape[0] // 2
    turned = torch.cat([data[half:], data[:half]]).mean(1)
    result = model.token(turned).tanh()
    return torch.cat([result[data.shape[0] - half :], result[: data.shape[0] - half]])


def time_first(model: Any, data: Tensor) -> Tensor:
    return model.token(data.transpose(0, 1)).tanh().mean(0)


@pytest.mark.parametrize("use", [flipped, ordered, rolled, chosen, swapped_halves, time_first])
def test_rows_that_move_later_are_run_example_by_example(
    use: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A model that passed every probe and then begins to move its rows."""
    model = Sequences(plain_positions)
    verify_attribution(model, torch.zeros(1, TIME, 4))
    model.use = use
    check(model, made(TIME, TIME, 4, seed=2), torch_func=False, tolerance=1e-9)
    assert ("torch.func" in caplog.text) == (use is not time_first)


def test_moved_rows_taken_for_unmoved_ones_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Folds, "axis", lambda *_: 0)
    with pytest.raises(AssertionError):
        check(Sequences(flipped), made(TIME, TIME, 4, seed=2), torch_func=False, tolerance=1e-9)


def test_a_parameter_made_inside_the_forward_call_is_refused() -> None:
    def use(model: Any, data: Tensor) -> Tensor:
        return model.token(data).mean(1) * nn.Parameter(torch.ones(4, dtype=torch.float64))

    model = Sequences(use)
    engine = GradientEngine(model)
    with engine.recording(3), pytest.raises(DiscreetError, match="requires gradients"):
        model(made(3, TIME, 4))
    engine.detach()


MOVES: list[tuple[Any, int]] = [
    (lambda x: x.transpose(0, 2), 2),
    (lambda x: x.transpose(1, 2), 0),
    (lambda x: x.permute(1, 2, 0), 2),
    (lambda x: torch.movedim(x, 0, 1), 1),
    (lambda x: x.permute(2, 1, 0).mT, 1),
    (lambda x: x[None], 1),
    (lambda x: x[:, None], 0),
    (lambda x: x[..., 0], 0),
    (lambda x: x[None, ..., 0], 1),
    (lambda x: x.transpose(0, 1)[0], 0),
    (lambda x: x.transpose(0, 1)[2:], 1),
    (lambda x: x.transpose(0, 1)[:, :2], REORDERED),
    (lambda x: x[1], REORDERED),
    (lambda x: x[::2], REORDERED),
    (lambda x: x[[1, 0, 2]], REORDERED),
    (lambda x: x[:, [1, 0]], 0),
    (lambda x: x[:, [1, 0], :], 0),
    (lambda x: x[:, [1, 0], [1, 0]], 0),
    (lambda x: x.transpose(0, 1)[[1, 0]], LOST),
    (lambda x: x[x[:, 0, 0] > 0], REORDERED),
    (lambda x: x.unsqueeze(0).squeeze(0), 0),
    (lambda x: x.unsqueeze(0) + torch.zeros(2, 1, 1, 1), 1),
    (lambda x: x.sum((1, 2)), 0),
    (lambda x: x.transpose(0, 1).sum(0, keepdim=True), 1),
    (lambda x: x.sum(0), REORDERED),
    (lambda x: x.mean(0).exp(), REORDERED),
    (lambda x: x.flip(1), 0),
    (lambda x: x.flip(0), REORDERED),
    (lambda x: x.transpose(0, 1).flip(0), 1),
    (lambda x: x.roll(1), REORDERED),
    (lambda x: x.sort(1)[0], 0),
    (lambda x: torch.sort(x, dim=0)[0], REORDERED),
    (lambda x: torch.stack([x, x]), 1),
    (lambda x: torch.stack([x, x], dim=1), 0),
    (lambda x: torch.cat([x, x], dim=1), 0),
    (lambda x: torch.cat([x, x]), REORDERED),
    (lambda x: x.transpose(0, 1).unbind(0)[1], 0),
    (lambda x: x.chunk(2, dim=1)[1], 0),
    (lambda x: x.chunk(2)[1], REORDERED),
    (lambda x: x.transpose(0, 1).reshape(5, 3, 2, 2), 1),
    (lambda x: x.transpose(0, 1).reshape(3, 5, 4), LOST),
    (lambda x: x.reshape(1, 3, 20), 1),
    (lambda x: torch.zeros(3, 2) + x[:, 0, :2], 0),
    (lambda x: torch.zeros(4, 1) + x[:, 0, 0], 1),
]


@pytest.mark.parametrize("at", range(len(MOVES)))
def test_where_the_rows_are_after_a_call(at: int) -> None:
    move, expected = MOVES[at]
    found: list[int] = []

    class Moving(nn.Linear):
        def forward(self, data: Tensor) -> Tensor:
            found.append(engine._recorder.axes.folds.axis(move(data)))
            return super().forward(data)

    model = Moving(4, 2)
    engine = GradientEngine(model)
    with engine.recording(3):
        data = torch.arange(60.0).reshape(3, 5, 4)
        model(data)
        if expected >= 0:
            # The slow twin: along which axis do the numbers of different examples differ most?
            marks = move(torch.arange(3.0).view(3, 1, 1).expand(3, 5, 4))
            along = [
                float(marks.float().std(dim)[...].sum())
                for dim in range(marks.ndim)
                if marks.shape[dim] > 1
            ]
            sizes = [dim for dim in range(marks.ndim) if marks.shape[dim] > 1]
            assert sizes[along.index(max(along))] == expected
    engine.detach()
    assert found[0] == expected
