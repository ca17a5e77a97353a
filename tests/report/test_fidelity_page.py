"""S33: the page of a synthetic model shows what was paid for; unpaid figures make it internal."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet.attacks import Proportion
from discreet.certificate import PaidAnswer
from discreet.data import Categorical, Integer, Schema
from discreet.errors import DiscreetError, InvalidValue
from discreet.ledger import Ledger
from discreet.report import write_fidelity_page
from discreet.synth import OneShot, SyntheticModel, judge_classifier
from oracles.browser import visible_text

SCHEMA = Schema(
    {
        "age": Integer(0, 99),
        "smokes": Categorical(["no", "yes"], other="no"),
        "ill": Categorical(["no", "yes"], other="no"),
    },
    target="ill",
    expected_rows=1_000,
)


def rows(count: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 100, count)
    answers = np.array(["no", "yes"])
    return {
        "age": age,
        "smokes": answers[(rng.random(count) < 0.3).astype(int)],
        "ill": answers[(age > 50).astype(int)],
    }


MODEL = OneShot(evaluations=100).plan(SCHEMA, epsilon=4, delta=1e-6).run(rows(1_000, 1))


EXACT: Any = judge_classifier(MODEL, rows(400, 2))


def page_of(path: Path, **figures: Any) -> str:
    return visible_text(write_fidelity_page(MODEL, path, **figures).read_text(encoding="utf-8"))


def test_the_public_page_needs_no_private_row(tmp_path: Path) -> None:
    """It is the same, to the byte, from the released file alone, and names no similarity."""
    first = write_fidelity_page(MODEL, tmp_path / "a.html").read_bytes()
    MODEL.save(tmp_path / "model.npz")
    released = SyntheticModel.load(tmp_path / "model.npz")
    assert write_fidelity_page(released, tmp_path / "b.html").read_bytes() == first
    text = page_of(tmp_path / "c.html")
    assert "of 1000" in text
    assert "INTERNAL" not in text.upper()
    for word in ("similar", "nearest", "closest", "DCR", "real rows"):
        assert word.lower() not in text.lower()


def test_unpaid_figures_make_the_page_internal(tmp_path: Path) -> None:
    exact = EXACT
    assert isinstance(exact, Proportion)
    assert exact.trials == 400
    assert exact.share > 0.9
    text = page_of(tmp_path / "page.html", internal={"accuracy of boosted trees": exact})
    assert "internal" in text.lower()
    assert "not paid for" in text


def test_a_paid_figure_is_charged_and_public(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.create_dataset("outside", epsilon="1", unit="row")
        paid = judge_classifier(
            MODEL, rows(400, 2), epsilon=0.5, rows=400, ledger=ledger, dataset="outside"
        )
        assert isinstance(paid, PaidAnswer)
        assert len(ledger.history("outside")) == 1
        # Noise of scale 2 exceeds 60 with probability e^-30.
        assert abs(paid.value - EXACT.share) < 60 / 400 + 0.02
        # What does not fit is refused before anything is charged.
        for held_out, count in ((rows(400, 2), None), ({"age": [1]}, 400)):
            with pytest.raises(DiscreetError):
                judge_classifier(
                    *(MODEL, held_out), epsilon=0.5, rows=count, ledger=ledger, dataset="outside"
                )
        assert len(ledger.history("outside")) == 1
    text = page_of(tmp_path / "page.html", answers=[paid])
    assert "internal" not in text.lower()
    assert "epsilon 0.5" in text


def test_an_empty_table_costs_the_same_and_an_exact_figure_needs_rows() -> None:
    paid = judge_classifier(MODEL, rows(0, 2), epsilon=0.5, rows=400)
    assert isinstance(paid, PaidAnswer)
    with pytest.raises(InvalidValue, match="held_out"):
        judge_classifier(MODEL, rows(0, 2))
