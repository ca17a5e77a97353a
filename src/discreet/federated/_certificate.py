"""The certificate of a federated run, and the loss that follows from its plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet._files import write_file
from discreet._json import digest_of
from discreet.certificate import Certificate
from discreet.errors import PlanViolation, SchemaError
from discreet.federated._plan import FederatedPlan
from discreet.learn import write_model
from discreet.privacy import Loss

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from discreet.federated._silos import SiloPlan

LEARNER, SILO_LEARNER = "FederatedModel", "FederatedSilos"
LEARNERS = (LEARNER, SILO_LEARNER)
_VERSIONS_AGREE = 1e-3


def certify_federated(
    plan: FederatedPlan,
    *,
    run: Mapping[str, Any],
    randomness: Mapping[str, str],
    versions: Mapping[str, str] | None = None,
    model_digest: str | None = None,
) -> Certificate:
    """Return the certificate of a run: the loss of the whole plan, also if it ended early.

    Parameters
    ----------
    plan : FederatedPlan
        What was planned and charged.
    run : mapping
        Public facts about the run; ``rounds_taken`` is one.
    randomness, versions : mapping
        For :meth:`discreet.certificate.Certificate.of`.
    model_digest : str, optional
        That of the released parameters.

    Returns
    -------
    Certificate
    """
    return Certificate.of(
        plan.loss,
        delta=plan.delta,
        learner=LEARNER,
        unit=plan.unit,
        plan=plan.to_json(),
        run=run,
        randomness=randomness,
        versions=versions,
        assumptions=plan.assumptions,
        model_digest=model_digest,
    )


def certified_loss(certificate: Certificate) -> Loss:
    """Return the loss of the plan that a certificate states, computed again.

    Parameters
    ----------
    certificate : Certificate
        One of a federated run.

    Returns
    -------
    Loss

    Raises
    ------
    SchemaError
        If the plan is damaged, or the certificate says of it what it does not.
    """
    plan: FederatedPlan | SiloPlan
    if certificate.learner == SILO_LEARNER:
        from discreet.federated._silos import SiloPlan

        plan = SiloPlan.from_json(certificate.plan)
        if not _states(certificate.run, plan.facts):
            raise SchemaError("rounds, silos or the loss of a whole silo are not those of the plan")
    else:
        plan = FederatedPlan.from_json(certificate.plan)
        taken = certificate.run.get("rounds_taken")
        if type(taken) is not int or not 0 <= taken <= plan.rounds:
            raise SchemaError(f"{taken!r} rounds under a plan of {plan.rounds}")
    if (certificate.delta, certificate.unit) != (plan.delta, plan.unit):
        raise SchemaError("delta or unit are not those of the plan")
    if certificate.assumptions[: len(plan.assumptions)] != plan.assumptions:
        raise SchemaError("the assumptions are not those of the plan")
    return plan.loss


def _states(run: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Say whether a run has these facts; another version may read epsilon a little differently."""
    run = {name: value for name, value in run.items() if name != "times_resumed"}
    said, right = (dict(one.get("whole_silo", {})) for one in (run, facts))
    stated, least = said.pop("epsilon", 0.0), right.pop("epsilon", 0.0)
    return (
        digest_of({**run, "whole_silo": said}) == digest_of({**facts, "whole_silo": right})
        and isinstance(stated, float)
        and stated >= least * (1.0 - _VERSIONS_AGREE)
    )


def require_no_plan(model: nn.Module) -> None:
    """Raise if a model was trained under a plan of DP-SGD: its loss would be in no certificate."""
    from discreet.learn.dpsgd import earlier_plans  # not above: certificates are read without torch

    if earlier_plans(model):
        raise PlanViolation(
            "this model was trained under a plan of DP-SGD before, and a federated certificate "
            "does not add what that cost. Begin with public parameters, or, if it learned from "
            "the data of others only, with its parameters read from a file"
        )


def write_federated(
    place: Path, arrays: Mapping[str, NDArray[Any]], certificate: Certificate
) -> None:
    """Write the files of a model into a directory."""
    write_model(place / "model.npz", kind=LEARNER, head={}, arrays=arrays)
    text = json.dumps(certificate.to_json(), indent=2, allow_nan=False)
    write_file(place / "certificate.json", text + "\n")
