"""Canaries: records whose membership is drawn by a coin in every model, chosen to be remembered.

Ordinary records hide how much a model can remember: few of them are unusual. A canary is as unusual
as a record can be against the defence at hand (Aerni, Zhang and Tramer 2024). What is asked need
not be the canary itself: a defence that answers about a record by models that have not seen it
gives a canary away by its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final, runtime_checkable

import numpy as np

from discreet import _validate
from discreet.attacks import seeded_generator
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray


@final
@dataclass(frozen=True, eq=False)
class Planted:
    """Canaries with their labels, where to ask about each, and companions that are always used."""

    records: NDArray[np.generic]
    labels: NDArray[np.int64]
    asked: NDArray[np.generic]
    companions: NDArray[np.generic]
    companion_labels: NDArray[np.int64]


@runtime_checkable
class Canaries(Protocol):
    """A way to make ``count`` canaries out of as many records."""

    @property
    def count(self) -> int:
        """How many."""

    def plant(
        self, records: NDArray[np.generic], labels: NDArray[np.int64], classes: int, seed: int
    ) -> Planted:
        """Return canaries made of these records, of which no other is trained on."""


@final
@dataclass(frozen=True)
class Mislabelled:
    """Records with another label, at random: a model that is right about them remembers them."""

    count: int = 500

    def __post_init__(self) -> None:
        check_count(self.count)

    def plant(
        self, records: NDArray[np.generic], labels: NDArray[np.int64], classes: int, seed: int
    ) -> Planted:
        """Return the records with wrong labels."""
        wrong = _other_labels(labels, classes, seed)
        return Planted(records, wrong, records, records[:0], wrong[:0])


@final
@dataclass(frozen=True)
class NearDuplicates:
    """Mislabelled records, each with a near copy of the right label that is always trained on.

    For defences that answer about a record by models that were trained without it, such as SELENA:
    models without the copy may have the canary, and so the answer about the copy tells of it.
    """

    count: int = 500

    def __post_init__(self) -> None:
        check_count(self.count)

    def plant(
        self, records: NDArray[np.generic], labels: NDArray[np.int64], classes: int, seed: int
    ) -> Planted:
        """Return the records with wrong labels, and copies that are asked about."""
        wrong = _other_labels(labels, classes, seed)
        copies = vary(records, 1, seed, strength=0.25)[0]
        return Planted(records, wrong, copies, copies, labels)


@final
@dataclass(frozen=True)
class OutOfDistribution:
    """Records whose columns come from different records each, with a label at random."""

    count: int = 500

    def __post_init__(self) -> None:
        check_count(self.count)

    def plant(
        self, records: NDArray[np.generic], labels: NDArray[np.int64], classes: int, seed: int
    ) -> Planted:
        """Return records that have the columns' values, but nothing of what binds them."""
        draw = seeded_generator(seed, 1)
        flat = records.reshape(len(records), -1)
        order = np.argsort(draw.random(flat.shape), axis=0)
        mixed = np.take_along_axis(flat, order, axis=0).reshape(records.shape)
        drawn = draw.integers(classes, size=len(labels)).astype(np.int64)
        return Planted(mixed, drawn, mixed, mixed[:0], drawn[:0])


def check_count(count: int) -> int:
    """Return a number of canaries with which twins among the models can be seen, or raise."""
    return _validate.integer("count", count, at_least=40)


def vary(
    records: NDArray[np.generic], copies: int, seed: int, *, strength: float = 1.0
) -> NDArray[np.generic]:
    """Return slightly changed copies, (copies, ...): bits flipped, or noise on numbers."""
    draw = seeded_generator(seed, 2)
    shape = (copies, *records.shape)
    if np.isin(records, (0, 1)).all():
        flipped = draw.random(shape) < 0.02 * strength
        return np.where(flipped, 1 - records, records).astype(records.dtype)
    spread = 0.1 * strength * records.reshape(len(records), -1).std(axis=0)
    noise = draw.normal(size=shape) * spread.reshape(records.shape[1:])
    return np.asarray((records + noise).astype(records.dtype))


def _other_labels(labels: NDArray[np.int64], classes: int, seed: int) -> NDArray[np.int64]:
    if classes < 2:
        raise InvalidValue("classes", classes, "at least 2, for a wrong label")
    draw = seeded_generator(seed, 3)
    return (labels + draw.integers(1, classes, size=len(labels))) % classes
