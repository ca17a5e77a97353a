"""Receipts: entries that leave the ledger, to be checked without it.

A *receipt* holds one entry. Whoever keeps it can later ask the ledger, or an export of it,
whether that very entry is still on the chain (``Ledger.verify(receipts=[...])``), which also
finds a chain that was cut off at the end. An *export* holds the whole chain of a dataset and is
replayed by :func:`check_receipt` alone, without the ledger. Either can be signed by the keeper of
the ledger, with the key that signs certificates.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet._dsse import Envelope, is_envelope, read_envelope, read_statement, sign_statement
from discreet._json import canonical, read_json
from discreet.errors import DataCorrupt, InvalidValue, SchemaError
from discreet.ledger.entries import Entry, parse_entry, printable
from discreet.ledger.replay import Problem, Replay

__all__ = [
    "check_receipt",
    "export_of",
    "missing_from_chain",
    "read_document",
    "read_signed_document",
    "receipt_of",
    "sign_document",
]

RECEIPT = "discreet.ledger.receipt"
EXPORT = "discreet.ledger.export"
PREDICATE = "urn:discreet:ledger:1"
_VERSION = 1


def receipt_of(entry: Entry) -> dict[str, Any]:
    """One entry as a JSON object."""
    return {
        "schema": RECEIPT,
        "version": _VERSION,
        "hash": entry.hash,
        "entry": json.loads(entry.text),
    }


def export_of(dataset: str, entries: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """A whole chain as a JSON object; ``entries`` are texts with their hashes."""
    chain = [{"hash": hash_, "entry": json.loads(text)} for text, hash_ in entries]
    return {"schema": EXPORT, "version": _VERSION, "dataset": dataset, "chain": chain}


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


def check_receipt(
    document: Mapping[str, Any] | str, *, receipts: Iterable[Mapping[str, Any]] = ()
) -> list[Problem]:
    """What is wrong with a receipt or an export, found offline; nothing if the list is empty.

    For an export this replays the chain with fresh budgets, and asks that every one of
    ``receipts`` is on it. For a receipt it compares the entry with its hash. A document of
    another kind is a ``SchemaError``.
    """
    body = read_document(document) if isinstance(document, str) else document
    if not isinstance(body, Mapping):
        raise InvalidValue("document", printable(document), "a receipt or an export, as JSON")
    schema, fields = body.get("schema"), set(body)
    version = body.get("version")
    known = type(version) is int and version == _VERSION
    if not known or schema not in (RECEIPT, EXPORT):
        raise SchemaError(f"schema {schema!r}, version {version!r}: not a receipt")
    if schema == RECEIPT:
        if fields != {"schema", "version", "hash", "entry"}:
            raise SchemaError("receipt: the fields are not those of a receipt")
        return _check_entry(body)
    if fields != {"schema", "version", "dataset", "chain"} or not isinstance(body["chain"], list):
        raise SchemaError("receipt: the fields are not those of an export")
    replay = Replay(str(body["dataset"]))
    for position, link in enumerate(body["chain"]):
        if not isinstance(link, Mapping) or set(link) != {"hash", "entry"}:
            raise SchemaError(f"receipt: chain[{position}] is not an entry with its hash")
        try:
            text = canonical(link["entry"])
        except SchemaError as error:
            raise SchemaError(f"receipt: chain[{position}]: {error}") from None
        replay.feed(text, str(link["hash"]), position=position)
    if replay.genesis is None:
        return [Problem(replay.dataset, None, "the chain is empty")]
    return replay.problems + missing_from_chain(replay, receipts)


def _check_entry(receipt: Mapping[str, Any]) -> list[Problem]:
    try:
        entry = parse_entry(canonical(receipt["entry"]))
    except SchemaError as error:
        return [Problem("receipt", None, f"the entry cannot be read: {error}")]
    if entry.hash == receipt["hash"]:
        return []
    return [Problem(entry.dataset, entry.seq, "the entry does not have the hash of the receipt")]


def missing_from_chain(replay: Replay, receipts: Iterable[Mapping[str, Any]]) -> list[Problem]:
    """Receipts for this chain that are not on it."""
    problems = []
    for receipt in receipts:
        faults = check_receipt(receipt)
        if receipt.get("schema") != RECEIPT:
            raise SchemaError("receipt: expected the receipt of one entry")
        entry = None if faults else parse_entry(canonical(receipt["entry"]))
        if entry is None:
            problems += faults
        elif replay.genesis is None or entry.ledger != replay.genesis.ledger:
            problems.append(
                Problem(entry.dataset, entry.seq, "the receipt was issued by another ledger")
            )
        elif entry.dataset != replay.dataset:
            problems.append(Problem(entry.dataset, entry.seq, "the receipt is of another dataset"))
        elif entry.seq >= len(replay.hashes) or replay.hashes[entry.seq] != entry.hash:
            what = (
                "the receipt is intact, but its entry is no longer on the chain: "
                f"entries were removed or replaced (the chain has {len(replay.hashes)})"
            )
            problems.append(Problem(entry.dataset, entry.seq, what))
    return problems
