"""The certificate: what a learner says about one run, and what is published about it later."""

from __future__ import annotations

import datetime as dt
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np

from discreet import __version__, _validate
from discreet._html import html_table
from discreet._json import canonical, digest_of, read_json
from discreet._rounding import at_most
from discreet.certificate._findings import (
    content_hash,
    guarantee_of,
    is_insecure,
    meaning_of,
    number,
    run_warnings,
    verdict_on,
    warnings_on,
)
from discreet.certificate._old_formats import as_version_2
from discreet.certificate._schema import (
    COVERS,
    SCHEMA,
    VERSION,
    require_valid,
    schema,
    schema_faults,
)
from discreet.errors import InvalidValue, RelationMismatch, SchemaError
from discreet.ledger import Charge
from discreet.mechanisms import Release
from discreet.privacy import Loss, from_json, to_json

CURATOR = "curator"
"""The learner of a certificate that a curator's desk filled for one answer."""

# Another version of the accountant may read the same loss a little differently.
_VERSIONS_AGREE = 1e-3
_FACTS = (
    *("learner", "loss", "epsilon", "delta", "relation", "unit", "covers", "plan", "run"),
    *("randomness", "versions", "assumptions", "model_digest"),
)
_COMMON = {"schema", "version", "receipt", "warnings", "hash", *_FACTS}


class _HasJson(Protocol):
    def to_json(self) -> dict[str, Any]: ...


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

        ``divided_by`` is a public number, so that a count can be stated as a share.
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
        return _dataset_of(self.receipt)

    def to_json(self, *, counted: bool) -> dict[str, Any]:
        """The answer as JSON; ``counted`` says whether the guarantee includes it."""
        return {
            "question": self.question,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "confidence": self.confidence,
            "loss": to_json(self.loss),
            "epsilon": number(self.loss.epsilon(delta=self.delta)),
            "delta": self.delta,
            "relation": self.loss.relation.value,
            "mechanism": self.mechanism,
            "randomness": dict(self.randomness),
            "counted_in_the_guarantee": counted,
            "receipt": None if self.receipt is None else dict(self.receipt),
        }


@final
@dataclass(frozen=True)
class Certificate:
    """The guarantee of one release: its facts, and its publication once it has one.

    ``epsilon`` is the accountant's upper bound at ``delta`` for ``loss``, under the relation of
    that loss, for one ``unit``; infinite where no finite number holds. It covers one fit or run
    (``discreet.certificate.COVERS``). ``plan`` holds public parameters only, ``run`` what became
    of it: steps taken, what was checked and what was not. ``model_digest`` is that of the arrays
    of the model, however they are packed. ``receipt`` is the entry of the ledger that was charged,
    or ``None``.

    ``publication`` is what :meth:`publish` added, as JSON: title, files, audits, answers,
    statements about the data, and what every accountant says. The warnings and the verdict are
    functions of all this, so that none can be left out.

    >>> from discreet.privacy import DiscreteLaplace
    >>> certificate = Certificate.of(2 * DiscreteLaplace(scale=4.0), delta=0.0, learner="example")
    >>> certificate.epsilon, certificate.relation
    (0.5, 'add_remove')
    >>> Certificate.from_json(certificate.to_json()) == certificate
    True
    """

    learner: str
    loss: Loss
    epsilon: float
    delta: float
    unit: str = "row"
    plan: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    randomness: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    model_digest: str | None = None
    receipt: Mapping[str, Any] | None = None
    publication: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        loss: Loss,
        *,
        delta: float,
        learner: str,
        unit: str | None = None,
        plan: Mapping[str, Any] | None = None,
        run: Mapping[str, Any] | None = None,
        randomness: Mapping[str, str] | None = None,
        versions: Mapping[str, str] | None = None,
        assumptions: Sequence[str] = (),
        model_digest: str | None = None,
        receipt: Mapping[str, Any] | None = None,
    ) -> Certificate:
        """Read ``loss`` at ``delta`` and write the certificate of it.

        The unit is that of the plan unless it is given. ``versions`` come on top of those of
        Discreet, numpy and Python.
        """
        if not isinstance(loss, Loss):
            raise InvalidValue("loss", loss, "a loss of discreet.privacy")
        _validate.real("delta", delta, at_least=0, below=1)
        stated = dict(plan or {})
        here = {
            "discreet": __version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        }
        certificate = cls(
            learner=learner,
            loss=loss,
            epsilon=_reading(loss, delta),
            delta=delta,
            unit=str(stated.get("unit", "row")) if unit is None else unit,
            plan=stated,
            run=dict(run or {}),
            randomness=dict(randomness or {}),
            versions={**here, **(versions or {})},
            assumptions=tuple(assumptions),
            model_digest=model_digest,
            receipt=receipt,
        )
        for name in ("learner", "unit"):
            _text(name, getattr(certificate, name))
        for name in ("plan", "run", "receipt"):
            _plain(name, getattr(certificate, name))
        return certificate

    def _repr_html_(self) -> str:
        rows: list[tuple[str, object]] = [
            ("epsilon, at most", at_most(self.epsilon, digits=6)),
            ("delta", at_most(self.delta, digits=6)),
            ("for one", self.unit),
            ("neighbours", self.relation),
            ("charged to a ledger", "no" if self.receipt is None else "yes"),
            ("published", "no" if self.publication is None else self.publication["title"]),
        ]
        rows += [("warning", text) for text in self.warnings]
        return html_table(f"certificate of {self.learner}", rows)

    # --- what follows from the fields --------------------------------------------------

    @property
    def relation(self) -> str:
        """The neighbouring relation that the guarantee speaks of."""
        return self.loss.relation.value

    @property
    def insecure(self) -> bool:
        """Whether the noise can be reproduced from a seed: then there is no privacy."""
        return is_insecure(self.randomness)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must not overlook, the most severe first."""
        return tuple(one["text"] for one in self.to_json()["warnings"])

    @property
    def plan_hash(self) -> str:
        """The SHA-256 of the plan."""
        return digest_of(self.plan)

    def check_covers(self, loss: Loss) -> None:
        """Raise unless what a plan costs is within what this certificate claims."""
        cost = _reading(loss, self.delta)
        # Published figures are read off the loss, which may not say less than epsilon does.
        claimed = min(self.epsilon, _reading(self.loss, self.delta))
        if loss.relation is not self.loss.relation or cost > claimed * (1.0 + _VERSIONS_AGREE):
            raise SchemaError(
                f"a certificate claims epsilon {claimed!r} under {self.relation}; its plan "
                f"costs {cost!r} under {loss.relation.value}"
            )

    def paid_by(self, charge: Charge | None) -> Certificate:
        """Return the certificate with its receipt, and have the ledger record what it is of.

        Called in the body of a charge, whose outcome then holds the digests of all facts and of
        the model. Nothing happens where no ledger was charged.
        """
        if charge is None:
            return self
        charge.record(self.describe_outcome())
        return replace(self, receipt=charge.receipt())

    def describe_outcome(self) -> dict[str, Any]:
        """What the outcome of a charge says of the release: learner, plan, model, all facts."""
        return {
            "learner": self.learner,
            "plan_hash": self.plan_hash,
            "model_digest": self.model_digest,
            "facts": facts_digest(self.to_json()),
        }

    # --- publishing --------------------------------------------------------------------

    def publish(
        self,
        *,
        title: str,
        files: Mapping[str, str] | None = None,
        audits: Sequence[_HasJson] = (),
        answers: Sequence[PaidAnswer] = (),
        collection: Collection | None = None,
        at: dt.datetime | None = None,
    ) -> Certificate:
        """Return the certificate for everybody, with what every accountant says.

        ``files`` are names relative to the certificate, with their SHA-256. ``at`` is when it is
        written, now unless given, to the second. There is no place for anything that was computed
        from private records outside of a mechanism.
        """
        _text("title", title)
        moment = dt.datetime.now(dt.UTC) if at is None else at
        if moment.tzinfo is None:
            raise InvalidValue("at", moment, "a moment with a time zone")
        if not all(type(one) is PaidAnswer for one in answers):
            kinds = [type(one).__name__ for one in answers]
            raise InvalidValue("answers", kinds, "answers that were paid for (PaidAnswer)")
        said = Collection() if collection is None else collection
        if type(said) is not Collection:
            raise InvalidValue("collection", collection, "a Collection")
        whole, here = self.loss, _dataset_of(self.receipt)
        for answer in answers:
            if answer.dataset != here:
                continue
            if answer.loss.relation != self.loss.relation:
                raise RelationMismatch(
                    f"the answer {answer.question!r} speaks of {answer.loss.relation.value}, the "
                    f"model of {self.loss.relation.value}: their losses do not add up"
                )
            whole = whole + answer.loss
        publication = {
            "title": title,
            "written": moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "written_by": f"discreet {__version__}",
            "files": dict(sorted((files or {}).items())),
            "audits": [_audit_json(one) for one in audits],
            "answers": [one.to_json(counted=one.dataset == here) for one in answers],
            "collection": said.to_json(),
            "guarantee": {"unit": self.unit, **guarantee_of(whole, self.delta)},
            "meaning": meaning_of(whole),
        }
        published = replace(self, publication=publication)
        require_valid(published.to_json())
        return published

    # --- JSON --------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The document, complete with warnings, verdict and hash."""
        body: dict[str, Any] = {
            "schema": SCHEMA,
            "version": VERSION,
            "learner": self.learner,
            "loss": to_json(self.loss),
            "epsilon": number(self.epsilon),
            "delta": self.delta,
            "relation": self.relation,
            "unit": self.unit,
            "covers": COVERS,
            "plan": dict(self.plan),
            "run": dict(self.run),
            "randomness": dict(self.randomness),
            "versions": dict(self.versions),
            "assumptions": list(self.assumptions),
            "model_digest": self.model_digest,
            "receipt": None if self.receipt is None else dict(self.receipt),
        }
        if self.publication is None:
            body["warnings"] = run_warnings(body)
        else:
            body |= self.publication
            body["warnings"], body["verdict"] = warnings_on(body), verdict_on(body)
        return {**body, "hash": content_hash(body)}

    @classmethod
    def from_json(cls, document: object) -> Certificate:
        """Read a certificate of this version or of 0.1; what does not fit together raises.

        What can be read off the document alone is checked: an epsilon below what its loss costs, a
        warning that is missing. Plan, files and ledger are for ``discreet certificate verify``.
        """
        body = read_json(document, "certificate") if isinstance(document, str) else document
        if not isinstance(body, Mapping):
            raise SchemaError("not a certificate: expected a JSON object")
        body = as_version_2(body)
        require_valid(body)
        try:
            read = cls(
                learner=body["learner"],
                loss=from_json(body["loss"]),
                epsilon=math.inf if body["epsilon"] is None else float(body["epsilon"]),
                delta=float(body["delta"]),
                unit=body["unit"],
                plan=body["plan"],
                run=body["run"],
                randomness=body["randomness"],
                versions=body["versions"],
                assumptions=tuple(body["assumptions"]),
                model_digest=body["model_digest"],
                receipt=body["receipt"],
                publication={
                    key: value
                    for key, value in body.items()
                    if key not in _COMMON and key != "verdict"
                }
                or None,
            )
            cost = _reading(read.loss, read.delta)
        except SchemaError:
            raise
        except Exception as error:  # noqa: BLE001 - a damaged loss can fail anywhere, in any way
            raise SchemaError(
                f"a certificate has a loss that cannot be read ({type(error).__name__})"
            ) from None
        if not read.epsilon >= cost * (1.0 - _VERSIONS_AGREE):
            raise SchemaError(
                f"a certificate claims epsilon {read.epsilon!r}; its loss is {cost!r}"
            )
        if read.plan.get("unit", read.unit) != read.unit:
            raise SchemaError("a certificate and its plan disagree about the unit")
        right = read.to_json()
        for name in ("relation", "covers", "warnings", "verdict"):
            if name in body and body[name] != right[name]:
                raise SchemaError(f"the {name} of a certificate contradicts its other fields")
        # An upper bound by either reading; the last digits may differ between machines.
        return read if cost <= read.epsilon * (1.0 + 1e-9) else replace(read, epsilon=cost)

    def __str__(self) -> str:
        epsilon, delta = (at_most(one, digits=6) for one in (self.epsilon, self.delta))
        cost = f"epsilon <= {epsilon} at delta = {delta}"
        lines = [f"{self.learner}: {cost} for one {self.unit} ({self.relation})"]
        lines += [f"{name.replace('_', ' ')}: {value}" for name, value in self.run.items()]
        return "\n".join(lines + [f"WARNING: {warning}" for warning in self.warnings])


def read_certificate(path: str | Path) -> Certificate:
    """Read ``certificate.json``, or that of a directory; what does not fit together raises."""
    place = Path(path)
    if place.is_dir():
        place = place / "certificate.json"
    try:
        text = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"{place.name}: cannot be read: {error}") from None
    return Certificate.from_json(text)


def facts_digest(document: Mapping[str, Any]) -> str:
    """The SHA-256 of all that is known when a run ends; the outcome of its charge records it."""
    return digest_of({name: document[name] for name in _FACTS})


def publication_digest(document: Mapping[str, Any]) -> str:
    """The SHA-256 of a published document without its title and the source of the data."""
    body = {key: value for key, value in document.items() if key not in {"hash", "title"}}
    body["collection"] = {k: v for k, v in body["collection"].items() if k != "source"}
    return digest_of(body)


def _audit_json(audit: _HasJson) -> dict[str, Any]:
    body = audit.to_json() if hasattr(audit, "to_json") else None
    wrong = schema_faults(body, {"$ref": "#/$defs/audit", "$defs": schema()["$defs"]})
    if not isinstance(body, dict) or wrong:
        raise InvalidValue("audits", type(audit).__name__, "outcomes of audits of training")
    return body


def _dataset_of(receipt: Mapping[str, Any] | None) -> str | None:
    entry = None if receipt is None else receipt.get("entry")
    return str(entry["dataset"]) if isinstance(entry, Mapping) and "dataset" in entry else None


def _text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(name, value, "a text that is not empty")


def _plain(name: str, value: object) -> None:
    try:
        canonical(value)
    except SchemaError:
        raise InvalidValue(name, type(value).__name__, "plain JSON values") from None


@lru_cache(maxsize=256)
def _reading(loss: Loss, delta: float) -> float:
    return loss.epsilon(delta=delta)
