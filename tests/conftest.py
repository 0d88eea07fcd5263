"""For all tests: Hypothesis does not time examples, since machines differ and others use them too, and draws a third
of what it would, other ones in each run; and the user's key is one for the tests, not the user's own."""

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import s3_server
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
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
    "test_model_server",
    "test_approximations",
    "test_guard",
    "test_run_search",
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


@pytest.fixture(scope="session")
def s3_proxy() -> Iterator[s3_server.FaultyProxy]:
    """A server of S3's protocol, in a process of its own, behind a proxy that spoils what it is told to: one for all
    tests of a session, since file systems stay connected to where they were made for."""
    with s3_server.serve_s3() as upstream, s3_server.FaultyProxy(upstream, s3_server.Faults()) as proxy:
        yield proxy


@pytest.fixture
def s3(s3_proxy: s3_server.FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3_server.FaultyProxy]:
    """That proxy, without faults until a test sets some, and where to find it in the environment."""
    for name, value in s3_server.environment(s3_proxy.address).items():
        monkeypatch.setenv(name, value)
    yield s3_proxy
    s3_proxy.faults, s3_proxy.is_out = s3_server.Faults(), False
    s3_proxy.counts.clear()
