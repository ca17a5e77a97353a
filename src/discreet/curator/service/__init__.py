"""The curator as a service: an HTTP interface, its registry of tokens, and a web page.

Beside it stands a :class:`Collector` of local reports, which needs no trust.

Only the application and what runs it need FastAPI: the registry can be used without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from discreet.curator.service._collector import (
    Collector,
    create_collector,
    make_server,
    run_collector,
)
from discreet.curator.service._operations import find_copies, give_budget, open_dataset
from discreet.curator.service._registry import Registry
from discreet.curator.service._settings import Settings

if TYPE_CHECKING:
    from discreet.curator.service._app import NoDelayProtocol, create_app, run_service

__all__ = [
    "Collector",
    "NoDelayProtocol",
    "Registry",
    "Settings",
    "create_app",
    "create_collector",
    "find_copies",
    "give_budget",
    "make_server",
    "open_dataset",
    "run_collector",
    "run_service",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}._app"), name)
