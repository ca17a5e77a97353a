"""The plan of a linear model: noise, steps, clipping and step size from public facts alone.

Two releases are composed. First the second moments of the rows (a matrix), whose noisy inverse
root whitens the features, so that all directions are about equally long; then ``steps`` full
gradients on whitened rows. Both are integer vectors (:mod:`discreet.learn._exact_descent`) with
discrete Gaussian noise, mu-GDP by :func:`discreet.privacy.theorems.discrete_gaussian_mu`.

**Sensitivities**, for one row z = (x, 1) with |x| <= R and |z_i| <= 1, B = R^2 + 1:

* the upper triangle of z z' has squared length sum z_i^4 + sum_{i<j} z_i^2 z_j^2
  = (|z|^4 + sum z_i^4) / 2 <= (B^2 + B) / 2;
* a clipped gradient has length at most 1, in steps of 2**-34.

Adding or removing one row moves a sum by that much, replacing one by twice as much, and a person
with k rows by k times as much.

**Defaults** depend on s = mu n / sqrt(d m), the ratio of signal to noise of one full gradient with
the whole budget: n declared rows, d features, m outputs, and mu the GDP parameter of (epsilon,
delta). ``benchmarks/learners_defaults.py`` compares them with their neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

from discreet import _validate
from discreet.data import MOST_ROWS
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import GDP, Loss, Relation
from discreet.privacy.theorems import discrete_gaussian_mu, gaussian_mu

RAW_STEPS = 1 << 12
WHITENED_STEPS = 1 << 16
RESIDUAL_STEPS = 1 << 18
GRADIENT_STEPS = WHITENED_STEPS * RESIDUAL_STEPS
"""Steps of a clipped gradient of length 1: those of a row times those of a residual."""

# Beyond this width the noise of d^2 / 2 moments costs more than whitening the features gains.
WIDEST_WHITENED = 1024
MOST_STEPS = 1 << 31
_MOST_NOISE = 2.0**51
# Epsilon above 290: so little noise is no privacy, and less is not proved (discrete_gaussian_mu).
_LARGEST_MU = 20.0


def squared_raw_norm(norm: float) -> float:
    """Return the largest squared length of a raw row, the constant 1 included, in squared steps.

    >>> 5 <= squared_raw_norm(2.0) / RAW_STEPS**2 < 5 + 1e-12
    True
    """
    return (norm * norm * (1.0 + 2.0**-50) + 1.0) * RAW_STEPS**2


def default_delta(rows: int) -> float:
    """Return the default delta: a power of ten, at most 1 / (10 rows) and at most 1e-5.

    >>> default_delta(500), default_delta(32_561), default_delta(1_000_000)
    (1e-05, 1e-06, 1e-07)
    """
    count = _validate.integer("expected_rows", rows, at_least=1, at_most=MOST_ROWS)
    digits = len(str(count - 1))
    return float(f"1e-{max(5, digits + 1)}")


@final
@dataclass(frozen=True)
class LinearPlan:
    """Public numbers of a run; build it with :meth:`make`.

    ``total_step_size`` is the sum of all step sizes (its key in JSON is ``pace``), ``clip_ratio``
    the clipping norm as a share of the expected length of a whitened row, and ``moment_share`` the
    share of mu^2 for the moments. ``ridge``
    is what is added to the moments before they are inverted, in units of sqrt(width) deviations
    of their noise (its spectral norm is about two).

    >>> plan = LinearPlan.make(
    ...     rows=32_561,
    ...     features=113,
    ...     outputs=1,
    ...     norm=14**0.5,
    ...     epsilon=1.0,
    ...     delta=1e-6,
    ...     relation="add_remove",
    ... )
    >>> plan.loss.epsilon(delta=1e-6) <= 1.0, plan.steps
    (True, 80)
    """

    rows: int
    features: int
    outputs: int
    norm: float
    contributions: int
    epsilon: float
    delta: float
    relation: Relation
    steps: int
    total_step_size: float
    clip_ratio: float
    moment_share: float
    ridge: float
    moment_stddev: float
    gradient_stddev: float

    @classmethod
    def make(
        cls,
        *,
        rows: int,
        features: int,
        outputs: int,
        norm: float,
        epsilon: float,
        delta: float,
        relation: Relation | str,
        contributions: int = 1,
        squared: bool = False,
        steps: int | None = None,
        total_step_size: float | None = None,
        clip_ratio: float | None = None,
        moment_share: float | None = None,
    ) -> LinearPlan:
        """Choose what is not given, and calibrate the noise to (epsilon, delta).

        ``contributions`` is how many rows one unit of privacy owns, ``squared`` says that the
        loss is the squared one.
        """
        n = _validate.integer("expected_rows", rows, at_least=1, at_most=MOST_ROWS)
        target = _validate.real("epsilon", epsilon, above=0)
        point = _validate.real("delta", delta, above=0, below=1)
        kind = Relation.parse(relation)
        cap = _validate.integer("rows_per_person", contributions, at_least=1, at_most=MOST_ROWS)
        length = _validate.real("feature_norm", norm, above=0, at_most=1e4)
        if kind is Relation.REPLACE and cap > 1:
            raise NotApplicable("replacing a person may change the number of rows: use add_remove")
        dimension = (features + 1) * outputs
        signal = gaussian_mu(target, point) * n / cap / math.sqrt(dimension)
        chosen = _defaults(signal, squared=squared)
        if features >= WIDEST_WHITENED:
            chosen |= {"moment_share": 0.0, "total_step_size": 4.0 * chosen["total_step_size"]}
        given = {
            "total_step_size": total_step_size,
            "clip_ratio": clip_ratio,
            "moment_share": moment_share,
        }
        chosen |= {name: value for name, value in given.items() if value is not None}
        whole = _validate.real("total_step_size", chosen["total_step_size"], above=0, at_most=1e6)
        clip = _validate.real("clip_ratio", chosen["clip_ratio"], at_least=1e-6, at_most=1e3)
        share = _validate.real("moment_share", chosen["moment_share"], at_least=0, below=1)
        count = _validate.integer(
            "max_iter",
            _default_steps(whole, squared) if steps is None else steps,
            at_least=1,
            at_most=MOST_STEPS,
        )
        run = (count, whole, clip, share, chosen["ridge"])
        parts = (n, features, outputs, length, cap, target, point, kind, *run)
        first = cls(*parts, moment_stddev=1.0, gradient_stddev=1.0)
        return cls(*parts, *_noise(first))

    @property
    def loss(self) -> Loss:
        """What the whole run reveals about one unit."""
        return _loss(self, self.moment_stddev, self.gradient_stddev)

    @property
    def changes(self) -> int:
        """How many single-row changes take a data set to its neighbour."""
        return self.contributions * (2 if self.relation is Relation.REPLACE else 1)

    @property
    def moment_shift(self) -> float:
        """L2 sensitivity of the upper triangle of moments, in steps, rounded up."""
        square = squared_raw_norm(self.norm)
        triangle = math.sqrt((square * square + square * RAW_STEPS**2) / 2.0)
        return self.changes * triangle * (1.0 + 2.0**-48)

    @property
    def gradient_shift(self) -> float:
        """L2 sensitivity of a sum of clipped gradients, in steps."""
        return float(self.changes * GRADIENT_STEPS)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            "pace" if name == "total_step_size" else name: (
                value.value if isinstance(value, Relation) else value
            )
            for name, value in self.__dict__.items()
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LinearPlan:
        """Return the plan that :meth:`to_json` wrote."""
        found = {**document, "relation": Relation.parse(document["relation"])}
        found["total_step_size"] = found.pop("pace")
        return cls(**found)


def _defaults(signal: float, *, squared: bool) -> dict[str, float]:
    if squared:
        total = min(12.0, max(4.5, 4.5 * signal**0.4))
        clip = min(0.8, max(0.1, 0.1 * (signal / 3.0) ** 0.4))
        return {"total_step_size": total, "clip_ratio": clip, "moment_share": 0.2, "ridge": 0.1}
    total = min(160.0, max(14.0, 6.0 * signal**0.55))
    clip = min(1.2, max(0.3, 0.3 * (signal / 30.0) ** 0.4))
    ridge = min(0.1, max(0.03, signal / 300.0))
    return {"total_step_size": total, "clip_ratio": clip, "moment_share": 0.25, "ridge": ridge}


def _default_steps(total: float, squared: bool) -> int:
    # The curvature of whitened rows is about 1 for squares and at most 1/4 or 1/2 for logistic
    # losses, so single steps of up to 1 and 2 are stable.
    return min(80, max(10, math.ceil(2.0 * total if squared else total)))


def _loss(plan: LinearPlan, moments: float, gradients: float) -> Loss:
    width = plan.features + 1
    step = discrete_gaussian_mu(gradients, plan.gradient_shift, coordinates=width * plan.outputs)
    if step is None:
        raise _too_small(plan)
    loss: Loss = plan.steps * GDP(step, plan.relation)
    if plan.moment_share == 0.0:
        return loss
    first = discrete_gaussian_mu(moments, plan.moment_shift, coordinates=width * (width + 1) // 2)
    if first is None:
        raise _too_small(plan)
    return GDP(first, plan.relation) + loss


@lru_cache(maxsize=256)
def _noise(plan: LinearPlan) -> tuple[float, float]:
    mu = min(gaussian_mu(plan.epsilon, plan.delta), _LARGEST_MU)
    share = plan.moment_share
    more = 1.0
    for attempt in range(60):
        moments = more * plan.moment_shift / (mu * math.sqrt(share)) if share else 0.0
        gradients = more * plan.gradient_shift * math.sqrt(plan.steps / (1.0 - share)) / mu
        if max(moments, gradients) >= _MOST_NOISE:
            expected = "a value whose noise has fewer than 2**51 steps; fewer rows per person help"
            raise InvalidValue("epsilon", plan.epsilon, expected)
        if _loss(plan, moments, gradients).epsilon(delta=plan.delta) <= plan.epsilon:
            return moments, gradients
        # Rounding upwards in the accountant asks for a little more noise than the closed form.
        more *= 1.0 + 2.0 ** (attempt - 40)
    raise _too_small(plan)


def _too_small(plan: LinearPlan) -> NotApplicable:
    return NotApplicable(
        f"no noise was certified for epsilon {plan.epsilon!r} and delta {plan.delta!r}"
    )
