"""For all tests: Hypothesis does not time examples, since machines differ and others use them too; and the user's key
is one for the tests, not the user's own."""

import atexit
import gc
import os
import shutil
import tempfile

from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="dovetail-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)


def pytest_collection_finish() -> None:
    """What the imports made stays; to look through it after each order, as workers do, took seconds a test."""
    gc.freeze()
