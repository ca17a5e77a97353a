"""The likelihood-ratio attack, LiRA (Carlini et al. 2022).

For each record, the scaled logit log(p / (1 - p)) of the true class is close to a Gaussian
over training runs; one Gaussian with the record inside, one with it outside. Online, the
score is the logarithm of the ratio of the two *densities* at the target's value. Offline only
models without the record are used, and the score is minus the logarithm of the probability
that such a model is as sure as the target is: a p-value. Mean and variance are estimates
themselves, so the p-value is that of the *predictive* distribution: Student's t with the
degrees of freedom of the variance, wider by 1 + 1/n for the mean of n models.

Variances come from few models. Here they are *moderated*: a record's own variance counts with
its degrees of freedom, the variance pooled over records with ``PRIOR_FREEDOM`` more, as in
Smyth's moderated t (2004). With many models this is the paper's variance per record, with few
it is the paper's common variance.

A model that answers 0 or 1, as forests do, has an infinite logit. Wherever it is cut off, all of
the record's variance comes from there, and nothing else counts: cut at the resolution of a double,
LiRA finds a tenth of what it finds when cut at 4. Which limit and which variance are best differs
by model. They are chosen on the shadow models (:mod:`discreet.attacks._shadow_scores`), never on
the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy import special

from discreet import _validate
from discreet.attacks import _signals as signals
from discreet.attacks._contract import attack
from discreet.attacks._membership import MembershipResult
from discreet.attacks._shadow_scores import count_models, strength, trials

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.attacks._observation import Observation
    from discreet.attacks._shadow_scores import AlignedScores, ShadowScores


MODES = ("online", "offline")
VARIANCES = ("moderated", "per_record", "shared")
PRIOR_FREEDOM = 4.0
# Limits of scaled logits to choose from; the first is taken where nothing can be tried.
LIMITS = (6.0, 4.0, 3.0, 8.0, 16.0, signals.RESOLUTION)
# Below the resolution of the scores; keeps the density of a constant score finite.
_SMALLEST_VARIANCE = 1e-12
_SMALLEST_TAIL = 1e-280


@final
@dataclass(frozen=True, eq=False)
class _Gaussians:
    """A Gaussian for each record."""

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    freedom: NDArray[np.float64]
    models: NDArray[np.int64]

    def log_density(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """The density up to the constant that both hypotheses share."""
        return -0.5 * ((value - self.mean) ** 2 / self.variance + np.log(self.variance))

    def surprise(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Minus the logarithm of the chance that one more draw exceeds ``value``."""
        standard = (value - self.mean) / np.sqrt(self.variance * (1 + 1 / self.models))
        return -_log_student_tail(standard, self.freedom)


@attack(family="membership", access="probabilities")
def lira(
    observation: Observation,
    shadows: ShadowScores,
    *,
    mode: str = "online",
    variance: str | None = None,
    false_positive_rate: float = 0.05,
    limit: float | None = None,
) -> MembershipResult:
    """Score each record by how much likelier the target's answer is with it than without.

    A ``variance`` or ``limit`` that is not given is chosen where shadow models take the place of
    the target: the setting that finds most members at 1 % of false positives.

    Parameters
    ----------
    observation : Observation
        The target's answers.
    shadows : ShadowScores
        The pool over the observed records. The target itself, or its twin, is never a reference.
    mode : {"online", "offline"}
        Online calls a record a member if its answer is likelier with it; offline, which needs no
        models with the record, if the p-value is at most ``false_positive_rate``.
    variance : {"moderated", "per_record", "shared"}, optional
        How the variance of a record is estimated.
    false_positive_rate : float
        Nominal: exact for Gaussian logits with ``variance="per_record"``; the moderated one is
        cautious where records vary alike, and too bold for records that vary far more.
    limit : float, optional
        Bounds scaled logits, those of models that answer exactly 0 or 1 among them.

    Returns
    -------
    MembershipResult
        Scores and decisions; its metadata say what was chosen.

    Raises
    ------
    InvalidValue
        If there are too few shadow models with or without a record.
    """
    _validate.one_of("mode", mode, MODES)
    if variance is not None:
        _validate.one_of("variance", variance, VARIANCES)
    rate = _validate.real("false_positive_rate", false_positive_rate, above=0, below=1)
    widest = signals.RESOLUTION if limit is None else _validate.real("limit", limit, above=0)
    both = shadows.align(observation, signal="scaled_logit", limit=widest)
    settings = [
        (one, other)
        for one in (VARIANCES if variance is None else (variance,))
        for other in (LIMITS if limit is None else (widest,))
    ]
    chosen_on = "given"
    if len(settings) > 1:
        settings, chosen_on = _strongest(both, mode, settings)
    variance, limit = settings[0]
    scores = lira_scores(both, mode, variance, limit)
    if mode == "online":
        threshold = 0.0
        origin = "the likelihood ratio 1 under shadow models"
    else:
        threshold = -float(np.log(rate))
        origin = f"a p-value of {rate:g} under shadow models, nominal"
    return observation.judge(
        f"lira {mode}",
        scores,
        scores > threshold if mode == "online" else scores >= threshold,
        threshold,
        references=len(both.shadow),
        variance=variance,
        limit=limit,
        settings_chosen_on=chosen_on,
        mode=mode,
        threshold_from=origin,
        threshold_saw_evaluated=False,
    )


def lira_scores(both: AlignedScores, mode: str, variance: str, limit: float) -> NDArray[np.float64]:
    """Return the score of each record, from scaled logits of target and references."""
    values, target = (np.clip(part, -limit, limit) for part in (both.shadow, both.target))
    outside = _fit("without", values, ~both.inclusion, variance)
    if mode == "offline":
        return outside.surprise(target)
    inside = _fit("with", values, both.inclusion, variance)
    return np.asarray(inside.log_density(target) - outside.log_density(target))


def check_lira_models(inclusion: NDArray[np.bool_], *, mode: str = "online") -> None:
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
    count_models("without", ~inclusion, largest=2)
    if mode == "online":
        count_models("with", inclusion, largest=2)


def _strongest(
    both: AlignedScores, mode: str, settings: list[tuple[str, float]]
) -> tuple[list[tuple[str, float]], str]:
    """Return the setting that finds most members of shadow models, and on what it was chosen."""
    tried = trials(both, fewest=2)
    if not tried:
        return settings[:1], "nothing: too few shadow models to try settings on"
    largest = max(float(np.abs(one.shadow).max()) for one, _ in tried)
    best, most = settings[0], -1.0
    known: dict[Any, float] = {}
    for variance, limit in settings:
        effective = (variance, min(limit, largest))  # a limit that nothing reaches changes nothing
        if effective not in known:
            known[effective] = strength(
                lambda one, v=variance, m=limit: lira_scores(one, mode, v, m),  # type: ignore[misc]
                tried,
            )
        if known[effective] > most:
            best, most = (variance, limit), known[effective]
    return [best], f"{len(tried)} shadow models in the place of the target"


def _fit(
    kind: str, values: NDArray[np.float64], used: NDArray[np.bool_], variance: str
) -> _Gaussians:
    """Gaussians over the models marked in ``used``, record by record."""
    count = count_models(kind, used, needed=2 if variance == "per_record" else 1, largest=2)
    mean = np.where(used, values, 0.0).sum(axis=0) / count
    squares = np.where(used, (values - mean) ** 2, 0.0).sum(axis=0)
    freedom = count - 1
    common = squares.sum() / freedom.sum()
    if variance == "shared":
        own, known = np.full(len(mean), common), np.full(len(mean), float(freedom.sum()))
    elif variance == "per_record":
        own, known = squares / freedom, freedom.astype(np.float64)
    else:
        known = freedom + PRIOR_FREEDOM
        own = (squares + PRIOR_FREEDOM * common) / known
    return _Gaussians(mean, np.maximum(own, _SMALLEST_VARIANCE), known, count)


def _log_student_tail(
    value: NDArray[np.float64], freedom: NDArray[np.float64]
) -> NDArray[np.float64]:
    """log P(T > value) of Student's t, also where the probability is below all numbers.

    There it is I_x(a, 1/2) / 2 with a = freedom / 2 and x = freedom / (freedom + value^2),
    by the series of DLMF 8.17.8 summed as a geometric one: a lower bound, and the logarithm
    is right to 0.002.
    """
    tail = special.stdtr(freedom, -value)
    far = tail < _SMALLEST_TAIL
    square, half = np.where(far, value, 1.0) ** 2, freedom / 2
    ratio = freedom / (freedom + square) * (half + 0.5) / (half + 1)
    log_far = (
        -half * np.log1p(square / freedom)
        - 0.5 * np.log1p(freedom / square)
        - np.log(half)
        - special.betaln(half, 0.5)
        - np.log1p(-ratio)
        - np.log(2.0)
    )
    return np.asarray(np.where(far, log_far, np.log(np.where(far, 1.0, tail))))
