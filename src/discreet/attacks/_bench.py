"""Compare defences under attacks that adapt to them: shadow models are trained with the defence.

A defence is a way to train, ``train(indices, seed)``, that returns a model or a target. Every
defence trains one target on the same half of the records and a pool of shadow models of its own,
so that an attacker who knows the defence is the one that is measured. Then every attack of the
registry whose inputs exist is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._confidence import Proportion, proportion
from discreet._json import JsonRecord, written_as
from discreet.attacks._contract import Finding, applicable, run_attack
from discreet.attacks._observation import Observation, observe
from discreet.attacks._shadow_pool import ShadowPool
from discreet.attacks._target import as_target
from discreet.attacks._training import SeededTraining, derive_seed, fresh_seed, seeded_generator
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@final
@dataclass(frozen=True)
class DefenceRow(JsonRecord):
    """One attack on one defence: what it found, or why it was not run."""

    defence: str
    attack: str
    finding: Finding | None
    note: str = ""

    def __str__(self) -> str:
        return f"{self.defence}: {self.finding or f'{self.attack} was not run: {self.note}'}"


@final
@dataclass(frozen=True)
class DefenceComparison(JsonRecord):
    """All findings, and how right each defended model is on records that it has not seen."""

    rows: tuple[DefenceRow, ...] = field(metadata=written_as("attacks"))
    accuracy: Mapping[str, Proportion]
    seed: int

    def findings(self, defence: str) -> dict[str, Finding]:
        """What each attack found on one defence."""
        _validate.one_of("defence", defence, tuple(self.accuracy))
        return {
            row.attack: row.finding
            for row in self.rows
            if row.defence == defence and row.finding is not None
        }

    def __str__(self) -> str:
        lines = [f"{name}: right on {found}" for name, found in self.accuracy.items()]
        return "\n".join([*lines, *map(str, self.rows)])


def compare_defences(
    defences: Mapping[str, Callable[..., Any]],
    records: Any,
    labels: ArrayLike,
    *,
    shadows: int = 16,
    public: tuple[Any, ArrayLike] | None = None,
    classes: int | None = None,
    seed: int | None = None,
    n_jobs: int = 1,
) -> DefenceComparison:
    """Train with each defence, attack, and compare.

    Parameters
    ----------
    defences : mapping from names to ways to train
        ``train(indices)`` or ``train(indices, seed)`` over ``records``, as for
        :class:`~discreet.attacks.ShadowPool`.
    records, labels
        What models are trained on; half of it, at random, is the target's.
    shadows : int
        How many shadow models each defence trains.
    public : pair (records, labels), optional
        Records apart from these that were surely not used, for attacks that need them.
    classes : int, optional
        The number of classes, if the labels do not have all of them.
    seed : int, optional
        Makes the comparison repeatable.
    n_jobs : int
        Processes that train shadow models.

    Returns
    -------
    DefenceComparison
        A finding of every attack on every defence, or the reason why there is none.

    Raises
    ------
    InvalidValue
        If there is no defence, or records and labels do not fit.
    """
    if not defences:
        raise InvalidValue("defences", defences, "at least one way to train")
    chosen = fresh_seed() if seed is None else _validate.integer("seed", seed, at_least=0)
    rows: list[DefenceRow] = []
    accuracy: dict[str, Proportion] = {}
    for name, train in defences.items():
        pool = ShadowPool(
            records, labels, train, models=shadows, classes=classes, seed=chosen, n_jobs=n_jobs
        )
        count = len(pool.labels)
        members = np.zeros(count, dtype=bool)
        members[seeded_generator(chosen, 2).permutation(count)[: count // 2]] = True
        target = SeededTraining(train)(np.flatnonzero(members), seed=derive_seed(chosen, 3))
        seen = pool.observe(target, members=members)
        right = seen.log_probabilities.argmax(axis=1) == seen.labels
        accuracy[name] = proportion(int(right[~members].sum()), int((~members).sum()))
        inputs: dict[str, Any] = {"observation": seen, "shadows": pool.run(), "target": target}
        if public is not None:
            inputs["public"] = _observe_public(target, public, classes=seen.classes)
        rows += [_run(name, one.name, inputs) for one in applicable(inputs)]
    return DefenceComparison(tuple(rows), accuracy, chosen)


def _observe_public(target: Any, public: tuple[Any, ArrayLike], *, classes: int) -> Observation:
    records, labels = public
    asked = as_target(target, classes=classes)
    return observe(asked, records, labels, members=np.zeros(len(records), dtype=bool))


def _run(defence: str, name: str, inputs: Mapping[str, Any]) -> DefenceRow:
    try:
        run = run_attack(name, inputs)
        return DefenceRow(defence, name, run.finding, run.note)
    except (InvalidValue, NotApplicable) as error:  # too few models for it, say
        return DefenceRow(defence, name, None, str(error))
