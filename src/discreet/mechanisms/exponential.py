"""S13: the exponential mechanism over finite sets, in memory and streaming, exact.

Candidate y is chosen with probability proportional to exp(rate u(D, y)). At
rate = epsilon / (2 sensitivity) that is epsilon-DP (McSherry and Talwar 2007); with scores that
all move in one direction the rate may be twice that. More is true: the privacy losses of all
outputs lie in one interval of length rate R = epsilon (``selection`` defines R), so the loss is
the epsilon-*bounded-range* one, ``Exponential(epsilon)`` (Durfee and Rogers 2019), which composes
better than pure DP. Report-noisy-max with Gumbel noise is this same mechanism.

The draw is an exact race (:class:`discreet.randomness.Race`): no rounding of a secret score, no
overflow of an exponential and no normalising sum can shift a probability.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from discreet.errors import InvalidValue
from discreet.mechanisms.parameters import rounded_up
from discreet.mechanisms.selection import Pace, Selection, pick, utility_bound
from discreet.privacy import Exponential, Relation
from discreet.randomness import Race, Source, choose_source

__all__ = ["exponential_choice", "exponential_stream"]


def exponential_choice(
    scores: Any,
    *,
    candidates: Sequence[Any] | None = None,
    sensitivity: object = None,
    score_range: object = None,
    monotone: bool = False,
    epsilon: object = None,
    rate: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Selection[Any]:
    """S13: one of finitely many candidates; epsilon-bounded range, hence epsilon-DP.

    ``scores`` are finite numbers, one for each candidate, read exactly. ``candidates`` are public;
    without them the value is the number of the chosen one. ``shortfall`` gives the utility
    bound (2 sensitivity / epsilon)(ln of the number of candidates + ln 1/beta), beta = 1 -
    confidence, halved for monotone scores.

    >>> chosen = exponential_choice([3, 900, 5], candidates="xyz", sensitivity=1, epsilon=2)
    >>> chosen.value, chosen.loss  # another value has probability 2 e^-895
    ('y', Exponential(epsilon=2.0))
    >>> round(chosen.shortfall(confidence=0.95), 3)
    4.094
    """
    pace = Pace.stated(
        sensitivity=sensitivity,
        score_range=score_range,
        monotone=monotone,
        epsilon=epsilon,
        rate=rate,
        relation=relation,
    )
    bits = choose_source(source, insecure_seed)
    race = Race(rate=pace.rate, source=bits)
    named = None if candidates is None else pick(candidates, _length(scores))
    race.enter(scores)
    count = race.entered
    winner = race.winner()
    return Selection(
        winner if named is None else named(winner),
        Exponential(pace.reported, pace.relation),
        _provenance("exponential_choice", pace, count, bits),
        _shortfall=partial(_utility, count, pace),
    )


def exponential_stream(
    parts: Iterable[Any],
    *,
    sensitivity: object = None,
    score_range: object = None,
    monotone: bool = False,
    epsilon: object = None,
    rate: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Selection[int]:
    """S13: the same over candidates that arrive in parts; one pass, memory of one part.

    ``parts`` yields arrays of scores. The value is the number of the chosen candidate, counted
    over all parts. Only those who may still win, nearly always one, are kept. The
    probabilities are exactly those of :func:`exponential_choice` on all scores at once. How many
    candidates there are must be public. A score that is not finite ends the pass with an error and
    nothing is released, but by then bits have been drawn for the parts before.

    >>> import numpy as np
    >>> parts = (np.arange(start, start + 1000) for start in range(0, 50_000, 1000))
    >>> exponential_stream(parts, score_range=1, epsilon=500).value  # P(other) = 1e-217
    49999
    """
    pace = Pace.stated(
        sensitivity=sensitivity,
        score_range=score_range,
        monotone=monotone,
        epsilon=epsilon,
        rate=rate,
        relation=relation,
    )
    bits = choose_source(source, insecure_seed)
    race = Race(rate=pace.rate, source=bits)
    for part in parts:
        race.enter(part)
    if race.entered == 0:
        raise InvalidValue("parts", "no scores", "at least one part")
    count = race.entered
    return Selection(
        race.winner(),
        Exponential(pace.reported, pace.relation),
        _provenance("exponential_stream", pace, count, bits),
        _shortfall=partial(_utility, count, pace),
    )


def _length(scores: Any) -> int:
    try:
        return len(scores)
    except TypeError:
        raise InvalidValue("scores", type(scores).__name__, "a row of finite numbers") from None


def _utility(count: int, pace: Pace, beta: float) -> float:
    return utility_bound(count, rate=pace.rate, beta=beta)


def _provenance(mechanism: str, pace: Pace, count: int, bits: Source) -> dict[str, Any]:
    return {
        "mechanism": mechanism,
        "rate": rounded_up("rate", str(pace.rate), pace.rate),
        "candidates": count,
        "relation": pace.relation.value,
        **bits.provenance,
    }
