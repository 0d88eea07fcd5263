"""How many of a node's cores the feed of an option on an accelerator has, and the seconds a step that follow.

On a CPU the cores of a task are its devices, and its trial has shown what they do, reading included. Beside an
accelerator they are the node's, which other tasks want, too: so each option that reads a feed is offered with as many
cores as make a difference. Where the host computes a part of each step, what the feed has is taken from that. While a
step computes, its thread hands kernels over and needs the interpreter's lock, which a feed in threads holds, too.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping

from dovetail.planning.feeds import plan_feed
from dovetail.planning.techniques import Evidence, spec_of
from dovetail.vocabulary import Option, Profile, StageProfile
from dovetail.vocabulary.feeds import FeedConsumer, feed_bytes, held_bytes

# A core more that makes a step faster by less than this is not worth an option of its own.
_LEAST_GAIN = 0.05


def with_feed_cores(option: Option, evidence: Evidence) -> Iterator[Option]:
    """An option for each number of cores that its feed could have; the option itself where it reads none, or has
    devices that are cores, or trains each member in a process of its own.

    >>> from dovetail.vocabulary import Cluster, Kind
    >>> decode = StageProfile(name="decode", worker="process", service_seconds=0.04, cpu_seconds=0.04)
    >>> profile = Profile(family="f", kind="h200", count=1, step_seconds=0.01, peak_bytes=0, feed=(decode,))
    >>> cluster = Cluster.uniform(Kind(name="h200", processor="cuda"), cores=16, memory_bytes=64 << 30)
    >>> resident = Option(families=("f",), technique="resident", kind="h200", count=1, step_seconds=(0.02,), cores=1)
    >>> found = with_feed_cores(resident, Evidence(cluster=cluster, profiles=(profile,)))
    >>> [(each.feed_cores, each.cores, *each.step_seconds) for each in found]
    [(1, 2, 0.04), (2, 3, 0.02)]
    """
    spec, cluster = spec_of(option.technique), evidence.cluster
    profiles = [_of_feed(family, option.kind, evidence) for family in option.families]
    read = [each for each in profiles if each is not None]
    if not read or spec.apart or cluster.kind(option.kind).processor == "cpu":
        yield option
        return
    nodes = {device.node for device in cluster.of_kind(option.kind)}
    most = max(cluster.node(name).cores for name in nodes)
    most -= 1 if spec.on_host else option.cores
    before = math.inf
    for cores in _counts(most):
        slowed = spec.slowed(option, evidence, option.cores - cores) if spec.on_host else 1.0
        computing = slowed * min(option.step_seconds[0], sum(each.computing_seconds for each in read))
        reading = _reading_seconds(read, cores, computing)
        steps = tuple(max(seconds * slowed, reading) for seconds in option.step_seconds)
        if steps[0] > (1 - _LEAST_GAIN) * before:
            continue
        before = steps[0]
        yield dataclasses.replace(
            option,
            step_seconds=steps,
            cores=option.cores if spec.on_host else option.cores + cores,
            feed_cores=cores,
            host_bytes=option.host_bytes + feed_bytes(cores),
        )


def _of_feed(family: str, kind: str, evidence: Evidence) -> Profile | None:
    found = [each for each in evidence.of(family=family, kind=kind) if each.feed]
    return found[-1] if found else None


def _counts(most: int) -> list[int]:
    """Numbers of cores that are tried: all small ones, then ever fewer.

    >>> _counts(20)
    [1, 2, 3, 4, 6, 8, 12, 16, 20]
    """
    most = max(1, most)
    powers = [1 << exponent for exponent in range(most.bit_length())]
    return sorted({*(each for each in powers), *(each * 3 // 2 for each in powers[1:]), most} & {*range(1, most + 1)})


def _reading_seconds(profiles: list[Profile], cores: int, computing_seconds: float) -> float:
    """What a step takes that must wait for the batches of all its members; those that read the same read it once. Each
    feed has to leave its part of the lock to the computing."""
    distinct: Mapping[object, Profile] = {each.shares or number: each for number, each in enumerate(profiles)}
    return sum(
        each.accumulate / _batches_per_second(each.feed, cores, computing_seconds / len(distinct) / each.accumulate)
        for each in distinct.values()
    )


@functools.lru_cache(maxsize=1024)
def _batches_per_second(stages: tuple[StageProfile, ...], cores: int, lock_seconds: float) -> float:
    return plan_feed(
        stages,
        cores=cores,
        budget_bytes=held_bytes(feed_bytes(cores)),
        consumer=FeedConsumer(lock_seconds=lock_seconds),
    ).items_per_second
