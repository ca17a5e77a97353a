"""Noise that the participants add themselves: Skellam and sums of discrete Gaussians."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from discreet import _validate
from discreet.errors import InvalidValue

__all__ = ["rdp_skellam", "rdp_summed_discrete_gaussian", "summed_gaussian_gap"]

_MOST_PARTIES_SUMMED = 4096


def rdp_skellam(
    orders: Sequence[float] | npt.NDArray[np.float64], *, variance: float, l2: float, l1: float
) -> npt.NDArray[np.float64]:
    """Return a bound on the Renyi divergence of Skellam noise of a total variance.

    Agarwal, Kairouz and Liu 2021, theorem 3.5: at whole orders a at most
    a l2^2 / (2 variance) + min(((2 a - 1) l2^2 + 6 l1) / (4 variance^2), 3 l1 / (2 variance)). The
    divergence grows with the order, so other orders are read at the next whole one.

    Parameters
    ----------
    orders : sequence of float
        Numbers above 1.
    variance : float
        Of the sum of all noise, in every coordinate.
    l2, l1 : float
        The norms of the largest change, which is a vector of integers.

    Returns
    -------
    numpy.ndarray
        A bound for each order.

    Examples
    --------
    >>> rdp_skellam([2.0], variance=100.0, l2=1, l1=1).tolist()
    [0.010225]
    """
    a = np.ceil(_orders(orders))
    mu, square, length = _sizes(variance, l2, l1)
    extra = np.minimum(
        ((2.0 * a - 1.0) * square + 6.0 * length) / (4.0 * mu * mu), 3.0 * length / (2.0 * mu)
    )
    bound: npt.NDArray[np.float64] = a * square / (2.0 * mu) + extra
    return bound


def summed_gaussian_gap(*, variance: float, parties: int) -> float:
    """Return tau, how far a sum of discrete Gaussians is from one (Kairouz et al. 2021).

    tau = 10 sum over k < parties of exp(-2 pi^2 variance k / (k + 1)), for one coordinate.

    Parameters
    ----------
    variance : float
        The parameter sigma^2 of the noise of each party.
    parties : int
        How many add noise.

    Returns
    -------
    float
        tau; 0 for one party.

    Examples
    --------
    >>> summed_gaussian_gap(variance=1.0, parties=1)
    0.0
    """
    share = _validate.real("variance", variance, above=0)
    count = _validate.integer("parties", parties, at_least=1)
    k = np.arange(1.0, min(count, _MOST_PARTIES_SUMMED))
    terms = np.exp(-2.0 * math.pi**2 * share * k / (k + 1.0))
    # The terms fall: those that are left out are at most the last one.
    rest = max(0, count - _MOST_PARTIES_SUMMED) * (float(terms[-1]) if terms.size else 0.0)
    return 10.0 * (float(terms.sum()) + rest)


def rdp_summed_discrete_gaussian(
    orders: Sequence[float] | npt.NDArray[np.float64],
    *,
    variance: float,
    parties: int,
    l2: float,
    l1: float,
    dimension: int,
) -> npt.NDArray[np.float64]:
    """Return a bound on the Renyi divergence of a sum of discrete Gaussians.

    Kairouz et al. 2021, proposition 14, with s = l2 / sqrt(parties variance), r likewise of l1 and
    tau of :func:`summed_gaussian_gap`: the least of a s^2 / 2 + tau d, a / 2 (s^2 + 2 r tau +
    tau^2 d) and a / 2 (s + sqrt(d) tau)^2.

    Parameters
    ----------
    orders : sequence of float
        Numbers above 1.
    variance : float
        The parameter sigma^2 of the noise of each party.
    parties : int
        How many parties certainly add noise.
    l2, l1 : float
        The norms of the largest change, which is a vector of integers.
    dimension : int
        The number d of coordinates.

    Returns
    -------
    numpy.ndarray
        A bound for each order.

    Examples
    --------
    >>> found = rdp_summed_discrete_gaussian(
    ...     [2.0], variance=25.0, parties=4, l2=1, l1=1, dimension=1
    ... )
    >>> round(float(found[0]), 9)
    0.01
    """
    a = _orders(orders)
    d = float(_validate.integer("dimension", dimension, at_least=1))
    tau = summed_gaussian_gap(variance=variance, parties=parties)
    total, square, length = _sizes(parties * variance, l2, l1)
    s, r = math.sqrt(square / total), length / math.sqrt(total)
    ways = (
        a * s * s / 2.0 + tau * d,
        a / 2.0 * (s * s + 2.0 * r * tau + tau * tau * d),
        a / 2.0 * (s + math.sqrt(d) * tau) ** 2,
    )
    bound: npt.NDArray[np.float64] = np.minimum.reduce(ways)
    return bound


def _orders(orders: object) -> npt.NDArray[np.float64]:
    a = np.asarray(orders, dtype=np.float64)
    if not bool(np.all(a > 1.0)):
        raise InvalidValue("orders", orders, "numbers above 1")
    return a


def _sizes(variance: float, l2: float, l1: float) -> tuple[float, float, float]:
    """Return the variance, the square of l2 and l1, checked."""
    total = _validate.real("variance", variance, above=0)
    long = _validate.real("l2", l2, above=0)
    return total, long * long, _validate.real("l1", l1, above=0)
