"""PATE: label public rows by a noisy vote of private teachers, and account for the labels.

- :class:`PATEClassifier` does all of it: disjoint parts, teachers, votes, a student to release.
- :func:`train_student` does it for two files and a schema, charges a ledger and writes the student.
- Aggregators turn votes into labels: :class:`LaplaceMax`, :class:`GNMax`, :class:`ConfidentGNMax`,
  :class:`InteractiveGNMax`, :class:`StableVotes`, :class:`SampledVotes`, :class:`SparseVotes`, or
  one of your own (:class:`Aggregator`). ``plan`` says what a stream costs, ``open`` starts it.
- :func:`compare_aggregators` and :func:`plan_votes` choose one from public votes.
- :func:`data_dependent_rdp` and :func:`sanitise` compute, and publish, figures for given votes.
- :func:`partition_records` and :func:`teacher_votes` are the steps in between; a :class:`Student`
  learns from released labels.

What needs scikit-learn or torch is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from discreet.pate._aggregator import (
    Aggregator,
    Chances,
    Costs,
    Outcome,
    Prospect,
    SessionPlan,
    VoteProfile,
    VotingSession,
)
from discreet.pate._data_dependent import (
    DataDependentRDP,
    ReleaseNoise,
    SanitisedRDP,
    data_dependent_rdp,
    sanitise,
)
from discreet.pate._noisy_max import ConfidentGNMax, GNMax, InteractiveGNMax, LaplaceMax
from discreet.pate._partition import Partition, check_disjoint, partition_records, shared_records
from discreet.pate._planning import LabelPlan, compare_aggregators, plan_votes, stated_plan
from discreet.pate._stable_votes import SampledVotes, SparseVotes, StableVotes
from discreet.pate._student import Student, TableStudent, central_examples, uncertain_examples
from discreet.pate._teachers import teacher_votes
from discreet.pate._votes import count_votes

if TYPE_CHECKING:
    from discreet.pate._classifier import PATEClassifier
    from discreet.pate._image_student import ImageStudent, ScatteringView
    from discreet.pate._network_teachers import NetworkTeachers
    from discreet.pate._train import TrainedStudent, train_student

__all__ = [
    "Aggregator",
    "Chances",
    "ConfidentGNMax",
    "Costs",
    "DataDependentRDP",
    "GNMax",
    "ImageStudent",
    "InteractiveGNMax",
    "LabelPlan",
    "LaplaceMax",
    "NetworkTeachers",
    "Outcome",
    "PATEClassifier",
    "Partition",
    "Prospect",
    "ReleaseNoise",
    "SampledVotes",
    "SanitisedRDP",
    "ScatteringView",
    "SessionPlan",
    "SparseVotes",
    "StableVotes",
    "Student",
    "TableStudent",
    "TrainedStudent",
    "VoteProfile",
    "VotingSession",
    "central_examples",
    "check_disjoint",
    "compare_aggregators",
    "count_votes",
    "data_dependent_rdp",
    "partition_records",
    "plan_votes",
    "sanitise",
    "shared_records",
    "stated_plan",
    "teacher_votes",
    "train_student",
    "uncertain_examples",
]

_HOME_OF = {
    "ImageStudent": "_image_student",
    "NetworkTeachers": "_network_teachers",
    "PATEClassifier": "_classifier",
    "ScatteringView": "_image_student",
    "TrainedStudent": "_train",
    "train_student": "_train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
