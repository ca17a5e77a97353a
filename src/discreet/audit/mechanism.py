"""Try to refute a mechanism: a lower bound on its epsilon that holds with stated confidence.

    >>> from discreet.audit import audit_mechanism
    >>> def leaky(bit):
    ...     return bit
    >>> audit = audit_mechanism(leaky, 0, 1, epsilon=1.0, samples=2000)
    >>> audit.verdict
    'refuted'

Half of the outputs train, the other half testifies. On the training half an event
(a set of outputs) is chosen for each direction; the choice may be as greedy as it
likes. On the other half, which the choice never saw, the event is a fixed set, its
count under each input is binomial, and Clopper-Pearson bounds are exact. Each of the
two directions needs a lower and an upper bound; with a quarter of the false-alarm rate
for each of the four, all hold together by the union bound. Hence, whatever the
mechanism is,

    P(epsilon_lower > the smallest epsilon at which it is (epsilon, delta)-DP) <= rate.

Testing on the half that chose would be no proof at all; tests/audit shows the false
alarms of that mistake (and of the peers that make it).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, final

from discreet import _validate
from discreet._rounding import at_most
from discreet.audit.events import Event, ceiling, epsilon_lower_bounds, find_event
from discreet.audit.outputs import Rows, check_answers, lay_out, longest
from discreet.audit.sampling import Sampler
from discreet.errors import InvalidValue
from discreet.privacy import Loss

__all__ = ["Audit", "Claim", "audit_mechanism", "choose_events", "testify"]

REFUTED = "refuted"
CONSISTENT = "consistent"
TOO_WEAK = "too weak to tell"

DIRECTIONS = ("first over second", "second over first")
_SMALLEST_RATE = 1e-30


@final
@dataclass(frozen=True)
class Claim:
    """What is to be refuted: (epsilon, delta)-DP, with ``epsilon`` an upper bound."""

    epsilon: float
    delta: float

    @classmethod
    def read(cls, loss: Loss | None, epsilon: float | None, delta: float | None) -> Claim:
        """Take a claim from a loss, read at ``delta``, or from the two numbers themselves."""
        if (loss is None) == (epsilon is None):
            raise InvalidValue("loss", loss, "a claimed loss or a claimed epsilon, not both")
        point = _validate.real("delta", 0.0 if delta is None else delta, at_least=0, below=1)
        if loss is None:
            return cls(_validate.real("epsilon", epsilon, at_least=0), point)
        if not isinstance(loss, Loss):
            raise InvalidValue("loss", loss, "a loss of discreet.privacy")
        claimed = loss.epsilon(delta=point)
        if math.isinf(claimed):
            expected = "a delta at which the claimed loss has a finite epsilon"
            raise InvalidValue("delta", delta, expected)
        return cls(claimed, point)


@final
@dataclass(frozen=True)
class Audit:
    """The outcome of one audit.

    ``epsilon_lower`` exceeds the true epsilon at ``delta`` with probability at most
    ``false_alarm_rate``. ``ceiling`` is the most that it could have been with so many
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
    def refuted(self) -> bool:
        """Whether the claim is refuted."""
        return self.verdict == REFUTED

    def to_json(self) -> dict[str, Any]:
        """The audit as plain JSON values."""
        return {**asdict(self), "hits": list(self.hits)}

    def __str__(self) -> str:
        shown, most = _down(self.epsilon_lower), _down(self.ceiling)
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
) -> Audit:
    """Try to refute that ``mechanism`` keeps the claimed loss between two neighbouring inputs.

    ``mechanism`` maps an input to an output or to a :class:`~discreet.mechanisms.Release`,
    whose value is taken; outputs may be numbers, vectors, strings, ``None``, errors or
    streams of them. With ``batch=True``, or where the mechanism has an attribute
    ``batch``, it is called with an input and a count and returns so many independent
    outputs. ``samples`` outputs are drawn for each input. Whether the inputs are
    neighbours under the relation of the loss is for the caller to know.

    The claim is a ``loss``, read at ``delta`` (0 by default; a loss that is infinite
    there needs one), or an ``epsilon`` and ``delta``.

    Formal guarantee: if the mechanism does keep the claim on these inputs and its
    outputs are independent, the verdict is "refuted" with probability at most
    ``false_alarm_rate``. "consistent" proves nothing: it says that this attack, which
    could have shown up to ``ceiling``, did not succeed. A ceiling at or below the claim
    gives "too weak to tell".
    """
    claim = Claim.read(loss, epsilon, delta)
    size = _validate.integer("samples", samples, at_least=4)
    rate = checked_rate(false_alarm_rate)
    sampler = Sampler(mechanism, batch=batch, n_jobs=n_jobs)
    training = size // 2
    chosen, width = choose_events(sampler, first, second, training, claim.delta, rate)
    return testify(chosen, width, sampler, first, second, claim, size, training, rate)


def checked_rate(false_alarm_rate: float) -> float:
    """A false-alarm rate inside (0, 1/2], or an error."""
    return _validate.real("false_alarm_rate", false_alarm_rate, above=_SMALLEST_RATE, at_most=0.5)


def choose_events(
    sampler: Sampler, first: Any, second: Any, count: int, delta: float, rate: float
) -> tuple[tuple[Event, Event], int]:
    """Draw the training half; return an event for each direction and the width of a row."""
    raw = [sampler.draw(data, count) for data in (first, second)]
    check_answers(*raw)
    width = max(longest(outputs) for outputs in raw)
    favoured, other = (lay_out(outputs, width=width) for outputs in raw)
    return best_events(favoured, other, delta=delta, rate=rate), width


def best_events(first: Rows, second: Rows, *, delta: float, rate: float) -> tuple[Event, Event]:
    """For each direction, the event that shows most on these outputs."""
    return (
        find_event(first, second, delta=delta, error=rate / 4),
        find_event(second, first, delta=delta, error=rate / 4),
    )


def testify(
    events: tuple[Event, Event],
    width: int,
    sampler: Sampler,
    first: Any,
    second: Any,
    claim: Claim,
    samples: int,
    training: int,
    rate: float,
) -> Audit:
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
) -> Audit:
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
    return Audit(
        verdict=verdict(shown, claim.epsilon, most),
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


def verdict(epsilon_lower: float, claimed: float, most: float) -> str:
    """What a lower bound says about a claim, for an audit that could show at most ``most``.

    >>> verdict(1.2, 1.0, 5.0), verdict(0.9, 1.0, 5.0), verdict(0.9, 1.0, 1.0)
    ('refuted', 'consistent', 'too weak to tell')
    """
    if epsilon_lower > claimed:
        return REFUTED
    return CONSISTENT if most > claimed else TOO_WEAK


def _down(value: float) -> str:
    """A lower bound in four decimals, rounded down."""
    return f"{math.floor(value * 1e4) / 1e4:.4f}"
