"""The collector of local reports: hostile input, retries, limits, and what survives a kill."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from discreet.certificate import Certificate
from discreet.curator.service import Collector, create_collector, run_collector
from discreet.curator.service._registry import new_secret
from discreet.errors import DataCorrupt, InvalidValue
from discreet.local import FrequencyOracle, read_plan, write_plan

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it asks for httpx2, which the project does not need
    from starlette.testclient import TestClient

PLAN = write_plan(["tea", "coffee", "milk"], 2)
ORACLE = read_plan(PLAN)


@pytest.fixture
def collector(tmp_path: Path):
    made = Collector(tmp_path / "drinks", PLAN)
    yield made
    made.close()


def post(client: TestClient, token: str, body: bytes, number: int | str = 1):
    headers = {"authorization": f"Bearer {token}", "report-number": str(number)}
    return client.post("/v1/reports", content=body, headers=headers)


def report(value: str = "tea") -> bytes:
    return ORACLE.client().randomize(value)


def test_a_report_is_counted_once_and_survives(collector: Collector, tmp_path: Path) -> None:
    token, body = collector.admit(), report()
    with TestClient(create_collector(collector)) as client:
        assert post(client, token, body).status_code == 201
        for _ in range(3):  # the answer was lost, and she sends again
            assert post(client, token, body).status_code == 200
        changed = body[:-1] + bytes([body[-1] ^ 1])
        assert post(client, token, changed).status_code == 409
        seen = client.get("/v1/estimate").json()
        assert seen["reports"] == 1
        assert seen["epsilon"] == "2"
        assert [row["hypothetical"] for row in seen["deployments"]][:3] == [False, True, True]
        assert client.get("/v1/plan").json() == PLAN
        assert Certificate.from_json(client.get("/v1/certificate").json()).epsilon == 2.0
    again = Collector(tmp_path / "drinks")
    assert again.summary()["reports"] == 1
    again.close()


def test_hostile_reports_are_refused_counted_and_lose_nothing(collector: Collector) -> None:
    token, good = collector.admit(), report()
    version = good[:2] + b"\x09" + good[3:]
    other = FrequencyOracle(["tea", "coffee", "milk"], 1).client().randomize("tea")
    domain = FrequencyOracle(["tea", "coffee"], 2).client().randomize("tea")
    wrong = [
        (token, good[:-1], 1, 400, "wrong length"),
        (token, b"", 1, 400, "wrong length"),
        (token, b"XX" + good[2:], 1, 400, "not a report"),
        (token, version, 1, 400, "another version"),
        (token, other, 1, 400, "another plan"),
        (token, domain, 1, 400, "another plan"),
        (token, good[:-1] + b"\xff", 1, 400, "impossible"),
        (token, good, 2, 403, "above her budget"),
        (token, good, 0, 403, "above her budget"),
        ("dsc_" + "0" * 16 + "_" + "0" * 64, good, 1, 401, "no such token"),
        ("nonsense", good, 1, 401, "no such token"),
        (token[:-1] + ("0" if token[-1] != "0" else "1"), good, 1, 401, "no such token"),
    ]
    with TestClient(create_collector(collector, rate=1000, burst=1000)) as client:
        for secret, body, number, status, reason in wrong:
            found = post(client, secret, body, number)
            assert (found.status_code, found.json()) == (status, {"refused": reason})
        for number in ("-1", "one", "1" * 30, ""):
            assert post(client, token, good, number).status_code == 400
        assert post(client, token, good + bytes(10_000)).status_code == 413
        assert client.get("/v1/reports").status_code == 405
        assert post(client, token, good).status_code == 201
    seen = collector.summary()
    assert seen["reports"] == 1
    assert sum(seen["refused"].values()) >= len(wrong)
    assert seen["refused"]["another plan"] == 2


def test_one_token_cannot_flood(collector: Collector) -> None:
    token = collector.admit(5)
    with TestClient(create_collector(collector, rate=0.001, burst=2)) as client:
        codes = [post(client, token, report(), number).status_code for number in (1, 2, 3)]
        assert codes == [201, 201, 429]
        assert int(post(client, token, report(), 3).headers["retry-after"]) >= 1
        assert post(client, collector.admit(), report()).status_code == 201  # others go on


def test_a_body_that_never_ends_is_given_up_and_others_go_on(collector: Collector) -> None:
    """Somebody who sends a byte now and then holds a connection, and no more than that."""
    token, body = collector.admit(), report()
    application = create_collector(collector, body_seconds=0.2)

    async def drip(path: str, goes: bool) -> int:
        headers = [(b"authorization", f"Bearer {token}".encode()), (b"report-number", b"1")]
        scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "path": path,
            "query_string": b"", "headers": headers, "client": ("203.0.113.9", 1),
        }  # fmt: skip
        statuses = []

        async def receive() -> dict[str, object]:
            await asyncio.sleep(0.05)
            if goes:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": b"", "more_body": True}

        async def send(message: MutableMapping[str, Any]) -> None:
            statuses.append(message.get("status"))

        await application(scope, receive, send)
        return int(statuses[0])

    for path in ("/v1/reports", "/v1/batches"):
        for goes in (False, True):
            assert asyncio.run(asyncio.wait_for(drip(path, goes), 20)) == 408
    with TestClient(application) as client:
        assert post(client, token, body).status_code == 201


def test_made_up_tokens_have_no_rate_of_their_own(collector: Collector) -> None:
    with TestClient(create_collector(collector, rate=0.001, burst=2)) as client:
        made_up = [new_secret().as_text() for _ in range(3)]
        known = collector.admit()
        made_up.append(made_up[0].rpartition("_")[0] + "_" + known.rpartition("_")[2])
        assert not any(collector.admits(one) for one in made_up)
        codes = [post(client, one, report()).status_code for one in made_up]
        assert codes == [401, 401, 429, 429]
        assert post(client, known, report()).status_code == 201  # whoever has a token goes on


def test_threads_count_every_report_once(collector: Collector) -> None:
    tokens = [collector.admit() for _ in range(20)]
    bodies = [report("coffee") for _ in tokens]
    jobs = [(token, body) for token, body in zip(tokens, bodies, strict=True) for _ in range(3)]
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda job: collector.take(job[0], 1, job[1]), jobs))
    assert done.count("counted") == 20
    assert done.count("counted before") == 40
    assert collector.summary()["reports"] == 20


def batch(client: TestClient, listed: object):
    return client.post("/v1/batches", json={"reports": listed})


def test_a_batch_of_a_relay_is_answered_one_by_one(collector: Collector) -> None:
    tokens = collector.admit_each(3, 2)
    bodies = [base64.b64encode(report()).decode() for _ in range(5)]
    with TestClient(create_collector(collector, rate=1000, burst=1000)) as client:
        listed = [
            [tokens[0], 1, bodies[0]],
            [tokens[0], 1, bodies[0]],  # twice in one batch
            [tokens[1], 1, bodies[1]],
            [tokens[1], 3, bodies[2]],
            [tokens[2], 1, base64.b64encode(b"noise").decode()],
            ["nonsense", 1, bodies[3]],
        ]
        seen = ["counted", "counted before", "counted", "above her budget", "wrong length"]
        assert batch(client, listed).json() == {"results": [*seen, "no such token"]}
        again = batch(client, listed).json()["results"]
        assert again == ["counted before"] * 3 + [*seen[3:], "no such token"]
        for wrong in (None, {}, "text", [], [[]], [["a"]], [[1, 1, ""]], [["a", True, ""]],
                      [["a", 10**30, ""]], [["a", 1, "%"]], [["a", 1, 5]], [7]):  # fmt: skip
            assert batch(client, wrong).status_code == 400
        assert client.post("/v1/batches", content=b"[" * 5000).status_code == 400
        many = batch(client, [["a", 1, ""]] * 1001)
        assert many.status_code == 413
        assert client.post("/v1/batches", content=bytes(10**6)).status_code == 413
    found = collector.summary()
    assert found["reports"] == 2
    assert found["spent"] == [
        {"reports": 0, "epsilon": "0", "people": 1},
        {"reports": 1, "epsilon": "2", "people": 2},
    ]
    with pytest.raises(InvalidValue, match="people"):
        collector.admit_each(0)


def test_a_disk_that_is_full_loses_nothing(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, body = collector.admit_each(2), report()

    class Full:
        """A connection whose second insert fails, as on a full disk."""

        def __init__(self, base: sqlite3.Connection) -> None:
            self.base, self.inserts = base, 0

        def __enter__(self) -> None:
            self.base.__enter__()

        def __exit__(self, *error: object) -> object:
            return self.base.__exit__(*error)

        def execute(self, statement: str, *given: object) -> object:
            self.inserts += statement.startswith("INSERT INTO reports")
            if self.inserts == 2:
                raise sqlite3.OperationalError("database or disk is full")
            return self.base.execute(statement, *given)

        def executemany(self, *given: object) -> object:
            return self.base.executemany(*given)

    whole = collector._base
    monkeypatch.setattr(collector, "_base", Full(whole))
    with pytest.raises(sqlite3.OperationalError, match="full"):
        collector.take_each([(token, 1, body) for token in tokens])
    monkeypatch.setattr(collector, "_base", Full(whole))
    with TestClient(create_collector(collector)) as client:
        listed = [[token, 1, base64.b64encode(body).decode()] for token in tokens]
        answer = batch(client, listed)
    assert (answer.status_code, "nothing was counted" in answer.text) == (503, True)
    monkeypatch.setattr(collector, "_base", whole)
    assert collector.summary()["reports"] == 0  # neither on the disk nor counted
    assert collector.take_each([(token, 1, body) for token in tokens]) == ["counted"] * 2


def test_only_the_owner_reads_what_was_sent(collector: Collector, tmp_path: Path) -> None:
    collector.take(collector.admit(), 1, report())
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "drinks").iterdir()}
    assert {modes[name] for name in modes if name.startswith("reports")} == {0o600}


def sent_in_all(collector: Collector) -> int:
    return sum(sent * people for sent, people in collector.spending().items())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_is_sent_is_answered_and_counted(
    collector: Collector, data: st.DataObject
) -> None:
    """Reports of other versions, plans and lengths, forged ones, tokens and numbers of any kind."""
    good, token = report(), collector.admit(2)
    other = st.sampled_from([
        good, good[:-1], good + b"x", b"", good[:2] + b"\x02" + good[3:],
        FrequencyOracle(["tea", "coffee", "milk"], 1).client().randomize("tea"),
        FrequencyOracle(["tea", "coffee"], 2).client().randomize("tea"),
    ])  # fmt: skip
    flips = st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)).map(
        lambda at: good[: at[0]] + bytes([at[1]]) + good[at[0] + 1 :]
    )
    bodies = other | flips | st.binary(max_size=40)
    tokens = st.just(token) | st.text(max_size=90) | st.just(token[:-1] + "g")
    numbers = st.integers(-(10**9), 10**9) | st.integers(0, 3)
    reports = data.draw(st.lists(st.tuples(tokens, numbers, bodies), max_size=12))
    before, refused = sent_in_all(collector), sum(collector.refused.values())
    answers = collector.take_each(reports)
    assert len(answers) == len(reports)
    counted, again = answers.count("counted"), answers.count("counted before")
    assert counted <= 2  # her budget
    assert sent_in_all(collector) == before + counted
    assert sum(collector.refused.values()) == refused + len(answers) - counted - again


KILLED = """
import sys
from discreet.curator.service import Collector
from discreet.local import read_plan
collector = Collector(sys.argv[1])
oracle = read_plan(collector.document)
while True:
    token = collector.admit()
    assert collector.take(token, 1, oracle.client().randomize("tea")) == "counted"
    print("answered", flush=True)
"""


@pytest.mark.slow
def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    Collector(tmp_path / "drinks", PLAN).close()
    command = [sys.executable, "-c", KILLED, str(tmp_path / "drinks")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        answered = sum(1 for _, line in zip(range(25), process.stdout, strict=False) if line)
        os.kill(process.pid, signal.SIGKILL)
        answered += len(process.stdout.read().splitlines())
    again = Collector(tmp_path / "drinks")
    # At most one report was stored whose answer was not yet printed.
    assert answered <= again.summary()["reports"] <= answered + 1
    again.close()


def test_plans_and_damage(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="plan"):
        Collector(tmp_path / "nothing")
    Collector(tmp_path / "drinks", PLAN).close()
    with pytest.raises(InvalidValue, match="the plan of"):
        Collector(tmp_path / "drinks", write_plan(4, 1))
    for file in (tmp_path / "drinks").glob("reports.sqlite*"):
        file.unlink()
    (tmp_path / "drinks" / "reports.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(DataCorrupt, match="cannot be read"):
        Collector(tmp_path / "drinks")
    fresh = Collector(tmp_path / "fresh", PLAN)
    with pytest.raises(InvalidValue, match="TLS"):
        run_collector(fresh, host="0.0.0.0")
    fresh.close()


def test_simulated_phones_are_estimated_within_the_intervals(collector: Collector) -> None:
    values = np.array(["tea"] * 60 + ["coffee"] * 30 + ["water"] * 10)
    with TestClient(create_collector(collector, rate=1e6, burst=1000)) as client:
        for value in values:
            assert post(client, collector.admit(), report(str(value))).status_code == 201
        seen = client.get("/v1/estimate").json()
    assert seen["reports"] == len(values)
    assert [row["value"] for row in seen["shares"]] == ["tea", "coffee", "milk", "ELSE"]
