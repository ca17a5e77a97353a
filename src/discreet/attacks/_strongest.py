"""Which of several attacks to quote: the one that is strongest on shadow models.

To run several attacks on the target and quote the best would quote luck as well: its interval
would miss the truth more often than it says. Which attack is quoted is decided on the
shadow models, before the target's members are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from discreet.attacks._lira import check_lira_models, lira, lira_scores
from discreet.attacks._rmia import check_rmia_models, rmia, rmia_scores
from discreet.attacks._trials import TRIED_FPR, strength, trials
from discreet.attacks._yeom import yeom
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.attacks._membership import MembershipResult
    from discreet.attacks._observation import Observation
    from discreet.attacks._shadow_pool import ShadowPool
    from discreet.attacks._shadow_scores import AlignedScores, ShadowScores


Attack = Callable[["AlignedScores"], "NDArray[np.float64]"]
_SIGNALS = {"yeom": "loss", "lira": "scaled_logit", "rmia": "confidence"}
# Where there are too few models to try anything: what is known to need the fewest of them first.
_WITHOUT_TRIALS = ("rmia", "lira", "yeom")


def strongest_of_three(observation: Observation, pool: ShadowPool) -> tuple[MembershipResult, ...]:
    """Train the pool and attack by :func:`yeom`, :func:`lira` and :func:`rmia`.

    One of the results is marked as the strongest, see :func:`mark_strongest`. LiRA is left out if
    the pool has too few models for it; a pool with too few for RMIA is refused before training.

    Parameters
    ----------
    observation
        What the target answers.
    pool
        Shadow models to train.

    Returns
    -------
    tuple of MembershipResult
        Of two or three attacks; one is marked.

    Raises
    ------
    InvalidValue
        If the pool has too few models.
    """
    check_rmia_models(pool.inclusion)
    try:
        check_lira_models(pool.inclusion)
        with_lira = True
    except InvalidValue:
        with_lira = False
    scores = pool.run()
    results = [yeom(observation)]
    if with_lira:
        results.append(lira(observation, scores))
    results.append(rmia(observation, scores))
    return mark_strongest(results, observation, scores)


def mark_strongest(
    results: Sequence[MembershipResult], observation: Observation, shadows: ShadowScores
) -> tuple[MembershipResult, ...]:
    """Return the results; the metadata of one say that it is ``strongest_on`` shadow models.

    Results of :func:`yeom`, :func:`lira` and :func:`rmia` on this observation are compared, with
    their settings, by the members that they find at 1 % of false positives where shadow models
    take the place of the target. Others are left as they are.

    Parameters
    ----------
    results
        Of attacks on one target.
    observation
        What they read.
    shadows
        The shadow models to try them on.

    Returns
    -------
    tuple of MembershipResult
        The same; one is marked.

    Raises
    ------
    InvalidValue
        If none of them can be tried.
    """
    known = [at for at, one in enumerate(results) if one.attack.split()[0] in _SIGNALS]
    if not known:
        raise InvalidValue("results", len(results), "one of yeom, lira or rmia at least")
    found: dict[int, float] = {}
    for at in known:
        signal = _SIGNALS[results[at].attack.split()[0]]
        both = shadows.align(observation, signal=signal)
        tried = trials(both, fewest=2) or trials(both, fewest=1)
        try:
            found[at] = strength(_attack_of(results[at]), tried) if tried else np.nan
        except InvalidValue:  # too few models for this attack, once one of them is the target
            found[at] = np.nan
    comparable = {at: value for at, value in found.items() if not np.isnan(value)}
    if comparable:
        best = max(comparable, key=lambda at: comparable[at])
        shown = ", ".join(f"{results[at].attack} {value:.3f}" for at, value in comparable.items())
        reason = f"shadow models: members found at {100 * TRIED_FPR:g} % FPR {shown}"
    else:
        rank = {name: place for place, name in enumerate(_WITHOUT_TRIALS)}
        best = min(known, key=lambda at: rank[results[at].attack.split()[0]])
        reason = "nothing: there are too few shadow models to try attacks on"
    marked = list(results)
    marked[best] = replace(
        results[best], metadata={**results[best].metadata, "strongest_on": reason}
    )
    return tuple(marked)


def _attack_of(result: MembershipResult) -> Attack:
    """Return the attack that gave a result, with its settings, as a function of scores."""
    said = result.metadata
    name = result.attack.split()[0]
    if name == "yeom":
        return lambda both: -both.target
    if name == "lira":
        limit = said["limit"]
        return lambda both: lira_scores(both, said["mode"], said["variance"], limit)
    return lambda both: rmia_scores(both, said["mode"], said.get("offline_a", 0.0))
