"""A collector of local reports over HTTP: checked, on the disk before the answer, counted once.

Nobody needs to trust it: a report is randomized before it comes. It does know tokens and arrival
times, so its certificate is a local one, and figures for a shuffler are hypothetical here.

``POST /v1/reports`` takes one report as bytes, with ``Authorization: Bearer TOKEN`` and
``Report-Number: 1`` (2, 3, ... up to what the token allows). ``POST /v1/batches`` takes up to 1,000
of them from a relay, ``{"reports": [[token, number, report in base64], ...]}``, and answers for
each. A report that is sent again under its number is answered again and counted once. ``GET
/v1/plan``, ``/v1/estimate`` and ``/v1/certificate`` need no token: what they say follows from
randomized reports.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from discreet import _validate
from discreet._files import create_file
from discreet._json import canonical, read_json
from discreet.curator.service._registry import digest_of, matches, new_secret, parse
from discreet.errors import DataCorrupt, InvalidValue
from discreet.local import FrequencyEstimate, certify_collection, compare_deployments, read_plan

if TYPE_CHECKING:
    import uvicorn
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
_MOST_IN_A_BATCH = 1_000
_UNREADABLE = "not a list of [token, number, report in base64]"


@final
class Collector:
    """The state of a collection in one directory: its plan, its tokens and every report.

    :param directory: where it is; plan and reports of an earlier run are read from there
    :param plan: the plan (``discreet.local.write_plan``) of a new collection
    :raises InvalidValue: if there is no plan, or another one than that of the directory
    :raises DataCorrupt: if what is stored cannot be read
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
        base = self._place / "reports.sqlite"
        create_file(base, b"", private=True)  # the journals beside it are as private
        self._base = sqlite3.connect(base, check_same_thread=False)
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
        """Return a new token for one person; only its digest is stored.

        :param reports: how many reports she agreed to
        :raises InvalidValue: if the number is not at least 1
        """
        return self.admit_each(1, reports)[0]

    def admit_each(self, people: int, reports: int = 1) -> list[str]:
        """Return a new token for each of many people.

        :param people: how many tokens to make
        :param reports: how many reports each of them agreed to
        :raises InvalidValue: if a number is not at least 1
        """
        count = _validate.integer("people", people, at_least=1, at_most=10**7)
        allowed = _validate.integer("reports", reports, at_least=1, at_most=10**6)
        made = [new_secret() for _ in range(count)]
        rows = ((one.id, digest_of(one.secret), allowed) for one in made)
        with self._guard, self._base:
            self._base.executemany("INSERT INTO clients VALUES (?, ?, ?)", rows)
        return [one.as_text() for one in made]

    def take(self, token: str, number: int, body: bytes) -> str:
        """Check a report, store it and count it once.

        :param token: what :meth:`admit` returned
        :param number: which of her reports it is, from 1
        :param body: the report
        :returns: ``counted``, ``counted before``, or why it was refused; refusals are counted too
        """
        return self.take_each([(token, number, body)])[0]

    def take_each(self, reports: Sequence[tuple[str, int, bytes]]) -> list[str]:
        """Check many reports, store the good ones in one step, and say what became of each.

        :param reports: a token, a number and a body each, as for :meth:`take`
        """
        results, fresh, refused = [], [], Counter[str]()
        with self._guard:
            # All are on the disk, or none is and an error is raised: nothing is counted before.
            with self._base:
                for token, number, body in reports:
                    result = self._check(token, number, body) or COUNTED
                    if result == COUNTED:
                        row = (token.split("_")[1], number, body)
                        self._base.execute("INSERT INTO reports VALUES (?, ?, ?)", row)
                        fresh.append(body)
                    elif result != AGAIN:
                        refused[result] += 1
                    results.append(result)
                self._base.executemany(
                    "INSERT INTO refused VALUES (?, ?) "
                    "ON CONFLICT (reason) DO UPDATE SET count = count + excluded.count",
                    refused.items(),
                )
            self.refused.update(refused)
            self._server.aggregate(fresh)
        return results

    def admits(self, token: str) -> bool:
        """Say whether a token is one that :meth:`admit` returned.

        :param token: any text
        """
        with self._guard:
            return self._count_allowed(token) > 0

    def _count_allowed(self, token: str) -> int:
        """Return how many reports a token allows: none if there is no such token."""
        secret = parse(token)
        if secret is None:
            return 0
        asked = "SELECT digest, allowed FROM clients WHERE id = ?"
        digest, allowed = self._base.execute(asked, (secret.id,)).fetchone() or (None, 0)
        return allowed if matches(secret.secret, digest) else 0

    def _check(self, token: str, number: int, body: bytes) -> str | None:
        """Say why a report is not to be counted, or nothing."""
        allowed = self._count_allowed(token)
        if not allowed:
            return "no such token"
        if not 1 <= number <= allowed:
            return "above her budget"
        wrong = self._server.refusal(body)
        if wrong is not None:
            return wrong
        asked = "SELECT body FROM reports WHERE client = ? AND number = ?"
        known = self._base.execute(asked, (token.split("_")[1], number)).fetchone()
        if known is None:
            return None
        return AGAIN if known[0] == body else "another report under this number"

    def estimate(self) -> FrequencyEstimate:
        """Return the shares that were found; ``rejected`` counts the refusals by reason.

        :raises NotApplicable: if no report was counted
        """
        with self._guard:
            return replace(self._server.estimate(), rejected=dict(self.refused))

    def spending(self) -> dict[int, int]:
        """Return how many people have sent 0, 1, 2, ... reports; each report cost epsilon."""
        asked = (
            "SELECT sent, COUNT(*) FROM (SELECT COUNT(r.number) AS sent FROM clients c "
            "LEFT JOIN reports r ON r.client = c.id GROUP BY c.id) GROUP BY sent ORDER BY sent"
        )
        with self._guard:
            return dict(self._base.execute(asked).fetchall())

    def summary(self) -> dict[str, Any]:
        """Return what was collected, as JSON.

        It has the reports that were counted, refusals by reason, what people have spent, and shares
        with joint intervals; figures for a shuffler or a curator are marked hypothetical.
        """
        people, refused, epsilon = self._server.accepted, dict(self.refused), self.oracle.epsilon
        spent = [
            {"reports": sent, "epsilon": str(sent * epsilon), "people": count}
            for sent, count in self.spending().items()
        ]
        facts = {"reports": people, "refused": refused, "epsilon": str(epsilon), "spent": spent}
        if not people:
            return {**facts, "shares": [], "deployments": []}
        found = self.estimate()
        columns = zip(found.values, found.shares, *found.interval(), strict=True)
        shares = [
            {"value": str(value), "share": float(share), "low": float(low), "high": float(high)}
            for value, share, low, high in columns
        ]
        deployments = [
            {**vars(row), "hypothetical": row.name != "local"}
            for row in compare_deployments(self.oracle, found.people)
        ]
        return {**facts, "shares": shares, "deployments": deployments}

    def certificate(self) -> dict[str, Any]:
        """Return the certificate of the collection: a local one, as JSON."""
        with self._guard:
            return certify_collection(self.oracle, self._server).to_json()


def create_collector(
    collector: Collector,
    *,
    rate: float = 1.0,
    burst: int = 10,
    most_bytes: int | None = None,
    body_seconds: float = 10.0,
) -> Starlette:
    """Return the application of a collector.

    :param collector: the collection
    :param rate: how many requests a second a token, or an address, may make in the long run
    :param burst: how many at once
    :param most_bytes: the largest report that is read; by default the length of a report
    :param body_seconds: how long a request may take to arrive
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from discreet.curator.service._gate import SECURITY_HEADERS, Limiter

    limiter = Limiter(rate=rate, burst=burst)
    most = collector.oracle.report_bytes if most_bytes is None else most_bytes
    headers = {name.decode(): value.decode() for name, value in SECURITY_HEADERS}

    def answer(status: int, content: Any, **more: str) -> JSONResponse:
        return JSONResponse(content, status, headers={**headers, **more})

    def too_many(key: str) -> JSONResponse | None:
        pause = limiter.wait_for(key)
        if pause <= 0.0:
            return None
        return answer(429, {"refused": "too many requests"}, **{"retry-after": f"{ceil(pause)}"})

    def address(request: Request) -> str:
        return "" if request.client is None else request.client.host

    async def read_body(request: Request, most: int) -> bytes | None:
        body = bytearray()
        try:
            # There are few connections: a body that never ends must not hold one.
            async with asyncio.timeout(body_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        return None
        except (TimeoutError, ClientDisconnect):
            raise HTTPException(408, headers={"connection": "close"}) from None
        return bytes(body)

    async def post_report(request: Request) -> JSONResponse:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        # A made-up token has no rate of its own: its address has to wait.
        bearer = scheme.lower() == "bearer"
        known = bearer and await run_in_threadpool(collector.admits, token)
        refused = too_many(token.split("_")[1] if known else address(request))
        if refused is not None:
            return refused
        body = await read_body(request, most)
        if body is None:
            return answer(413, {"refused": f"a report has at most {most} bytes"})
        number = request.headers.get("report-number", "1")
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            return answer(400, {"refused": "Report-Number is not a number from 1"})
        given = token if known else ""
        result = await run_in_threadpool(collector.take, given, int(number), body)
        if result in (COUNTED, AGAIN):
            return answer(201 if result == COUNTED else 200, {"report": result})
        return answer(_STATUS.get(result, 400), {"refused": result})

    async def post_batch(request: Request) -> JSONResponse:
        refused = too_many(f"batch {address(request)}")
        if refused is not None:
            return refused
        body = await read_body(request, _MOST_IN_A_BATCH * (2 * most + 200))
        reports = None if body is None else await run_in_threadpool(_read_batch, body)
        if reports is None:
            return answer(413, {"refused": f"a batch has at most {_MOST_IN_A_BATCH} reports"})
        if not reports:
            return answer(400, {"refused": _UNREADABLE})
        return answer(200, {"results": await run_in_threadpool(collector.take_each, reports)})

    async def show(request: Request) -> JSONResponse:
        refused = too_many(f"read {address(request)}")
        if refused is not None:
            return refused
        what = {"plan": lambda: collector.document, "estimate": collector.summary}
        make = what.get(request.url.path.rpartition("/")[2], collector.certificate)
        return answer(200, await run_in_threadpool(make))

    def not_written(_: Request, __: Exception) -> JSONResponse:
        return answer(503, {"refused": "the reports cannot be stored or read; nothing was counted"})

    shown = [Route(f"/v1/{name}", show) for name in ("plan", "estimate", "certificate")]
    taken = {"reports": post_report, "batches": post_batch}
    posts = [Route(f"/v1/{name}", take, methods=["POST"]) for name, take in taken.items()]
    return Starlette(routes=[*posts, *shown], exception_handlers={sqlite3.Error: not_written})


def _read_batch(body: bytes) -> list[tuple[str, int, bytes]] | None:
    """Return the reports of a batch, an empty list if it is none, or None if it is too large."""
    try:
        listed = json.loads(body)["reports"]
        if len(listed) > _MOST_IN_A_BATCH:
            return None
        found = []
        for token, number, report in listed:
            if not isinstance(token, str) or type(number) is not int or abs(number) > 10**9:
                return []
            found.append((token, number, base64.b64decode(report, validate=True)))
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        return []
    return found


def make_server(
    collector: Collector,
    *,
    host: str = "127.0.0.1",
    port: int = 8477,
    certfile: str | None = None,
    keyfile: str | None = None,
    rate: float = 1.0,
    burst: int = 10,
) -> uvicorn.Server:
    """Return the server of a collector, which does not run yet.

    :param collector: the collection
    :param host: where to listen
    :param port: where to listen
    :param certfile: the certificate of TLS; without it only this machine is served
    :param keyfile: the key of TLS
    :param rate: as for :func:`create_collector`
    :param burst: as for :func:`create_collector`
    :raises InvalidValue: if other machines are to be served without TLS
    """
    import uvicorn

    from discreet.curator.service._app import NoDelayProtocol

    if (certfile is None or keyfile is None) and host not in ("127.0.0.1", "::1", "localhost"):
        raise InvalidValue("certfile", certfile, f"a certificate and a key of TLS, to serve {host}")
    config = uvicorn.Config(
        create_collector(collector, rate=rate, burst=burst),
        host=host,
        port=port,
        http=NoDelayProtocol,
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
        server_header=False,
        access_log=False,
        log_level="warning",
        log_config=None,  # what a program has set up for its logs stays as it is
    )
    return uvicorn.Server(config)


def run_collector(collector: Collector, **options: Any) -> None:
    """Serve a collector until it is stopped.

    :param collector: the collection
    :param options: as for :func:`make_server`
    """
    make_server(collector, **options).run()
