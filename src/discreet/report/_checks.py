"""One question about a certificate and its answer; the questions about local collections."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

from discreet._json import read_json
from discreet.certificate import Certificate, run_warnings
from discreet.errors import DiscreetError
from discreet.privacy import from_json

UNREADABLE = (DiscreetError, ArithmeticError, KeyError, TypeError, ValueError)


@final
@dataclass(frozen=True)
class Check:
    """One question about a certificate: ``ok`` is ``None`` if it could not be asked here."""

    what: str
    ok: bool | None
    detail: str = ""


def run_check(what: str, faults: Callable[[], Iterator[str]]) -> Check:
    """Ask one question; what cannot even be read is a fault as well."""
    try:
        found = list(faults())
    except ImportError as error:
        return Check(what, None, f"{error.name} is not installed here")
    except UNREADABLE as error:
        found = [f"cannot be read: {error}"]
    return Check(what, not found, "; ".join(found))


def facts_alone(document: Mapping[str, Any]) -> Certificate:
    """Return the certificate that a learner wrote, without what was published beside it."""
    names = set(Certificate.__dataclass_fields__) | {
        "schema",
        "version",
        "relation",
        "covers",
        "hash",
    }
    facts = {key: value for key, value in document.items() if key in names}
    return Certificate.from_json({**facts, "warnings": run_warnings(facts)})


def is_local(document: Mapping[str, Any]) -> bool:
    """Whether it is of a local collection, which has no model and charges no ledger."""
    parts = (document["receipt"], document["model_digest"], document.get("answers") or None)
    return document["learner"].startswith("local ") and parts == (None, None, None)


def check_collection(document: Mapping[str, Any], here: Path) -> list[Check]:
    """Compute the loss of a local collection from its plan, and count its reports again."""
    checks = [run_check("the loss is that of the plan", partial(_local_loss, document))]
    what, contents = "the counts are those of the reports", {}
    for key in ("plan", "reports"):
        named = document["run"].get(key)
        name = named.get("file") if isinstance(named, Mapping) else None
        if not isinstance(name, str):
            return [*checks, Check(what, None, f"it names no file with the {key}")]
        path = here / Path(name).name
        if not path.is_file():
            return [*checks, Check(what, None, f"{Path(name).name} is not beside it")]
        contents[key] = path.read_bytes()
    return [*checks, run_check(what, partial(_recount, document, contents))]


def _local_loss(document: Mapping[str, Any]) -> Iterator[str]:
    from discreet.local import certified_loss

    right = certified_loss(facts_alone(document))
    if from_json(document["loss"]) != right:
        yield f"the plan costs {right!r}"
    if document["unit"] != "person":
        yield "a local report is of one person"


def _recount(document: Mapping[str, Any], contents: Mapping[str, bytes]) -> Iterator[str]:
    from discreet import local

    run = document["run"]
    for key, content in contents.items():
        if hashlib.sha256(content).hexdigest() != run[key]["sha256"]:
            yield f"the {key} is another file than the one that was counted"
    oracle = local.read_plan(read_json(contents["plan"], "the plan"))
    if document["plan"] != {**oracle.description, "values": oracle.domain.size}:
        yield "the plan is another one"
    server, reports, size = oracle.server(), contents["reports"], oracle.report_bytes
    server.aggregate(reports[at : at + size] for at in range(0, len(reports), size))
    if (server.accepted, dict(server.rejected)) != (run["accepted"], run["rejected"]):
        yield f"{server.accepted} reports are counted, and {dict(server.rejected)} rejected"
