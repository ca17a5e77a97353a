"""Plain stacks of linear layers, run and recorded as one operation.

For small models the time of a step is that of its calls, not of its arithmetic. A model that is
an ``nn.Sequential`` of linear layers and common activations has a forward pass that is known
beforehand, so nobody needs to watch every torch call: it runs as one ``autograd.Function`` with
activations in place, and its backward pass keeps the same factors of the same gradients as the
rule for linear maps does (:mod:`.rule_linear`). Whatever is not exactly as expected, be it a
hook, a subclass, an input of another shape or a mode that watches torch, goes the general way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from operator import is_
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules import module as torch_module

from discreet.errors import InvalidValue
from discreet.learn.dpsgd.engine.compiled_stack import (
    LinearLayer,
    Loops,
    loops_after,
    suit_norms,
    suits,
)
from discreet.learn.dpsgd.engine.contributions import Outer, OuterBias, PerExample, scalar
from discreet.learn.dpsgd.engine.recorder import Recorder
from discreet.learn.dpsgd.engine.rounding import lost
from discreet.learn.dpsgd.engine.rule_linear import unchanged
from discreet.learn.dpsgd.engine.sources import Source, own_leaf
from discreet.learn.dpsgd.engine.stack_pass import StackPass

__all__ = ["Stack"]

_FIRST = "the first layer"
_NARROW = 32  # outputs, of which a loop makes gradients in less time than calls of torch
_aten = torch.ops.aten
_relu_backward = _aten.threshold_backward.grad_input
_tanh_backward = _aten.tanh_backward.grad_input
_sigmoid_backward = _aten.sigmoid_backward.grad_input


class _Activation(NamedTuple):
    """A function, and its derivative from its result alone; both overwrite what they get."""

    forward_: Callable[[Tensor], object]
    backward_: Callable[[Tensor, Tensor], object]


_RELU = _Activation(torch.relu_, lambda g, out: _relu_backward(g, out, 0, grad_input=g))
_ACTIVATIONS: dict[type[nn.Module], _Activation] = {
    nn.ReLU: _RELU,
    nn.Tanh: _Activation(torch.tanh_, lambda g, out: _tanh_backward(g, out, grad_input=g)),
    nn.Sigmoid: _Activation(torch.sigmoid_, lambda g, out: _sigmoid_backward(g, out, grad_input=g)),
}


# Somebody may have put others in their place since.
_LAYERS: list[type[nn.Module]] = [nn.Sequential, nn.Linear, nn.Flatten, *_ACTIVATIONS]
_FORWARDS = [(kind, kind.forward) for kind in _LAYERS]
_FUNCTIONS = [
    (getattr(home, name), name, vars(home))
    for home, names in ((F, ("linear", "relu")), (torch, ("tanh", "sigmoid")))
    for name in names
]


class _Space(NamedTuple):
    """A module and its attributes; what is put beside them could hide a parameter or a method."""

    module: nn.Module
    kind: type[nn.Module]
    attributes: dict[str, Any]
    size: int
    parameters: dict[str, Any]
    modules: dict[str, Any]
    inner: bool

    @staticmethod
    def of(module: nn.Module, *, inner: bool) -> _Space:
        space = vars(module)
        # The outermost module has its forward method replaced by the recording.
        size = len(space) + (not inner and "forward" not in space)
        tables = space["_parameters"], space["_modules"]
        return _Space(module, type(module), space, size, *tables, inner)


class _Layer(NamedTuple):
    """A linear layer, and the activation behind it."""

    weight: Tensor
    bias: Tensor | None
    by_weight: Source | None
    by_bias: Source | None
    activation: _Activation | None


class _Run(torch.autograd.Function):
    """The whole stack; hears the gradient of its result."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, stack: Stack, rows: Tensor) -> Tensor:  # noqa: ARG004
        result, ctx.kept = stack.forward(rows)
        ctx.stack = stack
        ctx.generation = stack.generation
        ctx.version = rows._version
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        kept, ctx.kept = ctx.kept, None
        ctx.stack.require_current(ctx.generation)
        if kept is None:
            raise InvalidValue("loss", _FIRST, "one backward pass through each forward pass")
        unchanged(kept[0], ctx.version, _FIRST)
        ctx.stack.backward(kept, gradient.detach())
        return None, None, None


@final
class Stack:
    """A model whose forward pass is known from its modules alone."""

    def __init__(
        self, model: nn.Module, recorder: Recorder, layers: list[_Layer], *, flattens: bool
    ) -> None:
        self.passes: list[StackPass] = []
        self._short = 0
        self._layers = layers
        self._flattens = flattens
        self._model = model
        self._recorder = recorder
        self._spaces = [_Space.of(module, inner=module is not model) for module in model.modules()]
        self._owners = [
            table for one in model.modules() for table in (one._parameters, one._modules)
        ]
        self._sizes = list(map(len, self._owners))
        held = [(table, name, one) for table in self._owners for name, one in table.items()]
        self._tables, self._names, self._held = map(list, zip(*held, strict=True))
        # No gradient is wanted below the first layer that is trained.
        trained = [layer.by_weight is not None or layer.by_bias is not None for layer in layers]
        self._first = trained.index(True)
        in_turn = [source for layer in layers for source in (layer.by_weight, layer.by_bias)]
        self._whole = in_turn == recorder.parameters
        weight, bias = layers[-1][:2]
        weights = [layer.weight for layer in layers]
        narrow = self._whole and weight.shape[0] <= _NARROW
        narrow = narrow and suit_norms(weights, [one.t() for one in weights])
        self._last = LinearLayer(weight, bias) if narrow and bias is not None else None
        self._widest = max(layer.weight.shape[0] for layer in layers)
        self._noted = False
        self._anchor = own_leaf(torch.zeros(()))

    @staticmethod
    def of(model: nn.Module, recorder: Recorder) -> Stack | None:
        """Return the stack that a model is, if it is one."""
        modules = list(_flattened(model))
        if recorder.axes.declared or len({id(module) for module in modules}) != len(modules):
            return None
        if any(_hides(module, model) for module in model.modules()):
            return None
        layers: list[_Layer] = []
        flattens = bool(modules) and _flattens(modules[0])
        for module in modules[flattens:]:
            kind = type(module)
            if isinstance(module, nn.Linear) and kind is nn.Linear:
                weight, bias = module.weight, module.bias
                sources = recorder.source_of(weight), recorder.source_of(bias)
                layers.append(_Layer(weight, bias, *sources, None))
            elif kind in _ACTIVATIONS and layers and layers[-1].activation is None:
                layers[-1] = layers[-1]._replace(activation=_ACTIVATIONS[kind])
            else:
                return None
        # The last activation would be in the hands of the loss, which may overwrite it.
        if not layers or layers[-1].activation is not None:
            return None
        used = [one for layer in layers for one in layer[:2] if one is not None]
        plain = all(type(one) is nn.Parameter for one in used)
        alike = len({(one.dtype, one.device) for one in used}) == 1
        if not plain or not alike or len({id(one) for one in used}) != len(used):
            return None
        return Stack(model, recorder, layers, flattens=flattens)

    def fits(self, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this call of the model is the one that was foreseen."""
        if len(args) != 1 or kwargs:
            return False
        rows, first = args[0], self._layers[0].weight
        if (
            type(rows) is not Tensor
            or self._recorder.repeats != 1
            or not self._are_rows(rows.shape)
            or rows.dtype != first.dtype
            or rows.device != first.device
            or rows.layout is not torch.strided
            or rows.requires_grad
            or (torch._C._len_torch_function_stack() and not _only_look(_modes()))
            or torch_module._has_any_global_hook()  # type: ignore[no-untyped-call]
            or getattr(own, "__func__", None) is not type(self._model).forward
            or own.__self__ is not self._model  # type: ignore[attr-defined]
        ):
            return False
        for kind, forward in _FORWARDS:
            if kind.forward is not forward:
                return False
        for function, name, space in _FUNCTIONS:
            if space[name] is not function:
                return False
        for module, kind, space, size, parameters, modules, inner in self._spaces:
            if (
                type(module) is not kind
                or len(space) != size
                or space["_parameters"] is not parameters
                or space["_modules"] is not modules
            ):
                return False
            before = space["_forward_pre_hooks"]
            if inner and (
                "forward" in space
                or (before and not _only_look(before.values()))
                or space["_forward_hooks"]
                or space["_backward_hooks"]
                or space["_backward_pre_hooks"]
            ):
                return False
        whole = list(map(len, self._owners)) == self._sizes
        return whole and all(map(is_, map(dict.get, self._tables, self._names), self._held))

    def _are_rows(self, shape: torch.Size) -> bool:
        if len(shape) < 2 or shape[0] != self._recorder.units:
            return False
        if len(shape) == 2:
            return shape[1] == self._layers[0].weight.shape[1]
        return self._flattens and math.prod(shape[1:]) == self._layers[0].weight.shape[1]

    @property
    def generation(self) -> int:
        """The number of the recording that is open."""
        return self._recorder.generation

    def require_current(self, generation: int) -> None:
        """Raise if a gradient comes from a forward pass of another recording."""
        self._recorder.require_current(generation)

    def run(self, rows: Tensor) -> Tensor:
        """Do what the model does with the examples, and hear the gradient of the result."""
        if rows.ndim > 2:
            rows = rows.flatten(1)
        result: Tensor = _Run.apply(self._anchor, self, rows)  # type: ignore[no-untyped-call]
        return result

    def cross_entropy(self, rows: Tensor, targets: Tensor) -> bool:
        """Take a forward and a backward pass of summed cross-entropies, without autograd.

        The gradient of an example's loss with respect to its outputs is softmax(outputs) minus
        one at its class. Targets that are not classes are left to torch: nothing is recorded
        then, and the answer is no.
        """
        if rows.ndim > 2:
            rows = rows.flatten(1)
        with torch.no_grad():
            loops = self._loops()
            kept = self._inputs_of_layers(rows)
            last = self._last
            if loops is not None and last is not None and suits(last, kept[-1], targets):
                return self._compiled_pass(loops, last, kept, targets)
            # Examples last in memory: of few classes, torch's softmax takes a tenth of the time.
            weight, bias = self._layers[-1][:2]
            # Turning it twice makes torch look whether its memory is still there.
            outputs = torch.mm(weight.t().t(), kept[-1].t())
            if bias is not None:
                outputs += bias.unsqueeze(1)
            gradient = torch.softmax(outputs, 0)
            minus_one = scalar(-1.0, gradient).expand(1, gradient.shape[1])
            try:
                gradient.scatter_add_(0, targets.unsqueeze(0), minus_one)
            except RuntimeError:
                return False
            self._backward(kept, gradient.t(), loops)
        return True

    def _compiled_pass(
        self, loops: Loops, last: LinearLayer, kept: list[Tensor], targets: Tensor
    ) -> bool:
        """The same from the inputs of the last layer on, in loops wherever they are faster."""
        inputs = kept[-1]
        norms = inputs.new_empty(1, inputs.shape[0])
        least = lost(self._widest, inputs)
        top = len(self._layers) - 2
        below, activation = None, None
        if top >= 0:
            below, activation = torch.empty_like(inputs), self._layers[top].activation
        rectified = activation is _RELU
        given = last, targets, inputs, least, norms[0]
        left, is_finite = loops.gradients_and_norms(*given, below=below, rectified=rectified)
        if left is None:
            return False
        lefts = [left]
        if below is not None:
            if activation is not None and not rectified:
                activation.backward_(below, inputs)
            rectified = top > 0 and self._layers[0].activation is _RELU
            lefts = self._below(top, below, kept, leave_first=rectified)
            sums = lefts, kept[:-1], least, 1.0
            norms, is_finite = loops.norms(*sums, begun=norms, rectified=rectified)
            lefts.append(left)
        self._keep(StackPass(lefts, kept, loops, norms=norms, is_finite=is_finite, owns_last=True))
        return True

    def _loops(self) -> Loops | None:
        """The compiled loops, if the parameters are where they run and it pays."""
        self._short += 1
        on_host = self._layers[0].weight.device.type == "cpu"
        return loops_after(self._short) if on_host else None

    def _inputs_of_layers(self, rows: Tensor) -> list[Tensor]:
        kept = [rows]
        for weight, bias, _, _, activation in self._layers[:-1]:
            rows = F.linear(rows, weight, bias)
            if activation is not None:
                activation.forward_(rows)
            kept.append(rows)
        return kept

    def forward(self, rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The result and the inputs of all layers; without autograd."""
        kept = self._inputs_of_layers(rows)
        return F.linear(kept[-1], *self._layers[-1][:2]), kept

    def backward(self, kept: list[Tensor], gradient: Tensor) -> None:
        """Keep the factors of every layer's gradients, from that of the result."""
        self._backward(kept, gradient, self._loops() if self._whole else None)

    def _backward(self, kept: list[Tensor], gradient: Tensor, loops: Loops | None) -> None:
        lefts = self._below(len(self._layers) - 1, gradient, kept)
        if self._whole:
            self._keep(StackPass(lefts, kept, loops))
        else:
            self._contribute(lefts, kept[self._first :])

    def _below(
        self, top: int, gradient: Tensor, kept: list[Tensor], *, leave_first: bool = False
    ) -> list[Tensor]:
        """The gradients of what the trained layers up to ``top`` give, from that of the last.

        With ``leave_first`` the first one has yet to come back through the activation.
        """
        layers = self._layers
        lefts = [gradient]
        for at in range(top, self._first, -1):
            gradient = torch.mm(gradient, layers[at].weight)
            activation = layers[at - 1].activation
            if activation is not None and not (leave_first and at == 1):
                activation.backward_(gradient, kept[at])
            lefts.append(gradient)
        lefts.reverse()
        return lefts

    def _keep(self, one: StackPass) -> None:
        self.passes.append(one)
        if not self._noted:
            self._note()

    def _note(self) -> None:
        self._noted = True
        for layer in self._layers:
            for source in (layer.by_weight, layer.by_bias):
                if source is not None:
                    source.note("linear")

    def spread_out(self) -> None:
        """Hand the passes on as contributions to each parameter, to be treated like others."""
        passes, self.passes = self.passes, []
        for one in passes:
            self._contribute(*one.factors())

    def _contribute(self, lefts: list[Tensor], rights: list[Tensor]) -> None:
        self._note()
        recorder = self._recorder
        for layer, left, right in zip(self._layers[self._first :], lefts, rights, strict=True):
            if layer.by_weight is not None:
                outer = Outer(left, right, layer.weight.shape)
                recorder.add(layer.by_weight, outer)
                if layer.by_bias is not None:
                    recorder.add(layer.by_bias, OuterBias(outer))
            elif layer.by_bias is not None:
                recorder.add(layer.by_bias, PerExample(left))


def _modes() -> list[Any]:
    """All that watch the calls of torch in this thread."""
    count = torch._C._len_torch_function_stack()
    return [torch._C._get_function_stack_at(at) for at in range(count)]


def _only_look(watching: Iterable[Any]) -> bool:
    """Whether hooks and modes are ours that need not see the calls within a model.

    They say so by ``needs_no_inner_calls``: what they look at is outside of it, as the backward
    pass is, or is seen at the outermost module too.
    """
    return all(getattr(type(one), "needs_no_inner_calls", False) for one in watching)


def _hides(module: nn.Module, model: nn.Module) -> bool:
    """Whether an attribute stands before a parameter, a part or, within the model, its call."""
    names = {*module._parameters, *module._modules}
    if module is not model:
        names |= {"forward", "_compiled_call_impl"}
    return bool(names & vars(module).keys())


def _flattens(module: nn.Module) -> bool:
    return type(module) is nn.Flatten and module.start_dim == 1 and module.end_dim == -1


def _flattened(model: nn.Module) -> Iterator[nn.Module]:
    """The layers in the order of the forward pass."""
    if type(model) is nn.Sequential:
        for part in model:
            yield from _flattened(part)
    else:
        yield model
