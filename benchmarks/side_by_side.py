"""Interleaved timing: contestants take turns, so that a slow spell of the machine hits all.

All have one thread, and seconds are those of the processor: on a busy machine waiting for a core
counts for none of them. A call that exceeds its time or memory allowance is stopped and recorded as
no answer. The number of repeats follows from how long the first call took, so slow contestants do
not decide how long a comparison lasts.
"""

from __future__ import annotations

import resource
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GIGABYTE = 2**30
MEMORY_ALLOWANCE = 6 * GIGABYTE


class OutOfTime(BaseException):
    """The allowance of a call ran out; not an Exception, so that no peer swallows it."""


@dataclass
class Timing:
    """What one contestant answered and how long its calls took."""

    answer: Any = None
    failure: str | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds and not self.failure else None


@contextmanager
def allowance(seconds: float, memory: int = MEMORY_ALLOWANCE) -> Iterator[None]:
    """Stop the block after ``seconds``, or when it asks for ``memory`` bytes more than now."""

    def stop(_signal: int, _frame: object) -> None:
        raise OutOfTime

    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    now = int(pages) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (now + memory, hard))
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def call(action: Callable[[], Any], timing: Timing, *, limit: float) -> None:
    """Run once and note the answer and the seconds, or why there is no answer."""
    try:
        with allowance(limit), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = time.thread_time()  # that of the process is coarse while the timer runs
            timing.answer = action()
            timing.seconds.append(time.thread_time() - start)
    except OutOfTime:
        timing.failure = f"no answer in {limit:g} s"
    except MemoryError:
        timing.failure = f"needs more than {MEMORY_ALLOWANCE // GIGABYTE} GB"
    except Exception as error:  # noqa: BLE001 - whatever a peer raises, it is no answer
        timing.failure = f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"


def repeats(first: float, rounds: int) -> int:
    """How many rounds a contestant takes part in after its first call."""
    if first > 2.0:
        return 1
    return min(rounds, 3) if first > 0.3 else rounds


def compare(
    contestants: Mapping[str, Callable[[], Any]], *, rounds: int, limits: Mapping[str, float]
) -> dict[str, Timing]:
    """Time all contestants in turn, round after round."""
    timings = {name: Timing() for name in contestants}
    for round_number in range(rounds):
        for name, action in contestants.items():
            timing = timings[name]
            if timing.failure or (
                timing.seconds and round_number >= repeats(timing.seconds[0], rounds)
            ):
                continue
            # Short calls several times: a single one of a millisecond says little.
            short = bool(timing.seconds) and timing.seconds[0] < 0.05
            for _ in range(3 if short else 1):
                call(action, timing, limit=limits[name])
    return timings
