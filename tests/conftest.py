"""For all tests: Hypothesis does not time examples, since machines differ and others use them too; and the user's key
is one for the tests, not the user's own."""

import atexit
import gc
import os
import shutil
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="dovetail-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)


# Files with few tests that take minutes together: begun last, one would be waited for by idle workers.
LONG = (
    "test_daemon",
    "test_page_live",
    "test_crash_matrix",
    "test_commands",
    "test_ray",
    "test_notebooks",
    "test_lanes",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first."""
    items.sort(key=lambda item: not item.path.stem.startswith(LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests share a worker, and all that start Ray share one: two clusters of it leave no core for a test."""
    from xdist.scheduler import LoadScopeScheduling

    class FileScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.split("::", 1)[0]
            return "ray" if "test_ray" in path else path

    config.option.loadscopereorder = False
    return FileScheduling(config, log)


def pytest_collection_finish() -> None:
    """What the imports made stays; to look through it after each order, as workers do, took seconds a test."""
    gc.freeze()
