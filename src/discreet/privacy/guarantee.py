"""What the closed forms return: one (epsilon, delta) guarantee."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Guarantee"]


class Guarantee(NamedTuple):
    """A proved (epsilon, delta) guarantee; ``delta == 0`` means pure differential privacy.

    >>> Guarantee(epsilon=1.0, delta=1e-6)
    Guarantee(epsilon=1.0, delta=1e-06)
    """

    epsilon: float
    delta: float
