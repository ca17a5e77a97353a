"""Checking a certificate: everything that it says is computed again from what it rests on.

A certificate that passes is one that this version of the package could have written about the
loss, the audits and the entries that it names. Whether the training followed the plan is not in the
document: that is what audits are for.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from discreet import __version__
from discreet.errors import DiscreetError, InvalidValue, SchemaError
from discreet.learn.charging import ROWS, check_unit
from discreet.ledger import check_receipt
from discreet.privacy import Loss, from_json, to_json
from discreet.privacy.loss import compose
from discreet.report.audit_check import audit_faults
from discreet.report.certificate import (
    content_hash,
    guarantee_of,
    meaning_of,
    released_of,
    require_valid,
)
from discreet.report.certificate_warnings import verdict_on, warnings_on
from discreet.report.page import EMBEDDED

if TYPE_CHECKING:
    from discreet.ledger import Ledger

__all__ = ["Check", "read_certificate", "verify_certificate"]

# Another version of the accountant may read the same loss a little differently.
_VERSIONS_AGREE = 1e-3
_HERE = f"discreet {__version__}"


@final
@dataclass(frozen=True)
class Check:
    """One question about a certificate: ``ok`` is ``None`` if it could not be asked here."""

    what: str
    ok: bool | None
    detail: str = ""


def verify_certificate(path: str | Path, *, ledger: Ledger | None = None) -> list[Check]:
    """Check a certificate, its annex or its page; read-only.

    The file is the JSON of either part, or the page of the public part. With ``ledger`` the entries
    that the certificate names must be on its chains.
    """
    place = Path(path)
    text = _text(place)
    document = read_certificate(place)
    part = document.get("part")
    checks = [_tried("it follows the schema", lambda: _schema(document))]
    if checks[0].ok is False:
        return checks
    checks.append(_tried("the content has its hash", lambda: _hash(document)))
    if part == "internal":
        checks.append(_beside(document, place.parent))
        return checks
    checks += [
        _tried("the losses add up to the guarantee", lambda: _losses(document)),
        _tried("every accountant says so", lambda: _guarantee(document)),
        _tried("the meaning follows from the loss", lambda: _meaning(document)),
        _tried("the audits say what their counts say", lambda: audit_faults(document)),
        _tried("no warning was left out", lambda: _warnings(document)),
    ]
    made = document["released"]
    if made["learner"] == "DP-SGD" or "plan_hash" in made["plan"]:
        checks.append(_with_torch("the loss is that of the plan", lambda: _plan(document)))
    checks += _receipts(document, ledger)
    checks += _files(document, place.parent)
    checks += _own_paper(document, place.parent)
    if place.suffix.lower() in {".html", ".htm"}:
        checks.append(_page(document, text))
    return checks


def read_certificate(path: str | Path) -> dict[str, Any]:
    """Read the JSON of a certificate from its own file or from inside its page."""
    place = Path(path)
    text = _text(place)
    if place.suffix.lower() in {".html", ".htm"}:
        mark = re.escape(f'<script type="application/json" id="{EMBEDDED}">')
        found = re.findall(f"{mark}(.*?)</script>", text, flags=re.DOTALL)
        if len(found) != 1:
            raise InvalidValue("path", str(path), "a page with one certificate inside")
        text = found[0]
    try:
        document = json.loads(
            text, object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_finite
        )
    except (ValueError, RecursionError) as error:
        raise InvalidValue("path", str(path), f"a certificate in JSON ({error})") from None
    if not isinstance(document, dict):
        raise InvalidValue("path", str(path), "a certificate: a JSON object")
    return document


def _text(place: Path) -> str:
    try:
        return place.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidValue("path", str(place), f"a readable file ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InvalidValue("path", str(place), "a text file in UTF-8") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a field is there twice")
    return dict(pairs)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is beyond floating point")
    return number


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _tried(what: str, faults: Callable[[], Iterator[str]]) -> Check:
    """Ask one question; what cannot even be read is a fault as well."""
    try:
        found = list(faults())
    except (DiscreetError, ArithmeticError, KeyError, TypeError, ValueError) as error:
        found = [f"cannot be read: {error}"]
    return Check(what, not found, "; ".join(found))


def _schema(document: Mapping[str, Any]) -> Iterator[str]:
    part = document.get("part")
    if part not in {"public", "internal"}:
        yield f"part is {part!r}, not public or internal"
        return
    try:
        require_valid(document, part=str(part))
    except SchemaError as error:
        yield str(error)


def _hash(document: Mapping[str, Any]) -> Iterator[str]:
    if content_hash(document) != document["hash"]:
        yield "the content was changed after the certificate was written"


def _losses(document: Mapping[str, Any]) -> Iterator[str]:
    parts = [from_json(document["released"]["loss"])]
    for one in document["answers"]:
        loss = from_json(one["loss"])
        paid_by = _dataset(one["receipt"])
        together = paid_by == _dataset(document["released"]["receipt"])
        if one["counted_in_the_guarantee"] != together:
            yield f"the answer to {one['question']!r} is counted for the wrong data"
        if together:
            parts.append(loss)
        yield from _below(one["epsilon"], loss.epsilon(delta=one["delta"]), "an answer's epsilon")
    whole: Loss = parts[0] if len(parts) == 1 else compose((part, 1) for part in parts)
    if whole != from_json(document["guarantee"]["loss"]):
        yield "the loss of the guarantee is not that of the model and its answers"


def _dataset(receipt: Mapping[str, Any] | None) -> str | None:
    return None if receipt is None else str(receipt["entry"].get("dataset"))


def _guarantee(document: Mapping[str, Any]) -> Iterator[str]:
    said = document["guarantee"]
    right = guarantee_of(from_json(said["loss"]), said["delta"])
    yield from _below(said["epsilon"], right["epsilon"], "epsilon")
    lower, epsilon = said["epsilon_lower"], said["epsilon"]
    if lower is not None and epsilon is not None and lower > epsilon:
        yield "epsilon_lower is above epsilon"
    if lower is not None and lower > (right["epsilon_lower"] or 0.0) * (1.0 + _VERSIONS_AGREE):
        yield f"epsilon_lower is stated as {lower:g} and is {right['epsilon_lower']}"
    if document["written_by"] == _HERE and not _alike(
        {**said, "unit": None}, {**json.loads(json.dumps(right)), "unit": None}
    ):
        yield "the numbers are not those that this version writes"
    for name in ("relation", "description"):
        if said[name] != right[name]:
            yield f"{name} is not that of the loss"
    if set(said["accountants"]) != set(right["accountants"]):
        yield "the accountants are not all there"
    for name, value in right["accountants"].items():
        yield from _below(said["accountants"].get(name), value, f"the accountant {name}")
    for one, theirs in zip(right["groups"], said["groups"], strict=True):
        if one["size"] != theirs["size"]:
            yield "the sizes of groups are not those that are usual"
        yield from _below(theirs["epsilon"], one["epsilon"], f"groups of {one['size']}")


def _below(said: object, right: object, what: str) -> Iterator[str]:
    """Refuse a bound that is lower than what it should be; ``None`` is no bound at all."""
    if said is None or isinstance(said, str):
        return
    ours = right if isinstance(right, int | float) else None
    claimed = float(said) if isinstance(said, int | float) else 0.0
    if ours is None or claimed < float(ours) * (1.0 - _VERSIONS_AGREE):
        yield f"{what} is stated as {claimed:g} and is {right}"


def _meaning(document: Mapping[str, Any]) -> Iterator[str]:
    said = document["meaning"]
    right = meaning_of(from_json(document["guarantee"]["loss"]))
    if not _alike(said, right):
        yield "beliefs or rates are not those of the loss"


def _alike(said: object, right: object) -> bool:
    if isinstance(said, bool) or isinstance(right, bool):
        return said is right
    if isinstance(said, int | float) and isinstance(right, int | float):
        return abs(said - right) <= _VERSIONS_AGREE * max(abs(said), abs(right), 1e-9)
    if isinstance(said, dict) and isinstance(right, dict):
        return set(said) == set(right) and all(_alike(said[key], right[key]) for key in said)
    if isinstance(said, list) and isinstance(right, list):
        return len(said) == len(right) and all(map(_alike, said, right))
    return said == right


def _warnings(document: Mapping[str, Any]) -> Iterator[str]:
    if document["warnings"] != warnings_on(document):
        yield "the warnings are not those that the facts call for"
    if document["verdict"] != verdict_on(document):
        yield "the verdict is not the one that the facts call for"


def _receipts(document: Mapping[str, Any], ledger: Ledger | None) -> list[Check]:
    parts = [("the model", document["released"])]
    parts += [(repr(one["question"]), one) for one in document["answers"]]
    checks = []
    delta = document["guarantee"]["delta"]
    for what, part in parts:
        receipt, slack = part["receipt"], part.get("delta", delta)
        if receipt is None:
            checks.append(Check(f"{what}: charged to a ledger", None, "no ledger was charged"))
            continue
        asked = partial(_covers, receipt, part, slack)
        checks.append(_tried(f"{what}: the entry covers it", asked))
    paid = [part["receipt"] for _, part in parts if part["receipt"] is not None]
    if not paid:
        return checks
    if len(paid) > 1:
        # Charged once and released twice is charged too little.
        shared = partial(_paid_once, [part for _, part in parts], delta)
        checks.append(_tried("no entry pays for two releases", shared))
    if ledger is None:
        checks.append(Check("the entries are on the chain", None, "no ledger was given"))
        return checks
    checks.append(_tried("the entries are on the chain", partial(_on_chain, ledger, paid)))
    if document["released"]["receipt"] is not None:
        same = partial(_same_as_ledger, document, ledger)
        checks.append(_tried("the ledger speaks of the same unit and model", same))
    return checks


def _paid_once(parts: Sequence[Mapping[str, Any]], delta: float) -> Iterator[str]:
    by_entry: dict[str, list[Mapping[str, Any]]] = {}
    for part in parts:
        if part["receipt"] is not None:
            by_entry.setdefault(part["receipt"]["hash"], []).append(part)
    for hash_, together in by_entry.items():
        if len(together) > 1:
            total = compose((from_json(part["loss"]), 1) for part in together)
            whole = {"loss": to_json(total)}
            for problem in _covers(together[0]["receipt"], whole, delta):
                yield f"{len(together)} releases name the entry {hash_[:16]}: {problem}"


def _same_as_ledger(document: Mapping[str, Any], ledger: Ledger) -> Iterator[str]:
    """The unit of the budget, and the model that the charge was recorded to be for, if it was."""
    made = document["released"]
    entry = made["receipt"]["entry"]
    unit = document["guarantee"]["unit"]
    try:
        # Whoever promises something about one row only promises less than any budget.
        if unit.lower() not in ROWS:
            check_unit(ledger, entry["dataset"], unit)
    except InvalidValue as error:
        yield f"the ledger speaks of another: expected {error.expected}"
    for link in ledger.export(entry["dataset"])["chain"]:
        later = link["entry"]
        if later["kind"] == "outcome" and later["content"]["charge"] == entry["seq"]:
            result = later["content"]["result"]
            model = result.get("model_digest") if isinstance(result, dict) else None
            if model is not None and model != made["model_digest"]:
                yield "the charge was for another model"


def _on_chain(ledger: Ledger, receipts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for problem in ledger.verify(receipts=receipts).problems:
        yield str(problem)


def _covers(receipt: Mapping[str, Any], part: Mapping[str, Any], delta: float) -> Iterator[str]:
    for problem in check_receipt(receipt):
        yield str(problem)
    entry = receipt["entry"]
    if entry.get("kind") != "charge":
        yield f"the entry is of kind {entry.get('kind')!r}, not a charge"
        return
    charged, released = from_json(entry["content"]["loss"]), from_json(part["loss"])
    if charged == released:
        return
    if charged.relation != released.relation:
        yield "the entry speaks of other neighbours than the certificate"
    elif charged.epsilon(delta=delta) < released.epsilon(delta=delta) * (1.0 - _VERSIONS_AGREE):
        yield "the entry charged less than the certificate releases"


def _files(document: Mapping[str, Any], directory: Path) -> list[Check]:
    checks = []
    for name, digest in document["released"]["files"].items():
        what = f"the file {name}"
        relative = Path(name)
        if relative.is_absolute() or ".." in relative.parts:
            checks.append(Check(what, False, "is not beside the certificate"))
            continue
        try:
            file = (directory / relative).resolve()
            beside = file.is_relative_to(directory.resolve())
            content = file.read_bytes() if beside and file.is_file() else None
        except (OSError, RuntimeError):
            content = None
        except ValueError:
            checks.append(Check(what, False, "has a name that no file can have"))
            continue
        if content is None:
            checks.append(Check(what, None, "is not here"))
            continue
        same = hashlib.sha256(content).hexdigest() == digest
        checks.append(Check(what, same, "" if same else "is not the one that was certified"))
    return checks


def _own_paper(document: Mapping[str, Any], directory: Path) -> list[Check]:
    """Hold the certificate against the one that the learner wrote, if it lies beside."""
    papers = [name for name in document["released"]["files"] if name.endswith("/certificate.json")]
    if len(papers) != 1 or not (directory / papers[0]).is_file():
        return []
    what = "the learner's own certificate says the same"
    return [_with_torch(what, partial(_same_as_learner, document, directory / papers[0]))]


def _with_torch(what: str, faults: Callable[[], Iterator[str]]) -> Check:
    """Ask a question that needs what made the model, if that is here."""
    try:
        return _tried(what, faults)
    except ImportError as error:
        return Check(what, None, f"{error.name} is not installed here")


def _same_as_learner(document: Mapping[str, Any], paper: Path) -> Iterator[str]:
    from discreet.report.model_facts import facts_of_directory

    facts = facts_of_directory(paper.parent, title="model", files_under=paper.parent.name)
    right = json.loads(json.dumps(released_of(facts)))
    for name, value in right.items():
        if document["released"][name] != value:
            yield f"{name} is not what the learner wrote"
    if document["guarantee"]["unit"] != facts.unit:
        yield f"the learner protects one {facts.unit}, not one {document['guarantee']['unit']}"


def _plan(document: Mapping[str, Any]) -> Iterator[str]:
    """Read the plan of DP-SGD again, which decides the loss."""
    from discreet.learn.dpsgd.plan import Plan, loss_of_all

    body = dict(document["released"]["plan"])
    stated, taken = body.pop("plan_hash"), body.pop("steps_taken")
    earlier = [Plan.from_json(one) for one in body.pop("earlier_plans", [])]
    plan = Plan.from_json({"schema": "discreet.dpsgd.plan", "version": 1, **body})
    if plan.content_hash != stated:
        yield "the plan does not have its hash"
    if loss_of_all([*earlier, plan]) != from_json(document["released"]["loss"]):
        yield "the loss is not that of the plan, or not that of all plans together"
    if plan.unit != document["guarantee"]["unit"]:
        yield f"the plan protects one {plan.unit}, not one {document['guarantee']['unit']}"
    if type(taken) is not int or not 0 <= taken <= plan.steps:
        yield f"{taken!r} steps were taken, and {plan.steps} planned"


def _beside(annex: Mapping[str, Any], directory: Path) -> Check:
    what = "it belongs to the public certificate"
    public = directory.parent / "public" / "certificate.json"
    if not public.is_file():
        return Check(what, None, "there is no public/certificate.json beside its directory")
    same = read_certificate(public).get("hash") == annex["certificate"]
    return Check(what, same, "" if same else "it is the annex of another certificate")


def _page(document: Mapping[str, Any], text: str) -> Check:
    what = "the page shows the document"
    if document["written_by"] != _HERE:
        return Check(what, None, f"it was written by {document['written_by']}")
    return _tried(what, partial(_drawn_again, document, text))


def _drawn_again(document: Mapping[str, Any], text: str) -> Iterator[str]:
    from discreet.report.public_page import certificate_page

    drawn = certificate_page(document).html()
    if drawn == text:
        return
    # Scripts without attributes run; those with a type hold data.
    without = [re.sub("<script>.*?</script>", "", page, flags=re.DOTALL) for page in (drawn, text)]
    if without[0] == without[1]:
        yield (
            "the script that draws the pictures is not the one of the plotly that is installed "
            "here; the rest of the page is right if that script is"
        )
    else:
        yield "the page is not the one that the document gives"
