"""What trials find out about stages. Times are the machine's; what is tested is what follows from them anywhere."""

import threading
import time

import pytest
import torch

from dovetail.feeds.definition import feed
from dovetail.feeds.measurement import measure_stages
from tests.feeds.feeds import draw_torch

pytestmark = pytest.mark.process


def wait(number):
    time.sleep(0.002)
    return number


def count(number):
    for _ in range(20_000):
        pass
    return torch.zeros(1000)


def is_even(number):
    return number % 2 == 0


def test_each_stage_is_profiled_with_each_kind_of_worker():
    definition = feed(range(100_000)).map(wait).filter(is_even).map(count).batch(4)
    profiles = {(each.name, each.worker): each for each in measure_stages(definition, seconds=0.8)}
    names = ["read", "wait", "is_even", "count", "batch"]
    assert list(profiles) == [(name, worker) for name in names for worker in ("thread", "process")]
    for worker in ("thread", "process"):
        assert profiles["wait", worker].service_seconds >= 0.002
        assert profiles["wait", worker].cpu_seconds < 0.001
        assert profiles["count", worker].cpu_seconds > 0.5 * profiles["count", worker].service_seconds
        assert profiles["count", worker].item_bytes >= 4000
        assert profiles["batch", worker].inputs == 4
        assert profiles["is_even", worker].inputs == pytest.approx(2, rel=0.2)
    # A loop of Python's holds the lock, and in another process it holds that one's.
    assert profiles["count", "thread"].lock_seconds > profiles["count", "process"].lock_seconds
    assert profiles["count", "process"].worker_bytes > profiles["count", "thread"].worker_bytes


def test_what_draws_has_no_threads_and_what_cannot_travel_no_processes():
    lock = threading.Lock()

    def locked(item):
        with lock:
            return item

    definition = feed(range(100_000)).map(draw_torch).map(locked).batch(4)
    profiles = measure_stages(definition, seconds=0.4)
    assert [(each.name, each.worker, each.portable) for each in profiles if each.name in ("draw_torch", "locked")] == [
        ("draw_torch", "process", True),
        ("locked", "thread", False),
    ]


def test_a_stream_can_be_measured():
    class Stream:
        def __iter__(self):
            return iter(range(100_000))

    profiles = measure_stages(feed(Stream()).map(count).batch(4), seconds=0.4)
    assert {each.name for each in profiles} == {"read", "count", "batch"}
