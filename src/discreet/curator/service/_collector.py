"""A collector of local reports over HTTP: checked, on the disk before the answer, counted once.

Nobody needs to trust it: a report is randomized before it comes. It does know tokens and arrival
times, so its certificate is a local one, and figures for a shuffler are hypothetical here.

``POST /v1/reports`` takes one report as bytes, with ``Authorization: Bearer TOKEN`` and
``Report-Number: 1`` (2, 3, ... up to what the token allows). A report that is sent again under its
number is answered again and counted once. ``GET /v1/plan``, ``/v1/estimate`` and
``/v1/certificate`` need no token: what they say follows from randomized reports.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from discreet import _validate
from discreet._files import create_file
from discreet._json import canonical, read_json
from discreet.curator.service._registry import digest_of, matches, new_secret, parse
from discreet.errors import DataCorrupt, InvalidValue
from discreet.local import certify_collection, compare_deployments, read_plan

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

_TABLES = """
CREATE TABLE IF NOT EXISTS clients (id TEXT PRIMARY KEY, digest TEXT NOT NULL, allowed INTEGER);
CREATE TABLE IF NOT EXISTS reports (
    client TEXT NOT NULL, number INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (client, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refused (reason TEXT PRIMARY KEY, count INTEGER NOT NULL);
"""
# What a refusal is called over HTTP.
_STATUS = {"no such token": 401, "above her budget": 403, "another report under this number": 409}
COUNTED, AGAIN = "counted", "counted before"


@final
class Collector:
    """The state of a collection in one directory: its plan, its tokens and every report.

    Parameters
    ----------
    directory : path
        Where it is; the plan and the reports of an earlier run are read from there.
    plan : mapping, optional
        The plan (``discreet.local.write_plan``) of a new collection.

    Raises
    ------
    InvalidValue
        If there is no plan, or another one than that of the directory.
    DataCorrupt
        If what is stored cannot be read.
    """

    def __init__(self, directory: str | Path, plan: dict[str, Any] | None = None) -> None:
        self._place = Path(directory)
        file = self._place / "plan.json"
        if plan is not None:
            read_plan(plan)
            self._place.mkdir(parents=True, exist_ok=True)
            create_file(file, canonical(plan))
        if not file.exists():
            raise InvalidValue("plan", None, f"a plan, as {file} does not exist")
        self.document = read_json(file.read_bytes(), "the plan")
        if plan is not None and plan != self.document:
            raise InvalidValue("plan", plan, f"the plan of {file}")
        self.oracle = read_plan(self.document)
        self._guard = threading.Lock()
        self._base = sqlite3.connect(self._place / "reports.sqlite", check_same_thread=False)
        try:
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=FULL")
            self._base.executescript(_TABLES)
            self._server = self.oracle.server()
            with closing(self._base.execute("SELECT body FROM reports")) as rows:
                self._server.aggregate(row[0] for row in rows)
            self.refused = Counter(dict(self._base.execute("SELECT reason, count FROM refused")))
        except sqlite3.DatabaseError as error:
            self._base.close()
            raise DataCorrupt(f"the reports in {self._place} cannot be read: {error}") from error

    def close(self) -> None:
        """Close the files; everything that was answered is on the disk already."""
        self._base.close()

    def admit(self, reports: int = 1) -> str:
        """Return a new token for one person, who may send this many reports.

        Parameters
        ----------
        reports : int
            How many reports she agreed to.

        Returns
        -------
        str
            The token; only its digest is stored.

        Raises
        ------
        InvalidValue
            If the number is not at least 1.
        """
        allowed = _validate.integer("reports", reports, at_least=1, at_most=10**6)
        made = new_secret()
        with self._guard, self._base:
            row = (made.id, digest_of(made.secret), allowed)
            self._base.execute("INSERT INTO clients VALUES (?, ?, ?)", row)
        return made.as_text()

    def take(self, token: str, number: int, body: bytes) -> str:
        """Check a report, store it and count it once.

        Parameters
        ----------
        token : str
            What :meth:`admit` returned.
        number : int
            Which of her reports it is, from 1.
        body : bytes
            The report.

        Returns
        -------
        str
            ``counted``, ``counted before``, or why it was refused; refusals are counted too.
        """
        with self._guard:
            reason = self._check(token, number, body)
            if reason == AGAIN:
                return reason
            with self._base:
                if reason is None:
                    row = (token.split("_")[1], number, body)
                    self._base.execute("INSERT INTO reports VALUES (?, ?, ?)", row)
                else:
                    self._base.execute(
                        "INSERT INTO refused VALUES (?, 1) "
                        "ON CONFLICT (reason) DO UPDATE SET count = count + 1",
                        (reason,),
                    )
            if reason is not None:
                self.refused[reason] += 1
                return reason
            self._server.aggregate([body])
            return COUNTED

    def _check(self, token: str, number: int, body: bytes) -> str | None:
        """Say why a report is not to be counted, or nothing."""
        secret = parse(token)
        row = None
        if secret is not None:
            found = self._base.execute("SELECT * FROM clients WHERE id = ?", (secret.id,))
            row = found.fetchone()
        same = secret is not None and matches(secret.secret, None if row is None else row[1])
        if secret is None or row is None or not same:
            return "no such token"
        if not 1 <= number <= row[2]:
            return "above her budget"
        trial = self.oracle.server()
        if trial.aggregate([body]) != 1:
            return next(iter(trial.rejected))
        asked = "SELECT body FROM reports WHERE client = ? AND number = ?"
        known = self._base.execute(asked, (secret.id, number)).fetchone()
        if known is None:
            return None
        return AGAIN if known[0] == body else "another report under this number"

    def summary(self) -> dict[str, Any]:
        """Return what was collected, as JSON.

        Returns
        -------
        dict
            Reports that were counted, refusals by reason, what a report costs, and the shares
            with joint intervals; figures for a shuffler or a curator are marked hypothetical.
        """
        with self._guard:
            people, refused = self._server.accepted, dict(self.refused)
            found = self._server.estimate() if people else None
        shares = []
        deployments: list[dict[str, Any]] = []
        if found is not None:
            low, high = found.interval()
            columns = zip(found.values, found.shares, low, high, strict=True)
            names = ("value", "share", "low", "high")
            shares = [
                dict(zip(names, (str(v), *map(float, rest)), strict=True)) for v, *rest in columns
            ]
            deployments = [
                {**vars(row), "hypothetical": row.name != "local"}
                for row in compare_deployments(self.oracle, people)
            ]
        facts = {"reports": people, "refused": refused, "epsilon": str(self.oracle.epsilon)}
        return {**facts, "shares": shares, "deployments": deployments}

    def certificate(self) -> dict[str, Any]:
        """Return the certificate of the collection: a local one, as JSON."""
        with self._guard:
            return certify_collection(self.oracle, self._server).to_json()


def create_collector(
    collector: Collector, *, rate: float = 1.0, burst: int = 10, most_bytes: int | None = None
) -> Starlette:
    """Return the application of a collector.

    Parameters
    ----------
    collector : Collector
        The collection.
    rate, burst : float, int
        How many requests a second one token, or one address without a token, may make in the long
        run, and how many at once.
    most_bytes : int, optional
        The largest body that is read; by default the length of a report.

    Returns
    -------
    Starlette
        The application.
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from discreet.curator.service._gate import SECURITY_HEADERS, Limiter

    limiter = Limiter(rate=rate, burst=burst)
    most = collector.oracle.report_bytes if most_bytes is None else most_bytes
    headers = {name.decode(): value.decode() for name, value in SECURITY_HEADERS}

    def answer(status: int, content: Any, **more: str) -> JSONResponse:
        return JSONResponse(content, status, headers={**headers, **more})

    async def post_report(request: Request) -> JSONResponse:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        secret = parse(token) if scheme.lower() == "bearer" else None
        host = "" if request.client is None else request.client.host
        pause = limiter.wait_for(host if secret is None else secret.id)
        if pause > 0.0:
            return answer(429, {"refused": "too many requests"}, **{"retry-after": f"{pause:.0f}"})
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > most:
                return answer(413, {"refused": f"a report has at most {most} bytes"})
        number = request.headers.get("report-number", "1")
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            return answer(400, {"refused": "Report-Number is not a number from 1"})
        given = "" if secret is None else token
        result = await run_in_threadpool(collector.take, given, int(number), body)
        if result in (COUNTED, AGAIN):
            return answer(201 if result == COUNTED else 200, {"report": result})
        return answer(_STATUS.get(result, 400), {"refused": result})

    async def show(request: Request) -> JSONResponse:
        host = "" if request.client is None else request.client.host
        if limiter.wait_for(f"read {host}") > 0.0:
            return answer(429, {"refused": "too many requests"}, **{"retry-after": "1"})
        what = {"plan": lambda: collector.document, "estimate": collector.summary}
        make = what.get(request.url.path.rpartition("/")[2], collector.certificate)
        return answer(200, await run_in_threadpool(make))

    shown = [Route(f"/v1/{name}", show) for name in ("plan", "estimate", "certificate")]
    return Starlette(routes=[Route("/v1/reports", post_report, methods=["POST"]), *shown])


def run_collector(
    collector: Collector,
    *,
    host: str = "127.0.0.1",
    port: int = 8477,
    certfile: str | None = None,
    keyfile: str | None = None,
) -> None:
    """Serve a collector until it is stopped.

    Parameters
    ----------
    collector : Collector
        The collection.
    host, port : str, int
        Where to listen.
    certfile, keyfile : str, optional
        The certificate and the key of TLS; without them only this machine is served.

    Raises
    ------
    InvalidValue
        If other machines are to be served without TLS.
    """
    import uvicorn

    from discreet.curator.service._app import NoDelayProtocol

    if (certfile is None or keyfile is None) and host not in ("127.0.0.1", "::1", "localhost"):
        raise InvalidValue("certfile", certfile, f"a certificate and a key of TLS, to serve {host}")
    uvicorn.run(
        create_collector(collector),
        host=host,
        port=port,
        http=NoDelayProtocol,
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
        server_header=False,
        access_log=False,
    )
