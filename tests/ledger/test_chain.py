"""The chain: what tampering shows, what only a receipt shows, and what can be checked offline."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discreet._json import canonical
from discreet.errors import InvalidValue, LedgerCorrupt, SchemaError
from discreet.ledger import Ledger, check_receipt
from discreet.ledger._entry import EMPTY_ROLL, Entry, Head, Roll, hash_text, parse_entry
from discreet.privacy import Filter, Gaussian, PureDP
from ledger.tampering import query, tamper

TENTH = PureDP("0.1")


@pytest.fixture
def busy(ledger: Ledger) -> Ledger:
    """Entries 1 to 8 of ``census``: a budget, three charges with outcomes, one open."""
    ledger.create_budget("census", analyst="ann", epsilon="0.5")
    for key in ("a", "b", None):
        with ledger.charge("census", TENTH, analyst="ann", key=key) as charge:
            charge.record(key)
    ledger.charge("census", TENTH)
    ledger.charge("survey", Gaussian(30.0))
    assert ledger.verify().ok
    return ledger


def problems(ledger: Ledger, **kwargs: Any) -> str:
    verdict = ledger.verify(**kwargs)
    assert not verdict.ok
    return "\n".join(map(str, verdict.problems))


# --- what is found -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("UPDATE entries SET text = replace(text, '1/10', '1/99') WHERE seq = 2", "was changed"),
        ("UPDATE entries SET text = '{}' WHERE seq = 2", "cannot be read"),
        ("UPDATE entries SET text = 'ä' WHERE seq = 2", "cannot be read"),
        ("UPDATE entries SET hash = 'beef' WHERE seq = 2", "was changed"),
        ("UPDATE entries SET kind = 'budget' WHERE seq = 2", "index of the entry"),
        ("UPDATE entries SET request_key = 'z' WHERE seq = 2", "index of the entry"),
        ("UPDATE entries SET refers = 8 WHERE seq = 3", "index of the entry"),
        ("DELETE FROM entries WHERE seq = 4 AND dataset = 1", "entries 4 to 4 are missing"),
        ("DELETE FROM entries WHERE seq = 8 AND dataset = 1", "the ledger remembers 8"),
        ("DELETE FROM entries WHERE dataset = 1", "the chain is empty"),
        ("DELETE FROM entries WHERE seq = 0 AND dataset = 1", "does not begin here"),
        ("UPDATE entries SET seq = seq + 20 WHERE seq = 8", "was moved here from position 8"),
        ("UPDATE datasets SET seq = 7 WHERE number = 1", "the ledger remembers 7"),
        ("UPDATE datasets SET hash = 'beef' WHERE number = 1", "entries were removed or added"),
        ("DELETE FROM budgets WHERE scope = 'analyst'", "budgets are not those of the chain"),
        ("UPDATE budgets SET state = '{}'", "the budget 'analyst:ann'"),
        ("DELETE FROM datasets WHERE number = 1", "dataset number 1 was removed"),
        ("DELETE FROM datasets WHERE number = 2", "a dataset number 2 are orphans"),
        ("UPDATE meta SET value = 'beef' WHERE name = 'ledger'", "made by another ledger"),
        ("UPDATE datasets SET name = 'cesnus' WHERE number = 1", "belongs to the dataset 'census'"),
    ],
)
def test_tampering_is_found(busy: Ledger, place: str, statement: str, finding: str) -> None:
    tamper(place, statement)
    assert finding in problems(busy)


def test_exchanged_entries_are_found(busy: Ledger, place: str) -> None:
    tamper(
        place,
        "UPDATE entries SET seq = 99 WHERE seq = 2 AND dataset = 1",
        "UPDATE entries SET seq = 2 WHERE seq = 4 AND dataset = 1",
        "UPDATE entries SET seq = 4 WHERE seq = 99 AND dataset = 1",
    )
    found = problems(busy)
    assert "entry 2: was moved here from position 4" in found
    assert "entry 4: was moved here from position 2" in found


@pytest.mark.parametrize("field", ["spent", "budget", "epsilon", "charges"])
def test_lowered_sums_and_raised_caps_are_found(busy: Ledger, place: str, field: str) -> None:
    [(text,)] = query(place, "SELECT state FROM budgets WHERE scope = 'dataset' AND dataset = 1")
    state = json.loads(text)
    if field == "spent":
        state["lanes"][0]["spent"] = "1/10"
    elif field == "budget":
        state["lanes"][0]["budget"] = "1000001/1000000"
    elif field == "epsilon":
        state["epsilon"], state["lanes"][0]["budget"] = "2", "2"
    else:
        state["charges"] = 1
    changed = json.dumps(state)
    tamper(place, f"UPDATE budgets SET state = '{changed}' WHERE scope='dataset' AND dataset = 1")
    assert "the sums or settings remembered for 'dataset'" in problems(busy)


def test_an_entry_of_another_dataset_is_found(busy: Ledger, place: str) -> None:
    [(text, hash_)] = query(place, "SELECT text, hash FROM entries WHERE dataset = 2 AND seq = 1")
    tamper(
        place, f"UPDATE entries SET text = '{text}', hash = '{hash_}' WHERE dataset = 1 AND seq = 2"
    )
    assert "belongs to another chain" in problems(busy)


def forged(place: str, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Rewrite the chain of ``census`` with right hashes: what somebody with the file can do."""
    rows = query(place, "SELECT text FROM entries WHERE dataset = 1 ORDER BY seq")
    chain = [json.loads(text) for (text,) in rows]
    change(chain)
    statements = ["DELETE FROM entries WHERE dataset = 1"]
    entry, genesis = None, ""
    for item in chain:
        ledger, dataset = item["ledger"], item["dataset"]
        head = entry.head if entry else Head(ledger, dataset, "", -1, "")
        roll = Roll.parse(item["roll"])
        entry = Entry.follow(
            head, kind=item["kind"], at=item["at"], content=item["content"], roll=roll
        )
        genesis = genesis or entry.hash
        key, refers = item["content"].get("key"), item["content"].get("charge")
        statements.append(
            "INSERT INTO entries (dataset, seq, kind, refers, text, hash, request_key) VALUES"
            f" (1, {entry.seq}, '{entry.kind}', {refers or 'NULL'}, '{entry.text}',"
            f" '{entry.hash}', {repr(key) if key else 'NULL'})"
        )
    assert entry is not None
    statements.append(
        f"UPDATE datasets SET genesis = '{genesis}', seq = {entry.seq}, hash = '{entry.hash}'"
        " WHERE number = 1"
    )
    tamper(place, *statements)


def without_the_sums(chain: list[dict[str, Any]]) -> None:
    chain[2]["content"]["loss"]["loss"]["epsilon"] = "9/10"


def with_lower_sums(chain: list[dict[str, Any]]) -> None:
    for item in chain:
        for sums in item["content"].get("spent", {}).values():
            sums["basic"] = "1/100"


def past_the_cap(chain: list[dict[str, Any]]) -> None:
    extra = copy.deepcopy(chain[-1])
    extra["content"]["loss"]["loss"]["epsilon"] = "9/10"
    extra["content"]["spent"]["dataset"]["basic"] = "13/10"
    chain.append(extra)


def around_the_analyst(chain: list[dict[str, Any]]) -> None:
    del chain[2]["content"]["spent"]["analyst:ann"]


def one_key_twice(chain: list[dict[str, Any]]) -> None:
    chain[4]["content"]["key"] = "a"


def two_outcomes(chain: list[dict[str, Any]]) -> None:
    chain[5]["content"]["charge"] = 2


def outcome_of_a_budget(chain: list[dict[str, Any]]) -> None:
    chain[3]["content"]["charge"] = 1


def outcome_undone(chain: list[dict[str, Any]]) -> None:
    chain[3]["content"]["outcome"] = "refunded"


def second_genesis(chain: list[dict[str, Any]]) -> None:
    chain.append(copy.deepcopy(chain[0]))


def nonsense(chain: list[dict[str, Any]]) -> None:
    chain[2]["content"]["loss"] = {"schema": "discreet.loss", "version": 1, "loss": {"kind": "?"}}


def budget_with_a_past(chain: list[dict[str, Any]]) -> None:
    spent = Filter(epsilon="1/2")
    spent.charge(TENTH)
    chain[1]["content"]["opened"] = spent.state()


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (without_the_sums, "the sums of 'dataset' are below what was spent"),
        (with_lower_sums, "the sums of 'dataset' are below what was spent"),
        (past_the_cap, "the budget 'dataset' was exceeded"),
        (around_the_analyst, "does not name the budgets that it had to charge"),
        (two_outcomes, "is a second outcome of entry 2"),
        (outcome_of_a_budget, "is the outcome of entry 1, which is no charge"),
        (outcome_undone, "is neither completed nor failed"),
        (second_genesis, "the chain begins a second time"),
        (nonsense, "does not make sense: SchemaError"),
        (budget_with_a_past, "was not opened as a new one"),
    ],
)
def test_a_chain_with_right_hashes_is_still_replayed(
    busy: Ledger, place: str, change: Callable[[list[dict[str, Any]]], None], finding: str
) -> None:
    if change is two_outcomes:  # the index for it stands in the way as well
        tamper(place, "DROP INDEX entries_by_charge")
    forged(place, change)
    assert finding in problems(busy)


def test_one_key_twice_is_found_in_an_export(busy: Ledger, place: str) -> None:
    tamper(place, "DROP INDEX entries_by_key")
    forged(place, one_key_twice)
    assert "the key 'a' was charged before" in problems(busy)


def test_a_plan_charged_below_its_cost_is_found(ledger: Ledger, place: str) -> None:
    plan = Gaussian(noise_multiplier=5.0)
    ledger.create_dataset("third", epsilon=2, delta=1e-5)
    ledger.charge("third", plan, delta="1e-6")
    export = ledger.export("third")
    entry = copy.deepcopy(export["chain"][1]["entry"])
    entry["content"]["read_as"]["loss"]["epsilon"] = "1/100"
    export["chain"][1] = {"entry": entry, "hash": hash_text(canonical(entry))}
    assert "the plan costs more than it was charged" in "".join(map(str, check_receipt(export)))


def test_a_charge_noted_at_more_than_its_cost_is_a_note_not_a_problem(ledger: Ledger) -> None:
    # As after an update that reads a loss more sharply.
    ledger.charge("census", TENTH)
    export = ledger.export("census")
    entry = copy.deepcopy(export["chain"][1]["entry"])
    entry["content"]["spent"]["dataset"]["basic"] = "2/10"
    export["chain"][1] = {"entry": entry, "hash": hash_text(canonical(entry))}
    assert check_receipt(export) == []


# --- what only a receipt shows -------------------------------------------------------------


def cut_off(place: str) -> None:
    """Remove the last charge and everything that remembers it."""
    [(hash_,)] = query(place, "SELECT hash FROM entries WHERE dataset = 1 AND seq = 7")
    [(text,)] = query(place, "SELECT state FROM budgets WHERE scope = 'dataset' AND dataset = 1")
    state = json.loads(text)
    state["lanes"][0]["spent"], state["charges"] = "3/10", 3
    changed = json.dumps(state)
    tamper(
        place,
        "DELETE FROM entries WHERE dataset = 1 AND seq = 8",
        f"UPDATE datasets SET seq = 7, hash = '{hash_}' WHERE number = 1",
        f"UPDATE budgets SET state = '{changed}' WHERE scope = 'dataset' AND dataset = 1",
    )


def test_a_chain_cut_off_with_all_memory_shows_against_a_receipt(busy: Ledger, place: str) -> None:
    receipts = [busy.receipt("census", seq) for seq in range(9)]
    assert busy.verify(receipts=receipts).ok
    cut_off(place)
    assert busy.verify(receipts=receipts[:8]).ok
    assert "no longer on the chain" in problems(busy, receipts=receipts)


def test_receipts_of_other_ledgers_and_forged_ones_are_refused(busy: Ledger, place: str) -> None:
    with Ledger.create(place + "2") as other:
        other.create_dataset("census", epsilon=1)
        other.create_dataset("third", epsilon=1)
        foreign = other.receipt("census", 0)
        unknown = other.receipt("third", 0)
    assert "issued by another ledger" in problems(busy, receipts=[foreign])
    assert "its dataset is gone" in problems(busy, receipts=[unknown])
    forged_receipt = busy.receipt("census", 2)
    forged_receipt["entry"]["content"]["analyst"] = "bob"
    assert "hash of the receipt" in problems(busy, receipts=[forged_receipt])
    with pytest.raises(SchemaError):
        busy.verify(receipts=[busy.export("census")])


# --- offline ------------------------------------------------------------------------------


def test_receipts_and_exports_are_checked_offline(busy: Ledger) -> None:
    receipt = busy.charge("census", TENTH).receipt()
    assert receipt == busy.receipt("census", 9)
    export = busy.export("census")
    for document in (receipt, export):
        assert check_receipt(document) == []
        assert check_receipt(json.dumps(document, indent=3)) == []
    assert check_receipt(export, receipts=[receipt]) == []
    export["chain"].pop()
    assert check_receipt(export) == []
    assert "no longer on the chain" in str(check_receipt(export, receipts=[receipt])[0])


@pytest.mark.parametrize("position", range(9))
def test_every_entry_of_an_export_is_watched(busy: Ledger, position: int) -> None:
    export = busy.export("census")
    changed, dropped, doubled = (copy.deepcopy(export) for _ in range(3))
    changed["chain"][position]["entry"]["at"] = "2000-01-01T00:00:00.000000+00:00"
    assert check_receipt(changed)
    doubled["chain"].insert(position, doubled["chain"][position])
    assert check_receipt(doubled)
    del dropped["chain"][position]
    last = position == 8  # only a receipt shows the end missing
    assert bool(check_receipt(dropped)) is not last


@pytest.mark.parametrize(
    "document",
    [
        "",
        "[]",
        "{}",
        '{"schema": "discreet.ledger.receipt", "version": 2}',
        '{"schema": "discreet.ledger.receipt", "version": 1, "hash": ""}',
        '{"schema": "discreet.ledger.export", "version": 1, "dataset": "d", "chain": 3}',
        '{"schema": "discreet.ledger.export", "version": 1, "dataset": "d", "chain": [{}]}',
        '{"schema": "discreet.loss", "version": 1, "loss": {}}',
        '{"version": 1, "version": 1}',
        '{"hash": NaN}',
    ],
)
def test_other_documents_are_not_receipts(document: str) -> None:
    with pytest.raises(SchemaError):
        check_receipt(document)


def test_empty_documents_prove_nothing() -> None:
    empty = {"schema": "discreet.ledger.export", "version": 1, "dataset": "d", "chain": []}
    assert "empty" in str(check_receipt(empty)[0])
    bare = {"schema": "discreet.ledger.receipt", "version": 1, "hash": "", "entry": {}}
    assert "cannot be read" in str(check_receipt(bare)[0])


def test_an_entry_has_one_text() -> None:
    head = Head("l", "d", "g", 4, "p")
    content = {"b": 1, "a": "é"}
    entry = Entry.follow(head, kind="charge", at="now", content=content, roll=EMPTY_ROLL)
    assert parse_entry(entry.text) == entry
    assert entry.seq == 5
    for other in (entry.text.replace(":5", ": 5"), entry.text + " ", entry.text[:-1], "[]"):
        with pytest.raises(SchemaError):
            parse_entry(other)


# --- while charging -----------------------------------------------------------------------


def test_a_spoilt_budget_is_never_charged(busy: Ledger, place: str) -> None:
    tamper(place, "UPDATE budgets SET state = '{}' WHERE scope = 'dataset'")
    with pytest.raises(LedgerCorrupt, match="nothing was charged"):
        busy.charge("census", TENTH)


def test_the_tables_refuse_to_change_entries(busy: Ledger, place: str) -> None:
    statements = ["DELETE FROM entries", "UPDATE entries SET hash = ''"]
    columns = "dataset, seq, kind, refers, text, hash, request_key"
    if "://" in place:
        statements += [
            "TRUNCATE entries",
            (
                f"INSERT INTO entries ({columns}) SELECT {columns} FROM entries WHERE seq = 2"
                " ON CONFLICT (dataset, seq) DO UPDATE SET hash = ''"
            ),
        ]
    else:
        values = ("1, 2, 'x', NULL, '', '', NULL", "1, 50, 'x', NULL, '', '', 'a'")
        statements += [f"REPLACE INTO entries ({columns}) VALUES ({row})" for row in values]
        statements.append(f"REPLACE INTO entries ({columns}) VALUES (1, 51, 'x', 2, '', '', NULL)")
    for statement in statements:
        with pytest.raises(Exception, match="append-only"):
            query(place, statement)
    assert busy.verify().ok


# --- publications --------------------------------------------------------------------------


def test_a_publication_is_an_entry_that_costs_nothing(busy: Ledger) -> None:
    spent, charges = busy.show("census").budget.spent, busy.history("census")
    receipt = busy.receipt("census", 2)
    for digest in ("0" * 64, "1" * 64, "0" * 64):  # the same model may be published again
        busy.record_publication(receipt, digest)
    assert busy.verify().ok
    assert busy.show("census").budget.spent == spent
    assert busy.history("census") == charges
    exported = busy.export("census")
    assert check_receipt(exported) == []
    last = exported["chain"][-1]["entry"]
    assert (last["kind"], last["content"]) == (
        "publication",
        {"charge": 2, "certificate": "0" * 64},
    )
    busy.charge("census", TENTH)
    assert busy.verify(receipts=[receipt]).ok


def test_only_a_digest_for_a_charge_of_this_ledger_is_published(busy: Ledger) -> None:
    receipt, entries = busy.receipt("census", 2), busy.show("census").entries
    for digest in ("x", "0" * 63, "A" * 64):
        with pytest.raises(InvalidValue, match="SHA-256"):
            busy.record_publication(receipt, digest)
    with pytest.raises(InvalidValue, match="receipt of an entry of this ledger"):
        busy.record_publication({**receipt, "hash": "0" * 64}, "0" * 64)
    for other in ({}, busy.receipt("census", 0), busy.receipt("census", 3)):
        with pytest.raises(InvalidValue, match="receipt of a charge"):
            busy.record_publication(other, "0" * 64)
    assert busy.show("census").entries == entries


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"charge": 3, "certificate": "0" * 64}, "no charge"),
        ({"charge": 2, "certificate": "0"}, "digest of a certificate"),
        ({"charge": 2}, "does not make sense"),
    ],
)
def test_a_publication_that_makes_no_sense_is_found(
    content: dict[str, Any], words: str, busy: Ledger
) -> None:
    busy.record_publication(busy.receipt("census", 2), "0" * 64)
    exported = copy.deepcopy(busy.export("census"))
    link = exported["chain"][-1]
    link["entry"]["content"] = content
    link["hash"] = hash_text(canonical(link["entry"]))
    assert words in "; ".join(map(str, check_receipt(exported)))


def test_a_plan_without_a_tight_pair_that_was_charged_too_little_is_found(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lower end of its bracket is 0, which every claim is above."""
    from discreet.ledger import _ledger as module
    from discreet.privacy import ApproxDP, Laplace
    from discreet.privacy import _charges as readings

    loss = Laplace(0.01, relation="replace").sample_without_replacement(sample=9, population=10)
    with Ledger.create(file) as book:
        book.create_dataset("census", epsilon=1, delta="1e-3", kind="basic", relation="replace")
        forged = ApproxDP("1/1000", "1/1000000", "replace")
        for place in (module, readings):
            monkeypatch.setattr(place, "plan_claim", lambda loss, delta: forged)
        book.charge("census", loss, delta="1/1000000")
        monkeypatch.undo()
        assert any("costs more than it was charged" in p.what for p in book.verify().problems)
