"""Certificates of 0.1, in its three formats, are verified; those that were wrong are found."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from discreet.certificate import read_certificate
from discreet.ledger import Ledger
from discreet.report import model_certificate, verify_certificate
from discreet.report.verification import Check
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
    assert found["no warning was left out"].ok is None
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
