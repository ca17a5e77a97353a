"""A mechanism, two neighbouring inputs, its claimed loss, and whether the claim is true.

Three families: noise added to numbers (right, too little, used twice, or in floating point); the
sparse vector technique; choices among alternatives (randomized response, the exponential
mechanism, noisy max).

Of the sparse vector technique there are the six variants of Lyu, Su and Li (2017), and more. All
answer a row of threshold queries of sensitivity 1 with total epsilon 1 and c
positive answers; the threshold is 0. Data is the row of true answers. Numbers 1 and
2 are private; 3, 4, 5 and 6 were published as private and are not:

======  ==================  ====================  =======================================
number  threshold noise     query noise           what else
======  ==================  ====================  =======================================
1       Lap(1/e1)           Lap(2c/e2)            stops after c
2       Lap(c/e1), renewed  Lap(2c/e1)            stops after c
3       Lap(1/e1)           Lap(c/e2)             gives the noisy answer itself
4       Lap(1/e1)           Lap(1/e2), no c       stops after c; e1 = 1/4
5       Lap(1/e1)           none                  never stops
6       Lap(1/e1)           Lap(1/e2)             never stops
======  ==================  ====================  =======================================

with e1 = e2 = 1/2 where nothing else is said. Number 4 is ((1 + 6c)/4)-DP, so it
takes c > 1 to show it; 3, 5 and 6 are not private for any epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.audit._mechanism import MechanismAudit, audit_mechanism
from discreet.audit._outputs import Raised
from discreet.privacy import ApproxDP, Gaussian, Loss, PureDP, RandomizedResponse
from discreet.randomness import (
    Source,
    bernoulli,
    discrete_laplace,
    gaussian_on_grid,
    laplace_on_grid,
    uniform_integers,
)
from discreet.randomness import source as make_source

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Noise in the zoo is a multiple of 1/64, and so are all answers that it is added to.
STEPS_PER_UNIT = 64

Draw = Callable[[Any, int, Source], Sequence[Any] | np.ndarray[Any, Any]]


@final
@dataclass(frozen=True)
class Specimen:
    """A mechanism with the two inputs that show what is wrong with it, if anything is.

    ``draw(data, count, source)`` returns ``count`` independent outputs. ``samples`` was
    enough to refute every broken specimen of the zoo in 25 of 25 seeded audits at a
    false-alarm rate of 1e-9.
    """

    name: str
    draw: Draw
    first: Any
    second: Any
    loss: Loss
    broken: bool
    about: str
    delta: float = 0.0
    samples: int = 20_000

    def audit(
        self,
        *,
        samples: int | None = None,
        false_alarm_rate: float = 1e-3,
        insecure_seed: int | None = None,
    ) -> MechanismAudit:
        """Audit the claim on the two inputs; a seed makes the audit reproducible."""
        bits = make_source(insecure_seed=insecure_seed)

        def in_bulk(data: Any, count: int) -> Any:
            return self.draw(data, count, bits)

        return audit_mechanism(
            in_bulk,
            self.first,
            self.second,
            loss=self.loss,
            delta=self.delta,
            samples=self.samples if samples is None else samples,
            false_alarm_rate=false_alarm_rate,
            batch=True,
        )


SPECIMENS: dict[str, Specimen] = {}


def specimen(
    name: str, first: Any, second: Any, about: str, *, broken: bool = True, **settings: Any
) -> Callable[[Draw], Draw]:
    """Put a way to draw into ``SPECIMENS``, with its inputs and its claim (epsilon = 1)."""

    def register(draw: Draw) -> Draw:
        settings.setdefault("loss", PureDP(epsilon=1))
        SPECIMENS[name] = Specimen(
            name=name,
            draw=draw,
            first=first,
            second=second,
            broken=broken,
            about=about,
            **settings,
        )
        return draw

    return register


def laplace_noise(scale: Fraction | int, count: int, source: Source) -> NDArray[np.float64]:
    """Exact discrete Laplace noise of this scale on the grid of the zoo.

    Between answers on the grid that differ by s it is s / scale - DP, exactly.
    """
    steps = discrete_laplace(Fraction(scale) * STEPS_PER_UNIT, count, source=source)
    return steps / STEPS_PER_UNIT


# --- one record of ten, published whole ---

_TEN: dict[str, Any] = {"first": ("other",) * 10, "second": ("me",) + ("other",) * 9}


def _random_record(records: tuple[str, ...], count: int, source: Source) -> list[str]:
    return [records[place] for place in uniform_integers(len(records), count, source=source)]


@specimen(
    "random-record",
    **_TEN,
    about="a record at random, (0, 1/N)-DP: delta of 1/N allows to publish somebody",
    broken=False,
    loss=ApproxDP(0, Fraction(1, 10), relation="replace"),
    delta=0.1,
)
def random_record(records: tuple[str, ...], count: int, source: Source) -> Any:
    """A record at random, with what is true of it."""
    return _random_record(records, count, source)


@specimen(
    "random-record-small-delta",
    **_TEN,
    about="a record at random, claimed for a delta below 1/N",
    loss=ApproxDP(1, Fraction(1, 1000), relation="replace"),
    delta=0.001,
)
def random_record_claimed(records: tuple[str, ...], count: int, source: Source) -> Any:
    """The same with a claim that no epsilon makes true."""
    return _random_record(records, count, source)


# --- noise added to numbers ---

PER_RECORD = PureDP(epsilon=1, relation="replace")


def _count(records: tuple[int, ...], count: int, source: Source, *, scale: Fraction | int) -> Any:
    return sum(records) + laplace_noise(scale, count, source)


@specimen("laplace", (), (1,), "count with Lap(1/epsilon)", broken=False)
def laplace_right(records: tuple[int, ...], count: int, source: Source) -> Any:
    """A count of ones with Lap(1)."""
    return _count(records, count, source, scale=1)


@specimen("laplace-halved-noise", (), (1,), "half of the noise that is due")
def laplace_halved(records: tuple[int, ...], count: int, source: Source) -> Any:
    """The same with Lap(1/2)."""
    return _count(records, count, source, scale=Fraction(1, 2))


@specimen(
    "sum-replace",
    (-1,),
    (1,),
    "sum in [-1, 1], noise for a sensitivity of 2",
    broken=False,
    loss=PER_RECORD,
)
def sum_right(records: tuple[int, ...], count: int, source: Source) -> Any:
    """A sum of values in [-1, 1], of which one is replaced: it moves by up to 2."""
    return _count(records, count, source, scale=2)


@specimen(
    "sum-sensitivity-off-by-two",
    (-1,),
    (1,),
    "a replaced value moves the sum by 2, noise is for 1",
    loss=PER_RECORD,
)
def sum_off_by_two(records: tuple[int, ...], count: int, source: Source) -> Any:
    """The same sum as if a replaced value moved it by at most 1."""
    return _count(records, count, source, scale=1)


@specimen("histogram", (), (1,), "noise of its own in each cell", broken=False)
def histogram_right(records: tuple[int, ...], count: int, source: Source) -> Any:
    """Two cells of a histogram with noise of their own; one record is in one of them."""
    cells = np.array([records.count(0), records.count(1)])
    return cells + laplace_noise(1, 2 * count, source).reshape(count, 2)


@specimen(
    "histogram-noise-reused", (), (1,), "one draw of noise in both cells: the difference is exact"
)
def histogram_reused(records: tuple[int, ...], count: int, source: Source) -> Any:
    """The same cells with one draw of noise for both."""
    cells = np.array([records.count(0), records.count(1)])
    return cells + laplace_noise(1, count, source)[:, np.newaxis]


@specimen("group-of-three", (), (1, 1, 1), "noise for three records of one person", broken=False)
def group_right(records: tuple[int, ...], count: int, source: Source) -> Any:
    """A count in which one person may have three records."""
    return _count(records, count, source, scale=3)


@specimen("group-size-ignored", (), (1, 1, 1), "a person with three records gets the noise of one")
def group_ignored(records: tuple[int, ...], count: int, source: Source) -> Any:
    """The same count with noise for one record."""
    return _count(records, count, source, scale=1)


def _textbook_laplace(count: int, source: Source) -> NDArray[np.float64]:
    """The sampler of the textbooks, in doubles: -sign(u) ln(1 - 2|u|)."""
    uniform = (source.words64(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53 - 0.5
    magnitude = -np.log1p(-2 * np.minimum(np.abs(uniform), 0.5 - 2.0**-54))
    return np.asarray(np.where(uniform < 0, -magnitude, magnitude))


@specimen("float-on-grid", 0.0, 1.0, "real number, exact noise on a declared grid", broken=False)
def float_on_grid(value: float, count: int, source: Source) -> Any:
    """A real number with exact Laplace noise on a declared grid."""
    return laplace_on_grid(
        np.full(count, value), scale=1, granularity=2.0**-40, source=source
    ).values


@specimen(
    "float-textbook-laplace",
    0.0,
    1.0,
    "noise in doubles: outputs near 0 have bits that no sum 1 + noise can have",
)
def float_textbook(value: float, count: int, source: Source) -> Any:
    """The same with doubles: the sum is rounded to the doubles around it."""
    return value + _textbook_laplace(count, source)


@specimen(
    "float-noise-rounded-value-not",
    0.0,
    1 / 3,
    "noise on the grid, value off it: the low bits of the output are those of the value",
)
def float_rounded_late(value: float, count: int, source: Source) -> Any:
    """Noise is rounded to the grid and the value is not."""
    return value + np.rint(_textbook_laplace(count, source) * 2.0**20) * 2.0**-20


@specimen(
    "gaussian",
    (),
    (1,),
    "count with N(0, 1)",
    loss=Gaussian(noise_multiplier=1.0),
    delta=0.05,
    broken=False,
)
def gaussian_right(records: tuple[int, ...], count: int, source: Source) -> Any:
    """A count with Gaussian noise of deviation 1."""
    return _gaussian(records, count, source, stddev=1)


@specimen(
    "gaussian-halved-noise",
    (),
    (1,),
    "half of the deviation that is due",
    loss=Gaussian(noise_multiplier=1.0),
    delta=0.05,
)
def gaussian_halved(records: tuple[int, ...], count: int, source: Source) -> Any:
    """The same with deviation 1/2."""
    return _gaussian(records, count, source, stddev=Fraction(1, 2))


def _gaussian(
    records: tuple[int, ...], count: int, source: Source, *, stddev: Fraction | int
) -> Any:
    return draw_normal(sum(records), count, source, stddev=stddev)


def draw_normal(
    answer: int, count: int, source: Source, *, stddev: Fraction | int = 1
) -> NDArray[np.float64]:
    """Return an answer with exact Gaussian noise, again and again."""
    answers = np.full(count, float(answer))
    noisy = gaussian_on_grid(answers, stddev=stddev, granularity=2.0**-20, source=source)
    return np.asarray(noisy.values)


@specimen("mean-of-noisy-parts", (), (1,), "sum and size with noise, no error ever", broken=False)
def mean_right(records: tuple[int, ...], count: int, source: Source) -> Any:
    """A sum and a size with noise; their ratio is taken afterwards, and may be anything."""
    noise = laplace_noise(2, 2 * count, source).reshape(count, 2)
    return np.array([sum(records), len(records)]) + noise


@specimen(
    "mean-error-on-empty", (), (1,), "an error is raised for one neighbour only: the empty data set"
)
def mean_or_error(records: tuple[int, ...], count: int, source: Source) -> Any:
    """The same, but an empty data set is refused with an error."""
    if not records:
        return [Raised("ValueError", "no records")] * count
    return mean_right(records, count, source)


# --- the sparse vector technique ---

# A query below the threshold, beside answers that are numbers.
BELOW = -np.inf


@final
@dataclass(frozen=True)
class SparseVariant:
    """A sparse vector technique as its parameters; unanswered queries are NaN."""

    threshold_scale: Fraction | int
    query_scale: Fraction | int | None
    positives: int | None
    renew: bool = False
    give_answer: bool = False

    def __call__(
        self, answers: tuple[int, ...], count: int, source: Source, *, threshold: int = 0
    ) -> NDArray[np.float64]:
        """``count`` independent runs over the row of answers."""
        bar = threshold + laplace_noise(self.threshold_scale, count, source)
        released = np.full((count, len(answers)), np.nan)
        found = np.zeros(count, dtype=np.int64)
        for place, answer in enumerate(answers):
            noisy = np.full(count, float(answer))
            if self.query_scale is not None:
                noisy += laplace_noise(self.query_scale, count, source)
            above = noisy >= bar
            shown = np.where(above, noisy, BELOW) if self.give_answer else above.astype(float)
            running = np.full(count, True) if self.positives is None else found < self.positives
            released[running, place] = shown[running]
            found += above
            if self.renew:
                fresh = threshold + laplace_noise(self.threshold_scale, count, source)
                bar = np.where(above, fresh, bar)
        return released


ABOVE_THRESHOLD = SparseVariant(2, 4, 1)
POSITIVES = 5
QUERIES = 5


def _up_down(up: int, down: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Answers that all move by one: first ``up`` of them up, then ``down`` of them down."""
    return (0,) * (up + down), (1,) * up + (-1,) * down


def _sparse_specimen(
    name: str,
    draw: Draw,
    inputs: tuple[Any, Any],
    about: str,
    *,
    broken: bool = True,
    samples: int = 30_000,
) -> None:
    specimen(name, *inputs, about, broken=broken, samples=samples)(draw)


_sparse_specimen(
    "sparse-vector-1",
    SparseVariant(2, 4 * POSITIVES, POSITIVES),
    _up_down(5, POSITIVES),
    "Lyu, Su and Li, algorithm 1",
    broken=False,
)
_sparse_specimen(
    "sparse-vector-2",
    SparseVariant(2 * POSITIVES, 4 * POSITIVES, POSITIVES, renew=True),
    _up_down(5, POSITIVES),
    "Dwork and Roth 2014",
    broken=False,
)
_sparse_specimen(
    "sparse-vector-3",
    SparseVariant(2, 2, 1, give_answer=True),
    ((-1,) * 6 + (1,), (0,) * 6 + (2,)),
    "gives noisy answers above the threshold, which betray the threshold",
    samples=300_000,
)
_sparse_specimen(
    "sparse-vector-4",
    SparseVariant(4, Fraction(4, 3), POSITIVES),
    _up_down(5, POSITIVES),
    "query noise does not grow with the number c of positive answers",
)
_sparse_specimen(
    "sparse-vector-5",
    SparseVariant(2, None, None),
    ((0, 1), (1, 0)),
    "no noise on the queries, and no limit to the positive answers",
)
_sparse_specimen(
    "sparse-vector-6",
    SparseVariant(2, 2, None),
    _up_down(8, 8),
    "no limit to the positive answers",
)
_sparse_specimen(
    "above-threshold",
    ABOVE_THRESHOLD,
    _up_down(5, 1),
    "stops at the first positive answer",
    broken=False,
)
_sparse_specimen(
    "above-threshold-goes-on",
    SparseVariant(2, 4, None),
    _up_down(30, 30),
    "goes on after the first positive answer",
)


@specimen(
    "threshold-public",
    (1, 1, 1),
    (1, 1, 1, 12),
    "AboveThreshold against a public threshold",
    broken=False,
    samples=30_000,
)
def public_threshold(records: tuple[int, ...], count: int, source: Source) -> Any:
    """AboveThreshold on the number of records, asked again and again, against a public 5."""
    return ABOVE_THRESHOLD((len(records),) * QUERIES, count, source, threshold=5)


@specimen(
    "threshold-from-data",
    (1, 1, 1),
    (1, 1, 1, 12),
    "the threshold is the largest record, read off the data for nothing",
    samples=30_000,
)
def threshold_from_data(records: tuple[int, ...], count: int, source: Source) -> Any:
    """The same against the largest record, as if that were public."""
    return ABOVE_THRESHOLD((len(records),) * QUERIES, count, source, threshold=max(records))


# --- choosing among alternatives ---

CATEGORIES = 8
# Randomized response here has odds of 3, that is epsilon = ln 3.
ODDS = 3
LN_ODDS = RandomizedResponse(epsilon=math.log(ODDS), categories=CATEGORIES)


def _response(value: int, count: int, source: Source, *, categories_assumed: int) -> Any:
    """The truth with probability odds / (odds + k - 1), else another of the 8 categories."""
    truth = Fraction(ODDS, ODDS + categories_assumed - 1)
    honest = bernoulli(truth, count, source=source)
    other = uniform_integers(CATEGORIES - 1, count, source=source)
    return np.where(honest, value, other + (other >= value))


@specimen("k-response", 0, 1, "8-ary randomized response", loss=LN_ODDS, broken=False)
def response_right(value: int, count: int, source: Source) -> Any:
    """8-ary randomized response."""
    return _response(value, count, source, categories_assumed=CATEGORIES)


@specimen(
    "k-response-wrong-k",
    0,
    1,
    "the probability of the truth is that for two categories, not eight",
    loss=LN_ODDS,
)
def response_wrong_k(value: int, count: int, source: Source) -> Any:
    """The same with the probability of the truth for two categories."""
    return _response(value, count, source, categories_assumed=2)


def draw_index(
    scores: tuple[int, ...], count: int, source: Source, *, rate: float
) -> NDArray[np.int64]:
    """The index i with probability proportional to exp(rate * score), to within 2**-53."""
    weights = np.exp(rate * (np.array(scores) - max(scores)))
    shares = np.cumsum(weights / weights.sum())
    uniform = (source.words64(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.minimum(np.searchsorted(shares, uniform, side="right"), len(scores) - 1)


@specimen(
    "exponential",
    (3, 0, 0, 0),
    (0, 3, 3, 3),
    "scores divided by twice their sensitivity",
    broken=False,
)
def exponential_right(scores: tuple[int, ...], count: int, source: Source) -> Any:
    """The exponential mechanism on scores of sensitivity 3: exp(score / (2 * 3))."""
    return draw_index(scores, count, source, rate=1 / 6)


@specimen(
    "exponential-unnormalised",
    (3, 0, 0, 0),
    (0, 3, 3, 3),
    "scores of sensitivity 3 are not divided by it",
)
def exponential_unnormalised(scores: tuple[int, ...], count: int, source: Source) -> Any:
    """The same with exp(score / 2), as if the scores had sensitivity 1."""
    return draw_index(scores, count, source, rate=1 / 2)


def _noisy_max(
    scores: tuple[int, ...], count: int, source: Source, *, scale: int
) -> NDArray[np.intp]:
    noise = laplace_noise(scale, count * len(scores), source).reshape(count, -1)
    return np.asarray(np.argmax(np.array(scores) + noise, axis=1))


@specimen(
    "noisy-max", (1,) + (0,) * 9, (0,) + (1,) * 9, "Lap(2/epsilon) on each score", broken=False
)
def noisy_max_right(scores: tuple[int, ...], count: int, source: Source) -> Any:
    """The place of the largest score with noise Lap(2 / epsilon)."""
    return _noisy_max(scores, count, source, scale=2)


@specimen(
    "noisy-max-half-noise",
    (1,) + (0,) * 9,
    (0,) + (1,) * 9,
    "Lap(1/epsilon), though scores move both ways",
)
def noisy_max_halved(scores: tuple[int, ...], count: int, source: Source) -> Any:
    """The same with Lap(1 / epsilon), which is enough only if all scores move one way."""
    return _noisy_max(scores, count, source, scale=1)
