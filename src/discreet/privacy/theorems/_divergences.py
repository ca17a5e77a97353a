"""Divergences between finite distributions, and what a channel does to them.

A distribution is a sequence of probabilities, a channel a sequence of rows, row x being
the distribution of the output for input x. Entries may be floats (the sum must be 1
within 1e-9; they are used as given) or ``fractions.Fraction`` and ``int`` (the sum must
be exactly 1); with the latter every result that is rational is an exact ``Fraction``.

For P = (0.6, 0.4) and Q = (0.5, 0.5):

>>> P, Q = (0.6, 0.4), (0.5, 0.5)
>>> round(renyi(P, Q, order=1), 4), round(renyi(P, Q, order=2), 4), round(renyi(P, Q, order=inf), 4)
(0.0201, 0.0392, 0.1823)
"""

# S3 and S27 of docs/coverage.md.

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations
from math import inf

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue

Probabilities = Sequence[float | Fraction] | np.ndarray
Channel = Sequence[Sequence[float | Fraction]] | np.ndarray
_Row = list[float | Fraction]

_SUM_TOLERANCE = 1e-9
_LOG_ERROR = 2.0**-49


def renyi(p: Probabilities, q: Probabilities, *, order: float) -> float:
    """Return the Renyi divergence D_order(p || q) in nats, for 0 < order <= inf; order 1 is KL.

    log(sum p^a q^(1-a)) / (a - 1), a = order; at infinity the log of the largest ratio.
    The result is never negative, and infinite where p has mass that q lacks (for
    order < 1: where they share no mass). Exact input and an integer order keep full
    relative accuracy, however close the distributions are.

    >>> renyi((0.5, 0.5), (1, 0), order=2)
    inf

    Parameters
    ----------
    p, q : sequence
        Probabilities of the same outcomes.
    order : float
        Above 0; infinity is allowed.

    Returns
    -------
    float
    """
    if order != inf:
        order = _validate.real("order", order, above=0)
    left, right = _pair(p, q)
    if order >= 1.0 and any(a > 0 and b == 0 for a, b in zip(left, right, strict=True)):
        return inf
    common = [(a, b) for a, b in zip(left, right, strict=True) if a > 0 and b > 0]
    if not common:
        return inf
    if order == inf:
        return max(0.0, *(_log_ratio(a, b) for a, b in common))
    if order == 1.0:
        return max(0.0, math.fsum(float(a) * _log_ratio(a, b) for a, b in common))
    if order.is_integer() and all(isinstance(x, Fraction) for pair in common for x in pair):
        power = int(order)
        total = sum(
            (Fraction(a) ** power / Fraction(b) ** (power - 1) for a, b in common), Fraction()
        )
        return max(0.0, _log(total) / (order - 1.0))
    losses = [_log_ratio(a, b) for a, b in common]
    above = order - 1.0
    if abs(above) * max(map(abs, losses)) <= 1.0:
        # sum p (e^((a-1) loss) - 1) keeps its accuracy as the order tends to 1; p without
        # q, possible below order 1 only, has e^-inf.
        lone = (-float(a) for a, b in zip(left, right, strict=True) if a > 0 and b == 0)
        shared = (
            float(a) * math.expm1(above * loss) for (a, _), loss in zip(common, losses, strict=True)
        )
        return max(0.0, math.log1p(math.fsum((*shared, *lone))) / above)
    logs = [math.log(a) + above * loss for (a, _), loss in zip(common, losses, strict=True)]
    peak = max(logs)
    total_log = peak + math.log(math.fsum(math.exp(value - peak) for value in logs))
    return max(0.0, total_log / above)


def e_gamma(p: Probabilities, q: Probabilities, *, gamma: float | Fraction) -> float | Fraction:
    """Return the hockey-stick divergence E_gamma(p || q) = sum max(0, p - gamma q), gamma >= 1.

    A mechanism is (epsilon, delta)-DP when E_(e^epsilon) of its outputs on any two
    neighbours, in both directions, is at most delta.

    >>> e_gamma((Fraction(3, 4), Fraction(1, 4)), (Fraction(1, 4), Fraction(3, 4)), gamma=2)
    Fraction(1, 4)

    Parameters
    ----------
    p, q : sequence
        Probabilities of the same outcomes.
    gamma : float or Fraction
        At least 1.

    Returns
    -------
    float or Fraction
    """
    if isinstance(gamma, Fraction):
        if gamma < 1:
            raise InvalidValue("gamma", gamma, "a number with 1 <= gamma")
    else:
        checked = _validate.real("gamma", gamma, at_least=1)
        gamma = Fraction(checked) if checked.is_integer() else checked
    return _e_gamma(*_pair(p, q), gamma)


def hockey_stick(p: Probabilities, q: Probabilities, epsilon: float) -> float:
    """Return E_gamma at gamma = e^epsilon, the least delta for this ordered pair.

    >>> round(hockey_stick((0.6, 0.4), (0.5, 0.5), 0.1), 6)
    0.047415

    Parameters
    ----------
    p, q : sequence
        Probabilities of the same outcomes.
    epsilon : float
        At least 0.

    Returns
    -------
    float
    """
    left, right = _pair(p, q)
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    return float(_e_gamma(left, right, _gamma(epsilon)))


def total_variation(p: Probabilities, q: Probabilities) -> float | Fraction:
    """Return the total variation distance, E_1: the best advantage in telling p from q.

    >>> total_variation((Fraction(3, 5), Fraction(2, 5)), (Fraction(1, 2), Fraction(1, 2)))
    Fraction(1, 10)

    Parameters
    ----------
    p, q : sequence
        Probabilities of the same outcomes.

    Returns
    -------
    float or Fraction
    """
    return _e_gamma(*_pair(p, q), Fraction(1))


def contraction(channel: Channel, epsilon: float) -> float:
    """Return the contraction coefficient of E_gamma at gamma = e^epsilon.

    The largest E_gamma(K P || K Q) / E_gamma(P || Q). It is the largest E_gamma between
    two rows (Asoodeh, Diaz, Calmon 2020), and it is 0 exactly when the channel is
    epsilon-locally private (Asoodeh, Aliakbarpour, Calmon 2021).

    >>> two_coins = ((0.75, 0.25), (0.25, 0.75))
    >>> contraction(two_coins, math.log(2)), contraction(two_coins, math.log(3) + 1e-12)
    (0.25, 0.0)

    Parameters
    ----------
    channel : sequence of rows
        Row x is the distribution of the output for input x.
    epsilon : float
        At least 0.

    Returns
    -------
    float
    """
    rows = _rows(channel)
    gamma = _gamma(_validate.real("epsilon", epsilon, at_least=0))
    return max((float(_e_gamma(a, b, gamma)) for a, b in permutations(rows, 2)), default=0.0)


def dobrushin(channel: Channel) -> float | Fraction:
    """Dobrushin's coefficient, the contraction of total variation (gamma = 1).

    >>> dobrushin(((Fraction(3, 4), Fraction(1, 4)), (Fraction(1, 4), Fraction(3, 4))))
    Fraction(1, 2)

    Parameters
    ----------
    channel : sequence of rows
        Row x is the distribution of the output for input x.

    Returns
    -------
    float or Fraction
    """
    pairs = permutations(_rows(channel), 2)
    return max((_e_gamma(a, b, Fraction(1)) for a, b in pairs), default=Fraction())


def channel_epsilon(channel: Channel, *, delta: float | Fraction = 0) -> float:
    """Return the least epsilon for which the channel is (epsilon, delta)-locally private.

    The numbers of the channel are taken as exact rationals (a float *is* one), the least
    gamma is found exactly, and its logarithm is rounded up by more than its rounding error.
    Infinite if no epsilon will do. The work grows with (inputs^2 x outputs).

    >>> round(channel_epsilon(((0.75, 0.25), (0.25, 0.75))), 12) == round(math.log(3), 12)
    True
    >>> round(channel_epsilon(((0.75, 0.25), (0.25, 0.75)), delta=0.25), 12) == round(
    ...     math.log(2), 12
    ... )
    True

    Parameters
    ----------
    channel : sequence of rows
        Row x is the distribution of the output for input x.
    delta : float or Fraction
        Between 0 and 1.

    Returns
    -------
    float
    """
    if not isinstance(delta, Fraction):
        delta = Fraction(_validate.real("delta", delta, at_least=0, at_most=1))
    elif not 0 <= delta <= 1:
        raise InvalidValue("delta", delta, "a number with 0 <= delta <= 1")
    rows = [tuple(Fraction(x) for x in row) for row in _rows(channel)]
    rows = list(dict.fromkeys(rows))
    gamma = Fraction(1)
    if delta == 0:
        for column in zip(*rows, strict=True):
            largest, least = max(column), min(column)
            if largest > 0 and least == 0:
                return inf
            if largest > gamma * least:
                gamma = largest / least
    else:
        for a, b in permutations(rows, 2):
            if _exceeds(a, b, gamma, delta):
                solved = _least_gamma(a, b, delta)
                if solved is None:
                    return inf
                gamma = solved
    if gamma == 1:
        return 0.0
    return _log(gamma) * (1.0 + _LOG_ERROR)


def _exceeds(
    p: Sequence[Fraction], q: Sequence[Fraction], gamma: Fraction, delta: Fraction
) -> bool:
    return (
        sum((a - gamma * b for a, b in zip(p, q, strict=True) if a > gamma * b), Fraction()) > delta
    )


def _least_gamma(p: Sequence[Fraction], q: Sequence[Fraction], delta: Fraction) -> Fraction | None:
    """Solve E_gamma(p || q) = delta: piecewise linear in gamma, with kinks at the ratios p / q."""
    p_mass = sum((a for a, b in zip(p, q, strict=True) if b == 0), Fraction())
    if p_mass > delta:
        return None
    q_mass = Fraction()
    ratios = sorted(((a / b, a, b) for a, b in zip(p, q, strict=True) if b > 0), reverse=True)
    for position, (_, a, b) in enumerate(ratios):
        p_mass, q_mass = p_mass + a, q_mass + b
        following = ratios[position + 1][0] if position + 1 < len(ratios) else Fraction()
        gamma = (p_mass - delta) / q_mass
        if gamma >= following:
            return gamma
    return Fraction()


def _e_gamma(p: _Row, q: _Row, gamma: float | Fraction) -> float | Fraction:
    entries = [*p, *q]
    if isinstance(gamma, Fraction) and all(isinstance(x, Fraction) for x in entries):
        exact = (Fraction(a) - gamma * Fraction(b) for a, b in zip(p, q, strict=True))
        return sum((value for value in exact if value > 0), Fraction())
    factor = float(gamma)
    # An infinite factor (epsilon beyond 709) leaves only the mass that q lacks.
    rest = (float(a) - (factor * float(b) if b > 0 else 0.0) for a, b in zip(p, q, strict=True))
    return math.fsum(value for value in rest if value > 0.0)


def _gamma(epsilon: float) -> float | Fraction:
    if epsilon == 0.0:
        return Fraction(1)
    return math.exp(epsilon) if epsilon < 709.0 else inf


def _log_ratio(a: float | Fraction, b: float | Fraction) -> float:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return _log(a / b)
    a, b = float(a), float(b)
    if abs(a - b) < 0.5 * b:
        return math.log1p((a - b) / b)
    quotient = a / b
    return math.log(quotient) if 0.0 < quotient < inf else math.log(a) - math.log(b)


def _log(value: Fraction) -> float:
    if abs(value - 1) < Fraction(1, 2):
        return math.log1p(float(value - 1))
    # Not log(numerator) - log(denominator), which cancels.
    shift = value.numerator.bit_length() - value.denominator.bit_length()
    return math.log(float(value / Fraction(2) ** shift)) + shift * math.log(2.0)


def _pair(p: Probabilities, q: Probabilities) -> tuple[_Row, _Row]:
    left, right = _distribution("p", p), _distribution("q", q)
    if len(left) != len(right):
        raise InvalidValue("q", q, f"as many entries as p, {len(left)}")
    return left, right


def _rows(channel: Channel) -> list[_Row]:
    if not isinstance(channel, (list, tuple, np.ndarray)) or len(channel) == 0:
        raise InvalidValue("channel", channel, "a non-empty sequence of rows")
    rows = [_distribution(f"channel[{index}]", row) for index, row in enumerate(channel)]
    for index, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise InvalidValue(f"channel[{index}]", row, f"{len(rows[0])} entries, as in row 0")
    return rows


def _distribution(argument: str, values: object) -> _Row:
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, (list, tuple)) or not values:
        raise InvalidValue(argument, values, "a non-empty sequence of probabilities")
    if all(isinstance(x, (int, Fraction)) and not isinstance(x, bool) for x in values):
        exact = [Fraction(x) for x in values]
        if min(exact) < 0 or sum(exact) != 1:
            raise InvalidValue(argument, values, "probabilities >= 0 that sum to exactly 1")
        return list(exact)
    floats = [_validate.real(f"{argument}[{i}]", x, at_least=0) for i, x in enumerate(values)]
    if abs(math.fsum(floats) - 1.0) > _SUM_TOLERANCE:
        raise InvalidValue(argument, values, "probabilities that sum to 1 within 1e-9")
    return list(floats)
