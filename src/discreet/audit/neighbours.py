"""A search over pairs of neighbouring inputs, at one false-alarm rate for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, final

from discreet import _validate
from discreet.audit.events import Event
from discreet.audit.mechanism import Audit, Claim, checked_rate, choose_events, testify
from discreet.audit.sampling import Sampler
from discreet.errors import InvalidValue
from discreet.privacy import Loss

__all__ = ["NeighbourAudit", "search_neighbours"]


@final
@dataclass(frozen=True)
class NeighbourAudit:
    """The strongest audit of a search, and the pair of inputs that it speaks of."""

    audit: Audit
    first: Any
    second: Any
    pairs_tried: int
    pairs_tested: int

    def __str__(self) -> str:
        return (
            f"{self.audit}\ninputs {self.first!r} and {self.second!r}: the strongest of "
            f"{self.pairs_tested} tested, out of {self.pairs_tried} tried"
        )

    def to_json(self) -> dict[str, Any]:
        """The audit as plain JSON values; the inputs as they print."""
        return {
            **self.audit.to_json(),
            "first": repr(self.first),
            "second": repr(self.second),
            "pairs_tried": self.pairs_tried,
            "pairs_tested": self.pairs_tested,
        }


def search_neighbours(
    mechanism: Callable[..., Any],
    pairs: Iterable[tuple[Any, Any]],
    *,
    loss: Loss | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    samples: int = 20_000,
    false_alarm_rate: float = 1e-3,
    most_pairs: int = 100,
    keep: int = 1,
    batch: bool = False,
    n_jobs: int = 1,
) -> NeighbourAudit:
    """Try to refute the claim on any of the given pairs of neighbouring inputs.

    Half of ``samples`` is spread over all pairs (the first ``most_pairs`` of them) and
    chooses for each an event; the ``keep`` pairs that look worst share the other half,
    with fresh outputs, each at the false-alarm rate divided by ``keep``. The choice among
    the pairs saw only outputs that do not testify, so it needs no correction; testing
    ``keep`` of them does, and gets it by the union bound.

    Formal guarantee: if the mechanism keeps the claim on every pair, the verdict is
    "refuted" with probability at most ``false_alarm_rate``.
    """
    claim = Claim.read(loss, epsilon, delta)
    size = _validate.integer("samples", samples, at_least=4)
    rate = checked_rate(false_alarm_rate)
    limit = _validate.integer("most_pairs", most_pairs, at_least=1)
    sampler = Sampler(mechanism, batch=batch, n_jobs=n_jobs)
    tried = _read_pairs(pairs, limit)
    kept = min(_validate.integer("keep", keep, at_least=1), len(tried))
    training = size // 2 // len(tried)
    trials = (size - size // 2) // kept
    if min(training, trials) < 2:
        raise InvalidValue("samples", samples, f"at least {4 * len(tried)} for so many pairs")

    share = rate / kept
    looked_at: list[tuple[tuple[Event, Event], int, tuple[Any, Any]]] = []
    for pair in tried:
        events, width = choose_events(sampler, *pair, training, claim.delta, share)
        looked_at.append((events, width, pair))
    looked_at.sort(key=lambda look: -max(event.score for event in look[0]))
    tested = [
        (
            testify(events, width, sampler, *pair, claim, training + trials, training, share),
            pair,
        )
        for events, width, pair in looked_at[:kept]
    ]
    strongest, (first, second) = max(tested, key=lambda outcome: outcome[0].epsilon_lower)
    audit = Audit(**{**vars(strongest), "false_alarm_rate": rate})
    return NeighbourAudit(audit, first, second, pairs_tried=len(tried), pairs_tested=kept)


def _read_pairs(pairs: Any, limit: int) -> list[tuple[Any, Any]]:
    expected = "at least one pair (first, second) of neighbouring inputs"
    if not isinstance(pairs, Iterable):
        raise InvalidValue("pairs", pairs, expected)
    tried: list[tuple[Any, Any]] = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidValue("pairs", pair, expected)
        tried.append((pair[0], pair[1]))
        if len(tried) == limit:
            break
    if not tried:
        raise InvalidValue("pairs", tried, expected)
    return tried
