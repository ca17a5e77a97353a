"""S13: report-noisy-max with Laplace noise, and permute-and-flip; both exact and pure.

**Report-noisy-max** adds discrete Laplace noise to every score and names the largest, ties to the
lowest number. Fix the noise of all other candidates: candidate i wins if its own noise reaches a
threshold t_i, whichever way ties are decided by number. A neighbour moves t_i by at most R
(``selection`` defines it; on the grid in whole steps), and P(Z >= t + R) >= exp(-R / scale)
P(Z >= t) for discrete Laplace noise, term by term. So it is (R / scale)-DP: with R = 2 sensitivity
in general and R = sensitivity for monotone scores (Dwork and Roth 2014, claim 3.9). Only the
name is released; releasing the noisy maximum beside it costs more.

**Permute-and-flip** visits the candidates in random order and stops at the first whose coin, of
probability exp(-rate (best - score)), falls heads. It is (rate R)-DP and never worse than
the exponential mechanism at the same rate (McKenna and Sheldon 2020, theorems 1 and 2). All coins
are flipped, also those after the stop, so that the number of draws does not tell the scores.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from discreet import _validate
from discreet._validate import withheld
from discreet.errors import InvalidValue
from discreet.mechanisms.error_bars import least
from discreet.mechanisms.laplace import IntegerLaplace
from discreet.mechanisms.parameters import (
    either,
    few_enough_steps,
    flag,
    grid_for,
    rounded_up,
    stated_epsilon,
    stated_noise,
)
from discreet.mechanisms.selection import Pace, Selection, pick, stated_range, utility_bound
from discreet.privacy import PureDP, Relation
from discreet.randomness import (
    Source,
    bernoulli_exp,
    choose_source,
    laplace_on_grid,
    permutation,
    read_reals,
    sensitivity_on_grid,
)

__all__ = ["permute_and_flip", "report_noisy_max"]


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
    """S13: the candidate with the largest noisy score; pure (R / scale)-DP (see the module).

    Every score changes by at most ``sensitivity`` between neighbours. Scores are rounded to the
    grid of ``granularity`` (None: just below 2**-40 of the noise; 1 suits counts), and the
    loss speaks of the change after rounding.

    >>> chosen = report_noisy_max([3, 900, 5], candidates="xyz", sensitivity=1, epsilon=2)
    >>> chosen.value, chosen.loss  # another value has probability below e^-400
    ('y', PureDP(epsilon=2))
    """
    neighbours = Relation.parse(relation)
    stated_range(sensitivity, None, monotone, neighbours)
    change = _validate.fraction("sensitivity", sensitivity, above=0)
    moves = 1 if flag("monotone", monotone) else 2
    if either(epsilon=epsilon, scale=scale) == "scale":
        about = Fraction(stated_noise("scale", scale))
    else:
        about = moves * change / stated_epsilon(epsilon)[0]
    grid = grid_for(granularity, noise=about, sensitivity=change, array=True)
    width = moves * math.ceil(sensitivity_on_grid(change, granularity=grid))
    noise = IntegerLaplace.stated(
        sensitivity=width,
        epsilon=epsilon,
        scale=None if scale is None else about / grid,
        relation=neighbours,
    )
    few_enough_steps(granularity, noise.scale)
    cost = stated_epsilon(epsilon)[0] if scale is None else width / noise.exact_scale
    bits = choose_source(source, insecure_seed)
    row = _row(scores)
    named = pick(candidates, row.size)
    noisy = laplace_on_grid(row, scale=noise.exact_scale * grid, granularity=grid, source=bits)
    return Selection(
        named(int(np.argmax(noisy.steps))),
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
    """S13: permute-and-flip; pure epsilon-DP, and never worse than the exponential mechanism.

    ``scores`` are read exactly, and so are the probabilities of the coins. About 50 us for
    a candidate: for many candidates :func:`exponential_choice` is faster.

    >>> chosen = permute_and_flip([3, 900, 5], candidates="xyz", sensitivity=1, epsilon=2)
    >>> chosen.value, chosen.loss
    ('y', PureDP(epsilon=2))
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
    exact = _exact_scores(scores)
    named = pick(candidates, len(exact))
    best = max(exact)
    order = permutation(len(exact), source=bits)
    coins = [bernoulli_exp(pace.rate * (best - score), source=bits) for score in exact]
    winner = next(int(index) for index in order if coins[index])
    return Selection(
        named(winner),
        PureDP(pace.epsilon, pace.relation),
        {
            "mechanism": "permute_and_flip",
            "rate": rounded_up("rate", rate, pace.rate),
            "candidates": len(exact),
            "relation": pace.relation.value,
            **bits.provenance,
        },
        _shortfall=partial(_flip_shortfall, len(exact), pace.rate),
    )


def _row(scores: Any) -> Any:
    row = read_reals("scores", scores)
    if row.ndim != 1:
        raise InvalidValue("scores", f"shape {row.shape}", "one row")
    return row


def _exact_scores(scores: Any) -> list[Fraction]:
    expected = "a non-empty row of finite numbers"
    if isinstance(scores, np.ndarray):
        scores = _row(scores).tolist()
    if not isinstance(scores, Sequence) or isinstance(scores, str | bytes) or not scores:
        raise withheld("scores", expected)
    exact = []
    for score in scores:
        if isinstance(score, bool | np.bool_) or not isinstance(score, numbers.Real):
            raise withheld("scores", expected)
        if isinstance(score, numbers.Rational):
            exact.append(Fraction(int(score.numerator), int(score.denominator)))
        elif math.isfinite(score):
            exact.append(Fraction(float(score)))
        else:
            raise withheld("scores", expected)
    return exact


def _flip_shortfall(count: int, rate: Fraction, beta: float) -> float:
    return utility_bound(count, rate=rate, beta=beta)


def _noisy_shortfall(count: int, scale: Fraction, grid: Fraction, beta: float) -> float:
    """The least T = (m + 1) steps with (count - 1) P(Z - Z' >= m) <= beta.

    A candidate that is T below the best one is at least m steps below it after rounding, and wins
    only if its noise Z exceeds that of the best one, Z', by as much.
    """

    def rare(m: int) -> bool:
        return (count - 1) * difference_tail(scale, m) * (1.0 + 1e-9) <= beta

    steps = least(rare, 1) + 1
    return float(steps * grid) * (1.0 + 1e-15)


def difference_tail(scale: Fraction, m: int) -> float:
    """P(Z - Z' >= m), m >= 0, for independent discrete Laplace noises of one scale.

    With r = e^(-1/scale): (1-r)/(1+r)^2 r^m (m + r/(1-r) + (1+r^2)/(1-r^2)), summed from the
    convolution; (2 + x) e^-x / 4 with x = m / scale where the scale is large.

    >>> round(difference_tail(Fraction(10**6), 10**6), 5) == round(0.75 * math.exp(-1), 5)
    True
    """
    unit = float(1 / scale)
    r, gap = math.exp(-unit), -math.expm1(-unit)
    wide = m + r / gap + (1.0 + r * r) / (gap * (1.0 + r))
    return gap / (1.0 + r) ** 2 * math.exp(-float(m / scale)) * wide
