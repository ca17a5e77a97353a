"""What analysts see does not tell when a running question ends, nor who paid for an answer.

Two services differ by one person, for whom the engine takes longer: a planted leak. While a
question runs, when it has ended and when its answer has left, an analyst who polls everything that
there is sees the same on both; only the declared time after the charge changes a quote.
"""

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from curator.service.studies import Local, Study, in_process, make_study, people
from discreet.curator.service import Registry
from discreet.ledger import Ledger, check_receipt

PEOPLE = "/v1/datasets/people"
SETTLE = 120.0
COMMON = people(40)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Study, Local]]]:
    studies = [
        make_study(tmp_path_factory.mktemp("without"), rows=COMMON),
        make_study(tmp_path_factory.mktemp("with"), rows=[*COMMON, ("extra", 50, "Bodo")]),
    ]
    with (
        in_process(studies[0], quote_delay=SETTLE) as first,
        in_process(studies[1], quote_delay=SETTLE) as second,
    ):
        yield list(zip(studies, (first, second), strict=True))


class Held:
    """An engine that reads the rows and then waits until it is told to go on."""

    def __init__(self, client: Local, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        backend = client.app.state.operations.datasets["people"].engine()
        rows = backend.rows

        def slow(compiled: str) -> Any:
            found = rows(compiled)
            if not compiled.startswith("EXPLAIN"):
                self.reached.set()
                assert self.go_on.wait(30)
            return found

        monkeypatch.setattr(backend, "rows", slow, raising=False)


def count(epsilon: str) -> dict[str, Any]:
    return {"query": {"kind": "count", "epsilon": epsilon}}


def views(study: Study, client: Local, question: dict[str, Any], holder: str) -> dict[str, Any]:
    """Everything that can be polled, without dates and hashes of the chain, which are random."""
    headers = study.token(holder)
    facts = client.get(PEOPLE, headers=headers).json()
    history = client.get(f"{PEOPLE}/history", headers=headers).json()["charges"]
    entries = [client.get(f"{PEOPLE}/receipts/{n}", headers=headers) for n in range(12)]
    return {
        "quote": client.post(f"{PEOPLE}/quote", json=question, headers=headers).json(),
        "chain": (facts["entries"], facts["head"] is None),
        "budgets": facts["budgets"],
        "list": client.get("/v1/datasets", headers=headers).json()["datasets"][0]["entries"],
        "history": [(row["entry"], row["spent"], row["outcome"]) for row in history],
        "receipts": [
            reply.text if reply.status_code == 404 else reply.status_code for reply in entries
        ],
        "verdict": client.post("/v1/verify", json={}, headers=headers).json(),
    }


def watched(
    study: Study, client: Local, monkeypatch: pytest.MonkeyPatch, holder: str
) -> list[dict[str, Any]]:
    """Views while a question runs, after its end, and after the declared time."""
    question = count("1/31")
    held = Held(client, monkeypatch)
    replies: list[httpx.Response] = []

    def ask() -> None:
        replies.append(client.post(f"{PEOPLE}/ask", json=question, headers=study.token("ann")))

    asking = threading.Thread(target=ask)
    asking.start()
    assert held.reached.wait(30)
    seen = [views(study, client, question, holder)]
    held.go_on.set()
    asking.join()
    assert replies[0].status_code == 200
    seen.append(views(study, client, question, holder))
    curator = client.app.state.operations.curator
    for later in (SETTLE - 30, SETTLE + 2):
        monkeypatch.setattr(curator, "clock", lambda later=later: time.time() + later)
        seen.append(views(study, client, question, holder))
    return seen


def test_polling_does_not_tell_when_a_question_ends(
    pair: list[tuple[Study, Local]], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [watched(study, client, monkeypatch, "ann") for study, client in pair]
    for running, ended, waiting, settled in both:
        assert len(running["history"]) == 1  # the charge is seen at once, its end is not
        assert not running["quote"]["answered_before"]
        assert running == ended == waiting
        assert settled == {**running, "quote": {**running["quote"], "answered_before": True}}
    assert both[0] == both[1]


def test_the_same_polling_by_an_owner_sees_the_end(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power of the test above: for owners, who see everything, the views differ."""
    study = make_study(tmp_path_factory.mktemp("owner"), rows=COMMON)
    with in_process(study, quote_delay=SETTLE) as client:
        running, ended, *_ = watched(study, client, monkeypatch, "owner")
    assert running["history"][0][2] == "open"
    assert ended["history"][0][2] == "completed"
    assert ended["chain"][0] == running["chain"][0] + 1
    assert ended["verdict"]["entries"] == running["verdict"]["entries"] + 1


def test_who_did_not_pay_gets_the_answer_without_names(pair: list[tuple[Study, Local]]) -> None:
    study, client = pair[0]
    ask = f"{PEOPLE}/ask"
    keyed = {**study.token("ann"), "Idempotency-Key": "secret-plan"}
    first = client.post(ask, json=count("1/37"), headers=keyed).json()
    given = client.post(ask, json=count("1/37"), headers=study.token("bob"))
    assert given.status_code == 200
    other = given.json()
    assert (other["value"], other["answered_before"]) == (first["value"], True)
    whole, reference = first["receipt"], other["receipt"]
    assert check_receipt(whole) == []
    assert reference == {
        "schema": "discreet.curator.reference",
        "version": 1,
        "hash": whole["hash"],
        "entry": {"dataset": "people", "seq": whole["entry"]["seq"]},
    }
    for secret in ("ann", "analyst", "project", "secret-plan", whole["entry"]["content"]["key"]):
        assert secret not in given.text
    # Who paid gets the receipt every time.
    again = client.post(ask, json=count("1/37"), headers=study.token("ann")).json()
    assert again["receipt"] == whole

    def verdict(*receipts: Any, status: int = 200) -> Any:
        reply = client.post(
            "/v1/verify", json={"receipts": list(receipts)}, headers=study.token("bob")
        )
        assert reply.status_code == status, reply.text
        return reply.json()

    assert verdict(reference, whole)["ok"]
    for forged in (
        {**reference, "hash": "0" * 64},
        {**reference, "entry": {"dataset": "people", "seq": 10**6}},
    ):
        found = verdict(forged)
        assert not found["ok"]
        assert [one["dataset"] for one in found["problems"]] == ["people"]
    claims = {**reference["entry"], "loss": "none"}
    for bad in (claims, {"dataset": "people"}, {"dataset": "people", "seq": True}):
        assert verdict({**reference, "entry": bad}, status=422)["argument"] == "receipts"
    elsewhere = {**reference, "entry": {"dataset": "elsewhere", "seq": 1}}
    assert verdict(elsewhere, status=404)["kind"] == "missing"


def test_stored_answers_are_for_those_who_have_a_budget(pair: list[tuple[Study, Local]]) -> None:
    study, client = pair[0]
    ask = f"{PEOPLE}/ask"
    assert client.post(ask, json=count("1/41"), headers=study.token("ann")).status_code == 200
    with Ledger.open(study.place) as ledger:
        registry = Registry(ledger)
        registry.add_analyst("poor")
        text, _ = registry.issue("analyst", analyst="poor", datasets=["people"])
    poor = {"Authorization": f"Bearer {text}"}
    stored, new = (client.post(ask, json=count(e), headers=poor) for e in ("1/41", "1/43"))
    assert (stored.status_code, stored.text) == (new.status_code, new.text)
    assert stored.json()["kind"] == "budget_exceeded"
    with Ledger.open(study.place) as ledger:
        ledger.create_budget("people", analyst="poor", epsilon="1/1000")
    # A budget that is too small for the question is enough for its stored answer.
    assert client.post(ask, json=count("1/41"), headers=poor).status_code == 200
    assert client.post(ask, json=count("1/43"), headers=poor).status_code == 409


def test_one_replay_at_a_time_and_others_are_answered(
    pair: list[tuple[Study, Local]], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, client = pair[0]
    operations = client.app.state.operations
    started, go_on = threading.Event(), threading.Event()
    real = type(operations.ledger).verify

    def slow(*args: Any, **kwargs: Any) -> Any:
        started.set()
        assert go_on.wait(30)
        return real(*args, **kwargs)

    monkeypatch.setattr(type(operations.ledger), "verify", slow)
    headers = study.token("ann")
    first: list[int] = []

    def verify() -> None:
        first.append(client.post("/v1/verify", json={}, headers=headers).status_code)

    thread = threading.Thread(target=verify)
    thread.start()
    assert started.wait(30)
    # More than there are threads: all are told to come back, and none holds a thread.
    refused = [client.post("/v1/verify", json={}, headers=headers) for _ in range(10)]
    assert {reply.status_code for reply in refused} == {503}
    assert client.get(PEOPLE, headers=study.token("bob")).status_code == 200
    go_on.set()
    thread.join()
    assert first == [200]
    assert client.post("/v1/verify", json={}, headers=headers).status_code == 200
