"""When an answer may leave: one quantum after its question arrived, or 2, 4, 8 quanta.

The time that a computation takes may depend on the records. Whoever measures it sees only which
power of two it stayed under, so T seconds of work tell at most log2(T / quantum) + 1 different
things, and nothing while all work stays within one quantum. That holds for the answer itself; what
else changes when a question ends is kept from analysts (:mod:`.settled`).
"""

from __future__ import annotations

__all__ = ["release_after"]


def release_after(elapsed: float, quantum: float) -> float:
    """The first of quantum, 2 quanta, 4 quanta ... that is not before ``elapsed``.

    >>> [release_after(seconds, 0.5) for seconds in (0.0, 0.5, 0.51, 1.2, 2.1)]
    [0.5, 0.5, 1.0, 2.0, 4.0]
    """
    moment = quantum
    while moment < elapsed:
        moment *= 2
    return moment
