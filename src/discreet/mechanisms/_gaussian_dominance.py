"""A Gaussian that dominates vectors of discrete Gaussian noise (proved here).

Let X = k + N_Z(0, sigma^2)^d with an integer vector k, and compare k with 0. For
any s with 0 < s < sigma let tau^2 = sigma^2 - s^2,

    theta(y) = sum over integers x of exp(-(x - y)^2 / (2 s^2)),

and let g_k be the density on R^d proportional to the product over i of
exp(-(y_i - k_i)^2 / (2 tau^2)) theta(y_i).

1. *X is a post-processing of g_k.* Round y_i to x with probability
   exp(-(x - y_i)^2 / (2 s^2)) / theta(y_i). The factor theta cancels, and the integral over y_i
   of exp(-(y_i - k_i)^2 / (2 tau^2) - (x - y_i)^2 / (2 s^2)) is proportional to
   exp(-(x - k_i)^2 / (2 sigma^2)): exactly the discrete Gaussian.
2. *The pair (g_0, g_k) is nearly Gaussian.* theta has period 1 and k is an integer vector, so both
   densities have the same constant, and their ratio is that of N(0, tau^2) and
   N(k, tau^2). Hence for every gamma

       E_gamma(g_0 || g_k) <= (1 + eta)^m E_gamma(N(0, 1) || N(mu, 1)),   mu = |k|_2 / tau,

   where m counts the coordinates with k_i != 0 and 1 + eta = max theta / (mean of theta under
   N(0, tau^2)). By Poisson summation theta is its average times
   1 + 2 sum_j q^(j^2) cos(2 pi j y), q = exp(-2 pi^2 s^2); under N(0, tau^2) every cosine has a
   positive mean, so eta <= 2 q / (1 - q).
3. *The factor is absorbed.* With a = eps/mu - mu/2 and the Mills ratio R, delta_mu(eps) =
   phi(a) (R(a) - R(a + mu)) and its derivative in mu is phi(a). So for eps >= 0 the derivative of
   log delta is at least 1 / R(-mu/2) >= exp(-mu^2 / 8) / sqrt(2 pi), and

       mu' >= mu + m log(1 + eta) sqrt(2 pi) exp(mu'^2 / 8)

   gives (1 + eta)^m delta_mu(eps) <= delta_mu'(eps) for all eps >= 0 and in both directions.

So X is mu'-GDP (Dong, Roth and Su 2022, corollary 2.13). With s = 3, eta is below 1e-76: on a grid
of 2**-40 of the noise, mu' and |k|_2 / sigma are the same double, give or take its last bits. The
zCDP bound of Canonne, Kamath and Steinke (2020) costs about nine per cent more epsilon.
"""

from __future__ import annotations

import math

_SMOOTHINGS = (0.75, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0)
_LARGEST_MU = 30.0
# Roundings below: a handful of operations, each of relative error 2**-53.
_UPWARD = 1.0 + 2.0**-48


def discrete_gaussian_mu(stddev: float, shift: float, *, coordinates: int) -> float | None:
    """Return mu' for noise of parameter ``stddev`` and integer shifts of L2 norm <= ``shift``.

    Parameters
    ----------
    stddev : float
        The parameter sigma of discrete Gaussian noise, in steps.
    shift : float
        The largest L2 norm of the integer vector between neighbours, in steps.
    coordinates : int
        The largest number of coordinates that change.

    Returns
    -------
    float or None
        The release is mu'-GDP. None if the noise is too small, or mu' too large, for the
        theorem to say anything.

    Examples
    --------
    >>> discrete_gaussian_mu(10.0 * 2**40, 2.0**40, coordinates=1000)  # rounded up
    0.1000000000000...
    >>> discrete_gaussian_mu(0.5, 1.0, coordinates=1) is None
    True
    """
    found = [
        mu
        for smoothing in _SMOOTHINGS
        if (mu := _absorbed(stddev, shift, coordinates, smoothing)) is not None
    ]
    return min(found, default=None)


def _absorbed(stddev: float, shift: float, coordinates: int, smoothing: float) -> float | None:
    ratio = smoothing / stddev
    if ratio >= 1.0:
        return None
    mu = shift / stddev / math.sqrt((1.0 - ratio) * (1.0 + ratio)) * _UPWARD
    q = math.exp(-2.0 * (math.pi * smoothing) ** 2) * (1.0 + 1e-10)
    factor = coordinates * math.log1p(2.0 * q / (1.0 - q)) * math.sqrt(2.0 * math.pi) * _UPWARD
    absorbed = mu
    for _ in range(50):
        if absorbed > _LARGEST_MU:
            return None
        needed = mu + factor * math.exp(absorbed * absorbed / 8.0) * (1.0 + 1e-10)
        if needed <= absorbed:
            return absorbed
        absorbed = needed * _UPWARD
    return None
