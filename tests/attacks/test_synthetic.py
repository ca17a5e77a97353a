"""S33: attacks on synthetic rows find copies, and nothing in rows with a proof or without a link.

All draws have fixed seeds.
"""

from typing import Any

import numpy as np
import pytest

from discreet.attacks import (
    counting_shadows,
    distance_ratio,
    linkability,
    run_attack,
    singling_out,
    synthetic_inference,
)
from discreet.data import Categorical, Integer, Schema
from discreet.errors import InvalidValue
from discreet.report import attack_page
from discreet.synth import OneShot

NAMES = [f"street {at}" for at in range(40)]
SCHEMA = Schema(
    {
        "age": Integer(0, 99),
        "pay": Integer(0, 9_999),
        "home": Categorical(NAMES, other=NAMES[0]),
        "ill": Categorical(["no", "yes"], other="no"),
    },
    expected_rows=500,
)


def people(count: int, seed: int) -> dict[str, Any]:
    """Rows of one population; nearly all are unique."""
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 100, count)
    return {
        "age": age,
        "pay": (rng.gamma(2.0, 900.0, count) + 30 * age).astype(int).clip(0, 9_999),
        "home": np.array(NAMES, dtype=object)[rng.integers(0, 40, count)],
        "ill": np.where(rng.random(count) < age / 150, "yes", "no"),
    }


MEMBERS, OTHERS, KNOWN = people(500, 1), people(500, 2), people(500, 3)
PRIVATE = OneShot(evaluations=200).plan(SCHEMA, epsilon=1, delta=1e-6)
RELEASED = {
    "copies": MEMBERS,
    "other people": people(500, 4),
    "private": PRIVATE.run(MEMBERS, insecure_seed=5).sample(500, seed=6),
}
INPUTS = {"members": MEMBERS, "nonmembers": OTHERS, "auxiliary": KNOWN, "on": ["age", "pay"]}
ATTACKS = ["distance_ratio", "singling_out", "linkability", "synthetic_inference"]


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("released", RELEASED)
def test_copies_leak_and_rows_of_others_do_not(name: str, released: str) -> None:
    inputs = {**INPUTS, "released": RELEASED[released], "attribute": "home"}
    done = run_attack(name, inputs)
    assert done.finding is not None
    assert done.finding.leaks == (released == "copies"), str(done.finding)
    assert done.to_json()["finding"]["trials"] > 100
    page = attack_page(done).html()
    assert "internal" in page.lower()


def test_a_control_group_explains_what_is_true_of_everybody() -> None:
    """Whether somebody is ill follows from the age, of people in the table as of others."""
    rows = {name: MEMBERS[name] for name in ("age",)} | {"old": MEMBERS["age"] > 60}
    others = {"age": OTHERS["age"], "old": OTHERS["age"] > 60}
    found = synthetic_inference(rows, rows, others, "old")
    assert found.targets.share > 0.98
    assert found.control.share > 0.9
    assert not found.finding.leaks
    copied = synthetic_inference(MEMBERS, MEMBERS, OTHERS, "home")
    assert copied.risk > 0.9
    assert "risk" in copied.to_json()


def as_they_are(rows: dict[str, Any], seed: int) -> dict[str, Any]:
    del seed
    return rows


def test_shadow_tables_find_a_rare_record_in_copies() -> None:
    canary = {"age": [99], "pay": [9_999], "home": [NAMES[39]], "ill": ["no"]}
    found = counting_shadows(as_they_are, KNOWN, canary, tables=40, rows=100)
    assert found.auc == 1.0
    assert found.roc.members == 10


def test_shadow_tables_do_not_find_it_in_private_rows() -> None:
    canary = {"age": [99], "pay": [9_999], "home": [NAMES[39]], "ill": ["no"]}

    def private(rows: dict[str, Any], seed: int) -> Any:
        # The noise without the fit, which sees nothing else: the noisy histograms.
        rng = np.random.default_rng(seed)
        made: dict[str, Any] = {}
        for name, values in rows.items():
            domain = np.unique(np.concatenate([KNOWN[name], canary[name]]))
            counts = np.array([(values == one).sum() for one in domain])
            noisy = np.maximum(0.0, counts + rng.normal(0, 20, counts.size)) + 1e-9
            made[name] = domain[rng.choice(domain.size, 100, p=noisy / noisy.sum())]
        return made

    found = counting_shadows(private, KNOWN, canary, tables=40, rows=100)
    assert found.auc_interval(confidence=0.99)[0] < 0.5


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: distance_ratio({"age": []}, MEMBERS, OTHERS, KNOWN), "released"),
        (lambda: distance_ratio("rows.csv", MEMBERS, OTHERS, KNOWN), "released"),
        (lambda: distance_ratio(MEMBERS, {"age": [1]}, OTHERS, KNOWN), "members"),
        (lambda: singling_out(MEMBERS, MEMBERS, OTHERS, width=9), "width"),
        (lambda: singling_out({"ill": ["no"] * 9}, MEMBERS, OTHERS, width=1), "released"),
        (lambda: linkability(MEMBERS, MEMBERS, OTHERS, on=list(MEMBERS)), "on"),
        (lambda: synthetic_inference(MEMBERS, MEMBERS, OTHERS, "wage"), "attribute"),
        (lambda: counting_shadows(as_they_are, KNOWN, MEMBERS, tables=9), "tables"),
        (lambda: counting_shadows(as_they_are, 3, MEMBERS), "auxiliary"),
    ],
)
def test_wrong_input_is_named(call: Any, argument: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        call()
    assert raised.value.argument.startswith(argument)
