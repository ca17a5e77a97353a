"""Synthetic tables with a proof: noisy tables, a tree that explains them, rows drawn from it.

- :class:`OneShot`, :class:`MST` and :class:`AIM` plan a synthesis from a schema;
  :meth:`SynthesisPlan.run` charges a ledger, reads rows through :mod:`discreet.engines` and
  releases a :class:`SyntheticModel`.
- :class:`SyntheticModel` draws rows, answers tables with error bars (:class:`Marginal`) and is
  saved without pickle. Using it costs nothing.
- :class:`Images` plans a synthesis of labelled pictures by noisy moments, without a network.
- :class:`Gan` plans a generator of rows or pictures that a critic under DP-SGD teaches.
- :class:`LinkedTables` does the same for a table of persons and one of their visits.
- :func:`canary_scores` draws the worst case of a plan, for :func:`discreet.audit.audit_gaussian`.
- :func:`judge_classifier` tests a classifier of synthetic rows on real ones.
- :class:`Synthesizer` is the same as an estimator of scikit-learn, which is imported with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from discreet.synth._adaptive import AIM, MST
from discreet.synth._canary import canary_scores
from discreet.synth._downstream import judge_classifier
from discreet.synth._gan import Gan, GanModel, GanPlan
from discreet.synth._images import ImageModel, ImagePlan, Images
from discreet.synth._linked import LinkedModel, LinkedPlan, LinkedTables
from discreet.synth._methods import OneShot
from discreet.synth._model import Marginal, SyntheticModel
from discreet.synth._plan import SynthesisPlan

if TYPE_CHECKING:
    from discreet.synth._synthesizer import Synthesizer

__all__ = [
    "AIM",
    "MST",
    "Gan",
    "GanModel",
    "GanPlan",
    "ImageModel",
    "ImagePlan",
    "Images",
    "LinkedModel",
    "LinkedPlan",
    "LinkedTables",
    "Marginal",
    "OneShot",
    "SynthesisPlan",
    "Synthesizer",
    "SyntheticModel",
    "canary_scores",
    "judge_classifier",
]


def __getattr__(name: str) -> Any:
    if name != "Synthesizer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("discreet.synth._synthesizer").Synthesizer


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
