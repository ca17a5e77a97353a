"""The bench of defences: what each costs, and what its models still give away.

After Aerni, Zhang and Tramer (2024): many models are trained with a defence; canaries, and some
ordinary records, are in each by a coin, all others always. Every model is attacked by the others,
through the interface that the defence leaves. A defence at the output stands in front of the
undefended models; each other one trains its own. In half of the models coins are those of an
audit, so that a row also has a lower bound on epsilon.

Seeds decide everything, coins of the audit included: the attack is ours and does not look. Models
and rows are stored as they are ready, and an interrupted bench goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._cache import fingerprint
from discreet._confidence import proportion
from discreet._files import write_file
from discreet.attacks import MembershipResult, ShadowPool, seeded_generator
from discreet.audit import Inclusion, audit_one_run, one_run_epsilon
from discreet.defences._attack import attack_models, audited_models, read_signals
from discreet.defences._canaries import Canaries, Mislabelled, Planted, vary
from discreet.defences._contract import Answers, Defence, IndexedTraining, check_models
from discreet.defences._report import RATES, BenchReport, BenchRow, Leak
from discreet.errors import InvalidValue
from discreet.randomness import source as make_source

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

COPIES = 4
AUDIT_RATE = 0.05
_FORMAT = "discreet.defences.1"
# The share of the audited canaries that are called included, and as many excluded.
_GUESSED = 0.1
_MOST_MEMBERS = 1000
_SPLIT, _COINS, _PLANT, _WATCH, _COPY, _POOL, _OUTPUT = range(20, 27)


@final
@dataclass(frozen=True, eq=False)
class BenchData:
    """Records to train on, to test on, and for defenders to compare with; labels are from 0.

    ``reference`` are records that no model is trained on and that a defender has.
    """

    records: NDArray[Any]
    labels: NDArray[np.int64]
    test_records: NDArray[Any]
    test_labels: NDArray[np.int64]
    reference_records: NDArray[Any]
    reference_labels: NDArray[np.int64]

    @classmethod
    def split(
        cls, records: ArrayLike, labels: ArrayLike, *, seed: int = 0, apart: float = 0.2
    ) -> BenchData:
        """Set a share apart, half for tests, half as a reference that numbers are scaled by."""
        x, y = np.asarray(records), np.asarray(labels)
        if x.ndim < 2 or len(x) != len(y):
            shown = f"shape {x.shape} with {len(y)} labels"
            raise InvalidValue("records", shown, "an array of records, with a label for each")
        if not np.issubdtype(x.dtype, np.number) or not np.isfinite(x).all():
            raise InvalidValue("records", str(x.dtype), "finite numbers")
        if not np.issubdtype(y.dtype, np.integer) or y.min(initial=0) < 0:
            raise InvalidValue("labels", str(y.dtype), "classes from 0, as integers")
        _validate.real("apart", apart, above=0, below=1)
        order = seeded_generator(seed, _SPLIT).permutation(len(x))
        count = int(apart * len(x)) // 2
        if count < 1:
            raise InvalidValue("records", f"{len(x)} records", "more of them")
        parts = order[:count], order[count : 2 * count], order[2 * count :]
        (test, reference, rest), codes = parts, y.astype(np.int64)
        x = _scale(x.astype(np.float32), reference)
        return cls(x[rest], codes[rest], x[test], codes[test], x[reference], codes[reference])

    @property
    def classes(self) -> int:
        """How many classes there are."""
        parts = self.labels, self.test_labels, self.reference_labels
        return max(int(one.max()) for one in parts) + 1


@final
class DefenceBench:
    """Trains, attacks and audits models under each defence.

    >>> from sklearn.tree import DecisionTreeClassifier
    >>> draw = np.random.default_rng(0)
    >>> x = draw.normal(size=(700, 3))
    >>> y = (x[:, 0] > 0).astype(int)
    >>> tree = Defence("tree", "none", DecisionTreeClassifier())
    >>> bench = DefenceBench(
    ...     [tree], BenchData.split(x, y), canaries=Mislabelled(60), shadows=12, watched=60, seed=1
    ... )
    >>> row = bench.run().row("tree")
    >>> row.guarantee, row.canaries[-1].found.share > 0.05
    ('no guarantee', True)

    Parameters
    ----------
    defences : iterable of Defence
        Of which one has ``where="none"`` if any acts at the output.
    data : BenchData
        Records.
    canaries : Canaries
        For defences that have none of their own.
    shadows : int
        Models for each defence, a multiple of 4.
    watched : int, optional
        Ordinary records that are in each model by a coin; as many as canaries by default.
    cache : path, optional
        A directory for models and rows, with which an interrupted bench goes on.
    seed : int, optional
        Makes the bench repeatable; needed with a cache.
    n_jobs : int
        Processes that train.
    progress : callable, optional
        Called with a line of text whenever a row is ready.
    """

    def __init__(
        self,
        defences: Iterable[Defence],
        data: BenchData,
        canaries: Canaries | None = None,
        shadows: int = 64,
        *,
        watched: int | None = None,
        cache: str | Path | None = None,
        seed: int | None = None,
        n_jobs: int = 1,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.defences = tuple(defences)
        self._check_defences()
        if not isinstance(data, BenchData):
            raise InvalidValue("data", type(data).__name__, "BenchData, as by BenchData.split")
        self.data = data
        self.canaries: Canaries = Mislabelled() if canaries is None else canaries
        self.shadows = check_models(shadows)
        size = self.canaries.count if watched is None else watched
        self.watched = _validate.integer("watched", size, at_least=40)
        for one in (self.canaries, *(each.canaries for each in self.defences)):
            if one is not None and one.count + self.watched > len(data.records) // 2:
                shown = f"{one.count} with {self.watched} watched of {len(data.records)} records"
                raise InvalidValue("canaries", shown, "at most half of the records, together")
        if cache is not None and seed is None:
            raise InvalidValue("seed", None, "a number, so that rows in the cache are found again")
        if seed is not None:
            _validate.integer("seed", seed, at_least=0)
        self.seed = int(seeded_generator().integers(2**32)) if seed is None else seed
        self.cache = None if cache is None else Path(cache)
        self.n_jobs, self._progress = n_jobs, progress
        self._pools: dict[str, _Trained] = {}

    def _check_defences(self) -> None:
        for one in self.defences:
            if not isinstance(one, Defence):
                raise InvalidValue("defences", type(one).__name__, "Defence objects")
        names = [one.name for one in self.defences]
        if not names or len(set(names)) < len(names):
            raise InvalidValue("defences", names, "at least one, each with a name of its own")
        plain = [one.name for one in self.defences if one.where == "none"]
        if len(plain) > 1 or (not plain and any(o.where == "output" for o in self.defences)):
            expected = 'one with where="none", whose models those at the output share'
            raise InvalidValue("defences", names, expected)

    def run(self) -> BenchReport:
        """Return a row for each defence; those that are in the cache are read.

        Raises
        ------
        InvalidValue
            If a model or an answer of a defence cannot be used.
        """
        rows = []
        for defence in self.defences:
            row = self._read_row(defence)
            if row is None:
                row = self._measure(defence)
                self._store(defence, row)
            if self._progress is not None:
                shown = next(iter(row.canaries), None)
                self._progress(f"{row.defence}: accuracy {row.accuracy.share:.3f}, found {shown}")
            rows.append(row)
        return BenchReport(tuple(rows), self.seed)

    # --- what is stored ---

    def _row_file(self, defence: Defence) -> Path | None:
        if self.cache is None:
            return None
        trained = self._trainer(defence)
        texts = [_FORMAT, trained.key(), defence.key(), repr(defence.answer), repr(self.canaries)]
        texts += [repr(trained.canaries), str(self.shadows), str(self.watched), str(self.seed)]
        texts += [str(trained.models), repr(defence.loss), repr(defence.delta)]
        data = (self.data.records, self.data.labels, self.data.test_records, self.data.test_labels)
        return self.cache / "rows" / f"{fingerprint(*texts, *data)[:32]}.json"

    def _read_row(self, defence: Defence) -> BenchRow | None:
        place = self._row_file(defence)
        if place is None or not place.exists():
            return None
        return BenchRow.from_json(json.loads(place.read_text(encoding="utf-8")))

    def _store(self, defence: Defence, row: BenchRow) -> None:
        place = self._row_file(defence)
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_file(place, json.dumps(row.to_json(), indent=1) + "\n")

    # --- what is measured ---

    def _trainer(self, defence: Defence) -> Defence:
        """The defence whose models it stands in front of: itself, or none."""
        if defence.where != "output":
            return defence
        return next(one for one in self.defences if one.where == "none")

    def _measure(self, defence: Defence) -> BenchRow:
        trained = self._load_trained(self._trainer(defence))
        signals: dict[str, list[dict[str, Any]]] = {"canaries": [], "ordinary": []}
        right = np.zeros(len(self.data.test_labels))
        fitted = []
        for model, scores in enumerate(trained.answers):
            shown = self._show_answers(defence, trained, scores, model)
            for kind, part in (("canaries", trained.canary_part), ("ordinary", trained.watch_part)):
                labels = trained.asked_labels[part]
                signals[kind].append(read_signals(shown[0][:, part], labels))
            right += shown[1].argmax(axis=1) == self.data.test_labels
            own = scores[: trained.always].argmax(axis=1) == trained.pool_labels[: trained.always]
            fitted.append(own.mean())
        models = len(trained.answers)
        parts = {"canaries": trained.canary_part, "ordinary": trained.watch_part}
        outcomes = {
            kind: attack_models(
                {name: np.stack([one[name] for one in found]) for name in found[0]},
                trained.inclusion[:, parts[kind]],
                trained.names[parts[kind]],
            )
            for kind, found in signals.items()
        }
        audited, verdict = self._audit(trained, outcomes["canaries"].audited, defence)
        plan = self._trainer(defence)
        return BenchRow(
            defence=defence.name,
            where=defence.where,
            # A mean of models varies less between records than one of them: the interval holds.
            accuracy=proportion(round(float(right.sum()) / models), len(right)),
            train_accuracy=float(np.mean(fitted)),
            canaries=_leaks(outcomes["canaries"].pooled),
            ordinary=_leaks(outcomes["ordinary"].pooled),
            canary_kind=type(trained.planted_by).__name__,
            epsilon_claimed=defence.epsilon,
            epsilon_audited=audited,
            verdict=verdict,
            delta=defence.delta,
            trainings=plan.trainings,
            models=models,
            signals=tuple(str(one) for one in outcomes["canaries"].chosen),
        )

    def _show_answers(
        self, defence: Defence, trained: _Trained, scores: NDArray[np.floating], model: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What the interface says about the drawn records and their copies, and about the tests."""
        asked = np.concatenate([scores[trained.asked_from :], scores[trained.tests]])
        if defence.answer is not None:
            answers = Answers(
                asked,
                trained.asked_names,
                scores[: min(trained.always, _MOST_MEMBERS)],
                scores[trained.reference],
                _derive_seed(self.seed, _OUTPUT, model),
            )
            given = np.asarray(defence.answer(answers), dtype=np.float64)
            if given.shape != asked.shape or np.isnan(given).any():
                shown = f"shape {given.shape}"
                raise InvalidValue("answer", shown, f"log-probabilities of shape {asked.shape}")
            asked = given
        tests = len(self.data.test_labels)
        drawn = asked[:-tests].reshape(1 + COPIES, -1, asked.shape[1])
        return drawn, asked[-tests:]

    def _audit(
        self, trained: _Trained, scores: NDArray[np.float64], defence: Defence
    ) -> tuple[float, str]:
        """A lower bound on epsilon from the coins of the audited models, and what it says."""
        coins = trained.coins()
        flat = scores.reshape(-1)
        if defence.loss is not None:
            audit = audit_one_run(
                coins, flat, loss=defence.loss, delta=defence.delta, false_alarm_rate=AUDIT_RATE
            )
            return audit.epsilon_lower, audit.verdict
        bound = one_run_epsilon(
            canaries=coins.canaries,
            guesses=sum(coins.guesses),
            correct=coins.correct(flat),
            delta=defence.delta,
            rate=AUDIT_RATE,
        )
        return bound, "no claim"

    def _load_trained(self, defence: Defence) -> _Trained:
        if defence.name not in self._pools:
            # Only the undefended models are asked again, by defences at the output.
            self._pools = {
                name: pool
                for name, pool in self._pools.items()
                if self._trainer(defence).name == name or pool.undefended
            }
            self._pools[defence.name] = self._train(defence)
        return self._pools[defence.name]

    def _train(self, defence: Defence) -> _Trained:
        if self.cache is not None:
            self.cache.mkdir(parents=True, exist_ok=True)
        kind = self.canaries if defence.canaries is None else defence.canaries
        models = min(self.shadows, defence.models or self.shadows)
        layout = _lay_out(self.data, kind, self.watched, models, self.seed)
        training = IndexedTraining(defence.train, layout.pool_records, layout.pool_labels)
        key = fingerprint(_FORMAT, defence.key(), repr(kind), str(self.seed))
        pool = ShadowPool(
            layout.pool_records,
            layout.pool_labels,
            training,
            classes=self.data.classes,
            inclusion=layout.pool_inclusion,
            seed=_derive_seed(self.seed, _POOL),
            cache=None if self.cache is None else self.cache / "models",
            cache_key=None if self.cache is None else key,
            check=defence.repeats,
            n_jobs=self.n_jobs,
        )
        answers = tuple(np.asarray(one) for one in pool.run().log_probabilities)
        return replace(layout, answers=answers, undefended=defence.where == "none")


@final
@dataclass(frozen=True, eq=False)
class _Trained:
    """The records of a pool in their order, who is in which model, and what the models say.

    In the pool come the records that are always used, the watched ones, the canaries, the tests,
    the reference, and then what is asked: each watched record and canary, and changed copies of
    them.
    """

    pool_records: NDArray[Any]
    pool_labels: NDArray[np.int64]
    pool_inclusion: NDArray[np.bool_]
    inclusion: NDArray[np.bool_]
    asked_labels: NDArray[np.int64]
    names: NDArray[np.uint64]
    asked_names: NDArray[np.uint64]
    always: int
    tests: slice
    reference: slice
    asked_from: int
    watch_part: slice
    canary_part: slice
    planted_by: Canaries
    seed: int
    answers: tuple[NDArray[np.float32], ...] = ()
    undefended: bool = False

    def coins(self) -> Inclusion:
        """The coins of the audited models, fresh for one audit."""
        return _draw_coins(self.planted_by.count, len(self.inclusion), self.seed)


def _draw_coins(canaries: int, models: int, seed: int) -> Inclusion:
    count = canaries * len(audited_models(models))
    guesses = max(1, round(_GUESSED * count))
    bits = make_source(insecure_seed=_derive_seed(seed, _COINS))
    return Inclusion(count, guesses=(guesses, guesses), source=bits)


def _lay_out(data: BenchData, kind: Canaries, watched: int, models: int, seed: int) -> _Trained:
    order = seeded_generator(seed, _SPLIT).permutation(len(data.records))
    sources, seen = order[: kind.count], order[kind.count : kind.count + watched]
    rest = np.sort(order[kind.count + watched :])
    codes = data.labels
    planted = kind.plant(
        data.records[sources], codes[sources], data.classes, _derive_seed(seed, _PLANT)
    )
    _check_planted(planted, kind.count)
    asked = np.concatenate([data.records[seen], planted.asked])
    copies = vary(asked, COPIES, _derive_seed(seed, _COPY))
    asked_labels = np.concatenate([codes[seen], planted.labels])
    parts = [
        (
            np.concatenate([data.records[rest], planted.companions]),
            np.concatenate([codes[rest], planted.companion_labels]),
        ),
        (data.records[seen], codes[seen]),
        (planted.records, planted.labels),
        (data.test_records, data.test_labels),
        (data.reference_records, data.reference_labels),
        (asked, asked_labels),
        (copies.reshape(-1, *asked.shape[1:]), np.tile(asked_labels, COPIES)),
    ]
    ends = np.cumsum([0, *(len(x) for x, _ in parts)])
    coins = _draw_coins(kind.count, models, seed).included.reshape(-1, kind.count)
    drawn = _draw_inclusion(coins, watched, models, seed)
    inclusion = np.zeros((models, int(ends[-1])), dtype=bool)
    inclusion[:, : ends[1]] = True
    inclusion[:, ends[1] : ends[3]] = drawn
    names = np.arange(len(asked) * (1 + COPIES) + len(data.test_labels), dtype=np.uint64)
    return _Trained(
        pool_records=np.concatenate([x for x, _ in parts]),
        pool_labels=np.concatenate([y for _, y in parts]),
        pool_inclusion=inclusion,
        inclusion=drawn,
        asked_labels=asked_labels,
        names=names[: len(asked)],
        asked_names=names,
        always=int(ends[1]),
        tests=slice(int(ends[3]), int(ends[4])),
        reference=slice(int(ends[4]), int(ends[5])),
        asked_from=int(ends[5]),
        watch_part=slice(0, watched),
        canary_part=slice(watched, watched + kind.count),
        planted_by=kind,
        seed=seed,
    )


def _draw_inclusion(
    coins: NDArray[np.bool_], watched: int, models: int, seed: int
) -> NDArray[np.bool_]:
    """Coins for watched records and canaries: pairs of models have opposite ones."""
    drawn = np.zeros((models, watched + coins.shape[1]), dtype=bool)
    for place in range(0, models, 2):
        drawn[place] = seeded_generator(seed, _WATCH, place).random(drawn.shape[1]) < 0.5
    for row, place in enumerate(audited_models(models)):
        drawn[place, watched:] = coins[row]
    drawn[1::2] = ~drawn[::2]
    return drawn


def _check_planted(planted: Planted, count: int) -> None:
    sizes = len(planted.records), len(planted.labels), len(planted.asked)
    if sizes != (count,) * 3 or len(planted.companions) != len(planted.companion_labels):
        raise InvalidValue("canaries", f"{sizes} records, labels and questions", f"{count} of each")


def _leaks(result: MembershipResult) -> tuple[Leak, ...]:
    count = len(result.nonmember_scores)
    return tuple(
        Leak(rate, count, result.tpr_at(rate)) for rate in RATES if rate * count >= 1 - 1e-9
    )


def _scale(values: NDArray[np.float32], reference: NDArray[np.intp]) -> NDArray[np.float32]:
    """Bring columns to mean 0 and deviation 1 on the reference; bits and constants stay bits."""
    if np.isin(values, (0, 1)).all():
        return values
    mean, spread = values[reference].mean(axis=0), values[reference].std(axis=0)
    return np.asarray((values - mean) / np.where(spread > 0, spread, 1), dtype=np.float32)


def _derive_seed(seed: int, *path: int) -> int:
    return int(seeded_generator(seed, *path).integers(2**32))
