"""Private learners: estimators that pay before they read.

Nothing is imported before it is used: scikit-learn takes a second to load, torch three.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discreet.learn._additive import (
        PrivateAdditiveClassifier,
        PrivateAdditiveRegressor,
        Shape,
    )
    from discreet.learn._choice import (
        Choice,
        Comparison,
        automatic_learners,
        choose_learner,
        compare_learners,
        make_learner,
    )
    from discreet.learn._declared import ROW_UNITS, Declared, charged, check_unit, stated_unit
    from discreet.learn._description import ColumnReport, Description, describe
    from discreet.learn._estimator import (
        FitPlan,
        PrivateClassifier,
        PrivateEstimator,
        PrivateRegressor,
        Rehearsal,
    )
    from discreet.learn._evaluation import (
        Evaluation,
        FoldedEvaluation,
        evaluate,
        evaluate_folds,
    )
    from discreet.learn._exact_descent import default_delta
    from discreet.learn._finite_class import (
        FiniteChoice,
        choose_hypothesis,
        excess_error,
        rows_needed,
    )
    from discreet.learn._intake import Batch, Rows, rows_to_judge, table_without_cells
    from discreet.learn._linear import PrivateLinearRegression, PrivateLogisticRegression
    from discreet.learn._model_file import (
        LEARNERS,
        OldFacts,
        digest_model,
        feature_head,
        learner_name,
        load_model,
        plan_problems,
        read_model,
        read_plan,
        require_same_facts,
        saved_certificate,
        saved_digest,
        write_model,
        write_model_files,
    )
    from discreet.learn._naive_bayes import PrivateCategoricalNB, PrivateGaussianNB
    from discreet.learn._network import PrivateMLPClassifier, PrivateMLPRegressor
    from discreet.learn._one_pass import OnePassEstimator
    from discreet.learn._selection import default_stop, run_mu, select_privately
    from discreet.learn._train import (
        PlannedTraining,
        TrainedTable,
        plan_training,
        predict_file,
        train_table,
    )
    from discreet.learn._trees import PrivateDecisionTree, PrivateRandomForest, Tree
    from discreet.learn._unsupervised import PrivateKMeans, PrivatePCA

__all__ = [
    "LEARNERS",
    "ROW_UNITS",
    "Batch",
    "Choice",
    "ColumnReport",
    "Comparison",
    "Declared",
    "Description",
    "Evaluation",
    "FiniteChoice",
    "FitPlan",
    "FoldedEvaluation",
    "OldFacts",
    "OnePassEstimator",
    "PlannedTraining",
    "PrivateAdditiveClassifier",
    "PrivateAdditiveRegressor",
    "PrivateCategoricalNB",
    "PrivateClassifier",
    "PrivateDecisionTree",
    "PrivateEstimator",
    "PrivateGaussianNB",
    "PrivateKMeans",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateMLPClassifier",
    "PrivateMLPRegressor",
    "PrivatePCA",
    "PrivateRandomForest",
    "PrivateRegressor",
    "Rehearsal",
    "Rows",
    "Shape",
    "TrainedTable",
    "Tree",
    "automatic_learners",
    "charged",
    "check_unit",
    "choose_hypothesis",
    "choose_learner",
    "compare_learners",
    "default_delta",
    "default_stop",
    "describe",
    "digest_model",
    "evaluate",
    "evaluate_folds",
    "excess_error",
    "feature_head",
    "learner_name",
    "load_model",
    "make_learner",
    "plan_problems",
    "plan_training",
    "predict_file",
    "read_model",
    "read_plan",
    "require_same_facts",
    "rows_needed",
    "rows_to_judge",
    "run_mu",
    "saved_certificate",
    "saved_digest",
    "select_privately",
    "stated_unit",
    "table_without_cells",
    "train_table",
    "write_model",
    "write_model_files",
]

_HOMES = {
    "_additive": (*("PrivateAdditiveClassifier", "PrivateAdditiveRegressor", "Shape"),),
    "_choice": (
        *("Choice", "Comparison", "automatic_learners", "choose_learner"),
        *("compare_learners", "make_learner"),
    ),
    "_declared": ("ROW_UNITS", "Declared", "charged", "check_unit", "stated_unit"),
    "_description": ("ColumnReport", "Description", "describe"),
    "_estimator": (
        *("FitPlan", "PrivateClassifier", "PrivateEstimator"),
        *("PrivateRegressor", "Rehearsal"),
    ),
    "_intake": ("Batch", "Rows", "rows_to_judge", "table_without_cells"),
    "_linear": ("PrivateLinearRegression", "PrivateLogisticRegression"),
    "_evaluation": ("Evaluation", "FoldedEvaluation", "evaluate", "evaluate_folds"),
    "_finite_class": ("FiniteChoice", "choose_hypothesis", "excess_error", "rows_needed"),
    "_exact_descent": ("default_delta",),
    "_model_file": (
        *("LEARNERS", "OldFacts", "digest_model", "feature_head", "learner_name", "load_model"),
        *("plan_problems", "read_model", "read_plan", "require_same_facts", "saved_certificate"),
        *("saved_digest", "write_model", "write_model_files"),
    ),
    "_naive_bayes": ("PrivateCategoricalNB", "PrivateGaussianNB"),
    "_network": ("PrivateMLPClassifier", "PrivateMLPRegressor"),
    "_one_pass": ("OnePassEstimator",),
    "_selection": ("default_stop", "run_mu", "select_privately"),
    "_train": ("PlannedTraining", "TrainedTable", "plan_training", "predict_file", "train_table"),
    "_trees": ("PrivateDecisionTree", "PrivateRandomForest", "Tree"),
    "_unsupervised": ("PrivateKMeans", "PrivatePCA"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
