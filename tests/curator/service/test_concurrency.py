"""32 analysts at once never exceed any cap, whatever they ask and however they race."""

import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from curator.service.studies import Local, in_process, make_study
from discreet.curator.service import Registry, give_budget
from discreet.ledger import Ledger

ANALYSTS = [f"analyst-{number:02}" for number in range(32)]
EACH, WHOLE, PROJECT = Fraction(1, 4), Fraction(4), Fraction(1, 2)


def own_questions(name: str) -> list[dict[str, Any]]:
    """Six distinct questions at 1/20: together 3/10, more than an analyst has."""
    number = ANALYSTS.index(name)
    return [
        {
            "kind": "count",
            "epsilon": "1/20",
            "where": {
                "op": "compare",
                "how": "<",
                "left": {"op": "column", "name": "age"},
                "right": {"op": "value", "value": f"{number}.{turn:02}"},
            },
        }
        for turn in range(6)
    ]


def race(local: Local, tokens: dict[str, str]) -> dict[str, list[tuple[int, Any]]]:
    """Everybody asks at the same moment."""
    gate = threading.Barrier(len(tokens))
    outcomes: dict[str, list[tuple[int, Any]]] = {name: [] for name in tokens}

    def work(name: str) -> None:
        headers = {"Authorization": f"Bearer {tokens[name]}"}
        gate.wait()
        for turn, query in enumerate(own_questions(name)):
            keyed = {**headers, "Idempotency-Key": f"key-{turn}"}
            reply = local.post("/v1/datasets/people/ask", json={"query": query}, headers=keyed)
            outcomes[name].append((reply.status_code, reply.json()))

    threads = [threading.Thread(target=work, args=(name,)) for name in tokens]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_no_cap_is_exceeded(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    place = None
    if kind == "postgres":
        place = f"{request.getfixturevalue('server')}&ledger=race"
    study = make_study(tmp_path, place=place, epsilon=WHOLE, each=EACH, analysts=ANALYSTS)
    tokens = {name: study.tokens[name] for name in ANALYSTS}
    with Ledger.open(study.place) as ledger:
        registry = Registry(ledger)
        give_budget(ledger, registry, "people", project="shared", epsilon=PROJECT)
        for name in ANALYSTS[:16]:  # half of them share the budget of a project
            tokens[name] = registry.issue(
                "analyst", analyst=name, project="shared", datasets=["people"]
            )[0]
    with in_process(study, threads=16) as local:
        outcomes = race(local, tokens)
    statuses = {status for replies in outcomes.values() for status, _ in replies}
    assert statuses == {200, 409}
    granted = {
        name: [reply for status, reply in replies if status == 200]
        for name, replies in outcomes.items()
    }
    with Ledger.open(study.place) as ledger:
        view = ledger.show("people")
        verdict = ledger.verify()
        history = ledger.history("people")
    assert verdict.ok
    caps = {"dataset": WHOLE, "project:shared": PROJECT, **{f"analyst:{a}": EACH for a in ANALYSTS}}
    for budget in view.budgets:
        assert budget.spent["basic"] <= caps[budget.label]
    # What the budgets say is what was given out, to the last fraction.
    price = Fraction(1, 20)
    assert len(history) == sum(map(len, granted.values()))
    assert view.budget.spent["basic"] == price * len(history)
    for name in ANALYSTS:
        assert price * len(granted[name]) <= EACH
        mine = [row for row in history if row.analyst == name]
        assert len(mine) == len(granted[name])
    in_project = sum(len(granted[name]) for name in ANALYSTS[:16])
    assert in_project <= PROJECT / price
    assert len(history) == WHOLE / price  # more was wanted, and exactly all of it was given
    receipts = [reply["receipt"]["entry"]["seq"] for all_ in granted.values() for reply in all_]
    assert len(set(receipts)) == len(receipts)


def test_the_same_question_at_the_same_moment_is_charged_once(tmp_path: Path) -> None:
    study = make_study(tmp_path, analysts=["ann"])
    query = {"query": {"kind": "count", "epsilon": "1/3"}}
    answers: list[Any] = []
    with in_process(study, threads=16) as local:
        gate = threading.Barrier(24)

        def work(number: int) -> None:
            keyed = {**study.token("ann"), "Idempotency-Key": f"key-{number % 3}"}
            gate.wait()
            reply = local.post("/v1/datasets/people/ask", json=query, headers=keyed)
            answers.append(reply.json())

        threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({answer["value"] for answer in answers}) == 1
    assert sum(not answer["answered_before"] for answer in answers) >= 1
    with Ledger.open(study.place) as ledger:
        assert ledger.show("people").budget.spent["basic"] == Fraction(1, 3)
