"""Tables, indexes, guards, rolls and commits: what does not belong to a ledger is found."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from discreet.errors import LedgerCorrupt
from discreet.ledger import Ledger
from discreet.ledger._entry import EMPTY_ROLL, Roll
from discreet.privacy import PureDP
from ledger.tampering import execute, query, tamper

TENTH = PureDP("0.1")


@pytest.fixture
def busy(ledger: Ledger) -> Ledger:
    ledger.create_budget("census", analyst="ann", epsilon="0.5")
    with ledger.charge("census", TENTH, analyst="ann", key="k"):
        pass
    ledger.charge("survey", TENTH)
    assert ledger.verify().ok
    return ledger


def problems(ledger: Ledger) -> str:
    verdict = ledger.verify()
    assert not verdict.ok
    return "\n".join(map(str, verdict.problems))


# --- foreign, missing and altered parts ----------------------------------------------------

SQLITE_PARTS = [
    ("DROP TRIGGER entries_no_update", "the trigger 'entries_no_update' is missing"),
    ("DROP TRIGGER entries_no_replace", "the trigger 'entries_no_replace' is missing"),
    ("DROP INDEX entries_by_key", "the index 'entries_by_key' is missing"),
    ("CREATE TABLE more (x)", "the table 'more' is not part of a ledger"),
    ("CREATE VIEW more AS SELECT 1", "the view 'more' is not part of a ledger"),
    ("CREATE INDEX more ON entries (hash)", "the index 'more' is not part of a ledger"),
    ("ALTER TABLE budgets ADD COLUMN more TEXT", "the table 'budgets' is not as a ledger has it"),
    (
        (
            "CREATE TRIGGER thief AFTER UPDATE ON budgets BEGIN UPDATE budgets"
            " SET state = OLD.state WHERE rowid = OLD.rowid; END"
        ),
        "the trigger 'thief' is not part of a ledger",
    ),
]
POSTGRES_PARTS = [
    ("DROP TRIGGER entries_no_change ON entries", "the trigger 'entries_no_change' is missing"),
    (
        "ALTER TABLE entries DISABLE TRIGGER entries_no_change",
        "the trigger 'entries_no_change' is not as a ledger has it",
    ),
    ("DROP INDEX entries_by_key", "the index 'entries_by_key' is missing"),
    ("CREATE TABLE more (x INT)", "the table 'more' is not part of a ledger"),
    ("CREATE VIEW more AS SELECT 1", "the relation 'more' is not part of a ledger"),
    ("CREATE INDEX more ON entries (hash)", "the index 'more' is not part of a ledger"),
    ("ALTER TABLE budgets ADD COLUMN more TEXT", "the column 'budgets.more' is not part"),
    ("ALTER TABLE budgets ALTER state DROP NOT NULL", "the column 'budgets.state' is not as"),
    ("ALTER TABLE budgets ALTER state SET DEFAULT ''", "the column 'budgets.state' is not as"),
    ("ALTER TABLE budgets ADD CHECK (state <> '')", "the constraint 'budgets_state_check' is not"),
    ("ALTER TABLE budgets ENABLE ROW LEVEL SECURITY", "the table 'budgets' is not as"),
    ("CREATE RULE more AS ON UPDATE TO budgets DO INSTEAD NOTHING", "the table 'budgets' is not"),
    (
        (
            "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RETURN NULL; END $$"
        ),
        "the function 'refuse_change' is not as a ledger has it",
    ),
]


@pytest.mark.parametrize("number", range(max(len(SQLITE_PARTS), len(POSTGRES_PARTS))))
def test_what_is_not_part_of_a_ledger_is_found(busy: Ledger, place: str, number: int) -> None:
    parts = POSTGRES_PARTS if "://" in place else SQLITE_PARTS
    statement, finding = parts[number % len(parts)]
    execute(place, statement)
    assert finding in problems(busy)
    with pytest.raises(LedgerCorrupt, match="run verify"):
        Ledger.open(place)
    with Ledger.open(place, read_only=True) as reader:
        assert finding in problems(reader)
    if "://" not in place:  # those who have it open notice before they write
        with pytest.raises(LedgerCorrupt, match="nothing was charged"):
            busy.charge("census", TENTH)
        assert query(place, "SELECT COUNT(*) FROM entries") == [(6,)]


def test_statistics_of_the_planner_are_welcome(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.create_dataset("census", epsilon=1)
        execute(str(tmp_path / "ledger"), "ANALYZE")
        ledger.charge("census", TENTH)
        assert ledger.verify().ok
    Ledger.open(tmp_path / "ledger").close()


# --- writes that do not happen ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "table", "sql"),
    [
        (
            "trigger",
            "sqlite_stat_x",
            "budgets",
            (
                "CREATE TRIGGER sqlite_stat_x AFTER UPDATE ON budgets BEGIN"
                " UPDATE budgets SET state = OLD.state WHERE scope = OLD.scope; END"
            ),
        ),
        (
            "trigger",
            "sqlite_stat1",
            "entries",
            (
                "CREATE TRIGGER sqlite_stat1 BEFORE INSERT ON entries"
                " BEGIN SELECT RAISE(IGNORE); END"
            ),
        ),
        ("view", "sqlite_stat4", "sqlite_stat4", "CREATE VIEW sqlite_stat4 AS SELECT 1 AS x"),
    ],
)
def test_nothing_hides_behind_the_names_of_statistics(
    file: Path, kind: str, name: str, table: str, sql: str
) -> None:
    with Ledger.create(file) as ledger:
        ledger.create_dataset("census", epsilon=1)
    execute(
        str(file),
        "PRAGMA writable_schema = ON",
        "INSERT INTO sqlite_master (type, name, tbl_name, rootpage, sql) VALUES"
        f" ('{kind}', '{name}', '{table}', 0, '{sql}')",
        "PRAGMA schema_version = 1000",
    )
    with pytest.raises(LedgerCorrupt, match=f"the {kind} '{name}' is not part of a ledger"):
        Ledger.open(file)
    with Ledger.open(file, read_only=True) as ledger:
        assert f"the {kind} '{name}' is not part of a ledger" in problems(ledger)


@pytest.mark.parametrize("table", ["budgets", "datasets", "entries"])
def test_a_write_that_changes_nothing_is_no_charge(busy: Ledger, place: str, table: str) -> None:
    event = "INSERT" if table == "entries" else "UPDATE"
    if "://" in place:
        execute(
            place,
            "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RETURN NULL; END $$",
            f"CREATE TRIGGER thief BEFORE {event} ON {table} FOR EACH ROW"
            " EXECUTE FUNCTION swallow()",
        )
    else:
        # A connection that saw the schema before; the count of rows has to tell.
        link = busy._store._idle[-1]  # type: ignore[attr-defined]
        link.check_tables = lambda: None
        execute(
            place,
            f"CREATE TRIGGER thief BEFORE {event} ON {table} BEGIN SELECT RAISE(IGNORE); END",
        )
    before = busy.export("census")
    with pytest.raises(LedgerCorrupt, match="nothing was charged"):
        busy.charge("census", TENTH)
    assert busy.export("census") == before
    assert "thief" in problems(busy)


# --- budgets ---------------------------------------------------------------------------------


def test_a_second_row_does_not_hide_an_altered_budget(busy: Ledger, place: str) -> None:
    [(text,)] = query(place, "SELECT state FROM budgets WHERE scope = 'dataset' AND dataset = 1")
    state = json.loads(text)
    state["lanes"][0]["spent"] = "0"
    tamper(
        place,
        f"INSERT INTO budgets (dataset, scope, name, state) VALUES (1, 'dataset', 'zz', '{text}')",
        f"UPDATE budgets SET state = '{json.dumps(state)}'"
        " WHERE dataset = 1 AND scope = 'dataset' AND name = ''",
    )
    found = problems(busy)
    assert "the budgets are not those of the chain" in found
    assert "the sums or settings remembered for 'dataset'" in found


@pytest.mark.parametrize(
    ("row", "finding"),
    [
        ("1, 'dataset', 'zz'", "the budgets are not those of the chain"),
        ("1, 'analyst', 'eve'", "the budgets are not those of the chain"),
        ("1, 'owner', 'eve'", "the budgets are not those of the chain"),
        ("7, 'dataset', ''", "budgets of a dataset number 7 are orphans"),
    ],
)
def test_foreign_budgets_are_found(busy: Ledger, place: str, row: str, finding: str) -> None:
    [(text,)] = query(place, "SELECT state FROM budgets WHERE scope = 'dataset' AND dataset = 1")
    tamper(place, f"INSERT INTO budgets (dataset, scope, name, state) VALUES ({row}, '{text}')")
    assert finding in problems(busy)


def test_a_dataset_that_lost_its_budget_is_not_charged(busy: Ledger, place: str) -> None:
    tamper(place, "DELETE FROM budgets WHERE dataset = 1 AND scope = 'dataset'")
    for attempt in (
        lambda: busy.charge("census", TENTH),
        lambda: busy.charge("census", TENTH, analyst="ann"),
        lambda: busy.create_budget("census", project="p", epsilon=1),
        lambda: busy.show("census"),
    ):
        with pytest.raises(LedgerCorrupt, match="lost its budget"):
            attempt()
    assert "the budgets are not those of the chain" in problems(busy)


# --- whole datasets ------------------------------------------------------------------------------


def remove_dataset(place: str, number: int, *more: str) -> None:
    tamper(
        place,
        f"DELETE FROM entries WHERE dataset = {number}",
        f"DELETE FROM budgets WHERE dataset = {number}",
        f"DELETE FROM datasets WHERE number = {number}",
        *more,
    )


@pytest.mark.parametrize("number", [1, 2])
def test_the_removal_of_a_whole_dataset_is_found(busy: Ledger, place: str, number: int) -> None:
    remove_dataset(place, number)
    assert "the ledger has opened 2 datasets and holds 1" in problems(busy)
    with pytest.raises(LedgerCorrupt, match="has opened 2 datasets"):
        busy.create_dataset("third", epsilon=1)


def test_others_remember_a_dataset_that_the_ledger_was_made_to_forget(
    busy: Ledger, place: str
) -> None:
    busy.charge("census", TENTH)
    [(genesis,)] = query(place, "SELECT genesis FROM datasets WHERE number = 1")
    roll = EMPTY_ROLL.append(genesis).as_text()
    remove_dataset(place, 2, f"UPDATE meta SET value = '{roll}' WHERE name = 'roll'")
    found = problems(busy)
    assert "has opened" not in found
    assert "was written when the ledger had 2 datasets, and not these" in found


def test_a_dataset_replaced_by_another_is_found(busy: Ledger, place: str, tmp_path: Path) -> None:
    busy.charge("census", TENTH)
    remove_dataset(place, 2)
    tamper(place, f"UPDATE meta SET value = '{first_roll(place)}' WHERE name = 'roll'")
    busy.create_dataset("survey", epsilon=100)  # a fresh budget under the old name
    assert "was written when the ledger had 2 datasets, and not these" in problems(busy)


def first_roll(place: str) -> str:
    [(genesis,)] = query(place, "SELECT genesis FROM datasets WHERE number = 1")
    return EMPTY_ROLL.append(genesis).as_text()


def test_a_roll_depends_on_every_dataset_and_their_order() -> None:
    one, two = EMPTY_ROLL.append("a").append("b"), EMPTY_ROLL.append("b").append("a")
    assert one.count == two.count == 2
    assert one.hash != two.hash
    assert Roll.parse(one.as_text()) == one
    assert EMPTY_ROLL.append("a").append("b") == one


@pytest.mark.parametrize("value", ["", "2", "x:y", "2:", "02:" + "a" * 64, "2:" + "a" * 63])
def test_a_spoilt_roll_is_an_error(busy: Ledger, place: str, value: str) -> None:
    tamper(place, f"UPDATE meta SET value = '{value}' WHERE name = 'roll'")
    assert problems(busy)
    if value != "2:":
        with pytest.raises(LedgerCorrupt):
            busy.charge("census", TENTH)


# --- commits -------------------------------------------------------------------------------------


@pytest.fixture
def book(file: Path) -> Iterator[Ledger]:
    with Ledger.create(file) as ledger:
        ledger.create_dataset("census", epsilon=1)
        ledger.charge("census", TENTH)
        yield ledger


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("DELETE FROM commits", "the count of commits is lost"),
        ("UPDATE commits SET made = made - 1", "were there before"),
        ("UPDATE commits SET made = -1", "were there before"),
        ("UPDATE commits SET made = 9223372036854775807", "were there before"),
    ],
)
def test_the_count_of_commits_is_not_trusted(
    book: Ledger, file: Path, statement: str, finding: str
) -> None:
    # A count that goes back would let a commit pass for one that was flushed before.
    execute(str(file), statement)
    assert finding in problems(book)
    for attempt in (lambda: book.charge("census", TENTH), lambda: book.receipt("census", 1)):
        with pytest.raises(LedgerCorrupt, match="commits"):
            attempt()
    assert query(str(file), "SELECT COUNT(*) FROM entries") == [(2,)]


@pytest.mark.parametrize("value", ["'many'", "2.5", "x'00'", "NULL"])
def test_the_tables_take_no_values_of_another_type(book: Ledger, file: Path, value: str) -> None:
    for change in (f"commits SET made = {value}", f"datasets SET seq = {value}"):
        with pytest.raises(sqlite3.IntegrityError):
            execute(str(file), f"UPDATE {change}")
    assert book.verify().ok


def test_a_budget_is_written_in_one_way(book: Ledger, file: Path) -> None:
    execute(str(file), "UPDATE budgets SET state = state || ' '")
    assert "the sums or settings remembered for 'dataset'" in problems(book)
