"""The application: the gate, the routes and the web page, and the server that runs it.

``create_app`` opens the ledger, the registry and every dataset before it returns, so a fault of any
of them shows when the service starts and not when somebody asks.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from importlib.resources import files
from typing import Any, ClassVar

import uvicorn
from fastapi import APIRouter, FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from discreet import __version__
from discreet.curator._queries import describe_queries
from discreet.curator.service._bodies import FAILED, HealthBody, Problem, Unanswered
from discreet.curator.service._gate import Gate
from discreet.curator.service._operations import Operations
from discreet.curator.service._registry import Holder, Registry
from discreet.curator.service._routes import (
    PROBLEMS,
    Runner,
    analyst_router,
    owner_router,
)
from discreet.curator.service._settings import Settings
from discreet.engines import Scratch

HEAD_BYTES = 65_536
HEAD_SECONDS = 10.0
MOST_CONNECTIONS = 256


class NoDelayProtocol(HttpToolsProtocol):
    """HTTP as uvicorn speaks it, over connections that are neither late nor idle for long."""

    # Connections without a request, the one that has waited longest first.
    _idle: ClassVar[dict[NoDelayProtocol, None]] = {}
    _deadline: asyncio.TimerHandle | None = None
    _head = 0  # bytes that came after those in which a head began

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        line = transport.get_extra_info("socket")
        if line is not None and line.family in {socket.AF_INET, socket.AF_INET6}:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > MOST_CONNECTIONS:
            longest = next(iter(self._idle))
            longest._stop_waiting()
            longest.connections.discard(longest)  # it is lost in the next turn of the loop
            longest.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        # The parser itself would take any number.
        if self._deadline is not None and self._head > HEAD_BYTES:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._head = 0
        if self._deadline is None:
            self._wait()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._idle[self] = None

    def _wait(self) -> None:
        self._idle.setdefault(self)
        self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        self._idle.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@lru_cache(maxsize=1)
def page_files() -> dict[str, bytes]:
    """Read every file of the page; no path leads to any other file."""
    folder = files("discreet.curator") / "web"
    return {
        entry.name: entry.read_bytes()
        for entry in folder.iterdir()
        if entry.is_file() and entry.name[entry.name.rfind(".") :] in _KINDS
    }


def page_router() -> APIRouter:
    """``/`` and the files that it loads, from this server alone."""
    router = APIRouter(include_in_schema=False)

    def respond(name: str) -> Response:
        kind = _KINDS[name[name.rfind(".") :]]
        headers = {"cache-control": "no-cache"}
        return Response(page_files()[name], media_type=kind, headers=headers)

    @router.get("/")
    async def index() -> Response:
        return respond("index.html")

    @router.get("/web/{name}")
    async def file(name: str) -> Response:
        return respond(name) if name in page_files() else Response(status_code=404)

    return router


SETTINGS_VARIABLE = "DISCREET_SERVE"
_ABOUT = (
    "Answers about private data through differentially private mechanisms. Every answer is "
    "charged to a budget before any record is read, and no charge is ever undone."
)


def create_app(settings: Settings, *, scratch: Scratch | None = None) -> FastAPI:
    """The ASGI application for some settings; it closes what it opened when it is shut down."""
    operations = Operations.open(settings)
    runner = Runner(settings.threads)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        runner.close()
        operations.close()
        if scratch is not None:
            scratch.close()

    app = FastAPI(
        title="Discreet curator",
        version=__version__,
        description=_ABOUT,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.operations = operations
    # The gate has checked the token; this only tells OpenAPI that there is one.
    bearer = HTTPBearer(auto_error=False, description="A token: dsc_...")
    for router in (analyst_router(operations, runner), owner_router(operations, runner)):
        app.include_router(router, dependencies=[Security(bearer)])
    app.include_router(page_router())

    @app.get("/health", tags=["service"], responses={503: PROBLEMS[503]})
    async def health() -> HealthBody:
        """Whether the service runs, can read its ledger, and the ledger fits together."""
        await runner.run(operations.ledger.datasets)
        await runner.run(operations.check_ledger)
        return HealthBody(status="ok", version=__version__)

    app.add_exception_handler(Unanswered, _send_problem)
    app.add_exception_handler(RequestValidationError, _send_first_fault)
    app.add_exception_handler(HTTPException, _send_refusal)
    app.add_exception_handler(Exception, _send_failure)
    app.add_middleware(
        Gate,
        settings=settings,
        authenticate=_authenticating(operations.registry, runner),
    )
    _complete(app)
    described = app.openapi()  # made once, and then the same
    described["components"]["schemas"].update(describe_queries())
    return app


def _complete(app: FastAPI) -> None:
    """Have the included routes built now; FastAPI would do so during the first request.

    It silences a warning meanwhile, for the whole process: beside another thread that does the
    same, the warning comes through.
    """
    anything = {"type": "http", "method": "GET", "path": "/", "root_path": "", "headers": []}
    for route in app.routes:
        route.matches(anything)


def _authenticating(
    registry: Registry, runner: Runner
) -> Callable[[str], Awaitable[Holder | None]]:
    async def authenticate(text: str) -> Holder | None:
        # A file is read faster than a thread is found.
        if registry.local:
            return registry.authenticate(text)
        return await runner.run(registry.authenticate, text)

    return authenticate


def run_service(settings: Settings, *, host: str = "127.0.0.1", port: int = 8080) -> None:
    """Serve until stopped.

    Parameters
    ----------
    settings
        How the service is run, and with how many workers.
    host
        The address to listen on; anything but the loopback needs a proxy with TLS.
    port
        The port; 0 takes one that is free.
    """
    os.environ[SETTINGS_VARIABLE] = settings.to_json()
    several = settings.workers > 1
    uvicorn.run(
        f"{__name__}:app_of_worker" if several else app_of_worker(),
        factory=several,
        host=host,
        port=port,
        workers=settings.workers,
        # By name: a worker that imports all of this before it answers its supervisor is killed.
        http=f"{__name__}:NoDelayProtocol",
        access_log=False,
        server_header=False,
        date_header=False,
        log_level="info",
        timeout_keep_alive=30,
        h11_max_incomplete_event_size=65_536,
    )


def app_of_worker() -> FastAPI:
    """Return the application of a worker, which finds its settings in the environment."""
    settings = Settings.from_json(os.environ[SETTINGS_VARIABLE])
    scratch = Scratch()
    try:
        app = create_app(settings, scratch=scratch)
    except BaseException:
        scratch.close()
        raise
    # What was imported and opened stays: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    return app


def _respond(problem: Problem, headers: Any = None) -> JSONResponse:
    return JSONResponse(problem.as_json(), status_code=problem.status, headers=headers)


async def _send_problem(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Unanswered)
    return _respond(error.problem)


async def _send_first_fault(_: Request, error: Exception) -> JSONResponse:
    """The first thing that is wrong, in words, without repeating what was sent."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body")[:200]
    message = f"{place or 'the request'}: {first['msg']}"[:500]
    return _respond(Problem(422, "invalid", message, place or None))


async def _send_failure(_: Request, __: Exception) -> JSONResponse:
    """Whatever happened, one text."""
    return _respond(FAILED)


async def _send_refusal(_: Request, error: Exception) -> JSONResponse:
    """What the router itself refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == 400:  # a body that is no JSON at all, or nested too deeply
        return _respond(Problem(422, "invalid", "the request is not JSON that can be read"))
    kind = {404: "missing", 405: "method"}.get(error.status_code, "refused")
    problem = Problem(error.status_code, kind, str(error.detail)[:200])
    return _respond(problem, error.headers)
