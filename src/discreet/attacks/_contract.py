"""The contract of an attack: what it needs, what it finds, and the registry of all attacks.

An attack is a function under :func:`attack`. Its parameters without a default are its inputs,
named from the closed list ``INPUTS``; its other parameters are settings. It returns a frozen
:class:`Result` with a :class:`Finding`, one figure beside what chance would give. Whoever runs
attacks, such as the command line or :func:`~discreet.attacks.compare_defences`, reads the registry
``ATTACKS`` and knows no attack by name. One more attack is one file, and one line in the package's
surface.
"""

from __future__ import annotations

import inspect
import json
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

import numpy as np

from discreet import _validate
from discreet._html import html_table
from discreet._json import JsonRecord, plain
from discreet.errors import FileUnusable, InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet._confidence import Proportion

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
    "cells": "how many rows each cell of a table has, to judge by",
    "secrets": "what is private, to judge by",
    "updates": "gradients or weights that a participant sent",
    "train": "a way to train the model",
    "canaries": "records that were planted",
    "predictions": "the numbers that a model predicts",
    "values": "the true numbers",
    "checkpoints": "observations of several checkpoints of one training",
    "shadow_checkpoints": "what shadow models answer at the same checkpoints",
    "persons": "whose each record is",
    "scores": "how much each record seems to have been used",
    "suspected": "which records are of a data set that may have been used",
    "language_model": "a model that predicts the next token of a text",
    "prompts": "texts to begin with",
    "corpus": "the texts that a language model was trained on",
}
FAMILIES = (
    *("membership", "attribute", "property", "inversion", "tables"),
    *("reconstruction", "poisoning", "memorisation"),
)
ACCESS = ("probabilities", "labels", "model", "table", "answers", "gradients")


@final
@dataclass(frozen=True)
class Finding(JsonRecord):
    """One figure of an attack: ``value`` with its interval, and the ``baseline`` of chance.

    Counts that are what they are on the records at hand have ``low`` and ``high`` equal to
    ``value`` and a ``confidence`` of 1. ``trials`` is how many records, rows or models the figure
    is about.
    """

    json_properties = ("leaks",)

    attack: str
    measure: str
    value: float
    low: float
    high: float
    confidence: float
    baseline: float
    trials: int

    @classmethod
    def of_share(cls, attack: str, measure: str, share: Proportion, baseline: float) -> Finding:
        """Return the finding of a share with its interval."""
        interval = share.share, share.low, share.high, share.confidence
        return cls(attack, measure, *interval, baseline, share.trials)

    @classmethod
    def of_count(cls, attack: str, measure: str, hits: int, trials: int) -> Finding:
        """Return the finding of a count on the rows at hand, which no chance is part of."""
        share = hits / trials
        return cls(attack, measure, share, share, share, 1.0, 0.0, trials)

    @property
    def leaks(self) -> bool:
        """Whether the whole interval lies above the baseline."""
        return self.low > self.baseline

    def _repr_html_(self) -> str:
        rows: list[tuple[str, object]] = [
            (self.measure, f"{self.value:.3f}, between {self.low:.3f} and {self.high:.3f}"),
            ("confidence", self.confidence),
            ("by chance", self.baseline),
            ("of", self.trials),
            ("leaks", "yes" if self.leaks else "not shown"),
        ]
        return html_table(self.attack, rows)

    def __str__(self) -> str:
        return (
            f"{self.attack}: {self.measure} {self.value:.3f} [{self.low:.3f}, {self.high:.3f}], "
            f"by chance {self.baseline:.3f}, of {self.trials}"
        )


class Result(JsonRecord):
    """What an attack returns: a frozen dataclass, which JSON has by its fields.

    ``json_kind``, if there is one, is written as "attack". A figure has an interval, or
    ``without_interval`` says why it has none. Mark what points at single people
    by ``field(metadata=HIDDEN)``: it stays out.
    """

    json_kind: ClassVar[str] = ""
    without_interval: ClassVar[Mapping[str, str]] = {}
    """Figures that JSON has without an interval, each with the reason."""

    @property
    @abstractmethod
    def finding(self) -> Finding:
        """The figure to compare attacks by; ``NotApplicable`` where it has to be judged."""

    @property
    def leaks(self) -> bool:
        """Whether the whole interval of the finding lies above chance."""
        return self.finding.leaks

    def _repr_html_(self) -> str:
        try:
            return self.finding._repr_html_()
        except NotApplicable as why:
            return html_table(type(self).__name__, [("no finding", why)])

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values; what points at single people is left out."""
        head = {"attack": self.json_kind} if self.json_kind else {}
        reasons = {"without_interval": dict(self.without_interval)} if self.without_interval else {}
        return {**head, **super().to_json(), **reasons}


@final
@dataclass(frozen=True)
class Attack:
    """An entry of the registry: a function, what it ``needs``, and its ``settings`` by default."""

    name: str
    family: str
    access: str
    needs: tuple[str, ...]
    settings: Mapping[str, Any]
    run: Callable[..., Any]

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.run) or "").partition("\n")[0]

    def __call__(self, inputs: Mapping[str, Any], **settings: Any) -> Any:
        """Run the attack on what it needs of the ``inputs``; others are left alone.

        Raises
        ------
        InvalidValue
            If an input or a setting is wrong.
        NotApplicable
            If an input is missing, or the attack does not return a frozen :class:`Result`.
        """
        self._check_settings(settings)
        missing = [name for name in self.needs if inputs.get(name) is None]
        if missing:
            raise NotApplicable(f"the attack {self.name} needs {', '.join(missing)}")
        result = self.run(**{name: inputs[name] for name in self.needs}, **settings)
        made = getattr(type(result), "__dataclass_params__", None)
        if not isinstance(result, Result) or made is None or not made.frozen:
            returned = type(result).__name__
            raise NotApplicable(f"{self.name} returns a {returned}, not a frozen Result")
        return result

    def read_settings(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Read settings from texts, as JSON where they are JSON.

        Raises
        ------
        InvalidValue
            If the attack has no such setting.
        """
        self._check_settings(texts)
        return {name: _read_setting(text) for name, text in texts.items()}

    def _check_settings(self, given: Mapping[str, Any]) -> None:
        for name in given:
            if name not in self.settings:
                known = ", ".join(self.settings) or "none"
                raise InvalidValue(name, given[name], f"a setting of {self.name}: {known}")


ATTACKS: dict[str, Attack] = {}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def attack(*, family: str, access: str) -> Callable[[_Function], _Function]:
    """Put an attack into the registry, under the name of its function.

    Parameters
    ----------
    family : str
        What is attacked: one of "membership", "attribute", "property", "inversion", "tables",
        "reconstruction", "poisoning", "memorisation".
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
        required = inspect.Parameter.empty
        needs = tuple(one.name for one in parameters if one.default is required)
        settings = {one.name: one.default for one in parameters if one.default is not required}
        strange = [one for one in needs if one not in INPUTS]
        if strange:
            expected = "a default for settings, and inputs among " + ", ".join(INPUTS)
            raise InvalidValue("attack", f"{name}({', '.join(strange)})", expected)
        if not needs:
            raise InvalidValue("attack", name, "a function of at least one input")
        if name in ATTACKS:
            raise InvalidValue("attack", name, "a name that no other attack has")
        ATTACKS[name] = Attack(name, family, access, needs, settings, function)
        return function

    return register


@final
@dataclass(frozen=True, eq=False)
class AttackRun:
    """An attack that was run: its ``result``, and its ``finding`` or a ``note`` why it has none."""

    attack: Attack
    result: Any
    finding: Finding | None
    note: str

    def to_json(self) -> dict[str, Any]:
        """Return what was run and what it found, as plain JSON values."""
        one = self.attack
        head = {"attack": one.name, "family": one.family, "access": one.access, "note": self.note}
        return {**head, "finding": plain(self.finding), "result": self.result.to_json()}

    def lines(self) -> list[str]:
        """Return the lines to print: the finding, and the result where it has words of its own."""
        words: Any = type(self.result).__str__
        own = words is not object.__str__
        first = f"{self.attack.name}: {self.note}" if self.finding is None else str(self.finding)
        return [first, *(str(self.result).splitlines() if own else [])]


def run_attack(name: str, inputs: Mapping[str, Any], **settings: Any) -> AttackRun:
    """Run an attack of the registry.

    Parameters
    ----------
    name : str
        A key of ``ATTACKS``.
    inputs : mapping
        What there is, by the names of ``INPUTS``; the attack takes what it needs.
    **settings
        Settings of the attack.

    Returns
    -------
    AttackRun
        The result, with lines to print and plain JSON.

    Raises
    ------
    InvalidValue
        If there is no such attack, or an input or a setting is wrong.
    NotApplicable
        If an input is missing.
    """
    one = ATTACKS[_validate.one_of("name", name, tuple(ATTACKS))]
    result = one(inputs, **settings)
    try:
        return AttackRun(one, result, result.finding, "")
    except NotApplicable as error:
        return AttackRun(one, result, None, str(error))


def applicable(inputs: Mapping[str, Any]) -> list[Attack]:
    """Return the attacks of the registry whose inputs are all there.

    Parameters
    ----------
    inputs
        What there is, by the names of ``INPUTS``.

    Returns
    -------
    list of Attack
        Those that need nothing else.
    """
    there = {name for name, value in inputs.items() if value is not None}
    return [one for one in ATTACKS.values() if there.issuperset(one.needs)]


def read_inputs(texts: Mapping[str, str]) -> dict[str, Any]:
    """Read the inputs that a command line can give.

    Parameters
    ----------
    texts : mapping from names of ``INPUTS`` to texts
        ``released`` and ``register`` are paths of tables; ``quasi_identifiers`` and ``on`` are
        names between commas, ``shape`` is numbers between commas; ``answers``, ``records``,
        ``labels``, ``cells``, ``queries``, ``secrets``, ``holds``, ``members``, ``predictions``,
        ``values``, ``scores`` and ``suspected`` are paths of .npy or .csv files.

    Returns
    -------
    dict
        The inputs, for :func:`run_attack`.

    Raises
    ------
    InvalidValue
        If a file cannot be read, or an input is made in Python only, such as a model.
    """
    found = {}
    for name, text in texts.items():
        _validate.one_of("input", name, tuple(INPUTS))
        if name not in _READERS:
            expected = "nothing: this input is made in Python; see run_attack"
            raise InvalidValue(name, text, expected)
        found[name] = _READERS[name](name, text)
    return found


def _read_setting(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read_names(name: str, text: str) -> list[str]:
    del name
    return [part.strip() for part in text.split(",")]


def _read_shape(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidValue(name, text, "whole numbers between commas, as in 28,28") from None


def read_numbers(name: str, text: str) -> NDArray[Any]:
    """Read a .npy or .csv file of numbers.

    Parameters
    ----------
    name
        What the file is, for errors.
    text
        Its path.

    Returns
    -------
    array
        Of one dimension, or two.

    Raises
    ------
    InvalidValue
        If it cannot be read.
    """
    try:
        if Path(text).suffix == ".npy":
            found: NDArray[Any] = np.load(text, allow_pickle=False)
        else:
            with warnings.catch_warnings(action="error"):  # a file without numbers
                found = np.loadtxt(text, delimiter=",")
    except OSError as error:
        raise FileUnusable(name, text, f"a readable file ({error.strerror or error})") from None
    except (ValueError, UserWarning) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidValue(name, text, f"a .npy or .csv file of numbers ({reason})") from None
    return found


def _read_truths(name: str, text: str) -> NDArray[np.bool_]:
    found = read_numbers(name, text)
    if not np.isin(found, (0, 1)).all():
        raise InvalidValue(name, text, "a file of zeros and ones")
    return found.astype(np.bool_)


def _read_classes(name: str, text: str) -> NDArray[np.int64]:
    found = read_numbers(name, text)
    if not np.array_equal(found, np.rint(found)):
        raise InvalidValue(name, text, "a file of whole numbers")
    return found.astype(np.int64)


_READERS: Mapping[str, Callable[[str, str], Any]] = {
    **dict.fromkeys(("released", "register"), lambda _, text: text),
    **dict.fromkeys(("quasi_identifiers", "on"), _read_names),
    **dict.fromkeys(("answers", "records", "predictions", "values", "scores"), read_numbers),
    **dict.fromkeys(("queries", "secrets", "holds", "suspected", "members"), _read_truths),
    **dict.fromkeys(("labels", "cells"), _read_classes),
    "shape": _read_shape,
}
