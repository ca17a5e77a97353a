"""The web page: a few files of this package, served as they are."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response

__all__ = ["page_router"]

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@lru_cache(maxsize=1)
def page_files() -> dict[str, bytes]:
    """Every file of the page; nothing else can be had, whatever a path says."""
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
