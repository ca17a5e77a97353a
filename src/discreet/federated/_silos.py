"""A few institutions with many records each: DP-SGD inside of every one, and averages between.

Each silo trains the common model on its own records by a plan of DP-SGD for one round, charges its
own ledger for all rounds, and sends its parameters, which are paid for. So nobody is trusted with
records but the silo that has them. A record is in one silo, but a person may visit several: the
loss for a person is that of the ``silos_per_person`` dearest silos together. That number is a
declaration; one silo cannot check it.

With ``client``, a federated plan of trust ``server`` on top, the change of each silo is clipped and
noise is added, which protects a silo as a whole: the certificate states both units.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._json import digest_of
from discreet.errors import InvalidValue, SchemaError
from discreet.federated._certificate import (
    LEARNER,
    SILO_LEARNER,
    forbid_more,
    require_no_plan,
)
from discreet.federated._plan import FederatedPlan
from discreet.learn import check_unit, digest_model
from discreet.learn.dpsgd import Flat, Plan
from discreet.privacy import ApproxDP, Loss, compose, to_json

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from discreet.federated._engine import Federated
    from discreet.ledger import Ledger

_SCHEMA, _VERSION = "discreet.federated.silos", 1
_MOST_SUBSETS = 128


@final
@dataclass(frozen=True)
class SiloPlan:
    """A run over silos, declared before a record is read.

    Parameters
    ----------
    silos : mapping of str to Plan
        What each silo does *in one round*; their planned sizes are their weights.
    rounds : int
        How many rounds there are.
    silos_per_person : int
        In how many silos one person may have records at most.
    client : FederatedPlan, optional
        The protection of a silo as a whole: trust ``server``, sampler ``full``, a client a silo.

    Raises
    ------
    InvalidValue
        If the plans do not fit together.
    """

    silos: Mapping[str, Plan]
    rounds: int
    silos_per_person: int = 1
    client: FederatedPlan | None = None

    def __post_init__(self) -> None:
        plans = list(self.silos.values())
        if not plans or not all(isinstance(one, Plan) for one in plans):
            raise InvalidValue("silos", self.silos, "a discreet.learn.dpsgd.Plan for each silo")
        if len({(one.delta, one.relation, one.unit) for one in plans}) > 1:
            raise InvalidValue("silos", list(self.silos), "plans of one delta, relation and unit")
        _validate.integer("rounds", self.rounds, at_least=1)
        _validate.integer("silos_per_person", self.silos_per_person, at_least=1, at_most=len(plans))
        top = self.client
        if top is not None and (
            (top.trust, top.sampler, top.rounds, top.clients, top.clipping, top.weight_cap)
            != ("server", "full", self.rounds, len(plans), Flat(), None)
        ):
            raise InvalidValue(
                "client", top, "a plan of trust 'server' and sampler 'full' for as many clients "
                "and rounds as here, with a fixed clip norm and without a weight_cap",
            )  # fmt: skip

    @classmethod
    def of_sizes(
        cls,
        sizes: Mapping[str, int],
        *,
        epsilon: float,
        delta: float,
        rounds: int,
        steps: int,
        batch: Callable[[int], int],
        clip_norm: float,
        silos_per_person: int = 1,
        unit: str = "record",
    ) -> SiloPlan:
        """Return the plan by which a person loses epsilon in all silos together.

        Parameters
        ----------
        sizes : mapping of str to int
            The planned number of records of each silo.
        epsilon, delta : float
            What a person may lose, in whichever silos.
        rounds, steps : int
            How many rounds there are, and steps of DP-SGD in each.
        batch : callable
            The expected batch size of a silo of this size.
        clip_norm : float
            Of one record's gradient.
        silos_per_person : int
            See :class:`SiloPlan`.
        unit : str
            Whom the ledgers speak of.

        Returns
        -------
        SiloPlan
        """
        times = _validate.integer("silos_per_person", silos_per_person, at_least=1)
        target = share = _validate.real("epsilon", epsilon, above=0)
        while True:
            plans = {}
            for name, size in sizes.items():
                known: dict[str, Any] = {
                    "examples": size,
                    "expected_batch_size": batch(size),
                    "clip_norm": clip_norm,
                    "unit": unit,
                }
                whole = Plan(steps=rounds * steps * times, epsilon=share, delta=delta, **known)
                noise = whole.noise_multiplier
                plans[name] = Plan(steps=steps, noise_multiplier=noise, delta=delta, **known)
            found = cls(plans, rounds, silos_per_person)
            epsilon_together = found.loss.epsilon(delta=delta)
            if epsilon_together <= target:
                return found
            # Different silos together may cost a little more than either of them as often.
            share *= 0.999 * target / epsilon_together

    @property
    def delta(self) -> float:
        """The delta of all plans."""
        return next(iter(self.silos.values())).delta

    @property
    def unit(self) -> str:
        """Whom the plans of the silos speak of."""
        return next(iter(self.silos.values())).unit

    def loss_of(self, silo: str) -> Loss:
        """Return what one silo charges its ledger.

        Parameters
        ----------
        silo : str
            Its name.

        Returns
        -------
        Loss
        """
        return self.rounds * self.silos[silo].loss

    @cached_property
    def loss(self) -> Loss:
        """What a person loses: in the silos that are dearest together, as many as declared.

        Where silos differ, which are dearest depends on delta, so it is a claim at this delta.
        """
        losses = [self.loss_of(name) for name in self.silos]
        times, relation = self.silos_per_person, losses[0].relation
        if all(one == losses[0] for one in losses):
            return times * losses[0]
        if comb(len(losses), times) <= _MOST_SUBSETS:
            worst = max(
                compose((one, 1) for one in chosen).epsilon(delta=self.delta)
                for chosen in combinations(losses, times)
            )
            return ApproxDP(worst, self.delta, relation)
        each = sorted(one.epsilon(delta=self.delta / times) for one in losses)
        return ApproxDP(sum(each[-times:]) * (1.0 + 1e-12), self.delta, relation)

    @property
    def weights(self) -> dict[str, float]:
        """The share of each silo in the mean, by planned sizes."""
        total = sum(plan.examples for plan in self.silos.values())
        return {name: plan.examples / total for name, plan in self.silos.items()}

    @property
    def facts(self) -> dict[str, Any]:
        """What a certificate says of a run by this plan."""
        facts = {"rounds_taken": self.rounds, "silos_per_person": self.silos_per_person}
        if self.client is None:
            return facts
        top = self.client
        whole = {"epsilon": top.epsilon(), "delta": top.delta, "loss": to_json(top.loss)}
        return {**facts, "whole_silo": whole}

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee rests on, beside the plan."""
        several = self.silos_per_person
        return (
            f"no {self.unit} has data in more than {several} silos: declared, not checked",
            "the model at the start does not depend on what silos have: declared, not checked",
            "every silo trains by its plan; sampling positions and batch sizes were not published",
            "the loss is that of ideal real-valued noise; arithmetic was in floating point",
        )

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the plan's canonical JSON: equal exactly for equal plans."""
        return digest_of(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object.

        Returns
        -------
        dict
        """
        return {
            "schema": _SCHEMA,
            "version": _VERSION,
            "unit": self.unit,
            "silos": {name: plan.to_json() for name, plan in self.silos.items()},
            "rounds": self.rounds,
            "silos_per_person": self.silos_per_person,
            "client": None if self.client is None else self.client.to_json(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SiloPlan:
        """Return the plan that :meth:`to_json` wrote.

        Parameters
        ----------
        document
            The object.

        Returns
        -------
        SiloPlan

        Raises
        ------
        SchemaError
            If a field is missing, unknown or wrong.
        """
        names = {"schema", "version", "unit", "silos", "rounds", "silos_per_person", "client"}
        if set(document) != names or document["schema"] != _SCHEMA or document["version"] != 1:
            raise SchemaError(f"plan: expected {_SCHEMA!r}, version {_VERSION}")
        try:
            top = document["client"]
            plan = cls(
                {name: Plan.from_json(one) for name, one in document["silos"].items()},
                document["rounds"],
                document["silos_per_person"],
                None if top is None else FederatedPlan.from_json(top),
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise SchemaError(f"plan: {error}") from None
        if plan.unit != document["unit"]:
            raise SchemaError("plan: its silos speak of another unit")
        return plan


def run_silos(
    plan: SiloPlan,
    datasets: Mapping[str, Any],
    model: nn.Module,
    *,
    loss: Any,
    optimizer: Callable[[Any], Any],
    ledgers: Mapping[str, tuple[Ledger, str]] | None = None,
    inputs: Any = None,
    source: Any = None,
    checkpoint: str | Path | None = None,
) -> Federated:
    """Charge every silo's ledger, train in rounds, and certify the model.

    Parameters
    ----------
    plan : SiloPlan
        What to do.
    datasets : mapping of str to dataset
        The records of each silo, as :class:`discreet.learn.dpsgd.Trainer` takes them.
    model : nn.Module
        What is trained, in place.
    loss, optimizer
        As those of the trainer; the optimizer begins anew in every round.
    ledgers : mapping of str to (Ledger, str), optional
        The ledger of each silo, and the dataset in it. All are charged before a record is read.
    inputs
        The trainer's description of an example.
    source : Source, optional
        Where the noise comes from; the operating system by default.
    checkpoint : path, optional
        A directory with which a killed run can be resumed by the same call: every silo is charged
        once, and no round is taken twice.

    Returns
    -------
    Federated

    Raises
    ------
    InvalidValue
        If plan, data and ledgers are not of the same silos, or the model and the loss do not
        take the examples; nothing was charged.
    ResumeRefused
        If the directory is of another run, or of one that is complete.
    PlanViolation
        If the model was trained privately before; nothing was charged.
    BudgetExceeded
        If a budget is too small. Silos that were charged before it stay charged.
    """
    import torch

    from discreet.federated._engine import Federated, _arrays_of
    from discreet.federated._round import Round
    from discreet.federated._state import RunState, charge_run
    from discreet.learn.dpsgd import Trainer
    from discreet.randomness import choose_source

    books = ledgers or {}
    for argument, given in (("datasets", datasets), ("ledgers", books)):
        if set(given) != set(plan.silos) and (argument == "datasets" or given):
            raise InvalidValue(argument, sorted(given), f"one for each of {sorted(plan.silos)}")
    require_no_plan(model)
    for book, name in books.values():
        check_unit(book, name, plan.unit)

    def trainer(own: nn.Module, silo: str, bits: Any = None) -> Trainer:
        settings = {"optimizer": optimizer, "loss": loss, "inputs": inputs, "source": bits}
        return Trainer(own, plan.silos[silo], **settings)

    for silo in books:  # before the first charge
        trainer(_fresh(model), silo).rehearse(datasets[silo])
    bits = choose_source(source)
    provenance: Mapping[str, str] = bits.provenance
    with ExitStack() as stack:
        state, taken = None, 0
        if checkpoint is not None:
            shapes = [[name, list(p.shape)] for name, p in model.named_parameters()]
            state = RunState(checkpoint, plan, {"model": digest_of(shapes)})
            stack.callback(state.close)
            bits = bits.derive("attempt", state.attempt)
            if state.found is not None:
                taken = state.reserved
                with torch.no_grad():
                    for name, parameter in model.named_parameters():
                        parameter.copy_(torch.from_numpy(state.found[1][name]))
        paid = stack.enter_context(ExitStack())
        purpose = "federated learning in silos"
        charges = [
            paid.enter_context(charge_run(book, dataset, plan, state, purpose, silo=silo))
            for silo, (book, dataset) in books.items()
        ]
        stack.callback(forbid_more, model)  # also if a round fails
        for number in range(taken, plan.rounds):
            if state is not None:  # the round is on the disk before a record is read
                state.keep({}, _arrays_of(model), reserved=number + 1)
            start = {name: p.detach().clone() for name, p in model.named_parameters()}
            changes = {}
            for silo, data in datasets.items():
                own = _fresh(model)
                made = trainer(own, silo, bits.derive("silo", silo, number))
                trained = made.fit(data, progress=False)
                provenance = trained.certificate.randomness
                changes[silo] = np.concatenate(
                    [
                        (p.detach() - start[name]).double().reshape(-1).numpy()
                        for name, p in own.named_parameters()
                    ]
                )
            if plan.client is None:
                step = sum(plan.weights[silo] * one for silo, one in changes.items())
            else:
                size = len(next(iter(changes.values())))
                top = Round(plan.client, number, size=size, asked=changes, source=bits)
                for silo, change in changes.items():
                    top.receive(silo, {"update": change})
                step = top.finish().update
            rest = torch.from_numpy(np.asarray(step))
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    part, rest = rest[: parameter.numel()], rest[parameter.numel() :]
                    parameter.copy_(start[name] + part.view(parameter.shape).to(parameter.dtype))
        arrays = _arrays_of(model)
        resumed = 0 if state is None else state.attempt
        certificate = _certify(plan, arrays, provenance, resumed)
        # Every ledger records the facts, and the certificate shows the receipt of none of them.
        for charge in charges:
            if charge is not None:
                charge.record(certificate.describe_outcome())
        if state is not None:
            state.hold_back(arrays, certificate)
        paid.close()  # the outcome is in the ledgers before the model is in its place
        if state is not None:
            state.publish(certificate.model_digest)
    return Federated(model, certificate)


def _fresh(model: nn.Module) -> nn.Module:
    """Return a copy of the parameters in force: they are released, so no earlier plan binds it."""
    own = copy.deepcopy(model)
    own.train()
    return own


def _certify(
    plan: SiloPlan, arrays: Mapping[str, Any], randomness: Mapping[str, str], resumed: int
) -> Any:
    from discreet.certificate import Certificate

    return Certificate.of(
        plan.loss,
        delta=plan.delta,
        learner=SILO_LEARNER,
        unit=plan.unit,
        plan=plan.to_json(),
        run={**plan.facts, **({"times_resumed": resumed} if resumed else {})},
        randomness=randomness,
        assumptions=plan.assumptions,
        model_digest=digest_model(LEARNER, {}, arrays),
    )
