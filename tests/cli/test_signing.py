"""``discreet certificate keygen``, ``sign``, ``verify --key``, ``revoke``; signed receipts."""

import base64
import datetime as dt
import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Run
from discreet._dsse import read_envelope, read_statement
from discreet.certificate import Issuer, read_private_key, sign_certificate
from discreet.ledger import Ledger
from discreet.privacy import PureDP
from discreet.report import write_certificate
from oracles.browser import visible_text
from report.certificates import STATED, facts, published

BLOCK = ("--who", "Ward 7", "--contact", "ward@clinic.example", "--intended-use", "a study")
UNTIL = ("--valid-until", "2999-12-31")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a published certificate that no ledger was charged for."""
    place = tmp_path_factory.mktemp("signed")
    write_certificate(place, published(facts(collection=STATED)))
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Path:
    shutil.copytree(made / "public", tmp_path / "public")
    monkeypatch.chdir(tmp_path)
    assert run("certificate", "keygen", "clinic").exit_code == 0
    assert run("certificate", "keygen", "other").exit_code == 0
    return tmp_path / "public"


def signed(run: Run, *more: str, key: str = "clinic.key") -> Any:
    return run(
        "certificate", "sign", "public/certificate.json", "--key", key, *BLOCK, *UNTIL, *more
    )


def verdict(run: Run, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = run("certificate", "verify", *arguments, "--json")
    checks = json.loads(done.stdout)["checks"]
    return done.exit_code, {one["what"]: one for one in checks}


TRUSTED = "a trusted key signed it"
CONTENT = "the signature is of this document and its files"


@pytest.mark.slow
def test_a_signed_certificate_is_accepted_in_all_three_forms(place: Path, run: Run) -> None:
    before = (place / "certificate.json").read_bytes()
    done = signed(run, "--json")
    assert done.exit_code == 0, done.stderr
    assert (place / "certificate.json").read_bytes() == before
    said = json.loads(done.stdout)
    assert said["signatures"] == 1
    for name in ("certificate.json", "certificate.dsse.json", "certificate.html"):
        code, checks = verdict(run, f"public/{name}", "--key", "other.pub", "--key", "clinic.pub")
        assert [one for one in checks.values() if one["ok"] is False] == [], name
        assert checks[TRUSTED]["ok"] is True
        assert checks[CONTENT]["ok"] is True
        # No ledger was charged for this one, and the page says so.
        assert code == 6
        code, checks = verdict(run, f"public/{name}")
        assert (code, checks[TRUSTED]["ok"]) == (6, None)
        assert said["key"] in checks[TRUSTED]["detail"]
        code, checks = verdict(run, f"public/{name}", "--key", "other.pub")
        assert (code, checks[TRUSTED]["ok"]) == (1, False)
    text = visible_text((place / "certificate.html").read_text(encoding="utf-8"))
    assert said["key"] in text
    assert "Ward 7" in text
    assert "Not signed" not in text


def test_a_page_without_a_signature_says_so(place: Path, run: Run) -> None:
    text = visible_text((place / "certificate.html").read_text(encoding="utf-8"))
    assert "Not signed" in text
    code, checks = verdict(run, "public/certificate.json", "--key", "clinic.pub")
    assert code == 1
    assert checks[TRUSTED]["detail"] == "it is not signed"
    code, checks = verdict(run, "public/certificate.json")
    assert TRUSTED not in checks


def test_what_was_changed_after_signing_is_found(place: Path, run: Run) -> None:
    signed(run)
    document = json.loads((place / "certificate.json").read_text(encoding="utf-8"))
    # Even a change that means nothing to a program is another file.
    (place / "certificate.json").write_text(json.dumps(document), encoding="utf-8")
    code, checks = verdict(run, "public/certificate.json", "--key", "clinic.pub")
    assert code == 1
    assert "is not the file that was signed" in checks[CONTENT]["detail"]
    envelope = json.loads((place / "certificate.dsse.json").read_text(encoding="utf-8"))
    payload = base64.b64decode(envelope["payload"])
    assert b"Ward 7" in payload
    envelope["payload"] = base64.b64encode(payload.replace(b"Ward 7", b"Ward 8")).decode()
    (place / "certificate.dsse.json").write_text(json.dumps(envelope), encoding="utf-8")
    code, checks = verdict(run, "public/certificate.dsse.json", "--key", "clinic.pub")
    assert code == 1
    assert "one of the two was changed" in checks[TRUSTED]["detail"]


def test_a_signature_cannot_be_carried_to_another_document(place: Path, run: Run) -> None:
    signed(run)
    other = published(facts(collection=STATED, title="another model"))
    write_certificate(place.parent / "second", other)
    second = place.parent / "second" / "public"
    shutil.copy(place / "certificate.dsse.json", second)
    code, checks = verdict(run, str(second / "certificate.json"), "--key", "clinic.pub")
    assert (code, checks[CONTENT]["ok"], checks[TRUSTED]["ok"]) == (1, False, True)
    page = (place / "certificate.html").read_text(encoding="utf-8")
    forged = page.replace("a made-up model", "a better model")
    (place / "certificate.html").write_text(forged, encoding="utf-8")
    code, checks = verdict(run, "public/certificate.html", "--key", "clinic.pub")
    assert (code, checks[CONTENT]["ok"]) == (1, False)


def test_an_envelope_that_is_cut_short_is_damaged(place: Path, run: Run) -> None:
    signed(run)
    whole = (place / "certificate.dsse.json").read_text(encoding="utf-8")
    (place / "certificate.dsse.json").write_text(whole[: len(whole) // 2], encoding="utf-8")
    for name in ("certificate.dsse.json", "certificate.json"):
        done = run("certificate", "verify", f"public/{name}", "--key", "clinic.pub")
        assert done.exit_code == 4, name
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_second_signature_keeps_the_certificate_valid_when_the_first_key_is_revoked(
    place: Path, run: Run
) -> None:
    signed(run)
    revoked = ("certificate", "revoke", "revoked.json", "--key", "clinic.pub")
    assert run(*revoked, "--reason", "the laptop was stolen").exit_code == 0
    both = ("--key", "clinic.pub", "--key", "other.pub", "--revoked", "revoked.json")
    code, checks = verdict(run, "public/certificate.json", *both)
    assert code == 1
    assert "the laptop was stolen" in checks[TRUSTED]["detail"]
    again = ("certificate", "sign", "public/certificate.dsse.json", "--key", "other.key")
    assert run(*again, "--who", "x").exit_code == 2
    done = run(*again)
    assert done.exit_code == 0, done.stderr
    for name in ("certificate.json", "certificate.html"):
        code, checks = verdict(run, f"public/{name}", *both)
        assert (code, checks[TRUSTED]["ok"]) == (6, True)
    assert run(*again).exit_code == 2, "the same key does not sign twice"


def test_days_that_are_over_or_still_to_come(place: Path, run: Run) -> None:
    content = (place / "certificate.json").read_bytes()
    files = json.loads(content).get("files", {})
    key = read_private_key("clinic.key")
    today = dt.datetime.now(dt.UTC).date()
    for date, until, words in (
        (today - dt.timedelta(9), today - dt.timedelta(1), "it was valid until"),
        (today + dt.timedelta(9), today + dt.timedelta(99), "still to come"),
    ):
        issuer = Issuer("Ann", "ann@x", "a talk", date, until)
        envelope = sign_certificate(content, files, issuer, key)
        text = json.dumps(envelope.to_json())
        (place / "certificate.dsse.json").write_text(text, encoding="utf-8")
        code, checks = verdict(run, "public/certificate.dsse.json", "--key", "clinic.pub")
        assert code == 1
        assert words in checks[TRUSTED]["detail"]
    old = Path("clinic.pub").read_text(encoding="utf-8")
    Path("old.pub").write_text(f"Valid-Until: 2020-01-01\n{old}", encoding="utf-8")
    signed(run)
    code, checks = verdict(run, "public/certificate.json", "--key", "old.pub")
    assert code == 1
    assert "expired after 2020-01-01" in checks[TRUSTED]["detail"]


def test_a_certificate_that_is_wrong_is_not_signed(place: Path, run: Run) -> None:
    document = json.loads((place / "certificate.json").read_text(encoding="utf-8"))
    document["guarantee"]["epsilon"] = 0.01
    (place / "certificate.json").write_text(json.dumps(document), encoding="utf-8")
    done = signed(run)
    assert done.exit_code == 1
    assert not (place / "certificate.dsse.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("sign", "public/certificate.json", "--key", "none.key", *BLOCK, *UNTIL), 4, "readable"),
        (("sign", "public/certificate.json", "--key", "clinic.pub", *BLOCK, *UNTIL), 4, "private"),
        (("sign", "public/certificate.json", "--key", "clinic.key", *UNTIL), 2, "--who"),
        (("sign", "public/certificate.json", "--key", "clinic.key", *BLOCK), 2, "--valid-until"),
        (("sign", "public/certificate.html", "--key", "clinic.key"), 2, "certificate.json"),
        (("sign", "public/none.json", "--key", "clinic.key", *BLOCK, *UNTIL), 4, "readable"),
        (("sign", "public/none.dsse.json", "--key", "clinic.key"), 4, "readable"),
        (("verify", "public/certificate.json", "--key", "clinic.key"), 2, "the public half"),
        (("verify", "public/certificate.json", "--key", "none.pub"), 4, "readable"),
        (("verify", "public/certificate.json", "--revoked", "x.json"), 2, "--key"),
        (("keygen", "clinic"), 4, "not taken"),
        (("keygen", "no/such/place"), 4, "can be written"),
        (("keygen", "new", "--valid-until", "2020-01-01"), 2, "not over"),
        (("keygen", "new", "--valid-until", "soon"), 2, "a day such as"),
        (("keygen", "new", "--passphrase-file", "none"), 4, "readable"),
        (("revoke", "clinic.pub", "--key", "clinic.pub", "--reason", "x"), 4, "a list of revoked"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_writes_nothing(
    place: Path, run: Run, arguments: tuple[str, ...], code: int, words: str
) -> None:
    before = {path: path.read_bytes() for path in place.parent.rglob("*") if path.is_file()}
    done = run("certificate", *arguments)
    assert done.exit_code == code, done.stderr
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    after = {path: path.read_bytes() for path in place.parent.rglob("*") if path.is_file()}
    assert after == before


def test_a_key_with_a_passphrase(place: Path, run: Run) -> None:
    Path("words").write_text("four plain words here\n", encoding="utf-8")
    Path("wrong").write_text("four plain words\n", encoding="utf-8")
    made = run("certificate", "keygen", "safe", "--passphrase-file", "words", "--json")
    assert json.loads(made.stdout)["encrypted"] is True
    assert stat.S_IMODE(Path("safe.key").stat().st_mode) == 0o600
    assert signed(run, key="safe.key").exit_code == 2
    assert signed(run, "--passphrase-file", "wrong", key="safe.key").exit_code == 2
    assert signed(run, "--passphrase-file", "words", key="safe.key").exit_code == 0
    code, checks = verdict(run, "public/certificate.json", "--key", "safe.pub")
    assert (code, checks[TRUSTED]["ok"]) == (6, True)


@pytest.mark.slow
def test_receipts_and_exports_are_signed_by_the_same_key(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("clinic", "other"):
        assert run("certificate", "keygen", name).exit_code == 0
    with Ledger.create("study.ledger") as ledger:
        ledger.create_dataset("census", epsilon=1)
        ledger.charge("census", PureDP("1/10"))
    export = ("ledger", "export", "study.ledger", "census")
    for name, entry in (("receipt.json", ("--entry", "1")), ("chain.json", ())):
        plain = json.loads(run(*export, *entry).stdout)
        done = run(*export, *entry, "--sign-key", "clinic.key", "--output", name)
        assert done.exit_code == 0, done.stderr
        envelope = read_envelope(Path(name).read_bytes())
        subjects, inside = read_statement(envelope, "urn:discreet:ledger:1")
        assert inside == plain
        assert list(subjects) == ["census/1"]
    with_receipt = ("ledger", "verify", "study.ledger", "--receipt", "receipt.json")
    for words in (with_receipt, ("ledger", "verify", "chain.json")):
        assert run(*words, "--key", "clinic.pub").exit_code == 0
        wrong = run(*words, "--key", "other.pub")
        assert wrong.exit_code == 1
        assert "not by" in wrong.stdout
        unchecked = run(*words)
        assert unchecked.exit_code == 6
        assert "was not checked" in unchecked.stdout
    run(*export, "--entry", "1", "--output", "plain.json")
    unsigned = run(*with_receipt[:-1], "plain.json", "--key", "clinic.pub")
    assert (unsigned.exit_code, "it is not signed" in unsigned.stdout) == (1, True)
    text = Path("receipt.json").read_text(encoding="utf-8")
    Path("receipt.json").write_text(text[:-40], encoding="utf-8")
    assert run(*with_receipt, "--key", "clinic.pub").exit_code in {2, 4}
    # The statement of one entry around the receipt of another is no receipt.
    body = json.loads(text)
    payload = base64.b64decode(body["payload"]).replace(b"census/1", b"census/2")
    body["payload"] = base64.b64encode(payload).decode()
    Path("receipt.json").write_text(json.dumps(body), encoding="utf-8")
    assert run(*with_receipt, "--key", "clinic.pub").exit_code == 4
