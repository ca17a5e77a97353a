"""The robust attack RMIA (Zarifzadeh, Liu and Shokri 2024).

For a record x and records z of the population, the likelihood ratio is

    LR(x, z) = (p(x | target) / p(x)) / (p(z | target) / p(z)),

where p(x | target) is the confidence in the true class and p(x) its average over reference
models with and without x. The score of x is the share of z with LR(x, z) >= gamma. Since the
ratio of x enters every comparison alike, the share is read off the sorted ratios of the
population, in n log n steps instead of n squared.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from discreet import _validate
from discreet.attacks._contract import attack
from discreet.attacks._membership import MembershipResult
from discreet.attacks._shadow_scores import count_models, strength, trials
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.attacks._observation import Observation
    from discreet.attacks._shadow_scores import AlignedScores, ShadowScores


MODES = ("online", "offline")
# Values of a to choose from; the first, the paper's, is taken where nothing can be tried.
OFFLINE_A = (0.3, 0.0, 0.6, 1.0)
# Confidences of 0 have no logarithm; this is the smallest normal number.
_FLOOR = float(np.finfo(np.float64).tiny)


@attack(family="membership", access="probabilities")
def rmia(
    observation: Observation,
    shadows: ShadowScores,
    *,
    mode: str = "offline",
    gamma: float = 1.0,
    offline_a: float | None = None,
    population: Observation | None = None,
    false_positive_rate: float = 0.05,
) -> MembershipResult:
    """Score each record by how many records of the population it outdoes.

    Works with very few reference models. A ratio that ties with the threshold does not pass it, so
    that a model with one answer for all accuses no one. The threshold of the result is the score of
    the last ratio that must be passed.

    Parameters
    ----------
    observation : Observation
        The target's answers.
    shadows : ShadowScores
        The pool over the observed records.
    mode : {"offline", "online"}
        Offline uses only models without the record and estimates those with it as p_in = a p_out +
        (1 - a), so p(x) is ((1 + a) p_out + (1 - a)) / 2 (section 3.3 of the paper).
    gamma : float
        The ratio from which a record outdoes another, at least 1.
    offline_a : float, optional
        The number a; by default the one of 0, 0.3, 0.6 and 1 that finds most members at 1 % of
        false positives where shadow models take the place of the target.
    population : Observation, optional
        Records of the pool, not evaluated and no members, that serve as z. Without it, the
        evaluated records serve, which ranks records alike but makes the threshold cautious.
    false_positive_rate : float
        A non-member that is exchangeable with the population is accused with at most this chance.

    Returns
    -------
    MembershipResult
        Scores and decisions.

    Raises
    ------
    InvalidValue
        If there are too few shadow models, or the population holds members or evaluated records.
    """
    _validate.one_of("mode", mode, MODES)
    ratio = _validate.real("gamma", gamma, at_least=1)
    if offline_a is not None:
        _validate.real("offline_a", offline_a, at_least=0, at_most=1)
    rate = _validate.real("false_positive_rate", false_positive_rate, above=0, below=1)
    references = shadows.apart_from(observation)
    both = references.align(observation, signal="confidence")
    share, chosen_on = OFFLINE_A[0] if offline_a is None else float(offline_a), "given"
    if mode == "offline" and offline_a is None:
        share, chosen_on = _strongest(both)
    own = rmia_scores(both, mode, share)
    if population is None:
        others = own
    else:
        observation.check_reference(population, "population")
        beside = references.align(population, signal="confidence")
        others = rmia_scores(beside, mode, share)
    ranked = np.sort(others)
    last = ranked[_last_rank(len(others), rate, apart=population is not None) - 1]

    def score(values: NDArray[np.float64]) -> NDArray[np.float64]:
        beaten = np.searchsorted(ranked, values - np.log(ratio), side="right")
        return np.asarray(beaten / len(others))

    scores = score(own)
    return observation.judge(
        f"rmia {mode}",
        scores,
        own > last,
        float(score(last)),
        references=len(references),
        mode=mode,
        gamma=ratio,
        population=len(others),
        threshold_from=(
            f"the share {rate:g} of the evaluated records, which serve as the population"
            if population is None
            else f"the share {rate:g} of the population"
        ),
        threshold_saw_evaluated=population is None,
        **({"offline_a": share, "settings_chosen_on": chosen_on} if mode == "offline" else {}),
    )


def _last_rank(count: int, rate: float, *, apart: bool) -> int:
    """The rank of the ratio that must be passed, among ``count``.

    A record apart from the population is the one of count + 1 that is exchangeable with them;
    an evaluated one is among them, and at most a share ``rate`` of these passes.
    """
    rank = math.ceil((1 - rate) * (count + apart) * (1 - 1e-12))
    if rank > count:
        raise InvalidValue(
            "population",
            f"{count} records",
            f"at least {math.ceil((1 - 1e-12) / rate) - 1} for a false-positive rate of {rate:g}",
        )
    return rank


def check_rmia_models(inclusion: NDArray[np.bool_], *, mode: str = "offline") -> None:
    """Raise unless models with these training records are enough; call it before training.

    Parameters
    ----------
    inclusion
        Which records each shadow model was trained on.
    mode
        "online" or "offline".

    Raises
    ------
    InvalidValue
        If some record has too few models with it, or without it.
    """
    count_models("without", ~inclusion)
    if mode == "online":
        count_models("with", inclusion)


def _strongest(both: AlignedScores) -> tuple[float, str]:
    """Return the ``a`` that finds most members of shadow models, and on what it was chosen."""
    tried = trials(both, fewest=1)
    if not tried:
        return OFFLINE_A[0], "nothing: too few shadow models to try settings on"
    found = {
        share: strength(lambda one, a=share: rmia_scores(one, "offline", a), tried)  # type: ignore[misc]
        for share in OFFLINE_A
    }
    best = max(found, key=lambda share: found[share])
    return best, f"{len(tried)} shadow models in the place of the target"


def rmia_scores(both: AlignedScores, mode: str, share: float) -> NDArray[np.float64]:
    """log p(x | target) - log p(x) for every record, from confidences of target and references."""
    outside = _average("without", both.shadow, ~both.inclusion)
    if mode == "online":
        prior = (outside + _average("with", both.shadow, both.inclusion)) / 2
    else:
        prior = ((1 + share) * outside + (1 - share)) / 2
    return np.asarray(np.log(np.maximum(both.target, _FLOOR)) - np.log(np.maximum(prior, _FLOOR)))


def _average(
    kind: str, values: NDArray[np.float64], used: NDArray[np.bool_]
) -> NDArray[np.float64]:
    count = count_models(kind, used)
    return np.asarray(np.where(used, values, 0.0).sum(axis=0) / count)
