"""Read the records of other accountants as losses: dp-accounting's events, Opacus' histories.

Neither package is needed: events are read by the names of their classes and fields, histories are
lists of numbers. What a description does not say is listed beside the loss as an assumption.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable, RelationMismatch, SchemaError
from discreet.privacy._claims import ZCDP, PureDP, RenyiDP
from discreet.privacy._composition import compose
from discreet.privacy._finite import RandomizedResponse
from discreet.privacy._gaussian import Gaussian, GaussianMixture
from discreet.privacy._laplace import DiscreteLaplace, Laplace
from discreet.privacy._loss import Loss, Relation

_MOST_EVENTS = 100_000
_DEEPEST = 64
_ORDERS = tuple((1.0 + np.geomspace(0.02, 1e6, 160)).tolist())

_POISSON = "every batch was a Poisson sample at the stated rate, not a shuffled or fixed-size batch"
_NORM = "what one unit contributes was clipped to the norm that the noise is a multiple of"


class Imported(NamedTuple):
    """A loss that was read from another accountant's record, and what that does not say."""

    loss: Loss
    assumptions: tuple[str, ...]


def from_opacus(history: Mapping[str, Any] | Sequence[Any]) -> Imported:
    """Read the history of an Opacus accountant: (noise multiplier, sampling rate, steps) each.

    Parameters
    ----------
    history
        ``accountant.history``, or ``accountant.state_dict()``, as objects or read from JSON.

    Returns
    -------
    Imported
        The loss of all steps under add_remove. Opacus records the rate also where the loader was
        not a Poisson sampler (``poisson_sampling=False``); then the loss is not what was spent.

    Raises
    ------
    SchemaError
        If it is no such history.
    InvalidValue
        If a number in it has no loss, such as a noise multiplier of 0.

    Examples
    --------
    >>> from_opacus([(1.1, 0.01, 1000)]).loss
    1000 * Gaussian(noise_multiplier=1.1).poisson(rate=0.01)
    """
    rows = history.get("history") if isinstance(history, Mapping) else history
    if not isinstance(rows, Sequence) or isinstance(rows, str | bytes) or not rows:
        raise SchemaError("history: expected a list of (noise multiplier, sampling rate, steps)")
    parts = []
    for index, row in enumerate(rows):
        if not isinstance(row, Sequence) or isinstance(row, str | bytes) or len(row) != 3:
            raise SchemaError(
                f"history[{index}]: {row!r}: expected (noise multiplier, sampling rate, steps)"
            )
        noise, rate, steps = row
        count = _validate.integer("steps", steps, at_least=0)
        if count:
            parts.append((Gaussian(noise).poisson(rate=rate), count))
    if not parts:
        raise SchemaError("history: no step was taken, so there is no loss")
    return Imported(compose(parts), (_POISSON, _NORM))


def from_event(event: object, *, relation: Relation | str = Relation.ADD_REMOVE) -> Imported:
    """Read an event of dp-accounting, as TensorFlow Privacy and JAX Privacy make them.

    Parameters
    ----------
    event
        A ``DpEvent``.
    relation
        Which neighbours it speaks of, which dp-accounting's accountants say apart from the
        event: add_remove is ADD_OR_REMOVE_ONE, replace REPLACE_ONE, zero_out REPLACE_SPECIAL.

    Returns
    -------
    Imported
        The loss, and what the event does not say.

    Raises
    ------
    NotApplicable
        If no loss here stands for an event, or for one under this relation.
    """
    kind = Relation.parse(relation, zero_out=True)
    loss = _read(event, kind, 0)
    names = _names(event)
    assumptions = [_NORM]
    if any("Sampled" in name or "Subsampled" in name for name in names):
        assumptions.insert(0, "batches were drawn as the event says, independently of the data")
    if "RepeatAndSelectDpEvent" in names:
        assumptions.append("the number of runs was drawn beforehand, and only the best came out")
    return Imported(PureDP(0, kind) if loss is None else loss, tuple(assumptions))


def _names(event: object) -> set[str]:
    inner = [*getattr(event, "events", ()), *([event.event] if hasattr(event, "event") else [])]
    return {type(event).__name__}.union(*map(_names, inner))


def _read(event: object, relation: Relation, depth: int) -> Loss | None:
    """Return the loss of an event; ``None`` where nothing was released."""
    if depth > _DEEPEST:
        raise NotApplicable(f"events are nested more than {_DEEPEST} deep")
    try:
        inner = getattr(event, "event", None)
        if inner is not None:
            return _read_wrapped(event, relation, _read(inner, relation, depth + 1))
        if type(event).__name__ != "ComposedDpEvent":
            return _atom(event, relation)
        events = list(event.events)  # type: ignore[attr-defined] # it has them by its name
    except AttributeError as error:
        raise NotApplicable(f"{error}; is it of another version of dp-accounting?") from None
    if len(events) > _MOST_EVENTS:
        raise InvalidValue("events", len(events), f"at most {_MOST_EVENTS} events")
    losses = [_read(one, relation, depth + 1) for one in events]
    parts = [(loss, 1) for loss in losses if loss is not None]
    return compose(parts) if parts else None


def _read_wrapped(event: Any, relation: Relation, inner: Loss | None) -> Loss | None:
    """Return the loss of an event that has another one inside."""
    name = type(event).__name__
    if inner is None:
        return None
    if name == "SelfComposedDpEvent":
        count = _validate.integer("count", event.count, at_least=0)
        return count * inner if count else None
    if name == "PoissonSampledDpEvent":
        probability = event.sampling_probability
        rate = _validate.real("sampling_probability", probability, at_least=0, at_most=1)
        return inner.poisson(rate=rate) if rate else None
    if name == "SampledWithoutReplacementDpEvent":
        _require_relation(relation, "sampling without replacement", Relation.REPLACE)
        sizes = {"sample": event.sample_size, "population": event.source_dataset_size}
        return inner.sample_without_replacement(**sizes) if event.sample_size else None
    if name == "RepeatAndSelectDpEvent":
        return inner.best_of(event.mean, event.shape)
    raise _unknown(event)


def _atom(event: Any, relation: Relation) -> Loss | None:
    """Return the loss of a single release."""
    name = type(event).__name__
    if name == "NoOpDpEvent":
        return None
    reader = _ATOMS.get(name)
    if reader is None:
        raise _unknown(event)
    return reader(event, relation)


def _unknown(event: object) -> NotApplicable:
    name = type(event).__name__
    return NotApplicable(f"no finite loss here stands for the event {name}; nothing is assumed")


def _require_relation(relation: Relation, name: str, *allowed: Relation) -> Relation:
    if relation not in allowed:
        known = " or ".join(repr(one.value) for one in allowed)
        raise RelationMismatch(f"{name} is read under {known} only, not {relation.value!r}")
    return relation


def _laplace(event: Any, relation: Relation) -> Loss:
    kind = _require_relation(relation, "Laplace noise", Relation.ADD_REMOVE, Relation.ZERO_OUT)
    return Laplace(event.noise_multiplier, relation=kind)


def _discrete_laplace(event: Any, relation: Relation) -> Loss:
    kind = _require_relation(
        relation, "discrete Laplace noise", Relation.ADD_REMOVE, Relation.ZERO_OUT
    )
    parameter = _validate.real("noise_parameter", event.noise_parameter, above=0)
    return DiscreteLaplace(1.0 / parameter * (1.0 - 2**-52), event.sensitivity, kind)


def _read_capped(event: Any, relation: Relation) -> Loss:
    kind = _require_relation(relation, "a truncated Poisson sample", Relation.ADD_REMOVE)
    return Gaussian(event.noise_multiplier, kind).poisson(
        rate=event.sampling_probability,
        at_most=event.truncated_batch_size,
        population=event.dataset_size,
    )


def _read_concentrated(event: Any, relation: Relation) -> Loss:
    shift = _validate.real("xi", event.xi, at_least=0)
    if shift == 0.0:
        return ZCDP(event.rho, relation)
    slope = _validate.real("rho", event.rho, at_least=0)
    return RenyiDP(_ORDERS, tuple(shift + slope * order for order in _ORDERS), relation)


def _response(event: Any, relation: Relation) -> Loss | None:
    _require_relation(relation, "randomized response", Relation.REPLACE)
    noise = _validate.real("noise_parameter", event.noise_parameter, above=0, at_most=1)
    buckets = _validate.integer("num_buckets", event.num_buckets, at_least=1)
    if noise == 1.0 or buckets == 1:
        return None
    epsilon = math.log1p(buckets * (1.0 - noise) / noise) * (1.0 + 1e-15)
    return RandomizedResponse(epsilon, buckets)


def _tree(event: Any, relation: Relation) -> Loss:
    kind = _require_relation(relation, "tree aggregation", Relation.ZERO_OUT)
    counts = event.step_counts
    steps = [counts] if isinstance(counts, int) else list(counts)
    longest = max(_validate.integer("step_counts", one, at_least=1) for one in steps)
    # A record is in at most this many nodes of a tree over the longest run of steps.
    height = longest.bit_length()
    noise = _validate.real("noise_multiplier", event.noise_multiplier, above=0)
    return Gaussian(noise / math.sqrt(height) * (1.0 - 1e-15), kind)


_ATOMS: dict[str, Callable[[Any, Relation], Loss | None]] = {
    "GaussianDpEvent": lambda event, relation: Gaussian(event.noise_multiplier, relation),
    "LaplaceDpEvent": _laplace,
    "DiscreteLaplaceDpEvent": _discrete_laplace,
    "MixtureOfGaussiansDpEvent": lambda event, relation: GaussianMixture(
        event.standard_deviation, event.sensitivities, event.sampling_probs, relation
    ),
    "RandomizedResponseDpEvent": _response,
    "ZCDpEvent": _read_concentrated,
    "TruncatedSubsampledGaussianDpEvent": _read_capped,
    "SingleEpochTreeAggregationDpEvent": _tree,
}
