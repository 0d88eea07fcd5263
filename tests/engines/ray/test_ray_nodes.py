"""Nodes that join, are given notice and vanish, while a controller trains on them: real Ray nodes on this machine."""

import contextlib
import dataclasses
import os
import time

import pytest

from dovetail import describe
from dovetail.control import Controller, Settings
from dovetail.describe.markets import parse_time, show_time
from dovetail.engines import LocalEngine
from dovetail.engines.ray import RayEngine, survey
from dovetail.metrics.attendance import fold_attendance, node_of
from dovetail.store import Store
from tests.cli.processes import dovetail
from tests.engines.ray.ray_clusters import NODE, PATIENCE_SECONDS, needs_ray, patiently

pytestmark = [pytest.mark.process, needs_ray, patiently]
SEEDS, STEPS = 5, 1000


@pytest.fixture
def machines(shared):
    """A Ray cluster of one node of two cores."""
    return shared.provide(2)


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


class Busy:
    """Keeps a node from being idle, which Ray takes away at once when it is drained."""

    def answer(self):
        return True


def test_nodes_are_shown_with_kinds_prices_and_notices(machines, tmp_path):
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    (tmp_path / "prices.csv").write_text(
        f"time,kind,zone,market,price\n{show_time(time.time() - 60)},fast,a,spot,0.25\n"
    )
    node = machines.add_node(num_cpus=2, resources={"kind:fast": 1}, **NODE)
    where = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    busy = ray.remote(Busy).options(num_cpus=1, scheduling_strategy=where).remote()
    try:
        assert ray.get(busy.answer.remote())
        drain(node, seconds=600)
        words = ("cluster", "--engine", "ray", "--address", machines.address, "--market", "prices.csv", "--json")
        found = dovetail(*words, cwd=tmp_path, env={**os.environ})
    finally:
        ray.kill(busy)
        machines.remove_node(node)
    assert found.code == 0, found.err
    head, leaving = found.json()["nodes"]
    assert (head["node"], head["devices"], head["leaves"], head["prices"]) == ("n0", 2, None, {})
    assert (leaving["node"], leaving["devices"], leaving["kind"]) == ("n1", 2, "fast")
    assert 0 < parse_time(leaving["leaves"], where="leaves") - time.time() <= 600
    assert leaving["prices"] == {"fast in a, spot": 0.25}


@pytest.mark.slow
def test_the_links_of_a_node_that_joins_are_measured(machines, tmp_path):
    cluster, numbers = survey(tmp_path)
    until = time.monotonic() + PATIENCE_SECONDS
    with contextlib.closing(RayEngine(cluster, nodes=numbers, home=tmp_path)) as engine:
        node = machines.add_node(num_cpus=1, **NODE)
        try:
            while not (joined := [each for each in engine.wait() if each.kind == "joined" and not each.anew]):
                assert time.monotonic() < until
        finally:
            machines.remove_node(node)
    whole = cluster.joined_by(joined[0].cluster)
    assert len(cluster.nodes) == 1
    assert len(whole.nodes) == 2
    link = whole.link("n0", "n1")
    assert {link.source, link.target} == {"n0", "n1"}
    assert link.bytes_per_second > 1e6


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
        self.nodes.append(self.machines.add_node(num_cpus=1, **NODE))

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
    cluster = dataclasses.replace(cluster, devices=cluster.devices[:1])  # or all is done before anybody joins
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
