"""S25: smooth sensitivity by brute force, and the release of a figure."""

import itertools
import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate

from discreet.errors import BudgetExceeded, InvalidValue
from discreet.ledger import Ledger
from discreet.pate import (
    ConfidentGNMax,
    GNMax,
    InteractiveGNMax,
    LaplaceMax,
    ReleaseNoise,
    SanitisedRDP,
    data_dependent_rdp,
    sanitise,
)
from discreet.pate._data_dependent import adjacent_change, smooth_bound
from discreet.pate._surface import QueryCells
from discreet.privacy import Loss
from oracles.vote_labels import histograms, moved

SMALL = [
    (GNMax(classes=3, teachers=6, noise=0.6), 3.0),
    (GNMax(classes=2, teachers=8, noise=0.7), 3.0),
    (LaplaceMax(classes=3, teachers=6, scale=0.6), 3.0),
    (
        ConfidentGNMax(classes=3, teachers=6, threshold=4, selection_noise=1, answer_noise=0.5),
        3.0,
    ),
    (
        ConfidentGNMax(classes=2, teachers=8, threshold=6, selection_noise=2, answer_noise=1),
        6.0,
    ),
]


def figures(aggregator, order, tables, predictions=None):
    """The figure and the smooth bound of every stream of two queries."""
    surface = aggregator.surface()
    table = surface.table(order)

    def read(stream, beta):
        cells = surface.cells(np.array(stream), predictions)
        value = float(cells.counts @ table[cells.rows, cells.columns])
        return value, smooth_bound(table, cells, beta=beta, reach=surface.reach)

    return read


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.05, 0.7])
@pytest.mark.parametrize(("aggregator", "order"), SMALL)
def test_smooth_upper_bound_on_streams_of_two_queries(aggregator, order, beta) -> None:
    """All neighbours of some streams, in which one teacher changes its vote in both queries."""
    rng = np.random.default_rng(5)
    tables = list(histograms(aggregator.teachers, aggregator.classes))
    read = figures(aggregator, order, tables)
    streams = list(itertools.product(tables, repeat=2))
    if len(streams) > 25:
        streams = [streams[i] for i in rng.choice(len(streams), 25, replace=False)]
    jumps = []
    for first, second in streams:
        value, smooth = read((first, second), beta)
        near = itertools.product([first, *moved(first)], [second, *moved(second)])
        for other in near:
            other_value, other_smooth = read(other, beta)
            assert abs(other_value - value) <= min(smooth, other_smooth) * (1 + 1e-9)
            assert smooth <= math.exp(beta) * other_smooth * (1 + 1e-9)
            jumps.append(abs(other_value - value))
    assert max(jumps) > 0


def test_the_table_is_the_figure() -> None:
    rng = np.random.default_rng(2)
    votes = rng.multinomial(30, [0.7, 0.2, 0.1], size=40)
    settings = {"threshold": 20, "selection_noise": 4, "answer_noise": 3}
    predictions = rng.dirichlet([1, 1, 1], 40)
    for aggregator, public in [
        (GNMax(classes=3, teachers=30, noise=3), None),
        (LaplaceMax(classes=3, teachers=30, scale=3), None),
        (ConfidentGNMax(classes=3, teachers=30, **settings), None),
        (InteractiveGNMax(classes=3, teachers=30, **settings), predictions),
    ]:
        surface = aggregator.surface()
        cells = surface.cells(votes, public)
        value = float(cells.counts @ surface.table(4.0)[cells.rows, cells.columns])
        figure = data_dependent_rdp(aggregator, votes, predictions=public, orders=[4.0])
        assert math.isclose(value, figure.private_rdp()[0], rel_tol=1e-9)


def test_smooth_bound_against_a_slow_twin() -> None:
    rng = np.random.default_rng(8)
    values = rng.random((5, 7))
    reach = (1, 2)

    def near(cell, moves):
        return [
            (r, c)
            for r in range(5)
            for c in range(7)
            if abs(r - cell[0]) <= moves * reach[0] and abs(c - cell[1]) <= moves * reach[1]
        ]

    def local(cell):
        return max(abs(values[other] - values[cell]) for other in near(cell, 1))

    places = [(0, 0), (4, 3), (2, 6)]
    counts = np.array([1, 3, 2])
    cells = QueryCells(np.array([p[0] for p in places]), np.array([p[1] for p in places]), counts)
    for beta in (0.01, 0.3, 2.0):
        slow = max(
            math.exp(-beta * moves)
            * sum(
                n * max(local(c) for c in near(place, moves))
                for n, place in zip(counts, places, strict=True)
            )
            for moves in range(9)
        )
        assert math.isclose(smooth_bound(values, cells, beta=beta, reach=reach), slow)
    assert adjacent_change(values, reach)[2, 3] == local((2, 3))


@pytest.mark.parametrize("order", [2.0, 5.0, 12.0])
def test_cost_of_a_release_covers_every_pair_of_gaussians(order) -> None:
    noise = ReleaseNoise(order=order, beta=0.3 / order, noise=4.0, failure=0.01)
    cost, worst = noise.cost(order), 0.0
    z, s, beta = noise.quantile, noise.noise, noise.beta
    for ratio in np.exp(np.linspace(-beta, beta, 9)):
        sizes = (ratio, 1.0)  # S and S'
        for change in np.linspace(-1, 1, 5) * min(sizes):
            means = (z * s * sizes[0] + change, z * s * sizes[1])

            def integrand(x, means=means, sizes=sizes):
                logs = [
                    -0.5 * ((x - m) / (s * w)) ** 2 - math.log(s * w)
                    for m, w in zip(means, sizes, strict=True)
                ]
                return math.exp(order * logs[0] + (1 - order) * logs[1]) / math.sqrt(2 * math.pi)

            total = integrate.quad(integrand, -400, 400, points=[0, 20], limit=400)[0]
            worst = max(worst, math.log(total) / (order - 1))
    assert worst <= cost * (1 + 1e-6)
    assert worst > 0.5 * cost
    forgotten = order / (2 * s * s)  # as if variance and shift told nothing
    assert worst > forgotten


def votes_of(queries: int, teachers: int, share: float, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    chances = np.full(10, (1 - share) / 9)
    chances[2] = share
    return rng.multinomial(teachers, chances, size=queries)


def test_a_published_figure_is_an_upper_bound_as_often_as_it_says() -> None:
    """200 releases with failure 0.05: more than 36 failures have probability below 1e-9."""
    aggregator = GNMax(classes=10, teachers=120, noise=10)
    votes = votes_of(300, 120, 0.8)
    noise = ReleaseNoise.costing(0.2, order=6, failure=0.05)
    truth = data_dependent_rdp(aggregator, votes, orders=[6]).private_rdp()[0]
    figures = [
        sanitise(aggregator, votes, noise=noise, insecure_seed=seed).figure for seed in range(200)
    ]
    failures = sum(figure < truth for figure in figures)
    assert 1 <= failures <= 36
    assert min(figures) >= 0.0
    assert max(figures) <= 300 * 6 / 10**2 * (1 + 1e-9)
    assert np.std(figures) > 0


@pytest.mark.slow
def test_a_published_figure_can_be_stored_and_says_what_it_is() -> None:
    aggregator = ConfidentGNMax(
        classes=10, teachers=400, threshold=300, selection_noise=60, answer_noise=25
    )
    noise = ReleaseNoise.costing(0.3, order=8)
    published = sanitise(aggregator, votes_of(200, 400, 0.9), noise=noise, insecure_seed=4)
    assert isinstance(published, SanitisedRDP)
    stored = json.loads(json.dumps(published.to_json()))
    assert "sanitised" in stored["kind"]
    assert stored["randomness"] == "INSECURE seed 4"
    assert stored["cost"] <= 0.3
    assert stored["total"] == published.figure + published.cost
    assert stored["failure"] == 0.01
    exact = published.total + math.log1p(-1 / 8) - (math.log(1e-5) + math.log(8)) / 7
    assert math.isclose(published.epsilon(delta=1e-5), exact, rel_tol=1e-9)
    assert published.total < published.data_independent


def test_ten_thousand_queries_are_released_in_well_under_a_minute() -> None:
    votes = votes_of(10_000, 250, 0.9)
    noise = ReleaseNoise.costing(0.5, order=10)
    start = time.process_time()
    for aggregator in (
        GNMax(classes=10, teachers=250, noise=40),
        LaplaceMax(classes=10, teachers=250, scale=25),
        ConfidentGNMax(
            classes=10, teachers=250, threshold=200, selection_noise=150, answer_noise=40
        ),
    ):
        sanitise(aggregator, votes, noise=noise)
    assert time.process_time() - start < 20


def test_bad_releases() -> None:
    aggregator = GNMax(classes=3, teachers=9, noise=2)
    for settings in (
        {"order": 1, "beta": 0.1, "noise": 1},
        {"order": 8, "beta": 0.1, "noise": 1},  # exp(0.2) > 8/7
        {"order": 8, "beta": 0, "noise": 1},
        {"order": 8, "beta": 0.01, "noise": 0},
        {"order": 8, "beta": 0.01, "noise": 1, "failure": 0.7},
        {"order": 8, "beta": 0.01, "noise": 1, "failure": 0},
    ):
        with pytest.raises(InvalidValue):
            ReleaseNoise(**settings)
    with pytest.raises(InvalidValue, match="cost"):
        ReleaseNoise.costing(1e-6, order=8)
    with pytest.raises(InvalidValue, match="noise"):
        sanitise(aggregator, [[7, 1, 1]], noise=3.0)
    large = ConfidentGNMax(
        classes=10, teachers=10_000, threshold=200, selection_noise=150, answer_noise=40
    )
    with pytest.raises(InvalidValue, match="resolution"):
        sanitise(large, votes_of(3, 10_000, 0.9), noise=ReleaseNoise.costing(0.5, order=8))


def test_a_release_has_a_loss_that_a_ledger_takes(tmp_path: Path) -> None:
    noise = ReleaseNoise.costing(0.1, order=10)
    loss = noise.loss("replace")
    assert loss.relation.value == "replace"
    assert float(loss.rdp([10.0])[0]) <= 0.1 * (1 + 1e-9)
    labels = GNMax(classes=10, teachers=250, noise=40)
    votes = votes_of(50, 250, 0.9)
    with Ledger.create(tmp_path / "a.ledger") as ledger:
        ledger.create_dataset("d", epsilon=4, delta=1e-4)

        def charge(spent: Loss) -> None:
            ledger.charge("d", spent, delta=1e-5)

        charge(labels.loss(queries=50))
        before = ledger.remaining("d").remaining["basic"]
        sanitise(labels, votes, noise=noise, insecure_seed=1, charge=charge)
        assert ledger.remaining("d").remaining["basic"] < before
        costly = ReleaseNoise(order=3.0, beta=0.01, noise=0.5)
        with pytest.raises(BudgetExceeded):
            sanitise(labels, votes, noise=costly, insecure_seed=1, charge=charge)
        # Votes that are no votes are refused before the charge.
        spent = len(list(ledger.history("d")))
        with pytest.raises(InvalidValue, match="votes"):
            sanitise(labels, votes + 1, noise=noise, insecure_seed=1, charge=charge)
        assert len(list(ledger.history("d"))) == spent


@pytest.mark.parametrize("order", [1.5, 4.0, 9.0])
def test_the_loss_of_a_release_is_its_cost_at_every_order(order: float) -> None:
    noise = ReleaseNoise(order=6.0, beta=0.02, noise=3.0)
    assert float(noise.loss().rdp([order])[0]) >= noise.cost(order) * (1 - 1e-9)
