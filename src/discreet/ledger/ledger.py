"""The ledger: datasets with budgets, and charges that are on the disk before a release runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, cast, final

from discreet import _validate
from discreet.errors import (
    AlreadyCharged,
    BudgetExceeded,
    InvalidValue,
    KeyConflict,
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    LedgerExists,
    LedgerFull,
    LedgerReadOnly,
)
from discreet.ledger import arguments, records
from discreet.ledger.budgets import (
    DATASET,
    Request,
    charge_all,
    label_of,
    parse_label,
    scope_of,
    spent_of,
)
from discreet.ledger.charge import Charge
from discreet.ledger.entries import DIGEST, NO_HASH, Entry, Head, Roll, name_of, printable
from discreet.ledger.receipts import export_of, receipt_of
from discreet.ledger.replay import Problem, Replay
from discreet.ledger.store import Session, Store
from discreet.ledger.verification import Verification, verify_store
from discreet.ledger.views import (
    BudgetView,
    DatasetView,
    HistoryRow,
    history_of,
    history_row,
    opening_of,
    view_budget,
)
from discreet.privacy import ApproxDP, Filter, Loss, Relation, plan_claim, to_json

__all__ = ["Ledger"]


@final
class Ledger:
    """Budgets that survive crashes and races.

    >>> import tempfile
    >>> from discreet.privacy import PureDP
    >>> ledger = Ledger.create(tempfile.mkdtemp() + "/study.ledger")
    >>> ledger.create_dataset("census", epsilon=1, unit="person")
    >>> with ledger.charge("census", PureDP("0.1"), purpose="median age") as charge:
    ...     charge.record({"median": 41})
    >>> ledger.show("census").budget.remaining["basic"]
    Fraction(9, 10)
    >>> ledger.verify().ok
    True
    >>> ledger.close()

    The guarantee: for every dataset, all releases made inside charges are together
    (epsilon, delta)-DP for one unit under the dataset's relation, however analysts chose them,
    whatever crashed (S9a). It holds because a charge is durable before its body runs, is never
    refunded, and is admitted by a filter inside one serial transaction.
    """

    def __init__(self, store: Store, *, clock: Callable[[], datetime] | None = None) -> None:
        if not hasattr(store, "writing"):
            raise InvalidValue(
                "store", printable(store), "Ledger.create or Ledger.open, which do it"
            )
        self._store = store
        self._clock = arguments.clock_of(clock)
        self._tried: set[tuple[str, Loss]] = set()
        self._required: dict[str, tuple[str, ...]] = {}

    # --- opening -----------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        place: str | Path,
        *,
        timeout: float = 60.0,
        clock: Callable[[], datetime] | None = None,
    ) -> Ledger:
        """Make a new ledger at a path or a ``postgresql://`` URL; an existing one is refused."""
        wait = arguments.timeout_of(timeout)
        arguments.clock_of(clock)
        ledger = secrets.token_hex(16)
        return cls(_create_store(place, timeout=wait, ledger=ledger), clock=clock)

    @classmethod
    def open(
        cls,
        place: str | Path,
        *,
        timeout: float = 60.0,
        read_only: bool = False,
        clock: Callable[[], datetime] | None = None,
    ) -> Ledger:
        """Open an existing ledger; an older one is migrated, a newer one refused.

        A place where there is none is an error: a mistyped name must not be a fresh budget.
        ``clock`` only dates the entries.
        """
        wait = arguments.timeout_of(timeout)
        arguments.flag("read_only", read_only)
        arguments.clock_of(clock)
        return cls(_open_store(place, timeout=wait, read_only=read_only), clock=clock)

    def close(self) -> None:
        """Close all connections."""
        self._store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Ledger {self._store.place}>"

    # --- datasets and budgets ----------------------------------------------------------

    def create_dataset(
        self,
        name: str,
        *,
        epsilon: object,
        delta: object = 0,
        unit: str = "record",
        relation: Relation | str = Relation.ADD_REMOVE,
        kind: str | None = None,
        reserved: object = None,
        orders: Sequence[float] | None = None,
        required: Sequence[str] = (),
    ) -> None:
        """Open the budget of a dataset, once and for all.

        ``unit`` says whose privacy is bounded. ``kind``, ``reserved`` and ``orders`` choose the
        filter (:class:`~discreet.privacy.Filter`); the default is the tightest valid
        one. Scopes in ``required`` must be named in every charge and have a budget of their own.
        """
        name_of("name", name)
        name_of("unit", unit)
        scopes = arguments.required_of(required)
        budget = _new_filter(
            epsilon=epsilon,
            delta=delta,
            kind=kind,
            relation=relation,
            reserved=reserved,
            orders=orders,
        )
        with self._store.writing() as session:
            ledger, roll = records.identity(session, lock=self._store.row_lock)
            taken = {row.name: row.number for row in records.dataset_rows(session)}
            if name in taken:
                raise LedgerExists(f"there is a dataset {name!r} already; nothing was changed")
            number = roll.count + 1
            if len(taken) != roll.count or set(taken.values()) != set(range(1, len(taken) + 1)):
                raise LedgerCorrupt(
                    f"the ledger has opened {roll.count} datasets and holds {len(taken)}; nothing "
                    "was changed, run verify"
                )
            content = {
                "number": number,
                "unit": unit,
                "relation": budget.relation.value,
                "required": scopes,
                "opened": budget.state(),
            }
            start = Head(ledger, name, NO_HASH, -1, NO_HASH)
            entry = self._entry(start, "genesis", content, roll)
            records.save_dataset(session, number, entry, roll.after(entry.hash))
            records.save_budget(session, number, (DATASET, ""), budget, new=True)

    def create_budget(
        self,
        dataset: str,
        *,
        analyst: str | None = None,
        project: str | None = None,
        purpose: str | None = None,
        epsilon: object,
        delta: object = 0,
        kind: str | None = None,
        reserved: object = None,
        orders: Sequence[float] | None = None,
    ) -> None:
        """Open a further budget for one analyst, project or purpose; it counts from now on.

        It restricts and never adds: the budget of the dataset holds as before.
        """
        name_of("dataset", dataset)
        label = scope_of(analyst=analyst, project=project, purpose=purpose)
        with self._store.writing() as session:
            found = records.dataset(session, dataset, lock=self._store.row_lock)
            existing = self._budgets(session, found, [(DATASET, ""), label])
            if label in existing:
                raise LedgerExists(f"there is a budget {label_of(*label)!r} already")
            budget = _new_filter(
                epsilon=epsilon,
                delta=delta,
                kind=kind,
                relation=existing[DATASET, ""].relation,
                reserved=reserved,
                orders=orders,
            )
            content = {"scope": label[0], "name": label[1], "opened": budget.state()}
            entry = self._entry(found.head, "budget", content, found.roll)
            records.append(session, found.number, entry)
            records.save_budget(session, found.number, label, budget, new=True)

    # --- charging ----------------------------------------------------------------------

    def charge(
        self,
        dataset: str,
        loss: Loss,
        *,
        purpose: str | None = None,
        analyst: str | None = None,
        project: str | None = None,
        delta: object = None,
        key: str | None = None,
    ) -> Charge:
        """Spend a loss, so that its release may run in ``with ledger.charge(...) as charge:``.

        When this returns, the charge is on the disk. It raises ``BudgetExceeded`` with what is
        left, and changes nothing, if any budget that it touches refuses. With ``delta`` the
        loss is one plan declared beforehand: sums that can read it as it is do so, and the others
        read what the accountant certifies for it at that delta.

        With ``key`` the request is idempotent: the same request under the same key is charged
        once and comes back ``replayed``, with the recorded outcome; another request under the
        key raises ``KeyConflict``.
        """
        name_of("dataset", dataset)
        names = {"analyst": analyst, "project": project, "purpose": purpose}
        if delta is not None:
            arguments.amount("delta", delta)
        request = Request.build(loss, delta=delta, names=names, key=key)
        fields = request.as_json()
        # A loss that was read before takes no time below, where the key is looked for anyway.
        if request.delta is not None or (dataset, loss) not in self._tried:
            known = self._find(dataset, request)
            if known is not None:
                return known
        # The accountant may take a while, so it works before the ledger asks for its turn.
        claim = None if request.delta is None else plan_claim(loss, request.delta)
        self._try_first(dataset, request, claim)
        try:
            return self._charge_now(dataset, request, claim, fields)
        except (LedgerBusy, LedgerFull, LedgerReadOnly):
            known = self._find(dataset, request)  # what was charged before needs no writing
            if known is None:
                raise
            return known

    def _charge_now(
        self, dataset: str, request: Request, claim: ApproxDP | None, fields: Mapping[str, Any]
    ) -> Charge:
        with self._store.writing() as session:
            found = records.dataset(session, dataset, lock=self._store.row_lock)
            known = self._by_key(session, found, request)
            if known is None:
                budgets = self._charged(session, found, request, claim)
                content = {
                    **fields,
                    **({"read_as": None} if claim is None else _as_claim(claim)),
                    "spent": {label_of(*label): spent_of(b) for label, b in budgets.items()},
                }
                entry = self._entry(found.head, "charge", content, found.roll)
                records.append(session, found.number, entry, key=request.key)
                for label, budget in budgets.items():
                    records.save_budget(session, found.number, label, budget)
                known = self._as_charge(found.number, entry, None, replayed=False)
        if not known.replayed:
            Charge.made_here += 1
        return known

    def _find(self, dataset: str, request: Request) -> Charge | None:
        """A charge made earlier under the same key; it is settled before it is shown."""
        if request.key is None:
            return None
        with self._store.reading() as session:
            known = self._by_key(session, records.dataset(session, dataset), request)
        if known is not None:
            self._store.settle()
        return known

    def _by_key(
        self, session: Session, found: records.StoredDataset, request: Request
    ) -> Charge | None:
        if request.key is None:
            return None
        entry = records.entry_by_key(session, found, request.key)
        if entry is None:
            return None
        if not request.same_as(entry.content):
            raise KeyConflict(
                f"the key {request.key!r} was used for another request (entry {entry.seq} of "
                f"{found.name!r}); nothing was charged"
            )
        outcome = records.outcome_of(session, found, entry.seq)
        return self._as_charge(found.number, entry, outcome, replayed=True)

    def _try_first(self, dataset: str, request: Request, claim: ApproxDP | None) -> None:
        """Read a loss for the first time without holding up others.

        Readings can be slow and are remembered. A refusal here is final, because sums only
        grow and closed sums never open again.
        """
        if (dataset, request.loss) in self._tried:
            return
        try:
            with self._store.reading() as session:
                self._charged(session, records.dataset(session, dataset), request, claim)
        except BudgetExceeded:
            if request.key is None:
                raise
            return  # the same key may have been charged meanwhile: the transaction will tell
        if len(self._tried) > 4096:
            self._tried.clear()
        self._tried.add((dataset, request.loss))

    def _charged(
        self,
        session: Session,
        found: records.StoredDataset,
        request: Request,
        claim: ApproxDP | None,
    ) -> dict[tuple[str, str], Filter]:
        """Private copies of the budgets that are touched, after the charge."""
        budgets = self._budgets(session, found, request.labels())
        self._check_required(session, found, budgets)
        named = [(label_of(*label), budget) for label, budget in budgets.items()]
        charge_all(named, request.loss, claim)
        return budgets

    def _budgets(
        self, session: Session, found: records.StoredDataset, labels: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], Filter]:
        budgets = records.budgets(session, found.number, labels)
        if (DATASET, "") not in budgets:
            raise LedgerCorrupt(f"{found.name!r} has lost its budget; nothing was charged")
        return budgets

    def _check_required(
        self,
        session: Session,
        found: records.StoredDataset,
        budgets: Mapping[tuple[str, str], Filter],
    ) -> None:
        genesis = found.head.genesis
        if genesis not in self._required:  # what an entry says never changes
            opened = opening_of(records.one_entry(session, found, 0))
            self._required[genesis] = opened.required
        for scope in self._required[genesis]:
            if scope not in {touched for touched, _ in budgets}:
                raise BudgetExceeded(
                    f"{found.name!r} asks every charge to name a{'n' * (scope == 'analyst')} "
                    f"{scope} with a budget; nothing was charged",
                    budget=scope,
                )

    def record_publication(self, receipt: Mapping[str, Any], certificate: str) -> None:
        """Append that a certificate of this digest was published for the charge of a receipt.

        Whoever later holds a certificate with that receipt and another digest has one that nobody
        published. One charge may be published several times.
        """
        [receipt] = arguments.receipts_of([receipt])
        entry = receipt.get("entry")
        if not isinstance(entry, Mapping) or entry.get("kind") != "charge":
            raise InvalidValue("receipt", printable(receipt), "the receipt of a charge")
        if not DIGEST.fullmatch(str(certificate)):
            raise InvalidValue("certificate", printable(certificate), "a SHA-256 in hexadecimal")
        with self._store.writing() as session:
            found = records.dataset(session, str(entry["dataset"]), lock=self._store.row_lock)
            if receipt_of(records.one_entry(session, found, int(entry["seq"]))) != dict(receipt):
                raise InvalidValue(
                    "receipt", entry["seq"], "the receipt of an entry of this ledger"
                )
            content = {"charge": entry["seq"], "certificate": certificate}
            following = self._entry(found.head, "publication", content, found.roll)
            records.append(session, found.number, following)

    def _as_charge(
        self, number: int, entry: Entry, outcome: Mapping[str, Any] | None, *, replayed: bool
    ) -> Charge:
        def append_outcome(seq: int, content: Mapping[str, Any]) -> None:
            # Losing an outcome is harmless unless somebody may ask for its result.
            with self._store.writing(durable=content["result"] is not None) as session:
                found = records.dataset(session, entry.dataset, lock=self._store.row_lock)
                if entry.content.get("key") is not None:
                    _refuse_second(records.outcome_of(session, found, seq), seq)
                following = self._entry(found.head, "outcome", content, found.roll)
                records.append(session, number, following)

        return Charge(entry, outcome=outcome, replayed=replayed, append_outcome=append_outcome)

    def _entry(self, head: Head, kind: str, content: Mapping[str, Any], roll: Roll) -> Entry:
        at = arguments.date_of(self._clock())
        return Entry.follow(head, kind=kind, at=at, content=content, roll=roll)

    # --- looking -----------------------------------------------------------------------

    def datasets(self) -> list[str]:
        """The names of all datasets, in the order in which they were opened."""
        with self._store.reading() as session:
            return [row.name for row in records.dataset_rows(session)]

    def show(self, dataset: str) -> DatasetView:
        """A dataset and its budgets as they stand."""
        name_of("dataset", dataset)
        with self._store.reading() as session:
            found = records.dataset(session, dataset)
            opened = opening_of(records.one_entry(session, found, 0))
            rows = session.rows(
                "SELECT scope, name FROM budgets WHERE dataset = ?", (found.number,)
            )
            # The dataset first, then the others by name.
            labels = sorted(((str(scope), str(name)) for scope, name in rows), key=_dataset_first)
            budgets = self._budgets(session, found, labels or [(DATASET, "")])
        views = tuple(view_budget(label_of(*label), budget) for label, budget in budgets.items())
        return DatasetView(
            name=dataset,
            unit=opened.unit,
            relation=opened.relation,
            required=opened.required,
            budgets=views,
            entries=found.head.seq + 1,
            head=found.head.hash,
            genesis=found.head.genesis,
        )

    def remaining(
        self,
        dataset: str,
        *,
        analyst: str | None = None,
        project: str | None = None,
        purpose: str | None = None,
    ) -> BudgetView:
        """One budget as it stands: the dataset's, or that of ``analyst="ann"`` and so on."""
        label = DATASET
        if not (analyst is None and project is None and purpose is None):
            label = label_of(*scope_of(analyst=analyst, project=project, purpose=purpose))
        for view in self.show(dataset).budgets:
            if view.label == label:
                return view
        raise InvalidValue("budget", label, f"a budget of {dataset!r}")

    def history(self, dataset: str) -> list[HistoryRow]:
        """Every charge of a dataset, with its outcome and the sums after it."""
        return history_of(dataset, self._chain(dataset))

    def newest(
        self,
        dataset: str,
        *,
        limit: int = 100,
        before: int | None = None,
        analyst: str | None = None,
    ) -> list[HistoryRow]:
        """The last charges, the newest first: those below entry ``before``, of one ``analyst``.

        Reads the chain backwards, a page at a time, and no further than it has to.
        """
        name_of("dataset", dataset)
        if analyst is not None:
            name_of("analyst", analyst)
        limit = _validate.integer("limit", limit, at_least=1, at_most=arguments.LARGEST_SEQ)
        end = arguments.LARGEST_SEQ if before is None else before
        end = _validate.integer("before", end, at_least=0, at_most=arguments.LARGEST_SEQ)
        page = min(max(limit, 100), 1000)
        rows: list[HistoryRow] = []
        with self._store.reading() as session:
            found = records.dataset(session, dataset)
            for entry in records.charges_before(session, found, end, page=page):
                if analyst is None or entry.content.get("analyst") == analyst:
                    outcome = records.outcome_of(session, found, entry.seq)
                    rows.append(history_row(entry, outcome))
                    if len(rows) == limit:
                        break
        return rows

    def _chain(self, dataset: str) -> list[tuple[str, str]]:
        name_of("dataset", dataset)
        with self._store.reading() as session:
            number = records.dataset(session, dataset).number
            return [(row.text, row.hash) for row in records.entry_rows(session, number)]

    # --- proving -----------------------------------------------------------------------

    def correct(self, dataset: str) -> list[Problem]:
        """Charge what earlier versions charged too little, and return what was corrected.

        One entry is appended for each charge that :meth:`verify` reports as undercharged; it
        raises the sums of every budget that the charge touched. A budget that is exceeded then
        is closed: it refuses every further charge. A chain with any other problem is refused.
        """
        name_of("dataset", dataset)
        corrected: list[Problem] = []
        while (problem := self._correct_one(dataset)) is not None:
            corrected.append(problem)
        return corrected

    def _correct_one(self, dataset: str) -> Problem | None:
        """Correct the first undercharged entry; every entry is a transaction of its own."""
        with self._store.writing() as session:
            found = records.dataset(session, dataset, lock=self._store.row_lock)
            replay = Replay(dataset)
            for row in records.entry_rows(session, found.number):
                replay.feed(row.text, row.hash, position=row.seq)
            others = [problem for problem in replay.problems if not problem.undercharged]
            if others:
                raise LedgerCorrupt(f"{others[0]}; nothing was corrected, run verify")
            if not replay.undercharged:
                return None
            wrong = next(iter(replay.undercharged.values()))
            budgets = self._budgets(session, found, [parse_label(at) for at in wrong.missing])
            for label, budget in budgets.items():
                budget.raise_sums(wrong.missing[label_of(*label)])
            content = {
                "charge": wrong.seq,
                "reason": str(wrong),
                "spent": {label_of(*label): spent_of(b) for label, b in budgets.items()},
            }
            entry = self._entry(found.head, "correction", content, found.roll)
            records.append(session, found.number, entry)
            for label, budget in budgets.items():
                records.save_budget(session, found.number, label, budget)
        return replay.problems[0]

    def verify(self, *, receipts: Iterable[Mapping[str, Any]] = ()) -> Verification:
        """Replay every chain with fresh budgets and report whatever does not fit.

        Finds entries that were changed, removed, moved or added, sums that were tampered with,
        datasets that were removed, tables, indexes and guards that are not those of a ledger,
        and any budget that was exceeded. A chain that was cut off at its end together with
        the ledger's memory of it shows only against ``receipts`` that were kept elsewhere.
        """
        return verify_store(self._store, receipts=arguments.receipts_of(receipts))

    def receipt(self, dataset: str, seq: int) -> dict[str, Any]:
        """One entry as JSON, to be kept elsewhere; it is on the disk when this returns."""
        name_of("dataset", dataset)
        position = _validate.integer(
            "seq", printable(seq), at_least=0, at_most=arguments.LARGEST_SEQ
        )
        self._store.settle()
        with self._store.reading() as session:
            found = records.dataset(session, dataset)
            return receipt_of(records.one_entry(session, found, position))

    def export(self, dataset: str) -> dict[str, Any]:
        """The whole chain of a dataset as JSON, to be checked without the ledger."""
        chain = self._chain(dataset)
        self._store.settle()
        return export_of(dataset, chain)

    def backup(self, target: str | Path) -> None:
        """Copy a SQLite ledger while it is in use; a plain copy of the file may be torn."""
        from discreet.ledger.sqlite_store import SqliteStore

        path = arguments.path_of("target", target)
        if not isinstance(self._store, SqliteStore):
            raise LedgerError("backup copies SQLite ledgers; use pg_dump for PostgreSQL")
        self._store.backup(path)


def _refuse_second(outcome: Mapping[str, Any] | None, seq: int) -> None:
    """Two who attempted one body at the same time: the first to end it is on record."""
    if outcome is not None:
        raise AlreadyCharged(
            f"entry {seq} has the outcome {outcome['outcome']!r} already: somebody else has ended "
            "its body, and it was paid for once",
            outcome=str(outcome["outcome"]),
            result=outcome["result"],
        )


def _dataset_first(label: tuple[str, str]) -> tuple[bool, tuple[str, str]]:
    return label[0] != DATASET, label


def _new_filter(
    *,
    epsilon: object,
    delta: object,
    kind: object,
    relation: object,
    reserved: object,
    orders: object,
) -> Filter:
    return Filter(
        epsilon=arguments.amount("epsilon", epsilon),
        delta=arguments.amount("delta", delta),
        kind=cast("str | None", printable(kind)),
        relation=cast("str", printable(relation)),
        reserved=None if reserved is None else arguments.amount("reserved", reserved),
        orders=arguments.orders_of(orders),
    )


def _as_claim(claim: ApproxDP) -> dict[str, Any]:
    """The claim for those sums that cannot read a plan as it is; 0.1 charged it to all of them."""
    return {"read_as": to_json(claim), "by_lane": True}


def _create_store(place: str | Path, *, timeout: float, ledger: str) -> Store:
    url = arguments.url_of(place)
    if url is not None:
        from discreet.ledger.postgres_store import PostgresStore

        return PostgresStore.create(url, timeout=timeout, ledger=ledger)
    from discreet.ledger.sqlite_store import SqliteStore

    path = arguments.path_of("place", place)
    return SqliteStore.create(path, timeout=timeout, ledger=ledger)


def _open_store(place: str | Path, *, timeout: float, read_only: bool) -> Store:
    url = arguments.url_of(place)
    if url is not None:
        from discreet.ledger.postgres_store import PostgresStore

        return PostgresStore.open(url, timeout=timeout, read_only=read_only)
    from discreet.ledger.sqlite_store import SqliteStore

    path = arguments.path_of("place", place)
    return SqliteStore.open(path, timeout=timeout, read_only=read_only)
