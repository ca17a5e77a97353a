"""One query to each library, in the form in which its users make it.

Every function returns (lower, upper). A lower bound of None means that the library offers
none. Peers are imported when they are asked, and one that is not installed takes no part.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from accounting_rows import Row
from discreet.privacy import Gaussian, Loss, compose, least_noise_multiplier

Answer = tuple[float | None, float]

OURS = "discreet"
PEER = "dp-accounting PLD 1e-4"
FINE_PEER = "dp-accounting PLD 1e-5"
OPTIMISTIC = "dp-accounting PLD 1e-4, optimistic"
PRV = "prv_accountant"
OPACUS_PRV = "Opacus PRV"
OPACUS_RDP = "Opacus RDP"
LIBRARIES = {
    OURS: "discreet",
    PEER: "dp_accounting",
    FINE_PEER: "dp_accounting",
    OPTIMISTIC: "dp_accounting",
    PRV: "prv_accountant",
    OPACUS_PRV: "opacus",
    OPACUS_RDP: "opacus",
}


def installed(name: str) -> bool:
    return importlib.util.find_spec(LIBRARIES[name]) is not None


def warm_up(names: Sequence[str]) -> None:
    """Import the libraries and let each answer one easy question."""
    for name, query in queries(Row(2.0, 0.1, 10, 1e-3)).items():
        if name in names:
            query()


def our_loss(row: Row) -> Loss:
    return row.steps * our_step(row.noise, row.rate)


def our_step(noise: float, rate: float) -> Loss:
    return Gaussian(noise) if rate == 1.0 else Gaussian(noise).poisson(rate=rate)


def ours(row: Row) -> Answer:
    bounds = our_loss(row).epsilon_bounds(delta=row.delta)
    return bounds.lower, bounds.upper


def ours_allocated(noise: float, batches: int, epochs: int, delta: float) -> Answer:
    """Shuffled epochs as random allocation, computed anew."""
    from discreet.privacy import Gaussian, _allocation

    _allocation._law_pair.cache_clear()
    bounds = (epochs * Gaussian(noise).allocate(batches=batches)).epsilon_bounds(delta=delta)
    return bounds.lower, bounds.upper


def dp_accounting(row: Row, *, interval: float, pessimistic: bool = True) -> Answer:
    """The upper estimate, or (``pessimistic`` False) the lower one.

    "Connecting the dots", its default, has only the pessimistic form; the optimistic
    estimate rounds losses down to the grid.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    one = pld.from_gaussian_mechanism(
        row.noise,
        sampling_prob=row.rate,
        value_discretization_interval=interval,
        pessimistic_estimate=pessimistic,
        use_connect_dots=pessimistic,
    )
    epsilon = float(one.self_compose(row.steps).get_epsilon_for_delta(row.delta))
    return (None, epsilon) if pessimistic else (epsilon, math.inf)


def prv_accountant(row: Row) -> Answer:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    accountant = PRVAccountant(
        prvs=[
            PoissonSubsampledGaussianMechanism(
                noise_multiplier=row.noise, sampling_probability=row.rate
            )
        ],
        max_self_compositions=[row.steps],
        eps_error=0.01,
        delta_error=row.delta / 1000,
    )
    lower, _, upper = accountant.compute_epsilon(row.delta, [row.steps])
    return float(lower), float(upper)


def opacus(row: Row, *, mechanism: str) -> Answer:
    from opacus.accountants import create_accountant

    accountant = create_accountant(mechanism=mechanism)
    accountant.history = [(row.noise, row.rate, row.steps)]
    return None, float(accountant.get_epsilon(delta=row.delta))


def queries(row: Row) -> dict[str, Callable[[], Answer]]:
    """The query of every library that is installed, ours first."""
    every = {
        OURS: partial(ours, row),
        PEER: partial(dp_accounting, row, interval=1e-4),
        OPTIMISTIC: partial(dp_accounting, row, interval=1e-4, pessimistic=False),
        FINE_PEER: partial(dp_accounting, row, interval=1e-5),
        PRV: partial(prv_accountant, row),
        OPACUS_PRV: partial(opacus, row, mechanism="prv"),
        OPACUS_RDP: partial(opacus, row, mechanism="rdp"),
    }
    return {name: query for name, query in every.items() if installed(name)}


# --- many distinct steps ------------------------------------------------------------------


def our_mixture(atoms: Sequence[tuple[float, float]], delta: float) -> Answer:
    loss = compose((our_step(noise, rate), 1) for noise, rate in atoms)
    bounds = loss.epsilon_bounds(delta=delta)
    return bounds.lower, bounds.upper


def dp_accounting_mixture(
    atoms: Sequence[tuple[float, float]], delta: float, *, interval: float
) -> Answer:
    import dp_accounting as dp

    accountant = dp.pld.PLDAccountant(value_discretization_interval=interval)
    for noise, rate in atoms:
        accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)))
    return None, float(accountant.get_epsilon(delta))


def prv_accountant_mixture(atoms: Sequence[tuple[float, float]], delta: float) -> Answer:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    accountant = PRVAccountant(
        prvs=[
            PoissonSubsampledGaussianMechanism(noise_multiplier=noise, sampling_probability=rate)
            for noise, rate in atoms
        ],
        max_self_compositions=[1] * len(atoms),
        eps_error=0.01,
        delta_error=delta / 1000,
    )
    lower, _, upper = accountant.compute_epsilon(delta, [1] * len(atoms))
    return float(lower), float(upper)


def opacus_mixture(atoms: Sequence[tuple[float, float]], delta: float, *, mechanism: str) -> Answer:
    from opacus.accountants import create_accountant

    accountant = create_accountant(mechanism=mechanism)
    accountant.history = [(noise, rate, 1) for noise, rate in atoms]
    return None, float(accountant.get_epsilon(delta=delta))


def mixture_queries(
    atoms: Sequence[tuple[float, float]], delta: float
) -> dict[str, Callable[[], Answer]]:
    every = {
        OURS: partial(our_mixture, atoms, delta),
        PEER: partial(dp_accounting_mixture, atoms, delta, interval=1e-4),
        FINE_PEER: partial(dp_accounting_mixture, atoms, delta, interval=1e-5),
        PRV: partial(prv_accountant_mixture, atoms, delta),
        OPACUS_PRV: partial(opacus_mixture, atoms, delta, mechanism="prv"),
        OPACUS_RDP: partial(opacus_mixture, atoms, delta, mechanism="rdp"),
    }
    return {name: query for name, query in every.items() if installed(name)}


# --- calibration ---------------------------------------------------------------------------


def dp_accounting_noise(epsilon: float, delta: float, rate: float, steps: int) -> float:
    import dp_accounting as dp

    def event(noise: float) -> Any:
        one = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))
        return dp.SelfComposedDpEvent(one, steps)

    return float(
        dp.calibrate_dp_mechanism(
            lambda: dp.pld.PLDAccountant(value_discretization_interval=1e-4),
            event,
            epsilon,
            delta,
            dp.ExplicitBracketInterval(0.2, 50.0),
            tol=1e-3,
        )
    )


def opacus_noise(epsilon: float, delta: float, rate: float, steps: int) -> float:
    from opacus.accountants.utils import get_noise_multiplier

    return float(
        get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=delta,
            sample_rate=rate,
            steps=steps,
            accountant="prv",
        )
    )


def calibrations(
    epsilon: float, delta: float, rate: float, steps: int
) -> dict[str, Callable[[], float]]:
    """A search for the least noise by every library that is installed."""
    every: dict[str, Callable[[], float]] = {
        OURS: partial(least_noise_multiplier, epsilon=epsilon, delta=delta, rate=rate, steps=steps),
        PEER: partial(dp_accounting_noise, epsilon, delta, rate, steps),
        OPACUS_PRV: partial(opacus_noise, epsilon, delta, rate, steps),
    }
    return {name: search for name, search in every.items() if installed(name)}
