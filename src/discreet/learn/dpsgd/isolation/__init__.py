"""Do the examples of a batch stay apart? A probe that looks, and names who mixes them."""

from discreet.learn.dpsgd.isolation._check import Culprit, IsolationReport, check_isolation
from discreet.learn.dpsgd.isolation._subject import TensorSpec

__all__ = ["Culprit", "IsolationReport", "TensorSpec", "check_isolation"]
