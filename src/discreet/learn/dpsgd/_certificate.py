"""The certificate of a run of DP-SGD: how its plan is written into it, and read back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from discreet import __version__
from discreet.certificate import Certificate
from discreet.errors import SchemaError
from discreet.learn.dpsgd._clipping import Quantile
from discreet.learn.dpsgd._plan import Plan, compute_epsilon, loss_of_all

LEARNER = "DP-SGD"
# "check": no batch was drawn yet, so nothing was probed and nothing trained.
_ISOLATION = ("check", "checked", "vouched")
_ASSUMPTIONS = (
    "no example influences the gradient of another inside the model and the loss",
    "sampling positions, batch sizes and training losses were not published",
    "the loss is that of ideal real-valued noise; arithmetic was in floating point",
)
# The plan has a schema of its own where it is kept by itself; a certificate names another version.
_HEAD = {"schema": "discreet.dpsgd.plan", "version": 1}


def certify_run(
    plan: Plan,
    *,
    steps_taken: int,
    randomness: Mapping[str, str],
    isolation: str,
    final_clip_norm: float | None = None,
    earlier_plans: Sequence[Plan] = (),
    model_digest: str | None = None,
    receipt: Mapping[str, Any] | None = None,
    **statements: Any,
) -> Certificate:
    """Write the certificate of a run: the loss of the whole plan, also if training ended early.

    When it ended may have depended on the results. If the model was under ``earlier_plans``, the
    loss is that of all plans together, at the delta of the last one. ``statements`` are more that
    the run says about itself, as JSON; what they call for is in
    :mod:`discreet.certificate._findings`.
    """
    import torch  # not above: plans and certificates are read without it

    if earlier_plans:
        statements["earlier_plans"] = [_without_head(one) for one in earlier_plans]
    return Certificate.of(
        loss_of_all([*earlier_plans, plan]),
        delta=plan.delta,
        learner=LEARNER,
        unit=plan.unit,
        plan=_without_head(plan),
        run={
            "steps_taken": steps_taken,
            "isolation": isolation,
            "final_clip_norm": plan.clip_norm if final_clip_norm is None else final_clip_norm,
            **statements,
        },
        randomness=randomness,
        versions={"torch": str(torch.__version__)},
        assumptions=_assumptions(plan),
        model_digest=model_digest,
        receipt=receipt,
    )


def _assumptions(plan: Plan) -> tuple[str, ...]:
    most = plan.records_per_unit
    owned = "one example" if most == 1 else f"{most} examples"
    return (f"one unit owns at most {owned}", *_ASSUMPTIONS)


def _without_head(plan: Plan) -> dict[str, Any]:
    stated = plan.to_json()
    return {key: stated[key] for key in stated if (key, stated[key]) not in _HEAD.items()}


def plan_of(certificate: Certificate) -> Plan:
    """Return the plan that a certificate states; one that cannot be read raises."""
    return Plan.from_json({**_HEAD, **certificate.plan})


def earlier_plans_of(certificate: Certificate) -> list[Plan]:
    """Return the plans that the model was under before; what cannot be read raises."""
    stated = certificate.run.get("earlier_plans", [])
    if not isinstance(stated, list) or not all(isinstance(one, Mapping) for one in stated):
        raise SchemaError("certificate: earlier_plans: expected a list of plans")
    return [Plan.from_json({**_HEAD, **one}) for one in stated]


def require_sound(certificate: Certificate) -> Plan:
    """Return the plan of a certificate; raise if the certificate does not follow from it."""
    found = problems(certificate)
    if found:
        raise SchemaError("certificate: " + "; ".join(found))
    return plan_of(certificate)


def problems(certificate: Certificate) -> list[str]:
    """What does not fit together, recomputed from the plan; nothing if the list is empty."""
    if certificate.learner != LEARNER:
        return [f"it is of the learner {certificate.learner!r}, not of {LEARNER}"]
    plan, run = plan_of(certificate), certificate.run
    earlier = earlier_plans_of(certificate)
    if {(one.relation, one.unit) for one in earlier} - {(plan.relation, plan.unit)}:
        return ["the earlier plans are for another unit or relation"]
    found = []
    if loss_of_all([*earlier, plan]) != certificate.loss:
        found.append("the loss is not that of the plan, or not that of all plans together")
    here = certificate.versions.get("discreet") == __version__
    if here and certificate.epsilon > compute_epsilon(certificate.loss, plan.delta) * (1 + 1e-6):
        found.append("epsilon is above what this version certifies for the loss")
    if (certificate.delta, certificate.unit) != (plan.delta, plan.unit):
        found.append("delta or unit are not those of the plan")
    if certificate.assumptions != _assumptions(plan):
        found.append("the assumptions are not those of the method")
    taken = run.get("steps_taken")
    if type(taken) is not int or not 0 <= taken <= plan.steps:
        found.append(f"{taken!r} steps under a plan of {plan.steps}")
    if run.get("isolation") not in _ISOLATION:
        found.append(f"isolation = {run.get('isolation')!r} is none of {', '.join(_ISOLATION)}")
    # Documents that 0.1 published do not say where the clip norm ended.
    clip = run.get("final_clip_norm", plan.clip_norm)
    if type(clip) not in (int, float) or not 0 <= clip < math.inf:
        found.append(f"final_clip_norm = {clip!r} is not a finite number >= 0")
    elif not isinstance(plan.clipping, Quantile) and clip != plan.clip_norm:
        found.append("the clip norm is not that of the plan, which keeps it fixed")
    counts = ("steps_with_numbers_read", "steps_with_writes", "steps_not_followed")
    for name in (*counts, "outside_tensors", "times_resumed"):
        count = run.get(name, 1)
        if type(count) is not int or count < 1:
            found.append(f"{name} = {count!r} is not a whole number above 0")
    return found
