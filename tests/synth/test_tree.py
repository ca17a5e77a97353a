"""S33: junction trees against brute force over all cells of the joint table."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from discreet.randomness import source
from discreet.synth._fitting import Measurement, fit_tree, merge_measurements
from discreet.synth._sampling import sample_rows
from discreet.synth._tree import DecomposableGraph, JunctionTree, count_cells
from synth import ask_mbi


def some_tree(rng: np.random.Generator) -> JunctionTree:
    sizes = rng.integers(1, 6, rng.integers(1, 7)).tolist()
    pairs = list(itertools.combinations(range(len(sizes)), 2))
    graph = DecomposableGraph(sizes)
    chosen = [pairs[at] for at in rng.permutation(len(pairs))[: rng.integers(0, len(pairs) + 1)]]
    graph.grow(chosen, most_cells=int(rng.integers(4, 200)))
    return JunctionTree(sizes, graph.cliques())


def whole_table(tree: JunctionTree, potentials: list[np.ndarray]) -> np.ndarray:
    """The slow twin: log weights of all combinations of values."""
    whole = np.zeros(tree.sizes)
    for node, potential in zip(tree.nodes, potentials, strict=True):
        turned = potential.transpose(np.argsort(node.columns))
        shape = [size if at in node.columns else 1 for at, size in enumerate(tree.sizes)]
        whole = whole + turned.reshape(shape)
    return whole


def sum_to(table: np.ndarray, columns: tuple[int, ...]) -> np.ndarray:
    outside = tuple(at for at in range(table.ndim) if at not in columns)
    return table.sum(axis=outside).transpose(np.argsort(np.argsort(columns)))


@pytest.mark.parametrize("seed", range(60))
def test_inference_agrees_with_brute_force(seed: int) -> None:
    """Disconnected columns, single columns, impossible cells, potentials up to 10,000."""
    rng = np.random.default_rng(seed)
    tree = some_tree(rng)
    potentials = [rng.normal(size=node.shape) * 10.0 ** (seed % 5) for node in tree.nodes]
    if seed % 2:
        for one in potentials:
            one[rng.random(one.shape) < 0.1] = -np.inf
    whole = whole_table(tree, potentials)
    log_z, conditionals = tree.infer(potentials)
    assert all(np.all(np.isfinite(one)) for one in conditionals)
    top = whole.max()
    if np.isneginf(top):
        assert math.isinf(log_z)
        return
    weights = np.exp(whole - top)
    assert log_z == pytest.approx(top + math.log(weights.sum()), rel=1e-10, abs=1e-10)
    right = weights / weights.sum()
    for node, table in zip(tree.nodes, tree.joint(conditionals), strict=True):
        np.testing.assert_allclose(table, sum_to(right, node.columns), atol=1e-10)
    for size in range(1, min(4, right.ndim) + 1):
        asked = tuple(rng.permutation(right.ndim)[:size].tolist())
        found = tree.marginal(conditionals, asked)
        np.testing.assert_allclose(found, sum_to(right, asked), atol=1e-10)


def test_a_graph_stays_chordal_and_its_cliques_small() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        sizes = rng.integers(2, 9, 9).tolist()
        pairs = list(itertools.combinations(range(9), 2))
        graph = DecomposableGraph(sizes)
        graph.grow([pairs[at] for at in rng.permutation(len(pairs))], most_cells=300)
        cliques = graph.cliques()
        assert max(count_cells(sizes, one) for one in cliques) <= 300
        tree = JunctionTree(sizes, cliques)
        # Running intersection: the nodes that hold a column hang together.
        for column in range(9):
            holding = [at for at, node in enumerate(tree.nodes) if column in node.columns]
            roots = [at for at in holding if column not in tree.nodes[at].separator]
            assert len(roots) == 1
            assert all(tree.nodes[at].parent in holding for at in holding if at != roots[0])


def test_a_cycle_without_chords_is_refused() -> None:
    graph = DecomposableGraph([2] * 4)
    for u, v in ((0, 1), (1, 2), (2, 3)):
        assert graph.clique_with(u, v) == (u, v)
        graph.add(u, v)
    assert graph.clique_with(0, 3) is None
    assert graph.clique_with(0, 2) == (0, 1, 2)


def test_exact_tables_in_the_same_tables_out() -> None:
    rng = np.random.default_rng(2)
    sizes = (4, 3, 5, 2)
    truth = rng.dirichlet(np.full(120, 0.5)).reshape(sizes) * 1000
    tree = JunctionTree(sizes, [(0, 1), (1, 2), (2, 3)])
    measured = []
    for pair in ((0, 1), (2, 1), (2, 3)):
        values = sum_to(truth, pair)
        measured.append(Measurement(pair, values, np.full(values.shape, 1e-6)))
    conditionals, potentials = fit_tree(tree, measured, 1000.0, evaluations=2000)
    for one in measured:
        found = tree.marginal(conditionals, one.columns) * 1000
        np.testing.assert_allclose(found, one.values, atol=0.02)
    again, _ = fit_tree(tree, measured, 1000.0, evaluations=3, start=potentials)
    np.testing.assert_allclose(
        tree.marginal(again, (0, 1)), tree.marginal(conditionals, (0, 1)), atol=1e-4
    )


def test_impossible_cells_stay_empty() -> None:
    tree = JunctionTree([2, 3], [(0, 1)])
    cells = np.array([[True, False, False], [False, False, False]])
    values = np.array([[50.0, 10.0, 10.0], [10.0, 10.0, 10.0]])
    measured = [Measurement((0, 1), values, np.ones((2, 3)))]
    conditionals, _ = fit_tree(tree, measured, 100.0, impossible=[((0, 1), cells)])
    assert tree.marginal(conditionals, (0, 1))[0, 0] == 0.0
    rows = sample_rows(tree, conditionals, 500, source(insecure_seed=1))
    assert not np.any((rows[0] == 0) & (rows[1] == 0))


def test_repeated_tables_are_averaged_by_their_noise() -> None:
    first = Measurement((0, 1), np.full((2, 3), 10.0), np.full((2, 3), 1.0))
    second = Measurement((1, 0), np.full((3, 2), 16.0), np.full((3, 2), 2.0))
    [merged] = merge_measurements([first, second])
    assert merged.columns == (0, 1)
    np.testing.assert_allclose(merged.values, 12.0)
    np.testing.assert_allclose(merged.variance, 2.0 / 3.0)


@pytest.mark.parametrize("seed", range(5))
def test_sampled_cells_are_their_expectation_rounded(seed: int) -> None:
    """Every cell of the root, and every cell of a node given its separator, to within 1 row."""
    rng = np.random.default_rng(seed)
    tree = JunctionTree([3, 4, 5], [(0, 1), (1, 2)])
    _, conditionals = tree.infer([rng.normal(size=node.shape) for node in tree.nodes])
    rows = sample_rows(tree, conditionals, 1001, source(insecure_seed=seed))
    for node, conditional in zip(tree.nodes, conditionals, strict=True):
        shape = node.shape
        index = np.ravel_multi_index([rows[column] for column in node.columns], shape)
        counts = np.bincount(index, minlength=math.prod(shape)).reshape(node.flat)
        expected = conditional * counts.sum(axis=1, keepdims=True)
        assert np.abs(counts - expected).max() < 1.0 + 1e-9


MBI = json.loads(Path(__file__).with_name("mbi.json").read_text())


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_inference_agrees_with_mbi(scale: float) -> None:
    """The record is made by ``tests/synth/ask_mbi.py``, in a Python that has mbi 2.0.0."""
    tree = JunctionTree(ask_mbi.SIZES, [tuple(one) for one in ask_mbi.CLIQUES])
    potentials = tree.zeros()
    for at, one in enumerate(ask_mbi.CLIQUES):
        home = tree.home(one)
        assert home is not None
        order, shape = tree.axes_in(home, one)
        turned = np.array(ask_mbi.table(at, one, scale)).transpose([one.index(c) for c in order])
        potentials[home] = potentials[home] + turned.reshape(shape)
    _, conditionals = tree.infer(potentials)
    for one, said in zip(ask_mbi.CLIQUES, MBI[f"marginals at {scale:g}"], strict=True):
        found = tree.marginal(conditionals, tuple(one)).ravel() * ask_mbi.TOTAL
        np.testing.assert_allclose(found, said, atol=1e-7 * scale)


def test_the_fit_agrees_with_mbi() -> None:
    """The least squares of mbi are ours with hardly any pull."""
    tree = JunctionTree(ask_mbi.SIZES, [tuple(one) for one in ask_mbi.CLIQUES])
    measured = []
    tables = ask_mbi.noisy_tables(MBI["marginals at 1"])
    for flat, one in zip(tables, ask_mbi.CLIQUES, strict=True):
        values = np.array(flat).reshape([ask_mbi.SIZES[at] for at in one])
        measured.append(Measurement(tuple(one), values, np.full(values.shape, 4.0)))
    conditionals, _ = fit_tree(tree, measured, ask_mbi.TOTAL, strength=1e-3, evaluations=5000)
    for one, said in zip(measured, MBI["fit"], strict=True):
        found = tree.marginal(conditionals, one.columns).ravel() * ask_mbi.TOTAL
        np.testing.assert_allclose(found, said, atol=0.05)
        assert np.abs(found - one.values.ravel()).max() > 0.1  # the tables do not quite agree
