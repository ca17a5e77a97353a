"""DSSE envelopes and keys, held against vectors and envelopes that others wrote."""

import base64
import datetime as dt
import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from discreet._dsse import (
    IN_TOTO,
    Envelope,
    PublicKey,
    TrustedKeys,
    encode_for_signing,
    read_envelope,
    read_private_key,
    read_public_key,
    read_revoked,
    read_statement,
    revoke_key,
    sign_payload,
    sign_statement,
    write_key_pair,
)
from discreet.errors import DataCorrupt, FileUnusable, InvalidValue, SignatureInvalid

RECORDED = Path(__file__).parent / "recorded"
VECTORS: dict[str, Any] = json.loads((RECORDED / "dsse_vectors.json").read_text(encoding="utf-8"))
TODAY = dt.date(2026, 11, 18)


def public(name: str) -> PublicKey:
    raw = bytes.fromhex(VECTORS["keys"][name]["public"])
    return PublicKey(Ed25519PublicKey.from_public_bytes(raw))


def private(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["keys"][name]["seed"]))


# --- what others wrote --------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda one: one["id"])
def test_every_vector_of_the_protocol_is_accepted_or_rejected_as_it_says(
    vector: dict[str, Any],
) -> None:
    envelope = read_envelope(json.dumps(vector["envelope"]))
    encoded = encode_for_signing(envelope.payload_type, envelope.payload).hex()
    assert (encoded == vector["pae"]) == (vector["id"] != "payload-type-swapped")
    signed = envelope.keys_that_signed([public(name) for name in vector["trustedKeys"]])
    supported = envelope.payload_type in vector["supportedPayloadTypes"]
    accepted = supported and len(signed) >= vector["threshold"]
    assert ("accept" if accepted else "reject") == vector["expect"]


def test_we_sign_the_vectors_with_the_same_bytes() -> None:
    made = [one for one in VECTORS["vectors"] if one["expect"] == "accept"]
    for vector in made:
        theirs = read_envelope(json.dumps(vector["envelope"]))
        ours = Envelope(theirs.payload, theirs.payload_type, ())
        for name in vector["trustedKeys"]:
            ours = ours.with_signature(private(name))
        assert [one for _, one in ours.signatures] == [one for _, one in theirs.signatures]


def test_the_example_of_the_protocol_has_our_encoding() -> None:
    # Its key is of another kind, so only the bytes that are signed are ours.
    example = VECTORS["example"]
    encoded = encode_for_signing(example["payloadType"], example["body"].encode())
    assert encoded == example["pae"].encode()
    x, y = (int(example["p256"][name]) for name in "xy")
    key = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    envelope = read_envelope(json.dumps(example["envelope"]))
    assert envelope.payload == b"hello world"
    [(_, raw)] = envelope.signatures
    halves = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
    key.verify(utils.encode_dss_signature(*halves), encoded, ec.ECDSA(hashes.SHA256()))
    with pytest.raises(InvalidSignature):
        key.verify(utils.encode_dss_signature(*halves), encoded + b" ", ec.ECDSA(hashes.SHA256()))


def test_an_envelope_of_securesystemslib_around_a_statement_of_in_toto_is_read() -> None:
    envelope = read_envelope((RECORDED / "securesystemslib.dsse.json").read_bytes())
    assert TrustedKeys([public("A")]).require_signature(envelope) == public("A")
    subjects, predicate = read_statement(envelope, "urn:discreet:certificate:1")
    assert subjects == {"model.npz": "ab" * 32}
    assert predicate["certificate"] == {"epsilon": 1.5}


# --- what was changed is refused ----------------------------------------------------------


def signed() -> Envelope:
    subjects = {"model.npz": "12" * 32}
    return sign_statement(subjects, "urn:example:1", {"epsilon": 1.0}, private("A"))


def test_a_statement_comes_back_as_it_was_signed() -> None:
    envelope = read_envelope(json.dumps(signed().to_json()))
    assert envelope == signed()
    assert envelope.payload_type == IN_TOTO
    subjects, predicate = read_statement(envelope, "urn:example:1")
    assert (subjects, predicate) == ({"model.npz": "12" * 32}, {"epsilon": 1.0})
    with pytest.raises(DataCorrupt, match="of type 'urn:example:1', not 'urn:example:2'"):
        read_statement(envelope, "urn:example:2")


def test_every_changed_byte_of_the_payload_breaks_the_signature() -> None:
    envelope, trusted = signed(), TrustedKeys([public("A")])
    for at in range(len(envelope.payload)):
        content = bytearray(envelope.payload)
        content[at] ^= 1
        forged = Envelope(bytes(content), envelope.payload_type, envelope.signatures)
        with pytest.raises(SignatureInvalid, match="one of the two was changed"):
            trusted.require_signature(forged)


def test_the_same_document_written_otherwise_is_not_what_was_signed() -> None:
    # A verifier that serialised the payload again would accept this one.
    envelope = signed()
    rewritten = json.dumps(json.loads(envelope.payload), indent=1).encode()
    forged = Envelope(rewritten, envelope.payload_type, envelope.signatures)
    assert read_statement(forged, "urn:example:1") == read_statement(envelope, "urn:example:1")
    with pytest.raises(SignatureInvalid):
        TrustedKeys([public("A")]).require_signature(forged)


def test_an_envelope_that_was_cut_short_is_damaged_wherever_it_was_cut() -> None:
    text = json.dumps(signed().to_json())
    for at in range(len(text)):
        with pytest.raises(DataCorrupt, match="cut short or damaged"):
            read_envelope(text[:at])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "must be there"),
        ("null", "must be there"),
        ('{"payload": "", "payloadType": "x", "signatures": []}', "at least one signature"),
        ('{"payload": "", "payloadType": "x", "signatures": [{}]}', "no field sig"),
        ('{"payload": "", "payloadType": "x", "signatures": [3]}', "no field sig"),
        ('{"payload": "a", "payloadType": "x", "signatures": [{"sig": ""}]}', "not base64"),
        ('{"payload": "\\u00e9", "payloadType": "x", "signatures": [{"sig": ""}]}', "not base64"),
        ('{"payload": "", "payload": "", "payloadType": "x", "signatures": []}', "twice"),
        ("[" * 100_000, "not JSON"),
        ('{"payload": NaN}', "not JSON"),
        ('{"payload": 1e999}', "not JSON"),
    ],
)
def test_an_envelope_of_another_shape_is_damaged(text: str, reason: str) -> None:
    with pytest.raises(DataCorrupt, match=reason):
        read_envelope(text)


@pytest.mark.parametrize(
    "payload",
    [
        b"no JSON",
        b"\xff",
        b"[]",
        b'{"_type": "https://in-toto.io/Statement/v0.1"}',
        b'{"_type": "https://in-toto.io/Statement/v1", "predicateType": "urn:example:1"}',
        (
            b'{"_type": "https://in-toto.io/Statement/v1", "predicateType": "urn:example:1",'
            b' "subject": [{"name": "a", "digest": {"md5": "1"}}]}'
        ),
        (
            b'{"_type": "https://in-toto.io/Statement/v1", "predicateType": "urn:example:1",'
            b' "subject": [{"name": "a", "digest": {"sha256": "1"}},'
            b' {"name": "a", "digest": {"sha256": "2"}}]}'
        ),
    ],
)
def test_a_payload_that_is_no_statement_is_refused(payload: bytes) -> None:
    with pytest.raises(DataCorrupt):
        read_statement(sign_payload(payload, IN_TOTO, private("A")), "urn:example:1")
    with pytest.raises(DataCorrupt, match="text/plain"):
        read_statement(sign_payload(payload, "text/plain", private("A")), "urn:example:1")


def test_a_statement_needs_a_subject() -> None:
    with pytest.raises(InvalidValue, match="at least one file"):
        sign_statement({}, "urn:example:1", {}, private("A"))


# --- keys -----------------------------------------------------------------------------------


def test_a_wrong_key_is_named_beside_the_right_one() -> None:
    with pytest.raises(SignatureInvalid) as refusal:
        TrustedKeys([public("B")]).require_signature(signed())
    assert public("A").id in str(refusal.value)
    assert f"not by {public('B').id}" in str(refusal.value)


def test_a_key_id_that_lies_decides_nothing() -> None:
    envelope = signed()
    [(_, signature)] = envelope.signatures
    lying = Envelope(envelope.payload, envelope.payload_type, ((public("B").id, signature),))
    assert TrustedKeys([public("A")]).require_signature(lying) == public("A")
    with pytest.raises(SignatureInvalid):
        TrustedKeys([public("B")]).require_signature(lying)


def test_an_expired_key_counts_until_its_last_day() -> None:
    key = PublicKey(public("A").key, valid_until=TODAY)
    trusted = TrustedKeys([key])
    assert trusted.require_signature(signed(), today=TODAY) == key
    with pytest.raises(SignatureInvalid, match="expired after 2026-11-18"):
        trusted.require_signature(signed(), today=TODAY + dt.timedelta(days=1))


def test_rotation_by_a_second_signature_survives_the_revocation_of_the_first_key(
    tmp_path: Path,
) -> None:
    both = signed().with_signature(private("B"))
    revoke_key(tmp_path / "revoked.json", public("A"), "the laptop was stolen")
    revoked = read_revoked(tmp_path / "revoked.json")
    keys = [public("A"), public("B")]
    assert TrustedKeys(keys, revoked).require_signature(both) == public("B")
    with pytest.raises(SignatureInvalid, match=r"was revoked: 20\d\d-.*the laptop was stolen"):
        TrustedKeys(keys, revoked).require_signature(signed())
    with pytest.raises(InvalidValue, match="not signed this envelope yet"):
        both.with_signature(private("A"))


def test_a_list_of_revoked_keys_only_grows(tmp_path: Path) -> None:
    place = tmp_path / "revoked.json"
    revoke_key(place, public("A"), "first")
    revoke_key(place, public("B"), "second")
    revoke_key(place, public("A"), "a later reason does not move the day")
    revoked = read_revoked(place)
    assert set(revoked) == {public("A").id, public("B").id}
    assert revoked[public("A").id].endswith(", first")
    with pytest.raises(InvalidValue, match="why the key"):
        revoke_key(place, public("A"), " ")
    for text in ("", "[]", '{"schema": "discreet.revoked_keys", "version": 2, "keys": {}}'):
        place.write_text(text, encoding="utf-8")
        with pytest.raises(FileUnusable, match="a list of revoked keys"):
            read_revoked(place)
        with pytest.raises(FileUnusable):
            revoke_key(place, public("A"), "a damaged list is not replaced")
        assert place.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("passphrase", [None, b"four plain words here"])
def test_a_key_pair_is_written_for_its_owner_and_read_again(
    tmp_path: Path, passphrase: bytes | None
) -> None:
    own, other = tmp_path / "ann.key", tmp_path / "ann.pub"
    made = write_key_pair(own, other, passphrase=passphrase, valid_until=TODAY)
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    key = read_private_key(own, passphrase=passphrase)
    back = read_public_key(other)
    assert back.id == made.id
    assert back.valid_until == TODAY
    assert sign_payload(b"x", "y", key).keys_that_signed([back]) == [back]
    # Others read the same two files without a word from us.
    theirs = serialization.load_pem_public_key(other.read_bytes())
    assert isinstance(theirs, Ed25519PublicKey)
    assert (b"ENCRYPTED" in own.read_bytes()) == (passphrase is not None)
    before = own.read_bytes()
    with pytest.raises(FileUnusable, match="not taken yet"):
        write_key_pair(own, tmp_path / "new.pub")
    with pytest.raises(FileUnusable, match="not taken yet"):
        write_key_pair(tmp_path / "new.key", other)
    assert own.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ann.key", "ann.pub"]


def test_a_key_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    own, other = tmp_path / "ann.key", tmp_path / "ann.pub"
    write_key_pair(own, other, passphrase=b"secret")
    with pytest.raises(InvalidValue, match="this key has one"):
        read_private_key(own)
    with pytest.raises(InvalidValue, match="the passphrase of this key"):
        read_private_key(own, passphrase=b"wrong")
    with pytest.raises(InvalidValue, match="the public half"):
        read_public_key(own)
    with pytest.raises(FileUnusable, match="the private half"):
        read_private_key(other)
    with pytest.raises(FileUnusable, match="No such file"):
        read_public_key(tmp_path / "none.pub")
    cut = other.read_bytes()[:-30]
    (tmp_path / "cut.pub").write_bytes(cut)
    with pytest.raises(FileUnusable, match="the public half"):
        read_public_key(tmp_path / "cut.pub")
    with pytest.raises(InvalidValue, match="at least one character"):
        write_key_pair(tmp_path / "b.key", tmp_path / "b.pub", passphrase=b"")
    plain = tmp_path / "plain.key"
    write_key_pair(plain, tmp_path / "plain.pub")
    with pytest.raises(InvalidValue, match="without a passphrase"):
        read_private_key(plain, passphrase=b"secret")


def test_keys_of_another_kind_are_refused(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM
    (tmp_path / "p256.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (tmp_path / "p256.pub").write_bytes(
        key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(InvalidValue, match="an Ed25519 key"):
        read_private_key(tmp_path / "p256.key")
    with pytest.raises(InvalidValue, match="an Ed25519 key"):
        read_public_key(tmp_path / "p256.pub")


def test_the_fingerprint_is_that_of_the_der_form() -> None:
    # RFC 8410: twelve fixed bytes stand before the 32 of the key.
    der = bytes.fromhex("302a300506032b6570032100" + VECTORS["keys"]["A"]["public"])
    pem = b"-----BEGIN PUBLIC KEY-----\n" + base64.encodebytes(der) + b"-----END PUBLIC KEY-----\n"
    assert serialization.load_pem_public_key(pem) == public("A").key
    assert public("A").id == hashlib.sha256(der).hexdigest()
