"""Signed certificates: who answers for a document, until when, and for which use.

The statement inside the envelope names the certificate's file and every file that the certificate
names, each with its SHA-256, and holds the document with the issuer's block beside it. Learners
hold no keys: a person or an organisation signs what they have looked at.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet._dsse import (
    Envelope,
    TrustedKeys,
    read_date,
    read_envelope,
    read_statement,
    sign_statement,
)
from discreet._json import canonical, read_json
from discreet.errors import DataCorrupt, InvalidValue, SignatureInvalid

ENVELOPE = "certificate.dsse.json"
"""The name of the envelope, beside ``certificate.json``."""

PREDICATE = "urn:discreet:certificate:1"
_FILE = "certificate.json"


@final
@dataclass(frozen=True)
class Issuer:
    """Who answers for a certificate.

    ``date`` is the day of signing, ``valid_until`` the last day on which the signature counts,
    ``intended_use`` what the certificate is meant for.
    """

    who: str
    contact: str
    intended_use: str
    date: dt.date
    valid_until: dt.date

    def __post_init__(self) -> None:
        for name in ("who", "contact", "intended_use"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip() or not value.isprintable():
                raise InvalidValue(name, value, "one line of text")
        if self.valid_until < self.date:
            raise InvalidValue("valid_until", str(self.valid_until), f"{self.date} or later")

    def to_json(self) -> dict[str, str]:
        """Return the block as JSON."""
        return {one.name: str(getattr(self, one.name)) for one in fields(self)}

    @classmethod
    def from_json(cls, block: object) -> Issuer:
        """Read the block strictly."""
        names = [one.name for one in fields(cls)]
        if not isinstance(block, dict) or set(block) != set(names):
            raise DataCorrupt(f"the issuer's block must have the fields {', '.join(names)}")
        if not all(isinstance(value, str) for value in block.values()):
            raise DataCorrupt("the issuer's block holds something other than text")
        try:
            days = {name: read_date(name, block[name]) for name in ("date", "valid_until")}
            return cls(**{**block, **days})
        except InvalidValue as error:
            raise DataCorrupt(f"the issuer's block: {error}") from None


@final
@dataclass(frozen=True)
class SignedCertificate:
    """What an envelope says. Nothing of it is to be believed before the checks found no fault."""

    envelope: Envelope
    issuer: Issuer
    subjects: Mapping[str, str]
    document: dict[str, Any]

    def signature_faults(self, keys: TrustedKeys, *, today: dt.date | None = None) -> Iterator[str]:
        """Say why the signature does not count today for whoever trusts ``keys``."""
        day = dt.datetime.now(dt.UTC).date() if today is None else today
        try:
            keys.require_signature(self.envelope, today=day)
        except SignatureInvalid as error:
            yield str(error)
        if self.issuer.valid_until < day:
            yield f"it was valid until {self.issuer.valid_until}"
        # Clocks of signer and reader may be on either side of midnight.
        if self.issuer.date > day + dt.timedelta(days=1):
            yield f"it is dated {self.issuer.date}, which is still to come"

    def content_faults(
        self,
        document: Mapping[str, Any],
        files: Mapping[str, str],
        *,
        content: bytes | None = None,
    ) -> Iterator[str]:
        """Say what differs between what was signed and the document and files at hand.

        ``content`` are the bytes of ``certificate.json``, if that is the file at hand.
        """
        if _text(document) != _text(self.document):
            yield "the signed document is another one"
        if content is not None and hashlib.sha256(content).hexdigest() != self.subjects.get(_FILE):
            yield f"{_FILE} is not the file that was signed"
        if {**files, _FILE: ""} != {**self.subjects, _FILE: ""}:
            yield "the signed files are not those that the certificate names"


def sign_certificate(
    content: bytes, files: Mapping[str, str], issuer: Issuer, key: Ed25519PrivateKey
) -> Envelope:
    """Sign a certificate: the bytes of its file, and the SHA-256 of the files that it names."""
    subjects = {**files, _FILE: hashlib.sha256(content).hexdigest()}
    predicate = {"issuer": issuer.to_json(), "certificate": read_json(content, _FILE)}
    return sign_statement(subjects, PREDICATE, predicate, key)


def read_signed(content: str | bytes) -> SignedCertificate:
    """Read a signed certificate from the bytes of its envelope."""
    envelope = read_envelope(content)
    subjects, predicate = read_statement(envelope, PREDICATE)
    match predicate:
        case {"issuer": block, "certificate": dict(document)} if len(predicate) == 2:
            return SignedCertificate(envelope, Issuer.from_json(block), subjects, document)
        case _:
            raise DataCorrupt("the signed envelope holds no certificate with an issuer's block")


def files_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the files that a certificate names, with their SHA-256."""
    place = document if "files" in document else document.get("released", {})
    return dict(place.get("files", {}))


def _text(document: Mapping[str, Any]) -> str:
    return canonical(document)
