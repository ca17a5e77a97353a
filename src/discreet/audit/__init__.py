"""Audits: lower bounds on what a release gives away, with a stated false-alarm rate.

- :func:`audit_mechanism` tries to refute a claimed loss on two neighbouring inputs;
  :func:`search_neighbours` does so over many pairs.
- :mod:`discreet.audit.zoo` holds broken mechanisms that must be refuted, their right
  twins that must not be, and the mechanisms of this package.
- :mod:`discreet.audit.binomial` has the exact bounds that the rest stands on.

A refuted claim is a proof up to the false-alarm rate. An audit that refutes nothing
proves nothing, and says how much it could have shown.
"""

from discreet.audit.mechanism import Audit, audit_mechanism
from discreet.audit.neighbours import NeighbourAudit, search_neighbours
from discreet.audit.outputs import Raised

__all__ = [
    "Audit",
    "NeighbourAudit",
    "Raised",
    "audit_mechanism",
    "search_neighbours",
]
