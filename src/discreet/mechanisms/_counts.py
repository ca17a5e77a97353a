"""Counts of records, histograms over public categories, and shares, with Laplace noise.

One person is one record. Adding or removing a record changes one count by one; replacing a
record takes one from a count and gives one to another. A single count therefore has
sensitivity 1 under both relations, and a histogram has L1 sensitivity 1 under add_remove
and 2 under replace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.mechanisms._intervals import each_of, integer_bars
from discreet.mechanisms._noise import LaplaceNoise
from discreet.mechanisms._parameters import read_epsilon, round_up
from discreet.mechanisms._release import Interval, Release
from discreet.privacy import Loss, Relation
from discreet.randomness import Source, choose_source, read_integer


class NoisyFraction(NamedTuple):
    """Two noisy counts, and their share computed from them and from nothing else."""

    fraction: float
    having: int
    lacking: int


class FractionError(NamedTuple):
    """The mean squared error of a private share: exact, and by the formula for large N."""

    exact: float
    formula: float


def laplace_count(
    count: int,
    *,
    epsilon: object = None,
    scale: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[int]:
    """Release how many records have a property, plus discrete Laplace noise; (1 / scale)-DP.

    Parameters
    ----------
    count : int
        The private number of records, at least 0.
    epsilon, scale : number or str
        The pure epsilon to meet, or the scale of the noise: exactly one of them.
    relation : Relation or str
        What neighbours are.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release of int
        The noisy count, which may be negative. Its sensitivity is 1 under both relations.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; a private count is not shown.

    Examples
    --------
    >>> laplace_count(120, epsilon=0.1).loss
    DiscreteLaplace(scale=10.0)
    """
    noise = LaplaceNoise.read(sensitivity=1, epsilon=epsilon, scale=scale, relation=relation)
    bits = choose_source(source, insecure_seed)
    loss = noise.loss
    noisy = read_integer("count", count, at_least=0) + noise.draw(None, bits)
    return Release(
        noisy,
        loss,
        _provenance("laplace_count", noise, bits),
        integer_bars(noisy, noise.quantile),
    )


def laplace_histogram(
    records: Iterable[Any],
    *,
    categories: Sequence[Hashable],
    epsilon: object = None,
    scale: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[dict[Hashable, int]]:
    """Release the number of records in each public category, plus discrete Laplace noise.

    Parameters
    ----------
    records : iterable
        The private records. Those of no category are not counted.
    categories : sequence
        The public categories: every one gets a noisy count, also where there is no record.
    epsilon, scale : number or str
        The pure epsilon to meet, or the scale of the noise: exactly one of them.
    relation : Relation or str
        What neighbours are.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release of dict
        Noisy counts by category. Under add_remove one count changes by 1 and the release is
        (1 / scale)-DP; under replace two counts change by 1, it is (2 / scale)-DP, and the loss
        is exactly that of two such counts. With ``epsilon`` the scale is 1 / epsilon and
        2 / epsilon. ``interval`` gives arrays in the order of ``categories`` that hold
        together.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; a private count is not shown.

    Examples
    --------
    >>> noisy = laplace_histogram("abba", categories="abc", scale=0.01)  # hardly any noise
    >>> noisy.value
    {'a': 2, 'b': 2, 'c': 0}
    >>> laplace_histogram("abba", categories="abc", epsilon=0.1, relation="replace").loss
    2 * DiscreteLaplace(scale=20.0, relation='replace')
    """
    names = _categories(categories)
    noise, loss = _histogram_noise(len(names), epsilon, scale, relation)
    bits = choose_source(source, insecure_seed)
    counts = dict.fromkeys(names, 0)
    for record in records:
        if _is_one_of(record, counts):
            counts[record] += 1
    draws = noise.draw(len(names), bits)
    noisy = {name: counts[name] + int(draw) for name, draw in zip(names, draws, strict=True)}
    return Release(
        noisy,
        loss,
        _provenance("laplace_histogram", noise, bits, categories=[str(name) for name in names]),
        _make_bars(list(noisy.values()), noise),
    )


def laplace_fraction(
    having: int,
    lacking: int,
    *,
    epsilon: object = None,
    scale: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[NoisyFraction]:
    """Release what share of people has a property, from two noisy counts.

    Under replace the size n is public and ``laplace_count(having, ...)`` over n is better: it
    needs half of the noise.

    Parameters
    ----------
    having, lacking : int
        The private numbers of people with and without the property.
    epsilon, scale : number or str
        The pure epsilon to meet, or the scale of the noise: exactly one of them.
    relation : Relation or str
        What neighbours are.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release of NoisyFraction
        The two counts are a histogram: (1 / scale)-DP under add_remove, (2 / scale)-DP under
        replace. Epsilon 0.1 means scale 10 or 20, whatever the size of the population. The
        fraction is computed from the noisy counts, cut to [0, 1], and 1/2 if no noisy count is
        positive. ``interval`` is about the true fraction.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; a private count is not shown.

    Examples
    --------
    >>> share = laplace_fraction(8_000_000, 24_000_000, epsilon=0.1, insecure_seed=1)
    >>> share.loss, round(share.value.fraction, 4)
    (DiscreteLaplace(scale=10.0), 0.25)
    >>> low, high = share.interval(confidence=0.99)
    >>> low < 0.25 < high and high - low < 1e-5
    True
    """
    noise, loss = _histogram_noise(2, epsilon, scale, relation)
    bits = choose_source(source, insecure_seed)
    answers = (
        read_integer("having", having, at_least=0),
        read_integer("lacking", lacking, at_least=0),
    )
    draws = noise.draw(2, bits)
    first, second = (answer + int(draw) for answer, draw in zip(answers, draws, strict=True))

    def bars(confidence: float) -> Interval:
        t = noise.quantile(each_of(2, 1.0 - confidence))
        return Interval(
            math.nextafter(_share(first - t, second + t, otherwise=0.0), -math.inf),
            math.nextafter(_share(first + t, second - t, otherwise=1.0), math.inf),
        )

    return Release(
        NoisyFraction(_share(first, second, otherwise=0.5), first, second),
        loss,
        _provenance("laplace_fraction", noise, bits),
        bars,
    )


def laplace_fraction_error(
    having: int,
    lacking: int,
    *,
    epsilon: object = None,
    scale: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
) -> FractionError:
    """Return the mean squared error of :func:`laplace_fraction` for assumed public counts.

    Parameters
    ----------
    having, lacking : int
        Assumed counts, at least one record together; NOT those of private data.
    epsilon, scale : number or str
        As in :func:`laplace_fraction`; the scale is at most 50.
    relation : Relation or str
        What neighbours are.

    Returns
    -------
    FractionError
        Exact, by summation over both noises, and v ((1 - p)^2 + p^2) / N^2 with the variance v of
        one noise, which the exact one approaches as N grows: it falls like 1 / N^2.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> error = laplace_fraction_error(500, 500, epsilon=0.1)
    >>> round(error.formula * 1000**2, 1), round(error.exact * 1000**2, 1)
    (99.9, 100.2)
    """
    first = _validate.integer("having", having, at_least=0, at_most=1 << 50)
    second = _validate.integer("lacking", lacking, at_least=0, at_most=1 << 50)
    if not first + second:
        raise InvalidValue("having", having, "at least one record together with lacking")
    noise, _ = _histogram_noise(2, epsilon, scale, relation)
    width = _validate.real("scale", noise.scale, above=0, at_most=50)
    ratio, reach = math.exp(-1.0 / width), math.ceil(36.0 * width)
    steps = np.arange(-reach, reach + 1)
    chance = ratio ** np.abs(steps)
    chance /= chance.sum()
    share, total = first / (first + second), first + second
    others = np.maximum(second + steps, 0)
    exact = 0.0
    for step, weight in zip(steps, chance, strict=True):
        noisy = max(first + int(step), 0)
        sums = np.maximum(noisy + others, 1)
        shown = np.where(noisy + others > 0, noisy / sums, 0.5)
        exact += float(weight) * float(((shown - share) ** 2 * chance).sum())
    variance = 2.0 * ratio / math.expm1(-1.0 / width) ** 2
    return FractionError(exact, variance * ((1.0 - share) ** 2 + share**2) / total**2)


def _histogram_noise(
    categories: int, epsilon: object, scale: object, relation: Relation | str
) -> tuple[LaplaceNoise, Loss]:
    """Return the noise of one count, and the loss of as many counts as one neighbour changes."""
    neighbours = Relation.parse(relation)
    changed = 2 if neighbours is Relation.REPLACE and categories > 1 else 1
    if _validate.exactly_one(epsilon=epsilon, scale=scale) == "epsilon":
        scale = round_up("epsilon", epsilon, changed / read_epsilon(epsilon)[0])
    noise = LaplaceNoise.read(sensitivity=1, epsilon=None, scale=scale, relation=neighbours)
    return noise, changed * noise.loss


def _categories(categories: Sequence[Hashable]) -> list[Hashable]:
    expected = "a non-empty sequence of distinct, hashable categories"
    try:
        names = list(categories)
        distinct = len(set(names)) == len(names)
    except TypeError:
        raise InvalidValue("categories", categories, expected) from None
    if not names or not distinct:
        raise InvalidValue("categories", categories, expected)
    return names


def _is_one_of(record: Any, counts: dict[Hashable, int]) -> bool:
    try:
        return record in counts
    except TypeError:  # not hashable, hence none of the categories
        return False


def _share(having: int, lacking: int, *, otherwise: float) -> float:
    first, second = max(having, 0), max(lacking, 0)
    return first / (first + second) if first + second else otherwise


def _make_bars(noisy: list[int], noise: LaplaceNoise) -> Callable[[float], Interval]:
    def bars(confidence: float) -> Interval:
        t = noise.quantile(each_of(len(noisy), 1.0 - confidence))
        centre = np.array(noisy)
        return Interval(centre - t, centre + t)

    return bars


def _provenance(
    mechanism: str, noise: LaplaceNoise, bits: Source, **more: object
) -> dict[str, Any]:
    return {
        "mechanism": mechanism,
        "scale": noise.scale,
        "relation": noise.relation.value,
        **more,
        **bits.provenance,
    }
