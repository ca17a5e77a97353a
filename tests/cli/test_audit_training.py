"""``discreet audit``: coins for a run of one's own, and the judgement of its scores."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import Run
from discreet.audit import Inclusion, audit_one_run, read_coins
from discreet.errors import InvalidValue, NotApplicable, SchemaError

CLAIM = ("--epsilon", "4", "--delta", "1e-5")


@pytest.fixture
def tossed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> list[int]:
    monkeypatch.chdir(tmp_path)
    words = ("audit", "coins", "--canaries", "1000", "--out", "coins.json")
    done = run(*words, "--guesses", "250,250", "--included", "included.csv", *CLAIM)
    assert (done.exit_code, done.stderr) == (0, "")
    return [int(line) for line in Path("included.csv").read_text().split()]


def scores(values: np.ndarray | list[int]) -> None:
    np.savetxt("scores.csv", np.asarray(values, dtype=float))


def test_a_run_that_gives_its_coins_away_is_refuted_once(tossed: list[int], run: Run) -> None:
    scores(tossed)
    found = run("audit", "training", "scores.csv", "--coins", "coins.json", *CLAIM, "--json")
    told = json.loads(found.stdout)
    assert (found.exit_code, told["verdict"], told["evidence"]["canaries"]) == (1, "violated", 1000)
    assert told["epsilon_lower"] > 4
    again = run("audit", "training", "scores.csv", "--coins", "coins.json", *CLAIM)
    assert again.exit_code == 2
    assert "new run with new coins" in again.stderr


def test_a_run_that_says_nothing_is_not_refuted(tossed: list[int], run: Run) -> None:
    scores(np.arange(1000))
    found = run("audit", "training", "scores.csv", "--coins", "coins.json", *CLAIM)
    assert found.exit_code == 0
    assert "consistent" in found.stdout
    assert "tossed elsewhere" not in found.stdout


def test_coins_of_a_run_elsewhere(tossed: list[int], run: Run) -> None:
    np.save("scores.npy", np.asarray(tossed, dtype=float))
    words = ("audit", "training", "scores.npy", "--included", "included.csv", *CLAIM)
    found = run(*words, "--guesses", "250,250")
    assert found.exit_code == 1
    assert "tossed elsewhere: fairness and independence are not checked" in found.stdout
    own = Inclusion.from_coins(tossed, guesses=(250, 250))
    same = audit_one_run(own, np.asarray(tossed, dtype=float), epsilon=4.0, delta=1e-5)
    assert found.stdout.startswith(str(same).splitlines()[0])


def test_guesses_follow_from_the_claim_unless_they_are_given(run: Run, tmp_path: Path) -> None:
    out = str(tmp_path / "coins.json")
    told = run("audit", "coins", "--canaries", "100", "--out", out, "--epsilon", "2", "--json")
    assert json.loads(told.stdout)["guesses"] == list(read_coins(out).guesses)
    assert "secret" in run("audit", "coins", "--out", out, "--epsilon", "2").stdout


def test_what_cannot_be_judged_is_refused_before(tossed: list[int], run: Run) -> None:
    scores(tossed[:-1])
    for words, word in (
        (("--coins", "coins.json"), "999 scores"),
        ((), "--coins or --included, not both"),
        (("--included", "included.csv"), "200,200"),
        (("--included", "included.csv", "--guesses", "2,x"), "--guesses"),
        (("--included", "scores.csv", "--guesses", "2,2,2"), "200,200"),
        (("--coins", "scores.csv"), "JSON"),
        (("--coins", "missing.json"), "missing.json"),
    ):
        found = run("audit", "training", "scores.csv", *words, *CLAIM)
        assert found.exit_code in (2, 4)
        assert re.search(re.escape(word), found.stderr), found.stderr
    assert read_coins("coins.json").audits_left == 1


def test_a_file_of_coins_comes_back_as_it_was(tmp_path: Path) -> None:
    made = Inclusion(30, guesses=(4, 5), audits=2)
    made.correct(np.arange(30.0))
    back = read_coins(made.save(tmp_path / "coins.json"))
    assert (back.guesses, back.audits, back.audits_left) == ((4, 5), 2, 1)
    assert back.provenance == made.provenance
    assert (back.included == made.included).all()
    back.correct(np.arange(30.0))
    with pytest.raises(NotApplicable, match="new coins"):
        back.correct(np.arange(30.0))
    (tmp_path / "coins.json").write_text((tmp_path / "coins.json").read_text().replace("[4", "[99"))
    with pytest.raises(SchemaError, match="damaged"):
        read_coins(tmp_path / "coins.json")
    with pytest.raises(InvalidValue, match="a 0 or a 1 for each canary"):
        Inclusion.from_coins([0, 2], guesses=(1, 0))
