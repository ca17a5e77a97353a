"""S26: whole runs in one process: charged first, resumed without repeating a round, certified."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from discreet.errors import (
    AlreadyCharged,
    BudgetExceeded,
    InvalidValue,
    MechanismHalted,
    ResumeRefused,
)
from discreet.federated import (
    Clients,
    DiscreetStrategy,
    FederatedPlan,
    InProcessEngine,
    Training,
    certified_loss,
    split_dirichlet,
)
from discreet.learn.dpsgd import Quantile
from discreet.ledger import Ledger
from discreet.privacy import Strategy
from discreet.randomness import source
from discreet.report import verify_certificate

RUN = {"clients": 40, "expected_cohort": 20, "rounds": 6, "clip_norm": 1.0, "delta": 1e-3}


def data(clients=40, examples=4):
    torch.manual_seed(3)
    inputs = torch.randn(clients, examples, 3)
    return Clients(inputs, (inputs.sum(-1) > 0).long())


def engine(training=None, **changes):
    torch.manual_seed(4)
    model = nn.Linear(3, 2)
    return InProcessEngine(
        changes.get("clients", data()), model, nn.CrossEntropyLoss(reduction="none"), training
    )


def make(**changes):
    given = {**RUN, **changes}
    if not {"noise_multiplier", "local_epsilon"} & set(given):
        given["noise_multiplier"] = 1.0
    return FederatedPlan(**given)


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_without_noise_and_clipping_it_is_gradient_descent_on_everything():
    clients = data()
    plan = make(expected_cohort=40, sampler="full", noise_multiplier=1e-9, clip_norm=5.0)
    training = Training(local_rate=0.5, momentum=0.0)
    found = flat(engine(training, clients=clients).run(plan).model)
    torch.manual_seed(4)
    model = nn.Linear(3, 2)
    x, y = clients.inputs.reshape(-1, 3), clients.targets.reshape(-1)
    for _ in range(6):
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.5 * p.grad
    assert torch.allclose(found, flat(model), atol=1e-4)


def test_padding_counts_for_nothing():
    one, many = data(), data()
    counts = np.array([2] * 40)
    changed = Clients(many.inputs.clone(), many.targets, counts)
    changed.inputs[:, 2:] = 1e6
    few = Clients(one.inputs[:, :2], one.targets[:, :2])
    plan = make()
    found = [
        flat(engine(clients=given).run(plan, insecure_seed=1).model) for given in (changed, few)
    ]
    assert torch.allclose(found[0], found[1], atol=1e-6)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"clipping": Quantile(count_stddev=2.0)},
        {"sampler": "without_replacement"},
        {"sampler": "cyclic", "noise": Strategy.square_root(2), "expected_cohort": 5},
        {"sampler": "fixed_bins", "noise": Strategy.square_root(2)},
        {"weight_cap": 4, "planned_weight": 1.0},
        {"trust": "aggregation", "threshold": 15, "dimension": 8},
        {"trust": "shuffler", "threshold": 15, "dimension": 8, "local_epsilon": 2.0},
        {"trust": "nobody", "dimension": 8, "local_epsilon": 2.0},
    ],
    ids=str,
)
def test_every_trust_and_sampler_runs_charges_once_and_is_verified(tmp_path, given):
    plan = make(**given)
    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.create_dataset(
            "phones", epsilon=500, delta=0.1, unit="client", relation=plan.loss.relation
        )
        done = engine().run(plan, ledger=ledger, dataset="phones")
        done.save(tmp_path / "model")
        checks = verify_certificate(tmp_path / "model" / "certificate.json", ledger=ledger)
        assert len(ledger.history("phones")) == 1
    assert {one.what: one.detail for one in checks if one.ok is False} == {}
    known = {one.what for one in checks if one.ok}
    assert {"the loss is that of the plan", "the model is the one of the certificate"} <= known
    assert certified_loss(done.certificate) == plan.loss == done.certificate.loss


def test_verification_computes_the_loss_again(tmp_path):
    done = engine().run(make())
    done.save(tmp_path / "model")
    path = tmp_path / "model" / "certificate.json"
    document = json.loads(path.read_text())
    document["plan"]["noise_multiplier"] = 3.0  # what a lying server would write
    path.write_text(json.dumps(document))
    failed = {one.what for one in verify_certificate(path) if one.ok is False}
    assert "the content has its hash" in failed
    document["plan"]["noise_multiplier"] = 0.5
    path.write_text(json.dumps(document))
    failed = {one.what for one in verify_certificate(path) if one.ok is False}
    assert "the loss is that of the plan" in failed


def test_nobody_is_asked_before_the_charge(tmp_path):
    asked = []
    plan = make()
    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.create_dataset("phones", epsilon=0.1, delta=0.1, unit="client")
        with pytest.raises(BudgetExceeded):
            engine().run(plan, ledger=ledger, dataset="phones", watch=lambda *_: asked.append(1))
        assert not asked
        assert not ledger.history("phones")
        ledger.create_dataset("rows", epsilon=10, delta=0.1, unit="row")
        with pytest.raises(InvalidValue, match="unit"):
            engine().run(plan, ledger=ledger, dataset="rows")


@pytest.mark.parametrize("label", [7, -1])
@pytest.mark.parametrize("trust", [{}, {"trust": "nobody", "dimension": 8, "local_epsilon": 2.0}])
def test_a_label_that_the_loss_does_not_know_stops_no_round(label, trust):
    """It raised after the charge, and only where the client took part: the error told of it."""
    odd, loss = data(), nn.CrossEntropyLoss(reduction="none")
    odd.targets[2, 0] = label
    run = InProcessEngine(odd, nn.Linear(3, 2), loss)
    assert bool(flat(run.run(make(**trust), insecure_seed=1).model).isfinite().all())
    fine = InProcessEngine(data(), nn.Linear(3, 2), loss)
    who = np.arange(40)
    start = torch.zeros(8)
    expected = fine._replies(start, who)
    expected[2] = 0.0
    assert torch.allclose(run._replies(start, who), expected, atol=1e-6)


def test_models_with_private_outputs_are_refused():
    loss = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(InvalidValue, match="buffers"):
        InProcessEngine(data(), nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), loss)
    dropping = InProcessEngine(data(), nn.Sequential(nn.Linear(3, 2), nn.Dropout()), loss)
    with pytest.raises(InvalidValue, match="vectorised"):
        dropping.run(make())
    with pytest.raises(InvalidValue, match="public number"):
        engine().run(make(sampler="without_replacement", clients=41))
    with pytest.raises(InvalidValue, match="dimension"):
        engine().run(make(trust="nobody", local_epsilon=1.0, dimension=9))


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    "given",
    [
        {"clipping": Quantile(count_stddev=2.0)},
        {"sampler": "cyclic", "noise": Strategy.square_root(2), "expected_cohort": 5},
        {"trust": "aggregation", "threshold": 15, "dimension": 8, "participations": 4},
    ],
    ids=str,
)
def test_a_killed_run_is_charged_once_and_repeats_no_round(tmp_path, given):
    plan = make(**given)
    taken = []

    def die(rounds, _):
        taken.append(rounds)
        if rounds == 3:
            raise Killed

    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.create_dataset(
            "phones", epsilon=500, delta=0.1, unit="client", relation=plan.loss.relation
        )
        paid = {"ledger": ledger, "dataset": "phones", "checkpoint": tmp_path / "run"}
        with pytest.raises(Killed):
            engine().run(plan, **paid, watch=die)
        with pytest.raises(ResumeRefused, match="another plan"):
            engine().run(make(**{**given, "noise_multiplier": 2.0}), **paid)
        with pytest.raises(ResumeRefused, match="another training"):
            engine(Training(local_rate=3.0)).run(plan, **paid)
        done = engine().run(plan, **paid, watch=die)
        assert taken == [1, 2, 3, 4, 5, 6]
        assert done.certificate.run["times_resumed"] == 1
        assert len(ledger.history("phones")) == 1
        assert not (tmp_path / "run" / "state.npz").exists()
        place = tmp_path / "run" / "model" / "certificate.json"
        assert [one for one in verify_certificate(place, ledger=ledger) if one.ok is False] == []
        with pytest.raises(ResumeRefused, match="complete"):
            engine().run(plan, **paid)


def test_of_two_copies_of_a_run_one_is_completed(tmp_path):
    """The budget was paid once: the copy that ends second has neither an outcome nor a model."""
    plan = make()

    def die(rounds, _):
        if rounds == 3:
            raise Killed

    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.create_dataset("phones", epsilon=500, delta=0.1, unit="client")

        def run(name, watch=None):
            place = tmp_path / name
            return engine().run(
                plan, ledger=ledger, dataset="phones", checkpoint=place, watch=watch
            )

        with pytest.raises(Killed):
            run("one", die)
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        shutil.copytree(tmp_path / "one", tmp_path / "three")
        with pytest.raises(AlreadyCharged, match="somebody else"):
            run("one", lambda rounds, _: run("two") if rounds == 5 else None)
        with pytest.raises(ResumeRefused, match="completed already"):
            run("three")
        assert [(tmp_path / name / "model").exists() for name in ("one", "two", "three")] == [
            False,
            True,
            False,
        ]
        (row,) = ledger.history("phones")
        assert row.outcome == "completed"
    # Without a ledger nobody can know: the certificate says so.
    with pytest.raises(Killed):
        engine().run(plan, checkpoint=tmp_path / "four", watch=die)
    done = engine().run(plan, checkpoint=tmp_path / "four")
    assert "Whether a copy of its directory" in str(done.certificate)


def test_a_run_killed_between_outcome_and_publication_leaves_its_model(tmp_path, monkeypatch):
    from discreet.federated import _state

    plan = make()
    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.create_dataset("phones", epsilon=500, delta=0.1, unit="client")
        paid = {"ledger": ledger, "dataset": "phones", "checkpoint": tmp_path / "run"}
        with monkeypatch.context() as patch:
            patch.setattr(_state.RunState, "publish", lambda *_: (_ for _ in ()).throw(Killed()))
            with pytest.raises(Killed):
                engine().run(plan, **paid)
        with pytest.raises(ResumeRefused, match="its model is in the directory"):
            engine().run(plan, **paid)
        assert (tmp_path / "run" / "model" / "model.npz").exists()


@pytest.mark.slow
def test_a_kill_of_the_process_between_rounds_keeps_the_charge(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(
        "import os, signal, sys\n"
        f"sys.path[:0] = {[p for p in sys.path if p]!r}\n"
        "from federated.test_engine import engine, make\n"
        "from discreet.ledger import Ledger\n"
        "def watch(rounds, _):\n"
        "    if rounds == 2 and sys.argv[2] == 'die':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    print(rounds, flush=True)\n"
        "with Ledger.open(sys.argv[1] + '/ledger') as ledger:\n"
        "    engine().run(make(), ledger=ledger, dataset='phones', watch=watch,\n"
        "                 checkpoint=sys.argv[1] + '/run')\n"
    )
    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.create_dataset("phones", epsilon=500, delta=0.1, unit="client")
    shown = []
    for what in ("die", "live"):
        command = [sys.executable, str(script), str(tmp_path), what]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=dict(os.environ)
        )
        shown.append((done.returncode, done.stdout.split()))
    assert shown[0] == (-9, ["1"])
    assert shown[1] == (0, ["3", "4", "5", "6"]), shown  # round 2 may have been seen
    with Ledger.open(tmp_path / "ledger") as ledger:
        (row,) = ledger.history("phones")
        assert row.outcome == "completed"


def test_cohorts_that_the_counters_of_clients_leave_too_small_end_a_run():
    plan = make(trust="aggregation", threshold=20, dimension=8, participations=3)
    rounds = []

    def until_short():
        # Everybody may take part three times; with these cohorts the last ones are short.
        for seed in range(40):
            rounds.clear()
            engine().run(plan, watch=lambda taken, _: rounds.append(taken), insecure_seed=seed)

    with pytest.raises(MechanismHalted, match="fewer than 20"):
        until_short()
    assert len(rounds) < 6


def test_it_learns_and_keeps_public_figures():
    clients = data(40, 8)
    plan = make(rounds=30, noise_multiplier=0.3, sampler="full", expected_cohort=40)
    training = Training(
        local_steps=2, batch=4, local_rate=0.3, momentum=0.5, decay=0.1, average=0.5
    )
    seen = (clients.inputs.reshape(-1, 3), clients.targets.reshape(-1))
    done = engine(training, clients=clients).run(plan, validation=seen, progress=False)
    assert done.history[-1]["round"] == 30
    assert done.history[-1]["accuracy"] > 0.9


def test_seeded_runs_repeat_and_say_so():
    one, two = (engine().run(make(), insecure_seed=7) for _ in range(2))
    assert torch.equal(flat(one.model), flat(two.model))
    assert one.certificate.insecure


def test_a_dirichlet_split_takes_every_example_once_and_skews_labels():
    labels = np.arange(3000) % 10
    rows = split_dirichlet(labels, clients=100, examples=30, alpha=0.1, seed=1)
    assert sorted(rows.ravel().tolist()) == list(range(3000))
    few = np.mean([len(set(labels[one])) for one in rows[:50]])
    even = split_dirichlet(labels, clients=100, examples=20, alpha=1e3, seed=1)
    assert few < 6 < np.mean([len(set(labels[one])) for one in even])
    with pytest.raises(InvalidValue, match="examples"):
        split_dirichlet(labels, clients=100, examples=31, alpha=0.1, seed=1)


def test_amplified_cohorts_on_flower_do_not_know_who_took_part_before():
    """Of two clients one is drawn, twice: half of the time it is the same one. Chance: 1e-9."""
    facts = {"expected_cohort": 1, "rounds": 2, "clip_norm": 1.0, "delta": 1e-3}
    plan = FederatedPlan(clients=2, sampler="without_replacement", noise_multiplier=1.0, **facts)
    same, bits = 0, source()
    for _ in range(200):
        strategy = DiscreetStrategy(plan, [1, 2])
        same += strategy._cohort(0, bits) == strategy._cohort(1, bits)
    assert 57 < same < 143
    # Where nothing is amplified, the counters of clients decide.
    chosen = FederatedPlan(
        clients=2, trust="nobody", local_epsilon=1.0, dimension=3, participations=1, **facts
    )
    strategy = DiscreetStrategy(chosen, [1, 2])
    assert sorted(strategy._cohort(0, bits) + strategy._cohort(1, bits)) == [1, 2]
