"""The service: who may do what, what it costs, and that errors follow from public facts."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest

from curator.service.studies import SCHEMA, Local, Study, in_process, make_study
from discreet.curator.service import Registry
from discreet.ledger import Ledger, check_receipt

ASK = "/v1/datasets/people/ask"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return make_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def client(study: Study) -> Iterator[Local]:
    with in_process(study) as found:
        yield found


def spent(study: Study) -> Fraction:
    with Ledger.open(study.place, read_only=True) as ledger:
        return ledger.show("people").budget.spent["basic"]


def count(epsilon: str = "1/10", **more: Any) -> dict[str, Any]:
    return {"query": {"kind": "count", "epsilon": epsilon, **more}}


def test_health_needs_no_token_and_tells_nothing(client: Local) -> None:
    response = client.get("/health")
    assert response.status_code == 200
    assert response.json()["status"] == "ok"
    assert set(response.json()) == {"status", "version"}


def test_a_question_is_charged_answered_and_receipted(client: Local, study: Study) -> None:
    before = spent(study)
    query = count("1/7")
    quote = client.post("/v1/datasets/people/quote", json=query, headers=study.token("ann")).json()
    assert spent(study) == before
    assert quote["epsilon"] == "1/7"
    assert not quote["answered_before"]
    answer = client.post(ASK, json=query, headers=study.token("ann")).json()
    assert spent(study) == before + Fraction(1, 7)
    assert answer["query"] == query["query"]
    bar = answer["errors"][0]
    assert bar["low"] <= answer["value"] <= bar["high"]
    assert abs(answer["value"] - 300) < 7 * 40  # e**-40 for noise of scale 7
    assert check_receipt(answer["receipt"]) == []
    entry = answer["receipt"]["entry"]["seq"]
    kept = client.get(f"/v1/datasets/people/receipts/{entry}", headers=study.token("ann")).json()
    assert kept == answer["receipt"]
    verdict = client.post(
        "/v1/verify", json={"receipts": [kept]}, headers=study.token("bob")
    ).json()
    assert verdict["ok"]
    again = client.post(ASK, json=query, headers=study.token("ann")).json()
    assert again == {**answer, "answered_before": True}
    assert spent(study) == before + Fraction(1, 7)


def test_retries_under_one_key_are_free_and_identical(client: Local, study: Study) -> None:
    before = spent(study)
    headers = {**study.token("ann"), "Idempotency-Key": "a-key"}
    answers = [client.post(ASK, json=count("1/11"), headers=headers).json() for _ in range(3)]
    assert len({answer["value"] for answer in answers}) == 1
    assert spent(study) == before + Fraction(1, 11)
    conflict = client.post(ASK, json=count("1/12"), headers=headers)
    assert conflict.status_code == 409
    assert conflict.json()["kind"] == "key_conflict"
    # The same key of somebody else is another key.
    other = {**study.token("bob"), "Idempotency-Key": "a-key"}
    assert client.post(ASK, json=count("1/12"), headers=other).status_code == 200
    # What is no header at all is refused before there is a request.
    for bad, status in (("x" * 201, 422), ("two words", 422), ("\x7f", 400)):
        refused = client.post(ASK, json=count(), headers={**headers, "Idempotency-Key": bad})
        assert refused.status_code == status


def test_no_token_no_answer(client: Local, study: Study) -> None:
    good = study.tokens["ann"]
    flipped = good[:-1] + ("0" if good[-1] != "0" else "1")
    for header in (None, "", "Bearer", f"Basic {good}", "Bearer x", f"Bearer {flipped}", good):
        headers = {} if header is None else {"Authorization": header}
        for method, path in (("GET", "/v1/datasets"), ("POST", ASK), ("GET", "/v1/tokens")):
            response = client.request(method, path, headers=headers, json=count())
            assert response.status_code == 401, header
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["kind"] == "unauthorized"
    twice = [("Authorization", f"Bearer {good}"), ("Authorization", f"Bearer {good}")]
    assert client.get("/v1/whoami", headers=twice).status_code == 401


def test_expired_and_revoked_tokens_end_at_once(client: Local, study: Study) -> None:
    end = datetime.now(UTC) + timedelta(seconds=2)
    with Ledger.open(study.place) as ledger:
        registry = Registry(ledger, clock=lambda: end - timedelta(days=1))
        text, _ = registry.issue("analyst", analyst="ann", datasets=["people"], days=1)
    headers = {"Authorization": f"Bearer {text}"}
    before = client.get("/v1/whoami", headers=headers).status_code
    assert before == 200 or datetime.now(UTC) > end  # a busy machine may be too late
    time.sleep(max(0.0, (end - datetime.now(UTC)).total_seconds()) + 0.1)
    assert client.get("/v1/whoami", headers=headers).status_code == 401
    owner = study.token("owner")
    body = {"role": "analyst", "analyst": "ann", "datasets": ["people"]}
    made = client.post("/v1/tokens", json=body, headers=owner).json()
    fresh = {"Authorization": f"Bearer {made['text']}"}
    assert client.get("/v1/whoami", headers=fresh).status_code == 200
    gone = client.delete(f"/v1/tokens/{made['token']['id']}", headers=owner)
    assert gone.status_code == 200
    assert client.get("/v1/whoami", headers=fresh).status_code == 401
    listed = client.get("/v1/tokens", headers=owner).text
    assert made["token"]["id"] in listed
    assert made["text"][-64:] not in listed


def test_a_token_of_another_dataset_finds_nothing(client: Local, study: Study) -> None:
    with Ledger.open(study.place) as ledger:
        text, _ = Registry(ledger).issue("analyst", analyst="ann", datasets=["elsewhere"])
    headers = {"Authorization": f"Bearer {text}"}
    before = spent(study)
    replies = [
        client.request(method, path.replace("people", name), headers=headers, json=body)
        for name in ("people", "nowhere")
        for method, path, body in (
            ("GET", "/v1/datasets/people", None),
            ("POST", ASK, count()),
            ("POST", "/v1/datasets/people/quote", count()),
            ("GET", "/v1/datasets/people/history", None),
            ("GET", "/v1/datasets/people/receipts/0", None),
        )
    ]
    # What is there and what is not there cannot be told apart.
    assert {reply.status_code for reply in replies} == {404}
    assert len({reply.text for reply in replies}) == 1
    assert client.get("/v1/datasets", headers=headers).json() == {"datasets": []}
    assert spent(study) == before


def test_analysts_cannot_do_what_owners_do(client: Local, study: Study) -> None:
    tried = [
        ("POST", "/v1/datasets", {"name": "x", "schema": "x", "source": "x"}),
        ("POST", "/v1/datasets/people/budgets", {"analyst": "ann", "epsilon": 100}),
        ("GET", "/v1/datasets/people/export", None),
        ("GET", "/v1/analysts", None),
        ("POST", "/v1/analysts", {"name": "eve"}),
        ("GET", "/v1/tokens", None),
        ("POST", "/v1/tokens", {"role": "owner"}),
        ("DELETE", "/v1/tokens/0123456789abcdef", None),
    ]
    for method, path, body in tried:
        reply = client.request(method, path, json=body, headers=study.token("ann"))
        assert reply.status_code == 403, path
    assert client.post(ASK, json=count(), headers=study.token("owner")).status_code == 403


def test_analysts_see_their_own_charges_only(client: Local, study: Study) -> None:
    answer = client.post(ASK, json=count("1/13"), headers=study.token("bob")).json()
    entry = answer["receipt"]["entry"]["seq"]
    path = "/v1/datasets/people/history?limit=500"
    for holder in ("ann", "bob"):
        rows = client.get(path, headers=study.token(holder)).json()["charges"]
        assert {row["analyst"] for row in rows} <= {holder}
        assert (entry in {row["entry"] for row in rows}) == (holder == "bob")
        labels = {
            budget["label"]
            for budget in client.get("/v1/datasets/people", headers=study.token(holder)).json()[
                "budgets"
            ]
        }
        assert labels == {"dataset", f"analyst:{holder}"}
    other = client.get(f"/v1/datasets/people/receipts/{entry}", headers=study.token("ann"))
    assert other.status_code == 404
    everything = client.get(path, headers=study.token("owner")).json()["charges"]
    assert {row["analyst"] for row in everything} >= {"bob"}


def test_history_comes_in_pages(client: Local, study: Study) -> None:
    for number in range(3):
        client.post(ASK, json=count(f"1/{50 + number}"), headers=study.token("bob"))
    headers = study.token("bob")
    page = client.get("/v1/datasets/people/history?limit=2", headers=headers).json()
    assert page["more"]
    assert len(page["charges"]) == 2
    last = page["charges"][-1]["entry"]
    older = client.get(
        f"/v1/datasets/people/history?limit=500&before={last}", headers=headers
    ).json()
    assert not older["more"]
    assert all(row["entry"] < last for row in older["charges"])


def test_the_budget_stops_an_analyst_and_says_so(client: Local, study: Study) -> None:
    before = spent(study)
    reply = client.post(ASK, json=count("60"), headers=study.token("ann"))
    assert reply.status_code == 409
    assert reply.json()["kind"] == "budget_exceeded"
    assert "analyst:ann" in reply.json()["message"]
    assert spent(study) == before
    with Ledger.open(study.place) as ledger:
        registry = Registry(ledger)
        registry.add_analyst("poor")
        text, _ = registry.issue("analyst", analyst="poor", datasets=["people"])
    broke = client.post(ASK, json=count("1/14"), headers={"Authorization": f"Bearer {text}"})
    assert broke.status_code == 409  # without a budget of one's own there is nothing to spend
    assert spent(study) == before


def test_owners_do_everything_on_the_network(client: Local, study: Study) -> None:
    owner = study.token("owner")
    (study.folder / "more.csv").write_text("person,age,city\na,1,Oslo\nb,2,Bodo\n")
    body = {
        "name": "more",
        "schema": SCHEMA.to_toml(),
        "source": "more.csv",
        "epsilon": 5,
        "delta": 0,
    }
    made = client.post("/v1/datasets", json=body, headers=owner)
    assert made.status_code == 201, made.text
    assert client.post("/v1/datasets", json=body, headers=owner).status_code == 409
    alias = client.post("/v1/datasets", json={**body, "name": "alias"}, headers=owner)
    assert alias.status_code == 409
    assert "second budget" in alias.json()["message"]
    assert client.post("/v1/analysts", json={"name": "cy"}, headers=owner).status_code == 201
    budget = {"analyst": "cy", "epsilon": "1/2"}
    given = client.post("/v1/datasets/more/budgets", json=budget, headers=owner)
    assert given.status_code == 201
    project = {"project": "wages", "epsilon": "1/4"}
    assert client.post("/v1/datasets/more/budgets", json=project, headers=owner).status_code == 201
    token = {"role": "analyst", "analyst": "cy", "project": "wages", "datasets": ["more"]}
    text = client.post("/v1/tokens", json=token, headers=owner).json()["text"]
    headers = {"Authorization": f"Bearer {text}"}
    path = "/v1/datasets/more/ask"
    assert client.post(path, json=count("1/8"), headers=headers).status_code == 200
    short = client.post(path, json=count("1/5"), headers=headers)
    assert short.status_code == 409
    assert "project:wages" in short.json()["message"]
    export = client.get("/v1/datasets/more/export", headers=owner).json()
    assert check_receipt(export) == []
    shown = client.get("/v1/datasets/more", headers=headers).json()["budgets"]
    assert {one["label"] for one in shown} == {"dataset", "analyst:cy", "project:wages"}


@pytest.mark.parametrize(
    "source",
    ["../secret.csv", "/etc/passwd", "people.csv/../../x", "", "a\x00b", "nothing.csv", ".", "~"],
)
def test_sources_stay_inside_the_declared_directory(
    client: Local, study: Study, source: str
) -> None:
    (study.folder.parent / "secret.csv").write_text("person,age,city\n")
    body = {"name": "stolen", "schema": SCHEMA.to_toml(), "source": source, "epsilon": 1}
    reply = client.post("/v1/datasets", json=body, headers=study.token("owner"))
    assert reply.status_code == 422
    assert "root:" not in reply.text
    with Ledger.open(study.place, read_only=True) as ledger:
        assert "stolen" not in ledger.datasets()


def test_every_response_has_the_security_headers(client: Local, study: Study) -> None:
    replies = [
        client.get("/"),
        client.get("/web/app.js"),
        client.get("/health"),
        client.get("/nowhere"),
        client.get("/v1/whoami"),
        client.get("/v1/whoami", headers=study.token("ann")),
        client.post(ASK, json={}, headers=study.token("ann")),
    ]
    for reply in replies:
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in reply.headers
    assert all(reply.headers["cache-control"] == "no-store" for reply in replies[4:])


def test_pages_come_from_the_package_and_nowhere_else(client: Local) -> None:
    page = client.get("/").text
    assert "http://" not in page
    assert "https://" not in page
    assert "<script>" not in page
    assert " style=" not in page
    for path in ("/web/../service/app.py", "/web/%2e%2e/client.py", "/web/nothing.js", "/web/"):
        assert client.get(path).status_code == 404


def test_bodies_are_read_strictly(client: Local, study: Study) -> None:
    before = spent(study)
    headers = {**study.token("ann"), "Content-Type": "application/json"}
    deep = '{"query": {"kind": "count", "epsilon": 1, "where": ' + '{"op":"not","of":' * 200
    texts = [
        "",
        "null",
        "[]",
        "{",
        "NaN",
        '{"query": {"kind": "count", "epsilon": NaN}}',
        '{"query": {"kind": "count", "epsilon": 1, "epsilon": 2}}',
        '{"query": {"kind": "count"}}',
        '{"query": {"kind": "count", "epsilon": -1}}',
        '{"query": {"kind": "count", "epsilon": true}}',
        '{"query": {"kind": "count", "epsilon": 1e999}}',
        '{"query": {"kind": "count", "epsilon": "1/0"}}',
        '{"query": {"kind": "count", "epsilon": 1}, "sql": 1}',
        '{"query": {"kind": "sql", "epsilon": 1}}',
        deep,
        deep + '{"op":"one_of","column":"city","values":["x"]}' + "}" * 202,
        "[" * 5000,
        '{"a":' * 5000,
    ]
    for text in texts:
        reply = client.post(ASK, content=text.encode(), headers=headers)
        assert reply.status_code == 422, text[:80]
        assert set(reply.json()) == {"kind", "message", "argument"}
    assert client.post(ASK, content=b"\xff\xfe", headers=headers).status_code == 422
    assert spent(study) == before


def test_schema_and_quantum_are_public_facts(client: Local, study: Study) -> None:
    facts = client.get("/v1/datasets", headers=study.token("ann")).json()["datasets"][0]
    assert list(facts["facts"]["columns"]) == ["age", "city"]
    assert "people.csv" not in json.dumps(facts)
    who = client.get("/v1/whoami", headers=study.token("ann")).json()
    assert (who["role"], who["analyst"], who["quantum"]) == ("analyst", "ann", 0.001)


def test_failures_have_one_text_whatever_happened(
    client: Local, study: Study, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    secret = "the record of Mr. Smith"

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError(secret)

    operations = client.app.state.operations
    monkeypatch.setattr(type(operations.curator), "ask", broken)
    reply = client.post(ASK, json=count("1/99"), headers=study.token("ann"))
    assert reply.status_code == 500
    assert reply.json() == {
        "kind": "failed",
        "message": "the service failed; what was charged stays charged",
        "argument": None,
    }
    assert secret not in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_nothing_is_built_while_somebody_waits(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FastAPI builds routes under a filter of warnings that holds for all threads."""
    with in_process(study) as service:

        def build(_: object) -> None:
            raise AssertionError

        monkeypatch.setattr("fastapi._compat.v2.ModelField.__post_init__", build)
        reply = service.post(ASK, json=count("1/97"), headers=study.token("ann"))
        assert reply.status_code == 200
