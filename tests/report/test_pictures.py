"""Pictures are figures of matplotlib, which may be changed before they are saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet.data import Real, Schema
from discreet.learn import PrivateAdditiveClassifier, PrivateDecisionTree, describe
from discreet.local import FrequencyOracle, compare_deployments
from discreet.privacy import theorems
from discreet.report import (
    FractionComparison,
    NoiseComparison,
    compare_accountants,
    draw_comparison,
    draw_deployments,
    draw_description,
    draw_explanation,
    draw_fractions,
    draw_model,
    draw_noise,
)

ROWS = np.random.default_rng(0).uniform(0, 1, (200, 2))
STATED: dict[str, Any] = {"classes": [0, 1], "bounds": (0.0, 1.0)}


def additive() -> Any:
    model = PrivateAdditiveClassifier(expected_rows=200, **STATED)
    return draw_model(model.fit(ROWS, ROWS[:, 0] > 0.5))


def described() -> Any:
    schema = Schema({"a": Real(0, 1)}, expected_rows=200)
    return draw_description(describe({"a": ROWS[:, 0]}, schema, epsilon=1.0, delta=1e-4))


def deployed() -> Any:
    oracle = FrequencyOracle(4, epsilon=1)
    return draw_deployments(oracle, compare_deployments(oracle, 100), 100)


@pytest.mark.parametrize(
    "draw",
    [
        additive,
        lambda: draw_model(PrivateDecisionTree(**STATED, depth=1).fit(ROWS, ROWS[:, 0] > 0.5)),
        described,
        deployed,
        lambda: draw_comparison(compare_accountants(2.0, 0.1, delta=1e-5, max_steps=10, points=2)),
        lambda: draw_explanation(theorems.explain(1.0, 1e-5, prior=0.5)),
        lambda: draw_noise(NoiseComparison.at(1.0, 1e-5)),
        lambda: draw_fractions(FractionComparison.at(1.0)),
    ],
)
def test_a_drawing_returns_a_figure_that_can_be_changed(
    draw: Callable[[], Any], tmp_path: Path
) -> None:
    figure = draw()
    before = figure._repr_png_()
    assert before.startswith(b"\x89PNG")
    figure.axes[0].set_title("a title of my own")
    assert figure._repr_png_() != before
    figure.savefig(tmp_path / "mine.png")
