"""Ranks for the tests of a module. A process can be rank 0 of one group at a time, so no module asks for both."""

import pytest

from dovetail.testing.ranks import Followers


@pytest.fixture(scope="module")
def followers():
    """One more rank."""
    with Followers(size=2, patience_seconds=120.0) as followers:
        yield followers


@pytest.fixture(scope="module")
def four():
    """Three more ranks."""
    with Followers(size=4, patience_seconds=120.0) as followers:
        yield followers
