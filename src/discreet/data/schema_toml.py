"""Schemas as TOML: strict reading with the path of the key in every error, and writing.

A schema file::

    target = "income"
    expected_rows = 30_000

    [unit]  # leave it out where the unit of privacy is a row
    person = "patient"
    rows_per_person = 4

    [csv]  # only for files that differ from the usual
    delimiter = ";"

    [columns.age]
    type = "integer"  # integer, real, date, boolean or categorical
    bounds = [17, 90]
    missing = 40

    [columns.income]
    type = "categorical"
    categories = ["<=50K", ">50K"]
    other = "<=50K"
"""

from __future__ import annotations

import datetime as dt
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from discreet.data.columns import Boolean, Categorical, Column, Date, Integer, Real
from discreet.data.schema import CsvFormat, Learned, Schema
from discreet.errors import InvalidValue, SchemaError

__all__ = ["schema_from_toml", "write_toml"]

Built = TypeVar("Built")

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BOUNDED: dict[str, type[Integer] | type[Real] | type[Date]] = {
    "integer": Integer,
    "real": Real,
    "date": Date,
}
_COLUMN_KEYS = {
    "integer": ("bounds", "missing"),
    "real": ("bounds", "missing"),
    "date": ("bounds", "missing"),
    "boolean": ("missing",),
    "categorical": ("categories", "other", "missing"),
}


def schema_from_toml(text: str) -> Schema:
    r"""Read a schema; unknown, missing and wrong keys raise and are named by their path.

    >>> schema_from_toml('[columns.age]\ntype = "integer"\nbounds = [90, 17]')
    Traceback (most recent call last):
    discreet.errors.InvalidValue: columns.age.upper = 17: expected a value above the lower bound 90
    """
    if not isinstance(text, str):
        raise InvalidValue("text", type(text).__name__, "the text of a TOML file")
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of 5,000 digits
        raise SchemaError(f"this schema is not valid TOML: {error}") from None
    _known_keys("", content, ("target", "expected_rows", "unit", "csv", "columns", "learned"))
    unit = _section("unit", content.get("unit", {}), ("person", "rows_per_person"))
    written = _section("csv", content.get("csv", {}), ("delimiter", "quoted_newlines", "names"))
    if "columns" not in content:
        raise SchemaError("the key columns is missing: a schema declares at least one column")
    columns = _table("columns", content["columns"])
    declared = {name: _column(_path("columns", name), item) for name, item in columns.items()}
    form = _named("csv", lambda: CsvFormat(**written))

    def build() -> Schema:
        return Schema(
            declared,
            target=content.get("target"),
            expected_rows=content.get("expected_rows"),
            csv=form,
            learned=_learned(content["learned"]) if "learned" in content else None,
            **unit,
        )

    return _named("", build, {"person": "unit.person", "rows_per_person": "unit.rows_per_person"})


def write_toml(content: Mapping[str, Any]) -> str:
    """Return the TOML text of nested plain values; tables follow the plain keys.

    >>> print(write_toml({"target": "a", "columns": {"a b": {"bounds": [0.5, 1.0]}}}), end="")
    target = "a"
    <BLANKLINE>
    [columns."a b"]
    bounds = [0.5, 1.0]
    """
    lines: list[str] = []
    _write_table(lines, "", content)
    return "\n".join(lines).lstrip("\n") + "\n"


def _column(path: str, content: object) -> Column:
    declared = _table(path, content)
    kind = declared.get("type")
    if not isinstance(kind, str) or kind not in _COLUMN_KEYS:
        raise InvalidValue(f"{path}.type", kind, "one of " + ", ".join(_COLUMN_KEYS))
    _known_keys(path, declared, ("type", *_COLUMN_KEYS[kind]))
    missing = {key: declared[key] for key in ("missing",) if key in declared}
    if kind == "boolean":
        return _named(path, lambda: Boolean(**missing))
    if kind == "categorical":
        other = {key: declared[key] for key in ("other",) if key in declared}
        return _named(path, lambda: Categorical(declared.get("categories"), **other, **missing))
    lower, upper = (
        _bounds(f"{path}.bounds", declared["bounds"])
        if "bounds" in declared
        else (
            None,
            None,
        )
    )
    return _named(path, lambda: _BOUNDED[kind](lower, upper, **missing))


def _learned(content: object) -> Learned:
    section = _section("learned", content, ("json",))
    try:
        document = json.loads(section["json"])
    except (KeyError, TypeError, ValueError, RecursionError):
        raise SchemaError("learned.json is not what a schema wrote about its cost") from None
    return Learned.from_json(document)


def _bounds(path: str, value: object) -> tuple[Any, Any]:
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidValue(path, value, "the two bounds, [lower, upper]")
    return value[0], value[1]


def _table(path: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValue(path, value, f"a table, [{path}]")
    return value


def _section(path: str, value: object, known: tuple[str, ...]) -> dict[str, Any]:
    section = _table(path, value)
    _known_keys(path, section, known)
    return section


def _known_keys(path: str, content: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in content:
        if key not in known:
            where = _path(path, key) if path else _key(key)
            raise SchemaError(f"{where} is not a key of a schema; known: " + ", ".join(known))


def _named(
    path: str, build: Callable[[], Built], renamed: Mapping[str, str] | None = None
) -> Built:
    """Build an object; an error about an argument names the key that carried it."""
    try:
        return build()
    except InvalidValue as error:
        name = (renamed or {}).get(error.argument, error.argument)
        where = f"{path}.{name}" if path else name
        raise InvalidValue(where, error.value, error.expected) from None


def _write_table(lines: list[str], path: str, content: Mapping[str, Any]) -> None:
    lines += [
        f"{_key(key)} = {_value(value)}"
        for key, value in content.items()
        if not isinstance(value, Mapping)
    ]
    for key, value in content.items():
        if isinstance(value, Mapping):
            inner = _path(path, key) if path else _key(key)
            if any(not isinstance(item, Mapping) for item in value.values()):
                lines += ["", f"[{inner}]"]
            _write_table(lines, inner, value)


def _path(path: str, key: str) -> str:
    return f"{path}.{_key(key)}"


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, dt.date):
        return value.isoformat()
    return repr(value)


def _text(text: str) -> str:
    """A basic string of TOML: quotes, backslashes and control characters are escaped."""

    def escaped(character: str) -> str:
        if character in '"\\':
            return "\\" + character
        code = ord(character)
        return f"\\u{code:04X}" if code < 32 or code == 127 else character

    return '"' + "".join(map(escaped, text)) + '"'
