"""``discreet certificate keygen``, ``sign`` and ``revoke``: who answers for a certificate."""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discreet._files import replace_file, write_file
from discreet.cli.options import Json, shown
from discreet.cli.tables import print_json, print_lines
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from discreet._dsse import Envelope, TrustedKeys

__all__ = [
    "PassphraseFile",
    "PublicKeys",
    "RevokedList",
    "SigningKey",
    "keygen",
    "private_key",
    "revoke",
    "sign",
    "trusted_keys",
    "write_text",
]

PassphraseFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Its first line is the passphrase of the key; - reads stdin."
    ),
]
SigningKey = Annotated[
    str | None, typer.Option("--sign-key", metavar="FILE", help="Sign it with this private key.")
]
PublicKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--key", metavar="FILE", help="A public key that you trust; repeatable, one suffices."
    ),
]
RevokedList = Annotated[
    str | None,
    typer.Option("--revoked", metavar="FILE", help="The keys that count no longer."),
]


def keygen(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Writes NAME.key, for you alone, and NAME.pub.")
    ] = "discreet-signing",
    *,
    passphrase_file: PassphraseFile = None,
    ask_passphrase: Annotated[
        bool, typer.Option("--ask-passphrase", help="Ask for a passphrase on the terminal.")
    ] = False,
    valid_until: Annotated[
        str | None,
        typer.Option(metavar="DAY", help="The key counts until this day, such as 2027-12-31."),
    ] = None,
    as_json: Json = False,
) -> None:
    r"""Make an Ed25519 key that signs certificates and receipts.

    The private half is written with mode 0600, encrypted if there is a passphrase. Publish the
    public half where readers of your certificates find it by themselves. Nothing is replaced.

    \b
    Examples:
      discreet certificate keygen clinic --valid-until 2028-12-31
      discreet certificate keygen clinic --ask-passphrase
    """
    from discreet._dsse import read_date, write_key_pair

    last = None if valid_until is None else read_date("valid_until", valid_until)
    if last is not None and last < _today():
        raise InvalidValue("valid_until", valid_until, "a day that is not over")
    secret = None if passphrase_file is None else _passphrase(passphrase_file)
    if ask_passphrase:
        if secret is not None:
            raise InvalidValue("ask_passphrase", "given", "no --passphrase-file beside it")
        secret = typer.prompt("passphrase", hide_input=True, confirmation_prompt=True).encode()
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


def sign(
    path: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="certificate.json, or its certificate.dsse.json to add a second signature.",
        ),
    ],
    *,
    key: Annotated[str, typer.Option(metavar="FILE", help="Your private key.")],
    passphrase_file: PassphraseFile = None,
    who: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Who answers for the certificate.")
    ] = None,
    contact: Annotated[str | None, typer.Option(metavar="TEXT", help="How to reach them.")] = None,
    intended_use: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the certificate is meant for.")
    ] = None,
    valid_until: Annotated[
        str | None,
        typer.Option(metavar="DAY", help="The last day of the signature, such as 2027-12-31."),
    ] = None,
    as_json: Json = False,
) -> None:
    r"""Sign a certificate; the envelope is written beside it as certificate.dsse.json.

    The certificate is checked first, and one that is wrong is not signed. The envelope holds the
    document and the SHA-256 of its files, in a format that other tools read (DSSE, in-toto). The
    page beside it is drawn again and names the key.

    \b
    Examples:
      discreet certificate sign public/certificate.json --key clinic.key --who "Ward 7" \
        --contact privacy@clinic.example --valid-until 2027-12-31 --intended-use "triage study"
      discreet certificate sign public/certificate.dsse.json --key next.key
    """
    from discreet._dsse import key_id
    from discreet.certificate._signing import ENVELOPE
    from discreet.report import find_signature

    target = Path(path)
    block = {
        "who": who,
        "contact": contact,
        "intended_use": intended_use,
        "valid_until": valid_until,
    }
    if target.suffix.lower() != ".json":
        raise InvalidValue("path", path, "certificate.json or certificate.dsse.json")
    again = target.name.endswith(".dsse.json")
    for name, value in block.items():
        if again and value is not None:
            raise InvalidValue(name, value, "nothing: the envelope has its issuer already")
        if not again and value is None:
            raise InvalidValue(name, "none", "a value: it is part of what is signed")
    own = private_key(key, passphrase_file)
    found = find_signature(path) if again else None
    envelope = _signed(target, block, own) if found is None else found.envelope.with_signature(own)
    place = target.with_name(ENVELOPE) if found is None else target
    text = json.dumps(envelope.to_json(), indent=1) + "\n"
    page = _write_with_page(place, text)
    name = key_id(own.public_key())
    if as_json:
        written = [str(path) for path in (place, page) if path is not None]
        print_json({"written": written, "key": name, "signatures": len(envelope.signatures)})
    else:
        print_lines([f"signed: {shown(place.as_posix())}", f"key:    {name}"])
        print_lines([f"page:   {shown(page.as_posix())}"] if page is not None else [])


def _write_with_page(place: Path, text: str) -> Path | None:
    """Write an envelope, and draw the page beside it again so that it names the keys.

    Returns the page, or None if there is none. Everything is made before anything is replaced.
    """
    page = place.with_name("certificate.html")
    if not page.is_file():
        write_text(str(place), text)
        return None
    from discreet.certificate._signing import read_signed
    from discreet.report import certificate_page

    signed = read_signed(text)
    html = certificate_page(signed.document, signed).html()
    with replace_file(page) as draft:
        draft.write_text(html, encoding="utf-8", newline="\n")
        write_text(str(place), text)
    return page


def _signed(target: Path, block: dict[str, str | None], own: Ed25519PrivateKey) -> Envelope:
    from discreet._dsse import read_date
    from discreet.certificate._signing import Issuer, files_of, sign_certificate
    from discreet.report import read_document, verify_certificate

    last = read_date("valid_until", str(block["valid_until"]))
    issuer = Issuer(**{**block, "date": _today(), "valid_until": last})  # type: ignore[arg-type]
    wrong = [check for check in verify_certificate(target) if check.ok is False]
    if wrong:
        print_lines([f"{shown(str(target))} is not signed. WRONG {wrong[0].what}"])
        raise typer.Exit(1)
    content = target.read_bytes()
    return sign_certificate(content, files_of(read_document(target)), issuer, own)


def revoke(
    revoked: Annotated[
        str, typer.Argument(metavar="LIST", help="The list of revoked keys; made if it is new.")
    ],
    *,
    key: Annotated[str, typer.Option(metavar="FILE", help="The public key to revoke.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why it counts no longer.")],
    as_json: Json = False,
) -> None:
    r"""Add a key to a list of revoked keys, to be published beside the public keys.

    Whoever verifies with --revoked LIST refuses every signature of that key, whatever day it
    states: whoever has stolen a key can write any day. Sign again with a new key what still holds.

    \b
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
    secret = typer.prompt("passphrase", hide_input=True).encode()
    return read_private_key(path, passphrase=secret)


def trusted_keys(keys: list[str] | None, revoked: str | None) -> TrustedKeys:
    """Read the public keys and the list of revoked ones that a reader trusts."""
    from discreet._dsse import TrustedKeys, read_public_key, read_revoked

    return TrustedKeys(
        [read_public_key(path) for path in keys or ()],
        {} if revoked is None else read_revoked(revoked),
    )


def _passphrase(name: str) -> bytes:
    from discreet.cli.private_files import read_text

    return read_text("passphrase_file", name).partition("\n")[0].rstrip("\r").encode()


def _today() -> dt.date:
    return dt.datetime.now(dt.UTC).date()


def write_text(output: str, text: str) -> None:
    """Replace a file at once, or leave it as it was."""
    if "\0" in output or not Path(output).name:
        raise InvalidValue("output", output, "the name of a file")
    target = Path(output)
    try:
        if target.exists() and not target.is_file():
            # To replace a device by a file would be worse than to refuse it.
            raise InvalidValue("output", output, "the name of a file")
        write_file(target, text)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidValue("output", output, f"a file that can be written ({reason})") from None
