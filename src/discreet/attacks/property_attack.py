"""Property inference: what a model tells of its training set as a whole.

S29. Not who is in the training set, but a fact about all of it, such as the share of women
(Ateniese et al. 2015, Ganju et al. 2018). A meta-classifier learns from shadow models, trained
on sets with and without the property (:mod:`.property_draws`), to tell the two apart:

* by their *outputs* on queries that the attacker chose (black box), or
* by their *weights*, in a form that does not depend on the numbering of neurons (white box,
  :mod:`.property_weights`).

The accuracy is that on held-out shadow models, which the meta-classifier has never met and which
were trained on other records than those it learned from: see :mod:`.property_draws` for why. Given
these records the held-out models are independent trials, so the interval is binomial; it does
not count the chance in which records were there to draw from. Differential privacy for single
records does not promise to hide a property of them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._confidence import Proportion, proportion
from discreet.attacks.chance import generator
from discreet.attacks.property_weights import Layer, layers_of, sorted_weights, weight_sets
from discreet.attacks.roc import area
from discreet.attacks.targets import as_target
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["PropertyResult", "property_inference", "shadow_features"]

ACCESS = ("outputs", "sorted weights", "weight sets")
_FAINTEST = -20.0  # log-probabilities below this are all "never"
_FEWEST_FOR_LEARNING = 5
# So many different numbers are not equal in two models by chance. Answers of few different
# numbers may be (labels, the shares of a stump), and so may weights that are all zero.
_TELLING = {"outputs": 5, "sorted weights": 2, "weight sets": 2}


@final
@dataclass(frozen=True)
class PropertyResult:
    """How well the meta-classifier tells held-out shadow models apart.

    ``with_property`` and ``without_property`` are its accuracies on held-out models of either
    kind. ``chance`` is what always guessing the more frequent kind would reach. If a target was
    given, ``target_score`` is the probability that the meta-classifier gives to the property.
    """

    access: str
    features: int
    training_shadows: int
    accuracy: Proportion
    with_property: Proportion
    without_property: Proportion
    auc: float
    chance: float
    classifier: str
    target_score: float | None = None

    @property
    def leaks(self) -> bool:
        """Whether the whole interval of the accuracy lies above chance."""
        return self.accuracy.low > self.chance

    @property
    def verdict(self) -> str:
        """What was found, in a sentence."""
        if self.leaks:
            return "the models tell whether their training set has the property"
        return "no leak is shown: the meta-classifier may be guessing"

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        return {
            "attack": "property",
            "access": self.access,
            "features": self.features,
            "training_shadows": self.training_shadows,
            "held_out_shadows": self.accuracy.trials,
            "accuracy": self.accuracy.to_json(),
            "with_property": self.with_property.to_json(),
            "without_property": self.without_property.to_json(),
            "auc": self.auc,
            "chance": self.chance,
            "classifier": self.classifier,
            "target_score": self.target_score,
            "leaks": self.leaks,
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        text = (
            f"property by {self.access}: {self.verdict}\n"
            f"accuracy on held-out shadow models {self.accuracy}, chance {self.chance:.3f}, "
            f"AUC {self.auc:.3f}; {self.training_shadows} shadow models to learn from"
        )
        if self.target_score is not None:
            text += f"\ntarget: has the property with score {self.target_score:.3f}"
        return text


def property_inference(
    models: Sequence[Any],
    holds: ArrayLike,
    *,
    access: str = "outputs",
    queries: Any = None,
    layers: Callable[[Any], Sequence[Layer]] | None = None,
    target: Any = None,
    held_out: ArrayLike | None = None,
    classifier: Any = None,
    confidence: float = 0.95,
    seed: int | None = None,
) -> PropertyResult:
    """Learn on some shadow models to tell the property, and judge it on the others.

    ``models`` are shadow models and ``holds`` says which of them were trained on sets with the
    property. ``access`` is ``"outputs"``, which needs ``queries`` (records that the attacker
    has), or one of ``"sorted weights"`` and ``"weight sets"``, for which ``layers`` reads the
    weights of models that :func:`.property_weights.layers_of` does not know. ``classifier`` is
    a scikit-learn classifier; by default logistic regression, its penalty chosen by
    cross-validation on the learning part. ``target`` is the model under attack, if there is one.

    ``held_out`` says which models judge, and are never learned from: ``sets.held_out`` for the
    models of :func:`.property_draws.property_sets`, by default the last half, which is what that
    has by default. ``seed`` is for the folds of the cross-validation. Refused are so few shadow
    models that not even a perfect score could be told from chance, and a model that occurs
    twice, which could be on both sides. So are models that agree in every weight, or in every
    answer where they gave at least five different ones: copies of one model do.
    """
    _validate.one_of("access", access, ACCESS)
    level = _validate.real("confidence", confidence, above=0, below=1)
    labels = np.asarray(holds)
    if labels.shape != (len(models),) or labels.dtype != np.bool_:
        shown = f"{labels.dtype} of shape {labels.shape}"
        raise InvalidValue("holds", shown, f"one bool for each of {len(models)} models")
    if len({id(model) for model in models}) != len(models):
        raise InvalidValue("models", "one model twice", "models that are all different")
    judged = np.arange(len(models)) >= len(models) - round(len(models) / 2)
    if held_out is not None:
        judged = np.asarray(held_out)
    if judged.shape != labels.shape or judged.dtype != np.bool_:
        shown = f"{judged.dtype} of shape {judged.shape}"
        raise InvalidValue("held_out", shown, f"one bool for each of {len(models)} models")
    _enough(labels, judged, level)
    features = np.stack(_same_length(shadow_features(models, access, queries, layers)))
    _refuse_copies(features, _TELLING[access])
    meta = _default_classifier(labels[~judged], seed) if classifier is None else classifier
    fitted = _fitted(meta, features[~judged], labels[~judged])
    guesses = np.asarray(fitted.predict(features[judged]), dtype=np.bool_)
    truth = labels[judged]
    right = guesses == truth
    scores = _scores(fitted, features[judged])

    def share_of(kind: NDArray[np.bool_]) -> Proportion:
        return proportion(int(right[kind].sum()), int(kind.sum()), confidence=level)

    score = None
    if target is not None:
        row = _same_length([features[0], *shadow_features([target], access, queries, layers)])[1:]
        score = float(_scores(fitted, np.stack(row))[0])
    return PropertyResult(
        access=access,
        features=features.shape[1],
        training_shadows=int((~judged).sum()),
        accuracy=share_of(np.ones_like(truth)),
        with_property=share_of(truth),
        without_property=share_of(~truth),
        auc=area(scores[truth], scores[~truth]),
        chance=float(max(truth.mean(), 1 - truth.mean())),
        classifier="LogisticRegression" if classifier is None else type(classifier).__name__,
        target_score=score,
    )


def shadow_features(
    models: Sequence[Any],
    access: str,
    queries: Any,
    layers: Callable[[Any], Sequence[Layer]] | None,
) -> list[NDArray[np.float64]]:
    """Return what the meta-classifier reads of each model, one row of numbers for each."""
    if access == "outputs":
        if queries is None or len(queries) == 0:
            raise InvalidValue("queries", queries, "records to ask the models about")
        return [_outputs(model, queries) for model in models]
    read = layers_of if layers is None else layers
    form = sorted_weights if access == "sorted weights" else weight_sets
    return [form(read(model)) for model in models]


def _outputs(model: Any, queries: Any) -> NDArray[np.float64]:
    target = as_target(model)
    if target.label_only:
        codes = target.labels(queries)
        classes = target.classes or int(codes.max()) + 1
        return np.eye(classes)[codes].ravel()
    return np.maximum(target.log_probabilities(queries), _FAINTEST).ravel()


def _same_length(rows: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    lengths = sorted({len(row) for row in rows})
    if len(lengths) != 1:
        expected = "models of one architecture and the same classes"
        raise InvalidValue("models", f"{lengths} numbers each", expected)
    return rows


def _refuse_copies(features: NDArray[np.float64], telling: int) -> None:
    first: dict[bytes, int] = {}
    for place, row in enumerate(features):
        other = first.setdefault((row + 0.0).tobytes(), place)
        if other != place and len(np.unique(row)) >= telling:
            shown = f"number {other} and number {place} agree in every number"
            raise InvalidValue("models", shown, "models that are all different")


def _enough(labels: NDArray[np.bool_], judged: NDArray[np.bool_], confidence: float) -> None:
    for kind in (False, True):
        learned = int((~judged & (labels == kind)).sum())
        left = int((judged & (labels == kind)).sum())
        if left == 0 or learned < _FEWEST_FOR_LEARNING:
            raise InvalidValue(
                "models",
                f"{learned} + {left} shadow models {'with' if kind else 'without'} the property",
                f"at least {_FEWEST_FOR_LEARNING} to learn from and one held out",
            )
    held = labels[judged]
    best = proportion(len(held), len(held), confidence=confidence)
    if best.low <= max(held.mean(), 1 - held.mean()):
        raise InvalidValue(
            "models",
            f"{len(held)} held-out shadow models",
            "so many that a perfect score can be told from chance",
        )


def _default_classifier(labels: NDArray[np.bool_], seed: int | None) -> Any:
    choosing = import_module("sklearn.model_selection")
    logistic = import_module("sklearn.linear_model").LogisticRegression(max_iter=5000)
    scaling = import_module("sklearn.preprocessing").StandardScaler()
    fewest = int(min(labels.sum(), (~labels).sum()))
    state = int(generator(seed).integers(2**32))
    return choosing.GridSearchCV(
        import_module("sklearn.pipeline").make_pipeline(scaling, logistic),
        {"logisticregression__C": [1e-4, 1e-3, 1e-2, 1e-1, 1.0]},
        cv=choosing.StratifiedKFold(min(5, fewest), shuffle=True, random_state=state),
    )


def _fitted(meta: Any, features: NDArray[np.float64], labels: NDArray[np.bool_]) -> Any:
    fitted = import_module("sklearn.base").clone(meta).fit(features, labels)
    if not hasattr(fitted, "predict_proba"):
        raise InvalidValue("classifier", meta, "a classifier with predict_proba")
    return fitted


def _scores(fitted: Any, features: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(fitted.predict_proba(features), dtype=np.float64)[:, 1]
