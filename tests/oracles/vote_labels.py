"""Slow and obvious: the probabilities of every label, and the divergences between neighbours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from scipy import special


def histograms(teachers: int, classes: int) -> Iterator[tuple[int, ...]]:
    """All histograms of so many teachers."""
    if classes == 1:
        yield (teachers,)
        return
    for first in range(teachers + 1):
        for rest in histograms(teachers - first, classes - 1):
            yield (first, *rest)


def moved(votes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All histograms with one vote moved."""
    for a, b in itertools.permutations(range(len(votes)), 2):
        if votes[a] > 0:
            other = list(votes)
            other[a] -= 1
            other[b] += 1
            yield tuple(other)


def gaussian_labels(votes: tuple[int, ...], noise: float) -> np.ndarray:
    """P(label) of GNMax by integration over the winning noisy count."""
    counts = np.array(votes, dtype=np.float64) / noise
    x = np.linspace(counts.min() - 12.0, counts.max() + 12.0, 6001)
    logs = special.log_ndtr(x[:, None] - counts)
    density = np.exp(-0.5 * (x[:, None] - counts) ** 2) / math.sqrt(2.0 * math.pi)
    others = np.exp(logs.sum(axis=1)[:, None] - logs)
    return np.sum(density * others, axis=0) * (x[1] - x[0])


def laplace_labels(votes: tuple[int, ...], scale: float) -> np.ndarray:
    """P(label) of LNMax by integration, piece by piece between the counts."""
    counts = np.array(votes, dtype=np.float64) / scale
    nodes, weights = np.polynomial.legendre.leggauss(60)
    edges = np.unique(np.concatenate([counts, [counts.min() - 60.0, counts.max() + 60.0]]))
    edges = np.unique(np.concatenate([np.linspace(a, b, 9) for a, b in itertools.pairwise(edges)]))
    total = np.zeros(len(votes))
    for a, b in itertools.pairwise(edges):
        x = 0.5 * (b - a) * nodes + 0.5 * (a + b)
        d = x[:, None] - counts
        chance = np.where(d < 0, 0.5 * np.exp(np.minimum(d, 0)), 1 - 0.5 * np.exp(-np.abs(d)))
        density = 0.5 * np.exp(-np.abs(d))
        for j in range(len(votes)):
            others = np.prod(np.delete(chance, j, axis=1), axis=1)
            total[j] += 0.5 * (b - a) * float(weights @ (density[:, j] * others))
    return total


def confident_labels(
    votes: tuple[int, ...], threshold: float, selection: float, answer: float
) -> np.ndarray:
    """P(None), P(label) of Confident-GNMax."""
    chance = float(special.ndtr((max(votes) - threshold) / selection))
    refused = float(special.ndtr((threshold - max(votes)) / selection))
    return np.concatenate([[refused], chance * gaussian_labels(votes, answer)])


def renyi(p: np.ndarray, q: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """The divergences from p to q at the orders."""
    keep = p > 0
    logs = orders[:, None] * np.log(p[keep]) + (1.0 - orders[:, None]) * np.log(q[keep])
    return special.logsumexp(logs, axis=1) / (orders - 1.0)


def worst_divergence(
    labels: dict[tuple[int, ...], np.ndarray],
    votes: tuple[int, ...],
    orders: np.ndarray,
    *,
    one_sided: bool = False,
) -> np.ndarray:
    """The largest divergence between a histogram and its neighbours, in both directions."""
    found = [renyi(labels[votes], labels[other], orders) for other in moved(votes)]
    if not one_sided:
        found += [renyi(labels[other], labels[votes], orders) for other in moved(votes)]
    return np.max(np.stack(found), axis=0)
