"""Audits: lower bounds on what a release gives away, with a stated false-alarm rate.

Mechanisms:

- :func:`audit_mechanism` tries to refute a claimed loss on two neighbouring inputs;
  :func:`search_neighbours` does so over many pairs.
- :mod:`discreet.audit.zoo` holds broken mechanisms that must be refuted, their right
  twins that must not be, and the mechanisms of this package.

Training, from scores that say how much a record seems to have taken part:

- :func:`audit_runs` (any trainer, many runs), :func:`audit_tradeoff` (the same against a
  claimed trade-off curve), :func:`audit_gaussian` (Gaussian mechanisms only).
- :func:`audit_one_run` and :func:`audit_one_run_curve`: one run with canaries, which an
  :class:`Inclusion` includes by fair coins; :func:`suggest_guesses` says how many to guess.
- :class:`TrainingAudit` is the outcome of each: lower bound, confidence, ceiling, verdict,
  assumptions. Canaries for DP-SGD are in :mod:`discreet.learn.dpsgd.canaries`.

:mod:`discreet._confidence` has the exact bounds that the rest stands on.

A refuted claim is a proof up to the false-alarm rate. An audit that refutes nothing
proves nothing, and says how much it could have shown.
"""

from discreet.audit.gaussian import audit_gaussian
from discreet.audit.inclusion import Inclusion
from discreet.audit.mechanism import Audit, audit_mechanism
from discreet.audit.neighbours import NeighbourAudit, search_neighbours
from discreet.audit.one_run import audit_one_run, suggest_guesses
from discreet.audit.one_run_curves import audit_one_run_curve
from discreet.audit.outputs import Raised
from discreet.audit.runs import audit_runs
from discreet.audit.tradeoff import audit_tradeoff
from discreet.audit.verdicts import TrainingAudit

__all__ = [
    "Audit",
    "Inclusion",
    "NeighbourAudit",
    "Raised",
    "TrainingAudit",
    "audit_gaussian",
    "audit_mechanism",
    "audit_one_run",
    "audit_one_run_curve",
    "audit_runs",
    "audit_tradeoff",
    "search_neighbours",
    "suggest_guesses",
]
