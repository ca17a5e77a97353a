"""Which aggregator a run of PATE uses, decided before any record is read.

The votes that the choice looks at are made up from one public guess: how large a share of
the teachers is expected to agree on a typical query.
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
from discreet.pate.aggregator import Aggregator, QueryByQuery
from discreet.pate.chooser import Prospect, compare_aggregators
from discreet.pate.confident import ConfidentGNMax, InteractiveGNMax
from discreet.pate.gaussian_max import GNMax
from discreet.pate.laplace_max import LaplaceMax
from discreet.pate.session import Plan, Session
from discreet.pate.sparse import SparseVotes
from discreet.pate.stable import SampledVotes, StableVotes
from discreet.privacy import Loss, Relation
from discreet.privacy.theorems_gaussian import gaussian_mu
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["VotePlan", "made_up_votes", "plan_votes", "stated_loss"]

_PROFILE = 200
_CONCENTRATION = 8.0
_MOST_QUERIES = 2000
_NAMES = ("auto", "gnmax")
_KINDS = (
    ConfidentGNMax,
    GNMax,
    InteractiveGNMax,
    LaplaceMax,
    SampledVotes,
    SparseVotes,
    StableVotes,
)
_ACCURACIES = (0.75, 0.85, 0.92, 0.98)


@final
@dataclass(frozen=True)
class VotePlan:
    """An aggregator, the budget of its session, and how many queries to prepare; all public."""

    aggregator: Aggregator
    budget: dict[str, Any]
    queries: int
    reason: str

    @property
    def plan(self) -> Plan:
        """The plan of the session."""
        planning: Any = self.aggregator.plan
        found: Plan = planning(**self.budget)
        return found

    @property
    def loss(self) -> Loss:
        """The data-independent loss of the whole stream."""
        return self.plan.loss

    def open(self, source: Source) -> Session:
        """Open the session; the charge is made outside."""
        opening: Any = self.aggregator
        session: Session = opening.open(**self.budget, source=source)
        return session


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
) -> VotePlan:
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
        chosen = _given(aggregator, common, target, point, limit)
    elif _validate.one_of("aggregator", aggregator, _NAMES) == "gnmax":
        chosen = _gnmax(common, target, point, limit if most is not None else min(limit, 200))
    else:
        chosen = _chosen(
            common["classes"], common["teachers"], neighbours, target, point, limit, share
        )
    if chosen.loss.epsilon(delta=point) > target:
        raise InvalidValue(
            "epsilon", epsilon, f"enough for the aggregator: {chosen.loss.epsilon(delta=point):.6g}"
        )
    return chosen


def stated_loss(parameters: Mapping[str, Any], budget: Mapping[str, Any]) -> Loss:
    """What an aggregator costs by what a certificate says about it.

    >>> chosen = GNMax(classes=3, teachers=50, noise=20)
    >>> stated_loss(chosen.parameters, {"queries": 7}) == chosen.loss(queries=7)
    True
    """
    told = dict(parameters)
    name = told.pop("aggregator", None)
    kinds: dict[str, Any] = {kind.__name__: kind for kind in _KINDS}
    if name not in kinds:
        raise InvalidValue("aggregator", name, f"one of {', '.join(kinds)}")
    if kinds[name] is LaplaceMax:
        told.pop("epsilon", None)  # it follows from the scale
    plan: Plan = kinds[name](**told).plan(**budget)
    return plan.loss


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
def _chosen(
    classes: int,
    teachers: int,
    relation: Relation,
    epsilon: float,
    delta: float,
    limit: int,
    agreement: float,
) -> VotePlan:
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
    return VotePlan(best.aggregator, budget, asked, reason)


def _worth(prospect: Prospect, classes: int) -> float:
    """How many right labels so many noisy ones are worth.

    With two classes and a share r of right labels the mean of n of them shrinks by 2r - 1, as if
    it were the mean of n (2r - 1)^2; with more classes the factor is (r - 1/k) / (1 - 1/k).
    """
    chance = 1.0 / classes
    factor = max(0.0, (prospect.accuracy - chance) / (1.0 - chance))
    return prospect.labels * factor * factor


def _gnmax(common: dict[str, Any], epsilon: float, delta: float, queries: int) -> VotePlan:
    noise = math.sqrt(2.0 * queries) / gaussian_mu(epsilon, delta) * (1 + 1e-6)
    aggregator = GNMax(**common, noise=float(f"{noise:.9g}"))
    return VotePlan(
        aggregator, {"queries": queries}, queries, f"noise for {queries} queries was asked for"
    )


def _given(
    aggregator: Aggregator, common: dict[str, Any], epsilon: float, delta: float, limit: int
) -> VotePlan:
    same = (aggregator.classes, aggregator.teachers, aggregator.neighbours) == (
        common["classes"],
        common["teachers"],
        common["relation"],
    )
    if not same:
        expected = f"one for {common['classes']} classes, {common['teachers']} teachers"
        raise InvalidValue("aggregator", aggregator, f"{expected} and {common['relation'].value}")
    budget: dict[str, Any] = {}
    if isinstance(aggregator, QueryByQuery):
        budget = {"epsilon": epsilon, "delta": delta, "queries": limit}
    planning: Any = aggregator.plan
    plan: Plan = planning(**budget)
    asked = limit if plan.queries is None else min(limit, plan.queries)
    return VotePlan(aggregator, budget, asked, "it was given")
