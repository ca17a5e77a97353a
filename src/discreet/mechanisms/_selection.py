"""Selection of one candidate by scores: exponential mechanism, noisy max, permute-and-flip.

What a neighbour can do to the scores is measured by their range R
(:class:`._parameters.SelectionRate` defines it); a selection at ``rate`` costs epsilon = rate R.

**The exponential mechanism** chooses candidate y with probability proportional to
exp(rate u(D, y)). At rate = epsilon / (2 sensitivity) that is epsilon-DP (McSherry and Talwar
2007); with scores that all move in one direction the rate may be twice that. More is true: the
privacy losses of all outputs lie in one interval of length rate R = epsilon, so the loss is
the epsilon-*bounded-range* one, ``Exponential(epsilon)`` (Durfee and Rogers 2019), which composes
better than pure DP. Report-noisy-max with Gumbel noise is this same mechanism. The draw is an
exact race (:class:`discreet.randomness.Race`): no rounding of a secret score, no overflow of an
exponential and no normalising sum can shift a probability.

**Report-noisy-max** adds discrete Laplace noise to every score and names the largest, ties to the
lowest number. Fix the noise of all other candidates: candidate i wins if its own noise reaches a
threshold t_i, whichever way ties are decided by number. A neighbour moves t_i by at most R
(on the grid in whole steps), and P(Z >= t + R) >= exp(-R / scale)
P(Z >= t) for discrete Laplace noise, term by term. So it is (R / scale)-DP: with R = 2 sensitivity
in general and R = sensitivity for monotone scores (Dwork and Roth 2014, claim 3.9). Only the
name is released; releasing the noisy maximum beside it costs more.

**Permute-and-flip** visits the candidates in random order and stops at the first whose coin, of
probability exp(-rate (best - score)), falls heads. It is (rate R)-DP and never worse than
the exponential mechanism at the same rate (McKenna and Sheldon 2020, theorems 1 and 2). All coins
are flipped, also those after the stop, so that the number of draws does not tell the scores.

**A coin's parameter** is the continuous example of McSherry and Talwar. The score of theta is the
log-likelihood of the flips, heads log theta + tails log(1 - theta), on
the interval (margin, 1 - margin), so that theta has the density of a Beta(1 + c heads,
1 + c tails) cut to the interval. One flip changes the score by log theta or log(1 - theta):

=============  =======================  ==========================
relation       sensitivity D            range R of the change
=============  =======================  ==========================
add_remove     -log margin = 2.303      log((1 - margin)/margin) = 2.197
replace        R / 2 = 2.197            2 log((1 - margin)/margin) = 4.394
=============  =======================  ==========================

(figures for margin 0.1). The usual c is epsilon / (2 D); the cost is c R, so that under
add_remove c = epsilon / R, more than twice as large, already suffices. Theta is drawn exactly,
from a fine grid of midpoints. Their logarithms are rounded once to
multiples of 2**-52; the rounded ones, which are public constants, *define* the score, and R is
read off them. So nothing in the guarantee rests on a rounding error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.mechanisms._counts import FractionError
from discreet.mechanisms._intervals import least_integer
from discreet.mechanisms._noise import LaplaceNoise
from discreet.mechanisms._parameters import (
    SelectionRate,
    check_steps,
    grid_for,
    read_epsilon,
    read_noise,
    read_range,
    round_up,
)
from discreet.mechanisms._release import Selection
from discreet.privacy import Exponential, Loss, PureDP, Relation
from discreet.randomness import (
    Race,
    Source,
    bernoulli_exp,
    choose_source,
    permutation,
    read_integer,
    read_reals,
    read_row,
    round_to_grid,
    select,
    sensitivity_on_grid,
    to_fraction,
)

CALIBRATIONS = ("range", "sensitivity")
"""What c is computed from: the range of the score's change, or twice its sensitivity."""

_UNIT = 1 << 52


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
    """Choose one of finitely many candidates; epsilon-bounded range, hence epsilon-DP.

    Parameters
    ----------
    scores : sequence or array
        Finite numbers, one for each candidate, read exactly; private.
    candidates : sequence, optional
        What is chosen from, one entry for each score; public. Without it the value is the
        number of the chosen one.
    sensitivity, score_range : number or str
        By how much a score changes at most, or the range R of the changes: exactly one of them.
    monotone : bool
        Whether all scores move in one direction (not under replace).
    epsilon, rate : number or str
        What the selection may cost, or its rate: exactly one of them.
    relation : Relation or str
        What neighbours are.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Selection
        The candidate. ``shortfall`` gives the utility bound (2 sensitivity / epsilon)(ln of
        the number of candidates + ln 1/beta), beta = 1 - confidence, halved for monotone scores.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; scores are not shown.

    Examples
    --------
    >>> chosen = exponential_choice([3, 900, 5], candidates="xyz", sensitivity=1, epsilon=2)
    >>> chosen.value, chosen.loss  # another value has probability 2 e^-895
    ('y', Exponential(epsilon=2.0))
    >>> round(chosen.shortfall(confidence=0.95), 3)
    4.094
    """
    pace = SelectionRate.read(
        sensitivity=sensitivity,
        score_range=score_range,
        monotone=monotone,
        epsilon=epsilon,
        rate=rate,
        relation=relation,
    )
    bits = choose_source(source, insecure_seed)
    race = Race(rate=pace.rate, source=bits)
    named = _name_candidates(candidates, None if candidates is None else _length(scores))
    race.enter(scores)
    count = race.entered
    return _selection("exponential_choice", named(race.winner()), pace, count, bits)


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
    """Choose among candidates that arrive in parts; one pass, memory of one part.

    The probabilities are exactly those of :func:`exponential_choice` on all scores at once; only
    those who may still win, nearly always one, are kept.

    Parameters
    ----------
    parts : iterable of arrays
        The scores, part by part; private. How many candidates there are must be public.
    sensitivity, score_range : number or str
        By how much a score changes at most, or the range R of the changes: exactly one of them.
    monotone : bool
        Whether all scores move in one direction (not under replace).
    epsilon, rate : number or str
        What the selection may cost, or its rate: exactly one of them.
    relation : Relation or str
        What neighbours are.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Selection of int
        The number of the chosen candidate, counted over all parts.

    Raises
    ------
    InvalidValue
        If an argument cannot be used. A score that is not finite ends the pass and nothing is
        released, but by then bits have been drawn for the parts before.

    Examples
    --------
    >>> import numpy as np
    >>> parts = (np.arange(start, start + 1000) for start in range(0, 50_000, 1000))
    >>> exponential_stream(parts, score_range=1, epsilon=500).value  # P(other) = 1e-217
    49999
    """
    pace = SelectionRate.read(
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
    return _selection("exponential_stream", race.winner(), pace, count, bits)


def permute_and_flip(
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
    """Choose by permute-and-flip; pure epsilon-DP, never worse than the exponential mechanism.

    About 50 us for a candidate: for many candidates :func:`exponential_choice` is faster.

    Parameters
    ----------
    scores : sequence or array
        Finite numbers, one for each candidate, read exactly; private.
    candidates : sequence, optional
        What is chosen from, one entry for each score; public. Without it the value is the
        number of the chosen one.
    sensitivity, score_range : number or str
        By how much a score changes at most, or the range R of the changes: exactly one of them.
    monotone : bool
        Whether all scores move in one direction (not under replace).
    epsilon, rate : number or str
        What the selection may cost, or its rate: exactly one of them.
    relation : Relation or str
        What neighbours are.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Selection
        The candidate. ``shortfall`` gives the bound of :func:`utility_bound`.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; scores are not shown.

    Examples
    --------
    >>> chosen = permute_and_flip([3, 900, 5], candidates="xyz", sensitivity=1, epsilon=2)
    >>> chosen.value, chosen.loss
    ('y', PureDP(epsilon=2))
    """
    pace = SelectionRate.read(
        sensitivity=sensitivity,
        score_range=score_range,
        monotone=monotone,
        epsilon=epsilon,
        rate=rate,
        relation=relation,
    )
    bits = choose_source(source, insecure_seed)
    exact = [to_fraction(score) for score in read_row("scores", scores)]
    named = _name_candidates(candidates, len(exact))
    best = max(exact)
    order = permutation(len(exact), source=bits)
    coins = [bernoulli_exp(pace.rate * (best - score), source=bits) for score in exact]
    winner = next(int(index) for index in order if coins[index])
    loss = PureDP(pace.epsilon, pace.relation)
    return _selection("permute_and_flip", named(winner), pace, len(exact), bits, loss)


def report_noisy_max(
    scores: Any,
    *,
    candidates: Sequence[Any] | None = None,
    sensitivity: object,
    monotone: bool = False,
    epsilon: object = None,
    scale: object = None,
    granularity: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Selection[Any]:
    """Choose the candidate with the largest noisy score; pure (R / scale)-DP.

    Parameters
    ----------
    scores : sequence or array
        Finite numbers, one for each candidate; private.
    candidates : sequence, optional
        What is chosen from, one entry for each score; public. Without it the value is the
        number of the chosen one.
    sensitivity : number or str
        By how much every score changes at most between neighbours.
    monotone : bool
        Whether all scores move in one direction (not under replace).
    epsilon, scale : number or str
        What the selection may cost, or the scale of the noise: exactly one of them.
    granularity : number or str, optional
        The step of the grid that scores are rounded to, a power of two; by default just below
        2**-40 of the noise. 1 suits counts. The loss speaks of the change after rounding.
    relation : Relation or str
        What neighbours are.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Selection
        The candidate; ``shortfall`` uses the tail of the difference of two noises.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; scores are not shown.

    Examples
    --------
    >>> chosen = report_noisy_max([3, 900, 5], candidates="xyz", sensitivity=1, epsilon=2)
    >>> chosen.value, chosen.loss  # another value has probability below e^-400
    ('y', PureDP(epsilon=2))
    """
    neighbours = Relation.parse(relation)
    read_range(sensitivity, None, monotone, neighbours)
    change = _validate.fraction("sensitivity", sensitivity, above=0)
    moves = 1 if _validate.flag("monotone", monotone) else 2
    if _validate.exactly_one(epsilon=epsilon, scale=scale) == "scale":
        about = Fraction(read_noise("scale", scale))
    else:
        about = moves * change / read_epsilon(epsilon)[0]
    grid = grid_for(granularity, noise=about, sensitivity=change, array=True)
    width = moves * math.ceil(sensitivity_on_grid(change, granularity=grid))
    noise = LaplaceNoise.read(
        sensitivity=width,
        epsilon=epsilon,
        scale=None if scale is None else about / grid,
        relation=neighbours,
    )
    check_steps(granularity, noise.scale)
    cost = read_epsilon(epsilon)[0] if scale is None else width / noise.exact_scale
    bits = choose_source(source, insecure_seed)
    row = read_reals("scores", scores)
    if row.ndim != 1:
        raise InvalidValue("scores", f"shape {row.shape}", "one row")
    named = _name_candidates(candidates, row.size)
    noisy = round_to_grid(row, granularity=grid) + noise.draw(row.size, bits)
    return Selection(
        named(int(np.argmax(noisy))),
        PureDP(cost, neighbours),
        {
            "mechanism": "report_noisy_max",
            "scale_in_steps": noise.scale,
            "granularity": str(grid),
            "candidates": int(row.size),
            "relation": neighbours.value,
            **bits.provenance,
        },
        _shortfall=partial(_noisy_shortfall, row.size, noise.exact_scale, grid),
    )


def bernoulli_parameter(
    heads: int,
    tails: int,
    *,
    epsilon: object,
    relation: Relation | str = Relation.ADD_REMOVE,
    calibration: str = "range",
    margin: object = "0.1",
    points: int = 4096,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Selection[float]:
    """Choose a coin's parameter from a truncated Beta(1 + c heads, 1 + c tails); epsilon-DP.

    Parameters
    ----------
    heads, tails : int
        How often each side came up; private.
    epsilon : number or str
        What the selection may cost.
    relation : Relation or str
        What neighbours are.
    calibration : {"range", "sensitivity"}
        "range" takes c = epsilon / R and spends all of epsilon; "sensitivity" takes the usual
        c = epsilon / (2 D), which under add_remove costs only epsilon log 9 / (2 log 10) =
        0.477 epsilon for margin 0.1; the loss says so.
    margin : number or str
        The parameter lies between margin and 1 - margin.
    points : int
        How many midpoints the grid has.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Selection of float
        The parameter. ``shortfall`` bounds the distance to the best log-likelihood on the grid.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; the counts are not shown.

    Examples
    --------
    >>> drawn = bernoulli_parameter(70_000, 30_000, epsilon=0.1, insecure_seed=3)
    >>> abs(drawn.value - 0.7) < 0.05, round(drawn.provenance["concentration"], 5)
    (True, 0.04551)
    >>> usual = bernoulli_parameter(7, 3, epsilon=0.1, calibration="sensitivity")
    >>> round(usual.provenance["concentration"], 5)  # 0.1 / (2 * 2.3026)
    0.02171
    >>> usual.loss.epsilon(delta=0) < 0.048
    True
    """
    neighbours = Relation.parse(relation)
    method = _validate.one_of("calibration", calibration, CALIBRATIONS)
    table, concentration = _concentration(epsilon, neighbours, method, margin, points)
    cost = concentration * table.spread(neighbours) / _UNIT
    loss = Exponential(round_up("epsilon", epsilon, cost), neighbours)
    bits = choose_source(source, insecure_seed)
    counts = (
        read_integer("heads", heads, at_least=0, at_most=1 << 400),
        read_integer("tails", tails, at_least=0, at_most=1 << 400),
    )
    scores = [counts[0] * a + counts[1] * b for a, b in zip(table.heads, table.tails, strict=True)]
    chosen = select(scores, rate=concentration / _UNIT, source=bits)
    return Selection(
        table.candidates[chosen],
        loss,
        {
            "mechanism": "bernoulli_parameter",
            "concentration": float(concentration),
            "calibration": method,
            "points": points,
            "relation": neighbours.value,
            **bits.provenance,
        },
        _shortfall=partial(_shortfall_at, points, concentration),
    )


def _concentration(
    epsilon: object, relation: Relation, method: str, margin: object, points: int
) -> tuple[_Table, Fraction]:
    """Return the grid, and c: what each flip counts in the exponent."""
    edge = _validate.fraction("margin", margin, above=0)
    if edge >= Fraction(1, 2):
        raise InvalidValue("margin", margin, "a number with 0 < margin < 1/2")
    table = _table(edge, _validate.integer("points", points, at_least=2, at_most=1 << 20))
    target, _ = read_epsilon(epsilon)
    # In units of 2**-52, both rounded up by more than their rounding errors.
    odds, least = math.log(float((1 - edge) / edge)), -math.log(float(edge))
    if relation is Relation.REPLACE:
        sensitivity, spread = odds, 2.0 * odds
    else:
        sensitivity, spread = least, odds
    width = spread if method == "range" else 2.0 * sensitivity
    return table, target / (Fraction(math.ceil(width * (1.0 + 1e-14) * _UNIT) + 4) / _UNIT)


def bernoulli_parameter_error(
    heads: int,
    tails: int,
    *,
    epsilon: object,
    relation: Relation | str = Relation.ADD_REMOVE,
    calibration: str = "range",
    margin: object = "0.1",
    points: int = 4096,
) -> FractionError:
    """Return the mean squared error of :func:`bernoulli_parameter` for assumed public counts.

    Parameters
    ----------
    heads, tails : int
        Assumed counts, at least one flip together; NOT those of private data.
    epsilon, relation, calibration, margin, points
        As in :func:`bernoulli_parameter`.

    Returns
    -------
    FractionError
        Exact, by summation over the grid, about heads / N; and p (1 - p) / (c N), the variance of
        the Beta law far from both margins: it falls like 1 / N, not 1 / N^2.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> error = bernoulli_parameter_error(50_000, 50_000, epsilon=0.1)
    >>> round(error.formula * 100_000, 3), round(error.exact * 100_000, 2)
    (5.493, 5.49)
    """
    first = _validate.integer("heads", heads, at_least=0, at_most=1 << 50)
    second = _validate.integer("tails", tails, at_least=0, at_most=1 << 50)
    if not first + second:
        raise InvalidValue("heads", heads, "at least one flip together with tails")
    method = _validate.one_of("calibration", calibration, CALIBRATIONS)
    table, rate = _concentration(epsilon, Relation.parse(relation), method, margin, points)
    thetas, c, share = np.array(table.candidates), float(rate), first / (first + second)
    scores = c * (first * np.log(thetas) + second * np.log1p(-thetas))
    chance = np.exp(scores - scores.max())
    exact = float(((thetas - share) ** 2 * chance).sum() / chance.sum())
    return FractionError(exact, share * (1.0 - share) / (c * (first + second)))


def utility_bound(candidates: int, *, rate: object, beta: float) -> float:
    """Return (1 / rate) (ln candidates + ln 1/beta), how far below the best a choice may be.

    Parameters
    ----------
    candidates : int
        How many there are.
    rate : number or str
        The rate of the selection.
    beta : float
        The probability of a worse choice.

    Returns
    -------
    float
        The bound, in units of the score.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Notes
    -----
    The exponential mechanism and permute-and-flip choose a candidate whose score is at least this
    far below the best with probability at most ``beta``: there are fewer than ``candidates`` of
    them, and each is exp(-rate times the distance) times as likely as the best one
    (McSherry and Talwar 2007, theorem 6); for permute-and-flip each wins only if its own coin,
    of that probability, falls heads.

    Examples
    --------
    >>> round(utility_bound(100, rate=0.5, beta=0.05), 3)
    15.202
    """
    count = _validate.integer("candidates", candidates, at_least=1)
    pace = _validate.fraction("rate", rate, above=0)
    risk = _validate.real("beta", beta, above=0, below=1)
    return (math.log(count) - math.log(risk)) * (1.0 + 1e-14) / float(pace)


def _name_candidates(candidates: Sequence[Any] | None, count: int | None) -> Callable[[int], Any]:
    """Return what turns the number of a candidate into the candidate, or raise."""
    if candidates is None:
        return lambda index: index
    if not hasattr(candidates, "__getitem__") or not hasattr(candidates, "__len__"):
        raise InvalidValue("candidates", candidates, "a sequence, one entry for each score")
    if len(candidates) != count:
        raise InvalidValue("candidates", f"{len(candidates)} entries", f"{count}, one for a score")
    return candidates.__getitem__


def _length(scores: Any) -> int:
    try:
        return len(scores)
    except TypeError:
        raise InvalidValue("scores", type(scores).__name__, "a row of finite numbers") from None


def _selection(
    mechanism: str,
    value: Any,
    pace: SelectionRate,
    count: int,
    bits: Source,
    loss: Loss | None = None,
) -> Selection[Any]:
    return Selection(
        value,
        Exponential(pace.reported, pace.relation) if loss is None else loss,
        {
            "mechanism": mechanism,
            "rate": round_up("rate", str(pace.rate), pace.rate),
            "candidates": count,
            "relation": pace.relation.value,
            **bits.provenance,
        },
        _shortfall=partial(_shortfall_at, count, pace.rate),
    )


def _shortfall_at(count: int, rate: Fraction, beta: float) -> float:
    return utility_bound(count, rate=rate, beta=beta)


def _noisy_shortfall(count: int, scale: Fraction, grid: Fraction, beta: float) -> float:
    """Return the least T = (m + 1) steps with (count - 1) P(Z - Z' >= m) <= beta.

    A candidate that is T below the best one is at least m steps below it after rounding, and wins
    only if its noise Z exceeds that of the best one, Z', by as much.
    """

    def rare(m: int) -> bool:
        return (count - 1) * difference_tail(scale, m) * (1.0 + 1e-9) <= beta

    steps = least_integer(rare, 1) + 1
    return float(steps * grid) * (1.0 + 1e-15)


def difference_tail(scale: Fraction, m: int) -> float:
    """Return P(Z - Z' >= m), m >= 0, for independent discrete Laplace noises of one scale.

    With r = e^(-1/scale): (1-r)/(1+r)^2 r^m (m + r/(1-r) + (1+r^2)/(1-r^2)), summed from the
    convolution; (2 + x) e^-x / 4 with x = m / scale where the scale is large.

    >>> round(difference_tail(Fraction(10**6), 10**6), 5) == round(0.75 * math.exp(-1), 5)
    True
    """
    unit = float(1 / scale)
    r, gap = math.exp(-unit), -math.expm1(-unit)
    wide = m + r / gap + (1.0 + r * r) / (gap * (1.0 + r))
    return gap / (1.0 + r) ** 2 * math.exp(-float(m / scale)) * wide


@final
@dataclass(frozen=True)
class _Table:
    """Midpoints, and the public integers that stand for their log-likelihoods."""

    candidates: tuple[float, ...]
    heads: tuple[int, ...]
    tails: tuple[int, ...]

    def spread(self, relation: Relation) -> int:
        """Return the exact range of a neighbour's change of the scores, in units of 2**-52."""
        if relation is Relation.REPLACE:
            change = [a - b for a, b in zip(self.heads, self.tails, strict=True)]
            return 2 * max(abs(value) for value in change)
        return max(max(row) - min(row) for row in (self.heads, self.tails))


@lru_cache(maxsize=8)
def _table(margin: Fraction, points: int) -> _Table:
    low, width = float(margin), float(1 - 2 * margin)
    thetas = tuple(low + width * (j + 0.5) / points for j in range(points))
    return _Table(
        thetas,
        tuple(round(math.log(theta) * _UNIT) for theta in thetas),
        tuple(round(math.log1p(-theta) * _UNIT) for theta in thetas),
    )
