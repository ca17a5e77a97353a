"""Synthetic pictures from noisy moments: a mixture of Gaussians for each class, and no network.

Five Gaussian releases about codes of pictures (:mod:`discreet.synth._image_codes`):

1. the mean of all codes;
2. their second moments, for the directions in which they differ most (Dwork and others 2014);
3. in these directions, the mean of each class;
4. a few rounds of k-means inside each class;
5. the second moments around the centres, of each class.

A record is in one class and one cluster, so its part of each release is one vector, whose length is
clipped. All parts are integers, the noise is the discrete Gaussian, and the squares of the shares
add up: the whole is one Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.certificate import Certificate
from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.learn import charged, stated_unit
from discreet.mechanisms import gaussian_integers
from discreet.privacy import GDP
from discreet.privacy.theorems import discrete_gaussian_mu, gaussian_mu
from discreet.randomness import NormalStream
from discreet.randomness import source as random_source
from discreet.synth._image_codes import UNIT, ImageCode, read_labels, read_pictures
from discreet.synth._model import finish
from discreet.synth._released import Released, sheet

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.ledger import Ledger
    from discreet.randomness import Source

_LARGEST = 64
_MOST = 1 << 62
_FARTHEST = 1 << 20
_TRIES = 60
_SHARES = (0.02, 0.2, 0.07, 0.21, 0.5)
_ROUNDS = 3
# Where parts are clipped: codes, those around their mean, in the directions, and around centres.
_LENGTHS = (12.0, 8.0, 7.5, 5.0)
_COUNTED = 0.5  # how much a record counts in its number, as a part of the clipped length
_SIDE = 5, 7  # what diagonal and other second moments count: 7 / 5 is below sqrt(2)
_TURN = 1 << 12
_POOLED, _FLOOR, _SPREAD = 0.3, 0.01, 0.4


@final
@dataclass(frozen=True)
class ImagePlan:
    """What a synthesis of pictures will do and cost; made by :class:`Images`."""

    classes: tuple[Any, ...]
    shape: tuple[int, int]
    epsilon: float
    delta: float
    directions: int
    clusters: int
    kept: int
    mu: float

    @property
    def code(self) -> ImageCode:
        """How pictures are written as numbers."""
        return ImageCode(*self.shape, self.kept)

    @property
    def loss(self) -> GDP:
        """What the whole synthesis reveals about one picture: one Gaussian."""
        parts = [
            _certify(self._stddev(at), shift, changed) * math.sqrt(times)
            for at, (shift, changed, times) in enumerate(self._shifts())
        ]
        return GDP(math.hypot(*parts) * (1.0 + 2.0**-40))

    def _shifts(self) -> list[tuple[float, int, int]]:
        """Return for each release its sensitivity in steps, the cells it moves, and its rounds."""
        whole, around, inside, near = (UNIT * one for one in _LENGTHS)
        size, few = self.code.size, self.directions
        both = math.hypot(1.0, _COUNTED) * (1.0 + 2.0**-40)
        counted = inside * both
        return [
            (whole * both, size + 1, 1),
            (_SIDE[0] * around**2, size * (size + 1) // 2, 1),
            (counted, few + 1, 1),
            (counted, few + 1, _ROUNDS),
            (_SIDE[0] * near**2, few * (few + 1) // 2, 1),
        ]

    def _stddev(self, at: int) -> float:
        shift, _, times = self._shifts()[at]
        return shift / (self.mu * math.sqrt(_SHARES[at] / times))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            "method": "images",
            "classes": list(self.classes),
            "shape": list(self.shape),
            "target_epsilon": self.epsilon,
            "target_delta": self.delta,
            "directions": self.directions,
            "clusters": self.clusters,
            "kept": self.kept,
            "mu": self.mu,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ImagePlan:
        """Return what :meth:`to_json` wrote; a damaged document raises SchemaError."""
        try:
            height, width = document["shape"]
            return cls(
                tuple(document["classes"]),
                (int(height), int(width)),
                float(document["target_epsilon"]),
                float(document["target_delta"]),
                int(document["directions"]),
                int(document["clusters"]),
                int(document["kept"]),
                float(_validate.real("mu", document["mu"], above=0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"the plan of a synthesis cannot be read: {error}") from None

    def run(
        self,
        pictures: Any,
        labels: Any,
        *,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        unit: str | None = None,
        insecure_seed: int | None = None,
    ) -> ImageModel:
        """Charge, read and release the model of labelled pictures.

        Parameters
        ----------
        pictures
            An array (pictures, height, width) of bytes, or of numbers from 0 to 1.
        labels
            One label each; pictures with another one than the classes are left out. What is or
            spells a class is that class: 1, 1.0 and "1" are the same.
        ledger, dataset
            The ledger to charge, and the dataset in it.
        unit
            Whom the guarantee protects, where the ledger has another word than row.
        insecure_seed
            For tests only: the noise can be computed from it.

        Returns
        -------
        ImageModel
            The released model with its certificate.

        Raises
        ------
        InvalidValue
            If shapes do not fit; nothing was charged.
        BudgetExceeded
            If the budget is too small; nothing was charged.

        """
        read = read_pictures("pictures", pictures)
        if read.shape[1:] != self.shape:
            raise InvalidValue("pictures", f"shape {read.shape}", f"pictures of {self.shape}")
        kind = read_labels(labels, self.classes, len(read))
        stated, bits = stated_unit(unit, persons=False), random_source(insecure_seed=insecure_seed)
        with charged(
            ledger,
            dataset,
            loss=self.loss,
            delta=self.delta,
            purpose="synthesis of pictures",
            unit=stated,
        ) as charge:
            model = _Run(self, bits).learn(read, kind)
            certificate = Certificate.of(
                self.loss,
                delta=self.delta,
                learner="ImageModel",
                plan={**self.to_json(), "unit": stated},
                run={"noisy_pictures": round(model.total)},
                unit=stated,
                randomness=bits.provenance,
            )
            return finish(model, certificate, charge)


@final
@dataclass(frozen=True)
class Images:
    """Synthetic pictures by noisy moments.

    Parameters
    ----------
    directions
        In how many directions pictures differ; by default 32, and fewer for a small budget.
    clusters
        How many Gaussians a class has.
    kept
        How many low frequencies are kept, in each of the two axes.

    """

    directions: int | None = None
    clusters: int = 6
    kept: int = 12

    def plan(
        self,
        classes: Sequence[Any],
        *,
        shape: tuple[int, int] = (28, 28),
        epsilon: float,
        delta: float,
    ) -> ImagePlan:
        """Return the plan for pictures of some classes; nothing is read.

        Parameters
        ----------
        classes
            All labels that there are: texts or whole numbers.
        shape
            Height and width of a picture.
        epsilon, delta
            The budget, for adding or removing one picture.

        Returns
        -------
        ImagePlan
            Its ``loss`` is one Gaussian.

        Raises
        ------
        InvalidValue
            If a parameter does not do.

        """
        names = tuple(one.item() if isinstance(one, np.generic) else one for one in classes)
        if not names or len(set(names)) < len(names) or not _are_labels(names):
            raise InvalidValue("classes", list(names), "different texts or whole numbers")
        given: Any = shape
        if not isinstance(given, list | tuple) or len(given) != 2:
            raise InvalidValue("shape", shape, "the height and the width of a picture")
        height, width = (_validate.integer("shape", one, at_least=2) for one in shape)
        if max(height, width) > _LARGEST:
            raise InvalidValue("shape", shape, f"at most {_LARGEST} pixels high and wide")
        kept = _validate.integer("kept", self.kept, at_least=1, at_most=_LARGEST)
        clusters = _validate.integer("clusters", self.clusters, at_least=1, at_most=256)
        target = _validate.real("epsilon", epsilon, above=0)
        point = _validate.real("delta", delta, above=0, below=1)
        mu = gaussian_mu(target, point)
        usual = max(4, min(40, round(32 * min(1.0, mu / 0.25) ** 0.5)))
        size = ImageCode(height, width, kept).size
        few = min(size, usual if self.directions is None else self.directions)
        _validate.integer("directions", few, at_least=1, at_most=256)
        for attempt in range(_TRIES):
            plan = ImagePlan(names, (height, width), target, point, few, clusters, kept, mu)
            if plan.loss.epsilon(delta=point) <= target:
                return plan
            mu *= 1.0 - 2.0 ** (attempt - 44)
        raise NotApplicable(f"no Gaussian noise was certified for epsilon {epsilon!r}")


def _are_labels(names: Sequence[Any]) -> bool:
    return all(isinstance(one, str) and one for one in names) or all(
        isinstance(one, int) and not isinstance(one, bool) and abs(one) <= 1 << 53 for one in names
    )


def _certify(stddev: float, shift: float, changed: int) -> float:
    mu = discrete_gaussian_mu(stddev, shift, coordinates=changed)
    if mu is None:
        expected = "a smaller epsilon, with noise of more than one step"
        raise InvalidValue("epsilon", f"noise of {stddev:.2g} steps", expected)
    return mu


@final
class _Run:
    """The releases of one run; what is not noisy stays in here."""

    def __init__(self, plan: ImagePlan, bits: Source) -> None:
        self.plan = plan
        self.bits = bits

    def learn(self, pictures: NDArray[np.uint8], kind: NDArray[np.int64]) -> ImageModel:
        """Return the model, without its certificate; ``kind`` has the places of the classes."""
        plan, few = self.plan, self.plan.directions
        count, clusters = len(plan.classes), plan.clusters
        codes = plan.code.encode(pictures[kind >= 0])
        kind = kind[kind >= 0]
        whole, around, inside, near = (UNIT * one for one in _LENGTHS)
        sums, counts = self._sums(0, _clip(codes, whole), np.zeros_like(kind), 1, whole)
        mean = _limit(sums[0] / counts[0])
        second = self._second(1, [_clip(codes - mean, around)])[0]
        _, turned = np.linalg.eigh(second)
        turn = np.rint(turned[:, ::-1][:, :few] * _TURN)
        parts = _clip(np.trunc(_clip(codes - mean, around) @ turn / _TURN), inside)
        sums, counts = self._sums(2, parts, kind, count, inside)
        means = sums / counts[:, None]
        spread = np.sqrt(np.maximum((turn * (second @ turn)).sum(axis=0), 0.0) / _TURN**2)
        spread /= math.sqrt(max(1.0, counts.sum()))
        start = NormalStream(source=self.bits).array((count * clusters, few))
        centres = np.repeat(means, clusters, axis=0) + _SPREAD * spread * start
        for _ in range(_ROUNDS):
            nearest = _assign(parts, kind, centres, clusters)
            sums, counts = self._sums(3, parts, nearest, count * clusters, inside)
            centres = self._shrunk(sums / counts[:, None], counts, means)
        centres = _limit(centres)
        nearest = _assign(parts, kind, centres, clusters)
        rest = _clip(parts - centres[nearest], near)
        moments = self._second(4, [rest[kind == one] for one in range(count)])
        weights = counts.reshape(count, clusters)
        sizes = weights.sum(axis=1)
        pooled = moments.sum(axis=0) / sizes.sum()
        factors = []
        for one in range(count):
            mixed = (1.0 - _POOLED) * moments[one] / sizes[one] + _POOLED * pooled
            values, vectors = np.linalg.eigh(mixed)
            factors.append(vectors * np.sqrt(np.maximum(values, _FLOOR * UNIT**2)))
        return ImageModel(
            plan=plan,
            total=float(sizes.sum()),
            mean=mean,
            turn=turn / _TURN,
            centres=centres.reshape(count, clusters, few),
            weights=weights,
            factors=np.stack(factors),
        )

    def _add(self, at: int, exact: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a release: integers with the noise that is due."""
        shift, changed, _ = self.plan._shifts()[at]
        released = gaussian_integers(
            np.clip(exact.ravel(), -_MOST, _MOST).astype(np.int64),
            sensitivity=Fraction(shift),
            changed=min(changed, exact.size),
            stddev=self.plan._stddev(at),
            source=self.bits,
        )
        return np.asarray(released.value, dtype=np.float64).reshape(exact.shape)

    def _sums(
        self,
        at: int,
        parts: NDArray[np.float64],
        cell: NDArray[np.int64],
        cells: int,
        length: float,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return noisy sums of the records of each cell, and their noisy numbers, at least 1."""
        unit = math.floor(_COUNTED * length)
        columns = [np.bincount(cell, weights=one, minlength=cells) for one in parts.T]
        number = np.bincount(cell, minlength=cells).astype(np.float64) * unit
        noisy = self._add(at, np.stack([*columns, number], axis=1))
        return noisy[:, :-1], np.maximum(1.0, noisy[:, -1] / unit)

    def _second(self, at: int, groups: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return noisy sums of the second moments of each group of records."""
        size = groups[0].shape[1]
        rows, columns = np.triu_indices(size)
        side = np.where(rows == columns, *_SIDE).astype(np.float64)
        exact = np.stack([(one.T @ one)[rows, columns] * side for one in groups])
        noisy = self._add(at, exact) / side
        found = np.zeros((len(groups), size, size))
        found[:, rows, columns] = noisy
        found[:, columns, rows] = noisy
        return found

    def _shrunk(
        self, centres: NDArray[np.float64], counts: NDArray[np.float64], means: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return centres drawn towards the mean of their class, by how much of them is noise."""
        home = np.repeat(means, self.plan.clusters, axis=0)
        noise = (self.plan._stddev(3) / counts) ** 2 * centres.shape[1]
        apart = ((centres - home) ** 2).sum(axis=1)
        real = np.maximum(apart - noise, 0.1 * UNIT**2)
        return np.asarray(home + (real / (real + noise))[:, None] * (centres - home))


def _clip(codes: NDArray[np.float64], length: float) -> NDArray[np.float64]:
    """Return integers whose rows are at most ``length`` long, each by its own row alone."""
    square = (codes * codes).sum(axis=1)  # of integers, exact
    factor = np.minimum(1.0, length / np.sqrt(np.maximum(square, 1.0)))
    short = np.trunc(codes * factor[:, None])
    # The factor is rounded, and may leave a row a little too long.
    fits = (short * short).sum(axis=1) <= length * length
    return np.asarray(np.where(fits[:, None], short, np.trunc(short * (1.0 - 2.0**-20))))


def _limit(noisy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return integers so small that all that is computed with them, record by record, is exact."""
    return np.rint(np.clip(noisy, -_FARTHEST, _FARTHEST))


def _assign(
    parts: NDArray[np.float64],
    kind: NDArray[np.int64],
    centres: NDArray[np.float64],
    clusters: int,
) -> NDArray[np.int64]:
    """Return the nearest centre of the own class, by distances in whole steps."""
    own = _limit(centres).reshape(-1, clusters, parts.shape[1])
    found = np.empty(len(parts), dtype=np.int64)
    for one in range(len(own)):
        rows = np.flatnonzero(kind == one)
        squares = (own[one] ** 2).sum(axis=1)
        nearest = np.argmin(squares - 2.0 * (parts[rows] @ own[one].T), axis=1)
        found[rows] = one * clusters + nearest
    return found


@final
@dataclass(frozen=True, eq=False)
class ImageModel(Released):
    """A distribution over labelled pictures, learned privately; made by ``ImagePlan.run``."""

    plan: ImagePlan
    total: float
    mean: NDArray[np.float64]
    turn: NDArray[np.float64]
    centres: NDArray[np.float64]
    weights: NDArray[np.float64]
    factors: NDArray[np.float64]
    certificate: Certificate | None = None
    schema = None

    def sample(
        self, n: int | None = None, *, label: Any = None, seed: int | None = None
    ) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Return synthetic pictures and their labels; it costs nothing, however often.

        Parameters
        ----------
        n
            How many; by default the noisy number of pictures.
        label
            The class of all of them; all classes by default, as often as they are.
        seed
            Makes the pictures repeatable. The model is public, so this hides nothing.

        Returns
        -------
        tuple of arrays
            Pictures (n, height, width) of values from 0 to 1, and labels.

        Raises
        ------
        InvalidValue
            If the label is none of the classes.

        """
        count = _validate.integer("n", round(self.total) if n is None else n, at_least=0)
        if label is not None and label not in self.plan.classes:
            raise InvalidValue("label", label, f"one of {list(self.plan.classes)}")
        bits = random_source(insecure_seed=seed)
        weights = self.weights.copy()
        if label is not None:
            weights[[one != label for one in self.plan.classes]] = 0.0
        shares = np.cumsum(weights.ravel() / weights.sum())
        uniform = (bits.words64(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        cell = np.minimum(np.searchsorted(shares, uniform, side="right"), shares.size - 1)
        kind, few = cell // self.plan.clusters, self.plan.directions
        normals = NormalStream(source=bits).array((count, few))
        parts = self.centres.reshape(-1, few)[cell]
        for one in range(len(self.plan.classes)):
            rows = kind == one
            parts[rows] += normals[rows] @ self.factors[one].T
        pictures = self.plan.code.decode(parts @ self.turn.T + self.mean)
        return pictures, np.array(self.plan.classes)[kind]

    def grid(self, each: int = 10, *, seed: int | None = None) -> NDArray[np.float64]:
        """Return one picture of samples to look at: a row for each class."""
        return sheet(self, self.plan.classes, each, seed)

    def _contents(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the head and the arrays of the file."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return {"plan": self.plan.to_json(), "total": self.total}, arrays

    @classmethod
    def _restore(cls, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> ImageModel:
        plan = ImagePlan.from_json(head["plan"])
        count, few = len(plan.classes), plan.directions
        sizes = [(plan.code.size,), (plan.code.size, few), (count, plan.clusters, few)]
        sizes += [(count, plan.clusters), (count, few, few)]
        if [arrays[name].shape for name in _ARRAYS] != sizes:
            raise ValueError("its arrays are not those of its plan")
        held: dict[str, Any] = {name: arrays[name] for name in _ARRAYS}
        return cls(plan, float(head["total"]), **held)

    @classmethod
    def _stated_plan(cls, certificate: Certificate) -> ImagePlan:
        """Return what has the loss that a certificate's plan states, computed again."""
        return ImagePlan.from_json(certificate.plan)


_ARRAYS = ("mean", "turn", "centres", "weights", "factors")
