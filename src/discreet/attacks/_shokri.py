"""Shadow models with attack models, one for each class (Shokri, Stronati, Song, Shmatikov 2017).

Shadow models show what answers on members and on non-members look like. For every class a
binary classifier learns the difference from the sorted confidences and the confidence in the
true class. It never sees the target; its training data are the shadow models' alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet import _validate
from discreet._threads import one_thread
from discreet.attacks import _signals as signals
from discreet.attacks._contract import attack
from discreet.attacks._membership import MembershipResult
from discreet.attacks._training import seeded_generator
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.attacks._observation import Observation
    from discreet.attacks._shadow_scores import ShadowScores


FEATURES = ("sorted and true class", "sorted", "vector")
# Fewer answers of either kind than this do not train a classifier; all classes then share one.
_FEWEST = 10
_ALL = -1


@attack(family="membership", access="probabilities")
def shokri(
    observation: Observation,
    shadows: ShadowScores,
    *,
    attack_model: Any = None,
    features: str = "sorted and true class",
    top: int = 10,
    examples: int = 20_000,
    seed: int | None = None,
) -> MembershipResult:
    """Score each record by an attack model that learnt from the shadow models' answers.

    A record is called a member if the attack model says so.

    Parameters
    ----------
    observation : Observation
        The target's answers.
    shadows : ShadowScores
        A pool, also over other records; the target or its twin in it is not used.
    attack_model : scikit-learn classifier, optional
        With ``predict_proba`` or ``decision_function``, cloned for each class; by default boosted
        trees.
    features : {"sorted and true class", "sorted", "vector"}
        The ``top`` sorted confidences and that in the true class; without the latter; or the
        confidences of all classes in their own order, as in the paper.
    top : int
        How many sorted confidences.
    examples : int
        The most answers of each class to learn from.
    seed : int, optional
        Makes the attack repeatable.

    Returns
    -------
    MembershipResult
        Scores and decisions.

    Raises
    ------
    InvalidValue
        If the classes differ, or there are too few answers to learn from.
    """
    view = _View(
        _validate.one_of("features", features, FEATURES),
        _validate.integer("top", top, at_least=1),
    )
    most = _validate.integer("examples", examples, at_least=2 * _FEWEST)
    if observation.classes != shadows.classes:
        raise InvalidValue(
            "observation", f"{observation.classes} classes", f"{shadows.classes}, as the shadows"
        )
    draw = seeded_generator(seed)
    model = _default(int(draw.integers(2**31))) if attack_model is None else attack_model
    teach = _Examples(shadows.apart_from(observation), view, most, int(draw.integers(2**32)))
    asked = view.show(observation.log_probabilities, observation.labels)
    scores = np.zeros(len(observation))
    decisions = np.zeros(len(observation), dtype=bool)
    fitted: dict[int, Any] = {}
    with one_thread():
        for label in np.unique(observation.labels):
            kind = int(label) if teach.has_enough(int(label)) else _ALL
            if kind not in fitted:
                fitted[kind] = _clone(model).fit(*teach.training_set(kind))
            here = observation.labels == label
            scores[here], decisions[here] = _answers(fitted[kind], asked[here])
    return observation.judge(
        "shokri",
        scores,
        decisions,
        shadows=len(teach.shadows),
        features=features,
        attack_model=type(model).__name__,
        attack_models=len(fitted),
        threshold_from="attack models trained on shadow models",
        threshold_saw_evaluated=False,
    )


@dataclass(frozen=True)
class _View:
    """What the attack model looks at."""

    features: str
    top: int

    def show(
        self, log_probabilities: NDArray[np.floating], labels: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Log-confidences, bounded by the resolution of a probability."""
        values = np.asarray(log_probabilities, dtype=np.float64)
        bounded = np.maximum(values, -signals.RESOLUTION)
        if self.features == "vector":
            return bounded
        ordered = -np.sort(-bounded, axis=1)[:, : self.top]
        if self.features == "sorted":
            return ordered
        return np.column_stack([ordered, signals.scaled_logit(values, labels)])


class _Examples:
    """Answers of the shadow models, by class."""

    def __init__(self, shadows: ShadowScores, view: _View, most: int, seed: int) -> None:
        self.shadows = shadows
        self._view, self._most, self._seed = view, most, seed
        inside = shadows.inclusion.sum(axis=0)
        self._inside = np.bincount(shadows.labels, inside, minlength=shadows.classes)
        everything = np.bincount(shadows.labels, minlength=shadows.classes) * len(shadows)
        self._outside = everything - self._inside

    def has_enough(self, label: int) -> bool:
        """Whether this class has members and non-members to learn from."""
        return bool(min(self._inside[label], self._outside[label]) >= _FEWEST)

    def training_set(self, label: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Features and truth of one class, or of all for ``_ALL``."""
        if label == _ALL and min(self._inside.sum(), self._outside.sum()) < _FEWEST:
            raise InvalidValue(
                "shadows",
                f"{int(self._inside.sum())} answers on members",
                f"at least {_FEWEST} answers on members and on non-members",
            )
        chosen = np.flatnonzero((self.shadows.labels == label) | (label == _ALL))
        # Every shadow model gives an equal share, drawn anew for each.
        share = max(1, min(len(chosen), self._most // len(self.shadows)))
        features, truth = [], []
        for row, scores in enumerate(self.shadows.log_probabilities):
            draw = seeded_generator(self._seed, row, label + 1)
            part = chosen if share == len(chosen) else draw.choice(chosen, share, replace=False)
            features.append(self._view.show(scores[part], self.shadows.labels[part]))
            truth.append(self.shadows.inclusion[row, part])
        return np.concatenate(features), np.concatenate(truth).astype(np.int64)


def _answers(
    model: Any, features: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    classes = list(model.classes_)
    if hasattr(model, "predict_proba"):
        scores = model.predict_proba(features)
        place = classes.index(1)
        return np.asarray(scores[:, place], dtype=np.float64), model.predict(features) == 1
    if not hasattr(model, "decision_function"):
        raise NotApplicable(
            f"attack_model {type(model).__name__} has neither predict_proba nor decision_function"
        )
    return np.asarray(model.decision_function(features), dtype=np.float64), model.predict(
        features
    ) == 1


def _default(seed: int) -> Any:
    try:
        ensemble = import_module("sklearn.ensemble")
    except ImportError:
        raise NotApplicable("shokri() needs the package scikit-learn") from None
    return ensemble.HistGradientBoostingClassifier(
        max_iter=20,
        max_leaf_nodes=7,
        min_samples_leaf=20,
        early_stopping=False,
        random_state=seed,
    )


def _clone(model: Any) -> Any:
    copy: Callable[[Any], Any] = import_module("sklearn.base").clone
    return copy(model)
