"""The search for a bracket that is as narrow as was asked for (S9).

Each direction (a unit removed, a unit added) is seen first roughly, to find the tilt at
which the answer is decided, then through cells that are dense where that tilt puts its
weight. If the bracket is wider than was asked for, cells and whisper are refined by as
much as the two errors demand; at the limits of memory the bracket is returned as it
is, and marked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from discreet.privacy.crossing import as_one_step, single_delta, single_epsilon, solve
from discreet.privacy.loss import Bounds, Loss
from discreet.privacy.pairs import Array, Measure, Outcomes
from discreet.privacy.spectrum import (
    Inversion,
    Part,
    infinite_mass,
    known_number,
    log_mgf,
    tilt_for_delta,
    tilt_for_epsilon,
    tilted_moments,
    window,
)
from discreet.privacy.steps import View, has_two_orders, is_symmetric, stacked_gaussians, step

__all__ = [
    "NO_TIGHT_PAIR",
    "Plan",
    "delta_bounds",
    "delta_curve",
    "delta_upper",
    "epsilon_bounds",
    "promise",
]

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
LIGHTER_TILTS = (1.0, 0.8, 0.65, 0.5)
# How much a lighter tilt may cost, as a logarithm: digits are lost by it.
MOST_LOST = 3.0
SMALLEST_TAIL = 1e-280
# How much of delta may go to losses that are counted as infinite: it moves epsilon by a
# hundred thousandth, and heavy tails are cheaper for it.
TAIL_SHARE = 2e-5
# Between two looks a curve of delta may lie above what a look of its own would give by so much.
CURVE_SLACK = 2e-3
# Further below, a look made for another epsilon says nothing, and its scale leaves the floats.
LARGEST_EXPONENT = 100.0
NO_TIGHT_PAIR = (
    "no tight pair is known for a part of this loss, so only the upper bound is certified"
)
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
class Plan:
    """The steps of a loss in the form the walk needs.

    ``items`` are distinct losses with counts; Poisson-sampled Gaussians, of which a plan may
    have thousands, are kept as columns (``rates``, ``mus``, ``counts``) and handled at
    once; ``fixed`` are measures that stand for losses without a tight pair; ``tight`` is
    false where a part was replaced by one that dominates it.
    """

    items: tuple[tuple[Loss, int], ...]
    rates: Array
    mus: Array
    counts: Array
    fixed: tuple[tuple[Measure, int], ...]
    tight: bool
    _last_outcomes: dict[tuple[float, int, float, float], Outcomes] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def steps(self) -> int:
        total = sum(n for _, n in self.items) + sum(n for _, n in self.fixed)
        return int(total + self.counts.sum())

    @property
    def atoms(self) -> int:
        return len(self.items) + len(self.counts) + len(self.fixed)

    @property
    def symmetric(self) -> bool:
        return len(self.counts) == 0 and all(is_symmetric(loss) for loss, _ in self.items)

    @property
    def two_orders(self) -> bool:
        return any(has_two_orders(loss) for loss, _ in self.items)

    @property
    def ways(self) -> list[tuple[bool, bool]]:
        """How the plan has to be seen: in which direction, and with finite pairs turned or not."""
        return [
            (swapped, turned)
            for turned in ((False, True) if self.two_orders else (False,))
            for swapped in ((False,) if self.symmetric else (False, True))
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
        if self.items or self.fixed or not len(self.mus) or float(self.mus.max()) > 1.2:
            return None
        variance = float(self.counts @ (self.rates**2 * np.expm1(self.mus**2)))
        tau = math.sqrt(-2.0 * log_delta / variance)
        for _ in range(3):
            tau = math.sqrt(2.0 * max(0.1, -log_delta - math.log1p(tau)) / variance)
        # With small shifts every step is nearly Gaussian, and so is the sum.
        sure = float(self.mus.max()) < 0.3 and -log_delta - math.log1p(tau) > 3.0
        return Tilt(tau, tau, (tau + 0.5) * variance, log_delta, sure=sure)

    def see(self, view: View) -> tuple[list[Part], list[Part], bool]:
        """Lower and upper parts, and whether the lower ones are certified.

        Where a part has no certified lower measure its upper one stands in: good enough
        to choose a tilt, not to claim a bound.
        """
        lower, upper, tight = [], [], self.tight and not self.fixed
        for loss, n in self.items:
            seen = step(loss, view)
            tight = tight and seen.lower is not None
            count = np.array([float(n)])
            upper.append(Part(seen.upper, count))
            lower.append(Part(seen.upper if seen.lower is None else seen.lower, count))
        if len(self.counts):
            cells = self._outcomes(view).cells(swapped=view.swapped)
            upper.append(Part(cells.upper(), self.counts))
            lower.append(Part(cells.lower(), self.counts))
        for measure, n in self.fixed:
            part = Part(measure, np.array([float(n)]))
            upper.append(part)
            lower.append(part)
        return lower, upper, tight

    def _outcomes(self, view: View) -> Outcomes:
        """The partition for a view, or the same one seen in the other direction before."""
        key = (view.tau, view.cells, view.tail, view.focus)
        if key not in self._last_outcomes:
            self._last_outcomes.clear()
            self._last_outcomes[key] = stacked_gaussians(self.rates, self.mus, view)
        return self._last_outcomes[key]


# --- epsilon at a delta ---------------------------------------------------------------------


def epsilon_bounds(plan: Plan, delta: float, tolerance: float | None) -> Bounds:
    """The bracket of epsilon at ``delta`` > 0, over both directions."""
    found: list[Bounds] = []
    tilt: Tilt | None = None
    for way in plan.ways:
        below = max((bounds.lower for bounds in found), default=-1.0)
        bounds, fresh = _epsilon_one_way(plan, delta, tolerance, way, known=(below, tilt))
        found.append(bounds)
        tilt = fresh if tilt is None else tilt
    worst = _worst(found)
    return _explained(worst, promise(worst.upper, tolerance), plan)


def _epsilon_one_way(
    plan: Plan,
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
    tail = max(SMALLEST_TAIL, TAIL_SHARE * delta / plan.steps)
    log_delta = math.log(delta)
    first_look = View(swapped, 0.0, COARSE_CELLS, tail, turned=turned)
    expected = plan.expected_tilt(log_delta) if start is None else start
    if expected is not None:
        # A sure tilt serves both directions, and so does its partition.
        fine = (start is None and plan.atoms < MANY) or expected.sure
        cells = plan.cells(expected) if fine else plan.few_cells
        first_look = replace(first_look, tau=expected.steep, cells=cells, focus=expected.epsilon)
    lower, upper, tight = plan.see(first_look)
    if infinite_mass(lower) >= delta:
        return (Bounds(math.inf, math.inf) if tight else _upper_only(math.inf)), None
    top = _finite_top(upper)
    if top <= 0.0:
        return Bounds(0.0, 0.0), None

    def focus(parts: Sequence[Part], near: float) -> Tilt:
        return _tilt_for_delta(parts, log_delta, top, near)

    tilt = expected if expected is not None and expected.sure else focus(lower, first_look.tau)
    good = first_look.tau > 0.0 and 0.8 < tilt.steep / first_look.tau < 1.25
    if tilt.heavy or not (good or start is None):
        # Few cells say little about rare large losses: look again through more of them.
        view = replace(first_look, tau=tilt.steep, cells=plan.few_cells, focus=tilt.epsilon)
        tilt, lower, upper = _focused(plan, view, tilt, focus)
    cells, whisper = _resolution(plan, tilt, _aim(tilt.epsilon, tolerance, plan), tolerance)
    if tilt.epsilon == 0.0:
        rough = _epsilon_attempt(lower, upper, delta, tilt, 0.1 / tilt.tau, tight=False)
        if rough.upper == 0.0:
            return (rough if tight else _upper_only(0.0)), tilt
    if below > 0.0 and _certainly_below(upper, delta, tilt, 2.0 * whisper, below):
        return Bounds(0.0, below), tilt
    result = Bounds(0.0, math.inf)
    last = math.inf
    for turn in range(plan.rounds):
        if turn > 0 or tilt.heavy or not good or first_look.cells != cells:
            view = replace(first_look, tau=tilt.steep, cells=cells, focus=tilt.epsilon)
            tilt, lower, upper = _focused(plan, view, tilt, focus)
        found = _epsilon_attempt(lower, upper, delta, tilt, whisper, tight=tight)
        best = min(result.upper, found.upper)
        result = Bounds(max(result.lower, min(found.lower, best)), best)
        if not tight:
            return _upper_only(result.upper), tilt
        aim = _aim(result.upper, tolerance, plan)
        if result.width <= aim or found.width > 0.8 * last:
            # Narrow enough, or at the limit of the frequencies: more cells do not help.
            break
        if tilt.heavy and result.width <= promise(result.upper, tolerance):
            # Rare large losses make further rounds dear; what was promised is enough.
            break
        last = found.width
        blur = whisper**2 * (1.0 + tilt.tau)
        rest = max(result.width - blur, 0.0) if math.isfinite(result.width) else math.inf
        whisper *= math.sqrt(0.3 * aim / blur) if blur > 0.4 * aim else 1.0
        if rest > 0.5 * aim:
            growth = min(4.0, max(1.2, math.sqrt(2.5 * min(rest / aim, 1e6))))
            cells = min(MOST_CELLS, MOST_NODES // plan.atoms, math.ceil(cells * growth))
    promised = promise(result.upper, tolerance)
    if result.width <= promised:
        return result, tilt
    note = f"the bracket is {result.width:.3g} wide where {promised:.3g} was asked for"
    return Bounds(result.lower, result.upper, False, note), tilt


def _focused(
    plan: Plan,
    view: View,
    tilt: Tilt,
    focus: Callable[[Sequence[Part], float], Tilt],
) -> tuple[Tilt, list[Part], list[Part]]:
    """See the plan where the tilt puts its weight, and correct the tilt by what is seen.

    With heavy tails a tilt that is a little too steep is decided by losses that hardly ever
    happen; a rough view does not notice, a fine one does. The upper measures have the
    heavier tails, so their tilt serves both.
    """
    lower, upper, _ = plan.see(view)
    for _ in range(MOST_LOOKS):
        fresh = focus(upper, view.tau)
        settled = 0.8 < fresh.steep / view.tau < 1.25
        if settled or not fresh.steep < view.tau:
            return (fresh if settled else tilt), lower, upper
        tilt, view = fresh, replace(view, tau=fresh.steep, focus=fresh.epsilon)
        lower, upper, _ = plan.see(view)
    return tilt, lower, upper


def _epsilon_attempt(
    lower: Sequence[Part],
    upper: Sequence[Part],
    delta: float,
    tilt: Tilt,
    whisper: float,
    *,
    tight: bool,
) -> Bounds:
    high, low = math.inf, 0.0
    if infinite_mass(upper) < delta:
        high = _epsilon_of(upper, delta, tilt, whisper, is_upper=True)
    if tight:
        low = _epsilon_of(lower, delta, tilt, whisper, is_upper=False, guess=high)
    return Bounds(low, min(high, _finite_top(upper)) if math.isfinite(high) else high)


def _certainly_below(
    parts: Sequence[Part], delta: float, tilt: Tilt, whisper: float, epsilon: float
) -> bool:
    """Whether delta at ``epsilon`` is certainly at most ``delta``, by one rough look."""
    if infinite_mass(parts) >= delta or as_one_step(parts, is_upper=True) is not None:
        return False
    inversion = Inversion(
        parts, tau=tilt.tau, whisper=whisper, log_delta=math.log(delta), around=tilt.epsilon
    )
    return inversion.upper(epsilon) <= delta


def _epsilon_of(
    parts: Sequence[Part],
    delta: float,
    tilt: Tilt,
    whisper: float,
    *,
    is_upper: bool,
    guess: float = math.inf,
) -> float:
    whole = as_one_step(parts, is_upper=is_upper)
    if whole is not None:
        return single_epsilon(whole, delta, is_upper=is_upper)
    around = guess if math.isfinite(guess) else tilt.epsilon
    inversion = Inversion(
        parts, tau=tilt.tau, whisper=whisper, log_delta=math.log(delta), around=around
    )
    if not math.isfinite(guess):
        guess = _rough_epsilon(inversion.log_mgf, inversion.deviation, tilt.tau, math.log(delta))
    return solve(inversion, delta, guess, is_upper=is_upper)


# --- delta at an epsilon --------------------------------------------------------------------


def delta_bounds(plan: Plan, epsilon: float) -> Bounds:
    """The bracket of delta at ``epsilon`` >= 0, over both directions."""
    found: list[Bounds] = []
    for way in plan.ways:
        below = max((bounds.lower for bounds in found), default=-1.0)
        found.append(_delta_one_way(plan, epsilon, way, below=below, rounds=MOST_ROUNDS))
    worst = _worst(found)
    return _explained(worst, max(0.02 * worst.upper, 1e-15), plan)


def delta_upper(plan: Plan, epsilon: float) -> float:
    """An upper bound on delta, good but not refined: for curves that need many points."""
    return max(
        _delta_one_way(plan, epsilon, (swapped, False), below=-1.0, rounds=1).upper
        for swapped, turned in plan.ways
        if not turned
    )


def _delta_one_way(
    plan: Plan, epsilon: float, way: tuple[bool, bool], *, below: float, rounds: int
) -> Bounds:
    swapped, turned = way
    first_look = View(swapped, 0.0, COARSE_CELLS, 1e-40 / plan.steps, turned=turned)
    lower, upper, tight = plan.see(first_look)
    if _finite_top(upper) <= epsilon:
        # Only infinite losses lie beyond; what the view cut off is among them.
        # The two may differ in the last digit.
        most = infinite_mass(upper)
        return Bounds(min(infinite_mass(lower), most) if tight else 0.0, most)
    tilt, cells, whisper, tail = _delta_aim(plan, lower, epsilon)

    def focus(parts: Sequence[Part], near: float) -> Tilt:
        return _tilt_for_epsilon(parts, epsilon, near)

    result = Bounds(0.0, 1.0)
    for _ in range(min(rounds, 2) if plan.atoms >= MANY or plan.two_orders else rounds):
        view = replace(first_look, tau=tilt.steep, cells=cells, tail=tail, focus=tilt.epsilon)
        tilt, lower, upper = _focused(plan, view, tilt, focus)
        high = _delta_of(upper, epsilon, tilt, whisper, is_upper=True)
        low = 0.0
        if tight and rounds > 1:
            low = _delta_of(lower, epsilon, tilt, whisper, is_upper=False)
        best = min(result.upper, high)
        result = Bounds(max(result.lower, min(low, best)), best)
        if result.width <= RELATIVE_TOLERANCE * best or best < below:
            return result
        if not tight:
            break
        if infinite_mass(upper) - infinite_mass(lower) > 1e-4 * best:
            # The first guess at delta was too high, and what was cut off now decides.
            tail = max(SMALLEST_TAIL, 1e-9 * tail)
            continue
        cells, whisper = min(MOST_CELLS, MOST_NODES // plan.atoms, 2 * cells), 0.5 * whisper
    if not tight:
        return _upper_only(result.upper)
    met = result.width <= max(0.02 * result.upper, 1e-15)
    note = "" if met else f"the bracket is {result.width:.3g} wide at delta {result.upper:.3g}"
    return Bounds(result.lower, result.upper, met, note)


def _delta_aim(plan: Plan, parts: Sequence[Part], epsilon: float) -> tuple[Tilt, int, float, float]:
    """Where and how finely to look for delta: the tilt, cells, whisper and tail."""
    tilt = _tilt_for_epsilon(parts, epsilon, 0.0)
    aim = 2e-4 * max(epsilon, 1.0 / (tilt.tau + 1.0))
    cells, whisper = _resolution(plan, tilt, aim, None)
    tail = max(SMALLEST_TAIL, math.exp(max(tilt.log_delta - 18.0, -640.0)) / plan.steps)
    return tilt, cells, whisper, tail


def delta_curve(plan: Plan, epsilons: Array) -> Array:
    """Upper bounds on delta at increasing epsilons, for little more than a few of them cost.

    A look that was made for one epsilon bounds delta at every other one too, only more loosely.
    So few looks serve all: a gap between two of them is divided until a look of its own in the
    middle no longer gains.
    """
    first = _curve_one_way(plan, epsilons, swapped=False)
    if plan.symmetric:
        return first
    worst: Array = np.maximum(first, _curve_one_way(plan, epsilons, swapped=True))
    return worst


def _curve_one_way(plan: Plan, epsilons: Array, *, swapped: bool) -> Array:
    last = len(epsilons) - 1
    best = np.minimum(
        _curve_look(plan, epsilons, 0, swapped=swapped),
        _curve_look(plan, epsilons, last, swapped=swapped),
    )
    gaps = [(0, last)]
    while gaps:
        low, high = gaps.pop()
        middle = (low + high) // 2
        if middle == low:
            continue
        known = best[middle]
        best = np.minimum(best, _curve_look(plan, epsilons, middle, swapped=swapped))
        if known > (1.0 + CURVE_SLACK) * best[middle] + 1e-13:
            gaps += [(low, middle), (middle, high)]
    # Delta never grows with epsilon.
    falling: Array = np.minimum.accumulate(best)
    return falling


def _curve_look(plan: Plan, epsilons: Array, at: int, *, swapped: bool) -> Array:
    """Bounds at all epsilons by a look that was made for one of them."""
    epsilon = float(epsilons[at])
    parts, upper, _ = plan.see(View(swapped, 0.0, COARSE_CELLS, 1e-40 / plan.steps))
    beyond = epsilons >= _finite_top(upper)
    result = np.where(beyond, infinite_mass(upper), 1.0)
    if beyond[at]:
        return result
    tilt, cells, whisper, tail = _delta_aim(plan, parts, epsilon)

    def focus(seen: Sequence[Part], near: float) -> Tilt:
        return _tilt_for_epsilon(seen, epsilon, near)

    view = View(swapped, tilt.steep, cells, tail, tilt.epsilon)
    tilt, _, upper = _focused(plan, view, tilt, focus)
    whole = as_one_step(upper, is_upper=True)
    if whole is not None:
        found = [single_delta(whole, float(e), is_upper=True) for e in epsilons]
        return np.minimum(result, found)
    inversion = Inversion(
        upper, tau=tilt.tau, whisper=whisper, log_delta=tilt.log_delta - 5.0, around=epsilon
    )
    near = ~beyond & (inversion.log_mgf - tilt.tau * epsilons < LARGEST_EXPONENT)
    result[near] = np.minimum(result[near], inversion.upper_at(epsilons[near]))
    return result


def _delta_of(
    parts: Sequence[Part], epsilon: float, tilt: Tilt, whisper: float, *, is_upper: bool
) -> float:
    whole = as_one_step(parts, is_upper=is_upper)
    if whole is not None:
        return single_delta(whole, epsilon, is_upper=is_upper)
    log_delta = tilt.log_delta - 5.0
    inversion = Inversion(parts, tau=tilt.tau, whisper=whisper, log_delta=log_delta, around=epsilon)
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
    light = _lighter(parts, tau, log_delta, guess) if heavy else tau
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
    light = _lighter(parts, tau, log_delta, epsilon) if heavy else tau
    return Tilt(light, tau, epsilon, log_delta, heavy)


def _lighter(parts: Sequence[Part], tau: float, log_delta: float, epsilon: float) -> float:
    """A flatter tilt with a shorter window, where rare large losses stretch it.

    The best Chernoff bound sits where a moment is about to explode; a little before, the
    bound is hardly worse and the tilted losses spread much less.
    """
    best, period = tau, math.inf
    worst = log_mgf(parts, tau) - tau * epsilon + MOST_LOST
    for share in LIGHTER_TILTS:
        light = share * tau
        found = window(parts, light, log_delta=log_delta, around=epsilon, whisper=0.0)
        if found > 0.95 * period or log_mgf(parts, light) - light * epsilon > worst:
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


def _resolution(plan: Plan, tilt: Tilt, aim: float, tolerance: float | None) -> tuple[int, float]:
    """How many cells and how loud a whisper the tolerance allows."""
    cells = plan.cells(tilt)
    if tolerance is not None:
        cells = math.ceil(cells * max(1.0, math.sqrt(1.2e-4 * tilt.epsilon / aim)))
    # An epsilon far below the tolerance has a steep tilt; a whisper longer than its scale
    # would not be a small effect any more.
    whisper = min(math.sqrt(0.15 * aim / (1.0 + tilt.tau)), 1.0 / tilt.tau)
    return min(cells, MOST_CELLS, MOST_NODES // plan.atoms), whisper


def promise(epsilon: float, tolerance: float | None) -> float:
    """How wide a bracket of epsilon may be."""
    relative = RELATIVE_TOLERANCE if tolerance is None else tolerance
    absolute = ABSOLUTE_TOLERANCE if tolerance is None else 1e-3 * tolerance
    return max(relative * epsilon, absolute) if math.isfinite(epsilon) else absolute


def _aim(epsilon: float, tolerance: float | None, plan: Plan) -> float:
    """The width to try for: by default well below the promise, where that is cheap."""
    share = 1.0 if tolerance is not None else DEFAULT_AIM if plan.atoms < MANY else 0.5
    return share * promise(epsilon, tolerance)


def _upper_only(upper: float) -> Bounds:
    return Bounds(0.0, upper, False, NO_TIGHT_PAIR)


def _worst(found: Sequence[Bounds]) -> Bounds:
    """All directions happen, so both bounds are maxima."""
    wide = max(found, key=lambda bounds: bounds.upper)
    return replace(wide, lower=max(bounds.lower for bounds in found))


def _explained(worst: Bounds, promised: float, plan: Plan) -> Bounds:
    """Say why the bracket of a pair of unknown order is wide, or that it is not."""
    if not plan.two_orders or worst.note == NO_TIGHT_PAIR:
        return worst
    met = worst.lower == worst.upper or worst.width <= promised
    return replace(worst, tolerance_met=met, note="" if met else TWO_ORDERS)


def _finite_top(parts: Sequence[Part]) -> float:
    """The largest finite total loss."""
    return sum(
        float(part.counts @ np.maximum(part.measure.loss.max(axis=1), 0.0)) for part in parts
    )
