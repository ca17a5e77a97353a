"""The base of all private estimators: declare, plan, charge, read, learn, certify, save.

The order of :meth:`PrivateEstimator.fit` is always the same. Parameters and the form of the data
are checked; the loss, which depends on declared facts only, is charged; then records are read. A
record that breaks a declaration is repaired by a rule that looks at that record alone: numbers are
clipped to their bounds, and what is no number, or no declared label, counts as such. So no record
can raise an error, and none changes how another one is read.

A kind of estimator defines three methods, and gets all the rest:

* ``_plan(declared)`` returns a plan from public facts: an object with ``loss``, ``delta``,
  ``epsilon`` and ``to_json()``.
* ``_learn(plan, rows, source, track)`` reads the rows, adds the noise that the plan states, and
  returns the released model as arrays.
* ``_restore(arrays)`` sets the fitted attributes from such arrays, after a fit and after loading.
"""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, final

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.base import (  # type: ignore[import-untyped]
    BaseEstimator,
    ClassifierMixin,
    RegressorMixin,
    clone,
)
from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped]

from discreet.certificate import Certificate
from discreet.data import Encoding, Learned, Schema, Table, possible_mistakes
from discreet.engines import Table as BoundedTable
from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.learn._declared import (
    DECLARATIONS,
    Declared,
    charged,
    declare,
    stated_unit,
    with_schema_cost,
)
from discreet.learn._intake import (
    OpenedRows,
    Rows,
    open_rows,
    rows_to_judge,
    schema_looks,
    targets_to_judge,
    training_table,
)
from discreet.learn._model_file import (
    KINDS,
    OldFacts,
    conclude,
    current_parameters,
    feature_head,
    read_model,
    require_same_facts,
    set_features,
    write_directory,
    write_model,
)
from discreet.privacy import Loss, Relation
from discreet.randomness import Source, source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.ledger import Charge, Ledger

Track = Callable[[Iterable[int]], Iterable[int]]
"""Goes through the steps of a run, and may show how far it is."""


class FitPlan(Protocol):
    """What a kind of estimator plans from public facts, before any record is read."""

    @property
    def loss(self) -> Loss:
        """What the whole fit reveals about one unit."""

    @property
    def delta(self) -> float:
        """The delta at which the loss is read."""

    @property
    def epsilon(self) -> float | None:
        """The epsilon that was asked for."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""


@final
@dataclass(frozen=True)
class Rehearsal:
    """What a fit would cost, and possible mistakes that raise no error."""

    loss: Loss
    possible_mistakes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"a fit costs {self.loss!r}", "nothing was charged; no cell was read; possible:"]
        return "\n".join([*lines, *(f"- {mistake}" for mistake in self.possible_mistakes)])


@final
@dataclass(frozen=True)
class PreparedFit:
    """A fit that was checked and planned; no cell has been read."""

    declared: Declared
    opened: OpenedRows
    plan: Any
    loss: Loss
    parameters: dict[str, Any]


class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """Abstract base of the private estimators; works wherever scikit-learn's estimators do.

    Facts about the data are declared, by ``schema`` or by parameters, never by both: a parameter
    that the schema declares (``classes``, ``target_bounds``, ``bounds``, ``feature_norm``,
    ``categories``, ``expected_rows``, ``rows_per_person``) must be None then. With a schema the
    estimator takes data frames of pandas, polars and pyarrow, mappings of columns, paths of CSV
    and Parquet files and tables of :func:`discreet.data.read_table`; without one it takes arrays
    of numbers. A schema that was learned from the records adds what it cost to the loss of the
    fit, unless it has the receipt of a ledger that paid; then the certificate names that.

    After a fit, ``certificate_`` is the guarantee, ``plan_`` the public plan, ``n_features_in_``
    the number of columns of ``X`` and, with a schema, ``encoded_names_`` the names of the columns
    of encoded rows.

    To write a kind of your own, see the page on learners, and define:

    ``_plan(declared)``
        Return a plan (:class:`FitPlan`) from a :class:`Declared`.
    ``_learn(plan, rows, source, track)``
        Return the released model as a dictionary of arrays. ``rows.all()`` reads all rows,
        ``rows.batches()`` reads them in parts.
    ``_restore(arrays)``
        Set the fitted attributes from such arrays.
    ``_target``
        ``"classes"``, ``"number"`` or None; :class:`PrivateClassifier` and
        :class:`PrivateRegressor` set it, and predict by ``_class_scores`` and ``_values``.
    ``_encoding``
        What a schema's rows become: ``"vectors"`` (:class:`discreet.data.Encoding`) or
        ``"codes"``, one column each.
    """

    epsilon: float
    schema: Schema | None = None
    relation: Relation | str = Relation.ADD_REMOVE
    insecure_seed: int | None = None
    plan_: Any
    certificate_: Certificate
    n_features_in_: int

    _target: ClassVar[str | None] = None
    _encoding: ClassVar[str] = "vectors"
    _takes_persons: ClassVar[bool] = False
    _takes_labels: ClassVar[bool] = False
    _needs_persons: ClassVar[bool] = False
    _only_two_classes: ClassVar[bool] = False
    _single_precision: ClassVar[bool] = False
    _takes_sparse: ClassVar[bool] = False
    # Set where the caller charges what the schema cost together with this fit.
    _schema_is_counted: bool = False

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        KINDS.setdefault(cls.__name__, cls)

    # --- what the kinds define ----------------------------------------------------------

    @abstractmethod
    def _plan(self, declared: Declared) -> Any:
        """Return a plan of the whole fit, from public facts."""

    @abstractmethod
    def _learn(
        self, plan: Any, rows: Rows, source: Source, track: Track
    ) -> dict[str, NDArray[Any]]:
        """Run the plan on private rows and return the released model as arrays."""

    @abstractmethod
    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Set the fitted attributes; arrays that cannot be a model of this kind raise."""

    def _read_plan(self, document: Mapping[str, Any], declared: Declared) -> Any:
        """Return the plan of a saved model from its JSON, or make it again."""
        del document
        return self._plan(declared)

    @classmethod
    def _stated_plan(cls, certificate: Certificate) -> Any:
        """Return the plan that a certificate of this kind states; its loss is computed again."""
        raise NotApplicable(f"the plan of {certificate.learner} cannot be read off a certificate")

    def _public_plan(self, plan: Any) -> dict[str, Any]:
        """Return what a certificate says of the plan."""
        found: dict[str, Any] = plan.to_json()
        return found

    def _run_facts(self) -> dict[str, Any]:
        """Return what else was released about the run, for the certificate."""
        return {}

    def _randomness(self, source: Source) -> Mapping[str, str]:
        """Return where the noise of the fit came from."""
        return source.provenance

    def _cells_are_values(self) -> bool:
        """Whether cells are categories by value, and not numbers."""
        return False

    def _declared(self) -> Declared:
        """Return what the schema or the parameters declare."""
        return declare(self)

    # --- learning -----------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        persons: Any = None,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        unit: str | None = None,
        track: Track | None = None,
    ) -> Self:
        """Learn; with a ledger, charge ``dataset`` before records are read.

        Parameters
        ----------
        X
            The rows: an array of numbers or, with a schema, a data frame, a mapping of columns,
            the path of a file, a table, or a bounded table of :func:`discreet.engines.open_table`.
        y
            The targets. None with a schema if the target is among the columns of ``X``.
        persons
            Whose row each one is: the first ``rows_per_person`` of each person are used, rows
            without a person are not. None with a schema that names the column of persons.
            Under ``replace`` there are no persons: how many rows they own would have to be
            public.
        ledger, dataset
            The ledger to charge, and the dataset in it.
        unit
            Whom the guarantee protects, where the ledger has another word for it than row or
            person. If it is not "person" and there are no persons, it is the caller's promise
            that nobody owns two rows, and the certificate repeats it.
        track
            Wraps the sequence of steps, to show progress.

        Returns
        -------
        Self
            The fitted estimator.

        Raises
        ------
        InvalidValue, NotApplicable, RelationMismatch
            If parameters, declarations or the form of the data do not fit; nothing was charged.
        BudgetExceeded
            If the budget is too small; nothing was charged, and a model that was fitted before
            is kept.

        """
        self._abandon_batches()
        ready = self._plan_fit(X, y, persons, unit)
        bits = source(insecure_seed=self.insecure_seed)
        with self._open_charge(ready, ledger, dataset) as charge:
            self._begin(ready)
            rows = Rows(ready.opened, ready.declared, bits)
            arrays = self._learn(
                ready.plan, rows, bits, (lambda steps: steps) if track is None else track
            )
            self._conclude(ready, arrays, bits, charge)
        return self

    def planned(self, *, features: int | None = None, rows: int | None = None) -> Any:
        """Return the plan that :meth:`fit` will make; it follows from public facts alone.

        Where a person may own several rows, the plan is for a fit that is told whose they are.

        Parameters
        ----------
        features
            The number of columns, where no schema declares them.
        rows
            The public number of rows under ``replace``, where none is declared.
        """
        return self._plan(self._declared_without_rows(features, rows))

    def planned_loss(self, *, features: int | None = None, rows: int | None = None) -> Loss:
        """Return what :meth:`fit` will charge; it follows from public facts, and nothing is read.

        It is the loss of the plan and, if the schema was learned and nobody has paid for that,
        what the schema cost. The parameters are those of :meth:`planned`.
        """
        declared = self._declared_without_rows(features, rows)
        return self._whole_loss(self._plan(declared), declared)

    def _declared_without_rows(self, features: int | None, rows: int | None) -> Declared:
        declared = self._declared()
        several = declared.rows_per_person > 1
        return replace(
            declared,
            width=declared.width or features,
            rows=rows,
            unit=stated_unit(None, persons=several),
            together=several,
        )

    def rehearse(self, X: Any, y: Any = None, *, persons: Any = None) -> Rehearsal:
        """Try out a fit on public facts: nothing is charged, and no cell is read.

        What :meth:`fit` would refuse is refused here. The result says what a fit costs, and which
        of the usual mistakes could be there without any error: undeclared labels, cells that are
        all repaired. How many cells are repaired is a private fact, for
        :func:`discreet.data.plan_repairs`.
        """
        ready = self._plan_fit(X, y, persons, None)
        found: list[str] = []
        if self.schema is not None:
            data = training_table(self.schema, X, y, persons)
            if not isinstance(data, Table | BoundedTable):
                found += map(str, possible_mistakes(data, self.schema))
        else:
            found.append(
                "features: cells that are no number (texts, another separator) would be repaired, "
                "all of them if need be; numbers out of the declared bounds would be clipped"
            )
            if ready.declared.classes is not None:
                known = ", ".join(map(str, ready.declared.classes.tolist()[:8]))
                found.append(
                    f"targets: labels that were not declared count for nothing; declared: {known}"
                )
        return Rehearsal(ready.loss, tuple(found))

    def _plan_fit(
        self,
        X: Any,
        y: Any,
        persons: Any,
        unit: str | None,
        declared: Declared | None = None,
    ) -> PreparedFit:
        """Check what was handed over, without reading a cell, and plan the fit."""
        declared = self._declared() if declared is None else declared
        opened = open_rows(self, declared, X, y, persons)
        self._look_at(opened.looks)
        cap = declared.rows_per_person
        if cap > 1 and self._needs_persons and not opened.owned:
            raise InvalidValue(
                "persons", None, f"whose row each one is, because a person owns up to {cap} rows"
            )
        public = declared.relation is Relation.REPLACE
        declared = replace(
            declared,
            width=opened.width,
            rows=opened.rows if public else None,
            unit=stated_unit(unit, persons=opened.owned or cap > 1),
            together=cap > 1 and opened.owned and opened.table is None,
        )
        plan = self._plan(declared)
        loss = self._whole_loss(plan, declared)
        return PreparedFit(declared, opened, plan, loss, self.get_params(deep=False))

    def _look_at(self, looks: Mapping[str, Any]) -> None:
        """Take note of how the columns are called, before the plan is made."""

    def _whole_loss(self, plan: Any, declared: Declared) -> Loss:
        """Return the loss of the plan, and of learning the schema if that was not paid for."""
        loss: Loss = plan.loss
        if self._schema_is_counted:
            return loss
        return with_schema_cost(loss, declared.schema, float(plan.delta))

    def _open_charge(self, ready: PreparedFit, ledger: Ledger | None, dataset: str | None) -> Any:
        return charged(
            ledger,
            dataset,
            loss=ready.loss,
            delta=float(ready.plan.delta),
            purpose=type(self).__name__,
            unit=ready.declared.unit,
        )

    def _begin(self, ready: PreparedFit) -> None:
        """Drop what was fitted before: it is another release, and no certificate outlives it."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        self._describe(ready.declared, ready.opened.looks)

    def _abandon_batches(self, error: BaseException | None = None) -> None:
        """Drop sums that an unfinished ``partial_fit`` has left; only one-pass kinds have any."""

    def _describe(self, declared: Declared, looks: Mapping[str, Any]) -> None:
        self._facts = declared
        self.__dict__.update(looks)
        if declared.classes is not None:
            self.classes_ = declared.classes
        if declared.schema is not None:
            by_column = self._encoding == "codes"
            names = declared.schema.features if by_column else Encoding(declared.schema).names
            self.encoded_names_ = np.array(list(names), dtype=object)

    def _conclude(
        self,
        ready: PreparedFit,
        arrays: dict[str, NDArray[Any]],
        source: Source,
        charge: Charge | None,
    ) -> None:
        """Set what was learned, write its certificate, and have the ledger record both."""
        declared, plan = ready.declared, ready.plan
        self._set_plan(plan)
        self._restore(arrays)
        self._arrays = arrays
        self._head = self._make_head(ready)
        learned = None if declared.schema is None else declared.schema.learned
        certificate = Certificate.of(
            ready.loss,
            delta=float(plan.delta),
            learner=type(self).__name__,
            plan={**self._certified_facts(), **self._run_facts(), **_schema_cost(learned)},
            unit=declared.unit,
            randomness=self._randomness(source),
            assumptions=_schema_paid(learned),
        )
        conclude(self, certificate, charge)

    def _set_plan(self, plan: Any) -> None:
        self.plan_ = plan

    def _certified_facts(self) -> dict[str, Any]:
        """Return what a certificate must say of a model, which a loaded one is held against."""
        declared = self._facts
        facts = {**self._public_plan(self.plan_), "unit": declared.unit}
        if self._takes_persons:
            facts["rows_per_person"] = declared.rows_per_person
        schema = declared.schema
        facts["features"] = declared.features
        return {**facts, "schema_hash": None if schema is None else schema.content_hash}

    # --- predicting ---------------------------------------------------------------------

    def _encoded_rows(self, X: Any) -> NDArray[Any]:
        """Return rows to predict for as the model takes them; an unfitted estimator raises."""
        check_is_fitted(self, "certificate_")
        return rows_to_judge(self, self._facts, X)

    @property
    def takes_codes(self) -> bool:
        """Whether an encoded row has one code or number a column, and not a vector."""
        return self._encoding == "codes"

    def encoded(self, X: Any) -> NDArray[Any]:
        """Return the rows of a table as :meth:`for_encoded_rows` takes them, without the target.

        Raises
        ------
        NotApplicable
            If the estimator has no schema.

        """
        if self.schema is None:
            raise NotApplicable("this estimator has no schema and takes arrays as they are")
        return rows_to_judge(self, self._declared(), X)

    def for_encoded_rows(self) -> Self:
        """Return the same estimator, fitted or not, for rows that are encoded already.

        Its parameters state what the schema declares, so it takes the arrays of
        :meth:`encoded` and no frames. Its classes are still the words of the
        schema. It is for attacks and experiments, and is not saved.

        Raises
        ------
        NotApplicable
            If there is no schema: then rows are taken as they are.

        """
        if self.schema is None:
            raise NotApplicable("this estimator has no schema and takes arrays as they are")
        fitted = "certificate_" in vars(self)
        declared = self._facts if fitted else self._declared()
        stated = {name: getattr(declared, name) for name in DECLARATIONS if hasattr(self, name)}
        if declared.classes is not None:
            stated["classes"] = declared.classes.tolist()
        twin: Self = clone(self).set_params(schema=None, **stated)
        if fitted:
            twin.__dict__.update({name: vars(self)[name] for name in vars(self) if name[-1] == "_"})
            for name in ("encoded_names_", "feature_names_in_"):
                delattr(twin, name)
            twin._facts = replace(declared, schema=None)
            twin.n_features_in_ = declared.features
        return twin

    def targets_of(self, X: Any, y: Any = None) -> NDArray[Any]:
        """Return the targets of a table in the words of the schema, to compare predictions with.

        Every row has one, whoever owns it; cells that break the schema are repaired.

        Raises
        ------
        NotApplicable
            If the estimator has no schema.

        """
        if self.schema is None:
            raise NotApplicable("this estimator has no schema: targets are an array beside X")
        return targets_to_judge(self._declared(), X, y)

    # --- files --------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file of arrays and JSON, atomically and without pickle.

        Raises
        ------
        NotFittedError
            If there is no fitted model.
        InvalidValue
            If a parameter is something that no file holds, such as a function.

        """
        head, arrays = self._contents()
        head["certificate"] = self.certificate_.to_json()
        write_model(path, kind=type(self).__name__, head=head, arrays=arrays)

    def save_directory(self, path: str | Path) -> None:
        """Write the fitted model to a new directory: model, schema and certificate, or nothing.

        :func:`~discreet.learn.load_model` reads it; ``discreet certify`` publishes it.

        Raises
        ------
        FileUnusable
            If there is something of that name, or it cannot be written.

        """
        check_is_fitted(self, "certificate_")
        write_directory(path, self)

    def _contents(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the head and the arrays of the file, as they were when the fit ended."""
        check_is_fitted(self, "certificate_")
        if "_head" not in vars(self):
            raise NotApplicable(
                "this is an edited model or a view: save the one that was fitted, with its schema"
            )
        return dict(self._head), self._arrays

    def _make_head(self, ready: PreparedFit) -> dict[str, Any]:
        plan, declared, parameters = ready.plan, ready.declared, dict(ready.parameters)
        parameters["epsilon"] = plan.epsilon
        if parameters.get("classes") is not None and declared.classes is not None:
            parameters["classes"] = declared.classes.tolist()
        head = {"parameters": parameters, "plan": plan.to_json(), **feature_head(self)}
        if declared.schema is not None:
            # A schema says what the columns are; n_features counts those of encoded rows.
            head |= {"n_features": declared.features, "feature_names": None}
        return head

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model that :meth:`save` wrote.

        Raises
        ------
        SchemaError
            If the file is damaged, is of another kind, or is not what its certificate is of.

        """
        head, arrays = read_model(path, kind=cls.__name__)
        return cls._from_file(head, arrays)

    @classmethod
    def _from_file(
        cls, head: dict[str, Any], arrays: dict[str, NDArray[Any]], schema: Schema | None = None
    ) -> Self:
        """Return the model of a file; ``schema`` is that of its directory.

        What does not belong together raises. Models of 0.1, which were told a schema's facts
        instead of the schema, are read too.
        """
        parameters, old = current_parameters(head["parameters"], schema)
        model: Self = cls(**cls._read_parameters(parameters))
        certificate = Certificate.from_json(head["certificate"])
        set_features(model, head)
        released = arrays
        try:
            declared = replace(model._declared(), unit=certificate.unit)
            if declared.schema is None:
                declared = replace(declared, width=model.n_features_in_)
            require_same_facts({"features": model.n_features_in_}, {"features": declared.features})
            if old.declarations and declared.schema is not None:
                order = old.compare(declared)
                released = arrays if order is None else model._in_order(arrays, order, declared)
            looks = {} if declared.schema is None else schema_looks(declared.schema)
            model._describe(declared, looks)
            model._set_plan(model._read_plan(head.get("plan", {}), declared))
        except (InvalidValue, NotApplicable, KeyError) as error:
            raise SchemaError(f"a saved model contradicts itself: {error}") from None
        model._compare_with(certificate, old)
        if "classes" in released and declared.classes is not None:
            known = {"classes": released["classes"].tolist()}
            require_same_facts({"classes": declared.classes.tolist()}, known)
        model._restore(released)
        # As they were read, so that a copy that is saved has the same digest.
        model._arrays, model._head = arrays, head
        model.certificate_ = certificate
        return model

    def _compare_with(self, certificate: Certificate, old: OldFacts) -> None:
        """Raise unless a certificate speaks of this model, and of what its plan costs."""
        plan, declared = self.plan_, self._facts
        require_same_facts({"epsilon": self.epsilon}, {"epsilon": plan.epsilon})
        facts = {**self._certified_facts(), "unit": certificate.unit}
        if declared.schema is None:
            facts["schema_hash"] = old.schema_hash
        elif old.declarations and old.by_code:
            facts.pop("classes", None)  # they were codes; which ones was compared above
        known = certificate.plan
        # Not every learner of 0.1 wrote these two.
        facts = {k: v for k, v in facts.items() if k in known or k not in ("features", "unit")}
        require_same_facts(facts, known)
        counted = known.get("schema_was_learned", False)
        certificate.check_covers(plan.loss if counted else self._whole_loss(plan, declared))

    @classmethod
    def _read_parameters(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of the constructor from those of a file."""
        return parameters

    def _in_order(
        self, arrays: dict[str, NDArray[Any]], order: list[int], declared: Declared
    ) -> dict[str, NDArray[Any]]:
        """Return the arrays of a model of 0.1 with its classes in their order of today."""
        raise NotApplicable(f"{type(self).__name__} has no models of 0.1 in directories")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = self._takes_sparse
        tags.non_deterministic = self.insecure_seed is None
        return tags


class PrivateClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """Abstract base of private estimators of classes.

    A kind defines ``_class_scores(rows)`` beside the methods of :class:`PrivateEstimator`.
    """

    classes: Any
    classes_: NDArray[Any]
    _target = "classes"

    @abstractmethod
    def _class_scores(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Return a score for each class, rows x classes, whose softmax are the probabilities."""

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row."""
        best = np.argmax(self._class_scores(self._encoded_rows(X)), axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return P(class | row), rows x classes, in the order of ``classes_``."""
        return np.asarray(softmax(self._class_scores(self._encoded_rows(X)), axis=1))

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return log P(class | row), rows x classes, in the order of ``classes_``."""
        return np.asarray(log_softmax(self._class_scores(self._encoded_rows(X)), axis=1))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the mean accuracy; with a schema, targets are read as in training."""
        if self.schema is not None:
            y = self.targets_of(X, y)
        return float(super().score(X, y, sample_weight))


class PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """Abstract base of private estimators of numbers.

    A kind defines ``_values(rows)`` beside the methods of :class:`PrivateEstimator`.
    """

    target_bounds: Any
    _target = "number"

    @abstractmethod
    def _values(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Return what the model says about each row, where the bounds are -1 and 1."""

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the expected target of each row, inside its bounds."""
        values = self._values(self._encoded_rows(X))
        ends = self._facts.target_bounds
        return np.clip(self._facts.unscaled_target(values), *ends)  # type: ignore[misc]

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return R^2; with a schema, targets are read as in training."""
        if self.schema is not None:
            y = self.targets_of(X, y)
        return float(super().score(X, y, sample_weight))


def _schema_cost(learned: Learned | None) -> dict[str, Any]:
    """Return what a certificate says of the cost of a schema that was learned."""
    if learned is None:
        return {}
    return {"schema_cost": {**learned.to_json(), "counted": learned.receipt is None}}


def _schema_paid(learned: Learned | None) -> tuple[str, ...]:
    if learned is None or learned.receipt is None:
        return ()
    entry = learned.receipt.get("entry", {})
    where = f"entry {entry.get('seq', '?')} of dataset {entry.get('dataset', '?')!r}"
    text = (
        "the bounds or categories of the schema were learned from the same records before; this "
        f"certificate does not count that, because a ledger was charged for it ({where})"
    )
    return (text,)
