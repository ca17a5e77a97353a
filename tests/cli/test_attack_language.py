"""S36 on the command line: canaries, and what a language model recites."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attacks.language.made_up_models import by_heart, random_texts
from cli.conftest import Run
from discreet.attacks.language import LanguageModel, read_canaries

MODULE = """
from attacks.language.made_up_models import blind, by_heart
from pathlib import Path

knowing = by_heart(Path("used.txt").read_text().splitlines())

def fresh():
    return blind()

nothing = 5
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Path:
    """A directory with canaries, texts and a module that has models."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = run(
        *("attack", "canaries", "--template", "code of {name} is {digits:2}", "--count", "10"),
        *("--copies", "0,1", "--out", "canaries.json", "--texts", "plant.txt"),
    )
    assert (done.exit_code, done.stderr) == (0, "")
    used = [one.replace("\n", " ") for one in random_texts(30, 40, 1)]
    held = [one.replace("\n", " ") for one in random_texts(30, 40, 2)]
    planted = Path("plant.txt").read_text().splitlines()
    Path("used.txt").write_text("\n".join([*used, *planted]))
    Path("held.txt").write_text("\n".join(held))
    for name, texts in (("used", used), ("held", held)):
        rows = [
            json.dumps({"text": one, "owner": f"{name}{at // 2}"}) for at, one in enumerate(texts)
        ]
        Path(f"{name}.jsonl").write_text("\n".join(rows))
    Path(f"study_{tmp_path.name}.py").write_text(MODULE)
    return tmp_path


def model(study: Path, name: str = "knowing") -> tuple[str, str]:
    return "--model", f"study_{study.name}:{name}"


def test_canaries_are_written_and_found_again(study: Path, run: Run) -> None:
    made = read_canaries("canaries.json")
    assert Path("plant.txt").read_text().splitlines() == made.texts()
    found = run("attack", "language", *model(study), "--canaries", "canaries.json", "--json")
    [only] = json.loads(found.stdout)["attacks"]
    assert only["finding"]["leaks"] is True
    planted = only["result"]["groups"][1]
    assert (planted["copies"], planted["first_of_all"]) == (1, 10)


def test_texts_are_completed_and_told(study: Path, run: Run) -> None:
    files = ("--members", "used.jsonl", "--nonmembers", "held.jsonl")
    found = run(
        *("attack", "language", *model(study), *files, "--prefix", "12", "--suffix", "12"),
        *("--score", "loss", "--score", "reference", "--reference", model(study, "fresh")[1]),
        *("--output", "page.html"),
    )
    assert (found.exit_code, found.stderr) == (0, "")
    assert "persons extracted (greedy) beyond held-out twins 1.000" in found.stdout
    assert "text_membership (reference)" in found.stdout
    assert "INTERNAL" in found.stdout
    page = Path("page.html").read_text()
    assert "What a language model recites" in page
    assert json.loads(Path("used.jsonl").read_text().splitlines()[0])["text"] not in page


def test_a_recital_is_found(study: Path, run: Run) -> None:
    Path("prompts.txt").write_text(Path("used.txt").read_text().splitlines()[0][:12])
    found = run(
        *("attack", "language", *model(study), "--members", "used.txt", "--prompts", "prompts.txt"),
        *("--public", "held.txt", "--public-records"),
    )
    assert "the longest passage of the corpus" in found.stdout
    assert "INTERNAL" not in found.stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "--canaries = none: expected a file; or"),
        (("--nonmembers", "held.txt"), "--members = none"),
        (("--prompts", "held.txt"), "--members = none"),
        (("--members", "used.txt", "--nonmembers", "held.jsonl"), "owners if members have them"),
        (("--members", "bad.jsonl", "--nonmembers", "held.txt"), "lines of the form"),
        (("--members", "half.jsonl", "--nonmembers", "held.txt"), "lines of the form"),
        (("--members", "empty.txt", "--nonmembers", "held.txt"), "at least one text"),
        (("--canaries", "canaries.json", "--method", "guess"), "--method = guess"),
        (("--canaries", "canaries.json", "--score", "guess"), "--score = guess"),
        (("--canaries", "canaries.json", "--score", "reference"), "--reference = none"),
    ],
)
def test_what_is_missing_is_said(study: Path, run: Run, given: tuple[str, ...], said: str) -> None:
    Path("bad.jsonl").write_text("[1]\n")
    Path("half.jsonl").write_text('{"text": "a", "owner": 1}\n{"text": "b"}\n')
    Path("empty.txt").write_text("\n\n")
    done = run("attack", "language", *model(study), *given)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_models_are_read_from_python_only(study: Path, run: Run) -> None:
    given = ("--canaries", "canaries.json")
    wrong = run("attack", "language", *model(study, "nothing"), *given)
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "what as_language_model returns" in wrong.stderr
    assert isinstance(by_heart(["ab"]), LanguageModel)
    fresh = run("attack", "language", *model(study, "fresh"), *given)
    assert fresh.exit_code == 0
