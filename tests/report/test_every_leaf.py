"""Every leaf of every certificate is flipped, and every flip is found out.

With the ledger and the files at hand everything is refused but another title or source. Without
them a flip is refused or a check says that it was not made; nothing is ever all right.
`make judge-certificates LEAVES=0.1` flips a random tenth of the leaves of every learner.
"""

import copy
import json
import math
import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet.certificate import Certificate, Collection, PaidAnswer, content_hash, read_certificate
from discreet.curator import (
    CuratedDataset,
    Curator,
    Mean,
    Query,
    Workload,
    certified_loss,
)
from discreet.data import Boolean, Integer, Schema
from discreet.engines import Compare, Field, Value
from discreet.federated import Clients, FederatedPlan, InProcessEngine
from discreet.learn import (
    PrivateAdditiveClassifier,
    PrivateCategoricalNB,
    PrivateGaussianNB,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
    PrivateRandomForest,
)
from discreet.learn.dpsgd import Plan, Trainer, make_private, save
from discreet.learn.projected_sgd import PrivateProjectedSGDClassifier, PrivateProjectedSGDRegressor
from discreet.ledger import Ledger
from discreet.local import (
    FrequencyOracle,
    Hierarchy,
    MeanOracle,
    Rappor,
    certify_collection,
    write_plan,
)
from discreet.mechanisms import laplace_count
from discreet.pate import PATEClassifier
from discreet.privacy import DiscreteLaplace, PureDP, to_json
from discreet.report import (
    file_hashes,
    model_certificate,
    model_files,
    verify_certificate,
    write_certificate,
)
from discreet.synth import Synthesizer
from report.certificates import audit

ROWS = np.random.default_rng(5).random((80, 2))
CLASSES = (ROWS.sum(axis=1) > 1).astype(np.int64)
BOUNDED = {"bounds": (0.0, 1.0), "expected_rows": 80, "max_iter": 2, "delta": 1e-5}
ESTIMATORS: dict[str, Any] = {
    "logistic": PrivateLogisticRegression(classes=[0, 1], **BOUNDED),
    "linear": PrivateLinearRegression(target_bounds=(0.0, 1.0), **BOUNDED),
    "network": PrivateMLPClassifier(classes=[0, 1], **BOUNDED),
    "network of numbers": PrivateMLPRegressor(target_bounds=(0.0, 1.0), **BOUNDED),
    "additive": PrivateAdditiveClassifier(
        classes=[0, 1], bounds=(0.0, 1.0), expected_rows=80, delta=1e-5
    ),
    "forest": PrivateRandomForest(classes=[0, 1], bounds=(0.0, 1.0), expected_rows=80),
    "counts": PrivateCategoricalNB(classes=[0, 1], categories=2),
    "moments": PrivateGaussianNB(classes=[0, 1], bounds=(0.0, 1.0), delta=1e-5),
    "projected": PrivateProjectedSGDClassifier(classes=[0, 1], steps=10, delta=1e-5),
    "projected numbers": PrivateProjectedSGDRegressor(target_bounds=(0, 1), steps=10, delta=1e-5),
    "pate": PATEClassifier(
        classes=[0, 1], epsilon=5.0, delta=1e-5, teachers=4, queries=4, student="table"
    ),
}
RUNS = ("trainer", "own loop", "synthetic", "federated")
SAMPLED = ("moments", "own loop")


def dpsgd_plan() -> Plan:
    return Plan(
        examples=80, sampler="full", steps=2, clip_norm=1.0, epsilon=3.0, delta=1e-5, unit="person"
    )


def examples() -> TensorDataset:
    return TensorDataset(torch.from_numpy(ROWS.astype(np.float32)), torch.from_numpy(CLASSES))


def make(name: str, place: Path, ledger: Ledger) -> None:
    """Train by one learner, charge the ledger, and save model and certificate."""
    place.mkdir(parents=True)
    if name in ESTIMATORS:
        model = ESTIMATORS[name]
        dataset = "changes" if name.startswith("projected") else "people"
        more = {"public": ROWS[:20]} if name == "pate" else {}
        rows = (ROWS > 0.5).astype(int) if name == "counts" else ROWS
        model.fit(rows, CLASSES, ledger=ledger, dataset=dataset, unit="person", **more)
        model.save(place / "model.npz")
        text = json.dumps(model.certificate_.to_json())
        (place / "certificate.json").write_text(text, encoding="utf-8")
        return
    if name == "synthetic":
        place.rmdir()
        schema = Schema({"a": Boolean(), "b": Boolean()}, expected_rows=80)
        columns = {"a": ROWS[:, 0] > 0.5, "b": ROWS[:, 1] > 0.5}
        maker = Synthesizer(epsilon=1, delta=1e-5, schema=schema)
        made = maker.fit(columns, ledger=ledger, dataset="rows")
        made.model_.save_directory(place)
        return
    if name == "federated":
        place.rmdir()
        clients = Clients(*(one[:, None] for one in examples().tensors))
        clients_plan = FederatedPlan(
            clients=80,
            expected_cohort=40,
            rounds=2,
            clip_norm=1.0,
            noise_multiplier=1.0,
            delta=1e-5,
            unit="person",
        )
        run = InProcessEngine(clients, nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none"))
        run.run(clients_plan, ledger=ledger, dataset="people").save(place)
        return
    network, plan = nn.Linear(2, 2), dpsgd_plan()
    loss = nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    if name == "trainer":
        trainer = Trainer(network, plan, optimizer=optimizer, loss=loss)
        trainer.fit(examples(), ledger=ledger, dataset_name="people", progress=False).save(place)
        return
    with ledger.charge("people", plan.loss, delta="1e-5") as charge:
        private = make_private(network, optimizer, plan)
        for batch in private.batches(examples()):
            private.step(loss, *batch)
        certificate = private.certificate(charge=charge)
        private.detach()
    save(place, network, certificate)


def publish(model: Path, place: Path, ledger: Ledger) -> Path:
    """Certify a model with an audit and an answer that was paid for."""
    with ledger.charge("others", DiscreteLaplace(scale=2.0)) as charge:
        answer = PaidAnswer.of(
            laplace_count(8, epsilon="0.5"), question="how many", receipt=charge.receipt()
        )
    found = model_certificate(model)
    hashes = file_hashes(model, model_files(model))
    (place / "public" / "model").mkdir(parents=True)
    for file in model_files(model):
        (place / "public" / "model" / file).write_bytes((model / file).read_bytes())
    certificate = found.publish(
        title="a model",
        files={f"model/{file}": digest for file, digest in hashes.items()},
        audits=[audit(60, loss=found.loss, delta=found.delta)],
        answers=[answer],
        collection=Collection(source="made up", lawful_basis="none is needed"),
    )
    return write_certificate(place, certificate, ledger=ledger)[0]


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger.create(tmp_path / "study.ledger")) as ledger:
        ledger.create_dataset("people", epsilon=90, delta="1e-3", unit="person")
        ledger.create_dataset("others", epsilon=9, unit="person")
        ledger.create_dataset("rows", epsilon=9, delta="1e-3", unit="row")
        ledger.create_dataset(
            "changes", epsilon=90, delta="1e-3", unit="person", relation="replace"
        )
        yield ledger


def flipped(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if value is None:
        return "0" * 64
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 0.5 if value else 0.25
    if isinstance(value, str):
        other = "1" if value[-1:] == "0" else "0"
        return value[:-1] + other
    return {"x": "y"} if isinstance(value, dict) else ["x"]


def flips(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every leaf, by its place, with another value; an empty table or list is a leaf too."""
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from flips(inner, (*at, key))
    else:
        yield at, flipped(value)


def changed(document: dict[str, Any], at: tuple[Any, ...], value: Any) -> dict[str, Any]:
    body = copy.deepcopy(document)
    inner: Any = body
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    if at != ("hash",):
        body["hash"] = content_hash(body)
    return body


FREE = {("title",), ("collection", "source")}


SHARE = float(os.environ.get("LEAVES", "1"))


def check_every_leaf(path: Path, ledger: Ledger, elsewhere: Path, share: float = SHARE) -> None:
    """Flip a share of the leaves of a certificate; the honest one passes, all of it checked."""
    document = json.loads(path.read_text(encoding="utf-8"))
    checks = verify_certificate(path, ledger=ledger)
    assert [one for one in checks if one.ok is not True] == []
    alone = elsewhere / "certificate.json"
    lie = path.with_name("lie.json")
    leaves = list(flips(document))
    assert len(leaves) > (120 if "title" in document else 40)
    # The same leaves in every run: all of them are flipped by make judge-certificates.
    for at, value in random.Random(len(leaves)).sample(leaves, math.ceil(share * len(leaves))):
        text = json.dumps(changed(document, at, value))
        lie.write_text(text, encoding="utf-8")
        checks = verify_certificate(lie, ledger=ledger)
        refused = any(one.ok is False for one in checks)
        assert refused is (at not in FREE), (at, value)
        alone.write_text(text, encoding="utf-8")
        for where, book in ((alone, ledger), (lie, None), (alone, None)):
            checks = verify_certificate(where, ledger=book)
            assert at in FREE or any(one.ok is not True for one in checks), (at, value)
    lie.unlink()


# Two learners in `make test-slow`, the others in `make judge-certificates`: minutes for each.
LEARNERS = [
    pytest.param(name, marks=pytest.mark.slow if name in SAMPLED else pytest.mark.judge)
    for name in (*ESTIMATORS, *RUNS)
]


@pytest.mark.parametrize("name", LEARNERS)
def test_every_leaf_of_every_learner_is_held_by_the_ledger(
    name: str, book: Ledger, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    make(name, tmp_path / "model", book)
    check_every_leaf(tmp_path / "model/certificate.json", book, tmp_path / "elsewhere")
    path = publish(tmp_path / "model", tmp_path / "published", book)
    check_every_leaf(path, book, tmp_path / "elsewhere")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SAMPLED, "synthetic"])
def test_some_leaves_are_held_by_the_ledger(name: str, book: Ledger, tmp_path: Path) -> None:
    """The same for a random ninth of the leaves, in little time."""
    (tmp_path / "elsewhere").mkdir()
    make(name, tmp_path / "model", book)
    check_every_leaf(tmp_path / "model/certificate.json", book, tmp_path / "elsewhere", 1 / 9)
    path = publish(tmp_path / "model", tmp_path / "published", book)
    check_every_leaf(path, book, tmp_path / "elsewhere", 1 / 9)


def ask(book: Ledger, query: Query) -> Certificate:
    """Ask a curator's desk, and have it fill the certificate of its answer."""
    rows = {"who": [f"p{k % 9}" for k in range(30)], "age": [20 + k for k in range(30)]}
    schema = Schema({"age": Integer(0, 100)}, person="who", rows_per_person=4, expected_rows=30)
    with closing(CuratedDataset("people", schema=schema, source=rows)) as held:
        desk = Curator(book, {"people": held})
        return desk.certify(desk.ask("people", query, analyst="ann"))


@pytest.mark.parametrize("share", [1 / 12, pytest.param(SHARE, marks=pytest.mark.slow)])
def test_every_leaf_of_an_answer_is_held_by_the_ledger(
    share: float, book: Ledger, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    certificate = ask(book, Mean(Field("age"), epsilon=1))
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(certificate.to_json()), encoding="utf-8")
    check_every_leaf(path, book, tmp_path / "elsewhere", share)
    read = read_certificate(path)
    assert read == certificate
    assert certified_loss(read) == read.loss
    # Neither the answer of another question nor that of another ledger passes for it.
    other = ask(book, Mean(Field("age"), epsilon=2))
    forged = replace(other, run=certificate.run)
    path.write_text(json.dumps(forged.to_json()), encoding="utf-8")
    assert "the run is not that of the answer that left" in refusals(path, book)
    forged = replace(certificate, plan={**certificate.plan, "query": other.plan["query"]})
    path.write_text(json.dumps(forged.to_json()), encoding="utf-8")
    assert "its plan costs" in refusals(path, book)
    with closing(Ledger.create(tmp_path / "other.ledger")) as empty:
        empty.create_dataset("people", epsilon=90, unit="person")
        path.write_text(json.dumps(certificate.to_json()), encoding="utf-8")
        assert "holds no answer" in refusals(path, empty)


@pytest.mark.slow
def test_a_published_answer_is_held_by_the_ledger(book: Ledger, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    query = Workload([Compare(">", Field("age"), Value(k)) for k in (30, 40)], epsilon=1)
    published = ask(book, query).publish(title="two counts", collection=Collection(source="us"))
    path = write_certificate(tmp_path / "published", published, ledger=book)[0]
    check_every_leaf(path, book, tmp_path / "elsewhere", 1 / 4)


COLLECTIONS = {
    "shares": FrequencyOracle(["tea", "milk"], "3/2"),
    "many reports": Rappor(["tea", "milk"], "1/2", changes=2),
    "mean": MeanOracle(0.0, 10.0, "3/2"),
    "ranges": Hierarchy(0.0, 16.0, "3/2", levels=2),
}
# What the collector alone knows, which a signature holds; a larger delta claims less.
SAID = {"run", "assumptions", "randomness", "versions", "plan", "delta"}
FREE_OF_LOSS = ("loss", "loss", "categories")


@pytest.mark.parametrize("name", COLLECTIONS)
def test_every_leaf_of_a_local_collection_is_refused_or_not_checked(
    name: str, tmp_path: Path
) -> None:
    """A collector has no ledger: what follows from the plan is computed again."""
    plan = COLLECTIONS[name]
    honest = certify_collection(plan, plan.server()).to_json()
    path = tmp_path / "certificate.json"

    def judged(document: dict[str, Any]) -> list[Any]:
        path.write_text(json.dumps(document), encoding="utf-8")
        return verify_certificate(path)

    fine = {one.what: one.ok for one in judged(honest)}
    assert False not in fine.values()
    assert fine["the loss is that of the plan"] is True
    for at, value in flips(honest):
        checks = judged(changed(honest, at, value))
        assert any(one.ok is not True for one in checks), (at, value)
        if (at[0] not in SAID or at == ("plan", "epsilon")) and at != FREE_OF_LOSS:
            assert any(one.ok is False for one in checks), (at, value)
    for cheaper in ("1/4", "1"):
        forged = copy.deepcopy(honest)
        tampered(PureDP(cheaper, relation="replace"))(forged)
        forged["hash"] = content_hash(forged)
        wrong = [one for one in judged(forged) if one.ok is False]
        assert [one.what for one in wrong] == ["the loss is that of the plan"]


def test_a_file_that_no_run_recorded_is_not_checked(book: Ledger, tmp_path: Path) -> None:
    """A harmless collection, answer or model with another model laid beside it is not all right."""
    plan = COLLECTIONS["shares"]
    reports = [plan.client().randomize("tea") for _ in range(3)]
    (server := plan.server()).aggregate(reports)
    (tmp_path / "plan.json").write_text(json.dumps(write_plan(["tea", "milk"], "3/2")))
    (tmp_path / "reports").write_bytes(b"".join(reports))
    named = file_hashes(tmp_path, ["plan.json", "reports"])
    counted = {
        key: {"file": file, "sha256": named[file]}
        for key, file in (("plan", "plan.json"), ("reports", "reports"))
    }
    make("moments", tmp_path / "model", book)
    query = Workload([Compare(">", Field("age"), Value(k)) for k in (30, 40)], epsilon=1)
    for at, (facts, ledger) in enumerate(
        [
            (certify_collection(plan, server, files=counted), None),
            (ask(book, query), book),
            (model_certificate(tmp_path / "model"), book),
        ]
    ):
        place = tmp_path / str(at) / "public"
        (place / "model").mkdir(parents=True)
        for file in ("plan.json", "reports"):
            (place / file).write_bytes((tmp_path / file).read_bytes())
        names = ["other/model.pt"]
        (place / "other").mkdir()
        (place / names[0]).write_bytes(b"trained without privacy")
        if at == 2:
            for file in model_files(tmp_path / "model"):
                (place / "model" / file).write_bytes((tmp_path / "model" / file).read_bytes())
                names.append(f"model/{file}")
        certificate = facts.publish(
            title="our network",
            files=file_hashes(place, names),
            collection=Collection(source="us", lawful_basis="none is needed"),
        )
        path = write_certificate(place.parent, certificate, ledger=ledger)[0]
        checks = {one.what: one.ok for one in verify_certificate(path, ledger=ledger)}
        assert checks.pop("the file other/model.pt") is None
        assert set(checks.values()) == {True}, checks


def refusals(path: Path, ledger: Ledger) -> str:
    checks = verify_certificate(path, ledger=ledger)
    return "; ".join(f"{one.what}: {one.detail}" for one in checks if one.ok is False)


def test_a_certificate_of_another_model_on_the_entry_of_a_run_is_refused(
    book: Ledger, tmp_path: Path
) -> None:
    """The forgery of issue J: PureDP(0.05) by naive Bayes for a model without privacy."""
    make("trainer", tmp_path / "model", book)
    honest = read_certificate(tmp_path / "model")
    assert honest.receipt is not None
    assert refusals(tmp_path / "model" / "certificate.json", book) == ""
    twin = nn.Linear(2, 2)
    forged = Certificate.of(
        PureDP(0.05),
        delta=1e-5,
        learner="PrivateGaussianNB",
        unit="person",
        randomness=honest.randomness,
        receipt=honest.receipt,
    )
    place = tmp_path / "forged"
    save(place, twin, replace(honest, model_digest=None))
    digest = read_certificate(place).model_digest
    forged = replace(forged, model_digest=digest)
    (place / "certificate.json").write_text(json.dumps(forged.to_json()), encoding="utf-8")
    found = refusals(place / "certificate.json", book)
    for words in (
        "the entry charged",
        "another learner",
        "another plan hash",
        "another model digest",
        "the facts are not those that were recorded",
    ):
        assert words in found
    # Published with all that belongs to it, it is refused as well.
    path = publish(place, tmp_path / "published", book)
    assert "the entry charged" in refusals(path, book)
    # So is the twin under the honest certificate, published as if nothing were.
    save(tmp_path / "twin", twin, replace(honest, model_digest=None))
    path = publish(tmp_path / "twin", tmp_path / "twin published", book)
    assert "another model digest" in refusals(path, book)


def tampered(loss: Any) -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        body["loss"] = to_json(loss)
        body["epsilon"] = loss.epsilon(delta=body["delta"])

    return change


def test_a_dearer_claim_than_the_charge_is_named_too(book: Ledger, tmp_path: Path) -> None:
    make("moments", tmp_path / "model", book)
    path = tmp_path / "model" / "certificate.json"
    for loss in (PureDP(0.5), PureDP(7.0)):
        body = json.loads(path.read_text(encoding="utf-8"))
        tampered(loss)(body)
        body["hash"] = content_hash(body)
        lie = path.with_name("lie.json")
        lie.write_text(json.dumps(body), encoding="utf-8")
        assert f"the certificate claims {loss!r}" in refusals(lie, book)


def test_a_model_that_was_packed_again_is_the_same(book: Ledger, tmp_path: Path) -> None:
    """The digest is of arrays and parameters, not of the bytes of an archive."""
    make("counts", tmp_path / "model", book)
    place = tmp_path / "model" / "model.npz"
    before = place.read_bytes()
    with np.load(place, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez_compressed(place, **dict(reversed(arrays.items())))
    assert place.read_bytes() != before
    assert refusals(tmp_path / "model" / "certificate.json", book) == ""
    arrays["class_log_prior"] = arrays["class_log_prior"] - 1.0
    np.savez(place, **arrays)
    assert "not the one that its certificate" in refusals(
        tmp_path / "model" / "certificate.json", book
    )


def test_a_charge_of_ones_own_cannot_be_checked(book: Ledger, tmp_path: Path) -> None:
    """A receipt alone is no record of the run, and the check says that it was not made."""
    with book.charge("people", PureDP(0.5)) as charge:
        receipt = charge.receipt()
    certificate = Certificate.of(
        PureDP(0.5), delta=0.0, learner="my own", unit="person", receipt=receipt
    )
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(certificate.to_json()), encoding="utf-8")
    checks = {one.what: one for one in verify_certificate(path, ledger=book)}
    assert checks["the ledger recorded this run"].ok is None
    assert not any(one.ok is False for one in checks.values())
