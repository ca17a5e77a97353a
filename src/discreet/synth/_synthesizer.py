"""The synthesis as a scikit-learn estimator."""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

from sklearn.base import BaseEstimator  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped]

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.privacy import Loss, Relation
from discreet.synth._adaptive import METHODS
from discreet.synth._model import Marginal, SyntheticModel
from discreet.synth._plan import SynthesisPlan

if TYPE_CHECKING:
    from discreet.certificate import Certificate
    from discreet.data import Schema
    from discreet.ledger import Ledger


@final
class Synthesizer(BaseEstimator):  # type: ignore[misc]
    """Learn a table privately, and draw rows like it.

    **Guarantee.** Everything that is released, the model and all rows drawn from it, is
    (epsilon, delta)-DP for one row, or for one person of the schema, under ``relation``.

    Parameters
    ----------
    epsilon, delta
        The budget. Without a delta it follows from ``expected_rows`` of the schema.
    schema
        What is public about the table. Nothing is read off the data.
    method
        ``"oneshot"``, ``"mst"`` or ``"aim"``.
    target
        The column that matters most; that of the schema by default.
    relation
        ``"add_remove"`` or ``"replace"``.
    groups, max_cells, bins, forbid, ordered, missing
        As for :class:`OneShot`.
    insecure_seed
        For tests only: the noise can be computed from it.

    >>> from discreet.data import Categorical, Integer, Schema
    >>> schema = Schema({"age": Integer(0, 9), "ill": Categorical(["yes", "no"], other="no")})
    >>> rows = {"age": [3, 4, 5, 6] * 250, "ill": ["no", "no", "yes", "yes"] * 250}
    >>> made = Synthesizer(epsilon=2, delta=1e-6, schema=schema).fit(rows)
    >>> made.sample(5).column_names, made.certificate_.loss
    (['age', 'ill'], GDP(mu=0.4...))

    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        schema: Schema | None = None,
        method: str = "oneshot",
        target: str | None = None,
        relation: Relation | str = "add_remove",
        groups: int = 32,
        max_cells: int = 8_000,
        bins: Mapping[str, Any] | None = None,
        forbid: Sequence[Mapping[str, Any]] = (),
        ordered: Sequence[Sequence[str]] = (),
        missing: Sequence[str] = (),
        insecure_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.method = method
        self.target = target
        self.relation = relation
        self.groups = groups
        self.max_cells = max_cells
        self.bins = bins
        self.forbid = forbid
        self.ordered = ordered
        self.missing = missing
        self.insecure_seed = insecure_seed

    def planned(self) -> SynthesisPlan:
        """Return the plan that :meth:`fit` will run; it follows from public facts alone."""
        _validate.one_of("method", self.method, tuple(METHODS))
        if self.schema is None:
            raise InvalidValue("schema", None, "a Schema: domains are not read off the data")
        how = METHODS[self.method](
            target=self.target,
            groups=self.groups,
            max_cells=self.max_cells,
            bins=dict(self.bins or {}),
            forbid=self.forbid,
            ordered=self.ordered,
            missing=self.missing,
        )
        return how.plan(self.schema, epsilon=self.epsilon, delta=self.delta, relation=self.relation)

    def planned_loss(self) -> Loss:
        """Return what :meth:`fit` will charge."""
        return self.planned().whole_loss()

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        unit: str | None = None,
        **options: Any,
    ) -> Self:
        """Learn a table; with a ledger, charge ``dataset`` before anything is released.

        Parameters
        ----------
        X
            The table, with all columns of the schema.
        y
            Not used: the target is one of the columns.
        ledger, dataset, unit
            What to charge, and whom it speaks of.
        options
            As for :meth:`SynthesisPlan.run`.

        Returns
        -------
        Self
            With ``model_``, ``plan_`` and ``certificate_``.

        """
        if y is not None:
            raise InvalidValue("y", type(y).__name__, "None: the target is a column of X")
        self.plan_ = self.planned()
        self.model_: SyntheticModel = self.plan_.run(
            X,
            ledger=ledger,
            dataset=dataset,
            unit=unit,
            insecure_seed=self.insecure_seed,
            **options,
        )
        return self

    @property
    def certificate_(self) -> Certificate:
        """The guarantee of the fitted model."""
        return self._fitted().certificate_

    def sample(
        self,
        n: int | None = None,
        *,
        given: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> Any:
        """Return synthetic rows (:meth:`SyntheticModel.sample`)."""
        return self._fitted().sample(n, given=given, seed=seed)

    def marginal(self, *columns: str) -> Marginal:
        """Return a table of the model (:meth:`SyntheticModel.marginal`)."""
        return self._fitted().marginal(*columns)

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file; ``SyntheticModel.load`` reads it."""
        self._fitted().save(path)

    def _fitted(self) -> SyntheticModel:
        check_is_fitted(self, "model_")
        return self.model_
