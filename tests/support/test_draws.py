"""What Hypothesis draws does not depend on the modules that happen to be loaded."""

from hypothesis.internal.conjecture.providers import GLOBAL_CONSTANTS, HypothesisProvider


def test_no_constants_are_read_off_the_source() -> None:
    assert len(HypothesisProvider(None)._local_constants) == 0
    assert len(GLOBAL_CONSTANTS) > 0  # the usual corner cases are drawn as ever
