"""Entries: facts as canonical JSON, each holding the hash of the one before it.

The hash of an entry is the SHA-256 of its text. The text names the ledger, the dataset, the
hash of the dataset's first entry (its *genesis*), the position and the previous hash, so an
entry cannot be changed, moved, removed or carried to another dataset unnoticed. It also names
the *roll* of the ledger, a chain over the first entries of all datasets, so a dataset cannot be
removed while others have grown since it was opened. Time is noted but never decides anything:
the order of a chain is its sequence, whatever the clock did.

Entries of version 1 have no roll; they stay valid where they are.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet._dsse import Envelope, is_envelope, read_envelope, read_statement, sign_statement
from discreet._json import canonical, read_json
from discreet.errors import DataCorrupt, InvalidValue, SchemaError

ENTRY_SCHEMA = "discreet.ledger.entry"
KINDS = ("genesis", "budget", "charge", "outcome", "publication", "correction", "restored")
NO_HASH = ""
DIGEST = re.compile(r"[0-9a-f]{64}")
_VERSION = 2
_FIELDS = frozenset(
    ("schema", "version", "ledger", "dataset", "genesis", "seq", "previous", "kind", "at")
) | {"content"}
_LONGEST_NAME = 200
_LARGEST_PRINTED = 10_000  # bits; Python prints at most 4,300 digits
_ROLL = re.compile(r"(0|[1-9][0-9]{0,17}):([0-9a-f]{64}|)")


def hash_text(text: str) -> str:
    """The SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode("ascii")).hexdigest()


@dataclass(frozen=True)
class Roll:
    """How many datasets a ledger has opened, and a hash over their first entries in order."""

    count: int
    hash: str

    def append(self, genesis: str) -> Roll:
        """The roll when one more dataset has been opened, whose first entry has this hash."""
        return Roll(self.count + 1, hash_text(f"{self.hash}:{genesis}"))

    def as_text(self) -> str:
        """The roll as entries and the ledger keep it."""
        return f"{self.count}:{self.hash}"

    @classmethod
    def parse(cls, text: object) -> Roll:
        """Read what :meth:`as_text` wrote, or raise ``SchemaError``."""
        match = _ROLL.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise SchemaError("the roll of the datasets cannot be read")
        return cls(int(match[1]), match[2])


EMPTY_ROLL = Roll(0, NO_HASH)


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
    roll: Roll | None
    text: str
    hash: str

    @classmethod
    def follow(
        cls, head: Head, *, kind: str, at: str, content: Mapping[str, Any], roll: Roll
    ) -> Entry:
        """The entry that comes after ``head``, when the ledger's roll is ``roll``."""
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
        head_of_text = {"schema": ENTRY_SCHEMA, "version": _VERSION, "roll": roll.as_text()}
        text = canonical({**head_of_text, **fields})
        return cls(**fields, roll=roll, text=text, hash=hash_text(text))

    @property
    def head(self) -> Head:
        """The end of a chain whose last entry this is."""
        genesis = self.hash if self.kind == "genesis" else self.genesis
        return Head(self.ledger, self.dataset, genesis, self.seq, self.hash)


def parse_entry(text: str) -> Entry:
    """Read the text of an entry, or raise ``SchemaError``."""
    fields = read_json(text, "entry")
    if not isinstance(fields, dict) or set(fields) - {"roll"} != _FIELDS:
        raise SchemaError("entry: the fields are not those of an entry")
    version = fields["version"]
    if fields["schema"] != ENTRY_SCHEMA or type(version) is not int or not 1 <= version <= _VERSION:
        raise SchemaError(f"entry: schema {fields['schema']!r}, version {version!r}")
    if ("roll" in fields) is not (version > 1):
        raise SchemaError("entry: the roll belongs to version 2")
    words = ("ledger", "dataset", "genesis", "previous", "at")
    if (
        not all(isinstance(fields[name], str) for name in words)
        or type(fields["seq"]) is not int
        or not isinstance(fields["kind"], str)
        or fields["kind"] not in KINDS
        or not isinstance(fields["content"], dict)
    ):
        raise SchemaError("entry: a field has the wrong type")
    roll = Roll.parse(fields["roll"]) if version > 1 else None
    if canonical(fields) != text:
        raise SchemaError("entry: the text is not in canonical form")
    named = {name: fields[name] for name in (*words, "seq", "kind", "content")}
    return Entry(**named, roll=roll, text=text, hash=hash_text(text))


def check_name(argument: str, value: object) -> str:
    """Return a name that people can tell apart on a screen, or raise ``InvalidValue``."""
    if (
        not isinstance(value, str)
        or not value
        or value != value.strip()
        or not value.isprintable()
        or len(value) > _LONGEST_NAME
    ):
        expected = f"a printable name of 1 to {_LONGEST_NAME} characters without margins"
        raise InvalidValue(argument, printable(value), expected)
    return value


def printable(value: object) -> object:
    """The value itself, or words for it where Python refuses to print so large a number."""
    if isinstance(value, int) and value.bit_length() > _LARGEST_PRINTED:
        return f"an integer of {value.bit_length()} bits"
    return value


# --- receipts and exports ----------------------------------------------------------------

RECEIPT = "discreet.ledger.receipt"
EXPORT = "discreet.ledger.export"
PREDICATE = "urn:discreet:ledger:1"
DOCUMENT_VERSION = 1


def make_receipt(entry: Entry) -> dict[str, Any]:
    """One entry as a JSON object."""
    return {
        "schema": RECEIPT,
        "version": DOCUMENT_VERSION,
        "hash": entry.hash,
        "entry": json.loads(entry.text),
    }


def make_export(dataset: str, entries: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """A whole chain as a JSON object; ``entries`` are texts with their hashes."""
    chain = [{"hash": hash_, "entry": json.loads(text)} for text, hash_ in entries]
    return {"schema": EXPORT, "version": DOCUMENT_VERSION, "dataset": dataset, "chain": chain}


def read_document(text: str) -> Mapping[str, Any]:
    """Read a receipt or an export strictly, or raise ``SchemaError``."""
    document = read_json(text, "receipt")
    if not isinstance(document, dict):
        raise SchemaError("receipt: expected an object")
    return document


def sign_document(document: Mapping[str, Any], key: Ed25519PrivateKey) -> Envelope:
    """Sign a receipt or an export; the subject is its entry, or its last one, by name and hash."""
    return sign_statement(_subject(document), PREDICATE, document, key)


def read_signed_document(text: str) -> tuple[Mapping[str, Any], Envelope | None]:
    """Read a receipt or an export, and the envelope that it came in if it is signed.

    Whether the signature counts is for :class:`~discreet._dsse.TrustedKeys` to say.
    """
    document = read_document(text)
    if not is_envelope(document):
        return document, None
    envelope = read_envelope(text)
    subjects, inside = read_statement(envelope, PREDICATE)
    if not isinstance(inside, dict) or subjects != _subject(inside):
        raise DataCorrupt("the signed envelope holds no receipt, or one of another entry")
    return inside, envelope


def _subject(document: Mapping[str, Any]) -> dict[str, str]:
    match document:
        case {"schema": str(schema), "chain": [*_, link]} if schema == EXPORT:
            pass
        case _:
            link = document
    match link:
        case {"hash": str(hash_), "entry": {"dataset": dataset, "seq": seq}}:
            return {f"{dataset}/{seq}": hash_}
        case _:
            raise SchemaError("receipt: expected an entry with its hash, or a chain of them")


def check_flag(argument: str, value: object) -> bool:
    """Return a truth value; nothing else is taken for one."""
    if not isinstance(value, bool):
        raise InvalidValue(argument, printable(value), "True or False")
    return value


def check_clock(clock: object) -> Callable[[], object]:
    """Return what dates the entries."""
    if clock is None:
        return lambda: datetime.now(UTC)
    if not callable(clock):
        raise InvalidValue("clock", printable(clock), "a function that returns a datetime")
    return clock


def format_date(moment: object) -> str:
    """Return a moment of the clock as entries note it."""
    if not isinstance(moment, datetime):
        raise InvalidValue("clock", printable(moment), "a function that returns a datetime")
    try:
        return moment.astimezone(UTC).isoformat(timespec="microseconds")
    except (OverflowError, ValueError, OSError):
        raise InvalidValue("clock", moment, "a datetime that exists in UTC") from None
