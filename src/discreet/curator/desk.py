"""The curator's desk: charge first, then touch the data, keep the answer, hand it out (S35)."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import final

from discreet.curator.answers import Answer, AnswerStore, open_answers
from discreet.curator.dataset import CuratedDataset
from discreet.curator.forms import checked_text
from discreet.curator.planning import Plan, Released
from discreet.curator.plans import Quote, make_plan, quote
from discreet.curator.queries import Query
from discreet.errors import AlreadyCharged, InvalidValue, LedgerCorrupt, LedgerMissing
from discreet.ledger import Charge, Ledger
from discreet.randomness import SystemSource

__all__ = ["Curator"]

_STRIPES = 256
_NO_ANSWER = {"answer": None}
_FAILED = "this query failed; what was charged stays charged, and it is not computed again"
_log = logging.getLogger("discreet.curator")


@final
class Curator:
    """Answers queries about datasets; never more than the ledger's budgets allow.

    ``datasets`` is looked at anew in every call. ``answers`` is where answers are kept: the
    path of a SQLite file or a ``postgresql://`` URL.

    **Order of an answer.** Validate, by public facts; look the question up among the stored
    answers (same dataset, schema and query: same answer, no cost); charge the ledger; compute; draw
    the noise; store the answer durably; return it. Nothing is refunded.

    **Failures.** Whether a computation fails may depend on the records, so that is released once as
    well: the charge ends without an answer, and the same request later fails without computing.

    **Crashes.** The charge carries a key made of dataset, question, analyst and the store of
    answers. If a process dies between the charge and the stored answer, no answer has left, and
    the next request finds the open charge by its key: the answer is computed once more under that
    same charge. If two compute at the same time, the first stored answer counts and the other is
    thrown away unseen. Desks with different stores, or one that lost its store, do not share
    charges: what they release twice is paid twice.
    """

    def __init__(
        self,
        ledger: Ledger,
        datasets: Mapping[str, CuratedDataset],
        *,
        answers: str | Path | AnswerStore,
    ) -> None:
        if not isinstance(ledger, Ledger):
            raise InvalidValue("ledger", type(ledger).__name__, "a Ledger")
        self._ledger = ledger
        self._datasets = datasets
        self._answers = open_answers(answers) if isinstance(answers, str | Path) else answers
        self._store = self._answers.identity()
        try:
            self.check_ledger()
        except BaseException:
            self._answers.close()
            raise
        self._turns = [threading.Lock() for _ in range(_STRIPES)]
        self._agreed: dict[tuple[str, str], str] = {}

    def close(self) -> None:
        """Close the stored answers; the ledger and the datasets belong to the caller."""
        self._answers.close()

    def check_ledger(self) -> None:
        """Raise ``LedgerCorrupt`` if the ledger lacks a charge that a stored answer was paid by.

        Then an older copy was put in its place, which does not know what was spent since.
        """
        for receipt in self._answers.last_receipts():
            entry = receipt["entry"]
            try:
                first = self._ledger.receipt(entry["dataset"], 0)
            except LedgerMissing:
                continue
            if first["entry"]["ledger"] != entry["ledger"]:
                continue  # answers of another ledger are never given
            try:
                holds = self._ledger.receipt(entry["dataset"], entry["seq"])["hash"]
            except LedgerMissing:
                holds = None
            if holds != receipt["hash"]:
                raise LedgerCorrupt(
                    f"{entry['dataset']!r} lacks entry {entry['seq']}, which paid for a stored "
                    "answer: this is an older copy of the ledger, which does not know what was "
                    "spent since; put the newer one back"
                )

    def quote(self, dataset: str, query: Query, *, analyst: str | None = None) -> Quote:
        """What a query would cost; for the analyst who was given its answer, that it is free."""
        found = self._dataset(dataset)
        cost = quote(query, found.schema)
        if analyst is None:
            return cost
        checked_text("analyst", analyst)
        name = _name(found, query, self._chain(found))
        before = self._answers.received(dataset, name, analyst=analyst)
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
        """Answer a query, charging the dataset and the analyst's and project's budgets.

        Raises ``InvalidValue`` or ``NotApplicable`` for a query that cannot be answered and
        ``BudgetExceeded`` where the budget is short; both are decided without the data, and
        nothing is charged. The same ``idempotency_key`` with another query is a ``KeyConflict``.
        """
        found = self._dataset(dataset)
        checked_text("analyst", analyst)
        if project is not None:
            checked_text("project", project)
        plan = make_plan(query, found.schema)
        name = _name(found, query, self._chain(found))
        if idempotency_key is not None:
            checked_text("idempotency_key", idempotency_key)
            self._answers.check_key(dataset, idempotency_key, name)
        # One question is computed once even if many ask it at the same time.
        with self._turns[int(name[:8], 16) % _STRIPES]:
            stored = self._answers.find(dataset, name)
            if stored is not None:
                self._answers.note(dataset, name, analyst=analyst, key=idempotency_key)
                return replace(stored.again(), about=plan.about)
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

    def _answer(
        self,
        found: CuratedDataset,
        plan: Plan,
        charge: Charge,
        *,
        name: str,
        analyst: str,
        key: str | None,
    ) -> Answer:
        if charge.outcome != "open":
            if charge.result == _NO_ANSWER:
                raise AlreadyCharged(_FAILED, outcome=charge.outcome)
            raise AlreadyCharged(
                "this query was charged and ended, and its answer is not among the stored ones: "
                "they were moved or cut; nothing is computed twice under one charge",
                outcome=charge.outcome,
            )
        kept: Answer | None = None
        # When the answer was made would tell how long that took: it is dated by its charge.
        at = datetime.now(UTC).isoformat(timespec="seconds")
        # Whoever ends the same charge first has it on record; the answer is stored all the same.
        with suppress(AlreadyCharged), charge.attempt():
            released = _released(plan, found)
            if released is None:
                charge.record(_NO_ANSWER)
            else:
                answer = Answer(
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
                kept = self._answers.keep(found.name, name, answer, analyst=analyst, key=key)
        if kept is None:
            raise AlreadyCharged(_FAILED, outcome=charge.outcome)
        return kept

    def _dataset(self, name: str) -> CuratedDataset:
        checked_text("dataset", name)
        try:
            found = self._datasets[name]
        except KeyError:
            raise InvalidValue("dataset", name, "the name of a dataset") from None
        if found.name != name:
            raise InvalidValue("dataset", name, f"the name of the dataset itself, {found.name!r}")
        return found

    def _chain(self, found: CuratedDataset) -> str:
        """The first hash of the dataset's chain, which no other ledger has.

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


def _released(plan: Plan, found: CuratedDataset) -> Released | None:
    """What the plan releases, or None if it fails, however it does.

    The error stays here: its text and its kind may speak of a record. A process that is told
    to stop does not fail; it may come back to its charge.
    """
    try:
        return plan.release(plan.rows(found.engine()), SystemSource())
    except Exception as error:  # noqa: BLE001 - whatever it is, it happens once
        _log.error("a %s failed: %s", plan.query.tag, type(error).__name__)
        return None


def _name(found: CuratedDataset, query: Query, chain: str) -> str:
    """Names a question to a dataset of a ledger: the schema decides what it means.

    Version 0.1 capped the rows of a person before ``where``, so its answers to such questions mean
    something else and have other names: they are not handed out for the question of today.
    """
    text = f"{found.schema.content_hash}|{query.digest()}|{chain}"
    if found.schema.person is not None and query.where is not None:
        text += "|capped after where"
    return hashlib.sha256(text.encode()).hexdigest()


def _key(name: str, store: str, analyst: str, project: str | None) -> str:
    """The key of the charge: whoever asks the same again at the same store finds it."""
    whom = hashlib.sha256(repr((store, analyst, project)).encode()).hexdigest()
    return f"curator:{name}:{whom[:32]}"
