"""Model card, checklist, lineage and loggers say what the certificate says, and nothing more."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from discreet.certificate import Certificate, Collection
from discreet.integrations import (
    checklist,
    checklist_text,
    lineage_facet,
    log_to_mlflow,
    log_to_wandb,
    model_card,
    privacy_section,
)
from discreet.ledger import Ledger
from discreet.privacy import Gaussian

EVIL = "a | b\n---\ntags: [x]\n# <script>alert(1)</script> [link](http://x)"


def certificate(**changes: Any) -> Certificate:
    facts: dict[str, Any] = {
        "learner": "DP-SGD",
        "unit": "patient",
        "plan": {"steps": 10},
        "randomness": {"noise": "operating system"},
        "assumptions": ["floating point is exact"],
        **changes,
    }
    return Certificate.of(10 * Gaussian(5.0), delta=1e-5, **facts)


def test_a_model_card_has_metadata_and_the_guarantee() -> None:
    made = certificate()
    card = model_card(made, name="wards", licence="mit", tags=["tabular"], description="Of *two*.")
    _, head, body = card.split("---\n", 2)
    assert yaml.safe_load(head) == {
        "library_name": "discreet",
        "license": "mit",
        "tags": ["differential-privacy", "tabular"],
    }
    assert "# wards\n\nOf *two*.\n\n## Privacy" in body
    assert f"| epsilon, at most | {made.epsilon:.6g} |" in body
    assert "| for one | patient |" in body
    assert "| audits | none: the claim was not tried |" in body
    assert "- floating point is exact" in body


def test_no_text_of_a_certificate_ends_the_metadata_or_makes_markup() -> None:
    made = certificate(learner=EVIL, unit=EVIL, assumptions=[EVIL])
    card = model_card(made, name=EVIL, licence=EVIL, tags=[EVIL])
    assert card.count("\n---\n") == 1
    assert "<script>" not in card.split("\n---\n")[1]
    section = privacy_section(made)
    assert "](http" not in section
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert all(line.count("|") == 3 for line in rows)
    table = checklist_text(made)
    assert "<script>" not in table
    assert all(line.count("|") == 5 for line in table.splitlines())


def test_warnings_are_never_left_out() -> None:
    made = certificate(randomness={"noise": "INSECURE"}).publish(title="wards")
    assert len(made.warnings) > 2
    card, items = model_card(made, name="wards"), checklist(made)
    assert card.count("\n- ") == len(made.warnings) + len(made.assumptions)
    assert [one.answer for one in items if one.state == "warned"] == list(made.warnings)
    assert lineage_facet(made)["warnings"] == list(made.warnings)


def test_the_checklist_asks_the_same_of_every_release_and_says_what_is_open(
    tmp_path: Path,
) -> None:
    bare = certificate(randomness={}, assumptions=[])
    with Ledger.create(tmp_path / "study.ledger") as ledger:
        ledger.create_dataset("wards", epsilon=3, delta="1e-4", unit="patient")
        with ledger.charge("wards", bare.loss, delta="1e-5") as charge:
            stated = certificate().paid_by(charge)
    stated = stated.publish(
        title="wards", collection=Collection(source="the clinic", access="two people")
    )
    assert stated.receipt
    entry = f"entry {stated.receipt['entry']['seq']} of a ledger"
    asked = [
        [one.question for one in checklist(made) if one.state != "warned"]
        for made in (bare, stated)
    ]
    assert asked[0] == asked[1]
    found = {one.question: one for one in checklist(stated)}
    assert found["Where do the data come from?"].answer == "the clinic"
    assert found["On which lawful basis?"].state == "open"
    assert found["Is the loss of all releases together bounded?"].answer == entry
    alone = {one.question: one.state for one in checklist(bare)}
    for question in ("Was the implementation tested?", "Where does the randomness come from?"):
        assert alone[question] == "open"


def test_a_facet_is_plain_json() -> None:
    facet = lineage_facet(certificate())
    assert json.loads(json.dumps(facet)) == facet
    assert {"_producer", "_schemaURL", "epsilon", "planHash"} <= facet.keys()


def test_loggers_send_the_guarantee() -> None:
    """The modules are doubles; a call that the real ones do not have would not be noticed here."""
    sent: dict[str, Any] = {}
    mlflow = SimpleNamespace(
        log_metrics=lambda found: sent.update(found),
        log_params=lambda found: sent.update(found),
        log_dict=lambda found, name: sent.update({name: found}),
    )
    made = certificate()
    log_to_mlflow(made, mlflow=mlflow)
    assert sent["privacy_epsilon"] == made.epsilon
    assert sent["privacy_unit"] == "patient"
    assert Certificate.from_json(sent["certificate.json"]) == made
    run = SimpleNamespace(summary={}, config={})
    log_to_wandb(made, run=run)
    assert run.summary == {"privacy_epsilon": made.epsilon, "privacy_delta": 1e-5}
    assert run.config["privacy_charged"] == "no"
    assert Certificate.from_json(run.config["privacy_certificate"]) == made
