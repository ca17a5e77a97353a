"""Audits by betting: stop as soon as the claim is refuted, whenever that is.

(epsilon, delta)-DP says P(A) <= e^epsilon Q(A) + delta for every event A. Draw an output of each,
and bet on A: the stake returns X = 1{first in A} - e^epsilon 1{second in A} - delta, whose mean is
at most 0 if the claim is true. So the wealth of whoever bets, the product of 1 + lambda X with
lambda from 0 to 1 / (e^epsilon + delta), is a supermartingale that begins at 1, however A and
lambda are chosen from what was seen before. By Ville's inequality it *ever* reaches 1 / rate with
probability at most the rate: one may look after every draw, stop when it does, or go on for longer
than was planned. The wealth is an e-value.

The same bet is made on runs of a trainer. A fair coin includes a canary; a guess that is right wins
1, a wrong one costs e^epsilon, and delta is paid in any case. With P and Q for the run with the
canary and without, guesses "included" on A and "excluded" on B have the mean

    (P(A) - e^epsilon Q(A)) / 2 + (Q(B) - e^epsilon P(B)) / 2 - delta <= 0.

Capital is divided evenly among several lambdas, so that none has to be chosen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._json import JsonRecord
from discreet._rounding import at_most
from discreet.audit._mechanism import DIRECTIONS, best_events
from discreet.audit._outputs import Rows, Sampler, check_answers, lay_out, widest
from discreet.audit._verdict import CONSISTENT, TOO_WEAK, VIOLATED, Claim, check_rate
from discreet.errors import InvalidValue, NotApplicable
from discreet.randomness import Source, bernoulli, choose_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from discreet.audit._events import Event
    from discreet.privacy import Loss

_FIRST_BATCH = 100
_MOST_EPSILON = 64.0
# Shares of the largest lambda; the capital is divided among them.
_STAKES = np.array([0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95])


@final
class _Wealth:
    """The logarithm of the capital on each stake, of a bettor against a claim."""

    def __init__(self, claim: Claim) -> None:
        if claim.epsilon > _MOST_EPSILON:
            raise InvalidValue(
                "epsilon", claim.epsilon, "a claim that can be refuted, of some tens"
            )
        self.cost = math.exp(claim.epsilon)
        self.delta = claim.delta
        self.stakes = _STAKES / (self.cost + claim.delta)
        self.logs = np.zeros(len(_STAKES))

    def bet(self, *, right: int, wrong: int, both: int, neither: int) -> None:
        """Add the outcomes of bets, counted by which of the two outputs were in the event."""
        for count, gain in (
            (right, 1.0),
            (wrong, -self.cost),
            (both, 1.0 - self.cost),
            (neither, 0.0),
        ):
            if count:
                self.logs += count * np.log1p(self.stakes * (gain - self.delta))

    @property
    def log_value(self) -> float:
        """The logarithm of the whole capital."""
        return float(np.logaddexp.reduce(self.logs) - math.log(len(self.logs)))

    def best_log_value(self, bets: int) -> float:
        """The most that it could be after as many bets."""
        logs = bets * np.log1p(self.stakes * (1.0 - self.delta))
        return float(np.logaddexp.reduce(logs) - math.log(len(logs)))


@final
@dataclass(frozen=True)
class SequentialAudit(JsonRecord):
    """What an audit by betting says, at whatever time it was stopped.

    ``log_e_value`` is the natural logarithm of the largest wealth that was reached. If the claim is
    true it ever exceeds log(1 / ``false_alarm_rate``) with probability at most that rate.
    ``samples`` is how many outputs of each input, or runs, were drawn.
    """

    json_properties = ("violated",)

    verdict: str
    log_e_value: float
    samples: int
    claimed_epsilon: float
    delta: float
    false_alarm_rate: float
    event: str

    @property
    def violated(self) -> bool:
        """Whether the claim is contradicted, up to the false-alarm rate."""
        return self.verdict == VIOLATED

    def __str__(self) -> str:
        return (
            f"{self.verdict}: e-value {_power(self.log_e_value)} after {self.samples} samples, "
            f"{_power(-math.log(self.false_alarm_rate))} refutes the claimed epsilon <= "
            f"{at_most(self.claimed_epsilon, digits=6)} at delta {self.delta:g}\n"
            f"event: {self.event}\n"
            f"false alarms: at most {self.false_alarm_rate:g}, whenever it is stopped"
        )


def audit_mechanism_sequentially(
    mechanism: Callable[..., Any],
    first: Any,
    second: Any,
    *,
    loss: Loss | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    most_samples: int = 100_000,
    false_alarm_rate: float = 1e-3,
    batch: bool = False,
    n_jobs: int = 1,
) -> SequentialAudit:
    """Draw outputs until the claim is refuted, or there are ``most_samples`` of each input.

    Outputs come in batches, each as large as all before. Events are chosen on what was seen, and
    bets are made on the next batch.

    Formal guarantee: if the mechanism keeps the claim on these inputs and its outputs are
    independent, the verdict is "violated" with probability at most ``false_alarm_rate``, whatever
    ``most_samples`` is.

    >>> from discreet.audit.zoo import SPECIMENS
    >>> halved = SPECIMENS["laplace-halved-noise"]
    >>> found = audit_mechanism_sequentially(
    ...     lambda data, count: halved.draw(data, count, choose_source(None)),
    ...     halved.first,
    ...     halved.second,
    ...     loss=halved.loss,
    ...     batch=True,
    ... )
    >>> found.verdict, found.samples < halved.samples
    ('violated', True)

    Parameters
    ----------
    mechanism, first, second, loss, epsilon, delta, batch, n_jobs
        As for :func:`audit_mechanism`.
    most_samples
        Where to stop at the latest.
    false_alarm_rate
        How often a right claim may be called violated.

    Returns
    -------
    SequentialAudit
        The verdict, the e-value and how many samples it took.

    Raises
    ------
    InvalidValue
        If an argument is wrong, or the outputs cannot be compared.
    """
    claim = Claim.read(loss, epsilon, delta)
    most = _validate.integer("most_samples", most_samples, at_least=2 * _FIRST_BATCH)
    rate = check_rate(false_alarm_rate)
    sampler = Sampler(mechanism, batch=batch, n_jobs=n_jobs)
    wealths = _Wealth(claim), _Wealth(claim)
    raw = [list(sampler.draw(data, _FIRST_BATCH)) for data in (first, second)]
    check_answers(*raw)
    reached, shown, drawn = 0.0, "never", _FIRST_BATCH
    while drawn < most and reached < -math.log(rate):
        width = max(widest(outputs) for outputs in raw)
        rows = [lay_out(outputs, width=width) for outputs in raw]
        events = best_events(rows[0], rows[1], delta=claim.delta, rate=rate)
        count = min(drawn, most - drawn)
        fresh = [list(sampler.draw(data, count)) for data in (first, second)]
        favoured, other = (lay_out(outputs, width=width) for outputs in fresh)
        _bet(wealths, events, favoured, other)
        # Each direction has half of the capital.
        value = float(np.logaddexp.reduce([one.log_value for one in wealths]) - math.log(2))
        if value > reached or shown == "never":
            stronger = int(wealths[1].log_value > wealths[0].log_value)
            shown = f"{DIRECTIONS[stronger]}: {events[stronger]}"
        reached = max(reached, value)
        raw = [old + new for old, new in zip(raw, fresh, strict=True)]
        drawn += count
    best = wealths[0].best_log_value(drawn - _FIRST_BATCH) - math.log(2)
    return SequentialAudit(
        _verdict(reached, best, rate), reached, drawn, claim.epsilon, claim.delta, rate, shown
    )


def _bet(
    wealths: tuple[_Wealth, _Wealth], events: tuple[Event, Event], first: Rows, second: Rows
) -> None:
    """Bet on an event for each direction, which was chosen without these outputs."""
    pairs = (first, second), (second, first)
    for wealth, event, (favoured, other) in zip(wealths, events, pairs, strict=True):
        won, lost = event.contains(favoured), event.contains(other)
        wealth.bet(
            right=int((won & ~lost).sum()),
            wrong=int((lost & ~won).sum()),
            both=int((won & lost).sum()),
            neither=int((~won & ~lost).sum()),
        )


@final
class TrainingBets:
    """Bets on runs of a trainer, one after the other, until the claim is refuted.

    Toss a coin, train with the canary if it says so, and hand in a score that was computed from
    what the trainer released alone, larger if the canary seems included. Guesses come from earlier
    runs.

    >>> bets = TrainingBets(epsilon=1.0, delta=1e-5, false_alarm_rate=0.05)
    >>> while not bets.violated:
    ...     included = bets.toss()
    ...     bets.hand_in(float(included))  # a trainer that tells
    >>> bets.runs < 60, bets.outcome().verdict
    (True, 'violated')

    Parameters
    ----------
    loss, epsilon, delta
        The claim: a loss, or two numbers.
    false_alarm_rate
        How often a right claim may ever be called violated.
    source
        Where coins come from; the operating system by default.
    """

    def __init__(
        self,
        *,
        loss: Loss | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        false_alarm_rate: float = 0.05,
        source: Source | None = None,
    ) -> None:
        self._claim = Claim.read(loss, epsilon, delta)
        self._rate = check_rate(false_alarm_rate)
        self._wealth = _Wealth(self._claim)
        self._source = choose_source(source)
        self._coin: bool | None = None
        self._scores: tuple[list[float], list[float]] = ([], [])
        self._reached = 0.0

    @property
    def runs(self) -> int:
        """How many runs were handed in."""
        return sum(map(len, self._scores))

    @property
    def violated(self) -> bool:
        """Whether the claim was refuted at some time."""
        return self._reached >= -math.log(self._rate)

    def toss(self) -> bool:
        """Return whether the canary takes part in the next run.

        Raises
        ------
        NotApplicable
            If the last run was not handed in: a run that is dropped could be one that was guessed
            wrongly.
        """
        if self._coin is not None:
            raise NotApplicable("the last run has no score yet: hand it in before the next toss")
        self._coin = bool(np.asarray(bernoulli("1/2", 1, source=self._source))[0])
        return self._coin

    def hand_in(self, score: float) -> None:
        """Bet on the run with what was seen before, and learn from it.

        Raises
        ------
        InvalidValue
            If the score is not a number.
        NotApplicable
            If there was no toss.
        """
        value = _validate.real("score", score)
        if self._coin is None:
            raise NotApplicable("toss() comes before each run")
        included, self._coin = self._coin, None
        guess = self._guess(value)
        right = guess is not None and guess == included
        wrong = guess is not None and guess != included
        self._wealth.bet(right=int(right), wrong=int(wrong), both=0, neither=int(guess is None))
        self._reached = max(self._reached, self._wealth.log_value)
        self._scores[int(included)].append(value)

    def _guess(self, score: float) -> bool | None:
        """Included, excluded, or nothing, by thresholds that would have paid in earlier runs."""
        outside, inside = (np.sort(np.asarray(part)) for part in self._scores)
        if score >= _threshold(inside, outside, self._wealth.cost):
            return True
        if -score >= _threshold(-outside[::-1], -inside[::-1], self._wealth.cost):
            return False
        return None

    def outcome(self) -> SequentialAudit:
        """Return what the bets say by now; more runs may follow."""
        best = self._wealth.best_log_value(self.runs)
        return SequentialAudit(
            _verdict(self._reached, best, self._rate),
            self._reached,
            self.runs,
            self._claim.epsilon,
            self._claim.delta,
            self._rate,
            "guesses about the canary of each run",
        )


def _threshold(inside: NDArray[np.float64], outside: NDArray[np.float64], cost: float) -> float:
    """The threshold that would have won most, with half a mistake more; inf if none would."""
    if not inside.size:
        return math.inf
    won = inside.size - np.arange(inside.size)
    lost = outside.size - np.searchsorted(outside, inside, side="left")
    gains = won - cost * (lost + 0.5 / (1 + outside.size))
    best = int(gains.argmax())
    return float(inside[best]) if gains[best] > 0 else math.inf


def _verdict(reached: float, best: float, rate: float) -> str:
    if reached >= -math.log(rate):
        return VIOLATED
    return CONSISTENT if best >= -math.log(rate) else TOO_WEAK


def _power(log_value: float) -> str:
    """A number by its natural logarithm, however large, rounded down."""
    if log_value < math.log(1e6):
        return f"{math.floor(math.exp(log_value) * 100 * (1 + 1e-12)) / 100:g}"
    return f"10^{math.floor(log_value / math.log(10) * 10) / 10:g}"
