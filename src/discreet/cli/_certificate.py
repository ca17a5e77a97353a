"""``discreet certify``, ``certificate`` and ``recheck``: what is published about a model."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from discreet._files import new_directory, replace_file
from discreet._rounding import at_most
from discreet.cli._app import Command, Group, finite, print_json, print_lines, print_table, shown
from discreet.cli._ledger import open_to_read, trusted_keys
from discreet.cli._options import (
    Count,
    output_file,
    passphrase_option,
    read_text,
    together,
    trust_options,
)
from discreet.errors import FileUnusable, InvalidValue, SchemaError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from discreet._dsse import Envelope
    from discreet.report import Check

_STATES = ("sound", "affected", "not checked")
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
    default="0",
    help="Shadow models to train, in pairs, for the strongest of LiRA, RMIA and Yeom.",
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
    shadows: int,
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
    from discreet import report
    from discreet.certificate import Collection
    from discreet.ledger import Ledger

    if (members is None) != (nonmembers is None):
        missing, given = ("nonmembers", members) if nonmembers is None else ("members", nonmembers)
        raise InvalidValue(missing, None, f"a file, beside {given}")
    place = Path(model)
    if not place.is_dir():
        raise FileUnusable("model", model, "a directory")
    found = report.model_certificate(place)
    if ledger is not None and found.receipt is None:
        raise InvalidValue("ledger", ledger, "none: no ledger was charged for this model")
    names = report.model_files(place)
    hashes = report.file_hashes(place, names)
    published = found.publish(
        title=place.resolve().name if title is None else title,
        files={f"model/{name}": digest for name, digest in hashes.items()},
        audits=[report.read_audit(path) for path in audits],
        collection=Collection(**collection),
    )
    beside = place if place.name not in {"", ".."} else place.resolve()
    goal = f"{beside}-certificate" if out is None else out
    with new_directory(goal) as draft:
        internal = None
        if members is not None and nonmembers is not None:
            internal = _attack(target or model, label, members, nonmembers, shadows)
        (draft / "public" / "model").mkdir(parents=True)
        for name in names:
            shutil.copyfile(place / name, draft / "public" / "model" / name)
        if internal is not None:
            report.write_annex(draft, internal, published.to_json())
        with nullcontext() if ledger is None else Ledger.open(ledger) as book:
            report.write_certificate(draft, published, ledger=book)
    _print_certified(goal, published.to_json(), internal is not None, as_json=as_json)


def _attack(model: str, label: str, members: str, nonmembers: str, shadows: int) -> Any:
    from discreet.cli._attack_inputs import read_model
    from discreet.report import attack_for_annex

    asked = read_model(model, label=label)
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
    print_lines(["", f"{shown(Path(path).as_posix())}: {verdict}{more}"])


@certificate.command(short_help="Draw the page of a certificate.")
@path_argument
@click.option(
    "--output", "-o", metavar="FILE", required=True, help="Where to write the page (.html)."
)
def page(path: str, output: str, as_json: bool) -> None:
    """Draw the page of a public certificate from its JSON document.

    Example:
      discreet certificate page certificate.json --output certificate.html
    """
    from discreet.report import certificate_page, find_signature, read_document

    document = read_document(path)
    if "title" not in document or document.get("part") == "internal":
        raise InvalidValue("path", path, "a certificate that was published")
    with output_file(output, ".html") as draft:
        assert draft is not None
        certificate_page(document, find_signature(path)).write(draft)
    print_json({"page": output}) if as_json else print_lines([f"page: {shown(output)}"])


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
    secret = None if passphrase_file is None else _passphrase(passphrase_file)
    if ask_passphrase:
        if secret is not None:
            raise InvalidValue("ask_passphrase", "given", "no --passphrase-file beside it")
        secret = click.prompt("passphrase", hide_input=True, confirmation_prompt=True).encode()
    own, other = f"{name}.key", f"{name}.pub"
    made = write_key_pair(own, other, passphrase=secret, valid_until=last)
    if as_json:
        print_json({"private": own, "public": other, "key": made.id, "encrypted": bool(secret)})
        return
    lock = "encrypted" if secret else "not encrypted"
    print_lines(
        [
            f"private half: {shown(own)} ({lock}; never hand it out)",
            f"public half:  {shown(other)}",
            f"fingerprint:  {made.id}",
        ]
    )


@certificate.command(short_help="Sign a certificate.")
@click.argument(
    "path",
    metavar="FILE",
    help="certificate.json, or its certificate.dsse.json to add a second signature.",
)
@click.option("--key", metavar="FILE", required=True, help="Your private key.")
@passphrase_option
@together(
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
    from discreet.certificate import ENVELOPE
    from discreet.report import find_signature, verify_certificate

    target = Path(path)
    if target.suffix.lower() != ".json":
        raise InvalidValue("path", path, "certificate.json or certificate.dsse.json")
    again = target.name.endswith(".dsse.json")
    for name, value in issuer.items():
        if again and value is not None:
            raise InvalidValue(name, value, "nothing: the envelope has its issuer already")
        if not again and value is None:
            raise InvalidValue(name, None, "a value: it is part of what is signed")
    own = private_key(key, passphrase_file)
    found = find_signature(path) if again else None
    if found is None:
        wrong = [check.what for check in verify_certificate(target) if check.ok is False]
        if wrong:
            line = f"{shown(str(target))} is not signed. WRONG {wrong[0]}"
            print_json({"written": [], "wrong": wrong}) if as_json else print_lines([line])
            return 1
        envelope, place = _signed(target, issuer, own), target.with_name(ENVELOPE)
    else:
        envelope, place = found.envelope.with_signature(own), target
    page = _write_with_page(place, json.dumps(envelope.to_json(), indent=1) + "\n")
    name = key_id(own.public_key())
    if as_json:
        written = [str(path) for path in (place, page) if path is not None]
        print_json({"written": written, "key": name, "signatures": len(envelope.signatures)})
    else:
        print_lines([f"signed: {shown(place.as_posix())}", f"key:    {name}"])
        print_lines([f"page:   {shown(page.as_posix())}"] if page is not None else [])
    return 0


def _write_with_page(place: Path, text: str) -> Path | None:
    """Write an envelope, and draw the page beside it again so that it names the keys.

    Returns the page, or None if there is none. Everything is made before anything is replaced.
    """
    page = place.with_name("certificate.html")
    drawn = None
    if page.is_file():
        from discreet.certificate import read_signed
        from discreet.report import certificate_page

        signed = read_signed(text)
        drawn = certificate_page(signed.document, signed).html()
    with output_file(str(place), argument="path") as draft:
        assert draft is not None
        draft.write_text(text, encoding="utf-8")
        if drawn is not None:
            with replace_file(page) as html:
                html.write_text(drawn, encoding="utf-8", newline="\n")
    return None if drawn is None else page


def _signed(target: Path, block: dict[str, str | None], own: Ed25519PrivateKey) -> Envelope:
    from discreet._dsse import read_date
    from discreet.certificate import Issuer, files_of, sign_certificate
    from discreet.report import read_document

    last = read_date("valid_until", str(block["valid_until"]))
    today = dt.datetime.now(dt.UTC).date()
    issuer = Issuer(**{**block, "date": today, "valid_until": last})  # type: ignore[arg-type]
    return sign_certificate(target.read_bytes(), files_of(read_document(target)), issuer, own)


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
    if as_json:
        print_json({"written": revoked, "revoked": found.id})
    else:
        print_lines([f"revoked: {found.id}", f"written: {shown(revoked)}"])


def private_key(path: str, passphrase_file: str | None) -> Ed25519PrivateKey:
    """Read a private key, with a passphrase from a file or, on a terminal, by asking."""
    from discreet._dsse import read_private_key

    if passphrase_file is not None:
        return read_private_key(path, passphrase=_passphrase(passphrase_file))
    try:
        return read_private_key(path)
    except InvalidValue as error:
        if "passphrase" not in error.expected or not sys.stdin.isatty():
            raise
    secret = click.prompt("passphrase", hide_input=True).encode()
    return read_private_key(path, passphrase=secret)


def _passphrase(name: str) -> bytes:
    return read_text("passphrase_file", name).partition("\n")[0].rstrip("\r").encode()


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
                (shown(one.path), one.kind, one.state, _text(one.old), _text(one.new), one.why)
                for one in found
            ]
            print_table(headings, rows, numbers=(3, 4))
        print_lines(["", ", ".join(f"{count} {state}" for state, count in counts.items())])
    return 1 if counts["affected"] else 6 if counts["not checked"] else 0


def _finite(value: float | None) -> float | None:
    return None if value is None else finite(value)


def _text(value: float | None) -> str:
    return "" if value is None else at_most(value)
