"""From the indices of a step to tensors: physical batches that fit into memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.learn.dpsgd._padding import MOST, Pair, padded_pair
from discreet.learn.dpsgd._tensors import exchanged

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Collate = Callable[[list[Any]], Any]


class Chunk(NamedTuple):
    """One physical batch. ``units`` examples of it count, ``last`` ends the step.

    ``places`` are those of its first examples in the data set.
    """

    units: int
    last: bool
    empty: bool
    places: tuple[int, ...] = ()


@final
@dataclass(frozen=True)
class Loading:
    """How examples become batches."""

    dataset: Any
    collate: Collate | None = None
    max_physical: int | None = None
    workers: int = 0
    augmentations: int = 1

    def __post_init__(self) -> None:
        length_of(self.dataset)
        if self.collate is not None and not callable(self.collate):
            raise InvalidValue("collate", self.collate, "a function from a list of examples")
        if self.max_physical is not None:
            _validate.integer("max_physical", self.max_physical, at_least=1)
        _validate.integer("workers", self.workers, at_least=0)

    def chunks(self, steps: Iterable[NDArray[np.int64]]) -> Iterator[tuple[Chunk, Any]]:
        """The physical batches of every step, in order.

        A step without examples gives one made-up example of zeros, of which nothing is
        counted: the loop runs as always, and takes a step of pure noise.
        """
        if self.workers == 0:
            for chunk, indices in self._cut(steps):
                yield chunk, self._fetched(chunk, indices)
            return
        waiting: deque[Chunk] = deque()

        def indices_of_chunks() -> Iterator[list[int]]:
            for chunk, indices in self._cut(steps):
                waiting.append(chunk)
                yield indices.repeat(self.augmentations).tolist()

        loader: DataLoader[Any] = DataLoader(
            self.dataset,
            batch_sampler=_Sampled(indices_of_chunks),
            collate_fn=self.collate,
            num_workers=self.workers,
        )
        for data in loader:
            chunk = waiting.popleft()
            yield chunk, _blank(data) if chunk.empty else data

    def _cut(self, steps: Iterable[NDArray[np.int64]]) -> Iterator[tuple[Chunk, NDArray[np.int64]]]:
        import numpy as np

        nobody = np.zeros(1, dtype=np.int64)
        for indices in steps:
            count = len(indices)
            if count == 0:
                yield Chunk(1, last=True, empty=True), nobody
                continue
            most = self.max_physical or count
            for start in range(0, count, most):
                part = indices[start : start + most]
                places = tuple(part[:MOST].tolist())
                yield Chunk(len(part), start + most >= count, empty=False, places=places), part

    def padded_pair(self, places: Sequence[int]) -> Pair | None:
        """One of these examples with and without more padding, if batches are padded."""
        fetch, collate = getattr(self.dataset, "__getitems__", None), self.collate
        if fetch is not None:  # may pad, too
            found = padded_pair(places, lambda some: (collate or default_collate)(fetch(some)))
            if found is not None:
                return found
        return padded_pair(self._examples(list(places)), collate)

    def _examples(self, places: list[int]) -> Any:
        fetch = getattr(self.dataset, "__getitems__", None)
        return fetch(places) if fetch is not None else [self.dataset[place] for place in places]

    def _fetched(self, chunk: Chunk, indices: NDArray[np.int64]) -> Any:
        data = self._rows(indices.repeat(self.augmentations) if self.augmentations > 1 else indices)
        return _blank(data) if chunk.empty else data

    def _rows(self, indices: NDArray[np.int64]) -> Any:
        dataset = self.dataset
        if type(dataset) is TensorDataset and self.collate is None:
            rows = torch.from_numpy(indices)
            # A list, as torch's DataLoader gives for the same data set.
            return [tensor.index_select(0, rows.to(tensor.device)) for tensor in dataset.tensors]
        return (self.collate or default_collate)(self._examples(indices.tolist()))


@final
class _Sampled:
    """A batch sampler of torch's loader around a generator."""

    def __init__(self, make: Callable[[], Iterator[list[int]]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[list[int]]:
        return self._make()


def length_of(dataset: object, argument: str = "dataset") -> int:
    """The number of examples of a data set that can be read in any order."""
    if isinstance(dataset, DataLoader):
        raise InvalidValue(
            argument, "a DataLoader", "the data set itself: batches are drawn as the plan says"
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise InvalidValue(
            argument, type(dataset).__name__, "a data set with __len__ and __getitem__"
        )
    try:
        length = len(dataset)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidValue(argument, type(dataset).__name__, "a data set with a length") from None
    if length == 0:
        raise InvalidValue(argument, "no examples", "at least one example")
    return length


def template_of(data: Any) -> list[Tensor] | None:
    """The tensors of a batch if it is one or a flat sequence of them, as shapes without values."""
    parts: Sequence[Any] = [data] if isinstance(data, Tensor) else data
    if isinstance(parts, tuple | list) and all(isinstance(part, Tensor) for part in parts):
        return [torch.empty_like(part, device="meta") for part in parts]
    return None


def template_of_table(dataset: object, collate: Collate | None) -> list[Tensor] | None:
    """The shapes of a row of tensors that are held as a table; nothing of it is read."""
    if type(dataset) is not TensorDataset or collate is not None:
        return None
    return template_of([tensor[:1] for tensor in dataset.tensors])


def _blank(data: Any) -> Any:
    """The same structure with zeros in place of all values."""
    return exchanged(data, torch.zeros_like)
