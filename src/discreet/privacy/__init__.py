"""The calculus of privacy loss: an algebra of losses and the accountants that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# First, while few imports are nested: at some depths CPython maps and frees memory at every call,
# which made importing this package 1.27 times as long as importing numpy and scipy.special.
import scipy.special  # noqa: F401

from discreet.privacy._claims import ZCDP, ApproxDP, PureDP, RenyiDP
from discreet.privacy._composition import Composition, Grouped, compose
from discreet.privacy._gaussian import GDP, DiscreteGaussian, Gaussian, GaussianMixture
from discreet.privacy._loss import ACCOUNTANTS, Atom, Bounds, Loss, Relation
from discreet.privacy._pair import Cells, Pair, Resolution
from discreet.privacy._sampling import CappedPoisson, PoissonSampled, SampledWithoutReplacement

if TYPE_CHECKING:
    from discreet.privacy import theorems
    from discreet.privacy._accountants import every_accountant
    from discreet.privacy._allocation import Allocated
    from discreet.privacy._calibration import (
        calibrate,
        largest_rate,
        least_laplace_scale,
        least_noise_multiplier,
        most_steps,
    )
    from discreet.privacy._charges import plan_claim
    from discreet.privacy._correlation import Correlated, Strategy, choose_bands
    from discreet.privacy._distributed import Skellam, SummedDiscreteGaussian
    from discreet.privacy._filters import FILTER_KINDS, Filter, Odometer
    from discreet.privacy._finite import FinitePair, RandomizedResponse, from_pair
    from discreet.privacy._imports import Imported, from_event, from_opacus
    from discreet.privacy._individual import IndividualFilter
    from discreet.privacy._json import (
        OldLoss,
        from_json,
        read_fraction,
        read_old,
        to_json,
        write_fraction,
    )
    from discreet.privacy._laplace import DiscreteLaplace, Laplace
    from discreet.privacy._selection import BestOf, Exponential
    from discreet.privacy._shuffling import Shuffled

__all__ = [
    "ACCOUNTANTS",
    "FILTER_KINDS",
    "GDP",
    "ZCDP",
    "Allocated",
    "ApproxDP",
    "Atom",
    "BestOf",
    "Bounds",
    "CappedPoisson",
    "Cells",
    "Composition",
    "Correlated",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Exponential",
    "Filter",
    "FinitePair",
    "Gaussian",
    "GaussianMixture",
    "Grouped",
    "Imported",
    "IndividualFilter",
    "Laplace",
    "Loss",
    "Odometer",
    "OldLoss",
    "Pair",
    "PoissonSampled",
    "PureDP",
    "RandomizedResponse",
    "Relation",
    "RenyiDP",
    "Resolution",
    "SampledWithoutReplacement",
    "Shuffled",
    "Skellam",
    "Strategy",
    "SummedDiscreteGaussian",
    "calibrate",
    "choose_bands",
    "compose",
    "every_accountant",
    "from_event",
    "from_json",
    "from_opacus",
    "from_pair",
    "largest_rate",
    "least_laplace_scale",
    "least_noise_multiplier",
    "most_steps",
    "plan_claim",
    "read_fraction",
    "read_old",
    "theorems",
    "to_json",
    "write_fraction",
]

# Read on first use: describing a loss does not wait for what reads, spends or stores it, nor for
# kinds that a program has no use for.
_LATER = {
    "Allocated": "_allocation",
    "Correlated": "_correlation",
    "Strategy": "_correlation",
    "choose_bands": "_correlation",
    "FinitePair": "_finite",
    "RandomizedResponse": "_finite",
    "from_pair": "_finite",
    "DiscreteLaplace": "_laplace",
    "Laplace": "_laplace",
    "BestOf": "_selection",
    "Exponential": "_selection",
    "Shuffled": "_shuffling",
    "Skellam": "_distributed",
    "SummedDiscreteGaussian": "_distributed",
    "FILTER_KINDS": "_filters",
    "Filter": "_filters",
    "Odometer": "_filters",
    "Imported": "_imports",
    "IndividualFilter": "_individual",
    "OldLoss": "_json",
    "calibrate": "_calibration",
    "every_accountant": "_accountants",
    "from_event": "_imports",
    "from_json": "_json",
    "from_opacus": "_imports",
    "largest_rate": "_calibration",
    "least_laplace_scale": "_calibration",
    "least_noise_multiplier": "_calibration",
    "most_steps": "_calibration",
    "plan_claim": "_charges",
    "read_fraction": "_json",
    "read_old": "_json",
    "to_json": "_json",
    "write_fraction": "_json",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "theorems":
        return import_module(f"{__name__}.theorems")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value
