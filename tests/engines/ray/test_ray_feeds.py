"""Feeds that borrow idle cores of other nodes, on a Ray cluster of three nodes on this machine."""

import dataclasses
import itertools
import os
import signal
import time

import pytest

from dovetail.engines.ray import RayEngine
from dovetail.engines.ray.core_borrowing import CoreBorrower
from dovetail.engines.ray.core_borrowing import _call as call_in_group
from dovetail.feeds import feed
from dovetail.feeds.remote_cores import RemoteCores
from dovetail.feeds.running import RunningFeed
from dovetail.profile.feed_link import measure_link
from dovetail.testing.engines import Ground, drain, ends_of, write_program
from dovetail.vocabulary import Stop
from tests.engines.ray.ray_clusters import needs_ray, patiently
from tests.engines.ray.test_ray_engine import SILENCE_SECONDS, local, same, saved  # noqa: F401
from tests.engines.test_local import start_and_see_progress, task_of
from tests.feeds.feeds import PIPELINES, noise, plan, uneven
from tests.feeds.feeds import same as same_batches

pytestmark = [pytest.mark.process, needs_ray, patiently]


# The second where its process was still starting.
TAKEN_BACK = ("A core of another node was taken back or is gone", "A core of another node could not be borrowed")


@pytest.fixture(scope="module")
def ground(ray, tmp_path_factory):
    home = tmp_path_factory.mktemp("engine")
    engine = RayEngine(ray.cluster, nodes=ray.nodes, home=home, silence_seconds=SILENCE_SECONDS)
    yield Ground(engine=engine, cluster=ray.cluster, reference=write_program(home), home=home)
    engine.close()


@pytest.fixture
def remote(ground, tmp_path):
    """Cores of the second and the third node, for feeds of this process, as a host lends them to its workers'."""
    borrower = CoreBorrower(tmp_path, code=tmp_path, wish=lambda: None)
    borrower.introduce({node: ground.engine._link(node)._host for node in ("n1", "n2")})
    remote = RemoteCores(borrower.address)
    wait_until(lambda: remote.count_idle() == 2, ground)
    return remote


def wait_until(condition, ground):
    while not condition():
        ground.engine.wait()


def idle_cores(ground):
    """How many cores the other nodes' hosts have idle, however long they take to say so."""
    from ray import get

    hosts = [ground.engine._link(node)._host for node in ("n1", "n2")]
    return get([call_in_group(host.idle_cores) for host in hosts])


def remotely(definition, workers=2):
    return dataclasses.replace(plan(definition), remote_workers=workers)


def slow(number):
    time.sleep(0.02)
    return number


def test_batches_are_the_same_to_the_bit_and_cores_are_given_back(ground, remote):
    definition = PIPELINES["draws"]
    with RunningFeed(definition, plan=remotely(definition), remote=remote) as running:
        assert same_batches(list(running), list(definition))
    wait_until(lambda: remote.count_idle() == 2, ground)
    definition, quick = (feed(range(20_000)).map(each).map(noise).shuffle(50).batch(4) for each in (slow, int))
    with RunningFeed(definition, plan=remotely(definition), remote=remote) as running:
        batches, found = iter(running), []
        while running.stats().remote_items < 20:
            found.append(next(batches))
    # Draws are keyed by a stage's place, so what takes no time gives the same.
    assert same_batches(found, list(itertools.islice(quick, len(found))))
    wait_until(lambda: remote.count_idle() == 2, ground)
    assert running.notes == ()


def test_the_link_is_measured(remote):
    found = measure_link(remote, cores=remote.count_idle())
    assert found.cores == 2
    assert 0 < found.latency_seconds < 1
    assert 1e5 < found.bytes_per_second < 1e12


@pytest.mark.slow  # starts, stops and waits for orders for minutes on two cores
def test_an_order_that_begins_on_a_core_takes_it_back_and_nothing_is_lost_or_repeated(ground, remote):
    definition = feed(range(20_000)).map(slow).batch(4)
    with RunningFeed(definition, plan=remotely(definition), remote=remote) as running:
        batches = iter(running)
        found = [next(batches)]
        while running.stats().remote_items < 20 or idle_cores(ground) != [0, 0]:
            found.append(next(batches))
        order, _ = start_and_see_progress(ground, task_of(ground, "steady"), device=2)
        assert order.devices == ("n1:0",)
        wait_until(lambda: running.stats().remote_workers == 1, ground)
        assert idle_cores(ground) == [0, 0]  # one has an order, and one is lent
        ground.engine.stop(order.name, reason="enough")
        drain(ground.engine, order)
        wait_until(lambda: idle_cores(ground) == [1, 0], ground)
        found += [next(batches) for _ in range(20)]
        assert any(note.startswith(TAKEN_BACK) for note in running.notes)
    expected = feed(range(20_000)).batch(4)
    assert same_batches(found, [batch for batch, _ in zip(expected, found, strict=False)])


@pytest.mark.slow
def test_a_task_whose_cores_are_the_wall_borrows_some_and_learns_the_same(ground, local):  # noqa: F811
    task = dataclasses.replace(task_of(ground, "hashed"), stop=Stop(steps=400))
    order = ground.order(ground.member(task, until_step=400))
    ground.engine.start(order)
    events = drain(ground.engine, order)
    (end,) = ends_of(task, events)
    assert end.kind == "finished", end.reason
    borrowed = [event for event in events if event.kind == "resized" and event.stage == "other nodes"]
    assert borrowed, [event for event in events if event.kind == "resized"]
    assert (borrowed[0].before, "a second are expected" in borrowed[0].reason) == ("0 cores", True)
    local.engine.start(local_order := local.order(local.member(task, until_step=400)))
    drain(local.engine, local_order)
    assert same(saved(ground, task), saved(local, task))


# From here on nodes are killed.


def test_a_node_that_dies_in_the_middle_loses_and_repeats_nothing(ray, ground, remote):
    definition = feed(range(20_000)).map(slow).map(uneven).shuffle(20).batch(4)
    with RunningFeed(definition, plan=remotely(definition), remote=remote) as running:
        batches = iter(running)
        found = [next(batches)]
        while running.stats().remote_items < 20 or remote.count_idle():
            found.append(next(batches))
        os.kill(ray.raylet("n1"), signal.SIGKILL)
        while not running.notes:
            found.append(next(batches))
        found += [next(batches) for _ in range(30)]
        (note,) = running.notes
        assert note.startswith(TAKEN_BACK)
        assert running.stats().remote_workers == 1
    expected = feed(range(20_000)).shuffle(20).batch(4)
    assert same_batches(found, [batch for batch, _ in zip(expected, found, strict=False)])
