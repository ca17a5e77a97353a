"""Charges: a budget that is spent already, and the context in which its release runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ClassVar, NoReturn, final

from discreet._json import canonical, read_json
from discreet._store import Session
from discreet.errors import AlreadyCharged, InvalidValue, LedgerError, SchemaError
from discreet.ledger._entry import Entry, make_receipt

Write = Callable[[Session], None]
_LONGEST_RESULT = 65_536


@final
class Charge:
    """A charge that is on the disk; made by :meth:`discreet.ledger.Ledger.charge`.

    As a context manager it runs the body *once* and appends what became of it: ``completed``, or
    ``failed`` with the name of the exception (never its text, which may hold private data).
    There is no refund: whether a body fails may itself depend on the data. A process that dies
    leaves the outcome ``open``; the charge is spent all the same.

    A charge that was found by its idempotency key is ``replayed``: ``outcome`` and ``result``
    are what was recorded, and entering it raises ``AlreadyCharged``, because a second run of the
    body would be a second release. For the same reason a charge cannot be copied or pickled, and
    only the process that made it may run the body. Bodies that can be continued after a crash
    run in :meth:`attempt`. ``made_here`` counts the charges of this process, so that the command
    line can say of a failure whether anything was spent.
    """

    made_here: ClassVar[int] = 0

    def __init__(
        self,
        entry: Entry,
        *,
        outcome: Mapping[str, Any] | None,
        replayed: bool,
        append_outcome: Callable[[Mapping[str, Any], Write | None], None],
    ) -> None:
        self._entry = entry
        self._append_outcome = append_outcome
        self._made_by = os.getpid()
        self._once = threading.Lock()
        self._entered = self._left = False
        self._write: Write | None = None
        # The text, not the object: whoever has the object could change it later.
        self._result = canonical(None if outcome is None else outcome["result"])
        self._outcome = "open" if outcome is None else str(outcome["outcome"])
        self._replayed = replayed

    @property
    def replayed(self) -> bool:
        """Whether the charge was made before, under the same key."""
        return self._replayed

    @property
    def dataset(self) -> str:
        """The dataset that was charged."""
        return self._entry.dataset

    @property
    def seq(self) -> int:
        """The position on the chain of the dataset."""
        return self._entry.seq

    @property
    def hash(self) -> str:
        """The hash of the entry."""
        return self._entry.hash

    @property
    def outcome(self) -> str:
        """``open``, ``completed`` or ``failed``."""
        return self._outcome

    @property
    def result(self) -> object:
        """What the body recorded, or ``None``."""
        return read_json(self._result, "result")

    def receipt(self) -> dict[str, Any]:
        """The entry as a JSON object for :func:`discreet.ledger.check_receipt`."""
        return make_receipt(self._entry)

    def record(self, result: object, *, write: Write | None = None) -> None:
        """Keep a released value (as JSON) for whoever comes with the same key.

        ``write`` runs with the session of the store in the transaction that records the outcome:
        what it writes is there if and only if the outcome is.
        """
        if not self._entered or self._outcome != "open" or os.getpid() != self._made_by:
            raise LedgerError("a result is recorded inside the body of its charge")
        try:
            text = canonical(result)
            if len(text) <= _LONGEST_RESULT:
                read_json(text, "result")  # what cannot be read, or has a name twice, is not kept
        except SchemaError:
            text = ""
        if not 0 < len(text) <= _LONGEST_RESULT:
            expected = f"JSON of at most {_LONGEST_RESULT} characters, no name twice"
            raise InvalidValue("result", type(result).__name__, expected)
        self._result, self._write = text, write

    @contextmanager
    def attempt(self) -> Iterator[Charge]:
        """Run a body that can be continued: until it has ended once, it may be attempted again.

        Only for a charge with a key, and for a body that keeps durable account, outside of the
        ledger, of every part that may have run, and runs no part twice. The ledger
        cannot see that; it is what makes all attempts together the one release that was charged.
        An attempt that ends records ``completed``. One that fails or dies records nothing: the
        charge stays ``open``, and whoever comes with the same key may go on. After an outcome was
        recorded there are no more attempts.
        """
        if self._entry.content.get("key") is None:
            raise LedgerError("attempt() needs a charge with a key, by which it is found again")
        if self._outcome != "open":
            raise self._already_charged()
        self._begin()
        yield self  # an exception leaves here, and nothing is recorded
        self._end(None)

    def __enter__(self) -> Charge:
        if self._replayed:
            raise self._already_charged()
        self._begin()
        return self

    def _already_charged(self) -> AlreadyCharged:
        return AlreadyCharged(
            f"entry {self.seq} of {self.dataset!r} was charged under this key already "
            f"(outcome: {self._outcome}): its body does not run again",
            outcome=self._outcome,
            result=self.result,
        )

    def _begin(self) -> None:
        if os.getpid() != self._made_by:
            raise LedgerError("the body of a charge runs in the process that charged")
        if not self._once.acquire(blocking=False):
            raise LedgerError("the body of a charge runs once")
        self._entered = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end(kind)
        except LedgerError as reason:
            if error is None:
                raise
            error.add_note(f"and the outcome could not be recorded: {reason}")

    def _end(self, kind: type[BaseException] | None) -> None:
        # A child that was forked inside the body leaves the outcome to its parent.
        if os.getpid() != self._made_by:
            return
        if not self._entered or self._left:
            raise LedgerError("the body of a charge ends once, after it has begun")
        self._left = True
        self._outcome = "completed" if kind is None else "failed"
        content = {
            "charge": self.seq,
            "outcome": self._outcome,
            "error": None if kind is None else kind.__name__,
            "result": self.result,
        }
        self._append_outcome(content, self._write if kind is None else None)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise LedgerError("a charge cannot be copied or pickled: its body would run twice")

    def __repr__(self) -> str:
        return f"<Charge {self.seq} of {self.dataset!r}: {self._outcome}>"


def refuse_second(outcome: Mapping[str, Any] | None, seq: int) -> None:
    """Two who attempted one body at the same time: the first to end it is on record."""
    if outcome is not None:
        raise AlreadyCharged(
            f"entry {seq} has the outcome {outcome['outcome']!r} already: somebody else has ended "
            "its body, and it was paid for once",
            outcome=str(outcome["outcome"]),
            result=outcome["result"],
        )
