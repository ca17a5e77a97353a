"""Correlated noise: Gaussian noise of which a part is taken back in later steps.

A :class:`Strategy` is a lower triangular Toeplitz matrix C. Step i releases G_i + (C^-1 Z)_i, with
G_i the clipped sum of the batch and Z_i independent normals, so sums of many steps have less noise
than they would have with independent noise. What it costs depends on *when* a record may take
part, see :mod:`discreet.privacy.theorems`: the steps of one record must be known to be some
distance apart, and that is for the sampler to keep.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from typing import Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import theorems
from discreet.privacy._composition import compose
from discreet.privacy._gaussian import GDP, Gaussian
from discreet.privacy._loss import Loss, Relation, check_loss, wrap
from discreet.privacy._pair import Array, Pair, Resolution
from discreet.privacy._renyi import curve

_MOST_BANDS = 4096
_MOST_STEPS = 10**6
_SHOWN = 6


@final
@dataclass(frozen=True, repr=False)
class Strategy:
    """A way to correlate the noise of steps: the first column of C, or of its inverse.

    Parameters
    ----------
    coefficients : sequence of float
        The first one is above 0; what is not given is 0.
    inverse : bool
        Whether they are those of C^-1.

    Examples
    --------
    >>> strategy = Strategy.square_root(8)
    >>> strategy.bands, round(strategy.sensitivity(steps=64, separation=8), 4)
    (8, 2.8284)
    """

    coefficients: tuple[float, ...]
    inverse: bool = False

    def __post_init__(self) -> None:
        given = _validate.several("coefficients", self.coefficients, "the numbers of a column")
        numbers = [_validate.real("coefficients", one) for one in given]
        if not 1 <= len(numbers) <= _MOST_BANDS or numbers[0] <= 0:
            raise InvalidValue(
                "coefficients",
                tuple(numbers[:_SHOWN]),
                f"1 to {_MOST_BANDS} numbers, the first above 0",
            )
        if not isinstance(self.inverse, bool):
            raise InvalidValue("inverse", self.inverse, "True or False")
        object.__setattr__(self, "coefficients", tuple(numbers))

    @classmethod
    def independent(cls) -> Strategy:
        """Return one band: noise that is not correlated."""
        return cls((1.0,))

    @classmethod
    def square_root(cls, bands: int) -> Strategy:
        """Return the square root of the prefix sums, cut to a number of bands, of norm 1."""
        return cls(tuple(theorems.square_root_coefficients(bands).tolist()))

    @classmethod
    def inverse_square_root(cls, bands: int) -> Strategy:
        """Return the strategy whose inverse is that of the square root, cut to some bands."""
        return cls(tuple(theorems.inverse_square_root_coefficients(bands).tolist()), inverse=True)

    @classmethod
    def optimised(cls, bands: int, *, steps: int) -> Strategy:
        """Return bands of norm 1 with nearly the least mean squared error of prefix sums."""
        return _optimise(bands, steps)

    @property
    def bands(self) -> int:
        """How many coefficients there are: one more than past vectors that a generator holds."""
        return len(self.coefficients)

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.coefficients[:_SHOWN]))
        if self.bands > _SHOWN:
            digest = sha256(repr(self.coefficients).encode()).hexdigest()[:16]
            shown += f", ... {self.bands} of digest {digest}"
        comma = "," if self.bands == 1 else ""
        return f"Strategy(({shown}{comma}){', inverse=True' if self.inverse else ''})"

    def to_json(self) -> dict[str, Any]:
        """Return its arguments as plain values."""
        return {"coefficients": list(self.coefficients), "inverse": self.inverse}

    def column(self, steps: int) -> Array:
        """Return the first column of C."""
        if self.inverse:
            return theorems.inverse_toeplitz(self.coefficients, steps=steps)
        return np.asarray(self.coefficients[:steps])

    def sensitivity(
        self, *, steps: int, separation: int | None = None, participations: int | None = None
    ) -> float:
        """Return how far one record moves C G, in clip norms, rounded up.

        Parameters
        ----------
        steps : int
            How many steps there are.
        separation : int, optional
            How far two steps of one record are apart at least. May be left out where
            ``participations=1`` only.
        participations : int, optional
            How often a record takes part at most; by default as often as fits.

        Returns
        -------
        float

        Raises
        ------
        NotApplicable
            If the sensitivity of the strategy is not known.
        """
        return _sensitivity(self, steps, *check_shape(steps, separation, participations))

    def errors(self, *, steps: int) -> Array:
        """Return the deviation of every prefix sum at unit noise, before the sensitivity."""
        return theorems.prefix_errors(self.column(steps), steps=steps)

    def error(self, *, steps: int) -> float:
        """Return the root of the mean squared deviation of prefix sums at unit noise."""
        errors = self.errors(steps=steps)
        return float(np.sqrt(np.mean(errors * errors)))


def check_shape(steps: int, separation: int | None, participations: int | None) -> tuple[int, int]:
    """Return separation and participations; raise unless the one or the other says enough."""
    count = _validate.integer("steps", steps, at_least=1, at_most=_MOST_STEPS)
    times = count if participations is None else participations
    _validate.integer("participations", times, at_least=1)
    if separation is None and times > 1:
        raise InvalidValue(
            "separation",
            None,
            "how many steps apart one record takes part, or participations=1: the noise that one "
            "record needs depends on it",
        )
    apart = count if separation is None else separation
    return _validate.integer("separation", apart, at_least=1), times


@lru_cache(maxsize=64)
def _optimise(bands: int, steps: int) -> Strategy:
    return Strategy(tuple(theorems.least_error_coefficients(bands, steps=steps).tolist()))


@lru_cache(maxsize=256)
def _sensitivity(strategy: Strategy, steps: int, separation: int, participations: int) -> float:
    column: Array | tuple[float, ...] = strategy.coefficients
    if strategy.inverse:
        column = theorems.majorant(column, steps=steps)
    return theorems.toeplitz_sensitivity(
        column, steps=steps, separation=separation, participations=participations
    )


@final
@dataclass(frozen=True, repr=False)
class Correlated(Loss):
    """A run of Gaussian noise that is correlated over its steps.

    Build it with ``Gaussian(...).correlated(strategy, steps=)``. Each record takes part at most
    ``participations`` times, at least ``separation`` steps apart, in steps that were fixed
    beforehand: then all of it is one Gaussian, of the noise over the sensitivity.

    With ``rate`` below 1 the records are divided into ``separation`` groups, by draws that do not
    depend on the data, and step i takes each record of group i mod ``separation`` with that
    probability: then it is a composition of Poisson-sampled Gaussians, one for each turn of the
    group. That rests on blocks of rows that one record moves alone, so it needs bands, no more
    than the separation. Both are exact, so both ends of the bracket hold.

    No step can be drawn otherwise at this price: a record that may come twice within the bands
    moves the same row twice. Records of one unit are in different groups and meet in one row, so
    for a sampled unit of several records only the generic bound is known.
    """

    base: Loss
    coefficients: tuple[float, ...]
    steps: int
    separation: int
    participations: int
    rate: float = 1.0
    inverse: bool = False

    def check(self) -> None:
        base = check_loss("base", self.base)
        if isinstance(base, GDP) and base.relation is Relation.ADD_REMOVE:
            base = base.as_gaussian()
        if not isinstance(base, Gaussian):
            raise NotApplicable(f"correlated noise is Gaussian, not {base!r}")
        steps = _validate.integer("steps", self.steps, at_least=1, at_most=_MOST_STEPS)
        apart = _validate.integer("separation", self.separation, at_least=1)
        apart, most = min(apart, steps), -(-steps // apart)
        times = _validate.integer("participations", self.participations, at_least=1)
        rate = _validate.real("rate", self.rate, above=0, at_most=1)
        strategy = Strategy(self.coefficients, self.inverse)
        cut = strategy.coefficients[:steps]
        self._set(
            base=base,
            coefficients=cut,
            steps=steps,
            separation=apart,
            participations=min(times, most),
            rate=rate,
            inverse=strategy.inverse,
        )
        if rate < 1 and (self.inverse or len(cut) > apart or times < most):
            raise NotApplicable(
                f"sampling by turns amplifies a strategy of at most as many bands as groups, "
                f"where every group has all of its turns; got {strategy!r}, {apart} groups, "
                f"{times} of {most} turns"
            )
        if rate == 1:
            assert self.sensitivity > 0  # raises where it is not known

    @property
    def strategy(self) -> Strategy:
        """How the noise is correlated."""
        return Strategy(self.coefficients, self.inverse)

    @property
    def sensitivity(self) -> float:
        """How far one record moves C G, if it is taken whenever it may be."""
        return _sensitivity(self.strategy, self.steps, self.separation, self.participations)

    @property
    def relation(self) -> Relation:
        return self.base.relation

    def __repr__(self) -> str:
        text = f"{wrap(self.base)}.correlated({self.strategy!r}, steps={self.steps}"
        text += f", separation={self.separation}"
        if self.rate < 1:
            return f"{text}, rate={self.rate!r})"
        return f"{text}, participations={self.participations})"

    @property
    def has_own_pair(self) -> bool:
        return self.rate == 1

    @property
    def tight(self) -> bool:
        return True

    @property
    def _base(self) -> Gaussian:
        assert isinstance(self.base, Gaussian)
        return self.base

    def gaussian_mu(self) -> float | None:
        return self.sensitivity * self._base.mu * (1.0 + 1e-15) if self.rate == 1 else None

    def expand(self) -> Loss:
        """Return the turns of a group as a composition; a run without sampling is one Gaussian."""
        if self.rate == 1:
            return self
        norms = theorems.block_norms(
            self.coefficients,
            steps=self.steps,
            separation=self.separation,
            participations=self.participations,
        )
        noise = self._base.noise_multiplier
        return compose(
            (replace(self._base, noise_multiplier=noise / norm).poisson(rate=self.rate), count)
            for norm, count in norms
        )

    def pair(self, resolution: Resolution) -> Pair:
        mu = self.gaussian_mu()
        if mu is None:
            raise NotApplicable(f"{self!r} is made of several turns, and has no pair of one step")
        return GDP(mu, self.relation).pair(resolution)

    def renyi(self, orders: Array) -> Array:
        if self.rate == 1:
            return orders * self.zcdp()
        return curve(self.expand(), orders)

    def claim(self) -> tuple[Fraction, Fraction] | None:
        return None

    def zcdp(self) -> float:
        mu = self.gaussian_mu()
        return self.expand().zcdp() if mu is None else mu * mu / 2.0

    @property
    def is_gaussian_noise(self) -> bool:
        return True

    def exact_group(self, size: int, relation: Relation) -> Loss | None:
        """Return the loss for several records: a sum moves no further than its parts together."""
        if self.rate < 1 and (size > 1 or relation is Relation.REPLACE):
            return None
        base = self._base.exact_group(size, relation)
        return replace(self, base=base)

    def sampling_refusal(self, records: int) -> str | None:
        return f"{self!r} is a whole run, and has its sampling in its rate"

    def touched_mass(self) -> float:
        return 1.0 if self.rate == 1 else self.expand().touched_mass()


def choose_bands(
    *,
    epsilon: float,
    delta: float,
    steps: int,
    rate: float,
    relation: Relation | str = Relation.ADD_REMOVE,
    at_most: int = 256,
) -> tuple[Strategy, float]:
    """Return the strategy and noise multiplier with the least error of prefix sums at a budget.

    For ``sampler="cyclic"``: bands of 1, 2, 4, ... are tried. More bands correlate more and
    amplify less, as each of as many groups is drawn from at as many times the rate. More epochs or
    a smaller epsilon ask for fewer bands; one band is Poisson sampling with independent noise.
    The error of prefix sums is a proxy: what is best for a model may differ.

    Parameters
    ----------
    epsilon, delta : float
        The budget.
    steps : int
        How many steps there are.
    rate : float
        Expected batch size over number of records.
    relation : Relation or str
        What neighbours are.
    at_most : int
        The largest number of bands, for the sake of memory: a generator holds one past vector for
        each but one.

    Returns
    -------
    (Strategy, float)

    Examples
    --------
    >>> strategy, noise = choose_bands(epsilon=4, delta=1e-6, steps=128, rate=1 / 128)
    >>> strategy.bands
    16
    """
    from discreet.privacy._calibration import calibrate

    n = _validate.integer("steps", steps, at_least=1, at_most=_MOST_STEPS)
    one = _validate.real("rate", rate, above=0, at_most=1)
    most = _validate.integer("at_most", at_most, at_least=1, at_most=_MOST_BANDS)
    neighbours = Relation.parse(relation)
    changes = 2.0 if neighbours is Relation.REPLACE else 1.0
    mu = theorems.gaussian_mu(epsilon, delta)
    best: tuple[float, Strategy, float] | None = None
    bands = 1
    while bands <= min(most, n) and bands * one <= 1:
        strategy = Strategy.optimised(bands, steps=n)

        def make(noise: float, used: Strategy = strategy) -> Loss:
            base = Gaussian(noise, neighbours)
            return base.correlated(used, steps=n, separation=used.bands, rate=used.bands * one)

        enough = 1.1 * changes * strategy.sensitivity(steps=n, separation=bands) / mu
        noise = calibrate(
            make,
            epsilon=epsilon,
            delta=delta,
            bracket=(min(0.05, enough / 1e3), max(1.0, enough)),
            increasing=False,
        )
        error = noise * strategy.error(steps=n)
        if best is not None and error > 1.3 * best[0]:
            break
        if best is None or error < best[0]:
            best = error, strategy, noise
        bands *= 2
    assert best is not None
    return best[1], best[2]
