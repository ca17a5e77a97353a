"""The certificate of a trained model: what was done, what it provably costs, and to whom."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, final

from discreet import __version__
from discreet.errors import SchemaError
from discreet.learn.dpsgd.clipping import Quantile
from discreet.learn.dpsgd.plan import Plan, certified, loss_of_all
from discreet.privacy import Loss, from_json, to_json

__all__ = ["Certificate"]

_SCHEMA = "discreet.dpsgd.certificate"
_VERSION = 1
# "check": no batch was drawn yet, so nothing was probed and nothing trained.
_ISOLATION = ("check", "checked", "vouched")
_ASSUMPTIONS = (
    "one unit owns at most one example",
    "no example influences the gradient of another inside the model and the loss",
    "sampling positions, batch sizes and training losses were not published",
    "the loss is that of ideal real-valued noise; arithmetic was in floating point",
)


@final
@dataclass(frozen=True)
class Certificate:
    """What a trained model reveals about one unit.

    ``epsilon`` is a certified upper bound at ``delta``; ``epsilon_lower`` bounds the same
    from below where the accountant has a tight pair, and is ``None`` otherwise. Both are of the
    whole plan, also if training ended early: when it ended may have depended on the results.
    ``model_digest`` is the SHA-256 of the tensors of the model that was saved with it. If the model
    was under ``earlier_plans``, loss and epsilon are those of all plans together, at the delta of
    ``plan``, which is the last of them.
    """

    plan: Plan
    loss: Loss
    epsilon: float
    epsilon_lower: float | None
    delta: float
    relation: str
    unit: str
    sampler: str
    steps_taken: int
    isolation: str
    final_clip_norm: float
    randomness: Mapping[str, str]
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...]
    versions: Mapping[str, str]
    receipt: Mapping[str, Any] | None
    model_digest: str | None = None
    earlier_plans: tuple[Plan, ...] = ()

    @classmethod
    def of(
        cls,
        plan: Plan,
        *,
        steps_taken: int,
        randomness: Mapping[str, str],
        isolation: str,
        final_clip_norm: float | None = None,
        receipt: Mapping[str, Any] | None = None,
        earlier_plans: tuple[Plan, ...] = (),
    ) -> Certificate:
        """Write the certificate of a run under a plan, of a model that was under earlier ones."""
        loss = loss_of_all([*earlier_plans, plan])
        lower = _lower(loss, plan.delta)
        epsilon = certified(loss, plan.delta)
        return cls(
            plan=plan,
            loss=loss,
            epsilon=epsilon,
            epsilon_lower=min(lower, epsilon) if lower > 0 else None,
            delta=plan.delta,
            relation=plan.relation.value,
            unit=plan.unit,
            sampler=plan.sampler,
            steps_taken=steps_taken,
            isolation=isolation,
            final_clip_norm=plan.clip_norm if final_clip_norm is None else final_clip_norm,
            randomness=dict(randomness),
            warnings=_warnings(plan, randomness, isolation, earlier_plans),
            assumptions=_ASSUMPTIONS,
            versions=_versions(),
            receipt=receipt,
            earlier_plans=earlier_plans,
        )

    def problems(self) -> list[str]:
        """What does not fit together, recomputed from the plan; nothing if the list is empty."""
        found = self._wrong_types()
        if found:
            return found
        others = {(one.relation, one.unit) for one in self.earlier_plans}
        if others - {(self.plan.relation, self.plan.unit)}:
            return ["the earlier plans are for another unit or relation"]
        loss = loss_of_all([*self.earlier_plans, self.plan])
        if loss != self.loss:
            found.append("the loss is not that of the plan, or not that of all plans together")
        right = certified(loss, self.plan.delta)
        if right > self.epsilon:
            found.append("epsilon is below what the accountant certifies for the loss")
        if self.versions.get("discreet") == __version__ and self.epsilon > right * (1 + 1e-6):
            found.append("epsilon is above what this version certifies for the loss")
        if self.epsilon_lower is not None and self.epsilon_lower > min(right, self.epsilon):
            found.append("epsilon_lower is above epsilon")
        stated = (self.delta, self.relation, self.unit, self.sampler)
        planned = (self.plan.delta, self.plan.relation.value, self.plan.unit, self.plan.sampler)
        if stated != planned:
            found.append("delta, relation, unit or sampler are not those of the plan")
        if not 0 <= self.steps_taken <= self.plan.steps:
            found.append(f"{self.steps_taken} steps under a plan of {self.plan.steps}")
        adaptive = isinstance(self.plan.clipping, Quantile)
        if not adaptive and self.final_clip_norm != self.plan.clip_norm:
            found.append("the clip norm is not that of the plan, which keeps it fixed")
        right_warnings = _warnings(self.plan, self.randomness, self.isolation, self.earlier_plans)
        if self.warnings != right_warnings:
            found.append("the warnings are not those that the other fields call for")
        if self.assumptions != _ASSUMPTIONS:
            found.append("the assumptions are not those of the method")
        return found

    def _wrong_types(self) -> list[str]:
        numbers = {"epsilon": self.epsilon, "final_clip_norm": self.final_clip_norm}
        if self.epsilon_lower is not None:
            numbers["epsilon_lower"] = self.epsilon_lower
        found = [
            f"{name} = {value!r} is not a finite number >= 0"
            for name, value in numbers.items()
            if type(value) not in (int, float) or not 0 <= value < math.inf
        ]
        if type(self.steps_taken) is not int:
            found.append(f"steps_taken = {self.steps_taken!r} is not a whole number")
        if self.isolation not in _ISOLATION:
            found.append(f"isolation = {self.isolation!r} is none of {', '.join(_ISOLATION)}")
        for name in ("randomness", "versions"):
            table: object = getattr(self, name)
            if not isinstance(table, dict) or not all(
                isinstance(text, str) for pair in table.items() for text in pair
            ):
                found.append(f"{name} is not a table of texts")
        if not all(isinstance(text, str) for text in (*self.warnings, *self.assumptions)):
            found.append("warnings or assumptions are not texts")
        if self.receipt is not None and not isinstance(self.receipt, dict):
            found.append("receipt is not an object")
        digest = self.model_digest
        if digest is not None and (type(digest) is not str or len(digest) != 64):
            found.append("model_digest is not a SHA-256 in hexadecimal")
        return found

    def to_json(self) -> dict[str, Any]:
        """The certificate as a JSON object; see :meth:`from_json`."""
        body: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        body["plan"] = self.plan.to_json()
        body["plan_hash"] = self.plan.content_hash
        body["loss"] = to_json(self.loss)
        body["warnings"] = list(self.warnings)
        body["assumptions"] = list(self.assumptions)
        body["earlier_plans"] = [plan.to_json() for plan in self.earlier_plans]
        if not self.earlier_plans:  # as the first version wrote it
            del body["earlier_plans"]
        return {"schema": _SCHEMA, "version": _VERSION, **body}

    @classmethod
    def from_json(cls, document: Mapping[str, Any] | str) -> Certificate:
        """The certificate that :meth:`to_json` wrote; what does not fit together raises."""
        try:
            body = json.loads(document) if isinstance(document, str) else dict(document)
        except ValueError as error:
            raise SchemaError(f"certificate: not JSON: {error}") from None
        if not isinstance(body, dict):
            raise SchemaError("certificate: expected an object")
        if body.pop("schema", None) != _SCHEMA or body.pop("version", None) != _VERSION:
            raise SchemaError(f"certificate: expected schema {_SCHEMA!r}, version {_VERSION}")
        earlier = body.setdefault("earlier_plans", [])
        if not isinstance(earlier, list | tuple):
            raise SchemaError("certificate: earlier_plans: expected a list of plans")
        expected = {field.name for field in fields(cls)} | {"plan_hash"}
        if set(body) != expected:
            wrong = sorted(set(body) ^ expected)
            raise SchemaError(f"certificate: fields {wrong} are missing or unknown")
        body["plan"] = Plan.from_json(body["plan"])
        if body.pop("plan_hash") != body["plan"].content_hash:
            raise SchemaError("certificate: the plan does not have the stated hash")
        body["earlier_plans"] = tuple(map(Plan.from_json, earlier))
        body["loss"] = from_json(body["loss"])
        for name in ("warnings", "assumptions"):
            if not isinstance(body[name], list | tuple):
                raise SchemaError(f"certificate: {name}: expected a list of texts")
            body[name] = tuple(body[name])
        certificate = cls(**body)
        problems = certificate.problems()
        if problems:
            raise SchemaError("certificate: " + "; ".join(problems))
        return certificate

    def __str__(self) -> str:
        cost = f"epsilon <= {self.epsilon:.6g} at delta = {self.delta:g}"
        run = f"{self.steps_taken} of {self.plan.steps} steps, {self.sampler} sampling"
        lines = [
            f"{cost} for one {self.unit} ({self.relation})",
            f"{run}, noise multiplier {self.plan.noise_multiplier:.6g}",
        ]
        return "\n".join(lines + [f"WARNING: {warning}" for warning in self.warnings])


def _warnings(
    plan: Plan, randomness: Mapping[str, str], isolation: str, earlier_plans: tuple[Plan, ...]
) -> tuple[str, ...]:
    warnings = list(plan.warnings)
    if earlier_plans:
        warnings.append(
            f"the model was under {len(earlier_plans)} earlier plan"
            f"{'s' if len(earlier_plans) > 1 else ''}: the loss and epsilon are the sum of all, "
            "as if all had been planned at the start"
        )
    if any("INSECURE" in value for value in randomness.values()):
        warnings.insert(
            0,
            "INSECURE RANDOMNESS: batches and noise can be reproduced from a seed; this "
            "model has no privacy and must not be released",
        )
    if isolation == "vouched":
        warnings.append("that examples do not influence one another was not probed")
    return tuple(warnings)


@lru_cache(maxsize=256)
def _lower(loss: Loss, delta: float) -> float:
    return loss.epsilon_bounds(delta=delta).lower


def _versions() -> dict[str, str]:
    import numpy as np
    import torch

    return {
        "discreet": __version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
