"""Per-example norms and clipped sums from one forward and one backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, final

import torch
from torch import Tensor, nn

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.learn.dpsgd.engine import (
    _broadcast,
    _convolution,
    _embedding,
    _linear,
    _normalization,
    _sequences,
)
from discreet.learn.dpsgd.engine._by_example import BlackBoxes
from discreet.learn.dpsgd.engine._forms import (
    Contribution,
    require_unchanged,
    total_squared_norms,
)
from discreet.learn.dpsgd.engine._layout import Axes, contains_sequence_first, declared_axis
from discreet.learn.dpsgd.engine._recorder import Recorder, Rule, refuse_autocast

RULES: dict[Any, Rule] = {
    **_broadcast.RULES,
    **_convolution.RULES,
    **_embedding.RULES,
    **_linear.RULES,
    **_normalization.RULES,
    **_sequences.RULES,
}

ALWAYS = _embedding.ALWAYS


@final
class GradientEngine:
    """Per-example gradient norms and weighted sums, by book-keeping.

    Between :meth:`expect` and :meth:`forget`, a forward call of the model in training mode
    with gradients enabled is recorded: its layers run on detached parameters, so the usual
    ``loss.backward()`` computes output gradients only and leaves every ``.grad`` alone. Then
    :meth:`squared_norms` and :meth:`clipped_sum` read what was recorded. Forward calls in
    evaluation mode or under ``no_grad`` are not touched, and outside of a recording the model
    is as it was.

    Guarantee: the clipped sum is ``sum_i w_i g_i`` for the given weights, where ``g_i`` is the
    gradient of what example ``i`` adds to the loss, and the squared norms are those of the
    same ``g_i``, up to rounding. An example of weight 0 adds exactly nothing, even if its
    gradient is not finite. A gradient that would reach a parameter around the record raises
    during the backward pass. That examples do not influence one another inside the model is
    not this class's to know: see :func:`~discreet.learn.dpsgd.check_isolation`.

    ``groups`` lists names of parameters that are clipped together, each trainable parameter
    once; ``None`` is one group. ``batch_axis`` declares where the examples are (0 or 1) in
    models whose layers take (time, examples, features); ``None`` takes the first axis, except
    in a model with sequence-first layers, where an axis that cannot be told raises.
    ``before_gradient`` is called whenever a gradient arrives, before anything of it is kept.

    >>> model = nn.Linear(4, 1)
    >>> engine = GradientEngine(model)
    >>> with engine.recording(3):
    ...     model(torch.ones(3, 4)).sum().backward()
    ...     norms = engine.squared_norms()
    ...     total = engine.clipped_sum(torch.ones(1, 3))
    >>> norms.tolist(), total["bias"].tolist(), model.bias.grad
    ([[5.0, 5.0, 5.0]], [3.0], None)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        groups: Sequence[Sequence[str]] | None = None,
        batch_axis: int | None = None,
        before_gradient: Callable[[], None] = lambda: None,
    ) -> None:
        if batch_axis is not None:
            batch_axis = _validate.integer("batch_axis", batch_axis, at_least=0, at_most=1)
        named = dict(model.named_parameters())
        self._parameters = {name: p for name, p in named.items() if p.requires_grad}
        self._frozen = [p for p in named.values() if not p.requires_grad]
        if not self._parameters:
            raise InvalidValue("model", type(model).__name__, "at least one trainable parameter")
        self._groups = self._checked_groups(groups)
        self._model = model
        if batch_axis is None:
            batch_axis = declared_axis(model)
        axes = Axes(declared=batch_axis, sequence_first=contains_sequence_first(model))
        self._recorder = Recorder(self._parameters, axes, before_gradient)
        self._recorder.rules = RULES
        self._recorder.always = ALWAYS
        self._boxes = BlackBoxes(model, self._recorder)
        self._open = False
        self._scale = 1.0
        self._settled: list[Contribution | None] | None = None
        self._norms: Tensor | None = None
        self._guards = [
            p.register_hook(self._guard(name))  # type: ignore[no-untyped-call]
            for name, p in self._parameters.items()
        ]

    def _checked_groups(self, groups: Sequence[Sequence[str]] | None) -> list[list[int]]:
        """Return the positions of the trainable parameters of each group."""
        names = list(self._parameters)
        if groups is None:
            return [list(range(len(names)))]
        listed = [name for group in groups for name in group]
        if sorted(listed) != sorted(names) or not all(groups):
            odd = sorted(set(listed) ^ set(names)) or listed
            raise InvalidValue(
                "groups", odd, "every trainable parameter in exactly one group, and no empty group"
            )
        return [[names.index(name) for name in group] for group in groups]

    def _guard(self, name: str) -> Any:
        return lambda _: self._recorder.leak([name])

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The trainable parameters by name, as they were when the engine was made."""
        return MappingProxyType(self._parameters)

    @property
    def report(self) -> dict[str, str]:
        """For each parameter the rules that handled it so far, or ``"not used yet"``."""
        return {
            source.name: ", ".join(sorted(source.rules)) or "not used yet"
            for source in self._recorder.parameters
        }

    @property
    def heard(self) -> bool:
        """Whether a backward pass reached the open recording."""
        if not self._open:
            return False
        return any(part is not None for part in self._contributions())

    @property
    def runs_by_example(self) -> bool:
        """Whether the engine itself is now running a module under ``torch.func``."""
        return self._boxes.inside

    def expect(self, batch_size: int, *, rows_per_unit: int = 1) -> None:
        """Open a recording of ``batch_size`` units, each of ``rows_per_unit`` rows.

        The gradient of a unit is the mean of the gradients of its rows, which follow one
        another: rows ``b * k ... b * k + k - 1`` belong to unit ``b``. A recording that is
        still open is dropped.
        """
        if type(batch_size) is not int or batch_size < 0:
            batch_size = _validate.integer("batch_size", batch_size, at_least=0)
        if type(rows_per_unit) is not int or rows_per_unit < 1:
            _validate.integer("rows_per_unit", rows_per_unit, at_least=1)
        for parameter in self._frozen:
            if parameter.requires_grad:
                raise InvalidValue(
                    "model",
                    type(self._model).__name__,
                    "no parameter unfrozen since the engine was made",
                )
        if self._open:
            self.forget()
        # Here too, because forget() may have been interrupted.
        self._settled, self._norms, self._scale = None, None, 1.0
        self._recorder.open(batch_size, rows_per_unit)
        self._boxes.install()
        self._open = True

    @contextmanager
    def recording(self, batch_size: int, *, rows_per_unit: int = 1) -> Iterator[None]:
        """Open a recording, and forget it at the end."""
        self.expect(batch_size, rows_per_unit=rows_per_unit)
        try:
            yield
        finally:
            self.forget()

    def forget(self) -> None:
        """Drop the recording; the model is as it was before."""
        if self._open:
            self._open = False
            self._settled, self._norms = None, None
            self._boxes.uninstall()
            self._recorder.close()

    def detach(self) -> None:
        """Forget, and remove all that was attached to the model."""
        self.forget()
        for guard in self._guards:
            guard.remove()
        self._guards = []

    def _contributions(self) -> list[Contribution | None]:
        if not self._open:
            raise InvalidValue("recording", "closed", "expect(batch_size) before the forward pass")
        if self._settled is None:
            self._recorder.settle()
            self._settled = [
                source.contributions[0] if source.contributions else None
                for source in self._recorder.parameters
            ]
        return self._settled

    def squared_norms(self, *, scale: float = 1.0) -> Tensor:
        """Return the squared gradient norms, shape (groups, batch).

        ``scale`` undoes what the loss did to its examples: with a mean over the batch, its
        size. It then holds for :meth:`clipped_sum` too. Gradients that are not finite have norms
        that are not finite. After this the recording takes no further backward pass.
        """
        if type(scale) is not float or not 0 < scale < math.inf:
            scale = _validate.real("scale", scale, above=0)
        refuse_autocast()
        self._scale = scale / self._recorder.repeats
        parts = self._contributions()
        some = next(iter(self._parameters.values()))
        rows = []
        with torch.no_grad():
            for group in self._groups:
                used = [part for at in group if (part := parts[at]) is not None]
                if used and self._recorder.units:
                    rows.append(total_squared_norms(used, self._scale * self._scale))
                else:
                    rows.append(some.new_zeros(self._recorder.units))
            table = rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)
        self._norms = table
        return table

    def clipped_sum(self, weights: Tensor) -> dict[str, Tensor]:
        """Return ``sum_i weights[group, i] g_i`` for each parameter; weights (groups, batch).

        An example of weight 0 is left out exactly, whatever its gradient was.
        """
        sums = {name: torch.zeros_like(p) for name, p in self._parameters.items()}
        self.add_clipped_sum(weights, list(sums.values()))
        return sums

    def add_clipped_sum(self, weights: Tensor, totals: Sequence[Tensor]) -> None:
        """Add the clipped sum to ``totals``, one tensor for each trainable parameter in order.

        Saves a pass over the parameters where the sum is to be added to something, as to noise.
        """
        refuse_autocast()
        units = self._recorder.units
        if weights.shape != (len(self._groups), units):
            raise InvalidValue(
                "weights", tuple(weights.shape), f"the shape {(len(self._groups), units)}"
            )
        parts = self._contributions()
        if not units:
            return
        removed = self._removed(weights)
        for part in parts:
            require_unchanged(part)
        with torch.no_grad():
            for at, group in enumerate(self._groups):
                row = weights[at]
                for place in group:
                    part = parts[place]
                    if part is None:
                        continue
                    if removed is not None:
                        part = part.without(removed[at])
                    total = totals[place]
                    if row.dtype != total.dtype:
                        row = row.to(total.dtype)
                    part.add_to(total, row, self._scale)

    def _removed(self, weights: Tensor) -> Tensor | None:
        """Mask the examples that weight 0 alone would not remove: 0 times infinity is not 0.

        As long as no norm is infinite or NaN, all gradients are finite.
        """
        if self._norms is None:
            self.squared_norms()
        assert self._norms is not None
        if math.isfinite(self._norms.sum().item()):
            return None
        return (weights == 0) & ~torch.isfinite(self._norms).all(0)
