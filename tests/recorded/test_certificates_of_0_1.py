"""Certificates of 0.1, in its three formats, are verified; those that were wrong are found."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import Run
from discreet.certificate import content_hash, read_certificate
from discreet.ledger import Ledger
from discreet.report import Check, model_certificate, verify_certificate
from recorded.version_0_1 import HERE, open_ledger

AFFECTED = "affected.certificate.json"
SOUND = sorted(
    str(path.relative_to(HERE)) for path in HERE.rglob("*certificate.json") if path.name != AFFECTED
)
WRONG = "what 0.1 got wrong does not affect it"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with open_ledger("models.ledger", tmp_path_factory.mktemp("ledger")) as found:
        yield found


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {one.what: one for one in checks}


@pytest.mark.parametrize("name", SOUND)
def test_a_certificate_of_0_1_is_read_and_verified(name: str, ledger: Ledger) -> None:
    path = HERE / name
    said = json.loads(path.read_text(encoding="utf-8"))
    read = read_certificate(path)
    assert read.epsilon == pytest.approx(said.get("epsilon") or said["guarantee"]["epsilon"])
    found = by_name(verify_certificate(path, ledger=ledger))
    assert [one for one in found.values() if one.ok is False] == []
    # What 0.1 did not record cannot be checked, and that is said.
    assert found["no warning was left out"].ok is (True if "warnings" in said else None)
    network = said.get("schema") == "discreet.dpsgd.certificate"
    assert found[WRONG].ok is (None if network else True)
    if network:
        assert "padding" in found[WRONG].detail
    if read.receipt is not None:
        assert found["the model: the entry covers it"].ok is True
        assert found["the ledger recorded this run"].ok is None


def test_a_certificate_that_0_1_wrote_too_low_says_what_it_costs() -> None:
    found = by_name(verify_certificate(HERE / AFFECTED))
    assert found[WRONG].ok is False
    assert "0.1 claimed epsilon 1.94667, it costs 2.60576" in found[WRONG].detail


@pytest.mark.parametrize("field", ["loss", "unit", "relation", "epsilon", "receipt"])
def test_a_certificate_of_0_1_cannot_be_changed(field: str, ledger: Ledger, tmp_path: Path) -> None:
    said = json.loads((HERE / "train-naive-bayes/certificate.json").read_text(encoding="utf-8"))
    other = json.loads((HERE / "train-linear/certificate.json").read_text(encoding="utf-8"))
    lie = {
        "unit": "household",
        "relation": "replace",
        "epsilon": said["epsilon"] / 2,
    }.get(field, other[field])
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps({**said, field: lie}), encoding="utf-8")
    assert any(one.ok is False for one in verify_certificate(path, ledger=ledger))


@pytest.mark.parametrize("name", ["train-logistic", "student", "dpsgd-trainer"])
def test_a_model_of_0_1_is_certified_anew(name: str) -> None:
    certificate = model_certificate(HERE / name)
    published = certificate.publish(title="a model of 0.1")
    assert published.to_json()["version"] == 2
    assert published.loss == certificate.loss


def test_an_annex_of_0_1_is_verified() -> None:
    checks = verify_certificate(HERE / "annexed" / "internal" / "annex.json")
    assert [one.ok for one in checks] == [True, True, True]


# --- forms of losses that are refused today ---------------------------------------------------


def in_form(name: str) -> dict[str, Check]:
    return by_name(verify_certificate(HERE / "forms" / f"{name}.json"))


@pytest.mark.parametrize(
    "name", ["group-of-one.public", "rate-one.learner", "rate-one-of-three.learner"]
)
def test_a_sound_loss_in_an_old_form_verifies_as_such(name: str) -> None:
    found = in_form(name)
    assert [one for one in found.values() if one.ok is False] == []
    assert found[WRONG].ok is True
    assert found["the form and description of the loss"].ok is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("item-3-twice.public", "0.1 claimed epsilon 1.46467, it costs 7.67487"),
        ("item-3-replace-one.learner", "0.1 claimed epsilon 4.88664, it costs 10.9972"),
        # Its epsilon is right and its groups are not.
        ("item-1-sampled.public", "a finite pair was read in one order only"),
    ],
)
def test_an_affected_loss_in_an_old_form_says_what_to_compute_again(name: str, words: str) -> None:
    found = in_form(name)
    assert found[WRONG].ok is False
    assert words in found[WRONG].detail
    assert "certify again" in found[WRONG].detail
    assert "cannot be read" not in " ".join(one.detail for one in found.values())


@pytest.mark.parametrize("name", ["consistent.public", "dpsgd-vouched.public"])
def test_warnings_and_verdict_of_0_1_are_computed_again(name: str) -> None:
    found = in_form(name)
    assert [one for one in found.values() if one.ok is False] == []
    assert found["no warning was left out"].ok is True


# --- fields that were changed ---------------------------------------------------------------


def changed(name: str, place: Path, *at: str, to: object = None) -> list[Check]:
    """Verify a certificate in which one field was changed (or taken out), with a new hash."""
    said = json.loads((HERE / name).read_text(encoding="utf-8"))
    inner = said
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = to
    if "hash" in said:
        said["hash"] = content_hash(said)
    path = place / "certificate.json"
    path.write_text(json.dumps(said), encoding="utf-8")
    return verify_certificate(path)


LEARNER, PUBLIC = "train-linear/certificate.json", "forms/consistent.public.json"
DPSGD, DPSGD_PUBLIC = "dpsgd-vouched/certificate.json", "forms/dpsgd-vouched.public.json"


@pytest.mark.parametrize(
    ("name", "at", "to"),
    [
        (LEARNER, ("approved",), True),
        (LEARNER, ("hash",), "0" * 64),
        (DPSGD, ("approved",), True),
        (PUBLIC, ("approved",), True),
        (PUBLIC, ("released", "approved"), True),
        (PUBLIC, ("released", "run"), {}),
        (PUBLIC, ("verdict", "approved"), True),
        (LEARNER, ("covers",), "everything"),
        (LEARNER, ("version",), "9.9"),
        (DPSGD, ("plan_hash",), "0" * 64),
        (DPSGD, ("sampler",), "full"),
        (DPSGD, ("epsilon_lower",), 100.0),
        (DPSGD, ("warnings",), []),
        (DPSGD, ("isolation",), "checked"),
        (DPSGD, ("steps_taken",), 10**6),
        (DPSGD, ("final_clip_norm",), 7.0),
        (DPSGD, ("assumptions",), []),
        (DPSGD, ("versions", "discreet"), "9.9"),
        (PUBLIC, ("part",), "secret"),
        (PUBLIC, ("written_by",), "discreet 9.9"),
        (PUBLIC, ("warnings",), []),
        (PUBLIC, ("verdict", "state"), "not audited"),
        (PUBLIC, ("verdict", "sentence"), "All is well."),
        (PUBLIC, ("released", "covers"), "everything"),
        (PUBLIC, ("released", "method_warnings"), ["buy two"]),
        (PUBLIC, ("released", "randomness"), {"r": "INSECURE seed"}),
        (PUBLIC, ("guarantee", "description"), "nothing at all"),
        (DPSGD_PUBLIC, ("released", "isolation"), "checked"),
        (DPSGD_PUBLIC, ("released", "isolation"), None),
        (DPSGD_PUBLIC, ("released", "plan", "plan_hash"), "0" * 64),
        (DPSGD_PUBLIC, ("released", "method_warnings"), []),
    ],
)
def test_a_changed_field_of_0_1_is_found(
    name: str, at: tuple[str, ...], to: object, tmp_path: Path
) -> None:
    assert any(one.ok is False for one in changed(name, tmp_path, *at, to=to))


@pytest.mark.parametrize("at", [("plan", "steps"), ("randomness", "randomness")])
def test_what_nothing_holds_is_not_checked(at: tuple[str, ...], tmp_path: Path) -> None:
    found = changed(LEARNER, tmp_path, *at, to="another")
    assert by_name(found)["the content has its hash"].ok is None


# --- pages and signatures --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["published/public/certificate.json", PUBLIC, DPSGD_PUBLIC])
def test_the_page_of_a_certificate_of_0_1_verifies(name: str, tmp_path: Path, run: Run) -> None:
    shutil.copytree((HERE / name).parent, tmp_path / "public")
    path = tmp_path / "public" / Path(name).name
    page = path.with_name("certificate.html")
    assert run("certificate", "page", str(path), "--output", str(page)).exit_code == 0
    checks, of_page = verify_certificate(path), verify_certificate(page)
    assert of_page[:-1] == checks
    assert [one for one in of_page if one.ok is False] == []
    assert of_page[-1].what == "the page shows the document"
    assert of_page[-1].ok is True
    # A page that says something else is no longer shown as right.
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("Privacy certificate", "Certificate", 1), encoding="utf-8")
    assert verify_certificate(page)[-1].ok is None


def signing(path: Path, key: Path) -> list[str]:
    words = ["--who", "Ward 7", "--contact", "x@example.org", "--intended-use", "a study"]
    return [
        "certificate",
        "sign",
        str(path),
        "--key",
        str(key),
        *words,
        "--valid-until",
        "2999-12-31",
    ]


def test_a_certificate_of_0_1_with_its_page_is_signed(tmp_path: Path, run: Run) -> None:
    shutil.copytree(HERE / "published" / "public", tmp_path / "public")
    path = tmp_path / "public" / "certificate.json"
    page = path.with_name("certificate.html")
    page.write_text("the page that 0.1 wrote", encoding="utf-8")
    assert run("certificate", "keygen", str(tmp_path / "clinic")).exit_code == 0
    done = run(*signing(path, tmp_path / "clinic.key"))
    assert done.exit_code == 0, done.stderr
    for file in (path, page, path.with_name("certificate.dsse.json")):
        done = run("certificate", "verify", str(file), "--key", str(tmp_path / "clinic.pub"))
        assert done.exit_code == 6, done.stdout
    assert "Ward 7" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("fails", ["page", "envelope"])
def test_signing_writes_all_or_nothing(
    fails: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(HERE / "published" / "public", tmp_path / "public")
    path = tmp_path / "public" / "certificate.json"
    path.with_name("certificate.html").write_text("as it was", encoding="utf-8")
    assert run("certificate", "keygen", str(tmp_path / "clinic")).exit_code == 0
    before = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}

    def broken(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    where = "report._page.Page.html" if fails == "page" else "report._signatures.replace_file"
    monkeypatch.setattr(f"discreet.{where}", broken)
    done = run(*signing(path, tmp_path / "clinic.key"))
    assert done.exit_code == 4
    assert "No space left" in done.stderr
    assert {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()} == before
