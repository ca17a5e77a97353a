"""Audits in certificates: every method's numbers are computed again, and no lie about them passes.

The lies have a fresh hash: they are those of somebody who writes a certificate.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet.audit import (
    Inclusion,
    TrainingAudit,
    audit_faults,
    audit_gaussian,
    audit_one_run,
    audit_one_run_curve,
    audit_runs,
    audit_tradeoff,
)
from discreet.certificate import content_hash, guarantee_of, meaning_of, verdict_on, warnings_on
from discreet.errors import InvalidValue
from discreet.learn.dpsgd._certificate import certify_run
from discreet.learn.dpsgd._plan import Plan
from discreet.ledger import Ledger
from discreet.privacy import GDP, Gaussian, to_json
from discreet.randomness import source
from discreet.report import verify_certificate
from report.certificates import AT, DELTA, LOSS, audit, facts, paid_facts, public_certificate

WHERE = "the audits say what their counts say"


def scores(shift: float, *, count: int = 400, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(shift, 1, count), rng.normal(0, 1, count)


def guessed(mechanism: str | None, **more: Any) -> TrainingAudit:
    coins = Inclusion(400, guesses=(40, 40), audits=2, source=source(insecure_seed=3))
    seen = np.random.default_rng(4).normal(0.8 * coins.included, 1)
    return audit_one_run_curve(coins, seen, loss=LOSS, delta=DELTA, mechanism=mechanism, **more)


def every_method(**more: Any) -> dict[str, TrainingAudit]:
    claim: dict[str, Any] = {"loss": LOSS, "delta": DELTA, **more}
    return {
        "runs": audit_runs(*scores(0.8), **claim),
        "several thresholds": audit_runs(*scores(0.8), thresholds=[-1.0, 0.0, 1.0], **claim),
        "gaussian": audit_gaussian(*scores(0.8), mechanism="gaussian", **claim),
        "tradeoff": audit_tradeoff(*scores(0.8), thresholds=0.0, **claim),
        "one run": audit(80),
        "curve": guessed(None, **more),
        "gaussian curve": guessed("gaussian", **more),
    }


@pytest.fixture(scope="module")
def right() -> dict[str, dict[str, Any]]:
    """One certificate for each method."""
    return {
        name: public_certificate(facts(audits=(made,)), at=AT)
        for name, made in every_method().items()
    }


NAMES = list(every_method())


def found(document: dict[str, Any], place: Path) -> str:
    document["warnings"], document["verdict"] = warnings_on(document), verdict_on(document)
    document["hash"] = content_hash(document)
    path = place / "certificate.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    wrong = {one.what: one.detail for one in verify_certificate(path) if one.ok is False}
    assert set(wrong) <= {WHERE}
    return wrong.get(WHERE, "")


@pytest.mark.parametrize("name", NAMES)
def test_right_audits_pass_and_changed_numbers_do_not(
    name: str, right: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    assert found(copy.deepcopy(right[name]), tmp_path) == ""
    lies: dict[str, Callable[[dict[str, Any]], None]] = {
        "states ceiling": lambda one: one.update(ceiling=one["ceiling"] + 20.0),
        "states epsilon_lower": lambda one: one.update(epsilon_lower=one["ceiling"]),
        "more than its ceiling": lambda one: one.update(ceiling=0.0, epsilon_lower=0.5),
        "another claim: epsilon": lambda one: one.update(claimed_epsilon=2.0),
        "another claim: delta": lambda one: one.update(delta=0.01),
        "lost its assumptions": lambda one: one.update(assumptions=[]),
        "not known here": lambda one: one.update(method="trust me", evidence={}),
        "no such audit writes": lambda one: one["evidence"].update(training_accuracy=0.99),
        "writes: audited": lambda one: one["evidence"].update(audited=["Ann", "Bob"]),
        "counts that cannot be read": lambda one: one.update(evidence={}),
    }
    for words, lie in lies.items():
        changed = copy.deepcopy(right[name])
        lie(changed["audits"][0])
        assert words in found(changed, tmp_path), words


@pytest.mark.parametrize("name", NAMES)
def test_counts_cannot_be_changed_alone(
    name: str, right: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    counts = right[name]["audits"][0]["evidence"]
    for field in ("correct", "could_be_correct", "guesses_included", "canaries", "true_positives"):
        if field in counts:
            for value in (counts[field] - 5, -1, 1.5, True, "7", 10**30):
                changed = copy.deepcopy(right[name])
                changed["audits"][0]["evidence"][field] = value
                assert found(changed, tmp_path) != "", (field, value)


def test_what_is_valid_only_for_gaussians_must_say_so(
    right: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    for name in ("gaussian", "gaussian curve"):
        changed = copy.deepcopy(right[name])
        changed["audits"][0]["assumptions"] = ["nothing"]
        assert "valid only for Gaussian" in found(changed, tmp_path)


def test_the_gaussian_bound_is_not_for_subsampled_releases() -> None:
    sampled = Gaussian(noise_multiplier=0.5).poisson(rate=0.1)
    claim = {"epsilon": sampled.epsilon(delta=DELTA), "delta": DELTA}
    bold = audit_gaussian(*scores(0.3), mechanism="gaussian", **claim)
    with pytest.raises(InvalidValue, match="this release is none"):
        public_certificate(facts(loss=sampled, audits=(bold,)), at=AT)
    # An audit of something that is Gaussian says what it was.
    said = replace(bold, evidence={"audited": "the same without sampling", **bold.evidence})
    assert public_certificate(facts(loss=sampled, audits=(said,)), at=AT)["audits"]


def test_verdicts_follow_from_the_counts_by_every_method(tmp_path: Path) -> None:
    """A claim that is refuted, and one that could not have been, are not called consistent."""
    loud = {"loss": LOSS, "delta": DELTA}
    coins = Inclusion(400, guesses=(60, 60), source=source(insecure_seed=3))
    refuted = [
        audit_runs(*scores(4.0, count=2000), **loud),
        audit_gaussian(*scores(4.0), mechanism="gaussian", **loud),
        audit_tradeoff(*scores(1.5, count=2000), thresholds=0.5, **loud),
        audit_one_run_curve(coins, coins.included.astype(float), **loud),
    ]
    few = Inclusion(8, guesses=(2, 2), source=source(insecure_seed=3))
    weak = [
        audit_runs(*scores(4.0, count=6), **loud),
        audit_gaussian(*scores(0.0, count=2), mechanism="gaussian", thresholds=0.0, **loud),
        audit_tradeoff(*scores(4.0, count=6), **loud),
        audit_one_run_curve(few, few.included.astype(float), **loud),
    ]
    assert {one.verdict for one in refuted} == {"violated"}
    assert {one.verdict for one in weak} == {"too weak to tell"}
    # The trade-off curve refutes a claim that the bound at delta does not.
    assert refuted[2].epsilon_lower < refuted[2].claimed_epsilon
    for words, audits in (("refutes the claim", refuted), ("could not have refuted", weak)):
        for one in audits:
            document = public_certificate(facts(audits=(one,)), at=AT)
            assert found(copy.deepcopy(document), tmp_path) == ""
            document["audits"][0]["verdict"] = "consistent"
            assert words in found(document, tmp_path), one.method


def test_rates_too_small_for_the_confidence_to_keep_are_no_fault(tmp_path: Path) -> None:
    for rate in (1e-8, 1e-12, 1e-16, 1e-20):
        for made in every_method(false_alarm_rate=rate).values():
            document = public_certificate(facts(audits=(made,)), at=AT)
            assert found(document, tmp_path) == ""


def test_an_audit_of_something_else_is_refused_before_a_certificate_is_written() -> None:
    other = audit_runs(*scores(0.8), loss=GDP(mu=0.2), delta=DELTA)
    with pytest.raises(InvalidValue, match="another claim"):
        public_certificate(facts(audits=(other,)), at=AT)
    exposed = replace(audit(80), evidence={**audit(80).evidence, "members": 3})
    with pytest.raises(InvalidValue, match="no such audit writes: members"):
        public_certificate(facts(audits=(exposed,)), at=AT)
    # The same loss at a smaller delta is the same claim.
    coins = Inclusion(400, guesses=(60, 60), source=source(insecure_seed=4))
    finer = audit_one_run(coins, np.arange(400.0), loss=LOSS, delta=1e-7)
    assert list(audit_faults(public_certificate(facts(audits=(finer,)), at=AT))) == []


def test_many_runs_must_say_on_which_data() -> None:
    silent = audit_runs(*scores(0.8), loss=LOSS, delta=DELTA)
    said = replace(silent, evidence={"audited": "made-up rows", **silent.evidence})
    for made, warned in ((silent, True), (said, False), (audit(80), False)):
        texts = [
            one["text"] for one in public_certificate(facts(audits=(made,)), at=AT)["warnings"]
        ]
        assert any("does not say on which data" in text for text in texts) is warned


# --- entries of the ledger ---------------------------------------------------------------------


def rewritten(document: dict[str, Any], place: Path, ledger: Ledger) -> dict[str, str]:
    document["warnings"], document["verdict"] = warnings_on(document), verdict_on(document)
    document["hash"] = content_hash(document)
    path = place / "changed.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    checks = verify_certificate(path, ledger=ledger)
    return {one.what: one.detail for one in checks if one.ok is False}


def test_one_entry_does_not_pay_for_two_releases(tmp_path: Path) -> None:
    document = public_certificate(paid_facts(tmp_path), at=AT)
    small = GDP(mu=0.05)
    [answer] = document["answers"]
    answer.update(
        receipt=document["receipt"],
        counted_in_the_guarantee=True,
        loss=to_json(small),
        epsilon=small.epsilon(delta=DELTA),
        delta=DELTA,
    )
    document["guarantee"] = {"unit": "person", **guarantee_of(LOSS + small, DELTA)}
    document["meaning"] = meaning_of(LOSS + small)
    with Ledger.open(tmp_path / "study.ledger", read_only=True) as ledger:
        wrong = rewritten(document, tmp_path, ledger)
    assert set(wrong) == {
        "the model: the entry covers it",
        "'how many': the entry covers it",
    }
    assert "2 releases name the entry" in wrong["the model: the entry covers it"]


def test_the_ledger_knows_the_unit(tmp_path: Path) -> None:
    document = public_certificate(paid_facts(tmp_path), at=AT)
    with Ledger.open(tmp_path / "study.ledger", read_only=True) as ledger:
        assert rewritten(copy.deepcopy(document), tmp_path, ledger) == {}
        recorded = "the ledger recorded this run"
        document["unit"] = document["guarantee"]["unit"] = "household"
        wrong = rewritten(document, tmp_path, ledger)
        assert set(wrong) == {"the ledger speaks of the same unit", recorded}
        # Less is promised to nobody's harm, but it is not what was recorded.
        document["unit"] = document["guarantee"]["unit"] = "row"
        assert set(rewritten(document, tmp_path, ledger)) == {recorded}


def test_the_ledger_knows_the_model_if_it_was_told(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "study.ledger") as ledger:
        ledger.create_dataset("people", epsilon=9, delta="1e-4", unit="person")
        with ledger.charge("people", LOSS, delta=DELTA, key="run") as charge:
            charge.record({"model_digest": "1" * 64})
            receipt = charge.receipt()
        for digest, wrong in (
            ("1" * 64, []),
            ("2" * 64, ["the charge was for another model digest"]),
        ):
            document = public_certificate(facts(receipt=receipt, model_digest=digest), at=AT)
            assert list(rewritten(document, tmp_path, ledger).values()) == wrong


def test_a_certificate_that_states_another_loss_than_was_charged_is_refused(
    tmp_path: Path,
) -> None:
    dear = public_certificate(paid_facts(tmp_path), at=AT)
    words = "charged another loss"
    assert not any(words in one["text"] for one in dear["warnings"])
    cheap = public_certificate(facts(loss=GDP(mu=0.1), receipt=dear["receipt"]), at=AT)
    [said] = [one for one in cheap["warnings"] if words in one["text"]]
    assert said["severity"] == "serious"
    with Ledger.open(tmp_path / "study.ledger", read_only=True) as ledger:
        wrong = rewritten(cheap, tmp_path, ledger)["the model: the entry covers it"]
    assert wrong == f"the entry charged {LOSS!r}, the certificate claims {GDP(mu=0.1)!r}"


@pytest.mark.parametrize("name", ["model/\0x", "m" * 5000, "link", "model"])
def test_files_that_are_not_beside_are_not_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    place = tmp_path / "public"
    (place / "model").mkdir(parents=True)
    (place / "link").symlink_to(tmp_path / "secret")
    document = public_certificate(facts(files={name: "0" * 64}), at=AT)
    path = place / "certificate.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    [check] = [one for one in verify_certificate(path) if one.what == f"the file {name}"]
    assert check.ok is (False if "\0" in name else None)


# --- the plan ----------------------------------------------------------------------------------


# One sampled step, and many that are not sampled: the trade-off of both together is slow.
@pytest.mark.parametrize(
    "drawn", [{"expected_batch_size": 100, "steps": 1}, {"sampler": "full", "steps": 20}]
)
def test_the_plan_of_dpsgd_decides_the_loss(drawn: dict[str, Any], tmp_path: Path) -> None:
    plan = Plan(
        examples=1000,
        clip_norm=1.0,
        noise_multiplier=2.0,
        delta=DELTA,
        unit="person",
        **drawn,
    )
    certificate = certify_run(
        plan, steps_taken=drawn["steps"], randomness={}, isolation="checked", model_digest="0" * 64
    )
    document = certificate.publish(title="a made-up run", at=AT).to_json()
    what = "the loss is that of the plan"

    def asked(part: str = "plan", /, **changes: Any) -> dict[str, str]:
        changed = copy.deepcopy(document)
        changed[part].update(changes)
        changed["hash"] = content_hash(changed)
        path = tmp_path / "certificate.json"
        path.write_text(json.dumps(changed), encoding="utf-8")
        checks = verify_certificate(path)
        assert what in {one.what for one in checks}
        return {one.what: one.detail for one in checks if one.ok is False}

    assert asked() == {}
    assert "which keeps it fixed" in asked(clip_norm=2.0)[what]
    fewer = [{**document["plan"]["phases"][0], "expected_batch_size": 50}]
    for lie in ({"noise_multiplier": 9.0}, {"sampler": "poisson", "phases": fewer}):
        assert list(asked(**lie)) == [what]
        assert asked(**lie)[what].startswith("the loss is not that of the plan")
    assert f"{drawn['steps'] + 1} steps" in asked("run", steps_taken=drawn["steps"] + 1)[what]
    assert "cannot be read" in asked(sampler="magic")[what]
    assert "cannot be read" in asked(surprise=1)[what]
