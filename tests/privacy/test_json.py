"""Losses as JSON and back, also what version 0.1 wrote."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import example, given, settings

from discreet.errors import InvalidValue, SchemaError
from discreet.privacy import (
    ZCDP,
    ApproxDP,
    Gaussian,
    Laplace,
    Loss,
    PureDP,
    Relation,
    from_json,
    read_old,
    to_json,
)
from oracles.built_losses import every_kind, losses


def old(kind, **fields):
    return {"schema": "discreet.loss", "version": 1, "loss": {"kind": kind, **fields}}


GAUSSIAN = to_json(Gaussian(1.0))["loss"]


PAIR = {"kind": "FinitePair", "p": [0.01, 0.99], "q": [0.2, 0.8]}


@pytest.mark.parametrize(
    ("document", "loss", "reason"),
    [
        (
            old("PoissonSampled", base=to_json(Laplace(1.0))["loss"], rate=0.1, records=5),
            Laplace(1.0).poisson(rate=0.1).group(5),
            "counted as one",
        ),
        (
            old("PoissonSampled", base=to_json(ZCDP(0.1))["loss"], rate=0.1, records=1),
            ZCDP(0.1),
            "no theorem",
        ),
        (
            old(
                "PoissonSampled",
                base=to_json(Gaussian(1.0).poisson(rate=0.5))["loss"],
                rate=0.1,
                records=5,
            ),
            Gaussian(1.0).poisson(rate=0.05).group(5),
            "counted as one",
        ),
        (
            old("Grouped", base=GAUSSIAN, size=1, target="replace"),
            Gaussian(1.0).group(2, relation="replace"),
            "a removal and an addition",
        ),
        (old("PoissonSampled", base=GAUSSIAN, rate=1.0, records=3), Gaussian(1.0).group(3), None),
        (old("PoissonSampled", base=GAUSSIAN, rate=0.5, records=3), None, None),
        (old(**PAIR, relation="add_remove"), None, None),
        (old(**PAIR, relation="replace"), None, "one order"),
        (
            old("Composition", parts=[{"count": 2, "loss": {**PAIR, "relation": "add_remove"}}]),
            None,
            "one order",
        ),
        (
            old(
                "Composition",
                parts=[{"count": 2, "loss": {**PAIR, "relation": "add_remove", "oriented": False}}],
            ),
            None,
            None,
        ),
        (to_json(3 * Gaussian(1.0) + PureDP(1)), None, None),
    ],
)
def test_losses_of_version_0_1_are_read_with_the_reason_why_they_cost_more(document, loss, reason):
    found = read_old(document)
    assert found.loss == (from_json(document) if loss is None else loss)
    if reason is None:
        assert found.reason is None
    else:
        assert found.reason is not None
        assert reason in found.reason


def nested(depth):
    loss = Gaussian(1.0, "replace")
    for _ in range(depth):
        loss = loss.sample_without_replacement(sample=1, population=2)
    return loss


@pytest.mark.parametrize(
    "build",
    [
        lambda: PureDP(Fraction(1, 10**5000)),
        lambda: PureDP(10**4200),
        lambda: 3 * PureDP("1e4500"),
        lambda: ApproxDP(1, Fraction(1, 10**5000)),
        lambda: nested(64),
        lambda: 2 * nested(63),
    ],
)
def test_what_could_not_be_read_back_is_not_built(build):
    with pytest.raises(InvalidValue, match=r"4000 digits|64 deep"):
        build()


@given(losses | every_kind)
@settings(max_examples=500)
@example(nested(63))
@example(PureDP(Fraction(10**3990 + 1, 10**3990)))
def test_json_round_trip(loss):
    document = to_json(loss)
    assert from_json(document) == loss
    text = json.dumps(document, allow_nan=False)
    back = from_json(text)
    assert back == loss
    assert repr(back) == repr(loss)
    assert json.dumps(to_json(back)) == text


def test_json_is_versioned_and_exact():
    assert to_json(3 * PureDP("1/10")) == {
        "schema": "discreet.loss",
        "version": 1,
        "loss": {
            "kind": "Composition",
            "parts": [
                {
                    "loss": {"kind": "PureDP", "epsilon": "1/10", "relation": "add_remove"},
                    "count": 3,
                }
            ],
        },
    }


def test_compositions_are_canonicalised_on_reading():
    part = to_json(PureDP(1))["loss"]
    other = to_json(Laplace(1.0))["loss"]
    inner = {"kind": "Composition", "parts": [{"loss": part, "count": 2}]}
    parts = [{"loss": x, "count": n} for x, n in [(inner, 3), (other, 1), (part, 1)]]
    document = to_json(PureDP(1)) | {"loss": {"kind": "Composition", "parts": parts}}
    assert from_json(document) == 7 * PureDP(1) + Laplace(1.0)


def _document(loss: dict) -> dict:
    return {"schema": "discreet.loss", "version": 1, "loss": loss}


_PURE = {"kind": "PureDP", "epsilon": "1/10", "relation": "add_remove"}


_CURVE = {"kind": "RenyiDP", "orders": 2.0, "epsilons": 1.0, "relation": "replace"}


_NOISE = {"kind": "Gaussian", "noise_multiplier": 1.0, "relation": "add_remove"}


_SAMPLED = {"kind": "PoissonSampled", "base": _NOISE, "rate": 0.5, "records": 1}


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (_document(_PURE) | {"version": 2}, "version 2"),
        (_document(_PURE) | {"version": 1.0}, "version 1.0"),
        (_document(_PURE) | {"version": True}, "version True"),
        (_document(_PURE) | {"schema": "other"}, "'other'"),
        (_document(_PURE) | {"note": 1}, "unknown field 'note'"),
        ({"schema": "discreet.loss", "version": 1}, "missing field 'loss'"),
        ({"version": 1, "loss": _PURE}, "missing field 'schema'"),
        (_document(_PURE | {"kind": "Free"}), "unknown kind 'Free'"),
        (_document(_PURE | {"kind": None}), "unknown kind None"),
        (_document({"epsilon": "1"}), "missing field 'kind'"),
        (_document(_PURE | {"delta": "0"}), "unknown field 'delta'"),
        (_document({"kind": "PureDP", "epsilon": "1"}), "missing field 'relation'"),
        (_document(_PURE | {"epsilon": 0.1}), "epsilon: 0.1"),
        (_document(_PURE | {"epsilon": "-1/10"}), "'-1/10'"),
        (_document(_PURE | {"epsilon": "1/0"}), "'1/0'"),
        (_document(_PURE | {"epsilon": "0.1"}), "'0.1'"),
        (_document(_PURE | {"epsilon": "1e999999999"}), "'1e999999999'"),
        (_document(_PURE | {"epsilon": "9" * 9000}), "exact number"),
        (_document(_PURE | {"epsilon": "9" * 5000}), "PureDP.epsilon"),
        (_document(_PURE | {"relation": "both"}), "one of add_remove, replace"),
        (_document(_NOISE | {"noise_multiplier": -1.0}), "<= noise_multiplier <="),
        (_document(_NOISE | {"noise_multiplier": "1"}), "<= noise_multiplier <="),
        (_document(_NOISE | {"noise_multiplier": None}), "noise_multiplier: None"),
        (
            _document(_NOISE | {"noise_multiplier": [1.0]}),
            "noise_multiplier: [1.0]: expected a number",
        ),
        (_document(_CURVE), "expected a list"),
        (_document({"kind": "Composition", "parts": []}), "not empty"),
        (_document({"kind": "Composition", "parts": [{"loss": _PURE}]}), "'count'"),
        (_document({"kind": "Composition", "parts": [{"loss": _PURE, "count": 0}]}), "count: 0"),
        (_document({"kind": "Composition", "parts": [{"loss": _PURE, "count": 1.0}]}), "1.0"),
        (
            _document(
                {
                    "kind": "Composition",
                    "parts": [
                        {"loss": _PURE, "count": 1},
                        {"loss": _PURE | {"relation": "replace"}, "count": 1},
                    ],
                }
            ),
            "cannot combine",
        ),
        (_document(_SAMPLED | {"rate": 1.5}), "0 < rate < 1"),
        (_document(_SAMPLED | {"rate": 1.0}), "0 < rate < 1"),
        (_document(_SAMPLED | {"records": 0}), "records = 0"),
        (_document(_SAMPLED | {"base": _PURE, "records": 2}), "for a Gaussian only"),
        (_document(_SAMPLED | {"base": [1]}), "expected an object"),
        (_document({"kind": "Grouped", "base": _PURE, "size": 3, "target": "replace"}), "even"),
        ("[1, 2]", "expected an object"),
        ("{", "not JSON"),
        ('{"schema": NaN}', "NaN"),
        ('{"schema": 1, "schema": 1}', "given twice"),
    ],
)
def test_reading_is_strict(document, named):
    with pytest.raises(SchemaError) as caught:
        from_json(document)
    assert named in str(caught.value)


def test_nesting_has_a_limit():
    document = _NOISE | {"relation": "replace"}
    for _ in range(80):
        document = {
            "kind": "SampledWithoutReplacement",
            "base": document,
            "sample": 1,
            "population": 2,
        }
    with pytest.raises(SchemaError, match="64 deep"):
        from_json(_document(document))


def test_a_loss_that_is_no_data_class_is_not_written():
    class Foreign(Loss):
        @property
        def relation(self) -> Relation:
            return Relation.ADD_REMOVE

    with pytest.raises(SchemaError, match="Foreign"):
        to_json(Foreign())
