"""The local model: each person randomizes before anything leaves, and no collector is trusted.

- :class:`FrequencyOracle` is a public plan for counting values: it picks a method
  (GRR, SUE, OUE, OLH, SS, HR or PGR), and makes a client for each person and a server for the
  collector. Reports are bytes.
- :class:`Rappor` is one for many reports of a value that seldom changes.
- :class:`MeanOracle` is one for the mean of numbers in a public range.
- :class:`FrequencyEstimate` has unbiased shares, their variances and joint intervals.

Every coin of a client is exact and comes from the operating system. ``channel`` plays all outcomes
of a client's coins, which gives its whole matrix and exact epsilon.
"""

from discreet.local._domain import ELSE
from discreet.local._estimates import FrequencyEstimate
from discreet.local._frequency import (
    METHODS,
    FrequencyClient,
    FrequencyOracle,
    FrequencyServer,
)
from discreet.local._means import MEAN_METHODS, MeanEstimate, MeanOracle, MeanServer
from discreet.local._rappor import Rappor, RapporClient

__all__ = [
    "ELSE",
    "MEAN_METHODS",
    "METHODS",
    "FrequencyClient",
    "FrequencyEstimate",
    "FrequencyOracle",
    "FrequencyServer",
    "MeanEstimate",
    "MeanOracle",
    "MeanServer",
    "Rappor",
    "RapporClient",
]
