"""Refusals: exit code 2 and one line that names option, value and expectation."""

from pathlib import Path
from typing import Any

import pytest

RUN = ["--noise-multiplier", "1", "--delta", "1e-5"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["account", "--noise-multiplier", "1", "--delta", "2"],
            "--delta = 2: expected a number with 0 <= delta < 1",
        ),
        (
            ["account", "--noise-multiplier", "1", "--delta", "-1e-9"],
            "--delta = -1e-9: expected a number with 0 <= delta < 1",
        ),
        (
            ["account", "--noise-multiplier", "0", "--delta", "1e-5"],
            "--noise-multiplier = 0: expected a number with 0 < noise_multiplier",
        ),
        (
            ["account", "--noise-multiplier", "x\ny", "--delta", "1e-5"],
            "--noise-multiplier = 'x\\ny': expected a number such as 0.01, 1e-5 or 256/60000",
        ),
        (
            ["account", "--laplace-scale", "-1", "--delta", "0"],
            "--laplace-scale = -1: expected a number with 0 < laplace_scale",
        ),
        (
            ["account", *RUN, "--rate", "5/4"],
            "--rate = 5/4: expected a number with 0 < rate <= 1",
        ),
        (
            ["account", *RUN, "--rate", "1/0"],
            "--rate = 1/0: expected a number such as 0.01, 1e-5 or 256/60000",
        ),
        (
            ["account", *RUN, "--steps", "1.5"],
            "--steps = 1.5: expected an integer with 1 <= steps",
        ),
        (
            ["account", *RUN, "--relation", "swap"],
            "--relation = swap: expected one of add_remove, replace",
        ),
        (
            ["account", *RUN, "--laplace-scale", "1"],
            (
                "mechanism = --noise-multiplier, --laplace-scale: "
                "expected one of --noise-multiplier, --laplace-scale, --local-epsilon, --loss, "
                "--from"
            ),
        ),
        (
            ["account", "--delta", "1e-5"],
            (
                "mechanism = none: "
                "expected one of --noise-multiplier, --laplace-scale, --local-epsilon, --loss, "
                "--from"
            ),
        ),
        (
            ["account", *RUN, "--sensitivity", "2"],
            "--sensitivity = 2: expected only with --laplace-scale",
        ),
        (
            ["account", *RUN, "--rate", "0.1", "--sample", "3"],
            "--sample = 3: expected only without --rate",
        ),
        (["account", *RUN, "--sample", "3"], "--sample = 3: expected only with --population"),
        (
            ["account", *RUN, "--population", "3"],
            "--population = 3: expected only with --sample",
        ),
        (
            ["account", *RUN, "--sample", "3", "--population", "9"],
            "--relation = add_remove: expected replace with --sample and --population",
        ),
        (
            ["account", *RUN, "--sample", "9", "--population", "3", "--relation", "replace"],
            "--population = 3: expected an integer with 9 <= population",
        ),
        (
            ["account", "--laplace-scale", "1", "--delta", "0", "--rate", "0.1"]
            + ["--relation", "replace"],
            "--relation = replace: expected add_remove with --laplace-scale and --rate",
        ),
        (
            ["account", "--loss", "nowhere.json", "--delta", "0"],
            "--loss = nowhere.json: expected a readable file (No such file or directory)",
        ),
        (
            ["account", "--loss", "nowhere.json", "--delta", "0", "--steps", "3"],
            "--steps = 3: expected only without --loss",
        ),
        (
            ["calibrate", "--epsilon", "0", "--delta", "1e-5"],
            "--epsilon = 0: expected a number with 0 < epsilon",
        ),
        (
            ["calibrate", "--epsilon", "1", "--delta", "1e-5", "--solve-for", "luck"],
            (
                "--solve-for = luck: expected one of noise-multiplier, steps, rate, laplace-scale, "
                "bands"
            ),
        ),
        (
            ["calibrate", "--epsilon", "1", "--delta", "1e-5", "--solve-for", "steps"],
            "--noise-multiplier = none: expected a number when solving for steps",
        ),
        (
            ["calibrate", "--epsilon", "1", "--delta", "1e-5", "--noise-multiplier", "1"],
            "--noise-multiplier = 1: expected no value when solving for noise-multiplier",
        ),
        (
            ["compare", "--points", "0"],
            "--points = 0: expected an integer with 1 <= points <= 1000",
        ),
        (
            ["compare", "--max-steps", "x"],
            "--max-steps = x: expected an integer such as 10000 or 1e6",
        ),
        (
            ["compare", "--output", "compare.gif"],
            "--output = compare.gif: expected a file name that ends in .png or .svg",
        ),
        (
            ["explain", "--epsilon", "1", "--prior", "2"],
            "--prior = 2: expected a number with 0 <= prior <= 1",
        ),
        (
            ["explain", "--epsilon", "-1"],
            "--epsilon = -1: expected a number with 0 <= epsilon",
        ),
        (
            ["explain", "--epsilon", "1", "--delta", "1"],
            "--delta = 1: expected a number with 0 <= delta < 1",
        ),
    ],
)
def test_a_bad_value_is_one_line(run: Any, arguments: list[str], line: str) -> None:
    result = run(*arguments)
    assert result.exit_code == (4 if "a readable file" in line else 2)
    assert result.stdout == ""
    assert result.stderr == line + "\n"


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["account", "--nope"], ["discreet account", "--nope"]),
        (["account", "--noise-multiplier", "1"], ["discreet account", "--delta"]),
        (["account", "--delta"], ["--delta"]),
        (["account", "--delta", "1e-5", "stray"], ["stray"]),
        (["explian"], ["explian"]),
        (["--nope"], ["--nope"]),
    ],
)
def test_a_misspelt_option_or_command_is_one_line(
    run: Any, arguments: list[str], fragments: list[str]
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert all(fragment in result.stderr for fragment in fragments)
    assert "--help" in result.stderr


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": "discreet.loss"}', "\udcff", '{"a": NaN}']
)
def test_a_file_that_holds_no_loss_is_one_line(run: Any, tmp_path: Path, text: str) -> None:
    file = tmp_path / "loss.json"
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    result = run("account", "--loss", str(file), "--delta", "1e-5")
    assert result.exit_code == 4
    assert result.stdout == ""
    expected = "a text file in UTF-8" if text == "\udcff" else "a loss in JSON ("
    assert result.stderr.startswith(f"--loss = {file}: expected {expected}")
    assert result.stderr.count("\n") == 1


def test_an_unwritable_picture_is_refused_before_anything_is_computed(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed(*_: object, **__: object) -> None:
        pytest.fail("computed although the picture cannot be written")

    monkeypatch.setattr("discreet.privacy.every_accountant", computed)
    monkeypatch.setattr("discreet.privacy.theorems.explain", computed)
    place = tmp_path / "missing" / "a.png"
    for command in (["compare"], ["explain", "--epsilon", "1"]):
        result = run(*command, "--output", str(place))
        assert result.exit_code == 4
        assert result.stderr == (
            f"--output = {place}: expected a file that can be written (No such file or directory)\n"
        )
