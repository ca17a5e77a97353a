"""What a schema leaves open, learned privately for a share of the budget.

Bounds that are not known come from noisy counts of cells on a public grid (:func:`plan_cells`),
unknown categories from a stable histogram (below). The plan states its loss before any record is
read, so that it can be charged first::

    plan = plan_schema(schema, epsilon=0.2, delta=1e-7)
    with ledger.charge("patients", plan.loss, purpose="schema") as charge:
        completed = plan.run("patients.csv", receipt=charge.receipt()).value

The schema remembers what it cost and who paid (:class:`~discreet.data.Learned`), so that what is
learned by it later can count it.

Every column gets the same share of epsilon. Half of delta is for the counts, if their noise is
Gaussian, and every column of categories gets the same share of the rest. One row of each unit is
looked at: where the schema has persons, one row of each person, chosen at random, so that a
person changes no more than a row does.

**Categories** come from a histogram that shows stable counts only. Which categories there are is
not public, so noise on every possible text is out of the question. Instead each text that occurs
gets discrete Laplace noise of scale 1 / epsilon on its count, and is released if the noisy count
reaches a threshold (Korolova, Kenthapadi, Mishra and Ntoulas 2009; Bun, Nissim and Stemmer 2016).

**Guarantee.** (epsilon, delta')-DP under add_remove, delta' = P(1 + noise >= threshold) as
:func:`discreet.mechanisms.stability_test` certifies it. Proof: one record changes one count by
one, and the texts are treated independently of one another. A text that occurs in both data sets
has a noisy count of sensitivity 1: epsilon-DP, and what follows is post-processing. A text
with count 1 against 0 is released with probability delta' in the one and never in the other, and
1 <= e^epsilon (1 - delta') + delta'. Under replace two texts change, and the loss is that of
two such releases.

Released are texts in UTF-8 of at most 100 bytes; whether a text is one depends on it alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from operator import add
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.data._columns import WHOLE_WITH_POINT, Bounded, Categorical, Column
from discreet.data._noisy_cells import CellCounts, CellPlan, grid_of, plan_cells, set_bounds
from discreet.data._readers import open_input
from discreet.data._schema import Learned, Schema
from discreet.data._table import raw_rows
from discreet.errors import InvalidValue
from discreet.mechanisms import Release, StabilityTest, read_epsilon, stability_test
from discreet.privacy import ApproxDP, Loss, Relation
from discreet.randomness import Source, choose_source, discrete_laplace

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONGEST_CATEGORY = 100


def category_text(text: bytes) -> str | None:
    r"""Return the category that a text could be, or None.

    >>> category_text(b"Male"), category_text(b"3.0"), category_text(b"\xff")
    ('Male', '3', None)
    """
    whole = WHOLE_WITH_POINT.fullmatch(text)
    text = text if whole is None else whole[1]
    if not text or len(text) > LONGEST_CATEGORY:
        return None
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None


@final
class TextCounts:
    """How often each possible category occurs, counted over batches; memory for each of them."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, codes: NDArray[np.int64], texts: list[bytes]) -> None:
        """Count rows, given which of the distinct texts each one has."""
        times = np.bincount(codes, minlength=len(texts))
        for text, count in zip(texts, times.tolist(), strict=True):
            category = category_text(text)
            if category is not None and count:
                self.counts[category] = self.counts.get(category, 0) + count


@final
@dataclass(frozen=True)
class StableCategories:
    """The plan for one column: (epsilon, delta), split where two texts may change."""

    test: StabilityTest
    relation: Relation

    @classmethod
    def plan(cls, *, epsilon: Fraction, delta: Fraction, relation: Relation) -> StableCategories:
        """Fix noise and threshold before anything is looked at."""
        changed = _count_changed(relation)
        return cls(stability_test(epsilon=epsilon / changed, delta=delta / changed), relation)

    @property
    def threshold(self) -> int:
        """The least noisy count that is released: 1 + noise >= threshold is the rare event."""
        return self.test.threshold + 1

    @property
    def loss(self) -> Loss:
        """What the histogram costs, for every outcome."""
        return _count_changed(self.relation) * ApproxDP(
            self.test.epsilon, self.test.delta, self.relation
        )

    def choose(self, counts: Mapping[str, int], source: Source) -> Release[dict[str, int]]:
        """Return the categories that are stable with their noisy counts, largest first."""
        present = {category: count for category, count in counts.items() if count > 0}
        draws = discrete_laplace(1 / self.test.epsilon, len(present), source=source)
        noisy = {
            category: count + int(draw)
            for (category, count), draw in zip(present.items(), draws, strict=True)
        }
        stable = [item for item in noisy.items() if item[1] >= self.threshold]
        stable.sort(key=lambda item: (-item[1], item[0]))
        provenance = {
            "mechanism": "stable_categories",
            "scale": str(1 / self.test.epsilon),
            "threshold": self.threshold,
            "relation": self.relation.value,
            **source.provenance,
        }
        return Release(dict(stable), self.loss, provenance)


def _count_changed(relation: Relation) -> int:
    """How many counts one neighbour changes."""
    return 1 if relation is Relation.ADD_REMOVE else 2


MOST_LEARNED = 1000
"""How many categories of one column are kept, those with the largest noisy counts.

What follows needs memory for each of them, and must not run out of it because of the records.
"""

_SPARE_CLASSES = ("other", "none", "neither")


@final
@dataclass(frozen=True)
class SchemaPlan:
    """What will be learned about which columns, and what it costs; nothing has been read."""

    schema: Schema
    relation: Relation
    cells: CellPlan | None
    categories: Mapping[str, StableCategories]

    @property
    def loss(self) -> Loss:
        """The loss of the whole plan, for the unit of privacy of the schema."""
        losses = [] if self.cells is None else [self.cells.loss]
        losses += [step.loss for step in self.categories.values()]
        return reduce(add, losses)

    def run(
        self,
        data: object,
        *,
        receipt: Mapping[str, Any] | None = None,
        source: Source | None = None,
        insecure_seed: int | None = None,
    ) -> Release[Schema]:
        """Read the data once, or twice with persons, and release the completed schema.

        Parameters
        ----------
        data
            Whatever :func:`~discreet.data.read_table` takes.
        receipt
            The receipt of the charge that paid (``charge.receipt()``); the schema keeps it.
        source, insecure_seed
            The randomness, if not that of the operating system.

        Returns
        -------
        Release[Schema]
            The completed schema, which remembers its loss and the receipt.

        """
        bits = choose_source(source, insecure_seed)
        numbers = {} if self.cells is None else self.cells.counts()
        texts = {name: TextCounts() for name in self.categories}
        self._count(data, numbers, texts, bits)
        learned: dict[str, Column] = {}
        known: dict[str, Any] = {}
        noisy = {} if self.cells is None else self.cells.release(numbers, bits)
        for name, cells in noisy.items():
            learned[name] = set_bounds(_require_bounded(self.schema, name), cells.bounds())
            known[name] = [{"noise": cells.kind, "scale": cells.scale, "noisy_rows": cells.rows}]
        for name, step in self.categories.items():
            release = step.choose(texts[name].counts, bits)
            learned[name] = learned_categories(self.schema, name, tuple(release.value))
            known[name] = [dict(release.provenance)]
        provenance = {
            "mechanism": "complete_schema",
            "unit": self.schema.unit,
            "relation": self.relation.value,
            "columns": known,
            **bits.provenance,
        }
        cost = Learned(self.loss, self.schema.unit, receipt)
        completed = replace(self.schema.with_columns(learned), learned=cost)
        return Release(completed, self.loss, provenance)

    def _count(
        self,
        data: object,
        numbers: Mapping[str, CellCounts],
        texts: Mapping[str, TextCounts],
        bits: Source,
    ) -> None:
        table = open_input(data, self.schema)
        cap = None if self.schema.person is None else 1
        parts = raw_rows(
            table,
            self.schema,
            cap=cap,
            choose="random",
            source=bits,
            names=[*numbers, *texts],
        )
        for batch, used in parts:
            rows = np.arange(batch.rows) if used is None else used.rows
            for name, counts in numbers.items():
                counts.add(batch.numbers(name, self.schema.columns[name])[rows])
            for name, occurring in texts.items():
                codes, distinct = batch.texts(name)
                occurring.add(codes[rows], distinct)


def plan_schema(
    schema: Schema,
    *,
    epsilon: object,
    delta: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    grids: Mapping[str, Sequence[Any]] | None = None,
) -> SchemaPlan:
    """Plan to learn all bounds and categories that ``schema`` leaves open.

    ``delta`` is needed where categories are missing, and sharpens the bounds of many columns.
    ``grids`` gives public candidates for the bounds of some columns; the others use a wide default
    grid. The declared number of rows is not used: its order of magnitude may be wrong.

    >>> from discreet.data import Real
    >>> plan_schema(Schema({"height": Real()}), epsilon=0.5).loss
    2 * DiscreteLaplace(scale=4.0)
    """
    if not isinstance(schema, Schema):
        raise InvalidValue("schema", type(schema).__name__, "a Schema")
    neighbours = Relation.parse(relation)
    names = schema.incomplete
    if not names:
        raise InvalidValue("schema", "complete", "a schema that leaves bounds or categories open")
    if schema.learned is not None:
        expected = "one of which nothing was learned before: learn all that is open in one plan"
        raise InvalidValue("schema", "learned in part", expected)
    budget = read_epsilon(epsilon)[0]
    labelled = [name for name in names if isinstance(schema.columns[name], Categorical)]
    bounded = [name for name in names if isinstance(schema.columns[name], Bounded)]
    _known_grids(grids, bounded)
    chosen = {
        name: grid_of(name, _require_bounded(schema, name), (grids or {}).get(name))
        for name in bounded
    }
    one = _share("epsilon", epsilon, budget, len(names))
    slack = Fraction(0) if delta is None else _validate.fraction("delta", delta, above=0, below=1)
    if labelled and not slack:
        expected = f"a delta, as the categories of {labelled[0]!r} are to be learned"
        raise InvalidValue("delta", delta, expected)
    cells = None
    if bounded:
        part = slack / 2 if labelled else slack
        cells = plan_cells(
            chosen, epsilon=one * len(bounded), delta=part or None, relation=neighbours
        )
        slack -= part if cells.kind == "gaussian" else 0
    categories = {
        name: StableCategories.plan(epsilon=one, delta=slack / len(labelled), relation=neighbours)
        for name in labelled
    }
    return SchemaPlan(schema, neighbours, cells, MappingProxyType(categories))


def complete_schema(
    data: object,
    schema: Schema,
    *,
    epsilon: object,
    delta: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    grids: Mapping[str, Sequence[Any]] | None = None,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[Schema]:
    """Learn what ``schema`` leaves open, and release the completed schema.

    It is :func:`plan_schema` and :meth:`SchemaPlan.run` in one; charge the loss first where
    there is a ledger.

    >>> from discreet.data import Real
    >>> heights = {"height": [150 + i % 50 for i in range(5000)]}
    >>> done = complete_schema(heights, Schema({"height": Real()}), epsilon=2, insecure_seed=1)
    >>> done.value.columns["height"]
    Real(lower=100.0, upper=200.0, missing=None)
    >>> done.loss.epsilon(delta=0)
    2.0
    """
    plan = plan_schema(schema, epsilon=epsilon, delta=delta, relation=relation, grids=grids)
    return plan.run(data, source=source, insecure_seed=insecure_seed)


def _share(argument: str, value: object, budget: Fraction, parts: int) -> Fraction:
    """Return the largest double that fits ``parts`` times into the budget, exactly."""
    share = float(budget / parts)
    while share * parts > 0 and Fraction(share) * parts > budget:
        share = math.nextafter(share, 0.0)
    if share <= 0.0:
        raise InvalidValue(argument, value, "a budget large enough to be shared")
    return Fraction(share)


def _known_grids(grids: object, bounded: Sequence[str]) -> None:
    if grids is None:
        return
    if not isinstance(grids, Mapping):
        raise InvalidValue("grids", grids, "a mapping of column names to grids")
    for name in grids:
        if name not in bounded:
            raise InvalidValue("grids", name, "names of columns whose bounds are to be learned")


def _require_bounded(schema: Schema, name: str) -> Bounded:
    column = schema.columns[name]
    if not isinstance(column, Bounded):
        raise InvalidValue(f"columns.{name}", column, "a column with bounds")
    return column


def learned_categories(schema: Schema, name: str, categories: tuple[str, ...]) -> Categorical:
    """Return an open column with the released categories, largest first; there may be none."""
    categories = categories[:MOST_LEARNED]
    column = schema.columns[name]
    if not isinstance(column, Categorical):
        raise InvalidValue(f"columns.{name}", column, "a column with categories")
    other, missing = column.other, column.missing
    if name == schema.target:
        # How many classes come out may turn on a single record, so one or none is no error: the
        # classes are filled up to two, and a model of them is as good as constant.
        spare = [
            label for label in dict.fromkeys((other, *_SPARE_CLASSES)) if label not in categories
        ]
        categories = (*categories, *spare[: max(0, 2 - len(categories))])
        # A class must be one of the categories: the most frequent one, by its noisy count.
        other = other if other in categories else categories[0]
        missing = missing if missing is None or missing in categories else categories[0]
    return Categorical(categories, other=other, missing=missing)
