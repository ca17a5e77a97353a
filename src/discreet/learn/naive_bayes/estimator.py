"""What the two naive Bayes estimators share: pay, collect exactly, add noise once, predict.

The order is always the same. Parameters and the shape of the data are checked; the loss, which
depends on declared facts only, is charged; then records are read. The exact sums stay inside the
estimator until :meth:`finish` adds the noise and drops them.
"""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, clone  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped]

from discreet import _validate
from discreet.certificate import Certificate
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.charging import charged, stated_unit
from discreet.learn.declared import declared_classes, label_codes
from discreet.learn.inputs import number_features, raw_features
from discreet.learn.intake import RehearsedEstimator, SchemaClassifier
from discreet.learn.naive_bayes.noise import TableNoise
from discreet.learn.naive_bayes.statistics import CategoryCounts, SoftBins
from discreet.learn.saving import (
    conclude,
    feature_head,
    read_model,
    same_facts,
    set_features,
    write_model,
)
from discreet.learn.schema_facts import feature_columns
from discreet.privacy import Loss, Relation
from discreet.randomness import source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.data.schema import Schema
    from discreet.data.tables import Table
    from discreet.ledger import Charge, Ledger
    from discreet.randomness import Source

__all__ = ["TableNaiveBayes"]


@dataclass
class _Collection:
    """Exact private sums between the first batch and :meth:`TableNaiveBayes.finish`."""

    classes: NDArray[Any]
    noise: TableNoise
    statistics: CategoryCounts | SoftBins
    source: Source
    frame: ExitStack
    charge: Charge | None
    unit: str
    epsilon: float
    delta: float


class TableNaiveBayes(SchemaClassifier, RehearsedEstimator, BaseEstimator):  # type: ignore[misc]
    """Abstract base of the two estimators; see :class:`PrivateCategoricalNB`."""

    epsilon: float
    delta: float
    classes: Any
    relation: Relation | str
    noise: str
    schema: Schema | None
    schema_hash: str | None
    insecure_seed: int | None

    # --- what the two kinds define ------------------------------------------------------

    @abstractmethod
    def _open_statistics(self, classes: int) -> tuple[CategoryCounts | SoftBins, TableNoise]:
        """Check the declarations and return empty sums with the noise that they will get."""

    def _has_values(self) -> bool:
        """Whether features are categories by value, and not numbers."""
        return False

    def _encoded(self, table: Table) -> NDArray[Any]:
        return feature_columns(table, table.schema)

    def _encoded_width(self, schema: Schema) -> int:
        return len(schema.features)

    @abstractmethod
    def _batch(self, features: NDArray[Any]) -> Any:
        """Turn features into what the statistics take."""

    @abstractmethod
    def _set_model(self, noisy: NDArray[np.int64], noise: TableNoise) -> None:
        """Post-process the noisy cells into fitted attributes."""

    @abstractmethod
    def _log_likelihoods(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """Return log P(features | class), rows x classes."""

    @abstractmethod
    def _plan(self) -> dict[str, Any]:
        """Return the public facts for the certificate."""

    # --- learning -----------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        unit: str | None = None,
    ) -> Self:
        """Learn from all records at once; with a ledger, charge ``dataset`` before reading them.

        ``unit`` says what one row is where the ledger has another word for it, such as "patient":
        it is the caller's promise that nobody owns two, and the certificate repeats it.
        """
        self._drop_collection()
        self._add(X, y, self.classes, ledger, dataset, unit)
        return self.finish()

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        *,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        unit: str | None = None,
    ) -> Self:
        """Add a batch of records to the exact sums; nothing is released before :meth:`finish`.

        The first batch charges the ledger for the whole model, however many batches follow: a
        record is in one batch only, and noise is added once. ``classes`` may be given here, with
        the first batch, instead of in the constructor; ``unit`` is that of :meth:`fit`.
        """
        if "_collecting" not in self.__dict__ and "certificate_" in self.__dict__:
            raise NotApplicable(
                "this model is finished: adding records and releasing it again would be a second "
                "release at its own cost; clone the estimator, or call fit"
            )
        first: _Collection | None = self.__dict__.get("_collecting")
        known = self.classes if first is None else first.classes
        if classes is not None and known is not None:
            given, before = declared_classes(classes), declared_classes(known)
            if not np.array_equal(given, before):
                raise InvalidValue("classes", classes, f"the declared classes {before.tolist()}")
        self._add(X, y, self.classes if classes is None else classes, ledger, dataset, unit)
        return self

    def finish(self) -> Self:
        """Add the noise, once, to the exact sums, build the model and drop the sums."""
        collection: _Collection | None = self.__dict__.get("_collecting")
        if collection is None:
            raise NotApplicable("there is nothing to finish: call partial_fit with a batch before")
        with collection.frame:
            noisy = collection.noise.release(collection.statistics.cells(), collection.source)
            del self._collecting
            self.classes_ = collection.classes
            self._set_model(noisy, collection.noise)
            certificate = Certificate.of(
                collection.noise.loss,
                delta=collection.delta,
                learner=type(self).__name__,
                plan={
                    "noise": collection.noise.kind,
                    "noise_in_steps": collection.noise.parameter,
                    "steps_per_record": collection.noise.unit,
                    "target_epsilon": collection.epsilon,
                    "features": int(self.n_features_in_),
                    "classes": self.classes_.tolist(),
                    "schema_hash": self.schema_hash,
                    "unit": collection.unit,
                    **self._plan(),
                },
                randomness=collection.source.provenance,
            )
            conclude(self, certificate, collection.charge)
        return self

    def _planned_loss(self, X: Any, y: Any, persons: Any) -> Loss:
        self.classes_ = declared_classes(self.classes)
        relation = Relation.parse(self.relation)
        opened = self._open_rows(X, y, persons, relation=relation, raw=self._has_values())
        return self.loss_for(opened.width)

    def loss_for(self, features: int) -> Loss:
        """Return what a model of so many features costs; nothing is read."""
        planned = clone(self)
        planned.n_features_in_ = _validate.integer("features", features, at_least=1)
        labels = declared_classes(self.classes)
        loss: Loss = planned._open_statistics(labels.size)[1].loss
        return loss

    def _add(
        self,
        X: Any,
        y: Any,
        classes: Any,
        ledger: Ledger | None,
        dataset: str | None,
        unit: str | None,
    ) -> None:
        collection: _Collection | None = self.__dict__.get("_collecting")
        if collection is not None and (ledger is not None or dataset is not None):
            raise InvalidValue("ledger", ledger, "none after the first batch, which was charged")
        labels = declared_classes(classes) if collection is None else collection.classes
        opened = self._open_rows(
            X,
            y,
            relation=Relation.parse(self.relation),
            reset=collection is None,
            raw=self._has_values(),
        )
        if collection is None:
            collection = self._open(labels, ledger, dataset, stated_unit(unit, persons=False))
            self._collecting = collection
        try:
            features, targets, _ = opened.read(collection.source)
            codes = label_codes(targets, labels)
            collection.statistics.add(codes, self._batch(features))
        except BaseException as error:
            self._drop_collection(error)
            raise

    def _open(
        self, labels: NDArray[Any], ledger: Ledger | None, dataset: str | None, unit: str
    ) -> _Collection:
        statistics, noise = self._open_statistics(labels.size)
        bits = source(insecure_seed=self.insecure_seed)
        target, slack = float(self.epsilon), float(self.delta)
        purpose = f"{type(self).__name__}: naive Bayes"
        frame = ExitStack()
        charge = frame.enter_context(
            charged(
                ledger,
                dataset,
                loss=noise.loss,
                delta=slack,
                purpose=purpose,
                unit=unit,
            )
        )
        # What was fitted before is another release: its certificate must not outlive it.
        self.__dict__.pop("certificate_", None)
        return _Collection(labels, noise, statistics, bits, frame, charge, unit, target, slack)

    def _drop_collection(self, error: BaseException | None = None) -> None:
        collection: _Collection | None = self.__dict__.pop("_collecting", None)
        if collection is not None:
            kind = None if error is None else type(error)
            collection.frame.__exit__(kind, error, None)

    # --- predicting ---------------------------------------------------------------------

    def _joint(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self, "certificate_")
        if self.schema is not None:
            features = self._table_to_judge(X)
        else:
            read = raw_features if self._has_values() else number_features
            features = read(self, X, reset=False, relation=Relation.parse(self.relation))
        return np.asarray(self._log_likelihoods(features) + self.class_log_prior_)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row."""
        best = np.argmax(self._joint(X), axis=1)
        return np.asarray(self.classes_[best])

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return log P(class | row), rows x classes."""
        joint = self._joint(X)
        joint = joint - joint.max(axis=1, keepdims=True)
        return np.asarray(joint - np.log(np.exp(joint).sum(axis=1, keepdims=True)))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return P(class | row), rows x classes."""
        return np.asarray(np.exp(self.predict_log_proba(X)))

    # --- keeping ------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file of arrays and JSON, atomically and without pickle."""
        check_is_fitted(self, "certificate_")
        head, arrays = self._contents()
        head["certificate"] = self.certificate_.to_json()
        write_model(path, kind=type(self).__name__, head=head, arrays=arrays)

    def _contents(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        parameters = {**self.get_params(), **self._saved_parameters()}
        return {"parameters": parameters, **feature_head(self)}, self._saved_arrays()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model that :meth:`save` wrote."""
        head, arrays = read_model(path, kind=cls.__name__)
        model = cls(**head["parameters"])
        model.classes_ = arrays["classes"]
        set_features(model, head)
        model.certificate_ = Certificate.from_json(head["certificate"])
        declared = {"classes": declared_classes(model.classes).tolist()}
        same_facts(declared, {"classes": model.classes_.tolist()})
        found = {**declared, "features": model.n_features_in_, **model._plan()}
        found |= {"target_epsilon": float(model.epsilon), "schema_hash": model.schema_hash}
        same_facts(found, model.certificate_.plan)
        model.certificate_.check_covers(model.loss_for(model.n_features_in_))
        model._restore(arrays)
        return model

    def _saved_parameters(self) -> dict[str, Any]:
        return {
            "classes": self.classes_.tolist(),
            "epsilon": self.certificate_.plan["target_epsilon"],
            "relation": Relation.parse(self.relation).value,
        }

    def _saved_arrays(self) -> dict[str, NDArray[Any]]:
        return {"classes": self.classes_, "class_log_prior": self.class_log_prior_}

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.class_log_prior_ = arrays["class_log_prior"]

    def __getstate__(self) -> Any:
        if "_collecting" in self.__dict__:
            raise NotApplicable("it holds exact private sums until finish() and is not pickled")
        return super().__getstate__()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.non_deterministic = self.insecure_seed is None
        return tags
