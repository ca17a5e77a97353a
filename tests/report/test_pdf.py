"""A published certificate as a PDF file, printed by the browser of the machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from discreet.certificate import Certificate
from discreet.cli._app import app
from discreet.privacy import Gaussian
from oracles.browser import CHROMIUM


@pytest.fixture
def published(tmp_path: Path) -> Path:
    certificate = Certificate.of(Gaussian(2.0), delta=1e-5, learner="mine")
    place = tmp_path / "certificate.json"
    document = certificate.publish(title="A count").to_json()
    place.write_text(json.dumps(document), encoding="utf-8")
    return place


@pytest.fixture
def browser() -> str:
    assert CHROMIUM is not None, "no browser can be had (apt install chromium)"
    return CHROMIUM


def page(published: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["certificate", "page", str(published), *options])


def test_a_page_is_printed(published: Path, browser: str) -> None:
    place = published.with_name("certificate.pdf")
    done = page(published, "--pdf", str(place), "--json")
    assert json.loads(done.stdout) == {"page": None, "pdf": str(place)}
    printed = place.read_bytes()
    assert printed.startswith(b"%PDF-")
    assert printed.rstrip().endswith(b"%%EOF")
    assert len(printed) < 300_000


@pytest.mark.parametrize("fault", ["is missing", "fails", "prints nothing"])
def test_a_browser_that_cannot_print_leaves_no_file(
    fault: str, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = {"is missing": None, "fails": "/bin/false", "prints nothing": "/bin/true"}[fault]
    monkeypatch.setattr(shutil, "which", lambda name: program)
    place = published.with_name("certificate.pdf")
    done = page(published, "--pdf", str(place))
    assert done.exit_code == 2
    assert ("not installed" if program is None else "could not print") in done.stderr
    assert not place.exists()


def test_a_page_needs_a_place_and_a_name_that_fits(published: Path) -> None:
    assert "--pdf" in page(published).stderr
    assert page(published, "--pdf", "page.txt").exit_code == 2
