"""Certificates: what a release costs whom, what was done, and who says so.

A learner fills a :class:`Certificate` when its run ends and has the ledger record its digest;
:meth:`Certificate.publish` adds audits, answers that were paid for, statements about the data and
what every accountant says. Both are one document of one schema (:func:`schema`);
``discreet certificate verify`` checks either. Certificates of 0.1 are read as well. Whoever answers
for a certificate signs it (:func:`sign_certificate`).
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
    read_certificate,
)
from discreet.certificate._schema import COVERS, schema
from discreet.certificate._signing import Issuer, SignedCertificate, read_signed, sign_certificate

__all__ = [
    "COVERS",
    "CURATOR",
    "Certificate",
    "Collection",
    "Issuer",
    "PaidAnswer",
    "PublicKey",
    "SignedCertificate",
    "TrustedKeys",
    "read_certificate",
    "read_private_key",
    "read_public_key",
    "read_revoked",
    "read_signed",
    "revoke_key",
    "schema",
    "sign_certificate",
    "write_key_pair",
]
