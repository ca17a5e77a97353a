"""Bad input to Laplace and Gaussian mechanisms: refused before a byte is drawn, values unseen."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from discreet.errors import InvalidValue
from discreet.mechanisms import (
    gaussian_integer,
    gaussian_integers,
    gaussian_real,
    gaussian_vector,
    laplace_count,
    laplace_integer,
    laplace_integers,
    laplace_real,
    laplace_vector,
)
from randomness.scripted_source import ScriptedSource

Mechanism = Callable[..., object]
LAPLACE = {laplace_integer: 5, laplace_real: 0.5, laplace_integers: [5], laplace_vector: [0.5]}
GAUSSIAN = {gaussian_integer: 5, gaussian_real: 0.5, gaussian_integers: [5], gaussian_vector: [0.5]}
NOISE: dict[Mechanism, str] = {
    **dict.fromkeys(LAPLACE, "scale"),
    **dict.fromkeys(GAUSSIAN, "stddev"),
}
VALUES: dict[Mechanism, object] = {**LAPLACE, **GAUSSIAN}
NOT_POSITIVE = [0, -1, -0.5, 0.0, math.nan, math.inf, -math.inf, True, "x", b"1", [1], 1j]


def refused(argument: str, call: Callable[[], object]) -> str:
    with pytest.raises(InvalidValue) as caught:
        call()
    assert caught.value.argument == argument
    return str(caught.value)


@pytest.mark.parametrize("mechanism", VALUES)
@pytest.mark.parametrize("wrong", NOT_POSITIVE, ids=repr)
def test_noise_and_sensitivity_are_positive_numbers(mechanism: Mechanism, wrong: object) -> None:
    value, noise = VALUES[mechanism], NOISE[mechanism]
    bits = ScriptedSource()
    refused(noise, lambda: mechanism(value, sensitivity=1, source=bits, **{noise: wrong}))
    refused("sensitivity", lambda: mechanism(value, sensitivity=wrong, source=bits, **{noise: 1}))
    more = {"delta": 1e-5} if mechanism in GAUSSIAN else {}
    refused("epsilon", lambda: mechanism(value, sensitivity=1, epsilon=wrong, source=bits, **more))


@pytest.mark.parametrize("mechanism", VALUES)
def test_exactly_one_way_to_set_the_noise(mechanism: Mechanism) -> None:
    value, noise = VALUES[mechanism], NOISE[mechanism]
    for both in ({}, {noise: 1, "epsilon": 1.0}):
        with pytest.raises(InvalidValue, match=f"exactly one of .*{noise}"):
            mechanism(value, sensitivity=1, source=ScriptedSource(), **both)


@pytest.mark.parametrize("mechanism", VALUES)
def test_relation_seed_and_source(mechanism: Mechanism) -> None:
    value, noise = VALUES[mechanism], {NOISE[mechanism]: 1}
    refused("relation", lambda: mechanism(value, sensitivity=1, relation="swap", **noise))
    bits = ScriptedSource()
    refused(
        "insecure_seed",
        lambda: mechanism(value, sensitivity=1, insecure_seed=1, source=bits, **noise),
    )
    refused("insecure_seed", lambda: mechanism(value, sensitivity=1, insecure_seed=0.5, **noise))
    refused("source", lambda: mechanism(value, sensitivity=1, source=7, **noise))


SCALAR_SECRETS = [
    math.nan,
    math.inf,
    -math.inf,
    True,
    np.True_,
    None,
    "7",
    b"7",
    1j,
    [7],
    np.zeros(2),
]
VECTOR_SECRETS = [[], [math.nan], [1.0, math.inf], [True], ["7"], None, "7", 7, [1j], [[1], [1, 2]]]


@pytest.mark.parametrize("mechanism", [m for m in VALUES if not isinstance(VALUES[m], list)])
@pytest.mark.parametrize("secret", SCALAR_SECRETS, ids=repr)
def test_a_wrong_value_is_refused_unseen(mechanism: Mechanism, secret: object) -> None:
    message = refused(
        "value",
        lambda: mechanism(secret, sensitivity=1, source=ScriptedSource(), **{NOISE[mechanism]: 1}),
    )
    assert message.startswith("value = 'withheld': expected ")


@pytest.mark.parametrize("mechanism", [m for m in VALUES if isinstance(VALUES[m], list)])
@pytest.mark.parametrize("secret", VECTOR_SECRETS, ids=repr)
def test_wrong_values_are_refused_unseen(mechanism: Mechanism, secret: object) -> None:
    message = refused(
        "values",
        lambda: mechanism(secret, sensitivity=1, source=ScriptedSource(), **{NOISE[mechanism]: 1}),
    )
    assert message.startswith("values = 'withheld': expected ")


@pytest.mark.parametrize("mechanism", [laplace_integers, gaussian_integers])
@pytest.mark.parametrize(
    "secret", [[1.0], [2**70], np.array([1], dtype=np.uint64), np.array([0.5])], ids=repr
)
def test_integers_fit_64_bits(mechanism: Mechanism, secret: object) -> None:
    noise = {NOISE[mechanism]: 1}
    refused("values", lambda: mechanism(secret, sensitivity=1, source=ScriptedSource(), **noise))


@pytest.mark.parametrize("mechanism", [laplace_integer, gaussian_integer])
def test_integers_are_not_floats(mechanism: Mechanism) -> None:
    noise = {NOISE[mechanism]: 1}
    refused("value", lambda: mechanism(5.0, sensitivity=1, source=ScriptedSource(), **noise))
    refused("sensitivity", lambda: mechanism(5, sensitivity=1.5, source=ScriptedSource(), **noise))


@pytest.mark.parametrize(
    "mechanism", [laplace_real, laplace_vector, gaussian_real, gaussian_vector]
)
@pytest.mark.parametrize("wrong", [0, 3, 0.1, -1, math.nan, 2.0**-1074, "1e400", True], ids=repr)
def test_granularity_is_a_power_of_two(mechanism: Mechanism, wrong: object) -> None:
    value, noise = VALUES[mechanism], {NOISE[mechanism]: 1}
    refused(
        "granularity",
        lambda: mechanism(
            value, sensitivity=1, granularity=wrong, source=ScriptedSource(), **noise
        ),
    )


@pytest.mark.parametrize("mechanism", [laplace_vector, gaussian_vector, gaussian_integers])
@pytest.mark.parametrize("changed", [0, 3, 1.0, True])
def test_changed_counts_coordinates(mechanism: Mechanism, changed: object) -> None:
    noise = {NOISE[mechanism]: 1}
    refused(
        "changed",
        lambda: mechanism([1, 2], sensitivity=1, changed=changed, source=ScriptedSource(), **noise),
    )


@pytest.mark.parametrize("mechanism", VALUES)
def test_subnormal_and_overflowing_parameters(mechanism: Mechanism) -> None:
    value, noise = VALUES[mechanism], NOISE[mechanism]
    # A Gaussian of tiny epsilon still needs a finite amount of noise, a Laplace does not.
    tiny = [] if mechanism in GAUSSIAN else [{"epsilon": 5e-324}]
    for case in [*tiny, {noise: "1e400"}]:
        with pytest.raises(InvalidValue):
            mechanism(value, sensitivity=1, source=ScriptedSource(), **case)
    with pytest.raises(InvalidValue):
        mechanism(value, sensitivity=10**400, source=ScriptedSource(), **{noise: 1})


def test_the_error_of_a_count_does_not_name_it() -> None:
    message = refused("count", lambda: laplace_count(-17, epsilon=1, source=ScriptedSource()))
    assert "17" not in message
