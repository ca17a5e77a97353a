"""Hypothesis profiles, and which tests are slow because of what they need."""

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=500)
settings.load_profile("repeatable")

# Fixtures that start a PostgreSQL server, a Java machine or a browser.
PROGRAMS = {"browser", "server", "spark"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the tests that need one of these programs to `make test-slow`."""
    for item in items:
        if PROGRAMS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
