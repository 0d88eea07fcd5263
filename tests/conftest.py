"""For all tests: Hypothesis does not time examples, since machines differ and others use them too; and the user's key
is one for the tests, not the user's own."""

import atexit
import gc
import os
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="dovetail-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests share a worker, and all that start Ray share one: two clusters of it leave no core for a test."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(str(item.path)))


def pytest_collection_finish() -> None:
    """What the imports made stays; to look through it after each order, as workers do, took seconds a test."""
    gc.freeze()
