"""Which aggregator for which votes: labels and accuracy before anything is spent.

NEVER pass private votes: what is chosen by looking at them would tell about them, and no loss
here covers that. Use simulated votes, or votes of teachers that were trained on public data.

For each aggregator the parameters are searched that answer most labels, in expectation, at an
expected accuracy of at least ``accuracy`` within (epsilon, delta), data-independently. The
expectations are estimates; the loss of what is proposed is checked by the accountant.

A run of PATE chooses its aggregator before any record is read: the votes that the choice looks at
are made up from one public guess: how large a share of the teachers is expected to agree on a
typical query.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy.special import betaincinv

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.pate._aggregator import Aggregator, Prospect, SessionPlan, VoteProfile, VotingSession
from discreet.pate._votes import read_histograms, read_prediction
from discreet.privacy import Loss, Relation
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

    Counts = NDArray[np.int64]


_LARGEST_PROFILE = 1_000


def compare_aggregators(
    public_votes: Any,
    *,
    epsilon: float,
    delta: float,
    classes: int,
    teachers: int,
    queries: int | None = None,
    truth: Any = None,
    predictions: Any = None,
    accuracy: float | None = None,
    relation: Relation | str = Relation.ADD_REMOVE,
) -> list[Prospect]:
    """Return what each aggregator would answer on votes like these, most labels first.

    ``public_votes`` are histograms that are NOT private, one a row; ``truth`` their right
    labels (by default the winners, and accuracy is agreement with them). ``queries`` is how
    many queries there are to ask (by default as many as rows). ``accuracy`` is what the
    answered labels must reach, by default 0.98 of what the winners of all votes reach.
    ``predictions`` of a student add InteractiveGNMax.

    >>> votes = [[220, 20, 10]] * 60 + [[100, 90, 60]] * 40
    >>> ranked = compare_aggregators(
    ...     votes, epsilon=2, delta=1e-5, classes=3, teachers=250, queries=1000
    ... )
    >>> sorted(one.name for one in ranked)
    ['ConfidentGNMax', 'GNMax', 'LaplaceMax', 'SampledVotes', 'SparseVotes', 'StableVotes']
    >>> ranked[0].labels > 100
    True

    Parameters
    ----------
    public_votes, truth, predictions
        Histograms that are not private, their labels, a student's probabilities.
    epsilon, delta
        The budget.
    classes, teachers, relation
        Of the aggregators.
    queries, accuracy
        How many queries there are, and what answers must reach.

    Returns
    -------
    list of Prospect
        One of each aggregator that takes part, most labels first.

    Raises
    ------
    InvalidValue
        If an argument is wrong.
    """
    profile = _read_profile(
        public_votes,
        classes=_validate.integer("classes", classes, at_least=2),
        teachers=_validate.integer("teachers", teachers, at_least=1),
        queries=queries,
        truth=truth,
        predictions=predictions,
        accuracy=accuracy,
        epsilon=_validate.real("epsilon", epsilon, above=0),
        delta=_validate.real("delta", delta, above=0, below=1),
        relation=Relation.parse(relation),
    )
    found = [kind.propose(profile) for kind in Aggregator.kinds().values()]
    return sorted((one for one in found if one is not None), key=lambda one: -one.labels)


def _read_profile(
    votes: Any,
    *,
    classes: int,
    teachers: int,
    queries: int | None,
    truth: Any,
    predictions: Any,
    accuracy: float | None,
    epsilon: float,
    delta: float,
    relation: Relation,
) -> VoteProfile:
    table = read_histograms(votes, classes=classes, teachers=teachers)
    winners = np.argmax(table, axis=1)
    labels = winners if truth is None else _read_truth(truth, len(table), classes)
    expected = None
    if predictions is not None:
        if len(predictions) != len(table):
            raise InvalidValue("predictions", f"{len(predictions)} rows", f"{len(table)} rows")
        shape = {"classes": classes, "teachers": teachers}
        expected = np.stack([read_prediction(row, **shape)[1] for row in predictions])
    reached = float(np.mean(winners == labels))
    floor = 0.98 * reached
    if accuracy is not None:
        floor = _validate.real("accuracy", accuracy, at_least=0, at_most=1)
    count = len(table) if queries is None else queries
    some = np.unique(np.linspace(0, len(table) - 1, _LARGEST_PROFILE).astype(np.int64))
    return VoteProfile(
        table[some],
        labels[some],
        None if expected is None else expected[some],
        _validate.integer("queries", count, at_least=1, at_most=10**7),
        floor,
        epsilon,
        delta,
        {"classes": classes, "teachers": teachers, "relation": relation},
    )


def _read_truth(truth: Any, rows: int, classes: int) -> Counts:
    labels = np.asarray(truth)
    if labels.shape != (rows,) or labels.dtype.kind not in "iu":
        raise InvalidValue("truth", f"shape {labels.shape}", f"{rows} integer labels")
    if bool(np.any(labels < 0)) or bool(np.any(labels >= classes)):
        raise InvalidValue("truth", "labels", f"classes from 0 to {classes - 1}")
    return labels.astype(np.int64)


_PROFILE = 200
_CONCENTRATION = 8.0
_MOST_QUERIES = 2000
_ACCURACIES = (0.75, 0.85, 0.92, 0.98)


@final
@dataclass(frozen=True)
class LabelPlan:
    """An aggregator, the budget of its session, and how many queries to prepare; all public."""

    aggregator: Aggregator
    budget: dict[str, Any]
    queries: int
    reason: str

    @property
    def plan(self) -> SessionPlan:
        """The plan of the session."""
        return self.aggregator.plan(**self.budget)

    @property
    def loss(self) -> Loss:
        """The data-independent loss of the whole stream."""
        return self.plan.loss

    def open(self, source: Source) -> VotingSession:
        """Open the session; the charge is made outside."""
        return self.aggregator.open(**self.budget, source=source)


def plan_votes(
    aggregator: object,
    *,
    epsilon: float,
    delta: float,
    classes: int,
    teachers: int,
    public_rows: int,
    queries: int | None = None,
    agreement: float = 0.85,
    relation: Relation | str = Relation.ADD_REMOVE,
) -> LabelPlan:
    """Return what to ask and how, within (epsilon, delta).

    ``aggregator`` is "auto" (the one whose labels are worth most on made-up votes of the given
    ``agreement``: their number times what their noise leaves of it), "gnmax" (GNMax with the
    noise that spends the budget on ``queries`` queries), or an aggregator for these classes and
    teachers.

    >>> found = plan_votes(
    ...     "gnmax", epsilon=2.0, delta=1e-5, classes=10, teachers=250, public_rows=900, queries=150
    ... )
    >>> found.queries, found.loss.epsilon(delta=1e-5) <= 2.0
    (150, True)

    Parameters
    ----------
    aggregator
        "auto", the name of a kind, or an aggregator.
    epsilon, delta
        The budget.
    classes, teachers, relation
        Of the aggregator.
    public_rows, queries
        How many rows can be asked about, and how many are to be.
    agreement
        The share of teachers that is expected to agree.

    Returns
    -------
    LabelPlan
        The aggregator and the budget of its session.

    Raises
    ------
    InvalidValue
        If an argument is wrong, or the budget too small.
    NotApplicable
        If no aggregator answers.
    """
    target = _validate.real("epsilon", epsilon, above=0)
    point = _validate.real("delta", delta, above=0, below=1)
    most = _validate.integer("queries", queries, at_least=1) if queries is not None else None
    available = _validate.integer("public_rows", public_rows, at_least=1)
    limit = min(available, _MOST_QUERIES if most is None else most)
    share = _validate.real("agreement", agreement, above=0, below=1)
    neighbours = Relation.parse(relation)
    common: dict[str, Any] = {
        "classes": _validate.integer("classes", classes, at_least=2),
        "teachers": _validate.integer("teachers", teachers, at_least=1),
        "relation": neighbours,
    }
    if isinstance(aggregator, Aggregator):
        chosen = _plan_with(aggregator, common, target, point, limit)
    elif aggregator == "auto":
        shape = common["classes"], common["teachers"], neighbours
        chosen = _choose(tuple(Aggregator.kinds()), *shape, target, point, limit, share)
    else:
        asked = limit if most is not None else min(limit, 200)
        kinds = {name.lower(): kind for name, kind in Aggregator.kinds().items()}
        name = _validate.one_of("aggregator", aggregator, ("auto", *kinds))
        made = kinds[name].for_queries(asked, epsilon=target, delta=point, **common)
        reason = f"noise for {asked} queries was asked for"
        chosen = LabelPlan(made, {"queries": asked}, asked, reason)
    if chosen.loss.epsilon(delta=point) > target:
        raise InvalidValue(
            "epsilon", epsilon, f"enough for the aggregator: {chosen.loss.epsilon(delta=point):.6g}"
        )
    return chosen


def stated_plan(plan: Mapping[str, Any]) -> LabelPlan:
    """Return the plan of a certificate of PATE; its loss is computed again.

    >>> from discreet.pate import GNMax
    >>> chosen = GNMax(classes=3, teachers=50, noise=20)
    >>> stated = {"aggregator": chosen.parameters, "budget": {"queries": 7}, "queries_planned": 7}
    >>> stated_plan({**stated, "chosen_because": "given"}).loss == chosen.loss(queries=7)
    True

    Parameters
    ----------
    plan
        The plan of a certificate.

    Returns
    -------
    LabelPlan
        The same, with its loss computed again.

    Raises
    ------
    InvalidValue
        If the aggregator is not known, or its parameters are wrong.
    """
    fields = dict(plan["aggregator"])
    name = fields.pop("aggregator", None)
    kinds = Aggregator.kinds()
    kind = kinds[_validate.one_of("aggregator", name, tuple(kinds))]
    budget, queries = dict(plan["budget"]), int(plan["queries_planned"])
    return LabelPlan(kind.from_parameters(fields), budget, queries, str(plan["chosen_because"]))


def made_up_votes(*, classes: int, teachers: int, agreement: float) -> NDArray[np.int64]:
    """Histograms whose winners have a share of the votes around ``agreement``.

    The shares are quantiles of a Beta distribution; the rest goes half to a second class and
    half to all others.

    >>> made_up_votes(classes=3, teachers=100, agreement=0.8).sum(axis=1).tolist() == [100] * 200
    True
    """
    levels = (np.arange(_PROFILE) + 0.5) / _PROFILE
    shares = betaincinv(_CONCENTRATION * agreement, _CONCENTRATION * (1 - agreement), levels)
    votes = np.zeros((_PROFILE, classes), dtype=np.int64)
    votes[:, 0] = np.rint(teachers * shares)
    left = teachers - votes[:, 0]
    votes[:, 1] = left if classes == 2 else (left + 1) // 2
    left = teachers - votes.sum(axis=1)
    others = max(classes - 2, 1)
    for place in range(2, classes):
        votes[:, place] = left // others + (place - 2 < left % others)
    return votes


@lru_cache(maxsize=32)
def _choose(
    _kinds: tuple[str, ...],  # for the cache: one more aggregator may be chosen
    classes: int,
    teachers: int,
    relation: Relation,
    epsilon: float,
    delta: float,
    limit: int,
    agreement: float,
) -> LabelPlan:
    common: dict[str, Any] = {"classes": classes, "teachers": teachers, "relation": relation}
    made_up = made_up_votes(
        classes=common["classes"], teachers=common["teachers"], agreement=agreement
    )
    ranked = [
        prospect
        for accuracy in _ACCURACIES
        for prospect in compare_aggregators(
            made_up, epsilon=epsilon, delta=delta, queries=limit, accuracy=accuracy, **common
        )
    ]
    ranked.sort(key=lambda found: -_worth(found, common["classes"]))
    best = ranked[0]
    if best.aggregator is None:
        raise NotApplicable(
            f"no aggregator answers with {common['teachers']} teachers at epsilon {epsilon:g}: "
            "more teachers, a larger epsilon or an aggregator of your own"
        )
    budget = dict(best.budget)
    if {"epsilon", "delta"} <= budget.keys():
        budget["queries"] = limit
    asked = min(limit, math.ceil(best.queries))
    reason = (
        f"its labels are worth most on made-up votes of agreement {agreement:g}: some "
        f"{best.labels:.0f}, {100 * best.accuracy:.0f} % of them as the teachers say"
    )
    return LabelPlan(best.aggregator, budget, asked, reason)


def _worth(prospect: Prospect, classes: int) -> float:
    """How many right labels the noisy ones are worth.

    With two classes and a share r of right labels the mean of n of them shrinks by 2r - 1, as if
    it were the mean of n (2r - 1)^2; with more classes the factor is (r - 1/k) / (1 - 1/k).
    """
    chance = 1.0 / classes
    factor = max(0.0, (prospect.accuracy - chance) / (1.0 - chance))
    return prospect.labels * factor * factor


def _plan_with(
    aggregator: Aggregator, common: dict[str, Any], epsilon: float, delta: float, limit: int
) -> LabelPlan:
    same = (aggregator.classes, aggregator.teachers, aggregator.neighbours) == (
        common["classes"],
        common["teachers"],
        common["relation"],
    )
    if not same:
        expected = f"one for {common['classes']} classes, {common['teachers']} teachers"
        raise InvalidValue("aggregator", aggregator, f"{expected} and {common['relation'].value}")
    budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "queries": limit}
    plan = aggregator.plan(**budget)
    asked = limit if plan.queries is None else min(limit, plan.queries)
    return LabelPlan(aggregator, budget, asked, "it was given")
