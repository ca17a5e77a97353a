"""Facts that were computed from private records outside of any mechanism.

How well attacks do on real members, how good the model is on its training data, the twin without
privacy, who is most exposed: each of them is a function of private records that no noise covers.
Whoever answers for the data should know them; publishing them undoes what was paid for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from discreet import _validate
from discreet._confidence import Proportion
from discreet.attacks import MembershipResult
from discreet.errors import InvalidValue

__all__ = ["Attacked", "InternalFacts", "Utility"]


@final
@dataclass(frozen=True, kw_only=True)
class Utility:
    """How often a model is right, on which records."""

    model: str
    records: str
    accuracy: Proportion

    def to_json(self) -> dict[str, Any]:
        """The figure with its interval."""
        return {"model": self.model, "records": self.records, "accuracy": self.accuracy.to_json()}


@final
@dataclass(frozen=True)
class Attacked:
    """The attacks on one model; ``private`` is whether it is the one that is certified."""

    model: str
    private: bool
    results: tuple[MembershipResult, ...]

    def __post_init__(self) -> None:
        if not self.results or not all(type(one) is MembershipResult for one in self.results):
            raise InvalidValue("results", self.results, "one or more membership results")


@final
@dataclass(frozen=True, kw_only=True)
class InternalFacts:
    """Everything that the internal annex of a certificate shows."""

    attacked: tuple[Attacked, ...] = ()
    utility: tuple[Utility, ...] = ()
    exposed: int = 10
    confidence: float = 0.95
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _validate.integer("exposed", self.exposed, at_least=0)
        _validate.real("confidence", self.confidence, above=0, below=1)
        if not all(type(one) is Attacked for one in self.attacked):
            raise InvalidValue("attacked", self.attacked, "a tuple of Attacked")
        if not all(type(one) is Utility for one in self.utility):
            raise InvalidValue("utility", self.utility, "a tuple of Utility")
        if not self.attacked and not self.utility:
            raise InvalidValue("attacked", self.attacked, "something to report")
