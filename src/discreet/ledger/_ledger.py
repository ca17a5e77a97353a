"""The ledger: datasets with budgets, and charges that are on the disk before a release runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, final

from discreet import _validate
from discreet._html import show_ledger
from discreet._store import (
    Session,
    SqliteStore,
    Store,
    check_path,
    check_timeout,
    create_store,
    is_url,
    open_store,
)
from discreet.errors import (
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
from discreet.ledger import _rows
from discreet.ledger._budget import (
    DATASET,
    BudgetView,
    DatasetView,
    HistoryRow,
    Request,
    charge_all,
    check_amount,
    check_scopes,
    find_scope,
    format_label,
    list_history,
    make_history_row,
    new_filter,
    read_opening,
    require_scopes,
    view_budget,
    write_sums,
)
from discreet.ledger._charge import Charge, Write, refuse_second
from discreet.ledger._entry import (
    DIGEST,
    NO_HASH,
    Entry,
    Head,
    Roll,
    check_clock,
    check_flag,
    check_name,
    format_date,
    make_export,
    make_receipt,
    printable,
)
from discreet.ledger._replay import Fault, Verification, check_receipts, verify_store
from discreet.privacy import ApproxDP, Filter, Loss, Relation, plan_claim, to_json

LARGEST_SEQ = 2**63 - 1


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
    whatever crashed. It holds because a charge is durable before its body runs, is never
    refunded, and is admitted by a filter inside one serial transaction.
    """

    def __init__(self, store: Store, *, clock: Callable[[], datetime] | None = None) -> None:
        if not hasattr(store, "writing"):
            raise InvalidValue("store", printable(store), "Ledger.create or Ledger.open")
        self._store = store
        self._clock = check_clock(clock)
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
        """Make a new ledger.

        Parameters
        ----------
        place, timeout, clock
            As of :meth:`open`.

        Returns
        -------
        Ledger
            The ledger, open.

        Raises
        ------
        LedgerExists
            There is one already.

        """
        wait = check_timeout(timeout)
        check_clock(clock)
        ledger = secrets.token_hex(16)
        return cls(create_store(place, timeout=wait, ledger=ledger), clock=clock)

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

        Parameters
        ----------
        place
            A path, or a ``postgresql://`` URL.
        timeout
            Seconds to wait for others.
        read_only
            Whether nothing will be charged.
        clock
            What dates the entries.

        Returns
        -------
        Ledger
            The ledger, open.

        Raises
        ------
        LedgerMissing
            There is none: a mistyped name must not be a fresh budget.

        """
        wait = check_timeout(timeout)
        check_flag("read_only", read_only)
        check_clock(clock)
        return cls(open_store(place, timeout=wait, read_only=read_only), clock=clock)

    @staticmethod
    def migrate(place: str | Path, *, timeout: float = 60.0) -> Path:
        """Make a directory of a ledger in a single file, as earlier versions kept it.

        Parameters
        ----------
        place, timeout
            As of :meth:`open`; a file that is open nowhere else.

        Returns
        -------
        Path
            Where the old file is now. Older programs refuse it.

        Raises
        ------
        LedgerCorrupt
            If the file is not a sound ledger; nothing was changed.
        LedgerBusy
            If others have it open.

        """
        from discreet.ledger._migration import migrate_file

        return migrate_file(check_path("place", place), timeout=check_timeout(timeout))

    @classmethod
    def restore(
        cls,
        place: str | Path,
        *,
        receipts: Iterable[Mapping[str, Any]] = (),
        spent: Mapping[str, Loss] | None = None,
        timeout: float = 60.0,
        clock: Callable[[], datetime] | None = None,
    ) -> Ledger:
        """Open a backup for charging, after telling what was spent since it was made.

        An entry on every chain says so. A dataset of which neither ``receipts`` nor ``spent``
        tell anything has its budgets closed: they refuse every further charge. All tokens of
        a service end, because the backup does not know which were revoked since.

        Parameters
        ----------
        place
            The directory of the backup, or the URL of a restored database.
        receipts
            All receipts of charges since then. They are spent again, in order; one that is
            missing between them is noticed and refused. That none is missing at the end is for
            the caller to know.
        spent
            For each dataset a loss that bounds what was spent since, charged to every budget.
        timeout, clock
            As of :meth:`open`.

        Returns
        -------
        Ledger
            The ledger, open.

        Raises
        ------
        LedgerError
            If the place is not marked as a backup and nothing is stated for a dataset, or if the
            receipts do not fit; nothing was changed.

        """
        from discreet.ledger._migration import restore_datasets

        documents, losses = check_receipts(receipts), dict(spent or {})
        wait = check_timeout(timeout)
        ledger = cls(open_store(place, timeout=wait, backup=True), clock=clock)
        with ledger, ledger._store.writing() as session:
            at, lock = format_date(ledger._clock()), ledger._store.row_lock
            restore_datasets(session, documents, losses, ledger._entry, at=at, lock=lock)
        return cls.open(place, timeout=timeout, clock=clock)

    @staticmethod
    def repair(place: str | Path, *, timeout: float = 60.0) -> bool:
        """Copy a SQLite ledger into a new, flushed file after the disk failed to flush.

        What was charged and not confirmed counts as spent if it is still there. Run ``verify``
        afterwards.

        Parameters
        ----------
        place, timeout
            As of :meth:`open`; a directory.

        Returns
        -------
        bool
            Whether there was anything to repair.

        """
        if is_url(place):
            raise LedgerError("repair is for SQLite ledgers; PostgreSQL repairs itself")
        return SqliteStore.repair(check_path("place", place), timeout=check_timeout(timeout))

    @property
    def store(self) -> Store:
        """The store that holds the ledger, its stored answers and its registry."""
        return self._store

    def close(self) -> None:
        """Close all connections."""
        self._store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    _repr_html_ = show_ledger

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

        Parameters
        ----------
        name
            What charges call it.
        epsilon, delta
            The budget, exact.
        unit
            Whose privacy is bounded.
        relation
            Which datasets are neighbours.
        kind, reserved, orders
            As of :class:`~discreet.privacy.Filter`; the default is the tightest valid one.
        required
            Scopes that every charge must name, and that have a budget of their own.

        Raises
        ------
        LedgerExists
            There is a dataset of that name.

        """
        check_name("name", name)
        check_name("unit", unit)
        scopes = check_scopes(required)
        budget = new_filter(
            epsilon=epsilon,
            delta=delta,
            kind=kind,
            relation=relation,
            reserved=reserved,
            orders=orders,
        )
        with self._store.writing() as session:
            ledger, roll = _rows.read_identity(session, lock=self._store.row_lock)
            taken = {row.name: row.number for row in _rows.read_datasets(session)}
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
            _rows.save_dataset(session, number, entry, roll.append(entry.hash))
            _rows.save_budget(session, number, (DATASET, ""), budget, new=True)

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

        Parameters
        ----------
        dataset
            Whose charges it counts.
        analyst, project, purpose
            Whose budget it is; one of them.
        epsilon, delta, kind, reserved, orders
            As of :meth:`create_dataset`.

        Raises
        ------
        LedgerExists
            There is such a budget.

        """
        check_name("dataset", dataset)
        label = find_scope(analyst=analyst, project=project, purpose=purpose)
        with self._store.writing() as session:
            found = _rows.read_dataset(session, dataset, lock=self._store.row_lock)
            existing = self._budgets(session, found, [(DATASET, ""), label])
            if label in existing:
                raise LedgerExists(f"there is a budget {format_label(*label)!r} already")
            budget = new_filter(
                epsilon=epsilon,
                delta=delta,
                kind=kind,
                relation=existing[DATASET, ""].relation,
                reserved=reserved,
                orders=orders,
            )
            content = {"scope": label[0], "name": label[1], "opened": budget.state()}
            entry = self._entry(found.head, "budget", content, found.roll)
            _rows.append_entry(session, found.number, entry)
            _rows.save_budget(session, found.number, label, budget, new=True)

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

        Parameters
        ----------
        dataset
            What the release is about.
        loss
            What it costs.
        purpose, analyst, project
            Further budgets that it counts against, where there are such.
        delta
            Makes the loss one plan declared beforehand: sums that can read it as it is do so, and
            the others read what the accountant certifies for it at that delta.
        key
            The same request under the same key is charged once and comes back ``replayed``,
            with the recorded outcome.

        Returns
        -------
        Charge
            The charge, which is on the disk.

        Raises
        ------
        BudgetExceeded
            A budget that it touches refuses; nothing was changed, and the error says what is left.
        KeyConflict
            Another request was charged under the key.

        """
        check_name("dataset", dataset)
        names = {"analyst": analyst, "project": project, "purpose": purpose}
        if delta is not None:
            check_amount("delta", delta)
        request = Request.build(loss, delta=delta, names=names, key=key)
        fields = request.as_json()
        # A loss that was read before takes no time below, where the key is looked for anyway.
        if request.delta is not None or (dataset, loss) not in self._tried:
            known = self._find(dataset, request)
            if known is not None:
                return known
        # The accountant may take a while, so it works before the ledger asks for its turn.
        claim = None if request.delta is None else plan_claim(loss, request.delta)
        self._check_outside_lock(dataset, request, claim)
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
            found = _rows.read_dataset(session, dataset, lock=self._store.row_lock)
            known = self._by_key(session, found, request)
            if known is None:
                budgets = self._apply_charge(session, found, request, claim)
                content = {
                    **fields,
                    # What sums read that cannot read a plan as it is; 0.1 charged it to all.
                    "read_as": None if claim is None else to_json(claim),
                    **({} if claim is None else {"by_lane": True}),
                    "spent": {format_label(*label): write_sums(b) for label, b in budgets.items()},
                }
                entry = self._entry(found.head, "charge", content, found.roll)
                _rows.append_entry(session, found.number, entry, key=request.key)
                for label, budget in budgets.items():
                    _rows.save_budget(session, found.number, label, budget)
                known = self._as_charge(found.number, entry, None, replayed=False)
        if not known.replayed:
            Charge.made_here += 1
        return known

    def _find(self, dataset: str, request: Request) -> Charge | None:
        """Return the charge that was made earlier under the same key."""
        if request.key is None:
            return None
        with self._store.reading() as session:
            return self._by_key(session, _rows.read_dataset(session, dataset), request)

    def _by_key(
        self, session: Session, found: _rows.StoredDataset, request: Request
    ) -> Charge | None:
        if request.key is None:
            return None
        entry = _rows.find_charge(session, found, request.key)
        if entry is None:
            return None
        if not request.same_as(entry.content):
            raise KeyConflict(
                f"the key {request.key!r} was used for another request (entry {entry.seq} of "
                f"{found.name!r}); nothing was charged"
            )
        outcome = _rows.find_outcome(session, found, entry.seq)
        return self._as_charge(found.number, entry, outcome, replayed=True)

    def _check_outside_lock(self, dataset: str, request: Request, claim: ApproxDP | None) -> None:
        """Read a loss for the first time without holding up others.

        Readings can be slow and are remembered. A refusal here is final, because sums only
        grow and closed sums never open again.
        """
        if (dataset, request.loss) in self._tried:
            return
        try:
            with self._store.reading(durable=False) as session:
                self._apply_charge(session, _rows.read_dataset(session, dataset), request, claim)
        except BudgetExceeded:
            if request.key is None:
                with self._store.reading():  # what was read is on the disk before it leaves
                    raise
            return  # the same key may have been charged meanwhile: the transaction will tell
        if len(self._tried) > 4096:
            self._tried.clear()
        self._tried.add((dataset, request.loss))

    def _apply_charge(
        self,
        session: Session,
        found: _rows.StoredDataset,
        request: Request,
        claim: ApproxDP | None,
    ) -> dict[tuple[str, str], Filter]:
        """Private copies of the budgets that are touched, after the charge."""
        budgets = self._budgets(session, found, request.labels())
        self._check_required(session, found, budgets)
        named = [(format_label(*label), budget) for label, budget in budgets.items()]
        charge_all(named, request.loss, claim)
        return budgets

    def _budgets(
        self, session: Session, found: _rows.StoredDataset, labels: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], Filter]:
        budgets = _rows.read_budgets(session, found.number, labels)
        if (DATASET, "") not in budgets:
            raise LedgerCorrupt(f"{found.name!r} has lost its budget; nothing was charged")
        return budgets

    def _check_required(
        self,
        session: Session,
        found: _rows.StoredDataset,
        budgets: Mapping[tuple[str, str], Filter],
    ) -> None:
        genesis = found.head.genesis
        if genesis not in self._required:  # what an entry says never changes
            opened = read_opening(_rows.read_entry(session, found, 0))
            self._required[genesis] = opened.required
        require_scopes(found.name, self._required[genesis], budgets)

    def record_publication(self, receipt: Mapping[str, Any], certificate: str) -> None:
        """Append that a certificate of this digest was published for the charge of a receipt.

        Another digest with that receipt was never published. A charge may be published again.

        Parameters
        ----------
        receipt
            The receipt of the charge.
        certificate
            The SHA-256 of the certificate, in hexadecimal.

        """
        [receipt] = check_receipts([receipt])
        entry = receipt.get("entry")
        if not isinstance(entry, Mapping) or entry.get("kind") != "charge":
            raise InvalidValue("receipt", printable(receipt), "the receipt of a charge")
        if not DIGEST.fullmatch(str(certificate)):
            raise InvalidValue("certificate", printable(certificate), "a SHA-256 in hexadecimal")
        with self._store.writing() as session:
            found = _rows.read_dataset(session, str(entry["dataset"]), lock=self._store.row_lock)
            if make_receipt(_rows.read_entry(session, found, int(entry["seq"]))) != dict(receipt):
                raise InvalidValue(
                    "receipt", entry["seq"], "the receipt of an entry of this ledger"
                )
            content = {"charge": entry["seq"], "certificate": certificate}
            following = self._entry(found.head, "publication", content, found.roll)
            _rows.append_entry(session, found.number, following)

    def _as_charge(
        self, number: int, entry: Entry, outcome: Mapping[str, Any] | None, *, replayed: bool
    ) -> Charge:
        def append_outcome(content: Mapping[str, Any], write: Write | None) -> None:
            # Losing an outcome is harmless unless somebody may ask for its result.
            durable = write is not None or content["result"] is not None
            with self._store.writing(durable=durable) as session:
                found = _rows.read_dataset(session, entry.dataset, lock=self._store.row_lock)
                if entry.content.get("key") is not None:
                    refuse_second(_rows.find_outcome(session, found, entry.seq), entry.seq)
                following = self._entry(found.head, "outcome", content, found.roll)
                _rows.append_entry(session, number, following)
                if write is not None:
                    write(session)

        return Charge(entry, outcome=outcome, replayed=replayed, append_outcome=append_outcome)

    def _entry(self, head: Head, kind: str, content: Mapping[str, Any], roll: Roll) -> Entry:
        at = format_date(self._clock())
        return Entry.follow(head, kind=kind, at=at, content=content, roll=roll)

    # --- looking -----------------------------------------------------------------------

    def datasets(self) -> list[str]:
        """Return the names of all datasets, in the order in which they were opened."""
        with self._store.reading() as session:
            return [row.name for row in _rows.read_datasets(session)]

    def show(self, dataset: str) -> DatasetView:
        """Return a dataset and its budgets as they stand."""
        check_name("dataset", dataset)
        with self._store.reading() as session:
            found = _rows.read_dataset(session, dataset)
            opened = read_opening(_rows.read_entry(session, found, 0))
            asked = "SELECT scope, name FROM budgets WHERE dataset = ?"
            rows = session.rows(asked, (found.number,))
            labels = [(str(scope), str(name)) for scope, name in rows]
            labels.sort(key=lambda label: (label[0] != DATASET, label))  # the dataset first
            budgets = self._budgets(session, found, labels or [(DATASET, "")])
            restored = _rows.read_restored(session, found.number)
        views = [view_budget(format_label(*label), budget) for label, budget in budgets.items()]
        return DatasetView(
            dataset,
            **opened._asdict(),
            budgets=tuple(views),
            entries=found.head.seq + 1,
            head=found.head.hash,
            genesis=found.head.genesis,
            restored=restored,
        )

    def remaining(
        self,
        dataset: str,
        *,
        analyst: str | None = None,
        project: str | None = None,
        purpose: str | None = None,
    ) -> BudgetView:
        """Return one budget as it stands: the dataset's, or that of ``analyst="ann"`` and so on."""
        label = DATASET
        if not (analyst is None and project is None and purpose is None):
            label = format_label(*find_scope(analyst=analyst, project=project, purpose=purpose))
        for view in self.show(dataset).budgets:
            if view.label == label:
                return view
        raise InvalidValue("budget", label, f"a budget of {dataset!r}")

    def history(self, dataset: str) -> list[HistoryRow]:
        """Return every charge of a dataset, with its outcome and the sums after it."""
        return list_history(dataset, self._chain(dataset))

    def newest(
        self,
        dataset: str,
        *,
        limit: int = 100,
        before: int | None = None,
        analyst: str | None = None,
    ) -> list[HistoryRow]:
        """Return the last charges, the newest first; the chain is read only as far as needed.

        Parameters
        ----------
        dataset
            Whose charges.
        limit
            How many at most.
        before
            Only those below this entry.
        analyst
            Only those of this analyst.

        """
        check_name("dataset", dataset)
        if analyst is not None:
            check_name("analyst", analyst)
        limit = _validate.integer("limit", limit, at_least=1, at_most=LARGEST_SEQ)
        end = LARGEST_SEQ if before is None else before
        end = _validate.integer("before", end, at_least=0, at_most=LARGEST_SEQ)
        page = min(max(limit, 100), 1000)
        rows: list[HistoryRow] = []
        with self._store.reading() as session:
            found = _rows.read_dataset(session, dataset)
            for entry in _rows.read_charges_before(session, found, end, page=page):
                if analyst is None or entry.content.get("analyst") == analyst:
                    outcome = _rows.find_outcome(session, found, entry.seq)
                    rows.append(make_history_row(entry, outcome))
                    if len(rows) == limit:
                        break
        return rows

    def _chain(self, dataset: str) -> list[tuple[str, str]]:
        check_name("dataset", dataset)
        with self._store.reading() as session:
            number = _rows.read_dataset(session, dataset).number
            return [(row.text, row.hash) for row in _rows.read_entries(session, number)]

    # --- proving -----------------------------------------------------------------------

    def correct(self, dataset: str) -> list[Fault]:
        """Charge what earlier versions charged too little, and return what was corrected.

        One entry is appended for each charge that :meth:`verify` reports as undercharged; it
        raises the sums of every budget that the charge touched. A budget that is exceeded then
        is closed: it refuses every further charge. A chain with any other problem is refused.
        """
        from discreet.ledger._migration import correct_charge

        check_name("dataset", dataset)
        corrected: list[Fault] = []
        while True:  # every entry is a transaction of its own
            with self._store.writing() as session:
                found = _rows.read_dataset(session, dataset, lock=self._store.row_lock)
                fault = correct_charge(session, found, self._entry)
            if fault is None:
                return corrected
            corrected.append(fault)

    def verify(self, *, receipts: Iterable[Mapping[str, Any]] = ()) -> Verification:
        """Replay every chain with fresh budgets and report every fault.

        Finds entries that were changed, removed, moved or added, sums that were tampered with,
        datasets that were removed, tables, indexes and guards that are not those of a ledger,
        and any budget that was exceeded. A chain that was cut off at its end together with
        the ledger's memory of it shows only against receipts.

        Parameters
        ----------
        receipts
            Receipts that were stored elsewhere; each must be on its chain.

        Returns
        -------
        Verification
            What was found.

        """
        return verify_store(self._store, receipts=check_receipts(receipts))

    def receipt(self, dataset: str, seq: int) -> dict[str, Any]:
        """Return entry ``seq`` as JSON, to be stored elsewhere; it is on the disk by then."""
        check_name("dataset", dataset)
        position = _validate.integer("seq", printable(seq), at_least=0, at_most=LARGEST_SEQ)
        with self._store.reading() as session:
            found = _rows.read_dataset(session, dataset)
            return make_receipt(_rows.read_entry(session, found, position))

    def export(self, dataset: str) -> dict[str, Any]:
        """Return the whole chain of a dataset as JSON, to be checked without the ledger."""
        return make_export(dataset, self._chain(dataset))

    def backup(self, target: str | Path) -> None:
        """Copy a SQLite ledger while it is in use; a plain copy of the directory may be torn.

        The copy can be read. Before it can be charged, :meth:`restore` needs what was spent since.

        Parameters
        ----------
        target
            The directory to make.

        """
        path = check_path("target", target)
        if not isinstance(self._store, SqliteStore):
            raise LedgerError("backup copies SQLite ledgers; use pg_dump for PostgreSQL")
        self._store.backup(path, at=format_date(self._clock()))
