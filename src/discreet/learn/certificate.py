"""What a fitted model says about its privacy: plan, loss, epsilon, relation, randomness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, final

from discreet import __version__
from discreet.errors import SchemaError
from discreet.privacy import Loss, from_json, to_json

__all__ = ["COVERS", "Certificate"]

_KIND = "discreet.learn.certificate"
_VERSION = 1
# Another version of the accountant may read the same loss a little differently.
_VERSIONS_AGREE = 1e-3
COVERS = (
    "one fit, on the data as they were passed to it; not what else was read off the same data: "
    "scaling or features that were fitted to them, parameters that were tried out on them, "
    "scores that were computed on them"
)
"""What a certificate speaks of, and what nobody but its owner can know."""


@final
@dataclass(frozen=True)
class Certificate:
    """The guarantee of one fitted model.

    ``epsilon`` is the accountant's upper bound at ``delta`` for ``loss``, under the relation of
    that loss, for one row or for one person with all rows, as ``plan`` says. It covers one fit
    (:data:`COVERS`), not what else was read off the same data. ``plan`` holds public parameters
    only; ``randomness`` says where the noise came from, and an insecure seed is marked there.
    ``receipt`` is the entry of the ledger that was charged, or None if none was.

    >>> from discreet.privacy import DiscreteLaplace
    >>> paper = Certificate.of(2 * DiscreteLaplace(scale=4.0), delta=0.0, learner="example")
    >>> paper.epsilon, paper.relation
    (0.5, 'add_remove')
    >>> Certificate.from_json(paper.to_json()) == paper
    True
    """

    learner: str
    loss: Loss
    epsilon: float
    delta: float
    plan: Mapping[str, Any] = field(default_factory=dict)
    randomness: Mapping[str, str] = field(default_factory=dict)
    receipt: Mapping[str, Any] | None = None
    version: str = __version__

    @classmethod
    def of(
        cls,
        loss: Loss,
        *,
        delta: float,
        learner: str,
        plan: Mapping[str, Any] | None = None,
        randomness: Mapping[str, str] | None = None,
        receipt: Mapping[str, Any] | None = None,
    ) -> Certificate:
        """Read ``loss`` at ``delta`` and write the certificate of it."""
        return cls(
            learner,
            loss,
            _reading(loss, delta),
            delta,
            dict(plan or {}),
            dict(randomness or {}),
            receipt,
        )

    @property
    def relation(self) -> str:
        """The neighbouring relation that the guarantee speaks of."""
        return self.loss.relation.value

    def check_covers(self, loss: Loss) -> None:
        """Raise unless what a plan costs is within what this certificate claims."""
        cost = _reading(loss, self.delta)
        if loss.relation is not self.loss.relation or cost > self.epsilon * (1.0 + _VERSIONS_AGREE):
            raise SchemaError(
                f"a certificate claims epsilon {self.epsilon!r} under {self.relation}; its plan "
                f"costs {cost!r} under {loss.relation.value}"
            )

    def to_json(self) -> dict[str, Any]:
        """The certificate as plain JSON values."""
        return {
            "kind": _KIND,
            "format": _VERSION,
            "learner": self.learner,
            "loss": to_json(self.loss),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": self.relation,
            "unit": str(self.plan.get("unit", "row")),
            "covers": COVERS,
            "plan": dict(self.plan),
            "randomness": dict(self.randomness),
            "receipt": None if self.receipt is None else dict(self.receipt),
            "version": self.version,
        }

    @classmethod
    def from_json(cls, data: object) -> Certificate:
        """Read a certificate back; an epsilon below what its loss costs is refused."""
        if not isinstance(data, Mapping) or data.get("kind") != _KIND:
            raise SchemaError(f"not a certificate of format {_VERSION}")
        if data.get("format") != _VERSION:
            raise SchemaError(f"not a certificate of format {_VERSION}: {data.get('format')!r}")
        try:
            _check_types(data)
            read = cls(
                data["learner"],
                from_json(data["loss"]),
                float(data["epsilon"]),
                float(data["delta"]),
                data["plan"],
                data["randomness"],
                data["receipt"],
                data["version"],
            )
            _check_words(data, read)
        except SchemaError:
            raise
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise SchemaError(f"a certificate lacks or mistypes a field: {error}") from None
        try:
            cost = _reading(read.loss, read.delta)
        except Exception as error:  # noqa: BLE001 - a damaged loss can fail anywhere, in any way
            raise SchemaError(
                f"a certificate has a loss that cannot be read ({type(error).__name__})"
            ) from None
        if not read.epsilon >= cost * (1.0 - _VERSIONS_AGREE):
            raise SchemaError(
                f"a certificate claims epsilon {read.epsilon!r}; its loss is {cost!r}"
            )
        # An upper bound by either reading.
        return replace(read, epsilon=max(read.epsilon, cost))


def _check_types(data: Mapping[str, Any]) -> None:
    """Raise unless the parts of a certificate are of the types that they are written in."""
    kinds = {"learner": str, "version": str, "plan": Mapping, "randomness": Mapping}
    for name, kind in kinds.items():
        if not isinstance(data[name], kind):
            raise TypeError(f"{name} is no {kind.__name__}")
    if not (data["receipt"] is None or isinstance(data["receipt"], Mapping)):
        raise TypeError("receipt is no Mapping")
    if not 0.0 <= float(data["delta"]) < 1.0:
        raise ValueError("delta is not between 0 and 1")


def _check_words(data: Mapping[str, Any], read: Certificate) -> None:
    """Raise where a certificate says in words what the rest of it does not say."""
    for name in ("relation", "unit", "covers"):
        if data[name] != read.to_json()[name]:
            raise SchemaError(f"a certificate says of its {name} what its other fields do not")


@lru_cache(maxsize=256)
def _reading(loss: Loss, delta: float) -> float:
    return loss.epsilon(delta=delta)
