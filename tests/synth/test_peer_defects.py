"""S33: faults of other synthesisers that no audit can see, and why this one does not have them.

The others of that list are refuted specimens of the zoo (tests/audit/test_zoo.py).
"""

import tracemalloc

import pytest

from discreet.synth import OneShot
from discreet.synth._tree import DecomposableGraph, JunctionTree, count_cells
from synth.worlds import SCHEMA, some_rows


def test_the_limit_of_size_limits_the_tree_and_not_the_measured_tables() -> None:
    """A ring of pairs is small, as measured tables go, and its tree has cliques of three."""
    sizes = [10] * 12
    ring = [(min(at, (at + 1) % 12), max(at, (at + 1) % 12)) for at in range(12)]
    limit = 999
    graph = DecomposableGraph(sizes)
    graph.grow(ring, most_cells=limit)
    tree = JunctionTree(sizes, graph.cliques())
    assert max(count_cells(sizes, node.columns) for node in tree.nodes) <= limit
    # What a peer compares with the limit: each table by itself, which a tree of all would exceed.
    assert max(count_cells(sizes, pair) for pair in ring) < limit
    assert sum(pair in {tuple(sorted(one)) for one in graph.cliques()} for pair in ring) == 11
    assert count_cells(sizes, (0, 1, 2)) > limit


@pytest.mark.parametrize("epsilon", [0.01, 0.001])
def test_a_small_epsilon_is_calibrated_in_little_memory(epsilon: float) -> None:
    """A peer takes 75 GB for 0.01; a Gaussian has a closed form."""
    tracemalloc.start()
    plan = OneShot().plan(SCHEMA, epsilon=epsilon, delta=1e-9)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.999 * epsilon < plan.loss.epsilon(delta=1e-9) <= epsilon
    assert peak < 50e6


def test_as_many_rows_as_the_noise_says() -> None:
    """A peer returns as many rows as there were, which tells neighbours apart."""
    plan = OneShot(evaluations=5).plan(SCHEMA, epsilon=1, delta=1e-6)
    sizes = {plan.run(some_rows(300), insecure_seed=seed).sample().num_rows for seed in range(4)}
    assert len(sizes) > 1
