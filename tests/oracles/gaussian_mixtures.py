"""Slow, obvious twins for sampled Gaussians: mpmath for one step, a plain grid for many."""

from collections.abc import Sequence

import numpy as np
from mpmath import mp, mpf
from scipy import special

mp.dps = 50


def gaussian_delta(mu: float, epsilon: float) -> mpf:
    """Balle and Wang 2018: Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)."""
    m, e = mpf(mu), mpf(epsilon)
    return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)


def mixture_delta(
    weights: Sequence[float], shifts: Sequence[float], epsilon: float, *, swapped: bool
) -> mpf:
    """One step: P = sum_j w_j N(s_j, 1) against Q = N(0, 1), or the other way around."""
    w, s = [mpf(x) for x in weights], [mpf(x) for x in shifts]
    gamma = mp.exp(mpf(epsilon))

    def ratio(x: mpf) -> mpf:
        return mp.fsum(a * mp.exp(b * x - b * b / 2) for a, b in zip(w, s, strict=True))

    def above(x: mpf) -> mpf:
        return mp.fsum(a * mp.ncdf(b - x) for a, b in zip(w, s, strict=True))

    wanted = 1 / gamma if swapped else gamma
    low, high = mpf(-60), mpf(60) + max(s)
    if ratio(low) >= wanted:
        # The loss never reaches epsilon (swapped), or always does.
        return mpf(0) if swapped else 1 - gamma
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if ratio(middle) < wanted else (low, middle)
    if swapped:
        return mp.ncdf(high) - gamma * (1 - above(high))
    return above(high) - gamma * mp.ncdf(-high)


def poisson_gaussian_delta(noise: float, rate: float, epsilon: float) -> mpf:
    """One Poisson-sampled Gaussian step, the worse of both directions."""
    weights, shifts = [1 - mpf(rate), mpf(rate)], [mpf(0), 1 / mpf(noise)]
    return max(
        mixture_delta(weights, shifts, epsilon, swapped=swapped) for swapped in (False, True)
    )


def log_moment(noise: float, rate: float, order: float, *, added: bool) -> float:
    """S7 by numerical integration: log E_P (P/Q)^order; P is the mixture unless ``added``."""
    sigma, g, lam = mpf(noise), mpf(rate), mpf(order)

    def density(x: mpf, mean: int) -> mpf:
        return mp.npdf(x, mean, sigma)

    def integrand(x: mpf) -> mpf:
        null = density(x, 0)
        mixed = (1 - g) * null + g * density(x, 1)
        top, bottom = (null, mixed) if added else (mixed, null)
        return top * (top / bottom) ** lam

    peak = lam + 1
    knots = sorted({-12 * sigma, mpf(0), mpf(1), peak, peak + 14 * sigma, (peak + 1) / 2})
    with mp.workdps(25):
        return float(mp.log(mp.quad(integrand, knots)))


def grid_delta(
    steps: Sequence[tuple[float, float, int, bool]], epsilon: float, *, interval: float, up: bool
) -> float:
    """Composed sampled Gaussians (noise, rate, count, swapped) on a plain grid of losses.

    Every loss is rounded up (or down) to a multiple of ``interval``; nothing else is done,
    so the error is at most ``interval`` times the number of steps. Mass beyond the range,
    about 1e-12, is treated as certain harm (or as none).
    """
    whole, start, infinite = np.array([1.0]), 0, 0.0
    for noise, rate, count, swapped in steps:
        mass, first, lost = grid_step(noise, rate, swapped, interval, up)
        size = count * (len(mass) - 1) + 1
        power = 1 << (size - 1).bit_length()
        spectrum = np.fft.rfft(mass, power) ** count
        one = np.maximum(np.fft.irfft(spectrum, power)[:size], 0.0)
        size = len(whole) + len(one) - 1
        power = 1 << (size - 1).bit_length()
        whole = np.fft.irfft(np.fft.rfft(whole, power) * np.fft.rfft(one, power), power)[:size]
        start += count * first
        infinite += count * lost
    loss = (start + np.arange(len(whole))) * interval
    far = loss > epsilon
    value = -float(np.dot(np.maximum(whole[far], 0.0), np.expm1(epsilon - loss[far])))
    return value + (infinite if up else -infinite)


def grid_step(
    noise: float, rate: float, swapped: bool, interval: float, up: bool
) -> tuple[np.ndarray, int, float]:
    """Masses of one step on the grid, the index of the first, and the mass beyond."""
    mu, reach = 1.0 / noise, 7.0

    def loss_at(x: float) -> float:
        value = float(np.log((1.0 - rate) + rate * np.exp(mu * x - mu * mu / 2)))
        return -value if swapped else value

    ends = sorted((loss_at(-reach), loss_at(mu + reach)))
    first, last = int(np.floor(ends[0] / interval)) - 1, int(np.ceil(ends[1] / interval)) + 1
    edge = np.arange(first, last + 1) * interval
    ratio = np.exp(-edge if swapped else edge) - (1.0 - rate)
    with np.errstate(divide="ignore"):
        x = np.where(ratio > 0, np.log(np.maximum(ratio, 1e-300) / rate) / mu + mu / 2, -np.inf)
    if swapped:
        below = special.ndtr(-x)
    else:
        below = (1.0 - rate) * special.ndtr(x) + rate * special.ndtr(x - mu)
    mass = np.zeros(len(edge))
    mass[1 if up else 0 :][: len(edge) - 1] = np.diff(below)
    mass[0] += below[0]
    beyond = 1.0 - below[-1]
    return mass, first, max(beyond, 0.0) + 1e-15
