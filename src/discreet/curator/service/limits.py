"""Rate limits: a bucket for each caller that fills at a steady rate.

Buckets live in the memory of one process. With several workers each of them grants its share of
the rate, so that together they grant no more than what was declared.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import final

__all__ = ["Limiter"]

_MOST_CALLERS = 100_000


@final
class Limiter:
    """At most ``burst`` requests of one caller at once and ``rate`` a second in the long run.

    >>> now = [0.0]
    >>> limiter = Limiter(rate=2, burst=3, clock=lambda: now[0])
    >>> [limiter.wait_for("ann") for _ in range(4)]
    [0.0, 0.0, 0.0, 0.5]
    >>> now[0] = 0.5
    >>> limiter.wait_for("ann"), limiter.wait_for("bob")
    (0.0, 0.0)
    """

    def __init__(
        self, *, rate: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = max(1.0, burst)
        self._clock = clock
        self._guard = threading.Lock()
        # When each bucket will be full again: one number says both how full and since when.
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def wait_for(self, caller: str) -> float:
        """Take one request out of the bucket; 0, or the seconds after which to come again."""
        with self._guard:
            now = self._clock()
            full_at = max(now, self._full_at.pop(caller, now))
            lacking = (full_at - now) * self._rate  # requests that the bucket is short of
            short = lacking + 1.0 - self._burst
            granted = short <= 1e-9
            self._full_at[caller] = full_at + 1.0 / self._rate if granted else full_at
            self._forget(now)
        return 0.0 if granted else short / self._rate

    def add(self, caller: str, requests: float) -> None:
        """Count a request that was let in as this many more; its caller waits for them later.

        >>> now = [0.0]
        >>> limiter = Limiter(rate=2, burst=3, clock=lambda: now[0])
        >>> limiter.add("ann", 6)
        >>> limiter.wait_for("ann"), limiter.wait_for("bob")
        (2.0, 0.0)
        """
        if requests > 0:
            with self._guard:
                now = self._clock()
                full_at = max(now, self._full_at.pop(caller, now))
                self._full_at[caller] = full_at + requests / self._rate

    def _forget(self, now: float) -> None:
        """Drop the callers that were away for longest; full buckets first cost nothing."""
        while self._full_at:
            caller, full_at = next(iter(self._full_at.items()))
            if full_at > now and len(self._full_at) <= _MOST_CALLERS:
                return
            del self._full_at[caller]
