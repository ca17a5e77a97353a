"""Stored answers: durable before anybody has them, and the same after a migration."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from curator.worlds import KEY, PERSONS, table
from discreet._store import _sqlite
from discreet.curator import Answer, Count, CuratedDataset, Curator
from discreet.curator.service import Registry
from discreet.errors import LedgerError, LedgerUnconfirmed
from discreet.ledger import Ledger
from ledger.disk import Disk
from ledger.places import server
from ledger.tampering import query

__all__ = ["server"]

ROWS = [(f"p{at}", at % 90, 1.0 * at, "Oslo", True, "2020-05-01", "x") for at in range(60)]
QUERY = Count(epsilon="1/100")  # two draws are equal once in 800
STUDY = Path(__file__).parents[1] / "ledger" / "recorded" / "study"
TOKEN = f"dsc_{'6e' * 8}_{'6e' * 32}"


@pytest.fixture(scope="module")
def people() -> CuratedDataset:
    return CuratedDataset("people", schema=PERSONS, source=table(ROWS), key=KEY, threads=1)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "study.ledger"


@pytest.fixture
def ledger(disk: Disk, place: Path) -> Iterator[Ledger]:
    with Ledger.create(place) as book:
        book.create_dataset("people", epsilon=10, unit="person")
        yield book


def answer_after(place: Path, people: CuratedDataset) -> tuple[Answer, int]:
    """What a curator says when the power is back, and how many charges there are then."""
    with Ledger.open(place) as ledger:
        answer = Curator(ledger, {"people": people}).ask("people", QUERY, analyst="ann")
        assert ledger.verify().ok
        return answer, len(ledger.history("people"))


def test_an_answer_survives_a_power_cut(
    disk: Disk, ledger: Ledger, place: Path, people: CuratedDataset, tmp_path: Path
) -> None:
    given = Curator(ledger, {"people": people}).ask("people", QUERY, analyst="ann")
    found, charges = answer_after(disk.cut_power(place, tmp_path / "after"), people)
    assert (found.value, found.answered_before, charges) == (given.value, True, 1)


def shown_before_its_flush(
    disk: Disk, ledger: Ledger, place: Path, people: CuratedDataset, tmp_path: Path
) -> tuple[Answer, Answer, int]:
    """What a second worker gives out of an answer whose own flush hangs, and what a cut leaves."""
    hangs, go_on = threading.Event(), threading.Event()
    flushes: list[int] = []

    def wait() -> None:
        if threading.current_thread() is writer:
            flushes.append(1)
            if len(flushes) == 2:  # the first one is that of the charge
                hangs.set()
                assert go_on.wait(60)

    first = Curator(ledger, {"people": people})
    with Ledger.open(place) as book:
        second = Curator(book, {"people": people})
        second.quote("people", QUERY, analyst="bob")
        writer = threading.Thread(
            target=first.ask, args=("people", QUERY), kwargs={"analyst": "ann"}
        )
        disk.before = wait
        writer.start()
        try:
            assert hangs.wait(60)
            shown = second.ask("people", QUERY, analyst="bob")
            left = disk.cut_power(place, tmp_path / "after")
        finally:
            go_on.set()
            writer.join()
    disk.before = lambda: None
    return shown, *answer_after(left, people)


def test_an_answer_that_a_second_worker_gives_survives_a_power_cut(
    disk: Disk, ledger: Ledger, place: Path, people: CuratedDataset, tmp_path: Path
) -> None:
    shown, found, charges = shown_before_its_flush(disk, ledger, place, people, tmp_path)
    assert (found.value, found.answered_before, charges) == (shown.value, True, 1)


def test_without_the_flush_of_readers_a_second_answer_is_released(
    disk: Disk,
    ledger: Ledger,
    place: Path,
    people: CuratedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planted bug: the answer that was given is forgotten, and drawn anew for nothing."""
    reading, writing = _sqlite.SqliteStore.reading, _sqlite.SqliteStore.writing
    unsafe = threading.main_thread()
    for name, true in (("reading", reading), ("writing", writing)):
        monkeypatch.setattr(
            _sqlite.SqliteStore,
            name,
            lambda store, *, durable=True, true=true: true(
                store, durable=durable and threading.current_thread() is not unsafe
            ),
        )
    _, found, charges = shown_before_its_flush(disk, ledger, place, people, tmp_path)
    assert (found.answered_before, charges) == (False, 1)


def test_nothing_rests_on_an_answer_whose_flush_failed(
    disk: Disk, ledger: Ledger, place: Path, people: CuratedDataset, tmp_path: Path
) -> None:
    """A failed flush of one answer, another question, a power cut."""
    first = Curator(ledger, {"people": people})
    with Ledger.open(place) as book:
        second = Curator(book, {"people": people})
        flushes: list[int] = []

        def fail_second() -> None:
            flushes.append(1)
            disk.fails = len(flushes) == 2

        disk.before = fail_second
        with pytest.raises(LedgerUnconfirmed):
            first.ask("people", QUERY, analyst="ann")
        disk.before = lambda: None
        disk.fails = False
        for asked in (QUERY, Count(epsilon="1/9")):
            with pytest.raises(LedgerError, match="discreet ledger repair"):
                second.ask("people", asked, analyst="bob")
    left = disk.cut_power(place, tmp_path / "after")
    assert Ledger.repair(left)
    found, charges = answer_after(left, people)
    assert (found.answered_before, charges) == (False, 1)
    # Here the answer is still there, and after the repair it is the one that counts.
    assert Ledger.repair(place)
    assert answer_after(place, people)[0].answered_before


def test_an_outcome_without_its_answer_cannot_be_written(
    disk: Disk,
    ledger: Ledger,
    place: Path,
    people: CuratedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Power is cut before every flush and every statement of an answer: both are there, or none."""
    cuts: list[Path] = []

    def cut() -> None:
        cuts.append(disk.cut_power(place, tmp_path / f"cut{len(cuts)}"))

    run = _sqlite.Link.run

    def watched(link: Any, statement: str, values: Any = ()) -> int:
        if statement.startswith(("INSERT", "UPDATE", "COMMIT")):
            cut()
        return run(link, statement, values)

    disk.before = cut
    with monkeypatch.context() as patch:
        patch.setattr(_sqlite.Link, "run", watched)
        Curator(ledger, {"people": people}).ask("people", QUERY, analyst="ann")
    disk.before = lambda: None
    assert len(cuts) > 10
    for left in cuts:
        ended = query(str(left), "SELECT count(*) FROM entries WHERE kind = 'outcome'")
        assert query(str(left), "SELECT count(*) FROM answers") == ended
        assert query(str(left), "SELECT count(*) FROM answer_receivers") == ended


# --- migration -------------------------------------------------------------------------------


def fill(path: Path, name: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((STUDY / f"{name}.sql").read_text())


def old_study(place: Path) -> None:
    fill(place, "ledger")
    for name in ("answers", "registry"):
        fill(place.with_name(f"{place.name}.{name}"), name)


def check_study(place: str, people: CuratedDataset) -> None:
    with Ledger.open(place) as ledger:
        curator = Curator(ledger, {"people": people})
        given = curator.ask("people", Count(epsilon="1/10"), analyst="ann", idempotency_key="k1")
        assert given.answered_before
        assert given.receipt["entry"]["seq"] == 1
        assert curator.quote("people", Count(epsilon="1/10"), analyst="ann").answered_before
        # Its charge is open: the name of the answers came along, so it is not paid again.
        again = curator.ask("people", Count(epsilon="1/5"), analyst="ann")
        assert not again.answered_before
        assert again.receipt["entry"]["seq"] == 3
        assert [row.outcome for row in ledger.history("people")] == ["completed", "completed"]
        holder = Registry(ledger).authenticate(TOKEN)
        assert holder is not None
        assert holder.analyst == "ann"
        assert ledger.verify().ok


def test_a_study_is_migrated_with_its_answers_and_tokens(
    place: Path, people: CuratedDataset
) -> None:
    old_study(place)
    Ledger.migrate(place)
    assert sorted(path.name for path in place.parent.iterdir()) == [
        place.name,
        f"{place.name}.answers.before-4",
        f"{place.name}.before-4",
        f"{place.name}.registry.before-4",
    ]
    check_study(str(place), people)


class Cut(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("step", range(4))
def test_a_migration_that_is_cut_short_loses_no_answer(
    place: Path, people: CuratedDataset, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    old_study(place)
    true, calls = Path.rename, []

    def rename(path: Path, target: Path) -> Path:
        calls.append(path)
        if len(calls) > step:
            raise Cut
        return true(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(Cut):
            Ledger.migrate(place)
    assert not place.is_dir()
    Ledger.migrate(place)
    check_study(str(place), people)


@pytest.mark.slow
def test_the_schemas_of_a_study_in_postgresql_become_one(
    server: str, people: CuratedDataset
) -> None:
    import psycopg

    with psycopg.connect(server, autocommit=True) as admin:
        for schema, name in (
            ("discreet_old_study", "ledger"),
            ("discreet_answers_old_study", "answers"),
            ("curator_old_study", "registry"),
        ):
            text = (STUDY / f"{name}.sql").read_text()
            lines = [line for line in text.splitlines() if not line.startswith(("PRAGMA", "--"))]
            script = "\n".join(line for line in lines if "TRIGGER" not in line)
            admin.execute(f"CREATE SCHEMA {schema}")
            admin.execute(f"SET search_path TO {schema}")
            admin.execute(
                script.replace("(only INTEGER", "(only_one INTEGER").replace("only =", "only_one =")
            )
        admin.execute("SET search_path TO discreet_old_study")
        admin.execute("DROP TABLE commits")
        recorded = STUDY.parent / "postgres" / "version_3.sql"
        for line in recorded.read_text().split(";\n"):
            if "TRIGGER" in line or "FUNCTION" in line:
                admin.execute(line.replace("discreet_old.", ""))
    check_study(f"{server}&ledger=old_study", people)
