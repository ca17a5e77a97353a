"""The certificate: what it says, what it cannot say, and its schema."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from discreet.audit import TrainingAudit
from discreet.certificate import (
    Collection,
    PaidAnswer,
    content_hash,
    require_valid,
    schema,
    schema_faults,
)
from discreet.errors import InvalidValue, RelationMismatch, SchemaError
from discreet.mechanisms import laplace_count
from discreet.privacy import (
    GDP,
    ApproxDP,
    DiscreteLaplace,
    Loss,
    PureDP,
    every_accountant,
    from_json,
)
from discreet.report import InternalFacts, annex_schema, internal_annex
from report.certificates import (
    AT,
    DELTA,
    LOSS,
    STATED,
    audit,
    facts,
    fitted,
    internal_facts,
    paid_facts,
    public_certificate,
    published,
)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return public_certificate(paid_facts(tmp_path_factory.mktemp("paid")), at=AT)


def texts(document: dict[str, Any], severity: str) -> str:
    return " ".join(w["text"] for w in document["warnings"] if w["severity"] == severity)


# --- what it says -----------------------------------------------------------------------


def test_figures_are_those_of_the_calculus(document: dict[str, Any]) -> None:
    promise = document["guarantee"]
    assert from_json(promise["loss"]) == LOSS
    assert promise["epsilon"] == LOSS.epsilon(delta=DELTA)
    assert promise["epsilon_lower"] <= promise["epsilon"]
    everybody = every_accountant(LOSS, delta=DELTA)
    everybody.pop("best")
    assert promise["accountants"] == everybody
    assert promise["groups"][0] == {"size": 2, "epsilon": LOSS.group(2).epsilon(delta=DELTA)}
    meaning = document["meaning"]
    rates = {one["fpr"]: one["tpr"] for one in meaning["rates"]}
    assert rates[0.01] == LOSS.tradeoff(0.01)
    assert meaning["advantage"] == LOSS.delta_bounds(epsilon=0.0).upper
    # The advantage is the largest gap of the curve, so no point may lie above it.
    assert all(tpr - fpr <= meaning["advantage"] + 1e-9 for fpr, tpr in rates.items())
    even = next(one for one in meaning["beliefs"] if one["prior"] == 0.5)
    bounds = LOSS.posterior(prior=0.5, failure_probability=1e-6)
    assert (even["lower"], even["upper"]) == (bounds.lower, bounds.upper)
    assert document["written"] == "2026-01-02T03:04:05Z"
    assert document["hash"] == content_hash(document)
    assert document["verdict"]["state"] == "consistent"


def test_answers_about_the_same_data_count_and_others_do_not(document: dict[str, Any]) -> None:
    [other] = document["answers"]
    assert other["counted_in_the_guarantee"] is False
    assert other["epsilon"] == 0.5
    release = laplace_count(80, epsilon="0.5")
    same = PaidAnswer.of(release, question="how many")
    whole = PureDP(epsilon=1) + DiscreteLaplace(scale=2.0)
    made = public_certificate(facts(loss=PureDP(epsilon=1), answers=(same,)), at=AT)
    assert from_json(made["guarantee"]["loss"]) == whole
    assert made["answers"][0]["counted_in_the_guarantee"] is True
    assert made["guarantee"]["epsilon"] == pytest.approx(whole.epsilon(delta=DELTA))
    assert made["guarantee"]["epsilon"] > 1.4
    replaced = laplace_count(80, epsilon="0.5", relation="replace")
    with pytest.raises(RelationMismatch, match="how many"):
        published(facts(answers=(PaidAnswer.of(replaced, question="how many"),)))


@pytest.mark.parametrize(
    ("changes", "state", "severity", "words"),
    [
        ({}, "not audited", "serious", "No ledger was charged"),
        ({}, "not audited", "caution", "Nobody has audited"),
        ({}, "not audited", "caution", "has not stated: source"),
        ({"audits": (audit(120),)}, "violated", "void", "Audit: epsilon is at least"),
        (
            {"audits": (audit(20, guesses=20),)},
            "too weak to tell",
            "caution",
            "its ceiling",
        ),
        ({"randomness": {"noise": "INSECURE seed 7"}}, "void", "void", "INSECURE RANDOMNESS"),
        ({"unit": "row"}, "not audited", "caution", "one row. Whoever owns several"),
        ({"loss": PureDP(epsilon=20)}, "not audited", "serious", "Epsilon is above 15"),
        ({"loss": PureDP(epsilon=8)}, "not audited", "caution", "Epsilon is above 5"),
        ({"delta": 0.01}, "not audited", "serious", "Delta is above 0.001"),
        ({"delta": 0.0005}, "not audited", "caution", "Delta is above 0.0001"),
        ({"run": {"isolation": "vouched"}}, "not audited", "serious", "was not checked"),
        ({"plan": {"examples": 10**6}}, "not audited", "serious", "DELTA IS TOO LARGE"),
        ({"loss": GDP(mu=1.0), "delta": 0.0}, "void", "void", "No finite epsilon"),
    ],
)
def test_each_fact_calls_for_its_warning(
    changes: dict[str, Any], state: str, severity: str, words: str
) -> None:
    made = public_certificate(facts(**changes), at=AT)
    assert made["verdict"]["state"] == state
    assert words in texts(made, severity)
    ranks = ["void", "serious", "caution", "note"]
    order = [ranks.index(one["severity"]) for one in made["warnings"]]
    assert order == sorted(order)


def test_a_good_certificate_has_no_severe_warning(document: dict[str, Any]) -> None:
    assert {one["severity"] for one in document["warnings"]} == {"note"}


# --- what it cannot say -----------------------------------------------------------------


def test_the_public_part_is_made_without_importing_attacks_or_internal_facts() -> None:
    code = (
        "import sys, discreet.certificate\n"
        "bad = [m for m in sys.modules if m.startswith(('discreet.attacks', 'torch', 'sklearn',"
        " 'discreet.report', 'discreet.audit'))]\n"
        "assert not bad, bad\n"
        "import discreet.report\n"
        "assert 'discreet.attacks._membership' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("audits", (internal_facts().attacked[0],)),
        ("audits", (internal_facts().attacked[0].results[0],)),
        ("answers", (internal_facts().utility[0],)),
        ("plan", {"accuracy": internal_facts().utility[0].accuracy}),
        ("plan", {"scores": internal_facts().attacked[0].results[0].scores}),
        ("receipt", {"result": internal_facts()}),
        ("files", {"model": 3}),
        ("collection", {"source": "x"}),
        ("title", " "),
        ("loss", 3.0),
        ("delta", 1.0),
    ],
)
def test_public_facts_refuse_what_is_not_theirs(field: str, value: object) -> None:
    with pytest.raises((InvalidValue, SchemaError), match=field):
        published(facts(**{field: value}))


def test_builders_refuse_each_others_facts(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match="InternalFacts"):
        internal_annex(fitted(facts()), document)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="time zone"):
        public_certificate(facts(), at=AT.replace(tzinfo=None))


def test_the_schema_is_closed_wherever_it_is_not_a_table_of_the_learner() -> None:
    """No object of the public schema takes fields of any name but plans, losses and evidence."""
    free: list[str] = []

    def walk(rule: Any, at: str) -> None:
        if not isinstance(rule, dict):
            return
        if rule.get("type") == "object" and rule.get("additionalProperties") is not False:
            free.append(at)
        for name, inner in {**rule.get("properties", {}), **rule.get("$defs", {})}.items():
            walk(inner, f"{at}.{name}")
        walk(rule.get("items"), f"{at}[]")
        for inner in rule.get("anyOf", ()):
            walk(inner, at)

    walk(schema(), "")
    assert sorted(free) == [
        ".answers[].randomness",
        ".audit.evidence",
        ".files",
        ".guarantee.accountants",
        ".loss",
        ".plan",
        ".randomness",
        ".receipt.entry",
        ".run",
        ".versions",
    ]


def test_an_internal_field_is_refused(document: dict[str, Any]) -> None:
    for place in ((), ("guarantee",), ("collection",), ("meaning",), ("verdict",)):
        smuggled = copy.deepcopy(document)
        inner = smuggled
        for name in place:
            inner = inner[name]
        inner["training_accuracy"] = 0.99
        with pytest.raises(SchemaError, match="training_accuracy"):
            require_valid(smuggled)


# --- the schema -------------------------------------------------------------------------


def mutants(value: Any) -> list[Any]:
    """Documents that differ from a valid one in a single place."""
    found: list[Any] = []
    if isinstance(value, dict):
        for key in value:
            found.append({k: v for k, v in value.items() if k != key})
            found += [{**value, key: inner} for inner in mutants(value[key])]
        found.append({**value, "unheard_of": 1})
    elif isinstance(value, list):
        for at, item in enumerate(value[:2]):
            found += [[*value[:at], inner, *value[at + 1 :]] for inner in mutants(item)]
        found.append([*value, 3])
    else:
        found += [None, True, -1, 2, 0.5, 10**9, "", "x", [], {}]
    return found


@pytest.mark.parametrize("part", ["fitted", "public", "internal"])
def test_the_schema_reader_agrees_with_jsonschema(part: str, document: dict[str, Any]) -> None:
    whole = internal_annex(internal_facts(), document) if part == "internal" else document
    if part == "fitted":
        whole = fitted(facts()).to_json()
    if part == "internal":
        for one in whole["attacks"]:
            one["result"] = {"auc": 0.5}
    rule = annex_schema() if part == "internal" else schema()
    jsonschema.Draft202012Validator.check_schema(rule)
    judge = jsonschema.Draft202012Validator(rule)
    # One in five of the mutants is enough to see every word of the schema.
    every = [json.loads(json.dumps(whole)), *mutants(whole)[::5]]
    refused = 0
    for candidate in every:
        wrong = bool(schema_faults(candidate, rule))
        assert wrong == (not judge.is_valid(candidate)), candidate
        refused += wrong
    assert not schema_faults(whole, rule)
    assert len(every) > 50
    assert refused > len(every) / 3


def test_the_schema_reader_knows_what_it_does_not_know() -> None:
    with pytest.raises(SchemaError, match="multipleOf"):
        schema_faults(3, {"multipleOf": 2})
    with pytest.raises(SchemaError, match="defs"):
        schema_faults(3, {"$ref": "https://example.org/schema"})
    # Stricter than JSON Schema: whoever wrote 2 does not write 2.0.
    assert schema_faults(1.0, {"type": "integer"}) == ["the document: 1.0 is not of type integer"]
    assert schema_faults(2.0, {"const": 2}) == ["the document: 2.0 is not 2"]
    assert schema_faults(2, {"enum": [2.0]}) == ["the document: 2 is none of 2.0"]
    assert schema_faults(True, {"type": "integer"}) == ["the document: True is not of type integer"]
    assert schema_faults(1, {"const": True}) == ["the document: 1 is not True"]
    assert schema_faults("x" * 99, {"enum": ["a"]})[0].endswith("is none of 'a'")


# --- the annex --------------------------------------------------------------------------


def test_the_annex_names_its_certificate_and_says_that_it_is_internal(
    document: dict[str, Any],
) -> None:
    annex = internal_annex(internal_facts(), document)
    assert annex["certificate"] == document["hash"]
    assert "unsafe to publish" in annex["notice"]
    private, plain = annex["attacks"]
    assert private["allowed"] is True
    assert plain["allowed"] is None
    assert len(private["result"]["most_exposed"]) == 10
    beyond = internal_annex(internal_facts(shift=3.0), document)
    assert beyond["attacks"][0]["allowed"] is False
    # Whatever the attacks find, the public part is the same to the byte.
    assert annex["certificate"] == beyond["certificate"]


def test_internal_facts_refuse_what_is_nothing() -> None:
    with pytest.raises(InvalidValue, match="something to report"):
        InternalFacts()
    with pytest.raises(InvalidValue, match="attacked"):
        InternalFacts(attacked=(3,))  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="utility"):
        InternalFacts(utility=(3,))  # type: ignore[arg-type]


def test_statements_of_the_keeper() -> None:
    assert STATED.to_json()["source"] == "made up"
    assert Collection().to_json()["access"] is None
    with pytest.raises(InvalidValue, match="access"):
        Collection(access="")


def test_a_paid_answer_comes_from_a_release() -> None:
    release = laplace_count(80, epsilon="0.5", insecure_seed=3)
    answer = PaidAnswer.of(release, question="how many", divided_by=100)
    assert answer.value == release.value / 100
    assert answer.low is not None
    assert answer.high is not None
    assert answer.low <= answer.value <= answer.high
    assert answer.dataset is None
    made = public_certificate(facts(loss=PureDP(epsilon=1), answers=(answer,)), at=AT)
    assert made["verdict"]["state"] == "void"
    with pytest.raises(InvalidValue, match="release"):
        PaidAnswer.of(3, question="how many")  # type: ignore[arg-type]


def test_losses_of_every_relation_are_told() -> None:
    losses: tuple[Loss, ...] = (ApproxDP("1", "1e-7", "replace"), PureDP(epsilon=1))
    for loss in losses:
        made = public_certificate(facts(loss=loss), at=AT)
        assert made["guarantee"]["relation"] == loss.relation.value
        assert made["guarantee"]["epsilon"] == pytest.approx(1.0, rel=1e-4)


def test_an_audit_is_kept_as_it_was() -> None:
    found = audit(80)
    made = public_certificate(facts(audits=(found,)), at=AT)
    body = {k: v for k, v in made["audits"][0].items() if k not in {"schema", "version"}}
    body["assumptions"] = tuple(body["assumptions"])
    assert TrainingAudit(**body) == found


def test_the_shipped_schema_is_in_the_package() -> None:
    place = Path(sys.modules["discreet.certificate"].__path__[0])
    assert json.loads((place / "certificate.schema.json").read_text(encoding="utf-8")) == schema()


def test_a_check_loads_no_drawing_and_no_torch() -> None:
    """Whoever verifies a document pays for no picture."""
    code = (
        "import sys, discreet.report as r\n"
        "assert all(hasattr(r, name) for name in r.__all__)\n"
        "bad = [m for m in ('matplotlib', 'torch', 'sklearn', 'pandas') if m in sys.modules]\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
