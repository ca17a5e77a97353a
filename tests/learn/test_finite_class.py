"""S37: private PAC learning of a finite class: exact probabilities, the bound, odd functions."""

import math
import warnings

import numpy as np
import pytest

from discreet.errors import BudgetExceeded, InvalidValue, NotApplicable
from discreet.learn import _finite_class, choose_hypothesis, excess_error, rows_needed
from discreet.ledger import Ledger
from discreet.mechanisms import Release
from discreet.privacy import PureDP

CUTS = [lambda row, cut=cut: int(row[0] > cut) for cut in range(10)]


def errors_of(x, y):
    return [sum(int(one(row) != label) for row, label in zip(x, y, strict=True)) for one in CUTS]


def probabilities(x, y, epsilon, relation):
    rate = epsilon if relation == "add_remove" else epsilon / 2
    weights = np.exp(-rate * np.array(errors_of(x, y), dtype=float))
    return weights / weights.sum()


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_the_choice_has_the_stated_probabilities_and_they_are_private(relation):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 10, (12, 1)).astype(float)
    y = (x[:, 0] > 4).astype(int)
    exact = probabilities(x, y, 0.7, relation)
    counts = np.zeros(10)
    for seed in range(1500):
        asked = {"epsilon": 0.7, "relation": relation, "insecure_seed": seed}
        counts[choose_hypothesis(CUTS, x, y, **asked).number] += 1
    # Chi-square of 9 degrees; 33.7 is passed once in 10,000 runs.
    assert np.sum((counts - 1500 * exact) ** 2 / (1500 * exact)) < 33.7
    worst = 0.0
    for value in range(10):
        for label in (0, 1):
            if relation == "add_remove":
                x2, y2 = np.append(x, [[value]], axis=0), np.append(y, label)
            else:
                x2, y2 = x.copy(), y.copy()
                x2[0], y2[0] = value, label
            ratio = np.log(exact / probabilities(x2, y2, 0.7, relation))
            worst = max(worst, np.abs(ratio).max())
    assert worst <= 0.7
    assert worst > 0.3, "and hardly more noise than needed"


def test_the_excess_is_within_the_bound():
    """200 tables of 400 rows: the bound fails in 5 % of them at most, and hardly ever at all."""
    rng = np.random.default_rng(1)
    true_errors = [
        np.mean([cut != 4 and (v > cut) != (v > 4) for v in range(10)]) for cut in range(10)
    ]
    failures = 0
    bound = excess_error(10, 400, epsilon=0.5)
    for seed in range(200):
        x = rng.integers(0, 10, (400, 1)).astype(float)
        flipped = rng.random(400) < 0.1
        y = (x[:, 0] > 4).astype(int) ^ flipped
        chosen = choose_hypothesis(CUTS, x, y, epsilon=0.5, insecure_seed=seed)
        assert chosen.excess(400) == bound
        failures += 0.8 * true_errors[chosen.number] > bound
    assert failures <= 10


def test_the_bound_counts_both_halves():
    private = math.log(2 * 10 / 0.05) / 0.5 / 400
    sampling = 2 * math.sqrt(math.log(4 * 10 / 0.05) / 800)
    assert excess_error(10, 400, epsilon=0.5) == pytest.approx(private + sampling)
    assert excess_error(10, 400, epsilon=0.5, relation="replace") == pytest.approx(
        2 * private + sampling
    )


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize("epsilon", [0.01, 1.0])
def test_rows_needed_is_the_least_number(epsilon, relation):
    asked = {"epsilon": epsilon, "relation": relation}
    rows = rows_needed(50, alpha=0.1, **asked)
    assert excess_error(50, rows, **asked) <= 0.1 < excess_error(50, rows - 1, **asked)


def test_a_function_that_raises_errs_on_that_row():
    def picky(row):
        if row[0] > 3:
            raise ValueError(f"secret {row}")
        return 0

    x, y = np.array([[1.0], [5.0]]), [0, 0]
    found = choose_hypothesis([picky, lambda _: 0], x, y, epsilon=50.0)
    assert found.number == 1

    def spoils(row):
        row[0] = 9.0
        return 0

    choose_hypothesis([spoils], x, y, epsilon=1.0)
    assert x[0, 0] == 1.0


def test_the_charge_comes_first(tmp_path, monkeypatch):
    read = []
    real = _finite_class._right
    monkeypatch.setattr(_finite_class, "_right", lambda *a: read.append(1) or real(*a))
    x, y = np.zeros((3, 1)), [0, 1, 0]
    with Ledger.create(tmp_path / "study.ledger") as book:
        book.create_dataset("people", epsilon=1, unit="row")
        asked = {"epsilon": 0.7, "ledger": book, "dataset": "people"}
        choose_hypothesis(CUTS, x, y, **asked)
        assert len(read) == 30
        with pytest.raises(BudgetExceeded):
            choose_hypothesis(CUTS, x, y, **asked)
        assert len(read) == 30


def test_wrong_arguments_are_named():
    x, y = np.zeros((3, 1)), [0, 1, 0]
    with pytest.raises(InvalidValue, match="hypotheses"):
        choose_hypothesis([], x, y, epsilon=1.0)
    with pytest.raises(InvalidValue, match="hypotheses"):
        choose_hypothesis(["x"], x, y, epsilon=1.0)
    with pytest.raises(InvalidValue, match="y = "):
        choose_hypothesis(CUTS, x, y[:2], epsilon=1.0)
    with pytest.raises(InvalidValue, match="epsilon"):
        rows_needed(10, alpha=0.1, epsilon=0.0)
    with pytest.raises(NotApplicable, match="2"):
        rows_needed(10, alpha=1e-12, epsilon=1.0)


@pytest.mark.parametrize("odd", ["x", None, 1e400, [1, 2]])
def test_an_odd_cell_in_a_list_changes_no_other_row(odd, monkeypatch):
    """numpy makes texts of a whole list for one text: every function would have failed."""
    errors = []
    monkeypatch.setattr(
        _finite_class,
        "exponential_choice",
        lambda scores, **_: errors.append(list(scores)) or Release(0, PureDP(1.0), {}),
    )
    rows, labels = [[value, 0] for value in range(10)], [int(value > 4) for value in range(10)]
    choose_hypothesis(CUTS, rows, labels, epsilon=1.0)
    choose_hypothesis(CUTS, [*rows, [9, odd]], [*labels, 1], epsilon=1.0)
    assert max(abs(a - b) for a, b in zip(*errors, strict=True)) <= 1
    with pytest.raises(InvalidValue, match="rows of one length"):
        choose_hypothesis(CUTS, [[1, 2], [3]], [0, 1], epsilon=1.0)


def test_a_warning_about_a_row_is_not_shown():
    def warns(row):
        if row[0] > 3:
            warnings.warn("a large one", UserWarning, stacklevel=1)
        return int(np.float64(1.0) / (row[0] - 5.0) > 0)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        choose_hypothesis([warns], np.array([[1.0], [5.0]]), [0, 0], epsilon=1.0)
    assert seen == []
