"""Clipping rules: how much of each example's gradient enters the sum.

A rule turns squared gradient norms, one row for each parameter group and one column for
each unit (an example, or the augmented copies of one), into weights. Its promise, on which the
whole accounting rests:

    sum over groups of (weight * norm)^2 <= clip_norm^2   for every unit, whatever its data.

Edge cases, all of which keep the promise:

====================================  =====================================================
squared norm                          weight
====================================  =====================================================
0                                     as for a tiny norm; the contribution is 0
NaN, infinite                         0: the unit contributes nothing, training goes on
overflow of a float32 square          infinite, hence 0 (a norm above 1.8e19)
negative (rounding of a ghost norm)   0
====================================  =====================================================

A norm computed in floating point is off by some units in its last place, so the rules aim
:data:`ROUNDING_MARGIN` below the bound. Gradients below that have weight exactly 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, final

from discreet import _validate
from discreet.errors import InvalidValue, SchemaError

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.learn.dpsgd._noise import NoiseSource
    from discreet.learn.dpsgd._plan import Plan
    from discreet.learn.dpsgd._team import Team


ROUNDING_MARGIN = 2.0**-15


class Clipping(ABC):
    """A rule from norms to weights; its clip norm is given by the plan."""

    kind: ClassVar[str]

    def groups(self, names: Sequence[str]) -> list[list[str]] | None:
        """Which parameters are clipped together; ``None`` stands for all of them."""
        return None

    def noise_for_atom(self, noise_multiplier: float) -> float:
        """The noise multiplier of the one Gaussian atom that describes a step."""
        return noise_multiplier

    @abstractmethod
    def weights(self, squared_norms: Tensor, *, clip_norm: float, factor: float = 1.0) -> Tensor:
        """New weights, one for each squared norm, times ``factor``; see the module."""

    @final
    def to_json(self) -> dict[str, Any]:
        """The rule as a JSON object; see :func:`read_clipping`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"kind": self.kind, **values}


@final
@dataclass(frozen=True)
class Flat(Clipping):
    """The whole gradient at once: g / max(1, |g| / C) (Abadi et al. 2016; S21)."""

    kind: ClassVar[str] = "flat"

    def weights(self, squared_norms: Tensor, *, clip_norm: float, factor: float = 1.0) -> Tensor:
        return _clip_weights(squared_norms, clip_norm, factor)


@final
@dataclass(frozen=True)
class PerLayer(Clipping):
    """Each layer by itself to C / sqrt(layers), so that the whole is at most C.

    A layer is a module with parameters of its own. The squares of the parts add up:
    layers * (C / sqrt(layers))^2 = C^2.
    """

    kind: ClassVar[str] = "per_layer"

    def groups(self, names: Sequence[str]) -> list[list[str]] | None:
        return layers_of(names)

    def weights(self, squared_norms: Tensor, *, clip_norm: float, factor: float = 1.0) -> Tensor:
        return _clip_weights(squared_norms, clip_norm / math.sqrt(squared_norms.shape[0]), factor)


@final
@dataclass(frozen=True)
class Automatic(Clipping):
    """Normalisation instead of clipping: C g / (|g| + gamma) (Bu et al. 2023).

    The contribution has norm C |g| / (|g| + gamma) < C, for every g.
    """

    gamma: float = 0.01

    kind: ClassVar[str] = "automatic"

    def __post_init__(self) -> None:
        # Squares of gradients that are shorter by far may underflow, and must not count.
        gamma = _validate.real("gamma", self.gamma, at_least=1e-10)
        object.__setattr__(self, "gamma", gamma)

    def weights(self, squared_norms: Tensor, *, clip_norm: float, factor: float = 1.0) -> Tensor:
        inverse = squared_norms.sqrt().add_(self.gamma).reciprocal_()
        return inverse.mul_(factor * clip_norm * (1.0 - ROUNDING_MARGIN)).nan_to_num_(nan=0.0)


@final
@dataclass(frozen=True)
class Quantile(Clipping):
    """Flat clipping whose clip norm follows a quantile of the norms (Andrew et al. 2021).

    With each step the number of units whose norm is at most C is estimated from the same
    batch: every unit contributes b - 1/2 with b 0 or 1, and noise of standard deviation
    ``count_stddev`` is added. One unit moves that sum by at most 1/2 and the gradient sum by at
    most C, so the two together are one Gaussian release with

        sigma_eff = (z^-2 + (2 count_stddev)^-2)^(-1/2),

    z the noise multiplier of the gradients: one atom a step, not two. The plan's clip norm is
    where C starts; the path of C is a function of released numbers and may be published.
    """

    quantile: float = 0.5
    learning_rate: float = 0.2
    count_stddev: float = 10.0

    kind: ClassVar[str] = "quantile"

    def __post_init__(self) -> None:
        for name, most in (("quantile", 1.0), ("learning_rate", None), ("count_stddev", None)):
            value = _validate.real(name, getattr(self, name), above=0, below=most)
            object.__setattr__(self, name, value)

    def noise_for_atom(self, noise_multiplier: float) -> float:
        # Rounded down: less noise than there is can only raise the reported epsilon.
        exact = 1.0 / math.hypot(1.0 / noise_multiplier, 0.5 / self.count_stddev)
        return exact * (1.0 - 1e-15)

    def weights(self, squared_norms: Tensor, *, clip_norm: float, factor: float = 1.0) -> Tensor:
        return _clip_weights(squared_norms, clip_norm, factor)

    def centred_count(self, squared_norms: Tensor, *, clip_norm: float) -> Tensor:
        """The sum of b - 1/2; a norm that is not finite counts as too long."""
        inside = (squared_norms[0] <= clip_norm * clip_norm).sum()
        return inside.double() - 0.5 * squared_norms.shape[1]

    def next_clip_norm(
        self, noisy_count: float, *, clip_norm: float, initial: float, expected_batch_size: float
    ) -> float:
        """The clip norm of the following step, from released numbers only.

        It stays within a factor of a million of where it started, so that a long run of
        noise cannot drive it out of the range of single precision.
        """
        share = noisy_count / expected_batch_size + 0.5
        exponent = max(-2.0, min(2.0, -self.learning_rate * (share - self.quantile)))
        return min(max(clip_norm * math.exp(exponent), initial * 1e-6), initial * 1e6)


_RULES: dict[str, type[Clipping]] = {
    rule.kind: rule for rule in (Flat, PerLayer, Automatic, Quantile)
}


def read_clipping(value: object) -> Clipping:
    """A rule from itself, from its name, or from what :meth:`Clipping.to_json` wrote.

    >>> read_clipping("automatic")
    Automatic(gamma=0.01)
    >>> read_clipping(Quantile(quantile=0.3).to_json()).quantile
    0.3
    """
    if type(value) in _RULES.values():
        assert isinstance(value, Clipping)
        return value
    if isinstance(value, Clipping):
        raise InvalidValue(
            "clipping",
            type(value).__name__,
            "a rule of this library, whose bound is proved: " + ", ".join(_RULES),
        )
    if isinstance(value, str):
        return _RULES[_validate.one_of("clipping", value, tuple(_RULES))]()
    if not isinstance(value, Mapping):
        raise InvalidValue("clipping", value, "a clipping rule or one of " + ", ".join(_RULES))
    kind = value.get("kind")
    rule = _RULES.get(kind) if isinstance(kind, str) else None
    if rule is None:
        raise SchemaError(f"clipping: kind {kind!r}: expected one of " + ", ".join(_RULES))
    settings = {name: item for name, item in value.items() if name != "kind"}
    if set(settings) != {field.name for field in fields(rule)}:  # type: ignore[arg-type]
        raise SchemaError(f"clipping: the fields {sorted(settings)} are not those of {kind!r}")
    return rule(**settings)


def layers_of(names: Sequence[str]) -> list[list[str]]:
    """Parameter names by the module that owns them, in order.

    >>> layers_of(["0.weight", "0.bias", "2.weight", "scale"])
    [['0.weight', '0.bias'], ['2.weight'], ['scale']]
    """
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    return list(layers.values())


def _clip_weights(squared_norms: Tensor, bound: float, factor: float) -> Tensor:
    """``factor`` times min(1, bound / norm)."""
    bound *= factor * (1.0 - ROUNDING_MARGIN)
    weights = squared_norms.rsqrt().mul_(bound)
    return weights.clamp_(max=factor).nan_to_num_(nan=0.0)


@final
class ClipPath:
    """The clip norm in force and those before it, one for each step; released numbers each."""

    def __init__(self, plan: Plan) -> None:
        self.rule = plan.clipping if isinstance(plan.clipping, Quantile) else None
        self.norm = plan.clip_norm
        self.norms = [plan.clip_norm]
        self._plan = plan
        self._count = 0.0

    def begin_step(self) -> None:
        """Begin to count anew."""
        self._count = 0.0

    def count(self, squared_norms: Tensor) -> None:
        """Add the centred bits of examples to those of the step: private until noise is added."""
        if self.rule is not None:
            self._count += float(self.rule.centred_count(squared_norms, clip_norm=self.norm))

    def end_step(
        self, step: int, noise: NoiseSource, noise_share: float, team: Team | None
    ) -> None:
        """Move by the noisy count of step number ``step``, if there is a rule to move by.

        Each member of a team adds ``noise_share`` of the noise to its own count.
        """
        if self.rule is None:
            return
        count = self._count + noise.scalar(self.rule.count_stddev * noise_share)
        if team is not None:
            import torch  # not above: plans are read without it

            total = torch.tensor(count, dtype=torch.float64)
            team.sum_([total])
            count = float(total)
        self.norm = self.rule.next_clip_norm(
            count,
            clip_norm=self.norm,
            initial=self._plan.clip_norm,
            expected_batch_size=self._plan.phase_at(step).expected_batch_size,
        )
        self.norms.append(self.norm)

    def continue_with(self, norms: Sequence[float]) -> None:
        """Take up the path of an earlier run."""
        self.norms = list(norms)
        self.norm = self.norms[-1]
