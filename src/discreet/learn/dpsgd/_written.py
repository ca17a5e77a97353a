"""Whether anything but the steps of a plan has changed a model or its optimizer.

Only the optimizer may change parameters, with gradients that were clipped and made noisy. After
each step the bits of all parameters and buffers are added up, which shows writes through ``.data``
too, and for the state of the optimizer it is noted which tensors it holds and how often torch
counted a write to them. Before the next step, and when a certificate is written, this is compared.
The gradients are looked at once more after all hooks of the user have run. What differs was written
by something else: the steps in which that happened are counted, and the certificate states them.
Whether a write was harmless, as that of a clamp, cannot be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, final
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_PIECE = 1 << 18
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_HOOKS_OF_OURS = 2
_WATCHES: WeakSet[WriteWatch] = WeakSet()


def bits(one: Tensor) -> int:
    """The sum of a tensor's contents, taken as integers: exact, in one pass, without a copy."""
    held = one.detach()
    on_host = held.device.type == "cpu"
    if held.dtype is torch.float32 and on_host and held.layout is torch.strided:
        flat = held.numpy().reshape(-1)  # the short way, for most parameters
        # In pairs: half as many additions.
        return int(np.add.reduce(flat.view(np.int64 if flat.size % 2 == 0 else np.int32)))
    if held.layout is not torch.strided or held.is_quantized:
        return held._version
    if held.is_complex():
        held = torch.view_as_real(held)
    if held.is_floating_point() or held.dtype is torch.bool:
        held = held.view(_INTEGERS[held.element_size()])
    if on_host:
        return int(np.add.reduce(held.numpy().reshape(-1), dtype=np.int64))
    # In pieces, because torch makes a copy in 64 bits of what it adds up.
    pieces = torch.split(held.reshape(-1), _PIECE)
    return sum(int(piece.sum(dtype=torch.int64).item()) for piece in pieces)


class _Seal(NamedTuple):
    """What a model and its optimizer hold."""

    trained: list[int]
    frozen: list[int]
    buffers: dict[str, int]
    state: list[Tensor]
    versions: list[int]


@final
class WriteWatch:
    """Compares a model and its optimizer with what the last step of the plan left.

    ``allowed()`` names buffers that passes may change, ``None`` allows all of them. ``note()`` is
    called whenever something else has changed.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        trained: Sequence[Tensor],
        *,
        allowed: Callable[[], Collection[str] | None],
        note: Callable[[], None],
    ) -> None:
        self._optimizer = optimizer
        self._allowed = allowed
        self._note = note
        self._trained = list(trained)
        known = set(map(id, trained))
        self._frozen = [one for one in model.parameters() if id(one) not in known]
        self._tables = [
            (f"{name}." if name else "", module._buffers) for name, module in model.named_modules()
        ]
        self._seal: _Seal | None = None
        self._gradients: list[tuple[Tensor, Tensor, int]] = []
        self._bits: list[int] | None = None
        self._last = optimizer.register_step_pre_hook(self._before_optimizer)
        self._first = optimizer.register_step_post_hook(self._after_optimizer)
        self._changes_own = not type(optimizer).__module__.startswith("torch.optim")
        _WATCHES.add(self)

    def seal(self) -> None:
        """Take what is there now for what the plan has left."""
        self._seal = self._taken()

    def check(self) -> None:
        """Note it if something has changed since the last step."""
        before = self._seal
        if before is None:
            return
        now = self._taken()
        if (
            now.trained != before.trained
            or now.frozen != before.frozen
            or any(before.buffers.get(name) != value for name, value in now.buffers.items())
            or now.versions != before.versions
            or not all(map(_is, now.state, before.state))
        ):
            self._note()
            self._seal = now  # it is noted once

    def open(self) -> None:
        """A batch is handed out: see to it that hooks of others do not come after this one."""
        self._gradients = []
        before: Any = self._optimizer._optimizer_step_pre_hooks
        before.move_to_end(self._last.id)
        after: Any = self._optimizer._optimizer_step_post_hooks
        after.move_to_end(self._first.id, last=False)

    def give(self, gradients: Sequence[Tensor]) -> None:
        """The noisy gradients are where the optimizer finds them."""
        self._gradients = [
            (parameter, gradient, gradient._version)
            for parameter, gradient in zip(self._trained, gradients, strict=True)
        ]
        # Torch does not count what is written through .data; most loops have no hooks at all.
        hooks = self._optimizer._optimizer_step_pre_hooks
        looks = self._changes_own or len(hooks) > _HOOKS_OF_OURS
        self._bits = [bits(one) for one in gradients] if looks else None
        if next(reversed(hooks)) != self._last.id:
            self._note()  # a hook that will run after the last look

    def _before_optimizer(self, *_: object) -> None:
        if not all(
            parameter.grad is gradient and gradient._version == version
            for parameter, gradient, version in self._gradients
        ) or (
            self._gradients
            and self._bits is not None
            and [bits(gradient) for _, gradient, _ in self._gradients] != self._bits
        ):
            self._note()

    def _after_optimizer(self, *_: object) -> None:
        if self._gradients and self._seal is not None:
            # Nothing but the trained parameters and the state is the optimizer's to change.
            self._seal = self._seal._replace(
                trained=[bits(one) for one in self._trained], **self._state()
            )

    def abandon(self) -> None:
        """A step was given up: the optimizer may have moved already."""
        if self._gradients:
            self._after_optimizer()
            self._gradients = []

    def remove(self) -> None:
        """Look no more at the optimizer; what was left by the last step stays known."""
        self._gradients = []
        self._last.remove()
        self._first.remove()

    def shares(self, parameters: Iterable[Tensor]) -> bool:
        """Whether one of the parameters is trained here."""
        known = set(map(id, self._trained))
        return any(id(one) in known for one in parameters)

    def _taken(self) -> _Seal:
        allowed = self._allowed()
        buffers = {
            prefix + name: bits(buffer)
            for prefix, table in self._tables
            for name, buffer in (() if allowed is None else table.items())
            if buffer is not None and allowed is not None and prefix + name not in allowed
        }
        trained = [bits(one) for one in self._trained]
        return _Seal(trained, [bits(one) for one in self._frozen], buffers, **self._state())

    def _state(self) -> dict[str, Any]:
        held = [
            value
            for values in self._optimizer.state.values()
            for value in values.values()
            if isinstance(value, Tensor)
        ]
        return {"state": held, "versions": [one._version for one in held]}


def _is(one: object, other: object) -> bool:
    return one is other


@contextmanager
def announced(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Write into parameters what is a function of released ones only, as an average is."""
    watches = [one for one in _WATCHES if one.shares(parameters)]
    for watch in watches:
        watch.check()
    yield
    for watch in watches:
        watch.seal()
