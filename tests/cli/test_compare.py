"""``discreet compare``: the lectures' figure (S5, S7; Abadi et al. 2016)."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import mpmath
import pytest

from discreet.privacy import Gaussian
from discreet.report import AccountantComparison, draw_comparison, spread_labels
from discreet.report._command_charts import spaced_steps


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


SMALL = ["--points", "3", "--max-steps", "100"]


def answer(run: Any, *arguments: str) -> dict[str, Any]:
    result = run("compare", *arguments, "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    document = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(name))
    assert isinstance(document, dict)
    return document


def test_the_defaults_are_those_of_the_lectures_figure(run: Any) -> None:
    document = answer(run, "--points", "1")
    shown = [document[name] for name in ("noise_multiplier", "rate", "delta")]
    assert shown == [4.0, 0.01, 1e-5]
    assert document["steps"] == [40_000]


def moments_by_closed_form(steps: int) -> mpmath.mpf:
    """S7 at integer orders with 40 digits: the sum for E2 at rate 0.01, sigma 4, delta 1e-5."""
    with mpmath.workdps(40):
        rate, sigma = mpmath.mpf("0.01"), mpmath.mpf(4)

        def moment(order: int) -> mpmath.mpf:
            n = order + 1
            return mpmath.fsum(
                mpmath.binomial(n, k)
                * (1 - rate) ** (n - k)
                * rate**k
                * mpmath.exp((k * k - k) / (2 * sigma**2))
                for k in range(n + 1)
            )

        orders = range(1, 65)
        return min((steps * mpmath.log(moment(o)) + mpmath.log(10**5)) / o for o in orders)


def test_the_moments_line_is_the_closed_form_and_lies_where_the_figure_has_it(run: Any) -> None:
    for steps in (10_000, 40_000):
        epsilons = answer(run, "--points", "1", "--max-steps", str(steps))["epsilons"]
        # Real orders lie a little below the best integer order of the paper's figure.
        exact = float(moments_by_closed_form(steps))
        assert exact * 0.99 <= epsilons["moments"][0] <= exact * (1 + 1e-9)
        assert epsilons["pld"][0] < epsilons["rdp"][0] < epsilons["moments"][0]
        assert 10 * epsilons["moments"][0] < epsilons["advanced"][0] < epsilons["naive"][0]


def test_every_value_is_the_calculus_own(run: Any) -> None:
    document = answer(run, *SMALL)
    assert document["steps"] == [1, 10, 100]
    step = Gaussian(4.0).poisson(rate=0.01)
    for name, values in document["epsilons"].items():
        for steps, value in zip(document["steps"], values, strict=True):
            expected = (steps * step).epsilon(delta=1e-5, accountant=name)
            assert value == (expected if math.isfinite(expected) else None)


def test_epsilon_grows_with_the_steps(run: Any) -> None:
    document = answer(run, "--points", "6", "--max-steps", "2000")
    assert "pld" in document["epsilons"]
    for values in document["epsilons"].values():
        # Brackets have a width, so neighbours may cross by as much.
        assert all(a <= b * 1.002 for a, b in pairwise(values))


def test_the_table_has_a_row_for_each_number_of_steps(run: Any) -> None:
    document = answer(run, *SMALL)
    lines = run("compare", *SMALL).stdout.splitlines()
    heading = next(line for line in lines if line.split()[:1] == ["steps"]).split()
    assert heading == ["steps", *document["epsilons"]]
    rows = [line.split() for line in lines if line.split() and line.split()[0].isdigit()]
    assert [int(row[0]) for row in rows] == document["steps"]
    for i, row in enumerate(rows):
        for name, text in zip(heading[1:], row[1:], strict=True):
            assert float(text) >= document["epsilons"][name][i]


@pytest.mark.parametrize(
    ("last", "points"), [(1, 1), (1, 20), (7, 100), (40_000, 20), (10**7, 1000), (2, 2)]
)
def test_the_grid_is_increasing_and_ends_where_asked(last: int, points: int) -> None:
    grid = spaced_steps(last, points)
    assert grid[-1] == last
    assert grid == sorted(set(grid))
    assert len(grid) <= points
    assert grid[0] == (1 if points > 1 else last)


def test_labels_are_moved_apart_and_no_further_than_needed() -> None:
    assert spread_labels([0.1, 0.5, 0.9], gap=0.1) == [0.1, 0.5, 0.9]
    crowded = spread_labels([0.3, 0.3, 0.3, 0.31], gap=0.05)
    assert all(b - a >= 0.05 - 1e-9 for a, b in pairwise(crowded))
    assert sum(crowded) == pytest.approx(1.21)


@pytest.mark.slow
def test_png_and_svg_are_what_they_claim_to_be(run: Any, tmp_path: Path) -> None:
    png, svg = tmp_path / "compare.png", tmp_path / "compare.SVG"
    assert answer(run, *SMALL, "--output", str(png))["picture"] == str(png)
    assert f"picture: {svg}" in run("compare", *SMALL, "--output", str(svg)).stdout
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert ET.parse(svg).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert names(tmp_path) == ["compare.SVG", "compare.png"]


def test_the_same_comparison_is_the_same_picture(tmp_path: Path) -> None:
    comparison = AccountantComparison(
        noise_multiplier=4.0,
        rate=0.01,
        delta=1e-5,
        steps=[1, 10, 100],
        # A zero and an infinity cannot be drawn on a logarithmic axis; the rest can.
        epsilons={"naive": [0.1, 1.0, math.inf], "moments": [0.0, 0.1, 0.2], "pld": [0.0] * 3},
        reasons={"zcdp": "no amplification is known"},
    )
    for suffix in ("png", "svg"):
        first, second = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
        draw_comparison(comparison, first)
        draw_comparison(comparison, second)
        assert first.read_bytes() == second.read_bytes()
        assert first.stat().st_size > 1000


def test_a_failure_while_drawing_leaves_nothing_behind(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "compare.png"
    target.write_bytes(b"old")

    def half_a_picture(_: AccountantComparison, place: Path) -> None:
        place.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("discreet.report.draw_comparison", half_a_picture)
    result = run("compare", *SMALL, "--output", str(target))
    assert result.exit_code == 4
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert names(tmp_path) == ["compare.png"]
    assert target.read_bytes() == b"old"
