"""What keeps a service honest while it runs: a sound ledger, free connections, private files."""

import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from curator.service.studies import COUNT, SCHEMA, Study, in_process, make_study, people, write_rows
from discreet.cli._app import app
from discreet.curator.service import Settings, _operations, create_app
from discreet.curator.service import _app as server_module
from discreet.curator.service._bodies import DAMAGED, FULL, problem_of
from discreet.errors import LedgerCorrupt, LedgerError, LedgerFull
from discreet.ledger import Ledger
from discreet.privacy import PureDP
from ledger.tampering import database_of, query, tamper


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return make_study(tmp_path, rows=people(30))


def spoil(place: str) -> None:
    """Change a noted sum of the first charge."""
    with Ledger.open(place) as book:
        book.charge("people", PureDP("1/10"), analyst="ann")
    tamper(place, "UPDATE entries SET text = replace(text, '1/10', '1/11') WHERE kind = 'charge'")


def test_a_damaged_ledger_is_not_served(study: Study) -> None:
    spoil(study.place)
    with pytest.raises(LedgerCorrupt, match="was changed"):
        create_app(Settings(ledger=study.place))
    done = CliRunner().invoke(app, ["serve", study.place, "--port", "0"], prog_name="discreet")
    assert done.exit_code != 0
    assert "was changed" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_health_turns_red_when_the_ledger_is_damaged(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_operations, "_VERDICT_HOLDS", 0.0)
    with in_process(study) as service:
        assert service.get("/health").status_code == 200
        spoil(study.place)
        end = time.monotonic() + 60
        while (answer := service.get("/health")).status_code == 200:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert answer.status_code == 503
        assert answer.json()["kind"] == "damaged"
        assert study.place not in answer.text


def test_a_full_disk_and_a_damaged_ledger_have_words_of_their_own() -> None:
    assert problem_of(LedgerFull("there is no room at a path")) is FULL
    assert "full" in FULL.message
    assert problem_of(LedgerCorrupt("a sum at a path")) is DAMAGED


def ask_once(study: Study, **query: str) -> None:
    with in_process(study) as service:
        body = {"query": {**COUNT, **query}}
        asked = service.post("/v1/datasets/people/ask", headers=study.token("ann"), json=body)
        assert asked.status_code == 200


def refused_start(study: Study, match: str) -> None:
    with pytest.raises(LedgerError, match=match):
        create_app(Settings(ledger=study.place))
    done = CliRunner().invoke(app, ["serve", study.place, "--port", "0"], prog_name="discreet")
    assert done.exit_code != 0
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_backup_is_not_served(study: Study) -> None:
    """It does not know what was spent since."""
    with Ledger.open(study.place) as book:
        book.backup(study.folder / "copy")
    ask_once(study)
    shutil.rmtree(study.place)
    (study.folder / "copy").rename(study.place)
    refused_start(study, "is a backup")


@pytest.mark.parametrize("damage", [b"not a database " * 500, None])
def test_a_damaged_store_is_told_in_one_line(study: Study, damage: bytes | None) -> None:
    ask_once(study)
    place = database_of(Path(study.place))
    whole = place.read_bytes()
    place.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    refused_start(study, "not a ledger|damaged|malformed|not a database")


def test_a_ledger_that_is_deleted_while_served_is_damaged(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_operations, "_VERDICT_HOLDS", 0.0)
    with in_process(study) as service:
        shutil.rmtree(study.place)
        address = "/v1/datasets/people/ask"
        asked = service.post(address, headers=study.token("ann"), json={"query": COUNT})
        for answer in (asked, service.get("/health")):
            assert (answer.status_code, answer.json()["kind"]) == (503, "damaged")
            assert study.place not in answer.text


def flip(place: str, old: bytes, new: bytes) -> None:
    """Change bytes on the disk, by another process: to close the file here would drop locks."""
    script = (
        "import sys\nold, new = map(bytes.fromhex, sys.argv[1:3])\nfor name in sys.argv[3:]:\n"
        " with open(name, 'r+b') as file:\n  held = file.read()\n  file.seek(0)\n"
        "  file.write(held.replace(old, new))"
    )
    names = [
        str(path) for path in Path(place).glob("ledger-*.sqlite*") if path.suffix[-3:] != "shm"
    ]
    subprocess.run([sys.executable, "-c", script, old.hex(), new.hex(), *names], check=True)


def test_bytes_flipped_under_a_service_never_leave_as_an_answer(study: Study) -> None:
    """Pages that SQLite holds are still right; what is read from the disk is refused."""
    address, body = "/v1/datasets/people/ask", {"query": COUNT}
    with in_process(study) as service:
        given = service.post(address, headers=study.token("ann"), json=body)
        value = given.json()["value"]
        shown = f'"value": {value}'.encode()
        flip(study.place, shown, shown[:-1] + (b"1" if shown[-1:] != b"1" else b"2"))
        for _ in range(3):
            again = service.post(address, headers=study.token("ann"), json=body)
            if again.status_code == 200:
                assert again.json()["value"] == value
            else:
                assert (again.status_code, again.json()["kind"]) == (503, "damaged")
                assert str(value) not in again.text
    with in_process(study) as service:
        again = service.post(address, headers=study.token("ann"), json=body)
        assert (again.status_code, again.json()["kind"]) == (503, "damaged")
    with Ledger.open(study.place, read_only=True) as book:
        assert book.show("people").budget.charges == 1


def test_bytes_flipped_in_the_chain_stop_a_running_service(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_operations, "_VERDICT_HOLDS", 0.0)
    ask_once(study)
    [(text,)] = query(study.place, "SELECT text FROM entries WHERE kind = 'charge'")
    spoilt = text.replace("1/10", "1/90")
    with in_process(study) as service:
        flip(study.place, text.encode(), spoilt.encode())
        end = time.monotonic() + 60
        while (health := service.get("/health")).status_code == 200:
            assert time.monotonic() < end
            time.sleep(0.05)
        asked = {"query": {**COUNT, "epsilon": "1/7"}}
        answer = service.post("/v1/datasets/people/ask", headers=study.token("ann"), json=asked)
        for one in (health, answer):
            assert (one.status_code, one.json()["kind"]) == (503, "damaged")
    with Ledger.open(study.place, read_only=True) as book:
        assert book.show("people").budget.charges == 1


def test_a_head_without_end_is_cut_off(study: Study) -> None:
    """The parser takes headers of any size; 10 s of a fast line would be gigabytes."""
    with in_process(study) as service:
        host, port = service.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as greedy:
            greedy.sendall(b"GET /health HTTP/1.1\r\nHost: here\r\nX-Long: ")
            with pytest.raises(OSError, match=r"."):
                greedy.sendall(b"x" * (1 << 26))
        with socket.create_connection((host, int(port))) as honest:
            # A long body and, right behind it, the beginning of another head.
            head = b"POST /health HTTP/1.1\r\nHost: here\r\nContent-Length: 120000\r\n\r\n"
            honest.sendall(head + b"x" * 120_000 + b"GET /health HT")
            time.sleep(0.2)
            honest.sendall(b"TP/1.1\r\nHost: here\r\n\r\n")
            honest.settimeout(60)
            answered = b""
            while b"200 OK" not in answered:
                part = honest.recv(4096)
                assert part, answered
                answered += part


def test_idle_connections_delay_nobody(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    # Who had to wait for one of them to be given up would wait longer than the client does.
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 600.0)
    with in_process(study) as service:
        host, port = service.url.removeprefix("http://").split(":")
        idle = [socket.create_connection((host, int(port))) for _ in range(300)]
        try:
            asked = httpx.post(
                f"{service.url}/v1/datasets/people/ask",
                headers=study.token("ann"),
                json={"query": COUNT},
                timeout=60,
            )
            assert asked.status_code == 200
            assert len(service.server.server_state.connections) <= server_module.MOST_CONNECTIONS
        finally:
            for one in idle:
                one.close()


def test_the_head_of_a_request_must_arrive_in_time(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server_module.HEAD_SECONDS == 10.0
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.3)
    with in_process(study) as service:
        host, port = service.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.settimeout(60)
            slow.sendall(b"GET /health HTTP/1.1\r\nHost: here\r\nX-Slow: ")
            assert slow.recv(100) == b""
        with socket.create_connection((host, int(port))) as used:
            # A second request on a connection that was used before has the same time.
            used.settimeout(60)
            used.sendall(b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n")
            answered = b""
            while not answered.endswith(b"}"):
                answered += used.recv(4096)
            time.sleep(0.5)
            used.sendall(b"GET /hea")
            assert used.recv(100) == b""


def test_only_the_owner_may_read_the_files(study: Study) -> None:
    with in_process(study) as service:
        asked = service.post(
            "/v1/datasets/people/ask", headers=study.token("ann"), json={"query": COUNT}
        )
        assert asked.status_code == 200
        place = Path(study.place)
        inside = [place, *place.iterdir()]
        assert len(inside) == 5
        for one in inside:
            assert stat.S_IMODE(one.stat().st_mode) & 0o077 == 0, one.name


def dataset(study: Study, name: str, source: str, *options: str) -> tuple[int, str, str]:
    arguments = ["curator", "dataset", study.place, name, source, "--epsilon", "2", *options]
    if "--schema" not in options:
        (study.folder / "schema.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
        arguments += ["--schema", str(study.folder / "schema.toml")]
    done = CliRunner().invoke(app, arguments, prog_name="discreet")
    return done.exit_code, done.stdout, done.stderr


def test_a_copy_of_a_served_file_is_noticed(study: Study) -> None:
    copy = study.folder / "copy.csv"
    copy.write_bytes((study.folder / "people.csv").read_bytes())
    other = study.folder / "other.csv"
    write_rows(other, people(30)[::-1])
    assert dataset(study, "other", str(other))[::2] == (0, "")
    code, _, said = dataset(study, "copy", str(copy))
    assert code == 0
    assert "same content as that of 'people'" in said
    copy.with_name("third.csv").write_bytes(copy.read_bytes())
    with in_process(study) as service:
        made = service.post(
            "/v1/datasets",
            headers=study.token("owner"),
            json={
                "name": "third",
                "source": "third.csv",
                "schema": SCHEMA.to_toml(),
                "epsilon": "1",
            },
        )
        assert made.status_code == 201, made.text
        assert made.json()["copies"] == ["copy", "people"]


@pytest.mark.parametrize(
    "source", ["people.xlsx", "mysql://someone@here/base", "nowhere.csv", "ftp://a/b.parquet"]
)
def test_an_unsupported_source_gets_one_clear_line(study: Study, source: str) -> None:
    (study.folder / "people.xlsx").write_bytes(b"PK")
    place = source if "://" in source else str(study.folder / source)
    code, _, said = dataset(study, "other", place)
    assert code != 0
    assert len(said.strip().splitlines()) == 1
    assert said.startswith("SOURCE = ")
    assert "expected a CSV or Parquet file" in said


UNDECLARED = """
[unit]
person = "person"
rows_per_person = 1

[columns.age]
type = "integer"
bounds = [0, 100]

[columns.city]
type = "categorical"
"""


def test_undeclared_categories_are_served_with_a_delta(study: Study) -> None:
    schema = study.folder / "undeclared.toml"
    schema.write_text(UNDECLARED, encoding="utf-8")
    source = study.folder / "many.csv"
    write_rows(source, people(3000))
    options = ("--schema", str(schema), "--delta", "1e-5")
    code, _, said = dataset(study, "many", str(source), *options)
    assert code == 0, said
    run = CliRunner()
    for arguments in (
        ["analyst", study.place, "eve", "--dataset", "many", "--epsilon", "2", "--delta", "1e-5"],
        ["token", study.place, "--analyst", "eve", "--dataset", "many"],
    ):
        done = run.invoke(app, ["curator", *arguments], prog_name="discreet")
        assert done.exit_code == 0, done.stderr
    header = {"Authorization": f"Bearer {done.stdout.strip()}"}
    grouped = {
        "kind": "group_by",
        "epsilon": "1",
        "delta": "1/1000000",
        "by": [{"op": "column", "name": "city"}],
    }
    with in_process(study) as service:
        answer = service.post("/v1/datasets/many/ask", headers=header, json={"query": grouped})
        assert answer.status_code == 200, answer.text
        assert {"Oslo", "Bergen", "Bodo"} <= set(
            str(answer.json()["value"]).replace("'", '"').split('"')
        )


def test_undeclared_bounds_are_still_refused(study: Study) -> None:
    schema = study.folder / "undeclared.toml"
    schema.write_text(UNDECLARED.replace("bounds = [0, 100]\n", ""), encoding="utf-8")
    code, _, said = dataset(
        study, "other", str(study.folder / "people.csv"), "--schema", str(schema)
    )
    assert code == 2
    assert "no bounds are declared for 'age'" in said
