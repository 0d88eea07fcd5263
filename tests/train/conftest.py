import pytest

from dovetail.testing.ranks import Followers


@pytest.fixture(scope="module")  # pipelines meet in groups of their own, and a process has one at a time
def followers():
    """One more rank for all tests here: it takes seconds to start."""
    with Followers(size=2) as followers:
        yield followers
