"""Writing a certificate: a public part and, in a directory of its own, an internal annex."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from discreet._files import write_file
from discreet.certificate import Certificate
from discreet.certificate._certificate import publication_digest
from discreet.errors import InvalidValue
from discreet.ledger import Ledger
from discreet.report.annex import internal_annex
from discreet.report.audit_check import require_sound_audits
from discreet.report.internal_facts import InternalFacts
from discreet.report.internal_page import annex_page
from discreet.report.public_page import certificate_page

__all__ = ["file_hashes", "write_annex", "write_certificate", "write_json"]


def write_certificate(
    directory: str | Path, certificate: Certificate, *, ledger: Ledger | None = None
) -> tuple[Path, Path]:
    """Write a published certificate into ``public/``, as JSON and as a page.

    With the ledger that was charged, the publication is recorded there: a certificate that is
    changed later, however little, is then found out.
    """
    document = certificate.to_json()
    page = certificate_page(document)
    require_sound_audits(document)
    if ledger is not None and certificate.receipt is None:
        raise InvalidValue("ledger", repr(ledger), "None: no ledger was charged for this release")
    place = _made(Path(directory) / "public")
    written = write_json(place / "certificate.json", document)
    drawn = page.write(place / "certificate.html")
    if ledger is not None and certificate.receipt is not None:
        ledger.record_publication(certificate.receipt, publication_digest(document))
    return written, drawn


def write_annex(
    directory: str | Path, facts: InternalFacts, certificate: Mapping[str, Any]
) -> tuple[Path, Path]:
    """Write what must not be published into ``internal/``, which its owner alone may read."""
    place = _made(Path(directory) / "internal", mode=0o700)
    document = internal_annex(facts, certificate)
    page = annex_page(facts, certificate)
    return write_json(place / "annex.json", document), page.write(place / "annex.html")


def _made(place: Path, *, mode: int = 0o777) -> Path:
    place.mkdir(mode=mode, parents=True, exist_ok=True)
    return place


def file_hashes(directory: str | Path, names: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of files, by names relative to the directory of the certificate."""
    place = Path(directory)
    found = {}
    for name in names:
        try:
            found[name] = hashlib.sha256((place / name).read_bytes()).hexdigest()
        except OSError as error:
            raise InvalidValue("files", name, f"a readable file ({error.strerror})") from None
    return found


def write_json(target: Path, document: Mapping[str, Any]) -> Path:
    """Write a document; it is complete under its name or not there."""
    return write_file(target, json.dumps(document, indent=2, allow_nan=False) + "\n")
