"""The datasets of a registry, opened when they are first asked for.

The mapping is live: a dataset that another worker or the terminal registered a moment ago is
found by the next question.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import final

from discreet.curator.dataset import CuratedDataset
from discreet.curator.service.registry import Registered, Registry
from discreet.data import Schema
from discreet.errors import LedgerMissing

__all__ = ["OpenedDatasets", "curated"]


def curated(entry: Registered, *, threads: int = 2) -> CuratedDataset:
    """A registered dataset as the curator takes it."""
    schema = Schema.from_toml(entry.schema)
    return CuratedDataset(
        entry.name,
        schema=schema,
        source=entry.source,
        table=entry.table,
        engine=entry.engine,
        threads=threads,
    )


@final
class OpenedDatasets(Mapping[str, CuratedDataset]):
    """Names to datasets; every dataset is made once."""

    def __init__(self, registry: Registry, *, threads: int = 2) -> None:
        self._registry = registry
        self._threads = threads
        self._guard = threading.Lock()
        self._made: dict[str, CuratedDataset] = {}

    def __getitem__(self, name: str) -> CuratedDataset:
        known = self._made.get(name)
        if known is not None:
            return known
        try:
            entry = self._registry.dataset(name)
        except LedgerMissing:
            raise KeyError(name) from None
        with self._guard:
            made = self._made.setdefault(name, curated(entry, threads=self._threads))
        made.prepare()
        return made

    def adopt(self, dataset: CuratedDataset) -> None:
        """Take over a dataset that was opened for its registration."""
        with self._guard:
            self._made[dataset.name] = dataset

    def close(self) -> None:
        """Forget all bounded tables."""
        with self._guard:
            made, self._made = self._made, {}
        for dataset in made.values():
            dataset.close()

    def __iter__(self) -> Iterator[str]:
        return (entry.name for entry in self._registry.datasets())

    def __len__(self) -> int:
        return len(self._registry.datasets())
