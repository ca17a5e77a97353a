"""Link people by a few of their many sparse records, such as ratings (Narayanan, Shmatikov 2008).

Hardly any two people have rated the same items on the same days. For each person of a register, of
whom a few ratings are known, every person of the release gets a score: for each known item that
they rated as well, its weight times how near rating and day are. Rare items weigh more, 1 /
log(raters), since they tell more. Ratings and days may be wrong; the score only falls.

The *eccentricity* is by how many deviations of all scores the best one leads the second. Only a
lead above a threshold is called a match, and it is known how often somebody is matched who is not
in the release at all: the threshold is that of decoys. A decoy is a person of the release of whom
as many ratings are known, scored while they themselves are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._confidence import Proportion, proportion
from discreet._json import HIDDEN
from discreet.attacks._coded_table import read_coded
from discreet.attacks._contract import Finding, Result, attack
from discreet.attacks._membership import conformal_threshold
from discreet.attacks._training import fresh_seed, seeded_generator
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS = ("person", "item", "rating", "day")


@final
@dataclass(frozen=True, eq=False)
class RatingLinkage(Result):
    """How many people of the register were found among those of the release.

    ``reidentified`` counts right matches among the people who are in both, ``false_matches``
    matches of people who are not in the release; both need the truth. ``matches`` says who was
    taken for whom. Internal: it points at people.
    """

    json_kind = "rating linkage"

    people: int
    released: int
    threshold: float
    false_positive_rate: float
    matched: int
    reidentified: Proportion | None
    false_matches: Proportion | None
    matches: Mapping[str, str] = field(repr=False, metadata=HIDDEN)

    @property
    def finding(self) -> Finding:
        """The share of people found, against guessing somebody of the release."""
        if self.reidentified is None:
            raise NotApplicable("whether matches are right is not known without the truth")
        measure = "people found by their known ratings"
        return Finding.of_share("link_ratings", measure, self.reidentified, 1 / self.released)


@attack(family="tables", access="table")
def link_ratings(
    released: Any,
    register: Any,
    *,
    truth: Mapping[str, str] | None = None,
    rating_scale: float = 1.5,
    day_scale: float | None = 30.0,
    false_positive_rate: float = 0.01,
    decoys: int = 400,
    delimiter: str = ",",
    confidence: float = 0.95,
    seed: int | None = None,
) -> RatingLinkage:
    """Find people in a release of ratings by the few ratings that a register has of them.

    >>> made = made_up_ratings(people=400, items=300, seed=1)
    >>> known = made.known_ratings(range(50), 6, seed=2)
    >>> found = link_ratings(made.table, known.table, truth=known.truth, seed=3)
    >>> found.reidentified.share > 0.8
    True

    Parameters
    ----------
    released : table
        Columns ``person`` (a pseudonym), ``item``, ``rating`` and, if ``day_scale`` is given,
        ``day``; ratings and days are numbers.
    register : table
        The same columns, with names for persons and a few ratings of each.
    truth : mapping, optional
        The pseudonym of each name that is in the release. Used to count, never to find.
    rating_scale, day_scale : float
        How far off ratings and days may be before they say little. Without a ``day_scale`` days are
        not read.
    false_positive_rate : float
        The chance to match somebody who is not in the release, at most, if they rate as its people
        do.
    decoys : int
        People of the release that set the threshold.
    delimiter : str
        Of CSV files.
    confidence : float
        Of intervals.
    seed : int, optional
        Makes the attack repeatable.

    Returns
    -------
    RatingLinkage
        The share of people found.

    Raises
    ------
    InvalidValue
        If a table cannot be read, or there are too few decoys for the rate.
    """
    width = _validate.real("rating_scale", rating_scale, above=0)
    days = None if day_scale is None else _validate.real("day_scale", day_scale, above=0)
    rate = _validate.real("false_positive_rate", false_positive_rate, above=0, below=1)
    count = _validate.integer("decoys", decoys, at_least=1)
    items: dict[bytes, int] = {}
    release = _read("released", released, items, delimiter, timed=days is not None)
    known = _read("register", register, items, delimiter, timed=days is not None)
    if len(release.names) < 3:
        raise InvalidValue("released", f"{len(release.names)} people", "at least 3, to be led")
    index = _Index(release, len(items), width, days)
    draw = seeded_generator(fresh_seed() if seed is None else seed)
    sizes = np.bincount(known.person, minlength=len(known.names))
    needed = math.ceil(1 / rate) - 1
    if count < needed:
        raise InvalidValue("decoys", count, f"at least {needed} for a rate of {rate:g}")
    threshold = conformal_threshold(_decoy_leads(index, release, sizes, count, draw), rate)
    matches = {}
    for person, name in enumerate(known.names):
        lead, best = index.lead(*known.select(person))
        if lead > threshold:
            matches[name] = release.names[best]
    both = [name for name in known.names if truth is not None and name in truth]
    others = len(known.names) - len(both)
    right = sum(matches.get(name) == (truth or {})[name] for name in both)
    wrong = sum(name in matches for name in known.names if truth is not None and name not in truth)
    return RatingLinkage(
        len(known.names),
        len(release.names),
        threshold,
        rate,
        len(matches),
        proportion(right, len(both), confidence=confidence) if both else None,
        proportion(wrong, others, confidence=confidence) if truth is not None and others else None,
        matches,
    )


@final
@dataclass(frozen=True, eq=False)
class _Ratings:
    """Ratings sorted by person, with the names of the people."""

    person: NDArray[np.int64]
    item: NDArray[np.int64]
    rating: NDArray[np.float64]
    day: NDArray[np.float64]
    names: list[str]

    def select(self, person: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """The items, ratings and days of one person."""
        low, high = np.searchsorted(self.person, (person, person + 1))
        return self.item[low:high], self.rating[low:high], self.day[low:high]


@final
class _Index:
    """Who rated each item, and the lead of the best person for some known ratings."""

    def __init__(self, release: _Ratings, items: int, width: float, days: float | None) -> None:
        order = np.argsort(release.item, kind="stable")
        self._parts = np.searchsorted(release.item[order], np.arange(items + 1))
        self._person, self._rating = release.person[order], release.rating[order]
        self._day, self._width, self._days = release.day[order], width, days
        self._people = len(release.names)

    def lead(
        self,
        items: NDArray[np.int64],
        ratings: NDArray[np.float64],
        days: NDArray[np.float64],
        *,
        without: int | None = None,
    ) -> tuple[float, int]:
        """The eccentricity of the best person, and who that is; one may be left out."""
        scores = np.zeros(self._people)
        for item, rating, day in zip(items, ratings, days, strict=True):
            part = slice(self._parts[item], self._parts[item + 1])
            raters = part.stop - part.start
            if not raters:
                continue
            near = np.exp(-np.abs(self._rating[part] - rating) / self._width)
            if self._days is not None:
                near = near + np.exp(-np.abs(self._day[part] - day) / self._days)
            np.add.at(scores, self._person[part], near / math.log(1.0 + raters))
        if without is not None:
            scores[without] = -np.inf
        best = int(scores.argmax())
        rest = np.delete(scores, best if without is None else [best, without])
        spread = float(rest.std())
        lead = float(scores[best] - rest.max())
        return (lead / spread if spread > 0 else 0.0), best


def _decoy_leads(
    index: _Index, release: _Ratings, sizes: NDArray[np.int64], count: int, draw: Any
) -> NDArray[np.float64]:
    """Leads for people of the release who are left out, known as well as those of the register."""
    chosen = draw.integers(len(release.names), size=count)
    found = []
    for person, size in zip(chosen, draw.choice(sizes, size=count), strict=True):
        parts = release.select(int(person))
        rows = draw.permutation(len(parts[0]))[:size]
        lead, _ = index.lead(*(part[rows] for part in parts), without=int(person))
        found.append(lead)
    return np.array(found)


def _read(
    argument: str, table: Any, items: dict[bytes, int], delimiter: str, *, timed: bool
) -> _Ratings:
    names = COLUMNS if timed else COLUMNS[:3]
    dictionaries: dict[str, dict[bytes, int]] = {name: {} for name in names} | {"item": items}
    coded = read_coded(
        table, names, delimiter=delimiter, argument=argument, dictionaries=dictionaries
    ).columns
    people = coded["person"]
    if not people.codes.size:
        raise InvalidValue(argument, "no rows", "ratings")
    numbers = {name: _numbers(argument, name, coded[name]) for name in names[2:]}
    used, person = np.unique(people.codes, return_inverse=True)
    order = np.argsort(person, kind="stable")
    day = numbers["day"] if timed else np.zeros(len(person))
    return _Ratings(
        person[order],
        coded["item"].codes.astype(np.int64)[order],
        numbers["rating"][order],
        day[order],
        [people.texts[code].decode() for code in used],
    )


def _numbers(argument: str, name: str, column: Any) -> NDArray[np.float64]:
    values = np.empty(len(column.texts))
    for code, text in enumerate(column.texts):
        try:
            values[code] = float(text)
        except ValueError:
            raise InvalidValue(f"{argument}[{name}]", text.decode(), "a number") from None
    found = values[column.codes]
    if not np.isfinite(found).all():
        raise InvalidValue(f"{argument}[{name}]", "a number that is not finite", "finite numbers")
    return np.asarray(found, dtype=np.float64)


# --- a made-up release ---------------------------------------------------------------------------


@final
@dataclass(frozen=True, eq=False)
class MadeUpRatings:
    """Ratings of people who do not exist, by pseudonym; ``truth`` has a pseudonym by name."""

    table: Mapping[str, NDArray[Any]]
    truth: Mapping[str, str]

    def known_ratings(
        self,
        persons: Any,
        known: int,
        *,
        rating_error: float = 1.0,
        day_error: float = 14.0,
        seed: int = 0,
    ) -> MadeUpRatings:
        """Return what an acquaintance knows: a few ratings of each person, not quite right.

        Parameters
        ----------
        persons
            Numbers of people, from 0.
        known
            How many ratings of each, or all if there are fewer.
        rating_error, day_error
            The largest errors; each is uniform.
        seed
            Makes it repeatable.

        Returns
        -------
        MadeUpRatings
            With names instead of pseudonyms.
        """
        _validate.integer("known", known, at_least=1)
        draw = seeded_generator(seed, 41)
        rows, names = [], []
        for person in persons:
            own = np.flatnonzero(self.table["person"] == f"p{person}")
            chosen = draw.permutation(own)[:known]
            rows.append(chosen)
            names += [f"name {person}"] * len(chosen)
        place = np.concatenate(rows)
        drift = draw.uniform(-1, 1, size=(2, len(place)))
        table = {
            "person": np.array(names),
            "item": self.table["item"][place],
            "rating": np.round(self.table["rating"][place] + rating_error * drift[0]),
            "day": np.round(self.table["day"][place] + day_error * drift[1]),
        }
        there = set(self.truth)
        return MadeUpRatings(table, {name: self.truth[name] for name in set(names) & there})

    def without(self, persons: Any) -> MadeUpRatings:
        """Return a release that lacks some people.

        Parameters
        ----------
        persons
            Their numbers.

        Returns
        -------
        MadeUpRatings
            The ratings of the others.
        """
        gone = [f"p{person}" for person in persons]
        kept = ~np.isin(self.table["person"], gone)
        truth = {name: own for name, own in self.truth.items() if own not in gone}
        return MadeUpRatings({name: part[kept] for name, part in self.table.items()}, truth)


def made_up_ratings(people: int = 2000, items: int = 1000, *, seed: int = 0) -> MadeUpRatings:
    """Draw ratings whose shape is realistic: few popular items, many rare ones.

    The popularity of items falls as a power of their rank, people rate 10 to some hundreds of them
    (log-normal), mostly within a few months of their own, and like what others like.

    Parameters
    ----------
    people, items
        How many.
    seed
        Makes it repeatable.

    Returns
    -------
    MadeUpRatings
        A release; every person's truth is known.
    """
    _validate.integer("people", people, at_least=3)
    _validate.integer("items", items, at_least=20)
    draw = seeded_generator(seed, 40)
    popularity = 1.0 / np.arange(5, items + 5)
    liked = draw.normal(3.5, 0.6, size=items)
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for person in range(people):
        count = int(np.clip(draw.lognormal(3.3, 0.8), 10, items // 2))
        own = draw.choice(items, size=count, replace=False, p=popularity / popularity.sum())
        start = draw.uniform(0, 2000)
        rated = np.clip(np.round(liked[own] + draw.normal(0, 0.9, size=count)), 1, 5)
        columns["person"] += [f"p{person}"] * count
        columns["item"] += [f"item {one}" for one in own]
        columns["rating"] += rated.tolist()
        columns["day"] += np.round(start + draw.exponential(120, size=count)).tolist()
    table = {name: np.array(values) for name, values in columns.items()}
    return MadeUpRatings(table, {f"name {person}": f"p{person}" for person in range(people)})
