"""A demonstration: claim, attack, audit and certificate of one model, in about a minute.

:func:`demonstrate` is what ``discreet demo`` runs; it needs torch, scikit-learn and pyarrow.
"""

from __future__ import annotations

from discreet.demo._data import SETS
from discreet.demo._methods import METHODS
from discreet.demo._run import Demonstration, demonstrate

__all__ = ["METHODS", "SETS", "Demonstration", "demonstrate"]
