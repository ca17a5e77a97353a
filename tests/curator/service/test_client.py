"""The client: one key for all attempts, and errors that say what happened."""

import json
from typing import Any

import httpx
import pytest

from discreet.curator import Client, Count, ServiceRefused, ServiceUnreachable
from discreet.curator import _client as module
from discreet.errors import BudgetExceeded, InvalidValue, KeyConflict

PROBLEM = {"kind": "busy", "message": "come again", "argument": None}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    return pauses


def scripted(*steps: Any) -> tuple[Client, list[httpx.Request]]:
    """A client of a service that does what the script says, one step for each request."""
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        step = steps[min(len(seen), len(steps) - 1)]
        seen.append(request)
        if isinstance(step, Exception):
            raise step
        status, body, *headers = step
        return httpx.Response(status, json=body, headers=headers[0] if headers else None)

    transport = httpx.MockTransport(handle)
    return Client("http://service", token="dsc_x", transport=transport, attempts=4), seen


def test_attempts_share_one_key(no_pauses: list[float]) -> None:
    client, seen = scripted(
        httpx.ConnectError("no"), (503, PROBLEM, {"Retry-After": "3"}), (200, {"value": 5})
    )
    with client:
        assert client.ask("people", Count(epsilon="1/10")) == {"value": 5}
    keys = {request.headers["Idempotency-Key"] for request in seen}
    assert len(seen) == 3
    assert len(keys) == 1
    assert len(keys.pop()) == 32
    assert [json.loads(request.content) for request in seen] == [
        {"query": {"kind": "count", "epsilon": "1/10"}}
    ] * 3
    assert no_pauses[1] >= 3
    assert seen[0].headers["Authorization"] == "Bearer dsc_x"


def test_two_questions_have_two_keys() -> None:
    client, seen = scripted((200, {}))
    client.ask("people", {"kind": "count", "epsilon": 1})
    client.ask("people", {"kind": "count", "epsilon": 1})
    client.ask("people", {"kind": "count", "epsilon": 1}, key="mine")
    keys = [request.headers["Idempotency-Key"] for request in seen]
    assert len(set(keys)) == 3
    assert keys[2] == "mine"


def test_who_gets_no_answer_learns_the_key() -> None:
    client, seen = scripted(httpx.ReadTimeout("slow"))
    with pytest.raises(ServiceUnreachable) as caught:
        client.ask("people", {"kind": "count", "epsilon": 1})
    assert len(seen) == 4
    assert caught.value.key == seen[0].headers["Idempotency-Key"]
    assert caught.value.key in str(caught.value)


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (409, "budget_exceeded", BudgetExceeded),
        (409, "key_conflict", KeyConflict),
        (422, "invalid", ServiceRefused),
        (401, "unauthorized", ServiceRefused),
    ],
)
def test_refusals_are_not_repeated(status: int, kind: str, error: type[Exception]) -> None:
    client, seen = scripted((status, {"kind": kind, "message": "no", "argument": None}))
    with pytest.raises(error, match="no"):
        client.quote("people", {"kind": "count", "epsilon": 1})
    assert len(seen) == 1


def test_a_last_attempt_says_what_the_service_said() -> None:
    client, seen = scripted((503, PROBLEM))
    with pytest.raises(ServiceRefused, match="come again") as caught:
        client.whoami()
    assert (caught.value.status, caught.value.kind, len(seen)) == (503, "busy", 4)


def test_pages_of_history_are_read_to_the_end() -> None:
    rows = [{"entry": entry} for entry in (9, 7, 5)]
    client, seen = scripted(
        (200, {"charges": rows[:2], "more": True}), (200, {"charges": rows[2:], "more": False})
    )
    assert client.history("people") == rows
    assert "before=7" in str(seen[1].url)


def test_names_are_escaped_and_arguments_checked() -> None:
    client, seen = scripted((200, {}))
    client.facts("../tokens?x=1#")
    assert seen[0].url.raw_path == b"/v1/datasets/..%2Ftokens%3Fx%3D1%23"
    for fields in ({"url": "ftp://x"}, {"token": "a\nb"}, {"attempts": 0}, {"timeout": -1}):
        arguments: dict[str, Any] = {"url": "http://x", "token": "t", **fields}
        with pytest.raises(InvalidValue):
            Client(arguments.pop("url"), **arguments)
