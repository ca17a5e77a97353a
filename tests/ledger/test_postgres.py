"""What only a server can do: roles, timeouts, lost connections, and its own migrations."""

import secrets
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import psycopg
import pytest

from discreet._store import LATEST, _postgres
from discreet.errors import (
    InvalidValue,
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    LedgerMissing,
    LedgerReadOnly,
    LedgerTooNew,
    LedgerUnconfirmed,
)
from discreet.ledger import Ledger
from discreet.privacy import PureDP
from ledger.tampering import query, tamper

TENTH = PureDP("0.1")
RECORDED = Path(__file__).parent / "recorded" / "postgres"


@pytest.fixture
def url(server: str) -> str:
    return f"{server}&ledger=p{secrets.token_hex(6)}"


@pytest.fixture
def book(url: str) -> Iterator[Ledger]:
    with Ledger.create(url) as ledger:
        ledger.create_dataset("census", epsilon=1)
        yield ledger


@pytest.fixture
def admin(server: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(server, autocommit=True) as connection:
        yield connection


# --- opening -------------------------------------------------------------------------------


def test_a_mistyped_name_is_not_a_fresh_budget(server: str) -> None:
    with pytest.raises(LedgerMissing, match=r"Ledger\.create"):
        Ledger.open(f"{server}&ledger=typo")
    with pytest.raises(InvalidValue, match="small letters"):
        Ledger.create(f"{server}&ledger=x;drop")


def test_a_server_that_cannot_be_reached_is_named_without_its_password(tmp_path: Path) -> None:
    address = f"postgresql://ann:secret@/postgres?host={tmp_path}"
    with pytest.raises(LedgerError, match="ann@") as refusal:
        Ledger.open(address)
    assert "secret" not in str(refusal.value)


def test_a_server_that_does_not_flush_is_refused(
    book: Ledger, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = _postgres._Link.rows

    def unsafe(
        link: _postgres._Link, statement: str, values: tuple[object, ...] = ()
    ) -> list[tuple[object, ...]]:
        return [("off",)] if statement == "SHOW fsync" else rows(link, statement, values)

    monkeypatch.setattr(_postgres._Link, "rows", unsafe)
    with pytest.raises(LedgerError, match="fsync = off"):
        Ledger.open(url)


def test_a_missing_driver_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(_postgres, "import_module", missing)
    with pytest.raises(LedgerError, match=r"discreet\[postgres\]"):
        Ledger.open(url)


def test_a_newer_ledger_is_refused(book: Ledger, url: str) -> None:
    tamper(url, f"UPDATE meta SET value = '{LATEST + 1}' WHERE name = 'schema'")
    with pytest.raises(LedgerTooNew):
        Ledger.open(url)
    with pytest.raises(LedgerTooNew):
        book.charge("census", TENTH)


def test_missing_tables_are_an_error(book: Ledger, url: str) -> None:
    tamper(url, "DROP TABLE entries")
    with pytest.raises(LedgerCorrupt, match="not those of a ledger"):
        book.charge("census", TENTH)


# --- migrations ----------------------------------------------------------------------------


@pytest.fixture(params=range(1, LATEST))
def old(request: pytest.FixtureRequest, admin: psycopg.Connection, server: str) -> Iterator[str]:
    admin.execute("DROP SCHEMA IF EXISTS discreet_old CASCADE")
    admin.execute((RECORDED / f"version_{request.param}.sql").read_text())
    yield f"{server}&ledger=old"
    admin.execute("DROP SCHEMA discreet_old CASCADE")


def test_every_older_version_is_recorded() -> None:
    names = sorted(path.name for path in RECORDED.iterdir())
    assert names == [f"version_{version}.sql" for version in range(1, LATEST)]


def test_an_older_ledger_is_migrated_with_all_it_holds(old: str) -> None:
    entries = query(old, "SELECT seq, text, hash FROM entries ORDER BY dataset, seq")
    with pytest.raises(LedgerReadOnly):
        Ledger.open(old, read_only=True)
    with Ledger.open(old) as ledger:
        after = query(old, "SELECT seq, text, hash FROM entries ORDER BY dataset, seq")
        assert after == entries
        assert ledger.verify().ok
        assert ledger.remaining("census", analyst="ann").spent["basic"] == Fraction(1, 10)
        ledger.charge("census", TENTH, analyst="ann", key="new")
        assert ledger.charge("census", TENTH, analyst="ann", key="new").replayed
        assert ledger.verify().ok


def test_a_migration_that_fails_leaves_the_old_version(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [version] = query(old, "SELECT value FROM meta WHERE name = 'schema'")
    run = _postgres._Link.run

    def failing(link: Any, statement: str, values: tuple[object, ...] = ()) -> int:
        if statement.startswith("UPDATE meta SET value"):
            raise psycopg.OperationalError("the server went away")
        return run(link, statement, values)

    with monkeypatch.context() as patch:
        patch.setattr(_postgres._Link, "run", failing)
        with pytest.raises(LedgerError):
            Ledger.open(old)
    assert query(old, "SELECT value FROM meta WHERE name = 'schema'") == [version]
    names = query(old, "SELECT name FROM meta ORDER BY name")
    assert (("roll",) in names) is (version > ("2",))
    columns = query(
        old,
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = 'discreet_old' AND table_name = 'entries'",
    )
    assert (("request_key",) in columns) is (version != ("1",))
    with Ledger.open(old) as ledger:
        assert ledger.verify().ok


def test_two_who_open_an_old_ledger_at_once_migrate_it_once(old: str) -> None:
    verdicts = []

    def work() -> None:
        with Ledger.open(old) as ledger:
            verdicts.append(ledger.verify().ok)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [True] * 4


# --- refusals while charging ---------------------------------------------------------------


def test_a_role_that_may_only_read(
    book: Ledger, url: str, server: str, admin: psycopg.Connection
) -> None:
    name = "discreet_" + url.partition("&ledger=")[2]
    admin.execute("DROP ROLE IF EXISTS reader")
    admin.execute("CREATE ROLE reader LOGIN")
    admin.execute(f"GRANT USAGE ON SCHEMA {name} TO reader")
    admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO reader")
    with Ledger.open(url.replace("user=postgres", "user=reader")) as reader:
        assert reader.show("census").budget.charges == 0
        assert reader.verify().ok
        with pytest.raises(LedgerReadOnly, match="nothing was charged"):
            reader.charge("census", TENTH)
    with Ledger.open(url, read_only=True) as reader:
        assert reader.receipt("census", 0) == book.receipt("census", 0)
        with pytest.raises(LedgerReadOnly, match="nothing was charged"):
            reader.charge("census", TENTH)
    assert book.show("census").budget.charges == 0
    admin.execute("DROP OWNED BY reader; DROP ROLE reader")


def test_a_dataset_that_others_hold_too_long_says_so(book: Ledger, url: str, server: str) -> None:
    name = "discreet_" + url.partition("&ledger=")[2]
    with Ledger.open(url, timeout=0.2) as hasty, psycopg.connect(server) as hog:
        hog.execute(f"SELECT * FROM {name}.datasets FOR UPDATE")
        with pytest.raises(LedgerBusy, match="nothing was charged"):
            hasty.charge("census", TENTH)
        hog.rollback()
        hasty.charge("census", TENTH)
    assert book.show("census").budget.charges == 1


def test_a_lost_connection_is_an_error_once(
    book: Ledger, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = book._store._idle[-1]  # type: ignore[attr-defined]
    admin.execute("SELECT pg_terminate_backend(%s)", [link._connection.info.backend_pid])
    with pytest.raises(LedgerError):
        book.charge("census", TENTH)
    assert book.show("census").budget.charges == 0
    book.charge("census", TENTH)
    assert book.verify().ok


def test_a_connection_lost_while_committing_never_runs_the_body(
    book: Ledger, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _postgres._Link.run

    def cut(link: _postgres._Link, statement: str, values: tuple[object, ...] = ()) -> int:
        if statement == "COMMIT" and link.rows("SHOW transaction_read_only") == [("off",)]:
            admin.execute("SELECT pg_terminate_backend(%s)", [link._connection.info.backend_pid])
        return run(link, statement, values)

    with monkeypatch.context() as patch:
        patch.setattr(_postgres._Link, "run", cut)
        with (
            pytest.raises(LedgerUnconfirmed, match="must not run"),
            book.charge("census", TENTH),
        ):
            pytest.fail("the body ran")
    assert book.show("census").budget.charges in (0, 1)
    assert book.verify().ok


def test_a_backup_is_left_to_the_server(book: Ledger, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="pg_dump"):
        book.backup(tmp_path / "copy")
