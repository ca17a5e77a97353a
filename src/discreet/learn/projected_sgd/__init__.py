"""Private projected SGD, one record a step, with its excess-risk bound."""

from discreet.learn.projected_sgd._estimators import (
    PrivateProjectedSGDClassifier,
    PrivateProjectedSGDRegressor,
)
from discreet.learn.projected_sgd._losses import (
    Hinge,
    Huber,
    LinearLoss,
    Logistic,
    Squared,
    SquaredHinge,
)
from discreet.learn.projected_sgd._plan import SgdPlan
from discreet.learn.projected_sgd._projections import (
    Box,
    GivenProjection,
    L2Ball,
    Projection,
    Simplex,
)
from discreet.learn.projected_sgd._risk import ExcessRisk, excess_risk_without_privacy
from discreet.learn.projected_sgd._steps import SgdRun, train

__all__ = [
    "Box",
    "ExcessRisk",
    "GivenProjection",
    "Hinge",
    "Huber",
    "L2Ball",
    "LinearLoss",
    "Logistic",
    "PrivateProjectedSGDClassifier",
    "PrivateProjectedSGDRegressor",
    "Projection",
    "SgdPlan",
    "SgdRun",
    "Simplex",
    "Squared",
    "SquaredHinge",
    "excess_risk_without_privacy",
    "train",
]
