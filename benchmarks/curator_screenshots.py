"""Pictures of the web page for the documentation, taken in headless Chromium.

    python benchmarks/curator_screenshots.py

Serves a made-up clinic, asks a few questions as an analyst, looks at it as an owner and on a
phone, and writes docs/images/curator-*.png.
"""

import csv
import datetime as dt
import random
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from curator_study import serving
from discreet.curator.service import Registry, give_budget, open_dataset
from discreet.data import Boolean, Categorical, Date, Integer, Real, Schema
from discreet.ledger import Ledger

IMAGES = Path(__file__).parents[1] / "docs" / "images"
TOWNS = ("Ashford", "Brook", "Crosby", "Dunmore", "Easton")
SCHEMA = Schema(
    {
        "age": Integer(18, 90),
        "cost": Real(0, 20_000),
        "town": Categorical(list(TOWNS), other="Ashford"),
        "smokes": Boolean(),
        "visited": Date(dt.date(2024, 1, 1), dt.date(2025, 12, 31)),
    },
    person="patient",
    rows_per_person=2,
    expected_rows=6000,
)


def write_clinic(path: Path) -> None:
    chance = random.Random(3)
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("patient", *SCHEMA.columns))
        for number in range(6000):
            age = min(90, max(18, int(chance.gauss(52, 17))))
            town = chance.choices(TOWNS, (8, 5, 3, 2, 1))[0]
            day = dt.date(2024, 1, 1) + dt.timedelta(days=chance.randrange(730))
            cost = round(chance.lognormvariate(6.5, 0.8), 2)
            writer.writerow((number // 2, age, cost, town, chance.random() < 0.2, day))


def study(folder: Path) -> dict[str, str]:
    write_clinic(folder / "visits.csv")
    tokens = {}
    with Ledger.create(folder / "study.ledger") as ledger:
        registry = Registry(ledger)
        open_dataset(
            ledger,
            registry,
            "clinic",
            schema=SCHEMA,
            source=str(folder / "visits.csv"),
            epsilon=4,
        ).close()
        for name in ("ann", "bob"):
            registry.add_analyst(name)
            give_budget(ledger, registry, "clinic", analyst=name, epsilon=2)
            tokens[name] = registry.issue("analyst", analyst=name, datasets=["clinic"])[0]
        tokens["owner"] = registry.issue("owner", note="data protection")[0]
    return tokens


def enter(page: Page, url: str, token: str) -> None:
    page.goto(url)
    page.get_by_label("Your token").fill(token)
    page.get_by_role("button", name="Open").click()
    page.locator("#gauges .gauge").first.wait_for()


def ask(page: Page, kind: str, epsilon: str, **fields: str) -> None:
    before = page.locator(".answer").count()
    page.get_by_label("Question", exact=True).select_option(kind)
    page.get_by_label("Epsilon to spend").fill(epsilon)
    for label, value in fields.items():
        page.get_by_label(label.replace("_", " "), exact=True).select_option(value)
    page.wait_for_timeout(600)
    page.locator("#ask-button:not([disabled])").click()
    page.locator(".answer").nth(before).wait_for()
    page.wait_for_timeout(400)


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        folder = Path(name)
        tokens = study(folder)
        with serving(folder, "--quantum", "0.05", "--data", str(folder)) as (port, _):
            url = f"http://127.0.0.1:{port}"
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 960, "height": 1000})
            enter(page, url, tokens["ann"])
            ask(page, "count", "1/20")
            ask(page, "mean", "1/10")
            ask(page, "group_by", "1/5", By_column="town")
            page.get_by_label("Question", exact=True).select_option("histogram")
            page.get_by_label("Epsilon to spend").fill("1/4")
            page.wait_for_timeout(900)
            page.get_by_text("History", exact=True).click()
            page.wait_for_timeout(500)
            page.evaluate("document.activeElement.blur()")
            page.evaluate("window.scrollTo(0, 0)")
            page.locator("#history table").evaluate("(table) => table.closest('.wide').remove()")
            page.screenshot(path=IMAGES / "curator-ask.png", clip=_box(page, "main", "#ask"))
            page.locator(".answer").first.screenshot(path=IMAGES / "curator-answer.png")
            page.close()
            page = browser.new_page(viewport={"width": 960, "height": 1000})
            enter(page, url, tokens["owner"])
            page.locator("#owner form").first.wait_for()
            page.wait_for_timeout(400)
            page.evaluate("document.activeElement.blur()")
            page.locator("#owner").screenshot(path=IMAGES / "curator-owner.png")
            page.close()
            page = browser.new_page(viewport={"width": 390, "height": 844}, device_scale_factor=2)
            enter(page, url, tokens["ann"])
            ask(page, "group_by", "1/5", By_column="town")
            page.locator(".answer h3").first.scroll_into_view_if_needed()
            page.locator(".answer").first.evaluate("(box) => box.scrollIntoView()")
            page.screenshot(path=IMAGES / "curator-phone.png")
            browser.close()


def _box(page: Page, top: str, bottom: str) -> dict[str, float]:
    page.set_viewport_size({"width": 960, "height": 2400})
    first = page.locator(top).bounding_box()
    last = page.locator(bottom).bounding_box()
    assert first is not None
    assert last is not None
    return {"x": 0, "y": 0, "width": 960, "height": last["y"] + last["height"] + 16}


if __name__ == "__main__":
    main()
