"""Checking who signed a certificate, and that they signed what is at hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from discreet._dsse import TrustedKeys
from discreet.certificate._signing import ENVELOPE, SignedCertificate, files_of, read_signed
from discreet.errors import DataCorrupt, FileUnusable
from discreet.report.page import SIGNATURE
from discreet.report.verification import Check, read_certificate

__all__ = ["find_signature", "signature_checks"]

_PAGES = {".html", ".htm"}
_SIGNED = "a trusted key signed it"
_CONTENT = "the signature is of this document and its files"


def find_signature(path: str | Path) -> SignedCertificate | None:
    """Return what was signed of a certificate: inside its page or envelope, or in the one beside.

    An envelope that is there and cannot be read is an error.
    """
    place = Path(path)
    try:
        content = place.read_bytes()
        if place.suffix.lower() in _PAGES:
            mark = re.escape(f'<script type="application/json" id="{SIGNATURE}">').encode()
            found = re.findall(mark + b"(.*?)</script>", content, flags=re.DOTALL)
            return read_signed(found[0]) if len(found) == 1 else None
        if place.name.endswith(".dsse.json"):
            return read_signed(content)
        beside = place.with_name(ENVELOPE)
        return read_signed(beside.read_bytes()) if beside.is_file() else None
    except OSError as error:
        expected = f"a readable file ({error.strerror})"
        raise FileUnusable("path", str(error.filename or place), expected) from None


def signature_checks(path: str | Path, keys: TrustedKeys | None) -> list[Check]:
    """Ask who signed a certificate; nothing is asked if it is not signed and no key was given."""
    signed = find_signature(path)
    if signed is None:
        return [] if keys is None else [Check(_SIGNED, False, "it is not signed")]
    checks = [_ask(_CONTENT, partial(_content_faults, signed, Path(path)))]
    by = " and ".join(hint or "an unnamed key" for hint, _ in signed.envelope.signatures)
    if keys is None:
        return [Check(_SIGNED, None, f"no key was given; it names {by}"), *checks]
    return [_ask(_SIGNED, partial(signed.signature_faults, keys)), *checks]


def _content_faults(signed: SignedCertificate, place: Path) -> Iterator[str]:
    document = read_certificate(place)
    # An envelope and a page hold the document itself, so there is no file to compare.
    own = place.suffix.lower() not in _PAGES and not place.name.endswith(".dsse.json")
    content = place.read_bytes() if own else None
    yield from signed.content_faults(document, files_of(document), content=content)


def _ask(what: str, faults: Callable[[], Iterator[str]]) -> Check:
    try:
        found = list(faults())
    except DataCorrupt as error:
        found = [str(error)]
    return Check(what, not found, "; ".join(found))
