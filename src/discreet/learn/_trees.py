"""Private decision trees and forests: splits by the exponential mechanism, leaves by Laplace noise.

**A tree** is complete and of public depth. Every inner node asks one question of one column: is a
number at most an edge of its public cells, or is a label this one. All questions of all columns
are candidates, so none is read off the data. The score of a question is the number of rows of the
node that it leaves unmixed,

    sum over both sides of (n_1^2 + ... + n_m^2) / n,      n_k rows of class k among n,

which is n minus n times the Gini impurity. One more row of class k changes one side of it from
Q/n to (Q + 2 n_k + 1)/(n + 1). Q is at least n_k^2, so the change is at most 1, with equality for
a pure side; Q is at most n^2, so it is at least (1 - n)/(1 + n) > -1. Scores are rounded down to
steps of 1/1024, and what changes by at most whole numbers of steps still does after rounding: the
range of a change is 2.

**Cost.** A row is in one node of each level. Its coming or going changes the scores of that node
only, so a level of questions at e is of e-bounded range, ``Exponential(e)``. Replacing it moves
the scores of one node twice, or those of two nodes once each: either way the losses lie in one
interval of length 2e. Leaves count rows by class; one row moves one count by 1, replacing it
moves two. Levels and leaves add up to epsilon, half of it for the questions.

**A forest** deals every row to one tree, by a draw that looks at no row. A row is in one tree
only, so each tree may cost all of epsilon.

**After the release**, free of charge: every node is pulled towards its parent by as many
rows as its noisy count has standard deviations, so that a leaf that is nearly empty says what is
known around it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import NotApplicable, SchemaError
from discreet.learn._binning import ColumnCells, declared_cells
from discreet.learn._declared import Declared
from discreet.learn._estimator import PrivateClassifier, Track
from discreet.learn._intake import Rows
from discreet.mechanisms import exponential_choice, laplace_integers
from discreet.privacy import DiscreteLaplace, Exponential, Loss, Relation
from discreet.randomness import Source, uniform_integers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.certificate import Certificate
    from discreet.data import Schema

_STEPS = 1 << 10
_SPLIT_SHARE = 0.5
_MOST_DEPTH, _MOST_TREES = 10, 1000
# About how many rows times epsilon a leaf and a tree have, where nothing else is asked for.
_LEAF_SIGNAL = 100.0
_TREE_SIGNAL = 300.0
_PULL = 1.0


@final
@dataclass(frozen=True)
class TreesPlan:
    """Public numbers of a fit; build it with :meth:`make`.

    ``split_epsilon`` is the range of one level of questions for one row more, ``leaf_scale`` the
    scale of the noise of the counts.

    >>> plan = TreesPlan.make(trees=1, depth=4, epsilon=1.0, relation=Relation.ADD_REMOVE)
    >>> plan.split_epsilon, plan.leaf_scale, plan.loss.epsilon(delta=0)
    (0.125, 2.0, 1.0)
    """

    trees: int
    depth: int
    split_epsilon: float
    leaf_scale: float
    relation: Relation
    epsilon: float
    delta: float = 0.0

    @classmethod
    def make(cls, *, trees: int, depth: int, epsilon: float, relation: Relation) -> TreesPlan:
        """Divide epsilon between the levels and the leaves."""
        target = _validate.real("epsilon", epsilon, at_least=1e-6, at_most=1e3)
        changes = 2 if relation is Relation.REPLACE else 1
        share = _SPLIT_SHARE if depth else 0.0
        for attempt in range(40):
            less = 1.0 - (2.0 ** (attempt - 52) if attempt else 0.0)
            each = less * target * share / (max(depth, 1) * changes)
            scale = changes / (less * target * (1.0 - share))
            found = cls(trees, depth, each, scale, relation, target)
            if found.loss.epsilon(delta=0.0) <= target:
                return found
        raise NotApplicable(f"no noise was certified for epsilon {epsilon!r}")

    @property
    def changes(self) -> int:
        """How many rows come or go between neighbours."""
        return 2 if self.relation is Relation.REPLACE else 1

    @property
    def loss(self) -> Loss:
        """What the whole fit reveals about one unit."""
        leaves = DiscreteLaplace(self.leaf_scale, self.changes, self.relation)
        if not self.depth:
            return leaves
        return self.depth * Exponential(self.changes * self.split_epsilon, self.relation) + leaves

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {**self.__dict__, "relation": self.relation.value}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TreesPlan:
        """Return the plan that :meth:`to_json` wrote."""
        found = {name: document[name] for name in cls.__dataclass_fields__}
        return cls(**{**found, "relation": Relation.parse(found["relation"])})


# --- growing a tree -------------------------------------------------------------------------


def measure_purity(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (n_1^2 + ... + n_m^2) / n in steps, rounded down; classes are the last axis.

    >>> measure_purity(np.array([[3, 1], [0, 0], [4, 0]])).tolist()
    [2560, 0, 4096]
    """
    squares = (counts * counts).sum(axis=-1)
    sizes = np.maximum(counts.sum(axis=-1), 1)
    whole, rest = np.divmod(squares, sizes)
    return np.asarray(whole * _STEPS + rest * _STEPS // sizes)


def question_scores(
    cells: Sequence[ColumnCells],
    codes: Sequence[NDArray[Any]],
    targets: NDArray[np.int64],
    nodes: NDArray[np.int64],
    *,
    width: int,
    classes: int,
) -> NDArray[np.int64]:
    """Return the score of every question for each of ``width`` nodes: nodes x questions.

    The questions of a column follow one another: "at most this cell" for numbers, "this label".
    """
    found = []
    for one, column in zip(cells, codes, strict=True):
        places = (nodes * one.count + column) * classes + targets
        table = np.bincount(places, minlength=width * one.count * classes)
        table = table.reshape(width, one.count, classes)
        every = table.sum(axis=1, keepdims=True)
        left = table if one.labels else np.cumsum(table, axis=1)[:, : one.ordered]
        found.append(measure_purity(left) + measure_purity(every - left))
    return np.concatenate(found, axis=1)


def goes_left(one: ColumnCells, codes: NDArray[Any], cell: NDArray[Any] | int) -> NDArray[np.bool_]:
    """Return which rows a question sends to the left."""
    return np.asarray(codes == cell if one.labels else codes <= cell)


@final
@dataclass(frozen=True, eq=False)
class Tree:
    """A released tree, its nodes from top to bottom: the children of i are 2i + 1 and 2i + 2.

    Parameters
    ----------
    column, cell
        The question of each inner node: its column, and the cell that it asks for.
    counts
        The noisy counts of the leaves, from left to right: leaves x classes.

    """

    column: NDArray[np.int64]
    cell: NDArray[np.int64]
    counts: NDArray[np.int64]

    @property
    def depth(self) -> int:
        """How many questions a row is asked."""
        return (len(self.counts) - 1).bit_length()

    def leaves(
        self, cells: Sequence[ColumnCells], codes: Sequence[NDArray[Any]]
    ) -> NDArray[np.int64]:
        """Return the leaf of each row."""
        nodes = np.zeros(len(codes[0]), dtype=np.int64)
        for _ in range(self.depth):
            below = 2 * nodes + 1
            for at in np.unique(self.column[nodes]):
                rows = np.flatnonzero(self.column[nodes] == at)
                left = goes_left(cells[at], codes[at][rows], self.cell[nodes[rows]])
                below[rows] += ~left
            nodes = below
        return nodes - (len(self.counts) - 1)

    def node_counts(self) -> NDArray[np.int64]:
        """Return the noisy counts of all nodes: those of the leaves below, added up."""
        levels = [self.counts]
        while len(levels[0]) > 1:
            levels.insert(0, levels[0][0::2] + levels[0][1::2])
        return np.concatenate(levels)

    def probabilities(self, scale: float) -> NDArray[np.float64]:
        """Return the classes' probabilities in all nodes; ``scale`` is that of the noise."""
        counts = self.node_counts()
        found = np.full(counts.shape, 1.0 / counts.shape[1])
        for node, own in enumerate(np.maximum(counts.astype(np.float64), 0.0)):
            below = len(self.counts) >> int(math.log2(node + 1))
            pull = _PULL * math.sqrt(2.0 * below) * max(scale, 1.0)
            parent = found[(node - 1) // 2] if node else found[0]
            found[node] = (own + pull * parent) / (own.sum() + pull)
        return found


def grow(
    plan: TreesPlan,
    cells: Sequence[ColumnCells],
    codes: Sequence[NDArray[Any]],
    targets: NDArray[np.int64],
    *,
    classes: int,
    source: Source,
) -> Tree:
    """Choose the questions level by level, and count the leaves with noise."""
    sizes = [one.count if one.labels else one.ordered for one in cells]
    starts = np.cumsum([0, *sizes])
    nodes = np.zeros(len(targets), dtype=np.int64)
    column = np.zeros((1 << plan.depth) - 1, dtype=np.int64)
    cell = np.zeros_like(column)
    for level in range(plan.depth):
        width = 1 << level
        scores = question_scores(cells, codes, targets, nodes, width=width, classes=classes)
        below = 2 * nodes
        for node in range(width):
            question = exponential_choice(
                scores[node], score_range=2 * _STEPS, epsilon=plan.split_epsilon, source=source
            ).value
            at = int(np.searchsorted(starts, question, side="right")) - 1
            place = width - 1 + node
            column[place], cell[place] = at, question - starts[at]
            rows = np.flatnonzero(nodes == node)
            below[rows] += ~goes_left(cells[at], codes[at][rows], cell[place])
        nodes = below
    leaves = 1 << plan.depth
    counts = np.bincount(nodes * classes + targets, minlength=leaves * classes)
    noisy = laplace_integers(
        counts.reshape(leaves, classes),
        sensitivity=plan.changes,
        scale=plan.leaf_scale,
        relation=plan.relation,
        source=source,
    ).value
    return Tree(column, cell, np.asarray(noisy))


# --- estimators -----------------------------------------------------------------------------


class _Trees(PrivateClassifier):
    """What a tree and a forest share."""

    depth: int | None
    categories: Any
    _encoding = "codes"
    _takes_labels = True
    _takes_persons = True
    _needs_persons = True

    @abstractmethod
    def _trees(self, declared: Declared) -> int:
        """Return how many trees there are."""

    def _signal(self, declared: Declared) -> float:
        """Return units times epsilon, from public facts."""
        epsilon = _validate.real("epsilon", self.epsilon, at_least=1e-6, at_most=1e3)
        return float(declared.planned_rows / declared.rows_per_person * epsilon)

    def _plan(self, declared: Declared) -> TreesPlan:
        declared_cells(declared)  # declarations that do not fit are found before the charge
        trees = self._trees(declared)
        if self.depth is None:
            signal = self._signal(declared) / trees
            depth = math.floor(math.log2(max(signal / _LEAF_SIGNAL, 1.0)))
            depth = min(max(depth, 1), 8)
        else:
            depth = _validate.integer("depth", self.depth, at_least=0, at_most=_MOST_DEPTH)
        return TreesPlan.make(
            trees=trees, depth=depth, epsilon=self.epsilon, relation=declared.relation
        )

    def _read_plan(self, document: Mapping[str, Any], declared: Declared) -> TreesPlan:
        del declared
        return TreesPlan.from_json(document)

    @classmethod
    def _stated_plan(cls, certificate: Certificate) -> TreesPlan:
        return TreesPlan.from_json(certificate.plan)

    def _learn(
        self, plan: TreesPlan, rows: Rows, source: Source, track: Track
    ) -> dict[str, NDArray[Any]]:
        batch = rows.all()
        known = batch.targets >= 0
        if batch.owned is not None:
            known &= batch.owned.ranks == 0
        features, targets = batch.features[known], batch.targets[known]
        cells = declared_cells(self._facts)
        codes = [one.codes(features[:, at]) for at, one in enumerate(cells)]
        dealt = np.zeros(len(targets), dtype=np.int64)
        if plan.trees > 1:
            dealt = uniform_integers(plan.trees, len(targets), source=source)
        grown = []
        for number in track(range(plan.trees)):
            own = dealt == number
            grown.append(
                grow(
                    plan,
                    cells,
                    [column[own] for column in codes],
                    targets[own],
                    classes=len(self.classes_),
                    source=source,
                )
            )
        parts = ("column", "cell", "counts")
        stacked = {name: np.stack([getattr(tree, name) for tree in grown]) for name in parts}
        return {**stacked, "classes": self.classes_}

    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._known_cells_ = declared_cells(self._facts)
        plan: TreesPlan = self.plan_
        inner = (plan.trees, (1 << plan.depth) - 1)
        leaves = (plan.trees, 1 << plan.depth, len(self.classes_))
        column, cell, counts = (np.array(arrays[name]) for name in ("column", "cell", "counts"))
        if not (column.shape == cell.shape == inner and counts.shape == leaves):
            raise SchemaError("a saved model has trees of another depth or number")
        if np.any((column < 0) | (column >= len(self._known_cells_))):
            raise SchemaError("a saved model asks for columns that it does not have")
        self.trees_ = tuple(Tree(*parts) for parts in zip(column, cell, counts, strict=True))

    def _class_scores(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        codes = [one.codes(rows[:, at]) for at, one in enumerate(self._known_cells_)]
        total = np.zeros((len(rows), len(self.classes_)))
        for tree in self.trees_:
            inner = len(tree.counts) - 1
            leaves = tree.leaves(self._known_cells_, codes)
            total += tree.probabilities(self.plan_.leaf_scale)[inner:][leaves]
        return np.asarray(np.log(total / len(self.trees_)))

    def _in_words(self, tree: Tree, node: int) -> str:
        one = self._known_cells_[tree.column[node]]
        cell = int(tree.cell[node])
        if one.labels:
            return f"{one.name} is {one.labels[cell]}"
        if cell == one.ordered - 1:
            return f"{one.name} is a number"
        return f"{one.name} < {one.edges[cell]:.6g}"

    def node_facts(self, number: int = 0) -> list[tuple[str, int, float, Any]]:
        """Return for each node its question ("" for a leaf), noisy rows, and its likeliest class.

        A node has (question, about how many rows, share of that class, class); its children are
        2i + 1 and 2i + 2. All of it is a function of what was released, and costs nothing more.
        """
        tree = self.trees_[
            _validate.integer("number", number, at_least=0, at_most=len(self.trees_) - 1)
        ]
        known = tree.probabilities(self.plan_.leaf_scale)
        totals = np.maximum(tree.node_counts().sum(axis=1), 0)
        return [
            (
                self._in_words(tree, node) if node < len(tree.column) else "",
                int(rows),
                float(shares.max()),
                self.classes_[int(np.argmax(shares))],
            )
            for node, (rows, shares) in enumerate(zip(totals, known, strict=True))
        ]

    def describe(self, number: int = 0) -> str:
        """Return a tree as lines of text: its questions, and what the leaves say."""
        facts = self.node_facts(number)

        def lines(node: int, before: str, answer: str) -> list[str]:
            question, rows, share, best = facts[node]
            if not question:
                return [f"{before}{answer}{best} ({share:.0%} of about {rows})"]
            deeper = before + "  " if answer else before
            yes, no = (lines(2 * node + k, deeper, word) for k, word in ((1, "yes: "), (2, "no: ")))
            return [f"{before}{answer}{question}?", *yes, *no]

        return "\n".join(lines(0, "", ""))

    def importances(self) -> dict[str, float]:
        """Return how many more rows the questions of each column leave unmixed, by noisy counts.

        It is a function of what was released. Of a column of pure noise it is not 0: a question
        was asked of it because nothing better was found.
        """
        found = dict.fromkeys((one.name for one in self._known_cells_), 0.0)
        for tree in self.trees_:
            counts = np.maximum(tree.node_counts(), 0)
            pure = measure_purity(counts) / _STEPS
            for node, at in enumerate(tree.column):
                gain = pure[2 * node + 1] + pure[2 * node + 2] - pure[node]
                found[self._known_cells_[at].name] += max(float(gain), 0.0)
        return found


@final
class PrivateDecisionTree(_Trees):
    """Private decision tree for two or more classes.

    **Guarantee.** The fitted model is epsilon-DP under ``relation`` for one row, or for a person,
    of whom the first row counts (:mod:`discreet.learn._trees`). Half of epsilon chooses the
    questions, in equal parts for each level; the other half counts the rows of the leaves.

    Parameters
    ----------
    epsilon
        The budget, from 1e-6 to 1000.
    schema
        What is public about a table; instead of the five declarations below.
    classes
        The public labels. A row of another label counts for nothing.
    bounds
        A pair (lower, upper) of numbers, or of arrays with one for each column.
    categories
        For each column how many labels it has (4,096 at most), coded 0, 1, ...; 0 for numbers;
        None if all are numbers.
    expected_rows
        The order of magnitude of the number of rows; needed where ``depth`` is None.
    rows_per_person
        How many rows one person may own; None is 1.
    depth
        How many questions a row is asked, at most 10. None chooses it so that a leaf has about
        100 / epsilon rows, from 1 to 8.
    relation
        What the guarantee compares, ``"add_remove"`` or ``"replace"``.
    insecure_seed
        For tests only: the noise can be computed from it.

    Attributes
    ----------
    trees_
        One :class:`Tree`.

    >>> X = [[20.0], [25.0], [70.0], [72.0]] * 500
    >>> y = ["no", "yes", "yes", "no"] * 500
    >>> model = PrivateDecisionTree(
    ...     epsilon=2.0, classes=["no", "yes"], bounds=(0.0, 100.0), depth=3
    ... )
    >>> model.fit(X, y).predict([[20.0], [25.0], [70.0], [72.0]]).tolist()
    ['no', 'yes', 'yes', 'no']
    >>> model.certificate_.epsilon, model.certificate_.delta
    (2.0, 0.0)

    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        classes: Any = None,
        bounds: Any = None,
        categories: Any = None,
        expected_rows: int | None = None,
        rows_per_person: int | None = None,
        relation: Relation | str = "add_remove",
        depth: int | None = None,
        schema: Schema | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.classes = classes
        self.bounds = bounds
        self.categories = categories
        self.expected_rows = expected_rows
        self.rows_per_person = rows_per_person
        self.relation = relation
        self.depth = depth
        self.schema = schema
        self.insecure_seed = insecure_seed

    def _trees(self, declared: Declared) -> int:
        del declared
        return 1


@final
class PrivateRandomForest(_Trees):
    """Private forest: each tree learns from its own random share of the rows.

    **Guarantee.** As :class:`PrivateDecisionTree`, which also says what must be declared. A row is
    dealt to one tree, so a forest costs what one of its trees costs.

    Parameters
    ----------
    epsilon, schema, classes, bounds, categories, expected_rows, rows_per_person
        As for :class:`PrivateDecisionTree`.
    trees
        How many trees there are. None chooses it so that a tree has about 300 / epsilon rows,
        from 1 to 10.
    depth
        The depth of each; None chooses it from the rows of one tree.
    relation, insecure_seed
        As for :class:`PrivateDecisionTree`.

    >>> X = [[x / 1000] for x in range(1000)]
    >>> y = ["low" if x < 0.5 else "high" for (x,) in X]
    >>> model = PrivateRandomForest(
    ...     epsilon=4.0, classes=["low", "high"], bounds=(0.0, 1.0), trees=3, depth=1
    ... )
    >>> model.fit(X, y).predict([[0.1], [0.9]]).tolist()
    ['low', 'high']
    >>> model.certificate_.epsilon
    4.0

    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        classes: Any = None,
        bounds: Any = None,
        categories: Any = None,
        expected_rows: int | None = None,
        rows_per_person: int | None = None,
        relation: Relation | str = "add_remove",
        trees: int | None = None,
        depth: int | None = None,
        schema: Schema | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.classes = classes
        self.bounds = bounds
        self.categories = categories
        self.expected_rows = expected_rows
        self.rows_per_person = rows_per_person
        self.relation = relation
        self.trees = trees
        self.depth = depth
        self.schema = schema
        self.insecure_seed = insecure_seed

    def _trees(self, declared: Declared) -> int:
        if self.trees is None:
            return min(max(round(self._signal(declared) / _TREE_SIGNAL), 1), 10)
        count: int = _validate.integer("trees", self.trees, at_least=1, at_most=_MOST_TREES)
        return count
