"""Attribute inference: what a model tells of a sensitive attribute of the people it learned from.

S29. The attacker knows a record but for one attribute, and its label. The attack puts every
candidate value into the record, asks the model, and takes the value at which the model is most
confident in the true label (Fredrikson et al. 2014, Yeom et al. 2018), weighted by a prior if
the attacker has one. That a value is guessed well does not yet mean that the model leaks it:
the model, like any good model, knows the correlations of the population. So two comparisons
come with every attack:

* *imputation*: the same guess from the rest of the record and the label alone, learned from
  records that the attacker has without the model (:mod:`.attribute_imputation`);
* *non-members*: people like the members that the model has never seen.

The ``excess`` is what the attack wins over the imputation on members, less what it wins on
non-members. What a model only knows of the population has excess zero. Intervals hold at the
stated confidence each, without approximation (:mod:`discreet._confidence`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._confidence import Difference, Proportion, excess, gain, gap, proportion
from discreet.attacks.attribute_imputation import Imputation, fit_imputation
from discreet.attacks.attribute_values import Attribute
from discreet.attacks.chance import generator
from discreet.attacks.targets import as_target, class_indices
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["Attribute", "AttributeResult", "ValueRecall", "attribute_inference", "log_confidences"]

PRIORS = ("uniform", "marginal", "imputed")


@final
@dataclass(frozen=True)
class ValueRecall:
    """Of the records that have this value, how many the attack and the imputation found."""

    value: str
    group: str
    records: int
    attack: int
    imputation: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "value": self.value,
            "group": self.group,
            "records": self.records,
            "attack": self.attack,
            "imputation": self.imputation,
        }


@final
@dataclass(frozen=True, eq=False)
class AttributeResult:
    """Accuracy of the attack and of the imputation, on members and on non-members.

    ``gap`` and ``imputation_gap`` compare members with non-members, ``gain_on_*`` compare the
    attack with the imputation on the same records, and ``excess`` is the difference of the two
    gains. An ``imputation_gap`` away from zero says that members and non-members are not alike:
    then the gap of the attack alone proves nothing.
    """

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
    member_guesses: NDArray[np.intp]
    nonmember_guesses: NDArray[np.intp]
    imputation: Imputation = field(repr=False)

    @property
    def leaks(self) -> bool:
        """Whether the model knows more of its members than of others, beyond imputation."""
        return self.excess.positive

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

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON values, without the guesses on single records."""
        return {
            "attack": "attribute",
            "attribute": self.attribute,
            "values": list(self.values),
            "prior": self.prior,
            "imputer": self.imputer,
            "confidence": self.confidence,
            "attack_on_members": self.attack_on_members.to_json(),
            "attack_on_nonmembers": self.attack_on_nonmembers.to_json(),
            "imputation_on_members": self.imputation_on_members.to_json(),
            "imputation_on_nonmembers": self.imputation_on_nonmembers.to_json(),
            "gap": self.gap.to_json(),
            "imputation_gap": self.imputation_gap.to_json(),
            "gain_on_members": self.gain_on_members.to_json(),
            "gain_on_nonmembers": self.gain_on_nonmembers.to_json(),
            "excess": self.excess.to_json(),
            "leaks": self.leaks,
            "beats_imputation": self.beats_imputation,
            "verdict": self.verdict,
            "by_value": [row.to_json() for row in self.by_value],
            "queries": self.queries,
        }

    def __str__(self) -> str:
        return (
            f"{self.attribute} ({len(self.values)} values), {self.prior} prior: {self.verdict}\n"
            f"members:     attack {self.attack_on_members}, "
            f"imputation {self.imputation_on_members}\n"
            f"non-members: attack {self.attack_on_nonmembers}, "
            f"imputation {self.imputation_on_nonmembers}\n"
            f"excess on members: {self.excess}"
        )


def attribute_inference(
    model: Any,
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

    ``members``, ``nonmembers`` and ``auxiliary`` are pairs (records, labels); auxiliary records
    are what the attacker has without the model, and neither members nor non-members may be
    among them. ``prior`` weighs the candidates: all alike, by their frequency in the auxiliary
    records, or by the imputation for that record. Where the model is equally confident in
    several candidates it says nothing, and the imputation decides among them. ``imputer`` is a
    scikit-learn classifier, or several that compete; by default the most frequent value,
    logistic regression and gradient boosting; or the ``imputation`` of an earlier result on the
    same auxiliary records, which saves the fitting. ``seed`` divides the auxiliary records for that
    competition.

    Records that occur in two of the three sets are refused, unless ``allow_duplicates`` says
    that they belong to different people who look alike.
    """
    _validate.one_of("prior", prior, PRIORS)
    level = _validate.real("confidence", confidence, above=0, below=1)
    if not isinstance(attribute, Attribute):
        raise InvalidValue("attribute", attribute, "an Attribute")
    target = as_target(model)
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
    classes = target.log_probabilities(sets["members"][0][:1]).shape[1]
    labels = {name: class_indices(target, y) for name, (_, y) in sets.items()}
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
        scores = log_confidences(target, attribute, x, y) + np.log(weights[prior])
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
        order=generator(seed).permutation(len(records)),
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
