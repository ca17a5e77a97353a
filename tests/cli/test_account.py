"""``discreet account``."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from discreet.privacy import (
    ACCOUNTANTS,
    Gaussian,
    Laplace,
    PureDP,
    RandomizedResponse,
    every_accountant,
    from_json,
    to_json,
)

MNIST = ["--noise-multiplier", "1.1", "--rate", "256/60000", "--steps", "14062", "--delta", "1e-5"]


def answer(run: Any, *arguments: str, **kwargs: Any) -> dict[str, Any]:
    result = run("account", *arguments, "--json", **kwargs)
    assert result.exit_code == 0
    assert result.stderr == ""
    document = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(name))
    assert isinstance(document, dict)
    return document


def test_json_of_the_mnist_run_agrees_with_the_calculus_and_with_the_peers(run: Any) -> None:
    document = answer(run, *MNIST)
    loss = 14062 * Gaussian(1.1).poisson(rate=256 / 60000)
    bounds = loss.epsilon_bounds(delta=1e-5)
    assert (document["epsilon_lower"], document["epsilon_upper"]) == tuple(bounds)
    # dp-accounting (interval 1e-5) says 2.3816; PEERS, first row.
    assert document["epsilon_lower"] <= 2.3816 + 5e-5
    assert document["epsilon_upper"] == pytest.approx(2.3816, rel=2e-3)
    assert document["delta"] == 1e-5
    assert document["tolerance_met"] is True
    assert document["relation"] == "add_remove"
    assert from_json(document["loss"]) == loss
    assert document["accountants"] == every_accountant(loss, delta=1e-5)
    assert set(document["accountants"]) >= set(ACCOUNTANTS) - {"best"}


def test_local_reports_behind_a_shuffler(run: Any) -> None:
    document = answer(run, "--local-epsilon", "1", "--shuffled", "6", "--delta", "1e-2")
    assert document["relation"] == "replace"
    loss = PureDP(1, relation="replace").shuffled(population=6)
    assert document["epsilon_upper"] == loss.epsilon_bounds(delta=1e-2).upper < 1
    assert from_json(document["loss"]) == loss
    for wrong in (["--rate", "0.1"], ["--noise-multiplier", "1"], ["--relation", "add_remove"]):
        result = run("account", "--local-epsilon", "1", "--shuffled", "9", "--delta", "0", *wrong)
        assert result.exit_code != 0


def test_every_accountant_is_a_number_or_a_reason(run: Any) -> None:
    accountants = answer(run, *MNIST)["accountants"]
    lower = answer(run, *MNIST)["epsilon_lower"]
    for value in accountants.values():
        assert (value >= lower) if isinstance(value, float) else len(value) > 10
    assert isinstance(accountants["pld"], float)
    assert isinstance(accountants["rdp"], float)


def test_the_loss_that_was_printed_can_be_read_again(run: Any, tmp_path: Path) -> None:
    first = answer(run, *MNIST)
    file = tmp_path / "loss.json"
    file.write_text(json.dumps(first["loss"]), encoding="utf-8")
    assert answer(run, "--loss", str(file), "--delta", "1e-5") == first
    assert answer(run, "--loss", "-", "--delta", "1e-5", stdin=file.read_text()) == first


def test_steps_of_a_pure_loss_add_up_exactly(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "loss.json"
    file.write_text(json.dumps(to_json(10 * PureDP(0.1))), encoding="utf-8")
    document = answer(run, "--loss", str(file), "--delta", "0")
    assert document["epsilon_upper"] == 1.0


def test_laplace_noise(run: Any) -> None:
    document = answer(run, "--laplace-scale", "10", "--sensitivity", "2", "--delta", "0")
    assert document["epsilon_lower"] <= 0.2 <= document["epsilon_upper"]
    assert from_json(document["loss"]) == Laplace(10.0, 2.0)


def test_where_no_epsilon_is_finite_json_says_so(run: Any) -> None:
    document = answer(run, "--noise-multiplier", "1", "--delta", "0")
    assert document["epsilon_upper"] is None
    assert all(isinstance(value, str) for value in document["accountants"].values())
    text = run("account", "--noise-multiplier", "1", "--delta", "0").stdout
    assert "<= epsilon <= inf" in text


@pytest.mark.parametrize("rate", [[], ["--rate", "1"]])
def test_replace_is_twice_the_distance(run: Any, rate: list[str]) -> None:
    document = answer(
        run, "--noise-multiplier", "4", "--delta", "1e-5", "--relation", "replace", *rate
    )
    assert document["relation"] == "replace"
    assert from_json(document["loss"]) == Gaussian(4.0, relation="replace")
    assert document["epsilon_upper"] == pytest.approx(Gaussian(2.0).epsilon(delta=1e-5), rel=3e-3)


def test_poisson_under_replace_has_its_exact_loss(run: Any) -> None:
    common = ["--noise-multiplier", "2", "--rate", "0.01", "--steps", "100", "--delta", "1e-5"]
    one, two = answer(run, *common), answer(run, *common, "--relation", "replace")
    assert from_json(two["loss"]) == 100 * Gaussian(2.0, "replace").poisson(rate=0.01)
    assert two["epsilon_upper"] > one["epsilon_upper"]


def test_fixed_size_batches(run: Any) -> None:
    document = answer(
        run, "--noise-multiplier", "4", "--sample", "10", "--population", "1000", "--steps", "10",
        "--relation", "replace", "--delta", "1e-5",
    )  # fmt: skip
    loss = Gaussian(4.0, relation="replace").sample_without_replacement(sample=10, population=1000)
    assert from_json(document["loss"]) == 10 * loss
    assert document["epsilon_upper"] > 0


def test_there_is_no_way_back_from_replace(run: Any) -> None:
    text = json.dumps(to_json(3 * RandomizedResponse(0.5)))
    common = ["account", "--loss", "-", "--delta", "0"]
    assert run(*common, stdin=text).exit_code == 0
    refused = run(*common, "--relation", "add_remove", stdin=text)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("discreet: there is no way from a loss under 'replace'")
    assert refused.stderr.count("\n") == 1


def test_the_table_never_shows_less_than_was_computed(run: Any) -> None:
    numbers = answer(run, *MNIST)
    lines = run("account", *MNIST).stdout.splitlines()
    assert lines[0] == numbers["description"]
    shown = dict(line.split() for line in lines if len(line.split()) == 2)
    for name, value in numbers["accountants"].items():
        if isinstance(value, str):
            assert shown[name] == "-"
        else:
            assert value <= float(shown[name]) <= value * 1.001
    bracket = next(line for line in lines if line.startswith("certified: "))
    low, _, _, _, high = bracket.removeprefix("certified: ").split()
    assert float(low) <= numbers["epsilon_lower"] <= numbers["epsilon_upper"] <= float(high)
    assert math.isclose(float(low), float(high), rel_tol=3e-3)


def test_the_history_of_an_opacus_accountant(run: Any, tmp_path: Any) -> None:
    file = tmp_path / "opacus.json"
    file.write_text('{"history": [[1.1, 0.01, 100]], "mechanism": "rdp"}')
    document = json.loads(run("account", "--from", str(file), "--delta", "1e-5", "--json").stdout)
    assert from_json(document["loss"]) == 100 * Gaussian(1.1).poisson(rate=0.01)
    assert "Poisson sample" in document["assumption"]
    text = run("account", "--from", str(file), "--delta", "1e-5").stdout
    assert "warning: only if every batch was a Poisson sample" in text
    file.write_text("[[0.0, 0.01, 100]]")
    refused = run("account", "--from", str(file), "--delta", "1e-5")
    assert refused.exit_code == 4
    assert "the history of an Opacus accountant" in refused.stderr
