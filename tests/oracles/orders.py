"""Releases whose pair may turn around: brute force over every order, chosen as late as possible.

A release is a list of pairs (P, Q) of finite distributions, one for each way in which it may meet
the two data sets. An adversary chooses one of them, after seeing all earlier outcomes. Nothing
here knows of profiles, dominating pairs or transforms: outcomes are listed one by one.
"""

from collections.abc import Sequence

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]


def adaptive_delta(releases: Sequence[Sequence[Pair]], epsilon: float) -> float:
    """The largest P(S) - e^epsilon Q(S) of any adversary and any set S of outcomes."""
    gamma = float(np.exp(epsilon))

    def worth(position: int, p: float, q: float) -> float:
        if position == len(releases):
            return max(p - gamma * q, 0.0)
        return max(
            sum(worth(position + 1, p * a, q * b) for a, b in zip(first, second, strict=True) if a)
            for first, second in releases[position]
        )

    return worth(0, 1.0, 1.0)


def same_order_delta(releases: Sequence[Sequence[Pair]], epsilon: float) -> float:
    """The largest of those that take the same way in every release."""
    ways = min(len(release) for release in releases)
    return max(
        adaptive_delta([[release[way]] for release in releases], epsilon) for way in range(ways)
    )


def mixed(p: np.ndarray, q: np.ndarray, rate: float) -> np.ndarray:
    """The law of a release on a sample that has the unit (law P) with this probability."""
    return q + rate * (p - q)
