"""Exact and cryptographic randomness: the only place where private noise comes from.

- :func:`source` gives bits: the operating system's, or with ``insecure_seed=`` a
  reproducible stream whose ``provenance`` says so in everything that it touches.
- :func:`uniform_integers`, :func:`permutation`, :func:`bernoulli`,
  :func:`bernoulli_exp`, :func:`discrete_laplace`, :func:`discrete_gaussian` and
  :func:`select` have exactly the stated probabilities, for single draws and in bulk.
- :func:`laplace_on_grid` and :func:`gaussian_on_grid` add such noise to real
  numbers on a declared grid; :func:`sensitivity_on_grid` is what to charge for.
- :class:`NormalStream` supplies Gaussian tensors for training from a cryptographic
  keystream; its page says what that protects against and what it does not.

Every function takes ``source=``; without it the operating system is asked.
"""

from discreet.randomness.coins import bernoulli, bernoulli_exp
from discreet.randomness.gaussian import discrete_gaussian
from discreet.randomness.grid import (
    GridRelease,
    default_granularity,
    gaussian_on_grid,
    laplace_on_grid,
    round_to_grid,
    sensitivity_on_grid,
)
from discreet.randomness.integers import permutation, uniform_integers
from discreet.randomness.laplace import discrete_laplace
from discreet.randomness.race import Race, select
from discreet.randomness.sources import InsecureSeededSource, Source, SystemSource, source
from discreet.randomness.tensor import NormalStream

__all__ = [
    "GridRelease",
    "InsecureSeededSource",
    "NormalStream",
    "Race",
    "Source",
    "SystemSource",
    "bernoulli",
    "bernoulli_exp",
    "default_granularity",
    "discrete_gaussian",
    "discrete_laplace",
    "gaussian_on_grid",
    "laplace_on_grid",
    "permutation",
    "round_to_grid",
    "select",
    "sensitivity_on_grid",
    "source",
    "uniform_integers",
]
