"""The attack of the bench: the likelihood ratio, on signals that fit the defended interface.

Three signals of an answer are tried: how sure it is of the canary's label, how sure on average over
slightly changed copies of the record, and how many of the copies get that label. The last needs
labels only, the second wears off noise that is drawn for each query. A signal becomes a target
of two classes, so that LiRA reads any of them.

Signal and settings are chosen on shadow models. The models fall into two groups; the choice for one
group is made by attacks inside of the other, so that no model has a part in the choice of its own
attack. The audit uses the first group as references, and of the second one model of each pair,
whose coins are independent.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from discreet.attacks import MembershipResult, Observation, ShadowScores, lira, pool_results

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIGNALS = ("confidence", "mean confidence", "labels of copies")
_VARIANCES = ("moderated", "shared")
_LIMITS = (4.0, 16.0)
_CHOSEN_AT = 0.01
_WIDEST = 30.0


@final
@dataclass(frozen=True)
class Choice:
    """A signal and the settings with which LiRA reads it."""

    signal: str
    variance: str
    limit: float

    def __str__(self) -> str:
        return f"{self.signal}, variance {self.variance}, limit {self.limit:g}"


CHOICES = tuple(Choice(*one) for one in itertools.product(SIGNALS, _VARIANCES, _LIMITS))


@final
@dataclass(frozen=True, eq=False)
class AttackOutcome:
    """The scores of all models on all drawn records, and those that the audit may use."""

    pooled: MembershipResult
    audited: NDArray[np.float64]
    chosen: tuple[Choice, Choice]


def read_signals(
    answers: NDArray[np.floating], labels: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    """Return each signal of (1 + copies, n, classes) log-probabilities; the record comes first."""
    floor = np.maximum(np.asarray(answers, dtype=np.float64), -_WIDEST)
    copies, count, _ = floor.shape
    own = np.broadcast_to(labels[None, :, None], (copies, count, 1))
    true = np.take_along_axis(floor, own, axis=2)[..., 0]
    others = floor.copy()
    np.put_along_axis(others, own, -np.inf, axis=2)
    logits = true - np.logaddexp.reduce(others, axis=2)
    right = (floor.argmax(axis=2) == labels).sum(axis=0)
    return {
        SIGNALS[0]: logits[0],
        SIGNALS[1]: logits.mean(axis=0),
        SIGNALS[2]: np.log((right + 0.5) / (copies - right + 0.5)),
    }


def attack_models(
    signals: Mapping[str, NDArray[np.float64]],
    inclusion: NDArray[np.bool_],
    names: NDArray[np.uint64],
) -> AttackOutcome:
    """Attack every model by all others, and the audited ones by the first group alone.

    ``signals`` are (models, n) and so is ``inclusion``; models 2 k and 2 k + 1 are a pair with
    complementary coins, and the first half of all models is the first group.
    """
    half = len(inclusion) // 2
    every = {name: _scores(values, inclusion, names) for name, values in signals.items()}
    groups = [
        {name: _scores(values[part], inclusion[part], names) for name, values in signals.items()}
        for part in (slice(0, half), slice(half, None))
    ]
    chosen = _choose(groups[1]), _choose(groups[0])
    results = []
    for row in range(len(inclusion)):
        seen, others = every[chosen[row >= half].signal].leave_out(row)
        results.append(_attack(seen, others, chosen[row >= half]))
    second = chosen[1]
    references = groups[0][second.signal]
    audited = [
        _attack(every[second.signal].leave_out(row)[0], references, second).scores
        for row in audited_models(len(inclusion))
    ]
    return AttackOutcome(pool_results(results), np.stack(audited), chosen)


def audited_models(models: int) -> range:
    """One model of each pair of the second group: their coins are independent."""
    return range(models // 2, models, 2)


def _choose(group: Mapping[str, ShadowScores]) -> Choice:
    """The choice that finds most members inside of a group, each model left out in turn."""
    best, most = CHOICES[0], -1.0
    for choice in CHOICES:
        scores = group[choice.signal]
        found = pool_results(
            [_attack(*scores.leave_out(row), choice) for row in range(len(scores))]
        )
        rate = max(_CHOSEN_AT, found.roc.smallest_fpr)
        strength = found.tpr_at(rate).share + 1e-3 * found.auc  # auc where no rate tells them apart
        if strength > most:
            best, most = choice, strength
    return best


def _attack(seen: Observation, others: ShadowScores, choice: Choice) -> MembershipResult:
    return lira(seen, others, variance=choice.variance, limit=choice.limit)


def _scores(
    signal: NDArray[np.float64], inclusion: NDArray[np.bool_], names: NDArray[np.uint64]
) -> ShadowScores:
    """A signal as the logit of class 1 against class 0."""
    two = np.stack([-np.logaddexp(0.0, signal), -np.logaddexp(0.0, -signal)], axis=-1)
    ones = np.ones(signal.shape[1], dtype=np.int64)
    return ShadowScores(list(two.astype(np.float32)), inclusion, ones, names)
