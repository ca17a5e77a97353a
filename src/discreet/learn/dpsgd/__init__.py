"""DP-SGD in PyTorch: a plan, a private loop or trainer, a certificate.

:class:`Plan` is the one source of truth. :func:`make_private` puts a model and its optimizer
under a plan for a loop of your own, :class:`Trainer` runs all of it. :func:`check_isolation` looks
for modules that mix examples and :func:`fix` replaces the usual ones.
"""

from discreet.errors import PlanViolation, ResumeRefused
from discreet.learn.dpsgd.averaging import ParameterAverage
from discreet.learn.dpsgd.clipping import Automatic, Clipping, Flat, PerLayer, Quantile
from discreet.learn.dpsgd.isolation import (
    Culprit,
    IsolationReport,
    TensorSpec,
    check_isolation,
)
from discreet.learn.dpsgd.making import make_private
from discreet.learn.dpsgd.plan import Phase, Plan
from discreet.learn.dpsgd.private import Private
from discreet.learn.dpsgd.substitutes import Fixed, fix
from discreet.learn.dpsgd.trained import Trained, load
from discreet.learn.dpsgd.trainer import Trainer

__all__ = [
    "Automatic",
    "Clipping",
    "Culprit",
    "Fixed",
    "Flat",
    "IsolationReport",
    "ParameterAverage",
    "PerLayer",
    "Phase",
    "Plan",
    "PlanViolation",
    "Private",
    "Quantile",
    "ResumeRefused",
    "TensorSpec",
    "Trained",
    "Trainer",
    "check_isolation",
    "fix",
    "load",
    "make_private",
]
