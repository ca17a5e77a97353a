"""A charge is one: not copied, pickled, forked or entered twice, and its result stays."""

import copy
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from discreet.errors import AlreadyCharged, InvalidValue, LedgerCorrupt, LedgerError
from discreet.ledger import Charge, Ledger
from discreet.privacy import PureDP
from ledger.tampering import tamper

TENTH = PureDP("0.1")


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, pickle.dumps, lambda charge: pickle.dumps(charge, protocol=0)],
    ids=["copy", "deepcopy", "pickle", "pickle 0"],
)
def test_a_charge_is_never_two(ledger: Ledger, again: Callable[[Charge], Any]) -> None:
    charge = ledger.charge("census", TENTH)
    with pytest.raises(LedgerError, match="twice"):
        again(charge)
    with charge, pytest.raises(LedgerError, match="twice"):
        again(charge)
    assert ledger.verify().ok


FORKED = """
import os, sys
from discreet.errors import LedgerError
from discreet.ledger import Ledger
from discreet.privacy import PureDP
ledger = Ledger.open(sys.argv[1])
charge = ledger.charge("census", PureDP("0.1"))
if os.fork() == 0:
    try:
        with charge:
            print("the body ran in the child", flush=True)
    except LedgerError as error:
        print("refused:", error, flush=True)
    os._exit(0)
os.wait()
with charge:
    if os.fork() == 0:
        try:
            charge.record(1)
        except LedgerError as error:
            print("refused:", error, flush=True)
        os._exit(0)
    os.wait()
    charge.record("mine")
print(charge.outcome, charge.result)
"""


def test_a_charge_belongs_to_the_process_that_made_it(ledger: Ledger, place: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, place],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.splitlines() == [
        "refused: the body of a charge runs in the process that charged",
        "refused: a result is recorded inside the body of its charge",
        "completed mine",
    ], done.stderr
    assert [row.outcome for row in ledger.history("census")] == ["completed"]


def test_one_of_many_threads_runs_the_body(ledger: Ledger) -> None:
    charge = ledger.charge("census", TENTH)
    start, ran, refused = threading.Barrier(8), [], []

    def work() -> None:
        start.wait()
        try:
            with charge:
                ran.append(1)
        except LedgerError:
            refused.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(ran), len(refused)) == (1, 7)
    assert ledger.verify().ok


def test_a_refusal_of_the_tables_is_an_error_of_the_ledger(ledger: Ledger, place: str) -> None:
    charge = ledger.charge("census", TENTH)
    with pytest.raises(LedgerCorrupt, match="run verify"), charge:
        # The ledger is made to forget its last entry, so that the outcome comes where one is.
        tamper(place, "UPDATE datasets SET seq = 0, hash = genesis WHERE number = 1")
    assert not ledger.verify().ok


# --- bodies that can be continued -----------------------------------------------------------


class Stop(Exception):
    """A body breaks off."""


def outcomes(ledger: Ledger) -> list[str]:
    return [row.outcome for row in ledger.history("census")]


def test_a_body_is_attempted_until_it_has_ended(ledger: Ledger) -> None:
    with pytest.raises(Stop), ledger.charge("census", TENTH, key="k").attempt():
        raise Stop
    assert outcomes(ledger) == ["open"]
    with ledger.charge("census", TENTH, key="k").attempt() as charge:
        assert charge.replayed
        charge.record({"steps": 3})
    assert charge.outcome == "completed"
    assert outcomes(ledger) == ["completed"]
    assert ledger.show("census").budget.charges == 1
    last = ledger.charge("census", TENTH, key="k")
    assert (last.outcome, last.result) == ("completed", {"steps": 3})
    with pytest.raises(AlreadyCharged, match="completed"), last.attempt():
        pytest.fail("the body ran after it had ended")
    assert ledger.verify().ok


def test_a_failure_on_record_is_not_attempted_again(ledger: Ledger) -> None:
    with pytest.raises(Stop), ledger.charge("census", TENTH, key="k"):
        raise Stop
    with (
        pytest.raises(AlreadyCharged, match="failed"),
        ledger.charge("census", TENTH, key="k").attempt(),
    ):
        pytest.fail("the body ran again")
    assert outcomes(ledger) == ["failed"]


def test_of_two_who_end_a_body_one_is_on_record(ledger: Ledger, place: str) -> None:
    with Ledger.open(place) as other:
        mine = ledger.charge("census", TENTH, key="k")
        theirs = other.charge("census", TENTH, key="k")
        with (
            pytest.raises(AlreadyCharged, match="somebody else"),
            mine.attempt(),
            theirs.attempt(),
        ):
            pass  # theirs ends first
    assert outcomes(ledger) == ["completed"]
    assert ledger.verify().ok


def test_an_attempt_is_one_and_has_a_key(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="key"), ledger.charge("census", TENTH).attempt():
        pytest.fail("a body without a key was attempted")
    charge = ledger.charge("census", TENTH, key="k")
    with charge.attempt(), pytest.raises(LedgerError, match="once"), charge.attempt():
        pytest.fail("two attempts at once")
    with pytest.raises(AlreadyCharged), charge.attempt():
        pytest.fail("an attempt after the end")


# --- results -------------------------------------------------------------------------------


def test_a_result_is_what_it_was_when_it_was_recorded(ledger: Ledger) -> None:
    result = {"counts": [1, 2]}
    with ledger.charge("census", TENTH, key="k") as charge:
        charge.record(result)
        result["counts"].append(3)
        charge.result["more"] = 4  # type: ignore[index]
        assert charge.result == {"counts": [1, 2]}
    assert ledger.charge("census", TENTH, key="k").result == {"counts": [1, 2]}


def test_the_size_of_a_result_cannot_grow_afterwards(ledger: Ledger) -> None:
    result: list[str] = []
    with ledger.charge("census", TENTH, key="k") as charge:
        charge.record(result)
        result.extend(["x" * 1000] * 1000)
    assert ledger.charge("census", TENTH, key="k").result == []
    assert len(json.dumps(ledger.export("census"))) < 20_000


@pytest.mark.parametrize(
    "result",
    [{1: "a", "1": "b"}, {True: 1, "true": 2}, {None: 1, "null": 2}, 10**5000, b"x", float("inf")],
    ids=lambda result: type(result).__name__,
)
def test_a_result_that_would_be_read_otherwise_is_refused(ledger: Ledger, result: object) -> None:
    with ledger.charge("census", TENTH) as charge, pytest.raises(InvalidValue, match="result"):
        charge.record(result)


def test_a_refused_result_leaves_the_one_before(ledger: Ledger) -> None:
    with ledger.charge("census", TENTH, key="k") as charge:
        charge.record(1)
        with pytest.raises(InvalidValue):
            charge.record("x" * 65_536)
        charge.record("x" * 65_534)  # with its quotation marks exactly the limit
        charge.record(2)
    assert ledger.charge("census", TENTH, key="k").result == 2


def test_nobody_makes_a_replayed_charge_new(ledger: Ledger) -> None:
    with ledger.charge("census", TENTH, key="k"):
        pass
    again: Any = ledger.charge("census", TENTH, key="k")
    with pytest.raises(AttributeError):
        again.replayed = False
    with pytest.raises(AlreadyCharged), again:
        pytest.fail("the body ran twice")


def test_a_body_ends_once_and_after_it_began(ledger: Ledger) -> None:
    charge = ledger.charge("census", TENTH)
    with pytest.raises(LedgerError, match="ends once, after it has begun"):
        charge.__exit__(None, None, None)
    assert charge.outcome == "open"
    with charge:
        pass
    with pytest.raises(LedgerError, match="ends once, after it has begun"):
        charge.__exit__(ValueError, None, None)
    assert charge.outcome == "completed"
    assert [row.outcome for row in ledger.history("census")] == ["completed"]
