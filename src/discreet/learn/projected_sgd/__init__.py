"""S22: private projected SGD, one record a step, with its excess-risk bound."""

from discreet.learn.projected_sgd.estimators import (
    PrivateProjectedSGDClassifier,
    PrivateProjectedSGDRegressor,
)
from discreet.learn.projected_sgd.losses import Hinge, Huber, LinearLoss, Logistic, Squared
from discreet.learn.projected_sgd.plan import SgdPlan
from discreet.learn.projected_sgd.projections import (
    Box,
    GivenProjection,
    L2Ball,
    Projection,
    Simplex,
)
from discreet.learn.projected_sgd.risk import ExcessRisk, excess_risk_without_privacy
from discreet.learn.projected_sgd.training import SgdRun, train

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
    "excess_risk_without_privacy",
    "train",
]
