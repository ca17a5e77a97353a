"""One private run of projected SGD: draw records and noise in blocks, and step.

Records are drawn by exact uniform integers and noise comes from the AES-256-CTR stream of
:class:`discreet.randomness.NormalStream`; its page says what doubles do not protect against.

The loop is there twice, bit for bit the same on the same draws: in numpy, some six to nine
microseconds a step, and in scalar operations for compilation by numba, a third of one. Every sum
goes from left to right and no operation is fused. Compiling takes some five seconds, so long runs
only are compiled; without numba, and for projections that the caller gives, none is.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.learn.projected_sgd._losses import LinearLoss, slope_at
from discreet.learn.projected_sgd._plan import SgdPlan
from discreet.learn.projected_sgd._projections import BALL, BOX, Projection
from discreet.randomness import NormalStream, Source, source, uniform_integers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

ENGINES = ("auto", "compiled", "stepwise")

_BLOCK_CELLS = 1 << 18
_WORTH_COMPILING = 800_000

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
            run_steps,
            step_size=plan.step,
            clip_norm=plan.lipschitz,
            loss=loss,
            projection=projection,
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


def run_steps(
    theta: NDArray[np.float64],
    mean: NDArray[np.float64],
    done: int,
    features: NDArray[np.float64],
    targets: NDArray[np.float64],
    norms: NDArray[np.float64],
    drawn: NDArray[np.int64],
    noise: NDArray[np.float64],
    *,
    step_size: float,
    clip_norm: float,
    loss: LinearLoss,
    projection: Projection,
) -> None:
    """Take one step for each of ``drawn``; ``theta`` and the sum ``mean`` are changed in place."""
    records = float(features.shape[0])
    for t, i in enumerate(drawn.tolist()):
        row, target = features[i], float(targets[i])
        # A cumulative sum goes from left to right; np.dot need not.
        score = float(np.add.accumulate(theta * row)[-1])
        change = slope_at(loss.kind, loss.threshold, score, target)
        if math.isnan(target):
            change = 0.0
        length = abs(change) * float(norms[i])
        if length > clip_norm:
            change = change * (clip_norm / length)
        rate = step_size / math.sqrt(done + t + 1.0)
        mean += theta
        theta[:] = projection.project(theta - rate * (records * (change * row) + noise[t]))


def numba_is_installed() -> bool:
    """Whether the extra ``jit`` is there."""
    return importlib.util.find_spec("numba") is not None


def project_in_place(kind: int, theta: Any, first: Any, second: Any, ranked: Any) -> None:
    """Project on the ball of radius first[0], the box, or the simplex of sum first[0]."""
    size = theta.shape[0]
    if kind == BALL:
        square = theta[0] * theta[0]
        for j in range(1, size):
            square += theta[j] * theta[j]
        if square > first[0] * first[0]:
            factor = first[0] / math.sqrt(square)
            for j in range(size):
                theta[j] = theta[j] * factor
    elif kind == BOX:
        for j in range(size):
            theta[j] = min(max(theta[j], first[j]), second[j])
    else:
        ranked[:] = np.sort(theta)
        excess = 0.0
        total = 0.0
        for j in range(size):
            value = ranked[size - 1 - j]
            total = value if j == 0 else total + value
            candidate = (total - first[0]) / (j + 1.0)
            if value >= candidate:
                excess = candidate
        for j in range(size):
            theta[j] = max(theta[j] - excess, 0.0)


def write_steps(slope: Callable[..., Any], project: Callable[..., Any]) -> Callable[..., None]:
    """Return the loop over one block of steps, with the given scalar functions."""

    def run(
        theta: Any,
        mean: Any,
        done: int,
        features: Any,
        targets: Any,
        norms: Any,
        drawn: Any,
        noise: Any,
        step_size: float,
        clip_norm: float,
        loss: int,
        threshold: float,
        shape: int,
        first: Any,
        second: Any,
        ranked: Any,
    ) -> None:
        size = theta.shape[0]
        records = float(features.shape[0])
        for t in range(drawn.shape[0]):
            i = drawn[t]
            score = theta[0] * features[i, 0]
            for j in range(1, size):
                score += theta[j] * features[i, j]
            change = slope(loss, threshold, score, targets[i])
            if math.isnan(targets[i]):
                change = 0.0
            length = abs(change) * norms[i]
            if length > clip_norm:
                change = change * (clip_norm / length)
            rate = step_size / math.sqrt(done + t + 1.0)
            for j in range(size):
                mean[j] = mean[j] + theta[j]
                theta[j] = theta[j] - rate * (records * (change * features[i, j]) + noise[t, j])
            project(shape, theta, first, second, ranked)

    return run


@lru_cache(maxsize=1)
def compiled_steps() -> Callable[..., None]:
    """Return the compiled loop; the first call of it compiles for some five seconds."""
    import numba

    compile_function: Any = numba.njit(error_model="numpy", nogil=True)
    loop: Callable[..., None] = compile_function(
        write_steps(compile_function(slope_at), compile_function(project_in_place))
    )
    return loop
