"""Mechanisms: each call returns a value, its exact loss and where its noise came from."""

from discreet.mechanisms.counts import (
    NoisyFraction,
    laplace_count,
    laplace_fraction,
    laplace_histogram,
)
from discreet.mechanisms.distances import median, mode, most_votes
from discreet.mechanisms.exponential import exponential_choice, exponential_stream
from discreet.mechanisms.gaussian import (
    gaussian_integer,
    gaussian_integers,
    gaussian_real,
    gaussian_vector,
)
from discreet.mechanisms.halting import MechanismHalted
from discreet.mechanisms.laplace import (
    laplace_integer,
    laplace_integers,
    laplace_real,
    laplace_vector,
)
from discreet.mechanisms.multiplicative_weights import multiplicative_weights
from discreet.mechanisms.noisy_max import permute_and_flip, report_noisy_max
from discreet.mechanisms.release import Interval, Release
from discreet.mechanisms.response import (
    binary_estimate,
    binary_response,
    channel_epsilon,
    k_ary_estimate,
    k_ary_response,
    response_channel,
    two_coin_estimate,
    two_coin_response,
)
from discreet.mechanisms.response_estimate import Estimate
from discreet.mechanisms.selection import Selection, utility_bound
from discreet.mechanisms.small_database import evaluate_without_privacy, small_database
from discreet.mechanisms.sparse_vector import AboveThreshold, SparseVector
from discreet.mechanisms.stability import (
    FAIL,
    StableFunction,
    release_if_stable,
    stability_test,
)
from discreet.mechanisms.stable_vector import StableVector, stable_vector_plan
from discreet.mechanisms.subsample import (
    printed_subsampling,
    subsample_and_aggregate,
    subsample_and_aggregate_as_printed,
)
from discreet.mechanisms.truncated_beta import bernoulli_parameter

__all__ = [
    "FAIL",
    "AboveThreshold",
    "Estimate",
    "Interval",
    "MechanismHalted",
    "NoisyFraction",
    "Release",
    "Selection",
    "SparseVector",
    "StableFunction",
    "StableVector",
    "bernoulli_parameter",
    "binary_estimate",
    "binary_response",
    "channel_epsilon",
    "evaluate_without_privacy",
    "exponential_choice",
    "exponential_stream",
    "gaussian_integer",
    "gaussian_integers",
    "gaussian_real",
    "gaussian_vector",
    "k_ary_estimate",
    "k_ary_response",
    "laplace_count",
    "laplace_fraction",
    "laplace_histogram",
    "laplace_integer",
    "laplace_integers",
    "laplace_real",
    "laplace_vector",
    "median",
    "mode",
    "most_votes",
    "multiplicative_weights",
    "permute_and_flip",
    "printed_subsampling",
    "release_if_stable",
    "report_noisy_max",
    "response_channel",
    "small_database",
    "stability_test",
    "stable_vector_plan",
    "subsample_and_aggregate",
    "subsample_and_aggregate_as_printed",
    "two_coin_estimate",
    "two_coin_response",
    "utility_bound",
]
