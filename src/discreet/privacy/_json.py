"""Losses as JSON and back, by a strict and versioned schema.

>>> from discreet.privacy import Gaussian, PureDP, from_json, to_json
>>> to_json(PureDP("1/10"))["loss"]
{'kind': 'PureDP', 'epsilon': '1/10', 'relation': 'add_remove'}
>>> run = 100 * Gaussian(1.1).poisson(rate=0.01) + PureDP(0.1)
>>> from_json(to_json(run)) == run
True

A loss is written as the name of its class and its constructor arguments, and read by calling the
constructor: so nothing can be read that could not have been written in code, and a loss that is
defined elsewhere needs no reader of its own. Reading is strict, because a field that is skipped may
be a cost that is skipped: an unknown version, kind or field and a missing field raise
``SchemaError`` and are named. Exact rationals are strings (``"1/10"``); floats are JSON numbers,
which Python writes and reads without loss.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from fractions import Fraction
from typing import Any, NamedTuple

from discreet._json import read_json
from discreet.errors import DiscreetError, NotApplicable, SchemaError

# Each of them adds its losses to KINDS.
from discreet.privacy import (  # noqa: F401
    _allocation,
    _correlation,
    _distributed,
    _laplace,
    _selection,
    _shuffling,
)
from discreet.privacy._composition import Grouped, compose
from discreet.privacy._finite import FinitePair, worst_order
from discreet.privacy._gaussian import LARGEST_SAMPLED_MU
from discreet.privacy._loss import DEEPEST, KINDS, Loss, Relation
from discreet.privacy._sampling import PoissonSampled, SampledWithoutReplacement

# What version 0.1 counted wrong, where that is wanted.
Reasons = list[str] | None

SCHEMA = "discreet.loss"
VERSION = 1

# Longer numbers are refused before they are parsed: reading must not be a way to stall.
_LONGEST_FRACTION = 8_000
_FRACTION = re.compile(r"(0|[1-9][0-9]*)(?:/([1-9][0-9]*))?")


def to_json(loss: Loss) -> dict[str, Any]:
    """Return the loss as an object that :mod:`json` can write.

    Parameters
    ----------
    loss
        Any loss.

    Returns
    -------
    dict
        Schema, version and loss; :func:`from_json` reads it.

    Examples
    --------
    >>> from discreet.privacy import PureDP
    >>> sorted(to_json(PureDP(0.5)))
    ['loss', 'schema', 'version']
    """
    return {"schema": SCHEMA, "version": VERSION, "loss": _write(loss)}


def from_json(document: Mapping[str, Any] | str) -> Loss:
    """Return the loss that :func:`to_json` wrote.

    Parameters
    ----------
    document
        The object, or its text.

    Returns
    -------
    Loss
        For every loss, ``from_json(to_json(loss)) == loss``.

    Raises
    ------
    SchemaError
        If anything is missing, unknown, or refused by the constructor of the loss.

    Examples
    --------
    >>> from discreet.privacy import PureDP
    >>> from_json(to_json(2 * PureDP(0.5))) == 2 * PureDP(0.5)
    True
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

    Parameters
    ----------
    document
        The object, or its text.

    Returns
    -------
    OldLoss
        The loss, and the reason if 0.1 charged too little.

    Raises
    ------
    SchemaError
        If 0.1 could not have written it.

    Examples
    --------
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
    if KINDS.get(kind) is not type(loss) or not hasattr(loss, "__dataclass_fields__"):
        raise SchemaError(f"kind {kind!r} is no data class, so it has no form in JSON")
    body: dict[str, Any] = {"kind": kind}
    for argument, field in _arguments(type(loss)).items():
        value = getattr(loss, field.name)
        if value is not False:  # a flag is written only where it is set
            body[argument] = _plain(value)
    return body


def _arguments(kind: type[Loss]) -> dict[str, Field[Any]]:
    """Return the constructor arguments of a kind, each with the field that it sets."""
    names = getattr(kind, "argument_names", {})
    return {names.get(field.name, field.name): field for field in fields(kind)}  # type: ignore[arg-type]


def _plain(value: object) -> object:
    if isinstance(value, Loss):
        return _write(value)
    if isinstance(value, Fraction):
        return write_fraction(value)
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return [{"loss": _write(part), "count": count} for part, count in value]
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, str) else value


# --- reading -------------------------------------------------------------------------


def _fields(
    node: object, where: str, names: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Mapping[str, Any]:
    if not isinstance(node, Mapping):
        raise SchemaError(f"{where}: {_short(node)}: expected an object")
    for name in names:
        if name not in node and name not in optional:
            raise SchemaError(f"{where}: missing field {name!r}")
    for name in node:
        if name not in names:
            raise SchemaError(f"{where}: unknown field {name!r}")
    return node


def _read(node: object, where: str, depth: int, old: Reasons) -> Loss:
    """Read one loss; ``old`` collects what version 0.1 counted wrong, ``None`` refuses it."""
    if depth > DEEPEST:
        raise SchemaError(f"{where}: losses are nested more than {DEEPEST} deep")
    if not isinstance(node, Mapping):
        raise SchemaError(f"{where}: {_short(node)}: expected an object")
    if "kind" not in node:
        raise SchemaError(f"{where}: missing field 'kind'")
    name = node["kind"]
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None or not hasattr(kind, "__dataclass_fields__"):
        raise SchemaError(f"{where}: unknown kind {_short(name)}")
    where = f"{where}.{name}"
    arguments = _arguments(kind)
    flags = tuple(argument for argument, field in arguments.items() if field.default is False)
    body = _fields(node, where, ("kind", *arguments), flags)
    try:
        values = {
            argument: _read_value(field, body[argument], f"{where}.{argument}", depth, old)
            for argument, field in arguments.items()
            if argument in body
        }
        if old is not None and name in _OLD:
            return _OLD[name](values, old)
        return kind(**values)
    except SchemaError:
        raise
    except DiscreetError as error:
        raise SchemaError(f"{where}: {error}") from error


def _read_value(field: Field[Any], value: Any, where: str, depth: int, old: Reasons) -> Any:
    """Read one argument; the annotation of its field says what JSON it may be."""
    kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "")
    if kind == "Loss":
        return _read(value, where, depth + 1, old)
    if kind == "Fraction":
        return read_fraction(value, where)
    if kind.startswith("tuple"):
        if not isinstance(value, list):
            raise SchemaError(f"{where}: {_short(value)}: expected a list")
        if "Loss" in kind:
            return _read_parts(value, where, depth, old)
        return tuple(value)
    if not isinstance(value, (str, int, float)):
        raise SchemaError(f"{where}: {_short(value)}: expected a number or a word")
    return value


def _read_parts(
    parts: list[Any], where: str, depth: int, old: Reasons
) -> tuple[tuple[Loss, int], ...]:
    if not parts:
        raise SchemaError(f"{where}: {_short(parts)}: expected a list that is not empty")
    read = []
    for index, part in enumerate(parts):
        here = f"{where}[{index}]"
        body = _fields(part, here, ("loss", "count"))
        count = body["count"]
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise SchemaError(f"{here}.count: {_short(count)}: expected a positive integer")
        read.append((_read(body["loss"], f"{here}.loss", depth + 1, old), count))
        if old is not None and count > 1 and "oriented" not in body["loss"]:
            _note_order(read[-1][0], old)
    return tuple(read)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# --- what version 0.1 wrote ----------------------------------------------------------


def _note_order(loss: Loss, old: list[str]) -> None:
    """Note a finite pair whose two orders differ."""
    if isinstance(loss, FinitePair) and not worst_order(loss.p, loss.q).both_ways:
        old.append("a finite pair was read in one order only; the other one may cost more")


def _old_finite_pair(values: dict[str, Any], old: list[str]) -> Loss:
    # Version 0.1 had no field "oriented": it took the order as given.
    loss = FinitePair(**values)
    if "oriented" not in values and loss.relation is Relation.REPLACE:
        _note_order(loss, old)
    return loss


def _old_poisson(values: dict[str, Any], old: list[str]) -> Loss:
    """Return the sample that 0.1 described, or a bound where 0.1 had none.

    Sampling never raises a hockey-stick divergence, which is convex: a group of records that is
    always there bounds any sample of it.

    Examples
    --------
    >>> read_fraction("3/4", "the share")
    Fraction(3, 4)
    """
    base: Loss = values["base"]
    rate, records = values["rate"], values["records"]
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


def _old_subset(values: dict[str, Any], old: list[str]) -> Loss:
    base: Loss = values["base"]
    if values["sample"] == values["population"]:
        return base
    mu = base.gaussian_mu()
    if mu is not None and mu > LARGEST_SAMPLED_MU:
        old.append("a subset with very little noise was counted as if it cost nothing")
    return SampledWithoutReplacement(**values)


def _old_grouped(values: dict[str, Any], old: list[str]) -> Loss:
    base: Loss = values["base"]
    size, target = values["size"], values["target"]
    if target == base.relation and size == 1:
        return base
    if isinstance(size, int) and target != base.relation and size % 2:
        old.append("a replaced record was counted as one change; it is a removal and an addition")
        return base.group(2 * size, relation=target)
    return Grouped(base, size, target)


_OLD: dict[str, Callable[[dict[str, Any], list[str]], Loss]] = {
    "Composition": lambda values, _: compose(values["parts"]),
    "FinitePair": _old_finite_pair,
    "Grouped": _old_grouped,
    "PoissonSampled": _old_poisson,
    "SampledWithoutReplacement": _old_subset,
}
