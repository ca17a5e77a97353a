"""Quantile regression, an attack without shadow models (Bertran et al. 2023).

Some records are easy whether or not they were used, so one threshold for all is a poor
attack. From public records that were surely not used, a regression learns which scaled logit
a record *of this kind* gets from the target without having been used; a record whose logit
lies above a high quantile of that is called a member.

The regression may be as poor as it likes: the threshold is then set on public records that
the regression has not seen (split conformal prediction, Vovk et al. 2005), so that a
non-member from the same population is accused with at most the stated probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet import _validate
from discreet._threads import one_thread
from discreet.attacks._contract import attack
from discreet.attacks._membership import MembershipResult, conformal_threshold
from discreet.attacks._training import seeded_generator
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.attacks._observation import Observation
    from discreet.attacks._training import Generator


# More columns than this are reduced to their main directions before trees look at them.
_MANY_COLUMNS = 64
_DIRECTIONS = 32
_FEWEST = 20


@attack(family="membership", access="probabilities")
def quantile_regression(
    observation: Observation,
    public: Observation,
    *,
    false_positive_rate: float = 0.05,
    features: Callable[[Any], Any] | None = None,
    regressor: Callable[[float], Any] | None = None,
    seed: int | None = None,
) -> MembershipResult:
    """Score each record by how far the target's answer lies above what is usual for its kind.

    The score is (logit - median) / (high quantile - median), both predicted for the record.

    Parameters
    ----------
    observation : Observation
        The target's answers, with the records.
    public : Observation
        Answers on other records of the same population that were surely not used.
    false_positive_rate : float
        The chance to accuse a non-member, at most; the high quantile is that of 1 minus it.
    features : callable, optional
        Turns records into a table for the regression; by default their values, reduced to main
        directions if there are many. The true class is always added.
    regressor : callable, optional
        ``regressor(level)`` makes a regressor for a quantile; by default boosted trees.
    seed : int, optional
        Makes the attack repeatable.

    Returns
    -------
    MembershipResult
        Scores and decisions.

    Raises
    ------
    InvalidValue
        If there are too few public records, or some are members or evaluated.
    """
    rate = _validate.real("false_positive_rate", false_positive_rate, above=0, below=0.5)
    observation.check_reference(public, "public")
    needed = max(_FEWEST, 2 * math.ceil(1 / rate))
    if len(public) < needed:
        raise InvalidValue(
            "public",
            f"{len(public)} records",
            f"at least {needed} for a false-positive rate of {rate:g}",
        )
    with one_thread():
        reference, scores, model = _surprises(
            observation, public, rate, features, regressor, seeded_generator(seed)
        )
    threshold = conformal_threshold(reference, rate)
    return observation.judge(
        "quantile regression",
        scores,
        scores > threshold,
        threshold,
        public=len(public),
        false_positive_rate=rate,
        regressor=model,
        threshold_from="public records",
        threshold_saw_evaluated=False,
    )


def _surprises(
    observation: Observation,
    public: Observation,
    rate: float,
    features: Callable[[Any], Any] | None,
    regressor: Callable[[float], Any] | None,
    draw: Generator,
) -> tuple[NDArray[np.float64], NDArray[np.float64], str]:
    """Scores of the public records that were not learnt from, and of the observed ones."""
    make = regressor if regressor is not None else _make_boosted(int(draw.integers(2**31)))
    order = draw.permutation(len(public))
    learn, check = order[: len(public) // 2], order[len(public) // 2 :]
    table = _Table(public, observation, features, learn)
    logits = public.scaled_logits()
    middle = make(0.5).fit(table.public[learn], logits[learn])
    upper = make(1 - rate).fit(table.public[learn], logits[learn])
    # Predicted quantiles may cross; the typical width keeps the scale positive.
    width = upper.predict(table.public[learn]) - middle.predict(table.public[learn])
    floor = max(float(np.median(np.abs(width))) / 10, 1e-6)

    def surprise(rows: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        centre = middle.predict(rows)
        return np.asarray((values - centre) / np.maximum(upper.predict(rows) - centre, floor))

    return (
        surprise(table.public[check], logits[check]),
        surprise(table.observed, observation.scaled_logits()),
        type(upper).__name__,
    )


class _Table:
    """Features of the public and the observed records, with the same columns.

    What is fitted is fitted to the public records ``learn``: the others must be like the
    observed ones in all that happens to them, or the threshold does not hold.
    """

    def __init__(
        self,
        public: Observation,
        observation: Observation,
        features: Callable[[Any], Any] | None,
        learn: NDArray[np.intp],
    ) -> None:
        if public.records is None or observation.records is None:
            raise NotApplicable(
                "quantile regression looks at the records: make observations by observe()"
            )
        prepare = _values if features is None else features
        known, asked = _table(prepare(public.records)), _table(prepare(observation.records))
        if known.shape[1] != asked.shape[1]:
            raise InvalidValue("public", f"{known.shape[1]} columns", f"{asked.shape[1]} columns")
        if features is None and known.shape[1] > _MANY_COLUMNS:
            centre = known[learn].mean(axis=0)
            main = _main_directions(known[learn] - centre)
            known, asked = (known - centre) @ main, (asked - centre) @ main
        classes = max(public.classes, observation.classes)
        self.public = np.column_stack([known, np.eye(classes)[public.labels]])
        self.observed = np.column_stack([asked, np.eye(classes)[observation.labels]])


def _main_directions(centred: NDArray[np.float64]) -> NDArray[np.float64]:
    """The first principal directions as columns, at most as many as there are rows."""
    if len(centred) < centred.shape[1]:
        return np.asarray(np.linalg.svd(centred, full_matrices=False)[2][:_DIRECTIONS].T)
    return np.asarray(np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :_DIRECTIONS])


def _values(records: Any) -> Any:
    return records.detach().cpu().numpy() if hasattr(records, "detach") else np.asarray(records)


def _table(values: Any) -> NDArray[np.float64]:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidValue(
            "features", None, "a function from records to numbers: these records are not numbers"
        ) from None
    return array.reshape(len(array), -1)


def _make_boosted(seed: int) -> Callable[[float], Any]:
    try:
        ensemble = import_module("sklearn.ensemble")
    except ImportError:
        raise NotApplicable("quantile_regression() needs the package scikit-learn") from None

    def make(level: float) -> Any:
        return ensemble.HistGradientBoostingRegressor(
            loss="quantile",
            quantile=level,
            max_iter=60,
            max_leaf_nodes=8,
            min_samples_leaf=20,
            early_stopping=False,
            random_state=seed,
        )

    return make
