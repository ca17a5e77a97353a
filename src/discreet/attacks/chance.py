"""Chance for attackers: seeded generators, never used for anything that protects people.

An attack is an experiment on a model: it must be repeatable and fast, and nobody's privacy
rests on its coins. Noise that protects comes from :mod:`discreet.randomness`.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator  # noqa: TID251 - the one place that attacks draw from

from discreet import _validate
from discreet.errors import InvalidValue

__all__ = ["Generator", "fresh_seed", "generator", "seed_of"]

LARGEST_SEED = 2**32 - 1


def generator(seed: int | Generator | None = None, *path: int) -> Generator:
    """Return a generator for ``seed``; a generator is passed through, ``None`` is a fresh one.

    ``path`` names independent streams of one seed: the stream of (seed, 3) depends on nothing
    but these numbers.

    >>> bool(generator(7, 0).integers(100) == generator(7, 0).integers(100))
    True
    """
    make = np.random.default_rng  # noqa: TID251 - attacks repeat experiments, they hide nothing
    if seed is None:
        return make()
    if isinstance(seed, Generator):
        return seed
    return make([_validate.integer("seed", seed, at_least=0), *path])


def fresh_seed() -> int:
    """Return a seed that nobody has chosen, to be kept beside the results."""
    return int(generator().integers(LARGEST_SEED + 1))


def seed_of(seed: int, *path: int) -> int:
    """Return a number of 32 bits that depends on ``seed`` and ``path`` alone.

    >>> seed_of(7, 1) == seed_of(7, 1) != seed_of(7, 2)
    True
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InvalidValue("seed", seed, "an integer")
    return int(generator(seed, *path).integers(LARGEST_SEED + 1))
