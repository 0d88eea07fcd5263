"""What would make a feed faster: each thing that somebody could do about it, planned anew as if it were done."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from dovetail.planning.feeds.feed_model import ANYONE, CONSUMER, by_stage
from dovetail.planning.feeds.feed_planner import plan_feed
from dovetail.vocabulary.feeds import FeedConsumer, FeedPlan, RemoteProfile, StageProfile
from dovetail.vocabulary.units import show_rate

# What gains less is not worth telling.
_LEAST_GAIN = 0.03
# Reading an item back from memory instead of making it: a lookup and a queue.
_CACHED_SECONDS = 1e-5
# The link that is taken for granted where nobody has measured one: 10 gigabits, and what messages through Ray take.
_LINK = RemoteProfile(
    cores=1, latency_seconds=2e-3, bytes_per_second=10e9 / 8, cpu_seconds=1e-3, cpu_seconds_per_byte=1e-9
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FeedAdvice:
    """One thing that would make a feed faster, and what it would then give.

    >>> FeedAdvice(change="one core more", items_per_second=150.0, gain=0.5).sentence()
    'One core more: 150 a second, 50% more.'
    """

    change: str
    items_per_second: float
    gain: float

    def sentence(self) -> str:
        """The advice for people."""
        return f"{self.change[:1].upper()}{self.change[1:]}: {show_rate(self.items_per_second)}, {self.gain:.0%} more."


def advise(
    profiles: Sequence[StageProfile],
    plan: FeedPlan,
    *,
    cores: float,
    budget_bytes: int,
    consumer: FeedConsumer = ANYONE,
    may_cache: bool = True,
) -> tuple[FeedAdvice, ...]:
    """What would help a feed that has the best plan for these cores and bytes, the most helpful first; nothing where
    the consumer is the wall. A cache is no help where a feed has one or reads a stream, so that it `may_cache` none;
    nor behind a stage that draws random numbers, which would be the same in every epoch.

    >>> read = StageProfile(name="read", worker="thread", service_seconds=4e-3)
    >>> decode = StageProfile(name="decode", worker="thread", service_seconds=3e-3, cpu_seconds=3e-3)
    >>> plan = plan_feed([read, decode], cores=1, budget_bytes=1 << 20)
    >>> advise([read, decode], plan, cores=1, budget_bytes=1 << 20)[0].sentence()
    'One core more: 667 a second, 100% more.'
    """
    if plan.wall == CONSUMER:
        return ()
    found = []
    for change, changed in _changes(profiles, cores=cores, budget_bytes=budget_bytes, may_cache=may_cache):
        rate = plan_feed(**changed, consumer=consumer).items_per_second
        gain = rate / plan.items_per_second - 1 if plan.items_per_second else 0.0
        if gain > _LEAST_GAIN:
            found.append(FeedAdvice(change=change, items_per_second=rate, gain=gain))
    return tuple(sorted(found, key=lambda advice: -advice.gain))


def _changes(
    profiles: Sequence[StageProfile], *, cores: float, budget_bytes: int, may_cache: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each change in words, and what the planner is told of it."""
    now = {"profiles": profiles, "cores": cores, "budget_bytes": budget_bytes}
    yield "one core more", now | {"cores": cores + 1}
    yield "an idle core of another node, with --engine ray, over a link of 10 Gbit/s", now | {"remote": _LINK}
    yield "twice the memory", now | {"budget_bytes": 2 * budget_bytes}
    names = list(by_stage(profiles))
    yield f"a source twice as fast ({names[0]!r})", now | {"profiles": _faster(profiles, names[0])}
    for name in names[1:]:
        yield f"{name!r} written to take half as long", now | {"profiles": _faster(profiles, name)}
    # What is cached at the very end is a training that sees the same batches every epoch.
    for number, name in enumerate(names[:-1]):
        if not may_cache or any(each.draws for each in profiles if each.name == name):
            return
        cached = _cached(profiles, names[: number + 1])
        yield f"a cache behind {name!r}, where it fits", now | {"profiles": cached}


def _faster(profiles: Sequence[StageProfile], name: str) -> list[StageProfile]:
    return [_scaled(each, 0.5) if each.name == name else each for each in profiles]


def _cached(profiles: Sequence[StageProfile], names: Sequence[str]) -> list[StageProfile]:
    """From the second epoch on: stages before the cache do nothing, and the last of them reads what was kept."""
    last = names[-1]
    return [
        _scaled(each, 0.0)
        if each.name in names and each.name != last
        else dataclasses.replace(
            each, worker="thread", service_seconds=_CACHED_SECONDS, cpu_seconds=_CACHED_SECONDS, lock_seconds=0.0
        )
        if each.name == last
        else each
        for each in profiles
    ]


def _scaled(profile: StageProfile, factor: float) -> StageProfile:
    return dataclasses.replace(
        profile,
        service_seconds=profile.service_seconds * factor,
        cpu_seconds=profile.cpu_seconds * factor,
        lock_seconds=profile.lock_seconds * factor,
    )
