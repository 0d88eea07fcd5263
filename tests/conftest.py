"""For all tests: Hypothesis does not time examples, since machines differ and others use them too; and the user's key
is one for the tests, not the user's own."""

import os
import tempfile

from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

_CONFIGURATION = tempfile.TemporaryDirectory(prefix="dovetail-tests-")
os.environ["XDG_CONFIG_HOME"] = _CONFIGURATION.name
