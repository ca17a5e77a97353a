"""The schema of a private table: everything about it that is public, in one frozen object.

A schema says which columns there are and what may stand in them, whom the guarantee protects (a
row, or a person, with a cap on the rows of each), what is to be predicted and roughly how many
rows there are. All of it is declared. Encoding, scaling, learners and certificates look at the
schema where other tools look at the data, which is what keeps them honest.

Schemas are read from TOML, strictly and with the path of the key in every error, and written to it.
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
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, final

from discreet import _validate
from discreet.data._columns import (
    Boolean,
    Bounded,
    Categorical,
    Column,
    Date,
    Integer,
    Labelled,
    Real,
)
from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.privacy import Loss, Relation, from_json, to_json

MOST_ROWS = 1 << 53
"""The most rows that may be declared: more are a slip of the pen, and no double would hold them."""

_VERSION = 1


@final
@dataclass(frozen=True)
class CsvFormat:
    """How a CSV file is written; public, as it decides what one record is.

    By default a line is a record, whatever the line holds: a quote that is never closed ends with
    its line, so no record can reach into another one. With ``quoted_newlines`` a quoted cell may
    hold line breaks, as RFC 4180 allows. A record is then what lies between two line breaks
    outside of quotes, and the guarantee is about those: one stray quote makes a single
    record of several. Declare it for files from a writer that closes its quotes.

    ``names`` are the columns of a file without a heading.
    """

    _: KW_ONLY
    delimiter: str = ","
    quoted_newlines: bool = False
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        _validate.one_of("delimiter", self.delimiter, (",", ";", "\t", "|", ":", " "))
        if not isinstance(self.quoted_newlines, bool):
            raise InvalidValue("quoted_newlines", self.quoted_newlines, "True or False")
        if self.names is not None:
            expected = "the distinct names of all columns of the file, in their order"
            if not isinstance(self.names, list | tuple) or not self.names:
                raise InvalidValue("names", self.names, expected)
            for name in self.names:
                _column_name("names", name)
            if len(set(self.names)) != len(self.names):
                raise InvalidValue("names", self.names, expected)
            object.__setattr__(self, "names", tuple(self.names))


@final
@dataclass(frozen=True)
class Learned:
    """What it cost to learn a part of a schema from the records.

    Parameters
    ----------
    loss
        The loss of the release that gave the bounds and categories.
    unit
        Whom that loss speaks of: ``"row"`` or ``"person"``.
    receipt
        The entry of the ledger that paid for it, or None where none was charged. Whoever learns
        from the same records by such a schema owes its loss, unless a receipt shows who paid.

    """

    loss: Loss
    unit: str = "row"
    receipt: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.loss, Loss):
            raise InvalidValue("learned.loss", self.loss, "a loss of discreet.privacy")
        _validate.one_of("learned.unit", self.unit, ("row", "person"))
        if self.receipt is not None and not isinstance(self.receipt, Mapping):
            raise InvalidValue("learned.receipt", self.receipt, "a receipt of a ledger, or None")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        receipt = None if self.receipt is None else dict(self.receipt)
        return {"loss": to_json(self.loss), "unit": self.unit, "receipt": receipt}

    @classmethod
    def from_json(cls, document: Any) -> Learned:
        """Return what :meth:`to_json` wrote; anything else raises SchemaError."""
        try:
            return cls(from_json(document["loss"]), document["unit"], document["receipt"])
        except (KeyError, TypeError, InvalidValue) as error:
            raise SchemaError(f"what a schema says of its cost cannot be read: {error}") from None


@final
@dataclass(frozen=True, eq=False)
class Schema:
    """Public facts about a private table.

    ``columns`` maps names to :class:`~discreet.data.Column` objects, in the order in which
    learners see them. ``target`` names the column to be predicted. ``person`` names the column
    of the file that says whose row it is (it is no feature and must not be among ``columns``),
    and ``rows_per_person`` caps how many rows of one person are used; without it the unit of
    privacy is the row. ``expected_rows`` is the declared order of magnitude of rows, a public
    guess. A categorical target must name one of its own categories as ``other``.

    ``learned`` says what it cost to learn bounds or categories from the records, where they were
    (:func:`~discreet.data.complete_schema`). It is written and read with the schema, and is no
    declaration: schemas that differ in it alone are equal.

    >>> from discreet.data import Categorical, Integer
    >>> schema = Schema(
    ...     {
    ...         "age": Integer(17, 90),
    ...         "smokes": Categorical(["yes", "no"]),
    ...         "ill": Categorical(["yes", "no"], other="no"),
    ...     },
    ...     target="ill",
    ...     expected_rows=10_000,
    ... )
    >>> list(schema.features), schema.task, schema.unit
    (['age', 'smokes'], 'classification', 'row')
    >>> schema.content_hash[:16]
    '0befa33cacfd4c9f'
    """

    columns: Mapping[str, Column]
    _: KW_ONLY
    target: str | None = None
    person: str | None = None
    rows_per_person: int | None = None
    expected_rows: int | None = None
    csv: CsvFormat = field(default_factory=CsvFormat)
    learned: Learned | None = None

    def __post_init__(self) -> None:
        _check_columns(self.columns)
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))
        if self.target is not None:
            _check_target(self.target, self.columns)
        if (self.person is None) != (self.rows_per_person is None):
            argument = "person" if self.person is None else "rows_per_person"
            raise InvalidValue(argument, None, "both person and rows_per_person, or neither")
        if self.person is not None:
            _column_name("person", self.person)
            if self.person in self.columns:
                expected = "a column of the file that is not among the columns to learn from"
                raise InvalidValue("person", self.person, expected)
            cap = _validate.integer(
                "rows_per_person", self.rows_per_person, at_least=1, at_most=MOST_ROWS
            )
            object.__setattr__(self, "rows_per_person", cap)
        if self.expected_rows is not None:
            rows = _validate.integer(
                "expected_rows", self.expected_rows, at_least=1, at_most=MOST_ROWS
            )
            object.__setattr__(self, "expected_rows", rows)
        if not isinstance(self.csv, CsvFormat):
            raise InvalidValue("csv", self.csv, "a CsvFormat")
        unnamed = [name for name in self.file_columns if name not in (self.csv.names or [name])]
        if unnamed:
            raise InvalidValue("csv.names", self.csv.names, f"names that include {unnamed[0]!r}")
        if self.learned is not None:
            self._check_learned(self.learned)

    def _check_learned(self, learned: object) -> None:
        if not isinstance(learned, Learned):
            raise InvalidValue("learned", learned, "a Learned, or None")
        if learned.unit == "row" and self.unit == "person":
            raise InvalidValue(
                "learned.unit",
                learned.unit,
                "person, because this schema protects persons: what was learned about single rows "
                "costs a person with several rows more; learn it again with the person declared",
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return self.content_hash == other.content_hash

    def __hash__(self) -> int:
        return hash(self.content_hash)

    def __deepcopy__(self, memo: object) -> Schema:
        return self  # nothing in it can change

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Schema.from_toml, (self.to_toml(),)

    @property
    def features(self) -> Mapping[str, Column]:
        """The columns without the target."""
        return {name: column for name, column in self.columns.items() if name != self.target}

    @property
    def task(self) -> str | None:
        """``"classification"``, ``"regression"``, or None without a target."""
        if self.target is None:
            return None
        labelled = isinstance(self.columns[self.target], Labelled)
        return "classification" if labelled else "regression"

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels of the target in the order of their codes."""
        column = None if self.target is None else self.columns[self.target]
        if not isinstance(column, Labelled):
            raise NotApplicable("the schema has no target with categories, so there are no classes")
        return column.labels

    @property
    def unit(self) -> str:
        """Whom the guarantee protects: ``"row"`` or ``"person"``."""
        return "row" if self.person is None else "person"

    @property
    def incomplete(self) -> tuple[str, ...]:
        """The columns whose bounds or categories are not declared."""
        return tuple(name for name, column in self.columns.items() if not column.complete)

    @property
    def file_columns(self) -> tuple[str, ...]:
        """The columns that a file must have."""
        return (*self.columns, *(() if self.person is None else (self.person,)))

    def require_complete(self) -> None:
        """Raise unless all bounds and categories are declared."""
        if self.incomplete:
            raise NotApplicable(
                "no bounds or categories are declared for "
                + ", ".join(map(repr, self.incomplete))
                + ": declare them, or learn them privately with complete_schema; "
                "they are not read off the data"
            )

    def unit_loss(self, loss: Loss) -> Loss:
        """Return what a loss about single rows means for the unit of privacy.

        A person owns at most ``rows_per_person`` rows of those that are used, so adding or
        removing a person is adding or removing that many rows, one after another (group privacy).
        Replacing a person may change the number of rows, which a loss under replace takes as
        public: it is refused; start from one under add_remove and use ``.group(2,
        relation="replace")`` on the result.
        """
        if not isinstance(loss, Loss):
            raise InvalidValue("loss", loss, "a loss of discreet.privacy")
        if self.rows_per_person is None:
            return loss
        if loss.relation is not Relation.ADD_REMOVE:
            raise NotApplicable(
                "a person has no fixed number of rows, so a loss about replaced rows says nothing "
                "about replaced persons; start from a loss under add_remove"
            )
        return loss if self.rows_per_person == 1 else loss.group(self.rows_per_person)

    def with_columns(self, columns: Mapping[str, Column]) -> Schema:
        """Return the schema with some of its columns declared anew."""
        unknown = [name for name in columns if name not in self.columns]
        if unknown:
            raise InvalidValue("columns", unknown, "names of columns of this schema")
        return replace(self, columns={**self.columns, **columns})

    def for_prediction(self) -> Schema:
        """Return the schema of a table to predict for: without target and persons."""
        return replace(self, columns=self.features, target=None, person=None, rows_per_person=None)

    def unpaid_loss(self) -> Loss | None:
        """Return what learning this schema cost, if no receipt shows that a ledger was charged.

        Whoever releases something else by this schema about the same records adds it to the loss
        of that release.
        """
        learned = self.learned
        return learned.loss if learned is not None and learned.receipt is None else None

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as plain values, in the shape of its TOML form."""
        content: dict[str, Any] = {}
        if self.target is not None:
            content["target"] = self.target
        if self.expected_rows is not None:
            content["expected_rows"] = self.expected_rows
        if self.person is not None:
            content["unit"] = {"person": self.person, "rows_per_person": self.rows_per_person}
        written = {"delimiter": self.csv.delimiter, "quoted_newlines": self.csv.quoted_newlines}
        if self.csv.names is not None:
            written["names"] = list(self.csv.names)
        if self.csv != CsvFormat():
            content["csv"] = written
        content["columns"] = {name: _column_dict(column) for name, column in self.columns.items()}
        if self.learned is not None:
            content["learned"] = self.learned.to_json()
        return content

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of everything declared, for certificates.

        Two schemas have the same hash if and only if they declare the same, in the same order of
        columns; it does not depend on how a TOML file is laid out.
        """
        content = self.to_dict()
        content.pop("learned", None)
        # Objects lose their order below; the order of columns and categories is content.
        content["columns"] = list(content["columns"].items())
        text = json.dumps(
            ["discreet.schema", _VERSION, content],
            sort_keys=True,
            ensure_ascii=True,
            separators=(",", ":"),
            allow_nan=False,
            default=dt.date.isoformat,
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def to_toml(self) -> str:
        """Return the schema as TOML text, which :meth:`from_toml` reads back."""
        content = self.to_dict()
        if self.learned is not None:
            # A loss is nested as deep as its algebra; its JSON text is one value.
            content["learned"] = {"json": json.dumps(content["learned"], sort_keys=True)}
        return write_toml(content)

    @classmethod
    def from_toml(cls, text: str) -> Schema:
        """Read a schema from TOML text; errors name the key."""
        return schema_from_toml(text)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Schema:
        """Read a schema from a TOML file."""
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except OSError as error:
            expected = f"a readable TOML file ({error.strerror})"
            raise InvalidValue("path", str(path), expected) from None
        except UnicodeDecodeError:
            raise InvalidValue("path", str(path), "a TOML file in UTF-8") from None
        return cls.from_toml(text)


def _column_name(argument: str, name: object) -> None:
    expected = "a name that is not empty, has no blanks around it and no control characters"
    if not isinstance(name, str) or not name or name != name.strip():
        raise InvalidValue(argument, name, expected)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidValue(argument, name, expected) from None
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise InvalidValue(argument, name, expected)


def _check_columns(columns: object) -> None:
    if not isinstance(columns, Mapping) or not columns:
        raise InvalidValue("columns", columns, "a mapping of at least one name to its column")
    for name, column in columns.items():
        _column_name("columns", name)
        if not isinstance(column, Column):
            expected = "Integer, Real, Date, Boolean or Categorical"
            raise InvalidValue(f"columns.{name}", column, expected)


def _check_target(target: object, columns: Mapping[str, Column]) -> None:
    if not isinstance(target, str) or target not in columns:
        raise InvalidValue("target", target, "the name of one of the columns")
    column = columns[target]
    if isinstance(column, Categorical) and column.hashed is not None:
        expected = "None: what is predicted has labels, and a group of a hash has none"
        raise InvalidValue(f"columns.{target}.hashed", column.hashed, expected)
    if isinstance(column, Categorical) and column.categories:
        for argument, value in (("other", column.other), ("missing", column.missing)):
            if value is not None and value not in column.categories:
                raise InvalidValue(
                    f"columns.{target}.{argument}",
                    value,
                    "one of the categories, as it is the target: what is no category must still "
                    "have a class",
                )


def _column_dict(column: Column) -> dict[str, Any]:
    content: dict[str, Any] = {"type": column.kind}
    if isinstance(column, Bounded):
        if column.complete:
            content["bounds"] = [column.lower, column.upper]
        if column.missing is not None:
            content["missing"] = column.missing
    elif isinstance(column, Boolean):
        content["missing"] = column.missing
        if column.rule is not None:
            content["rule"] = column.rule
    elif isinstance(column, Categorical):
        if column.hashed is not None:
            content["hashed"] = column.hashed
        elif column.categories is not None:
            content["categories"] = list(column.categories)
        content["other"] = column.other
        if column.missing is not None:
            content["missing"] = column.missing
    return content


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
    "boolean": ("missing", "rule"),
    "categorical": ("categories", "hashed", "other", "missing"),
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
    declared = {name: column_from(_path("columns", name), item) for name, item in columns.items()}
    form = _build_named("csv", lambda: CsvFormat(**written))

    def build() -> Schema:
        return Schema(
            declared,
            target=content.get("target"),
            expected_rows=content.get("expected_rows"),
            csv=form,
            learned=_read_learned(content["learned"]) if "learned" in content else None,
            **unit,
        )

    return _build_named(
        "", build, {"person": "unit.person", "rows_per_person": "unit.rows_per_person"}
    )


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


def column_from(path: str, content: object) -> Column:
    """Return the column that plain values declare, in the shape of a schema file."""
    declared = _table(path, content)
    kind = declared.get("type")
    if not isinstance(kind, str) or kind not in _COLUMN_KEYS:
        raise InvalidValue(f"{path}.type", kind, "one of " + ", ".join(_COLUMN_KEYS))
    _known_keys(path, declared, ("type", *_COLUMN_KEYS[kind]))
    missing = {key: declared[key] for key in ("missing",) if key in declared}
    if kind == "boolean":
        rule = {key: declared[key] for key in ("rule",) if key in declared}
        return _build_named(path, lambda: Boolean(**missing, **rule))
    if kind == "categorical":
        other = {key: declared[key] for key in ("other", "hashed") if key in declared}
        return _build_named(
            path, lambda: Categorical(declared.get("categories"), **other, **missing)
        )
    lower, upper = (
        _bounds(f"{path}.bounds", declared["bounds"])
        if "bounds" in declared
        else (
            None,
            None,
        )
    )
    return _build_named(path, lambda: _BOUNDED[kind](lower, upper, **missing))


def _read_learned(content: object) -> Learned:
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


def _build_named(
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

    def escape(character: str) -> str:
        if character in '"\\':
            return "\\" + character
        code = ord(character)
        return f"\\u{code:04X}" if code < 32 or code == 127 else character

    return '"' + "".join(map(escape, text)) + '"'
