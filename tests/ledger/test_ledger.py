"""Charging: exact, all budgets at once, before the body, once per key, never refunded."""

import copy
import pickle
from fractions import Fraction

import pytest

from discreet._json import canonical
from discreet.errors import (
    AlreadyCharged,
    BudgetExceeded,
    InvalidValue,
    KeyConflict,
    LedgerError,
    LedgerExists,
    LedgerMissing,
    NotApplicable,
    RelationMismatch,
)
from discreet.ledger import Ledger, check_receipt
from discreet.ledger._entry import hash_text
from discreet.privacy import (
    ApproxDP,
    Filter,
    Gaussian,
    Laplace,
    PureDP,
    RandomizedResponse,
    from_json,
)

TENTH = PureDP("0.1")


def spent(ledger: Ledger, dataset: str = "census", **names: str) -> Fraction:
    return ledger.remaining(dataset, **names).spent["basic"]


# --- exact amounts -----------------------------------------------------------------------


@pytest.mark.parametrize("tenth", [0.1, "0.1", "1/10", Fraction(1, 10)])
def test_ten_tenths_are_one_and_not_a_trillionth_more(ledger: Ledger, tenth: object) -> None:
    # PEERS 6: a float filter of epsilon 1 grants nine of ten.
    for _ in range(10):
        ledger.charge("census", PureDP(tenth))
    assert spent(ledger) == 1
    with pytest.raises(BudgetExceeded) as refusal:
        ledger.charge("census", PureDP(1e-12))
    assert refusal.value.budget == "dataset"
    assert refusal.value.remaining == {"basic": 0, "delta": 0}
    assert ledger.verify().ok


def test_thirds_add_up(ledger: Ledger) -> None:
    for _ in range(3):
        ledger.charge("census", PureDP("1/3"))
    assert spent(ledger) == 1


def test_a_refusal_changes_nothing(ledger: Ledger) -> None:
    ledger.charge("census", PureDP("0.95"))
    before = ledger.show("census"), ledger.export("census")
    with pytest.raises(BudgetExceeded, match=r"'dataset'.*left: basic 0\.05"):
        ledger.charge("census", TENTH)
    assert (ledger.show("census"), ledger.export("census")) == before
    ledger.charge("census", PureDP("0.05"))


def test_the_refusal_can_be_pickled(ledger: Ledger) -> None:
    with pytest.raises(BudgetExceeded) as refusal:
        ledger.charge("census", PureDP(2))
    copy = pickle.loads(pickle.dumps(refusal.value))
    assert (str(copy), copy.budget, copy.remaining) == (
        str(refusal.value),
        "dataset",
        {"basic": 1, "delta": 0},
    )


def test_the_ledger_agrees_with_a_filter_charge_by_charge(ledger: Ledger) -> None:
    twin = Filter(epsilon=1, delta="1e-6")
    for loss in (
        Gaussian(40.0),
        Laplace(scale=30.0),
        ApproxDP("1/20", "1e-8"),
        3 * Gaussian(60.0) + TENTH,
    ):
        twin.charge(loss)
        ledger.charge("survey", loss)
        assert ledger.show("survey").budget.spent == twin.spent
        assert ledger.show("survey").budget.remaining == twin.remaining()


def test_the_default_filter_is_the_tightest_valid_one(ledger: Ledger) -> None:
    assert ledger.show("census").budget.kind == "basic"
    assert ledger.show("survey").budget.kind == "auto"
    for _ in range(100):  # basic sums alone would stop at 50
        ledger.charge("survey", PureDP("1/50"))
    assert ledger.show("survey").budget.kind == "basic+zcdp"
    with pytest.raises(BudgetExceeded):
        ledger.charge("survey", PureDP("1/2"))


@pytest.mark.parametrize("kind", ["gdp", "rdp", "zcdp", "gdp+rdp"])
def test_the_kind_is_a_property_of_the_budget(ledger: Ledger, kind: str) -> None:
    ledger.create_dataset("own", epsilon=1, delta=1e-6, kind=kind)
    ledger.charge("own", Gaussian(30.0))
    assert ledger.show("own").budget.kind == kind
    assert ledger.verify().ok


def test_sums_seen_after_answers_are_not_read_by_the_accountant(ledger: Ledger) -> None:
    # S9a: RR(0.5), then RR(0.6) or an (0, 0.0382) release, is not (1, 0.0382) in total.
    ledger.create_dataset("trap", epsilon=1, delta="0.0382", relation="replace")
    ledger.charge("trap", RandomizedResponse(0.5))
    with pytest.raises(BudgetExceeded):
        ledger.charge("trap", RandomizedResponse(0.6))


# --- history -----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_newest_charges_are_the_end_of_the_history(ledger: Ledger) -> None:
    for turn in range(230):  # several pages
        with ledger.charge("census", PureDP("1/1000"), analyst="ann" if turn % 7 else "bob"):
            pass
    ledger.charge("census", PureDP("1/1000"), analyst="bob")
    whole = ledger.history("census")[::-1]
    assert whole[0].outcome == "open"
    assert len(whole) == 231
    for analyst in (None, "ann", "bob", "nobody"):
        wanted = [row for row in whole if analyst in (None, row.analyst)]
        for limit in (1, 2, 33, 100, 231, 500):
            assert ledger.newest("census", limit=limit, analyst=analyst) == wanted[:limit]
        for before in (0, 1, whole[5].seq, whole[5].seq + 1, whole[0].seq + 5):
            rest = [row for row in wanted if row.seq < before]
            assert ledger.newest("census", limit=50, before=before, analyst=analyst) == rest[:50]


# --- plans -------------------------------------------------------------------------------


def test_a_plan_is_read_by_the_accountant_at_its_delta(ledger: Ledger) -> None:
    plan = 1000 * Gaussian(noise_multiplier=2.0).poisson(rate=0.001)
    with pytest.raises(NotApplicable, match="delta"):
        ledger.charge("survey", plan)
    ledger.charge("survey", plan, delta="1e-7")
    [row] = ledger.history("survey")
    claim = from_json(row.read_as)
    assert isinstance(claim, ApproxDP)
    assert claim.claimed_delta == Fraction(1, 10**7)
    assert claim.claimed_epsilon == Fraction(plan.epsilon(delta=1e-7))
    assert from_json(row.loss) == plan
    assert ledger.show("survey").budget.spent["delta"] == Fraction(1, 10**7)
    assert ledger.verify().ok


def test_the_deltas_of_plans_come_from_the_reserved_part(ledger: Ledger) -> None:
    plan = Gaussian(noise_multiplier=100.0).poisson(rate=0.5)
    ledger.charge("survey", plan, delta="4e-7")
    with pytest.raises(BudgetExceeded, match="delta"):
        ledger.charge("survey", plan, delta="2e-7")


def test_sums_read_a_gaussian_plan_as_it_is_and_old_entries_as_their_claim(ledger: Ledger) -> None:
    plan = Gaussian(noise_multiplier=5.0)
    ledger.create_dataset("fits", epsilon=2, delta="1e-4", kind="basic+gdp")
    ledger.charge("fits", plan, delta="1e-5")
    spent = ledger.show("fits").budget.spent
    assert float(spent["gdp"]) == pytest.approx(0.04)
    assert float(spent["basic"]) == pytest.approx(plan.epsilon(delta=1e-5))
    assert spent["delta"] == Fraction(1, 10**5)
    # Once the sum of epsilons cannot pay, no delta is needed for it either.
    for _ in range(3):
        ledger.charge("fits", plan, delta="1e-5")
    assert set(ledger.show("fits").budget.spent) == {"gdp", "delta"}
    assert ledger.show("fits").budget.spent["delta"] == 2 * Fraction(1, 10**5)
    assert ledger.verify().ok
    # As 0.1 wrote it: without the mark, every sum was charged with the claim.
    export = ledger.export("fits")
    entry = copy.deepcopy(export["chain"][1]["entry"])
    del entry["content"]["by_lane"]
    export["chain"] = [export["chain"][0], {"entry": entry, "hash": hash_text(canonical(entry))}]
    assert any("below what was spent" in str(problem) for problem in check_receipt(export))


# --- several budgets at once --------------------------------------------------------------


def test_all_budgets_are_charged_or_none(ledger: Ledger) -> None:
    ledger.create_budget("census", analyst="ann", epsilon="0.5")
    ledger.create_budget("census", project="health", epsilon="0.3")
    ledger.create_budget("census", purpose="mean", epsilon="0.2")
    ledger.charge("census", TENTH, analyst="ann", project="health", purpose="mean")
    with pytest.raises(BudgetExceeded) as refusal:
        ledger.charge("census", PureDP("0.15"), analyst="ann", project="health", purpose="mean")
    assert refusal.value.budget == "purpose:mean"
    assert refusal.value.remaining["basic"] == Fraction(1, 10)
    for names in ({}, {"analyst": "ann"}, {"project": "health"}, {"purpose": "mean"}):
        assert spent(ledger, **names) == Fraction(1, 10)
    ledger.charge("census", PureDP("0.15"), analyst="ann", project="health", purpose="sum")
    assert spent(ledger, project="health") == Fraction(1, 4)
    assert ledger.verify().ok


def test_colluding_analysts_cannot_exceed_the_dataset(ledger: Ledger) -> None:
    # PEERS 10: the only curator peer has no cap for the dataset.
    for name in ("ann", "bob", "cyd"):
        ledger.create_budget("census", analyst=name, epsilon="0.5")
    ledger.charge("census", PureDP("0.5"), analyst="ann")
    ledger.charge("census", PureDP("0.4"), analyst="bob")
    with pytest.raises(BudgetExceeded) as refusal:
        ledger.charge("census", PureDP("0.2"), analyst="cyd")
    assert refusal.value.budget == "dataset"
    assert spent(ledger, analyst="cyd") == 0


def test_a_required_scope_must_be_named_and_have_a_budget(ledger: Ledger) -> None:
    ledger.create_dataset("strict", epsilon=1, required=["analyst"])
    for names in ({}, {"analyst": "nobody"}):
        with pytest.raises(BudgetExceeded, match="name an analyst with a budget"):
            ledger.charge("strict", TENTH, **names)
    ledger.create_budget("strict", analyst="ann", epsilon="0.1")
    ledger.charge("strict", TENTH, analyst="ann")
    assert ledger.verify().ok


def test_a_sub_budget_counts_from_its_opening(ledger: Ledger) -> None:
    ledger.charge("census", TENTH, analyst="ann")
    ledger.create_budget("census", analyst="ann", epsilon="0.1")
    ledger.charge("census", TENTH, analyst="ann")
    with pytest.raises(BudgetExceeded) as refusal:
        ledger.charge("census", TENTH, analyst="ann")
    assert refusal.value.budget == "analyst:ann"
    assert ledger.verify().ok


def test_datasets_do_not_share(ledger: Ledger) -> None:
    ledger.charge("census", PureDP(1))
    ledger.charge("survey", PureDP("0.5"))
    assert ledger.datasets() == ["census", "survey"]


# --- the body ----------------------------------------------------------------------------


def test_the_charge_is_committed_before_the_body_runs(ledger: Ledger, place: str) -> None:
    with ledger.charge("census", TENTH), Ledger.open(place) as other:
        assert spent(other) == Fraction(1, 10)
        assert [row.outcome for row in other.history("census")] == ["open"]
    assert [row.outcome for row in ledger.history("census")] == ["completed"]


@pytest.mark.parametrize("error", [ValueError("age 93"), KeyboardInterrupt(), SystemExit(3)])
def test_a_failed_body_is_spent_and_its_message_is_not_kept(
    ledger: Ledger, error: BaseException
) -> None:
    # PEERS 10: refunds on errors make an error a free side channel.
    with pytest.raises(type(error)), ledger.charge("census", TENTH):
        raise error
    assert spent(ledger) == Fraction(1, 10)
    assert [row.outcome for row in ledger.history("census")] == ["failed"]
    assert "93" not in str(ledger.export("census")["chain"][-1]["entry"]["content"])
    assert ledger.verify().ok


def test_a_charge_without_a_body_is_spent(ledger: Ledger) -> None:
    charge = ledger.charge("census", TENTH)
    assert spent(ledger) == Fraction(1, 10)
    assert charge.outcome == "open"
    assert not charge.replayed


def test_a_body_runs_once(ledger: Ledger) -> None:
    charge = ledger.charge("census", TENTH)
    with charge:
        pass
    with pytest.raises(LedgerError, match="once"), charge:
        pytest.fail("ran twice")
    with pytest.raises(LedgerError, match="inside"):
        charge.record(1)


@pytest.mark.parametrize("result", [object(), float("nan"), "x" * 70_000, {1, 2}])
def test_a_result_is_json_of_moderate_size(ledger: Ledger, result: object) -> None:
    with (
        pytest.raises(InvalidValue, match="result"),
        ledger.charge("census", TENTH, key="k") as charge,
    ):
        charge.record(result)
    assert ledger.charge("census", TENTH, key="k").outcome == "failed"


# --- idempotency -------------------------------------------------------------------------


def test_the_same_key_returns_the_recorded_outcome_and_is_charged_once(ledger: Ledger) -> None:
    with ledger.charge("census", TENTH, key="query 1", analyst="ann") as charge:
        charge.record({"mean": 41.5})
    again = ledger.charge("census", TENTH, key="query 1", analyst="ann")
    assert again.replayed
    assert (again.seq, again.hash, again.outcome) == (charge.seq, charge.hash, "completed")
    assert again.result == {"mean": 41.5}
    assert spent(ledger) == Fraction(1, 10)
    with pytest.raises(AlreadyCharged) as refusal, again:
        pytest.fail("a second run would be a second release")
    assert (refusal.value.outcome, refusal.value.result) == ("completed", {"mean": 41.5})


def test_a_key_is_found_even_when_the_budget_is_gone(ledger: Ledger) -> None:
    with ledger.charge("census", PureDP(1), key="all") as charge:
        charge.record([1, 2])
    assert ledger.charge("census", PureDP(1), key="all").result == [1, 2]


def test_a_crash_or_failure_under_a_key_is_remembered(ledger: Ledger) -> None:
    ledger.charge("census", TENTH, key="crashed")
    with pytest.raises(ZeroDivisionError), ledger.charge("census", TENTH, key="failed"):
        raise ZeroDivisionError
    assert ledger.charge("census", TENTH, key="crashed").outcome == "open"
    assert ledger.charge("census", TENTH, key="failed").outcome == "failed"
    assert spent(ledger) == Fraction(1, 5)


@pytest.mark.parametrize(
    "other",
    [
        {"loss": PureDP("0.2")},
        {"loss": Laplace(scale=10.0)},
        {"analyst": "bob"},
        {"purpose": "x"},
        {"delta": "1e-9"},
    ],
)
def test_the_same_key_with_another_request_is_refused(
    ledger: Ledger, other: dict[str, object]
) -> None:
    ledger.charge("census", TENTH, key="k", analyst="ann")
    request = {"loss": TENTH, "analyst": "ann"} | other
    with pytest.raises(KeyConflict, match="another request"):
        ledger.charge("census", key="k", **request)  # type: ignore[arg-type]
    assert spent(ledger) == Fraction(1, 10)


def test_a_refused_request_leaves_its_key_free_and_datasets_have_their_own_keys(
    ledger: Ledger,
) -> None:
    with pytest.raises(BudgetExceeded):
        ledger.charge("census", PureDP(2), key="k")
    assert not ledger.charge("census", TENTH, key="k").replayed
    assert not ledger.charge("survey", TENTH, key="k").replayed


# --- refusals of bad input ----------------------------------------------------------------


def test_bad_input_is_refused_before_anything_happens(ledger: Ledger) -> None:
    before = ledger.export("census")
    with pytest.raises(InvalidValue, match=r"loss = 0\.1"):
        ledger.charge("census", 0.1)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="analyst = ''"):
        ledger.charge("census", TENTH, analyst="")
    with pytest.raises(InvalidValue, match="key = 'a\\\\n'"):
        ledger.charge("census", TENTH, key="a\n")
    with pytest.raises(InvalidValue, match="delta"):
        ledger.charge("census", TENTH, delta=2)
    with pytest.raises(RelationMismatch):
        ledger.charge("census", PureDP(0.1, "replace"))
    with pytest.raises(LedgerMissing, match="'nowhere'"):
        ledger.charge("nowhere", TENTH)
    with pytest.raises(NotApplicable, match="delta"):
        ledger.charge("census", Gaussian(1.0))
    assert ledger.export("census") == before


@pytest.mark.parametrize(
    "settings",
    [
        {"epsilon": -1},
        {"epsilon": 1, "delta": 1},
        {"epsilon": 1, "unit": " person"},
        {"epsilon": 1, "relation": "both"},
        {"epsilon": 1, "kind": "zcdp"},
        {"epsilon": 1, "required": ["owner"]},
        {"epsilon": 1, "required": "analyst"},
    ],
)
def test_bad_budgets_are_refused(ledger: Ledger, settings: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        ledger.create_dataset("other", **settings)  # type: ignore[arg-type]
    assert ledger.datasets() == ["census", "survey"]


def test_a_budget_is_opened_once(ledger: Ledger) -> None:
    with pytest.raises(LedgerExists):
        ledger.create_dataset("census", epsilon=100)
    ledger.create_budget("census", analyst="ann", epsilon="0.1")
    with pytest.raises(LedgerExists):
        ledger.create_budget("census", analyst="ann", epsilon=5)
    with pytest.raises(InvalidValue, match="exactly one"):
        ledger.create_budget("census", analyst="ann", project="p", epsilon=1)
    with pytest.raises(InvalidValue, match="exactly one"):
        ledger.create_budget("census", epsilon=1)
    with pytest.raises(InvalidValue, match="budget of 'census'"):
        ledger.remaining("census", analyst="bob")


def test_create_refuses_what_exists_and_open_what_does_not(ledger: Ledger, place: str) -> None:
    ledger.charge("census", TENTH)
    with pytest.raises(LedgerExists):
        Ledger.create(place)
    assert spent(ledger) == Fraction(1, 10)
    with pytest.raises(LedgerMissing):
        Ledger.open(place + "2")


def test_a_closed_ledger_says_so(ledger: Ledger) -> None:
    charge = ledger.charge("census", TENTH)
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.charge("census", TENTH)
    with pytest.raises(LedgerError, match="closed"), charge:
        pass
