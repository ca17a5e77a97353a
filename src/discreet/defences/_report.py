"""What the bench of defences says: one row for each defence, as a table and as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, final

from discreet import _validate
from discreet._confidence import Difference, Proportion
from discreet._json import JsonRecord
from discreet._rounding import at_most

NO_GUARANTEE = "no guarantee"
RATES = (0.001, 0.01)
FEWEST_ACCUSED = 10


@final
@dataclass(frozen=True)
class Leak(JsonRecord):
    """The share of members found while ``rate`` of the non-members are accused."""

    json_properties = ("expected_accused",)

    rate: float
    nonmembers: int
    found: Proportion

    @property
    def expected_accused(self) -> float:
        """How many non-members this rate accuses; the rate of few is a matter of chance."""
        return self.rate * self.nonmembers

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Leak:
        """Read what :meth:`to_json` wrote."""
        found = _proportion(document["found"])
        return cls(document["rate"], document["nonmembers"], found)

    def __str__(self) -> str:
        return f"{self.found.share:.3f} [{self.found.low:.3f}, {self.found.high:.3f}]"


@final
@dataclass(frozen=True, kw_only=True)
class BenchRow(JsonRecord):
    """One defence: what it costs and what its models still give away.

    ``canaries`` and ``ordinary`` have the share of members found at each rate of false positives
    that the number of records supports. ``epsilon_audited`` is a lower bound at ``delta``, too
    large with probability at most 0.05; ``epsilon_claimed`` is None where nothing is proved.
    ``trainings`` is how many models are trained for one that is released, and ``models`` how many
    were released here.
    """

    json_properties = ("guarantee",)

    defence: str
    where: str
    accuracy: Proportion
    train_accuracy: float
    canaries: tuple[Leak, ...]
    ordinary: tuple[Leak, ...]
    canary_kind: str
    epsilon_claimed: float | None
    epsilon_audited: float
    verdict: str
    delta: float
    trainings: int
    models: int
    signals: tuple[str, ...]

    @property
    def guarantee(self) -> str:
        """The claimed epsilon in words, or that there is none."""
        if self.epsilon_claimed is None:
            return NO_GUARANTEE
        return f"epsilon <= {at_most(self.epsilon_claimed, digits=3)} at delta {self.delta:g}"

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> BenchRow:
        """Read what :meth:`to_json` wrote."""
        values = {one.name: document[one.name] for one in fields(cls)}
        values["accuracy"] = _proportion(values["accuracy"])
        for name in ("canaries", "ordinary"):
            values[name] = tuple(Leak.from_json(one) for one in values[name])
        values["signals"] = tuple(values["signals"])
        return cls(**values)

    def leak(self, records: str, rate: float) -> Leak | None:
        """Return what was found of "canaries" or "ordinary" members at a supported rate."""
        leaks = getattr(self, _validate.one_of("records", records, ("canaries", "ordinary")))
        return next((one for one in leaks if one.rate == rate), None)


@final
@dataclass(frozen=True)
class BenchReport(JsonRecord):
    """All rows of a bench, and the seed that repeats it.

    Intervals of shares treat each pair of a record and a model as a trial: they speak of these
    records, over models that might have been trained.
    """

    rows: tuple[BenchRow, ...]
    seed: int

    def row(self, defence: str) -> BenchRow:
        """Return the row of one defence."""
        names = tuple(row.defence for row in self.rows)
        return self.rows[names.index(_validate.one_of("defence", defence, names))]

    def compare(self, first: str, second: str, *, records: str = "canaries") -> Difference | None:
        """Return by how much more of the first one's members are found, at the least common rate.

        The interval holds both shares' errors (Bonferroni). None if no rate is common.
        """
        for rate in RATES:
            one, two = (self.row(name).leak(records, rate) for name in (first, second))
            if one is not None and two is not None:
                value = one.found.share - two.found.share
                low, high = one.found.low - two.found.high, one.found.high - two.found.low
                return Difference(value, low, high, 2 * one.found.confidence - 1)
        return None

    def table(self) -> list[list[str]]:
        """Return the heading and one line of cells for each defence."""
        shown = [rate for rate in RATES if self._shows(rate)]
        leaks = [(kind, rate) for kind in ("canaries", "ordinary") for rate in shown]
        heading = ["defence", "where", "accuracy", *(f"{k} at {r:.1%}" for k, r in leaks)]
        heading += ["guarantee", "audited epsilon", "trainings", "models"]
        lines = [heading]
        for row in self.rows:
            found = [row.leak(kind, rate) for kind, rate in leaks]
            lines.append(
                [
                    row.defence,
                    row.where,
                    f"{row.accuracy.share:.3f}",
                    *("too few records" if one is None else str(one) for one in found),
                    row.guarantee,
                    f">= {row.epsilon_audited:.2f}"
                    + ("" if row.epsilon_claimed is None else f", {row.verdict}"),
                    str(row.trainings),
                    str(row.models),
                ]
            )
        return lines

    def _shows(self, rate: float) -> bool:
        """The lowest rate always; a larger one where the lower accuses too few to be sure of."""
        if rate == RATES[0]:
            return True
        lowest = [
            row.leak(kind, RATES[0]) for row in self.rows for kind in ("canaries", "ordinary")
        ]
        return any(one is None or one.expected_accused < FEWEST_ACCUSED for one in lowest)

    def __str__(self) -> str:
        lines = self.table()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )


def _proportion(document: Mapping[str, Any]) -> Proportion:
    return Proportion(**{one.name: document[one.name] for one in fields(Proportion)})
