"""``discreet certify``, ``certificate`` and ``recheck``: what is published about a model."""

from __future__ import annotations

import datetime as dt
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from discreet._rounding import at_most
from discreet.cli._app import (
    Command,
    Group,
    finite,
    format_value,
    print_answer,
    print_json,
    print_lines,
    print_table,
)
from discreet.cli._ledger import open_to_read, read_key_file, read_passphrase, trusted_keys
from discreet.cli._options import (
    Count,
    combine_options,
    output_file,
    passphrase_option,
    trust_options,
)
from discreet.errors import FileUnusable, InvalidValue, SchemaError

if TYPE_CHECKING:
    from discreet.certificate import Issuer
    from discreet.report import Check

_STATES = ("sound", "affected", "not checked")
_SHADOWS = 8
_DAY = "such as 2027-12-31."


@click.command(cls=Command)
@click.argument("model", metavar="MODEL", help="A directory with a model and its certificate.json.")
@click.option("--out", metavar="DIRECTORY", help="Where to write.  [default: MODEL-certificate]")
@click.option("--title", metavar="TEXT", help="What is certified.  [default: its name]")
@click.option("--members", metavar="FILE", help="Records that the model learned from.")
@click.option("--nonmembers", metavar="FILE", help="Records like them that it did not see.")
@click.option(
    "--target",
    metavar="MODULE:NAME",
    help="The model in Python, where the directory alone cannot answer. Runs that module.",
)
@click.option(
    "--label",
    metavar="NAME",
    default="label",
    help="The column of the true class, with --target.",
)
@click.option(
    "--shadows",
    type=Count(at_least=0),
    help="Shadow models to train, in pairs, for the strongest of LiRA, RMIA and Yeom; with 0 the "
    f"attack is Yeom's.  [default: {_SHADOWS}, or 0 where the directory alone cannot train one]",
)
@click.option(
    "--audit",
    "audits",
    metavar="FILE",
    multiple=True,
    help="The outcome of an audit in JSON; repeatable.",
)
@click.option("--source", metavar="TEXT", help="Where the data come from.")
@click.option("--lawful-basis", metavar="TEXT", help="Why they may be used.")
@click.option("--kept-until", metavar="TEXT", help="How long they are kept.")
@click.option("--access", metavar="TEXT", help="Who can reach the raw data.")
@click.option("--side-channels", metavar="TEXT", help="What was done about timing, logs, copies.")
@click.option(
    "--ledger",
    metavar="LEDGER",
    help="The ledger that was charged; it records the publication.",
)
def certify(
    model: str,
    out: str | None,
    title: str | None,
    members: str | None,
    nonmembers: str | None,
    target: str | None,
    label: str,
    shadows: int | None,
    audits: tuple[str, ...],
    ledger: str | None,
    as_json: bool,
    **collection: str | None,
) -> None:
    r"""Certify a model of discreet train, or of your own code with a certificate.

    The public part is made from the certificate that the learner wrote, its entry in the ledger
    and audits. With --ledger that ledger records what is published, so that a certificate which
    is changed later is found out. With --members and --nonmembers the model is attacked as well;
    what that finds is internal and goes to a directory of its own.

    Examples:
      discreet certify model --ledger study.ledger
      discreet certify model --members train.csv --nonmembers others.csv --shadows 16 \
        --source "patients of our clinics, 2019 to 2024"
    """
    from discreet.certificate import Collection
    from discreet.report import certify_model, read_audit

    if (members is None) != (nonmembers is None):
        missing, given = ("nonmembers", members) if nonmembers is None else ("members", nonmembers)
        raise InvalidValue(missing, None, f"a file, beside {given}")
    beside = Path(model) if Path(model).name not in {"", ".."} else Path(model).resolve()
    goal = f"{beside}-certificate" if out is None else out
    internal = None
    if members is not None and nonmembers is not None:
        internal = partial(_attack, target or model, label, members, nonmembers, shadows)
    published = certify_model(
        model,
        goal,
        title=title,
        audits=[read_audit(path) for path in audits],
        collection=Collection(**collection),
        attack=internal,
        ledger=ledger,
    )
    _print_certified(goal, published.to_json(), internal is not None, as_json=as_json)


def _attack(model: str, label: str, members: str, nonmembers: str, shadows: int | None) -> Any:
    from discreet.attacks import read_model
    from discreet.report import attack_for_annex

    asked = read_model(model, label=label)
    if shadows is None:
        shadows = 0 if asked.learner is None else _SHADOWS
    if shadows and asked.learner is None:
        expected = "0: only a model of discreet train can be trained again from its directory"
        raise InvalidValue("shadows", shadows, expected)
    return attack_for_annex(
        asked.target,
        members=asked.read("members", members).pair,
        nonmembers=asked.read("nonmembers", nonmembers).pair,
        class_names=asked.class_names,
        shadows=shadows,
        train=asked.retrain,
    )


def _print_certified(
    goal: str, certificate: dict[str, Any], internal: bool, *, as_json: bool
) -> None:
    promise, verdict = certificate["guarantee"], certificate["verdict"]
    if as_json:
        print_json(
            {
                "out": goal,
                "epsilon": promise["epsilon"],
                "delta": promise["delta"],
                "verdict": verdict["state"],
                "warnings": certificate["warnings"],
                "internal": internal,
                "files": sorted(
                    path.relative_to(goal).as_posix() for path in Path(goal).rglob("*.*")
                ),
            }
        )
        return
    epsilon = "none" if promise["epsilon"] is None else at_most(promise["epsilon"])
    delta = at_most(promise["delta"])
    print_lines(
        [
            f"epsilon at most {epsilon} at delta {delta} for one {promise['unit']}",
            f"{verdict['state']}: {verdict['sentence']}",
            *(f"{one['severity']}: {one['text']}" for one in certificate["warnings"]),
            "",
            f"may be published   {goal}/public/certificate.html",
            *([f"must not be        {goal}/internal/annex.html"] if internal else []),
        ]
    )


@click.group(cls=Group)
def certificate() -> None:
    """Check the certificate of a release, sign it, or draw its page again."""


path_argument = click.argument(
    "path", metavar="FILE", help="certificate.json, certificate.html or annex.json."
)


@certificate.command(short_help="Hold it against what it rests on.")
@path_argument
@click.option("--ledger", metavar="LEDGER", help="The ledger that was charged.")
@trust_options
def verify(
    path: str, ledger: str | None, keys: tuple[str, ...], revoked: str | None, as_json: bool
) -> int:
    """Check schema, hashes, bounds, audits, warnings, entries, files and what the ledger recorded.

    Takes what discreet train, discreet pate and DP-SGD write, and what discreet certify publishes.
    Files that the certificate names are compared if they are beside it. With --key it must be
    signed by one of the keys. Exit code 0: everything was checked and fits; 1: something is
    wrong; 4: a file or the ledger is missing or damaged; 6: nothing is wrong, but something was
    not checked.

    Examples:
      discreet certificate verify discreet-demo/public/certificate.json
      discreet certificate verify certificate.html --ledger study.ledger
      discreet certificate verify certificate.json --key clinic.pub --revoked revoked.json
    """
    from discreet.report import verify_certificate, verify_signature

    trusted = trusted_keys(keys, revoked)
    with nullcontext() if ledger is None else open_to_read(ledger) as book:
        checks = verify_certificate(path, ledger=book)
    checks += verify_signature(path, trusted)
    _print_checks(path, checks, as_json=as_json)
    if any(check.ok is False for check in checks):
        return 1
    return 6 if any(check.ok is None for check in checks) else 0


def _print_checks(path: str, checks: list[Check], *, as_json: bool) -> None:
    wrong = sum(check.ok is False for check in checks)
    if as_json:
        listed = [{"what": one.what, "ok": one.ok, "detail": one.detail} for one in checks]
        print_json({"certificate": path, "ok": not wrong, "checks": listed})
        return
    words = {True: "ok", False: "WRONG", None: "not checked"}
    for check in checks:
        detail = f": {check.detail}" if check.detail else ""
        print_lines([f"{words[check.ok]:<12} {check.what}{detail}"])
    skipped = sum(check.ok is None for check in checks)
    verdict = f"{wrong} wrong" if wrong else "everything that was checked fits"
    more = f", {skipped} not checked" if skipped else ""
    print_lines(["", f"{format_value(Path(path).as_posix())}: {verdict}{more}"])


@certificate.command(short_help="Draw the page of a certificate.")
@path_argument
@click.option("--output", "-o", metavar="FILE", help="Where to write the page (.html).")
@click.option("--pdf", metavar="FILE", help="Print it to a PDF file; needs Chromium.")
def page(path: str, output: str | None, pdf: str | None, as_json: bool) -> None:
    """Draw the page of a public certificate from its JSON document.

    Example:
      discreet certificate page certificate.json --output certificate.html
    """
    from discreet.report import certificate_page, find_signature, read_document

    document = read_document(path)
    if "title" not in document or document.get("part") == "internal":
        raise InvalidValue("path", path, "a certificate that was published")
    if output is None and pdf is None:
        raise InvalidValue("output", None, "a file for the page, or --pdf with one")
    drawn = certificate_page(document, find_signature(path))
    with output_file(output, ".html") as draft, output_file(pdf, ".pdf", argument="pdf") as sheet:
        if draft is not None:
            drawn.write(draft)
        if sheet is not None:
            drawn.write_pdf(sheet)
    written = [f"page: {format_value(one)}" for one in (output, pdf) if one is not None]
    print_answer({"page": output, "pdf": pdf}, *written, as_json=as_json)


@certificate.command(short_help="Make a key that signs.")
@click.argument(
    "name",
    metavar="[NAME]",
    default="discreet-signing",
    help="Writes NAME.key, for you alone, and NAME.pub.",
)
@passphrase_option
@click.option("--ask-passphrase", is_flag=True, help="Ask for a passphrase on the terminal.")
@click.option("--valid-until", metavar="DAY", help=f"The key counts until this day, {_DAY}")
def keygen(
    name: str,
    passphrase_file: str | None,
    ask_passphrase: bool,
    valid_until: str | None,
    as_json: bool,
) -> None:
    """Make an Ed25519 key that signs certificates and receipts.

    The private half is written with mode 0600, encrypted if there is a passphrase. Publish the
    public half where readers of your certificates find it by themselves. Nothing is replaced.

    Examples:
      discreet certificate keygen clinic --valid-until 2028-12-31
      discreet certificate keygen clinic --ask-passphrase
    """
    from discreet._dsse import read_date, write_key_pair

    last = None if valid_until is None else read_date("valid_until", valid_until)
    if last is not None and last < dt.datetime.now(dt.UTC).date():
        raise InvalidValue("valid_until", valid_until, "a day that is not over")
    secret = None if passphrase_file is None else read_passphrase(passphrase_file)
    if ask_passphrase:
        if secret is not None:
            raise InvalidValue("ask_passphrase", "given", "no --passphrase-file beside it")
        secret = click.prompt("passphrase", hide_input=True, confirmation_prompt=True).encode()
    own, other = f"{name}.key", f"{name}.pub"
    made = write_key_pair(own, other, passphrase=secret, valid_until=last)
    lock = "encrypted" if secret else "not encrypted"
    print_answer(
        {"private": own, "public": other, "key": made.id, "encrypted": bool(secret)},
        f"private half: {format_value(own)} ({lock}; never hand it out)",
        f"public half:  {format_value(other)}",
        f"fingerprint:  {made.id}",
        as_json=as_json,
    )


@certificate.command(short_help="Sign a certificate.")
@click.argument(
    "path",
    metavar="FILE",
    help="certificate.json, or its certificate.dsse.json to add a second signature.",
)
@click.option("--key", metavar="FILE", required=True, help="Your private key.")
@passphrase_option
@combine_options(
    click.option("--who", metavar="TEXT", help="Who answers for the certificate."),
    click.option("--contact", metavar="TEXT", help="How to reach them."),
    click.option("--intended-use", metavar="TEXT", help="What the certificate is meant for."),
    click.option("--valid-until", metavar="DAY", help=f"The last day of the signature, {_DAY}"),
)
def sign(
    path: str, key: str, passphrase_file: str | None, as_json: bool, **issuer: str | None
) -> int:
    r"""Sign a certificate; the envelope is written beside it as certificate.dsse.json.

    The certificate is checked first, and one that is wrong is not signed. The envelope holds the
    document and the SHA-256 of its files, in a format that other tools read (DSSE, in-toto). The
    page beside it is drawn again and names the key.

    Examples:
      discreet certificate sign public/certificate.json --key clinic.key --who "Ward 7" \
        --contact privacy@clinic.example --valid-until 2027-12-31 --intended-use "triage study"
      discreet certificate sign public/certificate.dsse.json --key next.key
    """
    from discreet._dsse import key_id
    from discreet.report import sign_file, verify_certificate

    target = Path(path)
    if target.suffix.lower() != ".json":
        raise InvalidValue("path", path, "certificate.json or certificate.dsse.json")
    again = target.name.endswith(".dsse.json")
    for name, value in issuer.items():
        if again and value is not None:
            raise InvalidValue(name, value, "nothing: the envelope has its issuer already")
        if not again and value is None:
            raise InvalidValue(name, None, "a value: it is part of what is signed")
    own = read_key_file(key, passphrase_file)
    wrong = [] if again else [one.what for one in verify_certificate(target) if one.ok is False]
    if wrong:
        line = f"{format_value(str(target))} is not signed. WRONG {wrong[0]}"
        print_answer({"written": [], "wrong": wrong}, line, as_json=as_json)
        return 1
    envelope, written = sign_file(target, own, None if again else _issuer(issuer))
    name, places = key_id(own.public_key()), [place.as_posix() for place in written]
    document = {"written": places, "key": name, "signatures": len(envelope.signatures)}
    pages = [f"page:   {format_value(page)}" for page in places[1:]]
    first = [f"signed: {format_value(places[0])}", f"key:    {name}"]
    print_answer(document, *first, *pages, as_json=as_json)
    return 0


def _issuer(block: dict[str, str | None]) -> Issuer:
    from discreet._dsse import read_date
    from discreet.certificate import Issuer

    last = read_date("valid_until", str(block["valid_until"]))
    today = dt.datetime.now(dt.UTC).date()
    return Issuer(**{**block, "date": today, "valid_until": last})  # type: ignore[arg-type]


@certificate.command(short_help="Declare that a key counts no longer.")
@click.argument("revoked", metavar="LIST", help="The list of revoked keys; made if it is new.")
@click.option("--key", metavar="FILE", required=True, help="The public key to revoke.")
@click.option("--reason", metavar="TEXT", required=True, help="Why it counts no longer.")
def revoke(revoked: str, key: str, reason: str, as_json: bool) -> None:
    """Add a key to a list of revoked keys, to be published beside the public keys.

    Whoever verifies with --revoked LIST refuses every signature of that key, whatever day it
    states: whoever has stolen a key can write any day. Sign again with a new key what still holds.

    Example:
      discreet certificate revoke revoked.json --key clinic.pub --reason "laptop stolen"
    """
    from discreet._dsse import read_public_key, revoke_key

    found = read_public_key(key)
    revoke_key(revoked, found, reason)
    lines = f"revoked: {found.id}", f"written: {format_value(revoked)}"
    print_answer({"written": revoked, "revoked": found.id}, *lines, as_json=as_json)


@click.command(cls=Command)
@click.argument("directory", metavar="DIR", help="Everything below this directory is looked at.")
def recheck(directory: str, as_json: bool) -> int:
    """List every certificate, model and ledger of version 0.1 that claims too small an epsilon.

    Each is sound, affected (with the epsilon that 0.1 stated and the one that holds) or not
    checked. Nothing is written. Exit code 0 if all are sound, 1 if one is affected, 6 if none is
    affected but something could not be checked. A ledger is mended by discreet ledger correct.

    Example:
      discreet recheck releases
    """
    from discreet import report

    try:
        found = report.recheck(directory)
    except SchemaError:
        raise FileUnusable("directory", directory, "a directory") from None
    counts = {state: sum(one.state == state for one in found) for state in _STATES}
    if as_json:
        files = [{**asdict(one), "old": _finite(one.old), "new": _finite(one.new)} for one in found]
        print_json({"directory": directory, **counts, "files": files})
    else:
        if found:
            headings = ("file", "what", "state", "epsilon in 0.1", "epsilon", "why")
            rows = [
                (
                    format_value(one.path),
                    one.kind,
                    one.state,
                    _text(one.old),
                    _text(one.new),
                    one.why,
                )
                for one in found
            ]
            print_table(headings, rows, numbers=(3, 4))
        print_lines(["", ", ".join(f"{count} {state}" for state, count in counts.items())])
    return 1 if counts["affected"] else 6 if counts["not checked"] else 0


def _finite(value: float | None) -> float | None:
    return None if value is None else finite(value)


def _text(value: float | None) -> str:
    return "" if value is None else at_most(value)
