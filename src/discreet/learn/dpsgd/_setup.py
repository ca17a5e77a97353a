"""What a run is made with, and the secrets of one in which records take turns.

Where records take turns, every record is in one group for the whole run, and noise that was used is
taken back later. So two things must be the same in all parts of a run: which record is in which
group, and the noise of the steps before. Neither is stored. Both follow from keys, which are
in memory, or, for a run that can be resumed, in a file of its directory that only its owner may
read. They are in no other file: whoever has the keys can take the noise off every model that the
run has shown. The file goes when the run has ended.

A step that may have been seen is given up like any other. Its noise stays what it was: the keys
are those of the steps, so later steps take back the same noise that may have been seen with it.
Steps after that have a new key, so two copies of a directory, both resumed, never add the same
noise to different batches, which would show the batches themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, final

from torch import Tensor, nn
from torch.optim import Optimizer

from discreet._files import write_file
from discreet._json import canonical
from discreet.errors import PlanViolation, ResumeRefused, SchemaError
from discreet.learn.dpsgd._checkpoint import read_json
from discreet.learn.dpsgd._noise import StepFactors
from discreet.learn.dpsgd._plan import TURNS, Plan
from discreet.learn.dpsgd._run_directory import RunDirectory
from discreet.learn.dpsgd._team import Team
from discreet.randomness import CorrelatedStream, KeyedSource, Source, choose_source

_SCHEMA = "discreet.dpsgd.secret"
_VERSION = 1


@final
@dataclass(frozen=True)
class Setup:
    """What a run is made with; none of it changes."""

    model: nn.Module
    optimizer: Optimizer
    plan: Plan
    parameters: dict[str, nn.Parameter]
    reduction: str = "mean"
    after_step: tuple[Callable[[], object], ...] = ()
    batch_axis: int | None = None
    source: Source | None = None
    team: Team | None = None
    inputs_of: Callable[[list[Tensor]], Any] | None = None
    losses_of: Callable[[nn.Module, Any], Any] | None = None
    run: RunDirectory | None = None
    pid: int = field(default_factory=os.getpid)

    @cached_property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that the plan trains."""
        return list(self.parameters.values())

    @cached_property
    def held(self) -> list[Tensor]:
        """All parameters of the optimizer, frozen ones too."""
        return [one for group in self.optimizer.param_groups for one in group["params"]]

    @cached_property
    def factors(self) -> StepFactors:
        """Noise and normaliser of each step."""
        return StepFactors(self.plan, ranks=1 if self.team is None else self.team.ranks)

    @cached_property
    def turns(self) -> Turns | None:
        """The secrets of a run in which records take turns."""
        if self.plan.sampler not in TURNS:
            return None
        return Turns(self.plan, self.run, source=self.source)


@final
class Turns:
    """The keys of one run: one that divides the records, and those of the noise.

    With ``run``, a directory, they are there, or they are put there before anything is drawn.
    """

    def __init__(self, plan: Plan, run: RunDirectory | None, *, source: Source | None) -> None:
        self._plan = plan
        self._source = choose_source(source).derive("turns")
        self._run_id = "" if run is None else run.run_id
        self._path = None if run is None else run.secret_file
        self._dataset: Any = None
        self._examples: int | None = None
        begun = 0 if run is None else run.reserved
        self._noise: list[tuple[int, bytes]] = []
        if self._path is not None and self._path.exists():
            self._read(self._path)
        elif 0 < begun < plan.steps:
            raise ResumeRefused(
                "secret.json is missing: without it the groups of the records and the noise of "
                "the steps before are not known, and the run cannot go on"
            )
        else:
            self._groups = self._source.read(32)
        # No step from here on was begun. A new key for them is on the disk before it is used.
        self._noise = [(start, key) for start, key in self._noise if start < begun]
        self._noise.append((begun if self._noise else 0, self._source.read(32)))
        self._write()

    def noise(self) -> CorrelatedStream:
        """Return the noise of the run, from its beginning or from any later step on."""
        strategy = self._plan.strategy
        keys = [(step, self._keyed(key)) for step, key in self._noise]
        return CorrelatedStream(strategy.coefficients, inverse=strategy.inverse, keys=keys)

    def groups(self, dataset: Any, examples: int) -> Source:
        """Return what divides the records; raise for another data set than before.

        A record that changes its place changes its group, and would come back too early.
        """
        if self._dataset is not None and self._dataset is not dataset:
            raise PlanViolation(
                "another data set than before: where records take turns, each must stay in its "
                "place for the whole run. Read all batches from one data set"
            )
        if self._examples is not None and self._examples != examples:
            raise ResumeRefused(
                "the data set has another length than when the run began: where records take "
                "turns, each must stay in its place for the whole run"
            )
        known, self._dataset, self._examples = self._examples, dataset, examples
        if known is None:
            self._write()
        return self._keyed(self._groups)

    def _keyed(self, key: bytes) -> KeyedSource:
        return KeyedSource(key, provenance=self._source.provenance)

    def _write(self) -> None:
        if self._path is None:
            return
        document = {
            "schema": _SCHEMA,
            "version": _VERSION,
            "run_id": self._run_id,
            "groups": self._groups.hex(),
            "noise": [[step, key.hex()] for step, key in self._noise],
            "examples": self._examples,
        }
        write_file(self._path, canonical(document) + "\n", private=True)

    def _read(self, path: Path) -> None:
        known = read_json(path, schema=_SCHEMA, version=_VERSION)
        try:
            self._groups = bytes.fromhex(known["groups"])
            self._noise = [(int(step), bytes.fromhex(key)) for step, key in known["noise"]]
            self._examples = known["examples"]
            owner = known["run_id"]
        except (KeyError, TypeError, ValueError):
            raise SchemaError(f"{path.name}: cannot be read") from None
        if owner != self._run_id or not self._noise or self._noise[0][0] != 0:
            raise ResumeRefused(f"{path.name} belongs to another run")
