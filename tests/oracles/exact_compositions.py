"""Slow, obvious twins of composed losses: exact sums with rationals and mpmath.

Nothing here shares a line or an idea with ``discreet.privacy``: every pair is written down
outcome by outcome, and a composition is what it is by definition.
"""

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache

from mpmath import mp, mpf

mp.dps = 50

# (total loss as a likelihood ratio, mass under P); ``None`` stands for an infinite ratio.
Outcomes = dict[Fraction | None, Fraction]


def real(value: float | Fraction) -> mpf:
    """The exact value as an mpmath number."""
    return mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else mpf(value)


def composed_pairs(
    pairs: Iterable[tuple[Sequence[float], Sequence[float], int]], *, swapped: bool = False
) -> Outcomes:
    """All outcomes of a composition of finite pairs, merged by likelihood ratio."""
    whole: Outcomes = {Fraction(1): Fraction(1)}
    for p, q, count in pairs:
        first, second = (q, p) if swapped else (p, q)
        one = [(Fraction(a), Fraction(b)) for a, b in zip(first, second, strict=True) if a > 0]
        for _ in range(count):
            fresh: Outcomes = {}
            for ratio, mass in whole.items():
                for a, b in one:
                    total = None if b == 0 or ratio is None else ratio * a / b
                    fresh[total] = fresh.get(total, Fraction(0)) + mass * a
            whole = fresh
    return whole


def outcomes_delta(outcomes: Outcomes, epsilon: float) -> mpf:
    """The hockey-stick divergence of listed outcomes."""
    gamma = mp.exp(mpf(epsilon))
    total = mpf(0)
    for ratio, mass in outcomes.items():
        if ratio is None:
            total += real(mass)
        elif real(ratio) > gamma:
            total += real(mass) * (1 - gamma / real(ratio))
    return total


def pair_delta(
    pairs: Sequence[tuple[Sequence[float], Sequence[float], int]], epsilon: float
) -> mpf:
    """delta of a composition of finite pairs, over both directions."""
    frozen = tuple((tuple(p), tuple(q), count) for p, q, count in pairs)
    return max(outcomes_delta(_composed(frozen, swapped), epsilon) for swapped in (False, True))


@lru_cache(maxsize=64)
def _composed(pairs: tuple, swapped: bool) -> Outcomes:
    return composed_pairs(pairs, swapped=swapped)


def response_delta(epsilon_step: float, count: int, epsilon: float, *, categories: int = 2) -> mpf:
    """k-ary randomized response, ``count`` times: a trinomial sum."""
    step = mpf(epsilon_step)
    truth = 1 / (1 + (categories - 1) * mp.exp(-step))
    lie = truth * mp.exp(-step)
    other = (categories - 2) * lie
    total = mpf(0)
    for up in range(count + 1):
        for down in range(count - up + 1):
            rest = count - up - down
            if rest and other == 0:
                continue
            loss = (up - down) * step
            if loss > epsilon:
                ways = mp.binomial(count, up) * mp.binomial(count - up, down)
                total += ways * truth**up * lie**down * other**rest * (1 - mp.exp(epsilon - loss))
    return total


def approximate_delta(claimed: tuple[float, float], count: int, epsilon: float) -> mpf:
    """``count`` times the worst (eps, delta) mechanism: failure, or randomized response."""
    none_fails = (1 - mpf(claimed[1])) ** count
    return 1 - none_fails + none_fails * response_delta(claimed[0], count, epsilon)


def laplace_delta(epsilon_step: float, count: int, epsilon: float) -> mpf:
    """Laplace noise whose shift is ``epsilon_step`` scales, ``count`` times.

    Under exp(-loss/2) dP one step has weight a = exp(-e/2)/2 at +e, at -e, and a uniform
    part of density a/2 between. A sum of uniforms has a piecewise polynomial density, so
    the whole integral is elementary.
    """
    with mp.workdps(50 + 4 * count):
        e, target = mpf(epsilon_step), mpf(epsilon)
        total = mpf(0)
        for up in range(count + 1):
            for down in range(count - up + 1):
                flat = count - up - down
                ways = mp.binomial(count, up) * mp.binomial(count - up, down)
                total += ways * e**flat * _uniform_payoff(flat, e, (up - down) * e, target)
        return total * (mp.exp(-e / 2) / 2) ** count


def _uniform_payoff(flat: int, e: mpf, shift: mpf, target: mpf) -> mpf:
    """E over ``flat`` uniforms on [-e, e] of exp(S/2) (1 - exp(target - S))_+, S = shift + sum."""
    if flat == 0:
        return mp.exp(shift / 2) * (1 - mp.exp(target - shift)) if shift > target else mpf(0)
    end = flat * e
    start = max(target - shift, -end)
    if start >= end:
        return mpf(0)
    total = mpf(0)
    for k in range(flat + 1):
        knot = (2 * k - flat) * e
        low, high = max(start, knot) - knot, end - knot
        if low >= high:
            continue
        sign = (-1) ** k * mp.binomial(flat, k)
        base = shift + knot
        total += sign * (
            mp.exp(base / 2) * _power_exponential(flat - 1, mpf(1) / 2, low, high)
            - mp.exp(target - base / 2) * _power_exponential(flat - 1, -mpf(1) / 2, low, high)
        )
    return total / (mp.factorial(flat - 1) * (2 * e) ** flat)


def _power_exponential(power: int, rate: mpf, low: mpf, high: mpf) -> mpf:
    """The integral of y^power exp(rate y), by parts."""
    if power == 0:
        return (mp.exp(rate * high) - mp.exp(rate * low)) / rate
    edge = high**power * mp.exp(rate * high) - low**power * mp.exp(rate * low)
    return (edge - power * _power_exponential(power - 1, rate, low, high)) / rate


def integer_noise_delta(
    weight: Callable[[int], mpf], shift: int, count: int, epsilon: float, *, reach: int
) -> mpf:
    """Integer noise with P(x) proportional to ``weight``, shifted, ``count`` times.

    The tails beyond ``reach`` must be negligible at 50 digits.
    """
    points = range(-reach, shift + reach + 1)
    norm = mp.fsum(weight(x) for x in range(-reach - shift, reach + shift + 1))
    sums: dict[mpf, mpf] = {mpf(0): mpf(1)}
    one = [(mp.log(weight(x - shift) / weight(x)), weight(x - shift) / norm) for x in points]
    for _ in range(count):
        fresh: dict[mpf, mpf] = {}
        for loss, mass in sums.items():
            for step, share in one:
                key = mp.mpf(mp.nstr(loss + step, 30))
                fresh[key] = fresh.get(key, mpf(0)) + mass * share
        sums = fresh
    gamma = mpf(epsilon)
    return mp.fsum(m * (1 - mp.exp(gamma - loss)) for loss, m in sums.items() if loss > gamma)


def epsilon_of(delta_at: Callable[[float], mpf], delta: float, *, high: float) -> float:
    """The smallest epsilon in [0, high] with delta(epsilon) <= delta, by bisection."""
    if delta_at(0.0) <= delta:
        return 0.0
    low = 0.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if delta_at(middle) <= delta:
            high = middle
        else:
            low = middle
    return high
