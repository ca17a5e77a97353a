"""The loss of a certificate is computed again from its plan and from what its schema cost."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet.certificate import Certificate, content_hash
from discreet.data import Boolean, Real, Schema, plan_schema
from discreet.errors import NotApplicable
from discreet.learn import (
    PrivateCategoricalNB,
    PrivateGaussianNB,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    read_plan,
    train_table,
)
from discreet.learn.projected_sgd import PrivateProjectedSGDClassifier
from discreet.ledger import Ledger
from discreet.privacy import GDP, ApproxDP, PureDP, to_json
from discreet.report import verify_certificate

OPEN = Schema({"age": Real(), "ill": Boolean()}, target="ill", expected_rows=500)
AGES = np.random.default_rng(0).uniform(0, 90, 500)
DATA = {"age": AGES, "ill": AGES > 40}
SCHEMA = Schema({"age": Real(0, 90), "ill": Boolean()}, target="ill", expected_rows=500)
PLAN = "the loss is that of the plan"
COST = "what the schema cost was paid"
CHAIN = "the entry that paid for the schema is on the chain"


def checks(document: dict[str, Any], place: Path, ledger: Ledger | None = None) -> dict[str, Any]:
    document["hash"] = content_hash(document)
    path = place / "certificate.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return {one.what: one for one in verify_certificate(path, ledger=ledger)}


@pytest.mark.parametrize(
    "make",
    [
        PrivateLogisticRegression,
        PrivateCategoricalNB,
        PrivateGaussianNB,
        PrivateProjectedSGDClassifier,
    ],
)
def test_every_plan_gives_its_loss_again(make: Any, tmp_path: Path) -> None:
    sgd = make is PrivateProjectedSGDClassifier
    for relation in ("replace",) if sgd else ("add_remove", "replace"):
        extra: dict[str, Any] = {"delta": 1e-6, "steps": 300} if sgd else {"relation": relation}
        extra |= {"bins": 4} if make is PrivateCategoricalNB else {}
        model = make(schema=SCHEMA, epsilon=1.0, **extra).fit(DATA)
        told = Certificate.from_json(json.loads(json.dumps(model.certificate_.to_json())))
        assert read_plan(told).loss == told.loss
        found = checks(told.to_json(), tmp_path)
        assert found[PLAN].ok is True
        assert COST not in found


def test_networks_gaussian_noise_and_numbers_too() -> None:
    noisy = PrivateGaussianNB(schema=SCHEMA, epsilon=1.0, delta=1e-6, noise="gaussian").fit(DATA)
    assert read_plan(noisy.certificate_).loss == noisy.certificate_.loss
    rows = np.column_stack([AGES / 90, AGES / 90])
    line = PrivateLinearRegression(
        epsilon=1.0, bounds=(0, 1), target_bounds=(0, 90), expected_rows=500
    )
    line.fit(rows, AGES)
    assert read_plan(line.certificate_).loss == line.certificate_.loss
    with pytest.raises(NotApplicable, match="not known here"):
        read_plan(Certificate.of(PureDP(1), delta=0.0, learner="somebody else's"))


@pytest.mark.parametrize("name", ["moment_stddev", "gradient_stddev", "steps"])
def test_a_plan_that_costs_more_than_the_loss_is_found(name: str, tmp_path: Path) -> None:
    document = (
        PrivateLogisticRegression(schema=SCHEMA, epsilon=1.0).fit(DATA).certificate_.to_json()
    )
    document["plan"][name] *= 3 if name == "steps" else 0.5
    found = checks(document, tmp_path)
    assert found[PLAN].ok is False
    assert "its plan costs" in found[PLAN].detail
    document["plan"][name] = "nothing"
    assert checks(document, tmp_path)[PLAN].ok is False


def test_a_loss_that_is_as_dear_at_one_delta_only_is_found(tmp_path: Path) -> None:
    """Beliefs and rates follow from the whole loss; a claim of one epsilon and delta is one."""
    document = (
        PrivateLogisticRegression(schema=SCHEMA, epsilon=1.0).fit(DATA).certificate_.to_json()
    )
    epsilon, delta = document["epsilon"], document["delta"]
    lies = {
        PureDP(epsilon * 1.01): False,
        ApproxDP(epsilon * 1.001, 1e-30): False,
        GDP(0.1): False,
        ApproxDP(epsilon * 1.001, delta): True,
        # At the delta of its second part this one claims nothing; at all others it does.
        PureDP(epsilon * 1.01) + ApproxDP(1e-6, 1e-30): False,
    }
    for claimed, right in lies.items():
        document["loss"] = to_json(claimed)
        document["epsilon"] = max(epsilon, claimed.epsilon(delta=delta))
        assert checks(document, tmp_path)[PLAN].ok is right, claimed
        # Whoever forges a loss may say that another version wrote it.
        other = {**document, "versions": {**document["versions"], "discreet": "0.9.9"}}
        assert checks(other, tmp_path)[PLAN].ok is right, claimed


def test_the_cost_of_a_schema_is_counted_or_was_paid(tmp_path: Path) -> None:
    schema = plan_schema(OPEN, epsilon=0.5).run(DATA, insecure_seed=1).value
    model = PrivateLogisticRegression(schema=schema, epsilon=1.0).fit(DATA)
    document = model.certificate_.to_json()
    found = checks(document, tmp_path)
    assert found[PLAN].ok is True
    assert found[COST].ok is True
    # Nobody paid, and the certificate says that it need not count it.
    lie = json.loads(json.dumps(document))
    lie["plan"]["schema_cost"]["counted"] = False
    assert "nobody paid for it" in checks(lie, tmp_path)[COST].detail
    # It says that it counts it, and the loss is that of the fit alone.
    lie = json.loads(json.dumps(document))
    alone = read_plan(model.certificate_).loss
    lie["loss"], lie["epsilon"] = to_json(alone), alone.epsilon(delta=lie["delta"])
    assert "its plan costs" in checks(lie, tmp_path)[PLAN].detail
    for wrong in (None, 3, {"counted": True}):
        lie["plan"]["schema_cost"] = wrong
        if wrong is not None:
            assert checks(lie, tmp_path)[COST].ok is False


def test_a_receipt_of_the_schema_is_read_and_looked_up(tmp_path: Path) -> None:
    plan = plan_schema(OPEN, epsilon=0.5)
    with Ledger.create(tmp_path / "book") as book:
        book.create_dataset("d", epsilon=10, delta="1e-4", unit="row")
        with book.charge("d", plan.loss) as charge:
            schema = plan.run(DATA, receipt=charge.receipt(), insecure_seed=1).value
        model = PrivateLogisticRegression(schema=schema, epsilon=1.0)
        document = model.fit(DATA, ledger=book, dataset="d").certificate_.to_json()
        found = checks(document, tmp_path, book)
        assert (found[PLAN].ok, found[COST].ok, found[CHAIN].ok) == (True, True, True)
        assert checks(document, tmp_path)[CHAIN].ok is None
        lie = json.loads(json.dumps(document))
        lie["plan"]["schema_cost"]["receipt"] = document["receipt"]
        assert "does not count it" in checks(lie, tmp_path)[COST].detail
        lie = json.loads(json.dumps(document))
        lie["plan"]["schema_cost"]["loss"] = to_json(PureDP(2))
        assert "the entry charged" in checks(lie, tmp_path)[COST].detail
        with Ledger.create(tmp_path / "other") as other:
            other.create_dataset("d", epsilon=10, delta="1e-4", unit="row")
            assert checks(document, tmp_path, other)[CHAIN].ok is False


def test_a_training_that_learns_its_schema_is_one_charge(tmp_path: Path) -> None:
    rows = "\n".join(f"{age},{str(age > 40).lower()}" for age in AGES)
    (tmp_path / "rows.csv").write_text(f"age,ill\n{rows}\n", encoding="utf-8")
    done = train_table(tmp_path / "rows.csv", OPEN, epsilon=2.0, learn_schema=0.25)
    found = checks(done.certificate.to_json(), tmp_path)
    assert (found[PLAN].ok, found[COST].ok) == (True, True)
