"""Signatures in DSSE envelopes, made and checked with Ed25519 keys.

DSSE (Dead Simple Signing Envelope, version 1.0.0 of the secure-systems-lab protocol) signs bytes
together with their type. The payload here is an in-toto Statement v1: files by their SHA-256, and
a document about them. A signature is checked over the payload's own bytes, which are never
serialised again. The ``keyid`` of an envelope is a hint; it decides nothing.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from discreet._json import read_json
from discreet.errors import (
    DataCorrupt,
    FileUnusable,
    InvalidValue,
    SchemaError,
    SignatureInvalid,
)

__all__ = [
    "IN_TOTO",
    "Envelope",
    "PublicKey",
    "TrustedKeys",
    "encode_for_signing",
    "is_envelope",
    "key_id",
    "read_date",
    "read_envelope",
    "read_private_key",
    "read_public_key",
    "read_revoked",
    "read_statement",
    "revoke_key",
    "sign_payload",
    "sign_statement",
    "write_key_pair",
]

IN_TOTO = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
REVOKED = "discreet.revoked_keys"
_URL_SAFE = str.maketrans("-_", "+/")
_HEADER = re.compile(r"^Valid-Until: (.*)$", re.MULTILINE)


def encode_for_signing(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that are signed: type and payload, each with its length.

    >>> encode_for_signing("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def key_id(key: Ed25519PublicKey) -> str:
    """Return the fingerprint of a public key: the SHA-256 of its DER form, in hexadecimal."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).hexdigest()


@final
@dataclass(frozen=True)
class PublicKey:
    """A public key, with the last day on which it counts if its file names one."""

    key: Ed25519PublicKey
    valid_until: dt.date | None = None

    @property
    def id(self) -> str:
        """The fingerprint."""
        return key_id(self.key)


@final
@dataclass(frozen=True)
class Envelope:
    """A payload with its type and signatures, each a hint of the key and the signature itself."""

    payload: bytes
    payload_type: str
    signatures: tuple[tuple[str, bytes], ...]

    def with_signature(self, key: Ed25519PrivateKey) -> Envelope:
        """Return the same envelope with one more signature."""
        hint = key_id(key.public_key())
        if any(name == hint for name, _ in self.signatures):
            raise InvalidValue("key", hint, "a key that has not signed this envelope yet")
        signature = key.sign(encode_for_signing(self.payload_type, self.payload))
        return replace(self, signatures=(*self.signatures, (hint, signature)))

    def keys_that_signed(self, keys: Iterable[PublicKey]) -> list[PublicKey]:
        """Return those of ``keys`` that made one of the signatures, each key once."""
        signed = encode_for_signing(self.payload_type, self.payload)
        unique = {key.id: key for key in keys}
        return [key for key in unique.values() if self._is_signed_by(key.key, signed)]

    def _is_signed_by(self, key: Ed25519PublicKey, signed: bytes) -> bool:
        for _, signature in self.signatures:
            with suppress(InvalidSignature):
                key.verify(signature, signed)
                return True
        return False

    def to_json(self) -> dict[str, Any]:
        """Return the envelope as other tools read it."""
        return {
            "payloadType": self.payload_type,
            "payload": base64.b64encode(self.payload).decode(),
            "signatures": [
                {"keyid": hint, "sig": base64.b64encode(signature).decode()}
                for hint, signature in self.signatures
            ],
        }


@final
@dataclass(frozen=True)
class TrustedKeys:
    """The public keys that somebody trusts, and the reasons why some were revoked."""

    keys: Sequence[PublicKey]
    revoked: Mapping[str, str] = field(default_factory=dict)

    def require_signature(self, envelope: Envelope, *, today: dt.date | None = None) -> PublicKey:
        """Return a trusted key that signed ``envelope`` and counts today, or say why none does."""
        day = dt.datetime.now(dt.UTC).date() if today is None else today
        found = envelope.keys_that_signed(self.keys)
        refused = []
        # Of a key that was given twice, the earlier last day counts.
        ends: dict[str, dt.date] = {}
        for key in self.keys:
            if key.valid_until is not None:
                ends[key.id] = min(key.valid_until, ends.get(key.id, key.valid_until))
        for key in found:
            if key.id in self.revoked:
                refused.append(f"the key {key.id} was revoked: {self.revoked[key.id]}")
            elif key.id in ends and ends[key.id] < day:
                refused.append(f"the key {key.id} expired after {ends[key.id]}")
            else:
                return key
        if refused:
            raise SignatureInvalid("; ".join(refused))
        given = {key.id for key in self.keys}
        named = [hint for hint, _ in envelope.signatures]
        if given.intersection(named):
            which = ", ".join(sorted(given.intersection(named)))
            raise SignatureInvalid(
                f"the signature is not one of the key {which} for this content: "
                "one of the two was changed"
            )
        raise SignatureInvalid(
            f"signed by {', '.join(hint or 'an unnamed key' for hint in named)}, "
            f"not by {' or '.join(sorted(given)) or 'any key: none was given'}"
        )


def sign_payload(payload: bytes, payload_type: str, key: Ed25519PrivateKey) -> Envelope:
    """Sign bytes of a type."""
    return Envelope(payload, payload_type, ()).with_signature(key)


def sign_statement(
    subjects: Mapping[str, str],
    predicate_type: str,
    predicate: Mapping[str, Any],
    key: Ed25519PrivateKey,
) -> Envelope:
    """Sign a document about files; ``subjects`` maps their names to their SHA-256."""
    if not subjects:
        raise InvalidValue("subjects", dict(subjects), "at least one file with its SHA-256")
    body = {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": subjects[name]}} for name in subjects],
        "predicateType": predicate_type,
        "predicate": predicate,
    }
    return sign_payload(json.dumps(body, allow_nan=False).encode(), IN_TOTO, key)


def read_statement(envelope: Envelope, predicate_type: str) -> tuple[dict[str, str], Any]:
    """Return the files of a statement, name to SHA-256, and its document.

    Reading says nothing about who signed; see :meth:`TrustedKeys.require_signature`.
    """
    if envelope.payload_type != IN_TOTO:
        raise _damage_error(f"holds {envelope.payload_type!r}, not {IN_TOTO!r}")
    body = _read_json(envelope.payload, "its payload")
    if not isinstance(body, dict) or body.get("_type") != STATEMENT:
        raise _damage_error(f"its payload is no statement of type {STATEMENT}")
    if body.get("predicateType") != predicate_type:
        raise _damage_error(
            f"its statement is of type {body.get('predicateType')!r}, not {predicate_type!r}"
        )
    subjects: dict[str, str] = {}
    listed = body.get("subject")
    for one in listed if isinstance(listed, list) else []:
        match one:
            case {"name": str(name), "digest": {"sha256": str(digest)}} if name not in subjects:
                subjects[name] = digest
            case _:
                raise _damage_error("a subject has no name or no SHA-256 of its own")
    if not subjects:
        raise _damage_error("its statement names no subject")
    return subjects, body.get("predicate")


def is_envelope(document: object) -> bool:
    """Whether a JSON document is an envelope rather than what an envelope holds."""
    return isinstance(document, dict) and {"payload", "payloadType"} <= set(document)


def read_envelope(content: str | bytes) -> Envelope:
    """Read an envelope; one that was cut short or damaged is refused."""
    body = _read_json(content, "it")
    match body:
        case {"payload": str(payload), "payloadType": str(kind), "signatures": [*listed]} if listed:
            signatures = [_read_signature(one) for one in listed]
            return Envelope(_read_base64(payload, "payload"), kind, tuple(signatures))
        case _:
            raise _damage_error("payload, payloadType and at least one signature must be there")


def _read_signature(one: object) -> tuple[str, bytes]:
    match one:
        case {"sig": str(signature)} if isinstance(one, dict):
            hint = one.get("keyid")
            return hint if isinstance(hint, str) else "", _read_base64(signature, "signature")
        case _:
            raise _damage_error("a signature has no field sig")


def _read_base64(text: str, what: str) -> bytes:
    # Signers may use either alphabet, and verifiers must accept either.
    try:
        return base64.b64decode(text.translate(_URL_SAFE), validate=True)
    except (binascii.Error, ValueError):
        raise _damage_error(f"its {what} is not base64") from None


def _read_json(content: str | bytes, what: str) -> Any:
    try:
        return read_json(content, what)
    except SchemaError as error:
        raise _damage_error(str(error)) from None


def _damage_error(reason: str) -> DataCorrupt:
    return DataCorrupt(f"the signed envelope is cut short or damaged: {reason}")


def write_key_pair(
    private: str | Path,
    public: str | Path,
    *,
    passphrase: bytes | None = None,
    valid_until: dt.date | None = None,
) -> PublicKey:
    """Make a key and write both halves; the private one is readable by its owner alone.

    Existing files are never replaced: a key that is lost cannot be made again.
    """
    if passphrase == b"":
        raise InvalidValue("passphrase", "", "at least one character, or no passphrase")
    key = Ed25519PrivateKey.generate()
    lock: serialization.KeySerializationEncryption = (
        serialization.NoEncryption()
        if passphrase is None
        else serialization.BestAvailableEncryption(passphrase)
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, lock)
    made = PublicKey(key.public_key(), valid_until)
    shown = made.key.public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    header = f"Key: {made.id}\n" + (f"Valid-Until: {valid_until}\n" if valid_until else "")
    written: list[Path] = []
    try:
        for place, content, mode in (
            (Path(private), secret, 0o600),
            (Path(public), header.encode() + shown, 0o644),
        ):
            try:
                handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            except FileExistsError:
                raise FileUnusable("out", str(place), "a name that is not taken yet") from None
            except OSError as error:
                expected = f"a file that can be written ({error.strerror})"
                raise FileUnusable("out", str(place), expected) from None
            written.append(place)
            _write_and_sync(handle, content)
    except BaseException:
        for place in written:
            place.unlink(missing_ok=True)
        raise
    return made


def _write_and_sync(handle: int, content: bytes) -> None:
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def read_private_key(path: str | Path, *, passphrase: bytes | None = None) -> Ed25519PrivateKey:
    """Read the private half of a key."""
    content = _read_file("key", path)
    try:
        key = serialization.load_pem_private_key(content, passphrase)
    except TypeError:
        expected = (
            "a key without a passphrase"
            if passphrase is not None
            else "a passphrase too: this key has one"
        )
        raise InvalidValue("key", str(path), expected) from None
    except (ValueError, UnsupportedAlgorithm):
        if b"ENCRYPTED" in content and passphrase is not None:
            raise InvalidValue("key", str(path), "the passphrase of this key") from None
        expected = "the private half of a key, as discreet certificate keygen writes it"
        raise FileUnusable("key", str(path), expected) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidValue("key", str(path), "an Ed25519 key")
    return key


def read_public_key(path: str | Path) -> PublicKey:
    """Read the public half of a key."""
    content = _read_file("key", path)
    if b"PRIVATE KEY" in content:
        raise InvalidValue("key", str(path), "the public half: keep the private one to yourself")
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        expected = "the public half of a key, as discreet certificate keygen writes it"
        raise FileUnusable("key", str(path), expected) from None
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidValue("key", str(path), "an Ed25519 key")
    found = _HEADER.search(content.decode("utf-8", "replace"))
    return PublicKey(key, None if found is None else read_date("key", found.group(1)))


def _read_file(argument: str, path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such name is possible"
        raise FileUnusable(argument, str(path), f"a readable file ({reason})") from None


def read_date(argument: str, text: str) -> dt.date:
    """Read a day such as 2027-12-31."""
    try:
        return dt.date.fromisoformat(text.strip())
    except ValueError:
        raise InvalidValue(argument, text, "a day such as 2027-12-31") from None


def read_revoked(path: str | Path) -> dict[str, str]:
    """Return the revoked keys of a list: fingerprint to day and reason, as one text."""
    content = _read_file("revoked", path)
    expected = "a list of revoked keys, as discreet certificate revoke writes it"
    try:
        body = _read_json(content, "the list")
    except DataCorrupt:
        raise FileUnusable("revoked", str(path), expected) from None
    match body:
        case {"schema": str(schema), "version": int(version), "keys": dict(keys)} if (
            schema,
            repr(version),
        ) == (REVOKED, "1") and all(isinstance(reason, str) for reason in keys.values()):
            return {fingerprint.strip().lower(): reason for fingerprint, reason in keys.items()}
        case _:
            raise FileUnusable("revoked", str(path), expected)


def revoke_key(path: str | Path, key: PublicKey, reason: str) -> None:
    """Add a key to a list of revoked keys; the list is made if there is none."""
    target = Path(path)
    if not reason.strip():
        raise InvalidValue("reason", reason, "why the key must no longer be trusted")
    keys = read_revoked(target) if target.exists() else {}
    today = dt.datetime.now(dt.UTC).date()
    keys.setdefault(key.id, f"{today}, {' '.join(reason.split())}")
    body = json.dumps({"schema": REVOKED, "version": 1, "keys": keys}, indent=2) + "\n"
    draft = target.with_name(f".{target.name[:64]}.{secrets.token_hex(8)}")
    try:
        _write_and_sync(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), body.encode())
        draft.replace(target)
    except OSError as error:
        expected = f"a file that can be written ({error.strerror})"
        raise FileUnusable("revoked", str(path), expected) from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
