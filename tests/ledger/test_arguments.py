"""Wrong types and values in every argument of every public method: refused, by name."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from discreet.errors import InvalidValue, LedgerError, SchemaError
from discreet.ledger import Ledger, check_receipt
from discreet.privacy import Gaussian, Laplace, Loss, PureDP, Relation

TENTH = PureDP("0.1")
HUGE = 10**5000  # Python refuses to print it
WRONG_NAMES = [
    None,
    b"census",
    "",
    " x",
    "a\0b",
    "\ud800",
    ["census"],
    3,
    HUGE,
    float("nan"),
    "x" * 201,
]
WRONG_AMOUNTS = [
    None,
    b"1",
    "one",
    "1\0",
    [1],
    {},
    HUGE,
    -HUGE,
    float("nan"),
    float("inf"),
    True,
    -1,
]


@pytest.fixture
def ledger(file: Path) -> Iterator[Ledger]:
    """On one store alone: arguments are checked before it is asked."""
    with Ledger.create(file) as book:
        book.create_dataset("census", epsilon=1, unit="person")
        book.create_dataset("survey", epsilon=1, delta="1e-6")
        yield book


def kind(value: object) -> str:
    return type(value).__name__


def refused(argument: str, deed: Callable[[], object]) -> None:
    with pytest.raises(InvalidValue) as refusal:
        deed()
    assert refusal.value.argument == argument
    assert refusal.value.expected
    assert str(refusal.value).startswith(f"{argument} = ")


@pytest.mark.parametrize("name", WRONG_NAMES, ids=kind)
def test_names(ledger: Ledger, name: Any) -> None:
    before = ledger.export("census")
    refused("name", lambda: ledger.create_dataset(name, epsilon=1))
    refused("unit", lambda: ledger.create_dataset("new", epsilon=1, unit=name))
    for deed in (
        lambda: ledger.create_budget(name, analyst="ann", epsilon=1),
        lambda: ledger.charge(name, TENTH),
        lambda: ledger.show(name),
        lambda: ledger.remaining(name),
        lambda: ledger.history(name),
        lambda: ledger.newest(name),
        lambda: ledger.receipt(name, 0),
        lambda: ledger.export(name),
    ):
        refused("dataset", deed)
    if name is not None:
        for scope in ("analyst", "project", "purpose"):
            names = {scope: name}
            refused(scope, lambda names=names: ledger.charge("census", TENTH, **names))
            refused(scope, lambda names=names: ledger.create_budget("census", epsilon=1, **names))
            refused(scope, lambda names=names: ledger.remaining("census", **names))
        refused("key", lambda: ledger.charge("census", TENTH, key=name))
    assert ledger.export("census") == before
    assert ledger.datasets() == ["census", "survey"]


@pytest.mark.parametrize("amount", WRONG_AMOUNTS, ids=kind)
def test_amounts(ledger: Ledger, amount: Any) -> None:
    refused("epsilon", lambda: ledger.create_dataset("new", epsilon=amount))
    refused("epsilon", lambda: ledger.create_budget("census", analyst="ann", epsilon=amount))
    refused("delta", lambda: ledger.create_dataset("new", epsilon=1, delta=amount))
    refused("delta", lambda: ledger.create_budget("census", analyst="a", epsilon=1, delta=amount))
    if amount is not None:
        settings = {"epsilon": 1, "delta": "1e-6", "reserved": amount}
        refused("reserved", lambda: ledger.create_dataset("new", **settings))
        refused("delta", lambda: ledger.charge("census", TENTH, delta=amount))
    assert ledger.datasets() == ["census", "survey"]
    assert [view.label for view in ledger.show("census").budgets] == ["dataset"]


@pytest.mark.parametrize("value", [3, b"x", [None], {}, HUGE, object()], ids=kind)
def test_settings_of_a_budget(ledger: Ledger, value: Any) -> None:
    settings = {"epsilon": 1, "delta": "1e-6"}
    refused("kind", lambda: ledger.create_dataset("new", kind=value, **settings))
    refused("relation", lambda: ledger.create_dataset("new", relation=value, **settings))
    if value != {}:
        refused("required", lambda: ledger.create_dataset("new", required=value, **settings))
    refused("orders", lambda: ledger.create_dataset("new", orders=value, kind="rdp", **settings))
    refused("loss", lambda: ledger.charge("census", value))
    assert ledger.datasets() == ["census", "survey"]


@pytest.mark.parametrize("orders", ["2", [], [1], [float("nan")], ["2"], [HUGE], [None]], ids=kind)
def test_orders(ledger: Ledger, orders: Any) -> None:
    settings = {"epsilon": 1, "delta": "1e-6", "kind": "rdp"}
    refused("orders", lambda: ledger.create_dataset("new", orders=orders, **settings))


@pytest.mark.parametrize(
    "seq", [None, -1, 2.0, "1", b"1", True, 2**63, 10**23, HUGE, [1]], ids=kind
)
def test_positions(ledger: Ledger, seq: Any) -> None:
    refused("seq", lambda: ledger.receipt("census", seq))


@pytest.mark.parametrize(
    "receipts", [None, 3, "receipt", b"x", {}, [None], [3], ["x"], [HUGE]], ids=kind
)
def test_receipts(ledger: Ledger, receipts: Any) -> None:
    refused("receipts", lambda: ledger.verify(receipts=receipts))


@pytest.mark.parametrize("document", [None, 3, b"{}", [], HUGE], ids=kind)
def test_documents(document: Any) -> None:
    refused("document", lambda: check_receipt(document))


@pytest.mark.parametrize(
    "spot", [None, b"x", "", "a\0b", 3, ["x"], HUGE, "mysql://x", 2.5], ids=kind
)
def test_places(ledger: Ledger, spot: Any) -> None:
    refused("place", lambda: Ledger.open(spot))
    refused("place", lambda: Ledger.create(spot))
    refused("target", lambda: ledger.backup(spot))


@pytest.mark.parametrize(
    "url", ["postgresql://[bad/x", "postgresql://u:secret@[/x", "postgresql://a\0b"]
)
def test_urls_that_cannot_be_read(url: str) -> None:
    for deed in (Ledger.open, Ledger.create):
        with pytest.raises(InvalidValue, match="place = 'postgresql://'") as refusal:
            deed(url)
        assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    "timeout", [None, 0, -1, "1", b"1", True, float("nan"), float("inf"), HUGE, 1e300], ids=kind
)
def test_timeouts(file: Path, timeout: Any) -> None:
    refused("timeout", lambda: Ledger.create(file, timeout=timeout))
    refused("timeout", lambda: Ledger.open(file, timeout=timeout))
    assert not file.exists()


def test_switches_clocks_and_stores(file: Path) -> None:
    refused("clock", lambda: Ledger.create(file, clock=3))  # type: ignore[arg-type]
    assert not file.exists()
    with Ledger.create(file) as ledger:
        ledger.create_dataset("census", epsilon=1)
    for value in (None, 1, "yes", HUGE):
        refused("read_only", lambda value=value: Ledger.open(file, read_only=value))
    refused("store", lambda: Ledger(str(file)))  # type: ignore[arg-type]
    for moment in (None, "now", 3, HUGE, datetime.min.replace(tzinfo=timezone(timedelta(hours=2)))):
        with Ledger.open(file, clock=lambda moment=moment: moment) as ledger:
            refused("clock", lambda ledger=ledger: ledger.charge("census", TENTH))
            assert ledger.show("census").budget.charges == 0


def test_a_loss_that_verify_could_not_read_is_never_charged(ledger: Ledger) -> None:
    class Cheap(Loss):
        """A loss of nobody's: it cannot be written into an entry."""

        relation = Relation.ADD_REMOVE  # type: ignore[assignment]

    forged = Gaussian(1.0).poisson(rate=0.5)
    object.__setattr__(forged, "base", Laplace(1.0))
    object.__setattr__(forged, "records", 5)
    tampered = PureDP(1)
    object.__setattr__(tampered, "pure_epsilon", -1)
    before = ledger.show("census").budget.charges
    for loss in (Cheap(), forged, tampered, Cheap() + PureDP("0.01")):
        with pytest.raises(InvalidValue, match=r"loss = .*written as JSON and read again"):
            ledger.charge("census", loss)
    assert ledger.show("census").budget.charges == before
    assert ledger.verify().ok


@pytest.mark.parametrize(
    "epsilon",
    ["1e5000", "1e-5000", Fraction(1, 10**6000), 10**6000],
    ids=["large", "small", "fraction", "integer"],
)
def test_amounts_too_long_to_be_written_are_refused(ledger: Ledger, epsilon: Any) -> None:
    with pytest.raises(InvalidValue, match=r"epsilon = .*fewer than 4000 digits"):
        ledger.charge("census", PureDP(epsilon))
    with pytest.raises(InvalidValue, match="epsilon = "):
        ledger.create_dataset("other", epsilon=epsilon)
    with pytest.raises(InvalidValue, match="epsilon = "):
        ledger.create_budget("census", analyst="ann", epsilon=epsilon)
    with pytest.raises(InvalidValue, match="delta = "):
        ledger.charge("survey", Gaussian(100.0), delta=epsilon)
    assert ledger.verify().ok


def test_sums_of_long_amounts_stay_short_and_are_never_too_low(ledger: Ledger) -> None:
    amounts = [Fraction(1, 10**1900 + k) for k in (7, 9, 13)]
    for amount in amounts:
        ledger.charge("census", PureDP(amount))
    spent = ledger.show("census").budget.spent["basic"]
    assert spent >= sum(amounts)
    assert spent.denominator < 10**700
    assert ledger.verify().ok


def test_a_version_is_a_number(ledger: Ledger) -> None:
    receipt = ledger.receipt("census", 0)
    assert check_receipt(receipt) == []
    for version in (True, 1.0, "1"):
        with pytest.raises(SchemaError, match="not a receipt"):
            check_receipt({**receipt, "version": version})


def test_a_directory_that_is_gone_is_an_error_of_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for attempt in (Ledger.create, Ledger.open):
        with pytest.raises(LedgerError):
            attempt("ledger")
