"""Audits: lower bounds on what a release gives away, with a stated false-alarm rate.

Mechanisms:

- :func:`audit_mechanism` tries to refute a claimed loss on two neighbouring inputs;
  :func:`search_neighbours` does so over many pairs. The outcome is a :class:`MechanismAudit`.
- :mod:`discreet.audit.zoo` holds broken mechanisms that must be refuted, their right
  twins that must not be, and the mechanisms of this package.

Training, from scores that say how much a record seems to have taken part:

- :func:`audit_runs` (any trainer, many runs), :func:`audit_tradeoff` (the same against a
  claimed trade-off curve), :func:`audit_gaussian` (Gaussian mechanisms only).
- :func:`audit_one_run` and :func:`audit_one_run_curve`: one run with canaries, which an
  :class:`Inclusion` includes by fair coins; :func:`suggest_guesses` says how many to guess,
  and :func:`read_coins` reads what ``Inclusion.save`` wrote.
- :class:`TrainingAudit` is the outcome of each: lower bound, confidence, ceiling, verdict,
  assumptions. Canaries for DP-SGD are in :mod:`discreet.learn.dpsgd.canaries`.
- :func:`audit_faults` computes again what the audits of a certificate say, from their counts;
  the bounds by themselves are :func:`epsilon_from_rates`, :func:`gaussian_epsilon_from_rates`,
  :func:`one_run_epsilon`, :func:`curve_epsilon`; :class:`Method` has their names.

- By betting, with an e-value that holds at any time: :func:`audit_mechanism_sequentially` draws
  until the claim is refuted, :class:`TrainingBets` bets on runs one by one; both give a
  :class:`SequentialAudit`.

:func:`lower_bound` and :func:`upper_bound` are the exact bounds that the rest stands on.

A violated claim is a proof up to the false-alarm rate. An audit that contradicts nothing
proves nothing, and says how much it could have shown.
"""

from discreet._confidence import lower_bound, upper_bound
from discreet.audit._inclusion import Inclusion, read_coins
from discreet.audit._many_runs import (
    audit_gaussian,
    audit_runs,
    audit_tradeoff,
    epsilon_from_rates,
    gaussian_epsilon_from_rates,
    require_gaussian,
)
from discreet.audit._mechanism import (
    MechanismAudit,
    NeighbourAudit,
    audit_mechanism,
    search_neighbours,
)
from discreet.audit._one_run import (
    audit_one_run,
    audit_one_run_curve,
    contradicts_curve,
    curve_epsilon,
    one_run_epsilon,
    read_curve,
    suggest_guesses,
)
from discreet.audit._outputs import Raised
from discreet.audit._recheck import audit_faults, require_sound_audits
from discreet.audit._sequential import (
    SequentialAudit,
    TrainingBets,
    audit_mechanism_sequentially,
)
from discreet.audit._verdict import (
    CONSISTENT,
    GAUSSIAN_ONLY,
    TOO_WEAK,
    VIOLATED,
    Method,
    TrainingAudit,
)

__all__ = [
    "CONSISTENT",
    "GAUSSIAN_ONLY",
    "TOO_WEAK",
    "VIOLATED",
    "Inclusion",
    "MechanismAudit",
    "Method",
    "NeighbourAudit",
    "Raised",
    "SequentialAudit",
    "TrainingAudit",
    "TrainingBets",
    "audit_faults",
    "audit_gaussian",
    "audit_mechanism",
    "audit_mechanism_sequentially",
    "audit_one_run",
    "audit_one_run_curve",
    "audit_runs",
    "audit_tradeoff",
    "contradicts_curve",
    "curve_epsilon",
    "epsilon_from_rates",
    "gaussian_epsilon_from_rates",
    "lower_bound",
    "one_run_epsilon",
    "read_coins",
    "read_curve",
    "require_gaussian",
    "require_sound_audits",
    "search_neighbours",
    "suggest_guesses",
    "upper_bound",
]
