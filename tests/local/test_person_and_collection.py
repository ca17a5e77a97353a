"""A person's own ledger, the certificate of a collection, and what trust would buy."""

from __future__ import annotations

import json
import math
import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from discreet.certificate import Certificate
from discreet.errors import BudgetExceeded, DataCorrupt, InvalidValue, MechanismHalted, SchemaError
from discreet.local import (
    FrequencyOracle,
    MeanOracle,
    PersonLedger,
    Rappor,
    VectorOracle,
    certify_collection,
    compare_deployments,
    read_plan,
    write_plan,
)
from discreet.privacy import PureDP
from discreet.randomness import source


def test_a_person_pays_before_anything_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "budget.json"
    person = PersonLedger("5/2", file=file)
    drinks, ages = FrequencyOracle(4, 1), MeanOracle(0, 100, 1)
    person.report(drinks, 2)
    person.report(ages, 40.0)
    assert (person.spent, person.left) == (2, Fraction(1, 2))
    with pytest.raises(BudgetExceeded, match="1/2 of 5/2 is left"):
        person.report(drinks, 2)
    again = PersonLedger.open(file)
    assert again.to_json() == person.to_json()
    assert sum(again.sent.values()) == 2
    if os.name == "posix":
        assert file.stat().st_mode & 0o077 == 0
    again.report(FrequencyOracle(4, "1/2"), 1)
    assert PersonLedger.open(file).left == 0
    with pytest.raises(InvalidValue, match="a new file"):
        PersonLedger(1, file=file)


def test_what_cannot_be_written_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = PersonLedger(2, file=tmp_path / "budget.json")

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("discreet.local._person.write_file", full)
    with pytest.raises(OSError, match="no space"):
        person.report(FrequencyOracle(4, 1), 2)
    assert person.spent == 1  # paid all the same


def test_a_repeated_answer_is_free_and_another_value_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "budget.json"
    person, plan = PersonLedger(1, file=file), FrequencyOracle(["tea", "milk"], 1)
    first = person.report(plan, "tea", repeat=True)
    person = PersonLedger.open(file)
    assert {person.report(plan, "tea", repeat=True) for _ in range(50)} == {first}
    assert person.left == 0
    with pytest.raises(MechanismHalted, match="the old one"):
        person.report(plan, "milk", repeat=True)
    with pytest.raises(InvalidValue, match="plan"):
        person.report("plan", 1)


def test_a_memorised_value_is_paid_once_over_restarts(tmp_path: Path) -> None:
    file, plan = tmp_path / "budget.json", Rappor(["home", "away"], 1)
    person = PersonLedger("3/2", file=file)
    person.report(plan, "home")
    remembered = json.loads(file.read_bytes())["answers"]
    for _ in range(3):  # another process, another day
        PersonLedger.open(file).report(plan, "home")
    again = PersonLedger.open(file)
    assert json.loads(file.read_bytes())["answers"] == remembered
    assert (again.spent, sum(again.sent.values())) == (1, 4)
    with pytest.raises(MechanismHalted, match="the old value"):
        again.report(plan, "away")
    with pytest.raises(BudgetExceeded):
        again.report(Rappor(["home", "away"], 1, changes=1), "home")
    for wrong in ({}, {"bits": "01", "changed": 0, "place": 0}, {"bits": 7}, "text"):
        with pytest.raises(InvalidValue, match="memory"):
            plan.client(memory=wrong)  # type: ignore[arg-type]


def test_two_handles_of_one_ledger_share_its_budget(tmp_path: Path) -> None:
    file, plan = tmp_path / "budget.json", FrequencyOracle(4, 1)
    first = PersonLedger(2, file=file)
    second = PersonLedger.open(file)
    first.report(plan, 1)
    second.report(plan, 1)
    assert second.left == 0
    for one in (first, second):
        with pytest.raises(BudgetExceeded):
            one.report(plan, 1)


@pytest.mark.parametrize(
    "damage",
    [
        *("{", "[]", "{}", '{"kind": "discreet.person", "version": 2}'),
        '{"kind":"discreet.person","version":1,"epsilon":"1","spent":"-5","sent":{},"answers":{}}',
    ],
)
def test_a_damaged_ledger_is_refused(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "budget.json"
    file.write_text(damage)
    with pytest.raises((DataCorrupt, SchemaError)):
        PersonLedger.open(file)


@pytest.mark.slow
def test_averaging_succeeds_on_fresh_reports_and_fails_on_repeated_ones() -> None:
    """The collector of one person's 400 reports, with and without memory."""
    plan = FrequencyOracle(["well", "ill"], "1/2", method="GRR")

    def most_said(repeat: bool, seed: int) -> int:
        bits = source(insecure_seed=seed)
        person = PersonLedger(1000)
        reports = [person.report(plan, "ill", repeat=repeat, source=bits) for _ in range(400)]
        said = np.frombuffer(b"".join(reports), dtype=np.uint8).reshape(400, -1)[:, -1]
        return int(np.bincount(said, minlength=3).argmax())

    fresh = [most_said(False, seed) for seed in range(12)]
    repeated = [most_said(True, seed) for seed in range(12)]
    # The truth is said with chance 0.452 against 0.274 each: 400 reports decide, one does not.
    assert fresh == [1] * 12
    assert repeated.count(1) < 10


def test_the_certificate_of_a_collection_is_a_local_one() -> None:
    plan = VectorOracle(3, 2)
    server = plan.server()
    server.aggregate([*plan.randomize_each(np.eye(3)), b"noise"])
    certificate = certify_collection(plan, server)
    assert certificate.loss == PureDP(2, relation="replace")
    assert (certificate.epsilon, certificate.delta, certificate.unit) == (2.0, 0.0, "person")
    assert certificate.run["accepted"] == 0  # rows of an array are no bytes
    assert any("double precision" in line for line in certificate.assumptions)
    assert Certificate.from_json(certificate.to_json()) == certificate
    changing = certify_collection(Rappor(3, 1, changes=2))
    assert "when the value changed is not covered" in changing.run["covers"]
    assert changing.epsilon == 3.0
    assert not certificate.insecure


def test_plans_are_read_as_they_were_written() -> None:
    document = write_plan(["tea", "milk"], "1/3")
    plan = read_plan(json.loads(json.dumps(document)))
    assert plan.description == FrequencyOracle(["tea", "milk"], "1/3").description
    for wrong in (
        {},
        [],
        {**document, "version": 2},
        {**document, "epsilon": -1},
        {**document, "more": 1},
    ):
        with pytest.raises(SchemaError):
            read_plan(wrong)


def test_local_shuffled_and_central_side_by_side() -> None:
    plan = FrequencyOracle(64, 1)
    small, large = (compare_deployments(plan, n) for n in (10_000, 1_000_000))
    names = ["local", "shuffled", "central", "central, epsilon as shuffled"]
    assert [row.name for row in small] == names
    assert small[0].deviation == pytest.approx(math.sqrt(3.7e-4), rel=0.05)
    # Variance 1/n against 1/n^2.
    assert small[0].deviation / large[0].deviation == pytest.approx(10)
    assert small[2].deviation / large[2].deviation == pytest.approx(100)
    assert small[1].epsilon == pytest.approx(0.0432, abs=1e-4)
    assert small[0].epsilon == small[2].epsilon == 1
    with pytest.raises(InvalidValue, match="people"):
        compare_deployments(plan, 0)
