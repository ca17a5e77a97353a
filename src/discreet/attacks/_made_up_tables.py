"""Make up a population for trying linkage; none of its people exist.

Sweeney (2000) found that zip code, birth date and sex single out most people of a country (87 %
by her estimate; Golle (2006) computed 63 % from a later census). This module draws a population of
which the same is roughly true, because the marginals are of a realistic shape:

- places are of very unequal size: log-normal, 9,000 people on average, codes of five digits whose
  first three tell the region;
- ages follow the pyramid of an ageing country in bands of five years, days of the year are
  equally likely;
- sexes are balanced at birth and women are the majority among the old;
- one of twelve diagnoses, some of them common in the young and others in the old.

All figures are made up for this purpose and taken from no register. Persons are numbered; who has
which number is independent of everything else.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.attacks._training import seeded_generator

if TYPE_CHECKING:
    from numpy.typing import NDArray


PEOPLE_PER_PLACE = 9_000
_SPREAD_OF_PLACES = 1.1
_TODAY = np.datetime64("2024-01-01")
# Thousandths of the population in bands of five years of age, from 0 to 99.
_PYRAMID = (57, 60, 63, 63, 65, 67, 68, 66, 62, 60, 62, 63, 63, 56, 46, 34, 22, 14, 7, 2)
# Diagnosis, weight at birth, weight at age 100.
_DIAGNOSES = (
    ("none", 60.0, 10.0),
    ("asthma", 9.0, 4.0),
    ("allergy", 10.0, 3.0),
    ("depression", 4.0, 6.0),
    ("hypertension", 0.5, 30.0),
    ("diabetes", 0.8, 14.0),
    ("arthritis", 0.2, 12.0),
    ("cancer", 0.4, 8.0),
    ("heart disease", 0.1, 12.0),
    ("dementia", 0.001, 5.0),
    ("epilepsy", 0.7, 0.8),
    ("HIV", 0.2, 0.3),
)

Columns = dict[str, "NDArray[Any]"]


def made_up_population(rows: int, *, seed: int | None = None) -> Columns:
    """Draw people with the columns person, zip, birth, sex and diagnosis; none of them exists.

    >>> people = made_up_population(1000, seed=1)
    >>> list(people), len(people["zip"])
    (['person', 'zip', 'birth', 'sex', 'diagnosis'], 1000)

    Parameters
    ----------
    rows
        How many people.
    seed
        Makes them repeatable.

    Returns
    -------
    mapping of columns
        Zip code, birth date, sex and more of people who do not exist.

    Raises
    ------
    InvalidValue
        If there are too few rows.
    """
    count = _validate.integer("rows", rows, at_least=1, at_most=10**8)
    chance = seeded_generator(seed)
    places = max(1, round(count / PEOPLE_PER_PLACE))
    weights = chance.lognormal(sigma=_SPREAD_OF_PLACES, size=places)
    zips = np.array([f"{100 + at // 12:03d}{7 * (at % 12) + 1:02d}" for at in range(places)])
    place = chance.choice(places, size=count, p=weights / weights.sum())

    shares = np.array(_PYRAMID, dtype=np.float64)
    band = chance.choice(shares.size, size=count, p=shares / shares.sum())
    age_in_days = np.floor((5 * band + 5 * chance.random(count)) * 365.25).astype(np.int64)
    women = 0.49 + 0.21 * (age_in_days / 36525.0) ** 3
    return {
        "person": chance.permutation(count).astype(np.int64) + 1,
        "zip": zips[place],
        "birth": _TODAY - age_in_days.astype("timedelta64[D]"),
        "sex": np.where(chance.random(count) < women, "F", "M"),
        "diagnosis": _diagnoses(age_in_days / 36525.0, chance.random(count)),
    }


def _diagnoses(age: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[Any]:
    names = np.array([name for name, _, _ in _DIAGNOSES])
    young = np.array([weight for _, weight, _ in _DIAGNOSES])
    old = np.array([weight for _, _, weight in _DIAGNOSES])
    # Along the straight line between two sets of weights, each normalised.
    steps = np.cumsum(young / young.sum()), np.cumsum(old / old.sum())
    code = np.zeros(age.size, dtype=np.int64)
    for start, end in zip(steps[0][:-1], steps[1][:-1], strict=True):
        code += uniform > start + (end - start) * age
    return names[code]


@final
@dataclass(frozen=True, eq=False)
class MadeUpTables:
    """A release without names, a register with them, and in both the person, who is the truth."""

    released: Mapping[str, NDArray[Any]]
    register: Mapping[str, NDArray[Any]]

    def write(self, directory: str | Path) -> tuple[Path, Path]:
        """Write ``released.csv`` and ``register.csv``; return their places."""
        place = Path(directory)
        return (
            _write(place / "released.csv", self.released),
            _write(place / "register.csv", self.register),
        )


def made_up_tables(
    population: int = 100_000,
    *,
    released: int | None = None,
    coverage: float = 0.7,
    moved: float = 0.02,
    misread: float = 0.01,
    seed: int | None = None,
) -> MadeUpTables:
    """Draw a hospital's release and a voters' register of one made-up population.

    The release holds ``released`` people (a tenth of all unless said otherwise) with zip, birth,
    sex and diagnosis; the register holds each person with probability ``coverage``. In the
    register a share ``moved`` has another zip code by now and a share ``misread`` a birth date
    that is one day off.

    Parameters
    ----------
    population
        How many people there are.
    released
        How many of them are in the table without names.
    coverage, moved, misread
        Shares: in the register, with another zip code there, with a wrong date.
    seed
        Makes them repeatable.

    Returns
    -------
    MadeUpTables
        The two tables.

    Raises
    ------
    InvalidValue
        If a number is out of range.
    """
    size = _validate.integer("population", population, at_least=10)
    many = size // 10 if released is None else released
    many = _validate.integer("released", many, at_least=1, at_most=size)
    share = _validate.real("coverage", coverage, above=0, at_most=1)
    wrong_zip = _validate.real("moved", moved, at_least=0, at_most=1)
    wrong_day = _validate.real("misread", misread, at_least=0, at_most=1)
    chance = seeded_generator(seed)
    people = made_up_population(size, seed=int(chance.integers(2**62)))

    inpatients = chance.permutation(size)[:many]
    listed = chance.permutation(np.flatnonzero(chance.random(size) < share))
    release = {name: column[inpatients] for name, column in people.items()}
    register = {name: people[name][listed] for name in ("person", "zip", "birth", "sex")}
    gone = chance.random(listed.size) < wrong_zip
    register["zip"] = np.where(gone, chance.permutation(register["zip"]), register["zip"])
    off = np.where(chance.random(listed.size) < 0.5, -1, 1) * (
        chance.random(listed.size) < wrong_day
    )
    register["birth"] = register["birth"] + off.astype("timedelta64[D]")
    register["name"] = np.char.add("Person ", register["person"].astype(str))
    return MadeUpTables(release, register)


def _write(place: Path, columns: Mapping[str, NDArray[Any]]) -> Path:
    with place.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    return place
