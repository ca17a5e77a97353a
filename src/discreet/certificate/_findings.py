"""What follows from the facts of a certificate: accountants, meaning, warnings, verdict.

Everything here is a function of what the document says, so that anyone who checks a certificate
computes it again and nothing can be left out. Severities of warnings: *void* (there is no
guarantee), *serious* (it may say much less than it seems), *caution* (a reader should know) and
*note*. Layers are those of the pyramid: the guarantee, what undermines it, the collection of the
data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from discreet._json import digest_of
from discreet.errors import DiscreetError, NotApplicable
from discreet.privacy import Loss, every_accountant, from_json, read_old, to_json

PRIORS = (0.01, 0.1, 0.5)
FPRS = (0.001, 0.01, 0.1)
_CURVE = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9)
_GROUPS = (2, 5, 10)
# The belief of an attacker is bounded except with this probability.
_UNLIKELY = 1e-6

SEVERITIES = ("void", "serious", "caution", "note")
LAYERS = ("guarantee", "undermines", "collection")

_Warning = tuple[str, str, str]
# NIST SP 800-226 and practice: beyond these an epsilon bounds little, whatever the audit says.
_LARGE, _VERY_LARGE = 5.0, 15.0
_LARGE_DELTA, _VERY_LARGE_DELTA = 1e-4, 1e-3


def content_hash(document: Mapping[str, Any]) -> str:
    """The SHA-256 of everything but the field ``hash`` itself."""
    return digest_of({key: value for key, value in document.items() if key != "hash"})


def guarantee_of(loss: Loss, delta: float) -> dict[str, Any]:
    """Return what every accountant says about a loss at ``delta``, and its meaning for groups."""
    bounds = loss.epsilon_bounds(delta=delta)
    answers = every_accountant(loss, delta=delta)
    best = answers.pop("best")
    return {
        "relation": loss.relation.value,
        "delta": delta,
        "epsilon": number(best),
        "epsilon_lower": number(min(bounds.lower, best)) if isinstance(best, float) else None,
        "loss": to_json(loss),
        "description": repr(loss),
        "accountants": {name: _accountant(answer) for name, answer in answers.items()},
        "groups": [{"size": size, "epsilon": _group(loss, size, delta)} for size in _GROUPS],
    }


def meaning_of(loss: Loss) -> dict[str, Any]:
    """Return what the loss allows any attacker: beliefs, rates, advantage.

    All are read off the loss itself, which allows less than its epsilon at one delta does. The
    advantage is the total variation distance, delta at epsilon 0.
    """
    beliefs = []
    for prior in PRIORS:
        bounds = loss.posterior(prior=prior, failure_probability=_UNLIKELY)
        beliefs.append(
            {
                "prior": prior,
                "lower": bounds.lower,
                "upper": bounds.upper,
                "failure_probability": bounds.failure_probability,
            }
        )
    levels = sorted({*FPRS, *_CURVE})
    gain = min(1.0, loss.delta_bounds(epsilon=0.0).upper)
    return {
        "beliefs": beliefs,
        "rates": [{"fpr": fpr, "tpr": float(loss.tradeoff(fpr))} for fpr in levels],
        "advantage": gain,
        "best_accuracy": 0.5 * (1.0 + gain),
    }


def many_runs(audit: Mapping[str, Any]) -> bool:
    """Whether an audit ran the training many times, rather than once with canaries."""
    return "Clopper-Pearson" in audit["method"]


def is_insecure(*tables: Mapping[str, str]) -> bool:
    """Whether noise came from a seed, by what the tables say about randomness."""
    return any("INSECURE" in str(text) for table in tables for text in table.values())


def delta_warning(delta: float, examples: int) -> str | None:
    """Return the warning about a delta that is too large for the number of examples."""
    if delta * examples < 1.0:
        return None
    return (
        f"DELTA IS TOO LARGE: delta = {delta:g} is at least 1/n for n = {examples}; "
        "a mechanism that publishes one whole record at random satisfies such a guarantee"
    )


def run_warnings(facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the warnings that plan and run call for; a learner writes them, before publication."""
    return _rank_warnings(_about_the_run(facts))


def warnings_on(body: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the warnings that a published certificate calls for, the most severe first."""
    found = [*_about_the_guarantee(body), *_about_what_undermines(body), *_about_collection(body)]
    return _rank_warnings(found)


def _rank_warnings(found: Iterable[_Warning]) -> list[dict[str, str]]:
    ranked = sorted(found, key=lambda one: (SEVERITIES.index(one[0]), LAYERS.index(one[1])))
    return [dict(zip(("severity", "layer", "text"), one, strict=True)) for one in ranked]


def verdict_on(body: Mapping[str, Any]) -> dict[str, str]:
    """Return one word and one sentence: what claim and audits together say."""
    epsilon = body["guarantee"]["epsilon"]
    states = [audit["verdict"] for audit in body["audits"]]
    if is_insecure(body["randomness"], *(one["randomness"] for one in body["answers"])):
        state = "void"
        sentence = "The noise can be reproduced from a seed: there is no privacy at all."
    elif "violated" in states:
        state = "violated"
        sentence = (
            "An audit shows more than the accountant allows: the claim, the training or the audit "
            "is wrong. Do not release."
        )
    elif epsilon is None:
        state = "void"
        sentence = "No finite epsilon holds at this delta: nothing is guaranteed."
    elif not states:
        state = "not audited"
        sentence = (
            "The accountant's bound holds if the assumptions do; nobody has tried to refute it."
        )
    elif "consistent" in states:
        state = "consistent"
        sentence = (
            "An audit tried to refute the accountant's bound, could have done so, and did not. "
            "That does not show that the bound holds: a fault that this audit does not look for "
            "stays unseen."
        )
    else:
        state = "too weak to tell"
        sentence = "The audit could not have refuted the bound, whatever the training had done."
    return {"state": state, "sentence": sentence}


# --- what a run says about itself ------------------------------------------------------------


def _isolation(state: Any) -> Iterator[_Warning]:
    if state in {"vouched", "check"}:
        yield (
            "serious",
            "undermines",
            (
                "That examples do not influence one another in the model was not checked; it was "
                "taken on trust."
            ),
        )


def _earlier_plans(plans: Any) -> Iterator[_Warning]:
    if plans:
        count = f"{len(plans)} earlier plan{'s' if len(plans) > 1 else ''}"
        yield (
            "caution",
            "undermines",
            (
                f"The model was under {count}: the loss and epsilon are the sum of all, as if all "
                "had been planned at the start."
            ),
        )


def _numbers_read(steps: Any) -> Iterator[_Warning]:
    yield (
        "serious",
        "undermines",
        (
            f"In {steps} steps the loop read numbers off its private batches or losses (item, "
            "float, tolist, numpy, print, or sizes that the values decide). If they were shown, or "
            "anything was decided by them, epsilon does not cover it."
        ),
    )


def _writes(steps: Any) -> Iterator[_Warning]:
    yield (
        "serious",
        "undermines",
        (
            f"In {steps} steps something else than the steps of the plan changed parameters, "
            "buffers, noisy gradients or the state of the optimizer (a write by hand, a hook, "
            "the weights of another model). If what was written depends on private data, epsilon "
            "does not cover it."
        ),
    )


def _not_followed(steps: Any) -> Iterator[_Warning]:
    yield (
        "serious",
        "undermines",
        (
            f"In {steps} steps losses came from calls that cannot be followed (torch.vmap, "
            "compiled code). Whether the loop keeps the examples apart outside of the model was "
            "*not checked* there; if one record changes the losses of others, no epsilon holds."
        ),
    )


def _outside_tensors(_: Any) -> Iterator[_Warning]:
    yield (
        "serious",
        "undermines",
        (
            "Tensors entered the loss from outside: neither "
            "parameters of the model, nor of the batch, nor made in the pass, nor declared public. "
            "If they depend on private data, epsilon does not cover it."
        ),
    )


# What a statement under ``run`` calls for, by its name. Statements that are not here call for
# nothing; they are part of what the ledger records all the same.
_RUN_STATEMENTS: dict[str, Callable[[Any], Iterator[_Warning]]] = {
    "isolation": _isolation,
    "earlier_plans": _earlier_plans,
    "steps_with_numbers_read": _numbers_read,
    "steps_with_writes": _writes,
    "steps_not_followed": _not_followed,
    "outside_tensors": _outside_tensors,
}


def _about_the_run(facts: Mapping[str, Any]) -> Iterator[_Warning]:
    if is_insecure(facts["randomness"]):
        yield (
            "void",
            "undermines",
            (
                "INSECURE RANDOMNESS: the noise can be reproduced from a seed. This release "
                "protects nobody and must not leave the house."
            ),
        )
    examples = facts["plan"].get("examples", facts["plan"].get("clients"))
    if type(examples) is int:
        text = delta_warning(facts["delta"], examples)
        if text is not None:
            yield "serious", "undermines", f"{text}."
    for name, warn in _RUN_STATEMENTS.items():
        if name in facts["run"]:
            yield from warn(facts["run"][name])
    if "times_resumed" in facts["run"] and facts["receipt"] is None:
        yield (
            "caution",
            "undermines",
            (
                "The run was stopped and resumed without a ledger. Whether a copy of its directory "
                "was resumed as well was not checked: each copy is a release of its own."
            ),
        )


# --- what a published document calls for -----------------------------------------------------


def _about_the_guarantee(body: Mapping[str, Any]) -> Iterator[_Warning]:
    promise = body["guarantee"]
    epsilon, delta = promise["epsilon"], promise["delta"]
    if epsilon is None:
        yield "void", "guarantee", "No finite epsilon holds at this delta: nothing is guaranteed."
    elif epsilon > _VERY_LARGE:
        yield (
            "serious",
            "guarantee",
            (
                f"Epsilon is above {_VERY_LARGE:g}. By itself such a bound rules out hardly any "
                "attack; only measured attacks and audits say something, and only about themselves."
            ),
        )
    elif epsilon > _LARGE:
        yield (
            "caution",
            "guarantee",
            (
                f"Epsilon is above {_LARGE:g}: the bound allows an attacker to become nearly "
                "certain about a person in the worst case."
            ),
        )
    if delta > _VERY_LARGE_DELTA:
        yield (
            "serious",
            "guarantee",
            (
                f"Delta is above {_VERY_LARGE_DELTA:g}: releasing a few people outright would "
                "pass as well."
            ),
        )
    elif delta > _LARGE_DELTA:
        yield (
            "caution",
            "guarantee",
            f"Delta is above {_LARGE_DELTA:g}; less than 1 / people is usual.",
        )
    if promise["unit"] in {"row", "record", "example", "image"}:
        yield (
            "caution",
            "guarantee",
            (
                f"The promise is for one {promise['unit']}. Whoever owns several has less: see the "
                "table of groups."
            ),
        )
    for audit in body["audits"]:
        if audit["verdict"] == "violated":
            yield "void", "guarantee", f"Audit: {audit['reason']} ({audit['method']})."
        elif audit["verdict"] == "too weak to tell":
            yield "caution", "guarantee", f"Audit: {audit['reason']} ({audit['method']})."
    if not body["audits"]:
        yield (
            "caution",
            "guarantee",
            (
                "Nobody has audited this training. Mistakes in implementations of differential "
                "privacy are common, and an accountant does not see them."
            ),
        )


def _about_what_undermines(body: Mapping[str, Any]) -> Iterator[_Warning]:
    yield from _about_the_run(body)
    if is_insecure(*(one["randomness"] for one in body["answers"])):
        yield "void", "undermines", "INSECURE RANDOMNESS in an answer: it protects nobody."
    if body["receipt"] is None:
        yield (
            "serious",
            "undermines",
            (
                "No ledger was charged: what else was released from the same data is not counted, "
                "and the losses of several releases add up."
            ),
        )
    elif _charge_differs(body):
        yield (
            "serious",
            "undermines",
            (
                "The ledger was charged another loss for this than the certificate states. One of "
                "the two is wrong, and the larger one is the safe one to believe."
            ),
        )
    if any(many_runs(one) and "audited" not in one["evidence"] for one in body["audits"]):
        yield (
            "caution",
            "undermines",
            (
                "An audit ran the training many times and does not say on which data. If they "
                "were private records, each of those runs was a release that nobody counted, and "
                "its outcome should not have been published."
            ),
        )
    unpaid = [one["question"] for one in body["answers"] if one["receipt"] is None]
    for question in unpaid if body["receipt"] is not None else ():
        yield "serious", "undermines", f"No ledger was charged for the answer to {question!r}."
    yield "note", "undermines", f"This certificate covers {body['covers'].rstrip('.')}."


def _charge_differs(body: Mapping[str, Any]) -> bool:
    """Whether the entry of the ledger has another loss."""
    found: Any = body["receipt"]
    for name in ("entry", "content", "loss"):
        found = found.get(name) if isinstance(found, Mapping) else None
    if found is None or found == body["loss"]:
        return False
    try:  # 0.1 wrote some losses in another form
        return read_old(found).loss != from_json(body["loss"])
    except DiscreetError:
        return True


def _about_collection(body: Mapping[str, Any]) -> Iterator[_Warning]:
    silent = [name.replace("_", " ") for name, said in body["collection"].items() if said is None]
    if silent:
        yield (
            "caution",
            "collection",
            (
                f"The keeper of the data has not stated: {', '.join(silent)}. Data that leak "
                "before the mechanism, or that nobody was allowed to collect, are not protected "
                "by it."
            ),
        )


def number(value: float | str) -> float | None:
    """A finite number, or ``None`` where no finite number holds."""
    return value if isinstance(value, float) and math.isfinite(value) else None


def _accountant(answer: float | str) -> float | str:
    if isinstance(answer, str) or math.isfinite(answer):
        return answer
    return "no finite epsilon holds at this delta"


def _group(loss: Loss, size: int, delta: float) -> float | None:
    try:
        return number(loss.group(size).epsilon(delta=delta))
    except NotApplicable:
        return None
