"""Attacks: what an adversary really gets from a model, measured on your own machine.

- Membership: :func:`yeom`, :func:`shokri`, :func:`lira`, :func:`rmia`,
  :func:`quantile_regression` and :func:`label_only`. :func:`observe` asks the target once and
  every attack reads the answers; :class:`ShadowPool` trains the shadow models that all
  shadow attacks share. For predicted numbers :func:`regression_membership`, for checkpoints of one
  training :func:`checkpoint_membership`, for persons :func:`person_membership`, and for whole data
  sets :func:`dataset_usage`.
- Attribute and property inference and model inversion: :func:`attribute_inference`,
  :func:`property_inference`, :func:`invert` with :func:`recognition`.
- Anonymization and how it fails: :func:`measure_anonymity` profiles a table (uniqueness,
  k-anonymity, l-diversity, t-closeness), :func:`link_tables` links two of them, and
  :func:`made_up_tables` draws an example in the spirit of zip code, birth date and sex.
  :func:`link_ratings` finds people by a few of their ratings.

- Reconstruction of a private column from answers about it, :func:`reconstruction`, and of a table
  from its published counts, :func:`table_reconstruction`.
- Synthetic rows: :func:`distance_ratio`, :func:`counting_shadows`, and with a control group
  :func:`singling_out`, :func:`linkability` and :func:`synthetic_inference`.
- Made-up reports in a local collection: :func:`poison_shares`.
- Updates of federated clients: :func:`update_labels`, :func:`update_pictures`,
  :func:`imprinted_pictures`, :func:`update_tokens`, :func:`update_membership`,
  :func:`update_attribute`, :func:`update_property`, :func:`prior_informed` beside what a loss
  allows, and :func:`poisoning` by clients. :func:`client_updates` makes updates for experiments,
  :func:`imprint_model` and :func:`trap_weights` the weights of a malicious server.
- What a language model recites: :mod:`discreet.attacks.language`.
- ``ATTACKS`` has all of them with what they need, :func:`run_attack` runs one of them by name,
  :func:`attack` adds one of your own, and :func:`compare_defences` runs all that apply on models
  trained in different ways.

Neither torch nor scikit-learn is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from discreet._confidence import Difference, Proportion
from discreet._json import HIDDEN
from discreet.attacks import language
from discreet.attacks._anonymity import (
    LEVELS_K,
    AnonymityProfile,
    AnonymityResult,
    Generalisation,
    SensitiveProfile,
    measure_anonymity,
)
from discreet.attacks._attack_target import AttackTarget, import_name, read_model
from discreet.attacks._attribute import Attribute, AttributeResult, attribute_inference
from discreet.attacks._bench import DefenceComparison, DefenceRow, compare_defences
from discreet.attacks._checkpoints import checkpoint_membership
from discreet.attacks._coded_table import CodedTable, read_coded
from discreet.attacks._contract import (
    ATTACKS,
    INPUTS,
    Attack,
    AttackRun,
    Finding,
    Result,
    applicable,
    attack,
    read_inputs,
    read_numbers,
    run_attack,
)
from discreet.attacks._dataset_usage import DatasetUsage, dataset_usage
from discreet.attacks._inversion import InversionResult, RecognitionResult, invert, recognition
from discreet.attacks._label_only import label_only
from discreet.attacks._linkage import KnownTruth, LinkageResult, link_tables
from discreet.attacks._lira import check_lira_models, lira
from discreet.attacks._made_up_tables import MadeUpTables, made_up_population, made_up_tables
from discreet.attacks._membership import (
    REPORTED_FPR,
    SMALLEST_SLICE,
    ExposedRecord,
    MembershipResult,
    Slice,
    pool_results,
)
from discreet.attacks._membership_run import (
    MEMBERSHIP,
    RetrainedTwin,
    mark_strongest,
    membership_attacks,
    membership_inputs,
    needs_shadows,
    number_membership,
    read_as,
    strongest_of_three,
)
from discreet.attacks._observation import Observation, observe, observe_split
from discreet.attacks._persons import person_membership
from discreet.attacks._picture_prior import Prior
from discreet.attacks._poisoning import PoisoningResult, poison_shares
from discreet.attacks._property import (
    PropertyResult,
    PropertySets,
    property_inference,
    property_sets,
    train_shadows,
)
from discreet.attacks._quantile import quantile_regression
from discreet.attacks._reconstruction import ReconstructionResult, reconstruction
from discreet.attacks._record_files import Records, align_columns, read_answers, read_records
from discreet.attacks._regression import regression_membership
from discreet.attacks._rmia import check_rmia_models, rmia
from discreet.attacks._roc import FALSE_ALARM, OperatingPoint, Roc
from discreet.attacks._shadow_pool import ShadowPool, paired_halves
from discreet.attacks._shadow_scores import ShadowScores
from discreet.attacks._shokri import shokri
from discreet.attacks._sparse_linkage import (
    MadeUpRatings,
    RatingLinkage,
    link_ratings,
    made_up_ratings,
)
from discreet.attacks._synthetic import (
    ControlledResult,
    counting_shadows,
    distance_ratio,
    linkability,
    singling_out,
    synthetic_inference,
)
from discreet.attacks._table_reconstruction import (
    TableReconstruction,
    marginal_queries,
    table_reconstruction,
)
from discreet.attacks._target import OUTPUTS, Target, as_target, class_indices
from discreet.attacks._training import on_records, seeded_generator
from discreet.attacks._update_candidates import (
    CandidatesResult,
    prior_informed,
    update_attribute,
    update_membership,
    update_property,
)
from discreet.attacks._update_imprint import imprint_model, imprinted_pictures, trap_weights
from discreet.attacks._update_labels import UpdateLabelsResult, update_labels
from discreet.attacks._update_pictures import UpdatePicturesResult, update_pictures
from discreet.attacks._update_poisoning import PoisonedModelResult, poisoning
from discreet.attacks._update_tokens import UpdateTokensResult, update_tokens
from discreet.attacks._updates import client_updates
from discreet.attacks._yeom import yeom

if TYPE_CHECKING:
    from discreet.attacks._network_trainer import NetworkTrainer, Perceptron

__all__ = [
    "ATTACKS",
    "FALSE_ALARM",
    "HIDDEN",
    "INPUTS",
    "LEVELS_K",
    "MEMBERSHIP",
    "OUTPUTS",
    "REPORTED_FPR",
    "SMALLEST_SLICE",
    "AnonymityProfile",
    "AnonymityResult",
    "Attack",
    "AttackRun",
    "AttackTarget",
    "Attribute",
    "AttributeResult",
    "CandidatesResult",
    "CodedTable",
    "ControlledResult",
    "DatasetUsage",
    "DefenceComparison",
    "DefenceRow",
    "Difference",
    "ExposedRecord",
    "Finding",
    "Generalisation",
    "InversionResult",
    "KnownTruth",
    "LinkageResult",
    "MadeUpRatings",
    "MadeUpTables",
    "MembershipResult",
    "NetworkTrainer",
    "Observation",
    "OperatingPoint",
    "Perceptron",
    "PoisonedModelResult",
    "PoisoningResult",
    "Prior",
    "PropertyResult",
    "PropertySets",
    "Proportion",
    "RatingLinkage",
    "RecognitionResult",
    "ReconstructionResult",
    "Records",
    "Result",
    "RetrainedTwin",
    "Roc",
    "SensitiveProfile",
    "ShadowPool",
    "ShadowScores",
    "Slice",
    "TableReconstruction",
    "Target",
    "UpdateLabelsResult",
    "UpdatePicturesResult",
    "UpdateTokensResult",
    "align_columns",
    "applicable",
    "as_target",
    "attack",
    "attribute_inference",
    "check_lira_models",
    "check_rmia_models",
    "checkpoint_membership",
    "class_indices",
    "client_updates",
    "compare_defences",
    "counting_shadows",
    "dataset_usage",
    "distance_ratio",
    "import_name",
    "imprint_model",
    "imprinted_pictures",
    "invert",
    "label_only",
    "language",
    "link_ratings",
    "link_tables",
    "linkability",
    "lira",
    "made_up_population",
    "made_up_ratings",
    "made_up_tables",
    "marginal_queries",
    "mark_strongest",
    "measure_anonymity",
    "membership_attacks",
    "membership_inputs",
    "needs_shadows",
    "number_membership",
    "observe",
    "observe_split",
    "on_records",
    "paired_halves",
    "person_membership",
    "poison_shares",
    "poisoning",
    "pool_results",
    "prior_informed",
    "property_inference",
    "property_sets",
    "quantile_regression",
    "read_answers",
    "read_as",
    "read_coded",
    "read_inputs",
    "read_model",
    "read_numbers",
    "read_records",
    "recognition",
    "reconstruction",
    "regression_membership",
    "rmia",
    "run_attack",
    "seeded_generator",
    "shokri",
    "singling_out",
    "strongest_of_three",
    "synthetic_inference",
    "table_reconstruction",
    "train_shadows",
    "trap_weights",
    "update_attribute",
    "update_labels",
    "update_membership",
    "update_pictures",
    "update_property",
    "update_tokens",
    "yeom",
]


def __getattr__(name: str) -> Any:
    if name not in ("NetworkTrainer", "Perceptron"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("discreet.attacks._network_trainer"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
