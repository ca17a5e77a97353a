"""Ways to get more out of a desk than was paid for, or to keep it busy: each is closed."""

import math
import random
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curator.random_expressions import STORED, some_condition, some_number
from curator.row_oracle import evaluate_row
from curator.worlds import AGE, INCOME, KEY, PERSONS, table
from discreet.curator import (
    Count,
    CuratedDataset,
    Curator,
    Histogram,
    Mean,
    Quantile,
    Sum,
    ThresholdStream,
    Variance,
    Workload,
)
from discreet.curator._plan import make_plan
from discreet.data import Integer, Real, Schema
from discreet.engines import (
    Absolute,
    Bucket,
    Compare,
    Condition,
    Divide,
    Field,
    Lowering,
    Multiply,
    ToNumber,
    Value,
    evaluate,
)
from discreet.engines._databases import DuckTable
from discreet.errors import (
    AlreadyCharged,
    InvalidValue,
    KeyConflict,
    LedgerCorrupt,
    NotApplicable,
)
from discreet.ledger import Ledger
from discreet.privacy import PureDP
from discreet.randomness import source
from support.calls import at_most_calls

ROWS = [(f"p{at}", at % 90, 1.0 * at, "Oslo", True, "2020-05-01", "x") for at in range(60)]
QUERY = Sum(of=INCOME, epsilon="1/1000")  # two draws of its noise are equal once in 1e12
QUERY_LOSS = PureDP("1/1000")


@pytest.fixture(scope="module")
def people() -> CuratedDataset:
    return CuratedDataset("people", schema=PERSONS, source=table(ROWS), key=KEY, threads=1)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.create(tmp_path / "study.ledger") as book:
        book.create_dataset("people", epsilon=1000, unit="person")
        yield book


def desk(ledger: Ledger, people: CuratedDataset) -> Curator:
    return Curator(ledger, {"people": people})


def test_a_restored_backup_pays_for_what_it_releases(
    ledger: Ledger, people: CuratedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made while a charge was open, whose answer has left since."""
    true = DuckTable.aggregate

    def ask(self: Any, *given: Any, **named: Any) -> Any:
        ledger.backup(tmp_path / "copy")
        return true(self, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(DuckTable, "aggregate", ask)
        released = desk(ledger, people).ask("people", QUERY, analyst="ann").value
    with Ledger.restore(tmp_path / "copy", spent={"people": QUERY_LOSS}) as restored:
        again = desk(restored, people).ask("people", QUERY, analyst="ann")
        assert not again.answered_before
        assert again.value != released
        assert [row.outcome for row in restored.history("people")] == ["open", "completed"]
        assert restored.verify().ok


def test_an_answer_that_was_removed_is_not_made_again(
    ledger: Ledger, people: CuratedDataset
) -> None:
    found = desk(ledger, people)
    found.ask("people", QUERY, analyst="ann")
    with ledger.store.writing() as session:
        session.run("DELETE FROM answers")
    with pytest.raises(LedgerCorrupt, match="somebody removed it"):
        found.ask("people", QUERY, analyst="ann")
    assert len(ledger.history("people")) == 1


@pytest.mark.parametrize(
    "flip",
    [
        """answer = replace(answer, '"value": ', '"value": 1')""",
        "answer = 'no JSON'",
        "digest = upper(digest)",
    ],
)
def test_a_flipped_byte_in_a_stored_answer_is_noticed(
    ledger: Ledger, people: CuratedDataset, flip: str
) -> None:
    found = desk(ledger, people)
    found.ask("people", QUERY, analyst="ann")
    with ledger.store.writing() as session:
        assert session.run(f"UPDATE answers SET {flip}") == 1
    for attempt in (found.ask, found.quote):
        with pytest.raises(LedgerCorrupt, match="damaged and is not given"):
            attempt("people", QUERY, analyst="ann")
    assert len(ledger.history("people")) == 1


@pytest.mark.parametrize("place", ["engine", "noise"])
def test_a_computation_that_fails_does_so_once(
    ledger: Ledger,
    people: CuratedDataset,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """Else every repetition would tell once more, for nothing, whether it fails."""
    found = desk(ledger, people)
    calls = []

    def fail(*_: Any, **__: Any) -> Any:
        calls.append(1)
        raise InvalidValue("age", "the age of p17 is 23", "nothing of this leaves")

    if place == "engine":
        monkeypatch.setattr(DuckTable, "aggregate", fail)
    else:
        monkeypatch.setattr(type(make_plan(QUERY, PERSONS)), "release", fail)
    for _ in range(3):
        with pytest.raises(AlreadyCharged) as caught:
            found.ask("people", QUERY, analyst="ann")
        assert "p17" not in str(caught.value)
        assert caught.value.__cause__ is None
    assert len(calls) == 1
    monkeypatch.undo()
    with pytest.raises(AlreadyCharged):
        found.ask("people", QUERY, analyst="ann")
    assert len(ledger.history("people")) == 1
    assert ledger.verify().ok


def test_a_key_is_bound_by_an_answer_of_the_store_too(
    ledger: Ledger, people: CuratedDataset
) -> None:
    found = desk(ledger, people)
    found.ask("people", QUERY, analyst="ann")
    for _ in range(2):
        found.ask("people", QUERY, analyst="bob", idempotency_key="k")
    with pytest.raises(KeyConflict):
        found.ask("people", Count(epsilon="1/7"), analyst="bob", idempotency_key="k")
    assert len(ledger.history("people")) == 1


HUGE = reduce(lambda of, _: Multiply(of, Value(10**18)), range(17), INCOME)


@pytest.mark.parametrize(
    "query",
    [
        Sum(of=HUGE, epsilon=1),
        Mean(of=HUGE, epsilon=1),
        Variance(of=reduce(lambda of, _: Multiply(of, Value(10**18)), range(8), INCOME), epsilon=1),
        Quantile(of=HUGE, share="1/2", epsilon=1),
        Sum(of=Divide(AGE, HUGE, lower=0, upper=1, default=0), epsilon=1),
    ],
)
def test_numbers_beyond_doubles_are_refused_by_the_schema(query: Any) -> None:
    """Their overflow, after the charge, depended on the records."""
    with pytest.raises(NotApplicable):
        make_plan(query, PERSONS)


@pytest.mark.parametrize("epsilon", ["1/1000000000000000000", "1/1000000000000000", 10**6])
def test_the_largest_numbers_and_noise_are_released(epsilon: Any) -> None:
    schema = Schema({"x": Real(0, 7e249)})
    found = CuratedDataset("found", schema=schema, source={"x": [7e249, 0, np.inf]}, threads=1)
    for query in (
        Sum(of=Field("x"), epsilon=epsilon),
        Mean(of=Field("x"), epsilon=epsilon),
        Quantile(of=Field("x"), share="1/2", epsilon=epsilon),
        Workload(questions=[Compare("<", Value(1), Value(2))], method="weights", epsilon=epsilon),
    ):
        plan = make_plan(query, schema)
        released = plan.release(plan.rows(found.engine()), source())
        for bar in released.bars:
            assert bar.low is not None
            assert bar.high is not None
            assert -math.inf < bar.low <= bar.high < math.inf
    found.close()


def test_a_threshold_stream_refuses_an_epsilon_before_the_charge() -> None:
    questions = [Compare("<", AGE, Value(50))]
    query = ThresholdStream(questions=questions, threshold=3, epsilon="1/1000000000000")
    with pytest.raises(InvalidValue, match="epsilon"):
        make_plan(query, PERSONS)


@pytest.mark.parametrize("high", [2**28 - 2, 2**27 - 1, 2**28, 2**53])
def test_the_variance_of_any_range_is_planned(high: int) -> None:
    schema = Schema({"n": Integer(0, high)})
    found = CuratedDataset("found", schema=schema, source={"n": [0, high]}, threads=1)
    plan = make_plan(Variance(of=Field("n"), epsilon=1), schema)
    _, total, squares = plan.parts(plan.rows(found.engine()))  # type: ignore[attr-defined]
    half = Value(high).value / 2
    step = plan.square.step  # type: ignore[attr-defined]
    assert abs(squares * step / 2 / half**2 - 1) < 2**-20
    assert abs(total) <= 2
    found.close()


def nested(form: Any, depth: int) -> Any:
    return reduce(lambda of, _: form(of), range(depth), AGE)


@pytest.mark.parametrize(
    "query",
    [
        Sum(of=nested(Absolute, 31), epsilon=1),
        Sum(
            of=nested(lambda of: Divide(Value(1), of, lower=-9, upper=9, default=0), 31), epsilon=1
        ),
        Histogram(of=nested(lambda of: Bucket(of, 1), 20), edges=tuple(range(100)), epsilon=1),
        Workload(
            questions=[Compare("<", ToNumber("note", 0, 900, 1), Value(at)) for at in range(90)],
            epsilon=1,
        ),
    ],
)
def test_texts_that_multiply_are_refused_at_once(query: Any) -> None:
    with pytest.raises(NotApplicable, match="too large"), at_most_calls(200_000):
        make_plan(query, PERSONS)


def test_large_workloads_are_planned_quickly() -> None:
    schema = Schema({"n": Integer(0, 4095)})
    questions = [Compare("<", Field("n"), Value(at)) for at in range(1500)]
    with at_most_calls(1_000_000):  # cell by cell there are six million
        plan = make_plan(Workload(questions=questions, epsilon=1), schema)
    assert plan.method == "weights"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_cells_at_once_are_cells_one_by_one() -> None:
    draw = random.Random(4)
    numbers = [some_number(draw, 3) for _ in range(150)]
    conditions = [some_condition(draw, 2) for _ in range(80)]
    rows = [
        {
            name: draw.choice([stored.grid.low, stored.grid.high, 0, 1])
            if stored.grid is not None
            else draw.randrange(2)
            for name, stored in STORED.items()
        }
        for _ in range(40)
    ]
    for row in rows:
        row["far"] = max(row["far"], STORED["far"].grid.low)  # type: ignore[union-attr]
    stored = [{STORED[name].stored_name: value for name, value in row.items()} for row in rows]
    cells = {name: np.array([row[name] for row in stored]) for name in stored[0]}
    lowering = Lowering(STORED)
    compared = 0
    for one in [*numbers, *conditions]:
        try:
            term = (
                lowering.condition(one) if isinstance(one, Condition) else lowering.number(one).term
            )
            found = evaluate(term, cells)
        except (NotApplicable, ValueError, AttributeError):  # a text, or too large by its bounds
            continue
        expected = [int(evaluate_row(term, row)) for row in stored]
        assert np.broadcast_to(found, 40).astype(int).tolist() == expected, one
        compared += 1
    assert compared > 120
