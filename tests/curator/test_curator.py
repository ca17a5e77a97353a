"""The curator: charged before the data are touched, stored before it leaves, answered once."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curator.worlds import AGE, CITY, KEY, PERSONS, queries, table
from discreet.curator import Answer, Count, CuratedDataset, Curator, GroupBy, Mean, Sum, _curator
from discreet.curator._answers import NewAnswer
from discreet.engines import AllOf, Case, Compare, Lookup, Value, _sql
from discreet.engines._databases import DuckTable
from discreet.errors import (
    BudgetExceeded,
    InvalidValue,
    KeyConflict,
    NotApplicable,
)
from discreet.ledger import Ledger, check_receipt
from ledger.postgres_server import running_server

ROWS = [(f"p{at}", at % 90, 1.0 * at, "Oslo", True, "2020-05-01", "x") for at in range(60)]


@pytest.fixture(scope="module")
def people() -> CuratedDataset:
    return CuratedDataset("people", schema=PERSONS, source=table(ROWS), key=KEY, threads=1)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.create(tmp_path / "study.ledger") as book:
        book.create_dataset("people", epsilon=1000, delta="1/100", unit="person")
        yield book


@pytest.fixture
def curator(ledger: Ledger, people: CuratedDataset) -> Curator:
    return Curator(ledger, {"people": people})


QUERY = Count(epsilon="1/10")


def charges(ledger: Ledger) -> list[Any]:
    return [row for row in ledger.history("people") if row]


def test_every_kind_of_query_is_answered_and_paid_for(curator: Curator, ledger: Ledger) -> None:
    for query in queries():
        answer = curator.ask("people", query, analyst="ann")
        document = json.loads(json.dumps(answer.to_json()))
        assert Answer.from_json(document).to_json() == document
        assert not answer.answered_before
        assert len(answer.errors) == (len(answer.value) if isinstance(answer.value, list) else 1)
        assert check_receipt(answer.receipt) == []
    assert len(charges(ledger)) == len(queries())
    assert ledger.verify().ok


def test_the_same_question_gets_the_same_answer_at_no_cost(
    curator: Curator, ledger: Ledger
) -> None:
    first = curator.ask("people", QUERY, analyst="ann")
    for analyst in ("ann", "bob"):
        again = curator.ask("people", QUERY, analyst=analyst)
        assert again.answered_before
        assert (again.value, again.receipt) == (first.value, first.receipt)
    assert len(charges(ledger)) == 1
    curator.ask("people", Count(epsilon="1/5"), analyst="ann")
    assert len(charges(ledger)) == 2


def test_answers_survive_the_process(
    curator: Curator, people: CuratedDataset, tmp_path: Path
) -> None:
    first = curator.ask("people", QUERY, analyst="ann")
    with Ledger.open(tmp_path / "study.ledger") as again:
        other = Curator(again, {"people": people})
        assert other.ask("people", QUERY, analyst="bob").value == first.value


def test_a_quote_says_free_only_to_whom_it_was_given(curator: Curator) -> None:
    assert not curator.quote("people", QUERY).answered_before
    curator.ask("people", QUERY, analyst="ann")
    assert curator.quote("people", QUERY, analyst="ann").answered_before
    assert not curator.quote("people", QUERY, analyst="bob").answered_before
    assert not curator.quote("people", QUERY).answered_before


def test_a_refusal_charges_nothing_and_touches_no_data(
    ledger: Ledger, people: CuratedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touched(*_: Any, **__: Any) -> Any:
        raise AssertionError("the data were touched")

    monkeypatch.setattr(DuckTable, "aggregate", touched)
    ledger.create_dataset("poor", epsilon=1, unit="person")
    poor = CuratedDataset("poor", schema=PERSONS, source=table(ROWS), threads=1)
    desk = Curator(ledger, {"poor": poor, "people": people})
    with pytest.raises(BudgetExceeded):
        desk.ask("poor", Count(epsilon=2), analyst="ann")
    for query in (
        GroupBy(by=(AGE,), epsilon=1),
        Count(epsilon=1, rows_per_person=9),
        Count(epsilon=1, where=Compare("<", CITY, Value(1))),
    ):
        with pytest.raises(InvalidValue):
            desk.ask("people", query, analyst="ann")
    with pytest.raises(InvalidValue, match="dataset"):
        desk.ask("nobody", QUERY, analyst="ann")
    with pytest.raises(InvalidValue, match="analyst"):
        desk.ask("people", QUERY, analyst="")
    assert charges(ledger) == []
    assert ledger.history("poor") == []


def test_what_the_engine_cannot_run_is_refused_before_the_charge(
    curator: Curator, ledger: Ledger, people: CuratedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = people.engine()
    with pytest.raises(NotApplicable):
        engine.explain("SELECT nothing FROM nowhere")
    query = Count(epsilon=1, where=Compare("<", AGE, Value(77)))
    monkeypatch.setattr(_sql, "write_sql", lambda *_, **__: "SELECT nothing FROM nowhere")
    with pytest.raises(NotApplicable):
        curator.ask("people", query, analyst="ann")

    def too_deep(*_: Any, **__: Any) -> str:
        raise RecursionError

    monkeypatch.setattr(_sql, "write_sql", too_deep)
    with pytest.raises(NotApplicable):
        curator.ask("people", query, analyst="ann")
    assert charges(ledger) == []


def test_large_conditions_and_lookups_are_answered(curator: Curator) -> None:
    condition: Any = Compare("<", AGE, Value(50))
    for _ in range(25):
        condition = AllOf([condition, *[Compare("<", AGE, Value(at)) for at in range(60, 100)]])
    cases = [Case(f"text {at}", at) for at in range(500)]
    number = Lookup("note", cases, default=0)
    curator.ask("people", Count(epsilon=1, where=condition), analyst="ann")
    answer = curator.ask("people", Sum(of=number, epsilon=1), analyst="ann")
    assert not answer.answered_before


def test_the_charge_is_spent_before_the_data_are_touched(
    curator: Curator, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    true = DuckTable.aggregate

    def watched(self: Any, *given: Any, **named: Any) -> Any:
        seen.append(len(charges(ledger)))
        return true(self, *given, **named)

    monkeypatch.setattr(DuckTable, "aggregate", watched)
    curator.ask("people", QUERY, analyst="ann")
    assert seen == [1]


class Crash(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("place", ["engine", "store"])
def test_a_crash_after_the_charge_leaves_it_spent_and_is_charged_once(
    curator: Curator, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def crash(*_: Any, **__: Any) -> Any:
        raise Crash

    with monkeypatch.context() as patch:
        if place == "engine":
            patch.setattr(DuckTable, "aggregate", crash)
        else:
            patch.setattr(NewAnswer, "write", crash)
        with pytest.raises(Crash):
            curator.ask("people", QUERY, analyst="ann", idempotency_key="k1")
    assert len(charges(ledger)) == 1
    answer = curator.ask("people", QUERY, analyst="ann", idempotency_key="k1")
    assert len(charges(ledger)) == 1
    assert not answer.answered_before
    assert curator.ask("people", QUERY, analyst="ann", idempotency_key="k1").value == answer.value
    assert ledger.verify().ok


def test_one_key_is_one_question(curator: Curator, ledger: Ledger) -> None:
    curator.ask("people", QUERY, analyst="ann", idempotency_key="k")
    with pytest.raises(KeyConflict):
        curator.ask("people", Count(epsilon="1/9"), analyst="ann", idempotency_key="k")
    assert len(charges(ledger)) == 1


def test_analysts_and_projects_have_their_own_budgets(curator: Curator, ledger: Ledger) -> None:
    ledger.create_budget("people", analyst="ann", epsilon="1/10")
    ledger.create_budget("people", project="heart", epsilon="1/20")
    curator.ask("people", QUERY, analyst="ann")
    with pytest.raises(BudgetExceeded) as caught:
        curator.ask("people", Count(epsilon="1/100"), analyst="ann")
    assert caught.value.budget == "analyst:ann"
    with pytest.raises(BudgetExceeded) as caught:
        curator.ask("people", Count(epsilon="1/10000"), analyst="ann", project="heart")
    curator.ask("people", Count(epsilon="1/20"), analyst="bob", project="heart")
    with pytest.raises(BudgetExceeded) as caught:
        curator.ask("people", Count(epsilon="1/30"), analyst="bob", project="heart")
    assert caught.value.budget == "project:heart"


def test_many_threads_get_one_answer_and_pay_once(curator: Curator, ledger: Ledger) -> None:
    answers: list[Answer] = []
    start = threading.Barrier(8)

    def ask(at: int) -> None:
        start.wait()
        answers.append(curator.ask("people", QUERY, analyst="ann"))
        answers.append(curator.ask("people", Count(epsilon=f"1/{at + 20}"), analyst="ann"))

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 16
    same = [answer.value for answer in answers if answer.query == QUERY]
    assert len(same) == 8
    assert len(set(same)) == 1
    assert len(charges(ledger)) == 9
    assert ledger.verify().ok


@pytest.mark.parametrize("analyst", ["ann", "bob"])
def test_two_processes_that_compute_the_same_answer_release_one(
    curator: Curator,
    people: CuratedDataset,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    analyst: str,
) -> None:
    """The other desk finds nothing stored, computes, and then is too late."""
    other = Curator(ledger, {"people": people})
    first: list[Answer] = []
    true = _curator._try_release

    def late(*given: Any) -> Any:
        monkeypatch.setattr(_curator, "_try_release", true)
        first.append(other.ask("people", QUERY, analyst=analyst))
        return true(*given)

    monkeypatch.setattr(_curator, "_try_release", late)
    released = curator.ask("people", QUERY, analyst="ann")
    assert released.value == first[0].value
    assert released.answered_before
    outcomes = [row.outcome for row in charges(ledger)]
    assert outcomes == ["completed"] * (1 if analyst == "ann" else 2)
    assert ledger.verify().ok


def test_a_charge_that_another_worker_ends_meanwhile_has_its_answer(
    curator: Curator, people: CuratedDataset, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This desk finds nothing stored, and then a charge that has ended."""
    other = Curator(ledger, {"people": people})
    true = Ledger.charge
    first: list[Answer] = []

    def late(self: Ledger, *given: Any, **named: Any) -> Any:
        monkeypatch.setattr(Ledger, "charge", true)
        first.append(other.ask("people", QUERY, analyst="ann"))
        return true(self, *given, **named)

    monkeypatch.setattr(Ledger, "charge", late)
    assert curator.ask("people", QUERY, analyst="ann").value == first[0].value
    assert len(charges(ledger)) == 1


def test_the_unit_of_the_budget_must_be_that_of_the_schema(ledger: Ledger) -> None:
    ledger.create_dataset("rows", epsilon=1)
    found = CuratedDataset("rows", schema=PERSONS, source=table(ROWS))
    desk = Curator(ledger, {"rows": found})
    with pytest.raises(InvalidValue, match="unit"):
        desk.ask("rows", QUERY, analyst="ann")


def test_another_schema_is_another_question(ledger: Ledger) -> None:
    from dataclasses import replace

    caps = []
    for cap in (2, 3):
        schema = replace(PERSONS, rows_per_person=cap)
        found = CuratedDataset("people", schema=schema, source=table(ROWS), threads=1)
        desk = Curator(ledger, {"people": found})
        caps.append(desk.ask("people", QUERY, analyst="ann").answered_before)
    assert caps == [False, False]


def test_faults_of_a_source_show_before_a_charge(ledger: Ledger, tmp_path: Path) -> None:
    absent = CuratedDataset("people", schema=PERSONS, source=tmp_path / "no.csv")
    desk = Curator(ledger, {"people": absent})
    with pytest.raises(InvalidValue):
        desk.ask("people", QUERY, analyst="ann")
    assert charges(ledger) == []


def test_a_csv_file_is_read_by_the_rules_of_the_schema(ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    heading = "who,age,income,city,member,day,note"
    lines = [heading, '1,30,5,"Os"lo",yes,2020-05-01,"open', "2,,,,,,"]
    path.write_text("\n".join(lines), encoding="utf-8")
    found = CuratedDataset("people", schema=PERSONS, source=path, threads=1)
    desk = Curator(ledger, {"people": found})
    answer = desk.ask("people", Count(epsilon=500), analyst="ann")
    assert answer.value == 2  # another value has a probability of e^-250
    bar = desk.ask("people", Mean(of=AGE, epsilon=400), analyst="ann").errors[0]
    assert 30 < bar.low <= 35 <= bar.high < 40


def test_a_description_tells_public_facts_only(people: CuratedDataset) -> None:
    facts = people.describe()
    assert json.loads(json.dumps(facts)) == facts
    empty = CuratedDataset("people", schema=PERSONS, source=table([]))
    assert empty.describe() == facts
    assert "60" not in json.dumps({**facts, "schema": "", "columns": ""})


@pytest.mark.slow
def test_answers_are_kept_in_postgresql_too(people: CuratedDataset) -> None:
    with running_server() as url:
        place = f"{url}&ledger=study"
        with Ledger.create(place) as book:
            book.create_dataset("people", epsilon=100, unit="person")
            desk = Curator(book, {"people": people})
            other = Curator(book, {"people": people})
            first = desk.ask("people", QUERY, analyst="ann", idempotency_key="k")
            again = other.ask("people", QUERY, analyst="bob")
            assert (again.value, again.answered_before) == (first.value, True)
            assert other.quote("people", QUERY, analyst="bob").answered_before
            assert not other.quote("people", QUERY, analyst="eve").answered_before
            with pytest.raises(KeyConflict):
                other.ask("people", Count(epsilon=1), analyst="ann", idempotency_key="k")
            desk.ask("people", QUERY, analyst="eve", idempotency_key="late")
            with pytest.raises(KeyConflict):
                other.ask("people", Count(epsilon=1), analyst="eve", idempotency_key="late")
            assert book.verify().ok
