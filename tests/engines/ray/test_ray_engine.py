"""The engine `ray` against a Ray cluster of three nodes on this machine, started once for all tests here."""

import collections
import contextlib
import dataclasses
import functools
import http.server
import itertools
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from dovetail.control import Controller, Settings
from dovetail.engines.provisioning.base import NUMBER
from dovetail.engines.ray import RayEngine, cluster_survey, survey
from dovetail.engines.ray.node_links import _NodeProbe, measure_links
from dovetail.store import Store, keep_links
from dovetail.testing.cut_links import cut_links
from dovetail.testing.engines import EngineConformance, Ground, check_ends, drain, ends_of, write_program
from dovetail.train import checkpoint
from dovetail.vocabulary import DovetailError, Stop, Workload
from tests.engines.forking import forking_engine
from tests.engines.ray.ray_clusters import needs_ray, patiently
from tests.engines.test_local import run, start_and_see_progress, task_of
from tests.engines.worker_pids import worker_pids

pytestmark = [pytest.mark.process, needs_ray, patiently]

STEPS = 2000
SILENCE_SECONDS = 120.0  # of somebody who hardly has a core


@pytest.fixture(scope="module")
def ground(ray, tmp_path_factory):
    home = tmp_path_factory.mktemp("engine")
    cluster, nodes = ray.part("n0")
    engine = RayEngine(cluster, nodes=nodes, home=home, silence_seconds=SILENCE_SECONDS)
    yield Ground(engine=engine, cluster=cluster, reference=write_program(home), home=home)
    engine.close()


@pytest.fixture
def another(ray, tmp_path):
    """On a node that the others leave alone, which it takes for the first."""
    found, _ = ray.part("n1")
    nodes = tuple(dataclasses.replace(node, name="n0") for node in found.nodes)
    devices = tuple(dataclasses.replace(device, name="n0:0", node="n0") for device in found.devices)
    cluster = dataclasses.replace(found, nodes=nodes, devices=devices)
    return RayEngine(cluster, nodes={"n0": ray.nodes["n1"]}, home=tmp_path, silence_seconds=SILENCE_SECONDS)


def _facts(link):
    return frozenset((link.source, link.target)), link.bytes_per_second, link.latency_seconds  # either end comes first


def test_links_between_nodes_are_measured_pair_by_pair_and_not_again_where_the_store_knows_them(ray, tmp_path):
    assert {frozenset((link.source, link.target)) for link in ray.cluster.links} == {
        frozenset(pair) for pair in itertools.combinations(ray.nodes, 2)
    }
    for link in ray.cluster.links:
        assert link.between_nodes
        assert link.bytes_per_second > 1e6
        assert 0 < link.latency_seconds < 1
    with Store(tmp_path, write=True) as store:
        keep_links(store, dataclasses.replace(ray.cluster, links=ray.cluster.links[:2]), label=NUMBER)
    again, _ = survey(tmp_path)
    assert {_facts(link) for link in again.links[:2]} == {_facts(link) for link in ray.cluster.links[:2]}
    assert again.links[2].measured_seconds > ray.cluster.links[2].measured_seconds


def test_nodes_that_cannot_reach_each_other_are_named(ray, monkeypatch):
    """The ports at which n1 listens are closed."""
    began, listen = time.monotonic(), _NodeProbe.listen

    def closed(self):
        if self._name != "n1":
            return listen(self)
        with socket.create_server(("127.0.0.1", 0)) as server:
            return server.getsockname()

    monkeypatch.setattr(_NodeProbe, "listen", closed)
    with pytest.raises(DovetailError, match=r"from n0 on .* to n1 at 127.0.0.1 port \d+: .*refused"):
        measure_links({name: ray.nodes[name] for name in ("n0", "n1")})
    assert time.monotonic() - began < 60


class TestRay(EngineConformance):
    pass


@pytest.fixture(scope="module")
def local(ground, tmp_path_factory):
    home = tmp_path_factory.mktemp("local")
    engine = forking_engine(ground.cluster, home=home)
    yield Ground(engine=engine, cluster=ground.cluster, reference=ground.reference, home=home)
    engine.close()


def saved(ground, task):
    state, damages = checkpoint.recover(Path(ground.member(task).directory))
    assert state is not None
    assert not damages
    return dict(state.tensors)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_each_node_is_found_with_its_cores(ray):
    assert [device.name for device in ray.cluster.devices] == ["n0:0", "n0:1", "n1:0", "n2:0"]
    assert len(ray.cluster.kinds) == 1
    assert sorted(ray.nodes) == ["n0", "n1", "n2"]
    cores = sorted(os.sched_getaffinity(0))
    assert [device.index for device in ray.cluster.devices][:2] == [cores[n % len(cores)] for n in range(2)]


@pytest.mark.slow  # Ray takes a quarter of a minute to say that a node does not exist
def test_a_node_that_is_lost_while_nodes_are_asked_is_left_out(ray, tmp_path, monkeypatch):
    present = cluster_survey._present_nodes
    lost = {**present()[0], "NodeID": "ab" * 28}
    answers = iter([[*present(), lost]])
    monkeypatch.setattr(cluster_survey, "_present_nodes", lambda: next(answers, None) or present())
    _, numbers = survey(tmp_path)
    assert sorted(numbers.values()) == sorted(ray.nodes.values())


def test_nodes_say_at_what_rate_files_elsewhere_come_and_which_cannot_be_read(ground, tmp_path):
    (tmp_path / "shard").write_bytes(bytes(2_000_000))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/shard"
        found = ground.engine.probe_urls({url: "n0", f"{url}-missing": "n0"})
        server.shutdown()
    assert found[f"{url}-missing"] is None
    assert found[url].size_bytes == 2_000_000
    assert found[url].bytes_per_second > 0


@pytest.mark.slow
@pytest.mark.parametrize(("technique", "count"), [("resident", 2), ("replicate", 2)])
def test_what_is_learned_equals_what_is_learned_locally_to_the_bit(ground, local, technique, count):
    task = task_of(ground, "tower")
    for each in (ground, local):
        order = dataclasses.replace(each.order(each.member(task)), technique=technique)
        order = dataclasses.replace(order, devices=tuple(device.name for device in each.cluster.devices[:count]))
        each.engine.start(order)
        (end,) = ends_of(task, drain(each.engine, order))
        assert end.kind == "finished", end.reason
    assert same(saved(ground, task), saved(local, task))


@pytest.fixture
def spread(ray, tmp_path):
    """Two nodes of one core each."""
    cluster, nodes = ray.part("n1", "n2")
    with contextlib.closing(RayEngine(cluster, nodes=nodes, home=tmp_path, silence_seconds=SILENCE_SECONDS)) as engine:
        yield Ground(engine=engine, cluster=cluster, reference=write_program(tmp_path), home=tmp_path)


def over_both(ground, task, technique, **options):
    """An order whose ranks go over all devices there are."""
    nodes = len({device.node for device in ground.cluster.devices})
    devices = tuple(device.name for device in ground.cluster.devices)
    knobs = {"nodes": nodes} if nodes > 1 else {}
    order = ground.order(ground.member(task, **options))
    return dataclasses.replace(order, technique=technique, devices=devices, knobs=knobs)


@pytest.mark.parametrize("technique", ["replicate", pytest.param("pipeline", marks=pytest.mark.slow)])
def test_what_a_gang_over_two_nodes_learns_is_what_one_node_s_does(spread, local, technique):
    task = task_of(spread, "tower", parameters={"width": 8 if technique == "replicate" else 12})
    for each in (spread, local):
        order = over_both(each, task, technique)
        each.engine.start(order)
        (end,) = ends_of(task, drain(each.engine, order))
        assert end.kind == "finished", (end.reason, end.log)
    assert same(saved(spread, task), saved(local, task))


def assert_it_goes_on_exactly(spread, local, task, order):
    """Started again, it ends with the bits of one that was never disturbed."""
    again = dataclasses.replace(order, name=f"{order.name}-again")
    spread.engine.start(again)
    (end,) = ends_of(task, drain(spread.engine, again))
    assert end.kind == "finished", end.reason
    undisturbed = over_both(local, task, "replicate", until_step=task.stop.steps)
    local.engine.start(undisturbed)
    drain(local.engine, undisturbed)
    assert same(saved(spread, task), saved(local, task))


def start_and_see_a_save(spread):
    """A gang over both nodes that trains for long, and has saved once."""
    steps = 300  # each of which has ranks that share two cores wait for one another
    task = dataclasses.replace(task_of(spread, "tower"), stop=Stop(steps=steps))
    order = dataclasses.replace(over_both(spread, task, "replicate", until_step=steps), save_every_steps=20)
    spread.engine.start(order)
    events = []
    while not any(event.kind == "saved" for event in events):
        events += spread.engine.wait()
        assert not ends_of(task, events), events
    return task, order


@pytest.mark.slow
def test_a_gang_over_two_nodes_ends_with_a_rank_of_it_and_goes_on_exactly(spread, local):
    task, order = start_and_see_a_save(spread)
    os.kill(worker_pids(spread.engine)["n2:0"], signal.SIGKILL)
    (end,) = ends_of(task, drain(spread.engine, order))
    assert end.kind == "lost"
    assert "rank 1 of 2 on n2:0 is lost" in end.reason
    assert_it_goes_on_exactly(spread, local, task, order)


@pytest.mark.slow  # in every run one loses its link on this machine (test_ranks)
@pytest.mark.parametrize("silently", [False, True])  # half a minute's silence
def test_a_gang_whose_link_is_cut_ends_and_goes_on_exactly(spread, local, silently):
    task, order = start_and_see_a_save(spread)
    workers, began = worker_pids(spread.engine), time.monotonic()
    assert cut_links(workers["n1:0"], workers["n2:0"], silently=silently)
    (end,) = ends_of(task, drain(spread.engine, order))
    assert end.kind == "lost"
    # A rank that takes more than a few seconds to end, on a busy machine, is named for that.
    ending = "its ranks on n1, n2 are alive, and the link between two of them is lost|did not end with the others; .*"
    assert re.search(rf"({ending}). ?rank [01] of 2 on n[12]:0: another rank is gone", end.reason), end.reason
    assert time.monotonic() - began < 60
    assert_it_goes_on_exactly(spread, local, task, order)


def test_a_program_that_is_wrong_fails_with_a_reason(ground):
    end, _ = run(ground, task_of(ground, "raising"))
    assert (end.kind, end.cause) == ("failed", "program")
    assert "it raised LookupError: the data is not here" in end.reason


# From here on workers are killed, and then nodes.


def test_a_worker_that_exits_is_lost_with_its_last_words(ground):
    end, _ = run(ground, task_of(ground, "exiting"), device=1)
    assert end.kind == "lost"
    assert "exited with code 3" in end.reason
    assert "these are my last words" in end.log


def test_a_killed_worker_is_lost_and_its_neighbour_goes_on(ground):
    order, _ = start_and_see_progress(ground, task_of(ground, "steady"), device=1)
    neighbour, _ = start_and_see_progress(ground, task_of(ground, "steady"))
    os.kill(worker_pids(ground.engine)["n0:1"], signal.SIGKILL)
    events = drain(ground.engine, order)
    check_ends(order, events)
    (end,) = ends_of(order.members[0].task, events)
    assert end.kind == "lost"
    assert "killed by SIGKILL" in end.reason
    ground.engine.stop(neighbour.name, reason="enough")
    events += drain(ground.engine, neighbour)
    assert [end.kind for end in ends_of(neighbour.members[0].task, events)] == ["stopped"]


def test_a_silent_worker_is_lost(ground, monkeypatch):
    task = task_of(ground, "steady")
    order, _ = start_and_see_progress(ground, task, device=1)
    monkeypatch.setattr(ground.engine, "_silence_seconds", 20.0)
    process = psutil.Process(worker_pids(ground.engine)["n0:1"])
    process.send_signal(signal.SIGSTOP)
    (end,) = ends_of(task, drain(ground.engine, order))
    assert end.kind == "lost"
    assert "no heartbeat for" in end.reason
    assert not process.is_running()


@pytest.mark.slow
def test_a_run_survives_the_loss_of_a_node(ray, ground, local, tmp_path):
    """One of two nodes goes like a machine that loses power; what ran there goes on elsewhere, and learns as much."""
    tasks = [task_of(ground, "tower", parameters={"seed": seed}) for seed in range(2)]
    tasks = [dataclasses.replace(task, stop=Stop(steps=STEPS)) for task in tasks]
    cluster, nodes = ray.part("n1", "n2")
    killed = []

    def kill(controller):
        running = [one for one in controller.progress.values() if one.status == "running" and one.saved_step]
        if not killed and any(one.spans[-1].devices == ("n1:0",) for one in running):
            killed.append(ray.raylet("n1"))
            os.kill(killed[0], signal.SIGKILL)

    engine = RayEngine(cluster, nodes=nodes, home=tmp_path)
    with contextlib.closing(engine), Store(tmp_path, write=True) as store:
        workload = Workload(name="towers", tasks=tuple(tasks))
        settings = Settings(save_every_steps=100, exact=True)
        controller = Controller(workload, cluster=cluster, store=store, engine=engine, settings=settings, observe=kill)
        controller.reconcile()
        controller.measure()
        controller.run()
        events = [event for _, event in store.events()]
    assert killed
    assert {one.status for one in controller.progress.values()} == {"finished"}
    (departed,) = [event for event in events if event.kind == "departed"]
    assert departed.devices == ("n1:0",)
    assert "node n1 is lost" in departed.reason
    after = events[events.index(departed) :]
    assert not any("n1:0" in event.devices for event in after if event.kind == "started")
    assert any(event.kind == "lost" and "node n1 is lost" in event.reason for event in events)
    for task in tasks:
        run(local, task, until_step=STEPS)
        state, damages = checkpoint.recover(tmp_path / "checkpoints" / task.identity)
        assert (state.step, damages) == (STEPS, [])
        assert same(dict(state.tensors), saved(local, task))


# Ray ends the process that was connected to a lost head, about a minute later and whatever it is doing by then: this
# must be the last test of its process.
@pytest.mark.slow
def test_when_the_head_is_gone_the_engine_says_so_and_ends(ray, ground):
    """Last: nothing can be asked of this cluster afterwards."""
    task = task_of(ground, "steady")
    start_and_see_progress(ground, task)
    worker = psutil.Process(worker_pids(ground.engine)["n0:0"])
    (head,) = ray.processes.head_node.all_processes["gcs_server"]
    os.kill(head.process.pid, signal.SIGKILL)
    endless = itertools.repeat(ground.engine.wait)
    with pytest.raises(DovetailError, match=r"the head of the Ray cluster .* must answer; .* run the same command"):
        collections.deque((wait() for wait in endless), maxlen=0)
    ground.engine.close()
    worker.wait(timeout=60)  # nobody asks for its news
