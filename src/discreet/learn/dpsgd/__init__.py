"""DP-SGD in PyTorch: a plan, a private loop or trainer, a certificate.

:class:`Plan` is the one source of truth. :func:`make_private` puts a model and its optimizer
under a plan for a loop of your own, :class:`Trainer` runs all of it. :func:`check_isolation` looks
for modules that mix examples and :func:`fix` replaces the usual ones.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from discreet.errors import PlanViolation, ResumeRefused
from discreet.learn.dpsgd._clipping import Automatic, Clipping, Flat, PerLayer, Quantile
from discreet.learn.dpsgd._plan import Phase, Plan

if TYPE_CHECKING:
    from discreet.learn.dpsgd._adam import CorrectedAdam
    from discreet.learn.dpsgd._checkpointing import checkpoint_contexts
    from discreet.learn.dpsgd._fix import Fixed, FrozenBatchNorm, Replacement, fix
    from discreet.learn.dpsgd._making import make_private
    from discreet.learn.dpsgd._people import CappedRecords, People
    from discreet.learn.dpsgd._private import Private
    from discreet.learn.dpsgd._requirements import earlier_plans, forbid_plans
    from discreet.learn.dpsgd._step import OpenBatch, Watch
    from discreet.learn.dpsgd._team import Team, join
    from discreet.learn.dpsgd._trained import (
        ParameterAverage,
        Trained,
        check_certificate,
        load,
        save,
    )
    from discreet.learn.dpsgd._trainer import Trainer
    from discreet.learn.dpsgd._trial import verify_attribution
    from discreet.learn.dpsgd.isolation import Culprit, IsolationReport, TensorSpec, check_isolation

__all__ = [
    "Automatic",
    "CappedRecords",
    "Clipping",
    "CorrectedAdam",
    "Culprit",
    "Fixed",
    "Flat",
    "FrozenBatchNorm",
    "IsolationReport",
    "OpenBatch",
    "ParameterAverage",
    "People",
    "PerLayer",
    "Phase",
    "Plan",
    "PlanViolation",
    "Private",
    "Quantile",
    "Replacement",
    "ResumeRefused",
    "Team",
    "TensorSpec",
    "Trained",
    "Trainer",
    "Watch",
    "check_certificate",
    "check_isolation",
    "checkpoint_contexts",
    "earlier_plans",
    "fix",
    "forbid_plans",
    "join",
    "load",
    "make_private",
    "save",
    "verify_attribution",
]

# Imported when they are used: plans and certificates are read without torch.
_HOME_OF = {
    "CappedRecords": "_people",
    "CorrectedAdam": "_adam",
    "Culprit": "isolation",
    "Fixed": "_fix",
    "FrozenBatchNorm": "_fix",
    "IsolationReport": "isolation",
    "ParameterAverage": "_trained",
    "People": "_people",
    "Private": "_private",
    "Replacement": "_fix",
    "OpenBatch": "_step",
    "Team": "_team",
    "TensorSpec": "isolation",
    "Trained": "_trained",
    "Trainer": "_trainer",
    "Watch": "_step",
    "check_certificate": "_trained",
    "check_isolation": "isolation",
    "checkpoint_contexts": "_checkpointing",
    "earlier_plans": "_requirements",
    "forbid_plans": "_requirements",
    "fix": "_fix",
    "join": "_team",
    "load": "_trained",
    "save": "_trained",
    "make_private": "_making",
    "verify_attribution": "_trial",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
