"""The curator as a service: an HTTP interface, its registry of tokens, and a web page.

Only :mod:`~discreet.curator.service.app` and the modules that it imports need FastAPI; the
registry can be used from the command line without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discreet.curator.service.app import create_app
    from discreet.curator.service.registry import Registry
    from discreet.curator.service.settings import Settings

__all__ = ["Registry", "Settings", "create_app"]

_HOMES = {"Registry": "registry", "Settings": "settings", "create_app": "app"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
