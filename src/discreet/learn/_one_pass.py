"""The base of estimators that look at each row once: sums over batches, and noise once."""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import clone  # type: ignore[import-untyped]

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn._declared import declared_classes
from discreet.learn._estimator import PreparedFit, PrivateEstimator, Track
from discreet.learn._intake import Batch, Rows, open_rows
from discreet.randomness import Source, source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.ledger import Charge, Ledger


@dataclass
class _Collection:
    """Exact private sums between the first batch and :meth:`OnePassEstimator.finish`."""

    ready: PreparedFit
    sums: Any
    source: Source
    frame: ExitStack
    charge: Charge | None


class OnePassEstimator(PrivateEstimator):
    """Abstract base of estimators whose model is a function of noisy sums over the rows.

    They look at each row once, keep none, and can be handed a table in parts. A kind defines
    ``_open``, ``_add`` and ``_release`` instead of ``_learn``. Sums whose ``cells()`` are integers
    are added up where the rows of a bounded table are.
    """

    @abstractmethod
    def _open(self, plan: Any) -> Any:
        """Return empty sums."""

    @abstractmethod
    def _add(self, sums: Any, batch: Batch) -> None:
        """Add the rows of a batch to the sums, exactly."""

    @abstractmethod
    def _release(self, plan: Any, sums: Any, source: Source) -> dict[str, NDArray[Any]]:
        """Add the noise to the sums, once, and return the model as arrays."""

    def _learn(
        self, plan: Any, rows: Rows, source: Source, track: Track
    ) -> dict[str, NDArray[Any]]:
        sums = self._open(plan)
        if rows.are_elsewhere and hasattr(sums, "cells"):
            total = rows.fold(partial(_cells_of, self, plan), sums.cells())
            return self._release(plan, _AddedUp(total), source)
        for batch in rows.batches():
            self._add(sums, batch)
        return self._release(plan, sums, source)

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        *,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        unit: str | None = None,
    ) -> Self:
        """Add a batch of records to the exact sums; nothing is released before :meth:`finish`.

        The first batch charges the ledger for the whole model, however many batches follow: a
        record is in one batch only, and noise is added once. There are no persons here, because
        their rows may be in several batches: the guarantee is for one row.

        Parameters
        ----------
        X, y
            A batch, as for :meth:`fit`.
        classes
            The public labels, if the constructor was not told; with the first batch.
        ledger, dataset, unit
            As for :meth:`fit`, with the first batch.

        Raises
        ------
        NotApplicable
            If the model is finished: to add records would be a second release. If a person may own
            several rows.

        """
        first: _Collection | None = self.__dict__.get("_collecting")
        if first is None and "certificate_" in self.__dict__:
            raise NotApplicable(
                "this model is finished: adding records and releasing it again would be a second "
                "release at its own cost; clone the estimator, or call fit"
            )
        if first is not None and (ledger is not None or dataset is not None):
            raise InvalidValue("ledger", ledger, "none after the first batch, which was charged")
        self._check_classes(classes, first)
        if first is None:
            declaring = self if classes is None else clone(self).set_params(classes=classes)
            ready = self._plan_fit(X, y, None, unit, declaring._declared())
            if ready.opened.owned or ready.declared.rows_per_person > 1:
                raise NotApplicable(
                    "rows of one person may be in several batches, and a cap in each of them is no "
                    "cap: call fit with all rows at once"
                )
            ready.parameters["classes"] = declaring.get_params(deep=False)["classes"]
            first = self._open_collection(ready, ledger, dataset)
            opened = ready.opened
        else:
            opened = open_rows(self, first.ready.declared, X, y, first=first.ready.opened)
        try:
            for batch in Rows(opened, first.ready.declared, first.source).batches():
                self._add(first.sums, batch)
        except BaseException as error:
            self._abandon_batches(error)
            raise
        return self

    def finish(self) -> Self:
        """Add the noise, once, to the exact sums, build the model and drop the sums.

        Raises
        ------
        NotApplicable
            If there was no batch.

        """
        collection: _Collection | None = self.__dict__.pop("_collecting", None)
        if collection is None:
            raise NotApplicable("there is nothing to finish: call partial_fit with a batch before")
        with collection.frame:
            arrays = self._release(collection.ready.plan, collection.sums, collection.source)
            self._conclude(collection.ready, arrays, collection.source, collection.charge)
        return self

    def _open_collection(
        self, ready: PreparedFit, ledger: Ledger | None, dataset: str | None
    ) -> _Collection:
        bits = source(insecure_seed=self.insecure_seed)
        frame = ExitStack()
        charge = frame.enter_context(self._open_charge(ready, ledger, dataset))
        self._begin(ready)
        opened = _Collection(ready, self._open(ready.plan), bits, frame, charge)
        self._collecting = opened
        return opened

    def _check_classes(self, classes: Any, first: _Collection | None) -> None:
        known = getattr(self, "classes", None) if first is None else first.ready.declared.classes
        if classes is None or known is None:
            return
        given, before = declared_classes(classes), declared_classes(known)
        if not np.array_equal(given, before):
            raise InvalidValue("classes", classes, f"the declared classes {before.tolist()}")

    def _abandon_batches(self, error: BaseException | None = None) -> None:
        collection: _Collection | None = self.__dict__.pop("_collecting", None)
        if collection is not None:
            kind = None if error is None else type(error)
            collection.frame.__exit__(kind, error, None)

    def __getstate__(self) -> Any:
        if "_collecting" in self.__dict__:
            raise NotApplicable("it holds exact private sums until finish() and is not pickled")
        return super().__getstate__()


@dataclass(frozen=True)
class _AddedUp:
    """Sums that were computed where the rows are."""

    total: NDArray[Any]

    def cells(self) -> NDArray[Any]:
        return self.total


def _cells_of(estimator: OnePassEstimator, plan: Any, batch: Batch) -> NDArray[Any]:
    sums = estimator._open(plan)
    estimator._add(sums, batch)
    return np.asarray(sums.cells())
