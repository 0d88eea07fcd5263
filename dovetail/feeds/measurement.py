"""What a feed's stages take, by short trials: with threads and with processes, alone and beside others.

A stage is profiled with each kind of worker that it can have. How long it holds the interpreter's lock is found by a
thread that wants the lock all the time: what that one does not get, the stage has. What items take longer where two
workers run is put down to the universal law's second constant, after cores and lock: processors' time for stages that
compute, all of it for stages that wait. Knows stages; what is made of the profiles is planning's business.
"""

import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator

import psutil

from dovetail.feeds.assembly import item_stages
from dovetail.feeds.definition import DEFAULT_BUDGET_BYTES, Feed
from dovetail.feeds.keyed_draws import as_before, one_thread
from dovetail.feeds.running import FeedStats, RunningFeed
from dovetail.feeds.sources import ItemSource
from dovetail.feeds.stage_chain import ItemRun, StageChain
from dovetail.feeds.travel import pack
from dovetail.vocabulary import FeedPlan, StagePlan, StageProfile

SECONDS = 2.4
# The stack that a thread has touched, and what an interpreter keeps of it.
THREAD_BYTES = 256 << 10
# Shorter calls are not worth watching: those of Python hold the lock all the time, and clocks take as long to read.
_WATCHED_SECONDS = 1e-4
_MOST_IN_BATCH = 8


@dataclasses.dataclass(frozen=True, slots=True)
class _StageRate:
    """What one item took a stage in a trial, all workers together: seconds at work, of them on a core, how many items
    it gave, and their bytes."""

    seconds: float
    cpu_seconds: float
    items: int
    item_bytes: int
    most_bytes: int


def measure_stages(
    definition: Feed, *, seconds: float = SECONDS, budget_bytes: int = DEFAULT_BUDGET_BYTES
) -> tuple[StageProfile, ...]:
    """The profiles of a feed's stages, one for each kind of worker that a stage can have, in the order of the stages.
    Takes about so many seconds, and the time to start a process.

    >>> from dovetail.feeds.definition import feed
    >>> profiles = measure_stages(feed(range(10_000)).map(lambda number: sum(range(1000))).batch(8), seconds=0.1)
    >>> [(profile.name, profile.worker, profile.inputs) for profile in profiles if profile.name == "batch"]
    [('batch', 'thread', 8.0), ('batch', 'process', 8.0)]
    """
    chain = StageChain(definition)
    reasons = pack(chain)[1]
    locked = _lock_shares(definition, chain, seconds / 6)
    settings = {"budget_bytes": budget_bytes, "counts_cpu": True}
    with RunningFeed(definition, plan=_plan(definition, "thread"), **settings) as running:  # type: ignore[arg-type]
        running.limit_workers(1)
        alone = _trial(running, seconds / 4)
    processes: list[_StageRate] = []
    crowded: list[_StageRate] = []
    hand_seconds = worker_bytes = 0.0
    if not all(reasons):
        with RunningFeed(definition, plan=_plan(definition, "process"), **settings) as running:  # type: ignore[arg-type]
            running.limit_workers(1)
            processes = _trial(running, seconds / 4)
            hand_seconds = running.hand_seconds_per_item()
            worker_bytes = _worker_bytes(running)
            running.limit_workers(2)
            crowded = _trial(running, seconds / 4)
    found = []
    for place, stage in enumerate(chain.stages):
        shared = {"name": stage.name, "inputs": _inputs(chain, alone, place), "portable": not reasons[place]}
        draws = bool(chain.drawing[place])
        growth = _growth(processes[place], crowded[place]) if crowded else 0.0
        if not draws or reasons[place]:
            lock = locked.get(place, 1.0) * min(alone[place].cpu_seconds, alone[place].seconds)
            # One that draws from global generators and cannot travel has no second worker.
            found.append(
                _profile(
                    alone[place],
                    worker="thread",
                    lock_seconds=lock,
                    contention=1.0 if draws else 0.0,
                    coherency=growth,
                    worker_bytes=THREAD_BYTES,
                    **shared,
                )
            )
        if not reasons[place]:
            own = processes[place]
            lock = hand_seconds if stage.operation != "batch" else hand_seconds * stage.size
            found.append(
                _profile(
                    own,
                    worker="process",
                    lock_seconds=lock,
                    contention=0.0,
                    coherency=growth,
                    worker_bytes=int(worker_bytes),
                    **shared,
                )
            )
    return tuple(found)


def _profile(rate: _StageRate, *, lock_seconds: float, worker_bytes: int, **fields: object) -> StageProfile:
    # A stage that computes takes as long as it has a core: whatever else there is was somebody else's load.
    seconds = rate.cpu_seconds if _computes(rate) else rate.seconds
    return StageProfile(
        service_seconds=seconds,
        cpu_seconds=min(rate.cpu_seconds, seconds),
        lock_seconds=lock_seconds,
        item_bytes=rate.item_bytes,
        most_bytes=rate.most_bytes,
        worker_bytes=worker_bytes,
        **fields,  # type: ignore[arg-type]
    )


def _plan(definition: Feed, worker: str) -> FeedPlan:
    names = [stage.name for stage in definition.work_stages()]
    return FeedPlan(stages=tuple(StagePlan(name=name, worker=worker, workers=1) for name in names))


def _trial(running: RunningFeed, seconds: float) -> list[_StageRate]:
    """Read for so long, and what the stages did in that time."""
    batches = _endless(running)
    next(batches)
    before, start = running.stats(), time.perf_counter()
    while time.perf_counter() - start < seconds:
        next(batches)
    after = running.stats()
    return [_rate(before, after, place) for place in range(len(after.stages))]


def _endless(running: RunningFeed) -> Iterator[object]:
    while True:
        given = False
        for batch in running:
            given = True
            yield batch
        if not given:
            return


def _rate(before: FeedStats, after: FeedStats, place: int) -> _StageRate:
    one, other = before.stages[place], after.stages[place]
    if other.items == one.items:  # too slow for a second one: the first must do
        one = dataclasses.replace(one, busy_seconds=0.0, cpu_seconds=0.0, items=0, bytes=0)
    # An item that is dropped has cost as much; what a stage takes is counted for each that it gives.
    items = max(1, other.items - one.items)
    return _StageRate(
        seconds=(other.busy_seconds - one.busy_seconds) / items,
        cpu_seconds=(other.cpu_seconds - one.cpu_seconds) / items,
        items=other.items - one.items,
        item_bytes=(other.bytes - one.bytes) // items,
        most_bytes=other.most_bytes,
    )


def _growth(alone: _StageRate, crowded: _StageRate) -> float:
    """The universal law's second constant from one and two workers: 2 / (1 + 2 κ) of them is what two give. For stages
    that compute, by the time of cores, which foreign load does not stretch."""
    if alone.seconds < _WATCHED_SECONDS:
        return 0.0
    computes = _computes(alone)
    before, after = (alone.cpu_seconds, crowded.cpu_seconds) if computes else (alone.seconds, crowded.seconds)
    ratio = after / before if before > 0 else 1.0
    return max(0.0, (ratio - 1.0) / 2) if ratio > 1.1 else 0.0


def _computes(rate: _StageRate) -> bool:
    return rate.cpu_seconds > 0.5 * rate.seconds


def _inputs(chain: StageChain, rates: list[_StageRate], place: int) -> float:
    stage = chain.stages[place]
    if stage.operation == "batch":
        return float(stage.size)
    if stage.operation == "filter" and place:
        return max(1.0, rates[place - 1].items / max(1, rates[place].items))
    return 1.0


def _worker_bytes(running: RunningFeed) -> int:
    """What one more worker process holds for itself."""
    sizes = [0]
    for pid in running.worker_pids():
        with contextlib.suppress(psutil.Error):
            sizes.append(int(psutil.Process(pid).memory_full_info().uss))
    return max(sizes)


def _lock_shares(definition: Feed, chain: StageChain, seconds: float) -> dict[int, float]:
    """Which part of its time on a core each stage holds the interpreter's lock, where that can be seen."""
    source = definition.source
    if not isinstance(source, ItemSource) or not len(source):
        return {}
    held: list[list[float]] = [[] for _ in chain.stages]
    batch, number = definition.batching(), 0
    size = min(batch.size, _MOST_IN_BATCH) if batch is not None else 1
    with as_before(), one_thread(), _Spinner() as spinner:
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            parts = []
            for _ in range(size):
                parts.append(ItemRun(0, [number], [number % len(source)]))
                number += 1
                _watch(chain, parts[-1], range(item_stages(definition)), spinner, held)
            values = [value for part in parts for value in part.values or ()]
            if values and batch is not None:
                whole = ItemRun(0, list(range(len(values))), list(range(len(values))), values)
                _watch(chain, whole, range(item_stages(definition), len(chain.stages)), spinner, held)
    # Whatever else runs on the machine can only add to what is seen, so what is seen least is what the stage does.
    return {place: min(1.0, sorted(each)[len(each) // 10]) for place, each in enumerate(held) if each}


def _watch(
    chain: StageChain, items: ItemRun, places: Iterable[int], spinner: "_Spinner", held: list[list[float]]
) -> None:
    """Put items through stages one by one, and keep which part of its time each has had the lock."""
    for place in places:
        had, before = spinner.seconds(), time.perf_counter()
        (work,) = chain.run(items, place, place + 1, owns_generators=False, counts_cpu=True)
        wall = time.perf_counter() - before
        if work.cpu_seconds >= _WATCHED_SECONDS:
            held[place].append(max(0.0, wall - (spinner.seconds() - had)) / work.cpu_seconds)
        if items.faults or not items.values:
            return


class _Spinner:
    """A thread that always wants the interpreter's lock, and knows how long it has had it."""

    def __init__(self) -> None:
        self._goes_on = True
        self._thread = threading.Thread(target=self._spin, name="feed lock", daemon=True)
        self._interval = sys.getswitchinterval()

    def __enter__(self) -> "_Spinner":
        # So that a stage that has let the lock go is not kept waiting for long when it wants it again.
        sys.setswitchinterval(2e-4)
        self._thread.start()
        # On one core the two would take turns, lock or not.
        self._cores = os.sched_getaffinity(0)
        if len(self._cores) > 1:
            own, other, *_ = sorted(self._cores)
            os.sched_setaffinity(0, [own])
            os.sched_setaffinity(self._thread.native_id or 0, [other])
        self._clock = time.pthread_getcpuclockid(self._thread.ident)  # type: ignore[arg-type]
        return self

    def __exit__(self, *raised: object) -> None:
        self._goes_on = False
        self._thread.join()
        os.sched_setaffinity(0, self._cores)
        sys.setswitchinterval(self._interval)

    def seconds(self) -> float:
        """How long it has run, which it does only with the lock."""
        return time.clock_gettime(self._clock)

    def _spin(self) -> None:
        while self._goes_on:
            for _ in range(1000):
                pass
