"""Draft a schema from names, declared types and public facts; no cell is read.

The heading of a CSV file gives names, a Parquet file or a data frame names and types. A public
codebook, or whoever is asked, gives bounds and categories. What nobody declared stays open, and the
draft says so: such columns are learned for a share of the budget, or declared by hand.
"""

from __future__ import annotations

import csv
import datetime as dt
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from discreet import _validate
from discreet.data._cells import number_in_text
from discreet.data._columns import Boolean, Bounded, Categorical, Column, Date, Integer, Real
from discreet.data._readers import CsvInput, TableInput, open_columns
from discreet.data._schema import CsvFormat, Schema, column_from
from discreet.data._schema_learning import plan_schema
from discreet.errors import FileUnusable, InvalidValue, NotApplicable, SchemaError

Ask = Callable[[str, str], str]
"""Puts a question about a column (its name, or none) and returns the answer, perhaps empty."""

_KINDS = ("integer", "real", "date", "boolean", "categorical")
_OF_TYPE = {"numbers": "real", "truth values": "boolean", "times": "date"}
# What a name may say; the draft says that it was a guess.
_OF_NAME = (
    (r"date|birthday|_at$|^dob$", "date"),
    (r"^(is|has|was)_", "boolean"),
    (r"^(age|year|count|number|num|n)$|_(count|years|num)$|^num_", "integer"),
    (r"price|amount|income|salary|height|weight|rate|score|temp|length|size|cost", "real"),
)
_CODEBOOK = ("name", "type", "lower", "upper", "categories", "other", "missing")


@final
@dataclass(frozen=True)
class Draft:
    """A drafted schema, and what of it is a guess.

    Parameters
    ----------
    schema
        The schema; some of its columns may be open.
    guessed
        The columns whose type was guessed from the name.

    """

    schema: Schema
    guessed: tuple[str, ...] = ()

    def open_lines(self, *, epsilon: float = 1.0, share: float = 0.2) -> list[str]:
        """Say which columns are open, and what it would cost to learn them.

        Parameters
        ----------
        epsilon, share
            The budget of a training, and the share of it for the schema.

        Returns
        -------
        list of str
            Sentences.

        """
        names = self.schema.incomplete
        if not names:
            return ["the schema is complete: nothing has to be learned"]
        plan = plan_schema(self.schema, epsilon=epsilon * share, delta=1e-6)
        each = epsilon * share / len(names)
        spent = f"epsilon {epsilon * share:g} on them, {each:.2g} each; declared ones cost nothing"
        lines = [
            f"{len(names)} of {len(self.schema.columns)} columns are open: {', '.join(names)}",
            f"discreet train --epsilon {epsilon:g} --learn-schema {share:g} would spend {spent}",
        ]
        return lines + [
            f"{name}: a category that fewer than about {step.threshold} rows have stays unknown"
            for name, step in plan.categories.items()
        ]

    def to_toml(self) -> str:
        """Return the schema as TOML, with comments at what is a guess or open."""
        lines = []
        for line in self.schema.to_toml().splitlines():
            name = next((one for one in self.schema.columns if line == f"[{_section(one)}]"), None)
            if name in self.guessed:
                lines.append("# the type is a guess by the name: check it")
            if name in self.schema.incomplete:
                bounded = isinstance(self.schema.columns[name], Bounded)
                what = "bounds = [lower, upper]" if bounded else 'categories = ["...", "..."]'
                lines.append(f"# open: declare {what}, or learn it (--learn-schema)")
            lines.append(line)
        if self.schema.expected_rows is None:
            lines.insert(0, "# expected_rows = 10_000  # " + EXPECTED_ROWS)
        return "\n".join(lines) + "\n"


EXPECTED_ROWS = (
    "about how many rows, as anyone may know it; it sets step sizes and delta, never the noise"
)


def draft_schema(
    data: Any,
    *,
    codebook: str | Path | Mapping[str, Any] | None = None,
    target: str | None = None,
    person: str | None = None,
    rows_per_person: int | None = None,
    expected_rows: int | None = None,
    csv_format: CsvFormat | None = None,
    ask: Ask | None = None,
) -> Draft:
    """Draft a schema of a table from its names and declared types; no cell is read.

    Parameters
    ----------
    data
        The path of a CSV or Parquet file, or whatever :func:`~discreet.data.read_table` takes
        that has names.
    codebook
        Public facts: a mapping from names to the keys of a column (``type``, ``bounds``,
        ``categories``, ``other``, ``missing``), a JSON file of that, or a CSV file with the
        columns name, type, lower, upper, categories (apart by ``|``), other, missing.
    target, person, rows_per_person, expected_rows
        As for :class:`Schema`.
    csv_format
        How a CSV file is written, where it differs from the usual.
    ask
        Asks for what the codebook does not say; None leaves it open.

    Returns
    -------
    Draft
        The schema; ``to_toml`` marks what is open or was guessed.

    Raises
    ------
    InvalidValue
        If the heading looks like a record, or the codebook speaks of other columns.

    Examples
    --------
    >>> table = {"age": [38, 41], "ward": ["north", "south"]}
    >>> wards = {"type": "categorical", "categories": ["north", "south"]}
    >>> draft = draft_schema(table, codebook={"ward": wards})
    >>> draft.schema.incomplete, draft.guessed
    (('age',), ('age',))

    """
    form = CsvFormat() if csv_format is None else csv_format
    table = open_columns(data, form)
    names = [name for name in table.names() or () if name != person]
    _check_heading(table, names, form)
    known = _read_codebook(codebook)
    for name in known:
        if name not in names:
            raise InvalidValue("codebook", name, "names of columns of the table")
    kinds = table._kinds(names)
    columns: dict[str, Column] = {}
    guessed = []
    for name in names:
        if name in known:
            columns[name] = column_from(f"codebook.{name}", known[name])
            continue
        kind = _OF_TYPE.get(kinds.get(name) or "")
        if kind is None:
            kind = _guess(name)
            answer = "" if ask is None else _choice(ask, name, kind)
            if answer:
                kind = answer
            else:
                guessed.append(name)
        columns[name] = _ask_for(ask, name, kind, target=name == target)
    if expected_rows is None and ask is not None:
        expected_rows = _ask_for_rows(ask)
    if target is not None and target not in columns:
        raise InvalidValue("target", target, "the name of one of the columns")
    schema = Schema(
        columns,
        target=target,
        person=person,
        rows_per_person=rows_per_person,
        expected_rows=expected_rows,
        csv=form,
    )
    return Draft(schema, tuple(guessed))


def _check_heading(table: TableInput, names: list[str], form: CsvFormat) -> None:
    """Refuse a heading that may be a record; what it holds is not shown."""
    if not names:
        raise InvalidValue("data", table.title, "a table with columns beside the person")
    if not isinstance(table, CsvInput) or form.names is not None:
        return
    numbers = sum(number_in_text(name.encode()) == number_in_text(name.encode()) for name in names)
    if numbers or not all(names):
        raise InvalidValue(
            "data",
            table.title,
            "a first line of names; this one has numbers or empty cells, as a record has: say the "
            "names of the columns",
        )


def _guess(name: str) -> str:
    for pattern, kind in _OF_NAME:
        if re.search(pattern, name, re.IGNORECASE):
            return kind
    return "categorical"


def _section(name: str) -> str:
    text = Schema({name: Boolean()}).to_toml()
    return next(line for line in text.splitlines() if line.startswith("["))[1:-1]


# --- a codebook -------------------------------------------------------------------------------


def _read_codebook(codebook: str | Path | Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    if codebook is None:
        return {}
    if not isinstance(codebook, Mapping):
        path = Path(codebook)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError):
            raise FileUnusable("codebook", str(path), "a readable CSV or JSON file") from None
        if path.suffix.lower() != ".json":
            return _codebook_rows(text)
        try:
            codebook = json.loads(text)
        except ValueError:
            raise SchemaError(f"the codebook {path} is no JSON") from None
    if not isinstance(codebook, Mapping) or not all(
        isinstance(one, Mapping) for one in codebook.values()
    ):
        raise InvalidValue("codebook", type(codebook).__name__, "an object for each column")
    return {str(name): _with_dates(str(name), one) for name, one in codebook.items()}


def _with_dates(name: str, one: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a codebook says of a column, with the dates that JSON writes as texts."""
    found = dict(one)
    if found.get("type") == "date":
        if isinstance(found.get("bounds"), list):
            found["bounds"] = [_convert("date", str(end), name) for end in found["bounds"]]
        if "missing" in found:
            found["missing"] = _convert("date", str(found["missing"]), name)
    return found


def _codebook_rows(text: str) -> dict[str, dict[str, Any]]:
    reader = csv.DictReader(text.splitlines())
    unknown = [name for name in reader.fieldnames or () if name not in _CODEBOOK]
    if unknown or "name" not in (reader.fieldnames or ()):
        raise InvalidValue("codebook", unknown or "no names", "columns " + ", ".join(_CODEBOOK))
    found = {}
    for row in reader:
        said = {key: value.strip() for key, value in row.items() if key and (value or "").strip()}
        name = said.pop("name", "")
        kind = said.get("type", "categorical" if "categories" in said else "real")
        one: dict[str, Any] = {"type": kind}
        if "lower" in said or "upper" in said:
            one["bounds"] = [_convert(kind, said.get(end, ""), name) for end in ("lower", "upper")]
        if "categories" in said:
            one["categories"] = [part.strip() for part in said["categories"].split("|")]
        if "other" in said:
            one["other"] = said["other"]
        if "missing" in said:
            one["missing"] = _convert(kind, said["missing"], name)
        found[name] = one
    return found


def _convert(kind: str, text: str, name: str) -> Any:
    """Return a text of a codebook, or an answer, in the type that a column has."""
    try:
        if kind == "integer":
            return int(text.replace("_", ""))
        if kind == "real":
            return float(text)
        if kind == "date":
            return dt.date.fromisoformat(text)
        if kind == "boolean":
            return {"true": True, "yes": True, "false": False, "no": False}[text.lower()]
    except (ValueError, KeyError):
        raise InvalidValue(name, text, f"a value of type {kind}") from None
    return text


# --- questions --------------------------------------------------------------------------------


def _choice(ask: Ask, name: str, guess: str) -> str:
    while True:
        answer = ask(name, f"type, of {', '.join(_KINDS)} (empty: {guess})").strip().lower()
        if not answer or answer in _KINDS:
            return answer


def _ask_for(ask: Ask | None, name: str, kind: str, *, target: bool) -> Column:
    if kind == "boolean":
        return Boolean()
    if kind == "categorical":
        text = "" if ask is None else ask(name, "categories, apart by commas (empty: open)")
        listed = [part.strip() for part in text.split(",") if part.strip()]
        if not listed:
            return Categorical()
        return Categorical(listed, other=listed[0]) if target else Categorical(listed)
    sort: type[Any] = {"integer": Integer, "real": Real, "date": Date}[kind]
    while ask is not None:
        text = ask(name, "lower and upper bound, apart by a blank (empty: open)")
        if not text.strip():
            break
        try:
            lower, upper = (_convert(kind, part, name) for part in text.split())
            made: Column = sort(lower, upper)
        except (InvalidValue, NotApplicable, ValueError):
            continue
        return made
    unknown: Column = sort()
    return unknown


def _ask_for_rows(ask: Ask) -> int | None:
    while True:
        text = ask("", f"expected rows ({EXPECTED_ROWS}; empty: later)").strip()
        if not text:
            return None
        try:
            return _validate.integer("expected_rows", int(text.replace("_", "")), at_least=1)
        except (InvalidValue, ValueError):
            continue
