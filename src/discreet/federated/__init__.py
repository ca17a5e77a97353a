"""Federated learning: clients train, a server adds up, and the certificate says who was trusted.

- :class:`FederatedPlan` is the one source of truth: trust, cohorts, clip, noise and loss.
- :class:`Client` and :class:`Round` are the two sides of a round: arrays in, arrays out.
- :class:`InProcessEngine` runs a plan with :class:`Clients` in memory, :class:`Training` says how
  clients train, :func:`split_dirichlet` divides a data set for experiments.
- :class:`DiscreetStrategy` and :func:`discreet_mod` run a plan on Flower, which gives a
  :class:`FlowerRun`.
- :func:`clip_update` and :func:`to_steps` are what a client does before anything leaves.
- :class:`SecureClient` and :class:`SecureServer` are the two sides of secure aggregation;
  :func:`make_identity` makes the keys on their roster, :class:`Advert` and :class:`Share` are
  messages between them.
  :func:`mask_numbers`, :func:`split_secret` and :func:`join_secret` are its parts.
- :class:`SiloPlan` and :func:`run_silos` are for a few institutions with many records each.
- :func:`certify_federated` writes the certificate, :func:`certified_loss` computes it again.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from discreet.federated._certificate import LEARNERS, certified_loss, certify_federated
from discreet.federated._plan import TRUSTS, FederatedPlan
from discreet.federated._silos import SiloPlan, run_silos

if TYPE_CHECKING:
    from discreet.federated._clients import Clients, split_dirichlet
    from discreet.federated._engine import Federated, InProcessEngine, Training
    from discreet.federated._flower import DiscreetStrategy, FlowerRun, discreet_mod
    from discreet.federated._round import Client, Finished, Round, clip_update, to_steps
    from discreet.federated._secure import (
        Advert,
        SecureClient,
        SecureServer,
        Share,
        join_secret,
        make_identity,
        mask_numbers,
        split_secret,
    )

__all__ = [
    "LEARNERS",
    "TRUSTS",
    "Advert",
    "Client",
    "Clients",
    "DiscreetStrategy",
    "Federated",
    "FederatedPlan",
    "Finished",
    "FlowerRun",
    "InProcessEngine",
    "Round",
    "SecureClient",
    "SecureServer",
    "Share",
    "SiloPlan",
    "Training",
    "certified_loss",
    "certify_federated",
    "clip_update",
    "discreet_mod",
    "join_secret",
    "make_identity",
    "mask_numbers",
    "run_silos",
    "split_dirichlet",
    "split_secret",
    "to_steps",
]

# Imported when they are used: plans and certificates are read without torch.
_HOMES = {
    "_clients": ("Clients", "split_dirichlet"),
    "_flower": ("DiscreetStrategy", "FlowerRun", "discreet_mod"),
    "_engine": ("Federated", "InProcessEngine", "Training"),
    "_secure": (
        *("Advert", "SecureClient", "SecureServer", "Share", "join_secret", "make_identity"),
        *("mask_numbers", "split_secret"),
    ),
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
