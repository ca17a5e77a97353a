"""The pages of a certificate: what they say, and how a browser shows them on a phone."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from discreet.errors import SchemaError
from discreet.privacy import GDP
from discreet.report import annex_page, certificate_page
from discreet.report._charts import accountants_chart, bounds_chart, rates_chart
from discreet.report._drawing import PALETTE, inline_svg
from discreet.report._page import _STYLE, Page
from oracles.browser import (
    SHEET,
    as_printed,
    assert_self_contained,
    measured,
    visible_text,
)
from report.certificates import (
    AT,
    audit,
    facts,
    internal_facts,
    paid_facts,
    public_certificate,
)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return public_certificate(paid_facts(tmp_path_factory.mktemp("paid")), at=AT)


@pytest.fixture(scope="module")
def pages(document: dict[str, Any]) -> dict[str, str]:
    return {
        "public": certificate_page(document).html(),
        "internal": annex_page(internal_facts(), document).html(),
    }


def test_the_public_page_follows_the_pyramid(pages: dict[str, str]) -> None:
    text = visible_text(pages["public"])
    places = [
        text.index(words)
        for words in (
            "PUBLIC",
            "What this means for one person",
            "right at most",
            "Not signed",
            "Tested without finding a fault; that is no approval",
            "1. The guarantee",
            "What any attacker can do at most",
            "Attempts to refute it",
            "2. What undermines it",
            "How it was made",
            "3. How the data were collected and kept",
            "How to check this page",
        )
    ]
    assert places == sorted(places)


def test_the_public_page_shows_the_figures_rounded_the_safe_way(
    document: dict[str, Any], pages: dict[str, str]
) -> None:
    text = visible_text(pages["public"])
    said = re.search(r"ε ≤ ([\d.]+) at δ = 1e-5 for one person added or removed", text)
    assert said is not None
    epsilon = document["guarantee"]["epsilon"]
    assert epsilon <= float(said[1]) <= epsilon * 1.002
    low = re.search(r"audit shows epsilon ≥ ([\d.]+)", text)
    assert low is not None
    assert float(low[1]) <= document["audits"][0]["epsilon_lower"]
    for words in (document["hash"], "entry 1", "how many", "laplace_count", "made up", "naive"):
        assert words in text
    for name in document["guarantee"]["accountants"]:
        assert name in text


@pytest.mark.parametrize(
    ("changes", "words", "kind"),
    [
        ({}, "Claim not audited", "open"),
        ({"audits": (audit(20, guesses=20),)}, "Audit too weak to tell", "open"),
        ({"audits": (audit(120),)}, "Claim violated", "bad"),
        ({"randomness": {"noise": "INSECURE seed 7"}}, "No guarantee", "bad"),
    ],
)
def test_the_headline_is_the_verdict(changes: dict[str, Any], words: str, kind: str) -> None:
    page = certificate_page(public_certificate(facts(**changes), at=AT)).html()
    assert f'class="headline {kind}"' in page
    text = visible_text(page)
    assert words in text
    assert ("Claimed, and not to be relied on" in text) == (kind == "bad")
    assert ("The true epsilon is at most what the accountant allows" in text) == (kind != "bad")
    assert ("protects anybody" in text) == (kind == "bad")
    assert "The true epsilon lies between" not in text
    assert "SERIOUS: No ledger was charged" in text


def test_the_page_begins_with_one_person_and_without_a_symbol(pages: dict[str, str]) -> None:
    text = visible_text(pages["public"])
    start = text[text.index("What this means") : text.index("Not signed")]
    for symbol in ("\u03b5", "\u03b4", "epsilon", "delta", "accountant", "canar", "prior", "%)"):
        assert symbol not in start, symbol
    assert text.index("What this means") < text.index("\u03b5 \u2264")
    assert "your data" in start
    # What "between" would say without a confidence, and what no program does.
    assert "lies between" not in text
    assert "every number" not in text
    for confident in re.findall(r"audit shows at ([\d.]+)\s%", text):
        assert confident == "95"


def test_a_row_is_no_person() -> None:
    text = visible_text(certificate_page(public_certificate(facts(unit="row"), at=AT)).html())
    assert "one row of yours was used" in text
    assert "Whoever owns several rows is protected less" in text


def test_under_replace_the_page_speaks_of_two_records_and_not_of_being_there() -> None:
    """Membership is a question of adding or removing; under replace it is known."""
    text = visible_text(
        certificate_page(
            public_certificate(facts(loss=GDP(mu=0.8, relation="replace")), at=AT)
        ).html()
    )
    assert "which of two possible records of yours was used" in text
    assert "whether your data were used" not in text
    assert "whether one person was used" not in text
    there = visible_text(certificate_page(public_certificate(facts(), at=AT)).html())
    assert "tries to tell whether your data were used" in there
    # What is in the data of somebody who is known to be there is a change of two.
    assert "the line for 2 in the table of groups" in there


@pytest.mark.parametrize("mu", [0.1, 0.77, 0.8001, 1.5, 3.04])
def test_nobody_reads_a_smaller_bound_than_was_computed(mu: float) -> None:
    document = public_certificate(facts(loss=GDP(mu=mu)), at=AT)
    text = visible_text(certificate_page(document).html())
    said = re.search(r"right at most ([\d.]+) times in 100", text)
    assert said is not None
    best = 100 * document["meaning"]["best_accuracy"]
    assert best <= float(said[1]) <= best * 1.01
    belief = next(one for one in document["meaning"]["beliefs"] if one["prior"] == 0.1)
    said = re.search(
        r"10.% likely that .*? used, the release can raise that to ([\d.]+).% at most", text
    )
    assert said is not None
    assert 100 * belief["upper"] <= float(said[1]) <= 101 * belief["upper"]
    axes = accountants_chart(
        document["guarantee"]["accountants"], document["guarantee"]["epsilon"]
    ).axes[0]
    values = axes.lines[0].get_xdata()
    for shown, value in zip(axes.texts, values, strict=True):  # type: ignore[arg-type]
        assert value <= float(shown.get_text()) <= 1.01 * value


def test_a_page_without_a_finite_epsilon_can_be_drawn() -> None:
    text = visible_text(certificate_page(public_certificate(facts(delta=0.0), at=AT)).html())
    assert "No finite epsilon holds at this delta" in text
    assert "VOID" in text


def test_text_from_outside_cannot_become_markup() -> None:
    evil = "<script>alert(1)</script><img src=x onerror=y>"
    made = public_certificate(facts(title=evil, plan={evil: evil}, learner=evil), at=AT)
    page = certificate_page(made).html()
    assert "<script>alert" not in page
    assert "<img" not in page
    assert_self_contained(page)


def test_pages_are_drawn_from_valid_documents_only(document: dict[str, Any]) -> None:
    changed = copy.deepcopy(document)
    changed["training_accuracy"] = 1.0
    with pytest.raises(SchemaError, match="training_accuracy"):
        certificate_page(changed)
    with pytest.raises(SchemaError, match="training_accuracy"):
        annex_page(internal_facts(), changed)


def test_the_annex_says_that_it_is_internal_and_who_is_exposed(
    document: dict[str, Any], pages: dict[str, str]
) -> None:
    text = visible_text(pages["internal"])
    assert "INTERNAL unsafe to publish" in text
    assert pages["internal"].index('class="mark internal"') < pages["internal"].index("<h1>")
    assert "Attacks within the certificate" in text
    assert document["hash"] in text
    best = internal_facts().attacked[0].results[0].most_exposed(1)[0]
    assert f" {best.record} " in text
    beyond = visible_text(annex_page(internal_facts(shift=3.0), document).html())
    assert "Attacks beyond the certificate" in beyond


def test_pictures_show_the_document_in_colours_for_the_colour_blind(
    document: dict[str, Any],
) -> None:
    promise = document["guarantee"]
    made = [
        bounds_chart(promise["epsilon"], document["audits"]),
        accountants_chart(promise["accountants"], promise["epsilon"]),
        rates_chart(document["meaning"]["rates"]),
    ]
    claimed, shown, more = (bars[0] for bars in made[0].axes[0].containers)
    assert claimed.get_width() == promise["epsilon"]
    assert shown.get_width() == document["audits"][0]["epsilon_lower"]
    assert more.get_x() + more.get_width() == pytest.approx(document["audits"][0]["ceiling"])
    # What an audit showed and what it could have shown differ by a pattern, not by colour alone.
    assert more.get_hatch()
    assert not shown.get_hatch()
    limits = dict(zip(*made[2].axes[0].lines[0].get_data(), strict=True))
    assert limits == {one["fpr"]: one["tpr"] for one in document["meaning"]["rates"]} | {1.0: 1.0}
    drawn = "".join(inline_svg(figure, salt="x") for figure in made).upper()
    greys = {"#E4E4E4", "#6E6E6E", "#9A9A9A", "#FFFFFF"}
    assert set(re.findall(r"#[0-9A-F]{6}", f"{drawn}{_STYLE}")) - greys <= set(PALETTE)


def test_every_figure_of_a_picture_is_in_a_table(
    document: dict[str, Any], pages: dict[str, str]
) -> None:
    text = visible_text(pages["public"])
    for one in document["meaning"]["rates"]:
        assert re.search(rf"\b{100 * one['fpr']:g} % [\d.]+ %", text.replace("\u00a0", " "))


def test_pages_are_small_and_carry_no_script(pages: dict[str, str]) -> None:
    """The page of 0.1 had 4.85 MB, 4.8 of them a script."""
    assert len(pages["public"]) < 120_000
    assert len(pages["internal"]) < 120_000
    assert all("<script" not in page.lower() for page in pages.values())


@pytest.mark.parametrize("part", ["public", "internal"])
def test_a_page_is_self_contained(part: str, pages: dict[str, str]) -> None:
    assert_self_contained(pages[part])


@pytest.mark.slow
@pytest.mark.parametrize("part", ["public", "internal"])
def test_a_phone_shows_the_whole_page(part: str, pages: dict[str, str], tmp_path: Path) -> None:
    page = pages[part]
    seen = measured(page, tmp_path)
    assert seen["width"] == 390
    assert seen["content"] <= 390
    assert seen["pictures"] == page.count('<div class="picture"')
    assert seen["drawn"] == seen["pictures"] > 0
    assert seen["widest"] <= 390
    assert seen["reaches"] <= 390
    assert seen["cut"] == []
    assert seen["fetched"] == 0
    assert seen["text"] > 1000


@pytest.mark.slow
@pytest.mark.parametrize("part", ["public", "internal"])
def test_a_printed_sheet_holds_everything(part: str, pages: dict[str, str], tmp_path: Path) -> None:
    """On paper nothing can be scrolled: no table is wider than the sheet."""
    page = as_printed(pages[part])
    seen = measured(page, tmp_path, width=SHEET)
    assert seen["content"] <= SHEET
    assert max(seen["reaches"], seen["tables"], seen["widest"]) <= SHEET
    assert seen["cut"] == []
    sheets = re.search(r"@bottom-left \{ content: \"(.*?)\"", page)
    assert sheets is not None
    assert (sheets[1] == "INTERNAL: unsafe to publish") == (part == "internal")


@pytest.mark.slow
def test_the_browser_check_sees_a_page_that_is_too_wide(tmp_path: Path) -> None:
    page = "<main><p>x</p><div style='width:900px'>wide</div></main>"
    seen = measured(page, tmp_path)
    assert seen["content"] > 390
    assert seen["reaches"] > 390
    figure = rates_chart([{"fpr": 0.01, "tpr": 0.1}])
    long = 4 * "a title that no telephone is wide enough for "
    figure.axes[0].set_xlabel(long.strip())
    page_with = Page("long", internal=False).picture(figure, caption="x").html()
    seen = measured(page_with, tmp_path)
    assert seen["cut"] == [long.strip()]
    with pytest.raises(AssertionError):
        assert_self_contained(page + "<link rel=stylesheet href='https://example.org/a.css'>")
