"""What would help is what planning finds with it, and nothing else is said."""

import dataclasses

import pytest

from dovetail.planning.feeds import advise, plan_feed
from dovetail.vocabulary.feeds import FeedConsumer, StageProfile

READ = StageProfile(name="read", worker="thread", service_seconds=4e-3, most_bytes=100, item_bytes=100)
DECODE = StageProfile(name="decode", worker="thread", service_seconds=3e-3, cpu_seconds=3e-3)
AUGMENT = StageProfile(name="augment", worker="thread", service_seconds=1e-3, cpu_seconds=1e-3)


def advice(
    *profiles: StageProfile,
    cores: float = 1,
    budget_bytes: int = 1 << 20,
    consumer: float | None = None,
    may_cache: bool = True,
):
    limits = {"cores": cores, "budget_bytes": budget_bytes, "consumer": FeedConsumer(per_second=consumer)}
    found = advise(profiles, plan_feed(profiles, **limits), may_cache=may_cache, **limits)
    return {each.change: each.items_per_second for each in found}


def test_cores_a_cache_and_faster_stages_help_a_feed_that_computes() -> None:
    found = advice(READ, DECODE, AUGMENT)
    assert found["one core more"] == pytest.approx(500)
    # Its one worker there waits for each read, and does not compute meanwhile.
    assert 310 < found["an idle core of another node, with --engine ray, over a link of 10 Gbit/s"] < 350
    assert found["'decode' written to take half as long"] == pytest.approx(400)
    assert found["a cache behind 'decode', where it fits"] == pytest.approx(1 / 1.01e-3)
    assert "a source twice as fast ('read')" not in found
    assert "twice the memory" not in found


def test_memory_and_a_faster_source_help_a_feed_that_waits_without_room() -> None:
    found = advice(READ, cores=8, budget_bytes=300)
    assert found == {
        "twice the memory": pytest.approx(1250),
        "a source twice as fast ('read')": pytest.approx(1000),
    }


def test_nothing_helps_where_the_consumer_is_the_wall() -> None:
    assert advice(READ, DECODE, consumer=10.0) == {}


def test_no_cache_behind_a_stage_that_draws() -> None:
    """Its draws would be the same in every epoch; before it a cache does no harm."""
    crop = dataclasses.replace(DECODE, name="crop", draws=True)
    batch = dataclasses.replace(AUGMENT, name="batch")
    caches = {change for change in advice(READ, DECODE, crop, AUGMENT, batch) if change.startswith("a cache")}
    assert caches == {"a cache behind 'decode', where it fits"}


def test_no_cache_where_there_can_be_none() -> None:
    assert not any(change.startswith("a cache") for change in advice(READ, DECODE, AUGMENT, may_cache=False))
