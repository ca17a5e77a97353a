"""The gate: sizes are enforced while reading, rates per token, and answers leave on time."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from curator.service.studies import Local, Study, in_process, make_study
from discreet.errors import LedgerBusy

ASK = "/v1/datasets/people/ask"
QUANTUM = 0.15


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return make_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def client(study: Study) -> Iterator[Local]:
    limits = {"rate": 2.0, "burst": 30, "refusal_burst": 6, "refusal_rate": 0.01}
    with in_process(study, quantum=QUANTUM, body_limit=4096, body_seconds=1.0, **limits) as found:
        yield found


def raw(client: Local, study: Study, head: str, *parts: bytes, holder: str = "ann") -> bytes:
    """Bytes on a socket, part by part; what comes back before the end."""
    address = urlsplit(client.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as line:
        start = (
            f"POST {ASK} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {study.tokens[holder]}\r\n"
        )
        line.sendall((start + head + "\r\n").encode())
        for part in parts:
            try:
                line.sendall(part)
            except OSError:  # it was closed on us
                break
        received = b""
        while b"\r\n\r\n" not in received:
            try:
                got = line.recv(65536)
            except ConnectionResetError:
                break
            if not got:
                break
            received += got
        return received


def test_a_large_body_is_refused_by_its_declared_length(client: Local, study: Study) -> None:
    # Nothing of the body is sent: the refusal cannot have waited for it.
    answer = raw(client, study, "Content-Length: 1000000000\r\n")
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_large_body_is_refused_while_it_is_read(client: Local, study: Study) -> None:
    # Chunks without an end: only the first few can have been read.
    chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
    answer = raw(client, study, "Transfer-Encoding: chunked\r\n", *([chunk] * 6))
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_body_that_does_not_arrive_is_given_up(client: Local, study: Study) -> None:
    began = time.monotonic()
    answer = raw(client, study, "Content-Length: 100\r\n", b"{")
    assert answer.startswith(b"HTTP/1.1 408")
    assert time.monotonic() - began > 0.9


def test_bodies_up_to_the_limit_are_read(client: Local, study: Study) -> None:
    body = b'{"query": {"kind": "count", "epsilon": "1/10"}}'
    headers = {**study.token("ann"), "Content-Type": "application/json"}
    path = "/v1/datasets/people/quote"
    padded = body + b" " * (4096 - len(body))
    assert client.post(path, content=padded, headers=headers).status_code == 200
    assert client.post(path, content=padded + b" ", headers=headers).status_code == 413


def test_answers_and_refusals_leave_at_powers_of_two(client: Local, study: Study) -> None:
    bodies: list[Any] = [
        {"query": {"kind": "count", "epsilon": "1/10"}},
        {"query": {"kind": "count", "epsilon": "1/10"}},  # from the store
        {"query": {"kind": "count", "epsilon": 1000}},  # the budget
        {"query": {"kind": "nothing"}},
        [],
    ]
    statuses = []
    for body in bodies:
        late = []
        while not late or min(late) >= QUANTUM:  # a busy machine may hold an answer up
            began = time.monotonic()
            reply = client.post(ASK, json=body, headers=study.token("ann"))
            took = time.monotonic() - began
            assert took >= QUANTUM
            # Not before a power of two, and soon after it.
            power = max(p for p in range(12) if QUANTUM * 2**p <= took)
            late.append(took - QUANTUM * 2**power)
            assert len(late) < 20
        statuses.append(reply.status_code)
    assert statuses == [200, 200, 409, 422, 422]


def test_work_that_takes_longer_waits_for_the_next_power(
    client: Local, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    curator = client.app.state.operations.curator
    real = type(curator).ask

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(2.2 * QUANTUM)
        return real(*args, **kwargs)

    monkeypatch.setattr(type(curator), "ask", slow)
    began = time.monotonic()
    body = {"query": {"kind": "count", "epsilon": "1/17"}}
    assert client.post(ASK, json=body, headers=study.token("ann")).status_code == 200
    assert time.monotonic() - began >= 4 * QUANTUM


def test_a_token_that_asks_too_often_waits_and_others_do_not(client: Local, study: Study) -> None:
    replies = [client.get("/v1/whoami", headers=study.token("bob")) for _ in range(50)]
    statuses = [reply.status_code for reply in replies]
    assert set(statuses) == {200, 429}
    assert statuses[:30] == [200] * 30
    refused = next(reply for reply in replies if reply.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["kind"] == "too_many_requests"
    assert client.get("/v1/whoami", headers=study.token("owner")).status_code == 200


def test_long_questions_count_as_many(study: Study) -> None:
    with in_process(study, rate=2.0, burst=30) as local:
        body = b'{"query": {"kind": "count", "epsilon": "1/10"}}'
        headers = {**study.token("ann"), "Content-Type": "application/json"}
        path = "/v1/datasets/people/quote"
        long = body + b" " * (30 * 512)
        assert local.post(path, content=long, headers=headers).status_code == 200
        refused = local.post(path, content=body, headers=headers)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert local.post(path, content=body, headers=study.token("bob")).status_code != 429


def test_guessing_tokens_is_slow_and_locks_nobody_out(client: Local, study: Study) -> None:
    wrong = {"Authorization": "Bearer dsc_" + "0" * 16 + "_" + "0" * 64}
    statuses = [client.get("/v1/whoami", headers=wrong).status_code for _ in range(12)]
    assert statuses[-1] == 429
    assert 401 in statuses
    assert client.get("/v1/whoami", headers=study.token("owner")).status_code == 200


def test_a_registry_that_cannot_be_read_is_a_busy_service(
    client: Local, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: object) -> None:
        raise LedgerBusy("registry.sqlite: database is locked")

    monkeypatch.setattr(type(client.app.state.operations.registry), "authenticate", locked)
    reply = client.get("/v1/whoami", headers=study.token("owner"))
    assert reply.status_code == 503
    assert reply.json()["kind"] == "busy"
    assert "sqlite" not in reply.text


def test_connections_send_at_once(client: Local, study: Study) -> None:
    """The listening socket is one that asyncio leaves as it is, as with several workers."""
    assert client.get("/v1/whoami", headers=study.token("owner")).status_code == 200
    lines = [
        one.transport.get_extra_info("socket") for one in client.server.server_state.connections
    ]
    assert lines
    assert all(line.proto == 0 for line in lines)
    assert all(line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for line in lines)


def test_what_the_application_raises_leaves_on_time_and_without_its_words(
    study: Study, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with in_process(study, quantum=QUANTUM) as local:
        office = local.app.state.operations

        def unserialisable(*_: Any, **__: Any) -> Any:
            return {"value": {"the record of Mr. Smith"}}

        monkeypatch.setattr(type(office), "ask", unserialisable)
        monkeypatch.setattr(type(office), "receipt", unserialisable)
        began = time.monotonic()
        body = {"query": {"kind": "count", "epsilon": "1/23"}}
        timed = local.post(ASK, json=body, headers=study.token("ann"))
        assert time.monotonic() - began >= QUANTUM
        other = local.get("/v1/datasets/people/receipts/1", headers=study.token("ann"))
    for reply in (timed, other):
        assert (reply.status_code, reply.json()["kind"]) == (500, "failed")
        assert reply.headers["x-frame-options"] == "DENY"
        assert reply.headers["cache-control"] == "no-store"
    assert "TypeError" in caplog.text
    assert "Smith" not in caplog.text


def test_too_many_at_once_are_told_to_come_back(study: Study, monkeypatch: Any) -> None:
    with in_process(study, threads=1, waiting=1) as local:
        curator = local.app.state.operations.curator
        go_on = threading.Event()

        def stuck(*_: Any, **__: Any) -> Any:
            assert go_on.wait(30)
            raise ZeroDivisionError

        monkeypatch.setattr(type(curator), "ask", stuck)
        statuses: list[int] = []
        body = {"query": {"kind": "count", "epsilon": "1/19"}}

        def ask() -> None:
            reply = httpx.post(local.url + ASK, json=body, headers=study.token("ann"), timeout=60)
            statuses.append(reply.status_code)

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 25
        while not statuses and time.monotonic() < deadline:  # the refused ones do not wait
            time.sleep(0.01)
        go_on.set()
        for thread in threads:
            thread.join()
    assert statuses.count(503) >= 1
    assert set(statuses) == {500, 503}
