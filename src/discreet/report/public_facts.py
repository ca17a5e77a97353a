"""The facts that a certificate may publish, and no others.

A :class:`PublicFacts` holds what is known without looking at private records, or what a mechanism
has paid for: the plan, the accountant's loss, versions, where randomness came from, entries of a
ledger, audits with canaries, noisy answers. There is no field for anything else, and nothing here
imports the attacks or the internal facts: what is built from it cannot show what it cannot see.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, final

from discreet import _validate
from discreet.audit.verdicts import TrainingAudit
from discreet.errors import InvalidValue, RelationMismatch
from discreet.mechanisms import Release
from discreet.privacy import Loss

__all__ = ["Collection", "PaidAnswer", "PublicFacts"]


@final
@dataclass(frozen=True, kw_only=True)
class Collection:
    """What the keeper of the data says about them; ``None`` is "not stated".

    The lowest layer of NIST's pyramid (SP 800-226): no mechanism protects data that leak before
    it, or that nobody was allowed to collect. Discreet cannot check a word of it.
    """

    source: str | None = None
    lawful_basis: str | None = None
    kept_until: str | None = None
    access: str | None = None
    side_channels: str | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise InvalidValue(one.name, value, "a sentence, or None for not stated")

    def to_json(self) -> dict[str, str | None]:
        """The statements by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@final
@dataclass(frozen=True, kw_only=True)
class PaidAnswer:
    """A noisy answer beside the model: its value, its loss, and the entry that paid for it."""

    question: str
    value: float
    low: float | None
    high: float | None
    confidence: float
    loss: Loss
    delta: float
    mechanism: str
    randomness: Mapping[str, str]
    receipt: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        release: Release[Any],
        *,
        question: str,
        delta: float = 0.0,
        divided_by: float = 1.0,
        confidence: float = 0.95,
        receipt: Mapping[str, Any] | None = None,
    ) -> PaidAnswer:
        """An answer from a :class:`~discreet.mechanisms.Release`, whose provenance names the noise.

        ``divided_by`` is a public number, so that a count can be told as a share.
        """
        if not isinstance(release, Release):
            raise InvalidValue("release", release, "a Release of discreet.mechanisms")
        share = _validate.real("divided_by", divided_by, above=0)
        interval = release.interval(confidence=confidence)
        texts = {str(key): str(value) for key, value in release.provenance.items()}
        return cls(
            question=question,
            value=float(release.value) / share,
            low=float(interval.lower) / share,
            high=float(interval.upper) / share,
            confidence=confidence,
            loss=release.loss,
            delta=delta,
            mechanism=texts.pop("mechanism", "a mechanism"),
            randomness=texts,
            receipt=receipt,
        )

    @property
    def dataset(self) -> str | None:
        """The dataset of the ledger that was charged."""
        return dataset_of(self.receipt)


@final
@dataclass(frozen=True, kw_only=True)
class PublicFacts:
    """Everything that the public part of a certificate is made of.

    ``loss`` is that of the model alone; :attr:`whole` adds the answers about the same data.
    ``plan`` holds public parameters only, as the certificates of the learners do. ``files`` are
    names relative to the certificate with their SHA-256. ``isolation`` says whether it was
    checked that examples do not influence one another, where that is a question.
    """

    title: str
    learner: str
    loss: Loss
    delta: float
    unit: str
    covers: str
    plan: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    model_digest: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    randomness: Mapping[str, str] = field(default_factory=dict)
    isolation: str | None = None
    assumptions: tuple[str, ...] = ()
    method_warnings: tuple[str, ...] = ()
    receipt: Mapping[str, Any] | None = None
    audits: tuple[TrainingAudit, ...] = ()
    answers: tuple[PaidAnswer, ...] = ()
    collection: Collection = field(default_factory=Collection)

    def __post_init__(self) -> None:
        for name in ("title", "learner", "unit", "covers"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise InvalidValue(name, value, "a text that is not empty")
        if not isinstance(self.loss, Loss):
            raise InvalidValue("loss", self.loss, "a loss of discreet.privacy")
        _validate.real("delta", self.delta, at_least=0, below=1)
        _all("audits", self.audits, TrainingAudit)
        _all("answers", self.answers, PaidAnswer)
        _all("assumptions", self.assumptions, str)
        _all("method_warnings", self.method_warnings, str)
        if type(self.collection) is not Collection:
            raise InvalidValue("collection", self.collection, "a Collection")
        for name in ("files", "versions", "randomness"):
            table = getattr(self, name)
            if not all(isinstance(text, str) for pair in table.items() for text in pair):
                raise InvalidValue(name, table, "a table of texts")
        for name in ("plan", "receipt"):
            _plain(name, getattr(self, name))
        for answer in self.answers:
            if answer.dataset == self.dataset and answer.loss.relation != self.loss.relation:
                raise RelationMismatch(
                    f"the answer {answer.question!r} speaks of {answer.loss.relation.value}, the "
                    f"model of {self.loss.relation.value}: their losses do not add up"
                )

    @property
    def dataset(self) -> str | None:
        """The dataset of the ledger that was charged for the model."""
        return dataset_of(self.receipt)

    @property
    def same_data(self) -> tuple[PaidAnswer, ...]:
        """The answers about the data that the model was trained on."""
        return tuple(one for one in self.answers if one.dataset == self.dataset)

    @property
    def whole(self) -> Loss:
        """What the model and the answers about the same data cost together."""
        total = self.loss
        for answer in self.same_data:
            total = total + answer.loss
        return total


def dataset_of(receipt: Mapping[str, Any] | None) -> str | None:
    """The dataset that a receipt is about."""
    entry = None if receipt is None else receipt.get("entry")
    return str(entry["dataset"]) if isinstance(entry, Mapping) and "dataset" in entry else None


def _all(name: str, values: object, kind: type) -> None:
    if not isinstance(values, tuple) or not all(type(value) is kind for value in values):
        shown = [type(value).__name__ for value in values] if isinstance(values, tuple) else values
        raise InvalidValue(name, shown, f"a tuple of {kind.__name__}")


def _plain(name: str, value: object) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise InvalidValue(name, type(value).__name__, "plain JSON values") from None
