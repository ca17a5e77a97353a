"""``discreet audit-mechanism``."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from cli.conftest import Run
from discreet.audit.zoo import SPECIMENS, bundled

QUICK = ["--samples", "1000", "--insecure-seed", "7"]
Ask = Callable[..., Any]


@pytest.fixture
def ask(run: Run) -> Ask:
    def invoke(*arguments: str) -> Any:
        return run("audit-mechanism", *arguments)

    return invoke


def test_one_right_mechanism_is_described_and_exits_with_zero(ask: Ask) -> None:
    result = ask("laplace", *QUICK)
    assert result.exit_code == 0
    assert result.stdout.startswith("laplace: ")
    assert "consistent: epsilon >= " in result.stdout
    assert "false alarms: at most 0.001" in result.stdout


def test_a_refuted_one_exits_with_one(ask: Ask) -> None:
    result = ask("histogram-noise-reused", *QUICK)
    assert result.exit_code == 1
    assert "violated: epsilon >= " in result.stdout


def test_too_weak_is_not_checked(ask: Ask) -> None:
    result = ask("histogram-noise-reused", "--samples", "8", "--insecure-seed", "7")
    assert result.exit_code == 6
    assert "too weak to tell" in result.stdout


def test_json_says_the_same_as_the_library(ask: Ask) -> None:
    result = ask("laplace", "laplace-halved-noise", *QUICK, "--json")
    assert result.exit_code == 1
    audits = json.loads(result.stdout)["audits"]
    assert [audit["name"] for audit in audits] == ["laplace", "laplace-halved-noise"]
    assert [audit["broken"] for audit in audits] == [False, True]
    for document in audits:
        expected = SPECIMENS[document["name"]].audit(samples=1000, insecure_seed=7)
        assert expected.to_json().items() <= document.items()


def test_several_are_a_table_with_a_summary(ask: Ask) -> None:
    result = ask("k-response", "k-response-wrong-k", *QUICK)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["mechanism", "claimed", "shown", "ceiling", "verdict"]
    assert lines[-1] == "1 of 2 claims violated; false alarms at most 0.001 for each."


@pytest.mark.slow
def test_groups_and_the_default(ask: Ask) -> None:
    quick = ["--samples", "8", "--insecure-seed", "7", "--json"]
    named = {
        group: [audit["name"] for audit in json.loads(ask(*group, *quick).stdout)["audits"]]
        for group in ((), ("bundled",), ("broken",), ("right",), ("all",), ("laplace", "laplace"))
    }
    assert named[()] == named[("bundled",)] == list(bundled())
    assert set(named[("broken",)]) == {name for name, each in SPECIMENS.items() if each.broken}
    assert set(named[("right",)]) | set(named[("broken",)]) == set(SPECIMENS)
    assert len(named[("all",)]) == len(SPECIMENS) + len(bundled())
    assert named[("laplace", "laplace")] == ["laplace"]


def test_the_list_names_everything_and_audits_nothing(ask: Ask) -> None:
    result = ask("--list")
    assert result.exit_code == 0
    for name in (*SPECIMENS, *bundled()):
        assert name in result.stdout
    listed = json.loads(ask("broken", "--list", "--json").stdout)["mechanisms"]
    assert all(row["broken"] and row["about"] for row in listed)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonesuch"], "NAME = nonesuch: expected a name from --list"),
        (["laplace", "--samples", "3"], "--samples = 3: expected an integer with 4 <= samples"),
        (["laplace", "--samples", "x"], "--samples = x: expected an integer"),
        (["laplace", "--false-alarm-rate", "0"], "--false-alarm-rate = 0: expected a number"),
        (["laplace", "--false-alarm-rate", "0.9"], "--false-alarm-rate = 0.9"),
        (["laplace", "--insecure-seed", "1.5"], "--insecure-seed = 1.5: expected an integer"),
    ],
)
def test_a_refused_option_is_one_line_and_exit_code_two(
    ask: Ask, arguments: list[str], words: str
) -> None:
    result = ask(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(words)
    assert result.stderr.count("\n") == 1
