"""Select one of several candidates privately, and account for the choice.

Trying k settings and publishing the best model costs more than one run: which one is best depends
on the data. Papernot and Steinke (2022, "Hyperparameter tuning with Renyi differential
privacy", theorem 2, with eta = 1), building on Liu and Talwar (2019): let Q run a
candidate chosen uniformly at random and give a model with a score; let K be geometric, P(K = k) =
gamma (1 - gamma)^(k-1); run Q independently K times and publish the best only. The whole costs
``loss.best_of(1 / gamma)``, where the loss of one run covers model and score. If Q is e-DP the
whole is 3 e-DP, whatever gamma is, which is the result of Liu and Talwar. The number of runs K must
stay secret, and so must all results but the best.

Candidates may cost differently. Which one a run tries is drawn independently of the data, so the
moment E (P/Q)^a of a run is the mean of those of the candidates, and their largest Renyi curve
bounds it: the dearest candidate is charged.

**What the clock tells.** K does not depend on the data, but the time that a selection takes tells
about K. To somebody who knows K, the best of K runs is a post-processing of all of them, so the
guarantee that is left is that of ``K * run_loss``. Runs are not padded to a common number: one that
is exceeded with probability below 1e-6 only is 159 for the 12 runs that three candidates expect.
Keep how long it took, and the time stamps of what it wrote, to those who may know the records.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn._declared import charged
from discreet.mechanisms import Release
from discreet.privacy import GDP, Loss, PureDP, RenyiDP, calibrate, compose
from discreet.privacy.theorems import gaussian_mu
from discreet.randomness import Source, bernoulli, choose_source, uniform_integers

if TYPE_CHECKING:
    from discreet.ledger import Ledger

Candidate = TypeVar("Candidate")
Model = TypeVar("Model")

# Orders from 1.02 to about a million, evenly in log(order - 1).
_ORDERS = 1.0 + np.geomspace(0.02, 1e6, 160)


def default_stop(candidates: int) -> Fraction:
    """Return the probability of stopping after a run: 4 k runs are expected for k candidates.

    A given candidate is then tried at least once with probability above 4/5.

    >>> default_stop(3)
    Fraction(1, 12)
    """
    return Fraction(1, 4 * _validate.integer("candidates", candidates, at_least=1))


def run_mu(*, epsilon: float, delta: float, stop: object) -> float:
    """Return the largest mu such that selecting among mu-GDP runs costs at most this.

    >>> mu = run_mu(epsilon=1.0, delta=1e-6, stop="1/12")
    >>> GDP(mu).best_of(12).epsilon(delta=1e-6) <= 1.0
    True
    """
    target = _validate.real("epsilon", epsilon, above=0)
    point = _validate.real("delta", delta, above=0, below=1)
    mean = 1 / _validate.fraction("stop", stop, above=0, at_most=1)
    whole = gaussian_mu(target, point)
    return calibrate(
        lambda mu: GDP(mu).best_of(float(mean)),
        epsilon=target,
        delta=point,
        bracket=(whole / 1000.0, whole),
        increasing=True,
    )


def dearest(losses: Sequence[Loss]) -> Loss:
    """Return a loss that bounds a run of any of several candidates.

    Parameters
    ----------
    losses
        What each candidate costs, under one relation.

    Returns
    -------
    Loss
        The loss itself if all are equal, the largest of pure or Gaussian losses, and otherwise
        the largest of their Renyi curves.

    Raises
    ------
    NotApplicable
        If no Renyi bound is known for one of them.

    Examples
    --------
    >>> dearest([PureDP(0.5), PureDP(2)])
    PureDP(epsilon=2)
    """
    for loss in losses:
        if not isinstance(loss, Loss):
            raise InvalidValue("run_loss", loss, "the loss of one run, or one for each candidate")
    whole = compose((loss, 1) for loss in losses)  # refuses to mix relations
    if len(set(losses)) == 1:
        return losses[0]
    claims = [loss.claim() for loss in losses]
    if all(claim is not None and claim[1] == 0 for claim in claims):
        return PureDP(max(claim[0] for claim in claims if claim is not None), whole.relation)
    mus = [loss.gaussian_mu() for loss in losses]
    if all(mu is not None for mu in mus):
        return GDP(max(mu for mu in mus if mu is not None), whole.relation)
    curve = np.max([loss.rdp(_ORDERS) for loss in losses], axis=0)
    known = np.isfinite(curve)
    if not known.any():
        raise NotApplicable("no Renyi bound is known for all runs, so choosing has no known cost")
    return RenyiDP(tuple(_ORDERS[known].tolist()), tuple(curve[known].tolist()), whole.relation)


def select_privately(
    candidates: Sequence[Candidate],
    run: Callable[[Candidate, Source], tuple[Model, float]],
    *,
    run_loss: Loss | Sequence[Loss],
    stop: object = None,
    each_once: bool = False,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    delta: float = 0.0,
    unit: str | None = None,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[Model]:
    """Run random candidates a random number of times; return the model of the highest score.

    The whole is charged once, before the first run. Nothing but the best model comes out: what
    runs print, log or warn of is held back (in the whole process, also in other threads), and the
    number of runs is not written down. A run must not write files or charge a ledger itself.

    Parameters
    ----------
    candidates
        What is tried: names, settings; public.
    run
        ``run(candidate, source)`` trains one candidate and scores it, with fresh randomness from
        ``source``, and returns the model and the score. A score that is no number counts as the
        lowest. An exception ends the selection and is itself a result.
    run_loss
        What one run costs at most, model and score together, or one such loss for each candidate:
        then the dearest is charged.
    stop
        The probability of stopping after a run; by default :func:`default_stop`.
    each_once
        Run each candidate once instead, in order; this costs the sum of the losses.
    ledger, dataset
        The ledger to charge and the dataset in it. Without them charge the loss of the release
        before calling.
    delta
        Where a budget needs a delta to read the loss at.
    unit
        Whom the loss speaks of; it is compared with the ledger's.
    source, insecure_seed
        The randomness, if not that of the operating system.

    Returns
    -------
    Release
        The best model and the loss of the whole selection.

    Raises
    ------
    InvalidValue
        If there is no candidate, or not one loss for each.
    NotApplicable
        If no Renyi bound is known for the losses.
    BudgetExceeded
        If the ledger has too little left; nothing was run.

    Examples
    --------
    >>> def run(candidate, source):
    ...     return candidate, float(candidate)
    >>> chosen = select_privately([1, 2], run, run_loss=PureDP(0.1), stop="1/50", insecure_seed=1)
    >>> chosen.value, chosen.loss
    (2, PureDP(epsilon=0.1).best_of(mean=50.0, shape=1.0))
    """
    options = list(candidates)
    if not options:
        raise InvalidValue("candidates", candidates, "at least one candidate")
    losses = [run_loss] * len(options) if isinstance(run_loss, Loss) else list(run_loss)
    if len(losses) != len(options):
        raise InvalidValue("run_loss", run_loss, f"a loss, or one for each of {len(options)}")
    base = dearest(losses)
    gamma = (
        default_stop(len(options))
        if stop is None
        else _validate.fraction("stop", stop, above=0, at_most=1)
    )
    if each_once:
        if stop is not None:
            raise InvalidValue("stop", stop, "nothing where each candidate is run once")
        loss = compose((one, 1) for one in losses)
    else:
        loss = base.best_of(float(1 / gamma))
        if gamma < 1 and not np.isfinite(loss.rdp(_ORDERS)).any():
            raise NotApplicable(f"no Renyi bound is known for {base!r}: choosing has no known cost")
    bits = choose_source(source, insecure_seed)
    best: tuple[float, Model] | None = None
    purpose = f"the best of {len(options)} candidates"
    paid = charged(ledger, dataset, loss=loss, delta=delta, purpose=purpose, unit=unit)
    with paid as charge, _silence():
        for attempt, option in enumerate(_draw(options, gamma, bits, each_once), start=1):
            model, score = run(option, bits.derive("run", attempt))
            rank = -math.inf if math.isnan(score) else float(score)
            if best is None or rank > best[0]:
                best = (rank, model)
    assert best is not None
    provenance = {
        "mechanism": "select_privately",
        "candidates": len(options),
        "stop": "each once" if each_once else str(gamma),
        "run_loss": repr(base),
        **({} if charge is None else {"receipt": charge.receipt()}),
        **bits.provenance,
    }
    return Release(best[1], loss, provenance)


def _draw(
    options: Sequence[Candidate], gamma: Fraction, bits: Source, each_once: bool
) -> Iterator[Candidate]:
    """Yield the candidate of each run until a coin says stop; it never sees a result."""
    if each_once:
        yield from options
        return
    while True:
        yield options[int(uniform_integers(len(options), source=bits))]
        if bernoulli(gamma, source=bits):
            return


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Hold back what is printed, logged or warned of: it would tell how many runs there are."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    nowhere = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere):
            warnings.simplefilter("ignore")
            with contextlib.redirect_stderr(nowhere):
                yield
    finally:
        logging.disable(before)
