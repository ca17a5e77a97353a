"""The local model: each person randomizes before anything leaves, and no collector is trusted.

- :class:`FrequencyOracle` is a public plan for counting values: it picks a method
  (GRR, SUE, OUE, OLH, SS, HR or PGR), and makes a client for each person and a server for the
  collector. Reports are bytes.
- :class:`Rappor` is one for many reports of a value that seldom changes, and
  :class:`CountMeanSketch` one for values without a list.
- :class:`Marginals` counts combinations of several attributes, :class:`Hierarchy` ranges and
  quantiles, :class:`HeavyHitters` finds frequent strings.
- :class:`MeanOracle` and :class:`VectorOracle` are for means of numbers and of unit vectors.
- :class:`PersonLedger` is a person's own budget, :func:`certify_collection` the certificate of a
  collection, :func:`compare_deployments` what a shuffler or a curator would have given.
- :class:`FrequencyEstimate` has unbiased shares, their variances and joint intervals.

Every coin of a client is exact and comes from the operating system. ``channel`` plays all outcomes
of a client's coins, which gives its whole matrix and exact epsilon.
"""

from discreet.local._collection import (
    Deployment,
    certified_loss,
    certify_collection,
    compare_deployments,
    read_plan,
    write_plan,
)
from discreet.local._frequency import (
    ELSE,
    METHODS,
    FrequencyEstimate,
    FrequencyOracle,
    FrequencyServer,
)
from discreet.local._groups import (
    Hierarchy,
    HierarchyServer,
    Marginals,
    MarginalServer,
    RangeEstimate,
)
from discreet.local._means import MEAN_METHODS, MeanEstimate, MeanOracle, MeanServer
from discreet.local._person import PersonLedger
from discreet.local._plans import LocalClient, LocalPlan, LocalServer
from discreet.local._rappor import Rappor, RapporClient
from discreet.local._strings import CountMeanSketch, HeavyHitters, SketchEstimate, SketchServer
from discreet.local._vectors import VectorEstimate, VectorOracle, VectorServer

__all__ = [
    "ELSE",
    "MEAN_METHODS",
    "METHODS",
    "CountMeanSketch",
    "Deployment",
    "FrequencyEstimate",
    "FrequencyOracle",
    "FrequencyServer",
    "HeavyHitters",
    "Hierarchy",
    "HierarchyServer",
    "LocalClient",
    "LocalPlan",
    "LocalServer",
    "MarginalServer",
    "Marginals",
    "MeanEstimate",
    "MeanOracle",
    "MeanServer",
    "PersonLedger",
    "RangeEstimate",
    "Rappor",
    "RapporClient",
    "SketchEstimate",
    "SketchServer",
    "VectorEstimate",
    "VectorOracle",
    "VectorServer",
    "certified_loss",
    "certify_collection",
    "compare_deployments",
    "read_plan",
    "write_plan",
]
