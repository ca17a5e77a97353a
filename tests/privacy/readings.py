"""Every reading of every kind of loss, as recorded in ``recorded/readings.json``.

Ledgers hash what is written, and compare what a loss costs to a millionth. To record anew (only
where a change is meant, and with a line in the CHANGELOG)::

    python tests/privacy/readings.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import discreet.privacy as calculus
from discreet.errors import DiscreetError
from discreet.privacy import Filter, Loss, to_json

RECORDED = Path(__file__).parent / "recorded" / "readings.json"
ORDERS = [1.5, 2.0, 8.0, 64.0, 1000.0]
FILTERS = ("basic", "zcdp", "gdp", "rdp")

TURNED = (
    "from_pair([0.9, 0.1], [0.5, 0.5], relation='replace', oriented=True)"
    ".sample_without_replacement(sample=1, population=2)"
)
EXPRESSIONS = [
    "Gaussian(1.1)",
    "Gaussian(0.7, 'replace')",
    "Gaussian(1e-3)",
    "GDP(0.8)",
    "GDP(0.3, 'replace')",
    "Laplace(1.3)",
    "Laplace(20.0, 3.0)",
    "Laplace(0.3, relation='replace')",
    "DiscreteLaplace(0.3)",
    "DiscreteLaplace(7.0, 3)",
    "DiscreteLaplace(900.0, 5000)",
    "DiscreteGaussian(1.5)",
    "DiscreteGaussian(40.0, 3)",
    "DiscreteGaussian(30000.0, 9000)",
    "DiscreteGaussian(0.01)",
    "RandomizedResponse(1.0)",
    "RandomizedResponse(0.3)",
    "RandomizedResponse(2.0, 5)",
    "Exponential(0.7)",
    "Exponential(3.0, 'replace')",
    "PureDP(0.3)",
    "PureDP('1/7')",
    "PureDP(0)",
    "ApproxDP(1, 1e-6)",
    "ApproxDP('1/3', 0)",
    "ZCDP(0.02)",
    "RenyiDP((2.0, 8.0, 32.0), (0.01, 0.05, 0.3))",
    "from_pair([0.9, 0.1], [0.5, 0.5])",
    "from_pair([0.9, 0.1], [0.5, 0.5], oriented=True)",
    "from_pair([0.7, 0.2, 0.1], [0.2, 0.3, 0.5], relation='replace')",
    "from_pair([0.7, 0.3], [0.3, 0.7])",
    "from_pair([0.5, 0.5, 0.0], [0.4, 0.3, 0.3])",
    "from_pair([5e-324, 1.0], [1.0, 5e-324])",
    "100 * Gaussian(8.0)",
    "10 * PureDP(0.1)",
    "30 * Laplace(10.0)",
    "40 * RandomizedResponse(0.2)",
    "12 * Exponential(0.3)",
    "5 * ApproxDP(0.2, 1e-7)",
    "3 * from_pair([0.9, 0.1], [0.5, 0.5])",
    "6 * from_pair([0.9, 0.1], [0.5, 0.5], oriented=True)",
    "8 * DiscreteLaplace(5.0, 2)",
    "20 * DiscreteGaussian(9.0)",
    "4 * ZCDP(0.01) + RenyiDP((2.0, 8.0), (0.01, 0.05))",
    "Gaussian(5.0) + GDP(0.1)",
    "Gaussian(5.0) + Laplace(3.0) + 2 * PureDP(0.05)",
    "Gaussian(3.0) + ZCDP(0.01) + Laplace(5.0)",
    "Gaussian(1.1).poisson(rate=0.01)",
    "1000 * Gaussian(1.1).poisson(rate=0.01)",
    "200 * Gaussian(1.1).poisson(rate=0.01) + 100 * Gaussian(0.9).poisson(rate=0.02)",
    "50 * Gaussian(2.0).poisson(rate=0.05) + Laplace(10.0)",
    "GDP(0.8).poisson(rate=0.1)",
    "(2 * Gaussian(2.0)).poisson(rate=0.1)",
    "Gaussian(1.0).poisson(rate=0.5).poisson(rate=0.1)",
    "Gaussian(0.01).poisson(rate=0.1)",
    "Gaussian(1.0, 'replace').poisson(rate=0.1)",
    "500 * Gaussian(2.0, 'replace').poisson(rate=0.1)",
    "Gaussian(2.0).poisson(rate=0.1).group(3)",
    "20 * Gaussian(4.0).poisson(rate=0.05).group(4)",
    "Laplace(1.0).poisson(rate=0.1)",
    "10 * Laplace(2.0).poisson(rate=0.2)",
    "DiscreteLaplace(2.0, 3).poisson(rate=0.1)",
    "DiscreteGaussian(2.0).poisson(rate=0.1)",
    "DiscreteGaussian(0.01).poisson(rate=0.1)",
    "Exponential(1.0).poisson(rate=0.1)",
    "PureDP(0.7).poisson(rate='rate')",
    "ApproxDP(1, 1e-5).poisson(rate=0.1)",
    "4 * from_pair([0.9, 0.1], [0.5, 0.5]).poisson(rate=0.3)",
    "from_pair([0.9, 0.1], [0.5, 0.5], oriented=True).poisson(rate=0.3)",
    "Gaussian(1.0, 'replace').sample_without_replacement(sample=10, population=1000)",
    "30 * Gaussian(2.0, 'replace').sample_without_replacement(sample=10, population=1000)",
    "GDP(0.8, 'replace').sample_without_replacement(sample=3, population=100)",
    "Gaussian(0.01, 'replace').sample_without_replacement(sample=3, population=100)",
    "Laplace(1.0, relation='replace').sample_without_replacement(sample=1, population=10)",
    "DiscreteGaussian(3.0, 1, 'replace').sample_without_replacement(sample=1, population=10)",
    "DiscreteLaplace(3.0, 2, 'replace').sample_without_replacement(sample=1, population=10)",
    "RandomizedResponse(1.0).sample_without_replacement(sample=1, population=4)",
    "Exponential(1.0, 'replace').sample_without_replacement(sample=1, population=10)",
    "ZCDP(0.1, 'replace').sample_without_replacement(sample=1, population=10)",
    "RenyiDP((2, 8), (0.01, 0.05), 'replace').sample_without_replacement(sample=1, population=10)",
    TURNED,
    "(2 * Laplace(4.0, relation='replace')).sample_without_replacement(sample=1, population=10)",
    "Gaussian(2.0).group(3)",
    "Gaussian(2.0).group(2, relation='replace')",
    "GDP(0.5).group(3)",
    "Laplace(3.0).group(3)",
    "DiscreteLaplace(3.0).group(2)",
    "DiscreteGaussian(3.0).group(2)",
    "RandomizedResponse(0.5).group(3)",
    "Exponential(0.5).group(2)",
    "PureDP(0.2).group(2, relation='replace')",
    "ZCDP(0.02).group(3)",
    "ApproxDP(0.2, 1e-7).group(3)",
    "RenyiDP((2.0, 8.0, 32.0), (0.01, 0.05, 0.3)).group(2)",
    "from_pair([0.9, 0.1], [0.5, 0.5]).group(2)",
    "Laplace(3.0).poisson(rate=0.1).group(2)",
    "Laplace(3.0).poisson(rate=0.1).group(2, relation='replace')",
    "(3 * Laplace(9.0) + 2 * PureDP(0.1)).group(2)",
    "2 * Laplace(3.0).poisson(rate=0.1).group(2) + Gaussian(4.0).poisson(rate=0.1)",
    "ApproxDP(0.2, 1e-7).group(3).group(2)",
    "Gaussian(1.0).allocate(batches=20)",
    "3 * Gaussian(2.0).allocate(batches=10, steps=4) + Laplace(10.0)",
    "Gaussian(1.0).poisson(rate=0.05, at_most=55, population=1000)",
    "50 * Gaussian(2.0).poisson(rate=0.01, at_most=140, population=10000)",
    "10 * Gaussian(2.0, 'zero_out').poisson(rate=0.1)",
    "GaussianMixture(2.0, (0, 0.5, 1.7), (0.2, 0.5, 0.3))",
    "PureDP(0.5).best_of(10)",
    "Gaussian(10.0).best_of(10, 0.5)",
    "Gaussian(1.1).correlated(Strategy((0.8, 0.6)), steps=7, separation=3)",
    "Gaussian(2.0).correlated(Strategy((1.0, -0.5), inverse=True), steps=9, separation=3)",
    "Gaussian(1.3).correlated(Strategy((0.8, 0.6)), steps=9, rate=0.2) + Laplace(10.0)",
    "RandomizedResponse(1.0).shuffled(population=40)",
    "Skellam(1e4, 10.0, 30.0)",
    "SummedDiscreteGaussian(100.0, 20, 10.0, 30.0, 16)",
]


def make(expression: str) -> Loss:
    """The loss that an expression describes."""
    text = expression.replace("'rate'", "0.3")
    return eval(text, {name: getattr(calculus, name) for name in calculus.__all__})  # type: ignore[no-any-return]


def plain(value: Any) -> Any:
    """Exact text of numbers, also of infinities and fractions."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(inner) for inner in value]
    if isinstance(value, (float, np.floating)):
        return repr(float(value))
    return value if isinstance(value, (bool, int)) else str(value)


def reading(read: Callable[[], Any]) -> Any:
    """What a reading says, or why it is refused."""
    try:
        return plain(read())
    except DiscreetError as error:
        return type(error).__name__


def charged(loss: Loss, kind: str) -> dict[str, Any]:
    """What a filter of this kind charges, exactly; a claim too where there is a delta."""
    orders = ORDERS if kind == "rdp" else None
    budget = Filter(epsilon=1e6, delta=0.5, kind=kind, relation=loss.relation, orders=orders)
    return dict(budget.costs(loss))


def claimed(loss: Loss) -> dict[str, Any]:
    """What a plan charged at a delta costs."""
    budget = Filter(epsilon=1e6, delta=0.5, kind="basic", relation=loss.relation)
    budget.charge(loss, delta=1e-5)
    return dict(budget.spent)


def readings(loss: Loss) -> dict[str, Any]:
    """All readings of one loss; ``charges`` is what ledgers compare exactly."""
    accountants = [name for name in calculus.ACCOUNTANTS if name not in ("pld", "best")]
    return {
        "repr": repr(loss),
        "json": to_json(loss)["loss"],
        "charges": {kind: reading(lambda k=kind: charged(loss, k)) for kind in FILTERS},
        "claim": reading(lambda: claimed(loss)),
        "pure": reading(lambda: list(loss.epsilon_bounds(delta=0))),
        "epsilon": reading(lambda: list(loss.epsilon_bounds(delta=1e-5))),
        "best": reading(lambda: loss.epsilon(delta=1e-5)),
        "accountants": {
            name: reading(lambda n=name: loss.epsilon(delta=1e-5, accountant=n))
            for name in accountants
        },
        "delta": reading(lambda: list(loss.delta_bounds(epsilon=0.3))),
        "far delta": reading(lambda: list(loss.delta_bounds(epsilon=1.5))),
        "rdp": reading(lambda: loss.rdp(ORDERS)),
        "tradeoff": reading(lambda: loss.tradeoff([0.01, 0.3])),
        "posterior": reading(lambda: loss.posterior(prior=0.2)),
    }


def record() -> dict[str, Any]:
    """Everything that the file holds."""
    return {"losses": {text: readings(make(text)) for text in EXPRESSIONS}}


def write(found: dict[str, Any]) -> None:
    """Write the file, one loss a line."""
    lines = [f"{json.dumps(text)}: {json.dumps(row)}" for text, row in found["losses"].items()]
    RECORDED.write_text('{"losses": {\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    write(record())
