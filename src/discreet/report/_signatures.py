"""Who signed a certificate, and whether the signature is of this document and its files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from discreet.certificate import ENVELOPE, SignedCertificate, TrustedKeys, files_of, read_signed
from discreet.errors import FileUnusable
from discreet.report._page import SIGNATURE, embedded_texts
from discreet.report._verification import Check, is_page, read_document, run_check

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
