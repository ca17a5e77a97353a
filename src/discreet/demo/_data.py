"""The data of the demonstration: one half for training, the other for evaluation.

Digits, MNIST, Fashion-MNIST and Adult are published: their sizes and everything declared about them
here are public. A table of one's own is read by its schema, which declares all that is public.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.certificate import Collection
    from discreet.data import Schema

    _Records = tuple[NDArray[np.float32], NDArray[np.int64]]

SETS = ("digits", "mnist", "fashion_mnist", "adult")
# Enough to show what happens, and few enough to train shadow models on.
_MOST = 10_000
_SPLIT_SEED = 20260101

_ADULT_NUMBERS = {
    "age": (17, 90),
    "education-num": (1, 16),
    "capital-gain": (0, 99_999),
    "capital-loss": (0, 5_000),
    "hours-per-week": (1, 99),
}
_ADULT_CATEGORIES = {
    "workclass": (
        "Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov "
        "Without-pay"
    ),
    "marital-status": (
        "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married "
        "Separated Widowed"
    ),
    "occupation": (
        "Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners "
        "Machine-op-inspct Other-service Priv-house-serv Prof-specialty Protective-serv Sales "
        "Tech-support Transport-moving"
    ),
    "relationship": "Husband Not-in-family Other-relative Own-child Unmarried Wife",
    "race": "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White",
    "sex": "Female Male",
}


@dataclass(frozen=True, eq=False)
class DemoData:
    """Features in [0, 1] and classes of two halves.

    ``planned`` and ``held_out`` are their public sizes. ``unlabelled`` are public records of which
    nobody knows the class, for methods that need some. ``published`` is whether all of it is public
    anyhow; a table of one's own is not.
    """

    name: str
    title: str
    inside: tuple[NDArray[np.float32], NDArray[np.int64]]
    outside: tuple[NDArray[np.float32], NDArray[np.int64]]
    classes: tuple[str, ...]
    unit: str
    planned: int
    held_out: int
    collection: Collection
    unlabelled: NDArray[np.float32] | None = None
    published: bool = True

    @property
    def columns(self) -> int:
        """The number of features."""
        return int(self.inside[0].shape[1])

    @property
    def records(self) -> NDArray[np.float32]:
        """Both halves, members first."""
        return np.concatenate([self.inside[0], self.outside[0]])

    @property
    def labels(self) -> NDArray[np.int64]:
        """The classes of :attr:`records`."""
        return np.concatenate([self.inside[1], self.outside[1]])

    def in_two_classes(self) -> DemoData:
        """The same records, with the first half of the classes against the others."""
        count = len(self.classes)
        if count == 2:
            return self
        cut = count // 2
        names = tuple(
            part[0] if len(part) == 1 else f"{part[0]} to {part[-1]}"
            for part in (self.classes[:cut], self.classes[cut:])
        )
        inside, outside = ((x, (y >= cut).astype(np.int64)) for x, y in (self.inside, self.outside))
        title = f"{self.title}, {names[0]} against {names[1]}"
        return replace(self, inside=inside, outside=outside, classes=names, title=title)

    def with_unlabelled(self) -> DemoData:
        """The same, with the labels of a third of the records outside forgotten."""
        if not self.published:
            raise InvalidValue(
                "method",
                "pate",
                "another method for a table of one's own: a student learns from public records, "
                "and there are none",
            )
        x, y = self.outside
        kept, public = len(y) - len(y) // 3, self.held_out - self.held_out // 3
        return replace(self, outside=(x[:kept], y[:kept]), held_out=public, unlabelled=x[kept:])


def load(name: str, *, schema: str | None) -> DemoData:
    """Return one of :data:`SETS`, or a table of one's own with its schema."""
    if name not in SETS:
        return _own_table(name, schema)
    if schema is not None:
        raise InvalidValue("schema", schema, f"none with --data {name}")
    if name == "adult":
        return _adult()
    return _images(name)


def _images(name: str) -> DemoData:
    from discreet import data

    if name == "digits":
        found = data.digits()
        x, y, most = found.x, found.y, 16.0
        title, unit = "handwritten digits", "image"
        source = "the handwritten digits that ship with scikit-learn (UCI, 1998)"
    else:
        found_split = data.mnist() if name == "mnist" else data.fashion_mnist()
        x, y, most = found_split.x_train, found_split.y_train, 255.0
        title = "MNIST" if name == "mnist" else "Fashion-MNIST"
        unit, source = "image", f"{title}, as published ({found_split.revision})"
        return _halve(name, title, x / most, y, found_split.classes, unit, source)
    return _halve(name, title, x / most, y, found.classes, unit, source)


def _adult() -> DemoData:
    from discreet.data import Categorical, Encoding, Integer, Schema, adult, read_table

    census = adult()
    declared: dict[str, Any] = {name: Integer(*ends) for name, ends in _ADULT_NUMBERS.items()}
    declared |= {name: Categorical(said.split()) for name, said in _ADULT_CATEGORIES.items()}
    declared["income"] = Categorical(["<=50K", ">50K"], other="<=50K")
    schema = Schema(declared, target="income", expected_rows=30_000)
    table = read_table({name: census.train[name] for name in declared}, schema)
    encoding = Encoding(schema, interval="unit")
    source = f"census of the United States, 1994 (Adult, {census.revision})"
    x, y = encoding.features(table), encoding.target(table)
    return _halve("adult", "Adult census income", x, y, schema.classes, "person", source)


def _own_table(name: str, schema: str | None) -> DemoData:
    if not Path(name).is_file():
        raise InvalidValue("data", name, f"one of {', '.join(SETS)}, or a CSV or Parquet file")
    if schema is None:
        raise InvalidValue(
            "schema", "none", "the schema of the file, which declares what is public"
        )
    from discreet.certificate import Collection
    from discreet.data import Encoding, check_columns, read_table

    declared = _declare_schema(schema)
    check_columns(name, declared)
    table = read_table(name, declared)
    encoding = Encoding(declared, interval="unit")
    x, y = encoding.features(table), encoding.target(table)
    assert declared.expected_rows is not None
    half = max(1, min(declared.expected_rows // 2, _MOST))
    inside, outside = _split_at_random(
        x, y, share=Fraction(half, max(2 * half, declared.expected_rows))
    )
    if len(y) < 40 or min(len(inside[1]), len(outside[1])) < 5:
        expected = "a table with at least 40 usable rows, and not far fewer than expected_rows"
        raise InvalidValue("data", name, expected)
    return DemoData(
        "table",
        Path(name).stem,
        inside,
        outside,
        tuple(declared.classes),
        declared.unit,
        half,
        half,
        Collection(),
        published=False,
    )


def _split_at_random(
    x: NDArray[Any], y: NDArray[Any], *, share: Fraction
) -> tuple[_Records, _Records]:
    """Two parts of a private table, each record in either with probability ``share``.

    Every record has coins of its own. A permutation would not do: with one record more it
    is another one altogether, so that the halves of neighbouring tables were no neighbours.
    """
    from discreet.randomness import bernoulli

    taken = np.asarray(bernoulli(2 * share, len(y)), dtype=bool)
    inside = np.asarray(bernoulli("1/2", len(y)), dtype=bool)
    flat = np.asarray(x, dtype=np.float32).reshape(len(y), -1)
    labels = np.asarray(y, dtype=np.int64)
    first, second = taken & inside, taken & ~inside
    return (flat[first], labels[first]), (flat[second], labels[second])


def _declare_schema(schema: str) -> Schema:
    from discreet.data import Schema

    try:
        declared = Schema.from_file(schema)
    except InvalidValue as error:
        argument = "schema" if error.argument == "path" else f"{schema}: {error.argument}"
        raise InvalidValue(argument, error.value, error.expected) from None
    if declared.task != "classification" or declared.incomplete or declared.person is not None:
        expected = "a complete schema with a target of classes and one row for each person"
        raise InvalidValue("schema", schema, expected)
    if declared.expected_rows is None:
        raise InvalidValue("schema", schema, "expected_rows, the public order of magnitude of rows")
    return declared


def _halve(
    name: str,
    title: str,
    x: NDArray[Any],
    y: NDArray[Any],
    classes: tuple[str, ...],
    unit: str,
    source: str,
) -> DemoData:
    from discreet.attacks import seeded_generator
    from discreet.certificate import Collection

    half = min(len(y) // 2, _MOST)
    # Which half learns is no secret here: the demonstration must be able to tell who was inside.
    order = seeded_generator(_SPLIT_SEED).permutation(len(y))
    flat = np.asarray(x, dtype=np.float32).reshape(len(y), -1)
    parts = [
        (flat[order[at : at + half]], np.asarray(y, dtype=np.int64)[order[at : at + half]])
        for at in (0, half)
    ]
    said = Collection(
        source=source,
        lawful_basis="published for teaching and research",
        kept_until="published: kept by everybody",
        access="everybody: this is a demonstration, and these data are no secret",
        side_channels="not examined",
    )
    return DemoData(name, title, parts[0], parts[1], tuple(classes), unit, half, half, said)
