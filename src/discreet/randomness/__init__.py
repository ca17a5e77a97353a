"""Exact and cryptographic randomness: the only place where private noise comes from.

- :func:`source` gives bits: the operating system's, or with ``insecure_seed=`` a
  reproducible stream whose ``provenance`` says so in everything that it touches.
  :func:`choose_source` reads the ``source=`` and ``insecure_seed=`` of a caller.
- :func:`uniform_integers`, :func:`permutation`, :func:`bernoulli`,
  :func:`bernoulli_exp`, :func:`enclosed_bernoulli`, :func:`binomial`,
  :func:`discrete_laplace`, :func:`discrete_gaussian` and :func:`select` have exactly the
  stated probabilities, for single draws and in bulk; they rest on the enclosures of
  :func:`exp_negative`.
- :func:`poisson`, :func:`skellam` and :func:`laplace_share` draw noise that adds up, for sums to
  which every participant brings a share.
- :func:`laplace_on_grid` and :func:`gaussian_on_grid` add such noise to real
  numbers on a declared grid; :func:`sensitivity_on_grid` is what to charge for.
- :class:`CorrelatedStream` makes Gaussian noise that is correlated over steps, with bounded memory,
  from a :class:`KeyedSource`, so that it can be made again.
- :class:`NormalStream` supplies Gaussian tensors for training from a cryptographic
  keystream; its page says what that protects against and what it does not.
- :func:`read_integer`, :func:`read_integers`, :func:`read_real`, :func:`read_reals` and
  :func:`read_row` take private numbers in, and never show them in an error;
  :func:`to_fraction` makes such a number exact.

Every function that draws takes ``source=``; without it the operating system is asked.
"""

from discreet.randomness._answers import (
    read_integer,
    read_integers,
    read_real,
    read_reals,
    read_row,
    to_fraction,
)
from discreet.randomness._correlated import CorrelatedStream
from discreet.randomness._discrete import binomial, discrete_gaussian, discrete_laplace
from discreet.randomness._enclosure import (
    bernoulli,
    bernoulli_exp,
    enclosed_bernoulli,
    exp_negative,
)
from discreet.randomness._grid import (
    GridRelease,
    check_granularity,
    default_granularity,
    gaussian_on_grid,
    laplace_on_grid,
    round_to_grid,
    sensitivity_on_grid,
)
from discreet.randomness._normals import NormalStream
from discreet.randomness._race import Race, select
from discreet.randomness._shares import laplace_share, poisson, skellam
from discreet.randomness._sources import (
    InsecureSeededSource,
    KeyedSource,
    Source,
    SystemSource,
    choose_source,
    permutation,
    source,
    uniform_integers,
)

__all__ = [
    "CorrelatedStream",
    "GridRelease",
    "InsecureSeededSource",
    "KeyedSource",
    "NormalStream",
    "Race",
    "Source",
    "SystemSource",
    "bernoulli",
    "bernoulli_exp",
    "binomial",
    "check_granularity",
    "choose_source",
    "default_granularity",
    "discrete_gaussian",
    "discrete_laplace",
    "enclosed_bernoulli",
    "exp_negative",
    "gaussian_on_grid",
    "laplace_on_grid",
    "laplace_share",
    "permutation",
    "poisson",
    "read_integer",
    "read_integers",
    "read_real",
    "read_reals",
    "read_row",
    "round_to_grid",
    "select",
    "sensitivity_on_grid",
    "skellam",
    "source",
    "to_fraction",
    "uniform_integers",
]
