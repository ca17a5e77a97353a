"""The matrix of shadow scores that every shadow attack reads.

``log_probabilities[j]`` is (n, classes), what shadow model j says about every record of the
pool, in single precision: the relative error of 6e-8 is far below the spread between models.
``inclusion[j]`` says which records j was trained on.

Whose records a shadow model was trained on is known, so attacks and their settings can be tried on
it, with the other shadow models as references (:func:`trials`, :func:`strength`). What is chosen so
has not seen the target: its figures on the target are as honest as if it had been named beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy.special import gammaln

from discreet import _validate
from discreet.attacks import _signals as signals
from discreet.attacks._observation import Observation
from discreet.attacks._records import comparable_digests
from discreet.attacks._roc import roc_curve
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray


# A model that divides the records in common as the target does is its twin if chance does so with
# at most this probability. Otherwise whether it is one cannot be decided, and leaving out what only
# looks like one would tell the truth. For random halves 40 records in common suffice: two in
# C(40, 20) ways to halve them is less than this, and to halve more records with these is less.
_TWIN_CHANCE = 2.0**-36
TWIN_RECORDS = 40


@final
@dataclass(frozen=True, eq=False)
class AlignedScores:
    """A signal of the target and of its reference models on the same records.

    ``shadow`` and ``inclusion`` are (models, n); ``target`` is (n,).
    """

    target: NDArray[np.float64]
    shadow: NDArray[np.float64]
    inclusion: NDArray[np.bool_]


@final
@dataclass(frozen=True, eq=False)
class ShadowScores:
    """Scores of all shadow models on all records of the pool."""

    log_probabilities: Sequence[NDArray[np.float32]]
    inclusion: NDArray[np.bool_]
    labels: NDArray[np.int64]
    digests: NDArray[np.uint64]
    records: Any = None

    def __post_init__(self) -> None:
        shape = (len(self.log_probabilities), len(self.labels))
        if self.inclusion.shape != shape:
            raise InvalidValue("inclusion", f"shape {self.inclusion.shape}", f"shape {shape}")

    def __len__(self) -> int:
        return len(self.log_probabilities)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.log_probabilities[0].shape[1])

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """All probabilities at once, (models, n, classes)."""
        return np.exp(
            np.stack([np.asarray(part, dtype=np.float64) for part in self.log_probabilities])
        )

    @cached_property
    def losses(self) -> NDArray[np.float64]:
        """Cross-entropy, (models, n)."""
        return np.stack([signals.loss(part, self.labels) for part in self.log_probabilities])

    @cached_property
    def confidences(self) -> NDArray[np.float64]:
        """Probability of the true class, (models, n)."""
        return np.stack([signals.confidence(part, self.labels) for part in self.log_probabilities])

    def scaled_logits(self, *, limit: float = signals.RESOLUTION) -> NDArray[np.float64]:
        """Return log(p / (1 - p)) of the true class, (models, n)."""
        if limit > signals.RESOLUTION:
            return self._logits(limit)
        return np.clip(self._scaled_logits, -limit, limit)

    @cached_property
    def _scaled_logits(self) -> NDArray[np.float64]:
        return self._logits(signals.RESOLUTION)

    def _logits(self, limit: float) -> NDArray[np.float64]:
        return np.stack(
            [
                signals.scaled_logit(part, self.labels, limit=limit)
                for part in self.log_probabilities
            ]
        )

    def without(self, row: int) -> ShadowScores:
        """Return the others: neither model ``row`` nor any twin of it.

        A twin was trained on the same records, or on exactly the other ones. A complementary
        twin is *not* an innocent reference: it is out where the target is in, and taken as
        evidence it turns the attack around. Near twins, trained on all but a few of the same
        records, are not recognized: draw halves independently, as a pool does.
        """
        place = _validate.integer("row", row, at_least=0, at_most=len(self) - 1)
        keep = ~find_twins(self.inclusion, self.inclusion[place])
        keep[place] = False
        return self._rows(np.flatnonzero(keep))

    def leave_out(self, row: int) -> tuple[Observation, ShadowScores]:
        """Return model ``row`` as the target, and the others as its references."""
        others = self.without(row)
        seen = Observation(
            np.asarray(self.log_probabilities[row], dtype=np.float64),
            self.labels,
            self.inclusion[row],
            self.digests,
            self.records,
        )
        return seen, others

    def _rows(self, keep: NDArray[np.intp]) -> ShadowScores:
        rest = ShadowScores(
            [self.log_probabilities[place] for place in keep],
            self.inclusion[keep],
            self.labels,
            self.digests,
            self.records,
        )
        # What has been computed for the whole pool is not computed again for a part of it.
        for name in ("losses", "confidences", "_scaled_logits"):
            if name in vars(self):
                vars(rest)[name] = vars(self)[name][keep]
        return rest

    def places(self, observation: Observation) -> NDArray[np.intp]:
        """Return the number in the pool of every observed record.

        Raises where a record is not in the pool, or is there twice, so that it is not clear which
        one is meant.
        """
        known, asked = comparable_digests(self, observation)
        if np.array_equal(asked, known):
            return np.arange(len(known))
        order = np.argsort(known, kind="stable")
        ordered = known[order]
        left = np.searchsorted(ordered, asked, side="left")
        right = np.searchsorted(ordered, asked, side="right")
        found = right - left
        missing, doubled = int((found == 0).sum()), int((found > 1).sum())
        if missing:
            raise InvalidValue(
                "observation",
                f"{missing} records that are not in the shadow pool",
                "records of the pool, with the same labels",
            )
        if doubled:
            raise InvalidValue(
                "observation",
                f"{doubled} records that are in the shadow pool more than once",
                "the pool's records in the pool's order, or records without copies",
            )
        return order[left]

    def align(
        self, observation: Observation, *, signal: str, limit: float = signals.RESOLUTION
    ) -> AlignedScores:
        """Return a signal of the target beside that of the references, record by record.

        ``signal`` is ``"scaled_logit"``, ``"confidence"`` or ``"loss"``. Shadow models that
        are twins of the target (trained on the same of these records, or on exactly the
        others) are left out; see :meth:`apart_from`.
        """
        _validate.one_of("signal", signal, ("scaled_logit", "confidence", "loss"))
        if observation.classes != self.classes:
            raise InvalidValue(
                "observation", f"{observation.classes} classes", f"{self.classes}, as the shadows"
            )
        place = self.places(observation)
        inclusion = self.inclusion[:, place]
        keep = np.flatnonzero(~self._twins_of(observation))
        if not keep.size:
            raise InvalidValue("shadows", "no model but twins of the target", "other models")
        if signal == "scaled_logit":
            own, matrix = observation.scaled_logits(limit=limit), self.scaled_logits(limit=limit)
        elif signal == "confidence":
            own, matrix = observation.confidences, self.confidences
        else:
            own, matrix = observation.losses, self.losses
        return AlignedScores(own, matrix[np.ix_(keep, place)], inclusion[keep])

    def apart_from(self, observation: Observation) -> ShadowScores:
        """Return the models that are not twins of the target on the records in common.

        For attacks that learn from the shadow models as a whole, over any records. A twin has
        all members in common inside and all other records in common outside, or exactly the
        other way round; it is recognized even if only members, or only non-members, are in the
        pool. Copies of a record are counted: a twin has as many of them inside. A model that
        divides the records so, where a random training set of its size would do it with a
        probability above 2**-36, may be a twin or may not, and is refused unless the pool lacks
        members of the target, so that it cannot be one; with halves, 40 records in common are
        enough. Near twins, trained on all but a few of the target's
        records, are not recognized.
        """
        twins = self._twins_of(observation)
        if twins.all():
            raise InvalidValue("shadows", "no model but twins of the target", "other models")
        return self._rows(np.flatnonzero(~twins)) if twins.any() else self

    def _twins_of(self, observation: Observation) -> NDArray[np.bool_]:
        """Which models were trained on the target's records, or exactly on the others."""
        known, asked = comparable_digests(self, observation)
        ours, copies, inside = _counts(known, self.inclusion)
        theirs, seen, members = _counts(asked, observation.members[None])
        _, here, there = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
        # Of a record that is here more often than there, it is not known which copies were meant.
        same = copies[here] == seen[there]
        here, there = here[same], there[same]
        total, wanted = copies[here], members[0, there]
        if not here.size:
            return np.zeros(len(self), dtype=bool)
        found = inside[:, here]
        twins = (found == wanted).all(axis=1) | (found == total - wanted).all(axis=1)
        sizes = self.inclusion.sum(axis=1)
        # A pool that lacks some of the target's records has no model that was trained on them.
        elsewhere = not np.isin(asked[observation.members], known).all()
        for row in np.flatnonzero(twins):
            if _chance_to_divide(len(self.labels), sizes[row], total, found[row]) > _TWIN_CHANCE:
                if elsewhere:
                    twins[row] = False
                    continue
                raise InvalidValue(
                    "shadows",
                    f"a model that divides all {len(here)} records in common as the target does",
                    f"more records in common ({TWIN_RECORDS} where models have halves), to tell a "
                    "twin of the target from chance, or models that divide them otherwise",
                )
        return np.asarray(twins)


def _chance_to_divide(
    population: int, size: int, total: NDArray[np.int64], inside: NDArray[np.int64]
) -> float:
    """The probability that a random set of ``size`` has these copies of each inside, or outside.

    Of the C(population, size) sets, C(total_i, inside_i) for every record i in common, times
    those that fill up with records not in common, do; there are two ways round.
    """
    rest, places = population - int(total.sum()), int(size) - int(inside.sum())
    ways = _log_choose(total, inside).sum() + _log_choose(rest, places)
    return float(2 * np.exp(ways - _log_choose(population, size)))


def _log_choose(count: Any, chosen: Any) -> Any:
    return gammaln(count + 1.0) - gammaln(chosen + 1.0) - gammaln(count - chosen + 1.0)


def find_twins(inclusion: NDArray[np.bool_], members: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which rows divide the records as ``members`` does, or exactly the other way round."""
    if inclusion.shape[1] < TWIN_RECORDS or members.all() or not members.any():
        return np.zeros(len(inclusion), dtype=bool)
    agreement = (inclusion == members).sum(axis=1)
    return np.asarray((agreement == 0) | (agreement == inclusion.shape[1]))


def _counts(
    digests: NDArray[np.uint64], inclusion: NDArray[np.bool_]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the different records, how often each is there, and how often inside, by model."""
    order = np.argsort(digests, kind="stable")
    known, first, copies = np.unique(digests[order], return_index=True, return_counts=True)
    if not len(known):
        return known, copies, np.zeros((len(inclusion), 0), dtype=np.int64)
    return known, copies, np.add.reduceat(inclusion[:, order].astype(np.int64), first, axis=1)


def count_models(
    kind: str, used: NDArray[np.bool_], *, needed: int = 1, largest: int = 1
) -> NDArray[np.int64]:
    """Count the models of each record; raise if one has too few, or none has ``largest``."""
    count = used.sum(axis=0)
    fewest = int(count.min())
    if fewest < needed or int(count.max()) < largest:
        raise InvalidValue(
            "shadows",
            f"{len(used)} models, of which a record has only {fewest} {kind} it",
            f"at least {needed} models {kind} each record: train more shadow models",
        )
    return np.asarray(count)


# --- shadow models in the place of the target --------------------------------------------------

# A shadow model as the target, with its references, and which records it was trained on.
Trial = tuple[AlignedScores, "NDArray[np.bool_]"]

TRIED_FPR = 0.01
# Enough for some 8,000 non-members, of which 80 are accused.
_TARGETS, _RECORDS = 8, 2000


def trials(both: AlignedScores, *, fewest: int) -> list[Trial]:
    """Return trials on some of the references, spread evenly over models and records.

    A model's twins are not among its references. Records that fewer than ``fewest`` of these have
    inside, or outside, are left out; there may be no trial at all.
    """
    models, count = both.shadow.shape
    columns = _spread(count, _RECORDS)
    found = []
    for row in _spread(models, _TARGETS):
        members = both.inclusion[row]
        alike = (both.inclusion == members).sum(axis=1)
        rest = np.flatnonzero((alike > 0) & (alike < count))
        inside = both.inclusion[np.ix_(rest, columns)].sum(axis=0)
        here = columns[np.minimum(inside, len(rest) - inside) >= fewest]
        truth = members[here]
        if truth.any() and not truth.all():
            part = np.ix_(rest, here)
            scores = AlignedScores(both.shadow[row, here], both.shadow[part], both.inclusion[part])
            found.append((scores, truth))
    return found


def strength(
    attack: Callable[[AlignedScores], NDArray[np.float64]], tried: Sequence[Trial]
) -> float:
    """Return the share of members that an attack finds in all trials at 1 % of false positives."""
    scores = np.concatenate([attack(both) for both, _ in tried])
    truth = np.concatenate([members for _, members in tried])
    curve = roc_curve(scores[truth], scores[~truth])
    return float(curve.at(max(TRIED_FPR, curve.smallest_fpr)).tpr.share)


def _spread(count: int, most: int) -> NDArray[np.intp]:
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.intp))
