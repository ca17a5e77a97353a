"""PATE as an estimator: teachers on private parts, labels by vote, a student that is released.

The order of :meth:`PATEClassifier.fit` is always the same. Parameters and public data are
checked, queries are chosen and teachers are rehearsed, all without the private records; the loss,
which is data-independent, is charged; then records are partitioned, teachers are trained,
and they vote. Labels leave, and with the public data they make the student. Teachers and votes are
dropped.

**Public rows that are also private.** Not looked for: whether an error was raised would tell who
is in the private data. The guarantee holds as it stands, for what the private copy adds; see
:func:`~discreet.pate.shared_records` for the keeper of the data.

Students are saved and loaded as all estimators are (:func:`discreet.learn.load_model`).
"""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np
from scipy.special import softmax
from sklearn.base import clone  # type: ignore[import-untyped]

from discreet import _validate
from discreet._cache import ArrayCache
from discreet.certificate import Certificate
from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.learn import (
    OldFacts,
    PrivateClassifier,
    default_delta,
    feature_head,
    require_same_facts,
    rows_to_judge,
    table_without_cells,
)
from discreet.pate._aggregator import VotingSession
from discreet.pate._partition import draw_key, keep_key, partition_records
from discreet.pate._planning import LabelPlan, plan_votes, stated_plan
from discreet.pate._student import (
    STUDENTS,
    Student,
    central_examples,
    make_student,
    rehearse_student,
    uncertain_examples,
)
from discreet.pate._teachers import TeacherEnsemble, name_teachers, read_workers
from discreet.privacy import Loss, Relation
from discreet.randomness import Source
from discreet.randomness import source as make_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.data import Schema
    from discreet.learn import Declared, Rows
    from discreet.ledger import Ledger


@final
@dataclass(frozen=True, eq=False)
class _PublicSetup:
    """What is settled before a record is read; public."""

    rows: NDArray[np.float64]
    plan: LabelPlan
    student: Student
    features: NDArray[np.float64]
    first_queries: NDArray[np.int64]
    candidates: NDArray[np.int64]
    ensemble: TeacherEnsemble
    key: bytes | None


@final
@dataclass(frozen=True, eq=False)
class PatePlan:
    """The votes, and the delta at which they are read; ``setup`` is dropped after the fit."""

    votes: LabelPlan
    delta: float
    epsilon: float
    setup: _PublicSetup | None = None

    @property
    def loss(self) -> Loss:
        """The data-independent loss of all labels."""
        return self.votes.loss

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            "teachers": self.votes.aggregator.teachers,
            "aggregator": self.votes.aggregator.parameters,
            "budget": dict(self.votes.budget),
            "queries_planned": self.votes.queries,
            "chosen_because": self.votes.reason,
        }


@final
@dataclass(frozen=True)
class _Given:
    """What a fit was handed beside the private rows."""

    public: Any
    cache: str | Path | None
    cache_key: str | None


class PATEClassifier(PrivateClassifier):
    """A student of private teachers, with a certificate; only the student is released.

    **Guarantee.** The labels, and with them the model, are ``certificate_.loss`` under
    ``relation`` for one record, or for one person with all rows if ``persons`` are passed to
    ``fit``: each reaches one teacher, whose vote is one of ``teachers`` in every query.

    Parameters
    ----------
    classes
        The public labels.
    epsilon, delta
        What the labels may cost; ``delta`` may follow from ``expected_rows``.
    expected_rows
        A public order of magnitude of the number of rows.
    teachers, teacher
        How many, which is public, and what a teacher is, or a list (see
        :func:`~discreet.pate.teacher_votes`); by default logistic regression.
    student, student_parameters
        ``"table"``, ``"images"``, or an object (a :class:`~discreet.pate.Student`).
    representation
        A transformer, such as those of scikit-learn, that is fitted to the *public* rows, acts
        row by row and prepares what teachers see; ``"scattering"`` for images.
    aggregator, agreement
        ``"auto"``, ``"gnmax"`` or an aggregator (see :func:`~discreet.pate.plan_votes`), and a
        public guess at the share of teachers who agree, for ``"auto"``.
    queries, rounds
        The most queries to ask, and in how many rounds; after the first, about what the student
        so far is least sure of.
    columns
        Column sets of the teachers.
    schema
        What is public about a table, instead of ``classes`` and ``expected_rows``; private and
        public rows are then data frames, files or tables.
    n_jobs
        Workers of joblib.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(4000, 2))
    >>> y = (X.sum(axis=1) > 0).astype(int)
    >>> model = PATEClassifier(
    ...     classes=[0, 1], epsilon=1.0, delta=1e-5, teachers=100, insecure_seed=1
    ... )
    >>> model = model.fit(X, y, public=rng.normal(size=(300, 2)))
    >>> model.certificate_.epsilon <= 1.0, model.score(X, y) > 0.9
    (True, True)
    """

    student_: Student
    _takes_persons: ClassVar[bool] = True
    _from_disk = False
    _given: _Given | None = None
    _looks: Mapping[str, Any] | None = None
    # The column of the student's scores for each class: students of 0.1 had another order.
    _columns: list[int] | None = None

    def __init__(
        self,
        *,
        classes: Any = None,
        epsilon: float = 1.0,
        delta: float | None = None,
        expected_rows: int | None = None,
        teachers: int = 100,
        teacher: Any = None,
        student: Any = "table",
        student_parameters: dict[str, Any] | None = None,
        representation: Any = None,
        aggregator: Any = "auto",
        agreement: float = 0.85,
        queries: int | None = None,
        rounds: int = 1,
        columns: Any = None,
        relation: Relation | str = "add_remove",
        schema: Schema | None = None,
        n_jobs: int = 1,
        insecure_seed: int | None = None,
    ) -> None:
        self.classes = classes
        self.epsilon = epsilon
        self.delta = delta
        self.expected_rows = expected_rows
        self.teachers = teachers
        self.teacher = teacher
        self.student = student
        self.student_parameters = student_parameters
        self.representation = representation
        self.aggregator = aggregator
        self.agreement = agreement
        self.queries = queries
        self.rounds = rounds
        self.columns = columns
        self.relation = relation
        self.schema = schema
        self.n_jobs = n_jobs
        self.insecure_seed = insecure_seed

    # --- planning -----------------------------------------------------------------------

    def planned(self, *, public_rows: int) -> PatePlan:  # type: ignore[override]
        """Return the plan that :meth:`fit` will make with this number of public rows."""
        declared = self._declared()
        return self._plan_votes(declared, public_rows)

    def planned_loss(self, *, public_rows: int) -> Loss:  # type: ignore[override]
        """Return what :meth:`fit` will charge with this number of public rows; nothing is read."""
        declared = self._declared()
        return self._whole_loss(self._plan_votes(declared, public_rows), declared)

    def _plan_votes(self, declared: Declared, public_rows: int) -> PatePlan:
        assert declared.classes is not None
        delta = self._delta(declared)
        votes = plan_votes(
            self.aggregator,
            epsilon=self.epsilon,
            delta=delta,
            classes=len(declared.classes),
            teachers=self.teachers,
            public_rows=public_rows,
            queries=self.queries,
            agreement=self.agreement,
            relation=self.relation,
        )
        return PatePlan(votes, delta, float(self.epsilon))

    def _delta(self, declared: Declared) -> float:
        if self.delta is not None:
            return _validate.real("delta", self.delta, above=0, below=1)
        if declared.expected_rows is None:
            raise InvalidValue("delta", None, "a number, or expected_rows from which it follows")
        return default_delta(declared.expected_rows)

    def _look_at(self, looks: Mapping[str, Any]) -> None:
        self._looks = looks

    def _plan(self, declared: Declared) -> PatePlan:
        """Settle what is public: votes, student, teachers, and what to ask first."""
        if self._given is None:
            raise NotApplicable("a plan of PATE follows from public rows: planned(public_rows=...)")
        read_workers(self.n_jobs)
        rows = self._public_rows(declared, self._given.public)
        plan = self._plan_votes(declared, len(rows))
        votes, cache = plan.votes, self._given.cache
        rounds = _validate.integer("rounds", self.rounds, at_least=1, at_most=votes.queries)
        student = make_student(self.student, self.student_parameters)
        seen = student.features(rows)
        asked = central_examples(seen, -(-votes.queries // rounds))
        classes = votes.aggregator.classes
        rehearse_student(student, rows, seen, classes=classes)
        # Equal public rows make fewer first queries than were paid for: others follow them.
        one_round = len(asked) >= min(votes.queries, len(rows))
        candidates = asked if one_round else np.arange(len(rows))
        ensemble = TeacherEnsemble.prepare_for(
            self._teacher(),
            rows[candidates],
            classes=classes,
            columns=self.columns,
            prepare=self._prepare(rows),
            n_jobs=self.n_jobs,
            cache=cache,
            cache_key=self._given.cache_key,
            public=rows,
        )
        bits = make_source(insecure_seed=self.insecure_seed)
        key = None if cache is None else keep_key(ArrayCache(cache).path, bits)
        setup = _PublicSetup(rows, votes, student, seen, asked, candidates, ensemble, key)
        return replace(plan, setup=setup)

    @classmethod
    def _stated_plan(cls, certificate: Certificate) -> PatePlan:
        votes = stated_plan(certificate.plan)
        return PatePlan(votes, certificate.delta, float(certificate.epsilon))

    # --- learning -----------------------------------------------------------------------

    def fit(  # type: ignore[override]
        self,
        X: Any,
        y: Any = None,
        *,
        public: Any = None,
        persons: Any = None,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        unit: str | None = None,
        cache: str | Path | None = None,
        cache_key: str | None = None,
    ) -> Self:
        """Learn from private ``X``, ``y`` and ``public`` rows without labels.

        With a ledger, ``dataset`` is charged before records are looked at; ``unit`` is your
        word that one row (or one of ``persons``) is one such unit, where its budget names
        another. ``cache`` is a directory for private files with which a run that was interrupted
        goes on; teachers and representations of your own then need a ``cache_key``, a text that
        you change whenever they change. A cell that is no finite number is 0; a record with an
        undeclared label teaches nothing. All rows of a person have one teacher, however many.
        """
        if self._from_disk:
            raise NotApplicable(
                "this student was loaded, and its teachers are not in the file: make a new "
                "PATEClassifier with the teachers that it should have"
            )
        self._given = _Given(public, cache, cache_key)
        try:
            return super().fit(X, y, persons=persons, ledger=ledger, dataset=dataset, unit=unit)
        finally:
            self._given = self._looks = None

    def _learn(
        self, plan: PatePlan, rows: Rows, source: Source, track: Any
    ) -> dict[str, NDArray[Any]]:
        ready = plan.setup
        assert ready is not None
        batch, persons = rows.of_everybody()
        clean, codes = _finite(batch.features), batch.targets
        fresh = draw_key(source)
        parts = partition_records(
            clean,
            codes,
            teachers=plan.votes.aggregator.teachers,
            persons=persons,
            relation=plan.loss.relation,
            cap=plan.votes.aggregator.teachers_per_record,
            key=fresh if ready.key is None else ready.key,
        )
        classes = plan.votes.aggregator.classes
        table = np.zeros((len(ready.rows), classes), dtype=np.int64)
        table[ready.candidates] = ready.ensemble.votes(parts, clean, codes, cap=parts.cap)
        session = plan.votes.open(source)
        self._ask(session, table, ready)
        del table
        self.student_ = ready.student.fit(
            ready.rows, self.examples_, self.labels_, classes=classes, features=ready.features
        )
        self._run = {
            "partition": parts.record,
            "teacher": name_teachers(self._teacher()),
            "public_rows": len(ready.rows),
            "queries_asked": session.asked,
            "labels_answered": int(session.answers),
            "labels_used": len(self.labels_),
        }
        return self.student_.arrays()

    def _set_plan(self, plan: PatePlan) -> None:
        self.plan_ = replace(plan, setup=None)

    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        if "student_" not in vars(self):
            self.student_ = make_student(self.student, self.student_parameters)
            self.student_.set_arrays(dict(arrays))

    def _run_facts(self) -> dict[str, Any]:
        return self._run

    def _certified_facts(self) -> dict[str, Any]:
        student: dict[str, Any] = {"kind": self.student, **(self.student_parameters or {})}
        if "student_" in vars(self):
            student = {"kind": self.student_.kind, **self.student_.parameters}
        facts = super()._certified_facts()
        del facts["rows_per_person"]  # however many rows a person has, they reach one teacher
        return {**facts, "student": student, "classes": len(self.classes_)}

    def _ask(
        self, session: VotingSession, histograms: NDArray[np.int64], ready: _PublicSetup
    ) -> None:
        """Ask in rounds; what is asked next follows from labels that were released.

        Labels are kept as soon as they are there: they are paid for.
        """
        classes, plan, rows, seen = len(self.classes_), ready.plan, ready.rows, ready.features
        self.examples_, self.labels_ = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        every = asked = ready.first_queries
        chances = np.full((len(rows), classes), 1.0 / classes)
        while len(asked):
            extra = {}
            if plan.aggregator.reads_predictions:
                extra["predictions"] = chances[asked]
            found = session.answer_many(histograms[asked], **extra)
            given = np.array([label is not None for label in found], dtype=np.bool_)
            said = np.array([label for label in found if label is not None], dtype=np.int64)
            self.examples_ = np.concatenate([self.examples_, asked[: len(found)][given]])
            self.labels_ = np.concatenate([self.labels_, said])
            left = min(plan.queries - len(every), len(ready.first_queries))
            if session.halted or left <= 0 or len(every) == len(rows):
                break
            ready.student.fit(rows, self.examples_, self.labels_, classes=classes, features=seen)
            chances = softmax(ready.student.scores(rows), axis=1)
            asked = uncertain_examples(chances, seen, left, asked=every)
            every = np.concatenate([every, asked])

    def rehearse(  # type: ignore[override]
        self, public: Any, *, cache: str | Path | None = None, cache_key: str | None = None
    ) -> Loss:
        """Do all that :meth:`fit` does before it charges, without any private record.

        Raises what ``fit`` would raise about parameters, public rows, teachers, student and
        ``cache``; returns the loss that it will charge.
        """
        trial = copy.copy(self)  # what is learned from public rows alone is not kept
        trial._given = _Given(public, cache, cache_key)
        declared = trial._declared()
        return trial._whole_loss(trial._plan(declared), declared)

    def _teacher(self) -> Any:
        return _default_teacher() if self.teacher is None else self.teacher

    def _public_rows(self, declared: Declared, public: Any) -> NDArray[np.float64]:
        if public is None:
            raise InvalidValue("public", None, "rows of public data for the student to learn from")
        try:
            if declared.schema is not None:
                rows = rows_to_judge(self, declared, public)
            else:
                rows = table_without_cells(self, declared, public, looks=self._looks)()
        except InvalidValue as error:
            argument = "public" if error.argument in {"X", "data"} else error.argument
            raise type(error)(argument, error.value, error.expected) from None
        if len(rows) < 2:
            raise InvalidValue("public", f"{len(rows)} rows", "at least two rows of public data")
        return _finite(rows)

    def _prepare(
        self, rows: NDArray[np.float64]
    ) -> Callable[[NDArray[np.float64]], NDArray[np.float64]] | None:
        """The representation, fitted to public rows and nothing else."""
        view = self.representation
        if view is None:
            return None
        if isinstance(view, str):
            _validate.one_of("representation", view, ("scattering",))
            from discreet.pate._image_student import ScatteringView

            view = ScatteringView(size=tuple((self.student_parameters or {}).get("size", (28, 28))))
        if not (hasattr(view, "fit") and hasattr(view, "transform")):
            raise InvalidValue("representation", view, "a transformer, or 'scattering'")
        prepare: Callable[[NDArray[np.float64]], NDArray[np.float64]]
        prepare = clone(view).fit(rows).transform
        some = rows[:8]
        together = np.asarray(prepare(some), dtype=np.float64)
        apart = np.concatenate([np.asarray(prepare(row[None, :])) for row in some])
        if together.shape != apart.shape or not np.allclose(together, apart, rtol=1e-3, atol=1e-5):
            raise InvalidValue("representation", view, "a transformer that acts row by row")
        return prepare

    def _class_scores(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        scores = np.asarray(self.student_.scores(_finite(rows)))
        return scores if self._columns is None else scores[:, self._columns]

    # --- files --------------------------------------------------------------------------

    def _contents(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        kind = self.student_.kind
        if kind not in STUDENTS:
            raise InvalidValue("student", kind, "one of a kind that load knows: table, images")
        return super()._contents()

    def _make_head(self, ready: Any) -> dict[str, Any]:
        """Return what a student needs; its teachers are not in the file."""
        named = ("classes", "schema", "relation", "insecure_seed", "teachers")
        parameters = {name: ready.parameters[name] for name in named}
        if parameters["classes"] is not None:
            parameters["classes"] = self.classes_.tolist()
        parameters |= {
            "epsilon": _validate.real("epsilon", self.epsilon, above=0),
            "delta": ready.plan.delta,
            "relation": Relation.parse(self.relation).value,
            "student": self.student_.kind,
            "student_parameters": self.student_.parameters,
        }
        features = {**feature_head(self), "n_features": ready.declared.features}
        if self.schema is not None:
            features["feature_names"] = None
        return {"parameters": parameters, "plan": ready.plan.to_json(), **features}

    @classmethod
    def _from_file(
        cls, head: dict[str, Any], arrays: dict[str, NDArray[Any]], schema: Schema | None = None
    ) -> Self:
        stated = head.get("plan") or Certificate.from_json(head["certificate"]).plan
        model = super()._from_file({**head, "plan": stated}, arrays, schema)
        model._from_disk, model._head = True, head
        return model

    def _read_plan(self, document: Mapping[str, Any], declared: Declared) -> PatePlan:
        try:
            plan = PatePlan(stated_plan(document), self._delta(declared), float(self.epsilon))
            plan.loss  # noqa: B018 - a budget that cannot be raises here
        except (InvalidValue, KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"a certificate whose plan cannot be read: {error}") from None
        return plan

    def _in_order(
        self, arrays: dict[str, NDArray[Any]], order: list[int], declared: Declared
    ) -> dict[str, NDArray[Any]]:
        self._columns = order
        return arrays

    def _compare_with(self, certificate: Certificate, old: OldFacts) -> None:
        require_same_facts({"teachers": self.teachers}, certificate.plan)
        super()._compare_with(certificate, old)


def _finite(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return rows with 0 where a cell is no finite number."""
    return np.asarray(np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0))


def _default_teacher() -> Any:
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
    from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]

    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
