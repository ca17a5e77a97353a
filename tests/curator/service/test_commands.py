"""``discreet curator``, ``discreet query`` and ``discreet serve`` at the terminal."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from curator.service.studies import (
    SCHEMA,
    Local,
    Study,
    in_process,
    make_study,
    people,
    serving,
    write_rows,
)
from discreet.cli._app import app
from discreet.curator.service import Registry
from discreet.ledger import Ledger, check_receipt

Run = Callable[..., Any]


def run(*arguments: str, stdin: str | None = None, token: str | None = None) -> Any:
    environment = {} if token is None else {"DISCREET_TOKEN": token}
    result = CliRunner(env=environment).invoke(
        app, list(arguments), input=stdin, prog_name="discreet"
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return make_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def service(study: Study) -> Iterator[Local]:
    with in_process(study) as found:
        yield found


@pytest.mark.slow
def test_a_study_is_set_up_at_the_terminal(tmp_path: Path) -> None:
    write_rows(tmp_path / "people.csv", people(20))
    (tmp_path / "people.toml").write_text(SCHEMA.to_toml())
    place, source = str(tmp_path / "study.ledger"), str(tmp_path / "people.csv")
    schema = ("--schema", str(tmp_path / "people.toml"))
    made = run("curator", "dataset", place, "people", source, *schema, "--epsilon", "2")
    assert made.exit_code == 0, made.stderr
    assert "epsilon 2" in made.stdout
    again = run("curator", "dataset", place, "people", source, *schema, "--epsilon", "2")
    assert again.exit_code == 4
    assert "already" in again.stderr
    given = ("--dataset", "people", "--epsilon", "1/2", "--json")
    entered = run("curator", "analyst", place, "ann", *given)
    assert json.loads(entered.stdout)["analyst"] == "ann"
    project = run("curator", "project", place, "p", "--dataset", "people", "--epsilon", "1/4")
    assert project.exit_code == 0, project.stderr
    text = run("curator", "token", place, "--analyst", "ann", "--dataset", "people").stdout.strip()
    owner = json.loads(run("curator", "token", place, "--owner", "--json").stdout)
    book = Ledger.open(place)
    registry = Registry(book)
    holder = registry.authenticate(text)
    assert holder is not None
    assert holder.analyst == "ann"
    assert registry.authenticate(owner["token"]) is not None
    shown = run("curator", "show", place)
    assert "ann" in shown.stdout
    assert text not in shown.stdout
    told = json.loads(run("curator", "show", place, "--json").stdout)
    assert [one["name"] for one in told["datasets"]] == ["people"]
    assert run("curator", "revoke", place, owner["id"]).exit_code == 0
    assert registry.authenticate(owner["token"]) is None
    book.close()
    with Ledger.open(place) as ledger:
        labels = [budget.label for budget in ledger.show("people").budgets]
    assert labels == ["dataset", "analyst:ann", "project:p"]


def test_a_budget_that_the_ledger_holds_is_taken_up(tmp_path: Path) -> None:
    """After a crash between the two steps: the budget is there, the registration is not."""
    write_rows(tmp_path / "people.csv", people(20))
    (tmp_path / "people.toml").write_text(SCHEMA.to_toml())
    place, source = str(tmp_path / "study.ledger"), str(tmp_path / "people.csv")
    schema = ("--schema", str(tmp_path / "people.toml"))
    with Ledger.create(place) as ledger:
        ledger.create_dataset("people", epsilon=1, unit="person", required=["analyst"])
        ledger.create_dataset("free", epsilon=1, unit="person")
        ledger.create_dataset("rows", epsilon=1, unit="record", required=["analyst"])
    (tmp_path / "link.csv").symlink_to(source)
    for name in ("free", "rows"):
        refused = run("curator", "dataset", place, name, source, *schema)
        assert refused.exit_code == 2, name
    assert run("curator", "dataset", place, "people", source, *schema).exit_code == 0
    # Another way to write the same file is no second budget for the same people.
    for alias in (f"{tmp_path}/../{tmp_path.name}/people.csv", str(tmp_path / "link.csv")):
        again = run("curator", "dataset", place, "other", alias, *schema, "--epsilon", "1")
        assert again.exit_code == 4
        assert "second budget" in again.stderr


@pytest.mark.slow
def test_faults_are_one_line_and_change_nothing(tmp_path: Path) -> None:
    place = str(tmp_path / "study.ledger")
    (tmp_path / "people.toml").write_text(SCHEMA.to_toml())
    (tmp_path / "bad.csv").write_text("person,age\na,1\n")
    schema = ("--schema", str(tmp_path / "people.toml"))
    tried = [
        ("curator", "dataset", place, "x", str(tmp_path / "no.csv"), *schema, "--epsilon", "1"),
        ("curator", "dataset", place, "x", str(tmp_path / "bad.csv"), *schema, "--epsilon", "1"),
        ("curator", "dataset", place, "x/y", "no.csv", *schema, "--epsilon", "1"),
        ("curator", "dataset", place, "x", "no.csv", *schema, "--epsilon", "one"),
        ("curator", "token", place),
        ("curator", "token", place, "--owner", "--analyst", "ann"),
        ("curator", "analyst", place, "ann", "--epsilon", "1"),
        ("curator", "show", str(tmp_path / "none.ledger")),
        ("serve", str(tmp_path / "none.ledger")),
        ("serve", place, "--quantum", "0"),
        ("serve", place, "--host", "not an address"),
        ("query", "ftp://x", "people", "{}"),
        ("query", "http://127.0.0.1:9", "people", "[1]"),
        ("query", "http://127.0.0.1:9", "people", "nothing.json"),
    ]
    for arguments in tried:
        result = run(*arguments, token="dsc_x")
        gone = {"no.csv", "none.ledger", "nothing.json", "[1]"} & {
            Path(word).name for word in arguments
        }
        good = "x/y" not in arguments and "one" not in arguments
        assert result.exit_code == (4 if gone and good else 2), arguments
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    if Path(place).exists():
        with Ledger.open(place) as ledger:
            assert ledger.datasets() == []


@pytest.mark.slow
def test_questions_are_asked_at_the_terminal(study: Study, service: Local, tmp_path: Path) -> None:
    token = study.tokens["ann"]
    query = '{"kind": "count", "epsilon": "1/5"}'
    overview = run("query", service.url, token=token)
    assert "people" in overview.stdout
    assert "analyst:ann" in overview.stdout
    cost = run("query", service.url, "people", query, "--cost", token=token)
    assert "epsilon 1/5" in cost.stdout
    assert "of the rows kept: at most 1 of each person's rows" in " ".join(cost.stdout.split())
    receipt = tmp_path / "receipt.json"
    asked = ("people", query, "--json", "--receipt", str(receipt), "--key", "one")
    answer = json.loads(run("query", service.url, *asked, token=token).stdout)
    assert abs(answer["value"] - 300) < 200
    assert check_receipt(json.loads(receipt.read_text())) == []
    (tmp_path / "token").write_text(token + "\n")
    again = run(
        "query", service.url, "people", "-", "--token-file", str(tmp_path / "token"), stdin=query
    )
    assert str(answer["value"]) in again.stdout.replace(",", "")
    groups = '{"kind": "group_by", "epsilon": "1", "by": [{"op": "column", "name": "city"}]}'
    told = run("query", service.url, "people", groups, token=token).stdout
    assert "of the rows kept: at most 1 of each person's rows" in " ".join(told.split())
    assert "Bergen: 1" in told or "Bergen: 9" in told  # a hundred, more or less
    assert "hold together at 95 %" in told
    assert "charged: entry" in told
    other = ("people", query.replace("1/5", "1/6"), "--key", "one")
    conflict = run("query", service.url, *other, token=token)
    assert conflict.exit_code == 2
    assert "idempotency key" in conflict.stderr
    broke = run("query", service.url, "people", query.replace("1/5", "99"), token=token)
    assert broke.exit_code == 3
    assert "budget" in broke.stderr
    wrong = run("query", service.url, "people", query, token="dsc_nothing")
    assert wrong.exit_code == 2
    nobody = run("query", service.url, "people", query)
    assert nobody.exit_code == 2
    assert "DISCREET_TOKEN" in nobody.stderr


@pytest.mark.slow
def test_the_service_is_a_command(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    left = tmp_path / "tmp" / "discreet-curator-service-killed"
    left.mkdir(parents=True)
    (left / "pid").write_text("1\n")  # nobody holds it: its service was killed
    with serving(study, "--workers", "2") as server:
        assert not left.exists()
        assert 1 <= len(list(server.temporary.iterdir())) <= 2  # one for each worker that is up
        for number in range(4):
            asked = run(
                "query",
                server.url,
                "people",
                '{"kind": "count", "epsilon": "1/5"}',
                "--json",
                token=study.tokens["ann"],
            )
            assert asked.exit_code == 0, asked.stderr
            answer = json.loads(asked.stdout)
            assert answer["answered_before"] == (number > 0)
    assert server.process is not None
    assert server.process.returncode is not None
    assert list(server.temporary.iterdir()) == []


def test_help_is_quick_and_has_examples() -> None:
    for command in (("serve",), ("query",), ("curator", "dataset"), ("curator", "token")):
        shown = run(*command, "--help")
        assert shown.exit_code == 0
        assert f"discreet {' '.join(command)}" in shown.stdout.partition("Example")[2]
    program = (
        "import sys\n"
        "from discreet.cli import main\n"
        "sys.argv = ['discreet', 'serve', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'fastapi', 'uvicorn', 'duckdb', 'ibis', 'httpx'}\n"
        "sys.exit(len(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0
