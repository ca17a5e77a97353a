"""Training sets with and without a property, and the shadow models trained on them.

A property is one of a whole training set, such as "half of these people are women". An attacker
who has records like those of the victim draws many training sets that have the property and
many that do not, alike in everything else, and trains a shadow model on each.

Shadow models that judge are trained on other records than those that are learned from. Any two
finite groups of people differ in many small ways by chance; all sets that are drawn from the
same people share these differences, and a meta-classifier finds them, so that within one pool
of records even a mark given by a coin can be "inferred". The victim has other records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.attacks.chance import fresh_seed, generator, seed_of
from discreet.attacks.seeded_training import SeededTraining
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["PropertySets", "property_sets", "train_shadows"]


@final
@dataclass(frozen=True, eq=False)
class PropertySets:
    """Training sets as ``indices``; set k has the property if ``holds[k]``.

    Sets with ``held_out[k]`` share no record with the others.
    """

    indices: tuple[NDArray[np.intp], ...]
    holds: NDArray[np.bool_]
    held_out: NDArray[np.bool_]
    shares: tuple[float, float]
    seed: int

    def __len__(self) -> int:
        return len(self.indices)


def property_sets(
    has: ArrayLike,
    *,
    shares: tuple[float, float],
    size: int,
    sets: int,
    held_out: float = 0.5,
    seed: int | None = None,
) -> PropertySets:
    """Draw training sets of ``size`` records in which a known share has something.

    ``has`` says of every record of the attacker whether it has it. Sets with the property have
    it in a share ``shares[1]`` of their records, the others in a share ``shares[0]``, exactly
    (rounded to whole records). Every second set has the property. A share ``held_out`` of the
    sets comes from one half of the records, chosen at random, and the others from the other
    half; within a set records are drawn without replacement, sets independently of one another.

    >>> women = np.arange(100) % 3 == 0
    >>> drawn = property_sets(women, shares=(0.2, 0.6), size=10, sets=4, seed=1)
    >>> [int(women[rows].sum()) for rows in drawn.indices], drawn.holds.tolist()
    ([2, 6, 2, 6], [False, True, False, True])
    >>> drawn.held_out.tolist()
    [False, False, True, True]
    """
    mask = np.asarray(has)
    if mask.ndim != 1 or mask.dtype != np.bool_:
        raise InvalidValue("has", f"{mask.dtype} of shape {mask.shape}", "one bool per record")
    rows = _validate.integer("size", size, at_least=1)
    count = _validate.integer("sets", sets, at_least=2)
    low, high = (_validate.real("shares", share, at_least=0, at_most=1) for share in shares)
    wanted = [round(share * rows) for share in (low, high)]
    if wanted[0] == wanted[1]:
        raise InvalidValue("shares", shares, f"shares that differ in a set of {rows} records")
    share = _validate.real("held_out", held_out, above=0, below=1)
    chosen = fresh_seed() if seed is None else _validate.integer("seed", seed, at_least=0)
    chance = generator(chosen)
    inside, outside = (chance.permutation(np.flatnonzero(mask == kind)) for kind in (True, False))
    room = len(inside) // 2, len(outside) // 2
    if max(wanted) > room[0] or rows - min(wanted) > room[1]:
        expected = f"sets that fit into {room[0]} records with and {room[1]} without, half of all"
        raise InvalidValue("size", size, expected)
    holds = np.arange(count) % 2 == 1
    judging = np.arange(count) >= count - round(share * count)
    indices = []
    for hold, judges in zip(holds, judging, strict=True):
        with_it = wanted[int(hold)]
        half = [slice(room[0]), slice(room[1])]
        if judges:
            half = [slice(room[0], None), slice(room[1], None)]
        parts = [
            chance.choice(inside[half[0]], with_it, replace=False),
            chance.choice(outside[half[1]], rows - with_it, replace=False),
        ]
        indices.append(chance.permutation(np.concatenate(parts)))
    return PropertySets(tuple(indices), holds, judging, (low, high), chosen)


def train_shadows(
    train: Callable[..., Any], sets: PropertySets, *, n_jobs: int = 1, together: int = 32
) -> list[Any]:
    """Train one model on each set, with joblib on ``n_jobs`` cores.

    ``train(indices)`` or ``train(indices, seed)`` returns a model (a parameter called ``seed``,
    or a second one without a default, gets the seed); the seeds are different for
    all models and follow from that of the sets. A trainer with a method ``many``, such as
    :class:`.shadow_networks.NetworkTrainer`, trains ``together`` models at once.
    """
    joblib = import_module("joblib")
    size = _validate.integer("together", together, at_least=1)
    seeds = [seed_of(sets.seed, 1 + place) for place in range(len(sets))]
    work = joblib.Parallel(n_jobs=n_jobs)
    if hasattr(train, "many"):
        starts = range(0, len(sets), size)
        groups = work(
            joblib.delayed(train.many)(sets.indices[at : at + size], seeds[at : at + size])
            for at in starts
        )
        return [model for group in groups for model in group]
    seeded = SeededTraining(train)
    return list(
        work(
            joblib.delayed(seeded)(rows, seed=seed)
            for rows, seed in zip(sets.indices, seeds, strict=True)
        )
    )
