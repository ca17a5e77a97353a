"""A run that survives being killed: its identity, its write-ahead step counter, its state.

The rule on which the guarantee rests: **a step that may have been taken is never taken
again.** Before the batch of a step is drawn, a counter on the disk says that this step may have
been taken. When a killed run is resumed, it starts from the last saved state, but counts every
step up to that counter as taken: the updates between are given up, not repeated. So no more than
the planned number of noisy sums ever exist, of exactly the planned kinds, whatever was seen of
those that were lost: displays, metrics, states on a disk, or the fact and the time of a crash.

The alternative is to repeat the lost steps and to argue that nobody saw them. It fails as soon
as somebody saw a validation score and decided to kill the run, or a certain record in a batch
makes the process die; so it is not offered.

The counter is moved ahead by a block of steps at a time, so that its flush costs little; the
block is kept near a quarter of a second of work.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from torch import Tensor

from discreet._files import hold_directory
from discreet.errors import InvalidValue, ResumeRefused, SchemaError
from discreet.learn.dpsgd._checkpoint import read_json, read_tensors, write_json, write_tensors
from discreet.learn.dpsgd._plan import Plan

_SCHEMA = "discreet.dpsgd.run"
_VERSION = 1
_BLOCK_SECONDS = 0.25
_LARGEST_BLOCK = 4096


@final
class RunDirectory:
    """One run in one directory, held by one process at a time.

    A copy of a directory that is resumed as well is a second run on one charge. Files cannot
    prevent that; a ledger that has seen one of them complete refuses the other, which looks there
    when it is resumed, whenever it saves its state, and before its model gets its place.
    """

    def __init__(self, path: str | Path, plan: Plan) -> None:
        self.path = Path(path)
        self._plan = plan
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise InvalidValue("checkpoint", str(path), "a directory, not a file") from None
        self._release = hold_directory(self.path)
        try:
            self._sweep()
            if (self.path / "run.json").exists():
                self._check_identity()
            else:
                self._begin()
            self._read_progress()
        except BaseException:
            self.close()
            raise

    def _sweep(self) -> None:
        """Remove files that a killed process had not finished writing."""
        for name in ("run.json", "progress.json", "receipt.json", "state.safetensors"):
            for unfinished in self.path.glob(f".{name}.*"):
                unfinished.unlink()

    def _begin(self) -> None:
        # What a beginning that was killed can leave behind is no run yet.
        remains = {"lock", "progress.json"}
        names = {entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")}
        if names - remains:
            raise InvalidValue("checkpoint", str(self.path), "an empty directory or that of a run")
        self.run_id = secrets.token_hex(16)
        self._happened: set[str] = set()
        self._save_progress(attempt=0, reserved=0, finished=False)
        # Last: a directory without it is one in which nothing has happened yet.
        write_json(
            self.path / "run.json",
            {
                "schema": _SCHEMA,
                "version": _VERSION,
                "run_id": self.run_id,
                "plan": self._plan.to_json(),
                "plan_hash": self._plan.content_hash,
            },
        )

    def _check_identity(self) -> None:
        known = read_json(self.path / "run.json", schema=_SCHEMA, version=_VERSION)
        self.run_id = str(known.get("run_id"))
        if known.get("plan_hash") != self._plan.content_hash:
            before = Plan.from_json(known["plan"])
            changed = [
                name
                for name in Plan.__dataclass_fields__
                if getattr(before, name) != getattr(self._plan, name)
            ]
            raise ResumeRefused(
                f"the run in {self.path.name!r} was charged for another plan (changed: "
                f"{', '.join(changed) or 'the record itself'}); nothing was trained or charged"
            )

    def _read_progress(self) -> None:
        known = read_json(self.path / "progress.json", schema=_SCHEMA, version=_VERSION)
        attempt, reserved, finished = (known.get(k) for k in ("attempt", "reserved", "finished"))
        if not isinstance(attempt, int) or not isinstance(reserved, int):
            raise SchemaError("progress.json: the counters are missing")
        if not 0 <= reserved <= self._plan.steps or not isinstance(finished, bool):
            raise SchemaError("progress.json: fields are missing or out of range")
        if finished:
            raise ResumeRefused(
                f"the run in {self.path.name!r} is complete; its model and certificate are there"
            )
        self._happened = {str(name) for name in known.get("happened", ())}
        # A new attempt is on the disk before anything of it happens: seeded streams, which exist
        # for experiments, must not be read twice either.
        self.attempt = attempt + 1
        self.reserved = reserved
        self._save_progress(attempt=self.attempt, reserved=reserved, finished=False)
        self._block = 1
        self._asked_at = time.monotonic()

    def _save_progress(self, *, attempt: int, reserved: int, finished: bool) -> None:
        write_json(
            self.path / "progress.json",
            {
                "schema": _SCHEMA,
                "version": _VERSION,
                "attempt": attempt,
                "reserved": reserved,
                "finished": finished,
                "happened": sorted(self._happened),
            },
        )

    # --- the counter -------------------------------------------------------------------

    def reserve(self, step: int) -> None:
        """Return when the disk knows that ``step`` (from 0) may have been taken."""
        if step < self.reserved:
            return
        now = time.monotonic()
        elapsed = now - self._asked_at
        if elapsed < _BLOCK_SECONDS:
            self._block = min(2 * self._block, _LARGEST_BLOCK)
        elif elapsed > 4 * _BLOCK_SECONDS:
            self._block = max(1, self._block // 2)
        self._asked_at = now
        self._set_reserved(min(step + self._block, self._plan.steps))

    def give_back(self, taken: int) -> None:
        """State that exactly ``taken`` steps were taken, by a process that takes no more."""
        self._set_reserved(taken)

    def _set_reserved(self, steps: int) -> None:
        self._save_progress(attempt=self.attempt, reserved=steps, finished=False)
        self.reserved = steps

    # --- what the certificate is to state ----------------------------------------------

    def note(self, name: str) -> None:
        """Return when the disk knows what has happened since the last saved state."""
        if name not in self._happened:
            self._happened.add(name)
            self._set_reserved(self.reserved)

    def facts_after(self, notes: Mapping[str, Any], lost: int) -> dict[str, int]:
        """The facts of a saved state, and of ``lost`` steps that were taken after it.

        In how many of those it happened is not known: in all of them.
        """
        facts = dict(notes.get("run", {}))
        for name in self._happened:
            facts[name] = max(1, facts.get(name, 0) + lost)
        return {**facts, "times_resumed": self.attempt - 1}

    # --- state and receipt -------------------------------------------------------------

    def save_state(self, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
        """Keep a state, in place of the former one."""
        described = {**notes, "run_id": self.run_id, "plan_hash": self._plan.content_hash}
        write_tensors(self.path / "state.safetensors", tensors, notes=described)
        if self._happened:  # the state knows it better
            self._happened.clear()
            self._set_reserved(self.reserved)

    def load_state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last state that was kept, if any."""
        path = self.path / "state.safetensors"
        if not path.exists():
            if self.reserved:
                raise ResumeRefused("steps were taken, but there is no state to continue from")
            return None
        tensors, notes = read_tensors(path)
        if (notes.get("run_id"), notes.get("plan_hash")) != (self.run_id, self._plan.content_hash):
            raise ResumeRefused("the saved state belongs to another run")
        taken = notes.get("steps_taken")
        if not isinstance(taken, int) or not 0 <= taken <= self.reserved:
            raise ResumeRefused(
                f"the saved state has {taken} steps, the counter allows {self.reserved}: files of "
                "different times were mixed"
            )
        return tensors, notes

    def save_receipt(self, receipt: Mapping[str, Any]) -> None:
        """Keep the receipt of the ledger."""
        write_json(self.path / "receipt.json", receipt)

    def load_receipt(self) -> dict[str, Any] | None:
        """The receipt of the charge, if the run was charged to a ledger."""
        path = self.path / "receipt.json"
        if not path.exists():
            return None
        return read_json(path, schema="discreet.ledger.receipt", version=1)

    @property
    def unpublished(self) -> Path:
        """Where the model and its certificate wait for the ledger to know the outcome."""
        return self.path / "unpublished"

    def publish(self, digest: str) -> bool:
        """Put the model of this digest in its place; whether it is there now."""
        for place in (self.unpublished, self.path):
            try:
                known = json.loads((place / "certificate.json").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            if not isinstance(known, dict) or known.get("model_digest") != digest:
                continue
            # The certificate last: without it the model is none that was certified.
            for name in ("model.safetensors", "certificate.json"):
                if (place / name).exists():
                    (place / name).replace(self.path / name)
            self.discard()
            return (self.path / "model.safetensors").exists()
        return False

    def discard(self) -> None:
        """Remove a model that was not published."""
        shutil.rmtree(self.unpublished, ignore_errors=True)

    @property
    def secret_file(self) -> Path:
        """Where the keys are by which groups and noise can be made again; for its owner only."""
        return self.path / "secret.json"

    def remove_secrets(self) -> None:
        """Remove the keys of a run that needs them no more, and drafts of them."""
        for path in (self.secret_file, *self.path.glob(".secret.*")):
            path.unlink(missing_ok=True)

    def finish(self) -> None:
        """The run is complete: it will not be resumed."""
        self.remove_secrets()
        self._save_progress(attempt=self.attempt, reserved=self.reserved, finished=True)

    def close(self) -> None:
        """Let others have the directory."""
        self._release()
