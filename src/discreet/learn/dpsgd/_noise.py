"""Gaussian noise for the next step, prepared in the background and used once.

The noise of a step lies in memory of its own and is handed out as tensors shaped like the
parameters; the clipped sum is added *into* them and they become the gradients, so that using noise
destroys it, and whoever keeps a gradient keeps nothing of later steps. It is filled while the next
forward and backward pass run, or, where the threads of torch keep all cores busy, at the moment of
need: a thread in the background would then hold all of them up, and for longer than the filling
takes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, NoReturn, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.dpsgd._plan import Plan
from discreet.learn.dpsgd.engine._forms import wide_kind
from discreet.randomness import CorrelatedStream, NormalStream

_WORTH_A_THREAD = 1 << 15
_KINDS: dict[torch.dtype, type[np.floating]] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
}


class NoiseSource(Protocol):
    """Where the noise of a run comes from."""

    def take(self, step: int) -> list[Tensor]:
        """Return noise of the planned scale, one new tensor for each parameter, once a step."""

    def prepare(self, step: int) -> None:
        """Begin to make the noise of a step that is likely to come next."""

    def scalar(self, stddev: float) -> float:
        """Return one further independent normal."""

    @property
    def provenance(self) -> Mapping[str, str]:
        """Where the randomness comes from, for the certificate."""

    def continue_at(self, step: int, correlated: CorrelatedStream | None = None) -> None:
        """Go on at a step, with other noise than that of the steps before."""

    def close(self) -> None:
        """Let memory and threads go."""


@final
class StepFactors:
    """Noise and normaliser by the number of the step; ``ranks`` members share the noise."""

    def __init__(self, plan: Plan, *, ranks: int) -> None:
        self.noise_share = 1.0 / math.sqrt(ranks)
        self._ends: list[int] = []
        self._values: list[tuple[float, float, float]] = []
        end = 0
        for phase in plan.phases:
            end += phase.steps
            size = phase.expected_batch_size
            ratio = plan.noise_multiplier * phase.noise_factor * self.noise_share / size
            self._ends.append(end)
            self._values.append((ratio * plan.clip_norm, ratio, 1.0 / size))
        self.steps = end

    def _at(self, step: int) -> tuple[float, float, float]:
        for end, values in zip(self._ends, self._values, strict=True):
            if step < end:
                return values
        return self._values[-1]  # noise may be prepared for steps that do not come

    def stddev(self, step: int) -> float:
        """Of the noise in the normalised gradient."""
        return self._at(step)[0]

    def stddev_over_clip(self, step: int) -> float:
        """The same for a clip norm of 1."""
        return self._at(step)[1]

    def normaliser(self, step: int) -> float:
        """One over the expected batch size."""
        return self._at(step)[2]

    def unit(self, _: int) -> float:
        """Where the clip norm is not known beforehand: scaled when it is used."""
        return 1.0


def _usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Ahead(NamedTuple):
    """Noise of one step: a flat array for each kind of parameter, full once ``wait`` returns."""

    step: int
    arrays: list[NDArray[np.floating]]
    wait: Callable[[], object]


def _fill(stream: NormalStream, arrays: Sequence[NDArray[np.floating]], stddev: float) -> None:
    for array in arrays:
        stream.fill(array, stddev=stddev)


@final
class NoiseBank:
    """Independent normals for every step, each handed out exactly once.

    ``stddev_of(step)`` is the standard deviation in step number ``step``. A forked child throws
    away what it inherited and draws its own. With ``correlated`` the steps are not independent.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        *,
        stddev_of: Callable[[int], float],
        first_step: int = 0,
        stream: NormalStream | None = None,
        correlated: CorrelatedStream | None = None,
    ) -> None:
        kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for position, parameter in enumerate(parameters):
            kind = wide_kind(parameter.dtype)
            if kind not in _KINDS:
                raise InvalidValue("parameters", kind, "floating point of at most 64 bits")
            kinds.setdefault((kind, parameter.device), []).append(position)
        self._kinds = kinds
        self._shapes = [parameter.shape for parameter in parameters]
        self._sizes = [shape.numel() for shape in self._shapes]
        self._stddev_of = stddev_of
        self._stream = NormalStream() if stream is None else stream
        self._correlated = correlated
        self._scalars: NormalStream | None = None
        self._next_step = first_step
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._cores = _usable_cores()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="discreet-noise")
        self._ahead: _Ahead | None = None

    def prepare(self, step: int) -> None:
        """Begin to make the noise of a step, unless that is under way."""
        if self._ahead is not None and self._ahead.step == step:
            return
        stddev = self._stddev_of(step)
        arrays: list[NDArray[np.floating]] = [
            np.empty(sum(self._sizes[at] for at in places), dtype=_KINDS[kind])
            for (kind, _), places in self._kinds.items()
        ]
        # Without the bank itself: it goes, with its memory, as soon as nobody holds it.
        fill = partial(_fill, self._stream, arrays, stddev)
        if self._correlated is not None:
            fill = partial(self._correlated.fill, step, arrays, stddev=stddev)
        # A thread costs more than it saves where there is little to draw, or no core for it.
        at_need = sum(self._sizes) < _WORTH_A_THREAD or torch.get_num_threads() >= self._cores
        wait = fill if at_need else self._worker.submit(fill).result
        self._ahead = _Ahead(step, arrays, wait)

    def take(self, step: int | None = None) -> list[Tensor]:
        """Return the noise of the next step, one tensor for each parameter, to be overwritten.

        If ``step`` lies further ahead, the noise of the steps between is thrown away.
        """
        if self._pid != os.getpid():
            self._start()
        step = self._next_step if step is None else step
        if step < self._next_step:
            raise InvalidValue("step", step, f"at least {self._next_step}: noise is used once")
        self.prepare(step)
        assert self._ahead is not None
        ahead, self._ahead = self._ahead, None
        ahead.wait()
        self._next_step = step + 1
        result: list[Tensor] = [torch.empty(0)] * len(self._shapes)
        for ((_, device), places), array in zip(self._kinds.items(), ahead.arrays, strict=True):
            start = 0
            for at in places:
                end = start + self._sizes[at]
                result[at] = torch.from_numpy(array[start:end].reshape(self._shapes[at])).to(device)
                start = end
        return result

    def scalar(self, stddev: float) -> float:
        """Return one further independent normal."""
        if not math.isfinite(stddev) or stddev < 0:
            raise InvalidValue("stddev", stddev, "a finite number >= 0")
        if self._scalars is None:
            # Of its own, or seeded values would depend on how far the background had got.
            self._scalars = self._stream.derive("scalars")
        return float(self._scalars.array(1, stddev=stddev)[0])

    @property
    def provenance(self) -> Mapping[str, str]:
        """Where the randomness comes from."""
        return (self._correlated or self._stream).provenance

    def continue_at(self, step: int, correlated: CorrelatedStream | None = None) -> None:
        """Go on at a step of a resumed run, with a stream of its own."""
        self._correlated = correlated
        self._stream = self._stream.derive("from step", step)
        self._scalars, self._ahead, self._next_step = None, None, step

    def close(self) -> None:
        """Let the thread and the memory go."""
        self._ahead = None
        self._worker.shutdown(wait=False)

    def __reduce__(self) -> NoReturn:
        raise NotApplicable("noise cannot be copied: the copy would add the same noise twice")
