"""The inverse problems: which parameter meets a target (epsilon, delta).

>>> from discreet.privacy import PureDP
>>> calibrate(lambda x: 5 * PureDP(x), epsilon=1.0, delta=0, bracket=(0.01, 10), increasing=True)
0.199...

Whatever is returned satisfies the target: its last reading was the accountant's own certified
epsilon, and it was at most the target. How sharp it is depends on the search: it ends when
that epsilon is within ``tolerance`` of the target, or when the parameter is known to within
``tolerance``, both relative.

The search needs few readings (three to six are usual, a bracketing bisection would need twenty),
because it looks at log mu against the log of the parameter, with mu the Gaussian-DP
parameter that stands for the epsilon read. In these coordinates noise, steps and rate all act
nearly linearly, and a secant step inside the bracket lands close to the goal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from scipy.special import ndtri

from discreet import _validate
from discreet.errors import DiscreetError, InvalidValue
from discreet.privacy._gaussian import Gaussian
from discreet.privacy._laplace import Laplace
from discreet.privacy._loss import ACCOUNTANTS, MOST, Loss, Relation
from discreet.privacy.theorems import gaussian_mu

_TOLERANCE = 1e-3
_MOST_READINGS = 200
_NOISE_LIMITS = (0.01, 1e12)
_LEAST_RATE = 1e-12


def calibrate(
    make_loss: Callable[[float], Loss],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    advantage: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
    bracket: tuple[float, float],
    increasing: bool | None = None,
    tolerance: float = _TOLERANCE,
    accountant: str = "best",
) -> float:
    """Find the riskiest parameter in ``bracket`` whose loss meets a target.

    The target is (epsilon, delta), or what a membership attacker can reach: an ``advantage``, or
    a true-positive rate at a false-positive rate.

    Parameters
    ----------
    make_loss
        Makes the loss of a parameter; it must cost more and more, or less and less, as the
        parameter grows.
    epsilon, delta
        The target, if it is a guarantee.
    advantage
        The target, if it is the most that TPR - FPR of an attacker may be.
    tpr, fpr
        The target, if it is the most true positives of an attacker at this rate of false ones.
    bracket
        The least and the largest parameter to consider, both positive.
    increasing
        Whether the loss grows with the parameter; found from the two ends (two more readings)
        if it is not given.
    tolerance
        How far below the target the epsilon may end, relatively.
    accountant
        One of :data:`discreet.privacy.ACCOUNTANTS`.

    Returns
    -------
    float
        The parameter; the riskiest end of the bracket if even that meets the target.

    Raises
    ------
    InvalidValue
        If no parameter meets the target.

    Examples
    --------
    >>> from discreet.privacy import Laplace
    >>> scale = calibrate(Laplace, epsilon=0.5, delta=0, bracket=(0.1, 100.0))
    >>> 1.99 < scale < 2.01
    True
    """
    if not callable(make_loss):
        raise InvalidValue("make_loss", make_loss, "a function from a parameter to a loss")
    ends = _validate.several("bracket", bracket, "two numbers, the lower one first", count=2)
    low = _validate.real("bracket", ends[0], above=0)
    high = _validate.real("bracket", ends[1], above=low)
    search = _aimed_search(epsilon, delta, advantage, (tpr, fpr), make_loss, tolerance, accountant)
    if increasing is None:
        costs = search.read(low), search.read(high)
        increasing = costs[1] >= costs[0]
        if max(costs) <= search.target:
            return high if increasing else low
    return search.run(math.sqrt(low) * math.sqrt(high), (low, high), increasing=increasing)


def _aimed_search(
    epsilon: float | None,
    delta: float | None,
    advantage: float | None,
    rates: tuple[float | None, float | None],
    make_loss: Callable[[float], Loss],
    tolerance: float,
    accountant: str,
) -> _Search:
    """Return the search for the one target that is given."""
    guarantee = epsilon is not None and delta is not None
    given = [guarantee, advantage is not None, None not in rates]
    stray = [(epsilon is None) != (delta is None), (rates[0] is None) != (rates[1] is None)]
    if sum(given) != 1 or any(stray):
        raise InvalidValue(
            "target",
            (epsilon, delta, advantage, *rates),
            "epsilon and delta, advantage, or tpr and fpr",
        )
    if epsilon is not None and delta is not None:
        return _Search.toward(epsilon, delta, make_loss, tolerance, accountant)
    if accountant != "best":
        raise InvalidValue("accountant", accountant, "best for a target that is a risk")
    if advantage is not None:
        most = _validate.real("advantage", advantage, above=0, below=1)
        search = _Search.toward(
            2.0 * ndtri(0.5 + 0.5 * most), 0.0, make_loss, tolerance, accountant
        )
        search.risk = _Risk("advantage", most, None)
        return search
    level = _validate.real("fpr", rates[1], above=0, below=1)
    most = _validate.real("tpr", rates[0], above=level, below=1)
    search = _Search.toward(ndtri(most) - ndtri(level), 0.0, make_loss, tolerance, accountant)
    search.risk = _Risk("tpr", most, level)
    return search


def least_noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    rate: float = 1.0,
    steps: int = 1,
    relation: Relation | str = Relation.ADD_REMOVE,
    tolerance: float = _TOLERANCE,
    accountant: str = "best",
) -> float:
    """Find the least noise for ``steps`` Poisson-sampled Gaussian releases.

    Parameters
    ----------
    epsilon, delta
        The target.
    rate
        The Poisson sampling rate; 1 takes every record.
    steps
        The number of releases.
    relation
        The neighbouring relation.
    tolerance
        How far below the target the epsilon may end, relatively.
    accountant
        One of :data:`discreet.privacy.ACCOUNTANTS`.

    Returns
    -------
    float
        The noise multiplier.

    Raises
    ------
    InvalidValue
        If no parameter meets the target.

    Examples
    --------
    >>> noise = least_noise_multiplier(epsilon=1.0, delta=1e-5)
    >>> 3.7304 < noise < 3.735 and Gaussian(noise).epsilon(delta=1e-5) <= 1.0
    True
    """
    _validate.real("delta", delta, above=0, below=1)
    share = _validate.real("rate", rate, above=0, at_most=1)
    count = _validate.integer("steps", steps, at_least=1, at_most=MOST)
    kind = Relation.parse(relation)

    def make_loss(noise: float) -> Loss:
        return count * _step(noise, share, kind)

    search = _Search.toward(epsilon, delta, make_loss, tolerance, accountant)
    mu = search.aimed_mu()
    changes = 2.0 if kind is Relation.REPLACE else 1.0
    if share == 1.0:
        guess = changes * math.sqrt(count) / mu
    else:
        # The central limit of Bu, Dong, Long and Su 2020: mu = rate sqrt(steps (e^(1/s^2) - 1)).
        guess = changes / math.sqrt(math.log1p(min(mu / share, 1e150) ** 2 / count))
    return search.run(guess, _NOISE_LIMITS, increasing=False)


def most_steps(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    rate: float = 1.0,
    relation: Relation | str = Relation.ADD_REMOVE,
    at_most: int = 10_000_000,
    accountant: str = "best",
) -> int:
    """Find the largest number of steps: one more would miss the target.

    Parameters
    ----------
    epsilon, delta
        The target.
    noise_multiplier
        The noise of each Gaussian release.
    rate
        The Poisson sampling rate; 1 takes every record.
    relation
        The neighbouring relation.
    at_most
        No more steps than this are considered.
    accountant
        One of :data:`discreet.privacy.ACCOUNTANTS`.

    Returns
    -------
    int
        The number of steps.

    Raises
    ------
    InvalidValue
        If even one step misses the target.

    Examples
    --------
    >>> most_steps(epsilon=1.0, delta=1e-5, noise_multiplier=10.0)
    7
    """
    _validate.real("delta", delta, above=0, below=1)
    most = _validate.integer("at_most", at_most, at_least=1, at_most=MOST)
    share = _validate.real("rate", rate, above=0, at_most=1)
    one = _step(noise_multiplier, share, Relation.parse(relation))

    def make_loss(count: float) -> Loss:
        return int(count) * one

    search = _Search.toward(
        epsilon, delta, make_loss, _TOLERANCE, accountant, whole=True, slope=0.5
    )
    guess = (search.aimed_mu() / _step_mu(noise_multiplier, share, one.relation)) ** 2
    return int(search.run(guess, (1.0, float(most)), increasing=True))


def largest_rate(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    steps: int = 1,
    relation: Relation | str = Relation.ADD_REMOVE,
    tolerance: float = _TOLERANCE,
    accountant: str = "best",
) -> float:
    """Find the largest Poisson sampling rate, at most 1.

    Parameters
    ----------
    epsilon, delta
        The target.
    noise_multiplier
        The noise of each Gaussian release.
    steps
        The number of releases.
    relation
        The neighbouring relation.
    tolerance
        How far below the target the epsilon may end, relatively.
    accountant
        One of :data:`discreet.privacy.ACCOUNTANTS`.

    Returns
    -------
    float
        The rate.

    Raises
    ------
    InvalidValue
        If no parameter meets the target.

    Examples
    --------
    >>> rate = largest_rate(epsilon=1, delta=1e-5, noise_multiplier=1.0, steps=1000)
    >>> (1000 * Gaussian(1.0).poisson(rate=rate)).epsilon(delta=1e-5) <= 1
    True
    """
    _validate.real("delta", delta, above=0, below=1)
    count = _validate.integer("steps", steps, at_least=1, at_most=MOST)
    kind = Relation.parse(relation)
    noise = Gaussian(noise_multiplier).noise_multiplier

    def make_loss(share: float) -> Loss:
        return count * _step(noise, share, kind)

    search = _Search.toward(epsilon, delta, make_loss, tolerance, accountant)
    most = _step_mu(noise, 1.0 - 1e-9, kind) * math.sqrt(count)
    return search.run(search.aimed_mu() / most, (_LEAST_RATE, 1.0), increasing=True)


def least_laplace_scale(
    *,
    epsilon: float,
    delta: float = 0.0,
    sensitivity: float = 1.0,
    count: int = 1,
    relation: Relation | str = Relation.ADD_REMOVE,
    tolerance: float = _TOLERANCE,
    accountant: str = "best",
) -> float:
    """Find the least scale for ``count`` Laplace releases of one sensitivity each.

    For ``delta`` 0 it is count * sensitivity / epsilon, rounded up as far as needed.

    Parameters
    ----------
    epsilon, delta
        The target.
    sensitivity
        The L1 sensitivity of each release.
    count
        The number of releases.
    relation
        The neighbouring relation.
    tolerance
        How far below the target the epsilon may end, relatively.
    accountant
        One of :data:`discreet.privacy.ACCOUNTANTS`.

    Returns
    -------
    float
        The scale.

    Raises
    ------
    InvalidValue
        If no parameter meets the target.

    Examples
    --------
    >>> least_laplace_scale(epsilon=0.1)
    10.0
    """
    reach = _validate.real("sensitivity", sensitivity, above=0)
    number = _validate.integer("count", count, at_least=1, at_most=MOST)
    kind = Relation.parse(relation)

    def make_loss(scale: float) -> Loss:
        return number * Laplace(scale, reach, kind)

    search = _Search.toward(epsilon, delta, make_loss, tolerance, accountant)
    exact = _validate.fraction("epsilon", epsilon)
    wanted = number * _validate.fraction("sensitivity", sensitivity)
    pure = float(wanted / exact)
    while wanted > exact * Fraction(repr(pure)):
        pure = math.nextafter(pure, math.inf)
    if search.delta == 0.0:
        return search.nudge(pure)
    guess = reach * math.sqrt(number) / search.aimed_mu()
    return search.run(min(guess, pure), (min(guess, pure) * 1e-6, pure), increasing=False)


def _step(noise: float, share: float, relation: Relation) -> Loss:
    one = Gaussian(noise, relation)
    return one if share == 1.0 else one.poisson(rate=share)


def _step_mu(noise: float, share: float, relation: Relation) -> float:
    """The mu of one step as the central limit sees it, only for a first guess."""
    mu = Gaussian(noise, relation).mu
    return mu if share == 1.0 else share * math.exp(0.5 * min(mu * mu, 600.0)) * _squash(mu)


def _squash(mu: float) -> float:
    return math.sqrt(-math.expm1(-min(mu * mu, 600.0)))


@dataclass
class _Point:
    x: float
    y: float


@dataclass(frozen=True)
class _Risk:
    """What an attacker may reach: an advantage, or true positives at a rate of false ones."""

    name: str
    most: float
    fpr: float | None

    def read(self, loss: Loss, target: float) -> float:
        """Return mu of the Gaussian with the risk of the loss, beyond the target if the risk is."""
        reached = loss.advantage() if self.fpr is None else float(loss.tradeoff(self.fpr))
        if reached >= 1.0:
            return math.inf
        level = 0.5 - 0.5 * reached if self.fpr is None else self.fpr
        mu = float(ndtri(level + reached if self.fpr is None else reached) - ndtri(level))
        return max(mu, target * (1.0 + 1e-12)) if reached > self.most else min(mu, target)


@dataclass
class _Search:
    """A bracketed secant search on log(parameter) for one target."""

    target: float
    delta: float
    make_loss: Callable[[float], Loss]
    tolerance: float
    accountant: str
    whole: bool = False
    # How log mu grows with the log of the parameter, until two readings say more.
    slope: float = 1.0
    safe: _Point | None = None
    risky: _Point | None = None
    best: float | None = None
    gaps: list[float] = field(default_factory=list)
    risk: _Risk | None = None

    @classmethod
    def toward(
        cls,
        epsilon: float,
        delta: float,
        make_loss: Callable[[float], Loss],
        tolerance: float,
        accountant: str,
        *,
        whole: bool = False,
        slope: float = 1.0,
    ) -> _Search:
        return cls(
            _validate.real("epsilon", epsilon, at_least=1e-300),
            _validate.real("delta", delta, at_least=0, below=1),
            make_loss,
            _validate.real("tolerance", tolerance, at_least=1e-9, at_most=0.5),
            _validate.one_of("accountant", accountant, ACCOUNTANTS),
            whole=whole,
            slope=slope,
        )

    @property
    def aim(self) -> float:
        """Half the tolerance below the target, so that a good step ends on the safe side."""
        return self.target if self.whole else self.target * (1.0 - 0.5 * self.tolerance)

    def aimed_mu(self) -> float:
        if self.delta == 0.0:
            return self.aim
        return gaussian_mu(self.aim, self.delta)

    def read(self, parameter: float) -> float:
        if self.risk is not None:
            return self.risk.read(self.make_loss(parameter), self.target)
        return self.make_loss(parameter).epsilon(delta=self.delta, accountant=self.accountant)

    def nudge(self, parameter: float) -> float:
        """The parameter, raised by a few units in the last place until it meets the target."""
        for doubling in range(48):
            if self.read(parameter) <= self.target:
                return parameter
            parameter *= 1.0 + 2.0 ** (doubling - 52)
        raise self._unreachable(parameter)

    def _unreachable(self, safest: float) -> InvalidValue:
        if self.risk is not None:
            return InvalidValue(
                self.risk.name, self.risk.most, f"more: the safest parameter {safest:g} exceeds it"
            )
        reached = self.read(safest)
        least = f"at least {reached:g}" if math.isfinite(reached) else "a reachable target"
        return InvalidValue(
            "epsilon", self.target, f"{least}: the safest parameter {safest:g} reaches {reached:g}"
        )

    def _height(self, epsilon: float) -> float:
        """log mu above the aim; mu solves epsilon = mu z + mu^2 / 2, z the quantile of delta."""
        if not 0.0 < epsilon < math.inf:
            return -math.inf if epsilon <= 0.0 else math.inf
        if self.delta == 0.0:
            return math.log(epsilon / self.aim)
        z = max(0.0, -float(ndtri(self.delta)))
        return math.log(_rough_mu(epsilon, z) / _rough_mu(self.aim, z))

    def run(self, guess: float, limits: tuple[float, float], *, increasing: bool) -> float:
        """The riskiest parameter found within the limits, starting from a guess."""
        sign = 1.0 if increasing else -1.0
        safest, riskiest = limits if increasing else limits[::-1]
        parameter = min(max(guess, limits[0]), limits[1])
        trail: list[_Point] = []
        for _ in range(_MOST_READINGS):
            if self.whole:
                parameter = float(min(max(round(parameter), limits[0]), limits[1]))
            epsilon = self.read(parameter)
            point = _Point(sign * math.log(parameter), self._height(epsilon))
            trail.append(point)
            if epsilon <= self.target:
                self.safe, self.best = point, parameter
                close = epsilon >= self.target * (1.0 - self.tolerance) and not self.whole
                if close or parameter == riskiest:
                    return parameter
            else:
                self.risky = point
                if parameter == safest:
                    raise self._unreachable(safest)
            if self.best is not None and self._narrow():
                return self.best
            parameter = _exp_within(sign * self._propose(trail), limits)
        if self.best is None:
            raise DiscreetError(f"no parameter that meets epsilon = {self.target:g} was found")
        return self.best

    def _narrow(self) -> bool:
        if self.safe is None or self.risky is None:
            return False
        if self.whole:
            return math.expm1(self.risky.x - self.safe.x) * math.exp(self.safe.x) < 1.5
        return self.risky.x - self.safe.x <= self.tolerance

    def _propose(self, trail: list[_Point]) -> float:
        """The next x; risk grows with x."""
        here, slope = trail[-1], self._slope(trail)
        if self.safe is None or self.risky is None:
            if not math.isfinite(here.y):
                return here.x - math.copysign(math.log(4.0) * len(trail), here.y)
            x = here.x - max(-4.0, min(4.0, here.y / slope))
            return _step_beyond(x, self.safe, self.risky) if self.whole else x
        low, high = self.safe, self.risky
        self.gaps.append(high.x - low.x)
        # A secant that does not halve the bracket in two readings is followed by a bisection.
        slow = len(self.gaps) > 2 and self.gaps[-1] > 0.5 * self.gaps[-3]
        x = here.x - here.y / slope
        if not low.x < x < high.x:
            x = low.x - low.y * (high.x - low.x) / max(high.y - low.y, 1e-300)
        if slow or not low.x < x < high.x:
            self.gaps.clear()
            x = 0.5 * (low.x + high.x)
        return _step_beyond(x, low, high, last=here) if self.whole else x

    def _slope(self, trail: list[_Point]) -> float:
        if len(trail) >= 2:
            first, second = trail[-2:]
            if first.x != second.x and math.isfinite(first.y) and math.isfinite(second.y):
                slope = (second.y - first.y) / (second.x - first.x)
                if 0.05 < slope < 50.0:
                    return slope
        return self.slope


def _step_beyond(
    x: float, low: _Point | None, high: _Point | None, *, last: _Point | None = None
) -> float:
    """A new whole number, on the far side of the presumed root as seen from the last point."""
    falling = low is None or (high is not None and last is high)
    count = math.floor(math.exp(x)) if falling else math.ceil(math.exp(x))
    if low is not None:
        count = max(count, round(math.exp(low.x)) + 1)
    if high is not None:
        count = min(count, round(math.exp(high.x)) - 1)
    return math.log(max(count, 1))


def _exp_within(log_parameter: float, limits: tuple[float, float]) -> float:
    """exp of the proposal, or exactly the limit that it passes."""
    low, high = limits
    if log_parameter <= math.log(low):
        return low
    if log_parameter >= math.log(high):
        return high
    return min(max(math.exp(log_parameter), limits[0]), limits[1])


def _rough_mu(epsilon: float, z: float) -> float:
    return 2.0 * epsilon / (math.sqrt(z * z + 2.0 * epsilon) + z)
