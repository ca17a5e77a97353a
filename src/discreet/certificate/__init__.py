"""Certificates: what a release costs, how it was made, and who signed it.

A learner fills a :class:`Certificate` when its run ends and has the ledger record its digest;
:meth:`Certificate.publish` adds audits, answers that were paid for, statements about the data and
what every accountant says. Both are one document of one schema (:func:`schema`);
``discreet certificate verify`` checks either. Certificates of 0.1 are read as well. Whoever answers
for a certificate signs it (:func:`sign_certificate`).

Whoever checks a document has the parts that it is made of: :func:`require_valid` and
:func:`content_hash`, :func:`as_version_2` for documents of 0.1, and what follows from the facts
(:func:`guarantee_of`, :func:`meaning_of`, :func:`warnings_on`, :func:`verdict_on`).
"""

from __future__ import annotations

from discreet._dsse import (
    PublicKey,
    TrustedKeys,
    read_private_key,
    read_public_key,
    read_revoked,
    revoke_key,
    write_key_pair,
)
from discreet.certificate._certificate import (
    CURATOR,
    Certificate,
    Collection,
    PaidAnswer,
    facts_digest,
    publication_digest,
    read_certificate,
)
from discreet.certificate._findings import (
    FPRS,
    content_hash,
    delta_warning,
    guarantee_of,
    meaning_of,
    run_warnings,
    verdict_on,
    warnings_on,
)
from discreet.certificate._old_formats import (
    as_version_2,
    faults_of_0_1,
    is_of_0_1,
    todays_form,
    warning_faults_of_0_1,
)
from discreet.certificate._schema import (
    COVERS,
    SCHEMA,
    VERSION,
    require_valid,
    schema,
    schema_faults,
)
from discreet.certificate._signing import (
    ENVELOPE,
    Issuer,
    SignedCertificate,
    files_of,
    read_signed,
    sign_certificate,
)

__all__ = [
    "COVERS",
    "CURATOR",
    "ENVELOPE",
    "FPRS",
    "SCHEMA",
    "VERSION",
    "Certificate",
    "Collection",
    "Issuer",
    "PaidAnswer",
    "PublicKey",
    "SignedCertificate",
    "TrustedKeys",
    "as_version_2",
    "content_hash",
    "delta_warning",
    "facts_digest",
    "faults_of_0_1",
    "files_of",
    "guarantee_of",
    "is_of_0_1",
    "meaning_of",
    "publication_digest",
    "read_certificate",
    "read_private_key",
    "read_public_key",
    "read_revoked",
    "read_signed",
    "require_valid",
    "revoke_key",
    "run_warnings",
    "schema",
    "schema_faults",
    "sign_certificate",
    "todays_form",
    "verdict_on",
    "warning_faults_of_0_1",
    "warnings_on",
    "write_key_pair",
]
