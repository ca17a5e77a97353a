"""``discreet calibrate``: the answer meets the target, and hardly more than meets it."""

import json
from typing import Any

import pytest

from discreet.privacy import Gaussian, Laplace, Strategy

TARGET = ["--epsilon", "2", "--delta", "1e-5"]


def answer(run: Any, *arguments: str) -> dict[str, Any]:
    result = run("calibrate", *arguments, "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    assert document["epsilon"] <= document["target"]["epsilon"]
    return document


def test_noise_multiplier(run: Any) -> None:
    document = answer(run, *TARGET, "--rate", "1/100", "--steps", "1e4")
    value = document["value"]
    assert document["solved_for"] == "noise_multiplier"
    run_of = lambda noise: 10_000 * Gaussian(noise).poisson(rate=0.01)  # noqa: E731
    assert run_of(value).epsilon(delta=1e-5) <= 2.0
    assert run_of(value * 0.99).epsilon(delta=1e-5) > 2.0
    assert document["description"] == repr(run_of(value))


def test_noise_multiplier_under_replace_is_twice_as_large(run: Any) -> None:
    one = answer(run, *TARGET)["value"]
    two = answer(run, *TARGET, "--relation", "replace")["value"]
    assert two == pytest.approx(2 * one, rel=5e-3)


def test_a_rate_under_replace_uses_the_exact_loss(run: Any) -> None:
    common = ["--relation", "replace", "--steps", "1000"]
    noise = answer(run, *TARGET, *common, "--rate", "0.01")["value"]
    step = Gaussian(noise, "replace").poisson(rate=0.01)
    assert 1.99 <= (1000 * step).epsilon(delta=1e-5) <= 2.0
    arguments = ["--noise-multiplier", repr(noise), "--solve-for", "rate"]
    rate = answer(run, *TARGET, *common, *arguments)["value"]
    assert rate == pytest.approx(0.01, rel=5e-3)


def test_steps(run: Any) -> None:
    arguments = ["--noise-multiplier", "2", "--rate", "0.01", "--solve-for", "steps"]
    value = answer(run, *TARGET, *arguments)["value"]
    assert isinstance(value, int)
    step = Gaussian(2.0).poisson(rate=0.01)
    assert (value * step).epsilon(delta=1e-5) <= 2.0
    assert (round(value * 1.02) * step).epsilon(delta=1e-5) > 2.0


def test_rate(run: Any) -> None:
    arguments = ["--noise-multiplier", "2", "--steps", "1000", "--solve-for", "rate"]
    value = answer(run, *TARGET, *arguments)["value"]
    epsilon = lambda rate: (1000 * Gaussian(2.0).poisson(rate=rate)).epsilon(delta=1e-5)  # noqa: E731
    assert epsilon(value) <= 2.0 < epsilon(value * 1.02)


def test_laplace_scale_of_one_pure_release_is_sensitivity_over_epsilon(run: Any) -> None:
    arguments = ["--epsilon", "1/10", "--delta", "0", "--sensitivity", "2"]
    value = answer(run, *arguments, "--solve-for", "laplace-scale")["value"]
    assert value == pytest.approx(20.0, rel=5e-3)
    assert Laplace(value, 2.0).epsilon(delta=0.0) <= 0.1


@pytest.mark.slow
def test_bands_of_correlated_noise(run: Any) -> None:
    arguments = ["--rate", "1/16", "--steps", "16", "--solve-for", "bands"]
    found = answer(run, *TARGET, *arguments)
    bands, noise = found["value"], found["noise_multiplier"]
    assert bands in (2, 4, 8, 16)
    strategy = Strategy.optimised(bands, steps=16)
    loss = Gaussian(noise).correlated(strategy, steps=16, separation=bands, rate=bands / 16)
    assert 1.98 <= loss.epsilon(delta=1e-5) <= 2.0
    assert found["gain"] > 1.0
    lines = run("calibrate", *TARGET, *arguments).stdout.splitlines()
    assert lines[0] == f"bands: {bands}"
    assert "times less than with independent noise" in lines[3]


@pytest.mark.parametrize(
    ("unknown", "arguments"),
    [
        ("noise-multiplier", ["--rate", "0.1", "--steps", "10"]),
        ("steps", ["--noise-multiplier", "3", "--rate", "0.1"]),
        ("rate", ["--noise-multiplier", "3", "--steps", "10"]),
        ("laplace-scale", ["--steps", "3"]),
    ],
)
def test_the_text_rounds_to_the_safe_side(run: Any, unknown: str, arguments: list[str]) -> None:
    exact = answer(run, *TARGET, *arguments, "--solve-for", unknown)
    lines = run("calibrate", *TARGET, *arguments, "--solve-for", unknown).stdout.splitlines()
    name, _, shown = lines[0].partition(": ")
    assert name == unknown.replace("-", " ")
    if unknown in ("steps", "rate"):
        assert exact["value"] * 0.9999 <= float(shown) <= exact["value"]
    else:
        assert exact["value"] <= float(shown) <= exact["value"] * 1.0001
    assert "(target 2) at delta 1e-05, relation add_remove" in lines[1]
