"""S11: the Laplace mechanism, exact, for one number and for vectors.

Noise with P(x) proportional to exp(-|x| / scale) is added to an answer whose L1
sensitivity under the stated relation is at most ``sensitivity``; that is
(sensitivity / scale)-DP (Dwork, McSherry, Nissim and Smith 2006, theorem 1; on the integers
Ghosh, Roughgarden and Sundararajan 2009). The noise is set by ``epsilon``
(scale = sensitivity / epsilon) or by ``scale``.

**Integers** stay integers. **Real numbers** are rounded to a declared grid, get integer
noise in steps of the grid, and are released as multiples of ``granularity``; the loss is
that of the integer mechanism for the sensitivity *after* rounding
(:func:`discreet.randomness.sensitivity_on_grid`), and with ``epsilon`` the noise is set for
that sensitivity. Which of the two it is depends on the function called, not on the value:
the sum of no numbers is an ``int`` in Python and the sum of some is a ``float``, and the type of
an answer must not tell them apart.

**Loss of a vector.** Let the answers of two neighbours differ by (k_1, ..., k_d), the sum of
|k_i| being at most D. Change one coordinate after the other: the i-th change is the pair of
one-dimensional noise shifted by k_i. The noise is log-concave, so thresholds are the most
powerful tests for every shift at once, and the trade-off functions of the changes chain into
that of one shift by the sum of |k_i|; by the group-privacy lemma of Dong, Roth and Su (2022,
theorem 2.14) the chain is a bound for the whole change. Hence
``DiscreteLaplace(scale, sensitivity=D)`` dominates the vector release as well, and it is tight
when one coordinate can take all of the change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.mechanisms.error_bars import (
    integer_bars,
    integers_bars,
    laplace_reach,
    real_bars,
    saturated,
)
from discreet.mechanisms.parameters import (
    drawn_scale,
    either,
    few_enough_steps,
    grid_for,
    rounded_up,
    stated_epsilon,
    stated_noise,
)
from discreet.mechanisms.release import Release
from discreet.privacy import DiscreteLaplace, Relation
from discreet.randomness import (
    Source,
    choose_source,
    discrete_laplace,
    laplace_on_grid,
    read_integer,
    read_integers,
    read_real,
    read_reals,
    sensitivity_on_grid,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "IntegerLaplace",
    "laplace_integer",
    "laplace_integers",
    "laplace_real",
    "laplace_vector",
]


@final
@dataclass(frozen=True)
class IntegerLaplace:
    """Laplace noise in whole steps: the double ``scale`` that is charged for."""

    scale: float
    sensitivity: int
    relation: Relation

    @classmethod
    def stated(
        cls, *, sensitivity: int, epsilon: object, scale: object, relation: Relation | str
    ) -> IntegerLaplace:
        """Read ``epsilon`` or ``scale``, exactly one of them."""
        if either(epsilon=epsilon, scale=scale) == "scale":
            noise = stated_noise("scale", scale)
        else:
            noise = rounded_up("epsilon", epsilon, sensitivity / stated_epsilon(epsilon)[0])
        return cls(noise, sensitivity, Relation.parse(relation))

    @property
    def exact_scale(self) -> Fraction:
        """The rational number that the sampler gets: never less than is charged for."""
        return drawn_scale(self.scale)

    def loss(self) -> DiscreteLaplace:
        """The loss of the release, exact."""
        return DiscreteLaplace(self.scale, self.sensitivity, self.relation)


def laplace_integer(
    value: int,
    *,
    sensitivity: int,
    epsilon: object = None,
    scale: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[int]:
    """S11: an integer answer plus discrete Laplace noise; (sensitivity / scale)-DP.

    The loss is exact. ``interval`` uses the exact tail of the noise.

    >>> noisy = laplace_integer(120, sensitivity=1, epsilon=0.1, insecure_seed=7)
    >>> noisy.loss, noisy.loss.epsilon(delta=0)
    (DiscreteLaplace(scale=10.0), 0.1)
    >>> low, high = noisy.interval(confidence=0.95)
    >>> low <= 120 <= high, high - low
    (True, 60)
    """
    noise = IntegerLaplace.stated(
        sensitivity=_validate.integer("sensitivity", sensitivity, at_least=1, at_most=1 << 500),
        epsilon=epsilon,
        scale=scale,
        relation=relation,
    )
    bits = choose_source(source, insecure_seed)
    loss = noise.loss()
    answer = read_integer("value", value)
    noisy = answer + discrete_laplace(noise.exact_scale, source=bits)
    return Release(
        noisy,
        loss,
        _provenance("laplace_integer", noise, bits),
        integer_bars(noisy, laplace_reach(noise.exact_scale)),
    )


def laplace_integers(
    values: Any,
    *,
    sensitivity: int,
    epsilon: object = None,
    scale: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[NDArray[np.int64]]:
    """S11: an integer array of L1 sensitivity ``sensitivity``; (sensitivity / scale)-DP.

    The loss dominates every split of the sensitivity over coordinates (see the module) and is
    tight if one coordinate can take all of it. ``interval`` holds for all coordinates together.

    >>> noisy = laplace_integers([3, 0, 9], sensitivity=2, scale=0.01)  # hardly any noise
    >>> noisy.value.tolist(), noisy.loss.epsilon(delta=0)
    ([3, 0, 9], 200.0)
    """
    noise = IntegerLaplace.stated(
        sensitivity=_validate.integer("sensitivity", sensitivity, at_least=1, at_most=1 << 500),
        epsilon=epsilon,
        scale=scale,
        relation=relation,
    )
    bits = choose_source(source, insecure_seed)
    loss = noise.loss()
    answers = read_integers("values", values)
    draws = discrete_laplace(noise.exact_scale, answers.size, source=bits).reshape(answers.shape)
    return Release(
        saturated(answers, draws),
        loss,
        _provenance("laplace_integers", noise, bits, shape=list(answers.shape)),
        integers_bars(answers, draws, laplace_reach(noise.exact_scale)),
    )


def laplace_real(
    value: Any,
    *,
    sensitivity: object,
    epsilon: object = None,
    scale: object = None,
    granularity: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[float]:
    """S11: a real answer on a grid plus Laplace noise; pure DP, rounding included.

    ``granularity`` is a power of two that must not be chosen by looking at the data; None
    means the one just below 2**-40 of the noise (finer for an epsilon below 2**-20). With
    D = ceil(sensitivity / granularity) steps the release is (D granularity / scale)-DP, and with
    ``epsilon`` the scale is D granularity / epsilon. The value must be finite: clip before.

    >>> noisy = laplace_real(0.25, sensitivity=0.5, epsilon=1, granularity=2**-10)
    >>> noisy.value * 2**10 == round(noisy.value * 2**10), noisy.loss.epsilon(delta=0)
    (True, 1.0)
    >>> noisy.loss
    DiscreteLaplace(scale=512.0, sensitivity=512)
    """
    grid, noise = _on_grid(sensitivity, epsilon, scale, granularity, relation, coordinates=None)
    bits = choose_source(source, insecure_seed)
    loss = noise.loss()
    answer = read_real("value", value)
    noisy = laplace_on_grid(answer, scale=noise.exact_scale * grid, granularity=grid, source=bits)
    return Release(
        float(noisy.values),
        loss,
        _provenance("laplace_real", noise, bits, granularity=str(grid)),
        real_bars(noisy.steps, grid, laplace_reach(noise.exact_scale)),
    )


def laplace_vector(
    values: Any,
    *,
    sensitivity: object,
    changed: int | None = None,
    epsilon: object = None,
    scale: object = None,
    granularity: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[NDArray[np.float64]]:
    """S11: a real array of L1 sensitivity ``sensitivity`` on a grid; pure DP, rounding included.

    ``changed`` is the largest number of coordinates in which neighbours can differ (None: all
    of them). Rounding adds at most that many steps to the sensitivity. ``interval`` holds for
    all coordinates together.

    >>> noisy = laplace_vector([0.5, 2.0], sensitivity=1, epsilon=0.5, granularity=2**-4)
    >>> noisy.loss, noisy.loss.epsilon(delta=0)
    (DiscreteLaplace(scale=36.0, sensitivity=18), 0.5)
    """
    answers = read_reals("values", values)
    coordinates = _changed_coordinates(changed, answers.size)
    grid, noise = _on_grid(sensitivity, epsilon, scale, granularity, relation, coordinates)
    bits = choose_source(source, insecure_seed)
    loss = noise.loss()
    noisy = laplace_on_grid(answers, scale=noise.exact_scale * grid, granularity=grid, source=bits)
    return Release(
        np.asarray(noisy.values),
        loss,
        _provenance(
            "laplace_vector", noise, bits, granularity=str(grid), shape=list(answers.shape)
        ),
        real_bars(noisy.steps, grid, laplace_reach(noise.exact_scale)),
    )


def _on_grid(
    sensitivity: object,
    epsilon: object,
    scale: object,
    granularity: object,
    relation: Relation | str,
    coordinates: int | None,
) -> tuple[Fraction, IntegerLaplace]:
    """Return the granularity and the noise in its steps; ``coordinates`` None is one number."""
    change = _validate.fraction("sensitivity", sensitivity, above=0)
    if either(epsilon=epsilon, scale=scale) == "scale":
        about = Fraction(stated_noise("scale", scale))
    else:
        about = change / stated_epsilon(epsilon)[0]
    grid = grid_for(
        granularity,
        noise=about,
        sensitivity=change,
        coordinates=coordinates or 1,
        array=coordinates is not None,
    )
    steps = math.ceil(sensitivity_on_grid(change, granularity=grid, coordinates=coordinates or 1))
    if steps > 1 << 500:
        raise InvalidValue("sensitivity", sensitivity, "at most 2**500 steps of the granularity")
    in_steps = None if scale is None else about / grid
    noise = IntegerLaplace.stated(
        sensitivity=steps, epsilon=epsilon, scale=in_steps, relation=relation
    )
    if coordinates is not None:
        few_enough_steps(granularity, noise.scale)
    return grid, noise


def _changed_coordinates(changed: int | None, size: int) -> int:
    if changed is None:
        return size
    return _validate.integer("changed", changed, at_least=1, at_most=size)


def _provenance(
    mechanism: str, noise: IntegerLaplace, bits: Source, **more: object
) -> dict[str, Any]:
    return {
        "mechanism": mechanism,
        "scale_in_steps": noise.scale,
        "sensitivity_in_steps": noise.sensitivity,
        "relation": noise.relation.value,
        **more,
        **bits.provenance,
    }
