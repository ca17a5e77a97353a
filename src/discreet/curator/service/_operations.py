"""What the service does for owners and analysts, independent of HTTP.

The terminal and the web page go through the same functions. All of it is synchronous and may be
called from many threads. What is returned is plain JSON values; what goes wrong is an error of
:mod:`discreet.errors`.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from discreet.curator._curator import CuratedDataset, Curator
from discreet.curator._queries import Query, query_from_json
from discreet.curator.service._registry import Holder, Registered, Registry, dataset_name
from discreet.curator.service._settings import Settings
from discreet.data import Categorical, Schema
from discreet.errors import (
    BudgetExceeded,
    InvalidValue,
    LedgerBusy,
    LedgerCorrupt,
    LedgerMissing,
    NotApplicable,
)
from discreet.ledger import BudgetView, HistoryRow, Ledger
from discreet.privacy import Filter, Relation


def make_curated(entry: Registered, *, threads: int = 2, keep: str | None = None) -> CuratedDataset:
    """Return a registered dataset as the curator takes it; ``keep`` is for files only."""
    schema = Schema.from_toml(entry.schema)
    return CuratedDataset(
        entry.name,
        schema=schema,
        source=entry.source,
        table=entry.table,
        engine=entry.engine,
        threads=threads,
        keep=None if "://" in entry.source else keep,
    )


@final
class OpenDatasets(Mapping[str, CuratedDataset]):
    """Names to datasets; every dataset is made once."""

    def __init__(self, registry: Registry, *, threads: int = 2, keep: str | None = None) -> None:
        self._registry = registry
        self._threads, self._keep = threads, keep
        self._guard = threading.Lock()
        self._made: dict[str, CuratedDataset] = {}

    def __getitem__(self, name: str) -> CuratedDataset:
        known = self._made.get(name)
        if known is not None:
            return known
        try:
            entry = self._registry.dataset(name)
        except LedgerMissing:
            raise KeyError(name) from None
        with self._guard:
            fresh = make_curated(entry, threads=self._threads, keep=self._keep)
            made = self._made.setdefault(name, fresh)
        made.prepare()
        return made

    def adopt(self, dataset: CuratedDataset) -> None:
        """Take over a dataset that was opened for its registration."""
        with self._guard:
            self._made[dataset.name] = dataset

    def close(self) -> None:
        """Forget all bounded tables."""
        with self._guard:
            made, self._made = self._made, {}
        for dataset in made.values():
            dataset.close()

    def __iter__(self) -> Iterator[str]:
        return (entry.name for entry in self._registry.datasets())

    def __len__(self) -> int:
        return len(self._registry.datasets())


def open_dataset(
    ledger: Ledger,
    registry: Registry,
    name: str,
    *,
    schema: Schema,
    source: str,
    table: str | None = None,
    engine: str = "duckdb",
    epsilon: object = None,
    delta: object = 0,
    keep: str | None = None,
) -> CuratedDataset:
    """Register a source and open its budget; every charge will have to name an analyst.

    The source is opened first, so that what cannot be served has no budget. Without
    ``epsilon`` the ledger must hold a budget of that name already, with the unit of the schema
    and with analysts required: that is how work goes on after a crash between the two steps.
    """
    dataset_name("name", name)
    _require_bounds(schema)
    if epsilon is not None:
        Filter(epsilon=epsilon, delta=delta)
    entry = Registered(name, schema.to_toml(), source, table, engine)
    registry.check_free(name, source=source, table=table)
    opened = make_curated(entry, keep=keep)
    opened.prepare()
    if epsilon is None:
        view = ledger.show(name)
        fits = view.unit == schema.unit and view.relation is Relation.ADD_REMOVE
        if not fits or "analyst" not in view.required:
            raise InvalidValue(
                "name",
                name,
                f"a budget of the ledger for the unit {schema.unit!r} under add_remove that asks "
                "every charge for its analyst",
            )
    else:
        ledger.create_dataset(
            name, epsilon=epsilon, delta=delta, unit=schema.unit, required=["analyst"]
        )
    registry.add_dataset(name, schema=entry.schema, source=source, table=table, engine=engine)
    return opened


def _require_bounds(schema: Schema) -> None:
    """Raise for undeclared bounds; undeclared categories are selected privately by a query."""
    open_ = [
        name for name in schema.incomplete if not isinstance(schema.columns[name], Categorical)
    ]
    if open_:
        raise NotApplicable(
            "no bounds are declared for "
            + ", ".join(map(repr, open_))
            + ": declare them, or learn them privately with complete_schema; they are not read off "
            "the data"
        )


def find_copies(registry: Registry, source: str) -> list[str]:
    """The served datasets whose file has the same content as ``source``.

    A copy under another name is a second budget for the same people; the two are not added up.
    """
    place = Path(source)
    if not place.is_file():
        return []
    size, digest, found = place.stat().st_size, None, []
    for known in registry.datasets():
        other = Path(known.source)
        if known.source == source or not other.is_file() or other.stat().st_size != size:
            continue
        digest = digest or _digest(place)
        if _digest(other) == digest:
            found.append(known.name)
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def give_budget(
    ledger: Ledger,
    registry: Registry,
    dataset: str,
    *,
    analyst: str | None = None,
    project: str | None = None,
    epsilon: object,
    delta: object = 0,
) -> None:
    """Open the sub-budget of an analyst or of a project; it restricts and never adds."""
    registry.dataset(dataset)
    if analyst is not None and analyst not in registry.analysts():
        raise LedgerMissing(f"there is no analyst {analyst!r}; nothing was changed")
    ledger.create_budget(dataset, analyst=analyst, project=project, epsilon=epsilon, delta=delta)


def file_inside(directory: str | None, name: str) -> str:
    """The path of a file in the declared directory, however its name is written."""
    if directory is None:
        raise NotApplicable(
            "this service has no directory of data (discreet serve --data): register datasets at "
            "the terminal"
        )
    expected = "the name of a file in the directory of data of this service"
    base = Path(directory).resolve()
    try:
        path = (base / name).resolve()
        if path.is_relative_to(base) and path.is_file():
            return str(path)
    except (OSError, ValueError):
        pass  # a name that no file can have
    raise InvalidValue("source", name, expected)


REFERENCE = "discreet.curator.reference"
_VERDICT_HOLDS = 60.0


@final
class Operations:
    """The ledger, the registry and the curator of one process."""

    def __init__(self, settings: Settings, *, ledger: Ledger) -> None:
        self.settings = settings
        self.ledger = ledger
        self.registry = Registry(ledger)
        self.datasets = OpenDatasets(
            self.registry, threads=settings.engine_threads, keep=settings.keep
        )
        self.curator = Curator(ledger, self.datasets, quote_delay=settings.quote_delay)
        self._verifying = threading.Lock()
        self._check_again = 0.0
        self._fault: str | None = None
        self._entitled: set[tuple[str, str | None, str | None, str]] = set()

    @classmethod
    def open(cls, settings: Settings) -> Operations:
        """Open everything that the settings name, and every dataset that is registered."""
        ledger = Ledger.open(settings.ledger)
        try:
            operations = cls(settings, ledger=ledger)
            operations.check_ledger()
            with ledger.store.writing():
                pass  # what would stop the first charge, such as a backup, stops the start
            for name in operations.datasets:
                operations.datasets[name].prepare()
        except BaseException:
            ledger.close()
            raise
        return operations

    def close(self) -> None:
        """Let go of all files and connections."""
        self.datasets.close()
        self.ledger.close()

    def check_ledger(self) -> None:
        """Raise ``LedgerCorrupt`` if the ledger does not fit together.

        A replay takes a while in a long ledger, so its verdict holds for a minute, or for twenty
        times as long as it took. While another replay runs, the last verdict counts.
        """
        if time.monotonic() >= self._check_again and self._verifying.acquire(blocking=False):
            try:
                began = time.monotonic()
                problems = self.ledger.verify().problems
                self._fault = f"{problems[0]} (run discreet ledger verify)" if problems else None
                ended = time.monotonic()
                self._check_again = ended + max(_VERDICT_HOLDS, 20.0 * (ended - began))
            finally:
                self._verifying.release()
        self._require_sound()

    def _require_sound(self) -> None:
        """Raise ``LedgerCorrupt`` if the last replay found a fault."""
        if self._fault is not None:
            raise LedgerCorrupt(f"{self._fault}; no question is answered")

    # --- asking ------------------------------------------------------------------------

    def quote(self, holder: Holder, dataset: str, query: Mapping[str, Any]) -> dict[str, Any]:
        """What a query costs and how far its answer will be off, from public facts."""
        self._visible(holder, dataset)
        asked = query_from_json(query)
        return self.curator.quote(dataset, asked, analyst=holder.analyst).to_json()

    def ask(
        self, holder: Holder, dataset: str, query: Mapping[str, Any], *, key: str | None
    ) -> dict[str, Any]:
        """The answer to a query, charged to the budgets of the holder."""
        self._require_sound()
        self._visible(holder, dataset)
        assert holder.analyst is not None
        asked = query_from_json(query)
        self._require_budgets(holder, dataset, asked)
        answer = self.curator.ask(
            dataset,
            asked,
            analyst=holder.analyst,
            project=holder.project,
            idempotency_key=None if key is None else _derive_key(holder.analyst, key),
        )
        return as_seen_by(holder.analyst, answer.to_json())

    def _require_budgets(self, holder: Holder, dataset: str, query: Query) -> None:
        """Stored answers too are for those who have the budgets that a charge would ask for."""
        known = (dataset, holder.analyst, holder.project, query.tag)
        if known in self._entitled:  # a budget, once opened, stays
            return
        view = self.ledger.show(dataset)
        labels = {budget.label for budget in view.budgets}
        names = {"analyst": holder.analyst, "project": holder.project, "purpose": query.tag}
        for scope in view.required:
            if f"{scope}:{names[scope]}" not in labels:
                raise BudgetExceeded(
                    f"{dataset!r} asks every charge to name a{'n' * (scope == 'analyst')} "
                    f"{scope} with a budget; nothing was charged",
                    budget=scope,
                )
        self._entitled.add(known)

    # --- looking -----------------------------------------------------------------------

    def _visible(self, holder: Holder, dataset: str) -> None:
        """A dataset outside of a token's scope does not exist, whether there is one or not."""
        if not holder.may_see(dataset) or dataset not in self.datasets:
            raise LedgerMissing("there is no such dataset for this token")

    def overview(self, holder: Holder) -> list[dict[str, Any]]:
        """Every dataset that the holder may see."""
        names = [name for name in self.datasets if holder.may_see(name)]
        return [self.facts(holder, name) for name in names]

    def facts(self, holder: Holder, dataset: str) -> dict[str, Any]:
        """The public facts of a dataset, and the budgets that concern the holder.

        The chain grows when a question ends, so only owners hear how long it is.
        """
        self._visible(holder, dataset)
        view = self.ledger.show(dataset)
        mine = _labels(holder)
        budgets = [_budget(b) for b in view.budgets if holder.owns or b.label in mine]
        return {
            "name": dataset,
            "unit": view.unit,
            "relation": view.relation.value,
            "entries": view.entries if holder.owns else None,
            "head": view.head if holder.owns else None,
            "facts": self.datasets[dataset].describe(),
            "budgets": budgets,
        }

    def history(
        self, holder: Holder, dataset: str, *, limit: int, before: int | None
    ) -> dict[str, Any]:
        """Charges, the newest first: the holder's own, or everybody's for an owner.

        What became of a charge is for owners: the moment it ends may depend on the records.
        """
        self._visible(holder, dataset)
        mine = None if holder.owns else holder.analyst
        rows = self.ledger.newest(dataset, limit=limit + 1, before=before, analyst=mine)
        shown = [_history_row(row, outcome=holder.owns) for row in rows[:limit]]
        return {"dataset": dataset, "charges": shown, "more": len(rows) > limit}

    def receipt(self, holder: Holder, dataset: str, seq: int) -> dict[str, Any]:
        """One entry; analysts see their own charges."""
        self._visible(holder, dataset)
        missing = LedgerMissing("there is no such entry for this token")
        try:
            receipt = self.ledger.receipt(dataset, seq)
        except LedgerMissing:
            raise missing from None
        if not holder.owns and not _concerns(holder, receipt["entry"]):
            raise missing
        return receipt

    def verify(self, holder: Holder, receipts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Replay the ledger; analysts hear of the datasets that they may see.

        Only one replay runs at a time: it takes long, and others want answers meanwhile.
        """
        for receipt in receipts:
            self._visible(holder, str(receipt["entry"].get("dataset")))
        whole = [receipt for receipt in receipts if receipt["schema"] != REFERENCE]
        lost = [
            {"dataset": dataset, "entry": seq, "what": "the chain does not hold this entry"}
            for dataset, seq in self._find_lost(receipts)
        ]
        if not self._verifying.acquire(blocking=False):
            raise LedgerBusy("the ledger is being verified")
        try:
            verdict = self.ledger.verify(receipts=whole)
        finally:
            self._verifying.release()
        problems = [
            {"dataset": problem.dataset, "entry": problem.seq, "what": problem.what}
            for problem in verdict.problems
            if holder.may_see(problem.dataset)
        ]
        return {
            "ok": verdict.ok and not lost,
            "entries": verdict.entries if holder.owns else None,
            "problems": problems + lost,
        }

    def _find_lost(self, receipts: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
        """References to entries that are not on the chain."""
        lost = []
        for reference in receipts:
            if reference["schema"] != REFERENCE:
                continue
            entry = reference["entry"]
            if set(entry) != {"dataset", "seq"} or type(entry["seq"]) is not int:
                raise InvalidValue("receipts", sorted(entry), "a reference: dataset and seq")
            dataset, seq = str(entry["dataset"]), entry["seq"]
            try:
                holds = self.ledger.receipt(dataset, seq)["hash"] == reference["hash"]
            except LedgerMissing:
                holds = False
            if not holds:
                lost.append((dataset, seq))
        return lost


def as_seen_by(analyst: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer as JSON for one analyst: who did not pay for it gets no names of who did.

    The receipt of somebody else's charge says who that was, for which project, under which key and
    what they have spent. It becomes a reference: the number and the hash of the entry.

    >>> entry = {"dataset": "people", "seq": 4, "content": {"analyst": "ann", "key": "k"}}
    >>> answer = {"value": 7, "receipt": {"hash": "ab", "entry": entry}}
    >>> as_seen_by("ann", answer) == answer
    True
    >>> as_seen_by("bob", answer)["receipt"]["entry"]
    {'dataset': 'people', 'seq': 4}
    """
    receipt = answer["receipt"]
    entry = receipt["entry"]
    if entry["content"].get("analyst") == analyst:
        return dict(answer)
    reference = {
        "schema": REFERENCE,
        "version": 1,
        "hash": receipt["hash"],
        "entry": {"dataset": entry["dataset"], "seq": entry["seq"]},
    }
    return {**answer, "receipt": reference}


def _derive_key(analyst: str, key: str) -> str:
    """Analysts choose keys for themselves: two of them never meet in one."""
    text = f"{len(analyst)}:{analyst}:{key}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _labels(holder: Holder) -> set[str]:
    labels = {"dataset", f"analyst:{holder.analyst}"}
    return labels if holder.project is None else labels | {f"project:{holder.project}"}


def _concerns(holder: Holder, entry: Mapping[str, Any]) -> bool:
    content: Mapping[str, Any] = entry.get("content", {})
    return entry.get("kind") == "charge" and content.get("analyst") == holder.analyst


def _budget(view: BudgetView) -> dict[str, Any]:
    return {
        "label": view.label,
        "epsilon": str(view.epsilon),
        "delta": str(view.delta),
        "kind": view.kind,
        "charges": view.charges,
        "spent": {name: str(value) for name, value in view.spent.items()},
        "remaining": {name: str(value) for name, value in view.remaining.items()},
        "used": view.used,
    }


def _history_row(row: HistoryRow, *, outcome: bool) -> dict[str, Any]:
    return {
        "entry": row.seq,
        "at": row.at,
        "purpose": row.purpose,
        "analyst": row.analyst,
        "project": row.project,
        "loss": dict(row.loss),
        "outcome": row.outcome if outcome else None,
        "spent": {label: dict(sums) for label, sums in row.spent.items()},
        "hash": row.hash,
    }
