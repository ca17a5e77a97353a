"""Private principal components and k-means, from noisy sums of integer rows.

Rows are scaled to [-1, 1] by their bounds and rounded to integers, with the constant 1 appended,
as for the linear models (:mod:`discreet.learn._exact_descent`).

**Principal components** are read off one release: the sum of outer products of the rows. It holds
count, mean and covariance together.

**k-means** starts from the same release, for a tenth of mu^2: starting points are drawn from the
normal distribution with the released mean and covariance. Every round after that releases, for each
centre, the sum of the rows nearest to it, with the constant: sum and count in one vector, which
one row moves by its own length. The first two rounds have several times as many centres as are
wanted; k-means on *those* centres, weighted by their noisy counts, costs nothing and gives the
places where the last rounds begin.

Which centre is nearest is decided in integers that double precision holds exactly, so it depends on
one row and on released centres, not on how rows stand in a matrix. Replacing a row moves any of
the sums at most twice as far as adding one, and a person with k rows k times as far.
"""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np
from sklearn.base import ClusterMixin, TransformerMixin  # type: ignore[import-untyped]
from sklearn.cluster import KMeans  # type: ignore[import-untyped]

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.learn._declared import Declared
from discreet.learn._estimator import Track
from discreet.learn._exact_descent import RAW_STEPS, blocks, exact_gram, squared_raw_norm
from discreet.learn._intake import Rows
from discreet.learn._linear import ScaledEstimator, scaled_norm
from discreet.mechanisms import gaussian_integers
from discreet.privacy import GDP, Loss, Relation
from discreet.privacy.theorems import discrete_gaussian_mu, gaussian_mu
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.certificate import Certificate
    from discreet.data import Schema

_MOMENT_SHARE = 0.1
_EARLY_ROUNDS, _LATE_ROUNDS, _MORE_CENTRES = 2, 5, 6
_WIDEST = 1024
_LARGEST_MU = 20.0
_MOST_NOISE = 2.0**51


@final
@dataclass(frozen=True)
class SumsPlan:
    """Public numbers of a fit: one release of moments, and ``rounds`` releases of sums.

    ``centres`` is how many centres are wanted, 0 for principal components.

    >>> plan = SumsPlan.make(
    ...     features=3,
    ...     norm=3**0.5,
    ...     centres=0,
    ...     changes=1,
    ...     epsilon=1.0,
    ...     delta=1e-6,
    ...     relation=Relation.ADD_REMOVE,
    ... )
    >>> plan.rounds, 0.999 < plan.loss.epsilon(delta=1e-6) <= 1.0
    (0, True)
    """

    features: int
    norm: float
    centres: int
    rounds: int
    changes: int
    relation: Relation
    epsilon: float
    delta: float
    moment_stddev: float
    sum_stddev: float

    @classmethod
    def make(
        cls,
        *,
        features: int,
        norm: float,
        centres: int,
        changes: int,
        epsilon: float,
        delta: float,
        relation: Relation,
    ) -> SumsPlan:
        """Calibrate all noise to (epsilon, delta) together."""
        target = _validate.real("epsilon", epsilon, above=0)
        if features >= _WIDEST:
            raise NotApplicable(f"there are {features} features; at most {_WIDEST - 1} are taken")
        mu = min(gaussian_mu(target, delta), _LARGEST_MU)
        rounds = _EARLY_ROUNDS + _LATE_ROUNDS if centres else 0
        share = _MOMENT_SHARE if centres else 1.0
        known = (features, norm, centres, rounds, changes, relation, target, delta)
        draft = cls(*known, 1.0, 1.0)
        more = 1.0
        for attempt in range(60):
            moments = more * draft.moment_shift / (mu * math.sqrt(share))
            each = math.sqrt(rounds / (1.0 - share)) if centres else 1.0
            sums = more * draft.sum_shift * each / mu
            if max(moments, sums) >= _MOST_NOISE:
                expected = "a value whose noise has fewer than 2**51 steps"
                raise InvalidValue("epsilon", epsilon, expected)
            found = cls(*known, moments, sums)
            if found.loss.epsilon(delta=delta) <= target:
                return found
            # Rounding upwards in the accountant asks for a little more than the closed form.
            more *= 1.0 + 2.0 ** (attempt - 40)
        raise NotApplicable(f"no noise was certified for epsilon {epsilon!r} and delta {delta!r}")

    @property
    def moment_shift(self) -> float:
        """L2 sensitivity of the upper triangle of moments, in steps, rounded up."""
        square = squared_raw_norm(self.norm)
        triangle = math.sqrt((square * square + square * RAW_STEPS**2) / 2.0)
        return self.changes * triangle * (1.0 + 2.0**-48)

    @property
    def sum_shift(self) -> float:
        """L2 sensitivity of the sums of rows by centre, in steps, rounded up."""
        return self.changes * math.sqrt(squared_raw_norm(self.norm)) * (1.0 + 2.0**-48)

    @property
    def most_centres(self) -> int:
        """How many centres the first rounds have."""
        return _MORE_CENTRES * self.centres

    @property
    def loss(self) -> Loss:
        """What the whole fit reveals about one unit."""
        width = self.features + 1
        triangle = width * (width + 1) // 2
        first = _gaussian(self.moment_stddev, self.moment_shift, triangle, self.relation)
        if not self.rounds:
            return first
        numbers = self.most_centres * width
        return first + self.rounds * _gaussian(
            self.sum_stddev, self.sum_shift, numbers, self.relation
        )

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {**self.__dict__, "relation": self.relation.value}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SumsPlan:
        """Return the plan that :meth:`to_json` wrote."""
        found = {name: document[name] for name in cls.__dataclass_fields__}
        return cls(**{**found, "relation": Relation.parse(found["relation"])})


def _gaussian(stddev: float, shift: float, coordinates: int, relation: Relation) -> Loss:
    mu = discrete_gaussian_mu(stddev, shift, coordinates=coordinates)
    if mu is None:
        raise NotApplicable(f"noise of {stddev!r} steps is too little for any claim")
    return GDP(mu, relation)


def nearest(rows: NDArray[Any], centres: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the nearest centre of each row, the first of equals; all are whole steps.

    >>> nearest(np.array([[1.0, 1.0], [9.0, 0.0]]), np.array([[0.0, 0.0], [8.0, 1.0]])).tolist()
    [0, 1]
    """
    found = np.empty(len(rows), dtype=np.int64)
    squares = np.einsum("ij,ij->i", centres, centres)
    for start, stop in blocks(len(rows), max(rows.shape[1], len(centres))):
        part = rows[start:stop].astype(np.float64)
        # Integers below 2^53: exact in every order of summation.
        found[start:stop] = np.argmin(squares - 2.0 * (part @ centres.T), axis=1)
    return found


def sums_by_centre(
    rows: NDArray[Any], places: NDArray[np.int64], centres: int
) -> NDArray[np.int64]:
    """Return the sum of the raw rows at each centre, exactly."""
    total = np.zeros((centres, rows.shape[1]), dtype=np.int64)
    for start, stop in blocks(len(rows), max(rows.shape[1], centres)):
        member = (places[start:stop] == np.arange(centres)[:, None]).astype(np.float64)
        total += (member @ rows[start:stop].astype(np.float64)).astype(np.int64)
    return total


class _FromSums(ScaledEstimator):
    """What the two share: the plan and the release of moments."""

    _target = None

    def _centres(self) -> int:
        return 0

    def _plan(self, declared: Declared) -> SumsPlan:
        changes = declared.rows_per_person
        if declared.relation is Relation.REPLACE:
            if changes > 1:
                raise NotApplicable(
                    "replacing a person may change the number of rows: use add_remove"
                )
            changes = 2
        return SumsPlan.make(
            features=declared.features,
            norm=scaled_norm(declared),
            centres=self._centres(),
            changes=changes,
            epsilon=self.epsilon,
            delta=self._delta(declared),
            relation=declared.relation,
        )

    def _read_plan(self, document: Mapping[str, Any], declared: Declared) -> SumsPlan:
        plan = SumsPlan.from_json(document)
        if plan.features != declared.features:
            raise SchemaError("the plan of a saved model belongs to another one")
        return plan

    @classmethod
    def _stated_plan(cls, certificate: Certificate) -> SumsPlan:
        return SumsPlan.from_json(certificate.plan)

    def _set_plan(self, plan: SumsPlan) -> None:
        self.plan_ = plan

    @staticmethod
    def _moments(plan: SumsPlan, rows: NDArray[Any], source: Source) -> dict[str, NDArray[Any]]:
        """Release count, mean and covariance of the scaled rows."""
        gram = exact_gram(rows)
        above = np.triu_indices(gram.shape[0])
        noisy = gaussian_integers(
            gram[above],
            sensitivity=Fraction(plan.moment_shift),
            stddev=plan.moment_stddev,
            relation=plan.relation,
            source=source,
        ).value
        whole = np.zeros(gram.shape)
        whole[above] = noisy / RAW_STEPS**2
        whole += np.triu(whole, 1).T
        count = max(float(whole[-1, -1]), 1.0)
        mean = np.clip(whole[:-1, -1] / count, -1.0, 1.0)
        return {
            "count": np.array(count),
            "mean": mean,
            "covariance": whole[:-1, :-1] / count - np.outer(mean, mean),
        }

    def _centred_rows(self, X: Any) -> NDArray[np.float64]:
        rows = self._scaled_rows(self._encoded_rows(X))[:, :-1]
        return np.asarray(rows.astype(np.float64) / RAW_STEPS)


@final
class PrivatePCA(TransformerMixin, _FromSums):  # type: ignore[misc]
    """Private principal components, mean and covariance, from one release.

    **Guarantee.** The fitted model is (epsilon, delta)-DP under ``relation`` for one row, or for a
    person with at most ``rows_per_person`` rows (:mod:`discreet.learn._unsupervised`).

    Parameters
    ----------
    epsilon, delta
        The budget. ``delta`` None is :func:`~discreet.learn.default_delta` of the declared rows.
    schema
        What is public about a table; instead of the four declarations below.
    bounds
        A pair (lower, upper) of numbers, or of arrays with one for each feature. Values outside
        are clipped, what is no number is the middle.
    feature_norm
        The largest length of a row whose features are scaled to [-1, 1], if it is below
        sqrt(features).
    expected_rows
        The order of magnitude of the number of rows, for ``delta``.
    rows_per_person
        How many rows one person may own; None is 1.
    n_components
        How many directions; None keeps all.
    relation
        What the guarantee compares, ``"add_remove"`` or ``"replace"``.
    insecure_seed
        For tests only: the noise can be computed from it.

    Attributes
    ----------
    components_, explained_variance_
        The directions and the variances along them, of features scaled to [-1, 1].
    mean_, covariance_, count_
        The release that they are computed from.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(0.0, [[3.0, 0.3]], (5000, 2))
    >>> model = PrivatePCA(n_components=1, epsilon=1.0, bounds=(-10.0, 10.0), expected_rows=5000)
    >>> direction = model.fit(X).components_[0]
    >>> bool(abs(direction[0]) > 0.95), model.transform(X[:3]).shape
    (True, (3, 1))

    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        bounds: Any = None,
        feature_norm: float | None = None,
        expected_rows: int | None = None,
        rows_per_person: int | None = None,
        n_components: int | None = None,
        relation: Relation | str = "add_remove",
        schema: Schema | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.feature_norm = feature_norm
        self.expected_rows = expected_rows
        self.rows_per_person = rows_per_person
        self.n_components = n_components
        self.relation = relation
        self.schema = schema
        self.insecure_seed = insecure_seed

    def _plan(self, declared: Declared) -> SumsPlan:
        if self.n_components is not None:
            width = declared.features
            _validate.integer("n_components", self.n_components, at_least=1, at_most=width)
        return super()._plan(declared)

    def _learn(
        self, plan: SumsPlan, rows: Rows, source: Source, track: Track
    ) -> dict[str, NDArray[Any]]:
        return self._moments(plan, self._scaled_rows(rows.all().features), source)

    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.count_, self.mean_ = float(arrays["count"]), arrays["mean"]
        self.covariance_ = arrays["covariance"]
        width = self._facts.features
        if self.mean_.shape != (width,) or self.covariance_.shape != (width, width):
            raise SchemaError("a saved model has moments of another shape")
        values, vectors = np.linalg.eigh(self.covariance_)
        kept = slice(None, -(self.n_components or width) - 1, -1)
        self.explained_variance_ = np.maximum(values[kept], 0.0)
        self.components_ = vectors.T[kept]

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return rows in the released directions, around the released mean."""
        return np.asarray((self._centred_rows(X) - self.mean_) @ self.components_.T)


@final
class PrivateKMeans(TransformerMixin, ClusterMixin, _FromSums):  # type: ignore[misc]
    """Private k-means: the centres of groups, with noisy counts.

    **Guarantee.** The fitted model is (epsilon, delta)-DP under ``relation`` for one row, or for a
    person with at most ``rows_per_person`` rows (:mod:`discreet.learn._unsupervised`).

    Parameters
    ----------
    n_clusters
        How many centres, at most 256.
    epsilon, delta, schema, bounds, feature_norm, expected_rows, rows_per_person
        As for :class:`PrivatePCA`.
    relation, insecure_seed
        As for :class:`PrivatePCA`.

    Attributes
    ----------
    cluster_centers_
        The centres, of features scaled to [-1, 1].
    counts_
        About how many rows are nearest to each, from noisy counts.

    >>> X = [[1.0, 1.0], [9.0, 9.0], [1.0, 2.0], [9.0, 8.0]] * 1000
    >>> model = PrivateKMeans(n_clusters=2, epsilon=2.0, bounds=(0.0, 10.0), expected_rows=4000)
    >>> one, other, alike, _ = model.fit(X).predict(X[:4])
    >>> bool(one == alike != other), model.certificate_.epsilon <= 2.0
    (True, True)

    """

    def __init__(
        self,
        *,
        n_clusters: int = 8,
        epsilon: float = 1.0,
        delta: float | None = None,
        bounds: Any = None,
        feature_norm: float | None = None,
        expected_rows: int | None = None,
        rows_per_person: int | None = None,
        relation: Relation | str = "add_remove",
        schema: Schema | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.feature_norm = feature_norm
        self.expected_rows = expected_rows
        self.rows_per_person = rows_per_person
        self.relation = relation
        self.schema = schema
        self.insecure_seed = insecure_seed

    def _centres(self) -> int:
        count: int = _validate.integer("n_clusters", self.n_clusters, at_least=1, at_most=256)
        return count

    def _learn(
        self, plan: SumsPlan, rows: Rows, source: Source, track: Track
    ) -> dict[str, NDArray[Any]]:
        raw = self._scaled_rows(rows.all().features)
        known = self._moments(plan, raw, source)
        coins = np.random.default_rng(source.bits(128))  # noqa: TID251 - of no record
        values, vectors = np.linalg.eigh(known["covariance"])
        root = vectors * np.sqrt(np.maximum(values, 1e-6))
        drawn = coins.standard_normal((plan.most_centres, plan.features)) @ root.T
        centres = np.clip(known["mean"] + drawn, -1.0, 1.0)
        counts = np.full(len(centres), 1.0)
        for number in track(range(plan.rounds)):
            if number == _EARLY_ROUNDS:
                weights = np.maximum(counts, 1e-3 * float(max(counts.max(), 1.0)))
                seed = int(coins.integers(1 << 31))
                wanted = KMeans(plan.centres, n_init=20, random_state=seed)
                with warnings.catch_warnings(action="ignore"):
                    centres = wanted.fit(centres, sample_weight=weights).cluster_centers_
            centres, counts = self._move(plan, raw, centres, source)
        return {"centres": centres, "counts": counts}

    @staticmethod
    def _move(
        plan: SumsPlan, raw: NDArray[Any], centres: NDArray[np.float64], source: Source
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Release the sums by centre; return the new centres, and their noisy counts."""
        steps = np.rint(np.clip(centres, -1.0, 1.0) * RAW_STEPS)
        places = nearest(raw[:, :-1], steps)
        noisy = gaussian_integers(
            sums_by_centre(raw, places, len(steps)),
            sensitivity=Fraction(plan.sum_shift),
            stddev=plan.sum_stddev,
            relation=plan.relation,
            source=source,
        ).value.astype(np.float64)
        noisy /= RAW_STEPS
        # A centre of few rows stays where it was, as far as the noise is larger than they are.
        pull = plan.sum_stddev / RAW_STEPS
        counts = np.maximum(noisy[:, -1], 0.0)
        moved = (noisy[:, :-1] + pull * centres) / (counts + pull)[:, None]
        moved = np.where((noisy[:, -1] > 0.0)[:, None], moved, centres)
        return np.clip(moved, -1.0, 1.0), counts

    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.cluster_centers_, self.counts_ = arrays["centres"], arrays["counts"]
        shape = (self.plan_.centres, self._facts.features)
        if self.cluster_centers_.shape != shape or self.counts_.shape != shape[:1]:
            raise SchemaError("a saved model has centres of another number or width")

    def fit_predict(self, X: Any, y: Any = None, **options: Any) -> NDArray[np.int64]:
        """Fit, and return the nearest centre of each row, for whoever may see the rows themselves.

        The guarantee is about the centres: what is returned of a row is as private as the row.
        """
        del y
        return self.fit(X, **options).predict(X)

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Return the number of the nearest centre of each row."""
        steps = np.rint(self._centred_rows(X) * RAW_STEPS)
        return nearest(steps, np.rint(self.cluster_centers_ * RAW_STEPS))

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return the distance of each row to each centre, of features scaled to [-1, 1]."""
        rows = self._centred_rows(X)
        apart = rows[:, None, :] - self.cluster_centers_[None]
        return np.asarray(np.sqrt(np.einsum("ijk,ijk->ij", apart, apart)))
