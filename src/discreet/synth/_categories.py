"""Categories that no schema declares: texts whose noisy count passes a public threshold.

One row of each unit is looked at. Every text that occurs gets discrete Laplace noise on its count
and is released if the sum reaches the threshold, as :class:`discreet.data.StableCategories` proves.
Each open column costs one ApproxDP beside the Gaussian of the rest. All other texts count as the
column's ``other``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

from discreet.data import (
    Categorical,
    Schema,
    StableCategories,
    category_text,
    learned_categories,
)
from discreet.engines import Aggregation
from discreet.privacy import Loss, Relation

if TYPE_CHECKING:
    from discreet.engines import Table
    from discreet.randomness import Source

_EPSILON_SHARE, _DELTA_SHARE = Fraction(1, 10), Fraction(1, 2)


@final
@dataclass(frozen=True)
class OpenCategories:
    """The columns whose categories are learned, and what each of them may cost."""

    columns: tuple[str, ...]
    epsilon: Fraction
    delta: Fraction
    relation: Relation

    @classmethod
    def share(
        cls, schema: Schema, epsilon: float, delta: float, relation: Relation
    ) -> OpenCategories | None:
        """Return the plan for a share of a budget, or None where all columns are declared."""
        names = tuple(
            name for name in schema.incomplete if isinstance(schema.columns[name], Categorical)
        )
        if not names:
            return None
        return cls(
            names,
            Fraction(epsilon) * _EPSILON_SHARE / len(names),
            Fraction(delta) * _DELTA_SHARE / len(names),
            relation,
        )

    @property
    def whole_epsilon(self) -> Fraction:
        """What all columns may cost together."""
        return self.epsilon * len(self.columns)

    @property
    def whole_delta(self) -> Fraction:
        """The delta of all columns together."""
        return self.delta * len(self.columns)

    @property
    def step(self) -> StableCategories:
        """The noise and the threshold of each column."""
        return StableCategories.plan(epsilon=self.epsilon, delta=self.delta, relation=self.relation)

    @property
    def loss(self) -> Loss:
        """What all columns cost."""
        return len(self.columns) * self.step.loss

    def learn(self, table: Table, schema: Schema, source: Source) -> Schema:
        """Return the schema with the released categories; there may be none."""
        found = {}
        cap = None if schema.person is None else 1
        for name in self.columns:
            counts: dict[str, int] = {}
            kinds = _find_reserved(table.schema.columns[name])
            asked = Aggregation(keys=(table.columns[name].term,), cap=cap)
            for (text,), (count, *_) in table.aggregate(asked).items():
                category = category_text(str(text).encode())
                if category is not None and category not in kinds:
                    counts[category] = counts.get(category, 0) + count
            chosen = self.step.choose(counts, source).value
            found[name] = learned_categories(schema, name, tuple(chosen))
        return schema.with_columns(found)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "columns": list(self.columns),
            "epsilon": str(self.epsilon),
            "delta": str(self.delta),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any], relation: Relation) -> OpenCategories:
        """Return what :meth:`to_json` wrote; a damaged document raises."""
        return cls(
            tuple(map(str, document["columns"])),
            Fraction(document["epsilon"]),
            Fraction(document["delta"]),
            relation,
        )


def _find_reserved(column: Any) -> set[str]:
    """Return the public labels of a column as it is read, which need not be found."""
    return {one for one in (column.other, column.missing) if one is not None}
