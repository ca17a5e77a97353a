"""A schema that was learned remembers what it cost, and whatever is learned by it counts it."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

from discreet.data import Boolean, Learned, Real, Schema, plan_schema
from discreet.errors import InvalidValue, RelationMismatch, SchemaError
from discreet.learn import (
    PrivateCategoricalNB,
    PrivateGaussianNB,
    PrivateLogisticRegression,
    load_model,
    make_learner,
    train_table,
)
from discreet.learn.projected_sgd import PrivateProjectedSGDClassifier
from discreet.ledger import Ledger
from discreet.privacy import ApproxDP, from_json

OPEN = Schema({"age": Real(), "ill": Boolean()}, target="ill", expected_rows=500)
AGES = np.random.default_rng(0).uniform(0, 90, 500)
DATA = {"age": AGES, "ill": AGES > 40}


def learned(**more):
    return plan_schema(OPEN, epsilon=0.5, **more).run(DATA, insecure_seed=1).value


@pytest.fixture
def book(tmp_path):
    with Ledger.create(tmp_path / "book") as ledger:
        ledger.create_dataset("d", epsilon=10, delta="1e-4", unit="row")
        yield ledger


def test_it_is_written_and_read_with_the_schema_and_is_no_declaration():
    schema = learned()
    cost = schema.learned
    assert cost.loss.epsilon(delta=0) == pytest.approx(0.5)
    for again in (
        Schema.from_toml(schema.to_toml()),
        pickle.loads(pickle.dumps(schema)),
        copy.deepcopy(schema),
        schema.for_prediction(),
        replace(schema, expected_rows=9),
    ):
        assert again.learned == cost
    assert Learned.from_json(schema.to_dict()["learned"]) == cost
    plain = replace(schema, learned=None)
    assert plain == schema
    assert plain.content_hash == schema.content_hash
    assert plain.to_toml() != schema.to_toml()


def test_damaged_costs_are_refused():
    text = learned().to_toml()
    for damaged in (
        text.replace("DiscreteLaplace", "Nothing"),
        text + 'more = "x"\n',
        text[: text.index("json = ")] + "json = 3\n",
    ):
        assert damaged != text
        with pytest.raises(SchemaError):
            Schema.from_toml(damaged)
    with pytest.raises(InvalidValue, match="learned"):
        replace(OPEN, learned="cheap")
    with pytest.raises(InvalidValue, match="costs a person with several rows more"):
        replace(learned(), person="id", rows_per_person=2)
    with pytest.raises(InvalidValue, match="learned in part"):
        plan_schema(learned().with_columns({"age": Real()}), epsilon=1)


@pytest.mark.parametrize(
    "make",
    [
        lambda s: PrivateLogisticRegression(schema=s, epsilon=1.0, max_iter=5),
        lambda s: PrivateGaussianNB(schema=s, epsilon=1.0),
        lambda s: PrivateCategoricalNB(schema=s, bins=4, epsilon=1.0),
    ],
)
def test_a_fit_adds_it_and_a_ledger_is_charged_for_both(make, book, tmp_path):
    """Before, the certificate said 1 and the ledger was charged 1; the truth is 1.5."""
    schema = learned()
    without = make(replace(schema, learned=None)).fit(DATA).certificate_
    model = make(schema).fit(DATA, ledger=book, dataset="d")
    found = model.certificate_
    assert without.epsilon <= 1.0 < found.epsilon
    assert found.loss == without.loss + schema.learned.loss == model.planned_loss()
    assert clone(model).rehearse(DATA).loss == found.loss
    (row,) = book.history("d")
    assert from_json(row.loss) == found.loss
    assert found.plan["schema_cost"]["counted"] is True
    model.save(tmp_path / "model.npz")
    again = load_model(tmp_path / "model.npz")
    assert again.schema.learned == schema.learned
    assert again.certificate_ == found


def test_a_receipt_is_named_and_not_counted_twice(book):
    plan = plan_schema(OPEN, epsilon=0.5)
    with book.charge("d", plan.loss, purpose="schema") as charge:
        schema = plan.run(DATA, receipt=charge.receipt()).value
    assert Schema.from_toml(schema.to_toml()).learned.receipt == schema.learned.receipt
    model = PrivateGaussianNB(schema=schema, epsilon=1.0).fit(DATA, ledger=book, dataset="d")
    assert model.certificate_.epsilon <= 1.0
    cost = model.certificate_.plan["schema_cost"]
    assert cost["counted"] is False
    assert cost["receipt"]["entry"]["seq"] == schema.learned.receipt["entry"]["seq"]
    assert any(
        "were learned from the same records" in one for one in model.certificate_.assumptions
    )
    losses = [from_json(row.loss) for row in book.history("d")]
    assert losses == [plan.loss, model.certificate_.loss]


def test_losses_that_do_not_add_up_are_refused_before_the_charge(book):
    book.create_dataset("r", epsilon=9, delta="1e-4", unit="row", relation="replace")
    model = PrivateProjectedSGDClassifier(schema=learned(), steps=50)
    with pytest.raises(RelationMismatch, match="do not add up"):
        model.fit(DATA, ledger=book, dataset="r")
    model.set_params(schema=learned(relation="replace")).fit(DATA, ledger=book, dataset="r")
    assert len(book.history("r")) == 1


def test_a_cost_without_a_finite_epsilon_is_refused():
    schema = replace(learned(), learned=Learned(ApproxDP(1.0, 0.1)))
    with pytest.raises(InvalidValue, match="no epsilon is finite"):
        PrivateGaussianNB(schema=schema).fit(DATA)


@pytest.mark.parametrize("learner", ["naive-bayes", "compare"])
def test_training_with_a_learned_schema_counts_it_once(learner, book, tmp_path):
    lines = [
        "age,ill",
        *(f"{age},{str(ill).lower()}" for age, ill in zip(AGES, AGES > 40, strict=True)),
    ]
    (tmp_path / "p.csv").write_text("\n".join(lines) + "\n")
    done = train_table(
        tmp_path / "p.csv",
        OPEN,
        epsilon=2.0,
        learn_schema=0.25,
        learner=learner,
        ledger=book,
        dataset="d",
        out=tmp_path / "model",
    )
    (row,) = book.history("d")
    assert from_json(row.loss) == done.certificate.loss
    assert done.certificate.epsilon <= 2.0
    assert done.certificate.plan["schema_cost"]["counted"] is True
    again = load_model(tmp_path / "model")
    # Whoever learns from the same records by that schema later finds who paid for it.
    assert again.schema.learned.receipt["entry"]["seq"] == row.seq
    other = train_table(tmp_path / "p.csv", learned(), epsilon=1.0, learner="naive-bayes")
    assert 1.0 < other.certificate.epsilon <= 1.5
    assert isinstance(make_learner("naive-bayes", learned()), PrivateCategoricalNB)
