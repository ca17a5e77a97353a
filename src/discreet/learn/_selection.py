"""Private selection among candidates: try them in private, keep the best, pay for the choice.

Trying k settings and publishing the best model costs more than one run: which one is best depends
on the data. Papernot and Steinke (2022, "Hyperparameter tuning with Renyi differential
privacy", theorem 2, with eta = 1), building on Liu and Talwar (2019): let Q run a
candidate chosen uniformly at random and give a model with a score; let K be geometric, P(K = k) =
gamma (1 - gamma)^(k-1); run Q independently K times and publish the best only. If Q has the Renyi
curve e(order), then for all orders a > 1 and b > 1 the whole has

    e(a) + 2 (1 - 1/b) e(b) + (2 / b + 1 / (a - 1)) log(1 / gamma)

at order a. If Q is e-DP, let a and b grow: the whole is 3 e-DP, whatever gamma is, which is the
result of Liu and Talwar. The number of runs K must stay secret, and so must all results but
the best.

**What the clock tells.** K does not depend on the data, but the time that a selection takes tells
about K. To somebody who knows K, the best of K runs is a post-processing of all of them, so the
guarantee that is left is that of ``K * run_loss``. Runs are not padded to a common number: one that
is exceeded with probability below 1e-6 only is 159 for the 12 runs that three candidates expect.
Keep how long it took, and the time stamps of what it wrote, to those who may know the records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms import Release
from discreet.privacy import GDP, Loss, PureDP, RenyiDP, calibrate
from discreet.privacy.theorems import gaussian_mu
from discreet.randomness import Source, bernoulli, choose_source, uniform_integers

if TYPE_CHECKING:
    from numpy.typing import NDArray


Candidate = TypeVar("Candidate")
Model = TypeVar("Model")

# Orders from 1.02 to about a million, evenly in log(order - 1).
_ORDERS = 1.0 + np.exp(np.linspace(math.log(0.02), math.log(1e6), 160))
_UPWARD = 1.0 + 1e-12


def default_stop(candidates: int) -> Fraction:
    """The probability of stopping after a run: 4 k runs are expected for k candidates.

    A given candidate is then tried at least once with probability above 4/5.

    >>> default_stop(3)
    Fraction(1, 12)
    """
    return Fraction(1, 4 * _validate.integer("candidates", candidates, at_least=1))


def selection_loss(run: Loss, *, stop: object) -> Loss:
    """Return the loss of publishing the best of a geometric number of runs of loss ``run``.

    ``run`` covers everything that one run computes: its model *and* its score. The answer is pure
    where the loss is, and otherwise a Renyi curve.

    >>> selection_loss(PureDP(0.5), stop="1/10")
    PureDP(epsilon=1.5...)
    >>> once = GDP(0.2)
    >>> selection_loss(once, stop="1/10").epsilon(delta=1e-6) > 2 * once.epsilon(delta=1e-6)
    True
    """
    if not isinstance(run, Loss):
        raise InvalidValue("run", run, "the loss of one run")
    gamma = _validate.fraction("stop", stop, above=0, at_most=1)
    if gamma == 1:
        return run
    pure = _pure(run)
    if pure is not None:
        return PureDP(math.nextafter(3.0 * pure, math.inf) if pure else 0.0, run.relation)
    curve = np.asarray(run.rdp(_ORDERS), dtype=np.float64)
    penalty = -math.log(gamma) * _UPWARD
    extra = _best_extra(curve, penalty)
    total = (curve + extra + penalty / (_ORDERS - 1.0)) * _UPWARD
    known = np.isfinite(total)
    if not known.any():
        raise NotApplicable(f"no Renyi bound is known for {run!r}, so choosing has no known cost")
    return RenyiDP(tuple(_ORDERS[known].tolist()), tuple(total[known].tolist()), run.relation)


def run_mu(*, epsilon: float, delta: float, stop: object) -> float:
    """Return the largest mu for which runs that are mu-GDP may be selected from at this cost.

    >>> mu = run_mu(epsilon=1.0, delta=1e-6, stop="1/12")
    >>> selection_loss(GDP(mu), stop="1/12").epsilon(delta=1e-6) <= 1.0
    True
    """
    target = _validate.real("epsilon", epsilon, above=0)
    point = _validate.real("delta", delta, above=0, below=1)
    whole = gaussian_mu(target, point)
    return calibrate(
        lambda mu: selection_loss(GDP(mu), stop=stop),
        epsilon=target,
        delta=point,
        bracket=(whole / 1000.0, whole),
        increasing=True,
    )


def select_privately(
    candidates: Sequence[Candidate],
    run: Callable[[Candidate, Source], tuple[Model, float]],
    *,
    run_loss: Loss,
    stop: object = None,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[Model]:
    """Run random candidates a random number of times; return the model of the highest score.

    ``run(candidate, source)`` trains one candidate and scores it, with fresh randomness from
    ``source`` and at a cost of at most ``run_loss`` for model and score together. A score that is
    no number counts as the lowest. Charge the loss of the release before calling.

    >>> def run(candidate, source):
    ...     return candidate, float(candidate)
    >>> chosen = select_privately([1, 2], run, run_loss=PureDP(0.1), stop="1/50", insecure_seed=1)
    >>> chosen.value, chosen.loss
    (2, PureDP(epsilon=0.3...))
    """
    options = list(candidates)
    if not options:
        raise InvalidValue("candidates", candidates, "at least one candidate")
    gamma = (
        default_stop(len(options))
        if stop is None
        else _validate.fraction("stop", stop, above=0, at_most=1)
    )
    loss = selection_loss(run_loss, stop=gamma)
    bits = choose_source(source, insecure_seed)
    attempt = 0
    best: tuple[float, Model] | None = None
    while True:
        attempt += 1
        which = uniform_integers(len(options), source=bits)
        model, score = run(options[int(which)], bits.derive("run", attempt))
        rank = -math.inf if math.isnan(score) else float(score)
        if best is None or rank > best[0]:
            best = (rank, model)
        if bernoulli(gamma, source=bits):
            break
    provenance = {
        "mechanism": "select_privately",
        "candidates": len(options),
        "stop": str(gamma),
        "run_loss": repr(run_loss),
        **bits.provenance,
    }
    return Release(best[1], loss, provenance)


def _pure(run: Loss) -> float | None:
    try:
        epsilon = run.epsilon(delta=0.0)
    except NotApplicable:
        return None
    return epsilon if math.isfinite(epsilon) else None


def _best_extra(curve: NDArray[np.float64], penalty: float) -> float:
    """The least of 2 (1 - 1/b) e(b) + 2 penalty / b over the orders b."""
    terms = 2.0 * (1.0 - 1.0 / _ORDERS) * curve + 2.0 * penalty / _ORDERS
    return float(np.min(terms))
