"""docs/theorems.md, written from the docstrings of the theorems.

To write it anew::

    python tests/privacy/theorems_page.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from discreet.privacy import theorems

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "theorems.md"

# Each topic: its heading, and the losses and mechanisms that rest on it.
TOPICS = {
    "_meaning": ("What a guarantee means for a person", "`Loss.posterior`, `Loss.tradeoff`"),
    "_divergences": ("Divergences", "`FinitePair`, `mechanisms.randomized_response`"),
    "_composition": ("Groups and composition", "`Composition`, `Grouped`"),
    "_sampling": ("Sampling", "`PoissonSampled`, `SampledWithoutReplacement`, `Allocated`"),
    "_correlation": ("Correlated noise", "`Correlated`, `Strategy`, `discreet.learn.dpsgd.Plan`"),
    "_distributed": ("Noise that participants add", "`Skellam`, `SummedDiscreteGaussian`"),
    "_gaussian": ("Gaussian noise", "`Gaussian`, `GDP`"),
    "_conversions": (
        "Conversions",
        "`PureDP`, `ApproxDP`, `ZCDP`, `RenyiDP`, `Laplace`, `Exponential`, `RandomizedResponse`",
    ),
}
# Definitions, inverses of a cited theorem, and steps that the docstring proves.
OWN = "definition, or proved in its docstring"
NEEDS_NO_PAPER = {
    "advantage", "amplification_linear", "amplification_teaching", "bayes_error",
    "best_accuracy", "bounded_range_from_pure", "channel_epsilon", "dobrushin", "e_gamma",
    "expected_cost", "explain", "gdp_from_pure", "group_approx_tight", "hockey_stick",
    "laplace_delta", "loss_tail", "optimal_composition_epsilon", "gaussian_classical_epsilon",
    "gaussian_epsilon", "gaussian_mu", "inverse_toeplitz", "majorant", "moments_to_epsilon",
    "naive_dpsgd",
    "poisson_replace_delta", "posterior", "prefix_errors",
    "posterior_interval", "posterior_interval_loose", "posterior_with_delta", "pure_delta",
    "pure_from_bounded_range", "randomized_response_delta", "rdp_from_moment",
    "rdp_randomized_response", "rdp_to_delta_mironov", "renyi", "total_variation",
    "two_coin_posterior",
}  # fmt: skip

NAME = r"[A-Z][a-z]+(?:-[A-Z][a-z]+)?"
CITATION = re.compile(
    rf"{NAME}(?:(?:, and |, | and ){NAME})*(?: et al\.)?,? (?:19|20)\d\d"
    r"(?:, (?:theorem|proposition|corollary|lemma|table) [\w.]*\w)?"
)


def functions(module: ModuleType) -> list[tuple[str, Callable[..., object]]]:
    """The public functions of a module of theorems, in their order in the file."""
    found = [
        (name, getattr(module, name))
        for name in module.__all__
        if inspect.isfunction(getattr(module, name))
    ]
    return sorted(found, key=lambda item: (item[1].__module__, item[1].__code__.co_firstlineno))


def sources(function: Callable[..., object]) -> list[str]:
    """The papers that a docstring cites."""
    text = " ".join((inspect.getdoc(function) or "").split(">>>")[0].split())
    return list(dict.fromkeys(CITATION.findall(text)))


def claim(function: Callable[..., object]) -> str:
    """The first line of a docstring, without its source."""
    line = (inspect.getdoc(function) or "").splitlines()[0]
    line = re.sub(r":func:`(\w+)`", r"`\1`", line.removeprefix("Return ").replace("``", "`"))
    for source in CITATION.findall(line):
        line = line.replace(f" ({source})", "").replace(f", {source}", "")
    return line.rstrip(".").replace("|", "\\|").replace("*", "\\*")


def faults(module: ModuleType) -> list[str]:
    """Theorems without a source, or without a test that names them."""
    found = []
    for name, function in functions(module):
        if not sources(function) and name not in NEEDS_NO_PAPER:
            found.append(f"{name} cites nothing")
        if not tests(name, function):
            found.append(f"no test names {name}")
    return found


def tests(name: str, function: Callable[..., object]) -> str:
    """The test of a theorem: that of its topic, if it names it."""
    topic = function.__module__.rpartition(".")[2]
    path = ROOT / "tests" / "privacy" / f"test{topic}.py"
    for place in [path, *sorted(path.parent.glob("test_*.py"))]:
        if place.exists() and re.search(rf"\b{name}\b", place.read_text(encoding="utf-8")):
            return place.name
    return ""


def page(module: ModuleType = theorems) -> str:
    """The whole page."""
    lines = [
        "# Theorems",
        "",
        "Every theorem as a function of numbers (`discreet.privacy.theorems`), with its source,",
        "what rests on it, and the test that judges it. A topic names three files:",
        "`privacy/theorems/_topic.py` (numbers in, numbers out), `privacy/_topic.py` (the losses)",
        "and `tests/privacy/test_topic.py`. This page is written by",
        "`tests/privacy/theorems_page.py`.",
    ]
    last = ""
    for name, function in functions(module):
        topic = function.__module__.rpartition(".")[2]
        if topic != last:
            heading, used = TOPICS[topic]
            lines += ["", f"## {heading}", "", f"`theorems/{topic}.py`; used by {used}.", ""]
            lines += ["| function | returns | source | test |", "|---|---|---|---|"]
            last = topic
        source = "; ".join(sources(function)) or OWN
        lines.append(f"| `{name}` | {claim(function)} | {source} | `{tests(name, function)}` |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
