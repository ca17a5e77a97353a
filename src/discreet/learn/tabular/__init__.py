"""Private models for tables, with defaults from public facts, as scikit-learn estimators."""

from discreet.learn.tabular.linear import PrivateLinearRegression, PrivateLogisticRegression
from discreet.learn.tabular.mlp import PrivateMLPClassifier, PrivateMLPRegressor

__all__ = [
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateMLPClassifier",
    "PrivateMLPRegressor",
]
