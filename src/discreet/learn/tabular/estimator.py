"""What the estimators for tables share: declarations, scaling, paying, certificates, files.

The order of :meth:`fit` is always the same. Parameters and the shape of the data are checked;
the loss, which depends on declared facts only, is charged; then records are looked at. A record
that breaks a declaration is repaired by a rule that looks at that record alone: numbers are
clipped to the bounds, what is no number is the middle, and a row with an undeclared label or with
no target has no gradient.
"""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped]

from discreet import _validate
from discreet.certificate import Certificate
from discreet.data.columns import Bounded
from discreet.data.encoding import Encoding
from discreet.data.schema import MOST_ROWS, Schema
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.charging import charged, stated_unit
from discreet.learn.declared import declared_bounds
from discreet.learn.inputs import number_features
from discreet.learn.intake import OpenedRows, RehearsedEstimator, schema_words
from discreet.learn.saving import (
    conclude,
    feature_head,
    read_model,
    same_facts,
    set_features,
    write_model,
)
from discreet.learn.tabular.grid import RAW_STEPS, raw_rows
from discreet.learn.tabular.persons import OwnedRows, owned_rows
from discreet.learn.tabular.plan import default_delta
from discreet.privacy import Loss, Relation
from discreet.randomness import Source, source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.data.tables import Table
    from discreet.ledger import Ledger

__all__ = ["TabularEstimator", "Track", "table_facts"]

Track = Callable[[Iterable[int]], Iterable[int]]
"""Goes through the steps of a run, and may show how far it is."""


def table_facts(schema: Schema, *, classification: bool) -> dict[str, Any]:
    """Return what a schema declares as parameters of these estimators.

    Rows are those of :class:`~discreet.data.encoding.Encoding`, classes are the codes of the
    target, and with persons in the schema the guarantee is for a person.
    """
    if not isinstance(schema, Schema):
        raise InvalidValue("schema", type(schema).__name__, "a discreet.data Schema")
    if schema.target is None:
        raise NotApplicable("the schema declares no target to learn")
    facts: dict[str, Any] = {
        "bounds": [-1.0, 1.0],
        "feature_norm": Encoding(schema).norm_bound,
        "expected_rows": schema.expected_rows,
        "rows_per_person": schema.rows_per_person or 1,
        "schema_hash": schema.content_hash,
    }
    if classification:
        return {**facts, "classes": list(range(len(schema.classes)))}
    target = schema.columns[schema.target]
    if not isinstance(target, Bounded):
        raise NotApplicable("the schema has no numeric target to regress on")
    return {**facts, "target_bounds": list(target.bounds)}


class TabularEstimator(RehearsedEstimator, BaseEstimator):  # type: ignore[misc]
    """Abstract base; see :class:`~discreet.learn.tabular.PrivateLogisticRegression`."""

    epsilon: float
    delta: float | None
    bounds: Any
    feature_norm: float | None
    expected_rows: int | None
    rows_per_person: int
    relation: Relation | str
    schema: Schema | None
    schema_hash: str | None
    insecure_seed: int | None
    _needs_persons: ClassVar[bool] = False

    @classmethod
    def from_schema(cls, schema: Schema, **parameters: Any) -> Self:
        """Return an estimator that is told what the schema declares.

        It reads data frames, mappings of columns and tables of :func:`discreet.data.read_table`
        by itself. With persons in the schema, the guarantee is for a person.
        """
        facts = table_facts(schema, classification=cls._for_classes)
        return cls(**{**schema_words(schema, **facts), **parameters})

    # --- what the kinds define ----------------------------------------------------------

    @abstractmethod
    def _declare(self) -> None:
        """Check and keep what is declared about the target."""

    @abstractmethod
    def _targets(self, answers: NDArray[Any]) -> NDArray[Any]:
        """Return codes (-1: counts for nothing) or numbers in [-1, 1] (NaN: likewise)."""

    @abstractmethod
    def _make_plan(self, rows: int, features: int, unit: str) -> Any:
        """Return a plan with ``loss``, ``epsilon``, ``steps`` and ``to_json``."""

    @abstractmethod
    def _read_plan(self, document: Mapping[str, Any]) -> Any:
        """Return the plan from its JSON; one that does not belong to this model raises."""

    @abstractmethod
    def _learn(
        self,
        plan: Any,
        rows: NDArray[np.float32],
        targets: NDArray[Any],
        owned: OwnedRows | None,
        bits: Source,
        track: Track,
    ) -> Mapping[str, Any]:
        """Run the plan, set the fitted attributes and return more public facts about the run."""

    @abstractmethod
    def _model_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the fitted model."""

    @abstractmethod
    def _set_model(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Set the fitted attributes from such arrays."""

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

        With a schema, ``X`` is a data frame, a mapping of columns or a table; ``y`` may be None if
        the target is among its columns, and so may ``persons``.
        ``persons`` says whose row each one is: the first ``rows_per_person`` of each are used and
        rows without a person are not. Without it the linear models take the promise that nobody
        owns more rows than that. Under ``replace`` there are no persons: how many rows they own
        would have to be public. ``track`` may wrap the sequence of steps, to show progress.

        ``unit`` is whom the guarantee protects where the ledger has another word for it than row
        or person. If it is not "person" and there are no persons, it is the caller's promise that
        nobody owns two rows, and the certificate repeats it.
        """
        opened, plan, whose = self._plan_fit(X, y, persons, unit)
        loss: Loss = plan.loss
        bits = source(insecure_seed=self.insecure_seed)
        purpose = type(self).__name__
        delta = float(plan.delta)
        with charged(
            ledger, dataset, loss=loss, delta=delta, purpose=purpose, unit=whose
        ) as charge:
            # What was fitted before is another release: its certificate must not outlive it.
            self.__dict__.pop("certificate_", None)
            features, answers, persons = opened.read(bits)
            owned = None
            if persons is not None:
                owned = owned_rows(persons, rows=persons.size, cap=self.rows_per_person)
                features, answers = features[owned.rows], answers[owned.rows]
            told = self._learn(
                plan,
                self._rows(features),
                self._targets(answers),
                owned,
                bits,
                (lambda steps: steps) if track is None else track,
            )
            self._keep_plan(plan)
            certificate = Certificate.of(
                loss,
                delta=delta,
                learner=type(self).__name__,
                plan={
                    **plan.to_json(),
                    **told,
                    "unit": whose,
                    "rows_per_person": int(self.rows_per_person),
                    "features": int(self.n_features_in_),
                    "schema_hash": self.schema_hash,
                },
                randomness=bits.provenance,
            )
            conclude(self, certificate, charge)
        return self

    def _planned_loss(self, X: Any, y: Any, persons: Any) -> Loss:
        loss: Loss = self._plan_fit(X, y, persons, None)[1].loss
        return loss

    def _plan_fit(
        self, X: Any, y: Any, persons: Any, unit: str | None
    ) -> tuple[OpenedRows, Any, str]:
        """Check what was handed over, without reading a cell, and plan the run."""
        self._declare()
        relation = Relation.parse(self.relation)
        opened = self._open_rows(X, y, persons, relation=relation, keep_single=True)
        declared_bounds(self.bounds, opened.width)
        self._check_persons(owned=opened.owned)
        whose = stated_unit(unit, persons=opened.owned or self.rows_per_person > 1)
        plan = self._make_plan(self._planned_rows(opened.rows), opened.width, whose)
        self._check_count(plan, opened.rows)
        return opened, plan, whose

    def loss_for(self, features: int, *, rows: int | None = None) -> Loss:
        """Return what :meth:`fit` will charge for tables of so many features; nothing is read.

        ``rows`` is the public number of rows where none is declared, under ``replace``.
        """
        self._declare()
        count = 0 if rows is None else rows
        unit = "row" if self.rows_per_person == 1 else "person"
        plan = self._make_plan(self._planned_rows(count), features, unit)
        if count:
            self._check_count(plan, count)
        loss: Loss = plan.loss
        return loss

    def _keep_plan(self, plan: Any) -> None:
        self.plan_ = plan
        self.n_iter_ = plan.steps

    def _check_count(self, plan: Any, rows: int) -> None:
        """Raise where a plan is for another public number of rows."""

    def _planned_rows(self, count: int) -> int:
        if self.expected_rows is not None:
            return _validate.integer(
                "expected_rows", self.expected_rows, at_least=1, at_most=MOST_ROWS
            )
        if Relation.parse(self.relation) is Relation.REPLACE and count > 0:
            return count
        raise InvalidValue(
            "expected_rows",
            None,
            "the public order of magnitude of the number of rows (under add_remove the number "
            "itself is private)",
        )

    def _delta(self, rows: int) -> float:
        if self.delta is None:
            return default_delta(rows)
        return _validate.real("delta", self.delta, above=0, below=1)

    def _norm(self, features: int) -> float:
        widest = math.sqrt(features) * (1.0 + 2.0**-50)
        if self.feature_norm is None:
            return widest
        return min(_validate.real("feature_norm", self.feature_norm, above=0), widest)

    def _encoded(self, table: Table) -> NDArray[Any]:
        return Encoding(table.schema).features(table, dtype=np.float32)

    def _features(self, X: Any) -> NDArray[Any]:
        if self.schema is not None:
            return self._table_to_judge(X)
        relation = Relation.parse(self.relation)
        features = number_features(self, X, reset=False, relation=relation, keep_single=True)
        declared_bounds(self.bounds, features.shape[1])
        return features

    def _check_persons(self, *, owned: bool) -> None:
        """Raise unless it may be known, or need not be known, whose row each one is."""
        cap = _validate.integer(
            "rows_per_person", self.rows_per_person, at_least=1, at_most=MOST_ROWS
        )
        if owned and Relation.parse(self.relation) is Relation.REPLACE:
            raise NotApplicable("replacing a person may change the number of rows: use add_remove")
        if cap > 1 and self._needs_persons and not owned:
            raise InvalidValue(
                "persons", None, f"whose row each one is, because a person owns up to {cap} rows"
            )

    def _rows(self, features: NDArray[Any]) -> NDArray[np.float32]:
        width = features.shape[1]
        lower, upper = declared_bounds(self.bounds, width)

        def scale(part: NDArray[np.float64]) -> NDArray[np.float64]:
            shares = (np.clip(part, lower, upper) - lower) / (upper - lower)
            return np.nan_to_num(np.clip(2.0 * shares - 1.0, -1.0, 1.0), nan=0.0)

        return raw_rows(features, norm=self._norm(width), scale=scale)

    def _rows_to_judge(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self, "certificate_")
        rows = self._rows(self._features(X))
        return rows.astype(np.float64) / RAW_STEPS

    # --- keeping ------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file of arrays and JSON, atomically and without pickle."""
        check_is_fitted(self, "certificate_")
        head, arrays = self._contents()
        head["certificate"] = self.certificate_.to_json()
        write_model(path, kind=type(self).__name__, head=head, arrays=arrays)

    def _contents(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        lower, upper = declared_bounds(self.bounds, int(self.n_features_in_))
        parameters = {
            **self.get_params(),
            "epsilon": self.plan_.epsilon,
            "bounds": [lower.tolist(), upper.tolist()],
            "relation": Relation.parse(self.relation).value,
        }
        head = {"parameters": parameters, "plan": self.plan_.to_json(), **feature_head(self)}
        return head, self._model_arrays()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model that :meth:`save` wrote."""
        head, arrays = read_model(path, kind=cls.__name__)
        model = cls(**head["parameters"])
        model._declare()
        set_features(model, head)
        model.certificate_ = Certificate.from_json(head["certificate"])
        model._keep_plan(model._read_plan(head["plan"]))
        told = {
            **model.plan_.to_json(),
            "features": model.n_features_in_,
            "rows_per_person": model.rows_per_person,
            "schema_hash": model.schema_hash,
        }
        same_facts({"epsilon": model.epsilon}, {"epsilon": model.plan_.epsilon})
        same_facts(told, model.certificate_.plan)
        model.certificate_.check_covers(model.plan_.loss)
        if "classes" in arrays:
            same_facts(
                {"classes": model.classes_.tolist()}, {"classes": arrays["classes"].tolist()}
            )
        model._set_model(arrays)
        return model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.non_deterministic = self.insecure_seed is None
        return tags
