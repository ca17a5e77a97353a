"""``discreet release``: values, losses and error bars on the command line (S11 to S14)."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

COMMANDS = ["laplace", "gaussian", "count", "histogram", "exponential", "randomized-response"]
LAPLACE = ["release", "laplace", "--value", "120", "--sensitivity", "1"]


def answer(run: Any, *arguments: str, stdin: str | None = None) -> dict[str, Any]:
    result = run("release", *arguments, "--json", stdin=stdin)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


@pytest.fixture
def people(tmp_path: Path) -> str:
    file = tmp_path / "people.csv"
    cities = ["Oslo"] * 5 + ["Rome"] * 2 + ["Bonn"]
    rows = [f"{number},{city}" for number, city in enumerate(cities)]
    file.write_text("\n".join(["id, city", *rows, "9", ""]), encoding="utf-8")
    return str(file)


def test_the_example_of_the_issue(run: Any) -> None:
    result = run(*LAPLACE, "--epsilon", "0.1")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    value, low, _, high = lines[0].replace("(", "").replace(")", "").split()
    assert int(high) - int(low) == 60
    assert int(low) + 30 == int(value)
    assert lines[1:] == [
        "error bars hold with confidence 0.95",
        "loss DiscreteLaplace(scale=10.0), relation add_remove",
        "epsilon 0.1 at delta 0.0",
        "randomness: operating system",
    ]


def test_json_holds_everything_and_the_loss_can_be_read_back(run: Any, tmp_path: Path) -> None:
    found = answer(run, *LAPLACE[1:], "--epsilon", "0.1", "--confidence", "0.9")
    assert found["epsilon"] == 0.1
    assert found["interval"][1] - found["interval"][0] == 2 * 23
    assert found["provenance"]["mechanism"] == "laplace_integer"
    file = tmp_path / "loss.json"
    file.write_text(json.dumps(found["loss"]), encoding="utf-8")
    read = run("account", "--loss", str(file), "--delta", "0", "--json")
    assert json.loads(read.stdout)["epsilon_upper"] == 0.1


def test_an_insecure_seed_repeats_and_shows(run: Any) -> None:
    seeded = [*LAPLACE, "--epsilon", "0.1", "--insecure-seed", "7"]
    assert run(*seeded).stdout == run(*seeded).stdout
    assert "randomness: INSECURE seed 7" in run(*seeded).stdout
    other = {run(*LAPLACE, "--epsilon", "0.001").stdout.splitlines()[0] for _ in range(4)}
    assert len(other) > 1


def test_real_numbers_are_on_the_grid(run: Any) -> None:
    found = answer(
        run,
        *["laplace", "--value", "-0.3", "--real", "--sensitivity", "0.5", "--scale", "2"],
        *["--granularity", "1/4", "--relation", "replace"],
    )
    assert (found["value"] * 4).is_integer()
    assert found["description"] == ("DiscreteLaplace(scale=8.0, sensitivity=2, relation='replace')")
    assert found["interval"][0] < found["value"] < found["interval"][1]


def test_gaussian_by_target_and_by_deviation(run: Any) -> None:
    number = ["gaussian", "--value", "120", "--sensitivity", "1"]
    met = answer(run, *number, "--epsilon", "1", "--delta", "1e-6")
    assert 0.99 < met["epsilon"] <= 1.0
    assert met["delta"] == 1e-6
    classical = answer(
        run, *number, "--epsilon", "0.5", "--delta", "1e-6", "--calibration", "classical"
    )
    assert classical["epsilon"] < 0.5
    read = answer(run, *number, "--stddev", "4", "--delta", "1e-6")
    assert read["description"] == "DiscreteGaussian(stddev=4.0)"
    assert read["epsilon"] > 1.0
    unread = answer(run, *number, "--stddev", "4")
    assert unread["epsilon"] is None
    assert "no finite epsilon" in run("release", *number, "--stddev", "4").stdout
    real = answer(run, *number[:3], "--real", "--sensitivity", "0.5", "--stddev", "1e-9")
    assert real["value"] == pytest.approx(120, abs=1e-6)


def test_counts_and_histograms(run: Any, people: str) -> None:
    source = ["--file", people, "--column", "city"]
    one = answer(run, "count", *source, "--equals", "Oslo", "--scale", "0.01")
    assert one["value"] == 5
    bins = answer(run, "histogram", *source, "--categories", "Rome, Oslo,Kiel", "--scale", "0.01")
    assert bins["value"] == {"Rome": 2, "Oslo": 5, "Kiel": 0}
    changed = answer(
        run, "histogram", *source, "--categories", "Rome,Oslo", "--epsilon", "0.1",
        "--relation", "replace",
    )  # fmt: skip
    assert changed["description"] == "2 * DiscreteLaplace(scale=20.0, relation='replace')"
    shown = run("release", "histogram", *source, "--categories", "Rome,Oslo", "--scale", "0.01")
    assert shown.stdout.splitlines()[:2] == ["Rome: 2 (2 to 2)", "Oslo: 5 (5 to 5)"]
    piped = answer(
        run, "count", "--file", "-", "--column", "c", "--equals", "x", "--scale", "0.01",
        stdin="c\nx\ny\nx\n",
    )  # fmt: skip
    assert piped["value"] == 2


@pytest.mark.parametrize("mechanism", ["exponential", "permute-and-flip", "noisy-max"])
def test_selection_from_json_and_csv(run: Any, tmp_path: Path, mechanism: str) -> None:
    named, row, table = (tmp_path / name for name in ("a.json", "b.json", "c.csv"))
    named.write_text('{"tea": 1, "coffee": 5000.5}', encoding="utf-8")
    row.write_text("[1, 2, 9000]", encoding="utf-8")
    table.write_text("tea,9000\ncoffee, 3.5\n", encoding="utf-8")
    spend = ["--sensitivity", "1", "--epsilon", "1", "--by", mechanism]
    for file, value in ((named, "coffee"), (row, 2), (table, "tea")):
        found = answer(run, "exponential", "--scores", str(file), *spend)
        assert found["value"] == value
        assert found["epsilon"] == 1.0
        assert found["interval"] is None
        assert 0 < found["shortfall"] < 50
    piped = answer(run, "exponential", "--scores", "-", *spend, stdin='{"x": 0}')
    assert piped["value"] == "x"
    text = run("release", "exponential", "--scores", str(named), *spend).stdout
    assert text.startswith("coffee\nits score is within ")


def test_randomized_response(run: Any, tmp_path: Path) -> None:
    one = answer(run, "randomized-response", "--answer", "yes", "--two-coin")
    assert one["value"] in (True, False)
    assert one["epsilon"] == pytest.approx(math.log(3))
    assert one["relation"] == "replace"
    sure = ["--epsilon", "500"]
    text = run("release", "randomized-response", "--answer", "no", *sure).stdout
    assert text.splitlines()[0] == "no"
    file = tmp_path / "said.txt"
    file.write_text("a\nb\n\nb \n", encoding="utf-8")
    many = answer(
        run, "randomized-response", "--answers", str(file), "--categories", "a,b,c", *sure
    )
    assert many["value"] == ["a", "b", "b"]
    assert many["interval"][0] == [pytest.approx(1 / 3), pytest.approx(2 / 3), 0.0]
    survey = answer(run, "randomized-response", "--answers", "-", "--two-coin", stdin="yes\n" * 99)
    assert len(survey["value"]) == 99
    assert survey["interval"][1] > 0.5
    lines = run(
        "release", "randomized-response", "--answers", "-", "--two-coin", stdin="yes\nno\n"
    ).stdout.splitlines()
    assert set(lines[:2]) <= {"yes", "no"}
    assert lines[2].startswith("share of each: ")


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_has_examples_on_lines_of_their_own(run: Any, command: list[str]) -> None:
    result = run("release", *command, "--help")
    assert result.exit_code == 0
    start = f"  discreet release {command[0] if command else 'laplace'} --"
    assert any(line.strip().startswith(start.strip()) for line in result.stdout.splitlines())
    assert "\\b" not in result.stdout
    assert "\b" not in result.stdout
    assert all(name in run("release").stdout for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([*LAPLACE, "--epsilon", "0"], "--epsilon = 0: expected a number with 0 < epsilon"),
        ([*LAPLACE, "--scale", "-1"], "--scale = -1: expected a number with 0 < scale"),
        ([*LAPLACE], "--epsilon = none: expected exactly one of epsilon, scale"),
        (
            [*LAPLACE, "--epsilon", "1", "--scale", "1"],
            "--epsilon = 1.0: expected exactly one of epsilon, scale",
        ),
        (
            ["release", "laplace", "--value", "1.5", "--sensitivity", "1", "--epsilon", "1"],
            "--value = 1.5: expected an integer, or --real for real numbers",
        ),
        (
            ["release", "laplace", "--value", "nan", "--real", "--sensitivity", "1"]
            + ["--epsilon", "1"],
            "--value = nan: expected a number, finite",
        ),
        (
            ["release", "laplace", "--value", "1", "--sensitivity", "1.5", "--epsilon", "1"],
            "--sensitivity = 1.5: expected an integer with 1 <= sensitivity",
        ),
        (
            [*LAPLACE, "--epsilon", "1", "--granularity", "1/4"],
            "--granularity = 1/4: expected only with --real",
        ),
        (
            [*LAPLACE, "--epsilon", "1", "--real", "--granularity", "1/3"],
            (
                "--granularity = 1/3: expected a power of two from 2**-1000 to 2**1000, such as "
                "2**-40 or Fraction(1, 1024)"
            ),
        ),
        (
            [*LAPLACE, "--epsilon", "1", "--relation", "swap"],
            "--relation = swap: expected one of add_remove, replace",
        ),
        (
            [*LAPLACE, "--epsilon", "1", "--confidence", "1"],
            "--confidence = 1: expected a number with 0 < confidence < 1",
        ),
        (
            [*LAPLACE, "--epsilon", "1", "--insecure-seed", "x"],
            "--insecure-seed = x: expected an integer such as 10000 or 1e6",
        ),
        (
            ["release", "gaussian", "--value", "1", "--sensitivity", "1", "--epsilon", "1"],
            "--delta = none: expected a number with 0 < delta < 1",
        ),
        (
            ["release", "gaussian", "--value", "1", "--sensitivity", "1", "--epsilon", "2"]
            + ["--delta", "1e-5", "--calibration", "classical"],
            "discreet: the classical Gaussian theorem needs epsilon < 1, not 2.0: use gaussian_mu",
        ),
        (
            ["release", "count", "--file", "nowhere.csv", "--column", "a", "--equals", "b"]
            + ["--epsilon", "1"],
            "--file = nowhere.csv: expected a readable file (No such file or directory)",
        ),
        (
            ["release", "exponential", "--scores", "nowhere.json", "--sensitivity", "1"]
            + ["--epsilon", "1"],
            "--scores = nowhere.json: expected a readable file (No such file or directory)",
        ),
        (
            ["release", "exponential", "--scores", "-", "--sensitivity", "1", "--epsilon", "1"]
            + ["--by", "luck"],
            "--by = luck: expected one of exponential, permute-and-flip, noisy-max",
        ),
        (
            ["release", "randomized-response", "--answer", "maybe", "--two-coin"],
            "--answer = withheld: expected only yes, no",
        ),
        (
            ["release", "randomized-response", "--answer", "yes"],
            "--epsilon = none: expected exactly one of --epsilon and --two-coin",
        ),
        (
            ["release", "randomized-response", "--two-coin"],
            "--answer = none: expected exactly one of --answer and --answers",
        ),
        (
            ["release", "randomized-response", "--answer", "a", "--two-coin"]
            + ["--categories", "a,b"],
            "--categories = a,b: expected no categories with --two-coin",
        ),
    ],
)
def test_a_bad_value_is_one_line(run: Any, arguments: list[str], line: str) -> None:
    result = run(*arguments)
    assert result.exit_code == (4 if "a readable file" in line else 2)
    assert result.stdout == ""
    assert result.stderr == line + "\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "[1, NaN]"),
        ("a.json", "[1, 1e999]"),
        ("a.json", '{"x": "7.25"}'),
        ("a.json", "[true]"),
        ("a.json", "7.25"),
        ("a.json", "{"),
        ("a.csv", "x,7.25\ny\n"),
        ("a.csv", "x,inf\n"),
        ("a.csv", 'x,"7.25'),
    ],
)
def test_wrong_scores_are_refused_without_being_shown(
    run: Any, tmp_path: Path, name: str, text: str
) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    result = run(
        "release", "exponential", "--scores", str(file), "--sensitivity", "1", "--epsilon", "1"
    )
    assert result.exit_code == 2
    assert result.stderr.startswith(f"--scores = {file}: expected ")
    assert result.stderr.count("\n") == 1
    assert "7.25" not in result.stderr


def test_no_scores_and_no_such_column_are_refused(run: Any, people: str, tmp_path: Path) -> None:
    file = tmp_path / "none.json"
    file.write_text("[]", encoding="utf-8")
    spend = ["--sensitivity", "1", "--epsilon", "1"]
    refused = run("release", "exponential", "--scores", str(file), *spend)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("--scores = ")
    refused = run(
        "release", "count", "--file", people, "--column", "age", "--equals", "3", "--epsilon", "1"
    )
    assert refused.stderr == (
        "--column = age: expected one of the names in the first line of the file\n"
    )
    (tmp_path / "latin.csv").write_bytes(b"a\n\xe9\n")
    refused = run(
        "release", "count", "--file", str(tmp_path / "latin.csv"), "--column", "a",
        "--equals", "x", "--epsilon", "1",
    )  # fmt: skip
    assert refused.exit_code == 4
    assert refused.stderr.endswith("expected a text file in UTF-8\n")


def test_an_unknown_option_or_mechanism_is_one_line(run: Any) -> None:
    for arguments in (["release", "lapalce"], [*LAPLACE, "--nope"], ["release", "laplace"]):
        result = run(*arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1
