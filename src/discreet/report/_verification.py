"""Verify a certificate: compute what it states again from the ledger, the files and the counts.

What a certificate says is either a function of its loss, its audits and its plan, which are
computed again, or it was recorded by the ledger when the run ended and when the certificate was
published. Without the ledger or the files that part is *not checked*, and said to be. Whether the
training followed the plan is not in the document: that is what audits are for.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet import __version__, federated
from discreet._dsse import is_envelope
from discreet._json import digest_of, read_json
from discreet._rounding import at_most
from discreet.audit import audit_faults
from discreet.certificate import (
    COVERS,
    CURATOR,
    Certificate,
    as_version_2,
    content_hash,
    facts_digest,
    faults_of_0_1,
    guarantee_of,
    is_of_0_1,
    meaning_of,
    publication_digest,
    read_signed,
    require_valid,
    run_warnings,
    todays_form,
    verdict_on,
    warning_faults_of_0_1,
    warnings_on,
)
from discreet.data import Learned
from discreet.errors import (
    DiscreetError,
    FileUnusable,
    InvalidValue,
    NotApplicable,
    SchemaError,
)
from discreet.learn import ROW_UNITS, check_unit, plan_problems, read_plan
from discreet.ledger import check_receipt
from discreet.privacy import (
    BestOf,
    Loss,
    compose,
    from_json,
    read_old,
    to_json,
)
from discreet.report._annex import annex_schema
from discreet.report._certificate_page import certificate_page
from discreet.report._checks import (
    UNREADABLE,
    Check,
    check_collection,
    facts_alone,
    is_local,
    run_check,
)
from discreet.report._page import SIGNATURE, embedded_texts, without_pictures
from discreet.report._publishing import RELEASED, disagreements

if TYPE_CHECKING:
    from discreet.ledger import Ledger


# Another version of the accountant may read the same loss a little differently.
_VERSIONS_AGREE = 1e-3
# A loss is compared with the one that was planned at these.
_COMPARED_DELTAS = (0.0, 1e-15, 1e-9, 1e-6, 1e-4, 1e-2, 0.1, 0.3)
_HERE = f"discreet {__version__}"
_MODELS = ("model.npz", "model.safetensors")
_NO_LEDGER = "no ledger was given"


def verify_certificate(path: str | Path, *, ledger: Ledger | None = None) -> list[Check]:
    """Check a certificate, its annex or its page; read-only.

    The file is the JSON that a learner wrote or that was published, an annex, or the page. With
    ``ledger`` the entries that the certificate names must be on its chains, and what it recorded
    of the run and of the publication must be what the certificate says.

    Parameters
    ----------
    path
        The JSON, the page, the envelope or the annex of a certificate.
    ledger
        The one that was charged, if it is at hand.

    Returns
    -------
    list of Check
        Every question that was asked; ``None`` where it could not be.

    Raises
    ------
    InvalidValue
        If the file cannot be read.
    """
    place = Path(path)
    text = _text(place)
    found = read_document(place)
    if found.get("part") == "internal":
        return _annex(found, place.parent)
    checks = [run_check("it follows the schema", lambda: _schema(found))]
    if checks[0].ok is False:
        return checks
    document, old = as_version_2(found), is_of_0_1(found)
    checks.append(_hash(found))
    checks.append(run_check("epsilon is that of the loss", lambda: _epsilon(document)))
    if "title" in document:
        checks += [
            run_check("the losses add up to the guarantee", lambda: _losses(document)),
            run_check("every accountant says so", lambda: _guarantee(document, old=old)),
            run_check("the meaning follows from the loss", lambda: _meaning(document, old=old)),
            run_check("the audits say what their counts say", lambda: audit_faults(document)),
        ]
    if old:
        checks += _check_0_1(found, document, checks)
    else:
        checks.append(run_check("no warning was left out", lambda: _warnings(document)))
    if is_local(document):
        checks += check_collection(document, place.parent)
    else:
        checks += _plan(document, ledger)
        checks += _receipts(document, ledger)
        checks += _check_records(document, ledger)
        checks += _model(document, place.parent, old=old)
    checks += _files(document, place.parent)
    if is_page(place):
        checks.append(_page(found, text))
    return checks


def read_document(path: str | Path) -> dict[str, Any]:
    """Read the JSON of a certificate from its own file or from inside its page.

    Parameters
    ----------
    path
        As for :func:`verify_certificate`.

    Returns
    -------
    dict
        The document.

    Raises
    ------
    InvalidValue
        If there is none.
    """
    place = Path(path)
    text = _text(place)
    if is_page(place):
        found = embedded_texts(text)
        if len(found) != 1:
            raise FileUnusable("path", str(path), "a page with one certificate inside")
        text = found[0]
    try:
        document = read_json(text, "it")
    except SchemaError as error:
        raise FileUnusable("path", str(path), f"a certificate in JSON ({error})") from None
    if not isinstance(document, dict):
        raise FileUnusable("path", str(path), "a certificate: a JSON object")
    return read_signed(text).document if is_envelope(document) else document


def is_page(place: Path) -> bool:
    return place.suffix.lower() in {".html", ".htm"}


def _text(place: Path) -> str:
    try:
        return place.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidValue("path", str(place), f"a readable file ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InvalidValue("path", str(place), "a text file in UTF-8") from None


# --- what follows from the document ----------------------------------------------------------


def _schema(document: Mapping[str, Any]) -> Iterator[str]:
    try:
        require_valid(as_version_2(document))
    except DiscreetError as error:
        yield str(error)


def _hash(document: Mapping[str, Any]) -> Check:
    what = "the content has its hash"
    if "hash" not in document:
        return Check(what, None, "learners of 0.1 wrote none")
    same = content_hash(document) == document["hash"]
    wrong = "" if same else "the content was changed after the certificate was written"
    return Check(what, same, wrong)


def _epsilon(document: Mapping[str, Any]) -> Iterator[str]:
    """What a learner claims, and what the fields that repeat one another say."""
    loss = from_json(document["loss"])
    right = loss.epsilon(delta=document["delta"])
    yield from _refuse_below(document["epsilon"], right, "epsilon")
    if document["relation"] != loss.relation.value:
        yield "the relation is not that of the loss"
    if document["plan"].get("unit", document["unit"]) != document["unit"]:
        yield "the plan speaks of another unit"
    if "title" in document and document["guarantee"]["unit"] != document["unit"]:
        yield "the guarantee speaks of another unit"


def _losses(document: Mapping[str, Any]) -> Iterator[str]:
    parts = [from_json(document["loss"])]
    for one in document["answers"]:
        loss = from_json(one["loss"])
        paid_by = _dataset(one["receipt"])
        together = paid_by == _dataset(document["receipt"])
        if one["counted_in_the_guarantee"] != together:
            yield f"the answer to {one['question']!r} is counted for the wrong data"
        if together:
            parts.append(loss)
        yield from _refuse_below(
            one["epsilon"], loss.epsilon(delta=one["delta"]), "an answer's epsilon"
        )
    whole: Loss = parts[0] if len(parts) == 1 else compose((part, 1) for part in parts)
    if whole != from_json(document["guarantee"]["loss"]):
        yield "the loss of the guarantee is not that of the model and its answers"


def _dataset(receipt: Mapping[str, Any] | None) -> str | None:
    return None if receipt is None else str(receipt["entry"].get("dataset"))


def _guarantee(document: Mapping[str, Any], *, old: bool) -> Iterator[str]:
    said = document["guarantee"]
    right = _right_guarantee(from_json(said["loss"]), said["delta"])
    if said["delta"] != document["delta"]:
        yield "delta is not that of the release"
    yield from _refuse_below(said["epsilon"], right["epsilon"], "epsilon")
    lower, epsilon = said["epsilon_lower"], said["epsilon"]
    if lower is not None and epsilon is not None and lower > epsilon:
        yield "epsilon_lower is above epsilon"
    if lower is not None and lower > (right["epsilon_lower"] or 0.0) * (1.0 + _VERSIONS_AGREE):
        yield f"epsilon_lower is stated as {lower:g} and is {right['epsilon_lower']}"
    here = document["written_by"] == _HERE and not old
    if here and not _agree({**said, "unit": None}, {**json.loads(json.dumps(right)), "unit": None}):
        yield "the numbers are not those that this version writes"
    for name in ("relation", "description"):
        if said[name] != right[name]:
            yield f"{name} is not that of the loss"
    if set(said["accountants"]) != set(right["accountants"]):
        yield "the accountants are not all there"
    for name, value in right["accountants"].items():
        yield from _refuse_below(said["accountants"].get(name), value, f"the accountant {name}")
    for one, theirs in zip(right["groups"], said["groups"], strict=True):
        if one["size"] != theirs["size"]:
            yield "the sizes of groups are not those that are usual"
        yield from _refuse_below(theirs["epsilon"], one["epsilon"], f"groups of {one['size']}")


@lru_cache(maxsize=16)
def _right_guarantee(loss: Loss, delta: float) -> dict[str, Any]:
    return guarantee_of(loss, delta)


@lru_cache(maxsize=16)
def _right_meaning(loss: Loss) -> dict[str, Any]:
    return meaning_of(loss)


def _refuse_below(said: object, right: object, what: str) -> Iterator[str]:
    """Refuse a bound that is lower than what it should be; ``None`` is no bound at all."""
    if said is None or isinstance(said, str):
        return
    ours = right if isinstance(right, int | float) else None
    claimed = float(said) if isinstance(said, int | float) else 0.0
    if ours is None or claimed < float(ours) * (1.0 - _VERSIONS_AGREE):
        yield f"{what} is stated as {claimed:g} and is {right}"


def _meaning(document: Mapping[str, Any], *, old: bool) -> Iterator[str]:
    said = document["meaning"]
    right = _right_meaning(from_json(document["guarantee"]["loss"]))
    # 0.1 may have counted a form that it should not have written as more than it costs.
    if not (_agree(said, right) or (old and _allows_more(said, right))):
        yield "beliefs or rates are not those of the loss"


def _allows_more(said: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether every number is a bound, if not the best one."""
    room = 1.0 + _VERSIONS_AGREE
    return (
        len(said["beliefs"]) == len(right["beliefs"])
        and len(said["rates"]) == len(right["rates"])
        and all(
            one["prior"] == ours["prior"]
            and one["failure_probability"] >= ours["failure_probability"]
            and one["upper"] * room >= ours["upper"]
            and one["lower"] <= ours["lower"] * room
            for one, ours in zip(said["beliefs"], right["beliefs"], strict=True)
        )
        and all(
            one["fpr"] == ours["fpr"] and one["tpr"] * room >= ours["tpr"]
            for one, ours in zip(said["rates"], right["rates"], strict=True)
        )
        and said["advantage"] * room >= right["advantage"]
        and _agree(said["best_accuracy"], 0.5 * (1.0 + said["advantage"]))
    )


def _agree(said: object, right: object) -> bool:
    if isinstance(said, bool) or isinstance(right, bool):
        return said is right
    if isinstance(said, int | float) and isinstance(right, int | float):
        return abs(said - right) <= _VERSIONS_AGREE * max(abs(said), abs(right), 1e-9)
    if isinstance(said, dict) and isinstance(right, dict):
        return set(said) == set(right) and all(_agree(said[key], right[key]) for key in said)
    if isinstance(said, list) and isinstance(right, list):
        return len(said) == len(right) and all(map(_agree, said, right))
    return said == right


def _warnings(document: Mapping[str, Any]) -> Iterator[str]:
    published = "title" in document
    if document["warnings"] != (warnings_on if published else run_warnings)(document):
        yield "the warnings are not those that the facts call for"
    if published and document["verdict"] != verdict_on(document):
        yield "the verdict is not the one that the facts call for"
    if document["covers"] != COVERS:
        yield "what it covers is not what a certificate covers"


def _plan(document: Mapping[str, Any], ledger: Ledger | None) -> list[Check]:
    """Compute the loss again from the plan, and from what it cost to learn the schema."""
    what = "the loss is that of the plan"
    if document["learner"] == "DP-SGD":
        return [run_check(what, partial(_plan_of_dpsgd, document))]
    cost = document["plan"].get("schema_cost")
    counted = isinstance(cost, Mapping) and cost.get("counted") is True
    try:
        whole = _planned_loss(facts_alone(document))
        if counted:
            whole = whole + Learned.from_json(cost).loss
    except NotApplicable as error:
        checks = [Check(what, None, str(error))]
    except ImportError as error:
        checks = [Check(what, None, f"{error.name} is not installed here")]
    except UNREADABLE as error:
        checks = [Check(what, False, f"cannot be computed: {error}")]
    else:
        checks = [run_check(what, partial(_check_coverage, document, whole))]
    if cost is not None:
        asked = partial(_schema_cost, document, cost)
        checks.append(run_check("what the schema cost was paid", asked))
        receipt = cost.get("receipt") if isinstance(cost, Mapping) else None
        if receipt is not None and checks[-1].ok:
            what = "the entry that paid for the schema is on the chain"
            if ledger is None:
                checks.append(Check(what, None, _NO_LEDGER))
            else:
                checks.append(run_check(what, partial(_on_chain, ledger, [receipt])))
    return checks


def _planned_loss(facts: Certificate) -> Loss:
    """Return the loss of what a learner, a collector or the curator's desk says that it did."""
    if CURATOR in (facts.learner, facts.plan.get("kind")):
        from discreet.curator import certified_loss

        return certified_loss(facts)
    if facts.learner in federated.LEARNERS:
        return federated.certified_loss(facts)
    if facts.learner.startswith("local "):
        raise SchemaError("a local collection has no model, no ledger and no answers")
    loss: Loss = read_plan(facts).loss
    return loss


def _check_coverage(document: Mapping[str, Any], whole: Loss) -> Iterator[str]:
    facts = facts_alone(document)
    facts.check_covers(whole)
    # Beliefs and rates are read off the whole loss, not off one delta. The plan of the best of
    # several runs is the winner's, whose score was paid for too.
    if isinstance(facts.loss, BestOf):
        run, planned = (one.epsilon(delta=facts.delta) for one in (facts.loss.base, whole))
        if run < planned * (1.0 - _VERSIONS_AGREE):
            yield f"one run is said to cost {run}, its plan costs {planned}"
    elif whole != facts.loss and not _is_above(facts.loss, whole):
        yield f"the plan has the loss {whole!r}, the certificate claims {facts.loss!r}"


def _is_above(claimed: Loss, whole: Loss) -> bool:
    """Say whether a loss claims no more than another one has, as an epsilon and a delta may."""
    return all(
        whole.epsilon(delta=at) <= claimed.epsilon(delta=at) * (1.0 + _VERSIONS_AGREE) + 1e-6
        for at in _COMPARED_DELTAS
    )


def _schema_cost(document: Mapping[str, Any], cost: Mapping[str, Any]) -> Iterator[str]:
    """A schema that was learned is counted in the loss, or names the entry that paid for it."""
    learned = Learned.from_json(cost)
    if type(cost.get("counted")) is not bool or set(cost) != {"loss", "unit", "receipt", "counted"}:
        yield "it does not say whether the loss counts it"
    elif not cost["counted"] and learned.receipt is None:
        yield "nobody paid for it, and the loss does not count it"
    if learned.receipt is not None:
        parts = [{"loss": cost["loss"]}]
        if document["receipt"] is None or learned.receipt["hash"] != document["receipt"]["hash"]:
            yield from _covers(learned.receipt, parts)
        elif not cost["counted"]:
            yield "its entry is that of the model, and the loss does not count it"


def _plan_of_dpsgd(document: Mapping[str, Any]) -> Iterator[str]:
    yield from plan_problems(facts_alone(document))


def _check_0_1(
    found: Mapping[str, Any], document: Mapping[str, Any], earlier: Sequence[Check]
) -> list[Check]:
    """What 0.1 wrote and may have got wrong; docs/pitfalls.md tells what to compute again."""
    checks = [run_check("the other fields are as 0.1 wrote them", partial(faults_of_0_1, found))]
    if "warnings" not in found:
        checks.append(Check("no warning was left out", None, "learners of 0.1 wrote none"))
    else:
        asked = partial(warning_faults_of_0_1, found, document)
        checks.append(run_check("no warning was left out", asked))
    parts = [found.get("guarantee", found), *found.get("answers", ())]
    if "guarantee" in found:
        parts.append(found["released"])
    if any(todays_form(part["loss"]) is not part["loss"] for part in parts):
        text = "0.1 wrote a form of loss that is not used any more; what it costs was computed"
        checks.append(Check("the form and description of the loss", None, text))
    what = "what 0.1 got wrong does not affect it"
    wrong = "; ".join(_too_low(parts[: len(parts) - ("guarantee" in found)]))
    if not wrong and any(one.ok is False for one in earlier):
        wrong = "; ".join(dict.fromkeys(filter(None, map(_reason, parts))))
    if wrong:
        cure = "charge the difference (discreet ledger correct) and certify again"
        checks.append(Check(what, False, f"{wrong}: {cure}"))
    elif document["learner"] == "DP-SGD":
        text = (
            "0.1 did not see padding that lets examples influence one another, parameters outside "
            "of the model, or several plans on one model; if any may be, train again"
        )
        checks.append(Check(what, None, text))
    else:
        checks.append(Check(what, True))
    return checks


def _too_low(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Claims of 0.1 that are below what their loss costs."""
    for part in parts:
        said = part["epsilon"]
        try:
            loss, reason = read_old(part["loss"])
            costs = loss.epsilon(delta=part["delta"])
        except DiscreetError as error:
            yield f"0.1 claimed epsilon {said}; no theorem bounds this loss: {error}"
            continue
        if said is not None and said < costs * (1.0 - _VERSIONS_AGREE):
            text = f"0.1 claimed epsilon {said:g}, it costs {at_most(costs, digits=6)}"
            yield text + ("" if reason is None else f" ({reason})")


def _reason(part: Mapping[str, Any]) -> str | None:
    try:
        return read_old(part["loss"]).reason
    except DiscreetError as error:
        return str(error)


# --- what the ledger says --------------------------------------------------------------------


def _receipts(document: Mapping[str, Any], ledger: Ledger | None) -> list[Check]:
    parts = [("the model", _part_of_charge(document))]
    parts += [(repr(one["question"]), one) for one in document.get("answers", ())]
    by_entry: dict[str, list[Mapping[str, Any]]] = {}
    for _, part in parts:
        if part["receipt"] is not None:
            by_entry.setdefault(part["receipt"]["hash"], []).append(part)
    checks = []
    for what, part in parts:
        if part["receipt"] is None:
            checks.append(Check(f"{what}: charged to a ledger", None, "no ledger was charged"))
        else:
            # Charged once and released twice is charged too little.
            asked = partial(_covers, part["receipt"], by_entry[part["receipt"]["hash"]])
            checks.append(run_check(f"{what}: the entry covers it", asked))
    if document["run"].get("earlier_plans"):
        text = "their receipts are not in this certificate"
        checks.append(Check("the earlier plans: charged to a ledger", None, text))
    paid = [part["receipt"] for _, part in parts if part["receipt"] is not None]
    if paid and ledger is None:
        checks.append(Check("the entries are on the chain", None, _NO_LEDGER))
    elif paid and ledger is not None:
        checks.append(run_check("the entries are on the chain", partial(_on_chain, ledger, paid)))
        checks += _check_restored(ledger, {str(receipt["entry"]["dataset"]) for receipt in paid})
    return checks


def _check_restored(ledger: Ledger, datasets: set[str]) -> Iterator[Check]:
    """Say of which datasets the ledger states that it is a restored backup."""
    for name in sorted(datasets & set(ledger.datasets())):
        entries = ", ".join(map(str, ledger.show(name).restored))
        if entries:
            text = f"entry {entries} tells of a restored backup: charges before it are as declared"
            yield Check(f"{name}: every charge is on record", None, text)


def _part_of_charge(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The model with the loss that its own charge is for: earlier plans had charges of theirs."""
    if document["learner"] != "DP-SGD" or not document["run"].get("earlier_plans"):
        return document
    return {**document, "loss": to_json(read_plan(facts_alone(document)).loss)}


def _on_chain(ledger: Ledger, receipts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for problem in ledger.verify(receipts=receipts).problems:
        yield str(problem)


def _covers(receipt: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The entry must be a charge of exactly what all releases that name it claim together."""
    for problem in check_receipt(receipt):
        yield str(problem)
    entry = receipt["entry"]
    if entry.get("kind") != "charge":
        yield f"the entry is of kind {entry.get('kind')!r}, not a charge"
        return
    # The entry may be one of 0.1, which wrote some losses in another form.
    charged = read_old(entry["content"]["loss"]).loss
    losses = [from_json(part["loss"]) for part in parts]
    claimed = losses[0] if len(losses) == 1 else compose((loss, 1) for loss in losses)
    if len(parts) > 1 and claimed != charged:
        yield f"{len(parts)} releases name the entry {receipt['hash'][:16]}"
    if charged.relation != claimed.relation:
        yield "the entry speaks of other neighbours than the certificate"
    elif claimed != charged:
        yield f"the entry charged {charged!r}, the certificate claims {claimed!r}"


def _check_records(document: Mapping[str, Any], ledger: Ledger | None) -> list[Check]:
    """What the ledger recorded when the run ended, and when its certificate was published."""
    receipt = document["receipt"]
    if receipt is None:
        return []
    names = ["the ledger recorded this run"]
    if "title" in document:
        names.append("the ledger recorded this publication")
    if ledger is None:
        return [Check(name, None, _NO_LEDGER) for name in names]
    unit = run_check("the ledger speaks of the same unit", partial(_unit, document, ledger))
    entry = receipt["entry"]
    try:
        links = [link["entry"] for link in ledger.export(str(entry["dataset"]))["chain"]]
        later = [one for one in links if one["content"].get("charge") == entry["seq"]]
    except (DiscreetError, KeyError) as error:
        return [unit, *(Check(name, False, f"cannot be read: {error}") for name in names)]
    results = [one["content"]["result"] for one in later if one["kind"] == "outcome"]
    checks = [unit, _check_run_record(names[0], document, results)]
    if _is_answer(document):
        checks[1] = run_check(names[0], partial(_answer_faults, document, ledger))
    if len(names) > 1:
        known = {one["content"]["certificate"] for one in later if one["kind"] == "publication"}
        checks.append(_publication_recorded(names[1], document, known))
    return checks


def _is_answer(document: Mapping[str, Any]) -> bool:
    """Whether a curator's desk says that it filled the certificate, in one place at least."""
    return CURATOR in (document["learner"], document["plan"].get("kind"))


def _answer_faults(document: Mapping[str, Any], ledger: Ledger) -> Iterator[str]:
    from discreet.curator import answer_faults

    yield from answer_faults(facts_alone(document), ledger)


def _unit(document: Mapping[str, Any], ledger: Ledger) -> Iterator[str]:
    unit = document["unit"]
    try:
        # Whoever promises something about one row only promises less than any budget.
        if unit.lower() not in ROW_UNITS:
            check_unit(ledger, document["receipt"]["entry"]["dataset"], unit)
    except InvalidValue as error:
        yield f"the ledger speaks of another: expected {error.expected}"


def _check_run_record(what: str, document: Mapping[str, Any], results: Sequence[object]) -> Check:
    result = results[0] if results else None
    if not isinstance(result, dict) or "model_digest" not in result:
        return Check(what, None, "it holds nothing about what came of the charge")
    found = []
    # The names say which part differs; the digest covers them all.
    for name, ours in (
        ("learner", document["learner"]),
        ("plan_hash", digest_of(document["plan"])),
        ("model_digest", document["model_digest"]),
    ):
        if name in result and result[name] != ours:
            found.append(f"the charge was for another {name.replace('_', ' ')}")
    if "facts" not in result:
        text = "0.1 recorded the model and nothing else"
        return Check(what, False, "; ".join(found)) if found else Check(what, None, text)
    if result["facts"] != facts_digest(document):
        found.append("the facts are not those that were recorded when the run ended")
    return Check(what, not found, "; ".join(found))


def _publication_recorded(what: str, document: Mapping[str, Any], known: set[str]) -> Check:
    if not known:
        return Check(what, None, "it holds no publication (discreet certify --ledger records one)")
    same = publication_digest(document) in known
    return Check(what, same, "" if same else "another certificate was published for this charge")


# --- what lies beside ------------------------------------------------------------------------


def _files(document: Mapping[str, Any], directory: Path) -> list[Check]:
    checks = []
    for name, digest in document.get("files", {}).items():
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
        if hashlib.sha256(content).hexdigest() != digest:
            checks.append(Check(what, False, "is not the one that was certified"))
        elif _is_of_the_run(document, relative, digest):
            checks.append(Check(what, True))
        else:
            checks.append(Check(what, None, "is as published, but no run recorded anything of it"))
    return checks


def _is_of_the_run(document: Mapping[str, Any], file: Path, digest: str) -> bool:
    """Whether a file is what the certificate speaks of, and not one that was laid beside it."""
    if is_local(document):
        named = (document["run"].get(key) for key in ("plan", "reports"))
        return digest in [one.get("sha256") for one in named if isinstance(one, Mapping)]
    places = {Path(name).parent for name in document["files"] if Path(name).name in _MODELS}
    return not _is_answer(document) and file.name in RELEASED and places == {file.parent}


def _model(document: Mapping[str, Any], directory: Path, *, old: bool) -> list[Check]:
    """Hold the certificate against the model and, once published, what its learner wrote."""
    what = "the model is the one of the certificate"
    if _is_answer(document):
        return []  # the answer itself is in the document
    names = [Path(name) for name in document.get("files", {}) if Path(name).name in _MODELS]
    if "title" not in document:
        names = [Path(name) for name in _MODELS if (directory / name).is_file()]
    if not names and document["model_digest"] is None and document.get("files"):
        return []  # a release of one's own: its files are all there is
    if len(names) != 1:
        return [Check(what, None, "no model is here" if not names else "there are several")]
    place = directory / names[0].parent
    if names[0].is_absolute() or ".." in names[0].parts or not (directory / names[0]).is_file():
        return [Check(what, None, "is not here")]
    checks = [run_check(what, partial(_same_model, document, place, old=old))]
    if "title" in document and (place / "certificate.json").is_file():
        what = "the learner's own certificate says the same"
        checks.append(run_check(what, partial(_same_as_learner, document, place, old=old)))
    return checks


def _same_model(document: Mapping[str, Any], place: Path, *, old: bool) -> Iterator[str]:
    yield from disagreements(place, facts_alone(document), old=old)


def _same_as_learner(document: Mapping[str, Any], place: Path, *, old: bool) -> Iterator[str]:
    right = as_version_2(read_document(place / "certificate.json"))
    # What 0.1 published states the epsilon of model and answers together, and not all of the run.
    free = {"schema", "version", "warnings", "hash"} | ({"epsilon", "run"} if old else set())
    for name in sorted(set(right) - free):
        if document[name] != right[name]:
            yield f"{name} is not what the learner wrote"


def _annex(annex: Mapping[str, Any], directory: Path) -> list[Check]:
    checks = [
        run_check("it follows the schema", lambda: _annex_schema(annex)),
        _hash(annex),
    ]
    return checks if checks[0].ok is False else [*checks, _belongs_to_public_part(annex, directory)]


def _annex_schema(annex: Mapping[str, Any]) -> Iterator[str]:
    require_valid(annex, annex_schema())
    yield from ()


def _belongs_to_public_part(annex: Mapping[str, Any], directory: Path) -> Check:
    what = "it belongs to the public certificate"
    public = directory.parent / "public" / "certificate.json"
    if not public.is_file():
        return Check(what, None, "there is no public/certificate.json beside its directory")
    same = read_document(public).get("hash") == annex["certificate"]
    return Check(what, same, "" if same else "it is the annex of another certificate")


def _page(document: Mapping[str, Any], text: str) -> Check:
    """Draw the page again; another matplotlib draws the same pictures in other bytes."""
    what = "the page shows the document"
    wrong = "the page is not the one that the document gives"
    try:
        found = embedded_texts(text, SIGNATURE)
        drawn = certificate_page(document, read_signed(found[0]) if found else None).html()
    except DiscreetError as error:
        drawn, wrong = "", f"cannot be read: {error}"
    if drawn == text:
        return Check(what, True)
    if document.get("written_by") != _HERE:
        return Check(what, None, f"it was written by {document.get('written_by')}")
    theirs, ours = _drawing_version(text), _drawing_version(drawn)
    if without_pictures(drawn) == without_pictures(text) and theirs != ours:
        pictures = f"its pictures were drawn by {theirs}; here is {ours}"
        return Check(what, None, f"all but the pictures is right; {pictures}")
    return Check(what, False, wrong)


def _drawing_version(page: str) -> str:
    found = re.search(r", pictures by ([^<]*)\.</footer>", page)
    return "nothing" if found is None else found[1]
