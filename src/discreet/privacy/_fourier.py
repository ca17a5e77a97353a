"""The hockey-stick divergence of a composition, by Fourier inversion of tilted measures.

Let L be the total loss, a sum over independent steps of losses with known measures under
P. With z = tau + i t, tau > 0 and X the characteristic function of L tilted by exp(tau L),

    delta(eps) = exp(K - tau eps) / (2 pi) * integral X(t) exp(-i t eps) / (z (z + 1)) dt,

because exp(-tau v) (1 - exp(-v))_+ has the Fourier transform 1 / (z (z + 1)). K is the log
moment generating function of L at tau. X is a product of powers, so the number of steps
does not matter, and tilting to the point that dominates delta keeps relative precision
for delta as small as 1e-15 and far below.

**Blur.** The integrand decays only like t^-2, so L is blurred by an independent
N(kappa^2 / 2, kappa^2). The blur N satisfies E exp(-N) = 1: a mean-preserving spread of
exp(-L), hence an upper bound. Its effect is at most
kappa / sqrt(2 pi) * exp(-v/2 - v^2 / (2 kappa^2)) at v = L - eps (integrate the vega of the
Black-Scholes price), whose transform is again elementary, so subtracting it gives a lower
bound. The two differ by about kappa^2 (1 + tau) in epsilon.

**Errors.** Summing the integral by the trapezoidal rule with step 2 pi / W adds copies
of the (non-negative) tilted integrand shifted by multiples of W: an upper bound stays one,
and the lower bound subtracts Chernoff bounds of the copies. The truncated frequencies and
the floating error of X are bounded explicitly and go to the unfavourable side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from discreet.privacy._pair import MASS_ROUNDING, UNIT, Array, Measure, known_number

MOST_FREQUENCIES = 60_000
# Frequencies times nodes: what one transform may cost (about half a second).
MOST_WORK = 100_000_000
CHUNK = 4_000_000
MANY_NODES = 50_000
MANY_STEPS = 1_000
# So many characteristic functions are multiplied before a logarithm is taken.
RUN = 8
# In units of 1 / blur: there its transform has fallen to exp(-30).
LAST_FREQUENCY = math.sqrt(2.0 * 30.0)
# In units of 1 / deviation, and of the tilt: where Chernoff bounds of far copies are tried.
FURTHER_TILTS = (6.0, 4.0, 9.0, 2.0, 14.0, 1.0)
SHARES_OF_TILT = (0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Part:
    """Measures of one kind, with how often each row occurs in the composition."""

    measure: Measure
    counts: Array

    @property
    def steps(self) -> int:
        """The number of steps in this part."""
        return int(self.counts.sum())


def _tilt(measure: Measure, tau: float) -> tuple[Array, Array, Array]:
    """The masses tilted by exp(tau loss) and scaled, their sum in each row, and its logarithm."""
    # In place: many distinct steps are large arrays, and memory is what they wait for.
    weight = tau * measure.loss
    # Nodes without mass must not set the scale, or everything else would underflow.
    seen = weight if measure.everywhere else np.where(measure.mass > 0, weight, -math.inf)
    largest = seen.max(axis=1, keepdims=True)
    weight -= largest
    np.minimum(weight, 0.0, out=weight)
    np.exp(weight, out=weight)
    weight *= measure.mass
    norm = weight.sum(axis=1, keepdims=True)
    return weight, norm, (largest + np.log(norm))[:, 0]


def log_mgf(parts: Sequence[Part], tau: float) -> float:
    """K(tau): the log of E_P exp(tau L) over the finite losses."""
    return sum(float(part.counts @ _tilt(part.measure, tau)[2]) for part in parts)


def tilted_moments(parts: Sequence[Part], tau: float) -> tuple[float, float, float]:
    """K(tau) with the mean and the variance of L tilted by exp(tau L)."""
    return _centre(parts, tau)[1]


def _centre(
    parts: Sequence[Part], tau: float
) -> tuple[list[tuple[Part, Array, Array]], tuple[float, float, float]]:
    """Each part with its tilted weights and its losses around the tilted mean; the moments."""
    total = mean = variance = 0.0
    centred = []
    for part in parts:
        weight, norm, log_norm = _tilt(part.measure, tau)
        weight /= norm
        product = weight * part.measure.loss
        first = np.add.reduce(product, axis=1)
        around = part.measure.loss - first[:, None]
        np.multiply(around, around, out=product)
        product *= weight
        second = np.add.reduce(product, axis=1)
        total += float(part.counts @ log_norm)
        mean += float(part.counts @ first)
        variance += float(part.counts @ second)
        centred.append((part, weight, around))
    return centred, (total, mean, variance)


def infinite_mass(parts: Sequence[Part], *, is_upper: bool) -> float:
    """The probability that some step has loss +infinity, rounded up or down."""
    total = 0.0
    for part in parts:
        infinite = part.measure.infinite
        most = float(infinite[0]) if len(infinite) == 1 else float(infinite.max())
        if most >= 1.0:
            return 1.0
        if most > 0.0:
            total += float(part.counts @ np.log1p(-infinite))
    # What the logarithms and their sum lose.
    rounding = MASS_ROUNDING + UNIT * sum(len(part.counts) for part in parts)
    return min(1.0, -math.expm1(total) * (1.0 + (rounding if is_upper else -rounding)))


def mass_pad(parts: Sequence[Part], tau: float) -> float:
    """A bound on the relative floating error that the norms of all steps accumulate.

    Each norm is a sum over the nodes, and its logarithm may be a small difference of a
    large exponent and a large logarithm.
    """
    total = 0.0
    for part in parts:
        nodes = part.measure.loss.shape[1]
        largest = tau * float(np.abs(part.measure.loss).max())
        total += part.steps * (part.measure.mass_error + UNIT * (0.5 * nodes + 8.0 + largest))
    return total


def tilt_for_delta(
    parts: Sequence[Part], log_delta: float, *, ceiling: float, start: float
) -> float:
    """The tau that minimises (K(tau) + c(tau) - log delta) / tau, a Chernoff bound on epsilon.

    c(tau) is the log of the maximum over v of exp(-tau v) (1 - exp(-v)); it keeps tau finite
    where the largest loss has positive mass.
    """

    def slope(tau: float) -> tuple[float, float]:
        # The sign of the derivative; this grows with tau.
        total, mean, variance = tilted_moments(parts, tau)
        value = tau * mean - total + math.log1p(tau) + log_delta
        return value, tau * variance + 1.0 / (1.0 + tau)

    return _increasing_root(slope, ceiling, start)


def tilt_for_epsilon(
    parts: Sequence[Part], epsilon: float, *, ceiling: float, start: float
) -> float:
    """The tau that minimises K(tau) + c(tau) - tau epsilon, the same bound on log delta."""

    def slope(tau: float) -> tuple[float, float]:
        _, mean, variance = tilted_moments(parts, tau)
        return mean - math.log1p(1.0 / tau) - epsilon, variance + 1.0 / (tau * (1.0 + tau))

    return _increasing_root(slope, ceiling, start)


def _increasing_root(
    function: Callable[[float], tuple[float, float]], ceiling: float, start: float
) -> float:
    """A rough root, by Newton's steps in a bracket.

    Every positive tau is valid, so rough is enough. ``function`` returns a value that grows
    with tau, and its derivative.
    """
    least = ceiling * 2.0**-60
    low, high = least, ceiling
    point = min(max(start, low), high)
    for _ in range(60):
        value, slope = function(point)
        if value > 0.0:
            high = point
        elif point >= ceiling:
            return ceiling
        else:
            low = point
        fresh = point - value / slope if slope > 0.0 else math.nan
        if abs(fresh - point) < 0.02 * point and abs(value) < 0.5:
            return min(max(fresh, low), high)
        if high <= 1.03 * low:
            return low
        if abs(value) > 5.0 or not low < fresh < high:
            # Near a tilt without a moment Newton's steps are tiny, or far too large: halve.
            if value > 0.0:
                fresh = math.sqrt(low * high) if low > least else 0.4 * point
            else:
                fresh = math.sqrt(low * high) if high < ceiling else min(4.0 * point, ceiling)
        point = fresh
    return point


def _further_tilts(tau: float, deviation: float) -> list[float]:
    """Return by how much more to tilt; with heavy tails far less than 1 / deviation may do."""
    by_deviation = [factor / deviation for factor in FURTHER_TILTS]
    return by_deviation[:1] + [share * tau for share in SHARES_OF_TILT] + by_deviation[1:]


def window(
    parts: Sequence[Part],
    tau: float,
    known: tuple[float, float, float],
    *,
    log_delta: float,
    around: float,
    blur: float,
) -> float:
    """A period W such that the copies of the trapezoidal rule near ``around`` are negligible.

    ``known`` are the tilted moments at ``tau``.
    """
    log_norm, mean, variance = known
    deviation = math.sqrt(variance + blur**2)
    anchor = min(mean, around)
    shortest = max((16.0 - log_delta) / tau, 12.0 * deviation)
    ahead, misses = math.inf, 0
    for shift in _further_tilts(tau, deviation):
        excess = log_mgf(parts, tau + shift) - log_norm - shift * anchor
        # Relative to the value at the anchor, which is about exp(-tau (anchor - mean)) high.
        excess = max(excess, 0.0) + 20.0
        if math.isfinite(around):
            # And beside delta itself, which with heavy tails lies far below that height.
            beside = log_norm - tau * around - log_delta + 12.0 - shift * (around - anchor)
            excess = max(excess, excess - 20.0 + beside)
        excess += 0.5 * (shift * blur) ** 2
        misses = misses + 1 if excess / shift > 0.97 * ahead else 0
        ahead = min(ahead, excess / shift)
        if ahead + 4.0 * deviation <= shortest or misses == 3:
            break
    return max(shortest, ahead + 4.0 * deviation)


class Inversion:
    """delta(eps) of a composition near one tilt, with bounds on every numerical error."""

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        tau: float,
        blur: float,
        log_delta: float,
        around: float = math.inf,
    ) -> None:
        self.parts = parts
        self.tau = tau
        self.blur = blur
        self.least_infinite = infinite_mass(parts, is_upper=False)
        self.most_infinite = infinite_mass(parts, is_upper=True)
        self._last_phase: tuple[float, Array] = (math.nan, np.empty(0))
        self._centred_parts, known = _centre(parts, tau)
        self.log_mgf, self.mean, variance = known
        self.deviation = math.sqrt(variance + blur**2)
        self.mass_pad = mass_pad(parts, tau)
        known_number("moments", self.log_mgf + self.mean + self.deviation + self.mass_pad)
        self.window = window(parts, tau, known, log_delta=log_delta, around=around, blur=blur)
        nodes = sum(part.measure.loss.size for part in parts)
        self.most = max(2_000, min(MOST_FREQUENCIES, MOST_WORK // nodes))
        if nodes > MANY_NODES and self._transform(limit=max(300, MOST_WORK // (2 * nodes))):
            return
        # If the frequencies cannot resolve the blur asked for, widen it: the bracket grows but
        # stays valid, while a truncated transform says nothing. It is never wider than a few
        # lengths of the tilt.
        wider = LAST_FREQUENCY * self.window / (2.0 * math.pi * (self.most - 2))
        wider = min(wider, 5.0 / tau)
        if wider > blur:
            self.blur = wider
            self.deviation = math.sqrt(variance + wider**2)
        self._transform()

    # --- the characteristic function ---------------------------------------------------

    def _transform(self, limit: int | None = None) -> bool:
        """Compute the integrand; false if more than ``limit`` frequencies would be needed.

        Many steps of many kinds decay quickly: then a few frequencies suffice, whatever the
        blur would need by itself.
        """
        tau, kappa = self.tau, self.blur
        step = 2.0 * math.pi / self.window
        wanted = math.ceil(LAST_FREQUENCY / kappa / step) + 1
        deviation = self.deviation
        if limit is None:
            wanted = limit = min(self.most, wanted)
        else:
            bulk = sum(float(p.counts @ _bulk(w, x, 1)[2]) for p, w, x in self._centred_parts)
            deviation = math.sqrt(bulk + kappa**2)
        count = min(wanted, limit, 2 + math.ceil(10.0 / deviation / step))
        log_x, noise = self._log_characteristic(0, count, step)
        while True:
            tail = self._tail_bound(count, wanted, step, log_x)
            if tail is not None:
                break
            if count >= limit:
                return False
            known, count = count, min(limit, 3 * count)
            more_x, more_noise = self._log_characteristic(known, count, step)
            log_x, noise = np.append(log_x, more_x), np.append(noise, more_noise)
        t = step * np.arange(count)
        z = tau + 1j * t
        damping = np.exp(0.5 * kappa**2 * (z * z + z))
        x = np.exp(log_x)
        log_size = log_x.real
        # |X| (exp(noise) - 1), and never more than two values of modulus 1 can differ by.
        wrong = np.exp(log_size) * np.expm1(np.minimum(noise, 1.0)) + 16 * UNIT * np.abs(x)
        if noise.max() > 1.0:
            wrong = np.where(noise > 1.0, np.minimum(2.0 * np.exp(log_size + noise), 2.0), wrong)
        wrong *= np.abs(damping)
        weight = np.full(count, step / math.pi)
        weight[0] *= 0.5
        self.t = t
        self.call = weight * x * damping / (z * (z + 1.0))
        self.density = weight * x * damping
        self.slope = self.call * -z
        self.call_error = float(np.sum(weight * wrong / np.abs(z * (z + 1.0))))
        self.density_error = float(np.sum(weight * wrong))
        lift = math.exp(0.5 * kappa**2 * (tau * tau + tau))
        reach = count * step
        # Beyond the last frequency |X| <= 1 and only the blur decays.
        if count >= wanted:
            decay = math.exp(-0.5 * (kappa * reach) ** 2) * lift
            tail_density = decay / (math.pi * kappa**2 * reach) + step * decay / math.pi
            self.call_error += tail_density / reach**2
            self.density_error += tail_density
        else:
            end = wanted * step
            decay = math.exp(-0.5 * (kappa * end) ** 2) * lift
            beyond = decay / (math.pi * kappa**2 * end) + step * decay / math.pi
            self.density_error += tail * lift + beyond
            self.call_error += (tail * lift) / reach**2 + beyond / end**2
        return True

    def _log_characteristic(self, first: int, last: int, step: float) -> tuple[Array, Array]:
        """log X at the multiples first .. last - 1 of ``step``, and its error bound.

        X is centred at the mean, and its logarithm known up to multiples of 2 pi i.
        """
        count = last - first
        total = np.zeros(count, dtype=complex)
        noise = np.zeros(count)
        rows = max(1, math.isqrt(count - 1) + 1)
        columns = -(-count // rows)
        t = step * np.arange(first, last)
        for part, all_weights, all_losses in self._centred_parts:
            chunk = max(1, CHUNK // (all_losses.shape[1] * (rows + columns)))
            for start in range(0, len(all_losses), chunk):
                loss = all_losses[start : start + chunk]
                counts = part.counts[start : start + chunk]
                weight = all_weights[start : start + chunk]
                inner = _powers(loss * step, columns)
                outer = _powers(loss * (step * columns), rows)
                outer *= (weight * np.exp((1j * step * first) * loss) if first else weight)[:, None]
                x = (outer @ inner.transpose(0, 2, 1)).reshape(len(loss), -1)[:, :count]
                extent = np.abs(loss).max(axis=1, keepdims=True)
                error = UNIT * (2.0 * (rows + columns) + 0.5 * loss.shape[1] + 24.0 + t * extent)
                size = np.maximum(np.abs(x), 1e-290)
                ratio = error / size
                # log1p(y) <= y, and for small y little is lost.
                noise += counts @ (ratio if ratio.max() < 1e-3 else np.log1p(ratio))
                x = np.where(x == 0, 1e-290, x)
                if len(counts) > RUN and counts.max() == 1.0 and size.min() > 1e-30:
                    # Each occurs once, and a product has one logarithm.
                    runs = np.arange(0, len(counts), RUN)
                    total += np.add.reduce(np.log(np.multiply.reduceat(x, runs, axis=0)), axis=0)
                else:
                    total += counts @ np.log(x)
        return total, noise

    def _tail_bound(self, count: int, wanted: int, step: float, log_x: Array) -> float | None:
        """A bound on the density mass of frequencies count..wanted, or None if it is not small.

        |X_a|^2 is the characteristic function of a symmetrised loss; its second derivative
        is at most twice the variance, so it is bounded between sample points. Rare large
        losses would spoil that bound, so they are set aside with their whole mass.
        """
        if count >= wanted:
            return 0.0
        if log_x[-1].real > -28.0:
            return None
        # Merged nodes are quick and mostly enough.
        bound = self._tail_of_runs(count, wanted, step, 12)
        few = all(len(part.counts) < 20 for part in self.parts)
        return self._tail_of_runs(count, wanted, step, 1) if bound is None and few else bound

    def _tail_of_runs(self, count: int, wanted: int, step: float, run: int) -> float | None:
        start, end = (count - 1) * step, wanted * step
        parts = [
            (part, *_bulk(weight, loss, run if loss.shape[1] > 8 * run else 1))
            for part, weight, loss in self._centred_parts
        ]
        steps = sum(part.steps for part in self.parts)
        total = sum(float(part.counts @ variance) for part, _, _, variance, _, _ in parts)
        # A step whose characteristic function is a little below 1 is enough where there are many.
        coarse = (1.0 if steps > MANY_STEPS else 0.35) / math.sqrt(total / steps)
        points = _growing_points(start, end, step, max(coarse, step))
        if points is None:
            return None
        t = np.array(points)
        gap = np.diff(t)
        log_size = np.zeros(len(gap))
        for part, weight, loss, variance, within, rare in parts:
            for i in range(len(loss)):
                phase = np.multiply.outer(t, loss[i])
                size = np.hypot(np.cos(phase) @ weight[i], np.sin(phase) @ weight[i])
                # Merging nodes into their means moved X by at most t^2 / 2 times their spread.
                square = np.minimum(size + 0.5 * within[i] * t * t, 1.0) ** 2
                most = np.maximum(square[1:], square[:-1]) + 0.25 * variance[i] * gap**2
                bound = np.sqrt(most) + rare[i] + 1e-13
                log_size += float(part.counts[i]) * np.log(np.minimum(bound, 1.0))
        damping = np.exp(-0.5 * (self.blur * t[:-1]) ** 2)
        bound = float(np.sum((gap + step) / math.pi * np.exp(log_size) * damping))
        scale = 1.0 / (self.deviation * math.sqrt(2.0 * math.pi))
        return bound if bound < 1e-9 * scale else None

    # --- readings ----------------------------------------------------------------------

    def upper(self, epsilon: float) -> float:
        """At least delta(epsilon) of the composed measures."""
        value = float(np.dot(self.call, self._phase(epsilon)).real)
        scale = self._scale(epsilon)
        known_number("transform", value + self.call_error)
        return self.most_infinite + scale * max(value + self.call_error, 0.0) * math.exp(
            self.mass_pad
        )

    def upper_at(self, epsilons: Array) -> Array:
        """As :meth:`upper`, at many epsilons, which may be far from the one it was made for.

        Far away the rounding of the phase counts: it is added here.
        """
        away = self.mean - epsilons
        drift = float(np.sum(np.abs(self.call) * self.t))
        values = np.array(
            [np.dot(self.call, np.exp(1j * (self.t * gap))).real for gap in away.tolist()]
        )
        values += self.call_error + 8 * UNIT * drift * np.abs(away)
        known_number("transform", float(values.sum()))
        scales = np.array([self._scale(epsilon) for epsilon in epsilons.tolist()])
        finite: Array = scales * np.maximum(values, 0.0) * math.exp(self.mass_pad)
        return self.most_infinite + finite

    def lower(self, epsilon: float) -> float:
        """At most delta(epsilon) of the composed measures."""
        phase = self._phase(epsilon)
        value = float(np.dot(self.call, phase).real)
        bump = float(np.dot(self.density, phase).real)
        kappa = self.blur
        factor = kappa**2 * math.exp(kappa**2 / 8.0)
        net = value - self.call_error - factor * (bump + self.density_error)
        net -= self._copies(epsilon)
        known_number("transform", net)
        scale = self._scale(epsilon, -1.0)
        return self.least_infinite + scale * max(net, 0.0) * math.exp(-self.mass_pad)

    def value_and_slope(self, epsilon: float) -> tuple[float, float]:
        """An estimate (not a bound) of delta's finite part and its derivative."""
        phase = self._phase(epsilon)
        scale = self._scale(epsilon)
        value = float(np.dot(self.call, phase).real)
        return scale * value, scale * float(np.dot(self.slope, phase).real)

    def _phase(self, epsilon: float) -> Array:
        # A bound and its slope are asked for at the same point, one after the other.
        if self._last_phase[0] != epsilon:
            self._last_phase = (epsilon, np.exp(1j * (self.t * (self.mean - epsilon))))
        return self._last_phase[1]

    def _scale(self, epsilon: float, side: float = 1.0) -> float:
        """exp(K - tau eps), rounded up for ``side`` 1 and down for -1."""
        exponent = self.log_mgf - self.tau * epsilon
        rounding = 8 * UNIT * (1.0 + abs(self.log_mgf) + abs(exponent))
        return math.exp(min(exponent, 700.0)) * (1.0 + side * min(rounding, 0.5))

    def _copies(self, epsilon: float) -> float:
        """The tilted integrand's copies at epsilon + k W, k != 0, bounded from above."""
        behind = math.exp(min(self.tau * (epsilon - self.window) - self.log_mgf, 700.0))
        behind /= -math.expm1(-self.tau * self.window)
        ahead = math.inf
        for tried in _further_tilts(self.tau, self.deviation):
            other = self.tau + tried
            shift = other - self.tau
            damping = 0.5 * self.blur**2 * (other * other + other)
            log_first = self._mgf(other) - self.log_mgf - shift * (epsilon + self.window) + damping
            ahead = min(ahead, math.exp(min(log_first, 700.0)) / -math.expm1(-shift * self.window))
            if ahead < self.call_error:
                break
        return behind + ahead

    def _mgf(self, tau: float) -> float:
        known = self.__dict__.setdefault("_known_mgf", {})
        if tau not in known:
            known[tau] = log_mgf(self.parts, tau)
        return float(known[tau])


def _powers(angle: Array, count: int) -> Array:
    """exp(i j angle) for j = 0 .. count - 1 along a new middle axis, by multiplication."""
    rows = np.empty((len(angle), count, angle.shape[1]), dtype=complex)
    rows[:, 0] = 1.0
    if count > 1:
        rows[:, 1] = np.cos(angle) + 1j * np.sin(angle)
    for j in range(2, count):
        half = j // 2
        np.multiply(rows[:, half], rows[:, j - half], out=rows[:, j])
    return rows


def _growing_points(start: float, end: float, least: float, most: float) -> list[float] | None:
    """Points from ``start`` past ``end`` in steps of a fifth of the way, within limits."""
    points = [start]
    while points[-1] < end:
        gap = max(points[-1] / 5.0, least)
        if gap >= most:
            last = points[-1]
            count = math.ceil((end - last) / most)
            if len(points) + count > 500:
                return None
            return points + [last + most * j for j in range(1, count + 1)]
        points.append(points[-1] + gap)
    return points


def _bulk(weight: Array, loss: Array, size: int) -> tuple[Array, Array, Array, Array, Array]:
    """The bulk of each row: weights, losses, variance, variance within runs, mass left out.

    Runs of ``size`` neighbouring nodes are merged into their means.
    """
    square = weight * loss * loss
    variance = np.add.reduce(square, axis=1)
    rare = np.zeros(len(loss))
    if float((np.abs(loss).max(axis=1) ** 2 / variance).max()) > 150.0:
        near = np.ones(loss.shape, dtype=bool)
        for _ in range(3):
            scale = np.sqrt(np.sum(square * near, axis=1, keepdims=True))
            near = np.abs(loss) <= 8.0 * scale
        rare = np.sum(weight * ~near, axis=1)
        weight = weight * near
        variance = np.sum(square * near, axis=1)
    if size == 1:
        return weight, loss, variance, np.zeros(len(loss)), rare
    order = np.argsort(loss[0], kind="stable")
    weight, loss = weight[:, order], loss[:, order]
    starts = np.arange(0, loss.shape[1], size)
    mass = np.add.reduceat(weight, starts, axis=1)
    first = np.add.reduceat(weight * loss, starts, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(mass > 0, first / mass, loss[:, starts])
    spread = np.maximum(variance - np.sum(mass * mean * mean, axis=1), 0.0)
    return mass, mean, variance, spread + 1e-15 * variance, rare
