"""``discreet local admit | serve | simulate``: a collector over HTTP, and phones that report."""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import ipaddress
import json
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from discreet._files import new_directory, write_file
from discreet._json import read_json
from discreet.cli._app import print_json, print_lines, show_progress
from discreet.cli._local import local
from discreet.cli._options import Count, Real, output_file, read_text
from discreet.errors import FileUnusable, NotApplicable

if TYPE_CHECKING:
    import uvicorn

    from discreet.curator.service import Collector

_IN_A_BATCH = 500
_LINES = 4

place_argument = click.argument("place", metavar="DIRECTORY", help="Where the collection is.")
plan_option = click.option("--plan", metavar="FILE", help="The plan of a new collection.")


def _open(place: str, plan: str | None) -> Collector:
    from discreet.curator.service import Collector

    if plan is None and not Path(place).is_dir():
        raise FileUnusable("place", place, "the directory of a collection; --plan begins a new one")
    document = None if plan is None else read_json(read_text("plan", plan), "the plan")
    return Collector(place, document)


@local.command(short_help="Tokens for people who may report over HTTP.")
@place_argument
@plan_option
@click.option("--people", type=Count(at_least=1), required=True, help="How many tokens.")
@click.option("--reports", type=Count(at_least=1), default="1", help="How many reports each.")
@click.option("--out", metavar="FILE", required=True, help="Write the tokens, one a line.")
def admit(place: str, plan: str | None, people: int, reports: int, out: str, as_json: bool) -> None:
    """Make tokens, one for each person; the collector stores only their digests.

    Examples:
      discreet local admit collection --plan plan.json --people 1000 --out tokens.txt
    """
    collector = _open(place, plan)
    try:
        with output_file(out, argument="out", private=True) as draft:
            tokens = collector.admit_each(people, reports)
            Path(str(draft)).write_text("\n".join(tokens) + "\n", encoding="ascii")
    finally:
        collector.close()
    if as_json:
        print_json({"people": people, "reports": reports, "out": out})
        return
    print_lines([f"{people} tokens of {reports} reports each: {out}"])


@local.command(short_help="Take reports over HTTP.")
@place_argument
@plan_option
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", help="Where to listen.")
@click.option("--port", type=Count(at_least=0, at_most=65535), default="8477", help="The port.")
@click.option("--certfile", metavar="FILE", help="The certificate of TLS (PEM).")
@click.option("--keyfile", metavar="FILE", help="Its key (PEM).")
@click.option("--rate", type=Real(above=0), default="1", help="Requests a second of one token.")
@click.option("--burst", type=Count(at_least=1), default="10", help="How many of them at once.")
def serve(
    place: str,
    plan: str | None,
    host: str,
    port: int,
    certfile: str | None,
    keyfile: str | None,
    rate: float,
    burst: int,
    as_json: bool,
) -> None:
    """Serve a collector until it is stopped; only this machine without a certificate of TLS.

    Examples:
      discreet local serve collection --plan plan.json
      discreet local serve collection --host 0.0.0.0 --certfile cert.pem --keyfile key.pem
    """
    collector = _open(place, plan)
    try:
        options = {"certfile": certfile, "keyfile": keyfile, "rate": rate, "burst": burst}
        server = _make_server(collector, host=host, port=port, **options)
        scheme = "http" if certfile is None else "https"
        facts = {"directory": place, "url": f"{scheme}://{host}:{port}", "plan": collector.document}
        line = f"{place}: {facts['url']}/v1/plan"
        print(json.dumps({"serving": facts}) if as_json else line, flush=True)
        server.run()
    finally:
        collector.close()


def _make_server(collector: Collector, **options: Any) -> uvicorn.Server:
    from discreet.curator.service import make_server

    try:
        return make_server(collector, **options)
    except ImportError as error:
        raise NotApplicable(
            f"a collector needs more packages: pip install 'discreet[serve]' ({error})"
        ) from None


@local.command(short_help="A demo: phones that report over TLS.")
@click.option("--people", type=Count(at_least=10), default="100000", help="How many phones.")
@click.option("--size", type=Count(at_least=2), default="64", help="How many values there are.")
@click.option("--epsilon", metavar="NUMBER", default="2", help="The epsilon of one report.")
@click.option(
    "--out", metavar="DIRECTORY", default="discreet-local", help="A new directory for everything."
)
def simulate(people: int, size: int, epsilon: str, out: str, as_json: bool) -> None:
    """Simulate phones that report to a collector over HTTPS, and compare with the truth.

    Every phone has a token of its own and one value. Relays send the reports in batches of 500 over
    TLS with a certificate made for this run; every tenth batch is sent twice, as if its answer
    had been lost. The directory has the collection, its certificate and its page.

    Examples:
      discreet local simulate
      discreet local simulate --people 1e4 --size 1000 --out phones --json
    """
    from discreet.local import compare_deployments, write_plan
    from discreet.report import local_page

    with new_directory(out) as draft:
        plan = write_plan(size, epsilon)
        (draft / "plan.json").write_text(json.dumps(plan, indent=2) + "\n", encoding="utf-8")
        collector = _open(str(draft / "collection"), str(draft / "plan.json"))
        try:
            facts = _run_phones(collector, people, draft)
            rows = compare_deployments(collector.oracle, people)
            page = local_page(collector.oracle, collector.estimate(), rows, collector.spending())
            page.write(draft / "page.html")
            text = json.dumps(collector.certificate(), indent=2) + "\n"
            (draft / "certificate.json").write_text(text, encoding="utf-8")
        finally:
            collector.close()
    if as_json:
        print_json({**facts, "out": out})
        return
    counted, seconds = facts["counted"], facts["seconds"]
    used = f"{facts['cpu_seconds']:.1f} s of the processor"
    print_lines(
        [
            f"{counted} of {people} phones were counted; {facts['again']} reports came twice",
            f"{seconds:.1f} s over TLS, {people / seconds:.0f} phones a second, {used}",
            f"{facts['covered']} of {size} true shares lie in their intervals (95 %, together)",
            f"page: {out}/page.html",
        ]
    )


def _run_phones(collector: Collector, people: int, place: Path) -> dict[str, Any]:
    """Serve the collector, let all phones report, and compare the shares with the truth."""
    oracle = collector.oracle
    size = oracle.domain.size - 1
    # The first value is the most frequent, the second half as frequent, and so on.
    shares = np.cumsum(1.0 / np.arange(1, size + 1))
    values = np.searchsorted(shares, (np.arange(people) + 0.5) / people * shares[-1])
    certfile, keyfile = _make_certificate(place)
    options = {"certfile": certfile, "keyfile": keyfile, "rate": 1e9, "burst": 10**9}
    server = _make_server(collector, port=0, **options)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise NotApplicable("the collector did not start")
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        trusted = ssl.create_default_context(cafile=certfile)
        start, used = time.perf_counter(), time.process_time()
        tokens = collector.admit_each(people)

        def send(line: int) -> list[str]:
            # A relay with one connection, for every _LINES-th batch.
            answers: list[str] = []
            connection = http.client.HTTPSConnection("127.0.0.1", port, context=trusted)
            starts = range(line * _IN_A_BATCH, people, _LINES * _IN_A_BATCH)
            for number, at in enumerate(show_progress(starts, "phones") if line == 0 else starts):
                part = slice(at, at + _IN_A_BATCH)
                reports = oracle.randomize_each(values[part])
                listed = [
                    [token, 1, base64.b64encode(report.tobytes()).decode()]
                    for token, report in zip(tokens[part], reports, strict=True)
                ]
                for _ in range(2 if number % 10 == 0 else 1):
                    answers += _post(connection, {"reports": listed})["results"]
            connection.close()
            return answers

        with ThreadPoolExecutor(_LINES) as pool:
            answers = [one for line in pool.map(send, range(_LINES)) for one in line]
        seconds, cpu = time.perf_counter() - start, time.process_time() - used
    finally:
        server.should_exit = True
        thread.join(timeout=30)
    found = collector.estimate()
    low, high = found.interval()
    true = np.bincount(values, minlength=size) / people
    return {
        "people": people,
        "counted": answers.count("counted"),
        "again": answers.count("counted before"),
        "seconds": seconds,
        "cpu_seconds": cpu,
        "covered": int(((low[:size] <= true) & (true <= high[:size])).sum()),
        "values": size,
        "epsilon": str(oracle.epsilon),
        "method": oracle.method,
        "largest_error": float(np.abs(found.shares[:size] - true).max()),
    }


def _post(connection: http.client.HTTPSConnection, content: Any) -> dict[str, Any]:
    connection.request("POST", "/v1/batches", json.dumps(content))
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise NotApplicable(f"the collector answered {answer.status}: {body[:200]!r}")
    found: dict[str, Any] = json.loads(body)
    return found


def _make_certificate(place: Path) -> tuple[str, str]:
    """Write a certificate of TLS for this machine and one day, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "discreet local simulate")])
    now = dt.datetime.now(dt.UTC)
    local_names = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(local_names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pem = serialization.Encoding.PEM
    write_file(place / "tls-key.pem", key.private_bytes(pem, *form), private=True)
    (place / "tls-certificate.pem").write_bytes(certificate.public_bytes(pem))
    return str(place / "tls-certificate.pem"), str(place / "tls-key.pem")
