"""Attribute inference: guess a sensitive attribute of training records from a model's answers.

The attacker knows a record but for one attribute, and its label. The attack puts every
candidate value into the record, asks the model, and takes the value at which the model is most
confident in the true label (Fredrikson et al. 2014, Yeom et al. 2018), weighted by a prior if
the attacker has one. That a value is guessed well does not yet mean that the model leaks it:
the model, like any good model, knows the correlations of the population. So two comparisons
come with every attack:

* *imputation*: the same guess from the rest of the record and the label alone, learned from
  records that the attacker has without the model (see below);
* *non-members*: people like the members that the model has never seen.

The ``excess`` is what the attack wins over the imputation on members, less what it wins on
non-members. What a model only knows of the population has excess zero. Intervals hold at the
stated confidence each, without approximation (:mod:`discreet._confidence`).

**Imputation** learns the attribute from the rest of the record and its label, on records that the
attacker has anyway. An attack on the model that does not beat it has shown a correlation of the
population, not a leak (Jayaraman and Evans 2022). A weak imputation flatters the attack, so by
default several classifiers compete on a held-out part of the attacker's own records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._confidence import Difference, Proportion, excess, gain, gap, proportion
from discreet._json import HIDDEN, JsonRecord
from discreet.attacks._contract import Finding, Result, attack
from discreet.attacks._target import as_target, class_indices
from discreet.attacks._training import seeded_generator
from discreet.data import Boolean, Bounded, Categorical, Encoding
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


_MOST_VALUES = 1000


@final
@dataclass(frozen=True, eq=False)
class Attribute:
    """An attribute that an attacker wants to know, with the finite list of its candidate values.

    ``columns`` are the coordinates of a record that hold it (several for a one-hot block), and
    row k of ``candidates`` is what stands there if the attribute has its k-th value. ``values``
    are the names of the candidates.

    >>> sex = Attribute("sex", columns=[1, 2], candidates=[[1, 0], [0, 1]], values=["F", "M"])
    >>> sex.codes(np.array([[0.3, 0.0, 1.0], [0.9, 1.0, 0.0]]))
    array([1, 0])
    """

    name: str
    columns: tuple[int, ...]
    candidates: NDArray[np.float64]
    values: tuple[str, ...]

    def __init__(
        self,
        name: str,
        *,
        columns: int | Sequence[int],
        candidates: ArrayLike,
        values: Sequence[object] | None = None,
    ) -> None:
        places = (columns,) if isinstance(columns, int) else tuple(columns)
        indices = tuple(_validate.integer("columns", place, at_least=0) for place in places)
        if not indices or len(set(indices)) != len(indices):
            raise InvalidValue("columns", columns, "at least one column, each named once")
        rows = np.array(candidates, dtype=np.float64)
        if rows.ndim == 1:
            rows = rows[:, None]
        if rows.ndim != 2 or rows.shape[1] != len(indices):
            expected = f"values for {len(indices)} columns, as an array (values, columns)"
            raise InvalidValue("candidates", np.shape(candidates), expected)
        if not np.isfinite(rows).all():
            raise InvalidValue("candidates", candidates, "finite numbers")
        if len(np.unique(rows, axis=0)) != len(rows) or len(rows) < 2:
            raise InvalidValue("candidates", candidates, "at least two values, all different")
        names = [_show_row(row) for row in rows] if values is None else [str(v) for v in values]
        if len(names) != len(rows) or len(set(names)) != len(names):
            raise InvalidValue("values", values, f"{len(rows)} names, all different")
        rows.setflags(write=False)
        object.__setattr__(self, "name", str(name))
        object.__setattr__(self, "columns", indices)
        object.__setattr__(self, "candidates", rows)
        object.__setattr__(self, "values", tuple(names))

    @classmethod
    def from_encoding(
        cls, encoding: Encoding, name: str, *, values: Sequence[Any] | None = None
    ) -> Attribute:
        """Return the attribute of an encoded column, with all or some of its declared values.

        A column of real numbers needs ``values``; a candidate that the schema does not declare
        is refused, because no record can have it.

        >>> from discreet.data import Categorical, Integer, Schema
        >>> schema = Schema({"age": Integer(20, 60), "sex": Categorical(["F", "M"], other="F")})
        >>> Attribute.from_encoding(Encoding(schema), "sex").columns
        (1, 2)
        >>> Attribute.from_encoding(Encoding(schema), "age", values=[20, 40]).candidates.tolist()
        [[-1.0], [0.0]]
        >>> Attribute.from_encoding(Encoding(schema), "age", values=[20, 80])
        Traceback (most recent call last):
        discreet.errors.InvalidValue: values = 80: expected a value that the schema declares
        for 'age', 20 to 60
        """
        if not isinstance(encoding, Encoding):
            raise InvalidValue("encoding", type(encoding).__name__, "an Encoding")
        _validate.one_of("name", name, tuple(encoding.schema.features))
        column = encoding.schema.features[name]
        at = 0
        for other, declared in encoding.schema.features.items():
            if other == name:
                break
            at += len(declared.labels) if isinstance(declared, Categorical) else 1
        lowest = -1.0 if encoding.interval == "symmetric" else 0.0
        if isinstance(column, Categorical):
            labels = tuple(column.labels)
            chosen = labels if values is None else tuple(values)
            _require_declared(name, chosen, labels)
            block = np.eye(len(labels))[[labels.index(label) for label in chosen]]
            places = range(at, at + len(labels))
            return cls(name, columns=list(places), candidates=block, values=chosen)
        if isinstance(column, Boolean):
            truths = (False, True) if values is None else tuple(values)
            _require_declared(name, truths, (False, True))
            ends = [1.0 if truth else lowest for truth in truths]
            return cls(name, columns=at, candidates=ends, values=truths)
        if not isinstance(column, Bounded):  # the types of columns are a closed list
            raise InvalidValue("name", name, "a column with values")
        lower, upper = column.bounds
        if values is None:
            if column.kind != "integer" or upper - lower >= _MOST_VALUES:
                raise InvalidValue("values", None, f"the candidate values of {name!r}")
            values = range(int(lower), int(upper) + 1)
        for value in values:
            number = _validate.real("values", value)
            if not lower <= number <= upper:
                expected = f"a value that the schema declares for {name!r}, "
                raise InvalidValue("values", value, expected + f"{lower:g} to {upper:g}")
        shares = (np.array([float(value) for value in values]) - lower) / (upper - lower)
        scaled = shares if lowest == 0.0 else 2.0 * shares - 1.0
        return cls(name, columns=at, candidates=scaled, values=tuple(values))

    def codes(self, records: NDArray[Any], *, argument: str = "records") -> NDArray[np.intp]:
        """Return for every record which candidate it has, or raise where it has none of them."""
        self.check_width(records, argument)
        held = records[:, list(self.columns)]
        codes = np.full(len(records), -1, dtype=np.intp)
        for code, candidate in enumerate(self.candidates.astype(held.dtype)):
            codes[(held == candidate).all(axis=1)] = code
        if (codes < 0).any():
            row = int(np.flatnonzero(codes < 0)[0])
            raise InvalidValue(
                argument,
                f"{held[row].tolist()} in row {row}",
                f"one of the {len(self.values)} candidate values of {self.name!r}",
            )
        return codes

    def with_value(self, records: NDArray[Any], code: int) -> NDArray[Any]:
        """Return a copy of the records in which all have this value."""
        changed = records.copy()
        changed[:, list(self.columns)] = self.candidates[code].astype(records.dtype)
        return changed

    def without(self, records: NDArray[Any]) -> NDArray[Any]:
        """Return the records without the columns of the attribute."""
        return np.delete(records, list(self.columns), axis=1)

    def check_width(self, records: NDArray[Any], argument: str) -> None:
        """Raise unless the records have the columns of the attribute."""
        if records.ndim != 2 or records.shape[1] <= max(self.columns):
            expected = f"an array (records, features) with a column {max(self.columns)}"
            raise InvalidValue(argument, f"an array of shape {records.shape}", expected)


def _show_row(row: NDArray[np.float64]) -> str:
    return ", ".join(f"{number:.12g}" for number in row)


def _require_declared(name: str, chosen: Sequence[Any], declared: Sequence[Any]) -> None:
    for value in chosen:
        if value not in declared:
            expected = f"a value that the schema declares for {name!r}, one of "
            raise InvalidValue("values", value, expected + ", ".join(map(str, declared)))


_SELECTION_SHARE = 4  # one record in this many judges the contestants


@final
@dataclass(frozen=True, eq=False)
class Imputation:
    """A fitted guess of the attribute: ``probabilities(rest, labels)`` is (n, values)."""

    name: str
    classifier: Any
    values: int
    classes: int
    floor: float

    def probabilities(self, rest: NDArray[Any], labels: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the probability of each value given the rest of the record and its label.

        A value that the attacker has never met keeps a small probability.
        """
        inputs = _with_labels(rest, labels, self.classes)
        guessed = np.asarray(self.classifier.predict_proba(inputs), dtype=np.float64)
        full = np.zeros((len(rest), self.values))
        full[:, np.asarray(self.classifier.classes_, dtype=np.intp)] = guessed
        full = np.maximum(full, self.floor)
        return np.asarray(full / full.sum(axis=1, keepdims=True))


def fit_imputation(
    rest: NDArray[Any],
    labels: NDArray[np.intp],
    codes: NDArray[np.intp],
    *,
    values: int,
    classes: int,
    contestants: Sequence[Any] | None,
    order: NDArray[np.intp],
) -> Imputation:
    """Fit the contestants on three quarters of the records; refit the winner on all of them.

    ``order`` is a permutation of the records: its last quarter judges. A constant attribute
    cannot be learned from and is refused.
    """
    if len(np.unique(codes)) < 2:
        raise InvalidValue(
            "auxiliary", "one value only", "records with two values of the attribute"
        )
    models = list(_defaults() if contestants is None else contestants)
    if not models or not all(hasattr(model, "fit") for model in models):
        raise InvalidValue("imputer", contestants, "scikit-learn classifiers with predict_proba")
    inputs = _with_labels(rest, labels, classes)
    winner = models[0]
    if len(models) > 1:
        judged = order[len(order) - len(order) // _SELECTION_SHARE :]
        fitted = order[: len(order) - len(judged)]
        if len(judged) == 0 or len(np.unique(codes[fitted])) < 2:
            raise InvalidValue(
                "auxiliary", f"{len(codes)} records", "enough to choose an imputer on"
            )
        scores = [
            float(
                (
                    _fit(model, inputs[fitted], codes[fitted]).predict(inputs[judged])
                    == codes[judged]
                ).mean()
            )
            for model in models
        ]
        winner = models[int(np.argmax(scores))]
    final_model = _fit(winner, inputs, codes)
    if not hasattr(final_model, "predict_proba"):
        raise InvalidValue("imputer", winner, "a classifier with predict_proba")
    name = type(winner).__name__
    if hasattr(winner, "steps"):
        name = type(winner.steps[-1][1]).__name__
    return Imputation(name, final_model, values, classes, 1.0 / (len(codes) + values))


def _fit(model: Any, inputs: NDArray[Any], codes: NDArray[np.intp]) -> Any:
    return import_module("sklearn.base").clone(model).fit(inputs, codes)


def _with_labels(rest: NDArray[Any], labels: NDArray[np.intp], classes: int) -> NDArray[np.float64]:
    """The attacker knows the label, so the imputation may use it."""
    return np.hstack([np.asarray(rest, dtype=np.float64), np.eye(classes)[labels]])


def _defaults() -> list[Any]:
    scaling = import_module("sklearn.preprocessing").StandardScaler()
    logistic = import_module("sklearn.linear_model").LogisticRegression(max_iter=2000)
    return [
        import_module("sklearn.dummy").DummyClassifier(strategy="prior"),
        import_module("sklearn.pipeline").make_pipeline(scaling, logistic),
        import_module("sklearn.ensemble").HistGradientBoostingClassifier(random_state=0),
    ]


PRIORS = ("uniform", "marginal", "imputed")


@final
@dataclass(frozen=True)
class ValueRecall(JsonRecord):
    """Of the records that have this value, how many the attack and the imputation found."""

    value: str
    group: str
    records: int
    attack: int
    imputation: int


@final
@dataclass(frozen=True, eq=False)
class AttributeResult(Result):
    """Accuracy of the attack and of the imputation, on members and on non-members.

    ``gap`` and ``imputation_gap`` compare members with non-members, ``gain_on_*`` compare the
    attack with the imputation on the same records, and ``excess`` is the difference of the two
    gains. An ``imputation_gap`` away from zero says that members and non-members are not alike:
    then the gap of the attack alone proves nothing.
    """

    json_kind = "attribute"
    json_properties = ("leaks", "beats_imputation", "verdict")

    attribute: str
    values: tuple[str, ...]
    prior: str
    imputer: str
    confidence: float
    attack_on_members: Proportion
    attack_on_nonmembers: Proportion
    imputation_on_members: Proportion
    imputation_on_nonmembers: Proportion
    gap: Difference
    imputation_gap: Difference
    gain_on_members: Difference
    gain_on_nonmembers: Difference
    excess: Difference
    by_value: tuple[ValueRecall, ...]
    queries: int
    member_guesses: NDArray[np.intp] = field(metadata=HIDDEN)
    nonmember_guesses: NDArray[np.intp] = field(metadata=HIDDEN)
    imputation: Imputation = field(repr=False, metadata=HIDDEN)

    @property
    def finding(self) -> Finding:
        """The excess: how much more the attack gains on members than on others."""
        found = self.excess
        interval = found.value, found.low, found.high, found.confidence
        measure = f"excess on members over imputation, for {self.attribute}"
        trials = self.attack_on_members.trials
        return Finding("attribute_inference", measure, *interval, 0.0, trials)

    @property
    def beats_imputation(self) -> bool:
        """Whether the attack alone guesses members better than the imputation does."""
        return self.gain_on_members.positive

    @property
    def verdict(self) -> str:
        """What was found, in a sentence."""
        if self.leaks and self.beats_imputation:
            return "the model leaks the attribute of its members, and the attack beats imputation"
        if self.leaks:
            return "the model leaks about its members, but imputation alone guesses as well"
        if self.beats_imputation:
            return "the model predicts the attribute of members and others alike: no leak is shown"
        return "no leak is shown: the attack does not beat imputation"

    def __str__(self) -> str:
        return (
            f"{self.attribute} ({len(self.values)} values), {self.prior} prior: {self.verdict}\n"
            f"members:     attack {self.attack_on_members}, "
            f"imputation {self.imputation_on_members}\n"
            f"non-members: attack {self.attack_on_nonmembers}, "
            f"imputation {self.imputation_on_nonmembers}\n"
            f"excess on members: {self.excess}"
        )


@attack(family="attribute", access="probabilities")
def attribute_inference(
    target: Any,
    *,
    attribute: Attribute,
    members: tuple[ArrayLike, ArrayLike],
    nonmembers: tuple[ArrayLike, ArrayLike],
    auxiliary: tuple[ArrayLike, ArrayLike],
    prior: str = "uniform",
    imputer: Any | Sequence[Any] | None = None,
    allow_duplicates: bool = False,
    confidence: float = 0.95,
    seed: int | None = None,
) -> AttributeResult:
    """Guess the attribute of members and of non-members from the model's confidence.

    Where the model is equally confident in several candidates it says nothing, and the imputation
    decides among them.

    Parameters
    ----------
    target : model
        What :func:`as_target` takes.
    attribute : Attribute
        What is to be inferred.
    members, nonmembers, auxiliary : pairs (records, labels)
        Auxiliary records are what the attacker has without the model.
    prior : {"uniform", "marginal", "imputed"}
        Weighs the candidates: all alike, by their frequency in the auxiliary records, or by the
        imputation for that record.
    imputer : scikit-learn classifier, or several that compete, optional
        By default the most frequent value, logistic regression and gradient boosting; or the
        ``imputation`` of an earlier result on the same auxiliary records.
    allow_duplicates : bool
        Records that occur in two of the three sets belong to different people who look alike.
    confidence : float
        Of all intervals.
    seed : int, optional
        Divides the auxiliary records for the competition.

    Returns
    -------
    AttributeResult
        Attack and imputation, on members and on non-members.

    Raises
    ------
    InvalidValue
        If records do not fit the attribute or each other, or occur in two of the sets.
    """
    _validate.one_of("prior", prior, PRIORS)
    level = _validate.real("confidence", confidence, above=0, below=1)
    if not isinstance(attribute, Attribute):
        raise InvalidValue("attribute", attribute, "an Attribute")
    asked = as_target(target)
    sets = {
        "members": _records("members", members),
        "nonmembers": _records("nonmembers", nonmembers),
        "auxiliary": _records("auxiliary", auxiliary),
    }
    codes = {name: attribute.codes(x, argument=name) for name, (x, _) in sets.items()}
    if len({x.shape[1] for x, _ in sets.values()}) != 1:
        widths = {name: x.shape[1] for name, (x, _) in sets.items()}
        raise InvalidValue("records", widths, "the same number of features everywhere")
    if not allow_duplicates:
        _refuse_overlaps(sets)
    classes = asked.log_probabilities(sets["members"][0][:1]).shape[1]
    labels = {name: class_indices(asked, y) for name, (_, y) in sets.items()}
    imputation = _imputation(
        imputer,
        attribute,
        (sets["auxiliary"][0], labels["auxiliary"], codes["auxiliary"]),
        classes,
        seed,
    )
    frequencies = np.bincount(codes["auxiliary"], minlength=len(attribute.values)) + 1.0
    right, imputed_right, guesses = {}, {}, {}
    for name in ("members", "nonmembers"):
        x, y = sets[name][0], labels[name]
        imputed = imputation.probabilities(attribute.without(x), y)
        weights = {"uniform": np.ones_like(imputed), "marginal": frequencies, "imputed": imputed}
        scores = log_confidences(asked, attribute, x, y) + np.log(weights[prior])
        guesses[name] = _most_likely(scores, imputed)
        right[name] = guesses[name] == codes[name]
        imputed_right[name] = imputed.argmax(axis=1) == codes[name]

    def share(outcome: NDArray[np.bool_]) -> Proportion:
        return proportion(int(outcome.sum()), len(outcome), confidence=level)

    inside, outside = right["members"], right["nonmembers"]
    base_inside, base_outside = imputed_right["members"], imputed_right["nonmembers"]
    return AttributeResult(
        attribute=attribute.name,
        values=attribute.values,
        prior=prior,
        imputer=imputation.name,
        confidence=level,
        attack_on_members=share(inside),
        attack_on_nonmembers=share(outside),
        imputation_on_members=share(base_inside),
        imputation_on_nonmembers=share(base_outside),
        gap=gap(inside, outside, confidence=level),
        imputation_gap=gap(base_inside, base_outside, confidence=level),
        gain_on_members=gain(inside, base_inside, confidence=level),
        gain_on_nonmembers=gain(outside, base_outside, confidence=level),
        excess=excess((inside, base_inside), (outside, base_outside), confidence=level),
        by_value=tuple(
            ValueRecall(
                value,
                name,
                int(held.sum()),
                int(right[name][held].sum()),
                int(imputed_right[name][held].sum()),
            )
            for name in ("members", "nonmembers")
            for code, value in enumerate(attribute.values)
            for held in [codes[name] == code]
        ),
        queries=(len(inside) + len(outside)) * len(attribute.values),
        member_guesses=guesses["members"],
        nonmember_guesses=guesses["nonmembers"],
        imputation=imputation,
    )


def log_confidences(
    model: Any, attribute: Attribute, records: NDArray[Any], labels: ArrayLike
) -> NDArray[np.float64]:
    """Return (records, values): log of the model's confidence in the true label at each value."""
    target = as_target(model)
    answers = [
        target.log_probabilities(attribute.with_value(records, code))
        for code in range(len(attribute.values))
    ]
    true = class_indices(target, labels)
    return np.stack([answer[np.arange(len(records)), true] for answer in answers], axis=1)


def _imputation(
    imputer: Any,
    attribute: Attribute,
    auxiliary: tuple[NDArray[Any], NDArray[np.int64], NDArray[np.intp]],
    classes: int,
    seed: int | None,
) -> Imputation:
    values = len(attribute.values)
    if isinstance(imputer, Imputation):
        if (imputer.values, imputer.classes) != (values, classes):
            shown = f"of {imputer.values} values and {imputer.classes} classes"
            raise InvalidValue("imputer", shown, f"{values} values and {classes} classes")
        return imputer
    records, labels, codes = auxiliary
    return fit_imputation(
        attribute.without(records),
        labels,
        codes,
        values=values,
        classes=classes,
        contestants=imputer if imputer is None or isinstance(imputer, (list, tuple)) else [imputer],
        order=seeded_generator(seed).permutation(len(records)),
    )


def _most_likely(scores: NDArray[np.float64], imputed: NDArray[np.float64]) -> NDArray[np.intp]:
    tied = scores == scores.max(axis=1, keepdims=True)
    return np.asarray(np.where(tied, imputed, -1.0).argmax(axis=1))


def _records(argument: str, pair: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise InvalidValue(argument, type(pair).__name__, "a pair (records, labels)")
    x, y = np.asarray(pair[0]), np.asarray(pair[1])
    if not (np.issubdtype(x.dtype, np.number) or x.dtype == np.bool_):
        raise InvalidValue(argument, f"records of type {x.dtype}", "numbers")
    if not np.issubdtype(x.dtype, np.floating):
        x = x.astype(np.float64)
    if x.ndim != 2 or len(x) == 0 or not np.isfinite(x).all():
        expected = "records as an array (n, features) of finite numbers, n at least 1"
        raise InvalidValue(argument, f"records of shape {x.shape}", expected)
    if y.shape != (len(x),):
        raise InvalidValue(argument, f"labels of shape {y.shape}", f"{len(x)} labels")
    return x, y


def _refuse_overlaps(sets: dict[str, tuple[NDArray[Any], NDArray[Any]]]) -> None:
    seen: dict[tuple[bytes, Any], str] = {}
    # The same records in two precisions are equal in the coarser one only.
    coarsest = min((x.dtype for x, _ in sets.values()), key=lambda kind: kind.itemsize)
    for name, (x, y) in sets.items():
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(x, dtype=coarsest) + 0.0  # turns -0.0 into 0.0
        keys = {(row.tobytes(), label) for row, label in zip(rows, y.tolist(), strict=True)}
        for other in set(seen.values()):
            shared = sum(seen.get(key) == other for key in keys)
            if shared:
                raise InvalidValue(
                    name,
                    f"{shared} records that are also among {other}",
                    "no record in two sets (allow_duplicates=True if these are different people)",
                )
        seen.update(dict.fromkeys(keys, name))
