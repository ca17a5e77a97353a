"""Private additive models: a readable shape for each column, as scikit-learn estimators.

The score of a row is a sum over columns of a step function of that column, its *shape*. One
Gaussian covers the whole fit: noisy counts choose the bins, noisy second moments turn the features,
and full gradients with noise find the shapes (:mod:`discreet.learn._exact_descent`); the sums are
exact (:mod:`discreet.learn._binning`).

**Sensitivities**, for one unit: a count of cells in p columns moves by sqrt(p), because a unit has
one cell in each; features of a row have squared length at most b = columns + numeric columns, and
their second moments move as those of any row of that length; a clipped gradient has length 1.
``replace`` doubles each.

Shapes have no error bars yet; docs/decisions.md says why.
"""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
from sklearn.isotonic import isotonic_regression  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped]

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.learn._binning import (
    BinnedColumns,
    BinnedRows,
    ColumnCells,
    add_up,
    bins_between,
    cell_counts,
    column_names,
    declared_cells,
    equal_bins,
    most_bins,
    on_basis_grid,
    own_bins,
    quantile_bins,
)
from discreet.learn._declared import Declared
from discreet.learn._estimator import PrivateRegressor, Track
from discreet.learn._exact_descent import (
    RAW_STEPS,
    WIDEST_WHITENED,
    FoldedRows,
    LinearPlan,
    LinearRelease,
    Whitening,
    descend,
)
from discreet.learn._intake import Batch, Rows
from discreet.learn._linear import (
    ScaledEstimator,
    WeightedClasses,
    both_classes,
    number_targets,
)
from discreet.learn._replays import replay_fit
from discreet.mechanisms import gaussian_integers
from discreet.privacy import GDP, Loss, Relation
from discreet.privacy.theorems import discrete_gaussian_mu, gaussian_mu
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.certificate import Certificate
    from discreet.data import Schema

_BIN_SHARE, _MOMENT_SHARE = 0.05, 0.12
_BIN_STEPS = 1 << 10
MOST_PERSON_ROWS = 16
_LEAST_BINS = 8
_LONGEST_RESIDUAL = 16.0


@final
@dataclass(frozen=True)
class AdditivePlan:
    """Public numbers of a fit; build it with :meth:`make`.

    ``bin_columns`` is how many columns get their bins from noisy counts, ``bin_stddev`` is
    the deviation of the noise of their counts, in steps.
    """

    descent: LinearPlan
    epsilon: float
    max_bins: int
    bin_columns: int
    bin_stddev: float

    @classmethod
    def make(
        cls,
        *,
        units: int,
        labels: tuple[int, ...],
        numbers: int,
        bin_columns: int,
        max_bins: int,
        outputs: int,
        epsilon: float,
        delta: float,
        relation: Relation,
        squared: bool,
        count_share: float = 0.0,
    ) -> AdditivePlan:
        """Choose what is not given, and calibrate all noise to (epsilon, delta) together.

        ``labels`` are the sizes of the columns of labels, ``numbers`` counts those of numbers,
        ``outputs`` the scores of a row.
        """
        target = _validate.real("epsilon", epsilon, above=0)
        width = sum(labels) + numbers * (max_bins + 2)
        mu = gaussian_mu(target, delta)
        signal = mu * units / math.sqrt(width * outputs)
        widest = max(_widest(labels, numbers, max_bins), 2)
        whitened = widest < WIDEST_WHITENED
        rest = 1.0 - _BIN_SHARE if bin_columns else 1.0
        changes = 2 if relation is Relation.REPLACE else 1
        square = max(len(labels) + 2 * numbers, 2)
        for attempt in range(40):
            part = mu * (1.0 - 2.0 ** (attempt - 42))
            descent = LinearPlan.make(
                rows=units,
                features=widest - 1,
                outputs=outputs,
                norm=math.sqrt(square - 1),
                epsilon=GDP(part * math.sqrt(rest)).epsilon(delta=delta),
                delta=delta,
                relation=relation,
                squared=squared,
                total_step_size=None if squared else min(160.0, max(14.0, 6.0 * signal**0.55)),
                clip_ratio=None if squared else min(0.6, max(0.3, 0.3 * (signal / 30.0) ** 0.4)),
                moment_share=_MOMENT_SHARE / rest if whitened else 0.0,
                ridge=0.15,
                count_share=count_share / rest,
            )
            found = cls(
                descent,
                target,
                max_bins,
                bin_columns,
                changes * math.sqrt(bin_columns / _BIN_SHARE) * _BIN_STEPS / part,
            )
            if found.loss.epsilon(delta=delta) <= target:
                return found
        raise NotApplicable(f"no noise was certified for epsilon {epsilon!r} and delta {delta!r}")

    @property
    def loss(self) -> Loss:
        """What the whole fit reveals about one unit."""
        if not self.bin_columns:
            return self.descent.loss
        moved = 2 * self.bin_columns
        mu = discrete_gaussian_mu(self.bin_stddev, self.bin_shift, coordinates=moved)
        if mu is None:
            raise NotApplicable(f"noise of {self.bin_stddev!r} steps is too little for any claim")
        return self.descent.loss + GDP(mu, self.descent.relation)

    @property
    def bin_shift(self) -> float:
        """L2 sensitivity of the counts of cells, in steps, rounded up."""
        return self.descent.changes * math.sqrt(self.bin_columns) * _BIN_STEPS * (1.0 + 2.0**-48)

    @property
    def delta(self) -> float:
        """The delta at which the loss is read."""
        return self.descent.delta

    @property
    def steps(self) -> int:
        """The number of noisy gradients."""
        return self.descent.steps

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            **self.__dict__,
            "descent": self.descent.to_json(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> AdditivePlan:
        """Return the plan that :meth:`to_json` wrote."""
        names = cls.__dataclass_fields__
        found = {name: document[name] for name in names}
        return cls(**{**found, "descent": LinearPlan.from_json(document["descent"])})


def _widest(labels: tuple[int, ...], numbers: int, bins: int) -> int:
    """Return the largest number of features: bins, what is no number, and the number itself."""
    return sum(labels) + numbers * (most_bins(bins) + 1)


@final
@dataclass(frozen=True, eq=False)
class Shape:
    """What one column adds to the score, cell by cell.

    Parameters
    ----------
    labels
        The labels of a column of labels; empty for numbers.
    edges
        The inner edges of the cells of a column of numbers, whose last cell is what is no number.
    bins
        The bin of each cell; cells of a bin differ by the slope alone.
    values
        What a cell adds: cells x outputs.
    mass
        About how many rows are in each cell, from noisy counts.

    """

    labels: tuple[str, ...]
    edges: NDArray[np.float64]
    bins: NDArray[np.int64]
    values: NDArray[np.float64]
    mass: NDArray[np.float64]


class _Additive(ScaledEstimator):
    """What the two additive models share."""

    max_bins: int
    cuts: Any
    monotone: Any
    categories: Any
    _encoding = "codes"
    _takes_labels = True
    _needs_persons = True
    _single_precision = False
    _takes_sparse = False

    def _outputs(self, declared: Declared) -> int:
        return 1

    @abstractmethod
    def _residuals(self, scores: NDArray[np.float64], targets: NDArray[Any]) -> NDArray[np.float64]:
        """Return the derivatives of the rows' losses by their scores, row by row."""

    # --- what is public -----------------------------------------------------------------

    def _cells(self, declared: Declared) -> tuple[ColumnCells, ...]:
        """Return the cells of all columns, from public facts."""
        names = column_names(declared)
        cuts = self._declared_cuts(names)
        found = declared_cells(declared, cuts=cuts if isinstance(cuts, dict) else {})
        self._check_numbers("cuts", cuts, found)
        self._check_numbers("monotone", self._directions(names), found)
        return found

    @staticmethod
    def _check_numbers(argument: str, chosen: Any, cells: tuple[ColumnCells, ...]) -> None:
        wrong = [one.name for one in cells if one.labels and one.name in chosen]
        if wrong and isinstance(chosen, dict):
            raise InvalidValue(argument, wrong[0], "names of columns of numbers")

    def _declared_cuts(self, names: list[str]) -> str | dict[str, tuple[float, ...]]:
        if isinstance(self.cuts, str):
            return _validate.one_of("cuts", self.cuts, ("private", "uniform"))
        found = {}
        for name, edges in _by_column("cuts", self.cuts, names).items():
            try:
                ends = tuple(float(edge) for edge in edges)
            except (TypeError, ValueError):
                raise InvalidValue("cuts", edges, "increasing numbers for each column") from None
            if not all(a < b for a, b in zip((-math.inf, *ends), ends, strict=False)):
                raise InvalidValue("cuts", edges, "increasing numbers for each column")
            found[name] = ends
        return found

    def _directions(self, names: list[str]) -> dict[str, int]:
        if self.monotone is None:
            return {}
        found = _by_column("monotone", self.monotone, names)
        for direction in found.values():
            if direction not in (1, -1):
                raise InvalidValue("monotone", direction, "1 for rising or -1 for falling")
        return found

    def _bins(self) -> int:
        return _validate.integer("max_bins", self.max_bins, at_least=_LEAST_BINS, at_most=256)

    def _public_bins(self, cells: ColumnCells, bins: int) -> NDArray[np.int64] | None:
        """Return the bins of a column that are public, None where noisy counts choose them."""
        if cells.labels or cells.ordered <= bins:
            return own_bins(cells)
        if self.cuts == "uniform":
            return equal_bins(cells, bins)
        chosen = None if isinstance(self.cuts, str) else _text_keys(self.cuts).get(cells.name)
        return None if chosen is None else bins_between(cells, chosen)

    def _plan(self, declared: Declared) -> AdditivePlan:
        cap = declared.rows_per_person
        if cap > MOST_PERSON_ROWS:
            expected = f"at most {MOST_PERSON_ROWS}: fewer rows of each person are read"
            raise InvalidValue("rows_per_person", cap, expected)
        if self.monotone is not None and self._outputs(declared) > 1:
            raise InvalidValue("monotone", self.monotone, "None: there are more than two classes")
        cells, bins = self._cells(declared), self._bins()
        labels = tuple(one.count for one in cells if one.labels)
        numbers = len(cells) - len(labels)
        while bins > _LEAST_BINS and _widest(labels, numbers, bins) >= WIDEST_WHITENED:
            bins = max(_LEAST_BINS, bins // 2)
        if not isinstance(self.cuts, str):
            longest = max((len(edges) for edges in self.cuts.values()), default=0)
            if longest >= bins:
                raise InvalidValue("cuts", longest, f"at most {bins - 1} edges a column")
        return AdditivePlan.make(
            units=-(-declared.planned_rows // cap),
            labels=labels,
            numbers=numbers,
            bin_columns=sum(self._public_bins(one, bins) is None for one in cells),
            max_bins=bins,
            outputs=self._outputs(declared),
            epsilon=self.epsilon,
            delta=self._delta(declared),
            relation=declared.relation,
            squared=self._target == "number",
            count_share=self._count_share,
        )

    def _read_plan(self, document: Mapping[str, Any], declared: Declared) -> AdditivePlan:
        plan = AdditivePlan.from_json(document)
        if plan.descent.outputs != self._outputs(declared):
            raise SchemaError("the plan of a saved model belongs to another one")
        return plan

    @classmethod
    def _stated_plan(cls, certificate: Certificate) -> AdditivePlan:
        return AdditivePlan.from_json(certificate.plan)

    # --- learning -----------------------------------------------------------------------

    def _learn(
        self, plan: AdditivePlan, rows: Rows, source: Source, track: Track
    ) -> dict[str, NDArray[Any]]:
        cells = self._cells(self._facts)
        bins = [self._public_bins(one, plan.max_bins) for one in cells]
        chosen = {at: cells[at] for at, known in enumerate(bins) if known is None}
        held = None if rows.are_elsewhere else rows.all()
        if plan.bin_columns:
            step = partial(_interval_counts, chosen)
            zero = np.zeros(sum(one.ordered for one in chosen.values()), dtype=np.int64)
            counts = rows.fold(step, zero) if held is None else step(held)
            ends = np.cumsum([one.ordered for one in chosen.values()])[:-1]
            noisy = np.split(self._noisy_counts(plan, counts, source), ends)
            for (at, one), part in zip(chosen.items(), noisy, strict=True):
                stddev = plan.bin_stddev / _BIN_STEPS
                units = plan.descent.rows
                bins[at] = quantile_bins(one, part, bins=plan.max_bins, stddev=stddev, units=units)
        columns = BinnedColumns(cells, tuple(own for own in bins if own is not None))
        self._weigh_classes(plan.descent, rows, held, source)
        hold = partial(self._hold_rows, columns)
        sums = FoldedRows(rows.fold, hold, columns.width) if held is None else hold(held)
        whiten = partial(_whiten, columns)
        done = descend(sums, plan.descent, source, track=track, whiten=whiten)
        return self._shape_arrays(plan.descent, columns, done)

    def _hold_rows(self, columns: BinnedColumns, batch: Batch) -> BinnedRows:
        """Return the exact sums over rows that are in memory."""
        codes = [one.codes(batch.features[:, at]) for at, one in enumerate(columns.cells)]
        residuals = partial(self._residuals, targets=batch.targets)
        return BinnedRows(columns, codes, len(batch.targets), residuals, batch.owned)

    @staticmethod
    def _noisy_counts(
        plan: AdditivePlan, counts: NDArray[Any], source: Source
    ) -> NDArray[np.float64]:
        noisy = gaussian_integers(
            counts.astype(np.int64) * _BIN_STEPS,
            sensitivity=Fraction(plan.bin_shift),
            stddev=plan.bin_stddev,
            relation=plan.descent.relation,
            source=source,
        ).value
        return np.asarray(noisy / _BIN_STEPS)

    def _shape_arrays(
        self, plan: LinearPlan, columns: BinnedColumns, done: LinearRelease
    ) -> dict[str, NDArray[Any]]:
        """Return the model: values of cells around their mean, and masses."""
        masses = _masses(plan, columns, done.moments)
        directions = self._directions([one.name for one in columns.cells])
        intercept = np.zeros(plan.outputs)
        values = []
        for cells, found, mass in zip(
            columns.cells, columns.values(done.weights), masses, strict=True
        ):
            share = _shares(mass)
            if cells.name in directions:
                ordered = isotonic_regression(
                    found[: cells.ordered, 0],
                    sample_weight=share[: cells.ordered],
                    increasing=directions[cells.name] > 0,
                )
                found = np.concatenate([ordered[:, None], found[cells.ordered :]])
            middle = share @ found
            intercept += middle
            values.append(found - middle)
        return {
            "intercept": intercept,
            "cell_values": np.concatenate(values),
            "cell_mass": np.concatenate(masses),
            "cell_bins": np.concatenate(columns.bins),
            "weights": done.weights,
            **({} if done.moments is None else {"moments": done.moments}),
        }

    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._known_cells_ = self._cells(self._facts)
        ends = np.cumsum([one.count for one in self._known_cells_])
        shape = (int(ends[-1]), self._outputs(self._facts))
        self.intercept_ = np.array(arrays["intercept"])
        by_cell = [arrays[f"cell_{name}"] for name in ("bins", "values", "mass")]
        sizes = {len(array) for array in by_cell}
        if by_cell[1].shape != shape or sizes != {shape[0]} or self.intercept_.shape != shape[1:]:
            raise SchemaError("a saved model has shapes of other columns")
        split = (np.split(array, ends[:-1]) for array in by_cell)
        parts = zip(self._known_cells_, *split, strict=True)
        self.shapes_ = {
            cells.name: Shape(cells.labels, cells.edges, *part) for cells, *part in parts
        }
        self.moments_ = arrays.get("moments")
        self._weights_ = arrays.get("weights")

    def noise_of_shapes(self) -> dict[str, NDArray[np.float64]] | None:
        """Return shapes as noise alone could have moved them: replays x cells x outputs, by name.

        The fit is played again on made-up rows with the released moments, answered by the released
        model, with the same bins and new noise each time (:mod:`discreet.learn._replays`). That
        costs nothing. None without moments: in very wide models, and in old files.
        """
        if self.moments_ is None or self._weights_ is None:
            return None
        bins = tuple(shape.bins for shape in self.shapes_.values())
        columns = BinnedColumns(self._known_cells_, bins)
        first = np.arange(int(bins[0].max()) + 1)
        found = replay_fit(
            self.plan_.descent,
            self.moments_,
            self.moments_[:, first].sum(axis=1),
            self._weights_,
            draw=self._draw_targets,
            residuals=self._residuals,
            whiten=partial(_whiten, columns),
        )
        values = [columns.values(weights) for weights in found]
        shapes = {}
        for at, (name, shape) in enumerate(self.shapes_.items()):
            own = np.stack([each[at] for each in values])
            shapes[name] = own - np.einsum("c,rco->ro", _shares(shape.mass), own)[:, None]
        return shapes

    @abstractmethod
    def _draw_targets(self, scores: NDArray[np.float64], coins: Any) -> NDArray[Any]:
        """Return made-up targets of rows by the scores that a model gives them."""

    # --- predicting ---------------------------------------------------------------------

    def explain(self, X: Any) -> NDArray[np.float64]:
        """Return what each column adds to the scores of rows: rows x columns x outputs."""
        rows = self._encoded_rows(X)
        parts = [
            shape.values[cells.codes(rows[:, at])]
            for at, (cells, shape) in enumerate(self._columns_and_shapes())
        ]
        return np.stack(parts, axis=1)

    def with_shape(self, name: str, values: Any) -> Self:
        """Return a copy of the fitted model with another shape for one column.

        Editing what was released costs nothing; the certificate stays that of the fit. An edited
        model predicts and is drawn, and is not saved: its file would not be what was certified.

        Parameters
        ----------
        name
            The column.
        values
            What its cells add to the scores: cells x outputs, or one number for each cell.

        """
        check_is_fitted(self, "certificate_")
        shape = self.shapes_[_validate.one_of("name", name, tuple(self.shapes_))]
        found = np.array(values, dtype=np.float64)
        found = found[:, None] if found.ndim == 1 else found
        if found.shape != shape.values.shape or not np.isfinite(found).all():
            rows, outputs = shape.values.shape
            expected = f"{rows} x {outputs} finite numbers"
            raise InvalidValue("values", f"an array of {found.shape}", expected)
        edited = copy(self)
        edited.shapes_ = {**self.shapes_, name: replace(shape, values=found)}
        # Noise and file are those of the model that was fitted.
        edited._weights_ = None
        edited.__dict__.pop("_head", None)  # one that was edited before has none
        return edited

    def describe(self) -> str:
        """Return for each column between which values its shape moves the score, as text."""
        lines = [
            f"{name}: from {shape.values.min():+.3g} to {shape.values.max():+.3g}"
            for name, shape in self.shapes_.items()
        ]
        return "\n".join(lines)

    def ends_of(self, name: str) -> tuple[float, float]:
        """Return the declared bounds of a column of numbers."""
        at = list(self.shapes_).index(name)
        lower, upper = self._facts.ends
        return float(lower[at]), float(upper[at])

    def _columns_and_shapes(self) -> list[tuple[ColumnCells, Shape]]:
        return list(zip(self._known_cells_, self.shapes_.values(), strict=True))

    def _scores(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        known = self._columns_and_shapes()
        codes = [cells.codes(rows[:, at]) for at, (cells, _) in enumerate(known)]
        scores = add_up(codes, [shape.values for _, shape in known], len(rows))
        return np.asarray(scores + self.intercept_)


def _interval_counts(chosen: Mapping[int, ColumnCells], batch: Batch) -> NDArray[np.int64]:
    """Count the rows in the intervals of some columns, one row of each person."""
    first = slice(None) if batch.owned is None else batch.owned.ranks == 0
    features = batch.features[first]
    return np.concatenate(
        [cell_counts(one, one.codes(features[:, at])) for at, one in chosen.items()]
    )


def _text_keys(given: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in given.items()}


def _by_column(argument: str, given: Any, names: list[str]) -> dict[str, Any]:
    """Return a mapping by names of columns, or raise; columns of arrays are called 0, 1, ..."""
    if not isinstance(given, Mapping):
        raise InvalidValue(argument, type(given).__name__, "a mapping by names of columns")
    found = _text_keys(given)
    for name in found:
        if name not in names:
            raise InvalidValue(argument, name, f"names of columns, such as {names[0]!r}")
    return found


def _whiten(
    columns: BinnedColumns, moments: NDArray[np.float64] | None, plan: LinearPlan
) -> Whitening:
    """Return the basis in which the penalized features have about equal lengths."""
    if moments is None:
        length = plan.clip_ratio * math.sqrt(len(columns.cells))
        return Whitening(on_basis_grid(np.full(columns.width, 1.0 / length)), plan.clip_ratio)
    penalty, vectors = np.linalg.eigh(columns.roughness())
    root = vectors / np.sqrt(penalty) @ vectors.T
    found, turned = np.linalg.eigh(root @ moments @ root)
    spread = plan.moment_stddev / RAW_STEPS**2 / plan.rows
    ridge = plan.ridge * spread * math.sqrt(columns.width) + 100.0 / plan.rows
    values = np.maximum(found, 0.0)
    length = plan.clip_ratio * math.sqrt(max(float(np.sum(values / (values + ridge))), 1.0))
    return Whitening(on_basis_grid(root @ turned / np.sqrt(values + ridge) / length), length)


def _masses(
    plan: LinearPlan, columns: BinnedColumns, moments: NDArray[np.float64] | None
) -> list[NDArray[np.float64]]:
    """Return about how many units are in each cell, column by column: a bin's spread evenly."""
    found = []
    for bins, place in zip(columns.bins, columns.places, strict=True):
        in_bin = np.full(int(bins.max()) + 1, plan.rows / (int(bins.max()) + 1))
        if moments is not None:
            in_bin = np.maximum(np.diag(moments)[place][: in_bin.size] * plan.rows, 0.0)
        found.append((in_bin / np.bincount(bins))[bins])
    return found


def _shares(mass: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((mass + 1e-9) / (mass + 1e-9).sum())


@final
class PrivateAdditiveClassifier(WeightedClasses, _Additive):
    """Private additive logistic model: the log odds are a sum of one shape a column.

    **Guarantee.** The fitted model is (epsilon, delta)-DP under ``relation`` for one row, or for a
    person with at most ``rows_per_person`` rows, of which there may be 16. A person's gradient is
    clipped as one, so the noise is that for one row. Bins and shapes are all paid for.

    Parameters
    ----------
    epsilon, delta
        The budget. ``delta`` None is :func:`~discreet.learn.default_delta` of the declared rows.
    schema
        What is public about a table; instead of the five declarations below.
    classes
        The public labels. A row of another label has no gradient.
    bounds
        A pair (lower, upper) of numbers, or of arrays with one for each column.
    categories
        For each column how many labels it has (4,096 at most), coded 0, 1, ...; 0 for numbers;
        None if all are numbers.
    expected_rows
        The order of magnitude of the number of rows.
    rows_per_person
        How many rows one person may own; None is 1.
    relation
        What the guarantee compares, ``"add_remove"`` or ``"replace"``.
    max_bins
        About how many bins a column of numbers has, from 8 to 256. Wide tables get fewer.
    cuts
        ``"private"`` chooses bins from noisy counts, which are paid for; ``"uniform"`` makes them
        equal; a mapping from columns to increasing edges declares those of some columns.
    monotone
        A mapping from columns of numbers to 1 (the shape rises) or -1 (it falls).
    class_weight
        A weight above 0 for each class, as a mapping, or ``"balanced"``: the inverse of noisy
        counts, for 2 % of mu^2.
    insecure_seed
        For tests only: the noise can be computed from it.

    Attributes
    ----------
    shapes_
        A :class:`Shape` for each column. What is no number has a cell of its own; with a
        schema it stands at the declared value for it, which can be a bin of its own.
    intercept_
        What is added to the shapes.

    >>> X = [[20.0], [25.0], [70.0], [72.0]] * 500
    >>> y = ["no", "yes", "yes", "no"] * 500
    >>> y = ["yes" if 22 < x < 71 else "no" for (x,) in X]
    >>> model = PrivateAdditiveClassifier(
    ...     epsilon=1.0, classes=["no", "yes"], bounds=(0.0, 100.0), expected_rows=2000
    ... )
    >>> model.fit(X, y).predict([[20.0], [25.0], [70.0], [72.0]]).tolist()
    ['no', 'yes', 'yes', 'no']
    >>> model.certificate_.epsilon <= 1.0
    True

    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        classes: Any = None,
        bounds: Any = None,
        categories: Any = None,
        expected_rows: int | None = None,
        rows_per_person: int | None = None,
        relation: Relation | str = "add_remove",
        max_bins: int = 32,
        cuts: Any = "private",
        monotone: Any = None,
        class_weight: Any = None,
        schema: Schema | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.bounds = bounds
        self.categories = categories
        self.expected_rows = expected_rows
        self.rows_per_person = rows_per_person
        self.relation = relation
        self.max_bins = max_bins
        self.cuts = cuts
        self.monotone = monotone
        self.class_weight = class_weight
        self.schema = schema
        self.insecure_seed = insecure_seed

    def _outputs(self, declared: Declared) -> int:
        assert declared.classes is not None
        return 1 if declared.classes.size == 2 else int(declared.classes.size)

    def _plan(self, declared: Declared) -> AdditivePlan:
        self._stated_weights(declared)  # what cannot be is found before the charge
        return super()._plan(declared)

    def _class_scores(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        return both_classes(self._scores(rows))

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the scores: one a row for two classes, else one for each class."""
        scores = self._scores(self._encoded_rows(X))
        return scores[:, 0] if scores.shape[1] == 1 else scores


@final
class PrivateAdditiveRegressor(PrivateRegressor, _Additive):
    """Private additive least squares for a target with public bounds.

    **Guarantee.** As :class:`PrivateAdditiveClassifier`, which also says what must be declared;
    instead of classes, ``target_bounds`` is the public pair that bounds the target.

    >>> X = [[x / 500] for x in range(1000)]
    >>> y = [(x[0] - 1.0) ** 2 for x in X]
    >>> model = PrivateAdditiveRegressor(
    ...     epsilon=3.0, bounds=(0.0, 2.0), target_bounds=(0.0, 1.0), expected_rows=1000
    ... )
    >>> low, high = model.fit(X, y).predict([[1.0], [0.02]])
    >>> bool(low < high)
    True
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        bounds: Any = None,
        categories: Any = None,
        target_bounds: Any = None,
        expected_rows: int | None = None,
        rows_per_person: int | None = None,
        relation: Relation | str = "add_remove",
        max_bins: int = 32,
        cuts: Any = "private",
        monotone: Any = None,
        schema: Schema | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.categories = categories
        self.target_bounds = target_bounds
        self.expected_rows = expected_rows
        self.rows_per_person = rows_per_person
        self.relation = relation
        self.max_bins = max_bins
        self.cuts = cuts
        self.monotone = monotone
        self.schema = schema
        self.insecure_seed = insecure_seed

    def _residuals(self, scores: NDArray[np.float64], targets: NDArray[Any]) -> NDArray[np.float64]:
        rest = np.nan_to_num(scores - targets[:, None], nan=0.0)
        return np.asarray(np.clip(rest, -_LONGEST_RESIDUAL, _LONGEST_RESIDUAL))

    def _draw_targets(self, scores: NDArray[np.float64], coins: Any) -> NDArray[Any]:
        return number_targets(scores, coins)

    def _values(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        return np.asarray(self._scores(rows)[:, 0])
