"""The page of pitfalls: three layers in the order of the pyramid, the worst first in each."""

import re
from pathlib import Path

from discreet.certificate._findings import LAYERS, SEVERITIES

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "pitfalls.md").read_text(encoding="utf-8")
HEADINGS = ("1. The guarantee", "2. What undermines it", "3. How the data were collected and kept")


def rows(section: str) -> list[list[str]]:
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0] != "severity"]


def test_layers_are_those_of_the_certificate_in_its_order() -> None:
    found = re.findall(r"^## (\d\. .*)$", PAGE, re.MULTILINE)
    assert tuple(found) == HEADINGS
    assert len(found) == len(LAYERS)


def test_every_pitfall_says_what_is_done_and_what_is_left_and_the_worst_come_first() -> None:
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:4]:
        found = rows(section)
        assert len(found) >= 5
        for row in found:
            assert len(row) == 4, row
            assert all(row), row
            assert "**" in row[1], "the pitfall has a name"
        ranks = [SEVERITIES.index(row[0]) for row in found]
        assert ranks == sorted(ranks)
