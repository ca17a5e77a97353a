"""The released model: rows, tables with error bars, files. All of it is public and free to use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np

from discreet import _validate
from discreet.certificate import Certificate
from discreet.data import Schema, import_arrow
from discreet.errors import InvalidValue, SchemaError
from discreet.learn import digest_model
from discreet.privacy import Loss, Relation
from discreet.randomness import source as random_source
from discreet.synth._cells import Groups, group_names, stored_value
from discreet.synth._constraints import Interval
from discreet.synth._fitting import Measurement
from discreet.synth._released import Released
from discreet.synth._sampling import sample_rows
from discreet.synth._spending import Spending
from discreet.synth._tree import Columns, JunctionTree, count_cells

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.ledger import Charge
    from discreet.synth._plan import SynthesisPlan

Finished = TypeVar("Finished")

_MOST_ASKED = 1 << 24
_MOST_ROWS = 1 << 32
_TAIL = 3.0  # for a bound that fails with probability e^-3, about 5 %


@final
@dataclass(frozen=True, eq=False)
class Marginal:
    """A table of the model over some columns.

    ``counts`` is the model's table. Where the columns lie inside measured tables, ``noisy`` is
    their mean weighted by inverse variances and ``stddev`` the noise of each of its cells;
    otherwise both are None, because nothing but the model speaks of the columns. ``bound`` is an
    upper bound, right with probability 95 %, of the L1 distance between ``counts`` and the true
    table, by theorem 3 of AIM (McKenna and others 2022). Where a schema names persons, the true
    table is that of the rows kept: at most ``rows_per_person`` of each.
    """

    columns: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    counts: NDArray[np.float64]
    noisy: NDArray[np.float64] | None = None
    stddev: NDArray[np.float64] | None = None
    bound: float | None = None


@final
@dataclass(frozen=True, eq=False)
class SyntheticModel(Released):
    """A distribution over rows of a schema, learned privately; made by ``SynthesisPlan.run``.

    ``total`` is the noisy number of rows. ``certificate_`` is the guarantee.
    """

    plan: SynthesisPlan
    total: float
    groups: tuple[Groups, ...]
    histograms: tuple[NDArray[np.float64], ...]
    tree: JunctionTree
    conditionals: tuple[NDArray[np.float64], ...]
    measured: tuple[Measurement, ...]
    certificate: Certificate | None = None

    @property
    def schema(self) -> Schema:
        """What is public about the table."""
        return self.plan.schema

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(one.name for one in self.plan.cells)

    # --- rows ---------------------------------------------------------------------------

    def sample(
        self,
        n: int | None = None,
        *,
        given: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> Any:
        """Return synthetic rows as an Arrow table; it costs nothing, however often.

        Parameters
        ----------
        n
            How many rows; by default the noisy number of rows.
        given
            Values of some columns that all rows have: one value or a list of possible ones. A
            fraction is rounded as the model stores it.
        seed
            Makes the rows repeatable. The model is public, so this hides nothing.

        Returns
        -------
        pyarrow.Table
            One column for each of the schema, and numbers for the persons where it has some.

        Raises
        ------
        InvalidValue
            If a column or a value is not in the domain, or the values exclude one another.

        """
        rows = round(self.total) if n is None else n
        _validate.integer("n", rows, at_least=0, at_most=_MOST_ROWS)
        bits = random_source(insecure_seed=seed)
        cells, rules = self.plan.cells, self.plan.constraints
        if given is not None and not isinstance(given, Mapping):
            raise InvalidValue("given", given, "names of columns with their values")
        asked = {
            self._position(name): self._read_asked(name, one) for name, one in (given or {}).items()
        }
        conditionals, shares, intervals = self._condition_on(asked)
        codes = sample_rows(self.tree, conditionals, rows, bits)
        held = [replace(one, share=shares.get(at, one.share)) for at, one in enumerate(self.groups)]

        def draw(at: int, some: NDArray[np.int64] | slice) -> NDArray[np.int64]:
            return cells[at].draw(held[at].draw(codes[at][some], bits), bits, asked.get(at))

        stored = {at: draw(at, slice(None)) for at in range(len(cells))}
        rules.put_in_order(stored, codes, intervals, draw)
        found: dict[str, Any] = {one.name: one.decode(stored[at]) for at, one in enumerate(cells)}
        pa = import_arrow("pyarrow")
        if self.schema.person is not None:
            found[self.schema.person] = pa.array(np.arange(rows, dtype=np.int64))
        return pa.table(found)

    def _read_asked(self, name: str, value: Any) -> NDArray[np.int64]:
        """Return the stored integers of the values that a column is to have."""
        cells = self.plan.cells[self._position(name)]
        values = value if isinstance(value, list | tuple | set | frozenset) else [value]
        found = {stored_value(f"given[{name!r}]", cells, self.schema, one) for one in values}
        return np.array(sorted(found), dtype=np.int64)

    def _condition_on(
        self, given: Mapping[int, NDArray[np.int64]]
    ) -> tuple[
        Sequence[NDArray[np.float64]], dict[int, NDArray[np.float64]], list[Interval | None]
    ]:
        """Return the conditionals given some values, and the shares and ends of groups then."""
        rules = self.plan.constraints
        intervals = [rules.interval(at, one) for at, one in enumerate(self.groups)]
        if not given:
            return self.conditionals, {}, intervals
        with np.errstate(divide="ignore"):
            potentials = [
                np.log(table).reshape(node.shape)
                for table, node in zip(self.conditionals, self.tree.nodes, strict=True)
            ]
        shares: dict[int, NDArray[np.float64]] = {}
        for at, values in given.items():
            cells, held = self.plan.cells[at], self.groups[at]
            wanted = np.zeros(cells.size, dtype=bool)
            wanted[cells.encode(values)] = True
            if intervals[at] is not None:
                if np.count_nonzero(np.diff(wanted.astype(np.int8), prepend=0) == 1) > 1:
                    expected = "one value, or neighbouring ones, of a column in order"
                    raise InvalidValue("given", cells.name, expected)
                intervals[at] = rules.interval(at, held, values)
            inside = np.where(wanted, held.share, 0.0)
            mass = held.join(inside)
            if not mass.any():  # the noise left nothing of what is asked for
                inside = wanted.astype(np.float64)
                mass = held.join(inside)
            whole = np.where(mass > 0.0, mass, 1.0)[held.group_of]
            shares[at] = np.where(mass[held.group_of] > 0.0, inside / whole, held.share)
            home = self.tree.home((at,))
            assert home is not None
            _, shape = self.tree.axes_in(home, (at,))
            with np.errstate(divide="ignore"):
                potentials[home] = potentials[home] + np.log(mass).reshape(shape)
        for pair, mask in rules.order_masks(intervals):
            home = self.tree.home(pair)
            assert home is not None
            order, shape = self.tree.axes_in(home, pair)
            turned = mask if order == pair else mask.T
            potentials[home] = np.where(turned.reshape(shape), -np.inf, potentials[home])
        log_z, conditionals = self.tree.infer(potentials, overwrite=True)
        if math.isinf(log_z):
            raise InvalidValue(
                "given",
                [self.columns[at] for at in given],
                "values that the model holds possible together",
            )
        return conditionals, shares, intervals

    # --- tables -------------------------------------------------------------------------

    def marginal(self, *columns: str) -> Marginal:
        """Return the table of some columns, with error bars from the noise where it was measured.

        Parameters
        ----------
        columns
            The names of the columns.

        Returns
        -------
        Marginal
            Counts of the groups of values that the model knows.

        Raises
        ------
        InvalidValue
            If a column is not there or named twice, or the table has too many cells.

        """
        asked = tuple(self._position(name) for name in columns)
        if not asked or len(set(asked)) != len(asked):
            raise InvalidValue("columns", columns, "different columns, at least one")
        sizes = self.tree.sizes
        if count_cells(sizes, asked) > _MOST_ASKED:
            raise InvalidValue("columns", columns, f"a table of at most {_MOST_ASKED} cells")
        counts = self.tree.marginal(self.conditionals, asked) * self.total
        labels = tuple(tuple(group_names(self.plan.cells[at], self.groups[at])) for at in asked)
        noisy = stddev = bound = None
        covering = [one for one in self._tables() if set(asked) <= set(one.columns)]
        if covering:
            weight = np.zeros(counts.shape)
            mixed = np.zeros(counts.shape)
            for one in covering:
                outside = tuple(at for at, name in enumerate(one.columns) if name not in asked)
                inner = [name for name in one.columns if name in asked]
                turn = [inner.index(name) for name in asked]
                values = one.values.sum(axis=outside).transpose(turn)
                variance = one.variance.sum(axis=outside).transpose(turn)
                weight += 1.0 / variance
                mixed += values / variance
            noisy, stddev = mixed / weight, np.sqrt(1.0 / weight)
            spread = float(np.sqrt((stddev**2).mean()))
            cells = counts.size
            bound = (
                float(np.abs(counts - noisy).sum())
                + math.sqrt(2.0 * math.log(2.0)) * spread * cells
                + math.sqrt(_TAIL) * spread * math.sqrt(2.0 * cells)
            )
        return Marginal(tuple(columns), labels, counts, noisy, stddev, bound)

    def _tables(self) -> list[Measurement]:
        """Return all measured tables, those of single columns first."""
        singles = measured_columns(self.groups, self.histograms, self.plan.gaussian.column_stddev)
        return [*singles, *self.measured]

    def _position(self, name: object) -> int:
        if name not in self.columns:
            raise InvalidValue("columns", name, f"one of {', '.join(self.columns)}")
        return self.columns.index(str(name))

    # --- files --------------------------------------------------------------------------

    def _contents(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the head and the arrays of the file."""
        head = {
            "schema": self.schema.to_toml(),
            "plan": self.plan.to_json(),
            "delta": self.plan.delta,
            "relation": self.plan.loss.relation.value,
            "total": self.total,
            "cliques": [sorted(node.columns) for node in self.tree.nodes],
            "measured": [
                {"columns": list(one.columns), "variance": float(one.variance.flat[0])}
                for one in self.measured
            ],
        }
        arrays: dict[str, NDArray[Any]] = {}
        for at, held in enumerate(self.groups):
            arrays[f"group_{at}"], arrays[f"share_{at}"] = held.group_of, held.share
            arrays[f"histogram_{at}"] = self.histograms[at]
        for at, table in enumerate(self.conditionals):
            arrays[f"node_{at}"] = table
        for at, one in enumerate(self.measured):
            arrays[f"table_{at}"] = one.values
        return head, arrays

    @classmethod
    def _restore(
        cls, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> SyntheticModel:
        from discreet.synth._plan import SynthesisPlan

        declared = Schema.from_toml(head["schema"])
        relation = Relation.parse(head["relation"])
        plan = SynthesisPlan.from_json(head["plan"], declared, float(head["delta"]), relation)
        groups = tuple(
            Groups(arrays[f"group_{at}"], arrays[f"share_{at}"]) for at in range(len(plan.cells))
        )
        tree = JunctionTree([one.size for one in groups], [tuple(one) for one in head["cliques"]])
        model = cls(
            plan=plan,
            total=float(head["total"]),
            groups=groups,
            histograms=tuple(arrays[f"histogram_{at}"] for at in range(len(groups))),
            tree=tree,
            conditionals=tuple(arrays[f"node_{at}"] for at in range(len(tree.nodes))),
            measured=tuple(
                _read_measurement(one, arrays[f"table_{at}"])
                for at, one in enumerate(head["measured"])
            ),
        )
        model._check()
        return model

    def _cost(self) -> Loss:
        """Return the loss of the run and, if unpaid, of learning the schema."""
        return self.plan.whole_loss()

    def _check(self) -> None:
        """Raise ValueError unless all parts fit together."""
        for cells, held, histogram in zip(
            self.plan.cells, self.groups, self.histograms, strict=True
        ):
            if not held.group_of.shape == held.share.shape == histogram.shape == (cells.size,):
                raise ValueError("groups that are not those of the schema")
        for node, table in zip(self.tree.nodes, self.conditionals, strict=True):
            if table.shape != node.flat:
                raise ValueError("a table that is not that of its columns")

    @classmethod
    def _stated_plan(cls, certificate: Certificate) -> Spending:
        """Return what has the loss that a certificate's plan states, computed again."""
        try:
            return Spending.from_json(certificate.plan, certificate.loss.relation)
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"the plan of a synthesis cannot be read: {error}") from None


def _read_measurement(one: Mapping[str, Any], values: NDArray[Any]) -> Measurement:
    columns: Columns = tuple(int(at) for at in one["columns"])
    return Measurement(columns, values, np.full(values.shape, float(one["variance"])))


def measured_columns(
    groups: Sequence[Groups], histograms: Sequence[NDArray[np.float64]], stddev: float
) -> list[Measurement]:
    """Return the noisy histograms of all columns by groups."""
    return [
        Measurement(
            (at,),
            held.join(histogram),
            np.asarray(np.bincount(held.group_of, minlength=held.size) * stddev**2, np.float64),
        )
        for at, (held, histogram) in enumerate(zip(groups, histograms, strict=True))
    ]


def finish(model: Finished, certificate: Certificate, charge: Charge | None) -> Finished:
    """Return the model with its certificate, and have the ledger record both."""
    held: Any = model
    digest = digest_model(type(held).__name__, *held._contents())
    made: Finished = replace(
        held, certificate=replace(certificate, model_digest=digest).paid_by(charge)
    )
    return made
