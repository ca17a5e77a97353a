"""Entries: facts as canonical JSON, each holding the hash of the one before it.

The hash of an entry is the SHA-256 of its text. The text names the ledger, the dataset, the
hash of the dataset's first entry (its *genesis*), the position and the previous hash, so an
entry cannot be changed, moved, removed or carried to another dataset unnoticed. Time is noted
but never decides anything: the order of a chain is its sequence, whatever the clock did.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from discreet.errors import InvalidValue, SchemaError

__all__ = [
    "ENTRY_SCHEMA",
    "KINDS",
    "NO_HASH",
    "Entry",
    "Head",
    "canonical",
    "hash_of",
    "name_of",
    "parse_entry",
    "parse_json",
]

ENTRY_SCHEMA = "discreet.ledger.entry"
KINDS = ("genesis", "budget", "charge", "outcome")
NO_HASH = ""
_VERSION = 1
_FIELDS = frozenset(
    ("schema", "version", "ledger", "dataset", "genesis", "seq", "previous", "kind", "at")
) | {"content"}
_LONGEST_NAME = 200


def canonical(value: object) -> str:
    r"""One text for one value: sorted names, no blanks, ASCII.

    >>> canonical({"b": [1, "é"], "a": None})
    '{"a":null,"b":[1,"\\u00e9"]}'
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def hash_of(text: str) -> str:
    """The SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def parse_json(text: str, where: str) -> Any:
    """Read JSON strictly: no field twice, no NaN."""

    def refuse(name: str) -> NoReturn:
        raise SchemaError(f"{where}: {name} is not a number of JSON")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen = dict(pairs)
        if len(seen) != len(pairs):
            raise SchemaError(f"{where}: a field is given twice")
        return seen

    try:
        return json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"{where} is not JSON: {error}") from None


@dataclass(frozen=True)
class Head:
    """Where a chain ends: what the next entry has to know."""

    ledger: str
    dataset: str
    genesis: str
    seq: int
    hash: str


@dataclass(frozen=True)
class Entry:
    """One fact on the chain, with the text that was hashed."""

    ledger: str
    dataset: str
    genesis: str
    seq: int
    previous: str
    kind: str
    at: str
    content: Mapping[str, Any]
    text: str
    hash: str

    @classmethod
    def follow(cls, head: Head, *, kind: str, at: str, content: Mapping[str, Any]) -> Entry:
        """The entry that comes after ``head``."""
        fields: dict[str, Any] = {
            "ledger": head.ledger,
            "dataset": head.dataset,
            "genesis": head.genesis,
            "seq": head.seq + 1,
            "previous": head.hash,
            "kind": kind,
            "at": at,
            "content": dict(content),
        }
        text = canonical({"schema": ENTRY_SCHEMA, "version": _VERSION, **fields})
        return cls(**fields, text=text, hash=hash_of(text))

    @property
    def head(self) -> Head:
        """The end of a chain whose last entry this is."""
        genesis = self.hash if self.kind == "genesis" else self.genesis
        return Head(self.ledger, self.dataset, genesis, self.seq, self.hash)


def parse_entry(text: str) -> Entry:
    """Read the text of an entry, or raise ``SchemaError``."""
    fields = parse_json(text, "entry")
    if not isinstance(fields, dict) or set(fields) != _FIELDS:
        raise SchemaError("entry: the fields are not those of an entry")
    if fields["schema"] != ENTRY_SCHEMA or fields["version"] != _VERSION:
        raise SchemaError(f"entry: schema {fields['schema']!r}, version {fields['version']!r}")
    words = ("ledger", "dataset", "genesis", "previous", "at")
    if (
        not all(isinstance(fields[name], str) for name in words)
        or type(fields["seq"]) is not int
        or fields["kind"] not in KINDS
        or not isinstance(fields["content"], dict)
    ):
        raise SchemaError("entry: a field has the wrong type")
    if canonical(fields) != text:
        raise SchemaError("entry: the text is not in canonical form")
    named = {name: fields[name] for name in (*words, "seq", "kind", "content")}
    return Entry(**named, text=text, hash=hash_of(text))


def name_of(argument: str, value: object) -> str:
    """A name that people can tell apart on a screen, or ``InvalidValue``."""
    if (
        not isinstance(value, str)
        or not value
        or value != value.strip()
        or not value.isprintable()
        or len(value) > _LONGEST_NAME
    ):
        raise InvalidValue(
            argument, value, f"a printable name of 1 to {_LONGEST_NAME} characters without margins"
        )
    return value
