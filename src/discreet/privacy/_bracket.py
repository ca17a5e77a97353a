"""The search for a bracket that is as narrow as was asked for.

Each direction (a unit removed, a unit added) is seen first roughly, to find the tilt at
which the answer is decided, then through cells that are dense where that tilt puts its
weight. If the bracket is wider than was asked for, cells and blur are refined by as
much as the two errors demand; at the limits of memory the bracket is returned as it
is, and marked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from discreet.privacy._composition import NO_TIGHT_PAIR
from discreet.privacy._fourier import (
    Inversion,
    Part,
    infinite_mass,
    log_mgf,
    tilt_for_delta,
    tilt_for_epsilon,
    tilted_moments,
    window,
)
from discreet.privacy._loss import Bounds, Loss
from discreet.privacy._normal_mixtures import stacked_cells
from discreet.privacy._pair import (
    ROUGH,
    UNIT,
    Array,
    Cells,
    Measure,
    Pair,
    Resolution,
    known_number,
    orient,
    profile,
    single_delta,
)

RELATIVE_TOLERANCE = 1e-3
ABSOLUTE_TOLERANCE = 1e-6
# The default bracket is meant to be a good deal tighter than promised.
DEFAULT_AIM = 0.1
COARSE_CELLS = 96
CELLS = 320
MANY = 50
FEWER_CELLS = 190
MORE_CELLS = 540
MOST_CELLS = 24_000
MOST_NODES = 1_000_000
MOST_ROUNDS = 5
MOST_LOOKS = 8
FLATTER_TILTS = (1.0, 0.8, 0.65, 0.5)
# How much a flatter tilt may cost, as a logarithm: digits are lost by it.
MOST_LOST = 3.0
SMALLEST_TAIL = 1e-280
# How much of delta may go to losses that are counted as infinite: it moves epsilon by a
# hundred thousandth, and heavy tails are cheaper for it.
TAIL_SHARE = 2e-5
# Between two looks a curve of delta may lie above what a look of its own would give by so much.
CURVE_SLACK = 2e-3
# Further below, a look made for another epsilon says nothing, and its scale leaves the floats.
LARGEST_EXPONENT = 100.0
# How far the crossing of a target is followed.
ACCURACY = 1e-7
# Plans with at most this many outcomes are listed one by one, which is exact and quick.
MOST_OUTCOMES = 2048
TWO_ORDERS = (
    "a finite pair may turn around in every release: the upper bound covers every order, "
    "the lower one is attained by the same order in all of them"
)


@dataclass(frozen=True)
class Tilt:
    """Where the answer is decided: the tilt, and rough estimates there.

    ``tau`` is where the transform is inverted, ``steep`` where cells are dense: the best Chernoff
    bound, which with heavy tails is not the best place for inversion. ``heavy`` says that
    rare large losses feel the tilt more than the rest, ``sure`` that it needs no second look.
    """

    tau: float
    steep: float
    epsilon: float
    log_delta: float
    heavy: bool = False
    sure: bool = False


@dataclass(frozen=True)
class Terms:
    """The parts of a loss, merged into the form that the search needs.

    ``items`` are distinct losses with counts; Poisson-sampled Gaussians, of which a plan may
    have thousands, are columns (``rates``, ``mus``, ``counts``) and handled at
    once; ``hulls`` are pairs that stand for losses without a tight one; ``tight`` is
    false where a part was replaced by one that dominates it. A delta below ``negligible`` does not
    matter.
    """

    items: tuple[tuple[Loss, int], ...]
    rates: Array
    mus: Array
    counts: Array
    hulls: tuple[tuple[Pair, int], ...]
    tight: bool
    _last_stack: dict[tuple[float, int, float, float], Cells] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def steps(self) -> int:
        total = sum(n for _, n in self.items) + sum(n for _, n in self.hulls)
        return int(total + self.counts.sum())

    @property
    def atoms(self) -> int:
        return len(self.items) + len(self.counts) + len(self.hulls)

    @cached_property
    def _rough_pairs(self) -> list[Pair]:
        return [loss.pair(ROUGH) for loss, _ in self.items]

    @property
    def reflected(self) -> bool:
        """Whether both directions of the plan have the same profile."""
        return len(self.counts) == 0 and all(pair.reflected for pair in self._rough_pairs)

    @cached_property
    def two_orders(self) -> bool:
        """Whether a pair may stand in either order, and the order matters."""
        return any(len(pair.below) == 2 for pair in self._rough_pairs)

    @property
    def ways(self) -> list[tuple[bool, bool]]:
        """How the plan has to be seen: in which direction, and with finite pairs turned or not."""
        return [
            (swapped, turned)
            for turned in ((False, True) if self.two_orders else (False,))
            for swapped in ((False,) if self.reflected else (False, True))
        ]

    @property
    def rounds(self) -> int:
        """How often a bracket is refined at most.

        Very many distinct steps are dear: they are seen once. The two orders of a finite pair
        leave a gap that no refinement closes.
        """
        return 1 if self.atoms >= MANY else 2 if self.two_orders else MOST_ROUNDS

    def cells(self, tilt: Tilt) -> int:
        """How many cells each distinct step gets at first."""
        if self.atoms >= MANY:
            return FEWER_CELLS
        return CELLS if tilt.sure else MORE_CELLS

    @property
    def few_cells(self) -> int:
        """How many cells serve to find a tilt."""
        return COARSE_CELLS if self.atoms >= MANY else 2 * COARSE_CELLS

    def expected_tilt(self, log_delta: float) -> Tilt | None:
        """The tilt by the central limit theorem, where the plan is plain enough for it."""
        if self.items or self.hulls or not len(self.mus) or float(self.mus.max()) > 1.2:
            return None
        variance = float(self.counts @ (self.rates**2 * np.expm1(self.mus**2)))
        tau = math.sqrt(-2.0 * log_delta / variance)
        for _ in range(3):
            tau = math.sqrt(2.0 * max(0.1, -log_delta - math.log1p(tau)) / variance)
        # With small shifts every step is nearly Gaussian, and so is the sum.
        sure = float(self.mus.max()) < 0.3 and -log_delta - math.log1p(tau) > 3.0
        return Tilt(tau, tau, (tau + 0.5) * variance, log_delta, sure=sure)

    def measures(self, resolution: Resolution) -> tuple[list[Part], list[Part], bool]:
        """Return lower and upper parts, and whether the lower ones are certified.

        Where a part has no certified lower measure its upper one stands in: good enough
        to choose a tilt, not to claim a bound.
        """
        lower, upper, tight = [], [], self.tight and not self.hulls
        for loss, n in self.items:
            below, above = orient(
                loss.pair(resolution), swapped=resolution.swapped, turned=resolution.turned
            )
            tight = tight and below is not None
            count = np.array([float(n)])
            upper.append(Part(above, count))
            lower.append(Part(above if below is None else below, count))
        if len(self.counts):
            cells = self._stack(resolution)
            cells = cells.reversed() if resolution.swapped else cells
            upper.append(Part(cells.upper(), self.counts))
            lower.append(Part(cells.lower(), self.counts))
        for pair, n in self.hulls:
            part = Part(pair.above.upper(), np.array([float(n)]))
            upper.append(part)
            lower.append(part)
        return lower, upper, tight

    def _stack(self, resolution: Resolution) -> Cells:
        """Return the cells at a resolution, or those made for the other direction before."""
        key = (resolution.tau, resolution.cells, resolution.tail, resolution.focus)
        if key not in self._last_stack:
            self._last_stack.clear()
            self._last_stack[key] = stacked_cells(self.rates, self.mus, resolution)
        return self._last_stack[key]


# --- epsilon at a delta ---------------------------------------------------------------------


def epsilon_bounds(terms: Terms, delta: float, tolerance: float | None) -> Bounds:
    """The bracket of epsilon at ``delta`` > 0, over both directions."""
    found: list[Bounds] = []
    tilt: Tilt | None = None
    for way in terms.ways:
        below = max((bounds.lower for bounds in found), default=-1.0)
        bounds, fresh = _epsilon_one_way(terms, delta, tolerance, way, known=(below, tilt))
        found.append(bounds)
        tilt = fresh if tilt is None else tilt
    worst = _worst(found)
    return _explain(worst, promise(worst.upper, tolerance), terms)


def _epsilon_one_way(
    terms: Terms,
    delta: float,
    tolerance: float | None,
    way: tuple[bool, bool],
    *,
    known: tuple[float, Tilt | None],
) -> tuple[Bounds, Tilt | None]:
    """The bracket of one direction, and its tilt.

    ``known`` is the lower bound and the tilt of the other directions: a bracket that is
    certainly below stays rough.
    """
    swapped, turned = way
    below, start = known
    tail = max(SMALLEST_TAIL, TAIL_SHARE * delta / terms.steps)
    log_delta = math.log(delta)
    first_look = Resolution(COARSE_CELLS, 0.0, tail, swapped=swapped, turned=turned)
    expected = terms.expected_tilt(log_delta) if start is None else start
    if expected is not None:
        # A sure tilt serves both directions, and so does its partition.
        fine = (start is None and terms.atoms < MANY) or expected.sure
        cells = terms.cells(expected) if fine else terms.few_cells
        first_look = replace(first_look, tau=expected.steep, cells=cells, focus=expected.epsilon)
    lower, upper, tight = terms.measures(first_look)
    if infinite_mass(lower, is_upper=False) >= delta:
        return (Bounds(math.inf, math.inf) if tight else _upper_only(math.inf)), None
    top = _finite_top(upper)
    if top <= 0.0:
        return Bounds(0.0, 0.0 if infinite_mass(upper, is_upper=True) <= delta else math.inf), None

    def focus(parts: Sequence[Part], near: float) -> Tilt:
        return _tilt_for_delta(parts, log_delta, top, near)

    tilt = expected if expected is not None and expected.sure else focus(lower, first_look.tau)
    good = first_look.tau > 0.0 and 0.8 < tilt.steep / first_look.tau < 1.25
    if tilt.heavy or not (good or start is None):
        # Few cells say little about rare large losses: look again through more of them.
        seen = replace(first_look, tau=tilt.steep, cells=terms.few_cells, focus=tilt.epsilon)
        tilt, lower, upper = _refine_tilt(terms, seen, tilt, focus)
    cells, blur = _resolution(terms, tilt, _aim(tilt.epsilon, tolerance, terms), tolerance)
    if tilt.epsilon == 0.0:
        rough = _epsilon_attempt(lower, upper, delta, tilt, 0.1 / tilt.tau, tight=False)
        if rough.upper == 0.0:
            return (rough if tight else _upper_only(0.0)), tilt
    if below > 0.0 and _certainly_below(upper, delta, tilt, 2.0 * blur, below):
        return Bounds(0.0, below), tilt
    result = Bounds(0.0, math.inf)
    last = math.inf
    for turn in range(terms.rounds):
        if turn > 0 or tilt.heavy or not good or first_look.cells != cells:
            seen = replace(first_look, tau=tilt.steep, cells=cells, focus=tilt.epsilon)
            tilt, lower, upper = _refine_tilt(terms, seen, tilt, focus)
        found = _epsilon_attempt(lower, upper, delta, tilt, blur, tight=tight)
        best = min(result.upper, found.upper)
        result = Bounds(max(result.lower, min(found.lower, best)), best)
        if not tight:
            return _upper_only(result.upper), tilt
        aim = _aim(result.upper, tolerance, terms)
        if result.width <= aim or found.width > 0.8 * last:
            # Narrow enough, or at the limit of the frequencies: more cells do not help.
            break
        if tilt.heavy and result.width <= promise(result.upper, tolerance):
            # Rare large losses make further rounds dear; what was promised is enough.
            break
        last = found.width
        widening = blur**2 * (1.0 + tilt.tau)
        rest = max(result.width - widening, 0.0) if math.isfinite(result.width) else math.inf
        blur *= math.sqrt(0.3 * aim / widening) if widening > 0.4 * aim else 1.0
        if rest > 0.5 * aim:
            growth = min(4.0, max(1.2, math.sqrt(2.5 * min(rest / aim, 1e6))))
            cells = min(MOST_CELLS, MOST_NODES // terms.atoms, math.ceil(cells * growth))
    promised = promise(result.upper, tolerance)
    if result.width <= promised:
        return result, tilt
    note = f"the bracket is {result.width:.3g} wide where {promised:.3g} was asked for"
    return Bounds(result.lower, result.upper, False, note), tilt


def _refine_tilt(
    terms: Terms,
    seen: Resolution,
    tilt: Tilt,
    focus: Callable[[Sequence[Part], float], Tilt],
) -> tuple[Tilt, list[Part], list[Part]]:
    """Look where the tilt puts its weight, and correct the tilt by what is seen.

    With heavy tails a tilt that is a little too steep is decided by losses that hardly ever
    happen; a rough look does not notice, a fine one does. The upper measures have the
    heavier tails, so their tilt serves both.
    """
    lower, upper, _ = terms.measures(seen)
    for _ in range(MOST_LOOKS):
        fresh = focus(upper, seen.tau)
        settled = 0.8 < fresh.steep / seen.tau < 1.25
        if settled or not fresh.steep < seen.tau:
            return (fresh if settled else tilt), lower, upper
        tilt, seen = fresh, replace(seen, tau=fresh.steep, focus=fresh.epsilon)
        lower, upper, _ = terms.measures(seen)
    return tilt, lower, upper


def _epsilon_attempt(
    lower: Sequence[Part],
    upper: Sequence[Part],
    delta: float,
    tilt: Tilt,
    blur: float,
    *,
    tight: bool,
) -> Bounds:
    high, low = math.inf, 0.0
    if infinite_mass(upper, is_upper=True) < delta:
        high = _epsilon_of(upper, delta, tilt, blur, is_upper=True)
    if tight and (math.isfinite(high) or as_one_step(lower, is_upper=False) is not None):
        # Where what was cut off decides, delta is below the range of the search: see no further.
        low = _epsilon_of(lower, delta, tilt, blur, is_upper=False, guess=high)
    return Bounds(low, min(high, _finite_top(upper)) if math.isfinite(high) else high)


def _certainly_below(
    parts: Sequence[Part], delta: float, tilt: Tilt, blur: float, epsilon: float
) -> bool:
    """Whether delta at ``epsilon`` is certainly at most ``delta``, by one rough look."""
    if infinite_mass(parts, is_upper=True) >= delta:
        return False
    if as_one_step(parts, is_upper=True) is not None:
        return False
    inversion = Inversion(
        parts, tau=tilt.tau, blur=blur, log_delta=math.log(delta), around=tilt.epsilon
    )
    return inversion.upper(epsilon) <= delta


def _epsilon_of(
    parts: Sequence[Part],
    delta: float,
    tilt: Tilt,
    blur: float,
    *,
    is_upper: bool,
    guess: float = math.inf,
) -> float:
    whole = as_one_step(parts, is_upper=is_upper)
    if whole is not None:
        return single_epsilon(whole, delta, is_upper=is_upper)
    around = guess if math.isfinite(guess) else tilt.epsilon
    inversion = Inversion(parts, tau=tilt.tau, blur=blur, log_delta=math.log(delta), around=around)
    if not math.isfinite(guess):
        guess = _rough_epsilon(inversion.log_mgf, inversion.deviation, tilt.tau, math.log(delta))
    return solve(inversion, delta, guess, is_upper=is_upper)


# --- delta at an epsilon --------------------------------------------------------------------


def delta_bounds(terms: Terms, epsilon: float) -> Bounds:
    """The bracket of delta at ``epsilon`` >= 0, over both directions."""
    found: list[Bounds] = []
    for way in terms.ways:
        below = max((bounds.lower for bounds in found), default=-1.0)
        found.append(_delta_one_way(terms, epsilon, way, below=below, rounds=MOST_ROUNDS))
    worst = _worst(found)
    return _explain(worst, max(0.02 * worst.upper, 1e-15), terms)


def delta_upper(terms: Terms, epsilon: float) -> float:
    """An upper bound on delta, good but not refined: for curves that need many points."""
    return max(
        _delta_one_way(terms, epsilon, (swapped, False), below=-1.0, rounds=1).upper
        for swapped, turned in terms.ways
        if not turned
    )


def _delta_one_way(
    terms: Terms, epsilon: float, way: tuple[bool, bool], *, below: float, rounds: int
) -> Bounds:
    swapped, turned = way
    tail = 1e-40 / terms.steps
    first_look = Resolution(COARSE_CELLS, 0.0, tail, swapped=swapped, turned=turned)
    lower, upper, tight = terms.measures(first_look)
    if _finite_top(upper) <= epsilon:
        # Only infinite losses lie beyond; what was cut off is among them.
        least = infinite_mass(lower, is_upper=False) if tight else 0.0
        return Bounds(least, infinite_mass(upper, is_upper=True))
    tilt, cells, blur, tail = _delta_aim(terms, lower, epsilon)

    def focus(parts: Sequence[Part], near: float) -> Tilt:
        return _tilt_for_epsilon(parts, epsilon, near)

    result = Bounds(0.0, 1.0)
    for _ in range(min(rounds, 2) if terms.atoms >= MANY or terms.two_orders else rounds):
        seen = replace(first_look, tau=tilt.steep, cells=cells, tail=tail, focus=tilt.epsilon)
        tilt, lower, upper = _refine_tilt(terms, seen, tilt, focus)
        high = _delta_of(upper, epsilon, tilt, blur, is_upper=True)
        low = 0.0
        if tight and rounds > 1:
            low = _delta_of(lower, epsilon, tilt, blur, is_upper=False)
        best = min(result.upper, high)
        result = Bounds(max(result.lower, min(low, best)), best)
        if result.width <= RELATIVE_TOLERANCE * best or best < below:
            return result
        if not tight:
            break
        sure = infinite_mass(lower, is_upper=False)
        if infinite_mass(upper, is_upper=True) - sure > 1e-4 * best:
            # The first guess at delta was too high, and what was cut off now decides.
            tail = max(SMALLEST_TAIL, 1e-9 * tail)
            continue
        cells, blur = min(MOST_CELLS, MOST_NODES // terms.atoms, 2 * cells), 0.5 * blur
    if not tight:
        return _upper_only(result.upper)
    met = result.width <= max(0.02 * result.upper, 1e-15)
    note = "" if met else f"the bracket is {result.width:.3g} wide at delta {result.upper:.3g}"
    return Bounds(result.lower, result.upper, met, note)


def _delta_aim(
    terms: Terms, parts: Sequence[Part], epsilon: float
) -> tuple[Tilt, int, float, float]:
    """Where and how finely to look for delta: the tilt, cells, blur and tail."""
    tilt = _tilt_for_epsilon(parts, epsilon, 0.0)
    aim = 2e-4 * max(epsilon, 1.0 / (tilt.tau + 1.0))
    cells, blur = _resolution(terms, tilt, aim, None)
    tail = max(SMALLEST_TAIL, math.exp(max(tilt.log_delta - 18.0, -640.0)) / terms.steps)
    return tilt, cells, blur, tail


def delta_curve(terms: Terms, epsilons: Array) -> Array:
    """Upper bounds on delta at increasing epsilons, for little more than a few of them cost.

    A look that was made for one epsilon bounds delta at every other one too, only more loosely.
    So few looks serve all: a gap between two of them is divided until a look of its own in the
    middle no longer gains.
    """
    first = _curve_one_way(terms, epsilons, swapped=False)
    if terms.reflected:
        return first
    worst: Array = np.maximum(first, _curve_one_way(terms, epsilons, swapped=True))
    return worst


def _curve_one_way(terms: Terms, epsilons: Array, *, swapped: bool) -> Array:
    last = len(epsilons) - 1
    best = np.minimum(
        _curve_look(terms, epsilons, 0, swapped=swapped),
        _curve_look(terms, epsilons, last, swapped=swapped),
    )
    gaps = [(0, last)]
    while gaps:
        low, high = gaps.pop()
        middle = (low + high) // 2
        if middle == low:
            continue
        known = best[middle]
        best = np.minimum(best, _curve_look(terms, epsilons, middle, swapped=swapped))
        if known > (1.0 + CURVE_SLACK) * best[middle] + 1e-13:
            gaps += [(low, middle), (middle, high)]
    # Delta never grows with epsilon.
    falling: Array = np.minimum.accumulate(best)
    return falling


def _curve_look(terms: Terms, epsilons: Array, at: int, *, swapped: bool) -> Array:
    """Bounds at all epsilons by a look that was made for one of them."""
    epsilon = float(epsilons[at])
    parts, upper, _ = terms.measures(
        Resolution(COARSE_CELLS, 0.0, 1e-40 / terms.steps, swapped=swapped)
    )
    beyond = epsilons >= _finite_top(upper)
    result = np.where(beyond, infinite_mass(upper, is_upper=True), 1.0)
    if beyond[at]:
        return result
    tilt, cells, blur, tail = _delta_aim(terms, parts, epsilon)

    def focus(seen: Sequence[Part], near: float) -> Tilt:
        return _tilt_for_epsilon(seen, epsilon, near)

    seen = Resolution(cells, tilt.steep, tail, tilt.epsilon, swapped)
    tilt, _, upper = _refine_tilt(terms, seen, tilt, focus)
    whole = as_one_step(upper, is_upper=True)
    if whole is not None:
        listed: Array = np.minimum(result, profile(whole, epsilons))
        return listed
    inversion = Inversion(
        upper, tau=tilt.tau, blur=blur, log_delta=tilt.log_delta - 5.0, around=epsilon
    )
    near = ~beyond & (inversion.log_mgf - tilt.tau * epsilons < LARGEST_EXPONENT)
    result[near] = np.minimum(result[near], inversion.upper_at(epsilons[near]))
    return result


def _delta_of(
    parts: Sequence[Part], epsilon: float, tilt: Tilt, blur: float, *, is_upper: bool
) -> float:
    whole = as_one_step(parts, is_upper=is_upper)
    if whole is not None:
        return single_delta(whole, epsilon, is_upper=is_upper)
    log_delta = tilt.log_delta - 5.0
    inversion = Inversion(parts, tau=tilt.tau, blur=blur, log_delta=log_delta, around=epsilon)
    return min(1.0, inversion.upper(epsilon) if is_upper else inversion.lower(epsilon))


# --- resolution -----------------------------------------------------------------------------


def _tilt_for_delta(parts: Sequence[Part], log_delta: float, top: float, near: float) -> Tilt:
    """The tilt for a delta; ``near`` is a first guess, or 0."""
    plain = tilted_moments(parts, 0.0)
    known_number("moments", sum(plain))
    ceiling = 1e4 * (1.0 - log_delta) / _typical_loss(parts, plain)
    start = near if near > 0.0 else math.sqrt(2.0 * (1.0 - log_delta) / max(plain[2], 1e-300))
    tau = tilt_for_delta(parts, log_delta, ceiling=ceiling, start=start)
    tau = _not_too_flat(parts, tau, ceiling, plain[2])
    log_norm, _, variance = tilted_moments(parts, known_number("tilts", tau))
    known_number("moments", log_norm + variance)
    guess = min(top, _rough_epsilon(log_norm, math.sqrt(variance), tau, log_delta))
    heavy = variance > 1.5 * plain[2]
    light = _flatter_tilt(parts, tau, log_delta, guess) if heavy else tau
    return Tilt(light, tau, guess, log_delta, heavy)


def _rough_epsilon(log_norm: float, deviation: float, tau: float, log_delta: float) -> float:
    """The saddle-point estimate of epsilon at a tilt."""
    spread = max(tau * (tau + 1.0) * deviation * math.sqrt(2.0 * math.pi), math.e * tau)
    return max(0.0, (log_norm - log_delta - math.log(spread)) / tau)


def _tilt_for_epsilon(parts: Sequence[Part], epsilon: float, near: float) -> Tilt:
    """The tilt for an epsilon; ``near`` is a first guess, or 0."""
    plain = tilted_moments(parts, 0.0)
    known_number("moments", sum(plain))
    ceiling = 4e5 / _typical_loss(parts, plain)
    start = near if near > 0.0 else max(epsilon - plain[1], 1e-6) / max(plain[2], 1e-300)
    tau = tilt_for_epsilon(parts, epsilon, ceiling=ceiling, start=start)
    tau = _not_too_flat(parts, tau, ceiling, plain[2])
    log_norm, _, variance = tilted_moments(parts, known_number("tilts", tau))
    known_number("moments", log_norm + variance)
    log_delta = min(0.0, log_norm - tau * epsilon)
    heavy = variance > 1.5 * plain[2]
    light = _flatter_tilt(parts, tau, log_delta, epsilon) if heavy else tau
    return Tilt(light, tau, epsilon, log_delta, heavy)


def _flatter_tilt(parts: Sequence[Part], tau: float, log_delta: float, epsilon: float) -> float:
    """A flatter tilt with a shorter window, where rare large losses stretch it.

    The best Chernoff bound sits just below the tilt where a moment becomes infinite; a little
    before, the bound is hardly worse and the tilted losses spread much less.
    """
    best, period = tau, math.inf
    worst = log_mgf(parts, tau) - tau * epsilon + MOST_LOST
    for share in FLATTER_TILTS:
        light = share * tau
        known = tilted_moments(parts, light)
        found = window(parts, light, known, log_delta=log_delta, around=epsilon, blur=0.0)
        if found > 0.95 * period or known[0] - light * epsilon > worst:
            break
        best, period = light, found
    return best


def _not_too_flat(parts: Sequence[Part], tau: float, ceiling: float, variance: float) -> float:
    """Flatter tilts are valid too, but their long windows are costly."""
    least = min(0.7 / math.sqrt(variance), ceiling) if variance > 0.0 else ceiling
    # Rare large losses must not be singled out by a tilt that only serves a short window.
    while tau < least and tilted_moments(parts, least)[2] > 2.0 * variance:
        least *= 0.6
    return max(tau, least)


def _typical_loss(parts: Sequence[Part], plain: tuple[float, float, float]) -> float:
    """The scale of the total loss: its maximum, or many deviations where that is absurd."""
    _, mean, variance = plain
    return max(min(_finite_top(parts), abs(mean) + 60.0 * math.sqrt(variance)), 1e-300)


def _resolution(terms: Terms, tilt: Tilt, aim: float, tolerance: float | None) -> tuple[int, float]:
    """Return how many cells and how wide a blur the tolerance allows."""
    cells = terms.cells(tilt)
    if tolerance is not None:
        cells = math.ceil(cells * max(1.0, math.sqrt(1.2e-4 * tilt.epsilon / aim)))
    # An epsilon far below the tolerance has a steep tilt; a blur wider than its scale
    # would not be a small effect any more.
    blur = min(math.sqrt(0.15 * aim / (1.0 + tilt.tau)), 1.0 / tilt.tau)
    return min(cells, MOST_CELLS, MOST_NODES // terms.atoms), blur


def promise(epsilon: float, tolerance: float | None) -> float:
    """How wide a bracket of epsilon may be."""
    relative = RELATIVE_TOLERANCE if tolerance is None else tolerance
    absolute = ABSOLUTE_TOLERANCE if tolerance is None else 1e-3 * tolerance
    return max(relative * epsilon, absolute) if math.isfinite(epsilon) else absolute


def _aim(epsilon: float, tolerance: float | None, terms: Terms) -> float:
    """The width to try for: by default well below the promise, where that is cheap."""
    share = 1.0 if tolerance is not None else DEFAULT_AIM if terms.atoms < MANY else 0.5
    return share * promise(epsilon, tolerance)


def _upper_only(upper: float) -> Bounds:
    return Bounds(0.0, upper, False, NO_TIGHT_PAIR)


def _worst(found: Sequence[Bounds]) -> Bounds:
    """All directions happen, so both bounds are maxima."""
    wide = max(found, key=lambda bounds: bounds.upper)
    return replace(wide, lower=max(bounds.lower for bounds in found))


def _explain(worst: Bounds, promised: float, terms: Terms) -> Bounds:
    """Say why the bracket of a pair of unknown order is wide, or that it is not."""
    if not terms.two_orders or worst.note == NO_TIGHT_PAIR:
        return worst
    met = worst.lower == worst.upper or worst.width <= promised
    return replace(worst, tolerance_met=met, note="" if met else TWO_ORDERS)


def _finite_top(parts: Sequence[Part]) -> float:
    """The largest finite total loss."""
    return sum(
        float(part.counts @ np.maximum(part.measure.loss.max(axis=1), 0.0)) for part in parts
    )


# --- where a bound on delta crosses a target, with the error on the safe side --------------------


def as_one_step(parts: Sequence[Part], *, is_upper: bool) -> Measure | None:
    """The measure of a whole composition that has few outcomes, or ``None`` if it has many."""
    if len(parts) == 1 and parts[0].steps == 1:
        return parts[0].measure
    size = math.fsum(part.steps * math.log(part.measure.loss.shape[1]) for part in parts)
    if size > math.log(MOST_OUTCOMES) or any(len(part.counts) > 1 for part in parts):
        return None
    loss, mass, error, largest = np.zeros(1), np.ones(1), 1e-15, 0.0
    for part in parts:
        one = part.measure
        for _ in range(part.steps):
            loss = (loss[:, None] + one.loss[0]).ravel()
            mass = (mass[:, None] * one.mass[0]).ravel()
        error += part.steps * (one.mass_error + UNIT)
        largest += part.steps * float(np.abs(one.loss).max())
    # What the sums of the losses may lose.
    rounding = UNIT * largest * sum(part.steps for part in parts)
    loss = loss + rounding if is_upper else loss - rounding
    return Measure.single(loss, mass, infinite_mass(parts, is_upper=is_upper), error)


def solve(inversion: Inversion, target: float, guess: float, *, is_upper: bool) -> float:
    """Where the bound crosses ``target``: rounded up for an upper bound, down for a lower."""
    bound: Callable[[float], float] = inversion.upper if is_upper else inversion.lower
    infinite = inversion.most_infinite if is_upper else inversion.least_infinite
    low, high = 0.0, math.inf
    point = guess
    misses = 0
    for _ in range(60):
        value = bound(point)
        if value > target or (value == target and not is_upper):
            low = max(low, point)
        else:
            high = min(high, point)
            if point == 0.0:
                break
            if value <= infinite:
                # Far from the tilt the bounds say nothing: come back in growing steps.
                low, high = _bracket_by_doubling(bound, target, high, inversion.deviation)
                misses += low == 0.0
                if misses == 3 and not is_upper:
                    return 0.0  # the errors hide all of it
        if math.isfinite(high) and high - low <= max(ACCURACY * high, 1e-12):
            break
        point = _next_point(inversion, point, value, target, low, high)
    if is_upper:
        return high
    return low if low > 0.0 and bound(low) >= target else 0.0


def _bracket_by_doubling(
    bound: Callable[[float], float], target: float, high: float, deviation: float
) -> tuple[float, float]:
    """A bracket of the crossing below ``high``, found in steps of the tilted deviation."""
    step = 0.05 * deviation
    while step < high:
        if bound(high - step) >= target:
            return high - step, high - 0.5 * step if step > 0.05 * deviation else high
        step *= 2.0
    return 0.0, high


def _next_point(
    inversion: Inversion, point: float, value: float, target: float, low: float, high: float
) -> float:
    """A Newton step on log delta, pushed just past the root; else bisection."""
    finite, slope = inversion.value_and_slope(point)
    infinite = inversion.most_infinite
    excess, wanted = value - infinite, target - infinite
    if finite > 0.0 and slope < 0.0 and excess > 0.0 and wanted > 0.0:
        move = math.log(excess / wanted) * finite / -slope
        fresh = point + move
        # Once close, overshoot so that both sides of the root are known.
        if abs(move) < 1e-4 * max(point, 1e-12):
            nudge = 0.3 * ACCURACY * abs(fresh) + 1e-13
            fresh += nudge if low >= point else -nudge
        if low < fresh < high:
            return fresh
    if math.isfinite(high):
        return 0.5 * (low + high)
    return 2.0 * max(point, low, 1e-9) + inversion.deviation


def single_epsilon(measure: Measure, target: float, *, is_upper: bool) -> float:
    """epsilon of one step, exactly: delta is linear in exp(epsilon) between losses."""
    sign = 1.0 if is_upper else -1.0
    order = np.argsort(measure.loss[0])
    loss, mass = measure.loss[0, order], measure.mass[0, order] * (1.0 + sign * measure.mass_error)
    anchor = float(loss[-1])
    # What the sums lose matters where little is left of them: delta may be nearly all of p.
    rounding = sign * UNIT * (len(loss) + 4)
    p = np.cumsum(mass[::-1])[::-1] * (1.0 + rounding)
    # Where Q leaves the floats an upper bound may count less of it, a lower one may not.
    apart = np.minimum(anchor - loss, 700.0) if is_upper else anchor - loss
    with np.errstate(over="ignore", invalid="ignore"):
        q = np.cumsum((mass * np.exp(apart))[::-1])[::-1] * (1.0 - rounding)
    wanted = target - measure.infinite_end(is_upper=is_upper)
    known_number("masses", float(p[0]) + float(np.max(q)) + anchor)
    # delta(epsilon) is the largest p - e^epsilon q, so epsilon is the largest root of one of them.
    with np.errstate(invalid="ignore", divide="ignore"):
        roots = np.where(p > wanted, np.log((p - wanted) / q), -math.inf)
    value = anchor + float(np.max(roots))
    if value == -math.inf:
        return 0.0
    known_number("losses", value)
    margin = 1e-12 * (1.0 + abs(value))
    return max(0.0, value + margin if is_upper else value - margin)
