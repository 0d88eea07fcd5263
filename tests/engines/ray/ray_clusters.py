"""Ray clusters of several nodes on this machine, for tests, also where many others use its cores."""

import collections
import contextlib
import dataclasses
import importlib.util
import time

import pytest

from dovetail import describe
from dovetail.engines.ray import connected, survey
from dovetail.engines.ray.connection import OBJECT_STORE_BYTES
from dovetail.vocabulary import Cluster

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="needs Ray: pip install 'dovetail[ray]'")
patiently = pytest.mark.timeout(2400)  # the first test of a cluster starts it

NODE = {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
# Nobody asks its autoscaler for anything, nor reads what it collects of logs.
_HEAD = {"no_monitor": True, "include_log_monitor": False}

PATIENCE_SECONDS = 500.0
# What a user is told after a minute, a machine with ten times more processes than cores may take longer for.
_LIMITS = {
    "arrivals.JOIN_SECONDS",
    "cluster_survey.LOOK_SECONDS",
    "host_link.START_SECONDS",
    "node_links.PROBE_SECONDS",
    "ray_engine.RESERVE_SECONDS",
    "warming.WARM_SECONDS",
}


class SlowClock:
    """The module `time`, whose monotonic clock goes so slowly that Ray, which waits for half a minute for a node to
    start and cannot be told otherwise, waits for as long as tests do."""

    def __getattr__(self, name):
        return getattr(time, name)

    def monotonic(self):
        return time.monotonic() * 30.0 / PATIENCE_SECONDS


@contextlib.contextmanager
def with_token(home):
    """Ray that is started in this asks for a token, its processes yield to no others, and nobody is impatient."""
    token = home / "token"
    token.write_text("0123456789abcdef" * 4)
    token.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_gcs_server_port_wait_time_s", f"{PATIENCE_SECONDS:.0f}")
        patch.setenv("RAY_worker_niceness", "0")  # 15 by itself: beside other tests they would hardly run
        patch.setattr("ray._private.node.time", SlowClock())
        patch.setattr("ray._private.node.Node.start_api_server", lambda node, **options: None)  # nobody looks at it
        for limit in _LIMITS:
            patch.setattr(f"dovetail.engines.ray.{limit}", PATIENCE_SECONDS)
        yield


@dataclasses.dataclass
class Ray:
    """A cluster, and what was found of it."""

    processes: object
    cluster: Cluster
    nodes: dict

    def part(self, *names):
        """Some of its nodes as a cluster of their own."""
        devices = tuple(device for device in self.cluster.devices if device.node in names)
        nodes = tuple(node for node in self.cluster.nodes if node.name in names)
        return dataclasses.replace(self.cluster, nodes=nodes, devices=devices), {n: self.nodes[n] for n in names}

    def raylet(self, name):
        """The process without which a node is none."""
        (node,) = [node for node in self.processes.worker_nodes if node.node_id == self.nodes[name]]
        return node.all_processes["raylet"][0].process.pid


class SharedNodes:
    """One Ray cluster, to which this process is connected, for all tests of this folder: it takes ten seconds of a core
    to start one, and four for each of its nodes."""

    def __init__(self, home):
        self._home, self._stack = home, contextlib.ExitStack()
        self._head, self._processes, self._others, self._found = 0, None, {}, None

    def close(self):
        """End it, before another one is started, or when nobody needs it any more."""
        self._stack.close()
        self._head, self._processes, self._others, self._found = 0, None, {}, None

    def provide(self, head, *others):
        """Ray's cluster of nodes of so many cores, and no others."""
        if head != self._head:
            self.close()
            self._start(head)
        for node in [node for node in self._processes.worker_nodes if not self._is_wanted(node, others)]:
            self._processes.remove_node(node)
            self._others.pop(node, None)
        for count in (collections.Counter(others) - collections.Counter(self._others.values())).elements():
            self._others[self._processes.add_node(num_cpus=count, **NODE)] = count
        numbers = {node.node_id for node in (self._processes.head_node, *self._others)}
        wait_for_nodes(numbers)
        return self._processes

    def survey(self, *cores):
        """The same as the cluster that Dovetail sees."""
        processes = self.provide(*cores)
        if self._found is None or set(self._found.nodes.values()) != {
            node.node_id for node in (processes.head_node, *processes.worker_nodes)
        }:
            self._found = Ray(processes, *survey(self._home))
        return self._found

    def _start(self, head):
        self._stack.enter_context(with_token(self._home))
        from ray.cluster_utils import Cluster as Processes  # reads the environment

        options = {"num_cpus": head, **NODE, **_HEAD}
        self._processes, self._head = Processes(initialize_head=True, head_node_args=options), head
        self._stack.callback(self._processes.shutdown)
        program = describe.program("tests.engines.programs:steady")
        self._stack.enter_context(connected(self._processes.address, programs=[program], home=self._home))

    def _is_wanted(self, node, others):
        """Whether a node is there, and none too many: tests kill some, and add some."""
        raylets = node.all_processes.get("raylet", [])
        is_alive = bool(raylets) and raylets[0].process.poll() is None
        alike = [other for other, count in self._others.items() if count == self._others.get(node)]
        return is_alive and node in alike[: others.count(self._others.get(node))]


def wait_for_nodes(numbers):
    """Until Ray knows that these nodes are there, and that all others are gone."""
    import ray

    until = time.monotonic() + PATIENCE_SECONDS
    while {node["NodeID"] for node in ray.nodes() if node["Alive"]} != numbers:
        assert time.monotonic() < until, ray.nodes()
        time.sleep(0.1)
