"""What each stage of a feed takes: alone, in threads and in processes, by short trials of the real thing.

Stages are run one after another in this thread over a few batches, with their own clock, that of the core, and that of
the scheduler, which tells waiting for a disk from waiting for a core that somebody else has. Meanwhile a second thread
asks for the interpreter's lock a thousand times a second: how often it is refused is how long the lock is held. What a
process takes beyond a thread, and how rates grow with workers, is seen from the running feed. Plans nothing.
"""

import contextlib
import dataclasses
import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from dovetail.feeds.definition import Feed, gives_rng
from dovetail.feeds.keyed_draws import as_before
from dovetail.feeds.running import RunningFeed
from dovetail.feeds.sources import ItemSource
from dovetail.feeds.stage_chain import ItemRun, StageChain, StageWork
from dovetail.feeds.travel import pack
from dovetail.planning.feeds import FeedModel, fit_scaling
from dovetail.planning.feeds.feed_model import CORES, LOCK
from dovetail.vocabulary import FeedPlan, ProgramError, StagePlan, StageProfile

# How long each part of a measurement takes, and the least that it looks at.
ALONE_SECONDS, RUNNING_SECONDS, LEAST_BATCHES, MOST_BATCHES = 0.5, 0.4, 3, 2000
# So long a filter that drops whole batches is waited for, until some have come to the end.
MOST_ALONE_SECONDS = 5.0
# The lock is asked for so often; whoever holds it is told to let go after this long, and was holding it if that took
# longer than half as long.
_ASK_SECONDS, _SWITCH_SECONDS = 1e-3, 5e-4
# A stage of which fewer moments were seen than this holds the lock whenever it computes: so does all short Python.
_LEAST_MOMENTS = 20
# The stack and the bookkeeping of one more thread.
_THREAD_BYTES = 128 << 10
# A process that was forked has this much of its own, before it works at anything.
_LEAST_PROCESS_BYTES = 12 << 20
# A stage that computes for less of its time than this does so in moments that are too short to be seen, as Python does.
_LEAST_COMPUTING = 0.1
# With this much of a core free for whoever wants to compute, nobody else is at work here: else what several workers
# miss is what others take.
_QUIET = 0.95
# Processes are measured where threads that keep all cores busy would hold the lock for more than this share of the
# time. They may lose nothing by that themselves, but whoever takes their batches does: an accelerator's training asks
# for the lock with every kernel that it hands over.
_LOCK_SHARE = 0.25
# What batches take beside their stages counts from this share of what they take in them.
_LEAST_FLOW = 0.25
# Where workers have to go by turns, a round of them may take so many times as long as it should.
_MOST_ROUNDS = 5
# A feed computes that takes no more than so many times what it computes for.
_MOST_WAITING = 1.1
# How many workers show what a feed that waits takes beside its stages, and how it scales.
_FLOW_WORKERS = 24
_WAITING_WORKERS = 8


def measure_stages(definition: Feed, *, budget_bytes: int) -> tuple[StageProfile, ...]:
    """The profiles of a feed's stages, in their order, for each kind of worker that could be worth it: processes are
    measured where threads would wait for one another, or their consumer for them. Takes one to three seconds. Raises
    what the feed raises.

    >>> from dovetail.feeds import feed
    >>> profiles = measure_stages(feed(range(1000)).map(lambda x: x + 1).batch(10), budget_bytes=1 << 24)
    >>> [(profile.name, profile.worker) for profile in profiles if profile.worker == "thread"]
    [('source', 'thread'), ('map', 'thread'), ('batch', 'thread')]
    >>> profiles[-1].inputs
    10.0
    """
    chain = StageChain(definition)
    alone = _measure_alone(definition, chain)
    _, reasons = pack(chain)
    profiles = (_thread_profile(alone, place, draws=_draws(chain, place)) for place in range(len(chain.stages)))
    model = FeedModel(profiles=tuple(profiles))
    if not any(chain.drawing):
        model = _measure_flow(definition, model, budget_bytes)
    cores = len(os.sched_getaffinity(0))
    crossing = None
    is_quiet = alone.free_share() > _QUIET
    # Where one for each stage would take what the budget is for, no plan could have them.
    fits = len(reasons) * _LEAST_PROCESS_BYTES <= budget_bytes // 2
    if not any(reasons) and (any(chain.drawing) or (fits and holds_lock(model, cores))):
        crossing = _measure_crossing(definition, model, budget_bytes, cores=cores if is_quiet else 0)
    contention, coherency = 0.0, 0.0
    if is_quiet and not any(chain.drawing):
        contention, coherency = _measure_scaling(definition, model, budget_bytes, cores=cores)
    found = []
    for place, profile in enumerate(model.profiles):
        portable = not reasons[place]
        # Who draws from global generators has them for itself in a process only, or, where it cannot travel, in the
        # thread that asks for batches: then there is one worker, whatever is planned.
        if not chain.drawing[place] or not portable:
            found.append(dataclasses.replace(profile, contention=contention, coherency=coherency, portable=portable))
        if crossing is not None or (chain.drawing[place] and not reasons[place]):
            is_edge = place in (0, len(chain.stages) - 1)
            own = crossing or _Crossing()
            beyond = own.beyond_seconds / len(model.profiles) / model.visits[place]
            found.append(
                _process_profile(profile, own, visits=model.visits[place], is_edge=is_edge, beyond_seconds=beyond)
            )
    return tuple(found)


def holds_lock(model: FeedModel, cores: float) -> bool:
    """Whether threads that keep these cores busy would hold the lock for so long that processes could be better, be it
    for the feed itself or for its consumer.

    >>> decode = StageProfile(name="decode", worker="thread", service_seconds=5e-3, cpu_seconds=5e-3, lock_seconds=5e-4)
    >>> [holds_lock(FeedModel(profiles=(decode,)), cores) for cores in (2, 16)]
    [False, True]
    """
    limits = model.limits(cores=cores)
    return limits[CORES] > _LOCK_SHARE * limits[LOCK]


@dataclasses.dataclass(slots=True, kw_only=True)
class _Alone:
    """What stages did one after another in this thread: their work, the seconds that each waited for a core, and how
    often the lock was asked for and refused meanwhile."""

    names: list[str]
    work: list[StageWork]
    queued: list[float]
    asked: list[int]
    refused: list[int]

    def free_share(self) -> float:
        """The part of a core that was there for whoever wanted to compute: less than 1 where others compute, too."""
        cpu = sum(work.cpu_seconds for work in self.work)
        return cpu / (cpu + sum(self.queued)) if cpu else 1.0


def _measure_alone(definition: Feed, chain: StageChain) -> _Alone:
    count = len(chain.stages)
    found = _Alone(
        names=[stage.name for stage in chain.stages],
        work=[StageWork() for _ in chain.stages],
        queued=[0.0] * count,
        asked=[0] * count,
        refused=[0] * count,
    )
    with as_before(), _LockMeter(found) as meter:
        began, whole = time.perf_counter(), 0  # parts of which something came to the end
        for number, items in enumerate(itertools.islice(_parts(definition), MOST_BATCHES)):
            seconds = time.perf_counter() - began
            if seconds > (ALONE_SECONDS if whole >= LEAST_BATCHES else MOST_ALONE_SECONDS):
                break
            for place in range(count):
                meter.place = place
                queued = _queued_seconds()
                # With the first one is found out who draws; to look for that takes longer than many an item.
                owns = not number or bool(chain.drawing[place])
                (work,) = chain.run(items, place, place + 1, owns_generators=owns, counts_cpu=True)
                meter.place = None
                if items.faults and not definition.skip:
                    raise ProgramError(items.faults[0].message)
                items.faults.clear()  # how many are too many is for the running feed to count
                # The first batch imports, compiles and opens files.
                if number:
                    found.queued[place] += _queued_seconds() - queued
                    _add(found.work[place], work)
                if not items.values:  # a filter has dropped them all
                    break
            whole += bool(items.values)
    return found


def _add(total: StageWork, work: StageWork) -> None:
    total.seconds += work.seconds
    total.cpu_seconds += work.cpu_seconds
    total.items += work.items
    total.bytes += work.bytes
    total.most_bytes = max(total.most_bytes, work.most_bytes)


def _parts(definition: Feed) -> Iterator[ItemRun]:
    """The items of the first epoch, a batch's worth at a time."""
    batch, source = definition.batch_stage(), definition.source
    size = batch.size if batch is not None else 16
    if not isinstance(source, ItemSource):
        values = iter(source)
        for number, place in enumerate(itertools.count(step=size)):
            found = list(itertools.islice(values, size))
            if not found:
                return
            places = list(range(place, place + len(found)))
            yield ItemRun(0, places, list(places), found, batch=number)
    else:
        length, order = len(source), definition.order()
        for number, place in enumerate(range(0, length, size)):
            stop = min(place + size, length)
            numbers = order.indices(0, place, stop, length=length)
            yield ItemRun(0, list(range(place, stop)), numbers, batch=number)


class _LockMeter:
    """A thread that asks for the interpreter's lock, and counts for the stage at work how often it was refused."""

    def __init__(self, found: _Alone) -> None:
        self._found, self._ends = found, threading.Event()
        self._thread = threading.Thread(target=self._ask, name="feed lock meter", daemon=True)
        self.place: int | None = None

    def __enter__(self) -> "_LockMeter":
        self._before = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ends.set()
        self._thread.join()
        sys.setswitchinterval(self._before)

    def _ask(self) -> None:
        while not self._ends.is_set():
            place, began, queued = self.place, time.perf_counter(), _queued_seconds()
            time.sleep(_ASK_SECONDS)  # lets go of the lock, and asks for it again
            late = time.perf_counter() - began - _ASK_SECONDS - (_queued_seconds() - queued)
            if place is not None and place == self.place:
                self._found.asked[place] += 1
                self._found.refused[place] += late > _SWITCH_SECONDS / 2


def _queued_seconds() -> float:
    """For how long this thread has been ready to run and had no core, where the system tells."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def _draws(chain: StageChain, place: int) -> bool:
    return bool(chain.drawing[place]) or gives_rng(chain.stages[place])


def _thread_profile(alone: _Alone, place: int, *, draws: bool) -> StageProfile:
    work, before = alone.work[place], alone.work[place - 1] if place else None
    items = max(1, work.items)
    cpu = work.cpu_seconds / items
    service = max(cpu, (work.seconds - alone.queued[place]) / items)
    asked = alone.asked[place]
    # By the whole clock: where this thread had no core, nobody had the lock either.
    seen = asked >= _LEAST_MOMENTS and cpu > _LEAST_COMPUTING * service
    held = work.seconds / items * alone.refused[place] / asked if seen else cpu
    return StageProfile(
        name=alone.names[place],
        worker="thread",
        service_seconds=service,
        cpu_seconds=cpu,
        lock_seconds=min(cpu, held),
        item_bytes=work.bytes // items,
        most_bytes=work.most_bytes,
        worker_bytes=_THREAD_BYTES,
        inputs=before.items / items if before is not None and before.items else 1.0,
        draws=draws,
    )


def _measure_flow(definition: Feed, model: FeedModel, budget_bytes: int) -> FeedModel:
    """The stages with what a batch takes on its way beside them: to be admitted, queued, put in order and given. Of
    small items that is most of what they take. The last stage has it, which makes the batch. Stages that mostly wait
    have some more threads: of three that wait by turns each is woken for each item, which takes longer."""
    seconds = sum(visits * each.service_seconds for visits, each in zip(model.visits, model.profiles, strict=True))
    waiting = int(seconds / model.cpu_seconds / 2) if model.cpu_seconds else _FLOW_WORKERS
    stages = tuple(
        StagePlan(name=each.name, worker="thread", workers=1 if place else max(1, min(waiting, _FLOW_WORKERS)))
        for place, each in enumerate(model.profiles)
    )
    with _running(definition, FeedPlan(stages=stages), budget_bytes) as (running, batches):
        before, used = running.stats(), time.process_time()
        _count(batches, RUNNING_SECONDS)
        after, used = running.stats(), time.process_time() - used
    made = (after.stages[0].items - before.stages[0].items) / model.visits[0]
    if not made:
        return model
    more = used / made - model.cpu_seconds
    # A batch for each worker may be under way when clocks are read.
    unsure = max(_LEAST_FLOW * model.cpu_seconds, 2 * sum(stage.workers for stage in stages) * model.cpu_seconds / made)
    if abs(more) < unsure:
        return model
    if more < 0:  # stages were slowed down by the clocks that were read for each item
        return FeedModel(profiles=tuple(_stretch(each, 1 + more / model.cpu_seconds) for each in model.profiles))
    *others, last = model.profiles
    longer = dataclasses.replace(
        last,
        service_seconds=last.service_seconds + more,
        cpu_seconds=last.cpu_seconds + more,
        lock_seconds=last.lock_seconds + more,
        beside_seconds=more,
    )
    return FeedModel(profiles=(*others, longer))


def _stretch(profile: StageProfile, factor: float) -> StageProfile:
    """The profile of a stage that computes so many times as long, and waits as long as before."""
    return dataclasses.replace(
        profile,
        service_seconds=profile.service_seconds + (factor - 1) * profile.cpu_seconds,
        cpu_seconds=profile.cpu_seconds * factor,
        lock_seconds=profile.lock_seconds * factor,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Crossing:
    """What a batch takes of the main process that is made in others, as a whole and item by item; what it takes of
    these beyond its stages, to be received and sent; and what one of them holds by itself."""

    batch_seconds: float = 0.0
    items_seconds: float = 0.0
    beyond_seconds: float = 0.0
    worker_bytes: int = 64 << 20


def _measure_crossing(definition: Feed, model: FeedModel, budget_bytes: int, *, cores: int) -> _Crossing | None:
    """All stages in processes: what is then left to do here is to send and to receive, batches first, and then, with
    reading and batching back here, items. Where so many cores have nothing else to do, it is seen, too, what is lost
    while one side waits to be woken by the other."""
    names = [stage.name for stage in definition.work_stages()]
    whole = ["process"] * len(names)
    apart = ["process" if 0 < place < len(names) - 1 else "thread" for place in range(len(names))]
    found = []
    for kinds in (whole, apart):
        stages = tuple(StagePlan(name=name, worker=kind, workers=1) for name, kind in zip(names, kinds, strict=True))
        with _running(definition, FeedPlan(stages=stages), budget_bytes) as (running, batches):
            _count(batches, RUNNING_SECONDS / 4)  # until all processes are there
            pids = running.worker_pids()
            used, used_there = time.process_time(), _cpu_seconds(pids)
            count, took = _count(batches, RUNNING_SECONDS)
            if not count:
                return None
            found.append((time.process_time() - used) / count)
            if kinds is whole:
                beyond = (_cpu_seconds(pids) - used_there) / count - model.cpu_seconds
                if cores:
                    beyond += _lost_seconds(model, took / count, here=found[0], beyond=beyond, cores=cores)
                own = max((_unique_bytes(pid) for pid in pids), default=0)
    return _Crossing(
        batch_seconds=found[0],
        items_seconds=max(found),
        beyond_seconds=max(0.0, beyond),
        worker_bytes=own or 64 << 20,
    )


def _lost_seconds(model: FeedModel, took: float, *, here: float, beyond: float, cores: int) -> float:
    """How much longer a batch took one process for each stage, in seconds of all that were at work on it together, than
    workers, cores and the lock explain. Of stages that wait that is not known: more processes would lose less."""
    count = len(model.profiles)
    service = sum(map(model.seconds, range(count)))
    if service > _MOST_WAITING * model.cpu_seconds:
        return 0.0
    there = max(0.0, model.cpu_seconds + beyond)
    explained = {count: (service + beyond) / count, cores: (there + here) / cores, 1: here}
    together = max(explained, key=lambda workers: explained[workers])
    return max(0.0, took - explained[together]) * together


def _cpu_seconds(pids: Sequence[int]) -> float:
    """For how long these processes have kept cores busy, where the system tells."""
    found = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for file in list(Path(f"/proc/{pid}/task").glob("*/schedstat")):  # threads end meanwhile, folders stay open
                found += int(file.read_text().split()[0])
    return found * 1e-9


def _count(batches: Iterator[object], seconds: float, *, rounds_of: int = 1) -> tuple[int, float]:
    """How many batches come within so many seconds, in whole rounds where these do not take several times as long, and
    how long that really was."""
    began, count = time.perf_counter(), 0
    for _ in batches:
        count += 1
        took = time.perf_counter() - began
        if took > seconds and (count % rounds_of == 0 or took > _MOST_ROUNDS * seconds):
            break
    return count, time.perf_counter() - began


def _process_profile(
    profile: StageProfile, crossing: _Crossing, *, visits: float, is_edge: bool, beyond_seconds: float
) -> StageProfile:
    """In processes. What comes to the first stage are numbers, and what leaves the last are batches; between the others
    whole items change hands. `beyond_seconds` an item are taken there to receive and to send it."""
    handed = (crossing.batch_seconds if is_edge else crossing.items_seconds) / visits
    beside = handed + beyond_seconds
    return dataclasses.replace(
        profile,
        worker="process",
        service_seconds=profile.service_seconds + beside,
        cpu_seconds=profile.cpu_seconds + beside,
        lock_seconds=handed,
        beside_seconds=profile.beside_seconds + beside,
        worker_bytes=crossing.worker_bytes,
    )


def _unique_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, psutil.Error):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_Dirty:"):
                return int(line.split()[1]) << 10
    return 0


@contextlib.contextmanager
def _running(definition: Feed, plan: FeedPlan, budget_bytes: int) -> Iterator[tuple[RunningFeed, Iterator[object]]]:
    """The feed at work as a plan says, after its first batches."""
    with RunningFeed(definition, plan=plan, budget_bytes=budget_bytes) as running:
        batches = iter(running)
        for _ in itertools.islice(batches, LEAST_BATCHES):
            pass
        yield running, batches


def _measure_scaling(definition: Feed, model: FeedModel, budget_bytes: int, *, cores: float) -> tuple[float, float]:
    """How much less several threads give than so many times one, beyond what cores and lock explain."""
    profiles = model.profiles
    seconds = sum(visits * profile.service_seconds for visits, profile in zip(model.visits, profiles, strict=True))
    if not seconds:
        return 0.0, 0.0
    most = min(model.limits(cores=cores).values())
    points = [(1, 1 / seconds)]
    # Stages of a kind share its workers, and each brings one at least.
    for more in (0, max(1, _WAITING_WORKERS - len(profiles))):
        stages = tuple(
            StagePlan(name=profile.name, worker="thread", workers=1 if place else 1 + more)
            for place, profile in enumerate(profiles)
        )
        workers = len(profiles) + more
        # Workers that wait equally long are all done at one moment: so many batches come at once, again and again.
        with _running(definition, FeedPlan(stages=stages), budget_bytes) as (_, batches):
            count, took = _count(batches, RUNNING_SECONDS / 2, rounds_of=workers)
        explained = min(workers / seconds, most)
        points.append((workers, workers / seconds * min(1.0, count / took / explained)))
    return fit_scaling(points)
