"""Synthetic tables with a proof: noisy tables, a tree that explains them, rows drawn from it.

- :class:`OneShot` plans a synthesis from a schema; :meth:`SynthesisPlan.run` charges a
  ledger, reads rows through :mod:`discreet.engines` and releases a :class:`SyntheticModel`.
- :class:`SyntheticModel` draws rows, answers tables with error bars (:class:`Marginal`) and is
  saved without pickle. Using it costs nothing.
- :func:`canary_scores` draws the worst case of a plan, for :func:`discreet.audit.audit_gaussian`.
- :class:`Synthesizer` is the same as an estimator of scikit-learn, which is imported with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from discreet.synth._canary import canary_scores
from discreet.synth._model import Marginal, SyntheticModel
from discreet.synth._plan import OneShot, SynthesisPlan

if TYPE_CHECKING:
    from discreet.synth._synthesizer import Synthesizer

__all__ = ["Marginal", "OneShot", "SynthesisPlan", "Synthesizer", "SyntheticModel", "canary_scores"]


def __getattr__(name: str) -> Any:
    if name != "Synthesizer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("discreet.synth._synthesizer").Synthesizer


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
