"""Defences against membership inference, side by side: what they cost, and what still leaks.

- :class:`DefenceBench` trains models under each :class:`Defence`, attacks them through the
  interface that it leaves, and audits them; its :class:`BenchReport` has a :class:`BenchRow` for
  each, with the word "no guarantee" wherever nothing is proved. :class:`BenchData` is what it works
  on.
- Canaries: :class:`Mislabelled`, :class:`NearDuplicates`, :class:`OutOfDistribution`, or
  :class:`Canaries` of one's own, which make :class:`Planted` records.
- In training: :class:`NetworkTraining` with weight decay, dropout, label smoothing, RelaxLoss, HAMP
  or an adversary, :class:`Selena`, and with a guarantee :class:`PrivateTraining` by DP-SGD,
  :class:`PateTraining`, and :class:`SyntheticTraining` on records of a private synthesis.
- At the output: :class:`MemGuard`, :class:`LabelOnly`, :class:`Rounded`, :class:`RandomScores`, or
  any :class:`Output`, which turns :class:`Answers` into others.
- :func:`standard_defences` makes the usual rows for data at hand.

It is for comparing, not for protecting: but for the last three nothing here proves anything.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from discreet._confidence import Difference, Proportion
from discreet.defences._bench import BenchData, DefenceBench
from discreet.defences._canaries import (
    Canaries,
    Mislabelled,
    NearDuplicates,
    OutOfDistribution,
    Planted,
)
from discreet.defences._contract import WHERE, Answers, Defence, Output
from discreet.defences._report import NO_GUARANTEE, RATES, BenchReport, BenchRow, Leak

if TYPE_CHECKING:
    from discreet.defences._networks import NetworkTraining
    from discreet.defences._outputs import LabelOnly, MemGuard, RandomScores, Rounded
    from discreet.defences._private import PateTraining, PrivateTraining, SyntheticTraining
    from discreet.defences._selena import Selena
    from discreet.defences._standard import standard_defences

__all__ = [
    "NO_GUARANTEE",
    "RATES",
    "WHERE",
    "Answers",
    "BenchData",
    "BenchReport",
    "BenchRow",
    "Canaries",
    "Defence",
    "DefenceBench",
    "Difference",
    "LabelOnly",
    "Leak",
    "MemGuard",
    "Mislabelled",
    "NearDuplicates",
    "NetworkTraining",
    "OutOfDistribution",
    "Output",
    "PateTraining",
    "Planted",
    "PrivateTraining",
    "Proportion",
    "RandomScores",
    "Rounded",
    "Selena",
    "SyntheticTraining",
    "standard_defences",
]

# Imported when they are used: a bench of other models needs no torch.
_HOME_OF = {
    "LabelOnly": "_outputs",
    "MemGuard": "_outputs",
    "NetworkTraining": "_networks",
    "PateTraining": "_private",
    "PrivateTraining": "_private",
    "RandomScores": "_outputs",
    "Rounded": "_outputs",
    "Selena": "_selena",
    "SyntheticTraining": "_private",
    "standard_defences": "_standard",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"discreet.defences.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
