"""S26: DP-SGD in every silo with its own ledger; what a person of several silos loses."""

import copy
from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet.errors import (
    BudgetExceeded,
    InvalidValue,
    PlanViolation,
    ResumeRefused,
    SchemaError,
)
from discreet.federated import (
    Clients,
    FederatedPlan,
    InProcessEngine,
    SiloPlan,
    certified_loss,
    run_silos,
)
from discreet.learn.dpsgd import Plan, Quantile, Trainer, earlier_plans
from discreet.ledger import Ledger
from discreet.privacy import ApproxDP, from_json
from discreet.report import verify_certificate

SIZES = {"north": 200, "south": 90, "west": 60}


@cache
def make(**changes):
    given = {"epsilon": 4.0, "delta": 1e-4, "rounds": 2, "steps": 3, "clip_norm": 1.0}
    return SiloPlan.of_sizes(SIZES, **{**given, **changes}, batch=lambda n: n // 4)


def datasets():
    torch.manual_seed(5)
    found = {}
    for name, size in SIZES.items():
        x = torch.randn(size, 3)
        found[name] = TensorDataset(x, (x.sum(1) > 0).long())
    return found


def train(plan, **settings):
    torch.manual_seed(6)
    return run_silos(
        plan,
        settings.pop("datasets", datasets()),
        nn.Linear(3, 2),
        loss=nn.CrossEntropyLoss(reduction="none"),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        **settings,
    )


def test_a_person_of_one_silo_loses_what_the_dearest_silo_costs():
    plan = make()
    each = {name: plan.loss_of(name).epsilon(delta=1e-4) for name in SIZES}
    assert all(3.9 < one <= 4.0 for one in each.values())
    assert plan.loss == ApproxDP(max(each.values()), 1e-4)
    assert sum(plan.weights.values()) == pytest.approx(1.0)
    assert plan.weights["north"] == pytest.approx(200 / 350)


@pytest.mark.slow
def test_a_person_of_several_silos_loses_what_the_dearest_ones_cost_together():
    plan = make(silos_per_person=2)
    dearest = max(
        (plan.loss_of(a) + plan.loss_of(b)).epsilon(delta=1e-4) for a, b in combinations(SIZES, 2)
    )
    assert plan.loss.epsilon(delta=1e-4) == pytest.approx(dearest)
    assert dearest <= 4.0
    # Silos taken as disjoint would have claimed less: the mutant is refuted.
    assert max(plan.loss_of(name).epsilon(delta=1e-4) for name in SIZES) < 0.8 * dearest


def test_equal_silos_keep_their_loss_and_not_only_a_claim():
    one = Plan(examples=100, expected_batch_size=20, steps=3, clip_norm=1.0, noise_multiplier=2.0,
               delta=1e-4)  # fmt: skip
    plan = SiloPlan({"a": one, "b": one}, 4, 2)
    assert plan.loss == 8 * one.loss


def test_many_silos_fall_back_to_basic_composition():
    plans = {
        str(n): Plan(examples=100, expected_batch_size=20, steps=3, clip_norm=1.0,
                     noise_multiplier=2.0 + n / 10, delta=1e-4)
        for n in range(12)
    }  # fmt: skip
    plan = SiloPlan(plans, 1, 6)
    assert plan.loss.epsilon(delta=1e-4) >= sum(plans[str(n)].loss for n in range(6)).epsilon(
        delta=1e-4
    )


def test_every_silo_charges_its_own_ledger_and_both_units_are_stated(tmp_path):
    top = FederatedPlan(
        clients=3, expected_cohort=3, rounds=2, clip_norm=0.5, delta=1e-4, sampler="full",
        noise_multiplier=1.0,
    )  # fmt: skip
    base = make()
    plan = SiloPlan(base.silos, 2, 1, top)
    books = {}
    for name in SIZES:
        book = Ledger.create(tmp_path / name)
        book.create_dataset("patients", epsilon=8, delta=1e-3, unit="record")
        books[name] = (book, "patients")
    done = train(plan, ledgers=books)
    for name, (book, dataset) in books.items():
        (row,) = book.history(dataset)
        assert row.outcome == "completed"
        assert from_json(row.loss) == plan.loss_of(name)
        book.close()
    whole = done.certificate.run["whole_silo"]
    assert whole["epsilon"] == top.epsilon()
    assert done.certificate.unit == "record"
    assert certified_loss(done.certificate) == plan.loss
    assert "declared, not checked" in done.certificate.assumptions[0]
    done.save(tmp_path / "model")
    path = tmp_path / "model" / "certificate.json"
    assert [one for one in verify_certificate(path) if one.ok is False] == []
    honest, cheaper = done.certificate, {**whole, "epsilon": whole["epsilon"] / 2}
    for change in (
        {"run": {**honest.run, "whole_silo": cheaper}},
        {"run": {**honest.run, "whole_silo": {**whole, "delta": 1e-3}}},
        {"run": {"rounds_taken": 2, "silos_per_person": 1}},
        {"run": {**honest.run, "rounds_taken": 1}},
        {"run": {**honest.run, "silos_per_person": 3}},
        {"assumptions": honest.assumptions[1:]},
        {"unit": "person"},
        {"delta": 1e-3},
    ):
        with pytest.raises(SchemaError):
            certified_loss(replace(honest, **change))


class Killed(BaseException):
    pass


def test_a_killed_run_charges_every_silo_once_and_repeats_no_round(tmp_path):
    plan = make(rounds=4)
    books = {}
    for name in SIZES:
        book = Ledger.create(tmp_path / name)
        book.create_dataset("patients", epsilon=8, delta=1e-3, unit="record")
        books[name] = (book, "patients")

    def run(dies_after=None, plan=plan, model=None):
        """Return how many silos trained, and what came of it.

        Each makes an optimizer in the rehearsal, and one a round.
        """
        made = -len(SIZES)

        def optimizer(parameters):
            nonlocal made
            if made == dies_after:
                raise Killed
            made += 1
            return torch.optim.SGD(parameters, lr=0.5)

        torch.manual_seed(6)
        model = nn.Linear(3, 2) if model is None else model
        done = run_silos(
            plan, datasets(), model, loss=nn.CrossEntropyLoss(reduction="none"),
            optimizer=optimizer, ledgers=books, checkpoint=tmp_path / "run",
        )  # fmt: skip
        return made, done

    with pytest.raises(Killed):
        run(dies_after=4)  # in the second round, when one silo has trained
    with pytest.raises(ResumeRefused, match="another plan"):
        run(plan=make(rounds=3))
    with pytest.raises(ResumeRefused, match="another model"):
        run(model=nn.Linear(3, 3))
    trained, done = run()
    assert trained == 6  # the third and the fourth round of three silos
    assert done.certificate.run["times_resumed"] == 1
    assert certified_loss(done.certificate) == plan.loss
    for name, (book, dataset) in books.items():
        (row,) = book.history(dataset)
        assert row.outcome == "completed"
        assert from_json(row.loss) == plan.loss_of(name)
    place = tmp_path / "run" / "model" / "certificate.json"
    assert [one for one in verify_certificate(place) if one.ok is False] == []
    with pytest.raises(ResumeRefused, match="complete"):
        run()
    for book, _ in books.values():
        book.close()


def test_silos_of_any_sizes_cost_a_person_no_more_than_asked_for():
    """Two silos that cost the same each may cost a little more together than one of them twice."""
    sizes = {"a": 100, "b": 10_000}
    plan = SiloPlan.of_sizes(
        sizes, epsilon=2.0, delta=1e-5, rounds=5, steps=10, clip_norm=1.0,
        batch=lambda size: int(size**0.5), silos_per_person=2,
    )  # fmt: skip
    assert 1.95 < plan.loss.epsilon(delta=1e-5) <= 2.0
    with pytest.raises(InvalidValue, match="epsilon"):
        SiloPlan.of_sizes(sizes, epsilon=0.0, delta=1e-5, rounds=1, steps=1, clip_norm=1.0,
                          batch=lambda size: 5)  # fmt: skip


@pytest.mark.slow
def test_averages_of_silos_learn():
    plan = make(epsilon=20.0, rounds=3, steps=20)
    done = train(plan)
    x = torch.cat([one.tensors[0] for one in datasets().values()])
    right = (done.model(x).argmax(1) == (x.sum(1) > 0).long()).double().mean()
    assert right > 0.8


def test_plans_survive_json_and_damage_is_seen():
    plan = make()
    document = plan.to_json()
    assert SiloPlan.from_json(document) == plan
    for change in ({"version": 3}, {"silos": {}}, {"silos_per_person": 4}, {"unit": "person"}):
        with pytest.raises(SchemaError):
            SiloPlan.from_json({**document, **change})


def test_what_does_not_fit_is_refused_before_any_charge(tmp_path):
    plan = make()
    with pytest.raises(InvalidValue, match="datasets"):
        train(plan, datasets={"north": datasets()["north"]})
    with Ledger.create(tmp_path / "ledger") as book:
        book.create_dataset("rows", epsilon=0.1, delta=1e-3, unit="record")
        with pytest.raises(InvalidValue, match="ledgers"):
            train(plan, ledgers={"north": (book, "rows")})
        with pytest.raises(BudgetExceeded):
            train(plan, ledgers=dict.fromkeys(SIZES, (book, "rows")))
        assert not book.history("rows")
    with pytest.raises(InvalidValue, match="client"):
        SiloPlan(plan.silos, 2, 1, FederatedPlan(
            clients=9, expected_cohort=3, rounds=2, clip_norm=1, delta=1e-4, noise_multiplier=1.0
        ))  # fmt: skip


@pytest.mark.parametrize("change", [{"clipping": Quantile()}, {"weight_cap": 5}])
def test_silos_reply_with_neither_bits_nor_weights(change):
    """With such a plan every reply was refused, and a model of pure noise was certified."""
    known = {"clients": 3, "expected_cohort": 3, "rounds": 2, "clip_norm": 1.0, "delta": 1e-4}
    top = FederatedPlan(**known, noise_multiplier=1.0, sampler="full", **change)
    with pytest.raises(InvalidValue, match="fixed clip norm"):
        SiloPlan(make().silos, 2, 1, top)


def test_examples_of_another_type_are_refused_before_any_charge(tmp_path):
    """They raised in the first silo's training, after all silos had paid."""
    with Ledger.create(tmp_path / "ledger") as book:
        for name in SIZES:
            book.create_dataset(name, epsilon=99, delta="1e-2", unit=make().unit)
        wide = {
            name: TensorDataset(one.tensors[0].double(), one.tensors[1])
            for name, one in datasets().items()
        }
        with pytest.raises(InvalidValue, match="inputs"):
            run_silos(
                make(),
                wide,
                nn.Linear(3, 2),
                loss=nn.CrossEntropyLoss(reduction="none"),
                optimizer=lambda some: torch.optim.SGD(some, lr=0.1),
                ledgers={name: (book, name) for name in SIZES},
            )
        assert not any(book.history(name) for name in SIZES)


def test_what_a_model_cost_before_is_not_left_out():
    """Certificates of DP-SGD add it; those of federated runs said nothing of it."""
    plan = Plan(
        examples=60, expected_batch_size=6, steps=1, clip_norm=1.0, noise_multiplier=1.0, delta=1e-4
    )
    data = datasets()
    mean = nn.CrossEntropyLoss(reduction="none")
    model = nn.Linear(3, 2)
    assert earlier_plans(model) == ()
    trainer = Trainer(model, plan, optimizer=torch.optim.Adam, loss=mean)
    model = trainer.fit(data["west"], progress=False).model
    assert earlier_plans(model) == (plan,)
    with pytest.raises(PlanViolation, match="does not add"):
        run_silos(make(), data, model, loss=mean, optimizer=torch.optim.Adam)
    rows = Clients(torch.zeros(2, 4, 3), torch.zeros(2, 4, dtype=torch.int64))
    few = {"clients": 2, "expected_cohort": 2, "rounds": 1, "clip_norm": 1.0, "delta": 1e-4}
    again = FederatedPlan(**few, noise_multiplier=1.0)
    with pytest.raises(PlanViolation, match="does not add"):
        InProcessEngine(rows, model, mean).run(again)


@pytest.mark.parametrize("kind", ["clients", "silos"])
def test_what_came_of_a_federated_run_is_not_trained_again(kind):
    """Each certificate stated its own run alone, so three runs of epsilon 3 gave three of 3."""
    mean, data, start = nn.CrossEntropyLoss(reduction="none"), datasets(), nn.Linear(3, 2)
    rows = Clients(torch.zeros(2, 4, 3), torch.zeros(2, 4, dtype=torch.int64))
    few = {"clients": 2, "expected_cohort": 2, "rounds": 1, "clip_norm": 1.0, "delta": 1e-4}
    small = FederatedPlan(**few, noise_multiplier=1.0)
    plan = Plan(
        examples=60, expected_batch_size=6, steps=1, clip_norm=1.0, noise_multiplier=1.0, delta=1e-4
    )

    def by_clients(model):
        return InProcessEngine(rows, model, mean).run(small).model

    def by_silos(model):
        return run_silos(make(), data, model, loss=mean, optimizer=torch.optim.Adam).model

    def by_dpsgd(model):
        trainer = Trainer(model, plan, optimizer=torch.optim.Adam, loss=mean)
        return trainer.fit(data["west"], progress=False).model

    done = (by_clients if kind == "clients" else by_silos)(start)
    for again in (by_clients, by_silos, by_dpsgd):
        for model in (done, copy.deepcopy(done), nn.Sequential(done)):
            with pytest.raises(PlanViolation, match="trained by federated learning before"):
                again(model)
    parameters = nn.Linear(3, 2)
    parameters.load_state_dict(done.state_dict())  # as one reads them from a file
    by_dpsgd(parameters)
