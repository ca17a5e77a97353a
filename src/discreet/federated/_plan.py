"""The plan of a federated run: who is trusted, who takes part, what is clipped, added and charged.

What a run costs depends on who is trusted:

``server``
    The server sees every update, adds the noise and keeps the cohorts secret. A client enters a
    round by a coin, so sampling amplifies. The loss is that of DP-SGD with clients for examples:
    :class:`discreet.learn.dpsgd.Plan` states it, its samplers and its correlated noise.
``aggregation``
    The server sees sums only, by secure aggregation, and picks the cohorts, so nothing is
    amplified. Each client adds a share of integer noise, 1 / honest of it, where ``honest`` is the
    smallest number of honest clients in a sum: ``threshold - colluders``. The loss is stated for
    that number, under ``zero_out``: a client that stays away takes its share along.
``shuffler``
    Each client randomizes its update by itself, and a shuffler hides who sent what. The loss is
    that of one report among ``honest`` shuffled ones, for each round that a client takes part in.
``nobody``
    As before without a shuffler: participations times the loss of one report.

The denominator is planned: ``expected_cohort``, times ``planned_weight`` where clients weigh. The
number that replied is private, and the example counts of clients never leave them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, final

from discreet import _validate
from discreet._json import digest_of, read_json
from discreet.certificate import delta_warning
from discreet.errors import InvalidValue, SchemaError
from discreet.learn import ROW_UNITS
from discreet.learn.dpsgd import Clipping, Flat, Plan, Quantile
from discreet.privacy import (
    Loss,
    PureDP,
    Relation,
    Skellam,
    Strategy,
    SummedDiscreteGaussian,
    calibrate,
)
from discreet.randomness import discrete_gaussian, skellam

TRUSTS = ("server", "aggregation", "shuffler", "nobody")
SHARES = ("discrete_gaussian", "skellam")
SAMPLERS = ("poisson", "without_replacement", "full", "cyclic", "fixed_bins")
_SCHEMA, _VERSION = "discreet.federated.plan", 1
_MOST_LOCAL_EPSILON = 30
# A share of less variance is too coarse for a sum of discrete Gaussians to be nearly one.
_LEAST_SHARE = 2
_MOST_SHARE = {"discrete_gaussian": 10**15, "skellam": 2 * 10**7}
_LOCAL = ("shuffler", "nobody")
# One of what a client has many of: a change of it moves an update twice as far as the clip.
_RECORDS = frozenset(ROW_UNITS) | {
    *("document", "event", "image", "instance", "item", "measurement", "message", "observation"),
    *("photo", "picture", "point", "sample", "sentence", "text", "transaction", "tuple", "visit"),
}


@final
@dataclass(frozen=True, init=False)
class FederatedPlan:
    """A federated run, declared before a client is asked.

    >>> plan = FederatedPlan(
    ...     clients=3_000,
    ...     expected_cohort=100,
    ...     rounds=100,
    ...     clip_norm=0.3,
    ...     delta=1e-5,
    ...     noise_multiplier=1.0,
    ... )
    >>> plan.loss
    100 * Gaussian(noise_multiplier=1.0).poisson(rate=0.03333333333333333)
    >>> f"{plan.epsilon():.3f}"
    '2.348'

    Parameters
    ----------
    clients : int
        How many clients are enrolled: a planning number where their number is private.
    expected_cohort : int
        The expected number of clients in a round, and the denominator of every mean.
    rounds : int
        How many rounds there are.
    clip_norm : float
        The largest length of an update; where it starts with an adaptive clip.
    delta : float
        The delta at which epsilon is stated.
    trust : str
        ``server``, ``aggregation``, ``shuffler`` or ``nobody``.
    unit : str
        ``client``, or what the ledger calls one (phone, patient): all that a client has comes and
        goes. ``record``, or another word for one of many (row, image, visit, message): one of them
        changes, which may change the client's whole update to any other. The certificate says
        which.
    epsilon, noise_multiplier, local_epsilon
        One of them: the target, the noise in clip norms (of the sum, ``server`` and
        ``aggregation``), or the epsilon of one report (``shuffler`` and ``nobody``).
    clipping : Flat or Quantile, optional
        With :class:`~discreet.learn.dpsgd.Quantile` the clip follows a quantile of the lengths, and
        the bits that it needs are paid for. Only where the server is trusted.
    sampler : str
        How a trusted server draws its cohorts; see :class:`discreet.learn.dpsgd.Plan`. Elsewhere
        the server chooses as it likes, and the sampler is ``chosen``.
    noise : Strategy or "best", optional
        Correlated noise, with the samplers ``cyclic`` and ``fixed_bins``.
    weight_cap : int, optional
        A client with n examples weighs min(n / weight_cap, 1), by itself; n is not sent.
    planned_weight : float
        The planned mean of these weights: a public number.
    threshold : int, optional
        The least number of replies with which a round ends, where a sum or a shuffler hides them.
    colluders : int
        How many of these may work for the server.
    participations : int, optional
        In how many rounds a client takes part at most, which it counts by itself; by default all.
    dimension : int, optional
        The number of parameters, where clients add noise.
    shares : str
        ``discrete_gaussian`` or ``skellam``: the noise that clients add under ``aggregation``.
    steps_per_clip : int
        Into how many whole steps a clip norm is cut under ``aggregation``.

    Raises
    ------
    InvalidValue
        If an argument is outside its range, or has no meaning under this trust.
    """

    trust: str
    unit: str
    clients: int
    expected_cohort: int
    rounds: int
    clip_norm: float
    clipping: Clipping
    delta: float
    noise_multiplier: float | None
    local_epsilon: float | None
    target_epsilon: float | None
    sampler: str
    noise: Strategy | None
    weight_cap: int | None
    planned_weight: float
    threshold: int | None
    colluders: int
    participations: int
    dimension: int | None
    shares: str | None
    steps_per_clip: int

    def __init__(
        self,
        *,
        clients: int,
        expected_cohort: int,
        rounds: int,
        clip_norm: float,
        delta: float,
        trust: str = "server",
        unit: str = "client",
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        local_epsilon: float | None = None,
        clipping: Clipping | None = None,
        sampler: str | None = None,
        noise: Strategy | str | None = None,
        weight_cap: int | None = None,
        planned_weight: float = 1.0,
        threshold: int | None = None,
        colluders: int = 0,
        participations: int | None = None,
        dimension: int | None = None,
        shares: str | None = None,
        steps_per_clip: int = 4096,
    ) -> None:
        kind = _validate.one_of("trust", trust, TRUSTS)
        _validate.exactly_one(
            epsilon=epsilon, noise_multiplier=noise_multiplier, local_epsilon=local_epsilon
        )
        if isinstance(noise, str) and kind == "server":
            noise = _choose_bands(
                noise, clients, expected_cohort, rounds, clip_norm, delta, epsilon, sampler
            )
        local = kind in _LOCAL
        self._fill(
            trust=kind,
            unit=unit,
            clients=clients,
            expected_cohort=expected_cohort,
            rounds=rounds,
            clip_norm=clip_norm,
            clipping=Flat() if clipping is None else clipping,
            delta=delta,
            noise_multiplier=1.0 if epsilon is not None and not local else noise_multiplier,
            local_epsilon=1.0 if epsilon is not None and local else local_epsilon,
            target_epsilon=epsilon,
            sampler=sampler or ("poisson" if kind == "server" else "chosen"),
            noise=noise,
            weight_cap=weight_cap,
            planned_weight=planned_weight,
            threshold=threshold,
            colluders=colluders,
            participations=rounds if participations is None else participations,
            dimension=dimension,
            shares=shares or ("discrete_gaussian" if kind == "aggregation" else None),
            steps_per_clip=steps_per_clip,
        )
        if epsilon is not None:
            name = "local_epsilon" if local else "noise_multiplier"
            object.__setattr__(self, name, self._calibrate(epsilon))
            self.__dict__.pop("central", None)  # it had noise of 1
        self._check_share()

    def _fill(self, **given: Any) -> None:
        """Check every field and set it; the fields must not contradict one another."""
        whole = ("clients", "expected_cohort", "rounds", "participations", "steps_per_clip")
        checked = {**given, **{n: _validate.integer(n, given[n], at_least=1) for n in whole}}
        checked["trust"] = _validate.one_of("trust", given["trust"], TRUSTS)
        if not isinstance(given["unit"], str) or not given["unit"].strip():
            raise InvalidValue("unit", given["unit"], "client, record, or another word for one")
        checked["unit"] = given["unit"].strip()
        checked["colluders"] = _validate.integer("colluders", given["colluders"], at_least=0)
        checked["delta"] = _validate.real("delta", given["delta"], above=0, below=1)
        checked["clip_norm"] = _validate.real(
            "clip_norm", given["clip_norm"], at_least=1e-12, at_most=1e12
        )
        checked["planned_weight"] = _validate.real(
            "planned_weight", given["planned_weight"], above=0, at_most=1
        )
        bounds = {
            "noise_multiplier": {"above": 0, "at_most": 1e6},
            "local_epsilon": {"above": 0, "at_most": _MOST_LOCAL_EPSILON},
            "target_epsilon": {"above": 0},
        }
        for name, limits in bounds.items():
            if given[name] is not None:
                checked[name] = _validate.real(name, given[name], **limits)  # type: ignore[arg-type]
        for name in ("weight_cap", "threshold", "dimension"):
            if given[name] is not None:
                checked[name] = _validate.integer(name, given[name], at_least=1)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        self._check_parts()
        if self.trust == "server":
            self.central.loss  # noqa: B018 - raises what DP-SGD refuses

    def _check_parts(self) -> None:
        """Refuse what has no meaning under this trust."""
        trust, cohort = self.trust, self.expected_cohort
        self._require(
            "expected_cohort", cohort <= self.clients, f"at most clients = {self.clients}"
        )
        if type(self.clipping) not in (Flat, Quantile):
            raise InvalidValue("clipping", self.clipping, "Flat() or a Quantile")
        self._require(
            "planned_weight",
            self.planned_weight == 1 or self.weight_cap is not None,
            "1 without a weight_cap",
        )
        local, central = trust in _LOCAL, trust == "server"
        self._require(
            "noise_multiplier",
            (self.noise_multiplier is None) == local,
            self._say_given(not local),
        )
        self._require(
            "local_epsilon",
            (self.local_epsilon is not None) == local,
            self._say_given(local),
        )
        samplers = SAMPLERS if central else ("chosen",)
        self._require("sampler", self.sampler in samplers, "one of " + ", ".join(samplers))
        self._require(
            "participations", self.participations <= self.rounds, f"at most rounds = {self.rounds}"
        )
        hidden = trust in ("aggregation", "shuffler")
        self._require("threshold", (self.threshold is not None) == hidden, self._say_given(hidden))
        self._require("colluders", hidden or self.colluders == 0, self._say_given(hidden))
        self._require(
            "dimension", (self.dimension is None) == central, self._say_given(not central)
        )
        adds = trust == "aggregation"
        self._require("shares", (self.shares in SHARES) if adds else self.shares is None,
                      "one of " + ", ".join(SHARES) if adds else self._say_given(adds))  # fmt: skip
        if central:
            self._require("participations", self.participations == self.rounds,
                          "nothing where the server is trusted: it draws the cohorts")  # fmt: skip
        else:
            self._require("clipping", isinstance(self.clipping, Flat), self._say_given(False))
            self._require("noise", self.noise is None, self._say_given(False))
            room = self.clients * self.participations
            self._require("participations", room >= cohort * self.rounds,
                          "enough for every round to have its cohort")  # fmt: skip
        if local:
            self._require("weight_cap", self.weight_cap is None, self._say_given(False))
        if self.threshold is not None:
            least = max(2 * cohort // 3, (cohort + self.colluders) // 2) + 1 if adds else 1
            expected = f"{max(least, self.colluders + 1)} to expected_cohort = {cohort}"
            if adds:
                expected += ": above two thirds, or a server could end a round twice"
            fits = max(least, self.colluders + 1) <= self.threshold <= cohort
            self._require("threshold", fits, expected)

    def _say_given(self, given: bool) -> str:
        return f"{'a value' if given else 'none'} where the trust is in {self.trust!r}"

    def _require(self, name: str, fits: bool, expected: str) -> None:
        if not fits:
            raise InvalidValue(name, getattr(self, name), expected)

    def _check_share(self) -> None:
        """Refuse shares of noise that cannot be drawn, or are too coarse for their theorem."""
        if self.shares is not None and not (
            _LEAST_SHARE <= self.share_variance <= _MOST_SHARE[self.shares]
        ):
            raise InvalidValue(
                "steps_per_clip",
                self.steps_per_clip,
                f"so many that the variance of a share, now {self.share_variance}, is between "
                f"{_LEAST_SHARE} and {_MOST_SHARE[self.shares]} squared steps",
            )

    # --- what follows from the fields --------------------------------------------------

    @cached_property
    def central(self) -> Plan:
        """The plan of DP-SGD with clients for examples, where the server is trusted."""
        if self.trust != "server":
            raise InvalidValue("trust", self.trust, "server")
        replace = self._of_records or self.sampler == "without_replacement"
        return Plan(
            examples=self.clients,
            expected_batch_size=self.expected_cohort,
            steps=self.rounds,
            clip_norm=self.clip_norm,
            clipping=self.clipping,
            noise_multiplier=self.noise_multiplier,
            delta=self.delta,
            sampler=self.sampler,
            relation=Relation.REPLACE if replace else Relation.ADD_REMOVE,
            unit=self.unit,
            noise=self.noise,
        )

    @property
    def _of_records(self) -> bool:
        return self.unit.lower().removesuffix("s") in _RECORDS

    @property
    def honest(self) -> int:
        """The smallest number of honest clients behind a sum or a shuffled batch."""
        return 1 if self.threshold is None else self.threshold - self.colluders

    @property
    def denominator(self) -> float:
        """What sums of updates are divided by: planned numbers only."""
        return self.expected_cohort * self.planned_weight

    @property
    def l2_squared(self) -> int:
        """The largest square of the length of an update in whole steps, after rounding."""
        assert self.dimension is not None
        return math.floor((self.steps_per_clip + 0.5 * math.sqrt(self.dimension)) ** 2) + 1

    @property
    def share_variance(self) -> int:
        """The variance of the noise that one client adds to each coordinate, in squared steps."""
        assert self.noise_multiplier is not None
        return math.ceil(self.noise_multiplier**2 * self.l2_squared / self.honest)

    @cached_property
    def loss(self) -> Loss:
        """What the whole run reveals about one unit; charge this before a client is asked."""
        if self.trust == "server":
            return self.central.loss
        return self.participations * self._round_loss()

    def _round_loss(self) -> Loss:
        if self.trust in _LOCAL:
            assert self.local_epsilon is not None
            return PureDP(self.local_epsilon, Relation.REPLACE).shuffled(population=self.honest)
        assert self.dimension is not None
        twice = self._of_records
        l2 = math.sqrt(self.l2_squared) * (1.0 + 1e-15) * (2.0 if twice else 1.0)
        # Of whole numbers: no absolute value is above its square.
        l1 = l2 * math.sqrt(self.dimension) if twice else min(
            l2 * math.sqrt(self.dimension), float(self.l2_squared)
        )  # fmt: skip
        relation = Relation.REPLACE if twice else Relation.ZERO_OUT
        if self.shares == "skellam":
            return Skellam(float(self.honest * self.share_variance), l2, l1, relation)
        return SummedDiscreteGaussian(
            float(self.share_variance), self.honest, l2, l1, self.dimension, relation
        )

    def epsilon(self) -> float:
        """Return the certified epsilon of the whole plan at its delta: an upper bound.

        Returns
        -------
        float
        """
        return self.loss.epsilon(delta=self.delta)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the certificate must not overlook."""
        text = delta_warning(self.delta, self.clients)
        return () if text is None else (text,)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee rests on, beside the plan."""
        whose = "one of many that one client has" if self._of_records else "all that one client has"
        whose = f"the unit, {self.unit}, is {whose}"
        return (*_ASSUMPTIONS[self.trust], whose, *_FOR_ALL)

    def _calibrate(self, epsilon: float) -> float:
        if self.trust == "server":
            settings = {name: getattr(self.central, name) for name in _OF_CENTRAL}
            size, steps = self.expected_cohort, self.rounds
            return Plan(
                epsilon=epsilon, expected_batch_size=size, steps=steps, **settings
            ).noise_multiplier

        def make_loss(value: float) -> Loss:
            name = "local_epsilon" if self.trust in _LOCAL else "noise_multiplier"
            trial = object.__new__(FederatedPlan)
            for field in fields(self):
                object.__setattr__(trial, field.name, getattr(self, field.name))
            object.__setattr__(trial, name, value)
            return trial.loss

        local = self.trust in _LOCAL
        return calibrate(
            make_loss,
            epsilon=epsilon,
            delta=self.delta,
            bracket=(epsilon / self.rounds / 2, 29.0) if local else (0.05, 1e4),
            increasing=local,
        )

    # --- JSON --------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object.

        Returns
        -------
        dict
            What :meth:`from_json` reads.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["clipping"] = self.clipping.to_json()
        values["noise"] = None if self.noise is None else self.noise.to_json()
        return {"schema": _SCHEMA, "version": _VERSION, **values}

    @classmethod
    def from_json(cls, document: Mapping[str, Any] | str) -> FederatedPlan:
        """Return the plan that :meth:`to_json` wrote.

        Nothing is calibrated again: a target that the noise does not meet is refused.

        Parameters
        ----------
        document
            The object, or its text.

        Returns
        -------
        FederatedPlan

        Raises
        ------
        SchemaError
            If a field is missing, unknown or wrong.
        """
        body = read_json(document, "plan") if isinstance(document, str) else document
        names = {field.name for field in fields(cls)}
        if not isinstance(body, Mapping) or set(body) != names | {"schema", "version"}:
            raise SchemaError("plan: expected an object with the fields of a federated plan")
        if body["schema"] != _SCHEMA or body["version"] != _VERSION:
            raise SchemaError(f"plan: expected schema {_SCHEMA!r}, version {_VERSION}")
        plan = cls.__new__(cls)
        try:
            values = {name: body[name] for name in names}
            values["clipping"] = _read_clipping(body["clipping"])
            if body["noise"] is not None:
                noise = body["noise"]
                values["noise"] = Strategy(tuple(noise["coefficients"]), noise["inverse"])
            plan._fill(**values)
            plan._check_share()
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"plan: {error}") from None
        if plan.target_epsilon is not None and plan.epsilon() > plan.target_epsilon:
            raise SchemaError(f"plan: its noise misses the target epsilon {plan.target_epsilon}")
        return plan

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the plan's canonical JSON: equal exactly for equal plans."""
        return digest_of(self.to_json())


_OF_CENTRAL = ("examples", "clip_norm", "clipping", "delta", "sampler", "relation", "unit", "noise")
_FOR_ALL = (
    "clients run the published program",
    "the model at the start does not depend on what clients have: declared, not checked",
    "clients send updates only: counts, metrics and buffers of theirs are not published",
)
_LOCAL_PROMISE = (
    "a client counts its rounds by itself and takes part in no more than the plan allows",
    "that a client took part is not covered",
)
_ASSUMPTIONS = {
    "server": (
        "the server is honest; cohorts, replies and drop-outs are not published",
        "whether a client drops out depends on that client alone",
        "the loss is that of ideal real-valued noise; arithmetic was in floating point",
    ),
    "aggregation": (
        "secure aggregation shows the server nothing but the sum modulo its range",
        "at least threshold - colluders of the clients in a sum are honest and add their noise",
        *_LOCAL_PROMISE,
    ),
    "shuffler": (
        "the shuffler hides who sent which report, and passes on threshold of them or none",
        "at least threshold - colluders of the reports of a round are honest",
        "the normal numbers of PrivUnitG are drawn in double precision",
        *_LOCAL_PROMISE,
    ),
    "nobody": ("the normal numbers of PrivUnitG are drawn in double precision", *_LOCAL_PROMISE),
}


def _read_clipping(document: Mapping[str, Any]) -> Clipping:
    rules: dict[str, type[Clipping]] = {"flat": Flat, "quantile": Quantile}
    settings = dict(document)
    return rules[settings.pop("kind")](**settings)


def _choose_bands(
    noise: str,
    clients: int,
    cohort: int,
    rounds: int,
    clip_norm: float,
    delta: float,
    epsilon: float | None,
    sampler: str | None,
) -> Strategy | None:
    """Return the strategy that DP-SGD takes for noise="best"."""
    return Plan(
        examples=clients,
        expected_batch_size=cohort,
        steps=rounds,
        clip_norm=clip_norm,
        delta=delta,
        epsilon=epsilon,
        noise_multiplier=1.0 if epsilon is None else None,
        sampler=sampler or "poisson",
        noise=noise,
    ).noise


def draw_share(plan: FederatedPlan, size: int, source: Any) -> Any:
    """Return the integer noise of one client, in whole steps."""
    draw = skellam if plan.shares == "skellam" else discrete_gaussian
    return draw(plan.share_variance, size, source=source)
