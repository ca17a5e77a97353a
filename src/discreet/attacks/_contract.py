"""The contract of an attack: what it needs, what it finds, and the registry of all attacks.

An attack is a function under :func:`attack`. Its parameters without a default are its inputs,
named from the closed list ``INPUTS``; its other parameters are settings. It returns a result with
``to_json()`` and a :class:`Finding`, one figure beside what chance would give. Whoever runs many
attacks, such as :func:`~discreet.attacks.compare_defences`, reads the registry ``ATTACKS`` and
knows no attack by name. One more attack is one file, and one line in the package's surface.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar, final, runtime_checkable

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable

INPUTS: Mapping[str, str] = {
    "observation": "what the target answers about records, of which some are members",
    "shadows": "what shadow models answer about the same records",
    "public": "what the target answers about records that were surely not used",
    "target": "the model itself",
    "records": "records to ask the model about",
    "labels": "the true classes of the records",
    "members": "which records were used, or the used records with their labels",
    "nonmembers": "records that were not used, with their labels",
    "auxiliary": "records of the attacker, with their labels",
    "attribute": "which columns are to be inferred",
    "models": "models trained on sets with and without a property",
    "holds": "whether the set of each model has the property",
    "shape": "the shape of an input of the model",
    "released": "a table without names",
    "register": "a table with names",
    "quasi_identifiers": "the columns that others may know",
    "on": "the columns by which two tables are compared",
    "answers": "answers to queries about a table",
    "queries": "which rows each query counts",
    "secrets": "the private column of the table, to judge by",
    "updates": "gradients or weights that a participant sent",
    "train": "a way to train the model",
    "canaries": "records that were planted",
}
FAMILIES = ("membership", "attribute", "property", "inversion", "tables", "reconstruction")
ACCESS = ("probabilities", "labels", "model", "table", "answers", "gradients")


@final
@dataclass(frozen=True)
class Finding:
    """One figure of an attack: ``value`` with its interval, and the ``baseline`` of chance.

    Counts that are what they are on the records at hand have ``low`` and ``high`` equal to
    ``value`` and a ``confidence`` of 1. ``trials`` is how many records, rows or models the figure
    is about.
    """

    attack: str
    measure: str
    value: float
    low: float
    high: float
    confidence: float
    baseline: float
    trials: int

    @property
    def leaks(self) -> bool:
        """Whether the whole interval lies above the baseline."""
        return self.low > self.baseline

    def to_json(self) -> dict[str, Any]:
        """The finding as plain JSON values."""
        return {**asdict(self), "leaks": self.leaks}

    def __str__(self) -> str:
        return (
            f"{self.attack}: {self.measure} {self.value:.3f} [{self.low:.3f}, {self.high:.3f}], "
            f"by chance {self.baseline:.3f}, of {self.trials}"
        )


@runtime_checkable
class Result(Protocol):
    """What an attack returns."""

    @property
    def finding(self) -> Finding:
        """The figure to compare attacks by; ``NotApplicable`` where it has to be judged."""

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON values."""


@final
@dataclass(frozen=True)
class Attack:
    """An entry of the registry: a function, and what it ``needs``."""

    name: str
    family: str
    access: str
    needs: tuple[str, ...]
    run: Callable[..., Any]

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.run) or "").partition("\n")[0]

    def __call__(self, inputs: Mapping[str, Any], **settings: Any) -> Any:
        """Run the attack on what it needs of the ``inputs``; others are left alone.

        Raises
        ------
        NotApplicable
            If an input is missing.
        """
        missing = [name for name in self.needs if inputs.get(name) is None]
        if missing:
            raise NotApplicable(f"the attack {self.name} needs {', '.join(missing)}")
        return self.run(**{name: inputs[name] for name in self.needs}, **settings)


ATTACKS: dict[str, Attack] = {}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def attack(*, family: str, access: str) -> Callable[[_Function], _Function]:
    """Put an attack into the registry, under the name of its function.

    Parameters
    ----------
    family : str
        What is attacked: one of "membership", "attribute", "property", "inversion", "tables",
        "reconstruction".
    access : str
        What the attacker sees: one of "probabilities", "labels", "model", "table", "answers",
        "gradients".

    Returns
    -------
    Callable
        A decorator that returns the function as it is.

    Raises
    ------
    InvalidValue
        If a parameter without a default is none of the known inputs, or the name is taken.
    """
    _validate.one_of("family", family, FAMILIES)
    _validate.one_of("access", access, ACCESS)

    def register(function: _Function) -> _Function:
        name = str(getattr(function, "__name__", ""))
        parameters = inspect.signature(function).parameters.values()
        needs = tuple(one.name for one in parameters if one.default is inspect.Parameter.empty)
        strange = [one for one in needs if one not in INPUTS]
        if strange:
            expected = "a default for settings, and inputs among " + ", ".join(INPUTS)
            raise InvalidValue("attack", f"{name}({', '.join(strange)})", expected)
        if not needs:
            raise InvalidValue("attack", name, "a function of at least one input")
        if name in ATTACKS:
            raise InvalidValue("attack", name, "a name that no other attack has")
        ATTACKS[name] = Attack(name, family, access, needs, function)
        return function

    return register
