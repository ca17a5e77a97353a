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
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from discreet._files import hold_directory
from discreet.certificate import read_certificate
from discreet.errors import InvalidValue, ResumeRefused, SchemaError
from discreet.federated._plan import FederatedPlan
from discreet.learn import read_model, write_model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_KIND = "federated run"


@final
class RunState:
    """One run in one directory, held by one process at a time."""

    def __init__(self, path: str | Path, plan: FederatedPlan, training: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self._facts = {"plan_hash": plan.content_hash, "training": dict(training)}
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


__all__ = ["RunState"]
