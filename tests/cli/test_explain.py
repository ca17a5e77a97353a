"""``discreet explain`` (S1)."""

import itertools
import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import mpmath
import pytest

from discreet.mechanisms import bernoulli_parameter_error, laplace_fraction_error
from discreet.privacy import theorems
from discreet.report import draw_explanation


def answer(run: Any, *arguments: str) -> dict[str, Any]:
    result = run("explain", *arguments, "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    document = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(name))
    assert isinstance(document, dict)
    return document


def test_a_pure_guarantee_bounds_annas_belief(run: Any) -> None:
    document = answer(run, "--epsilon", "1", "--prior", "2/5")
    e = math.e
    assert document["posterior_lower"] == pytest.approx(0.4 / (0.4 + e * 0.6), rel=1e-12)
    assert document["posterior_upper"] == pytest.approx(0.4 * e / (0.4 * e + 0.6), rel=1e-12)


def test_with_delta_the_numbers_are_those_of_the_calculus(run: Any) -> None:
    document = answer(run, "--epsilon", "1", "--delta", "1e-6", "--prior", "0.4")
    expected = theorems.explain(1.0, 1e-6, prior=0.4).to_json()
    assert document == {**json.loads(json.dumps(expected)), "picture": None}
    assert document["posterior_upper"] is None


def test_the_text_is_the_sentences_one_a_line(run: Any) -> None:
    result = run("explain", "--epsilon", "1", "--delta", "1e-6", "--prior", "0.4")
    assert result.exit_code == 0
    expected = theorems.explain(1.0, 1e-6, prior=0.4).sentences()
    assert result.stdout.splitlines() == list(expected)


def test_an_epsilon_beyond_the_floats_is_explained(run: Any) -> None:
    assert answer(run, "--epsilon", "1e4")["odds_factor"] is None


def test_png_and_svg_are_what_they_claim_to_be(run: Any, tmp_path: Path) -> None:
    png, svg = tmp_path / "explain.png", tmp_path / "explain.svg"
    common = ["--epsilon", "1", "--delta", "1e-6", "--prior", "0.4"]
    assert answer(run, *common, "--output", str(png))["picture"] == str(png)
    text = run("explain", *common, "--output", str(svg)).stdout
    assert text.splitlines()[-1] == f"picture: {svg}"
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert ET.parse(svg).getroot().tag == "{http://www.w3.org/2000/svg}svg"


EPSILONS, DELTAS, PRIORS = (0.0, 0.1, 8.0, 1e4), (0.0, 0.3), (0.0, 0.05, 0.5, 1.0)
# Every pair of values of two of the three; all triples would be twice as many pictures.
CORNERS = [
    (epsilon, DELTAS[(i + j) % 2], prior)
    for i, epsilon in enumerate(EPSILONS)
    for j, prior in enumerate(PRIORS)
]


def test_the_corners_are_all_pairs() -> None:
    for one, other in itertools.combinations(range(3), 2):
        pairs = set(itertools.product(*((EPSILONS, DELTAS, PRIORS)[k] for k in (one, other))))
        assert {(corner[one], corner[other]) for corner in CORNERS} == pairs


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "delta", "prior"), CORNERS)
def test_every_corner_can_be_drawn(
    tmp_path: Path, epsilon: float, delta: float, prior: float
) -> None:
    place = tmp_path / "a.svg"
    draw_explanation(theorems.explain(epsilon, delta, prior=prior), place)
    assert ET.parse(place).getroot().tag.endswith("svg")


# --- two mechanisms (S11, S12, S13) -----------------------------------------------------------


def test_the_band_is_left_where_the_log_ratio_of_the_densities_says(run: Any) -> None:
    """S12: by the densities themselves, with mpmath; Laplace noise never leaves it."""
    epsilon, delta = 1.0, 1e-5
    found = answer(run, "--epsilon", "1", "--delta", "1e-5", "--mechanism", "noise")
    assert found["laplace_scale"] == 1.0
    stddev = mpmath.mpf(found["gaussian_stddev"])

    def log_ratio(x: float, *, gaussian: bool = True) -> mpmath.mpf:
        if not gaussian:
            return abs(mpmath.mpf(x) - 1) - abs(mpmath.mpf(x))
        return mpmath.log(mpmath.npdf(x, 0, stddev) / mpmath.npdf(x, 1, stddev))

    assert log_ratio(found["leaves_below"]) == pytest.approx(epsilon, rel=1e-9)
    assert log_ratio(found["leaves_above"]) == pytest.approx(-epsilon, rel=1e-9)
    assert log_ratio(found["leaves_below"] - 0.1) > epsilon
    assert all(abs(log_ratio(x, gaussian=False)) <= epsilon for x in (-1e6, -1.0, 0.3, 1e6))
    below, above = (mpmath.ncdf(found[name] / stddev) for name in ("leaves_below", "leaves_above"))
    assert found["outside"] == pytest.approx(float(below + 1 - above), rel=1e-6)
    # The mass beyond the band is more than delta, which counts the excess over e^epsilon alone.
    excess = below - mpmath.exp(epsilon) * mpmath.ncdf((found["leaves_below"] - 1) / stddev)
    assert excess == pytest.approx(delta, rel=1e-3)
    assert excess < found["outside"] / 2


def test_a_share_by_noise_and_by_choice_is_that_of_the_mechanisms(run: Any) -> None:
    found = answer(run, "--epsilon", "0.5", "--mechanism", "fraction")
    at = found["records"].index(1000)
    assert found["laplace"][at] == laplace_fraction_error(500, 500, epsilon=0.5).exact
    assert found["choice"][at] == bernoulli_parameter_error(500, 500, epsilon=0.5).exact
    assert found["laplace_formula"][-1] < found["choice_formula"][-1] / 100


@pytest.mark.parametrize(
    ("words", "option"),
    [("--mechanism noise", "--delta"), ("--mechanism other", "--mechanism")],
)
def test_a_mechanism_that_cannot_be_explained_is_refused(run: Any, words: str, option: str) -> None:
    result = run("explain", "--epsilon", "1", *words.split())
    assert result.exit_code == 2
    assert option in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["noise", "fraction"])
def test_both_pictures_can_be_drawn(run: Any, tmp_path: Path, mechanism: str) -> None:
    place = tmp_path / "a.svg"
    words = ("--epsilon", "1", "--delta", "1e-5", "--mechanism", mechanism)
    assert f"picture: {place}" in run("explain", *words, "--output", str(place)).stdout
    assert ET.parse(place).getroot().tag.endswith("svg")
