"""The calculus of privacy loss: an algebra of losses and the accountants that read them."""

from __future__ import annotations

from discreet.privacy.adaptive import FILTER_KINDS, Filter, Odometer
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
