"""The accountants: one loss, several theorems that turn it into an epsilon.

============  ====================================================================
``naive``     the exact (epsilon, delta) of every step, summed
``advanced``  the same steps under advanced composition
``optimal``   the same steps, each worst-case, composed exactly (Kairouz, Oh, Viswanath 2015)
``zcdp``      zero-concentrated DP, summed, tight conversion
``moments``   the moments accountant (Abadi et al. 2016): real orders, Markov's bound
``rdp``       Renyi DP at real orders, tight conversion
``pld``       certified privacy-loss distributions
``best``      the smallest of those that apply
============  ====================================================================

For ``pld`` the caller asks for a tolerance, never for a grid. A loss is turned into terms that
:mod:`discreet.privacy._bracket` can search: Gaussians are merged into one, losses without a
tight pair become pairs that dominate them, and what has a closed form gets it. The number of steps
enters only as an exponent, so it does not matter; distinct atoms cost in proportion to their
number.

Every answer is an upper bound. An accountant that does not cover a loss raises
``NotApplicable`` and says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import numpy as np

from discreet import _validate
from discreet._rounding import round_up
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import _bracket, _renyi
from discreet.privacy._bracket import Terms
from discreet.privacy._claims import ApproxDP, PureDP
from discreet.privacy._composition import NO_TIGHT_PAIR, Grouped, compose, parts_of
from discreet.privacy._correlation import Correlated
from discreet.privacy._gaussian import SMALLEST_MU, Gaussian
from discreet.privacy._loss import ACCOUNTANTS, Bounds, Loss, Relation, largest_loss
from discreet.privacy._pair import Pair, Resolution
from discreet.privacy._sampling import SampledWithoutReplacement
from discreet.privacy.theorems import (
    PosteriorBounds,
    gaussian_delta,
    gaussian_epsilon,
    posterior_interval,
)

CLOSED_FORM_ERROR = 1e-9
LARGEST_MU = 1e9
# What is tried where the first bracket is wider than was asked for.
FINER_TOLERANCES = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
ATTAINED = "the upper bound is for the worst data sets of each step, the lower one for two of them"
OUT_OF_RANGE = "the numbers leave the range of floating point, so nothing is certified"


def epsilon(loss: Loss, *, delta: float, accountant: str = "best") -> float:
    """See :meth:`discreet.privacy.Loss.epsilon`."""
    target = _validate.real("delta", delta, at_least=0, below=1)
    name = _validate.one_of("accountant", accountant, ACCOUNTANTS)
    return _reading(name, loss, target)


def _reading(name: str, loss: Loss, delta: float) -> float:
    """What an accountant says; where a claim is beyond floating point, infinity."""
    try:
        return _READERS[name](loss, delta)
    except OverflowError:
        return math.inf


def epsilon_bounds(loss: Loss, *, delta: float, tolerance: float | None = None) -> Bounds:
    """See :meth:`discreet.privacy.Loss.epsilon_bounds`."""
    target = _validate.real("delta", delta, at_least=0, below=1)
    if tolerance is not None:
        tolerance = _validate.real("tolerance", tolerance, above=0, below=1)
    found = _certified_epsilon(loss, target, tolerance)
    if found.note != NO_TIGHT_PAIR or target == 0.0:
        return found
    least = _find_attained(loss)
    return found if least is None else _raise_lower(found, epsilon_bracket(least, target).lower)


def _certified_epsilon(loss: Loss, delta: float, tolerance: float | None = None) -> Bounds:
    bracket = epsilon_bracket(loss, delta, tolerance)
    pure = basic_epsilon(loss, delta)
    if not pure < bracket.upper:
        return bracket
    lower = min(bracket.lower, pure)
    if pure - lower <= _bracket.promise(pure, tolerance):
        return Bounds(lower, pure)
    return Bounds(lower, pure, bracket.tolerance_met, bracket.note)


def delta_bounds(loss: Loss, *, epsilon: float) -> Bounds:
    """See :meth:`discreet.privacy.Loss.delta_bounds`."""
    at = _validate.real("epsilon", epsilon, at_least=0)
    if largest_loss(loss) <= at:
        return Bounds(0.0, 0.0)
    found = delta_bracket(loss, at)
    if found.note != NO_TIGHT_PAIR:
        return found
    least = _find_attained(loss)
    return found if least is None else _raise_lower(found, delta_bracket(least, at).lower)


def _find_attained(loss: Loss) -> Loss | None:
    """Return a loss whose pair two data sets have where that of ``loss`` is not tight, or None.

    Let every other record be -1 and the changed one be 1 or -1. A subset of fixed size sums to
    the same number unless it has the changed record, and then differs by 2: that is the pair of a
    Poisson sample with the same rate and mu, the same at every step.
    """
    parts: list[tuple[Loss, int]] = []
    for part, n in parts_of(loss):
        subset = part if isinstance(part, SampledWithoutReplacement) else None
        mu = (part if subset is None else subset.base).gaussian_mu()
        if mu is None:
            return None
        once = Gaussian((1.0 + 1e-15) / mu)
        parts.append(
            (once if subset is None else once.poisson(rate=subset.rate * (1.0 - 1e-15)), n)
        )
    return compose(parts)


def _raise_lower(found: Bounds, lower: float) -> Bounds:
    """The bracket with a better lower end; the upper one says the same as before."""
    if lower <= found.lower:
        return found
    return replace(found, lower=min(lower, found.upper), note=ATTAINED)


def every_accountant(loss: Loss, *, delta: float) -> dict[str, float | str]:
    """Read a loss with every accountant.

    Parameters
    ----------
    loss
        Any loss.
    delta
        At least 0 and below 1.

    Returns
    -------
    dict
        Each accountant's epsilon, or the reason why it does not apply.

    Examples
    --------
    >>> from discreet.privacy import Gaussian
    >>> answers = every_accountant(100 * Gaussian(20.0), delta=1e-5)
    >>> answers["pld"] <= answers["rdp"]
    True
    """
    answers: dict[str, float | str] = {}
    for name in ACCOUNTANTS:
        try:
            answers[name] = epsilon(loss, delta=delta, accountant=name)
        except NotApplicable as reason:
            answers[name] = str(reason)
    return answers


def tradeoff(loss: Loss, fpr: float | np.ndarray) -> Any:
    """See :meth:`discreet.privacy.Loss.tradeoff`.

    The best power at level a is min over eps of e^eps a + delta(eps) and of
    1 - e^-eps (1 - a - delta(eps)); every eps is valid, so a finite set of them is.
    """
    try:
        level = np.asarray(fpr, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise InvalidValue("fpr", fpr, "numbers with 0 <= fpr <= 1") from None
    wrong = level[~((level >= 0.0) & (level <= 1.0))]
    if wrong.size or not level.size:
        shown = float(wrong.flat[0]) if wrong.size else fpr
        raise InvalidValue("fpr", shown, "at least one number, each with 0 <= fpr <= 1")
    points, deltas = _profile(loss)
    flat = level.reshape(-1, 1)
    steep = np.exp(np.minimum(points, 700.0)) * flat + deltas
    shallow = 1.0 - np.exp(-points) * (1.0 - flat - deltas)
    steep[:, points > 700.0] = 1.0
    best = np.minimum(np.minimum(steep, shallow).min(axis=1), 1.0).reshape(level.shape)
    best = np.maximum(best, level)  # rounding must not bring it below a blind guess
    return float(best) if level.ndim == 0 else best


# Lines that a trade-off curve is the least of; few looks at a loss serve all of them.
_CURVE_POINTS = 192
_FARTHEST = 700.0


@lru_cache(maxsize=64)
def _profile(loss: Loss) -> tuple[np.ndarray, np.ndarray]:
    top = largest_loss(loss)
    reach = min(epsilon(loss, delta=1e-9), top)
    # Beyond the farthest point no line lies below 1 by more than rounding.
    floor = delta_bounds(loss, epsilon=_FARTHEST).upper if reach > _FARTHEST else 0.0
    if floor > 1.0 - 1e-12:
        return np.zeros(1), np.array([delta_bracket(loss, 0.0).upper])
    if math.isfinite(reach):
        reach = min(reach, _FARTHEST)
    else:
        # A probability of failing outright: go to where little more than that is left.
        excesses = ((1.0 - floor) * share for share in (1e-6, 1e-3, 0.5))
        reaches = (epsilon(loss, delta=floor + excess) for excess in excesses)
        reach = next((found for found in reaches if math.isfinite(found)), 0.0)
    points = np.append(np.linspace(0.0, reach, _CURVE_POINTS), reach * 1.2)
    if math.isfinite(top):
        points = np.append(points[points < top], top)
    deltas = delta_curve(loss, points)
    deltas[points >= top] = 0.0
    return points, deltas


def posterior(loss: Loss, *, prior: float, failure_probability: float = 1e-6) -> PosteriorBounds:
    """See :meth:`discreet.privacy.Loss.posterior`.

    Without a bound on the loss: P(loss > e') <= delta(e) / (1 - e^{e - e'}) for e < e'.
    Several gaps e' - e are tried; each is valid.
    """
    belief = _validate.real("prior", prior, above=0, below=1)
    chance = _validate.real("failure_probability", failure_probability, above=0, below=1)
    pure = largest_loss(loss)
    if math.isfinite(pure):
        return posterior_interval(belief, pure)
    # Both ends may fail: the lower one with at most the probability of the upper one.
    best = min(
        epsilon(loss, delta=0.5 * chance * -math.expm1(-gap)) + gap for gap in (0.05, 0.2, 0.5, 1.0)
    )
    if not math.isfinite(best):
        return PosteriorBounds(0.0, 1.0, chance)
    return posterior_interval(belief, best)._replace(failure_probability=chance)


# --- the accountants --------------------------------------------------------------------


@lru_cache(maxsize=64)
def _step_claims(loss: Loss, delta: float) -> list[tuple[Fraction | float, float, int]]:
    """(epsilon, delta, count) of every step when ``delta`` is shared out equally.

    Steps with a pure guarantee need no share. Two accountants ask for the same claims.
    """
    unbounded = sum(n for part, n in parts_of(loss) if not math.isfinite(largest_loss(part)))
    share = delta / unbounded if unbounded else 0.0
    claims: list[tuple[Fraction | float, float, int]] = []
    for part, n in parts_of(loss):
        if isinstance(part, PureDP):
            claims.append((part.pure_epsilon, 0.0, n))
        elif (
            isinstance(part, ApproxDP)
            and part.claimed_delta > 0
            and share >= float(part.claimed_delta)
        ):
            claims.append((part.claimed_epsilon, float(part.claimed_delta), n))
        elif math.isfinite(largest_loss(part)):
            claims.append((largest_loss(part), 0.0, n))
        else:
            claims.append((epsilon_bracket(part, share).upper, share, n))
    return claims


def _naive(loss: Loss, delta: float) -> float:
    claims = _step_claims(loss, delta)
    if any(not math.isfinite(value) for value, _, _ in claims):
        return math.inf
    return round_up(sum((n * _exact(value) for value, _, n in claims), start=Fraction(0)))


def _exact(value: Fraction | float) -> Fraction:
    return value if isinstance(value, Fraction) else Fraction(value)


# How delta is shared between the composition theorem and the steps: each share is valid.
_SLACK_SHARES = (0.1, 0.5, 0.9)


def _compose_advanced(loss: Loss, delta: float) -> float:
    if delta == 0.0:
        raise NotApplicable("advanced composition needs delta > 0: it pays for its gain with delta")
    return min(_compose_with_slack(slack, claims) for slack, claims in _share_delta(loss, delta))


def _compose_with_slack(slack: float, claims: list[tuple[Fraction | float, float, int]]) -> float:
    if slack == 0.0 or any(not math.isfinite(value) for value, _, _ in claims):
        return math.inf
    square = math.fsum(n * float(value) ** 2 for value, _, n in claims)
    drift = math.fsum(n * float(value) * _expm1(float(value)) for value, _, n in claims)
    return (math.sqrt(2.0 * math.log(1.0 / slack) * square) + drift) * (1.0 + 1e-14)


def _expm1(value: float) -> float:
    return math.expm1(value) if value < 700.0 else math.inf


def _share_delta(
    loss: Loss, delta: float
) -> list[tuple[float, list[tuple[Fraction | float, float, int]]]]:
    """Several ways to share delta; all of it for the theorem where the steps need none."""
    if math.isfinite(largest_loss(loss)):
        return [(delta, _step_claims(loss, 0.0))]
    return [(s * delta, _step_claims(loss, (1.0 - s) * delta)) for s in _SLACK_SHARES]


def _optimal(loss: Loss, delta: float) -> float:
    if sum(n for _, n in parts_of(loss)) == 1:
        return _naive(loss, delta)
    return min(_optimal_with(loss, delta, claims) for _, claims in _share_delta(loss, delta))


def _optimal_with(
    loss: Loss, delta: float, claims: list[tuple[Fraction | float, float, int]]
) -> float:
    if any(not math.isfinite(value) for value, _, _ in claims):
        return math.inf
    worst = compose(
        (
            ApproxDP(_exact(e), Fraction(d), loss.relation)
            if d > 0.0
            else PureDP(_exact(e), loss.relation),
            n,
        )
        for e, d, n in claims
    )
    return _certified_epsilon(worst, delta).upper


def _pld(loss: Loss, delta: float) -> float:
    return _certified_epsilon(loss, delta).upper


def _best(loss: Loss, delta: float) -> float:
    """PLD, and the others only where they could be smaller.

    Where the bracket of the dominating pair meets its tolerance, every other accountant
    lies above its lower bound, so none can be better by more than the tolerance.
    """
    bracket = _certified_epsilon(loss, delta)
    if bracket.tolerance_met:
        return bracket.upper
    answers = [bracket.upper]
    # A single release has nothing to share delta with.
    several = sum(n for _, n in parts_of(loss)) > 1
    for name in ("naive", *(("advanced", "optimal") if several else ()), "zcdp", "rdp"):
        try:
            answers.append(_reading(name, loss, delta))
        except NotApplicable:
            continue
    return min(answers)


_READERS: dict[str, Callable[[Loss, float], float]] = {
    "naive": _naive,
    "advanced": _compose_advanced,
    "optimal": _optimal,
    "zcdp": _renyi.zcdp_epsilon,
    "moments": _renyi.moments_epsilon,
    "rdp": _renyi.rdp_epsilon,
    "pld": _pld,
    "best": _best,
}


# --- privacy-loss distributions --------------------------------------------------------------


def basic_epsilon(loss: Loss, delta: float) -> float:
    """The sum of the largest losses where the claimed deltas sum to at most ``delta``.

    Both sums are exact, so a claim holds at its own delta:

    >>> from discreet.privacy import ApproxDP
    >>> basic_epsilon(ApproxDP(epsilon=1, delta=1e-5), 1e-5)
    1.0
    """
    parts = parts_of(loss)
    claims = [n * part.claimed_delta for part, n in parts if isinstance(part, ApproxDP)]
    if not claims:
        return largest_loss(loss)
    if sum(claims) > _validate.fraction("delta", delta):
        return math.inf
    return largest_loss(
        compose(
            (PureDP(part.claimed_epsilon, part.relation) if isinstance(part, ApproxDP) else part, n)
            for part, n in parts
        )
    )


def epsilon_bracket(loss: Loss, delta: float, tolerance: float | None = None) -> Bounds:
    """Lower and upper epsilon at ``delta`` (0 <= delta < 1).

    With a tolerance the search goes on from the bracket without one, through finer and finer
    searches that do not depend on the tolerance, until it is met: so a tighter tolerance
    never gives a wider bracket.
    """
    if loss.touched_mass() <= delta:
        return Bounds(0.0, 0.0)
    found = _trivial_on_overflow(lambda: _epsilon_bracket(loss, delta, None), math.inf)
    if not found.tolerance_met:
        found = _without_samples(loss, delta, found)
    if tolerance is None:
        return found
    for finer in FINER_TOLERANCES:
        if found.width <= _bracket.promise(found.upper, tolerance):
            break
        again = _trivial_on_overflow(partial(_epsilon_bracket, loss, delta, finer), math.inf)
        lower, upper = max(found.lower, again.lower), min(found.upper, again.upper)
        limit = not upper - lower < 0.8 * found.width
        found = replace(found, lower=min(lower, upper), upper=upper)
        if limit or finer <= tolerance:
            break
    asked = _bracket.promise(found.upper, tolerance)
    if found.width <= asked:
        return Bounds(found.lower, found.upper)
    note = f"the bracket is {found.width:.3g} wide where {asked:.3g} was asked for"
    return Bounds(found.lower, found.upper, False, found.note or note)


def _without_samples(loss: Loss, delta: float, found: Bounds) -> Bounds:
    """The bracket, or with probability ``mass`` no guarantee from the parts that sample.

    Unless one of them draws the unit, only the other parts look at it. Hockey-stick divergences
    are convex, so delta is at most mass + (1 - mass) times theirs.
    """
    parts = parts_of(loss)
    sampled = [(part, n) for part, n in parts if part.touched_mass() < 1.0]
    mass = compose(sampled).touched_mass() if sampled else 1.0
    if len(sampled) == len(parts) or mass >= delta:
        return found
    rest = compose((part, n) for part, n in parts if part.touched_mass() == 1.0)
    upper = epsilon_bracket(rest, (delta - mass) / (1.0 - mass) * (1.0 - 1e-14)).upper
    return replace(found, lower=min(found.lower, upper), upper=min(found.upper, upper))


def delta_bracket(loss: Loss, epsilon: float) -> Bounds:
    """Return lower and upper delta at ``epsilon`` >= 0."""
    found = _trivial_on_overflow(lambda: _delta_bracket(loss, epsilon), 1.0)
    mass = loss.touched_mass()
    return replace(found, lower=min(found.lower, mass), upper=min(found.upper, mass))


def delta_upper(loss: Loss, epsilon: float) -> float:
    """Return a quick upper bound on delta, for searches that need many."""
    if largest_loss(loss) <= epsilon:
        return 0.0
    if whole_mu(loss) is not None:
        return delta_bracket(loss, epsilon).upper
    known = loss.closed_delta(epsilon)
    if known is not None:
        return known.upper
    terms = make_terms(loss, 1e-12)
    if not terms.atoms:
        return 0.0
    return min(loss.touched_mass(), _bracket.delta_upper(terms, epsilon))


def delta_curve(loss: Loss, epsilons: np.ndarray) -> np.ndarray:
    """Return upper bounds on delta at increasing epsilons >= 0: the privacy profile."""
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            curve: np.ndarray = np.clip(_delta_curve(loss, epsilons), 0.0, loss.touched_mass())
            return curve
    except (OverflowError, ZeroDivisionError, ValueError):
        # The curve as a whole leaves the range of floats; single points of it may not.
        return _point_by_point(loss, epsilons)


def _delta_curve(loss: Loss, epsilons: np.ndarray) -> np.ndarray:
    if whole_mu(loss) is not None:
        return _point_by_point(loss, epsilons)
    known = loss.closed_curve(epsilons)
    if known is not None:
        return known
    terms = make_terms(loss, 1e-12)
    if _single_gaussian(terms) is not None:
        return _point_by_point(loss, epsilons)
    return _bracket.delta_curve(terms, epsilons) if terms.atoms else np.zeros(len(epsilons))


def _point_by_point(loss: Loss, epsilons: np.ndarray) -> np.ndarray:
    return np.array([delta_bracket(loss, epsilon).upper for epsilon in epsilons.tolist()])


def _trivial_on_overflow(search: Callable[[], Bounds], worst: float) -> Bounds:
    """The bracket, or a trivial and marked one where the numbers leave the range of floats."""
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            found = search()
    except (OverflowError, ZeroDivisionError, ValueError):
        return Bounds(0.0, worst, False, OUT_OF_RANGE)
    if not 0.0 <= found.lower <= found.upper:
        return Bounds(0.0, worst, False, OUT_OF_RANGE)
    return found


def _epsilon_bracket(loss: Loss, delta: float, tolerance: float | None) -> Bounds:
    if delta == 0.0:
        return _pure_bracket(loss)
    mu = whole_mu(loss)
    if mu is not None and mu > LARGEST_MU:
        return Bounds(0.0, math.inf, False, "mu > 1e9: no bound is computed")
    if mu is not None:
        upper = gaussian_epsilon(mu, delta)
        return Bounds(max(0.0, upper * (1.0 - CLOSED_FORM_ERROR) - 1e-12), upper)
    known = loss.closed_epsilon(delta)
    if known is not None:
        return known
    terms = make_terms(loss, 1e-4 * delta)
    mu = _single_gaussian(terms)
    if mu is not None:
        upper = gaussian_epsilon(mu, delta) if mu <= LARGEST_MU else math.inf
        return Bounds(0.0, upper, False, NO_TIGHT_PAIR)
    return _bracket.epsilon_bounds(terms, delta, tolerance) if terms.atoms else Bounds(0.0, 0.0)


def _delta_bracket(loss: Loss, epsilon: float) -> Bounds:
    mu = whole_mu(loss)
    if mu is not None:
        value = gaussian_delta(mu, epsilon) if mu <= LARGEST_MU else 1.0
        upper = min(1.0, value * (1.0 + CLOSED_FORM_ERROR))
        return Bounds(value * (1.0 - CLOSED_FORM_ERROR), upper)
    known = loss.closed_delta(epsilon)
    if known is not None:
        return known
    terms = make_terms(loss, 1e-12)
    mu = _single_gaussian(terms)
    if mu is not None:
        value = gaussian_delta(mu, epsilon) if mu <= LARGEST_MU else 1.0
        return Bounds(0.0, min(1.0, value * (1.0 + CLOSED_FORM_ERROR)), False, NO_TIGHT_PAIR)
    return _bracket.delta_bounds(terms, epsilon) if terms.atoms else Bounds(0.0, 0.0)


def _pure_bracket(loss: Loss) -> Bounds:
    """Return the largest loss, which is epsilon at delta 0."""
    top = largest_loss(loss)
    return Bounds(top, top) if loss.tight else Bounds(0.0, top, False, NO_TIGHT_PAIR)


def whole_mu(loss: Loss) -> float | None:
    """Return mu if the whole loss is one Gaussian (compositions of Gaussians are), else None."""
    parts = parts_of(loss)
    total = 0.0
    for part, n in parts:
        mu = part.gaussian_mu()
        if mu is None:
            return None
        total += n * mu**2
    return max(math.sqrt(total) * (1.0 + 4e-16 * len(parts)), SMALLEST_MU)


def _single_gaussian(terms: Terms) -> float | None:
    """Return mu if a plan came down to one Gaussian, which then has a closed form, else None."""
    if terms.atoms != 1 or len(terms.items) != 1 or terms.tight:
        return None
    loss, n = terms.items[0]
    return loss.gaussian_mu() if n == 1 else None


def make_terms(loss: Loss, negligible: float) -> Terms:
    """Merge Gaussians, pool Renyi curves, expand generic groups.

    ``negligible`` is a delta that does not matter for the question at hand.
    """
    square = 0.0
    items: list[tuple[Loss, int]] = []
    sampled: list[tuple[float, float, float]] = []
    curves: list[tuple[Loss, int]] = []
    hulls: list[tuple[Pair, int]] = []
    exact = ((p.expand() if isinstance(p, Correlated) else p, n) for p, n in parts_of(loss))
    made_of = [(one, m * n) for part, n in exact for one, m in parts_of(part)]
    seen = [(given, given.within_float_range(), n) for given, n in made_of]
    tight = all(stand_in is given for given, stand_in, _ in seen)
    for part, n in ((one, m * n) for _, whole, n in seen for one, m in parts_of(whole)):
        mu, stacked = part.gaussian_mu(), part.sampled_gaussian()
        if mu is not None:
            square += n * mu**2
        elif stacked is not None:
            sampled.append((*stacked, float(n)))
        elif not part.has_own_pair:
            curves.append((part, n))
        elif isinstance(part, Grouped):
            hulls.append((part.pair(Resolution(negligible=negligible)), n))
        elif not (isinstance(part, PureDP) and part.pure_epsilon == 0):
            items.append((part, n))
    if square > 0.0:
        changes = 2.0 if loss.relation is Relation.REPLACE else 1.0
        mu = max(math.sqrt(square), SMALLEST_MU)
        items.append((Gaussian(changes / mu, loss.relation), 1))
    if curves:
        hulls.append((_renyi.curve_pair(curves), 1))
    columns = np.array(sampled).reshape(-1, 3)
    return Terms(tuple(items), columns[:, 0], columns[:, 1], columns[:, 2], tuple(hulls), tight)
