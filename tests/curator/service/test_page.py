"""The web page in a real browser: asking, owning, by keyboard, on a phone, under its policy."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from curator.service.studies import SCHEMA, Local, Study, in_process, make_study, people, write_rows
from discreet.ledger import Ledger, check_receipt
from oracles.browser import CHROMIUM

PATIENCE = 30_000


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return make_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def service(study: Study) -> Iterator[Local]:
    with in_process(study, quantum=0.01) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.fail("no browser can be had (apt install chromium)")
    with sync_playwright() as driver:
        found = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield found
        found.close()


@pytest.fixture
def page(browser: Browser, service: Local) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    context.set_default_timeout(PATIENCE)
    opened = context.new_page()
    faults: list[str] = []
    elsewhere: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on(
        "console",
        lambda message: faults.append(message.text) if message.type == "error" else None,
    )
    opened.on(
        "response",
        lambda response: (
            None
            if response.url.startswith((service.url, "data:", "blob:"))
            else elsewhere.append(response.url)
        ),
    )
    opened.goto(service.url)
    yield opened
    context.close()
    expected = getattr(opened, "expected_faults", ())
    faults = [fault for fault in faults if not any(text in fault for text in expected)]
    refusals = (
        "status of 4",
        "status of 5",
    )  # what the service said no to is logged by the browser
    assert [fault for fault in faults if not any(text in fault for text in refusals)] == []
    assert elsewhere == []


def enter(page: Page, token: str) -> None:
    page.get_by_label("Your token").fill(token)
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_label("Dataset", exact=True).first).to_be_visible(timeout=PATIENCE)


def ready(page: Page) -> Any:
    button = page.locator("#ask-button")
    expect(button).to_be_enabled(timeout=PATIENCE)
    return button


def test_cost_and_error_come_before_the_answer(page: Page, study: Study, tmp_path: Path) -> None:
    enter(page, study.tokens["ann"])
    with Ledger.open(study.place, read_only=True) as ledger:
        before = ledger.show("people").budget.charges
    page.get_by_label("Question", exact=True).select_option("group_by")
    page.get_by_label("Epsilon to spend").fill("1/2")
    button = ready(page)
    expect(page.locator("#quote")).to_contain_text("costs epsilon 1/2")
    expect(page.locator("#quote")).to_contain_text("count of each group: ±")
    expect(page.locator("#quote")).to_contain_text("of the rows kept: at most 1 of each person")
    with Ledger.open(study.place, read_only=True) as ledger:
        assert ledger.show("people").budget.charges == before
    button.click()
    answer = page.locator(".answer").first
    expect(answer.locator("svg .error")).to_have_count(3, timeout=PATIENCE)
    expect(answer.locator("tbody tr")).to_have_count(3)
    expect(answer.locator(".about")).to_contain_text("Of the rows kept: at most 1 of each person")
    assert "Oslo" in (answer.locator("svg").get_attribute("aria-label") or "")
    with page.expect_download() as waiting:
        answer.get_by_role("button", name="Download the receipt of entry").click()
    kept = tmp_path / "receipt.json"
    waiting.value.save_as(kept)
    assert check_receipt(json.loads(kept.read_text())) == []
    expect(page.locator("#ask-button")).to_contain_text("free", timeout=PATIENCE)
    page.locator("#receipts").set_input_files(str(kept))
    page.get_by_role("button", name="Verify the ledger").click()
    expect(page.locator("#verdict")).to_contain_text("Everything fits", timeout=PATIENCE)
    page.get_by_text("History", exact=True).click()
    expect(page.locator("#history svg")).to_be_visible(timeout=PATIENCE)
    expect(page.locator("#history tbody tr").first).to_contain_text("group_by")
    forged = json.loads(kept.read_text())
    forged["hash"] = "0" * 64
    kept.write_text(json.dumps(forged))
    page.locator("#receipts").set_input_files(str(kept))
    page.get_by_role("button", name="Verify the ledger").click()
    expect(page.locator("#verdict")).to_contain_text("does not fit", timeout=PATIENCE)


@pytest.mark.parametrize(
    "kind",
    ["count", "count_persons", "sum", "mean", "variance", "histogram", "quantile", "top_k", "json"],
)
def test_every_question_of_the_builder_is_answered(page: Page, study: Study, kind: str) -> None:
    enter(page, study.tokens["ann"])
    page.get_by_label("Question", exact=True).select_option(kind)
    ready(page).click()
    expect(page.locator(".answer")).to_have_count(1, timeout=PATIENCE)
    assert page.locator(".answer h3").inner_text()


def test_the_page_is_used_by_keyboard_alone(page: Page, study: Study) -> None:
    press = page.keyboard.press

    def focused() -> str:
        return str(
            page.evaluate(
                "(document.activeElement.id || document.activeElement.textContent || '').trim()"
            )
        )

    def tab_to(wanted: str) -> None:
        for _ in range(40):
            press("Tab")
            if focused() == wanted:
                return
        raise AssertionError(f"{wanted} cannot be reached by Tab; last was {focused()}")

    tab_to("token")
    page.keyboard.type(study.tokens["bob"])
    press("Enter")
    expect(page.locator("#dataset")).to_be_focused(timeout=PATIENCE)
    expect(page.locator("#ask-button")).to_be_enabled(timeout=PATIENCE)
    tab_to(str(page.get_by_label("Question", exact=True).get_attribute("id")))
    page.keyboard.type("Mean")
    expect(page.get_by_label("Of column")).to_be_visible()
    tab_to(str(page.get_by_label("Epsilon to spend").get_attribute("id")))
    press("Control+A")
    page.keyboard.type("3/10")
    tab_to("Add a condition")
    press("Enter")
    page.keyboard.type("city")  # focus is on the column of the new condition
    press("Tab")
    press("Tab")
    page.keyboard.type("Oslo, Bodo")
    expect(page.locator("#ask-button")).to_have_text("Ask, spending epsilon 3/10", timeout=PATIENCE)
    tab_to("ask-button")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    press("Enter")
    heading = page.locator(".answer h3")
    expect(heading).to_be_focused(timeout=PATIENCE)
    expect(heading).to_have_text("Mean of age with conditions")


def test_owners_set_up_a_study_on_the_page(page: Page, study: Study) -> None:
    write_rows(study.folder / "new.csv", people(30))
    enter(page, study.tokens["owner"])
    expect(page.get_by_role("heading", name="Owner")).to_be_visible()
    expect(page.locator("#ask")).to_be_hidden()
    form = page.locator("form", has_text="Serve a dataset")
    form.get_by_label("Name").fill("fresh")
    form.get_by_label("File").fill("new.csv")
    form.get_by_label("Epsilon").fill("2")
    form.get_by_label("Schema (TOML)").fill(SCHEMA.to_toml())
    form.get_by_role("button").click()
    expect(page.locator("#status")).to_have_text("fresh is served.", timeout=PATIENCE)
    nasty = "<img src=x onerror=alert(1)>"
    form = page.locator("form", has_text="Enter an analyst")
    form.get_by_label("Name").fill(nasty)
    form.get_by_role("button").click()
    expect(page.locator("#status")).to_contain_text("is an analyst now", timeout=PATIENCE)
    form = page.locator("form", has_text="Give a budget")
    form.get_by_label("Dataset").select_option("fresh")
    form.get_by_label("Analyst").select_option(nasty)
    form.get_by_label("Epsilon").fill("1/2")
    form.get_by_role("button").click()
    expect(page.locator("#status")).to_contain_text("has a budget for fresh", timeout=PATIENCE)
    form = page.locator("form", has_text="Make a token")
    form.get_by_label("For", exact=True).select_option(nasty)
    form.get_by_label("Opens").select_option("fresh")
    form.get_by_role("button").click()
    secret = page.locator("#new-token .secret")
    expect(secret).to_contain_text("dsc_", timeout=PATIENCE)
    text = secret.inner_text()
    assert page.locator("img").count() == 0  # what looks like markup is text
    page.get_by_role("button", name="Forget the token").click()
    expect(page.locator("#login")).to_be_visible(timeout=PATIENCE)
    enter(page, text)
    expect(page.locator("#who")).to_contain_text(nasty)
    ready(page).click()
    expect(page.locator(".answer")).to_have_count(1, timeout=PATIENCE)
    with Ledger.open(study.place, read_only=True) as ledger:
        assert ledger.remaining("fresh", analyst=nasty).charges == 1


def test_refusals_are_said_aloud(page: Page, study: Study) -> None:
    page.get_by_label("Your token").fill("dsc_wrong")
    page.get_by_role("button", name="Open").click()
    expect(page.locator("#status")).to_contain_text("not valid", timeout=PATIENCE)
    assert page.locator("#status").get_attribute("aria-live") == "polite"
    enter(page, study.tokens["ann"])
    page.get_by_label("Epsilon to spend").fill("nothing")
    expect(page.locator("#quote .bad")).to_be_visible(timeout=PATIENCE)
    expect(page.locator("#ask-button")).to_be_disabled()
    page.get_by_label("Epsilon to spend").fill("49")
    ready(page).click()
    expect(page.locator(".answer").or_(page.locator("#status.bad")).first).to_be_visible(
        timeout=PATIENCE
    )


@pytest.mark.parametrize("holder", ["bob", "owner"])
def test_everything_fits_on_a_phone_and_has_a_name(page: Page, study: Study, holder: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    enter(page, study.tokens[holder])
    page.wait_for_timeout(500)
    for details in page.locator("details").all():
        if details.is_visible():
            details.locator("summary").first.click()
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    unnamed = page.evaluate(
        """[...document.querySelectorAll("input, select, textarea, button, svg")]
        .filter((one) => one.offsetParent !== null || one.tagName === "svg")
        .filter((one) => !(one.labels && one.labels.length) && !one.getAttribute("aria-label")
          && !(one.textContent || "").trim())
        .map((one) => one.outerHTML)"""
    )
    assert unnamed == []


def test_the_policy_holds_in_the_browser(page: Page, service: Local) -> None:
    page.expected_faults = ("Content Security Policy", "Content-Security-Policy")  # type: ignore[attr-defined]
    blocked = page.evaluate(
        """async () => {
          const seen = [];
          document.addEventListener("securitypolicyviolation",
            (event) => seen.push(event.effectiveDirective));
          const script = document.createElement("script");
          script.textContent = "window.injected = true";
          document.body.append(script);
          const image = document.createElement("img");
          image.src = "http://127.0.0.1:9/x.png";
          document.body.append(image);
          const style = document.createElement("div");
          style.setAttribute("style", "color: red");
          document.body.append(style);
          await new Promise((done) => setTimeout(done, 300));
          return {seen, injected: window.injected === true};
        }"""
    )
    assert blocked["injected"] is False
    assert {"img-src", "script-src-elem", "style-src-attr"} <= set(blocked["seen"])
