"""``discreet serve``: the curator as a service, with its web page."""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path
from typing import Annotated

import typer

from discreet.cli.options import count, real
from discreet.errors import InvalidValue, NotApplicable

__all__ = ["serve"]


def serve(
    place: Annotated[str, typer.Argument(metavar="LEDGER", help="The file, or a URL.")],
    *,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; TLS is a proxy's work.")
    ] = "127.0.0.1",
    port: Annotated[str, typer.Option(metavar="INTEGER", help="The port.")] = "8080",
    data: Annotated[
        str | None,
        typer.Option(metavar="DIRECTORY", help="Owners may register files of it on the page."),
    ] = None,
    quantum: Annotated[
        str,
        typer.Option(metavar="SECONDS", help="Answers leave after 1, 2, 4, ... times this."),
    ] = "0.05",
    settle: Annotated[
        str,
        typer.Option(metavar="SECONDS", help="Quotes tell of answers older than this."),
    ] = "300",
    rate: Annotated[
        str, typer.Option(metavar="NUMBER", help="Requests a second of one token.")
    ] = "20",
    burst: Annotated[str, typer.Option(metavar="INTEGER", help="Requests at once.")] = "40",
    threads: Annotated[
        str, typer.Option(metavar="INTEGER", help="Requests worked on at a time, per worker.")
    ] = "8",
    engine_threads: Annotated[
        str, typer.Option(metavar="INTEGER", help="Threads of DuckDB for one query.")
    ] = "2",
    workers: Annotated[str, typer.Option(metavar="INTEGER", help="Processes.")] = "1",
    body_limit: Annotated[
        str, typer.Option(metavar="BYTES", help="The largest request.")
    ] = "65536",
) -> None:
    r"""Answer analysts over HTTP; nothing leaves that was not charged before.

    The ledger, the registry beside it (discreet curator) and every dataset are opened before
    the first request is taken. The page is at /, the interface at /openapi.json. For a network
    put a proxy with TLS in front.

    \b
    Examples:
      discreet serve study.ledger
      discreet serve study.ledger --data data --quantum 0.1 --port 8443
      discreet serve "postgresql://curator@db/study" --workers 4
    """
    from discreet.curator.service import Settings

    settings = Settings(
        ledger=_place(place),
        data=None if data is None else str(Path(data).absolute()),
        quantum=real("quantum", quantum, above=0),
        quote_delay=real("settle", settle, above=0),
        rate=real("rate", rate, above=0),
        burst=count("burst", burst, at_least=1),
        threads=count("threads", threads, at_least=1),
        workers=count("workers", workers, at_least=1),
        engine_threads=count("engine_threads", engine_threads, at_least=1),
        body_limit=count("body_limit", body_limit, at_least=1024),
    )
    number = count("port", port, at_least=0, at_most=65535)
    if not _is_local(host):
        print(
            f"note: {host} can be reached from elsewhere; tokens need TLS, which a proxy adds",
            file=sys.stderr,
        )
    try:
        from discreet.curator.service import run_service
    except ImportError as error:
        raise NotApplicable(
            f"the service needs more packages: pip install 'discreet[serve]' ({error})"
        ) from None
    run_service(settings, host=host, port=number)


def _place(place: str) -> str:
    return place if "://" in place else str(Path(place).absolute())


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise InvalidValue("host", host, "an address such as 127.0.0.1 or ::1") from None
