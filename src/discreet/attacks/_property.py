"""Property inference: guess a property of the whole training set from a model.

Not who is in the training set, but a fact about all of it, such as the share of women
(Ateniese et al. 2015, Ganju et al. 2018). A meta-classifier learns from shadow models, trained
on sets with and without the property (:func:`property_sets`), to tell the two apart:

* by their *outputs* on queries that the attacker chose (black box), or
* by their *weights*, in a form that does not depend on the numbering of neurons (white box,
  see below).

The accuracy is that on held-out shadow models, which the meta-classifier has never met and which
were trained on other records than those it learned from (see below). Given these records the
held-out models are independent trials, so the interval is binomial; it does not count the chance in
which records were there to draw from. Differential privacy for single records does not promise to
hide a property of them all.

**Sets.** An attacker who has records like those of the victim draws many training sets that have
the property and many that do not, alike in everything else, and trains a shadow model on each.

Shadow models that judge are trained on other records than those that are learned from. Any two
finite groups of people differ in many small ways by chance; all sets that are drawn from the
same people share these differences, and a meta-classifier finds them, so that within one pool
of records even a mark given by a coin can be "inferred". The victim has other records.

**Weights.** The hidden neurons of a layer can be exchanged, with the weights that leave them, and
the network computes the same; training picks one of these orders by chance. A classifier that reads
plain weights has to see through that (Ganju et al. 2018). Two ways out are here:

* :func:`sorted_weights` numbers the neurons of each layer by the norm of what enters them and
  carries the order on to the next layer;
* :func:`weight_sets` takes each layer as a set: every neuron becomes a vector by a fixed random
  map, and means and deviations over the set are kept, in the manner of DeepSets (Zaheer et al.
  2017). The vectors of a layer are what the next one's weights are applied to.

Both are the same numbers for every numbering of the hidden neurons, but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from discreet import _validate
from discreet._confidence import Proportion, proportion
from discreet.attacks._contract import Finding, Result, attack
from discreet.attacks._roc import area, area_interval
from discreet.attacks._target import as_target
from discreet.attacks._training import (
    TrainingJob,
    derive_seed,
    fresh_seed,
    run_batches,
    seeded_generator,
    train_models,
)
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@final
@dataclass(frozen=True, eq=False)
class PropertySets:
    """Training sets as ``indices``; set k has the property if ``holds[k]``.

    Sets with ``held_out[k]`` share no record with the others.
    """

    indices: tuple[NDArray[np.intp], ...]
    holds: NDArray[np.bool_]
    held_out: NDArray[np.bool_]
    shares: tuple[float, float]
    seed: int

    def __len__(self) -> int:
        return len(self.indices)


def property_sets(
    has: ArrayLike,
    *,
    shares: tuple[float, float],
    size: int,
    sets: int,
    held_out: float = 0.5,
    seed: int | None = None,
) -> PropertySets:
    """Draw training sets of ``size`` records in which a known share has something.

    ``has`` says of every record of the attacker whether it has it. Sets with the property have
    it in a share ``shares[1]`` of their records, the others in a share ``shares[0]``, exactly
    (rounded to whole records). Every second set has the property. A share ``held_out`` of the
    sets comes from one half of the records, chosen at random, and the others from the other
    half; within a set records are drawn without replacement, sets independently of one another.

    >>> women = np.arange(100) % 3 == 0
    >>> drawn = property_sets(women, shares=(0.2, 0.6), size=10, sets=4, seed=1)
    >>> [int(women[rows].sum()) for rows in drawn.indices], drawn.holds.tolist()
    ([2, 6, 2, 6], [False, True, False, True])
    >>> drawn.held_out.tolist()
    [False, False, True, True]

    Parameters
    ----------
    has
        Which records have what the property counts.
    shares
        The share of them without and with the property.
    size, sets
        Records in a set, and how many sets.
    held_out
        The share of sets that judge.
    seed
        Makes the sets repeatable.

    Returns
    -------
    PropertySets
        Records of each set, and whether it has the property.

    Raises
    ------
    InvalidValue
        If there are too few records of either kind.
    """
    mask = np.asarray(has)
    if mask.ndim != 1 or mask.dtype != np.bool_:
        raise InvalidValue("has", f"{mask.dtype} of shape {mask.shape}", "one bool per record")
    rows = _validate.integer("size", size, at_least=1)
    count = _validate.integer("sets", sets, at_least=2)
    low, high = (_validate.real("shares", share, at_least=0, at_most=1) for share in shares)
    wanted = [round(share * rows) for share in (low, high)]
    if wanted[0] == wanted[1]:
        raise InvalidValue("shares", shares, f"shares that differ in a set of {rows} records")
    share = _validate.real("held_out", held_out, above=0, below=1)
    chosen = fresh_seed() if seed is None else _validate.integer("seed", seed, at_least=0)
    draw = seeded_generator(chosen)
    inside, outside = (draw.permutation(np.flatnonzero(mask == kind)) for kind in (True, False))
    room = len(inside) // 2, len(outside) // 2
    if max(wanted) > room[0] or rows - min(wanted) > room[1]:
        expected = f"sets that fit into {room[0]} records with and {room[1]} without, half of all"
        raise InvalidValue("size", size, expected)
    holds = np.arange(count) % 2 == 1
    judging = np.arange(count) >= count - round(share * count)
    indices = []
    for hold, judges in zip(holds, judging, strict=True):
        with_it = wanted[int(hold)]
        half = [slice(room[0]), slice(room[1])]
        if judges:
            half = [slice(room[0], None), slice(room[1], None)]
        parts = [
            draw.choice(inside[half[0]], with_it, replace=False),
            draw.choice(outside[half[1]], rows - with_it, replace=False),
        ]
        indices.append(draw.permutation(np.concatenate(parts)))
    return PropertySets(tuple(indices), holds, judging, (low, high), chosen)


Layer = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Weights (units, inputs, ...) and biases (units,) of one layer."""

_EMBEDDING = 24
_MAP_SEED = 2018  # the map is part of the definition of the features, not of an experiment


def layers_of(model: Any) -> list[Layer]:
    """Return (weights, biases) of a chain of layers, from the input on; one row for each unit.

    Known are ``torch.nn.Sequential`` of linear and convolutional layers (nested, with layers
    that have no weights in between), and scikit-learn's multilayer perceptrons and linear
    models. In any other model the order of the layers cannot be seen from outside: refused.
    """
    if hasattr(model, "coefs_"):
        pairs = zip(model.coefs_, model.intercepts_, strict=True)
        return [_layer(weight.T, bias) for weight, bias in pairs]
    if hasattr(model, "coef_"):
        weight = np.atleast_2d(model.coef_)
        return [_layer(weight, np.broadcast_to(model.intercept_, len(weight)))]
    if any(kind.__module__.partition(".")[0] == "torch" for kind in type(model).__mro__):
        layers = _torch_layers(model)
        if layers:
            return layers
    raise NotApplicable(
        f"the layers of a {type(model).__name__} are not known: give layers=, a function from "
        "the model to [(weights, biases), ...]"
    )


def sorted_weights(layers: Sequence[Layer]) -> NDArray[np.float64]:
    """Return all weights in one row, hidden units in the order of their norm.

    >>> first, second = np.array([[3.0, 0.0], [0.0, 1.0]]), np.array([[5.0, 7.0]])
    >>> sorted_weights([(first, np.zeros(2)), (second, np.array([9.0]))])
    array([0., 1., 3., 0., 0., 0., 7., 5., 9.])
    """
    parts: list[NDArray[np.float64]] = []
    order: NDArray[np.intp] | None = None
    for place, (weight, bias) in enumerate(layers):
        blocks = _split_by_input_unit(weight, None if order is None else len(order))
        if order is not None:
            blocks = blocks[:, order]
        weight = np.ascontiguousarray(blocks).reshape(len(weight), -1)
        if place < len(layers) - 1:
            order = np.argsort((weight**2).sum(axis=1) + bias**2, kind="stable")
            weight, bias = weight[order], bias[order]
        parts += [weight.ravel(), bias]
    return np.concatenate(parts)


def weight_sets(layers: Sequence[Layer]) -> NDArray[np.float64]:
    """Return means and deviations of the units of each layer, and the output layer as it is.

    >>> weight, bias = np.array([[1.0, 2.0], [3.0, 4.0]]), np.zeros(2)
    >>> out = np.array([[1.0, -1.0]])
    >>> one = weight_sets([(weight, bias), (out, np.zeros(1))])
    >>> other = weight_sets([(weight[::-1], bias), (out[:, ::-1], np.zeros(1))])
    >>> bool(np.allclose(one, other, rtol=1e-12))
    True
    """
    parts: list[NDArray[np.float64]] = []
    embedded: NDArray[np.float64] | None = None
    for place, (weight, bias) in enumerate(layers):
        blocks = _split_by_input_unit(weight, None if embedded is None else len(embedded))
        if embedded is None:
            inputs = weight.reshape(len(weight), -1)
        else:
            inputs = np.einsum("ouk,uh->okh", blocks, embedded).reshape(len(weight), -1)
        units = np.hstack([inputs, bias[:, None]])
        if place == len(layers) - 1:
            parts.append(units.ravel())
            break
        width = units.shape[1]
        mixed = seeded_generator(_MAP_SEED, place).standard_normal((width, _EMBEDDING)) / np.sqrt(
            width
        )
        embedded = np.maximum(units @ mixed, 0.0)
        parts += [units.mean(axis=0), units.std(axis=0)]
        parts += [embedded.mean(axis=0), embedded.std(axis=0)]
    return np.concatenate(parts)


def _split_by_input_unit(weight: NDArray[np.float64], units: int | None) -> NDArray[np.float64]:
    """Weights as (unit, unit of the layer before, rest): pixels of one channel stay together."""
    flat = weight.reshape(len(weight), -1)
    if units is None:
        return flat[:, :, None]
    if flat.shape[1] % units:
        raise InvalidValue("layers", f"{flat.shape[1]} weights for {units} units", "a chain")
    return flat.reshape(len(weight), units, -1)


def _layer(weight: Any, bias: Any) -> Layer:
    return np.asarray(weight, dtype=np.float64), np.asarray(bias, dtype=np.float64)


def _torch_layers(model: Any) -> list[Layer]:
    nn = import_module("torch").nn
    if isinstance(model, nn.Sequential):
        return [layer for child in model for layer in _torch_layers(child)]
    if isinstance(model, (nn.Linear, nn.Conv1d, nn.Conv2d)):
        if getattr(model, "groups", 1) != 1:
            raise NotApplicable("grouped convolutions keep their channels apart: give layers=")
        weight = model.weight.detach().cpu().double().numpy()
        no_bias = np.zeros(len(weight))
        bias = no_bias if model.bias is None else model.bias.detach().cpu().double().numpy()
        return [_layer(weight, bias)]
    if any(True for _ in model.parameters()):
        raise NotApplicable(
            f"a {type(model).__name__} has weights whose order among the layers is not known: "
            "give layers=, a function from the model to [(weights, biases), ...]"
        )
    return []


ACCESS = ("outputs", "sorted weights", "weight sets")
_FAINTEST = -20.0  # log-probabilities below this are all "never"
_FEWEST_FOR_LEARNING = 5
# Two models do not agree by chance in this many different numbers. In answers of fewer they may
# (labels, the shares of a stump), and so in weights that are all zero.
_TELLING = {"outputs": 5, "sorted weights": 2, "weight sets": 2}


@final
@dataclass(frozen=True)
class PropertyResult(Result):
    """How well the meta-classifier tells held-out shadow models apart.

    ``with_property`` and ``without_property`` are its accuracies on held-out models of either
    kind. ``chance`` is what always guessing the more frequent kind would reach. If a target was
    given, ``target_score`` is the probability that the meta-classifier gives to the property.
    """

    json_kind = "property"
    json_properties = ("held_out_shadows", "auc_interval", "leaks", "verdict")
    without_interval = dict.fromkeys(
        ("target_score",), "what the meta-classifier says of one model; the accuracy judges it"
    )

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
    def held_out_shadows(self) -> int:
        """The number of held-out models that judge."""
        return self.accuracy.trials

    @property
    def auc_interval(self) -> tuple[float, float]:
        """An asymptotic interval for the area (Newcombe 2006), at the accuracy's confidence."""
        held_out = self.with_property.trials, self.without_property.trials
        return area_interval(self.auc, *held_out, confidence=self.accuracy.confidence)

    @property
    def finding(self) -> Finding:
        """The accuracy on held-out shadow models, against chance."""
        measure = "held-out models whose property was guessed rightly"
        return Finding.of_share("property_inference", measure, self.accuracy, self.chance)

    @property
    def verdict(self) -> str:
        """What was found, in a sentence."""
        if self.leaks:
            return "the models tell whether their training set has the property"
        return "no leak is shown: the meta-classifier may be guessing"

    def __str__(self) -> str:
        low, high = self.auc_interval
        text = (
            f"property by {self.access}: {self.verdict}\n"
            f"accuracy on held-out shadow models {self.accuracy}, chance {self.chance:.3f}, "
            f"AUC {self.auc:.3f} [{low:.3f}, {high:.3f}]; "
            f"{self.training_shadows} shadow models to learn from"
        )
        if self.target_score is not None:
            text += f"\ntarget: has the property with score {self.target_score:.3f}"
        return text


@attack(family="property", access="model")
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

    Parameters
    ----------
    models : sequence of models
        Shadow models. One that occurs twice is refused, and so are models that agree in every
        weight, or in every answer where they gave at least five different ones.
    holds : array of bool
        Which of them were trained on sets with the property.
    access : {"outputs", "sorted weights", "weight sets"}
        What the attacker sees.
    queries : records, optional
        What the models are asked about, for "outputs".
    layers : callable, optional
        Reads (weights, biases) of models that are neither of scikit-learn nor sequential.
    target : model, optional
        The model under attack.
    held_out : array of bool, optional
        Which models judge, and are never learned from: ``sets.held_out`` for the models of
        :func:`property_sets`; by default the last half.
    classifier : scikit-learn classifier, optional
        By default logistic regression, its penalty chosen by cross-validation.
    confidence : float
        Of the intervals.
    seed : int, optional
        For the folds of the cross-validation.

    Returns
    -------
    PropertyResult
        The accuracy on held-out models.

    Raises
    ------
    InvalidValue
        If the models do not fit, or are so few that a perfect score could be chance.
    NotApplicable
        If the layers of a model are not known.
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
    _require_enough(labels, judged, level)
    features = np.stack(_require_one_length(shadow_features(models, access, queries, layers)))
    _refuse_copies(features, _TELLING[access])
    meta = _default_classifier(labels[~judged], seed) if classifier is None else classifier
    fitted = _fit(meta, features[~judged], labels[~judged])
    guesses = np.asarray(fitted.predict(features[judged]), dtype=np.bool_)
    truth = labels[judged]
    right = guesses == truth
    scores = _scores(fitted, features[judged])

    def share_of(kind: NDArray[np.bool_]) -> Proportion:
        return proportion(int(right[kind].sum()), int(kind.sum()), confidence=level)

    score = None
    if target is not None:
        row = _require_one_length(
            [features[0], *shadow_features([target], access, queries, layers)]
        )[1:]
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


def _require_one_length(rows: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
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


def _require_enough(
    labels: NDArray[np.bool_], judged: NDArray[np.bool_], confidence: float
) -> None:
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
            "enough of them to tell a perfect score from chance",
        )


def _default_classifier(labels: NDArray[np.bool_], seed: int | None) -> Any:
    choosing = import_module("sklearn.model_selection")
    logistic = import_module("sklearn.linear_model").LogisticRegression(max_iter=5000)
    scaling = import_module("sklearn.preprocessing").StandardScaler()
    fewest = int(min(labels.sum(), (~labels).sum()))
    state = int(seeded_generator(seed).integers(2**32))
    return choosing.GridSearchCV(
        import_module("sklearn.pipeline").make_pipeline(scaling, logistic),
        {"logisticregression__C": [1e-4, 1e-3, 1e-2, 1e-1, 1.0]},
        cv=choosing.StratifiedKFold(min(5, fewest), shuffle=True, random_state=state),
    )


def _fit(meta: Any, features: NDArray[np.float64], labels: NDArray[np.bool_]) -> Any:
    fitted = import_module("sklearn.base").clone(meta).fit(features, labels)
    if not hasattr(fitted, "predict_proba"):
        raise InvalidValue("classifier", meta, "a classifier with predict_proba")
    return fitted


def _scores(fitted: Any, features: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(fitted.predict_proba(features), dtype=np.float64)[:, 1]


def train_shadows(
    train: Callable[..., Any], sets: PropertySets, *, n_jobs: int = 1, group: int = 32
) -> list[Any]:
    """Train one model on each set, with joblib on ``n_jobs`` cores.

    ``train(indices)`` or ``train(indices, seed)`` returns a model (a parameter called ``seed``,
    or a second one without a default, gets the seed); the seeds are different for
    all models and follow from that of the sets. A trainer with a method ``many``, such as
    :class:`~discreet.attacks.NetworkTrainer`, trains ``group`` models at once.

    Parameters
    ----------
    train
        ``train(indices)`` or ``train(indices, seed)``.
    sets
        The training sets.
    n_jobs, group
        Processes, and how many models a trainer with ``many`` trains at once.

    Returns
    -------
    list
        A model for each set.
    """
    size = _validate.integer("group", group, at_least=1)
    jobs = [
        TrainingJob(place, rows, derive_seed(sets.seed, 1 + place))
        for place, rows in enumerate(sets.indices)
    ]
    models: list[Any] = [None] * len(jobs)
    work = _TrainAll(train)
    for done in run_batches(work, jobs, grouped=hasattr(train, "many"), n_jobs=n_jobs, group=size):
        for place, model in done:
            models[place] = model
    return models


@final
@dataclass(frozen=True)
class _TrainAll:
    train: Callable[..., Any]

    def __call__(self, jobs: Sequence[TrainingJob]) -> list[tuple[int, Any]]:
        return [
            (job.place, model)
            for job, model in zip(jobs, train_models(self.train, jobs), strict=True)
        ]
