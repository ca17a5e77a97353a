"""discreet federated: a plan is simulated, written, run on clients of a file, and charged."""

import json

import numpy as np

from discreet.ledger import Ledger
from discreet.report import verify_certificate


def clients(path):
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(60, 3, 64)).astype(np.float32)
    np.savez(path, inputs=inputs, targets=(inputs.sum(-1) > 0).astype(np.int64))
    return str(path)


def test_a_plan_is_simulated_and_then_run_on_a_file(run, tmp_path):
    plan = tmp_path / "plan.json"
    command = "--epsilon 8 --clients 60 --cohort 20 --rounds 4 --delta 1e-3 --json"
    done = run("federated", "simulate", *command.split(), "--plan", str(plan))
    said = json.loads(done.stdout)
    assert said["epsilon"] <= 8
    assert said["relation"] == "add_remove"
    assert not said["charged"]
    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.create_dataset("phones", epsilon=9, delta=1e-2, unit="client")
    options = ["--data", clients(tmp_path / "clients.npz"), "--classes", "10"]
    paid = ["--ledger", str(tmp_path / "ledger"), "--dataset", "phones"]
    done = run("federated", "run", str(plan), *options, *paid, "--out", str(tmp_path / "model"))
    assert done.exit_code == 0
    assert "trust in server" in done.stdout
    with Ledger.open(tmp_path / "ledger") as ledger:
        checks = verify_certificate(tmp_path / "model" / "certificate.json", ledger=ledger)
    assert [one for one in checks if one.ok is False] == []
    again = ["--out", str(tmp_path / "again"), "--json"]
    over = run("federated", "run", str(plan), *options, *paid, *again)
    assert (over.exit_code, json.loads(over.stderr)["code"]) == (3, 3)
    free = run("federated", "run", str(plan), *options, *again)
    assert (free.exit_code, json.loads(free.stdout)["charged"]) == (0, False)


def test_bad_files_and_options_are_refused(run, tmp_path):
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"nothing")
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    out = str(tmp_path / "model")
    done = run("federated", "run", str(plan), "--data", str(bad), "--classes", "2", "--out", out)
    assert done.exit_code == 4
    assert "plan" in done.stderr
    for command in (
        "federated simulate --epsilon 8 --trust me",
        "federated simulate --epsilon 8 --trust aggregation --participations 1",
    ):
        done = run(*command.split())
        assert done.exit_code == 2, done.stderr
