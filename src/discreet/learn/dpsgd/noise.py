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
from typing import NamedTuple, NoReturn, final

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
        self._sizes = [shape.numel() for shape in shapes]
        self.host = np.empty((rows, sum(self._sizes)), dtype=_KINDS[dtype])
        ends = np.cumsum(self._sizes)[:-1]
        self._arrays = [
            [piece.reshape(shape) for piece, shape in zip(np.split(row, ends), shapes, strict=True)]
            for row in self.host
        ]
        self._users = self._counted()

    def _counted(self) -> list[int]:
        """How often the memory of the first step is held, as a whole and in pieces."""
        return list(map(sys.getrefcount, (self.host, *self._arrays[0])))

    def flat(self, row: int) -> Tensor:
        """The noise of a step in one piece."""
        return torch.from_numpy(self.host[row])

    def views(self, row: int) -> list[Tensor]:
        """The noise of a step itself, in tensors that are made for this call.

        Tensors that were made before may have been moved to other memory since.
        """
        return list(map(torch.from_numpy, self._arrays[row]))

    def cut(self, flat: Tensor) -> list[Tensor]:
        """The pieces of a step, shaped like the parameters."""
        pieces = torch.split(flat, self._sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self._of[0], strict=True)]

    def copies(self, row: int) -> list[Tensor]:
        """The noise of a step in memory of its own, by numpy because that takes less time."""
        return [torch.from_numpy(piece.copy()) for piece in self._arrays[row]]

    def unshared(self) -> _Part:
        """Return this part, or a new one in its place if somebody has kept what was handed out.

        Whatever shares the memory, be it a tensor, its storage or an array, holds an array.
        """
        return self if self._counted() == self._users else _Part(*self._of)


class _Filled(NamedTuple):
    """Noise for the steps from ``first`` on, fit for use once ``wait`` has returned."""

    first: int
    parts: list[_Part]
    wait: Callable[[], object]


class _Buffer:
    """A place for noise. What is in it is exchanged as a whole, or not at all."""

    def __init__(self) -> None:
        self.filled: _Filled | None = None
        self.waited = False


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
        self._shapes = [([shapes[i] for i in at], kind[0]) for kind, at in kinds.items()]
        self._buffers = [_Buffer() for _ in range(2 if self.rows > 1 else 1)]
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
        self._out = False
        for buffer in self._buffers:
            buffer.filled = None
        self._prepare()

    def take(self, step: int | None = None) -> list[Tensor]:
        """Noise for the next step, one tensor for each parameter, to be overwritten.

        If ``step`` lies further ahead, the noise of the steps between is thrown away.
        """
        if self._pid != os.getpid():
            self._start()
        step = self._next_step if step is None else step
        if step < self._next_step:
            raise InvalidValue("step", step, f"at least {self._next_step}: noise is used once")
        buffer, filled = self._for_step(step)
        try:
            if not buffer.waited:
                filled.wait()
                buffer.waited = True
        except BaseException:
            buffer.filled = None  # what is in it is not noise
            raise
        self._next_step = step + 1
        self._out = True
        row = step - filled.first
        if self._single is not None and self._on_host:
            part = filled.parts[0]
            return part.views(row) if self.rows == 1 else part.copies(row)
        noise = self._gathered(filled, row)
        return [one.clone() for one in noise] if self.rows > 1 else noise

    def _for_step(self, step: int) -> tuple[_Buffer, _Filled]:
        """The buffer with the noise of a step, which is prepared now if it is in none."""
        found = self._holding(step)
        if found is None:
            self._next_step = step
            for buffer in self._buffers:
                if buffer.filled is not None and buffer.filled.first > step:
                    buffer.filled = None
            self._prepare()
            found = self._holding(step)
        assert found is not None
        return found

    def _holding(self, step: int) -> tuple[_Buffer, _Filled] | None:
        for buffer in self._buffers:
            filled = buffer.filled
            if filled is not None and 0 <= step - filled.first < self.rows:
                return buffer, filled
        return None

    def _gathered(self, filled: _Filled, row: int) -> list[Tensor]:
        result: list[Tensor] = [torch.empty(0)] * self._count
        for ((_, device), positions), part in zip(self._kinds.items(), filled.parts, strict=True):
            on_host = device.type == "cpu"
            views = part.views(row) if on_host else part.cut(part.flat(row).to(device))
            for position, view in zip(positions, views, strict=True):
                result[position] = view
        return result

    def release(self) -> None:
        """The tensors of the last :meth:`take` are no longer needed.

        Only the first call after a :meth:`take` does anything. Noise that was never released,
        because a step broke off, is replaced by the next :meth:`take`.
        """
        if self._out:
            self._out = False
            self._prepare()

    def _prepare(self) -> None:
        """Have used-up buffers filled with the noise of the steps that no buffer has."""
        for buffer in self._buffers:
            if buffer.filled is None or buffer.filled.first + self.rows <= self._next_step:
                self._refill(buffer)

    def _refill(self, buffer: _Buffer) -> None:
        before, buffer.filled = buffer.filled, None
        first = self._next_step
        for other in self._buffers:
            if other.filled is not None:
                first = max(first, other.filled.first + self.rows)
        # What nobody waited for may still be written to.
        if before is not None and buffer.waited:
            parts = [part.unshared() if self.rows == 1 else part for part in before.parts]
        else:
            parts = [_Part(shapes, self.rows, dtype) for shapes, dtype in self._shapes]
        buffer.waited = False
        stddevs = [self._stddev_of(first + row) for row in range(self.rows)]
        # Without the bank itself: it goes, with its memory, as soon as nobody holds it.
        at_need = self.rows == 1 and torch.get_num_threads() >= self._cores
        fill = partial(_fill, self._stream, parts, stddevs)
        wait = fill if at_need else self._worker.submit(fill).result
        # In one piece and last: what breaks off before leaves a buffer with nothing in it.
        buffer.filled = _Filled(first, parts, wait)

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
