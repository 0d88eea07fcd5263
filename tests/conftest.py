"""For all tests: Hypothesis does not time examples, since machines differ and others use them too."""

import gc

from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    """What the imports made stays; to look through it after each order, as workers do, took seconds a test."""
    gc.freeze()
