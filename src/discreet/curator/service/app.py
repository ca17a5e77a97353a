"""The application: routes, the gate before them, and the web page.

``create_app`` opens the ledger, the registry and every dataset before it returns, so a fault
of any of them shows when the service starts and not when somebody asks.
"""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from discreet import __version__
from discreet.curator._queries import describe_queries
from discreet.curator.scratch import Scratch
from discreet.curator.service.analyst_routes import PROBLEMS, analyst_router
from discreet.curator.service.bodies import HealthBody
from discreet.curator.service.gate import Gate
from discreet.curator.service.office import Office
from discreet.curator.service.owner_routes import owner_router
from discreet.curator.service.pages import page_router
from discreet.curator.service.problems import FAILED, Problem
from discreet.curator.service.registry import Holder, Registry
from discreet.curator.service.runner import Runner, Unanswered
from discreet.curator.service.settings import Settings

__all__ = ["SETTINGS_VARIABLE", "app_of_worker", "create_app"]

SETTINGS_VARIABLE = "DISCREET_SERVE"
_ABOUT = (
    "Answers about private data through differentially private mechanisms. Every answer is "
    "charged to a budget before any record is read, and no charge is ever undone."
)


def create_app(settings: Settings, *, scratch: Scratch | None = None) -> FastAPI:
    """The ASGI application for some settings; it closes what it opened when it is shut down."""
    office = Office.open(settings)
    runner = Runner(settings.threads)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        runner.close()
        office.close()
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
    app.state.office = office
    bearer = HTTPBearer(auto_error=False, description="A token: dsc_...")
    for router in (analyst_router(office, runner), owner_router(office, runner)):
        app.include_router(router, dependencies=[_documented(bearer)])
    app.include_router(page_router())

    @app.get("/health", tags=["service"], responses={503: PROBLEMS[503]})
    async def health() -> HealthBody:
        """Whether the service runs, can read its ledger, and the ledger fits together."""
        await runner.run(office.ledger.datasets)
        await runner.run(office.check_ledger)
        return HealthBody(status="ok", version=__version__)

    app.add_exception_handler(Unanswered, _unanswered)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(HTTPException, _not_found)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(
        Gate,
        settings=settings,
        authenticate=_authenticating(office.registry, runner),
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


def app_of_worker() -> FastAPI:
    """The application of one of several workers, which find their settings in the environment."""
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


def _documented(bearer: HTTPBearer) -> Any:
    """The gate has checked the token; this only tells OpenAPI that there is one."""
    from fastapi import Security

    return Security(bearer)


def _respond(problem: Problem, headers: Any = None) -> JSONResponse:
    return JSONResponse(problem.as_json(), status_code=problem.status, headers=headers)


async def _unanswered(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Unanswered)
    return _respond(error.problem)


async def _not_valid(_: Request, error: Exception) -> JSONResponse:
    """The first thing that is wrong, in words, without repeating what was sent."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body")[:200]
    message = f"{place or 'the request'}: {first['msg']}"[:500]
    return _respond(Problem(422, "invalid", message, place or None))


async def _failed(_: Request, __: Exception) -> JSONResponse:
    """Whatever happened, one text."""
    return _respond(FAILED)


async def _not_found(_: Request, error: Exception) -> JSONResponse:
    """What the router itself refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == 400:  # a body that is no JSON at all, or nested too deeply
        return _respond(Problem(422, "invalid", "the request is not JSON that can be read"))
    kind = {404: "missing", 405: "method"}.get(error.status_code, "refused")
    problem = Problem(error.status_code, kind, str(error.detail)[:200])
    return _respond(problem, error.headers)
