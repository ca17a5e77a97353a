"""Compute the audits of a certificate again from their counts.

A certificate shows an audit only if its numbers follow from its counts by a method that is known
here, if the counts are all that its evidence holds, and if it tested the claim of the
certificate. The same questions are asked when a certificate is written and when it is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from discreet._confidence import lower_bounds, upper_bounds
from discreet.audit._many_runs import (
    epsilon_from_rates,
    gaussian_epsilon_from_rates,
    require_gaussian,
)
from discreet.audit._one_run import (
    contradicts_curve,
    curve_epsilon,
    one_run_epsilon,
    read_curve,
)
from discreet.audit._verdict import CONSISTENT, GAUSSIAN_ONLY, VIOLATED, Method
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import Loss, from_json

# Another version of the accountant may read the same loss a little differently.
_AGREE = 1e-3
# What was audited on made-up data may have been calibrated a little differently.
_CALIBRATED = 1e-2
_NUMBERS_AGREE = 1e-6
# Below this the confidence, 1 - rate, has lost digits of the rate.
_FINE = 1e-9

_RATES = {
    *("threshold", "false_positives", "excluded", "true_positives", "included", "fpr", "tpr"),
    "thresholds_tested",
}
_GUESSES = {
    *("canaries", "guesses_included", "guesses_excluded", "correct", "could_be_correct"),
    *("audits_of_these_coins", "randomness"),
}
_WORDS = {"audited"}
_EVIDENCE: dict[str, set[str]] = {
    Method.MANY_RUNS: _RATES,
    Method.TRADEOFF: _RATES | {"allowed_tpr"},
    Method.GAUSSIAN: _RATES | {"mu_lower"},
    Method.ONE_RUN: _GUESSES,
    Method.ONE_RUN_CURVE: _GUESSES,
    Method.ONE_RUN_GAUSSIAN: _GUESSES,
}


def audit_faults(body: Mapping[str, Any]) -> Iterator[str]:
    """Return what the audits of a public document say that their counts or its guarantee do not.

    Parameters
    ----------
    body
        A published certificate as JSON.

    Returns
    -------
    Iterator of str
        What the audits say that their counts do not.
    """
    whole, model = from_json(body["guarantee"]["loss"]), from_json(body["loss"])
    for at, audit in enumerate(body["audits"], 1):
        for fault in _faults(audit, whole, model, body["guarantee"]["delta"]):
            yield f"audit {at} {fault}"


def require_sound_audits(body: Mapping[str, Any]) -> None:
    """Refuse a document whose audits do not say what their counts say.

    Parameters
    ----------
    body
        A published certificate as JSON.

    Raises
    ------
    InvalidValue
        If an audit says what its counts do not.
    """
    for fault in audit_faults(body):
        raise InvalidValue("audit", fault, "audits of this release, as the package makes them")


def _faults(audit: Mapping[str, Any], whole: Loss, model: Loss, delta: float) -> Iterator[str]:
    method, evidence = audit["method"], audit["evidence"]
    if method not in _EVIDENCE:
        yield f"is by a method that is not known here: {method!r}"
        return
    strange = sorted(set(evidence) - _EVIDENCE[method] - _WORDS)
    strange += [name for name, value in sorted(evidence.items()) if isinstance(value, dict | list)]
    if strange:
        yield f"has evidence that no such audit writes: {', '.join(strange)}"
    if not audit["assumptions"]:
        yield "has lost its assumptions"
    if GAUSSIAN_ONLY in method and GAUSSIAN_ONLY not in audit["assumptions"]:
        yield f"does not say that it is {GAUSSIAN_ONLY}"
    if GAUSSIAN_ONLY in method and "audited" not in evidence and not _is_gaussian(model):
        yield f"is {GAUSSIAN_ONLY}, and this release is none"
    yield from _claim(audit, whole, model, delta)
    low, top, claim = audit["epsilon_lower"], audit["ceiling"], audit["claimed_epsilon"]
    if low > top * (1.0 + _NUMBERS_AGREE):
        yield "shows more than its ceiling"
    if low > claim and audit["verdict"] != VIOLATED:
        yield "refutes the claim and does not say so"
    try:
        if _EVIDENCE[method] >= _RATES:
            yield from _compare_rates(audit)
        yield from _CHECKS[method](audit, whole, model)
    except (KeyError, TypeError, InvalidValue) as error:
        yield f"has counts that cannot be read: {error}"


def _is_gaussian(loss: Loss) -> bool:
    try:
        require_gaussian("gaussian", loss)
    except NotApplicable:
        return False
    return True


def _claim(audit: Mapping[str, Any], whole: Loss, model: Loss, delta: float) -> Iterator[str]:
    """The claim must be that of the model, or of all that the guarantee covers."""
    if audit["delta"] > delta:
        yield f"tested another claim: delta {audit['delta']:g}"
        return
    claim = audit["claimed_epsilon"]
    most, least = (loss.epsilon(delta=audit["delta"]) for loss in (whole, model))
    if not least * (1.0 - _CALIBRATED) <= claim <= most * (1.0 + _AGREE):
        yield f"tested another claim: epsilon {claim:g}"


def _testable(audit: Mapping[str, Any], *, able: bool) -> Iterator[str]:
    if audit["verdict"] == CONSISTENT and not able:
        yield "could not have refuted the claim and does not say so"


def _compare_figure(
    audit: Mapping[str, Any], name: str, right: Callable[[float], float], *, exact: bool = True
) -> Iterator[str]:
    """Compare a number with what the counts give at the false-alarm rate, which grows with it."""
    rate = 1.0 - audit["confidence"]
    rates = (rate, rate) if rate > _FINE else (max(rate - 2e-16, 1e-34), rate + 2e-16)
    least, most = (right(one) for one in rates)
    slack = _NUMBERS_AGREE * (1.0 + most)
    said = audit[name]
    if said < least - slack or (exact and said > most + slack):
        yield f"states {name} as {said:g}; its counts give {most:g}"


# --- thresholds ------------------------------------------------------------------------------


def _rates(audit: Mapping[str, Any], rate: float, *, best: bool = False) -> tuple[float, float]:
    """(FPR, TPR) bounds of the counts, or of the best that there could have been."""
    seen = audit["evidence"]
    count = {name: _count(seen, name) for name in _RATES if name not in _NO_COUNTS}
    inside, outside = count["included"], count["excluded"]
    hits, alarms = count["true_positives"], count["false_positives"]
    if not (hits <= inside and alarms <= outside and count["thresholds_tested"] >= 1):
        raise InvalidValue("evidence", seen, "counts that fit together")
    if best:
        hits, alarms = inside, 0
    error = rate / (2 * count["thresholds_tested"])
    return (
        float(upper_bounds([alarms], outside, error=error)[0]),
        float(lower_bounds([hits], inside, error=error)[0]),
    )


def _compare_rates(audit: Mapping[str, Any]) -> Iterator[str]:
    rate = 1.0 - audit["confidence"]
    if rate <= _FINE:
        return
    for name, right in zip(("fpr", "tpr"), _rates(audit, rate), strict=True):
        said = audit["evidence"][name]
        if not abs(said - right) <= _NUMBERS_AGREE:
            yield f"states {name} as {said:g}; its counts give {right:g}"


_NO_COUNTS = {"threshold", "fpr", "tpr"}


def _count(table: Mapping[str, Any], name: str) -> int:
    value = table[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidValue(name, value, "a count")
    return value


def _runs(audit: Mapping[str, Any], *_: Loss) -> Iterator[str]:
    def compute_bound(rate: float, *, best: bool) -> float:
        return epsilon_from_rates(*_rates(audit, rate, best=best), delta=audit["delta"])

    yield from _compare_figure(audit, "epsilon_lower", lambda rate: compute_bound(rate, best=False))
    yield from _compare_figure(audit, "ceiling", lambda rate: compute_bound(rate, best=True))
    yield from _testable(audit, able=audit["ceiling"] > audit["claimed_epsilon"])


def _gaussian(audit: Mapping[str, Any], *_: Loss) -> Iterator[str]:
    def compute_bound(rate: float, *, best: bool) -> float:
        return gaussian_epsilon_from_rates(*_rates(audit, rate, best=best), delta=audit["delta"])

    yield from _compare_figure(audit, "epsilon_lower", lambda rate: compute_bound(rate, best=False))
    yield from _compare_figure(audit, "ceiling", lambda rate: compute_bound(rate, best=True))
    yield from _testable(audit, able=audit["ceiling"] > audit["claimed_epsilon"])


def _tradeoff(audit: Mapping[str, Any], whole: Loss, model: Loss) -> Iterator[str]:
    def compute_bound(rate: float, *, best: bool) -> float:
        return epsilon_from_rates(*_rates(audit, rate, best=best), delta=audit["delta"])

    # Among several thresholds the stated one need not be the one with the largest epsilon.
    alone = audit["evidence"]["thresholds_tested"] == 1
    yield from _compare_figure(
        audit, "epsilon_lower", lambda rate: compute_bound(rate, best=False), exact=alone
    )
    yield from _compare_figure(audit, "ceiling", lambda rate: compute_bound(rate, best=True))
    rate = 1.0 - audit["confidence"]
    if rate <= _FINE:
        return
    fpr, tpr = _rates(audit, rate)
    allowed = audit["evidence"]["allowed_tpr"]
    if allowed > float(whole.tradeoff(fpr)) * (1.0 + _AGREE):
        yield f"states that a TPR of {allowed:g} is allowed, which is more than the loss allows"
    if tpr > allowed * (1.0 + _NUMBERS_AGREE) and audit["verdict"] != VIOLATED:
        yield "refutes the claim and does not say so"
    fpr, tpr = _rates(audit, rate, best=True)
    yield from _testable(audit, able=tpr > float(model.tradeoff(fpr)) * (1.0 - _AGREE))


# --- guesses ---------------------------------------------------------------------------------


def _read_guess_counts(audit: Mapping[str, Any]) -> tuple[int, int, int, int, int]:
    """Canaries, guesses, right ones, most that could be right, audits of the coins."""
    seen = audit["evidence"]
    size = _count(seen, "canaries")
    guesses = _count(seen, "guesses_included") + _count(seen, "guesses_excluded")
    right, shared = _count(seen, "correct"), _count(seen, "audits_of_these_coins")
    # Before there was such a field, all guesses were taken to be possible.
    most = _count(seen, "could_be_correct") if "could_be_correct" in seen else guesses
    if not (right <= most <= guesses <= size and guesses >= 1 and shared >= 1):
        raise InvalidValue("evidence", seen, "counts that fit together")
    return size, guesses, right, most, shared


def _one_run(audit: Mapping[str, Any], *_: Loss) -> Iterator[str]:
    size, guesses, right, most, shared = _read_guess_counts(audit)

    def compute_bound(rate: float, correct: int) -> float:
        return one_run_epsilon(
            canaries=size,
            guesses=guesses,
            correct=correct,
            delta=audit["delta"],
            rate=rate / shared,
        )

    yield from _compare_figure(audit, "epsilon_lower", lambda rate: compute_bound(rate, right))
    yield from _compare_figure(audit, "ceiling", lambda rate: compute_bound(rate, most))
    yield from _testable(audit, able=audit["ceiling"] > audit["claimed_epsilon"])


def _curve(audit: Mapping[str, Any], whole: Loss, model: Loss) -> Iterator[str]:
    size, guesses, right, most, shared = _read_guess_counts(audit)
    gaussian = audit["method"] == Method.ONE_RUN_GAUSSIAN

    def compute_bound(rate: float, correct: int) -> float:
        return curve_epsilon(
            canaries=size,
            guesses=guesses,
            correct=correct,
            delta=audit["delta"],
            rate=rate / shared,
            gaussian=gaussian,
        )

    yield from _compare_figure(audit, "epsilon_lower", lambda rate: compute_bound(rate, right))
    yield from _compare_figure(audit, "ceiling", lambda rate: compute_bound(rate, most))

    def contradicts(loss: Loss, correct: int) -> bool:
        rate = (1.0 - audit["confidence"]) / shared
        claimed = read_curve(loss, audit["delta"])
        return contradicts_curve(
            claimed, canaries=size, guesses=guesses, correct=correct, rate=rate
        )

    if audit["verdict"] != VIOLATED and contradicts(whole, right):
        yield "refutes the claim and does not say so"
    if audit["verdict"] == CONSISTENT:
        yield from _testable(audit, able=contradicts(model, most))


_CHECKS: dict[str, Callable[[Mapping[str, Any], Loss, Loss], Iterator[str]]] = {
    Method.MANY_RUNS: _runs,
    Method.TRADEOFF: _tradeoff,
    Method.GAUSSIAN: _gaussian,
    Method.ONE_RUN: _one_run,
    Method.ONE_RUN_CURVE: _curve,
    Method.ONE_RUN_GAUSSIAN: _curve,
}
