"""Sequence layers: attention, whose projections are linear maps, and recurrent layers.

Torch's function for attention runs as it is, opened so that the projections inside it are seen.
Recurrent layers run step by step. All inputs go through one product for the whole sequence; the
recurrent product is one for each step, and its uses are added before any norm is taken, as for
every shared weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from discreet.errors import NotApplicable
from discreet.learn.dpsgd.engine._linear import linear
from discreet.learn.dpsgd.engine._recorder import NoRule, Recorder, Rule


def opened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a composite torch function that does not hand itself to the recorder again.

    Its body is torch's; only the question whether someone overrides the function as a whole is
    answered with no, so that the recorder meets the operations inside.
    """
    assert isinstance(function, FunctionType)
    namespace = dict(function.__globals__)
    for question in (
        "has_torch_function",
        "has_torch_function_unary",
        "has_torch_function_variadic",
    ):
        namespace[question] = lambda *_: False
    body = FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__
    )
    body.__kwdefaults__ = function.__kwdefaults__
    return body


_attention = opened(F.multi_head_attention_forward)


def multi_head_attention(
    recorder: Recorder, func: Any, query: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Multi-head attention on (time, examples, features), as torch's modules pass it."""
    if query.ndim != 3:
        raise NoRule(func, recorder.names_in((query, *args), kwargs))
    for one in recorder.data_in((query, *args[:2]), {}):
        recorder.axes.expect(one, 1, func.__name__)
    # Where its axes go is known beforehand, so they need not be followed.
    before, recorder.follows = recorder.follows, False
    try:
        with recorder.knowing(1), recorder:
            return _attention(query, *args, **kwargs)
    finally:
        recorder.follows = before


# From the input's share of the gates, the hidden state's share and the state to the new state.
Step = Callable[[Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


def lstm_step(given: Tensor, recurrent: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Gates in torch's order: input, forget, cell, output."""
    enter, keep, cell, show = (given + recurrent).chunk(4, dim=1)
    memory = keep.sigmoid() * state[1] + enter.sigmoid() * cell.tanh()
    return show.sigmoid() * memory.tanh(), memory


def gru_step(given: Tensor, recurrent: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Gates in torch's order: reset, update, new; the reset gate acts after the product."""
    reset_given, update_given, new_given = given.chunk(3, dim=1)
    reset_hidden, update_hidden, new_hidden = recurrent.chunk(3, dim=1)
    reset = (reset_given + reset_hidden).sigmoid()
    update = (update_given + update_hidden).sigmoid()
    new = (new_given + reset * new_hidden).tanh()
    return (new + update * (state[0] - new),)


def tanh_step(given: Tensor, recurrent: Tensor, _: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return ((given + recurrent).tanh(),)


def relu_step(given: Tensor, recurrent: Tensor, _: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return ((given + recurrent).relu(),)


def direction(
    recorder: Recorder,
    step: Step,
    inputs: Tensor,
    state: tuple[Tensor, ...],
    weights: Sequence[Tensor | None],
    *,
    backwards: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run one direction of one layer over inputs (time, examples, features)."""
    by_input, by_hidden, input_bias, hidden_bias, projection = weights
    assert by_input is not None
    assert by_hidden is not None
    with recorder.knowing(1):
        given = linear(recorder, F.linear, inputs, by_input, input_bias)
    steps = given.unbind(0)
    outputs: list[Tensor] = []
    with recorder.knowing(0):
        for at in reversed(steps) if backwards else steps:
            recurrent = linear(recorder, F.linear, state[0], by_hidden, hidden_bias)
            state = step(at, recurrent, state)
            if projection is not None:
                state = (linear(recorder, F.linear, state[0], projection), *state[1:])
            outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs), state


def layers(
    recorder: Recorder,
    step: Step,
    states: Sequence[Tensor],
    data: Tensor,
    weights: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Run stacked layers; return outputs and final states, as torch does."""
    ways = 2 if bidirectional else 1
    size = len(weights) // (num_layers * ways)
    inputs = data.transpose(0, 1) if batch_first else data
    finals: list[tuple[Tensor, ...]] = []
    for layer in range(num_layers):
        outputs = []
        for way in range(ways):
            at = layer * ways + way
            own = list(weights[at * size : (at + 1) * size])
            biases = own[2:4] if has_biases else [None, None]
            projection = own[-1] if size in (3, 5) else None
            state = tuple(part[at] for part in states)
            result, final = direction(
                recorder,
                step,
                inputs,
                state,
                [own[0], own[1], *biases, projection],
                backwards=way == 1,
            )
            outputs.append(result)
            finals.append(final)
        inputs = torch.cat(outputs, dim=2) if ways == 2 else outputs[0]
        if dropout and layer < num_layers - 1:
            inputs = F.dropout(inputs, dropout, train)
    final_states = tuple(torch.stack(parts) for parts in zip(*finals, strict=True))
    return (inputs.transpose(0, 1) if batch_first else inputs, *final_states)


def whole(step: Step) -> Rule:
    """Return the rule for a recurrent layer over padded sequences."""

    def rule(
        recorder: Recorder,
        func: Any,
        data: Tensor,
        hx: Any,
        weights: Any,
        *options: Any,
    ) -> Any:
        if isinstance(options[0], list | tuple):
            raise NotApplicable(
                "packed sequences: their rows are sorted by length, so they no longer say which "
                "example they belong to; pass padded sequences"
            )
        states = hx if isinstance(hx, list | tuple) else (hx,)
        recorder.axes.expect(data, 0 if options[-1] else 1, func.__name__)
        for state in recorder.data_in(tuple(states), {}):
            recorder.axes.expect(state, 1, func.__name__)
        return layers(recorder, step, states, data, weights, *options)

    return rule


def cell(step: Step) -> Rule:
    """Return the rule for a single step."""

    def rule(
        recorder: Recorder,
        func: Any,  # noqa: ARG001
        data: Tensor,
        hx: Any,
        by_input: Tensor,
        by_hidden: Tensor,
        input_bias: Tensor | None = None,
        hidden_bias: Tensor | None = None,
    ) -> Any:
        state = tuple(hx) if isinstance(hx, list | tuple) else (hx,)
        given = linear(recorder, F.linear, data, by_input, input_bias)
        recurrent = linear(recorder, F.linear, state[0], by_hidden, hidden_bias)
        result = step(given, recurrent, state)
        return result if len(result) > 1 else result[0]

    return rule


RULES: dict[Any, Rule] = {
    F.multi_head_attention_forward: multi_head_attention,
    torch.lstm: whole(lstm_step),
    torch.gru: whole(gru_step),
    torch.rnn_tanh: whole(tanh_step),
    torch.rnn_relu: whole(relu_step),
    torch.lstm_cell: cell(lstm_step),
    torch.gru_cell: cell(gru_step),
    torch.rnn_tanh_cell: cell(tanh_step),
    torch.rnn_relu_cell: cell(relu_step),
}
