"""Nodes that join, are given notice and vanish, while a controller trains on them: real Ray nodes on this machine."""

import contextlib
import dataclasses
import importlib.util
import time

import pytest

from dovetail import describe
from dovetail.control import Controller, Settings
from dovetail.engines import LocalEngine
from dovetail.engines.ray import RayEngine, connected, survey
from dovetail.engines.ray.connection import OBJECT_STORE_BYTES
from dovetail.metrics.attendance import fold_attendance, node_of
from dovetail.store import Store
from tests.engines.test_ray import environment

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'dovetail[ray]'"),
]
SEEDS, STEPS = 5, 1000
NODE = {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False, "num_cpus": 1}


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """A Ray cluster of one node to which this process is connected, with a token."""
    home = tmp_path_factory.mktemp("ray")
    token = home / "token"
    token.write_text("0123456789abcdef" * 4)
    token.chmod(0o600)
    impatient = {"_system_config": {"health_check_period_ms": 1000, "health_check_failure_threshold": 6}}
    with environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token), RAY_USAGE_STATS_ENABLED="0"):
        from ray.cluster_utils import Cluster as RayCluster  # reads the environment

        processes = RayCluster(initialize_head=True, head_node_args={**NODE, **impatient})
        try:
            with connected(processes.address, programs=[describe.program("tests.engines.programs:steady")], home=home):
                yield processes
        finally:
            processes.shutdown()


def drain(node, *, seconds):
    """Give a node the notice that a reclaimed spot node is given."""
    import ray
    from ray._raylet import GcsClient
    from ray.core.generated import autoscaler_pb2

    client = GcsClient(address=ray.get_runtime_context().gcs_address)
    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    deadline = int((time.time() + seconds) * 1000)
    accepted, why = client.drain_node(node.node_id, reason, "reclaimed", deadline)
    assert accepted, why


class Script:
    """Does one thing after another to the nodes, each when it is seen that the one before was taken up."""

    def __init__(self, machines):
        self.machines, self.nodes, self.stage = machines, [], 0

    def __call__(self, controller):
        present = {device.node for device in controller.cluster.devices}
        running = [one for one in controller.progress.values() if one.status == "running"]
        busy = {node_of(one.spans[-1].devices[0]) for one in running}
        trains = {node_of(one.spans[-1].devices[0]) for one in running if one.step}
        if self.stage == 0 and controller.phase == "running" and busy:
            self.do(self.join, self.join)
        elif self.stage == 1 and busy >= {"n0", "n1", "n2"}:
            self.do(lambda: drain(self.nodes[0], seconds=6))
        elif self.stage == 2 and len(present) == 2 and trains >= present:
            self.do(lambda: self.machines.remove_node(self.nodes[1], allow_graceful=False))

    def join(self):
        self.nodes.append(self.machines.add_node(**NODE))

    def do(self, *deeds):
        self.stage += 1
        for deed in deeds:
            deed()


def sweep(*, seconds):
    return describe.grid("tests.engines.programs:paced", seed=list(range(SEEDS)), seconds=[seconds], steps=STEPS)


def norms(progress):
    return [one.metrics["norm"] for one in progress.values()]


@pytest.mark.slow  # hosts of joined nodes take their time to start
def test_a_sweep_uses_who_joins_and_loses_nothing_with_who_leaves(machines, tmp_path):
    cluster, numbers = survey(tmp_path)
    engine = RayEngine(cluster, nodes=numbers, home=tmp_path)
    script = Script(machines)
    with contextlib.closing(engine), Store(tmp_path, write=True) as store:
        found = run(sweep(seconds=0.01), cluster, store, engine, observe=script)
        events = [event for _, event in store.events()]
    assert script.stage == 3
    attendance = fold_attendance(events)
    assert sorted(one.status for one in attendance.values()) == ["gone", "gone", "there"]
    (noticed,) = [event for event in events if event.kind == "leaving"]
    assert attendance[noticed.node].notice_seconds == noticed.at_seconds
    where = {}
    for event in events:
        if event.kind == "started":
            where[event.task, event.attempt] = event.devices
        elif event.kind == "lost" and event.attempt:  # by whoever vanished, not by whoever was given notice
            assert where[event.task, event.attempt] != (f"{noticed.node}:0",)
        elif event.kind == "stopped":
            assert f"node {noticed.node} leaves" in event.reason
    engine = LocalEngine(cluster, home=tmp_path / "local")
    with contextlib.closing(engine), Store(tmp_path / "local", write=True) as store:
        alone = run(sweep(seconds=0.0), cluster, store, engine)
    assert norms(found) == norms(alone)


def run(workload, cluster, store, engine, **options):
    settings = Settings(save_every_seconds=1.0, exact=True)
    workload = dataclasses.replace(workload, techniques=("resident",))
    controller = Controller(workload, cluster=cluster, store=store, engine=engine, settings=settings, **options)
    controller.reconcile()
    controller.run()
    assert {one.status for one in controller.progress.values()} == {"finished"}
    return controller.progress
