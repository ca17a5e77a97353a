"""Losses as JSON and back, by a strict and versioned schema.

>>> from discreet.privacy.atoms import Gaussian, PureDP
>>> to_json(PureDP("1/10"))["loss"]
{'kind': 'PureDP', 'epsilon': '1/10', 'relation': 'add_remove'}
>>> run = 100 * Gaussian(1.1).poisson(rate=0.01) + PureDP(0.1)
>>> from_json(to_json(run)) == run
True

Reading is strict, because a field that is skipped may be a cost that is skipped: an
unknown version, kind or field and a missing field raise ``SchemaError`` and are named.
Values pass through the constructors of the losses, so nothing can be read that could not
have been written in code. Exact rationals are strings (``"1/10"``); floats are JSON
numbers, which Python writes and reads without loss.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from fractions import Fraction
from typing import Any, NamedTuple

from discreet._json import read_json
from discreet.errors import DiscreetError, NotApplicable, SchemaError
from discreet.privacy.atoms import (
    GDP,
    ZCDP,
    ApproxDP,
    Atom,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    FinitePair,
    Gaussian,
    Laplace,
    PureDP,
    RandomizedResponse,
    RenyiDP,
)
from discreet.privacy.curves import worst_order
from discreet.privacy.loss import (
    Composition,
    Grouped,
    Loss,
    PoissonSampled,
    SampledWithoutReplacement,
    compose,
)
from discreet.privacy.relation import Relation

__all__ = ["OldLoss", "from_json", "read_fraction", "read_old", "to_json", "write_fraction"]

# What version 0.1 counted wrong, where that is wanted.
Reasons = list[str] | None

SCHEMA = "discreet.loss"
VERSION = 1

_ATOMS: dict[str, type[Atom]] = {
    atom.__name__: atom
    for atom in (
        ApproxDP,
        DiscreteGaussian,
        DiscreteLaplace,
        Exponential,
        FinitePair,
        GDP,
        Gaussian,
        Laplace,
        PureDP,
        RandomizedResponse,
        RenyiDP,
        ZCDP,
    )
}

# Longer numbers are refused before they are parsed: reading must not be a way to stall.
_LONGEST_FRACTION = 8_000
_FRACTION = re.compile(r"(0|[1-9][0-9]*)(?:/([1-9][0-9]*))?")
_DEEPEST = 64


def to_json(loss: Loss) -> dict[str, Any]:
    """The loss as an object that :mod:`json` can write; see :func:`from_json`."""
    return {"schema": SCHEMA, "version": VERSION, "loss": _write(loss)}


def from_json(document: Mapping[str, Any] | str) -> Loss:
    """The loss that :func:`to_json` wrote, given as the object or as its text.

    Every loss checks itself when it is made, so what can be read could also be written:
    ``from_json(to_json(a)) == a``.
    """
    return _read(_body(document), "loss", 0, None)


def _body(document: Mapping[str, Any] | str) -> object:
    top = read_json(document, "the document") if isinstance(document, str) else document
    body = _fields(top, "document", ("schema", "version", "loss"))
    if body["schema"] != SCHEMA:
        raise SchemaError(f"schema {body['schema']!r}: expected {SCHEMA!r}")
    if body["version"] != VERSION or isinstance(body["version"], (bool, float)):
        raise SchemaError(
            f"version {body['version']!r} of schema {SCHEMA!r}: this library reads {VERSION}"
        )
    return body["loss"]


class OldLoss(NamedTuple):
    """A loss that version 0.1 wrote: what the release costs, and why 0.1 charged too little.

    ``reason`` is ``None`` where version 0.1 counted right.
    """

    loss: Loss
    reason: str | None


def read_old(document: Mapping[str, Any] | str) -> OldLoss:
    """Read a loss that version 0.1 may have written, also one that is refused today.

    Version 0.1 could build losses that no theorem gives, and read finite pairs in one order
    only. Such a loss comes back as one that bounds what the release costs, with the reason.
    What 0.1 could not have written raises ``SchemaError``, as in :func:`from_json`.

    >>> base = {"kind": "Laplace", "scale": 1.0, "sensitivity": 1.0, "relation": "add_remove"}
    >>> body = {"kind": "PoissonSampled", "base": base, "rate": 0.1, "records": 5}
    >>> read_old({"schema": "discreet.loss", "version": 1, "loss": body}).loss
    Laplace(scale=1.0).poisson(rate=0.1).group(5)
    """
    reasons: list[str] = []
    loss = _read(_body(document), "loss", 0, reasons)
    return OldLoss(loss, "; ".join(dict.fromkeys(reasons)) or None)


def write_fraction(value: Fraction) -> str:
    """An exact rational as text.

    >>> write_fraction(Fraction(1, 10))
    '1/10'
    """
    return str(value)


def read_fraction(text: object, where: str) -> Fraction:
    """The non-negative rational that :func:`write_fraction` wrote, or ``SchemaError``."""
    match = None
    if isinstance(text, str) and len(text) <= _LONGEST_FRACTION:
        match = _FRACTION.fullmatch(text)
    if match is None:
        raise SchemaError(f"{where}: {_short(text)}: expected an exact number such as '1/10'")
    try:
        return Fraction(int(match[1]), int(match[2] or 1))
    except ValueError as error:  # more digits than Python converts
        raise SchemaError(f"{where}: {_short(text)}: {error}") from None


# --- writing -------------------------------------------------------------------------


def _write(loss: Loss) -> dict[str, Any]:
    kind = type(loss).__name__
    if isinstance(loss, Atom) and _ATOMS.get(kind) is type(loss):
        values = {argument: getattr(loss, name) for name, argument in _arguments(type(loss))}
        return {"kind": kind} | {name: _plain(value) for name, value in values.items()}
    if isinstance(loss, Composition):
        parts = [{"loss": _write(part), "count": count} for part, count in loss.parts]
        return {"kind": kind, "parts": parts}
    if isinstance(loss, PoissonSampled):
        return {
            "kind": kind,
            "base": _write(loss.base),
            "rate": loss.rate,
            "records": loss.records,
        }
    if isinstance(loss, SampledWithoutReplacement):
        return {
            "kind": kind,
            "base": _write(loss.base),
            "sample": loss.sample,
            "population": loss.population,
        }
    if isinstance(loss, Grouped):
        return {
            "kind": kind,
            "base": _write(loss.base),
            "size": loss.size,
            "target": loss.target.value,
        }
    raise SchemaError(f"kind {kind!r} is not part of version {VERSION} of schema {SCHEMA!r}")


def _arguments(atom: type[Atom]) -> list[tuple[str, str]]:
    """Each field of an atom with the constructor argument that sets it."""
    names = [field.name for field in fields(atom)]  # type: ignore[arg-type]
    return [(name, atom.argument_names.get(name, name)) for name in names]


def _plain(value: object) -> object:
    if isinstance(value, Fraction):
        return write_fraction(value)
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, str) else value


# --- reading -------------------------------------------------------------------------


def _fields(node: object, where: str, names: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(node, Mapping):
        raise SchemaError(f"{where}: {_short(node)}: expected an object")
    for name in names:
        if name not in node:
            raise SchemaError(f"{where}: missing field {name!r}")
    for name in node:
        if name not in names:
            raise SchemaError(f"{where}: unknown field {name!r}")
    return node


def _read(node: object, where: str, depth: int, old: Reasons) -> Loss:
    """Read one loss; ``old`` collects what version 0.1 counted wrong, ``None`` refuses it."""
    if depth > _DEEPEST:
        raise SchemaError(f"{where}: losses are nested more than {_DEEPEST} deep")
    if not isinstance(node, Mapping):
        raise SchemaError(f"{where}: {_short(node)}: expected an object")
    if "kind" not in node:
        raise SchemaError(f"{where}: missing field 'kind'")
    kind = node["kind"]
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise SchemaError(f"{where}: unknown kind {_short(kind)}")
    try:
        return reader(node, f"{where}.{kind}", depth, old)
    except SchemaError:
        raise
    except DiscreetError as error:
        raise SchemaError(f"{where}.{kind}: {error}") from error


def _read_atom(node: Mapping[str, Any], where: str, _depth: int, old: Reasons) -> Loss:
    atom, given = _ATOMS[node["kind"]], node
    names = tuple(argument for _, argument in _arguments(atom))
    if atom is FinitePair and "oriented" not in node:
        # Version 0.1 had no such field: it took the order as given.
        node = {**node, "oriented": False}
    values = _fields(node, where, ("kind", *names))
    exact = atom in (PureDP, ApproxDP)
    arguments: dict[str, Any] = {}
    for name in names:
        value = values[name]
        if exact and name != "relation":
            value = read_fraction(value, f"{where}.{name}")
        elif isinstance(value, list):
            value = tuple(value)
        elif not isinstance(value, (str, int, float)):
            raise SchemaError(f"{where}.{name}: {_short(value)}: expected a number or a word")
        arguments[name] = value
    if any(isinstance(value, tuple) for value in arguments.values()) != (
        atom in (RenyiDP, FinitePair)
    ):
        raise SchemaError(f"{where}: expected numbers, and lists only where the kind has them")
    loss = atom(**arguments)
    if old is not None and "oriented" not in given and loss.relation is Relation.REPLACE:
        _note_order(loss, old)
    return loss


def _note_order(loss: Loss, old: list[str]) -> None:
    """Note a finite pair whose two orders differ."""
    if isinstance(loss, FinitePair) and not worst_order(loss.p, loss.q).both_ways:
        old.append("a finite pair was read in one order only; the other one may cost more")


def _read_composition(node: Mapping[str, Any], where: str, depth: int, old: Reasons) -> Loss:
    parts = _fields(node, where, ("kind", "parts"))["parts"]
    if not isinstance(parts, list) or not parts:
        raise SchemaError(f"{where}.parts: {_short(parts)}: expected a list that is not empty")
    read = []
    for index, part in enumerate(parts):
        here = f"{where}.parts[{index}]"
        body = _fields(part, here, ("loss", "count"))
        count = _integer(body["count"], f"{here}.count")
        read.append((_read(body["loss"], f"{here}.loss", depth + 1, old), count))
        if old is not None and count > 1 and "oriented" not in body["loss"]:
            _note_order(read[-1][0], old)
    return compose(read)


def _read_poisson(node: Mapping[str, Any], where: str, depth: int, old: Reasons) -> Loss:
    body = _fields(node, where, ("kind", "base", "rate", "records"))
    base = _read(body["base"], f"{where}.base", depth + 1, old)
    records = _integer(body["records"], f"{where}.records")
    if old is not None:
        return _old_poisson(base, body["rate"], records, old)
    return PoissonSampled(base, body["rate"], records)


def _old_poisson(base: Loss, rate: float, records: int, old: list[str]) -> Loss:
    """The sample that 0.1 described, or a bound where 0.1 had none.

    Sampling never raises a hockey-stick divergence, which is convex: a group of records that is
    always there bounds any sample of it.
    """
    if rate == 1:
        return base.group(records)
    try:
        return PoissonSampled(base, rate, records)
    except NotApplicable:
        pass
    if records > 1:
        old.append(f"{records} sampled records of one unit were counted as one")
    try:
        return base.poisson(rate=rate).group(records)
    except NotApplicable:
        old.append("a sample was counted that no theorem gives; it is counted without sampling")
        return base.group(records)


def _read_subset(node: Mapping[str, Any], where: str, depth: int, old: Reasons) -> Loss:
    body = _fields(node, where, ("kind", "base", "sample", "population"))
    base = _read(body["base"], f"{where}.base", depth + 1, old)
    sample, population = body["sample"], body["population"]
    if old is not None and sample == population:
        return base
    if old is not None and isinstance(base, Gaussian | GDP) and base.mu > 40.0:
        old.append("a subset with very little noise was counted as if it cost nothing")
    return SampledWithoutReplacement(base, sample, population)


def _read_grouped(node: Mapping[str, Any], where: str, depth: int, old: Reasons) -> Loss:
    body = _fields(node, where, ("kind", "base", "size", "target"))
    base = _read(body["base"], f"{where}.base", depth + 1, old)
    size, target = _integer(body["size"], f"{where}.size"), body["target"]
    if old is not None and target == base.relation and size == 1:
        return base
    if old is not None and target != base.relation and size % 2:
        old.append("a replaced record was counted as one change; it is a removal and an addition")
        return base.group(2 * size, relation=target)
    return Grouped(base, size, target)


def _integer(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SchemaError(f"{where}: {_short(value)}: expected a positive integer")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


_READERS: dict[str, Callable[[Mapping[str, Any], str, int, Reasons], Loss]] = {
    **dict.fromkeys(_ATOMS, _read_atom),
    "Composition": _read_composition,
    "PoissonSampled": _read_poisson,
    "SampledWithoutReplacement": _read_subset,
    "Grouped": _read_grouped,
}
