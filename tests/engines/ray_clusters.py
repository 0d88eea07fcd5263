"""Ray clusters of several nodes on this machine, for tests."""

import contextlib
import importlib.util

import pytest

from dovetail import describe
from dovetail.engines.ray import connected
from dovetail.engines.ray.connection import OBJECT_STORE_BYTES

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="needs Ray: pip install 'dovetail[ray]'")

NODE = {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
# A node is missed after six seconds instead of fifteen; after two, a busy machine's were.
_IMPATIENT = {"_system_config": {"health_check_period_ms": 1000, "health_check_failure_threshold": 6}}


@contextlib.contextmanager
def with_token(home):
    """Ray that is started in this asks for a token."""
    token = home / "token"
    token.write_text("0123456789abcdef" * 4)
    token.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield


@contextlib.contextmanager
def ray_nodes(home, *cores):
    """Nodes of so many cores, the first of which is the head, to which this process is connected, with a token."""
    with with_token(home):
        from ray.cluster_utils import Cluster  # reads the environment

        head, *others = cores
        processes = Cluster(initialize_head=True, head_node_args={"num_cpus": head, **NODE, **_IMPATIENT})
        try:
            for count in others:
                processes.add_node(num_cpus=count, **NODE)
            with connected(processes.address, programs=[describe.program("tests.engines.programs:steady")], home=home):
                yield processes
        finally:
            processes.shutdown()
