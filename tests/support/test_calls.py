"""The count of calls sees work, and lets the block's own error through."""

import pytest

from support.calls import at_most_calls


def test_calls_are_counted() -> None:
    with at_most_calls(120):
        [abs(n) for n in range(100)]
    with pytest.raises(AssertionError, match="more than 99"), at_most_calls(99):
        [abs(n) for n in range(100)]
    with pytest.raises(ZeroDivisionError), at_most_calls(99):
        1 / 0  # noqa: B018
    with pytest.raises(AssertionError, match="more than"), at_most_calls(99):
        [1 / (99 - abs(n)) for n in range(100)]  # the error comes after too many calls
