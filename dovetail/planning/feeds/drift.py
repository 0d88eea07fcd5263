"""What a running feed shows of its stages, and what follows: profiles that are true now, and a plan for them.

A worker at an item is either computing or waiting, for a disk or for its turn on a core. The clock cannot tell the last
two apart. But stages that only compute have nothing to wait for but their turn: how much longer they take by the clock
than by that of the core holds for all, and what others wait beyond that is their own. Where turns are waited for though
this feed uses neither all cores nor the lock, somebody else does, and only the rest is planned with.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from dovetail.planning.feeds.feed_model import ANYONE, CONSUMER, LOCK, FeedModel, by_stage, model_of
from dovetail.planning.feeds.feed_planner import plan_feed
from dovetail.planning.feeds.feed_prediction import predict_feed
from dovetail.planning.feeds.feed_search import FeedLimits, best_choice
from dovetail.planning.feeds.resizing import expected_rate, worth_resizing
from dovetail.planning.feeds.scaling import MOST_WORKERS
from dovetail.vocabulary.feeds import FeedConsumer, FeedPlan, RemoteProfile, StagePlan, StageProfile
from dovetail.vocabulary.units import show_number, show_rate, show_seconds

# From this share of cores or lock on, workers wait for one another.
_USED_UP = 0.9
# A stage waits for nothing of its own where no more of its time than this was waiting when it was measured.
_COMPUTING = 0.1
# Turns are waited for from this slowdown on; less is what switching takes.
_CROWDED = 1.3
# A share of a core is left for whoever wants it, however much others take.
_LEAST_CORES = 0.25
# Of fewer items than this nothing is concluded: one slow one among them would look like drift.
LEAST_ITEMS = 20
# A new estimate counts this much against what was believed before, so that one odd second does not resize a feed.
_WEIGHT = 0.5
# The lock is taken and given back less often for each item where more threads wait, by how much nobody can foretell:
# 126 that waited for 5 ms gave an eighth more than the 75 that the lock was thought to allow.
_MOSTLY, _TRIED_GAIN = 0.25, 0.15
# A feed that gives less than was expected of it, by more than this, may be better with workers of the other kind.
_SHORT = 0.15
_WHY_TRIED = "the interpreter's lock is thought to be the wall, and whether it is shows with more threads that wait"
_WHY_REMOTE = "the cores here are the wall, and other nodes have idle ones"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageObservation:
    """What the workers of a stage did for a while: how many items they made, for how many seconds all of them together
    were at work on items, for how many of these a core was busy, and the largest item they made.

    >>> StageObservation(name="decode", items=100, busy_seconds=0.5, cpu_seconds=0.3).items
    100
    """

    name: str
    items: int
    busy_seconds: float
    cpu_seconds: float
    most_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FeedDecision:
    """What was concluded from watching a feed: profiles that are true now, the plan to go on with, why, which is empty
    where the plan stays, and what it should give."""

    profiles: tuple[StageProfile, ...]
    plan: FeedPlan
    reason: str = ""
    expected_per_second: float = 0.0
    is_trial: bool = False
    """Whether nothing but a trial can tell what it will give."""


def follow_drift(
    profiles: Sequence[StageProfile],
    plan: FeedPlan,
    observations: Sequence[StageObservation],
    *,
    seconds: float,
    cores: float,
) -> tuple[StageProfile, ...]:
    """The profiles of a feed's stages after `seconds` in which this was observed of them. A kind of worker that did not
    run changes in proportion to the one that did.

    >>> slow = StageProfile(name="read", worker="thread", service_seconds=1.0)
    >>> plan = FeedPlan(stages=(StagePlan(name="read", worker="thread", workers=4),))
    >>> seen = StageObservation(name="read", items=40, busy_seconds=120.0, cpu_seconds=0.0)
    >>> follow_drift([slow], plan, [seen], seconds=30.0, cores=2)[0].service_seconds
    2.0
    """
    model, seen = model_of(profiles, plan.stages), {each.name: each for each in observations}
    slowdown = max(
        _own_slowdown(model, plan, seen, seconds=seconds, cores=cores), _seen_slowdown(model, seen, seconds=seconds)
    )
    changed = {
        own.name: (own, _updated(own, seen[own.name], slowdown=slowdown)) for own in model.profiles if own.name in seen
    }
    return tuple(_in_proportion(each, *changed[each.name]) if each.name in changed else each for each in profiles)


def _seen_slowdown(model: FeedModel, seen: Mapping[str, StageObservation], *, seconds: float) -> float:
    """How many times as long as they compute those stages took by the clock that do nothing but compute."""
    computing = [seen[each.name] for each in model.profiles if each.name in seen and _only_computes(each)]
    cpu = sum(each.cpu_seconds for each in computing)
    # A few microseconds of a short stage tell nothing.
    return sum(each.busy_seconds for each in computing) / cpu if cpu > 0.02 * seconds else 1.0


def _only_computes(profile: StageProfile) -> bool:
    return profile.service_seconds - profile.cpu_seconds <= _COMPUTING * profile.service_seconds


def free_cores(
    profiles: Sequence[StageProfile],
    plan: FeedPlan,
    observations: Sequence[StageObservation],
    *,
    seconds: float,
    cores: float,
    measured_per_second: float = 0.0,
    consumer: FeedConsumer = ANYONE,
) -> float:
    """How many of its cores a feed and its consumer really have: all of them, unless workers waited for their turn
    though the two used less than there is.

    >>> loop = StageProfile(name="loop", worker="process", service_seconds=1e-3, cpu_seconds=1e-3)
    >>> plan = FeedPlan(stages=(StagePlan(name="loop", worker="process", workers=2),))
    >>> alone = StageObservation(name="loop", items=2000, busy_seconds=2.0, cpu_seconds=2.0)
    >>> crowded = StageObservation(name="loop", items=1000, busy_seconds=2.0, cpu_seconds=1.0)
    >>> [free_cores([loop], plan, [each], seconds=1.0, cores=2) for each in (alone, crowded)]
    [2, 1.0]
    """
    model, seen = model_of(profiles, plan.stages), {each.name: each for each in observations}
    busy = [(each, _core_seconds(each, seen[each.name]) / seconds) for each in model.paid if each.name in seen]
    used = sum(cores for _, cores in busy) + measured_per_second * consumer.cpu_seconds
    held = measured_per_second * consumer.lock_seconds + sum(
        cores * each.lock_seconds / each.cpu_seconds for each, cores in busy if each.cpu_seconds
    )
    crowded = _seen_slowdown(model, seen, seconds=seconds) > _CROWDED
    if not crowded or used > _USED_UP * cores or held > _USED_UP:
        return cores
    return max(_LEAST_CORES, used)


def _core_seconds(profile: StageProfile, seen: StageObservation) -> float:
    """For how long a stage kept cores busy, here and where its workers are."""
    return seen.cpu_seconds + seen.items * profile.beside_seconds


def _own_slowdown(
    model: FeedModel, plan: FeedPlan, seen: Mapping[str, StageObservation], *, seconds: float, cores: float
) -> float:
    """How many times as long as alone computing may take, because others compute; 1 where cores and lock suffice."""
    busy_cores = holding = 0.0
    computing = locking = 0
    for profile, stage in zip(model.paid, plan.stages, strict=True):
        if profile.cpu_seconds and profile.name in seen:
            cpu = _core_seconds(profile, seen[profile.name]) / seconds
            busy_cores += cpu
            holding += cpu * profile.lock_seconds / profile.cpu_seconds
            computing += stage.workers
            locking += stage.workers if profile.lock_seconds else 0
    found = computing / cores if busy_cores > _USED_UP * cores else 1.0
    return max(1.0, found, locking if holding > _USED_UP else 1.0)


def _updated(profile: StageProfile, seen: StageObservation, *, slowdown: float) -> StageProfile:
    if seen.items < LEAST_ITEMS:
        return profile
    cpu = seen.cpu_seconds / seen.items
    waited = max(0.0, seen.busy_seconds / seen.items - cpu)
    alone = max(0.0, profile.service_seconds - profile.cpu_seconds)
    own = 0.0 if slowdown > _CROWDED and _only_computes(profile) else waited - cpu * (slowdown - 1)
    waited = max(min(waited, alone), own)
    beside = profile.beside_seconds
    return _blend(profile, service=cpu + beside + waited, cpu=cpu + beside, most_bytes=seen.most_bytes)


def _blend(profile: StageProfile, *, service: float, cpu: float, most_bytes: int) -> StageProfile:
    service = (1 - _WEIGHT) * profile.service_seconds + _WEIGHT * service
    cpu = min(service, (1 - _WEIGHT) * profile.cpu_seconds + _WEIGHT * cpu)
    return dataclasses.replace(
        profile,
        service_seconds=service,
        cpu_seconds=cpu,
        lock_seconds=_lock_seconds(profile, cpu),
        most_bytes=max(profile.most_bytes, most_bytes),
    )


def _lock_seconds(profile: StageProfile, cpu_seconds: float) -> float:
    """For how long an item holds the lock that takes so long now: of a process that is what handing it over takes."""
    beside, own = profile.beside_seconds, profile.cpu_seconds - profile.beside_seconds
    if profile.worker == "process" or own <= 0:
        return profile.lock_seconds
    return beside + max(0.0, profile.lock_seconds - beside) / own * max(0.0, cpu_seconds - beside)


def _in_proportion(profile: StageProfile, before: StageProfile, after: StageProfile) -> StageProfile:
    """A stage's profile with a kind of worker, after that with another has changed."""
    if profile.worker == after.worker:
        return after
    own_before, own_after = (each.cpu_seconds - each.beside_seconds for each in (before, after))
    cpu_seconds = profile.beside_seconds + (profile.cpu_seconds - profile.beside_seconds) * (
        own_after / own_before if own_before > 0 else 1.0
    )
    waited, after_waited = (each.service_seconds - each.cpu_seconds for each in (before, after))
    longer = after_waited / waited if waited > 0 else 1.0
    own_wait = max(0.0, profile.service_seconds - profile.cpu_seconds)
    return dataclasses.replace(
        profile,
        service_seconds=cpu_seconds + own_wait * longer,
        cpu_seconds=cpu_seconds,
        lock_seconds=_lock_seconds(profile, cpu_seconds),
        most_bytes=max(profile.most_bytes, after.most_bytes),
    )


def decide(
    profiles: Sequence[StageProfile],
    plan: FeedPlan,
    observations: Sequence[StageObservation],
    *,
    seconds: float,
    measured_per_second: float,
    cores: float,
    budget_bytes: int,
    consumer: FeedConsumer = ANYONE,
    horizon_seconds: float,
    switch_seconds: float,
    remote: RemoteProfile | None = None,
    may_try: bool = False,
) -> FeedDecision:
    """What to do with a feed of which this was observed: go on as it is, or resize it, and why. `observations` are of
    the workers here; `remote` are the cores of other nodes that it has or could have. With `may_try`, threads that
    mostly wait may be tried, too, where the lock is thought to be the wall.

    >>> read = StageProfile(name="read", worker="thread", service_seconds=0.1)
    >>> consumer = FeedConsumer(per_second=20.0)
    >>> plan = plan_feed([read], cores=1, budget_bytes=0, consumer=consumer)
    >>> seen = StageObservation(name="read", items=100, busy_seconds=30.0, cpu_seconds=0.0)  # 0.3 s now, and not 0.1
    >>> found = decide([read], plan, [seen], seconds=15.0, measured_per_second=6.7, cores=1, budget_bytes=0,
    ...                consumer=consumer, horizon_seconds=60.0, switch_seconds=1.0)
    >>> [stage.workers for stage in plan.stages], [stage.workers for stage in found.plan.stages]
    ([2], [4])
    >>> found.reason
    "'read' takes 200.0 ms an item and not 100.0 ms: 20 a second are expected instead of 6.7."
    """
    now = follow_drift(profiles, plan, observations, seconds=seconds, cores=cores)
    free = free_cores(
        profiles,
        plan,
        observations,
        seconds=seconds,
        cores=cores,
        measured_per_second=measured_per_second,
        consumer=consumer,
    )
    # Planned for all cores: with fewer workers a feed would be given even less of them. Judged by those that are free.
    planned = plan_feed(now, cores=cores, budget_bytes=budget_bytes, consumer=consumer, remote=remote)
    current, proposed = (_judged(each, now, free, consumer, remote) for each in (plan, planned))
    if _workers(proposed) == _workers(plan) or not worth_resizing(
        current,
        proposed,
        measured_per_second=measured_per_second,
        horizon_seconds=horizon_seconds,
        switch_seconds=switch_seconds,
    ):
        lock_limit = model_of(now, plan.stages).limits(cores=cores, consumer=consumer)[LOCK]
        is_near = lock_limit <= (1 + _TRIED_GAIN) * current.items_per_second  # a little less, and a stage is the wall
        tried, why = None, _WHY_TRIED
        if may_try and measured_per_second < (1 - _SHORT) * current.items_per_second:
            limits = FeedLimits(cores=cores, budget_bytes=budget_bytes, consumer=consumer, most_workers=MOST_WORKERS)
            tried = _with_other_workers(plan, now, limits, least=(1 + _TRIED_GAIN) * measured_per_second)
            why = f"{show_rate(current.items_per_second)} were expected, and {show_number(measured_per_second)} came"
        if tried is None and may_try and is_near:
            tried, why = _with_more_waiting(plan, now, budget_bytes), _WHY_TRIED
        if tried is None:
            return FeedDecision(profiles=now, plan=plan)
        expected = (1 + _TRIED_GAIN) * measured_per_second
        return FeedDecision(profiles=now, plan=tried, reason=why, expected_per_second=expected, is_trial=True)
    why = _why(profiles, now, plan) if _workers(proposed)[:-1] != _workers(plan)[:-1] else _WHY_REMOTE
    reason = f"{why}: {show_rate(proposed.items_per_second)} are expected instead of"
    expected = expected_rate(current, proposed, measured_per_second=measured_per_second)
    reason = f"{reason} {show_number(measured_per_second)}."
    return FeedDecision(profiles=now, plan=proposed, reason=reason, expected_per_second=expected)


def _with_other_workers(
    plan: FeedPlan, profiles: Sequence[StageProfile], limits: FeedLimits, *, least: float
) -> FeedPlan | None:
    """The best plan with threads where some stages are in processes, or with processes where none is; None where it is
    not expected to give so much. By how much a feed falls short says little of how the other kind would do."""
    other = "thread" if any(stage.worker == "process" for stage in plan.stages) else "process"
    found = [profile for profile in profiles if profile.worker == other]
    if len(found) < len(plan.stages) or plan.remote_workers or best_choice(by_stage(found), limits) is None:
        return None
    tried = plan_feed(found, cores=limits.cores, budget_bytes=limits.budget_bytes, consumer=limits.consumer)
    return tried if tried.items_per_second >= least else None


def _with_more_waiting(plan: FeedPlan, profiles: Sequence[StageProfile], budget_bytes: int) -> FeedPlan | None:
    """The plan with twice as many threads, the new ones at the stage that waits for most of its time, where there is
    one and these have room."""
    model = model_of(profiles, plan.stages)
    waiting = [
        n for n in model.stages_of("thread") if model.paid[n].cpu_seconds < _MOSTLY * model.paid[n].service_seconds
    ]
    if not waiting:
        return None
    stage = max(waiting, key=model.seconds)
    pools = {kind: sum(plan.stages[number].workers for number in model.stages_of(kind)) for kind in model.kinds}
    more = pools["thread"]
    pools["thread"] += more
    if pools["thread"] > MOST_WORKERS or model.least_bytes(pools) > budget_bytes:
        return None
    stages = list(plan.stages)
    stages[stage] = dataclasses.replace(stages[stage], workers=stages[stage].workers + more)
    worker_bytes = plan.worker_bytes + more * model.own_bytes("thread")
    return dataclasses.replace(plan, stages=tuple(stages), worker_bytes=worker_bytes)


def _judged(
    plan: FeedPlan,
    profiles: Sequence[StageProfile],
    cores: float,
    consumer: FeedConsumer,
    remote: RemoteProfile | None,
) -> FeedPlan:
    """A plan with what it is expected to give on these cores."""
    rate, wall = predict_feed(profiles, plan, cores=cores, consumer=consumer, remote=remote)
    return dataclasses.replace(plan, items_per_second=rate, wall=wall)


def _workers(plan: FeedPlan) -> list[tuple[str, str, int]]:
    here = [(stage.name, stage.worker, stage.workers) for stage in plan.stages]
    return [*here, ("", "remote", plan.remote_workers)]


def _why(before: Sequence[StageProfile], now: Sequence[StageProfile], plan: FeedPlan) -> str:
    """The stage that has changed most, in words."""
    earlier, later = by_stage(before), by_stage(now)

    def change(stage: StagePlan) -> float:
        first, second = earlier[stage.name].get(stage.worker), later[stage.name].get(stage.worker)
        if first is None or second is None or not first.service_seconds:
            return 0.0
        return abs(second.service_seconds / first.service_seconds - 1)

    most = max(plan.stages, key=change)
    if change(most) < 0.1:
        if plan.wall in ("", CONSUMER):
            return "it was planned for a consumer that takes less"
        return f"{plan.wall} was the wall"
    first, second = earlier[most.name][most.worker], later[most.name][most.worker]
    was, now_takes = (show_seconds(each.service_seconds) for each in (first, second))
    return f"{most.name!r} takes {now_takes} an item and not {was}"
