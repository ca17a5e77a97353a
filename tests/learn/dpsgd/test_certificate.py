import json
from dataclasses import replace

import pytest
import torch

from discreet.certificate import Certificate
from discreet.errors import InvalidValue, SchemaError
from discreet.learn import dpsgd
from discreet.learn.dpsgd import save
from discreet.learn.dpsgd._certificate import certify_run, require_sound
from discreet.learn.dpsgd._checkpoint import write_tensors
from discreet.randomness import source
from learn.dpsgd.made_up_runs import network, plan

SECURE = {"randomness": "operating system", "stream": "AES-256-CTR, Box-Muller"}


def written(made=None, **changes):
    options = {"steps_taken": 4, "randomness": SECURE, "isolation": "checked", **changes}
    return certify_run(made or plan(), **options)


def test_it_states_the_loss_of_the_whole_plan():
    made = plan(steps=100, unit="person")
    paper = written(made, steps_taken=3)
    assert paper.loss == made.loss
    assert paper.epsilon == made.loss.epsilon(delta=1e-5)
    assert (paper.relation, paper.unit) == ("add_remove", "person")
    assert paper.warnings == ()
    assert set(paper.versions) == {"discreet", "numpy", "python", "torch"}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"randomness": {"randomness": "INSECURE seed 3"}}, "INSECURE RANDOMNESS"),
        ({"isolation": "vouched"}, "not checked"),
        ({"made": plan(delta=1 / 64)}, "DELTA IS TOO LARGE"),
    ],
)
def test_warnings_are_loud(changes, word):
    paper = written(**changes)
    assert word in paper.warnings[0]
    assert word in str(paper)
    assert any(word in line["text"] for line in paper.to_json()["warnings"])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clipping": "quantile"},
        {"sampler": "without_replacement"},
        {"noise_multiplier": None, "epsilon": 2.0},
    ],
)
def test_json_gives_it_back(changes):
    receipt = {"schema": "discreet.ledger.receipt", "version": 1, "hash": "0" * 64, "entry": {}}
    paper = written(plan(**changes), receipt=receipt)
    text = json.dumps(paper.to_json())
    assert Certificate.from_json(text) == paper
    assert require_sound(paper) == plan(**changes)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: body.update(epsilon=0.1),
        lambda body: body.update(delta=1e-9),
        lambda body: body.update(relation="replace"),
        lambda body: body["run"].update(steps_taken=5),
        lambda body: body["run"].update(steps_taken=-1),
        lambda body: body.update(unit="household"),
        lambda body: body["plan"].update(noise_multiplier=2.0),
        lambda body: body["plan"].update(clip_norm=2.0),
        lambda body: body.update(covers="everything"),
        lambda body: body.update(loss=plan(noise_multiplier=9.0).loss and _loss_of(9.0)),
        lambda body: body.pop("receipt"),
        lambda body: body.update(extra=1),
        lambda body: body.update(version=7),
        lambda body: body.update(epsilon=float("nan")),
        lambda body: body.update(epsilon="3"),
        lambda body: body.update(epsilon=1e9),
        lambda body: body.update(epsilon=True),
        lambda body: body.update(learner="naive Bayes"),
        lambda body: body["run"].pop("isolation"),
        lambda body: body["run"].update(steps_taken=True),
        lambda body: body["run"].update(steps_taken=3.5),
        lambda body: body["run"].update(final_clip_norm=-5.0),
        lambda body: body["run"].update(final_clip_norm=2.0),
        lambda body: body["run"].update(isolation="vouched"),
        lambda body: body["run"].update(isolation="proved"),
        lambda body: body.update(randomness={"randomness": "INSECURE seed 3"}),
        lambda body: body.update(randomness=[]),
        lambda body: body.update(versions={"discreet": 1}),
        lambda body: body.update(warnings=["all is well"]),
        lambda body: body.update(warnings="text"),
        lambda body: body.update(assumptions=[]),
        lambda body: body.update(receipt=7),
        lambda body: body.update(model_digest="abc"),
    ],
)
def test_a_certificate_that_does_not_fit_together_is_refused(spoil):
    body = json.loads(json.dumps(written().to_json()))
    spoil(body)
    with pytest.raises(SchemaError):
        require_sound(Certificate.from_json(body))


def _loss_of(noise_multiplier):
    return written(plan(noise_multiplier=noise_multiplier)).to_json()["loss"]


@pytest.mark.parametrize("text", ["", "[1]", "{}"])
def test_text_that_is_no_certificate(text):
    with pytest.raises(SchemaError):
        Certificate.from_json(text)


def test_a_run_with_a_seed_cannot_hide_it():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = dpsgd.make_private(
        model, optimizer, plan(), isolation="vouched", source=source(insecure_seed=9)
    )
    paper = private.certificate()
    assert "INSECURE" in paper.randomness["randomness"]
    assert "INSECURE RANDOMNESS" in paper.warnings[0]
    private.detach()


def test_a_saved_model_comes_back_with_its_certificate(tmp_path):
    model, paper = network(seed=1), written()
    save(tmp_path / "out", model, paper)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "certificate.json",
        "model.safetensors",
    ]
    empty = network(seed=2)
    found = dpsgd.load(tmp_path / "out", empty)
    assert found == replace(paper, model_digest=found.model_digest)
    for one, other in zip(model.parameters(), empty.parameters(), strict=True):
        assert torch.equal(one, other)


def test_models_and_certificates_that_do_not_belong_together(tmp_path):
    save(tmp_path, network(), written())
    save(tmp_path / "other", network(), written(plan(noise_multiplier=5.0)))
    (tmp_path / "certificate.json").write_bytes((tmp_path / "other/certificate.json").read_bytes())
    with pytest.raises(SchemaError, match="different plans"):
        dpsgd.load(tmp_path, network())


def test_damaged_files_are_refused(tmp_path):
    save(tmp_path, network(), written())
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(SchemaError, match="cannot be read"):
        dpsgd.load(tmp_path, network())
    file.unlink()
    with pytest.raises(SchemaError):
        dpsgd.load(tmp_path, network())
    with pytest.raises(SchemaError):
        dpsgd.load(tmp_path / "nowhere", network())


def test_another_architecture_is_refused(tmp_path):
    save(tmp_path, network(), written())
    with pytest.raises(SchemaError, match="another model"):
        dpsgd.load(tmp_path, torch.nn.Linear(6, 3))
    notes = {"plan_hash": plan().content_hash}
    write_tensors(tmp_path / "model.safetensors", {"w": torch.zeros(1)}, notes=notes)
    with pytest.raises(SchemaError, match="not the one"):
        dpsgd.load(tmp_path, network())


def test_tied_weights_are_saved(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    save(tmp_path, model, written())
    twin = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    twin[1].weight = twin[0].weight
    dpsgd.load(tmp_path, twin)
    assert torch.equal(twin[1].weight, model[0].weight)


def test_a_certificate_belongs_to_one_model(tmp_path):
    """Another model of the same plan, such as one that was trained on without privacy."""
    model = network()
    save(tmp_path, model, written())
    certified = replace(written(), model_digest=dpsgd.load(tmp_path, model).model_digest)
    with torch.no_grad():
        model[0].weight[0, 0] += 1e-3
    with pytest.raises(InvalidValue, match="when its certificate was written"):
        save(tmp_path / "other", model, certified)
    save(tmp_path / "other", model, written())
    (tmp_path / "model.safetensors").write_bytes(
        (tmp_path / "other/model.safetensors").read_bytes()
    )
    with pytest.raises(SchemaError, match="not the one"):
        dpsgd.load(tmp_path, network())


def test_a_warning_cannot_be_taken_off():
    body = written(isolation="vouched").to_json()
    assert Certificate.from_json(body).warnings
    with pytest.raises(SchemaError, match="warnings"):
        Certificate.from_json({**body, "warnings": []})
