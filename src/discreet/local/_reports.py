"""Reports are bytes, format 1: a header of 12 bytes and a payload whose length the plan fixes.

======  ======  ====================================================================
offset  length  content
======  ======  ====================================================================
0       2       ``DL``
2       1       the version of the format, 1
3       1       the kind of report, a number of :data:`KINDS`
4       8       the plan: the first bytes of SHA-256 of its JSON, keys in order
12      fixed   the payload: integers are little-endian, bits start at the lowest
======  ======  ====================================================================

The plan names the domain, epsilon and the method with its parameters, so a report made for another
epsilon or another list of values is seen. A report holds no name, time or number of the person.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

VERSION = 1
HEADER_BYTES = 12
KINDS = {
    "GRR": 1,
    "SUE": 2,
    "OUE": 3,
    "SS": 4,
    "OLH": 5,
    "HR": 6,
    "PGR": 7,
    "RAPPOR": 8,
    "Duchi": 9,
    "piecewise": 10,
    "hybrid": 11,
    "sketch": 12,
    "PrivUnitG": 13,
    "marginals": 14,
    "hierarchy": 15,
}
_CHUNK = 1 << 16


@final
class ReportFormat:
    """Writes the header of one plan's reports, and sorts out what is not one of them."""

    def __init__(self, kind: str, plan: dict[str, Any], payload_bytes: int) -> None:
        text = json.dumps(plan, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        self.plan = plan
        self.plan_id = hashlib.sha256(text.encode("ascii")).digest()[:8]
        self.payload_bytes = payload_bytes
        self.size = HEADER_BYTES + payload_bytes
        header = b"DL" + bytes([VERSION, KINDS[kind]]) + self.plan_id
        self._header = np.frombuffer(header, dtype=np.uint8)

    def write(self, payloads: Bytes) -> Bytes:
        """Return whole reports, one a row."""
        rows = np.empty((len(payloads), self.size), dtype=np.uint8)
        rows[:, :HEADER_BYTES] = self._header
        rows[:, HEADER_BYTES:] = payloads
        return rows

    def read(self, reports: object, rejected: Counter[str]) -> Iterator[Bytes]:
        """Yield the payloads of reports of this plan, and count why others are turned away."""
        for rows in self._rows(reports, rejected):
            wrong = rows[:, :HEADER_BYTES] != self._header
            if not wrong.any():
                yield rows[:, HEADER_BYTES:]
                continue
            foreign = wrong[:, :2].any(axis=1)
            version = ~foreign & wrong[:, 2]
            plan = ~foreign & ~version & wrong[:, 3:].any(axis=1)
            reasons = (("not a report", foreign), ("another version", version))
            for reason, found in (*reasons, ("another plan", plan)):
                reject(rejected, reason, int(found.sum()))
            yield rows[~wrong.any(axis=1), HEADER_BYTES:]

    def _rows(self, reports: object, rejected: Counter[str]) -> Iterator[Bytes]:
        if isinstance(reports, np.ndarray):
            if reports.dtype != np.uint8 or reports.ndim != 2:
                raise InvalidValue(
                    "reports", f"an array {reports.dtype} {reports.shape}", "one row of bytes each"
                )
            if reports.shape[1] == self.size:
                yield reports
            else:
                reject(rejected, "wrong length", len(reports))
            return
        if isinstance(reports, bytes | bytearray | memoryview):
            reports = [reports]
        if not isinstance(reports, Iterable):
            raise InvalidValue("reports", reports, "reports, each as bytes, or an array of rows")
        stream = iter(reports)
        while chunk := list(islice(stream, _CHUNK)):
            texts = [bytes(one) for one in chunk if isinstance(one, bytes | bytearray)]
            reject(rejected, "not a report", len(chunk) - len(texts))
            whole = [one for one in texts if len(one) == self.size]
            reject(rejected, "wrong length", len(texts) - len(whole))
            yield np.frombuffer(b"".join(whole), dtype=np.uint8).reshape(-1, self.size)


def reject(rejected: Counter[str], reason: str, count: int) -> None:
    """Count rejections, without naming a reason that did not occur."""
    if count:
        rejected[reason] += count
