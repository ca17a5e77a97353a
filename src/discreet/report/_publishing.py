"""What is written about a model: its certificate, the page of it, and the internal annex.

The certificate of a model is read from the directory that the model was saved in. Whatever does not
belong together is refused before anything is written about it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from discreet._files import new_directory, write_file
from discreet.audit import TrainingAudit, require_sound_audits
from discreet.certificate import (
    Certificate,
    Collection,
    is_of_0_1,
    publication_digest,
    read_certificate,
    schema,
    schema_faults,
)
from discreet.errors import FileUnusable, InvalidValue, SchemaError
from discreet.learn import load_model, plan_problems, saved_certificate, saved_digest
from discreet.ledger import Ledger
from discreet.report._annex import InternalFacts, annex_page, internal_annex
from discreet.report._certificate_page import certificate_page

_NOT_ONE = "a directory with a model and the certificate.json that its learner wrote"
_NOT_CHARGED = "none: no ledger was charged for this model"
# What learners write to be released.
RELEASED = (
    "certificate.json",
    "model.json",
    "model.npz",
    "model.safetensors",
    "schema.toml",
    "summary.png",
    "summary.txt",
)


def model_certificate(directory: str | Path) -> Certificate:
    """Read the certificate that a learner saved with its model, and compare the two.

    Parameters
    ----------
    directory
        Where a learner saved its model.

    Returns
    -------
    Certificate
        The one that belongs to it.

    Raises
    ------
    FileUnusable
        If there is no model with a certificate.
    SchemaError
        If the two do not belong together.
    """
    place = Path(directory)
    try:
        known = json.loads((place / "certificate.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        known = None
    if not isinstance(known, dict) or not {"schema", "kind"} & set(known):
        raise FileUnusable("model", str(directory), _NOT_ONE)
    certificate = read_certificate(place)
    for problem in disagreements(place, certificate, old=is_of_0_1(known)):
        raise SchemaError(problem)
    return certificate


def disagreements(place: Path, certificate: Certificate, *, old: bool) -> Iterator[str]:
    """How the files of a model do not fit to its certificate; learners of 0.1 wrote no digest."""
    digest = digest_on_disk(place)
    if old and certificate.model_digest is None and (place / "model.npz").exists():
        yield from _model_of_0_1(place)
    elif certificate.model_digest is None:
        yield "certificate.json names no model; save it together with the model"
    elif digest is not None and digest != certificate.model_digest:
        yield "the model is not the one that its certificate was written for"
    if (place / "model.npz").exists():
        inner = saved_certificate(place / "model.npz")
        if inner is not None:
            yield from _differences(Certificate.from_json(inner), certificate)
    if (place / "schema.toml").exists():
        from discreet.data import Schema

        text = (place / "schema.toml").read_text(encoding="utf-8")
        if certificate.plan.get("schema_hash") not in (None, Schema.from_toml(text).content_hash):
            yield "schema.toml is not the schema that the model was made with"
    yield from plan_problems(certificate)


def digest_on_disk(place: Path) -> str | None:
    """The digest of the model in a directory, or None if there is none."""
    names = [name for name in ("model.npz", "model.safetensors") if (place / name).exists()]
    return saved_digest(place / names[0]) if names else None


def _model_of_0_1(place: Path) -> Iterator[str]:
    """A model without a digest is loaded, which compares its parts."""
    if (place / "model.json").exists():
        load_model(place)
    yield from ()


def _differences(inside: Certificate, beside: Certificate) -> Iterator[str]:
    """A certificate that is not that of the model; how its unit is called may differ."""
    for name in ("learner", "loss", "delta", "run", "randomness", "receipt", "versions"):
        if getattr(inside, name) != getattr(beside, name):
            yield f"certificate.json and the certificate inside model.npz disagree about {name}"


def model_files(directory: str | Path) -> list[str]:
    """Return the files that learners write to be released, and no others.

    A directory in which a run was checkpointed, or in which somebody keeps records, holds files
    that was not paid for.

    Parameters
    ----------
    directory
        Where a learner saved its model.

    Returns
    -------
    list of str
        Names.
    """
    place = Path(directory)
    return [name for name in RELEASED if (place / name).is_file()]


def read_audit(path: str | Path) -> TrainingAudit:
    """Read the outcome of an audit that was written with ``json.dumps(audit.to_json())``.

    Parameters
    ----------
    path
        A file.

    Returns
    -------
    TrainingAudit
        What it says.

    Raises
    ------
    InvalidValue
        If it is not the outcome of an audit.
    """
    try:
        body = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidValue("audit", str(path), f"a readable file ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise FileUnusable("audit", str(path), "the outcome of an audit in JSON") from None
    whole = schema()
    wrong = schema_faults(body, {"$ref": "#/$defs/audit", "$defs": whole["$defs"]})
    if wrong:
        raise InvalidValue("audit", str(path), f"the outcome of an audit of training ({wrong[0]})")
    fields = {key: value for key, value in body.items() if key not in {"schema", "version"}}
    fields["assumptions"] = tuple(fields["assumptions"])
    return TrainingAudit(**fields)


# --- writing -------------------------------------------------------------------------------


def write_certificate(
    directory: str | Path, certificate: Certificate, *, ledger: Ledger | None = None
) -> tuple[Path, Path]:
    """Write a published certificate into ``public/``, as JSON and as a page.

    With the ledger that was charged, the publication is recorded there: a certificate that is
    changed later, however little, is then found out.

    Parameters
    ----------
    directory
        Where ``public/`` is made.
    certificate
        A published one.
    ledger
        The one that was charged.

    Returns
    -------
    tuple of two Path
        The document and its page.

    Raises
    ------
    InvalidValue
        If audits are unsound, or no ledger was charged and one is given.
    """
    document = certificate.to_json()
    page = certificate_page(document)
    require_sound_audits(document)
    if ledger is not None and certificate.receipt is None:
        raise InvalidValue("ledger", repr(ledger), _NOT_CHARGED)
    place = _make_directory(Path(directory) / "public")
    written = write_json(place / "certificate.json", document)
    drawn = page.write(place / "certificate.html")
    if ledger is not None and certificate.receipt is not None:
        ledger.record_publication(certificate.receipt, publication_digest(document))
    return written, drawn


def certify_model(
    model: str | Path,
    out: str | Path,
    *,
    title: str | None = None,
    audits: Iterable[TrainingAudit] = (),
    collection: Collection | None = None,
    attack: Callable[[], InternalFacts] | None = None,
    ledger: str | Path | None = None,
) -> Certificate:
    """Publish the certificate of a model, with the files that may be released.

    Parameters
    ----------
    model
        Where a learner saved its model.
    out
        A new directory: ``public/`` is made in it, and ``internal/`` if there is an attack.
    title
        What is certified; the name of the directory if None.
    audits
        What audits of the training found.
    collection
        Where the data come from and who can reach them.
    attack
        Attacks the model; what it returns goes to ``internal/``.
    ledger
        Where the ledger is that was charged; it records the publication.

    Returns
    -------
    Certificate
        The published one.

    Raises
    ------
    FileUnusable
        If there is no model with a certificate.
    InvalidValue
        If no ledger was charged and one is given, audits are unsound or ``out`` exists.
    SchemaError
        If model and certificate do not belong together.
    """
    place = Path(model)
    if not place.is_dir():
        raise FileUnusable("model", str(model), "a directory")
    found = model_certificate(place)
    if ledger is not None and found.receipt is None:
        raise InvalidValue("ledger", str(ledger), _NOT_CHARGED)
    names = model_files(place)
    published = found.publish(
        title=place.resolve().name if title is None else title,
        files={f"model/{name}": digest for name, digest in file_hashes(place, names).items()},
        audits=list(audits),
        collection=collection or Collection(),
    )
    with new_directory(out) as draft:
        if attack is not None:
            write_annex(draft, attack(), published.to_json())
        (draft / "public" / "model").mkdir(parents=True)
        for name in names:
            shutil.copyfile(place / name, draft / "public" / "model" / name)
        with nullcontext() if ledger is None else Ledger.open(ledger) as book:
            write_certificate(draft, published, ledger=book)
    return published


def write_annex(
    directory: str | Path, facts: InternalFacts, certificate: Mapping[str, Any]
) -> tuple[Path, Path]:
    """Write what must not be published into ``internal/``, which its owner alone may read.

    Parameters
    ----------
    directory
        Where ``internal/`` is made.
    facts
        What stays in the house.
    certificate
        The public document.

    Returns
    -------
    tuple of two Path
        The document and its page.

    Raises
    ------
    SchemaError
        If the certificate is not one.
    """
    place = _make_directory(Path(directory) / "internal", mode=0o700)
    document = internal_annex(facts, certificate)
    page = annex_page(facts, certificate)
    return write_json(place / "annex.json", document), page.write(place / "annex.html")


def _make_directory(place: Path, *, mode: int = 0o777) -> Path:
    place.mkdir(mode=mode, parents=True, exist_ok=True)
    return place


def file_hashes(directory: str | Path, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of files, by names relative to the directory of the certificate.

    Parameters
    ----------
    directory, names
        Files, by their names in a directory.

    Returns
    -------
    dict
        Their SHA-256.

    Raises
    ------
    InvalidValue
        If one cannot be read.
    """
    place = Path(directory)
    found = {}
    for name in names:
        try:
            found[name] = hashlib.sha256((place / name).read_bytes()).hexdigest()
        except OSError as error:
            raise InvalidValue("files", name, f"a readable file ({error.strerror})") from None
    return found


def write_json(target: Path, document: Mapping[str, Any]) -> Path:
    """Write a document; it is complete under its name or not there."""
    return write_file(target, json.dumps(document, indent=2, allow_nan=False) + "\n")
