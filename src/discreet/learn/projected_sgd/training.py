"""S22: one private run: draw records and noise in blocks, and step.

Records are drawn by exact uniform integers and noise comes from the AES-256-CTR stream of
:class:`discreet.randomness.NormalStream`; its page says what doubles do not protect against.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.learn.projected_sgd.compiled import compiled_steps, numba_is_installed
from discreet.learn.projected_sgd.losses import LinearLoss
from discreet.learn.projected_sgd.plan import SgdPlan
from discreet.learn.projected_sgd.projections import Projection
from discreet.learn.projected_sgd.stepwise import run_steps
from discreet.randomness import NormalStream, Source, source, uniform_integers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

__all__ = ["ENGINES", "SgdRun", "draw_blocks", "engine_for", "take_steps", "train"]

ENGINES = ("auto", "compiled", "stepwise")

_BLOCK_CELLS = 1 << 18
_WORTH_COMPILING = 100_000

Block = tuple["NDArray[np.int64]", "NDArray[np.float64]"]


@final
@dataclass(frozen=True)
class SgdRun:
    """The parameters that a run releases, and where its randomness came from."""

    theta: NDArray[np.float64]
    provenance: dict[str, str]


def train(
    features: NDArray[np.float64],
    targets: NDArray[np.float64],
    *,
    loss: LinearLoss,
    projection: Projection,
    plan: SgdPlan,
    engine: str = "auto",
    bits: Source | None = None,
) -> SgdRun:
    """Run the plan on records whose gradients it bounds; the result costs ``plan.loss``.

    A NaN target marks a record that counts for nothing. Every gradient is cut to
    ``plan.lipschitz``, clipping or not, so that the sensitivity never rests on a claim.
    """
    n, d = features.shape
    if (n, d) != (plan.records, plan.dimension) or targets.shape != (n,):
        raise InvalidValue(
            "features", (n, d), f"{plan.records} rows of {plan.dimension}, and as many targets"
        )
    bits = source() if bits is None else bits
    stream = NormalStream(source=bits.derive("noise"))
    blocks = draw_blocks(plan, records=bits.derive("records"), stream=stream)
    theta = take_steps(
        np.ascontiguousarray(features, dtype=np.float64),
        np.ascontiguousarray(targets, dtype=np.float64),
        blocks,
        loss=loss,
        projection=projection,
        plan=plan,
        engine=engine,
    )
    return SgdRun(theta, stream.provenance)


def draw_blocks(plan: SgdPlan, *, records: Source, stream: NormalStream) -> Iterator[Block]:
    """Yield the drawn records and the noise of the whole run, some thousand steps at a time."""
    size = max(1, _BLOCK_CELLS // plan.dimension)
    for done in range(0, plan.steps, size):
        count = min(size, plan.steps - done)
        drawn = uniform_integers(plan.records, count, source=records)
        yield drawn, stream.array((count, plan.dimension), stddev=plan.stddev)


def take_steps(
    features: NDArray[np.float64],
    targets: NDArray[np.float64],
    blocks: Iterator[Block],
    *,
    loss: LinearLoss,
    projection: Projection,
    plan: SgdPlan,
    engine: str = "auto",
) -> NDArray[np.float64]:
    """Take the steps of the blocks; a function of its arguments, with no randomness of its own."""
    step = _engine(engine, loss, projection, plan)
    theta = projection.start(plan.dimension)
    mean = np.zeros(plan.dimension)
    norms = np.sqrt(np.einsum("ij,ij->i", features, features))
    done = 0
    for drawn, noise in blocks:
        step(theta, mean, done, features, targets, norms, drawn, noise)
        done += drawn.size
    return theta if plan.output == "last" else mean / done


def engine_for(engine: str, projection: Projection, steps: int) -> str:
    """Return "compiled" or "stepwise"; raise if the first was asked for and cannot be had.

    Both give the same numbers; compiling takes about as long as the plain steps of a short run.
    """
    chosen = _validate.one_of("engine", engine, ENGINES)
    can_compile = projection.kind is not None and numba_is_installed()
    if chosen == "compiled" and not can_compile:
        raise InvalidValue("engine", engine, "stepwise: numba is missing or the projection given")
    if chosen == "auto":
        return "compiled" if can_compile and steps >= _WORTH_COMPILING else "stepwise"
    return chosen


def _engine(
    engine: str, loss: LinearLoss, projection: Projection, plan: SgdPlan
) -> Callable[..., None]:
    if engine_for(engine, projection, plan.steps) == "stepwise":
        return partial(
            run_steps, pace=plan.step, clip_norm=plan.lipschitz, loss=loss, projection=projection
        )
    loop = compiled_steps()
    first, second = projection.numbers(plan.dimension)
    ranked = np.zeros(plan.dimension)

    def step(*given: object) -> None:
        loop(
            *given,
            plan.step,
            plan.lipschitz,
            loss.kind,
            loss.threshold,
            projection.kind,
            first,
            second,
            ranked,
        )

    return step
