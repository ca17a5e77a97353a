"""Data sets whose records belong to persons, for plans that bound what is learned of a person.

There are two ways to bound a person who owns several records (Charles et al. 2024). In the first,
an *example* of the plan is a person (:class:`People`): persons are sampled, and the mean gradient
of some records of each is clipped as one. The accounting is that of single examples. In the second
an example is a record (:class:`CappedRecords`): records are sampled and clipped one by one, of no
person more than a public number, and every step is charged as a group of that many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from discreet import _validate
from discreet.errors import InvalidValue, PlanViolation
from discreet.learn._declared import ROW_UNITS
from discreet.randomness import Source, permutation
from discreet.randomness import source as any_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.learn.dpsgd._plan import Plan


@final
class People(Dataset[Any]):
    """Persons as the examples of a plan, each given as records of that person.

    ``owners`` has the owner of each record of ``dataset``, a whole number or a text. The length is
    the number of persons. Use it with ``Plan(examples=number of persons, unit="person")``: a person
    who is drawn gives ``plan.augmentations`` records, chosen uniformly without repetition (where
    there are fewer, each of them equally often, up to one), and the mean of their gradients is
    clipped as one. Which records are chosen depends on that person's records alone.

    >>> from torch.utils.data import TensorDataset
    >>> import torch
    >>> visits = TensorDataset(torch.arange(5.0))
    >>> people = People(visits, ["ann", "ben", "ann", "ann", "ben"])
    >>> len(people), sorted(float(row) for (row,) in people.__getitems__([1, 1]))
    (2, [1.0, 4.0])
    """

    def __init__(
        self, dataset: Any, owners: Iterable[Any], *, source: Source | None = None
    ) -> None:
        self.dataset = dataset
        self._records = _records_by_owner(dataset, owners)
        self._source = source

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, at: int) -> Any:
        return self.dataset[self.choose([at])[0]]

    def __getitems__(self, places: Sequence[int]) -> list[Any]:
        """Records of these persons; a person named several times gives as many records."""
        chosen = self.choose(places)
        fetch = getattr(self.dataset, "__getitems__", None)
        return fetch(chosen) if fetch is not None else [self.dataset[one] for one in chosen]

    def choose(self, places: Sequence[int]) -> list[int]:
        """Return places of records in ``dataset``, one for each of these places of persons."""
        source = any_source() if self._source is None else self._source
        persons, counts = np.unique(np.asarray(places, dtype=np.int64), return_counts=True)
        waiting = {
            person: iter(_draw_some(self._records[person], count, source))
            for person, count in zip(persons.tolist(), counts.tolist(), strict=True)
        }
        return [next(waiting[int(place)]) for place in places]


@final
class CappedRecords(Dataset[Any]):
    """Records as the examples of a plan, at most ``at_most`` of each person.

    ``owners`` has the owner of each record of ``dataset``. Of a person with more, a uniform choice
    is made once, by that person's records alone. Use it with
    ``Plan(unit="person", records_per_unit=at_most)``.

    >>> from torch.utils.data import TensorDataset
    >>> import torch
    >>> visits = TensorDataset(torch.arange(5.0))
    >>> len(CappedRecords(visits, ["ann", "ben", "ann", "ann", "ann"], at_most=2))
    3
    """

    def __init__(
        self, dataset: Any, owners: Iterable[Any], *, at_most: int, source: Source | None = None
    ) -> None:
        self.dataset = dataset
        self.at_most = _validate.integer("at_most", at_most, at_least=1)
        drawn = any_source() if source is None else source
        kept = [
            np.asarray(_draw_some(records, min(len(records), self.at_most), drawn))
            for records in _records_by_owner(dataset, owners)
        ]
        self._places = np.sort(np.concatenate(kept))

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, at: int) -> Any:
        return self.dataset[int(self._places[at])]

    def __getitems__(self, places: Sequence[int]) -> list[Any]:
        """Several records at once."""
        chosen = self._places[np.asarray(places, dtype=np.int64)].tolist()
        fetch = getattr(self.dataset, "__getitems__", None)
        return fetch(chosen) if fetch is not None else [self.dataset[one] for one in chosen]


def require_owners(plan: Plan, dataset: object) -> None:
    """Raise where a data set does not bound the records of a unit as the plan says."""
    if isinstance(dataset, People):
        if plan.unit.strip().lower() in ROW_UNITS or plan.records_per_unit > 1:
            raise PlanViolation(
                "the examples of this data set are persons, and those of the plan are records: "
                "say Plan(unit='person') with examples=the number of persons and without "
                "records_per_unit"
            )
        return
    most = dataset.at_most if isinstance(dataset, CappedRecords) else None
    if most is None and plan.records_per_unit > 1:
        raise PlanViolation(
            f"the plan allows {plan.records_per_unit} records of one {plan.unit}, and this data "
            "set does not say whose its records are: give a dpsgd.CappedRecords"
        )
    if most is not None and most > plan.records_per_unit:
        raise PlanViolation(
            f"the data set has up to {most} records of one person, and the plan is charged for "
            f"{plan.records_per_unit}: say Plan(unit='person', records_per_unit={most})"
        )


def _draw_some(records: NDArray[np.int64], count: int, source: Source) -> list[int]:
    """Return ``count`` of these records in random order, each as often as any other, up to one."""
    whole, rest = divmod(count, len(records))
    order = permutation(len(records), source=source)[:rest]
    return [*records.tolist() * whole, *records[order].tolist()]


def _records_by_owner(dataset: Any, owners: Iterable[Any]) -> list[NDArray[np.int64]]:
    """Return the places of the records of each owner."""
    held = owners.tolist() if isinstance(owners, Tensor | np.ndarray) else list(owners)
    if len(held) != len(dataset):
        raise InvalidValue(
            "owners", f"{len(held)} owners", f"one for each of {len(dataset)} records"
        )
    found: dict[int | str, list[int]] = {}
    for place, owner in enumerate(held):
        if isinstance(owner, np.generic):
            owner = owner.item()
        if isinstance(owner, bool) or not isinstance(owner, int | str):
            raise InvalidValue(
                "owners",
                f"an owner of type {type(owner).__name__}",
                "a whole number or a text for each record. A record of nobody, or of two persons, "
                "bounds neither of them: give it to one or leave it out",
            )
        found.setdefault(owner, []).append(place)
    if not found:
        raise InvalidValue("owners", "no owners", "at least one record")
    return [np.asarray(places, dtype=np.int64) for places in found.values()]
