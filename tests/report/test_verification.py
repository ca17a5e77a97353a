"""Checking certificates: right ones pass, and every lie that is planted is found."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discreet.certificate import content_hash
from discreet.errors import InvalidValue
from discreet.ledger import Ledger
from discreet.privacy import GDP, PureDP, to_json
from discreet.report import file_hashes, verify_certificate, write_annex, write_certificate
from report.certificates import (
    AT,
    LOSS,
    audit,
    facts,
    fitted,
    internal_facts,
    paid_facts,
    public_certificate,
    published,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release: ledger, model, both parts."""
    where = tmp_path_factory.mktemp("release")
    (where / "public" / "model").mkdir(parents=True)
    (where / "public" / "model" / "weights").write_bytes(b"made up")
    hashes = file_hashes(where / "public", ["model/weights"])
    certificate = published(paid_facts(where, files=hashes), at=AT)
    with Ledger.open(where / "study.ledger") as ledger:
        write_certificate(where, certificate, ledger=ledger)
    write_annex(where, internal_facts(), certificate.to_json())
    return where


@pytest.fixture(scope="module")
def document(place: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((place / "public" / "certificate.json").read_text())
    return read


def wrong(path: Path, **more: Any) -> dict[str, str]:
    return {one.what: one.detail for one in verify_certificate(path, **more) if one.ok is False}


PLAN = ("the loss is that of the plan", None)


def test_a_right_certificate_passes_with_everything_checked(place: Path) -> None:
    with Ledger.open(place / "study.ledger", read_only=True) as ledger:
        for name in ("certificate.json", "certificate.html"):
            checks = verify_certificate(place / "public" / name, ledger=ledger)
            # Nobody can compute the plan of a made-up learner again, nor say what its files are.
            open_ = [(one.what, one.ok) for one in checks if one.ok is not True]
            assert open_ == [PLAN, ("the file model/weights", None)]
            assert "the entries are on the chain" in {one.what for one in checks}
    assert checks[-1].what == "the page shows the document"
    annex = verify_certificate(place / "internal" / "annex.json")
    assert [one.ok for one in annex] == [True, True, True]


def test_what_cannot_be_asked_is_said_and_is_no_fault(place: Path, tmp_path: Path) -> None:
    alone = tmp_path / "certificate.json"
    alone.write_bytes((place / "public" / "certificate.json").read_bytes())
    open_ = {one.what: one.detail for one in verify_certificate(alone) if one.ok is None}
    assert "example" in open_.pop(PLAN[0])
    assert open_ == {
        "the entries are on the chain": "no ledger was given",
        "the ledger recorded this run": "no ledger was given",
        "the ledger recorded this publication": "no ledger was given",
        "the file model/weights": "is not here",
    }
    annex = tmp_path / "annex.json"
    annex.write_bytes((place / "internal" / "annex.json").read_bytes())
    assert [one.ok for one in verify_certificate(annex)] == [True, True, None]
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(public_certificate(facts(), at=AT)))
    checks = {one.what: one.ok for one in verify_certificate(bare)}
    assert checks["the model: charged to a ledger"] is None
    assert False not in checks.values()


def lower(body: dict[str, Any]) -> None:
    body["guarantee"]["epsilon"] *= 0.99


def cheaper(body: dict[str, Any]) -> None:
    small = to_json(GDP(mu=0.1))
    body["guarantee"]["loss"] = body["loss"] = small


def other_whole(body: dict[str, Any]) -> None:
    body["guarantee"]["loss"] = to_json(GDP(mu=0.1))


def flatter(body: dict[str, Any]) -> None:
    body["guarantee"]["accountants"]["rdp"] *= 0.9


def fewer(body: dict[str, Any]) -> None:
    del body["guarantee"]["accountants"]["naive"]


def described(body: dict[str, Any]) -> None:
    body["guarantee"]["description"] = "nothing at all"


def crossed(body: dict[str, Any]) -> None:
    body["guarantee"]["epsilon_lower"] = 99.0


def groups(body: dict[str, Any]) -> None:
    body["guarantee"]["groups"][0]["epsilon"] = 0.1


def certain(body: dict[str, Any]) -> None:
    body["meaning"]["beliefs"][0]["upper"] *= 0.9


def quiet(body: dict[str, Any]) -> None:
    body["warnings"] = []


def cheerful(body: dict[str, Any]) -> None:
    body["verdict"]["sentence"] = "All is well."


def stronger(body: dict[str, Any]) -> None:
    body["audits"][0]["epsilon_lower"] += 0.5


def miscounted(body: dict[str, Any]) -> None:
    body["audits"][0]["evidence"]["correct"] += 7


def high_ceiling(body: dict[str, Any]) -> None:
    body["audits"][0]["ceiling"] = 9.0


def other_claim(body: dict[str, Any]) -> None:
    body["audits"][0]["claimed_epsilon"] = 50.0


def other_delta(body: dict[str, Any]) -> None:
    body["audits"][0]["delta"] = 0.1


def answer_cost(body: dict[str, Any]) -> None:
    body["answers"][0]["epsilon"] = 0.1


def answer_elsewhere(body: dict[str, Any]) -> None:
    body["answers"][0]["counted_in_the_guarantee"] = True


def entry_changed(body: dict[str, Any]) -> None:
    body["receipt"]["entry"]["at"] = "2020-01-01T00:00:00+00:00"


def entry_of_another(body: dict[str, Any]) -> None:
    body["receipt"] = body["answers"][0]["receipt"]


def outside_file(body: dict[str, Any]) -> None:
    body["files"] = {"../secret": "0" * 64}


def changed_file(body: dict[str, Any]) -> None:
    body["files"] = {"model/weights": "0" * 64}


LIES: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (lower, "every accountant says so"),
    (cheaper, "every accountant says so"),
    (other_whole, "the losses add up to the guarantee"),
    (flatter, "every accountant says so"),
    (fewer, "every accountant says so"),
    (described, "every accountant says so"),
    (crossed, "every accountant says so"),
    (groups, "every accountant says so"),
    (certain, "the meaning follows from the loss"),
    (quiet, "no warning was left out"),
    (cheerful, "no warning was left out"),
    (stronger, "the audits say what their counts say"),
    (miscounted, "the audits say what their counts say"),
    (high_ceiling, "the audits say what their counts say"),
    (other_claim, "the audits say what their counts say"),
    (other_delta, "the audits say what their counts say"),
    (answer_cost, "the losses add up to the guarantee"),
    (answer_elsewhere, "the losses add up to the guarantee"),
    (entry_changed, "the model: the entry covers it"),
    (entry_of_another, "the model: the entry covers it"),
    (outside_file, "the file ../secret"),
    (changed_file, "the file model/weights"),
]


@pytest.mark.parametrize(("lie", "what"), LIES, ids=[lie.__name__ for lie, _ in LIES])
def test_a_lie_with_a_fresh_hash_is_found(
    lie: Callable[[dict[str, Any]], None],
    what: str,
    document: dict[str, Any],
    place: Path,
    tmp_path: Path,
) -> None:
    changed = copy.deepcopy(document)
    lie(changed)
    path = place / "public" / f"{tmp_path.name}.json"
    path.write_text(json.dumps(changed), encoding="utf-8")
    assert "the content has its hash" in wrong(path)
    changed["hash"] = content_hash(changed)
    path.write_text(json.dumps(changed), encoding="utf-8")
    found = wrong(path)
    path.unlink()
    assert what in found
    assert "the content has its hash" not in found


def test_an_audit_that_refutes_must_say_so() -> None:
    found = audit(120)
    assert found.violated
    made = public_certificate(facts(audits=(found,)), at=AT)
    assert made["verdict"]["state"] == "violated"


def test_a_refuted_claim_cannot_be_called_consistent(tmp_path: Path) -> None:
    made = public_certificate(facts(audits=(audit(120),)), at=AT)
    made["audits"][0]["verdict"] = "consistent"
    made["hash"] = content_hash(made)
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(made), encoding="utf-8")
    assert "does not say so" in wrong(path)["the audits say what their counts say"]
    weak = public_certificate(facts(audits=(audit(20, guesses=20),)), at=AT)
    weak["audits"][0]["verdict"] = "consistent"
    weak["hash"] = content_hash(weak)
    path.write_text(json.dumps(weak), encoding="utf-8")
    assert "could not have refuted" in wrong(path)["the audits say what their counts say"]


@pytest.mark.slow
def test_a_page_that_shows_something_else_is_found(place: Path, tmp_path: Path) -> None:
    text = (place / "public" / "certificate.html").read_text(encoding="utf-8")
    page = tmp_path / "certificate.html"
    shown = f"{LOSS.epsilon(delta=1e-5):.4g}"[:4]
    assert shown in text
    page.write_text(text.replace("that is no approval", "it is safe"), encoding="utf-8")
    assert list(wrong(page)) == ["the page shows the document"]
    # A picture that was changed, or that claims another painter and was changed elsewhere.
    for forged in (
        text.replace("</svg>", "<text>safe</text></svg>", 1),
        text.replace("pictures by matplotlib", "pictures by matplotlib 0.").replace(
            "may be published", "is safe"
        ),
        text.replace("</main>", "<p>safe</p></main>"),
    ):
        page.write_text(forged, encoding="utf-8")
        assert list(wrong(page)) == ["the page shows the document"]
    other = text.replace("pictures by matplotlib ", "pictures by matplotlib 0.", 1)
    page.write_text(other.replace("</svg>", "<text>safe</text></svg>", 1), encoding="utf-8")
    found = {one.what: one for one in verify_certificate(page)}["the page shows the document"]
    assert found.ok is None
    assert "all but the pictures is right" in found.detail
    page.write_text(text.replace('id="document"', 'id="other"'), encoding="utf-8")
    with pytest.raises(InvalidValue, match="one certificate inside"):
        verify_certificate(page)


def test_a_restored_ledger_is_told(place: Path, tmp_path: Path) -> None:
    with Ledger.open(place / "study.ledger", read_only=True) as ledger:
        ledger.backup(tmp_path / "copy")
        losses = {name: PureDP("1/1000") for name in ledger.datasets()}
    with Ledger.restore(tmp_path / "copy", spent=losses) as ledger:
        checks = verify_certificate(place / "public" / "certificate.json", ledger=ledger)
    told = [check for check in checks if "restored backup" in check.detail]
    assert {check.ok for check in told} == {None}
    assert all(check.ok is not False for check in checks)


def test_a_ledger_without_the_entry_is_found(place: Path, tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "empty.ledger") as ledger:
        ledger.create_dataset("people", epsilon=9, delta="1e-4")
        found = wrong(place / "public" / "certificate.json", ledger=ledger)
    assert "the entries are on the chain" in found


def test_an_annex_of_another_certificate_is_found(place: Path, tmp_path: Path) -> None:
    other = public_certificate(facts(title="another"), at=AT)
    write_annex(tmp_path, internal_facts(), other)
    (tmp_path / "public").mkdir()
    source = place / "public" / "certificate.json"
    (tmp_path / "public" / "certificate.json").write_bytes(source.read_bytes())
    assert list(wrong(tmp_path / "internal" / "annex.json")) == [
        "it belongs to the public certificate"
    ]
    assert (tmp_path / "internal").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "in JSON"),
        ("[1]", "a JSON object"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"a": NaN}', "NaN"),
        ('{"a": 1e999}', "beyond floating point"),
        ("\x00", "in JSON"),
    ],
)
def test_what_is_no_certificate_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidValue, match=words):
        verify_certificate(path)
    with pytest.raises(InvalidValue, match="readable file"):
        verify_certificate(tmp_path / "absent.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidValue, match="UTF-8"):
        verify_certificate(tmp_path / "bytes.json")


def test_another_document_fails_the_schema_and_nothing_more_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text in ("{}", '{"part": "public"}', '{"part": "secret"}'):
        path.write_text(text, encoding="utf-8")
        checks = verify_certificate(path)
        assert [one.ok for one in checks] == [False]


def test_integers_are_integers(tmp_path: Path) -> None:
    """2.0 equals 2 for Python, and the ledger does not record the version of a fresh document."""
    path = tmp_path / "certificate.json"
    for document in (fitted(facts()).to_json(), public_certificate(facts())):
        document["version"] = 2.0
        document["hash"] = content_hash(document)
        path.write_text(json.dumps(document), encoding="utf-8")
        assert "2.0 is not 2" in wrong(path)["it follows the schema"]


def mutants(value: Any) -> list[Any]:
    """Documents in which one value was replaced by another of some type, or is gone."""
    if isinstance(value, dict):
        found = [{k: v for k, v in value.items() if k != key} for key in value]
        for key, inner in value.items():
            found += [{**value, key: other} for other in mutants(inner)]
        return found
    if isinstance(value, list):
        return [[other, *value[1:]] for other in mutants(value[0])] if value else [[3]]
    return [None, -1, 1e300, 0.5, "", "x", [], {}]


@pytest.mark.slow
def test_no_document_makes_the_check_fall_over(
    document: dict[str, Any], place: Path, tmp_path: Path
) -> None:
    """A document of a stranger is judged, whatever it holds."""
    every = mutants(document)
    assert len(every) > 1000
    path = place / "public" / f"{tmp_path.name}.json"
    passed = 0
    with Ledger.open(place / "study.ledger", read_only=True) as ledger:
        for changed in every[::11]:
            changed["hash"] = content_hash(changed)
            path.write_text(json.dumps(changed), encoding="utf-8")
            checks = verify_certificate(path, ledger=ledger)
            passed += all(check.ok is not False for check in checks)
    path.unlink()
    # What no theorem decides, such as a title or a version, may be anything.
    assert passed < len(every[::11]) / 4
