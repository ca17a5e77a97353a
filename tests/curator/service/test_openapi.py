"""Schemathesis against the OpenAPI document: whatever is sent, the answer is as documented."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from curator.service.studies import Local, Study, in_process, make_study
from discreet.ledger import Ledger

SCHEMAS = "#/components/schemas/"
OPERATIONS = [
    ("GET", "/health"),
    ("GET", "/v1/whoami"),
    ("GET", "/v1/datasets"),
    ("POST", "/v1/datasets"),
    ("GET", "/v1/datasets/{dataset}"),
    ("POST", "/v1/datasets/{dataset}/quote"),
    ("POST", "/v1/datasets/{dataset}/ask"),
    ("GET", "/v1/datasets/{dataset}/history"),
    ("GET", "/v1/datasets/{dataset}/receipts/{entry}"),
    ("GET", "/v1/datasets/{dataset}/export"),
    ("POST", "/v1/datasets/{dataset}/budgets"),
    ("POST", "/v1/verify"),
    ("GET", "/v1/analysts"),
    ("POST", "/v1/analysts"),
    ("GET", "/v1/tokens"),
    ("POST", "/v1/tokens"),
    ("DELETE", "/v1/tokens/{token}"),
]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return make_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def client(study: Study) -> Iterator[Local]:
    with in_process(study, refusal_rate=1e6) as found:
        yield found


def shallow(document: dict[str, Any]) -> dict[str, Any]:
    """The document with expressions of two levels: generators do not end on endless ones."""
    models = document["components"]["schemas"]
    expressions = {n: json.dumps(m) for n, m in models.items() if "op" in m.get("properties", {})}
    assert len(expressions) > 10
    leaves = {"Number": ["Column", "Value"], "Condition": ["Compare", "OneOf", "StartsWith"]}
    for union, names in leaves.items():
        models[f"Leaf{union}"] = {"oneOf": [{"$ref": f"{SCHEMAS}{name}"} for name in names]}
        for name, text in expressions.items():
            expressions[name] = text.replace(f'"{SCHEMAS}{union}"', f'"{SCHEMAS}Leaf{union}"')
    models.update({name: json.loads(text) for name, text in expressions.items()})
    return document


@pytest.fixture(scope="module")
def document(client: Local) -> Any:
    return httpx.get(f"{client.url}/openapi.json").json()


def test_every_operation_is_listed_here(document: Any) -> None:
    found = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    assert found == set(OPERATIONS)


def test_every_operation_but_health_needs_a_token(document: Any, client: Local) -> None:
    for method, path in OPERATIONS:
        described = document["paths"][path][method.lower()]
        filled = path.format(dataset="people", entry=1, token="0" * 16)
        bare = httpx.request(method, client.url + filled, json={})
        if path == "/health":
            assert bare.status_code == 200
            continue
        assert described["security"] == [{"HTTPBearer": []}]
        assert {"401", "403", "404", "409", "413", "422", "429", "500", "503"} <= set(
            described["responses"]
        )
        assert bare.status_code == 401


# Schemathesis takes a second to import and seconds to make up bad values for an operation.


@pytest.fixture(scope="module")
def schema(document: Any) -> Any:
    import schemathesis

    return schemathesis.openapi.from_dict(shallow(document))


def checks() -> list[Any]:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks as described

    return [
        not_a_server_error,
        described.status_code_conformance,
        described.content_type_conformance,
        described.response_schema_conformance,
        described.negative_data_rejection,
        described.unsupported_method,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("holder", ["ann", "owner"])
@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda value: str(value))
def test_whatever_is_sent_is_answered_as_documented(
    schema: Any, client: Local, study: Study, method: str, path: str, holder: str
) -> None:
    from schemathesis import GenerationMode

    operation = schema[path][method]
    strategy = operation.as_strategy()
    fuzzy = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
    sent = 0

    def send(case: Any) -> None:
        nonlocal sent
        sent += 1
        answer = case.call(base_url=client.url, headers=study.token(holder))
        if answer.status_code != 413:  # documented, but no refusal in the eyes of schemathesis
            case.validate_response(answer, checks=checks())

    def send_to_people(case: Any) -> None:
        if sent % 2 and "dataset" in (case.path_parameters or {}):
            case.path_parameters["dataset"] = "people"
        send(case)

    few = settings(
        max_examples=6, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    few(given(case=strategy)(send_to_people))()
    if operation.body or operation.query or operation.path_parameters:
        few(given(case=fuzzy)(send))()
    assert sent >= 1


@pytest.mark.slow
def test_the_ledger_is_sound_after_all_that(client: Local, study: Study) -> None:
    with Ledger.open(study.place, read_only=True) as ledger:
        assert ledger.verify().ok
        view = ledger.show("people")
        assert all(budget.used <= 1 for budget in view.budgets)
