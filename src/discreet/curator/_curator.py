"""Datasets and their curator: charge first, then touch the data, store and return the answer."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any, final

from discreet import _validate
from discreet._forms import checked_text
from discreet.certificate import CURATOR, Certificate
from discreet.curator._answers import Answer, Answers, NewAnswer
from discreet.curator._plan import QueryPlan, Quote, Released, make_plan, quote
from discreet.curator._queries import Query, query_from_json
from discreet.data import Bounded, Labelled, Schema
from discreet.engines import ENGINES, Table, open_table, stored_columns
from discreet.errors import AlreadyCharged, InvalidValue, LedgerCorrupt, SchemaError
from discreet.ledger import Charge, Ledger
from discreet.privacy import Loss
from discreet.randomness import SystemSource

_STRIPES = 256
_NO_ANSWER = {"answer": None}
_FAILED = "this query failed; what was charged stays charged, and it is not computed again"
_log = logging.getLogger("discreet.curator")


@final
class CuratedDataset:
    """Records of a schema, read and put in line once, when the dataset is first used.

    Making one costs nothing. :meth:`prepare` reads the source and builds the bounded table; faults
    of the source show there, before anything is charged.

    Parameters
    ----------
    name
        What analysts and the ledger call it.
    schema
        What the records are.
    source
        What :func:`discreet.engines.open_table` takes, or a :class:`discreet.engines.Table`.
    engine, table, key, keep
        As of :func:`discreet.engines.open_table`. Workers that share a key see the same rows.
    threads
        How many threads DuckDB uses.
    options
        Other options of the engine.

    >>> from discreet.data import Integer, Schema
    >>> schema = Schema({"age": Integer(0, 120)}, person="who", rows_per_person=2)
    >>> people = CuratedDataset("people", schema=schema, source={"age": [30, 40], "who": "ab"})
    >>> people.describe()["unit"], people.describe()["rows_per_person"]
    ('person', 2)
    """

    def __init__(
        self,
        name: str,
        *,
        schema: Schema,
        source: Any,
        engine: str | Callable[..., Table] = "duckdb",
        table: str | None = None,
        threads: int = 2,
        key: bytes | None = None,
        keep: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        self.name = checked_text("name", name)
        if not isinstance(schema, Schema):
            raise InvalidValue("schema", type(schema).__name__, "a Schema")
        self.schema = schema
        self.columns = stored_columns(schema)
        if not callable(engine):
            _validate.one_of("engine", engine, ENGINES)
        if isinstance(source, Table):
            self.engine_name = type(source).__name__
        else:
            self.engine_name = engine if isinstance(engine, str) else engine.__name__
        _validate.integer("threads", threads, at_least=1, at_most=1024)
        if isinstance(source, Table) and source.schema != schema:
            raise InvalidValue("source", "a table of another schema", "one of this schema")
        if key is not None and len(key) < 32:
            raise InvalidValue("key", "a key", "at least 32 secret bytes")
        if table is not None:
            checked_text("table", table)
        if engine == "duckdb":
            options["threads"] = threads
        self._source = source
        self._key = key
        self._options = {"engine": engine, "table": table, "keep": keep, **options}
        self._table: Table | None = None
        self._opening = threading.Lock()

    def __repr__(self) -> str:
        return f"<CuratedDataset {self.name!r} on {self.engine_name}>"

    @property
    def cap(self) -> int:
        """How many rows of the bounded table one unit of privacy can own."""
        return self.schema.rows_per_person or 1

    def describe(self) -> dict[str, Any]:
        """Public facts only: the schema, the unit of privacy, the cap, the grids."""
        columns: dict[str, Any] = {}
        for name, column in self.schema.columns.items():
            facts: dict[str, Any] = {"type": column.kind}
            stored = self.columns[name]
            if isinstance(column, Labelled) and stored.labels is not None:
                facts["labels"] = list(stored.labels)
            elif isinstance(column, Bounded):
                facts["bounds"] = [
                    end.isoformat() if stored.dates else end for end in (column.lower, column.upper)
                ]
                assert stored.grid is not None
                facts["step"] = str(stored.grid.step)
            columns[name] = facts
        return {
            "name": self.name,
            "schema": self.schema.content_hash,
            "unit": self.schema.unit,
            "rows_per_person": self.schema.rows_per_person,
            "expected_rows": self.schema.expected_rows,
            "columns": columns,
            "engine": self.engine_name,
        }

    def prepare(self) -> None:
        """Read the source and build the bounded table, once; later calls do nothing."""
        self.engine()

    def engine(self) -> Table:
        """The bounded table; it is built by the first call."""
        if self._table is None:
            with self._opening:
                if self._table is None:
                    self._table = (
                        self._source
                        if isinstance(self._source, Table)
                        else open_table(self._source, self.schema, key=self._key, **self._options)
                    )
        return self._table

    def close(self) -> None:
        """Forget the bounded table; the next use reads the source again, under another key."""
        with self._opening:
            if self._table is not None:
                self._table.close()
                self._table = None


@final
class Curator:
    """Answers queries about datasets; never more than the ledger's budgets allow.

    **Order of an answer.** Validate, by public facts; look the question up among the stored
    answers (same dataset, schema and query: same answer, no cost); charge the ledger; compute; draw
    the noise; store the answer durably; return it. Nothing is refunded. Answers are stored in the
    ledger's own store, in one transaction with the outcome of their charge.

    **Failures.** Whether a computation fails may depend on the records, so that is released once as
    well: the charge ends without an answer, and the same request later fails without computing.

    **Crashes.** The charge carries a key made of dataset, question, analyst and the name of the
    stored answers. If a process dies between the charge and the stored answer, no answer has left,
    and the next request finds the open charge by its key: the answer is computed once more under
    that same charge. If two compute at the same time, the first stored answer counts and the other
    is thrown away unseen. A restored backup has another name, so it shares no charges with what it
    was copied from: what both release is paid twice.

    Parameters
    ----------
    ledger
        The budgets, and where answers are stored.
    datasets
        Names to datasets; looked at anew in every call.
    quote_delay
        Seconds after its charge from which on a quote tells that a question was answered. How long
        a computation took may depend on the records: with a delay that is longer than any query
        takes, what quotes say does not.
    clock
        The seconds since 1970, for ``quote_delay``.
    """

    def __init__(
        self,
        ledger: Ledger,
        datasets: Mapping[str, CuratedDataset],
        *,
        quote_delay: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not isinstance(ledger, Ledger):
            raise InvalidValue("ledger", type(ledger).__name__, "a Ledger")
        self._ledger = ledger
        self._datasets = datasets
        self._quote_delay = _validate.real("quote_delay", quote_delay, at_least=0)
        self.clock = clock
        self._answers = Answers(ledger.store)
        self._store = self._answers.identify()
        self._turns = [threading.Lock() for _ in range(_STRIPES)]
        self._agreed: dict[tuple[str, str], str] = {}

    def quote(self, dataset: str, query: Query, *, analyst: str | None = None) -> Quote:
        """Return what a query would cost; that it is free for the analyst who has its answer."""
        found = self._dataset(dataset)
        cost = quote(query, found.schema)
        if analyst is None:
            return cost
        checked_text("analyst", analyst)
        name = _name(found.schema, query, self._genesis_for(found))
        # Without a delay an answer that is dated in this very second counts as well.
        by = self.clock() - self._quote_delay if self._quote_delay else float("inf")
        before = self._answers.received(dataset, name, analyst=analyst, by=by)
        return replace(cost, answered_before=before)

    def ask(
        self,
        dataset: str,
        query: Query,
        *,
        analyst: str,
        project: str | None = None,
        idempotency_key: str | None = None,
    ) -> Answer:
        """Answer a query, charging the budgets of the dataset, the analyst and the project.

        Raises ``InvalidValue`` or ``NotApplicable`` for a query that cannot be answered and
        ``BudgetExceeded`` where the budget is short; both are decided without the data, and
        nothing is charged. The same ``idempotency_key`` with another query is a ``KeyConflict``.
        """
        found = self._dataset(dataset)
        checked_text("analyst", analyst)
        if project is not None:
            checked_text("project", project)
        plan = make_plan(query, found.schema)
        name = _name(found.schema, query, self._genesis_for(found))
        if idempotency_key is not None:
            checked_text("idempotency_key", idempotency_key)
        # One question is computed once even if many ask it at the same time.
        with self._turns[int(name[:8], 16) % _STRIPES]:
            stored = self._answers.find(dataset, name, analyst=analyst, key=idempotency_key)
            if stored is not None:
                return replace(stored, about=plan.about)
            # Faults of the source and limits of the engine show before anything is charged.
            plan.check(found.engine())
            charge = self._ledger.charge(
                dataset,
                plan.loss,
                purpose=query.tag,
                analyst=analyst,
                project=project,
                key=_key(name, self._store, analyst, project),
            )
            return self._answer(
                found, plan, charge, name=name, analyst=analyst, key=idempotency_key
            )

    def certify(self, answer: Answer) -> Certificate:
        """Return the certificate of an answer: what it says, what it cost, and who paid.

        Parameters
        ----------
        answer
            What :meth:`ask` returned.

        Returns
        -------
        Certificate
            The one that learners fill too: ``publish`` adds what every accountant says, and
            ``discreet certificate verify`` computes the loss again from schema and query, and
            looks the answer up in the ledger.

        Raises
        ------
        InvalidValue
            If the desk does not have the dataset.
        """
        return _certify(answer, self._dataset(answer.dataset).schema)

    def _answer(
        self,
        found: CuratedDataset,
        plan: QueryPlan,
        charge: Charge,
        *,
        name: str,
        analyst: str,
        key: str | None,
    ) -> Answer:
        made: NewAnswer | None = None
        ended = charge.outcome != "open"
        # When the answer was made would tell how long that took: it is dated by its charge.
        at = datetime.now(UTC).isoformat(timespec="seconds")
        if not ended:
            # Another worker may end the same charge first: its answer is stored, and counts.
            with suppress(AlreadyCharged), charge.attempt():
                released = _try_release(plan, found)
                if released is None:
                    charge.record(_NO_ANSWER)
                else:
                    computed = Answer(
                        dataset=found.name,
                        query=plan.query,
                        value=released.value,
                        errors=released.bars,
                        loss=plan.loss,
                        receipt=charge.receipt(),
                        answered_before=False,
                        at=at,
                        about=plan.about,
                    )
                    made = NewAnswer(computed, name, analyst=analyst, key=key)
                    charge.record(None, write=made.write)
        answer = None if made is None else made.result()
        if answer is None:
            answer = self._answers.find(found.name, name, analyst=analyst, key=key)
        if answer is None and ended and charge.result != _NO_ANSWER:
            raise LedgerCorrupt(
                f"the answer that entry {charge.seq} of {found.name!r} paid for is not among the "
                "stored ones: somebody removed it; restore a backup"
            )
        if answer is None:
            raise AlreadyCharged(_FAILED, outcome=charge.outcome)
        return answer

    def _dataset(self, name: str) -> CuratedDataset:
        checked_text("dataset", name)
        try:
            found = self._datasets[name]
        except KeyError:
            raise InvalidValue("dataset", name, "the name of a dataset") from None
        if found.name != name:
            raise InvalidValue("dataset", name, f"the name of the dataset itself, {found.name!r}")
        return found

    def _genesis_for(self, found: CuratedDataset) -> str:
        """Return the first hash of the dataset's chain, which no other ledger has.

        Raises unless the ledger bounds the loss of the unit that the schema protects.
        """
        known = self._agreed.get((found.name, found.schema.content_hash))
        if known is not None:
            return known
        view = self._ledger.show(found.name)
        allowed = ("person",) if found.schema.unit == "person" else ("row", "record")
        if view.unit not in allowed:
            raise InvalidValue(
                "dataset",
                found.name,
                f"a schema about the unit of its budget, {view.unit!r}, not {found.schema.unit!r}",
            )
        self._agreed[found.name, found.schema.content_hash] = view.genesis
        return view.genesis


def _try_release(plan: QueryPlan, found: CuratedDataset) -> Released | None:
    """Return what the plan releases, or None if it fails, however it does.

    The error stays here: its text and its kind may speak of a record. A process that is
    stopped does not fail; it may come back to its charge.
    """
    try:
        return plan.release(plan.rows(found.engine()), SystemSource())
    except Exception as error:  # noqa: BLE001 - whatever it is, it happens once
        _log.error("a %s failed: %s", plan.query.tag, type(error).__name__)
        return None


def certified_loss(certificate: Certificate) -> Loss:
    """Return what the question of a certificate costs, computed again from its plan.

    Parameters
    ----------
    certificate
        One that :meth:`Curator.certify` filled.

    Returns
    -------
    Loss
        That of the query under the schema of the plan.

    Raises
    ------
    SchemaError, InvalidValue
        If the plan is damaged.
    """
    schema, query = _read_stated(certificate)
    return quote(query, schema).loss


def answer_faults(certificate: Certificate, ledger: Ledger) -> list[str]:
    """Hold a certificate against the answer that is stored with the ledger.

    Parameters
    ----------
    certificate
        One that :meth:`Curator.certify` filled.
    ledger
        Where the desk charges.

    Returns
    -------
    list of str
        What differs; nothing if the answer is the one that left.

    Raises
    ------
    SchemaError, InvalidValue
        If the plan is damaged.
    """
    schema, query = _read_stated(certificate)
    dataset = str(certificate.plan["dataset"])
    chain = ledger.show(dataset).genesis
    found = Answers(ledger.store).read(dataset, _name(schema, query, chain))
    if found is None:
        return ["the ledger holds no answer to this question under this schema"]
    right = _certify(found, schema)
    names = [one.name for one in fields(right) if one.name != "publication"]
    return [
        f"the {name.replace('_', ' ')} is not that of the answer that left"
        for name in names
        if getattr(certificate, name) != getattr(right, name)
    ]


def _certify(answer: Answer, schema: Schema) -> Certificate:
    cost = quote(answer.query, schema)
    plan = {
        "kind": CURATOR,
        "unit": schema.unit,
        "dataset": answer.dataset,
        "query": answer.query.to_json(),
        "schema": schema.to_toml(),
    }
    if schema.learned is not None:
        plan["schema_cost"] = {**schema.learned.to_json(), "counted": False}
    said = answer.to_json()
    run = {"value": said["value"], "errors": said["errors"], "about": cost.about, "at": answer.at}
    made = Certificate.of(
        answer.loss,
        delta=float(cost.delta),
        learner=CURATOR,
        plan=plan,
        run=run,
        randomness=SystemSource().provenance,
        receipt=said["receipt"],
    )
    return replace(made, versions={})  # nothing recorded them when the answer left


def _read_stated(certificate: Certificate) -> tuple[Schema, Query]:
    plan = certificate.plan
    if certificate.learner != CURATOR or plan.get("kind") != CURATOR:
        raise SchemaError("this certificate was not filled by a curator's desk")
    schema = Schema.from_toml(str(plan["schema"]))
    if schema.unit != certificate.unit:
        raise SchemaError("a certificate and its schema disagree about the unit")
    return schema, query_from_json(plan["query"])


def _name(schema: Schema, query: Query, chain: str) -> str:
    """Name a question to a dataset of a ledger: the schema decides what it means.

    Version 0.1 capped the rows of a person before ``where``, so its answers to such questions mean
    something else and have other names: they are not handed out for the question of today.
    """
    text = f"{schema.content_hash}|{query.digest()}|{chain}"
    if schema.person is not None and query.where is not None:
        text += "|capped after where"
    return hashlib.sha256(text.encode()).hexdigest()


def _key(name: str, store: str, analyst: str, project: str | None) -> str:
    """Return the key of the charge: the same question at the same store finds it again."""
    whom = hashlib.sha256(repr((store, analyst, project)).encode()).hexdigest()
    return f"curator:{name}:{whom[:32]}"
