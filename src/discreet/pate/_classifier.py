"""PATE as an estimator: teachers on private parts, labels by vote, a student that is released.

The order of :meth:`PATEClassifier.fit` is always the same. Parameters and public data are
checked, queries are chosen and teachers are rehearsed, all without the private records; the loss,
which is data-independent, is charged; then records are partitioned, teachers are trained,
and they vote. Labels leave, and with the public data they make the student. Teachers and votes are
dropped.

**Public rows that are also private.** Not looked for: whether an error was raised would tell who
is in the private data. The guarantee holds as it stands, for what the private copy adds; see
:func:`~discreet.pate.shared_records` for the keeper of the data.

**A released student as a directory** is the form that ``discreet predict`` reads: ``model.npz``
(arrays and JSON, no pickle), ``model.json``, ``schema.toml``, ``certificate.json`` and whatever a
caller adds, as for the learners of :mod:`discreet.learn`.
"""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
from scipy.special import softmax
from sklearn.base import clone  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped]

from discreet import _validate
from discreet._cache import ArrayCache
from discreet.certificate import Certificate, read_certificate
from discreet.data import Encoding, Schema, Table, read_table
from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.learn import PrivateClassifier, charged, default_delta, stated_unit
from discreet.learn._declared import declared_classes
from discreet.learn._intake import label_codes, number_features, targets_of
from discreet.learn._model_file import (
    conclude,
    feature_head,
    read_model,
    same_facts,
    set_features,
    write_model,
)
from discreet.pate._aggregator import VotingSession
from discreet.pate._partition import keep_key, partition_records, person_column
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
from discreet.randomness import source as make_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


class PATEClassifier(PrivateClassifier):
    """A student of private teachers, with a certificate; only the student is released.

    **Guarantee.** The labels, and with them the model, are ``certificate_.loss`` under
    ``relation`` for one record, or for one person with all rows if ``persons`` are passed to
    ``fit``: each reaches one teacher, whose vote is one of ``teachers`` in every query.

    :param classes: the public labels.
    :param epsilon: with ``delta`` what the labels may cost. ``delta`` may follow from
        ``expected_rows``, a public order of magnitude.
    :param teachers: how many; public. :param teacher: what a teacher is, or a list (see
    :func:`~discreet.pate.teacher_votes`); by default logistic regression. :param student: "table",
    "images", or an object (a :class:`~discreet.pate.Student`), with ``student_parameters``. :param
    representation: a transformer, such as those of scikit-learn, that is fitted to the *public*
    rows, acts row by row and prepares what teachers see; "scattering" for images. :param
    aggregator: "auto", "gnmax" or an aggregator (see :func:`~discreet.pate.plan_votes`). :param
    agreement: a public guess at the share of teachers who agree, for "auto". :param queries: the
    most queries to ask. :param rounds: in how many rounds to ask; after the first, about what the
    student so far is least sure of. :param columns: column sets of the teachers. :param n_jobs:
    workers of joblib.

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

    _from_disk = False

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
        relation: Relation | str = Relation.ADD_REMOVE,
        schema_hash: str | None = None,
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
        self.schema_hash = schema_hash
        self.n_jobs = n_jobs
        self.insecure_seed = insecure_seed

    def _declare(self) -> None:
        self.classes_ = declared_classes(self.classes)

    # --- planning -----------------------------------------------------------------------

    def loss_for(self, public_rows: int) -> Loss:
        """What :meth:`fit` will charge with this number of public rows; nothing is read."""
        self._declare()
        return self._votes(public_rows).loss

    def _votes(self, public_rows: int) -> LabelPlan:
        return plan_votes(
            self.aggregator,
            epsilon=self.epsilon,
            delta=self._delta(),
            classes=len(self.classes_),
            teachers=self.teachers,
            public_rows=public_rows,
            queries=self.queries,
            agreement=self.agreement,
            relation=self.relation,
        )

    def _delta(self) -> float:
        if self.delta is not None:
            return _validate.real("delta", self.delta, above=0, below=1)
        if self.expected_rows is None:
            raise InvalidValue("delta", None, "a number, or expected_rows from which it follows")
        return default_delta(_validate.integer("expected_rows", self.expected_rows, at_least=1))

    # --- learning -----------------------------------------------------------------------

    def fit(  # type: ignore[override]
        self,
        X: Any,
        y: Any,
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
        undeclared label teaches nothing.
        """
        if self._from_disk:
            raise NotApplicable(
                "this student was loaded, and its teachers are not in the file: make a new "
                "PATEClassifier with the teachers that it should have"
            )
        self._declare()
        whom = stated_unit(unit, persons=persons is not None)
        relation = Relation.parse(self.relation)
        if persons is not None and relation is Relation.REPLACE:
            raise InvalidValue("relation", "replace", "add_remove where records have persons")
        read_workers(self.n_jobs)
        features = number_features(self, X, reset=True, relation=relation)
        answers = targets_of(y, features)
        if persons is not None:
            persons = person_column(persons, len(features))
        ready = self._settle_public_facts(self._public_rows(public, reset=False), cache, cache_key)
        plan, student, classes = ready.plan, ready.student, len(self.classes_)
        bits = make_source(insecure_seed=self.insecure_seed)
        key = None if cache is None else keep_key(ArrayCache(cache).path, bits)
        delta = self._delta()
        with charged(
            ledger,
            dataset,
            loss=plan.loss,
            delta=delta,
            purpose=type(self).__name__,
            unit=whom,
        ) as charge:
            clean = np.nan_to_num(features, nan=0.0, posinf=0.0, neginf=0.0)
            codes = label_codes(answers, self.classes_)
            parts = partition_records(
                clean,
                codes,
                teachers=plan.aggregator.teachers,
                persons=persons,
                relation=relation,
                key=key,
                source=bits,
            )
            table = np.zeros((len(ready.rows), classes), dtype=np.int64)
            table[ready.candidates] = ready.ensemble.votes(parts, clean, codes)
            session = plan.open(bits)
            self._ask(session, table, ready)
            del table
            labels = self.labels_
            self.student_ = student.fit(
                ready.rows, self.examples_, labels, classes=classes, features=ready.features
            )
            certificate = Certificate.of(
                plan.loss,
                delta=delta,
                learner=type(self).__name__,
                plan={
                    **_facts(plan),
                    "unit": whom,
                    "partition": parts.record,
                    "teacher": name_teachers(self._teacher()),
                    "public_rows": len(ready.rows),
                    "queries_asked": session.asked,
                    "labels_answered": int(session.answers),
                    "labels_used": len(labels),
                    "student": {"kind": student.kind, **student.parameters},
                    "classes": classes,
                    "features": int(self.n_features_in_),
                    "schema_hash": self.schema_hash,
                },
                randomness=bits.provenance,
            )
            conclude(self, certificate, charge)
        return self

    @classmethod
    def _stated_plan(cls, certificate: Certificate) -> LabelPlan:
        return stated_plan(certificate.plan)

    def _ask(
        self, session: VotingSession, histograms: NDArray[np.int64], ready: _PublicSetup
    ) -> None:
        """Ask in rounds; what is asked next follows from labels that were released.

        Labels are kept as soon as they are there: they are paid for. What an earlier fit has
        left does not speak of them.
        """
        for name in ("student_", "certificate_"):
            self.__dict__.pop(name, None)
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
        ``cache``; returns the loss that it will charge. For whoever charges before the private
        records can be read.
        """
        trial = copy.copy(self)  # what is learned from public rows alone is not kept
        trial._declare()
        read_workers(trial.n_jobs)
        ready = trial._settle_public_facts(trial._public_rows(public, reset=True), cache, cache_key)
        if cache is not None:
            keep_key(ArrayCache(cache).path, make_source(insecure_seed=self.insecure_seed))
        return ready.plan.loss

    def _settle_public_facts(
        self, rows: NDArray[np.float64], cache: str | Path | None, cache_key: str | None
    ) -> _PublicSetup:
        """Settle what is public: plan, student, teachers, and what to ask first."""
        plan = self._votes(len(rows))
        rounds = _validate.integer("rounds", self.rounds, at_least=1, at_most=plan.queries)
        student = make_student(self.student, self.student_parameters)
        seen = student.features(rows)
        asked = central_examples(seen, -(-plan.queries // rounds))
        classes = len(self.classes_)
        rehearse_student(student, rows, seen, classes=classes)
        candidates = asked if rounds == 1 else np.arange(len(rows))
        ensemble = TeacherEnsemble.prepare_for(
            self._teacher(),
            rows[candidates],
            classes=classes,
            columns=self.columns,
            prepare=self._prepare(rows),
            n_jobs=self.n_jobs,
            cache=cache,
            cache_key=cache_key,
            public=rows,
        )
        return _PublicSetup(rows, plan, student, seen, asked, candidates, ensemble)

    def _teacher(self) -> Any:
        return _default_teacher() if self.teacher is None else self.teacher

    def _public_rows(self, public: Any, *, reset: bool) -> NDArray[np.float64]:
        if public is None:
            raise InvalidValue("public", None, "rows of public data for the student to learn from")
        rows = number_features(self, public, reset=reset, relation=Relation.ADD_REMOVE)
        if len(rows) < 2:
            raise InvalidValue("public", f"{len(rows)} rows", "at least two rows of public data")
        return np.asarray(np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0))

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

    def _encoded_rows(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self, "student_")
        rows = number_features(self, X, reset=False, relation=Relation.ADD_REMOVE)
        return np.asarray(np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0))

    def _class_scores(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(self.student_.scores(rows))

    # --- keeping ------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write student and certificate to one file of arrays and JSON, without pickle."""
        check_is_fitted(self, "certificate_")
        kind = self.student_.kind
        if kind not in STUDENTS:
            raise InvalidValue("student", kind, "one of a kind that load knows: table, images")
        head, arrays = self._contents()
        head["certificate"] = self.certificate_.to_json()
        write_model(path, kind=type(self).__name__, head=head, arrays=arrays)

    def _contents(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        head = {
            "parameters": {
                "classes": self.classes_.tolist(),
                "epsilon": _validate.real("epsilon", self.epsilon, above=0),
                "delta": self._delta(),
                "teachers": self.teachers,
                "relation": Relation.parse(self.relation).value,
                "schema_hash": self.schema_hash,
                "insecure_seed": self.insecure_seed,
                "student": self.student_.kind,
                "student_parameters": self.student_.parameters,
            },
            **feature_head(self),
        }
        return head, self.student_.arrays()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a student that :meth:`save` wrote; it is one of the kinds known here."""
        head, arrays = read_model(path, kind=cls.__name__)
        model = cls(**head["parameters"])
        model._declare()
        set_features(model, head)
        model.certificate_ = Certificate.from_json(head["certificate"])
        model._check_certificate()
        model.student_ = make_student(model.student, model.student_parameters)
        model.student_.set_arrays(arrays)
        model._from_disk = True
        return model

    def _check_certificate(self) -> None:
        """Raise unless the certificate speaks of this student, and of what its plan costs."""
        plan = self.certificate_.plan
        found = {
            "teachers": self.teachers,
            "classes": len(self.classes_),
            "features": self.n_features_in_,
            "schema_hash": self.schema_hash,
            "student": {"kind": self.student, **(self.student_parameters or {})},
        }
        same_facts(found, plan)
        try:
            loss = stated_plan(plan).loss
        except (InvalidValue, KeyError, TypeError) as error:
            raise SchemaError(f"a certificate whose plan cannot be read: {error}") from None
        self.certificate_.check_covers(loss)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.non_deterministic = self.insecure_seed is None
        return tags


def _default_teacher() -> Any:
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
    from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]

    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))


def _facts(plan: LabelPlan) -> dict[str, Any]:
    aggregator = plan.aggregator
    return {
        "teachers": aggregator.teachers,
        "aggregator": aggregator.parameters,
        "budget": dict(plan.budget),
        "queries_planned": plan.queries,
        "chosen_because": plan.reason,
    }


_FORMAT = "discreet.model"
_VERSION = 1
_LEARNER = "pate"


@final
@dataclass(frozen=True)
class StudentOfSchema:
    """A student with the schema of its directory; it reads tables, as estimators of a schema do."""

    schema: Schema
    student: PATEClassifier

    @property
    def certificate_(self) -> Certificate:
        """The certificate of the student."""
        return self.student.certificate_

    @property
    def classes_(self) -> NDArray[Any]:
        """The words of the schema, in the order of the student's codes."""
        return np.array(self.schema.classes, dtype=object)

    def predict(self, table: Table) -> NDArray[Any]:
        """Return the word of the most probable class of each row."""
        return np.asarray(self.classes_[np.argmax(self.predict_proba(table), axis=1)])

    def predict_proba(self, table: Table) -> NDArray[np.float64]:
        """Return P(class | row), rows x classes, in the order of ``classes_``."""
        return self.student.predict_proba(self.encoded(table))

    def encoded(self, table: Table) -> NDArray[Any]:
        """Return the rows of a table as the student takes them."""
        return Encoding(table.schema).features(table, dtype=np.float32)

    def for_encoded_rows(self) -> PATEClassifier:
        """Return the student itself, which takes encoded rows."""
        return self.student


def holds_student(place: str | Path) -> bool:
    """Whether a directory says that it holds a student of PATE."""
    try:
        head = json.loads((Path(place) / "model.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(head, dict) and head.get("learner") == _LEARNER


def write_student_files(place: Path, model: PATEClassifier, schema: Schema) -> None:
    """Write a fitted student with its schema and certificate."""
    model.save(place / "model.npz")
    head = {"format": _FORMAT, "version": _VERSION, "learner": _LEARNER}
    (place / "model.json").write_text(json.dumps(head, indent=2) + "\n", encoding="utf-8")
    (place / "schema.toml").write_text(schema.to_toml(), encoding="utf-8")
    text = json.dumps(model.certificate_.to_json(), indent=2, allow_nan=False)
    (place / "certificate.json").write_text(text + "\n", encoding="utf-8")


def read_student_directory(place: str | Path) -> StudentOfSchema:
    """Read a student back; what does not belong together, or is damaged, raises."""
    path = Path(place)
    try:
        head = json.loads((path / "model.json").read_text(encoding="utf-8"))
        schema = Schema.from_toml((path / "schema.toml").read_text(encoding="utf-8"))
        certificate = read_certificate(path)
        model = PATEClassifier.load(path / "model.npz")
        found = StudentOfSchema(schema, model)
        asked = schema.for_prediction()
        found.predict(read_table({name: [None] for name in asked.columns}, asked))
    except SchemaError:
        raise
    except ImportError as error:
        raise NotApplicable(f"{path} needs {error.name}, which is not installed here") from None
    except Exception as error:  # noqa: BLE001 - a damaged file can fail anywhere, in any way
        raise SchemaError(f"{path} is damaged ({type(error).__name__})") from None
    if (head.get("format"), head.get("version")) != (_FORMAT, _VERSION):
        raise SchemaError(f"{path / 'model.json'}: a version that is not known here")
    if model.certificate_.plan.get("schema_hash") != schema.content_hash:
        raise SchemaError("the student and schema.toml do not belong together")
    if model.certificate_ != certificate:
        raise SchemaError("the student and certificate.json do not belong together")
    return found
