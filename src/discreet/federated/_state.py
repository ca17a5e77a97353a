"""What a run keeps between its rounds, so that it survives being killed.

As with :class:`discreet.learn.dpsgd.Trainer`, a round that may have been taken is never taken
again. One file is written before the clients of a round are asked: it holds the model after the
rounds before, and says that this one may have been taken. A run that is resumed begins with that
model at the round after it. The file is for its owner only: it holds the clients' counters, and
what correlated noise is made of.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, final

from discreet._files import hold_directory, new_directory
from discreet._json import digest_of
from discreet.certificate import Certificate, read_certificate
from discreet.errors import AlreadyCharged, InvalidValue, ResumeRefused, SchemaError
from discreet.federated._certificate import write_federated
from discreet.federated._plan import FederatedPlan
from discreet.learn import check_unit, read_model, write_model
from discreet.ledger import Charge, Ledger

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from discreet.federated._silos import SiloPlan

_KIND = "federated run"


@final
class RunState:
    """One run in one directory, held by one process at a time."""

    def __init__(
        self, path: str | Path, plan: FederatedPlan | SiloPlan, facts: Mapping[str, Any]
    ) -> None:
        self.path = Path(path)
        self._facts = {"plan_hash": plan.content_hash, **facts}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise InvalidValue("checkpoint", str(path), "a directory, not a file") from None
        self._release = hold_directory(self.path)
        self.run_id = secrets.token_hex(16)
        self.attempt = 0
        self.reserved = 0
        self.found: tuple[dict[str, Any], dict[str, NDArray[np.generic]]] | None = None
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    @property
    def _file(self) -> Path:
        return self.path / "state.npz"

    def _read(self) -> None:
        if (self.path / "model").exists():
            raise ResumeRefused(f"the run in {self.path.name!r} is complete; its model is there")
        if not self._file.exists():
            if any(entry.name != "lock" for entry in self.path.iterdir()):
                raise InvalidValue("checkpoint", str(self.path), "an empty directory or a run's")
            return
        head, arrays = read_model(self._file, kind=_KIND)
        for name, value in self._facts.items():
            if head.get(name) != value:
                raise ResumeRefused(
                    f"the run in {self.path.name!r} has another {name.removesuffix('_hash')}; "
                    "nothing was trained or charged"
                )
        self.run_id, self.reserved = str(head["run_id"]), int(head["reserved"])
        self.attempt = int(head["attempt"]) + 1
        self.found = (head, arrays) if arrays else None  # without: charged, and no more

    def keep(
        self,
        facts: Mapping[str, Any],
        arrays: Mapping[str, NDArray[np.generic]],
        *,
        reserved: int,
    ) -> None:
        """Return when the disk has the model, and knows that ``reserved`` rounds may be taken."""
        head = {**self._facts, **facts, "run_id": self.run_id, "reserved": reserved}
        write_model(self._file, kind=_KIND, head={**head, "attempt": self.attempt}, arrays=arrays)
        self.reserved = reserved

    @property
    def unpublished(self) -> Path:
        """Where the model waits for the ledger to know the outcome."""
        return self.path / "unpublished"

    def hold_back(self, arrays: Mapping[str, NDArray[Any]], certificate: Certificate) -> None:
        """Write the model to where it waits."""
        self.discard()
        with new_directory(self.unpublished, argument="checkpoint") as place:
            write_federated(place, arrays, certificate)

    def publish(self, digest: object) -> bool:
        """Put the model of this digest in its place, and forget the rest; say if it is there."""
        try:
            known = read_certificate(self.unpublished).model_digest
        except (SchemaError, OSError):
            return False
        if known != digest:
            return False
        self.unpublished.replace(self.path / "model")
        self._file.unlink(missing_ok=True)
        return True

    def discard(self) -> None:
        """Remove a model that was not published."""
        shutil.rmtree(self.unpublished, ignore_errors=True)

    def close(self) -> None:
        """Let others have the directory."""
        self._release()


def check_ledger(plan: FederatedPlan, ledger: Ledger | None, dataset: str | None) -> None:
    """Raise unless there is a ledger with a dataset of the plan's unit, or neither of them."""
    if (ledger is None) != (dataset is None):
        raise InvalidValue("dataset", dataset, "a name if and only if with a ledger")
    if ledger is not None and dataset is not None:
        check_unit(ledger, dataset, plan.unit)


@contextmanager
def charge_run(
    ledger: Ledger | None,
    dataset: str | None,
    plan: FederatedPlan | SiloPlan,
    state: RunState | None,
    purpose: str,
    *,
    silo: str | None = None,
) -> Iterator[Charge | None]:
    """Charge the whole plan once; a resumed run finds its charge by the key in its directory.

    Of a plan for silos, what one of them costs is charged to its ledger.
    """
    if ledger is None or dataset is None:
        yield None
        return
    loss = plan.loss if silo is None else cast("SiloPlan", plan).loss_of(silo)
    key = secrets.token_hex(16) if state is None else state.run_id
    if silo is not None:  # one ledger may have the datasets of several silos
        key = digest_of([key, silo])
    delta = Fraction(repr(plan.delta))
    if state is None:
        with ledger.charge(dataset, loss, delta=delta, key=key, purpose=purpose) as charge:
            yield charge
        return
    if not state.reserved:  # the key first: a run that dies after its charge must find it again
        state.keep({}, {}, reserved=0)
    charge = ledger.charge(dataset, loss, delta=delta, key=key, purpose=purpose)
    if charge.outcome != "open":
        result = charge.result
        digest = result.get("model_digest") if isinstance(result, dict) else None
        where = "; its model is in the directory" if state.publish(digest) else ""
        raise ResumeRefused(f"the ledger says that this run was {charge.outcome} already{where}")
    try:
        with charge.attempt():
            yield charge
    except AlreadyCharged:
        state.discard()  # another copy of the run has ended first
        raise


__all__ = ["RunState", "charge_run", "check_ledger"]
