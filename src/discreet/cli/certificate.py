"""``discreet certificate``: check a certificate, or draw its page again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli.attack_output import page_place
from discreet.cli.options import Json, shown
from discreet.cli.signing import PublicKeys, RevokedList, keygen, revoke, sign, trusted_keys
from discreet.cli.tables import print_json, print_lines
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.report import Check

__all__ = ["certificate"]

certificate = typer.Typer(
    name="certificate",
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Check the certificate of a release, or draw its page again.",
)

_Path = Annotated[
    str, typer.Argument(metavar="FILE", help="certificate.json, certificate.html or annex.json.")
]


@certificate.command(short_help="Hold it against what it rests on.")
def verify(
    path: _Path,
    *,
    ledger: Annotated[
        str | None, typer.Option(metavar="LEDGER", help="The ledger that was charged.")
    ] = None,
    keys: PublicKeys = None,
    revoked: RevokedList = None,
    as_json: Json = False,
) -> None:
    r"""Check schema, hashes, bounds, audits, warnings, entries, files and what the ledger recorded.

    Takes what discreet train, discreet pate and DP-SGD write, and what discreet certify publishes.
    Files that the certificate names are compared if they are beside it. With --key it must be
    signed by one of the keys. Exit code 0: everything was checked and fits; 1: something is
    wrong; 4: a file or the ledger is missing or damaged; 6: nothing is wrong, but something was
    not checked.

    \b
    Examples:
      discreet certificate verify discreet-demo/public/certificate.json
      discreet certificate verify certificate.html --ledger study.ledger
      discreet certificate verify certificate.json --key clinic.pub --revoked revoked.json
    """
    from discreet.report import verify_certificate, verify_signature

    if revoked is not None and not keys:
        raise InvalidValue("revoked", revoked, "only with --key")
    trusted = trusted_keys(keys, revoked) if keys else None
    if ledger is None:
        checks = verify_certificate(path)
    else:
        from discreet.cli.ledger_reader import open_to_read

        with open_to_read(ledger) as book:
            checks = verify_certificate(path, ledger=book)
    checks += verify_signature(path, trusted)
    _print(path, checks, as_json=as_json)
    if any(check.ok is False for check in checks):
        raise typer.Exit(1)
    if any(check.ok is None for check in checks):
        raise typer.Exit(6)


@certificate.command(short_help="Draw the page of a certificate.")
def page(
    path: _Path,
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to write the page (.html).")
    ],
) -> None:
    r"""Draw the page of a public certificate from its JSON document.

    \b
    Example:
      discreet certificate page certificate.json --output certificate.html
    """
    from discreet.report import read_document

    document = read_document(path)
    if "title" not in document or document.get("part") == "internal":
        raise InvalidValue("path", path, "a certificate that was published")
    with page_place(output) as place:
        from discreet.report import certificate_page, find_signature

        place.write(certificate_page(document, find_signature(path)))
    print_lines([f"page: {shown(output)}"])


def _print(path: str, checks: list[Check], *, as_json: bool) -> None:
    wrong = [check for check in checks if check.ok is False]
    if as_json:
        listed = [{"what": one.what, "ok": one.ok, "detail": one.detail} for one in checks]
        print_json({"certificate": path, "ok": not wrong, "checks": listed})
        return
    words = {True: "ok", False: "WRONG", None: "not checked"}
    for check in checks:
        detail = f": {check.detail}" if check.detail else ""
        print_lines([f"{words[check.ok]:<12} {check.what}{detail}"])
    skipped = sum(check.ok is None for check in checks)
    verdict = f"{len(wrong)} wrong" if wrong else "everything that was checked fits"
    more = f", {skipped} not checked" if skipped else ""
    print_lines(["", f"{shown(Path(path).as_posix())}: {verdict}{more}"])


certificate.command(short_help="Make a key that signs.")(keygen)
certificate.command(short_help="Sign a certificate.")(sign)
certificate.command(short_help="Declare that a key counts no longer.")(revoke)
