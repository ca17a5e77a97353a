"""Try to refute a mechanism: a lower bound on its epsilon that holds with stated confidence.

    >>> from discreet.audit import audit_mechanism
    >>> def leaky(bit):
    ...     return bit
    >>> audit = audit_mechanism(leaky, 0, 1, epsilon=1.0, samples=2000)
    >>> audit.verdict
    'violated'

Half of the outputs train, the other half tests. On the training half an event
(a set of outputs) is chosen for each direction; the choice may be as greedy as it
likes. On the other half, which the choice never saw, the event is a fixed set, its
count under each input is binomial, and Clopper-Pearson bounds are exact. Each of the
two directions needs a lower and an upper bound; with a quarter of the false-alarm rate
for each of the four, all hold together by the union bound. Hence, whatever the
mechanism is,

    P(epsilon_lower > the smallest epsilon at which it is (epsilon, delta)-DP) <= rate.

Testing on the half that chose would be no proof at all; tests/audit shows the false
alarms of that mistake (and of the peers that make it).

:func:`search_neighbours` searches over pairs of neighbouring inputs, at one false-alarm rate for
all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, final

from discreet import _validate
from discreet._json import JsonRecord
from discreet._rounding import at_most
from discreet.audit._events import Event, ceiling, epsilon_lower_bounds, find_event
from discreet.audit._outputs import Rows, Sampler, check_answers, lay_out, widest
from discreet.audit._verdict import VIOLATED, Claim, check_rate, judge_bound, round_down
from discreet.errors import InvalidValue
from discreet.privacy import Loss

DIRECTIONS = ("first over second", "second over first")


@final
@dataclass(frozen=True)
class MechanismAudit(JsonRecord):
    """What an audit of a mechanism says.

    ``epsilon_lower`` exceeds the true epsilon at ``delta`` with probability at most
    ``false_alarm_rate``. ``ceiling`` is the most that it could have been with as many
    samples. ``hits`` are the counts of the event under the favoured and the other input,
    out of ``trials`` outputs each that the choice of the event never saw.
    """

    verdict: str
    epsilon_lower: float
    claimed_epsilon: float
    delta: float
    ceiling: float
    false_alarm_rate: float
    samples: int
    trials: int
    direction: str
    event: str
    hits: tuple[int, int]

    @property
    def confidence(self) -> float:
        """One minus the false-alarm rate."""
        return 1 - self.false_alarm_rate

    @property
    def violated(self) -> bool:
        """Whether the claim is contradicted, up to the false-alarm rate."""
        return self.verdict == VIOLATED

    def __str__(self) -> str:
        shown, most = round_down(self.epsilon_lower), round_down(self.ceiling)
        first, second = self.hits
        return (
            f"{self.verdict}: epsilon >= {shown} at delta {self.delta:g}, "
            f"claimed epsilon <= {at_most(self.claimed_epsilon, digits=6)}\n"
            f"event ({self.direction}): {self.event}\n"
            f"seen {first} against {second} times in {self.trials} outputs each, "
            f"chosen on {self.samples - self.trials} others\n"
            f"false alarms: at most {self.false_alarm_rate:g}; "
            f"at best this audit could have shown epsilon >= {most}"
        )


def audit_mechanism(
    mechanism: Callable[..., Any],
    first: Any,
    second: Any,
    *,
    loss: Loss | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    samples: int = 20_000,
    false_alarm_rate: float = 1e-3,
    batch: bool = False,
    n_jobs: int = 1,
) -> MechanismAudit:
    """Try to refute that ``mechanism`` keeps the claimed loss between two neighbouring inputs.

    ``mechanism`` maps an input to an output or to a :class:`~discreet.mechanisms.Release`,
    whose value is taken; outputs may be numbers, vectors, strings, ``None``, errors or
    streams of them. With ``batch=True``, or where the mechanism has an attribute
    ``batch``, it is called with an input and a count and returns that many independent
    outputs. ``samples`` outputs are drawn for each input. Whether the inputs are
    neighbours under the relation of the loss is for the caller to know.

    The claim is a ``loss``, read at ``delta`` (0 by default; a loss that is infinite
    there needs one), or an ``epsilon`` and ``delta``.

    Formal guarantee: if the mechanism does keep the claim on these inputs and its
    outputs are independent, the verdict is "violated" with probability at most
    ``false_alarm_rate``. "consistent" proves nothing: it says that this attack, which
    could have shown up to ``ceiling``, did not succeed. A ceiling at or below the claim
    gives "too weak to tell".

    Parameters
    ----------
    mechanism
        From an input (and a count, with ``batch``) to an output (or as many).
    first, second
        Two neighbouring inputs.
    loss, epsilon, delta
        The claim: a loss, or two numbers.
    samples
        Outputs for each input.
    false_alarm_rate
        How often a right claim may be called violated.
    batch, n_jobs
        Whether the mechanism draws many outputs at once; processes that draw.

    Returns
    -------
    MechanismAudit
        Lower bound, ceiling and verdict.

    Raises
    ------
    InvalidValue
        If an argument is wrong, or the outputs cannot be compared.
    """
    claim = Claim.read(loss, epsilon, delta)
    size = _validate.integer("samples", samples, at_least=4)
    rate = check_rate(false_alarm_rate)
    sampler = Sampler(mechanism, batch=batch, n_jobs=n_jobs)
    training = size // 2
    chosen, width = choose_events(sampler, first, second, training, claim.delta, rate)
    return draw_and_judge(chosen, width, sampler, first, second, claim, size, training, rate)


def choose_events(
    sampler: Sampler, first: Any, second: Any, count: int, delta: float, rate: float
) -> tuple[tuple[Event, Event], int]:
    """Draw the training half; return an event for each direction and the width of a row."""
    raw = [sampler.draw(data, count) for data in (first, second)]
    check_answers(*raw)
    width = max(widest(outputs) for outputs in raw)
    favoured, other = (lay_out(outputs, width=width) for outputs in raw)
    return best_events(favoured, other, delta=delta, rate=rate), width


def best_events(first: Rows, second: Rows, *, delta: float, rate: float) -> tuple[Event, Event]:
    """For each direction, the event that shows most on these outputs."""
    return (
        find_event(first, second, delta=delta, error=rate / 4),
        find_event(second, first, delta=delta, error=rate / 4),
    )


def draw_and_judge(
    events: tuple[Event, Event],
    width: int,
    sampler: Sampler,
    first: Any,
    second: Any,
    claim: Claim,
    samples: int,
    training: int,
    rate: float,
) -> MechanismAudit:
    """Draw the other half and let it judge the events, which are fixed by now."""
    trials = samples - training
    drawn = [sampler.draw(data, trials) for data in (first, second)]
    rows = [lay_out(outputs, width=width) for outputs in drawn]
    return judge(events, rows[0], rows[1], claim=claim, samples=samples, rate=rate)


def judge(
    events: tuple[Event, Event],
    first: Rows,
    second: Rows,
    *,
    claim: Claim,
    samples: int,
    rate: float,
) -> MechanismAudit:
    """The verdict of these outputs on events that were chosen without them."""
    trials = len(first)
    counts = [
        (int(event.contains(favoured).sum()), int(event.contains(other).sum()))
        for event, favoured, other in zip(events, (first, second), (second, first), strict=True)
    ]
    bounds = epsilon_lower_bounds(
        [hits for hits, _ in counts],
        [hits for _, hits in counts],
        trials=trials,
        delta=claim.delta,
        error=rate / 4,
    )
    stronger = int(bounds[1] > bounds[0])
    shown = max(0.0, float(bounds[stronger]))
    most = ceiling(trials=trials, delta=claim.delta, error=rate / 4)
    return MechanismAudit(
        verdict=judge_bound(shown, claim.epsilon, most),
        epsilon_lower=shown,
        claimed_epsilon=claim.epsilon,
        delta=claim.delta,
        ceiling=most,
        false_alarm_rate=rate,
        samples=samples,
        trials=trials,
        direction=DIRECTIONS[stronger],
        event=str(events[stronger]),
        hits=counts[stronger],
    )


@final
@dataclass(frozen=True)
class NeighbourAudit:
    """The strongest audit of a search, and the pair of inputs that it speaks of."""

    audit: MechanismAudit
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
    the pairs saw only outputs that do not test, so it needs no correction; testing
    ``keep`` of them does, and gets it by the union bound.

    Formal guarantee: if the mechanism keeps the claim on every pair, the verdict is
    "violated" with probability at most ``false_alarm_rate``.

    Parameters
    ----------
    mechanism, loss, epsilon, delta, samples, batch, n_jobs
        As for :func:`audit_mechanism`.
    pairs
        Pairs of neighbouring inputs.
    false_alarm_rate
        For all pairs together.
    most_pairs, keep
        How many pairs are looked at, and how many of them are audited.

    Returns
    -------
    NeighbourAudit
        The audits of the pairs that looked worst.

    Raises
    ------
    InvalidValue
        If there is no pair, or an argument is wrong.
    """
    claim = Claim.read(loss, epsilon, delta)
    size = _validate.integer("samples", samples, at_least=4)
    rate = check_rate(false_alarm_rate)
    limit = _validate.integer("most_pairs", most_pairs, at_least=1)
    sampler = Sampler(mechanism, batch=batch, n_jobs=n_jobs)
    tried = _read_pairs(pairs, limit)
    kept = min(_validate.integer("keep", keep, at_least=1), len(tried))
    training = size // 2 // len(tried)
    trials = (size - size // 2) // kept
    if min(training, trials) < 2:
        raise InvalidValue("samples", samples, f"at least {4 * len(tried)} for these pairs")

    share = rate / kept
    looked_at: list[tuple[tuple[Event, Event], int, tuple[Any, Any]]] = []
    for pair in tried:
        events, width = choose_events(sampler, *pair, training, claim.delta, share)
        looked_at.append((events, width, pair))
    looked_at.sort(key=lambda look: -max(event.score for event in look[0]))
    tested = [
        (
            draw_and_judge(
                events, width, sampler, *pair, claim, training + trials, training, share
            ),
            pair,
        )
        for events, width, pair in looked_at[:kept]
    ]
    strongest, (first, second) = max(tested, key=lambda outcome: outcome[0].epsilon_lower)
    audit = MechanismAudit(**{**vars(strongest), "false_alarm_rate": rate})
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
