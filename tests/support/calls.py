"""Work counted in function calls, which a busy machine does not change."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most_calls(most: int) -> Iterator[None]:
    """Fail if the block makes more calls than this, of Python or of C functions."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
        assert count <= most, f"{count} calls, more than {most}"
