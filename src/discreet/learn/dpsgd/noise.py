"""Gaussian noise for the steps to come, prepared in the background and used once.

Noise for one or more steps lies in one flat buffer for each kind of parameter. A row of it is
handed out as tensors shaped like the parameters; the clipped sum is added *into* them and they
become the gradients, so that using a row destroys it. A buffer is handed out again only when a
fresh fill of all of it has finished. For small models a buffer holds many steps and there are two
of them, one in use and one being filled; what is handed out is then a copy, because whoever keeps
a gradient would otherwise hold the noise of the steps to come. Other models have a single buffer
for one step, so noise needs no more memory than the gradients do. It is itself handed out; if
somebody has kept a gradient, a new one takes its place. It is filled while the next forward and
backward run, or, where the threads of torch keep all cores busy, at the moment of need: a thread
in the background would then hold all of them up, and for longer than the filling takes.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NoReturn, final

import numpy as np
import torch
from torch import Tensor

from discreet.errors import InvalidValue, NotApplicable
from discreet.randomness import NormalStream

__all__ = ["NoiseBank"]

_BLOCK = 1 << 17  # normals in one background job, at least
_MOST_ROWS = 256
_KINDS: dict[torch.dtype, type[np.floating]] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
}


def _usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Part:
    """The parameters of one dtype and device within a buffer of several steps."""

    def __init__(self, shapes: Sequence[torch.Size], rows: int, dtype: torch.dtype) -> None:
        self._of = (shapes, rows, dtype)
        sizes = [shape.numel() for shape in shapes]
        self.host = np.empty((rows, sum(sizes)), dtype=_KINDS[dtype])
        flat = torch.from_numpy(self.host)
        self.flat = [flat[row] for row in range(rows)]
        self.views = [
            [
                piece.view(shape)
                for piece, shape in zip(torch.split(row, sizes), shapes, strict=True)
            ]
            for row in self.flat
        ]
        self._arrays = [[view.numpy() for view in row] for row in self.views] if rows > 1 else []
        self._storage = flat.untyped_storage()
        self._uses = self._users()

    def copies(self, row: int) -> list[Tensor]:
        """The noise of a step in memory of its own, by numpy because that takes less time."""
        return [torch.from_numpy(view.copy()) for view in self._arrays[row]]

    def _users(self) -> list[int]:
        """How many tensors share the memory, and how many others each view itself has."""
        shared: int = torch._C._storage_Use_Count(self._storage._cdata)
        return [shared, *(sys.getrefcount(view) for row in self.views for view in row)]

    def unshared(self) -> _Part:
        """Return this part, or a new one in its place if somebody has kept what was handed out."""
        return self if self._users() == self._uses else _Part(*self._of)


class _Buffer:
    """Noise for ``rows`` steps. ``fill`` makes it fit for use, or waits until it is."""

    def __init__(self, parts: list[_Part]) -> None:
        self.parts = parts
        self.fill: Callable[[], None] | None = None


def _fill(stream: NormalStream, parts: Sequence[_Part], stddevs: Sequence[float]) -> None:
    for part in parts:
        if len(set(stddevs)) == 1:
            stream.fill(part.host, stddev=stddevs[0])
        else:
            for row, stddev in enumerate(stddevs):
                stream.fill(part.host[row], stddev=stddev)


@final
class NoiseBank:
    """Independent normals for every step, each handed out exactly once.

    ``stddev_of(step)`` is the standard deviation in step number ``step``; noise is prepared
    steps ahead, so it must be known beforehand. A forked child throws away what it inherited and
    draws its own.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        *,
        stddev_of: Callable[[int], float],
        first_step: int = 0,
        stream: NormalStream | None = None,
        rows: int | None = None,
    ) -> None:
        kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for position, parameter in enumerate(parameters):
            if parameter.dtype not in _KINDS:
                raise InvalidValue(
                    "parameters", parameter.dtype, "float32 or float64, for the sake of the norms"
                )
            kinds.setdefault((parameter.dtype, parameter.device), []).append(position)
        self._count = len(parameters)
        self._kinds = kinds
        self._stddev_of = stddev_of
        self._stream = NormalStream() if stream is None else stream
        self._scalars: NormalStream | None = None
        size = sum(parameter.numel() for parameter in parameters)
        self.rows = min(_MOST_ROWS, max(1, _BLOCK // max(1, size))) if rows is None else rows
        shapes = [parameter.shape for parameter in parameters]
        self._buffers = [
            _Buffer(
                [_Part([shapes[i] for i in at], self.rows, kind[0]) for kind, at in kinds.items()]
            )
            for _ in range(2 if self.rows > 1 else 1)
        ]
        self._on_host = all(device.type == "cpu" for _, device in kinds)
        self._single = next(iter(kinds)) if len(kinds) == 1 else None
        self._next_step = first_step
        self._start()

    @property
    def provenance(self) -> dict[str, str]:
        """Where the noise comes from, for the certificate."""
        return self._stream.provenance

    def _start(self) -> None:
        self._pid = os.getpid()
        self._cores = _usable_cores()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="discreet-noise")
        self._to_fill = self._next_step
        self._at, self._row = 0, 0
        self._out = False
        for buffer in self._buffers:
            self._refill(buffer)

    def take(self, step: int | None = None) -> list[Tensor]:
        """Noise for the next step, one tensor for each parameter, to be overwritten.

        If ``step`` lies further ahead, the noise of the steps between is thrown away.
        """
        if self._pid != os.getpid():
            self._start()
        if step is not None and step != self._next_step:
            self._skip_to(step)
        self._turn()
        self._out = True
        buffer = self._buffers[self._at]
        if buffer.fill is not None:
            buffer.fill()  # what fails stays here: the buffer is not handed out as it is
            buffer.fill = None
        row = self._row
        self._row += 1
        self._next_step += 1
        if self._single is not None and self._on_host:
            part = buffer.parts[0]
            return part.views[row] if self.rows == 1 else part.copies(row)
        noise = self._gathered(buffer, row)
        return [one.clone() for one in noise] if self.rows > 1 else noise

    def _gathered(self, buffer: _Buffer, row: int) -> list[Tensor]:
        result: list[Tensor] = [torch.empty(0)] * self._count
        for ((_, device), positions), part in zip(self._kinds.items(), buffer.parts, strict=True):
            views = part.views[row]
            if device.type != "cpu":
                moved = part.flat[row].to(device)
                pieces = torch.split(moved, [view.numel() for view in views])
                views = [piece.view_as(view) for piece, view in zip(pieces, views, strict=True)]
            for position, view in zip(positions, views, strict=True):
                result[position] = view
        return result

    def _skip_to(self, step: int) -> None:
        if step < self._next_step:
            raise InvalidValue("step", step, f"at least {self._next_step}: noise is used once")
        while self._next_step < step:
            self.take()

    def release(self) -> None:
        """The tensors of the last :meth:`take` are no longer needed.

        Only the first call after a :meth:`take` does anything. Noise that was never released,
        because a step broke off, is replaced by the next :meth:`take`.
        """
        if self._out:
            self._out = False
            self._turn()

    def _turn(self) -> None:
        """Have a used-up buffer filled, and go on to the next."""
        if self._row == self.rows:
            self._refill(self._buffers[self._at])
            self._at = (self._at + 1) % len(self._buffers)
            self._row = 0

    def _refill(self, buffer: _Buffer) -> None:
        stddevs = [self._stddev_of(self._to_fill + row) for row in range(self.rows)]
        self._to_fill += self.rows
        if self.rows == 1:
            buffer.parts = [part.unshared() for part in buffer.parts]
        # Without the bank itself: it goes, with its memory, as soon as nobody holds it.
        fill = partial(_fill, self._stream, buffer.parts, stddevs)
        at_need = self.rows == 1 and torch.get_num_threads() >= self._cores
        buffer.fill = fill if at_need else self._worker.submit(fill).result

    def scalar(self, stddev: float) -> float:
        """One further independent normal."""
        if not math.isfinite(stddev) or stddev < 0:
            raise InvalidValue("stddev", stddev, "a finite number >= 0")
        if self._scalars is None:
            # Of its own, or seeded values would depend on how far the background had got.
            self._scalars = self._stream.derive("scalars")
        return float(self._scalars.array(1, stddev=stddev)[0])

    def __reduce__(self) -> NoReturn:
        raise NotApplicable("noise cannot be copied: the copy would add the same noise twice")
