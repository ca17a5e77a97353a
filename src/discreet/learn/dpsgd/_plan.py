"""The plan of a training run: the one source of truth for sampler, noise and charge.

Everything that the guarantee depends on is a field of :class:`Plan` and fixed before a record is
read. The loop draws its batches, clips, normalises and adds noise by the plan, and the loss that
is charged to a ledger is computed from the same fields.

One step on the batch B is

    (sum over B of clipped gradients + N(0, (noise_multiplier * C)^2 I)) / expected_batch_size,

divided by the *expected* batch size, never by the realised one, which is private. What it costs
depends on how B was drawn (S6):

``poisson`` (either)
    Every record enters every step with probability expected_batch_size / examples. Under
    ``add_remove`` the number of examples is private and merely plans: a data set of another length
    is sampled at the same rate and normalised alike. Under ``replace`` it is public. With
    ``at_most`` a larger batch is cut to a uniform subset, so that batches have a largest shape;
    how often that happens depends on the number of examples, which must be public then.
``without_replacement`` (replace)
    A uniform subset of exactly expected_batch_size records; the number of examples is public. One
    replaced record moves the sum by 2 C, which ``Gaussian(..., relation="replace")`` states.
``full`` (either)
    All records in every step (DP-GD).
``shuffled`` (either)
    Epochs in which every record takes part once. Under ``add_remove`` every record chooses its
    batch independently of all others, anew in each epoch of each phase: random allocation, whose
    amplification is proved. Under ``replace`` the batches are cut from a uniform permutation, so
    the places of other records depend on this one's, and an epoch costs one full participation:
    given the assignment of records to batches, one record changes one step of the epoch.
``cyclic`` (either)
    Records are divided at random, once for the whole run, into as many groups as the noise has
    bands. Groups take turns, and at its turn every record of a group enters with probability
    bands * expected_batch_size / examples.
``fixed_bins`` (either)
    Records are divided at random, once for the whole run, into as many batches as an epoch has,
    and keep their batch in all epochs. Nothing is amplified.

With ``noise``, a :class:`~discreet.privacy.Strategy`, the noise of a step takes back a part of that
of earlier steps. What it costs rests on how far apart two steps of one record are, so only the last
two samplers have it: a record that may come back at once moves the same noise twice.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from typing import Any, final

from discreet import _validate
from discreet._json import digest_of, read_json
from discreet.certificate import delta_warning
from discreet.errors import InvalidValue, RelationMismatch, SchemaError
from discreet.learn.dpsgd._clipping import Clipping, Quantile, read_clipping
from discreet.privacy import (
    Gaussian,
    Loss,
    Relation,
    Strategy,
    calibrate,
    choose_bands,
    compose,
    least_noise_multiplier,
)
from discreet.privacy.theorems import gaussian_mu

TURNS = ("cyclic", "fixed_bins")
SAMPLERS = ("poisson", "without_replacement", "full", "shuffled", *TURNS)
_SCHEMA = "discreet.dpsgd.plan"
# Version 1 charged a shuffled epoch one full participation and knew no ``at_most``. A plan is
# written in version 2 only where that matters, so that all others keep their hash; in version 3
# where records take turns, in version 4 where a unit has several.
_VERSIONS = (1, 2, 3, 4)
_MOST_BANDS = 128


@lru_cache(maxsize=256)
def compute_epsilon(loss: Loss, delta: float) -> float:
    """The accountant's epsilon; remembered, because plan, display and certificate all ask."""
    return loss.epsilon(delta=delta)


@final
@dataclass(frozen=True)
class Phase:
    """A stretch of steps with one batch size and one noise multiplier.

    ``noise_factor`` multiplies the noise multiplier of the plan, so that a schedule can be
    calibrated as a whole.
    """

    steps: int
    expected_batch_size: float
    noise_factor: float = 1.0

    def __post_init__(self) -> None:
        self._set("steps", _validate.integer("steps", self.steps, at_least=1))
        size = _validate.real("expected_batch_size", self.expected_batch_size, above=0)
        self._set("expected_batch_size", int(size) if size == int(size) else size)
        self._set("noise_factor", _validate.real("noise_factor", self.noise_factor, above=0))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


@final
@dataclass(frozen=True, init=False)
class Plan:
    """A training run, declared before any record is read.

    >>> plan = Plan(
    ...     examples=60_000,
    ...     expected_batch_size=256,
    ...     steps=1_000,
    ...     clip_norm=1.0,
    ...     noise_multiplier=1.1,
    ...     delta=1e-5,
    ... )
    >>> plan.loss
    1000 * Gaussian(noise_multiplier=1.1).poisson(rate=0.004266666666666667)
    >>> plan.epsilon() == plan.loss.epsilon(delta=1e-5)
    True

    Give ``noise_multiplier``, or ``epsilon``: then the least noise multiplier is found whose
    certified epsilon at ``delta`` is at most that. Give ``steps`` or ``epochs`` with
    ``expected_batch_size``, or ``phases`` for a schedule.

    ``examples`` is a planning number under ``add_remove`` unless ``public_examples`` says that
    the length of the data set is public; then, and always under ``replace``, a data set of
    another length is refused. ``at_most`` caps the batches of Poisson samples, for a little more
    epsilon, where the number of examples is public. ``augmentations`` is the number of rows that
    each drawn example contributes; their mean gradient is clipped as one. ``unit`` is whose
    privacy is bounded: one unit owns one example, which the caller asserts unless the data set
    is a :class:`People`. With ``records_per_unit`` a unit owns at most so many examples, and every
    step is charged as that group; the data set must be a :class:`CappedRecords` then.
    ``noise`` correlates the noise of the steps, with the samplers ``cyclic`` and ``fixed_bins``;
    ``"best"`` has the number of bands chosen by epsilon and epochs
    (:func:`discreet.privacy.choose_bands`). Memory grows with the bands.
    ``version`` is that of the rules by which the plan is charged; old plans keep theirs.
    """

    examples: int
    phases: tuple[Phase, ...]
    clip_norm: float
    clipping: Clipping
    noise_multiplier: float
    delta: float
    target_epsilon: float | None
    sampler: str
    relation: Relation
    public_examples: bool
    augmentations: int
    unit: str
    at_most: int | None
    noise: Strategy | None
    records_per_unit: int
    version: int

    def __init__(
        self,
        *,
        examples: int,
        clip_norm: float,
        delta: float,
        expected_batch_size: float | None = None,
        steps: int | None = None,
        epochs: float | None = None,
        phases: Sequence[Phase] | None = None,
        clipping: Clipping | str = "flat",
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        sampler: str = "poisson",
        relation: Relation | str | None = None,
        public_examples: bool = False,
        augmentations: int = 1,
        unit: str = "record",
        at_most: int | None = None,
        noise: Strategy | str | None = None,
        records_per_unit: int = 1,
    ) -> None:
        if (noise_multiplier is None) == (epsilon is None):
            raise InvalidValue(
                "noise_multiplier", noise_multiplier, "either noise_multiplier or epsilon, not both"
            )
        count = _validate.integer("examples", examples, at_least=1)
        kind = _validate.one_of("sampler", sampler, SAMPLERS)
        stretches = _phases_of(count, kind, expected_batch_size, steps, epochs, phases)
        if isinstance(noise, str):
            noise = _choose_bands(noise, kind, stretches, count, (epsilon, delta, relation))
        self._fill(
            examples=count,
            phases=stretches,
            clip_norm=clip_norm,
            clipping=clipping,
            noise_multiplier=1.0 if noise_multiplier is None else noise_multiplier,
            delta=delta,
            target_epsilon=epsilon,
            sampler=kind,
            relation=relation,
            public_examples=public_examples,
            augmentations=augmentations,
            unit=unit,
            at_most=at_most,
            noise=noise,
            records_per_unit=records_per_unit,
            version=None,
        )
        if epsilon is not None:
            object.__setattr__(self, "noise_multiplier", self._calibrate(epsilon))

    def _fill(self, **values: Any) -> None:
        """Check every field and set it; the fields must not contradict one another."""
        sampler = _validate.one_of("sampler", values["sampler"], SAMPLERS)
        replace_by_nature = sampler == "without_replacement"
        relation = values["relation"]
        if relation is None:
            relation = Relation.REPLACE if replace_by_nature else Relation.ADD_REMOVE
        relation = Relation.parse(relation)
        _check_relation(sampler, relation)
        public = values["public_examples"]
        if not isinstance(public, bool):
            raise InvalidValue("public_examples", public, "True or False")
        unit = values["unit"]
        if not isinstance(unit, str) or not unit.strip():
            raise InvalidValue("unit", unit, "a word for whose privacy is bounded")
        target = values["target_epsilon"]
        checked: dict[str, Any] = {
            "examples": _validate.integer("examples", values["examples"], at_least=1),
            "phases": tuple(values["phases"]),
            "clip_norm": _validate.real(
                "clip_norm", values["clip_norm"], at_least=1e-12, at_most=1e12
            ),
            "clipping": read_clipping(values["clipping"]),
            "noise_multiplier": _validate.real(
                "noise_multiplier", values["noise_multiplier"], above=0, at_most=1e6
            ),
            "delta": _validate.real("delta", values["delta"], above=0, below=1),
            "target_epsilon": None
            if target is None
            else _validate.real("epsilon", target, above=0),
            "sampler": sampler,
            "relation": relation,
            "public_examples": public or relation is Relation.REPLACE,
            "augmentations": _validate.integer(
                "augmentations", values["augmentations"], at_least=1
            ),
            "unit": unit,
            "at_most": values["at_most"],
            "noise": values["noise"],
            "records_per_unit": _validate.integer(
                "records_per_unit", values["records_per_unit"], at_least=1
            ),
            "version": values["version"],
        }
        if checked["at_most"] is not None:
            _check_cap(checked)
        _check_noise(checked)
        _check_group(checked)
        if checked["version"] is None and sampler in TURNS:
            checked["version"] = 3
        if checked["version"] is None and checked["records_per_unit"] > 1:
            checked["version"] = 4
        if checked["version"] is None:
            allocated = sampler == "shuffled" and relation is Relation.ADD_REMOVE
            checked["version"] = 2 if allocated or checked["at_most"] is not None else 1
        _check_batches(checked["phases"], checked["examples"], sampler)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    # --- what follows from the fields --------------------------------------------------

    @property
    def steps(self) -> int:
        """The number of steps in all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def expected_batch_size(self) -> float:
        """The normaliser of the first phase, the only one unless there is a schedule."""
        return self.phases[0].expected_batch_size

    def phase_at(self, step: int) -> Phase:
        """The phase that a step (counted from 0) belongs to."""
        start = _validate.integer("step", step, at_least=0, at_most=self.steps - 1)
        for phase in self.phases:
            if start < phase.steps:
                return phase
            start -= phase.steps
        raise AssertionError  # the check above leaves no such step

    def rate_of(self, phase: Phase) -> float:
        """The probability with which a record enters a step of the phase, or a turn of its group.

        The sampler draws with exactly this double, and the accountant reads it.
        """
        groups = self.groups if self.sampler == "cyclic" else 1
        return float(groups * phase.expected_batch_size / self.examples)

    @property
    def groups(self) -> int:
        """Into how many groups the records are divided that take turns; otherwise 1."""
        if self.sampler == "fixed_bins":
            return self.batches_per_epoch(self.phases[0])
        return 1 if self.noise is None else self.noise.bands

    @property
    def strategy(self) -> Strategy:
        """How the noise of the steps is correlated; by default not at all."""
        return Strategy.independent() if self.noise is None else self.noise

    def batches_per_epoch(self, phase: Phase) -> int:
        """Into how many batches a shuffled epoch is divided."""
        return math.ceil(Fraction(self.examples) / Fraction(phase.expected_batch_size))

    @cached_property
    def loss(self) -> Loss:
        """What the whole run reveals about one unit; charge this before the first batch."""
        return self._loss(self.noise_multiplier)

    def loss_of(self, steps: int) -> Loss | None:
        """The loss of the first ``steps`` steps; ``None`` for none.

        For showing how far a run has come. The guarantee of a run is that of the whole plan,
        also if it is stopped early: when to stop may have depended on the results.
        """
        left = _validate.integer("steps", steps, at_least=0, at_most=self.steps)
        parts = []
        for phase in self.phases:
            taken = min(left, phase.steps)
            left -= taken
            if taken:
                parts.append(self._phase_loss(phase, taken, self.noise_multiplier))
        return sum(parts[1:], start=parts[0]) if parts else None

    def epsilon(self) -> float:
        """The certified epsilon of the whole plan at its delta: an upper bound."""
        return compute_epsilon(self.loss, self.delta)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the certificate must not overlook."""
        text = delta_warning(self.delta, self.examples)
        return () if text is None else (text,)

    def _loss(self, noise_multiplier: float) -> Loss:
        parts = [self._phase_loss(phase, phase.steps, noise_multiplier) for phase in self.phases]
        return sum(parts[1:], start=parts[0])

    def _phase_loss(self, phase: Phase, steps: int, noise_multiplier: float) -> Loss:
        noise = self.clipping.noise_for_atom(noise_multiplier * phase.noise_factor)
        atom = Gaussian(noise, self.relation)
        if self.sampler == "poisson":
            caps = {} if self.at_most is None else {"population": self.examples}
            drawn = atom.poisson(rate=self.rate_of(phase), at_most=self.at_most, **caps)
            # Of each step, not of all: a record is drawn in each of them anew.
            return steps * drawn.group(self.records_per_unit)
        if self.sampler == "without_replacement":
            size = int(phase.expected_batch_size)
            return steps * atom.sample_without_replacement(sample=size, population=self.examples)
        if self.sampler == "full":
            return steps * atom.group(self.records_per_unit)
        if self.sampler in TURNS:
            turn = self.rate_of(phase) if self.sampler == "cyclic" else None
            return atom.correlated(self.strategy, steps=steps, separation=self.groups, rate=turn)
        batches = self.batches_per_epoch(phase)
        if self.version == 1:
            return math.ceil(steps / batches) * atom
        # An epoch that was broken off counts as it was planned: how far it came may have
        # depended on what was seen.
        whole, planned = divmod(phase.steps, batches)
        epochs = [(atom.allocate(batches=batches), min(math.ceil(steps / batches), whole))]
        if steps > whole * batches:
            epochs.append((atom.allocate(batches=batches, steps=planned), 1))
        return compose((epoch, count) for epoch, count in epochs if count)

    def _calibrate(self, epsilon: float) -> float:
        only = self.phases[0]
        plain = len(self.phases) == 1 and only.noise_factor == 1.0 and not self._is_adaptive()
        alone = self.at_most is None and self.records_per_unit == 1
        if self.sampler == "poisson" and plain and alone:
            return least_noise_multiplier(
                epsilon=epsilon,
                delta=self.delta,
                rate=self.rate_of(only),
                steps=only.steps,
                relation=self.relation,
            )
        # Sampling only helps, so what suffices without it bounds the noise from above.
        twice = self.relation is Relation.REPLACE or self.at_most is not None
        changes = (2.0 if twice else 1.0) * self.records_per_unit
        least_factor = min(phase.noise_factor for phase in self.phases)
        reach = math.sqrt(self.steps)
        if self.sampler in TURNS:
            reach = self.strategy.sensitivity(steps=self.steps, separation=self.groups)
        most = 1.1 * changes * reach / gaussian_mu(epsilon, self.delta)
        most *= 1e3 if self._is_adaptive() else 1.0
        return calibrate(
            self._loss,
            epsilon=epsilon,
            delta=self.delta,
            bracket=(min(0.05, most / 1e3), max(1.0, most / least_factor)),
            increasing=False,
        )

    def _is_adaptive(self) -> bool:
        return isinstance(self.clipping, Quantile)

    # --- JSON --------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object; see :meth:`from_json`."""
        return {
            "schema": _SCHEMA,
            "version": self.version,
            "examples": self.examples,
            "phases": [asdict(phase) for phase in self.phases],
            "clip_norm": self.clip_norm,
            "clipping": self.clipping.to_json(),
            "noise_multiplier": self.noise_multiplier,
            "delta": self.delta,
            "target_epsilon": self.target_epsilon,
            "sampler": self.sampler,
            "relation": self.relation.value,
            "public_examples": self.public_examples,
            "augmentations": self.augmentations,
            "unit": self.unit,
            **({} if self.at_most is None else {"at_most": self.at_most}),
            **({} if self.noise is None else {"noise": self.noise.to_json()}),
            **({} if self.version != 4 else {"records_per_unit": self.records_per_unit}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any] | str) -> Plan:
        """The plan that :meth:`to_json` wrote; unknown, missing and wrong fields raise.

        A target that the noise multiplier does not meet raises too: nothing is calibrated
        again, and nothing is believed.
        """
        body = read_json(document, "plan") if isinstance(document, str) else document
        if not isinstance(body, Mapping):
            raise SchemaError("plan: expected an object")
        body = dict(body)
        schema, version = body.pop("schema", None), body.pop("version", None)
        if schema != _SCHEMA or version not in _VERSIONS or type(version) is not int:
            raise SchemaError(f"plan: expected schema {_SCHEMA!r}, version {_VERSIONS}")
        caps = {"at_most": body.pop("at_most")} if version == 2 and "at_most" in body else {}
        noise = _read_noise(body.pop("noise")) if version == 3 and "noise" in body else None
        own = body.pop("records_per_unit", 1) if version == 4 else 1
        optional = {"version", "at_most", "noise", "records_per_unit"}
        expected = set(cls.__dataclass_fields__) - optional
        if set(body) != expected:
            raise SchemaError(f"plan: fields {sorted(set(body) ^ expected)} are missing or unknown")
        if not isinstance(body["phases"], list | tuple) or not body["phases"]:
            raise SchemaError("plan: phases: expected a list of at least one phase")
        try:
            body["phases"] = [Phase(**phase) for phase in body["phases"]]
        except TypeError as error:
            raise SchemaError(f"plan: phases: {error}") from None
        plan = cls.__new__(cls)
        plan._fill(
            **body,
            at_most=caps.get("at_most"),
            noise=noise,
            records_per_unit=own,
            version=version,
        )
        if (version == 4) != (plan.records_per_unit > 1):
            raise SchemaError("plan: version 4 is for several records_per_unit only")
        if (version == 3) != (plan.sampler in TURNS):
            raise SchemaError("plan: version 3 is for the samplers cyclic and fixed_bins only")
        allocated = (plan.sampler, plan.relation) == ("shuffled", Relation.ADD_REMOVE)
        if version == 2 and plan.at_most is None and not allocated:
            raise SchemaError(
                "plan: version 2 is for shuffled epochs under add_remove and for at_most only"
            )
        if plan.target_epsilon is not None and plan.epsilon() > plan.target_epsilon:
            raise SchemaError(
                f"plan: noise_multiplier {plan.noise_multiplier} misses its target epsilon "
                f"{plan.target_epsilon} at delta {plan.delta}"
            )
        return plan

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the plan's canonical JSON: equal exactly for equal plans."""
        return digest_of(self.to_json())


def loss_of_all(plans: Iterable[Plan]) -> Loss:
    """What a model reveals that was under several plans, one after the other: the sum."""
    return reduce(operator.add, (plan.loss for plan in plans))


def _phases_of(
    examples: int,
    sampler: str,
    size: float | None,
    steps: int | None,
    epochs: float | None,
    phases: Sequence[Phase] | None,
) -> tuple[Phase, ...]:
    if phases is not None:
        if size is not None or steps is not None or epochs is not None:
            raise InvalidValue(
                "phases", phases, "phases alone, without expected_batch_size, steps and epochs"
            )
        if not phases or not all(isinstance(phase, Phase) for phase in phases):
            raise InvalidValue("phases", phases, "at least one Phase")
        return tuple(phases)
    if size is None and sampler == "full":
        size = examples
    if size is None:
        raise InvalidValue("expected_batch_size", size, "the expected number of examples a step")
    if (steps is None) == (epochs is None):
        raise InvalidValue("steps", steps, "either steps or epochs, not both")
    if steps is not None:
        return (Phase(steps, size),)
    rounds = _validate.real("epochs", epochs, above=0)
    batch = _validate.real("expected_batch_size", size, above=0)
    return (Phase(max(1, math.ceil(Fraction(rounds) * examples / Fraction(batch))), size),)


def _check_relation(sampler: str, relation: Relation) -> None:
    if sampler == "without_replacement" and relation is Relation.ADD_REMOVE:
        raise RelationMismatch(
            "a batch of fixed size drawn without replacement is accounted under 'replace' (S6); "
            "use sampler='poisson' for 'add_remove'"
        )


def _check_cap(fields: Mapping[str, Any]) -> None:
    """Refuse a cap on batches where its cost is not known."""
    most = fields["at_most"]
    _validate.integer("at_most", most, at_least=1, at_most=fields["examples"])
    if fields["sampler"] != "poisson" or fields["relation"] is not Relation.ADD_REMOVE:
        raise InvalidValue("at_most", most, "no cap, unless the sampler is poisson, add_remove")
    if not fields["public_examples"]:
        raise InvalidValue(
            "at_most",
            most,
            "public_examples=True with it: how often a batch is cut depends on the number of "
            "examples, so a private number would cost more than the plan says",
        )


def _choose_bands(
    noise: str,
    sampler: str,
    phases: Sequence[Phase],
    examples: int,
    goal: tuple[float | None, float, Relation | str | None],
) -> Strategy:
    """Return the bands with the least error of prefix sums, for ``noise="best"``."""
    _validate.one_of("noise", noise, ("best",))
    steps, size = phases[0].steps, phases[0].expected_batch_size
    if sampler == "fixed_bins":
        batches = math.ceil(Fraction(examples) / Fraction(size))
        return Strategy.optimised(min(batches, steps, _MOST_BANDS), steps=steps)
    epsilon, delta, relation = goal
    if epsilon is None:
        raise InvalidValue("noise", noise, "epsilon with it: the best bands depend on the budget")
    return choose_bands(
        epsilon=epsilon,
        delta=delta,
        steps=steps,
        rate=min(1.0, size / examples),
        relation=Relation.ADD_REMOVE if relation is None else relation,
        at_most=_MOST_BANDS,
    )[0]


def _check_noise(fields: Mapping[str, Any]) -> None:
    """Refuse correlated noise where two steps of one record are not known to be apart."""
    noise, sampler = fields["noise"], fields["sampler"]
    if noise is not None and not isinstance(noise, Strategy):
        raise InvalidValue("noise", noise, "a discreet.privacy.Strategy, 'best' or None")
    if sampler not in TURNS:
        if noise is not None:
            raise InvalidValue(
                "noise",
                noise,
                f"None with the sampler {sampler!r}, by which a record may come back within the "
                "bands and then costs up to three times what is claimed: use sampler='cyclic' or "
                "'fixed_bins'",
            )
        return
    if len(fields["phases"]) > 1 or isinstance(fields["clipping"], Quantile):
        raise InvalidValue(
            "sampler",
            sampler,
            "one phase, and a clip norm that stays: the cost of other runs by turns is not known",
        )
    (phase,) = fields["phases"]
    if sampler == "fixed_bins":
        batches = math.ceil(Fraction(fields["examples"]) / Fraction(phase.expected_batch_size))
        (noise or Strategy.independent()).sensitivity(steps=phase.steps, separation=batches)
        return
    if noise is None or noise.inverse:
        raise InvalidValue(
            "noise", noise, "a Strategy of bands with the sampler 'cyclic', or 'best'"
        )
    if noise.bands * phase.expected_batch_size > fields["examples"]:
        raise InvalidValue(
            "noise",
            noise,
            f"at most {int(fields['examples'] / phase.expected_batch_size)} bands: each of as many "
            "groups must hold a batch",
        )


def _check_group(fields: Mapping[str, Any]) -> None:
    """Refuse several records of a unit where the cost of a step as a group is not exact."""
    size = fields["records_per_unit"]
    if size == 1:
        return
    from discreet.learn._declared import ROW_UNITS  # not above: most plans need no ledger

    if fields["unit"].strip().lower() in ROW_UNITS:
        raise InvalidValue(
            "records_per_unit", size, "1 for this unit: give unit='person' or who else owns records"
        )
    alone = fields["sampler"] in ("poisson", "full") and fields["at_most"] is None
    if not alone or fields["relation"] is not Relation.ADD_REMOVE:
        raise InvalidValue(
            "records_per_unit",
            size,
            "1, unless the sampler is poisson or full, add_remove, without at_most: elsewhere the "
            "cost of a unit with several records is not exact. Make persons the examples instead "
            "(dpsgd.People)",
        )


def _read_noise(given: object) -> Strategy:
    if not isinstance(given, Mapping) or set(given) != {"coefficients", "inverse"}:
        raise SchemaError("plan: noise: expected coefficients and inverse")
    try:
        return Strategy(tuple(given["coefficients"]), given["inverse"])
    except TypeError as error:
        raise SchemaError(f"plan: noise: {error}") from None


def _check_batches(phases: Sequence[Phase], examples: int, sampler: str) -> None:
    for phase in phases:
        size = phase.expected_batch_size
        if size > examples:
            raise InvalidValue("expected_batch_size", size, f"at most examples = {examples}")
        if sampler == "full" and size != examples:
            raise InvalidValue(
                "expected_batch_size", size, f"examples = {examples} for a full batch, or nothing"
            )
        if sampler in ("without_replacement", "shuffled") and not isinstance(size, int):
            raise InvalidValue(
                "expected_batch_size", size, f"a whole number for the sampler {sampler!r}"
            )
