"""The calculus of privacy loss: an algebra of losses and the accountants that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from discreet.privacy.atoms import (
    GDP,
    ZCDP,
    ApproxDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    FinitePair,
    Gaussian,
    Laplace,
    PureDP,
    RandomizedResponse,
    RenyiDP,
    from_pair,
)
from discreet.privacy.calibrate import calibrate
from discreet.privacy.loss import (
    ACCOUNTANTS,
    Bounds,
    Composition,
    Grouped,
    Loss,
    PoissonSampled,
    SampledWithoutReplacement,
)
from discreet.privacy.relation import Relation

if TYPE_CHECKING:
    from discreet.privacy.adaptive import FILTER_KINDS, Filter, Odometer
    from discreet.privacy.serial import from_json, to_json

__all__ = [
    "ACCOUNTANTS",
    "FILTER_KINDS",
    "GDP",
    "ZCDP",
    "ApproxDP",
    "Bounds",
    "Composition",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Exponential",
    "Filter",
    "FinitePair",
    "Gaussian",
    "Grouped",
    "Laplace",
    "Loss",
    "Odometer",
    "PoissonSampled",
    "PureDP",
    "RandomizedResponse",
    "Relation",
    "RenyiDP",
    "SampledWithoutReplacement",
    "calibrate",
    "from_json",
    "from_pair",
    "to_json",
]

# Read on first use, so that describing a loss does not wait for what spends or stores it.
_LATER = {
    "FILTER_KINDS": "adaptive",
    "Filter": "adaptive",
    "Odometer": "adaptive",
    "from_json": "serial",
    "to_json": "serial",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value
