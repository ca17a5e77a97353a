"""Federated learning: clients train, a server adds up, and the certificate says who was trusted.

- :class:`FederatedPlan` is the one source of truth: trust, cohorts, clip, noise and loss.
- :class:`Client` and :class:`Round` are the two sides of a round: arrays in, arrays out.
- :class:`InProcessEngine` runs a plan with :class:`Clients` in memory, :class:`Training` says how
  clients train, :func:`split_dirichlet` divides a data set for experiments.
- :func:`clip_update` and :func:`to_steps` are what a client does before anything leaves.
- :func:`certify_federated` writes the certificate, :func:`certified_loss` computes it again.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from discreet.federated._certificate import LEARNERS, certified_loss, certify_federated
from discreet.federated._plan import FederatedPlan

if TYPE_CHECKING:
    from discreet.federated._clients import Clients, split_dirichlet
    from discreet.federated._engine import Federated, InProcessEngine, Training
    from discreet.federated._round import Client, Finished, Round, clip_update, to_steps

__all__ = [
    "LEARNERS",
    "Client",
    "Clients",
    "Federated",
    "FederatedPlan",
    "Finished",
    "InProcessEngine",
    "Round",
    "Training",
    "certified_loss",
    "certify_federated",
    "clip_update",
    "split_dirichlet",
    "to_steps",
]

# Imported when they are used: plans and certificates are read without torch.
_HOMES = {
    "_clients": ("Clients", "split_dirichlet"),
    "_engine": ("Federated", "InProcessEngine", "Training"),
    "_round": ("Client", "Finished", "Round", "clip_update", "to_steps"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
