"""One step as a measure of privacy losses, from below and from above (S9).

A pair of distributions (P, Q) enters as *cells* of the outcome space. A cell knows its
mass under P, its average loss log(P_i / Q_i) and the range of the loss log(dP/dQ) inside
it. From the cells come two measures of losses under P:

* **lower**: each cell becomes one atom at its average loss. Merging outcomes is
  post-processing, so this pair is dominated by the true one.
* **upper**: each cell is split between the end points of its loss range so that its
  masses under P and under Q stay what they are. In u = exp(-loss) this is a
  mean-preserving spread, and hockey-stick divergences are expectations under P of convex
  functions of u, so this pair dominates the true one. (It is "connecting the dots" of
  Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022, on a grid that follows the
  outcomes instead of the losses.)

Both relations survive composition: fix all other steps and the hockey-stick divergence
of the whole is again such an expectation. The relative error of either measure is of
second order in the cell width and does not grow with the number of steps.

Poisson sampling is linear in the pair and therefore exact on cells. Arrays have one row
for each pair, so that many pairs of one kind are handled at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

__all__ = [
    "Cells",
    "Measure",
    "Outcomes",
    "gaussian_edges",
    "gaussian_outcomes",
    "laplace_cells",
    "log_ratio",
    "many_shifts_outcomes",
    "oriented",
    "point_cells",
]

Array = np.ndarray

# A few units in the last place: what log1p, exp and one product may lose.
ROUNDING = 4e-16


@dataclass(frozen=True)
class Measure:
    """Masses of privacy losses under P, one row for each step of a kind.

    ``infinite`` is each row's mass at loss +infinity. ``mass_error`` bounds the relative
    floating error of the masses that is not yet on the safe side; whoever composes many
    steps pads by it.
    """

    loss: Array
    mass: Array
    infinite: Array
    mass_error: float = 1e-15

    @cached_property
    def everywhere(self) -> bool:
        """Whether every node has mass."""
        return bool(np.all(self.mass > 0))

    @classmethod
    def single(
        cls, loss: Array, mass: Array, infinite: float = 0.0, mass_error: float = 1e-15
    ) -> Measure:
        """A measure with one row."""
        return cls(loss[None, :], mass[None, :], np.array([infinite]), mass_error)


@dataclass(frozen=True)
class Cells:
    """Partitions of the outcomes of pairs (P, Q), one row for each pair.

    ``average`` is log(P_i / Q_i), and ``low <= average <= high`` the range of the loss in
    a cell. ``only_p`` is mass where Q vanishes, ``high_tail`` and ``low_tail`` are masses of
    P beyond the highest and the lowest cell. ``mass_slack`` (relative) and
    ``average_slack`` (absolute) bound floating errors, cell by cell; both measures are
    rounded to their safe side by them. ``touching`` says that each cell begins where the
    one before it ends.
    """

    p: Array
    average: Array
    low: Array
    high: Array
    only_p: Array
    high_tail: Array | float = 0.0
    low_tail: Array | float = 0.0
    mass_slack: Array | float = 1e-15
    average_slack: Array | float = 0.0
    touching: bool = False

    def lower(self) -> Measure:
        """The measure whose hockey-stick divergences are at most those of the pair."""
        loss = self.average - self.average_slack
        mass = self.p * (1.0 - self.mass_slack)
        return Measure(loss - ROUNDING * np.abs(loss), mass, self.only_p)

    def upper(self) -> Measure:
        """The measure whose hockey-stick divergences are at least those of the pair."""
        infinite = self.only_p + self.high_tail
        p = self.p * (1.0 + self.mass_slack)
        if self.high is self.low:
            loss = self.high + self.average_slack
            return Measure(loss + ROUNDING * np.abs(loss), p, infinite)
        width = self.high - self.low
        average = np.minimum(self.average + self.average_slack, self.high)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.expm1(self.low - average) / np.expm1(-width)
        share = np.where(width > 0, np.clip(share, 0.0, 1.0), 1.0)
        up, down = p * share, p * (1.0 - share)
        if self.touching:
            # Neighbouring cells share their boundary: n + 1 nodes instead of 2 n.
            loss = np.concatenate([self.low, self.high[:, -1:]], axis=1)
            mass = np.concatenate([down, np.zeros((len(down), 1))], axis=1)
            mass[:, 1:] += up
        else:
            loss = np.concatenate([self.low, self.high], axis=1)
            mass = np.concatenate([down, up], axis=1)
        mass[:, 0] += self.low_tail
        return Measure(loss + ROUNDING * np.abs(loss), mass, infinite)


@dataclass(frozen=True)
class Outcomes:
    """A partition of the outcomes of P (a mixture of shifted normals) and Q = N(0, 1).

    It serves both orders of the pair, so a unit removed and a unit added share its cost.
    """

    weights: Array
    shifts: Array
    edge: Array
    boundary: Array
    null: Array
    present: Array
    average: Array
    relative: Array
    slack: Array
    grown: Array

    def cells(self, *, swapped: bool) -> Cells:
        """Cells of (P, Q), or with ``swapped`` of (Q, P): the unit was added, not removed."""
        none = np.zeros(len(self.edge))
        if swapped:
            # High losses lie on the left now.
            return Cells(
                p=self.null[:, ::-1],
                average=-self.average[:, ::-1],
                low=-self.boundary[:, :0:-1],
                high=-self.boundary[:, -2::-1],
                only_p=none,
                high_tail=special.ndtr(self.edge[:, 0]),
                low_tail=special.ndtr(-self.edge[:, -1]),
                mass_slack=self.relative[:, ::-1],
                average_slack=self.slack[:, ::-1],
                touching=True,
            )
        return Cells(
            p=self.present,
            average=self.average,
            low=self.boundary[:, :-1],
            high=self.boundary[:, 1:],
            only_p=none,
            high_tail=np.sum(self.weights * special.ndtr(self.shifts - self.edge[:, -1:]), axis=1),
            low_tail=np.sum(self.weights * special.ndtr(self.edge[:, :1] - self.shifts), axis=1),
            mass_slack=np.minimum(self.relative * (2.0 + np.minimum(self.grown, 100.0)), 1.0),
            average_slack=self.slack,
            touching=True,
        )


def gaussian_outcomes(weights: Array, shifts: Array, *, edge: Array) -> Outcomes:
    """Partitions for P = sum_j weights_j N(shifts_j, 1) against Q = N(0, 1), row by row.

    Shifts are non-negative and the first is 0 unless it is the only one, so the loss is
    monotone in the outcome x; ``edge`` are the increasing boundaries of the cells in x.
    """
    null = _normal_mass(edge)
    gain = np.zeros_like(null)
    # The shift 0 cancels exactly in the difference, however large its weight.
    moved = range(1, shifts.shape[1]) if shifts.shape[1] > 1 else range(1)
    for j in moved:
        gain += weights[:, j : j + 1] * (_normal_mass(edge - shifts[:, j : j + 1]) - null)
    boundary = _mixture_loss(edge, weights, shifts)
    with np.errstate(divide="ignore", invalid="ignore"):
        average = np.log1p(gain / null)
        relative = _relative_error(edge, null)
    # The same error seen by log1p(gain / null): only the moved share of P carries it.
    part = weights[:, moved.start :].sum(axis=1, keepdims=True)
    grown = np.exp(np.minimum(boundary[:, 1:], 700.0))
    slack = relative * np.minimum(1.0, 2.0 * part + np.maximum(grown - 1.0, 0.0))
    present = np.maximum(null + gain, 0.0)
    thin = gain < -0.5 * null
    if np.any(thin):
        # P is small beside Q: the difference says nothing, its own mass does.
        total, loss_of_digits = np.zeros_like(null), relative
        for j in range(shifts.shape[1]):
            moved_edge = edge - shifts[:, j : j + 1]
            mass = _normal_mass(moved_edge)
            total = total + weights[:, j : j + 1] * mass
            with np.errstate(divide="ignore", invalid="ignore"):
                loss_of_digits = np.maximum(loss_of_digits, _relative_error(moved_edge, mass))
        present = np.where(thin, total, present)
        with np.errstate(divide="ignore", invalid="ignore"):
            average = np.where(thin, np.log(total) - np.log(null), average)
        slack = np.where(thin, 2.0 * loss_of_digits + 4e-16 * np.abs(boundary[:, :-1]), slack)
        relative = np.where(thin, loss_of_digits, relative)
    # Where a mass is too small to be known, only the range of the loss is.
    unknown = ~np.isfinite(average) | (relative >= 1e-3)
    if np.any(unknown):
        average = np.where(unknown, boundary[:, :-1], average)
        slack = np.where(unknown, boundary[:, 1:] - boundary[:, :-1], slack)
    average = np.clip(average, boundary[:, :-1], boundary[:, 1:])
    return Outcomes(weights, shifts, edge, boundary, null, present, average, relative, slack, grown)


def many_shifts_outcomes(weights: Array, shifts: Array, *, edge: Array) -> Outcomes:
    """As :func:`gaussian_outcomes` for one pair whose shift 0 has little weight, or none.

    Most of P has moved, so its own masses are summed: nothing cancels. The weights may sum to
    less than 1.
    """
    null = _normal_mass(edge)
    total, wrong = np.zeros_like(null), np.zeros_like(null)
    for weight, shift in zip(weights[0], shifts[0], strict=True):
        mass = _normal_mass(edge - shift)
        total += weight * mass
        # Errors of the distribution function are relative to it, and they add up.
        inner = np.minimum(np.abs(edge[:, 1:] - shift), np.abs(edge[:, :-1] - shift))
        wrong += 1e-15 * weight * (mass + 2.0 * special.ndtr(-inner))
    boundary = _mixture_loss(edge, weights, shifts)
    with np.errstate(divide="ignore", invalid="ignore"):
        average = np.log(total) - np.log(null)
        relative = np.where(total > 0, wrong / total, 1.0) + _relative_error(edge, null)
        slack = relative + 4e-16 * (np.abs(np.log(total)) + np.abs(np.log(null)))
    unknown = ~np.isfinite(average) | (relative >= 1e-3)
    average = np.where(unknown, boundary[:, :-1], average)
    slack = np.where(unknown, boundary[:, 1:] - boundary[:, :-1], slack)
    average = np.clip(average, boundary[:, :-1], boundary[:, 1:])
    relative, none = np.minimum(relative, 1.0), np.zeros_like(null)
    return Outcomes(weights, shifts, edge, boundary, null, total, average, relative, slack, none)


def gaussian_edges(
    weights: Array,
    shifts: Array,
    *,
    tau: float,
    cells: int,
    tail: float,
    swapped: bool,
    focus: float = math.inf,
) -> Array:
    """Cell boundaries, dense where the tilted measure has its variance.

    A cell adds an error proportional to its tilted mass times the square of its loss
    width, so a density of boundaries like the cube root of that weight is best. A
    loss beyond the epsilon of interest (``focus``) decides alone, and there the curvature
    exp(-loss) counts. About ``tail`` of the mass of P is left out at each end. Any
    boundaries are valid; these are good.
    """
    rows = len(shifts)
    reach = float(-special.ndtri(tail))
    if swapped:
        top = np.full(rows, reach)
    else:
        # Each shift reaches as far as its own share of the tail.
        share = np.minimum(tail / np.maximum(weights, tail), 0.5)
        top = np.max(shifts - special.ndtri(share), axis=1)
    points = 161 if rows < 20 else 97
    unit = np.linspace(0.0, 1.0, points)
    x = -reach + unit * (top + reach)[:, None]
    loss = _mixture_loss(x, weights, shifts)
    slope = np.diff(loss, axis=1) / np.diff(x, axis=1)
    middle = 0.5 * (x[:, 1:] + x[:, :-1])
    at = 0.5 * (loss[:, 1:] + loss[:, :-1])
    under_p, worth = (np.zeros_like(at), -at) if swapped else (at, at)
    beyond = np.maximum(worth - focus, 0.0)
    exponent = -0.5 * middle * middle + under_p + tau * (worth - beyond) - beyond
    exponent -= exponent.max(axis=1, keepdims=True)
    weight = np.exp(exponent / 3.0) * np.maximum(slope, 0.0) ** (2.0 / 3.0)
    # Before the tilt is known, nowhere may be left out.
    weight += (0.02 if tau > 0.0 else 1.0) * weight.mean(axis=1, keepdims=True) + 1e-300
    mass = np.concatenate([np.zeros((rows, 1)), np.cumsum(weight, axis=1)], axis=1)
    mass /= mass[:, -1:]
    goal = np.linspace(0.0, 1.0, cells + 1)
    edge = np.stack([np.interp(goal, m, r) for m, r in zip(mass, x, strict=True)])
    edge[:, 0], edge[:, -1] = -reach, top
    return edge


def _normal_mass(edge: Array) -> Array:
    """Masses of N(0, 1) between edges, each from the side where it is a small number."""
    left = special.ndtr(-np.abs(edge))
    inside = np.where(edge[:, 1:] <= 0, left[:, 1:] - left[:, :-1], left[:, :-1] - left[:, 1:])
    across = (edge[:, :-1] < 0) & (edge[:, 1:] > 0)
    if np.any(across):
        inside = np.where(across, 1.0 - left[:, 1:] - left[:, :-1], inside)
    return np.asarray(inside)


def _relative_error(edge: Array, mass: Array) -> Array:
    """What a difference of normal distribution functions may lose, relative to it."""
    inner = np.minimum(np.abs(edge[:, 1:]), np.abs(edge[:, :-1]))
    lost = 1e-15 * (1.0 + 2.0 * special.ndtr(-inner) / mass)
    return np.where(mass > 0, np.minimum(lost, 1.0), 1.0)


def _mixture_loss(x: Array, weights: Array, shifts: Array) -> Array:
    """log sum_j w_j exp(s_j x - s_j^2 / 2), without cancellation near 0 or far below."""
    if shifts.shape[1] == 1:
        return np.asarray(shifts * x - 0.5 * shifts**2)
    gain = np.zeros_like(x)
    largest = np.full_like(x, -np.inf if shifts[0, 0] > 0.0 else 0.0)
    moved = range(0 if shifts[0, 0] > 0.0 else 1, shifts.shape[1])
    for j in moved:
        shift = shifts[:, j : j + 1]
        exponent = shift * x - 0.5 * shift**2
        largest = np.maximum(largest, exponent)
        gain += weights[:, j : j + 1] * np.expm1(np.minimum(exponent, 30.0))
    far = (largest > 30.0) | (gain < -0.5)
    loss = np.log1p(np.where(far, 0.0, gain))
    if np.any(far):
        scaled = weights[:, :1] * np.exp(-largest) if moved.start else np.zeros_like(x)
        for j in moved:
            shift = shifts[:, j : j + 1]
            scaled = scaled + weights[:, j : j + 1] * np.exp(shift * x - 0.5 * shift**2 - largest)
        with np.errstate(divide="ignore"):
            loss = np.where(far, largest + np.log(scaled), loss)
    return np.asarray(loss)


def laplace_cells(epsilon: float, *, rate: float, count: int, swapped: bool) -> Cells:
    """Cells for Laplace noise whose shift is ``epsilon`` scales, on a Poisson sample.

    Outside the two means the loss is constant (+-epsilon): two atoms. Between them it is
    linear in the outcome, and the cells are uniform in the loss.
    """
    edge = np.linspace(-epsilon, epsilon, count + 1)
    # P has density exp(-(epsilon - l) / 2) / 4 per unit of loss l, Q the mirror image.
    present = 0.5 * np.exp(-(epsilon - edge[1:]) / 2) * -np.expm1(-np.diff(edge) / 2)
    outer = 0.5 * math.exp(-epsilon)
    p = np.concatenate([[outer], present, [0.5]])
    q = np.concatenate([[0.5], present[::-1], [outer]])
    low = np.concatenate([[-epsilon], edge[:-1], [epsilon]])
    high = np.concatenate([[-epsilon], edge[1:], [epsilon]])
    middle = 0.5 * (edge[1:] + edge[:-1])
    average = np.concatenate([[-epsilon], middle, [epsilon]])
    return oriented(p, q, average, low, high, rate=rate, swapped=swapped)


def point_cells(p: Array, q: Array, *, rate: float = 1.0, swapped: bool = False) -> Cells:
    """Cells for finite distributions: every outcome is its own cell, and exact."""
    both = (p > 0) & (q > 0)
    only_p, only_q = float(p[q <= 0].sum()), float(q[p <= 0].sum())
    p, q = p[both], q[both]
    loss = log_ratio(p, q)
    return oriented(
        p, q, loss, loss, loss, rate=rate, swapped=swapped, only_p=only_p, only_q=only_q
    )


def log_ratio(p: Array, q: Array) -> Array:
    """log(p / q) of positive numbers, also where they are nearly equal or absurdly far apart."""
    near = np.abs(p - q) < 0.5 * q
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        ratio = p / q
        plain = (ratio > 1e-300) & (ratio < 1e300)
        far = np.where(plain, np.log(np.where(plain, ratio, 1.0)), np.log(p) - np.log(q))
        return np.asarray(np.where(near, np.log1p(np.where(near, p - q, 0.0) / q), far))


def oriented(
    p: Array,
    q: Array,
    average: Array,
    low: Array,
    high: Array,
    *,
    rate: float,
    swapped: bool,
    only_p: float = 0.0,
    only_q: float = 0.0,
) -> Cells:
    """Apply Poisson sampling and, for an added unit, exchange the roles of the pair."""
    exact = low is high
    if rate < 1.0:
        low = _sampled_loss(low, rate)
        average = low if exact else _sampled_loss(average, rate)
        high = low if exact else _sampled_loss(high, rate)
        p = q + rate * (p - q)
        if only_q > 0.0:
            # Where only Q lives the sampled pair has the finite loss log(1 - rate).
            thin = math.log1p(-rate)
            p, q = np.append(p, (1.0 - rate) * only_q), np.append(q, only_q)
            low = np.append(low, thin)
            average = low if exact else np.append(average, thin)
            high = low if exact else np.append(high, thin)
            only_q = 0.0
        only_p *= rate
    if swapped:
        p, only_p = q, only_q
        low, average, high = -high, -average, -low
    order = np.argsort(low, kind="stable")
    low = low[order][None, :]
    return Cells(
        p[order][None, :],
        low if exact else average[order][None, :],
        low,
        low if exact else high[order][None, :],
        np.array([only_p]),
    )


def _sampled_loss(loss: Array, rate: float) -> Array:
    """log(1 - rate + rate exp(loss)) without cancellation or overflow."""
    far = loss > 30.0
    inner = np.log1p(rate * np.expm1(np.where(far, 0.0, loss)))
    outer = loss + math.log(rate) + np.log1p((1.0 - rate) / rate * np.exp(-np.maximum(loss, 30.0)))
    return np.where(far, outer, inner)
