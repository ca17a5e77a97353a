"""Do the examples of a batch stay apart? A probe that looks, and names who mixes them."""

from discreet.learn.dpsgd.isolation.check import check_isolation
from discreet.learn.dpsgd.isolation.losses import (
    LossWatch,
    require_losses_apart,
    require_total_apart,
)
from discreet.learn.dpsgd.isolation.made_up import TensorSpec
from discreet.learn.dpsgd.isolation.report import Culprit, IsolationReport

__all__ = [
    "Culprit",
    "IsolationReport",
    "LossWatch",
    "TensorSpec",
    "check_isolation",
    "require_losses_apart",
    "require_total_apart",
]
