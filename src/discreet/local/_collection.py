"""A collection as a whole: its plan as a file, its certificate, and what other trust would give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from discreet import _validate
from discreet.certificate import Certificate
from discreet.errors import InvalidValue, SchemaError
from discreet.local._frequency import FrequencyOracle, FrequencyPlan, direct_loss
from discreet.local._plans import KINDS, LocalPlan, LocalServer
from discreet.privacy import Loss, PureDP, read_fraction

SCHEMA = "discreet.local"
LEARNER = "local "


def write_plan(domain: Any, epsilon: object, method: str = "auto") -> dict[str, Any]:
    """Return the plan of a frequency oracle as JSON, with the method that it takes.

    :param domain: the values, a number of them or their names
    :param epsilon: the loss of one report, read exactly
    :param method: one of ``METHODS``, or ``"auto"``
    :raises InvalidValue: if an argument is outside its range
    """
    oracle = FrequencyOracle(domain, epsilon, method)
    values = domain if isinstance(domain, int) else list(domain)
    stated = {"domain": values, "epsilon": str(oracle.epsilon), "method": oracle.method}
    return {"schema": SCHEMA, "version": 1, **stated}


def read_plan(document: object) -> FrequencyOracle:
    """Return the frequency oracle of a plan, with the same reports.

    :param document: what :func:`write_plan` returned
    :raises SchemaError: if it is no plan of version 1
    """
    expected = {"schema", "version", "domain", "epsilon", "method"}
    if not isinstance(document, Mapping) or set(document) != expected:
        raise SchemaError(f"a plan has the fields {', '.join(sorted(expected))}")
    if document["schema"] != SCHEMA or document["version"] != 1:
        raise SchemaError(f"expected a plan {SCHEMA!r} of version 1")
    try:
        return FrequencyOracle(document["domain"], document["epsilon"], document["method"])
    except InvalidValue as error:
        raise SchemaError(f"the plan is refused: {error}") from error


def certify_collection(
    plan: LocalPlan, server: LocalServer | None = None, *, files: Mapping[str, Any] | None = None
) -> Certificate:
    """Return the certificate of a collection: what each report cost its person, and no more.

    It is a local one: nothing in it rests on a shuffler or on the collector.

    :param plan: what was collected
    :param server: what came in
    :param files: ``file`` and ``sha256`` of the ``plan`` and of the ``reports``, to count again
    """
    run: dict[str, Any] = {"covers": plan.covers, **(files or {})}
    if server is not None:
        run |= {"accepted": server.accepted, "rejected": dict(server.rejected)}
    values = {"values": plan.domain.size} if isinstance(plan, FrequencyPlan) else {}
    return Certificate.of(
        plan.loss,
        delta=0.0,
        learner=f"{LEARNER}{plan.description['method']}",
        unit="person",
        plan={**plan.description, **values},
        run=run,
        randomness={"randomness": "each client's own; not seen by the collector"},
        assumptions=(
            "each client runs the published randomizer and sends as many reports as it says",
            "who reported, when and how often is not covered",
            *plan.assumptions,
        ),
    )


def certified_loss(certificate: Certificate) -> Loss:
    """Return the loss of the plan that a certificate of :func:`certify_collection` names.

    :param certificate: what to compute again
    :raises SchemaError: if it is no plan of a local collection
    """
    plan, method = certificate.plan, certificate.learner.removeprefix(LEARNER)
    if method not in KINDS or plan.get("method") != method:
        raise SchemaError(f"{method!r} is no kind of local report")
    epsilon = read_fraction(plan["epsilon"], "epsilon")
    if method == "GRR":
        return direct_loss(epsilon, int(plan["values"]))
    return PureDP(epsilon * (1 + int(plan.get("changes", 0))), relation="replace")


@final
@dataclass(frozen=True)
class Deployment:
    """What a share would cost and how accurate it would be, if somebody were trusted."""

    name: str
    trusted: str
    epsilon: float
    delta: float
    deviation: float


def compare_deployments(
    oracle: FrequencyOracle, people: int, *, delta: float = 1e-6
) -> list[Deployment]:
    """Return the deployment that is, and those with a shuffler and with a trusted curator.

    Each has the epsilon of one person and the standard deviation of the share of a rare value. All
    but the first are hypothetical.

    :param oracle: the plan of the reports
    :param people: how many people report
    :param delta: where a shuffled batch is read
    :raises InvalidValue: if an argument is outside its range
    """
    count = _validate.integer("people", people, at_least=1)
    small = _validate.real("delta", delta, above=0, below=1)
    epsilon, spread = float(oracle.epsilon), math.sqrt(oracle.variance(count))
    batch = oracle.loss.shuffled(population=count)
    mixed = min(epsilon, batch.epsilon_bounds(delta=small).upper)

    def noise(at: float) -> float:
        # Laplace noise on a table of counts, in which one person changes two by 1.
        return math.sqrt(2.0) * 2.0 / at / count

    rows = [
        Deployment("local", "nobody", epsilon, 0.0, spread),
        Deployment("shuffled", "a shuffler", mixed, small, spread),
        Deployment("central", "the curator", epsilon, 0.0, noise(epsilon)),
    ]
    if mixed > 0.0:
        rows.append(
            Deployment("central, epsilon as shuffled", "the curator", mixed, 0.0, noise(mixed))
        )
    return rows
