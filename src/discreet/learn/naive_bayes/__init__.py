"""S20: naive Bayes from noisy sufficient statistics, as scikit-learn estimators."""

from discreet.learn.naive_bayes.categorical import PrivateCategoricalNB
from discreet.learn.naive_bayes.gaussian import PrivateGaussianNB

__all__ = ["PrivateCategoricalNB", "PrivateGaussianNB"]
