"""PATE: labels by a vote of teachers that never leave, and what the labels cost (S23-S25).

What needs scikit-learn or torch is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from discreet.pate.chooser import Prospect, compare_aggregators
from discreet.pate.confident import ConfidentGNMax, InteractiveGNMax
from discreet.pate.data_dependent import DataDependentRDP, data_dependent_rdp
from discreet.pate.gaussian_max import GNMax
from discreet.pate.laplace_max import LaplaceMax
from discreet.pate.partition import Partition, partition_records, shared_records
from discreet.pate.planning import VotePlan, plan_votes
from discreet.pate.queries import central_examples, uncertain_examples
from discreet.pate.sanitised import ReleaseNoise, SanitisedRDP, sanitise
from discreet.pate.session import Plan, Session
from discreet.pate.sparse import SparseVotes
from discreet.pate.stable import SampledVotes, StableVotes
from discreet.pate.teachers import teacher_votes
from discreet.pate.votes import histogram_of

if TYPE_CHECKING:
    from discreet.pate.classifier import PATEClassifier
    from discreet.pate.image_student import ImageStudent
    from discreet.pate.image_view import ScatteringView
    from discreet.pate.networks import NetworkTeachers
    from discreet.pate.picture import draw_flow, flow_figure
    from discreet.pate.table_student import TableStudent

__all__ = [
    "ConfidentGNMax",
    "DataDependentRDP",
    "GNMax",
    "ImageStudent",
    "InteractiveGNMax",
    "LaplaceMax",
    "NetworkTeachers",
    "PATEClassifier",
    "Partition",
    "Plan",
    "Prospect",
    "ReleaseNoise",
    "SampledVotes",
    "SanitisedRDP",
    "ScatteringView",
    "Session",
    "SparseVotes",
    "StableVotes",
    "TableStudent",
    "VotePlan",
    "central_examples",
    "compare_aggregators",
    "data_dependent_rdp",
    "draw_flow",
    "flow_figure",
    "histogram_of",
    "partition_records",
    "plan_votes",
    "sanitise",
    "shared_records",
    "teacher_votes",
    "uncertain_examples",
]

_HOME_OF = {
    "ImageStudent": "image_student",
    "NetworkTeachers": "networks",
    "PATEClassifier": "classifier",
    "ScatteringView": "image_view",
    "TableStudent": "table_student",
    "draw_flow": "picture",
    "flow_figure": "picture",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
