"""Who signed a certificate, and whether the signature is of this document and its files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet._dsse import Envelope
from discreet._files import replace_file
from discreet.certificate import (
    ENVELOPE,
    Issuer,
    SignedCertificate,
    TrustedKeys,
    files_of,
    read_signed,
    sign_certificate,
)
from discreet.errors import FileUnusable, InvalidValue
from discreet.report._certificate_page import certificate_page
from discreet.report._checks import Check, run_check
from discreet.report._page import SIGNATURE, embedded_texts
from discreet.report._verification import is_page, read_document

_SIGNED = "a trusted key signed it"
_CONTENT = "the signature is of this document and its files"


def find_signature(path: str | Path) -> SignedCertificate | None:
    """Return what was signed of a certificate: inside its page or envelope, or in the one beside.

    An envelope that is there and cannot be read is an error.

    Parameters
    ----------
    path
        As for :func:`verify_certificate`.

    Returns
    -------
    SignedCertificate or None
        What was signed.

    Raises
    ------
    FileUnusable
        If an envelope is damaged.
    """
    place = Path(path)
    try:
        content = place.read_bytes()
        if is_page(place):
            found = embedded_texts(content.decode("utf-8", "replace"), SIGNATURE)
            return read_signed(found[0]) if len(found) == 1 else None
        if place.name.endswith(".dsse.json"):
            return read_signed(content)
        beside = place.with_name(ENVELOPE)
        return read_signed(beside.read_bytes()) if beside.is_file() else None
    except OSError as error:
        expected = f"a readable file ({error.strerror})"
        raise FileUnusable("path", str(error.filename or place), expected) from None


def verify_signature(path: str | Path, keys: TrustedKeys | None) -> list[Check]:
    """Ask who signed a certificate; nothing is asked if it is not signed and no key was given.

    Parameters
    ----------
    path
        As for :func:`verify_certificate`.
    keys
        Whom to trust.

    Returns
    -------
    list of Check
        Nothing if it is not signed and no key was given.

    Raises
    ------
    FileUnusable
        If an envelope is damaged.
    """
    signed = find_signature(path)
    if signed is None:
        return [] if keys is None else [Check(_SIGNED, False, "it is not signed")]
    checks = [run_check(_CONTENT, partial(_content_faults, signed, Path(path)))]
    by = " and ".join(hint or "an unnamed key" for hint, _ in signed.envelope.signatures)
    if keys is None:
        return [Check(_SIGNED, None, f"no key was given; it names {by}"), *checks]
    return [run_check(_SIGNED, partial(signed.signature_faults, keys)), *checks]


def _content_faults(signed: SignedCertificate, place: Path) -> Iterator[str]:
    document = read_document(place)
    # An envelope and a page hold the document itself, so there is no file to compare.
    own = not is_page(place) and not place.name.endswith(".dsse.json")
    content = place.read_bytes() if own else None
    yield from signed.content_faults(document, files_of(document), content=content)


def sign_file(
    path: str | Path, key: Ed25519PrivateKey, issuer: Issuer | None = None
) -> tuple[Envelope, list[Path]]:
    """Sign a certificate, or an envelope once more, and draw the page beside it again.

    Whether the certificate is right is asked by :func:`verify_certificate`, not here. Everything is
    made before anything is replaced.

    Parameters
    ----------
    path
        ``certificate.json``, or its envelope ``certificate.dsse.json``.
    key
        The private key.
    issuer
        Who answers for the certificate; None for an envelope, which has its issuer already.

    Returns
    -------
    tuple of Envelope and list of Path
        What was signed, and the files that were written: the envelope and the page, if there is
        one.

    Raises
    ------
    FileUnusable
        If a file cannot be read, or the envelope is damaged.
    InvalidValue
        If an envelope comes with an issuer, or a certificate without one.
    """
    place = Path(path)
    if place.name.endswith(".dsse.json") == (issuer is not None):
        raise InvalidValue("issuer", issuer, "one for a certificate, None for an envelope")
    if issuer is None:
        found = find_signature(place)
        assert found is not None
        envelope, target = found.envelope.with_signature(key), place
    else:
        files = files_of(read_document(place))
        envelope = sign_certificate(place.read_bytes(), files, issuer, key)
        target = place.with_name(ENVELOPE)
    texts = {target: json.dumps(envelope.to_json(), indent=1) + "\n"}
    page = place.with_name("certificate.html")
    if page.is_file():
        signed = read_signed(texts[target])
        texts[page] = certificate_page(signed.document, signed).html()
    with ExitStack() as stack:
        for goal, text in texts.items():
            stack.enter_context(replace_file(goal)).write_text(text, encoding="utf-8", newline="\n")
    return envelope, list(texts)
