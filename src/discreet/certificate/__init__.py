"""Certificates: what a release costs whom, what was done, and who says so.

A learner fills a :class:`Certificate` when its run ends and has the ledger record its digest;
:meth:`Certificate.publish` adds audits, answers that were paid for, statements about the data and
what every accountant says. Both are one document of one schema (:func:`schema`);
``discreet certificate verify`` checks either. Certificates of 0.1 are read as well.
"""

from __future__ import annotations

from discreet.certificate._certificate import (
    Certificate,
    Collection,
    PaidAnswer,
    read_certificate,
)
from discreet.certificate._schema import COVERS, schema

__all__ = ["COVERS", "Certificate", "Collection", "PaidAnswer", "read_certificate", "schema"]
