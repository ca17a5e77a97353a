"""What a notebook shows of an object: a small table, escaped, that says the essential."""

from __future__ import annotations

from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from discreet._html import html_table
from discreet._rounding import at_most
from discreet.attacks import Finding
from discreet.certificate import Certificate
from discreet.curator import Count, CuratedDataset, Curator
from discreet.data import Categorical, Schema
from discreet.ledger import Ledger
from discreet.privacy import Bounds, Gaussian, PureDP


class Cells(HTMLParser):
    """The texts of a document, and a check that its elements are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag in {"table", "caption", "tr", "th", "td"}
        assert not attrs
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shown(value: Any) -> str:
    return " | ".join(Cells(value._repr_html_()).texts)


@pytest.mark.parametrize("evil", ["<script>", "a & b", '"quoted"', "</td>"])
def test_every_text_is_escaped(evil: str) -> None:
    assert Cells(html_table(evil, [(evil, evil)])).texts == [evil] * 3
    certificate = Certificate.of(PureDP(1.0), delta=0.0, learner=evil, unit=evil)
    assert evil in shown(certificate)


def test_long_texts_are_cut() -> None:
    assert len(html_table("x", [("row", "y" * 10_000)])) < 1000


def test_losses_brackets_and_certificates() -> None:
    loss = 10 * Gaussian(5.0).poisson(rate=0.1)
    assert repr(loss) in shown(loss)
    assert "add_remove" in shown(loss)
    bounds = loss.epsilon_bounds(delta=1e-5)
    assert f"at most | {at_most(bounds.upper, digits=6)}" in shown(bounds)
    assert "at least | 0.333333 | at most | 0.333334" in shown(Bounds(1 / 3, 1 / 3))
    certificate = Certificate.of(loss, delta=1e-5, learner="mine", randomness={"noise": "INSECURE"})
    text = shown(certificate)
    assert f"epsilon, at most | {at_most(certificate.epsilon, digits=6)}" in text
    third = Certificate.of(PureDP(1.000001001), delta=0.0, learner="mine")
    assert "epsilon, at most | 1.00001" in shown(third)
    assert certificate.warnings
    assert all(warning[:500] in text for warning in certificate.warnings)


def test_findings() -> None:
    finding = Finding("yeom", "members found", 0.3, 0.2, 0.4, 0.95, 0.25, 100)
    assert "leaks | not shown" in shown(finding)
    assert "0.300, between 0.200 and 0.400" in shown(finding)


def test_ledgers_quotes_and_answers(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "study.ledger") as ledger:
        ledger.create_dataset("visits", epsilon=2, unit="row")
        schema = Schema({"ill": Categorical(["no", "yes"])}, expected_rows=100)
        held = CuratedDataset("visits", schema=schema, source={"ill": ["no", "yes"] * 9})
        with closing(held) as data:
            desk = Curator(ledger, {"visits": data})
            query = Count(epsilon="1/2")
            quote = desk.quote("visits", query)
            assert "epsilon | 1/2" in shown(quote)
            assert "answered before | no" in shown(quote)
            answer = desk.ask("visits", query, analyst="ann")
            assert f"value | {answer.value} |" in shown(answer)
            assert "charged | now" in shown(answer)
            assert "charged | before" in shown(answer.again())
        assert "25% of epsilon 2, delta 0 used by 1 charges" in shown(ledger)
        assert "one | row" in shown(ledger.show("visits"))
