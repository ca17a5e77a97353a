"""DP-SGD in PyTorch: a plan, a private loop or trainer, a certificate.

:class:`Plan` is the one source of truth. :func:`make_private` puts a model and its optimizer
under a plan for a loop of your own, :class:`Trainer` runs all of it. :func:`check_isolation` looks
for modules that mix examples and :func:`fix` replaces the usual ones.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from discreet.errors import PlanViolation, ResumeRefused
from discreet.learn.dpsgd.clipping import Automatic, Clipping, Flat, PerLayer, Quantile
from discreet.learn.dpsgd.plan import Phase, Plan

if TYPE_CHECKING:
    from discreet.learn.dpsgd.averaging import ParameterAverage
    from discreet.learn.dpsgd.isolation import (
        Culprit,
        IsolationReport,
        TensorSpec,
        check_isolation,
    )
    from discreet.learn.dpsgd.making import make_private
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

# Imported when they are used: plans and certificates are read without torch.
_HOME_OF = {
    "Culprit": "isolation",
    "Fixed": "substitutes",
    "IsolationReport": "isolation",
    "ParameterAverage": "averaging",
    "Private": "private",
    "TensorSpec": "isolation",
    "Trained": "trained",
    "Trainer": "trainer",
    "check_isolation": "isolation",
    "fix": "substitutes",
    "load": "trained",
    "make_private": "making",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
